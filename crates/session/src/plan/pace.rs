//! Long work that somebody waits for: told while it goes on, and ended when they want no more.
//!
//! For:     reading files, which may be hundreds of megabytes of code, and placing tens of thousands of probes.
//! State:   when work began.
//! Context: control.
//! Keeps:   P1 work that takes longer than a second is told, and then once a second at most; or drawn, ten times a second at
//!             most, and what was drawn is taken away when the work is over, whichever way. Works of one [`Whole`] are one work.
//!          P2 whoever waits is asked at least for each megabyte of code.
//! Checked: insn `a_stretch_without_functions_is_read_in_linear_time` (P2); tests below (P1), testkit `progress`.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long work takes before anything is told of it, and then between two lines.
const EACH: Duration = Duration::from_secs(1);
/// And between two pictures.
const FRAME: Duration = Duration::from_millis(100);

/// How much there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Amount {
    /// Bytes of code.
    Code(u64),
    /// Places where probes are to stand.
    Places(u64),
}

/// How far work has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'w> {
    /// What is done, and with which file.
    pub what: &'w str,
    /// How much of it was done.
    pub done: u64,
    /// How much there is.
    pub all: Amount,
    /// How long it takes up to now.
    pub since: Duration,
}

impl Progress<'_> {
    /// How much was done, of a hundred.
    pub fn percent(&self) -> u64 {
        let (Amount::Code(all) | Amount::Places(all)) = self.all;
        self.done.saturating_mul(100) / all.max(1).max(self.done)
    }
}

/// As one line.
impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} % of {}", self.what, self.percent(), self.all)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Code(bytes) => write!(f, "{} MiB of code", bytes >> 20),
            Amount::Places(places) => write!(f, "{places} places"),
        }
    }
}

/// Whoever waits.
#[derive(Clone)]
pub struct Pace(Rc<Waiter>);

#[derive(Clone)]
struct Waiter {
    is_stopped: Rc<dyn Fn() -> bool>,
    tell: Rc<dyn Fn(&str)>,
    draw: Option<Rc<Draw>>,
    /// What is waited for.
    now: Cell<Option<Spell>>,
}

/// How long somebody has waited, and what of it was told.
#[derive(Clone, Copy)]
struct Spell {
    /// When it began, until something is told.
    told: Instant,
    is_told: bool,
}

/// Shows how far work has come; `None` when it is over.
type Draw = dyn Fn(Option<&Progress<'_>>);

/// Waits for ever and hears nothing.
impl Default for Pace {
    fn default() -> Pace {
        Pace::new(|| false, |_| ())
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pace")
    }
}

impl Pace {
    /// `is_stopped` is asked often whether to end, `tell` gets a line now and then.
    pub fn new(is_stopped: impl Fn() -> bool + 'static, tell: impl Fn(&str) + 'static) -> Pace {
        let (is_stopped, tell) = (Rc::new(is_stopped), Rc::new(tell));
        Pace(Rc::new(Waiter { is_stopped, tell, draw: None, now: Cell::default() }))
    }

    /// The same whose progress is drawn, and not told by lines: `draw` gets `None` when the work is over.
    pub fn drawn(self, draw: impl Fn(Option<&Progress<'_>>) + 'static) -> Pace {
        let waiter = Rc::unwrap_or_clone(self.0);
        Pace(Rc::new(Waiter { draw: Some(Rc::new(draw)), ..waiter }))
    }

    pub(super) fn is_stopped(&self) -> bool {
        (self.0.is_stopped)()
    }

    pub(super) fn tell(&self, line: &str) {
        (self.0.tell)(line);
    }

    /// So much work begins.
    pub(super) fn begin(&self, what: String, all: Amount) -> Work {
        Work { whole: self.whole(), what, all, done: Cell::new(0), began: Instant::now() }
    }

    /// Works that begin while this lives are one to whoever waits for it: a second of all of them is told.
    pub(super) fn whole(&self) -> Whole {
        let is_outer = self.0.now.get().is_none();
        if is_outer {
            self.0.now.set(Some(Spell { told: Instant::now(), is_told: false }));
        }
        Whole { pace: self.clone(), is_outer }
    }
}

/// All that is waited for at once.
pub(super) struct Whole {
    pace: Pace,
    /// There is none around it.
    is_outer: bool,
}

impl Whole {
    /// Shows how far a part of it has come, if it is time.
    fn show<'w>(&self, progress: impl Fn() -> Progress<'w>) {
        let waiter = &self.pace.0;
        let Some(spell) = waiter.now.get() else { return };
        let each = if spell.is_told && waiter.draw.is_some() { FRAME } else { EACH };
        if spell.told.elapsed() < each {
            return;
        }
        waiter.now.set(Some(Spell { told: Instant::now(), is_told: true }));
        match &waiter.draw {
            Some(draw) => draw(Some(&progress())),
            None => self.pace.tell(&progress().to_string()),
        }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if !self.is_outer {
            return;
        }
        let spell = self.pace.0.now.take();
        if let Some(draw) = self.pace.0.draw.as_ref().filter(|_| spell.is_some_and(|spell| spell.is_told)) {
            draw(None);
        }
    }
}

/// Work that has begun.
pub(super) struct Work {
    whole: Whole,
    what: String,
    all: Amount,
    done: Cell<u64>,
    began: Instant,
}

impl Work {
    /// So much more was done; false if it is to end.
    pub(super) fn go_on(&self, more: u64) -> bool {
        self.done.set(self.done.get() + more);
        let (what, done, all) = (&self.what, self.done.get(), self.all);
        self.whole.show(|| Progress { what, done, all, since: self.began.elapsed() });
        !self.whole.pace.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// What was told and drawn of works of one whole, each of which began so long after the one before, by two calls at once; the
    /// whole ends that long behind the last.
    fn seen(each: Duration, works: u32, is_drawn: bool) -> (Vec<String>, Vec<Option<u64>>) {
        let (told, drawn) = <(Rc<RefCell<Vec<_>>>, Rc<RefCell<Vec<_>>>)>::default();
        let (tell, draw) = (told.clone(), drawn.clone());
        let pace = Pace::new(|| false, move |line| tell.borrow_mut().push(line.to_owned()));
        let pace = match is_drawn {
            true => pace.drawn(move |p| draw.borrow_mut().push(p.map(Progress::percent))),
            false => pace,
        };
        let whole = pace.whole();
        for _ in 0..works {
            let work = pace.begin("placing probes".into(), Amount::Places(400));
            let spell = pace.0.now.get().unwrap();
            pace.0.now.set(Some(Spell { told: spell.told.checked_sub(each).unwrap(), ..spell }));
            assert!(work.go_on(100) && work.go_on(100));
        }
        drop(whole);
        drop(pace);
        (told.take(), drawn.take())
    }

    #[test]
    fn short_work_is_neither_told_nor_drawn() {
        assert_eq!(seen(Duration::ZERO, 1, false), (vec![], vec![]));
        assert_eq!(seen(Duration::ZERO, 9, true), (vec![], vec![]));
    }

    #[test]
    fn long_work_is_told_by_lines_or_drawn_and_what_was_drawn_is_taken_away() {
        let line = "placing probes: 25 % of 400 places".to_owned();
        assert_eq!(seen(Duration::from_secs(3), 1, false), (vec![line], vec![]));
        assert_eq!(seen(Duration::from_secs(3), 1, true), (vec![], vec![Some(25), None]));
    }

    #[test]
    fn many_short_works_of_one_whole_are_a_long_one() {
        // The third ends the first second; what is drawn stays while the next one begins.
        let each = Duration::from_millis(400);
        assert_eq!(seen(each, 2, true), (vec![], vec![]));
        assert_eq!(seen(each, 4, true), (vec![], vec![Some(25), Some(25), None]));
        assert_eq!(seen(each, 4, false).0, ["placing probes: 25 % of 400 places"]);
    }

    #[test]
    fn what_is_not_one_whole_has_a_second_each() {
        let drawn = Rc::new(Cell::new(0));
        let draw = drawn.clone();
        let pace = Pace::default().drawn(move |_| draw.set(draw.get() + 1));
        for _ in 0..3 {
            let work = pace.begin("reading".into(), Amount::Code(9));
            let spell = pace.0.now.get().unwrap();
            assert!(spell.told.elapsed() < EACH && !spell.is_told);
            work.go_on(1);
        }
        assert!(pace.0.now.get().is_none() && drawn.get() == 0);
    }

    #[test]
    fn more_than_all_is_all() {
        let progress = |done| Progress { what: "x", done, all: Amount::Code(3 << 20), since: Duration::ZERO };
        assert_eq!(progress(9 << 20).to_string(), "x: 100 % of 3 MiB of code");
        assert_eq!(Progress { all: Amount::Places(0), ..progress(0) }.percent(), 0);
    }
}
