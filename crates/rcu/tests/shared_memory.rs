//! A block in caller-given memory, without `Domain`: what an agent and its controller do (B1, G1).

use rcu::{Block, BlockOptions, Env, Fences, Flavour, FlavourSet, Lite, Waiting};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// What a control thread without a standard library would bring.
struct Agent {
    fences: Fences,
    pauses: u32,
}

impl Env for Agent {
    fn heavy_fence(&mut self) {
        assert!(self.fences != Fences::Membarrier || rcu::heavy_fence());
    }
    fn pause(&mut self, _: &Waiting) {
        self.pauses += 1;
        thread::yield_now();
    }
}

#[test]
#[cfg_attr(miri, ignore = "copies a block's words, of which some are padding")]
fn grace_periods_and_readers_work_over_given_memory() {
    let copies = percpu::possible_cpus();
    let layout = Layout::from_size_align(Block::size_bytes(copies), Block::ALIGN).unwrap();
    // SAFETY: the layout has a size.
    let mem = NonNull::new(unsafe { alloc(layout) }).unwrap();
    let fences = rcu::register_fences();
    let options = BlockOptions {
        copies,
        rseq: percpu::RseqOffset::detect(),
        declared: FlavourSet(Flavour::Lite.bit()),
        checked: false,
        reader_fences: fences != Fences::Membarrier,
        owner: std::process::id(),
    };
    // SAFETY: `mem` is fresh, big enough and aligned; the offset is the C library's; each possible CPU
    // has a copy.
    let block = unsafe { Block::init(mem, &options) };
    let left = AtomicBool::new(false);
    let rank = block.lock::<Lite>().unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            let cookie = block.snap();
            let mut agent = Agent { fences, pauses: 0 };
            while !block.poll(cookie) {
                // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
                unsafe { block.run_gp(&mut agent, false) };
            }
            assert!(left.load(SeqCst) && agent.pauses > 0);
        });
        thread::sleep(Duration::from_millis(20));
        // The controller's view, through the same bytes at another address.
        // SAFETY: the words of the block; its writers use atomics too.
        let words =
            unsafe { std::slice::from_raw_parts(mem.as_ptr().cast::<AtomicU32>(), layout.size() / 4) };
        // SAFETY: the layout has a size.
        let copy = NonNull::new(unsafe { alloc(layout) }).unwrap();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: `copy` has the size, and word `i` lies inside.
            let at = unsafe { copy.as_ptr().cast::<u32>().add(i) };
            // SAFETY: as above; fresh memory of this thread's own.
            unsafe { at.write(word.load(SeqCst)) };
        }
        {
            // SAFETY: `copy` holds a block's bytes and lives to the end of this scope.
            let seen = unsafe { Block::at(copy) }.unwrap();
            assert_eq!(seen.readers_by_rank().iter().sum::<i64>(), 1);
            assert!(seen.recorded().has(Flavour::Lite));
        }
        // SAFETY: allocated above with this layout.
        unsafe { dealloc(copy.as_ptr(), layout) };
        left.store(true, SeqCst);
        // SAFETY: entered above, and left once.
        unsafe { block.unlock::<Lite>(rank) };
    });
    assert_eq!(block.readers_by_rank(), [0, 0]);
    // SAFETY: allocated above with this layout; the block is not used again.
    unsafe { dealloc(mem.as_ptr(), layout) };
}
