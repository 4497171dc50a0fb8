//! What of a program is a function, where its blocks begin, and which registers each block is given.
//!
//! For:     the translator, which makes one function of ours of each and one block of each.
//! State:   none.
//! Context: control.
//! Keeps:   W1 what no way leads to is in no function.
//!          W2 a register that a block may read before it writes it is live there.
//!          W3 a call's way costs as much as its function is long, a jump back as much as it is long: with so much fuel no
//!             more than that and the program's own length is executed.
//! Checked: tests below; tests/differential (a register missing from a block differs from the interpreter).

use bpf::{Callee, Op, Operand, Program, Reg};
use std::collections::{BTreeMap, BTreeSet};

/// Registers r0 to r9, a bit each.
pub(crate) type Regs = u16;

const ARGUMENTS: Regs = 0b11_1110;

/// One function of a program: what can be reached from where it is called.
#[derive(Debug)]
pub(crate) struct Function {
    pub entry: usize,
    /// Every instruction that can be reached, in order.
    pub insns: BTreeSet<usize>,
    /// Where blocks begin, with the registers that are live there.
    pub blocks: BTreeMap<usize, Regs>,
    /// The entries of the functions that it calls.
    pub callees: BTreeSet<usize>,
    /// It jumps back.
    pub loops: bool,
}

impl Function {
    /// What entering it costs: an upper bound of what it executes before its first jump back.
    pub fn cost(&self) -> u64 {
        let last = self.insns.last().copied().unwrap_or(self.entry);
        (last - self.entry.min(last) + 1) as u64
    }
}

/// What a jump back from `at` to `to` costs: as many instructions as it goes over.
pub(crate) fn jump_cost(at: usize, to: usize) -> u64 {
    (at - to + 1) as u64
}

/// The functions of a program, the one that begins with its first instruction first.
pub(crate) fn functions(program: &Program) -> Vec<Function> {
    let (mut found, mut open) = (BTreeMap::new(), vec![0]);
    while let Some(entry) = open.pop() {
        if found.contains_key(&entry) {
            continue;
        }
        let function = explore(program, entry);
        open.extend(function.callees.iter().copied());
        found.insert(entry, function);
    }
    found.into_values().collect()
}

/// Where control goes from the instruction at `at`.
pub(crate) fn successors(program: &Program, at: usize, op: Op) -> [Option<usize>; 2] {
    let next = (!matches!(op, Op::Exit | Op::Ja { .. })).then(|| at + op.slots());
    [next, op.jump_distance().and_then(|distance| program.target(at, distance))]
}

fn explore(program: &Program, entry: usize) -> Function {
    let mut function = Function {
        entry,
        insns: BTreeSet::new(),
        blocks: BTreeMap::from([(entry, 0)]),
        callees: BTreeSet::new(),
        loops: false,
    };
    let mut open = vec![entry];
    while let Some(at) = open.pop() {
        let Some(op) = program.op(at) else { continue };
        if !function.insns.insert(at) {
            continue;
        }
        if let Op::Call(Callee::Local(distance)) = op {
            function.callees.extend(program.target(at, distance));
        }
        let [next, target] = successors(program, at, op);
        if let Some(to) = target {
            function.loops |= to <= at;
            function.blocks.insert(to, 0);
            // What follows a jump begins a block too.
            function.blocks.extend(next.map(|next| (next, 0)));
        }
        open.extend([next, target].into_iter().flatten());
    }
    live(program, &mut function);
    function
}

/// Finds what is live at the beginning of each block, from the last to the first until nothing changes.
fn live(program: &Program, function: &mut Function) {
    let mut changed = true;
    while changed {
        changed = false;
        let mut regs: Regs = 0;
        for &at in function.insns.iter().rev() {
            let Some(op) = program.op(at) else { continue };
            let [next, target] = successors(program, at, op);
            let at_next = next.map_or(0, |next| function.blocks.get(&next).copied().unwrap_or(regs));
            let at_target = target.and_then(|to| function.blocks.get(&to)).copied().unwrap_or(0);
            regs = (at_next | at_target) & !written(op) | read(op);
            if let Some(known) = function.blocks.get_mut(&at)
                && *known != regs
            {
                *known = regs;
                changed = true;
            }
        }
    }
}

fn bit(reg: Reg) -> Regs {
    if reg == Reg::FRAME { 0 } else { 1 << reg.number() }
}

fn operand(operand: Operand) -> Regs {
    match operand {
        Operand::Reg(reg) => bit(reg),
        Operand::Imm(_) => 0,
    }
}

fn written(op: Op) -> Regs {
    let clobbered = if matches!(op, Op::Call(_)) { ARGUMENTS } else { 0 };
    op.written().map_or(0, bit) | clobbered
}

fn read(op: Op) -> Regs {
    match op {
        Op::Alu { alu: bpf::Alu::Mov, src, .. } => operand(src),
        Op::Alu { dst, src, .. } | Op::Jump { dst, src, .. } | Op::Store { dst, src, .. } => {
            bit(dst) | operand(src)
        }
        Op::Neg { dst, .. } | Op::End { dst, .. } => bit(dst),
        Op::Movsx { src, .. } | Op::Load { src, .. } => bit(src),
        Op::Atomic { atomic: bpf::Atomic::Cmpxchg, dst, src, .. } => bit(dst) | bit(src) | bit(Reg::R0),
        Op::Atomic { dst, src, .. } => bit(dst) | bit(src),
        Op::Call(Callee::Indirect(reg)) => ARGUMENTS | bit(reg),
        Op::Call(_) => ARGUMENTS,
        Op::Exit => bit(Reg::R0),
        Op::Wide { .. } | Op::Ja { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Function> {
        functions(&Program::new(bpf::assemble(text).unwrap()).unwrap())
    }

    #[test]
    fn a_block_is_given_what_it_may_read() {
        let of = of(
            "mov %r6, 3\nmov %r0, 0\nagain:\nadd %r0, %r1\nsub %r6, 1\njne %r6, 0, again\nmov %r6, 9\nexit",
        );
        assert_eq!(of[0].blocks, BTreeMap::from([(0, 0b10), (2, 0b100_0011), (5, 1)]));
        assert!(of[0].loops);
    }

    #[test]
    fn a_function_has_what_can_be_reached_from_its_entry_only() {
        let of = of("call local f\nexit\nmov %r0, 7\nf:\nmov %r0, 1\nexit");
        let insns = |n: usize| of[n].insns.iter().copied().collect::<Vec<_>>();
        assert_eq!((insns(0), insns(1)), (vec![0, 1], vec![3, 4]));
        assert_eq!((of[0].callees.clone(), of[1].cost()), (BTreeSet::from([3]), 2));
    }
}
