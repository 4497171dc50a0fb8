//! What a process has that a hijacked thread needs: instructions, and room for a signal frame.
//!
//! For:     `Hijack`.
//! State:   addresses, found when the process ran or stood; believed only after another look in the stop.
//! Context: control.
//! Keeps:   H1 `stands` is true only if the instructions are there now.
//!          H2 a place for a frame holds nothing of the process's: it lies below every thread's stack pointer in the first
//!             thread's stack, or reads as zeros at its unused end, or lies below the thread's own red zone above a guard
//!             page.
//! Checked: testkit `kills`; tests below.

use crate::arch::{ALIGN, MOV_SIGRETURN, RETURN, SYSCALL};
use crate::facts::error::Broken;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use image::Mapping;
use std::ops::Range;
use std::path::Path;

/// So much of one mapping is searched.
const SEARCHED: u64 = 32 << 20;
/// It is read in pieces of this size, as what is wanted mostly stands at the beginning.
const PIECE: u64 = 256 << 10;
/// Bytes below a stack pointer that belong to the function that runs.
pub(crate) const RED_ZONE: u64 = 128;
/// Left below a frame: for the frame of a signal that comes before ours are blocked.
const BELOW: u64 = 16 << 10;
/// Bytes below a frame that calls may use for their arguments.
pub(crate) const SCRATCH: u64 = 256;
/// Places that are tried, from the end of the stack up.
const PLACES: u64 = 8;

/// Addresses of instructions and of the first thread's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foothold {
    /// A `syscall` instruction; with `restorer`, one that a `ret` follows.
    pub syscall: u64,
    /// Code that makes the call rt_sigreturn.
    pub restorer: Option<u64>,
    stack: Range<u64>,
}

impl Foothold {
    /// Looks for them.
    ///
    /// # Errors
    /// The process has no `syscall` instruction.
    pub fn find(memory: &Memory, mappings: &[Mapping]) -> Result<Foothold, Broken> {
        let executable = mappings.iter().filter(|m| m.permissions.is_executable && m.file.is_some());
        let mut all: Vec<&Mapping> = mappings.iter().filter(|m| m.is_vdso()).chain(executable).collect();
        all.sort_by_key(|m| !is_c_library(&m.path));
        let mut found = Found::default();
        for m in all {
            found.search(memory, m.range.start.0..m.range.end.0);
            if found.is_whole() {
                break;
            }
        }
        let is_stack = |m: &&Mapping| m.path == Path::new("[stack]");
        let stack = mappings.iter().find(is_stack).map_or(0..0, |m| m.range.start.0..m.range.end.0);
        let (syscall, restorer) = match (found.returning, found.restorer) {
            (Some(syscall), Some(restorer)) => (Some(syscall), Some(restorer)),
            _ => (found.any.or(found.returning), None),
        };
        // The mappings may be those of a program that is no more.
        let syscall = syscall.ok_or_else(|| memory.check().err().unwrap_or(Broken::NoSyscall))?;
        Ok(Foothold { syscall, restorer, stack })
    }

    /// Whether the instructions stand there now: text may have been patched or unmapped since.
    pub fn stands(&self, memory: &Memory) -> bool {
        let call: &[&[u8]] = if self.restorer.is_some() { &[SYSCALL, RETURN] } else { &[SYSCALL] };
        let call = call.concat();
        let is_call = memory.read_vec(self.syscall, call.len()).is_ok_and(|here| here == call);
        let is_restorer = |at: u64| {
            MOV_SIGRETURN.iter().any(|mov| {
                let code = memory.read_vec(at, mov.len() + SYSCALL.len());
                code.is_ok_and(|c| c.starts_with(mov) && c.ends_with(SYSCALL))
            })
        };
        is_call && self.restorer.is_none_or(is_restorer)
    }

    /// Whether a thread stands at one of the instructions, or behind them before it does anything else.
    pub fn contains(&self, pc: u64) -> bool {
        let call_len = SYSCALL.len() as u64;
        let longest = MOV_SIGRETURN[0].len() as u64 + call_len;
        let is_in_restorer = |at: u64| (at..at + longest).contains(&pc);
        pc == self.syscall || pc == self.syscall + call_len || self.restorer.is_some_and(is_in_restorer)
    }

    /// Itself if it stands, else another.
    ///
    /// # Errors
    /// As for [`Foothold::find`].
    pub fn renewed(&self, memory: &Memory) -> Result<Foothold, Broken> {
        if self.stands(memory) {
            return Ok(self.clone());
        }
        Foothold::find(memory, &image_maps(memory.pid)?)
    }

    /// Room for `len` bytes and [`SCRATCH`] below them. `sp` is the stack pointer of the thread that is to use them,
    /// `others` are those of all others that are known.
    pub fn room(&self, memory: &Memory, sp: u64, others: &[u64], len: u64) -> Option<u64> {
        let in_stack = |sp: &&u64| self.stack.contains(*sp);
        let lowest = others.iter().chain([&sp]).filter(in_stack).min().copied();
        let places = (0..PLACES).map(|i| self.stack.start + BELOW + i * len.next_multiple_of(4096));
        let mut places = places.filter(|at| at + len + 4096 <= self.stack.end);
        let is_free = |at: &u64| {
            let is_below = lowest.is_some_and(|sp| at + len + RED_ZONE <= sp);
            is_below || is_zero(memory, at - SCRATCH..at + len)
        };
        places.find(is_free).or_else(|| own_stack(memory.pid, sp, len))
    }
}

/// Below the thread's red zone, if its stack is a mapping with a guard page below and enough is left of it.
fn own_stack(pid: i32, sp: u64, len: u64) -> Option<u64> {
    let mappings = image_maps(pid).ok()?;
    let i = mappings.iter().position(|m| m.range.start.0 <= sp && sp < m.range.end.0)?;
    let (stack, below) = (&mappings[i], mappings.get(i.checked_sub(1)?)?);
    let is_guard = |m: &Mapping| {
        let p = m.permissions;
        !p.is_readable && !p.is_writable && !p.is_executable
    };
    let at = sp.checked_sub(RED_ZONE + len)? & !63;
    let has_room = at.checked_sub(SCRATCH + 4096)? >= stack.range.start.0;
    let is_stack = stack.file.is_none() && stack.permissions.is_writable;
    (is_stack && has_room && below.range.end == stack.range.start && is_guard(below)).then_some(at)
}

fn is_zero(memory: &Memory, range: Range<u64>) -> bool {
    let bytes = memory.read_vec(range.start, (range.end - range.start) as usize);
    bytes.is_ok_and(|bytes| bytes.iter().all(|b| *b == 0))
}

/// They have all that is wanted, and are mapped as long as the program runs.
fn is_c_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("libc.so") || name.starts_with("libc-") || name.starts_with("ld-")
}

/// What was found so far.
#[derive(Debug, Default)]
struct Found {
    any: Option<u64>,
    returning: Option<u64>,
    restorer: Option<u64>,
}

impl Found {
    fn is_whole(&self) -> bool {
        self.returning.is_some() && self.restorer.is_some()
    }

    fn search(&mut self, memory: &Memory, text: Range<u64>) {
        let end = text.end.min(text.start + SEARCHED);
        let mut at = text.start;
        while at < end && !self.is_whole() {
            // Pieces overlap, so that nothing is cut in two.
            let len = (PIECE + 16).min(end - at);
            let Ok(bytes) = memory.read_vec(at, len as usize) else { return };
            self.look_at(at, &bytes);
            at += PIECE;
        }
    }

    fn look_at(&mut self, start: u64, bytes: &[u8]) {
        let mut from = 0;
        let call_len = SYSCALL.len();
        while let Some(step) = bytes[from..].windows(call_len).position(|w| w == SYSCALL) {
            let i = from + step;
            from = i + call_len;
            if !(start + i as u64).is_multiple_of(ALIGN) {
                from = i + 1;
                continue;
            }
            self.any.get_or_insert(start + i as u64);
            if bytes[from..].starts_with(RETURN) {
                self.returning.get_or_insert(start + i as u64);
            }
            if let Some(mov) = MOV_SIGRETURN.iter().find(|mov| bytes[..i].ends_with(mov)) {
                self.restorer.get_or_insert(start + (i - mov.len()) as u64);
            }
            if self.is_whole() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instructions_are_found_in_either_encoding() {
        let mut found = Found::default();
        found.look_at(0x1000, &[0x90, 0x0f, 0x05, 0x90, 0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0xcc]);
        assert_eq!((found.any, found.returning, found.restorer), (Some(0x1001), None, Some(0x1004)));
        found.look_at(0x2000, &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x05, 0xc3]);
        assert_eq!((found.returning, found.restorer), (Some(0x2009), Some(0x1004)));
    }

    #[test]
    fn our_own_c_library_has_all() {
        let memory = Memory::open(sys::getpid().cast_signed()).unwrap();
        let foothold = Foothold::find(&memory, &image_maps(memory.pid).unwrap()).unwrap();
        assert!(foothold.restorer.is_some() && foothold.stands(&memory), "{foothold:x?}");
        let moved = Foothold { syscall: foothold.syscall + ALIGN, ..foothold.clone() };
        assert!(!moved.stands(&memory));
        assert_eq!(moved.renewed(&memory).unwrap(), foothold);
        // This thread is not the first: the first thread's stack below its stack pointer, or at its end, is free.
        assert!(foothold.room(&memory, 8, &[], 3000).is_some_and(|at| foothold.stack.contains(&at)));
    }
}
