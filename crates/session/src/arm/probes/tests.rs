//! Probes that come and go in the subject of session's tests.
//!
//! For:     `arm::probes`.
//! State:   a process for each test.
//! Context: control.
//! Keeps:   nothing.
//! Checked: they check.

use super::*;
use crate::facts::inject::tests::{Subject, sites};
use crate::facts::room::{Attach, Room};
use std::sync::atomic::Ordering;
use wire::{COPY_SHARED, cell};

const LONG: Duration = Duration::from_secs(60);

/// A session that has a probe where nobody comes by, and room for these many.
fn attached(subject: &Subject, probes: usize) -> Session {
    let room = Room::for_counts(4).and_probes(probes);
    let attach = Attach { room, ..Attach::default() };
    Session::attach_with(subject.pid(), subject.idle_site(), attach).unwrap()
}

fn free(session: &Session) -> ((u32, u32), u32, u32) {
    let blocks = session.places.blocks.iter().map(|slots| slots.free()).sum();
    (session.free_room(), session.places.hooks.free(), blocks)
}

/// As they are planned for a handler, or compiled in.
fn busy(subject: &Subject, is_compiled: bool) -> Vec<SitePlan> {
    let mut sites = sites(subject.pid(), &["u::injected_long", "u::injected_other"]);
    for site in sites.iter_mut().filter(|_| is_compiled) {
        site.actions = vec![Action::Count];
    }
    sites
}

fn addrs(sites: &[SitePlan]) -> Vec<u64> {
    sites.iter().map(SitePlan::addr).collect()
}

fn leave(mut session: Session) {
    let receipt = session.detach().unwrap();
    assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
}

#[test]
fn probes_come_and_go_as_often_as_they_like_in_the_same_room() {
    let subject = Subject::start();
    let before = subject.seen();
    let mut session = attached(&subject, 4);
    let room = free(&session);
    let mut seen = [0; 2];
    for round in 0..8 {
        let sites = busy(&subject, round % 2 == 0);
        let came = session.add_probes(sites.clone()).unwrap();
        assert_eq!((came.armed, came.missed.len()), (addrs(&sites), 0));
        let guest = session.hooks(addrs(&sites)[0]).first().map(|hook| {
            session.change(&[(*hook, Consumer::Count)], &[]).unwrap();
        });
        assert_eq!(guest.is_some(), round % 2 == 1, "a compiled count has no hook");
        std::thread::sleep(Duration::from_millis(5));
        let receipt = session.remove_probes(&addrs(&sites)).unwrap();
        assert!(receipt.is_verified() && receipt.restored == 2, "{receipt:?}");
        let settled = session.settle_probes(LONG).unwrap();
        assert_eq!((settled.went.len(), settled.waiting), (2, 0), "{settled:?}");
        for (went, seen) in settled.went.iter().zip(&mut seen) {
            *seen += went.hits;
            // The one that came with it has counted all, who came later not more.
            let cells: Vec<u64> = went.consumers.iter().map(|(_, _, cells)| cells[0]).collect();
            assert!(cells.iter().all(|count| *count <= went.hits), "{went:?}");
        }
        assert_eq!(free(&session), room, "round {round}");
    }
    assert!(seen.iter().all(|hits| *hits > 1000), "{seen:?}");
    assert_eq!(session.sites().count(), 1);
    leave(session);
    let after = subject.seen();
    assert_eq!(after.0, before.0);
    assert!(after.1 == before.1, "the code differs");
}

#[test]
fn a_hit_that_stands_inside_keeps_the_room_of_a_probe_that_went() {
    let subject = Subject::start();
    let mut session = attached(&subject, 4);
    let sites = busy(&subject, false);
    let enters = |session: &Session, by: u64| {
        let arena = &session.regions.arena;
        let at = arena.layout.copy(COPY_SHARED) + cell::entered(0) as usize;
        arena.view().word(at).unwrap().fetch_add(by, Ordering::Relaxed);
    };
    session.add_probes(sites.clone()).unwrap();
    enters(&session, 1);
    session.remove_probes(&addrs(&sites)).unwrap();
    let room = free(&session);
    let settled = session.settle_probes(Duration::from_millis(20)).unwrap();
    assert!(matches!(settled.late, Some(Late::HitsInside)), "{settled:?}");
    assert_eq!((settled.went.len(), settled.waiting, free(&session)), (0, 2, room));
    enters(&session, u64::MAX);
    let settled = session.settle_probes(LONG).unwrap();
    assert_eq!((settled.went.len(), settled.waiting), (2, 0));
    leave(session);
}

#[test]
fn what_cannot_come_is_named_and_takes_no_room() {
    let subject = Subject::start();
    let sites = busy(&subject, false);
    let mut session = attached(&subject, 0);
    let why = session.add_probes(sites.clone()).unwrap_err();
    assert!(matches!(why, NotDone::Refused(NotChanged::NoRoom { .. })), "{why}");
    leave(session);
    let mut session = attached(&subject, 1);
    let room = free(&session);
    let mut timed = sites.clone();
    timed[0].actions = vec![Action::Consumers(vec![Consumer::Enter { function: 0, is_go: false }])];
    let why = session.add_probes(timed).unwrap_err();
    assert!(matches!(why, NotDone::Refused(NotChanged::NotAlone(_))), "{why}");
    let why = session.remove_probes(&[1]).unwrap_err();
    assert!(matches!(why, NotDone::Refused(NotChanged::NoProbe(1))), "{why}");
    let twice = session.add_probes(subject.idle_site()).unwrap();
    assert!(matches!(twice.missed[0].1, Missed::Covered { .. }), "{twice:?}");
    let mut beside = subject.idle_site();
    beside[0].placement.site += 1;
    let beside = session.add_probes(beside).unwrap();
    assert!(matches!(beside.missed[0].1, Missed::Covered { .. }), "{beside:?}");
    let mut changed = sites[..1].to_vec();
    changed[0].original[0] ^= 1;
    let changed = session.add_probes(changed).unwrap();
    assert!(matches!(changed.missed[0].1, Missed::Changed { .. }), "{changed:?}");
    assert_eq!(free(&session), room);
    assert_eq!(session.add_probes(sites[..1].to_vec()).unwrap().armed.len(), 1);
    leave(session);
}

#[test]
fn a_first_probe_can_go_too_and_come_again() {
    let subject = Subject::start();
    let mut session = attached(&subject, 2);
    let addr = subject.idle_site()[0].addr();
    for _ in 0..3 {
        assert!(session.remove_probes(&[addr]).unwrap().is_verified());
        let settled = session.settle_probes(LONG).unwrap();
        assert_eq!((settled.went.len(), settled.went[0].hits), (1, 0));
        assert_eq!(session.add_probes(subject.idle_site()).unwrap().armed, [addr]);
    }
    leave(session);
}
