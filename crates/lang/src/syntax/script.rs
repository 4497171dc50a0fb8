//! A script as a whole.
//!
//! For:     the checker, for the script and each import; `--fmt`.
//! State:   none.
//! Context: control.
//! Keeps:   1. Sections come in their order: C, then config and imports, then the rest.
//! Checked: tests/language.rs.

use super::cursor::{Cursor, Read, SCRIPT_MAX};
use crate::ast::{ConfigItem, ExprKind, Import, Item, Macro, MapDecl, Param, ParamKind, Probe, Script};
use crate::diagnostic::Diagnostic;
use crate::source::{FileId, Span};

/// Reads a script. `ids` numbers its expressions; `params` are the positional parameters, for attach points.
///
/// # Errors
/// The first place that is no script.
pub(crate) fn parse(
    text: &str,
    file: FileId,
    ids: &mut u32,
    params: &[String],
) -> Result<Script, Diagnostic> {
    if text.len() > SCRIPT_MAX {
        let span = Span { file, start: 0, end: 0 };
        return Err(Diagnostic::error(span, format!("the script is longer than {SCRIPT_MAX} bytes")));
    }
    let mut cursor = Cursor::new(text, file, ids, params);
    let items = cursor.script().map_err(|e| *e)?;
    Ok(Script { items, comments: cursor.comments })
}

impl Cursor<'_> {
    fn script(&mut self) -> Read<Vec<Item>> {
        if self.rest().starts_with("#!") {
            self.at = self.rest().find('\n').unwrap_or(self.rest().len());
        }
        self.layout();
        let mut items = Vec::new();
        let mut section = 0;
        while !self.at_end() {
            let start = self.at;
            let item = self.item(section)?;
            let (rank, what) = match item {
                Item::C(_) => (0, "C definitions"),
                Item::Config(..) => (1, "the config block"),
                Item::Import(_) => (1, "imports"),
                _ => (2, ""),
            };
            if rank < section {
                let after = if section == 1 {
                    "config blocks and imports"
                } else {
                    "probes, macros and map declarations"
                };
                let span = self.span(start, start + 1);
                return self.error(span, format!("{what} must come before {after}"));
            }
            section = rank;
            items.push(item);
            while self.eat(";").is_some() {}
        }
        Ok(items)
    }

    fn item(&mut self, section: u32) -> Read<Item> {
        if self.byte(0) == b'#' {
            return Ok(Item::C(self.directive()));
        }
        let word = self.peek_ident();
        let after = self.rest()[word.len()..].trim_start();
        match word {
            "struct" | "union" | "enum" | "typedef" => Ok(Item::C(self.c_definition()?)),
            "config" if after.starts_with('=') => self.config(),
            "import" => self.import(),
            "macro" if after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') => self.macro_item(),
            "let" if after.starts_with('@') => self.map_decl(),
            "fn" if after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') => {
                let span = self.span(self.at, self.at + 2);
                self.error(span, "functions (fn) are not supported: a macro does the same")
            }
            _ => {
                let _ = section;
                self.probe()
            }
        }
    }

    /// A preprocessor line with those that a backslash joins to it.
    fn directive(&mut self) -> Span {
        let start = self.at;
        let mut len = 0;
        for line in self.rest().split_inclusive('\n') {
            len += line.len();
            if !line.trim_end_matches(['\n', '\r']).ends_with('\\') {
                break;
            }
        }
        self.take(len);
        self.span(start, start + self.text[start..start + len].trim_end().len())
    }

    /// A C definition: its braces matched, and what stands after them up to a semicolon.
    fn c_definition(&mut self) -> Read<Span> {
        let start = self.at;
        let typedef = self.peek_ident() == "typedef";
        let (mut depth, mut braces) = (0usize, false);
        while !self.at_end() {
            match self.byte(0) {
                b'{' => {
                    depth += 1;
                    braces = true;
                }
                b'}' => {
                    depth = depth.saturating_sub(1);
                    self.take(1);
                    if depth == 0 && !typedef {
                        self.attributes();
                        let span = self.since(start);
                        self.eat(";");
                        return Ok(span);
                    }
                    continue;
                }
                b';' if depth == 0 => {
                    let span = self.since(start);
                    self.take(1);
                    return Ok(span);
                }
                b'"' => {
                    self.eat_string()?;
                    continue;
                }
                _ => {}
            }
            let len = self.peek().map_or(1, char::len_utf8);
            self.take(len.max(self.ident_len()));
        }
        let wanted = if braces { "expected } after a definition" } else { "expected ; after a declaration" };
        Err(self.unexpected(wanted))
    }

    /// `__attribute__((packed))`, as often as it stands here.
    fn attributes(&mut self) {
        while self.eat_word("__attribute__").is_some() {
            let mut depth = 0usize;
            while !self.at_end() {
                let byte = self.byte(0);
                let len = self.peek().map_or(1, char::len_utf8);
                self.take(len);
                depth = if byte == b'(' { depth + 1 } else { depth };
                if byte == b')' {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        break;
                    }
                }
            }
        }
    }

    fn config(&mut self) -> Read<Item> {
        let start = self.at;
        self.eat_word("config");
        self.expect("=", "after config")?;
        self.expect("{", "after config =")?;
        let mut items = Vec::new();
        while self.eat("}").is_none() {
            let name = self.ident("a setting's name")?;
            self.expect("=", "after a setting's name")?;
            let value = self.expression()?;
            if !matches!(
                value.kind,
                ExprKind::Int(_) | ExprKind::Str(_) | ExprKind::Bool(_) | ExprKind::Ident(_)
            ) {
                return self.error(value.span, "a setting's value is a number, a string or a word");
            }
            items.push(ConfigItem { name, value });
            if self.eat(";").is_none() && self.byte(0) != b'}' {
                return Err(self.unexpected("expected ; or } after a setting"));
            }
        }
        Ok(Item::Config(self.since(start), items))
    }

    fn import(&mut self) -> Read<Item> {
        let start = self.at;
        self.eat_word("import");
        let Some((path, _)) = self.eat_string()? else {
            return Err(self.unexpected("expected a path in quotes after import"));
        };
        let span = self.since(start);
        let Ok(path) = String::from_utf8(path) else {
            return self.error(span, "the path is no text");
        };
        self.expect(";", "after an import")?;
        Ok(Item::Import(Import { span, path }))
    }

    fn macro_item(&mut self) -> Read<Item> {
        let start = self.at;
        self.eat_word("macro");
        let name = self.ident("a macro's name")?;
        let mut params: Vec<Param> = Vec::new();
        if self.eat("(").is_some() {
            while self.byte(0) != b')' {
                let param = self.param()?;
                if params.iter().any(|p| p.name.text == param.name.text) {
                    let message = format!("Duplicate macro parameter: {}", param.name.text);
                    return self.error(param.name.span, message);
                }
                params.push(param);
                if self.eat(",").is_none() {
                    break;
                }
            }
            self.expect(")", "after a macro's parameters")?;
        }
        let body = self.block()?;
        Ok(Item::Macro(Macro { span: self.since(start), name, params, body }))
    }

    fn param(&mut self) -> Read<Param> {
        let kind = match self.byte(0) {
            b'$' => ParamKind::Var,
            b'@' => ParamKind::Map,
            _ => ParamKind::Expr,
        };
        let start = self.at;
        if kind != ParamKind::Expr {
            self.at += 1;
        }
        let mut name = self.ident("a parameter's name")?;
        name.span = self.since(start);
        Ok(Param { name, kind })
    }

    fn map_decl(&mut self) -> Read<Item> {
        let start = self.at;
        self.eat_word("let");
        let map = self.map()?;
        let ExprKind::Map(map_ref) = map.kind else {
            return self.error(map.span, "a map is declared without a key");
        };
        let name = crate::ast::Name { text: map_ref.name, span: map.span };
        self.expect("=", "after a declared map")?;
        let kind = self.ident("a map's kind: hash, lruhash, percpuhash or percpulruhash")?;
        self.expect("(", "after a map's kind")?;
        let max_entries = self.expression()?;
        self.expect(")", "after the number of a map's keys")?;
        let span = self.since(start);
        self.expect(";", "after a map's declaration")?;
        Ok(Item::MapDecl(MapDecl { span, name, kind, max_entries }))
    }

    fn probe(&mut self) -> Read<Item> {
        let start = self.at;
        let points = self.attach_points()?;
        let predicate = if self.eat("/").is_some() {
            let predicate = self.expression()?;
            self.expect("/", "after a predicate")?;
            Some(predicate)
        } else {
            None
        };
        let body = self.block()?;
        Ok(Item::Probe(Probe { span: self.since(start), points, predicate, body }))
    }
}
