//! A program that the kernel runs once, for its result.
//!
//! For:     the engine `kernel` of `bpf exec`: the oracle beside our own.
//! State:   none; a table and a program for one run.
//! Context: control, with the right to load programs.
//! Keeps:   X1 the program runs as it is: what stands before it gives it memory and length as other engines do, what stands
//!             behind it keeps all 64 bits of r0.
//!          X2 what the verifier refuses is said with its own last words.
//! Checked: testkit `bpf`; `torture bpf --engines kernel`.

use crate::facts::descriptor::owned;
use std::fmt;
use std::os::fd::AsRawFd;
use sys::Errno;
use sys::bpf::instruction;

/// Before the memory in the table's one value: r0.
const RESULT_LEN: usize = 8;
const LOG_LEN: usize = 1 << 20;

/// Why a program was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotRun {
    /// The verifier does not take it: its words.
    Refused(String),
    /// A call failed.
    Failed {
        /// Which.
        call: &'static str,
        /// How.
        errno: Errno,
    },
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotRun::Refused(why) => write!(f, "the kernel refused it: {why}"),
            NotRun::Failed { call, errno } => write!(f, "the kernel's {call} failed: {errno}"),
        }
    }
}

impl std::error::Error for NotRun {}

/// Has the kernel run a program, given as the kernel takes instructions, on one piece of memory, of which r1 has the address and r2 the length (0 and 0 for none).
///
/// # Errors
/// The verifier refuses it, or we may not load programs.
pub fn run_in_kernel(program: &[u64], memory: &mut [u8]) -> Result<u64, NotRun> {
    let failed = |call| move |errno| NotRun::Failed { call, errno };
    let mut value = [&[0; RESULT_LEN], &*memory].concat();
    let table = owned(sys::bpf::create_value(value.len() as u32)).map_err(failed("map"))?;
    // SAFETY: the table was made for values of this length.
    unsafe { sys::bpf::write_value(table.as_raw_fd(), &value) }.map_err(failed("map update"))?;
    let code = wrapped(program, table.as_raw_fd(), memory.len() as i32);
    let mut log = vec![0; LOG_LEN];
    let loaded =
        owned(sys::bpf::load_test_program(&code, &mut log)).map_err(|errno| match last_words(&log) {
            Some(words) => NotRun::Refused(words),
            None => NotRun::Failed { call: "program load", errno },
        })?;
    sys::bpf::run_test_program(loaded.as_raw_fd()).map_err(failed("test run"))?;
    // SAFETY: as above.
    unsafe { sys::bpf::read_value(table.as_raw_fd(), &mut value) }.map_err(failed("map lookup"))?;
    memory.copy_from_slice(&value[RESULT_LEN..]);
    Ok(u64::from_le_bytes(std::array::from_fn(|i| value[i])))
}

/// A function around it that gives it the table's memory and leaves r0 in the table.
fn wrapped(program: &[u64], table: i32, len: i32) -> Vec<u64> {
    let address = |to: u8, offset: i32| [instruction(0x18, to, 2, 0, table), instruction(0, 0, 0, 0, offset)];
    let number = |to: u8, value: i32| instruction(0xb7, to, 0, 0, value);
    let mut code = match len {
        0 => vec![number(1, 0)],
        _ => address(1, RESULT_LEN as i32).to_vec(),
    };
    code.extend([number(2, len), number(3, 0), number(4, 0), number(5, 0)]);
    let mut after = address(1, 0).to_vec();
    after.extend([instruction(0x7b, 1, 0, 0, 0), number(0, 0), instruction(0x95, 0, 0, 0, 0)]);
    code.push(instruction(0x85, 0, 1, 0, after.len() as i32)); // the program, behind all of this
    code.extend(after);
    code.extend(program);
    code
}

/// The last line of the verifier's log that says something about the program.
pub(super) fn last_words(log: &[u8]) -> Option<String> {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let says = |line: &&str| {
        let is_figures = ["processed ", "verification time", "stack depth", "max_states"]
            .iter()
            .any(|s| line.starts_with(s));
        !line.trim().is_empty() && !is_figures
    };
    text.lines().rev().find(says).map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_last_words_are_those_before_its_figures() {
        let log =
            b"0: (b7) r0 = 0\nR3 !read_ok\nprocessed 3 insns (limit 1000000) max_states_per_insn 0\n\0\0";
        assert_eq!(last_words(log).as_deref(), Some("R3 !read_ok"));
        assert_eq!(last_words(b"\0"), None);
    }
}
