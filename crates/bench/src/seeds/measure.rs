//! One column: a registry under two protections, and threads that hit it.
//!
//! For:     `bench seeds`.
//! State:   a registry with one probe, its consumers, their counts.
//! Context: control.
//! Keeps:   M1 each consumer counts each call, exactly, or the run is an error.
//! Checked: in every run; test below.

use crate::pin::{self, Gate};
use probe::fake::{FakeFile, FakeSpace};
use probe::{Config, Consumer, Registered, Registry, Regs, UprobeRef, Verdict};
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

/// Counts on its own CPU, as the kernel's bench program counts in a slot of its own. Another `TYPE` is another type,
/// with code of its own, because it adds another number.
struct Count<const TYPE: u64> {
    counter: percpu::Counter,
    kind: Kind,
}

impl<const TYPE: u64> Consumer for Count<TYPE> {
    fn has_handler(&self) -> bool {
        self.kind == Kind::Entry
    }
    fn has_ret_handler(&self) -> bool {
        self.kind == Kind::Return
    }
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.counter.add(1 + TYPE);
        Verdict::Continue
    }
    fn ret_handler(&self, _: u64, _: &mut Regs, _: Option<&mut u64>) {
        self.counter.add(1 + TYPE);
    }
}

/// How often a consumer was called.
trait Counted: Send + Sync {
    fn calls(&self) -> u64;
}

impl<const TYPE: u64> Counted for Count<TYPE> {
    fn calls(&self) -> u64 {
        let sum = self.counter.sum();
        // What is no multiple was not added by calls.
        if sum.is_multiple_of(1 + TYPE) { sum / (1 + TYPE) } else { u64::MAX }
    }
}

/// One call in so many more is made before the clock runs: a new thread meets cold caches.
const WARM: u64 = 10;

/// How many types of consumers there are.
pub const TYPES: usize = 8;

type Made = (Arc<dyn Consumer>, Arc<dyn Counted>);

fn of_type<const TYPE: u64>(kind: Kind) -> Made {
    let count = Arc::new(Count::<TYPE> { counter: percpu::Counter::new(), kind });
    (count.clone(), count)
}

/// Consumer number `i`, if they are of so many types.
fn make(kind: Kind, i: usize, types: usize) -> Made {
    const ALL: [fn(Kind) -> Made; TYPES] = [
        of_type::<0>,
        of_type::<1>,
        of_type::<2>,
        of_type::<3>,
        of_type::<4>,
        of_type::<5>,
        of_type::<6>,
        of_type::<7>,
    ];
    ALL[i % types.clamp(1, TYPES)](kind)
}

/// One column.
pub struct Subject {
    registry: Registry,
    registered: Vec<Registered>,
    consumers: Vec<Made>,
    kind: Kind,
}

impl Subject {
    /// A probe with so many consumers, of so many types.
    pub fn new(kind: Kind, by: Config, consumers: usize, types: usize) -> Subject {
        let registry = Registry::new(by).expect("domains can be made");
        let space = FakeSpace::new(1);
        space.map(1, 0..4096, 0x1000);
        registry.add_space(space);
        let file = FakeFile::nops(1, 4096).shared();
        let consumers: Vec<Made> = (0..consumers).map(|i| make(kind, i, types)).collect();
        let add = |c: &Made| registry.register(&file, 16, None, c.0.clone()).expect("a nop can be probed");
        Subject { registered: consumers.iter().map(add).collect(), registry, consumers, kind }
    }

    /// Does the calls, and sees to it that each consumer counted each of them.
    fn counted<T>(&self, calls: u64, work: impl FnOnce() -> T) -> Result<T, String> {
        let before: Vec<u64> = self.consumers.iter().map(|c| c.1.calls()).collect();
        let result = work();
        for (consumer, before) in self.consumers.iter().zip(before) {
            match consumer.1.calls().wrapping_sub(before) {
                counted if counted == calls => {}
                counted => return Err(format!("a consumer counted {counted} hits, {calls} were made")),
            }
        }
        Ok(result)
    }

    /// Million calls per second of all threads together.
    ///
    /// # Errors
    /// A consumer did not count what was called.
    pub fn run(&self, threads: usize, calls: u64) -> Result<f64, String> {
        let warm = calls / WARM;
        let all = (warm + calls) * threads as u64;
        let rate = self.counted(all, || self.rate(threads, warm, calls))?;
        Ok(rate / 1e6)
    }

    fn rate(&self, threads: usize, warm: u64, calls: u64) -> f64 {
        let (start, end) = (Gate::new(threads), Gate::new(threads));
        let (start, end) = (&start, &end);
        std::thread::scope(|s| {
            let work = |cpu: usize| {
                move || {
                    pin::pin_to(cpu);
                    self.calls(warm);
                    start.pass();
                    let seconds = self.calls(calls);
                    end.arrive();
                    calls as f64 / seconds
                }
            };
            let threads: Vec<_> = (0..threads).map(|cpu| s.spawn(work(cpu))).collect();
            threads.into_iter().map(|t| t.join().expect("a caller does not panic")).sum::<f64>()
        })
    }

    /// Nanoseconds of processor time of a call, of this thread.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn cpu_ns(&self, calls: u64) -> Result<f64, String> {
        self.counted(calls, || {
            let start = sys::thread_cpu_ns();
            self.calls(calls);
            (sys::thread_cpu_ns() - start) as f64 / calls as f64
        })
    }

    /// The same for entry handlers alone, called one after the other through their trait objects.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn bare_cpu_ns(&self, calls: u64) -> Result<f64, String> {
        self.counted(calls, || {
            let mut regs = Regs::default();
            let start = sys::thread_cpu_ns();
            for _ in 0..calls {
                for (consumer, _) in &self.consumers {
                    std::hint::black_box(consumer.handler(&mut regs, &mut 0));
                }
            }
            (sys::thread_cpu_ns() - start) as f64 / calls as f64
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_is_not_called_fails_the_run() {
        for kind in [Kind::Entry, Kind::Return] {
            let mut subject = Subject::new(kind, Config::default(), 9, 3);
            assert!(subject.run(2, 100).is_ok() && subject.cpu_ns(100).is_ok());
            let gone = subject.registered.pop().unwrap();
            assert_eq!(subject.registry.unregister_nosync(gone).breakpoints, 0);
            assert!(subject.run(1, 100).unwrap_err().contains("counted 0 hits, 110 were made"));
        }
    }
}
