//! Threads held still, and driven: every use of ptrace but the watches' own.
//!
//! For:     entering, arming, leaving, following, soft watches.
//! State:   the ptrace stops of this OS thread.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   whoever is let go is as before, but for what was asked; whoever we leave by dying finds the way back by
//!          itself.
//! Checked: testkit `waits`, `signals`, `kills`, `lives`.
//!
//! - [`reports`] what the kernel reports of traced threads and children
//! - [`tracer`] which threads an OS thread traces and could not stop yet
//! - [`world`] all threads of a memory, held still
//! - [`interrupted`] system calls that a stop has interrupted
//! - [`sequence`] threads in restartable sequences
//! - [`stacks`] where threads will come back to, out of signal handlers
//! - [`foothold`] what a process has that a driven thread needs
//! - [`hijack`] one stopped thread that makes calls for us
//! - [`remote`] calls by a thread that we choose
//! - [`puppet`] calls and single steps of a thread that stays ours

pub(crate) mod foothold;
pub(crate) mod hijack;
pub(crate) mod interrupted;
pub(crate) mod puppet;
pub(crate) mod remote;
pub(crate) mod reports;
pub(crate) mod sequence;
pub(crate) mod stacks;
pub(crate) mod tracer;
pub(crate) mod world;
