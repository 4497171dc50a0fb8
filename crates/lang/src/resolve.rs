//! Variables and maps: which use is of which.
//!
//! For:     the checker.
//! State:   the scopes that are open, the variables and maps found.
//! Context: control.
//! Keeps:   1. After it each `Var`, `Map` and `MapAt` has an id.
//!          2. A map is used with keys everywhere or nowhere.
//! Checked: tests/check.rs.

use crate::ast::{Block, Expr, ExprKind, MapId, MapRef, Stmt, StmtKind, TypeArg, UnOp, VarId, VarRef};
use crate::builtin::Builtin;
use crate::diagnostic::Diagnostic;
use crate::names::nearest;
use crate::source::Span;
use crate::visit::Visit;
use std::collections::HashMap;

/// A variable as it was found.
pub(crate) struct FoundVar {
    pub name: String,
    pub span: Span,
    pub probe: usize,
    declared: bool,
    assigned: bool,
}

/// A map as it was found.
pub(crate) struct FoundMap {
    pub name: String,
    pub span: Span,
    /// Whether it has keys; `None` if no use says.
    pub keyed: Option<bool>,
}

/// The pass.
#[derive(Default)]
pub(crate) struct Resolver {
    scopes: Vec<HashMap<String, VarId>>,
    pub vars: Vec<FoundVar>,
    pub maps: Vec<FoundMap>,
    by_name: HashMap<String, MapId>,
    pub problems: Vec<Diagnostic>,
    pub probe: usize,
    /// In `sizeof` and its like nothing is read.
    meta: u32,
}

/// A name as messages show it: a macro's variable without its number.
pub(crate) fn shown(name: &str) -> &str {
    name.split('#').next().unwrap_or(name)
}

impl Resolver {
    /// One probe.
    pub fn probe(&mut self, predicate: Option<&mut Expr>, body: &mut Block) {
        self.scopes = vec![HashMap::new()];
        let first = self.vars.len();
        if let Some(predicate) = predicate {
            self.expr(predicate);
        }
        self.block(body);
        for var in &self.vars[first..] {
            if var.declared && !var.assigned {
                let message = format!("Variable ${} was never assigned to.", shown(&var.name));
                self.problems.push(Diagnostic::warning(var.span, message));
            }
        }
        self.scopes.clear();
        self.probe += 1;
    }

    fn find(&self, name: &str) -> Option<VarId> {
        self.scopes.iter().find_map(|s| s.get(name)).copied()
    }

    fn add(&mut self, name: &str, span: Span, declared: bool) -> VarId {
        let id = VarId(self.vars.len() as u32);
        self.vars.push(FoundVar {
            name: name.to_string(),
            span,
            probe: self.probe,
            declared,
            assigned: !declared,
        });
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_string(), id);
        }
        id
    }

    fn declare(&mut self, var: &mut Expr, message: &str, declared: bool) {
        let ExprKind::Var(VarRef { name, id }) = &mut var.kind else { return };
        if self.find(name).is_some() {
            let message = message.replace('*', &format!("${}", shown(name)));
            self.problems.push(Diagnostic::error(var.span, message));
        }
        *id = self.add(name, var.span, declared);
    }

    fn assign(&mut self, target: &mut Expr, reads: bool) {
        let span = target.span;
        let ExprKind::Var(VarRef { name, id }) = &mut target.kind else {
            self.map_use(target, true);
            return;
        };
        *id = match self.find(name) {
            Some(found) => found,
            None if reads => {
                self.undefined(name, span);
                self.add(name, span, false)
            }
            None => self.add(name, span, false),
        };
        self.vars[id.0 as usize].assigned = true;
    }

    fn undefined(&mut self, name: &str, span: Span) {
        let name = shown(name).to_string();
        let mut found = Diagnostic::error(span, format!("Undefined or undeclared variable: ${name}"));
        let known: Vec<&str> = self.scopes.iter().flat_map(HashMap::keys).map(|n| shown(n)).collect();
        if let Some(near) = nearest(&name, known.into_iter()) {
            found = found.hint(format!("Did you mean ${near}?"));
        }
        self.problems.push(found);
    }

    /// The map's id; `keyed` if this use tells whether it has keys.
    fn map(&mut self, map: &mut MapRef, span: Span, keyed: Option<bool>) {
        let next = MapId(self.maps.len() as u32);
        let id = *self.by_name.entry(map.name.clone()).or_insert(next);
        if id == next {
            self.maps.push(FoundMap { name: map.name.clone(), span, keyed: None });
        }
        map.id = id;
        let found = &mut self.maps[id.0 as usize];
        match (found.keyed, keyed) {
            (None, Some(_)) => found.keyed = keyed,
            (Some(true), Some(false)) => {
                let message = format!(
                    "@{} used as a map without an explicit key (scalar map), previously used with an explicit key \
                     (non-scalar map)",
                    map.name
                );
                self.problems.push(Diagnostic::error(span, message));
            }
            (Some(false), Some(true)) => {
                let message = format!(
                    "@{} used as a map with an explicit key (non-scalar map), previously used without an explicit \
                     key (scalar map)",
                    map.name
                );
                self.problems.push(Diagnostic::error(span, message));
            }
            _ => {}
        }
    }

    fn map_use(&mut self, expr: &mut Expr, value: bool) {
        let span = expr.span;
        match &mut expr.kind {
            ExprKind::Map(map) => self.map(map, span, value.then_some(false)),
            ExprKind::MapAt(map, key) => {
                self.map(map, span, Some(true));
                self.expr(key);
            }
            _ => self.expr(expr),
        }
    }

    /// A declared map, before any use.
    pub fn declared_map(&mut self, name: &str, span: Span) -> MapId {
        let mut map = MapRef { name: name.to_string(), id: MapId::NONE };
        self.map(&mut map, span, None);
        map.id
    }

    /// The first argument of functions on maps.
    fn map_argument(&mut self, function: Builtin, args: &mut [Expr]) -> bool {
        let keyed = match function {
            Builtin::Print | Builtin::Clear | Builtin::Zero | Builtin::Len => None,
            Builtin::Delete if args.len() == 1 => None,
            Builtin::Delete | Builtin::HasKey | Builtin::Find => Some(true),
            _ => return false,
        };
        let Some((Expr { kind: ExprKind::Map(map), span, .. }, rest)) = args.split_first_mut() else {
            return false;
        };
        let known = self.by_name.get(&map.name).and_then(|id| self.maps[id.0 as usize].keyed);
        if keyed == Some(true) && known == Some(false) {
            let message =
                format!("call to {}() expects a map with explicit keys (non-scalar map)", function.name());
            self.problems.push(Diagnostic::error(*span, message));
            self.map(map, *span, None);
        } else {
            self.map(map, *span, keyed);
        }
        for arg in rest {
            match &mut arg.kind {
                // `find` sets its last argument.
                ExprKind::Var(_) if function == Builtin::Find => self.assign(arg, true),
                _ => self.expr(arg),
            }
        }
        true
    }
}

impl Visit for Resolver {
    fn expr(&mut self, expr: &mut Expr) {
        let span = expr.span;
        match &mut expr.kind {
            ExprKind::Var(VarRef { name, id }) => match self.find(name) {
                Some(found) => {
                    *id = found;
                    let var = &self.vars[found.0 as usize];
                    if !var.assigned && self.meta == 0 {
                        let message = format!("Variable used before it was assigned: ${}", shown(name));
                        self.problems.push(Diagnostic::warning(span, message));
                    }
                }
                None => {
                    let name = name.clone();
                    self.undefined(&name, span);
                    let found = self.add(&name, span, false);
                    if let ExprKind::Var(var) = &mut expr.kind {
                        var.id = found;
                    }
                }
            },
            ExprKind::Map(_) | ExprKind::MapAt(..) => self.map_use(expr, true),
            ExprKind::Step(_, target) => self.assign(target, true),
            ExprKind::Unary(UnOp::AddrOf, of) if matches!(of.kind, ExprKind::Var(_)) => self.assign(of, true),
            ExprKind::Builtin(function, args) => {
                if !self.map_argument(*function, args) {
                    args.iter_mut().for_each(|a| self.expr(a));
                }
            }
            _ => self.parts(expr),
        }
    }

    fn type_arg(&mut self, arg: &mut TypeArg) {
        self.meta += 1;
        match arg {
            TypeArg::Type(ty) => self.type_expr(ty),
            TypeArg::Expr(e) => match &mut e.kind {
                ExprKind::Map(map) => self.map(map, e.span, None),
                _ => self.expr(e),
            },
        }
        self.meta -= 1;
    }

    fn block(&mut self, block: &mut Block) {
        self.scopes.push(HashMap::new());
        self.block_parts(block);
        self.scopes.pop();
    }

    fn stmt(&mut self, stmt: &mut Stmt) {
        match &mut stmt.kind {
            StmtKind::Let { var, ty, init } => {
                if let Some(init) = init {
                    self.expr(init);
                }
                if let Some(ty) = ty {
                    self.type_expr(ty);
                }
                let message = "Variable * was already declared. Variable shadowing is not allowed.";
                self.declare(var, message, init.is_none());
            }
            StmtKind::Assign { target, op, value } => {
                self.expr(value);
                self.assign(target, op.is_some());
            }
            StmtKind::ForRange { var, from, to, body } => {
                self.expr(from);
                self.expr(to);
                self.scopes.push(HashMap::new());
                self.declare(var, "Loop declaration shadows existing variable: *", false);
                self.block(body);
                self.scopes.pop();
            }
            StmtKind::ForMap { var, map, body } => {
                let span = map.span;
                if let ExprKind::Map(map) = &mut map.kind {
                    let known = self.by_name.get(&map.name).and_then(|id| self.maps[id.0 as usize].keyed);
                    if known == Some(false) {
                        let message = format!(
                            "@{} has no explicit keys (scalar map), and cannot be used for iteration",
                            map.name
                        );
                        self.problems.push(Diagnostic::error(span, message));
                    }
                    self.map(map, span, if known == Some(false) { None } else { Some(true) });
                }
                self.scopes.push(HashMap::new());
                self.declare(var, "Loop declaration shadows existing variable: *", false);
                self.block(body);
                self.scopes.pop();
            }
            _ => self.stmt_parts(stmt),
        }
    }
}
