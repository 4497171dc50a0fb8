//! Reading all code once, for what it jumps to.
//!
//! For:     `Flow`, which must know every byte that is jumped to before a jump may cover one.
//! State:   the caller's set of targets and list of tables.
//! Context: control. Cost: 16 to 20 ns an instruction (`speed_of_the_sweep` in tests/real).
//! Keeps:   G1 the target of every direct branch that a linear sweep from each function start meets is in
//!          the set, and so is every byte of code that an instruction refers to relative to rip.
//!          G2 every address outside code that a `lea` forms, and every absolute base of a scaled load or
//!          jump, is in the list: it may be a jump table.
//!          G3 every jump and call to a register, also by way of a thunk elsewhere, and every return to what the function
//!             has pushed, is in the list.
//!          G4 every way into a function that is no call is in the list of entries.
//! Checked: flow tests; tests/real compares all direct targets of libc with `objdump -d`.

use iced_x86::{Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::indirect::Trail;
use crate::code::Code;
use crate::entries::Entries;
use crate::flow::Source;
use crate::tables::Tables;
use crate::targets::Targets;

/// What a sweep meets.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) targets: Targets,
    /// Those that are called.
    pub(crate) calls: Targets,
    pub(crate) tables: Tables,
    pub(crate) entries: Entries,
}

/// Bytes that are read before it is asked whether to go on.
const PACE_BYTES: u64 = 1 << 20;

/// What is called so close behind the call is a part of the same function.
const CALL_WITHIN_BYTES: u64 = 16;

/// Adds all that `code` refers to; `starts` are the sorted function starts of the file.
///
/// `go_on` is asked now and then, with how many bytes were read since; `None` if it said no.
pub(crate) fn sweep(
    code: &Code<'_>,
    starts: &[u64],
    met: &mut Met,
    go_on: &dyn Fn(u64) -> bool,
) -> Option<()> {
    let mut decoder = Decoder::with_ip(64, code.bytes, code.base, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    let mut ways = Ways { code, starts, start: code.base, end: code.base, call_end: 0, last: Op::INVALID };
    let first = starts.partition_point(|start| *start <= code.base);
    let mut starts = starts[first..].iter().copied().chain([u64::MAX]);
    let mut resync = starts.next().unwrap_or(u64::MAX);
    ways.end = resync;
    let absolute = is_absolute(code.base);
    let (mut trail, mut asked) = (Trail::new(), code.base);
    while decoder.can_decode() {
        decoder.decode_out(&mut insn);
        trail.push(insn.ip());
        collect(&insn, absolute, met);
        ways.collect(&insn, &mut met.entries);
        let made = match insn.flow_control() {
            FlowControl::IndirectBranch | FlowControl::IndirectCall => trail.made_by(code, &insn),
            FlowControl::Return => trail.made_for_return(code),
            FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                trail.made_by_thunk(code, &insn, ways.start..ways.end)
            }
            _ => None,
        };
        if let Some(made) = made {
            let is_call = matches!(insn.flow_control(), FlowControl::IndirectCall | FlowControl::Call);
            met.tables.add_jump(insn.ip(), made, is_call);
            if !is_call {
                met.entries.add_computed(ways.start);
            }
        }
        if insn.ip() - asked >= PACE_BYTES {
            if !go_on(insn.ip() - asked) {
                return None;
            }
            asked = insn.ip();
        }
        let mut next = if insn.is_invalid() { insn.ip() + 1 } else { insn.next_ip() };
        if next >= resync {
            if insn.ip() < resync {
                ways.fall_into(resync, next > resync, &mut met.entries);
            }
            next = next.min(resync.max(insn.ip() + 1));
            trail.clear();
            while resync <= next {
                ways.start = resync;
                resync = starts.next().unwrap_or(u64::MAX);
            }
            ways.end = resync;
        }
        if next != decoder.ip() {
            decoder.set_ip(next);
            if decoder.set_position((next - code.base) as usize).is_err() {
                break;
            }
        }
    }
    Some(())
}

/// What the sweep knows of the function that it is in.
struct Ways<'a> {
    code: &'a Code<'a>,
    starts: &'a [u64],
    start: u64,
    end: u64,
    /// Behind the last call.
    call_end: u64,
    /// The last instruction that was no nop.
    last: Op,
}

impl Ways<'_> {
    #[inline]
    fn collect(&mut self, insn: &Instruction, entries: &mut Entries) {
        let op = insn.code();
        if op == Op::Call_rel32_64 || op == Op::Call_rm64 {
            self.call_end = insn.next_ip();
        } else if insn.op0_kind() == OpKind::NearBranch64 {
            self.jump(insn, entries);
        } else if op == Op::Jmp_rm64 {
            entries.add_computed(self.start);
        }
        if insn.mnemonic() != Mnemonic::Nop {
            self.last = op;
        }
    }

    fn jump(&self, insn: &Instruction, entries: &mut Entries) {
        let to = insn.near_branch64();
        if to == self.start && self.has_only_loads_since_call(insn.ip()) {
            return entries.add_after_call(self.call_end..insn.next_ip(), to);
        }
        entries.add(to);
        let is_outside = !(self.start..self.end).contains(&to);
        if is_outside && self.starts.binary_search(&to).is_ok() {
            entries.add_across(self.start, to);
        }
    }

    /// The sweep has come to the next function.
    fn fall_into(&self, start: u64, is_inside: bool, entries: &mut Entries) {
        let leads_on = match self.last.flow_control() {
            FlowControl::Next => self.last != Op::INVALID && self.last != Op::Hlt,
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => true,
            // Behind a call the red zone is free.
            _ => false,
        };
        if leads_on || is_inside {
            entries.add(start);
        }
    }

    /// Whether there was a call shortly before `jump`, and nothing since but loads.
    fn has_only_loads_since_call(&self, jump: u64) -> bool {
        const NEAR: u64 = 256;
        if self.call_end <= self.start || self.call_end > jump || jump - self.call_end > NEAR {
            return false;
        }
        let bytes = self.code.from_addr(self.call_end);
        let mut between = Decoder::with_ip(64, bytes, self.call_end, DecoderOptions::NONE);
        while between.ip() < jump {
            let insn = between.decode();
            let is_load = insn.flow_control() == FlowControl::Next
                && !insn.is_invalid()
                && !insn.is_stack_instruction()
                && insn.op0_kind() == OpKind::Register
                && insn.op0_register().full_register() != Register::RSP;
            if !is_load && insn.mnemonic() != Mnemonic::Nop {
                return false;
            }
        }
        between.ip() == jump
    }
}

/// Files that are not position independent: their immediates may be code addresses.
pub(super) fn is_absolute(base: u64) -> bool {
    base >= 0x40_0000
}

#[inline]
fn collect(insn: &Instruction, absolute: bool, met: &mut Met) {
    let Met { targets, calls, tables, .. } = met;
    if insn.op0_kind() == OpKind::NearBranch64 {
        targets.insert(insn.near_branch64());
        match insn.code() {
            // How code that cannot name rip asks for it, and how a retpoline begins: no function.
            Op::Call_rel32_64 if insn.near_branch64().wrapping_sub(insn.next_ip()) <= CALL_WITHIN_BYTES => {
                tables.add_label(insn.ip(), insn.near_branch64());
            }
            Op::Call_rel32_64 => drop(calls.insert(insn.near_branch64())),
            _ => {}
        }
        return;
    }
    match insn.memory_base() {
        Register::RIP => {
            let at = insn.memory_displacement64();
            let is_code = targets.insert(at);
            match insn.code() {
                Op::Lea_r64_m if is_code => tables.add_label(insn.ip(), at),
                Op::Lea_r64_m => tables.add(at),
                _ => {}
            }
        }
        Register::None if insn.memory_index_scale() == 8 && insn.memory_index() != Register::None => {
            if matches!(insn.code(), Op::Jmp_rm64 | Op::Call_rm64 | Op::Mov_r64_rm64) {
                tables.add(insn.memory_displacement64());
            }
        }
        _ => {}
    }
    if absolute {
        collect_absolute(insn, targets, tables);
    }
}

/// What an instruction of a file at fixed addresses refers to by an immediate, or by a displacement beside an index.
fn collect_absolute(insn: &Instruction, targets: &mut Targets, tables: &mut Tables) {
    let (to, is_target) = match insn.code() {
        Op::Mov_r32_imm32 | Op::Pushq_imm32 => (u64::from(insn.immediate32()), true),
        Op::Mov_rm64_imm32 | Op::Mov_r64_imm64 => (insn.immediate(1), true),
        Op::Add_rm64_imm32 | Op::Add_RAX_imm32 => (insn.immediate(1), false),
        _ if insn.memory_index() != Register::None => (insn.memory_displacement64(), false),
        _ => return,
    };
    let is_code = if is_target { targets.insert(to) } else { targets.in_code(to) };
    if is_code {
        tables.add_label(insn.ip(), to);
    }
}

/// The first instruction of `code` that refers to `target`, reading from `from` to `to`.
pub(crate) fn source(code: &Code<'_>, from: u64, to: u64, target: u64) -> Option<Source> {
    let bytes = code.from_addr(from);
    let bytes = &bytes[..bytes.len().min(to.saturating_sub(from) as usize)];
    for insn in Decoder::with_ip(64, bytes, from, DecoderOptions::NONE) {
        if insn.op0_kind() == OpKind::NearBranch64 && insn.near_branch64() == target {
            return Some(Source::Branch { at: insn.ip() });
        }
        if insn.is_ip_rel_memory_operand() && insn.memory_displacement64() == target {
            return Some(Source::Reference { at: insn.ip() });
        }
    }
    None
}

/// Where an unconditional direct jump leads.
pub(crate) fn follow(insn: &Instruction) -> Option<u64> {
    matches!(insn.code(), Op::Jmp_rel8_64 | Op::Jmp_rel32_64).then(|| insn.near_branch64())
}

/// Where the direct branch at the start of `bytes` leads, if one stands there.
pub(crate) fn branch_target(bytes: &[u8], addr: u64) -> Option<u64> {
    let insn = super::decode_raw(bytes, addr)?;
    (insn.op0_kind() == OpKind::NearBranch64).then(|| insn.near_branch64())
}
