//! Calls as they happen: entries and exits brought together.
//!
//! For:     the engine, with `trace`.
//! State:   calls that have begun; events that may still have an older neighbour on its way.
//! Context: control.
//! Keeps:   T1 each event is shown once: a call when it ends, or at the end of the run if it has not.
//!          T2 what the target writes takes a bounded time and memory: a look's events, `BEGUN_MAX` calls.
//! Checked: tests below; testkit `tracing`.

use crate::args::{Format, Shape, Shown};
use crate::names::{Files, Frame, Names};
use crate::render::nanoseconds;
use image::{Addr, ImageAddr, Kind, Process, Signature};
use serde_json::{Value, json};
use session::{Event, Session};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, SystemTime};

/// A thread writes its event this soon after it took the stamp, or is a little out of order.
const SETTLED: Duration = Duration::from_millis(2);
/// How often the rings are looked at. A ring of 16,384 events is then full at 8 million a second on one CPU.
pub const LOOK: Duration = Duration::from_millis(2);

/// So many calls are kept open: as many as the target's own table has places for.
const BEGUN_MAX: usize = 1 << 18;

mod known;
mod nest;

use nest::{Nest, Step, What};

/// So many events are shown at once: who keeps a budget looks at it in between.
const AT_ONCE: usize = 256;

/// A tree's lines are not moved to the right any further.
const DEPTH_MAX: usize = 40;

/// The calls of one session.
pub struct Calls {
    names: HashMap<u32, String>,
    /// Of functions of which it is known what they return and take.
    signatures: HashMap<u32, Signature>,
    /// Functions of which the kernel tells the ends, and not which one was a jump to another function.
    unsure: BTreeSet<u32>,
    begun: HashMap<(u64, u32), Event>,
    waiting: Vec<Event>,
    /// Those before which none can come any more, in their order.
    ready: VecDeque<Event>,
    first: Option<u64>,
    /// When that was, since 1970.
    first_time: Duration,
    shown: Shown,
    /// Shorter calls are not shown.
    over: u64,
    nest: Nest,
    /// For stacks, if they are wanted.
    callers: Option<Names>,
    format: Format,
    /// Calls whose beginning was not kept.
    not_kept: u64,
    shorter: u64,
}

impl Calls {
    pub fn of(session: &Session, shown: Shown, format: Format) -> Calls {
        let named = session.sites().filter_map(|s| Some((s.plan.traces()?, s.plan.name.clone())));
        let over = shown.over.map_or(0, |over| u64::try_from(over.as_nanos()).unwrap_or(u64::MAX));
        Calls {
            names: named.collect(),
            signatures: signatures(session),
            unsure: session.sites().filter_map(|s| s.plan.unsure_return()).collect(),
            begun: HashMap::new(),
            waiting: Vec::new(),
            ready: VecDeque::new(),
            first: None,
            first_time: Duration::ZERO,
            shown,
            over,
            nest: Nest::new(session.ticks(over), shown.depth.unwrap_or(usize::MAX)),
            callers: shown.has_stacks.then(|| Names::hold(session.pid(), &Files::default())),
            format,
            not_kept: 0,
            shorter: 0,
        }
    }

    /// A walk has met something new: files are opened while they are there.
    pub fn look_for_names(&mut self) {
        self.callers.iter_mut().for_each(Names::look);
    }

    /// Calls that `--over` left out: those that took less, and those of which no end was seen.
    pub fn shorter(&self) -> u64 {
        self.shorter.saturating_add(self.nest.shorter)
    }

    /// Calls that `--depth` left out of the tree.
    pub fn deeper(&self) -> u64 {
        if self.shown.shape == Shape::Tree { self.nest.deeper } else { 0 }
    }

    /// Calls whose beginning was not kept: too many were open at once, more than a program's stacks have room for.
    pub fn not_kept(&self) -> u64 {
        self.not_kept.saturating_add(self.nest.not_kept)
    }

    /// Calls that are missing in the graph: it has too many ways.
    pub fn no_way(&self) -> u64 {
        if self.shown.shape == Shape::Graph { self.nest.no_way } else { 0 }
    }

    /// Takes what was written, a bounded number. False if there may be more to take.
    pub fn take(&mut self, session: &Session) -> bool {
        let is_all = session.take_events(|event| self.waiting.push(event));
        self.waiting.sort_by_key(|e| e.stamp);
        let now = session.now();
        let is_settled =
            |e: &Event| Duration::from_nanos(session.nanoseconds(now.saturating_sub(e.stamp))) >= SETTLED;
        let ready = self.waiting.partition_point(is_settled);
        self.ready.extend(self.waiting.drain(..ready));
        is_all
    }

    /// The lines of some of what was taken and has ended by now; nothing if there is no more.
    pub fn lines(&mut self, session: &Session) -> Option<Vec<String>> {
        let some: Vec<Event> = self.ready.drain(..self.ready.len().min(AT_ONCE)).collect();
        (!some.is_empty()).then(|| self.lines_of(session, &some))
    }

    fn lines_of(&mut self, session: &Session, events: &[Event]) -> Vec<String> {
        if self.shown.shape == Shape::Flat {
            return events.iter().flat_map(|e| self.end(session, e)).collect();
        }
        let mut steps = Vec::new();
        for event in events {
            self.begin(session, event);
            self.nest.take(event, |step| steps.push(step));
        }
        steps.iter().filter_map(|step| self.step(session, step)).collect()
    }

    /// The line of a step of the tree, if it has one.
    fn step(&self, session: &Session, step: &Step) -> Option<String> {
        if self.shown.shape == Shape::Graph {
            return None;
        }
        let (entry, depth) = (&step.entry, step.depth);
        match (self.format, step.what) {
            (Format::Json, What::Opens) => None,
            (Format::Json, What::Closes(exit) | What::Leaf(exit)) => {
                Some(self.json(session, entry, exit.as_ref(), Some(depth)).to_string())
            }
            (Format::Text, What::Opens) => {
                let call = self.call(entry);
                Some(self.text(session, entry, depth, &format!("{call} {{")))
            }
            (Format::Text, What::Closes(exit)) => {
                let end = self.ending(session, entry, exit.as_ref());
                let name = self.name(entry);
                Some(self.text(session, exit.as_ref().unwrap_or(entry), depth, &format!("}} {name}{end}")))
            }
            (Format::Text, What::Leaf(exit)) => {
                let (call, end) = (self.call(entry), self.ending(session, entry, exit.as_ref()));
                Some(self.text(session, entry, depth, &format!("{call}{end}")))
            }
        }
    }

    /// Of the first event, notes when it was.
    fn begin(&mut self, session: &Session, event: &Event) {
        if self.first.is_none() {
            let ago = Duration::from_nanos(session.nanoseconds(session.now().saturating_sub(event.stamp)));
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            (self.first, self.first_time) = (Some(event.stamp), now.saturating_sub(ago));
        }
    }

    /// The time of day of an event.
    fn time(&self, session: &Session, event: &Event, digits: usize) -> String {
        report::moment(self.first_time + Duration::from_nanos(self.at(session, event)), digits)
    }

    /// Notes an entry; gives the line of a call that ends, and of one of which that is now known that its end was
    /// not seen.
    fn end(&mut self, session: &Session, event: &Event) -> Vec<String> {
        self.begin(session, event);
        let key = (event.place, event.function);
        if !event.is_exit && self.begun.len() >= BEGUN_MAX && !self.begun.contains_key(&key) {
            self.not_kept += 1;
            return Vec::new();
        }
        if !event.is_exit {
            let before = self.begun.insert(key, *event);
            return before.map_or_else(Vec::new, |entry| self.line(session, &entry, None));
        }
        match self.begun.remove(&key) {
            Some(entry) if entry.stamp == event.values[1] => self.line(session, &entry, Some(event)),
            other => {
                let mut lines = other.map_or_else(Vec::new, |entry| self.line(session, &entry, None));
                lines.extend(self.line(session, event, Some(event)));
                lines
            }
        }
    }

    /// The lines of what was taken and not given yet, and of calls that have not ended: nothing more will come.
    pub fn rest(&mut self, session: &Session) -> Vec<String> {
        let ready = std::mem::take(&mut self.waiting);
        let mut lines = self.lines_of(session, &ready);
        let mut open: Vec<Event> = std::mem::take(&mut self.begun).into_values().collect();
        open.sort_by_key(|e| e.stamp);
        lines.extend(open.iter().flat_map(|entry| self.line(session, entry, None)));
        let mut steps = Vec::new();
        self.nest.rest(|step| steps.push(step));
        lines.extend(steps.iter().filter_map(|step| self.step(session, step)));
        if self.shown.shape == Shape::Graph {
            lines.extend(self.graph(session));
        }
        lines
    }

    /// The line of a call, and those of its stack; `entry` is the exit itself if the entry was not seen; without an exit the call has
    /// not returned. None for one that is too short to be shown.
    fn line(&mut self, session: &Session, entry: &Event, exit: Option<&Event>) -> Vec<String> {
        if self.over > 0 && self.took(session, entry, exit).is_none_or(|took| took < self.over) {
            self.shorter += 1;
            return Vec::new();
        }
        if self.format == Format::Json {
            let mut line = self.json(session, entry, exit, None);
            if let Some((frames, lacks)) = self.stack(session, entry) {
                line["data"]["stack"] = json!({"frames": frames, "lacks": lacks});
            }
            return vec![line.to_string()];
        }
        let (call, end) = (self.call(entry), self.ending(session, entry, exit));
        let mut lines = vec![self.text(session, entry, 0, &format!("{call}{end}"))];
        if let Some((frames, lacks)) = self.stack(session, entry) {
            lines.extend(frames.iter().map(|frame| format!("    {frame}")));
            lines.extend(lacks.map(|why| format!("    [no more is known: {why}]")));
        }
        lines
    }

    /// What led to a call, from its caller on; and why no more is known.
    fn stack(&mut self, session: &Session, entry: &Event) -> Option<(Vec<String>, Option<&'static str>)> {
        let names = self.callers.as_mut().filter(|_| !entry.is_exit)?;
        let stack = session.call_stack(entry)?;
        names.learn(std::iter::once(&stack.frames), self.shown.has_lines);
        // The first is the function itself.
        let frames = names.stack(&stack.frames);
        Some((frames.iter().skip(1).map(Frame::to_string).collect(), stack.lacks))
    }

    /// Nanoseconds; `None` if not both ends were seen.
    fn took(&self, session: &Session, entry: &Event, exit: Option<&Event>) -> Option<u64> {
        let exit = exit.filter(|_| !entry.is_exit)?;
        Some(session.nanoseconds(exit.stamp.saturating_sub(entry.stamp)))
    }

    fn name(&self, event: &Event) -> &str {
        self.names.get(&event.function).map_or("?", String::as_str)
    }

    /// Nanoseconds since the first event.
    fn at(&self, session: &Session, event: &Event) -> u64 {
        session.nanoseconds(event.stamp.saturating_sub(self.first.unwrap_or(0)))
    }

    fn json(&self, session: &Session, entry: &Event, exit: Option<&Event>, depth: Option<usize>) -> Value {
        let arguments = self.arguments_of(entry);
        let returns = self.signatures.get(&entry.function).map(|s| s.returns);
        let mut data = json!({
            "name": self.name(entry), "tid": (entry.tid != 0).then_some(entry.tid), "at_ns": self.at(session, entry),
            "args": arguments.iter().map(|(v, kind)| number(*v, *kind)).collect::<Vec<_>>(),
            "ret": exit.filter(|x| !self.is_unknown(x)).map(|x| number(x.values[0], returns)), "ns": self.took(session, entry, exit),
            "entry_seen": !entry.is_exit,
        });
        if self.shown.has_times {
            data["time"] = json!(self.time(session, entry, 9));
        }
        if let Some(depth) = depth {
            data["depth"] = json!(depth);
        }
        json!({"type": "call", "data": data})
    }

    /// A line of text: when, in which thread, so far inside.
    fn text(&self, session: &Session, event: &Event, depth: usize, text: &str) -> String {
        let at = self.at(session, event) as f64 / 1e9;
        let tid = if event.tid == 0 { "-".into() } else { event.tid.to_string() };
        let indent = "  ".repeat(depth.min(DEPTH_MAX));
        if self.shown.has_times {
            let time = self.time(session, event, 6);
            return format!("{time} {tid:>7} {indent}{text}");
        }
        format!("{at:>12.6} {tid:>7} {indent}{text}")
    }

    /// Name and arguments.
    fn call(&self, entry: &Event) -> String {
        let arguments = self.arguments_of(entry);
        let shown: Vec<String> = arguments.iter().map(|(v, kind)| typed(*v, *kind)).collect();
        let shown = if entry.is_exit { "...".into() } else { shown.join(", ") };
        format!("{}({shown})", self.name(entry))
    }

    /// What is returned is not known at this exit: a jump to another function, or in the kernel's hands perhaps one.
    fn is_unknown(&self, exit: &Event) -> bool {
        exit.is_jump || self.unsure.contains(&exit.function)
    }

    /// What it returned, and how long it took.
    fn ending(&self, session: &Session, entry: &Event, exit: Option<&Event>) -> String {
        let returns = self.signatures.get(&entry.function).map(|s| s.returns);
        let value = |exit: &Event| match self.is_unknown(exit) {
            true => "?".to_owned(),
            false => typed(exit.values[0], returns),
        };
        match (exit, self.took(session, entry, exit)) {
            (Some(exit), Some(took)) => format!(" = {} <{}>", value(exit), nanoseconds(took)),
            (Some(exit), None) => format!(" = {} <entry not seen>", value(exit)),
            (None, _) => " <no return seen>".into(),
        }
    }

    /// The ways by which calls were made, each with its time and the part of it that was its own.
    fn graph(&self, session: &Session) -> Vec<String> {
        let head = format!("{:>10} {:>10} {:>10}  function", "total", "self", "calls");
        let mut lines = if self.format == Format::Text { vec![head] } else { Vec::new() };
        for (depth, node) in self.nest.graph() {
            if depth >= self.shown.depth.unwrap_or(usize::MAX) {
                continue;
            }
            let name = self.names.get(&node.function).map_or("?", String::as_str);
            let total = session.nanoseconds(node.ticks);
            let own = session.nanoseconds(node.ticks.saturating_sub(node.inside));
            let (calls, returned) = (node.calls, node.returned);
            lines.push(match self.format {
                Format::Json => {
                    let data = json!({
                        "name": name, "depth": depth, "calls": calls, "returned": returned, "total_ns": total,
                        "self_ns": own,
                    });
                    json!({"type": "graph", "data": data}).to_string()
                }
                Format::Text => {
                    let (total, own) = (nanoseconds(total), nanoseconds(own));
                    let indent = "  ".repeat(depth.min(DEPTH_MAX));
                    format!("{total:>10} {own:>10} {calls:>10}  {indent}{name}")
                }
            });
        }
        lines
    }

    /// The first arguments, each with its kind if that is known. Those that are not in general registers take none.
    fn arguments_of(&self, entry: &Event) -> Vec<(u64, Option<Kind>)> {
        if entry.is_exit {
            return Vec::new();
        }
        let wanted = &entry.values[..self.shown.arguments];
        let Some(signature) = self.signatures.get(&entry.function) else {
            return wanted.iter().map(|v| (*v, None)).collect();
        };
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
