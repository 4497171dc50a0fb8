//! Results as text and as JSON.
//!
//! For:     the engine; data to stdout or a file, talk to stderr.
//! State:   where to write.
//! Context: control.
//! Keeps:   R1 the closing lines are always there: hits, handled, skipped; what was left out; detach.
//! Checked: tests of `histogram`; testkit `faces`.

use crate::args::{Format, RunArgs};
use crate::budget::{Budget, Sampled};
use crate::engine::Job;
use crate::out::Out;
use crate::probes::NO_KERNEL_ASKED;
use crate::stop::Stop;
use image::Spec;
use serde_json::{Map, Value, json};
use session::{OpenCalls, Receipt, Residue, Rung, Session, SiteView, Verb};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant, SystemTime};

mod histogram;
mod latency;

pub use latency::{Timed, nanoseconds, octaves, time as time_of};

/// Counts of one site.
#[derive(Clone)]
pub struct Row {
    pub name: String,
    pub hits: u64,
    /// Buckets of a histogram; empty for a count.
    pub buckets: Vec<u64>,
    /// Durations of calls.
    timed: Option<Timed>,
    /// It was seen in part, for a budget.
    pub sampled: Option<Sampled>,
}

impl Row {
    /// The same function once more.
    fn add(&mut self, other: Row) {
        self.hits = self.hits.saturating_add(other.hits);
        if let Some((sum, more)) = self.timed.as_mut().zip(other.timed) {
            sum.add(&more);
        }
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Row {
    /// What was counted before.
    fn take_off(&mut self, old: &Row) {
        self.hits = self.hits.saturating_sub(old.hits);
        for (now, then) in self.buckets.iter_mut().zip(&old.buckets) {
            *now = now.saturating_sub(*then);
        }
        if let Some((now, then)) = self.timed.as_mut().zip(old.timed.as_ref()) {
            now.take_off(then);
        }
    }
}

/// All counts at one moment.
#[derive(Clone)]
pub struct Report {
    pub rows: Vec<Row>,
    pub hits: u64,
    pub handled: u64,
    pub children: u64,
    /// Events that found no room in their ring, for `trace`.
    pub lost: u64,
    /// Hits without a stack, for counts by stack; why is said elsewhere.
    pub without_stack: u64,
    /// Functions were switched off for a while: their hits are among those that were skipped.
    has_off: bool,
    verb: Verb,
}

impl Report {
    pub fn of(sessions: &[Session], job: &Job) -> Report {
        Report::by(sessions, job.verb, job.args.hit_only)
    }

    /// Of sessions that were attached for this verb.
    pub fn by(sessions: &[Session], verb: Verb, is_hit_only: bool) -> Report {
        // First of all: what is read after it has all that these hits have done, but for hits that are inside. So hits that
        // come while this reads are not taken for skipped.
        let entered = sum(sessions.iter().map(Session::entered));
        let is_hist = matches!(verb, Verb::HistogramOfArgument(_) | Verb::HistogramOfReturn);
        let mut rows: Vec<Row> = Vec::new();
        let (mut known, mut plain): (BTreeMap<Key, usize>, u64) = (BTreeMap::new(), 0);
        let all: Vec<&Session> = sessions.iter().collect();
        for (site, name) in rows_of(sessions).zip(names(&all)) {
            let hits = site.hits();
            plain = plain.saturating_add(if site.plan.is_compiled_count() { hits } else { 0 });
            let row = Row {
                name,
                hits,
                buckets: if is_hist { site.cells() } else { Vec::new() },
                timed: site.calls().map(Timed::of),
                sampled: None,
            };
            // Exits of one function, and a library that was loaded twice.
            let at = *known.entry(key(&site)).or_insert(rows.len());
            match rows.get_mut(at) {
                Some(same) => same.add(row),
                None => rows.push(row),
            }
        }
        rows.sort_by(|a, b| a.hits.cmp(&b.hits).then_with(|| a.name.cmp(&b.name)));
        // What a target has written may be anything: sums stay where they are at the end of numbers.
        let exits = |t: &Timed| t.calls.returns().saturating_add(t.calls.unmatched);
        let exits = sum(rows.iter().filter_map(|r| r.timed.as_ref()).map(exits));
        let events: Vec<(u64, u64)> = sessions.iter().map(Session::events).collect();
        let (written, lost) = (sum(events.iter().map(|e| e.0)), sum(events.iter().map(|e| e.1)));
        let handled = match verb {
            Verb::Trace { .. } => written,
            Verb::CountStack => {
                let hits = sum(rows.iter().map(|r| r.hits));
                hits.saturating_sub(crate::stacks::losses(sessions).0.skipped())
            }
            _ => sum(rows.iter().map(|r| r.hits)).saturating_add(exits),
        };
        // A compiled count has no way to lose a hit between its entry and its end.
        let hits = entered.saturating_add(plain);
        if is_hit_only {
            rows.retain(|r| r.hits > 0);
        }
        let children = sum(rows_of(sessions).map(|s| s.children_hits()));
        let without_stack = match verb {
            Verb::CountStack => crate::stacks::losses(sessions).0.skipped(),
            _ => 0,
        };
        let has_off = sessions.iter().any(Session::was_switched_off);
        Report { rows, hits, handled, lost, children, without_stack, has_off, verb }
    }

    /// What has come since an earlier moment.
    pub fn since(&self, before: &Report) -> Report {
        let mut rows = self.rows.clone();
        let old: HashMap<&str, &Row> = before.rows.iter().map(|row| (row.name.as_str(), row)).collect();
        for row in &mut rows {
            if let Some(old) = old.get(row.name.as_str()) {
                row.take_off(old);
            }
        }
        let less = |now: u64, then: u64| now.saturating_sub(then);
        Report {
            rows,
            hits: less(self.hits, before.hits),
            handled: less(self.handled, before.handled),
            children: less(self.children, before.children),
            lost: less(self.lost, before.lost),
            without_stack: less(self.without_stack, before.without_stack),
            has_off: self.has_off,
            verb: self.verb,
        }
    }

    /// Skipped hits by cause.
    pub fn skipped(&self) -> Value {
        let skipped = self.hits.saturating_sub(self.handled);
        let inside = skipped.saturating_sub(self.lost).saturating_sub(self.without_stack);
        let other = if self.has_off { "switched_off_or_ended_inside" } else { "ended_inside" };
        let all = [("ring_full", self.lost), ("no_stack", self.without_stack), (other, inside)];
        let map: Map<String, Value> =
            all.into_iter().filter(|(_, n)| *n > 0).map(|(cause, n)| (cause.into(), json!(n))).collect();
        Value::Object(map)
    }

    /// What the histograms are of.
    fn what(&self) -> Option<String> {
        match self.verb {
            Verb::HistogramOfArgument(n) => Some(format!("arg{n}")),
            Verb::HistogramOfReturn => Some("retval".into()),
            _ => None,
        }
    }
}

fn sum(all: impl Iterator<Item = u64>) -> u64 {
    all.fold(0, u64::saturating_add)
}

/// The sites that have a row: all but the exits of functions whose calls are timed.
pub fn rows_of<'a>(sessions: impl IntoIterator<Item = &'a Session>) -> impl Iterator<Item = SiteView<'a>> {
    sessions.into_iter().flat_map(Session::sites).filter(|site| !site.plan.is_exit())
}

/// What came between two moments, and how long that was.
pub struct Part {
    pub at: Duration,
    pub took: Duration,
    pub since: Report,
}

/// What tells one row from another: name, file, and address in the file.
pub type Key = (String, String, u64);

/// Of a site.
pub fn key(site: &SiteView<'_>) -> Key {
    let plan = site.plan;
    let place = plan.exit_of.unwrap_or(plan.addr()).wrapping_sub(plan.bias);
    (plan.name.clone(), plan.module.clone(), place)
}

/// What to call each row's site: functions of one name in several files, or several in one, are told apart by file
/// and address.
pub fn names(sessions: &[&Session]) -> Vec<String> {
    let rows_of = || rows_of(sessions.iter().copied());
    let mut all: Vec<_> = rows_of().map(|site| key(&site)).collect();
    all.sort_unstable();
    all.dedup();
    let is_double = |name: &str| {
        let first = all.partition_point(|(n, ..)| n.as_str() < name);
        all.get(first + 1).is_some_and(|(n, ..)| n == name)
    };
    let name_of = |site: SiteView<'_>| match key(&site) {
        (name, module, place) if is_double(&name) => {
            format!("{}:{name}@{place:#x}", module.rsplit('/').next().unwrap_or_default())
        }
        (name, ..) => name,
    };
    rows_of().map(name_of).collect()
}

/// Sites of each rung.
pub fn by_rung<'a>(sessions: impl IntoIterator<Item = &'a Session>) -> BTreeMap<u8, (Rung, usize)> {
    let mut by_rung: BTreeMap<u8, (Rung, usize)> = BTreeMap::new();
    for (rung, n) in sessions.into_iter().flat_map(Session::rungs) {
        by_rung.entry(rung as u8).or_insert((rung, 0)).1 += n;
    }
    by_rung
}

/// Calls that did not return. It reads the whole table of open calls: once, at the end.
pub fn open_calls(sessions: &[Session]) -> OpenCalls {
    sessions.iter().map(Session::open_calls).fold(OpenCalls::default(), |a, b| OpenCalls {
        unwound: a.unwound.saturating_add(b.unwound),
        inside: a.inside.saturating_add(b.inside),
        no_room: a.no_room.saturating_add(b.no_room),
    })
}

/// Where results go.
pub struct Writer {
    pub format: Format,
    out: Out,
    pub is_quiet: bool,
    is_verbose: bool,
    is_launched: bool,
    left_out: usize,
    /// Children of the process that are not followed.
    pub children: usize,
    /// Records of the target that could not be believed.
    pub damaged: u64,
    has_deltas: bool,
    has_timestamps: bool,
}

/// The time of day.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    report::moment(since.unwrap_or_default(), 3)
}

/// What is new, and how much of it a second.
fn rate(new: u64, took: Duration, is_alone: bool) -> String {
    let per_second = new as f64 / took.as_secs_f64().max(1e-9);
    match is_alone {
        true => format!("  {per_second:.0}/s"),
        false => format!("  +{new}, {per_second:.0}/s"),
    }
}

impl Writer {
    pub fn open(args: &RunArgs, stop: &Stop) -> Result<Writer, String> {
        let out = Out::open(args.output.as_deref(), args.format, stop.watched(), args.duration)?;
        Ok(Writer {
            format: args.format,
            out,
            is_quiet: args.quiet,
            is_verbose: args.verbose,
            is_launched: !args.command.is_empty(),
            left_out: 0,
            children: 0,
            damaged: 0,
            has_deltas: args.deltas,
            has_timestamps: args.timestamps,
        })
    }

    /// Data lines, together.
    pub fn lines(&mut self, lines: &[String]) {
        self.out.lines(lines);
    }

    /// Those of calls, which have colours on a terminal.
    pub fn calls(&mut self, lines: &[String]) {
        self.out.calls(lines);
    }

    pub fn line(&mut self, text: &str) {
        self.out.line(text);
    }

    /// True if nobody reads as fast as is written: what was put off is tried again.
    pub fn is_behind(&mut self) -> bool {
        self.out.is_behind()
    }

    /// From now on no write waits beyond this time; what is not taken by then is written at the end.
    pub fn end_at(&mut self, until: Option<Instant>) {
        self.out.until = until;
    }

    /// True if nobody will read what is still to come.
    pub fn has_failed(&mut self) -> bool {
        self.out.has_failed()
    }

    /// Writes what was put off; the exit code, which is no success if that failed.
    pub fn finish(&mut self, code: i32) -> i32 {
        self.out.finish(code)
    }

    /// The first line: what is armed, how, and at what price.
    pub fn attached(
        &mut self,
        sessions: &[Session],
        refused: &[(String, String)],
        missed: &[(String, String)],
    ) {
        self.left_out = refused.len() + missed.len();
        let by_rung = by_rung(sessions);
        let probes: usize = by_rung.values().map(|(_, n)| n).sum();
        let rungs: Vec<String> = by_rung.values().map(|(r, n)| format!("{n} {r}")).collect();
        let took: Duration = sessions.iter().map(Session::attach_time).sum();
        let stall = sessions.iter().map(Session::longest_stall).max().unwrap_or_default();
        let processes: BTreeSet<i32> = sessions.iter().map(Session::pid).collect();
        if self.format == Format::Json {
            let rungs: Map<String, Value> =
                by_rung.values().map(|(r, n)| (r.to_string(), json!(n))).collect();
            let pair = |(name, why): &(String, String)| json!({"name": name, "reason": why});
            let left_out: Vec<Value> = refused.iter().chain(missed).map(pair).collect();
            let data = json!({
                "probes": probes, "rungs": rungs, "left_out": left_out, "pid": sessions.first().map(Session::pid),
                "processes": processes.len(),
                "attach_us": took.as_micros() as u64, "longest_stall_us": stall.as_micros() as u64,
            });
            self.line(&json!({"type": "attached_probes", "data": data}).to_string());
        }
        if !self.is_quiet {
            let noun = if probes == 1 { "probe" } else { "probes" };
            let rungs = rungs.join(", ");
            let of = if processes.len() > 1 {
                format!(" of {} processes", processes.len())
            } else {
                String::new()
            };
            let end = if self.is_launched { "Ctrl-C or its end to end." } else { "Ctrl-C to end." };
            let (took, stall) = (time(took), time(stall));
            eprintln!("Attached {probes} {noun}{of} in {took} ({rungs}); longest stall {stall}. {end}");
        }
        if !sessions.iter().all(Session::has_way_back) && !self.is_quiet {
            eprintln!(
                "nanoprobe: should np-engine be killed by SIGKILL in the milliseconds of an attach or a detach, the process \
                 dies: it has no code that returns from a signal, or a shadow stack"
            );
        }
        let by_kernel = by_rung.get(&(Rung::Kernel as u8)).map_or(0, |(_, n)| *n);
        if by_kernel > 0 && !self.is_quiet {
            let what = if by_kernel == 1 { "1 probe is" } else { &format!("{by_kernel} probes are") };
            let stepped = sessions.iter().flat_map(|s| s.sites()).filter(|s| s.plan.is_stepped()).count();
            let twice = if stepped > 0 { &format!(" (at {stepped} of them twice)") } else { "" };
            eprintln!(
                "nanoprobe: {what} the kernel's (rung 7): a hit traps{twice} and costs a microsecond or more; \
                 --no-kernel leaves such sites out"
            );
        }
        self.say_left_out(refused, missed);
    }

    /// With `--verbose`: how hits that are inside would be waited for, and how long that takes now.
    pub fn say_grace(&self, sessions: &mut [Session]) {
        const PATIENCE: Duration = Duration::from_secs(1);
        for session in sessions.iter_mut().filter(|_| self.is_verbose) {
            let (pid, waited) = (session.pid(), session.wait_for_hits(PATIENCE));
            let fence = session.grace().fence;
            match waited {
                Ok(None) => {}
                Ok(Some(took)) => {
                    let took = time(took);
                    eprintln!("nanoprobe: hits in process {pid} are waited for by {fence}; that took {took}");
                }
                Err(_) => eprintln!(
                    "nanoprobe: hits in process {pid} are waited for by {fence}; one was inside for {}",
                    time(PATIENCE)
                ),
            }
        }
    }

    /// A child that was there already could not be probed.
    pub fn not_taken_in(&mut self, pid: i32, why: &str) {
        eprintln!("nanoprobe: process {pid}, which was started before, is not probed: {why}");
    }

    /// Libraries that are not there yet; the first line if nothing else is.
    pub fn waiting(&mut self, specs: &[&Spec], is_first: bool) {
        let names: Vec<String> = specs.iter().map(ToString::to_string).collect();
        if is_first && self.format == Format::Json {
            self.line(
                &json!({"type": "attached_probes", "data": {"probes": 0, "waiting": names}}).to_string(),
            );
        }
        if !self.is_quiet {
            let lead = if is_first { "Attached 0 probes; waiting" } else { "nanoprobe: waiting" };
            eprintln!("{lead} for the library or program of {}. Ctrl-C to end.", names.join(", "));
        }
    }

    /// A library came, and was probed before it ran.
    pub fn followed(&mut self, session: &Session) {
        let probes = session.sites().count();
        let file = session.sites().next().map(|s| s.plan.module.clone()).unwrap_or_default();
        if self.format == Format::Json {
            let data = json!({"probes": probes, "file": file, "attach_us": session.attach_time().as_micros() as u64});
            self.line(&json!({"type": "loaded", "data": data}).to_string());
        }
        if !self.is_quiet {
            eprintln!("Attached {probes} more in {}: {file} was loaded.", time(session.attach_time()));
        }
    }

    /// A program was started, and probed before it ran.
    pub fn entered(&mut self, session: &Session) {
        let (probes, pid) = (session.sites().count(), session.pid());
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name);
        let name = name.trim();
        if self.format == Format::Json {
            let took = session.attach_time().as_micros() as u64;
            let data = json!({"probes": probes, "pid": pid, "program": name, "attach_us": took});
            self.line(&json!({"type": "followed", "data": data}).to_string());
        }
        if !self.is_quiet {
            eprintln!("Attached {probes} in {}: process {pid} started {name}.", time(session.attach_time()));
        }
    }

    /// A program was started and could not be probed.
    pub fn not_entered(&mut self, pid: i32, why: &str) {
        eprintln!("nanoprobe: process {pid} started a program that is not probed: {why}");
    }

    /// Programs were started of which we heard too late.
    pub fn unheard(&mut self, programs: u64) {
        if programs > 0 {
            eprintln!(
                "nanoprobe: {programs} programs were started faster than they could be followed, and are not counted"
            );
        }
    }

    /// The target has rung with numbers that are not true.
    pub fn forged(&mut self, rings: u64) {
        if rings > 0 {
            eprintln!(
                "nanoprobe: {rings} times the thread that a followed process named as about to exec was not, or not any \
                 more, one of its own; it was not traced"
            );
        }
    }

    /// Calls that a graph has no place for.
    pub fn no_way(&mut self, calls: u64) {
        if calls > 0 {
            eprintln!(
                "nanoprobe: {calls} calls are missing in the graph: they were made by more ways than it keeps"
            );
        }
    }

    /// Calls that `--over` left out.
    pub fn shorter(&mut self, calls: u64) {
        if calls > 0 && !self.is_quiet {
            eprintln!(
                "nanoprobe: {calls} calls that took less than --over, or were not seen to return, are not shown"
            );
        }
    }

    /// Calls that are further inside than `--depth` shows.
    pub fn deeper(&mut self, calls: u64) {
        if calls > 0 && !self.is_quiet {
            eprintln!("nanoprobe: {calls} calls that are further inside than --depth are not shown");
        }
    }

    /// What a process starts cannot be followed.
    pub fn deaf_to_execs(&mut self, pid: i32, why: &str) {
        eprintln!("nanoprobe: programs that process {pid} starts are not followed: {why}");
    }

    /// A library came and could not be probed.
    pub fn not_followed(&mut self, why: &str) {
        eprintln!("nanoprobe: a library was loaded and is not probed: {why}");
    }

    fn say_left_out(&self, refused: &[(String, String)], missed: &[(String, String)]) {
        if self.left_out == 0 || (self.is_quiet && !self.is_verbose) {
            return;
        }
        // Of what only the kernel could probe there is one line already.
        let is_new = |one: &&(String, String)| self.is_verbose || !one.1.ends_with(NO_KERNEL_ASKED);
        let all: Vec<&(String, String)> = refused.iter().chain(missed).filter(is_new).collect();
        match in_short(&all, self.is_verbose) {
            Some(causes) => eprintln!("nanoprobe: left out {}: {causes}; -v shows each", all.len()),
            None => all.iter().for_each(|(name, why)| eprintln!("nanoprobe: left out {name}: {why}")),
        }
    }

    /// Counts of an interval: those so far with what is new, or with `--deltas` what is new alone.
    pub fn interval(&mut self, report: &Report, part: &Part) {
        if self.has_timestamps && self.format == Format::Text {
            self.line(&format!("{}:", now()));
        }
        let mut part_rows = part.since.clone();
        if self.has_deltas {
            part_rows
                .rows
                .retain(|row| row.hits > 0 || row.timed.as_ref().is_some_and(|t| t.calls.returns() > 0));
            self.results_of(&part_rows, Some(part));
        } else {
            self.results_of(report, Some(part));
        }
    }

    /// The counts.
    pub fn results(&mut self, report: &Report) {
        self.results_of(report, None);
    }

    /// A line of JSON; of an interval with when it ended, and how long it was if it is of that alone.
    fn object(&self, kind: &str, data: Value, part: Option<&Part>) -> String {
        let mut line = json!({"type": kind});
        if let Some(part) = part {
            line["at_ms"] = json!(part.at.as_millis() as u64);
            if self.has_deltas {
                line["interval_ms"] = json!(part.took.as_millis() as u64);
            }
            if self.has_timestamps {
                line["time"] = json!(now());
            }
        }
        line["data"] = data;
        line.to_string()
    }

    fn results_of(&mut self, report: &Report, part: Option<&Part>) {
        match report.verb {
            Verb::Latency => return self.latencies(report, part),
            // What there is to see was shown when it happened.
            Verb::Trace { .. } => return,
            _ => {}
        }
        match (self.format, report.what()) {
            (Format::Text, None) => {
                let new = |name: &str| part.and_then(|p| p.since.rows.iter().find(|row| row.name == name));
                for row in &report.rows {
                    let rate =
                        part.zip(new(&row.name)).map(|(p, new)| rate(new.hits, p.took, self.has_deltas));
                    let sampled = row.sampled.map_or_else(String::new, |s| s.beside());
                    let rate = rate.unwrap_or_default();
                    self.line(&format!("@[{}]: {}{rate}{sampled}", row.name, row.hits));
                }
            }
            (Format::Text, Some(what)) => {
                for row in &report.rows {
                    self.line(&format!("@[{}, {what}]:", row.name));
                    for bar in histogram::bars(&row.buckets) {
                        self.line(&bar);
                    }
                }
            }
            (Format::Json, None) => {
                let map: Map<String, Value> =
                    report.rows.iter().map(|r| (r.name.clone(), json!(r.hits))).collect();
                self.line(&self.object("map", json!({"@": map}), part));
            }
            (Format::Json, Some(_)) => {
                let map: Map<String, Value> =
                    report.rows.iter().map(|r| (r.name.clone(), histogram::json(&r.buckets))).collect();
                self.line(&self.object("hist", json!({"@": map}), part));
            }
        }
    }

    fn latencies(&mut self, report: &Report, part: Option<&Part>) {
        let timed = || report.rows.iter().filter_map(|r| Some((&r.name, r.timed.as_ref()?)));
        if self.format == Format::Json {
            let map: Map<String, Value> = timed().map(|(name, t)| (name.clone(), t.json())).collect();
            self.line(&self.object("latency", json!({"@": map}), part));
            return;
        }
        for (name, timed) in timed() {
            for line in timed.lines(name) {
                self.line(&line);
            }
        }
    }

    /// What a budget has come to.
    pub fn budget(&mut self, budget: &Budget) {
        if self.format == Format::Json {
            self.line(&budget.json().to_string());
        }
        if !self.is_quiet || !budget.sampled().is_empty() {
            eprintln!("nanoprobe: {}", budget.line());
        }
    }

    /// The closing lines; `open` for `lat`.
    pub fn receipt(
        &mut self,
        report: &Report,
        receipt: &Receipt,
        open: Option<&OpenCalls>,
        cpu_ticks: Option<u64>,
    ) {
        let skipped = report.hits.saturating_sub(report.handled);
        if self.format == Format::Json {
            let data = json!({
                "hits": report.hits, "handled": report.handled,
                "skipped": report.skipped(),
                "children_hits": report.children, "left_out": self.left_out, "damaged": self.damaged,
                "detach_verified": receipt.is_verified() && !receipt.was_gone(),
                "target_gone": receipt.was_gone(), "restored": receipt.restored,
                "handed_over": receipt.handed_over, "unloaded": receipt.unmapped, "foreign": receipt.foreign().collect::<Vec<_>>(),
                "breakpoints_left": receipt.breakpoints,
                "left_behind": receipt.residues.iter().map(residue).collect::<Vec<_>>(),
                "memory_returned": receipt.is_unmapped(), "kernel_page_stays": receipt.has_kernel_page, "children_freed": receipt.children,
                "detach_us": receipt.took.as_micros() as u64,
                "longest_stall_us": receipt.longest_stall.as_micros() as u64,
                "calls": open.map(latency::open_json),
            });
            self.line(&json!({"type": "receipt", "data": data}).to_string());
        }
        let inside = skipped.saturating_sub(report.lost).saturating_sub(report.without_stack);
        if inside > 0 {
            let off = if report.has_off { "their functions were switched off, or " } else { "" };
            eprintln!("nanoprobe: {inside} hits skipped: {off}their threads ended inside the probe");
        }
        if report.lost > 0 {
            let lost = report.lost;
            eprintln!("nanoprobe: {lost} events lost: they came faster than they can be shown; trace less");
        }
        if self.damaged > 0 {
            let n = self.damaged;
            eprintln!(
                "nanoprobe: the target's records were damaged: {n} could not be believed and were dropped"
            );
        }
        if report.children > 0 {
            let n = report.children;
            let what = match report.verb {
                Verb::Latency => "calls in forked children were not timed, and are not counted above",
                Verb::Trace { .. } => "calls in forked children are not shown",
                _ => "hits in forked children are not counted above; --follow counts them",
            };
            eprintln!("nanoprobe: {n} {what}");
        }
        for name in receipt.foreign() {
            eprintln!("nanoprobe: {name} was changed by somebody else meanwhile and left alone");
        }
        for at in &receipt.breakpoints {
            eprintln!("nanoprobe: a breakpoint stands at {at:#x} that nobody is known to own");
        }
        if self.is_quiet {
            return;
        }
        eprintln!(
            "Hits {}: {} handled, {skipped} skipped; {} sites left out.",
            report.hits, report.handled, self.left_out
        );
        if let Some(open) = open {
            eprintln!("{}", latency::summary(report.rows.iter().filter_map(|r| r.timed.as_ref()), open));
        }
        if report.hits == 0 {
            eprintln!("{}", why_nothing(receipt, cpu_ticks));
            if self.children > 0 {
                let (n, noun) = (self.children, if self.children == 1 { "child" } else { "children" });
                eprintln!("nanoprobe: it has {n} {noun} that may do the work; --follow takes them in");
            }
        }
        eprintln!("{}", detach_line(receipt));
    }
}

/// What so much of ours adds, in percent, to what was used in all; `None` if that was measured too coarsely to tell.
pub fn overhead_percent(ours: f64, all: f64) -> Option<f64> {
    (all > ours).then(|| ours / (all - ours) * 100.0)
}

/// The causes in one line, if there are too many sites to show each.
pub fn in_short(left_out: &[&(String, String)], is_verbose: bool) -> Option<String> {
    const EACH: usize = 3;
    let causes = || by_cause(left_out.iter().map(|(_, why)| why.as_str()));
    (!is_verbose && left_out.len() > EACH).then(causes)
}

/// How many sites each cause kept out, the most frequent first; causes that differ in numbers and names alone are one.
fn by_cause<'a>(reasons: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 4;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reason in reasons {
        let cause = reason.split([':', ';', '(']).next().unwrap_or_default().trim();
        let words =
            cause.split(' ').map(|word| if word.contains(|c: char| c.is_ascii_digit()) { "N" } else { word });
        *counts.entry(words.collect::<Vec<_>>().join(" ")).or_default() += 1;
    }
    let mut sorted: Vec<(usize, String)> = counts.into_iter().map(|(cause, n)| (n, cause)).collect();
    sorted.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let rest: usize = sorted.iter().skip(SHOWN).map(|(n, _)| n).sum();
    let mut parts: Vec<String> = sorted.iter().take(SHOWN).map(|(n, cause)| format!("{n} {cause}")).collect();
    if rest > 0 {
        parts.push(format!("{rest} for other reasons"));
    }
    parts.join(", ")
}

fn why_nothing(receipt: &Receipt, cpu_ticks: Option<u64>) -> &'static str {
    match cpu_ticks {
        _ if receipt.was_gone() => "Nothing was hit before the process ended.",
        Some(0) => "Nothing was hit: the process slept, it used no CPU time meanwhile.",
        _ => "Nothing was hit: the process ran, but came by none of these sites.",
    }
}

/// What became of the target, in one line.
pub fn detach_line(receipt: &Receipt) -> String {
    let stall = time(receipt.longest_stall);
    let verdict = if receipt.is_verified() { "yes" } else { "NO" };
    if receipt.was_gone() && receipt.is_verified() && receipt.children == 0 {
        return format!("Detach verified: nothing to restore, the process ended; longest stall {stall}.");
    }
    let noun = if receipt.restored == 1 { "site" } else { "sites" };
    let mut parts = vec![format!("{} {noun} restored in {}", receipt.restored, time(receipt.took))];
    if receipt.pages > 0 {
        parts.push(format!("{} pages have their own protection again", receipt.pages));
    }
    if receipt.handed_over > 0 {
        parts.push(format!("{} handed to another nanoprobe", receipt.handed_over));
    }
    if receipt.unmapped > 0 {
        parts.push(format!("{} unloaded meanwhile", receipt.unmapped));
    }
    if !receipt.breakpoints.is_empty() {
        parts.push(format!("{} kernel breakpoints stay", receipt.breakpoints.len()));
    }
    if receipt.children > 0 {
        parts.push(format!("{} forked children freed", receipt.children));
    }
    parts.extend(left_behind(receipt));
    match receipt.held_by() {
        _ if receipt.was_gone() => parts.push("the process ended".into()),
        _ if receipt.is_unmapped() => parts.push("memory returned".into()),
        Some(tid) => parts.push(format!("memory still held by thread {tid}")),
        None => parts.push("memory not returned".into()),
    }
    if receipt.has_kernel_page {
        parts.push("the kernel's page [uprobes] stays mapped until the process ends".into());
    }
    format!("Detach verified: {verdict}; {}; longest stall {stall}.", parts.join(", "))
}

/// Who still has probes, the first few by name.
fn left_behind(receipt: &Receipt) -> Vec<String> {
    const SHOWN: usize = 5;
    let is_said_elsewhere = |r: &&Residue| matches!(r, Residue::Held { .. } | Residue::Foreign { .. });
    let all: Vec<&Residue> = receipt.residues.iter().filter(|r| !is_said_elsewhere(r)).collect();
    let mut said: Vec<String> = all.iter().take(SHOWN).map(|r| residue(r)).collect();
    if all.len() > SHOWN {
        said.push(format!("and {} more", all.len() - SHOWN));
    }
    said
}

/// What stays behind, in words.
fn residue(residue: &Residue) -> String {
    match residue {
        Residue::Foreign { site } => format!("{site} was changed by somebody else"),
        Residue::Raised { site } => {
            format!("the count of tracers of {site} is one too high: it could not be written")
        }
        Residue::Held { by } => format!("memory still held by thread {by}"),
        Residue::Displaced => "our memory was unmapped by somebody else: nothing was touched".into(),
        Residue::Child { pid, why } => format!("child {pid} NOT freed: {why}"),
        Residue::Unsearched { why } => format!("forked children not looked for: {why}"),
        other => format!("{other:?}"),
    }
}

/// A time with the unit that fits.
pub fn time(duration: Duration) -> String {
    match duration.as_micros() {
        us @ 0..10_000 => format!("{us} us"),
        us @ 10_000..10_000_000 => format!("{} ms", us / 1000),
        us => format!("{} s", us / 1_000_000),
    }
}

/// Clock ticks of a second.
pub fn ticks_per_second() -> f64 {
    // SAFETY: it takes a number and gives one.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) as f64 }
}

/// Clock ticks that a process has used so far.
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::by_cause;

    #[test]
    fn causes_are_counted_and_told_apart_by_their_words() {
        let mut reasons = vec!["no jump fits (punned: a branch leads to 0x12)"; 3];
        reasons.extend(["the block at 0x40 is too short", "the block at 0x77 is too short"]);
        reasons.extend(["a", "b", "c", "c"]);
        assert_eq!(
            by_cause(reasons.into_iter()),
            "3 no jump fits, 2 c, 2 the block at N is too short, 1 a, 1 for other reasons"
        );
    }
}
