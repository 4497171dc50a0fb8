//! x86-64: what an instruction is, and how long the jumps are.
//!
//! For:     the ladder, which asks for classes, never for opcodes.
//! State:   none.
//! Context: control.
//! Keeps:   G1 `decode` and `classify` name every instruction that must not be moved (kernel-facts 1.11, with
//!          the departures below).
//!          G2 decoding never reads past the given bytes.
//! Checked: tests/real (boundaries of libc), tests/ladder.rs, tests/differential (each class run).
//! Source:  the kernel's class table for uprobes. Departs: LOCK and segment prefixes are allowed, for the
//!          instruction is moved whole, prefixes included, and is not emulated; `syscall` is allowed as the
//!          first instruction.

mod depth;
mod emulate;
mod indirect;
mod kernel;
mod live;
mod memory;
mod no_slot;
mod relocate;
mod scan;
mod slot;
mod sweep;
mod trap;
mod written;

use iced_x86::{Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::code::{Code, INSN_MAX_BYTES, Insn};
use crate::reason::Forbidden;

pub(crate) use depth::Depths;
pub use emulate::{Emulation, RSP, Registers, Store};
pub(crate) use indirect::{Made, Sum, formed};
pub use kernel::{KernelWay, Misrun, kernel_misruns, kernel_way};
pub use live::RegSet;
pub(crate) use live::liveness;
pub use memory::{MemoryAccess, memory_accesses};
pub use no_slot::NoSlot;
pub(crate) use relocate::{len_bound, relocate};
pub(crate) use scan::scan;
pub use slot::{At, RELEASE_FRAME_BYTES, Resume, SLOT_CODE_BYTES, SlotCode};
pub(crate) use sweep::{Met, branch_target, follow, source, sweep};
pub use trap::accessor_before;
pub use written::{written, written_apart_from_computed_calls};

/// Length of a jump that reaches 2 GiB either way.
pub(crate) const JUMP_BYTES: u8 = 5;
/// Length of a jump that reaches [`SHORT_REACH`].
pub(crate) const SHORT_JUMP_BYTES: u8 = 2;
/// No branch with a short displacement comes from farther away than this, in bytes.
pub(crate) const SHORT_BRANCH_REACH: u64 = 128 + 15;
/// How far the short jump reaches, from its own end.
pub(crate) const SHORT_REACH: std::ops::RangeInclusive<i64> = -128..=127;

/// What the ladder needs to know of one instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub(crate) insn: Insn,
    /// Does nothing, whatever its length.
    pub(crate) is_nop: bool,
    /// The next instruction is never reached from it: ret, jmp, ud2, hlt.
    pub(crate) ends: bool,
    pub(crate) is_call: bool,
    pub(crate) is_syscall: bool,
    /// It must not be moved. With `ends`, it may still be the last of several.
    pub(crate) forbidden: Option<Forbidden>,
}

/// The instruction at the start of `bytes`, or `None` when they are none.
pub(crate) fn decode(bytes: &[u8], addr: u64) -> Option<Class> {
    let insn = decode_raw(bytes, addr)?;
    Some(classify(&insn, bytes))
}

pub(crate) fn decode_raw(bytes: &[u8], addr: u64) -> Option<Instruction> {
    let bytes = &bytes[..bytes.len().min(INSN_MAX_BYTES)];
    let insn = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE).decode();
    (!insn.is_invalid() && !is_exchange_taken_for_pause(&insn, bytes)).then_some(insn)
}

/// `f3` and a REX prefix that names r8 before `90`: the decoder says pause, processors exchange r8 and rax.
fn is_exchange_taken_for_pause(insn: &Instruction, bytes: &[u8]) -> bool {
    let rex = prefixes(&bytes[..insn.len()]).last().copied();
    insn.mnemonic() == Mnemonic::Pause && rex.is_some_and(|rex| rex & 0xf1 == 0x41)
}

fn classify(insn: &Instruction, bytes: &[u8]) -> Class {
    Class {
        insn: Insn::new(insn.ip(), &bytes[..insn.len()]).expect("a decoded instruction has 1 to 15 bytes"),
        is_nop: is_nop(insn),
        ends: ends(insn),
        is_call: matches!(insn.code(), Op::Call_rel32_64 | Op::Call_rm64),
        is_syscall: insn.code() == Op::Syscall,
        forbidden: forbidden(insn, bytes),
    }
}

/// A nop of any length. fnop is none: it reports pending x87 exceptions.
fn is_nop(insn: &Instruction) -> bool {
    insn.mnemonic() == Mnemonic::Nop
}

fn ends(insn: &Instruction) -> bool {
    match insn.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return => true,
        FlowControl::Exception => true,
        _ => insn.code() == Op::Hlt,
    }
}

fn forbidden(insn: &Instruction, bytes: &[u8]) -> Option<Forbidden> {
    if insn.memory_base() == Register::EIP {
        return Some(Forbidden::AddressSize);
    }
    if insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::SS && writes_segment(insn) {
        return Some(Forbidden::StackSegment);
    }
    match insn.flow_control() {
        FlowControl::Next => insn.is_privileged().then_some(Forbidden::Privileged),
        FlowControl::Interrupt => Some(Forbidden::Trap),
        FlowControl::Exception => Some(Forbidden::Undefined),
        FlowControl::XbeginXabortXend => {
            matches!(insn.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16)
                .then_some(Forbidden::Transaction)
        }
        _ if has_odd_operand_size(bytes) => Some(Forbidden::SixteenBitBranch),
        _ => forbidden_branch(insn),
    }
}

fn writes_segment(insn: &Instruction) -> bool {
    matches!(insn.mnemonic(), Mnemonic::Mov | Mnemonic::Pop)
}

/// The legacy and REX prefixes at the start of an instruction.
fn prefixes(bytes: &[u8]) -> &[u8] {
    let is_prefix = |byte: &&u8| {
        matches!(
            byte,
            0x66 | 0x67 | 0xf2 | 0xf3 | 0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x40..=0x4f | 0x64 | 0x65
        )
    };
    &bytes[..bytes.iter().take_while(is_prefix).count()]
}

/// An operand-size prefix that no REX.W overrides. Only the last prefix can be a REX that counts.
fn has_odd_operand_size(bytes: &[u8]) -> bool {
    let prefixes = prefixes(bytes);
    prefixes.contains(&0x66) && prefixes.last().is_none_or(|last| last & 0xf8 != 0x48)
}

fn forbidden_branch(insn: &Instruction) -> Option<Forbidden> {
    match insn.code() {
        Op::Syscall => None,
        Op::Call_rm64 if insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::RSP => {
            Some(Forbidden::CallOfStackPointer)
        }
        Op::Call_rel32_64 | Op::Call_rm64 => None,
        Op::Jmp_rel8_64 | Op::Jmp_rel32_64 | Op::Jmp_rm64 | Op::Retnq | Op::Retnq_imm16 => None,
        Op::Retnw | Op::Retnw_imm16 | Op::Call_rm16 | Op::Call_rel16 | Op::Jmp_rm16 | Op::Jmp_rel16 => {
            Some(Forbidden::SixteenBitBranch)
        }
        _ if insn.flow_control() == FlowControl::ConditionalBranch => {
            (insn.op0_kind() != OpKind::NearBranch64).then_some(Forbidden::SixteenBitBranch)
        }
        _ if insn.is_privileged() || insn.flow_control() == FlowControl::Call => Some(Forbidden::Privileged),
        _ => Some(Forbidden::FarBranch),
    }
}

/// How control leaves an instruction for somewhere else than the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    No,
    Return,
    /// A direct jump.
    Jump(u64),
    /// A direct conditional jump.
    Branch(u64),
    /// An indirect jump that does not look like a switch; [`Depths`] tells more.
    TailCall,
}

/// What `insn` does, with the instruction before it in memory.
pub(crate) fn leave(insn: &Insn, before: Option<&Insn>) -> Leave {
    let Some(raw) = decode_raw(insn.bytes(), insn.addr) else { return Leave::No };
    match raw.flow_control() {
        FlowControl::Return => Leave::Return,
        FlowControl::UnconditionalBranch => Leave::Jump(raw.near_branch64()),
        FlowControl::ConditionalBranch => Leave::Branch(raw.near_branch64()),
        FlowControl::IndirectBranch if is_switch(&raw, insn, before) => Leave::No,
        FlowControl::IndirectBranch => Leave::TailCall,
        _ => Leave::No,
    }
}

/// The address that a `lea` relative to rip forms.
pub(crate) fn address_formed(insn: &Insn) -> Option<u64> {
    let raw = decode_raw(insn.bytes(), insn.addr).filter(|raw| raw.code() == Op::Lea_r64_m)?;
    raw.is_ip_rel_memory_operand().then(|| raw.memory_displacement64())
}

pub(crate) fn is_indirect_jump(insn: &Insn) -> bool {
    decode_raw(insn.bytes(), insn.addr).is_some_and(|raw| raw.flow_control() == FlowControl::IndirectBranch)
}

/// Whether a return behind `insn` leads to what that has put where returns look.
pub(crate) fn fills_return(insn: &Insn) -> bool {
    let Some(raw) = decode_raw(insn.bytes(), insn.addr) else { return false };
    let is_slot = raw.op0_kind() == OpKind::Memory
        && raw.memory_base() == Register::RSP
        && raw.memory_index() == Register::None
        && raw.memory_displacement64() == 0;
    raw.mnemonic() == Mnemonic::Push
        || is_slot && !matches!(raw.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop)
}

fn is_switch(jump: &Instruction, insn: &Insn, before: Option<&Insn>) -> bool {
    const NOTRACK: u8 = 0x3e;
    if insn.bytes().first() == Some(&NOTRACK) || jump.memory_index() != Register::None {
        return true;
    }
    let before = before.and_then(|b| decode_raw(b.bytes(), b.addr));
    before.is_some_and(|before| {
        jump.op0_kind() == OpKind::Register
            && before.mnemonic() == Mnemonic::Add
            && before.op0_kind() == OpKind::Register
            && before.op0_register() == jump.op0_register()
    })
}

/// Whether the code at `addr` is a stub that leads to another library: it begins with a jump through memory.
pub(crate) fn is_stub(bytes: &[u8], addr: u64) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let skipped = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let jump = decode_raw(&bytes[skipped..], addr + skipped as u64);
    jump.is_some_and(|raw| {
        raw.flow_control() == FlowControl::IndirectBranch && raw.memory_base() == Register::RIP
    })
}

/// The first bytes of a near jump on the opposite condition; `None` if there is none.
pub(crate) fn opposite(insn: &Insn) -> Option<[u8; 2]> {
    let raw = decode_raw(insn.bytes(), insn.addr)?;
    // The condition's number is the same in both forms, and its lowest bit negates it.
    let number = raw.is_jcc_short_or_near().then(|| raw.condition_code() as u8)?.checked_sub(1)?;
    Some([0x0f, 0x80 | number ^ 1])
}

/// The next instruction is the next one run, but for a conditional jump that is taken.
pub(crate) fn falls_through(insn: &Insn) -> bool {
    let Some(raw) = decode_raw(insn.bytes(), insn.addr) else { return false };
    match raw.flow_control() {
        FlowControl::Next => true,
        FlowControl::ConditionalBranch => raw.is_jcc_short_or_near(),
        _ => false,
    }
}

/// Whether running `insn` can raise a signal by itself, given the registers that always hold good addresses.
///
/// Memory at a fixed address, relative to rip or to a segment, is taken for good, and so is the stack.
pub(crate) fn may_fault(insn: &Insn, good: RegSet) -> bool {
    let Some(insn) = decode_raw(insn.bytes(), insn.addr) else { return true };
    if matches!(insn.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
        return true;
    }
    if insn.mnemonic() == Mnemonic::Nop || insn.mnemonic() == Mnemonic::Lea {
        return false;
    }
    (0..insn.op_count()).any(|op| match insn.op_kind(op) {
        OpKind::Memory => {
            let base = insn.memory_base();
            let is_fixed =
                matches!(base, Register::None | Register::RIP) && insn.memory_index() == Register::None;
            let is_good = base.is_gpr64() && good.contains(base.number() as u8);
            !(is_fixed || is_good && insn.memory_index() == Register::None)
        }
        // Operands of string instructions.
        OpKind::MemorySegSI
        | OpKind::MemorySegESI
        | OpKind::MemorySegRSI
        | OpKind::MemorySegDI
        | OpKind::MemorySegEDI
        | OpKind::MemorySegRDI
        | OpKind::MemoryESDI
        | OpKind::MemoryESEDI
        | OpKind::MemoryESRDI => true,
        _ => false,
    })
}

/// Whether a jump at `site` would cover a byte of the signal return code (`mov $15,%eax` or `%rax`; `syscall`).
///
/// libgcc and gdb find signal frames by these very bytes, so none may change. glibc's unwind data names the byte
/// before them as the start of that function.
pub(crate) fn is_signal_return(code: &Code<'_>, site: u64) -> bool {
    const FORMS: [&[u8]; 2] =
        [&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]];
    let offset = (site - code.base) as usize;
    FORMS.iter().any(|form| {
        let first = offset.saturating_sub(form.len() - 1);
        (first..offset + usize::from(JUMP_BYTES))
            .any(|at| code.bytes.get(at..).is_some_and(|b| b.starts_with(form)))
    })
}
