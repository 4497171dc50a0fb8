//! Calls of functions: how many arguments, where, and what those give whose arguments do not matter.
mod memory;
mod output;
mod text;

use super::Infer;
use crate::ast::{Expr, ExprKind, Provider};
use crate::builtin::Builtin;
use crate::source::Span;
use crate::types::{Int, Type};
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
            if self.stored.take() != Some(expr.id) {
                self.error(span, format!("{}() must be assigned directly to a map", function.name()));
                return Type::None;
            }
            return self.aggregation(function, args, span);
        }
        self.plain(function, args, span)
            .or_else(|| self.text_or_stack(function, args, span))
            .unwrap_or_else(|| self.other(function, args, span))
    }

    pub(super) fn counted_arguments(&mut self, function: Builtin, n: usize, span: Span) -> bool {
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

    pub(super) fn allowed(&mut self, function: Builtin, span: Span) {
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
    pub(super) fn plain(&mut self, function: Builtin, args: &[Expr], span: Span) -> Option<Type> {
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
                // Another process's name is read from a file, which a hit does not do.
                let is_own = function == B::Comm && args.is_empty();
                let is_traced = self.points.iter().any(|point| point.provider.is_traced());
                if is_own || !is_traced { Type::Str(16) } else { Type::Comm }
            }
            B::Probe => {
                let names = self.points.iter().flat_map(|p| {
                    std::iter::once(p.text.len()).chain(p.sites.iter().map(|site| site.name.len()))
                });
                Type::Str(names.max().unwrap_or(0).max(63) as u32 + 1)
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

    pub(super) fn settings(&self) -> Type {
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
    pub(super) fn word(&mut self, arg: Option<&Expr>, words: &[&str], function: Builtin) {
        let Some(arg) = arg else { return };
        if !matches!(&arg.kind, ExprKind::Ident(w) if words.contains(&w.as_str())) {
            let message = format!("{}() takes one of {}", function.name(), words.join(", "));
            self.error(arg.span, message);
        }
    }
}
