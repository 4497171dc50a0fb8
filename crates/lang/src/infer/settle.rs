//! What types decide: `sizeof`, `offsetof`, `typeinfo`, `comptime`, `is_str` and its like become constants.
use super::promote::{base, shown};
use super::{Infer, Locks};
use crate::ast::{Block, Expr, ExprId, ExprKind, Name, Probe, TypeArg};
use crate::builtin::Builtin;
use crate::diagnostic::Diagnostic;
use crate::fold::Folder;
use crate::types::Type;
use crate::visit::Visit;
use std::collections::HashMap;

/// What a round of settling did.
pub(crate) struct Settled {
    /// Whether anything was replaced, so that types are inferred again.
    pub changed: bool,
    /// Types that were read, and may not change.
    pub locks: Locks,
    pub problems: Vec<Diagnostic>,
}

struct Settler<'a> {
    types: &'a [Type],
    written: HashMap<ExprId, Type>,
    ctypes: &'a crate::types::CTypes,
    ids: &'a mut u32,
    changed: bool,
    problems: Vec<Diagnostic>,
}

/// One round over all probes after an inference.
pub(crate) fn settle(infer: &mut Infer<'_>, probes: &mut [Probe], ids: &mut u32) -> Settled {
    let mut locks = infer.locks.clone();
    for id in &infer.read_vars {
        locks.vars.entry(*id).or_insert_with(|| infer.vars[id.0 as usize].ty.clone());
    }
    for id in &infer.read_maps {
        let (key, value) = (infer.keys[id.0 as usize].clone(), infer.values[id.0 as usize].clone());
        locks.maps.entry(*id).or_insert((key, value));
    }
    // Written types are resolved with the inference's names.
    let mut written = Written { infer, found: HashMap::new() };
    for probe in probes.iter_mut() {
        if let Some(predicate) = &mut probe.predicate {
            written.expr(predicate);
        }
        written.block(&mut probe.body);
    }
    let found = written.found;
    let mut settler = Settler {
        types: &infer.types,
        written: found,
        ctypes: infer.around.ctypes,
        ids,
        changed: false,
        problems: Vec::new(),
    };
    for probe in probes.iter_mut() {
        if let Some(predicate) = &mut probe.predicate {
            settler.expr(predicate);
        }
        settler.block(&mut probe.body);
    }
    let (mut changed, problems) = (settler.changed, settler.problems);
    if changed {
        let mut folder = Folder { ids, changed: false, last: false };
        for probe in probes.iter_mut() {
            if let Some(predicate) = &mut probe.predicate {
                folder.expr(predicate);
            }
            folder.block(&mut probe.body);
        }
        changed |= folder.changed;
    }
    Settled { changed, locks, problems }
}

/// Finds the types of the operands of `sizeof` and its like.
struct Written<'a, 'b> {
    infer: &'a mut Infer<'b>,
    found: HashMap<ExprId, Type>,
}

impl Visit for Written<'_, '_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Sizeof(arg) | ExprKind::Offsetof(arg, _) | ExprKind::Typeinfo(arg) = &expr.kind {
            let ty = self.infer.type_arg(arg);
            self.found.insert(expr.id, ty);
        }
        self.parts(expr);
    }
}

impl Settler<'_> {
    fn make(&mut self, span: crate::source::Span, kind: ExprKind) -> Expr {
        let id = ExprId(*self.ids);
        *self.ids += 1;
        Expr { id, span, kind }
    }

    fn offset(&mut self, expr: &Expr, ty: &Type, path: &[Name]) -> Option<i128> {
        let (mut ty, mut offset) = (ty.clone(), 0u32);
        while let Type::Pointer(to) = &ty {
            ty = (**to).clone();
        }
        for name in path {
            let Type::Struct(id) = ty else {
                let message = format!("'{}' is not a C type.", shown(&ty, self.ctypes));
                self.problems.push(Diagnostic::error(expr.span, message));
                return None;
            };
            let Some(field) = crate::cdecl::field(self.ctypes, id, &name.text) else {
                let of = shown(&ty, self.ctypes);
                let message = format!("'{of}' has no field named '{}'", name.text);
                self.problems.push(Diagnostic::error(name.span, message));
                return None;
            };
            offset += field.offset;
            ty = field.ty.clone();
        }
        Some(i128::from(offset))
    }

    fn asked(&self, function: Builtin, arg: &Expr) -> Option<bool> {
        let ty = self.types.get(arg.id.0 as usize)?;
        if *ty == Type::None {
            return None;
        }
        Some(match function {
            Builtin::IsPtr => matches!(ty, Type::Pointer(_)),
            Builtin::IsStr => matches!(ty, Type::Str(_)),
            Builtin::IsInteger => matches!(ty, Type::Int(_) | Type::Enum(_)),
            Builtin::IsUnsignedInteger => matches!(ty, Type::Int(i) if !i.signed),
            Builtin::IsArray => matches!(ty, Type::Array(..)),
            Builtin::IsLiteral => {
                matches!(arg.kind, ExprKind::Int(_) | ExprKind::Bool(_) | ExprKind::Str(_))
            }
            _ => return None,
        })
    }

    fn typeinfo(&mut self, expr: &Expr, ty: &Type) -> ExprKind {
        let text = |t: String| ExprKind::Str(t.into_bytes());
        let parts = [
            ("btf_id", ExprKind::Int(0)),
            ("base_ty", text(base(ty, self.ctypes))),
            ("full_ty", text(shown(ty, self.ctypes))),
        ];
        let mut made = Vec::new();
        for (name, kind) in parts {
            let name = Name { text: name.to_string(), span: expr.span };
            made.push((name, self.make(expr.span, kind)));
        }
        ExprKind::Record(made)
    }
}

impl Visit for Settler<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        let known = self.written.get(&expr.id).cloned().filter(|t| *t != Type::None);
        let new = match (&expr.kind, known) {
            (ExprKind::Sizeof(_), Some(ty)) => Some(ExprKind::Int(i128::from(self.ctypes.size(&ty)))),
            (ExprKind::Offsetof(_, path), Some(ty)) => {
                let path = path.clone();
                Some(ExprKind::Int(self.offset(expr, &ty, &path).unwrap_or(0)))
            }
            (ExprKind::Typeinfo(_), Some(ty)) => Some(self.typeinfo(expr, &ty)),
            (ExprKind::Builtin(function, args), _) if args.len() == 1 => {
                self.asked(*function, &args[0]).map(ExprKind::Bool)
            }
            _ => None,
        };
        if let Some(new) = new {
            expr.kind = new;
            self.changed = true;
            return;
        }
        self.parts(expr);
    }

    fn type_arg(&mut self, _arg: &mut TypeArg) {
        // Never run; what is in it stays as it is.
    }

    fn block(&mut self, block: &mut Block) {
        self.block_parts(block);
    }
}
