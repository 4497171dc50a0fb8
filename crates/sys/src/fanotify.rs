//! Hearing of programs before they run: whoever executes a file waits until we have said yes.
//!
//! For:     tracing processes that are not there yet.
//! State:   the descriptor, closed on drop: then nobody waits any more.
//! Context: control.
//! Keeps:   F1 each opening that was heard of is answered once, also if the answer is dropped.
//! Checked: tests below; testkit `scripts`.
//! Source:  fanotify_init(2), fanotify_mark(2), fanotify(7).

use crate::{Errno, check, close, nr, syscall};
use core::ffi::CStr;
use core::ops::Deref;

const CLOEXEC: usize = 1;
const NONBLOCK: usize = 2;
const CLASS_CONTENT: usize = 4;
const REPORT_TID: usize = 0x100;
const MARK_ADD: usize = 1;
const OPEN_EXEC_PERM: usize = 0x4_0000;
const ALLOW: u32 = 1;
const HERE: usize = -100isize as usize;
/// O_CLOEXEC, of the descriptors that come with events.
const EVENT_CLOEXEC: usize = 0o2_000_000;

/// The kernel's record of one opening.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Metadata {
    event_len: u32,
    vers: u8,
    reserved: u8,
    metadata_len: u16,
    mask: u64,
    fd: i32,
    pid: i32,
}

/// Somebody who executes one of the files, and waits.
#[derive(Debug)]
pub struct Opened<B: Deref<Target = Fanotify>> {
    by: B,
    fd: i32,
    /// The thread; 0 if it is in a pid namespace that does not contain ours.
    pub tid: i32,
}

/// Files whose execution we hear of.
#[derive(Debug)]
pub struct Fanotify {
    fd: i32,
}

impl Fanotify {
    /// Of no file yet.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN, `ENOSYS` and `EINVAL` a kernel without permission events.
    pub fn new() -> Result<Fanotify, Errno> {
        let flags = CLOEXEC | NONBLOCK | CLASS_CONTENT | REPORT_TID;
        // SAFETY: fanotify_init takes numbers only.
        let fd = check(unsafe { syscall(nr::FANOTIFY_INIT, [flags, EVENT_CLOEXEC, 0, 0, 0, 0]) })?;
        Ok(Fanotify { fd: fd as i32 })
    }

    /// From now on whoever executes the file waits for an answer; its interpreter counts as executed too.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES`; `EINVAL` a file system that has no such events.
    pub fn watch(&self, path: &CStr) -> Result<(), Errno> {
        let args = [self.fd as usize, MARK_ADD, OPEN_EXEC_PERM, HERE, path.as_ptr() as usize, 0];
        // SAFETY: the path is NUL-terminated and outlives the call.
        check(unsafe { syscall(nr::FANOTIFY_MARK, args) }).map(drop)
    }

    /// Readable when somebody waits.
    pub fn watched(&self) -> i32 {
        self.fd
    }

    /// The next who waits, if somebody does.
    ///
    /// # Errors
    /// As for `read`.
    pub fn next<B: Deref<Target = Fanotify>>(by: B) -> Result<Option<Opened<B>>, Errno> {
        let mut event = Metadata::default();
        let len = size_of::<Metadata>();
        let args = [by.fd as usize, &raw mut event as usize, len, 0, 0, 0];
        // SAFETY: the kernel writes one whole event to `event`, which outlives the call; without room for one it refuses.
        match check(unsafe { syscall(nr::READ, args) }) {
            Ok(n) if n == len && event.fd >= 0 => Ok(Some(Opened { by, fd: event.fd, tid: event.pid })),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for Fanotify {
    fn drop(&mut self) {
        close(self.fd);
    }
}

/// Lets it go on.
impl<B: Deref<Target = Fanotify>> Drop for Opened<B> {
    fn drop(&mut self) {
        let answer = [self.fd as u32, ALLOW];
        let args = [self.by.fd as usize, answer.as_ptr() as usize, 8, 0, 0, 0];
        // SAFETY: the kernel reads the eight bytes of `answer`, which outlives the call.
        let _ = unsafe { syscall(nr::WRITE, args) };
        close(self.fd);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    extern crate std;
    use super::*;
    use std::process::Command;

    #[test]
    fn who_executes_a_file_waits_for_the_answer() {
        let own = std::env::temp_dir().join(std::format!("np-fanotify-{}", std::process::id()));
        std::fs::copy("/bin/true", &own).unwrap();
        let path = std::ffi::CString::new(own.to_str().unwrap()).unwrap();
        let Ok(listener) = Fanotify::new() else {
            return; // without the right there is nothing to hear: nobody waits then
        };
        if listener.watch(&path).is_err() {
            return; // a file system without such events
        }
        assert!(Fanotify::next(&listener).unwrap().is_none());
        let program = own.clone();
        let child = std::thread::spawn(move || Command::new(program).status().unwrap());
        let opened = loop {
            match Fanotify::next(&listener).unwrap() {
                Some(opened) => break opened,
                None => std::thread::yield_now(),
            }
        };
        assert!(opened.tid > 0 && !child.is_finished());
        drop(opened);
        assert!(child.join().unwrap().success());
        std::fs::remove_file(own).unwrap();
    }
}
