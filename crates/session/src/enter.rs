//! What we bring into a process: arena, code, records.

pub(crate) mod agent_image;
pub(crate) mod arena;
pub(crate) mod belief;
pub(crate) mod clock;
pub(crate) mod footing;
pub(crate) mod journal;
pub(crate) mod mapped;
pub(crate) mod occupants;
pub(crate) mod region;
pub(crate) mod semaphore;
pub(crate) mod setup;
