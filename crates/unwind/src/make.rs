//! From a file's unwind information to a table.
//!
//! For:     the controller, once for each file.
//! State:   rows and rules while they are collected.
//! Context: control.
//! Keeps:   M1 a row says what the file says, or that it is not understood; code of which the file says nothing goes by
//!          the frame pointer if there is much of it, and is not understood if there is little.
//!          M2 the same rule is kept once, and a row only where the rule changes.
//! Checked: tests/tables.rs: every row of several libraries, as gimli evaluates it; tests/steps.

mod go;
mod rows;

use crate::rule::{Kind, Reg, Rule, WORDS};
use crate::tables::{BLOCK_BITS, TABLE_HEAD};
use image::{ElfImage, ImageAddr};
use std::collections::HashMap;
use std::ops::Range;
use std::vec::Vec;

/// Less code without an entry is what starts programs, and assembly, which keep no frame pointer: what is in it is the caller's.
const OTHER_CODE: u64 = 4096;
/// Bytes of code for each frame that is made, if all functions make one.
const BYTES_A_FRAME: u64 = 1024;
/// push rbp; mov rbp, rsp, in both of its forms.
const MADE: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x55, 0x48, 0x8b, 0xec]];
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
    let go = image.go_frames();
    let mut covered = rows::of_eh_frame(image, &mut builder);
    if go.is_empty() && !is_mostly_covered(image, covered.as_deref().unwrap_or_default()) {
        covered = rows::of_debug_frame(image, &mut builder, covered);
    }
    if covered.is_none() && go.is_empty() {
        return None;
    }
    let mut covered = covered.unwrap_or_default();
    builder.end = image.code_ranges().iter().map(|code| code.end.0).max().unwrap_or(0);
    covered.sort_by_key(|range| range.start);
    for gap in gaps(image, &covered) {
        builder.row(gap.start, rule_of_gap(image, &gap));
        // Go's own table knows more of its functions than their first two instructions say.
        match go.is_empty() {
            true => builder.framed(image, &gap),
            false => builder.go(image, &gap, &go),
        }
        // Where a process begins.
        if let Some(entry) = image.entry().filter(|entry| gap.contains(&entry.0)) {
            builder.row(entry.0, Rule::bare(Kind::Outermost));
        }
        builder.stubs(image, &gap);
        builder.signal_returns(image, &gap);
    }
    Some(builder.table())
}

/// Whether there are entries for half of the code or more: then debug information is not looked for.
fn is_mostly_covered(image: &ElfImage, covered: &[Range<u64>]) -> bool {
    let sum = |ranges: &mut dyn Iterator<Item = u64>| ranges.fold(0u64, u64::saturating_add);
    let code = sum(&mut image.code_ranges().iter().map(|code| code.end.0 - code.start.0));
    sum(&mut covered.iter().map(|range| range.end - range.start)) >= code / 2
}

fn rule_of_gap(image: &ElfImage, gap: &Range<u64>) -> Rule {
    let keeps_frames = image.is_go() || makes_frames(image, gap);
    Rule::bare(if keeps_frames { Kind::FramePointer } else { Kind::Unknown })
}

/// Whether the code begins frames so often that its compiler must have been asked for frame pointers: musl's has entries for
/// nothing, and no frame pointers.
fn makes_frames(image: &ElfImage, gap: &Range<u64>) -> bool {
    let len = gap.end - gap.start;
    let Some(code) = image.bytes(ImageAddr(gap.start), len as usize).filter(|_| len >= OTHER_CODE) else {
        return false;
    };
    let made = code.windows(4).filter(|window| MADE.iter().any(|made| window == made)).count();
    made as u64 * BYTES_A_FRAME >= len
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
    /// Where the code ends.
    end: u64,
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

    /// Of these addresses nothing is known, whatever the rows from this one on say.
    fn unknown(&mut self, first: usize, addrs: Range<u64>) {
        let is_behind = |(addr, _): &(u64, u16)| !addrs.contains(addr);
        let rows = self.rows.split_off(first);
        self.rows.extend(rows.into_iter().filter(is_behind));
        self.row(addrs.start, Rule::bare(Kind::Unknown));
    }

    /// Functions that begin by making a frame: what their compiler does not say, their first two instructions do.
    fn framed(&mut self, image: &ElfImage, gap: &Range<u64>) {
        const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        let functions = image.functions();
        let from = functions.partition_point(|f| f.addr.0 < gap.start);
        let here = functions[from..].iter().take_while(|f| f.addr.0 < gap.end);
        for function in here.filter(|f| f.size_bytes > 4) {
            let start = function.addr.0;
            let Some(head) = image.bytes(function.addr, 8) else { continue };
            let skipped = if head.starts_with(&LANDING) { LANDING.len() } else { 0 };
            if !MADE.iter().any(|made| head[skipped..].starts_with(made)) {
                continue;
            }
            let push = start + skipped as u64;
            let mut pushed = Rule::plain(Reg::Rsp, 16);
            pushed.saved[0] = -2;
            self.row(start, Rule::plain(Reg::Rsp, 8));
            self.row(push + 1, pushed);
            self.row(push + 4, Rule::bare(Kind::FramePointer));
            self.end(start + function.size_bytes, gap, image);
        }
    }

    /// What was known of a gap ends here, unless the gap does: behind it an entry says more.
    fn end(&mut self, addr: u64, gap: &Range<u64>, image: &ElfImage) {
        if addr < gap.end {
            self.row(addr, rule_of_gap(image, gap));
        }
    }

    /// Stubs through which other images are called do nothing but jump: linkers that write no entries for them exist.
    fn stubs(&mut self, image: &ElfImage, gap: &Range<u64>) {
        for plt in image.plt_ranges() {
            let (start, end) = (plt.start.0.max(gap.start), plt.end.0.min(gap.end));
            if start < end {
                self.row(start, Rule::plain(Reg::Rsp, 8));
                self.end(end, gap, image);
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
                self.end(start + code.len() as u64, gap, image);
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
        lay_out(&rows, &self.rules, self.end)
    }
}

/// Blocks, rows and rules one behind the other.
fn lay_out(rows: &[(u64, u16)], rules: &[Rule], end: u64) -> Table {
    let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) else { return Table::default() };
    let (first, last) = (first >> BLOCK_BITS, end.saturating_sub(1).max(*last) >> BLOCK_BITS);
    // How many rows lie before each block.
    let mut blocks = Vec::with_capacity((last - first) as usize + 2);
    for (n, (addr, _)) in rows.iter().enumerate() {
        let block = (addr >> BLOCK_BITS) - first;
        while blocks.len() as u64 <= block {
            blocks.push(n as u32);
        }
    }
    blocks.resize((last - first) as usize + 2, rows.len() as u32);
    let packed = rows
        .iter()
        .map(|(addr, rule)| *addr as u32 & ((1 << BLOCK_BITS) - 1) | u32::from(*rule) << BLOCK_BITS);
    let rows_at = TABLE_HEAD + blocks.len();
    let rules_at = rows_at + rows.len();
    let mut words = Vec::with_capacity(rules_at + rules.len() * WORDS);
    words.extend([first as u32, (last - first + 1) as u32, rows_at as u32, rules_at as u32]);
    words.extend(blocks);
    words.extend(packed);
    words.extend(rules.iter().flat_map(Rule::words));
    Table { words, rows: rows.len(), rules: rules.len() }
}
