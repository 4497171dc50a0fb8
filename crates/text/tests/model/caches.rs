//! Caches that show what was forgotten: memory, a data cache, an instruction cache and each thread's pipeline.
//!
//! For:     main.rs.
//! State:   for each word of code, how far its last store has come, and which threads have fetched anew since.
//! Context: test only; one lock.
//! Keeps:   K1 a word is fresh for a thread when, after its store: its line was cleaned (or IDC), a fence, its line was
//!          invalidated (or DIC), a fence, and the thread fetched anew. In another order, or by another thread's
//!          fence, it is stale. This is the weakest machine that the architecture allows.
//! Checked: `each_step_that_is_left_out_is_seen`.
//! Source:  Arm ARM (DDI 0487) B2.7.4.2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use text::arch::aarch64::{CacheType, Maintain, Port};

/// Code is written through another mapping than it is run.
pub const ALIAS: u64 = 0x7000_0000;
/// CTR_EL0 with lines of 64 bytes, neither IDC nor DIC.
pub const LINE: u64 = 0x0004_0004;

/// What the machine does not do although it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    Clean,
    LastClean,
    CleanByTheOtherAddress,
    Invalidate,
    LastInvalidate,
    FirstFence,
    SecondFence,
    FetchFence,
    Broadcast,
    /// Invalidations take effect before the cleans: the order is turned round.
    Order,
}

impl Forget {
    pub const ALL: [Forget; 10] = [
        Forget::Clean,
        Forget::LastClean,
        Forget::CleanByTheOtherAddress,
        Forget::Invalidate,
        Forget::LastInvalidate,
        Forget::FirstFence,
        Forget::SecondFence,
        Forget::FetchFence,
        Forget::Broadcast,
        Forget::Order,
    ];

    /// The step is one that coherent caches do not need.
    pub fn needs_plain_caches(self) -> bool {
        !matches!(self, Forget::FetchFence | Forget::FirstFence | Forget::Broadcast)
    }

    /// A thread that comes by a trap has fetched anew, and needs no broadcast.
    pub fn matters_to_slots(self) -> bool {
        !matches!(self, Forget::FetchFence | Forget::Broadcast)
    }
}

/// How far a store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Stored,
    Cleaning,
    Clean,
    Invalidating,
    Fetchable,
}

#[derive(Clone, Debug)]
struct Word {
    value: u32,
    stage: Stage,
    /// Threads that have fetched anew since the word became fetchable.
    fresh: Vec<bool>,
}

#[derive(Debug, Default)]
struct State {
    words: BTreeMap<u64, Word>,
    cleaned: Vec<u64>,
    invalidated: Vec<u64>,
    fences: (u64, u64),
    stale: Vec<String>,
    /// The thread that does what is told.
    thread: usize,
}

/// The machine.
#[derive(Debug)]
pub struct Caches {
    cache: CacheType,
    threads: usize,
    forget: Option<Forget>,
    state: Mutex<State>,
}

impl Caches {
    pub fn new(cache: CacheType, threads: usize, forget: Option<Forget>) -> Caches {
        Caches { cache, threads, forget, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn forgets(&self, what: Forget) -> bool {
        self.forget == Some(what)
    }

    /// From now on it is this thread that writes, cleans and fences.
    pub fn works_for(&self, thread: usize) {
        self.state().thread = thread;
    }

    /// The return from a trap lets the thread fetch anew.
    pub fn comes_by_trap(&self, thread: usize) {
        fetch_anew(&mut self.state(), thread);
    }

    /// The thread runs the words at `run_at`, which should be these.
    pub fn run_by(&self, thread: usize, run_at: u64, words: &[u32]) {
        let mut state = self.state();
        for (at, expected) in (run_at..).step_by(4).zip(words) {
            let Some(word) = state.words.get(&at) else {
                state.stale.push(format!("{at:#x} by thread {thread}: nothing was written"));
                continue;
            };
            let what = match word {
                Word { value, .. } if value != expected => "other words",
                Word { stage, .. } if *stage < Stage::Fetchable => "caches",
                Word { fresh, .. } if !fresh[thread] => "pipeline",
                _ => continue,
            };
            let complaint = format!("{at:#x} by thread {thread}: {what}, {word:?}");
            state.stale.push(complaint);
        }
    }

    /// What was run stale.
    pub fn stale(&self) -> Vec<String> {
        self.state().stale.clone()
    }

    /// Lines that were cleaned and invalidated, sorted; each is told once.
    pub fn touched(&self) -> (Vec<u64>, Vec<u64>) {
        let state = self.state();
        let sorted = |lines: &Vec<u64>| {
            let set: BTreeSet<_> = lines.iter().copied().collect();
            assert_eq!(set.len(), lines.len(), "a line was told twice");
            set.into_iter().collect()
        };
        (sorted(&state.cleaned), sorted(&state.invalidated))
    }

    /// How many fences there were of data and of fetch.
    pub fn fences(&self) -> (u64, u64) {
        self.state().fences
    }

    /// The words of one line, by the address under which `line` names them.
    fn step(&self, state: &mut State, line: u64, len: u64, from: &[Stage], to: Stage) {
        let start = line & !(len - 1);
        for (_, word) in state.words.range_mut(start..start + len) {
            if from.contains(&word.stage) {
                word.stage = to;
            }
        }
    }
}

fn fetch_anew(state: &mut State, thread: usize) {
    for word in state.words.values_mut().filter(|word| word.stage == Stage::Fetchable) {
        word.fresh[thread] = true;
    }
}

impl Maintain for Caches {
    fn clean_line(&self, addr: u64) {
        let mut state = self.state();
        state.cleaned.push(addr);
        let len = self.cache.data_line_bytes();
        let is_last = !state.words.range(addr - ALIAS + len..).any(|(_, word)| word.stage == Stage::Stored);
        if self.forgets(Forget::Clean) || self.forgets(Forget::LastClean) && is_last {
            return;
        }
        let run_at = if self.forgets(Forget::CleanByTheOtherAddress) { addr } else { addr - ALIAS };
        self.step(&mut state, run_at, len, &[Stage::Stored], Stage::Cleaning);
    }

    fn invalidate_line(&self, addr: u64) {
        let mut state = self.state();
        state.invalidated.push(addr);
        let len = self.cache.fetch_line_bytes();
        let is_last = !state.words.range(addr + len..).any(|(_, word)| word.stage == Stage::Clean);
        if self.forgets(Forget::Invalidate) || self.forgets(Forget::LastInvalidate) && is_last {
            return;
        }
        if self.forgets(Forget::Order) {
            // It came before the clean, so that the line was fetched again from what was there before.
            return;
        }
        self.step(&mut state, addr, len, &[Stage::Clean], Stage::Invalidating);
    }

    fn fence_data(&self) {
        let mut state = self.state();
        state.fences.0 += 1;
        // Only the first fence of a publication completes cleans, only the second completes invalidations.
        let (first, second) = (self.forgets(Forget::FirstFence), self.forgets(Forget::SecondFence));
        let (idc, dic) = (self.cache.is_data_coherent(), self.cache.is_fetch_coherent());
        for word in state.words.values_mut() {
            word.stage = match word.stage {
                Stage::Stored if idc && !first => Stage::Clean,
                Stage::Cleaning if !first => Stage::Clean,
                Stage::Invalidating if !second => Stage::Fetchable,
                stage => stage,
            };
            if dic && word.stage == Stage::Clean {
                word.stage = Stage::Fetchable;
            }
        }
    }

    fn fence_fetch(&self) {
        let mut state = self.state();
        state.fences.1 += 1;
        if !self.forgets(Forget::FetchFence) {
            let thread = state.thread;
            fetch_anew(&mut state, thread);
        }
    }

    fn serialise_all(&self) {
        let mut state = self.state();
        if !self.forgets(Forget::Broadcast) {
            let own = state.thread;
            // The caller's own pipeline is its own fence's affair.
            (0..self.threads)
                .filter(|thread| *thread != own)
                .for_each(|thread| fetch_anew(&mut state, thread));
        }
    }
}

impl Port for Caches {
    fn holds(&self, run_at: u64, words: &[u32]) -> bool {
        let state = self.state();
        let at = (run_at..).step_by(4);
        at.zip(words).all(|(at, word)| state.words.get(&at).is_some_and(|held| held.value == *word))
    }

    fn write(&self, run_at: u64, words: &[u32]) -> u64 {
        let mut state = self.state();
        for (at, value) in (run_at..).step_by(4).zip(words) {
            let fresh = vec![false; self.threads];
            state.words.insert(at, Word { value: *value, stage: Stage::Stored, fresh });
        }
        run_at + ALIAS
    }
}
