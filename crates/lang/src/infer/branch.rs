//! Loops, conditions and branches.
use super::Infer;
use super::promote::{promote, read_as, settled};
use crate::ast::{Block, Expr, ExprKind, If};
use crate::source::Span;
use crate::types::Type;

impl Infer<'_> {
    pub(super) fn range_loop(&mut self, var: &Expr, from: &Expr, to: &Expr, body: &Block) {
        let (first, last) = (self.value(from), self.value(to));
        for (ty, e, which) in [(&first, from, "start"), (&last, to, "end")] {
            if !matches!(ty, Type::Int(_) | Type::Enum(_) | Type::None) {
                self.error(e.span, format!("Loop range requires an integer for the {which} value"));
            }
        }
        if let Some(ty) = promote(&first, &last, self.around.ctypes) {
            self.store(var, &settled(&ty), None, var.span);
        }
        self.expr(var);
        self.loops += 1;
        self.block_in(body, true);
        self.loops -= 1;
    }

    pub(super) fn map_loop(&mut self, var: &Expr, map: &Expr, body: &Block) {
        if let ExprKind::Map(of) = &map.kind {
            let (key, value) = (self.keys[of.id.0 as usize].clone(), self.values[of.id.0 as usize].clone());
            let read = match (&value, read_as(&value)) {
                (_, Some(read)) => read,
                (Type::Agg(_), None) => {
                    let shown = self.show(&value);
                    self.error(map.span, format!("Loop expression does not support type: {shown}"));
                    Type::None
                }
                _ => value.clone(),
            };
            if key != Type::None && read != Type::None {
                self.store(var, &Type::Tuple([key, read].into()), None, var.span);
            } else if key == Type::None {
                self.error(map.span, format!("Undefined map: @{}", of.name));
                return;
            }
            self.types[map.id.0 as usize] = value;
        }
        self.expr(var);
        self.loops += 1;
        self.block_in(body, true);
        self.loops -= 1;
    }

    pub(super) fn condition(&mut self, ty: &Type, span: Span, what: &str) {
        if read_as(ty).is_none()
            && !matches!(ty, Type::Int(_) | Type::Enum(_) | Type::Bool | Type::Pointer(_) | Type::None)
        {
            let shown = self.show(ty);
            self.error(span, format!("Invalid {what}: {shown}"));
        }
    }

    pub(super) fn branch(&mut self, branch: &If, span: Span) -> Type {
        let cond = self.expr(&branch.cond);
        if matches!(branch.cond.kind, ExprKind::Comptime(_)) {
            // Which branch there is, is not known yet.
            return Type::None;
        }
        self.condition(&cond, branch.cond.span, "condition");
        let statement = std::mem::replace(&mut self.discarded, false);
        let taken = crate::fold::truth(&branch.cond);
        self.dead += u32::from(taken == Some(false));
        let then = self.block_in(&branch.then, statement);
        self.dead -= u32::from(taken == Some(false));
        self.dead += u32::from(taken == Some(true));
        let other = branch.other.as_ref().map_or(Type::Void, |b| self.block_in(b, statement));
        self.dead -= u32::from(taken == Some(true));
        self.discarded = statement;
        if statement { Type::Void } else { self.joined(&then, &other, span) }
    }

    pub(super) fn ternary(&mut self, cond: &Expr, then: Option<&Expr>, other: &Expr, span: Span) -> Type {
        let ty = self.expr(cond);
        self.condition(&ty, cond.span, "condition");
        let statement = std::mem::replace(&mut self.discarded, false);
        let then = match then {
            Some(then) => self.expr(then),
            None => read_as(&ty).unwrap_or(ty),
        };
        let other = self.expr(other);
        self.discarded = statement;
        self.joined(&then, &other, span)
    }

    pub(super) fn joined(&mut self, then: &Type, other: &Type, span: Span) -> Type {
        let read = |t: &Type| read_as(t).unwrap_or_else(|| t.clone());
        let (then, other) = (read(then), read(other));
        match promote(&then, &other, self.around.ctypes) {
            Some(ty) => ty,
            None => {
                let (a, b) = (self.show(&then), self.show(&other));
                let message =
                    format!("Branches must return the same type or compatible types: have '{a}' and '{b}'");
                self.error(span, message);
                Type::None
            }
        }
    }
}
