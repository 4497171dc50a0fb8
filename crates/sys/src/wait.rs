//! wait4(2) and what it reports.
//!
//! For:     learning of stops and ends of traced threads and of children.
//! State:   none.
//! Context: control.
//! Keeps:   nothing beyond the call.
//! Checked: session's tests against live targets.

use crate::{Errno, check, nr, ptrace, syscall};

/// Do not block.
pub const NOHANG: usize = 1;
/// Children of every kind, threads of other processes that we trace included.
pub const ALL: usize = 0x4000_0000;

/// What became of a thread or child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It ended by itself with this code.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// It is about to receive this signal; the tracer decides.
    Signal(i32),
    /// It stands before or after a system call.
    Syscall,
    /// A ptrace event: clone, exec, or a stop by interrupt or job control (with its signal).
    Event(i32, i32),
    /// Anything else, as the kernel wrote it.
    Other(i32),
}

/// Decodes the status word of wait4.
pub fn decode(status: i32) -> Status {
    let signal = (status >> 8) & 0xff;
    match status & 0x7f {
        0 => Status::Exited(signal),
        0x7f => match status >> 16 {
            0 if signal == 5 | 0x80 => Status::Syscall,
            0 => Status::Signal(signal),
            event => Status::Event(event, signal & 0x7f),
        },
        killer if status & 0xff != 0xff => Status::Killed(killer),
        _ => Status::Other(status),
    }
}

/// Waits for a change of `pid` (-1: any). `None` if [`NOHANG`] was given and nothing changed.
///
/// # Errors
/// `ECHILD` nothing to wait for, `EINTR` a signal of ours came first.
pub fn wait(pid: i32, options: usize) -> Result<Option<(i32, Status)>, Errno> {
    let mut status = 0i32;
    let args = [pid as usize, &raw mut status as usize, options, 0, 0, 0];
    // SAFETY: the kernel writes one i32 to `status`, which outlives the call; no rusage is asked.
    let got = check(unsafe { syscall(nr::WAIT4, args) })?;
    Ok((got != 0).then(|| (got as i32, decode(status))))
}

/// Reaps one thread or child, if it has ended; stops are left for whoever waits for them.
///
/// # Errors
/// `ECHILD` nobody of this process waits for it.
pub fn reap(tid: i32) -> Result<Option<Status>, Errno> {
    const BY_PID: usize = 1;
    const EXITED: usize = 4;
    const CLD_EXITED: i32 = 1;
    let mut info = [0i32; 32];
    let args = [BY_PID, tid as usize, info.as_mut_ptr() as usize, EXITED | NOHANG | ALL, 0, 0];
    // SAFETY: the kernel writes one siginfo_t, 128 bytes, to `info`, which outlives the call.
    check(unsafe { syscall(nr::WAITID, args) })?;
    let (signal, code, status) = (info[0], info[2], info[6]);
    let ended = if code == CLD_EXITED { Status::Exited(status) } else { Status::Killed(status) };
    Ok((signal != 0).then_some(ended))
}

/// Waits until there is something to [`wait`] for of a thread that this OS thread traces, or of a child of its own: whose it
/// is. It is left there.
///
/// # Errors
/// `ECHILD` there is none of them, `EINTR` a signal of ours came first.
pub fn await_any() -> Result<i32, Errno> {
    const ANY: usize = 0;
    const STOPPED: usize = 2;
    const EXITED: usize = 4;
    const NOWAIT: usize = 0x0100_0000;
    const NOTHREAD: usize = 0x2000_0000;
    let mut info = [0i32; 32];
    let options = STOPPED | EXITED | NOWAIT | NOTHREAD | ALL;
    let args = [ANY, 0, info.as_mut_ptr() as usize, options, 0, 0];
    // SAFETY: the kernel writes one siginfo_t, 128 bytes, to `info`, which outlives the call.
    check(unsafe { syscall(nr::WAITID, args) })?;
    Ok(info[4])
}

const _: () = assert!(ptrace::event::STOP == 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_word_is_told_apart_by_its_kind() {
        assert_eq!(decode(7 << 8), Status::Exited(7));
        assert_eq!(decode(9), Status::Killed(9));
        assert_eq!(decode(0x057f), Status::Signal(5));
        assert_eq!(decode(0x857f), Status::Syscall);
        assert_eq!(decode((128 << 16) | 0x137f), Status::Event(128, 0x13));
    }
}
