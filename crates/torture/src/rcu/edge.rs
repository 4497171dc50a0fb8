//! The edge test: a reader whose count is still in the store buffer.
//!
//! For:     grace periods that lack the process-wide fence (lite-without-membarrier, unrecorded-flavour).
//! State:   a ring of items; one is published, the others are poisoned or waiting.
//! Context: control. One reader and one writer, alone on two CPUs if there are as many.
//! Keeps:   D1 an item is poisoned only after a grace period since it was unpublished.
//! Checked: `tests/broken.rs`.
//!
//! A processor keeps stores in a buffer while later loads go ahead. A reader that has many stores under
//! way to lines that are far away enters: its count waits behind them, and its load of the pointer does
//! not. A grace period that fences only its own CPU does not see the count and ends; the reader then
//! looks at its item for some microseconds and finds the poison. With the fence on every CPU it cannot.

use super::subject::Kind;
use super::world::{EDGE, World};
use crate::rng::Rng;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

const ITEMS: usize = 1024;
const POISON: u64 = 0x6b6b_6b6b_6b6b_6b6b;

/// Words that the reader scatters stores over: more than any cache, one line apart.
const FAR_LINES: usize = 1 << 21;

/// Stores under way when the reader enters; about the size of a store buffer.
const STORES: u64 = 56;

/// Looks at the item; together longer than the broken grace period.
const LOOKS: u32 = 400;

#[repr(align(64))]
struct Line(AtomicU64);

struct Ring {
    items: Vec<Line>,
    published: Line,
    index: AtomicUsize,
}

fn ring() -> &'static Ring {
    static RING: OnceLock<Ring> = OnceLock::new();
    RING.get_or_init(|| Ring {
        items: (0..ITEMS).map(|i| Line(AtomicU64::new(i as u64))).collect(),
        published: Line(AtomicU64::new(0)),
        index: AtomicUsize::new(0),
    })
}

pub fn reader(world: &'static World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let ring = ring();
    let kind = world.subject.kinds[0];
    let mut far: Vec<Line> = Vec::new();
    while let Some(_working) = world.work(EDGE) {
        if far.is_empty() {
            far = (0..FAR_LINES).map(|_| Line(AtomicU64::new(0))).collect();
        }
        while world.is_on(EDGE) {
            for _ in 0..64 {
                read_once(world, ring, kind, &far, &mut rng);
            }
        }
    }
}

fn read_once(world: &World, ring: &Ring, kind: Kind, far: &[Line], rng: &mut Rng) {
    // The numbers first: their arithmetic must not separate the stores from the count.
    let mut at = rng.next();
    for _ in 0..STORES {
        at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        far[(at >> 40) as usize % FAR_LINES].0.store(at, Relaxed);
    }
    let section = world.subject.enter(kind, || {});
    let published = ring.published.0.load(Acquire) as usize % ITEMS;
    let item = &ring.items[published].0;
    let mut poisoned = false;
    for _ in 0..LOOKS {
        poisoned |= item.load(Relaxed) == POISON;
    }
    world.leave(section);
    world.counters.edge_reads.fetch_add(1, Relaxed);
    if poisoned {
        world.error(&world.counters.edge_errors, || {
            format!(
                "item {published} was poisoned under a {kind:?} reader: a grace period did not see its count"
            )
        });
    }
}

pub fn writer(world: &'static World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let ring = ring();
    let domain = world.subject.domain;
    while let Some(_working) = world.work(EDGE) {
        while world.is_on(EDGE) {
            let old = ring.index.load(Relaxed);
            let new = (old + 1) % ITEMS;
            ring.items[new].0.store(new as u64, Relaxed);
            ring.published.0.store(new as u64, Release);
            if rng.one_in(4) {
                domain.synchronize()
            } else {
                domain.synchronize_expedited()
            }
            ring.items[old].0.store(POISON, Relaxed);
            ring.index.store(new, Relaxed);
            world.counters.edge_periods.fetch_add(1, Relaxed);
            // So that the reader is met at all of its steps.
            for _ in 0..rng.below(200) {
                std::hint::spin_loop();
            }
        }
    }
}
