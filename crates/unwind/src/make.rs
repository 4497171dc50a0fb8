//! From a file's unwind information to a table.
//!
//! For:     the controller, once for each file.
//! State:   rows and rules while they are collected.
//! Context: control.
//! Keeps:   M1 a row says what the file says, or that it is not understood; code of which the file says nothing goes by
//!          the frame pointer if there is much of it, and is not understood if there is little.
//!          M2 the same rule is kept once, and a row only where the rule changes or 64 KiB begin.
//! Checked: tests/tables.rs: every row of several libraries, as gimli evaluates it; tests/steps.rs.

mod rows;

use crate::rule::{Kind, Reg, Rule, WORDS};
use crate::tables::{PAGE_BITS, TABLE_HEAD};
use image::{ElfImage, ImageAddr};
use std::collections::HashMap;
use std::ops::Range;
use std::vec::Vec;

/// So much code without an entry in a file that has some is that of a compiler which writes none, and may keep frame pointers;
/// less is what starts programs, and assembly, which keep none: the frame pointer there is the caller's.
const OTHER_CODE: u64 = 4096;
/// A row's number of its rule has as many bits.
const RULES_MAX: usize = 1 << 16;

/// A table, ready to be put into an area.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(crate) words: Vec<u32>,
    /// Rows and different rules in it.
    pub rows: usize,
    /// Different rules.
    pub rules: usize,
}

impl Table {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.words.len() * size_of::<u32>()
    }
}

/// The table of an image; `None` if the image says nothing of its frames.
pub fn make(image: &ElfImage) -> Option<Table> {
    let mut builder = Builder::default();
    let mut covered = rows::of_eh_frame(image, &mut builder)?;
    covered.sort_by_key(|range| range.start);
    for gap in gaps(image, &covered) {
        let is_known = image.is_go() || gap.end - gap.start >= OTHER_CODE;
        let rule = Rule::bare(if is_known { Kind::FramePointer } else { Kind::Unknown });
        builder.row(gap.start, rule);
        // Where a process begins.
        if let Some(entry) = image.entry().filter(|entry| gap.contains(&entry.0)) {
            builder.row(entry.0, Rule::bare(Kind::Outermost));
        }
        builder.stubs(image, &gap);
        builder.signal_returns(image, &gap);
    }
    Some(builder.table())
}

/// The parts of the code that no entry covers.
fn gaps(image: &ElfImage, covered: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    for code in image.code_ranges() {
        let (mut at, end) = (code.start.0, code.end.0);
        for range in covered.iter().filter(|r| r.end > code.start.0 && r.start < end) {
            if range.start > at {
                gaps.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < end {
            gaps.push(at..end);
        }
    }
    gaps
}

#[derive(Default)]
struct Builder {
    /// Address and rule; a later one at the same address wins.
    rows: Vec<(u64, u16)>,
    rules: Vec<Rule>,
    known: HashMap<Rule, u16>,
}

impl Builder {
    fn row(&mut self, addr: u64, rule: Rule) {
        let number = match self.known.get(&rule) {
            Some(number) => *number,
            None if self.rules.len() == RULES_MAX => return self.row(addr, self.rules[0]),
            None => {
                let number = self.rules.len() as u16;
                self.rules.push(rule);
                self.known.insert(rule, number);
                number
            }
        };
        self.rows.push((addr, number));
    }

    /// Stubs through which other images are called do nothing but jump: linkers that write no entries for them exist.
    fn stubs(&mut self, image: &ElfImage, gap: &Range<u64>) {
        for plt in image.plt_ranges() {
            let (start, end) = (plt.start.0.max(gap.start), plt.end.0.min(gap.end));
            if start < end {
                self.row(start, Rule::plain(Reg::Rsp, 8));
                self.row(end, Rule::bare(Kind::Unknown));
            }
        }
    }

    /// Where signal handlers return to, in libraries that have no entry for it: known by its two instructions, as
    /// debuggers know it.
    fn signal_returns(&mut self, image: &ElfImage, gap: &Range<u64>) {
        const RETURNS: [&[u8]; 2] =
            [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]];
        let Some(bytes) = image.bytes(ImageAddr(gap.start), (gap.end - gap.start) as usize) else { return };
        for code in RETURNS {
            let found = bytes.windows(code.len()).enumerate().filter(|(_, window)| *window == code);
            for (at, _) in found {
                let start = gap.start + at as u64;
                // A return address is looked up one byte before.
                self.row(start - 1, Rule::bare(Kind::Signal));
                self.row(start + code.len() as u64, Rule::bare(Kind::Unknown));
            }
        }
    }

    fn table(mut self) -> Table {
        // Stable: of several at one address the last one that was made stands.
        self.rows.sort_by_key(|(addr, _)| *addr);
        let mut rows: Vec<(u64, u16)> = Vec::with_capacity(self.rows.len());
        for (addr, rule) in self.rows {
            if rows.last().is_some_and(|(at, _)| *at == addr) {
                rows.pop();
            }
            if rows.last().is_none_or(|(_, before)| *before != rule) {
                rows.push((addr, rule));
            }
        }
        lay_out(&rows, &self.rules)
    }
}

/// Pages, rows and rules one behind the other; each page begins with a row.
fn lay_out(rows: &[(u64, u16)], rules: &[Rule]) -> Table {
    let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) else { return Table::default() };
    let (first_page, last_page) = (first >> PAGE_BITS, last >> PAGE_BITS);
    let mut pages = Vec::new();
    let mut packed: Vec<u32> = Vec::with_capacity(rows.len());
    let mut rest = rows.iter().peekable();
    let mut rule = rows[0].1;
    for page in first_page..=last_page {
        pages.push(packed.len() as u32);
        let here = rest.peek().filter(|(addr, _)| *addr == page << PAGE_BITS);
        if here.is_none() {
            packed.push(u32::from(rule) << PAGE_BITS);
        }
        while let Some((addr, next)) = rest.next_if(|(addr, _)| addr >> PAGE_BITS == page) {
            rule = *next;
            packed.push(*addr as u32 & ((1 << PAGE_BITS) - 1) | u32::from(rule) << PAGE_BITS);
        }
    }
    pages.push(packed.len() as u32);
    let rows_at = TABLE_HEAD + pages.len();
    let rules_at = rows_at + packed.len();
    let mut words = Vec::with_capacity(rules_at + rules.len() * WORDS);
    words.extend([first_page as u32, (last_page - first_page + 1) as u32, rows_at as u32, rules_at as u32]);
    words.extend(pages);
    words.extend(&packed);
    words.extend(rules.iter().flat_map(Rule::words));
    Table { words, rows: packed.len(), rules: rules.len() }
}
