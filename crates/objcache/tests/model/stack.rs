//! Batches on stacks: T1, T2, Y1; mutants OBJ-1, OBJ-2, OBJ-3, no-tag.

use crate::world::{World, model, spawn};
use objcache::{Batch, TRAY};

/// Waits for a batch, with no other order between the threads than that of the stack.
fn sure(world: &World) -> Batch {
    loop {
        if let Some(batch) = world.pop(&world.depot) {
            return batch;
        }
        loom::thread::yield_now();
    }
}

#[test]
fn who_pops_a_linked_batch_sees_its_links_and_what_its_last_owner_did() {
    model(3, || {
        let world = World::new();
        let giver = spawn(&world, |world| {
            [1, 2].iter().for_each(|i| _ = world.own(*i, 7));
            world.push(&world.depot, world.linked(&[1, 2]));
        });
        let batch = sure(&world);
        assert_eq!((batch.len(), world.objects(batch)), (2, vec![2, 1]));
        assert_eq!([1, 2].map(|i| world.own(i, 8)), [7, 7]);
        giver.join().unwrap();
    });
}

#[test]
fn who_pops_a_tray_sees_what_is_on_it_and_what_its_last_owner_did() {
    model(3, || {
        let world = World::new();
        let giver = spawn(&world, |world| {
            [1, 2].iter().for_each(|i| _ = world.own(*i, 7));
            world.tray(1).load(&[1, 2]);
            world.push(&world.depot, Batch::new(1 | TRAY, 2));
        });
        let batch = sure(&world);
        assert_eq!((batch.len(), world.objects(batch)), (2, vec![2, 1]));
        assert_eq!([1, 2].map(|i| world.own(i, 8)), [7, 7]);
        giver.join().unwrap();
    });
}

#[test]
fn who_takes_all_sees_every_batch_whole() {
    model(3, || {
        let world = World::new();
        let giver = spawn(&world, |world| {
            world.own(1, 7);
            world.push(&world.retired, world.linked(&[1]));
            world.own(2, 7);
            world.tray(1).load(&[2]);
            world.push(&world.retired, Batch::new(1 | TRAY, 1));
        });
        let mut taken = Vec::new();
        take_all(&world, &mut taken);
        giver.join().unwrap();
        take_all(&world, &mut taken);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

fn take_all(world: &World, taken: &mut Vec<u32>) {
    // SAFETY: the stack holds batches of this world.
    unsafe {
        world.retired.take_all(world.items(), |batch| taken.extend(world.objects(batch)));
    }
    for i in taken.iter() {
        assert!([7, 8].contains(&world.own(*i, 8)), "object {i} as before it was given");
    }
}

#[test]
fn a_pop_that_was_overtaken_does_not_bring_back_what_is_taken() {
    model(3, || {
        let world = World::new();
        world.push(&world.depot, world.linked(&[2]));
        world.push(&world.depot, world.linked(&[1]));
        let other = spawn(&world, |world| {
            let first = world.pop(&world.depot);
            let second = world.pop(&world.depot);
            let Some(back) = first else { return second };
            // The top is what it was, and what lay below it is taken.
            world.push(&world.depot, back);
            second
        });
        let mine = world.pop(&world.depot);
        let theirs = other.join().unwrap();
        let rest = std::iter::from_fn(|| world.pop(&world.depot));
        let mut heads: Vec<_> = mine.into_iter().chain(theirs).chain(rest).map(Batch::head).collect();
        heads.sort_unstable();
        assert_eq!(heads, [1, 2]);
    });
}
