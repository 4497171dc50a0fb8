//! The thread that drives grace periods for callbacks and polls, and runs callbacks.
//!
//! For:     `Domain::call`, `barrier`, `start_poll`.
//! State:   one thread per domain, started by the first request; `kick`, `asleep`, `needed_soon`.
//! Context: target; the worker's own thread.
//! Keeps:   W1 a request is never slept over: at the latest `call_delay` later its grace period starts.
//!          W2 a barrier, a poll and a long list do not wait for that delay.
//! Checked: `tests/callbacks.rs`, `torture rcu` (barrier, flood), `bench synchronize`.
//! Source:  kernel `srcu_get_delay`, `process_srcu` (v7.0): one tick between two grace periods that
//!          nobody hurries. Departs: the delay stands before the first one too.

use crate::Cookie;
use crate::prim::{self, Relaxed, Release};
use crate::report::{Report, report};
use crate::thread::now_ns;
use crate::updater::{Updater, raise};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::ToString;
use std::sync::Arc;

/// What the worker does: it looks for work by itself before it sleeps.
const AWAKE: u32 = 0;
/// It sleeps until it is woken.
const ASLEEP: u32 = 1;
/// It lets callbacks gather and will look again by itself.
const DOZING: u32 = 2;

impl Updater {
    /// Makes the worker drive the grace period of `cookie` without delay.
    pub(crate) fn hurry(self: &Arc<Self>, cookie: Cookie) {
        raise(&self.needed_soon, cookie);
        self.kick_worker();
    }

    /// Makes the worker look for work at once, starting it if there is none.
    pub(crate) fn kick_worker(self: &Arc<Self>) {
        self.kick.fetch_add(1, Relaxed);
        // [RCU-15] Orders the kick before the look at the sleeper, which does the reverse: one of
        // the two sees the other. Pairs with [RCU-16].
        prim::full();
        if self.asleep.load(Relaxed) != AWAKE {
            let _ = sys::futex_wake(&self.kick, 1);
        }
        self.need_worker();
    }

    /// Makes sure that the worker will see a request, if not at once.
    pub(crate) fn tell_worker(self: &Arc<Self>) {
        // [RCU-22] Orders the request before the look at the sleeper, which does the reverse.
        // Pairs with [RCU-16].
        prim::full();
        if self.asleep.load(Relaxed) == ASLEEP {
            self.kick.fetch_add(1, Relaxed);
            let _ = sys::futex_wake(&self.kick, 1);
        }
        self.need_worker();
    }

    fn need_worker(self: &Arc<Self>) {
        if self.worker_tid.load(Relaxed) == 0 {
            self.start_worker();
        }
    }

    #[cold]
    fn start_worker(self: &Arc<Self>) {
        let mut worker = self.worker.lock();
        if worker.is_some() {
            return;
        }
        let updater = self.clone();
        let name: std::string::String = std::format!("rcu/{}", self.name).chars().take(15).collect();
        match std::thread::Builder::new().name(name.to_string()).spawn(move || updater.work()) {
            Ok(handle) => *worker = Some(handle),
            // Nothing is lost: the next request tries again.
            Err(_) => report(&Report::NoWorker { domain: self.name.clone() }),
        }
    }

    /// Ends the worker; there must be nothing left to do.
    pub(crate) fn stop_worker(self: &Arc<Self>) {
        let worker = self.worker.lock().take();
        if let Some(handle) = worker {
            self.stop.store(1, Relaxed);
            self.kick.fetch_add(1, Relaxed);
            let _ = sys::futex_wake(&self.kick, 1);
            let is_self = handle.thread().id() == std::thread::current().id();
            if !is_self {
                let _ = handle.join();
            }
        }
    }

    /// The worker's life.
    fn work(self: Arc<Self>) {
        self.worker_tid.store(sys::gettid(), Relaxed);
        let mut due_ns = None;
        loop {
            let seen = self.kick.load(Relaxed);
            let ran = self.run_ready();
            if self.has_request() {
                let due = *due_ns.get_or_insert_with(|| now_ns() + self.call_delay_ns);
                match self.time_to_gather(due) {
                    0 => {
                        self.drive(Cookie(self.block.head().gp.needed.load(Relaxed)));
                        due_ns = None;
                    }
                    left => self.rest(DOZING, seen, Some(left)),
                }
                continue;
            }
            due_ns = None;
            if self.stop.load(Relaxed) != 0 {
                return;
            }
            if !ran {
                self.rest(ASLEEP, seen, None);
            }
        }
    }

    /// Nanoseconds that the grace period which is asked for may still be put off.
    fn time_to_gather(&self, due_ns: u64) -> u64 {
        let is_awaited = !Cookie(self.needed_soon.load(Relaxed)).is_reached(self.block.gp_seq());
        let stops = self.stop.load(Relaxed) != 0;
        if is_awaited || stops { 0 } else { due_ns.saturating_sub(now_ns()) }
    }

    /// Sleeps until there is a kick, or the time is up.
    fn rest(&self, how: u32, seen: u32, limit_ns: Option<u64>) {
        self.asleep.store(how, Relaxed);
        // [RCU-16] Orders the sleeper before the look at kick and request. Pairs with [RCU-15], [RCU-22].
        prim::full();
        let has_work = how == ASLEEP && self.has_request();
        if self.kick.load(Relaxed) == seen && self.stop.load(Relaxed) == 0 && !has_work {
            let _ = sys::futex_wait(&self.kick, seen, limit_ns);
        }
        self.asleep.store(AWAKE, Relaxed);
    }

    /// Runs what is due; false if nothing was.
    fn run_ready(&self) -> bool {
        let mut ran = false;
        for list in &self.lists {
            let mut queue = {
                let mut list = list.lock();
                list.advance(self.block.gp_seq());
                list.take_done()
            };
            if queue.is_empty() {
                continue;
            }
            ran = true;
            let mut count = 0;
            while let Some((node, func)) = queue.pop() {
                self.counts.invoked.fetch_add(1, Relaxed);
                // SAFETY: `push` was told that `func` may run with the node; its grace period is over
                // (`advance`), and it has left the list.
                let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { func(node) }));
                if outcome.is_err() {
                    report(&Report::CallbackPanicked { domain: self.name.clone() });
                }
                count += 1;
                if self.has_passed.load(Relaxed) != 0 {
                    list.lock().ran(core::mem::take(&mut count));
                    self.tell_barriers();
                }
            }
            list.lock().ran(count);
        }
        ran
    }

    #[cold]
    fn tell_barriers(&self) {
        self.has_passed.store(0, Relaxed);
        for left in core::mem::take(&mut *self.passed.lock()) {
            // [RCU-12] What the callbacks before did is visible to who sees the count at zero.
            // Pairs with [RCU-13], [RCU-14].
            if left.fetch_sub(1, Release) == 1 {
                let _ = sys::futex_wake(&left, u32::MAX);
            }
        }
    }
}
