//! Watchpoints by page protection: as many as wanted.
//!
//! For:     `nanoprobe watch --soft`.
//! State:   all threads of the process traced; the watched pages without the right to write (or at all); a journal in
//!          the process of what they have to get back.
//! Context: control, all in one thread. The target stands still during each access to a watched page.
//! Keeps:   V1 each access counts once: all other threads stand while the page is open for the one instruction.
//!          V2: fault.rs. V3, V5: calls.rs.
//!          V4 a forked child gets its pages back and runs on untraced; so does one that shared the memory (vfork)
//!             and executes another program.
//!          V6 if this process is killed while no access is being made, whoever comes next gives the pages back.
//!          V7 a thread whose fault has not been reported yet is not let go before it is: it would die of it.
//!          Not kept: killed during an access, the accessing thread may get the fault, or our registers.
//! Checked: testkit `watching`.

mod calls;
mod fault;
mod page;

use super::callers::Callers;
use super::step;
use super::{Detail, Touch, Watch, WatchError};
use crate::enter::journal::{Journal, LEN, are_restored};
use crate::facts::descriptor;
use crate::facts::error::Broken;
use crate::facts::ported;
use crate::find::memory::Memory;
use crate::find::process;
use crate::find::proof::Gone;
use crate::hold::foothold::Foothold;
use crate::hold::hijack::OWN_FAULTS;
use crate::hold::interrupted::undo_interruption;
use crate::hold::puppet::Puppet;
use crate::hold::remote::deliver_raised;
use crate::hold::reports::{self, NOHANG};
use crate::hold::world::{World, patience};
use crate::leave::recover::recover;
use image::Process;
use page::Page;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::Status;
use sys::{Errno, sched};

const SIGSEGV: i32 = 11;
const SIGTRAP: i32 = 5;
const STOP_SIGNALS: [i32; 4] = [19, 20, 21, 22];
/// Stands for a stop that has nothing to tell.
const NOTHING: Status = Status::Event(0, 0);
const OPTIONS: usize = ptrace::O_TRACESYSGOOD
    | ptrace::O_TRACECLONE
    | ptrace::O_TRACEFORK
    | ptrace::O_TRACEVFORK
    | ptrace::O_TRACEEXEC;

/// Watches of a process by page protection.
#[derive(Debug)]
pub struct Soft {
    pid: i32,
    memory: Arc<Memory>,
    /// For stacks, if they are wanted.
    callers: Option<Callers>,
    foothold: Arc<Foothold>,
    watches: Vec<Watch>,
    pages: Vec<Page>,
    /// In the process; `None` before it is made.
    journal: Option<Journal>,
    /// Traced.
    threads: BTreeSet<i32>,
    /// Stops that were seen while others were waited for.
    queue: VecDeque<(i32, Status)>,
    /// The threads whose long system calls run with the pages open.
    open_for: BTreeSet<i32>,
    /// A system call has changed what is mapped.
    needs_sync: bool,
    detail: Detail,
    counts: Vec<u64>,
    touches: Vec<Touch>,
    receipt: SoftReceipt,
    has_ended: bool,
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
    /// System calls that were made again with the pages open.
    pub calls: u64,
    /// Watched values that such calls changed: writes of the kernel, which are in no count.
    pub kernel_changes: u64,
    /// System calls that mapped, unmapped or protected a watched page.
    pub map_calls: u64,
    /// Calls that took so long that others ran meanwhile, unwatched.
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
        ported::check("a watchpoint by page protection (--soft)")?;
        descriptor::reserve()?;
        recover(pid)?;
        let began = Instant::now();
        let memory = Arc::new(Memory::open(pid)?);
        let mut world = World::stop(pid)?;
        memory.check()?;
        let process = Process::read(pid as u32).map_err(WatchError::Image)?;
        let tids: Vec<i32> = world.threads().map(|t| t.tid).collect();
        let taboo: Vec<_> = tids.iter().flat_map(|tid| page::taboo(*tid)).collect();
        let mut pages: Vec<Page> = Vec::new();
        for watch in &watches {
            let page = Page::of(watch, &process.mappings, &taboo)?;
            match pages.iter_mut().find(|p| p.addr == page.addr) {
                Some(known) => known.join(&page),
                None => pages.push(page),
            }
        }
        let foothold = Foothold::find(&memory, &process.mappings)?;
        let has_filter = process::Status::of(pid)?.is_some_and(|s| s.seccomp != 0);
        let options = OPTIONS | if has_filter { ptrace::O_SUSPEND_SECCOMP } else { 0 };
        let refused = || Broken::Seccomp { pid, name: process::name(pid), mode: 2 };
        tids.iter().try_for_each(|tid| ptrace::set_options(*tid, options)).map_err(|_| refused())?;
        let mut soft = Soft {
            pid,
            callers: (detail == Detail::Stacks).then(|| Callers::of(Arc::clone(&memory))),
            memory,
            foothold: Arc::new(foothold),
            pages,
            journal: None,
            threads: tids.iter().copied().collect(),
            queue: VecDeque::new(),
            open_for: BTreeSet::new(),
            needs_sync: false,
            detail,
            counts: vec![0; watches.len()],
            watches,
            touches: Vec::new(),
            receipt: SoftReceipt::default(),
            has_ended: false,
            segv_action: [0; 32],
            took: Duration::ZERO,
            stall: Duration::ZERO,
        };
        if let Err((call, errno)) = soft.first_protect(caller(&mut world).unwrap_or(pid)) {
            // Nothing is left to give back: dropping it must not try.
            soft.threads.clear();
            drop(world);
            return Err(WatchError::Broken(Broken::Remote { call, errno }));
        }
        for (tid, since) in world.keep() {
            soft.stall = soft.stall.max(since.elapsed());
            let _ = ptrace::cont_to_syscall(tid, 0);
        }
        soft.took = began.elapsed();
        Ok(soft)
    }

    /// In a thread that `World` stopped.
    fn first_protect(&mut self, tid: i32) -> Result<(), (&'static str, Errno)> {
        let mut puppet = self.puppet(tid).map_err(|errno| ("ptrace", errno))?;
        let done = self.prepare(&mut puppet);
        if done.is_err() {
            self.open(&mut puppet);
            self.journal.inspect(|journal| journal.unmap(&mut puppet));
        }
        puppet.release();
        done
    }

    fn prepare(&mut self, puppet: &mut Puppet) -> Result<(), (&'static str, Errno)> {
        let journal = Journal::create(puppet, self.pages.len());
        let journal = journal.map_err(|errno| ("memfd_create", errno))?;
        self.journal = Some(journal);
        journal.write(&self.memory, &self.own()).map_err(|errno| ("write of the journal", errno))?;
        self.learn_action(puppet).map_err(|errno| ("rt_sigaction", errno))?;
        let watched: Vec<(u64, u64)> = self.pages.iter().filter_map(Page::watched).collect();
        step::protect(puppet, &watched).map_err(|errno| ("mprotect", errno))
    }

    fn own(&self) -> Vec<(u64, u64)> {
        self.pages.iter().filter_map(Page::restored).collect()
    }

    /// A thread of the process, to do as we say.
    fn puppet(&self, tid: i32) -> Result<Puppet, Errno> {
        Puppet::take(tid, self.memory.clone(), self.foothold.clone())
    }

    /// Handles what has happened; false if nothing had.
    pub fn handle(&mut self) -> bool {
        let next = self.queue.pop_front().or_else(|| match reports::take(-1, NOHANG) {
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
            self.forget(tid);
            return Ok(());
        }
        if !self.threads.contains(&tid) && !self.welcome(tid)? {
            return Ok(());
        }
        match status {
            Status::Signal(SIGSEGV) => match self.our_page(tid) {
                Some(page) => self.fault(tid, page),
                None => ptrace::cont_to_syscall(tid, SIGSEGV),
            },
            Status::Signal(signal) => ptrace::cont_to_syscall(tid, signal),
            Status::Syscall => self.at_syscall(tid),
            Status::Event(event::STOP, signal) if STOP_SIGNALS.contains(&signal) => ptrace::listen(tid),
            Status::Event(event::STOP, _) => {
                let mut regs = ptrace::regs(tid)?;
                if undo_interruption(tid, &mut regs, None) {
                    ptrace::set_regs(tid, &regs)?;
                }
                ptrace::cont_to_syscall(tid, 0)
            }
            Status::Event(event::EXEC, _) if tid != self.pid => {
                // A child that shared the memory has its own now.
                self.threads.remove(&tid);
                ptrace::detach(tid, 0)
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

    fn forget(&mut self, tid: i32) {
        self.threads.remove(&tid);
        if self.open_for.remove(&tid) {
            self.close_again();
        }
        if tid == self.pid {
            self.has_ended = true;
        }
    }

    /// A newcomer: a thread of ours is traced on, a forked child gets its pages back and is let go.
    fn welcome(&mut self, tid: i32) -> Result<bool, Errno> {
        let group = process::Status::of(tid).ok().flatten().map_or(0, |s| s.tgid);
        if group == self.pid || process::share_memory(self.pid, tid) {
            self.threads.insert(tid);
            return Ok(true);
        }
        // It has a copy of the memory.
        let memory = Arc::new(Memory::open(group).map_err(|_| Errno::ESRCH)?);
        let mut puppet = Puppet::take(tid, memory, self.foothold.clone())?;
        self.open(&mut puppet);
        self.journal.inspect(|journal| journal.unmap(&mut puppet));
        puppet.release();
        self.receipt.children += 1;
        ptrace::detach(tid, 0)?;
        Ok(false)
    }

    /// The thread has stopped with nothing to tell, and runs on when its turn comes.
    fn park(&mut self, tid: i32) {
        self.queue.push_front((tid, NOTHING));
    }

    /// A thread that stands and can make calls for us: one that stands before no signal, if there is one. From one before a
    /// fault of ours that cause cannot be read afterwards: it makes its access anew.
    fn parked(&mut self) -> Option<i32> {
        let is_free = |(_, status): &(i32, Status)| !matches!(status, Status::Signal(_));
        let chosen = self.queue.iter().position(is_free).unwrap_or(0);
        let (tid, status) = *self.queue.get(chosen)?;
        if status == Status::Signal(SIGSEGV) && self.our_page(tid).is_some() {
            self.queue[chosen].1 = NOTHING;
        }
        Some(tid)
    }

    /// Protects the pages again by whichever thread stands, unless somebody's call still needs them open; the others must
    /// stand too.
    fn close_again(&mut self) {
        if !self.open_for.is_empty() {
            return;
        }
        if std::mem::take(&mut self.needs_sync) {
            self.sync();
        }
        let Some(tid) = self.parked() else { return };
        if let Ok(mut puppet) = self.puppet(tid) {
            let _ = self.close(&mut puppet);
            puppet.release();
        }
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
            match reports::take(tid, NOHANG) {
                Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) => {
                    return self.forget(tid);
                }
                // It has made an access, whose fault comes next: nobody may be let go, or make a call for us, before that.
                Ok(Some((_, Status::Event(event::STOP, signal))))
                    if !STOP_SIGNALS.contains(&signal)
                        && ptrace::has_raised_signal(tid, OWN_FAULTS) == Ok(true)
                        && ptrace::cont_to_syscall(tid, 0).is_ok() => {}
                Ok(Some((_, status))) => return self.queue.push_back((tid, status)),
                Ok(None) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
            let waited = began.elapsed();
            if waited < Duration::from_millis(2) {
                std::thread::yield_now();
                continue;
            }
            match process::thread_state(self.pid, tid) {
                // In the kernel, uninterruptible: it will stop before it runs its own code again.
                Some('D' | 'Z' | 'X') => return,
                // It waits for a CPU.
                Some('R') if waited < patience() => {}
                None if sched::tgkill(self.pid, tid, 0) == Err(Errno::ESRCH) => return,
                _ if waited > Duration::from_secs(1) => return,
                _ => {}
            }
            std::thread::sleep(Duration::from_micros(100));
        }
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
        !self.threads.is_empty() && !self.has_ended && !self.receipt.was_gone
    }

    /// Watches that see nothing now, and why.
    pub fn lapsed(&self) -> impl Iterator<Item = (&Watch, &'static str)> {
        let lapse = |w: &Watch| self.pages.iter().find(|p| p.addr == w.addr & !(LEN - 1))?.lapse;
        self.watches.iter().filter_map(move |w| Some((w, lapse(w)?)))
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
        let _released = descriptor::release();
        if self.is_alive() {
            self.stop_others(0);
            let any = self.parked();
            if let Some(mut puppet) = any.and_then(|tid| self.puppet(tid).ok()) {
                self.open(&mut puppet);
                self.journal.inspect(|journal| journal.unmap(&mut puppet));
                puppet.release();
            }
            self.receipt.is_verified = are_restored(self.pid, &self.own()).is_some();
            self.let_go();
        } else {
            self.receipt.was_gone = Gone::proven(&self.memory).is_some();
            self.receipt.is_verified = self.receipt.was_gone;
        }
        self.receipt
    }

    fn let_go(&mut self) {
        let parked = std::mem::take(&mut self.queue);
        for (tid, status) in parked {
            let signal = match status {
                // A fault of ours: the instruction runs again, and is free to now.
                Status::Signal(SIGSEGV) if self.our_page(tid).is_some() => 0,
                Status::Signal(SIGTRAP) | Status::Event(..) | Status::Syscall => 0,
                Status::Signal(signal) => signal,
                _ => continue,
            };
            let _ = ptrace::detach(tid, signal);
            self.threads.remove(&tid);
        }
    }
}

/// A thread of a stopped process that can make calls for us.
fn caller(world: &mut World) -> Option<i32> {
    let is_free = |tid: &i32| ptrace::has_raised_signal(*tid, OWN_FAULTS) != Ok(true);
    let free = world.threads().map(|t| t.tid).find(is_free);
    free.or_else(|| {
        let first = world.threads_mut().next()?;
        deliver_raised(first).ok().map(|()| first.tid)
    })
}

impl Drop for Soft {
    fn drop(&mut self) {
        if !self.threads.is_empty() && !self.receipt.is_verified {
            self.leave();
        }
    }
}
