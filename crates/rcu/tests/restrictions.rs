//! One test per rule: bad use gets an error that names the rule (E1, D2; checklist 8, 11).

use rcu::signal::HandlerScope;
use rcu::{BuildError, Domain, Fast, Flavour, FlavourSet, Lite, Misuse, Normal, Rule, Sigsafe, UpDown};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn lite(checked: bool) -> Domain {
    Domain::builder("restricted").flavour(Flavour::Lite).checked(checked).build().unwrap()
}

#[test]
fn restriction_1_one_flavour_for_ever_in_every_build() {
    for checked in [false, true] {
        for declared in [false, true] {
            let mut builder = Domain::builder("one").checked(checked);
            if declared {
                builder = builder.flavour(Flavour::Lite);
            }
            let domain = builder.build().unwrap();
            drop(domain.lite());
            let misuse = domain.try_read::<Normal>().err().unwrap();
            let recorded = FlavourSet(Flavour::Lite.bit());
            assert_eq!(misuse, Misuse::Mixed { recorded, asked: Flavour::Normal });
            assert_eq!(misuse.rule(), Rule::OneFlavour);
            assert_eq!(misuse.rule().lite_number(), Some(1));
            assert!(domain.try_read::<Sigsafe>().is_err());
            assert!(domain.try_read::<Fast>().is_err());
            assert!(domain.try_down().is_err());
            assert!(domain.block().lock::<Normal>().is_err(), "raw calls too");
            // Refused readers were not counted.
            domain.synchronize();
        }
    }
}

#[test]
fn restriction_1_holds_the_other_way_round() {
    let domain = Domain::new("one");
    drop(domain.normal());
    assert!(matches!(domain.try_read::<Lite>(), Err(Misuse::Mixed { .. })));
}

#[test]
fn restriction_2_a_reader_runs_where_the_fences_reach_it() {
    let domain = lite(true);
    // As a process would see it that maps another's block.
    // SAFETY: what the test checks is that readers are refused.
    unsafe { domain.block().set_owner(1) };
    let misuse = domain.try_read::<Lite>().err().unwrap();
    assert_eq!(misuse, Misuse::NotWatched { owner: 1, caller: std::process::id() });
    assert_eq!(misuse.rule().lite_number(), Some(2));
    // SAFETY: what the test checks is that readers are refused.
    unsafe { domain.block().set_owner(std::process::id()) };
    drop(domain.lite());
}

#[test]
fn restriction_3_no_automatic_expediting() {
    for flavour in [Flavour::Lite, Flavour::Fast, Flavour::UpDown] {
        let error = Domain::builder("auto").flavour(flavour).auto_expedite(true).build().err().unwrap();
        assert_eq!(error, BuildError::Misuse(Misuse::AutoExpedite { flavour }));
    }
    assert_eq!(Misuse::AutoExpedite { flavour: Flavour::Lite }.rule().lite_number(), Some(3));
}

#[test]
fn restrictions_4_and_5_name_the_missing_fence() {
    // The counts themselves: `grace_periods.rs`. A driver that sees too few reports these.
    let text = Misuse::TooFewFences { seen: 1 }.to_string();
    assert!(text.contains("restriction 4") && text.contains("1 process-wide fences"), "{text}");
    assert!(Misuse::LesserFence.to_string().contains("restriction 5"));
}

#[test]
fn restriction_6_not_in_a_signal_handler() {
    let (lite, normal) = (lite(true), Domain::builder("handler").checked(true).build().unwrap());
    let sigsafe = Domain::builder("handler").checked(true).build().unwrap();
    {
        let _handler = HandlerScope::enter();
        let misuse = lite.try_read::<Lite>().err().unwrap();
        assert_eq!(misuse, Misuse::InHandler { flavour: Flavour::Lite });
        assert_eq!(misuse.rule().lite_number(), Some(6));
        assert!(normal.try_read::<Normal>().is_err());
        drop(sigsafe.sigsafe());
    }
    drop(lite.lite());
}

#[test]
fn fast_and_updown_need_a_declared_domain() {
    let domain = Domain::new("undeclared");
    assert!(matches!(domain.try_read::<Fast>(), Err(Misuse::Undeclared { asked: Flavour::Fast })));
    assert!(matches!(domain.try_down(), Err(Misuse::Undeclared { asked: Flavour::UpDown })));
    let fast = Domain::builder("fast").flavour(Flavour::Fast).build().unwrap();
    assert!(fast.try_down().is_err(), "updown is a flavour of its own");
}

#[test]
fn flavours_that_must_not_meet_are_refused_at_the_start() {
    let set = FlavourSet(Flavour::Lite.bit() | Flavour::Normal.bit());
    let error = Domain::builder("bad").flavours(set).build().err().unwrap();
    assert_eq!(error, BuildError::IllegalFlavours(set));
}

#[test]
fn waiting_inside_a_reader_is_found_for_every_flavour() {
    fn case<F: rcu::Reader>() {
        let domain = Domain::builder("deadlock").flavour(F::FLAVOUR).checked(true).build().unwrap();
        let _outer = domain.read::<F>();
        let inner = domain.read::<F>();
        let misuse = domain.try_synchronize().unwrap_err();
        assert_eq!(misuse, Misuse::WaitInReader { flavour: F::FLAVOUR, nesting: 2 });
        drop(inner);
        let panic = catch_unwind(AssertUnwindSafe(|| domain.synchronize())).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("NoWaitInReader"), "{text}");
    }
    case::<Normal>();
    case::<Sigsafe>();
    case::<Lite>();
    case::<Fast>();
}

#[test]
fn waiting_inside_a_reader_of_another_domain_is_legal() {
    let (a, b) = (lite(true), lite(true));
    let _guard = a.lite();
    b.synchronize();
}

#[test]
fn a_guard_panics_with_the_name_of_the_rule() {
    let domain = Domain::new("named");
    drop(domain.normal());
    let panic = catch_unwind(AssertUnwindSafe(|| drop(domain.lite()))).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("OneFlavour") && text.contains("restriction 1"), "{text}");
}

#[test]
fn an_unlock_without_a_lock_is_reported_and_changes_nothing() {
    let domain = lite(true);
    let rank = domain.block().rank();
    // SAFETY: entered above, and left once.
    unsafe { domain.unlock::<Lite>(rank) };
    assert_eq!(domain.in_use().readers, 0);
    let _ = UpDown;
}
