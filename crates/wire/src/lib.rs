#![doc = include_str!("../README.md")]
#![no_std]

mod arena;
mod directory;
mod event;
mod hit;
mod kernel_site;
pub mod latency;
pub mod maps;
mod site;
pub mod table;
mod trampoline;
mod view;
mod walk;

pub use arena::{
    ARENA_HEAD, ARENA_MAGIC, ARENA_NAME, ArenaHeader, COPY_CHILDREN, COPY_CPU0, COPY_SHARED, DOORBELL,
    Doorbell, FAMILY_NAME, MAPS, NO_RSEQ, REGIONS_BYTES_MAX, REGIONS_MAX, RegionDesc, VERSION, cell,
};
pub use directory::{Directory, Entry, Kind, OBJECTS_MAX};
pub use event::Event;
pub use hit::{
    BOUNDS_MAX, Bounds, CheckedHit, HELPERS_LEN, Helper, Hit, Inside, ProgramDesc, STACK_LEN,
    WORKSPACES_EACH, WORKSPACES_OWN, Workspace, fault, needs, program_cell,
};
pub use kernel_site::{KERNEL_SITE_MAGIC, KernelSite};
pub use site::{
    ARG_OFFSET, ARG_SHIFT, AgentExports, AgentTable, COPY_NONE, COPY_UNKNOWN, ConsumerDesc, HANDLERS_LEN,
    HandlerKind, SiteDesc, TRACE_GO, TRACE_JUMP, TRACE_LOST,
};
pub use trampoline::{JUMP_LEN, NO_CHAIN, TRAMPOLINE_MAGIC, TrampolineHeader};
pub use view::Untrusted;
pub use walk::{
    STACK_FRAMES, STACKS_MAX, WALK_AT_ENTRY, WALK_CHECKS, WALK_FIRST_MEMO, WALK_FIRST_SPACE, WALK_FIRST_WAY,
    WALK_IN_GO, WALK_MEMOS, WALK_SPACE, WALK_SPACES, WALK_TABLES, WALK_WAYS, WalkDesc, WalkMemo, WalkWay,
    walk_cell,
};
