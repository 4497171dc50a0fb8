//! How deep the stack is where a function jumps away indirectly.
//!
//! For:     telling a tail call from a switch: who leaves for good has taken its frame down.
//! State:   the depth before each instruction, as far as it is known.
//! Context: control. Cost: each instruction is decoded a few times.
//! Keeps:   D1 where two ways with different depths meet, the depth is unknown, never one of the two.
//! Checked: tests below, tests/exits.rs.

use std::collections::BTreeMap;

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::{Class, decode_raw};

/// How far to look back for the end of a frame.
const BACK: usize = 24;

/// Where registers point, in bytes from the stack pointer at the entry; `None`: unknown, or elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Depth {
    rsp: Option<i64>,
    rbp: Option<i64>,
}

impl Depth {
    fn meet(self, other: Depth) -> Depth {
        Depth {
            rsp: self.rsp.filter(|v| other.rsp == Some(*v)),
            rbp: self.rbp.filter(|v| other.rbp == Some(*v)),
        }
    }

    /// Behind `insn`.
    fn after(self, insn: &Instruction) -> Depth {
        use Register::{RBP, RSP};
        let Depth { rsp, rbp } = self;
        let to = (insn.op0_kind() == OpKind::Register).then(|| insn.op0_register());
        let from = (insn.op_count() > 1 && insn.op1_kind() == OpKind::Register).then(|| insn.op1_register());
        let base = |base| match base {
            RSP => rsp,
            RBP => rbp,
            _ => None,
        };
        match (insn.mnemonic(), to, from) {
            (Mnemonic::Cmp | Mnemonic::Test, ..) => self,
            (Mnemonic::Leave, ..) => Depth { rsp: rbp.map(|v| v + 8), rbp: None },
            (Mnemonic::Mov, Some(RBP), Some(RSP)) => Depth { rsp, rbp: rsp },
            (Mnemonic::Mov, Some(RSP), Some(RBP)) => Depth { rsp: rbp, rbp },
            (Mnemonic::Lea, Some(RSP), _) if insn.memory_index() == Register::None => {
                let offset = insn.memory_displacement64() as i64;
                Depth { rsp: base(insn.memory_base()).map(|v| v + offset), rbp }
            }
            (Mnemonic::Add | Mnemonic::Sub, Some(RSP), None) => {
                // By what memory holds it may be anything: a stack that is switched by a number, or bytes that are no code.
                let by = insn.try_immediate(1).ok().map(u64::cast_signed);
                let by = if insn.mnemonic() == Mnemonic::Add { by } else { by.map(|by| -by) };
                Depth { rsp: rsp.zip(by).map(|(v, by)| v + by), rbp }
            }
            // What is called takes down what it puts up.
            _ if matches!(insn.flow_control(), FlowControl::Call | FlowControl::IndirectCall) => self,
            (Mnemonic::Pop, Some(RSP), _) => Depth { rsp: None, rbp },
            (Mnemonic::Push | Mnemonic::Pop, ..) => {
                let rsp = rsp.map(|v| v + i64::from(insn.stack_pointer_increment()));
                let is_pop = insn.mnemonic() == Mnemonic::Pop;
                Depth { rsp, rbp: rbp.filter(|_| !(is_pop && to == Some(RBP))) }
            }
            _ if insn.is_stack_instruction() => {
                Depth { rsp: rsp.map(|v| v + i64::from(insn.stack_pointer_increment())), rbp }
            }
            (_, Some(to), _) if to.full_register() == RSP => Depth { rsp: None, rbp },
            (_, Some(to), _) if to.full_register() == RBP => Depth { rsp, rbp: None },
            _ => self,
        }
    }
}

/// Depths of the instructions of one function.
pub(crate) struct Depths<'a> {
    insns: &'a [Class],
    before: Vec<Option<Depth>>,
}

impl<'a> Depths<'a> {
    /// Follows all ways from `entry`, as far as jumps name their targets.
    pub(crate) fn of(insns: &'a [Class], entry: u64) -> Depths<'a> {
        let numbers: BTreeMap<u64, usize> = insns.iter().enumerate().map(|(i, c)| (c.insn.addr, i)).collect();
        let mut before = vec![None; insns.len()];
        let mut open = vec![(entry, Depth { rsp: Some(0), rbp: None })];
        while let Some((at, depth)) = open.pop() {
            let Some(number) = numbers.get(&at).copied() else { continue };
            let met = before[number].map_or(depth, |known: Depth| known.meet(depth));
            if before[number].replace(met) == Some(met) {
                continue;
            }
            let Some(insn) = decode_raw(insns[number].insn.bytes(), at) else { continue };
            let after = met.after(&insn);
            if matches!(
                insn.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            ) {
                open.push((insn.near_branch64(), after));
            }
            if !insns[number].ends {
                open.push((insn.next_ip(), after));
            }
        }
        Depths { insns, before }
    }

    /// Whether the jump that is instruction `number` leaves the function for good.
    pub(crate) fn is_tail_call(&self, number: usize) -> bool {
        match self.before[number].and_then(|depth| depth.rsp) {
            Some(depth) => depth == 0,
            None => !self.has_frame() || self.ends_frame(number),
        }
    }

    fn has_frame(&self) -> bool {
        self.before.iter().flatten().any(|depth| depth.rsp != Some(0))
    }

    /// The instructions just before put the stack pointer up.
    fn ends_frame(&self, number: usize) -> bool {
        let from = number.saturating_sub(BACK);
        for class in self.insns[from..number].iter().rev() {
            let Some(insn) = decode_raw(class.insn.bytes(), class.insn.addr) else { return false };
            if insn.flow_control() != FlowControl::Next {
                return false;
            }
            // A frame pointer points far above.
            let start = Depth { rsp: Some(0), rbp: Some(1 << 30) };
            match start.after(&insn).rsp {
                Some(0) => {}
                up => return up > Some(0),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;

    fn insns(bytes: &[u8]) -> Vec<Class> {
        let (mut insns, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let class = decode(&bytes[at..], 0x1000 + at as u64).unwrap();
            at += class.insn.len_bytes();
            insns.push(class);
        }
        insns
    }

    /// Whether the last instruction, `jmp rax`, is a tail call.
    fn is_tail(code: &[&[u8]]) -> bool {
        let bytes = [&code.concat()[..], &[0xff, 0xe0]].concat();
        let insns = insns(&bytes);
        Depths::of(&insns, 0x1000).is_tail_call(insns.len() - 1)
    }

    const PUSH_RBX: &[u8] = &[0x53];
    const POP_RBX: &[u8] = &[0x5b];
    const SUB_16: &[u8] = &[0x48, 0x83, 0xec, 0x10];
    const ADD_16: &[u8] = &[0x48, 0x83, 0xc4, 0x10];
    const PUSH_RBP: &[u8] = &[0x55];
    const MOV_RBP_RSP: &[u8] = &[0x48, 0x89, 0xe5];
    const LEAVE: &[u8] = &[0xc9];
    const AND_RSP: &[u8] = &[0x48, 0x83, 0xe4, 0xf0];
    const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];

    #[test]
    fn a_frame_that_is_up_makes_a_switch_and_one_that_is_down_a_tail_call() {
        assert!(is_tail(&[]));
        assert!(!is_tail(&[PUSH_RBX]));
        assert!(!is_tail(&[PUSH_RBX, SUB_16, ADD_16]));
        assert!(is_tail(&[PUSH_RBX, SUB_16, CALL, ADD_16, POP_RBX]));
        assert!(is_tail(&[PUSH_RBP, MOV_RBP_RSP, SUB_16, AND_RSP, LEAVE]));
        assert!(!is_tail(&[PUSH_RBP, MOV_RBP_RSP, AND_RSP]));
        // lea rsp, [rbp - 8]; pop rbx; pop rbp
        let epilogue: &[u8] = &[0x48, 0x8d, 0x65, 0xf8, 0x5b, 0x5d];
        assert!(is_tail(&[PUSH_RBP, MOV_RBP_RSP, PUSH_RBX, AND_RSP, epilogue]));
    }

    /// It ended `explain --all` and `lat`: such bytes stand in the text of our own binary.
    #[test]
    fn what_memory_puts_on_the_stack_pointer_makes_the_depth_unknown() {
        // add rsp, [rbx]; sub rsp, [rip]
        for by_memory in [&[0x48, 0x03, 0x23][..], &[0x48, 0x2b, 0x25, 0, 0, 0, 0]] {
            assert!(!is_tail(&[by_memory]));
            assert!(is_tail(&[PUSH_RBX, by_memory, POP_RBX]), "the epilogue before the jump tells");
        }
    }

    #[test]
    fn where_nothing_leads_the_last_instructions_decide() {
        // push rbx; ret; then what only a table leads to
        let head: &[u8] = &[0x53, 0xc3];
        assert!(!is_tail(&[head]));
        assert!(!is_tail(&[head, &[0x89, 0xd8]]));
        assert!(is_tail(&[head, POP_RBX, &[0x89, 0xd8]]));
        assert!(is_tail(&[head, LEAVE]));
        // Without any frame nothing needs to be taken down.
        assert!(is_tail(&[&[0xc3]]));
    }

    #[test]
    fn ways_that_meet_with_different_depths_are_not_believed() {
        // je over the push; the jump behind it
        assert!(!is_tail(&[&[0x74, 0x01], PUSH_RBX]));
        assert!(is_tail(&[&[0x74, 0x01], PUSH_RBX, POP_RBX]), "the epilogue before the jump tells");
    }
}
