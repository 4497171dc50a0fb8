//! A stack of batches that any thread and any signal handler may push to and pop from.
//!
//! For:     depots (full batches), objects freed without rseq, batches that wait for a grace period.
//! State:   one word: the top batch's head, and a tag that every pop changes.
//! Context: hit, signal, target. Lock-free: a failed try means that another one succeeded.
//! Keeps:   T1 each batch is popped once, whole. T2 a pop that was overtaken does not succeed: the tag.
//!          The tag has 32 bits: 4 billion pops while one is interrupted between two instructions.
//! Checked: model `stack` (mutants OBJ-1, OBJ-2, OBJ-3, no-tag), tests below; `torture mem`.

use crate::items::Items;
use crate::prim::{AcqRel, Acquire, AtomicU64, Relaxed};
use crate::tray::TRAY;

/// Objects that move together, and how many: on a tray, or linked by `next` from the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    head: u32,
    len: u32,
}

impl Batch {
    #[inline(always)]
    pub const fn new(head: u32, len: u32) -> Batch {
        Batch { head, len }
    }

    #[inline(always)]
    pub const fn head(self) -> u32 {
        self.head
    }

    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    pub const fn is_tray(self) -> bool {
        self.head & TRAY != 0
    }

    /// Shows every object to `each`, which may change its header; false if a linked batch is longer or shorter than
    /// it says.
    ///
    /// # Safety
    /// The batch must be the caller's, of the arena at `items`.
    #[cfg(feature = "std")]
    pub unsafe fn for_each(self, items: Items, mut each: impl FnMut(u32)) -> bool {
        if self.is_tray() {
            // SAFETY: the caller's tray.
            unsafe { items.tray(self.head) }.iter().for_each(each);
            return true;
        }
        let mut i = self.head;
        for _ in 0..self.len {
            if i == 0 {
                return false;
            }
            // SAFETY: linked from the caller's own.
            let next = unsafe { items.link(i) }.next();
            each(i);
            i = next;
        }
        i == 0
    }

    /// The linked batch with one more object in front.
    ///
    /// # Safety
    /// Batch and object must be the caller's, of the arena at `items`.
    #[inline(always)]
    pub unsafe fn with(self, items: Items, index: u32) -> Batch {
        debug_assert!(!self.is_tray());
        // SAFETY: the caller's own object.
        unsafe { items.link(index) }.set_next(self.head);
        Batch { head: index, len: self.len + 1 }
    }
}

/// A stack of batches: linked lists of objects, of known length.
#[repr(transparent)]
pub struct Stack(AtomicU64);

impl Stack {
    /// True if there is nothing on it just now.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.load(Relaxed) >> 32 == 0
    }

    #[cfg(any(test, loom))]
    pub fn new() -> Stack {
        Stack(AtomicU64::new(0))
    }

    /// Puts a batch on top.
    ///
    /// # Safety
    /// The batch must not be empty, but a tray may be; its objects must be of the arena at `items`, linked by `next` or on
    /// the tray, and the caller's own.
    pub unsafe fn push(&self, items: Items, batch: Batch) {
        // SAFETY: the caller's own objects.
        let head = unsafe { items.link(batch.head()) };
        if batch.is_tray() {
            // Its length is in the tray.
        } else if batch.len() > 1 {
            // SAFETY: a batch of two has a second object, which is the caller's.
            unsafe { items.link(head.next()) }.set_aux(batch.len());
        } else {
            head.set_next(0);
        }
        let mut old = self.0.load(Relaxed);
        loop {
            head.set_aux((old >> 32) as u32);
            let new = (batch.head() as u64) << 32 | old & 0xffff_ffff;
            // [OBJ-1] Publishes the batch's links, and what its last owners did before they freed the
            // objects. Pairs with [OBJ-2], [OBJ-3].
            #[cfg(not(mutant = "OBJ-1"))]
            let order = AcqRel;
            #[cfg(mutant = "OBJ-1")]
            let order = Relaxed;
            match self.0.compare_exchange_weak(old, new, order, Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Takes the top batch.
    ///
    /// # Safety
    /// The stack's batches must lie in the arena at `items`.
    pub unsafe fn pop(&self, items: Items) -> Option<Batch> {
        // [OBJ-2] Sees the links of the top batch, and after the exchange owns it. Pairs with [OBJ-1].
        #[cfg(not(mutant = "OBJ-2"))]
        let (seen, order) = (Acquire, AcqRel);
        #[cfg(mutant = "OBJ-2")]
        let (seen, order) = (Relaxed, Relaxed);
        let mut old = self.0.load(seen);
        loop {
            let head = (old >> 32) as u32;
            if head == 0 {
                return None;
            }
            // SAFETY: it was the top of this stack a moment ago, so it is an object; if it is another's
            // by now, what is read is refused below by the tag.
            let below = unsafe { items.link(head) }.aux();
            let tag = (old as u32).wrapping_add(u32::from(cfg!(not(mutant = "no-tag"))));
            let new = (below as u64) << 32 | u64::from(tag);
            // As above, for the batch that comes to the top meanwhile.
            match self.0.compare_exchange_weak(old, new, order, seen) {
                // SAFETY: the batch is this caller's now.
                Ok(_) => return Some(unsafe { batch_at(items, head) }),
                Err(now) => old = now,
            }
        }
    }

    /// Takes every batch at once; `each` gets them one by one.
    ///
    /// # Safety
    /// As [`pop`](Self::pop).
    #[cfg(feature = "std")]
    pub unsafe fn take_all(&self, items: Items, mut each: impl FnMut(Batch)) {
        let mut old = self.0.load(Relaxed);
        loop {
            let new = u64::from((old as u32).wrapping_add(1));
            // [OBJ-3] As [OBJ-2], for all of them. Pairs with [OBJ-1].
            #[cfg(not(mutant = "OBJ-3"))]
            let order = AcqRel;
            #[cfg(mutant = "OBJ-3")]
            let order = Relaxed;
            match self.0.compare_exchange_weak(old, new, order, Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        let mut head = (old >> 32) as u32;
        while head != 0 {
            // SAFETY: the whole chain is this caller's now.
            let below = unsafe { items.link(head) }.aux();
            // SAFETY: as above.
            each(unsafe { batch_at(items, head) });
            head = below;
        }
    }
}

/// # Safety
/// `head` must be the head of a batch that the caller owns.
unsafe fn batch_at(items: Items, head: u32) -> Batch {
    if head & TRAY != 0 {
        // SAFETY: the caller's own.
        return Batch::new(head, unsafe { items.tray(head) }.len());
    }
    // SAFETY: the caller's own.
    let second = unsafe { items.link(head) }.next();
    if second == 0 {
        return Batch::new(head, 1);
    }
    // SAFETY: linked from the caller's own.
    Batch::new(head, unsafe { items.link(second) }.aux())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn batches_passed_around_by_four_threads_stay_whole_and_single() {
        const BATCHES: u32 = 64;
        const ROUNDS: u32 = if cfg!(miri) { 50 } else { 100_000 };
        let mut room = vec![0u64; 8 * BATCHES as usize];
        let items = room.as_mut_ptr() as usize;
        let held: Vec<AtomicU32> = (0..=BATCHES * 4).map(|_| AtomicU32::new(0)).collect();
        let stacks = [Stack::new(), Stack::new()];
        let at = || Items(items as *mut u8);
        for b in 0..BATCHES {
            // Batches of one to four objects.
            let (first, len) = (b * 4 + 1, b % 4 + 1);
            for i in 0..len {
                // SAFETY: `room` has 8 words for each batch of at most 4.
                unsafe { at().link(first + i) }.set_next(if i + 1 < len { first + i + 1 } else { 0 });
            }
            // SAFETY: the batch is linked and this test's.
            unsafe { stacks[0].push(at(), Batch::new(first, len)) };
        }
        std::thread::scope(|s| {
            for t in 0..4 {
                let (stacks, held) = (&stacks, &held);
                s.spawn(move || {
                    for n in 0..ROUNDS {
                        let (from, to) = (&stacks[(n + t) as usize % 2], &stacks[(n / 3) as usize % 2]);
                        // SAFETY: both stacks hold batches of `room`.
                        let Some(batch) = (unsafe { from.pop(at()) }) else { continue };
                        assert_eq!(batch.len(), (batch.head() - 1) / 4 % 4 + 1, "length of {batch:?}");
                        assert_eq!(held[batch.head() as usize].swap(t + 1, Relaxed), 0);
                        assert_eq!(held[batch.head() as usize].swap(0, Relaxed), t + 1);
                        // SAFETY: the batch is this thread's.
                        unsafe { to.push(at(), batch) };
                    }
                });
            }
        });
        let (mut batches, mut objects) = (0, 0);
        while let Some(batch) = stacks.iter().find_map(|s| {
            // SAFETY: as above.
            unsafe { s.pop(at()) }
        }) {
            batches += 1;
            objects += batch.len();
        }
        assert_eq!((batches, objects), (BATCHES, BATCHES / 4 * 10));
    }
}
