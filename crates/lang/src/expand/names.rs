//! Bare names and positional parameters.
use super::{Bound, Expanded, Expander, Frame};
use crate::ast::{Expr, ExprKind};
use crate::builtin::Builtin;
use crate::diagnostic::Diagnostic;
use crate::names::nearest;
use crate::syntax::{Cursor, number};

/// Words that only functions take as arguments.
const WORDS: [&str; 10] =
    ["curr_ns", "init", "monotonic", "boot", "tai", "sw_tai", "bpftrace", "perf", "raw", "build_id"];

impl Expander<'_> {
    pub(super) fn ident(&mut self, expr: &Expr, name: &str, frame: &Frame) -> Expanded<Expr> {
        match frame.params.get(name).cloned() {
            // The argument was expanded where it was written.
            Some(Bound::Expr(arg)) => return self.expr(&arg, &Frame::default()),
            Some(Bound::Type(arg)) => return Ok(self.make(expr.span, ExprKind::Typeof(Box::new(arg)))),
            Some(Bound::Var(_) | Bound::Map(_)) | None => {}
        }
        let bare = self.macros.get(name).and_then(|all| all.iter().find(|m| m.params.is_empty())).cloned();
        if let Some(found) = bare {
            return self.expand_macro(&found, &[], expr.span, frame);
        }
        if let Some((id, value)) = self.texts.names.enumerators.get(name) {
            let made = self.make(expr.span, ExprKind::Int(i128::from(*value)));
            self.enums.insert(made.id, *id);
            return Ok(made);
        }
        if let Some(builtin) = Builtin::of(name) {
            return Ok(self.make(expr.span, ExprKind::Builtin(builtin, Vec::new())));
        }
        if self.texts.names.defines.contains_key(name) {
            return self.define(expr, name, frame);
        }
        if WORDS.contains(&name) {
            return Ok(self.make(expr.span, ExprKind::Ident(name.to_string())));
        }
        let mut diagnostic = Diagnostic::error(expr.span, format!("Unknown identifier: '{name}'"));
        diagnostic.calls = frame.calls.clone();
        let known = self.known_names();
        if let Some(near) = nearest(name, known.iter().map(String::as_str)) {
            diagnostic = diagnostic.hint(format!("Did you mean {near}?"));
        }
        Err(Box::new(diagnostic))
    }

    pub(super) fn known_names(&self) -> Vec<String> {
        let builtins = Builtin::ALL.iter().map(|b| b.name().to_string());
        let macros = self.macros.keys().cloned();
        let enumerators = self.texts.names.enumerators.keys().cloned();
        let mut all: Vec<String> = builtins.chain(macros).chain(enumerators).collect();
        all.sort();
        all
    }

    /// The value of a `#define`, read as an expression.
    fn define(&mut self, expr: &Expr, name: &str, frame: &Frame) -> Expanded<Expr> {
        let text = self.texts.names.defines.get(name).map_or("", |(_, t)| t.as_str()).to_string();
        if frame.chain.iter().any(|n| n == name) || frame.chain.len() > 50 {
            return self.error(expr.span, frame, format!("#define {name} names itself"));
        }
        let mut ids = self.ids;
        let mut cursor = Cursor::new(&text, expr.span.file, &mut ids, &[]);
        cursor.layout();
        let read = cursor.expression();
        let whole = cursor.at_end();
        self.ids = ids;
        let Some(mut value) = read.ok().filter(|_| whole) else {
            return self.error(expr.span, frame, format!("#define {name} is no expression: {text}"));
        };
        Respan(expr.span).expr(&mut value);
        let mut inner = Frame { rename: frame.rename, calls: frame.calls.clone(), ..Frame::default() };
        inner.chain = frame.chain.clone();
        inner.chain.push(name.to_string());
        self.expr(&value, &inner)
    }

    /// `$n` as a number if it is one, else as a string; 0 if it was not given.
    pub(super) fn positional(&self, n: u32) -> ExprKind {
        match self.texts.params.get(n as usize - 1) {
            None => ExprKind::Int(0),
            Some(text) => match as_number(text) {
                Some(value) => ExprKind::Int(value),
                None => ExprKind::Str(text.clone().into_bytes()),
            },
        }
    }

    /// In a comparison with a string a positional parameter is one.
    pub(super) fn compare_texts(
        &self,
        a: &Expr,
        left: Box<Expr>,
        b: &Expr,
        right: Box<Expr>,
    ) -> (Box<Expr>, Box<Expr>) {
        let text = |written: &Expr, made: Box<Expr>, other: &Expr| match (&written.kind, &other.kind) {
            (ExprKind::Positional(n), ExprKind::Str(_)) => {
                Box::new(Expr { kind: ExprKind::Str(self.param_text(*n)), ..*made })
            }
            _ => made,
        };
        let left = text(a, left, &right);
        let right = text(b, right, &left);
        (left, right)
    }

    /// The text of `$n`, empty if it was not given.
    pub(super) fn param_text(&self, n: u32) -> Vec<u8> {
        self.texts.params.get(n as usize - 1).cloned().unwrap_or_default().into_bytes()
    }
}

/// Gives a `#define`'s value the place where it is used.
struct Respan(crate::source::Span);

impl crate::visit::Visit for Respan {
    fn expr(&mut self, expr: &mut Expr) {
        expr.span = self.0;
        self.parts(expr);
    }
}

use crate::visit::Visit;

fn as_number(text: &str) -> Option<i128> {
    match text.strip_prefix('-') {
        Some(digits) => number(digits).map(|n| -n).filter(|n| crate::fold::fits(*n)),
        None => number(text),
    }
}
