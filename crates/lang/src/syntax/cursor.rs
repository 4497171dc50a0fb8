//! The place in the text, and what is read at it.
//!
//! For:     all of the parser; there are no tokens, each rule reads characters.
//! State:   the place, how deep rules are nested, the comments passed.
//! Context: control.
//! Keeps:   1. The place never passes the text's end and always stands between two characters.
//!          2. Rules nest at most [`DEPTH_MAX`] deep; so does the tree.
//! Checked: tests/limits.rs, `torture lang`.

use crate::ast::{Expr, ExprId, ExprKind, Name};
use crate::diagnostic::Diagnostic;
use crate::source::{FileId, Span};

/// How deep expressions, blocks and types may nest.
pub(crate) const DEPTH_MAX: u32 = 200;
/// How many bytes a script may have.
pub(crate) const SCRIPT_MAX: usize = 1 << 20;

/// The result of a rule.
pub(crate) type Read<T> = Result<T, Box<Diagnostic>>;

/// Where to go back to.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    at: usize,
    last: usize,
    depth: u32,
}

/// The parser of one file.
pub(crate) struct Cursor<'a> {
    pub text: &'a str,
    pub file: FileId,
    pub at: usize,
    /// After the last character that is no layout.
    pub last: usize,
    pub depth: u32,
    pub comments: Vec<Span>,
    pub ids: &'a mut u32,
    pub params: &'a [String],
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str, file: FileId, ids: &'a mut u32, params: &'a [String]) -> Self {
        Cursor { text, file, at: 0, last: 0, depth: 0, comments: Vec::new(), ids, params }
    }

    pub fn mark(&self) -> Mark {
        Mark { at: self.at, last: self.last, depth: self.depth }
    }

    pub fn back(&mut self, mark: Mark) {
        (self.at, self.last, self.depth) = (mark.at, mark.last, mark.depth);
        self.comments.retain(|c| (c.start as usize) < mark.at);
    }

    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// The `n`th byte from here; 0 after the end.
    pub fn byte(&self, n: usize) -> u8 {
        self.text.as_bytes().get(self.at + n).copied().unwrap_or(0)
    }

    pub fn at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Passes white space and comments.
    pub fn layout(&mut self) {
        loop {
            let rest = self.rest();
            let white = rest.len() - rest.trim_start().len();
            self.at += white;
            let rest = self.rest();
            let len = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if let Some(comment) = rest.strip_prefix("/*") {
                comment.find("*/").map_or(rest.len(), |n| n + 4)
            } else if white == 0 {
                return;
            } else {
                continue;
            };
            let span = self.span(self.at, self.at + len);
            if self.comments.last().is_none_or(|c| c.start < span.start) {
                self.comments.push(span);
            }
            self.at += len;
        }
    }

    pub fn span(&self, start: usize, end: usize) -> Span {
        Span { file: self.file, start: start as u32, end: end as u32 }
    }

    /// From `start` to after the last thing read.
    pub fn since(&self, start: usize) -> Span {
        self.span(start, self.last.max(start))
    }

    /// Takes `n` bytes and the layout after them.
    pub fn take(&mut self, n: usize) -> Span {
        let start = self.at;
        self.at += n;
        self.last = self.at;
        self.layout();
        self.span(start, start + n)
    }

    /// Takes `what` if it stands here.
    pub fn eat(&mut self, what: &str) -> Option<Span> {
        self.rest().starts_with(what).then(|| self.take(what.len()))
    }

    /// Takes an operator, if it is not the begin of a longer one.
    pub fn eat_op(&mut self, op: &str, not_before: &[u8]) -> Option<Span> {
        let fits = self.rest().starts_with(op) && !not_before.contains(&self.byte(op.len()));
        fits.then(|| self.take(op.len()))
    }

    pub fn expect(&mut self, what: &str, place: &str) -> Read<Span> {
        match self.eat(what) {
            Some(span) => Ok(span),
            None => Err(self.unexpected(&format!("expected {what} {place}"))),
        }
    }

    /// How long the identifier here is; 0 if there is none.
    pub fn ident_len(&self) -> usize {
        let bytes = self.rest().as_bytes();
        if !bytes.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_') {
            return 0;
        }
        bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count()
    }

    /// The identifier here, without taking it.
    pub fn peek_ident(&self) -> &'a str {
        &self.rest()[..self.ident_len()]
    }

    pub fn eat_ident(&mut self) -> Option<Name> {
        let text = self.peek_ident();
        (!text.is_empty()).then(|| Name { text: text.to_string(), span: self.take(text.len()) })
    }

    pub fn ident(&mut self, what: &str) -> Read<Name> {
        self.eat_ident().ok_or_else(|| self.unexpected(&format!("expected {what}")))
    }

    /// Takes a word if it stands here as a whole.
    pub fn eat_word(&mut self, word: &str) -> Option<Span> {
        (self.peek_ident() == word).then(|| self.take(word.len()))
    }

    pub fn expr(&mut self, span: Span, kind: ExprKind) -> Expr {
        let id = ExprId(*self.ids);
        *self.ids += 1;
        Expr { id, span, kind }
    }

    pub fn error<T>(&self, span: Span, message: impl Into<String>) -> Read<T> {
        Err(Box::new(Diagnostic::error(span, message)))
    }

    /// What stands here, and what should.
    pub fn unexpected(&self, wanted: &str) -> Box<Diagnostic> {
        let (found, len) = match self.peek() {
            None => ("end of file".to_string(), 1),
            Some('"') => ("a string".to_string(), 1),
            Some(c) if self.ident_len() > 0 => {
                let _ = c;
                (self.peek_ident().to_string(), self.ident_len())
            }
            Some(c) => (c.escape_debug().to_string(), c.len_utf8()),
        };
        let (at, len) = if self.at_end() { (self.last.saturating_sub(1), 1) } else { (self.at, len) };
        let at = (0..=at).rev().find(|&n| self.text.is_char_boundary(n)).unwrap_or(0);
        Box::new(Diagnostic::error(
            self.span(at, at + len),
            format!("syntax error, unexpected {found}, {wanted}"),
        ))
    }

    /// One level deeper for the time of a rule.
    pub fn deeper<T>(&mut self, rule: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        self.nest(1)?;
        let result = rule(self);
        self.depth -= 1;
        result
    }

    pub fn nest(&mut self, by: u32) -> Read<()> {
        if self.depth + by > DEPTH_MAX {
            return self.error(
                self.span(self.at, self.at),
                format!("nested too deeply: more than {DEPTH_MAX} levels"),
            );
        }
        self.depth += by;
        Ok(())
    }
}
