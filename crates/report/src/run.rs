//! A run, as far as it was recorded.
//!
//! For:     the page and all formats.
//! State:   what the lines have said, added up.
//! Context: control.
//! Keeps:   R1 what was not recorded is absent, not 0.
//! Checked: tests of `read`.

use crate::Folded;
use serde_json::Value;
use std::collections::BTreeMap;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// What ran.
    pub about: About,
    /// What was probed.
    pub placed: Placed,
    /// Timed functions, by name: all of the run.
    pub functions: BTreeMap<String, Function>,
    /// What they did in each interval.
    pub columns: Vec<Column>,
    /// Maps and counts by name: key and value.
    pub maps: BTreeMap<String, Vec<(String, Value)>>,
    /// Histograms by name.
    pub histograms: BTreeMap<String, Vec<Bucket>>,
    /// By whom, with how often.
    pub stacks: Vec<Stack>,
    /// Calls one by one.
    pub calls: Vec<Call>,
    /// Calls that were recorded beyond those that are kept.
    pub more_calls: u64,
    /// Lines that a script printed.
    pub printed: Vec<String>,
    /// The closing account; `None` if the run did not come to its end.
    pub receipt: Option<Value>,
    /// Other sets of probes at the same functions: what each had of hits.
    pub beside: Vec<Value>,
    /// What a hit costs and what part of the processor's time that was, as it was measured.
    pub price: Option<Value>,
    /// What a budget allowed, what was used of it and who was seen in part, at the last look.
    pub budget: Option<Value>,
    /// The last line was cut.
    pub is_cut: bool,
}

/// What ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Version of the command that recorded it.
    pub version: String,
    /// Its words.
    pub command: Vec<String>,
    /// The process.
    pub pid: Option<u64>,
    /// Its name.
    pub program: String,
    /// Its own words.
    pub arguments: Vec<String>,
    /// The system.
    pub kernel: String,
    /// Its processors.
    pub cpus: Option<u64>,
    /// Seconds since 1970.
    pub began: Option<f64>,
}

/// Which probes were in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    /// How many.
    pub probes: u64,
    /// By rung.
    pub rungs: Vec<(String, u64)>,
    /// Name and reason.
    pub left_out: Vec<(String, String)>,
    /// How long the attach took.
    pub attach_us: Option<u64>,
    /// How long a thread stood still for it.
    pub longest_stall_us: Option<u64>,
}

/// Values from `min` to `max`, both inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The least.
    pub min: i64,
    /// The greatest; `None`: no bound.
    pub max: Option<i64>,
    /// How many.
    pub count: u64,
}

/// A timed function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// How often it was called.
    pub calls: u64,
    /// How many of these returned.
    pub returned: u64,
    /// Nanoseconds of those.
    pub total_ns: u64,
    /// By nanoseconds.
    pub ns: Vec<Bucket>,
}

impl Function {
    /// Below which so many of 100 calls lie: the end of a bucket.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let all: u128 = self.ns.iter().map(|b| u128::from(b.count)).sum();
        let wanted = (all * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.ns.iter().find(|b| {
            seen += u128::from(b.count);
            seen >= wanted
        });
        found.and_then(|b| u64::try_from(b.max?.saturating_add(1)).ok())
    }
}

/// What came in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Column {
    /// When it ended, since the attach.
    pub at_ms: u64,
    /// Of each function that was called.
    pub functions: BTreeMap<String, Function>,
}

/// One way to a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// The probed function first.
    pub frames: Vec<Frame>,
    /// How often.
    pub count: u64,
}

/// One frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    /// The function.
    pub name: String,
    /// Its source file.
    pub file: String,
    /// The line there.
    pub line: u64,
}

/// One call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// The function.
    pub name: String,
    /// The thread; 0 if that is not known.
    pub tid: u64,
    /// When it began, since the first event.
    pub at_ns: u64,
    /// How long it took; `None` if not both ends were seen.
    pub ns: Option<u64>,
    /// Its first arguments.
    pub args: Vec<String>,
    /// What it returned.
    pub ret: Option<String>,
}

impl Run {
    /// Functions that were in for a part of the time, with that part in words: what is told of them is of the hits that were seen.
    pub fn seen_in_part(&self) -> Vec<(String, String)> {
        let sampled = self.budget.as_ref().and_then(|budget| budget["sampled"].as_object());
        let words = |of: &Value| match (of["switched_off"].as_bool(), of["one_of"].as_f64()) {
            (Some(false), Some(one_of)) => format!("1 of {one_of:.1}"),
            _ => "switched off".to_owned(),
        };
        sampled.into_iter().flatten().map(|(name, of)| (name.clone(), words(of))).collect()
    }

    /// Stacks with the outermost function first, those of one look added up.
    pub fn folded(&self) -> Folded {
        let mut sums = Folded::new();
        for stack in &self.stacks {
            let names =
                stack.frames.iter().rev().map(|f| f.name.replace([';', '\n'], ":").trim_start().to_owned());
            let sum = sums.entry(names.collect()).or_default();
            *sum = sum.saturating_add(stack.count);
        }
        sums
    }

    /// What to call it.
    pub fn title(&self) -> String {
        match (self.about.program.as_str(), self.about.pid) {
            ("", None) => "a recorded run".into(),
            ("", Some(pid)) => format!("process {pid}"),
            (name, None) => name.into(),
            (name, Some(pid)) => format!("{name} ({pid})"),
        }
    }
}
