//! Readers on threads that end at once.
//!
//! For:     counts and records that outlive their threads.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: by the runs.
//! Source:  `rcu_torture_read_exit` of the kernel.

use super::reader::one_read;
use super::world::{RUN, World};
use crate::rng::Rng;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

pub fn run(world: &'static World, stream: u64) {
    let mut next = Instant::now();
    let mut burst = 0;
    while let Some(working) = world.work(RUN) {
        if Instant::now() < next {
            drop(working);
            std::thread::sleep(std::time::Duration::from_millis(50));
            continue;
        }
        next = Instant::now() + world.options.read_exit_delay;
        for i in 0..world.options.read_exit_burst as u64 {
            burst += 1;
            let mut rng = Rng::new(world.options.seed, (stream << 32) + burst);
            let reader = std::thread::Builder::new().name(format!("exit{i}"));
            if let Ok(thread) = reader.spawn(move || one_read(world, &mut rng)) {
                let _ = thread.join();
                world.counters.read_exits.fetch_add(1, Relaxed);
            }
        }
    }
}
