//! Where control can come from: every address that the code of one file is known to jump to or point at.
//!
//! For:     the ladder, which covers no byte that something may jump to.
//! State:   one bit for each byte of code, and the sorted function starts. Built once for a file, then read only.
//! Context: control. Cost: one linear decode of all code; the bits are 1/8 of the code's size.
//! Keeps:   G1 in the set: the targets of all direct branches, the given indirect targets, all function starts,
//!          the entries of all jump tables that the table reader finds, and all code that is referred to relative
//!          to rip.
//!          G2 a jump to a sum that is not understood makes its function vague: any instruction in it counts as a target.
//!          G3 not in the set, and the risk that remains: the rest of a table into whose middle other code points.
//! Checked: flow tests; tests/real; tests/computed.rs.

use std::cell::RefCell;
use std::ops::Range;

use crate::arch::native::{self, Met, RegSet};
use crate::code::{Code, Insn};
use crate::entries::Entries;
use crate::padding::{self, Gaps};
use crate::reason::{Reason, Refusal, Rung};
use crate::tables::{Functions, Table, Tables, Vague};
use crate::targets::Targets;

/// Functions longer than this are taken for a stretch in which functions are not known.
const LONG_FUNCTION_BYTES: u64 = 1 << 20;
/// How far from an address the places that are called are looked for.
const CALLED_REACH: u64 = 1 << 16;

/// What refers to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A direct branch or call.
    Branch {
        /// The instruction.
        at: u64,
    },
    /// An instruction that forms or reads the address relative to rip.
    Reference {
        /// The instruction.
        at: u64,
    },
}

/// All that is known about who goes where in one file.
#[derive(Debug)]
pub struct Flow {
    targets: Targets,
    entries: Entries,
    /// Those that are called.
    calls: Targets,
    starts: Vec<u64>,
    /// Where jumps lead that are not understood, sorted and apart.
    vague: Vec<Vague>,
    /// Padding of the functions that were asked about.
    pub(crate) gaps: RefCell<Gaps>,
    /// Where `targets` is complete; everywhere when there is none.
    analysed: Option<Vec<Range<u64>>>,
    /// If it has threads of its own making that it parks.
    parked: Option<Parked>,
    /// Set of A64 code, where one instruction is a whole patch and few of these questions arise: whether branches by register
    /// may land on landing pads only.
    pub(crate) a64: Option<Guarded>,
}

/// Of A64 code: branches by register may land on landing pads only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guarded(pub bool);

/// What is known of threads that nobody sees.
#[derive(Debug)]
struct Parked {
    /// Where none of them is ever parked.
    unsafe_points: Vec<Range<u64>>,
    /// The registers by which memory is accessed without a fault.
    good: RegSet,
}

impl Flow {
    /// Reads all `code` once and returns what it jumps to.
    ///
    /// `function_starts` is sorted. `indirect_targets` are the code addresses that the file keeps in data
    /// (relocations, landing pads). `table_reader` is called once with each [`Table`] that there may be outside code,
    /// and returns the code addresses that it holds, in table order, or none; what lies behind the start of the next
    /// table and what is outside code is ignored. It is asked about position-independent tables (32-bit offsets from the
    /// table or from a label, formed by `lea`) and absolute ones (64-bit, the base of a scaled load or jump), and is not
    /// told which.
    ///
    /// # Cost
    /// 16 to 20 ns an instruction (2026-11, AMD EPYC): `cargo test --release -p nanoprobe-insn --test real -- --ignored
    /// --nocapture speed`.
    pub fn analyse(
        code: &[Code<'_>],
        function_starts: &[u64],
        indirect_targets: &[u64],
        table_reader: &dyn Fn(&Table) -> Vec<u64>,
    ) -> Flow {
        let read = Flow::analyse_while(code, function_starts, indirect_targets, table_reader, &|_| true);
        read.unwrap_or_else(|| unreachable!("nobody says no"))
    }

    /// The same, as long as `go_on` says so, which is asked for each part with its length in bytes; else `None`.
    pub fn analyse_while(
        code: &[Code<'_>],
        function_starts: &[u64],
        indirect_targets: &[u64],
        table_reader: &dyn Fn(&Table) -> Vec<u64>,
        go_on: &dyn Fn(u64) -> bool,
    ) -> Option<Flow> {
        debug_assert!(function_starts.is_sorted());
        let mut met = Met::new(code);
        for segment in code {
            native::sweep(segment, function_starts, &mut met, go_on)?;
        }
        let mut flow = Flow::empty(function_starts);
        flow.add(code, met, indirect_targets, table_reader, &|| go_on(0))?;
        Some(flow)
    }

    fn empty(function_starts: &[u64]) -> Flow {
        Flow {
            targets: Targets::new(&[]),
            calls: Targets::new(&[]),
            entries: Entries::new(&[]),
            starts: function_starts.to_vec(),
            vague: Vec::new(),
            gaps: RefCell::default(),
            analysed: None,
            parked: None,
            a64: None,
        }
    }

    /// Of A64 code, which is not read: a patch displaces one instruction, so that nobody jumps into it. `is_guarded`: the
    /// file asks for pages in which branches by register land on landing pads only (BTI).
    pub fn of_a64(function_starts: &[u64], is_guarded: bool) -> Flow {
        Flow { a64: Some(Guarded(is_guarded)), ..Flow::empty(function_starts) }
    }

    /// The same, but only complete for sites in `near`: other sites are refused.
    ///
    /// For a few functions of a large file. The functions and their neighbourhood are decoded; in all other code it is
    /// only looked for displacements that lead there, at whatever byte, so that some targets may be none.
    ///
    /// # Cost
    /// 0.7 to 2.5 ns a byte of code, tables included: `speed_of_the_sweep` in tests/real prints both.
    pub fn analyse_near(
        code: &[Code<'_>],
        function_starts: &[u64],
        indirect_targets: &[u64],
        table_reader: &dyn Fn(&Table) -> Vec<u64>,
        near: &[Range<u64>],
    ) -> Flow {
        // A jump, its padding and its island.
        let margin = native::SHORT_BRANCH_REACH + 2 * u64::from(native::JUMP_BYTES);
        let wanted = widen(near, margin);
        let mut met = Met::new(code);
        let mut flow = Flow::empty(function_starts);
        let around = widen(near, margin + native::SHORT_BRANCH_REACH);
        let mut parts: Vec<Code<'_>> = Vec::new();
        for segment in code {
            parts.extend(around.iter().filter_map(|range| flow.whole_functions(segment, range)));
        }
        let decoded = widen(&parts.iter().map(Code::range).collect::<Vec<_>>(), 0);
        for segment in code {
            native::scan(segment, &wanted, &decoded, &mut met);
        }
        for part in &parts {
            let all = native::sweep(part, function_starts, &mut met, &|_| true);
            debug_assert!(all.is_some());
        }
        // Parts elsewhere, which may jump back by a register.
        let is_decoded = |to: u64| decoded.iter().any(|range| range.contains(&to));
        let elsewhere: Vec<Range<u64>> =
            met.entries.jumped_across().filter(|to| !is_decoded(*to)).map(|to| to..to + 1).collect();
        for segment in code {
            for part in widen(&elsewhere, 0).iter().filter_map(|range| flow.whole_functions(segment, range)) {
                let all = native::sweep(&part, function_starts, &mut met, &|_| true);
                debug_assert!(all.is_some());
            }
        }
        flow.analysed = Some(wanted);
        let all = flow.add(code, met, indirect_targets, table_reader, &|| true);
        debug_assert!(all.is_some());
        flow
    }

    /// The part of a segment that holds `range` and begins and ends with a function.
    fn whole_functions<'a>(&self, segment: &Code<'a>, range: &Range<u64>) -> Option<Code<'a>> {
        let all = segment.range();
        if range.end <= all.start || all.end <= range.start {
            return None;
        }
        let from = self.start_before(range.start).unwrap_or(all.start).max(all.start);
        let to = self.next_start(range.end).unwrap_or(all.end).min(all.end);
        Some(Code { base: from, bytes: &segment.from_addr(from)[..(to - from) as usize] })
    }

    /// What was met, and what is known from data: tables, code pointers, function starts. `None` if `go_on` says no.
    fn add(
        &mut self,
        codes: &[Code<'_>],
        met: Met,
        indirect: &[u64],
        table_reader: &dyn Fn(&Table) -> Vec<u64>,
        go_on: &dyn Fn() -> bool,
    ) -> Option<()> {
        let Met { mut targets, calls, tables, entries } = met;
        self.calls = calls;
        let functions = Functions {
            holding: &|addr| self.extent(addr),
            is_start: &|addr| self.starts.binary_search(&addr).is_ok() || self.calls.contains(addr),
        };
        for target in indirect.iter().chain(&self.starts) {
            targets.insert(*target);
        }
        let mut vague = tables.read(codes, &functions, table_reader, &mut targets, go_on)?;
        self.targets = targets;
        self.entries = entries;
        self.entries.finish(&self.targets);
        vague.sort_unstable_by_key(|vague| vague.range.start);
        for next in vague {
            match self.vague.last_mut() {
                Some(last) if next.range.start < last.range.end => {
                    last.range.end = last.range.end.max(next.range.end);
                }
                _ => self.vague.push(next),
            }
        }
        Some(())
    }

    /// Whether it is proven that calls alone lead to the function start `addr`: no jump, no fall-through.
    pub fn is_called_only(&self, addr: u64) -> bool {
        self.is_analysed(addr..addr + 1) && self.entries.is_called_only(addr)
    }

    /// The function that holds `addr`. Where the next known starts are far, what is called counts as one.
    fn extent(&self, addr: u64) -> Range<u64> {
        let known = self.start_before(addr).unwrap_or(0)
            ..self.next_start(addr).unwrap_or_else(|| self.calls.end_of(addr));
        if known.end - known.start <= LONG_FUNCTION_BYTES {
            return known;
        }
        // The same for all jumps close by, so that each place is read a few times only.
        let block = addr / CALLED_REACH * CALLED_REACH;
        let from = known.start.max(block.saturating_sub(CALLED_REACH));
        let to = known.end.min(block.saturating_add(2 * CALLED_REACH));
        let start = self.calls.last_in(from..addr.saturating_add(1)).unwrap_or(from);
        start..self.calls.first_in(addr.saturating_add(1)..to).unwrap_or(to)
    }

    /// The jump that is not understood and may lead to `addr`, if there is one.
    pub(crate) fn vague_jump(&self, addr: u64) -> Option<u64> {
        let after = self.vague.partition_point(|vague| vague.range.end <= addr);
        self.vague.get(after).filter(|vague| vague.range.contains(&addr)).map(|vague| vague.jump)
    }

    /// Whether all that leads into `range` is known.
    pub fn is_analysed(&self, range: Range<u64>) -> bool {
        let Some(analysed) = &self.analysed else { return true };
        let after = analysed.partition_point(|part| part.end <= range.start);
        analysed.get(after).is_some_and(|part| part.start <= range.start && range.end <= part.end)
    }

    /// Whether something is known to jump to or point at `addr`.
    ///
    /// Where a jump that is not understood may lead, every address counts.
    pub fn is_target(&self, addr: u64) -> bool {
        self.targets.contains(addr) || self.vague_jump(addr).is_some()
    }

    /// Says that the program has threads of its own making, which it stops at any instruction but at its unsafe points,
    /// and which nobody sees while they are parked: Go. `unsafe_points` are sorted and do not overlap.
    ///
    /// Only the first instruction under a jump may change then and those behind it that are unsafe points, and nothing
    /// between functions, which Go's tables do not know. A thread that waits for a call to return, and one that goes on
    /// after a panic, are taken care of by the rules for calls and targets. Such a program also has to see the address of
    /// a fault as it is: an instruction that may fault, though it uses but `good` registers, is nothing but the first under
    /// a jump, where the caller may refuse it.
    pub fn with_parked_threads(self, unsafe_points: Vec<Range<u64>>, good: RegSet) -> Flow {
        debug_assert!(unsafe_points.is_sorted_by_key(|range| range.start));
        Flow { parked: Some(Parked { unsafe_points, good }), ..self }
    }

    pub(crate) fn has_parked_threads(&self) -> bool {
        self.parked.is_some()
    }

    /// Whether a thread that nobody sees may be parked at the instruction at `addr`.
    pub(crate) fn may_be_parked(&self, addr: u64) -> bool {
        let Some(Parked { unsafe_points, .. }) = &self.parked else { return false };
        let after = unsafe_points.partition_point(|range| range.end <= addr);
        unsafe_points.get(after).is_none_or(|range| addr < range.start)
    }

    /// Whether the instruction may not be displaced behind another one, since it may fault.
    pub(crate) fn keeps_faults(&self, insn: &Insn) -> bool {
        self.parked.as_ref().is_some_and(|parked| native::may_fault(insn, parked.good))
    }

    /// The lowest address in `range` that something is known to jump to or point at.
    pub fn first_target(&self, range: Range<u64>) -> Option<u64> {
        self.targets.first_in(range)
    }

    /// How many addresses are known to be jumped to or pointed at.
    pub fn target_count(&self) -> u64 {
        self.targets.count()
    }

    /// Whether `addr` is in the code that was analysed.
    pub fn is_code(&self, addr: u64) -> bool {
        self.targets.in_code(addr)
    }

    /// The first function start above `addr`.
    pub fn next_start(&self, addr: u64) -> Option<u64> {
        self.starts.get(self.starts.partition_point(|start| *start <= addr)).copied()
    }

    /// The last function start at or below `addr`.
    pub fn start_before(&self, addr: u64) -> Option<u64> {
        self.starts[..self.starts.partition_point(|start| *start <= addr)].last().copied()
    }

    /// One instruction that refers to `target`: in `near` if one is there, else anywhere.
    ///
    /// `None` when it is known from data only: a table, a relocation, a symbol.
    ///
    /// # Cost
    /// A second sweep, up to the first hit. For messages.
    pub fn source_of(&self, code: &[Code<'_>], target: u64, near: Option<Range<u64>>) -> Option<Source> {
        let near = near.and_then(|range| {
            let segment = Code::holding(code, range.start)?;
            native::source(segment, range.start, range.end, target)
        });
        near.or_else(|| {
            code.iter().find_map(|segment| {
                let range = segment.range();
                let starts = within(&self.starts, range.clone()).iter().copied();
                let bounds: Vec<u64> = [range.start].into_iter().chain(starts).chain([range.end]).collect();
                bounds.windows(2).find_map(|pair| native::source(segment, pair[0], pair[1], target))
            })
        })
    }

    /// Fills in, where it is unknown, who refers to the targets in a list of reasons.
    pub fn name_sources(&self, code: &[Code<'_>], near: Option<Range<u64>>, why_not: &mut [(Rung, Reason)]) {
        for (_, reason) in why_not {
            if let Reason::Target { at, from: from @ None } = reason {
                *from = self.source_of(code, *at, near.clone()).map(|source| match source {
                    Source::Branch { at } | Source::Reference { at } => at,
                });
            }
        }
    }

    /// `Ok` when an instruction of the function starts at `addr`, decoding from the function's start. Behind a jump or
    /// return to which nothing is known to lead data may stand, as a function's end is not always known: then the code
    /// around `addr` has to say the same.
    ///
    /// # Errors
    /// [`Refusal::MidInstruction`], [`Refusal::UnknownBoundary`], [`Refusal::Undecodable`] or [`Refusal::OutsideCode`].
    pub fn boundary(&self, code: &[Code<'_>], addr: u64, function_start: u64) -> Result<(), Refusal> {
        let segment = Code::holding(code, addr).ok_or(Refusal::OutsideCode { site: addr })?;
        let mut at = function_start;
        // Where data may stand.
        let (mut unsure, mut is_padding) = (None, false);
        while at < addr {
            let Some(class) = native::decode(segment.from_addr(at), at) else {
                return Err(Refusal::Undecodable { asked: addr, at });
            };
            let end = class.insn.end();
            if end > addr {
                return Err(Refusal::MidInstruction { asked: addr, start: at });
            }
            // Padding ends where code begins.
            let is_pad = class.is_nop || segment.from_addr(at)[0] == padding::INT3;
            let is_padded = is_padding && !is_pad;
            is_padding = is_pad && (is_padding || unsure == Some(at));
            unsure = match self.targets.contains(end) {
                true => None,
                false => unsure.filter(|_| !is_padded).or(class.ends.then_some(end)),
            };
            at = end;
        }
        match unsure {
            Some(from) if from < addr && !is_padding => self.boundary_behind_data(segment, from, addr),
            _ => Ok(()),
        }
    }
}

/// Those of some sorted addresses that are in `range`.
fn within(starts: &[u64], range: Range<u64>) -> &[u64] {
    let from = starts.partition_point(|start| *start < range.start);
    let to = starts.partition_point(|start| *start < range.end);
    &starts[from..to]
}

/// Each range and `margin` bytes around it, sorted, those that touch joined.
fn widen(ranges: &[Range<u64>], margin: u64) -> Vec<Range<u64>> {
    let wide = |range: &Range<u64>| range.start.saturating_sub(margin)..range.end.saturating_add(margin);
    let mut wide: Vec<Range<u64>> = ranges.iter().map(wide).collect();
    wide.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(wide.len());
    for range in wide {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

impl Met {
    fn new(code: &[Code<'_>]) -> Met {
        Met {
            targets: Targets::new(code),
            calls: Targets::new(code),
            tables: Tables::default(),
            entries: Entries::new(code),
        }
    }
}

#[cfg(test)]
mod tests;
