//! What an instruction means. A table.
//!
//! For:     the verifier, the interpreter, compilers, the disassembler.
//! State:   none.
//! Context: control.
//! Keeps:   O1 an `Op` encoded and decoded again is the same `Op`; what has no `Op` is refused by name.
//! Checked: `tests/semantics.rs` (O1 over every opcode).
//! Source:  RFC 9669, sections 4 and 5.

use crate::{Insn, Refusal};

/// A register, r0 to r10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(u8);

impl Reg {
    /// The result of a program and of a call.
    pub const R0: Reg = Reg(0);
    /// The first argument; the context at a program's start.
    pub const R1: Reg = Reg(1);
    /// The frame pointer, which may be read only.
    pub const FRAME: Reg = Reg(10);

    /// Register `number`; `None` above 10.
    pub const fn new(number: u8) -> Option<Reg> {
        if number <= 10 { Some(Reg(number)) } else { None }
    }

    /// 0 to 10.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// 0 to 10, as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How many bits an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// The lower half; the upper half of a result is zero.
    W32,
    /// All.
    W64,
}

/// How many bytes a memory access moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// One.
    B,
    /// Two.
    H,
    /// Four.
    W,
    /// Eight.
    Dw,
}

impl Size {
    /// All of them.
    pub const ALL: [Size; 4] = [Size::B, Size::H, Size::W, Size::Dw];

    /// 1, 2, 4 or 8.
    pub const fn bytes(self) -> usize {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::Dw => 8,
        }
    }

    /// 8 to 64.
    pub const fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }
}

/// A second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register's value.
    Reg(Reg),
    /// A constant, sign-extended to the operation's width.
    Imm(i32),
}

/// Arithmetic with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alu {
    /// `dst += src`.
    Add,
    /// `dst -= src`.
    Sub,
    /// `dst *= src`.
    Mul,
    /// Unsigned quotient; 0 for a divisor of 0.
    Div,
    /// Signed quotient, towards zero; 0 for a divisor of 0, the dividend for -1 where it has no negative.
    Sdiv,
    /// Bits of either.
    Or,
    /// Bits of both.
    And,
    /// Left shift by the lower 5 or 6 bits.
    Lsh,
    /// Logical right shift by the lower 5 or 6 bits.
    Rsh,
    /// Unsigned remainder; the dividend for a divisor of 0.
    Mod,
    /// Signed remainder with the dividend's sign; the dividend for a divisor of 0.
    Smod,
    /// Bits of one of the two.
    Xor,
    /// `dst = src`.
    Mov,
    /// Arithmetic right shift by the lower 5 or 6 bits.
    Arsh,
}

impl Alu {
    /// All of them.
    pub const ALL: [Alu; 14] = [
        Alu::Add,
        Alu::Sub,
        Alu::Mul,
        Alu::Div,
        Alu::Sdiv,
        Alu::Or,
        Alu::And,
        Alu::Lsh,
        Alu::Rsh,
        Alu::Mod,
        Alu::Smod,
        Alu::Xor,
        Alu::Mov,
        Alu::Arsh,
    ];
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cond {
    /// Equal.
    Eq,
    /// Unsigned greater.
    Gt,
    /// Unsigned greater or equal.
    Ge,
    /// A bit is set in both.
    Set,
    /// Not equal.
    Ne,
    /// Signed greater.
    Sgt,
    /// Signed greater or equal.
    Sge,
    /// Unsigned less.
    Lt,
    /// Unsigned less or equal.
    Le,
    /// Signed less.
    Slt,
    /// Signed less or equal.
    Sle,
}

impl Cond {
    /// All of them.
    pub const ALL: [Cond; 11] = [
        Cond::Eq,
        Cond::Gt,
        Cond::Ge,
        Cond::Set,
        Cond::Ne,
        Cond::Sgt,
        Cond::Sge,
        Cond::Lt,
        Cond::Le,
        Cond::Slt,
        Cond::Sle,
    ];
}

/// How bytes are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// To or from little-endian: on our machines only truncated.
    Little,
    /// To or from big-endian.
    Big,
    /// Turned round whatever the machine's order.
    Swap,
}

/// What is done in one step to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// `*p += src`; with `fetch`, `src` gets the old value.
    Add {
        /// The old value is wanted.
        fetch: bool,
    },
    /// `*p |= src`.
    Or {
        /// The old value is wanted.
        fetch: bool,
    },
    /// `*p &= src`.
    And {
        /// The old value is wanted.
        fetch: bool,
    },
    /// `*p ^= src`.
    Xor {
        /// The old value is wanted.
        fetch: bool,
    },
    /// `src` and `*p` change places.
    Xchg,
    /// If `*p` is r0, it becomes `src`; r0 gets the old value.
    Cmpxchg,
}

impl Atomic {
    /// All of them.
    pub const ALL: [Atomic; 10] = [
        Atomic::Add { fetch: false },
        Atomic::Add { fetch: true },
        Atomic::Or { fetch: false },
        Atomic::Or { fetch: true },
        Atomic::And { fetch: false },
        Atomic::And { fetch: true },
        Atomic::Xor { fetch: false },
        Atomic::Xor { fetch: true },
        Atomic::Xchg,
        Atomic::Cmpxchg,
    ];
}

/// What a 64-bit immediate stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wide {
    /// Itself.
    Value(u64),
    /// A map, by descriptor.
    MapFd(i32),
    /// The value at `offset` of a map's first element, by descriptor.
    MapValueFd {
        /// The map.
        fd: i32,
        /// Bytes into the value.
        offset: u32,
    },
    /// A variable of the platform.
    Variable(i32),
    /// The address of a function of the program, by the distance to it.
    Function(i32),
    /// A map, by index.
    MapIndex(i32),
    /// The value at `offset` of a map's first element, by index.
    MapValueIndex {
        /// The map.
        index: i32,
        /// Bytes into the value.
        offset: u32,
    },
}

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// The platform's helper with this number.
    Helper(u32),
    /// The program's function that begins this far behind the next instruction.
    Local(i32),
    /// The platform's function with this BTF number.
    Btf(i32),
    /// The helper whose number is in a register.
    Indirect(Reg),
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Arithmetic.
    Alu {
        /// Bits worked on.
        width: Width,
        /// What is done.
        alu: Alu,
        /// First operand and result.
        dst: Reg,
        /// Second operand.
        src: Operand,
    },
    /// `dst = -dst`.
    Neg {
        /// Bits worked on.
        width: Width,
        /// Operand and result.
        dst: Reg,
    },
    /// `dst` = the lower bits of `src`, sign-extended.
    Movsx {
        /// Bits of the result; above them zero.
        width: Width,
        /// Bits taken, fewer than the result's.
        from: Size,
        /// Result.
        dst: Reg,
        /// Operand.
        src: Reg,
    },
    /// Bytes in another order; 16 and 32 bits zero-extended.
    End {
        /// Which order.
        order: Order,
        /// 2, 4 or 8 bytes.
        size: Size,
        /// Operand and result.
        dst: Reg,
    },
    /// `dst` = what a wide immediate stands for; two slots.
    Wide {
        /// Result.
        dst: Reg,
        /// What.
        wide: Wide,
    },
    /// `dst = *(src + offset)`.
    Load {
        /// Bytes.
        size: Size,
        /// Sign-extended to 64 bits, else zero-extended.
        signed: bool,
        /// Result.
        dst: Reg,
        /// Base address.
        src: Reg,
        /// Added to the base.
        offset: i16,
    },
    /// `*(dst + offset) = src`.
    Store {
        /// Bytes.
        size: Size,
        /// Base address.
        dst: Reg,
        /// Added to the base.
        offset: i16,
        /// Value.
        src: Operand,
    },
    /// One step on memory; 4 or 8 bytes.
    Atomic {
        /// Bytes.
        size: Size,
        /// What.
        atomic: Atomic,
        /// Base address.
        dst: Reg,
        /// Added to the base.
        offset: i16,
        /// Value, and the old one where it is fetched.
        src: Reg,
    },
    /// A jump always taken.
    Ja {
        /// How far behind the next instruction.
        distance: i32,
        /// The form with 32 bits of distance.
        long: bool,
    },
    /// A jump taken on a condition, this far behind the next instruction.
    Jump {
        /// Bits compared.
        width: Width,
        /// When.
        cond: Cond,
        /// First operand.
        dst: Reg,
        /// Second operand.
        src: Operand,
        /// How far.
        offset: i16,
    },
    /// A call.
    Call(Callee),
    /// Back to the caller, or the end.
    Exit,
}

const LD: u8 = 0;
const LDX: u8 = 1;
const ST: u8 = 2;
const STX: u8 = 3;
const ALU: u8 = 4;
const JMP: u8 = 5;
const JMP32: u8 = 6;
const ALU64: u8 = 7;
/// The second operand is a register.
const X: u8 = 8;
const NEG: u8 = 0x80;
const END: u8 = 0xd0;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const WIDE: u8 = 0x18;
const MEM: u8 = 0x60;
const MEMSX: u8 = 0x80;
const ATOMIC: u8 = 0xc0;
const FETCH: i32 = 1;

/// Code, signed form (an offset of 1), operation.
const ALUS: [(u8, bool, Alu); 14] = [
    (0x00, false, Alu::Add),
    (0x10, false, Alu::Sub),
    (0x20, false, Alu::Mul),
    (0x30, false, Alu::Div),
    (0x30, true, Alu::Sdiv),
    (0x40, false, Alu::Or),
    (0x50, false, Alu::And),
    (0x60, false, Alu::Lsh),
    (0x70, false, Alu::Rsh),
    (0x90, false, Alu::Mod),
    (0x90, true, Alu::Smod),
    (0xa0, false, Alu::Xor),
    (0xb0, false, Alu::Mov),
    (0xc0, false, Alu::Arsh),
];

const CONDS: [(u8, Cond); 11] = [
    (0x10, Cond::Eq),
    (0x20, Cond::Gt),
    (0x30, Cond::Ge),
    (0x40, Cond::Set),
    (0x50, Cond::Ne),
    (0x60, Cond::Sgt),
    (0x70, Cond::Sge),
    (0xa0, Cond::Lt),
    (0xb0, Cond::Le),
    (0xc0, Cond::Slt),
    (0xd0, Cond::Sle),
];

const ATOMICS: [(i32, Atomic); 10] = [
    (0x00, Atomic::Add { fetch: false }),
    (FETCH, Atomic::Add { fetch: true }),
    (0x40, Atomic::Or { fetch: false }),
    (0x40 | FETCH, Atomic::Or { fetch: true }),
    (0x50, Atomic::And { fetch: false }),
    (0x50 | FETCH, Atomic::And { fetch: true }),
    (0xa0, Atomic::Xor { fetch: false }),
    (0xa0 | FETCH, Atomic::Xor { fetch: true }),
    (0xe0 | FETCH, Atomic::Xchg),
    (0xf0 | FETCH, Atomic::Cmpxchg),
];

const SIZES: [(u8, Size); 4] = [(0x00, Size::W), (0x08, Size::H), (0x10, Size::B), (0x18, Size::Dw)];

/// The second member of the pair whose first is `key`.
fn look_up<K: PartialEq, V: Copy>(table: &[(K, V)], key: &K) -> Option<V> {
    table.iter().find(|(k, _)| k == key).map(|(_, v)| *v)
}

/// The first member of the pair whose second is `value`.
fn code_of<K: Copy, V: PartialEq>(table: &[(K, V)], value: &V) -> K {
    table
        .iter()
        .find(|(_, v)| v == value)
        .map(|(k, _)| *k)
        .unwrap_or_else(|| unreachable!("tables are whole"))
}

impl Op {
    /// The instruction in `insn`, and for a wide immediate in the slot behind it too.
    ///
    /// # Errors
    /// No such instruction: an opcode or a register that does not exist, or a field that must be zero and is not.
    pub fn decode(insn: Insn, next: Option<Insn>) -> Result<Op, Refusal> {
        let bare = Op::read(insn, next).ok_or(Refusal::NoSuchInstruction { opcode: insn.opcode })?;
        let reg = |number| Reg::new(number).is_some();
        if !reg(insn.dst) || !reg(insn.src) {
            return Err(Refusal::NoSuchRegister { number: insn.dst.max(insn.src) });
        }
        // What an `Op` does not say must be zero: then the same bytes come out again.
        match bare.encode() {
            (first, second) if first == insn && second.is_none_or(|second| Some(second) == next) => Ok(bare),
            _ => Err(Refusal::ReservedField { opcode: insn.opcode }),
        }
    }

    fn read(insn: Insn, next: Option<Insn>) -> Option<Op> {
        let (dst, src) = (Reg(insn.dst.min(10)), Reg(insn.src.min(10)));
        let operand = if insn.opcode & X != 0 { Operand::Reg(src) } else { Operand::Imm(insn.imm) };
        let (code, size) = (insn.opcode & 0xf0, look_up(&SIZES, &(insn.opcode & 0x18))?);
        let offset = insn.offset;
        Some(match insn.opcode & 7 {
            LD => (insn.opcode == WIDE)
                .then(|| wide(insn, next?))
                .flatten()
                .map(|wide| Op::Wide { dst, wide })?,
            LDX if insn.opcode & 0xe0 == MEM => Op::Load { size, signed: false, dst, src, offset },
            LDX if insn.opcode & 0xe0 == MEMSX && size != Size::Dw => {
                Op::Load { size, signed: true, dst, src, offset }
            }
            ST if insn.opcode & 0xe0 == MEM => Op::Store { size, dst, offset, src: Operand::Imm(insn.imm) },
            STX if insn.opcode & 0xe0 == MEM => Op::Store { size, dst, offset, src: Operand::Reg(src) },
            STX if insn.opcode & 0xe0 == ATOMIC && matches!(size, Size::W | Size::Dw) => {
                Op::Atomic { size, atomic: look_up(&ATOMICS, &insn.imm)?, dst, offset, src }
            }
            class @ (ALU | ALU64) => {
                let width = if class == ALU { Width::W32 } else { Width::W64 };
                arithmetic(insn, width, code, operand)?
            }
            class @ (JMP | JMP32) => jump(insn, class, code, operand)?,
            _ => return None,
        })
    }

    /// Its slots.
    pub fn encode(self) -> (Insn, Option<Insn>) {
        let insn = match self {
            Op::Alu { width, alu, dst, src } => {
                let (code, is_signed, _) = *ALUS
                    .iter()
                    .find(|(.., a)| *a == alu)
                    .unwrap_or_else(|| unreachable!("the table is whole"));
                with(
                    Insn { opcode: code | class_of(width), dst: dst.0, offset: i16::from(is_signed), ..ZERO },
                    src,
                )
            }
            Op::Neg { width, dst } => Insn { opcode: NEG | class_of(width), dst: dst.0, ..ZERO },
            Op::Movsx { width, from, dst, src } => {
                let opcode = 0xb0 | X | class_of(width);
                Insn { opcode, dst: dst.0, src: src.0, offset: from.bits() as i16, ..ZERO }
            }
            Op::End { order, size, dst } => {
                let opcode = match order {
                    Order::Little => END | ALU,
                    Order::Big => END | X | ALU,
                    Order::Swap => END | ALU64,
                };
                Insn { opcode, dst: dst.0, imm: size.bits() as i32, ..ZERO }
            }
            Op::Wide { dst, wide } => return wide_slots(dst, wide),
            Op::Load { size, signed, dst, src, offset } => {
                let mode = if signed { MEMSX } else { MEM };
                Insn { opcode: mode | code_of(&SIZES, &size) | LDX, dst: dst.0, src: src.0, offset, ..ZERO }
            }
            Op::Store { size, dst, offset, src } => {
                let opcode = MEM | code_of(&SIZES, &size);
                match src {
                    Operand::Imm(imm) => Insn { opcode: opcode | ST, dst: dst.0, offset, imm, ..ZERO },
                    Operand::Reg(src) => {
                        Insn { opcode: opcode | STX, dst: dst.0, src: src.0, offset, ..ZERO }
                    }
                }
            }
            Op::Atomic { size, atomic, dst, offset, src } => {
                let opcode = ATOMIC | code_of(&SIZES, &size) | STX;
                Insn { opcode, dst: dst.0, src: src.0, offset, imm: code_of(&ATOMICS, &atomic) }
            }
            Op::Ja { distance, long: false } => Insn { opcode: JMP, offset: distance as i16, ..ZERO },
            Op::Ja { distance, long: true } => Insn { opcode: JMP32, imm: distance, ..ZERO },
            Op::Jump { width, cond, dst, src, offset } => {
                let class = if width == Width::W64 { JMP } else { JMP32 };
                with(Insn { opcode: code_of(&CONDS, &cond) | class, dst: dst.0, offset, ..ZERO }, src)
            }
            Op::Call(callee) => match callee {
                Callee::Helper(number) => Insn { opcode: CALL | JMP, imm: number.cast_signed(), ..ZERO },
                Callee::Local(distance) => Insn { opcode: CALL | JMP, src: 1, imm: distance, ..ZERO },
                Callee::Btf(number) => Insn { opcode: CALL | JMP, src: 2, imm: number, ..ZERO },
                Callee::Indirect(reg) => Insn { opcode: CALL | X | JMP, dst: reg.0, ..ZERO },
            },
            Op::Exit => Insn { opcode: EXIT | JMP, ..ZERO },
        };
        (insn, None)
    }

    /// Slots that it takes: two for a wide immediate, else one.
    pub const fn slots(self) -> usize {
        if matches!(self, Op::Wide { .. }) { 2 } else { 1 }
    }

    /// How far behind the next instruction a jump leads, if it is one.
    pub const fn jump_distance(self) -> Option<i32> {
        match self {
            Op::Ja { distance, .. } => Some(distance),
            Op::Jump { offset, .. } => Some(offset as i32),
            _ => None,
        }
    }

    /// The register that it writes.
    pub const fn written(self) -> Option<Reg> {
        match self {
            Op::Alu { dst, .. }
            | Op::Neg { dst, .. }
            | Op::Movsx { dst, .. }
            | Op::End { dst, .. }
            | Op::Wide { dst, .. }
            | Op::Load { dst, .. } => Some(dst),
            Op::Atomic { atomic: Atomic::Cmpxchg, .. } | Op::Call(_) => Some(Reg::R0),
            Op::Atomic { atomic, src, .. } if atomic.fetches() => Some(src),
            _ => None,
        }
    }
}

impl Atomic {
    /// The old value goes into a register.
    pub const fn fetches(self) -> bool {
        match self {
            Atomic::Add { fetch } | Atomic::Or { fetch } | Atomic::And { fetch } | Atomic::Xor { fetch } => {
                fetch
            }
            Atomic::Xchg | Atomic::Cmpxchg => true,
        }
    }
}

const ZERO: Insn = Insn { opcode: 0, dst: 0, src: 0, offset: 0, imm: 0 };

const fn class_of(width: Width) -> u8 {
    match width {
        Width::W32 => ALU,
        Width::W64 => ALU64,
    }
}

fn with(insn: Insn, operand: Operand) -> Insn {
    match operand {
        Operand::Imm(imm) => Insn { imm, ..insn },
        Operand::Reg(src) => Insn { opcode: insn.opcode | X, src: src.0, ..insn },
    }
}

fn arithmetic(insn: Insn, width: Width, code: u8, operand: Operand) -> Option<Op> {
    let (dst, src) = (Reg(insn.dst.min(10)), Reg(insn.src.min(10)));
    let bits = |bits: i32| match bits {
        8 => Some(Size::B),
        16 => Some(Size::H),
        32 => Some(Size::W),
        64 => Some(Size::Dw),
        _ => None,
    };
    Some(match code {
        NEG if insn.opcode & X == 0 => Op::Neg { width, dst },
        END => {
            let order = match (width, insn.opcode & X) {
                (Width::W32, 0) => Order::Little,
                (Width::W32, _) => Order::Big,
                (Width::W64, 0) => Order::Swap,
                (Width::W64, _) => return None,
            };
            Op::End { order, size: bits(insn.imm).filter(|size| *size != Size::B)?, dst }
        }
        0xb0 if insn.opcode & X != 0 && insn.offset != 0 => {
            let is_narrower = |from: &Size| from.bytes() < if width == Width::W64 { 8 } else { 4 };
            Op::Movsx { width, from: bits(i32::from(insn.offset)).filter(is_narrower)?, dst, src }
        }
        _ => {
            let is_signed = insn.offset == 1 && matches!(code, 0x30 | 0x90);
            let (.., alu) = *ALUS.iter().find(|(c, s, _)| *c == code && *s == is_signed)?;
            Op::Alu { width, alu, dst, src: operand }
        }
    })
}

fn jump(insn: Insn, class: u8, code: u8, operand: Operand) -> Option<Op> {
    let width = if class == JMP { Width::W64 } else { Width::W32 };
    Some(match (code, class, insn.opcode & X) {
        (0, JMP, 0) => Op::Ja { distance: i32::from(insn.offset), long: false },
        (0, JMP32, 0) => Op::Ja { distance: insn.imm, long: true },
        (CALL, JMP, 0) => Op::Call(match insn.src {
            0 => Callee::Helper(insn.imm.cast_unsigned()),
            1 => Callee::Local(insn.imm),
            2 => Callee::Btf(insn.imm),
            _ => return None,
        }),
        (CALL, JMP, _) => Op::Call(Callee::Indirect(Reg(insn.dst.min(10)))),
        (EXIT, JMP, 0) => Op::Exit,
        _ => {
            let cond = look_up(&CONDS, &code)?;
            Op::Jump { width, cond, dst: Reg(insn.dst.min(10)), src: operand, offset: insn.offset }
        }
    })
}

fn wide(insn: Insn, next: Insn) -> Option<Wide> {
    let high = next.imm.cast_unsigned();
    Some(match insn.src {
        0 => Wide::Value(u64::from(insn.imm.cast_unsigned()) | u64::from(high) << 32),
        1 => Wide::MapFd(insn.imm),
        2 => Wide::MapValueFd { fd: insn.imm, offset: high },
        3 => Wide::Variable(insn.imm),
        4 => Wide::Function(insn.imm),
        5 => Wide::MapIndex(insn.imm),
        6 => Wide::MapValueIndex { index: insn.imm, offset: high },
        _ => return None,
    })
}

fn wide_slots(dst: Reg, wide: Wide) -> (Insn, Option<Insn>) {
    let (src, low, high) = match wide {
        Wide::Value(value) => (0, value as i32, (value >> 32) as i32),
        Wide::MapFd(fd) => (1, fd, 0),
        Wide::MapValueFd { fd, offset } => (2, fd, offset.cast_signed()),
        Wide::Variable(number) => (3, number, 0),
        Wide::Function(distance) => (4, distance, 0),
        Wide::MapIndex(index) => (5, index, 0),
        Wide::MapValueIndex { index, offset } => (6, index, offset.cast_signed()),
    };
    (Insn { opcode: WIDE, dst: dst.0, src, offset: 0, imm: low }, Some(Insn { imm: high, ..ZERO }))
}
