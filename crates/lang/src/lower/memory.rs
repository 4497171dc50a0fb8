//! Loads, stores, copies.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   r0 is not changed by `address`, `load_to` with another register, `store`; copies and zeros lose r0 to r5.
//! Checked: tests/scripts.rs.

use super::build::{Build, SCRATCH_BASE};
use super::code::r;
use super::frame::{Base, Place};
use crate::types::Int;
use bpf::helper::{self, CONSTANTS};
use bpf::{Alu, Op, Operand, Reg, Size, Wide};

/// Longer copies are a helper's.
const UNROLLED: usize = 64;

/// The size of an access.
pub fn size_of(bytes: u8) -> Size {
    match bytes {
        1 => Size::B,
        2 => Size::H,
        4 => Size::W,
        _ => Size::Dw,
    }
}

impl Build<'_, '_> {
    /// `dst` = the address of a place.
    pub fn address(&mut self, place: Place, dst: Reg) {
        let base = match place.base {
            Base::Stack => Reg::FRAME,
            Base::Scratch => SCRATCH_BASE,
            Base::Constants => {
                let wide = Wide::MapValueIndex { index: CONSTANTS, offset: place.at as u32 };
                return self.code.op(Op::Wide { dst, wide });
            }
        };
        self.code.mov(dst, base);
        if place.at != 0 {
            self.code.alu(Alu::Add, dst, Operand::Imm(place.at));
        }
    }

    /// Register and offset by which a place is accessed; `spare` is used if it has no such form.
    fn based(&mut self, place: Place, spare: Reg) -> (Reg, i16) {
        match (place.base, i16::try_from(place.at)) {
            (Base::Stack, Ok(at)) => (Reg::FRAME, at),
            (Base::Scratch, Ok(at)) if at < i16::MAX - 64 => (SCRATCH_BASE, at),
            _ => {
                self.address(place, spare);
                (spare, 0)
            }
        }
    }

    /// `dst` = the number at a place. `dst` is used for the address too.
    pub fn load(&mut self, place: Place, int: Int, dst: Reg) {
        let (base, at) = self.based(place, dst);
        self.code.load(size_of(int.size), int.signed, dst, base, at);
    }

    /// A place's number = `src`; loses r5.
    pub fn store(&mut self, place: Place, size: u8, src: Operand) {
        let (base, at) = self.based(place, r(5));
        self.code.store(size_of(size), base, at, src);
    }

    /// r0 to a place.
    pub fn store_r0(&mut self, place: Place, size: u8) {
        self.store(place, size, Operand::Reg(r(0)));
    }

    /// r0 to a new place of eight bytes.
    pub fn keep(&mut self) -> Place {
        let place = self.frame.take(8);
        self.store_r0(place, 8);
        place
    }

    /// `dst` = what [`Build::keep`] kept.
    pub fn kept(&mut self, place: Place, dst: Reg) {
        self.load(place, Int::new(8, false), dst);
    }

    /// r0 = 0 if these bytes lie at a place, else not. Loses r2 to r4.
    pub fn differs(&mut self, place: Place, bytes: &[u8]) {
        let (base, at) = self.based(place, r(4));
        self.code.constant(r(0), 0);
        for (offset, size) in steps(bytes.len(), place.at) {
            let part = bytes.iter().skip(offset as usize).take(size.into());
            let word = part.rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            self.code.load(size_of(size), false, r(2), base, at + offset);
            if word != 0 {
                self.code.constant(r(3), word.cast_signed());
                self.code.alu(Alu::Xor, r(2), Operand::Reg(r(3)));
            }
            self.code.alu(Alu::Or, r(0), Operand::Reg(r(2)));
        }
    }

    /// Zeros.
    pub fn zero(&mut self, place: Place, len: usize) {
        if len > UNROLLED {
            self.address(place, r(1));
            self.code.constant(r(2), len as i64);
            return self.code.call(helper::MEM_ZERO);
        }
        let (base, at) = self.based(place, r(5));
        for (offset, size) in steps(len, place.at) {
            self.code.store(size_of(size), base, at + offset, Operand::Imm(0));
        }
    }

    /// Bytes from one place to another.
    pub fn copy(&mut self, from: Place, to: Place, len: usize) {
        if from == to || len == 0 {
            return;
        }
        self.address(from, r(3));
        self.copy_steps(to, len, from.at | to.at);
    }

    /// Bytes from the program's own memory at r3.
    pub fn copy_from_r3(&mut self, to: Place, len: usize) {
        self.copy_steps(to, len, to.at);
    }

    fn copy_steps(&mut self, to: Place, len: usize, aligned: i32) {
        if len > UNROLLED {
            self.address(to, r(1));
            self.code.constant(r(2), len as i64);
            return self.code.call(helper::PROBE_READ_OWN);
        }
        let (base, at) = self.based(to, r(5));
        for (offset, size) in steps(len, aligned) {
            self.code.load(size_of(size), false, r(4), r(3), offset);
            self.code.store(size_of(size), base, at + offset, Operand::Reg(r(4)));
        }
    }
}

/// How so few bytes are moved: offsets and sizes. Each is aligned if the first is as `start` is: the kernel's verifier takes
/// nothing else of the stack.
fn steps(len: usize, start: i32) -> impl Iterator<Item = (i16, u8)> {
    let most = 1 << start.trailing_zeros().min(3);
    let mut at = 0;
    std::iter::from_fn(move || {
        let size = [8, 4, 2, 1].into_iter().find(|size| *size <= most && at + size <= len)?;
        let step = (at as i16, size as u8);
        at += size;
        Some(step)
    })
}
