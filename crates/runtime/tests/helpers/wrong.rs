//! Helpers that are asked for what is not the program's: nothing is touched, and each time is counted.

use crate::ground::{COUNTS, LIMIT, PLAIN, World};
use runtime::{Around, Piece, Rseq};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::maps::{HelperError, ReadWay};

type Call = (&'static str, fn(&Around<'_>, [u64; 4]) -> u64);

/// Each helper that takes an address, with the places of its pointers and handles.
const CALLS: [(Call, &[usize]); 18] = [
    (("map_lookup", |a, [x, y, ..]| a.map_lookup::<Rseq>(x, y)), &[0, 1]),
    (("lookup_or_init", |a, [x, y, ..]| a.lookup_or_init::<Rseq>(x, y)), &[0, 1]),
    (("map_update", |a, [x, y, z, w]| a.map_update::<Rseq>(x, y, z, w)), &[0, 1, 2]),
    (("map_delete", |a, [x, y, ..]| a.map_delete::<Rseq>(x, y)), &[0, 1]),
    (("aggregate", |a, [x, y, z, w]| a.aggregate::<Rseq>(x, y, z, w)), &[0, 1]),
    (("aggregated", |a, [x, y, ..]| a.aggregated(x, y)), &[0, 1]),
    (("map_len", |a, [x, ..]| a.map_len(x)), &[0]),
    (("map_next", |a, [x, y, z, w]| a.map_next(x, y, z, w)), &[0, 1, 2, 3]),
    (("ring_output", |a, [x, y, z, _]| a.ring_output::<Rseq>(x, y, z)), &[0, 1]),
    (("str_compare", |a, [x, y, z, w]| a.str_compare(x, y, z, w)), &[0, 2]),
    (("mem_compare", |a, [x, y, z, _]| a.mem_compare(x, y, z)), &[0, 1]),
    (("str_find", |a, [x, y, z, w]| a.str_find(x, y, z, w)), &[0, 2]),
    (("str_append", |a, [x, y, z, w]| a.str_append(x, y, z, w)), &[0, 2]),
    (("read_own", |a, [x, y, z, _]| a.read_own(x, y, z)), &[0, 2]),
    (("mem_zero", |a, [x, y, ..]| a.mem_zero(x, y)), &[0]),
    (("str_tidy", |a, [x, y, ..]| a.str_tidy(x, y)), &[0]),
    (("str_len", |a, [x, y, ..]| a.str_len(x, y)), &[0]),
    (("comm", |a, [x, y, ..]| a.comm(x, y)), &[0]),
];

/// Arguments with which a helper does its work.
fn good(world: &World, name: &str) -> [u64; 4] {
    let at = |n: usize| world.stack[n].as_ptr() as u64;
    match name {
        "aggregate" | "aggregated" => [world.handle(COUNTS), at(0), 1, 1],
        "map_next" => [world.handle(PLAIN), at(4), at(5), at(6)],
        "map_update" => [world.handle(PLAIN), at(0), at(8), 0],
        "ring_output" => [world.handle(2), at(0), 16, 0],
        "str_compare" | "str_find" | "str_append" => [at(0), 16, at(8), 16],
        "read_own" => [at(0), 16, at(8), 0],
        "mem_compare" => [at(0), at(8), 16, 0],
        "mem_zero" | "str_tidy" | "str_len" | "comm" => [at(0), 16, 0, 0],
        _ => [world.handle(PLAIN), at(0), 0, 0],
    }
}

#[test]
fn a_pointer_that_is_not_the_programs_is_refused_by_every_helper() {
    let world = World::new(ReadWay::VmReadv);
    let around = world.around();
    let outside = AtomicU64::new(0x5a5a);
    let head = std::ptr::from_ref(world.head) as u64;
    let mut wanted = 0;
    for ((name, call), pointers) in CALLS {
        assert_eq!(world.maps.errors(HelperError::BadArgument), wanted, "before {name}");
        call(&around, good(&world, name));
        assert_eq!(world.maps.errors(HelperError::BadArgument), wanted, "{name} with what is right");
        for pointer in pointers {
            let wrong = [
                0,
                1,
                8,
                u64::MAX,
                u64::MAX - 7,
                1 << 47,
                0xffff_8000_0000_0000,
                outside.as_ptr() as u64,
                head,
                head + world.head.errors,
                head + world.head.rings,
                // The last byte alone, and the one before the first.
                world.stack[64].as_ptr() as u64 - 1,
                world.stack[64].as_ptr() as u64,
                world.stack[0].as_ptr() as u64 - 1,
                head + world.head.len - 1,
                head + world.head.data - 8,
                world.handle(PLAIN) + 4,
                world.handle(LIMIT),
            ];
            for wrong in wrong {
                let mut args = good(&world, name);
                args[*pointer] = wrong;
                call(&around, args);
                wanted += 1;
                assert_eq!(
                    world.maps.errors(HelperError::BadArgument),
                    wanted,
                    "{name} {pointer}: {wrong:#x}"
                );
            }
        }
    }
    assert_eq!((outside.load(Relaxed), world.stack[64].load(Relaxed)), (0x5a5a, 0));
    assert!(world.errors().iter().all(|(cause, _)| *cause == HelperError::BadArgument));
}

#[test]
fn a_stack_that_was_given_to_a_program_serves_every_helper() {
    let world = World::new(ReadWay::VmReadv);
    let on_thread = world.around();
    let around = Around { stack: Piece::default(), given: on_thread.stack, ..on_thread };
    for ((name, call), _) in CALLS {
        call(&around, good(&world, name));
        assert_eq!(world.errors(), [], "{name}");
    }
}

#[test]
fn a_length_that_is_too_large_is_refused_by_every_helper() {
    let world = World::new(ReadWay::VmReadv);
    let around = world.around();
    let lengths: [(&str, &[usize]); 9] = [
        ("ring_output", &[2]),
        ("str_compare", &[1, 3]),
        ("mem_compare", &[2]),
        ("str_find", &[1, 3]),
        ("str_append", &[1, 3]),
        ("read_own", &[1]),
        ("mem_zero", &[1]),
        ("str_tidy", &[1]),
        ("str_len", &[1]),
    ];
    let mut wanted = 0;
    for (name, places) in lengths {
        let ((_, call), _) = CALLS.into_iter().find(|((n, _), _)| *n == name).unwrap();
        for place in places {
            for len in [513, 1 << 20, u64::from(u32::MAX), i64::MAX as u64, u64::MAX, u64::MAX - 15] {
                let mut args = good(&world, name);
                args[*place] = len;
                call(&around, args);
                wanted += 1;
                assert_eq!(world.errors(), [(HelperError::BadArgument, wanted)], "{name}: {len:#x}");
            }
        }
    }
    assert_eq!(world.stack[64].load(Relaxed), 0);
}
