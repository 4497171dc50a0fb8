#![doc = include_str!("../README.md")]

mod agent_image;
mod arena;
mod attach;
mod chain;
mod detach;
mod error;
mod footing;
mod launch;
mod memory;
mod pages;
mod plan;
mod process;
mod recover;
mod region;
mod remote;
mod session;
mod site;
mod space;
mod stacks;
pub mod watch;
mod world;

pub use detach::Receipt;
pub use error::Broken;
pub use launch::Launched;
pub use plan::{Explained, Listed, Plan, PlanError, RefusedSite, Verb, explain, list, plan};
pub use process::{check_process, check_readable};
pub use recover::recover;
pub use session::{Session, SiteView};
pub use site::{Action, Consumer, HISTOGRAM_CELLS, Missed, SitePlan};
pub use world::ENGINE_NAME;
