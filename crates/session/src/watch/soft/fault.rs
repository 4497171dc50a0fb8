//! A fault on a watched page: one access.
//!
//! For:     `Soft`.
//! State:   in `Soft`.
//! Context: control.
//! Keeps:   V1 an access is counted once, when it is made, with the value that it found and left: all other threads
//!          stand meanwhile.
//!          V2 a fault that is not ours is delivered; the process's handlers stay as they were.
//! Checked: testkit `watching`.

use super::page::ABORTS_MAX;
use super::{LEN, Page, Soft, step};
use crate::arch::walked;
use crate::hold::puppet::{Puppet, Stepped};
use crate::hold::sequence::Standing;
use crate::watch::{At, Detail, Stack, Touch};
use std::sync::Arc;
use sys::{Errno, nr, ptrace};

const SIGSEGV: i32 = 11;
/// si_code of a fault for want of permission.
const SEGV_ACCERR: i32 = 2;

impl Soft {
    /// The page whose protection raised the signal before which the thread stands, if it was ours.
    pub(super) fn our_page(&self, tid: i32) -> Option<Page> {
        let (code, addr) = ptrace::signal_cause(tid).ok()?;
        let page = self.pages.iter().find(|p| p.addr == addr & !(LEN - 1))?;
        (code == SEGV_ACCERR).then_some(*page)
    }

    /// Lets one thread make its access, with the pages that it touches open and all others standing.
    pub(super) fn fault(&mut self, tid: i32, page: Page) -> Result<(), Errno> {
        self.receipt.faults += 1;
        self.stop_others(tid);
        // For a call that takes long, since the fault; they stay open.
        let are_open = !self.open_for.is_empty();
        let regs = ptrace::regs(tid)?;
        let standing = Standing::of(&self.memory, tid, &regs);
        if let Standing::Inside(_) = standing {
            standing.abandon(&self.memory, tid, regs)?;
            return self.was_aborted(tid, page);
        }
        let mut puppet = self.puppet(tid)?;
        self.mend_action(&mut puppet)?;
        let touched = step::touched(&self.memory, &regs, &self.watches).unwrap_or_default();
        let before: Vec<u64> = touched.iter().map(|n| step::value(&self.memory, &self.watches[*n])).collect();
        let memory = Arc::clone(&self.memory);
        let stack = match &mut self.callers {
            Some(callers) => callers.find(walked(&regs), |addr| memory.word(addr)),
            None => Stack::default(),
        };
        let stepped = if are_open { puppet.step()? } else { self.step_open(&mut puppet, page)? };
        match stepped {
            Stepped::Ended => {
                self.forget(tid);
                self.close_again();
            }
            Stepped::Raised(signal) => {
                // Its own fault: it stands before the delivery, and must stop again before its handler runs.
                puppet.release();
                ptrace::interrupt(tid)?;
                ptrace::cont_to_syscall(tid, signal)?;
                self.await_stop(tid);
                self.close_again();
            }
            Stepped::Done => {
                let at = At::Instruction(regs.pc());
                for (watch, before) in touched.into_iter().zip(before) {
                    self.note(Touch {
                        watch,
                        pid: self.pid,
                        tid,
                        at,
                        before: Some(before),
                        after: None,
                        stack: stack.clone(),
                    });
                }
                if !are_open {
                    self.close(&mut puppet)?;
                }
                puppet.release();
                ptrace::cont_to_syscall(tid, 0)?;
            }
        }
        Ok(())
    }

    /// A restartable sequence was about to access the page: the fault alone has aborted it, and no access was made. One that
    /// is aborted again and again would never end: then the page is watched no more.
    fn was_aborted(&mut self, tid: i32, page: Page) -> Result<(), Errno> {
        let own = page.restored();
        if let Some(page) = self.pages.iter_mut().find(|p| p.addr == page.addr) {
            page.aborts += 1;
            if page.aborts > ABORTS_MAX {
                page.lapse = Some("a restartable sequence of the process accesses it");
                let mut puppet = self.puppet(tid)?;
                step::protect(&mut puppet, own.as_slice())?;
                puppet.release();
            }
        }
        ptrace::cont_to_syscall(tid, 0)
    }

    /// Steps with this page open, and others that the same instruction touches.
    fn step_open(&self, puppet: &mut Puppet, page: Page) -> Result<Stepped, Errno> {
        let mut open = vec![page];
        loop {
            let how: Vec<(u64, u64)> = open.last().and_then(Page::restored).into_iter().collect();
            step::protect(puppet, &how)?;
            let stepped = puppet.step()?;
            let other = match stepped {
                Stepped::Raised(SIGSEGV) => self.our_page(puppet.tid),
                _ => None,
            };
            match other.filter(|o| open.iter().all(|p| p.addr != o.addr)) {
                Some(page) => open.push(page),
                None => return Ok(stepped),
            }
        }
    }

    /// Counts an access that was made, with the value that it left.
    fn note(&mut self, touch: Touch) {
        self.counts[touch.watch] += 1;
        if self.detail > Detail::Count {
            let after = Some(step::value(&self.memory, &self.watches[touch.watch]));
            self.touches.push(Touch { after, ..touch });
        }
    }

    /// A fault while SIGSEGV is blocked made the kernel forget handler and mask: they are set again.
    fn mend_action(&mut self, puppet: &mut Puppet) -> Result<(), Errno> {
        let handler = u64::from_le_bytes(self.segv_action[..8].try_into().unwrap_or_default());
        let status = std::fs::read(format!("/proc/{}/status", puppet.tid)).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let set = |key: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("0");
            u64::from_str_radix(line.trim(), 16).unwrap_or(0) & (1 << (SIGSEGV - 1)) != 0
        };
        let is_kept = match handler {
            0 => true,
            1 => set("SigIgn:"),
            _ => set("SigCgt:"),
        };
        if is_kept {
            return Ok(());
        }
        let at = self.journal.ok_or(Errno::EFAULT)?.scratch();
        self.memory.write(at, &self.segv_action).map_err(|_| Errno::EFAULT)?;
        puppet.call(nr::RT_SIGACTION, [SIGSEGV as u64, at, 0, 8, 0, 0])?;
        if handler > 1 {
            // Only a blocked signal loses its handler.
            puppet.mask |= 1 << (SIGSEGV - 1);
        }
        Ok(())
    }

    pub(super) fn learn_action(&mut self, puppet: &mut Puppet) -> Result<(), Errno> {
        let at = self.journal.ok_or(Errno::EFAULT)?.scratch();
        puppet.call(nr::RT_SIGACTION, [SIGSEGV as u64, 0, at, 8, 0, 0])?;
        self.memory.read(at, &mut self.segv_action).map_err(|_| Errno::EFAULT)
    }
}
