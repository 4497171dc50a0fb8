//! Model of a bucket's chain for loom: lookups against moves to another array.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p nanoprobe-coll --release --test model`.
//!
//! What stands for the newer array is a pointer that the mover sets first, as `move_all` does. Two threads; the
//! mover empties one bucket of two or three entries. Left out: grace periods (entries live as long as the
//! model), and inserts beside the move (they hold the bucket's lock, as the mover does).
#![cfg(loom)]

#[path = "model/walks.rs"]
mod walks;

use coll::chain::{Bucket, Link};
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread;
use std::sync::Arc;

#[repr(C)]
struct Entry {
    link: Link,
    key: usize,
}

struct World {
    old: Bucket,
    new: Bucket,
    /// Stands for `Array::future`; relaxed, because the chain alone must order it.
    has_future: AtomicUsize,
}

fn entry(key: usize) -> *mut Link {
    // Leaked: models are many, but short-lived and small.
    Box::into_raw(Box::new(Entry { link: Link::new(), key })).cast()
}

fn key_of(at: *mut Link) -> usize {
    // SAFETY: every entry of the model is an `Entry` that lives for ever.
    unsafe { (*at.cast::<Entry>()).key }
}

impl World {
    fn new(keys: std::ops::Range<usize>) -> Arc<World> {
        let world = World { old: Bucket::new(), new: Bucket::new(), has_future: AtomicUsize::new(0) };
        let mut locked = world.old.lock();
        for key in keys {
            // SAFETY: a fresh entry that lives for ever.
            unsafe { locked.push(entry(key)) };
        }
        drop(locked);
        Arc::new(world)
    }

    /// As `Reader::get`.
    fn find(&self, key: usize) -> bool {
        // SAFETY: entries live for ever.
        let at = unsafe { self.old.find(|at| key_of(at) == key) };
        if !at.is_null() {
            return true;
        }
        if self.has_future.load(Relaxed) == 0 {
            return false;
        }
        // SAFETY: as above.
        !unsafe { self.new.find(|at| key_of(at) == key) }.is_null()
    }

    /// As `RhlTable::move_all`.
    fn move_all(&self) {
        self.has_future.store(1, Relaxed);
        let mut locked = self.old.lock();
        // SAFETY: entries live for ever.
        while unsafe { locked.move_last(false, |_| &self.new) } {}
    }
}

/// Runs `look` beside `change`, in every order that loom finds.
///
/// The reader is the spawned thread: loom runs the other first and then tries the reader's loads earlier. The
/// other way round it would not: it takes the mover's own loads for the last accesses before its stores.
fn beside(
    keys: std::ops::Range<usize>,
    change: impl Fn(&World) + Sync + Send + Copy + 'static,
    look: impl Fn(&World) + Sync + Send + Copy + 'static,
) {
    loom::model(move || {
        let world = World::new(keys.clone());
        let reader = {
            let world = world.clone();
            thread::spawn(move || look(&world))
        };
        change(&world);
        reader.join().unwrap();
    });
}

#[test]
fn what_is_being_moved_is_found() {
    // Pushed first, so it is the last of the chain and is moved first.
    beside(0..2, World::move_all, |world| assert!(world.find(0), "the last of the chain is lost"));
}

#[test]
fn what_stands_before_a_moved_entry_is_found() {
    beside(0..2, World::move_all, |world| assert!(world.find(1), "the first of the chain is lost"));
}

#[test]
fn a_reader_led_into_another_bucket_misses_nothing() {
    let move_one_and_insert = |world: &World| {
        world.has_future.store(1, Relaxed);
        let mut locked = world.old.lock();
        // SAFETY: entries live for ever.
        unsafe { locked.move_last(false, |_| &world.new) };
        // SAFETY: as above.
        unsafe { locked.push(entry(9)) };
    };
    beside(0..3, move_one_and_insert, |world| {
        assert!(!world.find(7), "found what is not there");
        assert!(world.find(1));
    });
}
