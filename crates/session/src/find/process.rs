//! What /proc says of a process.
//!
//! For:     choosing threads, and telling why a process cannot be entered.
//! State:   none; each call reads anew.
//! Context: control.
//! Keeps:   P1 a process lives as long as one thread of it does, also if the first has ended.
//!          P2 "gone" is said only where the kernel knows no such process, or shows every thread of it ended; what
//!             cannot be read is an error with its own name.
//!          P3 names and paths are bytes.
//!          Nothing holds beyond the call: a process may change at once.
//! Checked: testkit `refusals`, `endings`.

use crate::arch::SleptIn;
use crate::facts::error::Broken;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use sys::{Errno, sched};

/// What the command names its engine process, and every thread that traces for one is called: by it nanoprobes know each
/// other.
pub const ENGINE_NAME: &str = "np-engine";

/// In a set of signals.
const SIGKILL_BIT: u64 = 1 << 8;

/// The part of /proc/PID/status that we use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    pub name: String,
    pub state: char,
    pub tgid: i32,
    pub tracer: i32,
    pub uid: u32,
    pub seccomp: u32,
    /// How many filters, where the kernel tells.
    pub seccomp_filters: u32,
    pub has_memory: bool,
    /// A SIGKILL waits for the thread, which does nothing any more but end.
    pub is_killed: bool,
}

impl Status {
    /// Of a process, by a thread of it that has not ended, or of a thread; `None` if it is gone.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(pid: i32) -> Result<Option<Status>, Broken> {
        by_living(pid, |tid| Status::read(pid, &format!("/proc/{tid}/status")))
    }

    /// Of exactly this thread, whatever its process; `None` if it is gone.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_any(tid: i32) -> Result<Option<Status>, Broken> {
        Status::read(tid, &format!("/proc/{tid}/status"))
    }

    /// Of one thread of a process; `None` if it is gone.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_thread(pid: i32, tid: i32) -> Result<Option<Status>, Broken> {
        Status::read(tid, &format!("/proc/{pid}/task/{tid}/status"))
    }

    fn read(id: i32, path: &str) -> Result<Option<Status>, Broken> {
        let Some(bytes) = read(id, path)? else { return Ok(None) };
        let malformed = || Broken::Proc { path: path.to_owned(), errno: Errno::EINVAL };
        Status::parse(&bytes).map(Some).ok_or_else(malformed)
    }

    fn parse(bytes: &[u8]) -> Option<Status> {
        let text = String::from_utf8_lossy(bytes);
        let mut status = Status::default();
        for line in text.lines() {
            let (key, value) = line.split_once(':')?;
            let value = value.trim();
            let first = value.split_whitespace().next().unwrap_or_default();
            match key {
                "Name" => status.name = value.to_owned(),
                "State" => status.state = first.chars().next()?,
                "Tgid" => status.tgid = first.parse().ok()?,
                "TracerPid" => status.tracer = first.parse().ok()?,
                "Uid" => status.uid = value.split_whitespace().nth(1)?.parse().ok()?,
                "Seccomp" => status.seccomp = first.parse().ok()?,
                "Seccomp_filters" => status.seccomp_filters = first.parse().ok()?,
                "VmSize" => status.has_memory = true,
                "SigPnd" | "ShdPnd" => {
                    status.is_killed |= u64::from_str_radix(first, 16).ok()? & SIGKILL_BIT != 0;
                }
                _ => {}
            }
        }
        Some(status)
    }
}

/// A thread returns by a shadow stack too.
pub(crate) fn has_shadow_stack(tid: i32) -> bool {
    let text = fs::read(format!("/proc/{tid}/status")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut features = text.lines().filter_map(|line| line.strip_prefix("x86_Thread_features:"));
    features.any(|list| list.split_whitespace().any(|feature| feature == "shstk"))
}

/// A file of /proc about process or thread `id`; `None` if the kernel knows no `id`.
fn read(id: i32, path: &str) -> Result<Option<Vec<u8>>, Broken> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) if is_unknown(id) => Ok(None),
        Err(e) => Err(Broken::unreadable(path.to_owned(), &e)),
    }
}

/// The kernel knows no process and no thread of this number.
fn is_unknown(id: i32) -> bool {
    id <= 0 || sched::kill(id, 0) == Err(Errno::ESRCH)
}

/// A thread of the process that has not ended: the first one, unless it has left before the others.
pub(crate) fn living(pid: i32) -> i32 {
    u32::try_from(pid).map_or(pid, |pid| image::maps::living(pid).cast_signed())
}

/// What is read by a thread of the process that has its memory, as [`image::maps::by_living`] says.
pub(crate) fn by_living<T>(pid: i32, read: impl Fn(i32) -> T) -> T {
    u32::try_from(pid)
        .map_or_else(|_| read(pid), |pid| image::maps::by_living(pid, |tid| read(tid.cast_signed())))
}

/// Whether what was asked for is there and goes on: it has memory.
pub(crate) fn lives(found: Result<Option<Status>, Broken>) -> bool {
    found.is_ok_and(|status| status.is_some_and(|status| status.has_memory))
}

/// Whether a thread has memory: one that is ending has none any more, and the kernel's have none.
pub(crate) fn has_memory(tid: i32) -> bool {
    fs::read(format!("/proc/{tid}/maps")).is_ok_and(|maps| !maps.is_empty())
}

/// Whether two threads run in one memory. Those that have none share none, though kcmp(2) finds them equal.
pub(crate) fn share_memory(tid: i32, other: i32) -> bool {
    sys::remote::same_memory(tid, other) == Ok(true) && has_memory(other)
}

/// Whether the process has ended, for certain: the kernel knows it no more, or each of its threads is seen to have ended.
pub(crate) fn is_over(pid: i32) -> bool {
    is_unknown(pid)
        || Path::new(&format!("/proc/{pid}/task")).exists()
            && u32::try_from(pid).is_ok_and(image::maps::is_over)
}

/// Whether a process is over, or will be in a moment, which is waited for: who was killed in a stop of ours is not yet when we
/// are told.
pub(crate) fn is_ending(pid: i32) -> bool {
    const MOMENT: Duration = Duration::from_secs(1);
    let end = Instant::now() + MOMENT;
    // It has no memory any more, before it is over.
    let is_dying =
        |tid| !has_memory(tid) || Status::of_any(tid).is_ok_and(|s| s.is_some_and(|s| s.is_killed));
    while !is_over(pid) && is_dying(living(pid)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    is_over(pid)
}

/// The fields of a thread's stat behind its name, of which the first is the state.
fn stat(path: &str) -> Option<Vec<String>> {
    let stat = fs::read(path).ok()?;
    let end = stat.iter().rposition(|b| *b == b')')?;
    let fields = String::from_utf8_lossy(&stat[end + 1..]);
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// State of one thread as in /proc/PID/stat.
pub(crate) fn thread_state(pid: i32, tid: i32) -> Option<char> {
    stat(&format!("/proc/{pid}/task/{tid}/stat"))?.first()?.chars().next()
}

/// CPU time of one thread; `None` if it is gone or the kernel does not tell.
pub(crate) fn cpu_time(pid: i32, tid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Whether the kernel started it for itself.
fn is_kernel_thread(pid: i32) -> bool {
    const PF_KTHREAD: u64 = 0x20_0000;
    let flags = stat(&format!("/proc/{pid}/stat")).and_then(|s| s.get(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// When a process started, in clock ticks since boot.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    stat(&format!("/proc/{pid}/stat"))?.get(19)?.parse().ok()
}

/// The parent of a process.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    stat(&format!("/proc/{pid}/stat"))?.get(1)?.parse().ok()
}

/// What a process was started as; empty if that cannot be read.
pub(crate) fn command_words(pid: i32) -> Vec<String> {
    let words = fs::read(format!("/proc/{}/cmdline", living(pid))).unwrap_or_default();
    let words = words.split(|b| *b == 0).filter(|w| !w.is_empty());
    words.map(|w| String::from_utf8_lossy(w).into_owned()).collect()
}

/// The number of a process in its own pid namespace, which is what it gets as its own.
pub(crate) fn number_inside(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", living(pid))).ok()?;
    let line = status.lines().find(|line| line.starts_with("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Which pid namespace we are in, 0 if that cannot be told.
pub(crate) fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}

/// Whether a process sees the process numbers that we see.
pub(crate) fn is_in_our_namespace(pid: i32) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{}/ns/pid", living(pid))).is_ok_and(|m| m.ino() == pid_namespace())
}

/// Whether this process has a capability, by the number that <linux/capability.h> gives it.
pub(crate) fn has_capability(number: u32) -> bool {
    let text = fs::read("/proc/self/status").unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> number & 1 != 0)
}

/// Who controls something of ours in a process, named for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controller {
    pub pid: i32,
    /// In clock ticks since boot.
    pub start_time: u64,
    /// By inode.
    pub pid_namespace: u64,
}

impl Controller {
    /// This process.
    pub fn ourselves() -> Controller {
        let pid = sys::getpid().cast_signed();
        Controller { pid, start_time: start_time(pid).unwrap_or(0), pid_namespace: pid_namespace() }
    }

    /// One in another pid namespace cannot be looked up from here, and is taken to live.
    pub fn is_alive(&self) -> bool {
        if self.pid_namespace != pid_namespace() {
            return true;
        }
        match Status::of(self.pid) {
            // One that was killed a moment ago may still wait for its parent.
            Ok(Some(s)) if s.has_memory && !matches!(s.state, 'Z' | 'X') => {
                start_time(self.pid).is_none_or(|time| time == self.start_time)
            }
            Ok(_) => false,
            // Nobody's probes are taken out by guess.
            Err(_) => true,
        }
    }
}

/// All processes that we see.
///
/// # Errors
/// They cannot be read.
pub(crate) fn all() -> Result<Vec<i32>, Broken> {
    numbers("/proc").map_err(|errno| Broken::Proc { path: "/proc".into(), errno })
}

/// The entries of a directory that are numbers.
fn numbers(path: &str) -> Result<Vec<i32>, Errno> {
    let listed = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = listed.map_err(|e| Errno(e.raw_os_error().unwrap_or(5)))?;
    Ok(entries.iter().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// Where a thread stands that sleeps in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asleep {
    /// The system call that it has made; none in a fault.
    pub call: Option<u64>,
    /// That one's first argument.
    pub first_argument: u64,
    pub sp: u64,
    pub pc: u64,
}

/// Where a thread sleeps; `None` if it runs, or that cannot be told.
pub(crate) fn asleep(tid: i32) -> Option<Asleep> {
    parse_asleep(&fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?)
}

/// A system call's number, -1 for none; with one, its six arguments; stack pointer and program counter.
fn parse_asleep(text: &str) -> Option<Asleep> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [first, rest @ .., sp, pc] = words.as_slice() else { return None };
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let call = first.parse::<i64>().ok()?;
    let first_argument = rest.first().and_then(|word| hex(word)).unwrap_or_default();
    Some(Asleep { call: u64::try_from(call).ok(), first_argument, sp: hex(sp)?, pc: hex(pc)? })
}

/// The call that a thread sleeps in.
pub(crate) fn slept_in(tid: i32) -> Option<SleptIn> {
    // In this order: what is told of a later call has a later number of sleeps, or the same.
    let sleeps = sleeps(tid)?;
    let Asleep { call, first_argument, sp, pc } = asleep(tid)?;
    Some(SleptIn { number: call?, first_argument, sp, pc, sleeps })
}

/// How often a thread has gone to sleep by itself.
pub(crate) fn sleeps(tid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// The threads of a process, those that have ended and wait included; none if it is gone.
///
/// # Errors
/// They cannot be read.
pub(crate) fn threads(pid: i32) -> Result<Vec<i32>, Broken> {
    let path = format!("/proc/{pid}/task");
    match numbers(&path) {
        Err(_) if is_unknown(pid) => Ok(Vec::new()),
        listed => listed.map_err(|errno| Broken::Proc { path, errno }),
    }
}

/// Name of a process, `?` if it is gone.
pub(crate) fn name(pid: i32) -> String {
    Status::of(pid).ok().flatten().map_or_else(|| "?".into(), |s| s.name)
}

/// Checks what can be known before the first ptrace call.
pub(crate) fn check(pid: i32) -> Result<Status, Broken> {
    if pid <= 0 {
        return Err(Broken::NoProcess { pid });
    }
    let status = Status::of(pid)?.ok_or(Broken::NoProcess { pid })?;
    let name = status.name.clone();
    if status.tgid == sys::getpid().cast_signed() {
        return Err(Broken::Ourselves { pid });
    }
    if matches!(status.state, 'Z' | 'X') {
        return Err(Broken::Zombie { pid, name });
    }
    if !status.has_memory {
        // A process that is about to end has lost its memory already.
        return Err(if is_kernel_thread(pid) {
            Broken::KernelThread { pid, name }
        } else {
            lost(pid, Errno::ESRCH)
        });
    }
    if status.tracer != 0 && status.tracer != sys::gettid().cast_signed() {
        check_tracer(pid, || Status::of(pid))?;
    }
    if is_32_bit(pid) {
        return Err(Broken::NotX86_64 { pid, name });
    }
    Ok(status)
}

/// What to say of a process of which a thread was lost: that it has ended only if it has.
pub(crate) fn lost(pid: i32, errno: Errno) -> Broken {
    if is_ending(pid) {
        Broken::Gone { pid }
    } else {
        Broken::Call { what: "a step in a thread of the process", errno }
    }
}

fn is_32_bit(pid: i32) -> bool {
    use std::io::Read;
    let mut head = [0u8; 5];
    let exe = fs::File::open(format!("/proc/{}/exe", living(pid)));
    let read = exe.and_then(|mut f| f.read_exact(&mut head));
    read.is_ok() && head == *b"\x7fELF\x01"
}

/// The cause of a refused ptrace call, found by looking.
pub(crate) fn why_not(pid: i32, errno: Errno) -> Broken {
    let status = match check(pid) {
        Err(cause) => return cause,
        Ok(status) => status,
    };
    if !matches!(errno, Errno::EPERM | Errno::EACCES) {
        return Broken::Call { what: "entering the process", errno };
    }
    let name = status.name;
    let our_uid = Status::of(sys::getpid().cast_signed()).ok().flatten().map_or(0, |s| s.uid);
    if our_uid != 0 && our_uid != status.uid {
        return Broken::OtherUser { pid, name, uid: status.uid, our_uid };
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    match scope.ok().and_then(|s| s.trim().parse().ok()) {
        Some(scope) if scope > 0 => Broken::Yama { pid, name, scope },
        _ => Broken::NotAllowed { pid, name },
    }
}

/// Who traces one thread, as an error: a tracer may have this thread and no other.
pub(crate) fn check_untraced(pid: i32, tid: i32) -> Result<(), Broken> {
    check_tracer(pid, || Status::of_thread(pid, tid))
}

/// Whether the thread that `look` finds is traced by somebody who lives: who has ended since has let go by that.
fn check_tracer(pid: i32, look: impl Fn() -> Result<Option<Status>, Broken>) -> Result<(), Broken> {
    /// While a tracer lets go, the kernel shows the process's parent in its place: that one is looked for so often.
    const LOOKS: usize = 8;
    let pause = Duration::from_millis(1);
    for left in (0..LOOKS).rev() {
        let Some(Status { name, tracer: by, .. }) = look()?.filter(|s| s.tracer != 0) else { return Ok(()) };
        let Some(tracer) = Status::of_any(by)? else { return Ok(()) };
        if left == 0 || parent(pid) != Some(tracer.tgid) {
            return Err(Broken::Traced { pid, name, by, by_name: tracer.name });
        }
        std::thread::sleep(pause);
    }
    Ok(())
}

/// The children of a process that live.
pub fn living_children(pid: i32) -> Vec<i32> {
    children(pid).into_iter().filter(|child| lives(Status::of(*child))).collect()
}

/// The children of all threads of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    threads(pid).unwrap_or_default().into_iter().flat_map(|tid| children_of_thread(pid, tid)).collect()
}

/// The children that one thread has started.
pub(crate) fn children_of_thread(pid: i32, tid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|c| c.parse().ok()).collect()
}

/// Whether `pid` is a process that can be entered, as far as /proc tells.
///
/// # Errors
/// The cause, found by looking.
pub fn check_process(pid: i32) -> Result<(), Broken> {
    let checked = match check(pid) {
        // A program that we have just started is traced by us; another nanoprobe is waited for.
        Err(Broken::Traced { by, .. }) if by == sys::getpid().cast_signed() => Ok(()),
        Err(Broken::Traced { by_name, .. }) if by_name == ENGINE_NAME => Ok(()),
        other => other.and_then(|_| check_maps(pid)),
    };
    checked.map_err(|broken| cause(pid, broken))
}

/// How many seccomp filters each thread of a process has; `None` if they have not all as many, or one is in strict mode, or the kernel
/// does not tell.
///
/// # Errors
/// What of it cannot be read.
pub(crate) fn filters(pid: i32) -> Result<Option<u32>, Broken> {
    let mut all = None;
    for tid in threads(pid)? {
        let Some(status) = Status::of_thread(pid, tid)? else { continue };
        let number = match (status.seccomp, status.seccomp_filters) {
            (0, _) => 0,
            (2, number @ 1..) => number,
            _ => return Ok(None),
        };
        if *all.get_or_insert(number) != number {
            return Ok(None);
        }
    }
    Ok(all)
}

/// What has failed in a process that is over has failed since it is over.
pub(crate) fn cause(pid: i32, broken: Broken) -> Broken {
    match broken {
        Broken::Proc { .. }
        | Broken::Call { .. }
        | Broken::Remote { .. }
        | Broken::NotUndone { .. }
        | Broken::Replaced { .. }
            if is_ending(pid) =>
        {
            Broken::Gone { pid }
        }
        other => other,
    }
}

/// Whether `pid` is a process whose memory can be looked at; that somebody traces it is no hindrance.
///
/// # Errors
/// The cause, found by looking.
pub fn check_readable(pid: i32) -> Result<(), Broken> {
    match check(pid) {
        Err(Broken::Traced { .. }) => check_maps(pid),
        other => other.and_then(|_| check_maps(pid)),
    }
}

/// The kernel lets those read the maps who may trace.
fn check_maps(pid: i32) -> Result<(), Broken> {
    let path = format!("/proc/{}/maps", living(pid));
    match fs::File::open(&path) {
        Ok(_) => Ok(()),
        Err(e) => Err(match Errno(e.raw_os_error().unwrap_or(5)) {
            errno @ (Errno::EPERM | Errno::EACCES) => why_not(pid, errno),
            _ if is_over(pid) => Broken::Gone { pid },
            errno => Broken::Proc { path, errno },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_bytes_is_a_name() {
        let status = Status::parse(
            b"Name:\t\xc3\xff(x\nState:\tS (sleeping)\nTgid:\t7\nVmSize:\t1 kB\nShdPnd:\t0000000000000100\n",
        )
        .unwrap();
        assert_eq!((status.state, status.tgid, status.has_memory, status.is_killed), ('S', 7, true, true));
    }

    #[test]
    fn a_sleeping_thread_says_where_it_stands() {
        let in_vfork = parse_asleep("58 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd00 0x401000\n").unwrap();
        assert_eq!(in_vfork, Asleep { call: Some(58), first_argument: 1, sp: 0x7f_fd00, pc: 0x40_1000 });
        assert_eq!(parse_asleep("-1 0x10 0x20").unwrap().call, None);
        assert_eq!(parse_asleep("running\n"), None);
    }

    #[test]
    fn only_what_the_kernel_does_not_know_is_over() {
        let pid = sys::getpid().cast_signed();
        assert!(!is_over(pid) && Status::of(pid).unwrap().is_some() && !threads(pid).unwrap().is_empty());
        assert!(is_over(i32::MAX - 1) && Status::of(i32::MAX - 1).unwrap().is_none());
        let path = "/proc/self/no such file";
        assert!(matches!(read(pid, path), Err(Broken::Proc { errno: Errno::ENOENT, .. })));
    }
}
