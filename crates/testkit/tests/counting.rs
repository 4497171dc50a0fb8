//! Counts are exact: equal to the number that the target itself made.
//!
//! For:     the main promise of `nanoprobe count`.
//! Keeps:   attached and detached in mid-run, hits = the program's own number, in every kind of
//!          process; hits = handled + skipped.

use testkit::{Link, Nanoprobe, Program, Result, Target, number};

/// Calls of each run; enough that every thread is in it at the same time.
const CALLS: u64 = 800_000;

/// Counts `symbol` while the target calls `function`, and compares.
fn exact(target: &Target, symbol: &str, function: &str, calls: u64) -> Result<()> {
    let mut running = target.spawn()?;
    let nanoprobe = Nanoprobe::find()?;
    // Calls before and after are not to be counted.
    running.run(8_000, function)?;
    let mut tracing = nanoprobe.start(["count", &target.spec(symbol), "-p", &running.pid_text()])?;
    assert_eq!(tracing.attached()?.probes, 1);
    let hits = running.run(calls, function)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    running.run(8_000, function)?;

    assert_eq!(outcome.table().len(), 1, "{outcome}");
    assert_eq!(outcome.table()[0].1, hits, "{function} of {}: {outcome}", target.path().display());
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn count_is_exact_in_a_dynamic_process() -> Result<()> {
    exact(&Target::build(Program::Counted, Link::Pie)?, "work", "work", CALLS)
}

#[test]
fn count_is_exact_in_a_process_at_a_fixed_address() -> Result<()> {
    exact(&Target::build(Program::Counted, Link::NoPie)?, "work", "work", CALLS)
}

#[test]
fn count_is_exact_in_a_static_glibc_process() -> Result<()> {
    exact(&Target::build(Program::Counted, Link::Static)?, "work", "work", CALLS)
}

#[test]
fn count_is_exact_in_a_static_pie_process() -> Result<()> {
    exact(&Target::build(Program::Counted, Link::StaticPie)?, "work", "work", CALLS)
}

#[test]
fn count_is_exact_in_a_static_musl_process() -> Result<()> {
    exact(&Target::build(Program::Counted, Link::Musl)?, "work", "work", CALLS)
}

#[test]
fn count_is_exact_in_a_go_process() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    exact(&target, "main.Work", "main.Work", CALLS)?;
    exact(&target, "main.WorkFrame", "main.WorkFrame", CALLS)
}

#[test]
fn go_panics_pass_through_a_probed_function_and_are_recovered() -> Result<()> {
    // A goroutine whose stack grows at the entry runs the entry again: a hit more, by nature and in the kernel too.
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("main.recovered");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let calls = running.run(80_000, "main.WorkPanics")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let hits = outcome.table()[0].1;
    assert!((calls..calls + 800).contains(&hits), "{calls} calls: {outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn go_function_whose_stack_grows_is_counted_at_least_once_a_call() -> Result<()> {
    // Its entry runs again after each growth, so that hits exceed calls by nature.
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("main.WorkGrow");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let calls = running.run(8_000, "main.WorkGrow")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.table()[0].1 >= calls, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn count_is_exact_in_a_rust_process() -> Result<()> {
    let target = Target::build(Program::CountedRust, Link::Pie)?;
    exact(&target, "work_plain", "work_plain", CALLS)?;
    exact(&target, "counted*::work", "work", CALLS)
}

#[test]
fn rust_panics_unwind_through_a_probed_function() -> Result<()> {
    exact(&Target::build(Program::CountedRust, Link::Pie)?, "*::work_between", "work_between", 80_000)
}

#[test]
fn cpp_exceptions_pass_through_probed_functions_and_are_counted() -> Result<()> {
    let target = Target::build(Program::Throws, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = ["thrower", "shop::middle*", "call_first_middle"].map(|symbol| target.spec(symbol));
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", &specs[0], &specs[1], &specs[2], "-p", &pid])?;
    assert_eq!(tracing.attached()?.probes, 4);
    running.command("run 80000")?;
    let line = running.expect("calls ")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("thrower"), number(&line, "thrower")?, "{outcome}");
    assert_eq!(outcome.count("call_first_middle"), 40_000, "{outcome}");
    let all: u64 = outcome.table().iter().map(|row| row.1).sum();
    assert_eq!(all, 80_000 + 40_000 + 80_000, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn functions_of_libc_are_counted_where_no_one_else_calls_them() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    for (spec, function) in [("u:libc:getppid", "getppid"), ("u:libc:wcsnlen", "wcsnlen")] {
        let mut tracing = Nanoprobe::find()?.start(["count", spec, "-p", &running.pid_text()])?;
        tracing.attached()?;
        let hits = running.run(80_000, function)?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        // An IFUNC stands for its implementations, of which the process uses one.
        let all: u64 = outcome.table().iter().map(|row| row.1).sum();
        assert_eq!(all, hits, "{outcome}");
    }
    Ok(())
}

#[test]
fn marks_of_the_program_are_counted_once_each() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("mark_*");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    assert_eq!(tracing.attached()?.probes, 2);
    for _ in 0..3 {
        running.run(800, "work")?;
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!((outcome.count("mark_begin"), outcome.count("mark_end")), (3, 3), "{outcome}");
    Ok(())
}

#[test]
fn json_receipt_accounts_for_every_hit() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let arguments = ["count", &target.spec("work"), "-p", &running.pid_text(), "-f", "json"];
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    let hits = running.run(CALLS, "work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let receipt = outcome.json_receipt()?;
    assert_eq!((receipt.hits, receipt.handled, receipt.skipped), (hits, hits, 0), "{outcome}");
    assert!(receipt.detach_verified, "{outcome}");
    assert_eq!(outcome.json_count("work")?, hits, "{outcome}");
    Ok(())
}

#[test]
fn launched_command_is_counted_from_its_first_call_to_its_last() -> Result<()> {
    for link in Link::ALL {
        let target = Target::build(Program::Counted, link)?;
        let path = target.path().display().to_string();
        let specs = [target.spec("work"), target.spec("idle_work"), target.spec("main")];
        let arguments = ["count", &specs[0], &specs[1], &specs[2], "--", &path, "run 80000 work"];
        let outcome = Nanoprobe::find()?.run(arguments)?;
        assert_eq!(outcome.code(), Some(7), "{link:?}: {outcome}");
        let totals = outcome.stdout.lines().find(|line| line.starts_with("totals ")).unwrap_or_default();
        assert_eq!(outcome.count("main"), 1, "{link:?}: {outcome}");
        assert_eq!(outcome.count("work"), 80_000, "{link:?}: {outcome}");
        assert_eq!(outcome.count("idle_work"), number(totals, "idle")?, "{link:?}: {outcome}");
    }
    Ok(())
}

#[test]
fn launched_go_and_rust_commands_are_counted() -> Result<()> {
    for (program, symbol) in [(Program::CountedGo, "main.Work"), (Program::CountedRust, "work_plain")] {
        let target = Target::build(program, Link::Pie)?;
        let path = target.path().display().to_string();
        let mut tracing = Nanoprobe::find()?.start(["count", &target.spec(symbol), "--", &path])?;
        tracing.command(&format!("run 8000 {symbol}"))?;
        let outcome = tracing.finish()?;
        assert_eq!(outcome.code(), Some(7), "{outcome}");
        assert_eq!(outcome.table()[0].1, 8_000, "{outcome}");
    }
    Ok(())
}

#[test]
fn usdt_marks_of_a_library_are_counted() -> Result<()> {
    let target = Target::build(Program::Throws, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = ["U:libstdc++:throw", "U:libstdc++:libstdcxx:catch"];
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", specs[0], specs[1], "-p", &pid])?;
    tracing.attached()?;
    running.command("run 80000")?;
    let caught = number(&running.expect("calls ")?, "caught")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("libstdcxx:throw"), caught, "{outcome}");
    assert_eq!(outcome.count("libstdcxx:catch"), caught, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
