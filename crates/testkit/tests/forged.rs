//! Memory in a process that only looks like a nanoprobe's that was killed.
//!
//! For:     `recover`, which every attach runs, as root too.
//! Keeps:   nothing is changed that a real one would not justify, little is read, nothing is claimed.

use testkit::{Link, Nanoprobe, Outcome, Program, Result, Running, Target};

/// The version of the shared layout, as its source has it.
fn version() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/src/arena.rs");
    let source = std::fs::read_to_string(path).expect("the source of the wire format");
    let line = source.lines().find_map(|line| line.strip_prefix("pub const VERSION: u32 = "));
    line.expect("a version").trim_end_matches(';').to_owned()
}

/// A nanoprobe that gets no more than a gigabyte of addresses.
fn frugal() -> Result<Nanoprobe> {
    Ok(Nanoprobe::find()?.through(["prlimit", "--as=1000000000"]))
}

fn forged(kind: &str) -> Result<Running> {
    Target::build(Program::Forger, Link::Pie)?.spawn_with(&[kind, &version()])
}

fn check(running: &mut Running) -> Result<String> {
    running.command("check")?;
    running.expect("check ")
}

fn attach(running: &Running) -> Result<Outcome> {
    let spec = Target::build(Program::Forger, Link::Pie)?.spec("main");
    frugal()?.run(["count", &spec, "-p", &running.pid_text(), "--for", "100ms"])
}

#[test]
fn an_arena_of_another_kind_of_memory_is_left_alone_and_nothing_is_recovered() -> Result<()> {
    for kind in ["huge", "own"] {
        let mut running = forged(kind)?;
        let outcome = frugal()?.run(["recover", "-p", &running.pid_text()])?.success()?;
        assert!(outcome.stderr.contains("Nothing to recover"), "{kind}: {outcome}");
        assert_eq!(check(&mut running)?, "check ok arenas=1", "{kind}");
        attach(&running)?.success()?;
        assert_eq!(check(&mut running)?, "check ok arenas=1", "{kind}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn bytes_that_are_not_the_files_are_not_put_into_its_code() -> Result<()> {
    let mut running = forged("lies")?;
    let outcome = frugal()?.run(["recover", "-p", &running.pid_text()])?;
    assert!(!outcome.stderr.contains("1 site restored"), "{outcome}");
    let checked = check(&mut running)?;
    assert!(checked.starts_with("check ok"), "{checked}: {outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
