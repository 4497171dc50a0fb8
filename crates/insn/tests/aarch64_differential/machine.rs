//! Runs A64 words from a given processor state and tells the state in which they stopped.
//!
//! For:     comparing instructions with their copies; runs under qemu-user.
//! State:   fixed mappings of this process, one exchange with the signal handler. One test at a time.
//! Context: test only. The code under test is entered and left by signal: the handler swaps all registers, and runs
//!          on a stack of its own, so that the code may leave any value in any register.
//! Keeps:   G1 the memory that the code can reach is the same before each run.
//!          G2 every word of code outside the piece under test is brk: wherever control goes, it stops.
//! Checked: `the_machine_sees_registers_flags_memory_and_exits` in main.rs.
//!
//! A processor with the scalable extension keeps its vector registers elsewhere in the frame; .cargo/config.toml asks
//! qemu for one without it. Code is written through the mapping that runs it: qemu 7.2 finds out about new code by write protection of that
//! mapping alone, and does not act on cache maintenance.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

/// Where the originals stand.
pub const CODE: u64 = 0x10_0000_0000;
/// Data within reach of a literal load from all of CODE.
pub const LITERALS: u64 = CODE + 0x8000;
/// Where copies stand: in reach of b; of adrp but not b; of neither.
pub const COPIES: [u64; 3] = [CODE + (64 << 20), CODE + (1 << 31), 0x7a_1234_0000];
/// Where gates stand, in reach of b from CODE.
pub const GATES: u64 = CODE + (32 << 20);
pub const DATA: u64 = 0x11_0000_0000;
pub const STACK: u64 = 0x12_0000_0000;
/// Length of each region.
pub const LEN: usize = 0x1000;

/// A word that no piece under test holds.
pub const BRK: u32 = 0xd420_2000;
/// N, Z, C, V.
pub const FLAGS: u64 = 0xf << 28;
/// What a branch by register leaves for the page where it lands.
pub const BRANCH_TYPE: u64 = 3 << 10;

/// x0 to x30, the stack pointer, flags and branch type, vector registers.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub x: [u64; 31],
    pub sp: u64,
    pub pc: u64,
    pub pstate: u64,
    pub v: [u128; 32],
}

/// How and where a run ended.
#[derive(Clone, Debug)]
pub struct Exit {
    pub state: State,
    pub signal: i32,
    pub data: Vec<u8>,
    pub stack: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Idle,
    Enter,
    Running,
}

/// The kernel's fpsimd_context, first in the reserved space of a signal frame.
#[repr(C)]
struct Vectors {
    magic: u32,
    size: u32,
    fpsr: u32,
    fpcr: u32,
    v: [u128; 32],
}
const VECTORS_MAGIC: u32 = 0x4650_8001;

struct Exchange {
    phase: Phase,
    start: State,
    exit: State,
    signal: i32,
    driver: State,
}

static EXCHANGE: AtomicPtr<Exchange> = AtomicPtr::new(std::ptr::null_mut());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Memory at a fixed address, the code under test's and ours.
struct Region(u64);

impl Region {
    fn map(base: u64, prot: i32) -> Region {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is replaced (NOREPLACE); the regions are this file's and `ONE_AT_A_TIME` is held.
        let at = unsafe { libc::mmap(base as *mut c_void, LEN, prot, flags, -1, 0) };
        assert_eq!(at as u64, base, "{:#x} is free", base);
        Region(base)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `map` made LEN bytes, readable and writable; the borrow of self keeps a second slice away, and the
        // code under test runs only inside `run`, which holds no slice then.
        unsafe { std::slice::from_raw_parts_mut(self.0 as *mut u8, LEN) }
    }

    fn put(&mut self, addr: u64, words: &[u32]) {
        let start = (addr - self.0) as usize;
        for (index, word) in words.iter().enumerate() {
            self.bytes()[start + 4 * index..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is `map`'s, and no slice outlives the borrow that `bytes` takes.
        unsafe { libc::munmap(self.0 as *mut c_void, LEN) };
    }
}

pub struct Machine {
    exchange: *mut Exchange,
    code: Vec<Region>,
    literals: Region,
    data: Region,
    stack: Region,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    pub fn new() -> Machine {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let bases = [CODE, GATES, COPIES[0], COPIES[1], COPIES[2]];
        let mut code: Vec<_> =
            bases.into_iter().map(|base| Region::map(base, rw | libc::PROT_EXEC)).collect();
        for region in &mut code {
            region.put(region.0, &[BRK; LEN / 4]);
        }
        let zero = State { x: [0; 31], sp: 0, pc: 0, pstate: 0, v: [0; 32] };
        let exchange =
            Exchange { phase: Phase::Idle, start: zero.clone(), exit: zero.clone(), signal: 0, driver: zero };
        let exchange = Box::into_raw(Box::new(exchange));
        EXCHANGE.store(exchange, SeqCst);
        install();
        let [literals, data, stack] = [LITERALS, DATA, STACK].map(|base| Region::map(base, rw));
        Machine { exchange, code, literals, data, stack, _alone: alone }
    }

    /// Random bytes for literals, once.
    pub fn fill_literals(&mut self, bytes: &[u8]) {
        self.literals.bytes().copy_from_slice(bytes);
    }

    fn put(&mut self, addr: u64, words: &[u32]) {
        let region = self.code.iter_mut().find(|region| (region.0..region.0 + LEN as u64).contains(&addr));
        region.expect("an address of code").put(addr, words);
    }

    /// Runs the pieces, each at its address, from the first word of the first.
    pub fn run(&mut self, pieces: &[(u64, &[u32])], start: &State, data: &[u8], stack: &[u8]) -> Exit {
        self.data.bytes().copy_from_slice(data);
        self.stack.bytes().copy_from_slice(stack);
        pieces.iter().for_each(|(addr, words)| self.put(*addr, words));
        // SAFETY: the box lives until drop, and the handler runs only at the brk below.
        let exchange = unsafe { &mut *self.exchange };
        exchange.start = start.clone();
        exchange.phase = Phase::Enter;
        // SAFETY: the handler saves all registers here and brings all of them back, so that for the compiler nothing
        // happens but that memory may change.
        unsafe { std::arch::asm!("brk #1") };
        // SAFETY: the handler is done.
        let exchange = unsafe { &*self.exchange };
        let (state, signal) = (exchange.exit.clone(), exchange.signal);
        for (addr, words) in pieces {
            self.put(*addr, &vec![BRK; words.len()]);
        }
        Exit { state, signal, data: self.data.bytes().to_vec(), stack: self.stack.bytes().to_vec() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        EXCHANGE.store(std::ptr::null_mut(), SeqCst);
        // SAFETY: `exchange` is the box of `new`, and the handler no longer finds it.
        drop(unsafe { Box::from_raw(self.exchange) });
    }
}

fn install() {
    let stack = Box::leak(vec![0u8; 1 << 16].into_boxed_slice());
    let alt = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the stack is leaked, so it outlives the thread.
    assert_eq!(unsafe { libc::sigaltstack(&alt, std::ptr::null_mut()) }, 0);
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
        // SAFETY: a zeroed sigaction is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler touches the exchange and the frame alone.
        assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
    }
}

/// The vector registers of a signal frame.
fn vectors(frame: &mut libc::ucontext_t) -> &mut Vectors {
    // The reserved space follows pstate, aligned to sixteen.
    let after = (&raw mut frame.uc_mcontext.pstate) as usize + 8;
    let at = after.next_multiple_of(16) as *mut Vectors;
    // SAFETY: the kernel puts this record first in the 4 KiB that follow; its mark is checked below.
    let vectors = unsafe { &mut *at };
    assert_eq!(vectors.magic, VECTORS_MAGIC);
    vectors
}

fn read(frame: &mut libc::ucontext_t) -> State {
    let context = &frame.uc_mcontext;
    let (x, sp, pc, pstate) = (context.regs, context.sp, context.pc, context.pstate);
    State { x, sp, pc, pstate, v: vectors(frame).v }
}

fn write(frame: &mut libc::ucontext_t, state: &State) {
    let context = &mut frame.uc_mcontext;
    context.regs = state.x;
    context.sp = state.sp;
    context.pc = state.pc;
    context.pstate = state.pstate;
    vectors(frame).v = state.v;
}

extern "C" fn on_signal(signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the frame that it will restore.
    let frame = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: the pointer is null or the box of the one machine, whose thread is this one.
    let Some(exchange) = (unsafe { EXCHANGE.load(SeqCst).as_mut() }) else { std::process::abort() };
    match exchange.phase {
        Phase::Idle => std::process::abort(),
        Phase::Enter => {
            exchange.driver = read(frame);
            exchange.driver.pc += 4;
            let keep = exchange.driver.pstate & !(FLAGS | BRANCH_TYPE);
            let start = State { pstate: keep | exchange.start.pstate, ..exchange.start.clone() };
            write(frame, &start);
            exchange.phase = Phase::Running;
        }
        Phase::Running => {
            exchange.exit = read(frame);
            exchange.signal = signal;
            let driver = exchange.driver.clone();
            write(frame, &driver);
            exchange.phase = Phase::Idle;
        }
    }
}
