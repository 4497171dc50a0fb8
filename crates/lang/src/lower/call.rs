//! Functions and builtins.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   a function that is only in the kernel is refused by its name.
//! Checked: tests/scripts.rs.

use super::build::{Build, Done};
use super::code::{THREAD, r};
use super::expr::Key;
use super::frame::Place;
use crate::Builtin;
use crate::arch::{self, RETVAL};
use crate::ast::{Expr, ExprKind, Provider};
use crate::program::Trouble;
use crate::types::{Int, Type};
use bpf::helper::{self, About, Named};
use bpf::{Alu, Cond, Op, Operand, Order};

/// The greatest errno that a pointer can be.
const MAX_ERRNO: i32 = 4095;

impl Build<'_, '_> {
    /// A call for its effect, or for a number in r0.
    pub fn call(&mut self, builtin: Builtin, args: &[Expr], e: &Expr) -> Done {
        use Builtin as B;
        match builtin {
            B::Printf | B::Print | B::Errorf | B::Warnf | B::Debugf | B::Join | B::Cat | B::System => {
                self.output(builtin, args, e)
            }
            B::Time | B::Exit | B::Clear | B::Zero | B::Assert => self.output(builtin, args, e),
            B::Delete => self.delete(args, e, false),
            B::HasKey | B::Find | B::Len => self.map_call(builtin, args, e),
            B::Strncmp | B::Memcmp | B::Strlen | B::Strcap | B::Strcontains | B::Strstr => {
                self.text_call(builtin, args, e)
            }
            B::Pid | B::Tid | B::Uid | B::Gid | B::Cpid | B::HasCpid | B::Cpu | B::Ncpus | B::Numaid => {
                self.identity(builtin, args, e)
            }
            B::Ppid | B::Pcomm => self.about(About::Ppid),
            B::Comm => self.first(args, e).and_then(|a| self.scalar(a)),
            B::LeaderComm => self.about(About::LeaderTid),
            B::LeaderTid => self.about(About::LeaderTid),
            B::Cgroup => self.about(About::Cgroup),
            B::Jiffies => self.about(About::Jiffies),
            B::Cgroupid => {
                let a = self.first(args, e)?;
                let ExprKind::Str(path) = &a.kind else { return self.refuse(a.span, "not a path") };
                let id = self.up.checked.cgroups.get(path).copied().unwrap_or(0);
                self.number(id.cast_signed())
            }
            B::Nsecs | B::Elapsed | B::Rand => self.clock(builtin, args, e),
            B::Username => {
                self.code.call(helper::UID_GID);
                self.narrow(Int::new(4, false));
                Ok(())
            }
            B::Usermode if self.point.provider.is_traced() => self.number(1),
            B::Usermode => self.about(About::Usermode),
            B::Ctx => {
                self.context(r(0));
                Ok(())
            }
            B::Retval => {
                let in_register =
                    |part: &image::dwarf::Part| matches!(part.loc, image::Loc::Register { number: 0, .. });
                let is_plain = self.group.value.as_ref().is_none_or(|parts| parts.iter().all(in_register));
                let int = self.int(self.ty(e));
                if is_plain {
                    self.register(RETVAL);
                } else {
                    let to = self.frame.take(8);
                    self.returned(to, usize::from(int.size), e)?;
                    self.load(to, int, r(0));
                }
                self.narrow(int);
                Ok(())
            }
            B::Reg => self.named_register(args, e),
            B::Uaddr => self.symbol(args, e),
            // Its type was asked about, and that was all.
            B::AssertStr => Ok(()),
            B::Uptr | B::Kptr => self.first(args, e).and_then(|a| self.scalar(a)),
            B::Bswap => {
                let a = self.first(args, e)?;
                self.scalar(a)?;
                let size = super::memory::size_of(self.int(self.ty(a)).size);
                if size != bpf::Size::B {
                    self.code.op(Op::End { order: Order::Swap, size, dst: r(0) });
                }
                Ok(())
            }
            B::IsErr => {
                let a = self.first(args, e)?;
                self.scalar(a)?;
                self.set_if(Cond::Ge, Operand::Imm(-MAX_ERRNO))
            }
            B::Signal | B::SignalThread => {
                let a = self.first(args, e)?;
                let named = word(a).map(|name| crate::run::signal_number(&name));
                match named {
                    Some(Some(number)) => self.code.constant(r(0), number.into()),
                    Some(None) => return self.refuse(a.span, "no signal has this name"),
                    None => self.scalar(a)?,
                }
                self.code.mov(r(1), r(0));
                self.code.constant(r(2), i64::from(builtin == B::SignalThread));
                self.code.call(helper::SEND_SIGNAL);
                Ok(())
            }
            B::WriteUser => self.write_user(args, e),
            B::ContainerOf => self.container_of(args, e),
            B::DefaultStrLength => self.number(self.up.checked.config.max_strlen as i64),
            B::Str | B::Buf => self.refuse(e.span, "this can't be used as a number"),
            _ => self.refuse(
                e.span,
                format!(
                    "{}() is a function of the kernel or needs a target, which this version does not have",
                    builtin.name()
                ),
            ),
        }
    }

    /// A call for a value that is no number.
    pub fn call_into(&mut self, builtin: Builtin, args: &[Expr], e: &Expr, to: Place, ty: &Type) -> Done {
        use Builtin as B;
        let len = self.size(ty);
        match builtin {
            B::Comm if args.is_empty() => self.fill(helper::COMM, to, len),
            B::Comm => {
                let a = self.first(args, e)?;
                self.scalar(a)?;
                self.code.mov(r(1), r(0));
                self.text_result(helper::COMM_OF, to, len)
            }
            B::Pcomm => self.about_text(About::Pcomm, to, len),
            B::LeaderComm => self.about_text(About::LeaderComm, to, len),
            B::Probe => self.probe_name(to, len),
            B::Config => {
                let bytes = self.configured(ty);
                let from = self.constant(&bytes);
                self.copy(from, to, len);
                Ok(())
            }
            B::Probetype => self.text_into(kind(self.point.provider), to, len),
            B::Func => {
                self.function(to);
                Ok(())
            }
            B::Args => self.arguments(to, len, e),
            B::Retval => self.returned(to, len, e),
            B::Str => self.str(args, e, to, len),
            B::Buf => self.buf(args, e, to, len),
            B::StrConcat => self.concat(args, to, len),
            B::Strerror => self.name_of(Named::Error, args, e, to, len),
            B::SignalName => self.name_of(Named::Signal, args, e, to, len),
            B::SyscallName => self.name_of(Named::Syscall, args, e, to, len),
            B::Ntop => self.ntop(args, e, to),
            B::Pton => self.pton(args, e, to, len),
            B::Macaddr => {
                let a = self.first(args, e)?;
                self.bytes_of(a, to, len)
            }
            B::Usym => {
                self.zero(to, len);
                let a = self.first(args, e)?;
                self.scalar(a)?;
                self.store_r0(to, 8);
                self.code.call(helper::PID_TGID);
                self.code.alu(Alu::Rsh, r(0), Operand::Imm(32));
                self.store_r0(to.plus(8), 8);
                Ok(())
            }
            B::Strftime => self.strftime(args, e, to),
            B::CgroupPath => {
                self.zero(to, len);
                let a = self.first(args, e)?;
                self.scalar(a)?;
                self.store_r0(to, 8);
                Ok(())
            }
            B::Ustack | B::DwUstack => {
                let Type::Ustack(kind) = ty else { return self.refuse(e.span, "not a stack") };
                self.address(to, r(1));
                self.code.constant(r(2), i64::from(kind.limit));
                self.code.constant(r(3), i64::from(kind.dwarf));
                self.code.call(helper::USER_STACK);
                Ok(())
            }
            B::Uptr | B::Kptr => {
                let a = self.first(args, e)?;
                self.into(a, to, ty)
            }
            _ => self.refuse(
                e.span,
                format!(
                    "{}() is a function of the kernel or needs a target, which this version does not have",
                    builtin.name()
                ),
            ),
        }
    }

    /// The first argument.
    pub fn first<'e>(&self, args: &'e [Expr], e: &Expr) -> Done<&'e Expr> {
        args.first().map_or_else(|| self.refuse(e.span, "an argument is missing"), Ok)
    }

    /// r0 = where the struct begins that a member is in.
    fn container_of(&mut self, args: &[Expr], e: &Expr) -> Done {
        let ([member, _, Expr { kind: ExprKind::Ident(name), .. }], Type::Pointer(to)) = (args, self.ty(e))
        else {
            return self.refuse(e.span, "container_of() takes a pointer, a struct's type and a field's name");
        };
        let Some((at, _)) = self.field(to, name) else {
            return self.refuse(e.span, format!("no field {name}"));
        };
        self.scalar(member)?;
        self.code.alu_imm(Alu::Sub, r(0), at as i64);
        Ok(())
    }

    fn number(&mut self, n: i64) -> Done {
        self.code.constant(r(0), n);
        Ok(())
    }

    fn about(&mut self, about: About) -> Done {
        self.code.constant(r(1), about as i64);
        self.code.constant(r(2), 0);
        self.code.constant(r(3), 0);
        self.code.call(helper::ABOUT);
        Ok(())
    }

    fn about_text(&mut self, about: About, to: Place, len: usize) -> Done {
        self.code.constant(r(1), about as i64);
        self.text_result(helper::ABOUT, to, len)
    }

    /// A helper of (r1, to, length).
    fn text_result(&mut self, helper: u32, to: Place, len: usize) -> Done {
        self.address(to, r(2));
        self.code.constant(r(3), len as i64);
        self.code.call(helper);
        Ok(())
    }

    /// A helper of (to, length).
    fn fill(&mut self, helper: u32, to: Place, len: usize) -> Done {
        self.address(to, r(1));
        self.code.constant(r(2), len as i64);
        self.code.call(helper);
        Ok(())
    }

    /// A constant text.
    fn text_into(&mut self, text: &str, to: Place, len: usize) -> Done {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(len, 0);
        let from = self.constant(&bytes);
        self.copy(from, to, len);
        Ok(())
    }

    fn identity(&mut self, builtin: Builtin, args: &[Expr], e: &Expr) -> Done {
        use Builtin as B;
        match builtin {
            B::Tid if args.is_empty() && self.code.knows_thread() => {
                self.code.mov(r(0), THREAD);
                return Ok(());
            }
            B::Pid | B::Tid => {
                if args.first().and_then(word).is_some_and(|word| word == "init") {
                    self.about(About::InitPidTgid)?;
                } else {
                    self.code.call(helper::PID_TGID);
                }
            }
            B::Uid | B::Gid => self.code.call(helper::UID_GID),
            B::Cpid => {
                self.code.call(helper::CHILD);
                let has = self.code.label();
                self.code.jump(Cond::Ne, r(0), Operand::Imm(0), has);
                self.trouble(Trouble::NoChild, e.span);
                self.code.constant(r(0), 0);
                self.code.bind(has);
            }
            B::HasCpid => {
                self.code.call(helper::CHILD);
                return self.set_if(Cond::Ne, Operand::Imm(0));
            }
            B::Cpu => self.code.call(helper::SMP_PROCESSOR_ID),
            B::Numaid => self.code.call(helper::NUMA_NODE_ID),
            _ => return self.number(i64::from(self.up.options.ncpus)),
        }
        match builtin {
            B::Pid | B::Gid => self.code.alu(Alu::Rsh, r(0), Operand::Imm(32)),
            _ => self.narrow(Int::new(4, false)),
        }
        if builtin == B::Tid && args.is_empty() && self.keeps_thread {
            self.code.keep_thread();
        }
        Ok(())
    }

    fn clock(&mut self, builtin: Builtin, args: &[Expr], e: &Expr) -> Done {
        match (builtin, args.first().and_then(word).as_deref()) {
            (Builtin::Rand, _) => self.code.call(helper::PRANDOM_U32),
            (Builtin::Elapsed, _) => {
                self.about(About::Began)?;
                let began = self.keep();
                self.code.call(helper::KTIME_GET_BOOT_NS);
                self.kept(began, r(1));
                self.code.alu(Alu::Sub, r(0), Operand::Reg(r(1)));
            }
            (_, Some("monotonic")) => self.code.call(helper::KTIME_GET_NS),
            (_, Some("tai" | "sw_tai")) => self.code.call(helper::KTIME_GET_TAI_NS),
            (_, None | Some("boot")) => self.code.call(helper::KTIME_GET_BOOT_NS),
            (_, Some(other)) => return self.refuse(e.span, format!("no clock {other}")),
        }
        Ok(())
    }

    fn named_register(&mut self, args: &[Expr], e: &Expr) -> Done {
        let name = args.first().and_then(word).unwrap_or_default();
        let Some(at) = arch::by_name(&name) else {
            let arch = arch::NAME;
            return self
                .refuse(e.span, format!("'{name}' is not a valid register on this architecture ({arch})"));
        };
        self.register(at);
        Ok(())
    }

    fn write_user(&mut self, args: &[Expr], e: &Expr) -> Done {
        let [dst, src, len] = args else { return self.refuse(e.span, "write_user takes three arguments") };
        self.scalar(dst)?;
        let dst = self.keep();
        if self.is_scalar(self.ty(src)) {
            self.scalar(src)?;
        } else {
            let place = self.place(src)?;
            self.address(place, r(0));
        }
        let src = self.keep();
        self.scalar(len)?;
        self.code.mov(r(3), r(0));
        self.kept(dst, r(1));
        self.kept(src, r(2));
        self.code.call(helper::WRITE_USER);
        self.set_if(Cond::Eq, Operand::Imm(0))
    }

    fn map_call(&mut self, builtin: Builtin, args: &[Expr], e: &Expr) -> Done {
        let a = self.first(args, e)?;
        let (map, key) = match &a.kind {
            ExprKind::Map(map) => (map.id, args.get(1)),
            ExprKind::MapAt(map, key) => (map.id, Some(&**key)),
            _ if builtin == Builtin::Len => {
                // A stack's second word is its depth.
                let place = self.place(a)?;
                self.load(place.plus(8), Int::new(8, false), r(0));
                return Ok(());
            }
            _ => return self.refuse(a.span, "not a map"),
        };
        if builtin == Builtin::Len {
            self.map_to_r1(map);
            self.code.call(helper::MAP_LEN);
            return Ok(());
        }
        // An aggregate that is found is asked for by a pointer, and by the same one again.
        let is_agg = matches!(self.up.checked.map(map).value, Type::Agg(_));
        let key = match is_agg && builtin != Builtin::HasKey {
            true => Key::At(self.key_at(map, key)?),
            false => self.key(map, key)?,
        };
        self.map_and_key(map, key);
        self.code.call(key.of(helper::MAP_LOOKUP));
        if builtin == Builtin::HasKey {
            return self.set_if(Cond::Ne, Operand::Imm(0));
        }
        let Some(Expr { kind: ExprKind::Var(var), .. }) = args.get(2) else {
            return self.refuse(e.span, "find() takes a variable");
        };
        let none = self.code.label();
        self.code.jump(Cond::Eq, r(0), Operand::Imm(0), none);
        let checked = self.up.checked;
        let (from, to) = (&checked.map(map).value, &checked.var(var.id).ty);
        let value = self.frame.take(self.size(from));
        if is_agg {
            self.map_and_key(map, key);
            self.code.call(helper::AGGREGATED);
            self.store_r0(value, 8);
        } else {
            self.code.mov(r(3), r(0));
            self.copy_from_r3(value, self.size(from));
        }
        let place = self.var(var.id);
        self.convert(value, from, place, to, e)?;
        self.code.constant(r(0), 1);
        self.code.bind(none);
        Ok(())
    }

    /// r0 = whether the key was there.
    pub fn delete(&mut self, args: &[Expr], e: &Expr, is_told: bool) -> Done {
        let a = self.first(args, e)?;
        let (map, key) = match &a.kind {
            ExprKind::Map(map) => (map.id, args.get(1)),
            ExprKind::MapAt(map, key) => (map.id, Some(&**key)),
            _ => return self.refuse(a.span, "not a map"),
        };
        let is_scalar = self.up.checked.map(map).key.is_none();
        self.may_change(map, key);
        let key = self.key(map, key)?;
        self.map_and_key(map, key);
        self.code.call(key.of(helper::MAP_DELETE));
        if is_told && !is_scalar {
            let fine = self.code.label();
            self.code.jump(Cond::Eq, r(0), Operand::Imm(0), fine);
            self.trouble(Trouble::NoKey, e.span);
            self.code.bind(fine);
            return Ok(());
        }
        self.set_if(Cond::Eq, Operand::Imm(0))
    }
}

/// A word or a text that is known when the program is made.
pub fn word(e: &Expr) -> Option<String> {
    match &e.kind {
        ExprKind::Ident(word) => Some(word.clone()),
        ExprKind::Str(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

fn kind(provider: Provider) -> &'static str {
    match provider {
        Provider::Begin | Provider::End => "special",
        Provider::Test => "test",
        Provider::Bench => "bench",
        Provider::SelfSignal => "self",
        Provider::Interval => "interval",
        Provider::Profile => "profile",
        Provider::Software => "software",
        Provider::Hardware => "hardware",
        Provider::Uprobe => "uprobe",
        Provider::Uretprobe => "uretprobe",
        Provider::Usdt => "usdt",
        Provider::Watchpoint => "watchpoint",
        Provider::Kprobe => "kprobe",
        Provider::Kretprobe => "kretprobe",
        Provider::Fentry => "fentry",
        Provider::Fexit => "fexit",
        Provider::Tracepoint => "tracepoint",
        Provider::Rawtracepoint => "rawtracepoint",
        Provider::Iter => "iter",
    }
}
