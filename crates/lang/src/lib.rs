#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod alone;
mod arch;
pub mod ast;
mod builtin;
mod cdecl;
mod check;
mod checked;
mod config;
mod diagnostic;
mod disk;
pub mod events;
mod expand;
mod fmt;
mod fold;
pub mod format;
mod imports;
mod infer;
mod lower;
mod names;
mod options;
mod probes;
pub mod program;
mod resolve;
pub mod run;
mod site;
mod source;
mod syntax;
mod targets;
pub mod types;
mod visit;
mod world;

pub use alone::shared_by_hits;
pub use builtin::Builtin;
pub use check::{Refused, Request, check};
pub use checked::{Checked, Map, MapKind, Opt, OptValue, Values, Var};
pub use config::{Config, MissingProbes, Unstable};
pub use diagnostic::{Diagnostic, Level};
pub use disk::Disk;
pub use fmt::formatted;
pub use lower::{Options, lower};
pub use site::{Located, Site, Symbol, from_here};
pub use source::{FileId, Place, SourceFile, Sources, Span};
pub use targets::{ProbedPlace, Targets, TracedFile};
pub use world::{Missing, Nowhere, World};
