//! Values of one type where another is wanted.
//!
//! For:     the lowering: assignments, keys, operands, casts.
//! State:   none of its own.
//! Context: control.
//! Keeps:   C1 a value that is written somewhere has all bytes defined: padding, and what follows a string's NUL, are zeros.
//! Checked: tests/scripts.rs (keys that differ in padding only), `torture lang`.

use super::build::{Build, Done};
use super::code::r;
use super::frame::Place;
use crate::ast::{Expr, ExprKind};
use crate::program::Trouble;
use crate::types::{Int, Type};
use bpf::helper;
use bpf::{Alu, Cond, Op, Operand, Width};

impl Build<'_, '_> {
    /// r0 from one type that is a number to another.
    pub fn adapt(&mut self, from: &Type, to: &Type) {
        let (Some(a), Some(b)) = (self.shape(from), self.shape(to)) else { return };
        if let (Type::Float(size), Type::Int(_)) = (from, to) {
            self.truncate(*size);
            self.narrow(b);
        } else if matches!((from, to), (Type::Int(_), Type::Pointer(_))) {
            // The bits of the number: -1 of one byte is 0xff.
            self.narrow(Int::new(a.size, false));
        } else if matches!(to, Type::Bool) && !matches!(from, Type::Bool) {
            let zero = self.code.label();
            self.code.jump(Cond::Eq, r(0), Operand::Imm(0), zero);
            self.code.constant(r(0), 1);
            self.code.bind(zero);
        } else if b.size < 8
            && (a.size, a.signed) != (b.size, b.signed)
            && !(a.size < b.size && a.signed == b.signed)
        {
            self.narrow(b);
        }
    }

    /// r0, the bits of a number with a fraction, to the integer towards zero; what is too large to the largest. Loses r1 to r3.
    fn truncate(&mut self, size: u8) {
        let (fraction, exponents) = if size == 4 { (23, 0xff) } else { (52, 0x7ff) };
        let [zero, small, large, signed, done] = [(); 5].map(|()| self.code.label());
        self.code.mov(r(1), r(0));
        self.code.alu(Alu::Rsh, r(1), Operand::Imm(fraction));
        self.code.alu(Alu::And, r(1), Operand::Imm(exponents));
        self.code.alu(Alu::Sub, r(1), Operand::Imm(exponents / 2));
        self.code.mov(r(2), r(0));
        self.code.alu(Alu::Lsh, r(2), Operand::Imm(64 - fraction));
        self.code.alu(Alu::Rsh, r(2), Operand::Imm(64 - fraction));
        self.code.constant(r(3), 1 << fraction);
        self.code.alu(Alu::Or, r(2), Operand::Reg(r(3)));
        self.code.jump(Cond::Slt, r(1), Operand::Imm(0), zero);
        self.code.jump(Cond::Sgt, r(1), Operand::Imm(62), large);
        self.code.jump(Cond::Slt, r(1), Operand::Imm(fraction), small);
        self.code.alu(Alu::Sub, r(1), Operand::Imm(fraction));
        self.code.alu(Alu::Lsh, r(2), Operand::Reg(r(1)));
        self.code.ja(signed);
        self.code.bind(small);
        self.code.constant(r(3), fraction.into());
        self.code.alu(Alu::Sub, r(3), Operand::Reg(r(1)));
        self.code.alu(Alu::Rsh, r(2), Operand::Reg(r(3)));
        self.code.ja(signed);
        self.code.bind(large);
        self.code.constant(r(2), i64::MAX);
        self.code.ja(signed);
        self.code.bind(zero);
        self.code.constant(r(2), 0);
        self.code.bind(signed);
        self.code.alu(Alu::Rsh, r(0), Operand::Imm(i32::from(size) * 8 - 1));
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), done);
        self.code.op(Op::Neg { width: Width::W64, dst: r(2) });
        self.code.bind(done);
        self.code.mov(r(0), r(2));
    }

    /// Writes a value of type `ty`.
    pub fn into(&mut self, e: &Expr, to: Place, ty: &Type) -> Done {
        if let Some(int) = self.shape(ty) {
            self.scalar(e)?;
            self.adapt(self.ty(e), ty);
            self.store_r0(to, int.size);
            return Ok(());
        }
        match (&e.kind, ty) {
            (ExprKind::Tuple(items), Type::Tuple(types)) => {
                let (offsets, _) = self.up.checked.ctypes.layout(types.iter());
                self.zero(to, self.size(ty));
                for ((item, ty), at) in items.iter().zip(types.iter()).zip(offsets) {
                    self.into(item, to.plus(at as usize), ty)?;
                }
                Ok(())
            }
            (ExprKind::Record(items), Type::Record(_)) => {
                self.zero(to, self.size(ty));
                for (name, item) in items {
                    let Some(((at, _), ty)) = self.field(ty, &name.text).zip(field_type(ty, &name.text))
                    else {
                        return self.refuse(name.span, format!("no field {}", name.text));
                    };
                    self.into(item, to.plus(at), &ty)?;
                }
                Ok(())
            }
            (ExprKind::Ternary(c, a, b), _) => self.ternary(c, a.as_deref(), b, e, Some((to, ty))),
            (ExprKind::If(branches), _) => self.branches(branches, Some((to, ty))),
            (ExprKind::Block(block), _) => self.value_block(block, Some((to, ty))),
            _ if self.ty(e) == ty => self.same(e, to, ty),
            (ExprKind::Str(_) | ExprKind::Var(_), _) => {
                let place = self.place(e)?;
                self.convert(place, self.ty(e), to, ty, e)
            }
            _ => {
                let own = self.ty(e);
                let place = match self.shape(own) {
                    Some(int) => {
                        self.scalar(e)?;
                        let place = self.keep();
                        return self.convert_number(place, int, to, ty, e);
                    }
                    None => self.place(e)?,
                };
                self.convert(place, own, to, ty, e)
            }
        }
    }

    /// Writes a value that is no number as it is.
    fn same(&mut self, e: &Expr, to: Place, ty: &Type) -> Done {
        let len = self.size(ty);
        match &e.kind {
            ExprKind::Str(_) | ExprKind::Var(_) => {
                let place = self.place(e)?;
                self.copy(place, to, len);
            }
            ExprKind::Map(map) => self.element_into(map.id, None, to, len, e)?,
            ExprKind::MapAt(map, key) => self.element_into(map.id, Some(key), to, len, e)?,
            ExprKind::Builtin(builtin, args) => self.call_into(*builtin, args, e, to, ty)?,
            _ if self.is_user(e) => {
                self.user_address(e)?;
                self.read_user_at(to, len, e);
                if matches!(ty, Type::Str(_)) {
                    self.tidy(to, len);
                }
            }
            ExprKind::Field(of, name) => {
                let (place, _) = self.field_place(of, name, e)?;
                self.copy(place, to, len);
            }
            ExprKind::Index(of, index) => {
                let out = self.code.label();
                self.zero(to, len);
                self.own_item(of, index, e, out)?;
                self.copy_from_r3(to, len);
                self.code.bind(out);
            }
            ExprKind::Cast(_, a) => self.cast_into(a, to, ty, e)?,
            ExprKind::Tuple(_) if len == 0 => {}
            _ => return self.refuse(e.span, "this can't be used as a value"),
        }
        Ok(())
    }

    /// Zeros what follows a string's first NUL.
    pub fn tidy(&mut self, to: Place, len: usize) {
        self.address(to, r(1));
        self.code.constant(r(2), len as i64);
        self.code.call(helper::STR_TIDY);
    }

    /// From one place to another, with another type.
    pub fn convert(&mut self, from: Place, a: &Type, to: Place, b: &Type, e: &Expr) -> Done {
        if let (Some(int), Some(wanted)) = (self.shape(a), self.shape(b)) {
            self.load(from, int, r(0));
            self.adapt(a, b);
            self.store_r0(to, wanted.size);
            return Ok(());
        }
        match (a, b) {
            (Type::Tuple(xs), Type::Tuple(ys)) => {
                let ctypes = &self.up.checked.ctypes;
                let ((at, _), (to_at, _)) = (ctypes.layout(xs.iter()), ctypes.layout(ys.iter()));
                self.zero(to, self.size(b));
                for (i, (x, y)) in xs.iter().zip(ys.iter()).enumerate() {
                    self.convert(from.plus(at[i] as usize), x, to.plus(to_at[i] as usize), y, e)?;
                }
            }
            (Type::Record(xs), Type::Record(_)) => {
                self.zero(to, self.size(b));
                for (name, x) in xs.iter() {
                    let (Some((at, _)), Some((to_at, _)), Some(y)) =
                        (self.field(a, name), self.field(b, name), field_type(b, name))
                    else {
                        return self.refuse(e.span, format!("no field {name}"));
                    };
                    self.convert(from.plus(at), x, to.plus(to_at), &y, e)?;
                }
            }
            // A shorter length may follow from a longer buffer: only so many bytes are there.
            (Type::Buffer(_), Type::Buffer(_)) => {
                let len = self.size(a).min(self.size(b));
                self.zero(to, self.size(b));
                self.copy(from, to, len);
            }
            _ if self.shape(a).is_none() && self.shape(b).is_none() => {
                let (has, wants) = (self.size(a), self.size(b));
                if has < wants {
                    self.zero(to, wants);
                }
                self.copy(from, to, has.min(wants));
            }
            _ => {
                let int = self.shape(a).unwrap_or(Int::new(8, false));
                return self.convert_number(from, int, to, b, e);
            }
        }
        Ok(())
    }

    /// A number of up to eight bytes at a place to a type that is none: an array's bytes, or text at an address.
    fn convert_number(&mut self, from: Place, int: Int, to: Place, ty: &Type, e: &Expr) -> Done {
        let len = self.size(ty);
        match ty {
            Type::Str(_) => {
                self.kept(from, r(0));
                self.read_text(to, len, e);
            }
            Type::Array(..) | Type::MacAddr | Type::Inet | Type::Struct(_) => {
                self.zero(to, len);
                self.copy(from, to, len.min(usize::from(int.size)));
            }
            _ => return self.refuse(e.span, "a number can't be converted to this"),
        }
        Ok(())
    }

    /// Text of the target at r0, cut off after `len` bytes: then it has no NUL.
    pub fn read_text(&mut self, to: Place, len: usize, e: &Expr) {
        let kept = self.keep();
        self.zero(to, len);
        self.address(to, r(1));
        self.code.constant(r(2), len as i64);
        self.kept(kept, r(3));
        self.text_from_r3(e);
    }

    /// The same with r1 to r3 set. Whether there was more is told by the helper: only then is the last byte not NUL.
    pub fn text_from_r3(&mut self, e: &Expr) {
        self.code.call(helper::PROBE_READ_TEXT);
        if self.up.options.says_failures {
            let fine = self.code.label();
            self.code.jump(Cond::Sge, r(0), Operand::Imm(0), fine);
            self.trouble(Trouble::Read { helper: "probe_read_user_str" }, e.span);
            self.code.bind(fine);
        }
    }

    /// `(type)a` as a number: r0.
    pub fn cast(&mut self, a: &Expr, e: &Expr) -> Done {
        let (from, to) = (self.ty(a), self.ty(e));
        if self.is_scalar(from) {
            self.scalar(a)?;
            self.adapt(from, to);
            return Ok(());
        }
        let (has, int) = (self.size(from), self.int(to));
        let place = match from {
            Type::Inet => self.place(a)?.plus(4),
            Type::Buffer(_) => self.place(a)?.plus(4),
            _ => self.place(a)?,
        };
        if has < usize::from(int.size) {
            let wide = self.frame.take(8);
            self.zero(wide, 8);
            self.copy(place, wide, has);
            self.load(wide, int, r(0));
        } else {
            self.load(place, int, r(0));
        }
        Ok(())
    }

    /// `(type)a` where the type is no number.
    fn cast_into(&mut self, a: &Expr, to: Place, ty: &Type, e: &Expr) -> Done {
        let from = self.ty(a);
        if let Some(int) = self.shape(from) {
            self.scalar(a)?;
            let kept = self.keep();
            return self.convert_number(kept, int, to, ty, e);
        }
        let place = self.place(a)?;
        self.convert(place, from, to, ty, e)
    }
}

/// The type of a record's field.
fn field_type(ty: &Type, name: &str) -> Option<Type> {
    match ty {
        Type::Record(items) => items.iter().find(|(n, _)| n == name).map(|(_, ty)| ty.clone()),
        _ => None,
    }
}
