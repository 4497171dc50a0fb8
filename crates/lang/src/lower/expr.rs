//! Expressions.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   a number ends in r0, extended as its type says; anything else at a place.
//! Checked: tests/scripts.rs.

use super::build::{Build, CONTEXT, Done, is_thread};
use super::code::{NOTED, r};
use super::frame::Place;
use super::memory::size_of;
use crate::arch::{ABOVE_STACK, ARGUMENTS, GO_ARGUMENTS, STACK_POINTER};
use crate::ast::{Block, Expr, ExprKind, FieldName, If, MapId, Step, UnOp};
use crate::program::{SCALAR_KEY, Trouble};
use crate::types::{Int, Type};
use bpf::helper::{self, FIRST_MAP};
use bpf::{Alu, Atomic, Cond, Op, Operand, Reg, Size, Wide, Width};

/// The key of an access.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    /// In r0.
    Word,
    /// At a place.
    At(Place),
}

impl Key {
    /// The helper that takes such a key.
    pub fn of(self, number: u32) -> u32 {
        match self {
            Key::At(_) => number,
            Key::Word => helper::by_word(number).unwrap_or(number),
        }
    }
}

impl Build<'_, '_> {
    /// A number: r0.
    pub fn scalar(&mut self, e: &Expr) -> Done {
        match &e.kind {
            ExprKind::Int(n) => self.code.constant(r(0), *n as i64),
            ExprKind::Bool(is) => self.code.constant(r(0), i64::from(*is)),
            ExprKind::Var(var) => {
                let (place, int) = (self.var(var.id), self.int(&self.up.checked.var(var.id).ty));
                self.load(place, int, r(0));
            }
            ExprKind::Map(map) => self.element(map.id, None, e)?,
            ExprKind::MapAt(map, key) => self.element(map.id, Some(key), e)?,
            ExprKind::Arg(n) if self.point.provider == crate::ast::Provider::Usdt => {
                self.mark_argument(*n, e)?
            }
            ExprKind::Arg(n) => self.argument(*n, e)?,
            ExprKind::Builtin(builtin, args) => self.call(*builtin, args, e)?,
            ExprKind::Unary(op, a) => self.unary(*op, a, e)?,
            ExprKind::Step(step, target) => self.step(*step, target, e)?,
            ExprKind::Binary(op, a, b) => self.binary(*op, a, b, e)?,
            ExprKind::Ternary(c, a, b) => self.ternary(c, a.as_deref(), b, e, None)?,
            ExprKind::If(branches) => self.branches(branches, None)?,
            ExprKind::Block(block) => self.value_block(block, None)?,
            ExprKind::Field(..) | ExprKind::Index(..) => self.part(e)?,
            ExprKind::Cast(_, a) => self.cast(a, e)?,
            _ => return self.refuse(e.span, "this can't be used as a number"),
        }
        Ok(())
    }

    /// 0 or not: r0.
    pub fn truth(&mut self, e: &Expr) -> Done {
        if self.is_scalar(self.ty(e)) {
            return self.scalar(e);
        }
        self.place(e)?;
        self.code.constant(r(0), 1);
        Ok(())
    }

    /// Where the value of an expression lies. It stays until the statement is over, and must not be written to.
    pub fn place(&mut self, e: &Expr) -> Done<Place> {
        match &e.kind {
            ExprKind::Var(var) => return Ok(self.var(var.id)),
            ExprKind::Str(text) => {
                let mut bytes = text.clone();
                bytes.resize(self.size(self.ty(e)).max(text.len() + 1), 0);
                return Ok(self.constant(&bytes));
            }
            ExprKind::Field(of, name) if !self.is_user(e) && !self.is_scalar(self.ty(e)) => {
                return Ok(self.field_place(of, name, e)?.0);
            }
            _ => {}
        }
        let ty = self.ty(e);
        let to = self.frame.take(self.size(ty));
        self.into(e, to, ty)?;
        Ok(to)
    }

    /// Where a variable lies.
    pub fn var(&mut self, id: crate::ast::VarId) -> Place {
        let size = self.size(&self.up.checked.var(id).ty);
        if let Some(place) = self.vars.get(&id) {
            return *place;
        }
        let place = self.frame.take(size);
        self.vars.insert(id, place);
        place
    }

    /// How a type that is a number lies in memory.
    pub fn int(&self, ty: &Type) -> Int {
        self.shape(ty).unwrap_or(Int::new(8, false))
    }

    /// Cuts and extends r0 to a type.
    pub fn narrow(&mut self, int: Int) {
        let size = size_of(int.size);
        match (size, int.signed) {
            (Size::Dw, _) => {}
            (size, true) => {
                self.code.op(Op::Movsx { width: Width::W64, from: size, dst: r(0), src: r(0) });
            }
            (Size::W, false) => {
                let src = Operand::Reg(r(0));
                self.code.op(Op::Alu { width: Width::W32, alu: Alu::Mov, dst: r(0), src });
            }
            (size, false) => self.code.alu(Alu::And, r(0), Operand::Imm((1 << size.bits()) - 1)),
        }
    }

    /// r1 = a map.
    pub fn map_to_r1(&mut self, map: MapId) {
        self.code.forget_noted(map);
        self.code.op(Op::Wide { dst: r(1), wide: Wide::MapIndex(FIRST_MAP + map.0 as i32) });
    }

    /// The key of an access: one of a word or half of one is in r0, another lies at a place.
    pub fn key(&mut self, map: MapId, key: Option<&Expr>) -> Done<Key> {
        let (key, ty) = match (key, &self.up.checked.map(map).key) {
            (Some(key), Some(ty)) => (key, ty),
            _ => {
                self.code.constant(r(0), 0);
                return Ok(Key::Word);
            }
        };
        if self.shape(ty).is_none_or(|int| int.size < 4) {
            return self.key_at(map, Some(key)).map(Key::At);
        }
        self.scalar(key)?;
        self.adapt(self.ty(key), ty);
        Ok(Key::Word)
    }

    /// Where the key of an access lies, converted to the map's key.
    pub fn key_at(&mut self, map: MapId, key: Option<&Expr>) -> Done<Place> {
        let declared = self.up.checked.map(map);
        match (key, &declared.key) {
            (Some(key), Some(ty)) => {
                let to = self.frame.take(self.size(ty));
                self.into(key, to, ty)?;
                Ok(to)
            }
            _ => Ok(self.constant(&SCALAR_KEY)),
        }
    }

    /// r1, r2 = a map and a key.
    pub fn map_and_key(&mut self, map: MapId, key: Key) {
        if matches!(key, Key::Word) {
            self.code.mov(r(2), r(0));
        }
        self.map_to_r1(map);
        if let Key::At(place) = key {
            self.address(place, r(2));
        }
    }

    /// r0 = the number that a map has for a key; 0 without one.
    fn element(&mut self, map: MapId, key: Option<&Expr>, e: &Expr) -> Done {
        let is_of_thread = key.is_some_and(is_thread) && self.keeps_thread && !self.up.options.says_failures;
        if is_of_thread && self.code.knows_noted(map) {
            self.code.mov(r(0), NOTED);
            return Ok(());
        }
        let ty = &self.up.checked.map(map).value;
        if matches!(ty, Type::Agg(_)) {
            let key = Key::At(self.key_at(map, key)?);
            self.map_and_key(map, key);
            self.code.call(helper::AGGREGATED);
            return Ok(());
        }
        let key = self.key(map, key)?;
        self.map_and_key(map, key);
        let int = self.int(ty);
        let none = self.code.label();
        self.code.call(key.of(helper::MAP_LOOKUP));
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), none);
        self.code.load(size_of(int.size), int.signed, r(0), r(0), 0);
        self.missing(none, e);
        if is_of_thread {
            self.code.keep_noted(map);
        }
        Ok(())
    }

    /// Copies what a map has for a key; zeros without one.
    pub fn element_into(&mut self, map: MapId, key: Option<&Expr>, to: Place, len: usize, e: &Expr) -> Done {
        let key = self.key(map, key)?;
        self.map_and_key(map, key);
        let none = self.code.label();
        self.code.call(key.of(helper::MAP_LOOKUP));
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), none);
        self.code.mov(r(3), r(0));
        self.copy_from_r3(to, len);
        let done = self.code.label();
        self.code.ja(done);
        self.missing(none, e);
        self.zero(to, len);
        self.code.bind(done);
        Ok(())
    }

    /// What is done at `none`, where r0 is 0 after a lookup; with `-k` it is told. r0 stays 0.
    fn missing(&mut self, none: super::code::Label, e: &Expr) {
        if self.up.options.says_failures {
            let done = self.code.label();
            self.code.jump(Cond::Ne, r(0), Operand::Imm(0), done);
            self.code.bind(none);
            self.trouble(Trouble::Lookup, e.span);
            self.code.constant(r(0), 0);
            self.code.bind(done);
        } else {
            self.code.bind(none);
        }
    }

    /// r0 = an argument of the probed function.
    fn argument(&mut self, n: u32, e: &Expr) -> Done {
        let registers: &[i16] = if self.group.is_go { &GO_ARGUMENTS } else { &ARGUMENTS };
        if let Some(at) = registers.get(n as usize) {
            self.code.load(Size::Dw, false, r(0), CONTEXT, *at);
            return Ok(());
        }
        if self.group.is_go {
            return self.refuse(e.span, format!("arg{n}: Go does not pass it in a register"));
        }
        let behind = 8 * (i64::from(n) - ARGUMENTS.len() as i64 + ABOVE_STACK);
        self.code.load(Size::Dw, false, r(0), CONTEXT, STACK_POINTER);
        self.code.alu_imm(Alu::Add, r(0), behind);
        let to = self.frame.take(8);
        self.read_user(to, 8);
        self.load(to, Int::new(8, false), r(0));
        Ok(())
    }

    fn unary(&mut self, op: UnOp, a: &Expr, e: &Expr) -> Done {
        match op {
            UnOp::Deref => return self.part(e),
            UnOp::AddrOf => return self.address_of(a),
            UnOp::Not => {
                self.truth(a)?;
                return self.set_if(Cond::Eq, Operand::Imm(0));
            }
            UnOp::Neg => {
                self.scalar(a)?;
                self.code.op(Op::Neg { width: Width::W64, dst: r(0) });
            }
            UnOp::BitNot => {
                self.scalar(a)?;
                self.code.alu(Alu::Xor, r(0), Operand::Imm(-1));
            }
        }
        self.narrow(self.int(self.ty(e)));
        Ok(())
    }

    /// r0 = whether r0 compares so.
    pub fn set_if(&mut self, cond: Cond, with: Operand) -> Done {
        let (yes, done) = (self.code.label(), self.code.label());
        self.code.jump(cond, r(0), with, yes);
        self.code.constant(r(0), 0);
        self.code.ja(done);
        self.code.bind(yes);
        self.code.constant(r(0), 1);
        self.code.bind(done);
        Ok(())
    }

    fn address_of(&mut self, a: &Expr) -> Done {
        match &a.kind {
            ExprKind::Map(map) => self.init(map.id, None, a),
            ExprKind::MapAt(map, key) => self.init(map.id, Some(key), a),
            _ if self.is_user(a) => self.user_address(a),
            _ => {
                // A number has a place only as a variable.
                let place = match &a.kind {
                    ExprKind::Var(var) => self.var(var.id),
                    _ => {
                        let ty = self.ty(a);
                        let to = self.frame.take(self.size(ty));
                        self.into(a, to, ty)?;
                        to
                    }
                };
                self.address(place, r(0));
                Ok(())
            }
        }
    }

    /// r0 = the address of a map's value, which is made if it is not there; 0 if the map is full, which is told.
    pub fn init(&mut self, map: MapId, key: Option<&Expr>, e: &Expr) -> Done {
        self.up.not_own.insert(map);
        let key = self.key(map, key)?;
        self.map_and_key(map, key);
        self.code.call(key.of(helper::LOOKUP_OR_INIT));
        let done = self.code.label();
        self.code.jump(Cond::Ne, r(0), Operand::Imm(0), done);
        self.trouble(Trouble::MapFull, e.span);
        self.code.constant(r(0), 0);
        self.code.bind(done);
        Ok(())
    }

    /// `++` and `--`.
    fn step(&mut self, step: Step, target: &Expr, e: &Expr) -> Done {
        let ty = self.ty(target);
        let by = match ty {
            Type::Pointer(to) => self.size(to).max(1) as i32,
            _ => 1,
        };
        let (is_before, by) = match step {
            Step::PreInc => (true, by),
            Step::PreDec => (true, -by),
            Step::PostInc => (false, by),
            Step::PostDec => (false, -by),
        };
        let int = self.int(ty);
        match &target.kind {
            ExprKind::Var(var) => {
                let place = self.var(var.id);
                self.load(place, int, r(0));
                let old = if is_before { None } else { Some(self.keep()) };
                self.code.alu(Alu::Add, r(0), Operand::Imm(by));
                self.store_r0(place, int.size);
                match old {
                    Some(old) => self.kept(old, r(0)),
                    None => self.narrow(int),
                }
            }
            ExprKind::Map(map) => self.step_map(map.id, None, e, (is_before, by), int)?,
            ExprKind::MapAt(map, key) => self.step_map(map.id, Some(key), e, (is_before, by), int)?,
            _ => return self.refuse(target.span, "only variables and maps can be stepped"),
        }
        Ok(())
    }

    fn step_map(&mut self, map: MapId, key: Option<&Expr>, e: &Expr, by: (bool, i32), int: Int) -> Done {
        self.init(map, key, e)?;
        let none = self.code.label();
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), none);
        self.code.mov(r(2), r(0));
        self.code.constant(r(1), i64::from(by.1));
        self.atomic(Atomic::Add { fetch: true }, int);
        self.code.mov(r(0), r(1));
        if by.0 {
            self.code.alu(Alu::Add, r(0), Operand::Imm(by.1));
        }
        self.narrow(int);
        self.code.bind(none);
        Ok(())
    }

    /// An atomic step on a map's number at r2 with r1.
    pub fn atomic(&mut self, atomic: Atomic, int: Int) {
        let size = if int.size == 4 { Size::W } else { Size::Dw };
        self.code.op(Op::Atomic { size, atomic, dst: r(2), offset: 0, src: r(1) });
    }

    /// A choice; the value goes to r0 or to a place.
    pub fn ternary(
        &mut self,
        cond: &Expr,
        then: Option<&Expr>,
        other: &Expr,
        e: &Expr,
        to: Option<(Place, &Type)>,
    ) -> Done {
        let (no, done) = (self.code.label(), self.code.label());
        self.truth(cond)?;
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), no);
        match then {
            Some(then) => self.value(then, self.ty(e), to)?,
            // The condition is the value.
            None if to.is_some() => self.value(cond, self.ty(e), to)?,
            None => self.adapt(self.ty(cond), self.ty(e)),
        }
        self.code.ja(done);
        self.code.bind(no);
        self.value(other, self.ty(e), to)?;
        self.code.bind(done);
        Ok(())
    }

    /// A value to r0, converted to `ty`, or to a place.
    fn value(&mut self, e: &Expr, ty: &Type, to: Option<(Place, &Type)>) -> Done {
        match to {
            Some((to, ty)) => self.into(e, to, ty),
            None if matches!(self.ty(e), Type::None) => self.effect(e),
            None => {
                self.scalar(e)?;
                self.adapt(self.ty(e), ty);
                Ok(())
            }
        }
    }

    /// `if`, as a statement or a value.
    pub fn branches(&mut self, branches: &If, to: Option<(Place, &Type)>) -> Done {
        let (no, done) = (self.code.label(), self.code.label());
        self.truth(&branches.cond)?;
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), no);
        self.value_block(&branches.then, to)?;
        self.code.ja(done);
        self.code.bind(no);
        if let Some(other) = &branches.other {
            self.value_block(other, to)?;
        }
        self.code.bind(done);
        Ok(())
    }

    /// A block whose last expression is its value.
    pub fn value_block(&mut self, block: &Block, to: Option<(Place, &Type)>) -> Done {
        self.statements(&block.stmts)?;
        match &block.value {
            Some(value) => self.value(value, self.ty(value), to),
            None => Ok(()),
        }
    }

    /// The place of a field of a value that is not behind a pointer, and its bits. Of `args` only what is asked is read.
    pub fn field_place(&mut self, of: &Expr, name: &FieldName, e: &Expr) -> Done<(Place, Option<(u8, u8)>)> {
        if matches!(of.kind, ExprKind::Builtin(crate::Builtin::Args, _)) {
            return Ok((self.argument_field(&name.name.text, e)?, None));
        }
        let Some((at, bits)) = self.field(self.ty(of), &name.name.text) else {
            return self.refuse(e.span, format!("no field {}", name.name.text));
        };
        Ok((self.place(of)?.plus(at), bits))
    }

    /// Offset and bits of a field.
    pub fn field(&self, ty: &Type, name: &str) -> Option<(usize, Option<(u8, u8)>)> {
        let ctypes = &self.up.checked.ctypes;
        match ty {
            Type::Pointer(to) => self.field(to, name),
            Type::Struct(id) => {
                let field = ctypes.get(*id).fields.iter().find(|f| f.name == name)?;
                Some((field.offset as usize, field.bits))
            }
            Type::Tuple(items) => {
                let (offsets, _) = ctypes.layout(items.iter());
                Some((*offsets.get(name.parse::<usize>().ok()?)? as usize, None))
            }
            Type::Record(items) => {
                let (offsets, _) = ctypes.layout(items.iter().map(|(_, ty)| ty));
                let at = items.iter().position(|(n, _)| n == name)?;
                Some((offsets[at] as usize, None))
            }
            _ => None,
        }
    }

    /// Whether an expression is memory behind a pointer.
    pub fn is_user(&self, e: &Expr) -> bool {
        match &e.kind {
            ExprKind::Unary(UnOp::Deref, _) => true,
            ExprKind::Field(of, _) | ExprKind::Index(of, _) => {
                matches!(self.ty(of), Type::Pointer(_)) || self.is_user(of)
            }
            _ => false,
        }
    }

    /// r0 = the address of memory behind a pointer.
    pub fn user_address(&mut self, e: &Expr) -> Done {
        let base = |build: &mut Self, of: &Expr| match build.ty(of) {
            Type::Pointer(_) => build.scalar(of),
            _ => build.user_address(of),
        };
        match &e.kind {
            ExprKind::Unary(UnOp::Deref, a) => self.scalar(a),
            ExprKind::Field(of, name) => {
                base(self, of)?;
                let Some((at, _)) = self.field(self.ty(of), &name.name.text) else {
                    return self.refuse(e.span, format!("no field {}", name.name.text));
                };
                self.code.alu_imm(Alu::Add, r(0), at as i64);
                Ok(())
            }
            ExprKind::Index(of, index) => {
                base(self, of)?;
                let kept = self.keep();
                self.scalar(index)?;
                if let Type::Array(_, count) = self.ty(of) {
                    self.check_bounds(*count as usize, index, e);
                }
                self.code.alu_imm(Alu::Mul, r(0), self.size(self.ty(e)).max(1) as i64);
                self.kept(kept, r(1));
                self.code.alu(Alu::Add, r(0), Operand::Reg(r(1)));
                Ok(())
            }
            _ => self.refuse(e.span, "this has no address"),
        }
    }

    /// Tells if r0, an index, is beyond the end of an array; the address behind it is read all the same.
    fn check_bounds(&mut self, count: usize, index: &Expr, e: &Expr) {
        if matches!(index.kind, ExprKind::Int(_)) || count == 0 {
            return;
        }
        let fine = self.code.label();
        self.code.jump(Cond::Lt, r(0), Operand::Imm(count.min(1 << 30) as i32), fine);
        let kept = self.keep();
        self.trouble(Trouble::Bounds, e.span);
        self.kept(kept, r(0));
        self.code.bind(fine);
    }

    /// Reads memory at r0 of the target; zeros if that fails.
    pub fn read_user(&mut self, to: Place, len: usize) {
        self.code.mov(r(3), r(0));
        self.address(to, r(1));
        self.code.constant(r(2), len as i64);
        self.code.call(helper::PROBE_READ_USER);
    }

    /// The same; a failure is told with `-k`.
    pub fn read_user_at(&mut self, to: Place, len: usize, e: &Expr) {
        self.read_user(to, len);
        if self.up.options.says_failures {
            let fine = self.code.label();
            self.code.jump(Cond::Sge, r(0), Operand::Imm(0), fine);
            self.trouble(Trouble::Read { helper: "probe_read_user" }, e.span);
            self.code.bind(fine);
        }
    }

    /// r0 = `*p`, `a.b`, `a[i]`.
    fn part(&mut self, e: &Expr) -> Done {
        let (ty, int) = (self.ty(e), self.int(self.ty(e)));
        let bits = match &e.kind {
            ExprKind::Field(of, name) => self.field(self.ty(of), &name.name.text).and_then(|(_, bits)| bits),
            _ => None,
        };
        let len = bits.map_or(self.size(ty), |(first, count)| usize::from(first + count).div_ceil(8));
        let place = if self.is_user(e) {
            self.user_address(e)?;
            let to = self.frame.take(8);
            if len < 8 && bits.is_some() {
                let kept = self.keep();
                self.zero(to, 8);
                self.kept(kept, r(0));
            }
            self.read_user_at(to, len, e);
            to
        } else {
            match &e.kind {
                ExprKind::Field(of, name) => {
                    let (of, _) = self.field_place(of, name, e)?;
                    if bits.is_none() {
                        self.load(of, int, r(0));
                        return Ok(());
                    }
                    let to = self.frame.take(8);
                    self.zero(to, 8);
                    self.copy(of, to, len);
                    to
                }
                ExprKind::Index(of, index) => {
                    let out = self.code.label();
                    self.own_item(of, index, e, out)?;
                    self.code.load(size_of(int.size), int.signed, r(0), r(3), 0);
                    self.code.bind(out);
                    return Ok(());
                }
                _ => return self.refuse(e.span, "this has no parts"),
            }
        };
        match bits {
            None => self.load(place, int, r(0)),
            Some((first, count)) => {
                self.load(place, Int::new(8, false), r(0));
                let above = 64 - i32::from(first) - i32::from(count);
                self.code.alu(Alu::Lsh, r(0), Operand::Imm(above.max(0)));
                let shift = if int.signed { Alu::Arsh } else { Alu::Rsh };
                self.code.alu(shift, r(0), Operand::Imm(64 - i32::from(count)));
            }
        }
        Ok(())
    }

    /// r3 = the address of an item of an array or a string of ours; r0 is 0 at `out`, if there is no such item.
    pub fn own_item(&mut self, of: &Expr, index: &Expr, e: &Expr, out: super::code::Label) -> Done {
        let (count, size) = match self.ty(of) {
            Type::Array(item, count) => (*count as usize, self.size(item)),
            Type::Str(size) => (*size as usize, 1),
            Type::Tuple(_) => {
                let ExprKind::Int(n) = index.kind else {
                    return self.refuse(index.span, "a tuple's index has to be a constant");
                };
                let Some((at, _)) = self.field(self.ty(of), &n.to_string()) else {
                    return self.refuse(index.span, "no such field");
                };
                let place = self.place(of)?.plus(at);
                self.address(place, r(3));
                return Ok(());
            }
            _ => return self.refuse(e.span, "this has no items"),
        };
        let place = self.place(of)?;
        self.scalar(index)?;
        let within = self.code.label();
        self.code.jump(Cond::Lt, r(0), Operand::Imm(count.min(1 << 30) as i32), within);
        self.trouble(Trouble::Bounds, e.span);
        self.code.constant(r(0), 0);
        self.code.ja(out);
        self.code.bind(within);
        self.code.alu_imm(Alu::Mul, r(0), size as i64);
        self.address(place, r(3));
        self.code.alu(Alu::Add, r(3), Operand::Reg(r(0)));
        Ok(())
    }

    /// r0 = a register of the probed thread by its offset in the context.
    pub fn register(&mut self, at: i16) {
        self.code.load(Size::Dw, false, r(0), CONTEXT, at);
    }

    /// Moves the context.
    pub fn context(&mut self, dst: Reg) {
        self.code.mov(dst, CONTEXT);
    }
}
