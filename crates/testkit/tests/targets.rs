//! The targets and tools by themselves, without nanoprobe.
//!
//! For:     knowing that a failed end-to-end test is not the target's fault.
//! Keeps:   every program builds, counts what it calls, and ends as its head says.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;

use testkit::{Link, Program, Result, Snapshot, Target, number};

/// The functions of `Counted`.
const FUNCTIONS: &[&str] = &[
    "work",
    "work_args",
    "work_short",
    "work_tiny",
    "work_nop5",
    "work_push",
    "work_ret",
    "work_ret_next",
    "work_punned",
    "work_punned_small",
    "work_pushf",
    "work_loop_head",
    "work_call_first",
    "work_redzone",
    "work_flags",
    "work_rip",
    "work_jmp_first",
    "work_jcc_first",
    "work_endbr",
    "work_rep",
    "work_vector",
    "work_stack",
    "work_jump_table",
    "work_big",
    "work_page_end",
    "getppid",
    "wcsnlen",
];

#[test]
fn counted_makes_exactly_the_calls_it_is_told_however_it_is_linked() -> Result<()> {
    for link in Link::ALL {
        let mut running = Target::build(Program::Counted, link)?.spawn()?;
        for function in FUNCTIONS {
            assert_eq!(running.run(800, function)?, 800, "{function} {link:?}");
        }
        // Five turns of 1..=5 and four of 1..=4 executions of the first instruction.
        assert_eq!(running.run(8 * 5, "work_loop_self")?, 8 * 15, "{link:?}");
        assert_eq!(running.run(8 * 4, "work_recursive")?, 8 * 10, "{link:?}");
        let totals = running.totals()?;
        assert_eq!(number(&totals, "work")?, 800);
        assert!(number(&totals, "idle")? > 0);
        assert_eq!(running.end()?.code(), Some(7), "{link:?}");
    }
    Ok(())
}

#[test]
fn counted_in_go_and_rust_make_exactly_the_calls_they_are_told() -> Result<()> {
    let go = ["main.Work", "main.WorkFrame", "main.WorkGrow", "main.WorkPanics"];
    let rust = ["work", "work_plain", "area", "work_between"];
    for (program, functions) in [(Program::CountedGo, go), (Program::CountedRust, rust)] {
        let mut running = Target::build(program, Link::Pie)?.spawn()?;
        for function in functions {
            assert_eq!(running.run(800, function)?, 800, "{function}");
        }
        assert_eq!(running.end()?.code(), Some(7), "{program:?}");
    }
    Ok(())
}

#[test]
fn throws_catches_three_exceptions_of_four_calls() -> Result<()> {
    let mut running = Target::build(Program::Throws, Link::Pie)?.spawn()?;
    running.command("run 8000")?;
    let line = running.expect("calls ")?;
    assert_eq!((number(&line, "thrower")?, number(&line, "caught")?), (8000, 6000));
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn blocked_finds_every_undisturbed_wait_unharmed() -> Result<()> {
    let target = Target::build(Program::Blocked, Link::Pie)?;
    let mut running = target.spawn_with(&["all", "300"])?;
    running.command("check")?;
    assert_eq!(running.wait()?.code(), Some(0));
    let (said, _) = running.output()?;
    assert_eq!(said.lines().filter(|line| line.ends_with(" unharmed")).count(), 26, "{said}");
    Ok(())
}

#[test]
fn blocked_notices_a_wait_that_is_interrupted() -> Result<()> {
    let target = Target::build(Program::Blocked, Link::Pie)?;
    let mut running = target.spawn_with(&["only", "epoll_wait", "60000"])?;
    running.wait_state('S')?;
    // gdb stops the thread, which cuts epoll_wait short: the very harm that nanoprobe must not do.
    let gdb = Target::installed("gdb", "gdb")?;
    let attach = Command::new(gdb.path()).args(["-batch", "-nx", "-p", &running.pid_text()]).output();
    assert!(attach.is_ok_and(|o| o.status.success()), "gdb could not attach");
    assert_eq!(running.wait()?.code(), Some(99));
    Ok(())
}

#[test]
fn handlers_sees_its_own_signals_and_nothing_foreign() -> Result<()> {
    let mut running = Target::build(Program::Handlers, Link::Pie)?.spawn()?;
    running.command("check")?;
    let line = running.expect("handlers ")?;
    assert!(line.ends_with(" intact"), "{line}");
    assert_eq!(number(&line, "foreign")?, 0);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn sandboxed_works_and_dies_of_any_other_call() -> Result<()> {
    let target = Target::build(Program::Sandboxed, Link::Pie)?;
    let mut running = target.spawn()?;
    running.command("run 4000")?;
    assert_eq!(number(&running.expect("calls ")?, "work")?, 4000);
    assert_eq!(running.end()?.code(), Some(7));

    // gdb has it make a call that the filter does not allow.
    let gdb = Target::installed("gdb", "gdb")?;
    let mut running = target.spawn()?;
    let call = ["-batch", "-nx", "-ex", "call (int)getppid()", "-p", &running.pid_text()];
    Command::new(gdb.path()).args(call).output().map_err(testkit::Error::io("gdb"))?;
    assert_eq!(running.wait()?.code(), None, "not killed");
    Ok(())
}

#[test]
fn forker_comes_through_all_it_can_do() -> Result<()> {
    let mut running = Target::build(Program::Forker, Link::Pie)?.spawn()?;
    for command in ["fork 3", "vfork 4", "threads 5"] {
        running.command(command)?;
        running.expect("done ")?;
    }
    assert!(running.totals()?.ends_with("work=1200 forks=3 vforks=4 threads=5"));
    running.command("linger")?;
    running.expect("lingering")?;
    running.command("release")?;
    running.expect("done release")?;
    running.command("exec")?;
    running.expect("ready ")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn storm_goes_on_until_it_is_told_to_quit() -> Result<()> {
    let mut running = Target::build(Program::Storm, Link::Pie)?.spawn()?;
    let first = number(&running.totals()?, "work")?;
    while number(&running.totals()?, "work")? <= first {}
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn demo_ends_by_itself_and_prints_one_line() {
    let output = Command::new(env!("CARGO_BIN_EXE_nanoprobe-demo")).arg("1").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
}

#[test]
fn snapshot_of_an_undisturbed_process_stays_equal() -> Result<()> {
    for link in Link::ALL {
        let mut running = Target::build(Program::Counted, link)?.spawn()?;
        running.run(800, "work")?;
        let before = Snapshot::take(running.pid())?;
        assert!(before.code_bytes() > 4096);
        running.run(800, "work")?;
        assert_eq!(before.difference_now()?.to_string(), "no difference", "{link:?}");
    }
    Ok(())
}

#[test]
fn snapshot_names_a_byte_that_was_changed_and_a_tracer() -> Result<()> {
    let target = Target::build(Program::Counted, Link::NoPie)?;
    let mut running = target.spawn()?;
    running.run(800, "work")?;
    let before = Snapshot::take(running.pid())?;

    // work_ret is never called here, so that the change harms no one.
    let nm = Command::new("nm").arg(target.path()).output().map_err(testkit::Error::io("nm"))?;
    let symbols = String::from_utf8_lossy(&nm.stdout);
    let line = symbols.lines().find(|line| line.ends_with(" T work_ret")).expect("work_ret is a symbol");
    let address = u64::from_str_radix(&line[..16], 16).expect("an address in hex");
    let path = format!("/proc/{}/mem", running.pid());
    let memory = OpenOptions::new().write(true).open(&path).map_err(testkit::Error::io(&path))?;
    memory.write_all_at(&[0xcc], address).map_err(testkit::Error::io(&path))?;

    let difference = before.difference_now()?.to_string();
    assert!(difference.contains(&format!("changed  code at {address:#x}")), "{difference}");
    assert!(difference.contains("[c3, ") && difference.contains("[cc, "), "{difference}");
    Ok(())
}
