//! The memory of a domain: a header and one copy of the counters per CPU.
//!
//! For:     readers, grace periods, and a controller that reads a traced process's counters.
//! State:   plain `repr(C)` data in memory that the caller gives; may be a mapping of two processes.
//! Context: hit, signal, target; `Block::init` in set-up.
//! Keeps:   B1 nothing in the block is an address, so it means the same in every mapping.
//!          B2 plain (restartable) adds and locked adds go to different cells.
//!          B3 a reader whose flavour is not recorded, or that must be checked, finds no rseq offset
//!             and so takes the slow path: the fast path needs no test of its own.
//! Checked: tests below; `tests/shared_memory.rs`.
//!
//! ```text
//! 0    header, read by readers        magic, copies, rank, rseq offset per flavour
//! 64   header, read by slow paths     flavours, options, owner, rseq offset
//! 128  header, lines of the updaters  sequence, needed, statistics
//! 256  copy of CPU 0   +0 rank 0: locks, unlocks   +16 rank 1: locks, unlocks   (sequences)
//!                      +64 the same four words                                  (locked adds)
//! 384  copy of CPU 1   ...
//! -128 copy of seat 1, -256 copy of seat 2, ...: threads of a `Domain` alone; no others have such copies
//! ```

use crate::prim::{AtomicI64, AtomicU32, AtomicU64, Relaxed};
use crate::{Flavour, FlavourSet, flavour::FLAVOURS};
use core::marker::PhantomData;
use core::ptr::NonNull;
use percpu::RseqOffset;

/// First word of a block: name and version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"nprcu\0\0\x01");

/// Option: every reader takes the slow path, where its owner checks and records it.
pub(crate) const CHECKED: u32 = 1;
/// Option: no process-wide fence exists, so every fenceless reader fences itself.
pub(crate) const READER_FENCES: u32 = 2;
/// Option, of a broken block: no reader records its flavour. (Bits 2 and 3 say which rank's leavers are to be named.)
pub(crate) const UNRECORDED: u32 = 16;

/// What all readers read and only grace periods write; and behind it what only updaters touch.
#[repr(C, align(128))]
pub struct Header {
    magic: u64,
    pub(crate) copies: AtomicU32,
    /// Byte offset of the current rank in a copy.
    pub(crate) rank: AtomicU32,
    /// Per flavour: the rseq offset if its readers may take the fast path, else 0.
    pub(crate) open: [AtomicI64; FLAVOURS],
    pub(crate) recorded: AtomicU32,
    pub(crate) declared: AtomicU32,
    pub(crate) options: AtomicU32,
    pub(crate) owner: AtomicU32,
    pub(crate) rseq_offset: AtomicI64,
    /// The number of seats that have copies.
    pub(crate) seats: AtomicU32,
    /// Per flavour: the lowest place that its readers may count on; the highest number if none.
    pub(crate) seats_open: [AtomicU32; FLAVOURS],
    pub(crate) gp: GpState,
}

/// How far grace periods have come: half of a block's header, or a controller's own.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct GpState {
    pub(crate) seq: AtomicU64,
    pub(crate) needed: AtomicU64,
    pub(crate) needed_expedited: AtomicU64,
    /// Process-wide fences and grace periods so far.
    pub(crate) heavy_fences: AtomicU64,
    pub(crate) periods: AtomicU64,
}

/// The counters of one CPU. Two cache lines, because CPUs fetch lines in pairs.
#[repr(C, align(128))]
pub struct PerCpu {
    pub(crate) sequenced: [RankCounts; 2],
    pad: [u64; 4],
    pub(crate) locked: [RankCounts; 2],
}

/// Readers that entered and that left one rank, on one CPU. Both wrap.
#[repr(C)]
pub struct RankCounts {
    pub(crate) locks: AtomicU64,
    pub(crate) unlocks: AtomicU64,
}

impl RankCounts {
    fn new() -> RankCounts {
        RankCounts { locks: AtomicU64::new(0), unlocks: AtomicU64::new(0) }
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Header>() == 256);
    assert!(size_of::<PerCpu>() == 128);
    assert!(core::mem::offset_of!(PerCpu, locked) == 64);
    assert!(core::mem::offset_of!(Header, recorded) == 64);
};

/// No place: every seat is closed.
pub(crate) const CLOSED: u32 = u32::MAX;

/// How far from the header the copy of a seat lies, modulo the size of addresses.
pub(crate) const fn place_of(seat: u32) -> usize {
    0usize.wrapping_sub(seat as usize * size_of::<PerCpu>())
}

pub(crate) const COPY0: usize = size_of::<Header>();
pub(crate) const SHIFT: u32 = size_of::<PerCpu>().trailing_zeros();
pub(crate) const RANK_STRIDE: u32 = size_of::<RankCounts>() as u32;
pub(crate) const LOCKS: usize = 0;
pub(crate) const UNLOCKS: usize = core::mem::offset_of!(RankCounts, unlocks);

/// One of the two counter sets that a domain flips between; a reader's cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(transparent)]
pub struct Rank(pub(crate) u32);

impl Rank {
    /// The rank as 0 or 1, for interfaces that carry integers.
    pub const fn index(self) -> u32 {
        self.0 / RANK_STRIDE
    }

    /// The rank of an index; any number but 0 is rank 1.
    pub const fn from_index(index: u32) -> Rank {
        if index == 0 { Rank(0) } else { Rank(RANK_STRIDE) }
    }

    /// The one of the two that this is not.
    pub const fn other(self) -> Rank {
        Rank(self.0 ^ RANK_STRIDE)
    }
}

/// What a block is made with.
#[derive(Clone, Copy, Debug)]
pub struct BlockOptions {
    /// The number of copies. With rseq, one for each CPU that the system can ever have; without, any.
    pub copies: u32,
    /// The rseq area of the threads that will read.
    pub rseq: RseqOffset,
    /// The only flavours allowed; an empty set lets the first reader choose.
    pub declared: FlavourSet,
    /// Send every reader to the slow path.
    pub checked: bool,
    /// Readers fence themselves, since no process-wide fence is to be had.
    pub reader_fences: bool,
    /// The process whose fences drive the block.
    pub owner: u32,
}

/// A domain's memory, seen from wherever it is mapped.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    base: NonNull<u8>,
    life: PhantomData<&'a Header>,
}

// SAFETY: everything behind the pointer is atomic, or constant after `init`.
unsafe impl Send for Block<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Block<'_> {}

impl<'a> Block<'a> {
    /// The bytes that a block with this many copies takes; its alignment is [`ALIGN`](Self::ALIGN).
    pub const fn size_bytes(copies: u32) -> usize {
        COPY0 + copies as usize * size_of::<PerCpu>()
    }

    /// The alignment of a block.
    pub const ALIGN: usize = align_of::<Header>();

    /// Makes a block in given memory.
    ///
    /// # Safety
    /// `mem` must have [`size_bytes`](Self::size_bytes)`(options.copies)` writable bytes, aligned to
    /// [`ALIGN`](Self::ALIGN), that nothing else uses for the lifetime `'a`. `options.rseq` must fit
    /// the threads that will read. `options.copies` must not be zero and, unless `options.rseq` is
    /// `NONE`, must be more than the number of any CPU that the system can have.
    pub unsafe fn init(mem: NonNull<u8>, options: &BlockOptions) -> Block<'a> {
        // SAFETY: the caller's duties are the same; no seats lie in front.
        unsafe { Self::init_with_seats(mem, options, 0) }
    }

    /// The bytes in front of a block with so many seats.
    pub(crate) const fn seat_bytes(seats: u32) -> usize {
        seats as usize * size_of::<PerCpu>()
    }

    /// Makes a block at `mem`, with the copies of seats in front of it.
    ///
    /// # Safety
    /// As for [`init`](Self::init); and [`seat_bytes`](Self::seat_bytes)`(seats)` bytes before `mem` must be the block's in
    /// the same way.
    pub unsafe fn init_with_seats(mem: NonNull<u8>, options: &BlockOptions, seats: u32) -> Block<'a> {
        let header = Header {
            magic: MAGIC,
            copies: AtomicU32::new(options.copies),
            rank: AtomicU32::new(0),
            open: core::array::from_fn(|_| AtomicI64::new(0)),
            recorded: AtomicU32::new(0),
            declared: AtomicU32::new(options.declared.0),
            options: AtomicU32::new(
                u32::from(options.checked) * CHECKED + u32::from(options.reader_fences) * READER_FENCES,
            ),
            owner: AtomicU32::new(options.owner),
            rseq_offset: AtomicI64::new(options.rseq.get() as i64),
            seats: AtomicU32::new(seats),
            seats_open: core::array::from_fn(|_| AtomicU32::new(CLOSED)),
            gp: GpState::new(),
        };
        // SAFETY: room and alignment for a header are the caller's promise.
        unsafe { mem.cast::<Header>().write(header) };
        let counts = || core::array::from_fn(|_| RankCounts::new());
        let fresh = || PerCpu { sequenced: counts(), pad: [0; 4], locked: counts() };
        for i in 0..options.copies as usize {
            // SAFETY: `size_bytes` counts a header and `copies` copies, so copy `i` lies inside.
            let copy = unsafe { mem.add(COPY0 + i * size_of::<PerCpu>()) };
            // SAFETY: as above; 128 divides both sizes, so the copy is aligned.
            unsafe { copy.cast().write(fresh()) };
        }
        for i in 1..=seats as usize {
            // SAFETY: the caller's bytes in front hold so many copies.
            let copy = unsafe { mem.sub(i * size_of::<PerCpu>()) };
            // SAFETY: as above, aligned as the block is.
            unsafe { copy.cast().write(fresh()) };
        }
        let block = Block { base: mem, life: PhantomData };
        // A declared flavour counts as recorded from the start: its first reader then cannot
        // race with the first grace period.
        for flavour in Flavour::ALL.into_iter().filter(|f| options.declared.has(*f)) {
            block.set_recorded(flavour);
        }
        block
    }

    /// The block that lies at `base`, `None` if there is none of this layout.
    ///
    /// # Safety
    /// `base` must be aligned to [`ALIGN`](Self::ALIGN) and readable for a header; if a block was made
    /// there, all of it must stay mapped and in use as a block for `'a`.
    pub unsafe fn at(base: NonNull<u8>) -> Option<Block<'a>> {
        // SAFETY: readable and aligned by the caller's promise.
        let magic = unsafe { base.cast::<u64>().read() };
        (magic == MAGIC).then_some(Block { base, life: PhantomData })
    }

    /// The block at an address that came from [`as_ptr`](Self::as_ptr) of one that lives for `'a`.
    #[inline(always)]
    #[cfg_attr(not(feature = "std"), allow(dead_code))]
    pub(crate) fn known(base: NonNull<u8>) -> Block<'a> {
        Block { base, life: PhantomData }
    }

    /// The address of the block in this process.
    pub fn as_ptr(self) -> NonNull<u8> {
        self.base
    }

    #[inline(always)]
    pub(crate) fn head(self) -> &'a Header {
        // SAFETY: `init` wrote a header there, `at` saw one; it stays for `'a`, and all of it that
        // is ever written again is atomic.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// The counters of one copy.
    #[inline(always)]
    pub(crate) fn copy(self, i: u32) -> &'a PerCpu {
        debug_assert!(i < self.copies());
        // SAFETY: `i` is below the number of copies that `init` wrote (callers take it modulo).
        let copy = unsafe { self.base.add(COPY0 + i as usize * size_of::<PerCpu>()) };
        // SAFETY: `init` wrote a `PerCpu` there; all of it is atomic.
        unsafe { copy.cast::<PerCpu>().as_ref() }
    }

    /// The counters of a seat; seats count from 1.
    pub(crate) fn seat(self, seat: u32) -> &'a PerCpu {
        debug_assert!(seat >= 1 && seat <= self.head().seats.load(Relaxed));
        // SAFETY: `init_with_seats` made so many copies there (callers compare).
        let copy = unsafe { self.base.sub(seat as usize * size_of::<PerCpu>()) };
        // SAFETY: as in `copy`.
        unsafe { copy.cast::<PerCpu>().as_ref() }
    }

    /// The number of copies.
    #[inline(always)]
    pub fn copies(self) -> u32 {
        self.head().copies.load(Relaxed)
    }

    /// The rank that a reader entering now would take.
    #[inline(always)]
    pub fn rank(self) -> Rank {
        Rank(self.head().rank.load(Relaxed))
    }

    #[inline(always)]
    pub(crate) fn rseq(self) -> RseqOffset {
        let offset = self.head().rseq_offset.load(Relaxed) as isize;
        // SAFETY: `init` took it as a `RseqOffset`, whose maker promised the rest.
        unsafe { RseqOffset::new(offset) }
    }

    /// The flavours seen so far.
    pub fn recorded(self) -> FlavourSet {
        FlavourSet(self.head().recorded.load(Relaxed))
    }

    /// The flavours that the block was made for; empty if any may come.
    pub fn declared(self) -> FlavourSet {
        FlavourSet(self.head().declared.load(Relaxed))
    }

    pub(crate) fn has_option(self, option: u32) -> bool {
        self.head().options.load(Relaxed) & option != 0
    }

    /// True if fenceless readers fence themselves because no process-wide fence is to be had.
    pub fn has_reader_fences(self) -> bool {
        self.has_option(READER_FENCES)
    }

    /// Readers inside, per rank, as entered minus left; exact when none enters or leaves meanwhile.
    pub fn readers_by_rank(self) -> [i64; 2] {
        let all = self.head().seats.load(Relaxed);
        let ranks = [Rank(0), Rank(RANK_STRIDE)];
        ranks.map(|r| self.sum_locks(r, all).wrapping_sub(self.sum_unlocks(r, all)) as i64)
    }

    /// Readers inside by the CPU that they entered minus those that left on it, per rank.
    pub fn readers_of_copy(self, copy: u32) -> [i64; 2] {
        Self::readers_of(self.copy(copy % self.copies()))
    }

    /// The same by the seat that they entered on.
    pub(crate) fn readers_of_seat(self, seat: u32) -> [i64; 2] {
        Self::readers_of(self.seat(seat))
    }

    fn readers_of(counts: &PerCpu) -> [i64; 2] {
        [0, 1].map(|r| {
            let (s, l) = (&counts.sequenced[r], &counts.locked[r]);
            let locks = s.locks.load(Relaxed).wrapping_add(l.locks.load(Relaxed));
            locks.wrapping_sub(s.unlocks.load(Relaxed)).wrapping_sub(l.unlocks.load(Relaxed)) as i64
        })
    }

    pub(crate) fn sum_locks(self, rank: Rank, seats: u32) -> u64 {
        self.sum(rank, seats, |counts| counts.locks.load(Relaxed))
    }

    pub(crate) fn sum_unlocks(self, rank: Rank, seats: u32) -> u64 {
        self.sum(rank, seats, |counts| counts.unlocks.load(Relaxed))
    }

    /// Of all copies, of seats those up to `seats`.
    fn sum(self, rank: Rank, seats: u32, read: impl Fn(&RankCounts) -> u64) -> u64 {
        let rank = rank.index() as usize;
        let seats = (1..=seats.min(self.head().seats.load(Relaxed))).map(|n| self.seat(n));
        let sum = seats.fold(0, |sum: u64, seat| sum.wrapping_add(read(&seat.sequenced[rank])));
        (0..self.copies()).map(|i| self.copy(i)).fold(sum, |sum, copy| {
            let sum = read(&copy.sequenced[rank]).wrapping_add(sum);
            // The model has no locked adds, and loom would explore the loads.
            if cfg!(loom) { sum } else { read(&copy.locked[rank]).wrapping_add(sum) }
        })
    }

    /// Makes the block forget every reader. For a child of fork, whose other threads are gone.
    ///
    /// # Safety
    /// No thread may be inside a reader of the block, nor enter or leave one meanwhile.
    pub unsafe fn forget_readers(self) {
        let seats = (1..=self.head().seats.load(Relaxed)).map(|n| self.seat(n));
        for copy in (0..self.copies()).map(|i| self.copy(i)).chain(seats) {
            for counts in copy.sequenced.iter().chain(&copy.locked) {
                counts.locks.store(0, Relaxed);
                counts.unlocks.store(0, Relaxed);
            }
        }
    }

    /// Makes the given process the owner.
    ///
    /// # Safety
    /// The grace periods of the block must fence all threads of that process.
    pub unsafe fn set_owner(self, pid: u32) {
        self.head().owner.store(pid, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(C, align(128))]
    struct Room([u8; Block::size_bytes(3)]);

    pub(crate) fn options(declared: FlavourSet) -> BlockOptions {
        let rseq = RseqOffset::NONE;
        BlockOptions { copies: 3, rseq, declared, checked: false, reader_fences: false, owner: 1 }
    }

    #[test]
    fn a_block_is_found_again_at_its_address_and_nothing_else_is() {
        let mut room = Room([0; _]);
        let mem = NonNull::from(&mut room).cast::<u8>();
        // SAFETY: `room` is readable and aligned.
        assert!(unsafe { Block::at(mem) }.is_none());
        // SAFETY: `room` has the bytes, is aligned, and lives to the end of the test.
        let made = unsafe { Block::init(mem, &options(FlavourSet(Flavour::Fast.bit()))) };
        // SAFETY: as above.
        let found = unsafe { Block::at(mem) }.unwrap();
        assert_eq!(found.copies(), 3);
        assert_eq!(made.as_ptr(), found.as_ptr());
        assert!(found.recorded().has(Flavour::Fast), "declared counts as recorded");
    }
}
