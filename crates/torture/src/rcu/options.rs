//! What `torture rcu` is told.
//!
//! For:     `rcu_main`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: tests below.

use rcu::Broken;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Flavours by name (table).
pub const FLAVOURS: [&str; 8] =
    ["normal", "sigsafe", "lite", "fast", "updown", "tasks-holdout", "tasks-fast", "mixed"];

/// The ways in which the writers retire elements; all unless some are chosen.
#[derive(Clone, Copy, Default)]
pub struct Ways {
    pub sync: bool,
    pub exp: bool,
    pub cond: bool,
    pub poll: bool,
    pub normal: bool,
}

impl Ways {
    fn any(&self) -> bool {
        self.sync || self.exp || self.cond || self.poll || self.normal
    }
}

/// The parameters, named as the kernel's where it has them.
pub struct Options {
    pub flavour: String,
    pub run_for: Duration,
    pub seed: u64,
    pub broken: Option<(&'static str, Broken)>,
    pub nreaders: usize,
    pub nfakewriters: usize,
    pub stat_interval: Duration,
    pub stutter: Duration,
    pub shuffle_interval: Duration,
    pub edge: Duration,
    pub n_barrier_cbs: usize,
    pub n_up_down: usize,
    pub fwd_progress: usize,
    pub fwd_progress_holdoff: Duration,
    pub read_exit_burst: usize,
    pub read_exit_delay: Duration,
    pub ways: Ways,
    pub rseq: bool,
    pub reader_fences: bool,
    pub checked: bool,
}

const HELP: &str = "\
nanoprobe torture rcu [OPTION]...
Runs readers against grace periods and looks for one that did not wait.

  --flavour F       normal sigsafe lite fast updown tasks-holdout tasks-fast
                    mixed (normal and sigsafe); lite by default
  --for TIME        how long: 90s, 10m, 2h (60s)
  --seed N          repeat the decisions of another run
  --broken NAME     break the subject on purpose: no-wait one-rank swapped-sums
                    lite-without-membarrier forgotten-barrier unrecorded-flavour
                    lost-callback; the run must then fail
  --nreaders N      reader threads (CPUs - 1, but at least 4)
  --nfakewriters N  threads that only make grace periods (4)
  --stat-interval S --stutter S --shuffle-interval S   seconds (60 5 3)
  --edge S          seconds of the edge test between two runs (2)
  --n-barrier-cbs N threads of the barrier test (2), 0 is off
  --n-up-down N     updown readers under way (32)
  --fwd-progress 0|1  callback floods; --fwd-progress-holdoff S (10)
  --read-exit-burst N --read-exit-delay S   short-lived readers (16 13)
  --gp-sync --gp-exp --gp-cond --gp-poll --gp-normal   only these ways to retire
  --no-rseq         readers add with a lock prefix
  --reader-fences   readers fence themselves, as without membarrier
  --checked         checked domains

Report, every stat-interval: counters, then Reader Pipe, Reader Batch and Free-Block
Circulation. In the pipe only the first two numbers may be non-zero; a broken
subject looks like `!!! Reader Pipe: 81327 112 3 0 ...`. The last line begins with PASS
or FAIL, and the exit status is 0 or 1.

Example: nanoprobe torture rcu --flavour fast --for 10m
Example: nanoprobe torture rcu --broken one-rank --for 30s
";

pub fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let seconds = Duration::from_secs;
    let mut o = Options {
        flavour: "lite".into(),
        run_for: seconds(60),
        seed: fresh_seed(),
        broken: None,
        nreaders: (cpus - 1).max(4),
        nfakewriters: 4,
        stat_interval: seconds(60),
        stutter: seconds(5),
        shuffle_interval: seconds(3),
        edge: seconds(2),
        n_barrier_cbs: 2,
        n_up_down: 32,
        fwd_progress: 1,
        fwd_progress_holdoff: seconds(10),
        read_exit_burst: 16,
        read_exit_delay: seconds(13),
        ways: Ways::default(),
        rseq: true,
        reader_fences: false,
        checked: false,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => o.run_for = duration(&parser.value()?.string()?)?,
            Long("stat-interval") => o.stat_interval = duration(&parser.value()?.string()?)?,
            Long("stutter") => o.stutter = duration(&parser.value()?.string()?)?,
            Long("shuffle-interval") => o.shuffle_interval = duration(&parser.value()?.string()?)?,
            Long("edge") => o.edge = duration(&parser.value()?.string()?)?,
            Long("fwd-progress-holdoff") => o.fwd_progress_holdoff = duration(&parser.value()?.string()?)?,
            Long("read-exit-delay") => o.read_exit_delay = duration(&parser.value()?.string()?)?,
            Long("flavour") => o.flavour = one_of("flavour", &parser.value()?.string()?, &FLAVOURS)?,
            Long("broken") => o.broken = Some(broken(&parser.value()?.string()?)?),
            Long("seed") => o.seed = parser.value()?.parse()?,
            Long("nreaders") => o.nreaders = parser.value()?.parse::<usize>()?.max(1),
            Long("nfakewriters") => o.nfakewriters = parser.value()?.parse()?,
            Long("n-barrier-cbs") => o.n_barrier_cbs = parser.value()?.parse()?,
            Long("n-up-down") => o.n_up_down = parser.value()?.parse()?,
            Long("fwd-progress") => o.fwd_progress = parser.value()?.parse()?,
            Long("read-exit-burst") => o.read_exit_burst = parser.value()?.parse()?,
            Long("gp-sync") => o.ways.sync = true,
            Long("gp-exp") => o.ways.exp = true,
            Long("gp-cond") => o.ways.cond = true,
            Long("gp-poll") => o.ways.poll = true,
            Long("gp-normal") => o.ways.normal = true,
            Long("no-rseq") => o.rseq = false,
            Long("reader-fences") => o.reader_fences = true,
            Long("checked") => o.checked = true,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    if !o.ways.any() {
        o.ways = Ways { sync: true, exp: true, cond: true, poll: true, normal: true };
    }
    if o.broken.is_some() && o.flavour.starts_with("tasks") {
        return Err(format!("--broken needs a domain of its own; {} has a global one", o.flavour).into());
    }
    Ok(Some(o))
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32)) % 1_000_000_000
}

fn one_of(what: &str, word: &str, known: &[&str]) -> Result<String, String> {
    match known.iter().find(|k| **k == word) {
        Some(word) => Ok(word.to_string()),
        None => Err(format!("no {what} is called {word}; there are: {}", known.join(" "))),
    }
}

fn broken(word: &str) -> Result<(&'static str, Broken), String> {
    let names = Broken::ALL.map(|(name, _)| name);
    one_of("broken variant", word, &names)?;
    Broken::ALL.into_iter().find(|(name, _)| *name == word).ok_or_else(String::new)
}

/// `90`, `90s`, `10m`, `2h`.
/// A time with a unit: 90s, 10m, 2h.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let number: f64 = number.parse().map_err(|_| format!("no time: {text}; like 90s, 10m, 2h"))?;
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("no unit {unit} in {text}; there are: ms s m h")),
    };
    Duration::try_from_secs_f64(number * scale).map_err(|_| format!("no time: {text}"))
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "flavour={} for={}s seed={} broken={} nreaders={} nfakewriters={} stat_interval={} stutter={} \
             shuffle_interval={} edge={} n_barrier_cbs={} n_up_down={} fwd_progress={} fwd_progress_holdoff={} \
             read_exit_burst={} read_exit_delay={} gp_sync={} gp_exp={} gp_cond={} gp_poll={} gp_normal={} \
             rseq={} reader_fences={} checked={}",
            self.flavour,
            self.run_for.as_secs_f64(),
            self.seed,
            self.broken.map_or("none", |(name, _)| name),
            self.nreaders,
            self.nfakewriters,
            self.stat_interval.as_secs_f64(),
            self.stutter.as_secs_f64(),
            self.shuffle_interval.as_secs_f64(),
            self.edge.as_secs_f64(),
            self.n_barrier_cbs,
            self.n_up_down,
            self.fwd_progress,
            self.fwd_progress_holdoff.as_secs_f64(),
            self.read_exit_burst,
            self.read_exit_delay.as_secs_f64(),
            u8::from(self.ways.sync),
            u8::from(self.ways.exp),
            u8::from(self.ways.cond),
            u8::from(self.ways.poll),
            u8::from(self.ways.normal),
            u8::from(self.rseq),
            u8::from(self.reader_fences),
            u8::from(self.checked)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &[&str]) -> Result<Option<Options>, lexopt::Error> {
        parse(&args.iter().map(|s| s.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert!(duration("3 days").is_err());
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        assert!(of(&["--flavour", "nosuch"]).err().unwrap().to_string().contains("tasks-holdout"));
        assert!(of(&["--broken", "nosuch"]).err().unwrap().to_string().contains("one-rank"));
        assert!(of(&["--broken", "no-wait", "--flavour", "tasks-fast"]).is_err());
    }

    #[test]
    fn a_chosen_way_excludes_the_others() {
        let options = of(&["--gp-exp", "--seed", "5"]).unwrap().unwrap();
        assert!(options.ways.exp && !options.ways.sync);
        assert_eq!(options.seed, 5);
    }
}
