//! Fields, indices, casts, arguments.
use super::Infer;
use super::promote::{base, read_as, settled};
use crate::ast::{AttachPoint, Expr, ExprKind, FieldName, Provider, TypeExpr};
use crate::cdecl::field;
use crate::diagnostic::Diagnostic;
use crate::names::nearest;
use crate::site::Located;
use crate::source::Span;
use crate::types::{Int, StructId, Type};
use std::sync::Arc;

impl Infer<'_> {
    pub(super) fn field(&mut self, of: &Expr, name: &FieldName, span: Span) -> Type {
        let mut ty = self.expr(of);
        while let Type::Pointer(to) = &ty {
            ty = (**to).clone();
        }
        let name = &name.name.text;
        let number = name.parse::<usize>();
        match (&ty, number) {
            (Type::None, _) => Type::None,
            (Type::Tuple(parts), Ok(n)) => match parts.get(n) {
                Some(part) => part.clone(),
                None => {
                    let message =
                        format!("Invalid tuple index: {n}. Found {} elements in tuple.", parts.len());
                    self.error(span, message);
                    Type::None
                }
            },
            (_, Ok(n)) => {
                let shown = self.show(&ty);
                self.error(span, format!("Can not access index '{n}' on expression of type '{shown}'"));
                Type::None
            }
            (Type::Record(parts), Err(_)) => match parts.iter().find(|(n, _)| n == name) {
                Some((_, part)) => part.clone(),
                None => {
                    let known: Vec<&str> = parts.iter().map(|(n, _)| n.as_str()).collect();
                    self.no_field(
                        span,
                        format!("Record does not contain a field named '{name}'"),
                        name,
                        &known,
                    )
                }
            },
            (Type::Struct(id), Err(_)) => {
                if let Some(field) = field(self.around.ctypes, *id, name) {
                    return field.ty.clone();
                }
                let (known, defined, title) = {
                    let found = self.around.ctypes.get(*id);
                    let known: Vec<String> = found.fields.iter().map(|f| f.name.clone()).collect();
                    (known, found.defined, found.name.clone())
                };
                if matches!(of.kind, ExprKind::Builtin(crate::builtin::Builtin::Args, _)) {
                    let known: Vec<&str> = known.iter().map(String::as_str).collect();
                    return self.no_field(
                        span,
                        format!("Can't find function parameter {name}"),
                        name,
                        &known,
                    );
                }
                if !defined {
                    self.error(span, format!("Unknown struct/union: '{title}'"));
                    return Type::None;
                }
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                let message =
                    format!("Struct/union of type '{title}' does not contain a field named '{name}'");
                self.no_field(span, message, name, &known)
            }
            _ => {
                let shown = self.show(&ty);
                self.error(span, format!("Can not access field '{name}' on expression of type '{shown}'"));
                Type::None
            }
        }
    }

    fn no_field(&mut self, span: Span, message: String, name: &str, known: &[&str]) -> Type {
        if self.report {
            let diagnostic = Diagnostic::error(span, message);
            self.problems.push(match nearest(name, known.iter().copied()) {
                Some(near) => diagnostic.hint(format!("Did you mean {near}?")),
                None => diagnostic,
            });
        }
        Type::None
    }

    pub(super) fn index(&mut self, of: &Expr, index: &Expr, span: Span) -> Type {
        let ty = self.expr(of);
        let by = self.value(index);
        if ty == Type::None {
            return Type::None;
        }
        let constant = if let ExprKind::Int(n) = index.kind { Some(n) } else { None };
        let (len, element) = match &ty {
            Type::Array(of, n) => (*n, (**of).clone()),
            Type::Str(n) => (*n, Type::Int(Int::I8)),
            Type::Buffer(n) => (*n, Type::Int(Int::U8)),
            Type::Pointer(to) => match &**to {
                Type::Void => {
                    let message = "The array index operator [] cannot be used on a pointer to an unsized type (void *).";
                    self.error(span, message);
                    return Type::None;
                }
                to => (0, to.clone()),
            },
            Type::Tuple(parts) => {
                let part = constant.and_then(|n| usize::try_from(n).ok()).and_then(|n| parts.get(n));
                return match (part, constant) {
                    (Some(part), _) => part.clone(),
                    (None, Some(n)) => {
                        let message =
                            format!("Invalid tuple index: {n}. Found {} elements in tuple.", parts.len());
                        self.error(span, message);
                        Type::None
                    }
                    (None, None) => {
                        self.error(span, "a tuple's index is a constant");
                        Type::None
                    }
                };
            }
            _ => {
                let shown = self.show(&ty);
                let message = format!(
                    "The array index operator [] can only be used on arrays, pointers, and tuples, found {shown}."
                );
                self.error(span, message);
                return Type::None;
            }
        };
        match (constant, &by) {
            (Some(n), _) if n < 0 && !matches!(ty, Type::Pointer(_)) => {
                self.error(span, "The array index operator [] only accepts non-negative integer indices.");
            }
            (Some(n), _) if len > 0 && n >= i128::from(len) => {
                self.error(span, format!("the index {n} is out of bounds for array of size {len}"));
            }
            (Some(_), _) | (None, Type::None | Type::Enum(_)) => {}
            (None, Type::Int(i)) if !i.signed || i.flexible => {}
            (None, by) => {
                let shown = self.show(by);
                let message = format!(
                    "The array index operator [] only accepts non-negative integer indices. Got: {shown}"
                );
                self.error(span, message);
            }
        }
        element
    }

    pub(super) fn cast(&mut self, ty: &TypeExpr, of: &Expr, span: Span) -> Type {
        let from = self.expr(of);
        let to = self.written(ty);
        if to == Type::None || from == Type::None {
            return to;
        }
        let size = self.around.ctypes.size(&from);
        let to = match to {
            // Without a size: that of the value.
            Type::Array(of, 0) => {
                let each = self.around.ctypes.size(&of).max(1);
                let from_size = if let Type::Int(i) = from { u32::from(i.size) } else { size };
                if from_size % each != 0 {
                    let message =
                        format!("a value of {from_size} bytes is no array of elements of {each} bytes");
                    self.error(span, message);
                }
                Type::Array(of, (from_size / each).max(1))
            }
            Type::Str(0) => {
                Type::Str(if let Type::Str(n) = from { n } else { self.around.config.max_strlen as u32 })
            }
            Type::Buffer(0) => Type::Buffer(size),
            to => to,
        };
        self.check_cast(&to, &from, of, span);
        to
    }

    fn check_cast(&mut self, to: &Type, from: &Type, of: &Expr, span: Span) {
        if read_as(from).is_some() && matches!(to, Type::Int(_)) {
            return;
        }
        let (to_size, from_size) = (self.around.ctypes.size(to), self.around.ctypes.size(from));
        let ok = match (to, from) {
            (
                Type::Int(_) | Type::Enum(_) | Type::Bool | Type::Pointer(_),
                Type::Int(_) | Type::Enum(_) | Type::Bool | Type::Pointer(_),
            ) => true,
            (Type::Int(_), Type::Usym | Type::Ksym | Type::Timestamp | Type::Float(_)) => true,
            (Type::Int(_), Type::Array(element, _)) => {
                matches!(**element, Type::Int(_)) && to_size == from_size
            }
            (Type::Int(_), Type::Str(_) | Type::Buffer(_)) => to_size == from_size,
            (Type::Array(element, _), Type::Int(_) | Type::Bool | Type::Enum(_)) => {
                let literal = matches!(of.kind, ExprKind::Int(_));
                matches!(**element, Type::Int(_) | Type::Bool)
                    && (to_size == from_size || (literal && to_size <= 8) || to_size == 8)
            }
            (Type::Array(..), Type::Array(..) | Type::Str(_) | Type::Buffer(_)) => to_size == from_size,
            (Type::Struct(a), Type::Struct(b)) => a == b,
            (Type::Str(_) | Type::Buffer(_), Type::Str(_) | Type::Buffer(_) | Type::Array(..)) => true,
            (Type::Str(_) | Type::Buffer(_), Type::Int(_) | Type::Pointer(_)) => true,
            (Type::Float(a), Type::Float(b)) => a == b,
            (a, b) => settled(a) == settled(b),
        };
        if ok {
            return;
        }
        let (a, b) = (self.show(from), self.show(to));
        if matches!(to, Type::Struct(_)) {
            let message = format!(
                "Cannot cast to struct by value: cast to a pointer, (struct ... *), and follow it: '{b}'"
            );
            self.error(span, message);
        } else {
            let kinds = (base(from, self.around.ctypes), base(to, self.around.ctypes));
            let message = if kinds.0 == "array" || kinds.1 == "array" {
                format!("Cannot cast from \"{a}\" to \"{b}\": the sizes differ")
            } else {
                format!("Cannot cast from \"{a}\" to \"{b}\"")
            };
            self.error(span, message);
        }
    }

    /// `arg0` and its like.
    pub(super) fn argument(&mut self, n: u32, span: Span) -> Type {
        let fits = |p: Provider| matches!(p, Provider::Uprobe | Provider::Usdt) || p.is_kernel();
        if let Some(point) = self.points.iter().find(|p| !fits(p.provider)) {
            let name = point.provider.name();
            self.error(span, format!("The arg{n} builtin can not be used with \"{name}\" probes"));
        }
        Type::Int(Int::U64)
    }

    /// The struct of the function's arguments.
    pub(super) fn args(&mut self, span: Span) -> Type {
        let fits = |p: Provider| p == Provider::Uprobe || p.is_kernel();
        if let Some(point) = self.points.iter().find(|point| !fits(point.provider)) {
            let name = point.provider.name();
            self.error(span, format!("The args builtin can not be used with \"{name}\" probes"));
            return Type::None;
        }
        let mut first: Option<StructId> = None;
        for (i, point) in self.points.clone().iter().enumerate() {
            match (self.args_of(i, point), first) {
                (Err(why), _) => {
                    self.error(span, why);
                    return Type::None;
                }
                (Ok(id), None) => first = Some(id),
                (Ok(id), Some(first)) if self.are_alike(id, first) => {}
                (Ok(_), Some(_)) => {
                    let message = format!(
                        "the arguments of {} and {} differ: write a probe for each",
                        self.points[0].text, point.text
                    );
                    self.error(span, message);
                    return Type::None;
                }
            }
        }
        first.map_or(Type::None, Type::Struct)
    }

    fn args_of(&mut self, i: usize, point: &AttachPoint) -> Result<StructId, String> {
        let key = (self.probe, i);
        if let Some(known) = self.located.get(&key).and_then(|values| values.args.as_ref()) {
            return Ok(known.ty);
        }
        if let Some(why) = self.no_args.get(&key) {
            return Err(why.clone());
        }
        match self.around.world.args(point, self.around.ctypes) {
            Ok(found) => {
                let id = found.ty;
                self.located.entry(key).or_default().args = Some(found);
                Ok(id)
            }
            Err(why) => {
                self.no_args.insert(key, why.clone());
                Err(why)
            }
        }
    }

    /// Whether two structs have the same fields.
    fn are_alike(&self, a: StructId, b: StructId) -> bool {
        let (a, b) = (self.around.ctypes.get(a), self.around.ctypes.get(b));
        a.size == b.size && a.fields == b.fields
    }

    pub(super) fn retval(&mut self, span: Span) -> Type {
        let fits = |p: Provider| matches!(p, Provider::Uretprobe | Provider::Kretprobe | Provider::Fexit);
        if let Some(point) = self.points.iter().find(|p| !fits(p.provider)) {
            let name = point.provider.name();
            self.error(span, format!("The retval builtin can not be used with \"{name}\" probes"));
        }
        let mut found: Option<Type> = None;
        for (i, point) in self.points.clone().iter().enumerate() {
            let key = (self.probe, i);
            if self.located.get(&key).is_none_or(|values| values.retval.is_none()) {
                let located = self.around.world.retval(point, self.around.ctypes);
                let plain = Located { ty: Type::Int(Int::U64), at: Vec::new() };
                self.located.entry(key).or_default().retval = Some(located.unwrap_or(plain));
            }
            let ty = self.located.get(&key).and_then(|values| values.retval.as_ref()).map(|l| l.ty.clone());
            match (&found, &ty) {
                (Some(known), Some(ty)) if known != ty => {
                    // Of several functions with different values: the register, as it is.
                    return Type::Int(Int::U64);
                }
                _ => found = ty,
            }
        }
        found.unwrap_or(Type::Int(Int::U64))
    }

    /// A pointer whose target is of the size of a symbol.
    pub(super) fn symbol_pointer(&mut self, name: &[u8]) -> Type {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut size = None;
        for (i, point) in self.points.clone().iter().enumerate() {
            let values = self.located.entry((self.probe, i)).or_default();
            if !values.symbols.contains_key(&name)
                && let Some(symbol) = self.around.world.symbol(point, &name)
            {
                values.symbols.insert(name.clone(), symbol);
            }
            size = size.or(values.symbols.get(&name).map(|symbol| symbol.size));
        }
        let size = match size {
            Some(n @ (1 | 2 | 4)) => n as u8,
            _ => 8,
        };
        Type::Pointer(Arc::new(Type::Int(Int::new(size, false))))
    }
}
