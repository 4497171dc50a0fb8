//! Readers that count on the seats of their threads: A1, A2, G1; mutants RCU-23, RCU-24, low-seat.
//!
//! A seat's counts are loads and stores here, as in the hardware: who takes a seat without seeing the counts of who had
//! it loses some. Left out: signal handlers, keys and ends of threads (tests of `seat`), forks.

use crate::world::{Item, model, spawn};
use loom::sync::Arc;
use loom::sync::atomic::{Ordering::SeqCst, fence};
use rcu::{Block, BlockOptions, Env, Flavour, FlavourSet, Lite, PerCpu, SEATS, Seats, Waiting};
use std::alloc::Layout;
use std::ptr::NonNull;

/// A block with seats, and an item.
struct World {
    seats: Seats,
    block: Block<'static>,
    item: Item,
}

// SAFETY: the item is what the protocol under test protects.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

struct Driver<'w>(&'w Seats);

impl Env for Driver<'_> {
    fn heavy_fence(&mut self) {
        fence(SeqCst);
    }
    fn pause(&mut self, _: &Waiting) {
        loom::thread::yield_now();
    }
    fn seats(&self) -> u32 {
        self.0.high()
    }
}

impl World {
    fn new() -> Arc<World> {
        let front = SEATS as usize * size_of::<PerCpu>();
        let layout = Layout::from_size_align(front + Block::size_bytes(1), Block::ALIGN).unwrap();
        // SAFETY: the layout has a size. Never freed: models are many, but short-lived and small.
        let mem = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
        let options = BlockOptions {
            copies: 1,
            rseq: percpu::RseqOffset::NONE,
            declared: FlavourSet(Flavour::Lite.bit()),
            checked: false,
            reader_fences: false,
            owner: 1,
        };
        // SAFETY: the layout has room for the seats in front.
        let at = unsafe { mem.add(front) };
        // SAFETY: `mem` is fresh, big enough and aligned.
        let block = unsafe { Block::init_with_seats(at, &options, SEATS) };
        Arc::new(World { seats: Seats::new(), block, item: Item::new() })
    }

    /// A thread's life: it sits down, reads, gives its seat back.
    fn live(&self) {
        let seat = self.seats.take().expect("no more threads than seats");
        let place = 0usize.wrapping_sub(seat as usize * size_of::<PerCpu>());
        let rank = self.block.rank();
        // SAFETY: the seat was taken.
        assert!(unsafe { self.block.try_enter_at::<Lite>(rank, place) });
        fence(SeqCst);
        self.item.look();
        fence(SeqCst);
        // SAFETY: as above.
        assert!(unsafe { self.block.try_leave_at::<Lite>(rank, place) });
        self.seats.give_back(seat);
    }

    fn replace(&self) {
        self.item.unlink();
        // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
        unsafe { self.block.run_gp(&mut Driver(&self.seats), false) };
        self.item.free();
    }
}

#[test]
fn unlinked_item_outlives_a_reader_that_sits_down_meanwhile() {
    model(3, || {
        let world = World::new();
        let reader = spawn(&world, World::live);
        world.replace();
        reader.join().unwrap();
    });
}

#[test]
fn nothing_is_lost_of_what_was_counted_on_a_seat_that_changes_hands() {
    model(3, || {
        let world = World::new();
        let readers = [spawn(&world, World::live), spawn(&world, World::live)];
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(world.block.readers_by_rank(), [0, 0]);
    });
}
