//! Libraries that traced processes load later.
//!
//! For:     live.
//! State:   the processes that are listened to, and which modules each had when it was looked at last.
//! Context: control; the engine process, one thread.
//! Keeps:   L1 a library that a script has places in is probed before anything in it runs, each time that it is loaded.
//! Checked: testkit `loading`.

use crate::probes::Modules;
use session::{Deaf, Images, Loads, Session};
use std::time::Duration;

/// A process that may load what it has not.
struct Heard {
    pid: i32,
    loads: Loads,
    seen: Modules,
}

/// All of them.
#[derive(Default)]
pub struct Later {
    heard: Vec<Heard>,
}

impl Later {
    /// Listens to a process from now on; why it is not listened to.
    pub fn listen(&mut self, images: &mut Images, pid: i32) -> Result<(), String> {
        let loads = Loads::listen(images, pid).map_err(|deaf| in_words(&deaf))?;
        self.heard.push(Heard { pid, loads, seen: Modules::new() });
        Ok(())
    }

    /// Nobody is listened to.
    pub fn is_empty(&self) -> bool {
        self.heard.is_empty()
    }

    /// Whether a process is listened to.
    pub fn is_listening(&self, pid: i32) -> bool {
        self.heard.iter().any(|heard| heard.pid == pid)
    }

    /// True as long as one of them runs the program that is listened to.
    pub fn is_alive(&self) -> bool {
        self.heard.iter().any(|heard| heard.loads.is_alive())
    }

    /// What a process had, when it has `now`.
    pub fn swap(&mut self, pid: i32, now: Modules) -> Modules {
        let heard = self.heard.iter_mut().find(|heard| heard.pid == pid);
        heard.map(|heard| std::mem::replace(&mut heard.seen, now)).unwrap_or_default()
    }

    /// What processes had is not known any more: all of it is new.
    pub fn forget(&mut self) {
        self.heard.iter_mut().for_each(|heard| heard.seen.clear());
    }

    /// Processes of which a thread waits for [`answer`](Self::answer), with what to answer.
    pub fn rung(&self) -> Vec<(i32, u32)> {
        let rings = |heard: &Heard| Some((heard.pid, heard.loads.wait(Duration::ZERO)?));
        self.heard.iter().filter_map(rings).collect()
    }

    /// Lets the threads of a process go on.
    pub fn answer(&self, pid: i32, rung: u32) {
        self.heard.iter().filter(|heard| heard.pid == pid).for_each(|heard| heard.loads.answer(rung));
    }

    /// Listens to nobody any more; what is to be detached.
    pub fn close(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.heard).into_iter().map(|heard| heard.loads.close()).collect()
    }
}

fn in_words(deaf: &Deaf) -> String {
    match deaf {
        Deaf::Filtered => "its seccomp filter may end it for the call by which it would wait for us".into(),
        Deaf::NoFunction(_) => "it is a static program, or its dynamic linker tells nobody".into(),
        Deaf::Broken(broken) => broken.to_string(),
    }
}
