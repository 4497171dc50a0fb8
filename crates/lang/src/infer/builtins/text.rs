//! Functions that give strings, buffers and stacks, or print; and the checks of arguments.
use super::super::Infer;
use super::super::promote::stack_mode;
use crate::ast::{Expr, ExprKind};
use crate::builtin::Builtin;
use crate::source::Span;
use crate::types::{Int, StackKind, StackMode, Type};

impl Infer<'_> {
    /// Strings, buffers, stacks, addresses, output.
    pub(super) fn text_or_stack(&mut self, function: Builtin, args: &[Expr], span: Span) -> Option<Type> {
        use Builtin as B;
        let most = self.around.config.max_strlen.min(1 << 20) as u32;
        let ty = match function {
            B::Ustack | B::DwUstack | B::Kstack => self.stack(function, args, span),
            B::Str => {
                self.one_of(
                    function,
                    &args[0],
                    "a string, integer or a pointer type as first argument",
                    |t| {
                        matches!(
                            t,
                            Type::Str(_)
                                | Type::Int(_)
                                | Type::Pointer(_)
                                | Type::Array(..)
                                | Type::Buffer(_)
                        )
                    },
                );
                let len = args.get(1).and_then(|a| self.length(function, a));
                if let Some(n) = len
                    && n.saturating_add(1) > u64::from(most)
                {
                    self.warn(span, format!("length param ({n}) is too long and will be shortened to {most} bytes (see BPFTRACE_MAX_STRLEN)"));
                }
                Type::Str(len.map_or(most, |n| n.saturating_add(1).min(u64::from(most)) as u32))
            }
            B::Buf => self.buf(args, most, span),
            B::StrConcat => {
                let size = |t: Type| if let Type::Str(n) = t { n } else { most };
                let (a, b) = (self.text(function, &args[0]), self.text(function, &args[1]));
                Type::Str((size(a) + size(b)).saturating_sub(1).min(most.max(1)))
            }
            B::Printf | B::Errorf | B::Warnf | B::Debugf | B::Cat | B::System => {
                self.formatted(function, args, span);
                Type::Void
            }
            B::Fail => {
                let literal =
                    |a: &Expr| matches!(a.kind, ExprKind::Int(_) | ExprKind::Str(_) | ExprKind::Bool(_));
                args.iter().for_each(|a| drop(self.value(a)));
                if args.iter().all(literal) {
                    // Only where it would be reached.
                    if self.dead == 0 {
                        self.error(span, super::output::failed_text(args));
                    }
                } else {
                    self.error(span, "fail() arguments need to be literals");
                }
                Type::Void
            }
            B::Print => {
                self.print(args, span);
                Type::Void
            }
            B::Time => {
                if let Some(format) = args.first() {
                    self.literal_text(function, format);
                }
                Type::Void
            }
            B::Strftime => {
                self.literal_text(function, &args[0]);
                self.integer(function, &args[1]);
                if matches!(args[1].kind, ExprKind::Int(n) if n < 0) {
                    self.error(span, "strftime() does not accept negative timestamps");
                }
                if matches!(&args[1].kind, ExprKind::Builtin(B::Nsecs, a) if matches!(a.first().map(|a| &a.kind), Some(ExprKind::Ident(w)) if w == "monotonic"))
                {
                    self.error(span, "strftime() can not take a monotonic timestamp");
                }
                Type::Timestamp
            }
            B::Join => {
                self.one_of(function, &args[0], "int or pointer arguments", |t| {
                    matches!(t, Type::Int(_) | Type::Pointer(_) | Type::Array(..))
                });
                if let Some(separator) = args.get(1) {
                    self.literal_text(function, separator);
                }
                Type::Void
            }
            B::Exit => {
                if let Some(code) = args.first() {
                    self.integer(function, code);
                }
                if self.loops > 0 {
                    self.error(span, "exit() is not allowed in a loop: leave it with break first");
                }
                Type::Void
            }
            _ => return None,
        };
        Some(ty)
    }

    pub(super) fn one_of(
        &mut self,
        function: Builtin,
        arg: &Expr,
        wanted: &str,
        fits: fn(&Type) -> bool,
    ) -> Type {
        let ty = self.value(arg);
        if ty != Type::None && !fits(&ty) {
            let shown = self.show(&ty);
            self.error(arg.span, format!("{}() expects {wanted} ({shown} provided)", function.name()));
        }
        ty
    }

    pub(super) fn integer(&mut self, function: Builtin, arg: &Expr) -> Type {
        let ty = self.value(arg);
        if !matches!(ty, Type::Int(_) | Type::Enum(_) | Type::Bool | Type::None) {
            let shown = self.show(&ty);
            self.error(
                arg.span,
                format!("{}() only supports integer arguments ({shown} provided)", function.name()),
            );
            return Type::None;
        }
        ty
    }

    /// A length: a constant one is given back.
    pub(super) fn length(&mut self, function: Builtin, arg: &Expr) -> Option<u64> {
        self.integer(function, arg);
        match arg.kind {
            ExprKind::Int(n) if n < 0 => {
                self.error(arg.span, format!("{}() cannot use negative length ({n})", function.name()));
                None
            }
            ExprKind::Int(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    pub(super) fn text(&mut self, function: Builtin, arg: &Expr) -> Type {
        self.one_of(function, arg, "a string", |t| match t {
            Type::Str(_) | Type::Buffer(_) => true,
            Type::Array(of, _) | Type::Pointer(of) => {
                matches!(**of, Type::Int(Int { size: 1, .. }) | Type::Str(_))
            }
            _ => false,
        })
    }

    pub(super) fn literal_text(&mut self, function: Builtin, arg: &Expr) -> Option<Vec<u8>> {
        let ty = self.expr(arg);
        if let ExprKind::Str(text) = &arg.kind {
            return Some(text.clone());
        }
        let shown = self.show(&ty);
        self.error(arg.span, format!("{}() expects a string literal ({shown} provided)", function.name()));
        None
    }

    pub(super) fn stack(&mut self, function: Builtin, args: &[Expr], span: Span) -> Type {
        let mut kind = StackKind {
            mode: self.around.config.stack_mode,
            limit: 127,
            dwarf: function == Builtin::DwUstack,
        };
        let mut rest = args;
        if let Some(ExprKind::Ident(word)) = args.first().map(|a| &a.kind) {
            match stack_mode(word) {
                Some(mode) => kind.mode = mode,
                None => self
                    .error(args[0].span, format!("{word} is no stack mode: bpftrace, perf, raw or build_id")),
            }
            rest = &args[1..];
        } else if args.len() == 2 {
            self.error(span, "Expected stack mode as first argument");
            rest = &args[1..];
        }
        if let Some(limit) = rest.first() {
            self.expr(limit);
            match limit.kind {
                ExprKind::Int(n @ 0..=1024) => kind.limit = n as u32,
                ExprKind::Int(n) => {
                    self.error(
                        span,
                        format!("{}([int limit]): limit shouldn't exceed 1024, {n} given", function.name()),
                    );
                }
                _ => self.error(span, format!("{}: invalid limit value", function.name())),
            }
        }
        if function == Builtin::Kstack {
            if kind.mode == StackMode::BuildId {
                self.error(span, "'build_id' stack mode can only be used for ustack");
            }
            return Type::Kstack(kind);
        }
        Type::Ustack(kind)
    }

    pub(super) fn buf(&mut self, args: &[Expr], most: u32, span: Span) -> Type {
        let ty = self.one_of(Builtin::Buf, &args[0], "an integer, string, or array argument", |t| {
            matches!(t, Type::Int(_) | Type::Str(_) | Type::Pointer(_) | Type::Array(..) | Type::Buffer(_))
        });
        let size = match args.get(1) {
            Some(len) => self.length(Builtin::Buf, len).map_or(most, |n| n.min(u64::from(most)) as u32),
            None => match &ty {
                Type::Array(..) => self.around.ctypes.size(&ty).min(most),
                Type::None => most,
                other => {
                    let shown = self.show(other);
                    self.error(span, format!("buf() expects a length argument for non-array type {shown}"));
                    most
                }
            },
        };
        Type::Buffer(size)
    }
}
