//! The elements that nobody has.
//!
//! For:     `Table`.
//! State:   how many were never used; for each CPU how many it has, and a stack of them: a turn and the first, linked by the word
//!          that holds a hash in an element of a key. Beside them how many are asleep in their chains, which nobody has either.
//! Context: hit, signal, target, control. Lock-free: who is interrupted holds up nobody.
//! Keeps:   O1 an element is taken by one. O2 all that are left are found, also those of other CPUs.
//! Checked: tests/programs/table.rs (threads that take and give all the time, and handlers that interrupt them); tests/programs/hostile.rs.

use crate::hash::{Entries, Store};
use crate::place::Access;
use crate::prim::{AcqRel, Acquire, AtomicU64, Relaxed, Release};
use crate::way::Way;

/// Bytes of a CPU's line, as `Credits` has them.
const LINE: usize = 128;
const HEAD: usize = 8;
/// How many are asleep: on each CPU's line what its threads put to sleep less what they woke, on the first line what others did.
const ASLEEP: usize = 16;
const TRIES: u32 = 256;

pub(super) struct Pool<M> {
    pub place: M,
    pub cpus: u32,
    pub limit: u32,
}

/// A pool as a thread of a CPU uses it.
pub(super) struct Own<'a, M: Access> {
    pool: &'a Pool<M>,
    entries: &'a Entries<M>,
    cpu: u32,
}

impl<M: Access> Pool<M> {
    pub fn of<'a>(&'a self, entries: &'a Entries<M>, cpu: u32) -> Own<'a, M> {
        Own { pool: self, entries, cpu: if cpu < self.cpus { cpu } else { 0 } }
    }

    /// How many elements were used so far: those of the first indexes.
    pub fn used(&self) -> u32 {
        let limit = u64::from(self.limit);
        (limit - self.place.u64(0).load(Relaxed).min(limit)) as u32
    }

    /// True while more than half of the elements were never used: then there is room for some that are asleep.
    pub fn has_room(&self) -> bool {
        self.place.u64(0).load(Relaxed) > u64::from(self.limit) / 2
    }

    /// Counts one that went to sleep, or woke (`u64::MAX`).
    #[inline(always)]
    pub fn count_asleep(&self, n: u64, way: impl Way) {
        let cpu = way.cpu();
        let is_done = cpu < self.cpus && way.add(cpu, self.line(cpu).u64(ASLEEP), n);
        if !is_done {
            self.place.u64(ASLEEP).fetch_add(n, Relaxed);
        }
    }

    /// How many are asleep; exact while nobody changes the table.
    pub fn asleep(&self) -> u64 {
        let own = |cpu| self.line(cpu).u64(ASLEEP).load(Relaxed);
        let sum =
            (0..self.cpus).fold(self.place.u64(ASLEEP).load(Relaxed), |sum, cpu| sum.wrapping_add(own(cpu)));
        // Who wakes one may have counted before who put it to sleep.
        if sum > u64::from(self.limit) { 0 } else { sum }
    }

    fn line(&self, cpu: u32) -> M {
        self.place.at(LINE * (1 + cpu as usize))
    }
}

impl<M: Access> Own<'_, M> {
    /// An element that was never used.
    fn fresh(&self) -> Option<u32> {
        let unused = self.pool.place.u64(0);
        let mut left = unused.load(Relaxed);
        for _ in 0..TRIES {
            if left == 0 || left > u64::from(self.pool.limit) {
                return None;
            }
            match unused.compare_exchange_weak(left, left - 1, Relaxed, Relaxed) {
                Ok(_) => return Some(self.pool.limit - left as u32 + 1),
                Err(now) => left = now,
            }
        }
        None
    }

    fn pop(&self, cpu: u32) -> Option<u32> {
        let line = self.pool.line(cpu);
        let stack: &AtomicU64 = line.u64(HEAD);
        // [MAP-40] Sees the link that the giver wrote. Pairs with [MAP-41].
        let mut head = stack.load(Acquire);
        for _ in 0..TRIES {
            let index = head as u32;
            if index == 0 || index > self.pool.limit {
                return None;
            }
            let next = self.entries.link_of(index).u32(0).load(Relaxed);
            let new = turned(head, next);
            match stack.compare_exchange_weak(head, new, AcqRel, Acquire) {
                Ok(_) => {
                    line.u64(0).fetch_sub(1, Relaxed);
                    return Some(index);
                }
                Err(now) => head = now,
            }
        }
        None
    }

    fn push(&self, cpu: u32, index: u32) -> bool {
        let line = self.pool.line(cpu);
        let stack: &AtomicU64 = line.u64(HEAD);
        let mut head = stack.load(Relaxed);
        for _ in 0..TRIES {
            self.entries.link_of(index).u32(0).store(head as u32, Relaxed);
            // [MAP-41] The link comes before the element. Pairs with [MAP-40].
            match stack.compare_exchange_weak(head, turned(head, index), Release, Relaxed) {
                Ok(_) => {
                    line.u64(0).fetch_add(1, Relaxed);
                    return true;
                }
                Err(now) => head = now,
            }
        }
        false
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let (own, cpus) = (self.cpu, self.pool.cpus);
        (1..cpus).map(move |n| {
            let cpu = own + n;
            if cpu < cpus { cpu } else { cpu - cpus }
        })
    }
}

/// The next turn of a stack: who has looked before notices.
fn turned(head: u64, index: u32) -> u64 {
    (head >> 32).wrapping_add(1) << 32 | u64::from(index)
}

impl<M: Access> Store for Own<'_, M> {
    fn take(&self) -> Option<u32> {
        self.pop(self.cpu).or_else(|| self.fresh()).or_else(|| self.others().find_map(|cpu| self.pop(cpu)))
    }

    fn untake(&self, index: u32) {
        self.give(index);
    }

    fn give(&self, index: u32) {
        // One that no stack takes in so many tries is lost to the table.
        let _ = self.push(self.cpu, index) || self.others().any(|cpu| self.push(cpu, index));
    }

    fn may_add(&self) -> bool {
        true
    }

    fn has_removed(&self) {}

    fn asleep(&self) -> u64 {
        self.pool.asleep()
    }

    fn has_reaped(&self) {
        self.pool.place.u64(ASLEEP).fetch_sub(1, Relaxed);
    }
}
