//! Jumps that are lifted and lowered in the subject of session's tests.
//!
//! For:     `arm::lift`.
//! State:   a process for each test.
//! Context: control.
//! Keeps:   nothing.
//! Checked: they check.

use super::*;
use crate::facts::inject::tests::{BUSY, Subject, sites};
use crate::facts::site::{Action, SitePlan};
use crate::find::process;
use std::time::Instant;
use wire::TrampolineHeader;

const LONG: Duration = Duration::from_secs(60);

/// Functions that the subject's threads call all the time, by handlers or counted in the jump.
fn busy(subject: &Subject, is_compiled: bool) -> Vec<SitePlan> {
    let mut sites = sites(subject.pid(), &["u::injected_long", "u::injected_other"]);
    for site in sites.iter_mut().filter(|_| is_compiled) {
        site.actions = vec![Action::Count];
    }
    sites
}

/// Whether the file's bytes stand at all sites.
fn is_bare(session: &Session) -> bool {
    let mut patches = session.armed.iter().flat_map(Armed::patches);
    patches.all(|p| session.memory.read_vec(p.addr, p.old.len()).unwrap() == p.old)
}

fn hits(session: &Session) -> u64 {
    session.sites().map(|site| site.hits()).sum()
}

/// More than `before`, or too late.
fn grows(session: &Session, before: u64) -> bool {
    let end = Instant::now() + LONG;
    while hits(session) <= before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    hits(session) > before
}

/// Returns when each busy thread has had the time for thousands of calls.
fn run_on(subject: &Subject) {
    let threads = process::threads(subject.pid()).unwrap();
    let ran = |tid: &i32| process::cpu_time(subject.pid(), *tid).unwrap_or_default();
    let (begun, end) = (threads.iter().map(ran).collect::<Vec<_>>(), Instant::now() + LONG);
    let has_run = |(tid, begun): (&i32, &Duration)| ran(tid) >= *begun + Duration::from_millis(1);
    while threads.iter().zip(&begun).filter(|of| has_run(*of)).count() < BUSY {
        assert!(Instant::now() < end, "it does not run");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn leave(mut session: Session) {
    let receipt = session.detach().unwrap();
    assert!(receipt.is_verified() && receipt.is_unmapped() && receipt.restored == 2, "{receipt:?}");
}

#[test]
fn what_is_lifted_is_the_files_and_counts_on_when_it_is_lowered() {
    for is_compiled in [true, false] {
        let subject = Subject::start();
        let before = subject.seen();
        let plans = busy(&subject, is_compiled);
        let addrs: Vec<u64> = plans.iter().map(SitePlan::addr).collect();
        let mut session = Session::attach(subject.pid(), plans).unwrap();
        for _ in 0..8 {
            let seen = hits(&session);
            assert!(grows(&session, seen), "nothing is hit");
            session.lift(&addrs).unwrap();
            assert!(session.sites().all(|site| site.is_out));
            assert!(is_bare(&session), "the code differs");
            // Whoever was inside has left. Who stood in a jump's code before its count is not waited for, and adds its one when
            // it runs: when all have run nobody counts.
            session.wait_for_hits(LONG).unwrap();
            run_on(&subject);
            let still = hits(&session);
            run_on(&subject);
            let late = hits(&session) - still;
            assert!(late == 0, "{late} hits of code that is out");
            let lowered = session.lower(&addrs).unwrap();
            assert_eq!((lowered.sites, lowered.missed.len()), (2, 0), "{lowered:?}");
            assert!(session.sites().all(|site| !site.is_out));
            assert!(grows(&session, still), "nothing is hit again");
        }
        leave(session);
        assert!(subject.seen().1 == before.1, "the code differs");
    }
}

#[test]
fn a_session_leaves_whole_while_some_of_it_is_out() {
    let subject = Subject::start();
    let before = subject.seen();
    let plans = busy(&subject, false);
    let first = plans[0].addr();
    let mut session = Session::attach(subject.pid(), plans).unwrap();
    session.lift(&[first]).unwrap();
    session.lift(&[first]).unwrap();
    assert_eq!(session.sites().map(|site| site.is_out).collect::<Vec<_>>(), [true, false]);
    assert!(matches!(session.lift(&[first + 1]), Err(NotDone::Refused(NotChanged::NoProbe(_)))));
    leave(session);
    let after = subject.seen();
    assert_eq!(after.0, before.0);
    assert!(after.1 == before.1, "the code differs");
}

#[test]
fn of_timed_calls_all_sites_are_lifted_and_none_is_timed_that_began_while_they_were_out() {
    let subject = Subject::start();
    let spec = image::Spec::parse("u::injected_long").unwrap();
    let plan = crate::plan(subject.pid(), &[spec], crate::Verb::Latency).unwrap();
    let entry = plan.sites[0].addr();
    assert!(plan.sites.len() > 1 || plan.sites[0].actions.len() > 1, "it has an exit");
    let mut session = Session::attach(subject.pid(), plan.sites).unwrap();
    let began = Instant::now();
    for _ in 0..16 {
        let seen = session.entered();
        while session.entered() == seen && began.elapsed() < LONG {
            std::thread::yield_now();
        }
        session.lift(&[entry]).unwrap();
        assert!(session.sites().all(|site| site.is_out));
        std::thread::sleep(Duration::from_millis(20));
        session.lower(&[entry]).unwrap();
    }
    session.wait_for_hits(LONG).unwrap();
    session.detach().unwrap();
    let calls = session.sites().find_map(|site| site.calls()).unwrap();
    assert!(calls.returns() > 0, "{calls:?}");
    // Those whose half was seen: at most one for each thread and change.
    assert!(calls.entries.abs_diff(calls.returns() + calls.unmatched) <= 16 * 8, "{calls:?}");
}

/// Without its header nobody could recover the process from us.
#[test]
fn a_try_that_misses_the_site_leaves_its_header_and_a_later_one_lowers_it() {
    let subject = Subject::start();
    let plans = busy(&subject, false);
    let first = plans[0].addr();
    let mut session = Session::attach(subject.pid(), plans).unwrap();
    let at = session.armed[0].trampoline.header_addr();
    let header = |session: &Session| session.memory.read_vec(at, TrampolineHeader::LEN).unwrap();
    let was = header(&session);
    session.lift(&[first]).unwrap();
    // As if somebody else had changed the place.
    let other = session.armed[0].jump.old.iter().map(|byte| !byte).collect();
    let file = std::mem::replace(&mut session.armed[0].jump.old, other);
    let lowered = session.lower(&[first]).unwrap();
    assert_eq!((lowered.sites, lowered.missed.len()), (0, 1), "{lowered:?}");
    assert!(header(&session) == was && session.armed[0].is_out);
    session.armed[0].jump.old = file;
    assert_eq!(session.lower(&[first]).unwrap().sites, 1);
    assert!(header(&session) == was && session.armed[0].is_live);
    leave(session);
}
