//! Functions on text, buffers and addresses.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   what is read from a target is never longer than the place it goes to.
//! Checked: tests/scripts.rs.

use super::build::{Build, Done};
use super::code::r;
use super::frame::Place;
use crate::Builtin;
use crate::ast::{Expr, ExprKind};
use crate::types::Type;
use bpf::helper::{self, Named};
use bpf::{Alu, Cond, Operand};

const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

impl Build<'_, '_> {
    /// Bytes of a value that is text: a place and its length.
    fn text(&mut self, e: &Expr) -> Done<(Place, usize)> {
        match self.ty(e) {
            Type::Str(len) => Ok((self.place(e)?, *len as usize)),
            Type::Buffer(len) => Ok((self.place(e)?.plus(4), *len as usize)),
            ty if !self.is_scalar(ty) => {
                let len = self.size(ty);
                Ok((self.place(e)?, len))
            }
            Type::Pointer(_) | Type::Int(_) => {
                let len = self.up.checked.config.max_strlen as usize;
                let to = self.frame.take(len);
                self.scalar(e)?;
                self.read_text(to, len, e);
                Ok((to, len))
            }
            _ => self.refuse(e.span, "not a text"),
        }
    }

    pub fn text_call(&mut self, builtin: Builtin, args: &[Expr], e: &Expr) -> Done {
        use Builtin as B;
        let a = self.first(args, e)?;
        if builtin == B::Strcap {
            let cap = match self.ty(a) {
                Type::Pointer(_) => self.up.checked.config.max_strlen as usize,
                ty => self.size(ty),
            };
            self.code.constant(r(0), cap as i64);
            return Ok(());
        }
        let (pa, la) = self.text(a)?;
        if builtin == B::Strlen {
            self.address(pa, r(1));
            self.code.constant(r(2), la as i64);
            self.code.call(helper::STR_LEN);
            return Ok(());
        }
        let Some(b) = args.get(1) else { return self.refuse(e.span, "a second argument is missing") };
        let (pb, lb) = self.text(b)?;
        match builtin {
            B::Strncmp | B::Memcmp => {
                let Some(n) = args.get(2) else { return self.refuse(e.span, "a length is missing") };
                self.scalar(n)?;
                self.code.mov(r(5), r(0));
                if builtin == B::Memcmp {
                    self.at_most(r(5), la.min(lb));
                    let kept = self.frame.take(8);
                    self.code.mov(r(0), r(5));
                    self.store_r0(kept, 8);
                    self.address(pa, r(1));
                    self.address(pb, r(2));
                    self.kept(kept, r(3));
                    self.code.call(helper::MEM_COMPARE);
                    return Ok(());
                }
                self.code.mov(r(2), r(5));
                self.at_most(r(2), la);
                self.code.mov(r(4), r(5));
                self.at_most(r(4), lb);
                self.address(pa, r(1));
                self.address(pb, r(3));
                self.code.call(helper::STR_COMPARE);
                self.set_if(Cond::Ne, Operand::Imm(0))
            }
            _ => {
                self.address(pa, r(1));
                self.code.constant(r(2), la as i64);
                self.address(pb, r(3));
                self.code.constant(r(4), lb as i64);
                self.code.call(helper::STR_FIND);
                if builtin == B::Strcontains { self.set_if(Cond::Sge, Operand::Imm(0)) } else { Ok(()) }
            }
        }
    }

    /// Bounds a length in a register from above; one that is negative is large.
    fn at_most(&mut self, reg: bpf::Reg, most: usize) {
        let fine = self.code.label();
        self.code.jump(Cond::Le, reg, Operand::Imm(most.min(1 << 30) as i32), fine);
        self.code.constant(reg, most as i64);
        self.code.bind(fine);
    }

    /// `str(p)`, `str(p, n)`.
    pub fn str(&mut self, args: &[Expr], e: &Expr, to: Place, len: usize) -> Done {
        let a = self.first(args, e)?;
        let own = self.ty(a);
        if !self.is_scalar(own) {
            let (from, has) = self.text(a)?;
            self.zero(to, len);
            self.code.constant(r(5), len.min(has) as i64);
            self.limited(args.get(1))?;
            self.own_text(from, to);
            return Ok(());
        }
        self.scalar(a)?;
        let from = self.keep();
        self.zero(to, len);
        self.code.constant(r(5), len as i64);
        self.limited(args.get(1))?;
        // With a length given that is shorter than the place, zeros follow.
        self.code.mov(r(2), r(5));
        self.address(to, r(1));
        self.kept(from, r(3));
        self.text_from_r3(e);
        Ok(())
    }

    /// r5 = the smaller of r5 and a length that was given.
    fn limited(&mut self, n: Option<&Expr>) -> Done {
        let Some(n) = n else { return Ok(()) };
        self.code.mov(r(0), r(5));
        let most = self.keep();
        self.scalar(n)?;
        self.kept(most, r(5));
        let fine = self.code.label();
        self.code.jump(Cond::Ge, r(0), Operand::Reg(r(5)), fine);
        self.code.mov(r(5), r(0));
        self.code.bind(fine);
        Ok(())
    }

    /// Copies a text of ours of at most r5 bytes.
    fn own_text(&mut self, from: Place, to: Place) {
        self.code.mov(r(2), r(5));
        self.address(to, r(1));
        self.address(from, r(3));
        self.code.call(helper::PROBE_READ_TEXT);
    }

    /// `buf(p, n)`.
    pub fn buf(&mut self, args: &[Expr], e: &Expr, to: Place, len: usize) -> Done {
        let a = self.first(args, e)?;
        let room = len.saturating_sub(4);
        self.zero(to, len);
        let is_own = !self.is_scalar(self.ty(a));
        let (from, has) = if is_own {
            self.text(a)?
        } else {
            self.scalar(a)?;
            (self.keep(), room)
        };
        self.code.constant(r(5), room.min(has) as i64);
        self.limited(args.get(1))?;
        self.store(to, 4, Operand::Reg(r(5)));
        self.load(to, crate::types::Int::new(4, false), r(2));
        self.address(to.plus(4), r(1));
        if is_own {
            self.address(from, r(3));
            self.code.call(helper::PROBE_READ_OWN);
        } else {
            self.kept(from, r(3));
            self.code.call(helper::PROBE_READ_USER);
        }
        Ok(())
    }

    pub fn concat(&mut self, args: &[Expr], to: Place, len: usize) -> Done {
        self.zero(to, len);
        for a in args {
            let (from, has) = self.text(a)?;
            self.address(to, r(1));
            self.code.constant(r(2), len as i64);
            self.address(from, r(3));
            self.code.constant(r(4), has as i64);
            self.code.call(helper::STR_APPEND);
        }
        Ok(())
    }

    /// The name of a number: from a table among the constants; of numbers that are in none the controller knows what to say.
    pub fn name_of(&mut self, of: Named, args: &[Expr], e: &Expr, to: Place, len: usize) -> Done {
        let a = self.first(args, e)?;
        self.scalar(a)?;
        let names = crate::run::names_of(of);
        let mut table = vec![0; names.len() * len];
        for (name, row) in names.iter().zip(table.chunks_mut(len.max(1))) {
            let kept = name.len().min(len.saturating_sub(1));
            row[..kept].copy_from_slice(&name.as_bytes()[..kept]);
        }
        let table = self.constant(&table);
        let (other, done) = (self.code.label(), self.code.label());
        self.code.jump(Cond::Ge, r(0), Operand::Imm(names.len() as i32), other);
        self.code.alu_imm(Alu::Mul, r(0), len as i64);
        self.address(table, r(3));
        self.code.alu(Alu::Add, r(3), Operand::Reg(r(0)));
        self.copy_from_r3(to, len);
        self.code.ja(done);
        self.code.bind(other);
        if self.point.provider.is_traced() {
            let mut unknown = crate::run::no_name(of).to_vec();
            unknown.resize(len, 0);
            let unknown = self.constant(&unknown);
            self.copy(unknown, to, len);
        } else {
            self.code.mov(r(2), r(0));
            self.code.constant(r(1), of as i64);
            self.address(to, r(3));
            self.code.constant(r(4), len as i64);
            self.code.call(helper::NAME_OF);
        }
        self.code.bind(done);
        Ok(())
    }

    /// The settings as the record that `config` is.
    pub fn configured(&self, ty: &Type) -> Vec<u8> {
        let Type::Record(items) = ty else { return Vec::new() };
        let checked = self.up.checked;
        let (offsets, _) = checked.ctypes.layout(items.iter().map(|(_, ty)| ty));
        let mut bytes = vec![0; self.size(ty)];
        for ((name, ty), at) in items.iter().zip(offsets) {
            let value = checked.config.value(name);
            let room = &mut bytes[at as usize..][..self.size(ty)];
            let count = value.len().min(room.len());
            room[..count].copy_from_slice(&value[..count]);
        }
        bytes
    }

    /// `ntop([family,] address)`: family, then the bytes.
    pub fn ntop(&mut self, args: &[Expr], e: &Expr, to: Place) -> Done {
        let Some(a) = args.last() else { return self.refuse(e.span, "an address is missing") };
        self.zero(to, 20);
        let len = self.size(self.ty(a));
        if self.is_scalar(self.ty(a)) {
            self.scalar(a)?;
            self.store_r0(to.plus(4), 4);
        } else {
            let place = self.place(a)?;
            self.copy(place, to.plus(4), len.min(16));
        }
        match args {
            [family, _] => {
                self.scalar(family)?;
                self.store_r0(to, 4);
            }
            _ => self.store(to, 4, Operand::Imm(if len == 16 { AF_INET6 } else { AF_INET })),
        }
        Ok(())
    }

    /// `pton("...")`: the bytes of an address that is written out.
    pub fn pton(&mut self, args: &[Expr], e: &Expr, to: Place, len: usize) -> Done {
        let text = args.first().and_then(super::call::word).unwrap_or_default();
        let bytes = match text.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(v4)) => v4.octets().to_vec(),
            Ok(std::net::IpAddr::V6(v6)) => v6.octets().to_vec(),
            Err(_) => return self.refuse(e.span, format!("{text} is not an IP address")),
        };
        if bytes.len() != len {
            return self.refuse(e.span, format!("{text} is not an address of {len} bytes"));
        }
        let from = self.constant(&bytes);
        self.copy(from, to, len);
        Ok(())
    }

    /// So many bytes of an array, or at a pointer.
    pub fn bytes_of(&mut self, a: &Expr, to: Place, len: usize) -> Done {
        self.zero(to, len);
        if self.is_scalar(self.ty(a)) {
            self.scalar(a)?;
            self.read_user_at(to, len, a);
        } else {
            let has = self.size(self.ty(a));
            let place = self.place(a)?;
            self.copy(place, to, len.min(has));
        }
        Ok(())
    }

    /// `strftime(format, ns)`: the time and which format.
    pub fn strftime(&mut self, args: &[Expr], e: &Expr, to: Place) -> Done {
        let [Expr { kind: ExprKind::Str(format), .. }, time] = args else {
            return self.refuse(e.span, "strftime() takes a constant format and a time");
        };
        let number = self.up.time_format(format);
        self.scalar(time)?;
        self.store_r0(to, 8);
        self.store(to.plus(8), 8, Operand::Imm(number as i32));
        Ok(())
    }
}
