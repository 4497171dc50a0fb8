#![doc = include_str!("../README.md")]

mod batch;
pub mod book;
mod collect;
mod consumer;
mod domains;
mod error;
pub mod fake;
mod group;
mod hit;
mod inside;
mod install;
mod refctr;
mod registry;
mod regs;
mod returns;
mod space;
mod spaces;
mod stats;
mod uprobe;

pub use batch::Wanted;
pub use consumer::{Consumer, Verdict};
pub use domains::{Config, Preset, Protection};
pub use error::{ApplyError, InstallError, RefCtrError, RegisterError};
pub use hit::Hit;
pub use inside::Misuse;
#[cfg(feature = "broken")]
pub use registry::Broken;
pub use registry::{Left, Registered, Registry};
pub use regs::Regs;
pub use returns::ReturnStack;
pub use space::{File, FileId, Insn, MAX_INSN, Range, Space, SpaceError, SpaceId, Spot};
pub use stats::Stats;
pub use uprobe::UprobeRef;
