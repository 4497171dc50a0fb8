//! Two processes: the front that you see, and the engine that attaches.
//!
//! For:     restoring the target whatever happens to the command that was typed, SIGKILL included.
//! State:   a pipe from front to engine: a word is who has asked for the end, its end is the front's death.
//! Context: control.
//! Keeps:   F1 no ptrace stop is ever owned by the process that users kill.
//!          F2 the front exits with the engine's code.
//!          F3 if the engine is killed, the front frees the target; if both are, the guard does (guard.rs).
//!          F4 if the engine left a view on the terminal, the front takes it away.
//! Checked: testkit `traces`; `view` (F4).

use crate::asked::{self, Asked, Came};
use crate::guard::Guard;
use crate::stop::Stop;
use crate::top::{Tty, keys};
use session::Heritage;
use std::fs;
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::exit;
use std::sync::Arc;

/// Signals that mean: end now, properly.
pub const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Runs `work` in an engine process and exits with its code.
///
/// The engine leaves the terminal's process group, so that Ctrl-C reaches the front alone, and a launched program, which
/// stays in it. With a `pid` to attach to it leaves the session too; to launch it must not, since nobody may enter a
/// group of another session.
pub fn run(
    pid: Option<i32>,
    tty: Option<Tty>,
    work: impl FnOnce(Stop, Option<Tty>, &mut Guard) -> i32,
) -> i32 {
    // Before the pipe, of which it must hold no end.
    let heritage = Heritage::of_this_process();
    let mut guard = Guard::start(pid, tty.as_ref());
    let (reader, writer) = match std::io::pipe() {
        Ok(ends) => ends,
        Err(e) => {
            eprintln!("nanoprobe: cannot make a pipe: {e}");
            return 1;
        }
    };
    // A signal that comes before either side can take it must wait, not end us.
    asked::hold(true);
    // SAFETY: this process has one thread (main, before anything starts another), so the child may use all of
    // std; both sides go on from here with their own copies of everything.
    match unsafe { libc::fork() } {
        -1 => {
            asked::hold(false);
            eprintln!("nanoprobe: cannot fork: {}", std::io::Error::last_os_error());
            1
        }
        0 => {
            drop(writer);
            become_engine(pid.is_some());
            let code = work(Stop::new(OwnedFd::from(reader), heritage), tty, &mut guard);
            guard.tell(0);
            exit(code)
        }
        engine => {
            drop(reader);
            let (code, was_killed) = wait(engine, writer, pid, tty, &heritage);
            match was_killed && pid.is_none() {
                // The engine has told it which program was started.
                true => guard.take_over(),
                false => guard.end(),
            }
            code
        }
    }
}

/// Leaves the session, with its terminal and its groups.
///
/// A session is a group for the scheduler too, with a weight of its own: what was given to the old one goes on to count.
/// Beside a session of weight -15 a process of the new one waited 18 s for a CPU.
pub fn leave_session() {
    const GROUP: &str = "/proc/self/autogroup";
    // As "/autogroup-25 nice 0"; not there in every kernel.
    let before = fs::read_to_string(GROUP).unwrap_or_default();
    // SAFETY: setsid takes no argument; a forked child is never a group leader, so it succeeds.
    unsafe { libc::setsid() };
    if let Some((_, nice)) = before.trim_end().rsplit_once(" nice ").filter(|(_, nice)| *nice != "0") {
        // Who may not have it back goes on without.
        let _ = fs::write(GROUP, nice);
    }
}

fn become_engine(is_apart: bool) {
    if is_apart {
        leave_session();
    } else {
        let _ = sys::set_process_group(0);
    }
    rename(session::ENGINE_NAME);
    for signal in ENDING {
        // A handler, not SIG_IGN: a launched program must not inherit it. The front passes the signal on.
        // SAFETY: the handler does nothing, which is safe wherever the signal arrives.
        let _ = unsafe { signal_hook::low_level::register(signal, || ()) };
    }
    // Were it ignored, nobody would learn how the command ended.
    // SAFETY: the default action is no function.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // Not in the foreground, we still write to the terminal, whatever it says to that.
    sys::signal::set_mask(sys::signal::bit(libc::SIGTTOU));
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
fn wait(
    engine: i32,
    writer: PipeWriter,
    pid: Option<i32>,
    tty: Option<Tty>,
    heritage: &Heritage,
) -> (i32, bool) {
    let mut asked = Asked::listen(heritage);
    asked::hold(false);
    let tty = tty.map(Arc::new);
    if let Some(tty) = tty.clone() {
        // The engine sees by itself what size the window has. A key that comes together with this signal would be read with the
        // next one only: crossterm leaves its loop for the signal, and its terminal is not announced again.
        sys::signal::set_mask(sys::signal::mask() | sys::signal::bit(libc::SIGWINCH));
        std::thread::spawn(move || keys::pass_on(&tty));
    }
    let mut writer = Some(writer);
    loop {
        if let Some(status) = end_of(engine, asked.is_ok()) {
            drop(writer);
            tty.iter().for_each(|tty| tty.give_back());
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
        let Ok(came) = asked.as_mut().map_or_else(|_| Ok(Came::Child), Asked::next) else { continue };
        if let (Came::Ask { sender }, Some(pipe)) = (came, &mut writer)
            && !(sender != 0 && asked::descends_from(sender, engine))
        {
            // An engine that does not read any more is about to end.
            let _ = pipe.write_all(&sender.to_le_bytes());
        }
    }
}

/// The engine's status, if it has ended; without signals to wait for, waits for that.
fn end_of(engine: i32, is_listening: bool) -> Option<i32> {
    let mut status = 0;
    let options = if is_listening { libc::WNOHANG } else { 0 };
    // SAFETY: waitpid writes one int to `status`.
    let got = unsafe { libc::waitpid(engine, &raw mut status, options) };
    (got == engine).then_some(status)
}
