//! A sandbox without membarrier: readers fence themselves, and the domain says so (H1).
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]

use rcu::{Domain, Fences, Flavour, Report, tasks};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

static REPORTS: Mutex<Vec<Report>> = Mutex::new(Vec::new());

unsafe extern "C" {
    fn prctl(option: i32, ...) -> i32;
}

#[repr(C)]
struct Rule {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

#[repr(C)]
struct Program {
    len: u16,
    rules: *const Rule,
}

/// Makes membarrier(2) fail with EPERM in this thread and those that it makes from now on.
fn forbid_membarrier() {
    let rules = [
        Rule { code: 0x20, yes: 0, no: 0, k: 0 },   // load the call's number
        Rule { code: 0x15, yes: 0, no: 1, k: 324 }, // is it membarrier?
        Rule { code: 0x06, yes: 0, no: 0, k: 0x50001 }, // fail with 1
        Rule { code: 0x06, yes: 0, no: 0, k: 0x7fff_0000 }, // allow
    ];
    let program = Program { len: rules.len() as u16, rules: rules.as_ptr() };
    // SAFETY: PR_SET_NO_NEW_PRIVS takes integers.
    assert_eq!(unsafe { prctl(38, 1u64, 0u64, 0u64, 0u64) }, 0);
    // SAFETY: PR_SET_SECCOMP with a filter reads the program, which outlives the call.
    assert_eq!(unsafe { prctl(22, 2u64, &program) }, 0);
}

#[test]
fn without_membarrier_every_flavour_still_works_and_says_how() {
    rcu::set_reporter(|report| REPORTS.lock().unwrap().push(report.clone()));
    forbid_membarrier();
    for flavour in [Flavour::Lite, Flavour::Fast] {
        let domain = Domain::builder("sandboxed").flavour(flavour).checked(false).build().unwrap();
        assert!(matches!(domain.fences(), Fences::Readers(_)));
        let left = AtomicBool::new(false);
        let enter = || match flavour {
            Flavour::Lite => domain.lock::<rcu::Lite>().unwrap(),
            _ => domain.lock::<rcu::Fast>().unwrap(),
        };
        let leave = |rank| match flavour {
            // SAFETY: entered above, and left once.
            Flavour::Lite => unsafe { domain.unlock::<rcu::Lite>(rank) },
            // SAFETY: as above.
            _ => unsafe { domain.unlock::<rcu::Fast>(rank) },
        };
        let rank = enter();
        thread::scope(|s| {
            s.spawn(|| {
                domain.synchronize();
                assert!(left.load(SeqCst));
            });
            thread::sleep(Duration::from_millis(20));
            left.store(true, SeqCst);
            leave(rank);
        });
        assert_eq!(domain.block().heavy_fences(), 0);
        assert!(domain.stats().to_string().contains("readers fence themselves"));
    }
    tasks::holdout::lock();
    // SAFETY: entered above, and left once.
    unsafe { tasks::holdout::unlock() };
    tasks::holdout::domain().synchronize();
    let said = |r: &Report| r.to_string().contains("membarrier gave operation not permitted");
    assert!(REPORTS.lock().unwrap().iter().any(said));
}
