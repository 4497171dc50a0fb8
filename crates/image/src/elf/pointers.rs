//! Places inside code where execution may arrive without a direct branch.
//!
//! For:     proofs that nothing lands inside the bytes that a probe replaces.
//! State:   none; `ElfImage` keeps the result.
//! Context: control.
//! Keeps:   C1 the list is sorted, without repetition, and every entry is in code.
//!          C2 it may hold places where nothing lands (a number that looks like an address); what it can
//!          miss is said at `code_pointers`.
//! Checked: tests/suite/pointers.rs.

use std::ops::Range;

use super::{ElfImage, Section, go, lsda};
use crate::ImageAddr;

/// Entries of one table of 32-bit offsets that are read at most.
///
/// A bound that cuts a real table short hides places where execution lands, so that it is generous
/// (2026-11-21); most addresses that are no table end at their first entry.
const MAX_TABLE_ENTRIES: usize = 1 << 16;

impl ElfImage {
    /// Every place in code that data of the image or its unwinder leads to, sorted.
    ///
    /// Function symbols and labels, starts of sections, unwind entries and landing pads, the entry
    /// point, constructors, pointers that the loader relocates, values in data of an image at fixed
    /// addresses that lie in code, lazily bound calls, restartable sequences' abort handlers and the
    /// places where Go continues after a recovered panic.
    ///
    /// Not here: tables of 32-bit offsets (ask [`ElfImage::rel32_table_targets`] for each table that code
    /// refers to, and [`ElfImage::rel32_label_targets`] where code also refers to a label of its own),
    /// addresses that code computes by itself, and direct branches.
    pub fn code_pointers(&self) -> &[ImageAddr] {
        self.pointers.get_or_init(|| {
            let mut found = Vec::new();
            found.extend(self.entry());
            found.extend(self.code_ranges().iter().map(|r| r.start));
            found.extend(self.fdes().iter().map(|f| f.start));
            found.extend(self.functions().iter().map(|f| f.addr));
            found.extend_from_slice(self.labels());
            lsda::landing_pads(self, &mut found);
            relocated(self, &mut found);
            absolute(self, &mut found);
            found.extend(self.rseq_ranges().iter().map(|s| s.abort));
            found.extend(go::recovery_points(self));
            found.retain(|&p| self.is_code(p));
            found.sort_unstable();
            found.dedup();
            found
        })
    }

    /// The places that a table of 32-bit offsets from its own start leads to, as a `switch` has it.
    ///
    /// Reads entries while they lead into code, 65,536 at most. The result is in table order; it is empty if there is no such table at `table`. Where a table ends is not written
    /// anywhere, so that the last results may come from data behind it.
    pub fn rel32_table_targets(&self, table: ImageAddr) -> Vec<ImageAddr> {
        self.rel32_targets(table, table, |to| self.is_code(to))
    }

    /// The places that a table of 32-bit offsets from a label leads to, as computed jumps in C have it.
    ///
    /// `base` is the label, `within` the function that jumps: such tables do not lead out of it. glibc's
    /// vfprintf is made of them; code loads the address of the label and that of the table, in any order.
    pub fn rel32_label_targets(
        &self,
        table: ImageAddr,
        base: ImageAddr,
        within: &Range<ImageAddr>,
    ) -> Vec<ImageAddr> {
        self.rel32_targets(table, base, |to| within.contains(&to))
    }

    fn rel32_targets(
        &self,
        table: ImageAddr,
        base: ImageAddr,
        fits: impl Fn(ImageAddr) -> bool,
    ) -> Vec<ImageAddr> {
        let Some(bytes) = self.bytes_from(table) else { return Vec::new() };
        let entries = bytes.chunks_exact(4).take(MAX_TABLE_ENTRIES);
        let target = |entry: &[u8]| {
            let offset = i32::from_le_bytes(entry.try_into().ok()?);
            let to = ImageAddr(base.0.wrapping_add_signed(i64::from(offset)));
            fits(to).then_some(to)
        };
        entries.map_while(target).collect()
    }
}

fn relocated(image: &ElfImage, found: &mut Vec<ImageAddr>) {
    let relocs = image.relocs();
    found.extend(relocs.relative.iter().map(|&(_, to)| to));
    found.extend(relocs.irelative.iter().map(|i| i.resolver));
    found.extend_from_slice(&relocs.symbolic);
}

/// Words in data that are addresses without a relocation.
fn absolute(image: &ElfImage, found: &mut Vec<ImageAddr>) {
    let Some((first, last)) = image.code_ranges().first().zip(image.code_ranges().last()) else { return };
    let hull = first.start.0..last.end.0;
    let in_hull = |word: &u64| hull.contains(word);
    let mut scan = |start: ImageAddr, bytes: &[u8]| {
        let skip = (start.0.wrapping_neg() & 7) as usize;
        let words = bytes.get(skip..).unwrap_or_default().chunks_exact(8);
        let words = words.filter_map(|w| w.try_into().ok().map(u64::from_le_bytes));
        found.extend(words.filter(in_hull).map(ImageAddr).filter(|&p| image.is_code(p)));
    };
    for section in image.sections().iter().filter(|s| may_hold_addresses(image, s)) {
        if let Some(bytes) = image.section_bytes(section) {
            scan(section.range.start, bytes);
        }
    }
    // Without section headers, everything that is loaded may be data.
    let is_unknown = image.sections().is_empty() && image.is_fixed();
    for segment in image.segments().iter().filter(|_| is_unknown) {
        scan(segment.range.start, image.bytes_from(segment.range.start).unwrap_or_default());
    }
}

fn may_hold_addresses(image: &ElfImage, section: &Section) -> bool {
    // Lazily bound calls: the loader moves the word in each slot without a relocation that says so.
    let is_lazy_table = matches!(section.name.as_str(), ".got.plt" | ".got");
    let is_known_table = section.name.starts_with(".eh_frame")
        || section.name.starts_with(".gnu.")
        || section.name.starts_with(".rela")
        || matches!(section.name.as_str(), ".dynsym" | ".dynstr" | ".gcc_except_table" | ".gopclntab");
    is_lazy_table || (image.is_fixed() && !section.is_executable && !is_known_table)
}
