//! Blocks, statements and branches.
use super::promote::{promote, read_as, settled};
use super::{Infer, leaves};
use crate::ast::{Block, Expr, ExprKind, MapId, Stmt, StmtKind, VarId};
use crate::builtin::Builtin;
use crate::resolve;
use crate::source::Span;
use crate::types::{Agg, Type};

impl Infer<'_> {
    /// A block; its value's type.
    pub(super) fn block_in(&mut self, block: &Block, whole: bool) -> Type {
        for (i, stmt) in block.stmts.iter().enumerate() {
            self.stmt(stmt);
            if leaves(&stmt.kind) {
                let next = block.stmts.get(i + 1).map(|s| s.span);
                if let Some(span) = next.or_else(|| block.value.as_ref().map(|v| v.span)) {
                    self.warn(span, "Unreachable statement");
                }
                if next.is_some() && self.report {
                    self.report = false;
                    for rest in &block.stmts[i + 1..] {
                        self.stmt(rest);
                    }
                    self.report = true;
                    break;
                }
            }
        }
        match &block.value {
            Some(value) if whole => {
                self.discard(value);
                Type::Void
            }
            Some(value) => self.expr(value),
            None => Type::Void,
        }
    }

    /// An expression whose value nobody takes.
    fn discard(&mut self, value: &Expr) {
        let was = std::mem::replace(&mut self.discarded, true);
        let ty = self.expr(value);
        self.discarded = was;
        let silent = match &value.kind {
            ExprKind::Builtin(f, _) => {
                matches!(
                    f,
                    Builtin::Delete
                        | Builtin::Find
                        | Builtin::Print
                        | Builtin::Signal
                        | Builtin::SignalThread
                        | Builtin::WriteUser
                        | Builtin::Assert
                )
            }
            ExprKind::Step(..) | ExprKind::If(_) | ExprKind::Ternary(..) => true,
            ExprKind::Block(b) => b.value.is_none(),
            _ => false,
        };
        if !silent && !matches!(ty, Type::Void | Type::None) {
            self.warn(value.span, "Return value discarded.");
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        // A block's value may be nobody's; what its statements store is.
        let was = std::mem::replace(&mut self.discarded, false);
        self.statement(stmt);
        self.discarded = was;
    }

    fn statement(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Expr(e) => self.discard(e),
            StmtKind::Discard(e) => {
                self.expr(e);
            }
            StmtKind::Let { var, ty, init } => self.declaration(var, ty.as_ref(), init.as_ref(), stmt.span),
            StmtKind::Assign { target, op: None, value } => self.assignment(target, value, stmt.span),
            StmtKind::Assign { target, op: Some(op), value } => {
                let current = self.expr(target);
                let ty = self.binary_types(*op, target, &current, value, stmt.span);
                if ty != Type::None {
                    self.store(target, &ty, None, stmt.span);
                }
                self.expr(target);
            }
            StmtKind::While(cond, body) => {
                let ty = self.expr(cond);
                self.condition(&ty, cond.span, "condition");
                self.loops += 1;
                self.block_in(body, true);
                self.loops -= 1;
            }
            StmtKind::Unroll(count, body) => {
                self.expr(count);
                match count.kind {
                    ExprKind::Int(n) if n < 1 => self.error(count.span, "unroll minimum value is 1"),
                    ExprKind::Int(n) if n > 100 => self.error(count.span, "unroll maximum value is 100"),
                    ExprKind::Int(_) => {}
                    _ => self.error(count.span, "unroll takes a constant number"),
                }
                self.block_in(body, true);
            }
            StmtKind::ForRange { var, from, to, body } => self.range_loop(var, from, to, body),
            StmtKind::ForMap { var, map, body } => self.map_loop(var, map, body),
            StmtKind::Break | StmtKind::Continue => {
                if self.loops == 0 {
                    let word = if matches!(stmt.kind, StmtKind::Break) { "break" } else { "continue" };
                    self.error(stmt.span, format!("{word} used outside of a loop"));
                }
            }
            StmtKind::Return(None) => {}
            StmtKind::Return(Some(value)) => {
                let ty = self.value(value);
                if !matches!(ty, Type::Int(_) | Type::Enum(_) | Type::Bool | Type::None) {
                    let shown = self.show(&ty);
                    self.error(stmt.span, format!("Probe return values can only be integers. Found {shown}"));
                }
            }
        }
    }

    fn declaration(
        &mut self,
        var: &Expr,
        ty: Option<&crate::ast::TypeExpr>,
        init: Option<&Expr>,
        span: Span,
    ) {
        let ExprKind::Var(of) = &var.kind else { return };
        if let Some(ty) = ty {
            let declared = self.written(ty);
            if matches!(declared, Type::Agg(_) | Type::Void) {
                let shown = self.show(&declared);
                self.error(ty.span, format!("Invalid variable declaration type: {shown}"));
            } else if !matches!(declared, Type::None) {
                let fixed = !matches!(declared, Type::Str(0) | Type::Buffer(0));
                let slot = &mut self.vars[of.id.0 as usize];
                if fixed && (slot.ty != declared || !slot.fixed) {
                    (slot.ty, slot.fixed) = (declared, true);
                    self.changed = true;
                } else if !fixed && slot.ty == Type::None && init.is_none() {
                    slot.ty = declared;
                    self.changed = true;
                }
            }
        }
        if let Some(init) = init {
            let ty = self.value(init);
            self.store(var, &ty, Some(init), span);
        }
        if self.vars[of.id.0 as usize].ty != Type::None {
            self.expr(var);
        }
    }

    fn assignment(&mut self, target: &Expr, value: &Expr, span: Span) {
        let is_call = matches!(value.kind, ExprKind::Builtin(f, _) if super::aggregate::is(f));
        self.stored = is_call.then_some(value.id);
        let ty = self.expr(value);
        let ty = match (&target.kind, &ty) {
            (ExprKind::Map(_) | ExprKind::MapAt(..), Type::Agg(_)) if is_call => ty,
            (ExprKind::Map(map) | ExprKind::MapAt(map, _), Type::Agg(agg)) => {
                let current = self.values[map.id.0 as usize].clone();
                match read_as(&ty) {
                    Some(read) if matches!(current, Type::Int(_)) => read,
                    readable => {
                        let (name, agg) = (map.name.clone(), *agg);
                        self.copied_aggregation(&name, agg, readable.is_some(), value, span);
                        return;
                    }
                }
            }
            (_, Type::Agg(_)) if is_call => {
                let shown = self.show(&ty);
                self.error(span, format!("Value '{shown}' cannot be assigned to a scratch variable."));
                return;
            }
            (_, Type::Agg(_)) => match read_as(&ty) {
                Some(read) => read,
                None => {
                    let shown = self.show(&ty);
                    self.error(span, format!("Value '{shown}' cannot be assigned to a scratch variable."));
                    return;
                }
            },
            (_, Type::Void) => {
                let to = if matches!(target.kind, ExprKind::Var(_)) { "scratch variable" } else { "map" };
                self.error(span, format!("Value 'void' cannot be assigned to a {to}."));
                return;
            }
            _ => ty,
        };
        self.store(target, &ty, Some(value), span);
        self.expr(target);
    }

    fn copied_aggregation(&mut self, name: &str, agg: Agg, readable: bool, value: &Expr, span: Span) {
        let call = match agg {
            Agg::Count => "count()",
            Agg::Sum { .. } => "sum(retval)",
            Agg::Min { .. } => "min(retval)",
            Agg::Max { .. } => "max(retval)",
            Agg::Avg { .. } => "avg(retval)",
            Agg::Stats { .. } => "stats(arg2)",
            Agg::Hist { .. } => "hist(retval)",
            Agg::Lhist { .. } => "lhist(rand %10, 0, 10, 1)",
            Agg::Tseries { .. } => "tseries(rand %10, 10s, 1)",
        };
        let shown = self.show(&Type::Agg(agg));
        let message = format!(
            "Map value '{shown}' cannot be assigned from one map to another. The function that returns this type \
             must be called directly e.g. `@{name} = {call};`."
        );
        if !self.report {
            return;
        }
        let mut diagnostic = crate::diagnostic::Diagnostic::error(span, message);
        if let (true, ExprKind::Map(of) | ExprKind::MapAt(of, _)) = (readable, &value.kind) {
            diagnostic = diagnostic.hint(format!(
                "Add a cast to integer if you want the value of the aggregate, e.g. `@{name} = (int64)@{};`.",
                of.name
            ));
        }
        self.problems.push(diagnostic);
    }

    /// A value of type `ty` goes into a variable or map.
    pub(super) fn store(&mut self, target: &Expr, ty: &Type, value: Option<&Expr>, span: Span) {
        match &target.kind {
            ExprKind::Var(var) => self.store_var(var.id, ty, value, span),
            ExprKind::Map(map) => self.store_map(map.id, ty, span),
            ExprKind::MapAt(map, key) => {
                self.key(map.id, key, target.span);
                self.store_map(map.id, ty, span);
            }
            _ => {}
        }
    }

    fn store_var(&mut self, id: VarId, ty: &Type, value: Option<&Expr>, span: Span) {
        if *ty == Type::None {
            return;
        }
        let slot = self.vars[id.0 as usize].clone();
        let name = resolve::shown(&self.around.vars[id.0 as usize].name).to_string();
        if slot.fixed {
            self.fits_declared(&name, &slot.ty, ty, value, span);
            return;
        }
        let locked = self.locks.vars.get(&id).cloned();
        match self.merged(&slot.ty, ty, locked, id.0, true, span) {
            Some(merged) => {
                self.sign_change(&slot.ty, ty, &name, span);
                if merged != slot.ty {
                    self.vars[id.0 as usize].ty = merged;
                    self.changed = true;
                }
            }
            None => {
                let message = format!(
                    "Type mismatch for ${name}: trying to assign value of type '{}' when variable already has a type \
                     '{}'",
                    self.show(ty),
                    self.show(&slot.ty)
                );
                self.error(span, message);
            }
        }
    }

    fn sign_change(&mut self, current: &Type, ty: &Type, name: &str, span: Span) {
        if let (Type::Int(have), Type::Int(new)) = (current, ty)
            && have.signed
            && !new.signed
            && new.size == 8
            && !new.flexible
            && !have.flexible
        {
            let message = format!(
                "${name} has type '{}' and is assigned a value of type '{}': a large value may become negative",
                self.show(current),
                self.show(ty)
            );
            self.warn(span, message);
        }
    }

    fn fits_declared(&mut self, name: &str, declared: &Type, ty: &Type, value: Option<&Expr>, span: Span) {
        let merged = promote(declared, ty, self.around.ctypes);
        let literal = value.and_then(|v| if let ExprKind::Int(n) = v.kind { Some(n) } else { None });
        let ok = match (declared, ty) {
            (Type::Int(want), Type::Int(_) | Type::Enum(_)) => match literal {
                Some(n) => in_range(*want, n),
                None => match (ty, merged) {
                    (Type::Int(have), _)
                        if have.signed != want.signed
                            && (have.size == want.size
                                || (have.signed && !have.flexible && have.size < want.size)) =>
                    {
                        let message = format!(
                            "Sign mismatch for ${name}: '{}' is assigned to '{}'",
                            self.show(ty),
                            self.show(declared)
                        );
                        self.warn(span, message);
                        true
                    }
                    (Type::Int(have), _) => have.size <= want.size,
                    _ => true,
                },
            },
            (Type::Bool, Type::Int(_)) => false,
            (_, _) => merged.is_some_and(|m| settled(&m) == settled(declared)),
        };
        if !ok {
            let (want, have) = (self.show(declared), self.show(ty));
            let message = match literal {
                Some(n) => format!(
                    "Type mismatch for ${name}: trying to assign value '{n}' which does not fit into the variable of \
                     type '{want}'"
                ),
                None => format!(
                    "Type mismatch for ${name}: trying to assign value of type '{have}' when variable already has a \
                     type '{want}'"
                ),
            };
            self.error(span, message);
        }
    }

    fn store_map(&mut self, id: MapId, ty: &Type, span: Span) {
        if *ty == Type::None {
            return;
        }
        let current = self.values[id.0 as usize].clone();
        let locked = self.locks.maps.get(&id).map(|l| l.1.clone());
        let mixed = matches!(current, Type::Agg(_)) != matches!(ty, Type::Agg(_)) && current != Type::None;
        let merged = if mixed { None } else { self.merged(&current, ty, locked, id.0, false, span) };
        match merged {
            Some(merged) => {
                if merged != current {
                    self.values[id.0 as usize] = merged;
                    self.changed = true;
                }
            }
            None => {
                let name = self.around.maps[id.0 as usize].name.clone();
                let message = format!(
                    "Type mismatch for @{name}: trying to assign value of type '{}' when map already has a type '{}'",
                    self.show(ty),
                    self.show(&current)
                );
                self.error(span, message);
            }
        }
    }
}

/// Whether an integer type holds a value.
pub(super) fn in_range(ty: crate::types::Int, value: i128) -> bool {
    let bits = u32::from(ty.size) * 8;
    if ty.signed {
        (-(1i128 << (bits - 1))..1i128 << (bits - 1)).contains(&value)
    } else {
        (0..1i128 << bits).contains(&value)
    }
}
