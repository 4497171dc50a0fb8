//! Functions that leave a record: printing, clearing, ending.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   a record is its number and the arguments as a tuple, one behind the other in the ring.
//! Checked: tests/scripts.rs, tests/output.rs.

use super::build::{Build, Done};
use super::code::r;
use crate::Builtin;
use crate::ast::{Expr, ExprKind, MapId};
use crate::program::What;
use crate::types::{Agg, Int, Type};
use bpf::helper::RECORD_MAX;
use bpf::{Cond, Operand};
use std::rc::Rc;

/// Most strings that `join` reads of an array.
const JOIN_MAX: usize = 16;

impl Build<'_, '_> {
    pub fn output(&mut self, builtin: Builtin, args: &[Expr], e: &Expr) -> Done {
        use Builtin as B;
        let format = |what: fn(Rc<Vec<u8>>) -> What| match args.first().map(|a| &a.kind) {
            Some(ExprKind::Str(format)) => Ok(what(Rc::new(format.clone()))),
            _ => Err(crate::Diagnostic::error(e.span, "the format has to be a constant string")),
        };
        let rest = args.get(1..).unwrap_or_default();
        match builtin {
            B::Printf => self.record(format(What::Printf)?, rest, e),
            B::Debugf => self.record(format(What::Debug)?, rest, e),
            B::Cat => self.record(format(What::Cat)?, rest, e),
            B::System => self.record(format(What::System)?, rest, e),
            B::Errorf => self.record(format(|format| What::Message { is_error: true, format })?, rest, e),
            B::Warnf => self.record(format(|format| What::Message { is_error: false, format })?, rest, e),
            B::Time => {
                let default = Rc::new(b"%H:%M:%S\n".to_vec());
                let what = if args.is_empty() { What::Time(default) } else { format(What::Time)? };
                self.record(what, &[], e)
            }
            B::Exit => self.exit(args, e),
            B::Clear | B::Zero => {
                let map = self.map_of(self.first(args, e)?)?;
                // The controller does it, while threads go on.
                self.up.not_own.insert(MapId(map as u32));
                let what = if builtin == B::Clear { What::Clear(map) } else { What::Zero(map) };
                self.record(what, &[], e)
            }
            B::Print => self.print(args, e),
            B::Join => self.join(args, e),
            B::Assert => {
                let fine = self.code.label();
                self.truth(self.first(args, e)?)?;
                self.code.jump(Cond::Ne, r(0), Operand::Imm(0), fine);
                let format = Rc::new(b"assert failed: %s".to_vec());
                self.record(What::Message { is_error: true, format }, rest, e)?;
                self.exit_with(1, e)?;
                self.code.bind(fine);
                Ok(())
            }
            _ => self.refuse(e.span, "not a function that prints"),
        }
    }

    fn map_of(&self, e: &Expr) -> Done<usize> {
        match &e.kind {
            ExprKind::Map(map) => Ok(map.id.0 as usize),
            _ => self.refuse(e.span, "not a map"),
        }
    }

    fn exit(&mut self, args: &[Expr], e: &Expr) -> Done {
        if args.is_empty() {
            return self.exit_with(0, e);
        }
        self.record_of(What::Exit, args, vec![INT64], e)?;
        self.code.constant(r(0), 0);
        self.code.ja(self.end);
        Ok(())
    }

    fn exit_with(&mut self, code: i32, e: &Expr) -> Done {
        let number = self.up.record(What::Exit, vec![INT64], e.span);
        let place = self.frame.take(16);
        self.store(place, 8, Operand::Imm(number as i32));
        self.store(place.plus(8), 8, Operand::Imm(code));
        self.submit(place, 16);
        self.code.constant(r(0), 0);
        self.code.ja(self.end);
        Ok(())
    }

    fn print(&mut self, args: &[Expr], e: &Expr) -> Done {
        let a = self.first(args, e)?;
        if let ExprKind::Map(map) = &a.kind {
            let rest = &args[1..];
            let types = vec![INT64; rest.len()];
            return self.record_of(What::PrintMap(map.id.0 as usize), rest, types, e);
        }
        if let ExprKind::MapAt(map, key) = &a.kind
            && let Type::Agg(_) = self.up.checked.map(map.id).value
            && let Some(ty) = &self.up.checked.map(map.id).key
        {
            let what = What::PrintElement(map.id.0 as usize);
            return self.record_of(what, std::slice::from_ref(&**key), vec![ty.clone()], e);
        }
        self.record(What::Print, &args[..1], e)
    }

    /// A record of these values as their types are.
    fn record(&mut self, what: What, args: &[Expr], e: &Expr) -> Done {
        let types = args.iter().map(|a| numbered(self.ty(a))).collect();
        self.record_of(what, args, types, e)
    }

    fn record_of(&mut self, what: What, args: &[Expr], types: Vec<Type>, e: &Expr) -> Done {
        let (offsets, len) = self.up.checked.ctypes.layout(types.iter());
        let len = len as usize;
        if len > RECORD_MAX {
            return self.refuse(e.span, format!("{len} bytes of arguments are more than {RECORD_MAX}"));
        }
        let place = self.frame.take(8 + len);
        self.zero(place, 8 + len);
        for ((a, ty), at) in args.iter().zip(&types).zip(offsets) {
            self.into(a, place.plus(8 + at as usize), ty)?;
        }
        let number = self.up.record(what, types, e.span);
        self.store(place, 8, Operand::Imm(number as i32));
        self.submit(place, 8 + len);
        Ok(())
    }

    /// `join(array, separator)`: the first strings up to a null pointer.
    fn join(&mut self, args: &[Expr], e: &Expr) -> Done {
        let separator = match args.get(1).map(|a| &a.kind) {
            Some(ExprKind::Str(text)) => text.clone(),
            _ => b" ".to_vec(),
        };
        let size = self.up.checked.config.max_strlen.min(1024) as u32;
        let types = vec![Type::Str(size); JOIN_MAX];
        let (offsets, len) = self.up.checked.ctypes.layout(types.iter());
        let place = self.frame.take(8 + len as usize);
        self.zero(place, 8 + len as usize);
        let a = self.first(args, e)?;
        if self.is_scalar(self.ty(a)) {
            self.scalar(a)?;
        } else {
            let own = self.place(a)?;
            self.address(own, r(0));
        }
        let base = self.keep();
        let done = self.code.label();
        for (i, at) in offsets.iter().enumerate() {
            let item = self.frame.take(8);
            self.kept(base, r(0));
            self.code.alu_imm(bpf::Alu::Add, r(0), 8 * i as i64);
            self.read_user(item, 8);
            self.kept(item, r(0));
            self.code.jump(Cond::Eq, r(0), Operand::Imm(0), done);
            self.address(place.plus(8 + *at as usize), r(1));
            self.code.constant(r(2), i64::from(size));
            self.kept(item, r(3));
            self.text_from_r3(e);
        }
        self.code.bind(done);
        let number = self.up.record(What::Join(Rc::new(separator)), types, e.span);
        self.store(place, 8, Operand::Imm(number as i32));
        self.submit(place, 8 + len as usize);
        Ok(())
    }
}

const INT64: Type = Type::Int(Int::new(8, true));

/// An aggregation in a record is a number.
fn numbered(ty: &Type) -> Type {
    match ty {
        Type::Agg(agg @ (Agg::Hist { .. } | Agg::Lhist { .. } | Agg::Tseries { .. })) => Type::Agg(*agg),
        Type::Agg(agg) => Type::Int(Int::new(8, super::is_signed(*agg))),
        Type::Tuple(items) => Type::Tuple(items.iter().map(numbered).collect()),
        Type::Record(items) => {
            Type::Record(items.iter().map(|(name, ty)| (name.clone(), numbered(ty))).collect())
        }
        _ => ty.clone(),
    }
}
