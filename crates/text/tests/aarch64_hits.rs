//! Sites that trap and slots that change hands, run: under qemu-user, or on an AArch64 machine.
//!
//! The trap handler here is a test's: it finds the site, lets the area give a slot, and goes there; the trap at the
//! slot's end brings the thread back. A stale slot would give another site's result. Under qemu that cannot happen
//! whatever is flushed (it has no stale instruction cache): tests/model carries that, this one that the slots work.
//!
//! `NANOPROBE_HITS` sets the number of hits of the long test (10,000,000 by hand).
#![cfg(target_arch = "aarch64")]

use insn::Code;
use insn::aarch64::{NOP, b, gate, relocate};
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use text::arch::Hardware;
use text::arch::aarch64::{
    Area, Diverted, Flush, Maintain, Options, Port, SLOT_BYTES, Scheme, Site, TRAP, TRAP_EXIT, Way, Written,
    divert, publish,
};
use text::slots::Binding;

/// `ldp x16, x17, [sp], #32`: what an island pushes.
const POP_SCRATCH: u32 = 0xa8c2_47f0;
const PAGE: usize = 4096;
const RET: u32 = 0xd65f_03c0;
const SITES: usize = 200;
const SITE_BYTES: u64 = 8;
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Zeros that are executable and writable by one view: qemu 7.2 sees new code through the view that runs it alone.
fn map(at: u64, len: usize) -> u64 {
    let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: nothing is replaced: the address is the kernel's choice, or NOREPLACE is set.
    let got = unsafe { libc::mmap(at as *mut c_void, len, prot, flags, -1, 0) };
    assert_ne!(got, libc::MAP_FAILED);
    assert!(at == 0 || got as u64 == at);
    got as u64
}

fn unmap(at: u64, len: usize) {
    // SAFETY: the mapping is `map`'s, and each test is done with it.
    assert_eq!(unsafe { libc::munmap(at as *mut c_void, len) }, 0);
}

/// The machine's caches over a mapping of `map`'s.
fn hardware(at: u64, len: usize) -> Hardware {
    // SAFETY: the mapping is readable and writable and stays until the test ends; no reference to it is made.
    unsafe { Hardware::new(at, at, len as u64) }.unwrap()
}

fn put(machine: &Hardware, at: u64, words: &[u32]) {
    let written_at = machine.write(at, words);
    let code = Written { run_at: at, written_at, len_bytes: 4 * words.len() as u64 };
    publish(machine, Hardware::cache_type(), code, Flush::Broadcast);
}

/// What is probed, and where.
struct World {
    sites: u64,
    words: [u32; SITES],
    bindings: [Binding; SITES],
    area: Area<Hardware>,
    hits: AtomicU64,
}

static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

/// The instruction of a site, and what a call of it with `arg` returns. The second word is `ret`.
fn site(number: usize) -> (u32, fn(u64, u64) -> u64) {
    let n = number as u32;
    match number % 4 {
        0 => (0x9100_0000 | n << 10, |arg, n| arg + n), // add x0, x0, #n
        1 => (0xd280_0000 | n << 5, |_, n| n),          // mov x0, #n
        2 => (0xd100_0000 | n << 10, |arg, n| arg.wrapping_sub(n)), // sub x0, x0, #n
        // ldr w0, of the word behind the last site: the site's distance is its own.
        _ => (0x1800_0000 | (2 * (SITES as u32 - n)) << 5, |_, _| 0x1234_5678),
    }
}

impl World {
    fn new(scheme: Scheme, flush: Flush, slots: usize) -> Box<World> {
        let sites = map(0, PAGE);
        let slots_at = map(0, PAGE);
        let machine = hardware(sites, PAGE);
        let words = std::array::from_fn(|number| site(number).0);
        for number in 0..SITES {
            put(&machine, sites + number as u64 * SITE_BYTES, &[TRAP, RET]);
        }
        put(&machine, sites + SITES as u64 * SITE_BYTES, &[0x1234_5678]);
        assert!(slots as u64 * SLOT_BYTES <= PAGE as u64);
        let options = Options { run_at: slots_at, slots, scheme, flush, cache: Hardware::cache_type() };
        let area = Area::new(options, hardware(slots_at, PAGE));
        let bindings = std::array::from_fn(|_| Binding::new());
        let world = Box::new(World { sites, words, bindings, area, hits: AtomicU64::new(0) });
        WORLD.store((&raw const *world).cast_mut(), SeqCst);
        install();
        world
    }

    fn call(&self, number: usize, arg: u64) -> u64 {
        let at = self.sites + number as u64 * SITE_BYTES;
        // SAFETY: the site is code that takes and returns x0, and changes no other register that a call keeps.
        let function: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(at as *const ()) };
        function(arg)
    }

    /// A call of a site must give what the unprobed instruction gives.
    fn hit(&self, number: usize, arg: u64) {
        let got = self.call(number, arg);
        let expected = site(number).1(arg, number as u64);
        assert_eq!(got, expected, "site {number} of {arg:#x}: a stale or foreign slot");
    }

    fn on_trap(&self, context: &mut libc::mcontext_t) {
        if let Some(slot) = self.area.slot_of(context.pc) {
            context.pc = self.area.leave(slot);
            return;
        }
        let number = context.pc.wrapping_sub(self.sites) / SITE_BYTES;
        let Some(word) = self.words.get(number as usize) else { std::process::abort() };
        self.hits.fetch_add(1, Relaxed);
        match self.area.enter(*word, context.pc, &self.bindings[number as usize]) {
            Ok(entered) => context.pc = entered.addr,
            Err(_) => std::process::abort(),
        }
    }
}

fn install() {
    // SAFETY: a zeroed sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the set is this function's.
    unsafe { libc::sigfillset(&mut action.sa_mask) };
    // SAFETY: the handler is made for its context: it allocates nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) }, 0);
}

extern "C" fn on_signal(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the frame that it will restore.
    let frame = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: the world outlives all threads of its test.
    let Some(world) = (unsafe { WORLD.load(SeqCst).as_ref() }) else { std::process::abort() };
    world.on_trap(&mut frame.uc_mcontext);
}

impl Drop for World {
    fn drop(&mut self) {
        WORLD.store(std::ptr::null_mut(), SeqCst);
        unmap(self.sites, PAGE);
    }
}

fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Ten million by hand; a few seconds in CI.
fn hits() -> u64 {
    std::env::var("NANOPROBE_HITS").ok().and_then(|hits| hits.parse().ok()).unwrap_or(40_000)
}

#[test]
fn changing_slots_never_run_another_sites_instruction() {
    let _alone = alone();
    let kinds = [
        (Scheme::Dynamic, Flush::Range),
        (Scheme::Dynamic, Flush::Page),
        (Scheme::Cached, Flush::Range),
        (Scheme::Cached, Flush::Broadcast),
    ];
    for (scheme, flush) in kinds {
        let world = World::new(scheme, flush, 7);
        let began = std::time::Instant::now();
        let mut seed = 42;
        let share = hits() / kinds.len() as u64;
        for hit in 0..share {
            world.hit(next(&mut seed) % SITES, hit);
        }
        assert_eq!(world.hits.load(Relaxed), share);
        let written = world.area.times_written();
        let us = began.elapsed().as_secs_f64() * 1e6 / share as f64;
        println!("{scheme:?} {flush:?}: {share} hits, {written} slots written, {us:.1} us a hit");
        assert!(written > share * 9 / 10, "slots change hands nearly each time");
    }
}

#[test]
fn with_more_threads_than_slots_all_make_progress() {
    let _alone = alone();
    const THREADS: usize = 8;
    for scheme in [Scheme::Dynamic, Scheme::Cached] {
        let world = World::new(scheme, Flush::Range, 2);
        let share = hits() / 30;
        let done: [AtomicU64; THREADS] = Default::default();
        std::thread::scope(|scope| {
            for (thread, done) in done.iter().enumerate() {
                let world = &world;
                scope.spawn(move || {
                    let mut seed = thread as u64;
                    for hit in 0..share {
                        world.hit(next(&mut seed) % SITES, hit);
                        done.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert!(done.iter().all(|done| done.load(Relaxed) == share));
        assert_eq!(world.hits.load(Relaxed), share * THREADS as u64);
        println!(
            "{scheme:?}: {} hits, {} waits for a slot",
            share * THREADS as u64,
            world.area.times_slept()
        );
        assert!(world.area.times_slept() > 0, "nobody ever waited");
    }
}

#[test]
fn a_bound_slot_is_written_once_and_run_many_times() {
    let _alone = alone();
    let world = World::new(Scheme::Cached, Flush::Range, 100);
    for hit in 0..2000 {
        world.hit(hit % 100, hit as u64);
    }
    assert_eq!((world.hits.load(Relaxed), world.area.times_written()), (2000, 100));
}

#[test]
fn an_island_leads_to_a_far_trampoline_and_every_register_comes_back() {
    let _alone = alone();
    const NEAR: u64 = 0x20_0000_0000;
    const FAR: u64 = 0x7000_0000_0000 >> 4;
    map(NEAR, PAGE);
    map(FAR, PAGE);
    let (near, far) = (hardware(NEAR, PAGE), hardware(FAR, PAGE));
    // mov x0, #77; ret. Behind it room for the island and the gate.
    let (mov, island_at, gate_at) = (0xd280_09a0u32, NEAR + 0x100, NEAR + 0x140);
    let bytes: Vec<u8> = [mov, RET].iter().flat_map(|word| word.to_le_bytes()).collect();
    let site = Site {
        code: Code { base: NEAR, bytes: &bytes },
        addr: NEAR,
        trampoline: FAR,
        island: Some(island_at),
        is_guarded: false,
    };
    let diverted = divert(&site).unwrap();
    let Way::Island { at, words } = diverted.way else { panic!("{diverted:?}") };
    // The trampoline: its count, in x17 by x16, which the island has brought here; then x16 and x17 back, the copy,
    // and the way back by the gate.
    let counter = FAR + 0x800;
    let [load, add, store, pop] = [0xf944_0211, 0x9100_0631, 0xf904_0211, POP_SCRATCH];
    put(&far, FAR, &[load, add, store, pop]);
    let copy_at = FAR + 16;
    let copied = relocate(mov, NEAR, copy_at, &mut |_| Some(gate_at)).unwrap();
    put(&far, copy_at, copied.words());
    put(&near, gate_at, &gate(gate_at, NEAR + 4).unwrap());
    put(&near, at, &words);
    put(&near, NEAR, &[diverted.new, RET]);
    let (mut x0, mut x16, mut x17) = (1u64, 0x1616_1616_1616_1616u64, 0x1717_1717_1717_1717u64);
    for _ in 0..3 {
        // SAFETY: the site returns to x30 and changes x0 alone, which the asserts below hold it to.
        unsafe {
            std::arch::asm!("blr x9", in("x9") NEAR, inout("x0") x0, inout("x16") x16, inout("x17") x17, out("x30") _);
        }
        assert_eq!((x0, x16, x17), (77, 0x1616_1616_1616_1616, 0x1717_1717_1717_1717));
    }
    // SAFETY: the word is in the mapping, and no thread changes it now.
    assert_eq!(unsafe { (counter as *const u64).read() }, 3);
    unmap(NEAR, PAGE);
    unmap(FAR, PAGE);
}

#[test]
fn the_processor_tells_its_lines_and_accepts_the_maintenance_of_them() {
    let cache = Hardware::cache_type();
    assert!(
        (16..=2048).contains(&cache.data_line_bytes()) && (16..=2048).contains(&cache.fetch_line_bytes())
    );
    let at = map(0, 2 * PAGE);
    let machine = hardware(at, 2 * PAGE);
    for flush in [Flush::Range, Flush::Page, Flush::Broadcast] {
        let code = Written { run_at: at + 100, written_at: at + 100, len_bytes: 400 };
        publish(&machine, cache, code, flush);
    }
    machine.serialise_all();
    assert!(machine.holds(at, &[0; 4]) && !machine.holds(at, &[TRAP_EXIT]));
    unmap(at, 2 * PAGE);
}

#[test]
fn a_nop_is_armed_and_disarmed_while_threads_run_it() {
    let _alone = alone();
    let at = map(0, PAGE);
    let machine = hardware(at, PAGE);
    let (site, trampoline) = (at, at + 0x400);
    put(&machine, site, &[NOP, RET]);
    // add x0, x0, #1; b behind the site
    put(&machine, trampoline, &[0x9100_0400, b(trampoline + 4, site + 4).unwrap()]);
    let bytes: Vec<u8> = [NOP, RET].iter().flat_map(|word| word.to_le_bytes()).collect();
    let code = Code { base: site, bytes: &bytes };
    let diverted = divert(&Site { code, addr: site, trampoline, island: None, is_guarded: false }).unwrap();
    assert_eq!((diverted.way, diverted.needs_stop), (Way::Branch, false));
    let (is_over, calls, probed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // SAFETY: the code takes and returns x0 and changes nothing else.
                let function: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(site as *const ()) };
                while !is_over.load(Relaxed) {
                    let got = function(7);
                    assert!(got == 7 || got == 8, "{got}");
                    calls.fetch_add(1, Relaxed);
                    probed.fetch_add(got - 7, Relaxed);
                }
            });
        }
        let progress = |counter: &AtomicU64| {
            let before = counter.load(Relaxed);
            while counter.load(Relaxed) < before + 4 {
                std::thread::yield_now();
            }
        };
        for _ in 0..300 {
            diverted.arm(site, &machine, Hardware::cache_type()).unwrap();
            progress(&probed);
            diverted.disarm(site, &machine, Hardware::cache_type()).unwrap();
            progress(&calls);
        }
        is_over.store(true, Relaxed);
    });
    let (calls, probed) = (calls.load(Relaxed), probed.load(Relaxed));
    println!("{calls} calls, {probed} of them probed");
    assert!(probed >= 1200 && calls > probed);
    unmap(at, PAGE);
}

/// How a call of guarded code ended: with its value, or the signal.
fn call_guarded(at: u64) -> Result<u64, i32> {
    CAUGHT.store(0, SeqCst);
    for signal in [libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: a zeroed sigaction is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_guard as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler is made for its context.
        assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
    }
    let mut x0 = 5u64;
    // SAFETY: the code returns to x30, or the handler does; it changes x0, x16 and x17 alone.
    unsafe {
        std::arch::asm!("blr x9", in("x9") at, inout("x0") x0, out("x16") _, out("x17") _, out("x30") _);
    }
    match CAUGHT.load(SeqCst) {
        0 => Ok(x0),
        signal => Err(signal as i32),
    }
}

static CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_guard(signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the frame that it will restore.
    let frame = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    CAUGHT.store(signal as u64, SeqCst);
    frame.uc_mcontext.pc = frame.uc_mcontext.regs[30];
    frame.uc_mcontext.pstate &= !(3 << 10);
}

#[test]
fn in_guarded_pages_a_landing_pad_may_become_a_trap_and_no_branch_and_gates_lead_back() {
    let _alone = alone();
    const BTI_C: u32 = 0xd503_245f;
    const ADD: u32 = 0x9100_0400;
    const GUARDED: u64 = 0x21_0000_0000;
    const FAR: u64 = 0x0700_0000_0000;
    // The page of the code, and one of ours behind it for gates.
    map(GUARDED, 2 * PAGE);
    map(FAR, PAGE);
    let (near, far) = (hardware(GUARDED, 2 * PAGE), hardware(FAR, PAGE));
    let function = [BTI_C, ADD, RET];
    let bytes: Vec<u8> = function.iter().flat_map(|word| word.to_le_bytes()).collect();
    let guard = |is_on: bool| {
        let prot = libc::PROT_READ | libc::PROT_EXEC | if is_on { 0x10 } else { libc::PROT_WRITE };
        // SAFETY: the page is this test's, and nothing runs there now.
        assert_eq!(unsafe { libc::mprotect(GUARDED as *mut c_void, PAGE, prot) }, 0);
    };
    let run = |words: &[u32]| {
        guard(false);
        put(&near, GUARDED, words);
        guard(true);
        call_guarded(GUARDED)
    };
    assert_eq!(run(&function), Ok(6));
    assert_eq!(run(&[ADD, ADD, RET]), Err(libc::SIGILL), "the page is guarded");
    let ways = |addr, is_guarded| {
        let code = Code { base: GUARDED, bytes: &bytes };
        divert(&Site { code, addr, trampoline: GUARDED + 0x1100, island: None, is_guarded }).unwrap()
    };
    // The landing pad: a branch in its place is what a call may not land on.
    assert_eq!(run(&[ways(GUARDED, false).new, ADD, RET]), Err(libc::SIGILL));
    assert_eq!(
        (ways(GUARDED, true).way, run(&[ways(GUARDED, true).new, ADD, RET])),
        (Way::Trap, Err(libc::SIGTRAP))
    );
    // The instruction behind it: out by a branch and an island, back by a gate.
    let (island_at, gate_at) = (GUARDED + 0x1200, GUARDED + 0x1240);
    let code = Code { base: GUARDED, bytes: &bytes };
    let site = Site { code, addr: GUARDED + 4, trampoline: FAR, island: Some(island_at), is_guarded: true };
    let Diverted { new, way: Way::Island { words, .. }, .. } = divert(&site).unwrap() else { panic!() };
    put(&near, island_at, &words);
    put(&near, gate_at, &gate(gate_at, GUARDED + 8).unwrap());
    put(&far, FAR, &[POP_SCRATCH]);
    let copied = relocate(ADD, GUARDED + 4, FAR + 4, &mut |_| Some(gate_at)).unwrap();
    put(&far, FAR + 4, copied.words());
    assert_eq!(run(&[BTI_C, new, RET]), Ok(6));
    unmap(GUARDED, 2 * PAGE);
    unmap(FAR, PAGE);
}

#[test]
fn a_fault_in_a_slot_is_traced_to_the_probed_instruction() {
    let _alone = alone();
    let world = World::new(Scheme::Cached, Flush::Range, 3);
    // A literal load of nothing, which takes x16: its site is far from what it reads, and both from the slots.
    let (from, word) = (0x0300_0000_1000, 0x9c00_0040);
    let entered = world.area.enter(word, from, &Binding::new()).unwrap();
    CAUGHT.store(entered.addr, SeqCst);
    // SAFETY: a zeroed sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler is made for its context.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) }, 0);
    let (mut x16, mut x17) = (16u64, 17u64);
    // SAFETY: the slot faults, and the handler returns to x30 with x16, x17 and the stack pointer as they were.
    unsafe {
        std::arch::asm!("blr x9", in("x9") entered.addr, inout("x16") x16, inout("x17") x17, out("x30") _)
    };
    assert_eq!((x16, x17, CAUGHT.load(SeqCst)), (16, 17, from));
    assert_eq!(world.area.leave(entered.slot), from + 4);
}

/// Takes a thread out of its slot, as a handler would that then shows the program its fault.
extern "C" fn on_fault(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the frame that it will restore.
    let frame = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let context = &mut frame.uc_mcontext;
    // SAFETY: the world outlives its test.
    let Some(world) = (unsafe { WORLD.load(SeqCst).as_ref() }) else { std::process::abort() };
    let Some((site, origin)) = world.area.origin_of(context.pc) else { std::process::abort() };
    if origin.saved == insn::aarch64::Saved::Scratch {
        // SAFETY: the slot has pushed two registers, and the thread stands behind the push.
        let [x16, x17] = unsafe { (context.sp as *const [u64; 2]).read() };
        (context.regs[16], context.regs[17]) = (x16, x17);
        context.sp += insn::aarch64::SCRATCH_BYTES;
    }
    CAUGHT.store(if origin.leads_to.is_none() { site } else { 0 }, SeqCst);
    context.pc = context.regs[30];
}
