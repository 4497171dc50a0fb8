//! System calls that a stop of ours has interrupted.
//!
//! For:     whoever lets a thread run on.
//! State:   none.
//! Context: control; the thread stands in a ptrace stop.
//! Keeps:   I1 a call goes back to its start only if it is sure that nothing but our stop has ended it.
//! Checked: testkit `waits`.

use crate::arch;
use crate::arch::SleptIn;
use crate::find::process;
use sys::ptrace::{self, Regs};

/// Sets a call back to its start that ends with EINTR because of our stop, and not of a signal; true if it did. `slept` is what
/// was seen of the thread before it was asked to stop, if that was looked for.
pub(crate) fn undo_interruption(tid: i32, regs: &mut Regs, slept: Option<SleptIn>) -> bool {
    let Some(again) = arch::interrupted_call(regs, slept) else { return false };
    // It has not slept since, but in our stop: the call is the one that was seen.
    if slept.is_some_and(|slept| process::sleeps(tid) != Some(slept.sleeps + 1)) {
        return false;
    }
    let waits = ptrace::sigmask(tid).and_then(|m| ptrace::has_deliverable_signal(tid, m));
    if waits == Ok(false) {
        *regs = again;
    }
    waits == Ok(false)
}
