//! One stopped thread that makes system calls for us, and can undo that by itself.
//!
//! For:     `Remote` and the puppet of `watch`.
//! State:   the thread's registers and signal mask; below its stack, or at the unused end of the first thread's, a signal
//!          frame with all of it.
//! Context: control, in the thread that traces. The thread stands in a ptrace stop.
//! Keeps:   J1 registers, mask and pending signals are afterwards what they were.
//!          J2 if we die at any instant, the thread makes the call that it was about to make at most, returns to the frame,
//!             and has its registers, mask and extended state back: first the registers lead to the frame, then signals
//!             are blocked; on the way back the mask comes first. Not kept where the process has no code that makes
//!             rt_sigreturn or no room for a frame, under a shadow stack, and where a seccomp filter that we suspend
//!             kills for the call.
//!          J3 a fault of the call is not delivered, and no handler is lost by it: it is an error.
//!          J4 but for the frame nothing of the process's memory is written, and the frame reads as zeros afterwards.
//! Checked: testkit `kills`, `waits`, `signals`, `entered`; tests below.

use crate::arch;
use crate::arch::SleptIn;
use crate::arch::frame;
use crate::facts::inject;
use crate::find::memory::Memory;
use crate::find::process;
use crate::hold::foothold::{Foothold, RED_ZONE, SCRATCH};
use crate::hold::reports;
use crate::hold::world::{Thread, World};
use sys::ptrace::{self, Regs};
use sys::wait::Status;
use sys::{Errno, check, sched};

const SIGSTOP: i32 = 19;
/// Signals that an instruction itself can raise: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS. Blocked, they
/// would reset the handler.
pub(crate) const OWN_FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30;

/// Why a call was not made, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmade {
    /// The kernel refused it.
    Refused(Errno),
    /// It raised this signal.
    Raised(i32),
    /// The thread is gone.
    Gone,
}

impl From<Unmade> for Errno {
    fn from(unmade: Unmade) -> Errno {
        match unmade {
            Unmade::Refused(errno) => errno,
            Unmade::Raised(_) => Errno::EFAULT,
            Unmade::Gone => Errno::ESRCH,
        }
    }
}

fn gone(_: Errno) -> Unmade {
    Unmade::Gone
}

/// A frame in the process.
#[derive(Clone, Copy, Debug)]
struct Frame {
    at: u64,
    /// Code that takes it.
    restorer: u64,
    len: usize,
}

/// A thread that makes calls for us.
#[derive(Debug)]
pub(crate) struct Hijack<'a> {
    memory: &'a Memory,
    pub tid: i32,
    saved: Regs,
    slept: Option<SleptIn>,
    mask: u64,
    syscall: u64,
    frame: Option<Frame>,
    room: Option<u64>,
    is_away: bool,
    /// Signals sent to it that came in between and cannot be blocked.
    came: Vec<i32>,
}

impl<'a> Hijack<'a> {
    /// Prepares a stopped thread with these registers and this mask, in no restartable sequence and in 64-bit code; `others`
    /// are the stack pointers of the process's other threads, as far as they are known. Nothing of the thread is changed
    /// before the first call.
    pub fn prepare(
        memory: &'a Memory,
        foothold: &Foothold,
        tid: i32,
        (saved, mask, slept): (Regs, u64, Option<SleptIn>),
        others: &[u64],
    ) -> Hijack<'a> {
        let state = frame::state(tid);
        let room = foothold.room(memory, saved.sp(), others, frame::len_bound(&state));
        let restorer = foothold.restorer.filter(|_| !process::has_shadow_stack(tid));
        let written = room.zip(restorer).and_then(|(at, restorer)| {
            let bytes = frame::build(at, restorer, &saved, mask, &state)?;
            memory.write(at, &bytes).ok().map(|()| Frame { at, restorer, len: bytes.len() })
        });
        let syscall = foothold.syscall;
        let (is_away, came) = (false, Vec::new());
        Hijack { memory, tid, saved, slept, mask, syscall, frame: written, room, is_away, came }
    }

    /// Makes one call whose first argument is a name of less than [`SCRATCH`] bytes. What was where it is put is put back.
    ///
    /// # Errors
    /// As for [`Hijack::call`].
    pub fn call_with_name(&mut self, number: usize, name: &str, second: u64) -> Result<u64, Unmade> {
        // Without room, below the red zone, where a signal's frame would be.
        let own = self.saved.sp().saturating_sub(RED_ZONE + SCRATCH) & !15;
        let at = self.room.map_or(own, |at| at - SCRATCH);
        let failed = |_| Unmade::Refused(Errno::EFAULT);
        let before = self.memory.read_vec(at, name.len() + 1).map_err(failed)?;
        self.memory.write(at, &[name.as_bytes(), &[0]].concat()).map_err(failed)?;
        let made = self.call(number, [at, second, 0, 0, 0, 0]);
        let _ = self.memory.write(at, &before);
        made
    }

    /// The process that it works in.
    pub fn pid(&self) -> i32 {
        self.memory.pid
    }

    /// Makes one call.
    ///
    /// # Errors
    /// The thread stays ours, and the next call may be made; but not after [`Unmade::Gone`].
    pub fn call(&mut self, number: usize, args: [u64; 6]) -> Result<u64, Unmade> {
        inject::step().map_err(Unmade::Refused)?;
        let frame = self.frame.map(|frame| (frame.at, frame.restorer));
        let regs = arch::calling(&self.saved, self.syscall, frame, (number, args));
        ptrace::set_regs(self.tid, &regs).map_err(gone)?;
        if !self.is_away {
            self.is_away = true;
            ptrace::set_sigmask(self.tid, !OWN_FAULTS).map_err(gone)?;
        }
        run_to_syscall_stop(self.tid, &mut self.came)?;
        run_to_syscall_stop(self.tid, &mut self.came)?;
        let answer = arch::answer(&ptrace::regs(self.tid).map_err(gone)?);
        check(answer as isize).map(|value| value as u64).map_err(Unmade::Refused)
    }
}

/// Runs a stopped thread on to where it enters or leaves a system call; signals that were sent to it and cannot be blocked
/// are kept in `came`.
pub(crate) fn run_to_syscall_stop(tid: i32, came: &mut Vec<i32>) -> Result<(), Unmade> {
    loop {
        ptrace::cont_to_syscall(tid, 0).map_err(gone)?;
        match reports::await_report(tid).map_err(gone)? {
            Status::Syscall => return Ok(()),
            Status::Signal(signal) if signal == SIGSTOP || !is_fault(tid) => came.push(signal),
            Status::Signal(signal) => return Err(Unmade::Raised(signal)),
            Status::Event(..) => {}
            _ => return Err(Unmade::Gone),
        }
    }
}

/// Sends a thread the signals that were kept from it.
pub(crate) fn send_again(pid: i32, tid: i32, came: &[i32]) {
    for signal in came {
        // A stop concerns the whole process.
        let _ = match *signal {
            SIGSTOP => sched::kill(tid, SIGSTOP),
            other => sched::tgkill(pid, tid, other),
        };
    }
}

/// The kernel raised the signal before whose delivery the thread stands; nobody sent it.
fn is_fault(tid: i32) -> bool {
    ptrace::signal_cause(tid).is_ok_and(|(code, _)| code > 0)
}

/// The threads that are on their way through a call of a hijack whose owner died, and back.
pub(crate) fn on_their_way_back(memory: &Memory, world: &World, foothold: &Foothold) -> Vec<i32> {
    let is_frame_at = |at: u64| memory.read_vec(at, frame::HEAD).is_ok_and(|bytes| frame::is_frame(&bytes));
    // Before the `ret` its stack pointer is at the frame, behind it eight bytes on.
    let is_on_way = |t: &&Thread| {
        let sp = t.regs.sp();
        foothold.contains(t.regs.pc()) && (is_frame_at(sp) || sp.checked_sub(8).is_some_and(is_frame_at))
    };
    world.threads().filter(is_on_way).map(|t| t.tid).collect()
}

impl Drop for Hijack<'_> {
    fn drop(&mut self) {
        if self.is_away {
            let _ = ptrace::set_sigmask(self.tid, self.mask);
            let _ = ptrace::set_regs(self.tid, &arch::sleeping_on(&self.saved, self.slept));
        }
        if let Some(Frame { at, len, .. }) = self.frame {
            let _ = self.memory.write(at, &vec![0; len]);
        }
        send_again(self.memory.pid, self.tid, &self.came);
    }
}
