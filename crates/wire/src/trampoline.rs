//! What stands before a trampoline's first instruction.
//!
//! For:     another controller that finds our jump at a site it wants too.
//! State:   in the code region, written once.
//! Context: control.
//! Keeps:   H1 the tail of a trampoline is one 5-byte instruction: a nop, or a jump to the next
//!             trampoline of the same site.
//! Checked: testkit, two controllers on one site.

/// First word of a [`TrampolineHeader`].
pub const TRAMPOLINE_MAGIC: u64 = u64::from_le_bytes(*b"nprobeT1");

/// Stands directly before a trampoline's entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrampolineHeader {
    /// [`TRAMPOLINE_MAGIC`].
    pub magic: u64,
    /// The probed address.
    pub site: u64,
    /// Offset of the tail from the entry.
    pub tail: u32,
    /// How many bytes of the site the patch covers.
    pub patch_len: u32,
    /// What the patched bytes were before the first controller came.
    pub original: [u8; 16],
}

const _: () = assert!(size_of::<TrampolineHeader>() == 40);
