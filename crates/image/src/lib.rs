#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod addr;
pub mod dwarf;
mod elf;
mod error;
mod loc;
pub mod lookup;
pub mod maps;
pub mod select;
pub mod spec;

pub use addr::{Addr, Bias, FileOffset, ImageAddr};
pub use elf::{
    CriticalSection, ElfImage, Fde, Function, FunctionKind, GoFrames, ImportSlot, IrelativeSlot, Kind,
    Machine, Mark, NameAt, Operand, Section, Segment, Signature, SizeSource, Source, SymbolName, Unread,
    Variable, Version, demangle,
};
pub use error::ImageError;
pub use loc::{Address, INSTRUCTION_POINTER, Loc, MarkArgument, STACK_POINTER, mark_arguments};
pub use maps::{FileId, Mapping, Module, ModuleKind, Process};
pub use select::{NoMatch, Reason, Selection, select};
pub use spec::{Spec, SpecError, When};
