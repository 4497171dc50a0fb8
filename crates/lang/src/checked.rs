//! A program that was checked: what the lowering reads.
//!
//! For:     lowering, the controller's run side.
//! State:   the tree with macros expanded and constants folded, and what was found out about it.
//! Context: control.
//! Keeps:   1. Each expression of the tree has a type; `Type::None` is that of calls without a value.
//!          2. Each `Var`, `Map` and `MapAt` names a variable or map of the lists.
//!          3. Where a value goes into a variable, a map, a key, or meets another operand, its type is the place's,
//!             or converts to it: a narrower integer, a shorter string, the same of a tuple's parts, an aggregation
//!             read as an integer. The lowering converts; there are no casts in the tree that were not written.
//! Checked: the tests of visit.rs.

use crate::ast::{Expr, ExprId, MapId, Probe, VarId};
use crate::config::Config;
use crate::diagnostic::Diagnostic;
use crate::site::{Located, Symbol};
use crate::source::{Sources, Span};
use crate::types::{CTypes, StructId, Type};
use std::collections::{BTreeMap, HashMap};

/// A checked program.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// The texts, for messages.
    pub sources: Sources,
    /// The settings.
    pub config: Config,
    /// The probes of the script and its imports, in the order in which `begin` probes run.
    pub probes: Vec<Probe>,
    /// By [`ExprId`].
    pub types: Vec<Type>,
    /// By [`VarId`].
    pub vars: Vec<Var>,
    /// By [`MapId`].
    pub maps: Vec<Map>,
    /// Structs and enums.
    pub ctypes: CTypes,
    /// What `getopt` declared.
    pub options: Vec<Opt>,
    /// `args` and `retval`, by probe and attach point.
    pub located: HashMap<(usize, usize), Values>,
    /// Numbers of the control groups that `cgroupid` names.
    pub cgroups: HashMap<Vec<u8>, u64>,
    /// Warnings, in order of place.
    pub warnings: Vec<Diagnostic>,
}

impl Checked {
    /// The type of an expression.
    pub fn ty(&self, expr: &Expr) -> &Type {
        self.type_of(expr.id)
    }

    /// The type of an expression by its number.
    pub fn type_of(&self, id: ExprId) -> &Type {
        self.types.get(id.0 as usize).unwrap_or(&Type::None)
    }

    /// A variable. Panics if there is none of that number.
    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id.0 as usize]
    }

    /// A map. Panics if there is none of that number.
    pub fn map(&self, id: MapId) -> &Map {
        &self.maps[id.0 as usize]
    }
}

/// What the debug information says of an attach point, as far as the script asked.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// `args`.
    pub args: Option<Located<StructId>>,
    /// `retval`.
    pub retval: Option<Located<Type>>,
    /// `uaddr`, by name.
    pub symbols: BTreeMap<String, Symbol>,
}

/// A scratch variable.
#[derive(Clone, Debug)]
pub struct Var {
    /// Without `$`.
    pub name: String,
    /// Its type, the same everywhere.
    pub ty: Type,
    /// Where it was first named.
    pub span: Span,
    /// Of which probe.
    pub probe: usize,
}

/// A map.
#[derive(Clone, Debug)]
pub struct Map {
    /// Without `@`; empty for `@`.
    pub name: String,
    /// `None`: without a key.
    pub key: Option<Type>,
    /// What is kept.
    pub value: Type,
    /// What it was declared as; `Hash` if it was not.
    pub kind: MapKind,
    /// How many keys: declared, or the setting `max_map_keys`.
    pub max_entries: u64,
    /// Neither declared nor given another size: how many keys it has is nobody's wish.
    pub is_plain: bool,
    /// Where it was first named.
    pub span: Span,
}

/// What a map was declared as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub enum MapKind {
    #[default]
    Hash,
    LruHash,
    PercpuHash,
    PercpuLruHash,
}

/// A named parameter of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opt {
    /// Without `--`.
    pub name: String,
    /// The value if it is not given.
    pub default: OptValue,
    /// For `--help`.
    pub about: Option<String>,
}

/// The value of a named parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum OptValue {
    Bool(bool),
    Int(i128),
    Str(Vec<u8>),
}
