//! `bench map-perf`: what maps cost.
//!
//! For:     the figures of `map`, the hash's beside the kernel's published ones.
//! State:   one map per row.
//! Context: control.
//! Keeps:   F1 each operation's result is looked at, and what failed is not counted. F2 records read and lost
//!          are records produced.
//! Checked: tests below.
//! Source:  kernel `samples/bpf/map_perf_test`: an event is a cheap system call and ten times update, lookup and
//!          delete of one key.

use crate::Summary;
use crate::command;
use crate::pin::{self, Gate};
use crate::refscale::json;
use map::{Error, Flag, Hash, Histogram, Next, PercpuArray, Reader, Ring};
use objcache::Arena;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

const HELP: &str = "\
nanoprobe bench map-perf [OPTION]... [FLAGS [CPUS [ENTRIES [EVENTS]]]]
The kernel's map_perf_test on our hash, then what single operations cost.

  FLAGS    tests, as a mask: 1 hash, preallocated; 4 hash from the cache (5)
  CPUS     threads, each on a CPU of its own (all)
  ENTRIES  keys that the hash may hold (16348)
  EVENTS   events per thread (200000)
  --nruns N   runs of the single operations (7)
  -f json     one object per line

Example: nanoprobe bench map-perf 4 2 16348 1000000
";

struct Options {
    numbers: Vec<u64>,
    nruns: usize,
    json: bool,
}

impl Options {
    fn number(&self, n: usize, or: u64) -> u64 {
        self.numbers.get(n).copied().unwrap_or(or).max(1)
    }
}

/// Runs the benchmark; the exit status.
pub fn map_perf_main(args: &[String]) -> i32 {
    command::carry_out("map-perf", parse(args), |options, out| run(&options, out))
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut o = Options { numbers: Vec::new(), nruns: 7, json: false };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("nruns") => o.nruns = parser.value()?.parse::<usize>()?.max(1),
            Short('f') => o.json = json(&parser.value()?.string()?)?,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Value(number) if o.numbers.len() < 4 => o.numbers.push(number.parse()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(o))
}

fn run(o: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let arena = Arena::private(4 << 30).map_err(std::io::Error::other)?;
    let (flags, entries) = (o.number(0, 5), o.number(2, 16348) as u32);
    let kinds = [
        (1, "pre-alloc", "", Hash::builder(8, 8, entries).preallocated()),
        (
            4,
            "kmalloc, plain free",
            "kernel: 800k per CPU on 8",
            Hash::builder(8, 8, entries).on_demand().plain_free(),
        ),
        (4, "kmalloc, free_rcu", "kernel: 600k per CPU on 8", Hash::builder(8, 8, entries).on_demand()),
    ];
    for (flag, name, published, builder) in kinds {
        if flags & flag != 0 {
            let map = builder.build(&arena).map_err(std::io::Error::other)?;
            events(o, name, published, &map, out)?;
        }
    }
    singles(o, &arena, out)
}

/// Tries until it is done; how often it had to.
fn sure(mut op: impl FnMut() -> Result<(), Error>) -> u64 {
    for tries in 0.. {
        match op() {
            Ok(()) => return tries,
            Err(Error::NoMemory | Error::Busy) => std::thread::yield_now(),
            Err(other) => panic!("map-perf: {other}"),
        }
    }
    0
}

fn events(o: &Options, name: &str, published: &str, map: &Hash, out: &mut impl Write) -> std::io::Result<()> {
    let threads = o.number(1, pin::online() as u64) as usize;
    let count = o.number(3, 200_000);
    let gate = Gate::new(threads);
    let one = |cpu: usize| {
        pin::pin_to(cpu % pin::online());
        gate.pass();
        let key = (1000 + cpu as u64).to_ne_bytes();
        let (start, mut tries, mut value) = (Instant::now(), 0, [0; 8]);
        for n in 0..count {
            // SAFETY: getppid takes nothing and touches no memory.
            unsafe { sys::syscall(sys::nr::GETPPID, [0; 6]) };
            for _ in 0..10 {
                tries += sure(|| map.update(&key, &n.to_ne_bytes(), Flag::Any));
                tries += sure(|| map.get(&key, &mut value));
                tries += sure(|| map.delete(&key));
            }
            assert_eq!(value, n.to_ne_bytes(), "another value than was written");
        }
        (count as f64 / start.elapsed().as_secs_f64(), tries)
    };
    let one = &one;
    let results: Vec<(f64, u64)> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..threads).map(|cpu| s.spawn(move || one(cpu))).collect();
        threads.into_iter().map(|t| t.join().expect("a thread does not panic")).collect()
    });
    assert!(map.is_empty(), "every key was deleted");
    for (cpu, (rate, tries)) in results.iter().enumerate() {
        if o.json {
            writeln!(
                out,
                "{{\"name\":\"hash_map_perf {name}\",\"cpu\":{cpu},\"events_per_sec\":{rate:.0},\"tried_again\":{tries}}}"
            )?;
        } else {
            writeln!(
                out,
                "{cpu}:hash_map_perf {name} {rate:.0} events per sec (tried again {tries}; {published})"
            )?;
        }
    }
    Ok(())
}

fn print(o: &Options, name: &str, unit: &str, results: &[f64], out: &mut impl Write) -> std::io::Result<()> {
    let Summary { median, sd, min, .. } = Summary::of(results);
    if o.json {
        return writeln!(
            out,
            "{{\"name\":\"{name}\",\"unit\":\"{unit}\",\"median\":{median:.3},\"sd\":{sd:.3},\"min\":{min:.3}}}"
        );
    }
    writeln!(out, "{name:<40} {median:>9.2} {unit} (sd {sd:.2}, least {min:.2})")
}

const KEYS: u64 = 1024;
const LOOPS: u64 = 1_000_000;

/// Nanoseconds of the thread's processor time per call.
fn per_call(mut op: impl FnMut(u64)) -> f64 {
    let start = sys::thread_cpu_ns();
    (0..LOOPS).for_each(&mut op);
    (sys::thread_cpu_ns() - start) as f64 / LOOPS as f64
}

fn singles(o: &Options, arena: &Arena, out: &mut impl Write) -> std::io::Result<()> {
    let fail = std::io::Error::other;
    let map = Hash::builder(8, 8, 16384).build(arena).map_err(fail)?;
    (0..KEYS).for_each(|n| _ = sure(|| map.update(&n.to_ne_bytes(), &n.to_ne_bytes(), Flag::Any)));
    pin::pin_to(0);
    let runs = |f: &dyn Fn() -> f64| (0..o.nruns).map(|_| f()).collect::<Vec<_>>();
    let lookup = |n: u64| {
        let mut value = [0; 8];
        let key = n.wrapping_mul(0x9e37_79b9) % KEYS;
        map.get(&key.to_ne_bytes(), &mut value).expect("the key is there");
        assert_eq!(value, key.to_ne_bytes());
    };
    print(o, "hash lookup", "ns", &runs(&|| per_call(lookup)), out)?;
    let sums = Hash::builder(8, 8, 16384).build(arena).map_err(fail)?;
    print(
        o,
        "hash add, key there",
        "ns",
        &runs(&|| per_call(|n| _ = sure(|| sums.add(&(n % KEYS).to_ne_bytes(), 1)))),
        out,
    )?;
    let total: u64 = (0..KEYS).map(|n| sums.sum(&n.to_ne_bytes()).unwrap_or(0)).sum();
    assert_eq!(total, LOOPS * o.nruns as u64, "adds lost");
    let array = PercpuArray::create(arena, 64).map_err(fail)?;
    print(
        o,
        "per-CPU array add",
        "ns",
        &runs(&|| per_call(|n| assert!(array.add((n % 64) as u32, 1)))),
        out,
    )?;
    let histogram = Histogram::create(arena, map::Buckets::Log2).map_err(fail)?;
    print(o, "histogram record", "ns", &runs(&|| per_call(|n| histogram.record(n))), out)?;
    scaling(o, arena, out)?;
    ring(o, arena, out)
}

/// Update and lookup of separate keys by one thread and by two.
fn scaling(o: &Options, arena: &Arena, out: &mut impl Write) -> std::io::Result<()> {
    let map = Hash::builder(8, 8, 16384).build(arena).map_err(std::io::Error::other)?;
    let rate = |threads: usize| {
        let gate = Gate::new(threads);
        let one = |cpu: usize| {
            pin::pin_to(cpu % pin::online());
            gate.pass();
            let start = sys::thread_cpu_ns();
            for n in 0..LOOPS / 2 {
                let key = (n % 128 * 2 + cpu as u64).to_ne_bytes();
                sure(|| map.update(&key, &n.to_ne_bytes(), Flag::Any));
                let mut value = [0; 8];
                sure(|| map.get(&key, &mut value));
                assert_eq!(value, n.to_ne_bytes());
            }
            (LOOPS / 2) as f64 * 1000.0 / (sys::thread_cpu_ns() - start) as f64
        };
        let one = &one;
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..threads).map(|cpu| s.spawn(move || one(cpu))).collect();
            threads.into_iter().map(|t| t.join().expect("a thread does not panic")).sum::<f64>()
        })
    };
    let (mut ones, mut twos, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..o.nruns {
        let (one, two) = (rate(1), rate(2));
        ones.push(one);
        twos.push(two);
        ratios.push(two / one);
    }
    print(o, "hash update+lookup, 1 thread", "M/s", &ones, out)?;
    print(o, "hash update+lookup, 2 threads", "M/s", &twos, out)?;
    print(o, "  two threads against one", "x", &ratios, out)
}

/// Records of 16 bytes from one producer to one reader.
fn ring(o: &Options, arena: &Arena, out: &mut impl Write) -> std::io::Result<()> {
    let (mut rates, mut lost_all) = (Vec::new(), 0);
    for _ in 0..o.nruns {
        let ring = Ring::create(arena, 8 << 20).map_err(std::io::Error::other)?;
        let done = AtomicBool::new(false);
        // SAFETY: the only reader of a new ring.
        let mut reader = unsafe { Reader::new(ring.clone()) };
        let (rate, read) = std::thread::scope(|s| {
            let (ring, done) = (&ring, &done);
            let reading = s.spawn(move || {
                pin::pin_to(1 % pin::online());
                let (mut read, mut last) = (0u64, 0);
                loop {
                    let was_done = done.load(Relaxed);
                    let mut record = [0; 16];
                    let next = reader.next_with(|copy, len| copy(&mut record[..len]));
                    if next == Next::Record {
                        let n = u64::from_ne_bytes(std::array::from_fn(|i| record[i]));
                        assert!(n > last && record[..8] == record[8..], "torn or out of order");
                        (read, last) = (read + 1, n);
                    } else if was_done {
                        return read;
                    }
                }
            });
            pin::pin_to(0);
            let start = sys::thread_cpu_ns();
            for n in 1..=LOOPS {
                let mut record = [0; 16];
                record[..8].copy_from_slice(&n.to_ne_bytes());
                record[8..].copy_from_slice(&n.to_ne_bytes());
                let _ = ring.output(&record);
            }
            let rate = LOOPS as f64 * 1000.0 / (sys::thread_cpu_ns() - start) as f64;
            done.store(true, Relaxed);
            (rate, reading.join().expect("no torn record"))
        });
        assert_eq!(read + ring.lost(), LOOPS, "records read and lost are not those produced");
        // Only records that arrived count.
        rates.push(rate * read as f64 / LOOPS as f64);
        lost_all += ring.lost();
    }
    print(o, "ring, 16-byte records, one producer", "M/s", &rates, out)?;
    if !o.json {
        writeln!(out, "  lost {lost_all} of {}, not counted in the rate", LOOPS * o.nruns as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_there_once() {
        let args = ["--nruns", "1", "5", "2", "100", "1000"].map(String::from);
        let mut out = Vec::new();
        run(&parse(&args).unwrap().unwrap(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().filter(|l| l.contains("hash_map_perf")).count(), 6, "{text}");
        assert_eq!(
            text.lines().filter(|l| l.starts_with("ring,") || l.starts_with("hash lookup")).count(),
            2
        );
    }
}
