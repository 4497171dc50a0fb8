//! Which of a process's limits a call of it has met.
//!
//! For:     telling why a call that we made in the target failed.
//! State:   none; each call reads anew.
//! Context: control; the process stands.
//! Keeps:   L1 a limit is named only if it is finite and what the process has comes near it.
//! Checked: testkit `refusals` (`a_process_that_has_used_up_*`); tests below.
//! Source:  proc_pid_limits(5), mmap(2), memfd_create(2).

use crate::facts::error::Limit;
use crate::find::process::Status;
use std::fs;
use sys::Errno;

/// An attach takes less than that.
const NEAR_BYTES: u64 = 512 << 20;
/// A mapping that is made inside another takes two more.
const NEAR_MAPPINGS: u64 = 4;

/// The process of a thread, and the limit by which a call of it got this answer; `None` if it was none of them.
pub(crate) fn met(tid: i32, errno: Errno) -> Option<(i32, Limit)> {
    if ![Errno::EMFILE, Errno::ENOMEM, Errno::EAGAIN].contains(&errno) {
        return None;
    }
    let pid = Status::of_any(tid).ok()??.tgid;
    let text = |name: &str| {
        Some(String::from_utf8_lossy(&fs::read(format!("/proc/{tid}/{name}")).ok()?).into_owned())
    };
    let (limits, status) = (text("limits")?, text("status")?);
    if errno == Errno::ENOMEM {
        let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
        let mappings = text("maps")?.lines().count() as u64;
        if mappings.saturating_add(NEAR_MAPPINGS) >= most {
            return Some((pid, Limit::Mappings(most)));
        }
    }
    by_status(errno, &limits, &status).map(|limit| (pid, limit))
}

/// From the text of /proc/PID/limits and /proc/PID/status.
fn by_status(errno: Errno, limits: &str, status: &str) -> Option<Limit> {
    let most = |name: &str| -> Option<u64> {
        let values = limits.lines().find_map(|line| line.strip_prefix(name))?;
        values.split_whitespace().next()?.parse().ok()
    };
    let near = |name: &str, key: &str| {
        let has = status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?;
        let bytes = has.parse::<u64>().ok()?.saturating_mul(1024);
        most(name).filter(|most| bytes.saturating_add(NEAR_BYTES) > *most)
    };
    match errno {
        Errno::EMFILE => most("Max open files").map(Limit::Descriptors),
        Errno::EAGAIN => near("Max locked memory", "VmLck:").map(Limit::Locked),
        _ => near("Max address space", "VmSize:")
            .map(Limit::AddressSpace)
            .or_else(|| near("Max data size", "VmData:").map(Limit::Data)),
    }
}

#[cfg(test)]
mod tests {
    use super::by_status;
    use crate::facts::error::Limit;
    use sys::Errno;

    const STATUS: &str = "Name:\tx\nVmSize:\t  900000 kB\nVmLck:\t       0 kB\nVmData:\t   10000 kB\n";

    fn limits(space: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max open files            64                   1024                 files\n\
             Max locked memory         unlimited            unlimited            bytes\n\
             Max address space         {space}            unlimited            bytes\n\
             Max data size             unlimited            unlimited            bytes\n"
        )
    }

    #[test]
    fn a_limit_is_named_if_it_is_finite_and_near() {
        let near = limits("1000000000");
        assert_eq!(by_status(Errno::ENOMEM, &near, STATUS), Some(Limit::AddressSpace(1_000_000_000)));
        assert_eq!(by_status(Errno::EMFILE, &near, STATUS), Some(Limit::Descriptors(64)));
        assert_eq!(by_status(Errno::EAGAIN, &near, STATUS), None);
        assert_eq!(by_status(Errno::ENOMEM, &limits("9000000000"), STATUS), None);
        assert_eq!(by_status(Errno::ENOMEM, &limits("unlimited"), STATUS), None);
    }
}
