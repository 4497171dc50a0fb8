//! Taking and giving from threads that move, and from signal handlers that interrupt both (V1 to V4).

use objcache::{Index, ObjectCache, View};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Writes who has the object over all of it, and looks whether it stays so.
fn use_object(view: View<'_>, index: Index, who: u64) {
    let at = view.payload(index).as_ptr().cast::<u64>();
    let words = view.size() / 8;
    for n in 0..words {
        // SAFETY: the object is ours and has so many words.
        unsafe { at.wrapping_add(n).write_volatile(who) };
    }
    for n in 0..words {
        // SAFETY: as above.
        assert_eq!(unsafe { at.wrapping_add(n).read_volatile() }, who, "somebody else writes to our object");
    }
}

/// Takes up to `n`, uses them, gives them back; how many there were.
fn turn(view: View<'_>, n: usize, who: u64) -> u64 {
    let mut held = [None; 160];
    for slot in held.iter_mut().take(n) {
        *slot = view.alloc();
        if let Some(index) = *slot {
            use_object(view, index, who);
        }
    }
    let mut got = 0;
    for index in held.into_iter().flatten() {
        use_object(view, index, who);
        // SAFETY: taken above.
        unsafe { view.free(index) };
        got += 1;
    }
    got
}

fn churn(rseq: bool) {
    let cache = ObjectCache::builder(56).rseq(rseq).build().unwrap();
    let view = cache.view();
    let got: u64 = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                s.spawn(move || {
                    let mut got = 0;
                    for n in 0..4000u64 {
                        if n % 64 == t {
                            let _ = sys::sched::pin_to_cpu((n / 64 % 2) as usize);
                        }
                        got += turn(view, 1 + (n * 7 + t * 31) as usize % 150, t << 32 | n);
                    }
                    got
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(got > 100_000, "only {got} objects were got");
    // SAFETY: nobody takes or gives now.
    let census = unsafe { cache.audit() }.unwrap();
    assert_eq!((census.live(), census.misuse), (0, 0), "{census:?}");
    assert_eq!(cache.destroy().wait(), Ok(()));
}

#[test]
fn threads_that_move_have_each_object_alone() {
    churn(true);
}

#[test]
fn threads_without_rseq_have_each_object_alone() {
    churn(false);
}

#[test]
fn threads_with_and_without_rseq_share_a_cache() {
    let cache = ObjectCache::builder(24).build().unwrap();
    let (base, offset) = (cache.arena().base(), cache.offset());
    // SAFETY: the cache lies there and outlives the threads; without rseq any process may look.
    let slow = unsafe { View::at(base, offset, percpu::RseqOffset::NONE) };
    std::thread::scope(|s| {
        for (t, view) in [cache.view(), slow, cache.view(), slow].into_iter().enumerate() {
            s.spawn(move || (0..3000).for_each(|n| _ = turn(view, 1 + n % 150, (t << 32 | n) as u64)));
        }
    });
    // SAFETY: nobody takes or gives now.
    let census = unsafe { cache.audit() }.unwrap();
    assert_eq!((census.live(), census.misuse), (0, 0), "{census:?}");
}

static CACHE: OnceLock<ObjectCache> = OnceLock::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    let view = CACHE.get().unwrap().view();
    HANDLED.fetch_add(turn(view, 30, u64::MAX), Relaxed);
    if let Some(index) = view.alloc() {
        // SAFETY: taken above, and no one else knows it.
        unsafe { view.free_rcu(index) };
    }
}

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
}

#[test]
fn a_handler_that_interrupts_takes_and_gives_too() {
    const SIGUSR1: usize = 10;
    const CPU_MAX_NS: u64 = 60_000_000_000;
    let cache = CACHE.get_or_init(|| ObjectCache::builder(40).build().unwrap());
    // SAFETY: the handler uses what is made for handlers.
    unsafe { signal(SIGUSR1 as i32, handler as *const () as usize) };
    let (tid, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            tid.store(u64::from(sys::gettid()), Relaxed);
            let mut n = 0;
            while !stop.load(Relaxed) {
                n += 1;
                turn(cache.view(), 1 + n % 150, n as u64);
            }
        });
        while tid.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        let args = [sys::getpid() as usize, tid.load(Relaxed) as usize, SIGUSR1, 0, 0, 0];
        // Signals that come while one waits are one. What we have run ourselves tells whether the other thread had its share.
        while HANDLED.load(Relaxed) < 20_000 && sys::thread_cpu_ns() < CPU_MAX_NS {
            // SAFETY: tgkill takes numbers, and the thread lives: it waits for `stop`.
            let _ = unsafe { sys::syscall(sys::nr::TGKILL, args) };
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
    });
    assert!(HANDLED.load(Relaxed) >= 20_000, "the handler got {} objects", HANDLED.load(Relaxed));
    assert!(cache.drain(Duration::from_secs(10)));
    // SAFETY: nobody takes or gives now.
    let census = unsafe { cache.audit() }.unwrap();
    assert_eq!((census.live(), census.misuse), (0, 0), "{census:?}");
}

#[test]
fn an_object_freed_twice_is_refused_and_counted() {
    let cache = ObjectCache::builder(16).build().unwrap();
    let object = cache.alloc().unwrap();
    // SAFETY: taken above; the second is what this test is about, and is refused.
    unsafe { cache.free(object) };
    // SAFETY: as above.
    unsafe { cache.free(object) };
    // SAFETY: as above.
    unsafe { cache.free_rcu(object) };
    // SAFETY: nobody takes or gives now.
    assert_eq!(unsafe { cache.audit() }.unwrap().misuse, 2);
}

#[test]
fn a_cache_without_objects_says_none_and_counts_it() {
    let arena = objcache::Arena::private(4 * objcache::CHUNK).unwrap();
    let cache = ObjectCache::builder(30_000).arena(&arena).build().unwrap();
    let mut all: Vec<NonNull<u8>> = Vec::new();
    while let Some(object) = cache.alloc_blocking() {
        all.push(object);
    }
    assert_eq!(all.len(), 4, "two chunks of two");
    let failed = cache.census().failed;
    assert!(cache.alloc().is_none());
    assert_eq!(cache.census().failed, failed + 1);
    for object in all {
        // SAFETY: taken above.
        unsafe { cache.free(object) };
    }
    // SAFETY: nobody takes or gives now.
    assert_eq!(unsafe { cache.audit() }.unwrap().live(), 0);
}
