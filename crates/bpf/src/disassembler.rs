//! Instructions as text that the assembler reads.
//!
//! For:     people, error messages, `-d`.
//! State:   none.
//! Context: control.
//! Keeps:   T1 text assembled again is the same instruction.
//! Checked: `tests/semantics.rs` (T1 over every opcode).

use crate::op::{Alu, Atomic, Callee, Cond, Operand, Order, Size, Wide, Width};
use crate::{Op, Program, Reg};
use std::fmt::{self, Display, Formatter};

/// The assembler's names of two-operand arithmetic.
pub(crate) const ALUS: [(&str, Alu); 14] = [
    ("add", Alu::Add),
    ("sub", Alu::Sub),
    ("mul", Alu::Mul),
    ("div", Alu::Div),
    ("sdiv", Alu::Sdiv),
    ("or", Alu::Or),
    ("and", Alu::And),
    ("lsh", Alu::Lsh),
    ("rsh", Alu::Rsh),
    ("mod", Alu::Mod),
    ("smod", Alu::Smod),
    ("xor", Alu::Xor),
    ("mov", Alu::Mov),
    ("arsh", Alu::Arsh),
];

/// The assembler's names of conditions, after a `j`.
pub(crate) const CONDS: [(&str, Cond); 11] = [
    ("eq", Cond::Eq),
    ("gt", Cond::Gt),
    ("ge", Cond::Ge),
    ("set", Cond::Set),
    ("ne", Cond::Ne),
    ("sgt", Cond::Sgt),
    ("sge", Cond::Sge),
    ("lt", Cond::Lt),
    ("le", Cond::Le),
    ("slt", Cond::Slt),
    ("sle", Cond::Sle),
];

/// The assembler's names of atomic operations, after `lock`.
pub(crate) const ATOMICS: [(&str, Atomic); 10] = [
    ("add", Atomic::Add { fetch: false }),
    ("fetch add", Atomic::Add { fetch: true }),
    ("or", Atomic::Or { fetch: false }),
    ("fetch or", Atomic::Or { fetch: true }),
    ("and", Atomic::And { fetch: false }),
    ("fetch and", Atomic::And { fetch: true }),
    ("xor", Atomic::Xor { fetch: false }),
    ("fetch xor", Atomic::Xor { fetch: true }),
    ("xchg", Atomic::Xchg),
    ("cmpxchg", Atomic::Cmpxchg),
];

/// The assembler's names of sizes.
pub(crate) const SIZES: [(&str, Size); 4] =
    [("b", Size::B), ("h", Size::H), ("w", Size::W), ("dw", Size::Dw)];

/// The assembler's names of orders, before a number of bits.
pub(crate) const ORDERS: [(&str, Order); 3] =
    [("le", Order::Little), ("be", Order::Big), ("bswap", Order::Swap)];

/// The assembler's names of what a wide immediate can stand for besides a value.
pub(crate) const WIDES: [&str; 6] = ["map_fd", "map_value_fd", "variable", "function", "map", "map_value"];

fn name<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, v)| v == value).map_or("?", |(name, _)| name)
}

fn suffix(width: Width) -> &'static str {
    match width {
        Width::W32 => "32",
        Width::W64 => "",
    }
}

/// `[%r1+8]`.
struct Place(Reg, i16);

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.1 {
            0 => write!(f, "[{}]", self.0),
            offset => write!(f, "[{}{offset:+}]", self.0),
        }
    }
}

impl Display for Reg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%r{}", self.number())
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Reg(reg) => reg.fmt(f),
            Operand::Imm(imm) => imm.fmt(f),
        }
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Alu { width, alu, dst, src } => {
                write!(f, "{}{} {dst}, {src}", name(&ALUS, &alu), suffix(width))
            }
            Op::Neg { width, dst } => write!(f, "neg{} {dst}", suffix(width)),
            Op::Movsx { width, from, dst, src } => {
                let to = if width == Width::W64 { 64 } else { 32 };
                write!(f, "movsx{}{to} {dst}, {src}", from.bits())
            }
            Op::End { order, size, dst } => write!(f, "{}{} {dst}", name(&ORDERS, &order), size.bits()),
            Op::Wide { dst, wide } => write_wide(f, dst, wide),
            Op::Load { size, signed, dst, src, offset } => {
                let sign = if signed { "s" } else { "" };
                write!(f, "ldx{sign}{} {dst}, {}", name(&SIZES, &size), Place(src, offset))
            }
            Op::Store { size, dst, offset, src } => {
                let kind = if matches!(src, Operand::Reg(_)) { "stx" } else { "st" };
                write!(f, "{kind}{} {}, {src}", name(&SIZES, &size), Place(dst, offset))
            }
            Op::Atomic { size, atomic, dst, offset, src } => {
                let width = if size == Size::W { "32" } else { "" };
                write!(f, "lock {}{width} {}, {src}", name(&ATOMICS, &atomic), Place(dst, offset))
            }
            Op::Ja { distance, long } => write!(f, "ja{} {distance:+}", if long { "32" } else { "" }),
            Op::Jump { width, cond, dst, src, offset } => {
                write!(f, "j{}{} {dst}, {src}, {offset:+}", name(&CONDS, &cond), suffix(width))
            }
            Op::Call(Callee::Helper(number)) => write!(f, "call {number}"),
            Op::Call(Callee::Local(distance)) => write!(f, "call local {distance:+}"),
            Op::Call(Callee::Btf(number)) => write!(f, "call btf {number}"),
            Op::Call(Callee::Indirect(reg)) => write!(f, "call {reg}"),
            Op::Exit => write!(f, "exit"),
        }
    }
}

fn write_wide(f: &mut Formatter<'_>, dst: Reg, wide: Wide) -> fmt::Result {
    write!(f, "lddw {dst}, ")?;
    match wide {
        Wide::Value(value) => write!(f, "{value:#x}"),
        Wide::MapFd(fd) => write!(f, "map_fd {fd}"),
        Wide::MapValueFd { fd, offset } => write!(f, "map_value_fd {fd} {offset}"),
        Wide::Variable(number) => write!(f, "variable {number}"),
        Wide::Function(distance) => write!(f, "function {distance}"),
        Wide::MapIndex(index) => write!(f, "map {index}"),
        Wide::MapValueIndex { index, offset } => write!(f, "map_value {index} {offset}"),
    }
}

/// One instruction a line.
impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.ops().try_for_each(|(_, op)| writeln!(f, "{op}"))
    }
}
