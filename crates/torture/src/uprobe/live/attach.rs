//! Threads that attach and detach.
//!
//! For:     `live::run`.
//! State:   each thread's own: its links.
//! Context: control.
//! Keeps:   A1 a link that was in between two looks at the calls has all hits that are certain and none that is
//!             impossible.
//!          A2 each detach is verified.
//! Checked: `tests/uprobe_live.rs`, with a count dropped, a byte forgotten and a link kept.
//! Source:  uprobe-stress for the limits, kernel-facts 1.17.

use super::link::{Count, Kind, Link, NoLink, Probe, Whom, Wish};
use super::world::World;
use crate::rng::Rng;
use crate::uprobe::options::Backend;
use crate::uprobe::stressed::functions::DEPTH;
use crate::uprobe::stressed::shared::{FUNCTIONS, LIBRARY_FUNCTIONS};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Links of a thread, and probes of a link, at most.
const LINKS: u64 = 5;
const PROBES: u64 = 10;

/// A link that is in.
struct Held {
    link: Box<dyn Link>,
    wish: Wish,
    /// Calls before it was attached, and when it was in.
    before: Vec<u64>,
    since: Vec<u64>,
}

/// Attaches up to 5 links of up to 10 probes, holds each for a while, and detaches them in any order.
pub fn attach(world: &World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let mut held: Vec<Held> = Vec::new();
    while !world.is_over() || !held.is_empty() {
        let is_full = held.len() as u64 == LINKS || world.is_over();
        if is_full || !held.is_empty() && rng.one_in(2) {
            let link = held.swap_remove(rng.below(held.len() as u64) as usize);
            detach(world, link, &mut rng);
        } else {
            held.extend(begin(world, &mut rng));
        }
        if !world.is_over() {
            std::thread::sleep(Duration::from_micros(rng.below(25_000)));
        }
    }
}

fn wish(world: &World, rng: &mut Rng) -> Wish {
    let children: Vec<u32> =
        world.shared.children.iter().map(|c| c.load(Relaxed)).filter(|c| *c != 0).collect();
    let child = children.get(rng.below(children.len() as u64) as usize);
    let whom = match rng.below(16) {
        0..3 if world.orders.dlopen > 0 => Whom::Library,
        3..5 => child.map_or(Whom::Target, |pid| Whom::Child(*pid as i32)),
        _ => Whom::Target,
    };
    let kind = match rng.below(8) {
        0 => Kind::Calls,
        1..4 => Kind::OtherCount,
        _ => Kind::Count,
    };
    let functions = if whom == Whom::Library { LIBRARY_FUNCTIONS } else { FUNCTIONS };
    let mut probes: Vec<Probe> = (0..rng.below(PROBES) + 1)
        .map(|_| Probe { function: rng.below(functions as u64) as usize, is_return: rng.one_in(2) })
        .collect();
    probes.sort_by_key(|p| p.function);
    probes.dedup_by_key(|p| p.function);
    let everywhere = rng.one_in(2) && world.options.backend == Backend::Kernel;
    Wish { whom, kind, probes, everywhere }
}

fn calls(world: &World, wish: &Wish) -> Vec<u64> {
    let of = |p: &Probe| match wish.whom {
        Whom::Library => world.shared.library[p.function].load(Relaxed),
        _ => world.shared.calls_of(p.function),
    };
    wish.probes.iter().map(of).collect()
}

fn begin(world: &World, rng: &mut Rng) -> Option<Held> {
    let wish = wish(world, rng);
    let c = &world.counters;
    let before = calls(world, &wish);
    if wish.whom == Whom::Target {
        wish.probes.iter().for_each(|p| world.begins(p.function));
    }
    let link = match world.placer.link(&wish) {
        Ok(link) => link,
        Err(why) => {
            match why {
                NoLink::Gone => drop(c.gone.fetch_add(1, Relaxed)),
                NoLink::Busy => drop(c.busy.fetch_add(1, Relaxed)),
                NoLink::Broken(why) => {
                    world.complain(&format!("attach of {wish:?}: {why}"));
                    c.broken.fetch_add(1, Relaxed);
                }
            }
            if wish.whom == Whom::Target {
                wish.probes.iter().for_each(|p| world.ends(p.function));
            }
            return None;
        }
    };
    let since = calls(world, &wish);
    c.links.fetch_add(1, Relaxed);
    c.links_in.fetch_add(1, Relaxed);
    c.probes.fetch_add(wish.probes.len() as u64, Relaxed);
    c.probes_in.fetch_add(wish.probes.len() as u64, Relaxed);
    c.missed.fetch_add(link.missed() as u64, Relaxed);
    match wish.whom {
        Whom::Target => {}
        Whom::Library => drop(c.in_library.fetch_add(1, Relaxed)),
        Whom::Child(_) => drop(c.in_children.fetch_add(1, Relaxed)),
    }
    Some(Held { link, wish, before, since })
}

fn detach(world: &World, mut held: Held, rng: &mut Rng) {
    let c = &world.counters;
    let until = calls(world, &held.wish);
    c.links_in.fetch_sub(1, Relaxed);
    c.probes_in.fetch_sub(held.wish.probes.len() as u64, Relaxed);
    let is_target = held.wish.whom == Whom::Target;
    if is_target && world.acts("kept-link", rng) {
        std::mem::forget(held);
        return;
    }
    if let Err(why) = held.link.detach() {
        world.complain(&format!("detach of {:?}: {why}", held.wish));
        c.lost_detach.fetch_add(1, Relaxed);
    }
    let counts = held.link.counts();
    let after = calls(world, &held.wish);
    if is_target && world.acts("forgotten-byte", rng) {
        world.spoil(held.wish.probes[0].function);
    }
    for (i, probe) in held.wish.probes.iter().enumerate() {
        if is_target {
            world.ends(probe.function);
        }
        let Some(count) = counts.iter().find(|c| c.function == probe.function) else { continue };
        let total = if count.is_return { &c.returns } else { &c.hits };
        total.fetch_add(count.hits, Relaxed);
        // A child's calls are not told apart from those of other children.
        if matches!(held.wish.whom, Whom::Target | Whom::Library) {
            let certain = until[i].saturating_sub(held.since[i]);
            let possible = after[i] - held.before[i];
            check(world, &held.wish, count, certain, possible);
        }
    }
    let still = held.link.counts();
    let late: u64 = counts.iter().zip(&still).map(|(a, b)| a.hits.abs_diff(b.hits)).sum();
    c.late.fetch_add(late, Relaxed);
}

/// Each thread may stand between a call's count and its hit, in its own calls and in its handlers'.
fn check(world: &World, wish: &Wish, count: &Count, certain: u64, possible: u64) {
    let at_once = 3 * (world.orders.calls + world.orders.dlopen) as u64;
    // A call that began before the probe returns to it, and one that began under it may not have returned.
    let open = if count.is_return { at_once * DEPTH } else { at_once };
    // The library is not always there when it is looked at, and the kernel nests 64 returns at most.
    let is_limited = count.is_return && world.options.backend == Backend::Kernel;
    let certain = if wish.whom == Whom::Library || is_limited { 0 } else { certain };
    let possible = if wish.everywhere { u64::MAX } else { possible.saturating_add(open) };
    if count.hits + open < certain || count.hits > possible {
        world.complain(&format!(
            "{count:?} of {wish:?}: at least {certain} and at most {possible}, {open} more or less"
        ));
        world.counters.lost.fetch_add(1, Relaxed);
    }
}
