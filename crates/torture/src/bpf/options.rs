//! What `torture bpf` is told.
//!
//! For:     `bpf_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `tests/bpf.rs`.

use crate::duration;
use jit::Broken;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const HELP: &str = "\
nanoprobe torture bpf [OPTION]...
Random valid eBPF programs are run by the interpreter and by every other engine:
results and memory must be the same. Compiled code is run in four ways: believed and
checked, with and without optimisation.

  --for TIME         how long: 90s, 10m, 2h (60s)
  --programs N       end after so many programs, if that comes first
  --seed N           repeat the programs of another run
  --engines LIST     of jit, target, kernel, with commas (jit); target is a process of
                     its own, kernel takes root
  --broken NAME      break the compiler on purpose: upper-half signed-shift
                     signed-compare signed-load division-by-zero sign-of-remainder
                     old-value byte-order; the run must then fail

The last line begins with PASS or FAIL, and the exit status is 0 or 1:
  PASS broken=none seed=7 programs=4211 insns=404002 runs=50532 by_kernel=0 ...
  FAIL broken=old-value seed=7 programs=12 insns=1440 runs=140 by_kernel=0 ...

Example: nanoprobe torture bpf --for 10m --engines jit,target,kernel
";

/// Compilers with one thing wrong.
pub const BROKEN: [(&str, Broken); 8] = [
    ("upper-half", Broken::UpperHalf),
    ("signed-shift", Broken::SignedShift),
    ("signed-compare", Broken::SignedCompare),
    ("signed-load", Broken::SignedLoad),
    ("division-by-zero", Broken::DivisionByZero),
    ("sign-of-remainder", Broken::SignOfRemainder),
    ("old-value", Broken::OldValue),
    ("byte-order", Broken::ByteOrder),
];

/// The parameters.
#[derive(Clone, Copy)]
pub struct Options {
    pub run_for: Duration,
    pub programs: u64,
    pub seed: u64,
    pub jit: bool,
    pub target: bool,
    pub kernel: bool,
    pub broken: Option<(&'static str, Broken)>,
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = self.broken.map_or("none", |broken| broken.0);
        write!(f, "broken={broken} seed={} for={:?} engines=", self.seed, self.run_for)?;
        let engines = [("jit", self.jit), ("target", self.target), ("kernel", self.kernel)];
        let names: Vec<_> = engines.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut o = Options {
        run_for: Duration::from_secs(60),
        programs: u64::MAX,
        seed: now,
        jit: true,
        target: false,
        kernel: false,
        broken: None,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => o.run_for = duration(&parser.value()?.string()?)?,
            Long("programs") => o.programs = parser.value()?.parse()?,
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("engines") => {
                let list = parser.value()?.string()?;
                (o.jit, o.target, o.kernel) = (false, false, false);
                for name in list.split(',') {
                    match name {
                        "jit" => o.jit = true,
                        "target" => o.target = true,
                        "kernel" => o.kernel = true,
                        _ => return Err(format!("'{name}' is none of jit, target and kernel").into()),
                    }
                }
            }
            Long("broken") => {
                let name = parser.value()?.string()?;
                let found = BROKEN.into_iter().find(|broken| broken.0 == name);
                o.broken = Some(found.ok_or_else(|| format!("no broken variant '{name}'"))?);
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
