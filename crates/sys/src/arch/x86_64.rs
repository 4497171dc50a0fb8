//! x86-64: the `syscall` instruction: the call and its numbers (table); a stopped thread's registers.
//!
//! For:     raw.rs, ptrace.rs.
//! State:   none.
//! Context: hit, signal, target, control; the hit path itself makes no call.
//! Keeps:   R1 all registers but rax, rcx and r11 come back as they were.
//! Checked: `a_call_returns_its_value_and_its_error`.

use crate::{Errno, ptrace};

/// System call numbers of x86-64 that this crate uses (table).
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod nr {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const BRK: usize = 12;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGRETURN: usize = 15;
    pub const IOCTL: usize = 16;
    pub const MREMAP: usize = 25;
    pub const MADVISE: usize = 28;
    pub const SHMAT: usize = 30;
    pub const NANOSLEEP: usize = 35;
    pub const GETPID: usize = 39;
    pub const CLONE: usize = 56;
    pub const VFORK: usize = 58;
    pub const CLONE3: usize = 435;
    pub const EXECVE: usize = 59;
    pub const EXIT: usize = 60;
    pub const WAIT4: usize = 61;
    pub const KILL: usize = 62;
    pub const SHMDT: usize = 67;
    pub const FCNTL: usize = 72;
    pub const FTRUNCATE: usize = 77;
    pub const PTRACE: usize = 101;
    pub const SETPGID: usize = 109;
    pub const GETPPID: usize = 110;
    pub const GETPGID: usize = 121;
    pub const EXIT_GROUP: usize = 231;
    pub const SIGALTSTACK: usize = 131;
    pub const SCHED_SETSCHEDULER: usize = 144;
    pub const SCHED_GETSCHEDULER: usize = 145;
    pub const PRCTL: usize = 157;
    pub const GETUID: usize = 102;
    pub const GETGID: usize = 104;
    pub const GETTID: usize = 186;
    pub const FUTEX: usize = 202;
    pub const SCHED_SETAFFINITY: usize = 203;
    pub const REMAP_FILE_PAGES: usize = 216;
    pub const RESTART_SYSCALL: usize = 219;
    pub const CLOCK_GETTIME: usize = 228;
    pub const TGKILL: usize = 234;
    pub const WAITID: usize = 247;
    pub const PERF_EVENT_OPEN: usize = 298;
    pub const PRLIMIT64: usize = 302;
    pub const GETCPU: usize = 309;
    pub const FANOTIFY_INIT: usize = 300;
    pub const FANOTIFY_MARK: usize = 301;
    pub const PROCESS_VM_READV: usize = 310;
    pub const PROCESS_VM_WRITEV: usize = 311;
    pub const KCMP: usize = 312;
    pub const MEMFD_CREATE: usize = 319;
    pub const BPF: usize = 321;
    pub const FSOPEN: usize = 430;
    pub const FSCONFIG: usize = 431;
    pub const FSMOUNT: usize = 432;
    pub const EXECVEAT: usize = 322;
    pub const MEMBARRIER: usize = 324;
    pub const PKEY_MPROTECT: usize = 329;
    pub const PIDFD_SEND_SIGNAL: usize = 424;
    pub const SENDMSG: usize = 46;
    pub const RECVMSG: usize = 47;
    pub const SOCKETPAIR: usize = 53;
    pub const PIDFD_OPEN: usize = 434;
    pub const PIDFD_GETFD: usize = 438;
    pub const MSEAL: usize = 462;
}

/// Makes one system call; all registers but rax, rcx and r11 come back as they were.
///
/// # Safety
/// As for [`crate::syscall`].
#[cfg(not(miri))]
#[inline(always)]
pub unsafe fn instruction(number: usize, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the duties are the caller's (this function's contract). The kernel clobbers rax,
    // rcx and r11 alone, all three are declared.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => ret,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// The general registers of a stopped thread, in the kernel's `user_regs_struct` layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the processor's")]
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

impl Regs {
    pub(crate) fn of(tid: i32) -> Result<Regs, Errno> {
        const GETREGS: usize = 12;
        let mut regs = Regs::default();
        ptrace::request(GETREGS, tid, 0, &raw mut regs as usize)?;
        Ok(regs)
    }

    pub(crate) fn set(&self, tid: i32) -> Result<(), Errno> {
        const SETREGS: usize = 13;
        ptrace::request(SETREGS, tid, 0, self as *const Regs as usize).map(drop)
    }

    /// The program counter.
    pub fn pc(&self) -> u64 {
        self.rip
    }

    /// The same with another program counter.
    pub fn at(self, pc: u64) -> Regs {
        Regs { rip: pc, ..self }
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.rsp
    }

    /// The same with another stack pointer.
    pub fn with_sp(self, sp: u64) -> Regs {
        Regs { rsp: sp, ..self }
    }

    /// Where the thread's own block is.
    pub fn thread_pointer(&self) -> u64 {
        self.fs_base
    }
}
