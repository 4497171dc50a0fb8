//! What `torture uprobe` is told.
//!
//! For:     `uprobe_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `tests/uprobe.rs`.

use crate::duration;
use probe::{Broken, Protection};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const HELP: &str = "\
nanoprobe torture uprobe [OPTION]...
Calls 100 functions of a registry in this process while consumers, mappings and
address spaces come and go, and looks for lost hits and late handlers.

  --for TIME         how long: 90s, 10m, 2h (60s)
  --seed N           repeat the decisions of another run
  --broken NAME      break the registry on purpose: no-wait no-revival early-free;
                     the run must then fail
  --entry P          refcount srcu tasks-trace tasks-fast lite fast (fast)
  --returns P        the same for returns (fast)
  --call N           threads that call, 72 deep at most (2)
  --attach N         threads that register and unregister, 5 links of 10 probes (2)
  --mmap N           threads that map and unmap, 10 mappings at most (1)
  --fork N           threads that fork, exec and exit spaces, 10 at most (1)

A line every 5 s. The last one begins with PASS or FAIL, and the exit status is 0 or
1:
  PASS broken=none seed=7 calls=91245 hits=... lost=0 late=0 freed-hits=0 left=0
  FAIL broken=no-wait seed=7 calls=1245 hits=... lost=0 late=3 freed-hits=0 left=0

Example: nanoprobe torture uprobe --for 30m
";

/// The parameters, with uprobe-stress's defaults where it has them.
pub struct Options {
    pub run_for: Duration,
    pub seed: u64,
    pub broken: Option<(&'static str, Broken)>,
    pub entry: Protection,
    pub returns: Protection,
    pub calls: usize,
    pub attach: usize,
    pub mmap: usize,
    pub fork: usize,
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_for, seed, entry, returns, calls, attach, mmap, fork, .. } = self;
        let broken = self.broken.map_or("none", |b| b.0);
        write!(f, "broken={broken} seed={seed} for={run_for:?} entry={entry} returns={returns} ")?;
        write!(f, "call={calls} attach={attach} mmap={mmap} fork={fork}")
    }
}

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut o = Options {
        run_for: Duration::from_secs(60),
        seed: now % 1_000_000_007,
        broken: None,
        entry: Protection::Fast,
        returns: Protection::Fast,
        calls: 2,
        attach: 2,
        mmap: 1,
        fork: 1,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => o.run_for = duration(&parser.value()?.string()?)?,
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("broken") => o.broken = Some(broken(&parser.value()?.string()?)?),
            Long("entry") => o.entry = protection(&parser.value()?.string()?)?,
            Long("returns") => o.returns = protection(&parser.value()?.string()?)?,
            Short('t') | Long("call") => o.calls = parser.value()?.parse()?,
            Short('a') | Long("attach") => o.attach = parser.value()?.parse()?,
            Short('m') | Long("mmap") => o.mmap = parser.value()?.parse()?,
            Short('f') | Long("fork") => o.fork = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(Some(o))
}

fn broken(name: &str) -> Result<(&'static str, Broken), String> {
    let all =
        [("no-wait", Broken::NoWait), ("no-revival", Broken::NoRevival), ("early-free", Broken::EarlyFree)];
    all.into_iter().find(|b| b.0 == name).ok_or_else(|| format!("no broken variant '{name}'"))
}

fn protection(name: &str) -> Result<Protection, String> {
    Protection::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| format!("no protection '{name}'"))
}
