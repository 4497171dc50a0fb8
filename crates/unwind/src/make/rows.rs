//! The rows of `.eh_frame` and `.debug_frame`, as rules.
//!
//! For:     make.rs.
//! State:   none.
//! Context: control.
//! Keeps:   E1 what a row says beyond what a rule can is a register lost, or a rule that is not understood; never a guess.
//!          E2 where an unwinder goes over to the frame that it has found, its own rows are not believed: they are no longer true of
//!          the stack.
//! Checked: tests/tables.rs.
//! Source:  DWARF 5, 6.4; System V ABI for x86-64, 3.7 (numbers of registers).

use super::Builder;
use crate::rule::{Kind, LOST, Reg, Rule, SAME};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, EndianSlice, Expression, LittleEndian, Operation,
    Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow,
};
use image::{ElfImage, ImageAddr};
use insn::{Code, instructions};
use std::collections::HashMap;
use std::ops::Range;
use std::vec::Vec;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Row = UnwindTableRow<usize>;

const RAX: Register = Register(0);
const RBP: Register = Register(6);
const RSP: Register = Register(7);
const RIP: Register = Register(16);
/// Numbers of the registers whose places a rule names, in its order.
const SAVED: [u16; 6] = [6, 3, 12, 13, 14, 15];
/// Its encoding: what x86-64 evaluates addresses with.
const ENCODING: gimli::Encoding =
    gimli::Encoding { format: gimli::Format::Dwarf32, version: 4, address_size: 8 };

/// Adds the rows of all entries; the ranges that they cover. `None` if there is no such section.
pub(super) fn of_eh_frame(image: &ElfImage, builder: &mut Builder) -> Option<Vec<Range<u64>>> {
    let section = image.sections().iter().find(|s| s.name == ".eh_frame")?;
    let len = (section.range.end.0 - section.range.start.0) as usize;
    let bytes = image.bytes(section.range.start, len)?;
    let start = |name| image.sections().iter().find(|s| s.name == name).map_or(0, |s| s.range.start.0);
    let bases = BaseAddresses::default()
        .set_eh_frame(section.range.start.0)
        .set_text(start(".text"))
        .set_got(start(".got"));
    Some(entries(image, &EhFrame::new(bytes, LittleEndian), &bases, builder))
}

/// The same from debug information, of code that no entry has covered so far; with those that were there.
pub(super) fn of_debug_frame(
    image: &ElfImage,
    builder: &mut Builder,
    covered: Option<Vec<Range<u64>>>,
) -> Option<Vec<Range<u64>>> {
    let Some(bytes) = image.debug_frame() else { return covered };
    let mut section = DebugFrame::new(&bytes, LittleEndian);
    section.set_address_size(8);
    // What runs by it is believed more: its rows come last, and stand.
    let first = std::mem::take(&mut builder.rows);
    let more = entries(image, &section, &BaseAddresses::default(), builder);
    let known = covered.unwrap_or_default();
    let is_new = |addr: u64| !known.iter().any(|range| range.contains(&addr));
    builder.rows.retain(|(addr, _)| is_new(*addr));
    builder.rows.extend(first);
    Some(known.into_iter().chain(more).collect())
}

fn entries<'a, S>(
    image: &ElfImage,
    section: &S,
    bases: &BaseAddresses,
    builder: &mut Builder,
) -> Vec<Range<u64>>
where
    S: UnwindSection<Bytes<'a>>,
    S::Offset: gimli::UnwindOffset<usize> + std::hash::Hash + Eq,
{
    let mut cies = HashMap::new();
    let mut context = UnwindContext::new();
    let mut covered = Vec::new();
    let mut entries = section.entries(bases);
    // A broken entry ends the walk: what was read before it stands.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| {
            let cie = cies.entry(offset).or_insert_with(|| section.cie_from_offset(bases, offset));
            cie.clone()
        });
        let Ok(fde) = fde else { continue };
        let start = fde.initial_address();
        let Some(end) = start.checked_add(fde.len()).filter(|end| *end > start) else { continue };
        if !image.is_code(ImageAddr(start)) {
            continue;
        }
        covered.push(start..end);
        // Until a row says otherwise, and behind the last one.
        builder.row(start, Rule::bare(Kind::Unknown));
        let is_signal = fde.is_signal_trampoline();
        let Ok(mut rows) = fde.rows(section, bases, &mut context) else { continue };
        let (first, mut going) = (builder.rows.len(), None);
        while let Ok(Some(row)) = rows.next_row() {
            if row.start_address() < end {
                builder.row(row.start_address(), rule_of(section, row, is_signal));
                going = Going::seen(going, row);
            }
        }
        if let Some(going) = going {
            let from = going.begins(image, start);
            builder.unknown(first, from..going.until.unwrap_or(end));
        }
    }
    covered
}

/// The end of a function that throws: it goes over to the frame that it has found, wherever that is. gcc marks such a function by
/// saving rax, in which it gives something to that frame, and leaves it by rcx.
struct Going {
    /// Where its frame is no longer found by rbp.
    leaves: u64,
    /// Where it is again: code behind, which belongs to what was before.
    until: Option<u64>,
}

impl Going {
    /// What is known of it with this row.
    fn seen(before: Option<Going>, row: &Row) -> Option<Going> {
        let addr = row.start_address();
        let base = match row.cfa() {
            CfaRule::RegisterAndOffset { register, .. } => *register,
            CfaRule::Expression(_) => return before,
        };
        match before {
            None if base != RBP && base != RSP && row.register(RAX).is_some() => {
                Some(Going { leaves: addr, until: None })
            }
            Some(Going { leaves, until: None }) if base == RBP => Some(Going { leaves, until: Some(addr) }),
            before => before,
        }
    }

    /// Where it begins: at the call that writes what the other frame had saved, its return address too, over what this one has. Behind
    /// it is but one more, which tells debuggers.
    fn begins(&self, image: &ElfImage, start: u64) -> u64 {
        const CALL: u8 = 0xe8;
        let Some(bytes) = image.bytes(ImageAddr(start), (self.leaves - start) as usize) else { return start };
        let code = [Code { base: start, bytes }];
        let calls =
            instructions(&code, &(start..self.leaves)).filter(|insn| insn.bytes().first() == Some(&CALL));
        let mut last = [start; 2];
        calls.for_each(|call| last = [last[1], call.addr]);
        last[0]
    }
}

/// What a row says, as a rule.
fn rule_of<'a, S: UnwindSection<Bytes<'a>>>(section: &S, row: &Row, is_signal: bool) -> Rule {
    // Its expressions say where the kernel puts the registers, which is the same everywhere.
    if is_signal && matches!(row.cfa(), CfaRule::Expression(_)) {
        return Rule::bare(Kind::Signal);
    }
    if let Some(RegisterRule::Undefined) | None = row.register(RIP) {
        return Rule::bare(Kind::Outermost);
    }
    let Some(mut rule) = frame_of(section, row) else { return Rule::bare(Kind::Unknown) };
    match row.register(RIP).and_then(|rule| at_frame(&rule)) {
        Some(words) if rule.kind() != Kind::Plt => rule.ra = words,
        Some(-1) => {}
        _ => return Rule::bare(Kind::Unknown),
    }
    let is_at_rbp = |number: u16| at_rbp(section, row.register(Register(number))).is_some();
    rule.is_at_rbp = SAVED.iter().any(|number| is_at_rbp(*number));
    for (to, number) in rule.saved.iter_mut().zip(SAVED) {
        *to = match row.register(Register(number)) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => SAME,
            found if rule.is_at_rbp => at_rbp(section, found).unwrap_or(LOST),
            Some(found) => at_frame(&found).unwrap_or(LOST),
        };
    }
    rule
}

/// How the frame's address is found; `None` if that is not understood.
fn frame_of<'a, S: UnwindSection<Bytes<'a>>>(section: &S, row: &Row) -> Option<Rule> {
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            Some(Rule::plain(followed(*register)?, i32::try_from(*offset).ok()?))
        }
        CfaRule::Expression(expression) => {
            let operations = operations(section, expression)?;
            match operations.as_slice() {
                [Operation::RegisterOffset { register, offset, .. }] => {
                    Some(Rule::plain(followed(*register)?, i32::try_from(*offset).ok()?))
                }
                [Operation::RegisterOffset { register, offset, .. }, Operation::Deref { size: 8, .. }] => {
                    let rule = Rule::plain(followed(*register)?, i32::try_from(*offset).ok()?);
                    Some(Rule { kind: Kind::Deref as u8, ..rule })
                }
                operations => stub(operations),
            }
        }
    }
}

/// What linkers write of a stub of 16 bytes, which pushes a word at one of them: the stack pointer and an offset, and a word
/// more if the address's last four bits are at least so many.
fn stub(operations: &[Operation<Bytes<'_>>]) -> Option<Rule> {
    use Operation::{And, Ge, Plus, PlusConstant, RegisterOffset, Shl, UnsignedConstant};
    let (first, rest) = operations.split_first()?;
    let offset = match first {
        RegisterOffset { register: RSP, offset, .. } => i32::try_from(*offset).ok()?,
        _ => return None,
    };
    match rest {
        [
            RegisterOffset { register: RIP, offset: 0, .. },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value: from },
            Ge,
            UnsignedConstant { value: 3 },
            Shl,
            Plus,
        ] => {
            let rule = Rule::plain(Reg::Rsp, offset);
            Some(Rule { kind: Kind::Plt as u8, ra: i16::try_from(*from).ok()?, ..rule })
        }
        [PlusConstant { value }] => {
            Some(Rule::plain(Reg::Rsp, offset.checked_add(i32::try_from(*value).ok()?)?))
        }
        _ => None,
    }
}

fn operations<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    expression: &UnwindExpression<usize>,
) -> Option<Vec<Operation<Bytes<'a>>>> {
    let Expression(bytes) = expression.get(section).ok()?;
    let mut found = Vec::new();
    let mut operations = Expression(bytes).operations(ENCODING);
    while let Some(operation) = operations.next().ok()? {
        found.push(operation);
    }
    Some(found)
}

/// Where a register lies, in words from the frame's address.
fn at_frame(rule: &RegisterRule<usize>) -> Option<i16> {
    match rule {
        RegisterRule::Offset(bytes) => words(*bytes),
        _ => None,
    }
}

/// Where a register lies that is saved at an offset from rbp, in words: so gcc says it of functions that align their stack.
fn at_rbp<'a, S: UnwindSection<Bytes<'a>>>(section: &S, rule: Option<RegisterRule<usize>>) -> Option<i16> {
    let Some(RegisterRule::Expression(expression)) = rule else { return None };
    match operations(section, &expression)?.as_slice() {
        [Operation::RegisterOffset { register, offset, .. }] if *register == RBP => words(*offset),
        _ => None,
    }
}

/// Bytes as words, if it is a whole number that a rule can have.
fn words(bytes: i64) -> Option<i16> {
    let words = i16::try_from(bytes / 8).ok()?;
    (bytes % 8 == 0 && words > LOST).then_some(words)
}

/// The number here of a register of DWARF.
fn followed(register: Register) -> Option<Reg> {
    Some(match register.0 {
        3 => Reg::Rbx,
        6 => Reg::Rbp,
        7 => Reg::Rsp,
        10 => Reg::R10,
        12 => Reg::R12,
        13 => Reg::R13,
        14 => Reg::R14,
        15 => Reg::R15,
        _ => return None,
    })
}
