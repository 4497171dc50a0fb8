//! Calls as they happen: entries and exits brought together.
//!
//! For:     the engine, with `trace`.
//! State:   calls that have begun; events that may still have an older neighbour on its way.
//! Context: control.
//! Keeps:   T1 each event is shown once: a call when it ends, or at the end of the run if it has not.
//!          T2 what the target writes takes a bounded time and memory: a look's events, `BEGUN_MAX` calls.
//! Checked: tests below; testkit `tracing`.

use crate::args::Format;
use crate::render::nanoseconds;
use serde_json::json;
use session::{Event, Session};
use std::collections::HashMap;
use std::time::Duration;

/// A thread writes its event this soon after it took the stamp, or is a little out of order.
const SETTLED: Duration = Duration::from_millis(2);
/// How often the rings are looked at. A ring of 16,384 events is then full at 8 million a second on one CPU.
pub const LOOK: Duration = Duration::from_millis(2);

/// So many calls are kept open: as many as the target's own table has places for.
const BEGUN_MAX: usize = 1 << 18;

/// The calls of one session.
pub struct Calls {
    names: HashMap<u32, String>,
    begun: HashMap<(u64, u32), Event>,
    waiting: Vec<Event>,
    first: Option<u64>,
    arguments: usize,
    format: Format,
    /// Calls whose beginning was not kept.
    not_kept: u64,
}

impl Calls {
    pub fn of(session: &Session, arguments: usize, format: Format) -> Calls {
        let named = session.sites().filter_map(|s| Some((s.plan.traces()?, s.plan.name.clone())));
        Calls {
            names: named.collect(),
            begun: HashMap::new(),
            waiting: Vec::new(),
            first: None,
            arguments,
            format,
            not_kept: 0,
        }
    }

    /// Calls whose beginning was not kept: too many were open at once, more than a program's stacks have room for.
    pub fn not_kept(&self) -> u64 {
        self.not_kept
    }

    /// The lines of what has ended by now, a bounded number. False if there may be more to take.
    pub fn take(&mut self, session: &Session) -> (Vec<String>, bool) {
        let is_all = session.take_events(|event| self.waiting.push(event));
        self.waiting.sort_by_key(|e| e.stamp);
        let now = session.now();
        let is_settled =
            |e: &Event| Duration::from_nanos(session.nanoseconds(now.saturating_sub(e.stamp))) >= SETTLED;
        let ready = self.waiting.partition_point(is_settled);
        let ready: Vec<Event> = self.waiting.drain(..ready).collect();
        (ready.iter().flat_map(|e| self.end(session, e)).collect(), is_all)
    }

    /// Notes an entry; gives the line of a call that ends, and of one of which that is now known that its end was
    /// not seen.
    fn end(&mut self, session: &Session, event: &Event) -> Vec<String> {
        let first = *self.first.get_or_insert(event.stamp);
        let key = (event.place, event.function);
        if !event.is_exit && self.begun.len() >= BEGUN_MAX && !self.begun.contains_key(&key) {
            self.not_kept += 1;
            return Vec::new();
        }
        if !event.is_exit {
            let before = self.begun.insert(key, *event);
            return before.iter().map(|entry| self.line(session, first, entry, None)).collect();
        }
        match self.begun.remove(&key) {
            Some(entry) if entry.stamp == event.values[1] => {
                vec![self.line(session, first, &entry, Some(event))]
            }
            other => {
                let before = other.iter().map(|entry| self.line(session, first, entry, None));
                before.chain([self.line(session, first, event, Some(event))]).collect()
            }
        }
    }

    /// The lines of what was taken and not given yet, and of calls that have not ended: nothing more will come.
    pub fn rest(&mut self, session: &Session) -> Vec<String> {
        let ready = std::mem::take(&mut self.waiting);
        let mut lines: Vec<String> = ready.iter().flat_map(|e| self.end(session, e)).collect();
        let mut open: Vec<Event> = std::mem::take(&mut self.begun).into_values().collect();
        open.sort_by_key(|e| e.stamp);
        let first = self.first.unwrap_or(0);
        lines.extend(open.iter().map(|entry| self.line(session, first, entry, None)));
        lines
    }

    /// `entry` is the exit itself if the entry was not seen; without an exit the call has not returned.
    fn line(&self, session: &Session, first: u64, entry: &Event, exit: Option<&Event>) -> String {
        let name = self.names.get(&entry.function).map_or("?", String::as_str);
        let ns = |from: u64, to: u64| session.nanoseconds(to.saturating_sub(from));
        let is_seen = !entry.is_exit;
        let arguments = if is_seen { &entry.values[..self.arguments] } else { &[] };
        let took = exit.filter(|_| is_seen).map(|x| ns(entry.stamp, x.stamp));
        if self.format == Format::Json {
            let data = json!({
                "name": name, "tid": (entry.tid != 0).then_some(entry.tid), "at_ns": ns(first, entry.stamp),
                "args": arguments, "ret": exit.map(|x| x.values[0]), "ns": took, "entry_seen": is_seen,
            });
            return json!({"type": "call", "data": data}).to_string();
        }
        let at = ns(first, entry.stamp) as f64 / 1e9;
        let tid = if entry.tid == 0 { "-".into() } else { entry.tid.to_string() };
        let shown: Vec<String> = arguments.iter().map(|v| value(*v)).collect();
        let shown = if is_seen { shown.join(", ") } else { "...".into() };
        let end = match (exit, took) {
            (Some(exit), Some(took)) => format!(" = {} <{}>", value(exit.values[0]), nanoseconds(took)),
            (Some(exit), None) => format!(" = {} <entry not seen>", value(exit.values[0])),
            (None, _) => " <no return seen>".into(),
        };
        format!("{at:>12.6} {tid:>7} {name}({shown}){end}")
    }
}

/// Small numbers as such, others as addresses are written.
fn value(v: u64) -> String {
    match v.cast_signed() {
        small @ -4096..=0xffff => small.to_string(),
        _ => format!("{v:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_or_addresses_and_times_have_units() {
        assert_eq!([0, 65535, u64::MAX, 65536].map(value), ["0", "65535", "-1", "0x10000"]);
        assert_eq!([7, 12_345, 25_000_000].map(nanoseconds), ["7 ns", "12 us", "25 ms"]);
    }
}
