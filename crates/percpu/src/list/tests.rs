//! Tests of per-CPU lists under threads, migration and signals.

use super::*;
use crate::possible_cpus;
use std::boxed::Box;
use std::sync::atomic::AtomicBool;
use std::vec::Vec;

const CAP: usize = 508;
const SHIFT: u32 = 11;
const BOUND: isize = -2048;
const CPUS: usize = 64;
const ITEMS: usize = 300;

#[repr(C, align(2048))]
struct OfCpu(List<CAP>);

#[repr(C, align(2048))]
struct Bound(AtomicU32, AtomicU32);

/// A bound, and a list per CPU.
#[repr(C)]
struct Lists {
    bound: Bound,
    cpus: [OfCpu; CPUS],
    /// Per item: who holds it, by thread; 0 no one.
    held: [AtomicU64; ITEMS],
    /// Per thread two items that it keeps.
    pockets: [AtomicU32; 20],
    offset: RseqOffset,
}

fn empty() -> OfCpu {
    OfCpu(List {
        front: AtomicU64::new(0),
        word: AtomicU64::new(0),
        slots: [const { AtomicU32::new(0) }; CAP],
    })
}

impl Lists {
    fn new() -> Box<Lists> {
        assert!(possible_cpus() as usize <= CPUS);
        Box::new(Lists {
            bound: Bound(AtomicU32::new(possible_cpus()), AtomicU32::new(CAP as u32)),
            cpus: core::array::from_fn(|_| empty()),
            held: core::array::from_fn(|_| AtomicU64::new(0)),
            pockets: [const { AtomicU32::new(0) }; 20],
            offset: RseqOffset::detect(),
        })
    }

    fn base(&self) -> *mut u8 {
        self.cpus.as_ptr().cast_mut().cast()
    }

    fn pop(&self) -> Option<u32> {
        // SAFETY: `new` made a list for every CPU, and only this file's functions change them.
        let (i, cpu) = unsafe { list_pop::<SHIFT, 0, BOUND>(self.offset, self.base(), self.base()) }?;
        assert!(cpu < possible_cpus());
        Some(i)
    }

    fn push(&self, i: u32) -> bool {
        // SAFETY: as above.
        unsafe { list_push::<SHIFT, 0, BOUND>(self.offset, self.base(), i) }
    }

    /// Every item on the lists.
    fn all(&self) -> Vec<u32> {
        let mut out: Vec<_> = self.cpus.iter().flat_map(|cpu| cpu.0.iter()).collect();
        out.sort_unstable();
        out
    }

    fn held(&self, i: u32) -> &AtomicU64 {
        &self.held[i as usize]
    }

    fn pop_all(&self, room: &mut [u32]) -> usize {
        // SAFETY: as above.
        unsafe { list_pop_all::<SHIFT, 0, BOUND>(self.offset, self.base(), room) }
    }

    fn push_all(&self, items: &[u32]) -> usize {
        // SAFETY: as above.
        unsafe { list_push_all::<SHIFT, 0, BOUND>(self.offset, self.base(), items) }
    }

    fn hold(&self, i: u32, who: u64) {
        assert_eq!(self.held(i).swap(who, Relaxed), 0, "item {i} has two owners");
    }

    fn drop_held(&self, i: u32, who: u64) {
        assert_eq!(self.held(i).swap(0, Relaxed), who, "item {i} has two owners");
    }

    /// Keeps an item and lets go of the one kept before: who comes between two instructions of another must
    /// leave the list changed, or a lost update would not show.
    fn exchange(&self, i: u32, who: u64, pocket: usize) -> u32 {
        let old = self.pockets[who as usize * 2 + pocket].swap(i, Relaxed);
        if old != 0 {
            self.drop_held(old, who);
        }
        old
    }

    /// Up to seven items out at once, and as many in again, one of them another.
    fn turn_many(&self, who: u64) {
        let mut room = [0; 7];
        let n = self.pop_all(&mut room);
        room[..n].iter().for_each(|i| self.hold(*i, who));
        if n == 0 {
            return;
        }
        room[1..n].iter().for_each(|i| self.drop_held(*i, who));
        room[0] = self.exchange(room[0], who, 1);
        let mut done = usize::from(room[0] == 0);
        while done < n {
            done += self.push_all(&room[done..n]);
        }
    }

    /// One item out, another one in.
    fn turn(&self, who: u64) -> bool {
        let Some(i) = self.pop() else { return false };
        self.hold(i, who);
        let old = self.exchange(i, who, 0);
        while old != 0 && !self.push(old) {}
        true
    }

    /// Puts back what is kept.
    fn empty_pockets(&self) {
        for pocket in &self.pockets {
            let i = pocket.swap(0, Relaxed);
            while i != 0 && !self.push(i) {}
        }
    }
}

/// What an operation that can be done has given: it is made again if the kernel came between.
fn surely<T: PartialEq + Default>(mut operation: impl FnMut() -> T) -> T {
    let tries = core::iter::from_fn(|| Some(operation())).take(1000);
    tries.into_iter().find(|given| *given != T::default()).expect("the kernel came between a thousand times")
}

fn has_rseq() -> bool {
    RseqOffset::detect().is_some()
}

#[test]
fn items_come_back_in_reverse_and_are_counted() {
    let lists = Lists::new();
    if !has_rseq() {
        return assert!(!lists.push(1) && lists.pop().is_none());
    }
    for i in 1..=100 {
        surely(|| lists.push(i));
    }
    assert_eq!(lists.all(), (1..=100).collect::<Vec<_>>());
    let mut popped = Vec::new();
    while popped.len() < 100 {
        popped.extend(lists.pop());
    }
    popped.sort_unstable();
    assert_eq!(popped, (1..=100).collect::<Vec<_>>());
    assert!(lists.all().is_empty());
}

#[test]
fn threads_that_push_each_other_around_share_no_item() {
    if !has_rseq() {
        return;
    }
    let lists = Lists::new();
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
                            if n % 3 == 0 {
                                lists.turn_many(who);
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
    lists.empty_pockets();
    assert_eq!(lists.all(), (1..ITEMS as u32).collect::<Vec<_>>());
}

static SIGNALLED: std::sync::OnceLock<Box<Lists>> = std::sync::OnceLock::new();
static IN_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    if let Some(lists) = SIGNALLED.get() {
        lists.turn_many(9);
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
    let lists = SIGNALLED.get_or_init(Lists::new);
    (1..64).for_each(|i| while !lists.push(i) {});
    // SAFETY: the handler does nothing but sequences and atomics.
    unsafe { signal(SIGUSR2, handler as *const () as usize) };
    let (tid, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            tid.store(u64::from(sys::gettid()), Relaxed);
            while !stop.load(Relaxed) {
                (0..100).for_each(|_| _ = lists.turn(1));
                (0..100).for_each(|_| lists.turn_many(1));
            }
        });
        while tid.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        let args = [sys::getpid() as usize, tid.load(Relaxed) as usize, SIGUSR2 as usize, 0, 0, 0];
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while IN_HANDLER.load(Relaxed) < 2000 && std::time::Instant::now() < end {
            // SAFETY: tgkill takes numbers, and the thread lives: it waits for `stop`.
            let _ = unsafe { sys::syscall(sys::nr::TGKILL, args) };
        }
        stop.store(true, Relaxed);
    });
    assert!(IN_HANDLER.load(Relaxed) >= 2000, "only {} handlers", IN_HANDLER.load(Relaxed));
    lists.empty_pockets();
    assert_eq!(lists.all(), (1..64).collect::<Vec<_>>());
}

#[test]
fn many_go_and_come_in_order_as_far_as_there_is_room() {
    if !has_rseq() {
        return;
    }
    let lists = Lists::new();
    let _ = sys::sched::pin_to_cpu(0);
    let all: Vec<u32> = (1..=CAP as u32 + 50).collect();
    assert_eq!(surely(|| lists.push_all(&all[..100])), 100);
    assert_eq!(lists.push_all(&[]), 0);
    assert_eq!(surely(|| lists.push_all(&all[100..])), CAP - 100);
    assert_eq!(lists.push_all(&all), 0);
    assert_eq!(lists.all(), all[..CAP]);
    let mut room = [0; 30];
    assert_eq!(surely(|| lists.pop_all(&mut room)), 30);
    assert_eq!(room[..], all[CAP - 30..CAP]);
    assert_eq!(surely(|| lists.pop()), Some(all[CAP - 31]));
    let mut room = [0; CAP];
    assert_eq!(surely(|| lists.pop_all(&mut room)), CAP - 31);
    assert_eq!(room[..CAP - 31], all[..CAP - 31]);
    assert_eq!(lists.pop_all(&mut room), 0);
}

#[test]
fn a_closed_bound_a_full_list_and_an_empty_one_refuse() {
    if !has_rseq() {
        return;
    }
    let lists = Lists::new();
    let _ = sys::sched::pin_to_cpu(0);
    (0..=CAP).for_each(|_| _ = surely(|| lists.push(7)));
    assert!(!lists.push(7));
    assert_eq!(lists.all().len(), CAP + 1);
    lists.bound.0.store(0, Relaxed);
    assert!(lists.pop().is_none());
    // SAFETY: no other thread has the lists.
    unsafe { lists.cpus[0].0.clear() };
    lists.bound.0.store(possible_cpus(), Relaxed);
    assert!(lists.pop().is_none() && surely(|| lists.push(8)) && surely(|| lists.pop()) == Some(8));
}
