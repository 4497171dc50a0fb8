//! `torture rhltable`: lookups while the table is resized without pause.
//!
//! For:     finding an entry that a lookup missed, or memory that was reused under a reader.
//! State:   one table; counters.
//! Context: control.
//! Keeps:   T1 a run that passes has seen every fixed key at every lookup, and has resized, spread anew,
//!          inserted and removed meanwhile. T2 every broken variant fails (`tests/broken.rs`).
//! Checked: `tests/broken.rs`.

use crate::rng::Rng;
use coll::{Broken, Fold, Handle, Options as TableOptions, RhlTable};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const HELP: &str = "\
nanoprobe torture rhltable [OPTION]...
Readers look for keys that are always there, and hold what they find, while others insert, remove and resize.

  --for TIME      how long: 90s, 10m, 2h (60s)
  --seed N        repeat the decisions of another run
  --readers N     reader threads (3)
  --writers N     threads that insert and remove (2)
  --broken NAME   break the table on purpose: unlink-first, old-only, no-grace-period; the run must then fail

The last line is one of
  PASS seed=1 lookups=9 held=9 inserts=9 removes=9 resizes=9 rehashes=9
  FAIL seed=1 lookups=9 ...: key 17 was not found
";

/// Always there, with 1 to 3 entries each.
const FIXED: u64 = 400;
/// Come and go.
const VOLATILE: u64 = 400;

const BROKEN: [(&str, Broken); 3] = [
    ("unlink-first", Broken::UnlinkFirst),
    ("old-only", Broken::OldOnly),
    ("no-grace-period", Broken::NoGracePeriod),
];

struct Options {
    run_for: Duration,
    seed: u64,
    readers: usize,
    writers: usize,
    broken: Option<Broken>,
}

#[derive(Default)]
struct Counts {
    lookups: AtomicU64,
    held: AtomicU64,
    inserts: AtomicU64,
    removes: AtomicU64,
    resizes: AtomicU64,
    rehashes: AtomicU64,
}

struct World {
    table: RhlTable<u64, u64>,
    counts: Counts,
    stop: AtomicBool,
    wrong: Mutex<Option<String>>,
}

/// The value that entry `n` of a key has.
fn value(key: u64, n: u64) -> u64 {
    key * 1_000_003 + n
}

/// Runs the torture; the exit status: 0 passed, 1 failed, 2 bad arguments.
pub fn rhltable_main(args: &[String]) -> i32 {
    match parse(args) {
        Ok(Some(options)) => run(&options),
        Ok(None) => 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture rhltable --help");
            2
        }
    }
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = now.as_nanos() as u64 % 1_000_000_000;
    let mut options =
        Options { run_for: Duration::from_secs(60), seed, readers: 3, writers: 2, broken: None };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => options.run_for = crate::duration(&parser.value()?.string()?)?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("readers") => options.readers = parser.value()?.parse::<usize>()?.max(1),
            Long("writers") => options.writers = parser.value()?.parse::<usize>()?.max(1),
            Long("broken") => {
                let name = parser.value()?.string()?;
                let known = BROKEN.iter().find(|(n, _)| *n == name);
                options.broken = Some(known.ok_or_else(|| format!("no broken variant {name}"))?.1);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> i32 {
    let table = TableOptions { shrinks: true, broken: options.broken, ..TableOptions::default() };
    let table = match RhlTable::with_options(table, Fold::default()) {
        Ok(table) => table,
        Err(error) => {
            eprintln!("nanoprobe: {error}");
            return 2;
        }
    };
    let world =
        World { table, counts: Counts::default(), stop: AtomicBool::new(false), wrong: Mutex::new(None) };
    for key in 0..FIXED {
        (0..1 + key % 3).for_each(|n| world.note(world.table.insert(key, value(key, n)).map(drop)));
    }
    std::thread::scope(|s| {
        let world = &world;
        (0..options.readers).for_each(|n| drop(s.spawn(move || world.read(options.seed, n as u64))));
        (0..options.writers).for_each(|n| drop(s.spawn(move || world.write(options.seed, 100 + n as u64))));
        s.spawn(move || world.resize(options.seed));
        let end = Instant::now() + options.run_for;
        while Instant::now() < end && !world.stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        world.stop.store(true, Relaxed);
    });
    world.verdict(options.seed)
}

impl World {
    fn fail(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(|e| e.into_inner());
        wrong.get_or_insert(what);
        self.stop.store(true, Relaxed);
    }

    fn note<E: std::fmt::Display>(&self, done: Result<(), E>) {
        if let Err(error) = done {
            self.fail(error.to_string());
        }
    }

    fn read(&self, seed: u64, stream: u64) {
        let mut rng = Rng::new(seed, stream);
        while !self.stop.load(Relaxed) {
            for _ in 0..100 {
                self.look_for_fixed(rng.below(FIXED));
            }
            self.counts.lookups.fetch_add(100, Relaxed);
            self.hold(FIXED + rng.below(VOLATILE), rng.one_in(8));
        }
    }

    /// All entries of the key, each once.
    fn look_for_fixed(&self, key: u64) {
        let reader = self.table.read();
        let (mut n, mut sum) = (0, 0u64);
        for found in reader.get(&key) {
            n += 1;
            sum = sum.wrapping_add(*found);
        }
        let wanted = 1 + key % 3;
        if n != wanted || sum != (0..wanted).map(|i| value(key, i)).sum() {
            self.fail(format!("key {key}: {n} entries of {wanted} were found, or wrong ones"));
        }
    }

    /// What is found may be removed meanwhile, but stays as it is.
    fn hold(&self, key: u64, is_long: bool) {
        let reader = self.table.read();
        for found in reader.get(&key) {
            let at: *const u64 = found;
            // SAFETY: `found` borrows the section; read anew each time, because a broken table changes it.
            let seen = || unsafe { at.read_volatile() };
            let first = seen();
            if is_long {
                std::thread::yield_now();
            }
            (0..50).for_each(|_| std::hint::spin_loop());
            if first / 1_000_003 != key || seen() != first {
                return self.fail(format!("key {key}: an entry changed under a reader"));
            }
            self.counts.held.fetch_add(1, Relaxed);
        }
    }

    fn write(&self, seed: u64, stream: u64) {
        let mut rng = Rng::new(seed, stream);
        let mut held: Vec<Handle> = Vec::new();
        while !self.stop.load(Relaxed) {
            let goal = rng.below(2 * VOLATILE) as usize;
            while held.len() < goal {
                let key = FIXED + rng.below(VOLATILE);
                match self.table.insert(key, value(key, rng.below(1000))) {
                    Ok(handle) => held.push(handle),
                    Err(error) => return self.fail(error.to_string()),
                }
                self.counts.inserts.fetch_add(1, Relaxed);
            }
            while held.len() > goal {
                let handle = held.swap_remove(rng.below(held.len() as u64) as usize);
                if !self.table.remove(handle) {
                    return self.fail("an entry to be removed was not there".into());
                }
                self.counts.removes.fetch_add(1, Relaxed);
            }
        }
        for handle in held {
            if !self.table.remove(handle) {
                self.fail("an entry to be removed was not there".into());
            }
        }
    }

    fn resize(&self, seed: u64) {
        let mut rng = Rng::new(seed, 200);
        while !self.stop.load(Relaxed) {
            let (done, count) = match rng.below(3) {
                0 => (self.table.rehash(), &self.counts.rehashes),
                1 => (self.table.maintain(), &self.counts.resizes),
                _ => (self.table.resize(4 << rng.below(9)), &self.counts.resizes),
            };
            match done {
                Ok(resized) => count.fetch_add(u64::from(resized != coll::Resized::No), Relaxed),
                Err(error) => return self.fail(error.to_string()),
            };
        }
    }

    fn verdict(&self, seed: u64) -> i32 {
        let c = &self.counts;
        let all = [
            ("lookups", &c.lookups),
            ("held", &c.held),
            ("inserts", &c.inserts),
            ("removes", &c.removes),
            ("resizes", &c.resizes),
            ("rehashes", &c.rehashes),
        ];
        let mut line = format!("seed={seed}");
        all.iter().for_each(|(name, n)| line += &format!(" {name}={}", n.load(Relaxed)));
        let idle = all.iter().find(|(_, n)| n.load(Relaxed) == 0).map(|(name, _)| format!("no {name}"));
        let left = self.table.keys() as u64;
        let wrong = self.wrong.lock().unwrap_or_else(|e| e.into_inner()).clone().or(idle);
        match wrong.or_else(|| (left != FIXED).then(|| format!("{left} keys are left, not {FIXED}"))) {
            None => {
                println!("PASS {line}");
                0
            }
            Some(why) => {
                println!("FAIL {line}: {why}");
                1
            }
        }
    }
}
