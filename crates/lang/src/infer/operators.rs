//! Operators.
use super::Infer;
use super::promote::{promote, read_as};
use crate::ast::{BinOp, Expr, ExprKind, Step, UnOp};
use crate::source::Span;
use crate::types::{Int, Type};
use std::sync::Arc;

impl Infer<'_> {
    pub(super) fn unary(&mut self, op: UnOp, of: &Expr, span: Span) -> Type {
        if op == UnOp::AddrOf {
            return match &of.kind {
                ExprKind::Var(_) | ExprKind::Map(_) | ExprKind::MapAt(..) => match self.expr(of) {
                    Type::None => Type::None,
                    ty => Type::Pointer(Arc::new(ty)),
                },
                _ => {
                    self.expr(of);
                    self.error(span, "the & operator takes a variable or a map");
                    Type::None
                }
            };
        }
        let ty = self.value(of);
        let int = |signed: bool| Type::Int(Int::new(8, signed));
        match (op, &ty) {
            (_, Type::None) => Type::None,
            (UnOp::Not, Type::Int(_) | Type::Enum(_) | Type::Bool | Type::Pointer(_)) => Type::Bool,
            (UnOp::Neg, Type::Int(i)) => int(i.signed),
            (UnOp::BitNot, Type::Int(i)) => int(i.signed),
            (UnOp::Neg | UnOp::BitNot, Type::Enum(_)) => int(op == UnOp::Neg),
            (UnOp::Deref, Type::Pointer(of)) => match &**of {
                Type::Void => {
                    self.error(span, "a pointer to void can't be followed: cast it first");
                    Type::None
                }
                of => of.clone(),
            },
            (UnOp::Deref, Type::Int(_)) => int(false),
            // `*args` is `args`, as it was once written.
            (UnOp::Deref, Type::Struct(_)) if is_args(of) => ty,
            (UnOp::Deref, Type::Struct(_)) => {
                let shown = self.show(&ty);
                self.error(
                    span,
                    format!("Can not dereference struct/union of type '{shown}'. It is not a pointer."),
                );
                Type::None
            }
            _ => {
                let (sign, shown) = (symbol(op), self.show(&ty));
                let message = format!("The {sign} operator can not be used on expressions of type '{shown}'");
                self.error(span, message);
                Type::None
            }
        }
    }

    pub(super) fn step(&mut self, step: Step, target: &Expr, span: Span) -> Type {
        let down = matches!(step, Step::PreDec | Step::PostDec);
        if !matches!(target.kind, ExprKind::Var(_) | ExprKind::Map(_) | ExprKind::MapAt(..)) {
            let sign = if down { "--" } else { "++" };
            self.expr(target);
            self.error(span, format!("The {sign} operator must be applied to a map or variable"));
            return Type::None;
        }
        // A map that is only counted up begins as nothing; its key is known all the same.
        let ty = match &target.kind {
            ExprKind::Map(_) | ExprKind::MapAt(..) => self.counted(target),
            _ => self.expr(target),
        };
        match ty {
            Type::None => Type::None,
            Type::Pointer(_) => ty,
            Type::Int(i) => {
                if let ExprKind::Var(var) = &target.kind
                    && self.vars[var.id.0 as usize].fixed
                {
                    return ty;
                }
                let wide = Type::Int(Int::new(8, i.signed || down));
                self.store(target, &wide, None, span);
                wide
            }
            other => {
                let (sign, shown) = (if down { "--" } else { "++" }, self.show(&other));
                let message = format!("The {sign} operator can not be used on expressions of type '{shown}'");
                self.error(span, message);
                Type::None
            }
        }
    }

    fn counted(&mut self, target: &Expr) -> Type {
        let (ExprKind::Map(map) | ExprKind::MapAt(map, _)) = &target.kind else { return Type::None };
        if self.values[map.id.0 as usize] == Type::None {
            if let ExprKind::MapAt(map, key) = &target.kind {
                self.key(map.id, key, target.span);
            }
            return Type::None;
        }
        self.expr(target)
    }

    pub(super) fn binary(&mut self, op: BinOp, a: &Expr, b: &Expr, span: Span) -> Type {
        let left = self.expr(a);
        self.binary_types(op, a, &left, b, span)
    }

    pub(super) fn binary_types(&mut self, op: BinOp, a: &Expr, left: &Type, b: &Expr, span: Span) -> Type {
        let right = self.expr(b);
        let read = |t: &Type| read_as(t).unwrap_or_else(|| t.clone());
        let (left, right) = (read(left), read(&right));
        // A map that is only added to begins as nothing.
        if left == Type::None || right == Type::None {
            return Type::None;
        }
        match (&left, &right) {
            (Type::Pointer(_), _) | (_, Type::Pointer(_)) => self.pointers(op, &left, &right, span),
            (Type::Bool, Type::Bool) => Type::Bool,
            (Type::Int(_) | Type::Enum(_) | Type::Bool, Type::Int(_) | Type::Enum(_) | Type::Bool) => {
                self.integers(op, &left, &right, a, b, span)
            }
            _ if matches!(op, BinOp::LogAnd | BinOp::LogOr) => {
                self.condition(&left, a.span, "condition");
                self.condition(&right, b.span, "condition");
                Type::Bool
            }
            (Type::Float(a), Type::Float(b)) if a == b && is_comparison(op) => Type::Bool,
            _ => self.compared(op, &left, &right, span),
        }
    }

    fn integers(&mut self, op: BinOp, left: &Type, right: &Type, _a: &Expr, _b: &Expr, span: Span) -> Type {
        if is_comparison(op) {
            return Type::Bool;
        }
        let int = |ty: &Type| match ty {
            Type::Int(i) => *i,
            _ => Int::U64,
        };
        let (mut l, mut r) = (int(left), int(right));
        if l.flexible && !r.flexible {
            l.signed = r.signed;
        } else if r.flexible && !l.flexible {
            r.signed = l.signed;
        }
        let divides = matches!(op, BinOp::Div | BinOp::Mod);
        if divides && l.signed != r.signed {
            let message = format!(
                "signed operands for '{}' can lead to undefined behavior (cast to unsigned to silence warning)",
                sign_of(op)
            );
            self.warn(span, message);
        }
        Type::Int(Int::new(8, l.signed || r.signed || op == BinOp::Sub))
    }

    fn pointers(&mut self, op: BinOp, left: &Type, right: &Type, span: Span) -> Type {
        let logical = matches!(op, BinOp::LogAnd | BinOp::LogOr);
        match (left, right) {
            (Type::Pointer(x), Type::Pointer(y)) if is_comparison(op) => {
                if x != y && !logical && **x != Type::Void && **y != Type::Void {
                    let message =
                        format!("comparison of distinct pointer types: {}, {}", self.show(x), self.show(y));
                    self.warn(span, message);
                }
                Type::Bool
            }
            (Type::Pointer(_), Type::Int(_) | Type::Enum(_)) if matches!(op, BinOp::Add | BinOp::Sub) => {
                left.clone()
            }
            (Type::Int(_) | Type::Enum(_), Type::Pointer(_)) if op == BinOp::Add => right.clone(),
            (Type::Int(_) | Type::Enum(_) | Type::Bool, _)
            | (_, Type::Int(_) | Type::Enum(_) | Type::Bool)
                if is_comparison(op) =>
            {
                Type::Bool
            }
            _ => self.unfit(op, left, right, span),
        }
    }

    /// Strings, buffers, arrays, tuples, records, addresses: equal or not.
    fn compared(&mut self, op: BinOp, left: &Type, right: &Type, span: Span) -> Type {
        let equality = matches!(op, BinOp::Eq | BinOp::Ne);
        if let (Type::Array(x, n), Type::Array(y, m)) = (left, right) {
            if !equality {
                self.error(span, format!("The {} operator cannot be used on arrays.", sign_of(op)));
            } else if n != m {
                self.error(span, "Only arrays of same size support comparison operators.");
            } else if !matches!(**x, Type::Int(_)) || x != y {
                self.error(span, "Only arrays of same sized integer support comparison operators.");
            }
            return Type::Bool;
        }
        if let (Type::Array(x, _), Type::Str(_)) | (Type::Str(_), Type::Array(x, _)) = (left, right)
            && self.around.ctypes.size(x) == 1
            && equality
        {
            return Type::Bool;
        }
        if promote(left, right, self.around.ctypes).is_none() {
            let message = format!(
                "Type mismatch for '{}': comparing {} with {}",
                sign_of(op),
                self.show(left),
                self.show(right)
            );
            self.error(span, message);
            return Type::None;
        }
        if !equality {
            return self.unfit(op, left, right, span);
        }
        Type::Bool
    }

    fn unfit(&mut self, op: BinOp, left: &Type, right: &Type, span: Span) -> Type {
        let message = format!(
            "The {} operator can not be used on expressions of types {}, {}",
            sign_of(op),
            self.show(left),
            self.show(right)
        );
        self.error(span, message);
        Type::None
    }
}

fn is_args(of: &Expr) -> bool {
    matches!(of.kind, ExprKind::Builtin(crate::builtin::Builtin::Args, _))
}

fn symbol(op: UnOp) -> &'static str {
    match op {
        UnOp::Neg => "-",
        UnOp::Not => "!",
        UnOp::BitNot => "~",
        UnOp::Deref => "dereference",
        UnOp::AddrOf => "&",
    }
}

fn is_comparison(op: BinOp) -> bool {
    matches!(
        op,
        BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Gt | BinOp::Le | BinOp::Ge | BinOp::LogAnd | BinOp::LogOr
    )
}

/// An operator as it is written.
pub(crate) fn sign_of(op: BinOp) -> &'static str {
    match op {
        BinOp::LogOr => "||",
        BinOp::LogAnd => "&&",
        BinOp::Or => "|",
        BinOp::Xor => "^",
        BinOp::And => "&",
        BinOp::Eq => "==",
        BinOp::Ne => "!=",
        BinOp::Lt => "<",
        BinOp::Gt => ">",
        BinOp::Le => "<=",
        BinOp::Ge => ">=",
        BinOp::Shl => "<<",
        BinOp::Shr => ">>",
        BinOp::Add => "+",
        BinOp::Sub => "-",
        BinOp::Mul => "*",
        BinOp::Div => "/",
        BinOp::Mod => "%",
    }
}
