//! System calls made by a stopped thread of the target on our behalf.
//!
//! For:     mapping and unmapping in the target.
//! State:   the hijacked thread.
//! Context: control.
//! Keeps:   C1 the thread's registers, mask and pending signals are afterwards what they were: `Hijack`.
//!          C2 the thread is one in 64-bit code, and one that stands in no restartable sequence where there is one; else it
//!             goes on at its sequence's abort address.
//!          C3 a signal that an instruction of the thread's has raised and that waits for it is delivered before our first
//!             call, as the kernel raised it: the thread stands at the beginning of its handler then.
//! Checked: testkit `waits`, `signals`, `entered`.

use crate::arch::foreign_code;
use crate::arch::is_sleeping;
use crate::facts::error::Broken;
use crate::find::limits;
use crate::find::memory::Memory;
use crate::find::process;
use crate::hold::foothold::Foothold;
use crate::hold::hijack::{Hijack, OWN_FAULTS, Unmade};
use crate::hold::reports;
use crate::hold::sequence::Standing;
use crate::hold::tracer::is_held;
use crate::hold::world::{Thread, World};
use sys::ptrace::{self, Regs};
use sys::wait::Status;
use sys::{Errno, nr};

/// So many threads are looked at for one that is better than those before.
const LOOKED_AT: usize = 64;

/// A thread that makes calls for us.
#[derive(Debug)]
pub(crate) struct Remote<'a> {
    hijack: Hijack<'a>,
}

/// What is wrong with a thread, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Nothing,
    /// A signal waits for it that an instruction has raised: as a rule for one that steps itself.
    Signalled,
    /// Its sleep would begin anew if we died.
    Sleeps,
    /// It has to go on at the abort address.
    InSequence,
    /// Its restartable sequence is none that the kernel takes.
    Unsound,
    /// It is in code of another kind.
    Foreign {
        cs: u64,
    },
}

impl<'a> Remote<'a> {
    /// Takes one of the stopped threads.
    ///
    /// # Errors
    /// None can be taken.
    pub fn begin(
        world: &'a mut World,
        memory: &'a Memory,
        foothold: &Foothold,
    ) -> Result<Remote<'a>, Broken> {
        let pid = world.pid;
        let foothold = foothold.renewed(memory)?;
        let tid = choose(world, memory)?;
        suspend_seccomp(pid, tid)?;
        let gone = |errno| process::lost(pid, errno);
        let missing = || gone(Errno::ESRCH);
        let thread = world.threads_mut().find(|t| t.tid == tid).ok_or_else(missing)?;
        deliver_raised(thread).map_err(gone)?;
        let others = world.threads().filter(|t| t.tid != tid).map(|t| t.regs.sp());
        let others: Vec<u64> = others.chain(world.sleepers().map(|s| s.at.sp)).collect();
        let mask = ptrace::sigmask(tid).map_err(gone)?;
        let thread = world.threads_mut().find(|t| t.tid == tid).ok_or_else(missing)?;
        leave_sequence(memory, thread)?;
        Ok(Remote {
            hijack: Hijack::prepare(memory, &foothold, tid, (thread.regs, mask, thread.slept), &others),
        })
    }

    /// The thread, which may be of another process that shares the memory.
    pub fn tid(&self) -> i32 {
        self.hijack.tid
    }

    /// Makes one call.
    pub fn call(&mut self, name: &'static str, number: usize, args: [u64; 6]) -> Result<u64, Broken> {
        self.hijack.call(number, args).map_err(|unmade| self.broken(name, unmade))
    }

    /// Unmaps a range.
    pub fn unmap(&mut self, range: &std::ops::Range<u64>) -> Result<(), Broken> {
        let args = [range.start, range.end - range.start, 0, 0, 0, 0];
        self.call("munmap", nr::MUNMAP, args).map(drop)
    }

    /// Closes a descriptor; tries again what fails, for nobody else would close it.
    pub fn close(&mut self, fd: u64) -> Result<(), Broken> {
        let mut close = || self.call("close", nr::CLOSE, [fd, 0, 0, 0, 0, 0]).map(drop);
        close().or_else(|_| close())
    }

    /// Makes one call whose first argument is a name.
    pub fn call_with_name(
        &mut self,
        call: &'static str,
        number: usize,
        name: &str,
        second: u64,
    ) -> Result<u64, Broken> {
        let made = self.hijack.call_with_name(number, name, second);
        made.map_err(|unmade| self.broken(call, unmade))
    }

    fn broken(&self, call: &'static str, unmade: Unmade) -> Broken {
        let pid = self.hijack.pid();
        match unmade {
            // A call of a process that was killed meanwhile fails as if its arguments were wrong.
            Unmade::Refused(_) if process::is_ending(pid) => Broken::Gone { pid },
            Unmade::Refused(errno) => match limits::met(self.hijack.tid, errno) {
                Some((pid, limit)) => Broken::Exhausted { pid, call, errno, limit },
                None => Broken::Remote { call, errno },
            },
            Unmade::Raised(signal) => Broken::Raised { call, tid: self.hijack.tid, signal },
            Unmade::Gone => process::lost(self.hijack.pid(), Errno::ESRCH),
        }
    }
}

/// Takes a stopped thread out of its restartable sequence, if it is in one.
pub(crate) fn leave_sequence(memory: &Memory, thread: &mut Thread) -> Result<bool, Broken> {
    let standing = Standing::of(memory, thread.tid, &thread.regs);
    let regs = standing.abandon(memory, thread.tid, thread.regs);
    let regs: Regs = regs.map_err(|_| process::lost(memory.pid, Errno::ESRCH))?;
    let has_moved = regs != thread.regs;
    if has_moved {
        thread.set_regs(regs);
    }
    Ok(has_moved)
}

/// Delivers what an instruction of this stopped thread has raised; it stands at the first instruction of the handler then.
pub(crate) fn deliver_raised(thread: &mut Thread) -> Result<(), Errno> {
    let tid = thread.tid;
    while ptrace::has_raised_signal(tid, OWN_FAULTS)? {
        let mut signal = 0;
        // It stops before the delivery, and again before the handler runs.
        loop {
            ptrace::cont(tid, signal)?;
            match reports::await_report(tid)? {
                Status::Signal(came) => {
                    signal = came;
                    ptrace::interrupt(tid)?;
                }
                Status::Event(ptrace::event::STOP, _) => break,
                Status::Exited(_) | Status::Killed(_) => return Err(Errno::ESRCH),
                _ => signal = 0,
            }
        }
        thread.learn_regs()?;
    }
    Ok(())
}

/// The best thread of the first ones.
fn choose(world: &World, memory: &Memory) -> Result<i32, Broken> {
    let pid = world.pid;
    let mut best: Option<(Fault, i32)> = None;
    // Of the process itself, before those that share its memory.
    let (own, sharers): (Vec<_>, Vec<_>) = world.threads().partition(|t| t.group == pid);
    for (seen, thread) in own.into_iter().chain(sharers).enumerate() {
        let fault = fault(memory, thread);
        let (least, _) = *best.get_or_insert((fault, thread.tid));
        if fault < least {
            best = Some((fault, thread.tid));
        }
        if fault == Fault::Nothing || seen >= LOOKED_AT && fault.min(least) < Fault::Unsound {
            break;
        }
    }
    match best {
        None => Err(process::lost(pid, Errno::ESRCH)),
        Some((Fault::Foreign { cs }, tid)) => Err(Broken::ForeignCode { pid, tid, cs }),
        Some((Fault::Unsound, tid)) => Err(Broken::Unsound { pid, tid }),
        Some((_, tid)) => Ok(tid),
    }
}

fn fault(memory: &Memory, thread: &Thread) -> Fault {
    let regs = &thread.regs;
    if let Some(cs) = foreign_code(regs) {
        return Fault::Foreign { cs };
    }
    match Standing::of(memory, thread.tid, regs) {
        Standing::Unsound => Fault::Unsound,
        Standing::Inside(_) => Fault::InSequence,
        Standing::Outside if is_sleeping(regs) => Fault::Sleeps,
        Standing::Outside if ptrace::has_raised_signal(thread.tid, OWN_FAULTS) == Ok(true) => {
            Fault::Signalled
        }
        Standing::Outside => Fault::Nothing,
    }
}

/// A seccomp filter could kill the thread for our calls: it is suspended while we trace, or we do not call.
fn suspend_seccomp(pid: i32, tid: i32) -> Result<(), Broken> {
    let Some(status) = process::Status::of(tid)?.filter(|s| s.seccomp != 0) else { return Ok(()) };
    // A program that we started and have not let go ends if we die.
    let ends = if is_held(pid) && reports::is_child(pid) { ptrace::O_EXITKILL } else { 0 };
    let options = ptrace::O_TRACESYSGOOD | ptrace::O_SUSPEND_SECCOMP | ends;
    let refused = Broken::Seccomp { pid, name: status.name, mode: status.seccomp };
    ptrace::set_options(tid, options).map_err(|_: Errno| refused)
}
