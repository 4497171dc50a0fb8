//! Probes on this very program: exact counts, unchanged results, under both schemes and lookups.

mod kit;

use kit::{Count, Does, bytes_at, call, engine, mixed, text};
use probe::Verdict;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use trap::{Config, Lookup, ProbeError, Scheme, Sync, actions};

fn configs() -> Vec<Config> {
    let mut all = Vec::new();
    for scheme in [Scheme::Cached, Scheme::Dynamic] {
        for lookup in [Lookup::Site, Lookup::Mapping] {
            for always_slot in [false, true] {
                for sync in [Sync::Range, Sync::Broadcast] {
                    all.push(Config { scheme, lookup, always_slot, sync, ..Config::default() });
                }
            }
        }
    }
    all
}

#[test]
fn every_instruction_of_a_function_is_probed_and_the_function_is_the_same() {
    const CALLS: u64 = 300;
    for config in configs() {
        let (engine, _alone) = engine(config);
        let (bytes, starts) = mixed();
        let at = text(&bytes);
        let counts: Vec<_> = starts.iter().map(|_| Count::new()).collect();
        let probes: Vec<_> = starts
            .iter()
            .zip(&counts)
            // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
            .map(|(start, count)| unsafe { engine.probe(at + *start as u64, count.clone()) }.unwrap())
            .collect();
        for n in 1..=CALLS {
            assert_eq!(call(at, n, 2 * n), 9 * n + 1, "{config:?}");
        }
        engine.remove(probes);
        assert_eq!(bytes_at(at, bytes.len()), bytes, "text is as it was");
        let seen: Vec<u64> = counts.iter().map(|count| count.get()).collect();
        let twice = starts.len() - 2;
        assert!(seen[..twice].iter().all(|n| *n == CALLS), "{config:?} {seen:?}");
        assert!(seen[twice..].iter().all(|n| *n == 2 * CALLS), "{config:?} {seen:?}");
        assert_eq!(engine.in_slots(), 0);
    }
}

#[test]
fn more_threads_than_slots_all_make_progress() {
    const THREADS: u64 = 40;
    const CALLS: u64 = 400;
    for scheme in [Scheme::Cached, Scheme::Dynamic] {
        let (engine, _alone) = engine(Config { scheme, slot_limit: 2, ..Config::default() });
        let (bytes, starts) = mixed();
        let at = text(&bytes);
        let count = Count::new();
        let before = engine.counts();
        let probes: Vec<_> =
            // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
            starts.iter().map(|start| unsafe { engine.probe(at + *start as u64, count.clone()) }.unwrap()).collect();
        std::thread::scope(|s| {
            for thread in 0..THREADS {
                s.spawn(move || {
                    (0..CALLS).for_each(|n| assert_eq!(call(at, n + 1, thread), 3 * (n + 1 + thread) + 1))
                });
            }
        });
        engine.remove(probes);
        assert_eq!(count.get(), THREADS * CALLS * (starts.len() as u64 + 2), "{scheme:?}");
        let after = engine.counts();
        println!(
            "{scheme:?}: {} slots written, {} waits",
            after.written - before.written,
            after.slept - before.slept
        );
        assert_eq!(after.skipped, before.skipped);
    }
}

#[test]
fn probes_come_and_go_under_hits_and_no_trap_is_left_over() {
    static FOREIGN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_foreign(_: i32) {
        FOREIGN.fetch_add(1, SeqCst);
    }
    let (engine, _alone) = engine(Config::default());
    // SAFETY: the function adds to an atomic.
    let old =
        unsafe { actions::set(5, Some(sys::signal::Action::new(on_foreign as *const () as usize, 0, 0))) }
            .unwrap();
    let (bytes, starts) = mixed();
    let at = text(&bytes);
    let done = AtomicBool::new(false);
    let (stays, comes) = (Count::new(), Count::new());
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let stays_probe = unsafe { engine.probe(at + starts[5] as u64, stays.clone()) }.unwrap();
    let calls: u64 = std::thread::scope(|s| {
        let callers: Vec<_> = (0..3)
            .map(|_| {
                s.spawn(|| {
                    let mut calls = 0;
                    while !done.load(SeqCst) {
                        calls += 1;
                        assert_eq!(call(at, calls, 1), 3 * (calls + 1) + 1);
                    }
                    calls
                })
            })
            .collect();
        for round in 0..150 {
            let start = starts[round % starts.len()] as u64;
            // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
            let probe = unsafe { engine.probe(at + start, comes.clone()) }.unwrap();
            std::thread::sleep(std::time::Duration::from_micros(500));
            engine.remove([probe]);
        }
        done.store(true, SeqCst);
        callers.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    engine.remove([stays_probe]);
    assert_eq!(stays.get(), calls, "the consumer that stays misses none");
    assert!(comes.get() > 0);
    assert_eq!(FOREIGN.load(SeqCst), 0, "no spurious trap");
    // Our own int3 is the program's.
    // SAFETY: the handler is set.
    unsafe { std::arch::asm!("int3") };
    assert_eq!(FOREIGN.load(SeqCst), 1);
    // SAFETY: what was set before.
    unsafe { actions::set(5, Some(old)) }.unwrap();
}

#[test]
fn a_handler_may_go_elsewhere_and_change_registers() {
    let (engine, _alone) = engine(Config::default());
    // mov eax,1; ret; mov eax,2; ret
    let at = text(&[0xb8, 1, 0, 0, 0, 0xc3, 0xb8, 2, 0, 0, 0, 0xc3]);
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let skip = unsafe {
        engine.probe(
            at,
            Arc::new(Does(move |regs: &mut probe::Regs| {
                regs.rip = at + 6;
                Verdict::Continue
            })),
        )
    };
    assert_eq!(call(at, 0, 0), 2);
    engine.remove(skip);
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let set = unsafe {
        engine.probe(
            at + 5,
            Arc::new(Does(|regs: &mut probe::Regs| {
                regs.rax = regs.rdi * 10;
                Verdict::Continue
            })),
        )
    };
    assert_eq!(call(at, 7, 0), 70);
    engine.remove(set);
    assert_eq!(call(at, 7, 0), 1);
}

#[test]
fn what_handlers_want_removed_goes_when_the_engine_is_tended() {
    let (engine, _alone) = engine(Config::default());
    let at = text(&[0x31, 0xc0, 0xc3]);
    let hits = Arc::new(AtomicU64::new(0));
    let seen = hits.clone();
    // A consumer without a filter is always interested, so its wish alone removes nothing.
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let probe = unsafe {
        engine.probe(
            at,
            Arc::new(Does(move |_: &mut probe::Regs| {
                seen.fetch_add(1, SeqCst);
                Verdict::Remove
            })),
        )
    };
    call(at, 0, 0);
    assert_eq!((engine.tend(), hits.load(SeqCst)), (0, 1));
    call(at, 0, 0);
    engine.remove(probe);
    assert_eq!(hits.load(SeqCst), 2);

    struct Once;
    impl probe::Consumer for Once {
        fn handler(&self, _: &mut probe::Regs, _: &mut u64) -> Verdict {
            Verdict::Remove
        }
        fn has_filter(&self) -> bool {
            true
        }
        fn filter(&self, _: u64) -> bool {
            !HIT.load(SeqCst)
        }
    }
    static HIT: AtomicBool = AtomicBool::new(false);
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let probe = unsafe { engine.probe(at, Arc::new(Once)) };
    call(at, 0, 0);
    HIT.store(true, SeqCst);
    assert_eq!(bytes_at(at, 1), [0xcc]);
    assert_eq!(engine.tend(), 1);
    assert_eq!(bytes_at(at, 3), [0x31, 0xc0, 0xc3]);
    engine.remove(probe);
}

#[test]
fn a_probe_that_a_handler_hits_runs_and_is_counted_as_nested() {
    let (engine, _alone) = engine(Config::default());
    let at = text(&[0x8d, 0x47, 0x05, 0xc3]); // lea eax,[rdi+5]; ret
    let before = engine.counts().nested;
    let count = Count::new();
    let inner = count.clone();
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    let probe = unsafe {
        engine.probe(
            at,
            Arc::new(Does(move |regs: &mut probe::Regs| {
                if regs.rdi < 100 {
                    inner.0.fetch_add(call(at, 200, 0), SeqCst);
                }
                Verdict::Continue
            })),
        )
    };
    assert_eq!(call(at, 1, 0), 6);
    engine.remove(probe);
    assert_eq!((count.get(), engine.counts().nested - before), (205, 1));
}

#[test]
fn what_cannot_run_out_of_line_is_refused_and_left_alone() {
    let (engine, _alone) = engine(Config::default());
    for bytes in [&[0x0f, 0x05][..], &[0xcc], &[0x06], &[0xf4], &[0xcd, 0x80], &[0x66, 0xe9, 0, 0, 0, 0]] {
        let at = text(bytes);
        // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
        let refused = unsafe { engine.probe(at, Count::new()) };
        assert!(matches!(refused, Err(ProbeError::Refused(site, _)) if site == at), "{bytes:02x?}");
        assert_eq!(bytes_at(at, bytes.len()), bytes);
    }
    let data = [0x90u8; 8];
    let at = data.as_ptr() as u64;
    // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
    assert!(matches!(unsafe { engine.probe(at, Count::new()) }, Err(ProbeError::NotText(_))));
}

#[test]
fn a_forked_child_goes_on_with_probes_and_slots_of_its_own() {
    const CALLS: u64 = 20_000;
    for scheme in [Scheme::Cached, Scheme::Dynamic] {
        let (engine, _alone) = engine(Config { scheme, slot_limit: 1, ..Config::default() });
        // lea rax,[rdi+1]; ret; and with another number for the child. With one slot, each would run the other's.
        let [mine, its] = [1, 2].map(|n| text(&[0x48, 0x8d, 0x87, n, 0, 0, 0, 0xc3]));
        let count = Count::new();
        // SAFETY: the code is the test's own, an instruction begins there, and the consumer counts or does what the test says.
        let probes = [mine, its].map(|at| unsafe { engine.probe(at, count.clone()) }.unwrap());
        assert_eq!((call(mine, 1, 0), call(its, 1, 0)), (2, 3));
        // SAFETY: the child calls the probed function and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let good = (1..CALLS).all(|n| call(its, n, 0) == n + 2) && engine.in_slots() == 0;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        (1..CALLS).for_each(|n| assert_eq!(call(mine, n, 0), n + 1));
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "{scheme:?}");
        engine.remove(probes);
        assert_eq!(count.get(), CALLS + 1, "the child's hits are its own");
    }
}
