//! What may be done with one A64 instruction: emulate it, copy it, write it anew, or leave it alone.
//!
//! For:     choosing how a site is probed, before anything is written; on any host.
//! State:   none.
//! Context: any; no allocation, no panic.
//! Keeps:   G1 nothing that the kernel's uprobes accept is refused here, but for the departures below.
//!          G2 no site lies between an exclusive load and its store: what runs there would lose the monitor for
//!          ever, and the program's loop would never end.
//!          G3 in the group of branches, exceptions and system instructions, what is not known is refused.
//! Checked: tests below; tests/aarch64_objdump.rs (mnemonics of libc and of random words).
//! Source:  kernel-facts 1.15. Departs: literal loads, casp and the authenticating branches are accepted, because
//!          copies are run by jumping to them and not by single-stepping. Instructions that sign or check a pointer
//!          with their own address (FEAT_PAuth_LR) are refused: a copy would sign with another one.

use super::decode::{Auth, By, LINK, Relative, bits, decode};
use crate::code::Code;
use crate::reason::Forbidden;

/// What to do with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// [`super::emulate`] does it in software; it may be copied too, unless it is `blr x30`.
    Emulated,
    /// It runs as it is wherever it stands.
    Verbatim,
    /// It reads its own address or leaves one behind: [`super::relocate`] writes it anew.
    Rewritten,
    /// No probe may stand here.
    Refused(Forbidden),
}

/// EINVAL, ENOTSUPP: the kernel's numbers.
const INVALID: i32 = 22;
const NOT_SUPPORTED: i32 = 524;
/// `brk #5`, by which the kernel's uprobes stop a thread.
const KERNEL_TRAP: u32 = 0xd420_00a0;

/// The error (positive) with which the kernel refuses a uprobe on `word`, where it refuses what we refuse.
pub fn kernel_errno(word: u32) -> i32 {
    if word == KERNEL_TRAP { NOT_SUPPORTED } else { INVALID }
}

/// What may be done with `word` by itself. [`verdict_at`] also looks at what surrounds it.
pub fn verdict(word: u32) -> Verdict {
    if let Some(relative) = decode(word, 0) {
        return of_relative(&relative);
    }
    match refused(word) {
        Some(what) => Verdict::Refused(what),
        None if is_hint(word) && matches!(bits(word, 5, 7), 0 | 0x20 | 0x22 | 0x24 | 0x26) => {
            Verdict::Emulated
        }
        None => Verdict::Verbatim,
    }
}

fn of_relative(relative: &Relative) -> Verdict {
    match *relative {
        Relative::Load { .. } => Verdict::Rewritten,
        Relative::Register { by: By::Call, rn, auth } if auth != Auth::None => {
            let uses_link = rn == LINK || auth == Auth::Modifier(LINK);
            if uses_link { Verdict::Refused(Forbidden::CallOfLinkRegister) } else { Verdict::Rewritten }
        }
        Relative::Register { auth: Auth::Zero | Auth::Modifier(_), .. } => Verdict::Verbatim,
        _ => Verdict::Emulated,
    }
}

fn is_hint(word: u32) -> bool {
    word & 0xffff_f01f == 0xd503_201f
}

/// ldxr, ldaxr, ldxp, ldaxp of any size.
fn is_exclusive_load(word: u32) -> bool {
    is_exclusive(word) && bits(word, 22, 1) == 1
}

/// stxr, stlxr, stxp, stlxp of any size.
fn is_exclusive_store(word: u32) -> bool {
    is_exclusive(word) && bits(word, 22, 1) == 0
}

/// casp has the encoding of a pair of less than 32 bits, which does not exist.
fn is_exclusive(word: u32) -> bool {
    let is_casp = bits(word, 21, 1) == 1 && bits(word, 31, 1) == 0;
    word & 0x3f80_0000 == 0x0800_0000 && !is_casp
}

fn refused(word: u32) -> Option<Forbidden> {
    match bits(word, 25, 4) {
        // Reserved; with bit 31 it is the matrix extension.
        0b0000 if bits(word, 31, 1) == 0 => Some(Forbidden::Undefined),
        0b0001 | 0b0011 => Some(Forbidden::Undecodable),
        0b1010 | 0b1011 => refused_system(word),
        _ if is_exclusive(word) => Some(Forbidden::Exclusive),
        _ if word & 0x3b20_0c00 == 0x1900_0400 => Some(Forbidden::MemoryCopy),
        _ if signs_with_own_address(word) => Some(Forbidden::OwnAddress),
        _ if word & 0x3b00_0000 == 0x1800_0000 => Some(Forbidden::Undecodable),
        _ => None,
    }
}

/// pacia(b)sppc, pacnbia(b)sppc, autia(b)sppc with a label.
fn signs_with_own_address(word: u32) -> bool {
    matches!(word, 0xdac1_a3fe | 0xdac1_a7fe | 0xdac1_83fe | 0xdac1_87fe) || word & 0xff80_001f == 0xf380_001f
}

/// Branches, exceptions and system instructions that `decode` does not know.
fn refused_system(word: u32) -> Option<Forbidden> {
    match word {
        _ if word & 0xffe0_001f == 0xd420_0000 => Some(Forbidden::Trap),
        _ if word >> 24 == 0xd4 => Some(Forbidden::Exception),
        _ if matches!(word, 0xd69f_03e0 | 0xd69f_0bff | 0xd69f_0fff | 0xd6bf_03e0) => {
            Some(Forbidden::Privileged)
        }
        _ if is_hint(word) => (!is_steppable_hint(word)).then_some(Forbidden::Hint),
        // Barriers and clrex; sys and sysl: cache and other maintenance.
        _ if word & 0xffff_f01f == 0xd503_301f || word & 0xffd8_0000 == 0xd508_0000 => None,
        // wfet, wfit
        _ if word & 0xffff_ffc0 == 0xd503_1000 => None,
        _ if word & 0xfff8_f01f == 0xd500_401f || word & 0xfff0_0000 == 0xd510_0000 => {
            Some(Forbidden::SystemRegister)
        }
        // mrs, of which only the interrupt mask is the kernel's.
        _ if word & 0xffff_ffe0 == 0xd53b_4220 => Some(Forbidden::SystemRegister),
        _ if word & 0xfff0_0000 == 0xd530_0000 => None,
        _ => Some(Forbidden::Undecodable),
    }
}

/// nop, bti, and what signs or strips pointers without checking them.
fn is_steppable_hint(word: u32) -> bool {
    matches!(bits(word, 5, 7), 0 | 7 | 8 | 0xa | 0x18..=0x1b | 0x20 | 0x22 | 0x24 | 0x26)
}

/// bti c, bti j, bti jc, paciasp, pacibsp: where a branch by register may land in a guarded page.
///
/// A direct branch in its place would fault there; `brk` may stand in its place.
pub fn is_landing_pad(word: u32) -> bool {
    is_hint(word) && matches!(bits(word, 5, 7), 0x19 | 0x1b | 0x20 | 0x22 | 0x24 | 0x26)
}

/// Most instructions that are looked at behind a site.
const LOOK_AHEAD: usize = 64;

/// What may be done with the instruction at `addr`, in its surroundings.
pub fn verdict_at(code: &Code<'_>, addr: u64) -> Verdict {
    if addr & 3 != 0 {
        return Verdict::Refused(Forbidden::Misaligned);
    }
    let Some(word) = word_at(code, addr) else { return Verdict::Refused(Forbidden::Undecodable) };
    match verdict(word) {
        Verdict::Refused(what) => Verdict::Refused(what),
        _ if is_before_exclusive_store(code, addr) => Verdict::Refused(Forbidden::InExclusive),
        verdict => verdict,
    }
}

fn word_at(code: &Code<'_>, addr: u64) -> Option<u32> {
    let bytes = code.from_addr(addr).first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// An exclusive store can be reached from `addr` with no exclusive load on the way, so one came before.
///
/// All ways are followed, forward and back, over calls too. A store without a load before it never succeeds, so no
/// compiler makes a way on which this would be wrong.
fn is_before_exclusive_store(code: &Code<'_>, addr: u64) -> bool {
    const CLREX: u32 = 0xd503_305f;
    let mut seen = [0u64; LOOK_AHEAD];
    seen[0] = addr;
    let (mut known, mut next) = (1, 0);
    while next < known {
        let at = seen[next];
        next += 1;
        let Some(word) = word_at(code, at) else { continue };
        if is_exclusive_store(word) {
            return true;
        }
        if is_exclusive_load(word) || word & 0xffff_f0ff == CLREX {
            continue;
        }
        for to in successors(word, at).into_iter().flatten() {
            if known < LOOK_AHEAD && !seen[..known].contains(&to) {
                seen[known] = to;
                known += 1;
            }
        }
    }
    false
}

/// Where control may go from here, inside the function.
fn successors(word: u32, at: u64) -> [Option<u64>; 2] {
    let behind = Some(at.wrapping_add(4));
    match decode(word, at) {
        None => [behind, None],
        Some(Relative::Call { .. } | Relative::Register { by: By::Call, .. }) => [behind, None],
        Some(Relative::Adr { .. } | Relative::Adrp { .. } | Relative::Load { .. }) => [behind, None],
        Some(Relative::Register { .. }) => [None, None],
        Some(branch) if branch.ends() => [branch.target(), None],
        Some(branch) => [behind, branch.target()],
    }
}

#[cfg(test)]
mod tests;
