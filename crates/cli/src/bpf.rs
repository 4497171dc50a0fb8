//! `nanoprobe bpf`: eBPF programs by themselves.
//!
//! For:     whoever writes one, and suites of conformance cases.
//! State:   none.
//! Context: control.
//! Keeps:   E1 a program that is refused or faults prints nothing on stdout and ends with 1.
//! Checked: tests below.
//! Source:  the plugin form of the public bpf_conformance suite: program as hex on stdin, memory as hex argument, r0 as
//!          hex on stdout.

use crate::advice;
use ::bpf::{BUFFER_ADDR, Buffer, INSN_LEN, Program};
use clap::{Args, Subcommand, ValueEnum};
use std::io::Read;

/// Instructions that one run may take.
const FUEL: u64 = 10_000_000;
/// The number of bpf_ktime_get_ns.
const KTIME_GET_NS: u64 = 5;

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
        /// Memory that r1 points to and r2 has the length of, as hex
        #[arg(value_name = "HEX")]
        memory: Option<String>,
    },
    /// Assemble text from stdin; prints the program as hex
    Asm,
    /// Print the instructions of a program, given as hex on stdin
    Dis,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Engine {
    Interpreter,
}

/// The exit code.
pub fn bpf(args: BpfArgs) -> i32 {
    let mut input = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut input) {
        return advice::fail(&format!("standard input cannot be read: {error}"), &[], &[]);
    }
    let done = match args.verb {
        Verb::Exec { engine: Engine::Interpreter, memory } => exec(&input, memory.as_deref()),
        Verb::Asm => ::bpf::assemble(&input)
            .map(|insns| insns.iter().flat_map(|insn| insn.encode()).map(|b| format!("{b:02x}")).collect())
            .map_err(|misread| misread.to_string()),
        Verb::Dis => program(&input).map(|program| program.to_string().trim_end().to_owned()),
    };
    match done {
        Ok(text) => {
            println!("{text}");
            0
        }
        Err(why) => advice::fail(&why, &[], &[]),
    }
}

fn exec(input: &str, memory: Option<&str>) -> Result<String, String> {
    let program = program(input)?;
    let mut memory = memory.map(bytes).transpose()?.unwrap_or_default();
    let (addr, len) = match memory.len() as u64 {
        0 => (0, 0),
        len => (BUFFER_ADDR, len),
    };
    let began = std::time::Instant::now();
    let mut host = Buffer::new(&mut memory, |number, _| {
        (number == KTIME_GET_NS).then(|| began.elapsed().as_nanos() as u64)
    });
    let result = ::bpf::run(&program, &mut host, [addr, len, 0, 0, 0], FUEL);
    result.map(|r0| format!("{r0:x}")).map_err(|fault| format!("the program faulted: {fault}"))
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
        assert_eq!(exec(&hex, Some("00fe")), Ok("100".into()));
        assert!(exec(&hex, None).unwrap_err().contains("not the program's"));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(program("95").unwrap_err().contains("whole instructions"));
        assert!(program("9x00000000000000").unwrap_err().contains("hex digits"));
        assert!(program("b700000000000000").unwrap_err().contains("falls off the end"));
    }
}
