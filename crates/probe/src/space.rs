//! Files and address spaces, as the registry needs them.
//!
//! For:     `Registry`; implemented by who maps and patches.
//! State:   the implementer's.
//! Context: target. The registry calls a space with the space's lock held; it must not call back.
//! Keeps:   nothing.
//! Checked: by use.

use core::fmt;

/// The longest instruction that is copied, as in the kernel.
pub const MAX_INSN: usize = 16;

/// What files are told apart by; an inode in the kernel.
pub type FileId = u64;

/// What address spaces are told apart by.
pub type SpaceId = u64;

/// A file that probes stand in.
pub trait File: Send + Sync {
    /// Its identity.
    fn id(&self) -> FileId;
    /// Its size in bytes.
    fn size(&self) -> u64;
    /// False if its pages cannot be read through a mapping.
    fn is_readable(&self) -> bool {
        true
    }
    /// Reads bytes from an offset; how many. Fewer at the end.
    fn read(&self, offset: u64, bytes: &mut [u8; MAX_INSN]) -> usize;
    /// True if an instruction is one that this machine's code can be probed at.
    fn is_probeable(&self, _insn: &Insn) -> bool {
        true
    }
}

/// The bytes of the probed instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insn {
    /// The bytes; zeros behind the file's end.
    pub bytes: [u8; MAX_INSN],
    /// How many were read.
    pub len: u8,
}

impl Insn {
    /// True if it is a breakpoint itself.
    pub fn is_trap(&self) -> bool {
        cfg!(target_arch = "x86_64") && self.bytes[0] == 0xcc
    }
}

/// Offsets of a file, the end excluded.
pub type Range = core::ops::Range<u64>;

/// Why an address space could not do it, as an errno of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceError(pub i32);

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {} of the address space", self.0)
    }
}

/// A place for a breakpoint: the address in that space, and the instruction there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The address in that space.
    pub at: u64,
    /// What stands there without a breakpoint.
    pub insn: Insn,
}

/// An address space: mappings and the breakpoints in them.
///
/// It may be another process: every address is one of that space, none is followed here, and whatever it is asked
/// can fail.
pub trait Space: Send + Sync {
    /// Its identity.
    fn id(&self) -> SpaceId;

    /// Where it maps the spot. Executable private mappings; to install also not writable.
    fn addresses(&self, file: FileId, offset: u64, to_install: bool) -> Vec<u64>;

    /// True if a breakpoint stands there.
    ///
    /// # Errors
    /// The address cannot be read.
    fn has_breakpoint(&self, at: u64) -> Result<bool, SpaceError>;

    /// Writes the breakpoint.
    ///
    /// # Errors
    /// Nothing was written.
    fn install(&self, at: u64, insn: &Insn) -> Result<(), SpaceError>;

    /// Writes the instruction back.
    ///
    /// # Errors
    /// The breakpoint stands still.
    fn remove(&self, at: u64, insn: &Insn) -> Result<(), SpaceError>;

    /// Writes breakpoints; one answer for each, in their order. A space whose threads must stop for it stops them once.
    fn install_all(&self, spots: &[Spot]) -> Vec<Result<(), SpaceError>> {
        spots.iter().map(|spot| self.install(spot.at, &spot.insn)).collect()
    }

    /// Writes instructions back; answers as [`install_all`](Self::install_all).
    fn remove_all(&self, spots: &[Spot]) -> Vec<Result<(), SpaceError>> {
        spots.iter().map(|spot| self.remove(spot.at, &spot.insn)).collect()
    }

    /// Changes the semaphore at an offset of a writable private mapping of the file. `change` says the new
    /// value, or that there is none. False: no such mapping, `change` was not called.
    ///
    /// # Errors
    /// The word cannot be reached.
    fn change_ref_ctr(
        &self,
        file: FileId,
        offset: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<bool, SpaceError>;
}
