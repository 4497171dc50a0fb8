//! One column: a registry under two protections, and threads that hit it.
//!
//! For:     `bench seeds`.
//! State:   a registry with one probe, its consumers, their counts.
//! Context: control.
//! Keeps:   M1 a run counts what it calls, exactly, or is an error.
//! Checked: in every run.

use crate::pin::{self, Gate};
use probe::fake::{FakeFile, FakeSpace};
use probe::{Config, Consumer, Protection, Registered, Registry, Regs, UprobeRef, Verdict};
use std::sync::Arc;
use std::time::Instant;

/// What a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A hit.
    Entry,
    /// A hit and its return.
    Return,
}

/// Counts on its own CPU, as the kernel's bench program counts in a slot of its own.
struct Count {
    counter: percpu::Counter,
    kind: Kind,
}

impl Consumer for Count {
    fn has_handler(&self) -> bool {
        self.kind == Kind::Entry
    }
    fn has_ret_handler(&self) -> bool {
        self.kind == Kind::Return
    }
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.counter.inc();
        Verdict::Continue
    }
    fn ret_handler(&self, _: u64, _: &mut Regs, _: Option<&mut u64>) {
        self.counter.inc();
    }
}

/// One column.
pub struct Subject {
    registry: Registry,
    registered: Vec<Registered>,
    counts: Vec<Arc<Count>>,
    kind: Kind,
}

impl Subject {
    pub fn new(kind: Kind, entry: Protection, returns: Protection, consumers: usize) -> Subject {
        let registry = Registry::new(Config::new(entry, returns)).expect("domains can be made");
        let space = FakeSpace::new(1);
        space.map(1, 0..4096, 0x1000);
        registry.add_space(space);
        let file = FakeFile::nops(1, 4096).shared();
        let make = |_| Arc::new(Count { counter: percpu::Counter::new(), kind });
        let counts: Vec<Arc<Count>> = (0..consumers).map(make).collect();
        let add =
            |c: &Arc<Count>| registry.register(&file, 16, None, c.clone()).expect("a nop can be probed");
        Subject { registered: counts.iter().map(add).collect(), registry, counts, kind }
    }

    fn total(&self) -> u64 {
        self.counts.iter().map(|c| c.counter.sum()).sum()
    }

    /// Million calls per second of all threads together.
    ///
    /// # Errors
    /// The consumers did not count what was called.
    pub fn run(&self, threads: usize, calls: u64) -> Result<f64, String> {
        let before = self.total();
        let (start, end) = (Gate::new(threads), Gate::new(threads));
        let (start, end) = (&start, &end);
        let rate = std::thread::scope(|s| {
            let work = |cpu: usize| {
                move || {
                    pin::pin_to(cpu);
                    start.pass();
                    let seconds = self.calls(calls);
                    end.arrive();
                    calls as f64 / seconds
                }
            };
            let threads: Vec<_> = (0..threads).map(|cpu| s.spawn(work(cpu))).collect();
            threads.into_iter().map(|t| t.join().expect("a caller does not panic")).sum::<f64>()
        });
        let wanted = calls * threads as u64 * self.counts.len() as u64;
        match self.total() - before {
            counted if counted == wanted => Ok(rate / 1e6),
            counted => Err(format!("{counted} hits counted, {wanted} made")),
        }
    }

    /// The seconds that one thread's calls took.
    fn calls(&self, calls: u64) -> f64 {
        let site = self.registered[0].probe();
        match self.kind {
            Kind::Entry => entries(&site, calls),
            Kind::Return => self.returns(&site, calls),
        }
    }

    fn returns(&self, site: &UprobeRef, calls: u64) -> f64 {
        let (mut stack, mut regs) = (self.registry.return_stack(), Regs::default());
        let start = Instant::now();
        for _ in 0..calls {
            stack.enter(site, &mut regs);
            stack.leave(&mut regs);
        }
        start.elapsed().as_secs_f64()
    }
}

fn entries(site: &UprobeRef, calls: u64) -> f64 {
    let mut regs = Regs::default();
    let start = Instant::now();
    for _ in 0..calls {
        site.hit(&mut regs);
    }
    start.elapsed().as_secs_f64()
}
