//! Whether a process maps our arena.
//!
//! For:     telling the processes of a session from all others: what a target writes is not believed.
//! State:   none; each call reads anew.
//! Context: control.
//! Keeps:   M1 true only of a process that has this file (device and number), shared, where we had the target map it: the target,
//!             or a child that it forked.
//! Checked: tests below; testkit `family`.

use crate::enter::arena::{Arena, errno_of};
use crate::find::process::{self, start_time};
use std::fs::File;
use std::io::{BufRead, BufReader};
use sys::Errno;

impl Arena {
    /// True if the process of this thread maps it where the target does.
    pub fn is_mapped_by(&self, tid: i32) -> bool {
        let Ok(maps) = File::open(format!("/proc/{tid}/maps")) else { return false };
        let lines = BufReader::new(maps).split(b'\n').map_while(Result::ok);
        let found = lines.map(|line| Place::of(&line)).find(|p| p.start >= self.remote);
        let is_arena = |p: &Place| {
            p.start == self.remote && p.is_shared && p.inode == self.inode && p.device == self.device
        };
        found.as_ref().is_some_and(is_arena)
    }

    /// True if no process but `target` maps it, for certain.
    pub fn has_no_heir(&self, target: i32) -> bool {
        self.heirs(target).is_some_and(|heirs| heirs.is_empty())
    }

    /// True if a process but `target` is seen to map it.
    pub fn has_seen_heir(&self, target: i32) -> bool {
        process::all().into_iter().flatten().any(|pid| pid != target && self.is_mapped_by(pid))
    }

    /// All processes but `target` that map it; `None` if that cannot be told: one that cannot be looked at may, unless it is
    /// older.
    pub fn heirs(&self, target: i32) -> Option<Vec<i32>> {
        let began = start_time(target);
        let is_older = |pid| start_time(pid).zip(began).is_some_and(|(its, began)| its < began);
        let mut heirs = Vec::new();
        for pid in process::all().ok()?.into_iter().filter(|pid| *pid != target) {
            if self.is_mapped_by(pid) {
                heirs.push(pid);
            } else if !can_be_seen(pid) && !is_older(pid) {
                return None;
            }
        }
        Some(heirs)
    }
}

/// Whether the mappings of a process can be looked at. Those of one that is over, or is the kernel's, are none.
fn can_be_seen(pid: i32) -> bool {
    match std::fs::read(format!("/proc/{pid}/maps")) {
        Ok(_) => true,
        Err(error) => matches!(errno_of(&error), Errno::ENOENT | Errno::ESRCH),
    }
}

/// What a line of /proc/PID/maps says; zeroes where it says nothing that can be read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    start: u64,
    is_shared: bool,
    device: (u32, u32),
    inode: u64,
}

impl Place {
    fn of(line: &[u8]) -> Place {
        Place::parse(line).unwrap_or_default()
    }

    fn parse(line: &[u8]) -> Option<Place> {
        // All that comes before the path is ASCII.
        let end = line.iter().position(|b| !b.is_ascii()).unwrap_or(line.len());
        let mut fields = std::str::from_utf8(&line[..end]).ok()?.split_ascii_whitespace();
        let start = u64::from_str_radix(fields.next()?.split_once('-')?.0, 16).ok()?;
        let is_shared = fields.next()?.ends_with('s');
        let (major, minor) = fields.nth(1)?.split_once(':')?;
        let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        Some(Place { start, is_shared, device, inode: fields.next()?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_read_up_to_its_path() {
        let line = b"7f00-8000 rw-s 00000000 00:01 1057 /memfd:nanoprobe (deleted)";
        let place = Place { start: 0x7f00, is_shared: true, device: (0, 1), inode: 1057 };
        assert_eq!(Place::of(line), place);
        assert_eq!(Place::of(b"7f00-8000 rw-s 00000000 00:01 1057 /\xff\xfe x"), place);
        assert_eq!(Place::of(b"7f00-8000 r-xp 0 fd:0a 7").device, (0xfd, 10));
        for odd in [&b""[..], b"7f00", b"\xff", b"7f00-8000 rw-s 0 0001 7"] {
            assert_eq!(Place::of(odd), Place::default());
        }
    }
}
