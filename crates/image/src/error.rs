//! What can keep a file or a process map from being read.
//!
//! For:     every function here that touches a file.
//! State:   none.
//! Context: control.
//! Keeps:   nothing beyond its types.
//! Checked: the tests of the functions that return it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::Machine;
use crate::maps::FileId;

/// Why an image or a map of a process could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImageError {
    /// The file could not be opened or read.
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file does not begin as an ELF file does.
    NotElf {
        /// The file, if one was named.
        path: PathBuf,
    },
    /// An ELF file of a kind that is not read here: only 64-bit little-endian ones are.
    OtherClass {
        /// The file, if one was named.
        path: PathBuf,
        /// True for a 64-bit file.
        is_64: bool,
        /// True for a little-endian file.
        is_little: bool,
    },
    /// The ELF file contradicts itself.
    Malformed {
        /// The file, if one was named.
        path: PathBuf,
        /// Which table is wrong.
        table: &'static str,
    },
    /// It is no program or library, or it asks for more time or memory than a file may.
    Refused {
        /// The file, if one was named.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Its code is for another machine.
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// The machine.
        machine: Machine,
    },
    /// The file on disk is not the one that the process has mapped.
    Replaced {
        /// The path that the map shows.
        path: PathBuf,
        /// The file that is mapped.
        mapped: FileId,
        /// The file that now has this path, if there is one.
        on_disk: Option<FileId>,
    },
    /// A line of /proc/PID/maps has an unknown shape.
    MapsLine {
        /// Its number, from 1.
        line: usize,
    },
    /// The process has nothing mapped from this kind of place (the vdso has no file, for example).
    NoFile {
        /// The name that the map shows.
        name: PathBuf,
    },
}

impl ImageError {
    pub(crate) fn io(path: &Path, source: io::Error) -> ImageError {
        ImageError::Io { path: path.to_owned(), source }
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::NotElf { path } => write!(f, "{} is not an ELF file", path.display()),
            Self::OtherClass { path, is_64, is_little } => write!(
                f,
                "{} is a {}-bit {}-endian ELF file, only 64-bit little-endian ones are read",
                path.display(),
                if *is_64 { 64 } else { 32 },
                if *is_little { "little" } else { "big" }
            ),
            Self::Malformed { path, table } => {
                write!(f, "{} is malformed: its {table} cannot be read", path.display())
            }
            Self::Refused { path, why } => write!(f, "{} is not read: {why}", path.display()),
            Self::OtherMachine { path, machine } => {
                let path = path.display();
                let here = std::env::consts::ARCH;
                match machine {
                    Machine::X86_64 => write!(f, "{path} is for x86_64, this machine is {here}"),
                    Machine::Aarch64 => write!(f, "{path} is for aarch64, this machine is {here}"),
                    Machine::Other(n) => {
                        write!(f, "{path} is for another machine (ELF number {n}), this one is {here}")
                    }
                }
            }
            Self::Replaced { path, mapped, on_disk: Some(disk) } => write!(
                f,
                "{} was replaced on disk: the process has {mapped} mapped, the path now leads to {disk}",
                path.display()
            ),
            Self::Replaced { path, mapped, on_disk: None } => {
                write!(f, "{} was removed from disk: the process still has {mapped} mapped", path.display())
            }
            Self::MapsLine { line } => write!(f, "line {line} of the maps file has an unknown shape"),
            Self::NoFile { name } => write!(f, "{} is not mapped from a file", name.display()),
        }
    }
}

impl std::error::Error for ImageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
