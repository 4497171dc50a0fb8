//! Where a branch may stand in A64 code, and the copy of what it replaces.
//!
//! For:     plans and trampolines, by the same types as for x86-64.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a patch is one word, aligned: no window, and nobody jumps into it.
//!          P2 a landing pad of guarded code stays; the branch stands behind it, if no branch of the function leads there.
//!          P3 what the function itself loads as a literal is no instruction.
//! Checked: tests below.

use super::decode::{By, Relative, decode};
use super::relocate::{Copied, NotMoved, Saved, relocate};
use super::verdict::{Verdict, is_landing_pad, verdict_at};
use crate::arch::x86_64::RegSet;
use crate::code::{Code, Insn};
use crate::coverage::Coverage;
use crate::flow::Guarded;
use crate::place::{Asked, Hook, Placement};
use crate::reason::{Forbidden, Reason, Refusal, Rung};
use crate::relocate::{Displaced, Origin, Step, Unreachable};
use std::ops::Range;

const WORD: u64 = 4;

pub(super) fn word_at(code: &Code<'_>, at: u64) -> Option<u32> {
    code.from_addr(at).first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The word of an instruction.
fn word(insn: &Insn) -> u32 {
    insn.bytes().first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// How a branch stands at a site.
pub(crate) fn place(guarded: Guarded, codes: &[Code<'_>], asked: &Asked<'_>) -> Result<Placement, Refusal> {
    let site = asked.site;
    let code = Code::holding(codes, site).ok_or(Refusal::OutsideCode { site })?;
    place_in(guarded, code, asked)
}

fn place_in(Guarded(is_guarded): Guarded, code: &Code<'_>, asked: &Asked<'_>) -> Result<Placement, Refusal> {
    let site = asked.site;
    let first = check(code, asked, site)?;
    let at = match is_guarded && is_landing_pad(first) {
        true => behind_pad(code, asked)?,
        false => site,
    };
    let word = if at == site { first } else { check(code, asked, at)? };
    if (asked.taken)(at..at + WORD) {
        return Err(no_rung(site, Reason::Taken { at, len_bytes: WORD as u8 }));
    }
    let relative = decode(word, at);
    let insn = Insn::new(at, &word.to_le_bytes()).ok_or(Refusal::OutsideCode { site })?;
    let none = RegSet::default();
    let hook = Hook {
        offset: 0,
        is_red_zone_free: false,
        flags_dead: false,
        dead_regs: none,
        taken: None,
        is_tail_call: false,
    };
    Ok(Placement {
        site: at,
        pad: (at - site) as u8,
        rung: Rung::Jump,
        patch_len: WORD as u8,
        displaced: vec![insn],
        displaced_len: WORD as u8,
        padding_used: 0,
        ends_with_flow: relative.is_some_and(|relative| relative.ends()),
        island: None,
        pun: None,
        hooks: vec![hook],
        why_not: Vec::new(),
    })
}

/// How a branch stands at an exit of a function, one that is a branch to another function or not.
pub(crate) fn place_exit(
    guarded: Guarded,
    codes: &[Code<'_>],
    asked: &Asked<'_>,
    is_tail_call: bool,
) -> Result<Placement, Refusal> {
    let mut placement = place(guarded, codes, asked)?;
    placement.hooks[0].is_tail_call = is_tail_call;
    Ok(placement)
}

fn no_rung(site: u64, why: Reason) -> Refusal {
    Refusal::NoRung { site, why_not: vec![(Rung::Jump, why)], needs: Rung::Kernel }
}

/// The word at `at`, if a probe may stand there.
fn check(code: &Code<'_>, asked: &Asked<'_>, at: u64) -> Result<u32, Refusal> {
    let forbidden = |what| Refusal::Forbidden { site: at, what };
    if !at.is_multiple_of(WORD) {
        return Err(forbidden(Forbidden::Misaligned));
    }
    let word = word_at(code, at).ok_or(Refusal::OutsideCode { site: at })?;
    if let Verdict::Refused(what) = verdict_at(code, at) {
        return Err(forbidden(what));
    }
    let is_inside = asked.function.as_ref().is_some_and(|function| function.start < at);
    if is_inside && refers(code, asked, |relative| is_literal(relative, at)).is_some() {
        return Err(forbidden(Forbidden::Undecodable));
    }
    Ok(word)
}

/// Whether eight bytes are loaded from there that hold `at`.
fn is_literal(relative: Relative, at: u64) -> bool {
    matches!(relative, Relative::Load { target, .. } if (target..target + 8).contains(&at))
}

/// The first instruction of the function of which this is true.
fn refers(code: &Code<'_>, asked: &Asked<'_>, is_it: impl Fn(Relative) -> bool) -> Option<u64> {
    let function = asked.function.clone()?;
    let mut all = (function.start..function.end).step_by(WORD as usize);
    all.find(|at| word_at(code, *at).and_then(|word| decode(word, *at)).is_some_and(&is_it))
}

/// The instruction behind a function's landing pad: the same registers, the same stack, and every call comes by. (After
/// `paciasp` the return address is signed.)
fn behind_pad(code: &Code<'_>, asked: &Asked<'_>) -> Result<u64, Refusal> {
    let (site, at) = (asked.site, asked.site + WORD);
    let is_entry =
        asked.function.as_ref().is_some_and(|function| function.start == site && at < function.end);
    if !is_entry {
        return Err(no_rung(site, Reason::NotAnalysed));
    }
    let leads_there = |relative| match relative {
        Relative::Jump { target }
        | Relative::JumpIf { target, .. }
        | Relative::JumpZero { target, .. }
        | Relative::JumpBit { target, .. }
        | Relative::Call { target } => target == at,
        _ => false,
    };
    match refers(code, asked, leads_there) {
        None => Ok(at),
        from => Err(no_rung(site, Reason::Target { at, from })),
    }
}

/// Counts a site of A64 code.
pub(crate) fn tally(coverage: &mut Coverage, guarded: Guarded, code: &Code<'_>, asked: &Asked<'_>) {
    *match place_in(guarded, code, asked) {
        Ok(_) => &mut coverage.jump,
        Err(Refusal::NoRung { .. }) => &mut coverage.needs_trap,
        Err(_) => &mut coverage.refused,
    } += 1;
}

/// Where a function's instructions end: what it is filled up with to the next one, words of zeros, is none. Go's symbols have it
/// within the functions.
pub(crate) fn end_of_code(code: &Code<'_>, function: &Range<u64>) -> u64 {
    let is_code = |end: &u64| word_at(code, end - WORD) != Some(0);
    let mut ends = (function.start + WORD..=function.end)
        .rev()
        .filter(|end| (end - function.start).is_multiple_of(WORD));
    ends.find(is_code).unwrap_or(function.start)
}

/// Whether the instruction calls.
pub(crate) fn is_call(insn: &Insn) -> bool {
    matches!(
        decode(word(insn), insn.addr),
        Some(Relative::Call { .. } | Relative::Register { by: By::Call, .. })
    )
}

/// Whether the instruction reads or writes memory by another register than the stack pointer, Go's goroutine (x28) and those
/// that are good.
pub(crate) fn may_fault(insn: &Insn, good: RegSet) -> bool {
    let word = word(insn);
    let is_access = word & 0x0a00_0000 == 0x0800_0000;
    let base = ((word >> 5) & 31) as u8;
    let is_literal = word & 0x3b00_0000 == 0x1800_0000;
    is_access && !is_literal && base != 31 && base != 28 && !good.contains(base)
}

/// The code that stands at `dest` for the displaced instruction of a placement in A64 code, where the process adds `bias` to its
/// addresses.
///
/// # Errors
/// What no branch of 128 MiB reaches from there.
pub fn displaced(placement: &Placement, bias: u64, dest: u64) -> Result<Displaced, Unreachable> {
    let insn = &placement.displaced[0];
    let from = insn.addr.wrapping_add(bias);
    let copied = relocate(word(insn), from, dest, &mut |_| None).map_err(|why| match why {
        NotMoved::Unreachable(far) => far,
        // `place` has refused it.
        NotMoved::Forbidden(_) => Unreachable { from: dest, to: from },
    })?;
    let resume = copied.resume_offset();
    let mut map = vec![(0, 0)];
    map.extend(resume.map(|at| (placement.displaced_len, at as u16)));
    Ok(Displaced {
        bytes: copied.words().iter().flat_map(|word| word.to_le_bytes()).collect(),
        map,
        ends_with_flow: resume.is_none(),
        resume_offset: resume.unwrap_or(copied.len_bytes()) as u16,
        shifted: None,
        steps: steps(&copied, from, placement.displaced_len),
    })
}

fn steps(copied: &Copied, from: u64, len: u8) -> Vec<Step> {
    let at = |offset: usize| {
        let origin = copied.origin_of(offset)?;
        let leads_to = origin.leads_to.filter(|to| *to != from + u64::from(len));
        let is_behind = origin.leads_to.is_some() && leads_to.is_none();
        let origin = Origin {
            offset: if is_behind { len } else { 0 },
            is_at_start: origin.is_at_start,
            is_stack_shifted: false,
            stack_shift_bytes: 0,
            leads_to,
            // What was pushed has to be popped by the copy itself.
            is_restartable: origin.saved == Saved::None,
        };
        Some(Step { from: offset as u16, origin })
    };
    (0..copied.len_bytes()).step_by(WORD as usize).filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACIASP: u32 = 0xd503_233f;
    const ADD: u32 = 0x9100_0400;
    const RET: u32 = 0xd65f_03c0;
    const BASE: u64 = 0x1000;

    fn placed(words: &[u32], at: u64, is_guarded: bool) -> Result<Placement, Refusal> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let code = Code { base: BASE, bytes: &bytes };
        let asked = Asked {
            site: at,
            function: Some(BASE..BASE + bytes.len() as u64),
            next_function: None,
            taken: &|_| false,
            room: &|_| false,
        };
        place(Guarded(is_guarded), &[code], &asked)
    }

    #[test]
    fn one_word_is_displaced_and_the_copy_goes_back_behind_it() {
        let placement = placed(&[ADD, RET], BASE, false).unwrap();
        assert_eq!((placement.patch(), placement.rung), (BASE..BASE + 4, Rung::Jump));
        let copy = displaced(&placement, 0x10_0000, 0x20_0000).unwrap();
        assert_eq!(copy.bytes[..4], ADD.to_le_bytes());
        let (start, back) = (copy.origin_of(0).unwrap(), copy.origin_of(4).unwrap());
        assert!(start.is_at_start && start.offset == 0 && start.is_restartable);
        assert_eq!((back.offset, back.leads_to), (4, None));
        assert!(displaced(&placement, 0x10_0000, 0x4000_0000_0000).is_err());
        assert!(displaced(&placed(&[ADD, RET], BASE + 4, false).unwrap(), 0, 0x2000).unwrap().ends_with_flow);
    }

    #[test]
    fn a_landing_pad_of_guarded_code_stays_and_a_loop_to_behind_it_is_named() {
        let site = |is_guarded| {
            let placement = placed(&[PACIASP, ADD, RET], BASE, is_guarded).unwrap();
            (placement.site, placement.pad)
        };
        assert_eq!((site(false), site(true)), ((BASE, 0), (BASE + 4, 4)));
        // cbnz x0, -4
        let looped = placed(&[PACIASP, ADD, 0xb5ff_ffe0, RET], BASE, true).unwrap_err();
        assert!(looped.to_string().contains("0x1004 is referred to from 0x1008"), "{looped}");
    }

    #[test]
    fn zeros_behind_a_function_are_no_instructions_and_zeros_within_it_are() {
        let end = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            end_of_code(&Code { base: BASE, bytes: &bytes }, &(BASE..BASE + bytes.len() as u64)) - BASE
        };
        assert_eq!((end(&[ADD, RET, 0, 0]), end(&[ADD, 0, RET]), end(&[0, 0])), (8, 12, 0));
    }

    #[test]
    fn what_is_no_place_for_a_probe_is_refused_by_name() {
        assert!(matches!(
            placed(&[ADD, RET], BASE + 2, false),
            Err(Refusal::Forbidden { what: Forbidden::Misaligned, .. })
        ));
        // ldr x0, +8
        let literal = placed(&[0x5800_0040, RET, ADD, ADD], BASE + 12, false);
        assert!(
            matches!(literal, Err(Refusal::Forbidden { what: Forbidden::Undecodable, .. })),
            "{literal:?}"
        );
        // ldr x0, [x1]; ldr x0, [sp]; ldr x16, [x28, #16]; add
        let faults = [0xf940_0020, 0xf940_03e0, 0xf940_0b90, ADD]
            .map(|word| placed(&[word, RET], BASE, false).unwrap().may_fault(RegSet::default()).is_some());
        assert_eq!(faults, [true, false, false, false]);
    }
}
