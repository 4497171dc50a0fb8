//! Hearing of libraries before anything in them runs.
//!
//! For:     probes on libraries that are loaded later.
//! State:   a doorbell on the function that the dynamic linker calls for debuggers when its list of
//!          libraries changes; the thread that calls it waits for our answer.
//! Context: control.
//! Keeps:   L1 what is loaded is heard of before its code runs.
//! Checked: testkit `loading`.
//! Source:  the protocol of r_debug in <link.h>: the call with RT_CONSISTENT comes after a library is mapped and
//!          before it is relocated and its constructors run.

use crate::follow::bell::{Bell, Deaf};
use crate::live::session::Session;
use crate::plan::{Images, Verb};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The dynamic linker's mark, in glibc and in musl.
const MARKS: [&str; 2] = ["u:ld-linux-x86-64:_dl_debug_state", "u:ld-musl-x86_64:_dl_debug_state"];

/// A process whose loading of libraries is heard of.
#[derive(Debug)]
pub struct Loads {
    bell: Bell,
}

impl Loads {
    /// Begins to listen.
    ///
    /// # Errors
    /// The process is static, or its linker's mark cannot be probed.
    pub fn listen(images: &mut Images, pid: i32) -> Result<Loads, Deaf> {
        Bell::hang(images, pid, &MARKS, Verb::Ring).map(|bell| Loads { bell })
    }

    /// True as long as the process runs the program that we listen to.
    pub fn is_alive(&self) -> bool {
        self.bell.is_alive()
    }

    /// Waits for a change of the list, at most so long. `Some`: a thread waits for [`Loads::answer`] with this number.
    pub fn wait(&self, timeout: Duration) -> Option<u32> {
        let answered = self.bell.words().answered.load(Ordering::Relaxed);
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // Woken for nothing is as good as in time.
        let _ = sys::futex_wait_shared(&self.bell.words().rung, answered, Some(timeout_ns));
        // [BELL-2] Orders the number before our look at the process. Pairs with [BELL-1].
        let rung = self.bell.words().rung.load(Ordering::Acquire);
        (rung != answered).then_some(rung)
    }

    /// Lets the threads go on that rang up to this number.
    pub fn answer(&self, rung: u32) {
        self.bell.answer(rung);
    }

    /// Stops listening; the session is to be detached.
    pub fn close(self) -> Session {
        self.bell.close()
    }
}
