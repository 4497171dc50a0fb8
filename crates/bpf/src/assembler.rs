//! Text into instructions.
//!
//! For:     tests, and people who write eBPF by hand.
//! State:   the labels of one text.
//! Context: control.
//! Keeps:   A1 what the disassembler writes comes back as the same instruction.
//! Checked: tests below; `tests/semantics.rs` (A1 over every opcode).
//! Source:  the assembler's syntax of the public bpf_conformance suite: `mov32 %r0, 1`, `jeq %r1, 2, label`,
//!          `ldxw %r0, [%r1+4]`, `lock fetch add [%r10-8], %r1`. A `#` begins a comment.

use crate::disassembler::{ALUS, ATOMICS, CONDS, ORDERS, SIZES, WIDES};
use crate::op::{Callee, Operand, Size, Wide, Width};
use crate::{Insn, Op, Reg};
use std::collections::BTreeMap;
use std::fmt;

/// A line that is no instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misread {
    /// Counted from 1.
    pub line: usize,
    /// What was read.
    pub text: String,
    /// What was wanted.
    pub wanted: Wanted,
}

/// What the assembler wanted where it found something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// The name of an instruction.
    Mnemonic,
    /// Operands of another number or kind.
    Operands,
    /// A label that is defined, once, at a distance that the jump can say.
    Label,
}

impl fmt::Display for Misread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = match self.wanted {
            Wanted::Mnemonic => "an instruction's name",
            Wanted::Operands => "other operands",
            Wanted::Label => "a label in reach",
        };
        write!(f, "line {}: wanted {wanted} in `{}`", self.line, self.text)
    }
}

impl std::error::Error for Misread {}

/// The instructions of a text.
///
/// # Errors
/// The first line that is none.
pub fn assemble(text: &str) -> Result<Vec<Insn>, Misread> {
    let lines = || text.lines().map(|line| line.split('#').next().unwrap_or("").trim()).enumerate();
    let misread = |line: usize, text: &str, wanted| Misread { line: line + 1, text: text.into(), wanted };
    let mut labels = BTreeMap::new();
    // A jump to `exit` leads to the first one, if no label is called so.
    let mut exit = None;
    let mut at = 0;
    for (number, line) in lines().filter(|(_, line)| !line.is_empty()) {
        match line.strip_suffix(':') {
            Some(label) if labels.insert(label.trim(), at).is_some() => {
                return Err(misread(number, line, Wanted::Label));
            }
            Some(_) => {}
            None if line == "exit" => {
                exit = exit.or(Some(at));
                at += 1;
            }
            None => at += if line.starts_with("lddw") { 2 } else { 1 },
        }
    }
    let mut out = Vec::new();
    for (number, line) in lines().filter(|(_, line)| !line.is_empty() && !line.ends_with(':')) {
        let place = |label: &str| labels.get(label).copied().or(exit.filter(|_| label == "exit"));
        let op = Line { at: out.len(), place: &place }
            .read(line)
            .map_err(|wanted| misread(number, line, wanted))?;
        let (insn, second) = op.encode();
        out.push(insn);
        out.extend(second);
    }
    Ok(out)
}

struct Line<'a> {
    /// The instruction's number.
    at: usize,
    place: &'a dyn Fn(&str) -> Option<usize>,
}

impl Line<'_> {
    fn read(&self, line: &str) -> Result<Op, Wanted> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let operands: Vec<&str> = rest.split(',').map(str::trim).filter(|o| !o.is_empty()).collect();
        match word {
            "exit" if operands.is_empty() => Ok(Op::Exit),
            "lock" => atomic(rest),
            "call" => self.call(rest.trim()),
            "lddw" => wide(&operands).ok_or(Wanted::Operands),
            "ja" | "ja32" => {
                let [to] = operands[..] else { return Err(Wanted::Operands) };
                let (distance, long) = (self.distance(to)?, word == "ja32");
                let fits = long || i16::try_from(distance).is_ok();
                fits.then_some(Op::Ja { distance, long }).ok_or(Wanted::Label)
            }
            _ => self.other(word, &operands),
        }
    }

    fn other(&self, word: &str, operands: &[&str]) -> Result<Op, Wanted> {
        let (bare, width) = match word.strip_suffix("32") {
            Some(bare) => (bare, Width::W32),
            None => (word, Width::W64),
        };
        if let Some(cond) = bare.strip_prefix('j').and_then(|cond| look_up(&CONDS, cond)) {
            let [dst, src, to] = operands[..] else { return Err(Wanted::Operands) };
            let (dst, src) = (reg(dst).ok_or(Wanted::Operands)?, operand(src).ok_or(Wanted::Operands)?);
            let offset = i16::try_from(self.distance(to)?).map_err(|_| Wanted::Label)?;
            return Ok(Op::Jump { width, cond, dst, src, offset });
        }
        if let Some(alu) = look_up(&ALUS, bare) {
            let [dst, src] = operands[..] else { return Err(Wanted::Operands) };
            let (dst, src) = (reg(dst).ok_or(Wanted::Operands)?, operand(src).ok_or(Wanted::Operands)?);
            return Ok(Op::Alu { width, alu, dst, src });
        }
        one_or_two(word, bare, width, operands)
    }

    fn call(&self, callee: &str) -> Result<Op, Wanted> {
        let words: Vec<&str> = callee.split_whitespace().collect();
        let callee = match words[..] {
            ["local", to] => Callee::Local(self.distance(to)?),
            ["btf", number] => Callee::Btf(imm(number).ok_or(Wanted::Operands)?),
            [one] => match reg(one) {
                Some(reg) => Callee::Indirect(reg),
                None => Callee::Helper(imm(one).ok_or(Wanted::Operands)?.cast_unsigned()),
            },
            _ => return Err(Wanted::Operands),
        };
        Ok(Op::Call(callee))
    }

    /// How far behind the next instruction a label or `+N` is.
    fn distance(&self, to: &str) -> Result<i32, Wanted> {
        if to.starts_with(['+', '-']) {
            return imm(to).ok_or(Wanted::Operands);
        }
        let to = (self.place)(to).ok_or(Wanted::Label)?;
        i32::try_from(to as i64 - self.at as i64 - 1).map_err(|_| Wanted::Label)
    }
}

fn look_up<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
}

/// Instructions with a destination, and a source or none.
fn one_or_two(word: &str, bare: &str, width: Width, operands: &[&str]) -> Result<Op, Wanted> {
    let size = |text: &str| look_up(&SIZES, text);
    // The suite's `swap16` and `bswap16` are one.
    let word = word.strip_prefix("swap").map_or(word.to_owned(), |bits| format!("bswap{bits}"));
    let order = ORDERS.iter().find_map(|(name, order)| Some((*order, bits(word.strip_prefix(name)?)?)));
    if let Some((order, size)) = order.filter(|(_, size)| *size != Size::B) {
        let [dst] = operands[..] else { return Err(Wanted::Operands) };
        return Ok(Op::End { order, size, dst: reg(dst).ok_or(Wanted::Operands)? });
    }
    if bare == "neg" {
        let [dst] = operands[..] else { return Err(Wanted::Operands) };
        return Ok(Op::Neg { width, dst: reg(dst).ok_or(Wanted::Operands)? });
    }
    let [first, second] = operands[..] else { return Err(Wanted::Mnemonic) };
    let op = || {
        if let Some(kind) = word.strip_prefix("movsx") {
            let (from, width) = match kind.strip_suffix("64") {
                Some(from) => (from, Width::W64),
                None => (kind.strip_suffix("32")?, Width::W32),
            };
            return Some(Op::Movsx { width, from: bits(from)?, dst: reg(first)?, src: reg(second)? });
        }
        if let Some(kind) = word.strip_prefix("ldx") {
            let (signed, size) = match kind.strip_prefix('s').and_then(size) {
                Some(size) => (true, size),
                None => (false, size(kind)?),
            };
            let (src, offset) = place(second)?;
            return Some(Op::Load { size, signed, dst: reg(first)?, src, offset });
        }
        let (is_reg, size) = match word.strip_prefix("stx").and_then(size) {
            Some(size) => (true, size),
            None => (false, size(word.strip_prefix("st")?)?),
        };
        let ((dst, offset), src) = (place(first)?, operand(second)?);
        (is_reg == matches!(src, Operand::Reg(_))).then_some(Op::Store { size, dst, offset, src })
    };
    let is_known = ["movsx", "ldx", "st"].iter().any(|start| word.starts_with(start));
    op().ok_or(if is_known { Wanted::Operands } else { Wanted::Mnemonic })
}

fn atomic(rest: &str) -> Result<Op, Wanted> {
    let (name, operands) = rest.split_once('[').ok_or(Wanted::Operands)?;
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    let (name, size) = match name.strip_suffix("32") {
        Some(name) => (name, Size::W),
        None => (name.as_str(), Size::Dw),
    };
    let atomic = look_up(&ATOMICS, name).ok_or(Wanted::Mnemonic)?;
    let (to, src) = operands.split_once(',').ok_or(Wanted::Operands)?;
    let (dst, offset) = place(&format!("[{}", to.trim())).ok_or(Wanted::Operands)?;
    Ok(Op::Atomic { size, atomic, dst, offset, src: reg(src.trim()).ok_or(Wanted::Operands)? })
}

fn wide(operands: &[&str]) -> Option<Op> {
    let [dst, what] = operands[..] else { return None };
    let words: Vec<&str> = what.split_whitespace().collect();
    let wide = match words[..] {
        [value] => Wide::Value(number(value)? as u64),
        [kind, a] => match WIDES.iter().position(|name| *name == kind)? {
            0 => Wide::MapFd(imm(a)?),
            2 => Wide::Variable(imm(a)?),
            3 => Wide::Function(imm(a)?),
            4 => Wide::MapIndex(imm(a)?),
            _ => return None,
        },
        ["map_value_fd", fd, offset] => {
            Wide::MapValueFd { fd: imm(fd)?, offset: imm(offset)?.cast_unsigned() }
        }
        ["map_value", index, offset] => {
            Wide::MapValueIndex { index: imm(index)?, offset: imm(offset)?.cast_unsigned() }
        }
        _ => return None,
    };
    Some(Op::Wide { dst: reg(dst)?, wide })
}

fn bits(text: &str) -> Option<Size> {
    SIZES.iter().map(|(_, size)| *size).find(|size| size.bits().to_string() == text)
}

fn reg(text: &str) -> Option<Reg> {
    Reg::new(text.strip_prefix('%').unwrap_or(text).strip_prefix('r')?.parse().ok()?)
}

/// `[%r1+8]`.
fn place(text: &str) -> Option<(Reg, i16)> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?.replace(' ', "");
    let at = inner.find(['+', '-']).unwrap_or(inner.len());
    let (base, offset) = inner.split_at(at);
    Some((reg(base)?, if offset.is_empty() { 0 } else { i16::try_from(number(offset)?).ok()? }))
}

fn operand(text: &str) -> Option<Operand> {
    reg(text).map(Operand::Reg).or_else(|| imm(text).map(Operand::Imm))
}

/// 32 bits, signed or not.
fn imm(text: &str) -> Option<i32> {
    let value = number(text)?;
    i32::try_from(value).ok().or_else(|| u32::try_from(value).ok().map(u32::cast_signed))
}

/// A number with a sign, decimal or after `0x`.
fn number(text: &str) -> Option<i128> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(if is_negative { -i128::from(value) } else { i128::from(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_lead_forwards_and_backwards() {
        let insns =
            assemble("mov %r0, 3\nagain:\nsub %r0, 1 # once more\njne %r0, 0, again\nja end\nend:\nexit")
                .unwrap();
        assert_eq!((insns[2].offset, insns[3].offset), (-2, 0));
    }

    #[test]
    fn what_is_no_instruction_is_named_with_its_line() {
        for (text, wanted) in [
            ("exit\nfly %r0", Wanted::Mnemonic),
            ("exit\nmov %r11, 1", Wanted::Operands),
            ("exit\nldxw %r0, [%r1+70000]", Wanted::Operands),
            ("exit\nja nowhere", Wanted::Label),
            ("exit\nlock nand [%r1], %r2", Wanted::Mnemonic),
        ] {
            let misread = assemble(text).unwrap_err();
            assert_eq!((misread.line, misread.wanted), (2, wanted), "{misread}");
        }
    }

    #[test]
    fn a_label_defined_twice_is_refused() {
        assert_eq!(assemble("a:\nexit\na:\nexit").unwrap_err().wanted, Wanted::Label);
    }
}
