//! The writer.
//!
//! For:     replacing the current element, and retiring the old one in every way there is.
//! State:   elements that wait for grace periods that it sees itself; old cookies.
//! Context: control.
//! Keeps:   W1 an element's count rises only after a whole grace period since it rose before.
//! Checked: `tests/broken.rs`, and the leak check after each pause.
//! Source:  `rcu_torture_writer` of the kernel.

use super::options::Ways;
use super::world::{NONE, RUN, World, spin_us};
use crate::rng::Rng;
use rcu::Cookie;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Duration;

/// How an element is retired.
#[derive(Clone, Copy)]
enum Way {
    Call,
    Sync,
    Expedited,
    Conditional,
    Polled,
}

pub fn run(world: &'static World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let ways = ways(world.options.ways);
    let mut removed: Vec<usize> = Vec::new();
    while let Some(_working) = world.work(RUN) {
        while world.is_on(RUN) {
            // Mostly short, so that a run of seconds sees thousands of grace periods.
            let us = if rng.one_in(16) { 500 + rng.below(1000) } else { rng.below(100) };
            std::thread::sleep(Duration::from_micros(us));
            let Some(old) = replace(world, &mut rng) else { continue };
            let way = ways[rng.below(ways.len() as u64) as usize];
            retire(world, &mut rng, way, old, &mut removed);
            world.counters.version.fetch_add(1, Relaxed);
        }
        // Before the pause: what this thread holds must be free again.
        while !removed.is_empty() {
            world.subject.domain.synchronize();
            removed.retain(|&element| !world.age(element));
        }
    }
}

fn ways(chosen: Ways) -> Vec<Way> {
    let all = [
        (chosen.normal, Way::Call),
        (chosen.sync, Way::Sync),
        (chosen.exp, Way::Expedited),
        (chosen.cond, Way::Conditional),
        (chosen.poll, Way::Polled),
    ];
    all.into_iter().filter(|(on, _)| *on).map(|(_, way)| way).collect()
}

/// Publishes a new element; the old one, removed.
fn replace(world: &World, rng: &mut Rng) -> Option<usize> {
    let new = world.take_element()?;
    let e = &world.elements[new];
    e.pipe_count.store(0, Relaxed);
    e.mbtest.store(1, Relaxed);
    spin_us(rng.below(32));
    let old = world.current.swap(new, AcqRel);
    if old == NONE {
        return None;
    }
    world.counters.circulation[1].fetch_add(1, Relaxed);
    world.elements[old].pipe_count.store(1, Relaxed);
    Some(old)
}

fn retire(world: &'static World, rng: &mut Rng, way: Way, old: usize, removed: &mut Vec<usize>) {
    let domain = world.subject.domain;
    if let Way::Call = way {
        return age_by_callbacks(world, old);
    }
    removed.push(old);
    let before = domain.get_state();
    match way {
        Way::Call => {}
        Way::Sync => domain.synchronize(),
        Way::Expedited => domain.synchronize_expedited(),
        Way::Conditional => {
            let cookie = domain.get_state();
            std::thread::sleep(Duration::from_micros(rng.below(128)));
            domain.cond_synchronize(cookie);
        }
        Way::Polled => poll(world, rng),
    }
    world.check_cookie(domain.poll_state(before), "3: a cookie from before a wait is not done after it");
    removed.retain(|&element| !world.age(element));
}

/// A callback per grace period, until the element is free.
fn age_by_callbacks(world: &'static World, element: usize) {
    world.subject.domain.call(move || {
        if !world.age(element) {
            age_by_callbacks(world, element);
        }
    });
}

fn poll(world: &World, rng: &mut Rng) {
    let domain = world.subject.domain;
    let cookie = if rng.one_in(2) { domain.start_poll() } else { domain.start_poll_expedited() };
    if rng.one_in(256) {
        domain.expedite_current();
    }
    // At most two cookies can be live; older ones must be done.
    let mut old: [Cookie; 2] = [cookie; 2];
    let mut at = 0;
    while !domain.poll_state(cookie) {
        std::thread::sleep(Duration::from_micros(rng.below(100)));
        let now = domain.get_state();
        if old[at] != now {
            at = (at + 1) % 2;
            if !domain.poll_state(old[at]) && old[at] != cookie && old[at] != now {
                world.check_cookie(false, "two old cookies did not suffice");
            }
            old[at] = now;
        }
        if world.should_stop_early() {
            return;
        }
    }
    world.check_cookie(domain.poll_state(cookie), "4: a done cookie is done no more");
}
