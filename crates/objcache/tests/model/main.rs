//! Models of the hand-over between CPUs and the worker, for loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p nanoprobe-objcache --release --test model`.
//!
//! An object is an `UnsafeCell` of loom's: whoever owns it changes it, and loom reports two at once, or one that has not
//! seen what the last one did. Left out: the CPU's own lists, which restartable sequences change (`torture mem` and the
//! tests of `percpu` have those), and closing them by membarrier (OBJ-4, OBJ-5), which loom does not know.
#![cfg(loom)]

mod life;
mod stack;
mod world;
