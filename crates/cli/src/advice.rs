//! Errors with their cure.
//!
//! For:     everything that ends a command early.
//! State:   none.
//! Context: control.
//! Keeps:   A1 every line begins with the program's name or is indented below such a line.
//! Checked: testkit `refusals`.

use image::SpecError;
use image::lookup::LookupError;
use session::watch::WatchError;
use session::{Broken, Limit, PlanError};

/// What an attach may take of a process's memory at most: the regions, and the copies of the counts.
const MORE_MEMORY: u64 = 512 << 20;

/// Prints one failure: what, what was checked, what to try.
pub fn fail(what: &dyn std::fmt::Display, checked: &[String], tries: &[String]) -> i32 {
    eprintln!("nanoprobe: {what}");
    for line in checked {
        eprintln!("  checked  {line}");
    }
    for line in tries.iter().filter(|line| !(is_root() && line.starts_with("sudo "))) {
        eprintln!("  try      {line}");
    }
    1
}

/// Whoever has all rights need not be told to take them.
fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A specification that cannot be read.
pub fn bad_spec(error: &SpecError) -> i32 {
    eprintln!("nanoprobe: {error}");
    for line in error.underlined().lines() {
        eprintln!("  {line}");
    }
    1
}

/// A specification that leads nowhere.
pub fn nowhere(error: &PlanError, pid: Option<i32>) -> i32 {
    let at = pid.map_or_else(String::new, |p| format!(" -p {p}"));
    match error {
        PlanError::Process(broken) => cannot_attach(broken),
        PlanError::Lookup(spec, lookup) => {
            let function = match &spec.place {
                image::spec::Place::Function(f) => f.pattern.to_string(),
                image::spec::Place::Address(a) => a.to_string(),
                image::spec::Place::Mark(m) => m.name.to_string(),
            };
            let better = lookup.better_spec(&function);
            let mut tries: Vec<String> =
                better.map(|b| format!("nanoprobe list '{b}'{at}")).into_iter().collect();
            if let LookupError::NotFound { asked, .. } = lookup
                && pid.is_none()
            {
                tries.push("-p PID: then LIB is looked for among all that the process has mapped".into());
                if !asked.contains('/') {
                    tries.push(format!("a path in the place of '{asked}': u:/PATH/TO/{asked}...:{function}"));
                }
            }
            if matches!(lookup, LookupError::NotMapped { .. }) {
                tries.push(
                    "--wait, if it is loaded later; --follow, if another program is started that has it"
                        .into(),
                );
            }
            fail(error, &[], &tries)
        }
        PlanError::NoMatch(spec, no_match) => {
            let library = match &spec.library {
                image::spec::Library::Main => "",
                image::spec::Library::Named(name) => name,
            };
            let near = no_match.near.first();
            let tries = near.map(|n| format!("nanoprobe list 'u:{library}:{n}'{at}"));
            fail(error, &[], tries.as_slice())
        }
        PlanError::AllRefused(list) => {
            let more = list.iter().take(10).map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>();
            fail(error, if list.len() > 1 { &more } else { &[] }, &[])
        }
        other => match pid {
            Some(pid) if !std::path::Path::new(&format!("/proc/{pid}")).exists() => {
                cannot_attach(&Broken::NoProcess { pid })
            }
            _ => fail(other, &[], &[]),
        },
    }
}

/// Watchpoints that were not set.
pub fn cannot_watch(error: &WatchError, pid: Option<i32>) -> i32 {
    let at = pid.map_or_else(String::new, |p| format!(" -p {p}"));
    let soft = match session::watch::HAS_PAGES {
        true => format!("nanoprobe watch --soft SPEC...{at}   # page protection: any number, slower"),
        false => "fewer watchpoints, or end who holds the registers".to_owned(),
    };
    match error {
        WatchError::Broken(broken) => cannot_attach(broken),
        WatchError::NoRegister { holders, .. } => {
            let held: Vec<String> = holders.iter().map(|h| format!("held by {h}")).collect();
            fail(error, &held, &[soft])
        }
        WatchError::NotAllowed { paranoid, has_filter, .. } => {
            let mut checked = vec![format!("/proc/sys/kernel/perf_event_paranoid: {paranoid}")];
            let mut tries = vec![soft, format!("sudo nanoprobe watch ...{at}")];
            if *has_filter {
                checked.push("/proc/self/status: Seccomp 2, as in a container".into());
                tries[1] =
                    "in a container: let its seccomp profile allow perf_event_open, and give it PERFMON"
                        .into();
            }
            fail(error, &checked, &tries)
        }
        WatchError::NoRecords { .. } => {
            let checked = "counting alone is allowed; values take the capabilities BPF and PERFMON, or root";
            let values =
                format!("nanoprobe watch --soft --values SPEC...{at}   # page protection, by ptrace alone");
            fail(error, &[checked.into()], &[format!("sudo nanoprobe watch --values ...{at}"), values])
        }
        WatchError::NoHardware { .. } => fail(error, &[], &[soft]),
        WatchError::NoSymbol { near, .. } if !near.is_empty() => {
            fail(error, &[], &[format!("nanoprobe watch 'w:BIN:{}:LENGTH:w'{at}", near[0])])
        }
        WatchError::NotAligned { .. } => fail(error, &[], &["a shorter length".into()]),
        _ => fail(error, &[], &[]),
    }
}

/// A process that cannot be entered.
pub fn cannot_attach(broken: &Broken) -> i32 {
    // Without /proc no process is seen, which says nothing of any.
    if let (Broken::NoProcess { pid }, Err(error)) = (broken, std::fs::read("/proc/self/stat")) {
        let what = format!("cannot look at process {pid}: /proc cannot be read");
        let checked = [format!("/proc/self/stat: {error}")];
        return fail(&what, &checked, &["mount -t proc proc /proc, or more descriptors: ulimit -n".into()]);
    }
    let (checked, tries): (Vec<String>, Vec<String>) = match broken {
        Broken::NoProcess { pid } => (vec![format!("/proc/{pid}: not there")], vec!["pgrep -a NAME".into()]),
        Broken::Zombie { pid, .. } => (vec![format!("/proc/{pid}/status: State Z")], vec![]),
        Broken::KernelThread { pid, .. } => {
            (vec![format!("/proc/{pid}/status: it has no memory of its own")], vec![])
        }
        Broken::Ourselves { .. } => (vec![], vec!["nanoprobe count SPEC -p ANOTHER_PID".into()]),
        Broken::Traced { pid, by, by_name, .. } => (
            vec![format!("/proc/{pid}/status: TracerPid {by}")],
            vec![format!("detach {by_name} first, or end it: kill {by}")],
        ),
        Broken::OtherUser { pid, uid, .. } => {
            (vec![format!("/proc/{pid}/status: Uid {uid}")], vec![format!("sudo nanoprobe ... -p {pid}")])
        }
        Broken::Yama { scope, pid, .. } => (
            vec![format!("/proc/sys/kernel/yama/ptrace_scope: {scope}")],
            vec![format!("sudo nanoprobe ... -p {pid}"), "sudo sysctl kernel.yama.ptrace_scope=0".into()],
        ),
        Broken::NotAllowed { pid, .. } => (
            vec![
                format!("/proc/{pid}/status: same user, TracerPid 0"),
                "kernel.yama.ptrace_scope: not the cause".into(),
            ],
            vec![
                format!("sudo nanoprobe ... -p {pid}"),
                "in a container: give it the capability SYS_PTRACE".into(),
            ],
        ),
        Broken::Seccomp { pid, mode, .. } => (
            vec![format!("/proc/{pid}/status: Seccomp {mode}")],
            vec![format!("sudo nanoprobe ... -p {pid}   # may suspend the filter while it enters")],
        ),
        Broken::WontStop { tid, state: 'D', .. } => (
            vec![format!("/proc/{tid}/stat: state D, uninterruptible sleep")],
            vec!["again when its input or output is done".into()],
        ),
        Broken::Raised { signal: libc::SIGSYS, .. } => (
            vec!["SIGSYS: the process or a filter takes its system calls itself (Syscall User Dispatch, seccomp)".into()],
            vec![],
        ),
        Broken::Exhausted { pid, limit, .. } => {
            let (checked, cure) = exhausted(*pid, *limit);
            (vec![checked], vec![cure])
        }
        Broken::Launch { command, .. } => (
            vec![],
            if command.contains('/') { vec![] } else { vec![format!("nanoprobe ... -- ./{command}")] },
        ),
        _ => (vec![], vec![]),
    };
    fail(broken, &checked, &tries)
}

/// Where a limit is told, and what raises it.
fn exhausted(pid: i32, limit: Limit) -> (String, String) {
    let of_process = |name: &str, most: u64, flag: &str, more: u64| {
        let cure = format!("prlimit --pid {pid} --{flag}={more}");
        (format!("/proc/{pid}/limits: {name}: {most}"), cure)
    };
    match limit {
        Limit::Descriptors(most) => of_process("Max open files", most, "nofile", most.saturating_add(8)),
        Limit::AddressSpace(most) => {
            of_process("Max address space", most, "as", most.saturating_add(MORE_MEMORY))
        }
        Limit::Data(most) => of_process("Max data size", most, "data", most.saturating_add(MORE_MEMORY)),
        Limit::Locked(most) => {
            of_process("Max locked memory", most, "memlock", most.saturating_add(MORE_MEMORY))
        }
        Limit::Mappings(most) => (
            format!("/proc/sys/vm/max_map_count: {most}"),
            format!("sysctl vm.max_map_count={}", most.saturating_add(64)),
        ),
    }
}
