//! Where a program goes: its start, its libraries, its execs.
//!
//! For:     `-- COMMAND`, `--wait`, `--follow`, scripts that trace every process.
//! State:   a program before its first instruction; a doorbell in an arena.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   nobody waits for us longer than a second, and nobody for a dead one.
//! Checked: testkit `launching`, `loading`, `follows`, `family`.
//!
//! - [`heritage`] what a command takes over from whoever started us
//! - [`launch`] a program up to its entry point
//! - [`bell`] a probe at which threads wait for us
//! - [`loads`] libraries that are loaded
//! - [`execs`] programs that are executed
//! - [`births`] programs that anybody executes

pub(crate) mod bell;
pub(crate) mod births;
pub(crate) mod execs;
pub(crate) mod heritage;
pub(crate) mod launch;
pub(crate) mod loads;
