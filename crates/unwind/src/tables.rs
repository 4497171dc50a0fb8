//! Tables as a walk reads them: of all modules of a process, in one area of words.
//!
//! For:     the walker, in the traced process.
//! State:   an area that the controller writes: a head, tables, and an index of the modules that have one. What was
//!          published there is never changed; a new index takes the place of the old one by one store.
//! Context: hit, signal; any process that maps the area.
//! Keeps:   T1 nothing outside of the area is read, whatever stands in it: each place is asked for.
//!          T2 the rule of an address is that of the last row at or before it.
//! Checked: tests/tables.rs (T2, every row of several libraries, and T1 with any words).
//!
//! Layout, in words of 32 bits. Head: the index's place. Index: how many modules, and of each its range (two words each for start
//! and end), what to subtract (two words), its table's place. Table: number of the first block of 512 bytes of code, how many there
//! are, where rows and rules lie from the table's start; then how many rows lie before each block, and how many there are; rows:
//! address within the block below, rule above; rules.
//!
//! Blocks are small so that a look-up ends after three or four steps: it is done for each frame, and each step waits for
//! the one before.

use crate::rule::{Kind, Reg, Rule, WORDS};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// Words before the first table.
pub const HEAD_WORDS: usize = 16;
/// In the head: the index's place, 0 for none.
pub(crate) const INDEX: usize = 0;
/// Words of a module in the index.
pub(crate) const ENTRY: usize = 8;
/// Words of a table before its blocks.
pub(crate) const TABLE_HEAD: usize = 4;
/// Bits of an address that a row has.
pub(crate) const BLOCK_BITS: u32 = 9;

/// The tables of a process as they are at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    area: &'a [AtomicU32],
    index: usize,
    modules: usize,
}

/// How the frame of an address is left, so that it need not be looked up again: the place of its rule in the area, or what almost all
/// rules of code with frame pointers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way(pub u32);

impl Way {
    const FIRST: Way = Way(u32::MAX - 2);
    /// By the frame pointer, as the table says.
    pub(crate) const FRAMED: Way = Way::FIRST;
    /// By the frame pointer, since the table says nothing.
    pub(crate) const BARE: Way = Way(u32::MAX - 1);
    /// The same; there is no table.
    pub(crate) const NO_TABLE: Way = Way(u32::MAX);

    /// One of these three.
    #[inline(always)]
    pub(crate) fn is_framed(self) -> bool {
        self.0 >= Way::FIRST.0
    }
}

/// Code that has made a frame, and saved nothing else.
const FRAMED: Rule = {
    let mut rule = Rule::plain(Reg::Rbp, 16);
    rule.saved[0] = -2;
    rule
};

/// One module of the index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Module {
    start: u64,
    end: u64,
    bias: u64,
    table: usize,
}

impl<'a> Tables<'a> {
    /// The tables in an area.
    #[inline(always)]
    pub fn of(area: &'a [AtomicU32]) -> Tables<'a> {
        // [UNWIND-1] Sees the index and the tables that were written before it was named. Pairs with [UNWIND-2].
        let index = area.get(INDEX).map_or(0, |word| word.load(Acquire)) as usize;
        let modules = match index {
            0 => 0,
            at => area.get(at).map_or(0, |word| word.load(Relaxed)) as usize,
        };
        Tables { area, index: index + 1, modules }
    }

    /// Which tables these are: others have another number, as long as the area is.
    #[inline(always)]
    pub fn generation(&self) -> u32 {
        self.index as u32
    }

    /// How many modules have a table.
    pub fn modules(&self) -> usize {
        self.modules
    }

    #[inline(always)]
    fn word(&self, at: usize) -> Option<u32> {
        Some(self.area.get(at)?.load(Relaxed))
    }

    #[inline(always)]
    fn long(&self, at: usize) -> Option<u64> {
        Some(u64::from(self.word(at)?) | u64::from(self.word(at + 1)?) << 32)
    }

    /// The module that an address lies in.
    #[inline(always)]
    pub(crate) fn module(&self, pc: u64) -> Option<Module> {
        let (mut low, mut high) = (0, self.modules);
        while low < high {
            let middle = (low + high) / 2;
            match self.long(self.index + middle * ENTRY)? <= pc {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let at = self.index + low.checked_sub(1)? * ENTRY;
        let (start, end, bias) = (self.long(at)?, self.long(at + 2)?, self.long(at + 4)?);
        let table = self.word(at + 6)? as usize;
        (pc < end).then_some(Module { start, end, bias, table })
    }

    /// How the frame of an address is left. `last` is the module of the address before.
    #[inline(never)]
    pub(crate) fn way(&self, pc: u64, last: &mut Module) -> Way {
        let Some(place) = self.place(pc, last) else { return Way::NO_TABLE };
        match self.rule(place) {
            None => Way::NO_TABLE,
            Some(rule) if rule.kind() == Kind::FramePointer => Way::BARE,
            Some(rule) if rule == FRAMED => Way::FRAMED,
            Some(_) => {
                u32::try_from(place).ok().filter(|place| *place < Way::FIRST.0).map_or(Way::NO_TABLE, Way)
            }
        }
    }

    /// The rule that a way leads to.
    #[inline(always)]
    pub(crate) fn rule_of(&self, way: Way) -> Option<Rule> {
        self.rule(way.0 as usize)
    }

    /// Where the rule of an address is; `None` where no module with a table is.
    #[inline(always)]
    fn place(&self, pc: u64, last: &mut Module) -> Option<usize> {
        if pc < last.start || pc >= last.end {
            *last = self.module(pc)?;
        }
        let (table, addr) = (last.table, pc.wrapping_sub(last.bias));
        let block = (addr >> BLOCK_BITS).checked_sub(self.word(table)?.into())? as usize;
        if block >= self.word(table + 1)? as usize {
            return None;
        }
        let rows = table + self.word(table + 2)? as usize;
        let first = self.word(table + TABLE_HEAD + block)? as usize;
        let (mut low, mut high) = (first, self.word(table + TABLE_HEAD + block + 1)? as usize);
        let wanted = addr as u32 & ((1 << BLOCK_BITS) - 1);
        while low < high {
            let middle = (low + high) / 2;
            match self.word(rows + middle)? & ((1 << BLOCK_BITS) - 1) <= wanted {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let row = self.word(rows + low.checked_sub(1)?)?;
        Some(table + self.word(table + 3)? as usize + (row >> BLOCK_BITS) as usize * WORDS)
    }

    #[inline(always)]
    fn rule(&self, rule: usize) -> Option<Rule> {
        let words: &[AtomicU32; WORDS] = self.area.get(rule..)?.first_chunk()?;
        let [a, b, c, d, e] = words;
        Some(Rule::from_words([
            a.load(Relaxed),
            b.load(Relaxed),
            c.load(Relaxed),
            d.load(Relaxed),
            e.load(Relaxed),
        ]))
    }
}
