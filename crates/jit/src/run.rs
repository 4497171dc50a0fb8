//! What one run of a compiled program has beside its arguments.
//!
//! For:     whoever calls one; the code that is compiled, which knows the places of the fields.
//! State:   fuel, a fault, the bounds of what may be touched: a [`wire::CheckedHit`] whose hit is none.
//! Context: hit: plain memory, one of its own for each run.
//! Keeps:   R1 the fields lie where the code looks for them.
//!          R2 an access of `len` bytes is allowed where all of its bytes lie inside one of the bounds.
//! Checked: tests below; wire's; tests/engines.rs.

use bpf::{FRAME_LEN, FRAMES_MAX, Fault, Faulted, Size};
use wire::{Bounds, CheckedHit, Hit, fault};

/// Bytes of stack that a run needs whose stack is given to it: [`Stack::Given`](crate::Stack::Given).
pub const STACK_LEN: usize = wire::STACK_LEN;

const _: () = assert!(STACK_LEN == FRAME_LEN * FRAMES_MAX);

/// One run.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Run(CheckedHit);

impl Run {
    /// A run that may take so many instructions, and touch this memory beside its stack of [`STACK_LEN`] bytes at `stack`.
    /// A program of our own ([`Level::Own`](crate::Level::Own)) is held by neither, and needs no stack unless it is
    /// [given](crate::Stack::Given): 0 will do.
    pub fn new(fuel: u64, stack: u64, memory: &[Bounds]) -> Run {
        let mut bounds = [Bounds::default(); wire::BOUNDS_MAX];
        if stack != 0 {
            bounds[0] = Bounds::new(stack, STACK_LEN as u64, true);
        }
        for (to, from) in bounds[1..].iter_mut().zip(memory) {
            *to = *from;
        }
        let hit = Hit { fuel, calls_left: FRAMES_MAX as u64 - 1, stack, ..Hit::default() };
        Run(CheckedHit { hit, bounds })
    }

    /// The same at this site, for a trampoline that has found this copy: [`Hit::copy`].
    pub fn at(mut self, site: &wire::SiteDesc, copy: u64) -> Run {
        (self.0.hit.site, self.0.hit.copy) = (std::ptr::from_ref(site) as u64, copy);
        self
    }

    /// The same for a thread that has this place.
    pub fn inside(mut self, place: &wire::Inside) -> Run {
        self.0.hit.inside = std::ptr::from_ref(place) as u64;
        self
    }

    /// Instructions that it may take, or may take still.
    pub fn fuel(&self) -> u64 {
        self.0.hit.fuel
    }

    /// Its bytes, as the code reads them.
    pub fn to_bytes(self) -> Vec<u8> {
        let CheckedHit { hit, bounds } = self.0;
        let Hit { fuel, fault, detail, calls_left, stack, .. } = hit;
        let mut bytes: Vec<u8> = Vec::with_capacity(size_of::<Run>());
        bytes.extend([fuel, fault, detail, calls_left, stack].into_iter().flat_map(u64::to_ne_bytes));
        // What a hit has, and this is none.
        bytes.resize(size_of::<Hit>(), 0);
        let words = bounds.iter().flat_map(|b| [[b.start].as_slice(), &b.reads, &b.writes].concat());
        bytes.extend(words.flat_map(u64::to_ne_bytes));
        bytes
    }

    /// What the code has left of it: the fields of [`Run::to_bytes`] that it changes.
    pub fn take_back(&mut self, bytes: &[u8]) {
        let word = |i: usize| {
            bytes.get(i * 8..i * 8 + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        let hit = &mut self.0.hit;
        (hit.fuel, hit.fault, hit.detail) = (word(0), word(1), word(2));
    }

    /// What came of it, if the code returned `r0`.
    ///
    /// # Errors
    /// What the program did that it may not.
    pub fn outcome(&self, r0: u64) -> Result<u64, Faulted> {
        match faulted(self.0.hit.fault, self.0.hit.detail) {
            None => Ok(r0),
            Some(faulted) => Err(faulted),
        }
    }

    /// Has the run end with a bad access when the helper that says so returns, in checked programs.
    pub fn bad_access(&mut self, addr: u64, len: usize) {
        self.0.hit.fault = fault::ACCESS << 56 | (len.min(0xff) as u64) << 32;
        self.0.hit.detail = addr;
    }

    /// Whether `len` bytes at `addr` are the program's, to be written or only read: what a helper asks of a pointer.
    pub fn allows(&self, addr: u64, len: u64, is_write: bool) -> bool {
        self.0.allows(addr, len, is_write)
    }
}

/// What the two words of a run say that ended with a fault, [`Hit::fault`] and [`Hit::detail`]; `None` if it did not.
pub fn faulted(what: u64, detail: u64) -> Option<Faulted> {
    let at = (what & 0xffff_ffff) as usize;
    let len = (what >> 32 & 0xff) as usize;
    let why = match fault::kind(what) {
        0 => return None,
        fault::ACCESS => Fault::Access { addr: detail, len },
        fault::UNALIGNED => Fault::Unaligned { addr: detail },
        fault::NO_HELPER => Fault::NoHelper { number: detail },
        fault::TOO_DEEP => Fault::TooDeep,
        _ => Fault::FuelOut,
    };
    Some(Faulted { at, why })
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
            FaultKind::Access(size) => (fault::ACCESS, size.bytes() as u64),
            FaultKind::Unaligned => (fault::UNALIGNED, 0),
            FaultKind::NoHelper => (fault::NO_HELPER, 0),
            FaultKind::TooDeep => (fault::TOO_DEEP, 0),
            FaultKind::FuelOut => (fault::FUEL_OUT, 0),
        };
        (kind << 56 | len << 32 | at as u64).cast_signed()
    }
}

/// Where the code finds fields.
pub(crate) mod place {
    use std::mem::offset_of;
    use wire::{Bounds, CheckedHit, Hit, Inside, SiteDesc};

    pub const FUEL: i32 = offset_of!(Hit, fuel) as i32;
    pub const FAULT: i32 = offset_of!(Hit, fault) as i32;
    pub const DETAIL: i32 = offset_of!(Hit, detail) as i32;
    pub const CALLS_LEFT: i32 = offset_of!(Hit, calls_left) as i32;
    pub const STACK: i32 = offset_of!(Hit, stack) as i32;
    pub const SCRATCH: i32 = offset_of!(Hit, scratch) as i32;
    pub const INSIDE: i32 = offset_of!(Hit, inside) as i32;
    pub const SITE: i32 = offset_of!(Hit, site) as i32;
    pub const COPY: i32 = offset_of!(Hit, copy) as i32;
    pub const PROCESS: i32 = offset_of!(SiteDesc, process) as i32;
    pub const FUNCTION: i32 = offset_of!(SiteDesc, function) as i32;
    pub const THREAD_AT: i32 = offset_of!(SiteDesc, tid_offset) as i32;
    pub const POINTER: i32 = offset_of!(Inside, owner) as i32;

    const _: () = assert!(offset_of!(CheckedHit, hit) == 0);

    /// The start of a region, and its number of places for an access of this size.
    pub fn region(index: usize, size: bpf::Size, is_write: bool) -> (i32, i32) {
        let at = offset_of!(CheckedHit, bounds) + index * size_of::<Bounds>();
        let places = if is_write { offset_of!(Bounds, writes) } else { offset_of!(Bounds, reads) };
        let of_size = places + 8 * size.bytes().trailing_zeros() as usize;
        ((at + offset_of!(Bounds, start)) as i32, (at + of_size) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(word(place::CALLS_LEFT), 7);
    }
}
