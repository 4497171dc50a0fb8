//! Blocks and statements.
//!
//! For:     probes and macros.
//! State:   none.
//! Context: control.
//! Keeps:   1. What begins with `$` or `@` is read once: the operator after it decides what it is.
//! Checked: tests/language.rs.

use super::cursor::{Cursor, Read};
use crate::ast::{BinOp, Block, Expr, ExprKind, Stmt, StmtKind};

/// Compound assignments.
const COMPOUND: [(&str, BinOp); 10] = [
    ("<<=", BinOp::Shl),
    (">>=", BinOp::Shr),
    ("+=", BinOp::Add),
    ("-=", BinOp::Sub),
    ("*=", BinOp::Mul),
    ("/=", BinOp::Div),
    ("%=", BinOp::Mod),
    ("&=", BinOp::And),
    ("|=", BinOp::Or),
    ("^=", BinOp::Xor),
];

impl Cursor<'_> {
    /// `{ ... }`, with a value if the last expression has no semicolon.
    pub fn block(&mut self) -> Read<Block> {
        self.deeper(|p| {
            let start = p.at;
            p.expect("{", "before a block")?;
            let mut block = Block::default();
            loop {
                while p.eat(";").is_some() {}
                if p.eat("}").is_some() {
                    break;
                }
                if p.at_end() {
                    return Err(p.unexpected("expected } after a block"));
                }
                p.statement(&mut block)?;
            }
            block.span = p.since(start);
            Ok(block)
        })
    }

    /// One statement; an expression before `}` is the block's value.
    fn statement(&mut self, block: &mut Block) -> Read<()> {
        let start = self.at;
        let (kind, ends_by_itself) = self.statement_kind()?;
        let span = self.since(start);
        let ended = self.eat(";").is_some();
        if !ended && self.byte(0) == b'}' {
            if let StmtKind::Expr(value) = kind {
                block.value = Some(Box::new(value));
                return Ok(());
            }
        } else if !ended && !ends_by_itself {
            return Err(self.unexpected("expected ; or }"));
        }
        block.stmts.push(Stmt { span, kind });
        Ok(())
    }

    /// A statement, and whether it needs no semicolon.
    fn statement_kind(&mut self) -> Read<(StmtKind, bool)> {
        let loops = |kind| Ok((kind, true));
        let plain = |kind| Ok((kind, false));
        match self.peek_ident() {
            "while" => {
                self.eat_word("while");
                let cond = self.condition()?;
                loops(StmtKind::While(cond, self.block()?))
            }
            "unroll" => {
                self.eat_word("unroll");
                let count = self.condition()?;
                loops(StmtKind::Unroll(count, self.block()?))
            }
            "for" => loops(self.for_loop()?),
            "let" => plain(self.declaration()?),
            "break" => {
                self.eat_word("break");
                plain(StmtKind::Break)
            }
            "continue" => {
                self.eat_word("continue");
                plain(StmtKind::Continue)
            }
            "return" => {
                self.eat_word("return");
                let bare = matches!(self.byte(0), b';' | b'}');
                plain(StmtKind::Return(if bare { None } else { Some(self.expression()?) }))
            }
            "_" if self.rest()[1..].trim_start().starts_with('=') => {
                self.eat_word("_");
                self.expect("=", "after _")?;
                plain(StmtKind::Discard(self.expression()?))
            }
            "import" => {
                let span = self.span(self.at, self.at + 6);
                self.error(span, "imports stand at the top of a script, before its probes and macros")
            }
            _ => self.expression_statement(),
        }
    }

    fn expression_statement(&mut self) -> Read<(StmtKind, bool)> {
        let first = self.byte(0);
        if self.peek_ident() == "if" {
            return Ok((StmtKind::Expr(self.if_expr()?), true));
        }
        if first == b'{' {
            let block = self.block()?;
            return Ok((StmtKind::Expr(self.expr(block.span, ExprKind::Block(block))), true));
        }
        if first != b'$' && first != b'@' {
            return Ok((StmtKind::Expr(self.expression()?), false));
        }
        self.deeper(|p| {
            let operand = p.unary()?;
            if let Some((op, len)) = p.assignment_operator() {
                return Ok((p.assignment(operand, op, len)?, false));
            }
            Ok((StmtKind::Expr(p.after_operand(operand)?), false))
        })
    }

    fn assignment_operator(&self) -> Option<(Option<BinOp>, usize)> {
        if self.byte(0) == b'=' && self.byte(1) != b'=' {
            return Some((None, 1));
        }
        COMPOUND
            .iter()
            .find(|(text, _)| self.rest().starts_with(text))
            .map(|(text, op)| (Some(*op), text.len()))
    }

    fn assignment(&mut self, target: Expr, op: Option<BinOp>, len: usize) -> Read<StmtKind> {
        match target.kind {
            ExprKind::Var(_) | ExprKind::Map(_) | ExprKind::MapAt(..) => {}
            ExprKind::Index(ref of, _) | ExprKind::Field(ref of, _) => {
                let what = if matches!(of.kind, ExprKind::Var(_)) { "a variable" } else { "a value" };
                return self.error(
                    target.span,
                    format!("only variables and maps can be assigned to, not a part of {what}"),
                );
            }
            ExprKind::Positional(_) => {
                return self.error(target.span, "positional parameters can't be assigned to");
            }
            _ => return self.error(target.span, "only variables and maps can be assigned to"),
        }
        self.take(len);
        let value = self.expression()?;
        Ok(StmtKind::Assign { target, op, value })
    }

    /// `let $x`, `let $x: type`, `let $x = a`, `let $x: type = a`.
    fn declaration(&mut self) -> Read<StmtKind> {
        self.eat_word("let");
        if self.byte(0) == b'@' {
            let span = self.span(self.at, self.at + 1);
            return self.error(
                span,
                "maps are declared at the top of a script, outside of probes: let @name = hash(100);",
            );
        }
        if self.byte(0) != b'$' {
            return Err(self.unexpected("expected a variable after let"));
        }
        let var = self.dollar()?;
        if !matches!(var.kind, ExprKind::Var(_)) {
            return self.error(var.span, "positional parameters can't be declared");
        }
        let ty = if self.byte(0) == b':' {
            self.take(1);
            Some(self.eat_type()?.ok_or_else(|| self.unexpected("expected a type"))?)
        } else {
            None
        };
        let init = if self.eat_op("=", b"=").is_some() { Some(self.expression()?) } else { None };
        Ok(StmtKind::Let { var, ty, init })
    }

    /// `for ($i : 0..5) { }`, `for ($kv : @map) { }`; parentheses may be left out.
    fn for_loop(&mut self) -> Read<StmtKind> {
        self.eat_word("for");
        let parenthesis = self.eat("(").is_some();
        if self.byte(0) != b'$' {
            return Err(self.unexpected("expected a variable after for"));
        }
        let var = self.dollar()?;
        if !matches!(var.kind, ExprKind::Var(_)) {
            return self.error(var.span, "positional parameters can't be loop variables");
        }
        self.expect(":", "after a loop's variable")?;
        let from = self.deeper(Self::unary)?;
        if self.eat("..").is_some() {
            let to = self.deeper(Self::unary)?;
            self.closing(parenthesis)?;
            return Ok(StmtKind::ForRange { var, from, to, body: self.block()? });
        }
        let map = match from.kind {
            ExprKind::Map(_) => from,
            ExprKind::Ident(_) => from,
            _ => {
                let message = "a loop goes over a map, for ($kv : @map), or a range, for ($i : 0..10)";
                return self.error(from.span, message);
            }
        };
        self.closing(parenthesis)?;
        Ok(StmtKind::ForMap { var, map, body: self.block()? })
    }

    fn closing(&mut self, parenthesis: bool) -> Read<()> {
        if parenthesis {
            self.expect(")", "after a loop's range")?;
        }
        Ok(())
    }
}
