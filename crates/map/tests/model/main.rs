//! Models of the ring, of a bucket of the hash, and of versions, for loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p nanoprobe-map --release --test model`.
//!
//! The code is the maps' own; their memory is loom's atomics by address, and the hash's elements come from a list
//! that gives an element out again at once, which is the hardest for readers. Left out: CPUs (one copy of everything), LRU,
//! and the orderings of room in the ring (MAP-8, MAP-9, MAP-11): loom keeps the stores of two threads to one place in the
//! order in which they ran, so mutants of these live here; the processes of `tests/ring.rs` have them.
#![cfg(loom)]

mod frames;
mod hash;
mod queue;
mod ring;
mod sleep;
mod stay;
mod versions;

/// Every execution with at most `bound` preemptions.
///
/// Who only reads must be a thread that was spawned: where the model's own thread reads and then joins, loom tries no
/// other order.
fn model(bound: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(run);
}

/// Where maps lie in a model's memory.
fn base() -> std::ptr::NonNull<u8> {
    std::ptr::NonNull::without_provenance(std::num::NonZero::new(64).unwrap())
}
