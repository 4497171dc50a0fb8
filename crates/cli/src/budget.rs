//! `--budget`: what tracing costs a process is kept to a part of what it does by itself.
//!
//! For:     the engine; live, for scripts.
//! State:   what each function's hits have cost, how much processor time passed while it was in, what is left to spend.
//! Context: control, while hits write. A change is one stop of the process.
//! Keeps:   B1 cost = hits seen x price of a hit, measured here before the attach, + the time that threads stood still for changes.
//!             Whoever spends more than there is goes out, the dearest first, and comes back when there is something to spend.
//!          B2 what was not seen is not counted; what it may have been is said to be estimated.
//!          B3 what failed is said, and no figure is given for what is not known.
//! Checked: tests below; testkit `budget`.

use crate::engine::Job;
use crate::probes::Probes;
use crate::render::{Report, names};
use bench::Price;
use insn::Rung;
use serde_json::{Value, json};
use session::{Lowered, NotDone, Session, SiteView, Verb};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often it is looked, of few functions.
const LOOK: Duration = Duration::from_millis(5);
/// Of so many functions a look may be made more in that time; more are looked at less often.
const AT_A_LOOK: usize = 50;
/// So far the processor time that the kernel tells may be behind, of a thread that runs: its hits are seen before its time.
const BEHIND_NS: f64 = 10e6;
/// Of so much processor time it can be told how many processors the process has.
const TELLS_NS: f64 = 50e6;
/// The processor time of a moment.
const MOMENT_NS: f64 = 1e6;
/// A part of what is spent that stops may be.
const STOPS: f64 = 1.0 / 4.0;
/// Between a turn's beginning and the first look at it.
const FIRST_LOOK: Duration = Duration::from_micros(500);
/// What is saved before the dearest come back, at least: some looks' worth.
const SAVED_NS: f64 = 10e6;
/// A part of the budget that those who stay in may use; the others share the rest by turns.
const STAYS: f64 = 0.5;
/// So many frames a walk is taken to have, which most have not.
const FRAMES: f64 = 32.0;
/// After so many changes that failed there are no more.
const FAILURES: u32 = 5;

/// How long none is tried after one that failed.
const REST: Duration = Duration::from_millis(200);

/// What is kept to, and what came of it.
pub struct Budget {
    /// Part of what the process would use without us.
    share: f64,
    price: Prices,
    sites: BTreeMap<(usize, usize), Seen>,
    /// What is left, in nanoseconds; less than nothing if too much was spent.
    left: f64,
    /// Of the process since the attach, and at the last look.
    used: f64,
    before: Option<f64>,
    began: Instant,
    /// Processors that it can have at most.
    cpus: f64,
    /// Of hits, and of stops.
    spent: [f64; 2],
    stops: u32,
    /// How long the process stood still, and how much of that was paid before it was known what it would have used.
    stood: f64,
    presumed: f64,
    /// What a stop cost last, and how much is saved before the next turn.
    stop_ns: f64,
    wanted: f64,
    failures: u32,
    why: Option<String>,
    random: u64,
    due: Instant,
    /// After a change that did not do all of what it should there is none for a while.
    rests_until: Instant,
}

/// Who has sessions, whose functions can be taken out and put back.
pub trait Held {
    /// The sessions, always in the same order.
    fn sessions(&self) -> Vec<&Session>;
    /// Takes functions out, in one of them; how long a thread stood still, or why not.
    fn lift(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String>;
    /// Puts them back.
    fn lower(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String>;
}

impl Held for Probes {
    fn sessions(&self) -> Vec<&Session> {
        Probes::sessions(self).iter().collect()
    }

    fn lift(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String> {
        Probes::lift(self, session, addrs)
    }

    fn lower(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String> {
        Probes::lower(self, session, addrs)
    }
}

/// Nanoseconds of a hit: by a handler, of a count that is compiled into the jump, and of a run of each program of a script.
#[derive(Default)]
struct Prices {
    general: f64,
    compiled: f64,
    programs: Vec<f64>,
}

/// A site that has a row.
#[derive(Default)]
struct Seen {
    name: String,
    hits: u64,
    /// What they have cost.
    cost: f64,
    /// Cost of hits, and processor time of the process, since it came in last.
    recent: (f64, f64),
    /// Processor time while it was in, since the attach.
    inside: f64,
    is_out: bool,
    /// It cannot be lifted: the semaphore of a mark says that it is in, or the kernel has it.
    stays: bool,
    backs: u32,
}

/// How much of a function was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Hits that were counted.
    pub hits: u64,
    /// It was in for one part of so many; infinite if it was lifted before any time had passed.
    pub one_of: f64,
    /// Hits, as they may have been.
    pub estimated: u64,
    /// It never came back.
    pub is_off: bool,
}

impl Budget {
    /// Measures what a hit costs; `None` if that cannot be measured here.
    pub fn of(percent: f64, job: &Job) -> Option<Budget> {
        let of = |verb| bench::price(&[verb]);
        let by_handler = match job.verb {
            Verb::Count => Verb::CountByHandler,
            Verb::HistogramOfReturn => Verb::HistogramOfArgument(0),
            verb => verb,
        };
        let general: Price = of(by_handler)?;
        let compiled = if job.verb == Verb::Count { of(Verb::Count)?.ns } else { 0.0 };
        let prices = Prices { general: general.with_frames(FRAMES), compiled, programs: Vec::new() };
        Some(Budget::new(percent / 100.0, prices))
    }

    /// For a script whose programs cost so much a run; some places may have a count or a histogram in a program's stead, as said.
    /// `None` if it cannot be measured here.
    pub fn of_programs(
        percent: f64,
        programs: Vec<f64>,
        (counts, histograms): (bool, bool),
    ) -> Option<Budget> {
        let of = |verb, is_wanted: bool| match is_wanted {
            true => bench::price(&[verb]).map(|price| price.ns),
            false => Some(0.0),
        };
        let compiled = of(Verb::Count, counts)?;
        let general = of(Verb::CountByHandler, counts)?.max(of(Verb::HistogramOfArgument(0), histograms)?);
        Some(Budget::new(percent / 100.0, Prices { general, compiled, programs }))
    }

    fn new(share: f64, price: Prices) -> Budget {
        let now = Instant::now();
        Budget {
            share,
            price,
            sites: BTreeMap::new(),
            left: 0.0,
            used: 0.0,
            before: None,
            began: now,
            cpus: std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
            spent: [0.0; 2],
            stops: 0,
            stood: 0.0,
            presumed: 0.0,
            stop_ns: 0.0,
            wanted: SAVED_NS,
            failures: 0,
            why: None,
            random: u64::from(std::process::id()) | 1,
            due: now,
            rests_until: now,
        }
    }

    /// Tracing begins: the probes are in, and have been for a while. What is too dear goes at once.
    pub fn begin(&mut self, probes: &mut dyn Held) {
        self.meet(probes);
        self.look(probes);
    }

    fn meet(&mut self, probes: &dyn Held) {
        self.began = Instant::now();
        let sessions = probes.sessions();
        let stall = sessions.iter().map(|session| session.longest_stall()).max().unwrap_or_default();
        self.stop_ns = stall.as_nanos() as f64;
        if let Some(session) = sessions.first() {
            let threads =
                std::fs::read_dir(format!("/proc/{}/task", session.pid())).map_or(1, Iterator::count);
            self.cpus = self.cpus.min(threads.max(1) as f64);
        }
        let mut names = names(&sessions).into_iter();
        for (s, session) in sessions.iter().enumerate() {
            for (i, site) in session.sites().enumerate().filter(|(_, site)| !site.plan.is_exit()) {
                let name = names.next().unwrap_or_default();
                let stays = site.plan.semaphore.is_some() || site.plan.placement.rung == Rung::Kernel;
                self.sites.insert((s, i), Seen { name, stays, ..Seen::default() });
            }
        }
        self.measure(&sessions);
    }

    /// When the next look is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Looks what was spent, and takes out or puts back.
    pub fn look(&mut self, probes: &mut dyn Held) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.measure(&probes.sessions());
        self.due = now + LOOK * (1 + (self.sites.len() / AT_A_LOOK) as u32);
        let is_any_out = self.sites.values().any(|seen| seen.is_out);
        match self.left {
            _ if self.failures >= FAILURES || self.failures > 0 && now < self.rests_until => {}
            _ if self.is_overspent() => {
                let going = self.dearest(is_any_out);
                // All that can go has gone.
                if going.is_empty() {
                    return;
                }
                self.change(probes, &going, |probes, session, addrs| probes.lift(session, addrs));
            }
            left if is_any_out && left >= self.wanted && now >= self.rests_until => {
                let out = self.sites.iter().filter(|(_, seen)| seen.is_out).map(|(at, _)| *at);
                let out: Vec<_> = out.collect();
                self.change(probes, &out, |probes, session, addrs| probes.lower(session, addrs));
                self.due = Instant::now() + self.turn();
            }
            _ => {}
        }
    }

    /// Looks for the last time, while the probes are in.
    pub fn end(&mut self, probes: &dyn Held) {
        self.measure(&probes.sessions());
    }

    /// Reads all counts, and the processor time that they are of.
    fn measure(&mut self, sessions: &[&Session]) {
        let Some(now) = sessions.first().and_then(|s| processor_time(s.pid())) else { return };
        let step = self.before.map_or(0.0, |before| (now - before).max(0.0));
        self.before = Some(now);
        self.used += step;
        let mut cost = 0.0;
        for (s, session) in sessions.iter().enumerate() {
            for (i, site) in session.sites().enumerate() {
                let Some(seen) = self.sites.get_mut(&(s, i)) else { continue };
                cost += seen.count(self.price.of(&site), step);
            }
        }
        self.spent[0] += cost;
        self.earn(step, cost);
        self.settle();
    }

    /// How long until what was saved is spent by what came back, as it has spent before.
    fn turn(&self) -> Duration {
        let rate = |seen: &Seen| if seen.inside > 0.0 { seen.cost / seen.inside } else { 0.0 };
        let rate: f64 = self.sites.values().filter(|seen| !seen.is_out).map(rate).sum();
        let spending = rate * self.busy();
        let lasts = if spending > 0.0 { self.left.max(0.0) / spending } else { f64::INFINITY };
        Duration::from_nanos(lasts.min(LOOK.as_nanos() as f64) as u64).max(FIRST_LOOK)
    }

    /// Processors that the process uses while it does not stand still.
    fn busy(&self) -> f64 {
        // Nothing is cheap as long as it is not known.
        self.known_busy().unwrap_or(self.cpus)
    }

    /// The same; `None` while it is too early to tell.
    fn known_busy(&self) -> Option<f64> {
        let elapsed = self.began.elapsed().as_nanos() as f64 - self.stood;
        (self.used > BEHIND_NS && elapsed > BEHIND_NS).then(|| self.used / elapsed)
    }

    /// Gives back what the first stops were paid too much: on a busy machine they are long, and the process would have had few of the
    /// processors meanwhile.
    fn settle(&mut self) {
        if self.presumed > 0.0 && self.used > TELLS_NS {
            let too_much = self.presumed * (self.cpus - self.busy()).max(0.0);
            self.presumed = 0.0;
            self.spent[1] -= too_much;
            self.left += too_much;
        }
    }

    /// More was spent than there was, also if some time is not told yet.
    fn is_overspent(&self) -> bool {
        self.left < -self.share * BEHIND_NS
    }

    /// What the process does by itself brings in; what we cost goes out. Not all that was saved is kept: a burst must not be
    /// paid by the hours before it.
    fn earn(&mut self, step: f64, cost: f64) {
        let most = 2.0 * self.wanted.max(SAVED_NS);
        self.left = (self.left + self.share * (step - cost).max(0.0) - cost).min(most);
    }

    /// The dearest of those that are in, until the rest can stay. If some are out already the others were too dear as well.
    fn dearest(&self, is_any_out: bool) -> Vec<(usize, usize)> {
        // Of a moment it is not known how long it was.
        let rate = |seen: &Seen| seen.recent.0 / seen.recent.1.max(MOMENT_NS);
        let here = self.sites.iter().filter(|(_, seen)| !seen.is_out && !seen.stays && seen.recent.0 > 0.0);
        let mut by_rate: Vec<((usize, usize), f64)> = here.map(|(at, seen)| (*at, rate(seen))).collect();
        by_rate.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut rest: f64 = by_rate.iter().map(|(_, rate)| rate).sum();
        let may_stay = self.share * if is_any_out { STAYS / 2.0 } else { STAYS };
        let mut going = Vec::new();
        for (at, rate) in by_rate {
            if rest <= may_stay && !going.is_empty() {
                break;
            }
            going.push(at);
            rest -= rate;
        }
        going
    }

    /// Takes these out or puts them back, and pays for the stop.
    fn change(
        &mut self,
        probes: &mut dyn Held,
        which: &[(usize, usize)],
        how: fn(&mut dyn Held, usize, &[u64]) -> Result<Duration, String>,
    ) {
        let mut by_session: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (session, site) in which {
            let addr = probes.sessions().get(*session).and_then(|s| Some(s.site(*site)?.plan.addr()));
            by_session.entry(*session).or_default().extend(addr);
        }
        let mut stall = Duration::ZERO;
        for (session, addrs) in by_session {
            self.stops += 1;
            match how(probes, session, &addrs) {
                Ok(stood) => {
                    self.failures = 0;
                    stall += stood;
                }
                // Perhaps a thread was inside that will have left.
                Err(why) => {
                    self.failures += 1;
                    self.why = Some(why);
                    self.rests_until = Instant::now() + REST;
                }
            }
        }
        self.pay_stop(stall);
        let sessions = probes.sessions();
        self.measure(&sessions);
        self.notice(&sessions);
    }

    fn pay_stop(&mut self, stall: Duration) {
        // Who stands still loses the processors that it would have had.
        let (stall, known) = (stall.as_nanos() as f64, self.known_busy());
        let cost = stall * known.unwrap_or(self.cpus);
        if known.is_none() {
            self.presumed += stall;
        }
        self.stood += stall;
        self.spent[1] += cost;
        self.earn(0.0, cost);
        // Both ways, and as much again for those that are sometimes longer.
        self.stop_ns = self.stop_ns.mul_add(0.5, 0.5 * cost);
        // By no fixed time: a program that does the same in turns would be seen always at the same.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let jitter = 0.75 + (self.random % 1024) as f64 / 2048.0;
        self.wanted = (2.0 * self.stop_ns / STOPS).max(SAVED_NS) * jitter;
    }

    /// Which are in and out now, as the sessions have it.
    fn notice(&mut self, sessions: &[&Session]) {
        for (s, session) in sessions.iter().enumerate() {
            for (i, site) in session.sites().enumerate() {
                let Some(seen) = self.sites.get_mut(&(s, i)) else { continue };
                if seen.is_out && !site.is_out {
                    seen.backs += 1;
                    seen.recent = (0.0, 0.0);
                }
                seen.is_out = site.is_out;
            }
        }
        // Those that could not come back now may later, but not at each look.
        if self.left > 0.0 && self.sites.values().any(|seen| seen.is_out) {
            self.rests_until = Instant::now() + REST;
        }
    }

    /// How much of each function was seen that was not in all the time.
    pub fn sampled(&self) -> BTreeMap<&str, Sampled> {
        let mut of: BTreeMap<&str, Vec<&Seen>> = BTreeMap::new();
        for seen in self.sites.values() {
            of.entry(&seen.name).or_default().push(seen);
        }
        let is_part = |all: &Vec<&Seen>| all.iter().any(|seen| seen.is_out || seen.backs > 0);
        of.into_iter().filter(|(_, all)| is_part(all)).map(|(name, all)| (name, self.of_all(&all))).collect()
    }

    /// Of the sites of one function, which come and go together.
    fn of_all(&self, all: &[&Seen]) -> Sampled {
        let inside = all.iter().map(|seen| seen.inside).fold(f64::INFINITY, f64::min);
        let hits: u64 = all.iter().map(|seen| seen.hits).fold(0, u64::saturating_add);
        let one_of = if inside > 0.0 { (self.used / inside).max(1.0) } else { f64::INFINITY };
        let is_off = all.iter().all(|seen| seen.is_out && seen.backs == 0);
        // Of what was in for a moment alone, at the start, nothing can be told.
        let is_known = one_of.is_finite() && !is_off;
        let estimated = if is_known { (hits as f64 * one_of).round() as u64 } else { hits };
        Sampled { hits, one_of, estimated, is_off }
    }

    /// Has the report say what was seen in part.
    pub fn mark(&self, report: &mut Report) {
        let sampled = self.sampled();
        for row in &mut report.rows {
            row.sampled = sampled.get(row.name.as_str()).copied();
        }
    }

    /// Of what the process would have used without us; `None` while that is nothing.
    fn percent(&self) -> Option<f64> {
        let spent = self.spent[0] + self.spent[1];
        (self.used > spent).then(|| spent / (self.used - spent) * 100.0)
    }

    /// What was kept, in one line.
    pub fn line(&self) -> String {
        const SHOWN: usize = 3;
        let asked = self.share * 100.0;
        let used = self.percent().map_or("an unknown part".to_owned(), |percent| format!("{percent:.2} %"));
        // What a condition turns down costs less.
        let at_most = if self.price.programs.is_empty() { "" } else { " at most" };
        let mut text = format!(
            "budget {asked} %: {used} used{at_most}, by hits x price and {}",
            many(self.stops as usize, "stop")
        );
        let sampled = self.sampled();
        match sampled.len() {
            0 => text += "; all hits were counted",
            n => {
                let off = sampled.values().filter(|s| s.is_off).count();
                let of = self.sites.values().map(|seen| &seen.name).collect::<BTreeSet<_>>().len();
                text += &format!("; of {} {} sampled, {off} switched off: ", many(of, "function"), n - off);
                let mut all: Vec<_> = sampled.into_iter().collect();
                all.sort_by_key(|row| std::cmp::Reverse(row.1.estimated));
                let words: Vec<String> =
                    all.iter().take(SHOWN).map(|(name, s)| format!("{name} {}", s.words())).collect();
                text += &words.join(", ");
                if n > SHOWN {
                    text += &format!(" and {} others", n - SHOWN);
                }
                text += &format!("; about {} hits were not seen (estimated)", self.unseen());
                if off > 0 {
                    text += ", of those switched off it is not known how many";
                }
                if !self.price.programs.is_empty() {
                    text += "; maps and lines have the hits that were seen, and no others";
                }
            }
        }
        if let Some(why) = &self.why {
            text += &format!("; probes could not be taken out or put back: {why}");
        }
        text
    }

    /// Hits that may have come while their functions were out.
    fn unseen(&self) -> u64 {
        self.sampled().values().map(|s| s.estimated.saturating_sub(s.hits)).fold(0, u64::saturating_add)
    }

    /// The same for machines.
    pub fn json(&self) -> Value {
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        let sampled: serde_json::Map<String, Value> = self
            .sampled()
            .into_iter()
            .map(|(name, s)| {
                let one_of = Some(s.one_of).filter(|n| n.is_finite()).map(rounded);
                (
                    name.to_owned(),
                    json!({"one_of": one_of, "estimated": Some(s.estimated).filter(|_| !s.is_off), "switched_off": s.is_off}),
                )
            })
            .collect();
        json!({"type": "budget", "data": {
            "asked_percent": self.share * 100.0, "used_percent": self.percent().map(rounded),
            "ns_a_hit": rounded(self.price.general), "ns_a_count": rounded(self.price.compiled),
            "ns_a_run": self.price.programs.iter().copied().map(rounded).collect::<Vec<f64>>(),
            "stops": self.stops, "stood_ms": rounded(self.spent[1] / 1e6), "cost_ms": rounded(self.spent[0] / 1e6),
            "process_cpu_ms": rounded(self.used / 1e6), "sampled": sampled, "not_seen_estimated": self.unseen(),
            "failed": self.why,
        }})
    }
}

impl Sampled {
    /// What stands behind a count.
    pub fn beside(&self) -> String {
        match self.is_off {
            true => "  switched off: not counted since".into(),
            false => format!("  {}: about {} (estimated)", self.words(), self.estimated),
        }
    }

    fn words(&self) -> String {
        match self.is_off || !self.one_of.is_finite() {
            true => "switched off".into(),
            false => format!("sampled 1 of {:.1}", self.one_of),
        }
    }
}

impl Prices {
    /// Hits of a site so far, and what they have cost.
    fn of(&self, site: &SiteView<'_>) -> (u64, f64) {
        let runs = site.runs();
        if !runs.is_empty() {
            let price = |number: u32| self.programs.get(number as usize).copied().unwrap_or_default();
            // Of skipped ones too: they have come as far as that.
            let add = |sum: (u64, f64), (number, hits): (u32, u64)| {
                (sum.0.saturating_add(hits), sum.1 + hits as f64 * price(number))
            };
            return runs.into_iter().map(|(number, runs)| (number, runs.hits())).fold((0, 0.0), add);
        }
        let hits = hits(site);
        (hits, hits as f64 * if site.plan.is_compiled_count() { self.compiled } else { self.general })
    }
}

impl Seen {
    /// Notes the hits so far and their cost; what of that is new.
    fn count(&mut self, (hits, cost): (u64, f64), step: f64) -> f64 {
        let new = (cost - self.cost).max(0.0);
        self.hits = self.hits.max(hits);
        self.cost = self.cost.max(cost);
        self.recent.0 += new;
        if !self.is_out {
            self.recent.1 += step;
            self.inside += step;
        }
        new
    }
}

fn hits(site: &SiteView<'_>) -> u64 {
    site.timed().map_or_else(|| site.hits().saturating_add(site.lost()), |(calls, _)| calls)
}

/// Nanoseconds that all threads of a process have used.
fn processor_time(pid: i32) -> Option<f64> {
    let (mut clock, mut now) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: it writes one number to `clock`.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    // SAFETY: it writes one `timespec` to `now`.
    if unsafe { libc::clock_gettime(clock, &raw mut now) } != 0 {
        return None;
    }
    Some(now.tv_sec as f64 * 1e9 + now.tv_nsec as f64)
}

/// How long a thread stood still for functions that were put back, or why none of them was.
pub fn lowered(done: Result<Lowered, NotDone>) -> Result<Duration, String> {
    let lowered = done.map_err(|why| why.to_string())?;
    match lowered.missed.first().filter(|_| lowered.sites == 0) {
        Some((name, why)) => Err(format!("{name}: {why}")),
        None => Ok(lowered.stall),
    }
}

/// So many, in words.
fn many(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_and_not_many() {
        assert_eq!([0, 1, 2].map(|n| many(n, "stop")), ["0 stops", "1 stop", "2 stops"]);
    }

    fn budget(sites: &[(&str, u64, f64, bool)]) -> Budget {
        let seen = |(name, hits, inside, is_out): &(&str, u64, f64, bool)| Seen {
            name: (*name).into(),
            hits: *hits,
            cost: 0.0,
            recent: (*hits as f64 * 10.0, *inside),
            inside: *inside,
            is_out: *is_out,
            stays: false,
            backs: u32::from(*is_out),
        };
        let sites = sites.iter().enumerate().map(|(i, of)| ((0, i), seen(of))).collect();
        Budget { sites, used: 1e9, ..Budget::new(0.02, Prices { general: 10.0, ..Prices::default() }) }
    }

    #[test]
    fn the_dearest_go_until_the_rest_can_stay() {
        // In a second: 0.05, 10 and 0.02 percent.
        let all = [("b", 50_000, 1e9, false), ("a", 10_000_000, 1e9, false), ("c", 20_000, 1e9, false)];
        assert_eq!(budget(&all).dearest(false), [(0, 1)]);
        // One alone goes even if it was not that dear: something has spent what there was.
        assert_eq!(budget(&all[2..]).dearest(false), [(0, 0)]);
        let out = [("a", 1_000_000, 1e9, true), ("b", 900_000, 1e9, false), ("c", 10, 1e9, false)];
        assert_eq!(budget(&out).dearest(true), [(0, 1)], "who is out is out");
        assert!(budget(&[("d", 0, 1e9, false)]).dearest(false).is_empty());
    }

    #[test]
    fn who_was_in_for_a_quarter_of_the_time_had_four_times_the_hits() {
        let mut some = budget(&[("a", 1000, 2.5e8, true), ("b", 7, 1e9, false)]);
        let sampled = some.sampled();
        assert_eq!(sampled.keys().copied().collect::<Vec<_>>(), ["a"]);
        assert_eq!((sampled["a"].one_of, sampled["a"].estimated, sampled["a"].is_off), (4.0, 4000, false));
        assert_eq!(some.unseen(), 3000);
        assert!(
            some.line().contains("a sampled 1 of 4.0; about 3000 hits were not seen (estimated)"),
            "{}",
            some.line()
        );
        some.sites.get_mut(&(0, 0)).unwrap().backs = 0;
        assert!(some.line().contains("0 sampled, 1 switched off: a switched off"), "{}", some.line());
    }

    #[test]
    fn hits_whose_time_is_not_told_yet_are_no_debt() {
        let mut some = budget(&[]);
        some.earn(0.0, 0.02 * 9e6);
        assert!(some.left < 0.0 && !some.is_overspent());
        some.earn(0.0, 0.02 * 2e6);
        assert!(some.is_overspent());
        some.earn(9e6, 0.0);
        assert!(!some.is_overspent());
    }

    #[test]
    fn hours_of_peace_do_not_pay_for_a_burst() {
        let mut some = budget(&[]);
        some.earn(3.6e12, 0.0);
        assert_eq!(some.left, 2.0 * SAVED_NS);
        some.earn(1e6, 1e6);
        assert!((some.left - (2.0 * SAVED_NS - 1e6)).abs() < 1.0);
        // A hundred milliseconds of work bring two, less what we took of them.
        let mut none = budget(&[]);
        none.earn(1e8, 0.0);
        assert!((none.left - 2e6).abs() < 1.0);
        none.earn(1e8, 1e8);
        assert!(none.left < -9e7);
    }

    /// Nobody, whose functions nobody takes out.
    struct Nobody;

    impl Held for Nobody {
        fn sessions(&self) -> Vec<&Session> {
            Vec::new()
        }

        fn lift(&mut self, _: usize, addrs: &[u64]) -> Result<Duration, String> {
            panic!("nothing to lift at {addrs:?}")
        }

        fn lower(&mut self, _: usize, addrs: &[u64]) -> Result<Duration, String> {
            panic!("nothing to lower at {addrs:?}")
        }
    }

    #[test]
    fn where_all_has_gone_no_stop_is_made_and_the_price_of_the_last_stays() {
        let mut some = budget(&[("a", 1000, 1e8, true)]);
        (some.left, some.stop_ns) = (-1e9, 4e6);
        some.look(&mut Nobody);
        assert_eq!((some.stops, some.stop_ns, some.spent), (0, 4e6, [0.0; 2]));
    }

    #[test]
    fn the_first_stop_is_paid_as_if_all_processors_stood_still() {
        let mut some = budget(&[]);
        (some.cpus, some.used) = (2.0, 0.0);
        some.pay_stop(Duration::from_millis(3));
        assert_eq!(some.spent, [0.0, 6e6]);
    }

    #[test]
    fn what_the_first_stop_was_paid_too_much_is_given_back_when_it_is_known() {
        let mut some = budget(&[]);
        (some.cpus, some.used) = (2.0, 0.0);
        some.pay_stop(Duration::from_millis(30));
        assert_eq!((some.spent, some.left), ([0.0, 6e7], -6e7));
        // 60 milliseconds of 630, of which it stood still for 30: a tenth of a processor.
        some.began = Instant::now().checked_sub(Duration::from_millis(630)).unwrap();
        some.used = 4e7;
        some.settle();
        assert_eq!(some.spent, [0.0, 6e7], "not known yet");
        some.used = 6e7;
        for _ in 0..2 {
            some.settle();
            assert!((some.spent[1] - 3e6).abs() < 1e5, "{:?}", some.spent);
            assert!((some.left + 3e6).abs() < 1e5, "{}", some.left);
        }
        // From then on stops are paid as they are.
        some.pay_stop(Duration::from_millis(10));
        assert!((some.spent[1] - 4e6).abs() < 1e5, "{:?}", some.spent);
    }

    #[test]
    fn a_turn_ends_when_what_was_saved_may_be_spent() {
        // Half of its processor time, as long as it was in, is the price of its hits.
        let mut some = budget(&[("a", 5_000_000, 1e8, false)]);
        for seen in some.sites.values_mut() {
            seen.cost = 5e7;
        }
        (some.cpus, some.used) = (2.0, 0.0);
        some.left = 2e6;
        assert_eq!(some.turn(), Duration::from_millis(2));
        some.left = 1e9;
        assert_eq!(some.turn(), LOOK);
        some.left = -1.0;
        assert_eq!(some.turn(), FIRST_LOOK);
    }
}
