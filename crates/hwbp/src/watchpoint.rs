//! A watchpoint in the caller's own process.
//!
//! For:     programs that want to know whether their own data is touched.
//! State:   one perf event, for the calling thread and those that it starts afterwards.
//! Context: target. Arming and reading are system calls; an access costs about ten microseconds.
//! Keeps:   O1 each access from user mode by a thread that has it counts once.
//! Checked: tests below.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use sys::Errno;
use sys::perf::{self, Breakpoint, access};

/// Which accesses count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Writes.
    Write,
    /// Reads and writes; the hardware does not tell them apart.
    ReadWrite,
}

/// Counts accesses to a value of this process, until it is dropped.
///
/// ```no_run
/// static LIMIT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
/// let mut watch = hwbp::Watchpoint::on(&LIMIT, hwbp::Access::Write)?;
/// LIMIT.store(2, std::sync::atomic::Ordering::Relaxed);
/// assert_eq!(watch.hits()?, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Watchpoint {
    event: File,
}

impl Watchpoint {
    /// Watches a value of 1, 2, 4 or 8 bytes, in this thread and those that it starts from now on.
    ///
    /// # Errors
    /// `ENOSPC` all debug registers are taken, `EINVAL` no such size or alignment, `EACCES` not allowed.
    pub fn on<T>(value: &T, access: Access) -> std::io::Result<Watchpoint> {
        Self::at(std::ptr::from_ref(value).addr(), size_of::<T>(), access)
    }

    /// The same by address and length.
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn at(addr: usize, len: usize, access: Access) -> std::io::Result<Watchpoint> {
        let error = |errno: Errno| std::io::Error::from_raw_os_error(errno.0);
        let breakpoint = Breakpoint {
            addr: addr as u64,
            // A length that does not fit is none that a register has.
            len: u32::try_from(len).map_err(|_| error(Errno::EINVAL))?,
            access: match access {
                Access::Write => access::WRITE,
                Access::ReadWrite => access::READ_WRITE,
            },
            starts_disabled: false,
            is_inherited: true,
            is_for_children: false,
            raises_sigtrap: false,
            runs_program: false,
        };
        let fd = perf::open_breakpoint(&breakpoint, 0).map_err(error)?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
        let event = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Watchpoint { event })
    }

    /// The accesses so far.
    ///
    /// # Errors
    /// The event cannot be read.
    pub fn hits(&mut self) -> std::io::Result<u64> {
        let mut value = [0u8; 8];
        self.event.read_exact(&mut value)?;
        Ok(u64::from_le_bytes(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn own_writes_of_threads_born_later_are_counted_and_reads_are_not() {
        static WATCHED: AtomicU64 = AtomicU64::new(0);
        let mut watch = match Watchpoint::on(&WATCHED, Access::Write) {
            Ok(watch) => watch,
            Err(error) => {
                // A container without the right, or a machine without debug registers.
                let known = [Errno::EACCES, Errno::EPERM, Errno::ENODEV, Errno::ENOENT, Errno::EOPNOTSUPP];
                assert!(known.iter().any(|e| Some(e.0) == error.raw_os_error()), "{error}");
                return;
            }
        };
        (0..10).for_each(|n| WATCHED.store(n, Relaxed));
        let read = |n: u64| (0..n).map(|_| WATCHED.load(Relaxed)).max();
        assert_eq!(read(5), Some(9));
        std::thread::spawn(|| (0..7).for_each(|n| WATCHED.store(n, Relaxed))).join().unwrap();
        assert_eq!(watch.hits().unwrap(), 17);
    }

    #[test]
    fn a_size_that_no_debug_register_has_is_refused() {
        let three = [0u8; 3];
        assert!(Watchpoint::on(&three, Access::Write).is_err());
        let eight = 0u64;
        let addr = (&raw const eight).addr();
        for len in [0, (1 << 32) + 8, usize::MAX] {
            assert!(Watchpoint::at(addr, len, Access::Write).is_err(), "{len}");
        }
    }
}
