//! What every room speaks of.
//!
//! For:     all rooms.
//! State:   none: facts, and the step that fails in a test.
//! Context: any.
//! Keeps:   nothing is found out here, and nothing changed.
//! Checked: by those who make the facts.
//!
//! - [`error`] why a process is not entered, or a step in it failed
//! - [`calls`] what is told of calls
//! - [`ending`] how a program ended
//! - [`program`] programs that consumers run
//! - [`ported`] what exists on this processor
//! - [`family`] maps that the programs of several processes have together
//! - [`room`] what a session keeps free for consumers that come later
//! - [`site`] one site: planned, then armed; what is to be done at it
//! - [`descriptor`] descriptors that the kernel has just made
//! - [`inject`] a step that fails once, in tests

pub(crate) mod calls;
pub(crate) mod descriptor;
pub(crate) mod ending;
pub(crate) mod error;
pub(crate) mod family;
pub(crate) mod inject;
pub(crate) mod ported;
pub(crate) mod program;
pub(crate) mod room;
pub(crate) mod site;
