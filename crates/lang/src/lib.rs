#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod ast;
mod builtin;
mod checked;
mod config;
mod diagnostic;
pub mod format;
mod probes;
mod source;
pub mod types;
mod world;

pub use builtin::Builtin;
pub use checked::{Checked, Map, MapKind, Opt, OptValue, Var};
pub use config::{Config, MissingProbes, Unstable};
pub use diagnostic::{Diagnostic, Level};
pub use source::{FileId, Place, SourceFile, Sources, Span};
pub use world::{Nowhere, World};
