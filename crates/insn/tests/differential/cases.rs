//! One generator for each class of instruction that `relocate` treats in its own way. Table.
//!
//! For:     `every_class_runs_the_same_elsewhere`.
//! State:   none; each call draws operands and may adjust the state it will run from.
//! Context: test only.
//! Keeps:   G1 every class of `arch/x86_64/relocate.rs` has a row.
//! Checked: the test prints how many of each ran, branched and faulted.

use crate::SITE;
use crate::Start;
use crate::machine::{DATA_LEN, STACK_LEN};
use crate::random::Random;

type Make = fn(&mut Random, &mut Start) -> Vec<u8>;

pub const CLASSES: &[(&str, Make)] = &[
    ("nop", |random, _| random.pick(NOPS).to_vec()),
    ("endbr64, mov", |_, _| vec![0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xf8]),
    ("jmp rel8", |random, _| vec![0xeb, far8(random)]),
    ("jmp rel32", |random, _| with_rel32(random, &[0xe9])),
    ("jcc rel8", |random, _| vec![0x70 + random.below(16) as u8, far8(random), 0x90, 0x90, 0x90]),
    ("jcc rel32", |random, _| {
        let condition = random.below(16) as u8;
        with_rel32(random, &[0x0f, 0x80 + condition])
    }),
    ("cmp, jcc", |random, _| {
        let modrm = 0xc0 + random.below(64) as u8;
        vec![0x48, 0x39, modrm, 0x70 + random.below(16) as u8, far8(random)]
    }),
    ("loop, jrcxz", |random, _| vec![0xe0 + random.below(4) as u8, far8(random), 0x90, 0x90, 0x90]),
    ("loop, jecxz by ecx", |random, start| {
        start.state.regs[1] = random.below(4) | (random.next() << 32);
        vec![0x67, 0xe0 + random.below(4) as u8, far8(random), 0x90, 0x90]
    }),
    ("dec, loop", |random, _| vec![0x48, 0xff, 0xc8, 0xe0 + random.below(4) as u8, far8(random)]),
    ("call rel32", |random, _| with_rel32(random, &[0xe8])),
    ("push, mov, call rel32", |random, _| with_rel32(random, &[0x53, 0x89, 0xc3, 0xe8])),
    ("call reg", |random, start| {
        let number = not_rsp(random);
        start.state.regs[usize::from(number)] = random.landing();
        let rex: &[u8] = if number < 8 { &[] } else { &[0x41] };
        // mov edx,ecx and the like first, so that the window ends in the call
        let lead: &[u8] = if number < 8 { &[0x0f, 0x1f, 0x00] } else { &[0x66, 0x90] };
        [lead, rex, &[0xff, 0xd0 + (number & 7)]].concat()
    }),
    ("call [rip]", |random, start| {
        start.data = random.landings(DATA_LEN);
        with_data32(random, &[0xff, 0x15], 6)
    }),
    ("call [reg+disp8]", |random, start| {
        let number = memory_base(random, start);
        lead_for(3, &[0xff, 0x50 + number, (random.below(32) * 8) as u8])
    }),
    ("call [reg+disp32]", |random, start| {
        let number = memory_base(random, start);
        [&[0xff, 0x90 + number][..], &(random.below(64) as u32 * 8).to_le_bytes()].concat()
    }),
    ("call [reg+reg*8]", |random, start| {
        let base = memory_base(random, start);
        let index = if base == 1 { 2 } else { 1 };
        start.state.regs[usize::from(index)] = random.below(64);
        lead_for(4, &[0xff, 0x54, 0xc0 + index * 8 + base, 8])
    }),
    ("call [rsp+disp]", |random, start| {
        start.stack = random.landings(STACK_LEN);
        lead_for(4, &[0xff, 0x54, 0x24, (random.below(32) * 8) as u8])
    }),
    ("call [rsp+disp32]", |random, start| {
        start.stack = random.landings(STACK_LEN);
        let displacement = random.below(128) as i32 * 8 - 512;
        [&[0xff, 0x94, 0x24][..], &displacement.to_le_bytes()].concat()
    }),
    ("call [rsp]", |random, start| {
        start.stack = random.landings(STACK_LEN);
        vec![0x66, 0x90, 0xff, 0x14, 0x24]
    }),
    ("call [rsp+reg*8+disp]", |random, start| {
        start.stack = random.landings(STACK_LEN);
        start.state.regs[1] = random.below(16).wrapping_sub(8);
        lead_for(4, &[0xff, 0x54, 0xcc, (random.below(16) * 8) as u8])
    }),
    ("call [rbp-disp]", |random, start| {
        start.stack = random.landings(STACK_LEN);
        start.state.regs[5] = start.state.regs[4] + random.below(4) * 8;
        lead_for(3, &[0xff, 0x55, (random.below(16) * 8).wrapping_neg() as u8])
    }),
    ("call [unmapped]", |random, start| {
        // Half of these fault: at the call, with the stack in place.
        let number = memory_base(random, start);
        if random.one_in(2) {
            start.state.regs[usize::from(number)] = random.below(2048);
        }
        [&[0xff, 0x90 + number][..], &8u32.to_le_bytes()].concat()
    }),
    ("jmp reg", |random, start| {
        let number = not_rsp(random) & 7;
        let number = if number == 4 { 3 } else { number };
        start.state.regs[usize::from(number)] = random.landing();
        vec![0xff, 0xe0 + number]
    }),
    ("jmp [rip]", |random, start| {
        start.data = random.landings(DATA_LEN);
        with_data32(random, &[0xff, 0x25], 6)
    }),
    ("jmp [rsp+disp]", |random, start| {
        start.stack = random.landings(STACK_LEN);
        vec![0xff, 0x64, 0x24, (random.below(16) * 8) as u8]
    }),
    ("mov, lea, cmp [rip]", |random, _| {
        let opcode = *random.pick(&[0x8b, 0x89, 0x8d, 0x3b, 0x39, 0x03, 0x29, 0x33, 0x85, 0x63, 0x87]);
        let modrm = 0x05 + 8 * random.below(8) as u8;
        let rex = 0x48 + 4 * random.below(2) as u8;
        with_data32(random, &[rex, opcode, modrm], 7)
    }),
    ("op [rip], imm8", |random, _| {
        let modrm = 0x05 + 8 * random.below(8) as u8;
        let immediate = random.next() as u8;
        let bytes = with_data32(random, &[0x48, 0x83, modrm], 8);
        [bytes, vec![immediate]].concat()
    }),
    ("op [rip], imm32", |random, _| {
        let modrm = 0x05 + 8 * random.below(8) as u8;
        let immediate = random.bytes::<4>();
        let bytes = with_data32(random, &[0x81, modrm], 10);
        [bytes, immediate.to_vec()].concat()
    }),
    ("lock xadd, cmpxchg16b [rip]", |random, _| {
        if random.one_in(2) {
            return with_data32(random, &[0xf0, 0x48, 0x0f, 0xc1, 0x1d], 9);
        }
        with_data32(random, &[0xf0, 0x48, 0x0f, 0xc7, 0x0d], 9)
    }),
    ("push, pop [rip]", |random, _| {
        let head = *random.pick(&[[0xff, 0x35], [0x8f, 0x05]]);
        with_data32(random, &head, 6)
    }),
    ("sse [rip]", |random, _| {
        let opcode = *random.pick(&[0x10, 0x58, 0x59, 0x5d, 0x6f]);
        let prefix = *random.pick(&[0xf3, 0x66]);
        with_data32(random, &[prefix, 0x0f, opcode, 0x0d], 8)
    }),
    ("vex [rip]", |random, _| {
        let head =
            *random.pick(&[[0xc5, 0xf9, 0x6f, 0x15], [0xc5, 0xe8, 0x58, 0x0d], [0xc5, 0xfa, 0x10, 0x1d]]);
        with_data32(random, &head, 8)
    }),
    ("push, sub, mov", |random, _| {
        vec![0x50 + random.below(8) as u8, 0x48, 0x83, 0xec, 0x28, 0x48, 0x89, 0xe5]
    }),
    ("ret", |random, start| {
        start.stack = random.landings(STACK_LEN);
        vec![0xc3]
    }),
    ("pop, ret", |random, start| {
        start.stack = random.landings(STACK_LEN);
        vec![0x5d, 0xc3]
    }),
    ("ret imm16", |random, start| {
        start.stack = random.landings(STACK_LEN);
        vec![0xc2, (random.below(16) * 8) as u8, 0]
    }),
    ("leave, ret", |random, start| {
        start.stack = random.landings(STACK_LEN);
        start.state.regs[5] = start.state.regs[4] + random.below(16) * 8;
        vec![0xc9, 0xc3]
    }),
    ("enter", |random, _| vec![0xc8, (random.below(4) * 8) as u8, 0, 0, 0x90]),
    ("pushf, lahf, sahf, adc", |random, _| vec![*random.pick(&[0x9c, 0x9f, 0x9e]), 0x48, 0x11, 0xc8, 0x90]),
    ("rep movs, stos, scas", |random, start| {
        start.state.regs[1] = random.below(64);
        start.state.regs[6] = random.data_addr();
        start.state.regs[7] = random.data_addr();
        let opcode = *random.pick(&[0xa4, 0xa5, 0xaa, 0xab, 0xae, 0xa6]);
        vec![*random.pick(&[0xf3, 0xf2]), 0x48 * (opcode & 1) + 0x40 * (1 - (opcode & 1)), opcode, 0x90, 0x90]
    }),
    ("fs: load", |_, _| vec![0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0]),
];

const NOPS: &[&[u8]] = &[
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x44, 0, 0],
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0xf3, 0x0f, 0x1e, 0xfa, 0x90],
];

/// An 8-bit displacement that leads out of the window.
fn far8(random: &mut Random) -> u8 {
    let distance = 16 + random.below(112) as u8;
    if random.one_in(2) { distance } else { distance.wrapping_neg() }
}

fn with_rel32(random: &mut Random, head: &[u8]) -> Vec<u8> {
    let end = SITE + head.len() as u64 + 4;
    [head, &(random.landing().wrapping_sub(end) as u32).to_le_bytes()].concat()
}

/// `head` and a displacement to data, of an instruction of `len` bytes.
fn with_data32(random: &mut Random, head: &[u8], len: u64) -> Vec<u8> {
    [head, &(random.data_addr().wrapping_sub(SITE + len) as u32).to_le_bytes()].concat()
}

fn not_rsp(random: &mut Random) -> u8 {
    let number = random.below(15) as u8;
    if number >= 4 { number + 1 } else { number }
}

/// A low register other than rsp and rbp that points at landing addresses.
fn memory_base(random: &mut Random, start: &mut Start) -> u8 {
    start.data = random.landings(DATA_LEN);
    let number = *random.pick(&[0, 1, 2, 3, 6, 7]);
    start.state.regs[usize::from(number)] = random.data_addr();
    number
}

/// A nop before a call that is too short, so that the window ends in the call.
fn lead_for(len: usize, call: &[u8]) -> Vec<u8> {
    assert_eq!(len, call.len());
    let lead: &[u8] = if len == 3 { &[0x66, 0x90] } else { &[0x90] };
    [lead, call].concat()
}
