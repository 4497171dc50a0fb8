//! Two processes: the front that you see, and the engine that attaches.
//!
//! For:     restoring the target whatever happens to the command that was typed, SIGKILL included.
//! State:   a pipe from front to engine: a byte is a signal, its end is the front's death.
//! Context: control.
//! Keeps:   F1 no ptrace stop is ever owned by the process that users kill.
//!          F2 the front exits with the engine's code.
//!          F3 if the engine is killed, the front frees the target; if both are, the guard does (guard.rs).
//! Checked: testkit `traces`.

use crate::guard::Guard;
use crate::stop::Stop;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::exit;

/// Signals that mean: end now, properly.
pub const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Runs `work` in an engine process and exits with its code.
///
/// With a `pid` to attach to, the engine leaves the terminal's process group, so that Ctrl-C reaches the front
/// alone. A launched program must stay in it, and its engine with it.
pub fn run(pid: Option<i32>, work: impl FnOnce(Stop, &mut Guard) -> i32) -> i32 {
    // Before the pipe, of which it must hold no end.
    let mut guard = Guard::start(pid);
    let (reader, writer) = match std::io::pipe() {
        Ok(ends) => ends,
        Err(e) => {
            eprintln!("nanoprobe: cannot make a pipe: {e}");
            return 1;
        }
    };
    // A signal that comes before either side can take it must wait, not end us.
    hold_signals(true);
    // SAFETY: this process has one thread (main, before anything starts another), so the child may use all of
    // std; both sides go on from here with their own copies of everything.
    match unsafe { libc::fork() } {
        -1 => {
            hold_signals(false);
            eprintln!("nanoprobe: cannot fork: {}", std::io::Error::last_os_error());
            1
        }
        0 => {
            drop(writer);
            become_engine(pid.is_some());
            let code = work(Stop::new(OwnedFd::from(reader)), &mut guard);
            guard.tell(0);
            exit(code)
        }
        engine => {
            drop(reader);
            let (code, was_killed) = wait(engine, OwnedFd::from(writer), pid);
            match was_killed && pid.is_none() {
                // The engine has told it which program was started.
                true => guard.take_over(),
                false => guard.end(),
            }
            code
        }
    }
}

fn become_engine(is_apart: bool) {
    if is_apart {
        // SAFETY: setsid takes no argument; a forked child is never a group leader, so it succeeds.
        unsafe { libc::setsid() };
    }
    rename(session::ENGINE_NAME);
    for signal in ENDING {
        // A handler, not SIG_IGN: a launched program must not inherit it. The front passes the signal on.
        // SAFETY: the handler does nothing, which is safe wherever the signal arrives.
        let _ = unsafe { signal_hook::low_level::register(signal, || ()) };
    }
    hold_signals(false);
}

/// Blocks or unblocks the signals that end us.
fn hold_signals(is_held: bool) {
    let how = if is_held { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: a signal set is plain data, for which all zeroes is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in ENDING {
        // SAFETY: `set` is a valid set, borrowed for the call.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: `set` is valid and the old mask is not asked for.
    unsafe { libc::sigprocmask(how, &raw const set, std::ptr::null_mut()) };
}

/// Gives this process another name, so that who kills `nanoprobe` by name kills the front.
pub fn rename(name: &str) {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    // SAFETY: the kernel copies at most 16 bytes of a string that lives for ever.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // Fields 48 and 49 of proc(5), counted from the state, which is the third.
    let word = |i: usize| fields.get(i - 3).and_then(|f| f.parse::<u64>().ok());
    let (Some(start), Some(end)) = (word(48), word(49)) else { return };
    let mut title = name.to_bytes().to_vec();
    title.resize((end.saturating_sub(start) as usize).min(4096), 0);
    let memory = fs::OpenOptions::new().write(true).open("/proc/self/mem");
    // The arguments were parsed and copied; nobody reads this memory again.
    let _ = memory.and_then(|m| m.write_all_at(&title, start));
}

/// The exit code, and whether the engine was killed.
fn wait(engine: i32, writer: OwnedFd, pid: Option<i32>) -> (i32, bool) {
    for signal in ENDING {
        if let Ok(end) = writer.try_clone() {
            let _ = signal_hook::low_level::pipe::register(signal, end);
        }
    }
    hold_signals(false);
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int to `status`.
        let got = unsafe { libc::waitpid(engine, &raw mut status, 0) };
        if got == engine {
            drop(writer);
            return if libc::WIFEXITED(status) {
                (libc::WEXITSTATUS(status), false)
            } else {
                eprintln!("nanoprobe: the engine was killed by signal {}", libc::WTERMSIG(status));
                if let Some(pid) = pid {
                    crate::look::recover(pid);
                }
                (128 + libc::WTERMSIG(status), true)
            };
        }
        if got == -1 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return (1, false);
        }
    }
}
