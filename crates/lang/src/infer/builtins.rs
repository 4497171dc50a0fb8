//! Calls of functions: how many arguments, of what types, and what they give.
use super::Infer;
use super::promote::{read_as, stack_mode};
use crate::ast::{Expr, ExprKind, Provider};
use crate::builtin::Builtin;
use crate::format::{Directive, Piece, parse};
use crate::source::Span;
use crate::types::{Agg, Int, StackKind, StackMode, Type};
use std::sync::Arc;

/// How few and how many arguments a function takes.
fn counts(function: Builtin) -> (usize, usize) {
    use Builtin as B;
    match function {
        B::Printf | B::Errorf | B::Warnf | B::Debugf | B::Cat | B::System | B::Fail => (1, 128),
        B::Print => (1, 3),
        B::Pid
        | B::Tid
        | B::Comm
        | B::Nsecs
        | B::Exit
        | B::Time
        | B::Ppid
        | B::Pcomm
        | B::LeaderTid
        | B::LeaderComm => (0, 1),
        B::Ustack | B::Kstack | B::DwUstack => (0, 2),
        B::Str
        | B::Buf
        | B::Join
        | B::Ntop
        | B::CgroupPath
        | B::Hist
        | B::Delete
        | B::Path
        | B::PercpuKaddr => (1, 2),
        B::Assert | B::StaticAssert | B::Strcontains | B::Strstr | B::StrConcat | B::Strftime | B::HasKey => {
            (2, 2)
        }
        B::Memcmp | B::Strncmp | B::Find | B::ContainerOf | B::WriteUser => (3, 3),
        B::Getopt => (1, 3),
        B::Lhist | B::Skboutput => (4, 4),
        B::Tseries => (3, 4),
        B::Strlen
        | B::Strcap
        | B::Bswap
        | B::Clear
        | B::Zero
        | B::Len
        | B::Sum
        | B::Min
        | B::Max
        | B::Avg
        | B::Stats
        | B::Usym
        | B::Ksym
        | B::Uaddr
        | B::Kaddr
        | B::Uptr
        | B::Kptr
        | B::Pton
        | B::Macaddr
        | B::Strerror
        | B::SignalName
        | B::SyscallName
        | B::Cgroupid
        | B::Reg
        | B::IsErr
        | B::IsPtr
        | B::IsStr
        | B::IsInteger
        | B::IsArray
        | B::IsLiteral
        | B::IsUnsignedInteger
        | B::AssertStr
        | B::Signal
        | B::SignalThread
        | B::Override
        | B::SocketCookie
        | B::KfuncExist
        | B::KfuncAllowed
        | B::Unwatch => (1, 1),
        _ => (0, 0),
    }
}

/// What only a kernel can do.
fn of_the_kernel(function: Builtin) -> bool {
    use Builtin as B;
    matches!(
        function,
        B::Kstack
            | B::Ksym
            | B::Kaddr
            | B::PercpuKaddr
            | B::Curtask
            | B::Path
            | B::Skboutput
            | B::SocketCookie
            | B::KfuncExist
            | B::KfuncAllowed
            | B::Unwatch
            | B::Override
            | B::Jiffies
    )
}

impl Infer<'_> {
    pub(super) fn call(&mut self, function: Builtin, args: &[Expr], expr: &Expr) -> Type {
        let span = expr.span;
        if !self.counted_arguments(function, args.len(), span) {
            args.iter().for_each(|a| {
                if !matches!(a.kind, ExprKind::Ident(_) | ExprKind::Map(_)) {
                    self.expr(a);
                }
            });
            return Type::None;
        }
        self.allowed(function, span);
        if super::aggregate::is(function) {
            return self.aggregation(function, args, span);
        }
        self.plain(function, args, span)
            .or_else(|| self.text_or_stack(function, args, span))
            .unwrap_or_else(|| self.other(function, args, span))
    }

    fn counted_arguments(&mut self, function: Builtin, n: usize, span: Span) -> bool {
        let (least, most) = counts(function);
        if (least..=most).contains(&n) {
            return true;
        }
        let name = function.name();
        let wanted = match (least, most) {
            (0, 0) => "requires no arguments".to_string(),
            (1, 1) => "requires one argument".to_string(),
            (a, b) if a == b => format!("requires {a} arguments"),
            (1, _) if n < least => "requires at least one argument".to_string(),
            (a, _) if n < least => format!("requires at least {a} arguments"),
            (_, 1) => "takes up to one argument".to_string(),
            (_, b) => format!("takes up to {b} arguments"),
        };
        self.error(span, format!("{name}() {wanted} ({n} provided)"));
        false
    }

    fn allowed(&mut self, function: Builtin, span: Span) {
        use Builtin as B;
        let name = function.name();
        let unsafe_one =
            matches!(function, B::System | B::Signal | B::SignalThread | B::Override | B::WriteUser);
        if unsafe_one && self.around.safe {
            self.error(span, format!("{name}() is an unsafe function being used in safe mode"));
        }
        if of_the_kernel(function) && self.points.iter().any(|p| !p.provider.is_kernel()) {
            let message =
                format!("{name} is the kernel's: it is not available in a process or in the controller");
            self.error(span, message);
        }
        let only = |fits: &[Provider]| {
            self.points.iter().find(|p| !fits.contains(&p.provider) && !p.provider.is_kernel())
        };
        let wrong = match function {
            B::Func => only(&[Provider::Uprobe, Provider::Uretprobe]),
            B::Uaddr => only(&[Provider::Uprobe, Provider::Uretprobe, Provider::Usdt]),
            B::Reg => only(&[
                Provider::Uprobe,
                Provider::Uretprobe,
                Provider::Usdt,
                Provider::Watchpoint,
                Provider::Profile,
                Provider::Software,
                Provider::Hardware,
            ]),
            B::Signal | B::SignalThread => {
                only(&[Provider::Uprobe, Provider::Uretprobe, Provider::Usdt, Provider::Profile])
            }
            _ => None,
        };
        if let Some(provider) = wrong.map(|p| p.provider.name()) {
            self.error(span, format!("{name} can not be used with \"{provider}\" probes"));
        }
        if function == B::DwUstack && !self.around.has_target {
            self.error(span, "dw_ustack requires a target process: use -p, -c or --dwarf-pid");
        }
    }

    /// Functions without arguments, or whose argument does not matter for the type.
    fn plain(&mut self, function: Builtin, args: &[Expr], span: Span) -> Option<Type> {
        use Builtin as B;
        let ty = match function {
            B::Pid | B::Tid => {
                self.word(args.first(), &["curr_ns", "init"], function);
                Type::Int(Int::U32)
            }
            B::Nsecs => {
                self.word(args.first(), &["monotonic", "boot", "tai", "sw_tai"], function);
                Type::Int(Int::U64)
            }
            B::Ppid | B::LeaderTid => {
                args.iter().for_each(|a| drop(self.value(a)));
                Type::Int(Int::U32)
            }
            B::Uid
            | B::Gid
            | B::Elapsed
            | B::Cpu
            | B::Ncpus
            | B::Rand
            | B::Jiffies
            | B::Cgroup
            | B::Cpid
            | B::Curtask
            | B::DefaultStrLength => Type::Int(Int::U64),
            B::Numaid => Type::Int(Int::U32),
            B::Usermode => Type::Int(Int::U8),
            B::HasCpid => Type::Bool,
            B::Username => Type::Username,
            B::Comm | B::Pcomm | B::LeaderComm => {
                args.iter().for_each(|a| drop(self.value(a)));
                Type::Str(16)
            }
            B::Probe => {
                Type::Str(self.points.iter().map(|p| p.text.len() as u32 + 1).max().unwrap_or(1).max(64))
            }
            B::Probetype => Type::Str(16),
            B::Func => {
                let user = self.points.iter().all(|p| !p.provider.is_kernel());
                if user { Type::Usym } else { Type::Ksym }
            }
            B::Ctx => Type::Pointer(Arc::new(Type::Void)),
            B::Args => self.args(span),
            B::Retval => self.retval(span),
            B::Config => self.settings(),
            _ => return None,
        };
        Some(ty)
    }

    fn settings(&self) -> Type {
        let number = |n: &str| (n.to_string(), Type::Int(Int::U64));
        let truth = |n: &str| (n.to_string(), Type::Bool);
        let text = |n: &str| (n.to_string(), Type::Str(64));
        Type::Record(
            [
                text("cache_user_symbols"),
                truth("cpp_demangle"),
                truth("lazy_symbolication"),
                text("license"),
                number("log_size"),
                number("max_bpf_progs"),
                number("max_cat_bytes"),
                number("max_map_keys"),
                number("max_probes"),
                number("max_strlen"),
                text("missing_probes"),
                number("on_stack_limit"),
                number("perf_rb_pages"),
                truth("print_maps_on_exit"),
                truth("show_debug_info"),
                text("stack_mode"),
                text("str_trunc_trailer"),
            ]
            .into(),
        )
    }

    /// One of a few words.
    fn word(&mut self, arg: Option<&Expr>, words: &[&str], function: Builtin) {
        let Some(arg) = arg else { return };
        if !matches!(&arg.kind, ExprKind::Ident(w) if words.contains(&w.as_str())) {
            let message = format!("{}() takes one of {}", function.name(), words.join(", "));
            self.error(arg.span, message);
        }
    }

    /// Strings, buffers, stacks, addresses, output.
    fn text_or_stack(&mut self, function: Builtin, args: &[Expr], span: Span) -> Option<Type> {
        use Builtin as B;
        let most = self.around.config.max_strlen.min(1 << 20) as u32;
        let ty = match function {
            B::Ustack | B::DwUstack | B::Kstack => self.stack(function, args, span),
            B::Str => {
                self.one_of(
                    function,
                    &args[0],
                    "a string, integer or a pointer type as first argument",
                    |t| {
                        matches!(
                            t,
                            Type::Str(_)
                                | Type::Int(_)
                                | Type::Pointer(_)
                                | Type::Array(..)
                                | Type::Buffer(_)
                        )
                    },
                );
                let len = args.get(1).and_then(|a| self.length(function, a));
                if let Some(n) = len
                    && n + 1 > u64::from(most)
                {
                    self.warn(span, format!("length param ({n}) is too long and will be shortened to {most} bytes (see BPFTRACE_MAX_STRLEN)"));
                }
                Type::Str(len.map_or(most, |n| (n + 1).min(u64::from(most)) as u32))
            }
            B::Buf => self.buf(args, most, span),
            B::StrConcat => {
                let size = |t: Type| if let Type::Str(n) = t { n } else { most };
                let (a, b) = (self.text(function, &args[0]), self.text(function, &args[1]));
                Type::Str((size(a) + size(b)).saturating_sub(1).min(most.max(1)))
            }
            B::Printf | B::Errorf | B::Warnf | B::Debugf | B::Cat | B::System => {
                self.formatted(function, args, span);
                Type::Void
            }
            B::Fail => {
                let literal =
                    |a: &Expr| matches!(a.kind, ExprKind::Int(_) | ExprKind::Str(_) | ExprKind::Bool(_));
                args.iter().for_each(|a| drop(self.value(a)));
                if args.iter().all(literal) {
                    // Only where it would be reached.
                    if self.dead == 0 {
                        self.error(span, failed_text(args));
                    }
                } else {
                    self.error(span, "fail() arguments need to be literals");
                }
                Type::Void
            }
            B::Print => {
                self.print(args, span);
                Type::Void
            }
            B::Time => {
                if let Some(format) = args.first() {
                    self.literal_text(function, format);
                }
                Type::Void
            }
            B::Strftime => {
                self.literal_text(function, &args[0]);
                self.integer(function, &args[1]);
                if matches!(args[1].kind, ExprKind::Int(n) if n < 0) {
                    self.error(span, "strftime() does not accept negative timestamps");
                }
                if matches!(&args[1].kind, ExprKind::Builtin(B::Nsecs, a) if matches!(a.first().map(|a| &a.kind), Some(ExprKind::Ident(w)) if w == "monotonic"))
                {
                    self.error(span, "strftime() can not take a monotonic timestamp");
                }
                Type::Timestamp
            }
            B::Join => {
                self.one_of(function, &args[0], "int or pointer arguments", |t| {
                    matches!(t, Type::Int(_) | Type::Pointer(_) | Type::Array(..))
                });
                if let Some(separator) = args.get(1) {
                    self.literal_text(function, separator);
                }
                Type::Void
            }
            B::Exit => {
                if let Some(code) = args.first() {
                    self.integer(function, code);
                }
                if self.loops > 0 {
                    self.error(span, "exit() is not allowed in a loop: leave it with break first");
                }
                Type::Void
            }
            _ => return None,
        };
        Some(ty)
    }

    fn other(&mut self, function: Builtin, args: &[Expr], span: Span) -> Type {
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
                self.literal_text(function, &args[0]);
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

    fn one_of(&mut self, function: Builtin, arg: &Expr, wanted: &str, fits: fn(&Type) -> bool) -> Type {
        let ty = self.value(arg);
        if ty != Type::None && !fits(&ty) {
            let shown = self.show(&ty);
            self.error(arg.span, format!("{}() expects {wanted} ({shown} provided)", function.name()));
        }
        ty
    }

    fn integer(&mut self, function: Builtin, arg: &Expr) -> Type {
        let ty = self.value(arg);
        if !matches!(ty, Type::Int(_) | Type::Enum(_) | Type::Bool | Type::None) {
            let shown = self.show(&ty);
            self.error(
                arg.span,
                format!("{}() only supports integer arguments ({shown} provided)", function.name()),
            );
            return Type::None;
        }
        ty
    }

    /// A length: a constant one is given back.
    fn length(&mut self, function: Builtin, arg: &Expr) -> Option<u64> {
        self.integer(function, arg);
        match arg.kind {
            ExprKind::Int(n) if n < 0 => {
                self.error(arg.span, format!("{}() cannot use negative length ({n})", function.name()));
                None
            }
            ExprKind::Int(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    fn text(&mut self, function: Builtin, arg: &Expr) -> Type {
        self.one_of(function, arg, "a string", |t| match t {
            Type::Str(_) | Type::Buffer(_) => true,
            Type::Array(of, _) | Type::Pointer(of) => {
                matches!(**of, Type::Int(Int { size: 1, .. }) | Type::Str(_))
            }
            _ => false,
        })
    }

    fn literal_text(&mut self, function: Builtin, arg: &Expr) -> Option<Vec<u8>> {
        let ty = self.expr(arg);
        if let ExprKind::Str(text) = &arg.kind {
            return Some(text.clone());
        }
        let shown = self.show(&ty);
        self.error(arg.span, format!("{}() expects a string literal ({shown} provided)", function.name()));
        None
    }

    fn stack(&mut self, function: Builtin, args: &[Expr], span: Span) -> Type {
        let mut kind = StackKind {
            mode: self.around.config.stack_mode,
            limit: 127,
            dwarf: function == Builtin::DwUstack,
        };
        let mut rest = args;
        if let Some(ExprKind::Ident(word)) = args.first().map(|a| &a.kind) {
            match stack_mode(word) {
                Some(mode) => kind.mode = mode,
                None => self
                    .error(args[0].span, format!("{word} is no stack mode: bpftrace, perf, raw or build_id")),
            }
            rest = &args[1..];
        } else if args.len() == 2 {
            self.error(span, "Expected stack mode as first argument");
            rest = &args[1..];
        }
        if let Some(limit) = rest.first() {
            self.expr(limit);
            match limit.kind {
                ExprKind::Int(n @ 0..=1024) => kind.limit = n as u32,
                ExprKind::Int(n) => {
                    self.error(
                        span,
                        format!("{}([int limit]): limit shouldn't exceed 1024, {n} given", function.name()),
                    );
                }
                _ => self.error(span, format!("{}: invalid limit value", function.name())),
            }
        }
        if function == Builtin::Kstack {
            if kind.mode == StackMode::BuildId {
                self.error(span, "'build_id' stack mode can only be used for ustack");
            }
            return Type::Kstack(kind);
        }
        Type::Ustack(kind)
    }

    fn buf(&mut self, args: &[Expr], most: u32, span: Span) -> Type {
        let ty = self.one_of(Builtin::Buf, &args[0], "an integer, string, or array argument", |t| {
            matches!(t, Type::Int(_) | Type::Str(_) | Type::Pointer(_) | Type::Array(..) | Type::Buffer(_))
        });
        let size = match args.get(1) {
            Some(len) => self.length(Builtin::Buf, len).map_or(most, |n| n.min(u64::from(most)) as u32),
            None => match &ty {
                Type::Array(..) => self.around.ctypes.size(&ty).min(most),
                Type::None => most,
                other => {
                    let shown = self.show(other);
                    self.error(span, format!("buf() expects a length argument for non-array type {shown}"));
                    most
                }
            },
        };
        Type::Buffer(size)
    }

    fn on_map(&mut self, function: Builtin, args: &[Expr], span: Span) -> Type {
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

    fn print(&mut self, args: &[Expr], span: Span) {
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

    fn formatted(&mut self, function: Builtin, args: &[Expr], span: Span) {
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

    fn ntop(&mut self, args: &[Expr], span: Span) -> Type {
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

    fn pton(&mut self, arg: &Expr) -> Type {
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

    fn macaddr(&mut self, arg: &Expr, span: Span) -> Type {
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

    fn container_of(&mut self, args: &[Expr], span: Span) -> Type {
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

/// Whether a directive can print a type.
fn prints(directive: &Directive, ty: &Type) -> bool {
    let integer = matches!(
        ty,
        Type::Int(_)
            | Type::Enum(_)
            | Type::Bool
            | Type::Pointer(_)
            | Type::Username
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
fn failed_text(args: &[Expr]) -> String {
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
