//! `torture uprobe`: uprobe-stress on sessions of nanoprobe, on the kernel's uprobes, and on the registry of `probe`.
//!
//! For:     finding a lost hit, a handler that runs too late, a lost detach, a uprobe freed too early.
//! State:   with the registry, one world per run: a registry, 100 functions, the counters. With the others, `live`.
//! Context: control.
//! Keeps:   T1 a run that passes lost no hit and has seen each role do its work.
//!          T2 every broken variant fails (`tests/uprobe.rs`, `tests/uprobe_live.rs`).
//! Checked: `tests/uprobe.rs`, `tests/uprobe_live.rs`.
//! Source:  uprobe-stress (libbpf-bootstrap) for roles, limits and report. With the registry no program is traced: a
//!          call is a hit of the registry, exec is the end of a space.

mod live;
mod options;
mod roles;
mod stressed;
mod world;

pub use stressed::{CHILD, ROLE, child_main, target_main};

use options::{Backend, Options};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use world::World;

/// Runs the torture; the exit status: 0 passed, 1 failed, 2 bad arguments.
pub fn uprobe_main(args: &[String]) -> i32 {
    match options::parse(args) {
        Ok(Some(options)) if options.backend == Backend::Registry => run(options),
        Ok(Some(options)) => live::run(options),
        Ok(None) => 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture uprobe --help");
            2
        }
    }
}

/// On a busy machine a run goes on for so long until each role has done something.
const IDLE_PATIENCE: Duration = Duration::from_secs(180);

/// What a thread of the test does; the number is its stream of random numbers.
type Role = fn(&World, u64);

fn run(options: Options) -> i32 {
    println!("uprobe-torture: start: {options}");
    let world = match World::new(options) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("nanoprobe: {error}");
            return 2;
        }
    };
    let o = &world.options;
    let roles: [(usize, Role); 4] =
        [(o.calls, roles::call), (o.attach, roles::attach), (o.mmap, roles::mmap), (o.fork, roles::fork)];
    thread::scope(|s| {
        let mut stream = 0;
        for (n, role) in roles {
            for _ in 0..n {
                stream += 1;
                let world = &world;
                s.spawn(move || role(world, stream));
            }
        }
        let end = Instant::now() + o.run_for;
        let mut next = Instant::now() + Duration::from_secs(5);
        let is_idle = || !world.idle().is_empty() && Instant::now() < end + IDLE_PATIENCE;
        while (Instant::now() < end || is_idle()) && world.errors() == 0 {
            thread::sleep(Duration::from_millis(20));
            if Instant::now() >= next {
                next += Duration::from_secs(5);
                println!("uprobe-torture: {}", world.line());
            }
        }
        world.stop.store(true, Relaxed);
    });
    world.end()
}
