//! Where a value lies at one place of the code: a register, memory, a constant.
//!
//! For:     arguments of marks and of functions, for whoever makes loads of them.
//! State:   none.
//! Context: control.
//! Keeps:   1. Registers have DWARF's numbers of the machine; what is not understood is [`Loc::Unknown`] with the reason.
//! Checked: tests below, tests/suite/marks.rs, dwarf/tests.rs.

use crate::ImageAddr;
use std::sync::Arc;

/// DWARF's number of x86-64's stack pointer.
pub const STACK_POINTER: u8 = 7;
/// DWARF's number of x86-64's return address; here the instruction pointer.
pub const INSTRUCTION_POINTER: u8 = 16;

/// Where a value, or a part of it, lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loc {
    /// It is this number.
    Constant(u64),
    /// In a general register, so many bits up (`%ah` is 8).
    Register {
        /// 0 to 16.
        number: u8,
        /// The first bit.
        shift: u8,
    },
    /// In a vector register, from this byte on.
    Vector {
        /// 0 for `%xmm0`.
        number: u8,
        /// 0 or 8.
        byte: u8,
    },
    /// In memory at base + index × scale + displacement.
    Memory(Address),
    /// In memory at an address of the image.
    Image(ImageAddr),
    /// Not known; why.
    Unknown(Arc<str>),
}

/// An address as an instruction has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Address {
    /// A general register.
    pub base: Option<u8>,
    /// Another, and by what it is multiplied.
    pub index: Option<(u8, u8)>,
    /// What is added.
    pub displacement: i64,
}

/// An argument of a mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkArgument {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// It has a sign.
    pub is_signed: bool,
    /// It is a floating-point number.
    pub is_float: bool,
    /// Where it is.
    pub loc: Loc,
}

/// The arguments of a mark, from the words of its note; `symbol` knows the addresses of names.
pub fn mark_arguments(note: &str, symbol: &dyn Fn(&str) -> Option<ImageAddr>) -> Vec<MarkArgument> {
    note.split_whitespace().map(|word| argument(word, symbol)).collect()
}

fn argument(word: &str, symbol: &dyn Fn(&str) -> Option<ImageAddr>) -> MarkArgument {
    // Without a size it is a word.
    let (size, place) = word.split_once('@').unwrap_or(("8", word));
    let (is_float, digits) = match size.strip_suffix('f') {
        Some(digits) => (true, digits),
        None => (false, size),
    };
    let bytes = digits.trim_start_matches('-').parse::<u8>().ok().filter(|n| matches!(n, 1 | 2 | 4 | 8));
    let loc = match bytes {
        Some(_) => place_of(place, symbol).unwrap_or_else(|| unknown(word)),
        None => unknown(word),
    };
    let is_float = is_float || matches!(loc, Loc::Vector { .. });
    MarkArgument { size: bytes.unwrap_or(8), is_signed: digits.starts_with('-'), is_float, loc }
}

fn unknown(word: &str) -> Loc {
    Loc::Unknown(format!("the mark's note has it at {word}, which is not understood").into())
}

fn place_of(text: &str, symbol: &dyn Fn(&str) -> Option<ImageAddr>) -> Option<Loc> {
    if let Some(constant) = text.strip_prefix('$') {
        return number(constant).map(|n| Loc::Constant(n.cast_unsigned()));
    }
    if let Some(name) = text.strip_prefix('%') {
        return register(name);
    }
    let (before, inner) = match text.split_once('(') {
        Some((before, inner)) => (before, Some(inner.strip_suffix(')')?)),
        None => (text, None),
    };
    let (name, displacement) = displaced(before)?;
    let Some(inner) = inner else {
        // A bare number or name is an address of its own.
        return match name {
            None => Some(Loc::Memory(Address { displacement, ..Address::default() })),
            Some(name) => at_symbol(symbol(name)?, displacement),
        };
    };
    let mut parts = inner.split(',').map(str::trim);
    let base = parts.next().unwrap_or_default();
    if base == "%rip" {
        return at_symbol(symbol(name?)?, displacement);
    }
    if name.is_some() {
        return None;
    }
    let base = if base.is_empty() { None } else { Some(general(base.strip_prefix('%')?)?) };
    let index = parts.next().map(|index| general(index.strip_prefix('%')?));
    let index = match index {
        None => None,
        Some(index) => Some((index?, parts.next().map_or(Some(1), |scale| scale.parse().ok())?)),
    };
    let is_whole = parts.next().is_none() && index.is_none_or(|(_, scale)| matches!(scale, 1 | 2 | 4 | 8));
    is_whole.then_some(Loc::Memory(Address { base, index, displacement }))
}

fn at_symbol(symbol: ImageAddr, displacement: i64) -> Option<Loc> {
    Some(Loc::Image(ImageAddr(symbol.0.wrapping_add_signed(displacement))))
}

/// A name and what is added to it: `sym`, `sym+4`, `-8`, `4+sym`.
fn displaced(text: &str) -> Option<(Option<&str>, i64)> {
    if text.is_empty() {
        return Some((None, 0));
    }
    if let Some(n) = number(text) {
        return Some((None, n));
    }
    if text.starts_with(|c: char| c.is_ascii_digit())
        && let Some((n, name)) = text.split_once('+')
    {
        return Some((Some(name), number(n)?));
    }
    match text.rfind(['+', '-']).filter(|at| *at > 0) {
        Some(at) if number(&text[at..]).is_some() => Some((Some(&text[..at]), number(&text[at..])?)),
        _ => Some((Some(text), 0)),
    }
}

fn number(text: &str) -> Option<i64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None if digits.starts_with(|c: char| c.is_ascii_digit()) => digits.parse().ok()?,
        None => return None,
    };
    Some(if is_negative { value.cast_signed().wrapping_neg() } else { value.cast_signed() })
}

/// Names of the general registers by DWARF's numbers, from 8 bytes down to 1.
const REGISTERS: [[&str; 4]; 8] = [
    ["rax", "eax", "ax", "al"],
    ["rdx", "edx", "dx", "dl"],
    ["rcx", "ecx", "cx", "cl"],
    ["rbx", "ebx", "bx", "bl"],
    ["rsi", "esi", "si", "sil"],
    ["rdi", "edi", "di", "dil"],
    ["rbp", "ebp", "bp", "bpl"],
    ["rsp", "esp", "sp", "spl"],
];
const HIGH: [&str; 4] = ["ah", "dh", "ch", "bh"];

fn general(name: &str) -> Option<u8> {
    if let Some(number) = REGISTERS.iter().position(|names| names.contains(&name)) {
        return Some(number as u8);
    }
    if matches!(name, "rip" | "eip") {
        return Some(INSTRUCTION_POINTER);
    }
    let number = name.strip_prefix('r')?.trim_end_matches(['d', 'w', 'b']);
    number.parse().ok().filter(|n| (8..=15).contains(n))
}

fn register(name: &str) -> Option<Loc> {
    if let Some(number) = general(name) {
        return Some(Loc::Register { number, shift: 0 });
    }
    if let Some(number) = HIGH.iter().position(|high| *high == name) {
        return Some(Loc::Register { number: number as u8, shift: 8 });
    }
    let number = name.strip_prefix("xmm").or_else(|| name.strip_prefix("ymm"))?;
    let number = number.parse().ok().filter(|n| *n < 16)?;
    Some(Loc::Vector { number, byte: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(word: &str) -> MarkArgument {
        let known = |name: &str| (name == "table").then_some(ImageAddr(0x4000));
        mark_arguments(word, &known).remove(0)
    }

    #[test]
    fn every_form_of_a_note_is_read() {
        let memory = |base, index, displacement| Loc::Memory(Address { base, index, displacement });
        for (word, size, is_signed, loc) in [
            ("-4@$-7", 4, true, Loc::Constant(-7i64 as u64)),
            ("8@$0x10", 8, false, Loc::Constant(16)),
            ("8@$-579005069656919568", 8, false, Loc::Constant(-579_005_069_656_919_568i64 as u64)),
            ("8@%rdi", 8, false, Loc::Register { number: 5, shift: 0 }),
            ("-1@%ah", 1, true, Loc::Register { number: 0, shift: 8 }),
            ("2@%r9w", 2, false, Loc::Register { number: 9, shift: 0 }),
            ("-2@%bp", 2, true, Loc::Register { number: 6, shift: 0 }),
            ("-8@16(%rsp)", 8, true, memory(Some(7), None, 16)),
            ("4@(%rax)", 4, false, memory(Some(0), None, 0)),
            ("4@-4(%rbp,%rdx,4)", 4, false, memory(Some(6), Some((1, 4)), -4)),
            ("4@(,%rcx,8)", 4, false, memory(None, Some((2, 8)), 0)),
            ("4@8(%r10,%r11)", 4, false, memory(Some(10), Some((11, 1)), 8)),
            ("4@table(%rip)", 4, false, Loc::Image(ImageAddr(0x4000))),
            ("4@table+12(%rip)", 4, false, Loc::Image(ImageAddr(0x400c))),
            ("4@4+table(%rip)", 4, false, Loc::Image(ImageAddr(0x4004))),
            ("4@table-4", 4, false, Loc::Image(ImageAddr(0x3ffc))),
            ("8@0x601040", 8, false, memory(None, None, 0x601040)),
        ] {
            let found = one(word);
            assert_eq!((found.size, found.is_signed, found.is_float), (size, is_signed, false), "{word}");
            assert_eq!(found.loc, loc, "{word}");
        }
        let float = one("8f@%xmm3");
        assert!(float.is_float && float.loc == Loc::Vector { number: 3, byte: 0 });
        let float = one("4f@-8(%rbp)");
        assert!(float.is_float && float.size == 4 && matches!(float.loc, Loc::Memory(_)));
    }

    #[test]
    fn what_is_not_understood_says_so() {
        for word in
            ["3@%rax", "8@%xyz", "8@nowhere(%rip)", "8@4(%rax", "8@4(%rax,%rbx,3)", "8@$", "@", "8@4(rax)"]
        {
            assert!(matches!(one(word).loc, Loc::Unknown(_)), "{word}");
        }
    }
}
