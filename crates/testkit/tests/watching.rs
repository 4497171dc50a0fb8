//! Watchpoints count every access, and the target notices nothing.
//!
//! For:     `nanoprobe watch`, by debug registers and by page protection.
//! Keeps:   accesses = the program's own number, over threads that come and go; handlers, system calls and
//!          children go on as before; refusals name the holders.

use nix::sys::signal::Signal;
use testkit::{Link, Nanoprobe, Program, Result, Running, Target, Tracing, number, rounds};

fn target() -> Result<Target> {
    Target::build(Program::Watched, Link::Pie)
}

fn spec(target: &Target, rest: &str) -> String {
    format!("w:{}:{rest}", target.path().display())
}

fn start(running: &Running, arguments: &[&str]) -> Result<Tracing> {
    let pid = running.pid_text();
    let all = ["watch"].iter().chain(arguments).copied().chain(["-p", &pid]);
    let mut tracing = Nanoprobe::find()?.start(all)?;
    tracing.attached()?;
    Ok(tracing)
}

/// The mappings of the program's own file, and of its zeroed data behind them, with their protection.
fn own_pages(target: &Target, running: &Running) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap_or_default();
    // As the kernel writes it: without "..".
    let path = std::fs::canonicalize(target.path()).unwrap_or_default().display().to_string();
    let mut behind_own = false;
    let is_own = |line: &&str| {
        let is_file = line.ends_with(&path);
        let is_zeroed = behind_own && line.split_whitespace().nth(4) == Some("0") && !line.contains('[');
        behind_own = is_file || is_zeroed;
        behind_own
    };
    maps.lines().filter(is_own).collect::<Vec<_>>().join("\n")
}

/// Has the target do something; its answer.
fn done(running: &mut Running, command: &str) -> Result<String> {
    running.command(command)?;
    running.expect("done ")
}

/// Hardware breakpoints are there, or the refusal is as it should be and the test is over.
fn has_hardware() -> Result<bool> {
    let target = target()?;
    let running = target.spawn()?;
    let spec = spec(&target, "plain:8:w");
    let outcome = Nanoprobe::find()?.run(["watch", &spec, "-p", &running.pid_text(), "--for", "100ms"])?;
    if outcome.code() != Some(0) {
        assert!(outcome.stderr.contains("--soft"), "{outcome}");
        eprintln!("no hardware breakpoints here: {outcome}");
    }
    Ok(outcome.code() == Some(0))
}

/// Threads that write all the time: at the end some have made an access whose fault nobody has heard of.
#[test]
fn a_soft_watch_that_is_left_in_the_middle_of_accesses_harms_nobody() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let mut running = target.spawn_with(&["hold"])?;
    let (pid, spec) = (running.pid_text(), spec(&target, "rounds:8:w"));
    for round in 0..rounds(25, 1000) {
        let words = ["watch", "--soft", &spec, "-p", &pid, "--for", "5ms"];
        let outcome = Nanoprobe::find()?.run(words)?.success()?;
        assert!(outcome.says_detach_verified(), "round {round}: {outcome}");
    }
    running.command("check")?;
    let seen = running.expect("check ")?;
    assert_eq!(number(&seen, "broken")?, 0, "{seen}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn debug_registers_count_every_write_of_threads_that_come_and_go() -> Result<()> {
    if !has_hardware()? {
        return Ok(());
    }
    for link in [Link::Pie, Link::Static, Link::Musl] {
        let target = Target::build(Program::Watched, link)?;
        let mut running = target.spawn()?;
        done(&mut running, "write 800")?;
        let (plain, shared) = (spec(&target, "plain:8:w"), spec(&target, "shared:8:w"));
        let tracing = start(&running, &[&plain, &shared])?;
        done(&mut running, "write 8000")?;
        done(&mut running, "churn 200")?;
        let line = done(&mut running, "fork")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        done(&mut running, "write 800")?;
        // 800 came before. The child's are its own, and not counted.
        assert_eq!(outcome.count("plain"), number(&line, "plain")? - 800, "{outcome}");
        assert_eq!(outcome.count("shared"), number(&line, "shared")? - 800, "{outcome}");
        assert!(outcome.says_detach_verified(), "{outcome}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn forked_children_are_counted_if_asked_for() -> Result<()> {
    if !has_hardware()? {
        return Ok(());
    }
    let target = target()?;
    let mut running = target.spawn()?;
    let plain = spec(&target, "plain:8:w");
    let tracing = start(&running, &[&plain, "--children", "-f", "json"])?;
    done(&mut running, "fork")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.json_count("plain")?, 100, "{outcome}");
    assert!(outcome.json_receipt()?.detach_verified, "{outcome}");
    Ok(())
}

#[test]
fn a_fifth_watchpoint_is_refused_and_the_holders_are_named() -> Result<()> {
    let target = target()?;
    let running = target.spawn()?;
    let specs: Vec<String> = (0..5).map(|n| spec(&target, &format!("cells+{}:8:w", n * 256))).collect();
    let pid = running.pid_text();
    let arguments = ["watch"].into_iter().chain(specs.iter().map(String::as_str)).chain(["-p", &pid]);
    let outcome = Nanoprobe::find()?.run(arguments)?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    for part in ["no debug register for cells+0x400", "held by cells (this command)", "--soft"] {
        assert!(outcome.stderr.contains(part), "no `{part}` in {outcome}");
    }
    Ok(())
}

#[test]
fn where_the_kernel_gives_no_breakpoints_the_cause_is_told_and_pages_offered() -> Result<()> {
    const PERF_EVENT_OPEN: &str = "298";
    let refusing = Target::build(Program::Refusing, Link::Static)?.path().display().to_string();
    let target = target()?;
    let mut running = target.spawn()?;
    let (plain, pid) = (spec(&target, "plain:8:w"), running.pid_text());
    // EACCES, EPERM as in a container, ENOSYS, ENODEV.
    for (errno, part) in [
        ("13", "refuses perf events"),
        ("1", "refuses perf events"),
        ("38", "no debug registers"),
        ("19", "no debug registers"),
    ] {
        let nanoprobe = Nanoprobe::find()?.through([&refusing, PERF_EVENT_OPEN, errno]);
        let outcome = nanoprobe.run(["watch", &plain, "-p", &pid, "--for", "100ms"])?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        for part in [part, "nanoprobe watch --soft", "Seccomp"] {
            let is_needed = part != "Seccomp" || errno == "1";
            assert!(!is_needed || outcome.stderr.contains(part), "errno {errno}: no `{part}` in {outcome}");
        }
    }
    let nanoprobe = Nanoprobe::find()?.through([&refusing, PERF_EVENT_OPEN, "1"]);
    let mut tracing = nanoprobe.start(["watch", "--soft", &plain, "-p", &pid])?;
    tracing.attached()?;
    done(&mut running, "write 80")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("plain"), 80, "{outcome}");
    Ok(())
}

#[test]
fn registers_taken_by_another_nanoprobe_are_told_with_its_name() -> Result<()> {
    if !has_hardware()? {
        return Ok(());
    }
    let target = target()?;
    let running = target.spawn()?;
    let specs: Vec<String> = (0..4).map(|n| spec(&target, &format!("cells+{}:8:w", n * 256))).collect();
    let first = start(&running, &specs.iter().map(String::as_str).collect::<Vec<_>>())?;
    let plain = spec(&target, "plain:8:w");
    let outcome = Nanoprobe::find()?.run(["watch", &plain, "-p", &running.pid_text()])?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    // By its command, without "perhaps": it watches this very process.
    let held = outcome.stderr.lines().find(|l| l.contains("np-engine")).unwrap_or_default();
    assert!(held.contains("held by") && !held.contains("perhaps"), "{outcome}");
    assert!(specs.iter().all(|spec| held.contains(spec.as_str())), "{outcome}");
    // It is known what it has, and by no guess of which perf events are breakpoints.
    assert!(held.matches(":8").count() >= 4 && !outcome.stderr.contains("perf events"), "{outcome}");
    // What it has ends with it, however it ends.
    first.kill_with_children()?;
    testkit::wait_until("the registers to be free", std::time::Duration::from_secs(60), || {
        let again = Nanoprobe::find().and_then(|nanoprobe| {
            nanoprobe.run(["watch", &plain, "-p", &running.pid_text(), "--for", "10ms"])
        });
        again.is_ok_and(|outcome| outcome.code() == Some(0))
    })?;
    Ok(())
}

#[test]
fn page_protection_counts_every_write_of_threads_that_come_and_go() -> Result<()> {
    for link in [Link::Pie, Link::Musl] {
        let target = Target::build(Program::Watched, link)?;
        let mut running = target.spawn()?;
        done(&mut running, "write 800")?;
        let before = own_pages(&target, &running);
        let (plain, shared) = (spec(&target, "plain:8:w"), spec(&target, "shared:8:w"));
        let tracing = start(&running, &["--soft", &plain, &shared])?;
        done(&mut running, "write 800")?;
        let line = done(&mut running, "churn 20")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(outcome.count("plain"), number(&line, "plain")? - 800, "{outcome}");
        assert_eq!(outcome.count("shared"), number(&line, "shared")? - 800, "{outcome}");
        assert!(outcome.says_detach_verified(), "{outcome}");
        assert_eq!(own_pages(&target, &running), before);
        done(&mut running, "write 800")?;
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn sixty_four_soft_watchpoints_are_exact_at_once() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    let specs: Vec<String> = (0..64).map(|n| spec(&target, &format!("cells+{}:8:w", n * 256))).collect();
    let arguments: Vec<&str> = ["--soft"].into_iter().chain(specs.iter().map(String::as_str)).collect();
    let tracing = start(&running, &arguments)?;
    done(&mut running, "many")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for n in 0..64u64 {
        let name = if n == 0 { "cells".to_owned() } else { format!("cells+{:#x}", n * 256) };
        assert_eq!(outcome.count(&name), 2 * (n + 1), "{name}: {outcome}");
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn handlers_system_calls_and_children_of_a_softly_watched_process_go_on() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    let plain = spec(&target, "plain:8:w");
    let tracing = start(&running, &["--soft", &plain])?;
    let line = done(&mut running, "fault 20")?;
    assert_eq!((number(&line, "traps")?, number(&line, "segvs")?), (20, 20), "{line}");
    // The kernel forgets a handler whose signal is forced while it is blocked: it must be there again.
    let line = done(&mut running, "nested")?;
    assert_eq!(number(&line, "segvs")?, 21, "{line}");
    let line = done(&mut running, "fault 5")?;
    assert_eq!((number(&line, "traps")?, number(&line, "segvs")?), (26, 26), "{line}");
    // read(2) into the watched page.
    let line = done(&mut running, "fill")?;
    assert_eq!(number(&line, "read")?, 6, "{line}");
    let line = done(&mut running, "fork")?;
    assert_eq!(number(&line, "child")?, 5, "{line}");
    let line = done(&mut running, "write 80")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("plain"), number(&line, "plain")?, "{outcome}");
    let line = done(&mut running, "fault 3")?;
    assert_eq!((number(&line, "traps")?, number(&line, "segvs")?), (29, 29), "{line}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn values_before_and_after_are_printed_with_thread_and_place() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    let plain = spec(&target, "plain:8:w");
    let tracing = start(&running, &["--soft", "--values", &plain])?;
    done(&mut running, "churn 4")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let lines: Vec<&str> = outcome.stdout.lines().filter(|l| l.starts_with("plain: ")).collect();
    assert_eq!(lines.len(), 40, "{outcome}");
    assert!(lines.iter().all(|l| l.contains("visitor+0x") || l.contains("store_plain+0x")), "{outcome}");
    assert!(lines.iter().filter(|l| l.contains("0x8 -> 0x9")).count() >= 1, "{outcome}");
    Ok(())
}

#[test]
fn debug_registers_too_tell_values_threads_and_places_of_every_write() -> Result<()> {
    if !has_hardware()? {
        return Ok(());
    }
    for link in [Link::Pie, Link::Static] {
        let target = Target::build(Program::Watched, link)?;
        let mut running = target.spawn()?;
        let (plain, shared) = (spec(&target, "plain:8:w"), spec(&target, "shared:8:w"));
        let tracing = start(&running, &["--stack", "-f", "json", &plain, &shared])?;
        done(&mut running, "write 800")?;
        done(&mut running, "churn 40")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        let all = outcome.json_data("access")?;
        let of = |name: &str| all.iter().filter(|a| a["name"] == name).cloned().collect::<Vec<_>>();
        let (plain, shared) = (of("plain"), of("shared"));
        assert_eq!((plain.len(), shared.len()), (800 + 400, 800), "{outcome}");
        // Each write finds what the one before it left.
        assert!(all.iter().all(|a| a["before"].is_u64() && a["after"].is_u64()), "{outcome}");
        for pair in shared.windows(2) {
            assert_eq!(pair[0]["after"], pair[1]["before"], "{outcome}");
        }
        assert_eq!((&shared[0]["before"], &shared[799]["after"]), (&0.into(), &800.into()), "{outcome}");
        let tids: std::collections::BTreeSet<_> = plain.iter().map(|a| a["tid"].to_string()).collect();
        assert_eq!(tids.len(), 8 + 40, "{outcome}");
        let is_in = |a: &serde_json::Value, names: &[&str]| {
            a["place"].as_str().is_some_and(|p| names.iter().any(|n| p.starts_with(n)))
        };
        assert!(plain.iter().all(|a| is_in(a, &["store_plain+0x", "visitor+0x", "writer+0x"])), "{outcome}");
        assert!(shared.iter().all(|a| is_in(a, &["writer+0x"])), "{outcome}");
    }
    Ok(())
}

#[test]
fn both_kinds_name_the_same_instruction_and_its_callers() -> Result<()> {
    let target = target()?;
    let mut seen = Vec::new();
    for soft in [false, true] {
        if !soft && !has_hardware()? {
            continue;
        }
        let mut running = target.spawn()?;
        let plain = spec(&target, "plain:8:w");
        let mut arguments = vec!["--stack", "-f", "json", &plain];
        arguments.extend(soft.then_some("--soft"));
        let tracing = start(&running, &arguments)?;
        done(&mut running, "deep")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        let all = outcome.json_data("access")?;
        assert_eq!(all.len(), 10, "{outcome}");
        for access in &all {
            let callers: Vec<&str> =
                access["callers"].as_array().into_iter().flatten().filter_map(|c| c.as_str()).collect();
            assert!(access["place"].as_str().is_some_and(|p| p.starts_with("leaf+0x")), "{outcome}");
            assert!(callers.len() >= 2, "{outcome}");
            assert!(callers[0].starts_with("inner+0x") && callers[1].starts_with("outer+0x"), "{outcome}");
            // The program keeps no frame pointers: tables alone lead to where it began.
            assert!(
                callers
                    .last()
                    .is_some_and(|last| last.starts_with("_start+0x") || last.starts_with("clone3+0x")),
                "{outcome}"
            );
            assert_eq!(access["has_more_callers"], false, "{outcome}");
        }
        seen.push((all[0]["place"].clone(), all[0]["callers"][0].clone()));
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    Ok(())
}

#[test]
fn records_that_find_no_room_are_counted_as_lost_and_the_count_stays_exact() -> Result<()> {
    if !has_hardware()? {
        return Ok(());
    }
    let target = target()?;
    let mut running = target.spawn()?;
    let plain = spec(&target, "plain:8:w");
    let mut tracing = start(&running, &["--stack", "-f", "json", &plain])?;
    // Nobody drains the ring meanwhile.
    tracing.signal_children(Signal::SIGSTOP)?;
    done(&mut running, "write 40000")?;
    tracing.signal_children(Signal::SIGCONT)?;
    // Only when something was taken out is there room for what comes now.
    tracing.expect("{\"type\":\"access\"")?;
    done(&mut running, "write 80")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let shown = outcome.json_data("access")?;
    let receipt = &outcome.json_data("receipt")?[0];
    let (hits, lost) = (receipt["hits"].as_u64().unwrap_or(0), receipt["lost"].as_u64().unwrap_or(0));
    assert_eq!((hits, shown.len() as u64 + lost), (40_080, 40_080), "lost {lost}");
    assert!(lost > 0 && outcome.stderr.contains("are not shown"), "lost {lost}: {}", outcome.stderr);
    // What a value was before is not known once something between was lost.
    assert!(shown.iter().any(|a| a["before"].is_null()));
    Ok(())
}

#[test]
fn values_at_debug_registers_are_refused_where_the_kernel_takes_no_programs() -> Result<()> {
    if !has_hardware()? {
        return Ok(());
    }
    Target::installed("setpriv", "util-linux")?;
    let target = target()?;
    let running = target.spawn()?;
    let (plain, pid) = (spec(&target, "plain:8:w"), running.pid_text());
    let nanoprobe = Nanoprobe::find()?.through(["setpriv", "--bounding-set=-sys_admin,-bpf"]);
    let outcome = nanoprobe.run(["watch", "--values", &plain, "-p", &pid, "--for", "100ms"])?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    for part in ["refuses to record values", "capabilities BPF and PERFMON", "watch --soft --values"] {
        assert!(outcome.stderr.contains(part), "no `{part}` in {outcome}");
    }
    // Counting is allowed, and so are values by page protection.
    nanoprobe.run(["watch", &plain, "-p", &pid, "--for", "100ms"])?.success()?;
    nanoprobe.run(["watch", "--soft", "--values", &plain, "-p", &pid, "--for", "100ms"])?.success()?;
    Ok(())
}

#[test]
fn a_soft_watch_follows_what_the_process_does_to_its_mappings() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    let before = own_pages(&target, &running);
    let (plain, moved) = (spec(&target, "plain:8:w"), spec(&target, "region+0x1000:8:w"));
    let gone = spec(&target, "region+0x2000:8:w");
    let tracing = start(&running, &["--soft", &plain, &moved, &gone])?;
    // A page that is protected anew stays watched, with no access missed in between.
    let line = done(&mut running, "reprotect 300")?;
    assert_eq!(number(&line, "plain")?, 300, "{line}");
    // A child that shares the memory until its exec is no end of the watch.
    let line = done(&mut running, "spawn")?;
    assert_eq!(number(&line, "child")?, 0, "{line}");
    let line = done(&mut running, "move")?;
    let outcome_of_region = number(&line, "region")?;
    done(&mut running, "vanish")?;
    done(&mut running, "write 80")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    // On a busy machine a call may take so long that others run meanwhile, unseen: then it says so.
    let is_blind = outcome.stderr.contains("waited with the pages open");
    for (name, made) in [("plain", 380), ("region+0x1000", outcome_of_region)] {
        let seen = outcome.count(name);
        assert!(seen == made || is_blind && seen < made, "{name} {made}: {outcome}");
    }
    assert!(outcome.stderr.contains("region+0x2000 was not watched to the end: the process has unmapped it"));
    assert!(!outcome.stderr.contains("plain was not watched"), "{outcome}");
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert_ne!(own_pages(&target, &running), before);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_soft_watch_whose_engine_is_killed_gives_the_pages_back() -> Result<()> {
    type Kill = fn(Tracing, u32) -> Result<()>;
    let kills: [(&str, Kill); 3] = [
        ("engine", |tracing, _| {
            tracing.kill_children()?;
            tracing.finish().map(drop)
        }),
        ("front and engine", |tracing, _| tracing.kill_with_children()),
        ("front, engine and guard", |tracing, target| {
            testkit::kill_guard_of(target)?;
            tracing.kill_with_children()
        }),
    ];
    for (n, (who, kill)) in kills.into_iter().enumerate() {
        let target = target()?;
        let mut running = target.spawn()?;
        let before = own_pages(&target, &running);
        let plain = spec(&target, "plain:8:w");
        let tracing = start(&running, &["--soft", &plain])?;
        done(&mut running, "write 80")?;
        assert_ne!(own_pages(&target, &running), before);
        kill(tracing, running.pid())?;
        if n == 2 {
            // Nobody is left to do it.
            assert_ne!(own_pages(&target, &running), before, "{who}");
            let pid = running.pid_text();
            let outcome = Nanoprobe::find()?.run(["recover", "-p", &pid])?.success()?;
            assert!(outcome.stderr.contains("1 pages have their own protection again"), "{outcome}");
        }
        // The journal goes after the last page.
        testkit::wait_until("the pages to be as before", std::time::Duration::from_secs(60), || {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap_or_default();
            own_pages(&target, &running) == before && !maps.contains("nanoprobe")
        })?;
        done(&mut running, "write 800")?;
        assert_eq!(running.end()?.code(), Some(7), "{who}");
    }
    Ok(())
}

#[test]
fn a_launched_command_whose_engine_is_killed_gets_its_pages_back_too() -> Result<()> {
    let target = target()?;
    let plain = spec(&target, "plain:8:w");
    let path = target.path().display().to_string();
    let mut tracing = Nanoprobe::find()?.start(["watch", "--soft", &plain, "--", &path])?;
    tracing.attached()?;
    let ready = tracing.expect("ready pid=")?;
    let pid = number(&ready, "pid")?;
    tracing.kill_children()?;
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    testkit::wait_until("the pages to be as before", std::time::Duration::from_secs(60), || {
        !maps().contains("nanoprobe-watch")
    })?;
    tracing.command("write 80")?;
    tracing.expect("done plain=80 ")?;
    tracing.command("quit")?;
    assert_eq!(tracing.finish()?.code(), Some(128 + 9));
    Ok(())
}

#[test]
fn the_next_soft_watch_cures_what_a_killed_one_left() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    let before = own_pages(&target, &running);
    let plain = spec(&target, "plain:8:w");
    let tracing = start(&running, &["--soft", &plain])?;
    testkit::kill_guard_of(running.pid())?;
    tracing.kill_with_children()?;
    let tracing = start(&running, &["--soft", &plain])?;
    done(&mut running, "write 80")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("plain"), 80, "{outcome}");
    assert_eq!(own_pages(&target, &running), before);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn what_the_kernel_writes_to_a_softly_watched_value_is_told() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    let landing = spec(&target, "landing:4:w");
    let tracing = start(&running, &["--soft", &landing])?;
    done(&mut running, "fill")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("landing"), 0, "{outcome}");
    assert!(outcome.stderr.contains("1 times a system call changed a watched value"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_soft_watch_whose_front_is_killed_gives_the_pages_back() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    let before = own_pages(&target, &running);
    let plain = spec(&target, "plain:8:w");
    let tracing = start(&running, &["--soft", &plain])?;
    done(&mut running, "write 80")?;
    assert_ne!(own_pages(&target, &running), before);
    tracing.kill()?;
    testkit::wait_until("the pages to be as before", std::time::Duration::from_secs(60), || {
        own_pages(&target, &running) == before
    })?;
    done(&mut running, "write 800")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_launched_command_is_watched_from_its_start_and_its_code_passed_on() -> Result<()> {
    let target = target()?;
    let path = target.path().display().to_string();
    for soft in [false, true] {
        if !soft && !has_hardware()? {
            continue;
        }
        let plain = spec(&target, "plain:8:w");
        let arguments: Vec<&str> =
            ["watch", &plain].into_iter().chain(soft.then_some("--soft")).chain(["--", &path]).collect();
        let mut tracing = Nanoprobe::find()?.start(arguments)?;
        tracing.attached()?;
        tracing.command("churn 8")?;
        tracing.expect("done plain=80 ")?;
        tracing.command("quit")?;
        let outcome = tracing.finish()?;
        assert_eq!(outcome.code(), Some(7), "soft {soft}: {outcome}");
        assert_eq!(outcome.count("plain"), 80, "soft {soft}: {outcome}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_watched_is_refused_with_the_reason() -> Result<()> {
    let target = target()?;
    let running = target.spawn()?;
    let pid = running.pid_text();
    let nanoprobe = Nanoprobe::find()?;
    for (rest, part) in [
        ("plain:3:w", "1, 2, 4 or 8"),
        ("plain+4:8:w", "8 bytes only"),
        ("plane:8:w", "near: plain"),
        ("landing+1:4:w", "no multiple of 4"),
    ] {
        let outcome = nanoprobe.run(["watch", &spec(&target, rest), "-p", &pid])?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert!(outcome.stderr.contains(part), "{rest}: no `{part}` in {outcome}");
    }
    let outcome = nanoprobe.run(["watch", "w:0x1000:8:w", "-p", &pid])?;
    assert!(outcome.stderr.contains("nothing is mapped"), "{outcome}");
    Ok(())
}

#[test]
fn pages_that_the_kernel_writes_to_by_itself_are_not_protected() -> Result<()> {
    let target = target()?;
    let path = target.path().display().to_string();
    let nanoprobe = Nanoprobe::find()?;
    // Started by ourselves, because the first line has the address.
    let mut first = nanoprobe.start(["count", "u::main", "--", &path])?;
    first.attached()?;
    let ready = first.expect("ready pid=")?;
    let (pid, own_block) = (number(&ready, "pid")?.to_string(), number(&ready, "self")?);
    let outcome = nanoprobe.run(["watch", "--soft", &format!("w:{own_block:#x}:8:w"), "-p", &pid])?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("it holds a thread's own block"), "{outcome}");
    first.command("write 80")?;
    first.expect("done plain=80 ")?;
    first.command("quit")?;
    assert_eq!(first.finish()?.code(), Some(7));
    Ok(())
}
