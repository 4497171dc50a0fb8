#![doc = include_str!("../README.md")]

mod arch;
mod arm;
mod enter;
mod facts;
mod find;
mod follow;
mod hold;
mod kernel;
mod leave;
mod live;
mod patch;
mod plan;
pub mod watch;

pub use arm::lift::Lowered;
pub use arm::probes::{Came, NotDone, SettledProbes, Went};
pub use enter::arena::SeenStacks;
pub use enter::fence::Fence;
pub use enter::guest::Guest;
pub use facts::calls::{Event, OpenCalls};
pub use facts::ending::Ending;
pub use facts::error::{Broken, Limit, Stop};
pub use facts::family::{FamilyMaps, MapsGround};
pub use facts::program::{FUEL, NotProgram, OWN_STACK_MAX, Program, Programs, Runs, SCRATCH_MAX, Wanted};
pub use facts::room::{Attach, Room};
pub use facts::site::{Action, Consumer, HISTOGRAM_CELLS, Missed, SitePlan};
pub use find::process::{ENGINE_NAME, check_process, check_readable, living_children};
pub use follow::bell::Deaf;
pub use follow::births::Births;
pub use follow::execs::Execs;
pub use follow::heritage::Heritage;
pub use follow::launch::Launched;
pub use follow::loads::Loads;
pub use hold::reports::tidy;
pub use hold::tracer::Held;
pub use hold::world::{Haste, set_patience, stops};
pub use insn::Rung;
pub use kernel::exec::{NotRun, run_in_kernel};
pub use kernel::script::{KernelPlaces, KernelRuns, KernelScript, NotByKernel, ScriptPlan, Scripted};
pub use leave::receipt::{Receipt, Residue};
pub use leave::recover::{is_marked, recover};
pub use live::change::{GraceReport, NotChanged, Settled};
pub use live::lists::{ConsumerId, HookId};
pub use live::readers::{Late, LiveBroken};
pub use live::session::Session;
pub use live::site::{Calls, SiteView, Tally};
pub use live::stacks::{CallStack, StackCount, StackLosses};
pub use patch::pages::is_under_kernel;
pub use plan::{
    Amount, Explained, FileCoverage, Images, Listed, Pace, Plan, PlanError, Progress, RefusedSite, Verb,
    coverage, explain, len_under_kernel, list, misrun_by_kernel, plan, plan_each, plan_with,
};
pub use text::Flavour;
