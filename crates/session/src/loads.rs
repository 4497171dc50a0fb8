//! Hearing of libraries before anything in them runs.
//!
//! For:     probes on libraries that are loaded later.
//! State:   a session of one probe, on the function that the dynamic linker calls for debuggers when its list of
//!          libraries changes; the thread that calls it waits for our answer.
//! Context: control.
//! Keeps:   L1 a thread never waits for an answer that will not come: after `close`, or a second, it goes on.
//! Checked: testkit `loading`.
//! Source:  the protocol of r_debug in <link.h>: the call with RT_CONSISTENT comes after a library is mapped and
//!          before it is relocated and its constructors run.

use crate::error::Broken;
use crate::plan::{PlanError, Verb, plan};
use crate::process::Status;
use crate::session::Session;
use image::Spec;
use std::sync::atomic::Ordering;
use std::time::Duration;
use wire::Doorbell;

/// The dynamic linker's mark, in glibc and in musl.
const MARKS: [&str; 2] = ["u:ld-linux-x86-64:_dl_debug_state", "u:ld-musl-x86_64:_dl_debug_state"];

/// A process whose loading of libraries is heard of.
#[derive(Debug)]
pub struct Loads {
    session: Session,
}

/// Why loads cannot be heard of.
#[derive(Debug)]
pub enum Deaf {
    /// A seccomp filter may kill it for the call by which it would wait.
    Filtered,
    /// It has no dynamic linker, or one that cannot be probed.
    NoLinker(PlanError),
    /// It cannot be entered.
    Broken(Broken),
}

impl Loads {
    /// Begins to listen.
    ///
    /// # Errors
    /// The process is static, or its linker's mark cannot be probed.
    pub fn listen(pid: i32) -> Result<Loads, Deaf> {
        if Status::of(pid).is_some_and(|s| s.seccomp != 0) {
            return Err(Deaf::Filtered);
        }
        let mut first = None;
        for mark in MARKS {
            let spec = Spec::parse(mark).unwrap_or_else(|_| unreachable!("a constant that parses"));
            match plan(pid, &[spec], Verb::Ring) {
                Ok(plan) => {
                    let session = Session::attach(pid, plan.sites).map_err(Deaf::Broken)?;
                    return Ok(Loads { session });
                }
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(Deaf::NoLinker(first.unwrap_or_else(|| unreachable!("two marks were tried"))))
    }

    /// True as long as the process runs the program that we listen to.
    pub fn is_alive(&self) -> bool {
        self.session.is_alive()
    }

    fn bell(&self) -> &Doorbell {
        self.session.regions.arena.doorbell()
    }

    /// Waits for a change of the list, at most so long. `Some`: a thread waits for [`Loads::answer`] with this number.
    pub fn wait(&self, timeout: Duration) -> Option<u32> {
        let answered = self.bell().answered.load(Ordering::Relaxed);
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // Woken for nothing is as good as in time.
        let _ = sys::futex_wait_shared(&self.bell().rung, answered, Some(timeout_ns));
        // [BELL-2] Orders the number before our look at the process. Pairs with [BELL-1].
        let rung = self.bell().rung.load(Ordering::Acquire);
        (rung != answered).then_some(rung)
    }

    /// Lets the threads go on that rang up to this number.
    pub fn answer(&self, rung: u32) {
        // [BELL-4] Orders our work in the process before the thread goes on. Pairs with [BELL-3].
        self.bell().answered.store(rung, Ordering::Release);
        let _ = sys::futex_wake_shared(&self.bell().answered, u32::MAX >> 1);
    }

    /// Stops listening; the session is to be detached.
    pub fn close(self) -> Session {
        self.answer(Doorbell::CLOSED);
        self.session
    }
}
