//! What a grace period waits for, and what it does not (G1, G2, S1, S2, U2; checklist 2, 3, 6, 7).

use rcu::{Cookie, Domain, Fences, Flavour, FlavourSet, Lite};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

fn all_domains() -> Vec<Domain> {
    let mut out = Vec::new();
    for flavour in [Flavour::Normal, Flavour::Sigsafe, Flavour::Lite, Flavour::Fast, Flavour::UpDown] {
        for fences in [false, true] {
            let builder = Domain::builder(flavour.name()).flavour(flavour).reader_fences(fences);
            out.push(builder.build().unwrap());
        }
    }
    out
}

/// A section of any flavour.
struct Inside<'d>(Box<dyn FnMut() + 'd>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn enter(domain: &Domain) -> Inside<'_> {
    let recorded = domain.block().declared();
    macro_rules! by {
        ($f:ty) => {{
            let rank = domain.lock::<$f>().unwrap();
            Inside(Box::new(move || {
                // SAFETY: entered above, and left once.
                unsafe { domain.unlock::<$f>(rank) }
            }))
        }};
    }
    match Flavour::ALL.into_iter().find(|f| recorded.has(*f)) {
        Some(Flavour::Sigsafe) => by!(rcu::Sigsafe),
        Some(Flavour::Lite) => by!(rcu::Lite),
        Some(Flavour::Fast) => by!(rcu::Fast),
        Some(Flavour::UpDown) => by!(rcu::UpDown),
        _ => by!(rcu::Normal),
    }
}

#[test]
fn synchronize_waits_for_a_reader_that_was_inside() {
    for domain in all_domains() {
        for expedited in [false, true] {
            let left = AtomicBool::new(false);
            let (inside, entered) = mpsc::channel();
            thread::scope(|s| {
                s.spawn(|| {
                    let guard = enter(&domain);
                    inside.send(()).unwrap();
                    thread::sleep(Duration::from_millis(30));
                    left.store(true, SeqCst);
                    drop(guard);
                });
                entered.recv().unwrap();
                if expedited {
                    domain.synchronize_expedited()
                } else {
                    domain.synchronize()
                }
                assert!(left.load(SeqCst), "{} expedited {expedited}", domain.name());
            });
        }
    }
}

#[test]
fn synchronize_does_not_wait_for_a_reader_that_entered_later_even_if_one_is_always_inside() {
    for domain in all_domains() {
        let stop = AtomicBool::new(false);
        thread::scope(|s| {
            // Overlapping readers: at no time is the domain empty.
            for _ in 0..2 {
                s.spawn(|| {
                    let mut guard = enter(&domain);
                    while !stop.load(SeqCst) {
                        let next = enter(&domain);
                        drop(std::mem::replace(&mut guard, next));
                        thread::yield_now();
                    }
                });
            }
            let start = Instant::now();
            for _ in 0..20 {
                domain.synchronize();
            }
            stop.store(true, SeqCst);
            assert!(start.elapsed() < Duration::from_secs(20), "{} starved", domain.name());
        });
    }
}

#[test]
fn a_cookie_is_not_done_inside_a_reader_and_is_after_synchronize_across_the_wrap() {
    let domain = Domain::builder("cookies").flavour(Flavour::Lite).build().unwrap();
    // The numbers start 100 grace periods before the wrap.
    for _ in 0..250 {
        let cookie = domain.get_state();
        assert!(!domain.poll_state(cookie));
        domain.synchronize();
        assert!(domain.poll_state(cookie));
    }
    let guard = domain.lite();
    let cookie = domain.start_poll();
    thread::sleep(Duration::from_millis(5));
    assert!(!domain.poll_state(cookie), "a grace period ended inside a reader");
    assert!(domain.poll_state(Cookie::COMPLETED));
    drop(guard);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !domain.poll_state(cookie) {
        assert!(Instant::now() < deadline, "a polled grace period must come by itself");
        thread::yield_now();
    }
    domain.cond_synchronize(cookie);
}

#[test]
fn requests_made_at_the_same_time_share_grace_periods() {
    let domain = Domain::builder("shared").flavour(Flavour::Lite).build().unwrap();
    let before = domain.block().periods();
    let guard = domain.lite();
    thread::scope(|s| {
        for _ in 0..16 {
            s.spawn(|| domain.synchronize());
        }
        // All have asked by then: the first drives, and is held up by the reader above.
        while domain.stats().waits[0] < 16 {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(20));
        drop(guard);
    });
    let took = domain.block().periods() - before;
    assert!(took <= 3, "16 requests took {took} grace periods");
}

#[test]
fn a_grace_period_of_a_fenceless_flavour_takes_two_process_wide_fences_or_more() {
    for flavour in [Flavour::Lite, Flavour::Fast, Flavour::UpDown] {
        let domain = Domain::builder("fences").flavour(flavour).build().unwrap();
        if domain.fences() != Fences::Membarrier {
            return;
        }
        for expedited in [false, true] {
            let before = domain.block().heavy_fences();
            for _ in 0..10 {
                if expedited { domain.synchronize_expedited() } else { domain.synchronize() }
            }
            // An expedited one may share one fence between its two scans; it never goes without.
            let least = if expedited { 10 } else { 20 };
            assert!(domain.block().heavy_fences() - before >= least, "{flavour} expedited {expedited}");
        }
    }
}

#[test]
fn a_normal_domain_takes_no_process_wide_fence() {
    let domain = Domain::new("normal");
    drop(domain.normal());
    domain.synchronize();
    assert_eq!(domain.block().heavy_fences(), 0);
}

#[test]
fn a_plain_wait_is_expedited_only_when_idle_and_long_after_the_last_and_never_for_lite() {
    let hold = Duration::from_millis(100);
    let auto = |d: &Domain| d.stats().waits[2];
    let domain = Domain::builder("auto").holdoff(hold).build().unwrap();
    drop(domain.normal());
    thread::sleep(2 * hold);
    domain.synchronize();
    assert_eq!(auto(&domain), 1, "idle");
    domain.synchronize();
    assert_eq!(auto(&domain), 1, "within the holdoff");

    let lite = Domain::builder("auto").holdoff(Duration::from_nanos(1)).build().unwrap();
    drop(lite.lite());
    lite.synchronize();
    assert_eq!(auto(&lite), 0, "restriction 3");

    let never = Domain::builder("auto").holdoff(Duration::ZERO).build().unwrap();
    never.synchronize();
    assert_eq!(auto(&never), 0, "a holdoff of zero turns it off");
}

#[test]
fn the_first_reader_may_race_the_first_grace_period_of_a_declared_domain() {
    for _ in 0..if cfg!(miri) { 2 } else { 200 } {
        let domain = Domain::builder("first").flavour(Flavour::Fast).build().unwrap();
        thread::scope(|s| {
            s.spawn(|| drop(domain.fast()));
            domain.synchronize();
        });
        assert!(domain.block().recorded().has(Flavour::Fast));
    }
}

#[test]
fn the_flavour_is_recorded_in_every_build() {
    for checked in [false, true] {
        let domain = Domain::builder("record").checked(checked).build().unwrap();
        assert_eq!(domain.block().recorded(), FlavourSet(0));
        let rank = domain.block().lock::<Lite>().unwrap();
        // SAFETY: entered above, and left once.
        unsafe { domain.block().unlock::<Lite>(rank) };
        assert!(domain.block().recorded().has(Flavour::Lite));
    }
}

#[test]
fn the_state_of_a_domain_is_one_line() {
    let domain = Domain::builder("line").flavour(Flavour::Lite).build().unwrap();
    let _guard = domain.lite();
    let line = domain.stats().to_string();
    assert!(line.starts_with("domain line [lite] gp 0x") && line.contains("idle"), "{line}");
    assert!(line.contains("T(0,1)"), "{line}");
    assert!(!line.contains('\n'));
}
