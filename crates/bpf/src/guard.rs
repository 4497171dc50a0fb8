//! What a program asks before it does anything.
//!
//! For:     trampolines, which can ask it before they save registers.
//! State:   none.
//! Context: control.
//! Keeps:   G1 where one of the guards does not hold, a run from there on ends without having read or written anything but
//!             registers, its own frame and the context, and without a call.
//!          G2 the guards are asked in their order, and of words of the context alone.
//! Checked: tests below; jit tests/hostile.rs, which runs a thousand hostile programs beside the interpreter.

use crate::{Alu, Cond, Op, Operand, Program, Reg, Size, Wide, Width};
use std::collections::BTreeMap;

/// So many are asked at most.
pub const GUARDS_MAX: usize = 2;
/// Instructions that are followed.
const STEPS_MAX: usize = 512;

/// A word of the context compared with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Byte offset of the word of eight bytes.
    pub word: u32,
    /// How many of its bits.
    pub width: Width,
    /// How.
    pub cond: Cond,
    /// With what; sign-extended to the width.
    pub constant: i32,
    /// The program goes on where the condition is this.
    pub goes_on: bool,
}

impl Guard {
    /// Whether the program goes on with such a word.
    pub fn holds(&self, word: u64) -> bool {
        compare(self.cond, self.width, word, i64::from(self.constant).cast_unsigned()) == self.goes_on
    }
}

/// What a program asks first, [`GUARDS_MAX`] at most; none if it does something in any case.
pub fn guards(program: &Program) -> Vec<Guard> {
    let mut found = Vec::new();
    let mut now = State::begin();
    while found.len() < GUARDS_MAX
        && let Next::Fork { mut guard, taken, on } = now.follow(program)
    {
        let out = [&taken, &on].map(|way| matches!((**way).clone().follow(program), Next::End));
        (guard.goes_on, now) = match out {
            [true, false] => (false, *on),
            [false, true] => (true, *taken),
            _ => break,
        };
        found.push(guard);
    }
    found
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    Constant(u64),
    /// A word of the context, as it was.
    Word(u32),
    /// An address in the context.
    Context(i64),
    /// An address in the frame, from its end.
    Frame(i64),
}

enum Next {
    /// The program ends here, and has done nothing.
    End,
    /// It goes on by a condition.
    Fork { guard: Guard, taken: Box<State>, on: Box<State> },
    /// It does something.
    Other,
}

/// A run up to an instruction.
#[derive(Clone, Debug)]
struct State {
    at: usize,
    regs: [Value; 11],
    /// Words of the frame by their places.
    frame: BTreeMap<i64, Value>,
}

impl State {
    fn begin() -> State {
        let mut regs = [Value::Constant(0); 11];
        regs[Reg::R1.index()] = Value::Context(0);
        regs[Reg::FRAME.index()] = Value::Frame(0);
        State { at: 0, regs, frame: BTreeMap::new() }
    }

    fn operand(&self, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.regs[reg.index()],
            Operand::Imm(n) => Value::Constant(i64::from(n).cast_unsigned()),
        }
    }

    /// Goes on as far as no condition is in doubt.
    fn follow(&mut self, program: &Program) -> Next {
        for _ in 0..STEPS_MAX {
            let Some(op) = program.op(self.at) else { return Next::Other };
            let mut to = self.at + op.slots();
            match op {
                Op::Exit => return Next::End,
                Op::Ja { distance, .. } => match program.target(self.at, distance) {
                    Some(target) => to = target,
                    None => return Next::Other,
                },
                Op::Jump { width, cond, dst, src, offset } => {
                    let Some(target) = program.target(self.at, offset.into()) else { return Next::Other };
                    match decide(width, cond, self.regs[dst.index()], self.operand(src)) {
                        Decided::Known(true) => to = target,
                        Decided::Known(false) => {}
                        Decided::By(guard) => {
                            let way = |at| Box::new(State { at, ..self.clone() });
                            return Next::Fork { guard, taken: way(target), on: way(to) };
                        }
                        Decided::Not => return Next::Other,
                    }
                }
                op => {
                    if self.step(op).is_none() {
                        return Next::Other;
                    }
                }
            }
            self.at = to;
        }
        Next::Other
    }

    /// One that leads on; `None` if it does something that shows, or may.
    fn step(&mut self, op: Op) -> Option<()> {
        let (dst, value) = match op {
            Op::Alu { width, alu, dst, src } => {
                (dst, arithmetic(width, alu, self.regs[dst.index()], self.operand(src)))
            }
            Op::Wide { dst, wide: Wide::Value(n) } => (dst, Value::Constant(n)),
            Op::Neg { dst, .. } | Op::End { dst, .. } | Op::Movsx { dst, .. } => (dst, Value::Unknown),
            Op::Load { size, signed: false, dst, src, offset } => (dst, self.load(size, src, offset.into())?),
            Op::Store { size, dst, offset, src } => {
                let Value::Frame(base) = self.regs[dst.index()] else { return None };
                return self.store(size, base + i64::from(offset), self.operand(src));
            }
            _ => return None,
        };
        self.regs[dst.index()] = value;
        Some(())
    }

    fn load(&self, size: Size, src: Reg, offset: i64) -> Option<Value> {
        match self.regs[src.index()] {
            Value::Frame(base) if is_in_frame(base + offset, size) => {
                let whole = self.frame.get(&(base + offset)).filter(|_| size == Size::Dw);
                Some(whole.copied().unwrap_or(Value::Unknown))
            }
            Value::Context(base) if size == Size::Dw && (base + offset) % 8 == 0 => {
                u32::try_from(base + offset).ok().map(Value::Word)
            }
            _ => None,
        }
    }

    fn store(&mut self, size: Size, at: i64, value: Value) -> Option<()> {
        if !is_in_frame(at, size) {
            return None;
        }
        let end = at + size.bytes() as i64;
        self.frame.retain(|place, _| place + 8 <= at || *place >= end);
        if size == Size::Dw {
            self.frame.insert(at, value);
        }
        Some(())
    }
}

fn is_in_frame(at: i64, size: Size) -> bool {
    at >= -(crate::FRAME_LEN as i64) && at + size.bytes() as i64 <= 0
}

fn arithmetic(width: Width, alu: Alu, dst: Value, src: Value) -> Value {
    match (width, alu, dst, src) {
        (Width::W64, Alu::Mov, _, src) => src,
        (Width::W32, Alu::Mov, _, Value::Constant(n)) => Value::Constant(n & u64::from(u32::MAX)),
        (Width::W64, Alu::Add, Value::Constant(a), Value::Constant(b)) => Value::Constant(a.wrapping_add(b)),
        (Width::W64, Alu::Xor, Value::Constant(a), Value::Constant(b)) => Value::Constant(a ^ b),
        (Width::W64, Alu::Add, Value::Frame(a), Value::Constant(b)) => {
            moved(a, b.cast_signed(), Value::Frame)
        }
        (Width::W64, Alu::Sub, Value::Frame(a), Value::Constant(b)) => {
            moved(a, b.cast_signed().wrapping_neg(), Value::Frame)
        }
        (Width::W64, Alu::Add, Value::Context(a), Value::Constant(b)) => {
            moved(a, b.cast_signed(), Value::Context)
        }
        _ => Value::Unknown,
    }
}

fn moved(at: i64, by: i64, what: fn(i64) -> Value) -> Value {
    at.checked_add(by).filter(|to| to.abs() < 1 << 16).map_or(Value::Unknown, what)
}

enum Decided {
    Known(bool),
    By(Guard),
    Not,
}

fn decide(width: Width, cond: Cond, dst: Value, src: Value) -> Decided {
    let by = |word, cond, n: u64| {
        // A constant that the comparison can hold.
        let constant = match width {
            Width::W64 => i32::try_from(n.cast_signed()).ok(),
            Width::W32 => Some((n as u32).cast_signed()),
        };
        constant.map_or(Decided::Not, |constant| {
            Decided::By(Guard { word, width, cond, constant, goes_on: true })
        })
    };
    match (dst, src) {
        (Value::Constant(a), Value::Constant(b)) => Decided::Known(compare(cond, width, a, b)),
        (Value::Word(word), Value::Constant(n)) => by(word, cond, n),
        (Value::Constant(n), Value::Word(word)) => by(word, mirrored(cond), n),
        _ => Decided::Not,
    }
}

/// The condition with its operands in the other order.
fn mirrored(cond: Cond) -> Cond {
    match cond {
        Cond::Gt => Cond::Lt,
        Cond::Ge => Cond::Le,
        Cond::Lt => Cond::Gt,
        Cond::Le => Cond::Ge,
        Cond::Sgt => Cond::Slt,
        Cond::Sge => Cond::Sle,
        Cond::Slt => Cond::Sgt,
        Cond::Sle => Cond::Sge,
        same @ (Cond::Eq | Cond::Ne | Cond::Set) => same,
    }
}

fn compare(cond: Cond, width: Width, a: u64, b: u64) -> bool {
    let half = u64::from(u32::MAX);
    let (a, b, signed) = match width {
        Width::W64 => (a, b, [a.cast_signed(), b.cast_signed()]),
        Width::W32 => (a & half, b & half, [a, b].map(|n| i64::from((n as u32).cast_signed()))),
    };
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Set => a & b != 0,
        Cond::Sgt => signed[0] > signed[1],
        Cond::Sge => signed[0] >= signed[1],
        Cond::Slt => signed[0] < signed[1],
        Cond::Sle => signed[0] <= signed[1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Guard> {
        guards(&Program::new(crate::assemble(text).unwrap()).unwrap())
    }

    fn guard(word: u32, cond: Cond, constant: i32, goes_on: bool) -> Guard {
        Guard { word, width: Width::W64, cond, constant, goes_on }
    }

    #[test]
    fn a_comparison_that_comes_first_is_a_guard() {
        let text = "ldxdw %r2, [%r1+112]\njle %r2, 1000, out\ncall 14\nout:\nmov %r0, 0\nexit";
        assert_eq!(of(text), [guard(112, Cond::Le, 1000, false)]);
        let other = "ldxdw %r2, [%r1+112]\njsgt %r2, -5, on\nmov %r0, 7\nexit\non:\ncall 14\nexit";
        assert_eq!(of(other), [guard(112, Cond::Sgt, -5, true)]);
        let mirrored = "ldxdw %r2, [%r1+104]\nmov %r3, 9\njlt %r3, %r2, on\nexit\non:\ncall 14\nexit";
        assert_eq!(of(mirrored), [guard(104, Cond::Gt, 9, true)]);
    }

    /// As a front end writes it that makes a word of the truth first.
    #[test]
    fn truth_that_is_kept_in_the_frame_is_followed() {
        let text = "mov %r6, %r1\nldxdw %r0, [%r6+112]\nstxdw [%r10-8], %r0\nlddw %r0, 1000\nmov %r2, %r0\n\
                    ldxdw %r0, [%r10-8]\nmov %r3, 1\njgt %r0, %r2, yes\nmov %r3, 0\nyes:\nmov %r0, %r3\njeq %r0, 0, end\n\
                    call 14\nmov %r0, 0\nend:\nexit";
        assert_eq!(of(text), [guard(112, Cond::Gt, 1000, true)]);
    }

    #[test]
    fn two_that_must_both_hold_are_two_guards() {
        let text = "ldxdw %r2, [%r1+112]\nldxdw %r3, [%r1+104]\njne %r2, 5, out\njset %r3, 4, on\nout:\nexit\non:\ncall 14\nexit";
        assert_eq!(of(text), [guard(112, Cond::Ne, 5, false), guard(104, Cond::Set, 4, true)]);
    }

    #[test]
    fn what_does_something_first_or_asks_for_more_has_none() {
        let none = [
            "call 14\nldxdw %r2, [%r1+112]\njeq %r2, 5, out\ncall 14\nout:\nexit",
            // Both ways do something.
            "ldxdw %r2, [%r1+112]\njeq %r2, 5, other\ncall 14\nexit\nother:\ncall 5\nexit",
            // Neither does.
            "ldxdw %r2, [%r1+112]\njeq %r2, 5, out\nmov %r0, 1\nout:\nexit",
            // No constant of 32 bits.
            "ldxdw %r2, [%r1+112]\nlddw %r3, 0x1234567887654321\njne %r2, %r3, out\ncall 14\nout:\nexit",
            // Half a word; a word that was changed; two words.
            "ldxw %r2, [%r1+112]\njeq %r2, 5, out\ncall 14\nout:\nexit",
            "ldxdw %r2, [%r1+112]\nadd %r2, 1\njeq %r2, 5, out\ncall 14\nout:\nexit",
            "ldxdw %r2, [%r1+112]\nldxdw %r3, [%r1+104]\njeq %r2, %r3, out\ncall 14\nout:\nexit",
            // It writes to memory that is not its frame, or beyond it.
            "ldxdw %r2, [%r1+112]\nstxdw [%r2+0], %r2\njeq %r2, 5, out\ncall 14\nout:\nexit",
            "ldxdw %r2, [%r1+112]\nstxdw [%r10+0], %r2\njeq %r2, 5, out\ncall 14\nout:\nexit",
            // It does not end.
            "ldxdw %r2, [%r1+112]\nagain:\njeq %r2, 5, out\ncall 14\nexit\nout:\nja out",
        ];
        for text in none {
            assert_eq!(of(text), [], "{text}");
        }
        let half = "ldxdw %r2, [%r1+112]\njeq32 %r2, -1, out\ncall 14\nout:\nexit";
        let [Guard { width: Width::W32, constant: -1, .. }] = of(half)[..] else { panic!() };
    }

    #[test]
    fn a_part_of_a_kept_word_that_is_overwritten_is_not_known() {
        let text = "ldxdw %r2, [%r1+112]\nstxdw [%r10-8], %r2\nstb [%r10-5], 0\nldxdw %r2, [%r10-8]\njeq %r2, 5, out\ncall 14\nout:\nexit";
        assert_eq!(of(text), []);
    }
}
