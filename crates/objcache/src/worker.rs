//! The thread that tends an arena's caches.
//!
//! For:     refill, trim and grace periods, since takers may not call the system.
//! State:   the caches; one thread while there are any.
//! Context: control.
//! Keeps:   R1 it never waits for a reader. R2 nobody needs to wake it: it looks every 50 us while a depot is low,
//!          every 100 us while a grace period is under way, else more and more rarely, at last every 10 ms.
//! Checked: tests/life.rs.

use crate::arena::Inner;
use crate::tend::{Next, Tender};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// While depots run low.
const WANTED_NS: u64 = 50_000;
/// While a grace period is waited for.
const WAITING_NS: u64 = 100_000;
const IDLE_NS: u64 = 10_000_000;

pub type Shared = Arc<Mutex<Tender>>;

/// A lock that a panic elsewhere does not close.
pub fn lock(tender: &Mutex<Tender>) -> MutexGuard<'_, Tender> {
    tender.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct State {
    tenders: Vec<Shared>,
    is_running: bool,
}

pub struct Worker {
    kick: AtomicU32,
    state: Mutex<State>,
}

impl Worker {
    pub fn new() -> Worker {
        Worker { kick: AtomicU32::new(0), state: Mutex::new(State::default()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread; for threads that may call the system.
    pub fn kick(&self) {
        self.kick.fetch_add(1, Relaxed);
        let _ = sys::futex_wake(&self.kick, 1);
    }

    /// Tends one more cache, starting the thread if there is none.
    pub fn add(inner: &Arc<Inner>, tender: Shared) -> Result<(), sys::Errno> {
        let mut state = inner.worker.state();
        state.tenders.push(tender);
        if !state.is_running {
            let thread = std::thread::Builder::new().name("objcache".into());
            let arena = inner.clone();
            if thread.spawn(move || arena.worker.work()).is_err() {
                state.tenders.pop();
                return Err(sys::Errno::EAGAIN);
            }
            state.is_running = true;
        }
        Ok(())
    }

    fn work(&self) {
        let mut nap = WANTED_NS;
        loop {
            let seen = self.kick.load(Relaxed);
            let tenders = {
                let mut state = self.state();
                state.tenders.retain(|t| !lock(t).closing.as_ref().is_some_and(|c| c.is_done));
                if state.tenders.is_empty() {
                    state.is_running = false;
                    return;
                }
                state.tenders.clone()
            };
            let mut next = Next::Nothing;
            for tender in &tenders {
                next = next.max(lock(tender).pass());
            }
            drop(tenders);
            nap = match next {
                Next::Wanted => WANTED_NS,
                Next::Waiting => WAITING_NS,
                Next::Nothing => (nap * 2).min(IDLE_NS),
            };
            let _ = sys::futex_wait(&self.kick, seen, Some(nap));
        }
    }
}
