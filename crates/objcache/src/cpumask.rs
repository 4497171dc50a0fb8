//! Sets of CPUs that are counted and freed after a grace period.
//!
//! For:     programs that hand such sets around: the first user of `free_rcu` in the kernel.
//! State:   one object per mask: a count and the bits.
//! Context: any for all but making the cache.
//! Keeps:   M1 a mask that somebody has is not freed. M2 readers may look at one until a grace period after
//!          its last release.
//! Checked: tests/cpumask.rs.
//! Source:  kernel `kernel/bpf/cpumask.c`.

use crate::{Error, ObjectCache};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

const WORDS: usize = 16;

/// Bits, and how many have the mask.
#[repr(C)]
pub struct CpuMask {
    count: AtomicU32,
    bits: [AtomicU64; WORDS],
}

/// The most CPUs of a mask.
const MOST: u32 = WORDS as u32 * 64;

/// Masks from one cache.
pub struct CpuMasks {
    cache: ObjectCache,
    cpus: u32,
}

/// One share of a mask; dropping it is the release.
pub struct CpuMaskRef<'a> {
    masks: &'a CpuMasks,
    mask: NonNull<CpuMask>,
}

// SAFETY: the mask is atomics, and the last share frees it from whatever thread.
unsafe impl Send for CpuMaskRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for CpuMaskRef<'_> {}

impl CpuMasks {
    /// A cache of masks for the CPUs that this system can have.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new() -> Result<CpuMasks, Error> {
        let cache = ObjectCache::builder(size_of::<CpuMask>()).build()?;
        Ok(CpuMasks { cache, cpus: percpu::possible_cpus().min(MOST) })
    }

    /// An empty mask with one share; `None` if there is no object just now.
    pub fn create(&self) -> Option<CpuMaskRef<'_>> {
        let mask = self.cache.alloc()?.cast::<CpuMask>();
        let empty = CpuMask { count: AtomicU32::new(1), bits: core::array::from_fn(|_| AtomicU64::new(0)) };
        // SAFETY: a new object of the size, 8 bytes aligned, which no reader can reach any more.
        unsafe { mask.write(empty) };
        Some(CpuMaskRef { masks: self, mask })
    }

    /// One more share of a mask that readers can reach; `None` if its last one is gone, or there are 2^31.
    ///
    /// # Safety
    /// `mask` must have come from this cache, and the caller must be in a reader of its domain that began
    /// before the last share can have gone.
    pub unsafe fn acquire(&self, mask: NonNull<CpuMask>) -> Option<CpuMaskRef<'_>> {
        // SAFETY: not reused before the caller's reader ends (the caller's promise).
        let count = &unsafe { mask.as_ref() }.count;
        share(count).then(|| CpuMaskRef { masks: self, mask })
    }

    /// The cache, for its counts.
    pub fn cache(&self) -> &ObjectCache {
        &self.cache
    }
}

/// One share more; not of a mask that has none, nor so many that their number would come round.
fn share(count: &AtomicU32) -> bool {
    let more = |n: u32| (n != 0 && n < 1 << 31).then(|| n + 1);
    count.fetch_update(Relaxed, Relaxed, more).is_ok()
}

impl Clone for CpuMaskRef<'_> {
    fn clone(&self) -> Self {
        assert!(share(&self.count), "a mask has at most 2^31 shares");
        CpuMaskRef { masks: self.masks, mask: self.mask }
    }
}

impl Drop for CpuMaskRef<'_> {
    fn drop(&mut self) {
        // [OBJ-6] The last share sees what the others did. Pairs with [OBJ-6].
        if self.count.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: from this cache, and no share is left; readers of the domain may still look.
            unsafe { self.masks.cache.free_rcu(self.mask.cast()) };
        }
    }
}

impl core::ops::Deref for CpuMaskRef<'_> {
    type Target = CpuMask;

    fn deref(&self) -> &CpuMask {
        // SAFETY: a share keeps the mask.
        unsafe { self.mask.as_ref() }
    }
}

impl CpuMaskRef<'_> {
    /// The address, for readers.
    pub fn as_ptr(&self) -> NonNull<CpuMask> {
        self.mask
    }

    /// Sets every CPU that the system can have.
    pub fn set_all(&self) {
        (0..self.masks.cpus).for_each(|cpu| self.set(cpu));
    }

    /// The lowest CPU that the system can have and that is not in the mask.
    pub fn first_zero(&self) -> Option<u32> {
        (0..self.masks.cpus).find(|cpu| !self.test(*cpu))
    }

    /// Some CPU of the mask, another one from call to call.
    pub fn any_distribute(&self) -> Option<u32> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let after = LAST.load(Relaxed);
        let found = (1..=MOST).map(|n| (after + n) % MOST).find(|cpu| self.test(*cpu))?;
        LAST.store(found, Relaxed);
        Some(found)
    }
}

impl CpuMask {
    fn word(&self, cpu: u32) -> Option<(&AtomicU64, u64)> {
        Some((self.bits.get(cpu as usize / 64)?, 1 << (cpu % 64)))
    }

    /// Adds a CPU; numbers beyond 1023 are ignored.
    pub fn set(&self, cpu: u32) {
        if let Some((word, bit)) = self.word(cpu) {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Takes a CPU out.
    pub fn clear(&self, cpu: u32) {
        if let Some((word, bit)) = self.word(cpu) {
            word.fetch_and(!bit, Relaxed);
        }
    }

    /// Takes every CPU out.
    pub fn clear_all(&self) {
        self.bits.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// True if the CPU is in the mask.
    pub fn test(&self, cpu: u32) -> bool {
        self.word(cpu).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Adds a CPU; true if it was there.
    pub fn test_and_set(&self, cpu: u32) -> bool {
        self.word(cpu).is_some_and(|(word, bit)| word.fetch_or(bit, Relaxed) & bit != 0)
    }

    /// Takes a CPU out; true if it was there.
    pub fn test_and_clear(&self, cpu: u32) -> bool {
        self.word(cpu).is_some_and(|(word, bit)| word.fetch_and(!bit, Relaxed) & bit != 0)
    }

    fn combine(&self, a: &CpuMask, b: &CpuMask, with: impl Fn(u64, u64) -> u64) -> bool {
        for (word, (a, b)) in self.bits.iter().zip(a.bits.iter().zip(&b.bits)) {
            word.store(with(a.load(Relaxed), b.load(Relaxed)), Relaxed);
        }
        !self.is_empty()
    }

    /// Becomes the CPUs of both; false if there are none.
    pub fn and(&self, a: &CpuMask, b: &CpuMask) -> bool {
        self.combine(a, b, |a, b| a & b)
    }

    /// Becomes the CPUs of either.
    pub fn or(&self, a: &CpuMask, b: &CpuMask) {
        self.combine(a, b, |a, b| a | b);
    }

    /// Becomes the CPUs of one alone.
    pub fn xor(&self, a: &CpuMask, b: &CpuMask) {
        self.combine(a, b, |a, b| a ^ b);
    }

    /// Becomes the other one.
    pub fn copy_from(&self, other: &CpuMask) {
        self.combine(other, other, |a, _| a);
    }

    fn all(&self, other: &CpuMask, is: impl Fn(u64, u64) -> bool) -> bool {
        self.bits.iter().zip(&other.bits).all(|(a, b)| is(a.load(Relaxed), b.load(Relaxed)))
    }

    /// True if both have the same CPUs.
    pub fn equal(&self, other: &CpuMask) -> bool {
        self.all(other, |a, b| a == b)
    }

    /// True if some CPU is in both.
    pub fn intersects(&self, other: &CpuMask) -> bool {
        !self.all(other, |a, b| a & b == 0)
    }

    /// True if every CPU of this one is in the other.
    pub fn is_subset(&self, other: &CpuMask) -> bool {
        self.all(other, |a, b| a & !b == 0)
    }

    /// True without CPUs.
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|word| word.load(Relaxed) == 0)
    }

    /// How many CPUs there are.
    pub fn weight(&self) -> u32 {
        self.bits.iter().map(|word| word.load(Relaxed).count_ones()).sum()
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<u32> {
        let word = self.bits.iter().position(|word| word.load(Relaxed) != 0)?;
        Some(word as u32 * 64 + self.bits[word].load(Relaxed).trailing_zeros())
    }
}
