//! Functions, threads and counters of `torture xol`.
//!
//! For:     xol.rs.
//! State:   text of its own; the phase that all workers are in.
//! Context: control; the handler of SIGUSR1: signal.
//! Keeps:   W1 a worker's call is counted once it has returned.
//!          W2 a phase ends when all workers have made its calls: one that sleeps for ever is seen.
//! Checked: `tests/xol.rs`.

use super::options::{Options, name};
use crate::rng::Rng;
use percpu::Counter;
use probe::{Consumer, Regs, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use sys::mapping as mm;
use sys::signal::{Action, Context, Info, sig};
use trap::{Engine, Probe, ProbeError, actions};

/// Bytes from one function to the next.
const STRIDE: u64 = 16;
/// Calls of a worker in a phase.
const PHASE: u64 = 40;
const USR1: i32 = 10;

pub struct World {
    pub engine: Engine,
    pub options: Options,
    text: u64,
    pub started: Instant,
    pub over: AtomicBool,
    pub hits: Arc<Counter>,
    done: Vec<AtomicU64>,
    tids: Vec<AtomicU32>,
    arrived: AtomicU64,
    pub wrong: AtomicU64,
    pub stuck: AtomicU64,
    /// Addresses of ours that a signal handler saw.
    pub seen: AtomicU64,
    pub signals: AtomicU64,
    pub churned: AtomicU64,
    /// Probes that stay and are jumps.
    pub jumped: AtomicU64,
    last_words: String,
}

struct Count(Arc<Counter>);

impl Consumer for Count {
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.0.inc();
        Verdict::Continue
    }
}

impl World {
    pub fn new(engine: Engine, options: Options) -> Result<World, ProbeError> {
        let broken = options.broken.map_or("none", |b| b.0);
        let (scheme, seed) = (name(options.scheme), options.seed);
        Ok(World {
            engine,
            options,
            text: if options.jumps { jump_functions() } else { functions(2 * options.functions)? },
            started: Instant::now(),
            over: AtomicBool::new(false),
            hits: Arc::new(Counter::new()),
            done: (0..options.threads).map(|_| AtomicU64::new(0)).collect(),
            tids: (0..options.threads).map(|_| AtomicU32::new(0)).collect(),
            arrived: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            signals: AtomicU64::new(0),
            churned: AtomicU64::new(0),
            jumped: AtomicU64::new(0),
            last_words: format!("FAIL broken={broken} scheme={scheme} seed={seed} crashed=1\n"),
        })
    }

    /// Probes on the first half of the functions, to stay.
    pub fn place(&self) -> Result<Vec<Probe>, ProbeError> {
        let count = Arc::new(Count(self.hits.clone()));
        // SAFETY: the code is made for it, an instruction begins there, and the consumer only counts.
        let probes: Result<Vec<_>, _> = (0..self.options.functions)
            .map(|n| unsafe { self.engine.probe(self.at(n), count.clone()) })
            .collect();
        self.jumped.store(self.jumps(), Relaxed);
        probes
    }

    fn at(&self, function: usize) -> u64 {
        let stride = if self.options.jumps { JUMP_STRIDE } else { STRIDE };
        self.text + function as u64 * stride
    }

    /// Functions whose probes stay that begin with a jump now.
    fn jumps(&self) -> u64 {
        let is_jump = |n: &usize| {
            let mut byte = [0];
            let read = sys::remote::read_process(sys::getpid() as i32, self.at(*n), &mut byte);
            read == Ok(1) && byte == [0xe9]
        };
        (0..self.options.functions).filter(is_jump).count() as u64
    }

    /// Calls of functions whose probes stay that have returned.
    pub fn calls(&self) -> u64 {
        self.done.iter().map(|done| done.load(Relaxed)).sum()
    }

    pub fn is_wrong(&self) -> bool {
        self.wrong.load(Relaxed) + self.seen.load(Relaxed) > 0
    }

    fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }
}

/// Functions that jumps are placed in.
pub const JUMP_FUNCTIONS: usize = 64;
const JUMP_STRIDE: u64 = 32;

// Several short instructions stand under each jump; each function adds a number of its own.
std::arch::global_asm!(
    ".p2align 5, 0xcc",
    ".globl torture_jump_functions\n.hidden torture_jump_functions\ntorture_jump_functions:",
    ".set torture_jump_n, 0",
    ".rept 64",
    ".p2align 5, 0xcc\n.cfi_startproc",
    "push rbp\nmov rbp, rsp\npush rbx\nmov rbx, rdi",
    // lea rax, [rbx + number]
    ".byte 0x48, 0x8d, 0x83\n.long ((torture_jump_n + 1) * 0x01030509) & 0x7fffffff",
    "pop rbx\npop rbp\nret\n.cfi_endproc",
    ".set torture_jump_n, torture_jump_n + 1",
    ".endr",
    ".p2align 5, 0xcc",
);

unsafe extern "C" {
    fn torture_jump_functions();
}

fn jump_functions() -> u64 {
    torture_jump_functions as *const () as u64
}

/// `lea rax,[rdi+number]; ret`, so many times, in private text.
fn functions(count: usize) -> Result<u64, ProbeError> {
    let system = |errno: sys::Errno| ProbeError::System(std::io::Error::other(errno.to_string()));
    let len = (count * STRIDE as usize).next_multiple_of(4096);
    let mut code = vec![0xcc; len];
    for n in 0..count {
        let bytes = [&[0x48, 0x8d, 0x87][..], &number(n).to_le_bytes(), &[0xc3]].concat();
        code[n * STRIDE as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    let fd = sys::memfd(c"torture-xol", len).map_err(system)?;
    let view = mm::SharedMapping::of_file(fd, len).map_err(system)?;
    // SAFETY: the view is `len` bytes, and nobody else has the file.
    unsafe { view.base().copy_from(code.as_ptr(), len) };
    // SAFETY: a free address.
    let at =
        unsafe { mm::map(0, len, mm::PROT_READ | mm::PROT_EXEC, mm::MAP_PRIVATE, fd) }.map_err(system)?;
    sys::close(fd);
    Ok(at)
}

/// What a function adds: every byte of it differs from those of the next.
fn number(function: usize) -> u32 {
    (function as u32 + 1).wrapping_mul(0x0103_0509) & 0x7fff_ffff
}

/// Calls functions, phase after phase.
pub fn work(world: &World, me: usize) {
    let mut rng = Rng::new(world.options.seed, me as u64);
    world.tids[me].store(sys::gettid(), Relaxed);
    let threads = world.options.threads as u64;
    for phase in 1.. {
        for _ in 0..PHASE {
            let n = rng.below(2 * world.options.functions as u64) as usize;
            let value = rng.next() >> 1;
            // SAFETY: the code of `functions` keeps to the C calling convention.
            let function: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(world.at(n)) };
            if function(value) != value.wrapping_add(u64::from(number(n))) {
                world.wrong.fetch_add(1, Relaxed);
            }
            world.done[me].fetch_add(u64::from(n < world.options.functions), Relaxed);
        }
        world.arrived.fetch_add(1, SeqCst);
        while world.arrived.load(SeqCst) < phase * threads {
            if world.is_over() {
                return;
            }
            std::thread::yield_now();
        }
        if world.is_over() {
            return;
        }
    }
}

/// Probes on all of the other half, for as long as a thread may wait for its turn: one that stood under a jump when that
/// was written comes to run meanwhile.
fn place_all_for_a_while(world: &World, count: &Arc<Count>) {
    let functions = world.options.functions;
    // SAFETY: the code is made for it, an instruction begins there, and the consumer only counts.
    let place = |n: usize| unsafe { world.engine.probe(world.at(functions + n), count.clone()) };
    let placed: Vec<_> = (0..functions).filter_map(|n| place(n).ok()).collect();
    world.wrong.fetch_add((functions - placed.len()) as u64, Relaxed);
    std::thread::sleep(Duration::from_millis(80));
    world.engine.remove(placed);
}

/// Adds and removes probes on the other half.
pub fn churn(world: &World) {
    let mut rng = Rng::new(world.options.seed, 1 << 32);
    let count = Arc::new(Count(Arc::new(Counter::new())));
    for round in 1u64.. {
        if world.is_over() {
            return;
        }
        if world.options.jumps && round.is_multiple_of(8) {
            place_all_for_a_while(world, &count);
        }
        let functions = world.options.functions;
        let at = world.at(functions + rng.below(functions as u64) as usize);
        // SAFETY: the code is made for it, an instruction begins there, and the consumer only counts.
        let placed = unsafe { world.engine.probe(at, count.clone()) };
        let Ok(probe) = placed else {
            world.wrong.fetch_add(1, Relaxed);
            return;
        };
        std::thread::sleep(Duration::from_micros(rng.below(500)));
        world.engine.remove([probe]);
        world.churned.fetch_add(1, Relaxed);
    }
}

static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

fn world() -> Option<&'static World> {
    // SAFETY: null, or leaked by `xol_main`.
    unsafe { WORLD.load(SeqCst).as_ref() }
}

/// A worker was interrupted: where was it?
extern "C" fn on_signal(_: i32, _: *mut Info, context: *mut Context) {
    let Some(world) = world() else { return };
    // SAFETY: the kernel's.
    let rip = unsafe { &*context }.rip();
    if world.engine.is_slot(rip) || world.engine.is_gate(rip) {
        world.seen.fetch_add(1, Relaxed);
    }
    world.signals.fetch_add(1, Relaxed);
}

/// A broken slot may crash: that is a verdict, too.
extern "C" fn on_crash(_: i32, _: *mut Info, _: *mut Context) {
    let text = world().map_or("FAIL crashed=1\n", |world| &world.last_words);
    // SAFETY: the kernel reads the text.
    let _ = unsafe { sys::syscall(sys::nr::WRITE, [1, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
    const EXIT_GROUP: usize = 231;
    // SAFETY: ends this process.
    let _ = unsafe { sys::syscall(EXIT_GROUP, [1, 0, 0, 0, 0, 0]) };
}

pub fn watch_for_crashes(world: &'static World) {
    WORLD.store(std::ptr::from_ref(world).cast_mut(), SeqCst);
    for signal in [sig::SEGV, sig::BUS, sig::ILL, sig::TRAP] {
        let action = Action::new(on_crash as *const () as usize, sys::signal::SA_ONSTACK, 0);
        // SAFETY: the handler writes a line and ends the process.
        let _ = unsafe { actions::set(signal, Some(action)) };
    }
    let action = Action::new(on_signal as *const () as usize, sys::signal::SA_RESTART, 0);
    // SAFETY: the handler adds to atomics.
    let _ = unsafe { actions::set(USR1, Some(action)) };
}

/// Signals to workers, at random times.
pub fn send_signals(world: &World) {
    let mut rng = Rng::new(world.options.seed, 2 << 32);
    while !world.is_over() {
        let tid = world.tids[rng.below(world.options.threads as u64) as usize].load(Relaxed);
        if tid != 0 {
            let args = [sys::getpid() as usize, tid as usize, USR1 as usize, 0, 0, 0];
            // SAFETY: tgkill takes numbers only.
            let _ = unsafe { sys::syscall(sys::nr::TGKILL, args) };
        }
        std::thread::sleep(Duration::from_micros(rng.below(300)));
    }
}
