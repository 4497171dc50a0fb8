//! The end of a cache.
//!
//! For:     `ObjectCache::destroy` and its drop.
//! State:   what has been gathered and the grace periods that it waits for; the ticket's outcome.
//! Context: control. The worker does the work; whoever destroys need not wait.
//! Keeps:   D1 memory returns after both grace periods. D2 the outcome names every object that did not come
//!          back; their chunks stay.
//! Checked: tests/life.rs, `torture mem --broken forgotten-barrier`.

use crate::stack::Batch;
use crate::tend::Tender;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use rcu::Cookie;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Objects that were not given back before their cache was destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leak {
    /// How many.
    pub objects: i64,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} object(s) were never given back; their memory stays with the arena", self.objects)
    }
}

impl std::error::Error for Leak {}

#[derive(Default)]
struct Outcome {
    done: Mutex<Option<Result<(), Leak>>>,
    told: Condvar,
}

/// A cache on its way out.
pub struct Ticket(Arc<Outcome>);

impl Ticket {
    /// Waits until the cache is gone.
    ///
    /// # Errors
    /// [`Leak`], if objects did not come back.
    pub fn wait(&self) -> Result<(), Leak> {
        self.wait_for(Duration::MAX).unwrap_or(Ok(()))
    }

    /// Waits at most so long; `None` if a reader still keeps it.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<(), Leak>> {
        let done = self.0.done.lock().unwrap_or_else(PoisonError::into_inner);
        if limit == Duration::MAX {
            let all = self.0.told.wait_while(done, |done| done.is_none());
            return *all.unwrap_or_else(PoisonError::into_inner);
        }
        let some = self.0.told.wait_timeout_while(done, limit, |done| done.is_none());
        *some.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A cache that is being destroyed.
pub struct Closing {
    gathered: Option<(Vec<Batch>, (Cookie, Cookie))>,
    outcome: Arc<Outcome>,
    /// Where head and cells lie, to be given back.
    setup_at: usize,
    setup_bytes: usize,
    pub is_done: bool,
}

impl Tender {
    /// Begins the end; nobody takes or gives any more.
    pub fn close(&mut self, setup_at: usize, setup_bytes: usize) -> Ticket {
        let outcome = Arc::new(Outcome::default());
        let ticket = Ticket(outcome.clone());
        self.closing = Some(Closing { gathered: None, outcome, setup_at, setup_bytes, is_done: false });
        ticket
    }

    /// Gathers everything, then waits for both grace periods, then returns the memory; true until done.
    pub fn close_step(&mut self) -> bool {
        let Some(mut closing) = self.closing.take() else { return false };
        if closing.gathered.is_none() && !closing.is_done {
            self.gather(&mut closing);
        }
        if let Some((_, cookies)) = &closing.gathered
            && self.both_over(*cookies)
        {
            self.finish(&mut closing);
        }
        let is_done = closing.is_done;
        self.closing = Some(closing);
        !is_done
    }

    fn gather(&mut self, closing: &mut Closing) {
        let view = self.setup.view;
        view.head().bound.store(0, Relaxed);
        self.take_lists(true);
        self.collect();
        let mut all = self.take_held();
        for cpu in 0..view.head().copies {
            let cell = view.cell(cpu);
            for stack in [&cell.depot, &cell.loose] {
                // SAFETY: stacks of a cell hold batches of this cache.
                unsafe { stack.take_all(view.items(), |batch| all.push(batch)) };
            }
        }
        closing.gathered = Some((all, self.start_both()));
    }

    fn finish(&mut self, closing: &mut Closing) {
        let Some((all, _)) = closing.gathered.take() else { return };
        self.put_back(all);
        let objects = self.setup.chunks.out as i64;
        self.setup.chunks.release_all();
        if objects == 0 {
            self.setup.chunks.release_trays();
            // SAFETY: nobody uses the cache any more (contract of `destroy`), and no object is left.
            unsafe { self.setup.chunks.arena().give_back(closing.setup_at, closing.setup_bytes) };
        }
        closing.is_done = true;
        let result = if objects == 0 { Ok(()) } else { Err(Leak { objects }) };
        *closing.outcome.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        closing.outcome.told.notify_all();
    }
}
