//! Functions on addresses, numbers and names.
use super::super::Infer;
use crate::ast::{Expr, ExprKind};
use crate::builtin::Builtin;
use crate::source::Span;
use crate::types::{Int, Type};
use std::sync::Arc;

impl Infer<'_> {
    pub(super) fn other(&mut self, function: Builtin, args: &[Expr], span: Span) -> Type {
        use Builtin as B;
        match function {
            B::Delete | B::HasKey | B::Find | B::Len | B::Clear | B::Zero => {
                self.on_map(function, args, span)
            }
            B::Usym | B::Ksym => {
                self.one_of(function, &args[0], "an integer or pointer argument", |t| {
                    matches!(t, Type::Int(_) | Type::Pointer(_))
                });
                if function == B::Usym { Type::Usym } else { Type::Ksym }
            }
            B::Uaddr | B::Kaddr | B::PercpuKaddr => {
                let name = self.literal_text(function, &args[0]);
                args.iter().skip(1).for_each(|a| drop(self.value(a)));
                match name {
                    Some(name) if function == B::Uaddr => self.symbol_pointer(&name),
                    Some(_) => Type::Int(Int::U64),
                    None => Type::None,
                }
            }
            B::Uptr | B::Kptr => self.one_of(function, &args[0], "integer or pointer arguments", |t| {
                matches!(t, Type::Int(_) | Type::Pointer(_))
            }),
            B::Reg => {
                self.literal_text(function, &args[0]);
                Type::Int(Int::U64)
            }
            B::Bswap => match self.integer(function, &args[0]) {
                Type::Int(i) => Type::Int(Int::new(i.size, false)),
                other => other,
            },
            B::Strncmp => {
                self.text(function, &args[0]);
                self.text(function, &args[1]);
                self.length(function, &args[2]);
                Type::Int(Int::U64)
            }
            B::Memcmp => {
                args[..2].iter().for_each(|a| drop(self.value(a)));
                self.integer(function, &args[2]);
                Type::Int(Int::I64)
            }
            B::Strlen | B::Strcap | B::AssertStr => {
                self.text(function, &args[0]);
                match function {
                    B::Strlen => Type::Int(Int::U64),
                    B::Strcap => Type::Int(Int::I64),
                    _ => Type::Void,
                }
            }
            B::Strcontains | B::Strstr => {
                self.text(function, &args[0]);
                self.text(function, &args[1]);
                if function == B::Strcontains { Type::Bool } else { Type::Int(Int::I64) }
            }
            B::Ntop => self.ntop(args, span),
            B::Pton => self.pton(&args[0]),
            B::Macaddr => self.macaddr(&args[0], span),
            B::Strerror | B::SignalName | B::SyscallName => {
                self.integer(function, &args[0]);
                Type::Str(64)
            }
            B::Cgroupid => {
                let Some(path) = self.literal_text(function, &args[0]) else { return Type::None };
                self.cgroup(path, span);
                Type::Int(Int::U64)
            }
            B::CgroupPath => {
                self.integer(function, &args[0]);
                args.iter().skip(1).for_each(|a| drop(self.literal_text(function, a)));
                Type::CgroupPath
            }
            B::Assert | B::StaticAssert => {
                let ty = self.expr(&args[0]);
                self.condition(&ty, args[0].span, "condition");
                self.value(&args[1]);
                Type::Void
            }
            B::IsErr => {
                self.value(&args[0]);
                Type::Bool
            }
            B::IsPtr | B::IsStr | B::IsInteger | B::IsArray | B::IsLiteral | B::IsUnsignedInteger => {
                self.expr(&args[0]);
                Type::Bool
            }
            B::ContainerOf => self.container_of(args, span),
            B::WriteUser => {
                args.iter().for_each(|a| drop(self.value(a)));
                Type::Bool
            }
            B::Signal | B::SignalThread => {
                self.one_of(function, &args[0], "a string or an integer", |t| {
                    matches!(t, Type::Str(_) | Type::Int(_))
                });
                Type::Void
            }
            B::Path => Type::Str(self.around.config.max_strlen as u32),
            B::KfuncExist | B::KfuncAllowed => Type::Bool,
            B::Override | B::Unwatch => {
                self.value(&args[0]);
                Type::Void
            }
            _ => {
                args.iter().for_each(|a| drop(self.value(a)));
                Type::Int(Int::U64)
            }
        }
    }

    /// A control group's number, asked of the system once.
    fn cgroup(&mut self, path: Vec<u8>, span: Span) {
        if self.cgroups.contains_key(&path) {
            return;
        }
        let text = String::from_utf8_lossy(&path).into_owned();
        match self.around.world.cgroup_id(&text) {
            Some(id) => drop(self.cgroups.insert(path, id)),
            None => self.error(span, format!("cgroupid(): {text} is not the directory of a control group")),
        }
    }

    pub(super) fn ntop(&mut self, args: &[Expr], span: Span) -> Type {
        if args.len() == 2 {
            self.integer(Builtin::Ntop, &args[0]);
        }
        let Some(address) = args.last() else { return Type::None };
        let ty = self.one_of(Builtin::Ntop, address, "an integer or array argument", |t| {
            matches!(t, Type::Int(_) | Type::Str(_) | Type::Array(..) | Type::Pointer(_))
        });
        if matches!(ty, Type::Array(..) | Type::Str(_)) && !matches!(self.around.ctypes.size(&ty), 4 | 16) {
            self.error(span, "ntop() argument must be 4 or 16 bytes in size");
        }
        Type::Inet
    }

    pub(super) fn pton(&mut self, arg: &Expr) -> Type {
        let Some(text) = self.literal_text(Builtin::Pton, arg) else { return Type::None };
        let text = String::from_utf8_lossy(&text).into_owned();
        let bytes = match text.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(_)) => 4,
            Ok(std::net::IpAddr::V6(_)) => 16,
            Err(_) => {
                self.error(arg.span, format!("pton() expects a valid IPv4/IPv6 address, got {text}"));
                return Type::None;
            }
        };
        Type::Array(Arc::new(Type::Int(Int::U8)), bytes)
    }

    pub(super) fn macaddr(&mut self, arg: &Expr, span: Span) -> Type {
        let ty = self.one_of(Builtin::Macaddr, arg, "array or pointer arguments", |t| {
            matches!(t, Type::Int(_) | Type::Array(..) | Type::Str(_) | Type::Pointer(_) | Type::Buffer(_))
        });
        if matches!(arg.kind, ExprKind::Str(_)) {
            self.error(span, "macaddr() does not support literal string arguments");
        }
        if matches!(ty, Type::Array(..) | Type::Str(_)) && self.around.ctypes.size(&ty) < 6 {
            self.error(span, "macaddr() argument must be at least 6 bytes in size");
        }
        Type::MacAddr
    }

    pub(super) fn container_of(&mut self, args: &[Expr], span: Span) -> Type {
        self.value(&args[0]);
        let ExprKind::Typeof(ty) = &args[1].kind else {
            self.error(args[1].span, "container_of() takes a type as its second argument");
            return Type::None;
        };
        let ty = self.type_arg(ty);
        self.types[args[1].id.0 as usize] = ty.clone();
        match (&ty, &args[2].kind) {
            (Type::Struct(id), ExprKind::Ident(name)) => {
                if crate::cdecl::field(self.around.ctypes, *id, name).is_none() {
                    let shown = self.show(&ty);
                    self.error(args[2].span, format!("'{shown}' has no field named '{name}'"));
                }
                Type::Pointer(Arc::new(ty))
            }
            (Type::None, _) => Type::None,
            _ => {
                self.error(span, "container_of() takes a pointer, a struct's type and a field's name");
                Type::None
            }
        }
    }
}
