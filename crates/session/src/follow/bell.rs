//! A probe at which threads wait for us.
//!
//! For:     `Loads` and `Execs`.
//! State:   a session of one probe for each function that rings; the doorbell in its arena.
//! Context: control.
//! Keeps:   D1 nobody waits for an answer that will not come: after `close`, or a second, they go on.
//!          D2 what the target writes in it makes nobody wait for long, and us do nothing without end.
//! Checked: testkit `loading`, `follows`, `hostile` (D2).

use crate::facts::error::Broken;
use crate::find::process::Status;
use crate::live::session::Session;
use crate::plan::{Images, PlanError, Verb, plan_with};
use image::Spec;
use std::sync::atomic::Ordering;
use wire::Doorbell;

/// More threads do not wait at one doorbell: each goes on after a second.
const WAITING_MAX: u32 = 4096;

/// A doorbell in a process.
#[derive(Debug)]
pub(crate) struct Bell {
    pub session: Session,
}

/// Why a process cannot be listened to.
#[derive(Debug)]
pub enum Deaf {
    /// A seccomp filter may kill it for the call by which it would wait.
    Filtered,
    /// It has none of the functions, or they cannot be probed.
    NoFunction(PlanError),
    /// It cannot be entered.
    Broken(Broken),
}

impl Bell {
    /// At the first of `functions` that the process has.
    ///
    /// # Errors
    /// It may not wait, has none of them, or cannot be entered.
    pub fn hang(images: &mut Images, pid: i32, functions: &[&str], verb: Verb) -> Result<Bell, Deaf> {
        if Status::of(pid).map_err(Deaf::Broken)?.is_some_and(|s| s.seccomp != 0) {
            return Err(Deaf::Filtered);
        }
        let mut first = None;
        for function in functions {
            let spec = Spec::parse(function).unwrap_or_else(|_| unreachable!("a constant that parses"));
            match plan_with(images, pid, &[spec], verb) {
                Ok(plan) => {
                    let session = Session::attach(pid, plan.sites).map_err(Deaf::Broken)?;
                    return Ok(Bell { session });
                }
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(Deaf::NoFunction(first.unwrap_or_else(|| unreachable!("at least one was tried"))))
    }

    /// True as long as the process runs the program that we listen to.
    pub fn is_alive(&self) -> bool {
        self.session.is_alive()
    }

    /// What both sides write.
    pub fn words(&self) -> &Doorbell {
        self.session.regions.arena.doorbell()
    }

    /// True if a thread waits. A counter that is further ahead than threads can have rung is the target's own doing: whoever
    /// waits goes on, and counting begins again from there.
    pub fn is_rung(&self) -> bool {
        let words = self.words();
        let (rung, answered) = (words.rung.load(Ordering::Relaxed), words.answered.load(Ordering::Relaxed));
        if rung.wrapping_sub(answered) <= WAITING_MAX {
            return rung != answered;
        }
        self.session.regions.arena.rings_not_believed.fetch_add(1, Ordering::Relaxed);
        self.answer(rung);
        false
    }

    /// Lets the threads go on that rang up to this number.
    pub fn answer(&self, rung: u32) {
        // [BELL-4] Orders our work in the process before the thread goes on. Pairs with [BELL-3].
        self.words().answered.store(rung, Ordering::Release);
        let _ = sys::futex_wake_shared(&self.words().answered, u32::MAX >> 1);
    }

    /// Stops listening; the session is to be detached.
    pub fn close(self) -> Session {
        self.answer(Doorbell::CLOSED);
        self.session
    }
}
