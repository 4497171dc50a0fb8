//! `nanoprobe bpf`: eBPF programs by themselves.
//!
//! For:     whoever writes one, and suites of conformance cases.
//! State:   none.
//! Context: control.
//! Keeps:   E1 a program that is refused or faults prints nothing on stdout and ends with 1; with 3 if the kernel's verifier
//!             refuses what the others would run.
//! Checked: tests below.
//! Source:  the plugin form of the public bpf_conformance suite: program as hex on stdin, memory as hex argument, r0 as
//!          hex on stdout.

mod engines;

use crate::advice;
use ::bpf::{INSN_LEN, Program};
use clap::{Args, Subcommand, ValueEnum};
use std::io::Read;

#[derive(Debug, Args)]
pub struct BpfArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a program, given as hex on stdin; prints r0 as hex
    Exec {
        /// What runs it
        #[arg(long, value_enum, default_value = "interpreter")]
        engine: Engine,
        /// How far the program is believed, by engines that compile it
        #[arg(long, value_enum, default_value = "checked")]
        level: Level,
        /// Memory that r1 points to and r2 has the length of, as hex
        #[arg(value_name = "HEX")]
        memory: Option<String>,
    },
    /// Assemble text from stdin; prints the program as hex
    Asm,
    /// Print the instructions of a program, given as hex on stdin
    Dis,
    /// The process that `exec --engine target` starts
    #[command(hide = true)]
    Guest,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Engine {
    /// One instruction after the other, each access checked
    Interpreter,
    /// Machine code, in this process
    Jit,
    /// Machine code, in another process that is started for it
    Target,
    /// The kernel; exit status 3 if its verifier refuses the program
    Kernel,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Level {
    /// Each access is made as it stands: the program's writer answers for it
    Own,
    /// Each access is compared with what the program may touch
    Checked,
}

/// The exit code.
pub fn bpf(args: BpfArgs) -> i32 {
    if matches!(args.verb, Verb::Guest) {
        return engines::be_guest();
    }
    let mut input = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut input) {
        return advice::fail(&format!("standard input cannot be read: {error}"), &[], &[]);
    }
    let done = match args.verb {
        Verb::Exec { engine, level, memory } => exec(&input, (engine, level), memory.as_deref()),
        Verb::Asm => ::bpf::assemble(&input)
            .map(|insns| insns.iter().flat_map(|insn| insn.encode()).map(|b| format!("{b:02x}")).collect())
            .map_err(|misread| misread.to_string().into()),
        Verb::Dis | Verb::Guest => {
            program(&input).map(|program| program.to_string().trim_end().to_owned()).map_err(Failed::from)
        }
    };
    match done {
        Ok(text) => {
            println!("{text}");
            0
        }
        Err(Failed { why, status }) => {
            advice::fail(&why, &[], &[]);
            status
        }
    }
}

/// What is said, and the exit status.
#[derive(Debug, PartialEq, Eq)]
struct Failed {
    why: String,
    status: i32,
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed { why, status: 1 }
    }
}

fn exec(input: &str, (engine, level): (Engine, Level), memory: Option<&str>) -> Result<String, Failed> {
    let program = program(input)?;
    let mut memory = memory.map(bytes).transpose()?.unwrap_or_default();
    let level = match level {
        Level::Own => jit::Level::Own,
        Level::Checked => jit::Level::Checked,
    };
    let r0 = match engine {
        Engine::Interpreter => engines::interpreter(&program, &mut memory),
        Engine::Jit => engines::jit(&program, level, &mut memory),
        Engine::Target => engines::target(&program, level, &mut memory),
        Engine::Kernel => engines::kernel(&program, &mut memory),
    };
    r0.map(|r0| format!("{r0:x}"))
}

fn program(hex: &str) -> Result<Program, String> {
    Program::from_bytes(&bytes(hex)?).map_err(|refused| format!("not a program: {refused}"))
}

/// Hex digits, with or without white space between them.
fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    let pair = |pair: &[char]| match pair {
        [a, b] => Some((a.to_digit(16)? << 4 | b.to_digit(16)?) as u8),
        _ => None,
    };
    let all = digits.chunks(2).map(pair).collect::<Option<Vec<u8>>>();
    all.ok_or(format!(
        "{} characters are not pairs of hex digits; an instruction has {INSN_LEN}",
        digits.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_its_memory_and_says_r0_as_hex() {
        let insns = ::bpf::assemble("ldxb %r0, [%r1+1]\nadd %r0, %r2\nexit").unwrap();
        let hex: String = insns.iter().flat_map(|insn| insn.encode()).map(|b| format!("{b:02x} ")).collect();
        for engine in [Engine::Interpreter, Engine::Jit] {
            let exec = |memory| exec(&hex, (engine, Level::Checked), memory);
            assert_eq!(exec(Some("00fe")), Ok("100".into()));
            assert!(exec(None).unwrap_err().why.contains("not the program's"));
        }
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(program("95").unwrap_err().contains("whole instructions"));
        assert!(program("9x00000000000000").unwrap_err().contains("hex digits"));
        assert!(program("b700000000000000").unwrap_err().contains("falls off the end"));
    }
}
