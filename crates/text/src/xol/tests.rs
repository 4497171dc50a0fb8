use super::*;
use crate::xol::area::Broken;
use insn::{RSP, Registers, SlotCode};
use machine::{CODE, COPY, DATA_LEN, Exit, FLAGS, Machine, STACK, STACK_LEN, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[path = "../../../insn/tests/differential/machine.rs"]
#[allow(dead_code, clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]
mod machine;

const SCHEMES: [Scheme; 2] = [Scheme::Cached, Scheme::Dynamic];

/// An area near code that returns at once, and that code: `ret` all over.
struct World {
    area: Area,
    code: u64,
}

impl World {
    fn new(options: Options) -> World {
        let rets = ret_page();
        World { area: Area::near(rets, options).unwrap(), code: rets }
    }

    fn of(scheme: Scheme) -> World {
        World::new(Options { scheme, ..Options::default() })
    }

    /// `lea rax,[rdi+add]`, as if it stood at its own place of the code.
    fn adder(&self, add: u32) -> SlotCode {
        let at = self.code + u64::from(add % 256) * 8;
        SlotCode::of(&[&[0x48, 0x8d, 0x87][..], &add.to_le_bytes()].concat(), at).unwrap()
    }
}

/// A page of `ret`, executable.
fn ret_page() -> u64 {
    use sys::mapping as mm;
    let fd = sys::memfd(c"rets", 4096).unwrap();
    let view = mm::SharedMapping::of_file(fd, 4096).unwrap();
    // SAFETY: the view is 4096 bytes and nobody executes it yet.
    unsafe { view.base().write_bytes(0xc3, 4096) };
    // SAFETY: a free address.
    let at = unsafe { mm::map(0, 4096, mm::PROT_READ | mm::PROT_EXEC, mm::MAP_SHARED, fd) }.unwrap();
    sys::close(fd);
    at
}

/// Calls a slot with `value` in rdi; what it leaves in rax.
fn call(slot: u64, value: u64) -> u64 {
    let out: u64;
    // SAFETY: the slot adds to rdi, and the code behind it returns; the stack below the red zone is used.
    unsafe {
        std::arch::asm!("sub rsp, 256", "call {0}", "add rsp, 256", in(reg) slot, inout("rdi") value => _,
            out("rax") out, clobber_abi("C"))
    };
    out
}

fn hit(world: &World, code: &SlotCode, binding: &Binding, value: u64) -> u64 {
    let enter = || world.area.enter(code, binding);
    call(enter().unwrap_or_else(|| world.area.wait(enter)), value)
}

#[test]
fn an_area_lies_near_and_is_never_writable_and_executable() {
    for scheme in SCHEMES {
        let world = World::new(Options { scheme, pages: 2, ..Options::default() });
        assert!(world.area.code.abs_diff(world.code) < 1 << 31);
        assert_eq!(world.area.slots(), 62, "31 of a page");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ours: Vec<&str> = maps.lines().filter(|line| line.contains("nanoprobe-xol")).collect();
        assert!(ours.len() >= 2, "{maps}");
        for line in ours {
            let rights = line.split_whitespace().nth(1).unwrap();
            assert!(!(rights.contains('w') && rights.contains('x')), "{line}");
        }
    }
}

#[test]
fn a_cached_slot_is_written_once_and_a_dynamic_one_for_each_hit() {
    for (scheme, written) in [(Scheme::Cached, 1), (Scheme::Dynamic, 100)] {
        let world = World::of(scheme);
        let (code, binding) = (world.adder(5), Binding::new());
        for n in 0..100 {
            assert_eq!(hit(&world, &code, &binding, n), n + 5);
        }
        assert_eq!(world.area.counts(), (written, 0), "{scheme:?}");
        assert_eq!(world.area.users(), 0);
    }
}

#[test]
fn the_slot_used_longest_ago_goes_to_the_next_probe() {
    let world = World::of(Scheme::Cached);
    let probes: Vec<_> = (0..32).map(|n| (world.adder(n), Binding::new())).collect();
    for (code, binding) in &probes[..31] {
        hit(&world, code, binding, 0);
    }
    hit(&world, &probes[0].0, &probes[0].1, 0); // so that number 1 is the oldest
    hit(&world, &probes[31].0, &probes[31].1, 0);
    let written = world.area.counts().0;
    hit(&world, &probes[0].0, &probes[0].1, 0);
    assert_eq!(world.area.counts().0, written, "number 0 kept its slot");
    hit(&world, &probes[1].0, &probes[1].1, 0);
    assert_eq!(world.area.counts().0, written + 1, "number 1 lost it");
}

#[test]
fn a_slot_that_a_thread_is_in_is_not_given_to_another_probe() {
    for (broken, want) in [(None, None), (Some(Broken::RecycleInUse), Some(()))] {
        let world = World::new(Options { scheme: Scheme::Cached, broken, ..Options::default() });
        let probes: Vec<_> = (0..32).map(|n| (world.adder(n), Binding::new())).collect();
        let taken: Vec<u64> =
            probes[..31].iter().map(|(code, binding)| world.area.enter(code, binding).unwrap()).collect();
        let last = world.area.enter(&probes[31].0, &probes[31].1);
        assert_eq!(last.map(|_| ()), want, "{broken:?}");
        if broken.is_none() {
            for (n, slot) in taken.iter().enumerate() {
                assert_eq!(call(*slot, 1000), 1000 + n as u64);
            }
        }
    }
}

#[test]
fn more_threads_than_slots_all_make_progress() {
    for scheme in SCHEMES {
        let world = World::new(Options { scheme, limit: 3, ..Options::default() });
        let total = AtomicU64::new(0);
        std::thread::scope(|s| {
            for thread in 0..24u32 {
                let (world, total) = (&world, &total);
                s.spawn(move || {
                    for n in 0..2000u32 {
                        let add = (thread * 31 + n) % 200;
                        let got = hit(world, &world.adder(add), &Binding::new(), 7);
                        assert_eq!(got, 7 + u64::from(add), "a stale instruction");
                        total.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(total.load(SeqCst), 48_000);
        assert_eq!(world.area.users(), 0);
    }
}

/// Ends the second thread.
const OVER: u32 = u32::MAX;

/// One thread leaves the only slot at the moment that another comes; false if the other sleeps for ever.
fn rounds_without_a_lost_wakeup(scheme: Scheme, broken: Option<Broken>, for_ms: u64) -> bool {
    let world: &'static World =
        Box::leak(Box::new(World::new(Options { scheme, limit: 1, broken, ..Options::default() })));
    let turns: &'static [AtomicU32; 2] = Box::leak(Box::default());
    let (code, binding) = (world.adder(1), Binding::new());
    std::thread::spawn(move || {
        let (code, binding) = (world.adder(2), Binding::new());
        for round in 1.. {
            let mut turn = 0;
            while turn != round {
                turn = turns[0].load(SeqCst);
                if turn == OVER {
                    return;
                }
                std::hint::spin_loop();
            }
            assert_eq!(hit(world, &code, &binding, 40), 42);
            turns[1].store(round, SeqCst);
        }
    });
    let over = Instant::now() + Duration::from_millis(for_ms);
    let mut round = 0;
    while Instant::now() < over {
        round += 1;
        let slot = world.area.enter(&code, &binding).unwrap();
        turns[0].store(round, SeqCst);
        (0..round % 40).for_each(|_| std::hint::spin_loop());
        call(slot, 0);
        let end = Instant::now() + Duration::from_secs(3);
        while turns[1].load(SeqCst) != round {
            if Instant::now() > end {
                println!("{broken:?} {scheme:?}: asleep for ever in round {round}");
                // The sleeper is let go.
                turns[0].store(OVER, SeqCst);
                world.area.control().seq.fetch_add(1, SeqCst);
                let _ = sys::futex_wake(&world.area.control().seq, 1);
                return false;
            }
            std::hint::spin_loop();
        }
    }
    turns[0].store(OVER, SeqCst);
    println!("{broken:?} {scheme:?}: {round} rounds");
    true
}

#[test]
fn who_waits_for_a_slot_is_woken() {
    for scheme in SCHEMES {
        assert!(rounds_without_a_lost_wakeup(scheme, None, 1000), "{scheme:?}");
        assert!(!rounds_without_a_lost_wakeup(scheme, Some(Broken::LostWakeup), 60_000), "{scheme:?}");
    }
}

/// True if each entry follows a synchronisation of all that was written there before.
fn is_in_order(events: &[Event]) -> bool {
    let mut pending = std::collections::BTreeMap::new();
    events.iter().all(|event| match *event {
        Event::Wrote { number, len } => {
            pending.insert(number, len);
            true
        }
        Event::Synchronised { number, len, .. } => {
            if pending.get(&number).is_some_and(|written| *written <= len) {
                pending.remove(&number);
            }
            true
        }
        Event::Entered { number } => !pending.contains_key(&number),
    })
}

#[test]
fn no_slot_is_entered_between_its_write_and_its_synchronisation() {
    for scheme in SCHEMES {
        for sync in [Sync::Range, Sync::Broadcast] {
            for broken in [None, Some(Broken::NoSync)] {
                let journal = Arc::new(Journal::default());
                let options =
                    Options { scheme, sync, broken, limit: 4, journal: Some(journal.clone()), pages: 1 };
                let world = World::new(options);
                for n in 0..100 {
                    hit(&world, &world.adder(n), &Binding::new(), 0);
                }
                let events = journal.take();
                assert!(events.len() > 200, "{}", events.len());
                assert_eq!(is_in_order(&events), broken.is_none(), "{scheme:?} {sync:?} {broken:?}");
            }
        }
    }
}

/// Runs `add rdi,rsi` in a slot near the machine's code; stops at an int3 in the release routine, if one is asked for.
fn run_in_slot(machine: &mut Machine, area: &Area, start: &State, stop: Option<usize>) -> Exit {
    let code = SlotCode::of(&INSN, SITE).unwrap();
    let routine = area.release.bytes(0).to_vec();
    if let Some(stop) = stop {
        let mut broken = routine.clone();
        broken[stop] = 0xcc;
        area.write(0, &broken);
    }
    let slot = area.enter(&code, &Binding::new()).unwrap();
    // jmp [rip]
    let jump = [&[0xff, 0x25, 0, 0, 0, 0][..], &slot.to_le_bytes()].concat();
    let (data, stack) = (vec![0; DATA_LEN], pattern());
    let exit = machine.run(COPY, &jump, start, &data, &stack);
    area.write(0, &routine);
    exit
}

const SITE: u64 = CODE + 0x400;
const INSN: [u8; 3] = [0x48, 0x01, 0xf7];

fn pattern() -> Vec<u8> {
    (0..STACK_LEN).map(|n| (n * 7 + n / 256) as u8).collect()
}

fn start(seed: u64) -> State {
    let mut regs = std::array::from_fn(|n| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed);
    regs[RSP] = STACK + 0x1000;
    let xmm = std::array::from_fn(|n| n as u8);
    State { regs, flags: seed.wrapping_mul(0xabcd_1234_5678_9abd) >> 17 & FLAGS & !0x400, xmm, wide: vec![] }
}

fn check_same(want: &Exit, got: &Registers, stack: &[u8], what: &str) {
    assert_eq!(got.general, want.state.regs, "{what}");
    assert_eq!(got.flags & FLAGS, want.state.flags, "{what}: flags {:#x}", got.flags & FLAGS);
    assert_eq!(got.rip, want.rip, "{what}");
    // The red zone and all above.
    assert_eq!(stack[0x1000 - 128..], want.stack[0x1000 - 128..], "{what}");
}

#[test]
fn registers_flags_and_red_zone_survive_and_a_thread_is_settled_from_every_instruction() {
    let mut machine = Machine::new();
    let mut settled = 0;
    for scheme in SCHEMES {
        let area = Area::near(SITE, Options { scheme, ..Options::default() }).unwrap();
        let starts: Vec<usize> = area.release.starts().collect();
        for seed in 0..20 {
            let start = start(seed);
            let want = machine.run(SITE, &INSN, &start, &vec![0; DATA_LEN], &pattern());
            assert_eq!(want.rip, SITE + 3);
            for waiters in [0, 1] {
                area.control().waiters.store(waiters, SeqCst);
                let exit = run_in_slot(&mut machine, &area, &start, None);
                let regs = Registers { general: exit.state.regs, flags: exit.state.flags, rip: exit.rip };
                check_same(&want, &regs, &exit.stack, "run through");
                assert_eq!(exit.fx, want.fx);
                assert_eq!(area.users(), 0);
                for stop in &starts {
                    let exit = run_in_slot(&mut machine, &area, &start, Some(*stop));
                    let mut regs =
                        Registers { general: exit.state.regs, flags: exit.state.flags, rip: exit.rip };
                    if exit.rip != area.code + *stop as u64 {
                        assert_eq!((exit.rip, waiters == 0), (SITE + 3, *stop > 30), "stop {stop}");
                        continue;
                    }
                    // SAFETY: the machine's stack is as the stopped code left it, and mapped.
                    let got = unsafe { area.settle(&mut regs) };
                    assert_eq!(got, Settled::After, "stop {stop}");
                    check_same(&want, &regs, &exit.stack, &format!("{scheme:?} stop {stop}, seed {seed}"));
                    assert_eq!(area.users(), 0, "stop {stop}");
                    settled += 1;
                }
            }
        }
        area.control().waiters.store(0, SeqCst);
    }
    assert!(settled > 1000, "{settled}");
}

#[test]
fn a_forked_child_has_slots_of_its_own() {
    for scheme in SCHEMES {
        let world = World::of(scheme);
        let (code, binding) = (world.adder(9), Binding::new());
        hit(&world, &code, &binding, 1);
        let held = world.area.enter(&code, &binding).unwrap();
        // SAFETY: the child runs no code of the harness: it makes slots, calls one and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child has one thread, which is not in a slot.
            let renewed = unsafe { world.area.renew() };
            let good =
                renewed && world.area.users() == 0 && hit(&world, &world.adder(3), &Binding::new(), 1) == 4;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "{scheme:?}");
        // What the child wrote is not seen here.
        assert_eq!(call(held, 1), 10);
        assert_eq!(world.area.users(), 0);
    }
}

#[test]
#[ignore = "prints figures for docs/xol.md"]
fn slots_without_traps() {
    const HITS: u64 = 300_000;
    for scheme in SCHEMES {
        let world = World::of(scheme);
        let (code, binding) = (world.adder(5), Binding::new());
        let start = sys::thread_cpu_ns();
        (0..HITS).for_each(|n| assert_eq!(hit(&world, &code, &binding, n), n + 5));
        let run = (sys::thread_cpu_ns() - start) / HITS;
        let start = sys::thread_cpu_ns();
        for _ in 0..HITS {
            let slot = world.area.enter(&code, &binding).unwrap();
            world.area.give_back(((slot - world.area.code) as usize) / SLOT_BYTES);
        }
        let taken = (sys::thread_cpu_ns() - start) / HITS;
        println!("{scheme:?}: taken, run and left {run} ns; taken and given back {taken} ns");
    }
}
