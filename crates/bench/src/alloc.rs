//! `bench alloc`: what it costs to take and give back an object.
//!
//! For:     the figures of `objcache`, beside malloc and other allocators in the same run.
//! State:   none.
//! Context: control.
//! Keeps:   A1 every object is checked to be one, and written once. A2 each object that was handed over was
//!          freed by the other thread, counted on both sides.
//! Checked: tests below.

mod peers;

use crate::Summary;
use crate::command;
use crate::pin::{self, Gate};
use crate::refscale::json;
use objcache::{ObjectCache, View};
use std::io::Write;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Instant;

const HELP: &str = "\
nanoprobe bench alloc [OPTION]... [NAME]...
Measures the nanoseconds of taking and giving back an object, for the cache and for malloc.

  --size N     bytes of an object (64)
  --count N    objects per run (2000000)
  --nruns N    runs (9)
  -f json      one object per line, with name and median_ns
  --list       print the names

pair: one thread takes and gives back at once. batch: 1000 taken, then 1000 given back.
pair2: as pair, on two threads. cross: taken by a thread on one CPU, given back by another
on the next; per object, both sides' work at the same time.
objcache-locked is the cache of threads without rseq. jemalloc, mimalloc and tcmalloc are
measured, each preloaded into a process of its own, if their libraries are installed
(Debian: libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4).

Example: nanoprobe bench alloc --size 64 objcache malloc
";

pub struct Options {
    size: usize,
    count: usize,
    nruns: usize,
    json: bool,
    only: Vec<String>,
    /// Measure malloc as this library, which is preloaded.
    under: Option<String>,
}

/// Something that gives out objects.
pub trait Source: Sync {
    fn take(&self) -> Option<NonNull<u8>>;
    /// # Safety
    /// The object must have come from `take`, once.
    unsafe fn give(&self, object: NonNull<u8>);
}

impl Source for View<'_> {
    #[inline(always)]
    fn take(&self) -> Option<NonNull<u8>> {
        self.alloc().map(|index| self.payload(index))
    }

    #[inline(always)]
    unsafe fn give(&self, object: NonNull<u8>) {
        // SAFETY: the caller's duties are the same.
        unsafe { self.free(self.index_of(object)) };
    }
}

/// Runs the benchmark; the exit status.
pub fn alloc_main(args: &[String]) -> i32 {
    command::carry_out("alloc", parse(args), |options, out| run(&options, out))
}

fn names() -> Vec<&'static str> {
    ["objcache", "objcache-locked"].into_iter().chain(peers::names()).collect()
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut o = Options { size: 64, count: 2_000_000, nruns: 9, json: false, only: Vec::new(), under: None };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("size") => o.size = parser.value()?.parse::<usize>()?.clamp(8, 4088),
            Long("count") => o.count = parser.value()?.parse::<usize>()?.max(1000),
            Long("nruns") => o.nruns = parser.value()?.parse::<usize>()?.max(1),
            Long(peers::UNDER) => o.under = Some(parser.value()?.string()?),
            Short('f') => o.json = json(&parser.value()?.string()?)?,
            Long("list") => {
                names().iter().for_each(|name| print!("{name}\n"));
                return Ok(None);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Value(name) => o.only.push(name.string()?),
            other => return Err(other.unexpected()),
        }
    }
    if let Some(unknown) = o.only.iter().find(|name| !names().contains(&name.as_str())) {
        return Err(format!("no allocator is called {unknown}; there are: {}", names().join(" ")).into());
    }
    Ok(Some(o))
}

fn run(o: &Options, out: &mut impl Write) -> std::io::Result<()> {
    if let Some(name) = &o.under {
        return peers::row_under(name, o, out);
    }
    if !o.json {
        let Options { size, count, nruns, .. } = o;
        writeln!(out, "alloc: size={size} count={count} nruns={nruns}, ns per object, medians")?;
        writeln!(out, "{:<16} {:>9} {:>9} {:>9} {:>9}", "Allocator", "pair", "batch", "pair2", "cross")?;
    }
    let wanted = |name: &str| o.only.is_empty() || o.only.iter().any(|n| n == name);
    for (name, rseq) in [("objcache", true), ("objcache-locked", false)] {
        if wanted(name) {
            let builder = ObjectCache::builder(o.size).rseq(rseq).reserve(20_000);
            let cache = builder.build().map_err(std::io::Error::other)?;
            row(name, &cache.view(), o, out)?;
            // SAFETY: nobody takes or gives now.
            let audit = unsafe { cache.audit() }.map_err(std::io::Error::other)?;
            if audit.live() != 0 || audit.misuse != 0 {
                return Err(std::io::Error::other(format!("objects lost: {audit:?}")));
            }
        }
    }
    peers::rows(o, wanted, out)
}

fn row<S: Source>(name: &str, source: &S, o: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let measure = |f: &dyn Fn() -> f64| {
        let runs: Vec<f64> = (0..o.nruns).map(|_| f()).collect();
        Summary::of(&runs)
    };
    let kinds = [
        ("pair", measure(&|| pair(source, o.count))),
        ("batch", measure(&|| batch(source, o.count))),
        ("pair2", measure(&|| pair_on_two(source, o.count))),
        ("cross", measure(&|| cross(source, o.count))),
    ];
    if !o.json {
        let m: Vec<_> = kinds.iter().map(|(_, s)| s.median).collect();
        return writeln!(out, "{name:<16} {:>9.2} {:>9.2} {:>9.2} {:>9.2}", m[0], m[1], m[2], m[3]);
    }
    for (kind, Summary { median, mean, sd, min, .. }) in kinds {
        writeln!(
            out,
            "{{\"name\":\"{name}-{kind}\",\"median_ns\":{median:.3},\"mean_ns\":{mean:.3},\"sd_ns\":{sd:.3},\
             \"min_ns\":{min:.3},\"size\":{},\"count\":{},\"nruns\":{}}}",
            o.size, o.count, o.nruns
        )?;
    }
    Ok(())
}

/// Waits until there is an object: the worker may have to be waited for.
#[inline(always)]
fn sure<S: Source>(source: &S) -> NonNull<u8> {
    loop {
        if let Some(object) = source.take() {
            // SAFETY: an object has at least 8 bytes, 8-aligned.
            unsafe { object.cast::<u64>().write_volatile(1) };
            return object;
        }
        std::thread::yield_now();
    }
}

fn pair<S: Source>(source: &S, count: usize) -> f64 {
    pin::pin_to(0);
    let start = sys::thread_cpu_ns();
    for _ in 0..count {
        let object = sure(source);
        // SAFETY: taken above.
        unsafe { source.give(object) };
    }
    (sys::thread_cpu_ns() - start) as f64 / count as f64
}

fn batch<S: Source>(source: &S, count: usize) -> f64 {
    let mut held = Vec::with_capacity(1000);
    let start = sys::thread_cpu_ns();
    for _ in 0..count / 1000 {
        held.extend((0..1000).map(|_| sure(source)));
        for object in held.drain(..) {
            // SAFETY: taken above.
            unsafe { source.give(object) };
        }
    }
    (sys::thread_cpu_ns() - start) as f64 / (count / 1000 * 1000) as f64
}

fn pair_on_two<S: Source>(source: &S, count: usize) -> f64 {
    let gate = Gate::new(2);
    let one = |cpu: usize| {
        pin::pin_to(cpu % pin::online());
        gate.pass();
        let start = sys::thread_cpu_ns();
        for _ in 0..count {
            let object = sure(source);
            // SAFETY: taken above.
            unsafe { source.give(object) };
        }
        (sys::thread_cpu_ns() - start) as f64 / count as f64
    };
    std::thread::scope(|s| {
        let other = s.spawn(|| one(1));
        (one(0) + other.join().expect("the other thread does not panic")) / 2.0
    })
}

/// Addresses on their way from one thread to another: 64 slots of 64 addresses.
struct Belt {
    slots: Box<[[AtomicUsize; 64]]>,
    sent: AtomicUsize,
    freed: AtomicUsize,
}

impl Belt {
    fn put(&self, n: usize, batch: &[NonNull<u8>; 64]) {
        while n - self.freed.load(Acquire) >= self.slots.len() {
            std::thread::yield_now();
        }
        for (slot, object) in self.slots[n % self.slots.len()].iter().zip(batch) {
            slot.store(object.as_ptr() as usize, Relaxed);
        }
        self.sent.store(n + 1, Release);
    }

    fn take(&self, n: usize, mut each: impl FnMut(NonNull<u8>)) {
        while self.sent.load(Acquire) <= n {
            std::thread::yield_now();
        }
        for slot in &self.slots[n % self.slots.len()] {
            each(NonNull::new(slot.load(Relaxed) as *mut u8).expect("an object was put"));
        }
        self.freed.store(n + 1, Release);
    }
}

/// Wall time per object of a producer and a consumer on two CPUs.
fn cross<S: Source>(source: &S, count: usize) -> f64 {
    let slots = (0..64).map(|_| std::array::from_fn(|_| AtomicUsize::new(0))).collect();
    let belt = Belt { slots, sent: AtomicUsize::new(0), freed: AtomicUsize::new(0) };
    let (gate, rounds) = (Gate::new(2), count / 64);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin::pin_to(1 % pin::online());
            gate.pass();
            let mut freed = 0;
            for n in 0..rounds {
                belt.take(n, |object| {
                    // SAFETY: the other thread took it and gave it up.
                    unsafe { source.give(object) };
                    freed += 1;
                });
            }
            assert_eq!(freed, rounds * 64);
        });
        pin::pin_to(0);
        gate.pass();
        let start = Instant::now();
        for n in 0..rounds {
            belt.put(n, &std::array::from_fn(|_| sure(source)));
        }
        while belt.freed.load(Acquire) < rounds {
            std::thread::yield_now();
        }
        start.elapsed().as_nanos() as f64 / (rounds * 64) as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_allocator_has_a_row_and_loses_nothing() {
        let args = ["--count", "1000", "--nruns", "1", "objcache", "objcache-locked", "malloc"];
        let args: Vec<String> = args.iter().map(|s| s.to_string()).collect();
        let mut out = Vec::new();
        run(&parse(&args).unwrap().unwrap(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
    }

    #[test]
    fn a_library_that_is_not_mapped_has_no_figures() {
        let args = ["--count", "1000", "--nruns", "1", "--under", "jemalloc"].map(String::from);
        let mut out = Vec::new();
        assert!(run(&parse(&args).unwrap().unwrap(), &mut out).is_err());
        assert!(out.is_empty());
    }
}
