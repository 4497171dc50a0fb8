//! Statements.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   memory that a statement took for its values is free after it.
//! Checked: tests/scripts.rs.

use super::build::{Build, Done};
use super::code::r;
use super::expr::Key;
use super::frame::Place;
use crate::ast::{BinOp, Block, Expr, ExprKind, MapId, Stmt, StmtKind};
use crate::program::Trouble;
use crate::types::{Int, Type};
use bpf::helper;
use bpf::{Alu, Atomic, Cond, Op, Operand, Width};

/// A body is repeated at most so often.
const UNROLL_MAX: i128 = 10_000;
/// A program that grows beyond this is refused at once.
const ITEMS_MAX: usize = 4_000_000;

impl Build<'_, '_> {
    /// A block for its effect.
    pub fn block(&mut self, block: &Block) -> Done {
        self.statements(&block.stmts)?;
        match &block.value {
            Some(value) => self.scoped(|build| build.effect(value)),
            None => Ok(()),
        }
    }

    /// Statements in order.
    pub fn statements(&mut self, stmts: &[Stmt]) -> Done {
        for stmt in stmts {
            if self.code.len() > ITEMS_MAX {
                return self.refuse(stmt.span, "the program of this probe is too large");
            }
            self.scoped(|build| build.statement(stmt))?;
        }
        Ok(())
    }

    fn scoped(&mut self, done: impl FnOnce(&mut Self) -> Done) -> Done {
        let mark = self.frame.mark();
        let result = done(self);
        self.frame.release(mark);
        result
    }

    /// An expression whose value nobody wants.
    pub fn effect(&mut self, e: &Expr) -> Done {
        match &e.kind {
            ExprKind::Builtin(builtin, args) if matches!(self.ty(e), Type::None) => {
                self.call(*builtin, args, e)
            }
            ExprKind::Builtin(crate::Builtin::Delete, args) => self.delete(args, e, true),
            ExprKind::If(branches) if !self.is_scalar_value(e) => self.branches(branches, None),
            ExprKind::Block(block) => self.block(block),
            ExprKind::Ternary(c, a, b) if matches!(self.ty(e), Type::None) => {
                self.ternary(c, a.as_deref(), b, e, None)
            }
            _ if self.is_scalar(self.ty(e)) => self.scalar(e),
            _ => self.place(e).map(|_| ()),
        }
    }

    fn is_scalar_value(&self, e: &Expr) -> bool {
        !matches!(self.ty(e), Type::None) && self.is_scalar(self.ty(e))
    }

    fn statement(&mut self, stmt: &Stmt) -> Done {
        match &stmt.kind {
            StmtKind::Expr(e) => self.effect(e),
            StmtKind::Discard(e) => match &e.kind {
                ExprKind::Builtin(crate::Builtin::Delete, args) => self.delete(args, e, false),
                _ => self.effect(e),
            },
            StmtKind::Let { var, init, .. } => self.declare(var, init.as_ref()),
            StmtKind::Assign { target, op, value } => self.assign(target, *op, value, stmt),
            StmtKind::While(cond, body) => self.while_loop(cond, body),
            StmtKind::Unroll(count, body) => self.unroll(count, body),
            StmtKind::ForRange { var, from, to, body } => self.range(var, from, to, body),
            StmtKind::ForMap { var, map, body } => self.over_map(var, map, body),
            StmtKind::Break => self.leave(true, stmt),
            StmtKind::Continue => self.leave(false, stmt),
            StmtKind::Return(value) => {
                match value {
                    Some(value) => self.truth(value)?,
                    None => self.code.constant(r(0), 0),
                }
                self.code.ja(self.end);
                Ok(())
            }
        }
    }

    fn leave(&mut self, is_break: bool, stmt: &Stmt) -> Done {
        let Some((out, next)) = self.loops.last().copied() else {
            return self.refuse(stmt.span, "not in a loop");
        };
        self.code.ja(if is_break { out } else { next });
        Ok(())
    }

    fn declare(&mut self, var: &Expr, init: Option<&Expr>) -> Done {
        let ExprKind::Var(var) = &var.kind else { return self.refuse(var.span, "not a variable") };
        let (place, ty) = (self.var(var.id), &self.up.checked.var(var.id).ty);
        match init {
            Some(init) => self.assign_var(place, ty, init),
            None => {
                self.zero(place, self.size(ty));
                Ok(())
            }
        }
    }

    /// The value may use the variable that it goes into.
    fn assign_var(&mut self, place: Place, ty: &Type, value: &Expr) -> Done {
        let is_direct = self.is_scalar(ty)
            || matches!(value.kind, ExprKind::Str(_) | ExprKind::Var(_) | ExprKind::Map(_));
        if is_direct {
            return self.into(value, place, ty);
        }
        let len = self.size(ty);
        let new = self.frame.take(len);
        self.into(value, new, ty)?;
        self.copy(new, place, len);
        Ok(())
    }

    fn assign(&mut self, target: &Expr, op: Option<BinOp>, value: &Expr, stmt: &Stmt) -> Done {
        match &target.kind {
            ExprKind::Var(var) => {
                let (place, ty) = (self.var(var.id), &self.up.checked.var(var.id).ty);
                let Some(op) = op else { return self.assign_var(place, ty, value) };
                self.scalar(value)?;
                self.code.mov(r(1), r(0));
                let int = self.int(ty);
                self.load(place, int, r(0));
                let src = self.scaled(op, ty, self.ty(value), Operand::Reg(r(1)));
                self.arithmetic(op, src, ty, ty, stmt.span);
                self.store_r0(place, int.size);
                Ok(())
            }
            ExprKind::Map(map) => self.assign_map(map.id, None, op, value, target),
            ExprKind::MapAt(map, key) => self.assign_map(map.id, Some(key), op, value, target),
            _ => self.refuse(target.span, "this can't be assigned to"),
        }
    }

    fn assign_map(
        &mut self,
        map: MapId,
        key: Option<&Expr>,
        op: Option<BinOp>,
        value: &Expr,
        target: &Expr,
    ) -> Done {
        let ty = &self.up.checked.map(map).value;
        if let Type::Agg(agg) = ty {
            return self.aggregate(map, key, *agg, value, target);
        }
        if let Some(op) = op {
            return self.compound(map, key, op, value, target);
        }
        let len = super::cell(self.size(ty));
        let place = self.frame.take(len);
        self.into(value, place, ty)?;
        if let Some(int) = self.shape(ty)
            && int.size < 4
        {
            self.load(place, int, r(0));
            self.store_r0(place, 8);
        }
        self.may_change(map, key);
        let key = match self.shape(ty) {
            Some(_) => self.key(map, key)?,
            None => Key::At(self.key_at(map, key)?),
        };
        self.map_and_key(map, key);
        match key {
            Key::Word => self.load(place, Int::new(len as u8, false), r(3)),
            Key::At(_) => self.address(place, r(3)),
        }
        self.code.constant(r(4), 0);
        self.code.call(key.of(helper::MAP_UPDATE));
        self.told_if_full(target);
        Ok(())
    }

    /// A key of a map is set or removed here.
    pub fn may_change(&mut self, map: MapId, key: Option<&Expr>) {
        use crate::ast::Provider as P;
        let is_at_hits = matches!(self.point.provider, P::Uprobe | P::Uretprobe | P::Usdt);
        if !is_at_hits || !key.is_some_and(super::build::is_thread) {
            self.up.not_own.insert(map);
        }
    }

    /// A record if r0 says that a map took no further key.
    pub fn told_if_full(&mut self, e: &Expr) {
        let fine = self.code.label();
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), fine);
        self.trouble(Trouble::MapFull, e.span);
        self.code.bind(fine);
    }

    /// `@x += a`: one atomic instruction where there is one, so that no update is lost.
    fn compound(&mut self, map: MapId, key: Option<&Expr>, op: BinOp, value: &Expr, target: &Expr) -> Done {
        let ty = &self.up.checked.map(map).value;
        let int = self.int(ty);
        self.scalar(value)?;
        self.code.mov(r(1), r(0));
        let by = self.scaled(op, ty, self.ty(value), Operand::Reg(r(1)));
        if by != Operand::Reg(r(1)) {
            return self.refuse(value.span, "not a number");
        }
        self.code.mov(r(0), r(1));
        let by = self.keep();
        self.init(map, key, target)?;
        let none = self.code.label();
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), none);
        self.code.mov(r(2), r(0));
        self.kept(by, r(1));
        let atomic = match op {
            BinOp::Add | BinOp::Sub => Some(Atomic::Add { fetch: false }),
            BinOp::Or => Some(Atomic::Or { fetch: false }),
            BinOp::And => Some(Atomic::And { fetch: false }),
            BinOp::Xor => Some(Atomic::Xor { fetch: false }),
            _ => None,
        };
        match atomic {
            Some(atomic) => {
                if op == BinOp::Sub {
                    self.code.op(Op::Neg { width: Width::W64, dst: r(1) });
                }
                self.atomic(atomic, int);
            }
            None => {
                let wide = if int.size == 4 { 4 } else { 8 };
                self.code.mov(r(0), r(2));
                let at = self.keep();
                self.code.load(super::memory::size_of(int.size), int.signed, r(0), r(2), 0);
                self.arithmetic(op, Operand::Reg(r(1)), ty, ty, target.span);
                self.kept(at, r(2));
                self.code.store(super::memory::size_of(wide), r(2), 0, Operand::Reg(r(0)));
            }
        }
        self.code.bind(none);
        Ok(())
    }

    fn while_loop(&mut self, cond: &Expr, body: &Block) -> Done {
        let (again, out) = (self.code.label(), self.code.label());
        self.code.bind(again);
        self.scoped(|build| build.truth(cond))?;
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), out);
        self.body(body, out, again)?;
        self.code.ja(again);
        self.code.bind(out);
        Ok(())
    }

    fn body(&mut self, body: &Block, out: super::code::Label, next: super::code::Label) -> Done {
        self.loops.push((out, next));
        let done = self.block(body);
        self.loops.pop();
        done
    }

    fn unroll(&mut self, count: &Expr, body: &Block) -> Done {
        let ExprKind::Int(count @ 1..=UNROLL_MAX) = count.kind else {
            return self.refuse(count.span, format!("unroll takes a constant from 1 to {UNROLL_MAX}"));
        };
        let out = self.code.label();
        for _ in 0..count {
            let next = self.code.label();
            self.body(body, out, next)?;
            self.code.bind(next);
            if self.code.len() > ITEMS_MAX {
                return self.refuse(body.span, "the program of this probe is too large");
            }
        }
        self.code.bind(out);
        Ok(())
    }

    fn range(&mut self, var: &Expr, from: &Expr, to: &Expr, body: &Block) -> Done {
        let ExprKind::Var(name) = &var.kind else { return self.refuse(var.span, "not a variable") };
        let ty = &self.up.checked.var(name.id).ty;
        self.scalar(from)?;
        let at = self.keep();
        self.scalar(to)?;
        let end = self.keep();
        let place = self.var(name.id);
        let int = self.int(ty);
        let (again, next, out) = (self.code.label(), self.code.label(), self.code.label());
        self.code.bind(again);
        self.kept(at, r(0));
        self.kept(end, r(1));
        self.code.jump(Cond::Sge, r(0), Operand::Reg(r(1)), out);
        self.store_r0(place, int.size);
        self.body(body, out, next)?;
        self.code.bind(next);
        self.kept(at, r(0));
        self.code.alu(Alu::Add, r(0), Operand::Imm(1));
        self.store_r0(at, 8);
        self.code.ja(again);
        self.code.bind(out);
        Ok(())
    }

    /// Over the elements that are there; what is deleted meanwhile is not met any more.
    fn over_map(&mut self, var: &Expr, map: &Expr, body: &Block) -> Done {
        let (ExprKind::Var(var), ExprKind::Map(map)) = (&var.kind, &map.kind) else {
            return self.refuse(map.span, "not a map");
        };
        let checked = self.up.checked;
        let declared = checked.map(map.id);
        let pair = &checked.var(var.id).ty;
        let (Type::Tuple(parts), Some(key)) = (pair, &declared.key) else {
            return Ok(());
        };
        let (offsets, _) = checked.ctypes.layout(parts.iter());
        let cursor = self.frame.take(8);
        let key_at = self.frame.take(self.size(key));
        let value_at = self.frame.take(super::cell(self.size(&declared.value)));
        let place = self.var(var.id);
        let (again, out) = (self.code.label(), self.code.label());
        self.store(cursor, 8, Operand::Imm(0));
        self.code.bind(again);
        self.map_to_r1(map.id);
        self.address(cursor, r(2));
        self.address(key_at, r(3));
        self.address(value_at, r(4));
        self.code.call(helper::MAP_NEXT);
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), out);
        let e = &Expr { id: crate::ast::ExprId(u32::MAX), span: declared.span, kind: ExprKind::Bool(true) };
        self.zero(place, self.size(pair));
        self.scoped(|build| {
            build.convert(key_at, key, place.plus(offsets[0] as usize), &parts[0], e)?;
            build.convert(value_at, &declared.value, place.plus(offsets[1] as usize), &parts[1], e)
        })?;
        self.body(body, out, again)?;
        self.code.ja(again);
        self.code.bind(out);
        Ok(())
    }
}
