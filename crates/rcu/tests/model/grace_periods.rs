//! The two-rank grace period: G1, S1; mutants RCU-1, RCU-2, RCU-3, RCU-9, one-rank, sum-order.
//!
//! Each model runs plain and expedited: the latter has one process-wide fence for both scans.

use crate::world::{Driver, World, model, spawn};
use rcu::Lite;

fn unlinked_item(expedited: bool) {
    model(4, move || {
        let world = World::new(2);
        let reader = spawn(&world, World::read);
        world.replace(expedited);
        reader.join().unwrap();
    });
}

#[test]
fn unlinked_item_outlives_reader() {
    unlinked_item(false);
}

#[test]
fn unlinked_item_outlives_reader_when_one_fence_serves_both_scans() {
    unlinked_item(true);
}

fn straggler(expedited: bool) {
    model(3, move || {
        let world = World::new(1);
        // The reader fetches its rank now and counts itself at any time later.
        let rank = world.block.rank();
        let reader = spawn(&world, move |world| world.read_at(rank));
        // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
        unsafe { world.block.run_gp(&mut Driver::default(), expedited) };
        world.replace(expedited);
        reader.join().unwrap();
    });
}

#[test]
fn straggler_of_an_earlier_rank_is_waited_for() {
    straggler(false);
}

#[test]
fn straggler_is_waited_for_when_one_fence_serves_both_scans() {
    straggler(true);
}

fn visitor(expedited: bool) {
    model(3, move || {
        let world = World::new(1);
        let rank = world.block.rank();
        world.block.lock_at::<Lite>(rank).unwrap();
        let visitor = spawn(&world, move |world| world.read_at(rank));
        let writer = spawn(&world, move |world| world.replace(expedited));
        world.item.look();
        // SAFETY: entered above, and left once.
        unsafe { world.block.unlock::<Lite>(rank) };
        visitor.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn reader_that_comes_and_goes_does_not_cancel_one_that_stays() {
    visitor(false);
}

#[test]
fn reader_that_comes_and_goes_does_not_cancel_one_under_one_fence() {
    visitor(true);
}

#[test]
fn cookie_taken_beside_a_running_grace_period_waits_for_the_next() {
    model(3, || {
        let world = World::new(1);
        let driver = spawn(&world, |world| {
            // SAFETY: the other turn of this block comes after this thread has ended.
            unsafe { world.block.run_gp(&mut Driver::default(), false) };
        });
        let reader = spawn(&world, World::read);
        world.item.unlink();
        let cookie = world.block.snap();
        if world.block.poll(cookie) {
            world.item.free();
        }
        driver.join().unwrap();
        if !world.block.poll(cookie) {
            // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
            unsafe { world.block.run_gp(&mut Driver::default(), false) };
        }
        if world.block.poll(cookie) {
            world.item.free();
        }
        reader.join().unwrap();
    });
}
