//! Where results and talk go, and what becomes of the run if they cannot.
//!
//! For:     pipes, full disks, closed terminals, and targets that choose their names to be printed.
//! Keeps:   what could not be written is an error; whoever does not read does not keep us; no name commands a terminal.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Running, Target};

/// Nanoprobe run by a shell, `"$@"` in the script.
fn by_shell(script: &str, arguments: &[&str]) -> Result<Outcome> {
    Nanoprobe::find()?.through(["sh", "-c", script]).run(arguments)
}

fn running() -> Result<(Running, String)> {
    let target = Target::build(Program::Named, Link::Pie)?;
    let spec = target.spec("PPPP*");
    Ok((target.spawn()?, spec))
}

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("nanoprobe-output-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn what_cannot_be_written_fails_the_run_after_a_clean_detach() -> Result<()> {
    let (running, spec) = running()?;
    let pid = running.pid_text();
    let run = ["count", &spec, "-p", &pid, "--for", "100ms"];
    let full = by_shell(r#"exec "$0" "$@" >/dev/full"#, &run)?;
    assert_eq!(full.code(), Some(1), "{full}");
    assert!(full.stderr.contains("cannot write") && full.says_detach_verified(), "{full}");
    let list = by_shell(r#"exec "$0" "$@" >/dev/full"#, &["list", &spec])?;
    assert!(list.code() == Some(1) && list.stderr.contains("cannot write"), "{list}");
    let help = by_shell(r#"exec "$0" "$@" >/dev/full"#, &["--help"])?;
    assert_eq!(help.code(), Some(1), "{help}");
    Ok(())
}

#[test]
fn a_full_or_closed_stderr_ends_nothing() -> Result<()> {
    let (running, spec) = running()?;
    let pid = running.pid_text();
    for script in [r#"exec "$0" "$@" 2>/dev/full"#, r#"exec "$0" "$@" 2>&-"#] {
        let outcome = by_shell(script, &["count", &spec, "-p", &pid, "--for", "100ms"])?;
        assert_eq!(outcome.code(), Some(0), "{script}: {outcome}");
        assert!(outcome.stdout.starts_with("@[PPPP"), "{outcome}");
    }
    let outcome = by_shell(r#"exec "$0" "$@" 2>/dev/full"#, &["count", "u:nosuch", "-p", &pid])?;
    assert_eq!(outcome.code(), Some(1), "an error, no crash: {outcome}");
    Ok(())
}

#[test]
fn a_reader_that_goes_ends_the_run() -> Result<()> {
    let (running, spec) = running()?;
    let pid = running.pid_text();
    // Neither has a time of its own; the second has nothing to write, either.
    let quiet = "u:libc:getaddrinfo";
    for (spec, reader) in [(spec.as_str(), "head -1"), (quiet, "true")] {
        let script = format!(r#"{{ "$0" "$@"; echo "code $?" >&2; }} | {reader}"#);
        let outcome = by_shell(&script, &["trace", spec, "-p", &pid])?;
        assert!(outcome.says_detach_verified() && outcome.stderr.contains("code 141"), "{outcome}");
    }
    Ok(())
}

#[test]
fn a_reader_that_does_not_read_keeps_nobody_from_ending() -> Result<()> {
    let (running, spec) = running()?;
    let pid = running.pid_text();
    let began = Instant::now();
    // A pipe of one page, full at once: --for is over and the target is free long before the reader reads.
    let script = r#"{ "$0" "$@"; } | { sleep 4; cat >/dev/null; }"#;
    let nanoprobe = Nanoprobe::find()?.through(["sh", "-c", script]);
    let mut tracing = nanoprobe.start(["trace", "-f", "json", &spec, "-p", &pid, "--for", "1s"])?;
    tracing.attached()?;
    let maps = format!("/proc/{pid}/maps");
    let is_free = || !std::fs::read_to_string(&maps).is_ok_and(|m| m.contains("memfd:nanoprobe"));
    testkit::wait_until("the detach", Duration::from_secs(30), is_free)?;
    let outcome = tracing.finish()?;
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert!(began.elapsed() < Duration::from_secs(40));
    Ok(())
}

#[test]
fn a_file_is_emptied_when_there_is_something_to_write_and_not_before() -> Result<()> {
    let (running, spec) = running()?;
    let pid = running.pid_text();
    let path = file("kept");
    let name = path.display().to_string();
    std::fs::write(&path, "precious\n").expect("a file");
    let nanoprobe = Nanoprobe::find()?;
    for wrong in ["u:nosuch:f", "u::nosuch", "nonsense"] {
        let outcome = nanoprobe.run(["count", wrong, "-p", &pid, "-o", &name, "--for", "100ms"])?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "precious\n", "{wrong}");
    }
    nanoprobe.run(["count", &spec, "-p", &pid, "-o", &name, "--for", "100ms"])?.success()?;
    let written = std::fs::read_to_string(&path).expect("the file");
    assert!(written.starts_with("@[PPPP"), "{written}");
    let _ = std::fs::remove_file(&path);
    for impossible in ["/nosuch/file", "/"] {
        let outcome = nanoprobe.run(["count", &spec, "-p", &pid, "-o", impossible, "--for", "100ms"])?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert!(!outcome.stderr.contains("Attached"), "found out before anything was touched: {outcome}");
    }
    Ok(())
}

#[test]
fn a_fifo_without_a_reader_is_waited_for_and_ctrl_c_is_obeyed() -> Result<()> {
    let (running, spec) = running()?;
    let pid = running.pid_text();
    let path = file("fifo");
    let name = path.display().to_string();
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
    assert!(made.success());
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &pid, "-o", &name])?;
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    tracing.interrupt()?;
    let outcome = tracing.finish()?;
    assert!(outcome.code() == Some(1) && began.elapsed() < Duration::from_secs(20), "{outcome}");
    tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &pid, "-o", &name, "--for", "3s"])?;
    let read = std::fs::read_to_string(&path).expect("its reader");
    assert!(read.starts_with("@[PPPP"), "{read}");
    tracing.finish()?.success()?;
    let _ = std::fs::remove_file(&path);
    Ok(())
}

/// The target with another name for its function.
fn renamed(to: &[u8]) -> Result<Target> {
    let target = Target::build(Program::Named, Link::Pie)?;
    let copy = target.copied_to(&file("named"))?;
    let mut bytes = std::fs::read(copy.path()).expect("the copy");
    let mut name = to.to_vec();
    name.resize(31, b'_');
    while let Some(at) = bytes.windows(31).position(|w| w == [b'P'; 31]) {
        bytes[at..at + 31].copy_from_slice(&name);
    }
    let _ = std::fs::remove_file(copy.path());
    std::fs::write(copy.path(), bytes).expect("the copy");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(copy.path(), mode).expect("the copy");
    Ok(copy)
}

#[test]
fn names_command_no_terminal_and_forge_no_line() -> Result<()> {
    for nasty in [
        &b"\x1b]0;owned\x07\x1b[2J"[..],
        b"a]: 1\n@[forged",
        b"bidi\xe2\x80\xaeevil\xe2\x81\xa6",
        b"c1\xc2\x9b31m\x7f",
        b"bad\xff\xfe\x80utf8",
    ] {
        let target = renamed(nasty)?;
        let running = target.spawn()?;
        let pid = running.pid_text();
        let path = target.path().display().to_string();
        let all = format!("u:{path}:/___/");
        for arguments in [
            vec!["count", &all, "-p", &pid, "--for", "100ms", "-v"],
            vec!["count", &all, "-p", &pid, "--for", "100ms", "-f", "json"],
            vec!["lat", &all, "-p", &pid, "--for", "100ms"],
            vec!["trace", &all, "-p", &pid, "--for", "100ms"],
            vec!["list", &all],
            vec!["list", &all, "-f", "json"],
            vec!["explain", &all, "-v"],
            vec!["list", &format!("u:{path}:nosuch___")],
        ] {
            let outcome = Nanoprobe::find()?.run(&arguments)?;
            let printed = outcome.stdout.clone() + &outcome.stderr;
            let is_bad = |c: char| c != '\n' && (c.is_control() || "\u{202e}\u{2066}".contains(c));
            assert!(!printed.contains(is_bad), "{arguments:?}: {printed:?}");
            assert!(!printed.lines().any(|line| line.starts_with("@[forged")), "{printed}");
            if arguments.contains(&"json") {
                outcome.json()?;
            }
        }
        let _ = std::fs::remove_file(target.path());
    }
    Ok(())
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_the_process_is_touched() -> Result<()> {
    let (running, spec) = running()?;
    let pid = running.pid_text();
    let bad = file("no-stacks");
    std::fs::write(&bad, "no stacks\n").unwrap();
    let (picture, bad) = (file("picture"), bad.to_str().unwrap().to_owned());
    let picture = picture.to_str().unwrap();
    for (words, wanted) in [
        (&["--flame", "/nosuchdir/x.svg"][..], "/nosuchdir/x.svg"),
        (&["--folded", "/nosuchdir/x"], "/nosuchdir/x"),
        (&["--flame", picture, "--diff", &bad], "no folded stack"),
        (&["--flame", picture, "--diff", "/nosuchfile"], "/nosuchfile"),
    ] {
        let words = ["count", &spec, "-p", &pid, "--for", "5s"].into_iter().chain(words.iter().copied());
        let outcome = Nanoprobe::find()?.run(words)?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert!(outcome.stderr.contains(wanted) && !outcome.stderr.contains("Attached"), "{outcome}");
    }
    std::fs::remove_file(bad).unwrap();
    Ok(())
}

#[test]
fn calls_have_colours_on_a_terminal_and_for_nobody_who_wants_none() -> Result<()> {
    let (running, spec) = running()?;
    let words = ["trace", &spec, "-p", &running.pid_text(), "--for", "200ms"];
    let words = words.map(|word| format!("'{word}'")).join(" ");
    let by = |script: &str| -> Result<Outcome> { by_shell(&script.replace("WORDS", &words), &[]) };
    let on_terminal = r#"script -qec "$0 WORDS" /dev/null </dev/null"#;
    let coloured = by(&format!("TERM=xterm NO_COLOR= {on_terminal}"))?;
    assert!(coloured.stdout.contains("\x1b[1m"), "{coloured}");
    for environment in ["TERM=xterm NO_COLOR=1", "TERM=dumb NO_COLOR="] {
        let plain = by(&format!("{environment} {on_terminal}"))?;
        assert!(plain.stdout.contains("PPPP") && !plain.stdout.contains("\x1b["), "{environment}: {plain}");
    }
    let piped = by("TERM=xterm NO_COLOR= $0 WORDS")?;
    assert!(piped.stdout.contains("PPPP") && !piped.stdout.contains('\x1b'), "{piped}");
    Ok(())
}
