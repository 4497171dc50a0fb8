//! What the kernel reports of traced threads and of our own children, taken in one place.
//!
//! For:     everybody here who waits.
//! State:   our children, with how they ended if that was seen; and of this OS thread, threads that are to be let go as
//!          soon as they can be.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   R1 the exit status of a child of ours is kept for whoever asks for it, whoever took it.
//!          R2 a thread that died while we held it is reaped: its own parent hears of its end then, and not before.
//!          R3 who waits for one thread is not kept waiting by the end of others.
//! Checked: tests below; testkit `launching`, `endings`.

use crate::find::process;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::ptrace;
use sys::wait::{self, Status};
use sys::{Errno, PidFd};

pub(crate) use sys::wait::NOHANG;

/// Children, and how they ended: of the whole process, as stops are made in OS threads of their own.
static CHILDREN: Mutex<BTreeMap<i32, Option<Status>>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Threads that were not in a stop when they were to be let go. The end of this OS thread lets go of them too.
    static LEAVING: RefCell<Vec<i32>> = RefCell::default();
}

fn children() -> MutexGuard<'static, BTreeMap<i32, Option<Status>>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next report of a thread, or of any with -1; `None` with [`NOHANG`] if there is none.
///
/// # Errors
/// `ECHILD` there is nobody to wait for, `EINTR` a signal of ours came first.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub(crate) fn take(tid: i32, options: usize) -> Result<Option<(i32, Status)>, Errno> {
    let taken = wait::wait(tid, wait::ALL | options)?;
    if let Some((who, status @ (Status::Exited(_) | Status::Killed(_)))) = taken {
        note(who, status);
    }
    Ok(taken)
}

/// The next report of a thread that this OS thread traces.
///
/// The kernel tells the end of a first thread when the others of its process are reaped, and not before: whoever waited for
/// it alone would wait for ever once the process was killed.
///
/// # Errors
/// `ECHILD` it is gone.
pub(crate) fn await_report(tid: i32) -> Result<Status, Errno> {
    /// While another's report waits, which is for others to take.
    const PAUSE: Duration = Duration::from_micros(50);
    loop {
        match take(tid, NOHANG) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        match wait::await_any() {
            Ok(who) if who == tid => {}
            Ok(_) => {
                if let Ok(Some(ended)) = process::Status::of_any(tid).map(|s| s.filter(|s| s.state == 'Z')) {
                    let others = process::threads(ended.tgid).unwrap_or_default();
                    reap_ended(&others.into_iter().filter(|other| *other != tid).collect::<Vec<_>>());
                }
                std::thread::sleep(PAUSE);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Reaps threads that have ended, whichever OS thread of ours traces them.
pub(crate) fn reap_ended(tids: &[i32]) {
    for tid in tids {
        if let Ok(Some(status)) = wait::reap(*tid) {
            note(*tid, status);
        }
    }
}

/// A child's first end is its only one: later its number may be another's.
fn note(who: i32, status: Status) {
    if let Some(end) = children().get_mut(&who) {
        end.get_or_insert(status);
    }
    LEAVING.with_borrow_mut(|leaving| leaving.retain(|tid| *tid != who));
}

/// From now on the end of this child is kept.
pub(crate) fn adopt(child: i32) {
    children().insert(child, None);
}

/// Whether a process is a child whose end is kept.
pub(crate) fn is_child(pid: i32) -> bool {
    children().contains_key(&pid)
}

/// Nobody will ask for it any more.
pub(crate) fn disown(child: i32) {
    children().remove(&child);
}

/// How an adopted child ended, which is reaped by that; `None` if it has not.
///
/// # Errors
/// `ECHILD`: somebody else reaped it, and nobody will ever know.
pub(crate) fn end_of(child: i32, process: &PidFd) -> Result<Option<Status>, Errno> {
    if let Some(status) = children().get(&child).copied().flatten() {
        return Ok(Some(status));
    }
    let end = process.reap()?;
    if let Some(status) = end {
        note(child, status);
    }
    Ok(end)
}

/// Lets a thread go that stands in a stop of ours, with `signal` delivered; one that was killed in it is reaped, now or by
/// [`tidy`].
pub(crate) fn let_go(tid: i32, signal: i32) {
    if ptrace::detach(tid, signal).is_err() {
        // If it lives, it will stop.
        let _ = ptrace::interrupt(tid);
        LEAVING.with_borrow_mut(|leaving| leaving.push(tid));
        tidy();
    }
}

/// Lets go and reaps threads that could not be let go before; to be called now and then.
pub fn tidy() {
    let leaving = LEAVING.take();
    let rest: Vec<i32> = leaving.into_iter().filter(|tid| !has_left(*tid)).collect();
    LEAVING.with_borrow_mut(|leaving| leaving.extend(rest));
}

fn has_left(tid: i32) -> bool {
    match take(tid, NOHANG) {
        Ok(None) | Err(Errno::EINTR) => false,
        Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) | Err(_) => true,
        Ok(Some((who, Status::Signal(signal)))) => ptrace::detach(who, signal).is_ok(),
        Ok(Some((who, _))) => ptrace::detach(who, 0).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[allow(clippy::zombie_processes, reason = "it is reaped by its descriptor")]
    fn child(script: &str) -> (i32, PidFd) {
        let pid = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap().id() as i32;
        adopt(pid);
        (pid, PidFd::open(pid).unwrap())
    }

    fn soon<T>(mut found: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(Instant::now() < end, "nothing came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_end_that_somebody_else_took_is_kept_for_its_owner() {
        let (pid, process) = child("exit 7");
        assert_eq!(soon(|| take(pid, NOHANG).unwrap()), (pid, Status::Exited(7)));
        assert_eq!(end_of(pid, &process), Ok(Some(Status::Exited(7))));
        assert_eq!(end_of(pid, &process), Ok(Some(Status::Exited(7))), "it can be asked for again");
        // Another process of that number ends.
        note(pid, Status::Killed(9));
        assert_eq!(end_of(pid, &process), Ok(Some(Status::Exited(7))));
        disown(pid);
        assert_eq!(end_of(pid, &process), Err(Errno::ECHILD));
    }

    #[test]
    fn a_thread_that_died_in_a_stop_is_reaped() {
        let (pid, process) = child("sleep 60");
        ptrace::seize(pid, 0).unwrap();
        ptrace::interrupt(pid).unwrap();
        soon(|| take(pid, NOHANG).unwrap());
        process.signal(9).unwrap();
        let_go(pid, 0);
        soon(|| {
            tidy();
            LEAVING.with_borrow(Vec::is_empty).then_some(())
        });
        assert_eq!(end_of(pid, &process), Ok(Some(Status::Killed(9))));
    }
}
