//! A script in the live view: the same session as that of `run`, whose maps and lines are looked at while it runs.
//!
//! For:     `top FILE.bt`.
//! State:   the screen if there is one; what is shown; what the script printed last.
//! Context: control; the machine's thread, between two of its steps.
//! Keeps:   W1 looking stops nobody in the target and changes no map: only `z` does, which says so.
//!          W2 however it ends, the terminal is given back before the closing report, which is that of `run`.
//! Checked: testkit `view`.

use super::family::causes;
use super::live::Live;
use crate::args::Format as Written;
use crate::aside::{Aside, Output};
use crate::render;
use crate::shown::shown;
use crate::talk;
use crate::top::health::{self, Health, Rows};
use crate::top::screen::Screen;
use crate::top::shot::{Maps, Shot};
use crate::top::view::{Tab, View, Wish};
use crate::top::{self, Tty};
use lang::program::Script;
use lang::run::{self, Engine, Format, Look, Sample, Shared, Traced, out_error};
use session::{Rung, Session};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Lines of the script that are kept.
const LINES_MAX: usize = 256;
/// Elements of each map that are shown.
const ELEMENTS: usize = 200;
/// Hits are summed over all sites: as often.
const SUMMED: Duration = Duration::from_secs(1);
/// Of our time a look at large maps may take this part.
const PART: u32 = 50;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watch {
    /// No screen, also on a terminal.
    pub is_plain: bool,
    /// How often it is looked.
    pub every: Option<Duration>,
    /// When it ends by itself.
    pub duration: Option<Duration>,
    /// Elements that a plain print has of each map.
    pub rows: usize,
}

/// Where the script's output goes: to the view while that is on, and always to the file if there is one.
#[derive(Clone)]
pub struct Sink(Rc<RefCell<Kept>>);

struct Kept {
    to: Option<File>,
    /// While there is a view.
    is_kept: bool,
    lines: VecDeque<String>,
    rest: Vec<u8>,
}

impl Sink {
    /// # Errors
    /// The file cannot be made.
    pub fn new(path: Option<&Path>, is_kept: bool) -> Result<Sink, String> {
        let to = path.map(File::create).transpose().map_err(|error| {
            let name = path.map_or_else(String::new, |path| path.display().to_string());
            format!("ERROR: Failed to open output file: \"{name}\": {}", out_error(&error))
        })?;
        Ok(Sink(Rc::new(RefCell::new(Kept { to, is_kept, lines: VecDeque::new(), rest: Vec::new() }))))
    }

    /// Whether what is printed is obeyed by a terminal.
    pub fn is_terminal(&self) -> bool {
        let kept = self.0.borrow();
        kept.to.is_none() && (kept.is_kept || io::stdout().is_terminal())
    }

    /// What is printed from now on goes on, and with `tells` what was kept so far.
    fn pass(&self, tells: bool) {
        let (rest, lines) = {
            let mut kept = self.0.borrow_mut();
            kept.is_kept = false;
            (std::mem::take(&mut kept.rest), std::mem::take(&mut kept.lines))
        };
        if tells && self.0.borrow().to.is_none() {
            let text: String = lines.into_iter().map(|line| line + "\n").collect();
            // Nobody reads it: so be it.
            let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().write_all(&rest));
        }
    }

    fn lines(&self) -> Vec<String> {
        self.0.borrow().lines.iter().cloned().collect()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.borrow_mut();
        if let Some(file) = &mut kept.to {
            file.write_all(bytes)?;
        }
        if kept.is_kept {
            kept.rest.extend_from_slice(bytes);
            while let Some(line) = first_line(&mut kept.rest) {
                if kept.lines.len() == LINES_MAX {
                    kept.lines.pop_front();
                }
                kept.lines.push_back(shown(&line, Written::Text).into_owned());
            }
        } else if kept.to.is_none() {
            io::stdout().write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.0.borrow().is_kept { Ok(()) } else { io::stdout().flush() }
    }
}

/// Takes the first line out, if it is whole.
fn first_line(bytes: &mut Vec<u8>) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<u8> = bytes.drain(..=end).collect();
    Some(String::from_utf8_lossy(&line[..end]).into_owned())
}

/// What the machine says: kept while there is a view, as all that is said.
#[derive(Default)]
pub struct Talk(Vec<u8>);

impl Write for Talk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        while let Some(line) = first_line(&mut self.0) {
            talk::say(format_args!("{line}"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A script's processes, and the view.
pub struct Watched<'g> {
    live: Live<'g>,
    watch: Watch,
    tty: Option<Tty>,
    screen: Option<Screen>,
    sink: Sink,
    format: Format,
    trailer: String,
    view: View,
    shot: Shot,
    health: Health,
    /// Hits at the last sum, and in a second since the one before.
    hits: (Option<Instant>, u64, f64),
    /// What the command prints.
    output: Option<Output>,
    began: Instant,
    next: Instant,
}

impl<'g> Watched<'g> {
    pub fn new(
        live: Live<'g>,
        watch: Watch,
        tty: Option<Tty>,
        sink: Sink,
        (format, trailer): (Format, String),
    ) -> Watched<'g> {
        let now = Instant::now();
        Watched {
            live,
            watch,
            tty,
            screen: None,
            sink,
            format,
            trailer,
            view: View { tab: Tab::Maps, is_utf8: top::is_utf8(), ..View::default() },
            shot: Shot::default(),
            health: Health::default(),
            hits: (None, 0, 0.0),
            output: None,
            began: now,
            next: now,
        }
    }

    fn every(&self) -> Duration {
        self.watch.every.unwrap_or(if self.screen.is_some() { top::DRAWN } else { top::PRINTED })
    }

    /// The view goes, before anything is said at the end.
    fn close(&mut self) {
        let was_shown = self.screen.take().is_some();
        if was_shown {
            talk::tell_kept();
        }
        // What was printed before there was a view has been seen by nobody.
        self.sink.pass(!was_shown);
        if let Some(output) = self.output.take() {
            output.tell();
        }
    }

    /// Obeys keys, looks if it is time, shows; true if the run is to end.
    fn turn(&mut self, script: &Script, maps: &Shared) -> bool {
        let keys = self.screen.as_ref().map(Screen::keys).unwrap_or_default();
        let has_keys = !keys.is_empty();
        for key in keys {
            match self.view.press(key) {
                Some(Wish::Quit) => return true,
                Some(wish) => self.obey(wish, script, maps),
                None => {}
            }
        }
        let now = Instant::now();
        let is_due = now >= self.next;
        if is_due {
            self.sum(now);
            if !self.view.is_paused {
                self.take_shot(script, maps, ELEMENTS);
            }
            // Who has maps of a million keys is looked at less often.
            self.next = now + self.every().max(now.elapsed() * PART);
        }
        match &mut self.screen {
            Some(screen) if is_due || has_keys => {
                if let Some(line) = talk::last_kept() {
                    self.view.note = line;
                }
                self.view.height = usize::from(screen.height().saturating_sub(4)).max(1);
                self.view.lines = self.shot.maps.as_ref().map_or(0, |maps| maps.lines.len());
                self.view.line = self.view.line.min(self.view.lines.saturating_sub(self.view.height));
                screen.show(&self.shot, &self.view);
            }
            None if is_due => self.print(script, maps),
            _ => {}
        }
        self.watch.duration.is_some_and(|end| self.began.elapsed() >= end)
    }

    fn sum(&mut self, now: Instant) {
        self.health.look(self.live.pid().unwrap_or(0), now);
        let (before, then, _) = self.hits;
        let took = before.map(|before| now.saturating_duration_since(before));
        if took.is_none_or(|took| took >= SUMMED.min(self.every())) {
            let hits = self.live.so_far().hits();
            let rate = took.map_or(0.0, |took| hits.saturating_sub(then) as f64 / took.as_secs_f64());
            self.hits = (Some(now), hits, rate);
        }
    }

    fn take_shot(&mut self, script: &Script, maps: &Shared, elements: usize) {
        self.live.bring_all(maps);
        let text = run::printed(script, maps, Format::Text, elements, &self.trailer);
        let lengths = run::lengths(script, maps);
        let heads: Vec<String> = lengths.iter().map(|(name, n)| format!("{name}: {n}")).collect();
        self.shot = Shot {
            target: health::title(self.live.pid().unwrap_or(0)),
            seconds: self.began.elapsed().as_secs(),
            events: self.sink.lines(),
            health: self.rows(),
            maps: Some(Maps {
                head: format!("keys of each map: {}", heads.join(", ")),
                of: if lengths.is_empty() { ": it has none" } else { "" },
                lines: text.lines().map(str::to_owned).collect(),
                per_second: self.hits.2,
            }),
            ..Shot::default()
        };
    }

    fn rows(&self) -> Rows {
        let family = self.live.family();
        let mut rows: Rows = vec![
            ("price", "not known: what a hit costs depends on what the program does".to_owned()),
            ("overhead", "not known".to_owned()),
        ];
        rows.extend(self.health.processor());
        let runs = self.live.so_far();
        let (hits, ran, skipped) = (runs.hits(), runs.ran, runs.skipped());
        rows.push(("hits", format!("{hits} = {ran} handled + {skipped} skipped{}", causes(runs))));
        let mut rungs: Vec<String> =
            render::by_rung(family.sessions()).values().map(|(rung, n)| format!("{n} {rung}")).collect();
        let mut sites: usize = family.sessions().map(|session| session.sites().count()).sum();
        let by_kernel = self.live.aside().len();
        if by_kernel > 0 {
            rungs.push(format!("{by_kernel} {}", Rung::Kernel));
            sites += by_kernel;
        }
        let missed = self.live.left_out().len();
        rows.push(("probes", format!("{sites} sites: {}; {missed} places left out", rungs.join(", "))));
        let longest = family.sessions().map(Session::longest_stall).max().unwrap_or_default();
        let took = family.sessions().map(Session::attach_time).sum();
        let [longest, took] = [longest, took].map(render::time);
        rows.push((
            "stalls",
            format!("no thread stood still for longer than {longest}; the attach took {took}"),
        ));
        rows
    }

    fn print(&mut self, script: &Script, maps: &Shared) {
        self.live.bring_all(maps);
        let mut text = run::printed(script, maps, self.format, self.watch.rows, &self.trailer);
        let (target, seconds) = (&self.shot.target, self.shot.seconds);
        if self.format == Format::Json {
            let health: serde_json::Map<String, serde_json::Value> = self
                .shot
                .health
                .iter()
                .map(|(what, how)| ((*what).to_owned(), how.as_str().into()))
                .collect();
            let data = serde_json::json!({"seconds": seconds, "health": health});
            text = format!("{}\n{text}", serde_json::json!({"type": "top", "data": data}));
        } else {
            let rate = self.hits.2.round();
            text = format!("{target} after {seconds} s: {rate} hits a second\n{text}");
            let is_told = |what: &str| matches!(what, "hits" | "processor");
            for (what, how) in self.shot.health.iter().filter(|(what, _)| is_told(what)) {
                text += &format!("{what:<12} {how}\n");
            }
            text.push('\n');
        }
        // The machine finds out by itself that nobody reads any more.
        let _ = self.sink.write_all(text.as_bytes()).and_then(|()| self.sink.flush());
    }

    fn obey(&mut self, wish: Wish, script: &Script, maps: &Shared) {
        match wish {
            Wish::Quit => {}
            Wish::Zero => {
                self.live.clear_aside();
                run::clear(script, maps);
                self.view.note = "the maps are empty; the closing report has what comes from now on".into();
                self.next = Instant::now();
            }
            Wish::Snapshot => {
                if !self.view.is_paused {
                    self.take_shot(script, maps, 0);
                }
                self.view.note = top::snapshot(&self.shot, &self.view);
            }
            Wish::Trace | Wish::Flame | Wish::Switch => self.view.note = top::draw::OF_SCRIPT.into(),
            Wish::Redraw => {
                if let Some(screen) = &mut self.screen {
                    screen.forget();
                }
            }
        }
    }
}

impl Traced for Watched<'_> {
    fn start(&mut self) -> Result<u32, String> {
        let aside = self.tty.as_ref().and_then(|_| Aside::begin());
        let started = self.live.start();
        self.output = aside.map(Aside::end);
        started
    }

    fn attach(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        if let Err(why) = self.live.attach(script, maps) {
            self.sink.pass(true);
            return Err(why);
        }
        self.began = Instant::now();
        self.next = self.began + if self.tty.is_some() { Duration::ZERO } else { self.every() };
        Ok(())
    }

    fn left_out(&self) -> BTreeSet<String> {
        self.live.left_out()
    }

    fn aside(&self) -> BTreeSet<u32> {
        self.live.aside()
    }

    fn successor(&mut self) -> Option<Box<dyn Engine>> {
        self.live.successor()
    }

    fn is_any(&self) -> bool {
        self.live.is_any()
    }

    fn pause(&self) -> Option<Duration> {
        self.live.pause()
    }

    fn watched(&self) -> Vec<i32> {
        let mut all = self.live.watched();
        all.extend(self.screen.as_ref().map(Screen::announces));
        all
    }

    fn look(&mut self, script: &Script, maps: &Shared) -> Look {
        // What was said of the attach has been said.
        if let Some(tty) = self.tty.take() {
            self.screen = Screen::open(tty);
            match &self.screen {
                Some(_) => talk::keep(),
                None => self.sink.pass(true),
            }
        }
        match self.live.look(script, maps) {
            Look::On if self.turn(script, maps) => Look::Asked,
            look => look,
        }
    }

    fn meanwhile(&mut self) {
        self.live.meanwhile();
    }

    fn samples(&mut self) -> Vec<(usize, Sample)> {
        self.live.samples()
    }

    fn lost_samples(&self) -> u64 {
        self.live.lost_samples()
    }

    fn detach(&mut self) {
        self.close();
        self.live.detach();
    }

    fn receipt(&mut self) -> (Vec<String>, bool) {
        self.live.receipt()
    }
}
