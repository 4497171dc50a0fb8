//! Stretches of the code segment where no probe may stand: restartable sequences, the code that returns
//! from signal handlers, and data between functions.
//!
//! For:     refusing sites that would lose the kernel's protection, blind unwinders or change data.
//! State:   none.
//! Context: control.
//! Keeps:   R1 every descriptor in the `__rseq_cs` section whose start is in code is in the result.
//! Checked: tests/suite/pointers.rs: `critical_sections_are_read_through_relocations`,
//!          `signal_return_code_and_data_in_text_are_known`.
//! Source:  struct rseq_cs of the kernel's rseq interface.

use std::ops::Range;

use super::{ElfImage, Function, symbols};
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
        // A length that leads out of the file is a lie, which would take minutes to go through.
        while at.saturating_add(DESCRIPTOR_BYTES) <= section.range.end.0
            && self.bytes(ImageAddr(at), DESCRIPTOR_BYTES as usize).is_some()
        {
            found.extend(descriptor(self, at));
            at += DESCRIPTOR_BYTES;
        }
        found.sort_by_key(|s| s.range.start);
        found
    }

    /// The code that returns from signal handlers, which unwinders and debuggers recognise by its bytes.
    ///
    /// Known by its mark in the unwind table, and by the names that C libraries and Go give it.
    pub fn signal_return_ranges(&self) -> Vec<Range<ImageAddr>> {
        let marked = self.fdes().iter().filter(|f| f.is_signal_frame).map(|f| f.start..f.end());
        let is_named = |f: &&Function| {
            f.names.iter().any(|n| {
                matches!(&*n.text, "__restore_rt" | "__restore") || n.text.starts_with("runtime.sigreturn")
            })
        };
        let named = self.functions().iter().filter(is_named).map(Function::range);
        marked.chain(named).collect()
    }

    /// Data between functions, as far as symbols say that it is data.
    pub fn data_in_code(&self) -> Vec<Range<ImageAddr>> {
        symbols::data_in_code(self)
    }
}

fn descriptor(image: &ElfImage, at: u64) -> Option<CriticalSection> {
    let word = |offset| image.word(ImageAddr(at + offset));
    let start = word(8)?;
    let end = start.checked_add(word(16)?)?;
    let section = CriticalSection { range: ImageAddr(start)..ImageAddr(end), abort: ImageAddr(word(24)?) };
    (!section.range.is_empty() && image.is_code(section.range.start)).then_some(section)
}
