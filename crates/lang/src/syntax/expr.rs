//! Expressions, by precedence.
//!
//! For:     statements, predicates, keys.
//! State:   none.
//! Context: control.
//! Keeps:   1. A chain of operators counts as depth, for the tree leans to the left.
//! Checked: tests/language.rs (each operator against each), tests/limits.rs, `torture lang`.

use super::cursor::{Cursor, Read};
use super::typename::arg_number;
use crate::ast::{
    BinOp, Block, Call, Expr, ExprKind, FieldName, If, MapId, MapRef, Name, Step, TypeArg, UnOp, VarId,
    VarRef,
};

/// Operators with precedence, and the bytes that may not follow. Longer ones stand before their beginnings.
const BINARY: [(&str, BinOp, u32, &[u8]); 18] = [
    ("||", BinOp::LogOr, 1, b"="),
    ("&&", BinOp::LogAnd, 2, b"="),
    ("==", BinOp::Eq, 6, b""),
    ("!=", BinOp::Ne, 6, b""),
    ("<<", BinOp::Shl, 8, b"="),
    (">>", BinOp::Shr, 8, b"="),
    ("<=", BinOp::Le, 7, b""),
    (">=", BinOp::Ge, 7, b""),
    ("|", BinOp::Or, 3, b"="),
    ("^", BinOp::Xor, 4, b"="),
    ("&", BinOp::And, 5, b"="),
    ("<", BinOp::Lt, 7, b"="),
    (">", BinOp::Gt, 7, b"="),
    ("+", BinOp::Add, 9, b"=+"),
    ("-", BinOp::Sub, 9, b"=-"),
    ("*", BinOp::Mul, 10, b"="),
    ("/", BinOp::Div, 10, b"="),
    ("%", BinOp::Mod, 10, b"="),
];

impl Cursor<'_> {
    /// A whole expression.
    pub fn expression(&mut self) -> Read<Expr> {
        self.deeper(|p| {
            let first = p.unary()?;
            p.after_operand(first)
        })
    }

    /// The rest of an expression whose first operand was read.
    pub fn after_operand(&mut self, first: Expr) -> Read<Expr> {
        let start = first.span.start as usize;
        let cond = self.binary(first, 1)?;
        if self.byte(0) != b'?' {
            return Ok(cond);
        }
        self.take(1);
        let then = if self.byte(0) == b':' { None } else { Some(Box::new(self.expression()?)) };
        self.expect(":", "in a ternary")?;
        let other = self.expression()?;
        let span = self.since(start);
        Ok(self.expr(span, ExprKind::Ternary(Box::new(cond), then, Box::new(other))))
    }

    fn binary(&mut self, mut left: Expr, least: u32) -> Read<Expr> {
        let start = left.span.start as usize;
        let mut levels = 0;
        while let Some((op, precedence, len)) = self.operator(least) {
            self.nest(1)?;
            levels += 1;
            self.take(len);
            let first = self.unary()?;
            let right = self.deeper(|p| p.binary(first, precedence + 1))?;
            let span = self.since(start);
            left = self.expr(span, ExprKind::Binary(op, Box::new(left), Box::new(right)));
        }
        self.depth -= levels;
        Ok(left)
    }

    fn operator(&self, least: u32) -> Option<(BinOp, u32, usize)> {
        // In a predicate a `/` may be its end: then `{` follows.
        let divides = |op: BinOp| op != BinOp::Div || !self.ends_predicate();
        BINARY
            .iter()
            .find(|(text, _, _, not)| self.rest().starts_with(text) && !not.contains(&self.byte(text.len())))
            .filter(|(_, op, precedence, _)| *precedence >= least && divides(*op))
            .map(|(text, op, precedence, _)| (*op, *precedence, text.len()))
    }

    /// Whether a `/` is here and then, after layout, `{`. A division by a block needs parentheses.
    fn ends_predicate(&self) -> bool {
        let mut rest = &self.rest()[1..];
        loop {
            rest = rest.trim_start();
            rest = if let Some(comment) = rest.strip_prefix("//") {
                comment.find('\n').map_or("", |n| &comment[n..])
            } else if let Some(comment) = rest.strip_prefix("/*") {
                comment.find("*/").map_or("", |n| &comment[n + 2..])
            } else {
                return rest.starts_with('{');
            };
        }
    }

    /// A prefix operator and what it is of.
    pub fn unary(&mut self) -> Read<Expr> {
        let start = self.at;
        for (text, step) in [("++", Step::PreInc), ("--", Step::PreDec)] {
            if self.eat(text).is_some() {
                let target = self.deeper(Self::unary)?;
                let span = self.since(start);
                return Ok(self.expr(span, ExprKind::Step(step, Box::new(target))));
            }
        }
        let op = match self.byte(0) {
            b'-' => UnOp::Neg,
            b'!' => UnOp::Not,
            b'~' => UnOp::BitNot,
            b'*' => UnOp::Deref,
            b'&' => UnOp::AddrOf,
            _ => return self.postfix(),
        };
        self.take(1);
        let operand = self.deeper(Self::unary)?;
        let span = self.since(start);
        Ok(self.expr(span, ExprKind::Unary(op, Box::new(operand))))
    }

    fn postfix(&mut self) -> Read<Expr> {
        let first = self.deeper(Self::primary)?;
        self.after_primary(first)
    }

    /// `.name`, `->name`, `[index]`, `++`, `--` after an operand.
    pub fn after_primary(&mut self, mut left: Expr) -> Read<Expr> {
        let start = left.span.start as usize;
        let mut levels = 0;
        loop {
            let kind = if self.byte(0) == b'.' && self.byte(1) != b'.' {
                self.take(1);
                let name = self.field_of(&left)?;
                ExprKind::Field(Box::new(left), FieldName { name, arrow: false })
            } else if self.rest().starts_with("->") {
                self.take(2);
                ExprKind::Field(Box::new(left), FieldName { name: self.field_name()?, arrow: true })
            } else if self.byte(0) == b'[' {
                self.take(1);
                let index = self.expression()?;
                self.expect("]", "after an index")?;
                ExprKind::Index(Box::new(left), Box::new(index))
            } else if self.rest().starts_with("++") {
                self.take(2);
                ExprKind::Step(Step::PostInc, Box::new(left))
            } else if self.rest().starts_with("--") {
                self.take(2);
                ExprKind::Step(Step::PostDec, Box::new(left))
            } else {
                self.depth -= levels;
                return Ok(left);
            };
            self.nest(1)?;
            levels += 1;
            let span = self.since(start);
            left = self.expr(span, kind);
        }
    }

    /// A field's name; those of `typeinfo` have been longer.
    fn field_of(&mut self, of: &Expr) -> Read<Name> {
        let mut name = self.field_name()?;
        if matches!(of.kind, ExprKind::Typeinfo(_)) && matches!(name.text.as_str(), "base_type" | "full_type")
        {
            name.text.truncate("base_ty".len());
        }
        Ok(name)
    }

    fn field_name(&mut self) -> Read<Name> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let text = self.rest()[..digits].to_string();
            return Ok(Name { text, span: self.take(digits) });
        }
        self.ident("a field's name")
    }

    fn primary(&mut self) -> Read<Expr> {
        let start = self.at;
        if let Some((value, span)) = self.eat_number()? {
            return Ok(self.expr(span, ExprKind::Int(value)));
        }
        if let Some((value, span)) = self.eat_string()? {
            return Ok(self.expr(span, ExprKind::Str(value)));
        }
        match self.byte(0) {
            b'(' => self.parenthesis(),
            b'{' => {
                let block = self.block()?;
                Ok(self.expr(block.span, ExprKind::Block(block)))
            }
            b'@' => self.map(),
            b'$' => self.dollar(),
            _ if self.ident_len() > 0 => self.word(start),
            _ => Err(self.unexpected("expected an expression")),
        }
    }

    /// `@name` and `@name[key]`.
    pub fn map(&mut self) -> Read<Expr> {
        let start = self.at;
        self.at += 1;
        let len = self.ident_len();
        let name = self.rest()[..len].to_string();
        self.take(len);
        let map = MapRef { name, id: MapId::NONE };
        if self.byte(0) != b'[' {
            let span = self.since(start);
            return Ok(self.expr(span, ExprKind::Map(map)));
        }
        self.take(1);
        let key_start = self.at;
        let mut keys = vec![self.expression()?];
        while self.eat(",").is_some() {
            keys.push(self.expression()?);
        }
        let key_span = self.since(key_start);
        self.expect("]", "after a map's key")?;
        let key = match keys.len() {
            1 => keys.remove(0),
            _ => self.expr(key_span, ExprKind::Tuple(keys)),
        };
        let span = self.since(start);
        Ok(self.expr(span, ExprKind::MapAt(map, Box::new(key))))
    }

    /// `$name`, `$1`, `$#`.
    pub fn dollar(&mut self) -> Read<Expr> {
        let start = self.at;
        self.at += 1;
        if self.byte(0) == b'#' {
            self.take(1);
            let span = self.since(start);
            return Ok(self.expr(span, ExprKind::PositionalCount));
        }
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let number = self.rest()[..digits].parse().ok().filter(|n| *n > 0);
            self.take(digits);
            let span = self.since(start);
            return match number {
                Some(n) => Ok(self.expr(span, ExprKind::Positional(n))),
                None => self.error(span, "positional parameters are $1, $2 ..."),
            };
        }
        let name = self.ident("a variable's name after $")?;
        let span = self.since(start);
        Ok(self.expr(span, ExprKind::Var(VarRef { name: name.text, id: VarId::NONE })))
    }

    /// What begins with a word.
    fn word(&mut self, start: usize) -> Read<Expr> {
        let word = self.peek_ident();
        let kind = match word {
            "true" | "false" => {
                let value = word == "true";
                self.take(word.len());
                ExprKind::Bool(value)
            }
            "if" => return self.if_expr(),
            "comptime" => {
                self.take(word.len());
                ExprKind::Comptime(Box::new(self.deeper(Self::unary)?))
            }
            "sizeof" | "typeof" | "typeinfo" | "offsetof"
                if self.text[self.at + word.len()..].trim_start().starts_with('(') =>
            {
                self.take(word.len());
                match word {
                    "sizeof" => ExprKind::Sizeof(Box::new(self.type_arg()?)),
                    "typeof" => ExprKind::Typeof(Box::new(self.type_arg()?)),
                    "typeinfo" => ExprKind::Typeinfo(Box::new(self.type_arg()?)),
                    _ => self.offsetof()?,
                }
            }
            "else" | "for" | "while" | "unroll" | "let" | "return" | "break" | "continue" | "import"
            | "macro" | "struct" | "union" | "enum" => {
                return Err(self.unexpected("expected an expression"));
            }
            _ => return self.name_or_call(start),
        };
        let span = self.since(start);
        Ok(self.expr(span, kind))
    }

    fn offsetof(&mut self) -> Read<ExprKind> {
        self.expect("(", "after offsetof")?;
        let arg = self.type_or_expr(b",")?;
        self.expect(",", "after offsetof's type")?;
        let mut path = vec![self.ident("a field's name")?];
        while self.eat(".").is_some() {
            path.push(self.ident("a field's name")?);
        }
        self.expect(")", "after offsetof's field")?;
        Ok(ExprKind::Offsetof(Box::new(arg), path))
    }

    fn name_or_call(&mut self, start: usize) -> Read<Expr> {
        let name = self.ident("a name")?;
        if let Some(n) = arg_number(&name.text) {
            return Ok(self.expr(name.span, ExprKind::Arg(n)));
        }
        let bang = self.byte(0) == b'!' && self.byte(1) == b'(';
        if bang {
            self.take(1);
        }
        if self.byte(0) != b'(' {
            return Ok(self.expr(name.span, ExprKind::Ident(name.text)));
        }
        self.take(1);
        let mut args = Vec::new();
        while self.byte(0) != b')' {
            args.push(self.argument()?);
            if self.eat(",").is_none() {
                break;
            }
        }
        self.expect(")", "after a call's arguments")?;
        let span = self.since(start);
        Ok(self.expr(span, ExprKind::Call(Call { name, bang, args })))
    }

    /// An argument: an expression, or `struct tag` for functions that take a type.
    fn argument(&mut self) -> Read<Expr> {
        if !matches!(self.peek_ident(), "struct" | "union" | "enum") {
            return self.expression();
        }
        let start = self.at;
        let arg = self.type_or_expr(b",)")?;
        let span = self.since(start);
        Ok(match arg {
            TypeArg::Expr(e) => e,
            ty => self.expr(span, ExprKind::Typeof(Box::new(ty))),
        })
    }

    /// `if (c) { } else if (d) { } else { }`; parentheses may be left out.
    pub fn if_expr(&mut self) -> Read<Expr> {
        self.deeper(|p| {
            let start = p.at;
            p.eat_word("if");
            let cond = p.condition()?;
            let then = p.block()?;
            let mut other = None;
            if p.eat_word("else").is_some() {
                other = Some(if p.peek_ident() == "if" {
                    let nested = p.if_expr()?;
                    Block { span: nested.span, stmts: Vec::new(), value: Some(Box::new(nested)) }
                } else {
                    p.block()?
                });
            }
            let span = p.since(start);
            Ok(p.expr(span, ExprKind::If(Box::new(If { cond, then, other }))))
        })
    }

    /// What is decided on: an expression before a block.
    pub fn condition(&mut self) -> Read<Expr> {
        let condition = self.expression()?;
        Ok(match condition.kind {
            ExprKind::Paren(inner) => *inner,
            _ => condition,
        })
    }
}
