//! The update side of a domain: turns, waits, reports.
//!
//! For:     `Domain`'s five verbs; shared by its handles, its worker and the fork handlers.
//! State:   the block, the callback lists, who drives the grace period.
//! Context: target; most of it may block.
//! Keeps:   U1 one thread at a time drives a grace period; the others find it done or take the next turn.
//!          U2 requests that come before a grace period starts share it.
//! Checked: `tests/grace_periods.rs`, `bench synchronize`, `torture rcu`.

use crate::block::{Block, CHECKED, CLOSED};
use crate::gp::{Broken, Env, Waiting};
use crate::lock::Lock;
use crate::prim::{AtomicU32, AtomicU64, Relaxed};
use crate::report::{Report, Stall, StalledReader, report};
use crate::seq::Phase;
use crate::thread::{self, RECORDS, now_ns};
use crate::{CbList, Cookie, Fences, Flavour, FlavourSet, Misuse, fence};
use core::time::Duration;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::string::String;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::vec::Vec;

/// How a grace period of this domain finds out that readers have left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    /// By the two ranks of per-CPU counters.
    Ranks,
    /// By looking at each thread's nesting: tasks-trace, classic form.
    Holdout,
}

/// What tests and statistics want to know.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) called: AtomicU64,
    pub(crate) invoked: AtomicU64,
    pub(crate) synchronized: AtomicU64,
    pub(crate) expedited: AtomicU64,
    pub(crate) auto_expedited: AtomicU64,
    pub(crate) stalls: AtomicU64,
}

pub(crate) struct Updater {
    pub(crate) block: Block<'static>,
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) engine: Engine,
    pub(crate) fences: Fences,
    pub(crate) checked: bool,
    pub(crate) auto_expedite: bool,
    pub(crate) holdoff_ns: u64,
    pub(crate) stall_after_ns: u64,
    pub(crate) broken: Option<Broken>,
    pub(crate) counts: Counts,
    /// Whose turn it is to drive.
    pub(crate) turn: Lock<()>,
    pub(crate) turn_start_ns: AtomicU64,
    pub(crate) last_end_ns: AtomicU64,
    /// Where callbacks wait; the first alone until `spread` is set.
    pub(crate) lists: Box<[Lock<CbList>]>,
    pub(crate) spread: AtomicU32,
    pub(crate) contended: AtomicU32,
    /// How long the worker lets callbacks gather, and the grace period that it starts at once.
    pub(crate) call_delay_ns: u64,
    pub(crate) needed_soon: AtomicU64,
    /// The worker sleeps on `kick`.
    pub(crate) kick: AtomicU32,
    pub(crate) asleep: AtomicU32,
    pub(crate) stop: AtomicU32,
    pub(crate) worker: Lock<Option<JoinHandle<()>>>,
    pub(crate) worker_tid: AtomicU32,
    pub(crate) barrier: Lock<()>,
    /// Barriers whose node has run, to be told once their list says that all before it have run.
    pub(crate) passed: Lock<Vec<Arc<AtomicU32>>>,
    pub(crate) has_passed: AtomicU32,
    pub(crate) barrier_seq: AtomicU64,
    /// Updown readers of a checked domain: token, thread, since when.
    pub(crate) down: Lock<BTreeMap<u64, (u32, u64)>>,
    pub(crate) next_token: AtomicU64,
}

impl Updater {
    /// Refuses to wait for the reader that the caller is.
    pub(crate) fn check_wait(&self) -> Result<(), Misuse> {
        let Some(record) = thread::mine_if_any() else { return Ok(()) };
        if self.engine == Engine::Holdout || self.block.declared().has(Flavour::Tasks) {
            let holdout = record.word.nesting();
            let on_fast = crate::tasks::on_fast::nesting(record);
            let nesting = if self.engine == Engine::Holdout { holdout } else { on_fast };
            return match nesting {
                0 => Ok(()),
                _ => Err(Misuse::WaitInReader { flavour: Flavour::Tasks, nesting }),
            };
        }
        match record.held(self.id) {
            Some(held) => Err(Misuse::WaitInReader { flavour: held.flavour(), nesting: held.total() }),
            None => Ok(()),
        }
    }

    /// Should a plain wait behave like an expedited one? Only where nothing else is going on.
    pub(crate) fn should_expedite(&self) -> bool {
        let gp = &self.block.head().gp;
        let seq = gp.seq.load(Relaxed);
        self.auto_expedite
            && !self.block.recorded().meets(FlavourSet::FENCELESS)
            && self.lists.iter().all(|list| list.try_lock().is_some_and(|l| l.is_empty()))
            && self.holdoff_ns > 0
            && now_ns().wrapping_sub(self.last_end_ns.load(Relaxed)) >= self.holdoff_ns
            && gp.needed.load(Relaxed) == seq
            && gp.seq.load(Relaxed) == seq
    }

    /// Returns when the cookie is done, driving grace periods if nobody else does.
    pub(crate) fn wait_for(&self, cookie: Cookie, expedited: bool) {
        self.request(cookie, expedited);
        while !self.block.poll(cookie) {
            self.drive(cookie);
        }
    }

    /// Notes that somebody needs the grace period of `cookie`.
    pub(crate) fn request(&self, cookie: Cookie, expedited: bool) {
        let gp = &self.block.head().gp;
        raise(&gp.needed, cookie);
        if expedited {
            raise(&gp.needed_expedited, cookie);
        }
    }

    /// Takes a turn: drives one grace period unless the cookie is done by then.
    pub(crate) fn drive(&self, cookie: Cookie) {
        let _turn = self.turn.lock();
        let gp = &self.block.head().gp;
        let seq = gp.seq.load(Relaxed);
        if cookie.is_done(seq) {
            return;
        }
        let expedited = !Cookie(gp.needed_expedited.load(Relaxed)).is_reached(seq);
        let now = now_ns();
        self.turn_start_ns.store(now, Relaxed);
        let mut turn = Turn { updater: self, start_ns: now, report_ns: self.stall_after_ns, probing: false };
        match self.engine {
            Engine::Ranks => {
                let before = self.block.heavy_fences();
                // SAFETY: `turn` is held, which every driver of this block takes; `Turn` fences this process, and
                // its threads are the block's readers.
                unsafe { self.block.run_gp(&mut turn, expedited) };
                self.check_fences(before, expedited);
            }
            Engine::Holdout => crate::tasks::holdout::run_gp(self, &mut turn, expedited),
        }
        turn.stop_probing();
        self.last_end_ns.store(now_ns(), Relaxed);
    }

    /// Restrictions 1, 4 and 5, seen from the grace period's side.
    fn check_fences(&self, before: u64, expedited: bool) {
        let recorded = self.block.recorded();
        if !recorded.is_legal() {
            report(&Report::MixedFlavours { domain: self.name.clone(), recorded });
        }
        let seen = self.block.heavy_fences().wrapping_sub(before);
        let wanted = recorded.meets(FlavourSet::FENCELESS) && !self.block.has_reader_fences();
        let least = if expedited { 1 } else { 2 };
        if wanted && seen < least && self.broken.is_none() && self.block.declared().0 != 0 {
            let misuse = if expedited { Misuse::LesserFence } else { Misuse::TooFewFences { seen } };
            report(&Report::Misuse { domain: self.name.clone(), misuse });
        }
    }

    /// True if a grace period is asked for and not done.
    pub(crate) fn has_request(&self) -> bool {
        !Cookie(self.block.head().gp.needed.load(Relaxed)).is_reached(self.block.gp_seq())
    }

    fn stalled_readers(&self, now: u64) -> Vec<StalledReader> {
        let reader = |tid, flavour, nesting, since: u64| StalledReader {
            tid,
            thread: thread::name_of(tid),
            flavour,
            nesting,
            age_ns: now.saturating_sub(since),
        };
        let mut out: Vec<_> = RECORDS
            .lock()
            .iter()
            .filter(|r| r.is_in_use())
            .filter_map(|r| {
                let held = r.held(self.id)?;
                let tid = r.tid.load(Relaxed);
                Some(reader(tid, held.flavour(), held.total(), held.since_ns.load(Relaxed)))
            })
            .collect();
        let down = self.down.lock();
        out.extend(down.values().map(|&(tid, since)| reader(tid, Flavour::UpDown, 1, since)));
        out.sort_by_key(|r| core::cmp::Reverse(r.age_ns));
        out
    }
}

/// Moves a needed number forward to the cookie, never back.
pub(crate) fn raise(needed: &AtomicU64, cookie: Cookie) {
    let mut old = needed.load(Relaxed);
    while !cookie.is_reached(old) {
        match needed.compare_exchange(old, cookie.get(), Relaxed, Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

/// One grace period as its driver sees it.
pub(crate) struct Turn<'a> {
    updater: &'a Updater,
    start_ns: u64,
    /// Age at which the next stall report is due.
    report_ns: u64,
    probing: bool,
}

impl Turn<'_> {
    /// Waits between two polls: first spinning, then asleep, longer if nobody is in a hurry.
    fn wait(&self, waiting: &Waiting) {
        let spins = if waiting.phase == Phase::Scan1 { 1 } else { 2 } + u32::from(waiting.expedited);
        if waiting.polls <= spins {
            let start = now_ns();
            while now_ns() - start < 5_000 {
                core::hint::spin_loop();
            }
        } else if waiting.expedited && waiting.polls <= spins + 200 {
            std::thread::yield_now();
        } else {
            let step_us = if waiting.expedited { 20 } else { 50 * u64::from(waiting.polls.min(20)) };
            std::thread::sleep(Duration::from_micros(step_us));
        }
    }

    fn look_for_stall(&mut self, waiting: &Waiting) {
        let now = now_ns();
        let age_ns = now - self.start_ns;
        if age_ns < self.report_ns {
            return;
        }
        self.report_ns = age_ns * 2;
        let updater = self.updater;
        updater.counts.stalls.fetch_add(1, Relaxed);
        let rank = waiting.rank.index() as usize;
        let block = updater.block;
        let cpus =
            (0..block.copies()).map(|cpu| (cpu, block.readers_of_copy(cpu)[rank])).filter(|(_, n)| *n > 0);
        let seats = 1..=crate::seat::high().min(block.head().seats.load(Relaxed));
        let seats = seats.map(|seat| (seat, block.readers_of_seat(seat)[rank])).filter(|(_, n)| *n > 0);
        report(&Report::Stall(Stall {
            domain: updater.name.clone(),
            gp: block.gp_seq(),
            age_ns,
            readers: match updater.engine {
                Engine::Ranks => block.readers_by_rank()[rank],
                Engine::Holdout => crate::tasks::holdout::readers().len() as i64,
            },
            cpus: cpus.collect(),
            seats: seats.collect(),
            named: match updater.engine {
                Engine::Ranks => updater.stalled_readers(now),
                Engine::Holdout => crate::tasks::holdout::stalled(age_ns),
            },
            is_tracked: updater.checked || updater.engine == Engine::Holdout,
        }));
        if !updater.checked && updater.engine == Engine::Ranks && !self.probing {
            self.probing = true;
            block.start_probing(waiting.rank);
        }
    }

    fn stop_probing(&mut self) {
        if self.probing {
            self.probing = false;
            self.updater.block.stop_probing();
        }
    }
}

impl Env for Turn<'_> {
    fn heavy_fence(&mut self) {
        let mut said = false;
        while !fence::heavy() {
            // No fence, no end: waiting is the only answer that keeps readers safe.
            if !said {
                said = true;
                report(&Report::MembarrierLost { domain: self.updater.name.clone() });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn pause(&mut self, waiting: &Waiting) {
        self.wait(waiting);
        self.look_for_stall(waiting);
    }

    fn seats(&self) -> u32 {
        crate::seat::high()
    }

    fn broken(&self) -> Option<Broken> {
        self.updater.broken
    }
}

impl Block<'_> {
    /// Sends the readers of an unchecked domain to the slow path, to learn who leaves `rank`.
    fn start_probing(self, rank: crate::block::Rank) {
        let head = self.head();
        head.options.fetch_or(CHECKED | (PROBING << rank.index()), Relaxed);
        head.open.iter().for_each(|open| open.store(0, Relaxed));
        head.seats_open.iter().for_each(|open| open.store(CLOSED, Relaxed));
    }

    fn stop_probing(self) {
        let head = self.head();
        head.options.fetch_and(!(CHECKED | PROBING | PROBING << 1), Relaxed);
        Flavour::ALL.into_iter().filter(|f| self.recorded().has(*f)).for_each(|f| self.set_recorded(f));
    }

    /// The rank whose leavers are to be named.
    pub(crate) fn is_probed(self, rank: u32) -> bool {
        self.has_option(PROBING << rank)
    }
}

/// Option, and the next bit for rank 1: the domain is unchecked, but a stall is being looked into.
const PROBING: u32 = 4;
