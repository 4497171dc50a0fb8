//! One piece of memory for caches and what is built on them.
//!
//! For:     caches (chunks of objects) and set-up (cells, tables of maps).
//! State:   a head with roots, a table with one entry per chunk, the chunks. All positions are offsets, so
//!          any process may map it anywhere.
//! Context: control. Any context may read the memory.
//! Keeps:   A1 a chunk has one owner. A2 what is given out is zeros.
//! Checked: tests below, tests/life.rs, tests/other_process.rs of `map`.

use crate::Error;
use crate::chunk::{CHUNK, Chunk};
use crate::worker::Worker;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::mapping::{MADV_DONTNEED, MADV_REMOVE, PrivateMapping, SharedMapping, discard};

/// Numbers in the head by which another process finds what is in the arena.
pub const ROOTS: usize = 64;

/// In front of the chunk table.
pub const HEAD_BYTES: usize = 512;

const MAGIC: u64 = u64::from_le_bytes(*b"nparen\0\x01");

#[repr(C)]
struct Head {
    magic: AtomicU64,
    chunks: AtomicU32,
    roots: [AtomicU32; ROOTS],
}

const _: () = {
    assert!(size_of::<Head>() <= HEAD_BYTES);
    assert!(core::mem::offset_of!(Head, chunks) == crate::view::CHUNKS_AT);
    assert!(CHUNK / 8 == crate::view::CHUNK_INDEXES as usize);
};

/// The owner of chunks that hold no objects.
const SETUP: u32 = u32::MAX;

enum Memory {
    Private(PrivateMapping),
    Shared(SharedMapping),
    Given { base: NonNull<u8>, len: usize, is_shared: bool },
}

impl Memory {
    fn base(&self) -> *mut u8 {
        match self {
            Self::Private(map) => map.base(),
            Self::Shared(map) => map.base(),
            Self::Given { base, .. } => base.as_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Private(map) => map.len_bytes(),
            Self::Shared(map) => map.len_bytes(),
            Self::Given { len, .. } => *len,
        }
    }

    fn advice(&self) -> usize {
        match self {
            Self::Private(_) | Self::Given { is_shared: false, .. } => MADV_DONTNEED,
            Self::Shared(_) | Self::Given { is_shared: true, .. } => MADV_REMOVE,
        }
    }
}

/// What all handles of an arena share.
pub struct Inner {
    memory: Memory,
    /// Orders changes of owners.
    owners: Mutex<u32>,
    pub worker: Worker,
}

// SAFETY: `Given` is memory that its giver lets any thread use; the rest is so by itself.
unsafe impl Send for Inner {}
// SAFETY: as for Send; changes go through atomics and `owners`.
unsafe impl Sync for Inner {}

/// Memory that caches share, and the worker that tends them.
#[derive(Clone)]
pub struct Arena(pub(crate) Arc<Inner>);

impl Arena {
    /// An arena of this process alone; pages are taken from the system as they are used.
    ///
    /// # Errors
    /// The size, or the system's refusal.
    pub fn private(bytes: usize) -> Result<Arena, Error> {
        Self::check(bytes)?;
        Self::init(Memory::Private(PrivateMapping::new(bytes).map_err(Error::System)?))
    }

    /// An arena in the first bytes of a file of zeros (a memfd), for other processes to map.
    ///
    /// ```compile_fail,E0133
    /// use std::os::fd::AsRawFd;
    /// let file = std::fs::File::open("/dev/shm/arena")?;
    /// let arena = objcache::Arena::in_file(file.as_raw_fd(), 1 << 20); // not without `unsafe`: others may cut it off
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Safety
    /// Until every handle and cache is gone, the file must not be made shorter, and what lies in its first `bytes` must
    /// be changed by nobody but through this crate and those built on it, in any process. A memfd that is sealed
    /// against shrinking, and that only trusted processes have, is such a file.
    ///
    /// # Errors
    /// As [`private`](Self::private).
    pub unsafe fn in_file(fd: i32, bytes: usize) -> Result<Arena, Error> {
        Self::check(bytes)?;
        Self::init(Memory::Shared(SharedMapping::of_file(fd, bytes).map_err(Error::System)?))
    }

    /// An arena in memory that is given; `is_shared` if it is a file's, whose pages can be cut out.
    ///
    /// # Safety
    /// The memory must be zeros, page-aligned, mapped until every handle and cache is gone, and used by
    /// nothing else.
    ///
    /// # Errors
    /// The size.
    pub unsafe fn over(base: NonNull<u8>, bytes: usize, is_shared: bool) -> Result<Arena, Error> {
        Self::check(bytes)?;
        Self::init(Memory::Given { base, len: bytes, is_shared })
    }

    fn check(bytes: usize) -> Result<(), Error> {
        let least = 2 * CHUNK;
        if bytes < least {
            return Err(Error::ArenaTooSmall { bytes, least });
        }
        if bytes as u64 / 8 > crate::link::END {
            return Err(Error::ArenaTooLarge { bytes });
        }
        Ok(())
    }

    fn init(memory: Memory) -> Result<Arena, Error> {
        let inner = Inner { memory, owners: Mutex::new(1), worker: Worker::new() };
        let arena = Arena(Arc::new(inner));
        let chunks = (arena.len() / CHUNK) as u32;
        arena.head().chunks.store(chunks, Relaxed);
        let table = HEAD_BYTES + chunks as usize * size_of::<Chunk>();
        for n in 0..table.div_ceil(CHUNK) as u32 {
            arena.chunk(n).owner.store(SETUP, Relaxed);
        }
        arena.head().magic.store(MAGIC, Relaxed);
        Ok(arena)
    }

    /// Where the arena lies in this process.
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: a mapping is not at address zero.
        unsafe { NonNull::new_unchecked(self.0.memory.base()) }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// True if an arena lies at `base`.
    ///
    /// # Safety
    /// `base` must be readable for [`HEAD_BYTES`].
    pub unsafe fn is_at(base: NonNull<u8>) -> bool {
        // SAFETY: readable (the caller's promise).
        unsafe { base.cast::<u64>().read() == MAGIC }
    }

    /// A number that another process finds at the same place; `None` beyond [`ROOTS`].
    pub fn root(&self, n: usize) -> Option<&AtomicU32> {
        // SAFETY: the arena lives while `self` is borrowed.
        unsafe { Self::root_at(self.base(), n) }
    }

    /// The same for an arena mapped at `base`.
    ///
    /// # Safety
    /// An arena must lie there for `'a`.
    pub unsafe fn root_at<'a>(base: NonNull<u8>, n: usize) -> Option<&'a AtomicU32> {
        // SAFETY: a head lies there for `'a` (the caller's promise); all of it is atomics.
        let head: &'a Head = unsafe { base.cast().as_ref() };
        head.roots.get(n)
    }

    fn head(&self) -> &Head {
        // SAFETY: the memory begins with a head, zeros at first; it stays while `self` is borrowed, and all of
        // it is atomics.
        unsafe { self.base().cast().as_ref() }
    }

    pub(crate) fn chunks(&self) -> u32 {
        self.head().chunks.load(Relaxed)
    }

    pub(crate) fn chunk(&self, n: u32) -> &Chunk {
        let at = self.base().as_ptr().wrapping_add(HEAD_BYTES).cast::<Chunk>().wrapping_add(n as usize);
        // SAFETY: the table has an entry for each chunk (`init`); entries are atomics.
        unsafe { &*at }
    }

    fn owners(&self) -> MutexGuard<'_, u32> {
        self.0.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new cache.
    pub(crate) fn new_owner(&self) -> u32 {
        let mut next = self.owners();
        *next += 1;
        *next - 1
    }

    /// Zeros for set-up: the offset of `bytes` in one piece, aligned to a chunk.
    ///
    /// # Errors
    /// [`Error::ArenaFull`].
    pub fn take(&self, bytes: usize) -> Result<usize, Error> {
        self.take_for(SETUP, bytes)
    }

    pub(crate) fn take_for(&self, owner: u32, bytes: usize) -> Result<usize, Error> {
        let full = |free| Error::ArenaFull { wanted: bytes, free };
        // More than an arena can have is no number of chunks.
        let Ok(want) = u32::try_from(bytes.div_ceil(CHUNK).max(1)) else {
            return Err(full(self.free_bytes()));
        };
        let _turn = self.owners();
        let (mut run, mut free) = (0, 0);
        for n in 0..self.chunks() {
            if self.chunk(n).owner.load(Relaxed) != 0 {
                run = 0;
                continue;
            }
            (run, free) = (run + 1, free + 1);
            if run == want {
                (n + 1 - want..=n).for_each(|n| self.chunk(n).owner.store(owner, Relaxed));
                return Ok((n + 1 - want) as usize * CHUNK);
            }
        }
        Err(full(free * CHUNK))
    }

    /// Returns what [`take`](Self::take) gave, and its pages to the system.
    ///
    /// # Safety
    /// Offset and bytes must be those of one `take`, and nothing of them may be in use, in any process.
    pub unsafe fn give_back(&self, offset: usize, bytes: usize) {
        let (first, count) = ((offset / CHUNK) as u32, bytes.div_ceil(CHUNK).max(1));
        let start = self.base().as_ptr().wrapping_add(offset);
        // SAFETY: nothing there is in use (the caller's promise), and the range is whole chunks.
        let zeroed = unsafe { discard(start, count * CHUNK, self.0.memory.advice()) };
        if zeroed.is_err() {
            // SAFETY: as above; the memory is ours and writable.
            unsafe { start.write_bytes(0, count * CHUNK) };
        }
        let _turn = self.owners();
        for n in first..first + count as u32 {
            self.chunk(n).clear();
        }
    }

    /// Bytes in chunks that have an owner; what set-up took counts.
    pub fn used_bytes(&self) -> usize {
        (0..self.chunks()).filter(|n| self.chunk(*n).owner.load(Relaxed) != 0).count() * CHUNK
    }

    fn free_bytes(&self) -> usize {
        self.chunks() as usize * CHUNK - self.used_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_given_out_again_as_zeros() {
        let arena = Arena::private(8 * CHUNK).unwrap();
        let before = arena.used_bytes();
        let a = arena.take(3 * CHUNK - 5).unwrap();
        let b = arena.take(1).unwrap();
        // SAFETY: taken above.
        unsafe { arena.base().as_ptr().wrapping_add(a + 77).write(1) };
        assert_eq!(arena.take(4 * CHUNK), Err(Error::ArenaFull { wanted: 4 * CHUNK, free: 3 * CHUNK }));
        // SAFETY: nothing of it is in use.
        unsafe { arena.give_back(a, 3 * CHUNK - 5) };
        assert_eq!(arena.take(3 * CHUNK), Ok(a));
        // SAFETY: taken above.
        assert_eq!(unsafe { arena.base().as_ptr().wrapping_add(a + 77).read() }, 0);
        // SAFETY: nothing of it is in use.
        unsafe { arena.give_back(a, 3 * CHUNK) };
        // SAFETY: as above.
        unsafe { arena.give_back(b, 1) };
        assert_eq!(arena.used_bytes(), before);
    }

    #[test]
    fn more_than_any_arena_has_is_refused() {
        let arena = Arena::private(8 * CHUNK).unwrap();
        let used = arena.used_bytes();
        for wanted in [usize::MAX, usize::MAX - CHUNK, CHUNK << 32, (CHUNK << 32) + CHUNK, 9 * CHUNK] {
            let refused = arena.take(wanted).unwrap_err();
            assert_eq!(refused, Error::ArenaFull { wanted, free: 8 * CHUNK - used });
        }
        assert!(matches!(Arena::private(usize::MAX), Err(Error::ArenaTooLarge { .. })));
        assert_eq!(arena.used_bytes(), used);
    }

    #[test]
    fn an_arena_too_small_says_what_does() {
        assert_eq!(Arena::private(100).err(), Some(Error::ArenaTooSmall { bytes: 100, least: 2 * CHUNK }));
    }
}
