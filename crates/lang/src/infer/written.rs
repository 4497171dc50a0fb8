//! Types as they are written, to types.
use super::Infer;
use super::promote::settled;
use crate::ast::{ExprKind, Tag, TypeArg, TypeExpr, TypeExprKind};
use crate::diagnostic::Diagnostic;
use crate::names::{basic, nearest};
use crate::types::Type;
use std::sync::Arc;

impl Infer<'_> {
    /// What a written type is; `None` after an error or while it is not known.
    pub(super) fn written(&mut self, ty: &TypeExpr) -> Type {
        match &ty.kind {
            TypeExprKind::Name(name) => self.by_name(name, ty),
            TypeExprKind::Tagged(tag, name) => self.by_tag(*tag, name, ty),
            TypeExprKind::Pointer(of) => match self.written(of) {
                Type::None => Type::None,
                of => Type::Pointer(Arc::new(of)),
            },
            TypeExprKind::Array(of, len) => {
                let of = self.written(of);
                let n = match len.as_ref().map(|l| &l.kind) {
                    None => 0,
                    Some(ExprKind::Int(n)) if (1..=1 << 20).contains(n) => *n as u32,
                    _ => {
                        self.error(ty.span, "an array's size is a constant from 1 to 1048576");
                        1
                    }
                };
                match of {
                    Type::None => Type::None,
                    Type::Str(0) => Type::Str(n),
                    Type::Buffer(0) => Type::Buffer(n),
                    Type::Inet => Type::Inet,
                    of => {
                        if self.around.ctypes.size(&of).checked_mul(n).is_none_or(|s| s > 1 << 24) {
                            self.error(ty.span, "an array of more than 16 MiB");
                            return Type::None;
                        }
                        Type::Array(Arc::new(of), n)
                    }
                }
            }
            TypeExprKind::Typeof(arg) => self.type_arg(arg),
        }
    }

    /// What the operand of `sizeof` and its like is of.
    pub(super) fn type_arg(&mut self, arg: &TypeArg) -> Type {
        match arg {
            TypeArg::Type(ty) => self.written(ty),
            TypeArg::Expr(e) => {
                self.meta += 1;
                let ty = match &e.kind {
                    // Of a map as a whole: its key, if it has one.
                    ExprKind::Map(map) if self.around.maps[map.id.0 as usize].keyed == Some(true) => {
                        self.read_maps.insert(map.id);
                        self.keys[map.id.0 as usize].clone()
                    }
                    _ => self.expr(e),
                };
                self.meta -= 1;
                settled(&ty)
            }
        }
    }

    fn by_name(&mut self, name: &str, ty: &TypeExpr) -> Type {
        if let Some(found) = self.around.names.typedefs.get(name).cloned().or_else(|| basic(name)) {
            return found;
        }
        // `(Foo *)` for `(struct Foo *)`.
        for union in [false, true] {
            if let Some(id) = self.around.names.tags.get(&(union, name.to_string())) {
                return Type::Struct(*id);
            }
        }
        if let Some(id) = self.around.names.enums.get(name) {
            return Type::Enum(*id);
        }
        if let Some(found) = self.of_world(name) {
            self.around.names.typedefs.insert(name.to_string(), found.clone());
            return found;
        }
        let known =
            ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "string", "bool"];
        self.unknown(name, ty, &known)
    }

    fn by_tag(&mut self, tag: Tag, name: &str, ty: &TypeExpr) -> Type {
        let word = match tag {
            Tag::Struct => "struct",
            Tag::Union => "union",
            Tag::Enum => "enum",
        };
        let full = format!("{word} {name}");
        let known = match tag {
            Tag::Enum => self.around.names.enums.contains_key(name),
            _ => self.around.names.tags.contains_key(&(tag == Tag::Union, name.to_string())),
        };
        if !known {
            match self.of_world(&full) {
                Some(Type::Struct(id)) => {
                    self.around.names.tags.insert((tag == Tag::Union, name.to_string()), id);
                }
                Some(Type::Enum(id)) => {
                    self.around.names.enums.insert(name.to_string(), id);
                }
                _ => {
                    let names: Vec<String> =
                        self.around.names.tags.keys().map(|(_, n)| format!("{word} {n}")).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    return self.unknown(&full, ty, &names);
                }
            }
        }
        self.around.names.tagged(tag, name, self.around.ctypes)
    }

    fn of_world(&mut self, name: &str) -> Option<Type> {
        self.around.world.named(&self.points, name, self.around.ctypes)
    }

    fn unknown(&mut self, name: &str, ty: &TypeExpr, known: &[&str]) -> Type {
        if self.report {
            let diagnostic = Diagnostic::error(ty.span, format!("Cannot resolve unknown type \"{name}\""));
            self.problems.push(match nearest(name, known.iter().copied()) {
                Some(near) => diagnostic.hint(format!("Did you mean {near}?")),
                None => diagnostic,
            });
        }
        Type::None
    }
}
