//! The readers.
//!
//! For:     finding an element that has aged while a reader held it.
//! State:   the thread's random numbers.
//! Context: control.
//! Keeps:   R1 a pipe count above 1 is counted as what it is: a grace period that did not wait.
//! Checked: `tests/broken.rs`.
//! Source:  `rcu_torture_one_read` of the kernel.

use super::world::{NONE, PIPE, RUN, World, spin_us};
use crate::rng::Rng;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// A mailbox that is being filled.
const CLAIMED: usize = usize::MAX;

/// One read in so many outlasts a grace period before it counts itself, and tries to after.
const STALKS: u64 = 256;

/// Sections of a visit, some ten microseconds: as long as a poll of the grace period.
const VISITS: u32 = 5_000;

/// What such a read waits at most; inside, no honest grace period ends.
const OUTLAST: Duration = Duration::from_millis(1);

/// Segments that one read may add inside its own.
const SEGMENTS: u64 = 7;

pub fn run(world: &'static World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let me = reader_number();
    let mut moved = Instant::now();
    while let Some(_working) = world.work(RUN) {
        while world.is_on(RUN) {
            one_read(world, &mut rng);
            if rng.one_in(STALKS) {
                visit(world, &mut rng);
            }
            world.loops[me].fetch_add(1, Relaxed);
            mailbox(world, &mut rng, me);
            if moved.elapsed() > world.options.shuffle_interval {
                moved = Instant::now();
                migrate(world, &mut rng);
            }
        }
    }
}

fn reader_number() -> usize {
    let thread = std::thread::current();
    thread.name().and_then(|n| n.strip_prefix("reader")).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// One read from enter to exit, and what it must have seen.
pub fn one_read(world: &World, rng: &mut Rng) {
    let (subject, counters) = (&world.subject, &world.counters);
    let kind = subject.kinds[rng.below(subject.kinds.len() as u64) as usize];
    let stalks = kind.has_gap() && rng.one_in(STALKS);
    let straggle = straggle_us(rng);
    let section = subject.enter(kind, || {
        if stalks {
            outlast(world, 1)
        } else if straggle > 0 {
            spin_us(straggle)
        }
    });
    let since = rng.one_in(16).then(|| subject.domain.get_state());
    let periods = subject.domain.block().periods();
    let element = world.current.load(Acquire);
    if element == NONE {
        return world.leave(section);
    }
    let e = &world.elements[element];
    if e.mbtest.load(Relaxed) == 0 {
        world.error(&counters.mbtest_errors, || {
            format!("element {element} was freed under a {kind:?} reader")
        });
    }
    let mut inner = Vec::new();
    if rng.one_in(8) {
        for _ in 0..rng.below(SEGMENTS + 1) {
            let kind = subject.kinds[rng.below(subject.kinds.len() as u64) as usize];
            inner.push(subject.enter(kind, || {}));
        }
    }
    if stalks {
        outlast(world, 2);
    } else {
        delay(world, rng);
    }
    let pipe = (e.pipe_count.load(Relaxed) as usize).min(PIPE);
    let batch = subject.domain.block().periods().wrapping_sub(periods) as usize;
    counters.pipe[pipe].fetch_add(1, Relaxed);
    counters.batch[batch.min(PIPE)].fetch_add(1, Relaxed);
    if pipe > 1 {
        let mut first = world.first_error.lock().expect("not poisoned");
        first.get_or_insert_with(|| {
            format!("a {kind:?} reader saw element {element} {pipe} grace periods old (straggled {straggle} us, {} inner, stalks: {stalks})", inner.len())
        });
    }
    if since.is_some() {
        world.check_inside(since);
    }
    inner.into_iter().for_each(|section| world.leave(section));
    world.leave(section);
}

/// Lets other threads run until so many grace periods have ended, or for a millisecond.
///
/// A reader that does so between fetching the rank and counting enters the rank that the next grace
/// period takes for empty, however loaded the machine is.
fn outlast(world: &World, periods: u64) {
    let block = world.subject.domain.block();
    let (start, before) = (Instant::now(), block.periods());
    while block.periods().wrapping_sub(before) < periods && start.elapsed() < OUTLAST {
        std::thread::yield_now();
    }
}

/// Enters and leaves many times by a rank that has gone out of use meanwhile.
///
/// The grace period now waits for that rank. If it sums locks before unlocks, a visit between the two
/// cancels a reader that stays.
fn visit(world: &World, rng: &mut Rng) {
    let subject = &world.subject;
    let kind = subject.kinds[rng.below(subject.kinds.len() as u64) as usize];
    if !kind.has_gap() {
        return;
    }
    let block = subject.domain.block();
    let (start, rank) = (Instant::now(), block.rank());
    while block.rank() == rank && start.elapsed() < OUTLAST {
        std::thread::yield_now();
    }
    for _ in 0..VISITS {
        let section = subject.enter_at(kind, rank);
        world.leave(section);
    }
}

/// How long to dawdle between fetching the rank and counting: mostly not, sometimes past a grace period.
fn straggle_us(rng: &mut Rng) -> u64 {
    match rng.below(32) {
        0..4 => rng.below(10),
        4..7 => rng.below(100),
        7 => rng.below(500),
        _ => 0,
    }
}

/// Stays inside: mostly for no time, now and then for long.
fn delay(world: &World, rng: &mut Rng) {
    let readers = world.options.nreaders as u64;
    if rng.one_in(readers * 600_000) {
        std::thread::sleep(Duration::from_millis(300));
    } else if rng.one_in(readers * 20) {
        spin_us(200);
    } else if rng.one_in(readers * 2_000) {
        std::thread::sleep(Duration::from_millis(10));
    } else if rng.one_in(4) {
        spin_us(rng.below(20));
    } else if rng.one_in(64) {
        std::thread::yield_now();
    }
}

/// Reads another's loop counter and has a third compare it after a grace period.
fn mailbox(world: &World, rng: &mut Rng, me: usize) {
    let counters = &world.counters;
    let mine = &world.mail[me];
    let chased = mine.chased.load(Acquire);
    if chased != 0 && chased != CLAIMED {
        let cookie = rcu::Cookie::from_raw(mine.cookie.load(Relaxed));
        if world.subject.domain.poll_state(cookie) {
            let (old, now) = (mine.value.load(Relaxed), world.loops[chased - 1].load(Relaxed));
            counters.mailbox_tries.fetch_add(1, Relaxed);
            if now < old {
                world
                    .error(&counters.mailbox_fails, || format!("loop counter went back from {old} to {now}"));
            }
            mine.chased.store(0, Release);
        }
    }
    if !rng.one_in(64) {
        return;
    }
    let n = world.mail.len() as u64;
    let (chased, assigned) = (rng.below(n) as usize, rng.below(n) as usize);
    let mail = &world.mail[assigned];
    if mail.chased.compare_exchange(0, CLAIMED, Acquire, Relaxed).is_ok() {
        mail.value.store(world.loops[chased].load(Relaxed), Relaxed);
        mail.cookie.store(world.subject.domain.get_state().get(), Relaxed);
        mail.chased.store(chased + 1, Release);
    }
}

/// Moves the thread to a random CPU.
pub fn migrate(world: &World, rng: &mut Rng) {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    let mask: u64 = if rng.one_in(2) { u64::MAX } else { 1 << (rng.below(cpus) % 64) };
    let args = [0, 8, (&raw const mask) as usize, 0, 0, 0];
    // SAFETY: the kernel reads the mask, which outlives the call.
    let _ = unsafe { sys::syscall(sys::nr::SCHED_SETAFFINITY, args) };
    world.counters.migrates.fetch_add(1, Relaxed);
}
