//! Callbacks, barrier, lists (A1 to A3; checklist 4, 5, 13).

use rcu::{Domain, Flavour, Head};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

const MANY: usize = if cfg!(miri) { 20 } else { 5_000 };

fn lite(per_cpu: bool) -> Domain {
    let builder = Domain::builder("callbacks").flavour(Flavour::Lite).per_cpu_lists(per_cpu);
    builder.build().unwrap()
}

#[test]
fn every_callback_runs_once_from_many_threads_on_one_list_or_many() {
    for per_cpu in [false, true] {
        let domain = lite(per_cpu);
        let runs: Arc<Vec<AtomicU32>> = Arc::new((0..4 * MANY).map(|_| AtomicU32::new(0)).collect());
        thread::scope(|s| {
            for t in 0..4 {
                let (domain, runs) = (&domain, &runs);
                s.spawn(move || {
                    for i in 0..MANY {
                        let runs = runs.clone();
                        domain.call(move || {
                            runs[t * MANY + i].fetch_add(1, SeqCst);
                        });
                    }
                });
            }
        });
        domain.barrier();
        assert!(runs.iter().all(|n| n.load(SeqCst) == 1));
        domain.close().unwrap();
    }
}

#[test]
fn callbacks_of_one_thread_run_in_order_and_never_two_at_once() {
    let domain = lite(false);
    let (next, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU32::new(0)));
    for i in 0..MANY {
        let (next, inside) = (next.clone(), inside.clone());
        domain.call(move || {
            assert_eq!(inside.fetch_add(1, SeqCst), 0);
            assert_eq!(next.fetch_add(1, SeqCst), i);
            inside.fetch_sub(1, SeqCst);
        });
    }
    domain.barrier();
    assert_eq!(next.load(SeqCst), MANY);
}

#[test]
fn a_callback_waits_for_the_readers_before_it() {
    let domain = lite(false);
    let ran = Arc::new(AtomicU32::new(0));
    let guard = domain.lite();
    let seen = ran.clone();
    domain.call(move || seen.store(1, SeqCst));
    thread::sleep(Duration::from_millis(20));
    assert_eq!(ran.load(SeqCst), 0);
    drop(guard);
    domain.barrier();
    assert_eq!(ran.load(SeqCst), 1);
}

#[test]
fn barrier_without_callbacks_returns_at_once_even_beside_a_reader() {
    let domain = lite(false);
    let _guard = domain.lite();
    let before = domain.block().periods();
    domain.barrier();
    assert_eq!(domain.block().periods(), before, "no grace period for a barrier");
}

#[test]
fn a_domain_is_idle_as_soon_as_a_barrier_returns() {
    for _ in 0..if cfg!(miri) { 1 } else { 2_000 } {
        let domain = lite(false);
        domain.call(|| {});
        domain.barrier();
        domain.close().unwrap();
    }
}

#[test]
fn many_barriers_at_once_all_see_their_callbacks_run() {
    let domain = lite(true);
    thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for _ in 0..if cfg!(miri) { 1 } else { 50 } {
                    let ran = Arc::new(AtomicU32::new(0));
                    let seen = ran.clone();
                    domain.call(move || seen.store(1, SeqCst));
                    domain.barrier();
                    assert_eq!(ran.load(SeqCst), 1);
                }
            });
        }
    });
}

/// A domain whose callbacks wait for each other as long as nobody hurries them.
fn patient() -> Domain {
    let builder = Domain::builder("patient").flavour(Flavour::Lite).call_delay(Duration::from_secs(3600));
    builder.build().unwrap()
}

#[test]
fn many_single_calls_share_one_grace_period() {
    let domain = patient();
    let before = domain.block().periods();
    for _ in 0..10 * MANY {
        domain.call(|| {});
    }
    domain.barrier();
    assert_eq!(domain.block().periods() - before, 1);
}

#[test]
fn nobody_who_waits_waits_for_callbacks_to_gather() {
    let ran = Arc::new(AtomicU32::new(0));
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 0..if cfg!(miri) { 2 } else { 200 } {
        let domain = patient();
        let seen = ran.clone();
        domain.call(move || {
            seen.fetch_add(1, SeqCst);
        });
        // The worker is starting, or dozes already.
        if round % 2 == 1 {
            thread::sleep(Duration::from_micros(300));
        }
        if round % 4 < 2 {
            domain.expedite_current();
            while ran.load(SeqCst) == round {
                assert!(Instant::now() < deadline, "a poll waits");
                thread::yield_now();
            }
        } else {
            domain.synchronize();
        }
        // Its grace period is over: only the worker has to be woken.
        domain.barrier();
        assert_eq!(ran.load(SeqCst), round + 1);
        domain.close().unwrap();
    }
    assert!(Instant::now() < deadline);
}

#[test]
#[cfg_attr(miri, ignore = "too many callbacks for it")]
fn a_long_list_does_not_wait_for_more() {
    let domain = patient();
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..70_000 {
        let seen = ran.clone();
        domain.call(move || {
            seen.fetch_add(1, SeqCst);
        });
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while ran.load(SeqCst) < 1 << 16 {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    domain.barrier();
    assert_eq!(ran.load(SeqCst), 70_000);
}

#[test]
fn a_callback_that_nobody_waits_for_runs_after_the_delay() {
    let domain = lite(false);
    let (done, ran) = std::sync::mpsc::channel();
    domain.call(move || done.send(()).unwrap());
    ran.recv_timeout(Duration::from_secs(60)).unwrap();
    domain.barrier();
}

#[test]
fn lists_are_spread_under_load_without_losing_a_callback() {
    let domain = lite(false);
    let runs = Arc::new(AtomicUsize::new(0));
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..MANY {
                    let runs = runs.clone();
                    domain.call(move || {
                        runs.fetch_add(1, SeqCst);
                    });
                }
            });
        }
        s.spawn(|| domain.spread_lists());
    });
    domain.barrier();
    assert!(domain.has_per_cpu_lists());
    assert_eq!(runs.load(SeqCst), 3 * MANY);
}

#[test]
fn a_callback_may_call_again() {
    let domain = Arc::new(lite(false));
    let rounds = Arc::new(AtomicU32::new(0));
    fn again(domain: Arc<Domain>, rounds: Arc<AtomicU32>) {
        if rounds.fetch_add(1, SeqCst) < 9 {
            domain.clone().call(move || again(domain, rounds));
        }
    }
    again(domain.clone(), rounds.clone());
    let deadline = Instant::now() + Duration::from_secs(30);
    while rounds.load(SeqCst) < 10 {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    // The last callback lets go of its share of the domain only after it counted.
    domain.barrier();
}

#[test]
fn a_callback_that_panics_does_not_stop_the_others() {
    let domain = lite(false);
    let ran = Arc::new(AtomicU32::new(0));
    let seen = ran.clone();
    domain.call(|| panic!("on purpose"));
    domain.call(move || seen.store(1, SeqCst));
    domain.barrier();
    assert_eq!(ran.load(SeqCst), 1);
}

#[test]
fn a_barrier_in_a_callback_panics_with_the_name_of_the_rule() {
    let domain: &'static Domain = Box::leak(Box::new(lite(false)));
    let text = Arc::new(std::sync::Mutex::new(String::new()));
    let out = text.clone();
    domain.call(move || {
        let panic = catch_unwind(AssertUnwindSafe(|| domain.barrier())).unwrap_err();
        *out.lock().unwrap() = panic.downcast_ref::<String>().unwrap().clone();
    });
    domain.barrier();
    assert!(text.lock().unwrap().contains("NoBarrierInCallback"));
}

#[test]
fn a_node_queued_twice_runs_once() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    unsafe fn count(_: NonNull<Head>) {
        RUNS.fetch_add(1, SeqCst);
    }
    let domain = lite(false);
    let mut node = Head::new();
    let at = NonNull::from(&mut node);
    let guard = domain.lite();
    for _ in 0..2 {
        // SAFETY: the node outlives the barrier below; the second call is the misuse under test,
        // which looks at the node and leaves it.
        unsafe { domain.call_raw(at, count) };
    }
    drop(guard);
    domain.barrier();
    assert_eq!(RUNS.load(SeqCst), 1);
    assert!(!node.is_queued());
}

/// What docs/rcu.md promises of a burst of single calls, however long the machine takes for it.
#[test]
fn single_calls_take_a_grace_period_for_each_delay_that_they_last_and_two_more() {
    const DELAY: Duration = Duration::from_millis(10);
    let domain = Domain::builder("burst").flavour(Flavour::Lite).call_delay(DELAY).build().unwrap();
    let (before, start) = (domain.block().periods(), Instant::now());
    for _ in 0..if cfg!(miri) { 50 } else { 50_000 } {
        domain.call(|| {});
    }
    let lasted = start.elapsed();
    domain.barrier();
    let periods = domain.block().periods() - before;
    assert!(periods <= (lasted.as_nanos() / DELAY.as_nanos()) as u64 + 2, "{periods} in {lasted:?}");
}
