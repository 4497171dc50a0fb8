//! What a thread is doing for a registry right now.
//!
//! For:     calls that must not come out of a handler, a filter or a space; counting panics.
//! State:   per thread the registry whose consumers, filters or spaces it runs.
//! Context: hit, target. Two stores and a load a hit.
//! Keeps:   I1 while consumers, filters or spaces of a registry run, the mark is set; it is as before afterwards,
//!          also if they unwind.
//!          I2 a call that would wait for what the calling thread is doing is refused by name.
//! Checked: `tests/rules.rs`.

use crate::registry::Inner;
use crate::stats::bump;
use core::cell::Cell;
use core::fmt;
use core::ptr::null;

thread_local! {
    static NOW: Cell<*const Inner> = const { Cell::new(null()) };
}

/// A rule of a registry, broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Misuse {
    /// Called by a handler, a filter or a space of a registry, on the thread that runs it: the call would wait for
    /// its own caller.
    Inside {
        /// The call.
        call: &'static str,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Inside { call } = self;
        write!(
            f,
            "{call} was called from inside a handler, a filter or a space of a registry, which it would wait for"
        )
    }
}

impl std::error::Error for Misuse {}

/// From here to the drop, this thread runs what belongs to a registry.
pub(crate) struct Inside(*const Inner);

impl Inside {
    #[inline(always)]
    pub fn of(inner: &Inner) -> Inside {
        Inside(NOW.replace(inner))
    }

    /// True if this thread runs what belongs to a registry.
    pub fn is() -> bool {
        !NOW.get().is_null()
    }

    /// Refuses a call that may not come from inside.
    pub fn check(call: &'static str) -> Result<(), Misuse> {
        if Self::is() { Err(Misuse::Inside { call }) } else { Ok(()) }
    }

    /// As [`check`](Self::check), for calls that return no such error.
    #[track_caller]
    pub fn forbid(call: &'static str) {
        Self::check(call).unwrap_or_else(|misuse| panic!("{misuse}"));
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        NOW.set(self.0);
    }
}

/// Runs a handler. If it panics: `None`, and the panic is counted and goes no further.
///
/// The thread that hit the probe is not ours to unwind, and the other consumers of the hit are still to be called.
#[inline(always)]
pub(crate) fn contained<T>(handler: impl FnOnce() -> T) -> Option<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(handler)) {
        Ok(value) => Some(value),
        Err(payload) => {
            count(payload);
            None
        }
    }
}

#[cold]
#[inline(never)]
fn count(payload: Box<dyn core::any::Any + Send>) {
    // SAFETY: null, or a registry that `of` borrowed for as long as the mark stands.
    if let Some(inner) = unsafe { NOW.get().as_ref() } {
        bump(&inner.counts.panicked);
    }
    // What was thrown may throw again when it is dropped; then it is kept.
    if let Err(again) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(payload))) {
        core::mem::forget(again);
    }
}
