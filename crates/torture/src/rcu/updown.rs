//! Sections that one thread enters and another leaves.
//!
//! For:     updown readers.
//! State:   a channel from the one to the other.
//! Context: control.
//! Keeps:   U1 at most `n_up_down` sections are under way.
//! Checked: by the runs; downs and ups are equal at the end.
//! Source:  `rcu_torture_updown` of the kernel.

use super::subject::{Kind, Section};
use super::world::{NONE, PIPE, RUN, World};
use crate::rng::Rng;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A section under way, with what it protects.
struct Held {
    section: Section,
    element: usize,
    until: Instant,
}

pub fn run(world: &'static World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    while let Some(_working) = world.work(RUN) {
        let (send, receive) = mpsc::sync_channel::<Held>(world.options.n_up_down.max(1));
        std::thread::scope(|s| {
            s.spawn(move || receive.into_iter().for_each(|held| up(world, held)));
            while world.is_on(RUN) {
                let section = world.subject.enter(Kind::UpDown, || {});
                world.counters.downs.fetch_add(1, Relaxed);
                let element = world.current.load(Acquire);
                let until = Instant::now() + Duration::from_micros(rng.below(2000));
                if send.send(Held { section, element, until }).is_err() {
                    world.warn("the thread that ends sections is gone");
                }
                std::thread::sleep(Duration::from_micros(rng.below(500)));
            }
            drop(send);
        });
    }
}

fn up(world: &World, held: Held) {
    std::thread::sleep(held.until.saturating_duration_since(Instant::now()));
    if held.element != NONE {
        let pipe = world.elements[held.element].pipe_count.load(Relaxed) as usize;
        world.counters.pipe[pipe.min(PIPE)].fetch_add(1, Relaxed);
    }
    world.leave(held.section);
    world.counters.ups.fetch_add(1, Relaxed);
}
