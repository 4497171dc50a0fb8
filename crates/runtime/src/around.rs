//! What a helper finds around it: the maps, the memory that is the program's, where errors are counted.
//!
//! For:     helpers.
//! State:   none; a view of one run.
//! Context: hit.
//! Keeps:   R1 a helper touches nothing by a program's pointer but what is the program's: its stack, its scratch memory, its context
//!             (to read), constants (to read), what lies in its maps behind their fronts.
//!          R2 what a helper did not do is counted, by cause, in a line of the CPU.
//! Checked: tests/helpers (R1: every helper with every kind of wrong pointer; R2).

use crate::cell::Adder;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use map::{Form, Table};
use wire::maps::{ERRORS_STRIDE, HANDLES, HelperError, MapsHead, ReadWay};
use wire::{ConsumerDesc, Hit, ProgramDesc, SiteDesc};

/// No more bytes are taken at once.
pub(crate) const PIECE_MAX: u64 = 1 << 17;

/// The handle of scratch memory.
const SCRATCH: u64 = 1;

/// Addresses from a first one up to an end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    /// The first.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
}

impl Piece {
    #[inline(always)]
    pub(crate) fn holds(self, at: u64, len: u64) -> bool {
        at >= self.start && at <= self.end && len <= self.end - at
    }
}

/// One run of a program, as its helpers see it.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// The head of the maps.
    pub maps: &'a MapsHead,
    /// The program.
    pub desc: &'a ProgramDesc,
    /// The probed site.
    pub site: &'a SiteDesc,
    /// What the trampoline passed.
    pub copy: u64,
    /// The program's frames on the thread's stack.
    pub stack: Piece,
    /// The stack that was given to it.
    pub given: Piece,
    /// Its scratch memory.
    pub scratch: Piece,
    /// The saved registers.
    pub context: Piece,
    /// The stack pointer of the probed code.
    pub stack_pointer: u64,
}

/// What a run is a consumer's.
///
/// # Safety
/// It must be a run that was made for a hit, and has not ended.
#[inline(always)]
pub(crate) unsafe fn consumer_of(hit: &Hit) -> &ConsumerDesc {
    // SAFETY: a consumer's description lives as long as a list leads to it, which outlives the run.
    unsafe { &*(hit.consumer as *const ConsumerDesc) }
}

/// What it is a run of.
///
/// # Safety
/// As for [`consumer_of`].
#[inline(always)]
pub(crate) unsafe fn program_of(hit: &Hit) -> &ProgramDesc {
    // SAFETY: passed on from the caller.
    let consumer = unsafe { consumer_of(hit) };
    // SAFETY: a program's description lives as long as its consumer's (contract).
    unsafe { &*(consumer.program as *const ProgramDesc) }
}

/// The form of the table that a program calls by this handle.
///
/// # Safety
/// It must be the head of maps that the controller laid out, or of zeros.
#[inline(always)]
pub(crate) unsafe fn form(maps: &MapsHead, handle: u64) -> Option<&Form> {
    let base = core::ptr::from_ref(maps) as u64;
    let at = handle.wrapping_sub(base + HANDLES as u64);
    if at / 8 >= maps.handles || !at.is_multiple_of(8) {
        return None;
    }
    let offset = handle as *const u64;
    // SAFETY: one of the handles, which stand behind the head and do not change (wire M1).
    let offset = unsafe { offset.read() };
    let form = (base + offset) as *const Form;
    // SAFETY: a handle that is not 0 has the offset of a table's form (M1), in the arena that stays mapped for the hit.
    (offset != 0).then(|| unsafe { &*form })
}

/// Errors as programs see them.
pub(crate) mod errno {
    pub const ENOENT: u64 = wire::maps::NOT_THERE as u64;
    pub const E2BIG: u64 = -7i64 as u64;
    pub const EFAULT: u64 = -14i64 as u64;
    pub const EBUSY: u64 = -16i64 as u64;
    pub const EEXIST: u64 = -17i64 as u64;
    pub const EINVAL: u64 = -22i64 as u64;
    pub const ENOSPC: u64 = -28i64 as u64;
    pub const ENOSYS: u64 = -38i64 as u64;
}

impl<'a> Around<'a> {
    #[inline(always)]
    fn base(&self) -> u64 {
        core::ptr::from_ref(self.maps) as u64
    }

    /// The table that a program calls by this handle.
    #[inline(always)]
    pub(crate) fn table(&self, handle: u64) -> Option<Table> {
        // SAFETY: the run's own maps.
        let form = unsafe { form(self.maps, handle) }?;
        // SAFETY: the form of a table that the controller laid out there, and that nobody changes.
        Some(unsafe { Table::at(form) })
    }

    /// True if a program means its scratch memory.
    #[inline(always)]
    pub(crate) fn is_scratch(&self, handle: u64) -> bool {
        handle == self.base() + HANDLES as u64 + 8 * SCRATCH
    }

    /// True if a program may read there.
    #[inline(always)]
    pub(crate) fn may_read(&self, at: u64, len: u64) -> bool {
        self.may_write(at, len) || self.context.holds(at, len) || self.is_constant(at, len)
    }

    fn is_constant(&self, at: u64, len: u64) -> bool {
        let start = self.base() + self.maps.constants;
        Piece { start, end: start + self.maps.constants_len }.holds(at, len)
    }

    /// True if a program may write there.
    #[inline(always)]
    pub(crate) fn may_write(&self, at: u64, len: u64) -> bool {
        let values = Piece { start: self.base() + self.maps.data, end: self.base() + self.maps.len };
        len <= PIECE_MAX
            && [self.stack, self.given, self.scratch, values].iter().any(|piece| piece.holds(at, len))
    }

    /// Bytes that the program may read.
    #[inline(always)]
    pub(crate) fn bytes(&self, at: u64, len: u64) -> Option<&'a [u8]> {
        if !self.may_read(at, len) {
            return None;
        }
        // SAFETY: mapped and the program's for the time of its run (R1). Values of maps may be changed by others meanwhile: each
        // user of the slice takes what it finds, and bounds come from elsewhere.
        Some(unsafe { core::slice::from_raw_parts(at as *const u8, len as usize) })
    }

    /// Bytes that the program may write.
    #[inline(always)]
    pub(crate) fn bytes_mut(&self, at: u64, len: u64) -> Option<&'a mut [u8]> {
        if !self.may_write(at, len) {
            return None;
        }
        // SAFETY: as in `bytes`; a helper has one such slice at a time, and reads what else it was given before.
        Some(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len as usize) })
    }

    /// Counts what went wrong.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed(&self, cause: HelperError) {
        // A program without maps has nowhere to count.
        if self.maps.errors == 0 {
            return;
        }
        let cpu = u64::from(percpu::cpu_by_segment());
        let cpu = if cpu < self.maps.cpus { cpu } else { 0 };
        let at = self.base() + self.maps.errors + ERRORS_STRIDE as u64 * cpu + 8 * cause as u64;
        // SAFETY: each CPU has a line of counters there, used as atomics alone (wire M1).
        let count = unsafe { &*(at as *const AtomicU64) };
        count.fetch_add(1, Relaxed);
    }

    /// True if a helper may make a system call in this process.
    #[inline(always)]
    pub(crate) fn may_ask(&self) -> bool {
        // Orders nothing: it is true by itself.
        self.desc.reads.load(Relaxed) != ReadWay::Refused as u64
    }

    /// The same; that it may not is counted.
    #[inline(always)]
    pub(crate) fn may_call(&self) -> bool {
        let may = self.may_ask();
        if !may {
            self.failed(HelperError::ReadRefused);
        }
        may
    }

    /// The same, with the result that a program gets.
    #[cold]
    #[inline(never)]
    pub(crate) fn refused(&self, cause: HelperError, result: u64) -> u64 {
        self.failed(cause);
        result
    }

    /// What a program gets for an error of a map, which is counted if it is one of the map's state.
    #[cold]
    #[inline(never)]
    pub(crate) fn result(&self, error: map::Error) -> u64 {
        match error {
            map::Error::NotFound => errno::ENOENT,
            map::Error::Exists => errno::EEXIST,
            map::Error::Full | map::Error::NoMemory => self.refused(HelperError::MapFull, errno::E2BIG),
            map::Error::Busy => self.refused(HelperError::MapBusy, errno::EBUSY),
            _ => self.refused(HelperError::BadArgument, errno::EINVAL),
        }
    }

    /// How the thread adds to what its CPU has.
    #[inline(always)]
    pub(crate) fn way<A: Adder>(&self) -> A::Way {
        A::way(self.copy, self.site)
    }
}
