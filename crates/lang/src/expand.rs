//! Names resolved and macros expanded.
//!
//! For:     the checker.
//! State:   the macros, what a body's names stand for, how much was made.
//! Context: control.
//! Keeps:   1. A macro's own variables are renamed: they meet none of the caller's.
//!          2. At most [`NODES_MAX`] expressions are made, in trees of at most [`HEIGHT_MAX`].
//! Checked: tests/language.rs, tests/limits.rs, `torture lang`.

mod call;
mod names;

use crate::ast::{
    Block, Expr, ExprId, ExprKind, FieldName, If, Macro, MapRef, Stmt, StmtKind, TypeArg, TypeExpr,
    TypeExprKind, VarRef,
};
use crate::cdecl::Names;
use crate::diagnostic::Diagnostic;
use crate::source::Span;
use crate::types::EnumId;
use std::collections::HashMap;

/// How many expressions a program may have after expansion.
const NODES_MAX: u32 = 400_000;
/// How high a tree may be after expansion.
const HEIGHT_MAX: u32 = 400;

type Expanded<T> = Result<T, Box<Diagnostic>>;

/// What a macro's parameter stands for.
#[derive(Clone)]
enum Bound {
    Var(String),
    Map(String),
    Expr(Expr),
    Type(TypeArg),
}

/// The macro whose body is expanded.
#[derive(Default)]
struct Frame {
    params: HashMap<String, Bound>,
    /// Appended to the names of the body's own variables; 0 outside of macros.
    rename: u32,
    chain: Vec<String>,
    calls: Vec<Span>,
}

/// Where the text of a `#define` is read again.
pub(crate) struct Texts<'a> {
    pub params: &'a [String],
    pub names: &'a Names,
}

/// The pass.
pub(crate) struct Expander<'a> {
    texts: Texts<'a>,
    macros: HashMap<String, Vec<Macro>>,
    pub ids: u32,
    /// Enumerators keep their enum.
    pub enums: HashMap<ExprId, EnumId>,
    renames: u32,
    made: u32,
    height: u32,
}

impl<'a> Expander<'a> {
    pub fn new(texts: Texts<'a>, macros: Vec<Macro>, ids: u32) -> Expanded<Expander<'a>> {
        let mut by_name: HashMap<String, Vec<Macro>> = HashMap::new();
        for new in macros {
            let all = by_name.entry(new.name.text.clone()).or_default();
            let signature = |m: &Macro| m.params.iter().map(|p| p.kind).collect::<Vec<_>>();
            if all.iter().any(|m| signature(m) == signature(&new)) {
                let message = format!("Redefinition of macro: {}", new.name.text);
                return Err(Box::new(Diagnostic::error(new.name.span, message)));
            }
            all.push(new);
        }
        Ok(Expander { texts, macros: by_name, ids, enums: HashMap::new(), renames: 0, made: 0, height: 0 })
    }

    /// A block of a probe.
    pub fn probe_block(&mut self, block: &Block) -> Expanded<Block> {
        self.block(block, &Frame::default())
    }

    /// A predicate.
    pub fn top_expr(&mut self, expr: &Expr) -> Expanded<Expr> {
        self.expr(expr, &Frame::default())
    }

    fn error<T>(&self, span: Span, frame: &Frame, message: impl Into<String>) -> Expanded<T> {
        let mut diagnostic = Diagnostic::error(span, message);
        diagnostic.calls = frame.calls.clone();
        Err(Box::new(diagnostic))
    }

    fn make(&mut self, span: Span, kind: ExprKind) -> Expr {
        let id = ExprId(self.ids);
        self.ids += 1;
        Expr { id, span, kind }
    }

    fn deeper<T>(
        &mut self,
        span: Span,
        frame: &Frame,
        step: impl FnOnce(&mut Self) -> Expanded<T>,
    ) -> Expanded<T> {
        self.made += 1;
        if self.made > NODES_MAX {
            return self.error(
                span,
                frame,
                format!("the program has more than {NODES_MAX} expressions after macro expansion"),
            );
        }
        if self.height >= HEIGHT_MAX {
            return self.error(
                span,
                frame,
                format!("nested more than {HEIGHT_MAX} levels deep after macro expansion"),
            );
        }
        self.height += 1;
        let result = step(self);
        self.height -= 1;
        result
    }

    fn boxed(&mut self, expr: &Expr, frame: &Frame) -> Expanded<Box<Expr>> {
        Ok(Box::new(self.expr(expr, frame)?))
    }

    fn all(&mut self, exprs: &[Expr], frame: &Frame) -> Expanded<Vec<Expr>> {
        exprs.iter().map(|e| self.expr(e, frame)).collect()
    }

    fn expr(&mut self, expr: &Expr, frame: &Frame) -> Expanded<Expr> {
        self.deeper(expr.span, frame, |x| x.expr_inner(expr, frame))
    }

    fn expr_inner(&mut self, expr: &Expr, frame: &Frame) -> Expanded<Expr> {
        let span = expr.span;
        let kind = match &expr.kind {
            ExprKind::Ident(name) => return self.ident(expr, name, frame),
            ExprKind::Positional(n) => self.positional(*n),
            ExprKind::PositionalCount => ExprKind::Int(self.texts.params.len() as i128),
            ExprKind::Var(var) => ExprKind::Var(self.var(var, frame)),
            ExprKind::Map(map) => return self.map(map, span, frame),
            ExprKind::MapAt(map, key) => {
                let key = self.boxed(key, frame)?;
                match self.map(map, span, frame)?.kind {
                    ExprKind::Map(map) => ExprKind::MapAt(map, key),
                    _ => unreachable!("a map is expanded to a map"),
                }
            }
            ExprKind::Call(call) => return self.call(call, span, frame),
            ExprKind::Paren(inner) => return self.expr(inner, frame),
            ExprKind::Unary(op, e) => ExprKind::Unary(*op, self.boxed(e, frame)?),
            ExprKind::Step(op, e) => ExprKind::Step(*op, self.boxed(e, frame)?),
            ExprKind::Comptime(e) => ExprKind::Comptime(self.boxed(e, frame)?),
            ExprKind::Binary(op, a, b) => {
                let (left, right) = (self.boxed(a, frame)?, self.boxed(b, frame)?);
                let (left, right) = self.compare_texts(a, left, b, right);
                ExprKind::Binary(*op, left, right)
            }
            ExprKind::Index(a, b) => ExprKind::Index(self.boxed(a, frame)?, self.boxed(b, frame)?),
            ExprKind::Ternary(c, a, b) => {
                let c = self.boxed(c, frame)?;
                let a = a.as_ref().map(|a| self.boxed(a, frame)).transpose()?;
                ExprKind::Ternary(c, a, self.boxed(b, frame)?)
            }
            ExprKind::If(branch) => ExprKind::If(Box::new(If {
                cond: self.expr(&branch.cond, frame)?,
                then: self.block(&branch.then, frame)?,
                other: branch.other.as_ref().map(|b| self.block(b, frame)).transpose()?,
            })),
            ExprKind::Block(block) => ExprKind::Block(self.block(block, frame)?),
            ExprKind::Field(e, FieldName { name, arrow }) => {
                ExprKind::Field(self.boxed(e, frame)?, FieldName { name: name.clone(), arrow: *arrow })
            }
            ExprKind::Cast(ty, e) => {
                let ty = self.type_expr(ty, frame)?;
                ExprKind::Cast(ty, self.boxed(e, frame)?)
            }
            ExprKind::Tuple(parts) => ExprKind::Tuple(self.all(parts, frame)?),
            ExprKind::Record(parts) => {
                let mut new = Vec::new();
                for (name, e) in parts {
                    new.push((name.clone(), self.expr(e, frame)?));
                }
                ExprKind::Record(new)
            }
            ExprKind::Sizeof(arg) => ExprKind::Sizeof(Box::new(self.type_arg(arg, frame)?)),
            ExprKind::Typeof(arg) => ExprKind::Typeof(Box::new(self.type_arg(arg, frame)?)),
            ExprKind::Typeinfo(arg) => ExprKind::Typeinfo(Box::new(self.type_arg(arg, frame)?)),
            ExprKind::Offsetof(arg, path) => {
                ExprKind::Offsetof(Box::new(self.type_arg(arg, frame)?), path.clone())
            }
            ExprKind::Builtin(b, args) => ExprKind::Builtin(*b, self.all(args, frame)?),
            plain @ (ExprKind::Int(_) | ExprKind::Bool(_) | ExprKind::Str(_) | ExprKind::Arg(_)) => {
                plain.clone()
            }
        };
        let made = self.make(span, kind);
        if let Some(of) = self.enums.get(&expr.id) {
            self.enums.insert(made.id, *of);
        }
        Ok(made)
    }

    fn var(&self, var: &VarRef, frame: &Frame) -> VarRef {
        let name = match frame.params.get(&var.name) {
            Some(Bound::Var(name)) => name.clone(),
            _ if frame.rename > 0 && !var.name.contains('#') => format!("{}#{}", var.name, frame.rename),
            _ => var.name.clone(),
        };
        VarRef { name, id: var.id }
    }

    fn map(&mut self, map: &MapRef, span: Span, frame: &Frame) -> Expanded<Expr> {
        let name = match frame.params.get(&map.name) {
            Some(Bound::Map(name)) => name.clone(),
            _ if frame.rename > 0 => {
                let name = &map.name;
                let message = format!(
                    "Unhygienic access to map: @{name}. Maps must be passed into the macro as an argument"
                );
                return self.error(span, frame, message);
            }
            _ => map.name.clone(),
        };
        Ok(self.make(span, ExprKind::Map(MapRef { name, id: map.id })))
    }

    fn block(&mut self, block: &Block, frame: &Frame) -> Expanded<Block> {
        self.deeper(block.span, frame, |x| {
            let mut stmts = Vec::with_capacity(block.stmts.len());
            for stmt in &block.stmts {
                stmts.push(Stmt { span: stmt.span, kind: x.stmt(&stmt.kind, frame)? });
            }
            let value = block.value.as_ref().map(|v| x.boxed(v, frame)).transpose()?;
            Ok(Block { span: block.span, stmts, value })
        })
    }

    fn stmt(&mut self, kind: &StmtKind, frame: &Frame) -> Expanded<StmtKind> {
        Ok(match kind {
            StmtKind::Expr(e) => StmtKind::Expr(self.expr(e, frame)?),
            StmtKind::Discard(e) => StmtKind::Discard(self.expr(e, frame)?),
            StmtKind::Let { var, ty, init } => StmtKind::Let {
                ty: ty.as_ref().map(|t| self.type_expr(t, frame)).transpose()?,
                init: init.as_ref().map(|i| self.expr(i, frame)).transpose()?,
                var: self.expr(var, frame)?,
            },
            StmtKind::Assign { target, op, value } => StmtKind::Assign {
                value: self.expr(value, frame)?,
                target: self.expr(target, frame)?,
                op: *op,
            },
            StmtKind::While(c, body) => StmtKind::While(self.expr(c, frame)?, self.block(body, frame)?),
            StmtKind::Unroll(n, body) => StmtKind::Unroll(self.expr(n, frame)?, self.block(body, frame)?),
            StmtKind::ForRange { var, from, to, body } => StmtKind::ForRange {
                from: self.expr(from, frame)?,
                to: self.expr(to, frame)?,
                var: self.expr(var, frame)?,
                body: self.block(body, frame)?,
            },
            StmtKind::ForMap { var, map, body } => {
                let map = self.expr(map, frame)?;
                if !matches!(map.kind, ExprKind::Map(_)) {
                    return self.error(map.span, frame, "a loop goes over a map or a range");
                }
                StmtKind::ForMap { map, var: self.expr(var, frame)?, body: self.block(body, frame)? }
            }
            StmtKind::Break => StmtKind::Break,
            StmtKind::Continue => StmtKind::Continue,
            StmtKind::Return(e) => StmtKind::Return(e.as_ref().map(|e| self.expr(e, frame)).transpose()?),
        })
    }

    fn type_expr(&mut self, ty: &TypeExpr, frame: &Frame) -> Expanded<TypeExpr> {
        let kind = match &ty.kind {
            TypeExprKind::Name(name) => match frame.params.get(name).cloned() {
                Some(Bound::Type(arg)) => {
                    TypeExprKind::Typeof(Box::new(self.type_arg(&arg, &Frame::default())?))
                }
                Some(Bound::Expr(e)) => {
                    TypeExprKind::Typeof(Box::new(TypeArg::Expr(self.expr(&e, &Frame::default())?)))
                }
                _ => ty.kind.clone(),
            },
            TypeExprKind::Pointer(of) => TypeExprKind::Pointer(Box::new(self.type_expr(of, frame)?)),
            TypeExprKind::Array(of, len) => TypeExprKind::Array(
                Box::new(self.type_expr(of, frame)?),
                len.as_ref().map(|l| self.boxed(l, frame)).transpose()?,
            ),
            TypeExprKind::Typeof(arg) => TypeExprKind::Typeof(Box::new(self.type_arg(arg, frame)?)),
            TypeExprKind::Tagged(..) => ty.kind.clone(),
        };
        Ok(TypeExpr { span: ty.span, kind })
    }

    fn type_arg(&mut self, arg: &TypeArg, frame: &Frame) -> Expanded<TypeArg> {
        Ok(match arg {
            TypeArg::Type(ty) => TypeArg::Type(self.type_expr(ty, frame)?),
            TypeArg::Expr(e) => match &e.kind {
                ExprKind::Typeof(inner) => self.type_arg(inner, frame)?,
                _ => TypeArg::Expr(self.expr(e, frame)?),
            },
        })
    }
}
