//! A watched page, and which pages may be.
//!
//! For:     `Soft`.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a page that the kernel writes to by itself (a stack, a thread's own block, its rseq area) is refused:
//!          such writes fail without anybody being told.
//! Checked: testkit `watching`.

use crate::enter::journal::{LEN, PROT_EXEC, PROT_WRITE, prot_of};
use crate::find::maps::mapping_at;
use crate::watch::{Access, Watch, WatchError};
use image::{Addr, Mapping};
use std::ops::Range;
use sys::ptrace;

/// After so many aborted sequences a page is watched no more.
pub(super) const ABORTS_MAX: u32 = 3;
/// No C library's block of a thread is longer, from the thread pointer up.
const THREAD_BLOCK: u64 = 4096;

/// A watched page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) addr: u64,
    /// What the process gave it; `None` while it is not there, or cannot be protected.
    own: Option<u64>,
    /// Reads are watched too.
    is_read: bool,
    /// Why it is not watched.
    pub(super) lapse: Option<&'static str>,
    /// How often a restartable sequence was aborted by its fault here.
    pub(super) aborts: u32,
}

impl Page {
    /// The page of a watch, if it may be protected.
    pub(super) fn of(watch: &Watch, mappings: &[Mapping], taboo: &[Range<u64>]) -> Result<Page, WatchError> {
        let refuse = |why| WatchError::NoPage { name: watch.name.clone(), addr: watch.addr, why };
        let mapping = mapping_at(mappings, watch.addr);
        let mapping = mapping.ok_or_else(|| refuse("nothing is mapped there"))?;
        let own = prot_of(mapping);
        if own & PROT_EXEC != 0 {
            return Err(refuse("it is code"));
        }
        if own & PROT_WRITE == 0 && watch.access == Access::Write {
            return Err(refuse("the process cannot write there itself"));
        }
        let addr = watch.addr & !(LEN - 1);
        let is_stack = |sp: &Range<u64>| sp.is_empty() && mapping.range.contains(&Addr(sp.start));
        if mapping.path.as_os_str() == "[stack]" || taboo.iter().any(is_stack) {
            return Err(refuse("it is a stack, which the kernel writes to as well"));
        }
        if taboo.iter().any(|r| r.start < addr + LEN && addr < r.end) {
            return Err(refuse("it holds a thread's own block, which the kernel writes to as well"));
        }
        let is_read = watch.access == Access::ReadWrite;
        Ok(Page { addr, own: Some(own), is_read, lapse: None, aborts: 0 })
    }

    /// Both watches' page.
    pub(super) fn join(&mut self, other: &Page) {
        self.is_read |= other.is_read;
    }

    /// The protection that it has while it is watched; `None` if it is not.
    fn watched_prot(&self) -> Option<u64> {
        let own = self.own.filter(|_| self.lapse.is_none())?;
        Some(if self.is_read { 0 } else { own & !PROT_WRITE })
    }

    /// Where and how it is to be protected while watched.
    pub(super) fn watched(&self) -> Option<(u64, u64)> {
        Some((self.addr, self.watched_prot()?))
    }

    /// Where and how it is to be protected afterwards, and while its access is made.
    pub(super) fn restored(&self) -> Option<(u64, u64)> {
        Some((self.addr, self.own?))
    }

    /// Takes notice of what it is now, with all pages open.
    pub(super) fn sync(&mut self, mappings: &[Mapping]) {
        self.own = mapping_at(mappings, self.addr).map(prot_of);
        self.lapse = match self.own {
            None => Some("the process has unmapped it"),
            Some(own) if self.is_read && own & PROT_EXEC != 0 => Some("it is code now"),
            Some(_) if self.aborts > ABORTS_MAX => self.lapse,
            Some(_) => None,
        };
    }

    /// Whether a call on these bytes concerns it.
    pub(super) fn meets(&self, range: &Range<u64>) -> bool {
        range.start < self.addr + LEN && self.addr < range.end
    }
}

/// What the kernel writes to by itself for a stopped thread, by address; an empty range is a stack pointer.
pub(super) fn taboo(tid: i32) -> Vec<Range<u64>> {
    let Ok(regs) = ptrace::regs(tid) else { return Vec::new() };
    let own = regs.thread_pointer();
    let block = (own != 0).then(|| own..own.saturating_add(THREAD_BLOCK));
    let rseq = ptrace::rseq_config(tid).ok().filter(|r| r.area != 0);
    let rseq = rseq.map(|r| r.area..r.area + u64::from(r.size_bytes.max(32)));
    [Some(regs.sp()..regs.sp()), block, rseq].into_iter().flatten().collect()
}
