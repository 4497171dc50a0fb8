//! What helpers do when they are asked for what there is.

use crate::ground::{COUNTS, FIRST, LIMIT, PLAIN, SUMS, World};
use runtime::{Adder, Locked, Rseq};
use std::sync::atomic::Ordering::Relaxed;
use wire::maps::{HelperError, ReadWay};

const ENOENT: u64 = -2i64 as u64;
const E2BIG: u64 = -7i64 as u64;

fn maps_are_used<A: Adder>() {
    let world = World::new(ReadWay::VmReadv);
    let around = world.around();
    let (plain, counts, sums) = (world.handle(PLAIN), world.handle(COUNTS), world.handle(SUMS));
    let (key, value) = (world.put(0, 7), world.put(8, 11));
    assert_eq!((around.map_lookup::<A>(plain, key), around.map_delete::<A>(plain, key)), (0, ENOENT));
    assert_eq!(around.map_update::<A>(plain, key, value, 0), 0);
    let at = around.map_lookup::<A>(plain, key);
    // SAFETY: the value's address, in memory that is never freed.
    assert_eq!(unsafe { (at as *const u64).read() }, 11);
    assert_eq!(around.lookup_or_init::<A>(plain, key), at);
    assert_eq!(around.map_update::<A>(plain, key, value, 1), -17i64 as u64);
    for n in 0..5 {
        (0..=n).for_each(|_| assert_eq!(around.aggregate::<A>(counts, world.put(0, n), 0, 0), 0));
        assert_eq!(around.aggregate::<A>(sums, world.put(0, n), 100 * n, 0), 0);
        assert_eq!(around.aggregated(counts, key), n + 1);
    }
    assert_eq!((around.map_len(counts), around.map_len(plain)), (5, 1));
    let (cursor, key_to, value_to) = (world.put(20, 0), world.put(21, 0), world.put(22, 0));
    let mut seen = Vec::new();
    while around.map_next(sums, cursor, key_to, value_to) == 1 {
        seen.push((world.stack[21].load(Relaxed), world.stack[22].load(Relaxed)));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..5).map(|n| (n, 100 * n)).collect::<Vec<_>>());
    // The controller sees the same.
    let table = world.maps.table(SUMS - FIRST);
    assert_eq!(table.aggregated(table.find(&3u64.to_ne_bytes()).unwrap()), 300);
    assert_eq!(world.errors(), []);
    (10..10 + LIMIT as u64 - 1)
        .for_each(|n| assert_ne!(around.lookup_or_init::<A>(plain, world.put(0, n)), 0));
    assert_eq!(around.lookup_or_init::<A>(plain, world.put(0, 99)), 0);
    assert_eq!(around.map_update::<A>(plain, key, value, 0), E2BIG);
    assert_eq!(world.errors(), [(HelperError::MapFull, 2)]);
    let scratch = world.handle(1);
    assert_eq!(around.map_lookup::<A>(scratch, key), world.scratch.as_ptr() as u64);
}

#[test]
fn maps_do_what_their_contracts_say_in_both_builds() {
    maps_are_used::<Rseq>();
    maps_are_used::<Locked>();
}

#[test]
fn records_come_whole_with_their_time_or_are_counted() {
    let mut world = World::new(ReadWay::VmReadv);
    let before = sys::monotonic_ns();
    for n in 0..1000u64 {
        world.put(0, n);
        let (around, ring) = (world.around(), world.handle(2));
        let len = 8 + n % 40;
        assert_eq!(around.ring_output::<Rseq>(ring, world.stack.as_ptr() as u64, len), 0);
        let records = world.maps.take_records(u64::MAX);
        assert_eq!((records.len(), records[0].bytes.len() as u64), (1, len));
        assert_eq!(records[0].bytes[..8], n.to_ne_bytes());
        assert!((before..=sys::monotonic_ns()).contains(&records[0].stamp));
    }
    let around = world.around();
    let all =
        (0..10_000).map(|_| around.ring_output::<Rseq>(world.handle(2), world.stack.as_ptr() as u64, 64));
    let lost = all.filter(|result| *result == -28i64 as u64).count() as u64;
    assert_eq!(around.ring_output::<Rseq>(world.handle(2), world.scratch.as_ptr() as u64, 60_000), E2BIG);
    assert_eq!(world.errors(), [(HelperError::RingFull, lost), (HelperError::RecordTooLong, 1)]);
    let got = world.maps.take_records(u64::MAX).len() as u64;
    assert_eq!((got + lost, got > 10), (10_000, true));
}

#[test]
fn texts_end_at_their_nul() {
    let world = World::new(ReadWay::VmReadv);
    let around = world.around();
    let minus = -1i64 as u64;
    let (a, b) = (world.text(0, b"abc\0zzz"), world.text(4, b"abd\0"));
    assert_eq!(around.str_compare(a, 8, b, 8), minus);
    assert_eq!((around.str_compare(b, 8, a, 8), around.str_compare(a, 2, b, 2)), (1, 0));
    assert_eq!(around.mem_compare(a, b, 4), u64::from(b'c').wrapping_sub(u64::from(b'd')));
    assert_eq!((around.str_len(a, 8), around.str_len(a, 2)), (3, 2));
    assert_eq!(around.str_find(a, 8, world.text(8, b"bc\0"), 8), 1);
    assert_eq!((around.str_find(a, 8, world.text(8, b"z\0"), 8), around.str_find(a, 8, b, 0)), (minus, 0));
    assert_eq!((around.str_tidy(a, 8), world.bytes(0, 8)), (0, b"abc\0\0\0\0\0".to_vec()));
    assert_eq!((around.str_append(a, 6, b, 8), world.bytes(0, 8)), (0, b"abcabd\0\0".to_vec()));
    assert_eq!((around.read_own(b, 3, a), world.bytes(4, 4)), (0, b"abc\0".to_vec()));
    assert_eq!((around.mem_zero(a, 8), world.bytes(0, 8)), (0, vec![0; 8]));
    let constants = std::ptr::from_ref(world.head) as u64 + world.maps.constants() as u64;
    assert_eq!((around.read_own(a, 9, constants), world.bytes(0, 9)), (0, b"constant\0".to_vec()));
    assert_eq!(world.errors(), []);
}

#[test]
fn who_runs_where_and_when_is_what_the_system_says() {
    let world = World::new(ReadWay::VmReadv);
    let around = world.around();
    assert_eq!(around.thread::<Rseq>(), sys::gettid());
    assert_eq!(around.about::<Rseq>(2), u64::from(sys::getpid()));
    assert_eq!(around.about::<Rseq>(0), u64::from(sys::getppid()));
    assert_eq!(around.uid_gid(), u64::from(sys::getgid()) << 32 | u64::from(sys::getuid()));
    assert!(around.cpu() < u64::from(percpu::possible_cpus()));
    assert_eq!(around.comm(world.put(0, 0), 16), 0);
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
    assert!(world.bytes(0, 16).starts_with(name.trim_end().as_bytes()));
    assert_eq!((around.comm(world.put(0, u64::MAX), 3), world.bytes(0, 3)[2]), (0, 0));
    let random: std::collections::BTreeSet<u64> = (0..1000).map(|_| around.random()).collect();
    assert!(random.len() > 900 && random.iter().all(|n| *n <= u64::from(u32::MAX)), "{}", random.len());
    assert_eq!(world.errors(), []);
    around.about::<Rseq>(1);
    assert_eq!(world.errors(), [(HelperError::NoHelper, 1)]);
}

/// Each clock lies between two readings of the kernel's, and is at most so much ahead, whether the counter tells it, the kernel, or both
/// by turns; and it never goes back. Readings of the kernel's are on both sides, so that whoever is held up makes nothing wrong.
#[test]
fn clocks_are_the_kernels_by_whichever_way() {
    let is_by_counter =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .is_ok_and(|name| name.trim() == "tsc");
    let ahead = 2 * map::AHEAD;
    for needs in [0, wire::needs::COUNTER] {
        let mut world = World::new(ReadWay::VmReadv);
        *world.desc.needs.get_mut() = needs;
        let mut last = [0; 3];
        for round in 0..300 {
            // Some pieces end before the next one is there.
            if round % 100 < 60 {
                world.maps.keep_clock();
            }
            let around = world.around();
            type Read = fn(&runtime::Around<'_>) -> u64;
            let clocks: [(usize, Read); 3] = [
                (sys::MONOTONIC, |around| around.monotonic()),
                (sys::BOOTTIME, |around| around.boot_time()),
                (sys::TAI, |around| around.atomic_time()),
            ];
            for ((clock, read), last) in clocks.into_iter().zip(&mut last) {
                let (before, said, after) = (sys::clock_ns(clock), read(&around), sys::clock_ns(clock));
                // The distance of the other two clocks is known to a microsecond.
                let off = if clock == sys::MONOTONIC { 0 } else { 2_000 };
                assert!(
                    said + off >= before && said <= after + ahead + off,
                    "{clock}: {before} {said} {after}"
                );
                assert!(said >= *last || clock != sys::MONOTONIC, "{said} after {last}");
                *last = said;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(world.errors(), []);
        assert_eq!(
            world.maps.clock().is_some() || world.head.clock.spans[0].version.load(Relaxed) > 0,
            is_by_counter
        );
    }
}

/// Where no system call may be made the counter's clock stands when the controller is late, and nothing is counted.
#[test]
fn without_system_calls_the_clock_is_the_counters_alone() {
    let mut world = World::new(ReadWay::Refused);
    assert_eq!(world.around().monotonic(), 0);
    assert_eq!(world.errors(), [(HelperError::ReadRefused, 1)]);
    *world.desc.needs.get_mut() = wire::needs::COUNTER;
    // SAFETY: reads a counter.
    let now = unsafe { core::arch::x86_64::_rdtsc() };
    let piece = |from, until, ns| map::Piece { from, until, ns, ns_per_tick: 1 << 32 };
    world.maps.set_clock(piece(now - 1000, now - 900, 5000));
    assert_eq!(world.around().monotonic(), 5100);
    world.maps.set_clock(piece(now - 900, u64::MAX, 5200));
    let said = world.around().monotonic();
    assert!(said > 6100, "{said}");
    assert_eq!(world.errors(), [(HelperError::ReadRefused, 1)]);
}
