//! A process that runs code for us, on its own thread.
//!
//! For:     the engine `target` of `bpf exec`, and tortures that put it beside the others.
//! State:   two mappings in a process that stands still while this lives.
//! Context: control, apart (tracer.rs): one OS thread.
//! Keeps:   V1 no mapping is ever writable and executable: code is written from outside, through /proc/PID/mem.
//!          V2 between two runs, and after the last, the thread's registers and mask are what they were.
//!          V3 a signal that the code raises is not delivered: the run ends and names it.
//! Checked: testkit `bpf`; `torture bpf --engines target`.

use crate::arch;
use crate::facts::error::Broken;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::hold::foothold::Foothold;
use crate::hold::hijack::{OWN_FAULTS, Unmade, run_to_syscall_stop};
use crate::hold::remote::Remote;
use crate::hold::world::World;
use std::ops::Range;
use sys::mapping as mm;
use sys::ptrace;
use sys::{Errno, nr};

/// Bytes for code, and for what it works on; the upper half of that is the thread's stack.
const CODE_LEN: u64 = 1 << 20;
const DATA_LEN: u64 = 1 << 20;

/// A process that stands still, and calls what it is given.
#[derive(Debug)]
pub struct Guest {
    world: World,
    memory: Memory,
    foothold: Foothold,
    code: Range<u64>,
    data: Range<u64>,
}

impl Guest {
    /// Stops a process and maps room for code and data in it.
    ///
    /// # Errors
    /// As for an attach: it may not be traced, is gone, or has no memory left.
    pub fn enter(pid: i32) -> Result<Guest, Broken> {
        let memory = Memory::open(pid)?;
        let foothold = Foothold::find(&memory, &image_maps(pid)?)?;
        let mut world = World::stop(pid)?;
        memory.check()?;
        let mut remote = Remote::begin(&mut world, &memory, &foothold)?;
        let mut map = |len: u64, prot: usize| {
            let flags = (mm::MAP_PRIVATE | mm::MAP_ANONYMOUS) as u64;
            let at = remote.call("mmap", nr::MMAP, [0, len, prot as u64, flags, u64::MAX, 0])?;
            Ok::<_, Broken>(at..at + len)
        };
        let code = map(CODE_LEN, mm::PROT_READ | mm::PROT_EXEC)?;
        let data = map(DATA_LEN, mm::PROT_READ | mm::PROT_WRITE)?;
        drop(remote);
        Ok(Guest { world, memory, foothold, code, data })
    }

    /// Where code has to stand that is called, a multiple of 16.
    pub fn code(&self) -> u64 {
        self.code.start + arch::GUEST_FRONT as u64
    }

    /// Where its data will be, whole pages.
    pub fn data(&self) -> u64 {
        self.data.start
    }

    /// A C function without arguments that gives the monotonic clock's nanoseconds.
    pub fn clock(&self) -> u64 {
        self.code.start + arch::GUEST_CLOCK
    }

    /// Has the process call a C function with these six arguments: its code, and its data, which are what the function has
    /// left of them afterwards. What it returned.
    ///
    /// # Errors
    /// The process is gone; the code raised a signal; code or data do not fit.
    pub fn call(&mut self, function: &[u8], data: &mut [u8], args: [u64; 6]) -> Result<u64, Broken> {
        if (function.len() + arch::GUEST_FRONT) as u64 > CODE_LEN || data.len() as u64 > DATA_LEN / 2 {
            return Err(Broken::Call { what: "placing of code", errno: Errno::ENOSPC });
        }
        let mut code = arch::guest_front().to_vec();
        code.extend(function);
        self.memory.write(self.code.start, &code)?;
        self.memory.write(self.data.start, data)?;
        let returned = self.execute(args)?;
        self.memory.read(self.data.start, data)?;
        Ok(returned)
    }

    /// Has the first thread make the call.
    fn execute(&mut self, args: [u64; 6]) -> Result<u64, Broken> {
        let pid = self.memory.pid;
        let gone = |_| Broken::Gone { pid };
        let thread = self.world.threads_mut().next().ok_or(Broken::Gone { pid })?;
        let (tid, saved) = (thread.tid, thread.regs);
        let regs = arch::entering(&saved, self.code.start, self.data.end - 64, args);
        let mask = ptrace::sigmask(tid).map_err(gone)?;
        let mut came = Vec::new();
        let mut go = || {
            ptrace::set_regs(tid, &regs).map_err(|_| Unmade::Gone)?;
            ptrace::set_sigmask(tid, !OWN_FAULTS).map_err(|_| Unmade::Gone)?;
            loop {
                run_to_syscall_stop(tid, &mut came)?;
                let at = ptrace::regs(tid).map_err(|_| Unmade::Gone)?;
                if at.pc() == self.code.start + arch::GUEST_END {
                    // Not made: only its exit is waited for.
                    ptrace::set_regs(tid, &arch::not_made(&at)).map_err(|_| Unmade::Gone)?;
                    run_to_syscall_stop(tid, &mut came)?;
                    return Ok(arch::returned(&at));
                }
            }
        };
        let done = go();
        ptrace::set_sigmask(tid, mask).map_err(gone)?;
        ptrace::set_regs(tid, &saved).map_err(gone)?;
        done.map_err(|unmade| match unmade {
            Unmade::Raised(signal) => Broken::Raised { call: "the code", tid, signal },
            Unmade::Refused(errno) => Broken::Call { what: "a call in the target", errno },
            Unmade::Gone => Broken::Gone { pid },
        })
    }

    /// Takes the mappings back and lets the process go on.
    ///
    /// # Errors
    /// They are not taken back: it is gone, or makes no calls any more.
    pub fn leave(mut self) -> Result<(), Broken> {
        let mut remote = Remote::begin(&mut self.world, &self.memory, &self.foothold)?;
        remote.unmap(&self.code)?;
        remote.unmap(&self.data)
    }
}
