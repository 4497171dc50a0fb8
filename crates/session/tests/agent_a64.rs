//! What the agent for A64 touches, read word by word from its file, which is built here: on any host.
//!
//! For:     every hit there.
//! State:   a build of the agent beside the tests' own files.
//! Context: tests.
//! Keeps:   T1 a word that is not understood is told, and not taken for harmless.
//! Checked: `what_is_not_saved_is_seen`.
//! Source:  Arm ARM C4, "A64 instruction set encoding".

#[allow(dead_code)]
#[path = "../build.rs"]
mod build;

use object::{Object, ObjectSection, ObjectSymbol};
use std::path::Path;
use std::sync::OnceLock;

/// The word in front of an abort handler.
const SIGNATURE: u32 = percpu::SIGNATURE_A64;
const SYSTEM_CALL: u32 = 0xd400_0001;
/// The platform's register.
const PLATFORM: u32 = 18;

/// The agent's file, built once.
fn blob() -> &'static [u8] {
    static BLOB: OnceLock<Vec<u8>> = OnceLock::new();
    BLOB.get_or_init(|| {
        let file = build::AARCH64.build(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("agent"));
        std::fs::read(file).expect("the agent that was built")
    })
}

/// The words of its code, each with its address.
fn words() -> Vec<(u64, u32)> {
    let elf = object::File::parse(blob()).expect("an ELF file");
    let text = elf.section_by_name(".text").expect("code");
    let (words, rest) = text.data().expect("its bytes").as_chunks::<4>();
    assert!(rest.is_empty() && words.len() > 1000, "{} words", words.len());
    (text.address()..).step_by(4).zip(words.iter().map(|word| u32::from_le_bytes(*word))).collect()
}

#[test]
fn the_agent_for_a64_touches_nothing_that_a_hit_does_not_save() {
    let unsaved = words().into_iter().filter_map(|(at, word)| Some((at, unsaved(word)?)));
    let unsaved: Vec<_> = unsaved.collect();
    assert!(unsaved.is_empty(), "{unsaved:x?}");
}

#[test]
fn the_agent_for_a64_makes_system_calls_at_the_doorbell_and_in_helpers_alone() {
    let elf = object::File::parse(blob()).expect("an ELF file");
    let of = |module: &str| -> Vec<_> {
        let symbols = elf.symbols().filter(|s| s.name().is_ok_and(|name| name.contains(module)));
        symbols.map(|s| s.address()..s.address() + s.size()).collect()
    };
    let allowed = ["8doorbell", "6helper", "7helpers"].map(of).concat();
    let calls: Vec<u64> =
        words().iter().filter(|(_, word)| *word == SYSTEM_CALL).map(|(at, _)| *at).collect();
    assert!(calls.len() >= 2, "{calls:x?}");
    assert!(calls.iter().all(|at| allowed.iter().any(|range| range.contains(at))), "{allowed:x?} {calls:x?}");
}

#[test]
fn the_agent_for_a64_has_no_code_that_panics_and_nothing_to_write_to() {
    let elf = object::File::parse(blob()).expect("an ELF file");
    let names = || elf.symbols().filter_map(|s| s.name().ok());
    assert!(names().any(|name| name.contains("log2_histogram")), "it has its symbols");
    assert_eq!(names().find(|name| name.contains("panic")), None);
    for name in [".data", ".bss", ".got", ".got.plt"] {
        assert!(elf.section_by_name(name).is_none_or(|section| section.size() == 0), "{name}");
    }
}

/// What of that no hit saves.
fn unsaved(word: u32) -> Option<String> {
    match registers(word) {
        Err(what) => Some(format!("{what}: {word:08x}")),
        Ok(used) if used.contains(&PLATFORM) => Some(format!("x18: {word:08x}")),
        Ok(_) => None,
    }
}

/// The general registers that an instruction names.
fn registers(word: u32) -> Result<Vec<u32>, &'static str> {
    let bits = |high: u32, low: u32| (word >> low) & ((1 << (high - low + 1)) - 1);
    let [d, n, m, a] = [bits(4, 0), bits(9, 5), bits(20, 16), bits(14, 10)];
    let is = |mask: u32, value: u32| word & mask == value;
    match bits(28, 25) {
        0b1000 | 0b1001 => match bits(25, 23) {
            0b000 | 0b001 | 0b101 => Ok(vec![d]),
            0b010 | 0b100 | 0b110 => Ok(vec![d, n]),
            0b111 => Ok(vec![d, n, m]),
            _ => Err("memory tags"),
        },
        0b1010 | 0b1011 => match () {
            () if is(0x7c00_0000, 0x1400_0000) || is(0xff00_0010, 0x5400_0000) => Ok(vec![]),
            () if is(0x7c00_0000, 0x3400_0000) => Ok(vec![d]),
            () if word == SYSTEM_CALL || word == SIGNATURE => Ok(vec![]),
            // nop; barriers and clrex; the thread's pointer, the counter, the flags.
            () if word == 0xd503_201f || is(0xffff_f01f, 0xd503_301f) => Ok(vec![]),
            () if is(0xffff_ffe0, 0xd53b_d040) || is(0xffff_ffe0, 0xd53b_e040) => Ok(vec![d]),
            () if is(0xffdf_ffe0, 0xd51b_4200) => Ok(vec![d]),
            // br, blr, ret.
            () if is(0xff9f_fc1f, 0xd61f_0000) => Ok(vec![n]),
            () => Err("neither branch nor what a hit may ask of the processor"),
        },
        op if op & 0b0101 == 0b0100 => match bits(29, 28) {
            // stp of two whole vector registers: read and not written.
            _ if is(0xffc0_0000, 0xad00_0000) => Ok(vec![n]),
            _ if bits(26, 26) == 1 => Err("vector register"),
            0b00 => Ok(vec![d, n, m, a]),
            0b01 if bits(24, 24) == 0 => Ok(vec![d]),
            0b01 => Ok(vec![d, n]),
            0b10 => Ok(vec![d, n, a]),
            _ if is(0xffc0_0000, 0xf980_0000) => Ok(vec![n]),
            _ if bits(24, 24) == 1 || bits(21, 21) == 0 => Ok(vec![d, n]),
            _ if bits(10, 10) == 1 => Err("signed pointer"),
            _ => Ok(vec![d, n, m]),
        },
        0b0101 => Ok(vec![d, n, m]),
        0b1101 => match bits(24, 21) {
            0b0000 if bits(15, 10) == 0 => Ok(vec![d, n, m]),
            0b0010 if bits(11, 11) == 1 => Ok(vec![n]),
            0b0010 => Ok(vec![n, m]),
            0b0100 => Ok(vec![d, n, m]),
            0b0110 if bits(30, 30) == 1 => Ok(vec![d, n]),
            0b0110 => Ok(vec![d, n, m]),
            op if op & 0b1000 != 0 => Ok(vec![d, n, m, a]),
            _ => Err("arithmetic of no known kind"),
        },
        op if op & 0b0111 == 0b0111 => Err("vector register"),
        _ => Err("no instruction"),
    }
}

#[test]
fn what_is_not_saved_is_seen() {
    // As GNU as 2.40 assembles them.
    let wrong = [
        (0xd280_0032, "mov x18, #1"),
        (0x8b12_0020, "add x0, x1, x18"),
        (0xf940_0240, "ldr x0, [x18]"),
        (0xa940_4820, "ldp x0, x18, [x1]"),
        (0x3872_6820, "ldrb w0, [x1, x18]"),
        (0xc812_7c20, "stxr w18, x0, [x1]"),
        (0x9b02_4820, "madd x0, x1, x2, x18"),
        (0x93d2_0c20, "extr x0, x1, x18, #3"),
        (0xb400_0052, "cbz x18, 8"),
        (0xd61f_0240, "br x18"),
        (0x4ea1_1c20, "mov v0.16b, v1.16b"),
        (0x3dc0_0020, "ldr q0, [x1]"),
        (0x9e66_0000, "fmov x0, d0"),
        (0xad40_0400, "ldp q0, q1, [x0]"),
        (0x04a0_0000, "add z0.s, z0.s, z0.s"),
        (0xd420_0020, "brk #1"),
        (0xd538_4100, "mrs x0, sp_el0"),
        (0, "udf #0"),
    ];
    for (word, what) in wrong {
        assert!(unsaved(word).is_some(), "{what}");
    }
    // A number is no register: movz x0, #0x12; add x0, x1, #18; tbz w1, #18; ccmp x1, #18, #2, eq; ldur x0, [x1, #18]; prfm #18, [x1].
    for word in [0xd280_0240, 0x9100_4820, 0x3690_0001, 0xfa52_0822, 0xf841_2020, 0xf980_0032] {
        assert_eq!(unsaved(word), None, "{word:08x}");
    }
}
