//! Hits that are really run, in this process, while the rank of readers changes inside them.
//!
//! The handler is the test's: it does what a controller or a fork may do at that moment. Then the counts of both ranks, over
//! all copies, say whether the reader left what it entered.
#![cfg(target_arch = "x86_64")]

use insn::{Asked, Code, Flow, Placement, place};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use text::{Body, Flavour, Request, Threads, Trampoline, Ways, slow_routines};
use wire::{
    COPY_CHILDREN, COPY_CPU0, COPY_NONE, COPY_SHARED, COPY_UNKNOWN, ConsumerDesc, SiteDesc, cell, table,
};

/// `push rbx; mov rbx, rdi; nop...; lea rax, [rbx + 1]; pop rbx; ret`
const FUNCTION: [u8; 15] =
    [0x53, 0x48, 0x89, 0xfb, 0x90, 0x90, 0x90, 0x90, 0x90, 0x48, 0x8d, 0x43, 0x01, 0x5b, 0xc3];
const CPUS: usize = 1024;
const STRIDE: usize = table::COPY_ALIGN as usize;
const CODE: usize = table::LEN_BYTES.next_multiple_of(4096);
const SLOW: usize = CODE + 256;
const BLOCK: usize = CODE + 1024;
const ARENA: usize = CODE + 4 * 4096;
const LEN: usize = ARENA + (COPY_CPU0 + CPUS) * STRIDE;
const COUNTED: u32 = 0x188;

/// What happens inside the hit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Nothing,
    /// The controller makes readers enter this rank from now on.
    Rank(u64),
    /// A signal's handler forks, and we are the child.
    Fork,
}

/// The mapping of the hit that is run, what happens in it, and what the handler was given.
struct Now {
    base: usize,
    event: Event,
    copy: Option<u64>,
}

static NOW: Mutex<Now> = Mutex::new(Now { base: 0, event: Event::Nothing, copy: None });
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

extern "C" fn handler(_: u64, _: &SiteDesc, _: &ConsumerDesc, copy: u64) {
    let mut now = NOW.lock().unwrap();
    now.copy = Some(copy);
    let world = World { base: now.base };
    match now.event {
        Event::Nothing => {}
        Event::Rank(rank) => world.set_rank(rank),
        Event::Fork => world.wipe(),
    }
}

/// A table, code, and an arena of copies with a site in front, one behind the other.
struct World {
    base: usize,
}

impl World {
    /// It is never unmapped: the thread's `rseq_cs` may name a section in it.
    fn new() -> World {
        let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let world = World { base: base as usize };
        world.word(table::ALIVE).store(world.copy(COPY_SHARED), Relaxed);
        for cpu in 0..CPUS {
            world.word(table::CPU0 + cpu * 8).store(world.copy(COPY_CPU0 + cpu), Relaxed);
        }
        world
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= LEN);
        // SAFETY: in bounds of a mapping that stays, aligned, and data is used as atomics alone.
        unsafe { &*((self.base + offset) as *const AtomicU64) }
    }

    fn copy(&self, index: usize) -> u64 {
        (self.base + ARENA + index * STRIDE) as u64
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: in bounds of the mapping; nobody runs or reads it yet.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.base + offset) as *mut u8, bytes.len())
        };
    }

    /// As a controller does it: the rank of those without a copy, and the low byte of each entry.
    fn set_rank(&self, rank: u64) {
        for copy in [COPY_SHARED, COPY_CHILDREN] {
            self.word(ARENA + copy * STRIDE + cell::RANK as usize).store(rank * table::RANK, Relaxed);
        }
        for cpu in 0..CPUS {
            let entry = self.word(table::CPU0 + cpu * 8);
            if entry.load(Relaxed) != 0 {
                entry.store(self.copy(COPY_CPU0 + cpu) + rank * table::RANK, Relaxed);
            }
        }
    }

    fn clear_entries(&self) {
        (0..CPUS).for_each(|cpu| self.word(table::CPU0 + cpu * 8).store(0, Relaxed));
    }

    fn wipe(&self) {
        self.clear_entries();
        self.word(table::ALIVE).store(0, Relaxed);
    }

    /// A cell's sum over these copies.
    fn sum(&self, copies: impl Iterator<Item = usize>, cell: u32) -> u64 {
        copies.map(|copy| self.word(ARENA + copy * STRIDE + cell as usize).load(Relaxed)).sum()
    }

    /// How many entered and left each rank, in copies of the process's own and in the children's.
    fn readers(&self) -> [[u64; 4]; 2] {
        let cells = [cell::entered(0), cell::left(0), cell::entered(1), cell::left(1)];
        let own = || (0..COPY_CPU0 + CPUS).filter(|copy| *copy != COPY_CHILDREN);
        [cells.map(|c| self.sum(own(), c)), cells.map(|c| self.sum([COPY_CHILDREN].into_iter(), c))]
    }

    /// Builds the trampoline and calls it as the function.
    fn call(&self, ways: Ways, body: Body) {
        let placement = placement();
        let at = |offset: usize| (self.base + offset) as u64;
        let request = Request {
            at: at(BLOCK),
            placement: &placement,
            bias: at(CODE) - 0x1000,
            jump_original: [0; 5],
            short_original: None,
            table: at(0),
            slow: at(SLOW),
            ways,
            bodies: &[body],
        };
        let trampoline = Trampoline::build(&request).unwrap();
        assert!(BLOCK + trampoline.bytes.len() <= ARENA);
        self.put(CODE, &FUNCTION);
        self.put(SLOW, &slow_routines(at(SLOW), at(0), self.copy(COPY_CHILDREN)).unwrap());
        self.put(BLOCK, &trampoline.bytes);
        // SAFETY: the trampoline stands there, and behaves as the function that it displaces.
        let function = unsafe {
            std::mem::transmute::<usize, extern "C" fn(u64) -> u64>(trampoline.entry_addr() as usize)
        };
        assert_eq!(function(41), 42);
    }

    /// One hit of the general path, in which `event` happens. Returns what the handler was given.
    fn hit(&self, ways: Ways, event: Event) -> u64 {
        let consumer = self.consumer();
        let site = ARENA - size_of::<SiteDesc>();
        self.word(site).store(consumer, Relaxed);
        *NOW.lock().unwrap() = Now { base: self.base, event, copy: None };
        // r8 to r11: the handler is compiled for an ordinary processor and program.
        self.call(ways, Body::Hit { desc: (self.base + site) as u64, uses: 0x0f00.into(), guard: None });
        NOW.lock().unwrap().copy.expect("the handler was called")
    }

    fn consumer(&self) -> u64 {
        let at = ARENA - 4096;
        self.word(at + std::mem::offset_of!(ConsumerDesc, handler))
            .store(handler as *const () as u64, Relaxed);
        (self.base + at) as u64
    }
}

fn placement() -> Placement {
    let codes = [Code { base: 0x1000, bytes: &FUNCTION }];
    let flow = Flow::analyse(&codes, &[0x1000], &[], &|_| Vec::new());
    let function = Some(0x1000..0x1000 + FUNCTION.len() as u64);
    let asked =
        Asked { site: 0x1000, function, next_function: None, taken: &|_| false, room: &insn::no_room };
    place(&flow, &codes, &asked).unwrap()
}

/// With rseq where this process has it; with a block that is not known; without rseq: by readers of each flavour.
fn ways() -> Vec<(&'static str, Ways)> {
    let rseq_offset = percpu::RseqOffset::detect().get() as i32;
    let mut all = vec![("locked", None)];
    if rseq_offset != 0 {
        all.push(("rseq", Some(Threads { rseq_offset, self_offset: 0x10 })));
        // The word there is none of the block's addresses of itself.
        all.push(("doubt", Some(Threads { rseq_offset, self_offset: 0x28 })));
    }
    let flavours = [Flavour::Lite, Flavour::Normal, Flavour::Sigsafe];
    let of = |(name, threads)| flavours.map(|flavour| (name, Ways { threads, has_rdpid: false, flavour }));
    all.into_iter().flat_map(of).collect()
}

/// What one reader of a rank leaves behind if it entered so often and left so often.
fn expected(rank: u64, entered: u64, left: u64) -> [u64; 4] {
    if rank == 0 { [entered, left, 0, 0] } else { [0, 0, entered, left] }
}

#[test]
fn a_hit_whose_rank_changes_inside_leaves_the_rank_that_it_entered() {
    let _one = ONE_AT_A_TIME.lock();
    for (name, ways) in ways() {
        for rank in [0, 1] {
            for event in [Event::Nothing, Event::Rank(1 - rank)] {
                for has_copies in [true, false] {
                    let world = World::new();
                    world.set_rank(rank);
                    if !has_copies {
                        world.clear_entries();
                    }
                    let copy = world.hit(ways, event);
                    let at = format!("{name}, {}, rank {rank}, {event:?}, copies {has_copies}", ways.flavour);
                    assert_eq!(world.readers(), [expected(rank, 1, 1), [0; 4]], "{at}");
                    match (name, has_copies) {
                        ("doubt", _) => assert_eq!(copy, COPY_UNKNOWN, "{at}"),
                        (_, false) => assert_eq!(copy, COPY_NONE, "{at}"),
                        // The thread may have been preempted in the section: then it has none.
                        _ => assert!(
                            copy == COPY_NONE || copy.is_multiple_of(table::COPY_ALIGN) && copy > 0,
                            "{at}"
                        ),
                    }
                }
            }
        }
    }
}

#[test]
fn a_reader_that_is_forked_inside_is_counted_by_its_parent_alone() {
    let _one = ONE_AT_A_TIME.lock();
    for (name, ways) in ways() {
        for rank in [0, 1] {
            let world = World::new();
            world.set_rank(rank);
            world.hit(ways, Event::Fork);
            assert_eq!(world.readers(), [expected(rank, 1, 0), [0; 4]], "{name}");
            // What the child does from then on is counted in the children's copy, whose rank may change too.
            world.hit(ways, Event::Rank(1 - rank));
            assert_eq!(world.readers(), [expected(rank, 1, 0), expected(rank, 1, 1)], "{name}");
        }
    }
}

#[test]
fn a_count_goes_to_its_cell_in_either_rank() {
    let _one = ONE_AT_A_TIME.lock();
    for (name, ways) in ways() {
        for rank in [0, 1] {
            let world = World::new();
            world.set_rank(rank);
            (0..100).for_each(|_| world.call(ways, Body::Count { cell: COUNTED }));
            assert_eq!(world.sum(0..COPY_CPU0 + CPUS, COUNTED), 100, "{name}, rank {rank}");
            assert_eq!(world.readers(), [[0; 4]; 2], "{name}: a count is no reader");
        }
    }
}
