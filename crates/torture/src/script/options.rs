//! What `torture lang` is told.
//!
//! For:     `lang_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `tests/lang.rs`.

use crate::bpf::options::BROKEN;
use crate::duration;
use jit::Broken;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const HELP: &str = "\
nanoprobe torture lang [OPTION]...
Scripts made by chance, correct ones, mutated ones and heaps of words and bytes, go through
the parser, the types, the lowering, the checks of crate bpf and the compiler; correct ones
of begin are run. No panic, no endless loop, no memory beyond a bound, no program that is
refused or faults; a program that calls nothing has one result in interpreter and compiled code.

  --for TIME         how long: 90s, 10m, 1h (60s)
  --scripts N        end after so many scripts, if that comes first
  --seed N           repeat the scripts of another run
  --first N          begin with this one of them (0)
  --show N           print this one of them, and end
  --broken NAME      break the compiler on purpose: upper-half signed-shift
                     signed-compare signed-load division-by-zero sign-of-remainder; or
                     refuse: crate bpf refuses a program; or endless: a script takes a
                     minute. The run must then fail

The last line begins with PASS or FAIL, and the exit status is 0 or 1:
  PASS broken=none seed=7 scripts=9000 accepted=5021 programs=7411 ... compared=2230 ...
  FAIL broken=signed-compare seed=7 scripts=12 accepted=10 programs=14 ... compared=3 ...

Example: nanoprobe torture lang --for 1h --seed 7
";

/// What can be broken besides the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The compiler.
    Compiler(Broken),
    /// A program is given that the checks refuse.
    Refuse,
    /// A script takes for ever.
    Endless,
}

/// The parameters.
#[derive(Clone, Copy)]
pub struct Options {
    pub run_for: Duration,
    pub scripts: u64,
    pub seed: u64,
    pub first: u64,
    pub show: Option<u64>,
    pub broken: Option<(&'static str, Wrong)>,
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = self.broken.map_or("none", |broken| broken.0);
        write!(f, "broken={broken} seed={} for={:?}", self.seed, self.run_for)
    }
}

fn broken(name: &str) -> Option<(&'static str, Wrong)> {
    let compilers = BROKEN.into_iter().map(|(name, broken)| (name, Wrong::Compiler(broken)));
    let all = compilers.chain([("refuse", Wrong::Refuse), ("endless", Wrong::Endless)]);
    all.into_iter().find(|broken| broken.0 == name)
}

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut o = Options {
        run_for: Duration::from_secs(60),
        scripts: u64::MAX,
        seed: now,
        first: 0,
        show: None,
        broken: None,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => o.run_for = duration(&parser.value()?.string()?)?,
            Long("scripts") => o.scripts = parser.value()?.parse()?,
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("first") => o.first = parser.value()?.parse()?,
            Long("show") => o.show = Some(parser.value()?.parse()?),
            Long("broken") => {
                let name = parser.value()?.string()?;
                o.broken = Some(broken(&name).ok_or_else(|| format!("no broken variant '{name}'"))?);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(Some(o))
}
