//! The memory of slots, and what is known of each.
//!
//! For:     claim.rs, release.rs, settle.rs.
//! State:   code pages, seen through an executable and a writable view; behind them a control page, which the release
//!          routine changes; a record of each slot.
//! Context: target; `renew` in the child of a fork.
//! Keeps:   A1 a record is changed by the thread that owns its slot alone.
//!          A2 mappings live as long as the area.
//! Checked: `tests.rs`.

use super::release::{self, Release};
use super::{Event, PAGE_SLOTS, SLOT_BYTES, room};
use insn::{SLOT_CODE_BYTES, SlotCode, Unreachable};
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release as Publish};
use sys::Errno;
use sys::mapping as mm;

/// How slots are given to instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scheme {
    /// A slot belongs to a probe, is written once, and goes to another probe when slots run out.
    #[default]
    Cached,
    /// A slot is taken and written for each hit, as in the kernel.
    Dynamic,
}

/// What follows a write to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sync {
    /// The range that was written. On x86-64 nothing has to be done: caches see stores, and a thread comes to its slot
    /// by the return from a signal, which serialises.
    #[default]
    Range,
    /// Every thread of the process serialises: membarrier(2), SYNC_CORE.
    Broadcast,
}

/// How an area can be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "broken")), allow(dead_code))]
pub enum Broken {
    /// The release routine looks for sleepers before it gives the slot back.
    LostWakeup,
    /// A slot goes to another probe while threads are in it.
    RecycleInUse,
    /// Nothing is synchronised.
    NoSync,
}

/// How an area is to be.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The scheme.
    pub scheme: Scheme,
    /// What follows a write.
    pub sync: Sync,
    /// Pages of slots, 1 to 4; 0 is 1.
    pub pages: usize,
    /// The most slots that are used, for tests; 0 is all.
    pub limit: usize,
    /// Breaks it.
    #[cfg(any(test, feature = "broken"))]
    pub broken: Option<Broken>,
    /// Is told of writes, synchronisations and entries.
    #[cfg(any(test, feature = "broken"))]
    pub journal: Option<std::sync::Arc<super::Journal>>,
}

/// Why there is no area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AreaError {
    /// A call failed.
    Call(&'static str, Errno),
    /// Nothing is free within reach of the address.
    NoRoom(u64),
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AreaError::Call(what, errno) => write!(f, "{what}: {errno}"),
            AreaError::NoRoom(at) => write!(f, "no free addresses within 2 GiB of {at:#x}"),
        }
    }
}

impl std::error::Error for AreaError {}

/// One probe's claim to a slot of an area, in the cached scheme.
#[derive(Debug)]
pub struct Binding {
    pub(super) token: u64,
    /// The slot that it had last, 0 for none.
    pub(super) slot: AtomicU32,
}

impl Default for Binding {
    fn default() -> Binding {
        Binding::new()
    }
}

impl Binding {
    /// A claim unlike all others.
    pub fn new() -> Binding {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Binding { token: NEXT.fetch_add(1, Relaxed), slot: AtomicU32::new(0) }
    }
}

/// The most pages of slots.
const MAX_PAGES: usize = 4;
/// The count of users of a slot that is being written.
pub(super) const WRITER: u32 = 1 << 31;

/// What the release routine and the claims share. Lies behind the code pages.
#[repr(C)]
pub(super) struct Control {
    /// Changes whenever a slot is given back and somebody sleeps.
    pub seq: AtomicU32,
    pub waiters: AtomicU32,
    /// A bit for each slot that is taken: dynamic.
    pub bitmap: [AtomicU32; MAX_PAGES],
    /// Threads in each slot: cached.
    pub users: [AtomicU32; MAX_PAGES * PAGE_SLOTS],
}

/// What is known of a slot.
#[derive(Debug)]
pub(super) struct Slot {
    /// The token of the probe whose instruction is in it; 0 for none.
    pub owner: AtomicU64,
    /// The area's count of writes when it was last entered.
    pub stamp: AtomicU64,
    /// What is in it. Written by the thread that has the slot alone, read by those in it.
    pub code: UnsafeCell<Option<SlotCode>>,
}

/// Slots near some code.
#[derive(Debug)]
pub struct Area {
    /// The executable view.
    pub(super) code: u64,
    /// The writable view.
    view: *mut u8,
    pub(super) pages: usize,
    pub(super) slots: Box<[Slot]>,
    pub(super) release: Release,
    pub(super) options: Options,
    /// Slots written so far: the clock of the least-recently-used rule.
    pub(super) written: AtomicU64,
    /// Times that a thread slept.
    pub(super) slept: AtomicU64,
}

// SAFETY: the raw parts are mappings that live as long as the area; who writes which slot is settled by claims.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Area {}

impl Area {
    /// An area of slots within 2 GiB of `near`.
    ///
    /// # Errors
    /// No room, or no memory.
    pub fn near(near: u64, options: Options) -> Result<Area, AreaError> {
        let pages = options.pages.clamp(1, MAX_PAGES);
        let len = (pages + 1) * 4096;
        if options.sync == Sync::Broadcast {
            use sys::membarrier_cmd::REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as REGISTER;
            sys::membarrier(REGISTER).map_err(|e| AreaError::Call("membarrier", e))?;
        }
        let code = reserve(near, len)?;
        let release = Release::new(options.scheme, is_wakeup_lost(&options), pages);
        let empty =
            || Slot { owner: AtomicU64::new(0), stamp: AtomicU64::new(0), code: UnsafeCell::new(None) };
        let mut area = Area {
            code,
            view: std::ptr::null_mut(),
            pages,
            slots: (0..pages * PAGE_SLOTS).map(|_| empty()).collect(),
            release,
            options,
            written: AtomicU64::new(0),
            slept: AtomicU64::new(0),
        };
        area.view = area.map_views(None)? as *mut u8;
        area.make_routines();
        Ok(area)
    }

    /// Makes both views and the control page anew, over those that are there. Where the writable view is.
    fn map_views(&self, view: Option<u64>) -> Result<u64, AreaError> {
        let (len, call) = (self.pages * 4096, |what| move |errno| AreaError::Call(what, errno));
        let fd = sys::memfd(c"nanoprobe-xol", len).map_err(call("memfd_create"))?;
        let mapped = self.map_file(fd, len, view);
        sys::close(fd);
        mapped.map_err(call("mmap"))
    }

    fn map_file(&self, fd: i32, len: usize, view: Option<u64>) -> Result<u64, Errno> {
        let (fixed, rw) = (mm::MAP_SHARED | mm::MAP_FIXED, mm::PROT_READ | mm::PROT_WRITE);
        // SAFETY: the range is this area's, reserved by `near`, and in a forked child nobody is in it.
        unsafe { mm::map(self.code, len, mm::PROT_EXEC, fixed, fd) }?;
        let anonymous = mm::MAP_PRIVATE | mm::MAP_ANONYMOUS | mm::MAP_FIXED;
        // SAFETY: as above: the last page of the range.
        unsafe { mm::map(self.code + len as u64, 4096, rw, anonymous, -1) }?;
        let how = if view.is_some() { fixed } else { mm::MAP_SHARED };
        // SAFETY: a free address, or the old view, which nobody uses.
        unsafe { mm::map(view.unwrap_or(0), len, rw, how, fd) }
    }

    /// Fills the first slot of each page, and takes those out of use that are beyond the limit.
    fn make_routines(&self) {
        for page in 0..self.pages {
            self.control().bitmap[page].store(1, Relaxed);
            self.write(page * PAGE_SLOTS, self.release.bytes(page));
        }
        let usable = (0..self.slots.len()).filter(|number| number % PAGE_SLOTS != 0);
        for number in usable.skip(if self.options.limit == 0 { usize::MAX } else { self.options.limit }) {
            self.take_for_ever(number);
        }
    }

    /// Gives the child of a fork slots of its own at the same addresses, all free. True if that worked.
    ///
    /// # Safety
    /// The caller must be the only thread of the process, and not in a slot.
    pub unsafe fn renew(&self) -> bool {
        self.slots.iter().for_each(|slot| slot.owner.store(0, Relaxed));
        let done = self.map_views(Some(self.view as u64)).is_ok();
        if done {
            self.make_routines();
        }
        done
    }

    pub(super) fn control(&self) -> &Control {
        let at = self.code + (self.pages * 4096) as u64;
        // SAFETY: `map_file` mapped a page of zeros there, which is a valid `Control`, and it lives as long as `self`.
        unsafe { &*(at as *const Control) }
    }

    pub(super) fn slot_addr(&self, number: usize) -> u64 {
        self.code + (number * SLOT_BYTES) as u64
    }

    /// The address of the release routine that slot `number` leaves by.
    pub(super) fn release_addr(&self, number: usize) -> u64 {
        self.slot_addr(number / PAGE_SLOTS * PAGE_SLOTS)
    }

    /// Writes a slot through the view that nobody executes.
    pub(super) fn write(&self, number: usize, bytes: &[u8]) {
        debug_assert!(bytes.len() <= SLOT_BYTES && number < self.slots.len());
        self.note(Event::Wrote { number, len: bytes.len() });
        // SAFETY: slot `number` lies in the view. The caller has the slot for itself.
        let at = unsafe { self.view.add(number * SLOT_BYTES) };
        // SAFETY: `bytes` is at most a slot long and is no part of the view.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// Writes an instruction into a slot that the caller has for itself, and synchronises.
    pub(super) fn fill(&self, number: usize, code: &SlotCode) -> Result<(), Unreachable> {
        let mut bytes = [0; SLOT_CODE_BYTES];
        let len = code.place(self.slot_addr(number), number as u32, self.release_addr(number), &mut bytes)?;
        self.write(number, &bytes[..len]);
        // SAFETY: the caller has the slot for itself.
        unsafe { *self.slots[number].code.get() = Some(*code) };
        self.written.fetch_add(1, Relaxed);
        self.synchronise(number, len);
        Ok(())
    }

    fn synchronise(&self, number: usize, len: usize) {
        if is_unsynchronised(&self.options) {
            return;
        }
        // [XOL-1] Orders the slot's bytes before every way by which a thread learns that they are there.
        // Pairs with [XOL-2], [XOL-3].
        std::sync::atomic::fence(Publish);
        if self.options.sync == Sync::Broadcast {
            let _ = sys::membarrier(sys::membarrier_cmd::PRIVATE_EXPEDITED_SYNC_CORE);
        }
        self.note(Event::Synchronised { number, len, by: self.options.sync });
    }

    /// Tells the journal, if there is one.
    #[inline(always)]
    pub(super) fn note(&self, _event: Event) {
        #[cfg(any(test, feature = "broken"))]
        if let Some(journal) = &self.options.journal {
            journal.add(_event);
        }
    }

    /// Whether every slot reaches what the instruction refers to.
    ///
    /// # Errors
    /// What is too far away.
    pub fn reaches(&self, code: &SlotCode) -> Result<(), Unreachable> {
        let last = self.slots.len() - 1;
        let mut bytes = [0; SLOT_CODE_BYTES];
        for number in [1, last] {
            code.place(self.slot_addr(number), number as u32, self.release_addr(number), &mut bytes)?;
        }
        Ok(())
    }

    /// Whether an address is in a slot or a release routine.
    pub fn holds(&self, addr: u64) -> bool {
        (self.code..self.code + (self.pages * 4096) as u64).contains(&addr)
    }

    /// How many slots instructions can have.
    pub fn slots(&self) -> usize {
        let all = self.pages * (PAGE_SLOTS - 1);
        if self.options.limit == 0 { all } else { all.min(self.options.limit) }
    }

    /// Slots written, and times that a thread slept for one.
    pub fn counts(&self) -> (u64, u64) {
        (self.written.load(Relaxed), self.slept.load(Relaxed))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let len = self.pages * 4096;
        // SAFETY: who drops an area makes sure that no thread is in it (`trap` never drops one).
        let _ = unsafe { mm::unmap(self.code, len + 4096) };
        // SAFETY: as above; nothing else uses the view.
        let _ = unsafe { mm::unmap(self.view as u64, len) };
    }
}

/// Takes addresses that nobody uses, as near as can be.
fn reserve(near: u64, len: usize) -> Result<u64, AreaError> {
    let flags = mm::MAP_PRIVATE | mm::MAP_ANONYMOUS | mm::MAP_NORESERVE | mm::MAP_FIXED_NOREPLACE;
    for at in room::rooms(near, len as u64) {
        if at.abs_diff(near) > (1 << 31) - (1 << 20) {
            break;
        }
        // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
        if let Ok(got) = unsafe { mm::map(at, len, 0, flags, -1) } {
            return Ok(got);
        }
    }
    Err(AreaError::NoRoom(near))
}

#[cfg(any(test, feature = "broken"))]
pub(super) fn is_broken(options: &Options, how: Broken) -> bool {
    options.broken == Some(how)
}

#[cfg(not(any(test, feature = "broken")))]
pub(super) fn is_broken(_: &Options, _: Broken) -> bool {
    false
}

fn is_wakeup_lost(options: &Options) -> bool {
    is_broken(options, Broken::LostWakeup)
}

fn is_unsynchronised(options: &Options) -> bool {
    is_broken(options, Broken::NoSync)
}

/// Where the control page's words lie, from its start.
pub(super) mod offsets {
    use super::Control;
    use std::mem::offset_of;
    pub const SEQ: u64 = offset_of!(Control, seq) as u64;
    pub const WAITERS: u64 = offset_of!(Control, waiters) as u64;
    pub const BITMAP: u64 = offset_of!(Control, bitmap) as u64;
    pub const USERS: u64 = offset_of!(Control, users) as u64;
}

const _: () = assert!(size_of::<Control>() <= 4096 && release::ROUTINE_BYTES <= SLOT_BYTES);
