//! `torture hwbp`: breakpoints reserved, released and changed by many threads.
//!
//! For:     finding accounts that grant too much, refuse too much, or keep what was given back.
//! State:   one machine's accounts at a time; what each thread holds; counters.
//! Context: control.
//! Keeps:   T1 in each pause no CPU has more than it can, every question has the brute-force checker's answer, and
//!          so has every request made then; after the last release nothing is held.
//!          T2 every broken variant fails (`tests/broken.rs`).
//! Checked: `tests/broken.rs`.

mod scenarios;

use crate::rng::Rng;
use hwbp::{
    Accounts, Broken, Checker, EngineKind, Kind, Machine, Place, Pools, Refused, Request, Reservation,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const HELP: &str = "\
nanoprobe torture hwbp [OPTION]...
Threads reserve, release and change breakpoints of tasks and CPUs at random, on machines of all shapes; in pauses the
accounts are compared with a checker that computes every constraint from scratch.

  --for TIME      how long: 90s, 10m, 2h (60s)
  --seed N        repeat the decisions of another run
  --threads N     (4)
  --engine E      list, hash or histogram; may be given more than once (all, in turns)
  --broken NAME   break the accounts on purpose: no-task-lock, shared-cpu-lock, no-move (histogram), modify-forgets
                  (any engine); the run must then fail
  --scenarios     the nine scenarios of the kernel's own test instead, once on each engine
  --cpus N        CPUs for that (8)
  --slots N       debug registers of each for that (4)

The last line is one of
  PASS seed=1 grants=9 refusals=9 releases=9 changes=9 questions=9 pauses=9 locked=9
  FAIL seed=1 grants=9 refusals=9 ...: histogram with 3 CPUs: 5 registers are taken on CPU 1
";

/// Pauses in the life of one machine.
const PAUSES: u64 = 12;
/// Operations of a thread between two pauses, at most.
const BURST: u64 = 400;

const BROKEN: [(&str, Broken); 4] = [
    ("no-task-lock", Broken::NoTaskLock),
    ("shared-cpu-lock", Broken::SharedCpuLock),
    ("no-move", Broken::NoMove),
    ("modify-forgets", Broken::ModifyForgets),
];

struct Options {
    run_for: Duration,
    seed: u64,
    threads: u64,
    engines: Vec<EngineKind>,
    broken: Option<Broken>,
    has_scenarios: bool,
    cpus: u32,
    slots: u32,
}

#[derive(Default)]
struct Counts {
    grants: AtomicU64,
    refusals: AtomicU64,
    releases: AtomicU64,
    changes: AtomicU64,
    questions: AtomicU64,
    pauses: AtomicU64,
    /// Refused because somebody held a lock, to one who must not wait.
    locked: AtomicU64,
}

/// Runs the torture; the exit status: 0 passed, 1 failed, 2 bad arguments.
pub fn hwbp_main(args: &[String]) -> i32 {
    match parse(args) {
        Ok(Some(o)) if o.has_scenarios => scenarios::run(&o.engines, o.cpus, o.slots, o.broken),
        Ok(Some(options)) => run(&options),
        Ok(None) => 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture hwbp --help");
            2
        }
    }
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = now.as_nanos() as u64 % 1_000_000_000;
    let mut options = Options {
        run_for: Duration::from_secs(60),
        seed,
        threads: 4,
        engines: Vec::new(),
        broken: None,
        has_scenarios: false,
        cpus: 8,
        slots: 4,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("for") => options.run_for = crate::duration(&parser.value()?.string()?)?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("threads") => options.threads = parser.value()?.parse::<u64>()?.max(1),
            Long("scenarios") => options.has_scenarios = true,
            Long("cpus") => options.cpus = parser.value()?.parse::<u32>()?.max(1),
            Long("slots") => options.slots = parser.value()?.parse::<u32>()?.max(1),
            Long("engine") => {
                let name = parser.value()?.string()?;
                let known = EngineKind::ALL.into_iter().find(|e| e.name() == name);
                options.engines.push(known.ok_or_else(|| format!("no engine {name}"))?);
            }
            Long("broken") => {
                let name = parser.value()?.string()?;
                let known = BROKEN.iter().find(|(n, _)| *n == name);
                options.broken = Some(known.ok_or_else(|| format!("no broken variant {name}"))?.1);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    if options.engines.is_empty() {
        options.engines = EngineKind::ALL.into();
    }
    Ok(Some(options))
}

fn run(options: &Options) -> i32 {
    let counts = Counts::default();
    let end = Instant::now() + options.run_for;
    let mut wrong = None;
    let mut life = 0;
    while wrong.is_none() && Instant::now() < end {
        let engine = options.engines[life as usize % options.engines.len()];
        wrong = live(options, engine, life, &counts).err();
        life += 1;
    }
    verdict(options.seed, &counts, wrong)
}

fn verdict(seed: u64, c: &Counts, wrong: Option<String>) -> i32 {
    let needed = [
        ("grants", &c.grants),
        ("refusals", &c.refusals),
        ("releases", &c.releases),
        ("changes", &c.changes),
        ("questions", &c.questions),
        ("pauses", &c.pauses),
    ];
    let mut line = format!("seed={seed}");
    needed.iter().for_each(|(name, n)| line += &format!(" {name}={}", n.load(Relaxed)));
    line += &format!(" locked={}", c.locked.load(Relaxed));
    let idle = || needed.iter().find(|(_, n)| n.load(Relaxed) == 0).map(|(name, _)| format!("no {name}"));
    match wrong.or_else(idle) {
        None => {
            println!("PASS {line}");
            0
        }
        Some(why) => {
            println!("FAIL {line}: {why}");
            1
        }
    }
}

/// The life of one machine's accounts, from empty to empty.
fn live(options: &Options, engine: EngineKind, life: u64, counts: &Counts) -> Result<(), String> {
    let mut rng = Rng::new(options.seed, life << 16);
    let world = World::random(&mut rng, engine, options.broken, counts);
    let mut held: Vec<Vec<Reservation<'_>>> = (0..options.threads).map(|_| Vec::new()).collect();
    for pause in 0..PAUSES {
        let stream = life << 16 | pause << 8;
        let done = catch_unwind(AssertUnwindSafe(|| {
            world.bursts(options.seed, stream, &mut held)?;
            world.check(&mut rng, &mut held)
        }));
        let why = match done {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(panic) => Some(panic_text(&*panic)),
        };
        if let Some(why) = why {
            // Releasing what wrong accounts gave may panic again.
            std::mem::forget(held);
            return Err(format!("{}: {why}", world.name()));
        }
        counts.pauses.fetch_add(1, Relaxed);
    }
    drop(held);
    match world.accounts.is_used() {
        true => Err(format!("{}: something is held after all was released", world.name())),
        false => Ok(()),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("of another kind"))
}

struct World<'c> {
    accounts: Accounts,
    engine: EngineKind,
    tasks: u64,
    counts: &'c Counts,
}

impl<'c> World<'c> {
    fn random(rng: &mut Rng, engine: EngineKind, broken: Option<Broken>, counts: &'c Counts) -> World<'c> {
        let slots = 1 + rng.below(5) as u32;
        let pools = match rng.one_in(4) {
            true => Pools::Split { data: slots, instruction: 1 + rng.below(3) as u32 },
            false => Pools::Shared(slots),
        };
        let machine = Machine { cpus: 1 + rng.below(6) as u32, pools };
        let accounts = match broken {
            Some(how) => Accounts::broken(machine, engine, how),
            None => Accounts::new(machine, engine),
        };
        World { accounts, engine, tasks: 1 + rng.below(5), counts }
    }

    fn name(&self) -> String {
        format!("{} with {} CPUs", self.engine.name(), self.accounts.machine().cpus)
    }

    fn request(&self, rng: &mut Rng) -> Request {
        let (task, cpu) = (rng.below(self.tasks), rng.below(u64::from(self.accounts.machine().cpus)) as u32);
        let place = match rng.below(4) {
            0 => Place::Cpu(cpu),
            1 => Place::TaskOnCpu(task, cpu),
            _ => Place::Task(task),
        };
        let kind = if rng.one_in(4) { Kind::Instruction } else { Kind::Data };
        Request { place, kind }
    }

    /// All threads' operations up to the next pause.
    fn bursts<'a>(&'a self, seed: u64, stream: u64, held: &mut [Vec<Reservation<'a>>]) -> Result<(), String> {
        std::thread::scope(|s| {
            let one = |(n, mine)| {
                let mut rng = Rng::new(seed, stream | (n as u64 + 1));
                s.spawn(move || self.burst(&mut rng, mine))
            };
            let all: Vec<_> = held.iter_mut().enumerate().map(one).collect();
            let ends = all.into_iter().map(|thread| thread.join().map_err(|panic| panic_text(&*panic)));
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// One thread's operations up to the next pause.
    fn burst<'a>(&'a self, rng: &mut Rng, mine: &mut Vec<Reservation<'a>>) {
        let fill = 2 + rng.below(5);
        for _ in 0..rng.below(BURST) {
            let request = self.request(rng);
            match rng.below(10) {
                n if n < fill || mine.is_empty() => match rng.below(16) {
                    0 => self.reserve_wide(request.kind, mine),
                    1..4 => self.keep(self.accounts.try_reserve(request), mine),
                    _ => self.keep(self.accounts.reserve(request), mine),
                },
                9 => drop(self.accounts.used(request)),
                8 => self.change(rng, request.kind, mine),
                _ => self.release(rng, mine),
            }
        }
    }

    fn keep<'a>(&self, got: Result<Reservation<'a>, Refused>, mine: &mut Vec<Reservation<'a>>) {
        let count = match got {
            Ok(reservation) => {
                mine.push(reservation);
                &self.counts.grants
            }
            Err(Refused::Locked) => &self.counts.locked,
            Err(_) => &self.counts.refusals,
        };
        count.fetch_add(1, Relaxed);
    }

    fn reserve_wide<'a>(&'a self, kind: Kind, mine: &mut Vec<Reservation<'a>>) {
        match self.accounts.reserve_wide(kind) {
            Ok(all) => all.into_iter().for_each(|one| self.keep(Ok(one), mine)),
            Err(refused) => self.keep(Err(refused), mine),
        }
    }

    fn change(&self, rng: &mut Rng, kind: Kind, mine: &mut [Reservation<'_>]) {
        let at = rng.below(mine.len() as u64) as usize;
        let to = Request { place: mine[at].request().place, kind };
        let count = match mine[at].modify(to) {
            Ok(()) => &self.counts.changes,
            Err(_) => &self.counts.refusals,
        };
        count.fetch_add(1, Relaxed);
    }

    fn release(&self, rng: &mut Rng, mine: &mut Vec<Reservation<'_>>) {
        let one = mine.swap_remove(rng.below(mine.len() as u64) as usize);
        if !rng.one_in(4) {
            drop(one);
        } else if let Err(back) = one.try_release() {
            mine.push(back);
            self.counts.locked.fetch_add(1, Relaxed);
            return;
        }
        self.counts.releases.fetch_add(1, Relaxed);
    }

    /// Nobody else is at the accounts now.
    fn check<'a>(&'a self, rng: &mut Rng, held: &mut [Vec<Reservation<'a>>]) -> Result<(), String> {
        let machine = self.accounts.machine();
        let mut checker = Checker::new(machine);
        held.iter().flatten().for_each(|one| checker.add(one.request()));
        if let Some(cpu) = checker.overcommitted() {
            let used = checker.used(Request::data(Place::Cpu(cpu)));
            return Err(format!("{used} registers are taken on CPU {cpu}"));
        }
        self.ask_all(&checker)?;
        for _ in 0..20 {
            let request = self.request(rng);
            let wanted = checker.would_grant(request);
            let got = self.accounts.reserve(request);
            if got.is_ok() != wanted {
                return Err(format!("{request:?} was answered by {got:?}, wanted {wanted}"));
            }
            if wanted {
                checker.add(request);
            }
            self.keep(got, &mut held[0]);
        }
        self.ask_all(&checker)?;
        let is_any_held = !checker.held().is_empty();
        match self.accounts.is_used() == is_any_held {
            true => Ok(()),
            false => Err(format!("held is {is_any_held}, and is_used says otherwise")),
        }
    }

    /// Every question that there is.
    fn ask_all(&self, checker: &Checker) -> Result<(), String> {
        let cpus = self.accounts.machine().cpus;
        let of_task = |task| {
            let on_each = (0..cpus).map(move |cpu| Place::TaskOnCpu(task, cpu));
            std::iter::once(Place::Task(task)).chain(on_each)
        };
        let places = (0..cpus).map(Place::Cpu).chain((0..self.tasks).flat_map(of_task));
        for place in places {
            for kind in [Kind::Data, Kind::Instruction] {
                let request = Request { place, kind };
                let (used, wanted) = (self.accounts.used(request), checker.used(request));
                if used != Ok(wanted) {
                    return Err(format!("{place} uses {used:?}, wanted {wanted}"));
                }
                self.counts.questions.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}
