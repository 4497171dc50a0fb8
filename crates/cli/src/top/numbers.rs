//! What the probed functions have done: read at each look, compared with a second ago.
//!
//! For:     the live view and the plain print.
//! State:   where each function's cells are; their counts of the last second; what they were when they were zeroed.
//! Context: control, while hits write; the target is only read.
//! Keeps:   N1 a look reads two cells a function at most, and buckets only of those that are shown or sorted by: `DETAILS_MAX` at most.
//!          N2 zeroing changes nothing in the target: the closing report has all.
//! Checked: tests below; testkit `view`.

use crate::args::Format;
use crate::probes::Probes;
use crate::render::{Key, Timed, key, names, rows_of};
use crate::shown::shown;
use session::{Calls, Rung, Session, Tally};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};
use wire::latency::BUCKETS_LEN;

/// Rates are of this time.
const WINDOW: Duration = Duration::from_secs(1);
/// Buckets of so many functions are read at a look, beside those that are shown.
const DETAILS_MAX: usize = 256;

/// A function that was not called for so many looks is idle; an idle one is read at one look of so many.
const IDLE: u32 = 4;
const IN_TURN: usize = 4;

/// All functions.
#[derive(Default)]
pub struct Functions {
    functions: Vec<Function>,
    /// Process and sites of each session that they were found in.
    found_in: Vec<(i32, usize)>,
    samples: VecDeque<Sample>,
    /// Whose buckets were read last.
    turn: usize,
    looks: usize,
}

struct Function {
    key: Key,
    name: Rc<str>,
    /// Session and site, and where its calls are counted: a look at the site itself is one at cold memory.
    sites: Vec<(usize, usize, Option<Tally>)>,
    is_timed: bool,
    /// Some of its hits trap: they cost a hundred times as much.
    is_by_kernel: bool,
    zero: Calls,
    /// With how many calls it was read.
    detail: Option<(u64, Detail)>,
    /// Its probes call nobody.
    is_off: bool,
    /// Its place among all names.
    rank: u32,
    /// For so many looks it was not called.
    idle: u32,
}

struct Sample {
    at: Instant,
    counts: Vec<Counts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    calls: u64,
    total_ns: u64,
}

/// One function, as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub name: Rc<str>,
    pub calls: u64,
    pub per_second: f64,
    /// `None` where calls are not timed.
    pub total_ns: Option<u64>,
    /// Of the time of all, or of the calls of all where they are not timed; 0 to 1.
    pub share: f64,
    pub detail: Option<Detail>,
    /// Its probes are switched off.
    pub is_off: bool,
    /// The kernel's probes are in it.
    pub is_by_kernel: bool,
    /// Its place among all names: who is called equally often is sorted by it, which is most of them.
    pub rank: u32,
}

/// What the buckets say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    pub average_ns: u64,
    /// Below this.
    pub p50_ns: u64,
    pub p99_ns: u64,
}

impl Functions {
    /// Looks once. Functions of sessions that came are found; those of sessions that went are forgotten.
    pub fn look(&mut self, sessions: &[Session], now: Instant) {
        let here: Vec<(i32, usize)> = sessions.iter().map(|s| (s.pid(), s.sites().count())).collect();
        if here != self.found_in {
            self.find(sessions);
            self.found_in = here;
        }
        let counts = self.counts(sessions);
        self.samples.push_back(Sample { at: now, counts });
        let is_old = |s: &Sample| now.saturating_duration_since(s.at) >= WINDOW;
        // One that is old enough is kept, to compare with.
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
    }

    /// Of all functions. Each one's cells are lines of memory of their own: of those that nobody has called for a while some are
    /// read at each look, in turn.
    fn counts(&mut self, sessions: &[Session]) -> Vec<Counts> {
        self.looks += 1;
        let before = self.samples.back().map(|sample| sample.counts.as_slice()).unwrap_or_default();
        let count = |(i, function): (usize, &mut Function)| {
            let known =
                before.get(i).filter(|_| function.idle >= IDLE && !(i + self.looks).is_multiple_of(IN_TURN));
            if let Some(known) = known {
                return *known;
            }
            let now = function.counts(sessions);
            function.idle = if before.get(i) == Some(&now) { function.idle.saturating_add(1) } else { 0 };
            now
        };
        self.functions.iter_mut().enumerate().map(count).collect()
    }

    fn find(&mut self, sessions: &[Session]) {
        let mut before: HashMap<Key, Function> =
            std::mem::take(&mut self.functions).into_iter().map(|f| (f.key.clone(), f)).collect();
        let mut known: HashMap<Key, usize> = HashMap::new();
        let places = sessions.iter().enumerate().flat_map(|(s, session)| {
            let rows = session.sites().enumerate().filter(|(_, site)| !site.plan.is_exit());
            rows.map(move |(i, site)| (s, i, site.tally()))
        });
        for ((site, name), place) in
            rows_of(sessions).zip(names(&sessions.iter().collect::<Vec<_>>())).zip(places)
        {
            let key = key(&site);
            let at = *known.entry(key.clone()).or_insert(self.functions.len());
            if at == self.functions.len() {
                let name = Rc::from(shown(&name, Format::Text));
                let (zero, detail, is_off) =
                    before.remove(&key).map_or_else(Default::default, |f| (f.zero, f.detail, f.is_off));
                let (sites, is_timed, is_by_kernel, rank, idle) = (Vec::new(), false, false, 0, 0);
                let function =
                    Function { key, name, sites, is_timed, is_by_kernel, zero, detail, is_off, rank, idle };
                self.functions.push(function);
            }
            let function = &mut self.functions[at];
            if let Some(site) = sessions.get(place.0).and_then(|session| session.site(place.1)) {
                function.is_timed |= function.sites.is_empty() && site.plan.opens().is_some();
                function.is_by_kernel |= site.plan.placement.rung == Rung::Kernel;
            }
            function.sites.push(place);
        }
        let mut by_name: Vec<usize> = (0..self.functions.len()).collect();
        by_name.sort_by(|a, b| self.functions[*a].name.cmp(&self.functions[*b].name));
        for (rank, function) in (0..).zip(by_name) {
            self.functions[function].rank = rank;
        }
        self.samples.clear();
    }

    /// From now on counts begin at 0.
    pub fn zero(&mut self, sessions: &[Session]) {
        for function in &mut self.functions {
            let counts = function.counts(sessions);
            function.zero = match counts.calls {
                0 => Calls::default(),
                _ => function.calls(sessions),
            };
            function.detail = None;
        }
    }

    /// What there is to show, in the order of [`look`](Self::look). `first`: whose buckets are wanted in any case; with
    /// `is_sorted_by_detail` all are, as far as they can be read.
    pub fn lines(&mut self, sessions: &[Session], first: &[usize], is_sorted_by_detail: bool) -> Vec<Line> {
        self.read_details(sessions, first, is_sorted_by_detail);
        let Some((old, new)) = self.samples.front().zip(self.samples.back()) else { return Vec::new() };
        let seconds = new.at.saturating_duration_since(old.at).as_secs_f64();
        let mut lines = Vec::with_capacity(self.functions.len());
        for ((function, then), now) in self.functions.iter().zip(&old.counts).zip(&new.counts) {
            let more = now.calls.saturating_sub(then.calls);
            let calls = now.calls.saturating_sub(function.zero.entries);
            lines.push(Line {
                name: function.name.clone(),
                calls,
                per_second: if seconds > 0.0 { more as f64 / seconds } else { 0.0 },
                total_ns: function.is_timed.then(|| now.total_ns.saturating_sub(function.zero.total_ns)),
                share: 0.0,
                detail: function.detail.filter(|_| calls > 0).map(|(_, detail)| detail),
                is_off: function.is_off,
                is_by_kernel: function.is_by_kernel,
                rank: function.rank,
            });
        }
        let weight = |line: &Line| line.total_ns.unwrap_or(line.calls) as f64;
        let all: f64 = lines.iter().map(weight).sum();
        lines.iter_mut().for_each(|line| line.share = if all > 0.0 { weight(line) / all } else { 0.0 });
        lines
    }

    fn read_details(&mut self, sessions: &[Session], first: &[usize], is_sorted_by_detail: bool) {
        let Some(new) = self.samples.back() else { return };
        let read = |function: &mut Function, calls: u64| {
            let is_new = function.detail.is_none_or(|(at, _)| at != calls);
            let is_due = is_new && calls > function.zero.entries && function.is_timed;
            if is_due {
                let since = less(&function.calls(sessions), &function.zero);
                function.detail = Detail::of(since).map(|detail| (calls, detail));
            }
            is_due
        };
        for i in first {
            if let (Some(function), Some(counts)) = (self.functions.get_mut(*i), new.counts.get(*i)) {
                read(function, counts.calls);
            }
        }
        let mut left = if is_sorted_by_detail { DETAILS_MAX } else { 0 };
        for _ in 0..self.functions.len() {
            if left == 0 {
                break;
            }
            self.turn = (self.turn + 1) % self.functions.len();
            left -= usize::from(read(&mut self.functions[self.turn], new.counts[self.turn].calls));
        }
    }

    /// All calls of a function so far, with their buckets, whatever was zeroed; `None` if they are not timed.
    pub fn calls(&self, function: usize, sessions: &[Session]) -> Option<Calls> {
        let function = self.functions.get(function)?;
        function.is_timed.then(|| function.calls(sessions))
    }

    /// Where a function is; the first place, where it is in several.
    pub fn place(&self, function: usize, sessions: &[Session]) -> Option<Place> {
        let (session, site, _) = *self.functions.get(function)?.sites.first()?;
        let session = sessions.get(session)?;
        let plan = session.site(site)?.plan.clone();
        Some(Place { pid: session.pid(), name: plan.name, module: plan.module })
    }

    /// Switches a function's probes off, or on again; whether they are on now, or why that cannot be.
    pub fn switch(&mut self, function: usize, probes: &mut Probes) -> Result<bool, String> {
        let function = self.functions.get_mut(function).ok_or("it is gone")?;
        let is_on = function.is_off;
        for (session, site, _) in &function.sites {
            let addr = probes.sessions().get(*session).and_then(|s| Some(s.site(*site)?.plan.addr()));
            probes.switch(*session, addr.ok_or("it is gone")?, is_on)?;
        }
        function.is_off = !is_on;
        Ok(is_on)
    }

    /// How many are switched off.
    pub fn off(&self) -> usize {
        self.functions.iter().filter(|function| function.is_off).count()
    }

    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether calls have a duration.
    pub fn is_timed(&self) -> bool {
        self.functions.iter().any(|function| function.is_timed)
    }

    /// Counts are those since the attach again.
    pub fn forget_zero(&mut self) {
        for function in &mut self.functions {
            function.idle = 0;
            function.zero = Calls::default();
            function.detail = None;
        }
    }
}

/// A function of a process.
pub struct Place {
    pub pid: i32,
    pub name: String,
    pub module: String,
}

impl Function {
    fn counts(&self, sessions: &[Session]) -> Counts {
        let mut sum = Counts::default();
        for (session, site, tally) in &self.sites {
            let Some(session) = sessions.get(*session) else { continue };
            let counted = match tally {
                Some(tally) => Some(session.tallied(*tally)),
                None => session.site(*site).map(|site| site.timed().unwrap_or_else(|| (site.hits(), 0))),
            };
            let Some((calls, total)) = counted else { continue };
            sum.calls = sum.calls.saturating_add(calls);
            sum.total_ns = sum.total_ns.saturating_add(total);
        }
        sum
    }

    fn calls(&self, sessions: &[Session]) -> Calls {
        let mut sum = Calls { buckets: vec![0; BUCKETS_LEN as usize], ..Calls::default() };
        for (session, site, _) in &self.sites {
            let Some(site) = sessions.get(*session).and_then(|s| s.site(*site)) else { continue };
            let one = site.calls().unwrap_or_else(|| Calls { entries: site.hits(), ..Calls::default() });
            sum.entries = sum.entries.saturating_add(one.entries);
            sum.total_ns = sum.total_ns.saturating_add(one.total_ns);
            sum.buckets.iter_mut().zip(one.buckets).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        }
        sum
    }
}

/// What came since `before`.
fn less(now: &Calls, before: &Calls) -> Calls {
    let old = before.buckets.iter().copied().chain(std::iter::repeat(0));
    Calls {
        entries: now.entries.saturating_sub(before.entries),
        total_ns: now.total_ns.saturating_sub(before.total_ns),
        unmatched: now.unmatched.saturating_sub(before.unmatched),
        buckets: now.buckets.iter().zip(old).map(|(now, old)| now.saturating_sub(old)).collect(),
    }
}

impl Detail {
    /// `None` if none has returned.
    fn of(calls: Calls) -> Option<Detail> {
        let average_ns = calls.total_ns.checked_div(calls.returns())?;
        let timed = Timed::of(calls);
        Some(Detail { average_ns, p50_ns: timed.percentile(50), p99_ns: timed.percentile(99) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use map::Buckets;

    fn calls(durations: &[u64]) -> Calls {
        let mut calls = Calls { buckets: vec![0; BUCKETS_LEN as usize], ..Calls::default() };
        for ns in durations {
            calls.entries += 1;
            calls.total_ns += ns;
            calls.buckets[Buckets::DURATIONS.of(*ns) as usize] += 1;
        }
        calls
    }

    #[test]
    fn percentiles_are_the_ends_of_buckets_and_the_average_is_of_what_returned() {
        let mut some = calls(&[100, 101, 102, 5000]);
        some.entries += 3;
        assert_eq!(Detail::of(some), Some(Detail { average_ns: 1325, p50_ns: 112, p99_ns: 5120 }));
        assert_eq!(Detail::of(calls(&[])), None);
    }

    #[test]
    fn what_is_zeroed_is_taken_off_bucket_by_bucket() {
        let (before, now) = (calls(&[10, 1 << 20]), calls(&[10, 1 << 20, 100, 101]));
        let since = less(&now, &before);
        assert_eq!((since.entries, since.returns(), since.total_ns), (2, 2, 201));
        assert_eq!(Detail::of(since).unwrap().p99_ns, 112);
        assert_eq!(less(&now, &Calls::default()), now, "never zeroed");
    }
}
