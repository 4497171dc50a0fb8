//! Constants: what can be computed before a program runs.
//!
//! For:     the checker, array sizes, `#define`s, `comptime`.
//! State:   none.
//! Context: control.
//! Keeps:   1. Arithmetic is that of 64 bits; what overflows or divides by zero is not folded.
//! Checked: tests below; tests/check.rs.

use crate::ast::{BinOp, Block, Expr, ExprId, ExprKind, TypeArg, TypeExpr, UnOp};
use crate::visit::Visit;

/// The value of a constant expression of integers, with names looked up; `None` if it is none.
pub(crate) fn constant(
    expr: &Expr,
    name: &dyn Fn(&str) -> Option<i64>,
    size: &dyn Fn(&TypeExpr) -> Option<u32>,
) -> Option<i128> {
    let of = |e: &Expr| constant(e, name, size);
    match &expr.kind {
        ExprKind::Int(value) => Some(*value),
        ExprKind::Bool(value) => Some(i128::from(*value)),
        ExprKind::Ident(text) => name(text).map(i128::from),
        ExprKind::Paren(inner) => of(inner),
        ExprKind::Unary(op, inner) => unary(*op, of(inner)?),
        ExprKind::Binary(op, a, b) => binary(*op, of(a)?, of(b)?),
        ExprKind::Ternary(c, a, b) => match (of(c)?, a) {
            (0, _) => of(b),
            (c, None) => Some(c),
            (_, Some(a)) => of(a),
        },
        ExprKind::Sizeof(arg) => match &**arg {
            TypeArg::Type(ty) => size(ty).map(i128::from),
            TypeArg::Expr(_) => None,
        },
        _ => None,
    }
}

/// Whether a value is an integer of the language.
pub(crate) fn fits(value: i128) -> bool {
    (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value)
}

/// `op value`.
pub(crate) fn unary(op: UnOp, value: i128) -> Option<i128> {
    let result = match op {
        UnOp::Neg => -value,
        UnOp::Not => i128::from(value == 0),
        UnOp::BitNot => !value,
        UnOp::Deref | UnOp::AddrOf => return None,
    };
    fits(result).then_some(result)
}

/// `a op b`.
pub(crate) fn binary(op: BinOp, a: i128, b: i128) -> Option<i128> {
    let truth = |t: bool| Some(i128::from(t));
    let result = match op {
        BinOp::LogOr => return truth(a != 0 || b != 0),
        BinOp::LogAnd => return truth(a != 0 && b != 0),
        BinOp::Eq => return truth(a == b),
        BinOp::Ne => return truth(a != b),
        BinOp::Lt => return truth(a < b),
        BinOp::Gt => return truth(a > b),
        BinOp::Le => return truth(a <= b),
        BinOp::Ge => return truth(a >= b),
        BinOp::Or => Some(a | b),
        BinOp::Xor => Some(a ^ b),
        BinOp::And => Some(a & b),
        // What is shifted out is lost, as in the program.
        BinOp::Shl if (0..64).contains(&b) => Some(i128::from(((a as u64) << b) as i64)),
        BinOp::Shr if (0..64).contains(&b) => Some(a >> b),
        BinOp::Shl | BinOp::Shr => None,
        BinOp::Add => a.checked_add(b),
        BinOp::Sub => a.checked_sub(b),
        BinOp::Mul => a.checked_mul(b),
        BinOp::Div if b != 0 => a.checked_div(b),
        BinOp::Mod if b != 0 => a.checked_rem(b),
        BinOp::Div | BinOp::Mod => None,
    };
    let result = match (op, result) {
        (BinOp::Shl, Some(v)) if a >= 0 && v < 0 => Some(v + (1i128 << 64)),
        (_, v) => v,
    };
    result.filter(|v| fits(*v))
}

/// Replaces what is constant in a tree, and branches that are never taken.
pub(crate) struct Folder<'a> {
    pub ids: &'a mut u32,
    pub changed: bool,
    /// Whether `if`s that were not written `comptime` are decided too: when all types are known.
    pub last: bool,
}

fn literal(expr: &Expr) -> Option<i128> {
    match &expr.kind {
        ExprKind::Int(n) => Some(*n),
        ExprKind::Bool(b) => Some(i128::from(*b)),
        _ => None,
    }
}

pub(crate) fn truth(expr: &Expr) -> Option<bool> {
    match &expr.kind {
        ExprKind::Comptime(inner) => truth(inner),
        _ => literal(expr).map(|n| n != 0),
    }
}

impl Folder<'_> {
    fn folded(&mut self, expr: &mut Expr) -> Option<ExprKind> {
        Some(match &mut expr.kind {
            ExprKind::Unary(op, of) => {
                let value = unary(*op, literal(of)?)?;
                if *op == UnOp::Not { ExprKind::Bool(value != 0) } else { ExprKind::Int(value) }
            }
            ExprKind::Binary(op, a, b) => return binary_folded(*op, a, b),
            ExprKind::Ternary(c, a, b) => {
                let taken = if truth(c)? { a.as_mut().unwrap_or(c) } else { b };
                std::mem::replace(&mut taken.kind, ExprKind::Int(0))
            }
            ExprKind::If(branch) if self.last || matches!(branch.cond.kind, ExprKind::Comptime(_)) => {
                let taken = truth(&branch.cond)?;
                let block = if taken { Some(std::mem::take(&mut branch.then)) } else { branch.other.take() };
                ExprKind::Block(block.unwrap_or_else(|| Block { span: expr.span, ..Block::default() }))
            }
            ExprKind::Comptime(inner) => match &inner.kind {
                ExprKind::Int(_) | ExprKind::Bool(_) | ExprKind::Str(_) => inner.kind.clone(),
                _ => return None,
            },
            ExprKind::Block(block) if block.stmts.is_empty() => {
                let value = block.value.as_mut()?;
                if literal(value).is_none() && !matches!(value.kind, ExprKind::Str(_)) {
                    return None;
                }
                value.kind.clone()
            }
            // A part of a record of constants, as `typeinfo` gives one.
            ExprKind::Field(of, name) => match &of.kind {
                ExprKind::Record(parts) => {
                    let (_, part) = parts.iter().find(|(n, _)| n.text == name.name.text)?;
                    match &part.kind {
                        ExprKind::Int(_) | ExprKind::Str(_) | ExprKind::Bool(_) => part.kind.clone(),
                        _ => return None,
                    }
                }
                _ => return None,
            },
            _ => return None,
        })
    }
}

fn binary_folded(op: BinOp, a: &Expr, b: &Expr) -> Option<ExprKind> {
    if let (ExprKind::Str(x), ExprKind::Str(y)) = (&a.kind, &b.kind) {
        return match op {
            BinOp::Eq => Some(ExprKind::Bool(x == y)),
            BinOp::Ne => Some(ExprKind::Bool(x != y)),
            _ => None,
        };
    }
    if let (BinOp::LogAnd, Some(0)) = (op, literal(a)) {
        return Some(ExprKind::Bool(false));
    }
    if let (BinOp::LogOr, Some(1..)) = (op, literal(a)) {
        return Some(ExprKind::Bool(true));
    }
    let value = binary(op, literal(a)?, literal(b)?)?;
    let is_truth = matches!(
        op,
        BinOp::LogOr | BinOp::LogAnd | BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Gt | BinOp::Le | BinOp::Ge
    );
    Some(if is_truth { ExprKind::Bool(value != 0) } else { ExprKind::Int(value) })
}

impl Visit for Folder<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::If(branch) = &mut expr.kind {
            // The word `comptime` stays until the branch is taken.
            match &mut branch.cond.kind {
                ExprKind::Comptime(inner) => self.expr(inner),
                _ => self.expr(&mut branch.cond),
            }
            self.block(&mut branch.then);
            if let Some(other) = &mut branch.other {
                self.block(other);
            }
        } else {
            self.parts(expr);
        }
        if let Some(kind) = self.folded(expr) {
            expr.kind = kind;
            self.changed = true;
            // A new number: the old one may be an enumerator's. At last the type stays with the old one.
            if !self.last {
                expr.id = ExprId(*self.ids);
                *self.ids += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_computed_in_64_bits() {
        assert_eq!(binary(BinOp::Shl, 1, 63), Some(1 << 63));
        assert_eq!(binary(BinOp::Shl, 1, 64), None);
        assert_eq!(binary(BinOp::Div, 7, 0), None);
        assert_eq!(binary(BinOp::Add, i128::from(u64::MAX), 1), None);
        assert_eq!(binary(BinOp::Sub, 3, 5), Some(-2));
        assert_eq!(unary(UnOp::BitNot, 0), Some(-1));
        assert_eq!(unary(UnOp::Neg, i128::from(u64::MAX)), None);
    }
}
