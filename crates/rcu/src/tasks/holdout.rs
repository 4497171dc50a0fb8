//! Tasks-trace readers that a grace period finds by looking at every thread.
//!
//! For:     see `tasks`.
//! State:   each thread's `Record::word`; the algorithm is in `task_word`.
//! Context: readers: target, signal once the thread has a record. Grace periods: target, block.
//! Keeps:   Z3 and Z5 of `task_word`, over the threads that have a record.
//! Checked: `tests/tasks.rs`, `torture rcu --flavour tasks-holdout`; the core by model `task_words`.
//! Source:  see `task_word`.

use crate::prim::{self, Relaxed};
use crate::report::{Report, StalledReader, report};
use crate::seq;
use crate::task_word::{self, TaskWord};
use crate::thread::{self, RECORDS, Record};
use crate::updater::{Engine, Turn, Updater};
use crate::{Domain, Fences, Flavour, FlavourSet, Misuse};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;
use std::string::ToString;
use std::sync::OnceLock;
use std::vec::Vec;

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
        Some(record) => record.word.enter(),
        None => lock_slow(),
    }
}

/// Leaves the innermost reader of the calling thread.
///
/// ```compile_fail,E0133
/// let _guard = rcu::tasks::holdout::read();
/// rcu::tasks::holdout::unlock(); // not without `unsafe`: it would end the guard's section
/// ```
///
/// # Safety
/// The calling thread must have called [`lock`] once more than this function, not counting its guards, and use
/// nothing of that section afterwards.
#[inline(always)]
pub unsafe fn unlock() {
    // SAFETY: not null means a record, and those are leaked.
    match unsafe { FAST.get().as_ref() } {
        Some(record) => {
            if !record.word.leave() {
                unbalanced();
            }
        }
        None => unlock_slow(),
    }
}

/// A section of the calling thread, which it does not leave:
///
/// ```compile_fail,E0277
/// let guard = rcu::tasks::holdout::read();
/// std::thread::spawn(move || drop(guard));
/// ```
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
        // SAFETY: `read` locked, on this thread, which the guard cannot leave, and the guard ends once.
        unsafe { unlock() };
    }
}

#[cold]
fn lock_slow() {
    let record = thread::mine();
    let reader_fences = domain().fences() != Fences::Membarrier;
    record.word.count_in();
    // A full fence: this may be the first reader of all, or one that must fence itself.
    prim::full();
    if !reader_fences && !thread::is_ending() {
        FAST.set(record);
    }
}

#[cold]
fn unlock_slow() {
    prim::full();
    if !thread::mine_if_any().is_some_and(|record| record.word.leave()) {
        unbalanced();
    }
    thread::give_back_at_the_end();
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
    RECORDS.lock().iter().copied().filter(|r| r.word.nesting() != 0).collect()
}

pub(crate) fn stalled(age_ns: u64) -> Vec<StalledReader> {
    let named = |record: &&Record| {
        let tid = record.tid.load(Relaxed);
        let nesting = record.word.nesting();
        StalledReader { tid, thread: thread::name_of(tid), flavour: Flavour::Tasks, nesting, age_ns }
    };
    readers().iter().map(named).collect()
}

/// One grace period.
pub(crate) fn run_gp(updater: &Updater, turn: &mut Turn<'_>, expedited: bool) {
    let gp = &updater.block.head().gp;
    let started = seq::counter(gp.seq.load(Relaxed)).wrapping_add(1);
    gp.seq.store(started, Relaxed);
    let heavy = updater.fences == Fences::Membarrier;
    if heavy {
        gp.heavy_fences.fetch_add(2, Relaxed);
    }
    task_word::wait_for_all(words, turn, heavy, expedited);
    gp.periods.fetch_add(1, Relaxed);
    // [RCU-21] Publishes the end. Pairs with [RCU-7].
    gp.seq.store(seq::ended(started), prim::Release);
}

/// The words of all threads that have a record.
fn words() -> Vec<&'static TaskWord> {
    RECORDS.lock().iter().map(|record| &record.word).collect()
}
