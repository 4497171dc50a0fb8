//! Calls as they happen: entries and exits brought together.
//!
//! For:     the engine, with `trace`.
//! State:   calls that have begun; events that may still have an older neighbour on its way.
//! Context: control.
//! Keeps:   T1 each event is shown once: a call when it ends, or at the end of the run if it has not.
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

/// The calls of one session.
pub struct Calls {
    names: HashMap<u32, String>,
    begun: HashMap<(u64, u32), Event>,
    waiting: Vec<Event>,
    first: Option<u64>,
    arguments: usize,
    format: Format,
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
        }
    }

    /// The lines of what has ended by now; of everything, if nothing more will come.
    pub fn take(&mut self, session: &Session, is_last: bool) -> Vec<String> {
        session.take_events(|event| self.waiting.push(event));
        self.waiting.sort_by_key(|e| e.stamp);
        let Some(newest) = self.waiting.last().map(|e| e.stamp) else { return self.rest(session, is_last) };
        let is_settled =
            |e: &Event| Duration::from_nanos(session.nanoseconds(newest.saturating_sub(e.stamp))) >= SETTLED;
        let ready = match is_last {
            true => self.waiting.len(),
            false => self.waiting.partition_point(is_settled),
        };
        let ready: Vec<Event> = self.waiting.drain(..ready).collect();
        let mut lines: Vec<String> = ready.iter().flat_map(|e| self.end(session, e)).collect();
        lines.extend(self.rest(session, is_last));
        lines
    }

    /// Notes an entry; gives the line of a call that ends, and of one of which that is now known that its end was
    /// not seen.
    fn end(&mut self, session: &Session, event: &Event) -> Vec<String> {
        let first = *self.first.get_or_insert(event.stamp);
        let key = (event.place, event.function);
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

    /// Calls that have not ended, at the end.
    fn rest(&mut self, session: &Session, is_last: bool) -> Vec<String> {
        if !is_last {
            return Vec::new();
        }
        let mut open: Vec<Event> = std::mem::take(&mut self.begun).into_values().collect();
        open.sort_by_key(|e| e.stamp);
        let first = self.first.unwrap_or(0);
        open.iter().map(|entry| self.line(session, first, entry, None)).collect()
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
