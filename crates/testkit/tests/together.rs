//! Scripts on several processes: one set of maps for all of them.
//!
//! For:     `-e` with `--follow`, and with several `-p`.
//! Keeps:   what all processes do is in the maps once, whichever of them starts, forks, execs, ends or is killed; hits = handled +
//!          skipped over all of them.

use std::process::Command;
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Target};

/// Calls work() in children that it forks, some of which execute this file first; or kills them; or as another user.
const SOURCE: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) int work(int i) { __asm__ volatile(""); return i + 1; }
static int calls(long n) { int x = 0; for (long i = 0; i < n; i++) x = work(x); return 0; }
int main(int argc, char **argv)
{ long n = argc > 2 ? atol(argv[2]) : 0, m = argc > 3 ? atol(argv[3]) : 0;
  if (argc < 2) return 9;
  if (!strcmp(argv[1], "call")) return calls(n);
  if (!strcmp(argv[1], "wait")) { puts("ready"); fflush(stdout); if (n && (setgid(n) || setuid(n))) return 8; puts("set"); fflush(stdout); return getchar() == 'x'; }
  int is_killing = !strcmp(argv[1], "kill");
  for (long i = 0; i < n; i++) {
    pid_t child = fork();
    if (child == 0 && is_killing) for (;;) work(0);
    if (child == 0 && i % 2) { execl(argv[0], argv[0], "call", argv[3], (char *)0); _exit(7); }
    if (child == 0) _exit(calls(m));
    if (is_killing) { usleep(2000); kill(child, SIGKILL); waitpid(child, 0, 0); }
  }
  while (wait(0) > 0) {}
  return is_killing ? calls(m) : 0; }
"#;

/// A directory that goes with the value, and the program in it.
struct Built(std::path::PathBuf);

impl Built {
    fn new(name: &str) -> Built {
        let dir = std::env::temp_dir().join(format!("np-together-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("p.c"), SOURCE).expect("its source");
        let built = Command::new("gcc").args(["-O1", "-o", "p", "p.c"]).current_dir(&dir).status();
        assert!(built.expect("gcc").success());
        Built(dir)
    }

    fn program(&self) -> String {
        self.0.join("p").display().to_string()
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The number behind `name: ` in what a script printed.
fn scalar(outcome: &Outcome, name: &str) -> u64 {
    let prefix = format!("{name}: ");
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

/// The values of a map with keys.
fn values(outcome: &Outcome, name: &str) -> Vec<u64> {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix('[')?.rsplit(' ').next()?.parse().ok();
    outcome.stdout.lines().filter_map(of).collect()
}

/// Hits, handled, skipped.
fn hits(outcome: &Outcome) -> [u64; 3] {
    let line = outcome.stderr.lines().find(|line| line.starts_with("Hits ")).unwrap_or_default();
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    std::array::from_fn(|_| numbers.next().unwrap_or_else(|| panic!("no hits in {outcome}")))
}

/// Programs that were started faster than they could be followed, which is said.
fn is_whole(outcome: &Outcome) -> bool {
    !outcome.stderr.contains("faster than they could be followed")
}

#[test]
fn forked_and_started_children_write_to_one_map() -> Result<()> {
    let built = Built::new("children");
    let program = built.program();
    let script = format!(
        "u:{program}:work {{ @by[pid] = count(); @all = count(); @n++; @s = sum(arg0); @h[pid] = hist(arg0); }}"
    );
    let command = format!("/bin/sh -c '{program} fork 12 1000; {program} call 500; exit 0'");
    let outcome = Nanoprobe::find()?.run(["-e", &script, "--follow", "-c", &command])?.success()?;
    let all = 12_500;
    if is_whole(&outcome) {
        let mut by = values(&outcome, "@by");
        by.sort_unstable();
        assert_eq!(by, [vec![500], vec![1_000; 12]].concat(), "{outcome}");
        assert_eq!((scalar(&outcome, "@all"), scalar(&outcome, "@n")), (all, all), "{outcome}");
        assert_eq!(scalar(&outcome, "@s"), 12 * 499_500 + 124_750, "{outcome}");
        assert_eq!(hits(&outcome), [all, all, 0], "{outcome}");
    }
    assert!(outcome.says_detach_verified(), "{outcome}");
    Ok(())
}

#[test]
fn what_a_running_process_starts_is_in_its_map() -> Result<()> {
    for link in [Link::Pie, Link::Musl] {
        let target = Target::build(Program::Forker, link)?;
        let mut running = target.spawn()?;
        let script = format!("u:{}:work_child {{ @by[pid] = count(); @n++; }}", target.path().display());
        let mut tracing = Nanoprobe::find()?.start(["-e", &script, "--follow", "-p", &running.pid_text()])?;
        tracing.attached()?;
        for command in ["vfork 5", "spawn 5", "fork 5"] {
            running.command(command)?;
            running.expect("done ")?;
        }
        let outcome = tracing.interrupt_and_finish()?.success()?;
        if is_whole(&outcome) {
            assert_eq!(values(&outcome, "@by"), [100; 15], "{link:?} {outcome}");
            assert_eq!((scalar(&outcome, "@n"), hits(&outcome)), (1_500, [1_500, 1_500, 0]), "{outcome}");
        }
        assert!(outcome.says_detach_verified(), "{outcome}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

/// glibc's threads have restartable sequences, musl's add by locked instructions: in one map the two must not meet.
#[test]
fn processes_with_and_without_restartable_sequences_count_in_one_map_exactly() -> Result<()> {
    const CALLS: u64 = 80_000;
    let targets = [Target::build(Program::Counted, Link::Pie)?, Target::build(Program::Counted, Link::Musl)?];
    let mut running = targets.iter().map(Target::spawn).collect::<Result<Vec<_>>>()?;
    let points: Vec<String> = targets.iter().map(|t| format!("u:{}:work", t.path().display())).collect();
    let script = format!(
        "{} {{ @all = count(); @by[pid] = count(); @s = sum(1); @most = max(arg0); @n++; }}",
        points.join(", ")
    );
    let pids: Vec<String> = running.iter().map(testkit::Running::pid_text).collect();
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &pids[0], "-p", &pids[1]])?;
    tracing.attached()?;
    let called: Vec<Result<u64>> = std::thread::scope(|scope| {
        let all: Vec<_> = running.iter_mut().map(|one| scope.spawn(|| one.run(CALLS, "work"))).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    let called: u64 = called.into_iter().collect::<Result<Vec<u64>>>()?.into_iter().sum();
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let counted = ["@all", "@s", "@n"].map(|name| scalar(&outcome, name));
    assert_eq!((counted, hits(&outcome)), ([called; 3], [called, called, 0]), "{outcome}");
    assert_eq!(values(&outcome, "@by").iter().sum::<u64>(), called, "{outcome}");
    assert!(outcome.says_detach_verified(), "{outcome}");
    Ok(())
}

/// Whoever is killed in a hit takes that hit with him, and at most what he was changing: the others' are there.
#[test]
fn children_that_are_killed_in_hits_take_nothing_of_others() -> Result<()> {
    const KILLED: u64 = 40;
    const AFTER: u64 = 300;
    let built = Built::new("killed");
    let program = built.program();
    let script = format!(
        "u:{program}:work {{ @all = count(); @n++; @k[arg0] = count(); if (arg0 > 0) {{ printf(\"n %d\\n\", arg0); }} }}"
    );
    let command = format!("{program} kill {KILLED} {AFTER}");
    let outcome = Nanoprobe::find()?.run(["-e", &script, "--follow", "-c", &command])?.success()?;
    let [all, handled, skipped] = hits(&outcome);
    assert_eq!(all, handled + skipped, "{outcome}");
    for counted in ["@all", "@n"].map(|name| scalar(&outcome, name)) {
        assert!(counted >= handled && counted <= handled + KILLED, "{counted} {handled} {skipped}");
    }
    // The parent's own calls came later, and none of them is missing.
    let lines = outcome.stdout.lines().filter(|line| line.starts_with("n ")).count() as u64;
    assert_eq!(lines, AFTER - 1, "{}", outcome.stderr);
    assert_eq!(values(&outcome, "@k").len() as u64, AFTER, "{}", outcome.stderr);
    Ok(())
}

#[test]
fn who_has_other_rights_shares_nothing_and_is_named() -> Result<()> {
    let built = Built::new("rights");
    let program = built.program();
    let start = |user: &str| {
        use std::io::BufRead;
        let mut command = Command::new(&program);
        command.args(["wait", user]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(lines.any(|line| line.expect("a line") == "set"));
        child
    };
    let mut both = [start("0"), start("12345")];
    let pids = both.each_ref().map(|child| child.id().to_string());
    let script = format!("u:{program}:work {{ @ = count(); }}");
    let outcome = Nanoprobe::find()?.run(["-e", &script, "-p", &pids[0], "-p", &pids[1]])?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("runs with other rights"), "{outcome}");
    for child in &mut both {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("lives");
        assert!(!maps.contains("nanoprobe"), "{maps}");
        drop(child.stdin.take());
        assert!(child.wait().expect("waits").success());
    }
    Ok(())
}

/// What is left when front, engine and guard of a run were killed goes with the next attach.
#[test]
fn shared_maps_of_an_engine_that_was_killed_are_taken_back() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut both = [target.spawn()?, target.spawn()?];
    let pids = both.each_ref().map(testkit::Running::pid_text);
    let script = format!("u:{}:work {{ @[pid] = count(); }}", target.path().display());
    let words = ["-e", script.as_str(), "-p", &pids[0], "-p", &pids[1]];
    let mut tracing = Nanoprobe::find()?.start(words)?;
    tracing.attached()?;
    tracing.kill_with_children()?;
    let mut tracing = Nanoprobe::find()?.start(words)?;
    tracing.attached()?;
    let called = both[0].run(8_000, "work")? + both[1].run(8_000, "work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(values(&outcome, "@").iter().sum::<u64>(), called, "{outcome}");
    for running in both {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).expect("lives");
        assert!(!maps.contains("memfd:nanoprobe"), "{maps}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}
