//! Random programs that end, and touch nothing but their stack and memory.
//!
//! For:     `torture bpf`.
//! State:   none.
//! Context: control.
//! Keeps:   G1 no program faults, whatever its memory holds: the interpreter would say so, and the torture fails then.
//!          G2 no address gets into a result: engines have different ones.
//! Checked: `tests/bpf.rs`.

use crate::rng::Rng;
use bpf::{Alu, Atomic, Callee, Cond, Insn, Op, Operand, Order, Program, Reg, Size, Wide, Width};

/// Bytes of memory.
pub const MEMORY_LEN: usize = 64;

/// Registers with numbers in them. r6 has the memory's address, r7 counts turns.
const NUMBERS: [u8; 8] = [0, 1, 2, 3, 4, 5, 8, 9];
const MEMORY: u8 = 6;
const TURNS: u8 = 7;
/// Words of stack in use, below r10.
const WORDS: u64 = 8;
const EDGES: [i64; 12] = [
    0,
    1,
    -1,
    2,
    0x7f,
    0x8000,
    i32::MAX as i64,
    i32::MIN as i64,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX,
    i64::MIN,
];

/// Memory for a run.
pub fn memory(rng: &mut Rng) -> [u8; MEMORY_LEN] {
    let mut bytes = [0; MEMORY_LEN];
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = value(rng).to_le_bytes();
    }
    bytes
}

/// A program.
pub fn program(rng: &mut Rng) -> Program {
    let functions = rng.below(3) as usize;
    let mut text = Text { rng, calls: Vec::new(), functions, level: 0, in_loop: false };
    let mut insns = text.function();
    let mut starts = Vec::new();
    let mut calls = std::mem::take(&mut text.calls);
    for level in 0..functions {
        text.level = level + 1;
        starts.push(insns.len());
        let body = text.function();
        calls.extend(std::mem::take(&mut text.calls).into_iter().map(|(at, to)| (at + insns.len(), to)));
        insns.extend(body);
    }
    for (at, to) in calls {
        insns[at].imm = starts[to] as i32 - (at as i32 + 1);
    }
    match Program::new(insns) {
        Ok(program) => program,
        Err(refused) => unreachable!("what is generated is a program: {refused}"),
    }
}

/// A number that is worth trying.
fn value(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.next(),
        1 => rng.below(256),
        _ => EDGES[rng.below(12) as usize].cast_unsigned(),
    }
}

struct Text<'r> {
    rng: &'r mut Rng,
    /// Calls of functions by number, to be filled in.
    calls: Vec<(usize, usize)>,
    functions: usize,
    /// This one's number, from 1; 0 is the program itself. It calls later ones only.
    level: usize,
    in_loop: bool,
}

impl Text<'_> {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.below(from.len() as u64) as usize]
    }

    fn number(&mut self) -> Reg {
        let number = self.pick(&NUMBERS);
        reg(number)
    }

    /// A whole function: every register set, a body, and a result that depends on all of them.
    fn function(&mut self) -> Vec<Insn> {
        let mut to = Vec::new();
        // The address of the memory, or of eight bytes; a function's r2 to r5 have numbers.
        mov(&mut to, reg(MEMORY), Operand::Reg(reg(1)));
        let given = if self.level == 0 { 0 } else { 4 };
        for number in NUMBERS.into_iter().filter(|n| !(2..2 + given).contains(n)) {
            self.set(&mut to, reg(number));
        }
        for word in 1..=WORDS {
            let src = self.number();
            emit(
                &mut to,
                Op::Store {
                    size: Size::Dw,
                    dst: Reg::FRAME,
                    offset: -8 * word as i16,
                    src: Operand::Reg(src),
                },
            );
        }
        let len = 5 + self.rng.below(25);
        let body = self.items(len, 0, to.len());
        to.extend(body);
        self.mix(&mut to);
        emit(&mut to, Op::Exit);
        to
    }

    /// r0 of everything.
    fn mix(&mut self, to: &mut Vec<Insn>) {
        let fold = |to: &mut Vec<Insn>, from: Reg| {
            alu(to, Width::W64, Alu::Mul, Reg::R0, Operand::Imm(31));
            alu(to, Width::W64, Alu::Xor, Reg::R0, Operand::Reg(from));
        };
        NUMBERS.into_iter().skip(1).for_each(|number| fold(to, reg(number)));
        for word in 1..=WORDS {
            let offset = -8 * word as i16;
            emit(to, Op::Load { size: Size::Dw, signed: false, dst: reg(1), src: Reg::FRAME, offset });
            fold(to, reg(1));
        }
    }

    fn set(&mut self, to: &mut Vec<Insn>, dst: Reg) {
        let value = value(self.rng);
        match i32::try_from(value.cast_signed()) {
            Ok(imm) => mov(to, dst, Operand::Imm(imm)),
            Err(_) => emit(to, Op::Wide { dst, wide: Wide::Value(value) }),
        }
    }

    /// So many items; `at` is where they will stand.
    fn items(&mut self, len: u64, depth: u32, at: usize) -> Vec<Insn> {
        let mut to = Vec::new();
        for _ in 0..len {
            self.item(&mut to, depth, at);
        }
        to
    }

    fn item(&mut self, to: &mut Vec<Insn>, depth: u32, at: usize) {
        match self.rng.below(20) {
            0..=7 => self.arithmetic(to),
            8 => {
                let (width, dst) = (self.width(), self.number());
                emit(to, Op::Neg { width, dst });
            }
            9 => self.movsx(to),
            10 => {
                let (order, dst) = (self.pick(&[Order::Little, Order::Big, Order::Swap]), self.number());
                let size = self.pick(&Size::ALL[1..]);
                emit(to, Op::End { order, size, dst });
            }
            11 | 12 => self.load(to),
            13 | 14 => self.store(to),
            15 => self.atomic(to),
            16 | 17 if depth < 3 => self.branch(to, depth, at),
            18 if depth < 3 && !self.in_loop => self.turns(to, depth, at),
            19 if self.level < self.functions && depth < 2 => self.call(to, at),
            _ => {
                let dst = self.number();
                self.set(to, dst);
            }
        }
    }

    fn width(&mut self) -> Width {
        self.pick(&[Width::W32, Width::W64])
    }

    fn operand(&mut self) -> Operand {
        match self.rng.below(2) {
            0 => Operand::Reg(self.number()),
            _ => Operand::Imm(value(self.rng) as i32),
        }
    }

    fn arithmetic(&mut self, to: &mut Vec<Insn>) {
        let (width, op, dst) = (self.width(), self.pick(&Alu::ALL), self.number());
        let src = match (op, self.operand()) {
            // The kernel's verifier does not take a division by the constant 0, or a shift by too much.
            (Alu::Div | Alu::Sdiv | Alu::Mod | Alu::Smod, Operand::Imm(0)) => Operand::Imm(-1),
            (Alu::Lsh | Alu::Rsh | Alu::Arsh, Operand::Imm(imm)) => Operand::Imm(imm & 31),
            (_, src) => src,
        };
        alu(to, width, op, dst, src);
    }

    fn movsx(&mut self, to: &mut Vec<Insn>) {
        let (width, dst, src) = (self.width(), self.number(), self.number());
        let narrower = if width == Width::W64 { 3 } else { 2 };
        let from = self.pick(&Size::ALL[..narrower]);
        emit(to, Op::Movsx { width, from, dst, src });
    }

    /// A place of so many bytes: on the stack, aligned, or in the memory.
    fn place(&mut self, size: Size, is_aligned: bool) -> (Reg, i16) {
        let len = size.bytes() as u64;
        if self.rng.one_in(2) {
            let slots = 8 * WORDS / len;
            return (Reg::FRAME, -(len as i16) * (1 + self.rng.below(slots) as i16));
        }
        // Functions are given eight bytes.
        let all = if self.level == 0 { MEMORY_LEN as u64 } else { 8 };
        let offset = match is_aligned || self.level > 0 {
            true => len * self.rng.below(all / len),
            false => self.rng.below(all - len + 1),
        };
        (reg(MEMORY), offset as i16)
    }

    fn load(&mut self, to: &mut Vec<Insn>) {
        let (size, dst) = (self.pick(&Size::ALL), self.number());
        let (src, offset) = self.place(size, false);
        let signed = size != Size::Dw && self.rng.one_in(2);
        emit(to, Op::Load { size, signed, dst, src, offset });
    }

    fn store(&mut self, to: &mut Vec<Insn>) {
        let (size, src) = (self.pick(&Size::ALL), self.operand());
        let (dst, offset) = self.place(size, false);
        emit(to, Op::Store { size, dst, offset, src });
    }

    fn atomic(&mut self, to: &mut Vec<Insn>) {
        let (size, atomic, src) = (self.pick(&Size::ALL[2..]), self.pick(&Atomic::ALL), self.number());
        let (dst, offset) = self.place(size, true);
        if atomic == Atomic::Cmpxchg && self.rng.one_in(2) {
            // Else it hardly ever finds what it expects.
            emit(to, Op::Load { size, signed: false, dst: Reg::R0, src: dst, offset });
        }
        emit(to, Op::Atomic { size, atomic, dst, offset, src });
    }

    fn branch(&mut self, to: &mut Vec<Insn>, depth: u32, at: usize) {
        let (width, cond, dst, src) = (self.width(), self.pick(&Cond::ALL), self.number(), self.operand());
        let (len, has_else) = (1 + self.rng.below(5), self.rng.one_in(2));
        let yes_at = at + to.len() + 1;
        let yes = self.items(len, depth + 1, yes_at);
        let no = if has_else { self.items(len, depth + 1, yes_at + yes.len() + 1) } else { Vec::new() };
        let offset = yes.len() as i16 + i16::from(has_else);
        emit(to, Op::Jump { width, cond, dst, src, offset });
        to.extend(yes);
        if has_else {
            let long = self.rng.one_in(2);
            emit(to, Op::Ja { distance: no.len() as i32, long });
            to.extend(no);
        }
    }

    fn turns(&mut self, to: &mut Vec<Insn>, depth: u32, at: usize) {
        self.in_loop = true;
        mov(to, reg(TURNS), Operand::Imm(1 + self.rng.below(6) as i32));
        let len = 1 + self.rng.below(6);
        let body = self.items(len, depth + 1, at + to.len());
        self.in_loop = false;
        let back = -(body.len() as i16 + 2);
        to.extend(body);
        alu(to, Width::W64, Alu::Sub, reg(TURNS), Operand::Imm(1));
        let (cond, src) = (Cond::Ne, Operand::Imm(0));
        emit(to, Op::Jump { width: Width::W64, cond, dst: reg(TURNS), src, offset: back });
    }

    /// r1 gets the address of eight bytes, r2 to r5 have numbers; afterwards r1 to r5 are set again.
    fn call(&mut self, to: &mut Vec<Insn>, at: usize) {
        let callee = self.level + self.rng.below((self.functions - self.level) as u64) as usize;
        if self.level == 0 && self.rng.one_in(2) {
            mov(to, reg(1), Operand::Reg(reg(MEMORY)));
            let word = self.rng.below(MEMORY_LEN as u64 / 8) as i32;
            alu(to, Width::W64, Alu::Add, reg(1), Operand::Imm(8 * word));
        } else {
            mov(to, reg(1), Operand::Reg(Reg::FRAME));
            let word = 1 + self.rng.below(WORDS) as i32;
            alu(to, Width::W64, Alu::Add, reg(1), Operand::Imm(-8 * word));
        }
        self.calls.push((at + to.len(), callee));
        emit(to, Op::Call(Callee::Local(0)));
        (1..6).for_each(|number| self.set(to, reg(number)));
    }
}

fn reg(number: u8) -> Reg {
    Reg::new(number).unwrap_or(Reg::R0)
}

fn emit(to: &mut Vec<Insn>, op: Op) {
    let (first, second) = op.encode();
    to.push(first);
    to.extend(second);
}

fn alu(to: &mut Vec<Insn>, width: Width, alu: Alu, dst: Reg, src: Operand) {
    emit(to, Op::Alu { width, alu, dst, src });
}

fn mov(to: &mut Vec<Insn>, dst: Reg, src: Operand) {
    alu(to, Width::W64, Alu::Mov, dst, src);
}
