//! Going through a tree.
//!
//! For:     passes that change or read every expression.
//! State:   the pass's own.
//! Context: control.
//! Keeps:   1. Every expression is met once, operands in the order in which they are evaluated.
//! Checked: the tests of visit.rs.

use crate::ast::{Block, Expr, ExprKind, Stmt, StmtKind, TypeArg, TypeExpr, TypeExprKind};

/// A pass over a tree. Each method goes on into the parts by default.
pub(crate) trait Visit {
    /// An expression.
    fn expr(&mut self, expr: &mut Expr) {
        self.parts(expr);
    }

    /// A block.
    fn block(&mut self, block: &mut Block) {
        self.block_parts(block);
    }

    /// A statement.
    fn stmt(&mut self, stmt: &mut Stmt) {
        self.stmt_parts(stmt);
    }

    /// A written type.
    fn type_expr(&mut self, ty: &mut TypeExpr) {
        match &mut ty.kind {
            TypeExprKind::Pointer(of) => self.type_expr(of),
            TypeExprKind::Array(of, len) => {
                self.type_expr(of);
                if let Some(len) = len {
                    self.expr(len);
                }
            }
            TypeExprKind::Typeof(arg) => self.type_arg(arg),
            TypeExprKind::Name(_) | TypeExprKind::Tagged(..) => {}
        }
    }

    /// The operand of `sizeof` and its like.
    fn type_arg(&mut self, arg: &mut TypeArg) {
        match arg {
            TypeArg::Type(ty) => self.type_expr(ty),
            TypeArg::Expr(e) => self.expr(e),
        }
    }

    /// The parts of a block.
    fn block_parts(&mut self, block: &mut Block) {
        for stmt in &mut block.stmts {
            self.stmt(stmt);
        }
        if let Some(value) = &mut block.value {
            self.expr(value);
        }
    }

    /// The parts of a statement: values before targets.
    fn stmt_parts(&mut self, stmt: &mut Stmt) {
        match &mut stmt.kind {
            StmtKind::Expr(e) | StmtKind::Discard(e) => self.expr(e),
            StmtKind::Let { var, ty, init } => {
                if let Some(init) = init {
                    self.expr(init);
                }
                if let Some(ty) = ty {
                    self.type_expr(ty);
                }
                self.expr(var);
            }
            StmtKind::Assign { target, value, .. } => {
                self.expr(value);
                self.expr(target);
            }
            StmtKind::While(cond, body) | StmtKind::Unroll(cond, body) => {
                self.expr(cond);
                self.block(body);
            }
            StmtKind::ForRange { var, from, to, body } => {
                self.expr(from);
                self.expr(to);
                self.expr(var);
                self.block(body);
            }
            StmtKind::ForMap { var, map, body } => {
                self.expr(map);
                self.expr(var);
                self.block(body);
            }
            StmtKind::Return(Some(e)) => self.expr(e),
            StmtKind::Return(None) | StmtKind::Break | StmtKind::Continue => {}
        }
    }

    /// The parts of an expression.
    fn parts(&mut self, expr: &mut Expr) {
        match &mut expr.kind {
            ExprKind::Int(_)
            | ExprKind::Bool(_)
            | ExprKind::Str(_)
            | ExprKind::Ident(_)
            | ExprKind::Positional(_)
            | ExprKind::PositionalCount
            | ExprKind::Var(_)
            | ExprKind::Map(_)
            | ExprKind::Arg(_) => {}
            ExprKind::MapAt(_, e)
            | ExprKind::Unary(_, e)
            | ExprKind::Step(_, e)
            | ExprKind::Field(e, _)
            | ExprKind::Paren(e)
            | ExprKind::Comptime(e) => self.expr(e),
            ExprKind::Call(call) => call.args.iter_mut().for_each(|a| self.expr(a)),
            ExprKind::Builtin(_, args) | ExprKind::Tuple(args) => args.iter_mut().for_each(|a| self.expr(a)),
            ExprKind::Binary(_, a, b) | ExprKind::Index(a, b) => {
                self.expr(a);
                self.expr(b);
            }
            ExprKind::Ternary(c, a, b) => {
                self.expr(c);
                if let Some(a) = a {
                    self.expr(a);
                }
                self.expr(b);
            }
            ExprKind::If(branch) => {
                self.expr(&mut branch.cond);
                self.block(&mut branch.then);
                if let Some(other) = &mut branch.other {
                    self.block(other);
                }
            }
            ExprKind::Block(block) => self.block(block),
            ExprKind::Cast(ty, e) => {
                self.type_expr(ty);
                self.expr(e);
            }
            ExprKind::Record(parts) => parts.iter_mut().for_each(|(_, e)| self.expr(e)),
            ExprKind::Sizeof(arg)
            | ExprKind::Typeof(arg)
            | ExprKind::Typeinfo(arg)
            | ExprKind::Offsetof(arg, _) => {
                self.type_arg(arg);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checked, Nowhere, Request, check};
    use std::collections::HashSet;

    /// The promises of `ast.rs` and `checked.rs`.
    struct Promises<'a> {
        program: &'a Checked,
        seen: HashSet<crate::ast::ExprId>,
        met: usize,
    }

    impl Visit for Promises<'_> {
        fn type_expr(&mut self, _: &mut TypeExpr) {
            // A written type has no type of its own.
        }

        fn expr(&mut self, expr: &mut Expr) {
            assert!(self.seen.insert(expr.id), "{expr:?}");
            assert!((expr.id.0 as usize) < self.program.types.len(), "{expr:?}");
            self.met += 1;
            match &expr.kind {
                ExprKind::Ident(word) => panic!("{word}"),
                ExprKind::Positional(_)
                | ExprKind::PositionalCount
                | ExprKind::Call(_)
                | ExprKind::Paren(_)
                | ExprKind::Comptime(_)
                | ExprKind::Sizeof(_)
                | ExprKind::Offsetof(..)
                | ExprKind::Typeinfo(_) => panic!("{expr:?}"),
                ExprKind::Var(var) => {
                    assert_eq!(self.program.ty(expr), &self.program.var(var.id).ty, "{expr:?}");
                }
                ExprKind::Map(map) | ExprKind::MapAt(map, _) => {
                    assert_eq!(self.program.map(map.id).name, map.name);
                }
                // Words like `perf` stay as they are.
                ExprKind::Builtin(_, args) if args.iter().any(|a| matches!(a.kind, ExprKind::Ident(_))) => {
                    return;
                }
                ExprKind::Int(_) | ExprKind::Str(_) | ExprKind::Binary(..) | ExprKind::Field(..) => {
                    assert_ne!(self.program.ty(expr), &crate::types::Type::None, "{expr:?}");
                }
                _ => {}
            }
            self.parts(expr);
        }
    }

    #[test]
    fn a_checked_tree_keeps_its_promises() {
        let mut accepted = 0;
        for script in include_str!("../tests/scripts.txt").split("---\n") {
            let mut request = Request::of(script);
            (request.safe, request.has_target) = (false, true);
            let Ok(program) = check(&request, &mut Nowhere) else { continue };
            accepted += 1;
            let mut promises = Promises { program: &program, seen: HashSet::new(), met: 0 };
            for mut probe in program.probes.clone() {
                if let Some(predicate) = &mut probe.predicate {
                    promises.expr(predicate);
                }
                promises.block(&mut probe.body);
            }
            assert!(promises.met > 0 || script.contains("{ }"), "{script}");
        }
        assert!(accepted > 15, "only {accepted} of the scripts are accepted");
    }
}
