//! A script whose programs the kernel runs: `--backend kernel`.
//!
//! For:     the machine of crate lang.
//! State:   the kernel's side; the command.
//! Context: control; the engine process, one thread.
//! Keeps:   K1 nothing is written into a process but by the kernel.
//! Checked: testkit `backends`.

use super::command;
use super::live::{How, Which, say_left_out};
use super::loaded::Loaded;
use super::names::Names;
use crate::guard::Guard;
use crate::stop::Stop;
use lang::Targets;
use lang::program::Script;
use lang::run::{Engine, Look, Shared, Traced};
use session::Launched;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The processes of a run, and who runs its programs.
pub struct InKernel {
    which: Which,
    targets: Targets,
    loaded: Loaded,
    launched: Option<Launched>,
    how: How,
    stop: Stop,
}

/// Loads a script and starts its command, if there is one.
///
/// # Errors
/// What the kernel cannot run, as it is told.
pub fn prepare(
    script: &Script,
    (which, how): (Which, How),
    (targets, names): (Targets, Rc<Names>),
    mut stop: Stop,
    guard: &mut Guard,
) -> Result<(InKernel, Box<dyn Engine>), String> {
    // The programs know the command's number: it is started, and held, before they are loaded.
    let launched = command::start(&which, &mut stop, guard)?;
    let began = sys::clock_ns(sys::BOOTTIME);
    match Loaded::load(script, (child(launched.as_ref()), began), names, None) {
        Ok(loaded) => {
            let engine = loaded.engine();
            Ok((InKernel { which, targets, loaded, launched, how, stop }, engine))
        }
        Err(why) => {
            if let Some(launched) = launched {
                launched.abandon();
            }
            Err(format!("ERROR: {why}"))
        }
    }
}

/// The command's number, 0 if there is none.
fn child(launched: Option<&Launched>) -> u32 {
    launched.map_or(0, |launched| launched.pid() as u32)
}

impl InKernel {
    /// The processes, or 0 for all.
    fn pids(&self) -> Vec<i32> {
        match &self.which {
            Which::Pids(pids) => pids.clone(),
            Which::Command(_) => vec![self.launched.as_ref().map_or(0, Launched::pid)],
            Which::All => vec![0],
        }
    }
}

impl Traced for InKernel {
    fn start(&mut self) -> Result<u32, String> {
        Ok(child(self.launched.as_ref()))
    }

    fn attach(&mut self, script: &Script, _maps: &Shared) -> Result<(), String> {
        let pids = self.pids();
        let linked = pids.into_iter().try_for_each(|pid| self.loaded.link(script, &self.targets, pid));
        if let Err(why) = linked.and_then(|()| self.loaded.check()) {
            if let Some(launched) = self.launched.take() {
                launched.abandon();
            }
            return Err(format!("ERROR: {why}"));
        }
        if self.how.says {
            let left_out: Vec<_> = self.loaded.left_out().collect();
            say_left_out(&left_out.iter().collect::<Vec<_>>(), self.how.is_verbose);
        }
        if let Some(launched) = &self.launched {
            launched.go();
        }
        Ok(())
    }

    fn left_out(&self) -> BTreeSet<String> {
        self.loaded.left_out().map(|(name, _)| name).collect()
    }

    fn is_any(&self) -> bool {
        self.loaded.is_linked() || self.launched.is_some()
    }

    fn watched(&self) -> Vec<i32> {
        vec![self.stop.watched()]
    }

    fn look(&mut self, _script: &Script, _maps: &Shared) -> Look {
        session::tidy();
        if self.stop.is_asked() {
            return Look::Asked;
        }
        let is_over = match &self.which {
            Which::Command(_) => self.launched.as_ref().is_some_and(|launched| launched.ended().is_some()),
            Which::Pids(pids) => {
                !pids.iter().any(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists())
            }
            Which::All => false,
        };
        if is_over { Look::Over } else { Look::On }
    }

    fn detach(&mut self) {
        self.loaded.unlink();
        self.launched.iter().for_each(command::end);
    }

    fn receipt(&mut self) -> (Vec<String>, bool) {
        (self.loaded.receipt(self.loaded.left_out().count()), true)
    }
}
