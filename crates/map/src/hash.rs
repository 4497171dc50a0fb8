//! Values by key: hash, per-CPU hash, LRU hash.
//!
//! For:     counts by key and state of programs.
//! State:   a head, credits for keys, buckets; elements are objects of a cache in the same arena.
//! Context: hit, signal, target; lookup and iteration also in another process, and in one that does not trust the others.
//! Keeps:   H1 a lookup sees a key that is in the map all the time, also while its value is replaced.
//!          H2 a value read is one that was written, whole; of a per-CPU hash, each word of it.
//!          H3 never more keys than the limit; the number is exact.
//!          H5 a look and a walk end after a number of steps that the map's shape bounds, whatever lies there.
//!          H4 who finds a bucket taken, perhaps by the code that it interrupted, gives up with Busy.
//! Checked: tests/semantics.rs, tests/other_process.rs, tests/untrusted.rs, `bench map-perf`, `bench htab-mem`.
//! Source:  kernel `kernel/bpf/hashtab.c` for semantics and error numbers. Departs: lookups need no lock and no
//!          reader to be safe, since elements have versions; the LRU is a second-chance clock.

mod bucket;
#[cfg(all(feature = "std", not(loom)))]
mod build;
mod cached;
mod change;
mod look;
mod sleep;
mod walk;

#[cfg(not(loom))]
pub(crate) use bucket::Bucket;
#[cfg(all(feature = "std", not(loom)))]
pub use build::HashBuilder;
#[cfg(not(loom))]
pub(crate) use sleep::Met;

#[cfg(not(loom))]
use crate::Error;
use crate::credit::Credits;
#[cfg(not(loom))]
use crate::place::Checked;
use crate::place::{ASLEEP, Access, Place, words};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use objcache::{Index, View};
use percpu::RseqOffset;

const HEAD: usize = 128;
const BUCKETS: usize = 0;
const KEY: usize = 4;
const VALUE: usize = 8;
const LIMIT: usize = 12;
const COPIES: usize = 16;
const KIND: usize = 20;
const CACHE: usize = 24;
/// What is counted, [`Entries::counts`].
const COUNTS: usize = 32;
const HAND: usize = 0;
const BUSY: usize = 8;
const EVICTED: usize = 16;

/// An element: next, version, hash, used; then key and value.
/// What compiled programs look at stands in `wire`.
pub(crate) const NEXT: usize = 0;
pub(crate) const SUM: usize = 8;
pub(crate) use wire::maps::element::{DATA, USED, VERSION};

// In a bucket: behind the count of its changes.
use wire::maps::chain::{self, HEAD as HEAD_OF_CHAIN};

/// A chain ends with the number of its bucket, so that who strayed into another one notices.
pub(crate) const END: u32 = 1 << 31;

/// How often a reader or writer looks before it says Busy.
const TRIES: u32 = if cfg!(loom) { 3 } else { 256 };

pub(crate) const PER_CPU: u32 = 1;
pub(crate) const LRU: u32 = 2;
/// Elements go back without a grace period.
pub(crate) const PLAIN: u32 = 4;

/// A key that is removed may leave its element where it is, asleep; whoever takes an element away claims it first.
pub(crate) const SLEEPS: u32 = 8;

/// The elements of the first half stay with the key that had them first, for ever: so the thread whose key it is wakes them and puts
/// them to sleep without a lock. Their values are of one word, which is assigned and never changed in place.
pub(crate) const STAYS: u32 = 16;

/// In the word of use: used since the hand came by, and in the map.
pub(crate) const WAS_USED: u32 = 1;
pub(crate) use wire::maps::element::IS_LIVE;

/// What an update may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Flag {
    /// Make or replace.
    #[default]
    Any,
    /// Make only (BPF_NOEXIST).
    NoExist,
    /// Replace only (BPF_EXIST).
    Exist,
}

/// Writes the head of an empty hash of one bucket and one CPU into a model's memory.
#[cfg(loom)]
pub fn lay_out(base: NonNull<u8>, key: usize, value: usize, limit: u32) {
    // SAFETY: a model's memory.
    let place = unsafe { Place::new(base) };
    let words =
        [(BUCKETS, 1), (KEY, key as u32), (VALUE, value as u32), (LIMIT, limit), (COPIES, 1), (KIND, PLAIN)];
    words.into_iter().for_each(|(at, word)| place.u32(at).store(word, Relaxed));
    place.at(HEAD).u64(0).store(u64::from(limit), Relaxed);
    place.at(HEAD + Credits::size(1)).u32(4).store(END, Relaxed);
}

/// The same of one whose elements may sleep, as a table's do.
#[cfg(loom)]
pub fn lay_out_sleepy(base: NonNull<u8>, key: usize, value: usize, limit: u32) {
    lay_out(base, key, value, limit);
    // SAFETY: a model's memory.
    unsafe { Place::new(base) }.u32(KIND).store(PLAIN | SLEEPS, Relaxed);
}

/// The same of one whose first half of elements stay with their keys.
#[cfg(loom)]
pub fn lay_out_staying(base: NonNull<u8>, key: usize, value: usize, limit: u32) {
    lay_out(base, key, value, limit);
    // SAFETY: a model's memory.
    unsafe { Place::new(base) }.u32(KIND).store(PLAIN | SLEEPS | STAYS, Relaxed);
}

/// What a hash was made for: lengths in bytes, the most keys, CPUs. Whoever looks at one that he does not trust knows it from
/// its maker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    key: u32,
    value: u32,
    limit: u32,
    cpus: u32,
    kind: u32,
}

impl Shape {
    #[inline(always)]
    pub(crate) fn new(key: u32, value: u32, limit: u32, cpus: u32, kind: u32) -> Shape {
        Shape { key, value, limit, cpus, kind }
    }

    /// The words of the head that follow from it.
    fn words(self) -> [(usize, u32); 6] {
        let buckets = self.limit.checked_next_power_of_two().unwrap_or(0);
        let Shape { key, value, limit, cpus, kind } = self;
        [(BUCKETS, buckets), (KEY, key), (VALUE, value), (LIMIT, limit), (COPIES, cpus), (KIND, kind)]
    }

    /// Values per element: 1, or one per CPU.
    fn copies(self) -> u32 {
        if self.kind & PER_CPU != 0 { self.cpus } else { 1 }
    }

    fn value_stride(self) -> usize {
        // Copies of CPUs do not share lines.
        let value = self.value as usize;
        if self.kind & PER_CPU != 0 { value.next_multiple_of(64) } else { words(value) }
    }

    /// The elements of the first so many indexes stay with their keys.
    fn stay(self) -> u32 {
        if self.kind & STAYS != 0 { self.limit / 2 } else { 0 }
    }
}

/// A hash as its readers see it: what is in it can be looked up and walked over, and not changed.
pub struct Entries<M: Access = Place> {
    /// What changers count.
    counts: M,
    /// Where the element of index 1 lies, and how far it is to the next.
    elements: M,
    unit: usize,
    /// The last index.
    last: u32,
    /// Where the value of the element of index 1 lies, how far it is to the next, and to the next copy.
    values: M,
    value_unit: usize,
    copy_stride: usize,
    credits: Credits<M>,
    chains: M,
    mask: u32,
    key: usize,
    value: usize,
    /// Values per element: 1, or one per CPU.
    copies: u32,
    shape: Shape,
}

/// Where a hash's elements come from.
pub(crate) trait Store {
    /// An element that nobody has.
    fn take(&self) -> Option<u32>;

    /// Gives an element back that nobody has seen.
    fn untake(&self, index: u32);

    /// Gives an element back that was in the map.
    fn give(&self, index: u32);

    /// The right to one key more, where elements alone do not give it; false if there is none.
    fn may_add(&self) -> bool;

    /// Gives that right back.
    fn has_removed(&self);

    /// How many elements are asleep.
    fn asleep(&self) -> u64 {
        0
    }

    /// One that was asleep was taken out of its chain.
    fn has_reaped(&self) {}
}

/// A hash with keys and values of fixed lengths.
pub struct Hash {
    entries: Entries,
    view: View<'static>,
    #[cfg(all(feature = "std", not(loom)))]
    home: Option<(objcache::ObjectCache, usize)>,
}

impl Deref for Hash {
    type Target = Entries;

    #[inline(always)]
    fn deref(&self) -> &Entries {
        &self.entries
    }
}

impl Hash {
    /// The map at an offset in an arena mapped at `base`, made by another process.
    ///
    /// # Safety
    /// A map must lie there, and it and its arena must stay while the value is used: its maker must not have dropped it.
    pub unsafe fn attach(base: NonNull<u8>, offset: usize) -> Hash {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(base) }.at(offset);
        // SAFETY: the map's cache lies in the same arena; without rseq any process may use it.
        let view = unsafe { View::at(base, place.u32(CACHE).load(Relaxed) as usize, RseqOffset::NONE) };
        Self::over(place, view)
    }

    /// The map whose head is written.
    fn over(place: Place, view: View<'static>) -> Hash {
        let get = |at| place.u32(at).load(Relaxed);
        let shape =
            Shape { key: get(KEY), value: get(VALUE), limit: get(LIMIT), cpus: get(COPIES), kind: get(KIND) };
        let first = view.payload(FIRST);
        // SAFETY: where the arena's first element would lie, in the arena that is kept or was promised.
        let elements = unsafe { Place::new(first) };
        Hash {
            entries: Entries::over(place, elements, view.last_index(), get(BUCKETS), shape),
            view,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        }
    }
}

/// The first index that there can be.
pub(crate) const FIRST: Index = match Index::from_raw(1) {
    Some(first) => first,
    None => panic!("1 is not 0"),
};

#[cfg(not(loom))]
impl<'a> Entries<Checked<'a>> {
    /// The hash of this shape at an offset in an arena, all of which is `arena`, and which somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there, or its head says something else.
    pub fn in_untrusted(arena: wire::Untrusted<'a>, offset: usize, shape: Shape) -> Result<Self, Error> {
        let words = shape.words();
        let [(_, buckets), ..] = words;
        let bytes = HEAD + Credits::size(shape.cpus) + buckets as usize * chain::UNIT;
        let all = Checked::new(arena, 0, arena.len_bytes()).ok_or(Error::Damaged)?;
        let place = Checked::new(arena, offset, bytes).ok_or(Error::Damaged)?;
        if buckets == 0 || words.iter().any(|(at, word)| place.u32(*at).load(Relaxed) != *word) {
            return Err(Error::Damaged);
        }
        let last = u32::try_from(arena.len_bytes() / 8).unwrap_or(u32::MAX);
        // The element is behind its link.
        Ok(Self::over(place, all.at(2 * size_of::<u64>()), last, buckets, shape))
    }
}

impl<M: Access> Entries<M> {
    fn over(place: M, elements: M, last: u32, buckets: u32, shape: Shape) -> Self {
        Entries {
            counts: place.at(COUNTS),
            elements,
            // As `View::payload`: 8 bytes for each index.
            unit: size_of::<u64>(),
            last,
            values: elements.at(DATA + words(shape.key as usize)),
            value_unit: size_of::<u64>(),
            copy_stride: shape.value_stride(),
            credits: Credits::at(place.at(HEAD), shape.cpus, shape.limit),
            chains: place.at(HEAD + Credits::size(shape.cpus)),
            mask: buckets.wrapping_sub(1),
            key: shape.key as usize,
            value: shape.value as usize,
            copies: shape.copies(),
            shape,
        }
    }

    /// The entries of a table, whose head lies there.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn of_form(form: &crate::Form, head: M, shape: Shape) -> Self {
        Entries {
            counts: head.at(form.counts as usize),
            elements: head.at(form.elements as usize),
            unit: form.unit as usize,
            last: form.limit,
            values: head.at(form.values as usize),
            value_unit: form.value_unit as usize,
            copy_stride: form.copy_stride as usize,
            credits: Credits::at(head.at(form.pool as usize), form.cpus, form.limit),
            chains: head.at(form.chains as usize),
            mask: form.buckets.wrapping_sub(1),
            key: form.key as usize,
            value: form.value as usize,
            copies: shape.copies(),
            shape,
        }
    }

    /// What it was made for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The length of a key in bytes.
    pub fn key_bytes(&self) -> usize {
        self.key
    }

    /// The length of a value in bytes.
    pub fn value_bytes(&self) -> usize {
        self.value
    }

    /// The most keys.
    pub fn limit(&self) -> u32 {
        self.shape.limit
    }

    /// The number of keys; exact while nobody changes the map.
    pub fn len(&self) -> u32 {
        let limit = u64::from(self.limit());
        (limit - self.credits.left().min(limit)) as u32
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls that ended in Busy.
    pub fn busy(&self) -> u64 {
        self.counts.u64(BUSY).load(Relaxed)
    }

    /// Keys that an LRU map has forgotten to make room.
    pub fn evicted(&self) -> u64 {
        self.counts.u64(EVICTED).load(Relaxed)
    }

    /// Whether an element that is a key's is so for ever.
    #[inline(always)]
    pub(crate) fn stays(&self, index: u32) -> bool {
        index <= self.shape.stay()
    }

    /// How many elements lie before that of an index.
    #[inline(always)]
    fn number(&self, index: u32) -> usize {
        // An index that was read from a chain is never 0 and lies below END. A reader that was led astray may read
        // one from what is no element any more: it stays inside the arena, and the second look finds it out.
        // One compare for both: 0 comes round to the highest. What cannot be is the first, which is readable.
        let number = index.wrapping_sub(1);
        if number < self.last { number as usize } else { 0 }
    }

    /// A word of a copy of an element's value, which the caller knows to be there.
    #[inline(always)]
    pub(crate) fn value_word(&self, index: u32, copy: u32, word: usize) -> M {
        self.value_of(index, copy).at(8 * word)
    }

    /// Where the credits, or what a table has in their place, lie.
    #[inline(always)]
    pub(crate) fn credits(&self) -> M {
        self.credits.place()
    }

    /// The link of an element that is no key's: the word of its hash, which no reader follows.
    pub(crate) fn link_of(&self, index: u32) -> M {
        self.element(index).at(SUM)
    }

    /// True of an element of a key.
    pub(crate) fn is_live(&self, index: u32) -> bool {
        let element = self.element(index);
        element.u32(USED).load(Relaxed) & IS_LIVE != 0 && element.u32(VERSION).load(Relaxed) & ASLEEP == 0
    }

    /// True of an element that is being made and was never a key's: its version was 0.
    pub(crate) fn is_first_use(&self, index: u32) -> bool {
        self.element(index).u32(VERSION).load(Relaxed) == 1
    }

    #[inline(always)]
    pub(crate) fn element(&self, index: u32) -> M {
        self.elements.at(self.number(index) * self.unit)
    }

    /// One copy of an element's value.
    #[inline(always)]
    pub(crate) fn value_of(&self, index: u32, copy: u32) -> M {
        self.values.at(self.number(index) * self.value_unit + copy as usize * self.copy_stride)
    }

    /// The copy that the calling thread adds to.
    #[inline(always)]
    fn my_copy(&self) -> u32 {
        if self.copies == 1 { 0 } else { percpu::current_cpu() % self.copies }
    }
}

/// The hash of a key.
#[inline(always)]
fn hash_of(key: &[u8]) -> u32 {
    let (whole, rest) = key.as_chunks::<8>();
    let mut sum = key.len() as u64;
    for word in whole {
        sum = crate::stacks::mix(sum ^ u64::from_ne_bytes(*word));
    }
    if !rest.is_empty() {
        sum = crate::stacks::mix(sum ^ crate::place::padded(rest));
    }
    folded(sum)
}

/// The hash of a key of at most eight bytes, filled up with zeros, which has so many.
#[inline(always)]
pub(crate) fn hash_of_word(word: u64, len: u32) -> u32 {
    folded(crate::stacks::mix(u64::from(len) ^ word))
}

#[inline(always)]
fn folded(sum: u64) -> u32 {
    (sum >> 32) as u32 ^ sum as u32
}
