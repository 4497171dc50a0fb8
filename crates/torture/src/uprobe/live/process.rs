//! What a target must look like when all probes have gone.
//!
//! For:     `live`: whether it is as before.
//! State:   none.
//! Context: control.
//! Keeps:   P1 code that has a file is compared with it byte by byte.
//! Checked: `tests/uprobe_live.rs`.

use std::fs;
use std::os::unix::fs::FileExt;

/// What must be the same before and after.
#[derive(Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Code, and files without a name.
    mappings: Vec<String>,
    descriptors: usize,
    threads: usize,
}

impl Footprint {
    pub fn of(pid: i32) -> Result<Footprint, String> {
        let gone = |e: std::io::Error| format!("the target is gone: {e}");
        let entries =
            |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map(Iterator::count).map_err(gone);
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(gone)?;
        // The kernel's page for displaced instructions stays until the process ends.
        let is_ours = |l: &&str| (l.contains("memfd") || l.contains("r-xp")) && !l.contains("[uprobes");
        let mappings = maps.lines().filter(is_ours).map(String::from).collect();
        Ok(Footprint { mappings, descriptors: entries("fd")?, threads: entries("task")? })
    }
}

/// Compares all code that the target has of files with the files.
///
/// # Errors
/// Where they differ.
pub fn check_text(pid: i32) -> Result<(), String> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).map_err(|e| e.to_string())?;
    let mappings = image::maps::read_maps(pid as u32).map_err(|e| e.to_string())?;
    for m in mappings.iter().filter(|m| m.permissions.is_executable && m.file.is_some()) {
        let (start, len) = (m.range.start.0, (m.range.end.0 - m.range.start.0) as usize);
        let path = format!("/proc/{pid}/map_files/{start:x}-{:x}", m.range.end.0);
        let file = fs::File::open(path).or_else(|_| fs::File::open(&m.path));
        let file = file.map_err(|e| format!("{}: {e}", m.path.display()))?;
        let (mut is, mut should) = (vec![0; len], vec![0; len]);
        memory.read_exact_at(&mut is, start).map_err(|e| e.to_string())?;
        // The last page may be longer than the file.
        let mut read = 0;
        while let Ok(n @ 1..) = file.read_at(&mut should[read..], m.offset.0 + read as u64) {
            read += n;
        }
        if let Some(at) = is.iter().zip(&should).position(|(a, b)| a != b) {
            let at = start + at as u64;
            return Err(format!("the text differs from the file at {at:#x} of {}", m.path.display()));
        }
    }
    Ok(())
}
