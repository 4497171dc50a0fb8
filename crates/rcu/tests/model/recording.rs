//! A domain's first reader against a grace period that does not know its flavour yet: R2, G3; mutants
//! RCU-6, unrecorded.
//!
//! Readers have no fence at all here, as in the hardware. Executions in which the grace period used a
//! process-wide fence are not judged, because loom cannot make the other thread fence; in all
//! others it must have been right to believe that nobody needed one.

use crate::world::{Driver, World, model, spawn};
use rcu::{FlavourSet, without_light_fences};

fn first_reader(expedited: bool) {
    without_light_fences(|| {
        model(3, move || {
            let world = World::declared(1, FlavourSet(0));
            let reader = spawn(&world, World::read);
            world.item.unlink();
            let mut driver = Driver::default();
            // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
            unsafe { world.block.run_gp(&mut driver, expedited) };
            if driver.heavy == 0 {
                world.item.free();
            }
            reader.join().unwrap();
        });
    });
}

#[test]
fn grace_period_without_process_wide_fence_has_missed_no_fenceless_reader() {
    first_reader(false);
}

#[test]
fn expedited_grace_period_without_process_wide_fence_has_missed_none_either() {
    first_reader(true);
}

#[test]
fn later_grace_period_knows_the_flavour_of_a_reader_that_has_left() {
    model(3, || {
        let world = World::declared(1, FlavourSet(0));
        let reader = spawn(&world, World::read);
        reader.join().unwrap();
        let mut driver = Driver::default();
        // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
        unsafe { world.block.run_gp(&mut driver, false) };
        assert_eq!(driver.heavy, 2);
    });
}
