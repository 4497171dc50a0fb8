//! What bad input gets: a line that says why, and a target that was not touched.
//!
//! For:     every row of the design's table of bad input that concerns counting.
//! Keeps:   exit 1, every line of stderr begins with the program's name, the cause was found by
//!          checking, nothing hangs.

use std::process::{Command, Stdio};

use testkit::{Error, Link, Nanoprobe, Outcome, Program, Result, Running, Snapshot, Target, wait_until};

/// Checks the form of an error and returns its text.
fn refused(outcome: &Outcome) -> &str {
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert_eq!(outcome.stdout, "", "{outcome}");
    let first = outcome.stderr.lines().next().unwrap_or_default();
    assert!(first.starts_with("nanoprobe: "), "{outcome}");
    &outcome.stderr
}

/// Runs `count SPEC -p PID`, and sees that the process is as it was.
fn refused_without_touching(running: &Running, spec: &str) -> Result<Outcome> {
    let before = Snapshot::take(running.pid())?;
    let outcome = Nanoprobe::find()?.run(["count", spec, "-p", &running.pid_text()])?;
    refused(&outcome);
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    Ok(outcome)
}

#[test]
fn process_that_does_not_exist_is_named() -> Result<()> {
    // Above the largest that the kernel gives out.
    let outcome = Nanoprobe::find()?.run(["count", "u:libc:malloc", "-p", "4194305"])?;
    assert!(refused(&outcome).contains("4194305"), "{outcome}");
    Ok(())
}

#[test]
fn pid_that_is_no_number_is_a_usage_error() -> Result<()> {
    let outcome = Nanoprobe::find()?.run(["count", "u:libc:malloc", "-p", "mysqld"])?;
    assert!(refused(&outcome).contains("mysqld"), "{outcome}");
    Ok(())
}

#[test]
fn symbol_that_does_not_exist_is_answered_with_the_nearest_ones() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let outcome = refused_without_touching(&running, &target.spec("work_pusch"))?;
    assert!(outcome.stderr.contains("work_push"), "{outcome}");
    Ok(())
}

#[test]
fn glob_that_matches_nothing_is_refused() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let outcome = refused_without_touching(&running, &target.spec("zz*zz"))?;
    assert!(outcome.stderr.contains("zz*zz"), "{outcome}");
    Ok(())
}

#[test]
fn file_that_does_not_exist_is_named() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let outcome = refused_without_touching(&running, "u:/no/such/file:work")?;
    assert!(outcome.stderr.contains("/no/such/file"), "{outcome}");
    Ok(())
}

#[test]
fn library_that_does_not_exist_is_named() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let outcome = refused_without_touching(&running, "u:libnosuchthing:work")?;
    assert!(outcome.stderr.contains("libnosuchthing"), "{outcome}");
    Ok(())
}

#[test]
fn file_that_is_no_elf_is_refused() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let outcome = refused_without_touching(&running, "u:/etc/passwd:root")?;
    assert!(outcome.stderr.contains("/etc/passwd"), "{outcome}");
    Ok(())
}

#[test]
fn library_that_the_process_has_not_loaded_is_refused_or_counts_nothing() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Static)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let arguments = ["count", "u:libc:malloc", "-p", &running.pid_text(), "--for", "100ms"];
    let outcome = Nanoprobe::find()?.run(arguments)?;
    assert!(outcome.stderr.contains("libc"), "{outcome}");
    assert_eq!(outcome.count("malloc"), 0, "{outcome}");
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    running.run(800, "work")?;
    Ok(())
}

#[test]
fn spec_that_cannot_be_read_is_shown() -> Result<()> {
    for spec in ["", "u", "u:", "u:libc", "q:libc:malloc", "u:libc:malloc+zz", "u:libc:malloc+"] {
        let outcome = Nanoprobe::find()?.run(["count", spec, "-p", "1"])?;
        refused(&outcome);
    }
    Ok(())
}

#[test]
fn count_without_a_process_or_a_command_is_a_usage_error() -> Result<()> {
    let outcome = Nanoprobe::find()?.run(["count", "u:libc:malloc"])?;
    let text = refused(&outcome);
    assert!(text.contains("-p") && text.contains("--"), "{outcome}");
    Ok(())
}

#[test]
fn unknown_flag_verb_and_duration_are_usage_errors() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    refused(&nanoprobe.run(["count", "u:libc:malloc", "-p", "1", "--no-such-flag"])?);
    refused(&nanoprobe.run(["cuont", "u:libc:malloc", "-p", "1"])?);
    refused(&nanoprobe.run(["count", "u:libc:malloc", "-p", "1", "--for", "soon"])?);
    Ok(())
}

/// A directory that every user can reach, as a home directory is not; gone when dropped.
struct Open(std::path::PathBuf);

impl Open {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("nanoprobe-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(Error::io(path.display()))?;
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, all).map_err(Error::io(path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs what follows as the user nobody.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn process_of_another_user_is_refused_with_the_user() -> Result<()> {
    Target::installed("setpriv", "util-linux")?;
    let open = Open::new("other-user")?;
    let nobody = Nanoprobe::find()?.copied_to(&open.0.join("nanoprobe"))?.through(NOBODY);
    let mut running = Target::build(Program::Counted, Link::Pie)?.spawn()?;
    let outcome = nobody.run(["count", "u:libc:getppid", "-p", &running.pid_text()])?;
    let text = refused(&outcome);
    assert!(text.contains("user") || text.contains("uid"), "{outcome}");
    assert!(text.contains("sudo") || text.contains("root"), "no cure in {outcome}");
    running.run(800, "work")?;
    Ok(())
}

#[test]
fn ordinary_user_counts_in_a_process_of_their_own() -> Result<()> {
    Target::installed("setpriv", "util-linux")?;
    let open = Open::new("own-user")?;
    let nobody = Nanoprobe::find()?.copied_to(&open.0.join("nanoprobe"))?.through(NOBODY);
    let target = Target::build(Program::Counted, Link::Pie)?.copied_to(&open.0.join("counted"))?;
    let mut running = target.spawn_through::<&str>(&NOBODY, &[])?;
    let before = Snapshot::take(running.pid())?;
    let mut tracing = nobody.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    let hits = running.run(80_000, "work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), hits, "{outcome}");
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    Ok(())
}

#[test]
fn process_traced_by_strace_is_refused_with_the_tracers_name() -> Result<()> {
    let strace = Target::installed("strace", "strace")?;
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let mut tracer = Command::new(strace.path())
        .args(["-qq", "-o", "/dev/null", "-p", &running.pid_text()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::io("strace"))?;
    let traced = format!("TracerPid:\t{}\n", tracer.id());
    let status = format!("/proc/{}/status", running.pid());
    wait_until("strace to attach", std::time::Duration::from_secs(60), || {
        std::fs::read_to_string(&status).is_ok_and(|text| text.contains(&traced))
    })?;
    let outcome = Nanoprobe::find()?.run(["count", &target.spec("work"), "-p", &running.pid_text()]);
    let _ = tracer.kill();
    let _ = tracer.wait();
    let outcome = outcome?;
    let text = refused(&outcome);
    assert!(text.contains("strace") && text.contains(&tracer.id().to_string()), "{outcome}");
    running.run(800, "work")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn process_held_by_gdb_is_refused_with_the_tracers_name() -> Result<()> {
    let gdb = Target::installed("gdb", "gdb")?;
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let mut tracer = Command::new(gdb.path())
        .args(["-nx", "-q", "-p", &running.pid_text()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::io("gdb"))?;
    running.wait_state('t')?;
    let outcome = Nanoprobe::find()?.run(["count", &target.spec("work"), "-p", &running.pid_text()]);
    // At the end of its input gdb lets go.
    drop(tracer.stdin.take());
    let _ = tracer.wait();
    let outcome = outcome?;
    let text = refused(&outcome);
    assert!(text.contains("gdb") && text.contains(&tracer.id().to_string()), "{outcome}");
    Ok(())
}

/// Sets one of a process's limits, by the name that prlimit(1) has for it.
fn limit(running: &Running, what: &str, most: u64) -> Result<()> {
    let words = ["--pid", &running.pid_text(), &format!("--{what}={most}:")];
    let status = Command::new("prlimit").args(words).status().map_err(Error::io("prlimit"))?;
    assert!(status.success(), "prlimit {words:?}");
    Ok(())
}

#[test]
fn a_process_that_has_used_up_its_descriptors_or_memory_is_told_with_what_raises_the_limit() -> Result<()> {
    Target::installed("prlimit", "util-linux")?;
    let target = Target::build(Program::Counted, Link::Pie)?;
    for (what, most) in [("nofile", 3), ("as", 1 << 20), ("data", 4096)] {
        let mut running = target.spawn()?;
        limit(&running, what, most)?;
        let outcome = refused_without_touching(&running, &target.spec("work"))?;
        for part in [format!("{most}"), format!("prlimit --pid {} --{what}=", running.pid())] {
            assert!(outcome.stderr.contains(&part), "no `{part}` in {outcome}");
        }
        running.run(800, "work")?;
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn zombie_is_refused_as_such() -> Result<()> {
    let mut child = Command::new("/bin/true").spawn().map_err(Error::io("/bin/true"))?;
    let stat = format!("/proc/{}/stat", child.id());
    wait_until("a zombie", std::time::Duration::from_secs(60), || {
        std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") Z "))
    })?;
    let outcome = Nanoprobe::find()?.run(["count", "u:libc:malloc", "-p", &child.id().to_string()]);
    let _ = child.wait();
    let outcome = outcome?;
    let text = refused(&outcome);
    assert!(text.contains("zombie") || text.contains("ended") || text.contains("exited"), "{outcome}");
    Ok(())
}

#[test]
fn kernel_thread_is_refused_as_such() -> Result<()> {
    // kthreadd, unless this is a container with a process table of its own.
    let is_kthreadd = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    assert!(is_kthreadd, "process 2 is not kthreadd: run this test outside a PID namespace");
    let outcome = Nanoprobe::find()?.run(["count", "u:libc:malloc", "-p", "2"])?;
    assert!(refused(&outcome).contains("kernel thread"), "{outcome}");
    Ok(())
}

#[test]
fn own_process_is_refused_as_such() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?.through(["/bin/sh", "-c", "exec \"$0\" \"$@\" -p $$"]);
    let outcome = nanoprobe.run(["count", "u:libc:malloc", "--for", "1s"])?;
    let text = refused(&outcome);
    assert!(text.contains("itself") || text.contains("own"), "{outcome}");
    Ok(())
}

#[test]
fn strict_refuses_all_if_one_site_is_refused() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let specs = [target.spec("work"), target.spec("work_big+0x3")];
    let pid = running.pid_text();
    let outcome = Nanoprobe::find()?.run(["count", &specs[0], &specs[1], "-p", &pid, "--strict"])?;
    refused(&outcome);
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    running.run(800, "work")?;
    Ok(())
}

#[test]
fn one_refused_site_does_not_stop_the_others() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = [target.spec("work"), target.spec("work_big+0x3")];
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", &specs[0], &specs[1], "-p", &pid])?;
    assert_eq!(tracing.attached()?.probes, 1);
    let hits = running.run(8_000, "work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), hits, "{outcome}");
    assert!(outcome.stderr.contains("work_big+0x3"), "{outcome}");
    Ok(())
}
