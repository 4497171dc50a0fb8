//! A program whose every instruction means something and leads somewhere.
//!
//! For:     the interpreter and compilers, which need not look twice.
//! State:   the instructions.
//! Context: control.
//! Keeps:   P1 every jump, call and fall-through leads to an instruction of the program.
//!          P2 r10 is never written.
//! Checked: `tests/semantics.rs`; `tests/mutated.rs` (random bytes: refused, or run to an end without a panic).
//! Source:  RFC 9669, section 4; what the kernel's verifier asks before it looks at values.

use crate::op::{Callee, Wide};
use crate::{Insn, Op, Refusal, Refused, Reg};

/// Instructions that a program may have, as in Linux.
pub const INSNS_MAX: usize = 1_000_000;

/// A program. Memory safety is not part of it: who runs one checks its accesses, or has proven them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    insns: Vec<Insn>,
    /// `None` in the second slot of a wide immediate.
    ops: Vec<Option<Op>>,
}

impl Program {
    /// The program in these bytes.
    ///
    /// # Errors
    /// The first instruction that is none, or leads nowhere.
    pub fn from_bytes(bytes: &[u8]) -> Result<Program, Refused> {
        let insns = Insn::decode_all(bytes)
            .ok_or(Refused { at: bytes.len() / 8, why: Refusal::NotWhole { len: bytes.len() } })?;
        Program::new(insns)
    }

    /// The program of these instructions.
    ///
    /// # Errors
    /// The first instruction that is none, or leads nowhere.
    pub fn new(insns: Vec<Insn>) -> Result<Program, Refused> {
        if insns.is_empty() || insns.len() > INSNS_MAX {
            let why = match insns.len() {
                0 => Refusal::NotWhole { len: 0 },
                insns => Refusal::TooLong { insns },
            };
            return Err(Refused { at: 0, why });
        }
        let ops = decode(&insns)?;
        let program = Program { insns, ops };
        for (at, op) in program.ops() {
            program.check(at, op).map_err(|why| Refused { at, why })?;
        }
        Ok(program)
    }

    /// Each instruction with its number. Wide immediates take two numbers.
    pub fn ops(&self) -> impl DoubleEndedIterator<Item = (usize, Op)> + '_ {
        self.ops.iter().enumerate().filter_map(|(at, op)| Some((at, (*op)?)))
    }

    /// The instruction with this number; `None` outside, and in the second slot of a wide immediate.
    pub fn op(&self, at: usize) -> Option<Op> {
        self.ops.get(at).copied().flatten()
    }

    /// The instructions as they were given.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// The instructions as the kernel takes them.
    pub fn words(&self) -> Vec<u64> {
        self.insns.iter().map(|insn| u64::from_le_bytes(insn.encode())).collect()
    }

    /// Where the instruction at `at` leads if its jump, call or function address is `distance` away.
    pub fn target(&self, at: usize, distance: i32) -> Option<usize> {
        let to = usize::try_from(at as i64 + 1 + i64::from(distance)).ok()?;
        self.op(to).map(|_| to)
    }

    fn check(&self, at: usize, op: Op) -> Result<(), Refusal> {
        if op.written() == Some(Reg::FRAME) {
            return Err(Refusal::FramePointerWritten);
        }
        let distance = match op {
            Op::Call(Callee::Local(distance)) | Op::Wide { wide: Wide::Function(distance), .. } => {
                Some(distance)
            }
            op => op.jump_distance(),
        };
        if let Some(distance) = distance
            && self.target(at, distance).is_none()
        {
            return Err(Refusal::NoSuchPlace { to: at as i64 + 1 + i64::from(distance) });
        }
        let goes_on = !matches!(op, Op::Exit | Op::Ja { .. });
        if goes_on && at + op.slots() >= self.ops.len() { Err(Refusal::NoEnd) } else { Ok(()) }
    }
}

fn decode(insns: &[Insn]) -> Result<Vec<Option<Op>>, Refused> {
    let mut ops = Vec::with_capacity(insns.len());
    while ops.len() < insns.len() {
        let at = ops.len();
        let op = Op::decode(insns[at], insns.get(at + 1).copied()).map_err(|why| Refused { at, why })?;
        ops.push(Some(op));
        ops.extend((1..op.slots()).map(|_| None));
    }
    Ok(ops)
}
