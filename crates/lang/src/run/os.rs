//! What is asked of the system: clocks, names, local time, signals.
//!
//! For:     the machine.
//! State:   the pipe that signals are written to.
//! Context: control; `note` runs at any instruction.
//! Keeps:   O1 the only unsafe code of this crate is here.
//! Checked: tests below.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicI32, Ordering};

pub const MONOTONIC: libc::clockid_t = libc::CLOCK_MONOTONIC;
pub const BOOT: libc::clockid_t = libc::CLOCK_BOOTTIME;
pub const TAI: libc::clockid_t = libc::CLOCK_TAI;
pub const REAL: libc::clockid_t = libc::CLOCK_REALTIME;

/// Nanoseconds.
pub fn clock(id: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is alive for the call; a clock that is not known leaves it as it is.
    unsafe { libc::clock_gettime(id, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU and node.
pub fn cpu() -> (u64, u64) {
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: two words of ours, alive for the call.
    unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, 0usize) };
    (u64::from(cpu), u64::from(node))
}

/// A time formatted as strftime(3) does, in local time. `%f` is microseconds.
pub fn format_time(format: &[u8], nanos: i128) -> Vec<u8> {
    let (secs, rest) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    let format = with_micros(format, rest / 1000);
    let Ok(format) = CString::new(format) else { return Vec::new() };
    let secs = secs as libc::time_t;
    // SAFETY: a `tm` is plain data, for which all zeroes is a value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are alive for the call.
    unsafe { libc::localtime_r(&raw const secs, &raw mut tm) };
    let mut text = vec![0u8; 1024 + 8 * format.as_bytes().len()];
    // SAFETY: `text` has as many writable bytes as is said; the format ends with a NUL.
    let len = unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &raw const tm) };
    text.truncate(len);
    text
}

fn with_micros(format: &[u8], micros: i128) -> Vec<u8> {
    let (mut out, mut bytes) = (Vec::new(), format.iter().copied().peekable());
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'%', Some(b'f')) => {
                bytes.next();
                out.extend_from_slice(format!("{micros:06}").as_bytes());
            }
            (b'%', Some(b'%')) => {
                bytes.next();
                out.extend_from_slice(b"%%");
            }
            _ => out.push(byte),
        }
    }
    out
}

/// What strerror(3) says.
pub fn error_text(errno: i32) -> String {
    // SAFETY: strerror answers any number; this program calls it from one thread.
    let text = unsafe { libc::strerror(errno) };
    text_of(text)
}

/// What strsignal(3) says; `N/A` for what can be no signal.
pub fn signal_text(signal: i32) -> String {
    if !(0..=64).contains(&signal) {
        return "N/A".into();
    }
    // SAFETY: strsignal answers any number; this program calls it from one thread.
    let text = unsafe { libc::strsignal(signal) };
    text_of(text)
}

fn text_of(text: *const libc::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the C library's text ends with a NUL and lasts until the next call, before which it is copied.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// The name of a user.
pub fn user(uid: u64) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        (fields.nth(1)?.parse::<u64>().ok()? == uid).then_some(name)
    };
    passwd.lines().find_map(of).unwrap_or_default()
}

/// The name of a process, empty if there is none.
pub fn comm(pid: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end_matches('\n').to_owned()
}

/// The first number of a line of /proc/PID/status.
pub fn status_word(pid: &str, name: &str) -> u64 {
    status(pid, name).and_then(|words| words.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn status(pid: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned()))
}

/// This process as the outermost pid namespace that can be seen numbers it.
pub fn outermost_pid() -> u64 {
    // The namespaces above that of /proc are not shown; the scheduler's file has the outermost number.
    let sched = std::fs::read_to_string("/proc/self/sched").unwrap_or_default();
    let first = sched.lines().next().and_then(|line| {
        let inner = line.split_once('(').map(|_| line.rsplit_once('('))??.1;
        inner.split(',').next()?.trim().parse().ok()
    });
    first.unwrap_or_else(|| u64::from(std::process::id()))
}

/// Memory of a process; false if not all of it is there.
pub fn read_process(pid: u32, addr: u64, to: &mut [u8]) -> bool {
    let ours = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let theirs = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: to.len() };
    // SAFETY: the kernel writes into `to` alone, as much as it has; what is at `addr` is not ours to know.
    let got = unsafe { libc::process_vm_readv(pid as i32, &raw const ours, 1, &raw const theirs, 1, 0) };
    got == to.len() as isize
}

/// Changes memory of a process; false if not all of it was.
pub fn write_process(pid: u32, addr: u64, from: &[u8]) -> bool {
    let ours = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let theirs = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: from.len() };
    // SAFETY: the kernel reads `from` alone. That another process's memory changes is what its caller was asked for (--unsafe).
    let got = unsafe { libc::process_vm_writev(pid as i32, &raw const ours, 1, &raw const theirs, 1, 0) };
    got == from.len() as isize
}

/// Sends a signal to a process, or to one thread of it.
pub fn send_signal(pid: u32, thread: Option<u32>, signal: i32) -> bool {
    let sent = match thread {
        // SAFETY: it takes numbers and touches no memory of ours.
        Some(tid) => unsafe { libc::syscall(libc::SYS_tgkill, pid as i32, tid as i32, signal) },
        // SAFETY: as above.
        None => i64::from(unsafe { libc::kill(pid as i32, signal) }),
    };
    sent == 0
}

/// The node of a CPU.
pub fn node_of(cpu: u32) -> u64 {
    let dir = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).into_iter().flatten().flatten();
    let mut nodes = dir.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
    nodes.next().unwrap_or(0)
}

/// The number of a process's control group, 0 if it is not known.
pub fn cgroup_id(pid: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    std::fs::metadata(format!("/sys/fs/cgroup{path}")).map_or(0, |meta| meta.ino())
}

static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Where signals that [`catch`] was told of are written, one byte each.
pub fn set_signal_pipe(fd: i32) {
    PIPE.store(fd, Ordering::Relaxed);
}

/// Takes a signal from now on; system calls that wait go on.
pub fn catch(signal: i32) {
    // SAFETY: an action is plain data, for which all zeroes is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = note as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `note` makes one system call; SIGKILL and the like are refused.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}

extern "C" fn note(signal: i32) {
    let byte = signal as u8;
    // SAFETY: errno is this thread's.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let old = unsafe { *errno };
    // SAFETY: one byte of ours, to a pipe of ours that does not block.
    unsafe { libc::write(PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
    // SAFETY: as above.
    unsafe { *errno = old };
}

/// Waits until one of these is readable, at most so many nanoseconds.
pub fn wait(fds: &[i32], nanos: u64) {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let limit = libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: as many descriptors as is said and the time are alive for the call.
    unsafe {
        libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &raw const limit, std::ptr::null())
    };
}

/// Makes a descriptor not wait.
pub fn unblock(fd: i32) {
    // SAFETY: a descriptor's flags are words of the kernel.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_and_percent_signs_are_told_apart() {
        assert_eq!(format_time(b"%s.%f", 1_000_123_000), b"1.000123");
        assert_eq!(format_time(b"%%f", 5), b"%f");
    }

    #[test]
    fn errors_and_signals_have_the_names_of_the_c_library() {
        assert_eq!(error_text(libc::EPERM), "Operation not permitted");
        assert_eq!(signal_text(libc::SIGINT), "Interrupt");
        assert_eq!(signal_text(1024), "N/A");
        assert!(clock(BOOT) > 0 && cpu().0 < 4096 && status_word("self", "PPid") > 0);
    }
}
