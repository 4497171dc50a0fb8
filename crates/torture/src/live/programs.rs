//! Programs that are consumers: some that tell on themselves, and hostile ones.
//!
//! For:     `world`.
//! State:   none.
//! Context: control; what is made runs in the target, which looks at its own results.
//! Keeps:   P1 a program that [tells](Made::tells) adds one to the first word of the maps whenever it runs to its end.
//!          P2 one whose workspace somebody else wrote to adds to the second word.
//!          P3 a hostile one is checked, has little fuel, and whatever it does shows as a wrong result or count only if a check
//!             is missing.
//! Checked: `tests/live.rs`.

use crate::bpf::generate;
use crate::rng::Rng;
use bpf::{Insn, Wide};
use jit::{Compiler, Level, Meaning};
use session::{Program, Programs, Wanted};

/// Runs of these are told in the maps.
const TELLING: u32 = 2;
/// Fuel of all.
const FUEL: u64 = 2_000;

/// One that adds, one that writes to its workspace and looks whether it stays, one that does not end.
const HONEST: [&str; 3] = [
    "lddw %r2, map_value 0 0\nmov %r3, 1\nlock add [%r2+0], %r3\nmov %r0, 0\nexit",
    "ldxdw %r6, [%r1+112]\nlddw %r7, map_value 1 0\nstxdw [%r7+0], %r6\nstxdw [%r7+504], %r6\nmov %r8, 40\nagain:\nsub %r8, 1\n\
     jne %r8, 0, again\nlddw %r2, map_value 0 0\nmov %r3, 1\nldxdw %r4, [%r7+0]\njne %r4, %r6, bad\nldxdw %r4, [%r7+504]\n\
     jne %r4, %r6, bad\nlock add [%r2+0], %r3\nmov %r0, 0\nexit\nbad:\nlock add [%r2+8], %r3\nlock add [%r2+0], %r3\nexit",
    "mov %r0, 0\nagain:\nja again",
];

/// The first as it must not be: a few of its runs are not told.
const LOSING: &str = "lddw %r2, map_value 0 0\nmov %r3, 1\nlock add [%r2+16], %r3\nldxdw %r4, [%r2+16]\nand %r4, 4095\n\
     jeq %r4, 7, lost\nlock add [%r2+0], %r3\nlost:\nmov %r0, 0\nexit";

/// Wild pointers, other functions' stacks, the saved registers, endless loops and recursion, bad arguments; `{}` gets a number.
const HOSTILE: [&str; 6] = [
    "lddw %r2, {}\nstdw [%r2+0], 7\nlock add [%r2+0], %r2\nmov %r0, 0\nexit",
    "lddw %r2, {}\nadd %r2, %r1\nldxdw %r0, [%r2+0]\nstxdw [%r2+0], %r0\nexit",
    "mov %r3, %r1\nagain:\nstxdw [%r3+0], %r3\nadd %r3, 8\nja again",
    "mov %r3, %r10\nagain:\nstdw [%r3-8], -1\nsub %r3, 8\nja again",
    "f:\nstdw [%r10-512], 3\nlddw %r7, {}\nstxdw [%r10-8], %r7\ncall local f\nexit",
    "lddw %r1, {}\nmov %r2, %r1\nmov %r3, %r1\ncall 14\ncall 5\nmov %r5, %r0\ncall %r5\nexit",
];

/// All programs of a session.
pub struct Made {
    pub programs: Programs,
    /// How many are hostile.
    pub hostile: usize,
    /// Hostile ones that were refused, by name.
    pub refused: usize,
}

impl Made {
    /// The honest ones, and of so many hostile ones those that are taken.
    pub fn new(rng: &mut Rng, hostile: usize) -> Result<Made, String> {
        Made::of(HONEST, rng, hostile)
    }

    /// The honest ones alone, of which the first is not.
    pub fn losing() -> Result<Made, String> {
        let [_, second, third] = HONEST;
        Made::of([LOSING, second, third], &mut Rng::new(0, 0), 0)
    }

    fn of(honest: [&str; 3], rng: &mut Rng, hostile: usize) -> Result<Made, String> {
        let mut compiler = Compiler::new().map_err(|e| e.to_string())?;
        let mut programs = Vec::new();
        for text in honest {
            let insns = bpf::assemble(text).map_err(|e| format!("{e:?}"))?;
            let program = bpf::Program::new(insns).map_err(|e| e.to_string())?;
            programs.push(made(&mut compiler, &program, Level::Own)?);
        }
        let taken = (0..hostile).filter_map(|_| made(&mut compiler, &harm(rng)?, Level::Checked).ok());
        programs.extend(taken);
        let taken = programs.len() - honest.len();
        Ok(Made {
            programs: Programs::new(programs, vec![0; 4096]),
            hostile: taken,
            refused: hostile - taken,
        })
    }

    /// One of them.
    pub fn any(&self, rng: &mut Rng) -> u32 {
        let all = self.programs.len() as u64;
        // The first are as many as all others together.
        let most = if rng.one_in(2) { HONEST.len() as u64 } else { all };
        rng.below(most) as u32
    }
}

/// Whether each of its runs is told.
pub fn tells(program: u32) -> bool {
    program < TELLING
}

fn made(compiler: &mut Compiler, program: &bpf::Program, level: Level) -> Result<Program, String> {
    let meaning = |wide| match wide {
        Wide::MapValueIndex { index: 0, offset } => Some(Meaning::Arena(wire::MAPS as u32 + offset)),
        Wide::MapValueIndex { index: 1, offset } => Some(Meaning::Scratch(offset)),
        _ => None,
    };
    // The first of the honest ones needs no workspace.
    let scratch = if program.insns().len() > 8 || level == Level::Checked { 512 } else { 0 };
    let wanted =
        Wanted { name: "a torture's", level, fuel: FUEL, scratch, meaning: &meaning, ..Wanted::default() };
    Program::new(compiler, program, &wanted).map_err(|e| e.to_string())
}

/// A program that means harm: written so, or a valid one with bytes changed, or bytes.
fn harm(rng: &mut Rng) -> Option<bpf::Program> {
    let bytes = match rng.below(8) {
        0..4 => {
            let text = HOSTILE[rng.below(HOSTILE.len() as u64) as usize];
            let number = if rng.one_in(3) { rng.below(80) } else { rng.next() };
            Insn::encode_all(&bpf::assemble(&text.replace("{}", &format!("{number:#x}"))).ok()?)
        }
        4..7 => {
            let mut bytes = Insn::encode_all(generate::program(rng).insns());
            for _ in 0..rng.below(4) + 1 {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next() as u8;
            }
            bytes
        }
        _ => (0..rng.below(8) + 1).flat_map(|_| rng.next().to_le_bytes()).collect(),
    };
    bpf::Program::from_bytes(&bytes).ok()
}
