//! Telling that a thread is in a signal handler.
//!
//! For:     restriction 6 of lite readers, on checked domains.
//! State:   a count in the thread's record.
//! Context: signal. `HandlerScope::enter` must have run once outside a handler, or it allocates.
//! Keeps:   I1 a handler that says so, runs on the alternate stack or interrupted a checked reader
//!          operation is noticed; any other looks like ordinary code.
//! Checked: `tests/restrictions.rs`.

use crate::prim::Relaxed;
use crate::thread::{self, Record};
use core::marker::PhantomData;

/// A stretch of a signal handler, from here to the drop, on one thread:
///
/// ```compile_fail,E0277
/// let scope = rcu::signal::HandlerScope::enter();
/// std::thread::spawn(move || drop(scope));
/// ```
#[must_use = "the scope ends when the value is dropped"]
pub struct HandlerScope(&'static Record, PhantomData<*const ()>);

impl HandlerScope {
    /// Says that the calling thread is in a signal handler.
    pub fn enter() -> HandlerScope {
        let record = thread::mine();
        thread::add(&record.handlers, 1);
        HandlerScope(record, PhantomData)
    }
}

impl Drop for HandlerScope {
    fn drop(&mut self) {
        thread::add(&self.0.handlers, -1);
        thread::give_back_at_the_end();
    }
}

pub(crate) fn is_in_handler() -> bool {
    let said =
        thread::mine_if_any().is_some_and(|r| r.handlers.load(Relaxed) != 0 || r.busy.load(Relaxed) != 0);
    said || sys::on_signal_stack()
}
