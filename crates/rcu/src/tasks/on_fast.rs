//! Tasks-trace readers on top of a fast domain.
//!
//! For:     see `tasks`.
//! State:   `Record::section`: the nesting, and in its low bits the outermost reader's rank. One word,
//!          because each store is a cycle: `bench refscale`, row `tasks-fast`.
//! Context: readers: target, signal once the thread has a record. Grace periods: target, block.
//! Keeps:   Z4 a signal handler that enters at any instant is protected, and leaves the interrupted
//!          reader's rank as it was.
//! Checked: `tests/tasks.rs`, `torture rcu --flavour tasks-fast`.
//! Source:  kernel `rcupdate_trace.h` (v7.0). Departs: the reader is entered before the nesting is
//!          counted. The kernel does the reverse, and a handler in between is protected by being in
//!          the kernel's other RCU; there is no such thing here.

use crate::block::{Block, RANK_STRIDE};
use crate::prim::{self, Relaxed};
use crate::report::{Report, report};
use crate::thread::{self, Record};
use crate::{Domain, Flavour, Misuse, Rank, Tasks};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use std::string::ToString;
use std::sync::OnceLock;

/// One level of nesting in the word; below it lies the rank.
const LEVEL: u32 = 2 * RANK_STRIDE;

/// The nesting in a record's word.
pub(crate) fn nesting(record: &Record) -> u32 {
    record.section.load(Relaxed) / LEVEL
}

/// What a thread needs in one place.
#[derive(Clone, Copy)]
struct Mine {
    record: *const Record,
    block: *const u8,
}

std::thread_local! {
    static MINE: Cell<Mine> = const { Cell::new(Mine { record: ptr::null(), block: ptr::null() }) };
}

/// The domain of these readers, for `synchronize`, `call`, `barrier` and polling.
///
/// # Panics
/// If there is no memory for it.
pub fn domain() -> &'static Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    DOMAIN.get_or_init(|| {
        let builder = Domain::builder("tasks-fast").flavour(Flavour::Tasks).checked(false);
        builder.build().unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Enters a reader on the calling thread; [`unlock`] ends it.
#[inline(always)]
pub fn lock() {
    let mine = MINE.get();
    // SAFETY: not null means a record, and those are leaked.
    let Some(record) = (unsafe { mine.record.as_ref() }) else { return lock_slow() };
    // SAFETY: set together with the record, to the block of a domain that is never dropped.
    let block = unsafe { block_at(mine.block) };
    enter(record, block);
}

/// Leaves the innermost reader of the calling thread.
///
/// ```compile_fail,E0133
/// let _guard = rcu::tasks::on_fast::read();
/// rcu::tasks::on_fast::unlock(); // not without `unsafe`: it would end the guard's section
/// ```
///
/// # Safety
/// The calling thread must have called [`lock`] once more than this function, not counting its guards, and use
/// nothing of that section afterwards.
#[inline(always)]
pub unsafe fn unlock() {
    let mine = MINE.get();
    // SAFETY: not null means a record, and those are leaked.
    let Some(record) = (unsafe { mine.record.as_ref() }) else { return unlock_slow() };
    // SAFETY: set together with the record, to the block of a domain that is never dropped.
    let block = unsafe { block_at(mine.block) };
    leave(record, block);
}

#[inline(always)]
fn leave(record: &Record, block: Block<'static>) {
    let section = record.section.load(Relaxed);
    if section >= 2 * LEVEL {
        return record.section.store(section - LEVEL, Relaxed);
    }
    if section < LEVEL {
        return unbalanced();
    }
    // The section ends in the word before it does in the counters: a handler in between enters and
    // leaves as an outermost reader of its own.
    prim::light();
    record.section.store(0, Relaxed);
    prim::light();
    // SAFETY: `enter` locked this block and noted the rank in the word, which was cleared above: it is left once.
    unsafe { block.unlock::<Tasks>(Rank(section & RANK_STRIDE)) };
}

#[inline(always)]
fn enter(record: &Record, block: Block<'static>) {
    let section = record.section.load(Relaxed);
    if section >= LEVEL {
        return record.section.store(section + LEVEL, Relaxed);
    }
    let rank = match block.lock::<Tasks>() {
        Ok(rank) => rank,
        // The domain is declared for this flavour, so no rule can be broken.
        Err(_) => return unbalanced(),
    };
    // A handler before this store is an outermost reader, and leaves the word at zero again.
    prim::light();
    record.section.store(LEVEL | rank.0, Relaxed);
}

/// # Safety
/// `base` must be the address of a block that lives for ever.
#[inline(always)]
unsafe fn block_at(base: *const u8) -> Block<'static> {
    // SAFETY: not null (the caller's promise).
    let base = unsafe { NonNull::new_unchecked(base.cast_mut()) };
    Block::known(base)
}

#[cold]
fn lock_slow() {
    let record: &Record = thread::mine();
    let block = domain().block;
    if !thread::is_ending() {
        MINE.set(Mine { record, block: block.as_ptr().as_ptr() });
    }
    enter(record, block);
}

#[cold]
fn unlock_slow() {
    match thread::mine_if_any() {
        Some(record) => leave(record, domain().block),
        None => unbalanced(),
    }
    thread::give_back_at_the_end();
}

#[cold]
fn unbalanced() {
    let misuse = Misuse::Unbalanced { flavour: Flavour::Tasks };
    report(&Report::Misuse { domain: "tasks-fast".to_string(), misuse });
}

/// The thread ends: its record may go to another.
pub(crate) fn forget_fast() {
    let _ = MINE.try_with(|mine| mine.set(Mine { record: ptr::null(), block: ptr::null() }));
}

/// A section of the calling thread, which it does not leave:
///
/// ```compile_fail,E0277
/// let guard = rcu::tasks::on_fast::read();
/// std::thread::spawn(move || drop(guard));
/// ```
#[must_use = "the section ends when the guard is dropped"]
pub struct Guard(PhantomData<*const ()>);

/// Enters a reader that ends with the guard.
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
