//! C declarations of a script: structs, unions, enums, typedefs, `#define`.
//!
//! For:     casts, fields, enumerators, constants.
//! State:   [`Names`]: what was declared.
//! Context: control.
//! Keeps:   1. Layout is that of the x86-64 System V ABI, as gcc has it, bit fields and attributes included.
//! Checked: tests/language.rs, against gcc's figures.

mod declarator;
mod directive;
mod layout;

use crate::ast::{Expr, Script, Tag};
use crate::diagnostic::Diagnostic;
use crate::names;
use crate::source::FileId;
use crate::syntax::{Cursor, Read};
use crate::types::{CTypes, Enum, EnumId, Field, Int, Struct, StructId, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// How many declared fields a script may have over all its structs.
const FIELDS_MAX: usize = 20_000;

/// What C declarations have named.
#[derive(Default)]
pub(crate) struct Names {
    pub tags: HashMap<(bool, String), StructId>,
    pub enums: HashMap<String, EnumId>,
    pub typedefs: HashMap<String, Type>,
    pub enumerators: HashMap<String, (EnumId, i64)>,
    pub defines: HashMap<String, (FileId, String)>,
    fields: usize,
}

impl Names {
    /// The type of a tag, made if it is new.
    pub fn tagged(&mut self, tag: Tag, name: &str, types: &mut CTypes) -> Type {
        if tag == Tag::Enum {
            return self.enums.get(name).map_or(Type::None, |id| Type::Enum(*id));
        }
        let union = tag == Tag::Union;
        let id = *self.tags.entry((union, name.to_string())).or_insert_with(|| {
            let word = if union { "union" } else { "struct" };
            types.add(Struct {
                name: format!("{word} {name}"),
                union,
                size: 0,
                align: 1,
                fields: Vec::new(),
                defined: false,
            })
        });
        Type::Struct(id)
    }

    /// The value of a name that is a constant.
    pub fn constant(&self, name: &str) -> Option<i64> {
        self.enumerators.get(name).map(|(_, v)| *v).or_else(|| {
            let (_, text) = self.defines.get(name)?;
            crate::syntax::number(text.trim()).and_then(|n| i64::try_from(n).ok())
        })
    }
}

/// Reads the C parts of a script.
///
/// # Errors
/// The first that is no declaration.
pub(crate) fn declare(
    script: &Script,
    text: &str,
    names: &mut Names,
    types: &mut CTypes,
    ids: &mut u32,
    include: &mut dyn FnMut(&str) -> Option<String>,
) -> Result<(), Diagnostic> {
    let mut conditions = Vec::new();
    for item in &script.items {
        let crate::ast::Item::C(span) = item else { continue };
        if text.as_bytes().get(span.start as usize) == Some(&b'#') {
            directive::read(text, *span, names, &mut conditions, include)?;
        } else if !conditions.contains(&false) {
            let inside = &text[..span.end as usize];
            let mut cursor = Cursor::new(inside, span.file, ids, &[]);
            cursor.at = span.start as usize;
            let mut c = Declarations { cursor, names, types };
            c.definition().map_err(|e| *e)?;
        }
    }
    Ok(())
}

struct Declarations<'a, 'b> {
    cursor: Cursor<'a>,
    names: &'b mut Names,
    types: &'b mut CTypes,
}

/// `packed`, `aligned(n)`.
#[derive(Default, Clone, Copy)]
struct Attributes {
    packed: bool,
    aligned: u32,
}

impl Declarations<'_, '_> {
    fn definition(&mut self) -> Read<()> {
        let typedef = self.cursor.eat_word("typedef").is_some();
        let base = self.base()?;
        if typedef {
            loop {
                let (name, ty, _) = self.declarator(base.clone())?;
                if let Some(name) = name {
                    self.names.typedefs.insert(name.text, ty);
                }
                if self.cursor.eat(",").is_none() {
                    break;
                }
            }
        }
        let _ = self.attributes()?;
        if !self.cursor.at_end() && self.cursor.byte(0) != b';' {
            return Err(self.cursor.unexpected("expected ; after a declaration"));
        }
        Ok(())
    }

    /// The type before declarators, with its qualifiers.
    fn base(&mut self) -> Read<Type> {
        self.cursor.nest(1)?;
        let result = self.base_inner();
        self.cursor.depth -= 1;
        result
    }

    fn base_inner(&mut self) -> Read<Type> {
        let mut words = String::new();
        let start = self.cursor.at;
        loop {
            let word = self.cursor.peek_ident();
            match word {
                "const" | "volatile" | "restrict" | "__restrict" | "static" | "extern" | "inline"
                | "register" => {
                    self.cursor.take(word.len());
                }
                "__attribute__" => {
                    self.attributes()?;
                }
                "struct" | "union" if words.is_empty() => {
                    self.cursor.take(word.len());
                    let ty = self.aggregate(word == "union")?;
                    self.qualifiers();
                    return Ok(ty);
                }
                "enum" if words.is_empty() => {
                    self.cursor.take(word.len());
                    let ty = self.enumeration()?;
                    self.qualifiers();
                    return Ok(ty);
                }
                "unsigned" | "signed" | "long" | "short" | "int" | "char" | "float" | "double" => {
                    words += if words.is_empty() { "" } else { " " };
                    words += word;
                    self.cursor.take(word.len());
                }
                "" => break,
                _ if words.is_empty() => {
                    let name = word.to_string();
                    let span = self.cursor.take(word.len());
                    self.qualifiers();
                    return match self.names.typedefs.get(&name).cloned().or_else(|| names::basic(&name)) {
                        Some(ty) => Ok(ty),
                        None => self.cursor.error(span, format!("unknown type name '{name}'")),
                    };
                }
                _ => break,
            }
        }
        if words == "long double" {
            return Ok(Type::Array(Arc::new(Type::Int(Int::U64)), 2));
        }
        match names::basic(&words) {
            Some(ty) if !words.is_empty() => Ok(ty),
            _ => self.cursor.error(self.cursor.since(start), "expected a type"),
        }
    }

    fn qualifiers(&mut self) {
        while matches!(self.cursor.peek_ident(), "const" | "volatile") {
            let len = self.cursor.ident_len();
            self.cursor.take(len);
        }
    }

    /// After `struct` or `union`.
    fn aggregate(&mut self, union: bool) -> Read<Type> {
        let mut attributes = self.attributes()?;
        let tag = self.cursor.eat_ident();
        if self.cursor.byte(0) != b'{' {
            return match tag {
                Some(tag) => {
                    let kind = if union { Tag::Union } else { Tag::Struct };
                    Ok(self.names.tagged(kind, &tag.text, self.types))
                }
                None => Err(self.cursor.unexpected("expected a name or { after struct or union")),
            };
        }
        let id = match &tag {
            Some(tag) => {
                let kind = if union { Tag::Union } else { Tag::Struct };
                match self.names.tagged(kind, &tag.text, self.types) {
                    Type::Struct(id) if self.types.get(id).defined => {
                        let message = format!("redefinition of '{}'", tag.text);
                        return self.cursor.error(tag.span, message);
                    }
                    Type::Struct(id) => id,
                    _ => unreachable!("a struct's tag is a struct"),
                }
            }
            None => self.types.add(Struct {
                name: String::new(),
                union,
                size: 0,
                align: 1,
                fields: Vec::new(),
                defined: false,
            }),
        };
        let members = self.members()?;
        let after = self.attributes()?;
        attributes.packed |= after.packed;
        attributes.aligned = attributes.aligned.max(after.aligned);
        let (fields, size, align) = layout::lay_out(&members, union, attributes, self.types);
        let Some(target) = self.types.structs.get_mut(id.0 as usize) else { return Ok(Type::None) };
        (target.fields, target.size, target.align, target.defined) = (fields, size, align, true);
        Ok(Type::Struct(id))
    }

    fn members(&mut self) -> Read<Vec<layout::Member>> {
        self.cursor.expect("{", "")?;
        let mut members = Vec::new();
        while self.cursor.eat("}").is_none() {
            if self.cursor.eat(";").is_some() {
                continue;
            }
            let base = self.base()?;
            loop {
                let start = self.cursor.at;
                let (name, ty, aligned) = self.declarator(base.clone())?;
                let bits = if self.cursor.eat(":").is_some() { Some(self.constant(64)? as u8) } else { None };
                let attributes = self.attributes()?;
                self.names.fields += 1;
                if self.names.fields > FIELDS_MAX {
                    return self.cursor.error(self.cursor.since(start), "too many fields in all");
                }
                if self.types.size(&ty) > 1 << 24 {
                    return self.cursor.error(self.cursor.since(start), "a field of more than 16 MiB");
                }
                if let Type::Struct(id) = &ty
                    && !self.types.get(*id).defined
                {
                    let message = format!("field has incomplete type '{}'", self.types.get(*id).name);
                    return self.cursor.error(self.cursor.since(start), message);
                }
                let aligned = aligned.max(attributes.aligned);
                let name = name.map(|n| n.text);
                members.push(layout::Member { name, ty, bits, aligned, packed: attributes.packed });
                if self.cursor.eat(",").is_none() {
                    break;
                }
            }
            if self.cursor.eat(";").is_none() && self.cursor.byte(0) != b'}' {
                return Err(self.cursor.unexpected("expected ; after a field"));
            }
        }
        Ok(members)
    }

    /// After `enum`.
    fn enumeration(&mut self) -> Read<Type> {
        let tag = self.cursor.eat_ident();
        if self.cursor.byte(0) != b'{' {
            return match tag {
                Some(tag) => match self.names.enums.get(&tag.text) {
                    Some(id) => Ok(Type::Enum(*id)),
                    None => self.cursor.error(tag.span, format!("unknown enum '{}'", tag.text)),
                },
                None => Err(self.cursor.unexpected("expected a name or { after enum")),
            };
        }
        let name = format!("enum {}", tag.as_ref().map_or("", |t| &t.text));
        let id = self.types.add_enum(Enum { name, int: Int::U32, variants: Vec::new() });
        self.cursor.expect("{", "")?;
        let (mut next, mut variants) = (0i64, Vec::new());
        while self.cursor.eat("}").is_none() {
            let variant = self.cursor.ident("an enumerator's name")?;
            if self.cursor.eat("=").is_some() {
                next = self.constant(i64::MAX)?;
            }
            variants.push((variant.text.clone(), next));
            self.names.enumerators.insert(variant.text, (id, next));
            next = next.wrapping_add(1);
            if self.cursor.eat(",").is_none() && self.cursor.byte(0) != b'}' {
                return Err(self.cursor.unexpected("expected , or } after an enumerator"));
            }
        }
        let small = variants.iter().all(|(_, v)| u32::try_from(*v).is_ok());
        let medium = variants.iter().all(|(_, v)| i32::try_from(*v).is_ok());
        if let Some(new) = self.types.enums.get_mut(id.0 as usize) {
            new.int = if small {
                Int::U32
            } else if medium {
                Int::I32
            } else {
                Int::I64
            };
            new.variants = variants;
        }
        if let Some(tag) = tag {
            self.names.enums.insert(tag.text, id);
        }
        Ok(Type::Enum(id))
    }

    /// A constant expression up to `most`.
    fn constant(&mut self, most: i64) -> Read<i64> {
        let expr: Expr = self.cursor.expression()?;
        let value =
            crate::fold::constant(&expr, &|name| self.names.constant(name), &|ty| self.written_size(ty));
        match value.and_then(|v| i64::try_from(v).ok()) {
            Some(value) if value <= most => Ok(value),
            _ => self.cursor.error(expr.span, "expected a constant that fits"),
        }
    }

    fn written_size(&self, ty: &crate::ast::TypeExpr) -> Option<u32> {
        match &ty.kind {
            crate::ast::TypeExprKind::Name(name) => {
                let ty = self.names.typedefs.get(name).cloned().or_else(|| names::basic(name))?;
                Some(self.types.size(&ty))
            }
            crate::ast::TypeExprKind::Tagged(tag, name) => {
                let id = self.names.tags.get(&(*tag == Tag::Union, name.clone()))?;
                Some(self.types.get(*id).size)
            }
            crate::ast::TypeExprKind::Pointer(_) => Some(8),
            _ => None,
        }
    }

    fn attributes(&mut self) -> Read<Attributes> {
        let mut found = Attributes::default();
        while self.cursor.eat_word("__attribute__").is_some() {
            self.cursor.expect("(", "")?;
            self.cursor.expect("(", "")?;
            while self.cursor.byte(0) != b')' {
                let name = self.cursor.ident("an attribute's name")?;
                match name.text.trim_matches('_') {
                    "packed" => found.packed = true,
                    "aligned" => {
                        found.aligned = 16;
                        if self.cursor.eat("(").is_some() {
                            found.aligned = self.constant(1 << 16)?.max(1) as u32;
                            self.cursor.expect(")", "")?;
                        }
                    }
                    _ => {
                        if self.cursor.byte(0) == b'(' {
                            self.cursor.parenthesis()?;
                        }
                    }
                }
                if self.cursor.eat(",").is_none() {
                    break;
                }
            }
            self.cursor.expect(")", "after attributes")?;
            self.cursor.expect(")", "after attributes")?;
        }
        Ok(found)
    }
}

/// A field by its name.
pub(crate) fn field<'a>(types: &'a CTypes, id: StructId, name: &str) -> Option<&'a Field> {
    types.get(id).fields.iter().find(|f| f.name == name)
}
