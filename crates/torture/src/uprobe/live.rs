//! `torture uprobe` with a real process: probes of the session or of the kernel, placed by threads of ours.
//!
//! For:     `uprobe_main`: uprobe-stress, with dlopen, signals and exec.
//! State:   the target, the probes that stay, the threads that attach and detach.
//! Context: control.
//! Keeps:   V1 the last line begins with PASS or FAIL, agrees with the exit status, and comes also if a thread of ours
//!             or the target hangs.
//!          V2 a run that passes has seen each role do its work.
//! Checked: `tests/uprobe_live.rs`.
//! Source:  uprobe-stress for roles, limits and report, kernel-facts 1.17.

mod attach;
mod by_kernel;
mod by_session;
mod library;
mod link;
mod process;
mod world;

use super::IDLE_PATIENCE;
use super::options::{Backend, LOST_RUN, Options};
use super::stressed::Orders;
use super::stressed::shared::{LEN, ROWS, STAY, Shared};
use crate::target::Target;
use library::Library;
use link::{Link, Placer};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use world::World;

/// The target makes no call for so long: it hangs.
const STILL: Duration = Duration::from_secs(180);
/// The attach threads have so long to take their last probes out.
const LAST: Duration = Duration::from_secs(180);

/// Runs the torture; the exit status: 0 passed, 1 failed, 2 could not begin.
pub fn run(options: Options) -> i32 {
    println!("uprobe-torture: start: {options}");
    let backend = options.backend;
    match begin(options) {
        Ok((world, mut target, stay)) => {
            let verdict = carry_out(&world, &mut target, stay);
            world.end(verdict)
        }
        Err(why) => {
            eprintln!("nanoprobe: torture uprobe: the {backend} backend cannot begin: {why}");
            2
        }
    }
}

type Begun = (Arc<World>, Target, Box<dyn Link>);

fn begin(options: Options) -> Result<Begun, String> {
    let memory = sys::memfd_inheritable(c"uprobe-torture", LEN).map_err(|e| e.to_string())?;
    let shared = Shared::open(memory).ok_or("no memory to share")?;
    let library = match options.dlopen {
        0 => None,
        _ => Library::build().map_err(|why| println!("uprobe-torture: no dlopen role: {why}")).ok(),
    };
    let orders = Orders {
        memory,
        seed: options.seed,
        calls: options.calls.clamp(1, ROWS),
        mmap: options.mmap,
        fork: options.fork,
        dlopen: if library.is_some() { options.dlopen } else { 0 },
        signals: options.signals,
        exec: options.exec,
        forget: if options.is_broken("dropped-count") { 5000 } else { 0 },
        library: library.as_ref().map(|l| l.path.display().to_string()).unwrap_or_default(),
    };
    let target = Target::start(&orders.words())?;
    let placer: Box<dyn Placer> = match options.backend {
        Backend::Kernel => Box::new(by_kernel::Kernel::new(target.pid(), library.as_ref())?),
        _ => {
            let is_losing = options.is_broken(LOST_RUN);
            Box::new(by_session::Sessions::new(target.pid(), library.as_ref(), is_losing)?)
        }
    };
    let world = Arc::new(World::new(options, orders, shared, placer, library, target.pid())?);
    let stay = world.placer.stay(STAY)?;
    Ok((world, target, stay))
}

fn carry_out(world: &Arc<World>, target: &mut Target, stay: Box<dyn Link>) -> Result<(), String> {
    target.say("go")?;
    let threads: Vec<_> = (0..world.options.attach as u64)
        .map(|n| {
            let world = world.clone();
            thread::spawn(move || attach::attach(&world, n + 1))
        })
        .collect();
    let watched = watch(world, target, &*stay);
    world.stop.store(true, SeqCst);
    let end = Instant::now() + LAST;
    while threads.iter().any(|t| !t.is_finished()) {
        if Instant::now() > end {
            return Err(format!("hang: a thread cannot take its probes out within {LAST:?}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    if threads.into_iter().any(|t| t.join().is_err()) {
        return Err("a thread of the torture panicked".into());
    }
    watched?;
    if let Err(why) = target.say("stop").and_then(|()| target.hear("stopped")) {
        return Err(crash(target).unwrap_or(why));
    }
    last_look(world, stay)?;
    target.finish()
}

/// How a target ended that does not answer: its pipes are closed before its end can be waited for.
fn crash(target: &mut Target) -> Option<String> {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if let Some(status) = target.ended() {
            return Some(format!("crash: the target ended with {status}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Prints a line every 5 s until the time is over, something is wrong, or nothing moves.
fn watch(world: &World, target: &mut Target, stay: &dyn Link) -> Result<(), String> {
    let end = Instant::now() + world.options.run_for;
    let mut next = Instant::now() + Duration::from_secs(5);
    let mut moved = (world.shared.calls(), Instant::now());
    // What stays is counted at the end.
    let is_idle = || world.idle().iter().any(|role| *role != "hits") && Instant::now() < end + IDLE_PATIENCE;
    while (Instant::now() < end || is_idle()) && world.errors() == 0 {
        thread::sleep(Duration::from_millis(20));
        if let Some(status) = target.ended() {
            return Err(format!("crash: the target ended with {status}"));
        }
        let calls = world.shared.calls();
        if calls != moved.0 {
            moved = (calls, Instant::now());
        } else if moved.1.elapsed() > STILL {
            return Err(format!("hang: the target has made no call for {STILL:?}: {}", target.states()));
        }
        if Instant::now() >= next {
            next += Duration::from_secs(5);
            println!("uprobe-torture: {}", world.line(stay.counts().iter().map(|c| c.hits).sum()));
        }
    }
    Ok(())
}

/// Hits and calls of what stayed, the text, and what is left behind; no thread calls any more.
fn last_look(world: &World, mut stay: Box<dyn Link>) -> Result<(), String> {
    let compare = |counts: &[link::Count]| {
        for count in counts {
            let calls = world.shared.calls_of(count.function);
            let forked = world.shared.forked.calls[count.function].load(Relaxed);
            let lost = calls.abs_diff(count.hits);
            let lost = lost + count.children.map_or(0, |hits| hits.abs_diff(forked));
            if lost > 0 {
                let children = count.children;
                world.complain(&format!(
                    "function {}: {calls} calls, {} hits; in forked children {forked} calls, {children:?} hits",
                    count.function, count.hits
                ));
            }
            world.counters.lost.fetch_add(lost, Relaxed);
        }
        counts.iter().map(|c| c.hits).sum::<u64>()
    };
    let hits = compare(&stay.counts());
    let sites = stay.counts().len();
    if sites != STAY {
        return Err(format!("{sites} probes of {STAY} stayed"));
    }
    let detached = stay.detach();
    world.counters.stay.store(hits, Relaxed);
    if let Err(why) = detached.and_then(|()| process::check_text(world.pid)) {
        world.complain(&why);
        world.counters.lost_detach.fetch_add(1, Relaxed);
    }
    let after = stay.counts().iter().map(|c| c.hits).sum::<u64>();
    world.counters.late.fetch_add(after.abs_diff(hits), Relaxed);
    let footprint = process::Footprint::of(world.pid)?;
    if footprint != world.before {
        world.complain(&format!("{:?} became {footprint:?}", world.before));
        world.counters.left.fetch_add(1, Relaxed);
    }
    Ok(())
}
