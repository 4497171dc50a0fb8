//! Tasks-trace readers in both forms (Z1 to Z4; checklist 12).

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
        unlock: tasks::holdout::unlock,
    },
    Form {
        name: "on_fast",
        domain: tasks::on_fast::domain,
        lock: tasks::on_fast::lock,
        unlock: tasks::on_fast::unlock,
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
