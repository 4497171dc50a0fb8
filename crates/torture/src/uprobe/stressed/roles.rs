//! Threads of the target that call, and that map the probed file.
//!
//! For:     the target of `torture uprobe`.
//! State:   each thread's own.
//! Context: target.
//! Keeps:   R1 a thread ends soon after the stop, with all that it mapped unmapped.
//! Checked: `tests/uprobe_live.rs`.
//! Source:  uprobe-stress for the limits, kernel-facts 1.17.

use super::Orders;
use super::functions::{Caller, DEPTH, address};
use super::shared::{FUNCTIONS, Shared};
use super::signals;
use crate::rng::Rng;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// One thread's part.
pub struct Part {
    pub orders: Orders,
    pub shared: &'static Shared,
    /// Its stream of random numbers.
    pub stream: u64,
    /// Its number among those with the same role.
    pub index: usize,
}

impl Part {
    pub fn rng(&self) -> Rng {
        Rng::new(self.orders.seed, self.stream)
    }
}

/// Calls until the stop; signals come meanwhile.
pub fn call(part: Part) {
    let row = &part.shared.rows[part.index];
    let _stack = signals::receive(row, part.shared);
    let mut caller = Caller::new(part.orders.seed, part.stream, Some(row), part.orders.forget);
    row.tid.store(sys::gettid(), Relaxed);
    while !part.shared.is_over() {
        for _ in 0..64 {
            caller.call_some(DEPTH);
        }
    }
    row.tid.store(0, Relaxed);
    part.shared.wrong.fetch_add(caller.wrong, Relaxed);
}

/// Bytes of the program that are mapped again: all of the probed functions.
fn probed() -> std::ops::Range<u64> {
    let starts = || (0..FUNCTIONS).map(address);
    let first = starts().min().unwrap_or_default() / 4096 * 4096;
    first..(starts().max().unwrap_or_default() + 256).next_multiple_of(4096)
}

/// Where an address of ours is in our program's file.
fn offset_in_file(addr: u64) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        (start <= addr && addr < end).then_some(offset + addr - start)
    })
}

/// Maps the probed file executable and private, moves and unmaps it, 10 at once at most.
pub fn mmap(part: Part) {
    let (mut rng, bytes) = (part.rng(), probed());
    let len = (bytes.end - bytes.start) as usize;
    let program = std::fs::File::open("/proc/self/exe");
    let (Ok(program), Some(offset)) = (program, offset_in_file(bytes.start)) else {
        part.shared.refused.fetch_add(1, Relaxed);
        return;
    };
    let mut mapped: Vec<u64> = Vec::new();
    while !part.shared.is_over() || !mapped.is_empty() {
        let full = mapped.len() == 10 || part.shared.is_over();
        let at = match mapped.is_empty() {
            true => None,
            false => Some(mapped.swap_remove(rng.below(mapped.len() as u64) as usize)),
        };
        match (at, rng.below(3)) {
            (Some(at), 0) if !full => mapped.extend(moved(at, len)),
            (Some(at), 1) if !full => {
                mapped.push(at);
                mapped.extend(map(&program, offset, len));
            }
            // SAFETY: the mapping is ours, nothing refers to it, and nobody runs in it.
            (Some(at), _) => assert_eq!(unsafe { sys::mapping::unmap(at, len) }, Ok(())),
            (None, _) => mapped.extend(map(&program, offset, len)),
        }
        part.shared.maps.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_micros(rng.below(1000)));
    }
}

fn map(program: &std::fs::File, offset: u64, len: usize) -> Option<u64> {
    let prot = libc::PROT_READ | libc::PROT_EXEC;
    let null = std::ptr::null_mut();
    // SAFETY: the kernel picks a free address, so no live memory is replaced.
    let at = unsafe { libc::mmap(null, len, prot, libc::MAP_PRIVATE, program.as_raw_fd(), offset as i64) };
    (at != libc::MAP_FAILED).then_some(at as u64)
}

/// Where the mapping is now.
fn moved(at: u64, len: usize) -> Option<u64> {
    // A larger one has to go elsewhere as soon as something is in its way; made smaller again, it stays there.
    // SAFETY: the mapping is ours, and nothing refers to it.
    let to = unsafe { libc::mremap(at as *mut _, len, len + 4096, libc::MREMAP_MAYMOVE) };
    if to == libc::MAP_FAILED {
        return Some(at);
    }
    // SAFETY: as above.
    let _ = unsafe { sys::mapping::unmap(to as u64 + len as u64, 4096) };
    Some(to as u64)
}
