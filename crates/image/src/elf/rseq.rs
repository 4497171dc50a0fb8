//! Restartable sequences: code where no probe may stand.
//!
//! For:     refusing sites whose displacement would lose the kernel's protection.
//! State:   none.
//! Context: control.
//! Keeps:   R1 every descriptor in the `__rseq_cs` section is in the result, or the section is not one.
//! Checked: `critical_sections_are_read_through_relocations` in tests/pointers.rs.
//! Source:  struct rseq_cs of the kernel's rseq interface.

use std::ops::Range;

use super::ElfImage;
use crate::ImageAddr;

/// One restartable sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CriticalSection {
    /// The code that is restarted if it is interrupted.
    pub range: Range<ImageAddr>,
    /// Where a thread continues that was interrupted inside.
    pub abort: ImageAddr,
}

/// Bytes of one descriptor: version, flags, start, length, abort.
const DESCRIPTOR_BYTES: u64 = 32;

impl ElfImage {
    /// The restartable sequences that the image declares, sorted by address.
    ///
    /// A program can also build descriptors outside the section that is made for them; those are not seen.
    pub fn rseq_ranges(&self) -> Vec<CriticalSection> {
        let Some(section) = self.section("__rseq_cs") else { return Vec::new() };
        let mut found = Vec::new();
        let mut at = section.range.start.0;
        while at.saturating_add(DESCRIPTOR_BYTES) <= section.range.end.0 {
            found.extend(descriptor(self, at));
            at += DESCRIPTOR_BYTES;
        }
        found.sort_by_key(|s| s.range.start);
        found
    }
}

fn descriptor(image: &ElfImage, at: u64) -> Option<CriticalSection> {
    let word = |offset| image.word(ImageAddr(at + offset));
    let start = word(8)?;
    let end = start.checked_add(word(16)?)?;
    let section = CriticalSection { range: ImageAddr(start)..ImageAddr(end), abort: ImageAddr(word(24)?) };
    (!section.range.is_empty() && image.is_code(section.range.start)).then_some(section)
}
