//! Loads, stores, atomics, and the comparisons before them.
//!
//! For:     [`Body`](super::Body).
//! State:   none of its own.
//! Context: control.
//! Keeps:   M1 in a checked program each access is compared with every region, but those that a function makes to its own
//!             frame by r10 and a constant.
//!          M2 each access is listed with its place in the code.
//! Checked: tests/hostile.rs (M1); tests/engines.rs (M2).

use super::alu::type_of;
use super::{Body, Broken, trusted};
use crate::compile::ACCESS;
use crate::run::{FaultKind, place};
use bpf::{Atomic, FRAME_LEN, Operand, Reg, Size};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, MemFlagsData, Value};

/// A base register, and how far from it.
type Place = (Reg, i16);

/// Accesses of the program's, which are listed in the fault map.
fn guest() -> MemFlagsData {
    MemFlagsData::new().with_trap_code(Some(ACCESS))
}

impl Body<'_> {
    pub(super) fn load(&mut self, size: Size, signed: bool, dst: Reg, from: Place) {
        let (base, offset) = self.allowed(from, size, false);
        let value = self.to.ins().load(type_of(size), guest(), base, offset);
        let is_broken = self.unit.is(Broken::SignedLoad) && size == Size::H;
        if signed && size != Size::Dw && !is_broken {
            let value = self.to.ins().sextend(I64, value);
            return self.set(dst, value);
        }
        self.set_wide(dst, value);
    }

    pub(super) fn store(&mut self, size: Size, to: Place, src: Operand) {
        let (base, offset) = self.allowed(to, size, true);
        let value = match src {
            Operand::Reg(reg) => self.reduced(size, reg),
            Operand::Imm(imm) => {
                let unused = 64 - size.bits();
                let bits = (i64::from(imm) << unused).cast_unsigned() >> unused;
                self.to.ins().iconst(type_of(size), bits.cast_signed())
            }
        };
        self.to.ins().store(guest(), value, base, offset);
    }

    pub(super) fn atomic(&mut self, size: Size, atomic: Atomic, to: Place, src: Reg) {
        let (base, offset) = self.allowed(to, size, true);
        let addr = self.to.ins().iadd_imm_s(base, i64::from(offset));
        if self.unit.is_checked() {
            let low = self.to.ins().band_imm_u(addr, size.bytes() as i64 - 1);
            self.fault_if(low, FaultKind::Unaligned, addr);
        }
        let value = self.reduced(size, src);
        let op = match atomic {
            Atomic::Add { .. } => AtomicRmwOp::Add,
            Atomic::Or { .. } => AtomicRmwOp::Or,
            Atomic::And { .. } => AtomicRmwOp::And,
            Atomic::Xor { .. } => AtomicRmwOp::Xor,
            Atomic::Xchg => AtomicRmwOp::Xchg,
            Atomic::Cmpxchg => {
                let expected = self.reduced(size, Reg::R0);
                let old = self.to.ins().atomic_cas(guest(), addr, expected, value);
                if !(self.unit.is(Broken::OldValue) && size == Size::W) {
                    self.set_wide(Reg::R0, old);
                }
                return;
            }
        };
        let of = if size == Size::W { I32 } else { I64 };
        let old = self.to.ins().atomic_rmw(of, guest(), op, addr, value);
        if atomic.fetches() {
            self.set_wide(src, old);
        }
    }

    /// The address of an access that may be made; the run ends if it may not.
    fn allowed(&mut self, (reg, offset): Place, size: Size, is_write: bool) -> (Value, i32) {
        let base = self.reg(reg);
        let in_frame = -(FRAME_LEN as i64)..=-(size.bytes() as i64);
        let is_own = reg == Reg::FRAME && in_frame.contains(&i64::from(offset));
        if !self.unit.is_checked() || is_own {
            return (base, i32::from(offset));
        }
        let addr = self.to.ins().iadd_imm_s(base, i64::from(offset));
        let mut is_inside = None;
        for region in 0..wire::BOUNDS_MAX {
            let (start, places) = place::region(region, size, is_write);
            let start = self.to.ins().load(I64, trusted(), self.run, start);
            let places = self.to.ins().load(I64, trusted(), self.run, places);
            let behind = self.to.ins().isub(addr, start);
            let inside = self.to.ins().icmp(IntCC::UnsignedLessThan, behind, places);
            is_inside = Some(match is_inside {
                Some(other) => self.to.ins().bor(other, inside),
                None => inside,
            });
        }
        if let Some(is_inside) = is_inside {
            let is_outside = self.to.ins().icmp_imm_u(IntCC::Equal, is_inside, 0);
            self.fault_if(is_outside, FaultKind::Access(size), addr);
        }
        (addr, 0)
    }
}
