//! Tests of per-CPU lists under threads, migration and signals.

use super::*;
use crate::{current_cpu, possible_cpus};
use core::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::vec::Vec;

const SHIFT: u32 = 7;
const BOUND: isize = -128;
const CPUS: usize = 64;
const ITEMS: usize = 512;

#[repr(C, align(128))]
struct Line([u64; 16]);

/// A bound, one line per CPU, and items of one word.
#[repr(C)]
struct Lists {
    bound: Line,
    cpus: [Line; CPUS],
    items: [u64; ITEMS],
    /// Per item: who holds it, by thread; 0 no one.
    held: [AtomicU64; ITEMS],
    offset: RseqOffset,
}

struct Shared(UnsafeCell<Lists>);
// SAFETY: the lists are changed by sequences, `held` by atomics; the rest is constant while shared.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Shared {
        assert!(possible_cpus() as usize <= CPUS);
        let line = || Line([0; 16]);
        let mut bound = line();
        bound.0[0] = u64::from(possible_cpus());
        Shared(UnsafeCell::new(Lists {
            bound,
            cpus: core::array::from_fn(|_| line()),
            items: [0; ITEMS],
            held: core::array::from_fn(|_| AtomicU64::new(0)),
            offset: RseqOffset::detect(),
        }))
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: `cpus` is inside the live value; no reference is made.
        unsafe { (&raw mut (*self.0.get()).cpus).cast() }
    }

    fn item(&self, i: u32) -> *mut u8 {
        // SAFETY: as above.
        let items = unsafe { (&raw mut (*self.0.get()).items).cast::<u64>() };
        items.wrapping_add(i as usize).cast()
    }

    fn held(&self, i: u32) -> &AtomicU64 {
        // SAFETY: the array is atomics and lives as long as `self`.
        unsafe { &(&(*self.0.get()).held)[i as usize] }
    }

    fn offset(&self) -> RseqOffset {
        // SAFETY: constant after `new`.
        unsafe { (*self.0.get()).offset }
    }

    fn pop(&self) -> Option<u32> {
        // SAFETY: `new` made lines for every CPU, and only this file's functions write their words.
        let (i, cpu) = unsafe { list_pop::<SHIFT, 0, BOUND>(self.offset(), self.base(), self.item(0)) }?;
        assert!(cpu < possible_cpus());
        Some(i)
    }

    fn push(&self, i: u32) -> bool {
        // SAFETY: as above; callers own the item.
        unsafe { list_push::<SHIFT, 0, BOUND>(self.offset(), self.base(), self.item(i), i) }.is_some()
    }

    fn word(&self, cpu: u32) -> *mut u64 {
        self.base().wrapping_add((cpu as usize) << SHIFT).cast()
    }

    /// Every item on the lists, found by walking; checks each list's length.
    fn walk(&self) -> Vec<u32> {
        let mut out = Vec::new();
        for cpu in 0..possible_cpus() {
            // SAFETY: nobody changes the lists while a test walks them.
            let word = ListWord(unsafe { self.word(cpu).read() });
            let before = out.len();
            let mut i = word.head();
            while i != 0 {
                out.push(i);
                // SAFETY: as above.
                i = unsafe { self.item(i).cast::<u32>().read() };
            }
            assert_eq!(out.len() - before, word.len() as usize);
        }
        out.sort_unstable();
        out
    }

    /// One item out, marked as held by nobody else, and in again.
    fn turn(&self, who: u64) -> bool {
        let Some(i) = self.pop() else { return false };
        assert_eq!(self.held(i).swap(who, Relaxed), 0, "item {i} has two owners");
        core::hint::spin_loop();
        assert_eq!(self.held(i).swap(0, Relaxed), who, "item {i} has two owners");
        while !self.push(i) {}
        true
    }
}

fn has_rseq() -> bool {
    RseqOffset::detect().is_some()
}

#[test]
fn items_come_back_in_reverse_and_are_counted() {
    let lists = Shared::new();
    if !has_rseq() {
        return assert!(!lists.push(1) && lists.pop().is_none());
    }
    for i in 1..=100 {
        assert!(lists.push(i));
    }
    assert_eq!(lists.walk(), (1..=100).collect::<Vec<_>>());
    let mut popped: Vec<_> = core::iter::from_fn(|| lists.pop()).collect();
    while popped.len() < 100 {
        popped.extend(lists.pop());
    }
    popped.sort_unstable();
    assert_eq!(popped, (1..=100).collect::<Vec<_>>());
    assert!(lists.walk().is_empty());
}

#[test]
fn threads_that_push_each_other_around_share_no_item() {
    if !has_rseq() {
        return;
    }
    let lists = Shared::new();
    (1..ITEMS as u32).for_each(|i| while !lists.push(i) {});
    let turns: u64 = std::thread::scope(|s| {
        let threads: Vec<_> = (1..=4u64)
            .map(|who| {
                let lists = &lists;
                s.spawn(move || {
                    (0..300_000u64)
                        .filter(|n| {
                            if n % 512 == 0 {
                                let _ = sys::sched::pin_to_cpu(((n / 512 + who) % 2) as usize);
                            }
                            lists.turn(who)
                        })
                        .count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no item had two owners")).sum()
    });
    assert!(turns > 300_000);
    assert_eq!(lists.walk(), (1..ITEMS as u32).collect::<Vec<_>>());
}

static SIGNALLED: std::sync::OnceLock<Shared> = std::sync::OnceLock::new();
static IN_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    if let Some(lists) = SIGNALLED.get() {
        IN_HANDLER.fetch_add(u64::from(lists.turn(9)), Relaxed);
    }
}

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
}

#[test]
fn a_handler_that_interrupts_an_operation_does_its_own_and_harms_nothing() {
    const SIGUSR2: i32 = 12;
    if !has_rseq() {
        return;
    }
    let lists = SIGNALLED.get_or_init(Shared::new);
    (1..64).for_each(|i| while !lists.push(i) {});
    // SAFETY: the handler does nothing but sequences and atomics.
    unsafe { signal(SIGUSR2, handler as *const () as usize) };
    let (tid, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            tid.store(u64::from(sys::gettid()), Relaxed);
            while !stop.load(Relaxed) {
                (0..100).for_each(|_| _ = lists.turn(1));
            }
        });
        while tid.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        let args = [sys::getpid() as usize, tid.load(Relaxed) as usize, SIGUSR2 as usize, 0, 0, 0];
        let end = std::time::Instant::now() + std::time::Duration::from_secs(1);
        while std::time::Instant::now() < end {
            // SAFETY: tgkill takes numbers, and the thread lives: it waits for `stop`.
            let _ = unsafe { sys::syscall(sys::nr::TGKILL, args) };
        }
        stop.store(true, Relaxed);
    });
    assert!(IN_HANDLER.load(Relaxed) > 1000, "only {} handlers", IN_HANDLER.load(Relaxed));
    assert_eq!(lists.walk(), (1..64).collect::<Vec<_>>());
}

#[test]
fn a_closed_bound_refuses_and_whole_lists_change_hands_by_one_store() {
    if !has_rseq() {
        return;
    }
    let lists = Shared::new();
    while !lists.push(7) {}
    let bound = lists.base().wrapping_offset(BOUND).cast::<u32>();
    let cpu = (0..possible_cpus()).find(|c| {
        // SAFETY: this thread alone uses the lists.
        unsafe { lists.word(*c).read() != 0 }
    });
    let cpu = cpu.expect("one list has the item");
    let _ = sys::sched::pin_to_cpu(cpu as usize);
    let (old, none) = (ListWord::new(7, 1), ListWord::default());
    let swap = |expect, new| {
        // SAFETY: the word is that of `cpu`; the item is this test's.
        unsafe { store_if_below(lists.offset(), cpu, bound, lists.word(cpu), expect, new) }
    };
    assert!(!swap(none, none), "the word is not what was expected");
    // A refusal may also be an interruption, so a success is tried for.
    assert!(current_cpu() != cpu || (0..1000).any(|_| swap(old, none)));
    // SAFETY: this thread alone uses the lists.
    unsafe { bound.write(0) };
    assert!(!lists.push(7) && lists.pop().is_none() && !swap(none, old));
}
