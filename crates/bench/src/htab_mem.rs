//! `bench htab-mem`: rate and memory of a hash whose keys come and go.
//!
//! For:     the figures of `objcache` under `map`, beside the kernel's published ones.
//! State:   one map per run.
//! Context: control.
//! Keeps:   M1 a counted batch is 64 keys of which each was really made or removed: what finds no object or a
//!          busy bucket is tried again, and counted. M2 at the end no element is lost.
//! Checked: tests below.
//! Source:  kernel selftests `benchs/bench_htab_mem.c`, `progs/htab_mem_bench.c`. Departs: no system call
//!          triggers a batch; memory is that of the map's elements, and the process's beside it.

mod options;

use crate::Summary;
use crate::command;
use crate::pin;
use map::{Error, Flag, Hash};
use objcache::Arena;
use options::{Options, UseCase, parse};
use std::io::Write;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::{Duration, Instant};

const BATCH: u64 = 64;
const MIB: f64 = (1 << 20) as f64;

/// Runs the benchmark; the exit status.
pub fn htab_mem_main(args: &[String]) -> i32 {
    command::carry_out("htab-mem", parse(args), |options, out| run(&options, out))
}

/// What producers share.
struct World {
    map: Hash,
    stop: AtomicBool,
    ops: Vec<AtomicU64>,
    /// Processor time of the producers.
    cpu_ns: AtomicU64,
    retries: AtomicU64,
    /// Per pair of producers: batches of 64 added and not yet removed by turns.
    turns: Vec<AtomicU32>,
}

impl World {
    /// Tries until it is done: the map may want objects, or a bucket may be busy.
    fn sure(&self, mut op: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
        loop {
            match op() {
                // A thread may do at once what the worker would do later; a handler would lose the event.
                Err(Error::NoMemory) => {
                    self.retries.fetch_add(1, Relaxed);
                    if let Some(cache) = self.map.cache() {
                        cache.help();
                    }
                }
                Err(Error::Busy) => {
                    self.retries.fetch_add(1, Relaxed);
                    std::thread::yield_now();
                }
                other => return other,
            }
        }
    }

    fn add(&self, id: u64, step: u64, value: &[u8]) {
        for n in 0..BATCH {
            let key = (id + n * step).to_ne_bytes();
            self.sure(|| self.map.update(&key, value, Flag::Any)).expect("there is room for every key");
        }
    }

    fn del(&self, id: u64, step: u64) {
        for n in 0..BATCH {
            let key = (id + n * step).to_ne_bytes();
            self.sure(|| self.map.delete(&key)).expect("the key was added");
        }
    }

    /// Waits for this side's turn; false at the end.
    fn wait_turn(&self, pair: usize, turn: u32) -> bool {
        for tries in 0.. {
            if self.turns[pair].load(Acquire) == turn {
                break;
            }
            if self.stop.load(Relaxed) {
                return false;
            }
            std::hint::spin_loop();
            // On a busy machine a yield may take milliseconds.
            if tries % 4096 == 4095 {
                std::thread::yield_now();
            }
        }
        true
    }
}

fn produce(world: &World, o: &Options, me: usize) {
    batches(world, o, me);
    world.cpu_ns.fetch_add(sys::thread_cpu_ns(), Relaxed);
}

fn batches(world: &World, o: &Options, me: usize) {
    if o.affinity {
        pin::pin_to(me % pin::online());
    }
    let (id, step) = match o.use_case.1 {
        UseCase::DiffCpu => (me as u64 / 2, o.producers as u64 / 2),
        _ => (me as u64, o.producers as u64),
    };
    let value = vec![me as u8 + 1; o.value_size];
    while !world.stop.load(Relaxed) {
        let done = match o.use_case.1 {
            UseCase::Overwrite => {
                world.add(id, step, &value);
                1
            }
            UseCase::AddDel => {
                world.add(id, step, &value);
                world.del(id, step);
                2
            }
            UseCase::DiffCpu => {
                let (pair, side) = (me / 2, (me % 2) as u32);
                if !world.wait_turn(pair, side) {
                    return;
                }
                if side == 0 {
                    world.add(id, step, &value)
                } else {
                    world.del(id, step)
                }
                world.turns[pair].store(1 - side, Release);
                1
            }
        };
        world.ops[me].fetch_add(done, Relaxed);
    }
}

/// Kilobytes that the process has in memory.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0)
}

/// One second: batches in thousands per producer and second, and the memory at its end in MiB.
struct Sample {
    rate: f64,
    memory: f64,
    peak: f64,
}

fn sample(world: &World, o: &Options) -> Sample {
    let ops = || world.ops.iter().map(|n| n.load(Relaxed)).sum::<u64>();
    let bytes = || world.map.cache().map_or(0, |cache| cache.census().bytes) as f64 / MIB;
    let (start, before, mut peak) = (Instant::now(), ops(), 0f64);
    while start.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(20));
        peak = peak.max(bytes());
    }
    let rate = (ops() - before) as f64 / start.elapsed().as_secs_f64() / o.producers as f64 / 1000.0;
    Sample { rate, memory: bytes(), peak }
}

fn run(o: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let limit = 8192.max(BATCH as u32 * o.producers as u32);
    let arena = Arena::private(8 << 30).map_err(std::io::Error::other)?;
    let mut builder = Hash::builder(8, o.value_size, limit).on_demand().hurry(o.hurry);
    if o.preallocated {
        builder = builder.preallocated();
    } else if o.plain {
        builder = builder.plain_free();
    }
    let world = World {
        map: builder.build(&arena).map_err(std::io::Error::other)?,
        stop: AtomicBool::new(false),
        ops: (0..o.producers).map(|_| AtomicU64::new(0)).collect(),
        cpu_ns: AtomicU64::new(0),
        retries: AtomicU64::new(0),
        turns: (0..o.producers.div_ceil(2)).map(|_| AtomicU32::new(0)).collect(),
    };
    let before_kb = resident_kb();
    let mut samples = Vec::new();
    let mut resident = 0;
    std::thread::scope(|s| {
        let world = &world;
        (0..o.producers).for_each(|me| drop(s.spawn(move || produce(world, o, me))));
        for n in 0..o.warmup + o.duration {
            let got = sample(world, o);
            if n >= o.warmup {
                if !o.json {
                    let Sample { rate, memory, .. } = got;
                    let _ = writeln!(
                        out,
                        "Iter {:>3}: per-prod-op {rate:>8.2}k/s, memory usage {memory:>7.2}MiB",
                        n - o.warmup
                    );
                }
                samples.push(got);
            }
        }
        resident = resident_kb().saturating_sub(before_kb);
        world.stop.store(true, Relaxed);
    });
    report(&world, o, &samples, resident, out)?;
    finish(world)
}

fn report(
    world: &World,
    o: &Options,
    samples: &[Sample],
    resident: u64,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let of = |f: fn(&Sample) -> f64| Summary::of(&samples.iter().map(f).collect::<Vec<_>>());
    let (rate, memory) = (of(|s| s.rate), of(|s| s.memory));
    let peak = samples.iter().map(|s| s.peak).fold(0.0, f64::max);
    let retries = world.retries.load(Relaxed);
    // On a busy machine other work takes wall time away, not this.
    let keys = world.ops.iter().map(|n| n.load(Relaxed)).sum::<u64>() * BATCH;
    let per_key = world.cpu_ns.load(Relaxed) as f64 / keys.max(1) as f64;
    if o.json {
        return writeln!(
            out,
            "{{\"name\":\"htab-mem\",\"case\":\"{o}\",\"per_prod_op_k\":{:.3},\"sd_k\":{:.3},\"median_k\":{:.3},\
             \"memory_mib\":{:.3},\"peak_mib\":{peak:.3},\"resident_kb\":{resident},\"retries\":{retries},\"cpu_ns_per_key\":{per_key:.2}}}",
            rate.mean, rate.sd, rate.median, memory.mean
        );
    }
    writeln!(
        out,
        "Summary: per-prod-op {:>8.2} \u{b1} {:>6.2}k/s, memory usage {:>7.2} \u{b1} {:>5.2}MiB, peak memory usage {peak:>7.2}MiB",
        rate.mean, rate.sd, memory.mean, memory.sd
    )?;
    writeln!(
        out,
        "  {o}; median {:.2}k/s; {per_key:.1} ns of processor time a key; resident +{resident} kB; tried again {retries}",
        rate.median
    )?;
    writeln!(out, "  published: {}", o.use_case.2)
}

/// Checks that no element was lost.
fn finish(world: World) -> std::io::Result<()> {
    let keys = i64::from(world.map.len());
    let cache = world.map.cache().ok_or_else(|| std::io::Error::other("the map has no cache"))?;
    cache.drain(Duration::from_secs(10));
    // SAFETY: nobody takes or gives now.
    let census = unsafe { cache.audit() }.map_err(std::io::Error::other)?;
    if census.live() != keys || census.misuse != 0 {
        return Err(std::io::Error::other(format!("{keys} keys, but {census:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_use_case_runs_both_ways_and_ends_in_a_summary() {
        for line in [
            "-w0 -d1 -p2",
            "-w0 -d1 -p2 --use-case batch_add_batch_del --free plain",
            "-w0 -d1 -p2 --use-case add_del_on_diff_cpu --preallocated",
        ] {
            let args: Vec<String> = line.split(' ').map(String::from).collect();
            let mut out = Vec::new();
            run(&parse(&args).unwrap().unwrap(), &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let summary = text.lines().find(|l| l.starts_with("Summary: per-prod-op ")).expect("a summary");
            assert!(!summary.contains(" 0.00 "), "{line}: {text}");
        }
    }

    #[test]
    fn an_odd_number_of_producers_cannot_pair() {
        let args = ["-p3", "--use-case", "add_del_on_diff_cpu"].map(String::from);
        assert!(parse(&args).is_err());
    }
}
