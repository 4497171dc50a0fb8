//! What one run of a compiled program has beside its arguments.
//!
//! For:     whoever calls one; the code that is compiled, which knows the places of the fields.
//! State:   fuel, a fault, the bounds of what may be touched.
//! Context: hit: plain memory, one of its own for each run.
//! Keeps:   R1 the fields lie where the code looks for them.
//!          R2 an access of `len` bytes is allowed where all of its bytes lie inside one of the bounds.
//! Checked: tests below; tests/engines.rs.

use bpf::{FRAME_LEN, FRAMES_MAX, Fault, Faulted, Size};
use std::mem::offset_of;

/// Bytes of stack that a run of a [checked](crate::Level::Checked) program needs.
pub const STACK_LEN: usize = FRAME_LEN * FRAMES_MAX;
/// Pieces of memory that a checked program may be given, its stack among them.
pub const REGIONS_MAX: usize = 4;

/// One piece of memory that a checked program may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Bounds {
    start: u64,
    /// At how many places a read of 1, 2, 4 and 8 bytes may begin.
    reads: [u64; 4],
    /// And a write.
    writes: [u64; 4],
}

impl Bounds {
    /// `len` bytes at `start`, to be read, and to be written or not.
    pub fn new(start: u64, len: u64, is_writable: bool) -> Bounds {
        let places = [1, 2, 4, 8].map(|size: u64| (len + 1).saturating_sub(size));
        Bounds { start, reads: places, writes: if is_writable { places } else { [0; 4] } }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Run {
    /// Instructions that it may take: less what jumps back and calls have cost.
    pub fuel: u64,
    /// 0, or what it met.
    fault: u64,
    /// The address or the number of a fault.
    detail: u64,
    /// Functions that may still be entered.
    calls_left: u64,
    /// The lowest address of its stack.
    stack: u64,
    regions: [Bounds; REGIONS_MAX],
}

const ACCESS: u64 = 1;
const UNALIGNED: u64 = 2;
const NO_HELPER: u64 = 3;
const TOO_DEEP: u64 = 4;
const FUEL_OUT: u64 = 5;

impl Run {
    /// A run that may take so many instructions, and touch this memory beside its stack of [`STACK_LEN`] bytes at `stack`.
    /// A program of our own ([`Level::Own`](crate::Level::Own)) is held by neither, and needs no stack: 0 will do.
    pub fn new(fuel: u64, stack: u64, memory: &[Bounds]) -> Run {
        let mut regions = [Bounds::default(); REGIONS_MAX];
        if stack != 0 {
            regions[0] = Bounds::new(stack, STACK_LEN as u64, true);
        }
        for (to, from) in regions[1..].iter_mut().zip(memory) {
            *to = *from;
        }
        Run { fuel, fault: 0, detail: 0, calls_left: FRAMES_MAX as u64 - 1, stack, regions }
    }

    /// Its bytes, as the code reads them.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size_of::<Run>());
        let head = [self.fuel, self.fault, self.detail, self.calls_left, self.stack];
        let regions = self.regions.iter().flat_map(|b| [[b.start].as_slice(), &b.reads, &b.writes].concat());
        bytes.extend(head.into_iter().chain(regions).flat_map(u64::to_ne_bytes));
        bytes
    }

    /// What the code has left of it: the fields of [`Run::to_bytes`] that it changes.
    pub fn take_back(&mut self, bytes: &[u8]) {
        let word = |i: usize| {
            bytes.get(i * 8..i * 8 + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        (self.fuel, self.fault, self.detail) = (word(0), word(1), word(2));
    }

    /// What came of it, if the code returned `r0`.
    ///
    /// # Errors
    /// What the program did that it may not.
    pub fn outcome(&self, r0: u64) -> Result<u64, Faulted> {
        let at = (self.fault & 0xffff_ffff) as usize;
        let len = (self.fault >> 32 & 0xff) as usize;
        let why = match self.fault >> 56 {
            0 => return Ok(r0),
            ACCESS => Fault::Access { addr: self.detail, len },
            UNALIGNED => Fault::Unaligned { addr: self.detail },
            NO_HELPER => Fault::NoHelper { number: self.detail },
            TOO_DEEP => Fault::TooDeep,
            _ => Fault::FuelOut,
        };
        Err(Faulted { at, why })
    }

    /// Has the run end with a bad access when the helper that says so returns, in checked programs.
    pub fn bad_access(&mut self, addr: u64, len: usize) {
        self.fault = ACCESS << 56 | (len.min(0xff) as u64) << 32;
        self.detail = addr;
    }

    /// Whether `len` bytes at `addr` are the program's, to be written or only read: what a helper asks of a pointer.
    pub fn allows(&self, addr: u64, len: u64, is_write: bool) -> bool {
        self.regions.iter().any(|bounds| {
            let places = if is_write { bounds.writes[0] } else { bounds.reads[0] };
            let at = addr.wrapping_sub(bounds.start);
            len == 0 || at < places && len <= places - at
        })
    }
}

/// What a fault of a kind at an instruction is written as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultKind {
    Access(Size),
    Unaligned,
    NoHelper,
    TooDeep,
    FuelOut,
}

impl FaultKind {
    pub fn word(self, at: usize) -> i64 {
        let (kind, len) = match self {
            FaultKind::Access(size) => (ACCESS, size.bytes() as u64),
            FaultKind::Unaligned => (UNALIGNED, 0),
            FaultKind::NoHelper => (NO_HELPER, 0),
            FaultKind::TooDeep => (TOO_DEEP, 0),
            FaultKind::FuelOut => (FUEL_OUT, 0),
        };
        (kind << 56 | len << 32 | at as u64).cast_signed()
    }
}

/// Where the code finds fields.
pub(crate) mod place {
    use super::{Bounds, Run, offset_of};

    pub const FUEL: i32 = offset_of!(Run, fuel) as i32;
    pub const FAULT: i32 = offset_of!(Run, fault) as i32;
    pub const DETAIL: i32 = offset_of!(Run, detail) as i32;
    pub const CALLS_LEFT: i32 = offset_of!(Run, calls_left) as i32;
    pub const STACK: i32 = offset_of!(Run, stack) as i32;

    /// The start of a region, and its number of places for an access of this size.
    pub fn region(index: usize, size: bpf::Size, is_write: bool) -> (i32, i32) {
        let at = offset_of!(Run, regions) + index * size_of::<Bounds>();
        let places = if is_write { offset_of!(Bounds, writes) } else { offset_of!(Bounds, reads) };
        let of_size = places + 8 * size.bytes().trailing_zeros() as usize;
        ((at + offset_of!(Bounds, start)) as i32, (at + of_size) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_may_begin_where_all_of_it_lies_inside() {
        let bounds = Bounds::new(0x1000, 4, true);
        assert_eq!(bounds.reads, [4, 3, 1, 0]);
        assert_eq!(Bounds::new(0x1000, 0, true).writes, [0; 4]);
        assert_eq!(Bounds::new(0x1000, 9, false).writes, [0; 4]);
        let run = Run::new(1, 0, &[bounds]);
        assert!(run.allows(0x1000, 4, true) && run.allows(0x1003, 1, false));
        assert!(
            !run.allows(0x1003, 2, false) && !run.allows(0xfff, 1, false) && !run.allows(1, u64::MAX, false)
        );
    }

    #[test]
    fn the_bytes_of_a_run_are_those_in_memory() {
        let run = Run::new(7, 0x2000, &[Bounds::new(0x1000, 4, true)]);
        let bytes = run.to_bytes();
        assert_eq!(bytes.len(), size_of::<Run>());
        let (start, places) = place::region(1, Size::H, true);
        let word = |at: i32| u64::from_ne_bytes(bytes[at as usize..at as usize + 8].try_into().unwrap());
        assert_eq!(
            (word(start), word(places), word(place::FUEL), word(place::STACK)),
            (0x1000, 3, 7, 0x2000)
        );
    }
}
