//! What a cache keeps per CPU.
//!
//! For:     `view` (any context) and `tend` (the worker).
//! State:   a head with bound and limit, then one cell per CPU: two lists of that CPU, four stacks for all.
//! Context: hit, signal, target.
//! Keeps:   C1 `free` and `rcu` are changed by sequences alone, or by the worker while the bound is 0 and the
//!          process has been fenced.
//! Checked: tests of `view` and `tend`; `torture mem`.

use crate::stack::Stack;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use percpu::List;

pub use crate::tray::SLOTS;

/// In front of the cells.
#[repr(C, align(128))]
pub struct Head {
    /// The number of cells, or 0 while their lists are closed.
    pub bound: AtomicU32,
    /// The most objects on a list: the high watermark.
    pub limit: u32,
    pub copies: u32,
    pub unit: u32,
    pub batch: u32,
    pub low: u32,
    pub high: u32,
    pub id: u32,
}

/// One CPU's part of a cache.
#[repr(C, align(1024))]
pub struct Cell {
    /// Objects to take.
    pub free: List<SLOTS>,
    /// Objects that must see a grace period.
    pub rcu: List<SLOTS>,
    pad: [u64; 12],
    /// Batches to take.
    pub depot: Stack,
    /// Objects freed by threads without rseq.
    pub loose: Stack,
    /// Batches that must see a grace period.
    pub retired: Stack,
    /// Trays without objects.
    pub blank: Stack,
    /// Objects in each; they may lag behind the stacks.
    pub depot_len: AtomicI32,
    pub loose_len: AtomicI32,
    pub retired_len: AtomicI32,
    /// Trays wanted and not got.
    pub short: AtomicU32,
    /// Wanted and not got.
    pub failed: AtomicU64,
    /// Objects freed that were not live.
    pub misuse: AtomicU64,
}

pub const SHIFT: u32 = size_of::<Cell>().trailing_zeros();
pub const FREE: usize = core::mem::offset_of!(Cell, free);
pub const RCU: usize = core::mem::offset_of!(Cell, rcu);
/// The head lies in front of the cells: this far from the first one are bound and limit.
pub const BOUND: isize = -(HEAD as isize);
/// Bytes from head to cells; keeps the cells aligned.
pub const HEAD: usize = align_of::<Cell>();

const _: () = {
    assert!(size_of::<Cell>() == 1024 && size_of::<Head>() <= HEAD);
    // What all CPUs write lies two lines away from what one writes.
    assert!(core::mem::offset_of!(Cell, depot) >= 896);
    assert!(core::mem::offset_of!(Head, bound) == 0 && core::mem::offset_of!(Head, limit) == 4);
};
