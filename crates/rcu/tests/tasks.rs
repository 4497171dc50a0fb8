//! Tasks-trace readers in both forms (Z1 to Z4; checklist 12), and threads that end inside.

use rcu::{Domain, tasks};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    domain: fn() -> &'static Domain,
    lock: fn(),
    unlock: fn(),
}

const FORMS: [Form; 2] = [
    Form {
        name: "holdout",
        domain: tasks::holdout::domain,
        lock: tasks::holdout::lock,
        // SAFETY: the tests leave as often as they entered, but where they look at the reverse.
        unlock: || unsafe { tasks::holdout::unlock() },
    },
    Form {
        name: "on_fast",
        domain: tasks::on_fast::domain,
        lock: tasks::on_fast::lock,
        // SAFETY: as above.
        unlock: || unsafe { tasks::on_fast::unlock() },
    },
];

#[test]
fn synchronize_waits_until_the_outermost_reader_has_left() {
    for form in FORMS {
        let left = AtomicBool::new(false);
        let (inside, entered) = mpsc::channel();
        thread::scope(|s| {
            s.spawn(|| {
                (form.lock)();
                (form.lock)();
                inside.send(()).unwrap();
                (form.unlock)();
                thread::sleep(Duration::from_millis(30));
                left.store(true, SeqCst);
                (form.unlock)();
            });
            entered.recv().unwrap();
            (form.domain)().synchronize();
            assert!(left.load(SeqCst), "{}", form.name);
        });
    }
}

#[test]
fn a_thread_that_leaves_and_enters_again_at_once_does_not_starve_the_grace_period() {
    for form in FORMS {
        let stop = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(SeqCst) {
                    (form.lock)();
                    // Nearly always inside, so that a glance at the thread seldom finds it outside.
                    (0..1000).for_each(|_| std::hint::spin_loop());
                    (form.unlock)();
                }
            });
            for _ in 0..50 {
                (form.domain)().synchronize();
            }
            stop.store(true, SeqCst);
        });
    }
}

#[test]
fn waiting_inside_a_tasks_reader_is_always_found() {
    for form in FORMS {
        (form.lock)();
        let misuse = (form.domain)().try_synchronize().unwrap_err();
        assert_eq!(misuse.rule(), rcu::Rule::NoWaitInReader, "{}", form.name);
        (form.unlock)();
        (form.domain)().synchronize();
    }
}

#[test]
fn threads_come_and_go_and_their_records_are_used_again() {
    for form in FORMS {
        for _ in 0..20 {
            thread::spawn(move || {
                (form.lock)();
                (form.unlock)();
            })
            .join()
            .unwrap();
        }
        (form.domain)().synchronize();
    }
}

#[test]
fn callbacks_and_polling_work_on_the_global_domains() {
    for form in FORMS {
        let domain = (form.domain)();
        let (done, ran) = mpsc::channel();
        let cookie = domain.get_state();
        domain.call(move || done.send(()).unwrap());
        domain.barrier();
        ran.try_recv().unwrap();
        assert!(domain.poll_state(cookie));
    }
}

#[test]
fn an_unlock_too_many_is_harmless() {
    for form in FORMS {
        (form.lock)();
        (form.unlock)();
        (form.unlock)();
        (form.domain)().synchronize();
        (form.lock)();
        assert!((form.domain)().try_synchronize().is_err(), "{}", form.name);
        (form.unlock)();
    }
}

/// Guards in thread-local values are dropped when the thread ends, after or before the crate's own.
#[test]
fn a_guard_in_a_thread_local_value_is_left_when_its_thread_ends() {
    use std::cell::RefCell;
    thread_local! {
        static FIRST: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) };
        static LAST: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) };
    }
    let checked = Domain::builder("ends").flavour(rcu::Flavour::Lite).checked(true).build().unwrap();
    let checked: &'static Domain = Box::leak(Box::new(checked));
    for _ in 0..3 {
        thread::spawn(|| {
            // Destructors run in the reverse order of the first use: one value on each side of ours.
            FIRST.with(|v| v.borrow_mut().push(Box::new(0)));
            let keep = || -> [Box<dyn std::any::Any>; 3] {
                let (a, b) = (tasks::holdout::read(), tasks::on_fast::read());
                [Box::new(a), Box::new(b), Box::new(checked.lite())]
            };
            FIRST.with(|v| v.borrow_mut().extend(keep()));
            LAST.with(|v| v.borrow_mut().extend(keep()));
        })
        .join()
        .unwrap();
    }
    FORMS.iter().for_each(is_left_by_all);
    checked.synchronize();
    assert_eq!(checked.in_use().readers, 0);
}

/// A thread whose first reader is entered by the destructor of a thread-local value has no lease any more.
#[test]
fn a_thread_that_reads_while_it_ends_leaves_nothing_behind() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            let _holdout = tasks::holdout::read();
            let _on_fast = tasks::on_fast::read();
            let _nested = tasks::on_fast::read();
        }
    }
    thread_local! {
        static LATE: Late = const { Late };
    }
    for form in FORMS {
        for _ in 0..100 {
            thread::spawn(|| LATE.with(|_| ())).join().unwrap();
        }
        is_left_by_all(&form);
    }
}

/// Other tests of this file have readers of the same domains, for moments.
fn is_left_by_all(form: &Form) {
    (form.domain)().synchronize();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while (form.domain)().in_use().readers != 0 {
        assert!(std::time::Instant::now() < end, "{}: {:?}", form.name, (form.domain)().in_use());
        thread::yield_now();
    }
}
