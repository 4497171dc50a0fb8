//! Calls: of macros, whose bodies are put in, and of functions.
use super::{Bound, Expanded, Expander, Frame};
use crate::ast::{BinOp, Call, Expr, ExprKind, Macro, Param, ParamKind, TypeArg, TypeExpr, TypeExprKind};
use crate::builtin::Builtin;
use crate::diagnostic::Diagnostic;
use crate::format::{Piece, parse};
use crate::names::nearest;
use crate::source::Span;

/// How many macros may be expanded in one another.
const CHAIN_MAX: usize = 64;

impl Expander<'_> {
    pub(super) fn call(&mut self, call: &Call, span: Span, frame: &Frame) -> Expanded<Expr> {
        let name = call.name.text.as_str();
        if let Some(found) = self.pick(name, &call.args, frame) {
            return self.expand_macro(&found, &call.args, span, frame);
        }
        if let Some(builtin) = Builtin::of(name)
            && !call.bang
        {
            return self.builtin(builtin, call, span, frame);
        }
        if let Some(all) = self.macros.get(name) {
            let message = mismatch(&all[0], &call.args);
            return self.error(span, frame, message);
        }
        let what = if call.bang { "macro" } else { "function" };
        let mut diagnostic = Diagnostic::error(span, format!("Unknown {what}: '{name}'"));
        diagnostic.calls = frame.calls.clone();
        if let Some(near) = nearest(name, self.known_names().iter().map(String::as_str)) {
            diagnostic = diagnostic.hint(format!("Did you mean {near}?"));
        }
        Err(Box::new(diagnostic))
    }

    /// The macro of a name that takes these arguments: one that wants variables or maps before one that takes all.
    fn pick(&self, name: &str, args: &[Expr], frame: &Frame) -> Option<Macro> {
        let fits = |m: &&Macro| {
            m.params.len() == args.len() && m.params.iter().zip(args).all(|(p, a)| accepts(p, a, frame))
        };
        let exact = |m: &Macro| m.params.iter().filter(|p| p.kind != ParamKind::Expr).count();
        self.macros.get(name)?.iter().filter(fits).max_by_key(|m| exact(m)).cloned()
    }

    pub(super) fn expand_macro(
        &mut self,
        found: &Macro,
        args: &[Expr],
        span: Span,
        frame: &Frame,
    ) -> Expanded<Expr> {
        let name = &found.name.text;
        if frame.chain.contains(name) || frame.chain.len() > CHAIN_MAX {
            let chain = frame.chain.join(" > ");
            let message = format!("Recursive macro call detected. Call chain: {chain} > {name}");
            return self.error(span, frame, message);
        }
        self.renames += 1;
        let mut inner = Frame { rename: self.renames, ..Frame::default() };
        for (param, arg) in found.params.iter().zip(args) {
            let bound = self.bind(param, arg, frame)?;
            inner.params.insert(param.name.text.clone(), bound);
        }
        inner.chain = frame.chain.iter().cloned().chain([name.clone()]).collect();
        inner.calls = [span].into_iter().chain(frame.calls.iter().copied()).collect();
        let block = self.block(&found.body, &inner)?;
        Ok(match block.value {
            Some(value) if block.stmts.is_empty() => *value,
            _ => self.make(span, ExprKind::Block(block)),
        })
    }

    fn bind(&mut self, param: &Param, arg: &Expr, frame: &Frame) -> Expanded<Bound> {
        Ok(match (param.kind, &arg.kind) {
            (ParamKind::Var, ExprKind::Var(var)) => Bound::Var(self.var(var, frame).name),
            (ParamKind::Var, _) => match self.expr(arg, frame)?.kind {
                ExprKind::Var(var) => Bound::Var(var.name),
                _ => return self.error(arg.span, frame, "expected a variable"),
            },
            (ParamKind::Map, _) => match self.expr(arg, frame)?.kind {
                ExprKind::Map(map) => Bound::Map(map.name),
                _ => return self.error(arg.span, frame, "expected a map"),
            },
            (_, ExprKind::Typeof(ty)) => Bound::Type(self.type_arg(ty, frame)?),
            (_, ExprKind::Ident(name)) => match frame.params.get(name) {
                Some(bound) => bound.clone(),
                None => Bound::Expr(self.expr(arg, frame)?),
            },
            _ => Bound::Expr(self.expr(arg, frame)?),
        })
    }

    fn builtin(&mut self, builtin: Builtin, call: &Call, span: Span, frame: &Frame) -> Expanded<Expr> {
        if builtin == Builtin::Str
            && let Some(text) = call.args.first().and_then(|a| self.literal_pointer(a))
        {
            return self.literal_str(text, call, span, frame);
        }
        let mut args = Vec::with_capacity(call.args.len());
        for (i, arg) in call.args.iter().enumerate() {
            args.push(match &arg.kind {
                // A field's name, and a type.
                ExprKind::Ident(_) if builtin == Builtin::ContainerOf && i == 2 => arg.clone(),
                ExprKind::Ident(name) if builtin == Builtin::ContainerOf && i == 1 => {
                    let ty = TypeExpr { span: arg.span, kind: TypeExprKind::Name(name.clone()) };
                    let ty = self.type_expr(&ty, frame)?;
                    self.make(arg.span, ExprKind::Typeof(Box::new(TypeArg::Type(ty))))
                }
                _ => self.expr(arg, frame)?,
            });
        }
        self.missing_texts(call, &mut args);
        Ok(self.make(span, ExprKind::Builtin(builtin, args)))
    }

    /// A positional parameter is a string where `%s` prints it.
    fn missing_texts(&self, call: &Call, args: &mut [Expr]) {
        let Some(ExprKind::Str(format)) = args.first().map(|a| &a.kind) else { return };
        let Ok(pieces) = parse(format) else { return };
        let wanted: Vec<bool> = pieces
            .iter()
            .filter_map(|p| if let Piece::Value(d) = p { Some(d.conversion == "s") } else { None })
            .collect();
        for (i, written) in call.args.iter().enumerate().skip(1) {
            if let ExprKind::Positional(n) = written.kind
                && wanted.get(i - 1) == Some(&true)
            {
                args[i].kind = ExprKind::Str(self.param_text(n));
            }
        }
    }

    /// The text that `$1` or `$1 + 2` points to.
    fn literal_pointer(&self, arg: &Expr) -> Option<Result<Vec<u8>, (Span, String)>> {
        match &arg.kind {
            ExprKind::Paren(inner) => self.literal_pointer(inner),
            ExprKind::Positional(n) => Some(Ok(self.param_text(*n))),
            ExprKind::Binary(BinOp::Add, a, b) => {
                let (text, offset) = match (&a.kind, &b.kind) {
                    (ExprKind::Positional(n), ExprKind::Int(k))
                    | (ExprKind::Int(k), ExprKind::Positional(n)) => (self.param_text(*n), *k),
                    _ => return None,
                };
                let tail = usize::try_from(offset).ok().and_then(|k| text.get(k..)).map(<[u8]>::to_vec);
                Some(tail.ok_or_else(|| {
                    let len = text.len();
                    (arg.span, format!("cannot use offset that exceeds string size ({offset} > {len})"))
                }))
            }
            _ => None,
        }
    }

    /// `str($1)`: the parameter's text, at most as long as asked for.
    fn literal_str(
        &mut self,
        text: Result<Vec<u8>, (Span, String)>,
        call: &Call,
        span: Span,
        frame: &Frame,
    ) -> Expanded<Expr> {
        let mut text = match text {
            Ok(text) => text,
            Err((at, message)) => return self.error(at, frame, message),
        };
        if let Some(len) = call.args.get(1) {
            match self.expr(len, frame)?.kind {
                ExprKind::Int(n) => text.truncate(usize::try_from(n).unwrap_or(0)),
                _ => return self.error(len.span, frame, "str() of a parameter takes a constant length"),
            }
        }
        Ok(self.make(span, ExprKind::Str(text)))
    }
}

fn accepts(param: &Param, arg: &Expr, frame: &Frame) -> bool {
    let passed = match &arg.kind {
        ExprKind::Ident(name) => frame.params.get(name),
        _ => None,
    };
    match (param.kind, &arg.kind) {
        (ParamKind::Expr, _) | (ParamKind::Var, ExprKind::Var(_)) | (ParamKind::Map, ExprKind::Map(_)) => {
            true
        }
        (ParamKind::Var, _) => {
            matches!(passed, Some(Bound::Expr(Expr { kind: ExprKind::Var(_), .. }) | Bound::Var(_)))
        }
        (ParamKind::Map, _) => {
            matches!(passed, Some(Bound::Expr(Expr { kind: ExprKind::Map(_), .. }) | Bound::Map(_)))
        }
    }
}

/// Why a macro does not take these arguments.
fn mismatch(found: &Macro, args: &[Expr]) -> String {
    let name = &found.name.text;
    if found.params.len() != args.len() {
        let (want, got) = (found.params.len(), args.len());
        return format!(
            "Call to macro `{name}` has wrong number of arguments. Expected: {want} but got {got}"
        );
    }
    let wrong = found.params.iter().zip(args).find(|(p, a)| !accepts(p, a, &Frame::default()));
    let Some((param, arg)) = wrong else { return format!("macro {name} can't be called so") };
    let got = match arg.kind {
        ExprKind::Var(_) => "a variable",
        ExprKind::Map(_) => "a map",
        _ => "an expression",
    };
    let (want, sigil) = match param.kind {
        ParamKind::Var => ("variable", "$"),
        ParamKind::Map => ("map", "@"),
        ParamKind::Expr => ("expression", ""),
    };
    let param = &param.name.text;
    format!("Mismatched arg. Macro `{name}` expects a {want} for arg {sigil}{param} but got {got}.")
}
