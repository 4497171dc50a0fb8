//! What `torture anywhere` is told.
//!
//! For:     `anywhere_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: by use.

use super::workload;
use image::Spec;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busted {
    /// One byte of code is changed after a detach.
    Text,
    /// Each jump to a probe is made one to nowhere.
    Jump,
}

pub struct Options {
    pub limit: Duration,
    pub sites: usize,
    /// Of them at most so many on rung 7.
    pub by_kernel: usize,
    pub seed: u64,
    /// Number of the first run: with `seed`, it repeats one run.
    pub first_run: u64,
    pub runs: u64,
    /// Longest time that probes stay in.
    pub hold: Duration,
    pub workloads: Vec<String>,
    /// These sites in every round, instead of random ones.
    pub specs: Option<Vec<Spec>>,
    pub busted: Option<Busted>,
}

const HELP: &str = "\
nanoprobe torture anywhere: real programs with random instructions probed

Each run starts one workload, and while it works puts probes on random instructions of the functions that it
runs, in the program and its libraries, takes them out again, puts in others, to its end. What it prints and
how it ends must be as without probes, and after each detach every byte of code as in its file.

  --for TIME       start no further run after this time (default 60s)
  --sites N        probes at a time (default 1000)
  --kernel N       of them at most so many of the kernel's, whose hits trap (default 10)
  --hold TIME      the longest time that they stay in (default 600ms)
  --workload NAME  only this one; may be repeated (default: all that are installed)
  --runs N         at most so many runs
  --seed N         repeat a run's picks: its seed and
  --first-run N    its number, both printed
  --specs FILE     these sites in each round, one u:FILE:0xADDR a line: what a failed run leaves
  --list           print the workloads
  --busted text    change a byte of code: the run must FAIL
  --busted jump    lead the jumps to nowhere: the run must FAIL

Needs root or the right to trace. The last line is PASS or FAIL with counters; a run that tests nothing has none
above zero:
  PASS runs 31 rounds 240 sites 239871 hits 1209334512 ...
  FAIL run 17 sqlite: exit status: 11 (signal 11) instead of exit status: 0 ...
";

/// `None`: there is nothing left to do.
pub fn parse(args: &[String]) -> Result<Option<Options>, String> {
    use lexopt::prelude::*;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut o = Options {
        limit: Duration::from_secs(60),
        sites: 1000,
        by_kernel: 10,
        seed: clock % 1_000_000,
        first_run: 0,
        runs: u64::MAX,
        hold: Duration::from_millis(600),
        workloads: Vec::new(),
        specs: None,
        busted: None,
    };
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Long("for") => o.limit = crate::duration(&text(&mut parser)?)?,
            Long("hold") => o.hold = crate::duration(&text(&mut parser)?)?,
            Long("sites") => o.sites = number(&mut parser)? as usize,
            Long("kernel") => o.by_kernel = number(&mut parser)? as usize,
            Long("seed") => o.seed = number(&mut parser)?,
            Long("first-run") => o.first_run = number(&mut parser)?,
            Long("runs") => o.runs = number(&mut parser)?,
            Long("workload") => o.workloads.push(known(text(&mut parser)?)?),
            Long("specs") => o.specs = Some(read_specs(&text(&mut parser)?)?),
            Long("busted") => o.busted = Some(busted(&text(&mut parser)?)?),
            Long("list") => {
                for w in workload::ALL {
                    let program = w.program().map_or("not installed".into(), |p| p.display().to_string());
                    println!("{:16} {program}", w.name);
                }
                return Ok(None);
            }
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some(o))
}

fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    parser.value().map(|v| v.to_string_lossy().into_owned()).map_err(|e| e.to_string())
}

fn number(parser: &mut lexopt::Parser) -> Result<u64, String> {
    use lexopt::ValueExt;
    parser.value().and_then(|v| v.parse()).map_err(|e| e.to_string())
}

fn known(name: String) -> Result<String, String> {
    match workload::ALL.iter().any(|w| w.name == name) {
        true => Ok(name),
        false => Err(format!("there is no workload '{name}'; --list shows them")),
    }
}

fn busted(name: &str) -> Result<Busted, String> {
    match name {
        "text" => Ok(Busted::Text),
        "jump" => Ok(Busted::Jump),
        _ => Err(format!("'{name}' is neither text nor jump")),
    }
}

fn read_specs(path: &str) -> Result<Vec<Spec>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    text.lines().map(|line| Spec::parse(line).map_err(|e| e.to_string())).collect()
}
