//! What runs a program of `bpf exec`.
//!
//! For:     the verb.
//! State:   none.
//! Context: control.
//! Keeps:   E1 every engine is given the same: the memory's address and length, a clock, as much fuel.
//! Checked: tests of bpf.rs; testkit `bpf` (the same cases in all engines).

use super::Failed;
use bpf::{BUFFER_ADDR, Buffer, Faulted, Program};
use jit::{Away, Compiler, Level, Loaded, Options};
use session::{Guest, NotRun};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Instructions that one run may take.
const FUEL: u64 = 10_000_000;
/// The exit status if the kernel's verifier refuses a program.
const REFUSED_BY_KERNEL: i32 = 3;
/// The number of bpf_ktime_get_ns.
const KTIME_GET_NS: u32 = 5;

pub(super) fn interpreter(program: &Program, memory: &mut [u8]) -> Result<u64, Failed> {
    let (addr, len) = match memory.len() as u64 {
        0 => (0, 0),
        len => (BUFFER_ADDR, len),
    };
    let began = Instant::now();
    let mut host = Buffer::new(memory, |number, _| {
        (number == u64::from(KTIME_GET_NS)).then(|| began.elapsed().as_nanos() as u64)
    });
    bpf::run(program, &mut host, [addr, len, 0, 0, 0], FUEL).map_err(faulted)
}

pub(super) fn jit(program: &Program, level: Level, memory: &mut [u8]) -> Result<u64, Failed> {
    let code = compiled(program, level, &[KTIME_GET_NS])?;
    let clock = clock as extern "C" fn() -> u64 as usize as u64;
    let code = Loaded::new(&code, |number| (number == KTIME_GET_NS).then_some(clock));
    let code = code.map_err(|error| error.to_string())?;
    // SAFETY: the helper is a C function that takes nothing. A program that is not checked is believed by whoever asked
    // for that.
    unsafe { code.run_on(memory, FUEL) }.map_err(faulted)
}

/// In a process that is started for it and killed afterwards.
pub(super) fn target(program: &Program, level: Level, memory: &mut [u8]) -> Result<u64, Failed> {
    let code = compiled(program, level, &[KTIME_GET_NS])?;
    let mut child = start_guest().map_err(|error| format!("no process can be started: {error}"))?;
    let broken = |broken: session::Broken| broken.to_string();
    let mut guest = Guest::enter(child.0.id().cast_signed()).map_err(broken)?;
    let clock = guest.clock();
    let placed = code.at(guest.code(), |number| (number == KTIME_GET_NS).then_some(clock));
    let placed = placed.map_err(|error| error.to_string())?;
    let mut away = Away::new(guest.data(), memory, FUEL);
    let r0 = guest.call(&placed, &mut away.data, away.args).map_err(broken)?;
    guest.leave().map_err(broken)?;
    // It lives as before: it answers still.
    let answers = child.answers().map_err(|error| format!("the process is not as before: {error}"))?;
    if !answers {
        return Err(String::from("the process is not as before: it does not answer").into());
    }
    away.outcome(r0, memory).map_err(faulted)
}

pub(super) fn kernel(program: &Program, memory: &mut [u8]) -> Result<u64, Failed> {
    session::run_in_kernel(&program.words(), memory).map_err(|error| {
        let status = if matches!(error, NotRun::Refused(_)) { REFUSED_BY_KERNEL } else { 1 };
        Failed { why: error.to_string(), status }
    })
}

/// A process that answers each byte that it is sent, until there are no more.
pub(super) fn be_guest() -> i32 {
    let (mut stdin, mut stdout) = (std::io::stdin(), std::io::stdout());
    let mut byte = [0];
    while stdin.read_exact(&mut byte).is_ok() {
        if stdout.write_all(&byte).and_then(|()| stdout.flush()).is_err() {
            return 1;
        }
    }
    0
}

/// A guest that has begun to answer.
fn start_guest() -> std::io::Result<Killed> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bpf", "guest"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Killed(command.spawn()?);
    if child.answers()? { Ok(child) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

/// A process that ends with this.
struct Killed(Child);

impl Killed {
    /// Whether it sends back what it is sent.
    fn answers(&mut self) -> std::io::Result<bool> {
        let mut back = [0];
        if let (Some(to), Some(from)) = (&mut self.0.stdin, &mut self.0.stdout) {
            to.write_all(b"?")?;
            from.read_exact(&mut back)?;
        }
        Ok(back == *b"?")
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compiled(program: &Program, level: Level, helpers: &[u32]) -> Result<jit::Compiled, Failed> {
    let mut compiler = Compiler::new().map_err(|error| error.to_string())?;
    let options = Options { level, helpers, ..Options::default() };
    compiler.compile(program, &options).map_err(|refused| format!("not compiled: {refused}").into())
}

fn faulted(fault: Faulted) -> Failed {
    format!("the program faulted: {fault}").into()
}

extern "C" fn clock() -> u64 {
    sys::monotonic_ns()
}
