//! A script from its begin to its end, in the controller.
//!
//! For:     the command line.
//! State:   the script, its memory, output, what is due when.
//! Context: control; one thread.
//! Keeps:   K1 begin runs before anything else, end after everything; both in the order of the script.
//!          K2 a program that takes more than its fuel is ended, counted by cause and told at the end.
//!          K3 the run ends by `exit()`, a signal, the end of the child or of the process that it was asked to follow, or when no
//!             event can come any more.
//! Checked: tests/scripts.rs.

use super::host::{CONTEXT_AT, Memory};
use super::maps::{Map, Shared, shared};
use super::os;
use super::out::{Format, Out};
use super::report::{self, How};
use super::traced::{Engine, Look, Told, Traced, Untraced};
use crate::program::{Event, Probe, Script, Trouble};
use crate::sides;
use bpf::{Fault, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::{Duration, Instant};

/// Instructions that one run of a program may take: about two seconds.
const FUEL: u64 = 100_000_000;
/// How long one benchmark is measured.
const BENCH_FOR: Duration = Duration::from_millis(300);
/// Nothing is due: one looks again after so long.
const IDLE: u64 = 1_000_000_000;
/// Records of traced processes are looked for as often.
const LOOK: u64 = 5_000_000;

/// What a run is told.
#[derive(Debug, Default)]
pub struct Settings {
    /// Nothing is said but what the script prints and errors.
    pub is_quiet: bool,
    /// Warnings are not said.
    pub no_warnings: bool,
    /// `system()` may run commands.
    pub is_unsafe: bool,
    /// `__BPFTRACE_NOTIFY_PROBES_ATTACHED` is said when all is in place.
    pub notifies: bool,
    /// Maps are printed at the end.
    pub prints_maps: bool,
    /// What marks a text that was cut off.
    pub trailer: String,
    /// Bytes that `cat()` prints at most.
    pub cat_max: u64,
    /// The run ends when this process does.
    pub follows: Option<u32>,
    /// Only `test` probes (true) or `bench` probes run.
    pub mode: Mode,
    /// Times of series are not of today (for tests).
    pub times_from_1970: bool,
    /// Ends right after everything is in place.
    pub is_dry: bool,
    /// No receipt at the end.
    pub is_silent: bool,
    /// No blank lines before the maps at the end.
    pub is_verb: bool,
}

/// Which probes run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All but tests and benchmarks.
    #[default]
    Trace,
    /// Tests.
    Test,
    /// Benchmarks.
    Bench,
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code.
    pub code: i32,
    /// Output that could not be written.
    pub failure: Option<std::io::Error>,
}

/// A running script.
pub struct Machine {
    pub(super) script: Script,
    pub(super) memory: Memory,
    pub(super) shared: Shared,
    pub(super) out: Out,
    err: Box<dyn Write>,
    pub(super) exit: Option<i32>,
    /// By what it is and the place.
    pub(super) troubles: BTreeMap<(Trouble, String), u64>,
    /// What the script itself said were errors.
    pub(super) errors: u64,
    /// Programs that were ended, by probe and cause.
    faults: BTreeMap<(usize, String), u64>,
    pub(super) lost: u64,
    /// Records that found their ring full, as far as it was told.
    pub(super) lost_in_rings: u64,
    /// And another engine's.
    pub(super) lost_in_engine: u64,
    /// Samples, the same.
    lost_samples: u64,
    pub(super) says_warnings: bool,
    pub(super) says_no_trace: bool,
    pub(super) trailer: String,
    pub(super) cat_max: u64,
    pub(super) is_real: bool,
    /// Who runs programs beside this machine, or all of them.
    pub(super) engine: Option<Box<dyn Engine>>,
    settings: Settings,
}

impl Machine {
    /// Nothing runs yet. `err` is where warnings and errors go.
    ///
    /// # Errors
    /// The maps are too large.
    pub fn new(script: Script, settings: Settings, out: Out, err: Box<dyn Write>) -> Result<Machine, String> {
        // Another engine may want them later.
        let constants = script.constants.clone();
        let shared = shared(&script.maps, constants.clone())?;
        let numbered = script.maps.iter().cloned().enumerate();
        let maps = numbered.map(|(number, decl)| Map::new(decl, number, &shared)).collect();
        let mut memory = Memory::new(constants, script.scratch, maps);
        memory.is_unsafe = settings.is_unsafe;
        memory.symbols = script.symbols.clone();
        Ok(Machine {
            memory,
            shared,
            out,
            err,
            exit: None,
            troubles: BTreeMap::new(),
            errors: 0,
            faults: BTreeMap::new(),
            lost: 0,
            lost_in_rings: 0,
            lost_in_engine: 0,
            lost_samples: 0,
            says_warnings: !settings.no_warnings,
            says_no_trace: true,
            trailer: settings.trailer.clone(),
            cat_max: settings.cat_max,
            is_real: !settings.times_from_1970,
            engine: None,
            script,
            settings,
        })
    }

    /// Has all programs run by another engine.
    pub fn run_by(&mut self, engine: Box<dyn Engine>) {
        self.engine = Some(engine);
    }

    /// Brings a map up to date, where another engine has some of it.
    pub(super) fn fetch(&mut self, map: usize) {
        if let Some(engine) = self.engine.as_mut().filter(|_| map < self.memory.maps.len()) {
            engine.bring(map, &self.shared);
        }
    }

    /// Says something beside the output, in its order.
    pub(super) fn say(&mut self, text: &str) {
        self.out.flush();
        // Talk that nobody can read is dropped.
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }

    /// Runs one program.
    fn run_program(&mut self, probe: usize) -> Result<u64, Fault> {
        if let Some(engine) = self.engine.as_mut().filter(|engine| engine.has_program(probe)) {
            if let Err(why) = engine.run(probe) {
                *self.faults.entry((probe, why)).or_default() += 1;
            }
            return Ok(0);
        }
        if self.engine.is_some() {
            // It goes by what is in them.
            let named: Vec<usize> = sides::named(&self.script.probes[probe].program).collect();
            named.into_iter().for_each(|map| self.fetch(map));
        }
        let program: &Program = &self.script.probes[probe].program;
        let result = bpf::run(program, &mut self.memory, [CONTEXT_AT, 0, 0, 0, 0], FUEL);
        result.map_err(|faulted| {
            *self.faults.entry((probe, faulted.to_string())).or_default() += 1;
            faulted.why
        })
    }

    /// The programs of an event, in order. With one that exits, the others still run.
    fn fire(&mut self, is_wanted: impl Fn(&Event) -> bool) {
        for probe in 0..self.script.probes.len() {
            if is_wanted(&self.script.probes[probe].event) {
                // A fault is kept and told at the end.
                let _ = self.run_program(probe);
            }
        }
    }

    /// Runs all of it.
    pub fn run(mut self, traced: &mut dyn Traced) -> Ended {
        let signals = self.listen();
        match traced.start() {
            Ok(child) => self.memory.child = child,
            Err(why) => return self.refused(&why),
        }
        if self.settings.mode != Mode::Trace {
            let code = self.run_special();
            return self.end(code);
        }
        self.fire(|event| *event == Event::Begin);
        // What begin says stands before what hits say, and behind the word that all is in place where there are none.
        if self.script.probes.iter().any(|probe| matches!(probe.event, Event::Target(_))) {
            self.drain(traced);
        }
        if let Err(why) = traced.attach(&self.script, &self.shared) {
            traced.detach();
            return self.refused(&why);
        }
        self.engine = traced.successor().or(self.engine.take());
        self.attached(&traced.left_out(), &traced.aside());
        self.drain(traced);
        if !self.settings.is_dry && self.exit.is_none() {
            self.wait_for_events(signals.as_ref(), traced);
        }
        traced.detach();
        if self.settings.is_dry {
            let code = self.exit.unwrap_or(0);
            return self.end(code);
        }
        self.run_samples(traced);
        self.drain_all();
        self.fire(|event| *event == Event::End);
        self.drain_all();
        self.print_maps();
        self.tell(traced.told());
        let (lines, is_clean) = traced.receipt();
        if !self.settings.is_silent {
            self.out.flush();
            lines.iter().for_each(|line| self.say(&format!("{line}\n")));
            self.tell_failures();
        }
        let code = self.exit.unwrap_or(i32::from(!is_clean));
        self.end(code)
    }

    /// What results are of.
    fn tell(&mut self, told: Option<Told>) {
        let Some(Told { text, json, is_needed }) = told else { return };
        if self.out.format == Format::Json {
            self.out.raw(format!("{json}\n").as_bytes());
        }
        if is_needed || !self.settings.is_silent {
            self.say(&format!("{text}\n"));
        }
    }

    /// Ends before anything was traced.
    fn refused(mut self, why: &str) -> Ended {
        self.say(&format!("{}\n", why.trim_end()));
        self.end(1)
    }

    /// How many probes there are; of those in processes also who has them, if that is not one for all.
    fn attached(&mut self, left_out: &BTreeSet<String>, aside: &BTreeSet<u32>) {
        // A mark at several places is one probe.
        let names = |probe: &Probe, is_of: &dyn Fn(u32) -> bool| {
            let Event::Target(target) = &probe.event else { return 0 };
            let sites = target.sites.iter().filter(|(place, _)| is_of(*place));
            let names = sites.filter_map(|(_, cookie)| self.script.names.get(*cookie as usize));
            let names: BTreeSet<&str> = names.map(|name| &**name).collect();
            names.into_iter().filter(|name| !left_out.contains(*name)).count()
        };
        let of = |probe: &Probe| match &probe.event {
            Event::Test(_) | Event::Bench(_) => 0,
            Event::Target(_) => names(probe, &|_| true),
            _ => 1,
        };
        let n: usize = self.script.probes.iter().map(of).sum();
        let [by_jump, by_kernel] = [false, true].map(|is_aside| -> usize {
            let is_of = |place: u32| aside.contains(&place) == is_aside;
            self.script.probes.iter().map(|probe| names(probe, &is_of)).sum()
        });
        let of_both = match by_kernel {
            0 => String::new(),
            _ => format!(" ({by_jump} jump, {by_kernel} kernel)"),
        };
        if !self.settings.is_quiet {
            match self.out.format {
                Format::Text => {
                    let s = if n == 1 { "" } else { "s" };
                    self.say(&format!("Attached {n} probe{s}{of_both}\n"));
                }
                Format::Json => {
                    let line = format!(
                        "{{\"type\": \"attached_probes\", \"count\": {n}, \"data\": {{\"probes\": {n}}}}}\n"
                    );
                    self.out.raw(line.as_bytes());
                }
            }
        }
        if self.settings.notifies {
            self.out.flush();
            // Whoever waits for the word reads our standard output, also when results go to a file.
            let _ = writeln!(std::io::stdout(), "__BPFTRACE_NOTIFY_PROBES_ATTACHED");
        }
    }

    /// Signals that end the run and those that the script waits for, as bytes.
    fn listen(&mut self) -> Option<PipeReader> {
        let (reader, writer) = std::io::pipe().ok()?;
        os::unblock(reader.as_raw_fd());
        os::unblock(writer.as_raw_fd());
        os::set_signal_pipe(writer.into_raw_fd());
        let asked = self.script.probes.iter().filter_map(|probe| match probe.event {
            Event::Signal(signal) => Some(signal),
            _ => None,
        });
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD].into_iter().chain(asked) {
            os::catch(signal);
        }
        Some(reader)
    }

    fn wait_for_events(&mut self, signals: Option<&PipeReader>, traced: &mut dyn Traced) {
        let mut timers: Vec<(usize, u64, u64)> = Vec::new();
        let now = os::clock(os::MONOTONIC);
        for (i, probe) in self.script.probes.iter().enumerate() {
            if let Event::Interval(period) = probe.event {
                timers.push((i, period.max(1), now + period.max(1)));
            }
        }
        let waits_for_signals = self.script.probes.iter().any(|p| matches!(p.event, Event::Signal(_)));
        loop {
            let has_target = traced.is_any() || self.settings.follows.is_some();
            if timers.is_empty() && !waits_for_signals && !has_target {
                return;
            }
            let now = os::clock(os::MONOTONIC);
            let next = timers.iter().map(|(.., due)| *due).min();
            let idle = if traced.is_any() { LOOK } else { IDLE };
            let idle = traced.pause().map_or(idle, |pause| idle.min(pause.as_nanos() as u64));
            let limit = next.map_or(IDLE, |due| due.saturating_sub(now)).min(idle);
            let mut watched: Vec<i32> = signals.iter().map(|pipe| pipe.as_raw_fd()).collect();
            watched.extend(traced.watched());
            os::wait(&watched, limit);
            if self.take_signals(signals) {
                return;
            }
            let look = traced.look(&self.script, &self.shared);
            if let Some(engine) = traced.successor() {
                self.drain(traced);
                self.engine = Some(engine);
            }
            self.run_samples(traced);
            self.run_timers(&mut timers, traced);
            self.drain(traced);
            let is_over = look != Look::On || self.settings.follows.is_some_and(|pid| !is_alive(pid));
            if self.exit.is_some() || is_over || self.out.is_broken() {
                return;
            }
        }
    }

    /// Runs what signals asked for; true if one asked to end.
    fn take_signals(&mut self, mut signals: Option<&PipeReader>) -> bool {
        let mut bytes = [0; 256];
        let Some(pipe) = signals.as_mut() else { return false };
        let n = pipe.read(&mut bytes).unwrap_or(0);
        let mut is_asked = false;
        for signal in bytes[..n].iter().map(|byte| i32::from(*byte)) {
            let is_ours = self.script.probes.iter().any(|probe| probe.event == Event::Signal(signal));
            if is_ours {
                self.fire(|event| *event == Event::Signal(signal));
            } else if signal == libc::SIGINT || signal == libc::SIGTERM {
                is_asked = true;
            }
        }
        is_asked
    }

    /// Runs programs for the samples that came, as if it were then.
    fn run_samples(&mut self, traced: &mut dyn Traced) {
        for (probe, sample) in traced.samples() {
            if self.exit.is_some() {
                break;
            }
            self.memory.sample = Some(sample);
            let _ = self.run_program(probe);
            self.memory.sample = None;
            self.drain_own();
        }
        let lost = traced.lost_samples();
        self.memory.lost += lost.saturating_sub(std::mem::replace(&mut self.lost_samples, lost));
    }

    fn run_timers(&mut self, timers: &mut [(usize, u64, u64)], traced: &mut dyn Traced) {
        // Those that were due earlier run earlier.
        timers.sort_by_key(|(probe, _, due)| (*due, *probe));
        for (probe, period, due) in timers {
            let now = os::clock(os::MONOTONIC);
            if *due > now {
                break;
            }
            let _ = self.run_program(*probe);
            *due = (*due + *period).max(now);
            self.drain(traced);
            if self.exit.is_some() {
                return;
            }
        }
    }

    fn print_maps(&mut self) {
        if self.out.format == Format::Text && !self.settings.is_verb {
            self.out.raw(b"\n\n");
        }
        if !self.settings.prints_maps {
            return;
        }
        (0..self.memory.maps.len()).for_each(|map| self.fetch(map));
        for (name, keys) in self.engine.iter().flat_map(|engine| engine.missing()).collect::<Vec<_>>() {
            let keys = if keys == 1 { "a key".to_owned() } else { format!("{keys} keys") };
            self.say(&format!(
                "WARNING: {name} is full: of {keys} what the kernel's probes took in is missing\n"
            ));
        }
        let how = How { top: 0, div: 1, trailer: &self.trailer, is_real: self.is_real, is_falling: false };
        let mut maps: Vec<&Map> = self.memory.maps.iter().filter(|map| map.len() > 0).collect();
        maps.sort_by(|a, b| a.decl.name.cmp(&b.decl.name));
        for map in maps {
            report::map(&mut self.out, &self.script, map, how);
        }
    }

    fn end(mut self, code: i32) -> Ended {
        self.tell_untold();
        for ((probe, cause), count) in std::mem::take(&mut self.faults) {
            let name = self.script.probes[probe].name.clone();
            let times = if count == 1 { "once" } else { &format!("{count} times") };
            self.say(&format!("ERROR: {name}: ended before its end, {times}: {cause}\n"));
        }
        let failure = self.out.failure();
        let code = if failure.is_some() && code == 0 { 1 } else { code };
        Ended { code, failure }
    }

    fn run_special(&mut self) -> i32 {
        let is_test = self.settings.mode == Mode::Test;
        let of = |event: &Event| match event {
            Event::Test(name) if is_test => Some(name.clone()),
            Event::Bench(name) if !is_test => Some(name.clone()),
            _ => None,
        };
        let all: Vec<(usize, String)> =
            self.script.probes.iter().enumerate().filter_map(|(i, p)| Some((i, of(&p.event)?))).collect();
        if is_test { self.run_tests(&all) } else { self.run_benches(&all) }
    }

    /// Reads, lookups and the like that failed, and errors that the script told.
    fn failed_so_far(&self) -> u64 {
        self.errors + self.troubles.values().sum::<u64>()
    }

    fn run_tests(&mut self, all: &[(usize, String)]) -> i32 {
        let mut failed = Vec::new();
        if self.out.format == Format::Text {
            let line = format!("\x1b[32m[==========]\x1b[0m Running {} tests.\n", all.len());
            self.out.raw(line.as_bytes());
        }
        for (probe, name) in all {
            let began = Instant::now();
            let before = self.failed_so_far();
            let result = self.run_program(*probe);
            let took = began.elapsed().as_nanos();
            let hidden = Out::new(Box::new(std::io::sink()), self.out.format, super::Buffering::Full, false);
            let is_fine = matches!(result, Ok(0));
            if self.out.format == Format::Text {
                self.out.raw(format!("\x1b[32m[ RUN      ]\x1b[0m {name}\n").as_bytes());
            }
            // The output of a test that passed is not shown.
            let shown = if is_fine { Some(std::mem::replace(&mut self.out, hidden)) } else { None };
            self.drain(&mut Untraced);
            if let Some(shown) = shown {
                self.out = shown;
            }
            let is_fine = is_fine && self.exit.take().unwrap_or(0) == 0 && self.failed_so_far() == before;
            if !is_fine {
                failed.push(name.clone());
            }
            match self.out.format {
                Format::Text => {
                    let mark = if is_fine { "\x1b[32m[       OK ]" } else { "\x1b[31m[  FAILED  ]" };
                    self.out.raw(format!("{mark}\x1b[0m {name} ({took} ns)\n").as_bytes());
                }
                Format::Json => {
                    let data = format!(
                        "{{\"{name}\": {{\"duration\": {took}, \"passed\": {is_fine}, \"output\": \"\"}}}}"
                    );
                    self.out.line("test_result", &data);
                }
            }
        }
        if self.out.format == Format::Text {
            let tests = |n: usize| if n == 1 { "1 test".to_owned() } else { format!("{n} tests") };
            let mut text = format!("\x1b[32m[==========]\x1b[0m {} ran.\n", tests(all.len()));
            text += &format!("\x1b[32m[  PASSED  ]\x1b[0m {}.\n", tests(all.len() - failed.len()));
            if !failed.is_empty() {
                text += &format!("\x1b[31m[  FAILED  ]\x1b[0m {}, listed below:\n", tests(failed.len()));
                text.extend(failed.iter().map(|name| format!("\x1b[31m[  FAILED  ]\x1b[0m {name}\n")));
            }
            self.out.raw(text.as_bytes());
        }
        i32::from(!failed.is_empty())
    }

    fn run_benches(&mut self, all: &[(usize, String)]) -> i32 {
        let width = all.iter().map(|(_, name)| name.len()).max().unwrap_or(0).max(40) + 1;
        if self.out.format == Format::Text {
            let head = format!("{:<width$}{:<15}{}\n", "Benchmark", "Time(ns)", "Iterations");
            let line = "-".repeat(head.len() - 1);
            self.out.raw(format!("{head}{line}\n").as_bytes());
        }
        for (probe, name) in all {
            let began = Instant::now();
            let mut runs = 0u32;
            while began.elapsed() < BENCH_FOR {
                if self.run_program(*probe).is_err() {
                    break;
                }
                runs += 1;
                self.memory.ring.clear();
            }
            let average = began.elapsed().as_nanos() / u128::from(runs.max(1));
            match self.out.format {
                Format::Text => self.out.raw(format!("{name:<width$}{average:<15}{runs}\n").as_bytes()),
                Format::Json => {
                    let data = format!("{{\"{name}\": {{\"average\": {average}, \"iters\": {runs}}}}}");
                    self.out.line("benchmark_result", &data);
                }
            }
        }
        0
    }
}

fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
