//! System calls that a stop of ours has interrupted.
//!
//! For:     whoever lets a thread run on.
//! State:   none.
//! Context: control; the thread stands in a ptrace stop.
//! Keeps:   I1 a call goes back to its start only if it is sure that nothing but our stop has ended it.
//! Checked: testkit `waits`.

use sys::ptrace::{self, Regs};
use sys::{Errno, nr};

/// Sets a call back to its start that ends with EINTR because of our stop, and not of a signal; true if it did.
pub(crate) fn undo_interruption(tid: i32, regs: &mut Regs) -> bool {
    let (call, answer) = (regs.orig_rax as i64, regs.rax as i64);
    if call < 0 || answer != -i64::from(Errno::EINTR.0) || call == nr::CLOSE as i64 {
        return false;
    }
    let waits = ptrace::sigmask(tid).and_then(|m| ptrace::has_deliverable_signal(tid, m));
    if waits == Ok(false) {
        regs.rip -= 2;
        regs.rax = regs.orig_rax;
        regs.orig_rax = u64::MAX;
    }
    waits == Ok(false)
}

/// True if the kernel is about to set rip back to the system call.
pub(crate) fn restarts(regs: &Regs) -> bool {
    (regs.orig_rax as i64) >= 0 && matches!(-(regs.rax as i64), 512 | 513 | 514 | 516)
}

/// The registers with which a thread in a system call makes it once more.
pub(crate) fn made_again(call: &Regs) -> Regs {
    Regs { rip: call.rip - 2, rax: call.orig_rax, orig_rax: u64::MAX, ..*call }
}
