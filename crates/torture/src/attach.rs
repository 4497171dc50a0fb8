//! Attach and detach, thousands of times, under threads that call the probed functions all the time.
//!
//! For:     `nanoprobe torture attach`: the test that Frida does not survive with one thread.
//! State:   a child process with the threads; one session after the other in this one.
//! Context: control.
//! Keeps:   T1 after every detach the text is the file's, and mappings, descriptors and threads are as before.
//!          T2 no call of a probed function ever returns a wrong value; the child ends by itself with code 0.
//! Checked: `--busted` (the text is left changed by one byte) must end in FAIL.
//! Source:  user-needs 5.4; the roles of uprobe-stress, kernel-facts 1.17.

use image::Spec;
use session::{Session, SitePlan, Verb};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod target;

pub use target::attach_target_main;

const HELP: &str = "\
nanoprobe torture attach: attach and detach under busy threads

  --rounds N     rounds (default 1000)
  --threads N    threads of the target that call the probed functions all the time (default 64)
  --for TIME     stop after this time, for example 10m, even if rounds are left
  --by-handler   call a handler at each hit instead of the compiled-in count
  --by-return    call a handler before each exit instead
  --calls        time calls: a handler at the entry and before each exit; entries must be accounted for
  --mixed        each round one of these four, by chance
  --seed N       for the pauses between attach and detach (default: from the clock; printed)
  --busted       change one byte of the target's text: the run must FAIL

The last line is PASS or FAIL with counters; a run that tests nothing has none above zero:
  PASS rounds 1000 hits 1209334512 stall_max_us 3120 ...
  FAIL round 17: the text differs from the file at trig_window ...";

/// What a round puts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Count,
    Handler,
    Return,
    Calls,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Count, Kind::Handler, Kind::Return, Kind::Calls];

    fn plan(self, pid: i32) -> Result<Vec<SitePlan>, String> {
        let (spec, verb) = match self {
            Kind::Count => ("u::torture_fn_*", Verb::Count),
            Kind::Handler => ("u::torture_fn_*", Verb::CountByHandler),
            Kind::Return => ("ur::torture_fn_*", Verb::CountByHandler),
            Kind::Calls => ("u::torture_fn_*", Verb::Latency),
        };
        let spec = Spec::parse(spec).map_err(|e| e.to_string())?;
        let plan = session::plan(pid, &[spec], verb).map_err(|e| e.to_string())?;
        match plan.refused.first() {
            Some(refused) => Err(format!("{} cannot be probed: {}", refused.name, refused.why)),
            None => Ok(plan.sites),
        }
    }
}

struct Options {
    rounds: u64,
    threads: usize,
    limit: Duration,
    kinds: &'static [Kind],
    seed: u64,
    is_busted: bool,
}

fn parse(args: &[String]) -> Result<Option<Options>, String> {
    use lexopt::prelude::*;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut options = Options {
        rounds: 1000,
        threads: 64,
        limit: Duration::from_secs(86_400),
        kinds: &[Kind::Count],
        seed: clock.as_nanos() as u64,
        is_busted: false,
    };
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Long("rounds") => options.rounds = number(&mut parser)?,
            Long("threads") => options.threads = number(&mut parser)? as usize,
            Long("seed") => options.seed = number(&mut parser)?,
            Long("for") => {
                let value = parser.value().map_err(|e| e.to_string())?;
                options.limit = crate::duration(&value.to_string_lossy())?;
            }
            Long("by-handler") => options.kinds = &[Kind::Handler],
            Long("by-return") => options.kinds = &[Kind::Return],
            Long("calls") => options.kinds = &[Kind::Calls],
            Long("mixed") => options.kinds = &Kind::ALL,
            Long("busted") => options.is_busted = true,
            Long("help") | Short('h') => return Ok(None),
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some(options))
}

fn number(parser: &mut lexopt::Parser) -> Result<u64, String> {
    use lexopt::ValueExt;
    parser.value().and_then(|v| v.parse()).map_err(|e| e.to_string())
}

/// Runs `nanoprobe torture attach` and returns its exit code.
pub fn attach_main(args: &[String]) -> i32 {
    let options = match parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            let _ = writeln!(std::io::stdout(), "{HELP}");
            return 0;
        }
        Err(why) => {
            eprintln!("nanoprobe: torture attach: {why}");
            return 1;
        }
    };
    println!(
        "torture attach: rounds {} threads {} seed {} kinds {:?}",
        options.rounds, options.threads, options.seed, options.kinds
    );
    let mut target = match Target::start(options.threads) {
        Ok(target) => target,
        Err(why) => {
            println!("FAIL {why}");
            return 1;
        }
    };
    let mut tally = Tally::default();
    let verdict = rounds(&options, &target, &mut tally).and_then(|()| target.finish());
    let counters = tally.line();
    match verdict {
        Ok(calls) => {
            println!("PASS {counters} calls {calls}");
            0
        }
        Err(why) => {
            println!("FAIL {counters}: {why}");
            1
        }
    }
}

/// What happened so far.
#[derive(Default)]
struct Tally {
    rounds: u64,
    hits: u64,
    missed: u64,
    stall_max: Duration,
    stall_sum: Duration,
    attach_max: Duration,
    detach_max: Duration,
}

impl Tally {
    fn line(&self) -> String {
        let mean = self.stall_sum.as_micros() as u64 / self.rounds.max(1);
        format!(
            "rounds {} hits {} missed {} stall_max_us {} stall_mean_us {mean} attach_max_us {} detach_max_us {}",
            self.rounds,
            self.hits,
            self.missed,
            self.stall_max.as_micros(),
            self.attach_max.as_micros(),
            self.detach_max.as_micros()
        )
    }
}

fn rounds(options: &Options, target: &Target, tally: &mut Tally) -> Result<(), String> {
    let before = Footprint::of(target.pid())?;
    // With 32 busy threads a CPU a time-shared tester would get through some rounds a second only, and plan for minutes.
    let _ = sys::sched::set_policy(sys::sched::FIFO, 1);
    let plans: Result<Vec<_>, String> = options.kinds.iter().map(|k| k.plan(target.pid())).collect();
    let plans = plans?;
    let (mut random, end) = (options.seed | 1, Instant::now() + options.limit);
    let mut last = Instant::now();
    // Nothing is shown by rounds without a hit: on a starved machine the time is up before the target has run.
    let latest = end + WITHOUT_HITS;
    let is_on = |tally: &Tally| {
        tally.rounds < options.rounds && Instant::now() < end || tally.hits == 0 && Instant::now() < latest
    };
    while is_on(tally) {
        tally.rounds += 1;
        // xorshift: replayable, and nothing hangs on its quality.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let plan = &plans[(random >> 32) as usize % plans.len()];
        let mut session = Session::attach(target.pid(), plan.clone()).map_err(|e| e.to_string())?;
        tally.missed += session.missed().len() as u64;
        std::thread::sleep(Duration::from_micros(random % 3000));
        if options.is_busted {
            let site = session.sites().next().map(|s| s.plan.addr() + 2);
            site.map(|at| poke(target.pid(), at)).transpose().map_err(|e| e.to_string())?;
        }
        let receipt = session.detach().map_err(|e| e.to_string())?;
        tally.hits += session.sites().map(|s| s.hits()).sum::<u64>();
        check_calls(&session).map_err(|why| format!("round {}: {why}", tally.rounds))?;
        tally.stall_max = tally.stall_max.max(receipt.longest_stall);
        tally.stall_sum += receipt.longest_stall;
        tally.attach_max = tally.attach_max.max(session.attach_time());
        tally.detach_max = tally.detach_max.max(receipt.took);
        if !receipt.is_verified()
            || !receipt.is_unmapped()
            || receipt.restored + session.missed().len() != plan.len()
        {
            return Err(format!("round {}: {receipt:?}", tally.rounds));
        }
        let after = Footprint::of(target.pid())?;
        if after != before {
            return Err(format!("round {}: {before:?} became {after:?}", tally.rounds));
        }
        if last.elapsed() > Duration::from_secs(5) {
            println!("{}", tally.line());
            last = Instant::now();
        }
    }
    match tally.hits {
        0 => Err(format!("nothing was hit in {} rounds", tally.rounds)),
        _ => Ok(()),
    }
}

/// So much longer it goes on while nothing was hit.
const WITHOUT_HITS: Duration = Duration::from_secs(600);

/// Every entry returned, was unwound, is inside, or found no room.
fn check_calls(session: &Session) -> Result<(), String> {
    let calls: Vec<_> = session.sites().filter_map(|s| s.calls()).collect();
    let entries: u64 = calls.iter().map(|c| c.entries).sum();
    let returns: u64 = calls.iter().map(|c| c.returns()).sum();
    let open = session.open_calls();
    match entries == returns + open.unwound + open.inside + open.no_room {
        true => Ok(()),
        false => Err(format!("{entries} entries, {returns} returns, {open:?}")),
    }
}

/// Changes one byte of the target's text, as a broken detach would.
fn poke(pid: i32, at: u64) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let memory = fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    memory.write_all_at(&[0x90], at)
}

/// What must be the same before and after.
#[derive(Debug, PartialEq, Eq)]
struct Footprint {
    mappings: u64,
    descriptors: usize,
    threads: usize,
}

impl Footprint {
    fn of(pid: i32) -> Result<Footprint, String> {
        let entries = |what: &str| {
            let dir =
                fs::read_dir(format!("/proc/{pid}/{what}")).map_err(|e| format!("the target is gone: {e}"));
            dir.map(Iterator::count)
        };
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|e| e.to_string())?;
        // The heap may grow and arenas come and go; what we could leave behind is code or a memfd.
        let ours = maps.lines().filter(|l| l.contains("memfd") || l.contains("r-xp"));
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in ours.flat_map(str::bytes) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(Footprint { mappings: hash, descriptors: entries("fd")?, threads: entries("task")? })
    }
}

/// The process with the busy threads.
struct Target {
    child: Child,
}

impl Target {
    fn start(threads: usize) -> Result<Target, String> {
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(exe);
        command.args(["torture-target", &threads.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let mut line = String::new();
        let out = child.stdout.as_mut().ok_or("no pipe from the target")?;
        BufReader::with_capacity(1, out).read_line(&mut line).map_err(|e| e.to_string())?;
        if line.trim() != "ready" {
            return Err(format!("the target said '{}'", line.trim()));
        }
        Ok(Target { child })
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Ends the target; returns how many calls it made, all with the right result.
    fn finish(&mut self) -> Result<u64, String> {
        let mut stdin = self.child.stdin.take().ok_or("no pipe to the target")?;
        stdin.write_all(b"quit\n").map_err(|e| format!("the target is gone: {e}"))?;
        drop(stdin);
        let mut line = String::new();
        if let Some(out) = self.child.stdout.as_mut() {
            BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
        }
        let status = self.child.wait().map_err(|e| e.to_string())?;
        match line.trim().strip_prefix("calls ").and_then(|n| n.parse().ok()) {
            Some(calls) if status.success() => Ok(calls),
            _ => Err(format!("the target ended with {status}, saying '{}'", line.trim())),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
