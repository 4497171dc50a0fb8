//! Leaving a process as it was, and for who cannot do it any more.

pub(crate) mod detach;
pub(crate) mod heirs;
pub(crate) mod receipt;
pub(crate) mod recover;
pub(crate) mod unwatch;
pub(crate) mod verify;
