//! The classes of instructions, with random operands.
//!
//! For:     main.rs.
//! State:   none.
//! Context: test only.
//! Keeps:   G1 each class is one that the tests count, so that none is forgotten.
//! Checked: the test counts how many of each class were compared.

use crate::machine::{CODE, DATA, LEN, LITERALS, STACK, State};
use crate::seed::Seed;

/// A class by its name, and a word of it for an instruction at an address.
pub type Class = (&'static str, fn(&mut Seed, u64) -> u32);

fn register(seed: &mut Seed) -> u32 {
    seed.below(32) as u32
}

/// A field of `len` bits for the distance from `at` to `to`.
fn field(at: u64, to: u64, len: u32, scale: u32) -> u32 {
    let mask = (1u64 << len) - 1;
    ((to.wrapping_sub(at) as i64 >> scale) as u64 & mask) as u32
}

/// An address of brk, in CODE and away from the pieces in its first half.
pub fn landing(seed: &mut Seed) -> u64 {
    CODE + LEN as u64 / 2 + 4 * seed.below(LEN as u64 / 8)
}

/// One in eight literals is where nothing is mapped.
fn literal(seed: &mut Seed, at: u64) -> u32 {
    let to = match seed.below(8) {
        0 => LITERALS - 0x2000 + 4 * seed.below(1024),
        _ => LITERALS + 4 * seed.below(LEN as u64 / 4 - 4),
    };
    field(at, to, 19, 2) << 5
}

fn near(seed: &mut Seed, at: u64, len: u32) -> u32 {
    let to = landing(seed);
    field(at, to, len, 2)
}

/// All relative classes, and representatives of what is copied as it is.
pub const CLASSES: [Class; 27] = [
    ("adr", |seed, _| 0x1000_0000 | seed.next() as u32 & 0x60ff_ffe0 | register(seed)),
    ("adrp", |seed, _| 0x9000_0000 | seed.next() as u32 & 0x60ff_ffe0 | register(seed)),
    ("b", |seed, at| 0x1400_0000 | near(seed, at, 26)),
    ("bl", |seed, at| 0x9400_0000 | near(seed, at, 26)),
    ("b.cond", |seed, at| 0x5400_0000 | near(seed, at, 19) << 5 | seed.below(16) as u32),
    ("cbz", |seed, at| {
        0x3400_0000 | (seed.next() as u32 & 0x8100_0000) | near(seed, at, 19) << 5 | register(seed)
    }),
    ("tbz", |seed, at| {
        0x3600_0000 | (seed.next() as u32 & 0x81f8_0000) | near(seed, at, 14) << 5 | register(seed)
    }),
    ("ldr w", |seed, at| 0x1800_0000 | literal(seed, at) | register(seed)),
    ("ldr x", |seed, at| 0x5800_0000 | literal(seed, at) | register(seed)),
    ("ldrsw", |seed, at| 0x9800_0000 | literal(seed, at) | register(seed)),
    ("prfm", |seed, at| 0xd800_0000 | literal(seed, at) | register(seed)),
    ("ldr s", |seed, at| 0x1c00_0000 | literal(seed, at) | register(seed)),
    ("ldr d", |seed, at| 0x5c00_0000 | literal(seed, at) | register(seed)),
    ("ldr q", |seed, at| 0x9c00_0000 | literal(seed, at) | register(seed)),
    ("br", |seed, _| 0xd61f_0000 | register(seed) << 5),
    ("blr", |seed, _| 0xd63f_0000 | register(seed) << 5),
    ("ret", |seed, _| 0xd65f_0000 | register(seed) << 5),
    ("braz", |seed, _| 0xd61f_081f | (seed.next() as u32 & 0x400) | register(seed) << 5),
    ("blraz", |seed, _| 0xd63f_081f | (seed.next() as u32 & 0x400) | register(seed) << 5),
    ("blra", |seed, _| 0xd73f_0800 | (seed.next() as u32 & 0x400) | register(seed) << 5 | register(seed)),
    ("reta", |seed, _| 0xd65f_0bff | (seed.next() as u32 & 0x400)),
    ("nop", |seed, _| {
        [0xd503_201f, 0xd503_241f, 0xd503_245f, 0xd503_249f, 0xd503_24df][seed.below(5) as usize]
    }),
    ("paciasp", |seed, _| [0xd503_233f, 0xd503_237f, 0xd503_20ff][seed.below(3) as usize]),
    ("arithmetic", |seed, _| arithmetic(seed)),
    ("memory", |seed, _| memory(seed)),
    ("vector", |seed, _| vector(seed)),
    ("of libc", |seed, _| LIBC.with(|words| words[seed.below(words.len() as u64) as usize])),
];

thread_local! {
    /// All words of the executable segment of the C library that this process runs with.
    static LIBC: Vec<u32> = executable_words(&library());
}

fn library() -> Vec<u8> {
    let paths = ["/usr/aarch64-linux-gnu/lib/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"];
    paths.iter().find_map(|path| std::fs::read(path).ok()).expect("a C library of AArch64")
}

fn executable_words(file: &[u8]) -> Vec<u32> {
    let number = |at: usize, len: usize| {
        file[at..at + len].iter().rev().fold(0usize, |value, byte| value << 8 | usize::from(*byte))
    };
    let headers = (0..number(56, 2)).map(|index| number(32, 8) + 56 * index);
    // PT_LOAD with PF_X
    let code =
        headers.into_iter().find(|at| number(*at, 4) == 1 && number(at + 4, 4) & 1 == 1).expect("code");
    let (start, len) = (number(code + 8, 8), number(code + 32, 8));
    file[start..start + len]
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn three(seed: &mut Seed) -> u32 {
    register(seed) | register(seed) << 5 | register(seed) << 16
}

/// add, adds, sub, subs, adc, and, eor, madd, csel, udiv, lslv of random registers.
fn arithmetic(seed: &mut Seed) -> u32 {
    const OPCODES: [u32; 11] = [
        0x8b00_0000,
        0xab00_0000,
        0xcb00_0000,
        0xeb00_0000,
        0x9a00_0000,
        0x8a00_0000,
        0xca00_0000,
        0x9b00_0000,
        0x9a80_0000,
        0x9ac0_0800,
        0x9ac0_2000,
    ];
    OPCODES[seed.below(11) as usize] | three(seed)
}

/// ldr, str, ldrb, ldp, stp post-indexed, ldaddal, ldar at a random base.
fn memory(seed: &mut Seed) -> u32 {
    const OPCODES: [u32; 7] =
        [0xf940_0000, 0xf900_0000, 0x3940_0000, 0xa940_0000, 0xa880_0000, 0xf8e0_0000, 0xc8df_fc00];
    let which = seed.below(7) as usize;
    let (base, first, second) = (register(seed), register(seed), register(seed));
    let fields = match which {
        // A pair of one register, and a write-back over a loaded one, are unpredictable.
        3 | 4 => [(first & 15) | (16 | second & 7) << 10 | 31 << 5, 0][usize::from(which > 4)],
        5 => first | second << 16 | base << 5,
        _ => first | base << 5,
    };
    OPCODES[which] | fields
}

/// add v.4s, eor v.16b, fmul v.2d, ldr q.
fn vector(seed: &mut Seed) -> u32 {
    const OPCODES: [u32; 3] = [0x4ea0_8400, 0x6e20_1c00, 0x6e60_dc00];
    match seed.below(4) {
        3 => 0x3dc0_0000 | register(seed) | register(seed) << 5,
        which => OPCODES[which as usize] | three(seed),
    }
}

fn value(seed: &mut Seed) -> u64 {
    match seed.below(8) {
        0..=2 => DATA + LEN as u64 / 4 + 8 * seed.below(LEN as u64 / 16),
        3 | 4 => landing(seed),
        5 => seed.below(3),
        // Below where qemu maps things.
        6 => 1 << seed.below(36),
        _ => seed.next(),
    }
}

/// All registers random, many of them pointers; the stack pointer in the middle of the stack.
pub fn state(seed: &mut Seed, pc: u64) -> State {
    State {
        x: std::array::from_fn(|_| value(seed)),
        sp: STACK + LEN as u64 / 2 + 16 * seed.below(16),
        pc,
        pstate: seed.below(16) << 28,
        v: std::array::from_fn(|_| u128::from(seed.next()) << 64 | u128::from(seed.next())),
    }
}

/// No register points into the code, which differs between two runs.
pub fn keep_off_code(state: &mut State) {
    let is_code = |value: &u64| (CODE..CODE + LEN as u64).contains(value);
    state.x.iter_mut().filter(|value| is_code(value)).for_each(|value| *value += DATA - CODE);
}

pub fn bytes(seed: &mut Seed) -> Vec<u8> {
    (0..LEN / 8).flat_map(|_| seed.next().to_le_bytes()).collect()
}
