//! Domains in the child of a fork.
//!
//! For:     programs that fork; nobody calls this.
//! State:   a list of the domains of this process.
//! Context: the three handlers run in the forking thread.
//! Keeps:   X1 in the child no domain waits for a thread that exists only in the parent.
//!          X2 locks are free in the child, callbacks that waited still wait, a new worker runs them.
//!          X3 a reader that the forking thread is in goes on in the child: on checked domains. On others
//!             fork inside a reader is against the rules.
//! Checked: `tests/fork.rs`.

use crate::lock::Lock;
use crate::prim::Relaxed;
use crate::thread::{self, RECORDS};
use crate::updater::Updater;
use std::sync::{Arc, Once, Weak};
use std::vec::Vec;

static DOMAINS: Lock<Vec<Weak<Updater>>> = Lock::new(Vec::new());

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> i32;
}

pub(crate) fn register(updater: &Arc<Updater>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        if cfg!(miri) {
            return;
        }
        // SAFETY: the three functions fit the prototype and stay in the program.
        unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
    let mut domains = DOMAINS.lock();
    domains.retain(|d| d.strong_count() > 0);
    domains.push(Arc::downgrade(updater));
}

pub(crate) fn unregister(updater: &Arc<Updater>) {
    DOMAINS.lock().retain(|d| !core::ptr::eq(d.as_ptr(), Arc::as_ptr(updater)));
}

/// Every domain, without taking the lock that `prepare` holds.
fn all() -> impl Iterator<Item = Arc<Updater>> {
    // SAFETY: called between `prepare` and its counterpart, in the thread that holds the lock.
    let domains = unsafe { DOMAINS.peek() };
    domains.iter().filter_map(Weak::upgrade)
}

/// Takes every short lock, so that no list is half changed in the child. Turns are left alone: their
/// holder may wait for a reader that this very thread is in, and a turn can be taken up anywhere.
unsafe extern "C" fn prepare() {
    DOMAINS.raw_lock();
    for updater in all() {
        updater.worker.raw_lock();
        updater.lists.iter().for_each(|list| list.raw_lock());
        updater.down.raw_lock();
    }
    RECORDS.raw_lock();
}

unsafe extern "C" fn parent() {
    RECORDS.raw_unlock();
    for updater in all() {
        updater.down.raw_unlock();
        updater.lists.iter().for_each(|list| list.raw_unlock());
        updater.worker.raw_unlock();
    }
    DOMAINS.raw_unlock();
}

unsafe extern "C" fn child() {
    RECORDS.reset();
    let mine = thread::mine_if_any();
    for record in RECORDS.lock().iter() {
        match mine {
            Some(mine) if core::ptr::eq(mine, *record) => record.tid.store(sys::gettid(), Relaxed),
            _ => record.forget(),
        }
    }
    crate::seat::after_fork();
    for updater in all() {
        updater.after_fork();
    }
    DOMAINS.reset();
}

impl Updater {
    fn after_fork(&self) {
        self.down.reset();
        self.down.lock().clear();
        self.lists.iter().for_each(|list| list.reset());
        // What the parent's worker had taken runs in the parent alone.
        self.lists.iter().for_each(|list| list.lock().ran(usize::MAX));
        self.passed.reset();
        self.passed.lock().clear();
        self.worker.reset();
        core::mem::forget(self.worker.lock().take());
        self.worker_tid.store(0, Relaxed);
        self.asleep.store(0, Relaxed);
        self.turn.reset();
        self.barrier.reset();
        let barrier = self.barrier_seq.load(Relaxed);
        self.barrier_seq.store(crate::seq::ended(barrier), Relaxed);
        crate::fence::register();
        // SAFETY: `register` has registered this process for the fence.
        unsafe { self.block.set_owner(sys::getpid()) };
        // SAFETY: this thread is the only one of the process, and it is in no operation of the block.
        unsafe { self.block.forget_readers() };
        let Some(held) = thread::mine_if_any().and_then(|record| record.held(self.id)) else { return };
        for rank in [0, 1] {
            for _ in 0..held.nesting[rank as usize].load(Relaxed) {
                self.block.add_anyhow(held.flavour(), crate::Rank::from_index(rank), true);
            }
        }
    }
}
