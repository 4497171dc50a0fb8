//! Other allocators: the C library's, and those whose libraries are installed.
//!
//! For:     `bench alloc`.
//! State:   none. Each library is measured in a child that has it preloaded, as its users run it: one that is loaded
//!          later finds no room for its thread's variables, or reaches them by a slower way.
//! Context: control.
//! Keeps:   P1 a row under a library's name was measured in a process that has it mapped; without it the row says so.
//! Checked: `each_allocator_has_a_row_and_loses_nothing`, `a_library_that_is_not_mapped_has_no_figures`.

use super::{Options, Source};
use std::ffi::c_void;
use std::io::Write;
use std::process::{Command, Stdio};
use std::ptr::NonNull;

/// Names and what is preloaded (table).
const LIBRARIES: [(&str, Option<&str>); 5] = [
    ("malloc", None),
    ("jemalloc", Some("libjemalloc.so.2")),
    ("mimalloc", Some("libmimalloc.so.2")),
    ("tcmalloc", Some("libtcmalloc.so.4")),
    ("tcmalloc-minimal", Some("libtcmalloc_minimal.so.4")),
];

/// The option by which a child is told what it measures.
pub const UNDER: &str = "under";

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(object: *mut c_void);
}

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    LIBRARIES.iter().map(|(name, _)| *name)
}

/// Whatever this process calls malloc.
pub struct Malloc {
    pub size: usize,
}

impl Source for Malloc {
    #[inline(always)]
    fn take(&self) -> Option<NonNull<u8>> {
        // SAFETY: malloc takes any size.
        NonNull::new(unsafe { malloc(self.size) }.cast())
    }

    #[inline(always)]
    unsafe fn give(&self, object: NonNull<u8>) {
        // SAFETY: from this malloc, once (the caller's promise).
        unsafe { free(object.as_ptr().cast()) };
    }
}

/// The rows of the named allocators, those that are libraries from children.
pub fn rows(o: &Options, wanted: impl Fn(&str) -> bool, out: &mut impl Write) -> std::io::Result<()> {
    for (name, library) in LIBRARIES.iter().filter(|(name, _)| wanted(name)) {
        match library {
            None => super::row(name, &Malloc { size: o.size }, o, out)?,
            Some(file) => in_child(name, file, o, out)?,
        }
    }
    Ok(())
}

fn in_child(name: &str, file: &str, o: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["bench", "alloc", "--under", name, "--size", &o.size.to_string()]);
    child.args(["--count", &o.count.to_string(), "--nruns", &o.nruns.to_string()]);
    if o.json {
        child.args(["-f", "json"]);
    }
    // What the loader says about a library that is not there is said better below.
    child.env("LD_PRELOAD", file).stderr(Stdio::null());
    let got = child.output()?;
    if got.status.success() && !got.stdout.is_empty() {
        return out.write_all(&got.stdout);
    }
    if o.json {
        return writeln!(out, "{{\"name\":\"{name}\",\"missing\":\"{file} is not installed\"}}");
    }
    writeln!(out, "{name:<16} not installed ({file})")
}

/// The row of the library that this process was started under.
pub fn row_under(name: &str, o: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let file = LIBRARIES.iter().find(|(n, _)| *n == name).and_then(|(_, file)| *file);
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    match file {
        Some(file) if maps.contains(&format!("/{file}")) => {
            super::row(name, &Malloc { size: o.size }, o, out)
        }
        _ => Err(std::io::Error::other(format!("{name} is not preloaded"))),
    }
}
