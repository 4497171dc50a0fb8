//! What inference found, and what is still wrong with it.
use super::Step;
use crate::ast::{Expr, ExprKind, MapDecl, MapId, Probe};
use crate::checked::{MapKind, Values};
use crate::diagnostic::{Diagnostic, Level};
use crate::fold::Folder;
use crate::resolve::Resolver;
use crate::types::Type;
use crate::visit::Visit;
use std::collections::HashMap;

/// What inference found.
pub(super) struct Found {
    pub types: Vec<Type>,
    pub vars: Vec<Type>,
    pub keys: Vec<Type>,
    pub values: Vec<Type>,
    pub located: HashMap<(usize, usize), Values>,
    pub cgroups: HashMap<Vec<u8>, u64>,
}

impl Found {
    /// Takes out branches that are never taken; what replaces them keeps its type.
    pub fn without_dead_code(self, probes: &mut [Probe], ids: &mut u32) -> Found {
        let mut folder = Folder { ids, changed: false, last: true };
        for probe in probes {
            folder.block(&mut probe.body);
        }
        self
    }
}

/// The maps that are declared: which, of what kind, of how many keys.
pub(super) fn declared(
    sizes: &[(MapDecl, Expr)],
    resolver: &mut Resolver,
) -> Step<Vec<(MapId, MapKind, u64)>> {
    let mut found: Vec<(MapId, MapKind, u64)> = Vec::new();
    for (decl, size) in sizes {
        let kind = match decl.kind.text.as_str() {
            "hash" => MapKind::Hash,
            "lruhash" => MapKind::LruHash,
            "percpuhash" => MapKind::PercpuHash,
            "percpulruhash" => MapKind::PercpuLruHash,
            other => {
                let error = Diagnostic::error(decl.kind.span, format!("Invalid bpf map type: {other}"));
                return Err(vec![error.hint("Valid map types: percpulruhash, percpuhash, lruhash, hash")]);
            }
        };
        let ExprKind::Int(n @ 1..=0xffff_ffff) = size.kind else {
            return Err(vec![Diagnostic::error(
                decl.max_entries.span,
                "the number of a map's keys is a constant from 1 on",
            )]);
        };
        let id = resolver.declared_map(&decl.name.text, decl.name.span);
        if found.iter().any(|(other, ..)| *other == id) {
            let message = format!("@{} was already declared", decl.name.text);
            return Err(vec![Diagnostic::error(decl.span, message)]);
        }
        found.push((id, kind, n as u64));
    }
    Ok(found)
}

/// Without what only follows from another error.
pub(super) fn causes(problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let follows = |d: &Diagnostic| d.level == Level::Error && d.message == crate::infer::NO_TYPE;
    let cause = problems.iter().any(|d| d.level == Level::Error && !follows(d));
    problems.into_iter().filter(|d| !cause || !follows(d)).collect()
}

/// `comptime` that no types decide.
pub(super) fn unresolved(probes: &mut [Probe]) -> Vec<Diagnostic> {
    struct Find(Vec<Diagnostic>);
    impl Visit for Find {
        fn expr(&mut self, expr: &mut Expr) {
            match &expr.kind {
                ExprKind::Comptime(_) => {
                    self.0.push(Diagnostic::error(expr.span, "Unable to resolve comptime expression"));
                }
                ExprKind::Builtin(crate::builtin::Builtin::StaticAssert, args) => {
                    match (&args[..], args.first().map(|a| &a.kind)) {
                        (_, Some(ExprKind::Bool(true) | ExprKind::Int(1..))) => {}
                        (
                            [_, Expr { kind: ExprKind::Str(text), .. }],
                            Some(ExprKind::Bool(false) | ExprKind::Int(0)),
                        ) => {
                            let text = String::from_utf8_lossy(text).into_owned();
                            self.0.push(Diagnostic::error(expr.span, text));
                        }
                        _ => self.0.push(Diagnostic::error(
                            expr.span,
                            "static_assert() takes a condition that is known at compile time and a string",
                        )),
                    }
                }
                _ => {}
            }
            self.parts(expr);
        }
    }
    let mut find = Find(Vec::new());
    for probe in probes {
        if let Some(predicate) = &mut probe.predicate {
            find.expr(predicate);
        }
        find.block(&mut probe.body);
    }
    find.0
}
