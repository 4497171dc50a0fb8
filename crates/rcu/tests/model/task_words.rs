//! Tasks-trace by holdouts: Z3, Z5; mutants RCU-17 to RCU-20, no-holdouts.

use crate::world::{Driver, Item, model, spawn};
use loom::sync::Arc;
use rcu::{TaskWord, wait_for_all};

/// One thread's word, and two items: one for each of two grace periods.
struct World {
    word: TaskWord,
    items: [Item; 2],
}

// SAFETY: the items are what the protocol under test protects.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World { word: TaskWord::new(), items: [Item::new(), Item::new()] })
    }

    fn read(&self) {
        self.word.enter();
        self.items.iter().for_each(Item::look);
        assert!(self.word.leave());
    }

    fn replace(&self, item: usize) {
        self.items[item].unlink();
        wait_for_all(|| vec![&self.word], &mut Driver::default(), true, false);
        self.items[item].free();
    }
}

#[test]
fn unlinked_item_outlives_the_section_of_a_thread() {
    model(4, || {
        let world = World::new();
        let reader = spawn(&world, World::read);
        world.replace(0);
        reader.join().unwrap();
    });
}

#[test]
fn unlinked_item_outlives_a_section_with_another_inside() {
    model(3, || {
        let world = World::new();
        let reader = spawn(&world, |world| {
            world.word.enter();
            world.read();
            world.items[0].look();
            assert!(world.word.leave());
        });
        world.replace(0);
        reader.join().unwrap();
    });
}

#[test]
fn answer_to_one_grace_period_does_not_serve_the_next() {
    model(3, || {
        let world = World::new();
        let reader = spawn(&world, |world| {
            world.read();
            world.read();
        });
        world.replace(0);
        world.replace(1);
        reader.join().unwrap();
    });
}

#[test]
fn leaving_without_having_entered_is_refused() {
    model(1, || assert!(!TaskWord::new().leave()));
}
