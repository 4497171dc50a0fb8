//! Every shape of function, probed at its entry and in its middle, counted and unharmed.
//!
//! For:     the ladder's rungs 1 to 5 and what stands above them.
//! Keeps:   a site is counted exactly, or refused with its reason; never damaged.

use testkit::{Link, Nanoprobe, Program, Result, Snapshot, Target};

/// Shapes that some rung of 1 to 5 can do. Four hits a call at most.
const FUNCTIONS: &[&str] = &[
    "work",
    "work_args",
    "work_short",
    "work_tiny",
    "work_nop5",
    "work_push",
    "work_ret_next",
    "work_punned",
    "work_punned_small",
    "work_pushf",
    "work_loop_head",
    "work_loop_self",
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
    "work_recursive",
    "work_jump_table",
    "work_big",
];

/// Labels in the middle of functions.
const PLACES: &[&str] = &["work_redzone_mid", "work_flags_mid", "work_vector_mid", "work_big_mid"];

/// Counts each spec by itself; gives a line for every one that is not exact.
fn one_by_one(link: Link) -> Result<Vec<String>> {
    let target = Target::build(Program::Counted, link)?;
    let mut wrong = Vec::new();
    for function in FUNCTIONS {
        // A process each, so that one that is damaged does not hide the others.
        let mut running = target.spawn()?;
        if let Err(error) = count_one(&target, &mut running, function, function) {
            wrong.push(format!("{function}: {error}"));
        }
    }
    for label in PLACES {
        let mut running = target.spawn()?;
        let place = running.place(label)?;
        let function = place.split('+').next().unwrap_or_default().to_owned();
        if let Err(error) = count_one(&target, &mut running, &place, &function) {
            wrong.push(format!("{place}: {error}"));
        }
    }
    Ok(wrong)
}

fn count_one(target: &Target, running: &mut testkit::Running, symbol: &str, function: &str) -> Result<()> {
    running.run(800, function)?;
    let before = Snapshot::take(running.pid())?;
    let spec = target.spec(symbol);
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text(), "--strict"])?;
    tracing.attached()?;
    let hits = running.run(80_000, function)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let rows = outcome.table();
    let difference = before.difference_now()?;
    running.run(800, function)?;
    if rows.len() != 1 || rows[0].1 != hits || !difference.is_empty() {
        let wanted = format!("{hits} hits and no difference");
        return Err(testkit::Error::Unexpected { wanted, seen: format!("{outcome}\n{difference}") });
    }
    Ok(())
}

#[test]
fn every_shape_is_counted_exactly_in_a_dynamic_process() -> Result<()> {
    let wrong = one_by_one(Link::Pie)?;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn every_shape_is_counted_exactly_in_a_static_musl_process() -> Result<()> {
    let wrong = one_by_one(Link::Musl)?;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn all_shapes_together_are_counted_exactly() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let spec = target.spec("work*");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let mut wanted = Vec::new();
    for function in FUNCTIONS {
        wanted.push((*function, running.run(80_000, function)?));
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for (function, hits) in wanted {
        assert_eq!(outcome.count(function), hits, "{function}: {outcome}");
    }
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// A site that stands where no rung may reach: counted exactly, or refused by name, and unharmed.
fn counted_or_refused(symbol: &str, function: &str) -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec(symbol);
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    if tracing.attached().is_ok() {
        let hits = running.run(80_000, function)?;
        assert_eq!(running.run(80_000, "work_ret_next")?, 80_000);
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(outcome.table()[0].1, hits, "{outcome}");
    } else {
        let outcome = tracing.finish()?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert!(outcome.stderr.contains(symbol), "{outcome}");
        assert_eq!(running.run(80_000, function)?, 80_000);
        assert_eq!(running.run(80_000, "work_ret_next")?, 80_000);
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn one_byte_function_with_no_room_is_counted_or_refused_with_its_reason() -> Result<()> {
    counted_or_refused("work_ret", "work_ret")
}

#[test]
fn site_at_the_end_of_a_page_is_counted_or_refused_with_its_reason() -> Result<()> {
    counted_or_refused("work_page_end", "work_page_end")?;
    counted_or_refused("work_page_end+0x4", "work_page_end")
}

#[test]
fn probe_inside_an_instruction_is_refused_and_names_the_instruction() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    // work_big starts with an instruction of ten bytes.
    let spec = target.spec("work_big+0x3");
    let outcome = Nanoprobe::find()?.run(["count", &spec, "-p", &running.pid_text()])?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("instruction"), "{outcome}");
    assert_eq!(running.run(800, "work_big")?, 800);
    Ok(())
}

#[test]
fn probe_at_a_file_offset_counts_the_function_there() -> Result<()> {
    let target = Target::build(Program::Counted, Link::NoPie)?;
    let mut running = target.spawn()?;
    // `list` prints where it would stand.
    let listed = Nanoprobe::find()?.run(["list", &target.spec("work_push")])?.success()?;
    let at = listed
        .stdout
        .split_whitespace()
        .find(|word| word.starts_with("0x"))
        .unwrap_or_else(|| panic!("no address in {listed}"))
        .to_owned();
    let spec = format!("u:{}:{at}", target.path().display());
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let hits = running.run(80_000, "work_push")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.table().len(), 1, "{outcome}");
    assert_eq!(outcome.table()[0].1, hits, "{outcome}");
    Ok(())
}
