//! One run: attach, wait, detach, print.
//!
//! For:     the engine process.
//! State:   the probes, and the child if we started one.
//! Context: control.
//! Keeps:   E1 results and receipt are printed however the run ends, except when nobody is left to read them.
//!          E2 exit code 0 means that every site has the file's bytes again.
//! Checked: testkit.

use crate::advice;
use crate::args::{Format, RunArgs};
use crate::aside::{Aside, Output};
use crate::budget::Budget;
use crate::guard::Guard;
use crate::probes::Probes;
use crate::recording;
use crate::render::{Part, Report, Writer, cpu_ticks, open_calls};
use crate::stacks::{self, Stacks};
use crate::stop::{Due, Stop, Woke};
use crate::top::{Top, Tty, Turn};
use crate::trace::{self, Calls};
use bench::Price;
use image::Spec;
use session::{Broken, Ending, Haste, Launched, Receipt, Session, Verb};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often we look whether the target is still there.
const LOOK: Duration = Duration::from_millis(50);
/// How often we look whether somebody is about to exec, and waits for us.
const EXEC_LOOK: Duration = Duration::from_millis(2);
/// Looks at the rings after the last hit: more than enough for every ring to be full.
const LAST_LOOKS: usize = 256;
/// How long a program that we started may take to end when we ask it to; then it is left alone, which is said.
const GRACE: Duration = Duration::from_secs(5);

/// What to do.
pub struct Job {
    pub specs: Vec<Spec>,
    pub verb: Verb,
    pub args: RunArgs,
}

pub fn run(job: Job, stop: Stop, guard: &mut Guard) -> i32 {
    with(job, stop, guard, None)
}

/// The same with a live view, on the terminal or as a plain print of so many rows.
pub fn top(job: Job, stop: Stop, tty: Option<Tty>, rows: usize, guard: &mut Guard) -> i32 {
    with(job, stop, guard, Some((tty, rows)))
}

fn with(job: Job, mut stop: Stop, guard: &mut Guard, view: Option<(Option<Tty>, usize)>) -> i32 {
    let mut writer = match Writer::open(&job.args, &stop) {
        Ok(writer) => writer,
        Err(why) => return advice::fail(&why, &[], &[]),
    };
    let aside = match view {
        Some((Some(_), _)) if !job.args.command.is_empty() => Aside::begin(),
        _ => None,
    };
    let subject = subject(&job.args, &mut stop);
    let output = aside.map(Aside::end);
    let (launched, pid) = match subject {
        Ok(subject) => subject,
        Err(code) => return code,
    };
    guard.tell(pid);
    let pace = crate::look::pace(stop.asker());
    // Before the process can go, and its files be replaced.
    let has_stacks = job.verb == Verb::CountStack || job.args.recorded.is_some_and(|r| r.has_stacks);
    let stacks = has_stacks.then(|| Stacks::hold(pid, job.args.stacks.clone()));
    let head = job.args.recorded.map(|_| recording::head(pid));
    let budget = match job.args.budget.map(|percent| Budget::of(percent, &job)) {
        Some(None) => {
            let why = "the price of a hit cannot be measured here, and --budget goes by it";
            if let Some(launched) = launched {
                launched.abandon();
            }
            return advice::fail(&why, &[], &["without --budget".into()]);
        }
        other => other.flatten(),
    };
    // Before anything is in: who is slow to take calls out loses them.
    let price = job.args.recorded.and_then(|_| bench::price(&recording::verbs(&job)));
    // What hits cost is looked at before anything else is done.
    let haste = budget.as_ref().map(|_| Haste::from_attach());
    let attached =
        Probes::attach(&job, pid, &mut writer, pace).and_then(|probes| recording::beside(probes, &job));
    match attached {
        Ok(probes) => {
            writer.lines(head.as_slice());
            let top = view.map(|(tty, rows)| Top::open(tty, &job, rows));
            Engine {
                job,
                stop,
                guard,
                writer,
                pid,
                probes,
                launched,
                stacks,
                has_unwritten: false,
                calls: Vec::new(),
                top,
                output,
                before: None,
                began: Instant::now(),
                price,
                budget,
                haste,
            }
            .run()
        }
        Err(code) => {
            if let Some(launched) = launched {
                launched.abandon();
            }
            code
        }
    }
}

/// The process to trace: a command that is started, and stands before its first instruction, or one that runs.
///
/// # Errors
/// The exit code, with everything said.
pub fn subject(args: &RunArgs, stop: &mut Stop) -> Result<(Option<Launched>, i32), i32> {
    let Some((program, words)) = args.command.split_first() else {
        return Ok((None, args.pid.unwrap_or(0)));
    };
    let launched = Launched::start(program, words, stop.heritage, || stop.is_asked()).map_err(|broken| {
        let code = advice::cannot_attach(&broken);
        match broken {
            Broken::EndedEarly { ending, .. } => ending.exit_code(),
            _ => code,
        }
    })?;
    let pid = launched.pid();
    stop.command = pid;
    Ok((Some(launched), pid))
}

struct Engine<'g> {
    job: Job,
    stop: Stop,
    guard: &'g mut Guard,
    writer: Writer,
    pid: i32,
    probes: Probes,
    launched: Option<Launched>,
    /// For counts by stack.
    stacks: Option<Stacks>,
    /// A file that was wanted could not be written.
    has_unwritten: bool,
    /// For `trace`: of each session.
    calls: Vec<Calls>,
    /// For `top`.
    top: Option<Top>,
    /// What the command prints while a view is on the terminal.
    output: Option<Output>,
    /// What was counted at the end of the last interval, and when that was.
    before: Option<(Instant, Report)>,
    began: Instant,
    /// For `record`.
    price: Option<Price>,
    /// What may be spent.
    budget: Option<Budget>,
    haste: Option<Haste>,
}

/// The sessions whose calls are shown. What is recorded has them in one of its own, which came last.
fn with_calls(probes: &Probes, is_recorded: bool) -> &[Session] {
    match is_recorded {
        true => probes.beside().last().map(std::slice::from_ref).unwrap_or_default(),
        false => probes.sessions(),
    }
}

impl Engine<'_> {
    fn run(mut self) -> i32 {
        let cpu_before = cpu_ticks(self.pid);
        let others: BTreeSet<i32> = self.probes.sessions().iter().map(|s| s.pid()).collect();
        others.into_iter().filter(|pid| *pid != self.pid).for_each(|pid| self.guard.tell(pid));
        if self.job.args.recorded.is_some() {
            recording::say_begun(&self.job);
        }
        self.began = Instant::now();
        if let Some(budget) = &mut self.budget {
            budget.begin(&mut self.probes);
        }
        self.haste = None;
        // Before it can go: what it is called, and what it takes.
        self.show_calls(false, None);
        if let Some(launched) = &self.launched {
            launched.go();
        }
        let woke = self.wait();
        if let Some(top) = &mut self.top {
            top.close(&mut self.probes);
        }
        if !self.job.args.follow {
            self.writer.children = session::living_children(self.pid).len();
        }
        // After the detach nothing of ours is left in the process by which to know it.
        let is_over = !self.probes.is_alive();
        let cpu = cpu_ticks(self.pid).zip(cpu_before).map(|(now, before)| now.saturating_sub(before));
        let mut receipt = self.probes.detach();
        if let Err(broken) = &receipt
            && woke != Woke::FrontGone
        {
            // The process goes on with our probes in it: say so, and try for longer.
            eprintln!("nanoprobe: detach failed: {broken}; trying again");
            std::thread::sleep(Duration::from_secs(1));
            receipt = self.probes.detach();
        }
        let is_clean = receipt.as_ref().is_ok_and(Receipt::is_verified);
        if woke != Woke::FrontGone {
            self.show_calls(true, None);
        }
        let code = match self.end_child(woke, is_over) {
            0 if !is_clean => 1,
            code => code,
        };
        if let Some(output) = self.output.take().filter(|_| woke != Woke::FrontGone) {
            output.tell();
        }
        if woke != Woke::FrontGone {
            self.report(receipt.unwrap_or_default(), cpu);
            let code = if self.has_unwritten && code == 0 { 1 } else { code };
            return self.writer.finish(code);
        }
        code
    }

    fn wait(&mut self) -> Woke {
        // A view has an interval of its own.
        let interval = self.job.args.interval.filter(|_| self.top.is_none());
        let mut due = Due::from_now(self.job.args.duration, interval);
        if let Some(top) = &self.top {
            self.stop.also = top.keys();
        }
        self.writer.end_at(due.end);
        loop {
            let mut until = due.or(Instant::now() + self.pause());
            if let Some(top) = &self.top {
                until = until.min(top.due());
            }
            if let Some(next) = self.keep_budget(due.end) {
                until = until.min(next);
            }
            if self.probes.is_listening() {
                let left = until.saturating_duration_since(Instant::now());
                self.probes.listen(left, &self.job, &mut self.writer);
                until = Instant::now();
            }
            if self.job.args.follow {
                let stop = &self.stop;
                let entered = self.probes.follow_execs(&self.job, &mut self.writer, &mut || stop.is_asked());
                entered.into_iter().for_each(|pid| self.guard.tell(pid));
            }
            if let Some(stacks) = self.stacks.as_mut().filter(|_| self.job.verb == Verb::CountStack) {
                stacks.hold_all(self.probes.sessions());
            }
            self.look_for_tables();
            session::tidy();
            self.show_calls(false, due.end);
            if let Some(top) = &mut self.top
                && top.turn(&mut self.probes, &self.job, &mut self.writer) == Turn::Quit
            {
                return Woke::Signal;
            }
            match self.stop.wait(until) {
                Woke::Time => {}
                other => return other,
            }
            if due.is_over() || !self.is_target_there() || self.writer.has_failed() {
                return Woke::Time;
            }
            if due.take_tick() {
                self.interval();
            }
        }
    }

    /// How long nothing needs to be looked at.
    fn pause(&self) -> Duration {
        match self.job.verb {
            _ if self.job.args.follow => EXEC_LOOK,
            _ if self.job.args.recorded.is_some_and(|r| r.has_calls) => trace::LOOK,
            Verb::Trace { .. } => trace::LOOK,
            _ => LOOK,
        }
    }

    /// For stacks: tables of what was loaded since, names of what was made.
    fn look_for_tables(&mut self) {
        let has_stacks = self.stacks.is_some() || self.job.args.shown.has_stacks;
        if has_stacks && self.probes.look_for_tables() {
            self.stacks.iter_mut().for_each(Stacks::look_for_names);
            self.calls.iter_mut().for_each(Calls::look_for_names);
        }
    }

    /// Prints what was counted so far, and what of it is new.
    fn interval(&mut self) {
        if self.job.verb == Verb::CountStack {
            return self.results();
        }
        let (now, report) = (Instant::now(), self.counted());
        let (then, since) = match &self.before {
            Some((then, before)) => (*then, report.since(before)),
            None => (self.began, report.clone()),
        };
        let part = Part { at: now - self.began, took: now - then, since };
        self.writer.interval(&report, &part);
        if let Some(budget) = self.budget.as_ref().filter(|_| self.writer.format == Format::Json) {
            self.writer.line(&budget.json().to_string());
        }
        self.before = Some((now, report));
    }

    /// Prints what was counted so far.
    fn results(&mut self) {
        let sessions = self.probes.sessions();
        match self.stacks.as_mut().filter(|_| self.job.verb == Verb::CountStack) {
            Some(stacks) => self.writer.lines(&stacks.lines(sessions, self.job.args.format)),
            None => {
                let report = self.counted();
                self.writer.results(&report);
            }
        }
    }

    /// All counts now, and which of them are of a part of the time.
    fn counted(&self) -> Report {
        let mut report = Report::of(self.probes.sessions(), &self.job);
        if let Some(budget) = &self.budget {
            budget.mark(&mut report);
        }
        report
    }

    /// Writes pictures, and says what stacks lack.
    fn say_of_stacks(&mut self) {
        let Some(stacks) = self.stacks.as_mut().filter(|_| self.job.verb == Verb::CountStack) else { return };
        let sessions = self.probes.sessions();
        let names: Vec<&str> = self.job.specs.iter().map(|spec| spec.text.as_str()).collect();
        if let Err(why) = stacks.write(sessions, &format!("{} by stack", names.join(" "))) {
            eprintln!("nanoprobe: {why}");
            self.has_unwritten = true;
        }
        stacks::losses(sessions).1.iter().for_each(|line| eprintln!("nanoprobe: {line}"));
    }

    /// Looks what was spent, if there is a budget, and when that is due again: until then, and not beyond `end`, a reader is waited for.
    fn keep_budget(&mut self, end: Option<Instant>) -> Option<Instant> {
        let budget = self.budget.as_mut()?;
        budget.look(&mut self.probes);
        let due = budget.due();
        self.writer.end_at(Some(end.map_or(due, |end| end.min(due))));
        Some(due)
    }

    /// Prints calls that have ended since the last time, until `end`. Calls come as fast as they are printed, or faster: a budget is
    /// kept meanwhile, and while nobody reads nothing is taken.
    fn show_calls(&mut self, is_last: bool, end: Option<Instant>) {
        let is_recorded = self.job.args.recorded.is_some_and(|r| r.has_calls);
        if !matches!(self.job.verb, Verb::Trace { .. }) && !is_recorded {
            return;
        }
        let (shown, format) = (self.job.args.shown, self.job.args.format);
        if !is_last && self.budget.is_some() && self.writer.is_behind() {
            return;
        }
        for i in 0..with_calls(&self.probes, is_recorded).len() {
            if self.calls.len() <= i {
                let session = &with_calls(&self.probes, is_recorded)[i];
                self.calls.push(Calls::of(session, shown, format));
            }
            // At the end no hit comes any more; who goes on writing by himself is not waited for.
            for _ in 0..if is_last { LAST_LOOKS } else { 1 } {
                let is_all = self.calls[i].take(&with_calls(&self.probes, is_recorded)[i]);
                while let Some(lines) = self.calls[i].lines(&with_calls(&self.probes, is_recorded)[i]) {
                    self.writer.calls(&lines);
                    if !is_last {
                        self.keep_budget(end);
                    }
                }
                if is_all {
                    break;
                }
            }
            if is_last {
                let rest = self.calls[i].rest(&with_calls(&self.probes, is_recorded)[i]);
                self.writer.calls(&rest);
            }
        }
    }

    fn is_target_there(&mut self) -> bool {
        self.probes.is_alive() && self.launched.as_ref().is_none_or(|l| l.ended().is_none())
    }

    /// Our exit code: the child's, if we started one and it was `is_over` before we left (another program), or ended before
    /// we asked it to.
    fn end_child(&mut self, woke: Woke, is_over: bool) -> i32 {
        let Some(launched) = &self.launched else { return 0 };
        // Ctrl-C in a terminal reaches it too.
        let is_over = is_over || launched.ended().is_some();
        if !is_over {
            launched.terminate(libc::SIGTERM);
        }
        // A program that replaced itself, or ends by itself, takes the time that it takes, unless we are asked to end.
        let mut patience = (!is_over || woke == Woke::Signal).then(|| Instant::now() + GRACE);
        let ending = loop {
            let ending = launched.ended();
            let is_late = patience.is_some_and(|end| Instant::now() > end);
            if ending.is_some() || is_late || woke == Woke::FrontGone {
                break ending;
            }
            match self.stop.wait(Instant::now() + Duration::from_millis(5)) {
                Woke::Time => {}
                Woke::Signal => {
                    launched.terminate(libc::SIGTERM);
                    patience.get_or_insert(Instant::now() + GRACE);
                }
                Woke::FrontGone => break launched.ended(),
            }
        };
        if ending.is_none() && woke != Woke::FrontGone {
            let (pid, grace) = (launched.pid(), GRACE.as_secs());
            eprintln!(
                "nanoprobe: the command did not end within {grace} s of SIGTERM and runs on without probes, as process {pid}"
            );
        }
        ending.filter(|_| is_over).map_or(0, Ending::exit_code)
    }

    fn report(&mut self, receipt: Receipt, cpu: Option<u64>) {
        if self.job.args.recorded.is_some() {
            // The last part of an interval has its column too.
            self.interval();
        }
        let sessions = self.probes.sessions();
        let report = Report::of(sessions, &self.job);
        let open = (self.job.verb == Verb::Latency).then(|| open_calls(sessions));
        match &mut self.top {
            Some(top) if self.writer.format == Format::Text => top.results(&self.probes, &mut self.writer),
            _ => self.results(),
        }
        self.say_of_stacks();
        if self.job.args.recorded.is_some() {
            let lines = recording::rest(&self.probes, &mut self.stacks, self.price.as_ref(), &self.job, cpu);
            self.writer.lines(&lines);
        }
        self.writer.unheard(self.probes.unheard());
        let not_kept = self.calls.iter().map(Calls::not_kept).fold(0, u64::saturating_add);
        self.writer.damaged = self.probes.damaged().saturating_add(not_kept);
        self.writer.forged(self.probes.forged());
        self.writer.no_way(self.calls.iter().map(Calls::no_way).fold(0, u64::saturating_add));
        self.writer.shorter(self.calls.iter().map(Calls::shorter).fold(0, u64::saturating_add));
        self.writer.deeper(self.calls.iter().map(Calls::deeper).fold(0, u64::saturating_add));
        if let Some(budget) = &self.budget {
            self.writer.budget(budget);
        }
        self.writer.receipt(&report, &receipt, open.as_ref(), cpu);
    }
}
