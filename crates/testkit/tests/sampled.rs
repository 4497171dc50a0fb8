//! Scripts at samples, and scripts that change their target.
//!
//! For:     `profile`, `software` and `watchpoint` probes; `signal()` and `write_user()` at hits.
//! Keeps:   each access to watched bytes is a run, with who made it and where; samples of a command are of it alone; a signal
//!          is delivered as often as it is sent; what is written is there, and what may not be written is as before.

use testkit::{Nanoprobe, Outcome, Result};

/// Writes a variable, takes pages, works for a while; and says how often it was signalled and what became of a text.
const SOURCE: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
volatile long watched; char text[16] = "before"; static volatile int signalled;
static void on_signal(int number) { (void)number; signalled++; }
__attribute__((noinline)) void work(char *p) { __asm__ volatile("nop\nnop\nnop\nnop\nnop" :: "r"(p) : "memory"); }
__attribute__((noinline)) void writes(void) { for (long i = 1; i <= 500; i++) watched = i; }
int main(int argc, char **argv)
{
    signal(SIGUSR1, on_signal);
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "write")) writes();
    if (!strcmp(what, "work")) for (int i = 0; i < 1000; i++) work(text);
    if (!strcmp(what, "pages")) { char *p = malloc(4096 * 400); for (int i = 0; i < 400; i++) p[4096 * i] = 1; }
    if (!strcmp(what, "spin")) while (clock() < CLOCKS_PER_SEC / 4);
    printf("seen %d %s\n", signalled, text);
    return 0;
}
"#;

/// A directory that goes with the value, and the program in it.
struct Built(std::path::PathBuf);

impl Built {
    fn new(name: &str) -> Result<Built> {
        let dir = std::env::temp_dir().join(format!("np-sampled-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("p.c"), SOURCE).expect("its source");
        let mut gcc = std::process::Command::new("gcc");
        let built = gcc.args(["-g", "-O0", "-o", "p", "p.c"]).current_dir(&dir).status();
        assert!(built.expect("gcc").success());
        Ok(Built(dir))
    }

    fn program(&self) -> String {
        self.0.join("p").display().to_string()
    }

    /// Runs it under a script; `None` where the kernel gives no perf events, which was said.
    fn under(&self, script: &str, what: &str) -> Result<Option<Outcome>> {
        let command = format!("{} {what}", self.program());
        let outcome = Nanoprobe::find()?.run(["--unsafe", "-e", script, "-c", &command])?;
        let is_refused = ["refuses perf events", "no debug registers", "no debug register for"]
            .iter()
            .any(|why| outcome.stderr.contains(why));
        if is_refused {
            assert_ne!(outcome.code(), Some(0), "{outcome}");
            eprintln!("no perf events here: {outcome}");
            return Ok(None);
        }
        Ok(Some(outcome.success()?))
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn number(outcome: &Outcome, name: &str) -> u64 {
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

#[test]
fn each_access_to_watched_bytes_is_a_run_in_which_the_writer_is_known() -> Result<()> {
    let built = Built::new("watch")?;
    let program = built.program();
    let script = format!(
        "watchpoint:{program}:watched:8:w {{ @n = count(); @mine[pid == cpid, tid == pid, comm] = count(); @at[usym(reg(\"ip\"))] = count(); \
         @callers[ustack(2)] = count(); @of = probe; }}"
    );
    let Some(outcome) = built.under(&script, "write")? else { return Ok(()) };
    assert_eq!(number(&outcome, "@n"), 500, "{outcome}");
    assert!(outcome.stdout.contains("@mine[true, true, p]: 500\n"), "{outcome}");
    assert!(outcome.stdout.contains("@at[writes]: 500\n"), "{outcome}");
    assert!(outcome.stdout.contains("    main+"), "its caller is on the stack: {outcome}");
    assert!(outcome.stdout.contains(&format!("@of: watchpoint:{program}:watched:8:w\n")), "{outcome}");
    Ok(())
}

#[test]
fn samples_of_a_commands_time_are_of_it_alone() -> Result<()> {
    let built = Built::new("profile")?;
    let script = "profile:hz:999 { @n = count(); @by[comm, pid == cpid] = count(); @t = max(nsecs); } \
                  interval:ms:10 { @ticks = count(); }";
    let Some(outcome) = built.under(script, "spin")? else { return Ok(()) };
    let n = number(&outcome, "@n");
    // It works for 250 ms; a machine without time to spare gives fewer samples, not none.
    assert!((1..=400).contains(&n), "{outcome}");
    assert!(outcome.stdout.contains(&format!("@by[p, true]: {n}\n")), "{outcome}");
    Ok(())
}

#[test]
fn the_kernels_events_are_sampled_after_as_many_as_is_asked() -> Result<()> {
    let built = Built::new("faults")?;
    let script = "software:page-faults:1 { @each = count(); } software:faults:100 { @hundreds = count(); }";
    let Some(outcome) = built.under(script, "pages")? else { return Ok(()) };
    let (each, hundreds) = (number(&outcome, "@each"), number(&outcome, "@hundreds"));
    assert!(each >= 400 && hundreds == each / 100, "{outcome}");
    Ok(())
}

#[test]
fn an_event_that_is_not_known_and_a_watch_without_a_process_are_refused_by_name() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    for (script, wanted) in [
        ("software:page-fault:1 { exit(); }", "no event is called page-fault; there are alignment-faults"),
        ("watchpoint:0x1000:8:w { exit(); }", "name a process with -p, or a command with -c"),
        ("watchpoint:0x1001:8:w { exit(); }", "watchpoint:0x1001:8:w: "),
    ] {
        let outcome = nanoprobe.run(["-e", script])?;
        assert!(outcome.stderr.contains(wanted) && outcome.code() == Some(1), "{script}: {outcome}");
    }
    Ok(())
}

#[test]
fn a_hit_signals_its_process_and_writes_what_it_may_write() -> Result<()> {
    let built = Built::new("change")?;
    let program = built.program();
    let script = format!(
        "u:{program}:work {{ @n++; $s = \"after!\"; \
         if (@n == 10) {{ @written = write_user((uint8*)arg0, $s, 7); }} \
         if (@n == 20) {{ @refused = write_user((uint8*)reg(\"ip\"), $s, 4); @null = write_user((uint8*)8, $s, 4); }} \
         if (@n == 30) {{ signal(\"SIGUSR1\"); signal_thread(10); }} \
         if (@n == 40) {{ @own = write_user((uint8*)&$s, $s, 4); }} }}"
    );
    let outcome = built.under(&script, "work")?.expect("no perf events are needed");
    assert!(outcome.stdout.contains("seen 2 after!\n"), "{outcome}");
    for line in ["@n: 1000\n", "@written: true\n", "@refused: false\n", "@null: false\n", "@own: false\n"] {
        assert!(outcome.stdout.contains(line), "{line} {outcome}");
    }
    assert!(outcome.stderr.contains("Hits 1000: 1000 handled, 0 skipped"), "{outcome}");
    Ok(())
}

#[test]
fn a_signal_that_ends_the_process_at_a_hit_ends_the_run() -> Result<()> {
    let built = Built::new("kill")?;
    let program = built.program();
    let script = format!("u:{program}:work {{ @n = count(); @k++; if (@k == 5) {{ signal(9); }} }}");
    let outcome = built.under(&script, "work")?.expect("no perf events are needed");
    assert!(outcome.stdout.contains("@n: 5\n") && !outcome.stdout.contains("seen"), "{outcome}");
    Ok(())
}
