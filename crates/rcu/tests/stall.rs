//! A grace period that is held up names who holds it up (checklist 15).

use rcu::{Domain, Flavour, Report, Stall, StalledReader, tasks};
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

static REPORTS: Mutex<Vec<Report>> = Mutex::new(Vec::new());

fn collect() {
    rcu::set_reporter(|report| REPORTS.lock().unwrap().push(report.clone()));
}

/// Waits for a report that `pick` likes.
fn wait_for<T>(pick: impl Fn(&Report) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = REPORTS.lock().unwrap().iter().find_map(&pick) {
            return found;
        }
        assert!(Instant::now() < deadline, "no such report");
        thread::sleep(Duration::from_millis(5));
    }
}

fn stall_of(domain: &str) -> impl Fn(&Report) -> Option<Stall> + '_ {
    move |report| match report {
        Report::Stall(stall) if stall.domain == domain => Some(stall.clone()),
        _ => None,
    }
}

/// Holds up a grace period of `domain` from a thread called `holder`, until `check` has run.
fn hold_up(
    domain: &Domain,
    enter: impl FnOnce() + Send,
    leave: impl FnOnce() + Send,
    check: impl FnOnce(u32),
) {
    let (inside, entered) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    thread::scope(|s| {
        let holder = move || {
            enter();
            // SAFETY: gettid has no argument and cannot fail.
            inside.send(sys_gettid()).unwrap();
            may_go.recv().unwrap();
            leave();
        };
        thread::Builder::new().name("holder".into()).spawn_scoped(s, holder).unwrap();
        let tid = entered.recv().unwrap();
        let waiter = s.spawn(|| domain.synchronize());
        check(tid);
        go.send(()).unwrap();
        waiter.join().unwrap();
    });
}

fn sys_gettid() -> u32 {
    std::fs::read_link("/proc/thread-self").unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}

#[test]
fn a_checked_domain_names_domain_thread_and_age() {
    collect();
    let limit = Duration::from_millis(50);
    for flavour in [Flavour::Normal, Flavour::Lite, Flavour::Fast] {
        let name = format!("checked-{flavour}");
        let builder = Domain::builder(&name).flavour(flavour).checked(true).stall_after(limit);
        let domain = builder.build().unwrap();
        let rank = std::sync::OnceLock::new();
        macro_rules! hold {
            ($f:ty) => {
                hold_up(
                    &domain,
                    || rank.set(domain.lock::<$f>().unwrap()).unwrap(),
                    // SAFETY: entered by the function above, and left once.
                    || unsafe { domain.unlock::<$f>(*rank.get().unwrap()) },
                    |tid| {
                        let stall = wait_for(stall_of(&name));
                        assert!(stall.age_ns >= 50_000_000 && stall.is_tracked && stall.readers == 1);
                        let [StalledReader { thread, flavour: held, age_ns, .. }] = &stall.named[..] else {
                            panic!("{stall}")
                        };
                        assert_eq!((thread.as_str(), *held), ("holder", flavour));
                        assert_eq!(stall.named[0].tid, tid);
                        assert!(*age_ns >= stall.age_ns, "a reader is older than its victim");
                        let text = stall.to_string();
                        assert!(text.contains(&format!("thread {tid} (holder)")), "{text}");
                    },
                )
            };
        }
        match flavour {
            Flavour::Normal => hold!(rcu::Normal),
            Flavour::Lite => hold!(rcu::Lite),
            _ => hold!(rcu::Fast),
        }
    }
}

#[test]
fn an_unchecked_domain_names_the_reader_when_it_leaves() {
    collect();
    let builder = Domain::builder("unchecked").flavour(Flavour::Lite).checked(false);
    let domain = builder.stall_after(Duration::from_millis(50)).build().unwrap();
    let rank = std::sync::OnceLock::new();
    let (mut holder, mut entered_on) = (0, 0);
    hold_up(
        &domain,
        || rank.set(domain.lock::<rcu::Lite>().unwrap()).unwrap(),
        // SAFETY: entered by the function above, and left once.
        || unsafe { domain.unlock::<rcu::Lite>(*rank.get().unwrap()) },
        |tid| {
            holder = tid;
            let stall = wait_for(stall_of("unchecked"));
            assert_eq!((stall.readers, stall.is_tracked), (1, false));
            // An assertion that fails here would leave the holder waiting for ever: what it found is looked at below.
            entered_on = stall.cpus.iter().chain(&stall.seats).map(|(_, n)| *n).sum::<i64>();
            // Other readers come and go meanwhile and are not blamed.
            (0..100).for_each(|_| drop(domain.lite()));
        },
    );
    assert_eq!(entered_on, 1, "its seat or its CPU is known");
    let left = wait_for(|report| match report {
        Report::StalledReaderLeft { domain, reader } if domain == "unchecked" => Some(reader.clone()),
        _ => None,
    });
    assert_eq!((left.tid, left.thread.as_str()), (holder, "holder"));
    let blamed =
        REPORTS.lock().unwrap().iter().filter(|r| matches!(r, Report::StalledReaderLeft { .. })).count();
    assert_eq!(blamed, 1);
}

#[test]
fn a_tasks_reader_is_named_without_any_option() {
    let record = tasks::holdout::domain();
    // The global domain reports after 21 s; its readers can be asked for at any time.
    tasks::holdout::lock();
    assert_eq!(record.in_use().readers, 1);
    // SAFETY: entered above, and left once.
    unsafe { tasks::holdout::unlock() };
    assert_eq!(record.in_use().readers, 0);
}
