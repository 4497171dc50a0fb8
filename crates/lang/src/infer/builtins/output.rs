//! Functions on maps, `print` and formats.
use super::super::Infer;
use super::super::promote::read_as;
use crate::ast::{Expr, ExprKind};
use crate::builtin::Builtin;
use crate::format::{Directive, Piece, parse};
use crate::source::Span;
use crate::types::{Agg, Int, Type};

impl Infer<'_> {
    pub(super) fn on_map(&mut self, function: Builtin, args: &[Expr], span: Span) -> Type {
        use Builtin as B;
        let ExprKind::Map(map) = &args[0].kind else {
            return match (function, &args[0].kind) {
                (B::Delete, ExprKind::MapAt(..)) if args.len() == 1 => {
                    self.expr(&args[0]);
                    Type::Bool
                }
                (B::Len, _) => match self.value(&args[0]) {
                    Type::Ustack(_) | Type::Kstack(_) => Type::Int(Int::I64),
                    Type::None => Type::None,
                    _ => {
                        self.error(args[0].span, "len() expects a map or stack to be provided");
                        Type::None
                    }
                },
                _ => {
                    self.error(args[0].span, format!("{}() expects a map argument", function.name()));
                    Type::None
                }
            };
        };
        let ty = self.values[map.id.0 as usize].clone();
        if ty == Type::None {
            self.error(args[0].span, format!("Undefined map: @{}", map.name));
        }
        let keyed = self.around.maps[map.id.0 as usize].keyed == Some(true);
        self.types[args[0].id.0 as usize] = ty.clone();
        if let Some(key) = args.get(1) {
            self.key(map.id, key, span);
        } else if function == B::Delete && keyed {
            self.error(span, "delete() of a map with keys takes the key: delete(@map, key)");
        }
        match function {
            B::Len => {
                if !keyed && matches!(ty, Type::Ustack(_) | Type::Kstack(_)) {
                    return Type::Int(Int::I64);
                }
                if !keyed && ty != Type::None {
                    self.error(
                        span,
                        format!(
                            "call to len() expects a map with explicit keys (non-scalar map): @{} has none",
                            map.name
                        ),
                    );
                }
                Type::Int(Int::I64)
            }
            B::Find => {
                let read = read_as(&ty).unwrap_or(ty);
                match &args[2].kind {
                    ExprKind::Var(_) => self.store(&args[2], &read, None, span),
                    _ => {
                        self.error(args[2].span, "find() sets a scratch variable: its third argument is one")
                    }
                }
                self.expr(&args[2]);
                Type::Bool
            }
            B::Delete | B::HasKey => Type::Bool,
            _ => Type::Void,
        }
    }

    pub(super) fn print(&mut self, args: &[Expr], span: Span) {
        for arg in &args[1..] {
            self.expr(arg);
            if !matches!(arg.kind, ExprKind::Int(n) if n >= 0) {
                self.error(arg.span, "print() expects an integer literal for its top and div arguments");
            }
        }
        match &args[0].kind {
            ExprKind::Map(map) => {
                let ty = self.values[map.id.0 as usize].clone();
                if ty == Type::None {
                    self.error(args[0].span, format!("Undefined map: @{}", map.name));
                }
                if self.loops > 0 {
                    self.warn(span, "Due to it's asynchronous nature using 'print()' in a loop can lead to unexpected behavior. The map will likely be updated before the runtime can 'print' it.");
                }
                if matches!(ty, Type::Agg(Agg::Stats { .. })) && args.len() > 1 {
                    self.warn(span, "print()'s top and div arguments are ignored when used on stats() maps.");
                }
                self.types[args[0].id.0 as usize] = ty;
            }
            _ => {
                let ty = self.expr(&args[0]);
                match &ty {
                    Type::Agg(_)
                        if read_as(&ty).is_none() && !matches!(args[0].kind, ExprKind::MapAt(..)) =>
                    {
                        let shown = self.show(&ty);
                        self.error(span, format!("{shown} type passed to print() is not printable"));
                    }
                    Type::Void => self.error(span, "void type passed to print() is not printable"),
                    _ if args.len() > 1 => {
                        self.error(
                            span,
                            format!("Non-map print() only takes 1 argument, {} found", args.len()),
                        );
                    }
                    _ => {}
                }
            }
        }
    }

    pub(super) fn formatted(&mut self, function: Builtin, args: &[Expr], span: Span) {
        let types: Vec<Type> = args[1..].iter().map(|a| self.value(a)).collect();
        let Some(text) = self.literal_text(function, &args[0]) else { return };
        let pieces = match parse(&text) {
            Ok(pieces) => pieces,
            Err(at) => {
                let shown =
                    String::from_utf8_lossy(&text[at.start..(at.end + 3).min(text.len())]).into_owned();
                self.error(
                    args[0].span,
                    format!("{}: invalid format directive at '{shown}'", function.name()),
                );
                return;
            }
        };
        let directives: Vec<&Directive> =
            pieces.iter().filter_map(|p| if let Piece::Value(d) = p { Some(d) } else { None }).collect();
        if directives.len() != types.len() {
            let few = if directives.len() > types.len() { "Not enough" } else { "Too many" };
            let message = format!(
                "{few} arguments for format string ({} supplied, {} expected)",
                types.len(),
                directives.len()
            );
            self.error(span, message);
            return;
        }
        for ((directive, ty), arg) in directives.iter().zip(&types).zip(&args[1..]) {
            if *ty != Type::None && !prints(directive, ty) {
                let message = format!(
                    "{}: %{} specifier expects a value of type {} ({} supplied)",
                    function.name(),
                    directive.conversion,
                    wanted(directive),
                    self.show(ty)
                );
                self.error(arg.span, message);
            }
        }
    }
}

/// Whether a directive can print a type.
fn prints(directive: &Directive, ty: &Type) -> bool {
    let integer = matches!(
        ty,
        Type::Int(_)
            | Type::Enum(_)
            | Type::Bool
            | Type::Pointer(_)
            | Type::Username
            | Type::Comm
            | Type::Usym
            | Type::Ksym
            | Type::Timestamp
    );
    match directive.conversion.as_str() {
        "s" => !matches!(ty, Type::Int(_) | Type::Pointer(_) | Type::Agg(_) | Type::Float(_) | Type::Void),
        "r" | "rh" | "rx" => matches!(ty, Type::Buffer(_)),
        "f" | "e" | "E" | "g" | "G" | "a" | "A" => matches!(ty, Type::Float(_)),
        "c" => matches!(ty, Type::Int(_) | Type::Enum(_) | Type::Bool),
        _ => integer || *ty == Type::Float(8) || *ty == Type::Float(4),
    }
}

fn wanted(directive: &Directive) -> &'static str {
    match directive.conversion.as_str() {
        "s" => "string",
        "r" | "rh" | "rx" => "buffer",
        "f" | "e" | "E" | "g" | "G" | "a" | "A" => "float",
        "p" => "pointer",
        _ => "integer",
    }
}

/// The message of `fail()`, its literals put in.
pub(super) fn failed_text(args: &[Expr]) -> String {
    let Some(ExprKind::Str(format)) = args.first().map(|a| &a.kind) else {
        return "first argument to fail() must be a string literal".into();
    };
    let mut values = args[1..].iter();
    let mut text = Vec::new();
    for piece in parse(format).unwrap_or_default() {
        match piece {
            Piece::Text(t) => text.extend(t),
            Piece::Value(_) => match values.next().map(|v| &v.kind) {
                Some(ExprKind::Str(s)) => text.extend(s),
                Some(ExprKind::Int(n)) => text.extend(n.to_string().into_bytes()),
                Some(ExprKind::Bool(b)) => text.extend(b.to_string().into_bytes()),
                _ => {}
            },
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
