//! The ring: threads, signal handlers, another process (N1 to N4).

use map::{Error, Next, Reader, Ring};
use objcache::{Arena, CHUNK};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A record: who, its number, and as many copies of both as the number says.
fn record(who: u64, n: u64) -> Vec<u8> {
    let words = 2 + (n * 7 + who) % 9;
    let word = |i: u64| if i.is_multiple_of(2) { who } else { n };
    let bytes: Vec<u8> = (0..words).flat_map(|i| word(i).to_ne_bytes()).collect();
    // Odd lengths too.
    bytes[..bytes.len() - (n % 8) as usize * usize::from(words > 2)].to_vec()
}

/// Who and number of a record that is whole.
fn check(bytes: &[u8]) -> (u64, u64) {
    let word = |i: usize| u64::from_ne_bytes(bytes[i * 8..][..8].try_into().unwrap());
    let (who, n) = (word(0), word(1));
    assert_eq!(bytes, record(who, n), "torn");
    (who, n)
}

fn ring(bytes: usize) -> Ring {
    Ring::create(&Arena::private(256 * CHUNK).unwrap(), bytes).unwrap()
}

#[test]
fn records_come_whole_and_in_order_and_losses_are_counted() {
    let ring = ring(1 << 12);
    // SAFETY: the only reader.
    let mut reader = unsafe { Reader::new(ring.clone()) };
    let produced = AtomicU64::new(0);
    let mut read = 0;
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..3)
            .map(|who| {
                let (ring, produced) = (&ring, &produced);
                s.spawn(move || {
                    for n in 0..100_000 {
                        produced.fetch_add(1, Relaxed);
                        if ring.output(&record(who, n)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let (mut buffer, mut last) = (Vec::new(), [None; 3]);
        loop {
            let done = threads.iter().all(|t| t.is_finished());
            while reader.next(&mut buffer) == Next::Record {
                let (who, n) = check(&buffer);
                assert!(last[who as usize] < Some(n), "out of order");
                last[who as usize] = Some(n);
                read += 1;
            }
            if done {
                break;
            }
        }
    });
    assert_eq!(read + ring.lost(), produced.load(Relaxed));
    assert!(read > 1000 && ring.lost() > 0, "read {read}, lost {}", ring.lost());
    assert_eq!(reader.next(&mut Vec::new()), Next::Empty);
}

#[test]
fn an_open_record_holds_up_those_behind_it_and_a_dropped_one_is_left_out() {
    let ring = ring(1 << 12);
    // SAFETY: the only reader.
    let mut reader = unsafe { Reader::new(ring.clone()) };
    let mut buffer = Vec::new();
    assert_eq!(reader.next(&mut buffer), Next::Empty);
    let open = ring.reserve(100).unwrap();
    ring.output(b"behind").unwrap();
    assert_eq!(reader.next(&mut buffer), Next::Open);
    drop(open);
    assert_eq!((reader.next(&mut buffer), &buffer[..]), (Next::Record, &b"behind"[..]));
    std::mem::forget(ring.reserve(10).unwrap());
    ring.output(b"after").unwrap();
    assert_eq!(reader.next(&mut buffer), Next::Open);
    // SAFETY: the producer has forgotten it.
    assert!(unsafe { reader.skip_open() });
    assert_eq!((reader.next(&mut buffer), &buffer[..]), (Next::Record, &b"after"[..]));
    assert_eq!(reader.abandoned(), 1);
}

#[test]
fn too_long_is_an_error_and_a_reader_that_never_comes_costs_records_alone() {
    let ring = ring(1 << 12);
    assert_eq!(ring.output(&[0; 4096]).err(), Some(Error::TooLong));
    let lost = (0..1000).filter(|_| ring.output(&[1; 32]) == Err(Error::Full)).count();
    assert!(lost > 800);
    assert_eq!(ring.lost(), lost as u64);
}

static RING: OnceLock<Ring> = OnceLock::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    let n = HANDLED.fetch_add(1, Relaxed);
    let mut words = [0u64; 3];
    words[0] = 1 << 40;
    words[1] = n;
    let bytes: &[u8; 16] = &std::array::from_fn(|i| words[i / 8].to_ne_bytes()[i % 8]);
    // Two words: `record` gives the same if the length comes out as two.
    let _ = RING.get().unwrap().output(bytes);
}

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

#[test]
fn a_handler_produces_into_the_ring_that_it_interrupts() {
    const ENOUGH: u64 = 2000;
    const CPU_MAX_NS: u64 = 60_000_000_000;
    let ring = RING.get_or_init(|| ring(1 << 16));
    // SAFETY: the handler only produces.
    unsafe { signal(10, handler as *const () as usize) };
    let (tid, stop, produced) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    // SAFETY: the only reader.
    let mut reader = unsafe { Reader::new(ring.clone()) };
    let (mut mine, mut handlers) = (0, 0);
    std::thread::scope(|s| {
        s.spawn(|| {
            tid.store(u64::from(sys::gettid()), Relaxed);
            let mut n = 0;
            while !stop.load(Relaxed) {
                n += 1;
                let _ = ring.output(&record(0, n));
            }
            produced.store(n, Relaxed);
            tid.store(u64::MAX, Relaxed);
        });
        while tid.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        let mut buffer = Vec::new();
        let mut read = || {
            while reader.next(&mut buffer) == Next::Record {
                if u64::from_ne_bytes(buffer[..8].try_into().unwrap()) == 1 << 40 {
                    assert_eq!(buffer.len(), 16);
                    handlers += 1;
                } else {
                    check(&buffer);
                    mine += 1;
                }
            }
        };
        // Signals that come while one waits are one: on a busy machine a few hundred a second are handled. What we have run
        // ourselves tells whether the other thread had its share.
        while HANDLED.load(Relaxed) < ENOUGH && sys::thread_cpu_ns() < CPU_MAX_NS {
            let args = [sys::getpid() as usize, tid.load(Relaxed) as usize, 10, 0, 0, 0];
            // SAFETY: tgkill takes numbers, and the thread lives: it waits for `stop`.
            let _ = unsafe { sys::syscall(sys::nr::TGKILL, args) };
            read();
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
        while tid.load(Relaxed) != u64::MAX {
            read();
        }
        read();
    });
    assert!(HANDLED.load(Relaxed) >= ENOUGH, "{HANDLED:?} handlers");
    assert_eq!(mine + handlers + ring.lost(), produced.load(Relaxed) + HANDLED.load(Relaxed));
    assert!(mine > 0 && handlers > 0);
}

#[test]
fn another_process_reads_what_this_one_produces() {
    let (file, bytes) = (sys::memfd_inheritable(c"ring", 16 * CHUNK).unwrap(), 16 * CHUNK);
    // SAFETY: the two processes of this test alone have the file, and change it through the ring.
    let arena = unsafe { Arena::in_file(file, bytes) }.unwrap();
    let ring = Ring::create(&arena, 1 << 14).unwrap();
    let (offset, total) = (ring.offset(), 200_000u64);
    // SAFETY: the child uses the mapping, and neither locks nor memory of other threads.
    let child = unsafe { fork() };
    if child == 0 {
        let map = sys::mapping::SharedMapping::of_file(file, bytes).unwrap();
        // SAFETY: the same arena, at another address, mapped to the end of this process.
        let ring = unsafe { Ring::attach(std::ptr::NonNull::new(map.base()).unwrap(), offset) };
        // SAFETY: the only reader.
        let mut reader = unsafe { Reader::new(ring.clone()) };
        let (mut read, mut good) = (0, true);
        let mut buffer = Vec::with_capacity(4096);
        while good && read + ring.lost() < total {
            if reader.next(&mut buffer) == Next::Record {
                let n = u64::from_ne_bytes(buffer[8..16].try_into().unwrap_or_default());
                good = buffer == record(5, n);
                read += 1;
            }
        }
        // SAFETY: ends this process at once.
        unsafe { _exit(i32::from(!good || read == 0)) };
    }
    for n in 0..total {
        let _ = ring.output(&record(5, n));
    }
    let (status, _) = wait(child);
    assert_eq!(status, 0, "the reading process saw a torn record, or none");
}

fn wait(child: i32) -> (i32, i32) {
    let mut status = 0i32;
    // SAFETY: the kernel writes one int to `status`.
    let got =
        unsafe { sys::syscall(sys::nr::WAIT4, [child as usize, (&raw mut status) as usize, 0, 0, 0, 0]) };
    (status, got as i32)
}
