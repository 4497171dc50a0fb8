//! Every flavour's readers: nesting, counting, threads (R1, R3, W1).

use rcu::{Domain, Fast, Flavour, Lite, Normal, Reader, Sigsafe, UpDown};
use std::thread;

fn domain<F: Reader>(checked: bool, rseq: bool) -> Domain {
    Domain::builder("readers").flavour(F::FLAVOUR).checked(checked).rseq(rseq).build().unwrap()
}

/// A case gets the domain, its flavour, and how to enter and leave.
type Case = fn(&Domain, Flavour, fn(&Domain) -> rcu::Rank, fn(&Domain, rcu::Rank));

/// Runs one case over every flavour, checked and not, with rseq and without.
fn each(case: Case) {
    fn one<F: Reader>(case: Case) {
        for checked in [false, true] {
            for rseq in [true, false] {
                let domain = domain::<F>(checked, rseq);
                // SAFETY: the cases below leave what they entered, once.
                let unlock = |d: &Domain, rank| unsafe { d.unlock::<F>(rank) };
                case(&domain, F::FLAVOUR, |d| d.lock::<F>().unwrap(), unlock);
                domain.close().unwrap();
            }
        }
    }
    one::<Normal>(case);
    one::<Sigsafe>(case);
    one::<Lite>(case);
    one::<Fast>(case);
    one::<UpDown>(case);
}

#[test]
fn readers_nest_and_are_counted_until_the_last_has_left() {
    each(|domain, flavour, lock, unlock| {
        let outer = lock(domain);
        let inner = lock(domain);
        assert_eq!(domain.in_use().readers, 2, "{flavour}");
        unlock(domain, inner);
        assert_eq!(domain.in_use().readers, 1, "{flavour}");
        unlock(domain, outer);
        assert_eq!(domain.in_use().readers, 0, "{flavour}");
    });
}

#[test]
fn a_storm_of_readers_on_more_threads_than_cpus_leaves_exact_sums() {
    const EACH: u32 = if cfg!(miri) { 20 } else { 20_000 };
    each(|domain, flavour, lock, unlock| {
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for i in 0..EACH {
                        let rank = lock(domain);
                        if i % 1024 == 0 {
                            thread::yield_now();
                        }
                        unlock(domain, rank);
                    }
                });
            }
            for _ in 0..10 {
                domain.synchronize();
            }
        });
        assert_eq!(domain.in_use().readers, 0, "{flavour}");
    });
}

#[test]
fn an_updown_section_ends_on_another_thread() {
    for checked in [false, true] {
        let domain = domain::<UpDown>(checked, true);
        let section = domain.down();
        assert_eq!(domain.in_use().readers, 1);
        thread::scope(|s| {
            s.spawn(move || section.up());
        });
        domain.close().unwrap();
    }
}

#[test]
fn a_fast_cookie_leaves_the_rank_that_it_entered() {
    let domain = domain::<Fast>(false, true);
    let block = domain.block();
    let cookie = block.lock_fast::<Fast>().unwrap();
    assert_eq!(domain.in_use().readers, 1);
    // SAFETY: the cookie is this block's and used once.
    unsafe { block.unlock_fast::<Fast>(cookie) };
    assert_eq!(domain.in_use().readers, 0);
}

#[test]
fn a_guard_turns_into_a_cookie_and_a_raw_unlock_takes_it() {
    let domain = domain::<Lite>(true, true);
    let rank = domain.lite().into_raw();
    assert_eq!(domain.in_use().readers, 1);
    // SAFETY: entered above, and left once.
    unsafe { domain.unlock::<Lite>(rank) };
    assert_eq!(domain.in_use().readers, 0);
}

#[test]
fn normal_and_sigsafe_readers_share_a_domain() {
    let domain = Domain::new("both");
    let a = domain.normal();
    let b = domain.sigsafe();
    drop(a);
    assert_eq!(domain.in_use().readers, 1);
    drop(b);
    domain.synchronize();
}
