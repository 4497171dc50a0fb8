//! Reading all code without decoding it, for what refers to a few functions.
//!
//! For:     `Flow::analyse_near`, where decoding a hundred megabytes for one probe would take too long.
//! State:   the caller's set of targets and list of tables.
//! Context: control. Cost: 0.7 to 2.5 ns a byte, tables included; the loops over words are made for the
//!          vectoriser.
//! Keeps:   G1 every displacement in code that is not decoded, at whatever byte it stands, that leads into `wanted` and is preceded
//!          by the opcode of a direct branch or by a rip-relative operand, is in the set: a superset of what `sweep`
//!          finds there, but for branches with an 8-bit displacement.
//!          G2 the operand of everything that looks like `lea reg,[rip+x]` outside code is in the list of tables.
//! Checked: tests/real `what_is_found_near_includes_all_that_is_found_by_decoding`.

use std::ops::Range;

use super::sweep::Met;
use crate::code::Code;
use crate::tables::Tables;
use crate::targets::Targets;

/// Words looked at before it is asked whether one of them was of interest.
const BLOCK_WORDS: usize = 64;

/// Adds what `code` refers to in `wanted`, except for the parts that are `decoded` anyway. Both are sorted.
pub(crate) fn scan(code: &Code<'_>, wanted: &[Range<u64>], decoded: &[Range<u64>], met: &mut Met) {
    let Met { targets, tables, entries, .. } = met;
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return };
    let hull = first.start..last.end;
    let is_wanted = |addr| holds(wanted, addr);
    relative(code, &hull, &mut |at, immediate, target| {
        let is_decoded = holds(decoded, code.base + at as u64);
        if is_wanted(target) && !is_decoded && refers(code, at, immediate) {
            targets.insert(target);
            if immediate == 0 && is_jump(code, at) {
                entries.add(target);
            }
        }
    });
    if super::sweep::is_absolute(code.base) {
        absolute(code, &hull, &mut |at, target| {
            let is_decoded = holds(decoded, code.base + at as u64);
            if is_wanted(target) && !is_decoded && is_immediate(code, at) {
                targets.insert(target);
            }
        });
        absolute_tables(code, tables);
    }
    loads_of_addresses(code, targets, tables);
}

fn holds(ranges: &[Range<u64>], addr: u64) -> bool {
    let after = ranges.partition_point(|range| range.end <= addr);
    ranges.get(after).is_some_and(|range| range.contains(&addr))
}

/// Whether the displacement at `at` can be that of a branch, or of an operand with `immediate` bytes behind it.
fn refers(code: &Code<'_>, at: usize, immediate: u64) -> bool {
    let before = |back: usize| at.checked_sub(back).map_or(0, |at| code.bytes[at]);
    let (opcode, map) = (before(2), before(3));
    let is_branch = matches!(before(1), 0xe8 | 0xe9)
        || opcode == 0x0f && before(1) & 0xf0 == 0x80
        || opcode == 0xc7 && before(1) == 0xf8;
    // Opcodes of the first map that never have one. 3a is the map in which all have; c4 and 62 may name it.
    let never_has = matches!(opcode, 0x00..=0x3f | 0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff)
        && map != 0x3a
        && !matches!(before(5), 0xc4)
        && !matches!(before(6), 0x62);
    match immediate {
        0 => is_branch || is_rip_modrm(before(1)),
        _ => is_rip_modrm(before(1)) && !never_has,
    }
}

/// Whether the displacement at `at` can be that of a jump.
fn is_jump(code: &Code<'_>, at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map_or(0, |at| code.bytes[at]);
    let (map, opcode) = (before(2), before(1));
    opcode == 0xe9 || map == 0x0f && opcode & 0xf0 == 0x80 || map == 0xc7 && opcode == 0xf8
}

fn is_rip_modrm(byte: u8) -> bool {
    byte & 0xc7 == 0x05
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().expect("four bytes")))
}

/// Calls `found` with the offset of each word that leads into `hull`, the length of the immediate that would stand
/// behind it, and where it leads.
///
/// An immediate operand may stand between the displacement and the end of its instruction; with a rip-relative
/// operand it is 1, 2 or 4 bytes long, so these are tried too.
fn relative(code: &Code<'_>, hull: &Range<u64>, found: &mut dyn FnMut(usize, u64, u64)) {
    const IMMEDIATES: [u64; 4] = [0, 1, 2, 4];
    let len = (hull.end - hull.start) as u32 + 4;
    for phase in 0..4usize.min(code.bytes.len()) {
        let words = code.bytes[phase..].as_chunks::<4>().0;
        for (number, block) in words.chunks(BLOCK_WORDS).enumerate() {
            let first = phase + number * BLOCK_WORDS * 4;
            // Modulo 2^32: a false hit is sorted out below.
            let base = (code.base + first as u64 + 4).wrapping_sub(hull.start - 4) as u32;
            let mut any = false;
            for (index, word) in block.iter().enumerate() {
                let lead = base.wrapping_add(index as u32 * 4).wrapping_add(u32::from_le_bytes(*word));
                any |= lead < len;
            }
            if !any {
                continue;
            }
            for (index, word) in block.iter().enumerate() {
                let at = first + index * 4;
                let displacement = i64::from(i32::from_le_bytes(*word));
                let target = (code.base + at as u64 + 4).wrapping_add_signed(displacement);
                for immediate in IMMEDIATES {
                    let target = target.wrapping_add(immediate);
                    if hull.contains(&target) {
                        found(at, immediate, target);
                    }
                }
            }
        }
    }
}

/// Whether the word at `at` can be the immediate of a mov or push: b8+r, 68, or c7 with its operand between.
fn is_immediate(code: &Code<'_>, at: usize) -> bool {
    let before = &code.bytes[at.saturating_sub(7)..at];
    let is_short = before.last().is_some_and(|opcode| matches!(opcode, 0xb8..=0xbf | 0x68));
    is_short || before.iter().rev().skip(1).any(|opcode| *opcode == 0xc7)
}

/// Calls `found` with the offset of each word that is itself an address in `hull`, and that address.
fn absolute(code: &Code<'_>, hull: &Range<u64>, found: &mut dyn FnMut(usize, u64)) {
    // Above 4 GiB no 32-bit immediate leads into the hull.
    let Ok(start) = u32::try_from(hull.start) else { return };
    let len = (hull.end - hull.start) as u32;
    for phase in 0..4usize.min(code.bytes.len()) {
        let words = code.bytes[phase..].as_chunks::<4>().0;
        for (number, block) in words.chunks(BLOCK_WORDS).enumerate() {
            let any = block
                .iter()
                .fold(false, |any, word| any | (u32::from_le_bytes(*word).wrapping_sub(start) < len));
            if !any {
                continue;
            }
            for (index, word) in block.iter().enumerate() {
                let word = u64::from(u32::from_le_bytes(*word));
                if hull.contains(&word) {
                    found(phase + (number * BLOCK_WORDS + index) * 4, word);
                }
            }
        }
    }
}

/// The displacement of every `[reg*8+disp32]` that a jump, call or load may have.
fn absolute_tables(code: &Code<'_>, tables: &mut Tables) {
    for (at, bytes) in code.bytes.windows(3).enumerate() {
        if bytes[2] & 0xc7 == 0xc5 && bytes[1] & 0xc7 == 0x04 && matches!(bytes[0], 0xff | 0x8b) {
            tables.add(word_at(code.bytes, at + 3) as i32 as u64);
        }
    }
}

/// The operand of every `lea reg,[rip+disp32]`, if it is outside code.
fn loads_of_addresses(code: &Code<'_>, targets: &Targets, tables: &mut Tables) {
    const LEA: u8 = 0x8d;
    for (number, chunk) in code.bytes.chunks(16).enumerate() {
        if !chunk.iter().fold(false, |any, byte| any | (*byte == LEA)) {
            continue;
        }
        for at in (number * 16..).zip(chunk).filter(|(_, byte)| **byte == LEA).map(|(at, _)| at) {
            let is_wide = at.checked_sub(1).is_some_and(|rex| code.bytes[rex] & 0xf8 == 0x48);
            if is_wide && code.bytes.get(at + 1).is_some_and(|modrm| is_rip_modrm(*modrm)) {
                let displacement = i64::from(word_at(code.bytes, at + 2) as i32);
                let operand = (code.base + at as u64 + 6).wrapping_add_signed(displacement);
                if !targets.in_code(operand) {
                    tables.add(operand);
                }
            }
        }
    }
}
