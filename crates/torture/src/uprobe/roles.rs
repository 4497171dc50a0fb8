//! What the threads of `torture uprobe` do.
//!
//! For:     `uprobe_main`.
//! State:   each thread's own.
//! Context: control.
//! Keeps:   O1 a thread ends soon after the world's stop.
//! Checked: `tests/uprobe.rs`.
//! Source:  uprobe-stress for the limits.

use super::world::{CODE, FILE, FUNCTIONS, ROOT, STAY, Watch, World};
use crate::rng::Rng;
use probe::fake::FakeSpace;
use probe::{Hit, Registered, Regs, ReturnStack, SpaceId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Depth of recursion: more than return instances nest.
const DEPTH: u64 = 72;

fn count(n: &AtomicU64) {
    n.fetch_add(1, Relaxed);
}

/// One call that is known by its place, as by a trap.
fn call_by_place(world: &World, space: SpaceId, function: u64) {
    let hit = world.registry.hit(space, FILE, function * 16, &mut Regs::default());
    count(&world.counters.calls);
    if function < STAY {
        // What stays is never unknown.
        count(&world.calls[function as usize]);
        if hit != Hit::Handled {
            count(&world.counters.lost);
        }
    }
}

/// Calls functions at random, recursing; every entry returns, or is left by a longjmp.
pub fn call(world: &World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let mut stack = world.registry.return_stack();
    while !world.is_over() {
        call_by_place(world, ROOT, rng.below(FUNCTIONS));
        let depth = rng.below(DEPTH) + 1;
        (0..depth).for_each(|_| enter(world, &mut stack, rng.below(FUNCTIONS)));
        if rng.one_in(8) {
            stack.unwind_to(rng.below(depth) as usize);
        }
        while stack.leave(&mut Regs::default()) {}
    }
    if stack.entries != stack.returns + stack.skipped + stack.unwound {
        count(&world.counters.unbalanced);
    }
}

/// Enters a function as a site does; the site's own reference goes before the return.
fn enter(world: &World, stack: &mut ReturnStack, function: u64) {
    if let Some(site) = world.registry.find(FILE, function * 16) {
        let (hit, _) = stack.enter(&site, &mut Regs::default());
        if function < STAY && hit == Hit::Handled {
            count(&world.calls[function as usize]);
        }
    } else if function < STAY {
        count(&world.counters.lost);
    }
    count(&world.counters.calls);
}

/// One probe of a link.
struct Probe {
    registered: Registered,
    watch: Arc<Watch>,
    function: u64,
}

/// Registers up to 5 links of 10 probes, holds them for a while, and unregisters each link as a batch.
pub fn attach(world: &World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    while !world.is_over() {
        let links: Vec<_> = (0..rng.below(5) + 1).map(|_| link(world, &mut rng)).collect();
        std::thread::sleep(Duration::from_micros(rng.below(25_000)));
        for link in links {
            if rng.one_in(4) {
                link.iter().for_each(|probe| apply(world, probe, &mut rng));
            }
            link.iter().for_each(|probe| look(world, probe));
            unlink(world, link);
        }
    }
}

fn link(world: &World, rng: &mut Rng) -> Vec<Probe> {
    count(&world.counters.links);
    (0..10)
        .filter_map(|_| {
            // Few functions, so that dying uprobes meet registrations.
            let function = rng.below(FUNCTIONS);
            let (entry, everywhere) = (rng.one_in(2), rng.one_in(2));
            let watch = world.watch(entry || rng.one_in(2), !entry, everywhere);
            let result = world.registry.register(&world.file, function * 16, None, watch.clone());
            count(&world.counters.probes);
            match result {
                Ok(registered) => Some(Probe { registered, watch, function }),
                Err(_) => {
                    count(&world.counters.lost);
                    None
                }
            }
        })
        .collect()
}

/// A call of our own must reach our consumer.
fn look(world: &World, probe: &Probe) {
    let before = probe.watch.seen.load(Relaxed);
    call_by_place(world, ROOT, probe.function);
    if probe.watch.has_handler && probe.watch.seen.load(Relaxed) == before {
        count(&world.counters.lost);
    }
}

fn apply(world: &World, probe: &Probe, rng: &mut Rng) {
    probe.watch.everywhere.store(rng.one_in(2), Relaxed);
    let (at, add) = (probe.registered.probe(), rng.one_in(2));
    match world.registry.apply(&at, &probe.registered, add) {
        Ok(()) => count(&world.counters.applied),
        Err(_) => count(&world.counters.lost),
    }
}

/// Unregisters a link and waits once; from then on no handler may run.
fn unlink(world: &World, link: Vec<Probe>) {
    let mut watches = Vec::new();
    for probe in link {
        if world.registry.unregister_nosync(probe.registered).breakpoints > 0 {
            count(&world.counters.lost);
        }
        watches.push(probe.watch);
    }
    world.registry.unregister_sync();
    watches.iter().for_each(|watch| watch.dead.store(true, SeqCst));
}

/// Maps the file again and again, up to 10 times at once.
pub fn mmap(world: &World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let mut bases = Vec::new();
    let mut next = stream << 40;
    while !world.is_over() || !bases.is_empty() {
        if bases.len() == 10 || world.is_over() || (!bases.is_empty() && rng.one_in(2)) {
            let base = bases.swap_remove(rng.below(bases.len() as u64) as usize);
            world.registry.change_mappings(ROOT, || world.root.unmap(base));
        } else {
            next += CODE * 2;
            world.registry.change_mappings(ROOT, || world.root.map(FILE, 0..CODE, next));
            world.registry.mapped(ROOT, FILE, 0..CODE);
            bases.push(next);
            count(&world.counters.maps);
        }
        std::thread::sleep(Duration::from_micros(rng.below(1000)));
    }
}

/// Forks the root, up to 10 children at once, which run, exec and end.
pub fn fork(world: &World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let mut children: Vec<Arc<FakeSpace>> = Vec::new();
    let mut next = stream << 32;
    while !world.is_over() {
        next += 1;
        world.registry.fork(|| {
            let child = world.root.fork(next);
            children.push(child.clone());
            child
        });
        count(&world.counters.forks);
        for _ in 0..rng.below(50) {
            call_by_place(world, next, rng.below(FUNCTIONS));
        }
        if children.len() == 10 || rng.one_in(4) {
            let child = children.swap_remove(rng.below(children.len() as u64) as usize);
            // exec: the old space ends, and the thread goes on in a new one without mappings.
            world.registry.remove_space(probe::Space::id(&*child));
        }
        std::thread::sleep(Duration::from_micros(rng.below(20_000)));
    }
    children.iter().for_each(|child| world.registry.remove_space(probe::Space::id(&**child)));
}
