//! All code of a process, to see whether any byte of it is another than its file's.
//!
//! For:     `torture anywhere`: what detach restores is looked at by somebody else, and so is what it never touched.
//! State:   the files as they were read first.
//! Context: control.
//! Keeps:   C1 a byte of code that differs from its file's is found, in libraries that came meanwhile too.
//!          C2 a mapping that changes while it is looked at is nobody's fault.
//! Checked: `torture anywhere --busted text` must end in FAIL.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Who looks.
pub struct CodeWatch {
    pid: i32,
    files: BTreeMap<String, Vec<u8>>,
}

/// A part of a file that is mapped and may be run.
struct Mapping<'a> {
    start: u64,
    len: u64,
    offset: u64,
    path: &'a str,
}

impl CodeWatch {
    pub fn new(pid: i32) -> CodeWatch {
        CodeWatch { pid, files: BTreeMap::new() }
    }

    /// The address of its first byte.
    pub fn first(&self) -> u64 {
        self.maps().ok().and_then(|maps| Some(mappings(&maps).next()?.start)).unwrap_or(0)
    }

    /// The first bytes that are not their file's: where, in which file, and what they are and were.
    pub fn difference(&mut self) -> std::io::Result<Option<String>> {
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        let maps = self.maps()?;
        for mapping in mappings(&maps) {
            let Some(found) = self.compare(&memory, &mapping) else { continue };
            // The dynamic linker maps a library whole, and then its parts over that.
            if mappings(&self.maps()?)
                .any(|m| (m.start, m.len, m.offset) == (mapping.start, mapping.len, mapping.offset))
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// What is different in one mapping, if its file and all of it can be read.
    fn compare(&mut self, memory: &File, mapping: &Mapping<'_>) -> Option<String> {
        if !self.files.contains_key(mapping.path) {
            self.files.insert(mapping.path.to_owned(), fs::read(mapping.path).ok()?);
        }
        let file = self.files[mapping.path].get(mapping.offset as usize..)?;
        let mut now = vec![0; file.len().min(mapping.len as usize)];
        memory.read_exact_at(&mut now, mapping.start).ok()?;
        let at = file.iter().zip(&now).position(|(a, b)| a != b)?;
        let part = at & !3..(at + 8).min(now.len());
        let offset = mapping.offset + at as u64;
        let (is, was) = (&now[part.clone()], &file[part]);
        Some(format!(
            "{:#x} ({}+{offset:#x}): {is:02x?} instead of {was:02x?}",
            mapping.start + at as u64,
            mapping.path
        ))
    }

    fn maps(&self) -> std::io::Result<String> {
        fs::read_to_string(format!("/proc/{}/maps", self.pid))
    }
}

fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, "r-xp", offset, _, _, path] = words[..] else { return None };
        let (start, end) = range.split_once('-')?;
        let (start, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
        let is_file = path.starts_with('/') && !path.contains("memfd");
        is_file.then_some(Mapping { start, len: end.saturating_sub(start), offset, path })
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}
