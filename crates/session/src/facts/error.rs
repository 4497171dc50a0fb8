//! What keeps an attach from happening, as facts.
//!
//! For:     the command line, which adds what to type next.
//! State:   none.
//! Context: control.
//! Keeps:   every variant was checked, not guessed: see `process::why_not`.
//! Checked: testkit `refusals`.

use crate::facts::ending::Ending;
use std::fmt;
use sys::Errno;

/// A ptrace stop in which a thread stands that is waited for all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The OS thread that traces it.
    pub tracer: i32,
    /// It is the one that waits.
    pub is_ours: bool,
    /// The kernel has a report of it for us.
    pub has_report: bool,
}

/// Why a process could not be entered, or a step in it failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Broken {
    /// There is no such process.
    NoProcess {
        /// Asked for.
        pid: i32,
    },
    /// It has ended and waits for its parent.
    Zombie {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// A thread of the kernel.
    KernelThread {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// Ourselves.
    Ourselves {
        /// Asked for.
        pid: i32,
    },
    /// Somebody else traces it.
    Traced {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
        /// The tracer.
        by: i32,
        /// The tracer's name.
        by_name: String,
    },
    /// It belongs to another user and we may not trace it.
    OtherUser {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
        /// Its user id.
        uid: u32,
        /// Ours.
        our_uid: u32,
    },
    /// The Yama security module refuses.
    Yama {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
        /// Value of kernel.yama.ptrace_scope.
        scope: u32,
    },
    /// The kernel refuses and none of the known causes was found.
    NotAllowed {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// A 32-bit process.
    NotX86_64 {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// What does not exist on this processor yet.
    Unported {
        /// What was wanted.
        what: &'static str,
    },
    /// A seccomp filter is on and we may not suspend it.
    Seccomp {
        /// Asked for.
        pid: i32,
        /// Its name.
        name: String,
        /// 1 strict, 2 filter.
        mode: u32,
    },
    /// A thread did not stop.
    WontStop {
        /// The thread.
        tid: i32,
        /// Its state in /proc, `D` for uninterruptible sleep.
        state: char,
        /// How long we waited.
        waited_ms: u64,
        /// What is known of it, if it stands in a stop.
        stop: Option<Stop>,
    },
    /// A consumer runs a program that the session is not given.
    NoProgram {
        /// Its number.
        program: u32,
    },
    /// A program would ask the kernel at each hit, and a seccomp filter is on.
    HelperFiltered {
        /// The process.
        pid: i32,
        /// What it would ask for.
        helper: &'static str,
    },
    /// It would share the maps of programs with a process that may do more or less than it.
    OtherRights {
        /// The process.
        pid: i32,
        /// The first of those that share them.
        first: i32,
    },
    /// It asked for a signal where it reads the time stamp counter, or is under strict seccomp.
    NoClock {
        /// The process.
        pid: i32,
    },
    /// A module of it may ask for that at any time.
    ClockMayGo {
        /// The process.
        pid: i32,
        /// The module.
        module: String,
    },
    /// Another process shares its memory.
    SharedMemory {
        /// Asked for.
        pid: i32,
        /// The other.
        with: i32,
    },
    /// It runs another program than the one that was looked at.
    Replaced {
        /// The process.
        pid: i32,
        /// Its name now.
        name: String,
    },
    /// None of its threads is in 64-bit code.
    ForeignCode {
        /// The process.
        pid: i32,
        /// One of its threads.
        tid: i32,
        /// The code selector of that.
        cs: u64,
    },
    /// None of its threads can be used: their restartable sequences are none that the kernel takes.
    Unsound {
        /// The process.
        pid: i32,
        /// One of its threads.
        tid: i32,
    },
    /// A system call made in the target raised a signal, which was not delivered.
    Raised {
        /// Its name.
        call: &'static str,
        /// The thread that made it.
        tid: i32,
        /// The signal.
        signal: i32,
    },
    /// It failed, and so did taking back what had been done by then.
    NotUndone {
        /// The process.
        pid: i32,
        /// The cause of the first failure.
        why: Box<Broken>,
    },
    /// It ended while we worked.
    Gone {
        /// The process.
        pid: i32,
    },
    /// A system call made in the target failed.
    Remote {
        /// Its name.
        call: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A system call made in the target failed, because the target has used up what it may have.
    Exhausted {
        /// The process.
        pid: i32,
        /// The call's name.
        call: &'static str,
        /// The kernel's answer.
        errno: Errno,
        /// What is used up.
        limit: Limit,
    },
    /// The target has no `syscall` instruction that we can use.
    NoSyscall,
    /// No free address range within a jump's reach of a module.
    NoRoom {
        /// The module.
        module: String,
        /// Bytes wanted.
        bytes: u64,
    },
    /// So many sites take more memory for code than who finds them would believe.
    TooMuchCode {
        /// Bytes wanted.
        bytes: u64,
        /// Bytes that there may be.
        most: u64,
    },
    /// A call on our side failed.
    Call {
        /// What we did.
        what: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A file of /proc cannot be read, though the process may well live.
    Proc {
        /// Which.
        path: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A file could not be read.
    File {
        /// What.
        path: String,
        /// Why.
        why: String,
    },
    /// The program could not be started.
    Launch {
        /// The program.
        command: String,
        /// Why.
        why: String,
    },
    /// The program ended before its first own instruction, by its loader or a signal.
    EndedEarly {
        /// The program.
        command: String,
        /// How it ended.
        ending: Ending,
    },
    /// The embedded agent is damaged.
    Agent(String),
    /// A thread has its rseq area elsewhere than those whose hits are counted by it.
    RseqDiffers,
}

impl Broken {
    /// A file of a process that cannot be read, which says nothing of the process.
    pub(crate) fn unreadable(path: String, error: &std::io::Error) -> Broken {
        Broken::Proc { path, errno: Errno(error.raw_os_error().unwrap_or(5)) }
    }
}

/// What a process may have no more of, and how much it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Open descriptors: RLIMIT_NOFILE.
    Descriptors(u64),
    /// Bytes of address space: RLIMIT_AS.
    AddressSpace(u64),
    /// Bytes of private writable memory: RLIMIT_DATA.
    Data(u64),
    /// Bytes of locked memory: RLIMIT_MEMLOCK, of a process that locks all that it maps.
    Locked(u64),
    /// Mappings: the sysctl vm.max_map_count.
    Mappings(u64),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Descriptors(most) => write!(f, "it has all of the {most} descriptors that it may have"),
            Limit::AddressSpace(most) => write!(f, "it may have {most} bytes of address space"),
            Limit::Data(most) => write!(f, "it may have {most} bytes of writable memory"),
            Limit::Locked(most) => write!(f, "it locks its memory, and may lock {most} bytes"),
            Limit::Mappings(most) => write!(f, "it has all of the {most} mappings that a process may have"),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Broken::*;
        match self {
            NoProgram { program } => {
                write!(f, "a consumer runs program {program}, which the session is not given")
            }
            NoProcess { pid } => write!(f, "there is no process {pid}"),
            Zombie { pid, name } => write!(f, "cannot attach to {pid} ({name}): it has ended (zombie)"),
            KernelThread { pid, name } => write!(f, "cannot attach to {pid} ({name}): it is a kernel thread"),
            Ourselves { pid } => write!(f, "cannot attach to {pid}: that is nanoprobe itself"),
            Traced { pid, name, by, by_name } => {
                write!(f, "cannot attach to {pid} ({name}): it is already traced by {by} ({by_name})")
            }
            OtherUser { pid, name, uid, our_uid } => {
                write!(f, "cannot attach to {pid} ({name}): it belongs to user {uid}, you are {our_uid}")
            }
            Yama { pid, name, scope } => {
                write!(f, "cannot attach to {pid} ({name}): kernel.yama.ptrace_scope is {scope}")
            }
            NotAllowed { pid, name } => {
                write!(f, "cannot attach to {pid} ({name}): the kernel does not allow it")
            }
            Unported { what } => {
                write!(
                    f,
                    "{what} does not exist on {} yet: count, hist, lat, trace and scripts do",
                    std::env::consts::ARCH
                )
            }
            NotX86_64 { pid, name } => write!(f, "cannot attach to {pid} ({name}): it is a 32-bit process"),
            Seccomp { pid, name, mode } => {
                let kind = if *mode == 1 { "strict mode" } else { "a filter" };
                write!(f, "cannot enter {pid} ({name}): seccomp {kind} could kill it for our system calls")
            }
            WontStop { tid, state, waited_ms, stop } => {
                write!(f, "thread {tid} did not stop within {waited_ms} ms (state {state}")?;
                if let Some(Stop { tracer, is_ours, has_report }) = stop {
                    let whose = if *is_ours { "us" } else { "another" };
                    let report = if *has_report { "a report" } else { "no report" };
                    write!(f, ", traced by {tracer}, {whose}, with {report} for us")?;
                }
                write!(f, ")")
            }
            HelperFiltered { pid, helper } => write!(
                f,
                "process {pid} has a seccomp filter, which could end it for the system call by which this program asks \
                 for {helper}"
            ),
            OtherRights { pid, first } => write!(
                f,
                "process {pid} runs with other rights (user, groups, capabilities, seccomp filter) than process {first}, with which \
                 it would share memory"
            ),
            NoClock { pid } => write!(
                f,
                "process {pid} gets a signal where it reads the time stamp counter, so its calls cannot be timed"
            ),
            ClockMayGo { pid, module } => write!(
                f,
                "calls of process {pid} cannot be timed: {module} may ask for a signal where the time stamp counter is read"
            ),
            SharedMemory { pid, with } => write!(f, "process {with} shares the memory of {pid}"),
            Gone { pid } => write!(f, "process {pid} ended"),
            NotUndone { pid, why } => {
                write!(f, "{why}; and not all that was done in {pid} by then could be taken back")
            }
            Replaced { pid, name } => {
                write!(f, "process {pid} runs another program now ({name}) than the one that was looked at")
            }
            ForeignCode { pid, tid, cs } => {
                write!(
                    f,
                    "cannot enter {pid}: no thread is in 64-bit code (thread {tid} has code selector {cs:#x})"
                )
            }
            Unsound { pid, tid } => {
                write!(
                    f,
                    "cannot enter {pid}: the restartable sequence of thread {tid} is none that the kernel takes"
                )
            }
            Raised { call, tid, signal } => {
                write!(f, "{call} in thread {tid} of the target raised signal {signal}, which was taken back")
            }
            Remote { call, errno } => write!(f, "{call} in the target failed: {errno}"),
            Exhausted { pid, call, errno, limit } => {
                write!(f, "cannot enter {pid}: {limit} ({call} in it: {errno})")
            }
            NoSyscall => write!(f, "the target maps no code with a syscall instruction"),
            NoRoom { module, bytes } => {
                write!(f, "no {bytes} free bytes of address space within {} of {module}", crate::arch::REACH)
            }
            TooMuchCode { bytes, most } => {
                write!(
                    f,
                    "the code of so many probes takes {bytes} bytes, more than {most}: probe fewer sites"
                )
            }
            Call { what, errno } => write!(f, "{what} failed: {errno}"),
            Proc { path, errno } => write!(f, "cannot read {path}: {errno}"),
            File { path, why } => write!(f, "{path}: {why}"),
            Launch { command, why } => write!(f, "cannot start {command}: {why}"),
            EndedEarly { command, ending } => {
                write!(f, "{command} ended before its first own instruction: {ending}")
            }
            Agent(why) => write!(f, "the embedded agent cannot be read: {why}"),
            RseqDiffers => write!(
                f,
                "a new thread has its rseq area elsewhere than the others, by which the session counts"
            ),
        }
    }
}

impl std::error::Error for Broken {}
