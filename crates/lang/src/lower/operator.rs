//! Operators of two operands.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   a division by 0 gives 1 and is told.
//! Checked: tests/scripts.rs.

use super::build::{Build, Done};
use super::code::r;
use crate::Span;
use crate::ast::{BinOp, Expr, ExprKind};
use crate::program::Trouble;
use crate::types::{Int, Type};
use bpf::helper::{self, RING};
use bpf::{Alu, Cond, Op, Operand, Wide};
use std::sync::Arc;

/// A string is compared with a text of fewer bytes without a helper.
const TEXT_MAX: usize = 32;

impl Build<'_, '_> {
    /// r0 = `a op b`.
    pub fn binary(&mut self, op: BinOp, a: &Expr, b: &Expr, e: &Expr) -> Done {
        match op {
            BinOp::LogAnd | BinOp::LogOr => self.logical(op, a, b),
            BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Gt | BinOp::Le | BinOp::Ge => self.compare(op, a, b),
            _ => {
                let src = self.pair(a, b)?;
                let (ta, tb) = (self.ty(a), self.ty(b));
                let src = self.scaled(op, ta, tb, src);
                self.arithmetic(op, src, self.ty(e), ta, e.span);
                Ok(())
            }
        }
    }

    fn logical(&mut self, op: BinOp, a: &Expr, b: &Expr) -> Done {
        let short = self.code.label();
        let cond = if op == BinOp::LogAnd { Cond::Eq } else { Cond::Ne };
        self.truth(a)?;
        self.code.jump(cond, r(0), Operand::Imm(0), short);
        self.truth(b)?;
        self.code.bind(short);
        self.set_if(Cond::Ne, Operand::Imm(0))
    }

    /// r0 = a; the operand b, in r1 if it is no constant.
    fn pair(&mut self, a: &Expr, b: &Expr) -> Done<Operand> {
        self.scalar(a)?;
        if let ExprKind::Int(n) = b.kind
            && let Ok(n) = i32::try_from(n)
        {
            return Ok(Operand::Imm(n));
        }
        if let ExprKind::Var(var) = &b.kind {
            let (place, int) = (self.var(var.id), self.int(self.ty(b)));
            self.load(place, int, r(1));
        } else {
            let kept = self.keep();
            self.scalar(b)?;
            self.code.mov(r(1), r(0));
            self.kept(kept, r(0));
        }
        Ok(Operand::Reg(r(1)))
    }

    /// Sums with pointers count in what they point to.
    pub fn scaled(&mut self, op: BinOp, a: &Type, b: &Type, src: Operand) -> Operand {
        let by = |build: &Self, to: &Type| build.size(to).max(1) as i64;
        match (a, b) {
            (Type::Pointer(_), Type::Pointer(_)) => src,
            (Type::Pointer(to), _) if matches!(op, BinOp::Add | BinOp::Sub) => {
                let by = by(self, to);
                match src {
                    Operand::Imm(n) if i32::try_from(i64::from(n) * by).is_ok() => {
                        Operand::Imm((i64::from(n) * by) as i32)
                    }
                    Operand::Imm(n) => {
                        self.code.constant(r(1), i64::from(n).wrapping_mul(by));
                        Operand::Reg(r(1))
                    }
                    Operand::Reg(reg) => {
                        self.code.alu_imm(Alu::Mul, reg, by);
                        src
                    }
                }
            }
            (_, Type::Pointer(to)) if op == BinOp::Add => {
                let by = by(self, to);
                self.code.alu_imm(Alu::Mul, r(0), by);
                src
            }
            _ => src,
        }
    }

    /// r0 = r0 op src, as `ty`. `left`: the type of r0 before.
    pub fn arithmetic(&mut self, op: BinOp, src: Operand, ty: &Type, left: &Type, span: Span) {
        let int = self.int(ty);
        let is_signed = int.signed;
        let alu = match op {
            BinOp::Add => Alu::Add,
            BinOp::Sub => Alu::Sub,
            BinOp::Mul => Alu::Mul,
            BinOp::And => Alu::And,
            BinOp::Or => Alu::Or,
            BinOp::Xor => Alu::Xor,
            BinOp::Shl => Alu::Lsh,
            BinOp::Shr if self.int(left).signed => Alu::Arsh,
            BinOp::Shr => Alu::Rsh,
            BinOp::Div if is_signed => Alu::Sdiv,
            BinOp::Div => Alu::Div,
            BinOp::Mod if is_signed => Alu::Smod,
            _ => Alu::Mod,
        };
        match (op, src) {
            (BinOp::Div | BinOp::Mod, Operand::Imm(0)) => {
                self.trouble(Trouble::Division, span);
                self.code.constant(r(0), 1);
            }
            (BinOp::Div | BinOp::Mod, Operand::Reg(by)) => {
                let (fine, done) = (self.code.label(), self.code.label());
                self.code.jump(Cond::Ne, by, Operand::Imm(0), fine);
                self.trouble(Trouble::Division, span);
                self.code.constant(r(0), 1);
                self.code.ja(done);
                self.code.bind(fine);
                self.code.alu(alu, r(0), src);
                self.narrow(int);
                self.code.bind(done);
            }
            _ => {
                self.code.alu(alu, r(0), src);
                self.narrow(int);
            }
        }
    }

    fn compare(&mut self, op: BinOp, a: &Expr, b: &Expr) -> Done {
        let (ta, tb) = (self.ty(a), self.ty(b));
        if !self.is_scalar(ta) || !self.is_scalar(tb) {
            return self.compare_values(op, a, b);
        }
        let mut is_unsigned = self.is_unsigned(a, b);
        let src = self.pair(a, b)?;
        if let (Type::Float(size), Operand::Reg(other)) = (ta, src) {
            [r(0), other].into_iter().for_each(|reg| self.order(reg, *size));
            is_unsigned = false;
        }
        let cond = match (op, is_unsigned) {
            (BinOp::Eq, _) => Cond::Eq,
            (BinOp::Ne, _) => Cond::Ne,
            (BinOp::Lt, true) => Cond::Lt,
            (BinOp::Lt, false) => Cond::Slt,
            (BinOp::Gt, true) => Cond::Gt,
            (BinOp::Gt, false) => Cond::Sgt,
            (BinOp::Le, true) => Cond::Le,
            (BinOp::Le, false) => Cond::Sle,
            (_, true) => Cond::Ge,
            (_, false) => Cond::Sge,
        };
        self.set_if(cond, src)
    }

    /// The bits of a number with a fraction to an integer that is as large beside others. Loses r2.
    fn order(&mut self, reg: bpf::Reg, size: u8) {
        if size == 4 {
            self.code.alu(Alu::Lsh, reg, Operand::Imm(32));
        }
        self.code.mov(r(2), reg);
        self.code.alu(Alu::Arsh, r(2), Operand::Imm(63));
        self.code.alu(Alu::Rsh, r(2), Operand::Imm(1));
        self.code.alu(Alu::Xor, reg, Operand::Reg(r(2)));
    }

    /// Numbers are compared without a sign if neither has one. A constant that is not negative goes with the other.
    fn is_unsigned(&self, a: &Expr, b: &Expr) -> bool {
        let sign = |e: &Expr| match e.kind {
            ExprKind::Int(n) if n >= 0 => None,
            _ => Some(self.int(self.ty(e)).signed),
        };
        match (sign(a), sign(b)) {
            (None, None) => true,
            (Some(signed), None) | (None, Some(signed)) => !signed,
            (Some(x), Some(y)) => !x && !y,
        }
    }

    /// Strings, tuples, arrays: equal or not.
    fn compare_values(&mut self, op: BinOp, a: &Expr, b: &Expr) -> Done {
        let (ta, tb) = (self.ty(a), self.ty(b));
        if matches!(op, BinOp::Eq | BinOp::Ne)
            && let Some((string, text)) = self.with_text(a, b).or_else(|| self.with_text(b, a))
        {
            // The NUL that ends it too: what is behind it is nobody's.
            let bytes = [text, b"\0"].concat();
            let place = self.place(string)?;
            self.differs(place, &bytes);
        } else if let (Type::Str(la), Type::Str(lb)) = (ta, tb) {
            let (la, lb) = (*la, *lb);
            let pa = self.place(a)?;
            let pb = self.place(b)?;
            self.address(pa, r(1));
            self.code.constant(r(2), i64::from(la));
            self.address(pb, r(3));
            self.code.constant(r(4), i64::from(lb));
            self.code.call(helper::STR_COMPARE);
        } else {
            let common = self.common(ta, tb);
            let len = self.size(&common);
            let (pa, pb) = (self.frame.take(len), self.frame.take(len));
            self.into(a, pa, &common)?;
            self.into(b, pb, &common)?;
            self.address(pa, r(1));
            self.address(pb, r(2));
            self.code.constant(r(3), len as i64);
            self.code.call(helper::MEM_COMPARE);
        }
        match op {
            BinOp::Eq => self.set_if(Cond::Eq, Operand::Imm(0)),
            BinOp::Ne => self.set_if(Cond::Ne, Operand::Imm(0)),
            BinOp::Lt => self.set_if(Cond::Slt, Operand::Imm(0)),
            BinOp::Gt => self.set_if(Cond::Sgt, Operand::Imm(0)),
            BinOp::Le => self.set_if(Cond::Sle, Operand::Imm(0)),
            _ => self.set_if(Cond::Sge, Operand::Imm(0)),
        }
    }

    /// A string that is compared with a text which stands in the script, is short, and has room in it with its NUL.
    fn with_text<'e>(&self, string: &'e Expr, text: &'e Expr) -> Option<(&'e Expr, &'e [u8])> {
        let (Type::Str(room), ExprKind::Str(text)) = (self.ty(string), &text.kind) else { return None };
        let fits = text.len() < TEXT_MAX.min(*room as usize) && !text.contains(&0);
        fits.then_some((string, text))
    }

    /// A type that values of both fit.
    fn common(&self, a: &Type, b: &Type) -> Type {
        match (a, b) {
            (Type::Tuple(xs), Type::Tuple(ys)) => {
                Type::Tuple(xs.iter().zip(ys.iter()).map(|(x, y)| self.common(x, y)).collect())
            }
            (Type::Record(xs), Type::Record(ys)) => {
                let of = |(name, x): &(String, Type)| {
                    let y = ys.iter().find(|(n, _)| n == name).map_or(x, |(_, y)| y);
                    (name.clone(), self.common(x, y))
                };
                Type::Record(xs.iter().map(of).collect::<Arc<[_]>>())
            }
            (Type::Str(x), Type::Str(y)) => Type::Str(*x.max(y)),
            _ => match (self.shape(a), self.shape(b)) {
                (Some(x), Some(y)) if x != y => Type::Int(Int::new(x.size.max(y.size), x.signed || y.signed)),
                (None, None) if self.size(b) > self.size(a) => b.clone(),
                (None, Some(_)) | (Some(_), Some(_)) | (None, None) => a.clone(),
                (Some(_), None) => b.clone(),
            },
        }
    }

    /// Leaves a record of what went wrong, with r0.
    pub fn trouble(&mut self, trouble: Trouble, span: Span) {
        let int = Type::Int(Int::new(8, true));
        let record = self.up.record(crate::program::What::Trouble(trouble), vec![int], span);
        let place = self.frame.take(16);
        self.store_r0(place.plus(8), 8);
        self.store(place, 8, Operand::Imm(record as i32));
        self.submit(place, 16);
    }

    /// Sends a record.
    pub fn submit(&mut self, place: super::frame::Place, len: usize) {
        self.code.op(Op::Wide { dst: r(1), wide: Wide::MapIndex(RING) });
        self.address(place, r(2));
        self.code.constant(r(3), len as i64);
        self.code.constant(r(4), 0);
        self.code.call(helper::RINGBUF_OUTPUT);
    }
}
