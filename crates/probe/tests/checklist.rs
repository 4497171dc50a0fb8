//! The acceptance list of uprobes (kernel facts 1.20), the lines that a registry can have: one test each,
//! named by its line. Every line runs under every protection.

mod kit;

use kit::*;
use probe::fake::{FakeFile, FakeSpace};
use probe::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn each(test: impl Fn(World)) {
    for protection in Protection::ALL {
        test(world(Config::new(protection, protection)));
    }
}

#[test]
fn line_1_before_and_after_the_mapping_both_count_exactly() {
    for protection in Protection::ALL {
        let w = unmapped(Config::new(protection, protection));
        let (early, late) = (Count::new(), Count::new());
        let first = w.register(8, &early);
        assert!(w.space.breakpoints().is_empty());
        assert_eq!(w.hit(8), Hit::Restart, "no instruction was looked at yet");
        w.space.map(FILE, 0..4096, BASE);
        w.registry.mapped(SPACE, FILE, 0..4096);
        assert_eq!(w.space.breakpoints(), [BASE + 8]);
        let second = w.register(16, &late);
        for _ in 0..1000 {
            assert_eq!((w.hit(8), w.hit(16)), (Hit::Handled, Hit::Handled));
        }
        assert_eq!((early.hits(), late.hits()), (1000, 1000));
        w.drop_nosync(first);
        w.drop_nosync(second);
        assert!(w.space.breakpoints().is_empty());
    }
}

#[test]
fn line_2_two_registrations_share_a_probe_and_its_semaphore() {
    each(|w| {
        let register = |ctr| w.registry.register(&w.file, 8, ctr, Count::new());
        let (a, b) = (register(Some(64)).unwrap(), register(Some(64)).unwrap());
        assert!(a.probe().is_same(&b.probe()));
        let wrong = register(Some(66)).err().unwrap();
        assert_eq!(wrong, RegisterError::RefCtrMismatch { registered: Some(64), asked: Some(66) });
        assert_eq!(wrong.errno(), 22);
        assert_eq!(w.registry.find(FILE, 8).unwrap().refs(), 3, "two consumers and this one");
    });
}

#[test]
fn line_4_two_mappings_and_many_spaces_hit_one_probe() {
    each(|w| {
        w.space.map(FILE, 0..4096, 0x90_0000);
        for id in 11..15 {
            let space = FakeSpace::new(id);
            space.map(FILE, 0..4096, BASE);
            w.registry.add_space(space);
        }
        let count = Count::new();
        let _registered = w.register(8, &count);
        assert_eq!(w.space.breakpoints(), [BASE + 8, 0x90_0008]);
        assert_eq!((w.registry.stats().made, w.registry.stats().installed), (1, 6));
        for id in 10..15 {
            assert_eq!(w.registry.hit(id, FILE, 8, &mut Regs::default()), Hit::Handled);
        }
        assert_eq!(count.hits(), 5);
    });
}

#[test]
fn line_5_consumers_come_and_go_and_the_others_lose_no_hit() {
    each(|w| {
        let stays: Vec<_> = (0..3).map(|_| Count::new()).collect();
        let _first = w.register(8, &stays[0]);
        let calls = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let changes = std::thread::scope(|s| {
            for by_place in [true, false] {
                let (w, calls, stop) = (&w, &calls, &stop);
                let probe = _first.probe();
                s.spawn(move || {
                    while !stop.load(Relaxed) {
                        let hit = if by_place { w.hit(8) } else { probe.hit(&mut Regs::default()) };
                        assert_eq!(hit, Hit::Handled);
                        calls.fetch_add(1, Relaxed);
                    }
                });
            }
            let end = Instant::now() + Duration::from_millis(250);
            let (mut changes, mut last) = (0, None);
            while Instant::now() < end {
                let old = last.replace(w.register(8, &Count::new()));
                old.into_iter().for_each(|r| w.drop_nosync(r));
                changes += 1;
                if changes % 64 == 0 {
                    w.registry.unregister_sync();
                }
            }
            stop.store(true, Relaxed);
            changes
        });
        assert!(changes > 10);
        assert_eq!(stays[0].hits(), calls.load(Relaxed), "{changes} changes");
    });
}

#[test]
fn line_6_a_breakpoint_goes_only_if_all_say_remove_and_no_filter_objects() {
    let remove = |filter: Option<bool>| {
        let has_filter = filter.is_some();
        let wanted = filter.unwrap_or(true).into();
        Arc::new(Count { verdict: Verdict::Remove, has_filter, wanted, ..Count::default() })
    };
    each(|w| {
        // The filter says yes while it is registered, else nothing would be placed.
        let leaving = remove(Some(true));
        let a = w.register(8, &leaving);
        leaving.wanted.store(false, Relaxed);
        let other = w.register(8, &Count::new());
        assert_eq!(w.hit(8), Hit::Handled, "one of two says remove");
        assert_eq!(w.space.breakpoints().len(), 1);
        w.drop_nosync(other);
        // The unregister walked the filters, and nobody wants it now.
        assert_eq!(w.space.breakpoints().len(), 0);
        leaving.wanted.store(true, Relaxed);
        w.registry.apply(&a.probe(), &a, true).unwrap();
        assert_eq!((w.hit(8), w.space.breakpoints().len()), (Hit::Remove, 1), "the filter objects");
        leaving.wanted.store(false, Relaxed);
        assert_eq!((w.hit(8), w.space.breakpoints().len()), (Hit::Remove, 0));
        assert_eq!(w.registry.stats().unhooked, 1);
        let _stubborn = w.register(16, &remove(None));
        assert_eq!((w.hit(16), w.space.breakpoints().len()), (Hit::Remove, 1), "remove without filter");
        let ignoring = w.register(16, &Count::saying(Verdict::Ignore));
        assert_eq!(w.hit(16), Hit::Handled, "ignore blocks it");
        w.drop_nosync(ignoring);
    });
}

#[test]
fn line_7_filters_decide_per_space_and_apply_changes_it() {
    each(|w| {
        let other = FakeSpace::new(11);
        other.map(FILE, 0..4096, BASE);
        w.registry.add_space(other.clone());
        let count = Count::filtered(true);
        count.only.store(SPACE, Relaxed);
        let registered = w.register(8, &count);
        assert_eq!((w.space.breakpoints().len(), other.breakpoints().len()), (1, 0));
        count.only.store(11, Relaxed);
        w.registry.apply(&registered.probe(), &registered, true).unwrap();
        w.registry.apply(&registered.probe(), &registered, false).unwrap();
        assert_eq!((w.space.breakpoints().len(), other.breakpoints().len()), (0, 1));
        let foreign = w.register(16, &Count::new());
        let error = w.registry.apply(&registered.probe(), &foreign, true).unwrap_err();
        assert_eq!((error, error.errno()), (ApplyError::NotOnProbe, 2));
    });
}

#[test]
fn line_8_after_a_batch_and_one_sync_consumers_are_freed() {
    each(|w| {
        let counts: Vec<_> = (0..100).map(|_| Count::new()).collect();
        let all: Vec<_> = counts.iter().enumerate().map(|(i, c)| w.register(i as u64 % 10, c)).collect();
        all.into_iter().for_each(|r| w.drop_nosync(r));
        assert!(counts.iter().all(|c| Arc::strong_count(c) == 2), "hits may still see them");
        w.registry.unregister_sync();
        assert!(counts.iter().all(|c| Arc::strong_count(c) == 1));
        let stats = w.registry.stats();
        assert_eq!((stats.made, stats.freed, stats.retired), (10, 10, 0));
    });
}

#[test]
fn line_10_refused_instructions_are_left_untouched() {
    each(|w| {
        let refuse =
            |file: FakeFile| w.registry.register(&file.shared(), 8, None, Count::new()).err().unwrap();
        let trap = refuse(FakeFile { byte: 0xcc, ..FakeFile::nops(FILE, 4096) });
        assert_eq!(trap, RegisterError::Install(InstallError::IsTrap { offset: 8 }));
        assert_eq!(trap.errno(), 524);
        let refused = refuse(FakeFile { is_probeable: false, ..FakeFile::nops(FILE, 4096) });
        assert_eq!(refused, RegisterError::Install(InstallError::NotProbeable { offset: 8 }));
        assert!(w.space.breakpoints().is_empty());
        assert!(w.registry.find(FILE, 8).is_none(), "nothing is left");
        assert_eq!(w.registry.stats().made, w.registry.stats().freed);
    });
}

#[test]
fn line_12_a_hit_without_probe_is_somebody_elses() {
    each(|w| {
        let registered = w.register(8, &Count::new());
        assert_eq!(w.hit(9), Hit::Unknown);
        w.drop_nosync(registered);
        w.registry.unregister_sync();
        assert_eq!(w.hit(8), Hit::Unknown);
    });
}

#[test]
fn line_15_returns_nest_to_64_and_deeper_ones_are_counted() {
    each(|w| {
        let count = Count::ret_only();
        let probe = w.register(8, &count).probe();
        let mut stack = w.registry.return_stack();
        // The handle above is gone, and with it the consumer: nothing to return to.
        assert!(!stack.enter(&probe, &mut Regs::default()).1);
        let _registered = w.register(8, &count);
        let pushed = (0..72).filter(|_| stack.enter(&probe, &mut Regs::default()).1).count();
        assert_eq!((pushed, stack.depth()), (64, 64));
        while stack.leave(&mut Regs::default()) {}
        assert_eq!((stack.entries, stack.returns, stack.skipped, stack.unwound), (72, 64, 8, 0));
        assert_eq!(count.returns(), 64);
    });
}

#[test]
fn line_16_frames_that_are_left_by_longjmp_are_unwound_once() {
    each(|w| {
        let count = Count::session();
        let registered = w.register(8, &count);
        let mut stack = w.registry.return_stack();
        for _ in 0..5 {
            assert!(stack.enter(&registered.probe(), &mut Regs::default()).1);
        }
        stack.unwind_to(2);
        while stack.leave(&mut Regs::default()) {}
        assert_eq!((stack.entries, stack.returns, stack.unwound), (5, 2, 3));
        assert_eq!(count.returns(), 2);
    });
}

#[test]
fn line_17_a_session_gets_its_own_cookie_and_a_late_return_consumer_none() {
    each(|w| {
        let (one, two, ignoring) = (Count::session(), Count::session(), Count::saying(Verdict::Ignore));
        let (a, _b, _c) = (w.register(8, &one), w.register(8, &two), w.register(8, &ignoring));
        let probe = a.probe();
        let mut stack = w.registry.return_stack();
        let mut regs = Regs { rdi: 77, ..Regs::default() };
        assert!(stack.enter(&probe, &mut regs).1);
        regs.rdi = 78;
        assert!(stack.enter(&probe, &mut regs).1);
        let (late, late_session) = (Count::ret_only(), Count::session());
        let (_d, _e) = (w.register(8, &late), w.register(8, &late_session));
        stack.leave(&mut regs);
        assert_eq!((one.cookie.load(Relaxed), two.cookie.load(Relaxed)), (78, 78));
        stack.leave(&mut regs);
        assert_eq!((one.cookie.load(Relaxed), two.cookie.load(Relaxed)), (77, 77));
        assert_eq!((late.returns(), late.cookie.load(Relaxed)), (2, u64::MAX));
        assert_eq!((ignoring.returns(), late_session.returns()), (0, 0));
    });
}

#[test]
fn line_18_a_forked_space_inherits_and_exec_forgets() {
    each(|w| {
        let registered = w.register(8, &Count::new());
        let parent = w.space.clone();
        let child = FakeSpace::new(99);
        let slot = std::sync::Mutex::new(child);
        w.registry.fork(|| {
            let child = parent.fork(11);
            *slot.lock().unwrap() = child.clone();
            child
        });
        let child = slot.into_inner().unwrap();
        assert_eq!(child.breakpoints(), [BASE + 8]);
        w.registry.remove_space(SPACE);
        w.drop_nosync(registered);
        assert_eq!((child.breakpoints().len(), w.space.breakpoints().len()), (0, 1), "a gone space is left");
    });
}

#[test]
fn line_20_mappings_that_come_and_go_beside_registrations_agree_at_the_end() {
    each(|w| {
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..300u64 {
                    let base = 0x1000_0000 + i * 0x10_0000;
                    w.registry.change_mappings(SPACE, || w.space.map(FILE, 0..4096, base));
                    w.registry.mapped(SPACE, FILE, 0..4096);
                    if i % 2 == 0 {
                        w.registry.change_mappings(SPACE, || w.space.unmap(base));
                    }
                }
            });
            for i in 0..300 {
                let registered = w.register(i % 8, &Count::new());
                w.drop_nosync(registered);
            }
        });
        assert_eq!(w.space.breakpoints(), [], "nobody is registered");
    });
}

#[test]
fn line_21_a_semaphore_goes_up_and_down_also_when_it_is_mapped_late() {
    each(|w| {
        let register = || w.registry.register(&w.file, 8, Some(64), Count::new()).unwrap();
        let (a, b) = (register(), register());
        assert_eq!(w.space.ref_ctr(FILE, 64), None);
        w.space.map_ref_ctr(FILE, 64, 0);
        w.registry.mapped(SPACE, FILE, 64..66);
        assert_eq!(w.space.ref_ctr(FILE, 64), Some(1), "one breakpoint, two consumers");
        w.drop_nosync(a);
        assert_eq!(w.space.ref_ctr(FILE, 64), Some(1));
        w.drop_nosync(b);
        assert_eq!(w.space.ref_ctr(FILE, 64), Some(0));
        let late = register();
        w.registry.unregister_sync();
        w.drop_nosync(late);
        assert_eq!(w.space.ref_ctr(FILE, 64), Some(0));
    });
}
