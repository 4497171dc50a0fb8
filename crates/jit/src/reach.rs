//! What a program reads of its context, and how much of its stack it uses.
//!
//! For:     the compiler, which makes frames as long as they have to be; trampolines, which save what is read.
//! State:   none.
//! Context: control.
//! Keeps:   C1 a word of the context that is read by way of r1 is named; where its address gets out of sight, all are.
//!          C2 what is accessed by way of r10 lies in the frame; where its address gets out of sight, the frame is whole. Who is
//!             given an address in a frame goes up from it: helpers do, and so does what we write.
//! Checked: tests below; tests/engines.rs, whose programs would read what is not there.

use crate::arch;
use crate::flow::{Function, successors};
use bpf::{Alu, Atomic, Callee, FRAME_LEN, Op, Operand, Program, Reg, Width};
use std::collections::BTreeMap;

/// What a program reads of its context, the kernel's `pt_regs` (of A64 `user_pt_regs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// A bit for each word of eight bytes, bit 0 for the first.
    pub words: u64,
    /// It writes there.
    pub is_written: bool,
}

impl Context {
    /// Its words.
    pub const WORDS: u32 = arch::CONTEXT_WORDS;
    const ALL: u64 = (1 << Context::WORDS) - 1;

    /// Whether the word at this byte offset is read.
    pub fn reads(&self, offset: u32) -> bool {
        self.words >> (offset / 8).min(63) & 1 != 0
    }

    fn take(&mut self, at: i64, len: usize) {
        for byte in [at, at + len as i64 - 1] {
            match u32::try_from(byte / 8) {
                Ok(word) if byte >= 0 && word < Context::WORDS => self.words |= 1 << word,
                _ => self.words = Context::ALL,
            }
        }
    }
}

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Neither of the others.
    Other,
    /// So far from the frame's end.
    Frame(i64),
    /// So far from the context's beginning.
    Context(i64),
}

type Regs = [Known; 11];

/// What was found in one function.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    pub context: Context,
    /// Bytes of its frame.
    pub frame: u32,
}

/// Follows r1 and r10 through a function; `is_main`: r1 is the context.
pub(crate) fn reach(program: &Program, function: &Function, is_main: bool) -> Reach {
    let mut found = Found::default();
    let mut first = [Known::Other; 11];
    first[10] = Known::Frame(0);
    if is_main {
        first[1] = Known::Context(0);
    }
    let mut before: BTreeMap<usize, Regs> = BTreeMap::from([(function.entry, first)]);
    let mut open = vec![function.entry];
    while let Some(at) = open.pop() {
        let (Some(op), Some(mut regs)) = (program.op(at), before.get(&at).copied()) else { continue };
        found.step(op, &mut regs);
        for to in successors(program, at, op).into_iter().flatten() {
            match before.get_mut(&to) {
                None => drop(before.insert(to, regs)),
                Some(known) => {
                    if !found.join(known, &regs) {
                        continue;
                    }
                }
            }
            open.push(to);
        }
    }
    let frame = (-found.lowest).clamp(0, FRAME_LEN as i64) as u32;
    Reach { context: found.context, frame: frame.next_multiple_of(8) }
}

#[derive(Default)]
struct Found {
    context: Context,
    /// The lowest place in the frame, from its end.
    lowest: i64,
}

impl Found {
    /// True if something became less known.
    fn join(&mut self, known: &mut Regs, other: &Regs) -> bool {
        let mut is_changed = false;
        for (a, b) in known.iter_mut().zip(other) {
            if *a != *b {
                self.lose(*a);
                self.lose(*b);
                is_changed |= *a != Known::Other;
                *a = Known::Other;
            }
        }
        is_changed
    }

    /// An address gets out of sight.
    fn lose(&mut self, known: Known) {
        match known {
            Known::Other => {}
            Known::Frame(_) => self.lowest = -(FRAME_LEN as i64),
            Known::Context(_) => self.context.words = Context::ALL,
        }
    }

    fn access(&mut self, base: Known, offset: i16, len: usize, is_write: bool) {
        match base {
            Known::Other => {}
            Known::Frame(at) => self.lowest = self.lowest.min(at + i64::from(offset)),
            Known::Context(at) => {
                self.context.is_written |= is_write;
                self.context.take(at + i64::from(offset), len);
            }
        }
    }

    fn step(&mut self, op: Op, regs: &mut Regs) {
        let of = |regs: &Regs, reg: Reg| regs[reg.index()];
        match op {
            Op::Load { size, src, offset, .. } => self.access(of(regs, src), offset, size.bytes(), false),
            Op::Store { size, dst, offset, src } => {
                self.access(of(regs, dst), offset, size.bytes(), true);
                if let Operand::Reg(src) = src {
                    self.lose(of(regs, src));
                }
            }
            Op::Atomic { size, dst, offset, src, atomic } => {
                self.access(of(regs, dst), offset, size.bytes(), true);
                self.lose(of(regs, src));
                if matches!(atomic, Atomic::Cmpxchg) {
                    self.lose(regs[0]);
                    regs[0] = Known::Other;
                }
            }
            Op::Alu { width, alu, dst, src } => return self.alu(width, alu, dst, src, regs),
            Op::Neg { dst, .. } | Op::End { dst, .. } => self.lose(of(regs, dst)),
            Op::Movsx { src, .. } => self.lose(of(regs, src)),
            Op::Call(callee) => {
                self.call(callee, regs);
                regs[..6].fill(Known::Other);
            }
            Op::Wide { .. } | Op::Ja { .. } | Op::Jump { .. } | Op::Exit => {}
        }
        if let Some(written) = op.written() {
            regs[written.index()] = Known::Other;
        }
    }

    fn alu(&mut self, width: Width, alu: Alu, dst: Reg, src: Operand, regs: &mut Regs) {
        let by = |at: i64, imm: i32| {
            let to = if alu == Alu::Add { at + i64::from(imm) } else { at - i64::from(imm) };
            // Farther away it points into neither.
            (to.abs() <= 1 << 16).then_some(to)
        };
        let known = match (width, alu, src, regs[dst.index()]) {
            (Width::W64, Alu::Mov, Operand::Reg(src), _) => regs[src.index()],
            (_, Alu::Mov, Operand::Imm(_), _) => Known::Other,
            (Width::W64, Alu::Add | Alu::Sub, Operand::Imm(imm), Known::Frame(at))
                if by(at, imm).is_some() =>
            {
                Known::Frame(by(at, imm).unwrap_or(at))
            }
            (Width::W64, Alu::Add | Alu::Sub, Operand::Imm(imm), Known::Context(at))
                if by(at, imm).is_some() =>
            {
                Known::Context(by(at, imm).unwrap_or(at))
            }
            (_, alu, src, before) => {
                if alu != Alu::Mov {
                    self.lose(before);
                }
                if let Operand::Reg(src) = src {
                    self.lose(regs[src.index()]);
                }
                Known::Other
            }
        };
        regs[dst.index()] = known;
    }

    /// A helper goes up from an address in the frame, and asks the hit for registers: it is not led to them by r1, which
    /// often still has the context's address. A function of the program may do as it likes.
    fn call(&mut self, callee: Callee, regs: &Regs) {
        for known in &regs[1..6] {
            match (callee, known) {
                (Callee::Local(_), known) => self.lose(*known),
                (_, Known::Frame(at)) => self.lowest = self.lowest.min(*at),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (u32, Vec<u32>, bool) {
        let program = Program::new(bpf::assemble(text).unwrap()).unwrap();
        let functions = crate::flow::functions(&program);
        let Reach { context, frame } = reach(&program, &functions[0], true);
        let words = (0..Context::WORDS).filter(|word| context.reads(word * 8)).map(|word| word * 8);
        (frame, words.collect(), context.is_written)
    }

    #[test]
    fn what_is_read_by_way_of_r1_is_named() {
        assert_eq!(of("ldxdw %r0, [%r1+112]\nexit"), (0, vec![112], false));
        let copied = "mov %r6, %r1\nadd %r6, 8\ncall 5\nldxw %r0, [%r6+100]\nldxdw %r2, [%r6+0]\nexit";
        assert_eq!(of(copied), (0, vec![8, 104], false));
        assert_eq!(of("stdw [%r1+80], 1\nexit"), (0, vec![80], true));
    }

    #[test]
    fn frames_are_as_deep_as_what_is_accessed() {
        assert_eq!(of("mov %r0, 0\nexit").0, 0);
        assert_eq!(of("stxdw [%r10-8], %r0\nldxb %r0, [%r10-12]\nexit").0, 16);
        assert_eq!(of("mov %r2, %r10\nadd %r2, -24\ncall 5\nexit").0, 24);
        assert_eq!(of("mov %r2, %r10\nadd %r2, -24\nstw [%r2-4], 0\nexit").0, 32);
    }

    #[test]
    fn where_an_address_gets_out_of_sight_all_is_named() {
        let all = Context::WORDS as usize;
        assert_eq!(of("stxdw [%r10-8], %r1\nexit").1.len(), all);
        assert_eq!(of("mov %r3, %r10\nsub %r3, %r0\nexit").0, 512);
        let joined = "mov %r2, %r10\njeq %r0, 0, on\nadd %r2, -8\non:\nstdw [%r2-8], 0\nexit";
        assert_eq!(of(joined).0, 512);
        assert_eq!(of("call local f\nexit\nf:\nldxdw %r0, [%r1+0]\nexit").1.len(), all);
        assert_eq!(of(&format!("ldxdw %r0, [%r1+{}]\nexit", 8 * all)).1.len(), all);
    }
}
