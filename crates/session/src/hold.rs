//! Threads held still, and driven: every use of ptrace.

pub(crate) mod foothold;
pub(crate) mod frame;
pub(crate) mod hijack;
pub(crate) mod interrupted;
pub(crate) mod puppet;
pub(crate) mod remote;
pub(crate) mod reports;
pub(crate) mod sequence;
pub(crate) mod stacks;
pub(crate) mod tracer;
pub(crate) mod world;
