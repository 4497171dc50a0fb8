//! Threads that make grace periods for no element.
//!
//! For:     keeping the updaters' side busy and shared.
//! State:   the thread's random numbers.
//! Context: control.
//! Keeps:   nothing.
//! Checked: by the runs.
//! Source:  `rcu_torture_fakewriter` of the kernel.

use super::world::{RUN, World};
use crate::rng::Rng;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub fn run(world: &'static World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let domain = world.subject.domain;
    while let Some(_working) = world.work(RUN) {
        while world.is_on(RUN) {
            std::thread::sleep(Duration::from_micros(rng.below(400)));
            match rng.below(6) {
                0 => domain.synchronize(),
                1 => domain.synchronize_expedited(),
                2 => {
                    let cookie = domain.get_state();
                    std::thread::yield_now();
                    domain.cond_synchronize(cookie);
                }
                3 => {
                    let cookie = domain.start_poll();
                    std::thread::sleep(Duration::from_micros(rng.below(300)));
                    domain.cond_synchronize(cookie);
                }
                4 => domain.call(|| {}),
                _ => domain.expedite_current(),
            }
            world.counters.fake_writes.fetch_add(1, Relaxed);
        }
    }
}
