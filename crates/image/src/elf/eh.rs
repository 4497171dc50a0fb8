//! The unwind table: where functions lie according to `.eh_frame`.
//!
//! For:     extents of functions without a symbol or a size, and the way to their landing pads.
//! State:   none; `ElfImage` keeps the result.
//! Context: control.
//! Keeps:   F1 entries are sorted, none is empty, all start in code.
//! Checked: `unwind_entries_cover_the_functions_of_libc` in tests/suite/elf.rs.

use std::collections::HashMap;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, Pointer, UnwindSection};

use super::ElfImage;
use crate::ImageAddr;

/// One entry of the unwind table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fde {
    /// Its first instruction.
    pub start: ImageAddr,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Where its exception table lies, if it has one.
    pub lsda: Option<ImageAddr>,
    /// Whether unwinders treat it as a signal frame.
    pub is_signal_frame: bool,
}

impl Fde {
    /// The first address behind it.
    pub fn end(&self) -> ImageAddr {
        ImageAddr(self.start.0 + self.len_bytes)
    }
}

impl ElfImage {
    /// The entries of `.eh_frame`, sorted by address.
    pub fn fdes(&self) -> &[Fde] {
        self.fdes.get_or_init(|| {
            let mut fdes = read(self).unwrap_or_default();
            fdes.sort_by_key(|f| f.start);
            fdes
        })
    }
}

fn read(image: &ElfImage) -> Option<Vec<Fde>> {
    let section = image.section(".eh_frame")?;
    let bytes = image.section_bytes(section)?;
    let start = |name| image.section(name).map_or(0, |s| s.range.start.0);
    let bases = BaseAddresses::default()
        .set_eh_frame(section.range.start.0)
        .set_text(start(".text"))
        .set_got(start(".got"));
    let table = EhFrame::new(bytes, LittleEndian);
    let mut cies = HashMap::new();
    let mut fdes = Vec::with_capacity(bytes.len() / 40);
    let mut entries = table.entries(&bases);
    // A broken entry ends the walk: what was read before it stands.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|table, bases, offset| match cies.get(&offset.0) {
            Some(cie) => Result::clone(cie),
            None => {
                // One that cannot be read is not read again: its text may be as long as the file.
                let cie = table.cie_from_offset(bases, offset);
                cies.insert(offset.0, cie.clone());
                cie
            }
        });
        let Ok(fde) = fde else { continue };
        let start = ImageAddr(fde.initial_address());
        let ends_in_space = start.0.checked_add(fde.len()).is_some();
        if fde.len() == 0 || !ends_in_space || !image.is_code(start) {
            continue;
        }
        let lsda = fde.lsda().and_then(|p| direct(image, p));
        fdes.push(Fde { start, len_bytes: fde.len(), lsda, is_signal_frame: fde.is_signal_trampoline() });
    }
    Some(fdes)
}

/// The address that a pointer of the table leads to.
fn direct(image: &ElfImage, pointer: Pointer) -> Option<ImageAddr> {
    match pointer {
        Pointer::Direct(addr) => Some(ImageAddr(addr)),
        Pointer::Indirect(slot) => image.word(ImageAddr(slot)).map(ImageAddr),
    }
}
