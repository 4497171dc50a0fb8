//! Callbacks after a grace period.
//!
//! For:     `Domain::call`, `barrier`, `start_poll`.
//! State:   lists of the updater.
//! Context: target. `call` allocates a node; `call_raw` does not. Callbacks run on the worker.
//! Keeps:   A1 each callback runs once, after a grace period that began after its call.
//!          A2 callbacks of one list run in order, one at a time.
//!          A3 `barrier` returns after every callback called before it; it waits for no reader as such.
//! Checked: `tests/callbacks.rs`, model `callbacks`, `torture rcu`.
//! Source:  kernel `__call_srcu`, `srcu_barrier` (v7.0). Departs: one list until it is contended, then
//!          one per CPU and no tree, since the worker looks at all of them anyway.

use crate::cblist::Head;
use crate::gp::Broken;
use crate::prim::{self, Acquire, AtomicU32, Relaxed};
use crate::report::{Report, report};
use crate::seq::STEP;
use crate::updater::{Updater, raise};
use crate::{Cookie, Domain, Misuse};
use core::ptr::NonNull;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Failed tries to take the one list before each CPU gets its own; as in the kernel.
const CONTENDED: u32 = 100;

/// Callbacks on one list that do not wait for more to share their grace period. Some megabytes.
const LONG: usize = 1 << 16;

/// A boxed closure behind its node.
#[repr(C)]
struct Boxed<F> {
    head: Head,
    run: F,
}

unsafe fn run_boxed<F: FnOnce()>(node: NonNull<Head>) {
    // SAFETY: `call` made the box, with the node first, and gave it up to this call alone.
    let boxed = unsafe { Box::from_raw(node.cast::<Boxed<F>>().as_ptr()) };
    (boxed.run)();
}

/// One barrier's node on one list.
#[repr(C)]
struct BarrierNode {
    head: Head,
    left: Arc<AtomicU32>,
    updater: Arc<Updater>,
}

unsafe fn run_barrier(node: NonNull<Head>) {
    // SAFETY: `barrier` made the box, with the node first, and gave it up to this call alone.
    let node = unsafe { Box::from_raw(node.cast::<BarrierNode>().as_ptr()) };
    // The barrier returns a little later: when the list no longer counts what has run, so that
    // closing the domain after a barrier finds it idle.
    node.updater.passed.lock().push(node.left.clone());
    node.updater.has_passed.store(1, Relaxed);
}

impl Domain {
    /// Runs `f` on the domain's worker, after every reader that is inside now has left.
    ///
    /// ```
    /// let domain = rcu::Domain::new("example");
    /// let old = Box::new([0u8; 64]);
    /// domain.call(move || drop(old));
    /// domain.barrier();
    /// ```
    ///
    /// # Context
    /// Target thread, also inside readers. Allocates. `f` must be short: the next callback waits for it.
    /// # Cost
    /// Unless somebody waits, the grace period starts [`Builder::call_delay`](crate::Builder::call_delay)
    /// later, so that all calls until then share it: `bench synchronize`, row `unregister+call`.
    pub fn call(&self, f: impl FnOnce() + Send + 'static) {
        let boxed = Box::new(Boxed { head: Head::new(), run: f });
        self.call_boxed(boxed);
    }

    fn call_boxed<F: FnOnce() + Send + 'static>(&self, boxed: Box<Boxed<F>>) {
        let node = NonNull::from(Box::leak(boxed)).cast::<Head>();
        // SAFETY: the node is the first field of a leaked box that `run_boxed` takes back.
        unsafe { self.call_raw(node, run_boxed::<F>) };
    }

    /// Runs `func` with the node on the domain's worker, after a grace period. Does not allocate.
    ///
    /// A node that is queued already is refused with a report, and runs once.
    ///
    /// # Safety
    /// `node` must be valid and left alone until `func` runs with it, and `func` must be callable
    /// with it from another thread.
    pub unsafe fn call_raw(&self, node: NonNull<Head>, func: unsafe fn(NonNull<Head>)) {
        let updater = &self.updater;
        // SAFETY: the node is valid (the caller's promise).
        if unsafe { node.as_ref() }.is_queued() {
            let misuse = Misuse::QueuedTwice;
            return report(&Report::Misuse { domain: updater.name.clone(), misuse });
        }
        let n = updater.counts.called.fetch_add(1, Relaxed);
        if updater.broken == Some(Broken::LostCallback) && n % 1000 == 999 {
            return;
        }
        let (cookie, is_long) = {
            let mut list = updater.list();
            // The cookie first, then the sequence (see `CbList::push`).
            let cookie = self.block.snap();
            let seq = self.block.gp_seq();
            // SAFETY: the caller's duties are the same.
            unsafe { list.push(node, func, cookie, seq) };
            (cookie, list.len() >= LONG)
        };
        updater.request(cookie, false);
        if is_long { updater.hurry(cookie) } else { updater.tell_worker() }
    }

    /// Returns after every callback that was called before has run.
    ///
    /// It starts no grace period of its own and returns at once if there is no callback.
    ///
    /// # Panics
    /// If called by a callback of this domain.
    pub fn barrier(&self) {
        let updater = &self.updater;
        if updater.worker_tid.load(Relaxed) == sys::gettid() {
            panic!("{}", Misuse::BarrierInCallback);
        }
        if updater.broken == Some(Broken::ForgottenBarrier) {
            return;
        }
        prim::full();
        let wanted = Cookie::snap(updater.barrier_seq.load(Relaxed));
        let _turn = updater.barrier.lock();
        // Somebody else's barrier that began after this call covers it.
        if wanted.is_reached(updater.barrier_seq.load(Relaxed)) {
            return;
        }
        updater.barrier_seq.fetch_add(1, Relaxed);
        prim::full();
        updater.wait_for_callbacks();
        prim::full();
        updater.barrier_seq.fetch_add(STEP - 1, Relaxed);
    }

    /// Makes sure that callbacks called so far do not wait for laziness.
    pub fn expedite_current(&self) {
        self.start_poll_expedited();
    }
}

impl Updater {
    /// The list that a callback of this thread goes to, locked.
    fn list(&self) -> crate::lock::Locked<'_, crate::CbList> {
        if self.spread.load(Relaxed) == 0 {
            if let Some(list) = self.lists[0].try_lock() {
                return list;
            }
            if self.contended.fetch_add(1, Relaxed) >= CONTENDED {
                self.spread.store(1, Relaxed);
            }
            return self.lists[0].lock();
        }
        self.lists[percpu::current_cpu() as usize % self.lists.len()].lock()
    }

    fn wait_for_callbacks(self: &Arc<Self>) {
        let left = Arc::new(AtomicU32::new(1));
        for list in &self.lists {
            let node = Box::new(BarrierNode { head: Head::new(), left: left.clone(), updater: self.clone() });
            let node = NonNull::from(Box::leak(node)).cast::<Head>();
            left.fetch_add(1, Relaxed);
            self.counts.called.fetch_add(1, Relaxed);
            let mut list = list.lock();
            // SAFETY: the node is the first field of a leaked box that `run_barrier` takes back.
            let queued = unsafe { list.entrain(node, run_barrier) };
            // Somebody waits now: the grace period that these callbacks need is not put off.
            if let Some(cookie) = list.needed() {
                raise(&self.needed_soon, cookie);
            }
            drop(list);
            if !queued {
                left.fetch_sub(1, Relaxed);
                self.counts.called.fetch_sub(1, Relaxed);
                // SAFETY: the list did not take the node, so the box is still ours.
                drop(unsafe { Box::from_raw(node.cast::<BarrierNode>().as_ptr()) });
            }
        }
        // [RCU-13] Acquires what the callbacks did. Pairs with [RCU-12].
        let mut now = left.fetch_sub(1, Acquire) - 1;
        if now != 0 {
            self.kick_worker();
        }
        while now != 0 {
            let _ = sys::futex_wait(&left, now, None);
            // [RCU-14] As [RCU-13]. Pairs with [RCU-12].
            now = left.load(Acquire);
        }
    }
}

/// For tests of the kernel's size transition: which lists callbacks go to now.
impl Domain {
    /// True once callbacks are spread over one list per CPU.
    pub fn has_per_cpu_lists(&self) -> bool {
        self.updater.spread.load(Relaxed) != 0
    }

    /// Moves callbacks to one list per CPU from now on; what is queued stays where it is.
    pub fn spread_lists(&self) {
        self.updater.spread.store(1, Relaxed);
    }

    /// Callbacks that wait, for reports.
    pub fn callbacks_by_list(&self) -> Vec<usize> {
        self.updater.lists.iter().map(|list| list.lock().len()).collect()
    }
}
