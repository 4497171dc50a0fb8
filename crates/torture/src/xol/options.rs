//! What `torture xol` is told.
//!
//! For:     `xol_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `tests/xol.rs`.

use crate::duration;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trap::{Broken, BrokenPoke, Scheme, Sync};

const HELP: &str = "\
nanoprobe torture xol [OPTION]...
Threads call functions of this process whose first instruction is probed by int3 and
runs in an out-of-line slot. There are more threads than slots, and more functions than
slots, signals come all the time and probes come and go. Each function returns a number
of its own: a stale or foreign instruction in a slot is seen. With --jumps the probes
are jumps, written and taken away while threads are under them.

  --for TIME         how long: 90s, 10m, 2h (60s)
  --hits N           end after so many hits, if that comes first
  --seed N           repeat the decisions of another run
  --scheme S         cached or dynamic (cached)
  --sync S           range or broadcast (range)
  --threads N        (40)
  --functions N      (100)
  --slots N          slots that are used, at most 31; fewer than processors, or nobody waits (1)
  --jumps            probes by jump, in functions of this program
  --broken NAME      break the slots on purpose: lost-wakeup recycle-in-use (cached);
                     with --jumps their writing: no-breakpoint;
                     the run must then fail. A forgotten synchronisation cannot be seen
                     on x86-64: crates/text/src/xol/tests.rs looks at the order instead

The last line begins with PASS or FAIL, and the exit status is 0 or 1:
  PASS broken=none scheme=cached seed=7 hits=90123 wrong=0 stuck=0 seen=0 written=70100 waits=512 ...
  FAIL broken=lost-wakeup scheme=dynamic seed=7 hits=412 wrong=0 stuck=1 ...

Example: nanoprobe torture xol --hits 10000000 --for 10m --scheme dynamic
";

/// The parameters.
#[derive(Clone, Copy)]
pub struct Options {
    pub run_for: Duration,
    pub hits: u64,
    pub seed: u64,
    pub scheme: Scheme,
    pub sync: Sync,
    pub threads: usize,
    pub functions: usize,
    pub slots: usize,
    pub jumps: bool,
    pub broken: Option<(&'static str, Fault)>,
}

/// What is broken.
#[derive(Clone, Copy)]
pub enum Fault {
    Slots(Broken),
    Poke(BrokenPoke),
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_for, seed, scheme, sync, threads, functions, slots, .. } = self;
        let broken = self.broken.map_or("none", |b| b.0);
        write!(f, "broken={broken} scheme={} seed={seed} for={run_for:?} sync={sync:?} ", name(*scheme))?;
        write!(f, "threads={threads} functions={functions} slots={slots} jumps={}", self.jumps)
    }
}

/// As it is typed.
pub fn name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Cached => "cached",
        Scheme::Dynamic => "dynamic",
    }
}

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut o = Options {
        run_for: Duration::from_secs(60),
        hits: u64::MAX,
        seed: now % 1_000_000_007,
        scheme: Scheme::Cached,
        sync: Sync::Range,
        threads: 40,
        functions: 100,
        slots: 1,
        jumps: false,
        broken: None,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => o.run_for = duration(&parser.value()?.string()?)?,
            Long("hits") => o.hits = parser.value()?.parse()?,
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("scheme") => {
                o.scheme = pick(&mut parser, &[("cached", Scheme::Cached), ("dynamic", Scheme::Dynamic)])?
            }
            Long("sync") => {
                o.sync = pick(&mut parser, &[("range", Sync::Range), ("broadcast", Sync::Broadcast)])?
            }
            Long("threads") => o.threads = parser.value()?.parse::<usize>()?.clamp(1, 1000),
            Long("functions") => o.functions = parser.value()?.parse::<usize>()?.clamp(2, 200),
            Long("jumps") => o.jumps = true,
            Long("slots") => o.slots = parser.value()?.parse::<usize>()?.clamp(1, 31),
            Long("broken") => o.broken = Some(broken(&parser.value()?.string()?)?),
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    if o.jumps {
        // So many are in the program's text.
        o.functions = o.functions.min(super::world::JUMP_FUNCTIONS / 2);
    }
    match o.broken {
        Some((name, Fault::Poke(_))) if !o.jumps => Err(format!("{name} is of jumps: --jumps").into()),
        Some((name, Fault::Slots(_))) if o.jumps => Err(format!("{name} is of slots, not of jumps").into()),
        _ => Ok(Some(o)),
    }
}

fn pick<T: Copy>(parser: &mut lexopt::Parser, from: &[(&str, T)]) -> Result<T, lexopt::Error> {
    use lexopt::ValueExt;
    let name = parser.value()?.string()?;
    let found = from.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| format!("'{name}' is not one of them").into())
}

fn broken(name: &str) -> Result<(&'static str, Fault), String> {
    let all = [
        ("lost-wakeup", Fault::Slots(Broken::LostWakeup)),
        ("recycle-in-use", Fault::Slots(Broken::RecycleInUse)),
        ("no-breakpoint", Fault::Poke(BrokenPoke::NoBreakpoint)),
    ];
    all.into_iter().find(|b| b.0 == name).ok_or_else(|| format!("no broken variant '{name}'"))
}
