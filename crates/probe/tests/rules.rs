//! What safe callers may do wrong: it is counted, refused or put off, and harms nobody (H4, I1, I2, I4).

mod kit;

use kit::*;
use probe::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// Panics at its entry, at its return, or both.
#[derive(Default)]
struct Boom {
    at_return: bool,
    is_session: bool,
    calls: AtomicU64,
}

impl Consumer for Boom {
    fn has_handler(&self) -> bool {
        !self.at_return || self.is_session
    }
    fn has_ret_handler(&self) -> bool {
        self.at_return || self.is_session
    }
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.calls.fetch_add(1, Relaxed);
        if self.at_return { Verdict::Continue } else { panic!("a handler that panics, as the test wants") }
    }
    fn ret_handler(&self, _: u64, _: &mut Regs, _: Option<&mut u64>) {
        self.calls.fetch_add(1, Relaxed);
        panic!("a return handler that panics, as the test wants");
    }
}

fn readers(registry: &Registry) -> i64 {
    registry.domains().into_iter().flatten().map(|d| d.in_use().readers).sum()
}

#[test]
fn a_panic_in_a_handler_is_counted_and_the_others_are_called() {
    for kind in Protection::ALL {
        for is_session in [false, true] {
            let w = world(Config::new(kind, kind));
            let (count, booms) =
                (Count::new(), [(); 3].map(|_| Arc::new(Boom { is_session, ..Boom::default() })));
            let first = w.register(8, &count);
            let all: Vec<_> =
                booms.iter().map(|b| w.registry.register(&w.file, 8, None, b.clone()).unwrap()).collect();
            let last = w.register(8, &count);
            assert_eq!(w.hit(8), Hit::Handled, "{kind}");
            assert_eq!(first.probe().hit(&mut Regs::default()), Hit::Handled, "{kind}");
            assert_eq!(w.registry.hit_and_stay(FILE, 8, &mut Regs::default()), Hit::Handled, "{kind}");
            assert_eq!(count.hits(), 6, "{kind}: those beside it are called");
            assert!(booms.iter().all(|b| b.calls.load(Relaxed) == 3), "{kind}: each once a hit");
            assert_eq!(w.registry.stats().panicked, 9, "{kind}");
            all.into_iter().chain([first, last]).for_each(|r| w.drop_nosync(r));
            w.registry.unregister_sync();
            assert_eq!(Arc::strong_count(&count), 1, "{kind}: nothing keeps a reader inside");
        }
    }
}

#[test]
fn a_panic_of_the_only_consumer_is_counted_and_goes_no_further() {
    for kind in Protection::ALL {
        for (at_return, is_session) in [(false, false), (true, false), (false, true), (true, true)] {
            let w = world(Config::new(kind, kind));
            let boom = Arc::new(Boom { at_return, is_session, ..Boom::default() });
            let registered = w.registry.register(&w.file, 8, None, boom.clone()).unwrap();
            let mut stack = w.registry.return_stack();
            let (hit, pushed) = stack.enter(&registered.probe(), &mut Regs::default());
            assert_eq!((hit, pushed), (Hit::Handled, at_return), "{kind}");
            assert_eq!(pushed, stack.leave(&mut Regs::default()), "{kind}");
            assert_eq!(w.registry.stats().panicked, 1, "{kind}");
            w.drop_nosync(registered);
            w.registry.unregister_sync();
            assert_eq!(Arc::strong_count(&boom), 1, "{kind}: nothing keeps a reader inside");
        }
    }
}

#[test]
fn a_panic_in_a_return_handler_leaves_its_lease() {
    for kind in Protection::ALL {
        for is_session in [false, true] {
            let w = world(Config::new(kind, kind));
            let (ret, boom) =
                (Count::ret_only(), Arc::new(Boom { at_return: true, is_session, ..Boom::default() }));
            let counted = w.register(8, &ret);
            let registered = w.registry.register(&w.file, 8, None, boom.clone()).unwrap();
            let mut stack = w.registry.return_stack();
            assert!(stack.enter(&counted.probe(), &mut Regs::default()).1);
            assert!(stack.leave(&mut Regs::default()));
            assert_eq!((ret.returns(), w.registry.stats().panicked), (1, 1), "{kind}");
            [counted, registered].into_iter().for_each(|r| w.drop_nosync(r));
            w.registry.unregister_sync();
            assert_eq!(Arc::strong_count(&boom), 1, "{kind}");
        }
    }
}

/// Does something to the registry from inside.
struct Meddler {
    registry: OnceLock<Registry>,
    does: fn(&Meddler, &Registry),
    said: Mutex<Option<Misuse>>,
    holds: Mutex<Option<Registered>>,
}

impl Meddler {
    fn new(w: &World, does: fn(&Meddler, &Registry)) -> Arc<Meddler> {
        let registry = OnceLock::from(w.registry.clone());
        Arc::new(Meddler { registry, does, said: Mutex::default(), holds: Mutex::default() })
    }
}

impl Consumer for Meddler {
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        if let Some(registry) = self.registry.get() {
            (self.does)(self, registry);
        }
        Verdict::Continue
    }
}

#[test]
fn a_handler_that_waits_for_handlers_is_refused_by_name() {
    for kind in Protection::ALL {
        let w = world(Config::new(kind, kind));
        let meddler = Meddler::new(&w, |me, registry| {
            *me.said.lock().unwrap() = registry.try_unregister_sync().err();
        });
        let registered = w.registry.register(&w.file, 8, None, meddler.clone()).unwrap();
        assert_eq!(w.hit(8), Hit::Handled);
        let said = meddler.said.lock().unwrap().expect("refused");
        assert_eq!(said, Misuse::Inside { call: "Registry::unregister_sync" }, "{kind}");
        assert!(said.to_string().contains("which it would wait for"));
        w.drop_nosync(registered);
        w.registry.unregister_sync();
    }
}

#[test]
fn every_call_that_takes_locks_is_refused_inside_and_does_nothing() {
    let calls: [fn(&Meddler, &Registry); 8] = [
        |_, r| r.unregister_sync(),
        |_, r| drop(r.register(&fake::FakeFile::nops(FILE, 4096).shared(), 16, None, Count::new())),
        |me, r| assert_eq!(r.unregister_nosync(me.holds.lock().unwrap().take().unwrap()), Left::default()),
        |_, r| r.add_space(fake::FakeSpace::new(11)),
        |_, r| r.remove_space(SPACE),
        |_, r| assert!(r.change_mappings(SPACE, || ())),
        |_, r| r.mapped(SPACE, FILE, 0..4096),
        |_, r| r.fork(|| fake::FakeSpace::new(12)),
    ];
    for (n, does) in calls.into_iter().enumerate() {
        let w = world(Config::default());
        let meddler = Meddler::new(&w, does);
        let other = Count::new();
        *meddler.holds.lock().unwrap() = Some(w.register(8, &other));
        let registered = w.registry.register(&w.file, 8, None, meddler.clone()).unwrap();
        assert_eq!(w.hit(8), Hit::Handled, "call {n}");
        assert_eq!(w.registry.stats().panicked, 1, "call {n}");
        w.drop_nosync(registered);
        w.registry.unregister_sync();
    }
}

#[test]
fn a_registration_dropped_by_a_handler_ends_with_the_next_call() {
    for kind in Protection::ALL {
        let w = world(Config::new(kind, kind));
        let other = Count::new();
        let meddler = Meddler::new(&w, |me, _| drop(me.holds.lock().unwrap().take()));
        *meddler.holds.lock().unwrap() = Some(w.register(8, &other));
        let registered = w.registry.register(&w.file, 8, None, meddler.clone()).unwrap();
        assert_eq!((w.hit(8), w.hit(8)), (Hit::Handled, Hit::Handled));
        w.registry.unregister_sync();
        let hits = other.hits();
        assert_eq!((w.hit(8), other.hits(), Arc::strong_count(&other)), (Hit::Handled, hits, 1), "{kind}");
        w.drop_nosync(registered);
    }
    // And with the registry itself, if no call comes.
    struct Dropper(Mutex<Option<Registered>>);
    impl Consumer for Dropper {
        fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
            drop(self.0.lock().unwrap().take());
            Verdict::Continue
        }
    }
    let (w, other) = (world(Config::default()), Count::new());
    let dropper = Arc::new(Dropper(Mutex::new(Some(w.register(8, &other)))));
    let registered = w.registry.register(&w.file, 16, None, dropper).unwrap();
    assert_eq!((w.hit(16), w.hit(8), other.hits()), (Hit::Handled, Hit::Handled, 1));
    drop(registered);
    let space = w.space.clone();
    drop(w);
    assert_eq!((Arc::strong_count(&other), space.breakpoints().len()), (1, 0));
}

#[test]
fn a_filter_that_calls_the_registry_is_refused_by_name() {
    struct Asking(OnceLock<Registry>);
    impl Consumer for Asking {
        fn has_filter(&self) -> bool {
            true
        }
        fn filter(&self, _: SpaceId) -> bool {
            if let Some(registry) = self.0.get() {
                registry.unregister_sync();
            }
            true
        }
    }
    let w = world(Config::default());
    let asking = Arc::new(Asking(OnceLock::from(w.registry.clone())));
    let file = w.file.clone();
    let tried = catch_unwind(AssertUnwindSafe(|| w.registry.register(&file, 8, None, asking)));
    let said = *tried.err().expect("refused").downcast::<String>().unwrap();
    assert!(said.contains("Registry::unregister_sync was called from inside"), "{said}");
    w.registry.unregister_sync();
    assert_eq!(w.registry.stats().made, w.registry.stats().freed, "nothing is left of it");
}

#[test]
fn a_stack_refuses_the_uprobe_of_another_registry() {
    for kind in [Protection::Refcount, Protection::Normal, Protection::Lite, Protection::Fast] {
        let (a, b) = (world(Config::new(kind, kind)), world(Config::new(kind, kind)));
        let (mine, others) = (Count::session(), Count::session());
        let (of_a, of_b) = (a.register(8, &mine), b.register(8, &others));
        let mut stack = a.registry.return_stack();
        assert_eq!(stack.enter(&of_b.probe(), &mut Regs::default()), (Hit::Skipped, false), "{kind}");
        assert_eq!((stack.depth(), stack.foreign, others.hits()), (0, 1, 0), "{kind}");
        assert_eq!((readers(&a.registry), readers(&b.registry)), (0, 0), "{kind}");
        assert!(stack.enter(&of_a.probe(), &mut Regs::default()).1, "{kind}");
        assert!(stack.leave(&mut Regs::default()));
        assert_eq!(a.registry.apply(&of_b.probe(), &of_b, true), Err(ApplyError::NotOnProbe), "{kind}");
        b.drop_nosync(of_b);
        b.registry.unregister_sync();
    }
}
