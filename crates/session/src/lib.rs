#![doc = include_str!("../README.md")]

mod agent_image;
mod arena;
mod attach;
mod belief;
mod bell;
mod chain;
mod clock;
mod descriptor;
mod detach;
mod error;
mod events;
mod execs;
mod foothold;
mod footing;
mod frame;
mod heritage;
mod hijack;
mod identity;
mod inject;
mod kernel;
mod launch;
mod loads;
mod mapped;
mod memory;
mod numbers;
mod pages;
mod plan;
mod process;
mod puns;
mod recover;
mod region;
mod remote;
mod reports;
mod runs;
mod semaphore;
mod sequence;
mod session;
mod setup;
mod shadow_stack;
mod site;
mod space;
mod stacks;
mod threads;
mod verify;
pub mod watch;
mod world;

pub use arena::possible_cpus;
pub use bell::Deaf;
pub use detach::Receipt;
pub use error::Broken;
pub use events::Event;
pub use execs::Execs;
pub use heritage::Heritage;
pub use insn::Rung;
pub use launch::{Ending, Launched};
pub use loads::Loads;
pub use plan::{
    Explained, FileCoverage, Images, Listed, Pace, Plan, PlanError, RefusedSite, Verb, coverage, explain,
    list, plan, plan_with,
};
pub use process::{check_process, check_readable, children};
pub use recover::{is_marked, recover};
pub use reports::tidy;
pub use session::{Calls, OpenCalls, Session, SiteView};
pub use site::{Action, Consumer, HISTOGRAM_CELLS, Missed, SitePlan};
pub use world::{ENGINE_NAME, Held};
