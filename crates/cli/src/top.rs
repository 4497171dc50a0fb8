//! `top`: what the probed functions do, while they do it.
//!
//! For:     the engine; main.
//! State:   the numbers, what is shown, the screen if there is one.
//! Context: control, while hits write.
//! Keeps:   T1 looking stops nobody in the target: only `t` does, which says so.
//!          T2 without a terminal the same numbers are printed, at the same places.
//!          T3 however it ends, the terminal is given back and the closing report is printed: `tty`.
//! Checked: tests below and of the parts; testkit `view`.
//!
//! - [`numbers`] what the functions have done
//! - [`heat`] latency of one function over time
//! - [`health`] how the tracing itself is doing
//! - [`tail`] the last calls of one function
//! - [`flame`] who calls one function
//! - [`shot`] all of it at one moment, as data and as text
//! - [`view`] what the person has chosen, and keys
//! - [`draw`] the picture
//! - [`screen`] the picture on the terminal
//! - [`tty`] the terminal, taken and given back
//! - [`keys`] from the front to the engine

pub mod draw;
mod flame;
pub mod health;
mod heat;
pub mod keys;
mod numbers;
pub mod screen;
pub mod shot;
mod tail;
mod tty;
pub mod view;

use crate::advice;
use crate::args::{Format, RunArgs, TopArgs};
use crate::engine::{self, Job};
use crate::probes::Probes;
use crate::render::{Report, Writer};
use crate::{front, run, talk};
use flame::Flame;
use health::Health;
use heat::Heat;
pub use numbers::Place;
use numbers::{Functions, Line};
use screen::Screen;
use session::Verb;
use shot::Shot;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
use tail::Tail;
pub use tty::Tty;
use view::{Tab, View, Wish};

/// How often the screen is drawn anew, and the plain print made.
pub const DRAWN: Duration = Duration::from_millis(250);
pub const PRINTED: Duration = Duration::from_secs(1);
/// The health tab's sums are of all buckets of all functions: made this often, and less often if they would take more than a part
/// of our time.
const REPORTED: Duration = Duration::from_secs(1);
const REPORTING: u32 = 200;

/// `nanoprobe top`.
pub fn top(args: TopArgs) -> i32 {
    let specs = match args.specs.is_empty() {
        true => vec!["u::*".to_owned()],
        false => args.specs,
    };
    if specs.iter().any(|spec| spec.ends_with(".bt")) {
        return of_script(&specs, args.run, args.plain, args.rows);
    }
    let specs = match run::parse(&specs) {
        Ok(specs) => specs,
        Err(code) => return code,
    };
    let options = RunArgs { hit_only: true, ..args.run };
    if let Err(code) = run::check_subject(&options, "trace").and_then(|()| run::check_budget(&options, "top"))
    {
        return code;
    }
    session::set_patience(options.patience);
    let verb = if args.count { Verb::Count } else { Verb::Latency };
    let is_plain = args.plain || options.format == Format::Json;
    let tty = if is_plain { None } else { Tty::find() };
    let rows = args.rows;
    let job = Job { specs, verb, args: options };
    front::run(job.args.pid, tty, move |stop, tty, guard| engine::top(job, stop, tty, rows, guard))
}

/// `nanoprobe top FILE.bt`: the session of `run`, in the view.
fn of_script(specs: &[String], args: RunArgs, is_plain: bool, rows: usize) -> i32 {
    let [file] = specs else {
        let tries = ["one FILE.bt, or functions, as in u:libc:malloc".to_owned()];
        return advice::fail(&"top takes one script alone", &[], &tries);
    };
    if let Some(name) = crate::filtered::unkept(&args) {
        let tries = [format!("without {name}"), format!("nanoprobe run {file} -p PID")];
        return advice::fail(&format!("a script in top has no {name}"), &[], &tries);
    }
    if let Err(code) = run::check_subject(&args, "trace") {
        return code;
    }
    session::set_patience(args.patience);
    crate::script::watched(
        file,
        &args,
        crate::script::Watch {
            is_plain: is_plain || args.format == Format::Json,
            every: args.interval,
            duration: args.duration,
            rows,
        },
    )
}

pub struct Top {
    screen: Option<Screen>,
    functions: Functions,
    view: View,
    heat: Heat,
    health: Health,
    tail: Option<Tail>,
    flame: Option<Flame>,
    shot: Shot,
    /// Until when what was told of health is new enough.
    told: Option<(Instant, health::Rows)>,
    began: Instant,
    every: Duration,
    next: Instant,
    /// Functions that a plain print has.
    rows: usize,
}

/// What comes of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    On,
    Quit,
}

impl Top {
    /// Takes the terminal, if there is one.
    pub fn open(tty: Option<Tty>, job: &Job, rows: usize) -> Top {
        let screen = tty.and_then(Screen::open);
        if screen.is_some() {
            talk::keep();
        }
        let every = job.args.interval.unwrap_or(if screen.is_some() { DRAWN } else { PRINTED });
        let now = Instant::now();
        Top {
            functions: Functions::default(),
            view: View { is_utf8: is_utf8(), ..View::default() },
            heat: Heat::default(),
            health: Health::of(bench::price(&[job.verb])),
            tail: None,
            flame: None,
            shot: Shot::default(),
            told: None,
            began: now,
            every,
            // A plain print has something to say after an interval only.
            next: if screen.is_some() { now } else { now + every },
            rows,
            screen,
        }
    }

    /// When the next look is due.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Readable when a key was pressed; -1 if none can be.
    pub fn keys(&self) -> RawFd {
        self.screen.as_ref().map_or(-1, Screen::announces)
    }

    /// Obeys keys, looks if it is time, shows.
    pub fn turn(&mut self, probes: &mut Probes, job: &Job, writer: &mut Writer) -> Turn {
        let keys = self.screen.as_ref().map(Screen::keys).unwrap_or_default();
        let has_keys = !keys.is_empty();
        for key in keys {
            match self.view.press(key) {
                Some(Wish::Quit) => return Turn::Quit,
                Some(wish) => self.obey(wish, probes, job),
                None => {}
            }
        }
        let now = Instant::now();
        let is_due = now >= self.next;
        if is_due {
            self.look(probes, now);
            self.next = (self.next + self.every).max(now);
        }
        if let Some(tail) = &mut self.tail {
            tail.look();
        }
        if let Some(flame) = &mut self.flame {
            flame.look(now);
        }
        if is_due && !self.view.is_paused {
            self.take_shot(probes, job, now);
        }
        match &mut self.screen {
            Some(screen) if is_due || has_keys => {
                if let Some(line) = talk::last_kept() {
                    self.view.note = line;
                }
                self.view.arrange(&self.shot.lines, draw::rows_for_functions(screen.height()));
                screen.show(&self.shot, &self.view);
            }
            None if is_due => self.print(writer),
            _ => {}
        }
        Turn::On
    }

    fn look(&mut self, probes: &Probes, now: Instant) {
        let sessions = probes.sessions();
        self.functions.look(sessions, now);
        if let Some(calls) = self.heat.function.and_then(|f| self.functions.calls(f, sessions)) {
            self.heat.look(&calls, now, self.every.max(Duration::from_secs(1)));
        }
        self.health.look(sessions.first().map_or(0, |s| s.pid()), now);
    }

    fn take_shot(&mut self, probes: &Probes, job: &Job, now: Instant) {
        let sessions = probes.sessions();
        let is_reported = self.screen.is_none() || self.view.tab == Tab::Health;
        let wanted = self.view.on_screen().to_vec();
        let is_by_detail = self.view.sort.is_detail() || self.screen.is_none();
        let lines = self.functions.lines(sessions, &wanted, is_by_detail);
        if self.view.tab == Tab::Heat
            && let Some(chosen) = self.view.chosen().filter(|f| *f < lines.len())
        {
            self.heat.choose(chosen, &lines[chosen].name);
        }
        // What nobody sees is not looked for: it is at all sites.
        let health = match is_reported {
            true => self.recent_health(probes, job, &lines, now),
            false => self.health.overhead_row(&lines),
        };
        self.shot = Shot {
            target: health::title(sessions.first().map_or(job.args.pid.unwrap_or(0), |s| s.pid())),
            seconds: now.saturating_duration_since(self.began).as_secs(),
            lines,
            heat: self.heat.clone(),
            traced: self.tail.as_ref().map(|tail| tail.name.clone()),
            events: self.tail.as_ref().map(Tail::lines).unwrap_or_default(),
            flame: self.flame.as_ref().map(|flame| (flame.name.clone(), flame.folded())),
            health,
            maps: None,
        };
    }

    /// What is known of the tracing, some of it from a while ago.
    fn recent_health(&mut self, probes: &Probes, job: &Job, lines: &[Line], now: Instant) -> health::Rows {
        if let Some((_, told)) = self.told.as_ref().filter(|(until, _)| now < *until) {
            // These were found out for the picture anyway.
            let new: health::Rows =
                self.health.overhead_row(lines).into_iter().chain(self.health.processor()).collect();
            let is_new = |what: &str| new.iter().find(|(name, _)| *name == what).cloned();
            return told.iter().map(|row| is_new(row.0).unwrap_or_else(|| row.clone())).collect();
        }
        let began = Instant::now();
        let told = self.health_rows(probes, job, lines);
        self.told = Some((now + rests(began.elapsed(), self.screen.is_some()), told.clone()));
        told
    }

    fn health_rows(&self, probes: &Probes, job: &Job, lines: &[Line]) -> health::Rows {
        let report = Report::of(probes.sessions(), job);
        let mut rows = self.health.rows(probes, &self.functions, &report, lines);
        if let Some(tail) = &self.tail {
            let (written, lost) = tail.events();
            rows.push(("events", format!("of {}: {written} written, {lost} lost", tail.name)));
        }
        rows
    }

    fn print(&mut self, writer: &mut Writer) {
        if writer.format == Format::Json {
            return writer.line(&self.shot.json().to_string());
        }
        self.view.arrange(&self.shot.lines, self.rows);
        let (seconds, rate) = (self.shot.seconds, health::rate_of(self.shot.per_second()));
        let mut lines = vec![format!("{} after {seconds} s: {rate}", self.shot.target)];
        lines.extend(self.shot.table(&self.view, self.rows));
        let is_told = |what: &str| matches!(what, "hits" | "processor" | "overhead");
        let told = self.shot.health.iter().filter(|(what, _)| is_told(what));
        lines.extend(told.map(|(what, how)| format!("{what:<12} {how}")));
        lines.push(String::new());
        writer.lines(&lines);
    }

    fn obey(&mut self, wish: Wish, probes: &mut Probes, job: &Job) {
        match wish {
            Wish::Quit => {}
            Wish::Zero => {
                self.functions.zero(probes.sessions());
                self.view.note = "counts begin at 0 here; the closing report has all".into();
            }
            Wish::Snapshot => {
                self.shot.health = self.health_rows(probes, job, &self.shot.lines);
                self.view.note = snapshot(&self.shot, &self.view);
            }
            Wish::Trace => self.view.note = self.trace(probes, job),
            Wish::Flame => self.view.note = self.draw_callers(probes, job),
            Wish::Switch => self.view.note = self.switch(probes),
            Wish::Redraw => {
                if let Some(screen) = &mut self.screen {
                    screen.forget();
                }
            }
        }
    }

    /// Begins to show calls of the chosen function, or ends it; what to say of it.
    fn trace(&mut self, probes: &mut Probes, job: &Job) -> String {
        if let Some(tail) = self.tail.take() {
            let name = tail.name.clone();
            return match probes.leave(tail.session) {
                Ok(()) => format!("calls of {name} are not shown any more; its probes for that are out"),
                Err(why) => format!("the probes that show calls of {name} will go with the others: {why}"),
            };
        }
        let Some(chosen) = self.view.chosen() else { return "choose a function first".into() };
        let Some(place) = self.functions.place(chosen, probes.sessions()) else { return "it is gone".into() };
        match probes.put_beside(&place, job, Verb::Trace { has_stacks: false }) {
            Ok(session) => {
                let stall = crate::render::time(session.longest_stall());
                let note = format!("probes for calls of {} are in; longest stall {stall}", place.name);
                self.view.tab = Tab::Events;
                self.view.selected = Some(chosen);
                self.tail = Some(Tail::of(session, place.name));
                note
            }
            Err(why) => format!("calls of {} cannot be shown: {why}", place.name),
        }
    }

    /// Begins to draw who calls the chosen function, or ends it; what to say of it.
    fn draw_callers(&mut self, probes: &mut Probes, job: &Job) -> String {
        if let Some(flame) = self.flame.take() {
            let name = flame.name.clone();
            return match probes.leave(flame.session) {
                Ok(()) => format!("callers of {name} are not drawn any more; the probes for that are out"),
                Err(why) => format!("the probes that count callers of {name} will go with the others: {why}"),
            };
        }
        let Some(chosen) = self.view.chosen() else { return "choose a function first".into() };
        let Some(place) = self.functions.place(chosen, probes.sessions()) else { return "it is gone".into() };
        match probes.put_beside(&place, job, Verb::CountStack) {
            Ok(session) => {
                let stall = crate::render::time(session.longest_stall());
                let note =
                    format!("probes that count callers of {} are in; longest stall {stall}", place.name);
                self.view.tab = Tab::Flame;
                self.view.selected = Some(chosen);
                self.flame = Some(Flame::of(session, place.name));
                note
            }
            Err(why) => format!("callers of {} cannot be counted: {why}", place.name),
        }
    }

    /// Switches the probes of the chosen function off, or on again; what to say of it.
    fn switch(&mut self, probes: &mut Probes) -> String {
        let Some(chosen) = self.view.chosen() else { return "choose a function first".into() };
        self.view.selected = Some(chosen);
        self.view.pin();
        let name = self.shot.lines.get(chosen).map(|line| line.name.clone()).unwrap_or_default();
        match self.functions.switch(chosen, probes) {
            Ok(true) => format!("the probes of {name} are on again"),
            Ok(false) => {
                format!("the probes of {name} are off: its hits are skipped; o switches them on again")
            }
            Err(why) => format!("the probes of {name} cannot be switched off: {why}"),
        }
    }

    /// Gives the terminal back; before anything is said at the end.
    pub fn close(&mut self, probes: &mut Probes) {
        self.screen = None;
        talk::tell_kept();
        let tail = self.tail.take().map(|tail| (tail.session, "show calls", tail.name));
        let flame = self.flame.take().map(|flame| (flame.session, "count callers", flame.name));
        for (session, what, name) in tail.into_iter().chain(flame) {
            if let Err(why) = probes.leave(session) {
                eprintln!("nanoprobe: the probes that {what} of {name} will go with the others: {why}");
            }
        }
    }

    /// The last table, of all functions that were hit, from the start on.
    pub fn results(&mut self, probes: &Probes, writer: &mut Writer) {
        let sessions = probes.sessions();
        self.functions.forget_zero();
        self.functions.look(sessions, Instant::now());
        self.view = View { sort: self.view.sort, is_reversed: self.view.is_reversed, ..View::default() };
        self.shot.lines = self.functions.lines(sessions, &[], true);
        self.view.arrange(&self.shot.lines, usize::MAX);
        let order = self.view.order.clone();
        self.shot.lines = self.functions.lines(sessions, &order, true);
        self.view.arrange(&self.shot.lines, usize::MAX);
        writer.lines(&self.shot.table(&self.view, usize::MAX));
    }
}

/// How long what has taken so long to find out is new enough: what is printed, for one print at most.
fn rests(took: Duration, is_drawn: bool) -> Duration {
    let rests = took * REPORTING;
    if is_drawn { rests.max(REPORTED) } else { rests.min(REPORTED) }
}

/// Whether the terminal shows characters beyond ASCII.
pub fn is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .is_some_and(|value| value.to_lowercase().replace('-', "").contains("utf8"))
}

/// Writes what is shown to a new file; what to say of it.
pub fn snapshot(shot: &Shot, view: &View) -> String {
    const MAX: usize = 10_000;
    let pid = shot.target.rsplit(['(', ')']).nth(1).unwrap_or_default();
    let text = shot.text(view).join("\n") + "\n";
    for number in 1..=MAX {
        let name = format!("nanoprobe-top-{pid}-{number}.txt");
        // Never over a file that is there.
        let file = OpenOptions::new().write(true).create_new(true).open(&name);
        match file.and_then(|mut file| file.write_all(text.as_bytes())) {
            Ok(()) => return format!("written to {name}"),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return format!("cannot write {name}: {e}"),
        }
    }
    format!("not written: there are {MAX} of these files already")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_to_find_out_is_found_out_less_often() {
        let drawn = [1, 5, 20].map(|ms| rests(Duration::from_millis(ms), true).as_millis());
        assert_eq!(drawn, [1000, 1000, 4000]);
        let printed = [0, 1, 20].map(|ms| rests(Duration::from_millis(ms), false).as_millis());
        assert_eq!(printed, [0, 200, 1000]);
    }
}
