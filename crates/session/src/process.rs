//! What /proc says of a process.
//!
//! For:     choosing threads, and telling why a process cannot be entered.
//! State:   none; each call reads anew.
//! Context: control.
//! Keeps:   nothing beyond the call: a process may change at once.
//! Checked: testkit `refusals`.

use crate::error::Broken;
use std::fs;
use std::time::Duration;
use sys::Errno;

/// The part of /proc/PID/status that we use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    pub name: String,
    pub state: char,
    pub tgid: i32,
    pub tracer: i32,
    pub uid: u32,
    pub seccomp: u32,
    pub has_memory: bool,
}

impl Status {
    /// Of a process or of one thread; `None` if it is gone.
    pub fn of(pid: i32) -> Option<Status> {
        Status::read(&format!("/proc/{pid}/status"))
    }

    /// Of one thread of a process; `None` if it is gone.
    pub fn of_thread(pid: i32, tid: i32) -> Option<Status> {
        Status::read(&format!("/proc/{pid}/task/{tid}/status"))
    }

    fn read(path: &str) -> Option<Status> {
        let text = fs::read_to_string(path).ok()?;
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
                "VmSize" => status.has_memory = true,
                _ => {}
            }
        }
        Some(status)
    }
}

/// A thread returns by a shadow stack too.
pub(crate) fn has_shadow_stack(pid: i32, tid: i32) -> bool {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut features = text.lines().filter_map(|line| line.strip_prefix("x86_Thread_features:"));
    features.any(|list| list.split_whitespace().any(|feature| feature == "shstk"))
}

/// State of one thread as in /proc/PID/stat.
pub(crate) fn thread_state(pid: i32, tid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// CPU time of one thread; `None` if it is gone or the kernel does not tell.
pub(crate) fn cpu_time(pid: i32, tid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Whether the kernel started it for itself.
fn is_kernel_thread(pid: i32) -> bool {
    const PF_KTHREAD: u64 = 0x20_0000;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = stat.rsplit_once(')').and_then(|s| s.1.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// When a process started, in clock ticks since boot.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The parent of a process.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// What a process was started as; empty if that cannot be read.
pub(crate) fn command_words(pid: i32) -> Vec<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.split(|b| *b == 0).filter(|w| !w.is_empty());
    words.map(|w| String::from_utf8_lossy(w).into_owned()).collect()
}

/// Which pid namespace we are in, 0 if that cannot be told.
pub(crate) fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}

/// Whether a process sees the process numbers that we see.
pub(crate) fn is_in_our_namespace(pid: i32) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{pid}/ns/pid")).is_ok_and(|m| m.ino() == pid_namespace())
}

/// Whether this process has a capability, by the number that <linux/capability.h> gives it.
pub(crate) fn has_capability(number: u32) -> bool {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
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
        // One that was killed a moment ago may still wait for its parent.
        let status = Status::of(self.pid);
        let is_ending = status.is_none_or(|s| !s.has_memory || matches!(s.state, 'Z' | 'X'));
        !is_ending && start_time(self.pid) == Some(self.start_time)
    }
}

/// The live threads of a process.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let Ok(dir) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Name of a process, `?` if it is gone.
pub(crate) fn name(pid: i32) -> String {
    Status::of(pid).map_or_else(|| "?".into(), |s| s.name)
}

/// Checks what can be known before the first ptrace call.
pub(crate) fn check(pid: i32) -> Result<Status, Broken> {
    let status = Status::of(pid).filter(|_| pid > 0).ok_or(Broken::NoProcess { pid })?;
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
            Broken::Gone { pid }
        });
    }
    if status.tracer != 0 && !crate::world::is_held(pid) {
        let by = status.tracer;
        return Err(Broken::Traced { pid, name, by, by_name: self::name(by) });
    }
    if is_32_bit(pid) {
        return Err(Broken::NotX86_64 { pid, name });
    }
    Ok(status)
}

fn is_32_bit(pid: i32) -> bool {
    use std::io::Read;
    let mut head = [0u8; 5];
    let read = fs::File::open(format!("/proc/{pid}/exe")).and_then(|mut f| f.read_exact(&mut head));
    read.is_ok() && head == *b"\x7fELF\x01"
}

/// The cause of a refused ptrace call, found by looking.
pub(crate) fn why_not(pid: i32, errno: Errno) -> Broken {
    if errno == Errno::ESRCH {
        return Broken::Gone { pid };
    }
    let status = match check(pid) {
        Err(cause) => return cause,
        Ok(status) => status,
    };
    let name = status.name;
    let our_uid = Status::of(sys::getpid().cast_signed()).map_or(0, |s| s.uid);
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
    match Status::of_thread(pid, tid).filter(|s| s.tracer != 0) {
        Some(s) => Err(Broken::Traced { pid, name: s.name, by: s.tracer, by_name: name(s.tracer) }),
        None => Ok(()),
    }
}

/// The children of a process that live.
pub fn children(pid: i32) -> Vec<i32> {
    let of_thread = |tid: i32| {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|c| c.parse().ok()).collect::<Vec<i32>>()
    };
    let all = threads(pid).into_iter().flat_map(of_thread);
    all.filter(|child| Status::of(*child).is_some_and(|s| s.has_memory)).collect()
}

/// Another process that shares the address space of `pid` (a vfork child before its exec).
pub(crate) fn memory_sharer(pid: i32) -> Option<i32> {
    let children = threads(pid).into_iter().flat_map(|tid| {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|c| c.parse().ok()).collect::<Vec<i32>>()
    });
    children.into_iter().find(|child| sys::remote::same_memory(pid, *child) == Ok(true))
}

/// Whether `pid` is a process that can be entered, as far as /proc tells.
///
/// # Errors
/// The cause, found by looking.
pub fn check_process(pid: i32) -> Result<(), Broken> {
    match check(pid) {
        // A program that we have just started is traced by us; another nanoprobe is waited for.
        Err(Broken::Traced { by, .. }) if by == sys::getpid().cast_signed() => Ok(()),
        Err(Broken::Traced { by_name, .. }) if by_name == crate::ENGINE_NAME => Ok(()),
        other => other.and_then(|_| check_maps(pid)),
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
    let maps = fs::File::open(format!("/proc/{pid}/maps"));
    maps.map(drop).map_err(|e| why_not(pid, Errno(e.raw_os_error().unwrap_or(0))))
}
