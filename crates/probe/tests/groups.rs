//! Many consumers on one probe: of one type and of several, more than a group holds, while they come and go.

mod kit;

use kit::*;
use probe::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Log = Arc<Mutex<Vec<u64>>>;

/// Writes down its number: at hits, at returns (a thousand more), or at both. `TYPE` tells types apart.
struct Noted<const TYPE: u64> {
    number: u64,
    log: Log,
    entry: bool,
    ret: bool,
    verdict: Verdict,
}

impl<const TYPE: u64> Consumer for Noted<TYPE> {
    fn has_handler(&self) -> bool {
        self.entry
    }
    fn has_ret_handler(&self) -> bool {
        self.ret
    }
    fn handler(&self, regs: &mut Regs, cookie: &mut u64) -> Verdict {
        assert_eq!(*cookie, 0, "a cookie is 0 at first");
        *cookie = self.number;
        regs.rax += 1 + TYPE;
        self.log.lock().unwrap().push(self.number);
        self.verdict
    }
    fn ret_handler(&self, func: u64, _: &mut Regs, cookie: Option<&mut u64>) {
        assert_eq!((func, cookie.map(|c| *c)), (0x77, self.entry.then_some(self.number)));
        self.log.lock().unwrap().push(1000 + self.number);
    }
}

/// A consumer of type `number % types`.
fn noted(number: u64, types: u64, entry: bool, ret: bool, log: &Log) -> Arc<dyn Consumer> {
    let (log, verdict) = (log.clone(), Verdict::Continue);
    match number % types {
        0 => Arc::new(Noted::<0> { number, log, entry, ret, verdict }),
        1 => Arc::new(Noted::<1> { number, log, entry, ret, verdict }),
        _ => Arc::new(Noted::<2> { number, log, entry, ret, verdict }),
    }
}

fn take(log: &Log) -> Vec<u64> {
    std::mem::take(&mut log.lock().unwrap())
}

/// Which handlers consumer `number` has, as (entry, return).
type Mix = fn(u64) -> (bool, bool);
const MIXES: [Mix; 4] =
    [|_| (true, false), |_| (false, true), |n| (n % 3 != 0, n % 3 == 0), |n| (n % 4 != 0, n % 4 < 2)];

/// One call and its return: the handlers that should run, newest first.
fn wanted(live: &[u64], mix: Mix) -> Vec<u64> {
    let newest_first = || live.iter().rev().copied();
    let entries = newest_first().filter(|n| mix(*n).0);
    entries.chain(newest_first().filter(|n| mix(*n).1).map(|n| 1000 + n)).collect()
}

fn call(w: &World, probe: &UprobeRef) {
    let mut stack = w.registry.return_stack();
    let mut regs = Regs { rip: 0x77, ..Regs::default() };
    if stack.enter(probe, &mut regs).1 {
        assert!(stack.leave(&mut regs));
    }
}

#[test]
fn each_is_called_once_newest_first_however_many_and_of_however_many_types() {
    for (mix, types) in MIXES.into_iter().flat_map(|mix| [1, 2, 3].map(|types| (mix, types))) {
        let w = world(Config::default());
        let log = Log::default();
        let mut registered = Vec::new();
        for number in 0..20 {
            let (entry, ret) = mix(number);
            let consumer = noted(number, types, entry, ret, &log);
            registered.push((number, w.registry.register(&w.file, 8, None, consumer).unwrap()));
            call(&w, &registered[0].1.probe());
            let live: Vec<u64> = registered.iter().map(|r| r.0).collect();
            assert_eq!(take(&log), wanted(&live, mix), "{types} types, {live:?}");
        }
        // Every third goes, then every third of the rest, until one is left: groups shrink, some go.
        while registered.len() > 1 {
            let at = (registered.len() * 2) / 3;
            w.drop_nosync(registered.remove(at).1);
            call(&w, &registered[0].1.probe());
            let live: Vec<u64> = registered.iter().map(|r| r.0).collect();
            assert_eq!(take(&log), wanted(&live, mix), "{types} types, {live:?}");
        }
        w.registry.unregister_sync();
        assert_eq!(w.registry.stats().retired, 0);
    }
}

#[test]
fn every_handler_sees_what_the_one_before_did_to_the_registers() {
    let (w, log) = (world(Config::default()), Log::default());
    let register = |n| w.registry.register(&w.file, 8, None, noted(n, 3, true, false, &log)).unwrap();
    let all: Vec<_> = (0..10).map(register).collect();
    let mut regs = Regs::default();
    assert_eq!(all[0].probe().hit(&mut regs), Hit::Handled);
    assert_eq!(regs.rax, (0..10).map(|n| 1 + n % 3).sum());
}

#[test]
fn one_dissenter_in_any_group_keeps_the_breakpoint() {
    for dissenter in 0..20 {
        for (entry, ret) in [(true, false), (false, true)] {
            let (w, log) = (world(Config::default()), Log::default());
            let mut all = Vec::new();
            for number in (0..20).filter(|n| *n != dissenter) {
                let verdict = Verdict::Remove;
                let noted = Noted::<0> { number, log: log.clone(), entry: true, ret: false, verdict };
                all.push(w.registry.register(&w.file, 8, None, Arc::new(noted)).unwrap());
            }
            let probe = all[0].probe();
            assert_eq!(probe.hit(&mut Regs::default()), Hit::Remove);
            let other = w.registry.register(&w.file, 8, None, noted(dissenter, 1, entry, ret, &log)).unwrap();
            assert_eq!(probe.hit(&mut Regs::default()), Hit::Handled, "{dissenter}");
            w.drop_nosync(other);
            assert_eq!(probe.hit(&mut Regs::default()), Hit::Remove);
            all.into_iter().for_each(|r| w.drop_nosync(r));
            assert_eq!(probe.hit(&mut Regs::default()), Hit::Handled, "nobody said remove");
        }
    }
}

/// As the kit's, of another type.
struct Other(Arc<Count>);

impl Consumer for Other {
    fn handler(&self, regs: &mut Regs, cookie: &mut u64) -> Verdict {
        self.0.handler(regs, cookie)
    }
}

#[test]
fn those_that_stay_lose_no_hit_while_others_leave_their_groups() {
    for protection in Protection::ALL {
        let w = world(Config::new(protection, protection));
        let stay: Vec<_> = (0..6).map(|_| Count::new()).collect();
        let mut registered = Vec::new();
        // Between any two that stay stand some that go.
        let mut goers = std::collections::VecDeque::new();
        let goer = |n: usize| -> Arc<dyn Consumer> {
            if n.is_multiple_of(2) { Count::new() } else { Arc::new(Other(Count::new())) }
        };
        let register = |consumer| w.registry.register(&w.file, 8, None, consumer).unwrap();
        for (n, count) in stay.iter().enumerate() {
            registered.push(register(count.clone()));
            (0..n).for_each(|n| goers.push_back(register(goer(n))));
        }
        let (calls, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut changes = 0;
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let probe = registered[0].probe();
                    while !stop.load(Relaxed) {
                        assert_eq!(probe.hit(&mut Regs::default()), Hit::Handled);
                        calls.fetch_add(1, Relaxed);
                    }
                });
            }
            let end = Instant::now() + Duration::from_millis(150);
            while Instant::now() < end {
                goers.push_back(register(goer(changes)));
                let at = changes % goers.len();
                goers.remove(at).into_iter().for_each(|gone| w.drop_nosync(gone));
                changes += 1;
                if changes.is_multiple_of(64) {
                    w.registry.unregister_sync();
                }
            }
            stop.store(true, Relaxed);
        });
        assert!(changes > 10);
        let calls = calls.load(Relaxed);
        stay.iter().for_each(|c| assert_eq!(c.hits(), calls, "{protection}: {changes} changes"));
    }
}
