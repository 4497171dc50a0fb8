//! Random bytes that decode to a wanted encoding, and what else it needs to run without a fault.
//!
//! For:     `every_encoding_that_this_processor_has_runs_the_same_elsewhere`.
//! State:   none.
//! Context: test only.
//! Keeps:   G1 what is returned decodes to the `Code` asked for.
//!          G2 prefixes, registers, masks, lengths and immediates are random; memory operands mostly lie in data.
//! Checked: the test counts, for each encoding, the cases that ran.

use iced_x86::{
    Code as Op, Decoder, DecoderOptions, EncodingKind, Instruction, MandatoryPrefix, OpCodeTableKind, OpKind,
    Register,
};

use crate::machine::{DATA_LEN, FLAGS, STACK_LEN};
use crate::random::Random;
use crate::{SITE, Start};

/// Bytes of one instruction with this encoding, for the site; `None` if the draw decodes to another.
pub fn draw(random: &mut Random, code: Op) -> Option<Vec<u8>> {
    let info = code.op_code();
    let mut bytes = match info.encoding() {
        EncodingKind::Legacy => legacy(random, code),
        EncodingKind::VEX => vex(random, code),
        EncodingKind::EVEX => evex(random, code),
        _ => return None,
    };
    let modrm = bytes.len();
    bytes.extend(random.bytes::<12>());
    bytes[modrm] = modrm_byte(random, code, bytes[modrm]);
    near_displacement(random, &mut bytes[modrm..]);
    bytes.truncate(15);
    let insn = Decoder::with_ip(64, &bytes, SITE, DecoderOptions::NONE).decode();
    if insn.code() != code {
        return None;
    }
    bytes.truncate(insn.len());
    if has_kind(code, "mem_offs") && insn.len() >= 9 {
        let at = bytes.len() - 8;
        bytes[at..].copy_from_slice(&random.data_addr().to_le_bytes());
    }
    aim_branch(random, &mut bytes, &insn);
    Some(bytes)
}

fn opcode_bytes(code: Op) -> Vec<u8> {
    let info = code.op_code();
    let escape: &[u8] = match info.table() {
        OpCodeTableKind::T0F => &[0x0f],
        OpCodeTableKind::T0F38 => &[0x0f, 0x38],
        OpCodeTableKind::T0F3A => &[0x0f, 0x3a],
        _ => &[],
    };
    [escape, &own_bytes(code)].concat()
}

/// The opcode without its map: one byte, or two where the second is a fixed operand byte.
fn own_bytes(code: Op) -> Vec<u8> {
    let info = code.op_code();
    match info.op_code_len() {
        1 => vec![info.op_code() as u8],
        _ => (info.op_code() as u16).to_be_bytes().to_vec(),
    }
}

fn legacy(random: &mut Random, code: Op) -> Vec<u8> {
    let info = code.op_code();
    let mut bytes = vec![];
    if random.one_in(16) {
        bytes.push(*random.pick(&[0x2e, 0x36, 0x3e, 0x26])); // segment prefixes that mean nothing here
    }
    match info.mandatory_prefix() {
        MandatoryPrefix::P66 => bytes.push(0x66),
        MandatoryPrefix::PF3 => bytes.push(0xf3),
        MandatoryPrefix::PF2 => bytes.push(0xf2),
        MandatoryPrefix::PNP => {}
        MandatoryPrefix::None => {
            if info.can_use_lock_prefix() && random.one_in(4) {
                bytes.push(0xf0);
            }
            if (info.can_use_rep_prefix() || info.can_use_repne_prefix()) && random.one_in(2) {
                bytes.push(*random.pick(&[0xf3, 0xf2]));
            }
        }
    }
    if info.operand_size() == 16 && info.mandatory_prefix() != MandatoryPrefix::P66 {
        bytes.push(0x66);
    }
    if info.address_size() == 32 {
        bytes.push(0x67);
    }
    if info.fwait() {
        bytes.insert(0, 0x9b);
    }
    let is_wide = info.operand_size() == 64 || info.w() == 1;
    let mut rex =
        0x40 | if is_wide { 8 } else { 0 } | if random.one_in(2) { random.next() as u8 & 7 } else { 0 };
    if info.is_wig() && random.one_in(4) {
        rex |= 8;
    }
    if rex != 0x40 || random.one_in(4) {
        bytes.push(rex);
    }
    bytes.extend(opcode_bytes(code));
    // A register in the opcode's low bits.
    if !has_modrm(code) && random.one_in(2) {
        let last = bytes.len() - 1;
        bytes[last] |= random.next() as u8 & 7;
    }
    bytes
}

fn has_modrm(code: Op) -> bool {
    use iced_x86::OpCodeOperandKind as K;
    code.op_code().is_group()
        || code.op_code().op_kinds().iter().any(|kind| {
            !matches!(
                kind,
                K::None
                    | K::imm8
                    | K::imm8sex16
                    | K::imm8sex32
                    | K::imm8sex64
                    | K::imm16
                    | K::imm32
                    | K::imm32sex64
                    | K::imm64
            ) && !format!("{kind:?}").ends_with("_opcode")
        })
}

fn has_kind(code: Op, part: &str) -> bool {
    code.op_code().op_kinds().iter().any(|kind| format!("{kind:?}").contains(part))
}

fn map_number(code: Op) -> u8 {
    match code.op_code().table() {
        OpCodeTableKind::T0F => 1,
        OpCodeTableKind::T0F38 => 2,
        OpCodeTableKind::T0F3A => 3,
        OpCodeTableKind::MAP5 => 5,
        OpCodeTableKind::MAP6 => 6,
        _ => 0,
    }
}

fn prefix_bits(code: Op) -> u8 {
    match code.op_code().mandatory_prefix() {
        MandatoryPrefix::P66 => 1,
        MandatoryPrefix::PF3 => 2,
        MandatoryPrefix::PF2 => 3,
        _ => 0,
    }
}

/// vvvv as it stands in the prefix: 1111 where there is no such operand, which is as good a draw as any.
fn vvvv(random: &mut Random) -> u8 {
    if random.one_in(2) { 0x78 } else { random.next() as u8 & 0x78 }
}

fn width(random: &mut Random, code: Op) -> u8 {
    let info = code.op_code();
    let any = (info.is_wig() || info.is_wig32()) && random.one_in(2);
    if info.w() == 1 || info.operand_size() == 64 || any { 0x80 } else { 0 }
}

fn vex(random: &mut Random, code: Op) -> Vec<u8> {
    let info = code.op_code();
    let length = if info.is_lig() { random.next() as u8 & 1 } else { info.l() as u8 & 1 };
    let last = vvvv(random) | length << 2 | prefix_bits(code);
    let map = map_number(code);
    let inverted = if random.one_in(2) { 0xe0 } else { random.next() as u8 & 0xe0 };
    let w = width(random, code);
    let mut bytes = match map == 1 && w == 0 && random.one_in(2) {
        true => vec![0xc5, last | inverted & 0x80],
        false => vec![0xc4, inverted | map, last | w],
    };
    bytes.extend(own_bytes(code));
    bytes
}

fn evex(random: &mut Random, code: Op) -> Vec<u8> {
    let info = code.op_code();
    let high = if random.one_in(2) { 0xf0 } else { random.next() as u8 & 0xf0 };
    let length = if info.is_lig() { random.below(3) as u8 } else { info.l() as u8 };
    let mask = if random.one_in(2) { 0 } else { random.next() as u8 & 7 };
    let zero_or_broadcast = if random.one_in(2) { 0 } else { random.next() as u8 & 0x90 };
    let upper = if random.one_in(2) { 8 } else { random.next() as u8 & 8 };
    let w = width(random, code);
    let mut bytes = vec![
        0x62,
        high | map_number(code),
        w | vvvv(random) | 4 | prefix_bits(code),
        zero_or_broadcast | length << 5 | upper | mask,
    ];
    bytes.extend(own_bytes(code));
    bytes
}

/// Group, and one of: a register, rip-relative, a base with a displacement.
fn modrm_byte(random: &mut Random, code: Op, byte: u8) -> u8 {
    let info = code.op_code();
    let rest = match random.below(4) {
        _ if has_kind(code, "vsib") => 0x44 | byte & 0xb8,
        0 => 0xc0 | byte & 0x3f,
        1 => 0x05 | byte & 0x38,
        2 => 0x40 | byte & 0x3f,
        _ => 0x80 | byte & 0x3f,
    };
    let rest = if rest & 0xc7 == 0xc4 && has_kind(code, "vsib") { rest & 0x7f } else { rest };
    match (info.group_index(), info.rm_group_index()) {
        (-1, -1) => rest,
        (group, -1) => rest & 0xc7 | (group as u8) << 3,
        (-1, rm) => 0xc0 | byte & 0x38 | rm as u8,
        (group, rm) => 0xc0 | (group as u8) << 3 | rm as u8,
    }
}

/// Makes the displacement behind a modrm byte small, and often a multiple of 64, and the scale 1.
fn near_displacement(random: &mut Random, bytes: &mut [u8]) {
    let (mode, rm) = (bytes[0] >> 6, bytes[0] & 7);
    let at = if rm == 4 { 2 } else { 1 };
    if mode < 3 && rm == 4 {
        bytes[1] &= 0x3f;
    }
    if mode == 1 {
        bytes[at] = if random.one_in(2) { bytes[at] & 0x40 } else { bytes[at] & 0x7f };
    }
    if mode == 2 {
        let displacement =
            random.below(4) as u32 * 64 + if random.one_in(2) { 0 } else { random.below(64) as u32 };
        bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
    }
}

/// Leads a direct branch to int3 far from the window.
fn aim_branch(random: &mut Random, bytes: &mut [u8], insn: &Instruction) {
    if insn.op0_kind() != OpKind::NearBranch64 {
        return;
    }
    let len = bytes.len();
    let is_near = matches!(insn.code(), Op::Jmp_rel32_64 | Op::Call_rel32_64) || insn.code().is_jcc_near();
    if is_near {
        let to = random.landing().wrapping_sub(SITE + len as u64) as u32;
        bytes[len - 4..].copy_from_slice(&to.to_le_bytes());
    } else {
        let distance = 16 + random.below(100) as u8;
        bytes[len - 1] = if random.one_in(2) { distance } else { distance.wrapping_neg() };
    }
}

/// A state from which `insn` has a good chance to run without a fault.
pub fn prepare(random: &mut Random, insn: &Instruction, start: &mut Start) {
    start.state = random.calm_state();
    let regs = &mut start.state.regs;
    for number in (0..16).filter(|number| *number != 4) {
        regs[number] &= !63; // for operands of 64 bytes
    }
    let is_memory = (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory);
    let info = insn.code().op_code();
    if insn.has_rep_prefix() || insn.has_repne_prefix() {
        regs[1] = random.below(32);
    }
    if insn.memory_index().is_gpr() {
        regs[insn.memory_index().full_register().number()] = 64 * random.below(4);
    }
    if info.address_size() == 32 && !random.one_in(4) {
        // Where 32 bits lead nothing is mapped: only operands without an access run.
        regs[1] = random.below(64);
    }
    match insn.flow_control() {
        iced_x86::FlowControl::IndirectBranch | iced_x86::FlowControl::IndirectCall if is_memory => {
            start.data = random.landings(DATA_LEN);
            start.stack = random.landings(STACK_LEN);
        }
        iced_x86::FlowControl::IndirectBranch | iced_x86::FlowControl::IndirectCall => {
            (0..16).filter(|number| *number != 4).for_each(|number| regs[number] = random.landing());
        }
        iced_x86::FlowControl::Return => start.stack = random.landings(STACK_LEN),
        _ => {}
    }
    use iced_x86::Mnemonic::{Bt, Btc, Btr, Bts, Div, Enter, Idiv, Leave, Popf, Popfd, Popfq, Xlatb};
    match insn.mnemonic() {
        Div | Idiv => {
            regs[2] = 0;
            regs[0] = random.below(1 << 7);
        }
        // Bit offsets reach far beyond the operand.
        Bt | Btc | Btr | Bts if insn.op_count() == 2 && insn.op1_kind() == OpKind::Register && is_memory => {
            let bits = insn.op1_register().full_register().number();
            if insn.memory_base().full_register().number() != bits || insn.memory_base() == Register::RIP {
                regs[bits] = random.below(512);
            }
        }
        // No trap flag, no alignment check: they would end the run elsewhere.
        Popf | Popfd | Popfq => {
            let words = start.stack.chunks_exact_mut(8);
            words.for_each(|word| word.copy_from_slice(&(random.next() & FLAGS).to_le_bytes()));
        }
        Leave => regs[5] = regs[4] + 8 * random.below(16),
        Enter => regs[5] = regs[4],
        Xlatb => regs[3] = random.data_addr() & !63,
        _ => {}
    }
    if insn.is_vsib() {
        start.state.xmm.chunks_exact_mut(8).for_each(|lane| lane.copy_from_slice(&[0; 8]));
        start.state.wide.fill(0);
        // Opmasks of ones: every element is gathered or scattered.
        start.state.fill_masks(0xff);
    }
    if insn.code().is_save_restore_instruction() || random.one_in(8) {
        start.data.fill(0);
    }
}
