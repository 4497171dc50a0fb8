//! The same scripts run by the traced process and by the kernel: equal output.
//!
//! For:     `--backend`: each is the other's oracle.
//! Keeps:   what a script prints does not depend on who runs it; what the kernel does not run it refuses by name.
//!
//! Takes the right to load programs of the kernel. Where a machine has it not, each test says so by name and shows nothing;
//! NANOPROBE_NO_KERNEL=1 has to be set there, or the test fails: no run is green in silence.

use testkit::{Link, Nanoprobe, Outcome, Program, Result, Target};

/// One script a line; `%` stands for the target.
const SCRIPTS: &str = include_str!("programs/backends.bt");
/// That are wanted at the least.
const SCRIPTS_MIN: usize = 100;

fn scripts() -> impl Iterator<Item = (&'static str, &'static str)> {
    SCRIPTS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "))
}

fn run(target: &Target, backend: &str, script: &str) -> Result<Outcome> {
    let path = target.path().display().to_string();
    let script = script.replace("%:", &format!("{path}:"));
    Nanoprobe::find()?.run(["--backend", backend, "-e", &script, "-c", &path])
}

/// False where the kernel takes no programs of ours, which has to be said beforehand.
fn kernel_takes_programs(target: &Target) -> Result<bool> {
    let outcome = run(target, "kernel", "begin { exit(); }")?;
    if outcome.stderr.contains("the kernel's programs take root") {
        assert!(
            std::env::var_os("NANOPROBE_NO_KERNEL").is_some(),
            "programs of the kernel may not be loaded here; NANOPROBE_NO_KERNEL=1 says that this is known\n{outcome}"
        );
        eprintln!("SKIPPED: programs of the kernel may not be loaded here: nothing was compared");
        return Ok(false);
    }
    outcome.success()?;
    Ok(true)
}

#[test]
fn a_hundred_scripts_print_the_same_on_both_backends() -> Result<()> {
    let target = Target::build(Program::Same, Link::Pie)?;
    if !kernel_takes_programs(&target)? {
        return Ok(());
    }
    let (mut compared, mut different) = (0, Vec::new());
    for (name, script) in scripts() {
        let (kernel, inproc) = (run(&target, "kernel", script)?, run(&target, "inproc", script)?);
        let hits = |outcome: &Outcome| {
            outcome.stderr.lines().find(|line| line.starts_with("Hits ")).map(str::to_owned)
        };
        // The target itself ends with 3; how a run ends is the same, too.
        let same = kernel.stdout == inproc.stdout && hits(&kernel) == hits(&inproc);
        let shows = |outcome: &Outcome| hits(outcome).is_some_and(|line| !line.starts_with("Hits 0"));
        if !same || !shows(&kernel) {
            different.push(format!("{name}: {script}\nkernel: {kernel}\ninproc: {inproc}"));
        }
        compared += 1;
    }
    assert!(compared >= SCRIPTS_MIN, "{compared}");
    assert!(different.is_empty(), "{} of {compared} differ\n{}", different.len(), different.join("\n"));
    Ok(())
}

/// A helper that is on no line of `backends.bt`, by its number in crates/bpf/src/helper.rs; docs/oracle.md says why.
const NOT_COMPARED: [u32; 6] = {
    // name_of, user_stack, comm_of, write_user, send_signal, vector
    [OWN + 12, OWN + 13, OWN + 14, OWN + 16, OWN + 17, OWN + 20]
};
/// Helpers of ours are numbered from here on.
const OWN: u32 = 0x4e50_0000;

/// What each script calls is in its machine code, which `-d dis` shows: nothing is run.
#[test]
fn every_helper_is_called_by_a_script_that_runs_on_both() -> Result<()> {
    let target = Target::build(Program::Same, Link::Pie)?;
    let path = target.path().display().to_string();
    let mut called = std::collections::BTreeSet::new();
    for (_, script) in scripts() {
        let script = script.replace("%:", &format!("{path}:"));
        let shown = Nanoprobe::find()?.run(["-d", "dis", "-e", &script])?.success()?.stdout;
        called
            .extend(shown.lines().filter_map(|line| line.trim().strip_prefix("call ")?.parse::<u32>().ok()));
    }
    let all = [1, 2, 3, 5, 7, 8, 14, 15, 16, 42, 112, 113, 125, 130, 173, 174, 208].into_iter();
    let all = all.chain((OWN..=OWN + 25).filter(|helper| !NOT_COMPARED.contains(helper)));
    let missing: Vec<u32> = all.filter(|helper| !called.contains(helper)).collect();
    assert!(missing.is_empty(), "on no line of backends.bt: {missing:?}");
    Ok(())
}

#[test]
fn what_the_kernel_does_not_run_is_refused_by_name() -> Result<()> {
    let target = Target::build(Program::Same, Link::Pie)?;
    if !kernel_takes_programs(&target)? {
        return Ok(());
    }
    for (script, what) in [
        ("u:%:work { print(ustack); }", "ustack"),
        ("u:%:work { @ = tseries(arg0, 1s, 3); }", "tseries()"),
        ("u:%:work { @[arg0] = 1; for ($kv : @) { delete(@, $kv.0); } }", "goes through it"),
        ("u:%:work { print(pcomm); }", "pcomm"),
    ] {
        let outcome = run(&target, "kernel", script)?;
        let is_named = outcome.stderr.contains(what) && outcome.stderr.contains("the kernel's programs");
        assert!(is_named && outcome.stdout.is_empty(), "{script}\n{outcome}");
    }
    let outcome = run(&target, "nowhere", "begin { }")?;
    assert!(outcome.stderr.contains("no backend nowhere"), "{outcome}");
    Ok(())
}

#[test]
fn a_library_of_any_process_is_the_kernels_to_probe_and_that_is_told() -> Result<()> {
    let target = Target::build(Program::Loader, Link::Pie)?;
    if !kernel_takes_programs(&target)? {
        return Ok(());
    }
    let mut running = target.spawn()?;
    let script = format!("uprobe:libm:cbrt /pid == {}/ {{ @ = count(); }}", running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["-e", &script])?;
    tracing.attached()?;
    running.command("load 7")?;
    running.expect("calls ")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.stdout.contains("@: 7"), "{outcome}");
    assert!(outcome.stderr.contains("a library of any process: the kernel's probes see all"), "{outcome}");
    assert!(outcome.stderr.contains("The kernel's probes are out."), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    // Where the kernel is not wanted, programs are found by their own file, and that is told too.
    let outcome = Nanoprobe::find()?
        .run(["--backend", "inproc", "-e", "uprobe:libm:cbrt { @ = count(); } interval:ms:1 { exit(); }"])?
        .success()?;
    assert!(outcome.stderr.contains("name one that uses it with -p"), "{outcome}");
    Ok(())
}

/// A line of a map.
fn value(outcome: &Outcome, name: &str) -> u64 {
    let prefix = format!("{name}: ");
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

const GOES_OVER: &str = "nothing of it can be probed in the process (no jump fits";
const PRICE: &str = "the kernel's probes have it, for a trap at each hit";

#[test]
fn what_cannot_be_in_a_process_the_kernel_has_by_itself_with_what_begin_left() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    if !kernel_takes_programs(&target)? {
        return Ok(());
    }
    let path = target.path().display();
    let script = format!(
        "begin {{ @n = 1000; @most = max(7); @all[1] = count(); @all[1] = count(); }} u:{path}:main.Work \
         {{ @n++; @by[pid] = count(); @most = max(3); @all[1] = count(); }}"
    );
    let mut running = target.spawn()?;
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let calls = running.run(8_000, "main.Work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let by = format!("@by[{}]", running.pid_text());
    assert_eq!(value(&outcome, &by), calls, "{outcome}");
    assert_eq!(value(&outcome, "@n"), 1000 + calls, "{outcome}");
    assert_eq!((value(&outcome, "@most"), value(&outcome, "@all[1]")), (7, 2 + calls), "{outcome}");
    assert!(outcome.stderr.contains(GOES_OVER) && outcome.stderr.contains(PRICE), "{outcome}");
    let receipt = format!("Hits {calls}: {calls} handled, 0 skipped; 0 places left out.");
    assert!(
        outcome.stderr.contains(&receipt) && outcome.stderr.contains("The kernel's probes are out."),
        "{outcome}"
    );
    // A verb that is written as a program, and a process that is not named.
    for all in [vec!["-p".to_owned(), running.pid_text()], vec![]] {
        let by_verb = all.is_empty();
        let script = format!("u:{path}:main.Work {{ @[pid] = count(); }}");
        let spec = target.spec("main.Work");
        let own = if by_verb {
            vec!["-e".into(), script]
        } else {
            vec!["count".into(), spec, "--by".into(), "pid".into()]
        };
        let mut tracing = Nanoprobe::find()?.start(own.into_iter().chain(all))?;
        tracing.attached()?;
        let calls = running.run(800, "main.Work")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(value(&outcome, &format!("@[{}]", running.pid_text())), calls, "{outcome}");
        assert!(outcome.stderr.contains(PRICE), "{outcome}");
    }
    // And in the process only, if that is asked for.
    let outcome =
        Nanoprobe::find()?.run(["--backend", "inproc", "-e", &script, "-p", &running.pid_text()])?;
    let why = "nothing of it can be probed: no jump fits";
    assert!(outcome.code() == Some(1) && outcome.stderr.contains(why), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// Each of eight goroutines calls it with 0, 1, 2 and so on, which C would pass in another register.
#[test]
fn an_argument_of_go_is_what_go_passes() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let path = target.path().display();
    let mut running = target.spawn()?;
    let mut traced = |script: &str| -> Result<Outcome> {
        let mut tracing = Nanoprobe::find()?.start(["-e", script, "-p", &running.pid_text()])?;
        tracing.attached()?;
        running.run(8_000, "main.Work")?;
        tracing.interrupt_and_finish()?.success()
    };
    let outcome = traced(&format!("u:{path}:main.Work {{ @ = hist(arg0); }}"))?;
    for bucket in ["[512, 1K) 3904", "[256, 512) 2048", "[0] 8"] {
        let shown = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(bucket), "{bucket}: {outcome}");
    }
    if kernel_takes_programs(&target)? {
        let script = format!("u:{path}:main.Work {{ @most = max(arg0); @sum = sum(arg0); }}");
        let outcome = traced(&script)?;
        assert_eq!((value(&outcome, "@most"), value(&outcome, "@sum")), (999, 8 * 499_500), "{outcome}");
    }
    let refused = Nanoprobe::find()?.run(["-e", &format!("u:{path}:main.Work {{ print(arg9); }}")])?;
    assert!(
        refused.code() == Some(1) && refused.stderr.contains("Go does not pass it in a register"),
        "{refused}"
    );
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_process_that_is_started_later_has_the_kernels_probes_from_its_start() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    if !kernel_takes_programs(&target)? {
        return Ok(());
    }
    let script =
        format!("u:{}:main.Work {{ @[pid] = count(); }} begin {{ @s = 5; }}", target.path().display());
    let mut tracing = Nanoprobe::find()?.start(["-e", &script])?;
    tracing.attached()?;
    let mut both = [target.spawn()?, target.spawn()?];
    let mut calls = Vec::new();
    for running in &mut both {
        calls.push((running.pid_text(), running.run(800, "main.Work")?));
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for (pid, calls) in calls {
        assert_eq!(value(&outcome, &format!("@[{pid}]")), calls, "{outcome}");
    }
    assert_eq!(value(&outcome, "@s"), 5, "{outcome}");
    assert_eq!(outcome.stderr.matches(PRICE).count(), 1, "{outcome}");
    for running in both {
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn of_what_is_left_out_in_part_the_cure_is_named() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let mut running = target.spawn()?;
    let path = target.path().display();
    // A pattern, which fits one.
    let script =
        format!("u:{path}:main.WorkGrow {{ @ = count(); }} u:{path}:main.Wor? {{ @by[pid] = count(); }}");
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let calls = running.run(800, "main.WorkGrow")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(value(&outcome, "@") >= calls, "{outcome}");
    assert!(outcome.stderr.contains("main.Work is left out: no jump fits"), "{outcome}");
    assert!(outcome.stderr.contains("--kernel has one of them, for a trap at each hit"), "{outcome}");
    assert!(outcome.stderr.contains("; 1 places left out.") && outcome.says_detach_verified(), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn without_the_right_to_load_programs_both_causes_are_told() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let running = target.spawn()?;
    let less = ["setpriv", "--bounding-set=-sys_admin,-bpf,-perfmon", "--inh-caps=-all"];
    let script = format!("u:{}:main.Work {{ @[pid] = count(); }}", target.path().display());
    let outcome = Nanoprobe::find()?.through(less).run(["-e", &script, "-p", &running.pid_text()])?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("nothing of it can be probed in the process: no jump fits"), "{outcome}");
    assert!(outcome.stderr.contains("nor by the kernel: "), "{outcome}");
    assert!(outcome.stderr.contains("the kernel's programs take root"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// Each ended the process, or had its code do something else: seen with `--backend kernel`.
#[test]
fn the_kernel_gets_no_probe_that_would_do_harm() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    if !kernel_takes_programs(&target)? {
        return Ok(());
    }
    let path = target.path().display();
    let mut running = target.spawn()?;
    for (backend, key) in [("kernel", ""), ("auto", "[retval]")] {
        let script = format!("ur:{path}:main.WorkGrow {{ @{key} = count(); }}");
        let outcome =
            Nanoprobe::find()?.run(["--backend", backend, "-e", &script, "-p", &running.pid_text()])?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert!(outcome.stderr.contains("replace return addresses, which ends a Go program"), "{outcome}");
    }
    // Beside it what does none.
    let script = format!("ur:{path}:main.WorkGrow {{ @r = count(); }} u:{path}:main.Work {{ @ = count(); }}");
    let mut tracing =
        Nanoprobe::find()?.start(["--backend", "kernel", "-e", &script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    running.run(8_000, "main.WorkGrow")?;
    let calls = running.run(800, "main.Work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(value(&outcome, "@"), calls, "{outcome}");
    assert!(!outcome.stdout.contains("@r") && outcome.stderr.contains("; 1 places left out."), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let script = format!("u:{}:work_pushf+5 {{ @ = count(); }}", target.path().display());
    let outcome =
        Nanoprobe::find()?.run(["--backend", "kernel", "-e", &script, "-p", &running.pid_text()])?;
    assert!(outcome.stderr.contains("pushf pushes the trap flag") && outcome.code() == Some(1), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
