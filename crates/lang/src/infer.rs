//! Types of everything, by repeated passes until nothing changes.
//!
//! For:     the checker.
//! State:   what is known of each expression, variable and map so far.
//! Context: control.
//! Keeps:   1. A pass only widens what variables and maps hold, so passes come to an end; [`PASSES_MAX`] bounds them.
//!          2. Errors are reported in one last pass, when all types are known, each once.
//! Checked: tests/check.rs, tests/limits.rs, `torture lang`.

mod access;
mod aggregate;
mod branch;
mod builtins;
mod operators;
pub(crate) mod promote;
mod settle;
mod statement;
mod written;

pub(crate) use operators::sign_of;
pub(crate) use settle::settle;

use crate::ast::{AttachPoint, Expr, ExprId, ExprKind, MapId, Probe, StmtKind, VarId};
use crate::cdecl::Names;
use crate::checked::Values;
use crate::config::Config;
use crate::diagnostic::Diagnostic;
use crate::resolve::{FoundMap, FoundVar};
use crate::source::Span;
use crate::types::{CTypes, EnumId, Type};
use crate::world::World;
use promote::{literal, promote, read_as, settled, shown};
use std::collections::{HashMap, HashSet};

/// Passes before inference gives up.
const PASSES_MAX: u32 = 300;

/// Said of a variable when nothing with a type is assigned to it; often for another reason, which is then said alone.
pub(crate) const NO_TYPE: &str = "Could not resolve the type of this variable";

/// What is asked of the rest of the checker.
pub(crate) struct Around<'a> {
    pub ctypes: &'a mut CTypes,
    pub names: &'a mut Names,
    pub world: &'a mut dyn World,
    pub config: &'a Config,
    pub enums: &'a HashMap<ExprId, EnumId>,
    pub vars: &'a [FoundVar],
    pub maps: &'a [FoundMap],
    pub safe: bool,
    /// Whether a process was started or named: `cpid`, `dw_ustack`.
    pub has_target: bool,
}

/// A variable while types are found.
#[derive(Clone, Default)]
pub(crate) struct VarSlot {
    pub ty: Type,
    /// Declared with a size: assignments do not change it.
    pub fixed: bool,
}

/// Types that were read by `sizeof` and its like, and may not change any more.
#[derive(Default, Clone)]
pub(crate) struct Locks {
    pub vars: HashMap<VarId, Type>,
    pub maps: HashMap<MapId, (Type, Type)>,
}

/// The pass.
pub(crate) struct Infer<'a> {
    pub around: Around<'a>,
    pub types: Vec<Type>,
    pub vars: Vec<VarSlot>,
    pub keys: Vec<Type>,
    pub values: Vec<Type>,
    pub problems: Vec<Diagnostic>,
    pub locks: Locks,
    /// Read by `sizeof` and its like in this run.
    pub read_vars: HashSet<VarId>,
    pub read_maps: HashSet<MapId>,
    points: Vec<AttachPoint>,
    /// By probe and attach point.
    pub located: HashMap<(usize, usize), Values>,
    /// Why there is no `args`.
    no_args: HashMap<(usize, usize), String>,
    probe: usize,
    changed: bool,
    report: bool,
    loops: u32,
    meta: u32,
    discarded: bool,
    dead: u32,
    /// The value that goes into a map.
    stored: Option<ExprId>,
    /// Numbers of control groups by their paths.
    pub cgroups: HashMap<Vec<u8>, u64>,
}

impl<'a> Infer<'a> {
    pub fn new(around: Around<'a>, ids: u32, locks: Locks) -> Infer<'a> {
        let (vars, maps) = (around.vars.len(), around.maps.len());
        Infer {
            types: vec![Type::None; ids as usize],
            vars: vec![VarSlot::default(); vars],
            keys: vec![Type::None; maps],
            values: vec![Type::None; maps],
            problems: Vec::new(),
            locks,
            read_vars: HashSet::new(),
            read_maps: HashSet::new(),
            points: Vec::new(),
            located: HashMap::new(),
            no_args: HashMap::new(),
            probe: 0,
            changed: false,
            report: false,
            loops: 0,
            meta: 0,
            discarded: false,
            dead: 0,
            stored: None,
            cgroups: HashMap::new(),
            around,
        }
    }

    /// All passes; the last reports.
    pub fn run(&mut self, probes: &[Probe]) {
        self.fixpoint(probes);
        // `@x++` alone begins at 0.
        let mut seeded = false;
        for (i, map) in self.around.maps.iter().enumerate() {
            if self.values[i] == Type::None && map.keyed.is_some() {
                self.values[i] = literal(0);
                seeded = true;
            }
        }
        if seeded {
            self.fixpoint(probes);
        }
        self.report = true;
        self.pass(probes);
        for ty in self.keys.iter_mut().chain(&mut self.values).chain(&mut self.types) {
            *ty = settled(ty);
        }
        for var in &mut self.vars {
            var.ty = settled(&var.ty);
        }
    }

    fn fixpoint(&mut self, probes: &[Probe]) {
        for _ in 0..PASSES_MAX {
            self.changed = false;
            self.pass(probes);
            if !self.changed {
                return;
            }
        }
        let span = probes.first().map(|p| p.span).unwrap_or_default();
        self.problems.push(Diagnostic::error(span, "the types of this program do not settle"));
    }

    fn pass(&mut self, probes: &[Probe]) {
        for (i, probe) in probes.iter().enumerate() {
            self.probe = i;
            self.points.clone_from(&probe.points);
            if let Some(predicate) = &probe.predicate {
                let ty = self.expr(predicate);
                self.condition(&ty, predicate.span, "predicate");
            }
            self.block_in(&probe.body, true);
        }
    }

    fn error(&mut self, span: Span, message: impl Into<String>) {
        if self.report {
            self.problems.push(Diagnostic::error(span, message));
        }
    }

    fn warn(&mut self, span: Span, message: impl Into<String>) {
        if self.report {
            self.problems.push(Diagnostic::warning(span, message));
        }
    }

    fn show(&self, ty: &Type) -> String {
        shown(ty, self.around.ctypes)
    }

    /// The type of an expression, kept for it.
    pub fn expr(&mut self, expr: &Expr) -> Type {
        let ty = self.of(expr);
        let slot = &mut self.types[expr.id.0 as usize];
        if *slot != ty {
            *slot = ty.clone();
        }
        ty
    }

    /// The type of an expression whose value is taken: an aggregation is read as an integer.
    fn value(&mut self, expr: &Expr) -> Type {
        let ty = self.expr(expr);
        match read_as(&ty) {
            Some(read) => read,
            None if matches!(ty, Type::Agg(_)) => {
                let shown = self.show(&ty);
                self.error(expr.span, format!("a map's {shown} can't be read as a value"));
                Type::None
            }
            None if ty == Type::Void && self.report => {
                self.error(expr.span, "this call has no value");
                Type::None
            }
            None => ty,
        }
    }

    fn of(&mut self, expr: &Expr) -> Type {
        match &expr.kind {
            ExprKind::Int(value) => match self.around.enums.get(&expr.id) {
                Some(id) => Type::Enum(*id),
                None => literal(*value),
            },
            ExprKind::Bool(_) => Type::Bool,
            ExprKind::Str(text) => Type::Str(text.len() as u32 + 1),
            ExprKind::Ident(name) => {
                self.error(expr.span, format!("Unknown identifier: '{name}'"));
                Type::None
            }
            ExprKind::Var(var) => {
                if self.meta > 0 {
                    self.read_vars.insert(var.id);
                }
                let ty = self.vars[var.id.0 as usize].ty.clone();
                if ty == Type::None {
                    self.error(expr.span, NO_TYPE);
                }
                ty
            }
            ExprKind::Map(map) => {
                if self.meta > 0 {
                    self.read_maps.insert(map.id);
                }
                let found = &self.around.maps[map.id.0 as usize];
                if found.keyed == Some(true) {
                    let name = found.name.clone();
                    let message = format!("@{name} used as a value without a key (non-scalar map)");
                    self.error(expr.span, message);
                }
                self.map_value(map.id, expr.span)
            }
            ExprKind::MapAt(map, key) => {
                if self.meta > 0 {
                    self.read_maps.insert(map.id);
                }
                self.key(map.id, key, expr.span);
                self.map_value(map.id, expr.span)
            }
            ExprKind::Arg(n) => self.argument(*n, expr.span),
            ExprKind::Builtin(function, args) => {
                // The call's value may be nobody's; its arguments are its own.
                let was = std::mem::replace(&mut self.discarded, false);
                let ty = self.call(*function, args, expr);
                self.discarded = was;
                ty
            }
            ExprKind::Unary(op, of) => self.unary(*op, of, expr.span),
            ExprKind::Step(step, target) => self.step(*step, target, expr.span),
            ExprKind::Binary(op, a, b) => self.binary(*op, a, b, expr.span),
            ExprKind::Ternary(c, a, b) => self.ternary(c, a.as_deref(), b, expr.span),
            ExprKind::If(branch) => self.branch(branch, expr.span),
            ExprKind::Block(block) => self.block_in(block, false),
            ExprKind::Field(of, name) => self.field(of, name, expr.span),
            ExprKind::Index(of, index) => self.index(of, index, expr.span),
            ExprKind::Cast(ty, of) => self.cast(ty, of, expr.span),
            ExprKind::Tuple(parts) => {
                let parts: Vec<Type> = parts.iter().map(|p| self.value(p)).collect();
                if parts.contains(&Type::None) { Type::None } else { Type::Tuple(parts.into()) }
            }
            ExprKind::Record(parts) => {
                let parts: Vec<_> = parts.iter().map(|(n, p)| (n.text.clone(), self.value(p))).collect();
                if parts.iter().any(|(_, t)| *t == Type::None) {
                    Type::None
                } else {
                    Type::Record(parts.into())
                }
            }
            ExprKind::Sizeof(arg) | ExprKind::Offsetof(arg, _) => {
                self.type_arg(arg);
                literal(0)
            }
            ExprKind::Typeof(arg) => {
                self.type_arg(arg);
                self.error(expr.span, "typeof can only be used where a type stands");
                Type::None
            }
            ExprKind::Typeinfo(arg) => {
                let ty = self.type_arg(arg);
                let text = |t: String| Type::Str(t.len() as u32 + 1);
                let (base, full) = (promote::base(&ty, self.around.ctypes), self.show(&ty));
                Type::Record(
                    [
                        ("btf_id".to_string(), Type::Int(crate::types::Int::U64)),
                        ("base_ty".to_string(), text(base)),
                        ("full_ty".to_string(), text(full)),
                    ]
                    .into(),
                )
            }
            ExprKind::Comptime(inner) => self.expr(inner),
            ExprKind::Positional(_) | ExprKind::PositionalCount | ExprKind::Call(_) | ExprKind::Paren(_) => {
                Type::None
            }
        }
    }

    fn map_value(&mut self, id: MapId, span: Span) -> Type {
        let ty = self.values[id.0 as usize].clone();
        if ty == Type::None {
            let name = self.around.maps[id.0 as usize].name.clone();
            self.error(span, format!("Undefined map: @{name}"));
        }
        ty
    }

    /// A key that is used with a map.
    fn key(&mut self, id: MapId, key: &Expr, span: Span) {
        let ty = self.value(key);
        if ty == Type::None {
            return;
        }
        let current = self.keys[id.0 as usize].clone();
        let merged =
            self.merged(&current, &ty, self.locks.maps.get(&id).map(|l| l.0.clone()), id.0, false, span);
        match merged {
            Some(merged) => self.widen_key(id, merged),
            None => {
                let name = &self.around.maps[id.0 as usize].name;
                let message = format!(
                    "Argument mismatch for @{name}: trying to access with arguments: '{}' when map expects \
                     arguments: '{}'",
                    self.show(&ty),
                    self.show(&current)
                );
                self.error(span, message);
            }
        }
    }

    fn widen_key(&mut self, id: MapId, ty: Type) {
        let slot = &mut self.keys[id.0 as usize];
        if *slot != ty {
            *slot = ty;
            self.changed = true;
        }
    }

    /// What `ty` makes of a place that holds `current`; a locked place does not change.
    fn merged(
        &mut self,
        current: &Type,
        ty: &Type,
        locked: Option<Type>,
        _id: u32,
        _var: bool,
        span: Span,
    ) -> Option<Type> {
        if let Some(locked) = locked.filter(|l| *l != Type::None) {
            let fits =
                promote(&locked, ty, self.around.ctypes).is_some_and(|p| settled(&p) == settled(&locked));
            if !fits {
                let message = format!(
                    "Type mismatch: this type has been locked because it was used in another part of the program \
                     that was already resolved (e.g. `sizeof`, `typeinfo`, etc.). The new type '{}' doesn't fit into \
                     the locked type '{}'",
                    self.show(ty),
                    self.show(&locked)
                );
                self.error(span, message);
            }
            return Some(locked);
        }
        let merged = promote(current, ty, self.around.ctypes)?;
        // What grows with each pass would never end.
        Some(if depth(&merged) > 24 { current.clone() } else { merged })
    }
}

/// How deep a type nests.
fn depth(ty: &Type) -> u32 {
    match ty {
        Type::Pointer(of) | Type::Array(of, _) => depth(of) + 1,
        Type::Tuple(of) => of.iter().map(depth).max().unwrap_or(0) + 1,
        Type::Record(of) => of.iter().map(|(_, t)| depth(t)).max().unwrap_or(0) + 1,
        _ => 0,
    }
}

/// Whether a statement ends its block.
fn leaves(kind: &StmtKind) -> bool {
    match kind {
        StmtKind::Return(_) | StmtKind::Break | StmtKind::Continue => true,
        StmtKind::Expr(e) => matches!(e.kind, ExprKind::Builtin(crate::builtin::Builtin::Exit, _)),
        _ => false,
    }
}
