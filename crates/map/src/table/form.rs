//! What a table is, and where its parts lie.
//!
//! For:     `Table`; whoever lays tables out.
//! State:   a value of its maker's. A copy stands in front of the table: for programs, and for nobody else.
//! Context: made in control; read in a hit.
//! Keeps:   F1 parts lie in order behind the form, aligned, and do not overlap.
//! Checked: tests/programs/table.rs.

use crate::aggregate::Agg;
use crate::hash::{Entries, Shape};
use crate::place::Access;
#[cfg(feature = "std")]
use {
    crate::credit::Credits,
    crate::hash::{END, LRU, PER_CPU, PLAIN, SLEEPS, STAYS},
    crate::place::words,
    crate::prim::Relaxed,
    wire::maps::{NearAdd, NearTable, NearValue, chain},
};

/// An element's head: next, version, hash, use.
#[cfg(feature = "std")]
const ELEMENT: usize = 16;
/// Of longer keys none is looked for by programs themselves, bytes: they are compared word by word, in code of their own.
#[cfg(feature = "std")]
const KEY_NEAR_MAX: u32 = 64;
/// Between what different CPUs write.
#[cfg(feature = "std")]
const LINES: usize = 128;
/// Copies begin on pages of their own.
#[cfg(feature = "std")]
const PAGE: usize = 4096;
/// A table has no more bytes.
#[cfg(feature = "std")]
const MOST: usize = 1 << 34;

/// How a table keeps its elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One value a key.
    Hash,
    /// The same, of keys that are numbers of threads, each of which sets and removes its own alone, from hits, and never changes a
    /// value where it lies. Of values of one word a key comes and goes by stores without a lock, in an element that stays its own.
    /// There is room for twice as many keys then, and always for as many as were asked for.
    OwnHash,
    /// The same; keys that were not used lately are forgotten to make room.
    LruHash,
    /// A value a key and CPU.
    PercpuHash,
    /// Both.
    PercpuLruHash,
}

/// What a table is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// How it keeps its elements. Aggregates have words for each CPU in any case.
    pub kind: Kind,
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a plain value.
    pub value: usize,
    /// The most keys.
    pub limit: usize,
    /// What is aggregated, if it is no table of plain values.
    pub agg: Option<Agg>,
}

/// Where a table's parts lie, in bytes from the form, and how its elements are cut.
#[repr(C, align(128))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    pub(crate) key: u32,
    pub(crate) value: u32,
    pub(crate) limit: u32,
    pub(crate) cpus: u32,
    pub(crate) kind: u32,
    pub(crate) buckets: u32,
    /// From one element to the next.
    pub(crate) unit: u32,
    pub(crate) value_unit: u32,
    pub(crate) copy_stride: u64,
    pub(crate) counts: u64,
    pub(crate) pool: u64,
    pub(crate) chains: u64,
    pub(crate) elements: u64,
    pub(crate) values: u64,
    pub(crate) agg: [u64; 4],
    /// The elements of the first so many indexes stay with their keys.
    pub(crate) stay: u64,
}

#[cfg(feature = "std")]
impl Form {
    /// The form of a table for so many CPUs; `None` if it would be too large.
    pub fn new(spec: &Spec, cpus: u32) -> Option<Form> {
        let value = spec.agg.map_or(spec.value.max(1), |agg| agg.words().saturating_mul(8));
        let stays = spec.kind == Kind::OwnHash && spec.agg.is_none() && matches!(value, 4 | 8);
        // Those that stay may all be asleep.
        let limit = spec.limit.checked_mul(if stays { 2 } else { 1 })?;
        let limit = u32::try_from(limit).ok().filter(|limit| (1..1 << 30).contains(limit))?;
        if spec.key == 0 || spec.key > 1 << 20 || value > 1 << 30 || cpus > 1 << 16 {
            return None;
        }
        let (is_lru, is_per_cpu) = match spec.kind {
            Kind::Hash | Kind::OwnHash => (false, false),
            Kind::LruHash => (true, false),
            Kind::PercpuHash => (false, true),
            Kind::PercpuLruHash => (true, true),
        };
        let is_apart = is_per_cpu || spec.agg.is_some();
        let bit = |is: bool, bit| if is { bit } else { 0 };
        let buckets = limit.checked_next_power_of_two()?;
        let own = ELEMENT + words(spec.key) + if is_apart { 0 } else { words(value) };
        // Small elements do not lie across two lines.
        let unit = if own <= 64 { own.next_power_of_two() } else { own.next_multiple_of(64) };
        let value_unit = if is_apart { words(value) } else { unit };
        let counts = size_of::<Form>();
        let pool = counts + LINES;
        let chains = pool + Credits::<crate::place::Place>::size(cpus);
        let copy_stride =
            if is_apart { value_unit.checked_mul(limit as usize)?.next_multiple_of(PAGE) } else { 0 };
        let form = Form {
            key: spec.key as u32,
            value: value as u32,
            limit,
            cpus,
            kind: bit(is_lru, LRU) | bit(is_apart, PER_CPU) | bit(stays, STAYS) | PLAIN | SLEEPS,
            buckets,
            unit: u32::try_from(unit).ok()?,
            value_unit: u32::try_from(value_unit).ok()?,
            copy_stride: copy_stride as u64,
            counts: counts as u64,
            pool: pool as u64,
            chains: chains as u64,
            elements: 0,
            values: 0,
            agg: spec.agg.map_or([0; 4], Agg::to_words),
            stay: if stays { u64::from(limit / 2) } else { 0 },
        };
        let copies = copy_stride.checked_mul(cpus as usize + 1)?;
        let len = copies.checked_add(limit as usize * unit)?.checked_add(form.front_len())?;
        (len <= MOST).then_some(form)
    }

    /// Bytes of what no program changes by its address: form, counts, pool, chains.
    pub fn front_len(&self) -> usize {
        (self.chains as usize + self.buckets as usize * chain::UNIT).next_multiple_of(LINES)
    }

    /// Bytes of elements and values.
    pub fn data_len(&self) -> usize {
        let elements = (self.limit as usize * self.unit as usize).next_multiple_of(PAGE);
        elements + if self.is_per_cpu() { (self.cpus as usize + 1) * self.copy_stride as usize } else { 0 }
    }

    /// Says where elements and values lie, in bytes from the form.
    pub fn place(&mut self, data: usize) {
        let elements = (self.limit as usize * self.unit as usize).next_multiple_of(PAGE);
        let within = if self.is_per_cpu() { elements } else { ELEMENT + words(self.key as usize) };
        (self.elements, self.values) = (data as u64, (data + within) as u64);
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes from the form to the end of its values, what lies between them included.
    pub fn len(&self) -> usize {
        self.elements as usize + self.data_len()
    }

    /// The form as it stands in memory.
    fn as_words(&self) -> [u64; size_of::<Form>() / 8] {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [a, b, c, d] = self.agg;
        [
            two(self.key, self.value),
            two(self.limit, self.cpus),
            two(self.kind, self.buckets),
            two(self.unit, self.value_unit),
            self.copy_stride,
            self.counts,
            self.pool,
            self.chains,
            self.elements,
            self.values,
            a,
            b,
            c,
            d,
            self.stay,
            0,
        ]
    }

    /// Makes the table in memory that is zeros.
    pub(crate) fn lay_out(&self, memory: wire::Untrusted<'_>, offset: usize) -> Result<(), crate::Error> {
        let head = crate::Checked::new(memory, offset, self.len()).ok_or(crate::Error::Damaged)?;
        let words = self.as_words();
        words.into_iter().enumerate().for_each(|(n, word)| head.u64(8 * n).store(word, Relaxed));
        let chains = head.at(self.chains as usize);
        (0..self.buckets)
            .for_each(|b| chains.u32(b as usize * chain::UNIT + chain::HEAD).store(END | b, Relaxed));
        head.u64(self.pool as usize).store(u64::from(self.limit), Relaxed);
        Ok(())
    }
}

#[cfg(feature = "std")]
impl Form {
    /// What compiled code has to know to look for a key where its thread found one, of a table so far from the arena's beginning;
    /// `None` if such a look would not do.
    ///
    /// `near` is the thread's word, as [`NearTable::near`] says.
    pub fn near(&self, at: usize, near: u32) -> Option<NearTable> {
        let from = |part: usize| u32::try_from(at + part).ok().filter(|at| i32::try_from(*at).is_ok());
        let is_word = |len: u32| matches!(len, 4 | 8);
        let is_short = self.key == 4 || self.key.is_multiple_of(8) && self.key <= KEY_NEAR_MAX;
        // Who forgets keys wants to know which were used.
        if !is_short || self.kind & LRU != 0 {
            return None;
        }
        let value = match self.agg() {
            None if self.is_per_cpu() => return None,
            None => NearValue::Plain {
                at: (self.values - self.elements) as u32,
                word: Some(self.value).filter(|len| is_word(*len)),
            },
            Some(agg) => NearValue::Aggregate {
                at: from(self.values as usize + self.copy_stride as usize)?,
                unit: self.value_unit,
                stride: self.copy_stride,
                cpus: self.cpus,
                how: match agg {
                    Agg::Count => NearAdd::Count,
                    Agg::Sum { .. } => NearAdd::Sum,
                    Agg::Hist { bits } => NearAdd::Hist { bits, words: self.value / 8 },
                    _ => return None,
                },
            },
        };
        Some(NearTable {
            near,
            chains: from(self.chains as usize)?,
            buckets: self.buckets,
            elements: from(self.elements as usize)?,
            unit: self.unit,
            limit: self.limit,
            stay: u32::try_from(self.stay).ok()?,
            key_len: self.key,
            value,
        })
    }
}

impl Form {
    /// What it aggregates.
    pub fn agg(&self) -> Option<Agg> {
        Agg::from_words(self.agg)
    }

    /// Values lie apart, one for each CPU.
    #[inline(always)]
    pub(crate) fn is_per_cpu(&self) -> bool {
        self.copy_stride != 0
    }

    #[inline(always)]
    pub(crate) fn entries<M: Access>(&self, head: M) -> Entries<M> {
        let shape = Shape::new(self.key, self.value, self.limit, self.cpus, self.kind);
        Entries::of_form(self, head, shape)
    }
}
