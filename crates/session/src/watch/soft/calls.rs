//! System calls of a softly watched process that meet its protected pages.
//!
//! For:     `Soft`.
//! State:   in `Soft`.
//! Context: control.
//! Keeps:   V3 a call that would fail because of a protected page is made again with the pages open.
//!          V5 a call that changes what is mapped is made with the pages open and all other threads standing, and
//!             the pages are protected again as it left them: nobody gets by meanwhile.
//!          V6 as long as a call that takes long needs the pages open, nobody protects them: what is mapped then is the
//!             process's own doing, and taken for that.
//! Checked: testkit `watching`.

use super::{Page, Soft, step};
use crate::arch;
use crate::arch::made_again;
use crate::enter::journal::LEN;
use crate::hold::puppet::Puppet;
use crate::hold::reports::{self, NOHANG};
use image::Process;
use std::ops::Range;
use std::time::{Duration, Instant};
use sys::ptrace::{self, Regs};
use sys::wait::Status;
use sys::{Errno, nr};

const SIGSEGV: u64 = 11;
const MAP_FIXED: u64 = 0x10;
const MREMAP_FIXED: u64 = 2;
const SHM_REMAP: u64 = 0o40000;
/// How long others may stand for a system call that writes to a watched page.
const PATIENCE: Duration = Duration::from_millis(50);

impl Soft {
    pub(super) fn at_syscall(&mut self, tid: i32) -> Result<(), Errno> {
        let regs = ptrace::regs(tid)?;
        if self.open_for.contains(&tid) {
            if ptrace::is_at_entry(tid)? {
                return ptrace::cont_to_syscall(tid, 0);
            }
            self.open_for.remove(&tid);
            self.stop_others(tid);
            self.park(tid);
            self.close_again();
            return Ok(());
        }
        let (ranges, may_fill) = (changed_by(&regs), may_fill(&regs));
        let is_meant = |p: &Page| ranges.iter().any(|r| p.meets(r)) || may_fill && p.restored().is_none();
        if self.pages.iter().any(is_meant) && ptrace::is_at_entry(tid)? {
            self.receipt.map_calls += 1;
            self.needs_sync = true;
            return self.make_open(tid);
        }
        if arch::call_number(&regs) == nr::RT_SIGACTION
            && arch::arguments(&regs)[0] == SIGSEGV
            && arch::answer(&regs) == 0
        {
            let mut puppet = self.puppet(tid)?;
            let _ = self.learn_action(&mut puppet);
            puppet.release();
        }
        if arch::answer(&regs) as i64 != -i64::from(Errno::EFAULT.0) {
            return ptrace::cont_to_syscall(tid, 0);
        }
        self.receipt.calls += 1;
        ptrace::set_regs(tid, &made_again(&regs))?;
        self.make_open(tid)
    }

    /// Has the thread, which stands before a system call, make it with the pages open.
    fn make_open(&mut self, tid: i32) -> Result<(), Errno> {
        self.stop_others(tid);
        let mut puppet = self.puppet(tid)?;
        self.open(&mut puppet);
        puppet.release();
        let before = self.values();
        let is_over = self.run_call(tid)?;
        if !is_over {
            // It blocks, with the pages open: the others cannot stand for ever.
            self.receipt.blind_calls += 1;
            self.open_for.insert(tid);
            return Ok(());
        }
        // What a call that maps or unmaps has done there is no write.
        let are_theirs = !self.needs_sync;
        let changed = self.values().iter().zip(&before).filter(|(now, then)| now != then).count();
        self.receipt.kernel_changes += if are_theirs { changed as u64 } else { 0 };
        self.close_again();
        Ok(())
    }

    /// Runs the thread to the end of its call; false if that takes too long. Then it is parked, or gone.
    fn run_call(&mut self, tid: i32) -> Result<bool, Errno> {
        let began = Instant::now();
        let mut stops = 0;
        ptrace::cont_to_syscall(tid, 0)?;
        while began.elapsed() < PATIENCE {
            match reports::take(tid, NOHANG) {
                Ok(Some((_, Status::Syscall))) => stops += 1,
                Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) => {
                    self.forget(tid);
                    return Ok(true);
                }
                Ok(Some((_, status))) => {
                    self.queue.push_front((tid, status));
                    return Ok(true);
                }
                _ => {
                    std::thread::yield_now();
                    continue;
                }
            }
            if stops == 2 {
                self.park(tid);
                return Ok(true);
            }
            ptrace::cont_to_syscall(tid, 0)?;
        }
        Ok(false)
    }

    /// What the watches hold now, to see what the kernel wrote.
    fn values(&self) -> Vec<u64> {
        self.watches.iter().map(|w| step::value(&self.memory, w)).collect()
    }

    /// Takes notice of what the process has mapped, with all pages open.
    pub(super) fn sync(&mut self) {
        let Ok(process) = Process::read(self.pid as u32) else { return };
        self.pages.iter_mut().for_each(|page| page.sync(&process.mappings));
        let _ = self.journal.map_or(Ok(()), |j| j.write(&self.memory, &self.own()));
    }

    /// Gives the pages the process's own protection.
    pub(super) fn open(&self, puppet: &mut Puppet) {
        // One that cannot be opened is not there, or sealed: `sync` and `close` find that out.
        for how in self.own() {
            let _ = step::protect(puppet, &[how]);
        }
    }

    /// Protects the pages, and notes those that cannot be.
    pub(super) fn close(&mut self, puppet: &mut Puppet) -> Result<(), Errno> {
        for page in &mut self.pages {
            let Some(how) = Page::watched(page) else { continue };
            match step::protect(puppet, &[how]) {
                Ok(()) => {}
                Err(Errno::EPERM) => page.lapse = Some("the process has sealed it"),
                Err(Errno::ENOMEM) => page.lapse = Some("the process has unmapped it"),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Which addresses a system call maps, unmaps or protects anew; none for most calls.
fn changed_by(regs: &Regs) -> [Range<u64>; 2] {
    let none = || 0..0;
    let range = |at: u64, len: u64| at..at.saturating_add(len.next_multiple_of(LEN));
    let [a, b, c, d, e] = arch::arguments(regs);
    match arch::call_number(regs) {
        nr::MPROTECT | nr::PKEY_MPROTECT | nr::MUNMAP | nr::REMAP_FILE_PAGES | nr::MSEAL => {
            [range(a, b), none()]
        }
        nr::MREMAP if d & MREMAP_FIXED != 0 => [range(a, b), range(e, c)],
        nr::MREMAP => [range(a, b.max(1)), none()],
        nr::MMAP if d & MAP_FIXED != 0 => [range(a, b), none()],
        nr::BRK if a != 0 => [a..u64::MAX, none()],
        nr::SHMAT if c & SHM_REMAP != 0 => [b..u64::MAX, none()],
        nr::SHMDT => [a..u64::MAX, none()],
        _ => [none(), none()],
    }
}

/// Whether a page that is not there may be there afterwards.
fn may_fill(regs: &Regs) -> bool {
    matches!(arch::call_number(regs), nr::MMAP | nr::MREMAP | nr::SHMAT)
}
