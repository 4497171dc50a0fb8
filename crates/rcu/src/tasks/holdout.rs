//! Tasks-trace readers that a grace period finds by looking at every thread.
//!
//! For:     see `tasks`.
//! State:   `Record::word` (low half: nesting; top bit: please say when you are quiet) and `quiet`.
//! Context: readers: target, signal once the thread has a record. Grace periods: target, block.
//! Keeps:   Z3 a thread that was inside when the grace period began is waited for until it was outside
//!          once, however soon it enters again.
//! Checked: `tests/tasks.rs`, `torture rcu --flavour tasks-holdout`. No model yet.
//! Source:  kernel `kernel/rcu/tasks.h` (6.2). Departs: a membarrier in the place of inter-processor
//!          interrupts, and the request sits in the count's own top bit, so that leaving tests one flag.

use crate::gp::Waiting;
use crate::prim::{self, Relaxed};
use crate::report::{Report, StalledReader, report};
use crate::seq::{self, Phase};
use crate::thread::{self, RECORDS, Record};
use crate::updater::{Engine, Turn, Updater};
use crate::{Domain, Fences, Flavour, FlavourSet, Misuse, Rank};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;
use std::string::ToString;
use std::sync::OnceLock;
use std::vec::Vec;

/// The request bit of a record's word: the sign bit, so that a subtraction tests it.
const ASKED: u64 = 1 << 63;

std::thread_local! {
    /// The thread's record, if its readers may go without a fence of their own.
    static FAST: Cell<*const Record> = const { Cell::new(ptr::null()) };
}

/// The domain of these readers, for `synchronize`, `call`, `barrier` and polling.
///
/// # Panics
/// If there is no memory for it.
pub fn domain() -> &'static Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    DOMAIN.get_or_init(|| {
        let mut builder = Domain::builder("tasks-holdout").flavours(FlavourSet(Flavour::Tasks.bit()));
        builder.engine = Engine::Holdout;
        builder.build().unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Enters a reader on the calling thread; [`unlock`] ends it.
#[inline(always)]
pub fn lock() {
    // SAFETY: not null means a record, and those are leaked.
    match unsafe { FAST.get().as_ref() } {
        Some(record) => {
            record.word.store(record.word.load(Relaxed) + 1, Relaxed);
            // [RCU-17] Orders the count above before the section. Pairs with [RCU-19].
            prim::light();
        }
        None => lock_slow(),
    }
}

/// Leaves the innermost reader of the calling thread.
#[inline(always)]
pub fn unlock() {
    // SAFETY: not null means a record, and those are leaked.
    match unsafe { FAST.get().as_ref() } {
        Some(record) => {
            // [RCU-18] Orders the section before the count below. Pairs with [RCU-20].
            prim::light();
            let word = record.word.load(Relaxed).wrapping_sub(1);
            record.word.store(word, Relaxed);
            if (word as i64) < 0 {
                answer(record, word);
            }
        }
        None => unlock_slow(),
    }
}

/// A section of the calling thread.
#[must_use = "the section ends when the guard is dropped"]
pub struct Guard(PhantomData<*const ()>);

/// Enters a reader that ends with the guard.
///
/// ```
/// let _outer = rcu::tasks::holdout::read();
/// let _inner = rcu::tasks::holdout::read(); // nests without a word
/// ```
#[inline(always)]
pub fn read() -> Guard {
    lock();
    Guard(PhantomData)
}

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        unlock();
    }
}

#[cold]
fn lock_slow() {
    let record = thread::mine();
    let reader_fences = domain().fences() != Fences::Membarrier;
    record.word.store(record.word.load(Relaxed) + 1, Relaxed);
    // A full fence: this may be the first reader of all, or one that must fence itself.
    prim::full();
    if !reader_fences {
        FAST.set(record);
    }
}

#[cold]
fn unlock_slow() {
    prim::full();
    let Some(record) = thread::mine_if_any() else {
        return unbalanced();
    };
    let word = record.word.load(Relaxed).wrapping_sub(1);
    record.word.store(word, Relaxed);
    if (word as i64) < 0 {
        answer(record, word);
    }
}

/// A grace period asked, or the count went below zero.
#[cold]
fn answer(record: &Record, word: u64) {
    let nesting = word as u32;
    if nesting == u32::MAX {
        record.word.store(0, Relaxed);
        return unbalanced();
    }
    if nesting == 0 {
        // Outside, and the count that says so is already stored.
        record.word.fetch_and(!ASKED, Relaxed);
        record.quiet.store(1, Relaxed);
    }
}

#[cold]
fn unbalanced() {
    let misuse = Misuse::Unbalanced { flavour: Flavour::Tasks };
    report(&Report::Misuse { domain: "tasks-holdout".to_string(), misuse });
}

/// The thread ends: its record may go to another.
pub(crate) fn forget_fast() {
    let _ = FAST.try_with(|fast| fast.set(ptr::null()));
}

/// Records of threads that are inside.
pub(crate) fn readers() -> Vec<&'static Record> {
    RECORDS.lock().iter().copied().filter(|r| r.word.load(Relaxed) as u32 != 0).collect()
}

pub(crate) fn stalled(age_ns: u64) -> Vec<StalledReader> {
    let named = |record: &&Record| {
        let tid = record.tid.load(Relaxed);
        let nesting = record.word.load(Relaxed) as u32;
        StalledReader { tid, thread: thread::name_of(tid), flavour: Flavour::Tasks, nesting, age_ns }
    };
    readers().iter().map(named).collect()
}

/// One grace period.
pub(crate) fn run_gp(updater: &Updater, turn: &mut Turn<'_>, expedited: bool) {
    let gp = &updater.block.head().gp;
    let started = seq::counter(gp.seq.load(Relaxed)).wrapping_add(1);
    gp.seq.store(started, Relaxed);
    // [RCU-19] Whoever is not seen inside after this fence enters after it, and sees what was
    // published before. Pairs with [RCU-17].
    fence(updater, turn);
    let mut holdouts = readers();
    for record in &holdouts {
        record.quiet.store(0, Relaxed);
        // The sign is cleared before it is asked for.
        prim::full();
        record.word.fetch_or(ASKED, Relaxed);
    }
    let mut polls = 0;
    loop {
        holdouts.retain(|record| !is_quiet(record));
        if holdouts.is_empty() || updater.broken == Some(crate::Broken::NoWait) {
            break;
        }
        polls += 1;
        let waiting = Waiting { rank: Rank::from_index(0), phase: Phase::Scan1, polls, expedited };
        crate::gp::Env::pause(turn, &waiting);
    }
    // [RCU-20] What the readers seen outside have read, they read before this. Pairs with [RCU-18].
    fence(updater, turn);
    gp.periods.fetch_add(1, Relaxed);
    // [RCU-21] Publishes the end. Pairs with [RCU-7].
    gp.seq.store(seq::ended(started), prim::Release);
}

fn is_quiet(record: &Record) -> bool {
    if record.word.load(Relaxed) as u32 == 0 || record.quiet.load(Relaxed) != 0 {
        return true;
    }
    // The owner's plain add can overwrite the request: ask again.
    record.word.fetch_or(ASKED, Relaxed);
    false
}

fn fence(updater: &Updater, turn: &mut Turn<'_>) {
    if updater.fences == Fences::Membarrier {
        updater.block.head().gp.heavy_fences.fetch_add(1, Relaxed);
        crate::gp::Env::heavy_fence(turn);
    } else {
        prim::full();
    }
}
