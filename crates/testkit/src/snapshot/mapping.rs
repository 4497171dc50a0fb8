//! One line of /proc/PID/maps, made comparable.
//!
//! For:     snapshots.
//! State:   none.
//! Context: control.
//! Keeps:   G1 neighbours that the kernel could have merged compare as one; G2 the bounds of heap
//!          and stack, which a process moves by itself, do not count.
//! Checked: mapping::tests.

use std::fmt;

use crate::{Error, Result};

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) perms: String,
    pub(crate) offset: u64,
    pub(crate) name: String,
}

impl Mapping {
    pub(crate) fn is_executable(&self) -> bool {
        self.perms.contains('x') && self.perms.starts_with('r')
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let perms = words.next()?.to_owned();
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let (_device, _inode) = (words.next()?, words.next()?);
        let name = words.next().unwrap_or_default().trim().to_owned();
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { start: hex(start)?, end: hex(end)?, perms, offset, name })
    }

    fn continues(&self, before: &Self) -> bool {
        let same = (&self.perms, &self.name) == (&before.perms, &before.name);
        let in_file = self.name.starts_with('/');
        same && self.start == before.end
            && (!in_file || self.offset == before.offset + (before.end - before.start))
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name == "[heap]" || self.name == "[stack]" {
            return write!(f, "{} {}", self.perms, self.name);
        }
        write!(f, "{:x}-{:x} {} {:x} {}", self.start, self.end, self.perms, self.offset, self.name)
    }
}

/// The mappings of a process, in order of address.
pub(crate) fn read(pid: u32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let bad = |line: &str| Error::Unexpected { wanted: format!("a line of {path}"), seen: line.into() };
    text.lines().map(|line| Mapping::parse(line).ok_or_else(|| bad(line))).collect()
}

/// The same with mergeable neighbours merged.
pub(crate) fn joined(mappings: &[Mapping]) -> Vec<Mapping> {
    let mut joined: Vec<Mapping> = Vec::new();
    for mapping in mappings {
        match joined.last_mut() {
            Some(before) if mapping.continues(before) => before.end = mapping.end,
            _ => joined.push(mapping.clone()),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Mapping {
        Mapping::parse(line).unwrap()
    }

    #[test]
    fn split_text_compares_like_whole_text() {
        let whole = [parse("1000-4000 r-xp 00001000 fe:00 7   /bin/x")];
        let split = [
            parse("1000-2000 r-xp 00001000 fe:00 7   /bin/x"),
            parse("2000-4000 r-xp 00002000 fe:00 7   /bin/x"),
        ];
        assert_eq!(joined(&whole), joined(&split));
    }

    #[test]
    fn neighbours_of_another_kind_stay_apart() {
        let two = [
            parse("1000-2000 r-xp 00001000 fe:00 7 /bin/x"),
            parse("2000-4000 rw-p 00002000 fe:00 7 /bin/x"),
        ];
        assert_eq!(joined(&two).len(), 2);
    }

    #[test]
    fn name_with_spaces_is_kept_whole() {
        assert_eq!(
            parse("1000-2000 r--p 00000000 00:01 9   /memfd:a b (deleted)").name,
            "/memfd:a b (deleted)"
        );
    }
}
