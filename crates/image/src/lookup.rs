//! Which file or module a LIB name means.
//!
//! For:     `u:libc:malloc`: with a process, its modules; without one, the loader's own places.
//! State:   none.
//! Context: control.
//! Keeps:   K1 a name that several different files answer to is an error that lists them, not a guess.
//! Checked: lookup/tests.rs, tests/suite/process.rs.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::spec::Library;
use crate::{ImageError, Module, ModuleKind, Process};

mod cache;
#[cfg(test)]
mod tests;

pub use cache::{CacheEntry, parse_cache};

/// How many modules a message lists.
const SHOWN: usize = 12;

/// Why a LIB name leads to no file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LookupError {
    /// Nothing was named, and there is no process whose main executable could be meant.
    NoProcess,
    /// No module of the process has the name.
    NotMapped {
        /// The name.
        asked: String,
        /// The names of the modules.
        mapped: Vec<String>,
        /// Those that are close to the name.
        near: Vec<String>,
        /// The program, if it is linked statically and so has its libraries inside.
        static_program: Option<PathBuf>,
    },
    /// The file that has the name is mapped, but cannot be read.
    Unread {
        /// Its path.
        path: PathBuf,
        /// Why not, for example because it was replaced on disk.
        cause: Arc<ImageError>,
    },
    /// Several files have the name.
    Ambiguous {
        /// The name.
        asked: String,
        /// Their paths.
        candidates: Vec<PathBuf>,
    },
    /// No library, program or path has the name.
    NotFound {
        /// The name.
        asked: String,
        /// Names that are close to it.
        near: Vec<String>,
    },
}

impl LookupError {
    /// The specification to write in place of the one that failed, for a function of that name.
    pub fn better_spec(&self, function: &str) -> Option<String> {
        match self {
            Self::NotMapped { static_program: Some(program), .. } => {
                Some(format!("u:{}:{function}", program.display()))
            }
            Self::NotMapped { near, .. } | Self::NotFound { near, .. } => {
                near.first().map(|n| format!("u:{n}:{function}"))
            }
            Self::Ambiguous { candidates, .. } => {
                candidates.last().map(|c| format!("u:{}:{function}", c.display()))
            }
            Self::NoProcess | Self::Unread { .. } => None,
        }
    }
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess => {
                f.write_str("no library is named, and no process whose program could be meant")
            }
            Self::NotMapped { asked, static_program: Some(program), .. } => write!(
                f,
                "'{asked}' is not mapped: {} is statically linked, its libraries are inside it",
                program.display()
            ),
            Self::NotMapped { asked, mapped, near, .. } => {
                let shown = &mapped[..mapped.len().min(SHOWN)];
                write!(f, "'{asked}' is not mapped; mapped are {}", shown.join(", "))?;
                if mapped.len() > SHOWN {
                    write!(f, " and {} more", mapped.len() - SHOWN)?;
                }
                if is_glob(asked) {
                    return say_glob(f, near);
                }
                if near.is_empty() { Ok(()) } else { write!(f, "; near: {}", near.join(", ")) }
            }
            Self::Unread { cause, .. } => fmt::Display::fmt(cause, f),
            Self::Ambiguous { asked, candidates } => {
                let paths: Vec<_> = candidates.iter().map(|c| c.display().to_string()).collect();
                write!(f, "'{asked}' can be any of {}", paths.join(", "))
            }
            Self::NotFound { asked, near } if is_glob(asked) => {
                write!(f, "no library or program '{asked}' is found")?;
                say_glob(f, near)
            }
            Self::NotFound { asked, near } if near.is_empty() => {
                write!(f, "no library or program '{asked}' is found")
            }
            Self::NotFound { asked, near } => {
                write!(f, "no library or program '{asked}' is found; near: {}", near.join(", "))
            }
        }
    }
}

impl std::error::Error for LookupError {}

fn is_glob(asked: &str) -> bool {
    asked.contains(['*', '?', '['])
}

fn say_glob(f: &mut fmt::Formatter<'_>, fitting: &[String]) -> fmt::Result {
    f.write_str("; a library is written as a path, a file name or a stem, not as a glob")?;
    if fitting.is_empty() { Ok(()) } else { write!(f, "; some that fit: {}", fitting.join(", ")) }
}

/// Whether the pieces of a glob stand in a name, one behind the other.
fn fits_glob(glob: &str, name: &str) -> bool {
    let mut rest = Some(name);
    for piece in glob.split(['*', '?', '[', ']']) {
        rest = rest.and_then(|r| r.split_once(piece)).map(|(_, behind)| behind);
    }
    rest.is_some()
}

/// The module of `process` that `library` means, the first if its file is loaded more than once.
///
/// # Errors
/// As [`find_modules`].
pub fn find_module<'p>(library: &Library, process: &'p Process) -> Result<&'p Module, LookupError> {
    let modules = find_modules(library, process)?;
    modules.first().copied().ok_or(LookupError::NoProcess)
}

/// The modules of `process` that `library` means: one, or all copies of a file that is loaded more than once.
///
/// Tried in this order, the first that fits wins: the path, the file (whatever its path), the file name,
/// the stem (`libc` for `libc.so.6` and for musl's `ld-musl-x86_64.so.1`), a program found in `PATH`, and the
/// soname.
///
/// # Errors
/// [`LookupError::NotMapped`] or [`LookupError::Ambiguous`].
pub fn find_modules<'p>(library: &Library, process: &'p Process) -> Result<Vec<&'p Module>, LookupError> {
    let asked = match library {
        Library::Main => {
            let main = process.main_executable().ok_or_else(|| main_unread(process))?;
            return Ok(vec![main]);
        }
        Library::Named(name) => name.as_str(),
    };
    let those = |fits: &dyn Fn(&Module) -> bool| -> Vec<&'p Module> {
        process.modules.iter().filter(|m| m.kind != ModuleKind::Vdso && fits(m)).collect()
    };
    // From cheap to dear: programs are searched for on disk, sonames are read from the files.
    let by_path: [&dyn Fn(&Module) -> bool; 1] = [&|m| is_file(m, Path::new(asked))];
    let by_name: [&dyn Fn(&Module) -> bool; 5] = [
        &|m| m.file_name() == asked,
        &|m| has_stem(m.file_name(), asked),
        &|m| is_musl(m.file_name(), asked),
        &|m| in_path(asked).is_some_and(|p| is_file(m, &p)),
        &|m| soname_fits(m, process.pid, asked),
    ];
    let ways = if asked.contains('/') { &by_path[..] } else { &by_name[..] };
    let found = ways.iter().map(|way| those(*way)).find(|found| !found.is_empty());
    let missing = || unread(asked, process).unwrap_or_else(|| not_mapped(asked, process));
    of_one_file(asked, found.ok_or_else(missing)?)
}

/// The mapped file of this name that could not be read.
fn unread(asked: &str, process: &Process) -> Option<LookupError> {
    let fits = |path: &Path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        path == Path::new(asked) || name == asked || has_stem(name, asked) || is_musl(name, asked)
    };
    let (path, cause) = process.unread.iter().find(|(path, _)| fits(path))?;
    Some(LookupError::Unread { path: path.clone(), cause: cause.clone() })
}

/// Why there is no main executable.
fn main_unread(process: &Process) -> LookupError {
    let link = std::fs::read_link(crate::maps::proc_dir(process.pid).join("exe")).unwrap_or_default();
    let shown = link.to_str().unwrap_or_default();
    let path = shown.strip_suffix(" (deleted)").unwrap_or(shown);
    unread(path, process).unwrap_or_else(|| not_mapped(path, process))
}

fn of_one_file<'p>(asked: &str, found: Vec<&'p Module>) -> Result<Vec<&'p Module>, LookupError> {
    if found.iter().all(|m| m.file == found[0].file) {
        return Ok(found);
    }
    let candidates = found.iter().map(|m| m.path.clone()).collect();
    Err(LookupError::Ambiguous { asked: asked.to_owned(), candidates })
}

fn is_file(module: &Module, path: &Path) -> bool {
    if module.path == path {
        return true;
    }
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let same_path = std::fs::canonicalize(path).is_ok_and(|p| p == module.path);
    same_path || module.file.is_some() && module.file == Some(crate::maps::id_of(&metadata))
}

fn soname_fits(module: &Module, pid: u32, asked: &str) -> bool {
    let Ok(image) = module.open(pid) else { return false };
    image.soname().is_some_and(|s| s == asked || has_stem(s, asked))
}

fn not_mapped(asked: &str, process: &Process) -> LookupError {
    let from_files = process.modules.iter().filter(|m| m.kind != ModuleKind::Vdso);
    let mapped: Vec<_> = from_files.map(|m| m.file_name().to_owned()).collect();
    let program = process.main_executable();
    let static_program = program
        .filter(|m| looks_like_library(asked) && m.open(process.pid).is_ok_and(|i| i.is_static()))
        .map(|m| m.path.clone());
    LookupError::NotMapped {
        asked: asked.to_owned(),
        near: near(asked, mapped.iter().map(String::as_str)),
        mapped,
        static_program,
    }
}

fn looks_like_library(asked: &str) -> bool {
    let name = asked.rsplit('/').next().unwrap_or(asked);
    name.starts_with("lib") || name.contains(".so")
}

/// The path of the file that `name` means on this machine, without a process.
///
/// A path is taken as it is. A name is looked for in `LD_LIBRARY_PATH`, `/etc/ld.so.cache` and the default
/// directories, as file name and as stem, then as a program in `PATH`.
///
/// # Errors
/// [`LookupError::NotFound`] or [`LookupError::Ambiguous`].
pub fn find_file(library: &Library) -> Result<PathBuf, LookupError> {
    let asked = match library {
        Library::Main => return Err(LookupError::NoProcess),
        Library::Named(name) => name.as_str(),
    };
    let not_found = |near| LookupError::NotFound { asked: asked.to_owned(), near };
    if asked.contains('/') {
        let path = PathBuf::from(asked);
        let Ok(metadata) = std::fs::metadata(&path) else { return Err(not_found(Vec::new())) };
        if metadata.is_file() {
            return Ok(path);
        }
        // It is there, but nothing to read; opening it says what it is.
        return match crate::ElfImage::open(&path) {
            Ok(_) => Ok(path),
            Err(cause) => Err(LookupError::Unread { path, cause: Arc::new(cause) }),
        };
    }
    let known = known_libraries();
    let exact = known.iter().find(|(name, _)| name == asked).map(|(_, path)| path.clone());
    if let Some(path) = exact {
        return Ok(path);
    }
    let mut candidates = distinct_files(&known, |name| has_stem(name, asked));
    if candidates.is_empty() {
        candidates = distinct_files(&known, |name| is_musl(name, asked));
    }
    match candidates.len() {
        0 => in_path(asked).ok_or_else(|| not_found(near(asked, known.iter().map(|(n, _)| n.as_str())))),
        1 => Ok(candidates.remove(0)),
        _ => Err(LookupError::Ambiguous { asked: asked.to_owned(), candidates }),
    }
}

/// The paths of libraries whose names fit: of one name the loader's choice, of several names of one file (a
/// link without a version, for example) the first.
fn distinct_files(known: &[(String, PathBuf)], fits: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut by_name = BTreeMap::new();
    for (name, path) in known.iter().filter(|(name, _)| fits(name)) {
        by_name.entry(name).or_insert(path);
    }
    let mut by_file = BTreeMap::new();
    for path in by_name.into_values() {
        if let Ok(metadata) = std::fs::metadata(path) {
            by_file.entry((metadata.dev(), metadata.ino())).or_insert_with(|| path.clone());
        }
    }
    let mut candidates: Vec<_> = by_file.into_values().collect();
    candidates.sort();
    candidates
}

/// Libraries by name, those that the loader prefers first.
fn known_libraries() -> Vec<(String, PathBuf)> {
    let mut known = Vec::new();
    let preferred = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    for dir in std::env::split_paths(&preferred) {
        add_directory(&dir, &mut known);
    }
    let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    let entries = parse_cache(&cache).into_iter().filter(CacheEntry::is_for_this_machine);
    known.extend(entries.map(|e| (e.name, e.path)));
    for dir in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
        add_directory(Path::new(dir), &mut known);
    }
    known
}

fn add_directory(dir: &Path, known: &mut Vec<(String, PathBuf)>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut files: Vec<_> = entries
        .flatten()
        .filter_map(|e| Some((e.file_name().into_string().ok()?, e.path())))
        .filter(|(name, _)| name.ends_with(".so") || name.contains(".so."))
        .collect();
    files.sort();
    known.append(&mut files);
}

/// A program of this name in `PATH`.
fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// Whether `asked` is the stem of a library's file name: `libc` of `libc.so.6`, `libc-2.31.so`.
fn has_stem(file_name: &str, asked: &str) -> bool {
    if let Some(rest) = file_name.strip_prefix(asked) {
        let is_versioned = |r: &str| r.starts_with(|c: char| c.is_ascii_digit()) && r.contains(".so");
        let with_version = rest.strip_prefix('-').is_some_and(is_versioned);
        if rest == ".so" || rest.starts_with(".so.") || with_version {
            return true;
        }
        // `libssl.so` asked, `libssl.so.3` there.
        let is_number =
            |r: &str| r.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
        if asked.ends_with(".so") && rest.strip_prefix('.').is_some_and(is_number) {
            return true;
        }
    }
    false
}

/// Whether `asked` is the C library and the file is musl's loader, which is its C library.
fn is_musl(file_name: &str, asked: &str) -> bool {
    matches!(asked, "libc" | "libc.so" | "libc.musl") && file_name.starts_with("ld-musl-")
}

/// The names closest to `asked`, three at most.
fn near<'n>(asked: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let stem = |name: &'n str| name.split(".so").next().unwrap_or(name);
    let asked_stem = asked.split(".so").next().unwrap_or(asked);
    if is_glob(asked) {
        let mut fitting: Vec<String> = names.filter(|n| fits_glob(asked, n)).map(str::to_owned).collect();
        fitting.sort();
        fitting.dedup();
        fitting.truncate(3);
        return fitting;
    }
    let mut ranked: Vec<_> = names
        .map(|n| (strsim::osa_distance(stem(n), asked_stem), n.to_owned()))
        .filter(|(d, _)| *d <= 1 + asked_stem.len() / 4)
        .collect();
    ranked.sort();
    ranked.dedup();
    ranked.truncate(3);
    ranked.into_iter().map(|(_, n)| n).collect()
}
