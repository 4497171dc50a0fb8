//! Which general registers a function may write.
//!
//! For:     trampolines, which save of r8 to r11 what their site's handlers write.
//! State:   none.
//! Context: control.
//! Keeps:   G1 a register that any instruction writes that can be reached from the entry is named; where that cannot be
//!          told (a computed jump or call, a system call, bytes that are none or beyond the code), all are.
//! Checked: tests below; session `handlers_that_only_count_write_none_of_the_registers_that_need_not_be_saved`.

use std::collections::BTreeSet;

use iced_x86::{FlowControl, InstructionInfoFactory, OpAccess};

use super::live::RegSet;
use super::{decode_raw, live};
use crate::code::Code;

/// No function of the agent is nearly as long, in instructions.
const MOST: usize = 4096;

/// The general registers that the function at `entry` may write, and what it calls.
///
/// The abort address of a restartable sequence is reached by no branch: that it leads where a branch leads too is the
/// writer's affair.
pub fn written(code: &Code<'_>, entry: u64) -> RegSet {
    follow(code, entry, false)
}

/// The same of a function that calls what it is led to: what that writes is left out.
pub fn written_apart_from_computed_calls(code: &Code<'_>, entry: u64) -> RegSet {
    follow(code, entry, true)
}

fn follow(code: &Code<'_>, entry: u64, are_computed_calls_apart: bool) -> RegSet {
    let mut factory = InstructionInfoFactory::new();
    let (mut seen, mut open, mut found) = (BTreeSet::new(), vec![entry], 0);
    while let Some(addr) = open.pop() {
        if !seen.insert(addr) {
            continue;
        }
        let is_inside = code.range().contains(&addr) && seen.len() <= MOST;
        let Some(insn) = is_inside.then(|| decode_raw(code.from_addr(addr), addr)).flatten() else {
            return RegSet::from(u16::MAX);
        };
        for used in factory.info(&insn).used_registers() {
            if !matches!(
                used.access(),
                OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead
            ) {
                found |= live::bit_of(used.register()).unwrap_or(0);
            }
        }
        match insn.flow_control() {
            FlowControl::Next => open.push(insn.next_ip()),
            FlowControl::UnconditionalBranch => open.push(insn.near_branch_target()),
            FlowControl::ConditionalBranch => open.extend([insn.near_branch_target(), insn.next_ip()]),
            FlowControl::Call if insn.is_call_near() => {
                open.extend([insn.near_branch_target(), insn.next_ip()]);
            }
            FlowControl::IndirectCall if are_computed_calls_apart => open.push(insn.next_ip()),
            FlowControl::Return | FlowControl::Exception => {}
            _ => return RegSet::from(u16::MAX),
        }
    }
    RegSet::from(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Vec<u8> {
        written(&Code { base: 0x1000, bytes }, 0x1000).iter().collect()
    }

    #[test]
    fn what_is_written_on_any_way_is_named() {
        // test rcx, rcx; je +4; mov r9d, eax; ret; xor r8d, r8d; ret
        assert_eq!(
            of(&[0x48, 0x85, 0xc9, 0x74, 4, 0x41, 0x89, 0xc1, 0xc3, 0x45, 0x31, 0xc0, 0xc3]),
            [4, 8, 9]
        );
        // call +1; ret; pop rdi; jmp -2
        assert_eq!(of(&[0xe8, 1, 0, 0, 0, 0xc3, 0x5f, 0xeb, 0xfd]), [4, 7]);
        // inc qword [r8]; cmovz r10, r11; ret: memory is none, a condition is one
        assert_eq!(of(&[0x49, 0xff, 0, 0x4d, 0x0f, 0x44, 0xd3, 0xc3]), [4, 10]);
    }

    #[test]
    fn what_a_computed_call_writes_may_be_left_out() {
        // mov r8, rax; call rax; xor r9d, r9d; ret
        let bytes = &[0x49, 0x89, 0xc0, 0xff, 0xd0, 0x45, 0x31, 0xc9, 0xc3];
        let code = Code { base: 0x1000, bytes };
        let apart: Vec<u8> = written_apart_from_computed_calls(&code, 0x1000).iter().collect();
        assert_eq!((apart, of(bytes).len()), (vec![4, 8, 9], 16));
    }

    #[test]
    fn where_the_way_cannot_be_told_all_are_named() {
        for bytes in
            [&[0xffu8, 0xe0][..], &[0xff, 0xd0, 0xc3], &[0x0f, 0x05, 0xc3], &[0x90], &[0xeb, 0x7e], &[0x06]]
        {
            assert_eq!(of(bytes).len(), 16, "{bytes:x?}");
        }
    }
}
