//! A stopped thread that does as we say: makes calls, and executes single instructions.
//!
//! For:     soft watchpoints, whose threads stay traced.
//! State:   its own signal mask, which is put back by `release`, and signals that came in between.
//! Context: control, in the thread that traces. The thread is in a ptrace stop.
//! Keeps:   Q1 registers, mask and pending signals are afterwards what they were, but for the instruction.
//!          Q2 a signal that cannot be blocked is sent again.
//!          Q3 a system call that the thread stood before is made when it runs on.
//! Checked: testkit `watching`.

use crate::arch::foreign_code;
use crate::arch::made_again;
use crate::arch::not_made;
use crate::arch::restarts;
use crate::find::memory::Memory;
use crate::hold::foothold::Foothold;
use crate::hold::hijack::{Hijack, OWN_FAULTS, Unmade, run_to_syscall_stop, send_again};
use crate::hold::reports;
use crate::hold::sequence::Standing;
use std::sync::Arc;
use sys::Errno;
use sys::ptrace;
use sys::wait::Status;

const SIGTRAP: i32 = 5;
const SIGSTOP: i32 = 19;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    Done,
    /// The instruction raised a signal of its own; the thread stands before its delivery.
    Raised(i32),
    Ended,
}

/// A stopped thread that does as we say. Its signals are blocked while this lives.
pub(crate) struct Puppet {
    pub(crate) tid: i32,
    pub(crate) mask: u64,
    memory: Arc<Memory>,
    foothold: Arc<Foothold>,
    /// Signals sent to it that came in between and cannot be blocked.
    came: Vec<i32>,
}

impl Puppet {
    /// Takes a thread of the process that has this memory. One that stands in a restartable sequence of its own goes on at
    /// its abort address.
    pub(crate) fn take(tid: i32, memory: Arc<Memory>, foothold: Arc<Foothold>) -> Result<Puppet, Errno> {
        let mask = ptrace::sigmask(tid)?;
        ptrace::set_sigmask(tid, !OWN_FAULTS)?;
        let mut puppet = Puppet { tid, mask, memory, foothold, came: Vec::new() };
        if ptrace::is_at_entry(tid)? {
            puppet.back_out()?;
        }
        Ok(puppet)
    }

    /// From the entry to a system call back to before it.
    fn back_out(&mut self) -> Result<(), Errno> {
        let call = ptrace::regs(self.tid)?;
        ptrace::set_regs(self.tid, &not_made(&call))?;
        run_to_syscall_stop(self.tid, &mut self.came)?;
        ptrace::set_regs(self.tid, &made_again(&call))
    }

    /// Has the thread, where it stands now, make calls; its own mask is put back by [`Puppet::release`] only, or if we die.
    fn hijacked<T>(&mut self, work: impl FnOnce(&mut Hijack<'_>) -> Result<T, Unmade>) -> Result<T, Errno> {
        let regs = ptrace::regs(self.tid)?;
        let standing = Standing::of(&self.memory, self.tid, &regs);
        if foreign_code(&regs).is_some() || standing == Standing::Unsound {
            return Err(Errno::EFAULT);
        }
        let regs = standing.abandon(&self.memory, self.tid, regs)?;
        let foothold = self.foothold.renewed(&self.memory).map_err(|_| Errno::EFAULT)?;
        let mut hijack = Hijack::prepare(&self.memory, &foothold, self.tid, (regs, self.mask, None), &[]);
        let done = work(&mut hijack).map_err(Errno::from);
        drop(hijack);
        ptrace::set_sigmask(self.tid, !OWN_FAULTS)?;
        done
    }

    /// Makes one system call in it.
    pub(crate) fn call(&mut self, number: usize, args: [u64; 6]) -> Result<u64, Errno> {
        self.hijacked(|hijack| hijack.call(number, args))
    }

    /// Makes one whose first argument is a name.
    pub(crate) fn call_with_name(&mut self, number: usize, name: &str, second: u64) -> Result<u64, Errno> {
        self.hijacked(|hijack| hijack.call_with_name(number, name, second))
    }

    /// Executes one instruction (one round of a repeated one).
    pub(crate) fn step(&mut self) -> Result<Stepped, Errno> {
        loop {
            ptrace::step(self.tid, 0)?;
            match reports::await_report(self.tid)? {
                Status::Signal(SIGTRAP) => return Ok(Stepped::Done),
                Status::Signal(SIGSTOP) => self.came.push(SIGSTOP),
                Status::Signal(signal) => return Ok(Stepped::Raised(signal)),
                Status::Event(..) | Status::Syscall => {}
                Status::Exited(_) | Status::Killed(_) | Status::Other(_) => return Ok(Stepped::Ended),
            }
        }
    }

    /// Gives it its signals back.
    pub(crate) fn release(self) {
        let _ = ptrace::set_sigmask(self.tid, self.mask);
        if ptrace::regs(self.tid).is_ok_and(|regs| restarts(&regs)) {
            // The kernel starts a call again on its way past signals, which our own calls took already: this
            // sends it there once more.
            let _ = ptrace::interrupt(self.tid);
        }
        send_again(self.memory.pid, self.tid, &self.came);
    }
}
