//! One run of `torture live`.
//!
//! For:     `live_main`.
//! State:   the target, the session, what is expected of its consumers.
//! Context: control.
//! Keeps:   as in the parent.
//! Checked: as in the parent.

use super::options::Options;
use super::oracle::Oracle;
use super::programs::{Made, tells};
use super::target::{BUSY, LEN, ROLE, Shared};
use super::whole::function_of;
use crate::rng::Rng;
use crate::target::{Target, private_kb, shared_kb};
use image::Spec;
use session::{Attach, Consumer, ConsumerId, HookId, NotChanged, Room, Runs, Session, Verb};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Guests that are there at a time.
const GUESTS: usize = 256;
/// Changes between two grace periods.
const SETTLE_EVERY: u64 = 1024;
/// Hits leave within so long, however many threads wait for a CPU.
pub(super) const SETTLE: Duration = Duration::from_secs(60);
/// So long where it is broken on purpose, and they may never go.
const SETTLE_BROKEN: Duration = Duration::from_secs(15);
/// By then as many consumers are there as ever, and what waits for a grace period has been as much.
const WARM: u64 = 8 * SETTLE_EVERY;
/// Memory may grow by so much after a tenth of the changes, and when all is warm: how much waits for a grace period is the run's
/// luck, and what is counted in pages never is quite still. What is in use of the arena is compared to the last cell. A run
/// that is too short for that measures nothing, and says 0.
const GROWTH_MAX_KB: u64 = 1 << 10;
/// Functions that the session is attached with; the others' probes come later.
const FIRST: [&str; 8] =
    ["live_fn_0", "live_fn_1", "live_fn_2", "live_fn_3", "live_fn_5", "live_fn_6", "live_fn_7", "live_fn_8"];
/// One that is called, and one that nobody calls.
pub(super) const LATE: [&str; 2] = ["live_fn_4", "live_fn_9"];

/// What happened so far.
#[derive(Default)]
pub struct Tally {
    added: u64,
    removed: u64,
    calls: u64,
    pub(super) checked: u64,
    periods: u64,
    fences: u64,
    stops: u64,
    forks: u64,
    pub(super) probes: u64,
    many: usize,
    many_periods: u64,
    many_ms: u64,
    growth_kb: u64,
    changes_per_s: u64,
    hostile: usize,
    refused: usize,
    runs: Runs,
    fence: Option<session::Fence>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.fence.map_or_else(String::new, |fence| fence.to_string());
        write!(
            f,
            "added {} removed {} checked {} calls {} changes_per_s {} grace {} fences {} stops {} forks {} probes {} many {} \
             many_grace {} many_ms {} growth_kb {} programs: hostile {} refused {} ran {} nested {} no_workspace {} fuel {} \
             fault {} fence '{fence}'",
            self.added,
            self.removed,
            self.checked,
            self.calls,
            self.changes_per_s,
            self.periods,
            self.fences,
            self.stops,
            self.forks,
            self.probes,
            self.many,
            self.many_periods,
            self.many_ms,
            self.growth_kb,
            self.hostile,
            self.refused,
            self.runs.ran,
            self.runs.nested,
            self.runs.no_workspace,
            self.runs.fuel,
            self.runs.fault
        )
    }
}

pub(super) struct World<'a> {
    pub(super) options: &'a Options,
    pub(super) shared: &'static Shared,
    pub(super) target: Target,
    pub(super) session: Session,
    /// Of each function, at the entry and at the exit.
    hooks: Vec<(HookId, usize)>,
    oracle: Oracle,
    made: Made,
    /// Consumers that are programs: which.
    running: BTreeMap<ConsumerId, u32>,
    /// Runs to the end of those that tell.
    told: u64,
    /// Calls of each function that were over before the probes came, and those that had begun when they stood.
    early: [[u64; BUSY]; 2],
    pub(super) rng: Rng,
    pub(super) tally: &'a mut Tally,
}

/// Runs it; why it failed.
pub fn run(options: &Options, tally: &mut Tally) -> Result<(), String> {
    let memory = sys::memfd_inheritable(c"live-torture", LEN).map_err(|e| e.to_string())?;
    let shared = Shared::open(memory).ok_or("no memory to share")?;
    let numbers = [memory as u64, options.threads as u64, options.forkers as u64, options.seed];
    let words: Vec<String> = [ROLE.to_string()].into_iter().chain(numbers.map(|n| n.to_string())).collect();
    let mut target = Target::start(&words)?;
    let begin = |target: &mut Target| target.say("go").and_then(|()| target.hear("going"));
    if options.is_late {
        begin(&mut target)?;
    }
    let plan = plan(target.pid(), &FIRST)?;
    let made = Made::new(&mut Rng::new(options.seed, 1), options.hostile)?;
    (tally.hostile, tally.refused) = (made.hostile, made.refused);
    let room = Room {
        consumers: 4 * (options.many + 64 * GUESTS),
        cells: 2 * options.many + 65 * 8 * GUESTS,
        probes: 0,
    };
    let room = room.and_probes(4 * LATE.len());
    let over = Oracle::before(shared);
    let attach = Attach { room, programs: made.programs.clone(), ..Attach::default() };
    let mut session =
        Session::attach_with(target.pid(), plan, attach).map_err(|e| format!("no attach: {e}"))?;
    let early = [over, std::array::from_fn(|f| shared.begun(f))];
    if let Some((_, how)) = options.broken {
        session.break_on_purpose(how);
    }
    if !options.is_late {
        begin(&mut target)?;
    }
    // With 32 busy threads a CPU a time-shared tester would get some changes a second.
    let _ = sys::sched::set_policy(sys::sched::FIFO, 1);
    let hooks = hooks(&session)?;
    let rng = Rng::new(options.seed, 0);
    let oracle = Oracle::default();
    let mut world = World {
        options,
        shared,
        target,
        session,
        hooks,
        oracle,
        made,
        running: BTreeMap::new(),
        told: 0,
        early,
        rng,
        tally,
    };
    let verdict = world.changes().and_then(|()| world.many()).and_then(|()| world.whole());
    world.note();
    let ended = verdict.and_then(|()| world.last_look());
    world.note();
    ended
}

/// The entries and exits of these functions.
pub(super) fn plan(pid: i32, functions: &[&str]) -> Result<Vec<session::SitePlan>, String> {
    let both = functions.iter().flat_map(|f| [format!("u::{f}"), format!("ur::{f}")]);
    let specs: Result<Vec<Spec>, _> = both.map(|s| Spec::parse(&s)).collect();
    let specs = specs.map_err(|e| e.to_string())?;
    let plan = session::plan(pid, &specs, Verb::CountByHandler).map_err(|e| e.to_string())?;
    match plan.refused.first() {
        Some(refused) => Err(format!("{} cannot be probed: {}", refused.name, refused.why)),
        None => Ok(plan.sites),
    }
}

/// Hooks with the number of their function.
fn hooks(session: &Session) -> Result<Vec<(HookId, usize)>, String> {
    let mut hooks = Vec::new();
    for site in session.sites() {
        let function = function_of(site.plan)?;
        hooks.extend(session.hooks(site.plan.addr()).into_iter().map(|hook| (hook, function)));
    }
    match hooks.len() >= 2 * FIRST.len() {
        true => Ok(hooks),
        false => Err(format!("{} hooks of {}: {:?}", hooks.len(), 2 * FIRST.len(), session.missed())),
    }
}

impl World<'_> {
    fn note(&mut self) {
        let grace = self.session.grace();
        self.tally.calls = self.shared.calls();
        self.tally.forks = self.shared.forks.load(std::sync::atomic::Ordering::Relaxed);
        (self.tally.periods, self.tally.fences) = (grace.periods, grace.fences);
        self.tally.fence = Some(grace.fence);
    }

    /// Adds and removes, at random, until all are made.
    fn changes(&mut self) -> Result<(), String> {
        let (stops, began, free) = (session::stops(), Instant::now(), self.session.free_room());
        let end = began + self.options.limit;
        let (mut memory, mut said, mut steps) = (None, began, 0);
        while self.tally.removed < self.options.changes && Instant::now() < end {
            self.step()?;
            steps += 1;
            // A broken one is given every occasion; of an honest one what waits must not grow with the luck of the run.
            if self.options.broken.is_some() {
                self.settle(SETTLE_BROKEN)?;
            } else if steps % SETTLE_EVERY == 0 {
                self.settle(SETTLE)?;
            }
            if memory.is_none() && steps > WARM && self.tally.removed >= self.options.changes / 10 {
                memory = Some(self.memory_kb()?);
            }
            if said.elapsed() > Duration::from_secs(5) {
                said = Instant::now();
                self.note();
                println!("torture live: {}", self.tally);
            }
        }
        self.leave_all()?;
        self.tally.stops = session::stops() - stops;
        self.tally.changes_per_s =
            ((self.tally.added + self.tally.removed) as f64 / began.elapsed().as_secs_f64()) as u64;
        let now = self.memory_kb()?;
        self.tally.growth_kb = now.saturating_sub(memory.unwrap_or(now));
        if self.tally.growth_kb > GROWTH_MAX_KB {
            return Err(format!("the memory grew by {} KiB", self.tally.growth_kb));
        }
        if self.session.free_room() != free {
            return Err(format!("room was lost: {free:?} became {:?}", self.session.free_room()));
        }
        if self.tally.stops > 0 { Err("threads of the target were stopped".into()) } else { Ok(()) }
    }

    /// Our own and the target's, and what both map of the session's, once.
    fn memory_kb(&self) -> Result<u64, String> {
        let (own, its) = (std::process::id(), self.target.pid() as u32);
        match shared_kb(own, "memfd:nanoprobe") {
            0 => Err("what the session shares with its target cannot be measured".into()),
            shared => Ok(private_kb(own) + private_kb(its) + shared),
        }
    }

    /// One change: some come, some go, or both.
    fn step(&mut self) -> Result<(), String> {
        if self.target.ended().is_some() {
            return Err("the target has ended".into());
        }
        let room = GUESTS - self.oracle.there.len().min(GUESTS);
        let left = (self.options.changes.saturating_sub(self.tally.added)) as usize;
        // More come than go, so that there are nearly always as many as may be: how long lists are says how much memory is used,
        // and a number that wandered would look like a leak.
        let come = (self.rng.below(6) as usize).min(room).min(left);
        let go = if left == 0 { 8 } else { self.rng.below(5) as usize };
        let add: Vec<(HookId, usize, Consumer)> = (0..come)
            .map(|_| {
                let (hook, function) = self.hooks[self.rng.below(self.hooks.len() as u64) as usize];
                let histogram = Consumer::Log2Histogram { register: 112 };
                let consumer = match self.rng.below(5) {
                    0 => histogram,
                    1 | 2 => Consumer::Program { program: self.made.any(&mut self.rng), cookie: 0 },
                    _ => Consumer::Count,
                };
                (hook, function, consumer)
            })
            .collect();
        let there: Vec<ConsumerId> = self.oracle.there.keys().copied().collect();
        let mut remove: Vec<ConsumerId> =
            (0..go.min(there.len())).map(|_| there[self.rng.below(there.len() as u64) as usize]).collect();
        remove.sort_unstable();
        remove.dedup();
        if self.options.has_stops && self.rng.one_in(500) {
            self.in_a_stop(&add, &remove)
        } else {
            self.change(&add, &remove)
        }
    }

    fn change(&mut self, add: &[(HookId, usize, Consumer)], remove: &[ConsumerId]) -> Result<(), String> {
        let wanted: Vec<(HookId, Consumer)> = add.iter().map(|(hook, _, c)| (*hook, *c)).collect();
        let before = Oracle::before(self.shared);
        let added = loop {
            match self.session.change(&wanted, remove) {
                Ok(added) => break added,
                Err(NotChanged::NoRoom { waiting: 1.., .. }) => self.settle(SETTLE)?,
                Err(why) => return Err(format!("a change was refused: {why}")),
            }
        };
        let guests = added.iter().copied().zip(add.iter().map(|(_, function, _)| *function));
        self.oracle.came(self.shared, &before, guests);
        let programs = added.iter().zip(add).filter_map(|(id, (_, _, consumer))| match consumer {
            Consumer::Program { program, .. } => Some((*id, *program)),
            _ => None,
        });
        self.running.extend(programs);
        self.oracle.went(&before, remove);
        self.tally.added += added.len() as u64;
        self.tally.removed += remove.len() as u64;
        Ok(())
    }

    /// The same while the target is stopped by job control: what is removed is waited for, in vain if a thread stands
    /// inside, and not for longer than asked.
    fn in_a_stop(&mut self, add: &[(HookId, usize, Consumer)], remove: &[ConsumerId]) -> Result<(), String> {
        self.target.signal(libc::SIGSTOP);
        let done = self.change(add, remove).and_then(|()| {
            let asked = Instant::now();
            self.settle_once(Duration::from_millis(20))?;
            let took = asked.elapsed();
            if took < Duration::from_secs(5) {
                Ok(())
            } else {
                Err(format!("20 ms were asked for, {took:?} taken"))
            }
        });
        self.target.signal(libc::SIGCONT);
        done
    }

    /// Has all that went settled, and compares it.
    fn settle(&mut self, patience: Duration) -> Result<(), String> {
        let late = self.settle_once(patience)?;
        match late {
            None if self.oracle.going() == 0 => Ok(()),
            None => Err(format!("{} consumers that went were not settled", self.oracle.going())),
            Some(late) => Err(format!("hits did not leave within {patience:?}: {late}")),
        }
    }

    fn settle_once(&mut self, patience: Duration) -> Result<Option<String>, String> {
        let settled = self.session.settle(patience);
        for (id, cells) in settled.removed {
            self.oracle.check(self.shared, id, cells.iter().sum())?;
            if let Some(program) = self.running.remove(&id) {
                self.note_runs(program, Runs::of(&cells));
            }
            self.tally.checked += 1;
        }
        Ok(settled.late.map(|late| format!("{late:?}")))
    }

    fn note_runs(&mut self, program: u32, runs: Runs) {
        self.told += if tells(program) { runs.ran } else { 0 };
        let all = &mut self.tally.runs;
        for (to, from) in [
            (&mut all.ran, runs.ran),
            (&mut all.nested, runs.nested),
            (&mut all.no_workspace, runs.no_workspace),
            (&mut all.fuel, runs.fuel),
            (&mut all.fault, runs.fault),
        ] {
            *to += from;
        }
    }

    /// What programs have told, once no hit can be in one.
    fn check_told(&self) -> Result<(), String> {
        let maps = self.session.maps().ok_or("no maps")?;
        match [0, 8].map(|at| maps.load(at).unwrap_or(0)) {
            [told, 0] if told == self.told => Ok(()),
            [told, 0] => Err(format!("programs told of {told} runs, and {} were counted", self.told)),
            [_, bad] => Err(format!("{bad} runs found others in their workspace")),
        }
    }

    fn leave_all(&mut self) -> Result<(), String> {
        let all: Vec<ConsumerId> = self.oracle.there.keys().copied().collect();
        self.change(&[], &all)?;
        self.settle(SETTLE)?;
        if self.options.broken.is_some() {
            return Ok(());
        }
        self.check_told()
    }

    /// Tens of thousands come, and go in one change, which one grace period ends.
    fn many(&mut self) -> Result<(), String> {
        let before = (self.session.free_room(), session::stops());
        let each = self.options.many.div_ceil(self.hooks.len());
        let mut left = self.options.many;
        for i in 0..self.hooks.len() {
            let (hook, function) = self.hooks[i];
            let add = vec![(hook, function, Consumer::Count); each.min(left)];
            left -= add.len();
            self.change(&add, &[])?;
        }
        self.settle(SETTLE)?;
        let all: Vec<ConsumerId> = self.oracle.there.keys().copied().collect();
        let (periods, began) = (self.session.grace().periods, Instant::now());
        self.tally.many = all.len();
        self.change(&[], &all)?;
        self.settle(SETTLE)?;
        self.tally.many_ms = began.elapsed().as_millis() as u64;
        self.tally.many_periods = self.session.grace().periods - periods;
        if (self.session.free_room(), session::stops()) != before {
            return Err("room was lost, or a thread was stopped".into());
        }
        match self.tally.many_periods {
            1 => Ok(()),
            _ if self.options.many == 0 || self.options.broken.is_some() => Ok(()),
            n => Err(format!("{n} grace periods for one change")),
        }
    }

    /// Who stayed has counted every call since the probes came, and all is left as it was.
    fn last_look(&mut self) -> Result<(), String> {
        self.target.say("stop")?;
        self.target.hear("stopped")?;
        let counts: Vec<(String, u64, u64)> = self.stayed();
        for (i, (name, hits, children)) in counts.into_iter().enumerate() {
            let function = self.hooks[i].1;
            let calls = if function < BUSY { self.shared.done(function) } else { 0 };
            let [most, least] =
                self.early.map(|early| calls.saturating_sub(early.get(function).copied().unwrap_or(0)));
            let forked = self.shared.forked(function);
            // Children that were there before the probes make calls that nobody counts.
            let is_lost = children < forked && !self.options.is_late;
            if !(least..=most).contains(&hits) || is_lost {
                return Err(format!(
                    "{name}: {least} to {most} calls, {hits} hits; in children {forked}, {children}"
                ));
            }
        }
        if self.tally.added == 0 || self.tally.removed == 0 || self.shared.calls() == 0 {
            return Err("nothing was tested".into());
        }
        let receipt = self.session.detach().map_err(|e| e.to_string())?;
        if !receipt.is_verified() || !receipt.is_unmapped() {
            return Err(format!("{receipt:?}"));
        }
        self.target.finish()
    }

    fn stayed(&self) -> Vec<(String, u64, u64)> {
        let of = |site: session::SiteView<'_>| {
            let hooks = self.session.hooks(site.plan.addr()).len();
            vec![(site.plan.name.clone(), site.hits(), site.children_hits()); hooks]
        };
        self.session.sites().flat_map(of).collect()
    }
}
