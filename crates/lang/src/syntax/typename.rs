//! Types as they are written, and the four meanings of a parenthesis.
//!
//! For:     casts, `let $x: type`, `sizeof` and its like.
//! State:   none.
//! Context: control.
//! Keeps:   1. A failed try leaves the place as it was.
//! Checked: tests/language.rs.

use super::cursor::{Cursor, Read};
use crate::ast::{Expr, ExprKind, Tag, TypeArg, TypeExpr, TypeExprKind};
use crate::builtin::Builtin;

/// Words that may follow one another in the name of one of C's integers.
const C_WORDS: [&str; 6] = ["unsigned", "signed", "long", "short", "int", "char"];

/// Whether a bare name can only be a type.
pub(crate) fn is_type_word(name: &str) -> bool {
    C_WORDS.contains(&name) || crate::names::basic(name).is_some()
}

impl Cursor<'_> {
    /// A type, if one stands here.
    pub fn eat_type(&mut self) -> Read<Option<TypeExpr>> {
        let start = self.at;
        let word = self.peek_ident();
        let kind = match word {
            "" => return Ok(None),
            "typeof" => {
                let mark = self.mark();
                self.take(word.len());
                if self.byte(0) != b'(' {
                    self.back(mark);
                    return Ok(None);
                }
                TypeExprKind::Typeof(Box::new(self.type_arg()?))
            }
            "struct" | "union" | "enum" => {
                let tag = match word {
                    "struct" => Tag::Struct,
                    "union" => Tag::Union,
                    _ => Tag::Enum,
                };
                self.take(word.len());
                TypeExprKind::Tagged(tag, self.ident("a name after struct, union or enum")?.text)
            }
            "const" => {
                self.take(word.len());
                return self.eat_type();
            }
            _ if C_WORDS.contains(&word) => {
                let mut name = String::new();
                while C_WORDS.contains(&self.peek_ident()) {
                    let word = self.peek_ident();
                    name = format!("{name}{}{word}", if name.is_empty() { "" } else { " " });
                    self.take(word.len());
                }
                TypeExprKind::Name(name)
            }
            _ => {
                let name = word.to_string();
                self.take(word.len());
                TypeExprKind::Name(name)
            }
        };
        let mut ty = TypeExpr { span: self.since(start), kind };
        let mut levels = 0;
        loop {
            let kind = if self.byte(0) == b'*' {
                self.take(1);
                let _ = self.eat_word("const");
                TypeExprKind::Pointer(Box::new(ty))
            } else if self.byte(0) == b'[' {
                self.take(1);
                let len = if self.byte(0) == b']' { None } else { Some(Box::new(self.expression()?)) };
                self.expect("]", "after an array's size")?;
                TypeExprKind::Array(Box::new(ty), len)
            } else {
                break;
            };
            levels += 1;
            if levels > 16 {
                return self.error(self.since(start), "a type of more than 16 levels");
            }
            ty = TypeExpr { span: self.since(start), kind };
        }
        Ok(Some(ty))
    }

    /// `(type)` or `(expression)` after `sizeof` and its like.
    pub fn type_arg(&mut self) -> Read<TypeArg> {
        self.expect("(", "")?;
        let arg = self.type_or_expr(b")")?;
        self.expect(")", "after the operand")?;
        Ok(arg)
    }

    /// A type if it is followed by one of `ends`, else an expression.
    pub fn type_or_expr(&mut self, ends: &[u8]) -> Read<TypeArg> {
        let mark = self.mark();
        // `typeof` always begins a type here; it is not tried twice, or nesting would double the work.
        let sure = matches!(self.peek_ident(), "typeof" | "struct" | "union" | "enum");
        match self.deeper(Self::eat_type) {
            Ok(Some(ty)) if ends.contains(&self.byte(0)) && !self.is_value(&ty) => {
                return Ok(TypeArg::Type(ty));
            }
            Ok(Some(_)) if sure => return Err(self.unexpected("expected the type's end")),
            Err(e) if sure => return Err(e),
            _ => self.back(mark),
        }
        Ok(TypeArg::Expr(self.expression()?))
    }

    /// `pid` and its like are values also where a type may stand.
    fn is_value(&self, ty: &TypeExpr) -> bool {
        matches!(&ty.kind, TypeExprKind::Name(n)
            if Builtin::of(n).is_some() || arg_number(n).is_some() || matches!(n.as_str(), "true" | "false"))
    }

    /// What begins with `(`: an empty tuple, a record, a cast, a tuple, or a grouping.
    pub fn parenthesis(&mut self) -> Read<Expr> {
        let start = self.at;
        self.expect("(", "")?;
        if self.eat(")").is_some() {
            let span = self.since(start);
            return Ok(self.expr(span, ExprKind::Tuple(Vec::new())));
        }
        if self.looks_like_record() {
            return self.record(start);
        }
        if let Some(cast) = self.cast(start)? {
            return Ok(cast);
        }
        let first = self.expression()?;
        if self.eat(")").is_some() {
            let span = self.since(start);
            return Ok(self.expr(span, ExprKind::Paren(Box::new(first))));
        }
        let mut parts = vec![first];
        while self.eat(",").is_some() && self.byte(0) != b')' {
            parts.push(self.expression()?);
        }
        self.expect(")", "after a tuple's last part")?;
        let span = self.since(start);
        Ok(self.expr(span, ExprKind::Tuple(parts)))
    }

    fn looks_like_record(&self) -> bool {
        let rest = &self.rest()[self.ident_len()..];
        let after = rest.trim_start();
        self.ident_len() > 0 && after.starts_with('=') && !after.starts_with("==")
    }

    fn record(&mut self, start: usize) -> Read<Expr> {
        let mut parts: Vec<(crate::ast::Name, Expr)> = Vec::new();
        while self.byte(0) != b')' {
            let name = self.ident("a record's name")?;
            if parts.iter().any(|(n, _)| n.text == name.text) {
                return self.error(name.span, format!("Duplicate record field: {}", name.text));
            }
            self.expect("=", "after a record's name")?;
            parts.push((name, self.expression()?));
            if self.eat(",").is_none() {
                break;
            }
        }
        self.expect(")", "after a record's last part")?;
        let span = self.since(start);
        Ok(self.expr(span, ExprKind::Record(parts)))
    }

    /// `(type)operand`, if that is what stands after the parenthesis.
    fn cast(&mut self, start: usize) -> Read<Option<Expr>> {
        let mark = self.mark();
        let sure = matches!(self.peek_ident(), "typeof" | "struct" | "union" | "enum");
        let ty = match self.deeper(Self::eat_type) {
            Ok(Some(ty)) => ty,
            Err(e) if sure => return Err(e),
            _ => {
                self.back(mark);
                return Ok(None);
            }
        };
        let bare = match &ty.kind {
            TypeExprKind::Name(n) => Some(n.clone()),
            TypeExprKind::Array(of, _) => match &of.kind {
                TypeExprKind::Name(n) if !is_type_word(n) => Some(n.clone()),
                _ => None,
            },
            _ => None,
        };
        let closed = self.eat(")").is_some();
        if !closed || !self.starts_operand(bare.as_deref()) {
            if sure {
                return Err(self.unexpected("expected a cast's operand"));
            }
            self.back(mark);
            return Ok(None);
        }
        let operand = self.deeper(Self::unary)?;
        let span = self.since(start);
        Ok(Some(self.expr(span, ExprKind::Cast(ty, Box::new(operand)))))
    }

    /// Whether what stands here can be a cast's operand, after a bare name or a plain type.
    fn starts_operand(&self, bare: Option<&str>) -> bool {
        let first = self.byte(0);
        let plain = first.is_ascii_alphanumeric() || b"_$@(\"".contains(&first);
        match bare {
            Some(name) if !is_type_word(name) => {
                if Builtin::of(name).is_some() || arg_number(name).is_some() {
                    return false;
                }
                // `(name)` may be a macro in parentheses: what can go on as an operator is one.
                plain || (first == b'*' && self.byte(1) != b'=')
            }
            _ => plain || b"-!~*&+{".contains(&first),
        }
    }
}

/// The number of `arg0`, `arg1` ...
pub(crate) fn arg_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("arg")?;
    if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}
