//! Whatever runs a program.
//!
//! For:     `torture bpf`.
//! State:   a compiler, and a process that runs programs.
//! Context: control.
//! Keeps:   E1 all are given the same: 64 bytes of memory, their length, as much fuel.
//! Checked: `tests/bpf.rs`.

use super::Tally;
use super::generate::MEMORY_LEN;
use super::options::Options;
use bpf::{BUFFER_ADDR, Buffer, Program};
use jit::{Away, Compiled, Compiler, Effort, Level, Loaded};
use session::{Guest, NotRun};
use std::time::Instant;

/// More than any program takes.
const FUEL: u64 = 1_000_000;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// r0, and the memory.
    Ended(u64, [u8; MEMORY_LEN]),
    /// The program did what it may not.
    Faulted(String),
    /// The kernel's verifier does not take it.
    Refused,
}

/// The ways to compile, with their names.
const WAYS: [(&str, Level, Effort); 4] = [
    ("own", Level::Own, Effort::Speed),
    ("own, not optimised", Level::Own, Effort::None),
    ("checked", Level::Checked, Effort::Speed),
    ("checked, not optimised", Level::Checked, Effort::None),
];

/// All but the interpreter.
pub struct Engines {
    options: Options,
    compiler: Compiler,
    guest: Option<(Guest, Child)>,
}

/// A child of ours that waits, and ends with this.
struct Child(i32);

/// A program, compiled in every way.
pub struct Prepared {
    codes: Vec<(&'static str, Compiled, Loaded)>,
}

pub fn interpret(program: &Program, input: [u8; MEMORY_LEN]) -> Ran {
    let mut memory = input;
    let mut host = Buffer::new(&mut memory, |_, _| None);
    let args = [BUFFER_ADDR, MEMORY_LEN as u64, 0, 0, 0];
    match bpf::run(program, &mut host, args, FUEL) {
        Ok(r0) => Ran::Ended(r0, memory),
        Err(fault) => Ran::Faulted(fault.to_string()),
    }
}

impl Engines {
    pub fn start(options: &Options) -> Result<Engines, String> {
        let guest = options.target.then(|| {
            let child = Child::start()?;
            Guest::enter(child.0).map(|guest| (guest, child)).map_err(|broken| broken.to_string())
        });
        let compiler = Compiler::new().map_err(|error| error.to_string())?;
        Ok(Engines { options: *options, compiler, guest: guest.transpose()? })
    }

    pub fn prepare(&mut self, program: &Program, tally: &mut Tally) -> Result<Prepared, String> {
        let mut codes = Vec::new();
        if !self.options.jit && !self.options.target {
            return Ok(Prepared { codes });
        }
        for (name, level, effort) in WAYS {
            let broken = self.options.broken.map(|broken| broken.1);
            let options = jit::Options { level, effort, broken, ..jit::Options::default() };
            let began = Instant::now();
            let code = self.compiler.compile(program, &options).map_err(|refused| refused.to_string())?;
            tally.compile_ns += began.elapsed().as_nanos();
            tally.compiled += 1;
            let loaded = Loaded::new(&code, |_| None).map_err(|error| error.to_string())?;
            codes.push((name, code, loaded));
        }
        Ok(Prepared { codes })
    }

    pub fn run(
        &mut self,
        prepared: &Prepared,
        program: &Program,
        input: [u8; MEMORY_LEN],
    ) -> Vec<(&'static str, Ran)> {
        let mut all = Vec::new();
        for (name, code, loaded) in &prepared.codes {
            if self.options.jit {
                let mut memory = input;
                // SAFETY: it calls no helper; what `generate` makes touches its stack and its memory alone, by
                // construction, and the interpreter has just run it without a fault.
                let ran = unsafe { loaded.run_on(&mut memory, FUEL) };
                all.push((*name, ended(ran.map_err(|fault| fault.to_string()), memory)));
            }
            if let Some((guest, _)) = &mut self.guest {
                let mut memory = input;
                let ran = away(guest, code, &mut memory);
                all.push(("target", ended(ran, memory)));
            }
        }
        if self.options.kernel {
            let mut memory = input;
            all.push((
                "kernel",
                match session::run_in_kernel(&program.words(), &mut memory) {
                    Ok(r0) => Ran::Ended(r0, memory),
                    Err(NotRun::Refused(_)) => Ran::Refused,
                    Err(error) => Ran::Faulted(error.to_string()),
                },
            ));
        }
        all
    }
}

fn away(guest: &mut Guest, code: &Compiled, memory: &mut [u8]) -> Result<u64, String> {
    let placed = code.at(guest.code(), |_| None).map_err(|error| error.to_string())?;
    let mut away = Away::new(guest.data(), memory, FUEL);
    let r0 = guest.call(&placed, &mut away.data, away.args).map_err(|broken| broken.to_string())?;
    away.outcome(r0, memory).map_err(|fault| fault.to_string())
}

fn ended(ran: Result<u64, String>, memory: [u8; MEMORY_LEN]) -> Ran {
    match ran {
        Ok(r0) => Ran::Ended(r0, memory),
        Err(fault) => Ran::Faulted(fault),
    }
}

impl Child {
    fn start() -> Result<Child, String> {
        // SAFETY: the torture has one thread, so the child may do whatever the parent may.
        match unsafe { libc::fork() } {
            -1 => Err(format!("no process can be started: {}", std::io::Error::last_os_error())),
            0 => loop {
                // SAFETY: it takes nothing.
                unsafe { libc::pause() };
            },
            pid => Ok(Child(pid)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, which has not been waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}
