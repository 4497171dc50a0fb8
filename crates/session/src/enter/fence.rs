//! How threads of another process are made to execute a full fence.
//!
//! For:     `live::readers`: what its grace periods rest on. Chosen at the attach.
//! State:   which way is open for this process.
//! Context: control.
//! Keeps:   F1 after `Fence::make` every thread of the process that runs has executed a full fence since it was called.
//!          F2 nobody stands still for the choice: where the kernel would make the process wait, another way is chosen.
//! Checked: torture `tests/live.rs`; `torture live`, with `--late`.
//! Source:  membarrier(2); kernel/sched/membarrier.c (6.x): registering a process of several threads waits for an RCU
//!          grace period, 11 to 16 ms here, in the registering thread, which we hold all others for. One of a single
//!          thread is registered in 8 to 39 us (docs/decisions/0011-grace-periods-from-outside.md).

use crate::facts::error::Broken;
use crate::hold::remote::Remote;
use crate::hold::world::World;
use std::fmt;
use std::time::Duration;
use sys::{membarrier, membarrier_cmd as cmd, nr};

/// A full fence in all running threads of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fence {
    /// By interrupts to the CPUs that run it: it is registered for that.
    Expedited,
    /// By a grace period of the kernel's own: 10 to 30 ms, without a trace in the process.
    Global,
    /// By a stop of all its threads: this kernel has neither.
    Stop,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fence::Expedited => "membarrier, global and expedited",
            Fence::Global => "membarrier, global",
            Fence::Stop => "a stop of all threads",
        })
    }
}

impl Fence {
    /// The way for a process of so many threads; one that is alone is registered, in a call that it makes.
    pub(crate) fn choose(remote: &mut Remote<'_>, threads: usize) -> Result<Fence, Broken> {
        let known = membarrier(cmd::QUERY).unwrap_or(0);
        let has = |command: i32| known & command as usize != 0;
        if has(cmd::REGISTER_GLOBAL_EXPEDITED) && threads == 1 {
            let register = [cmd::REGISTER_GLOBAL_EXPEDITED as u64, 0, 0, 0, 0, 0];
            match remote.call("membarrier", nr::MEMBARRIER, register) {
                Ok(_) => return Ok(Fence::Expedited),
                Err(Broken::Remote { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        // Not on a kernel with CPUs that it leaves alone (`nohz_full`).
        Ok(if has(cmd::GLOBAL) { Fence::Global } else { Fence::Stop })
    }

    /// Makes it; how long a thread stood still for that.
    pub(crate) fn make(self, pid: i32) -> Result<Duration, Broken> {
        let made = match self {
            Fence::Expedited => membarrier(cmd::GLOBAL_EXPEDITED),
            Fence::Global => membarrier(cmd::GLOBAL),
            Fence::Stop => return World::stop(pid).map(World::resume),
        };
        made.map(|_| Duration::ZERO).map_err(|errno| Broken::Call { what: "membarrier", errno })
    }
}
