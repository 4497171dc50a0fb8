//! Watchpoints by page protection: as many as wanted.
//!
//! For:     `nanoprobe watch --soft`.
//! State:   all threads of the process traced; the watched pages without the right to write (or at all).
//! Context: control, all in one thread. The target stands still during each access to a watched page.
//! Keeps:   V1 each access counts once: all other threads stand while the page is open for the one instruction.
//!          V2 a fault that is not ours is delivered; the process's handlers stay as they were.
//!          V3 a system call that would fail because of a protected page is made again with the pages open.
//!          V4 a forked child gets its pages back and runs on untraced.
//!          Not kept: if this process is killed by SIGKILL, the pages stay protected.
//! Checked: testkit `watching`.

use super::step::{self, Puppet, Stepped};
use super::{Access, At, Detail, Touch, Watch, WatchError};
use crate::attach::find_syscall;
use crate::memory::Memory;
use crate::process;
use crate::world::{World, undo_interruption};
use image::{Mapping, Process};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::{self, Status};
use sys::{Errno, nr};

const SIGSEGV: i32 = 11;
const SIGTRAP: i32 = 5;
const STOP_SIGNALS: [i32; 4] = [19, 20, 21, 22];
/// si_code of a fault for want of permission.
const SEGV_ACCERR: i32 = 2;
const PAGE: u64 = 4096;
const PROT_READ: u64 = 1;
const PROT_WRITE: u64 = 2;
const PROT_EXEC: u64 = 4;
/// How long others may stand for a system call that writes to a watched page.
const CALL_PATIENCE: Duration = Duration::from_millis(50);
const OPTIONS: usize = ptrace::O_TRACESYSGOOD
    | ptrace::O_TRACECLONE
    | ptrace::O_TRACEFORK
    | ptrace::O_TRACEVFORK
    | ptrace::O_TRACEEXEC;

/// A watched page.
#[derive(Clone, Copy, Debug)]
struct Page {
    addr: u64,
    /// What the process gave it.
    own: u64,
    /// What it has while watched.
    watched: u64,
}

/// Watches of a process by page protection.
#[derive(Debug)]
pub struct Soft {
    pid: i32,
    memory: Memory,
    gadget: u64,
    watches: Vec<Watch>,
    pages: Vec<Page>,
    /// Traced.
    threads: BTreeSet<i32>,
    /// Stops that were seen while others were waited for.
    queue: VecDeque<(i32, Status)>,
    /// The thread whose long system call runs with the pages open.
    open_for: Option<i32>,
    detail: Detail,
    counts: Vec<u64>,
    touches: Vec<Touch>,
    receipt: SoftReceipt,
    ended: Option<Status>,
    /// The kernel's record of the SIGSEGV handler: a fault while it is blocked makes the kernel forget it.
    segv_action: [u8; 32],
    took: Duration,
    stall: Duration,
}

/// What a soft watch did besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftReceipt {
    /// Faults on watched pages.
    pub faults: u64,
    /// System calls that were made again with the pages open. What the kernel wrote is not counted.
    pub calls: u64,
    /// Of those, calls that took so long that others ran meanwhile, unwatched.
    pub blind_calls: u64,
    /// Forked children that were let go.
    pub children: u64,
    /// Every page has its own protection again.
    pub is_verified: bool,
    /// The process ended before.
    pub was_gone: bool,
}

impl Soft {
    /// Watches from now on, on all threads and those that they will start.
    ///
    /// # Errors
    /// See [`WatchError`]; then the process is as before.
    pub fn arm(pid: i32, watches: Vec<Watch>, detail: Detail) -> Result<Soft, WatchError> {
        let began = Instant::now();
        let memory = Memory::open(pid)?;
        let world = World::stop(pid)?;
        let process = Process::read(pid as u32).map_err(WatchError::Image)?;
        let stacks: Vec<u64> = world.threads().map(|t| t.regs.rsp).collect();
        let mut pages: Vec<Page> = Vec::new();
        for watch in &watches {
            let page = page_of(watch, &process.mappings, &stacks)?;
            match pages.iter_mut().find(|p| p.addr == page.addr) {
                Some(known) => known.watched &= page.watched,
                None => pages.push(page),
            }
        }
        let gadget = find_syscall(&memory, &process.mappings)?;
        let has_filter = process::Status::of(pid).is_some_and(|s| s.seccomp != 0);
        let options = OPTIONS | if has_filter { ptrace::O_SUSPEND_SECCOMP } else { 0 };
        let tids: Vec<i32> = world.threads().map(|t| t.tid).collect();
        let refused = || crate::Broken::Seccomp { pid, name: process::name(pid), mode: 2 };
        tids.iter().try_for_each(|tid| ptrace::set_options(*tid, options)).map_err(|_| refused())?;
        let counts = vec![0; watches.len()];
        let mut soft = Soft {
            pid,
            memory,
            gadget,
            watches,
            pages,
            threads: tids.iter().copied().collect(),
            queue: VecDeque::new(),
            open_for: None,
            detail,
            counts,
            touches: Vec::new(),
            receipt: SoftReceipt::default(),
            ended: None,
            segv_action: [0; 32],
            took: Duration::ZERO,
            stall: Duration::ZERO,
        };
        if let Err(errno) = soft.first_protect(tids.first().copied().unwrap_or(pid)) {
            drop(world);
            return Err(WatchError::Broken(crate::Broken::Remote { call: "mprotect", errno }));
        }
        for (tid, since) in world.keep() {
            soft.stall = soft.stall.max(since.elapsed());
            let _ = ptrace::cont_to_syscall(tid, 0);
        }
        soft.took = began.elapsed();
        Ok(soft)
    }

    /// In a thread that `World` stopped.
    fn first_protect(&mut self, tid: i32) -> Result<(), Errno> {
        let mut puppet = Puppet::take(tid, self.gadget)?;
        let done = self.learn_action(&mut puppet).and_then(|()| step::protect(&mut puppet, &self.watched()));
        if done.is_err() {
            let _ = step::protect(&mut puppet, &self.own());
        }
        puppet.release();
        done
    }

    fn watched(&self) -> Vec<(u64, u64)> {
        self.pages.iter().map(|p| (p.addr, p.watched)).collect()
    }

    fn own(&self) -> Vec<(u64, u64)> {
        self.pages.iter().map(|p| (p.addr, p.own)).collect()
    }

    /// Room below the thread's red zone.
    fn scratch(tid: i32) -> Result<u64, Errno> {
        Ok((ptrace::regs(tid)?.rsp - 512) & !15)
    }

    fn learn_action(&mut self, puppet: &mut Puppet) -> Result<(), Errno> {
        let at = Soft::scratch(puppet.tid)?;
        puppet.call(nr::RT_SIGACTION, [SIGSEGV as u64, 0, at, 8])?;
        self.memory.read(at, &mut self.segv_action).map_err(|_| Errno::EFAULT)
    }

    /// Handles what has happened; false if nothing had.
    pub fn handle(&mut self) -> bool {
        let next = self.queue.pop_front().or_else(|| match wait::wait(-1, wait::ALL | wait::NOHANG) {
            Ok(stopped) => stopped,
            Err(Errno::ECHILD) => {
                self.threads.clear();
                None
            }
            Err(_) => None,
        });
        let Some((tid, status)) = next else { return false };
        // A thread that ended in the middle of it will be reported as ended.
        let _ = self.dispatch(tid, status);
        true
    }

    fn dispatch(&mut self, tid: i32, status: Status) -> Result<(), Errno> {
        if let Status::Exited(_) | Status::Killed(_) = status {
            self.forget(tid, status);
            return Ok(());
        }
        if !self.threads.contains(&tid) && !self.welcome(tid)? {
            return Ok(());
        }
        match status {
            Status::Signal(SIGSEGV) if self.is_ours(tid) => self.fault(tid),
            Status::Signal(signal) => ptrace::cont_to_syscall(tid, signal),
            Status::Syscall => self.at_syscall(tid),
            Status::Event(event::STOP, signal) if STOP_SIGNALS.contains(&signal) => ptrace::listen(tid),
            Status::Event(event::STOP, _) => {
                let mut regs = ptrace::regs(tid)?;
                if undo_interruption(tid, &mut regs) {
                    ptrace::set_regs(tid, &regs)?;
                }
                ptrace::cont_to_syscall(tid, 0)
            }
            Status::Event(event::EXEC, _) => {
                // Another program: nothing of what was watched is there.
                self.pages.clear();
                self.receipt.was_gone = true;
                self.threads.clear();
                ptrace::detach(tid, 0)
            }
            _ => ptrace::cont_to_syscall(tid, 0),
        }
    }

    fn forget(&mut self, tid: i32, status: Status) {
        self.threads.remove(&tid);
        if self.open_for == Some(tid) {
            self.close_again();
        }
        if tid == self.pid {
            self.ended = Some(status);
        }
    }

    /// A newcomer: a thread of ours is traced on, a forked child gets its pages back and is let go.
    fn welcome(&mut self, tid: i32) -> Result<bool, Errno> {
        let group = process::Status::of(tid).map_or(0, |s| s.tgid);
        if group == self.pid || sys::remote::same_memory(self.pid, tid) == Ok(true) {
            self.threads.insert(tid);
            return Ok(true);
        }
        let mut puppet = Puppet::take(tid, self.gadget)?;
        let _ = step::protect(&mut puppet, &self.own());
        puppet.release();
        self.receipt.children += 1;
        ptrace::detach(tid, 0)?;
        Ok(false)
    }

    /// Whether a fault comes from our protection.
    fn is_ours(&self, tid: i32) -> bool {
        let Ok((code, addr)) = ptrace::signal_cause(tid) else { return false };
        code == SEGV_ACCERR && self.pages.iter().any(|p| p.addr == addr & !(PAGE - 1))
    }

    /// Lets one thread make its access, with the pages open and all others standing.
    fn fault(&mut self, tid: i32) -> Result<(), Errno> {
        self.receipt.faults += 1;
        self.stop_others(tid);
        let regs = ptrace::regs(tid)?;
        let mut puppet = Puppet::take(tid, self.gadget)?;
        self.mend_action(&mut puppet)?;
        let touched = step::touched(&self.memory, &regs, &self.watches).unwrap_or_default();
        let before: Vec<u64> = touched.iter().map(|n| step::value(&self.memory, &self.watches[*n])).collect();
        let callers = match self.detail {
            Detail::Stacks => step::callers(&self.memory, &regs),
            _ => Vec::new(),
        };
        step::protect(&mut puppet, &self.own())?;
        let stepped = puppet.step()?;
        if stepped == Stepped::Done {
            for (watch, before) in touched.into_iter().zip(before) {
                let after = step::value(&self.memory, &self.watches[watch]);
                self.counts[watch] += 1;
                if self.detail > Detail::Count {
                    let (at, callers) = (At::Instruction(regs.rip), callers.clone());
                    let (pid, before, after) = (self.pid, Some(before), Some(after));
                    self.touches.push(Touch { watch, pid, tid, at, before, after, callers });
                }
            }
        }
        match stepped {
            Stepped::Ended(status) => {
                self.forget(tid, status);
                self.close_again();
                return Ok(());
            }
            Stepped::Raised(signal) => {
                // Its own fault: it stands before the delivery, and must stop again before its handler runs.
                puppet.release();
                ptrace::interrupt(tid)?;
                ptrace::cont_to_syscall(tid, signal)?;
                self.await_stop(tid);
                self.close_again();
                return Ok(());
            }
            Stepped::Done => {}
        }
        step::protect(&mut puppet, &self.watched())?;
        puppet.release();
        ptrace::cont_to_syscall(tid, 0)
    }

    /// Protects the pages again by whichever thread stands; the others must stand too.
    fn close_again(&mut self) {
        self.open_for = None;
        let Some(tid) = self.queue.front().map(|(tid, _)| *tid) else { return };
        if let Ok(mut puppet) = Puppet::take(tid, self.gadget) {
            let _ = step::protect(&mut puppet, &self.watched());
            puppet.release();
        }
    }

    /// A fault while SIGSEGV is blocked made the kernel forget handler and mask: they are set again.
    fn mend_action(&mut self, puppet: &mut Puppet) -> Result<(), Errno> {
        let handler = u64::from_le_bytes(self.segv_action[..8].try_into().unwrap_or_default());
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
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
        let at = Soft::scratch(puppet.tid)?;
        self.memory.write(at, &self.segv_action).map_err(|_| Errno::EFAULT)?;
        puppet.call(nr::RT_SIGACTION, [SIGSEGV as u64, at, 0, 8])?;
        if handler > 1 {
            // Only a blocked signal loses its handler.
            puppet.mask |= 1 << (SIGSEGV - 1);
        }
        Ok(())
    }

    /// Stops every other thread; what they report waits in the queue.
    fn stop_others(&mut self, but: i32) {
        let others: Vec<i32> = self.threads.iter().copied().filter(|t| *t != but).collect();
        let is_parked = |queue: &VecDeque<(i32, Status)>, tid: i32| queue.iter().any(|(t, _)| *t == tid);
        let asked: Vec<i32> = others.into_iter().filter(|t| !is_parked(&self.queue, *t)).collect();
        for tid in &asked {
            let _ = ptrace::interrupt(*tid);
        }
        asked.iter().for_each(|tid| self.await_stop(*tid));
    }

    fn await_stop(&mut self, tid: i32) {
        let began = Instant::now();
        loop {
            match wait::wait(tid, wait::ALL | wait::NOHANG) {
                Ok(Some((_, status @ (Status::Exited(_) | Status::Killed(_))))) => {
                    return self.forget(tid, status);
                }
                Ok(Some((_, status))) => return self.queue.push_back((tid, status)),
                Ok(None) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
            // In the kernel, uninterruptible: it will stop before it runs its own code again.
            let waited = began.elapsed();
            if waited > Duration::from_millis(2)
                && matches!(process::thread_state(self.pid, tid), None | Some('D' | 'Z' | 'X'))
                || waited > Duration::from_secs(1)
            {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// At a system call: one that failed because of a protected page is made again.
    fn at_syscall(&mut self, tid: i32) -> Result<(), Errno> {
        let regs = ptrace::regs(tid)?;
        let is_over = self.open_for == Some(tid);
        if is_over {
            self.stop_others(tid);
            self.queue.push_front((tid, Status::Event(0, 0)));
            self.close_again();
            return Ok(());
        }
        let is_action = regs.orig_rax == nr::RT_SIGACTION as u64 && regs.rdi == SIGSEGV as u64;
        if is_action && regs.rax == 0 {
            let mut puppet = Puppet::take(tid, self.gadget)?;
            let _ = self.learn_action(&mut puppet);
            puppet.release();
        }
        if regs.rax as i64 != -i64::from(Errno::EFAULT.0) {
            return ptrace::cont_to_syscall(tid, 0);
        }
        self.retry(tid)
    }

    fn retry(&mut self, tid: i32) -> Result<(), Errno> {
        self.receipt.calls += 1;
        self.stop_others(tid);
        let mut puppet = Puppet::take(tid, self.gadget)?;
        step::protect(&mut puppet, &self.own())?;
        puppet.release();
        let mut regs = ptrace::regs(tid)?;
        regs.rip -= 2;
        (regs.rax, regs.orig_rax) = (regs.orig_rax, u64::MAX);
        ptrace::set_regs(tid, &regs)?;
        let began = Instant::now();
        let mut stops = 0;
        ptrace::cont_to_syscall(tid, 0)?;
        while began.elapsed() < CALL_PATIENCE {
            match wait::wait(tid, wait::ALL | wait::NOHANG) {
                Ok(Some((_, Status::Syscall))) => stops += 1,
                Ok(Some((_, status @ (Status::Exited(_) | Status::Killed(_))))) => {
                    self.forget(tid, status);
                    self.close_again();
                    return Ok(());
                }
                Ok(Some((_, status))) => {
                    self.queue.push_front((tid, status));
                    self.close_again();
                    return Ok(());
                }
                _ => {
                    std::thread::yield_now();
                    continue;
                }
            }
            if stops == 2 {
                self.queue.push_front((tid, Status::Event(0, 0)));
                self.close_again();
                return Ok(());
            }
            ptrace::cont_to_syscall(tid, 0)?;
        }
        // It blocks, with the pages open: the others cannot stand for ever.
        self.receipt.blind_calls += 1;
        self.open_for = Some(tid);
        Ok(())
    }

    /// The watches, each with its accesses so far.
    pub fn counts(&self) -> impl Iterator<Item = (&Watch, u64)> {
        self.watches.iter().zip(self.counts.iter().copied())
    }

    /// A watch by its number.
    pub fn watch(&self, number: usize) -> Option<&Watch> {
        self.watches.get(number)
    }

    /// The accesses since the last call; none if only counts were wanted.
    pub fn take_touches(&mut self) -> Vec<Touch> {
        std::mem::take(&mut self.touches)
    }

    /// Whether anything is left to watch.
    pub fn is_alive(&self) -> bool {
        !self.threads.is_empty() && self.ended.is_none() && !self.receipt.was_gone
    }

    /// How the process ended: its code, or 128 and the signal.
    pub fn exit_code(&self) -> Option<i32> {
        match self.ended? {
            Status::Exited(code) => Some(code),
            Status::Killed(signal) => Some(128 + signal),
            _ => None,
        }
    }

    /// How many pages are protected, and threads traced.
    pub fn size(&self) -> (usize, usize) {
        (self.pages.len(), self.threads.len())
    }

    /// How long arming took, and the longest time that a thread stood for it.
    pub fn times(&self) -> (Duration, Duration) {
        (self.took, self.stall)
    }

    /// Gives the pages their protection back and lets all threads go.
    pub fn leave(&mut self) -> SoftReceipt {
        if self.is_alive() {
            self.stop_others(0);
            let any = self.queue.front().map(|(tid, _)| *tid);
            if let Some(mut puppet) = any.and_then(|tid| Puppet::take(tid, self.gadget).ok()) {
                let _ = step::protect(&mut puppet, &self.own());
                puppet.release();
            }
            self.receipt.is_verified = self.is_restored();
            self.let_go();
        } else {
            self.receipt.was_gone = true;
            self.receipt.is_verified = true;
        }
        self.receipt
    }

    fn let_go(&mut self) {
        let parked = std::mem::take(&mut self.queue);
        for (tid, status) in parked {
            let signal = match status {
                // A fault of ours: the instruction runs again, and is free to now.
                Status::Signal(SIGSEGV) if self.is_ours(tid) => 0,
                Status::Signal(SIGTRAP) | Status::Event(..) | Status::Syscall => 0,
                Status::Signal(signal) => signal,
                _ => continue,
            };
            let _ = ptrace::detach(tid, signal);
            self.threads.remove(&tid);
        }
    }

    /// Compares the process's own map with what it was.
    fn is_restored(&self) -> bool {
        let Ok(process) = Process::read(self.pid as u32) else { return false };
        self.pages.iter().all(|page| {
            let at = process.mappings.iter().find(|m| m.range.contains(&image::Addr(page.addr)));
            at.is_some_and(|m| prot_of(m) == page.own)
        })
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        if !self.threads.is_empty() && !self.receipt.is_verified {
            self.leave();
        }
    }
}

fn prot_of(m: &Mapping) -> u64 {
    let p = m.permissions;
    let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
    bit(p.is_readable, PROT_READ) | bit(p.is_writable, PROT_WRITE) | bit(p.is_executable, PROT_EXEC)
}

/// The page of a watch, if it may be protected.
fn page_of(watch: &Watch, mappings: &[Mapping], stacks: &[u64]) -> Result<Page, WatchError> {
    let refuse = |why| WatchError::NoPage { name: watch.name.clone(), addr: watch.addr, why };
    let mapping = mappings.iter().find(|m| m.range.contains(&image::Addr(watch.addr)));
    let mapping = mapping.ok_or_else(|| refuse("nothing is mapped there"))?;
    let own = prot_of(mapping);
    if own & PROT_EXEC != 0 {
        return Err(refuse("it is code"));
    }
    if own & PROT_WRITE == 0 && watch.access == Access::Write {
        return Err(refuse("the process cannot write there itself"));
    }
    let is_stack = |sp: &u64| mapping.range.contains(&image::Addr(*sp));
    if mapping.path.as_os_str() == "[stack]" || stacks.iter().any(is_stack) {
        return Err(refuse("it is a stack, which the kernel writes to as well"));
    }
    let watched = match watch.access {
        Access::Write => own & !PROT_WRITE,
        Access::ReadWrite => 0,
    };
    Ok(Page { addr: watch.addr & !(PAGE - 1), own, watched })
}
