//! Which registers and flags hold nothing that anyone will read.
//!
//! For:     the trampoline, which need not save what is dead.
//! State:   none.
//! Context: control. Cost: one detailed decode for each instruction scanned, 64 at most.
//! Keeps:   G1 a register in `dead_regs` is written whole before it is read on the one path from the site
//!          to that write; a conditional branch, call, return, indirect jump or system call ends the scan.
//!          G2 `flags_dead` holds when CF, PF, AF, ZF, SF and OF are all written before one is read, on the one path
//!          from the site; direct calls are followed into what they call. What a function returns is live, flags
//!          included: hand-written assembly returns a status in them, and nothing in the bytes says that it does not.
//!          What an instruction leaves undefined counts as written for logic and shifts only:
//!          a division, a multiplication or a bit test may well leave the old value (AMD Zen does).
//! Checked: tests/flags.rs; tests/differential poisons what is said to be dead.

use iced_x86::{
    Code as Op, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    RflagsBits,
};

use super::{decode_raw, follow};
use crate::code::Code;

/// The most instructions that one scan looks at. 64: beyond it hardly any site gains (2026-11, libc).
const SCAN_MAX: usize = 64;

const ARITHMETIC: u32 =
    RflagsBits::CF | RflagsBits::PF | RflagsBits::AF | RflagsBits::ZF | RflagsBits::SF | RflagsBits::OF;

/// A set of the sixteen general registers, by hardware number (rax 0, rcx 1, ... r15 15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegSet(u16);

impl RegSet {
    /// Whether the register with this hardware number is in the set.
    pub fn contains(self, number: u8) -> bool {
        number < 16 && self.0 & (1 << number) != 0
    }

    /// The hardware numbers in the set, lowest first.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |number| self.contains(*number))
    }

    /// How many registers are in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// One bit for each register, bit 0 for rax.
    pub fn bits(self) -> u16 {
        self.0
    }
}

impl From<u16> for RegSet {
    fn from(bits: u16) -> RegSet {
        RegSet(bits)
    }
}

/// What a scan has found so far.
#[derive(Default)]
struct Scan {
    /// Registers written whole before any read.
    dead: u16,
    /// Registers read, or written in part, before that.
    live: u16,
    flags_written: u32,
    flags_live: bool,
}

/// (registers that are dead, whether the arithmetic flags are) before the instruction at `site`.
pub(crate) fn liveness(codes: &[Code<'_>], site: u64) -> (RegSet, bool) {
    let mut scan = Scan::default();
    let mut factory = InstructionInfoFactory::new();
    let mut addr = site;
    for _ in 0..SCAN_MAX {
        let Some(code) = Code::holding(codes, addr) else { break };
        let Some(insn) = decode_raw(code.from_addr(addr), addr) else { break };
        if let Some(to) = follow(&insn) {
            addr = to;
            continue;
        }
        scan.flags(&insn);
        if insn.code() == Op::Call_rel32_64 {
            // What the callee leaves of the registers is its caller's affair: only the flags go on.
            scan.end_of_registers();
            addr = insn.near_branch64();
            continue;
        }
        if ends_scan(&insn) {
            break;
        }
        scan.registers(&insn, &mut factory);
        if scan.is_decided() {
            break;
        }
        addr = insn.next_ip();
    }
    scan.verdict()
}

/// rep-prefixed and other plain instructions go on; everything that may go elsewhere ends the scan.
fn ends_scan(insn: &Instruction) -> bool {
    insn.flow_control() != FlowControl::Next || insn.is_privileged()
}

impl Scan {
    fn verdict(&self) -> (RegSet, bool) {
        let written = self.flags_written & ARITHMETIC == ARITHMETIC;
        (RegSet(self.dead & !(1 << 4)), !self.flags_live && written)
    }

    fn end_of_registers(&mut self) {
        self.live |= !self.dead;
    }

    fn is_decided(&self) -> bool {
        let flags = self.flags_live || self.flags_written & ARITHMETIC == ARITHMETIC;
        flags && (self.dead | self.live) == u16::MAX
    }

    fn flags(&mut self, insn: &Instruction) {
        let syscall = insn.code() == Op::Syscall; // r11 takes all flags
        let read = if syscall { ARITHMETIC } else { insn.rflags_read() & ARITHMETIC };
        if read & !self.flags_written != 0 {
            self.flags_live = true;
        }
        if !may_leave_flags(insn) {
            let sure = insn.rflags_written() | insn.rflags_cleared() | insn.rflags_set();
            let undefined = if overwrites_undefined(insn) { insn.rflags_undefined() } else { 0 };
            self.flags_written |= (sure | undefined) & ARITHMETIC;
        }
    }

    fn registers(&mut self, insn: &Instruction, factory: &mut InstructionInfoFactory) {
        let info = factory.info(insn);
        let mut written = 0;
        for used in info.used_registers() {
            let Some(bit) = bit_of(used.register()) else { continue };
            match used.access() {
                OpAccess::None | OpAccess::NoMemAccess => {}
                OpAccess::Write if is_whole(used.register()) => written |= bit,
                _ => self.live |= bit & !self.dead,
            }
        }
        self.dead |= written & !self.live;
    }
}

/// A shift by cl or by 0, and a string comparison of no element, leave the flags as they were.
fn may_leave_flags(insn: &Instruction) -> bool {
    let shift = matches!(
        insn.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Shld
            | Mnemonic::Shrd
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
    );
    if shift {
        let last = insn.op_count() - 1;
        return match insn.op_kind(last) {
            OpKind::Immediate8 => insn.immediate8() & 0x1f == 0,
            _ => true,
        };
    }
    insn.has_rep_prefix() || insn.has_repne_prefix()
}

/// The flags that these leave undefined do not keep their old value on any processor we know of.
fn overwrites_undefined(insn: &Instruction) -> bool {
    use Mnemonic::{And, Or, Sar, Shl, Shr, Test, Xor};
    matches!(insn.mnemonic(), And | Or | Sar | Shl | Shr | Test | Xor)
}

fn is_whole(register: Register) -> bool {
    register.is_gpr64() || register.is_gpr32()
}

pub(super) fn bit_of(register: Register) -> Option<u16> {
    register.is_gpr().then(|| 1 << register.full_register().number())
}
