//! How the tracing itself is doing.
//!
//! For:     the live view and the plain print.
//! State:   what a call costs, as it was measured beside the run; processor time of the target and of us at the last look.
//! Context: control.
//! Keeps:   B1 what is not known is said to be not known; no figure stands in for a measurement.
//!          B2 hits = handled + skipped, up to those that are inside at this moment.
//! Checked: testkit `view`.

use super::numbers::{Functions, Line};
use super::shot::rate;
use crate::args::Format;
use crate::probes::Probes;
use crate::render::{self, Report};
use crate::shown::shown;
use bench::Price;
use session::Session;
use std::time::Instant;

/// Rows of what and how.
pub type Rows = Vec<(&'static str, String)>;

/// Processor time is read so often at most.
const WINDOW_MS: u128 = 900;

#[derive(Default)]
pub struct Health {
    /// Of a timed or counted call, in a loop of ours.
    price: Option<Price>,
    before: Option<Cpu>,
    /// Parts of a CPU: the target, and us.
    used: Option<(f64, f64)>,
}

struct Cpu {
    at: Instant,
    target: u64,
    own: u64,
}

impl Health {
    pub fn of(price: Option<Price>) -> Health {
        Health { price, ..Health::default() }
    }

    pub fn look(&mut self, pid: i32, now: Instant) {
        if self.before.as_ref().is_some_and(|b| now.saturating_duration_since(b.at).as_millis() < WINDOW_MS) {
            return;
        }
        let (Some(target), Some(own)) =
            (render::cpu_ticks(pid), render::cpu_ticks(std::process::id().cast_signed()))
        else {
            self.used = None;
            return;
        };
        if let Some(b) = &self.before {
            let seconds = now.saturating_duration_since(b.at).as_secs_f64() * render::ticks_per_second();
            let part = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
            self.used = Some((part(target, b.target), part(own, b.own)));
        }
        self.before = Some(Cpu { at: now, target, own });
    }

    /// Processor time of the process, and ours.
    pub fn processor(&self) -> Option<(&'static str, String)> {
        let (target, own) = self.used?;
        let text =
            format!("{:.0} % of a CPU used by the process, {:.1} % by us", target * 100.0, own * 100.0);
        Some(("processor", text))
    }

    /// All that is known; `report` takes longer to find out.
    pub fn rows(&self, probes: &Probes, functions: &Functions, report: &Report, lines: &[Line]) -> Rows {
        let sessions = probes.sessions();
        let mut rows: Rows = vec![("price", self.price_of_a_call()), ("overhead", self.overhead(lines))];
        rows.extend(self.processor());
        rows.push(("hits", hits(report)));
        if let Some(calls) = calls(sessions, functions) {
            rows.push(("calls", calls));
        }
        rows.push(("probes", placed(sessions, functions)));
        rows.push(("stalls", stalls(sessions)));
        if let Some(session) = sessions.first() {
            let way = if session.has_rseq() { "restartable sequences" } else { "locked adds" };
            rows.push(("counts", format!("by {way}; hits are waited for by {}", session.grace().fence)));
        }
        let damaged = probes.damaged();
        if damaged > 0 {
            rows.push(("damaged", format!("{damaged} records of the target could not be believed")));
        }
        rows
    }
}

impl Health {
    /// What the first line of the screen has of all that.
    pub fn overhead_row(&self, lines: &[Line]) -> Rows {
        vec![("overhead", self.overhead(lines))]
    }

    fn price_of_a_call(&self) -> String {
        match &self.price {
            Some(price) => format!(
                "{:.1} ns a call, measured in a loop beside the process ({:.1} ns without probes); caches of the process not in it",
                price.ns, price.bare_ns
            ),
            None => "not known: it could not be measured".into(),
        }
    }

    /// Of the processor time that the process would use without us.
    fn overhead(&self, lines: &[Line]) -> String {
        let Some((price, (target, _))) = self.price.as_ref().zip(self.used) else {
            return "not known".into();
        };
        let per_second: f64 = lines.iter().map(|line| line.per_second).sum();
        if lines.iter().any(|line| line.is_by_kernel && line.per_second > 0.0) {
            return "not known: some functions have the kernel's probes, whose price is not measured".into();
        }
        let cost = per_second * price.ns / 1e9;
        match render::overhead_percent(cost, target) {
            _ if per_second <= 0.0 => "0 %".into(),
            Some(percent) => format!("{percent:.2} %"),
            // Processor time is counted in ticks.
            None => "not known".into(),
        }
    }
}

fn hits(report: &Report) -> String {
    let skipped = report.hits.saturating_sub(report.handled);
    // Hits that were over when the sums were read, and those that came meanwhile and are in some of them.
    let hits = report.hits.max(report.handled);
    let mut text = format!("{hits} = {} handled + {skipped} skipped or inside", report.handled);
    if report.lost > 0 {
        text += &format!(" ({} found their ring full)", report.lost);
    }
    if report.children > 0 {
        text += &format!("; {} in forked children, not in these", report.children);
    }
    text
}

/// What became of timed calls that did not return; `None` if none is timed.
fn calls(sessions: &[Session], functions: &Functions) -> Option<String> {
    if !functions.is_timed() {
        return None;
    }
    let all = sessions.iter().map(Session::not_returned);
    let (unwound, no_room) =
        all.fold((0u64, 0u64), |a, b| (a.0.saturating_add(b.0), a.1.saturating_add(b.1)));
    Some(format!("{unwound} unwound or begun again, {no_room} not timed for lack of room"))
}

fn placed(sessions: &[Session], functions: &Functions) -> String {
    let sites: usize = sessions.iter().map(|s| s.sites().count()).sum();
    let missed: usize = sessions.iter().map(|s| s.missed().len()).sum();
    let rungs: Vec<String> =
        render::by_rung(sessions).values().map(|(rung, n)| format!("{n} {rung}")).collect();
    let mut text = format!("{} functions at {sites} sites: {}", functions.len(), rungs.join(", "));
    if functions.off() > 0 {
        text += &format!("; {} functions are switched off", functions.off());
    }
    if missed > 0 {
        text += &format!("; {missed} missed");
    }
    text
}

fn stalls(sessions: &[Session]) -> String {
    let longest = sessions.iter().map(Session::longest_stall).max().unwrap_or_default();
    let fence = sessions.iter().map(|s| s.grace().stall).max().unwrap_or_default();
    let longest = render::time(longest.max(fence));
    let took = render::time(sessions.iter().map(Session::attach_time).sum());
    format!("no thread stood still for longer than {longest}; the attach took {took}")
}

/// The name of a process and its number.
pub fn title(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    format!("{} ({pid})", shown(name.trim_end_matches('\n'), Format::Text))
}

/// Calls a second of all, in words.
pub fn rate_of(per_second: f64) -> String {
    format!("{} calls a second", rate(per_second))
}
