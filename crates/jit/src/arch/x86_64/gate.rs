//! A function's x86-64 code, followed along all its ways.
//!
//! For:     the gate.
//! State:   what was seen of one function.
//! Context: control.
//! Keeps:   those of `crate::gate`.
//! Checked: tests below break each.

use crate::gate::{Found, Ground, Unfit, Walked};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The arena's address, in Cranelift's pinned register.
const ARENA: Register = Register::R15;
/// The convention's caller keeps none of these.
const CALLER_SAVED: u16 = 0b0000_1111_1100_0111;

const GENERAL: &[Mnemonic] = &[
    Mnemonic::Adc,
    Mnemonic::Add,
    Mnemonic::And,
    Mnemonic::Bswap,
    Mnemonic::Bt,
    Mnemonic::Cdq,
    Mnemonic::Cdqe,
    Mnemonic::Cmp,
    Mnemonic::Cmpxchg,
    Mnemonic::Cqo,
    Mnemonic::Cwde,
    Mnemonic::Dec,
    Mnemonic::Div,
    Mnemonic::Imul,
    Mnemonic::Inc,
    Mnemonic::Lea,
    Mnemonic::Mov,
    Mnemonic::Movsx,
    Mnemonic::Movsxd,
    Mnemonic::Movzx,
    Mnemonic::Mul,
    Mnemonic::Neg,
    Mnemonic::Nop,
    Mnemonic::Not,
    Mnemonic::Or,
    Mnemonic::Pop,
    Mnemonic::Push,
    Mnemonic::Rol,
    Mnemonic::Ror,
    Mnemonic::Sar,
    Mnemonic::Sbb,
    Mnemonic::Shl,
    Mnemonic::Shld,
    Mnemonic::Shr,
    Mnemonic::Shrd,
    Mnemonic::Sub,
    Mnemonic::Test,
    Mnemonic::Xadd,
    Mnemonic::Xchg,
    Mnemonic::Xor,
];

/// Follows the function in this range.
///
/// # Errors
/// The first instruction that is not let through.
pub(crate) fn walk(ground: &Ground<'_>, range: Range<usize>) -> Result<Walked, Unfit> {
    let Ground { bytes, starts, listed } = *ground;
    let mut walk = Walk { bytes, range, starts, listed, ..Walk::empty() };
    walk.run(&mut InstructionInfoFactory::new())?;
    let instructions = walk.seen.len() as u32;
    Ok(Walked {
        clobbers: walk.written & CALLER_SAVED,
        instructions,
        deepest: walk.deepest,
        calls: walk.calls,
    })
}

/// One function, followed along all its ways.
struct Walk<'a> {
    bytes: &'a [u8],
    range: Range<usize>,
    starts: &'a BTreeSet<usize>,
    listed: &'a BTreeSet<usize>,
    /// Instructions: where, their length, and the stack before each.
    seen: BTreeMap<usize, (usize, u32, Option<u32>)>,
    /// Constants that are read.
    constants: Vec<(usize, Range<usize>)>,
    calls: BTreeMap<usize, u32>,
    written: u16,
    deepest: u32,
}

/// What is on the stack, the return address among it; and what was when rbp was set to it.
type Depth = (u32, Option<u32>);

impl<'a> Walk<'a> {
    fn empty() -> Walk<'a> {
        static NONE: BTreeSet<usize> = BTreeSet::new();
        Walk {
            bytes: &[],
            range: 0..0,
            starts: &NONE,
            listed: &NONE,
            seen: BTreeMap::new(),
            constants: Vec::new(),
            calls: BTreeMap::new(),
            written: 0,
            deepest: 0,
        }
    }

    fn run(&mut self, info: &mut InstructionInfoFactory) -> Result<(), Unfit> {
        let mut open: Vec<(usize, Depth)> = vec![(self.range.start, (8, None))];
        while let Some((at, depth)) = open.pop() {
            let fail = |found| Unfit { at, found };
            if let Some((_, known, base)) = self.seen.get(&at) {
                // G4
                if (*known, *base) != depth {
                    return Err(fail(Found::Stack));
                }
                continue;
            }
            let insn = self.decode(at).ok_or(fail(Found::NoInstruction))?;
            self.seen.insert(at, (insn.len(), depth.0, depth.1));
            self.general(&insn, info).map_err(fail)?;
            let after = self.moved(&insn, depth).ok_or(fail(Found::Stack))?;
            self.deepest = self.deepest.max(after.0);
            let [next, target] = self.ways(&insn, after.0).map_err(fail)?;
            open.extend([next, target].into_iter().flatten().map(|to| (to, after)));
        }
        self.apart()
    }

    fn decode(&self, at: usize) -> Option<Instruction> {
        let bytes = self.bytes.get(at..self.range.end).filter(|_| self.range.contains(&at))?;
        let insn = Decoder::with_ip(64, bytes, at as u64, DecoderOptions::NONE).decode();
        (!insn.is_invalid()).then_some(insn)
    }

    /// G1, G5.
    fn general(&mut self, insn: &Instruction, info: &mut InstructionInfoFactory) -> Result<(), Found> {
        let mnemonic = insn.mnemonic();
        let is_way = insn.flow_control() != FlowControl::Next;
        let is_conditional =
            |code: Code| insn.op_count() > 0 && code.mnemonic() == mnemonic && is_setcc_or_cmov(insn);
        if !is_way && !GENERAL.contains(&mnemonic) && !is_conditional(insn.code()) {
            return Err(Found::NotGeneral);
        }
        if insn.is_privileged() || insn.has_rep_prefix() || insn.has_repne_prefix() {
            return Err(Found::NotGeneral);
        }
        let is_plain =
            |register: Register| register.is_gpr() || register == Register::None || register.is_ip();
        if insn.segment_prefix() != Register::None
            || (0..insn.op_count())
                .any(|i| insn.op_kind(i) == OpKind::Register && !insn.op_register(i).is_gpr())
            || !is_plain(insn.memory_base())
            || !is_plain(insn.memory_index())
        {
            return Err(Found::Register);
        }
        for used in info.info(insn).used_registers() {
            let register = used.register();
            // Every access by rsp names the stack's segment.
            if !register.is_gpr() && !register.is_segment_register() && !register.is_ip() {
                return Err(Found::Register);
            }
            if matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
                continue;
            }
            if register.is_segment_register() {
                return Err(Found::Register);
            }
            if register.full_register() == ARENA {
                return Err(Found::Arena);
            }
            if register.is_gpr() {
                self.written |= 1 << (register.full_register().number());
            }
        }
        if insn.is_ip_rel_memory_operand() {
            self.constant(insn, info)?;
        }
        Ok(())
    }

    /// G3: a constant is read, and lies in the function's range; that it lies behind all code is looked at last.
    fn constant(&mut self, insn: &Instruction, info: &mut InstructionInfoFactory) -> Result<(), Found> {
        let is_read = info.info(insn).used_memory().iter().all(|m| m.access() == OpAccess::Read);
        let from = insn.ip_rel_memory_address() as usize;
        let to = from.checked_add(insn.memory_size().size()).filter(|to| *to <= self.range.end);
        match to {
            Some(to) if is_read && from >= self.range.start && insn.mnemonic() != Mnemonic::Lea => {
                self.constants.push((insn.ip() as usize, from..to));
                Ok(())
            }
            _ => Err(Found::Constant),
        }
    }

    /// G4: the stack after an instruction.
    fn moved(&self, insn: &Instruction, (depth, base): Depth) -> Option<Depth> {
        let is = |i: u32, register: Register| insn.op_count() > i && insn.op_register(i) == register;
        let writes_rsp = is(0, Register::RSP)
            && !matches!(insn.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
        let writes_rbp = is(0, Register::RBP)
            && !matches!(insn.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
        match insn.mnemonic() {
            Mnemonic::Call => Some((depth, base)),
            Mnemonic::Ret => (depth == 8 && base.is_none() && insn.op_count() == 0).then_some((depth, base)),
            Mnemonic::Push if insn.stack_pointer_increment() == -8 => Some((depth + 8, base)),
            Mnemonic::Pop if insn.stack_pointer_increment() == 8 && !is(0, Register::RSP) => {
                let base = if is(0, Register::RBP) { None } else { base };
                Some((depth.checked_sub(8).filter(|depth| *depth >= 8)?, base))
            }
            Mnemonic::Push | Mnemonic::Pop => None,
            Mnemonic::Sub if writes_rsp => Some((depth.checked_add(constant_of(insn)?)?, base)),
            Mnemonic::Add if writes_rsp => {
                Some((depth.checked_sub(constant_of(insn)?).filter(|depth| *depth >= 8)?, base))
            }
            Mnemonic::Mov if writes_rsp && is(1, Register::RBP) => Some((base?, base)),
            Mnemonic::Mov if writes_rbp && is(1, Register::RSP) => Some((depth, Some(depth))),
            _ if writes_rsp || writes_rbp || insn.stack_pointer_increment() != 0 => None,
            _ => Some((depth, base)),
        }
    }

    /// G2: where control goes from here.
    fn ways(&mut self, insn: &Instruction, depth: u32) -> Result<[Option<usize>; 2], Found> {
        let next = insn.next_ip() as usize;
        let next = (next < self.range.end).then_some(next).ok_or(Found::NoEnd);
        let is_near = matches!(insn.op0_kind(), OpKind::NearBranch64) && insn.op_count() == 1;
        let target = || {
            let to = usize::try_from(insn.near_branch_target()).unwrap_or(usize::MAX);
            self.range.contains(&to).then_some(to).ok_or(Found::Way)
        };
        match insn.flow_control() {
            FlowControl::Next => Ok([Some(next?), None]),
            FlowControl::Return if insn.mnemonic() == Mnemonic::Ret => Ok([None, None]),
            FlowControl::UnconditionalBranch if is_near => Ok([None, Some(target()?)]),
            FlowControl::ConditionalBranch if is_near && insn.is_jcc_short_or_near() => {
                Ok([Some(next?), Some(target()?)])
            }
            FlowControl::Call if is_near && insn.is_call_near() => {
                let to = insn.near_branch_target() as usize;
                let is_listed = self.listed.contains(&(insn.next_ip() as usize - 4));
                if !is_listed {
                    self.starts.contains(&to).then_some(()).ok_or(Found::Way)?;
                    let known = self.calls.entry(to).or_default();
                    *known = depth.max(*known);
                }
                self.deepest = self.deepest.max(depth + 8);
                Ok([Some(next?), None])
            }
            FlowControl::Exception | FlowControl::Interrupt | FlowControl::XbeginXabortXend => {
                Err(Found::NotGeneral)
            }
            _ => Err(Found::Way),
        }
    }

    /// G3.
    fn apart(&self) -> Result<(), Unfit> {
        let mut end = self.range.start;
        for (&at, (len, ..)) in &self.seen {
            if at < end {
                return Err(Unfit { at, found: Found::Overlap });
            }
            end = at + len;
        }
        let stray = self.constants.iter().find(|(_, constant)| constant.start < end);
        stray.map_or(Ok(()), |(at, _)| Err(Unfit { at: *at, found: Found::Constant }))
    }
}

fn is_setcc_or_cmov(insn: &Instruction) -> bool {
    use iced_x86::ConditionCode;
    insn.condition_code() != ConditionCode::None && insn.flow_control() == FlowControl::Next
}

/// A positive constant that is the second operand.
fn constant_of(insn: &Instruction) -> Option<u32> {
    let is_constant = matches!(
        insn.op1_kind(),
        OpKind::Immediate8 | OpKind::Immediate32 | OpKind::Immediate8to64 | OpKind::Immediate32to64
    );
    is_constant.then(|| u32::try_from(insn.immediate(1)).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::pass;
    use crate::{Passed, Relocation};

    fn of(bytes: &[u8]) -> Result<Passed, Found> {
        pass(bytes, std::slice::from_ref(&(0..bytes.len())), &[]).map_err(|unfit| unfit.found)
    }

    #[test]
    fn plain_code_passes_and_says_what_it_writes() {
        // push rbp; mov rbp, rsp; sub rsp, 16; xor ecx, ecx; mov [rsp], rbx; mov rbx, [rsp]; add rsp, 16; pop rbp; ret
        let code = [
            0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x31, 0xc9, 0x48, 0x89, 0x1c, 0x24, 0x48, 0x8b,
            0x1c, 0x24, 0x48, 0x83, 0xc4, 0x10, 0x5d, 0xc3,
        ];
        let passed = of(&code).unwrap();
        assert_eq!((passed.stack, passed.instructions), (32, 9));
        assert_eq!(passed.clobbers.iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn constants_behind_the_code_are_read_and_never_run() {
        // mov rax, [rip+1]; ret; eight bytes
        let code = [0x48, 0x8b, 0x05, 1, 0, 0, 0, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
        assert!(of(&code).is_ok());
        let mut written = code;
        written[1] = 0x89;
        assert_eq!(of(&written), Err(Found::Constant));
        let mut of_code = code;
        of_code[3] = 0xf9;
        of_code[4..7].fill(0xff);
        assert_eq!(of(&of_code), Err(Found::Constant));
        assert_eq!(of(&code[..15]), Err(Found::Constant), "it would read past the end");
    }

    #[test]
    fn what_a_program_does_not_need_is_refused() {
        let cases: [(&[u8], Found); 32] = [
            (&[0x0f, 0x05, 0xc3], Found::Way),                                // syscall
            (&[0xcd, 0x80, 0xc3], Found::NotGeneral),                         // int 0x80
            (&[0xcc, 0xc3], Found::NotGeneral),                               // int3
            (&[0x0f, 0x0b], Found::NotGeneral),                               // ud2
            (&[0xf4, 0xc3], Found::NotGeneral),                               // hlt
            (&[0xfa, 0xc3], Found::NotGeneral),                               // cli
            (&[0xe4, 0x10, 0xc3], Found::NotGeneral),                         // in
            (&[0x0f, 0xa2, 0xc3], Found::NotGeneral),                         // cpuid
            (&[0x0f, 0x31, 0xc3], Found::NotGeneral),                         // rdtsc
            (&[0x9d, 0xc3], Found::NotGeneral),                               // popfq
            (&[0xfd, 0xc3], Found::NotGeneral),                               // std
            (&[0xf3, 0x48, 0xa5, 0xc3], Found::NotGeneral),                   // rep movsq
            (&[0x66, 0x0f, 0x6f, 0xc1, 0xc3], Found::NotGeneral),             // movdqa
            (&[0xf3, 0x0f, 0x7e, 0xc0, 0xc3], Found::NotGeneral),             // movq
            (&[0xd9, 0xe8, 0xc3], Found::NotGeneral),                         // fld1
            (&[0x64, 0x48, 0x8b, 0x00, 0xc3], Found::Register),               // mov rax, fs:[rax]
            (&[0x8e, 0xd8, 0xc3], Found::Register),                           // mov ds, eax
            (&[0x0f, 0x22, 0xd8, 0xc3], Found::NotGeneral),                   // mov cr3, rax
            (&[0xff, 0xe0], Found::Way),                                      // jmp rax
            (&[0xff, 0xd0, 0xc3], Found::Way),                                // call rax
            (&[0xe8, 1, 0, 0, 0, 0xc3, 0xc3], Found::Way),                    // call of no function
            (&[0xeb, 0x7e], Found::Way),                                      // jmp outside
            (&[0xe3, 0x00, 0xc3], Found::Way),                                // jrcxz
            (&[0x90], Found::NoEnd),                                          // nothing behind it
            (&[0x06], Found::NoInstruction),                                  // no instruction
            (&[0x74, 1, 0xb8, 0x90, 0x90, 0x90, 0xc3, 0xc3], Found::Overlap), // jump into a constant
            (&[0x50, 0xc3], Found::Stack),                                    // push without pop
            (&[0x48, 0x89, 0xc4, 0xc3], Found::Stack),                        // mov rsp, rax
            (&[0x74, 1, 0x50, 0xc3], Found::Stack),                           // two ways, two depths
            (&[0xc2, 8, 0], Found::Stack),                                    // ret 8
            (&[0x58, 0xc3], Found::Stack),                                    // pop of the return address
            (&[0x4d, 0x31, 0xff, 0xc3], Found::Arena),                        // xor r15, r15
        ];
        for (code, found) in cases {
            let got = of(code).err();
            let is_refused = got == Some(found) || matches!(got, Some(Found::NotGeneral | Found::Register));
            assert!(is_refused, "{code:x?}: {got:?} and not {found:?}");
        }
    }

    #[test]
    fn a_listed_call_may_lead_anywhere_and_its_stack_is_counted() {
        let code = [0x50, 0xe8, 0, 0, 0, 0, 0x58, 0xc3];
        assert_eq!(of(&code), Err(Found::Way));
        let calls = [Relocation { at: 2, helper: 1 }];
        assert_eq!(pass(&code, std::slice::from_ref(&(0..8)), &calls).map(|p| p.stack), Ok(24));
    }

    #[test]
    fn the_stack_of_functions_inside_each_other_is_added_up() {
        // push rax; call +1 (the second function); pop rax; ret / push; push; pop; pop; ret
        let code = [0x50, 0xe8, 2, 0, 0, 0, 0x58, 0xc3, 0x50, 0x50, 0x58, 0x58, 0xc3];
        assert_eq!(pass(&code, &[0..8, 8..13], &[]).map(|p| p.stack), Ok(40));
    }
}
