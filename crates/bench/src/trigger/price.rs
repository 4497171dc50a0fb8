//! What a call costs more with probes of a kind in it, on this machine, now.
//!
//! For:     `record`, `top` and budgets: a figure beside a run, not a bench.
//! State:   a child that calls a function of ours over and over, and tells how long it takes by its processor time.
//! Context: control. The child is forked, not started: it takes a millisecond.
//! Keeps:   P1 the child ends with this call, or with us.
//!          P2 what could not be measured is `None`, not a guess: in `LONGEST` at most.
//! Checked: tests below; testkit `recording`.
//!
//! A walk of the stack that was made before costs less than a new one: what is told is the price of new ones.
//!
//! It is the price in a loop whose code and data are in the caches. What probes push out of the caches of the traced program
//! comes on top, and is not measured.

use super::functions::{anew, trig_nop};
use crate::Price;
use image::Spec;
use session::{Action, Attach, Consumer, Programs, Session, SitePlan, Verb};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Calls that are measured together.
const BATCH: u64 = 2048;
/// Batches that meet cold caches, or were begun before a change.
const COLD: u64 = 4;
/// The same of programs, whose records are taken away in between.
const STEP: u64 = 256;
/// How many of our frames are below the call, for walks of the stack.
const DEPTH: u32 = 8;
/// So long the most batches are waited for, of which a median is taken; then the fewest are enough.
const PATIENCE: Duration = Duration::from_millis(500);
const PLACES: u64 = 64;
const FEWEST: u64 = 8;
/// Where others have the processors nearly all of the time, each batch waits for a turn.
const LONGEST: Duration = Duration::from_secs(10);

/// The median of a call with probes of these kinds, less that of one without; of walks at two depths.
///
/// Events are taken away meanwhile, as who shows them does: one that finds no room would cost less.
pub fn price(verbs: &[Verb]) -> Option<Price> {
    let is_deep = verbs.contains(&Verb::Trace { has_stacks: true });
    let near = price_at(verbs, if is_deep { 4 * DEPTH } else { DEPTH })?;
    let Some(known) = near.frames else { return Some(near) };
    let far = price_at(verbs, 4 * DEPTH)?;
    let more = far.frames?.checked_sub(known).filter(|more| *more > 0)?;
    Some(Price { per_frame_ns: Some(((far.ns - near.ns) / more as f64).max(0.0)), ..near })
}

/// The same of a hit that runs one of these programs to its end, with this cookie. Its arguments lead to a text, and a walk has
/// some 40 frames.
///
/// `drain` takes away what the program has written, so that there is always room; the session has the memory that it is in.
pub fn price_of_program(
    programs: &Programs,
    (number, cookie): (u32, u64),
    drain: &mut dyn FnMut(&Session),
) -> Option<Price> {
    let caller = Caller::start(4 * DEPTH, Way::Stepped)?;
    let bare_ns = caller.median(&mut || ())?;
    let consumer = Consumer::Program { program: number, cookie };
    let mut sites = session::plan(caller.pid, &[called()?], Verb::Program).ok()?.sites;
    let actions = |site: &mut SitePlan| site.actions = vec![Action::Consumers(vec![consumer])];
    sites.iter_mut().for_each(actions);
    let attach = Attach { programs: programs.clone(), ..Attach::default() };
    let mut session = Session::attach_with(caller.pid, sites, attach).ok()?;
    drain(&session);
    // As below.
    for _ in 0..2 {
        caller.median(&mut || drain(&session));
        session.look_for_tables();
    }
    let probed_ns = caller.median(&mut || drain(&session));
    let has_run = session.sites().flat_map(|site| site.runs()).any(|(_, runs)| runs.ran > 0);
    drop(session.detach());
    let ns = (probed_ns.filter(|_| has_run)? - bare_ns).max(0.0);
    Some(Price { ns, bare_ns, frames: None, per_frame_ns: None })
}

/// The function that is called, as what to probe.
fn called() -> Option<Spec> {
    let exe = std::fs::read_link("/proc/self/exe").ok()?;
    Spec::parse(&format!("u:{}:trig_nop", exe.display())).ok()
}

fn price_at(verbs: &[Verb], depth: u32) -> Option<Price> {
    let has_events = verbs.iter().any(|verb| matches!(verb, Verb::Trace { .. }));
    let way = match verbs.contains(&Verb::CountStack) {
        _ if has_events => Way::Stepped,
        true => Way::Anew,
        false => Way::Same,
    };
    let caller = Caller::start(depth, way)?;
    let bare_ns = caller.median(&mut || ())?;
    let spec = called()?;
    let mut sessions = Vec::new();
    for verb in verbs {
        let plan = session::plan(caller.pid, std::slice::from_ref(&spec), *verb).ok()?;
        sessions.push(Session::attach(caller.pid, plan.sites).ok()?);
    }
    // Tables for walks are made when a hit has met a file without.
    for _ in 0..2 {
        caller.median(&mut || drain(&sessions))?;
        for session in &mut sessions {
            session.look_for_tables();
        }
    }
    let probed_ns = caller.median(&mut || drain(&sessions));
    let stacks = sessions.iter().flat_map(Session::stacks).max_by_key(|stack| stack.count);
    let frames = stacks.map(|stack| stack.frames.len());
    // The child ends now: what does not leave it goes with it.
    sessions.iter_mut().rev().for_each(|session| drop(session.detach()));
    Some(Price { ns: (probed_ns? - bare_ns).max(0.0), bare_ns, frames, per_frame_ns: None })
}

/// Takes events away, if any were written.
fn drain(sessions: &[Session]) {
    for session in sessions {
        session.take_events(|_| ());
    }
}

/// How the child calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From one place, without a pause.
    Same,
    /// Each time from another place of the stack.
    Anew,
    /// The same with arguments, few calls in a row: the next ones when it is told.
    Stepped,
}

impl Way {
    fn batch(self) -> u64 {
        if self == Way::Stepped { STEP } else { BATCH }
    }
}

/// Nanoseconds of the last batches, and how many batches there were.
#[repr(C)]
struct Told {
    batches: AtomicU64,
    /// Batches that may be begun, where the child is told.
    may: AtomicU64,
    ns: [AtomicU64; PLACES as usize],
}

struct Caller {
    pid: i32,
    way: Way,
    told: NonNull<Told>,
}

impl Caller {
    fn start(depth: u32, way: Way) -> Option<Caller> {
        let len = size_of::<Told>();
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: needs nothing: a new mapping at a place that the kernel chooses; it is ours until `drop`.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        let told = NonNull::new(at.cast::<Told>())?;
        // SAFETY: the mapping above is as long as `Told`, zeros are one, and nobody unmaps it before `drop`.
        let place: &Told = unsafe { told.as_ref() };
        let parent = std::process::id().cast_signed();
        // SAFETY: the child makes system calls and calls of `trig_nop`, and nothing else: it needs no lock and no memory of
        // another thread's.
        match unsafe { libc::fork() } {
            0 => child(place, parent, depth, way),
            pid if pid > 0 => Some(Caller { pid, way, told }),
            _ => {
                unmap(told);
                None
            }
        }
    }

    /// The median of a call, of batches from now on; `between` runs again and again meanwhile.
    fn median(&self, between: &mut dyn FnMut()) -> Option<f64> {
        let begun = Instant::now();
        // SAFETY: mapped until `drop`; written by the child by atomic stores alone.
        let told = unsafe { self.told.as_ref() };
        // Pairs with the child's release: a batch that is counted is there.
        let batches = || told.batches.load(Ordering::Acquire);
        let first = batches() + COLD;
        while batches() < first + PLACES {
            let (waited, seen) = (begun.elapsed(), batches().saturating_sub(first));
            if waited > PATIENCE && seen >= FEWEST {
                break;
            }
            if waited > LONGEST {
                return None;
            }
            between();
            told.may.store(batches() + 1, Ordering::Relaxed);
            if self.way == Way::Stepped {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        // Those that are overwritten meanwhile by newer ones are as good.
        let ns = |batch: u64| told.ns[(batch % PLACES) as usize].load(Ordering::Relaxed);
        let mut all: Vec<u64> = (first..batches()).rev().take(PLACES as usize).map(ns).collect();
        all.sort_unstable();
        all.get(all.len() / 2).map(|ns| *ns as f64 / self.way.batch() as f64)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: a child of ours that nobody else waits for, so the number is still its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // SAFETY: waitpid writes one int to `status`.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        unmap(self.told);
    }
}

fn unmap(told: NonNull<Told>) {
    // SAFETY: the mapping of `start`, as long as that, which nobody uses any more.
    unsafe { libc::munmap(told.as_ptr().cast(), size_of::<Told>()) };
}

/// Calls until it is killed.
fn child(told: &Told, parent: i32, depth: u32, way: Way) -> ! {
    // SAFETY: it takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: it takes numbers. Whoever waits for the end of a pipe of ours must not wait for this process.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
    // SAFETY: it takes nothing.
    if unsafe { libc::getppid() } == parent {
        deeper(told, depth, way);
    }
    // SAFETY: it takes a number, and does not return.
    unsafe { libc::_exit(0) }
}

#[inline(never)]
fn deeper(told: &Told, left: u32, way: Way) {
    match (left, way) {
        (0, Way::Same) => call(told, way, |_| trig_nop()),
        (0, Way::Anew) => call(told, way, |n| anew(n, trig_nop)),
        (0, Way::Stepped) => call(told, way, |n| anew(n, with_texts)),
        _ => deeper(told, std::hint::black_box(left) - 1, way),
    }
    // So that this is no tail call.
    std::hint::black_box(told);
}

/// Calls with six texts.
unsafe extern "C" fn with_texts() {
    type Text = *const u8;
    type WithTexts = extern "C" fn(Text, Text, Text, Text, Text, Text);
    // SAFETY: the function reads no register and no stack: it can be called with any arguments.
    let function: WithTexts = unsafe { std::mem::transmute(trig_nop as *const ()) };
    let text = TEXT.as_ptr();
    function(text, text, text, text, text, text);
    std::hint::black_box(text);
}

/// What arguments lead to: a page, of which what is read as a text ends soon.
static TEXT: [u8; 4096] = {
    let mut text = [b'x'; 4096];
    let mut at = 31;
    while at < text.len() {
        text[at] = 0;
        at += 32;
    }
    text
};

#[inline(never)]
fn call(told: &Told, way: Way, each: impl Fn(u64)) {
    for batch in 0.. {
        while way == Way::Stepped && told.may.load(Ordering::Relaxed) <= batch {
            // SAFETY: it takes nothing.
            unsafe { libc::sched_yield() };
        }
        let began = processor_time();
        (0..way.batch()).for_each(|n| each(batch + n));
        let took = processor_time().saturating_sub(began);
        told.ns[(batch % PLACES) as usize].store(took, Ordering::Relaxed);
        // Pairs with the reader's acquire.
        told.batches.store(batch + 1, Ordering::Release);
    }
}

fn processor_time() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one `timespec` to `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_tells_a_time_and_ends_with_us() {
        let caller = Caller::start(DEPTH, Way::Anew).unwrap();
        let pid = caller.pid;
        let ns = loop {
            // On a machine that is busy it may take a while.
            if let Some(ns) = caller.median(&mut || ()) {
                break ns;
            }
        };
        assert!(ns > 0.0, "{ns}");
        drop(caller);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
