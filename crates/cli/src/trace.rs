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
use image::{Addr, ImageAddr, Kind, Process, Signature};
use serde_json::{Value, json};
use session::{Event, Session};
use std::collections::HashMap;
use std::time::Duration;

/// A thread writes its event this soon after it took the stamp, or is a little out of order.
const SETTLED: Duration = Duration::from_millis(2);
/// How often the rings are looked at. A ring of 16,384 events is then full at 8 million a second on one CPU.
pub const LOOK: Duration = Duration::from_millis(2);

/// So many calls are kept open: as many as the target's own table has places for.
const BEGUN_MAX: usize = 1 << 18;

mod known;

/// The calls of one session.
pub struct Calls {
    names: HashMap<u32, String>,
    /// Of functions of which it is known what they return and take.
    signatures: HashMap<u32, Signature>,
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
            signatures: signatures(session),
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
        let signature = self.signatures.get(&entry.function);
        let arguments = if is_seen { self.arguments_of(signature, entry) } else { Vec::new() };
        let returns = signature.map(|s| s.returns);
        let took = exit.filter(|_| is_seen).map(|x| ns(entry.stamp, x.stamp));
        if self.format == Format::Json {
            let data = json!({
                "name": name, "tid": (entry.tid != 0).then_some(entry.tid), "at_ns": ns(first, entry.stamp),
                "args": arguments.iter().map(|(v, kind)| number(*v, *kind)).collect::<Vec<_>>(),
                "ret": exit.map(|x| number(x.values[0], returns)), "ns": took, "entry_seen": is_seen,
            });
            return json!({"type": "call", "data": data}).to_string();
        }
        let at = ns(first, entry.stamp) as f64 / 1e9;
        let tid = if entry.tid == 0 { "-".into() } else { entry.tid.to_string() };
        let shown: Vec<String> = arguments.iter().map(|(v, kind)| typed(*v, *kind)).collect();
        let shown = if is_seen { shown.join(", ") } else { "...".into() };
        let end = match (exit, took) {
            (Some(exit), Some(took)) => {
                format!(" = {} <{}>", typed(exit.values[0], returns), nanoseconds(took))
            }
            (Some(exit), None) => format!(" = {} <entry not seen>", typed(exit.values[0], returns)),
            (None, _) => " <no return seen>".into(),
        };
        format!("{at:>12.6} {tid:>7} {name}({shown}){end}")
    }

    /// The first arguments, each with its kind if that is known. Those that are not in general registers take none.
    fn arguments_of(&self, signature: Option<&Signature>, entry: &Event) -> Vec<(u64, Option<Kind>)> {
        let wanted = &entry.values[..self.arguments];
        let Some(signature) = signature else { return wanted.iter().map(|v| (*v, None)).collect() };
        let in_registers = signature.arguments.iter().filter(|kind| **kind != Kind::Other);
        wanted.iter().zip(in_registers).map(|(v, kind)| (*v, Some(*kind))).collect()
    }
}

/// What is known of the traced functions: from debug information, else of the C library's well-known ones.
fn signatures(session: &Session) -> HashMap<u32, Signature> {
    let process = Process::read(session.pid().cast_unsigned()).ok();
    let mut images = HashMap::new();
    let mut found = HashMap::new();
    let traced: Vec<_> = session.sites().filter_map(|s| Some((s.plan.traces()?, s.plan))).collect();
    for (_, plan) in &traced {
        let Some(module) = process.as_ref().and_then(|p| p.module_at(Addr(plan.addr()))) else { continue };
        images.entry(module.bias.0).or_insert_with(|| {
            let here = traced.iter().filter(|(_, plan)| module.contains(Addr(plan.addr())));
            let starts: Vec<ImageAddr> = here.map(|(_, plan)| module.image_addr(Addr(plan.addr()))).collect();
            module.open(session.pid().cast_unsigned()).map(|i| i.signatures(&starts)).unwrap_or_default()
        });
    }
    for (function, plan) in traced {
        let module = process.as_ref().and_then(|p| p.module_at(Addr(plan.addr())));
        let told = module.and_then(|m| images.get(&m.bias.0)?.get(&m.image_addr(Addr(plan.addr()))).cloned());
        if let Some(signature) = told.or_else(|| known::signature(&plan.module, &plan.name)) {
            found.insert(function, signature);
        }
    }
    found
}

/// A register's part that is the value, with its sign.
fn number(v: u64, kind: Option<Kind>) -> Value {
    match kind {
        Some(Kind::Signed(bytes)) => json!(signed(v, bytes)),
        Some(Kind::Unsigned(bytes)) => json!(unsigned(v, bytes)),
        Some(Kind::Void | Kind::Other) => Value::Null,
        _ => json!(v),
    }
}

fn typed(v: u64, kind: Option<Kind>) -> String {
    match kind {
        Some(Kind::Signed(bytes)) => signed(v, bytes).to_string(),
        Some(Kind::Unsigned(bytes)) => match unsigned(v, bytes) {
            small @ 0..=0xffff => small.to_string(),
            large => format!("{large:#x}"),
        },
        Some(Kind::Pointer) => format!("{v:#x}"),
        Some(Kind::Void) => "void".into(),
        Some(Kind::Other) => "?".into(),
        _ => value(v),
    }
}

fn signed(v: u64, bytes: u8) -> i64 {
    let above = 64 - u32::from(bytes.clamp(1, 8)) * 8;
    (v << above).cast_signed() >> above
}

fn unsigned(v: u64, bytes: u8) -> u64 {
    let above = 64 - u32::from(bytes.clamp(1, 8)) * 8;
    v << above >> above
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
    fn a_value_has_the_width_and_the_sign_of_its_type() {
        let minus_one = 0xffff_ffff;
        assert_eq!(typed(minus_one, Some(Kind::Signed(4))), "-1");
        assert_eq!(typed(0xdead_beef_0000_0005, Some(Kind::Signed(4))), "5", "the upper half is nobody's");
        assert_eq!(typed(0xff, Some(Kind::Signed(1))), "-1");
        assert_eq!(typed(u64::MAX, Some(Kind::Signed(8))), "-1");
        assert_eq!(typed(minus_one, Some(Kind::Unsigned(4))), "0xffffffff");
        assert_eq!(typed(0xdead_beef_0000_0005, Some(Kind::Unsigned(2))), "5");
        assert_eq!(typed(0, Some(Kind::Pointer)), "0x0");
        assert_eq!(typed(7, Some(Kind::Void)), "void");
        assert_eq!(typed(minus_one, None), "0xffffffff", "not known, not guessed");
        assert_eq!(number(minus_one, Some(Kind::Signed(4))), -1);
        let read = known::signature("/lib/x86_64-linux-gnu/libc.so.6", "read").unwrap();
        assert_eq!((read.returns, read.arguments.len()), (Kind::Signed(8), 3));
        assert_eq!(known::signature("/usr/lib/libmine.so", "read"), None);
    }

    #[test]
    fn values_are_numbers_or_addresses_and_times_have_units() {
        assert_eq!([0, 65535, u64::MAX, 65536].map(value), ["0", "65535", "-1", "0x10000"]);
        assert_eq!([7, 12_345, 25_000_000].map(nanoseconds), ["7 ns", "12 us", "25 ms"]);
    }
}
