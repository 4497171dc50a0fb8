//! System calls made by a stopped thread of the target on our behalf.
//!
//! For:     mapping and unmapping in the target.
//! State:   the thread's registers and signal mask, put back when the value drops.
//! Context: control.
//! Keeps:   C1 the thread's registers, mask and pending signals are afterwards what they were.
//!          C2 no instruction but `syscall` is executed, nothing is written to the thread's stack.
//! Checked: testkit `waits`, `signals`, `signals`.

use crate::error::Broken;
use crate::process;
use crate::world::{Thread, World};
use sys::ptrace::{self, Regs};
use sys::wait::{self, Status};
use sys::{Errno, check};

const SIGSTOP: i32 = 19;

/// A thread that makes calls for us.
#[derive(Debug)]
pub(crate) struct Remote<'a> {
    thread: &'a mut Thread,
    saved: Regs,
    mask: u64,
    gadget: u64,
    stop_signal: bool,
}

impl<'a> Remote<'a> {
    /// Takes one stopped thread; `gadget` is the address of a `syscall` instruction in it.
    pub fn begin(world: &'a mut World, gadget: u64) -> Result<Remote<'a>, Broken> {
        let pid = world.pid;
        let thread = world.worker()?;
        let saved = thread.regs;
        suspend_seccomp(pid, thread.tid)?;
        let gone = |_| Broken::Gone { pid };
        let mask = ptrace::sigmask(thread.tid).map_err(gone)?;
        ptrace::set_sigmask(thread.tid, u64::MAX).map_err(gone)?;
        Ok(Remote { thread, saved, mask, gadget, stop_signal: false })
    }

    /// Makes one call.
    pub fn call(&mut self, name: &'static str, number: usize, args: [u64; 6]) -> Result<u64, Broken> {
        let regs = Regs {
            rip: self.gadget,
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi: args[0],
            rsi: args[1],
            rdx: args[2],
            r10: args[3],
            r8: args[4],
            r9: args[5],
            ..self.saved
        };
        let tid = self.thread.tid;
        let gone = |_: Errno| Broken::Gone { pid: tid };
        ptrace::set_regs(tid, &regs).map_err(gone)?;
        self.run_run_to_syscall_stop()?;
        self.run_run_to_syscall_stop()?;
        let answer = ptrace::regs(tid).map_err(gone)?.rax;
        match check(answer as isize) {
            Ok(value) => Ok(value as u64),
            Err(errno) => Err(Broken::Remote { call: name, errno }),
        }
    }

    fn run_run_to_syscall_stop(&mut self) -> Result<(), Broken> {
        let tid = self.thread.tid;
        loop {
            ptrace::cont_to_syscall(tid, 0).map_err(|_| Broken::Gone { pid: tid })?;
            loop {
                match wait::wait(tid, wait::ALL) {
                    Err(Errno::EINTR) => continue,
                    Ok(Some((_, Status::Syscall))) => return Ok(()),
                    Ok(Some((_, Status::Signal(SIGSTOP)))) => self.stop_signal = true,
                    Ok(Some((_, Status::Event(..)))) => {}
                    _ => return Err(Broken::Gone { pid: tid }),
                }
                break;
            }
        }
    }
}

/// A seccomp filter could kill the thread for our calls: it is suspended while we trace, or we do not call.
fn suspend_seccomp(pid: i32, tid: i32) -> Result<(), Broken> {
    let Some(status) = process::Status::of(tid).filter(|s| s.seccomp != 0) else { return Ok(()) };
    let options = ptrace::O_TRACESYSGOOD | ptrace::O_SUSPEND_SECCOMP;
    let refused = Broken::Seccomp { pid, name: status.name, mode: status.seccomp };
    ptrace::set_options(tid, options).map_err(|_| refused)
}

impl Drop for Remote<'_> {
    fn drop(&mut self) {
        let tid = self.thread.tid;
        let _ = ptrace::set_sigmask(tid, self.mask);
        let _ = ptrace::set_regs(tid, &self.saved);
        if self.stop_signal {
            let _ = sys::sched::kill(tid, SIGSTOP);
        }
    }
}
