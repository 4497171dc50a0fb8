//! What we bring into a process, and how it is found again.
//!
//! For:     arming, and whoever leaves, be it after our death.
//! State:   the arena, and the mappings with our code.
//! Context: control; system calls are made by a stopped thread.
//! Keeps:   all that is made is named in the process before there is anything in it: whoever finds us dead takes it
//!          back.
//! Checked: testkit `traces`, `kills`, `forged`, `hostile`.
//!
//! - [`setup`] the first stop: what it finds out, and what it maps
//! - [`region`] mapping it
//! - [`arena`] the shared mapping, seen from outside
//! - [`agent_image`] the agent's bytes for an address
//! - [`clock`] how fast the time stamp counter runs
//! - [`walks`] what hits need to walk stacks
//! - [`join`] maps that it shares with others
//! - [`fence`] how its threads are made to execute a full fence
//! - [`footing`] where it all lies, as far as leaving needs it
//! - [`belief`] how far the process's memory is believed about that
//! - [`mapped`] whether a process maps an arena
//! - [`occupants`] who is in our code
//! - [`semaphore`] counts of marks, raised and lowered once
//! - [`guest`] a process that runs code for us
//! - [`journal`] pages that a soft watch has to give back

pub(crate) mod agent_image;
pub(crate) mod arena;
pub(crate) mod belief;
pub(crate) mod clock;
pub(crate) mod fence;
pub(crate) mod footing;
pub(crate) mod guest;
pub(crate) mod join;
pub(crate) mod journal;
pub(crate) mod mapped;
pub(crate) mod occupants;
pub(crate) mod region;
pub(crate) mod semaphore;
pub(crate) mod setup;
pub(crate) mod walks;
