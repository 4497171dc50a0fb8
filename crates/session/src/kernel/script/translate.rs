//! A program as the kernel takes it: helpers by its numbers, maps by descriptor, and what it has no helper for beside it.
//!
//! For:     the scripts that the kernel runs.
//! State:   none.
//! Context: control.
//! Keeps:   T1 each instruction of the program becomes one of as many words, so that jumps are as they were; one backwards goes by
//!             way of what stands behind the program, where its turns are counted; what is never come to is left out at last.
//!          T2 what cannot be said to the kernel is refused by name.
//! Checked: tests below (the kernel's verifier takes each helper); testkit `backends`.

use super::library::{ABOUT, BOUNDED, COUNTS, ENTRY, Library, OfMap, PROGRAM, SLOTS, WORLD, of_map};
use bpf::helper::{self, CONSTANTS, FIRST_MAP, RING, SCRATCH};
use bpf::{Alu, Callee, Cond, Insn, Op, Operand, Program, Reg, Wide};
use std::collections::BTreeMap;
use sys::bpf::tables::FUNCTION;

/// Descriptors of what a program names.
#[derive(Debug)]
pub struct Descriptors {
    pub constants: i32,
    pub slots: i32,
    pub counts: i32,
    pub world: i32,
    pub ring: i32,
    /// The script's own, from [`FIRST_MAP`] on.
    pub tables: Vec<i32>,
}

impl Descriptors {
    fn of(&self, number: i32) -> Option<i32> {
        match number {
            CONSTANTS => Some(self.constants),
            RING => Some(self.ring),
            SLOTS => Some(self.slots),
            COUNTS => Some(self.counts),
            WORLD => Some(self.world),
            number => self.tables.get(usize::try_from(number - FIRST_MAP).ok()?).copied(),
        }
    }
}

/// A program for the kernel.
#[derive(Debug)]
pub struct Translated {
    pub words: Vec<u64>,
    /// Where each function begins, and its type.
    pub functions: Vec<[u32; 2]>,
}

/// A word of a function.
#[derive(Clone, Copy)]
enum Slot {
    Is(Insn),
    /// A call of a function, by number.
    Call(u32),
    /// The two words of a function's address.
    Address(Reg, u32),
    Rest,
}

/// The program, with all that it calls behind it.
///
/// # Errors
/// What the kernel cannot do, in words.
pub fn translate(program: &Program, maps: &Descriptors, library: &Library<'_>) -> Result<Translated, String> {
    let mut all: Vec<(u32, Vec<Slot>)> = Vec::new();
    let mut wanted = vec![ENTRY];
    while let Some(number) = wanted.pop() {
        if all.iter().any(|(known, _)| *known == number) {
            continue;
        }
        let slots = if number == PROGRAM {
            slots_of(program, maps, true)?
        } else {
            let text = library.text(number)?;
            let insns = bpf::assemble(&text).map_err(|why| format!("function {number:#x}: {why}"))?;
            let function = Program::new(insns).map_err(|why| format!("function {number:#x}: {why}"))?;
            slots_of(&function, maps, false)?
        };
        wanted.extend(slots.iter().filter_map(|slot| match slot {
            Slot::Call(number) | Slot::Address(_, number) => Some(*number),
            _ => None,
        }));
        all.push((number, slots));
    }
    Ok(linked(&all))
}

fn linked(all: &[(u32, Vec<Slot>)]) -> Translated {
    let mut starts = BTreeMap::new();
    let mut at = 0usize;
    for (number, slots) in all {
        starts.insert(*number, at);
        at += slots.len();
    }
    let mut words: Vec<u64> = Vec::with_capacity(at);
    let mut put = |insn: Insn| words.push(u64::from_le_bytes(insn.encode()));
    for (at, slot) in all.iter().flat_map(|(_, slots)| slots).enumerate() {
        let distance = |number: &u32| (starts[number] as i64 - at as i64 - 1) as i32;
        match slot {
            Slot::Is(insn) => put(*insn),
            Slot::Call(number) => put(Op::Call(Callee::Local(distance(number))).encode().0),
            Slot::Address(dst, number) => {
                let (first, second) = Op::Wide { dst: *dst, wide: Wide::Function(distance(number)) }.encode();
                put(first);
                second.into_iter().for_each(&mut put);
            }
            Slot::Rest => {}
        }
    }
    let functions = all.iter().map(|(number, _)| [starts[number] as u32, FUNCTION]).collect();
    Translated { words, functions }
}

/// What is known of the instructions before one, without a jump between.
#[derive(Clone, Copy, Default)]
struct Before {
    /// The map in r1.
    map: Option<i32>,
    /// The number in r1.
    number: Option<i32>,
}

fn slots_of(program: &Program, maps: &Descriptors, is_program: bool) -> Result<Vec<Slot>, String> {
    if is_program {
        check_walks(program)?;
    }
    let (mut slots, mut turns): (Vec<Slot>, Vec<(usize, i64)>) = Default::default();
    let mut before = Before::default();
    for (_, op) in program.ops() {
        match op {
            Op::Wide { dst, wide } => wide_slots(dst, wide, maps, is_program, &mut slots)?,
            Op::Call(Callee::Helper(number)) => slots.push(call(number, before, is_program)?),
            Op::Call(other) if is_program => return Err(format!("a call of {other:?}")),
            Op::Ja { distance, long } if is_program && distance < 0 => {
                turns.push((slots.len(), slots.len() as i64 + 1 + i64::from(distance)));
                slots.push(Slot::Is(Op::Ja { distance, long }.encode().0));
            }
            Op::Jump { cond: Cond::Set, dst: Reg::R0, src: Operand::Imm(0), offset, .. } if !is_program => {
                slots.push(Slot::Is(may_goto(offset)));
            }
            other => slots.push(Slot::Is(other.encode().0)),
        }
        before = match op {
            Op::Wide { dst: Reg::R1, wide: Wide::MapIndex(map) } => Before { map: Some(map), number: None },
            Op::Alu { alu: Alu::Mov, dst: Reg::R1, src: Operand::Imm(n), .. } => {
                Before { map: None, number: Some(n) }
            }
            op if op.written() == Some(Reg::R1) || matches!(op, Op::Call(_)) => Before::default(),
            _ => before,
        };
    }
    for (at, to) in turns {
        let ja = |from: usize, to: i64| {
            let distance = (to - from as i64 - 1) as i32;
            Slot::Is(Op::Ja { distance, long: i16::try_from(distance).is_err() }.encode().0)
        };
        slots[at] = ja(at, slots.len() as i64);
        slots.push(Slot::Is(may_goto(1)));
        slots.push(ja(slots.len(), to));
        let zero = Op::Alu { width: bpf::Width::W64, alu: Alu::Mov, dst: Reg::R0, src: Operand::Imm(0) };
        slots.extend([zero, Op::Exit].map(|op| Slot::Is(op.encode().0)));
    }
    Ok(without_dead(&slots))
}

/// How far a word jumps, and whether it may go on instead; `None` if it is no jump.
fn jump(slot: Slot) -> Option<(i64, bool)> {
    const CLASS: u8 = 7;
    const WHAT: u8 = 0xf0;
    let Slot::Is(insn) = slot else { return None };
    match (insn.opcode & CLASS, insn.opcode & WHAT) {
        // Calls and the end.
        (5 | 6, 0x80 | 0x90) => None,
        (6, 0) => Some((insn.imm.into(), false)),
        (5, 0) => Some((insn.offset.into(), false)),
        (5 | 6, _) => Some((insn.offset.into(), true)),
        _ => None,
    }
}

/// The function without what is never come to, which the verifier does not take.
fn without_dead(slots: &[Slot]) -> Vec<Slot> {
    let mut is_met = vec![false; slots.len()];
    let mut waiting = vec![0usize];
    while let Some(at) = waiting.pop() {
        if at >= slots.len() || std::mem::replace(&mut is_met[at], true) {
            continue;
        }
        match (jump(slots[at]), slots[at]) {
            (Some((distance, goes_on)), _) => {
                waiting.extend(usize::try_from(at as i64 + 1 + distance).ok());
                waiting.extend(goes_on.then_some(at + 1));
            }
            (None, Slot::Is(Insn { opcode: 0x95, .. })) => {}
            // The second word of two is met by the first.
            _ => waiting.push(at + 1),
        }
    }
    let mut places: Vec<i64> = Vec::with_capacity(slots.len() + 1);
    let mut next = 0;
    for is_met in &is_met {
        places.push(next);
        next += i64::from(*is_met);
    }
    places.push(next);
    let moved = |(at, slot): (usize, &Slot)| {
        let (Some((distance, _)), Slot::Is(mut insn)) = (jump(*slot), *slot) else { return *slot };
        let to = usize::try_from(at as i64 + 1 + distance).unwrap_or(0).min(slots.len());
        let distance = places[to] - places[at] - 1;
        // No distance grows.
        match insn.opcode {
            0x06 => insn.imm = distance as i32,
            _ => insn.offset = distance as i16,
        }
        Slot::Is(insn)
    };
    slots.iter().enumerate().filter(|(at, _)| is_met[*at]).map(moved).collect()
}

/// Goes on, and after very many times, so many words further; since Linux 6.9.
fn may_goto(offset: i16) -> Insn {
    Insn { opcode: 0xe5, offset, ..Insn::default() }
}

/// Who removes keys of a map while going through it would miss others: there is no place to go on from.
fn check_walks(program: &Program) -> Result<(), String> {
    let mut map = None;
    let (mut walked, mut changed) = (Vec::new(), Vec::new());
    for (_, op) in program.ops() {
        match op {
            Op::Wide { dst: Reg::R1, wide: Wide::MapIndex(n) } => map = Some(n),
            Op::Call(Callee::Helper(helper::MAP_NEXT)) => walked.extend(map),
            Op::Call(Callee::Helper(helper::MAP_DELETE | helper::WORD_DELETE)) => changed.extend(map),
            _ => {}
        }
    }
    match walked.iter().any(|map| changed.contains(map)) {
        true => Err("delete() of a map in a program that goes through it".into()),
        false => Ok(()),
    }
}

fn wide_slots(
    dst: Reg,
    wide: Wide,
    maps: &Descriptors,
    is_program: bool,
    slots: &mut Vec<Slot>,
) -> Result<(), String> {
    let fd = |number| maps.of(number).ok_or_else(|| format!("map {number}"));
    let wide = match wide {
        Wide::Variable(number) if !is_program => {
            slots.extend([Slot::Address(dst, number.cast_unsigned()), Slot::Rest]);
            return Ok(());
        }
        // What stands around the program has left the scratch memory's address in r2.
        Wide::MapIndex(SCRATCH) if is_program => {
            let have = Op::Alu {
                width: bpf::Width::W64,
                alu: Alu::Mov,
                dst,
                src: Operand::Reg(Reg::new(2).unwrap_or(Reg::R0)),
            };
            let on = Op::Ja { distance: 0, long: false };
            slots.extend([have, on].map(|op| Slot::Is(op.encode().0)));
            return Ok(());
        }
        Wide::MapIndex(number) => Wide::MapFd(fd(number)?),
        Wide::MapValueIndex { index, offset } => Wide::MapValueFd { fd: fd(index)?, offset },
        Wide::Value(value) => Wide::Value(value),
        other => return Err(format!("{other:?}")),
    };
    let (first, second) = Op::Wide { dst, wide }.encode();
    slots.extend([first].into_iter().chain(second).map(Slot::Is));
    Ok(())
}

fn call(number: u32, before: Before, is_program: bool) -> Result<Slot, String> {
    let native = |number| Slot::Is(Op::Call(Callee::Helper(number)).encode().0);
    if !is_program {
        return Ok(if number < helper::OWN { native(number) } else { Slot::Call(number) });
    }
    let map = |what| {
        let map = before.map.and_then(|map| u32::try_from(map - FIRST_MAP).ok());
        map.map(|map| Slot::Call(of_map(what, map))).ok_or("a map that is not known where it is used")
    };
    Ok(match number {
        helper::MAP_LOOKUP if before.map == Some(SCRATCH) => {
            let (dst, src) = (Reg::R0, Operand::Reg(Reg::R1));
            Slot::Is(Op::Alu { width: bpf::Width::W64, alu: Alu::Mov, dst, src }.encode().0)
        }
        helper::AGGREGATE => map(OfMap::Aggregate)?,
        helper::WORD_AGGREGATE => map(OfMap::AggregateWord)?,
        helper::AGGREGATED => map(OfMap::Aggregated)?,
        helper::MAP_NEXT => map(OfMap::Next)?,
        helper::ABOUT => {
            let kind = before.number.ok_or("a question that is not known")?;
            Slot::Call(ABOUT + kind.cast_unsigned())
        }
        helper::PROBE_READ_USER | helper::PROBE_READ_OWN => Slot::Call(BOUNDED + number),
        helper::RINGBUF_OUTPUT | helper::ATTACH_COOKIE => Slot::Call(number),
        helper::MAP_LOOKUP
        | helper::MAP_UPDATE
        | helper::MAP_DELETE
        | helper::KTIME_GET_NS
        | helper::KTIME_GET_BOOT_NS
        | helper::KTIME_GET_TAI_NS
        | helper::PRANDOM_U32
        | helper::SMP_PROCESSOR_ID
        | helper::NUMA_NODE_ID
        | helper::PID_TGID
        | helper::UID_GID
        | helper::FUNC_IP
        | helper::COMM => native(number),
        number => Slot::Call(number),
    })
}
