//! wait4(2) and what it reports.
//!
//! For:     learning of stops and ends of traced threads and of children.
//! State:   none.
//! Context: control.
//! Keeps:   W1 who reaps takes ends alone: the report of a stop stays for the tracer.
//! Checked: `who_reaps_leaves_the_report_of_a_stop_to_its_tracer` (W1); session's tests against live targets.

use crate::{Errno, check, nr, ptrace, syscall};

/// Do not block.
pub const NOHANG: usize = 1;
/// Children of every kind, threads of other processes that we trace included.
pub const ALL: usize = 0x4000_0000;

// Of waitid(2): whom, what, and that it is left there.
const BY_PID: usize = 1;
const STOPPED: usize = 2;
const EXITED: usize = 4;
const NOWAIT: usize = 0x0100_0000;

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
    reap_ended([BY_PID, tid as usize], ALL)
}

/// Reaps whom waitid(2) finds by that, if it has ended.
///
/// The kernel gives the stops of traced threads to whoever waits, also for ends alone: so it is looked for first. Who has ended
/// does not stop any more; nobody else becomes a first thread of its number before it is reaped.
///
/// # Errors
/// `ECHILD` nobody of this process waits for it.
pub(crate) fn reap_ended([kind, id]: [usize; 2], options: usize) -> Result<Option<Status>, Errno> {
    const CLD_EXITED: i32 = 1;
    const CLD_KILLED: i32 = 2;
    const CLD_DUMPED: i32 = 3;
    let look = |options: usize| {
        let mut info = [0i32; 32];
        let args = [kind, id, info.as_mut_ptr() as usize, EXITED | NOHANG | options, 0, 0];
        // SAFETY: the kernel writes one siginfo_t, 128 bytes, to `info`, which outlives the call.
        check(unsafe { syscall(nr::WAITID, args) })?;
        // Signal, errno, code; behind a hole: pid, uid, status. All is 0 if nothing is to be told.
        let (code, status) = (info[2], info[6]);
        Ok(match code {
            CLD_EXITED => Some(Status::Exited(status)),
            CLD_KILLED | CLD_DUMPED => Some(Status::Killed(status)),
            _ => None,
        })
    };
    match look(options | NOWAIT)? {
        Some(_) => look(options),
        None => Ok(None),
    }
}

/// Whether there is something to [`wait`] for of one thread or child, which is left there.
///
/// # Errors
/// `ECHILD` nobody of this process waits for it.
pub fn has_report(tid: i32) -> Result<bool, Errno> {
    let mut info = [0i32; 32];
    let args =
        [BY_PID, tid as usize, info.as_mut_ptr() as usize, STOPPED | EXITED | NOWAIT | NOHANG | ALL, 0, 0];
    // SAFETY: the kernel writes one siginfo_t, 128 bytes, to `info`, which outlives the call.
    check(unsafe { syscall(nr::WAITID, args) })?;
    Ok(info[0] != 0)
}

/// Waits until there is something to [`wait`] for of a thread that this OS thread traces, or of a child of its own: whose it
/// is. It is left there.
///
/// # Errors
/// `ECHILD` there is none of them, `EINTR` a signal of ours came first.
pub fn await_any() -> Result<i32, Errno> {
    const ANY: usize = 0;
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
    extern crate std;
    use super::*;

    #[test]
    fn a_status_word_is_told_apart_by_its_kind() {
        assert_eq!(decode(7 << 8), Status::Exited(7));
        assert_eq!(decode(9), Status::Killed(9));
        assert_eq!(decode(0x057f), Status::Signal(5));
        assert_eq!(decode(0x857f), Status::Syscall);
        assert_eq!(decode((128 << 16) | 0x137f), Status::Event(128, 0x13));
    }

    #[cfg(not(miri))]
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the child is this test's own")]
    fn who_reaps_leaves_the_report_of_a_stop_to_its_tracer() {
        use crate::PidFd;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let tid = child.id().cast_signed();
        let process = PidFd::open(tid).unwrap();
        ptrace::seize(tid, 0).unwrap();
        ptrace::interrupt(tid).unwrap();
        let by_process = |_| process.reap();
        for reaped in [&reap as &dyn Fn(i32) -> _, &by_process] {
            // Until there is a report, which is left there.
            while await_any() != Ok(tid) {
                std::thread::yield_now();
            }
            assert_eq!((reaped(tid), has_report(tid)), (Ok(None), Ok(true)));
            let report = wait(tid, NOHANG).unwrap();
            assert!(matches!(report, Some((_, Status::Event(ptrace::event::STOP, _)))), "{report:?}");
            assert_eq!(has_report(tid), Ok(false));
            ptrace::interrupt(tid).unwrap();
            ptrace::cont(tid, 0).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
