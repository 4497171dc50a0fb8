//! The functions and builtins of the language, by name.
//!
//! For:     the checker, which resolves names; the lowering, which has an arm for each.
//! State:   none.
//! Context: control.
//! Keeps:   1. [`Builtin::of`] and [`Builtin::name`] undo each other.
//! Checked: tests below.

macro_rules! builtins {
    ($($variant:ident $name:literal),* $(,)?) => {
        /// A function or builtin. `pid` and `pid()` are the same one.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Builtin { $($variant),* }

        impl Builtin {
            /// All of them.
            pub const ALL: &[Builtin] = &[$(Builtin::$variant),*];

            /// As it is written.
            pub fn name(self) -> &'static str {
                match self { $(Builtin::$variant => $name),* }
            }
        }
    };
}

builtins! {
    // Who and where.
    Pid "pid", Tid "tid", Comm "comm", Uid "uid", Gid "gid", Username "username", Cpid "cpid", HasCpid "has_cpid",
    Cpu "cpu", Ncpus "ncpus", Numaid "numaid", Ppid "ppid", Pcomm "pcomm", LeaderTid "leader_tid",
    LeaderComm "leader_comm", Cgroup "cgroup", Cgroupid "cgroupid", CgroupPath "cgroup_path", Usermode "usermode",
    // When.
    Nsecs "nsecs", Elapsed "elapsed", Time "time", Strftime "strftime", Jiffies "jiffies",
    // The probe.
    Args "args", Retval "retval", Func "func", Probe "probe", Probetype "probetype", Reg "reg", Ctx "ctx",
    // Stacks and symbols.
    Ustack "ustack", DwUstack "dw_ustack", Kstack "kstack", Usym "usym", Ksym "ksym", Uaddr "uaddr", Kaddr "kaddr",
    PercpuKaddr "percpu_kaddr", Curtask "curtask",
    // Memory.
    Str "str", Buf "buf", Uptr "uptr", Kptr "kptr", Memcmp "memcmp", Strncmp "strncmp", Strlen "strlen",
    Strcap "strcap", Strcontains "strcontains", Strstr "strstr", StrConcat "str_concat", Bswap "bswap",
    ContainerOf "container_of", WriteUser "write_user", Path "path",
    // Maps.
    Delete "delete", HasKey "has_key", Find "find", Len "len", Clear "clear", Zero "zero",
    // Aggregations.
    Count "count", Sum "sum", Min "min", Max "max", Avg "avg", Stats "stats", Hist "hist", Lhist "lhist",
    Tseries "tseries",
    // Output.
    Printf "printf", Print "print", Errorf "errorf", Warnf "warnf", Debugf "debugf", Join "join", Cat "cat",
    System "system", Exit "exit",
    // Values that are formatted when printed.
    Ntop "ntop", Pton "pton", Macaddr "macaddr", Strerror "strerror", SignalName "signal_name",
    SyscallName "syscall_name",
    // Control and compile time.
    Getopt "getopt", Config "config", Rand "rand", Assert "assert", StaticAssert "static_assert", Fail "fail",
    IsErr "is_err", IsPtr "is_ptr", IsStr "is_str", IsInteger "is_integer", IsArray "is_array",
    IsLiteral "is_literal", IsUnsignedInteger "is_unsigned_integer", AssertStr "assert_str",
    DefaultStrLength "default_str_length",
    // Change, and the kernel.
    Signal "signal", SignalThread "signal_thread", Override "override", Skboutput "skboutput",
    SocketCookie "socket_cookie", KfuncExist "kfunc_exist", KfuncAllowed "kfunc_allowed", Unwatch "unwatch",
}

impl Builtin {
    /// The function of a name; also as `__builtin_name`.
    pub fn of(name: &str) -> Option<Builtin> {
        let name = name.strip_prefix("__builtin_").unwrap_or(name);
        Self::ALL.iter().copied().find(|b| b.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_builtin() {
        for &b in Builtin::ALL {
            assert_eq!(Builtin::of(b.name()), Some(b));
        }
        assert_eq!(Builtin::of("__builtin_pid"), Some(Builtin::Pid));
        assert_eq!(Builtin::of("nothing"), None);
    }
}
