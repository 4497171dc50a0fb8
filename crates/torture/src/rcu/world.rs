//! What the threads of one run share.
//!
//! For:     `rcu_main` and its threads.
//! State:   the pool, the current element, every counter, the phase.
//! Context: control. Leaked: callbacks of a broken subject may come at any time.
//! Keeps:   E1 an element is in one place: free, current, or removed with its count rising.
//! Checked: `settle` counts the free ones after each pause.

use super::options::Options;
use super::subject::{Section, Subject};
use rcu::Cookie;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

/// Elements in the pool.
pub const ELEMENTS: usize = 100;
/// Grace periods after which a removed element is free again.
pub const PIPE: usize = 10;
/// Time after which an element that is not free is lost. Ten grace periods free it, in milliseconds.
const NO_PROGRESS: Duration = Duration::from_secs(5);
/// No element.
pub const NONE: usize = usize::MAX;

/// Everybody waits.
pub const PAUSE: u32 = 0;
/// Readers and writers run.
pub const RUN: u32 = 1;
/// Only the edge test runs.
pub const EDGE: u32 = 2;

/// One protected object.
#[derive(Default)]
pub struct Element {
    /// 0 current; 1 removed; then one more per grace period.
    pub pipe_count: AtomicU32,
    /// Not 0 while a reader may look at it.
    pub mbtest: AtomicU32,
}

/// A memory-ordering test on its way from one reader to another.
#[derive(Default)]
pub struct Mailbox {
    /// Whose loop counter was read, plus 1; 0 if the box is empty.
    pub chased: AtomicUsize,
    pub value: AtomicU64,
    pub cookie: AtomicU64,
}

/// Errors and the proofs of work, by the kernel's names.
#[derive(Default)]
pub struct Counters {
    pub version: AtomicU64,
    pub allocs: AtomicU64,
    pub alloc_fails: AtomicU64,
    pub frees: AtomicU64,
    pub mbtest_errors: AtomicU64,
    pub mailbox_tries: AtomicU64,
    pub mailbox_fails: AtomicU64,
    pub barrier_tries: AtomicU64,
    pub barrier_good: AtomicU64,
    pub barrier_errors: AtomicU64,
    pub cookie_checks: AtomicU64,
    pub cookie_errors: AtomicU64,
    pub leaks: AtomicU64,
    pub flood_callbacks: AtomicU64,
    pub flood_errors: AtomicU64,
    pub edge_reads: AtomicU64,
    pub edge_periods: AtomicU64,
    pub edge_errors: AtomicU64,
    pub read_exits: AtomicU64,
    pub downs: AtomicU64,
    pub ups: AtomicU64,
    pub migrates: AtomicU64,
    pub fake_writes: AtomicU64,
    pub warnings: AtomicU64,
    pub pipe: [AtomicU64; PIPE + 1],
    pub batch: [AtomicU64; PIPE + 1],
    /// Elements that reached each stage: allocated, removed, then one per grace period.
    pub circulation: [AtomicU64; PIPE + 2],
}

pub struct World {
    pub options: Options,
    pub subject: Subject,
    pub stop: AtomicBool,
    phase: AtomicU32,
    /// Threads that are in the middle of something.
    pub working: AtomicU32,
    pub elements: Vec<Element>,
    pub free: Mutex<Vec<usize>>,
    pub current: AtomicUsize,
    pub mail: Vec<Mailbox>,
    pub loops: Vec<AtomicU64>,
    pub counters: Counters,
    pub warned: Mutex<Vec<String>>,
    pub first_error: Mutex<Option<String>>,
    pub last_version: AtomicU64,
    pub started: Instant,
}

impl World {
    pub fn new(options: Options) -> Result<World, rcu::BuildError> {
        let subject = Subject::new(&options)?;
        let readers = options.nreaders;
        Ok(World {
            subject,
            stop: AtomicBool::new(false),
            phase: AtomicU32::new(PAUSE),
            working: AtomicU32::new(0),
            elements: (0..ELEMENTS).map(|_| Element::default()).collect(),
            free: Mutex::new((0..ELEMENTS).collect()),
            current: AtomicUsize::new(NONE),
            mail: (0..readers).map(|_| Mailbox::default()).collect(),
            loops: (0..readers).map(|_| AtomicU64::new(0)).collect(),
            counters: Counters::default(),
            warned: Mutex::new(Vec::new()),
            first_error: Mutex::new(None),
            last_version: AtomicU64::new(0),
            started: Instant::now(),
            options,
        })
    }

    /// Lets the threads of a phase run for a while.
    pub fn phase(&self, phase: u32, length: Duration, end: Instant) {
        self.phase.store(phase, SeqCst);
        let until = (Instant::now() + length).min(end);
        while Instant::now() < until && !self.should_stop_early() {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.phase.store(PAUSE, SeqCst);
    }

    /// Waits for the phase; the guard keeps `settle` waiting. `None` when the test ends.
    pub fn work(&self, phase: u32) -> Option<Working<'_>> {
        loop {
            if self.stop.load(SeqCst) {
                return None;
            }
            if self.phase.load(SeqCst) == phase {
                self.working.fetch_add(1, SeqCst);
                if self.phase.load(SeqCst) == phase {
                    return Some(Working(self));
                }
                self.working.fetch_sub(1, SeqCst);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// True while the phase lasts.
    pub fn is_on(&self, phase: u32) -> bool {
        self.phase.load(Relaxed) == phase && !self.stop.load(Relaxed)
    }

    /// A broken subject is caught: nothing more to learn.
    pub fn should_stop_early(&self) -> bool {
        self.options.broken.is_some() && self.errors() > 0
    }

    /// Notes an error: its counter, and what the first one was.
    pub fn error(&self, counter: &AtomicU64, what: impl FnOnce() -> String) {
        counter.fetch_add(1, Relaxed);
        let mut first = self.first_error.lock().expect("not poisoned");
        if first.is_none() {
            *first = Some(what());
        }
    }

    /// A report of the subject, or a surprise of the test: each is an error.
    pub fn warn(&self, text: &str) {
        println!("rcu-torture: WARNING: {text}");
        self.counters.warnings.fetch_add(1, Relaxed);
        self.warned.lock().expect("not poisoned").push(text.to_string());
    }

    /// All errors of the set.
    pub fn errors(&self) -> u64 {
        let c = &self.counters;
        let beyond: u64 = c.pipe[2..].iter().map(|n| n.load(Relaxed)).sum();
        let named = [
            &c.mbtest_errors,
            &c.mailbox_fails,
            &c.barrier_errors,
            &c.cookie_errors,
            &c.leaks,
            &c.flood_errors,
            &c.edge_errors,
            &c.warnings,
            &c.circulation[PIPE + 1],
        ];
        beyond + named.iter().map(|n| n.load(Relaxed)).sum::<u64>()
    }

    pub fn take_element(&self) -> Option<usize> {
        let taken = self.free.lock().expect("not poisoned").pop();
        let counter = if taken.is_some() { &self.counters.allocs } else { &self.counters.alloc_fails };
        counter.fetch_add(1, Relaxed);
        if taken.is_some() {
            self.counters.circulation[0].fetch_add(1, Relaxed);
        }
        taken
    }

    /// A grace period has passed since the element was removed, or one more; true once it is free.
    pub fn age(&self, element: usize) -> bool {
        let e = &self.elements[element];
        let count = e.pipe_count.load(Relaxed) as usize;
        self.counters.circulation[(count + 1).min(PIPE + 1)].fetch_add(1, Relaxed);
        e.pipe_count.store(count as u32 + 1, Relaxed);
        if count + 1 < PIPE {
            return false;
        }
        e.mbtest.store(0, Relaxed);
        self.counters.frees.fetch_add(1, Relaxed);
        self.free.lock().expect("not poisoned").push(element);
        true
    }

    /// Counts a cookie check.
    pub fn check_cookie(&self, good: bool, what: &str) {
        self.counters.cookie_checks.fetch_add(1, Relaxed);
        if !good {
            self.error(&self.counters.cookie_errors, || format!("cookie check: {what}"));
        }
    }

    /// After a pause: every element but the current one must become free again.
    pub fn settle(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.working.load(SeqCst) != 0 {
            if Instant::now() > deadline {
                return self.warn("a thread does not come to rest within 60 s");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A reader that is late is met by luck. That nobody waits for its count is seen without.
        if self.counters.pipe[0].load(Relaxed) > 0 && !self.subject.makes_fences() {
            self.warn("a grace period behind readers without fences made none in their stead");
        }
        if self.should_stop_early() {
            return;
        }
        let expected = ELEMENTS - usize::from(self.current.load(SeqCst) != NONE);
        let (mut most, mut since) = (0, Instant::now());
        loop {
            self.subject.domain.barrier();
            let free = self.free.lock().expect("not poisoned").len();
            if free == expected {
                return;
            }
            if free > most {
                (most, since) = (free, Instant::now());
            }
            if since.elapsed() > NO_PROGRESS {
                return self.error(&self.counters.leaks, || {
                    format!("{} element(s) never came back", expected - free)
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A cookie check inside a reader: neither a new cookie nor an old one may be done.
    pub fn check_inside(&self, since: Option<Cookie>) {
        let domain = self.subject.domain;
        let fresh = domain.get_state();
        self.check_cookie(!domain.poll_state(fresh), "1: a fresh cookie is done inside a reader");
        self.check_cookie(domain.poll_state(Cookie::COMPLETED), "1: the completed cookie is not done");
        if let Some(since) = since {
            self.check_cookie(
                !domain.poll_state(since),
                "2: a cookie of the reader's start is done at its end",
            );
        }
    }

    /// Leaves a section; here so that every caller is the same.
    pub fn leave(&self, section: Section) {
        self.subject.leave(section);
    }
}

/// A thread in the middle of something.
pub struct Working<'w>(&'w World);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, SeqCst);
    }
}

/// Spins for about that long.
pub fn spin_us(us: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(us) {
        std::hint::spin_loop();
    }
}
