//! Domains in the child of a fork (X1 to X3).
#![cfg(not(miri))]

use rcu::{Domain, Flavour, Lite, tasks};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

/// Runs `child` in a forked process; its answer, `None` if it hangs or dies.
fn in_child(child: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child calls nothing but `child` and `_exit`.
    let pid = unsafe { fork() };
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { _exit(if good { 0 } else { 1 }) };
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable.
        if unsafe { waitpid(pid, &mut status, 1) } == pid {
            return (status & 0x7f == 0).then_some(status == 0);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// One test, since forking beside other tests' threads would test the harness.
#[test]
fn a_child_waits_for_no_thread_of_its_parent_and_keeps_its_own_readers() {
    for checked in [false, true] {
        let builder = Domain::builder("fork").flavour(Flavour::Lite).checked(checked);
        let domain = Arc::new(builder.build().unwrap());
        let ran = Arc::new(AtomicU32::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (inside, entered) = mpsc::channel();
        // A thread that is inside for the whole time, and one that drives grace periods.
        let holder = thread::spawn({
            let (domain, stop) = (domain.clone(), stop.clone());
            move || {
                let _guard = domain.lite();
                tasks::holdout::lock();
                inside.send(()).unwrap();
                while !stop.load(SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
                // SAFETY: entered above, and left once.
                unsafe { tasks::holdout::unlock() };
            }
        });
        entered.recv().unwrap();
        let driver = thread::spawn({
            let domain = domain.clone();
            move || domain.synchronize()
        });
        let seen = ran.clone();
        domain.call(move || {
            seen.fetch_add(1, SeqCst);
        });
        thread::sleep(Duration::from_millis(20));

        let good = in_child(|| {
            domain.synchronize();
            domain.synchronize_expedited();
            tasks::holdout::domain().synchronize();
            domain.barrier();
            domain.in_use().readers == 0 && ran.load(SeqCst) == 1
        });
        assert_eq!(good, Some(true), "checked {checked}");

        if checked {
            let rank = domain.lock::<Lite>().unwrap();
            let good = in_child(|| {
                let still_in = domain.in_use().readers == 1 && domain.try_synchronize().is_err();
                // SAFETY: entered above, and left once.
                unsafe { domain.unlock::<Lite>(rank) };
                domain.synchronize();
                still_in
            });
            assert_eq!(good, Some(true), "a reader across fork");
            // SAFETY: entered above, and left once.
            unsafe { domain.unlock::<Lite>(rank) };
        }

        stop.store(true, SeqCst);
        holder.join().unwrap();
        driver.join().unwrap();
        domain.barrier();
        assert_eq!(ran.load(SeqCst), 1, "the parent runs its callback once");
    }
}
