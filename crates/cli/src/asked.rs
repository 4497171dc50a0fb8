//! Signals to the front: which of them ask us to end.
//!
//! For:     the front, which stands in the terminal's foreground group with the command that it has started.
//! State:   a pipe to ourselves, on which the handler of every signal writes what came and from whom.
//! Context: control; `note` runs at any instruction.
//! Keeps:   K1 a signal that the command, or a process that it has started, sends to its own group ends nobody of us.
//!          K2 every other one that would have ended us asks for a proper end; one that was ignored before us still is, but for
//!             SIGINT and SIGTERM.
//! Checked: testkit `launching`.

use session::Heritage;
use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Signals that ask for nothing: children and the terminal's window, job control, a closed pipe.
const NOT_ASKING: [i32; 8] = [
    libc::SIGPIPE,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGCHLD,
];
/// Signals by which a script ends what it has started in the background, where a shell has them ignored.
const ALWAYS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];
/// Signals that an instruction of our own can raise.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// The writing end, for the handler.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Signals as they come.
pub struct Asked {
    pipe: PipeReader,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// A child may have ended.
    Child,
    /// Somebody asks us to end: this process, or with 0 the terminal or the kernel.
    Ask { sender: i32 },
}

impl Asked {
    /// Takes all signals that could end us. They must be blocked until then, by [`hold`].
    pub fn listen(heritage: &Heritage) -> std::io::Result<Asked> {
        let (pipe, writer) = std::io::pipe()?;
        PIPE.store(writer.into_raw_fd(), Ordering::Relaxed);
        let is_wanted = |s: &i32| ALWAYS.contains(s) || !heritage.ignores(*s);
        let asking = (1..=libc::SIGRTMAX()).filter(|s| !NOT_ASKING.contains(s) && is_wanted(s));
        for signal in asking.chain([libc::SIGCHLD]) {
            // SAFETY: an action is plain data, for which all zeroes is a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = note as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            // SAFETY: `note` makes system calls alone, and may run anywhere; SIGKILL and the like are refused.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
        Ok(Asked { pipe })
    }

    /// The next one.
    pub fn next(&mut self) -> std::io::Result<Came> {
        let mut words = [[0u8; 4]; 2];
        self.pipe.read_exact(words.as_flattened_mut())?;
        let [signal, sender] = words.map(i32::from_le_bytes);
        Ok(if signal == libc::SIGCHLD { Came::Child } else { Came::Ask { sender } })
    }
}

extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo that is alive until the handler returns.
    let info = unsafe { &*info };
    if info.si_code > 0 && FAULTS.contains(&signal) {
        // Our own: it is raised again, and ends us.
        // SAFETY: the default action is no function.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: of signals that a process has sent the kernel fills in the sender; of others the word is not used.
    let pid = unsafe { info.si_pid() };
    let sender = if info.si_code <= 0 { pid } else { 0 };
    let record = (u64::from(sender as u32) << 32 | u64::from(signal as u32)).to_le_bytes();
    let args = [PIPE.load(Ordering::Relaxed) as usize, record.as_ptr() as usize, record.len(), 0, 0, 0];
    // SAFETY: eight bytes of ours, to a pipe of ours, written whole or not at all; errno is not touched.
    let _ = unsafe { sys::syscall(sys::nr::WRITE, args) };
}

/// Blocks all signals, or none.
pub fn hold(is_held: bool) {
    sys::signal::set_mask(if is_held { u64::MAX } else { 0 });
}

/// True if `pid` is a process that `ancestor` has started, or one of those has. A process that is gone is nobody's.
pub fn descends_from(pid: i32, ancestor: i32) -> bool {
    const GENERATIONS: usize = 1000;
    let mut at = pid;
    for _ in 0..GENERATIONS {
        match parent(at) {
            Some(parent) if parent == ancestor => return true,
            Some(parent) if parent > 1 => at = parent,
            _ => return false,
        }
    }
    false
}

/// The parent of a process.
pub fn parent(pid: i32) -> Option<i32> {
    let mut stat = Vec::new();
    File::open(format!("/proc/{pid}/stat")).ok()?.read_to_end(&mut stat).ok()?;
    // The name before it may be anything.
    let end = stat.iter().rposition(|b| *b == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().nth(1)?.parse().ok()
}
