//! Text as pages: read once, compared, changed, written back.
//!
//! For:     arming and disarming many sites in one stop.
//! State:   copies of the touched pages; valid while no thread runs.
//! Context: control, in a stopped world.
//! Keeps:   P1 a page is written once for all its sites, from its first to its last changed byte, but for bytes between
//!             them that look like a breakpoint: the kernel takes its own out while nobody runs, and it must not come back.
//!          P2 if we die in the middle, every site is whole: a patch on one page is written by one copy, and
//!             one on two pages is a jump to itself until it is complete.
//! Checked: tests below; testkit `traces` kills controllers.

use crate::arch;
use crate::facts::error::Broken;
use crate::find::memory::Memory;
use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: u64 = 4096;
/// `jmp` to itself.
const SPIN: [u8; 2] = [0xeb, 0xfe];

/// Whether the kernel's breakpoint stands at the start of what is `file` in the file, and nothing else differs.
pub fn is_under_kernel(found: &[u8], file: &[u8]) -> bool {
    let len = arch::KERNEL_BREAKPOINT.len();
    found.len() == file.len()
        && found.starts_with(&arch::KERNEL_BREAKPOINT)
        && !file.starts_with(&arch::KERNEL_BREAKPOINT)
        && found.get(len..) == file.get(len..)
}

#[derive(Debug)]
struct Page {
    bytes: Vec<u8>,
    /// Changed and not written: ascending, apart from one another.
    dirty: Vec<Range<usize>>,
}

impl Page {
    fn change(&mut self, from: usize, bytes: &[u8]) {
        let range = from..from + bytes.len();
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.dirty.push(range);
    }

    /// What is to be written: as few ranges as there can be, and no byte of a breakpoint that we have not changed.
    fn take_writes(&mut self) -> Vec<Range<usize>> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable_by_key(|range| range.start);
        let mut writes: Vec<Range<usize>> = Vec::new();
        for range in dirty {
            match writes.last_mut() {
                Some(last)
                    if range.start <= last.end
                        || arch::may_be_rewritten(&self.bytes[last.end..range.start]) =>
                {
                    last.end = last.end.max(range.end);
                }
                _ => writes.push(range),
            }
        }
        writes
    }
}

/// The touched pages of one process.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    memory: &'a Memory,
    pages: BTreeMap<u64, Page>,
}

impl<'a> Pages<'a> {
    pub fn of(memory: &'a Memory) -> Pages<'a> {
        Pages { memory, pages: BTreeMap::new() }
    }

    fn page(&mut self, addr: u64) -> Result<&mut Page, Broken> {
        let at = addr / PAGE * PAGE;
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.pages.entry(at) {
            let bytes = self.memory.read_vec(at, PAGE as usize)?;
            vacant.insert(Page { bytes, dirty: Vec::new() });
        }
        self.pages.get_mut(&at).ok_or(Broken::Call { what: "read of a page", errno: sys::Errno::EFAULT })
    }

    /// Whether there is still something at `addr`: the module may have been unmapped since.
    pub fn is_mapped(&mut self, addr: u64) -> bool {
        self.page(addr).is_ok()
    }

    /// The bytes at `addr` as they are, or will be after the next flush.
    pub fn bytes(&mut self, addr: u64, len: usize) -> Result<Vec<u8>, Broken> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let at = addr + out.len() as u64;
            let from = (at % PAGE) as usize;
            let take = (len - out.len()).min(PAGE as usize - from);
            out.extend_from_slice(&self.page(at)?.bytes[from..from + take]);
        }
        Ok(out)
    }

    /// Changes bytes; written by [`Pages::flush`], or at once if they lie on two pages.
    pub fn set(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Broken> {
        let first = (PAGE - addr % PAGE) as usize;
        if bytes.len() <= first {
            return self.set_in_page(addr, bytes, true);
        }
        let (head, tail) = bytes.split_at(first);
        if head.len() >= SPIN.len() {
            self.memory.write(addr, &SPIN)?;
        }
        self.memory.write(addr + first as u64, tail)?;
        self.memory.write(addr, head)?;
        self.set_in_page(addr, head, false)?;
        self.set_in_page(addr + first as u64, tail, false)
    }

    fn set_in_page(&mut self, addr: u64, bytes: &[u8], is_dirty: bool) -> Result<(), Broken> {
        let from = (addr % PAGE) as usize;
        let page = self.page(addr)?;
        match is_dirty {
            true => page.change(from, bytes),
            false => page.bytes[from..from + bytes.len()].copy_from_slice(bytes),
        }
        Ok(())
    }

    /// Writes all changes.
    pub fn flush(&mut self) -> Result<(), Broken> {
        for (at, page) in &mut self.pages {
            for range in page.take_writes() {
                self.memory.write(at + range.start as u64, &page.bytes[range])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_that_is_taken_out_meanwhile_does_not_come_back() {
        let mut buffer = vec![0x90u8; 3 * PAGE as usize];
        let base = (buffer.as_mut_ptr() as u64).next_multiple_of(PAGE);
        let memory = Memory::open(sys::getpid().cast_signed()).unwrap();
        memory.write(base + 15, &[0xcc]).unwrap();
        let mut pages = Pages::of(&memory);
        pages.set(base + 10, &[1]).unwrap();
        pages.set(base + 20, &[2]).unwrap();
        pages.set(base + 30, &[3]).unwrap();
        // The kernel's own breakpoint goes between our look and our write.
        memory.write(base + 15, &[0x90]).unwrap();
        pages.flush().unwrap();
        assert_eq!(memory.read_vec(base + 10, 6).unwrap(), [1, 0x90, 0x90, 0x90, 0x90, 0x90]);
        assert_eq!(memory.read_vec(base + 20, 1).unwrap(), [2]);
        assert_eq!(memory.read_vec(base + 30, 1).unwrap(), [3]);
        assert_eq!(buffer.len(), 3 * PAGE as usize);
    }

    #[test]
    fn a_patch_over_two_pages_and_many_in_one_are_written_whole() {
        let mut buffer = vec![0u8; 3 * PAGE as usize];
        let base = (buffer.as_mut_ptr() as u64).next_multiple_of(PAGE);
        let memory = Memory::open(sys::getpid().cast_signed()).unwrap();
        let mut pages = Pages::of(&memory);
        pages.set(base + 10, &[1, 2]).unwrap();
        pages.set(base + 20, &[3]).unwrap();
        pages.set(base + PAGE - 2, &[4, 5, 6, 7, 8]).unwrap();
        assert_eq!(pages.bytes(base + PAGE - 2, 5).unwrap(), [4, 5, 6, 7, 8]);
        pages.flush().unwrap();
        assert_eq!(memory.read_vec(base + 10, 11).unwrap(), [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(memory.read_vec(base + PAGE - 2, 5).unwrap(), [4, 5, 6, 7, 8]);
        assert_eq!(buffer.len(), 3 * PAGE as usize);
    }
}
