//! What `torture mem` is told.
//!
//! For:     `mem_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `tests/broken_mem.rs`.

use objcache::Broken;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The parameters.
pub struct Options {
    pub run_for: Duration,
    pub seed: u64,
    pub threads: usize,
    pub size: usize,
    pub stutter: Duration,
    pub rseq: bool,
    pub broken: Option<(&'static str, Broken)>,
}

/// The broken variants (table).
const BROKEN: [(&str, Broken); 3] = [
    ("early-reuse", Broken::EarlyReuse),
    ("lost-list", Broken::LostList),
    ("forgotten-barrier", Broken::ForgottenBarrier),
];

const HELP: &str = "\
nanoprobe torture mem [OPTION]...
Takes, gives and retires objects from threads that move and from signal handlers that
interrupt them, while readers look at what is published. After each pause every object
is counted.

  --for TIME      how long: 90s, 10m, 2h (60s)
  --seed N        repeat the decisions of another run
  --threads N     (4)
  --size N        bytes of an object (56), a multiple of 8
  --stutter TIME  between two pauses (1s)
  --no-rseq       no thread uses rseq
  --broken NAME   break the cache on purpose: early-reuse lost-list forgotten-barrier;
                  the run must then fail

The last line is `PASS ...` or `FAIL broken=early-reuse ... errors=1 ...`, and the exit status 0
or 1. `first error:` says what was seen.

Example: nanoprobe torture mem --for 10m
Example: nanoprobe torture mem --broken early-reuse --for 30s
";

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut o = Options {
        run_for: Duration::from_secs(60),
        seed: now % 1_000_000,
        threads: 4,
        size: 56,
        stutter: Duration::from_secs(1),
        rseq: true,
        broken: None,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => o.run_for = crate::duration(&parser.value()?.string()?)?,
            Long("stutter") => o.stutter = crate::duration(&parser.value()?.string()?)?,
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("threads") => o.threads = parser.value()?.parse::<usize>()?.max(1),
            Long("size") => o.size = parser.value()?.parse::<usize>()?.clamp(16, 4088) & !7,
            Long("no-rseq") => o.rseq = false,
            Long("broken") => {
                let name = parser.value()?.string()?;
                let found = BROKEN.into_iter().find(|(n, _)| *n == name);
                let names = BROKEN.map(|(n, _)| n).join(" ");
                o.broken = Some(found.ok_or_else(|| format!("no variant {name}; there are: {names}"))?);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(o))
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, threads, size, rseq, .. } = self;
        let broken = self.broken.map_or("none", |(name, _)| name);
        write!(
            f,
            "for={:?} seed={seed} threads={threads} size={size} rseq={rseq} broken={broken}",
            self.run_for
        )
    }
}
