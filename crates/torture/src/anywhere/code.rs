//! All code of a process, to see whether any byte of it has changed.
//!
//! For:     `torture anywhere`: what detach restores is looked at by somebody else, and so is what it never touched.
//! State:   a copy of each executable mapping of a file.
//! Context: control.
//! Keeps:   C1 a byte of code that differs from the first look is found.
//! Checked: `torture anywhere --busted text` must end in FAIL.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// One look.
pub struct CodeCopy {
    pid: i32,
    mappings: Vec<(Range<u64>, String, Vec<u8>)>,
}

impl CodeCopy {
    pub fn of(pid: i32) -> std::io::Result<CodeCopy> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let mut mappings = Vec::new();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [range, "r-xp", _, _, _, path] = words[..] else { continue };
            let Some((Ok(start), Ok(end))) = range.split_once('-').map(|(a, b)| (hex(a), hex(b))) else {
                continue;
            };
            if path.starts_with('/') && !path.contains("memfd") {
                let mut bytes = vec![0; (end - start) as usize];
                memory.read_exact_at(&mut bytes, start)?;
                mappings.push((start..end, path.to_owned(), bytes));
            }
        }
        Ok(CodeCopy { pid, mappings })
    }

    /// The address of its first byte.
    pub fn first(&self) -> u64 {
        self.mappings.first().map_or(0, |(range, ..)| range.start)
    }

    /// The first byte that is another one now, and its file.
    pub fn difference(&self) -> std::io::Result<Option<(u64, String)>> {
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        for (range, path, bytes) in &self.mappings {
            let mut now = vec![0; bytes.len()];
            if memory.read_exact_at(&mut now, range.start).is_err() {
                continue; // unmapped: a library that was closed
            }
            if let Some(at) = bytes.iter().zip(&now).position(|(a, b)| a != b) {
                return Ok(Some((range.start + at as u64, path.clone())));
            }
        }
        Ok(None)
    }
}

fn hex(text: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(text, 16)
}
