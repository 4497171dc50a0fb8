//! A run as a file that another program opens.
//!
//! For:     `nanoprobe report --to`.
//! State:   none.
//! Context: control.
//! Keeps:   T1 a format that needs what was not recorded is an error that says what would record it, not an empty file.
//! Checked: tests of the formats; tests/formats.rs reads them back with other programs' readers.

mod chrome;
mod firefox;
mod openmetrics;
mod perfetto;
mod pprof;
mod proto;
mod speedscope;

use crate::run::Run;
use crate::{flame, page};
use std::fmt;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One self-contained page.
    Html,
    /// The stacks as a picture.
    Flame,
    /// One stack a line, outermost first.
    Folded,
    /// speedscope.app: stacks, and calls of each thread over time.
    Speedscope,
    /// Protocol buffers for `go tool pprof` and others: stacks, or functions with their times.
    Pprof,
    /// profiler.firefox.com: stacks, and calls as markers.
    Firefox,
    /// chrome://tracing and others: calls.
    Chrome,
    /// ui.perfetto.dev: calls as tracks of threads.
    Perfetto,
    /// Text for collectors: counters and histograms.
    OpenMetrics,
}

/// What was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// Stacks.
    Stacks,
    /// Calls one by one.
    Calls,
    /// Neither stacks nor timed functions.
    StacksOrFunctions,
    /// Neither stacks nor calls.
    StacksOrCalls,
}

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lacks::Stacks => "it has no stacks",
            Lacks::Calls => "it has no calls one by one of threads that are known",
            Lacks::StacksOrFunctions => "it has neither stacks nor timed functions",
            Lacks::StacksOrCalls => "it has neither stacks nor calls one by one",
        })
    }
}

impl std::error::Error for Lacks {}

impl To {
    /// What files of this kind end in.
    pub fn ending(self) -> &'static str {
        match self {
            To::Html => "html",
            To::Flame => "svg",
            To::Folded => "folded",
            To::Speedscope => "speedscope.json",
            To::Pprof => "pb.gz",
            To::Firefox => "firefox.json",
            To::Chrome => "trace.json",
            To::Perfetto => "pftrace",
            To::OpenMetrics => "prom",
        }
    }

    /// The file.
    ///
    /// # Errors
    /// What it needs and was not recorded.
    pub fn bytes(self, run: &Run) -> Result<Vec<u8>, Lacks> {
        let has_stacks = !run.stacks.is_empty();
        let edges = || Some(crate::calls::edges(&run.calls)).filter(|edges| !edges.is_empty());
        match self {
            To::Html => Ok(page::html(run).into_bytes()),
            To::Flame | To::Folded if !has_stacks => Err(Lacks::Stacks),
            To::Flame => Ok(flame::svg(&run.folded(), None, &run.title()).into_bytes()),
            To::Folded => {
                let line = |(stack, n): (&Vec<String>, &u64)| format!("{} {n}\n", stack.join(";"));
                Ok(run.folded().iter().map(line).collect::<String>().into_bytes())
            }
            To::Pprof if !has_stacks && run.functions.is_empty() => Err(Lacks::StacksOrFunctions),
            To::Pprof => Ok(pprof::bytes(run)),
            To::Chrome => Ok(chrome::bytes(run, &edges().ok_or(Lacks::Calls)?)),
            To::Perfetto => Ok(perfetto::bytes(run, &edges().ok_or(Lacks::Calls)?)),
            To::Speedscope | To::Firefox if !has_stacks && edges().is_none() => Err(Lacks::StacksOrCalls),
            To::Speedscope => Ok(speedscope::bytes(run, &edges().unwrap_or_default())),
            To::Firefox => Ok(firefox::bytes(run)),
            To::OpenMetrics => Ok(openmetrics::text(run).into_bytes()),
        }
    }
}
