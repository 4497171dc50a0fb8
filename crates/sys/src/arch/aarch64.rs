//! AArch64: the `svc` instruction: the call and its numbers (table); a stopped thread's registers.
//!
//! For:     raw.rs, ptrace.rs.
//! State:   none.
//! Context: hit, signal, target, control; the hit path itself makes no call.
//! Keeps:   R1 all registers but x0 come back as they were.
//! Checked: `a_call_returns_its_value_and_its_error`.

use crate::{Errno, ptrace};

/// System call numbers of AArch64 that this crate uses (table). There is no fork: clone does it.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod nr {
    pub const IOCTL: usize = 29;
    pub const FCNTL: usize = 25;
    pub const FTRUNCATE: usize = 46;
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const EXIT: usize = 93;
    pub const WAITID: usize = 95;
    pub const FUTEX: usize = 98;
    pub const NANOSLEEP: usize = 101;
    pub const CLOCK_GETTIME: usize = 113;
    pub const PTRACE: usize = 117;
    pub const SCHED_SETSCHEDULER: usize = 119;
    pub const SCHED_GETSCHEDULER: usize = 120;
    pub const SCHED_SETAFFINITY: usize = 122;
    pub const RESTART_SYSCALL: usize = 128;
    pub const KILL: usize = 129;
    pub const TGKILL: usize = 131;
    pub const SIGALTSTACK: usize = 132;
    pub const RT_SIGACTION: usize = 134;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGRETURN: usize = 139;
    pub const SETPGID: usize = 154;
    pub const GETPGID: usize = 155;
    pub const EXIT_GROUP: usize = 94;
    pub const PRCTL: usize = 167;
    pub const GETCPU: usize = 168;
    pub const GETPID: usize = 172;
    pub const GETPPID: usize = 173;
    pub const GETUID: usize = 174;
    pub const GETGID: usize = 176;
    pub const GETTID: usize = 178;
    pub const SHMAT: usize = 196;
    pub const SHMDT: usize = 197;
    pub const BRK: usize = 214;
    pub const MUNMAP: usize = 215;
    pub const MREMAP: usize = 216;
    pub const CLONE: usize = 220;
    pub const CLONE3: usize = 435;
    pub const EXECVE: usize = 221;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MADVISE: usize = 233;
    pub const REMAP_FILE_PAGES: usize = 234;
    pub const PERF_EVENT_OPEN: usize = 241;
    pub const WAIT4: usize = 260;
    pub const PRLIMIT64: usize = 261;
    pub const PROCESS_VM_READV: usize = 270;
    pub const PROCESS_VM_WRITEV: usize = 271;
    pub const KCMP: usize = 272;
    pub const MEMFD_CREATE: usize = 279;
    pub const BPF: usize = 280;
    pub const FSOPEN: usize = 430;
    pub const FSCONFIG: usize = 431;
    pub const FSMOUNT: usize = 432;
    pub const EXECVEAT: usize = 281;
    pub const MEMBARRIER: usize = 283;
    pub const PKEY_MPROTECT: usize = 288;
    pub const PIDFD_SEND_SIGNAL: usize = 424;
    pub const FANOTIFY_INIT: usize = 262;
    pub const FANOTIFY_MARK: usize = 263;
    pub const SOCKETPAIR: usize = 199;
    pub const SENDMSG: usize = 211;
    pub const RECVMSG: usize = 212;
    pub const PIDFD_OPEN: usize = 434;
    pub const PIDFD_GETFD: usize = 438;
    pub const MSEAL: usize = 462;
}

/// Makes one system call; all registers but x0 come back as they were.
///
/// # Safety
/// As for [`crate::syscall`].
#[cfg(not(miri))]
#[inline(always)]
pub unsafe fn instruction(number: usize, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the duties are the caller's (this function's contract). The kernel changes x0 alone, which is declared.
    unsafe {
        core::arch::asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") args[0] as isize => ret,
            in("x1") args[1], in("x2") args[2], in("x3") args[3],
            in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    ret
}

/// The general registers of a stopped thread, in the kernel's `user_pt_regs` layout, and its thread pointer, which is read
/// and not set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the processor's")]
pub struct Regs {
    pub x: [u64; 31],
    pub sp: u64,
    pub pc: u64,
    pub pstate: u64,
    pub tpidr: u64,
}

/// Notes of [`ptrace::register_set`].
const NT_PRSTATUS: usize = 1;
const NT_ARM_TLS: usize = 0x401;
/// Without the thread pointer.
const WORDS: usize = 34;

impl Regs {
    pub(crate) fn of(tid: i32) -> Result<Regs, Errno> {
        let mut bytes = [0u8; 8 * WORDS];
        ptrace::register_set(tid, NT_PRSTATUS, &mut bytes)?;
        // The second word is there on newer processors.
        let mut own = [0u8; 16];
        ptrace::register_set(tid, NT_ARM_TLS, &mut own)?;
        let word = |bytes: &[u8], i: usize| {
            u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap_or_default())
        };
        Ok(Regs {
            x: core::array::from_fn(|i| word(&bytes, i)),
            sp: word(&bytes, 31),
            pc: word(&bytes, 32),
            pstate: word(&bytes, 33),
            tpidr: word(&own, 0),
        })
    }

    pub(crate) fn set(&self, tid: i32) -> Result<(), Errno> {
        let mut bytes = [0u8; 8 * WORDS];
        let words = self.x.iter().chain([&self.sp, &self.pc, &self.pstate]);
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        ptrace::set_register_set(tid, NT_PRSTATUS, &bytes)
    }

    /// The program counter.
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// The same with another program counter. What a branch by register left for the next instruction to check (BTI) does
    /// not concern another one.
    pub fn at(self, pc: u64) -> Regs {
        const BTYPE: u64 = 3 << 10;
        Regs { pc, pstate: self.pstate & !BTYPE, ..self }
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.sp
    }

    /// The same with another stack pointer.
    pub fn with_sp(self, sp: u64) -> Regs {
        Regs { sp, ..self }
    }

    /// Where the thread's own block is.
    pub fn thread_pointer(&self) -> u64 {
        self.tpidr
    }
}
