//! The process whose consumers come and go: threads that call the probed functions, and count their calls beside.
//!
//! For:     `torture live` and the matrix of `tests/live.rs`.
//! State:   counters in memory that it shares with the torture; what it is told comes on its standard input.
//! Context: it is the target.
//! Keeps:   P1 a call is counted as begun before it begins, and as done when it is over.
//!          P2 a wrong result of a probed function is counted, and makes its exit status 99.
//! Checked: it checks; `tests/live.rs`.

use crate::rng::Rng;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use sys::mapping::SharedMapping;

/// How the target is told that it is this one.
pub const ROLE: &str = "live";
/// The same for the one that stands inside a call until it is told to go on.
pub const STEPS: &str = "live-steps";

/// Probed functions; the last half is never called.
pub const FUNCTIONS: usize = 10;
/// Those that are called.
pub const BUSY: usize = FUNCTIONS / 2;
/// Threads that call, at most, and a row for forked children.
pub const ROWS: usize = 129;
const CHILDREN: usize = ROWS - 1;

core::arch::global_asm!(
    ".pushsection .text.torture, \"ax\"",
    ".macro live_fn d",
    ".p2align 5, 0xcc",
    ".globl live_fn_\\d",
    ".type live_fn_\\d, @function",
    "live_fn_\\d:",
    "push rbx",
    "mov rbx, rdi",
    "test rsi, rsi",
    "je 2f",
    "call rsi",
    "2: lea rax, [rbx + 0x7\\d]",
    "nop dword ptr [rax]",
    "pop rbx",
    "ret",
    ".size live_fn_\\d, . - live_fn_\\d",
    ".endm",
    ".irpc d, 0123456789",
    "live_fn \\d",
    ".endr",
    ".p2align 6, 0xcc",
    ".purgem live_fn",
    ".popsection",
    ".pushsection .data.rel.ro.live, \"aw\"",
    ".p2align 3",
    ".globl live_functions",
    "live_functions:",
    ".irpc d, 0123456789",
    ".quad live_fn_\\d",
    ".endr",
    ".popsection",
);

/// Calls what it is given, if anything, and adds 0x70 and its number.
type Function = extern "C" fn(u64, Option<extern "C" fn()>) -> u64;

// SAFETY: the table above has so many addresses of functions of this type, relocated before the program starts, and is
// never written.
unsafe extern "C" {
    safe static live_functions: [Function; FUNCTIONS];
}

fn call(function: usize, x: u64, inside: Option<extern "C" fn()>) -> bool {
    live_functions[function](x, inside) == x + 0x70 + function as u64
}

/// Calls of each function by one thread.
#[repr(C, align(128))]
pub struct Row {
    begun: [AtomicU64; BUSY],
    done: [AtomicU64; BUSY],
}

/// What is in the memory; zeros are its first value.
#[repr(C)]
pub struct Shared {
    stop: AtomicU32,
    /// Errors: results that were not right, children that did not end well.
    pub wrong: AtomicU64,
    /// Children that were forked.
    pub forks: AtomicU64,
    rows: [Row; ROWS],
}

/// Bytes of the memory.
pub const LEN: usize = size_of::<Shared>().next_multiple_of(4096);

impl Shared {
    /// The memory behind a descriptor of [`LEN`] bytes; it stays mapped until the process ends.
    pub fn open(fd: i32) -> Option<&'static Shared> {
        let map = SharedMapping::of_file(fd, LEN).ok()?;
        let base = map.base().cast::<Shared>();
        std::mem::forget(map);
        // SAFETY: the mapping is page aligned, has room for the struct, and stays, for it was forgotten. The struct is
        // atomic words alone, for which all bytes are values.
        Some(unsafe { &*base })
    }

    /// Calls of a function that the target's own threads have begun, at least.
    pub fn begun(&self, function: usize) -> u64 {
        let rows = self.rows[..CHILDREN].iter();
        rows.map(|row| row.begun.get(function).map_or(0, |n| n.load(SeqCst))).sum()
    }

    /// Calls of a function that they have done, at most.
    pub fn done(&self, function: usize) -> u64 {
        let rows = self.rows[..CHILDREN].iter();
        rows.map(|row| row.done.get(function).map_or(0, |n| n.load(SeqCst))).sum()
    }

    /// Calls of all functions.
    pub fn calls(&self) -> u64 {
        (0..BUSY).map(|f| self.done(f)).sum()
    }

    /// Calls of a function by forked children, whole ones.
    pub fn forked(&self, function: usize) -> u64 {
        self.rows[CHILDREN].done.get(function).map_or(0, |n| n.load(SeqCst))
    }

    fn work(&self, row: usize, rng: &mut Rng) {
        let function = rng.below(BUSY as u64) as usize;
        // SeqCst: the count must be seen by whoever publishes a list after the hit has read the one before.
        self.rows[row].begun[function].fetch_add(1, SeqCst);
        if !call(function, rng.next() >> 8, None) {
            self.wrong.fetch_add(1, Relaxed);
        }
        self.rows[row].done[function].fetch_add(1, SeqCst);
    }
}

/// Is the target: the words behind [`ROLE`] are the shared memory's descriptor, threads, forking threads, the seed.
pub fn target_main(words: &[String]) -> i32 {
    let n: Vec<u64> = words.iter().map_while(|w| w.parse().ok()).collect();
    let &[memory, threads, forkers, seed] = n.as_slice() else { return 2 };
    let Some(shared) = Shared::open(memory as i32) else { return 2 };
    say("ready");
    let mut lines = std::io::stdin().lock().lines();
    if !matches!(lines.next(), Some(Ok(line)) if line == "go") {
        return 3;
    }
    let worker = |row: usize| {
        std::thread::spawn(move || {
            let mut rng = Rng::new(seed, row as u64 + 1);
            while shared.stop.load(Relaxed) == 0 {
                (0..64).for_each(|_| shared.work(row, &mut rng));
            }
        })
    };
    let forker = |n: u64| std::thread::spawn(move || fork(shared, seed, n));
    let workers: Vec<_> =
        (0..threads as usize).map(worker).chain((0..forkers).map(|n| forker(1000 + n))).collect();
    say("going");
    // The end of our input ends us too: who started us may be gone.
    let _ = lines.next();
    shared.stop.store(1, SeqCst);
    let is_whole = workers.into_iter().all(|t| t.join().is_ok());
    say("stopped");
    // Stays until all probes are out.
    let _ = lines.next();
    if is_whole && shared.wrong.load(Relaxed) == 0 { 0 } else { 99 }
}

/// Forks children that call for some milliseconds; one in four is killed wherever it is, which may be inside a hit.
fn fork(shared: &'static Shared, seed: u64, stream: u64) {
    let mut rng = Rng::new(seed, stream);
    while shared.stop.load(Relaxed) == 0 {
        let (run_for, is_killed) = (Duration::from_millis(rng.below(8) + 1), rng.one_in(4));
        let mut own = Rng::new(seed, rng.next());
        // SAFETY: the child runs what follows alone: atomics, the clock, probed functions and _exit, on its own stack.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let end = Instant::now() + run_for;
            while is_killed || Instant::now() < end {
                shared.work(CHILDREN, &mut own);
            }
            // SAFETY: ends this process at once; nothing of it is to be kept.
            unsafe { libc::_exit(0) }
        }
        if pid > 0 {
            shared.forks.fetch_add(1, Relaxed);
            if is_killed {
                std::thread::sleep(run_for);
                // SAFETY: our own child, which nobody has waited for.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            let mut status = 0;
            // SAFETY: as above; the status outlives the call.
            let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            if ended != pid || !is_killed && status != 0 {
                shared.wrong.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Is the target that stands inside: for each line `N` it calls function N, says `inside` from there, waits for a line,
/// and says `out` behind it.
pub fn steps_main() -> i32 {
    extern "C" fn inside() {
        say("inside");
        let _ = std::io::stdin().lock().read_line(&mut String::new());
    }
    say("ready");
    let mut line = String::new();
    loop {
        line.clear();
        let read = std::io::stdin().lock().read_line(&mut line);
        match line.trim().parse::<usize>() {
            Ok(function) if read.is_ok() && function < FUNCTIONS => {
                if !call(function, 7, Some(inside)) {
                    return 99;
                }
                say("out");
            }
            _ => return 0,
        }
    }
}

fn say(word: &str) {
    println!("{word}");
    let _ = std::io::stdout().flush();
}
