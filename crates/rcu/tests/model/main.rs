//! Models of readers, grace periods and callbacks, for loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p nanoprobe-rcu --release --test model`.
//!
//! What stands for freeing is a mutable access to the item through loom's `UnsafeCell`: loom then
//! reports any reader that may still hold it. Two or three threads and one or two per-CPU copies; a
//! reader enters on one copy and leaves on another. Left out: rseq itself and preemption in a sequence
//! (torture has those), membarrier (both halves of the asymmetric pair are full fences here, except in
//! `recording`), the locked cells, locks and sleeping of `Domain`.
#![cfg(loom)]

mod callbacks;
mod grace_periods;
mod recording;
mod seats;
mod task_words;
mod world;
