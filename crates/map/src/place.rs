//! A place in the arena, as atomics.
//!
//! For:     every map: memory that other threads and processes read meanwhile.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   P1 all shared memory is read and written through atomics; bytes go in words of 8.
//!          P2 a versioned read that succeeds saw the bytes of one write, whole.
//!          P3 through a [`Checked`] place nothing outside of what it was given is reached, whatever lies there.
//! Checked: model `hash` (mutants MAP-1, MAP-2, MAP-3), tests/other_process.rs; tests/untrusted.rs (P3).

use crate::prim::{Acquire, AtomicU32, AtomicU64, Relaxed, Release, fence};
use core::ptr::NonNull;

/// Where a map lies, and how far it is believed: a [`Place`] in the process that uses it, which nothing checks, or a [`Checked`]
/// one for whoever looks on from outside.
pub trait Access: Copy {
    /// Whoever writes there is believed: what is found is followed, and marks are left.
    const IS_TRUSTED: bool;

    /// So many bytes on.
    fn at(self, offset: usize) -> Self;

    /// The word of 32 bits there.
    fn u32(&self, offset: usize) -> &AtomicU32;

    /// The word of 64 bits there.
    fn u64(&self, offset: usize) -> &AtomicU64;

    /// Reads bytes, in words.
    #[inline(always)]
    fn read(self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        let whole = words.len();
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.u64(n * 8).load(Relaxed).to_ne_bytes();
        }
        if !rest.is_empty() {
            // Byte by byte: no call of memcpy is to be made of it.
            let mut last = u64::from_le_bytes(self.u64(whole * 8).load(Relaxed).to_ne_bytes());
            for byte in rest {
                (*byte, last) = (last as u8, last >> 8);
            }
        }
    }

    /// Writes bytes, in words; the last is filled up with zeros.
    #[inline(always)]
    fn write(self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for (n, word) in words.iter().enumerate() {
            self.u64(n * 8).store(u64::from_ne_bytes(*word), Relaxed);
        }
        if !rest.is_empty() {
            self.u64(words.len() * 8).store(padded(rest), Relaxed);
        }
    }

    /// True if these bytes lie here.
    #[inline(always)]
    fn equals(self, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks::<8>();
        let same = |n: usize, word: u64| self.u64(n * 8).load(Relaxed) == word;
        words.iter().enumerate().all(|(n, word)| same(n, u64::from_ne_bytes(*word)))
            && (rest.is_empty() || same(words.len(), padded(rest)))
    }
}

/// An address in the arena. What lies there is known to who made it.
#[derive(Clone, Copy, Debug)]
pub struct Place(NonNull<u8>);

impl Access for Place {
    const IS_TRUSTED: bool = true;

    #[inline(always)]
    fn at(self, offset: usize) -> Place {
        Place::at(self, offset)
    }

    #[inline(always)]
    fn u32(&self, offset: usize) -> &AtomicU32 {
        Place::u32(*self, offset)
    }

    #[inline(always)]
    fn u64(&self, offset: usize) -> &AtomicU64 {
        Place::u64(*self, offset)
    }
}

/// A place in memory that somebody writes who is not trusted.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    all: wire::Untrusted<'a>,
    offset: usize,
}

/// What is found where nothing is. Maps ask inside of what they were attached to alone: this is for their mistakes.
#[cfg(not(loom))]
static NOWHERE: (AtomicU32, AtomicU64) = (AtomicU32::new(0), AtomicU64::new(0));

#[cfg(not(loom))]
impl<'a> Checked<'a> {
    /// The `len` bytes at `offset`; `None` if they are not all there.
    pub fn new(all: wire::Untrusted<'a>, offset: usize, len: usize) -> Option<Checked<'a>> {
        Some(Checked { all: all.part(offset, len)?, offset: 0 })
    }
}

#[cfg(not(loom))]
impl Access for Checked<'_> {
    const IS_TRUSTED: bool = false;

    fn at(self, offset: usize) -> Self {
        Checked { offset: self.offset.saturating_add(offset), ..self }
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        self.all.half(self.offset.saturating_add(offset)).unwrap_or(&NOWHERE.0)
    }

    fn u64(&self, offset: usize) -> &AtomicU64 {
        self.all.word(self.offset.saturating_add(offset)).unwrap_or(&NOWHERE.1)
    }
}

// SAFETY: an address; all accesses go through atomics (P1).
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// The memory of a model, by address: loom's atomics cannot lie anywhere.
///
/// A word is used as one of 64 bits or as two of 32, never as both.
#[cfg(loom)]
pub struct Memory {
    halves: Vec<AtomicU32>,
    words: Vec<AtomicU64>,
}

// loom runs all threads of a model on the thread of its test.
#[cfg(loom)]
std::thread_local! {
    static MEMORY: core::cell::Cell<*const Memory> = const { core::cell::Cell::new(core::ptr::null()) };
}

#[cfg(loom)]
impl Memory {
    /// Zeros at the addresses below `bytes`, until the next call.
    pub fn begin(bytes: usize) {
        let halves = (0..bytes / 4).map(|_| AtomicU32::new(0)).collect();
        let words = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        // Never freed: models are many, but short-lived and small.
        MEMORY.set(Box::leak(Box::new(Memory { halves, words })));
    }

    fn now() -> &'static Memory {
        // SAFETY: set by `begin`, which a model calls first, to what is never freed.
        unsafe { &*MEMORY.get() }
    }

    fn u32(&self, at: usize) -> &AtomicU32 {
        &self.halves[at / 4]
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        &self.words[at / 8]
    }
}

impl Place {
    /// # Safety
    /// All that is reached from here must be inside an arena that stays mapped as long as the place is used,
    /// and be used through atomics alone.
    pub unsafe fn new(at: NonNull<u8>) -> Place {
        Place(at)
    }

    #[inline(always)]
    pub fn at(self, offset: usize) -> Place {
        // SAFETY: offsets are inside the arena (contract of `new`), so the address is not null.
        Place(unsafe { NonNull::new_unchecked(self.0.as_ptr().wrapping_add(offset)) })
    }

    pub fn ptr(self) -> NonNull<u8> {
        self.0
    }

    #[inline(always)]
    pub fn u32<'a>(self, offset: usize) -> &'a AtomicU32 {
        #[cfg(loom)]
        return Memory::now().u32(self.0.as_ptr() as usize + offset);
        #[cfg(not(loom))]
        {
            let at = self.0.as_ptr().wrapping_add(offset).cast::<AtomicU32>();
            // SAFETY: inside the arena, aligned by the layouts of this crate, used as atomics alone.
            unsafe { &*at }
        }
    }

    #[inline(always)]
    pub fn u64<'a>(self, offset: usize) -> &'a AtomicU64 {
        #[cfg(loom)]
        return Memory::now().u64(self.0.as_ptr() as usize + offset);
        #[cfg(not(loom))]
        {
            let at = self.0.as_ptr().wrapping_add(offset).cast::<AtomicU64>();
            // SAFETY: as in `u32`.
            unsafe { &*at }
        }
    }
}

/// The bytes of less than a word, filled up with zeros.
#[inline(always)]
pub fn padded(rest: &[u8]) -> u64 {
    let word = rest.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    u64::from_ne_bytes(word.to_le_bytes())
}

/// Rounds up to whole words.
pub const fn words(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// The bytes of a layout, if it has so many parts of so many bytes and its lengths fit the words that keep them.
#[cfg(all(feature = "std", not(loom)))]
pub fn sized(head: usize, parts: usize, part: usize) -> Result<usize, crate::Error> {
    // An arena has 16 GiB at most; any bound below the overflow of what is computed with the result will do.
    let most = (1 << 35) - 1;
    let bytes = parts.checked_mul(part).and_then(|all| all.checked_add(head)).filter(|bytes| *bytes <= most);
    bytes.ok_or(crate::Error::Setup(objcache::Error::TooBig { size: part, most: most / parts.max(1) }))
}

/// A length that fits the word that keeps it, and can be rounded up.
#[cfg(all(feature = "std", not(loom)))]
pub fn length(bytes: usize) -> Result<u32, crate::Error> {
    let most = i32::MAX as usize;
    match u32::try_from(bytes) {
        _ if bytes == 0 => Err(crate::Error::Setup(objcache::Error::ZeroSize)),
        Ok(length) if bytes <= most => Ok(length),
        _ => Err(crate::Error::Setup(objcache::Error::TooBig { size: bytes, most })),
    }
}

/// Begins to change what `version` stands for: it becomes odd. For who has it alone.
#[inline(always)]
pub fn open_write(version: &AtomicU32) {
    version.store(version.load(Relaxed) | 1, Relaxed);
    // [MAP-1] The odd version is seen before any of the new bytes. Pairs with [MAP-3], [JIT-1].
    #[cfg(not(mutant = "MAP-1"))]
    fence(Release);
}

/// Ends the change: even, and never 0.
#[inline(always)]
pub fn close_write(version: &AtomicU32) {
    // Past the bit of sleep too.
    let next = (version.load(Relaxed) | ASLEEP | 1).wrapping_add(1);
    // [MAP-2] The bytes are seen with the even version. Pairs with [MAP-3], [MAP-4], [MAP-18], [JIT-1].
    #[cfg(not(mutant = "MAP-2"))]
    let order = Release;
    #[cfg(mutant = "MAP-2")]
    let order = Relaxed;
    version.store(if next == 0 { 4 } else { next }, order);
}

pub use wire::maps::element::ASLEEP;

/// Begins a change of what others may change too: false if `version` is not what was seen any more.
#[inline(always)]
pub fn claim_write(version: &AtomicU32, seen: u32) -> bool {
    // [MAP-52] All that was done before the version that was seen comes before this change. Pairs with [MAP-53].
    #[cfg(not(mutant = "MAP-52"))]
    let is_ours = version.compare_exchange(seen, seen & !ASLEEP | 1, Acquire, Relaxed).is_ok();
    // Two of whom each believes that he is alone.
    #[cfg(mutant = "MAP-52")]
    let is_ours = version.load(Relaxed) == seen;
    #[cfg(mutant = "MAP-52")]
    version.store(seen & !ASLEEP | 1, Relaxed);
    // [MAP-54] As [MAP-1]. Pairs with [MAP-3], [JIT-1].
    fence(Release);
    is_ours
}

/// The key of an element is gone from here on: false if `version` is not what was seen any more.
#[inline(always)]
pub fn put_to_sleep(version: &AtomicU32, seen: u32) -> bool {
    // [MAP-53] What this thread did with the element comes before what is done by whoever has it next. Pairs with [MAP-52].
    version.compare_exchange(seen, seen | ASLEEP, Release, Relaxed).is_ok()
}

/// The key of an element that stays its own is gone from here on, or there again with another version than it ever had: false if
/// `version` is not what was seen any more, because a handler that interrupted its thread was there.
///
/// The value is written before the key is there. For the thread whose key it is: from another one it may be done, and not count.
#[inline(always)]
pub fn set_asleep(version: &AtomicU32, seen: u32, is_asleep: bool) -> bool {
    let next = (seen & !ASLEEP).wrapping_add(4);
    let now = match is_asleep {
        true => seen | ASLEEP,
        false if next == 0 => 4,
        false => next,
    };
    // Without a new number, who was interrupted does not see that the key came and went.
    #[cfg(mutant = "same-version")]
    let now = if is_asleep { now } else { seen & !ASLEEP };
    // [MAP-57] The value is seen with the key that is there again. Pairs with [MAP-3], [JIT-1].
    exchange_own(version, seen, now)
}

/// As a thread's own instruction does it, which neither a signal nor another thread of its CPU can split; on x86-64 all its stores
/// are in order too.
#[cfg(not(loom))]
#[inline(always)]
fn exchange_own(version: &AtomicU32, seen: u32, now: u32) -> bool {
    // SAFETY: an atomic's address, valid and aligned as long as it is borrowed.
    unsafe { percpu::exchange_own(version.as_ptr(), seen, now) }
}

#[cfg(loom)]
fn exchange_own(version: &AtomicU32, seen: u32, now: u32) -> bool {
    #[cfg(not(mutant = "MAP-57"))]
    let order = Release;
    #[cfg(mutant = "MAP-57")]
    let order = Relaxed;
    version.compare_exchange(seen, now, order, Relaxed).is_ok()
}

/// What `read` reads if nobody changed it meanwhile; `None` otherwise.
#[inline(always)]
pub fn versioned<T>(version: &AtomicU32, read: impl FnOnce() -> T) -> Option<T> {
    versioned_as(version, |_| read())
}

/// The same for who wants to know the version.
#[inline(always)]
pub fn versioned_as<T>(version: &AtomicU32, read: impl FnOnce(u32) -> T) -> Option<T> {
    // [MAP-3] The version before and after: the same and even, so the bytes between are of one write.
    // Pairs with [MAP-1], [MAP-2], [MAP-54], [MAP-57].
    let before = version.load(Acquire);
    if before & 1 != 0 || before == 0 {
        return None;
    }
    let got = read(before);
    #[cfg(not(mutant = "MAP-3"))]
    fence(Acquire);
    (version.load(Relaxed) == before).then_some(got)
}
