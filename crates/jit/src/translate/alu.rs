//! Arithmetic.
//!
//! For:     [`Body`](super::Body).
//! State:   none of its own.
//! Context: control.
//! Keeps:   a signed division is made of an unsigned one: the machine's own traps where the quotient has no place.
//! Checked: tests/engines.rs; tests/differential.

use super::{Body, Broken};
use bpf::{Alu, Operand, Order, Reg, Size, Width};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};

pub(super) fn type_of(size: Size) -> Type {
    match size {
        Size::B => I8,
        Size::H => I16,
        Size::W => I32,
        Size::Dw => I64,
    }
}

impl Body<'_> {
    pub(super) fn alu(&mut self, width: Width, alu: Alu, dst: Reg, src: Operand) {
        if self.unit.is(Broken::UpperHalf) && width == Width::W32 && alu == Alu::Add {
            let b = self.operand(Width::W64, src);
            let sum = self.to.ins().iadd(self.regs[dst.index()], b);
            return self.set(dst, sum);
        }
        let is_broken = self.unit.is(Broken::SignedShift) && width == Width::W32;
        let b = self.operand(width, src);
        if alu == Alu::Mov {
            // What was there may be nothing that is known here.
            return self.set_wide(dst, b);
        }
        let a = self.narrow(width, dst);
        let value = match alu {
            Alu::Add => self.to.ins().iadd(a, b),
            Alu::Sub => self.to.ins().isub(a, b),
            Alu::Mul => self.to.ins().imul(a, b),
            Alu::Or => self.to.ins().bor(a, b),
            Alu::And => self.to.ins().band(a, b),
            Alu::Xor => self.to.ins().bxor(a, b),
            Alu::Lsh => self.to.ins().ishl(a, b),
            Alu::Rsh => self.to.ins().ushr(a, b),
            Alu::Arsh if is_broken => self.to.ins().ushr(a, b),
            Alu::Arsh => self.to.ins().sshr(a, b),
            Alu::Mov => b,
            Alu::Div => self.quotient(a, b),
            Alu::Mod => self.remainder(a, b),
            Alu::Sdiv => {
                let ((size_a, sign_a), (size_b, sign_b)) = (self.magnitude(a), self.magnitude(b));
                let quotient = self.quotient(size_a, size_b);
                let sign = self.to.ins().bxor(sign_a, sign_b);
                self.signed(quotient, sign)
            }
            Alu::Smod => {
                let ((size_a, sign_a), (size_b, sign_b)) = (self.magnitude(a), self.magnitude(b));
                let remainder = self.remainder(size_a, size_b);
                let sign = if self.unit.is(Broken::SignOfRemainder) { sign_b } else { sign_a };
                self.signed(remainder, sign)
            }
        };
        self.set_wide(dst, value);
    }

    /// 0 for a divisor of 0.
    fn quotient(&mut self, a: Value, b: Value) -> Value {
        let (is_zero, divisor) = self.divisor(b);
        let quotient = self.to.ins().udiv(a, divisor);
        let nothing = self.like(b, 0);
        let nothing = if self.unit.is(Broken::DivisionByZero) { a } else { nothing };
        self.to.ins().select(is_zero, nothing, quotient)
    }

    /// The dividend for a divisor of 0.
    fn remainder(&mut self, a: Value, b: Value) -> Value {
        let (is_zero, divisor) = self.divisor(b);
        let remainder = self.to.ins().urem(a, divisor);
        self.to.ins().select(is_zero, a, remainder)
    }

    /// Whether it is 0, and 1 in its place then.
    fn divisor(&mut self, b: Value) -> (Value, Value) {
        let is_zero = self.to.ins().icmp_imm_u(IntCC::Equal, b, 0);
        let one = self.like(b, 1);
        (is_zero, self.to.ins().select(is_zero, one, b))
    }

    /// A constant of the same type.
    fn like(&mut self, value: Value, constant: i64) -> Value {
        let of = self.to.func.dfg.value_type(value);
        self.to.ins().iconst(of, constant)
    }

    /// A signed number's size, unsigned, and -1 or 0 for its sign.
    fn magnitude(&mut self, value: Value) -> (Value, Value) {
        let bits = i64::from(self.to.func.dfg.value_type(value).bits());
        let sign = self.to.ins().sshr_imm_u(value, bits - 1);
        (self.signed(value, sign), sign)
    }

    /// The number, negated if the sign is -1.
    fn signed(&mut self, value: Value, sign: Value) -> Value {
        let turned = self.to.ins().bxor(value, sign);
        self.to.ins().isub(turned, sign)
    }

    pub(super) fn movsx(&mut self, width: Width, from: Size, dst: Reg, src: Reg) {
        let low = self.reduced(from, src);
        let of = if width == Width::W64 { I64 } else { I32 };
        let value = self.to.ins().sextend(of, low);
        self.set_wide(dst, value);
    }

    pub(super) fn reorder(&mut self, order: Order, size: Size, dst: Reg) {
        let value = match (size, order) {
            (Size::Dw, Order::Little) => return,
            (Size::H, Order::Big) if self.unit.is(Broken::ByteOrder) => {
                let turned = self.to.ins().bswap(self.regs[dst.index()]);
                let value = self.to.ins().ushr_imm_u(turned, 48);
                self.to.ins().bor(value, self.regs[dst.index()])
            }
            (_, Order::Little) => self.reduced(size, dst),
            (_, Order::Big | Order::Swap) => {
                let low = self.reduced(size, dst);
                self.to.ins().bswap(low)
            }
        };
        self.set_wide(dst, value);
    }

    /// The lower bytes of a register.
    pub(super) fn reduced(&mut self, size: Size, reg: Reg) -> Value {
        let value = self.reg(reg);
        match size {
            Size::Dw => value,
            size => self.to.ins().ireduce(type_of(size), value),
        }
    }
}
