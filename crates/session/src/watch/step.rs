//! One instruction of one thread, with the watched pages open and all others standing.
//!
//! For:     soft watchpoints.
//! State:   none; the thread's registers and mask are put back.
//! Context: control, in the thread that traces. The thread is in a ptrace stop.
//! Keeps:   Q1 registers, mask and pending signals are afterwards what they were, but for the instruction.
//!          Q2 a signal that cannot be blocked is sent again.
//!          Q3 a system call that the thread stood before is made when it runs on.
//! Checked: testkit `watching`.

use super::touch::{FRAMES_MAX, Stack};
use super::{Access, Watch};
use crate::facts::error::Broken;
use crate::find::memory::Memory;
use crate::hold::foothold::Foothold;
use crate::hold::hijack::{CODE_64, Hijack, OWN_FAULTS, Unmade};
use crate::hold::reports;
use crate::hold::sequence::Standing;
use crate::hold::world::restarts;
use insn::memory_accesses;
use std::sync::Arc;
use sys::ptrace::{self, Regs};
use sys::wait::Status;
use sys::{Errno, nr};

const SIGTRAP: i32 = 5;
const SIGSTOP: i32 = 19;
/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    Done,
    /// The instruction raised a signal of its own; the thread stands before its delivery.
    Raised(i32),
    Ended,
}

/// A stopped thread that does as we say. Its signals are blocked while this lives.
pub(super) struct Puppet {
    pub(super) tid: i32,
    pub(super) mask: u64,
    memory: Arc<Memory>,
    foothold: Arc<Foothold>,
    has_stop_signal: bool,
}

impl Puppet {
    /// Takes a thread of the process that has this memory. One that stands in a restartable sequence of its own goes on at
    /// its abort address.
    pub(super) fn take(tid: i32, memory: Arc<Memory>, foothold: Arc<Foothold>) -> Result<Puppet, Errno> {
        let mask = ptrace::sigmask(tid)?;
        ptrace::set_sigmask(tid, !OWN_FAULTS)?;
        let mut puppet = Puppet { tid, mask, memory, foothold, has_stop_signal: false };
        if ptrace::is_at_entry(tid)? {
            puppet.back_out()?;
        }
        Ok(puppet)
    }

    /// From the entry to a system call back to before it.
    fn back_out(&mut self) -> Result<(), Errno> {
        let call = ptrace::regs(self.tid)?;
        ptrace::set_regs(self.tid, &Regs { orig_rax: u64::MAX, ..call })?;
        self.run_to_syscall_stop()?;
        ptrace::set_regs(self.tid, &made_again(&call))
    }

    /// Has the thread, where it stands now, make calls; its own mask is put back by [`Puppet::release`] only, or if we die.
    fn hijacked<T>(&mut self, work: impl FnOnce(&mut Hijack<'_>) -> Result<T, Unmade>) -> Result<T, Errno> {
        let regs = ptrace::regs(self.tid)?;
        let standing = Standing::of(&self.memory, self.tid, &regs);
        if regs.cs != CODE_64 || standing == Standing::Unsound {
            return Err(Errno::EFAULT);
        }
        let regs = standing.abandon(&self.memory, self.tid, regs)?;
        let foothold = self.foothold.renewed(&self.memory).map_err(|_| Errno::EFAULT)?;
        let mut hijack = Hijack::prepare(&self.memory, &foothold, self.tid, (regs, self.mask), &[]);
        let done = work(&mut hijack).map_err(Errno::from);
        drop(hijack);
        ptrace::set_sigmask(self.tid, !OWN_FAULTS)?;
        done
    }

    /// Makes one system call in it.
    pub(super) fn call(&mut self, number: usize, args: [u64; 6]) -> Result<u64, Errno> {
        self.hijacked(|hijack| hijack.call(number, args))
    }

    /// Makes one whose first argument is a name.
    pub(super) fn call_with_name(&mut self, number: usize, name: &str, second: u64) -> Result<u64, Errno> {
        self.hijacked(|hijack| hijack.call_with_name(number, name, second))
    }

    fn run_to_syscall_stop(&mut self) -> Result<(), Errno> {
        loop {
            ptrace::cont_to_syscall(self.tid, 0)?;
            match self.wait()? {
                Status::Syscall => return Ok(()),
                Status::Signal(SIGSTOP) => self.has_stop_signal = true,
                Status::Event(..) => {}
                _ => return Err(Errno::ESRCH),
            }
        }
    }

    fn wait(&self) -> Result<Status, Errno> {
        loop {
            match reports::take(self.tid, 0) {
                Err(Errno::EINTR) | Ok(None) => {}
                Ok(Some((_, status))) => return Ok(status),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Executes one instruction (one round of a repeated one).
    pub(super) fn step(&mut self) -> Result<Stepped, Errno> {
        loop {
            ptrace::step(self.tid, 0)?;
            match self.wait()? {
                Status::Signal(SIGTRAP) => return Ok(Stepped::Done),
                Status::Signal(SIGSTOP) => self.has_stop_signal = true,
                Status::Signal(signal) => return Ok(Stepped::Raised(signal)),
                Status::Event(..) | Status::Syscall => {}
                Status::Exited(_) | Status::Killed(_) | Status::Other(_) => return Ok(Stepped::Ended),
            }
        }
    }

    /// Gives it its signals back.
    pub(super) fn release(self) {
        let _ = ptrace::set_sigmask(self.tid, self.mask);
        if ptrace::regs(self.tid).is_ok_and(|regs| restarts(&regs)) {
            // The kernel starts a call again on its way past signals, which our own calls took already: this
            // sends it there once more.
            let _ = ptrace::interrupt(self.tid);
        }
        if self.has_stop_signal {
            let _ = sys::sched::kill(self.tid, SIGSTOP);
        }
    }
}

/// The registers with which a thread in a system call makes it once more.
pub(super) fn made_again(call: &Regs) -> Regs {
    Regs { rip: call.rip - 2, rax: call.orig_rax, orig_rax: u64::MAX, ..*call }
}

/// The watched bytes as a number.
pub(super) fn value(memory: &Memory, watch: &Watch) -> u64 {
    let mut bytes = [0u8; 8];
    let _ = memory.read(watch.addr, &mut bytes[..watch.len as usize]);
    u64::from_le_bytes(bytes)
}

/// The watches that the instruction at `regs.rip` will touch.
pub(super) fn touched(memory: &Memory, regs: &Regs, watches: &[Watch]) -> Result<Vec<usize>, Broken> {
    let mut code = [0u8; 15];
    let to_page_end = 4096 - (regs.rip as usize & 4095);
    let first = to_page_end.min(15);
    memory.read(regs.rip, &mut code[..first])?;
    // The next page may not be there; then the instruction ends before it.
    let _ = memory.read(regs.rip + first as u64, &mut code[first..]);
    let accesses = memory_accesses(&code, regs.rip, |n| register(regs, n));
    let is_meant = |watch: &Watch| {
        accesses.iter().any(|a| {
            a.meets(watch.addr, u64::from(watch.len)) && (a.is_written || watch.access == Access::ReadWrite)
        })
    };
    Ok(watches.iter().enumerate().filter(|(_, w)| is_meant(w)).map(|(n, _)| n).collect())
}

/// By hardware number; 16 and 17 are the bases of fs and gs (table).
fn register(r: &Regs, number: u8) -> u64 {
    let all = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15, r.fs_base, r.gs_base,
    ];
    all.get(usize::from(number)).copied().unwrap_or(0)
}

/// Protects pages by calls of a puppet.
pub(super) fn protect(puppet: &mut Puppet, pages: &[(u64, u64)]) -> Result<(), Errno> {
    pages
        .iter()
        .try_for_each(|(addr, prot)| puppet.call(nr::MPROTECT, [*addr, 4096, *prot, 0, 0, 0]).map(drop))
}

/// What there is of a thread's stack.
pub(super) fn stack(memory: &Memory, regs: &Regs) -> Stack {
    let mut word = [0u8; 8];
    let top = memory.read(regs.rsp, &mut word).ok().map(|()| u64::from_le_bytes(word));
    let (mut frame, mut found) = (regs.rbp, Vec::new());
    while found.len() < FRAMES_MAX && frame % 8 == 0 {
        let mut words = [0u8; 16];
        if memory.read(frame, &mut words).is_err() {
            break;
        }
        let [next, address] =
            [0, 8].map(|at| u64::from_le_bytes(words[at..at + 8].try_into().unwrap_or_default()));
        if address == 0 {
            break;
        }
        found.push(address);
        if next <= frame {
            break;
        }
        frame = next;
    }
    Stack { top, frames: found }
}
