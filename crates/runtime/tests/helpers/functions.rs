//! The helpers of maps as programs call them: by a pointer to a key, and by a key that is given itself, which try a quick way first:
//! the same results, the same values, and the same errors for what is not the program's.

use crate::ground::{COUNTS, FIRST, HALVES, LONG, PLAIN, SUMS, WORDS, World};
use runtime::{Adder, Function, Locked, PtRegs, Rseq, helpers};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::maps::{HelperError, ReadWay};
use wire::{ConsumerDesc, Helper, Hit, ProgramDesc, needs};

const ENOENT: u64 = -2i64 as u64;
const EINVAL: u64 = -22i64 as u64;

/// A run of a program whose frames are words here.
struct Run {
    world: World,
    desc: Box<ProgramDesc>,
    _consumer: Box<ConsumerDesc>,
    hit: Hit,
    table: [Function; wire::HELPERS_LEN],
}

/// The program's frames, and the saved registers above.
type Frames = [u64; 64 + size_of::<PtRegs>() / 8];

impl Run {
    fn new<A: Adder>(frames: &mut Frames, bits: u64) -> Run {
        let world = World::new(ReadWay::VmReadv);
        // SAFETY: plain numbers.
        let mut desc: Box<ProgramDesc> = Box::new(unsafe { std::mem::zeroed() });
        desc.maps = std::ptr::from_ref(world.head) as u64;
        desc.needs.store(bits, Relaxed);
        // SAFETY: plain numbers.
        let mut consumer: Box<ConsumerDesc> = Box::new(unsafe { std::mem::zeroed() });
        consumer.program = std::ptr::from_ref(&*desc) as u64;
        let given = world.scratch.as_ptr() as u64;
        let hit = Hit {
            regs: frames[64..].as_mut_ptr() as u64,
            consumer: std::ptr::from_ref(&*consumer) as u64,
            copy: 4096,
            stack: given,
            scratch: given + wire::STACK_LEN as u64,
            ..Hit::default()
        };
        Run { world, desc, _consumer: consumer, hit, table: helpers::<A>() }
    }

    fn call(&self, helper: Helper, map: usize, key: u64, value: u64) -> u64 {
        let hit = Hit { site: std::ptr::from_ref(&self.world.site) as u64, ..self.hit };
        let hit = std::ptr::from_ref(&hit).cast_mut();
        // SAFETY: the run's own, as the agent makes it; helpers look at every pointer.
        unsafe { self.table[helper as usize](self.world.handle(map), key, value, 0, 0, hit) }
    }

    /// The value of a word that a key has.
    fn value(&self, map: usize, key: u64) -> Option<u64> {
        let table = self.world.maps.table(map - FIRST);
        let mut value = [0; 8];
        let slot = table.find(&key.to_ne_bytes()).ok()?;
        assert!(table.value(slot, &mut value));
        Some(u64::from_ne_bytes(value))
    }

    fn sum(&self, map: usize, key: u64) -> u64 {
        let table = self.world.maps.table(map - FIRST);
        table.find(&key.to_ne_bytes()[..table.key_bytes()]).map_or(0, |slot| table.aggregated(slot))
    }
}

/// `key`: where the program has its key, of those that are its own.
fn used<A: Adder>(bits: u64, key: impl Fn(&World, &mut Frames) -> u64) {
    let mut frames: Frames = [0; _];
    let run = Run::new::<A>(&mut frames, bits);
    let at = key(&run.world, &mut frames);
    // SAFETY: the program's own word.
    let put = |word: u64| unsafe { (at as *mut u64).write_unaligned(word) };
    for n in 0..200u64 {
        put(n % 7);
        assert_eq!(run.call(Helper::Aggregate, COUNTS, at, 1), 0);
        assert_eq!(run.call(Helper::Aggregate, SUMS, at, n), 0);
        assert_eq!(run.call(Helper::Aggregate, HALVES, at, 1), 0);
        let made = run.call(Helper::LookupOrInit, PLAIN, at, 0);
        assert!(made != 0 && run.call(Helper::MapLookup, PLAIN, at, 0) == made);
        // The same keys by themselves; of a half the rest is nothing.
        assert_eq!(run.call(Helper::WordAggregate, COUNTS, n % 7, 1), 0);
        assert_eq!(run.call(Helper::WordAggregate, SUMS, n % 7, n), 0);
        assert_eq!(run.call(Helper::WordAggregate, HALVES, (n << 32) | (n % 7), 1), 0);
        assert_eq!(run.call(Helper::WordLookup, PLAIN, n % 7, 0), made);
        assert_eq!(run.call(Helper::WordLookupOrInit, PLAIN, n % 7, 0), made);
    }
    for key in 0..7 {
        let values = (0..200).filter(|n| n % 7 == key);
        assert_eq!(run.sum(COUNTS, key), 2 * values.clone().count() as u64);
        assert_eq!(run.sum(HALVES, key), 2 * values.clone().count() as u64);
        assert_eq!(run.sum(SUMS, key), 2 * values.sum::<u64>());
    }
    put(99);
    assert_eq!(run.call(Helper::MapLookup, PLAIN, at, 0), 0);
    assert_eq!(run.call(Helper::WordLookup, PLAIN, 99, 0), 0);
    assert_eq!(run.world.errors(), []);
    assert!(run.desc.needs.load(Relaxed) == bits);
}

#[test]
fn a_key_is_found_in_frames_in_a_given_stack_and_in_scratch_in_both_builds() {
    let in_frames = |_: &World, frames: &mut Frames| frames[5..].as_mut_ptr() as u64;
    let is_odd = |_: &World, frames: &mut Frames| frames[9..].as_mut_ptr() as u64 + 3;
    let last = |_: &World, frames: &mut Frames| frames[63..].as_mut_ptr() as u64;
    let given = |world: &World, _: &mut Frames| world.scratch[3].as_ptr() as u64;
    for bits in [0, needs::WORKSPACE] {
        used::<Rseq>(bits, in_frames);
        used::<Locked>(bits, in_frames);
        used::<Rseq>(bits, is_odd);
        used::<Rseq>(bits, last);
    }
    for bits in [needs::WORKSPACE, needs::WORKSPACE | needs::CHECKED] {
        used::<Rseq>(bits, given);
        used::<Locked>(bits, given);
    }
}

/// What a thread does that notes something at an entry and takes it away at an exit.
fn notes<A: Adder>(bits: u64) {
    let mut frames: Frames = [0; _];
    let run = Run::new::<A>(&mut frames, bits);
    let (key, value) = (frames[5..].as_mut_ptr(), frames[7..].as_mut_ptr());
    let (key_at, value_at) = (key as u64, value as u64);
    // SAFETY: the program's own words.
    let put = |at: *mut u64, word: u64| unsafe { at.write_volatile(word) };
    for n in 0..300u64 {
        put(key, n % 5);
        put(value, 1000 + n);
        assert_eq!(run.call(Helper::MapUpdate, WORDS, key_at, value_at), 0);
        assert_eq!(run.value(WORDS, n % 5), Some(1000 + n));
        let at = run.call(Helper::MapLookup, WORDS, key_at, 0);
        // SAFETY: the value's address, in memory that is never freed.
        assert_eq!(unsafe { (at as *const u64).read() }, 1000 + n);
        if n % 3 == 0 {
            assert_eq!(run.call(Helper::MapDelete, WORDS, key_at, 0), 0);
            assert_eq!(run.call(Helper::MapDelete, WORDS, key_at, 0), ENOENT);
            assert_eq!((run.call(Helper::MapLookup, WORDS, key_at, 0), run.value(WORDS, n % 5)), (0, None));
        }
    }
    // The same by words.
    for n in 0..300u64 {
        assert_eq!(run.call(Helper::WordUpdate, WORDS, n % 5, 2000 + n), 0);
        assert_eq!(run.value(WORDS, n % 5), Some(2000 + n));
        let at = run.call(Helper::WordLookup, WORDS, n % 5, 0);
        // SAFETY: the value's address, in memory that is never freed.
        assert_eq!(unsafe { (at as *const u64).read() }, 2000 + n);
        if n % 3 == 0 {
            assert_eq!(run.call(Helper::WordDelete, WORDS, n % 5, 0), 0);
            assert_eq!(run.call(Helper::WordDelete, WORDS, n % 5, 0), ENOENT);
            assert_eq!((run.call(Helper::WordLookup, WORDS, n % 5, 0), run.value(WORDS, n % 5)), (0, None));
        }
    }
    // What is wrong is refused as ever.
    put(key, 0);
    assert_eq!(run.call(Helper::MapUpdate, WORDS, key_at, 0), EINVAL);
    assert_eq!(run.call(Helper::MapUpdate, WORDS, key_at, run.hit.regs + size_of::<PtRegs>() as u64), EINVAL);
    assert_eq!(run.call(Helper::MapDelete, WORDS, 8, 0), EINVAL);
    assert_eq!(run.world.errors(), [(HelperError::BadArgument, 3)]);
}

#[test]
fn a_note_is_taken_and_taken_away_in_both_builds() {
    notes::<Rseq>(0);
    notes::<Locked>(0);
}

#[test]
fn a_constant_is_a_key() {
    let mut frames: Frames = [0; _];
    let run = Run::new::<Rseq>(&mut frames, 0);
    let constants = std::ptr::from_ref(run.world.head) as u64 + run.world.maps.constants() as u64;
    (0..9).for_each(|_| assert_eq!(run.call(Helper::Aggregate, COUNTS, constants, 0), 0));
    assert_eq!(run.sum(COUNTS, u64::from_ne_bytes(*b"constant")), 9);
    // Of the next one the last byte is none of the constants.
    assert_ne!(run.call(Helper::Aggregate, COUNTS, constants + 2, 0), 0);
    assert_eq!(run.world.errors(), [(HelperError::BadArgument, 1)]);
}

#[test]
fn a_pointer_that_is_not_the_programs_is_refused_by_each() {
    let mut frames: Frames = [0; _];
    let outside = Box::new(AtomicU64::new(7));
    for bits in [0, needs::CHECKED] {
        let run = Run::new::<Rseq>(&mut frames, bits);
        // What is wrong is a key that is there: whoever reads it finds it.
        let own = std::ptr::from_ref(run.world.head) as u64 + run.world.maps.constants() as u64;
        for (map, helper) in [(COUNTS, Helper::Aggregate), (PLAIN, Helper::LookupOrInit)] {
            run.call(helper, map, own, 1);
        }
        let regs = run.hit.regs;
        let frames_at = frames[5..].as_ptr() as u64;
        let mut wrong = vec![0, 1, u64::MAX, u64::MAX - 7, 1 << 47, outside.as_ptr() as u64];
        wrong.push(regs + size_of::<PtRegs>() as u64 - 7);
        if bits & needs::CHECKED != 0 {
            wrong.push(frames_at);
        }
        let mut wanted = 0;
        for at in wrong {
            for (map, helper) in
                [(COUNTS, Helper::Aggregate), (PLAIN, Helper::LookupOrInit), (PLAIN, Helper::MapLookup)]
            {
                run.call(helper, map, at, 1);
                wanted += 1;
                assert_eq!(run.world.errors(), [(HelperError::BadArgument, wanted)], "{helper:?} {at:#x}");
            }
        }
        for number in [0, 1, 2, 1000] {
            for helper in [Helper::Aggregate, Helper::WordAggregate, Helper::WordUpdate, Helper::WordDelete] {
                assert_ne!(run.call(helper, number, own, 1), 0);
                wanted += 1;
            }
            assert_eq!(run.call(Helper::WordLookup, number, own, 1), 0);
            assert_eq!(run.call(Helper::WordLookupOrInit, number, own, 1), 0);
            wanted += 2;
        }
        // A key that is no word, and a value of an aggregate.
        assert_eq!(run.call(Helper::WordDelete, LONG, own, 1), EINVAL);
        assert_eq!(run.call(Helper::WordLookup, LONG, own, 1), 0);
        assert_eq!(run.call(Helper::WordUpdate, COUNTS, own, 1), EINVAL);
        wanted += 3;
        assert_eq!(run.world.errors(), [(HelperError::BadArgument, wanted)]);
        assert_eq!(outside.load(Relaxed), 7);
    }
}
