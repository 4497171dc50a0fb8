//! A domain in use is not freed, and says why (D1; checklist 10).

use rcu::{Domain, Flavour, Lite, Report};
use std::sync::Mutex;

static REPORTS: Mutex<Vec<Report>> = Mutex::new(Vec::new());

fn lite(name: &str) -> Domain {
    Domain::builder(name).flavour(Flavour::Lite).build().unwrap()
}

#[test]
fn close_refuses_while_a_reader_is_inside() {
    let domain = lite("reader");
    let rank = domain.lock::<Lite>().unwrap();
    let refused = domain.close().unwrap_err();
    assert_eq!(refused.in_use.readers, 1);
    assert!(refused.to_string().contains("domain reader is in use: 1 reader(s)"), "{refused}");
    let domain = refused.domain;
    // SAFETY: entered above, and left once.
    unsafe { domain.unlock::<Lite>(rank) };
    domain.close().unwrap();
}

#[test]
fn close_refuses_while_callbacks_wait() {
    let domain = lite("callbacks");
    let rank = domain.lock::<Lite>().unwrap();
    domain.call(|| {});
    let refused = domain.close().unwrap_err();
    assert_eq!(refused.in_use.callbacks, 1);
    assert!(refused.in_use.gp_needed);
    let domain = refused.domain;
    // SAFETY: entered above, and left once.
    unsafe { domain.unlock::<Lite>(rank) };
    domain.barrier();
    domain.close().unwrap();
}

#[test]
fn close_refuses_while_a_polled_grace_period_is_wanted() {
    for expedited in [false, true] {
        let domain = lite("polled");
        let rank = domain.lock::<Lite>().unwrap();
        let cookie = if expedited { domain.start_poll_expedited() } else { domain.start_poll() };
        let refused = domain.close().unwrap_err();
        assert!(refused.in_use.gp_needed);
        assert_eq!(refused.in_use.expedited_needed, expedited);
        let domain = refused.domain;
        // SAFETY: entered above, and left once.
        unsafe { domain.unlock::<Lite>(rank) };
        domain.cond_synchronize(cookie);
        domain.close().unwrap();
    }
}

#[test]
fn dropping_a_domain_in_use_leaks_it_and_reports() {
    rcu::set_reporter(|report| REPORTS.lock().unwrap().push(report.clone()));
    let domain = lite("dropped");
    std::mem::forget(domain.lite());
    let block = domain.block().as_ptr();
    drop(domain);
    let reports = REPORTS.lock().unwrap();
    let leaked = reports.iter().find(|r| matches!(r, Report::Leaked { domain, .. } if domain == "dropped"));
    assert!(leaked.unwrap().to_string().contains("memory kept: 1 reader(s)"));
    // SAFETY: the report says that the memory is kept.
    assert!(unsafe { rcu::Block::at(block) }.is_some());
}
