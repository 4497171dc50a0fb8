//! Jumps in this very program: how they stand, that counts are exact, and that the program sees nothing of them.

mod kit;

use kit::{Count, Does, bytes_at, call, engine};
use probe::{Regs, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use sys::signal::{Context, Info};
use trap::{Config, NoJump, Rung, Vectors};

trap::interpose!();

// Each returns a + b: every instruction counts, and a wrong byte changes the sum or ends the program.
std::arch::global_asm!(
    // Instructions begin 1 and 4 bytes behind the first.
    ".globl jumps_window\n.type jumps_window, @function\njumps_window:\n.cfi_startproc",
    "push rbp\nmov rbp, rsp\npush rbx\nmov rbx, rdi\nlea rax, [rbx + rsi]\npop rbx\npop rbp\nret",
    ".cfi_endproc\n.size jumps_window, . - jumps_window\n.p2align 4, 0xcc",
    // One instruction of five bytes or more.
    ".globl jumps_one\n.type jumps_one, @function\njumps_one:\n.cfi_startproc",
    "lea rax, [rdi + rsi + 0x1000]\nsub rax, 0x1000\nret",
    ".cfi_endproc\n.size jumps_one, . - jumps_one\n.p2align 4, 0xcc",
    // A nop of five bytes.
    ".globl jumps_nop\n.type jumps_nop, @function\njumps_nop:\n.cfi_startproc",
    ".byte 0x0f, 0x1f, 0x44, 0, 0\nlea rax, [rdi + rsi]\nret",
    ".cfi_endproc\n.size jumps_nop, . - jumps_nop\n.p2align 4, 0xcc",
    // Its second instruction is jumped to: a jump of five bytes has no room, one that keeps the bytes behind three has.
    ".globl jumps_pun\n.type jumps_pun, @function\njumps_pun:\n.cfi_startproc",
    "mov rax, rdi\n2: add rax, rsi\nmov edx, 0\ntest edx, edx\njne 2b\nret",
    ".cfi_endproc\n.size jumps_pun, . - jumps_pun\n.p2align 4, 0xcc",
    // The red zone, the flags and a vector register are live at the third instruction.
    ".globl jumps_live\n.type jumps_live, @function\njumps_live:\n.cfi_startproc",
    "movq xmm15, rsi\nmov [rsp - 16], rdi\ncmp rdi, rsi\n.globl jumps_live_inside\njumps_live_inside:",
    "mov rax, [rsp - 16]\nsetb cl\nmovq rdx, xmm15\nadd rax, rdx\ncmp rdi, rsi\nsetb dl\ncmp cl, dl\nje 3f\nud2\n3: ret",
    ".cfi_endproc\n.size jumps_live, . - jumps_live\n.p2align 4, 0xcc",
    // A call is displaced.
    ".globl jumps_call\n.type jumps_call, @function\njumps_call:\n.cfi_startproc",
    "call jumps_one\nret",
    ".cfi_endproc\n.size jumps_call, . - jumps_call\n.p2align 4, 0xcc",
    // Reads where it is told to; the read is the window's third instruction.
    ".globl jumps_fault\n.type jumps_fault, @function\njumps_fault:\n.cfi_startproc",
    "push rbp\nxor eax, eax\nmov rax, [rdi]\npop rbp\nret",
    ".cfi_endproc\n.size jumps_fault, . - jumps_fault\n.p2align 4, 0xcc",
);

unsafe extern "C" {
    fn jumps_window();
    fn jumps_one();
    fn jumps_nop();
    fn jumps_pun();
    fn jumps_live();
    fn jumps_live_inside();
    fn jumps_call();
    fn jumps_fault();
}

fn at(function: unsafe extern "C" fn()) -> u64 {
    function as *const () as u64
}

/// The functions that add, and the rung on which their probes stand.
fn shapes() -> [(u64, Rung); 6] {
    [
        (at(jumps_window), Rung::Window),
        (at(jumps_one), Rung::Jump),
        (at(jumps_nop), Rung::Nop),
        (at(jumps_pun), Rung::Punned),
        (at(jumps_live_inside), Rung::Jump),
        (at(jumps_call), Rung::Jump),
    ]
}

/// What is called to come to a site.
fn function_of(site: u64) -> u64 {
    if site == at(jumps_live_inside) { at(jumps_live) } else { site }
}

fn probe(engine: trap::Engine, site: u64, consumer: Arc<dyn probe::Consumer>) -> trap::Probe {
    // SAFETY: an instruction begins there, and the consumer counts or does what the test says.
    unsafe { engine.probe(site, consumer) }.unwrap()
}

const BYTES: usize = 16;

#[test]
fn every_shape_gets_its_rung_counts_each_call_and_is_given_back() {
    for vectors in [Vectors::All, Vectors::Low] {
        let (engine, _alone) = engine(Config { vectors, ..Config::default() });
        for (site, rung) in shapes() {
            let before = bytes_at(site, BYTES);
            let count = Count::new();
            let probe = probe(engine, site, count.clone());
            let way = probe.way().unwrap();
            // A pun needs free memory at a few addresses.
            let is_pun_without_room = rung == Rung::Punned && way.no_jump == Some(NoJump::NoRoom);
            assert!(way.rung == rung || is_pun_without_room, "{site:#x} {way:?}");
            assert!(is_pun_without_room || bytes_at(site, 1) == [0xe9], "{way:?}");
            for n in 0..1000 {
                assert_eq!(call(function_of(site), n, 500), n + 500, "{rung:?}");
            }
            engine.remove([probe]);
            assert_eq!(count.get(), 1000, "{rung:?}");
            assert_eq!(bytes_at(site, BYTES), before, "text is as it was");
        }
    }
}

#[test]
fn instructions_under_a_jump_begin_with_int3() {
    let (engine, _alone) = engine(Config::default());
    let site = at(jumps_window);
    let probe = probe(engine, site, Count::new());
    let bytes = bytes_at(site, 5);
    assert_eq!((bytes[0], bytes[1], bytes[4]), (0xe9, 0xcc, 0xcc), "{bytes:02x?}");
    // A thread that comes there by a way that nobody knows runs what it always ran: here as with rbp pushed.
    let got: u64;
    // SAFETY: does by hand what the function's first instruction does, and calls what follows.
    unsafe {
        std::arch::asm!(
            "lea {back}, [rip + 4f]",
            "push {back}",
            "push rbp",
            "jmp {inside}",
            "4:",
            back = out(reg) _,
            inside = in(reg) site + 1,
            in("rdi") 30u64, in("rsi") 12u64, lateout("rax") got,
            out("rcx") _, out("rdx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    assert_eq!(got, 42);
    engine.remove([probe]);
}

#[test]
fn counts_are_exact_in_eight_threads_while_probes_come_and_go() {
    const ROUNDS: usize = 15;
    let (engine, _alone) = engine(Config { vectors: Vectors::Low, ..Config::default() });
    let sites: Vec<u64> = shapes().iter().map(|(site, _)| *site).collect();
    let before: Vec<_> = sites.iter().map(|site| bytes_at(*site, BYTES)).collect();
    let done = AtomicBool::new(false);
    let (stays, comes) = (Count::new(), Count::new());
    let start = engine.counts();
    let stays_probe = probe(engine, sites[0], stays.clone());
    let calls: u64 = std::thread::scope(|s| {
        let callers: Vec<_> = (0..8)
            .map(|_| {
                s.spawn(|| {
                    let mut calls = 0;
                    while !done.load(SeqCst) {
                        for site in &sites {
                            assert_eq!(call(function_of(*site), calls, 7), calls + 7);
                        }
                        calls += 1;
                        if calls % 256 == 0 {
                            // The one that places probes gets its turn.
                            std::thread::yield_now();
                        }
                    }
                    calls
                })
            })
            .collect();
        for round in 0..ROUNDS {
            // The one that stays gets company; the others come and go by themselves.
            let probes: Vec<_> =
                (0..3).map(|i| probe(engine, sites[(round + i) % sites.len()], comes.clone())).collect();
            std::thread::yield_now();
            engine.remove(probes);
        }
        done.store(true, SeqCst);
        callers.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    engine.remove([stays_probe]);
    assert_eq!(stays.get(), calls, "the consumer that stays misses none");
    let end = engine.counts();
    assert_eq!(end.foreign, start.foreign, "no trap is left over");
    for (site, bytes) in sites.iter().zip(before) {
        assert_eq!(bytes_at(*site, BYTES), bytes, "text is as it was");
    }
}

#[test]
fn a_consumer_may_change_registers_and_go_elsewhere() {
    let (engine, _alone) = engine(Config::default());
    let other = at(jumps_nop);
    let elsewhere = probe(
        engine,
        at(jumps_window),
        Arc::new(Does(move |regs: &mut Regs| {
            (regs.rip, regs.rdi) = (other, 100);
            Verdict::Continue
        })),
    );
    assert_eq!(call(at(jumps_window), 1, 2), 102);
    engine.remove([elsewhere]);
    let changes = probe(
        engine,
        at(jumps_one),
        Arc::new(Does(|regs: &mut Regs| {
            (regs.rsi, regs.rdi) = (regs.rdi * 10, 5);
            Verdict::Continue
        })),
    );
    assert_eq!(call(at(jumps_one), 7, 0), 75);
    engine.remove([changes]);
    assert_eq!(call(at(jumps_one), 7, 0), 7);
}

#[test]
fn a_consumer_sees_the_registers_of_the_probed_code() {
    let (engine, _alone) = engine(Config::default());
    static SEEN: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    let site = at(jumps_window);
    let sees = probe(
        engine,
        site,
        Arc::new(Does(move |regs: &mut Regs| {
            // SAFETY: the stack pointer at a function's entry leads to the return address.
            let back = unsafe { *(regs.rsp as *const u64) };
            for (seen, value) in SEEN.iter().zip([regs.rip, regs.rdi, regs.rsi, back]) {
                seen.store(value, SeqCst);
            }
            Verdict::Continue
        })),
    );
    assert_eq!(call(site, 3, 4), 7);
    engine.remove([sees]);
    let [rip, rdi, rsi, back] = SEEN.each_ref().map(|seen| seen.load(SeqCst));
    assert_eq!((rip, rdi, rsi), (site, 3, 4));
    let me = call as *const () as u64;
    assert!(back.abs_diff(me) < 1 << 24, "{back:#x} is in this program");
}

#[test]
fn a_probe_under_a_jump_makes_it_a_breakpoint_and_both_count() {
    let (engine, _alone) = engine(Config::default());
    let site = at(jumps_window);
    let before = bytes_at(site, BYTES);
    let (first, second) = (Count::new(), Count::new());
    let outer = probe(engine, site, first.clone());
    assert_eq!(outer.way().unwrap().rung, Rung::Window);
    let inner = probe(engine, site + 1, second.clone());
    let way = outer.way().unwrap();
    assert_eq!((way.rung, way.no_jump), (Rung::Trap, Some(NoJump::Shared)));
    (0..100).for_each(|n| assert_eq!(call(site, n, 1), n + 1));
    engine.remove([outer]);
    (0..50).for_each(|n| assert_eq!(call(site, n, 1), n + 1));
    engine.remove([inner]);
    assert_eq!((first.get(), second.get()), (100, 150));
    assert_eq!(bytes_at(site, BYTES), before);
    // And it can be a jump again.
    let again = probe(engine, site, first.clone());
    assert_eq!(again.way().unwrap().rung, Rung::Window);
    engine.remove([again]);
    assert_eq!(bytes_at(site, BYTES), before);
}

#[test]
fn a_probe_that_a_consumer_hits_runs_and_is_counted_as_nested() {
    let (engine, _alone) = engine(Config::default());
    let before = engine.counts();
    let count = Count::new();
    let inner = count.clone();
    let calls = probe(
        engine,
        at(jumps_one),
        Arc::new(Does(move |regs: &mut Regs| {
            if regs.rdi < 100 {
                inner.0.fetch_add(call(at(jumps_one), 200, 5), SeqCst);
            }
            Verdict::Continue
        })),
    );
    assert_eq!(call(at(jumps_one), 1, 2), 3);
    engine.remove([calls]);
    let after = engine.counts();
    assert_eq!((count.get(), after.nested - before.nested, after.handled - before.handled), (205, 1, 1));
}

static TICKS: AtomicU64 = AtomicU64::new(0);
static OURS: AtomicU64 = AtomicU64::new(0);
static SUMS: AtomicU64 = AtomicU64::new(0);

/// Calls a probed function, as a program's handler may.
extern "C" fn on_tick(_: i32, _: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's.
    let rip = unsafe { &*context }.rip();
    let is_gate = trap::Engine::running().is_some_and(|engine| engine.is_gate(rip));
    OURS.fetch_add(u64::from(is_gate), SeqCst);
    let n = TICKS.fetch_add(1, SeqCst);
    SUMS.fetch_add(u64::from(call(at(jumps_window), n, 1) == n + 1), SeqCst);
}

fn set_handler(signal: i32, handler: usize) {
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handlers of this file store to atomics, call what is probed, and change their context alone.
    assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
}

#[test]
fn signals_of_the_program_come_after_the_hit_and_their_hits_are_handled() {
    let (engine, _alone) = engine(Config { vectors: Vectors::Low, ..Config::default() });
    set_handler(libc::SIGALRM, on_tick as *const () as usize);
    let count = Count::new();
    let before = engine.counts();
    let slow = count.clone();
    let probe = probe(
        engine,
        at(jumps_window),
        Arc::new(Does(move |_: &mut Regs| {
            slow.0.fetch_add(1, SeqCst);
            (0..200).for_each(|n| {
                std::hint::black_box(n);
            });
            Verdict::Continue
        })),
    );
    TICKS.store(0, SeqCst);
    SUMS.store(0, SeqCst);
    OURS.store(0, SeqCst);
    let every = libc::timeval { tv_sec: 0, tv_usec: 200 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: sets a timer of this process; the handler is set.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0);
    let mut calls = 0u64;
    while TICKS.load(SeqCst) < 300 {
        assert_eq!(call(at(jumps_window), calls, 9), calls + 9);
        calls += 1;
    }
    // SAFETY: all zeros turns it off.
    let off: libc::itimerval = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &off, std::ptr::null_mut()) };
    // A tick that was pending comes here at the latest.
    std::thread::yield_now();
    engine.remove([probe]);
    let after = engine.counts();
    let ticks = TICKS.load(SeqCst);
    assert_eq!(after.nested, before.nested, "no hit of a handler is lost in a consumer");
    assert_eq!(count.get(), calls + ticks);
    assert_eq!((SUMS.load(SeqCst), OURS.load(SeqCst)), (ticks, 0), "and it saw no address of ours");
}

static FAULT: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static GOOD: AtomicU64 = AtomicU64::new(4711);

extern "C" fn on_fault(_: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's, or the engine's in its place.
    let context = unsafe { &mut *context };
    FAULT[0].store(context.rip(), SeqCst);
    // SAFETY: likewise.
    FAULT[1].store(unsafe { &*info }.addr, SeqCst);
    FAULT[2].fetch_add(1, SeqCst);
    let mut general = context.general();
    general[7] = GOOD.as_ptr() as u64;
    context.set_general(&general);
}

#[test]
fn a_fault_in_a_displaced_instruction_has_the_address_of_the_original_and_can_be_cured() {
    let (engine, _alone) = engine(Config::default());
    set_handler(libc::SIGSEGV, on_fault as *const () as usize);
    let site = at(jumps_fault);
    let count = Count::new();
    let probe = probe(engine, site, count.clone());
    assert_eq!(probe.way().unwrap().rung, Rung::Window);
    for n in 1..=20 {
        FAULT[2].store(0, SeqCst);
        assert_eq!(call(site, 0x10, 0), 4711);
        let seen = FAULT.each_ref().map(|seen| seen.load(SeqCst));
        assert_eq!(seen, [site + 3, 0x10, 1]);
        assert_eq!(count.get(), n, "the consumer is called once");
    }
    engine.remove([probe]);
    // SAFETY: the default action.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

static STEPS: AtomicU64 = AtomicU64::new(0);
static PLACES: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

extern "C" fn on_step(_: i32, _: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's.
    let rip = unsafe { &*context }.rip();
    let from = at(jumps_window);
    if (from..from + 32).contains(&rip) {
        let n = STEPS.fetch_add(1, SeqCst) as usize;
        PLACES[n % 64].store(rip, SeqCst);
    }
    OURS.fetch_add(u64::from(trap::Engine::running().is_some_and(|engine| engine.is_gate(rip))), SeqCst);
}

/// Calls the function with the trap flag set.
fn stepped() -> (u64, Vec<u64>) {
    STEPS.store(0, SeqCst);
    let got: u64;
    // SAFETY: the handler is set; the flag is cleared again; the function keeps to the C calling convention.
    unsafe {
        std::arch::asm!(
            "pushfq", "or qword ptr [rsp], 0x100", "popfq",
            "call {function}",
            "pushfq", "and qword ptr [rsp], -257", "popfq",
            function = in(reg) at(jumps_window),
            inout("rdi") 20u64 => _, inout("rsi") 22u64 => _, lateout("rax") got,
            out("rcx") _, out("rdx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let steps = STEPS.load(SeqCst) as usize;
    (got, PLACES[..steps.min(64)].iter().map(|place| place.load(SeqCst)).collect())
}

#[test]
fn a_program_that_steps_itself_sees_each_instruction_once_with_and_without_a_probe() {
    let (engine, _alone) = engine(Config { vectors: Vectors::Low, ..Config::default() });
    set_handler(libc::SIGTRAP, on_step as *const () as usize);
    OURS.store(0, SeqCst);
    let without = stepped();
    assert_eq!((without.0, without.1.len()), (42, 8), "{without:x?}");
    let count = Count::new();
    let probe = probe(engine, at(jumps_window), count.clone());
    let with = stepped();
    engine.remove([probe]);
    // SAFETY: the default action.
    unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
    assert_eq!((with, count.get(), OURS.load(SeqCst)), (without, 1, 0));
}

#[test]
fn a_forked_child_goes_on_with_the_jump_and_can_take_it_out() {
    let (engine, _alone) = engine(Config::default());
    let site = at(jumps_window);
    let before = bytes_at(site, BYTES);
    let count = Count::new();
    let probe = probe(engine, site, count.clone());
    // SAFETY: the child calls the probed function, takes the probe out, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_good = (0..1000).all(|n| call(site, n, 3) == n + 3) && count.get() == 1000;
        engine.remove([probe]);
        let is_good =
            is_good && call(site, 1, 1) == 2 && bytes_at(site, BYTES) == before && count.get() == 1000;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_good)) };
    }
    (0..500).for_each(|n| assert_eq!(call(site, n, 3), n + 3));
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    engine.remove([probe]);
    assert_eq!(count.get(), 500, "the child's hits are its own");
    assert_eq!(bytes_at(site, BYTES), before);
}

#[test]
fn a_library_that_is_loaded_later_gets_jumps_too() {
    let (engine, _alone) = engine(Config::default());
    // SAFETY: loads a library of the C library's own, which has no constructors that matter.
    let library = unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: the library is loaded.
    let function = unsafe { libc::dlsym(library, c"ldexp".as_ptr()) } as u64;
    // SAFETY: double ldexp(double, int).
    let ldexp: extern "C" fn(f64, i32) -> f64 = unsafe { std::mem::transmute(function) };
    assert_eq!(ldexp(1.5, 4), 24.0);
    let count = Count::new();
    let probe = probe(engine, function, count.clone());
    println!("ldexp: {:?}", probe.way());
    (0..100).for_each(|n| assert_eq!(ldexp(1.5, n), 1.5 * 2f64.powi(n)));
    engine.remove([probe]);
    assert_eq!((count.get(), ldexp(1.0, 1)), (100, 2.0));
}

#[test]
fn no_mapping_is_writable_and_executable_and_gates_are_used_again() {
    let (engine, _alone) = engine(Config::default());
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.lines().any(|line| line.contains("rwx")), "{maps}");
        maps.lines().filter(|line| line.contains("r-xp 00000000 00:00 0")).count()
    };
    let once = probe(engine, at(jumps_one), Count::new());
    engine.remove([once]);
    let before = mapped();
    for _ in 0..300 {
        let probe = probe(engine, at(jumps_one), Count::new());
        assert_eq!(call(at(jumps_one), 1, 1), 2);
        engine.remove([probe]);
    }
    assert_eq!(mapped(), before);
}

#[test]
fn without_jumps_and_without_an_image_the_reason_is_named() {
    let (engine, _alone) = engine(Config { jumps: false, ..Config::default() });
    let off = probe(engine, at(jumps_one), Count::new());
    assert_eq!(off.way().unwrap().no_jump, Some(NoJump::NotAsked));
    engine.remove([off]);
    engine.configure(Config::default());
    let text = kit::text(&[0x48, 0x8d, 0x04, 0x37, 0x90, 0x90, 0xc3]);
    let bare = probe(engine, text, Count::new());
    let way = bare.way().unwrap();
    assert_eq!((way.rung, way.no_jump), (Rung::Trap, Some(NoJump::NoImage)));
    assert_eq!(call(text, 1, 2), 3);
    engine.remove([bare]);
}
