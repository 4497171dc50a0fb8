//! The program's signals while it is probed: what its handlers see, and that nothing of its own is lost.

mod kit;

use kit::{Count, call, engine, mixed, text};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use sys::signal::{Context, Info, sig};
use trap::{Config, Scheme};

trap::interpose!();

const SCHEMES: [Scheme; 2] = [Scheme::Cached, Scheme::Dynamic];

static SEEN_RIP: AtomicU64 = AtomicU64::new(0);
static SEEN_ADDR: AtomicU64 = AtomicU64::new(0);
static CALLED: AtomicU64 = AtomicU64::new(0);
static GOOD: AtomicU64 = AtomicU64::new(0);

/// Sets a handler as any C program does; through the interposed function.
fn set_handler(signal: i32, handler: usize, flags: i32) {
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags | libc::SA_SIGINFO;
    // SAFETY: the handlers of this file store to atomics and change their context alone.
    assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
}

/// Notes what it is shown; makes rdi good and rcx 1, and returns to the same instruction.
extern "C" fn on_fault(_: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's, or the engine's in its place.
    let context = unsafe { &mut *context };
    SEEN_RIP.store(context.rip(), SeqCst);
    // SAFETY: likewise.
    SEEN_ADDR.store(unsafe { &*info }.addr, SeqCst);
    CALLED.fetch_add(1, SeqCst);
    let mut general = context.general();
    general[7] = GOOD.as_ptr() as u64;
    general[1] = 1;
    context.set_general(&general);
}

#[test]
fn a_fault_in_a_slot_shows_the_probed_address_and_the_instruction_is_run_again() {
    for scheme in SCHEMES {
        let (engine, _alone) = engine(Config { scheme, ..Config::default() });
        set_handler(libc::SIGSEGV, on_fault as *const () as usize, 0);
        GOOD.store(4711, SeqCst);
        // nop; mov rax,[rdi]; ret
        let at = text(&[0x90, 0x48, 0x8b, 0x07, 0xc3]);
        let count = Count::new();
        // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
        let probe = unsafe { engine.probe(at + 1, count.clone()) }.unwrap();
        for n in 1..=20 {
            CALLED.store(0, SeqCst);
            assert_eq!(call(at, 0x10, 0), 4711);
            let seen = (CALLED.load(SeqCst), SEEN_RIP.load(SeqCst), SEEN_ADDR.load(SeqCst));
            assert_eq!(seen, (1, at + 1, 0x10), "{scheme:?}");
            assert_eq!(count.get(), n, "the consumer is called once");
        }
        engine.remove([probe]);
        assert_eq!(engine.in_slots(), 0);
    }
}

#[test]
fn a_division_by_zero_in_a_slot_has_the_probed_address_in_both_places() {
    let (engine, _alone) = engine(Config::default());
    set_handler(libc::SIGFPE, on_fault as *const () as usize, 0);
    // mov eax,100; xor edx,edx; mov ecx,esi; div ecx; ret
    let at = text(&[0xb8, 100, 0, 0, 0, 0x31, 0xd2, 0x89, 0xf1, 0xf7, 0xf1, 0xc3]);
    let count = Count::new();
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let probe = unsafe { engine.probe(at + 9, count.clone()) }.unwrap();
    assert_eq!(call(at, 0, 7), 14);
    CALLED.store(0, SeqCst);
    assert_eq!(call(at, 0, 0), 100, "the handler made the divisor 1");
    let seen = (CALLED.load(SeqCst), SEEN_RIP.load(SeqCst), SEEN_ADDR.load(SeqCst), count.get());
    assert_eq!(seen, (1, at + 9, at + 9, 2));
    engine.remove([probe]);
}

/// Runs `body` in a child of fork; how that ended.
fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `body` and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        body();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(99) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    status
}

#[test]
fn without_a_handler_a_fault_in_a_slot_and_a_foreign_breakpoint_kill_as_ever() {
    let (engine, _alone) = engine(Config::default());
    let at = text(&[0x48, 0x8b, 0x07, 0xc3]);
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let probe = unsafe { engine.probe(at, Count::new()) }.unwrap();
    let fault = in_child(|| {
        // SAFETY: the default action.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        call(at, 0x10, 0);
    });
    assert!(libc::WIFSIGNALED(fault) && libc::WTERMSIG(fault) == libc::SIGSEGV, "{fault:#x}");
    let trap = in_child(|| {
        // SAFETY: the default action.
        unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
        // SAFETY: ends this child.
        unsafe { std::arch::asm!("int3") };
    });
    assert!(libc::WIFSIGNALED(trap) && libc::WTERMSIG(trap) == libc::SIGTRAP, "{trap:#x}");
    engine.remove([probe]);
}

static LOW: AtomicU64 = AtomicU64::new(0);
static HIGH: AtomicU64 = AtomicU64::new(0);
static OUTSIDE: AtomicU64 = AtomicU64::new(0);
static INSIDE: AtomicU64 = AtomicU64::new(0);
static TICKS: AtomicU64 = AtomicU64::new(0);

/// Looks where the thread was.
extern "C" fn on_tick(_: i32, _: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's.
    let rip = unsafe { &*context }.rip();
    TICKS.fetch_add(1, SeqCst);
    if (LOW.load(SeqCst)..HIGH.load(SeqCst)).contains(&rip) {
        INSIDE.fetch_add(1, SeqCst);
    }
    if is_slot(rip) {
        OUTSIDE.fetch_add(1, SeqCst);
    }
}

static SLOTS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

fn is_slot(rip: u64) -> bool {
    SLOTS.chunks(2).any(|range| (range[0].load(SeqCst)..range[1].load(SeqCst)).contains(&rip))
}

/// Notes where slots are mapped executable.
fn find_slots() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("nanoprobe-xol"));
    let mut found = 0;
    for (line, place) in
        ours.filter(|line| line.split_whitespace().nth(1).unwrap().contains('x')).zip(SLOTS.chunks(2))
    {
        let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        place[0].store(u64::from_str_radix(start, 16).unwrap(), SeqCst);
        place[1].store(u64::from_str_radix(end, 16).unwrap(), SeqCst);
        found += 1;
    }
    found
}

#[test]
fn signals_during_steps_see_the_programs_addresses_and_no_hit_is_lost_or_doubled() {
    for scheme in SCHEMES {
        let (engine, _alone) = engine(Config { scheme, always_slot: true, ..Config::default() });
        set_handler(libc::SIGUSR1, on_tick as *const () as usize, libc::SA_RESTART);
        // rep movsb takes long enough for a signal to come in the middle; then lea eax,[rdi+rsi]; ret
        let mut data = vec![0u8; 1 << 16];
        let (bytes, starts) = mixed();
        let at = text(&bytes);
        let rep = text(&[0x48, 0x89, 0xf9, 0x48, 0x89, 0xf7, 0xf3, 0xa4, 0x48, 0x89, 0xc8, 0xc3]);
        let (count, repeats) = (Count::new(), Count::new());
        let mut probes: Vec<_> =
            // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
            starts.iter().map(|start| unsafe { engine.probe(at + *start as u64, count.clone()) }.unwrap()).collect();
        // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
        probes.push(unsafe { engine.probe(rep + 6, repeats.clone()) }.unwrap());
        LOW.store(at, SeqCst);
        HIGH.store(at + bytes.len() as u64, SeqCst);
        assert!(find_slots() > 0);
        let settled = engine.counts().settled;
        for counter in [&TICKS, &INSIDE, &OUTSIDE] {
            counter.store(0, SeqCst);
        }
        // SAFETY: the calling thread's own id.
        let me = unsafe { libc::pthread_self() };
        let done = AtomicBool::new(false);
        let place = data.as_mut_ptr() as u64;
        let rounds = std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(SeqCst) {
                    // SAFETY: the thread outlives this scope.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                    (0..2000).for_each(|_| std::hint::spin_loop());
                }
            });
            let end = std::time::Instant::now() + std::time::Duration::from_secs(2);
            let mut rounds = 0;
            while std::time::Instant::now() < end {
                rounds += 1;
                assert_eq!(call(at, rounds, 5), 3 * (rounds + 5) + 1);
                // copies 60,000 bytes from rsi = place to rdi = place: mov rcx,rdi first
                assert_eq!(call(rep, 60_000, place), 0, "rcx is 0 at the end");
            }
            done.store(true, SeqCst);
            rounds
        });
        engine.remove(probes);
        let (ticks, outside) = (TICKS.load(SeqCst), OUTSIDE.load(SeqCst));
        let settled = engine.counts().settled - settled;
        println!("{scheme:?}: {rounds} rounds, {ticks} signals, {settled} of them in slots");
        assert_eq!((count.get(), repeats.get()), (rounds * (starts.len() as u64 + 2), rounds));
        assert!(ticks > 10 && settled > 5, "{ticks} {settled}");
        assert_eq!(outside, 0, "a handler saw an address of ours");
        assert_eq!(engine.in_slots(), 0);
    }
}

/// Sends the thread to the code's end, as siglongjmp would.
extern "C" fn on_leave(_: i32, _: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's.
    let context = unsafe { &mut *context };
    context.set_rip(GOOD.load(SeqCst));
    CALLED.fetch_add(1, SeqCst);
}

#[test]
fn a_handler_that_does_not_come_back_leaves_no_slot_taken() {
    for scheme in SCHEMES {
        let (engine, _alone) = engine(Config { scheme, slot_limit: 1, ..Config::default() });
        set_handler(libc::SIGSEGV, on_leave as *const () as usize, 0);
        let at = text(&[0x48, 0x8b, 0x07, 0x31, 0xc0, 0xc3]);
        GOOD.store(at + 3, SeqCst);
        // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
        let probe = unsafe { engine.probe(at, Count::new()) }.unwrap();
        // With one slot, a second step would wait for ever if the first had kept it.
        (0..5).for_each(|_| assert_eq!(call(at, 0x10, 0), 0));
        assert_eq!(engine.in_slots(), 0);
        engine.remove([probe]);
    }
}

static TRAPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_trap(_: i32, _: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's, or the engine's in its place.
    let rip = unsafe { &*context }.rip();
    TRAPS.fetch_add(1, SeqCst);
    if is_slot(rip) {
        OUTSIDE.fetch_add(1, SeqCst);
    }
}

#[test]
fn the_programs_own_sigaction_and_sigprocmask_take_no_probe_away() {
    let (engine, _alone) = engine(Config::default());
    let (bytes, starts) = mixed();
    let at = text(&bytes);
    let count = Count::new();
    let probes: Vec<_> =
        // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
        starts.iter().map(|start| unsafe { engine.probe(at + *start as u64, count.clone()) }.unwrap()).collect();
    TRAPS.store(0, SeqCst);
    set_handler(libc::SIGTRAP, on_trap as *const () as usize, 0);
    // SAFETY: all zeros is a valid sigaction, which the call fills.
    let mut told: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: reads the action.
    unsafe { libc::sigaction(libc::SIGTRAP, std::ptr::null(), &mut told) };
    assert_eq!(told.sa_sigaction, on_trap as *const () as usize, "it is told what it set");
    // SAFETY: an empty set, filled by the next call.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is a set.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: as above.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) };
    let got = call(at, 2, 2);
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &all, std::ptr::null_mut()) };
    assert_eq!((got, TRAPS.load(SeqCst)), (13, 0));
    assert_eq!(count.get(), starts.len() as u64 + 2);
    // SAFETY: the handler is set.
    unsafe { std::arch::asm!("int3") };
    // SAFETY: likewise.
    unsafe { libc::raise(libc::SIGTRAP) };
    assert_eq!(TRAPS.load(SeqCst), 2, "a breakpoint of its own, and a signal that it sent");
    // SAFETY: the default action again.
    unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
    assert_eq!(call(at, 2, 3), 16);
    engine.remove(probes);
}

#[test]
fn a_program_that_steps_itself_gets_a_trap_for_each_instruction() {
    for always_slot in [false, true] {
        let (engine, _alone) = engine(Config { always_slot, ..Config::default() });
        set_handler(libc::SIGTRAP, on_trap as *const () as usize, 0);
        find_slots();
        // pushf; or dword [rsp],0x100; popf; nop; push rdi; lea eax,[rdi+1]; pop rdi; pushf; and [rsp],~0x100; popf; ret
        let bytes: &[&[u8]] = &[
            &[0x9c],
            &[0x81, 0x0c, 0x24, 0, 1, 0, 0],
            &[0x9d],
            &[0x90],
            &[0x57],
            &[0x8d, 0x47, 1],
            &[0x5f],
            &[0x9c],
            &[0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff],
            &[0x9d],
            &[0xc3],
        ];
        let at = text(&bytes.concat());
        OUTSIDE.store(0, SeqCst);
        TRAPS.store(0, SeqCst);
        assert_eq!(call(at, 4, 0), 5);
        let unprobed = TRAPS.swap(0, SeqCst);
        let count = Count::new();
        let starts = [9, 10, 11, 14];
        find_slots();
        let probes: Vec<_> =
            // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
            starts.iter().map(|start| unsafe { engine.probe(at + start, count.clone()) }.unwrap()).collect();
        find_slots();
        assert_eq!(call(at, 4, 0), 5);
        engine.remove(probes);
        assert_eq!((TRAPS.load(SeqCst), count.get()), (unprobed, 4), "always_slot {always_slot}");
        assert!(unprobed > 5, "{unprobed}");
        assert_eq!(OUTSIDE.load(SeqCst), 0);
        // SAFETY: the default action again.
        unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
    }
}

#[test]
fn a_push_to_a_bad_stack_faults_as_the_push_itself() {
    let (engine, _alone) = engine(Config::default());
    // mov r8,rsp; mov rsp,rdi; push rsi; mov rsp,r8; mov eax,9; ret
    let at = text(&[0x49, 0x89, 0xe0, 0x48, 0x89, 0xfc, 0x56, 0x4c, 0x89, 0xc4, 0xb8, 9, 0, 0, 0, 0xc3]);
    extern "C" fn on_bad_stack(_: i32, info: *mut Info, context: *mut Context) {
        // SAFETY: the kernel's.
        let context = unsafe { &mut *context };
        SEEN_RIP.store(context.rip(), SeqCst);
        // SAFETY: likewise.
        SEEN_ADDR.store(unsafe { &*info }.addr, SeqCst);
        context.set_rip(context.rip() + 1);
    }
    set_handler(libc::SIGSEGV, on_bad_stack as *const () as usize, libc::SA_ONSTACK);
    let count = Count::new();
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let probe = unsafe { engine.probe(at + 6, count.clone()) }.unwrap();
    let mut room = vec![0u8; 1 << 16];
    let stack = libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
    // SAFETY: all zeros is a valid stack_t, which the call fills.
    let mut old: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: `room` outlives its use as a stack, which ends below.
    assert_eq!(unsafe { libc::sigaltstack(&stack, &mut old) }, 0);
    assert_eq!(call(at, 0x2000, 5), 9);
    // SAFETY: what was set before.
    unsafe { libc::sigaltstack(&old, std::ptr::null_mut()) };
    engine.remove([probe]);
    assert_eq!((SEEN_RIP.load(SeqCst), SEEN_ADDR.load(SeqCst), count.get()), (at + 6, 0x1ff8, 1));
    assert_eq!((engine.in_slots(), sig::SEGV), (0, libc::SIGSEGV));
}
