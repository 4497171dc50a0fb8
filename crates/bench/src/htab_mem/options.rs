//! What `bench htab-mem` is told.
//!
//! For:     `htab_mem_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: tests of `htab_mem`.

use crate::refscale::json;
use std::fmt;

const HELP: &str = "\
nanoprobe bench htab-mem [OPTION]...
Changes a hash from several threads and prints the rate of batches of 64 keys, and the memory.

  -w SECONDS   warm-up (1)            -d SECONDS   duration (5)
  -p N         producers (2)          -a           each on a CPU of its own
  --use-case NAME    overwrite (default), batch_add_batch_del or add_del_on_diff_cpu
  --value-size N     bytes of a value (8), at most 4000
  --preallocated     elements for all keys beforehand
  --free WAY         rcu (default): elements see a grace period; plain: they do not
  --no-hurry         grace periods are not hurried when memory waits for them
  -f json            one object at the end

One operation is a batch: 64 keys replaced, 64 added, or 64 removed.

Example: nanoprobe bench htab-mem -w1 -d10 -p2 -a --use-case add_del_on_diff_cpu
";

/// What is done to the keys.
#[derive(Clone, Copy, PartialEq)]
pub enum UseCase {
    Overwrite,
    AddDel,
    DiffCpu,
}

/// The use cases by name, and what was published: rate and memory, plain free and free_rcu (table).
const USE_CASES: [(&str, UseCase, &str); 3] = [
    (
        "overwrite",
        UseCase::Overwrite,
        "kernel, -p 8: free_rcu -20 % rate against plain free; 3 MB plain, 50 MB free_rcu",
    ),
    ("batch_add_batch_del", UseCase::AddDel, "kernel: no figure in the cover letter"),
    (
        "add_del_on_diff_cpu",
        UseCase::DiffCpu,
        "kernel, -p 16: out of memory before the series, bounded with it",
    ),
];

/// How to run.
pub struct Options {
    pub warmup: u64,
    pub duration: u64,
    pub producers: usize,
    pub affinity: bool,
    pub use_case: (&'static str, UseCase, &'static str),
    pub value_size: usize,
    pub preallocated: bool,
    pub plain: bool,
    pub hurry: bool,
    pub json: bool,
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.plain || self.preallocated { "plain free" } else { "free_rcu" };
        let made = if self.preallocated { "preallocated" } else { "from the cache" };
        write!(f, "{}, {} producer(s), {made}, {way}", self.use_case.0, self.producers)
    }
}

/// Reads the arguments; `None` if help was asked for.
pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut o = Options {
        warmup: 1,
        duration: 5,
        producers: 2,
        affinity: false,
        use_case: USE_CASES[0],
        value_size: 8,
        preallocated: false,
        plain: false,
        hurry: true,
        json: false,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('w') => o.warmup = parser.value()?.parse()?,
            Short('d') => o.duration = parser.value()?.parse::<u64>()?.max(1),
            Short('p') => o.producers = parser.value()?.parse::<usize>()?.max(1),
            Short('a') => o.affinity = true,
            Short('f') => o.json = json(&parser.value()?.string()?)?,
            Long("value-size") => o.value_size = parser.value()?.parse::<usize>()?.clamp(1, 4000),
            Long("preallocated") => o.preallocated = true,
            Long("no-hurry") => o.hurry = false,
            Long("free") => match parser.value()?.string()?.as_str() {
                "plain" => o.plain = true,
                "rcu" => o.plain = false,
                other => return Err(format!("no way {other}; there are: rcu plain").into()),
            },
            Long("use-case") => {
                let name = parser.value()?.string()?;
                let found = USE_CASES.into_iter().find(|(n, ..)| *n == name);
                let names = USE_CASES.map(|(n, ..)| n).join(" ");
                o.use_case = found.ok_or_else(|| format!("no use case {name}; there are: {names}"))?;
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    if o.use_case.1 == UseCase::DiffCpu && !o.producers.is_multiple_of(2) {
        return Err("add_del_on_diff_cpu needs an even number of producers".into());
    }
    Ok(Some(o))
}
