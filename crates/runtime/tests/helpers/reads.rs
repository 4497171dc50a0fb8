//! Reads of memory that may not be there: never a signal, never a wrong byte, and each that failed is counted (F1, F2).

use crate::ground::World;
use runtime::Rseq;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use sys::mapping::{MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE};
use sys::mapping::{map, protect, unmap};
use wire::maps::{HelperError, ReadWay};

const PAGE: u64 = 4096;
const EFAULT: u64 = -14i64 as u64;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Pages of every kind, one behind the other: letters, nothing, not to be read, a file that became shorter, letters. Before the
/// first and behind the last there is one that is not to be read.
fn pages() -> u64 {
    let anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the system likes it.
    let at = unsafe { map(0, 7 * PAGE as usize, 0, anonymous, -1) }.unwrap() + PAGE;
    // SAFETY: our own pages.
    unsafe { protect(at, 5 * PAGE as usize, PROT_READ | PROT_WRITE) }.unwrap();
    // SAFETY: our own pages.
    unsafe { (at as *mut u8).write_bytes(b'a', 5 * PAGE as usize) };
    let page = |n: u64| at + n * PAGE;
    // SAFETY: our own, used by nobody.
    unsafe { unmap(page(1), PAGE as usize) }.unwrap();
    // SAFETY: as above.
    unsafe { protect(page(2), PAGE as usize, 0) }.unwrap();
    let file = sys::memfd(c"short", PAGE as usize).unwrap();
    // SAFETY: in the place of our own page.
    unsafe { map(page(3), PAGE as usize, PROT_READ, MAP_SHARED | MAP_FIXED, file) }.unwrap();
    // SAFETY: takes numbers.
    sys::check(unsafe { sys::syscall(sys::nr::FTRUNCATE, [file as usize, 0, 0, 0, 0, 0]) }).unwrap();
    at
}

#[test]
fn ten_thousand_reads_of_every_kind_of_address_raise_no_signal() {
    let world = World::new(ReadWay::VmReadv);
    let base = pages();
    let to = world.stack.as_ptr() as u64;
    let mut state = 0x1234_5679;
    let (mut failed, mut read) = (0, 0);
    let is_there =
        |at: u64| (base..base + PAGE).contains(&at) || (base + 4 * PAGE..base + 5 * PAGE).contains(&at);
    for n in 0..10_000u64 {
        let len = 1 + random(&mut state) % 300;
        let from = match random(&mut state) % 8 {
            0 => random(&mut state) % PAGE,
            1 => 1 << 47 | random(&mut state) >> 17,
            2 => u64::MAX - random(&mut state) % 64,
            // Across every border.
            3 => base + PAGE * (random(&mut state) % 6) - random(&mut state) % 32,
            _ => base + random(&mut state) % (5 * PAGE),
        };
        let around = world.around();
        if n % 2 == 0 {
            let result = around.probe_read::<Rseq>(to, len, from);
            // No read is longer than the page behind.
            if (base - PAGE..base + 6 * PAGE - 300).contains(&from) {
                assert_eq!(result == 0, is_there(from) && is_there(from + len - 1), "{from:#x} {len}");
            }
            let expected = if result == 0 && is_there(from) { b'a' } else { 0 };
            assert!(!is_there(from) || world.bytes(0, len as usize).iter().all(|b| *b == expected));
            (failed, read) = if result == 0 { (failed, read + 1) } else { (failed + 1, read) };
        } else {
            around.mem_zero(to, 512);
            let result = around.probe_read_text::<Rseq>(to, len, from);
            let text = world.bytes(0, len as usize);
            let there = (from..from + len.min(u64::MAX - from)).take_while(|at| is_there(*at)).count();
            if (base - PAGE..base + 6 * PAGE - 300).contains(&from) {
                assert_eq!((result == 0, text.iter().filter(|b| **b == b'a').count()), (there > 0, there));
            }
            (failed, read) = if result == 0 { (failed, read + 1) } else { (failed + 1, read) };
        }
    }
    assert_eq!(world.errors(), [(HelperError::ReadFault, failed)]);
    assert!(failed > 2_000 && read > 2_000, "{failed} failed, {read} did not");
}

#[test]
fn memory_that_another_thread_unmaps_all_the_time_is_read_or_not() {
    let world = World::new(ReadWay::VmReadv);
    let base = pages();
    let (is_over, to) = (AtomicBool::new(false), world.stack.as_ptr() as u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
                // SAFETY: our own page, which nobody uses but by reads that cannot fault.
                unsafe { map(base + PAGE, PAGE as usize, PROT_READ | PROT_WRITE, flags, -1) }.unwrap();
                thread::yield_now();
                // SAFETY: as above.
                unsafe { unmap(base + PAGE, PAGE as usize) }.unwrap();
            }
        });
        let (mut good, mut bad, mut tries) = (0u64, 0u64, 0u64);
        while good < 100 || bad < 100 || tries < 10_000 {
            let result = world.around().probe_read::<Rseq>(to, 64, base + PAGE + 100);
            assert!(result == 0 || result == EFAULT);
            assert!(world.bytes(0, 64).iter().all(|byte| *byte == 0));
            (good, bad) = if result == 0 { (good + 1, bad) } else { (good, bad + 1) };
            tries += 1;
        }
        is_over.store(true, Relaxed);
        assert_eq!(world.errors(), [(HelperError::ReadFault, bad)]);
    });
}

#[test]
fn the_threads_own_stack_is_read_without_a_call() {
    let world = World::new(ReadWay::Refused);
    let text = *b"a text on the stack\0";
    let mut around = world.around();
    let to = world.stack.as_ptr() as u64;
    around.stack_pointer = text.as_ptr() as u64;
    // As far as the page goes there is no doubt, on whatever stack.
    let in_page = PAGE - around.stack_pointer % PAGE;
    assert_eq!(
        around.probe_read::<Rseq>(to, text.len().min(in_page as usize) as u64, text.as_ptr() as u64),
        0
    );
    assert_eq!(world.bytes(0, 4), text[..4]);
    assert_eq!(world.errors(), []);
    // Elsewhere the process would have to be asked, and is not allowed to.
    let heap = Box::new([7u8; 64]);
    assert_eq!(around.probe_read::<Rseq>(to, 64, heap.as_ptr() as u64), EFAULT);
    assert_eq!(around.probe_read_text::<Rseq>(to, 64, heap.as_ptr() as u64), EFAULT);
    assert_eq!(world.bytes(0, 64), vec![0; 64]);
    assert_eq!(world.errors(), [(HelperError::ReadRefused, 2)]);
}

#[test]
fn below_and_beyond_the_proven_part_of_a_stack_the_kernel_is_asked() {
    let world = World::new(ReadWay::Refused);
    let base = pages();
    let to = world.stack.as_ptr() as u64;
    // A stack whose end is the end of its page, and nothing behind.
    for (stack_pointer, from, is_proven) in [
        (base + 100, base + 100, true),
        (base + 100, base + 99, false),
        (base + 100, base + PAGE - 8, true),
        (base + 100, base + PAGE - 7, false),
        (base + PAGE, base + PAGE, false),
    ] {
        let mut around = world.around();
        around.stack_pointer = stack_pointer;
        assert_eq!(around.probe_read::<Rseq>(to, 8, from) == 0, is_proven, "{:#x}", from - base);
    }
}

#[test]
fn a_text_goes_on_behind_the_proven_part_of_a_stack() {
    let world = World::new(ReadWay::VmReadv);
    let anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the system likes it.
    let base = unsafe { map(0, 2 * PAGE as usize, PROT_READ | PROT_WRITE, anonymous, -1) }.unwrap();
    let border = base + PAGE;
    let letters: Vec<u8> = (0..300u32).map(|n| b'a' + (n % 26) as u8).collect();
    for (before, len) in (0..20).flat_map(|before| [0, 1, 7, 8, 9, 63, 64, 65, 200].map(|len| (before, len)))
    {
        let (from, len) = (border - before, len as usize);
        // SAFETY: our own pages.
        unsafe { std::ptr::copy_nonoverlapping(letters.as_ptr(), from as *mut u8, len) };
        // SAFETY: as above.
        unsafe { ((from + len as u64) as *mut u8).write(0) };
        let mut around = world.around();
        around.stack_pointer = base + 100;
        for room in [1, 8, 33, 256] {
            let to = world.stack.as_ptr() as u64;
            around.mem_zero(to, 512);
            assert_eq!(around.probe_read_text::<Rseq>(to, room as u64, from), 0);
            let text = world.bytes(0, 512);
            let there = len.min(room);
            assert_eq!(text[..there], letters[..there], "{before} before, {len} long, room for {room}");
            assert!(
                text[there..].iter().all(|byte| *byte == 0),
                "{before} before, {len} long, room for {room}"
            );
        }
    }
    assert_eq!(world.errors(), []);
    // SAFETY: our own pages.
    unsafe { unmap(base, 2 * PAGE as usize) }.unwrap();
}
