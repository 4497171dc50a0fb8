//! Runs bytes from a given processor state and tells the state in which they stopped.
//!
//! For:     comparing displaced instructions with their copies.
//! State:   three fixed mappings of this process, one exchange with the signal handler. One test at a time.
//! Context: test only. The code under test is entered and left by signal: the handler swaps all registers, and
//!          runs on a stack of its own, so that the code may leave any value in any register.
//! Keeps:   G1 the memory that the code can reach is the same before each run.
//!          G2 every byte of code outside the piece under test is int3: wherever control goes, it stops.
//! Checked: `the_machine_sees_registers_flags_memory_and_exits` in main.rs.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

/// Nothing else is mapped within 2 GiB of these.
pub const CODE: u64 = 0x10_0000_0000;
pub const CODE_LEN: usize = 0x4000;
#[allow(dead_code, reason = "as `run_page`")]
pub const PAGE_LEN: usize = 0x1000;
pub const COPY: u64 = 0x10_2000_0000;
pub const COPY_LEN: usize = 0x2000;
pub const DATA: u64 = 0x10_0100_0000;
pub const DATA_LEN: usize = 0x2000;
pub const STACK: u64 = 0x10_0200_0000;
pub const STACK_LEN: usize = 0x2000;

const FX_LEN: usize = 512;
const INT3: u8 = 0xcc;

/// CF, PF, AF, ZF, SF, DF, OF.
pub const FLAGS: u64 = 0xcd5;

/// General registers by hardware number, flags, the legacy vector area, and what the kernel saves behind it: upper
/// halves, mask registers, registers 16 to 31.
#[derive(Clone)]
pub struct State {
    pub regs: [u64; 16],
    pub flags: u64,
    pub xmm: [u8; 256],
    /// From `WIDE` on; empty for their initial state.
    pub wide: Vec<u8>,
}

impl State {
    /// Sets every byte of the mask registers.
    pub fn fill_masks(&mut self, byte: u8) {
        let masks = wide_parts().into_iter().find(|(number, ..)| *number == MASKS);
        let Some((_, range)) = masks else { return };
        if let Some(masks) = self.wide.get_mut(range) {
            masks.fill(byte);
        }
    }
}

/// Where a frame's extended area has its parts, by byte; the header is before it.
const WIDE: usize = 576;
pub const WIDE_LEN: usize = 2688 - WIDE;
const MASKS: u32 = 5;

/// (number, bytes in `State::wide`) of each part that this processor has: upper halves, masks, upper quarters, the
/// registers above 15.
pub fn wide_parts() -> Vec<(u32, std::ops::Range<usize>)> {
    let is_saved = |number: &u32| {
        let saved = std::arch::x86_64::__cpuid_count(0xd, 0);
        saved.eax >> number & 1 != 0
    };
    let part = |number: u32| {
        let leaf = std::arch::x86_64::__cpuid_count(0xd, number);
        let start = leaf.ebx as usize - WIDE;
        (number, start..start + leaf.eax as usize)
    };
    [2, MASKS, 6, 7].into_iter().filter(is_saved).map(part).filter(|(_, r)| r.end <= WIDE_LEN).collect()
}

/// How and where a run ended.
#[derive(Clone)]
pub struct Exit {
    pub state: State,
    pub rip: u64,
    pub signal: i32,
    /// For SIGSEGV and SIGBUS, what the kernel says was touched.
    pub fault: u64,
    /// x87 and vector state without the addresses of the last x87 instruction and operand.
    pub fx: Vec<u8>,
    pub data: Vec<u8>,
    pub stack: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Idle,
    Enter,
    Running,
}

struct Exchange {
    phase: Phase,
    start: State,
    start_rip: u64,
    exit: State,
    exit_rip: u64,
    signal: i32,
    fault: u64,
    fx: [u8; FX_LEN],
    driver: [i64; 23],
    driver_fp: Vec<u8>,
    parts: Vec<(u32, std::ops::Range<usize>)>,
}

static EXCHANGE: AtomicPtr<Exchange> = AtomicPtr::new(std::ptr::null_mut());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// ucontext's order of the general registers, by hardware number.
const GREGS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

pub struct Machine {
    exchange: *mut Exchange,
    code: Region,
    copy: Region,
    data: Region,
    stack: Region,
    _alone: MutexGuard<'static, ()>,
}

/// Memory at a fixed address for the code under test, and a second, writable view of it for us.
struct Region {
    base: u64,
    len: usize,
    view: *mut u8,
}

impl Region {
    fn map(base: u64, len: usize, prot: i32) -> Region {
        // SAFETY: the name is a C string; nothing else is needed.
        let fd = unsafe { libc::memfd_create(c"insn-test".as_ptr(), 0) };
        assert!(fd >= 0);
        // SAFETY: `fd` is the file just made, and no one else has it.
        assert_eq!(unsafe { libc::ftruncate(fd, len as i64) }, 0);
        let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: mmap needs nothing that may be overwritten at `base`; the four regions are this file's, below all
        // that the kernel places by itself, and `ONE_AT_A_TIME` is held while they are in use.
        let at = unsafe { libc::mmap(base as *mut c_void, len, prot, fixed, fd, 0) };
        assert_eq!(at as u64, base);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a free address; no memory of ours changes.
        let view = unsafe { libc::mmap(std::ptr::null_mut(), len, rw, libc::MAP_SHARED, fd, 0) };
        assert_ne!(view, libc::MAP_FAILED);
        // SAFETY: the mappings keep the file; `fd` is not used again.
        assert_eq!(unsafe { libc::close(fd) }, 0);
        Region { base, len, view: view.cast() }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `map` made `len` readable and writable bytes at `view`; the borrow of self keeps a second slice
        // away, and the code under test runs only inside `run`, which holds no slice then.
        unsafe { std::slice::from_raw_parts_mut(self.view, self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `view` and `len` are those of `map`, and no slice outlives the borrow that `bytes` takes.
        unsafe { libc::munmap(self.view.cast(), self.len) };
    }
}

impl Machine {
    pub fn new() -> Machine {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let zero = State { regs: [0; 16], flags: 0, xmm: [0; 256], wide: vec![] };
        let exchange = Box::new(Exchange {
            phase: Phase::Idle,
            start: zero.clone(),
            start_rip: 0,
            exit: zero,
            exit_rip: 0,
            signal: 0,
            fault: 0,
            fx: [0; FX_LEN],
            driver: [0; 23],
            driver_fp: Vec::with_capacity(1 << 16),
            parts: wide_parts(),
        });
        let exchange = Box::into_raw(exchange);
        EXCHANGE.store(exchange, SeqCst);
        install_handlers();
        Machine {
            exchange,
            code: Region::map(CODE, CODE_LEN, rx),
            copy: Region::map(COPY, COPY_LEN, rx),
            data: Region::map(DATA, DATA_LEN, rw),
            stack: Region::map(STACK, STACK_LEN, rw),
            _alone: alone,
        }
    }

    /// Runs `bytes`, put at `at` in the code or the copy region, until control leaves them.
    pub fn run(&mut self, at: u64, bytes: &[u8], start: &State, data: &[u8], stack: &[u8]) -> Exit {
        self.data.bytes().copy_from_slice(data);
        self.stack.bytes().copy_from_slice(stack);
        self.code.bytes().fill(INT3);
        self.copy.bytes().fill(INT3);
        let region = if at >= COPY { &mut self.copy } else { &mut self.code };
        let offset = (at - region.base) as usize;
        region.bytes()[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.enter(at, start);
        self.exit()
    }

    /// The same for code at `at` on page `page` of a file, which takes the place of the code region's first; `run` may
    /// not be called afterwards.
    #[allow(dead_code, reason = "for one of the tests that have this file")]
    pub fn run_page(
        &mut self,
        (file, page): (i32, usize),
        at: u64,
        (start, data, stack): (&State, &[u8], &[u8]),
    ) -> Exit {
        self.data.bytes().copy_from_slice(data);
        self.stack.bytes().copy_from_slice(stack);
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let offset = (page * PAGE_LEN) as i64;
        // SAFETY: it replaces a page of the region that `new` mapped at `CODE`, of which there is no slice.
        let mapped = unsafe { libc::mmap(CODE as *mut c_void, PAGE_LEN, rx, fixed, file, offset) };
        assert_eq!(mapped as u64, CODE);
        self.enter(at, start);
        self.exit()
    }

    fn exit(&mut self) -> Exit {
        // SAFETY: reads the box that `new` made and `drop` frees; the handler runs only inside `enter`.
        let exchange = unsafe { &*self.exchange };
        let mut fx = exchange.fx.to_vec();
        fx[6..24].fill(0); // last opcode, instruction and operand address of x87
        fx.truncate(416); // reserved and software bytes behind it
        Exit {
            state: exchange.exit.clone(),
            rip: exchange.exit_rip,
            signal: exchange.signal,
            fault: if exchange.signal == libc::SIGSEGV { exchange.fault } else { 0 },
            fx,
            data: self.data.bytes().to_vec(),
            stack: self.stack.bytes().to_vec(),
        }
    }

    fn enter(&mut self, at: u64, start: &State) {
        // SAFETY: as in `run`; no other reference to the exchange lives here.
        let exchange = unsafe { &mut *self.exchange };
        exchange.start = start.clone();
        exchange.start_rip = at;
        exchange.phase = Phase::Enter;
        // SAFETY: int3 needs a SIGTRAP handler, which `install_handlers` set in this thread's process; the handler
        // gives back every register, so that nothing is clobbered but memory, and asm! assumes all memory is.
        unsafe { std::arch::asm!("int3") };
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        EXCHANGE.store(std::ptr::null_mut(), SeqCst);
        // SAFETY: `new` made it by Box::into_raw, and the handler can no longer find it.
        drop(unsafe { Box::from_raw(self.exchange) });
    }
}

fn install_handlers() {
    const ALT_STACK_LEN: usize = 1 << 17;
    let stack = Box::leak(vec![0u8; ALT_STACK_LEN].into_boxed_slice());
    let alt = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: ALT_STACK_LEN };
    // SAFETY: the stack is leaked, so it outlives the thread.
    let done = unsafe { libc::sigaltstack(&alt, std::ptr::null_mut()) };
    assert_eq!(done, 0);
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGBUS] {
        // SAFETY: all zeros is a valid sigaction: no flags, empty mask, default action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: `on_signal` has the signature that SA_SIGINFO asks for and calls nothing that is not signal-safe.
        let done = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
        assert_eq!(done, 0);
    }
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid context to a SA_SIGINFO handler, and it is ours until we return.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let exchange = EXCHANGE.load(SeqCst);
    // SAFETY: null, or the box of the one `Machine`, whose owner is the code that this signal interrupted.
    let exchange = unsafe { exchange.as_mut() };
    let Some(exchange) = exchange.filter(|exchange| exchange.phase != Phase::Idle) else {
        return give_up(signal);
    };
    let fp_len = fp_len(context);
    // SAFETY: the kernel's frame has `fp_len` bytes of floating-point state there, by its own word.
    let fp = unsafe { std::slice::from_raw_parts_mut(context.uc_mcontext.fpregs.cast::<u8>(), fp_len) };
    let gregs = &mut context.uc_mcontext.gregs;
    if exchange.phase == Phase::Enter {
        exchange.phase = Phase::Running;
        exchange.driver = *gregs;
        exchange.driver_fp.clear();
        exchange.driver_fp.extend_from_slice(fp);
        for (number, index) in GREGS.iter().enumerate() {
            gregs[*index as usize] = exchange.start.regs[number] as i64;
        }
        gregs[libc::REG_EFL as usize] = (exchange.start.flags & FLAGS | 0x202) as i64;
        gregs[libc::REG_RIP as usize] = exchange.start_rip as i64;
        clean_fp(fp, &exchange.start, &exchange.parts);
        return;
    }
    exchange.phase = Phase::Idle;
    for (number, index) in GREGS.iter().enumerate() {
        exchange.exit.regs[number] = gregs[*index as usize] as u64;
    }
    exchange.exit.flags = gregs[libc::REG_EFL as usize] as u64 & FLAGS;
    exchange.exit_rip = gregs[libc::REG_RIP as usize] as u64 - u64::from(signal == libc::SIGTRAP);
    exchange.signal = signal;
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let info = unsafe { &*info };
    // SAFETY: all signals that we handle have that field.
    exchange.fault = unsafe { info.si_addr() } as u64;
    exchange.fx.copy_from_slice(&fp[..FX_LEN]);
    // Only bytes of parts: what lies between them is nobody's. The vector was made by the last start, long enough.
    exchange.exit.wide.clear();
    exchange.exit.wide.resize(WIDE_LEN, 0);
    for (_, range) in exchange.parts.iter().filter(|(_, r)| WIDE + r.end <= fp.len()) {
        exchange.exit.wide[range.clone()].copy_from_slice(&fp[WIDE + range.start..WIDE + range.end]);
    }
    *gregs = exchange.driver;
    fp.copy_from_slice(&exchange.driver_fp);
}

/// A signal that is none of ours: let it have its usual effect.
fn give_up(signal: i32) {
    // SAFETY: resetting to the default action needs nothing.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Length of the frame's floating-point state: the kernel writes it into the area's reserved bytes.
fn fp_len(context: &libc::ucontext_t) -> usize {
    const MAGIC: u32 = 0x4650_5853;
    // SAFETY: the legacy area is `FX_LEN` bytes long in every frame.
    let legacy = unsafe { std::slice::from_raw_parts(context.uc_mcontext.fpregs.cast::<u8>(), FX_LEN) };
    let word = |offset: usize| u32::from_le_bytes(legacy[offset..offset + 4].try_into().expect("four bytes"));
    if word(464) == MAGIC { word(480) as usize } else { FX_LEN }
}

/// x87 as after a reset, masked exceptions, and the vector registers of `state`.
fn clean_fp(fp: &mut [u8], state: &State, parts: &[(u32, std::ops::Range<usize>)]) {
    fp[..464].fill(0);
    fp[0..2].copy_from_slice(&0x037f_u16.to_le_bytes());
    fp[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes());
    fp[28..32].copy_from_slice(&0xffff_u32.to_le_bytes());
    fp[160..416].copy_from_slice(&state.xmm);
    if fp.len() <= FX_LEN {
        return;
    }
    // x87 and SSE are in use, and what the state has; the rest is in its initial state.
    let mut in_use = 3_u64;
    let len = fp.len();
    for (number, range) in parts.iter().filter(|(_, r)| WIDE + r.end <= len && r.end <= state.wide.len()) {
        fp[WIDE + range.start..WIDE + range.end].copy_from_slice(&state.wide[range.clone()]);
        in_use |= 1 << number;
    }
    fp[512..520].copy_from_slice(&in_use.to_le_bytes());
}
