//! What `torture live` is told.
//!
//! For:     `live_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `tests/live.rs`.

use crate::duration;
use session::LiveBroken;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Ways to break a live session, by name.
pub const BROKEN: [(&str, LiveBroken); 4] = [
    ("no-wait", LiveBroken::Grace(rcu::Broken::NoWait)),
    ("swapped-sums", LiveBroken::Grace(rcu::Broken::SwappedSums)),
    ("wrong-rank", LiveBroken::WrongRank),
    ("in-place", LiveBroken::InPlace),
];

pub const HELP: &str = "\
nanoprobe torture live: consumers come and go in one session while hits run

  --changes N     consumers added and removed, each so many (default 100000)
  --many N        then so many are added, and removed in one change (default 50000)
  --probes N      then whole probes come and go, so many rounds (default 100)
  --threads N     threads of the target that call the probed functions all the time (default 64)
  --forkers N     threads of it that fork children, of which some are killed in a hit (default 0)
  --hostile N     programs among the consumers that mean harm (default 100)
  --stop          the target is stopped by SIGSTOP now and then
  --late          attach when the threads run: grace periods then have no expedited fence
  --for TIME      stop after this time, for example 10m, even if changes are left
  --seed N        repeat the decisions of another run
  --broken NAME   break it on purpose: no-wait swapped-sums wrong-rank in-place;
                  the run must then FAIL

The last line is PASS or FAIL with counters; a run that tests nothing has none above zero:
  PASS broken=none added 100000 removed 100000 calls 48123345 grace 61 stops 0 ...
  FAIL broken=no-wait added 523 removed 410 ...: consumer 512 at a function that is never called counted 1";

pub struct Options {
    pub changes: u64,
    pub many: usize,
    pub probes: usize,
    pub threads: usize,
    pub forkers: usize,
    pub hostile: usize,
    pub has_stops: bool,
    pub is_late: bool,
    pub limit: Duration,
    pub seed: u64,
    pub broken: Option<(&'static str, LiveBroken)>,
}

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut o = Options {
        changes: 100_000,
        many: 50_000,
        probes: 100,
        threads: 64,
        forkers: 0,
        hostile: 100,
        has_stops: false,
        is_late: false,
        limit: Duration::from_secs(86_400),
        seed: clock.as_nanos() as u64 % 1_000_000_000,
        broken: None,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("changes") => o.changes = parser.value()?.parse()?,
            Long("many") => o.many = parser.value()?.parse()?,
            Long("probes") => o.probes = parser.value()?.parse()?,
            Long("threads") => o.threads = parser.value()?.parse::<usize>()?.min(128),
            Long("forkers") => o.forkers = parser.value()?.parse()?,
            Long("hostile") => o.hostile = parser.value()?.parse::<usize>()?.min(10_000),
            Long("stop") => o.has_stops = true,
            Long("late") => o.is_late = true,
            Long("for") => o.limit = duration(&parser.value()?.string()?)?,
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("broken") => {
                let name = parser.value()?.string()?;
                let known = BROKEN.into_iter().find(|(known, _)| *known == name);
                let names = BROKEN.map(|(name, _)| name).join(" ");
                let why = format!("no broken variant is called {name}; there are: {names}");
                o.broken = Some(known.ok_or(why)?);
            }
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(o))
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = self.broken.map_or("none", |(name, _)| name);
        write!(
            f,
            "changes {} many {} probes {} threads {} forkers {} hostile {} stop {} late {} seed {} broken {broken}",
            self.changes,
            self.many,
            self.probes,
            self.threads,
            self.forkers,
            self.hostile,
            self.has_stops,
            self.is_late,
            self.seed
        )
    }
}
