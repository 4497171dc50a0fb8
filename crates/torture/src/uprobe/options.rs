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
The roles of uprobe-stress: threads of a target call 100 functions, one another at
random and 72 deep, take signals, map the probed file, fork, exec and load a library,
while threads of ours attach and detach; looks for lost hits and lost detaches.

  --for TIME         how long: 90s, 10m, 2h (60s)
  --seed N           repeat the decisions of another run
  --backend B        nanoprobe: sessions on a process of its own (default)
                     kernel: the kernel's uprobes on the same process; takes root
                     registry: the registry of uprobes, in this process
  --broken NAME      break it on purpose; the run must then fail. nanoprobe, kernel:
                     forgotten-byte kept-link dropped-count; nanoprobe: lost-run;
                     registry: no-wait no-revival early-free
  --call N           threads that call (registry 2, else 4)
  --attach N         threads that attach and detach, 5 links of 10 probes (registry 2,
                     else 4)
  --mmap N           threads that map the file and unmap it, 10 mappings at most (1)
  --fork N           threads that fork, 10 children at most, 20 ms each (1)
 nanoprobe and kernel alone:
  --dlopen N         threads that load and unload a library, which cc makes (1)
  --signals N        threads that send signals to those that call (1)
  --exec N           threads whose children execute themselves (1)
 registry alone:
  --entry P          refcount srcu tasks-trace tasks-fast lite fast (fast)
  --returns P        the same for returns (fast)

A line every 5 s. The last one begins with PASS or FAIL, and the exit status is 0 or
1:
  PASS backend=nanoprobe broken=none seed=7 calls=91245 hits=... lost=0 late=0
    lost-detach=0 wrong=0 left=0 idle=none
  FAIL backend=nanoprobe broken=dropped-count seed=7 calls=91245 hits=... lost=18

Example: nanoprobe torture uprobe --for 30m
";

/// What is put under the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Registry,
    Nanoprobe,
    Kernel,
}

impl Backend {
    fn parse(name: &str) -> Result<Backend, String> {
        let all = [Backend::Registry, Backend::Nanoprobe, Backend::Kernel];
        all.into_iter().find(|b| b.to_string() == name).ok_or_else(|| format!("no backend '{name}'"))
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Registry => "registry",
            Backend::Nanoprobe => "nanoprobe",
            Backend::Kernel => "kernel",
        })
    }
}

/// Ways to break a real target's probes.
const BROKEN_LIVE: [&str; 3] = ["forgotten-byte", "kept-link", "dropped-count"];

/// And its programs, which the kernel's links have not.
pub const LOST_RUN: &str = "lost-run";

/// The parameters, with uprobe-stress's defaults where it has them.
#[derive(Clone, Debug)]
pub struct Options {
    pub run_for: Duration,
    pub seed: u64,
    pub backend: Backend,
    pub broken: Option<String>,
    pub entry: Protection,
    pub returns: Protection,
    pub calls: usize,
    pub attach: usize,
    pub mmap: usize,
    pub fork: usize,
    pub dlopen: usize,
    pub signals: usize,
    pub exec: usize,
}

impl Options {
    /// It is to be broken so.
    pub fn is_broken(&self, name: &str) -> bool {
        self.broken.as_deref() == Some(name)
    }

    /// How the registry is to be broken.
    pub fn broken_registry(&self) -> Option<Broken> {
        let all = [
            ("no-wait", Broken::NoWait),
            ("no-revival", Broken::NoRevival),
            ("early-free", Broken::EarlyFree),
        ];
        all.into_iter().find(|b| self.is_broken(b.0)).map(|b| b.1)
    }

    fn check(self) -> Result<Options, String> {
        let is_known = match (&self.broken, self.backend) {
            (None, _) => true,
            (Some(_), Backend::Registry) => self.broken_registry().is_some(),
            (Some(name), Backend::Nanoprobe) if name == LOST_RUN => true,
            (Some(name), _) => BROKEN_LIVE.contains(&name.as_str()),
        };
        match self.broken {
            Some(name) if !is_known => Err(format!("no broken variant '{name}' of {}", self.backend)),
            _ => Ok(self),
        }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_for, seed, backend, calls, attach, mmap, fork, dlopen, signals, exec, .. } = self;
        let broken = self.broken.as_deref().unwrap_or("none");
        write!(f, "backend={backend} broken={broken} seed={seed} for={run_for:?} ")?;
        write!(f, "call={calls} attach={attach} mmap={mmap} fork={fork} ")?;
        match backend {
            Backend::Registry => write!(f, "entry={} returns={}", self.entry, self.returns),
            _ => write!(f, "dlopen={dlopen} signals={signals} exec={exec}"),
        }
    }
}

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut o = Options {
        run_for: Duration::from_secs(60),
        seed: now % 1_000_000_007,
        backend: Backend::Nanoprobe,
        broken: None,
        entry: Protection::Fast,
        returns: Protection::Fast,
        calls: 0,
        attach: 0,
        mmap: 1,
        fork: 1,
        dlopen: 1,
        signals: 1,
        exec: 1,
    };
    let (mut calls, mut attach) = (None, None);
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => o.run_for = duration(&parser.value()?.string()?)?,
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("backend") => o.backend = Backend::parse(&parser.value()?.string()?)?,
            Long("broken") => o.broken = Some(parser.value()?.string()?),
            Long("entry") => o.entry = protection(&parser.value()?.string()?)?,
            Long("returns") => o.returns = protection(&parser.value()?.string()?)?,
            Short('t') | Long("call") => calls = Some(parser.value()?.parse()?),
            Short('a') | Long("attach") => attach = Some(parser.value()?.parse()?),
            Short('m') | Long("mmap") => o.mmap = parser.value()?.parse()?,
            Short('f') | Long("fork") => o.fork = parser.value()?.parse()?,
            Long("dlopen") => o.dlopen = parser.value()?.parse()?,
            Long("signals") => o.signals = parser.value()?.parse()?,
            Long("exec") => o.exec = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    let usual = if o.backend == Backend::Registry { 2 } else { 4 };
    (o.calls, o.attach) = (calls.unwrap_or(usual), attach.unwrap_or(usual));
    Ok(Some(o.check()?))
}

fn protection(name: &str) -> Result<Protection, String> {
    Protection::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| format!("no protection '{name}'"))
}
