//! `watch`: from arguments to counts of accesses.
//!
//! For:     main.
//! State:   the watch, and the child if we started one; in the engine process.
//! Context: control.
//! Keeps:   W1 results and receipt are printed however the run ends, as for `count`.
//!          W2 exit code 0 means that pages have their own protection again, and that no watch by debug registers was over
//!             before its end, or may have been.
//! Checked: testkit `watching`.

use crate::args::{Format, WatchArgs};
use crate::engine::subject;
use crate::guard::Guard;
use crate::names::{Files, Frame, Names};
use crate::render::{Writer, time};
use crate::run::{check_budget, check_subject};
use crate::stop::{Due, Stop, Woke};
use crate::{advice, front};
use serde_json::{Map, Value, json};
use session::Launched;
use session::watch::{At, Detail, Hard, Places, Soft, SoftReceipt, Touch, WatchSpec, resolve};
use std::time::{Duration, Instant};

/// How often we look whether the target is still there.
const LOOK: Duration = Duration::from_millis(50);
/// How often records of accesses are taken from the kernel's ring.
const DRAIN: Duration = Duration::from_millis(1);
/// How long a soft watch spins for the next fault before it sleeps. Faults come in bursts.
const SPIN: Duration = Duration::from_micros(200);

pub fn watch(args: WatchArgs) -> i32 {
    let mut specs = Vec::new();
    for text in &args.specs {
        match WatchSpec::parse(text) {
            Ok(spec) => specs.push(spec),
            Err(error) => return advice::cannot_watch(&error, args.run.pid),
        }
    }
    if let Err(code) = check_subject(&args.run, "watch").and_then(|()| check_budget(&args.run, "watch")) {
        return code;
    }
    session::set_patience(args.run.patience);
    front::run(args.run.pid, None, |stop, _, guard| run(&args, &specs, stop, guard))
}

fn run(args: &WatchArgs, specs: &[WatchSpec], mut stop: Stop, guard: &mut Guard) -> i32 {
    let writer = match Writer::open(&args.run, &stop) {
        Ok(writer) => writer,
        Err(why) => return advice::fail(&why, &[], &[]),
    };
    let (launched, pid) = match subject(&args.run, &mut stop) {
        Ok(subject) => subject,
        Err(code) => return code,
    };
    guard.tell(pid);
    match arm(args, specs, pid) {
        Ok(subject) => {
            let callers = args.stack.then(|| Names::hold(pid, &Files::default()));
            let places = Places::new(pid);
            Run {
                args,
                stop,
                writer,
                subject,
                launched,
                pid,
                places,
                callers,
                shown: 0,
                told: 0,
                stopped_by: None,
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

enum Subject {
    Hard(Box<Hard>),
    Soft(Box<Soft>),
}

fn arm(args: &WatchArgs, specs: &[WatchSpec], pid: i32) -> Result<Subject, i32> {
    session::check_process(pid).map_err(|b| advice::cannot_attach(&b))?;
    if args.soft {
        // The process would not survive our death during an access: the kernel shall look for memory elsewhere. Not
        // allowed to everybody, and then as before.
        let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    }
    let armed = resolve(pid, specs).and_then(|watches| match args.soft {
        true => Soft::arm(pid, watches, detail(args)).map(|soft| Subject::Soft(Box::new(soft))),
        false => {
            Hard::arm(pid, watches, args.children, detail(args)).map(|hard| Subject::Hard(Box::new(hard)))
        }
    });
    armed.map_err(|error| advice::cannot_watch(&error, args.run.pid))
}

fn detail(args: &WatchArgs) -> Detail {
    match (args.stack, args.values) {
        (true, _) => Detail::Stacks,
        (_, true) => Detail::Values,
        _ => Detail::Count,
    }
}

struct Run<'a> {
    args: &'a WatchArgs,
    stop: Stop,
    writer: Writer,
    subject: Subject,
    launched: Option<Launched>,
    pid: i32,
    /// For names of places in the code.
    places: Places,
    /// For those of callers, if they are wanted.
    callers: Option<Names>,
    /// Accesses that were printed.
    shown: u64,
    /// Watches that were said to be over.
    told: usize,
    /// Who was seen to stop the process, where that may end watches: told.
    stopped_by: Option<i32>,
}

impl Run<'_> {
    fn run(mut self) -> i32 {
        self.say_attached();
        if let Some(launched) = &self.launched {
            launched.go();
        }
        let woke = self.wait();
        let receipt = self.leave();
        let code = match self.end_child() {
            0 if !receipt.is_verified || self.told > 0 || self.stopped_by.is_some() => 1,
            code => code,
        };
        if woke != Woke::FrontGone {
            let hits = self.results();
            self.say_receipt(hits, receipt);
            return self.writer.finish(code);
        }
        code
    }

    fn say_attached(&mut self) {
        let n = self.args.specs.len();
        let (threads, how, (took, stall)) = match &self.subject {
            Subject::Hard(hard) => (hard.threads(), "debug registers".to_owned(), hard.times()),
            Subject::Soft(soft) => {
                let (pages, threads) = soft.size();
                (threads, format!("{pages} protected pages"), soft.times())
            }
        };
        if self.writer.format == Format::Json {
            let data = json!({
                "probes": n, "threads": threads, "how": how, "pid": self.pid,
                "attach_us": took.as_micros() as u64, "longest_stall_us": stall.as_micros() as u64,
            });
            self.writer.line(&json!({"type": "attached_probes", "data": data}).to_string());
        }
        if !self.writer.is_quiet {
            let noun = if n == 1 { "watchpoint" } else { "watchpoints" };
            let end = if self.launched.is_some() { "Ctrl-C or its end to end." } else { "Ctrl-C to end." };
            let (took, stall) = (time(took), time(stall));
            eprintln!(
                "Attached {n} {noun} on {threads} threads in {took} ({how}); longest stall {stall}. {end}"
            );
            if self.args.soft {
                eprintln!(
                    "nanoprobe: should np-engine be killed by SIGKILL, a thread that is at a watched page dies"
                );
            }
        }
    }

    fn wait(&mut self) -> Woke {
        let mut due = Due::from_now(self.args.run.duration, self.args.run.interval);
        self.writer.end_at(due.end);
        let mut busy_until = Instant::now();
        loop {
            let did = self.handle(false);
            let now = Instant::now();
            if did {
                busy_until = now + SPIN;
            }
            let pause = match &self.subject {
                Subject::Hard(hard) if hard.has_to_look() => DRAIN,
                Subject::Hard(_) => LOOK,
                Subject::Soft(_) if now < busy_until => Duration::ZERO,
                Subject::Soft(_) => Duration::from_millis(1),
            };
            match self.stop.wait(due.or(now + pause)) {
                Woke::Time => {}
                other => return other,
            }
            if due.is_over() || !self.is_target_there() || self.writer.has_failed() {
                return Woke::Time;
            }
            if due.take_tick() {
                self.results();
            }
        }
    }

    /// Handles what waits to be handled; true if there was something.
    fn handle(&mut self, is_last: bool) -> bool {
        let (did, touches) = match &mut self.subject {
            Subject::Hard(hard) => {
                let touches = if is_last { hard.take_last_touches() } else { hard.take_touches() };
                (!touches.is_empty(), touches)
            }
            Subject::Soft(soft) => {
                let handled = (0..64).take_while(|_| soft.handle()).count();
                (handled > 0, soft.take_touches())
            }
        };
        let lines: Vec<String> = touches.iter().flat_map(|touch| self.access(touch)).collect();
        self.shown += touches.len() as u64;
        self.writer.lines(&lines);
        self.say_lapses();
        did
    }

    /// Says which watches are over before their end, once each.
    fn say_lapses(&mut self) {
        let Subject::Hard(hard) = &self.subject else { return };
        if let (None, Some((pid, name))) = (self.stopped_by, hard.stopped_by()) {
            self.stopped_by = Some(pid);
            eprintln!(
                "nanoprobe: {pid} ({name}) has stopped the process: a thread that was at a watched access then is not watched any more, \
                 and counts may be too low"
            );
        }
        for lapse in &hard.lapses()[self.told..] {
            self.told += 1;
            let name = hard.watch(lapse.watch).map_or("?", |watch| &watch.name);
            let (_, place) = self.places.of_access(At::Instruction(lapse.at));
            eprintln!(
                "nanoprobe: {name} is watched no longer: {place} is, or is between, an exclusive load and its store. The trap at \
                 a watched access breaks such a pair: the thread would begin again for ever"
            );
        }
    }

    /// One access, as a line of its own and one for each caller.
    fn access(&mut self, touch: &Touch) -> Vec<String> {
        let watch = match &self.subject {
            Subject::Hard(hard) => hard.watch(touch.watch),
            Subject::Soft(soft) => soft.watch(touch.watch),
        };
        let name = watch.map_or("?", |w| &w.name).to_owned();
        let (ip, place) = self.places.of_access(touch.at);
        let callers: Vec<String> = match &mut self.callers {
            Some(names) => {
                let stack = [&[ip][..], &touch.stack.frames].concat();
                names.learn(std::iter::once(&stack), false);
                names.stack(&stack).iter().skip(1).map(Frame::to_string).collect()
            }
            None => Vec::new(),
        };
        let Touch { pid, tid, before, after, .. } = touch;
        if self.writer.format == Format::Json {
            let mut data = json!({
                "name": name, "pid": pid, "tid": tid, "ip": ip, "place": place, "before": before, "after": after,
            });
            if self.args.stack {
                data["callers"] = json!(callers);
                data["has_more_callers"] = json!(touch.stack.is_cut);
            }
            return vec![json!({"type": "access", "data": data}).to_string()];
        }
        let value = |v: &Option<u64>| v.map_or_else(|| "?".to_owned(), |v| format!("{v:#x}"));
        let (before, after) = (value(before), value(after));
        let process = if *pid == self.pid { String::new() } else { format!("process {pid}  ") };
        let line = format!("{name}: {before} -> {after}  {process}thread {tid}  {place}");
        let callers = callers.iter().map(|caller| format!("    {caller}"));
        let more = (self.args.stack && touch.stack.is_cut).then(|| "    [no more is known]".to_owned());
        std::iter::once(line).chain(callers).chain(more).collect()
    }

    fn is_target_there(&mut self) -> bool {
        match &self.subject {
            Subject::Hard(hard) => {
                hard.is_alive() && self.launched.as_ref().is_none_or(|l| l.ended().is_none())
            }
            Subject::Soft(soft) => soft.is_alive(),
        }
    }

    fn leave(&mut self) -> SoftReceipt {
        let mut receipt = SoftReceipt { is_verified: true, ..SoftReceipt::default() };
        match &mut self.subject {
            Subject::Hard(hard) => {
                receipt.was_gone = !hard.is_alive();
                hard.disarm();
            }
            Subject::Soft(soft) => receipt = soft.leave(),
        }
        self.handle(true);
        receipt
    }

    /// Our exit code: the child's, if we started one and it ended by itself.
    fn end_child(&mut self) -> i32 {
        let Some(launched) = &self.launched else { return 0 };
        if let Some(status) = launched.ended() {
            return status.exit_code();
        }
        launched.terminate(libc::SIGTERM);
        let patience = Instant::now() + Duration::from_secs(5);
        while launched.ended().is_none() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        0
    }

    /// Prints the counts; their sum.
    fn results(&mut self) -> u64 {
        let mut rows: Vec<(String, u64)> = match &mut self.subject {
            Subject::Hard(hard) => match hard.counts() {
                Ok(counts) => counts.into_iter().map(|(w, n)| (w.name.clone(), n)).collect(),
                Err(error) => {
                    eprintln!("nanoprobe: the counts cannot be read: {error}");
                    return 0;
                }
            },
            Subject::Soft(soft) => soft.counts().map(|(w, n)| (w.name.clone(), n)).collect(),
        };
        rows.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        let sum = rows.iter().map(|(_, n)| n).sum();
        rows.retain(|(_, n)| *n > 0 || !self.args.run.hit_only);
        match self.writer.format {
            Format::Text => rows.iter().for_each(|(name, n)| self.writer.line(&format!("@[{name}]: {n}"))),
            Format::Json => {
                let map: Map<String, Value> = rows.into_iter().map(|(name, n)| (name, json!(n))).collect();
                self.writer.line(&json!({"type": "map", "data": {"@": map}}).to_string());
            }
        }
        sum
    }

    fn say_receipt(&mut self, hits: u64, receipt: SoftReceipt) {
        let lost = match &self.subject {
            Subject::Hard(hard) => hard.lost(),
            Subject::Soft(_) => 0,
        };
        let SoftReceipt { faults, calls, kernel_changes, map_calls, blind_calls, .. } = receipt;
        let SoftReceipt { children, is_verified, was_gone, .. } = receipt;
        if self.writer.format == Format::Json {
            let data = json!({
                "hits": hits, "handled": hits, "skipped": {}, "left_out": 0,
                "detach_verified": is_verified && !was_gone, "target_gone": was_gone,
                "faults": faults, "calls_made_again": calls, "blind_calls": blind_calls,
                "kernel_changes": kernel_changes, "map_calls": map_calls,
                "children_freed": children, "shown": self.shown, "lost": lost, "lapsed": self.told, "stopped_by": self.stopped_by,
            });
            self.writer.line(&json!({"type": "receipt", "data": data}).to_string());
        }
        if blind_calls > 0 {
            eprintln!(
                "nanoprobe: {blind_calls} system calls waited with the pages open; accesses meanwhile were missed"
            );
        }
        if kernel_changes > 0 {
            eprintln!(
                "nanoprobe: {kernel_changes} times a system call changed a watched value: such writes are the kernel's, \
                 and in no count"
            );
        }
        if let Subject::Soft(soft) = &self.subject
            && !was_gone
        {
            soft.lapsed()
                .for_each(|(w, why)| eprintln!("nanoprobe: {} was not watched to the end: {why}", w.name));
        }
        if lost > 0 {
            eprintln!(
                "nanoprobe: {lost} accesses were counted and are not shown: they came faster than they could be printed"
            );
        }
        if self.writer.is_quiet {
            return;
        }
        let skipped = if blind_calls > 0 { "an unknown number" } else { "0" };
        eprintln!("Hits {hits}: {hits} handled, {skipped} skipped; 0 sites left out.");
        let what = match (&self.subject, was_gone, is_verified) {
            (_, true, _) => "yes: nothing to restore, the process ended".to_owned(),
            (Subject::Hard(_), ..) => "yes; no memory was changed".to_owned(),
            (Subject::Soft(_), _, true) => {
                format!("yes; pages have their own protection again, after {faults} faults")
            }
            (Subject::Soft(_), _, false) => "NO: a page has not its own protection".to_owned(),
        };
        eprintln!("Detach verified: {what}.");
    }
}
