//! The command line: help, forms of output, list, explain and hist.
//!
//! For:     what a user reads.
//! Keeps:   data on stdout, talk on stderr, one JSON object a line, numbers that agree.

use testkit::{Link, Nanoprobe, Program, Result, Snapshot, Target};

#[test]
fn help_and_version_are_data_and_succeed() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    for flag in ["--help", "-h"] {
        let outcome = nanoprobe.run([flag])?.success()?;
        assert!(outcome.stdout.contains("count") && outcome.stderr.is_empty(), "{outcome}");
    }
    let short = nanoprobe.run(["-h"])?.stdout.lines().count();
    assert!(short <= 45, "-h has {short} lines, more than a screen");
    for verb in ["count", "hist", "lat", "trace", "top", "watch", "record", "report", "list", "explain"] {
        let short = nanoprobe.run([verb, "-h"])?.success()?.stdout;
        assert!(short.lines().count() <= 45, "{verb} -h has more than a screen: {short}");
        assert!(
            short.contains(&format!("nanoprobe {verb} ")),
            "{verb} -h has no example of its own: {short}"
        );
    }
    let version = nanoprobe.run(["--version"])?.success()?;
    assert!(version.stdout.starts_with("nanoprobe "), "{version}");
    Ok(())
}

#[test]
fn no_argument_at_all_is_a_usage_error_that_names_help() -> Result<()> {
    let outcome = Nanoprobe::find()?.run::<&str>([])?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("help"), "{outcome}");
    Ok(())
}

#[test]
fn first_line_tells_probes_time_and_stall() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let spec = target.spec("work");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    let attached = tracing.attached()?;
    for part in ["Attached 1 probe", " in ", "longest stall", "Ctrl-C"] {
        assert!(attached.line.contains(part), "{}", attached.line);
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for part in ["Hits ", "handled", "skipped", "Detach verified: yes"] {
        assert!(outcome.stderr.contains(part), "no `{part}` in {outcome}");
    }
    Ok(())
}

#[test]
fn table_is_sorted_with_the_largest_number_last() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("work*");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    running.run(8_000, "work_push")?;
    running.run(80_000, "work_args")?;
    running.run(800, "work_nop5")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let rows: Vec<_> = outcome.table().into_iter().filter(|(_, hits)| *hits > 0).collect();
    let wanted = [("work_nop5", 800), ("work_push", 8_000), ("work_args", 80_000)];
    assert_eq!(rows, wanted.map(|(name, hits)| (name.to_owned(), hits)), "{outcome}");
    Ok(())
}

#[test]
fn quiet_run_says_nothing_but_its_data() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let path = target.path().display().to_string();
    let arguments = ["count", &target.spec("work"), "-q", "--", &path, "run 8000 work"];
    let outcome = Nanoprobe::find()?.run(arguments)?;
    assert_eq!(outcome.stderr, "", "{outcome}");
    assert_eq!(outcome.count("work"), 8_000, "{outcome}");
    Ok(())
}

#[test]
fn json_has_one_object_a_line_with_type_and_data() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let arguments = ["count", &target.spec("work*"), "-p", &running.pid_text(), "-f", "json"];
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    let probes = tracing.attached()?.probes;
    running.run(8_000, "work_args")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for object in outcome.json()? {
        assert!(object["type"].is_string() && !object["data"].is_null(), "{object}");
    }
    let attached = outcome.json_data("attached_probes")?;
    assert_eq!(attached.len(), 1, "{outcome}");
    assert_eq!(attached[0]["probes"].as_u64(), Some(probes), "{outcome}");
    assert_eq!(outcome.json_count("work_args")?, 8_000, "{outcome}");
    assert!(outcome.json_receipt()?.detach_verified, "{outcome}");
    Ok(())
}

#[test]
fn list_names_what_would_match_and_touches_nothing() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let spec = target.spec("work_re*");
    for arguments in [vec!["list", &spec], vec!["list", &spec, "-p", &running.pid_text()]] {
        let outcome = Nanoprobe::find()?.run(arguments)?.success()?;
        for name in ["work_redzone", "work_rep", "work_ret", "work_ret_next", "work_recursive"] {
            assert!(outcome.stdout.contains(name), "{outcome}");
        }
        assert!(!outcome.stdout.contains("work_push"), "{outcome}");
        assert!(outcome.stdout.lines().all(|line| line.contains("0x")), "{outcome}");
    }
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    Ok(())
}

#[test]
fn list_finds_a_library_by_its_short_name() -> Result<()> {
    let outcome = Nanoprobe::find()?.run(["list", "u:libc:*alloc"])?.success()?;
    for name in ["malloc", "calloc", "realloc"] {
        assert!(outcome.stdout.contains(name), "{outcome}");
    }
    Ok(())
}

#[test]
fn explain_tells_the_rung_of_each_site_and_touches_nothing() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let outcome = Nanoprobe::find()?.run(["explain", &target.spec("work*"), "-p", &running.pid_text()])?;
    let rung_of = |name: &str| {
        let line = outcome.stdout.lines().find(|line| line.split_whitespace().any(|word| word == name));
        line.unwrap_or_else(|| panic!("no line for {name}: {outcome}"))
    };
    assert!(rung_of("work_nop5").contains("nop"), "{outcome}");
    assert!(rung_of("work_rip").contains("jump"), "{outcome}");
    assert!(rung_of("work_push").contains("window"), "{outcome}");
    assert!(rung_of("work_loop_head").contains("island"), "{outcome}");
    assert!(rung_of("work_punned").contains("punned"), "{outcome}");
    assert!(rung_of("work_punned_small").contains("punned"), "{outcome}");
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    Ok(())
}

#[test]
fn hist_sorts_an_argument_into_powers_of_two() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("work_args");
    let mut tracing = Nanoprobe::find()?.start(["hist", &spec, "arg0", "-p", &running.pid_text()])?;
    tracing.attached()?;
    // Eight threads with arguments 0 to 999.
    running.run(8_000, "work_args")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for (range, hits) in [("[512, 1K)", 8 * 488), ("[256, 512)", 8 * 256), ("[4, 8)", 8 * 4)] {
        let row = outcome.stdout.lines().find(|line| line.contains(range));
        let row = row.unwrap_or_else(|| panic!("no row {range}: {outcome}"));
        assert!(row.split_whitespace().any(|word| word == hits.to_string()), "{row}: {outcome}");
    }
    Ok(())
}
