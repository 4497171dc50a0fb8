//! `--fmt`: a script written anew in one style, comments kept.
//!
//! For:     whoever keeps scripts in files.
//! State:   what is written so far, and the comments that are still to come.
//! Context: control.
//! Keeps:   1. What comes out reads as what went in; it is read again and compared, or refused.
//!          2. Each comment of the script is in it, in order. Formatting it again changes nothing.
//! Checked: tests/fmt.rs.

mod expr;

use crate::ast::{Block, ExprKind, If, Item, Macro, ParamKind, Probe, Script, Stmt, StmtKind};
use crate::check::Refused;
use crate::diagnostic::Diagnostic;
use crate::source::{FileId, Sources, Span};
use crate::syntax;

/// A script in the usual style: two spaces a level, one statement a line.
///
/// # Errors
/// The text is no script.
pub fn formatted(name: &str, text: &str) -> Result<String, Refused> {
    let refuse = |d: Diagnostic| {
        let mut sources = Sources::default();
        sources.add(name, text);
        Refused { sources, diagnostics: vec![d] }
    };
    let script = syntax::parse(text, FileId(0), &mut 0, &[]).map_err(refuse)?;
    let mut writer = Writer::new(text, &script);
    writer.script(&script);
    let new = writer.out;
    let same = syntax::parse(&new, FileId(0), &mut 0, &[])
        .is_ok_and(|again| shape(&script, text) == shape(&again, &new));
    if !same {
        let message = "this script can't be formatted without a change of its meaning";
        return Err(refuse(Diagnostic::error(Span { file: FileId(0), start: 0, end: 0 }, message)));
    }
    Ok(new)
}

/// The tree without places and numbers, and the text of comments and C parts.
fn shape(script: &Script, text: &str) -> String {
    let of = |span: &Span| text.get(span.start as usize..span.end as usize).unwrap_or("").trim().to_string();
    let mut shape = String::new();
    for item in &script.items {
        match item {
            Item::C(span) => shape += &of(span),
            other => shape += &without_places(&format!("{other:?}")),
        }
        shape.push('\n');
    }
    let in_c = |c: &Span| {
        script.items.iter().any(|i| matches!(i, Item::C(s) if s.start <= c.start && c.start < s.end))
    };
    script.comments.iter().filter(|c| !in_c(c)).for_each(|c| shape += &of(c));
    shape
}

fn without_places(debug: &str) -> String {
    let (mut rest, mut plain) = (debug, String::new());
    while let Some(at) = rest.find("Span {").into_iter().chain(rest.find("ExprId(")).min() {
        plain += &rest[..at];
        let end = if rest[at..].starts_with("Span") { "} }" } else { ")" };
        // A span has a file's number in it: `Span { file: FileId(0), start: 1, end: 2 }`.
        let len = rest[at..].find(if end == ")" { ")" } else { "}" }).map_or(rest.len() - at, |n| n + 1);
        rest = &rest[at + len..];
    }
    plain + rest
}

pub(crate) struct Writer<'a> {
    text: &'a str,
    comments: Vec<Span>,
    next: usize,
    pub out: String,
    level: usize,
    /// The last byte of the script that was written.
    last: usize,
}

impl<'a> Writer<'a> {
    fn new(text: &'a str, script: &Script) -> Writer<'a> {
        let in_c = |c: &Span| {
            script.items.iter().any(|i| matches!(i, Item::C(s) if s.start <= c.start && c.start < s.end))
        };
        let comments = script.comments.iter().copied().filter(|c| !in_c(c)).collect();
        Writer { text, comments, next: 0, out: String::new(), level: 0, last: 0 }
    }

    fn source(&self, span: Span) -> &'a str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    fn indent(&mut self) {
        for _ in 0..self.level {
            self.out.push_str("  ");
        }
    }

    fn line(&mut self, text: &str) {
        self.indent();
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// A blank line if the script has one between what was written last and `at`.
    fn gap(&mut self, at: usize) {
        let between = self.text.get(self.last..at).unwrap_or("");
        let blank = between.bytes().filter(|b| *b == b'\n').count() > 1;
        if blank && !self.out.is_empty() && !self.out.ends_with("{\n") && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    /// Comments that begin before `at`, each on its line.
    fn comments_before(&mut self, at: usize) {
        while let Some(comment) = self.comments.get(self.next).copied().filter(|c| (c.start as usize) < at) {
            self.next += 1;
            self.gap(comment.start as usize);
            let text = self.source(comment).trim_end().to_string();
            self.line(&text);
            self.last = comment.end as usize;
        }
    }

    /// A comment on the line on which `at` is comes to the end of what was written.
    fn comment_beside(&mut self, at: usize) {
        let Some(comment) = self.comments.get(self.next).copied() else { return };
        let between = self.text.get(at..comment.start as usize);
        let near =
            between.is_some_and(|t| !t.contains('\n') && t.trim_matches([' ', '\t', ';', ',']).is_empty());
        let text = self.source(comment).trim_end();
        if near && (comment.start as usize) >= at && !text.contains('\n') && self.out.ends_with('\n') {
            self.next += 1;
            self.out.pop();
            self.out.push(' ');
            self.out.push_str(text);
            self.out.push('\n');
            self.last = comment.end as usize;
        }
    }

    fn script(&mut self, script: &Script) {
        if self.text.starts_with("#!") {
            let line = self.text.lines().next().unwrap_or("").trim_end().to_string();
            self.line(&line);
            self.last = line.len();
        }
        let mut before: Option<&Item> = None;
        for item in &script.items {
            let span = span_of(item);
            let start = span.start as usize;
            let apart = before.is_some_and(|b| !(is_short(b) && is_short(item)));
            let has_comment = self.comments.get(self.next).is_some_and(|c| (c.start as usize) < start);
            if apart && !has_comment && !self.out.ends_with("\n\n") {
                self.out.push('\n');
            }
            if apart && has_comment {
                self.last = self.last.min(start);
            }
            self.comments_before(start);
            if !apart || has_comment {
                self.gap(start);
            }
            self.item(item);
            self.last = self.last.max(span.end as usize);
            self.comment_beside(span.end as usize);
            before = Some(item);
        }
        self.comments_before(usize::MAX);
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::C(span) => {
                let text = self.source(*span).trim_end().to_string();
                let ended = self.text[span.end as usize..].trim_start().starts_with(';');
                let end = if ended && !text.starts_with('#') { ";" } else { "" };
                self.line(&format!("{text}{end}"));
            }
            Item::Config(span, items) => {
                self.line("config = {");
                self.level += 1;
                for item in items {
                    self.comments_before(item.name.span.start as usize);
                    let value = self.source(item.value.span).to_string();
                    self.line(&format!("{} = {value};", item.name.text));
                    self.last = item.value.span.end as usize;
                    self.comment_beside(item.value.span.end as usize);
                }
                self.comments_before(span.end as usize);
                self.level -= 1;
                self.line("}");
            }
            Item::Import(import) => {
                let text = self.source(import.span).trim_start_matches("import").trim().to_string();
                self.line(&format!("import {text};"));
            }
            Item::MapDecl(decl) => {
                let size = self.expr(&decl.max_entries);
                self.line(&format!("let @{} = {}({size});", decl.name.text, decl.kind.text));
            }
            Item::Macro(found) => self.macro_item(found),
            Item::Probe(probe) => self.probe(probe),
        }
    }

    fn macro_item(&mut self, found: &Macro) {
        let params: Vec<String> = found
            .params
            .iter()
            .map(|p| {
                let sigil = match p.kind {
                    ParamKind::Var => "$",
                    ParamKind::Map => "@",
                    ParamKind::Expr => "",
                };
                format!("{sigil}{}", p.name.text)
            })
            .collect();
        self.comments_before(found.body.span.start as usize);
        self.indent();
        self.out += &format!("macro {}({}) ", found.name.text, params.join(", "));
        self.block(&found.body);
        self.out.push('\n');
    }

    fn probe(&mut self, probe: &Probe) {
        self.comments_before(probe.body.span.start as usize);
        let points: Vec<String> = probe
            .points
            .iter()
            .map(|p| {
                let label = p.label.as_ref().map_or(String::new(), |l| format!("{l}="));
                format!("{label}{}", self.source(p.span))
            })
            .collect();
        let mut head = points.join(",\n");
        if let Some(predicate) = &probe.predicate {
            let predicate = self.expr(predicate);
            head += &format!("\n/{predicate}/\n");
        } else {
            head.push(' ');
        }
        self.out += &head;
        self.block(&probe.body);
        self.out.push('\n');
    }

    /// A block from its brace on; what is before it on its line was written.
    fn block(&mut self, block: &Block) {
        let end = block.span.end as usize;
        let has_comment = self.comments.get(self.next).is_some_and(|c| (c.start as usize) < end);
        if block.stmts.is_empty() && block.value.is_none() && !has_comment {
            self.out += "{ }";
            return;
        }
        self.out += "{\n";
        self.level += 1;
        self.last = block.span.start as usize + 1;
        for stmt in &block.stmts {
            self.stmt(stmt);
        }
        if let Some(value) = &block.value {
            let start = value.span.start as usize;
            self.begin(start, value.span.end as usize, &value.kind);
            self.value_line(&value.kind, value);
            self.last = value.span.end as usize;
            self.comment_beside(value.span.end as usize);
        }
        self.comments_before(end.saturating_sub(1));
        self.level -= 1;
        self.indent();
        self.out.push('}');
        self.last = end;
    }

    /// Comments before a statement; of one without blocks also those in it.
    fn begin(&mut self, start: usize, end: usize, kind: &ExprKind) {
        let holds_blocks = matches!(kind, ExprKind::If(_) | ExprKind::Block(_));
        self.comments_before(if holds_blocks { start } else { end });
        self.gap(start);
    }

    fn value_line(&mut self, kind: &ExprKind, value: &crate::ast::Expr) {
        self.indent();
        match kind {
            ExprKind::If(branch) => self.if_chain(branch),
            ExprKind::Block(block) => self.block(block),
            _ => {
                let text = self.expr(value);
                self.out += &text;
            }
        }
        self.out.push('\n');
    }

    fn if_chain(&mut self, branch: &If) {
        let cond = self.expr(&branch.cond);
        self.out += &format!("if ({cond}) ");
        self.block(&branch.then);
        if let Some(other) = &branch.other {
            self.out += " else ";
            match other.value.as_deref().map(|v| &v.kind) {
                Some(ExprKind::If(nested))
                    if other.stmts.is_empty() && !self.source(other.span).starts_with('{') =>
                {
                    self.if_chain(nested);
                }
                _ => self.block(other),
            }
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        let (start, end) = (stmt.span.start as usize, stmt.span.end as usize);
        match &stmt.kind {
            StmtKind::Expr(e) if matches!(e.kind, ExprKind::If(_) | ExprKind::Block(_)) => {
                self.begin(start, end, &e.kind);
                self.indent();
                match &e.kind {
                    ExprKind::If(branch) => self.if_chain(branch),
                    ExprKind::Block(block) => self.block(block),
                    _ => {}
                }
                // Before the block's end it would be its value.
                let ended = self.text[end..].starts_with(';');
                self.out += if ended { ";\n" } else { "\n" };
            }
            StmtKind::While(cond, body) => {
                self.looped(start, body, |w| format!("while ({}) ", w.inner(cond)))
            }
            StmtKind::Unroll(count, body) => {
                self.looped(start, body, |w| format!("unroll ({}) ", w.inner(count)))
            }
            StmtKind::ForRange { var, from, to, body } => self.looped(start, body, |w| {
                format!("for ({} : {}..{}) ", w.expr(var), w.expr(from), w.expr(to))
            }),
            StmtKind::ForMap { var, map, body } => {
                self.looped(start, body, |w| format!("for ({} : {}) ", w.expr(var), w.expr(map)));
            }
            plain => {
                self.comments_before(end);
                self.gap(start);
                let text = self.plain(plain);
                self.line(&format!("{text};"));
            }
        }
        self.last = self.last.max(end);
        self.comment_beside(end);
    }

    fn looped(&mut self, start: usize, body: &Block, head: impl FnOnce(&mut Self) -> String) {
        self.comments_before(body.span.start as usize);
        self.gap(start);
        let head = head(self);
        self.indent();
        self.out += &head;
        self.block(body);
        self.out.push('\n');
    }

    fn plain(&mut self, kind: &StmtKind) -> String {
        match kind {
            StmtKind::Expr(e) => self.expr(e),
            StmtKind::Discard(e) => format!("_ = {}", self.expr(e)),
            StmtKind::Let { var, ty, init } => {
                let ty = ty.as_ref().map_or(String::new(), |t| format!(": {}", self.type_expr(t)));
                let init = init.as_ref().map_or(String::new(), |i| format!(" = {}", self.expr(i)));
                format!("let {}{ty}{init}", self.expr(var))
            }
            StmtKind::Assign { target, op, value } => {
                let op = op.map_or("", crate::infer::sign_of);
                format!("{} {op}= {}", self.expr(target), self.expr(value))
            }
            StmtKind::Break => "break".into(),
            StmtKind::Continue => "continue".into(),
            StmtKind::Return(Some(e)) => format!("return {}", self.expr(e)),
            _ => "return".into(),
        }
    }
}

fn span_of(item: &Item) -> Span {
    match item {
        Item::C(s) | Item::Config(s, _) => *s,
        Item::Import(i) => i.span,
        Item::Probe(p) => p.span,
        Item::Macro(m) => m.span,
        Item::MapDecl(d) => d.span,
    }
}

/// Whether lines of its kind may follow one another without a blank one.
fn is_short(item: &Item) -> bool {
    matches!(item, Item::C(_) | Item::Import(_) | Item::MapDecl(_))
}
