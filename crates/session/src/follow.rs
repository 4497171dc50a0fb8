//! Where the program goes: start, libraries, execs.

pub(crate) mod bell;
pub(crate) mod execs;
pub(crate) mod heritage;
pub(crate) mod launch;
pub(crate) mod loads;
