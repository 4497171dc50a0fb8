//! Scripts on targets: programs at hits, maps and records that the controller reads.
//!
//! For:     `-e` and `run` with probes in traced processes.
//! Keeps:   hits of a script are the target's own number, in a process that runs, in one that is started, in those that come;
//!          what a map counts is that number; records are there once, in order.

use testkit::{Link, Nanoprobe, Outcome, Program, Result, Running, Target};

const CALLS: u64 = 80_000;

fn probe(target: &Target, kind: &str, function: &str) -> String {
    format!("{kind}:{}:{function}", target.path().display())
}

/// What is told of changes that were not done.
const BUSY: &str = " changes of a map at a place that somebody else was changing.";

/// The number behind `name: ` in what a script printed.
fn scalar(outcome: &Outcome, name: &str) -> u64 {
    let prefix = format!("{name}: ");
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

fn hits(outcome: &Outcome) -> u64 {
    let line = outcome.stderr.lines().find(|line| line.starts_with("Hits ")).unwrap_or_default();
    let words: Vec<&str> =
        line.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()).collect();
    assert_eq!(words.get(2), Some(&"0"), "skipped: {outcome}");
    words.first().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no hits in {outcome}"))
}

fn traced(target: &Target, running: &mut Running, script: &str, function: &str) -> Result<(Outcome, u64)> {
    let mut tracing = Nanoprobe::find()?.start(["-e", script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let called = running.run(CALLS, function)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.says_detach_verified(), "{} {outcome}", target.path().display());
    Ok((outcome, called))
}

#[test]
fn hits_and_counts_are_the_targets_own_number() -> Result<()> {
    for link in [Link::Pie, Link::NoPie, Link::Musl, Link::Static] {
        let target = Target::build(Program::Counted, link)?;
        let mut running = target.spawn()?;
        running.run(8_000, "work")?;
        let probe = probe(&target, "uprobe", "work");
        let script = format!("{probe} {{ @all = count(); @plain++; @by[tid] = count(); }}");
        let (outcome, called) = traced(&target, &mut running, &script, "work")?;
        assert_eq!(hits(&outcome), called, "{link:?} {outcome}");
        assert_eq!(
            (scalar(&outcome, "@all"), scalar(&outcome, "@plain")),
            (called, called),
            "{link:?} {outcome}"
        );
        let by: u64 = outcome
            .stdout
            .lines()
            .filter_map(|l| l.strip_prefix("@by[")?.rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(by, called, "{link:?} {outcome}");
        running.run(8_000, "work")?;
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn what_begin_has_put_in_a_map_is_there_for_hits_and_what_hits_put_there_for_end() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let probe = probe(&target, "uprobe", "work");
    let script = format!(
        "begin {{ @x = 1000000; @s = count(); @s = count(); }} {probe} {{ @x++; @s = count(); }} end {{ printf(\"x is %d\\n\", @x); }}"
    );
    let (outcome, called) = traced(&target, &mut running, &script, "work")?;
    assert_eq!(scalar(&outcome, "@x"), 1_000_000 + called, "{outcome}");
    assert_eq!(scalar(&outcome, "@s"), 2 + called, "{outcome}");
    assert!(outcome.stdout.contains(&format!("x is {}", 1_000_000 + called)), "{outcome}");
    Ok(())
}

#[test]
fn entry_and_return_are_both_seen_of_every_call() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let (entry, exit) = (probe(&target, "u", "work"), probe(&target, "ur", "work"));
    let script = format!(
        "{entry} {{ @in = count(); @t[tid, func] = nsecs; }}
         {exit} /@t[tid, func]/ {{ @out = count(); delete(@t, (tid, func)); }}"
    );
    let (outcome, called) = traced(&target, &mut running, &script, "work")?;
    assert_eq!((scalar(&outcome, "@in"), scalar(&outcome, "@out")), (called, called), "{outcome}");
    assert_eq!(hits(&outcome), 2 * called, "{outcome}");
    Ok(())
}

#[test]
fn records_come_once_and_in_the_order_of_one_thread() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let probe = probe(&target, "uprobe", "work");
    let script = format!("{probe} {{ @n++; if (@n <= 500) {{ printf(\"hit %d of %s\\n\", @n, probe); }} }}");
    let (outcome, called) = traced(&target, &mut running, &script, "work")?;
    assert!(called > 500);
    let numbers: Vec<u64> = outcome
        .stdout
        .lines()
        .filter_map(|l| l.strip_prefix("hit ")?.split(' ').next()?.parse().ok())
        .collect();
    assert!(numbers.len() >= 490 && numbers.len() <= 510, "{outcome}");
    assert!(outcome.stdout.contains(&format!(" of {probe}")), "{outcome}");
    Ok(())
}

/// Of each thread, on whichever CPU it is by then, and also while the controller stands and says nothing of how the clock goes on.
#[test]
fn time_does_not_go_back_for_any_thread_and_the_controller_may_stand() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let script = format!(
        "{} {{ $now = nsecs; if ($now < @last[tid]) {{ @back++; }} @last[tid] = $now; @n++; }}",
        probe(&target, "uprobe", "work")
    );
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let mut called = 0;
    for stands in [false, true, false] {
        let signal = |number: &str| {
            let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", tracing.pid()));
            for child in children.unwrap_or_default().split_whitespace() {
                std::process::Command::new("kill").args([number, child]).status().expect("kill runs");
            }
        };
        if stands {
            signal("-STOP");
            // Longer than the longest piece of the clock.
            std::thread::sleep(std::time::Duration::from_millis(2100));
        }
        called += running.run(CALLS, "work")?;
        if stands {
            signal("-CONT");
        }
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(!outcome.stdout.contains("@back"), "{outcome}");
    assert_eq!((scalar(&outcome, "@n"), hits(&outcome)), (called, called), "{outcome}");
    Ok(())
}

/// The words of the lines that begin with this one.
fn numbers(outcome: &Outcome, first: &str) -> Vec<Vec<u64>> {
    let of = |line: &str| {
        let words = line.strip_prefix(first)?.split_whitespace();
        words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()
    };
    outcome.stdout.lines().filter_map(of).collect()
}

#[test]
fn what_lies_in_scratch_memory_and_on_a_full_stack_is_in_maps_and_records_as_it_was() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let probe = probe(&target, "uprobe", "work_args");
    // So many variables fill most of the stack, and keys and arguments of helpers lie on what is left; the record and the
    // text lie in scratch memory.
    let set: String = (0..20).map(|n| format!("$v{n} = arg1 * 100 + {n}; ")).collect();
    let shown: Vec<String> = (0..20).map(|n| format!("$v{n}")).collect();
    let wanted: Vec<u64> = (700..720).collect();
    let script = format!(
        "{probe} {{ {set} @n[tid]++; @sum[arg1, arg2] = sum(arg1 + arg2); $s = str(arg0); \
         if (@n[tid] <= 20) {{ printf(\"args {} %d %d\\n\", {}, arg1, arg2); }} \
         if (@n[tid] == 21) {{ @pair[tid] = ($v0, $v19, \"a text\"); print(@pair[tid]); }} }}",
        ["%d"; 20].join(" "),
        shown.join(", "),
    );
    let (outcome, called) = traced(&target, &mut running, &script, "work_args")?;
    let lines = numbers(&outcome, "args ");
    assert!(called > 20 && lines.len() >= 20, "{outcome}");
    let whole: Vec<u64> = wanted.into_iter().chain([7, 9]).collect();
    assert!(lines.iter().all(|line| *line == whole), "{outcome}");
    assert!(outcome.stdout.contains("(700, 719, a text)"), "{outcome}");
    // A key that is new to eight threads at once: who finds its place held by a thread that has no processor does not wait, which is
    // counted.
    let lost = outcome.stderr.lines().find_map(|line| line.strip_prefix("Not done: ")?.strip_suffix(BUSY));
    let lost: u64 = lost.map_or(0, |lost| lost.parse().unwrap());
    let sum = scalar(&outcome, "@sum[7, 9]");
    assert!(sum.is_multiple_of(16) && (called - lost..=called).contains(&(sum / 16)), "{outcome}");
    assert!(lost <= 24, "{outcome}");
    assert!(!outcome.stderr.contains("not the program's"), "{outcome}");
    Ok(())
}

#[test]
fn records_and_reads_that_failed_are_told_by_cause() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let probe = probe(&target, "uprobe", "work_args");
    // Nothing lies at address 7.
    let script = format!("{probe} {{ @read = sum(*(uint8 *)arg1); }}");
    let (outcome, called) = traced(&target, &mut running, &script, "work_args")?;
    assert_eq!(scalar(&outcome, "@read"), 0, "{outcome}");
    let told = format!("Not done: {called} reads of memory that is not there.");
    assert!(outcome.stderr.contains(&told), "{outcome}");
    Ok(())
}

#[test]
fn what_an_interval_adds_to_a_map_takes_nothing_from_hits() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let probe = probe(&target, "uprobe", "work");
    let script = format!(
        "{probe} {{ @both++; @hits = count(); }} \
         interval:us:200 {{ $i = 0; while ($i < 200) {{ @both++; @own++; $i++; }} }}"
    );
    let (outcome, called) = traced(&target, &mut running, &script, "work")?;
    assert_eq!(scalar(&outcome, "@hits"), called, "{outcome}");
    assert_eq!(scalar(&outcome, "@both"), called + scalar(&outcome, "@own"), "{outcome}");
    Ok(())
}

/// A count and a histogram run no program; what they count is in the map whenever a timer looks, and once.
#[test]
fn what_counts_without_a_program_is_in_its_map_once() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let probe = probe(&target, "uprobe", "work");
    let script = format!("{probe} {{ @ = count(); }} interval:us:300 {{ @total += (int64)@; clear(@); }}");
    let (outcome, called) = traced(&target, &mut running, &script, "work")?;
    let line = |name: &str| outcome.stdout.lines().any(|line| line.starts_with(name));
    let rest = if line("@: ") { scalar(&outcome, "@") } else { 0 };
    assert_eq!((scalar(&outcome, "@total") + rest, hits(&outcome)), (called, called), "{outcome}");
    assert!(line("@total: "), "{outcome}");
    let (outcome, called) = traced(&target, &mut running, &format!("{probe} {{ @ = hist(arg0); }}"), "work")?;
    assert_eq!((called, hits(&outcome)), (CALLS, CALLS), "{outcome}");
    // Eight threads call it with 0 to 9,999.
    for row in ["[0]                    8 |", "[4, 8)                32 |", "[8K, 16K)          14464 |"] {
        assert!(outcome.stdout.contains(row), "{row}: {outcome}");
    }
    Ok(())
}

#[test]
fn without_a_process_whoever_runs_the_file_is_traced_from_the_first_call_on() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    // A file of our own: other tests run the target's.
    let own = std::env::temp_dir().join(format!("nanoprobe-births-{}", std::process::id()));
    let copy = target.copied_to(&own)?;
    let script = format!("{} {{ @all = count(); @by[pid] = count(); }}", probe(&copy, "uprobe", "work"));
    let mut before = copy.spawn()?;
    let mut tracing = Nanoprobe::find()?.start(["-e", &script])?;
    tracing.attached()?;
    let mut called = before.run(CALLS, "work")?;
    before.end()?;
    for _ in 0..2 {
        let mut born = copy.spawn()?;
        called += born.run(CALLS, "work")?;
        assert_eq!(born.end()?.code(), Some(7));
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    std::fs::remove_file(&own).map_err(testkit::Error::io("removing the copy"))?;
    assert_eq!((hits(&outcome), scalar(&outcome, "@all")), (called, called), "{outcome}");
    Ok(())
}

/// Marks with one nop each: next to each other, with registers written between, before the target of a jump; and a
/// function of doubles.
const MARKED: &str = r#"
#define MARK(name, arguments, ...) __asm__ volatile("990: nop\n" \
    ".pushsection .note.stapsdt,\"\",\"note\"\n .balign 4\n .4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, 0, 0\n .asciz \"np\"\n" \
    ".asciz \"" name "\"\n .asciz \"" arguments "\"\n994: .balign 4\n .popsection" :: __VA_ARGS__)
__attribute__((noinline)) void neighbours(void)
{ MARK("a1", "-4@$1"); MARK("a2", "-4@$2"); MARK("a3", "8@$3"); __asm__ volatile("nop\nnop\nnop\nnop"); }
__attribute__((noinline)) void registers(void)
{ __asm__ volatile("mov $10, %eax"); MARK("r1", "-4@%%eax"); MARK("r2", "-4@%%eax");
  __asm__ volatile("mov $20, %eax"); MARK("r3", "-4@%%eax"); MARK("r4", "-4@%%eax"); __asm__ volatile("nop\nnop\nnop"); }
__attribute__((noinline)) int looped(int n)
{ int sum = n; __asm__ volatile("lea 1(%0), %0\nmov $5, %%edx" : "+r"(n) : : "rdx");
  MARK("before", "-4@%%edx"); __asm__ volatile("1: dec %%edx\njne 1b" : : : "rdx"); return sum; }
double half = 499.75;
__attribute__((noinline)) double twice(double a, float b) { __asm__ volatile(""); return a * 2 + b; }
int main(void)
{ double sum = 0; for (int i = 0; i < 1000; i++) { neighbours(); registers(); looped(i); sum += twice(i + 0.5, 0.25f); }
  return sum > 1 ? 7 : 0; }
"#;

/// A directory that goes with the value, and the program in it.
struct Built(std::path::PathBuf);

impl Built {
    fn new(name: &str, source: &str) -> Result<Built> {
        let dir = std::env::temp_dir().join(format!("np-scripts-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("p.c"), source).expect("its source");
        let mut gcc = std::process::Command::new("gcc");
        let built = gcc.args(["-g", "-O1", "-o", "p", "p.c"]).current_dir(&dir).status();
        assert!(built.expect("gcc").success());
        Ok(Built(dir))
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

/// Seen as a panic, and a command that was left held.
#[test]
fn what_a_goroutines_stack_has_no_room_for_is_left_out_by_name() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let running = target.spawn()?;
    let script = format!("{} {{ printf(\"%d\\n\", arg0); }}", probe(&target, "uprobe", "main.*"));
    let mut tracing =
        Nanoprobe::find()?.start(["--backend", "inproc", "-e", &script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.stderr.contains("the program calls helpers, which need more"), "{outcome}");
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn marks_of_one_byte_are_hit_next_to_each_other_and_before_a_loop() -> Result<()> {
    let built = Built::new("marks", MARKED)?;
    let program = built.program();
    let script = format!("usdt:{program}:np:* {{ @[probe, arg0] = count(); }}");
    let outcome = Nanoprobe::find()?.run(["-e", &script, "-c", &program])?;
    let wanted =
        [("a1", 1), ("a2", 2), ("a3", 3), ("r1", 10), ("r2", 10), ("r3", 20), ("r4", 20), ("before", 5)];
    for (name, value) in wanted {
        let line = format!("@[usdt:{program}:np:{name}, {value}]: 1000\n");
        assert!(outcome.stdout.contains(&line), "{name} {outcome}");
    }
    assert_eq!(hits(&outcome), 8_000, "{outcome}");
    assert!(outcome.stderr.contains("; 0 places left out."), "{outcome}");
    Ok(())
}

#[test]
fn doubles_are_read_from_vector_registers_at_entry_and_return() -> Result<()> {
    let built = Built::new("doubles", MARKED)?;
    let program = built.program();
    let script = format!(
        "u:{program}:twice {{ printf(\"in %f %.2f\\n\", args.a, args.b); @n = hist((int64)args.a); if (args.a > *(double *)uaddr(\"half\")) {{ @more = count(); }} }} ur:{program}:twice {{ printf(\"out %f\\n\", retval); }}"
    );
    let outcome = Nanoprobe::find()?.run(["-e", &script, "-c", &program])?;
    for i in [0, 1, 500, 999] {
        let a = f64::from(i) + 0.5;
        let (entry, exit) = (format!("in {a:.6} 0.25\n"), format!("out {:.6}\n", a * 2.0 + 0.25));
        assert!(
            outcome.stdout.contains(&entry) && outcome.stdout.contains(&exit),
            "{entry} {exit} {outcome}"
        );
    }
    assert!(outcome.stdout.contains("[512, 1K)            488 |"), "{outcome}");
    assert!(outcome.stdout.contains("@more: 500\n"), "{outcome}");
    Ok(())
}

#[test]
fn numbers_have_their_names_at_hits() -> Result<()> {
    let built = Built::new("names", MARKED)?;
    let program = built.program();
    let script = format!(
        "u:{program}:neighbours {{ @n++; if (@n == 1) {{ $e = 2; $s = 9; $c = 435; $u = 9999; \
         print((strerror($e), signal_name($s), syscall_name($c), strerror($u))); }} }}"
    );
    let outcome = Nanoprobe::find()?.run(["-e", &script, "-c", &program])?;
    let wanted = "(No such file or directory, Killed, clone3, Unknown error)\n";
    assert!(outcome.stdout.contains(wanted), "{outcome}");
    Ok(())
}

#[test]
fn names_of_other_processes_are_found_out_when_they_are_printed() -> Result<()> {
    let built = Built::new("comms", MARKED)?;
    let program = built.program();
    let script = format!(
        "begin {{ printf(\"us %s\\n\", comm); }} u:{program}:neighbours {{ @n++; if (@n == 1) {{ \
         printf(\"%s %s %s %s\\n\", comm, leader_comm, comm(pid), pcomm); @p[pcomm] = count(); }} }}"
    );
    let outcome = Nanoprobe::find()?.run(["-e", &script, "-c", &program])?;
    let us = outcome.stdout.lines().find_map(|line| line.strip_prefix("us ")).unwrap_or_default();
    assert!(!us.is_empty(), "{outcome}");
    // The program may be over before the record is read; its parent is not.
    let line = outcome.stdout.lines().find(|line| line.starts_with("p ")).unwrap_or_default();
    assert!(line.ends_with(us) && outcome.stdout.contains(&format!("@p[{us}]: 1\n")), "{outcome}");
    Ok(())
}

#[test]
fn what_is_returned_is_not_made_up_where_a_function_is_left_by_a_jump() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    let mut running = target.spawn()?;
    let (tails, tiny) = (probe(&target, "uretprobe", "tails"), probe(&target, "uretprobe", "tiny"));
    let wanted = format!("{tails} {{ @tails[retval] = count(); }} {tails} {{ @hist = hist(retval); }}");
    // Alone there is nothing for it to run at, and that is told too.
    let outcome =
        Nanoprobe::find()?.run(["--backend", "inproc", "-e", &wanted, "-p", &running.pid_text()])?;
    assert!(outcome.stderr.contains("--backend kernel sees") && outcome.code() != Some(0), "{outcome}");
    let script = format!("{wanted} {tails} {{ @left = count(); }} {tiny} {{ @tiny[retval] = count(); }}");
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    running.command("run 20")?;
    running.expect("rounds ")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(!outcome.stdout.contains("@tails") && !outcome.stdout.contains("@hist"), "{outcome}");
    assert!(outcome.stdout.contains("@tiny[") && scalar(&outcome, "@left") > 0, "{outcome}");
    assert!(outcome.stderr.contains("--backend kernel sees them whole"), "{outcome}");
    // Beside the entry, whose window holds the jump too: there nothing runs.
    let begun = format!("{} {{ @begun = count(); }}", probe(&target, "uprobe", "tails"));
    for script in
        [format!("{begun} {wanted}"), format!("{begun} {wanted} {tiny} {{ @tiny[retval] = count(); }}")]
    {
        let mut tracing =
            Nanoprobe::find()?.start(["--backend", "inproc", "-e", &script, "-p", &running.pid_text()])?;
        tracing.attached()?;
        running.command("run 20")?;
        running.expect("rounds ")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(scalar(&outcome, "@begun"), 160, "{outcome}");
        assert!(!outcome.stdout.contains("@tails"), "{outcome}");
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
