//! Instructions of programs, beside the calls that were seen: prologues, epilogues, stubs, signals, unwinding.
//!
//! The program is stepped from its first instruction on. Whoever watches each step sees each call push its return address and
//! each return take it; so at any moment the true stack is known, from nothing that the walker knows.
//!
//! By hand, a million stops: `cargo test --release -p nanoprobe-unwind --test steps -- --ignored a_million --nocapture`.

mod stepped;
mod truth;

use std::path::{Path, PathBuf};
use std::process::Command;
use stepped::{Outcome, Stepping, run};

/// Steps of a run unless `NANOPROBE_UNWIND_STEPS` says otherwise.
const STEPS: usize = 250_000;
/// Wrong stacks in a hundred thousand that are put up with where the reference itself may be wrong: code that pushes an address
/// by another instruction than a call.
const WRONG_IN_100_000: usize = 5;
/// Stacks that end early, in a thousand: what starts programs, and longjmp.
const SHORT_IN_1000: usize = 4;
/// The same in Go, whose runtime goes over to another stack to allocate and to collect.
const SHORT_IN_GO: usize = 700;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Builds a program once; its path.
fn build(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = name.replace('.', "_");
    let program = dir.join(format!("{file}-{compiler}{}", flags.concat()).replace(['/', '=', ' '], "_"));
    let is_go = compiler == "go";
    let installed = Path::new("/usr/local/go/bin/go");
    let compiler = if is_go && installed.exists() { installed } else { Path::new(compiler) };
    let mut command = Command::new(compiler);
    if is_go {
        command.arg("build").env("GO111MODULE", "off").env("CGO_ENABLED", "0");
    }
    let built = command.args(flags).arg("-o").arg(&program).arg(source(name)).status();
    assert!(built.is_ok_and(|status| status.success()), "{compiler:?} {flags:?}");
    program
}

fn go(flags: &[&str]) -> PathBuf {
    build("go", "gopher.go", flags)
}

fn rust() -> PathBuf {
    build("rustc", "crab.rs", &["-O", "--edition=2021"])
}

fn steps() -> usize {
    std::env::var("NANOPROBE_UNWIND_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(STEPS)
}

fn stepping(each: usize) -> Stepping {
    Stepping { steps: steps(), each, is_go: false }
}

fn check(name: &str, outcome: &Outcome, is_signalled: bool, short_in_1000: usize) {
    let Outcome { stacks, wrong, short, signals, recalled, deepest, places, ends } = outcome;
    println!(
        "{name}: {stacks} stacks, {wrong} wrong, {short} short, {signals} signals, {recalled} could be recalled, {deepest} frames at most"
    );
    places.iter().for_each(|(place, n)| println!("  {n} {place}"));
    ends.iter().for_each(|(place, n)| println!("  {n} end early in {place}"));
    assert!(*stacks > 1000 && *deepest > 8, "{name} was stepped");
    assert!(recalled * 100 > *stacks, "{name}: {recalled} of {stacks} could be recalled");
    assert!(!is_signalled || *signals > 10, "{name} had signals");
    assert!(*short * 1000 <= *stacks * short_in_1000, "{name}: {short} of {stacks} end early");
    assert!(*wrong * 100_000 <= stacks * WRONG_IN_100_000, "{name}: {places:#?}");
}

#[test]
fn every_instruction_of_c_programs_of_many_shapes_has_its_true_stack() {
    // The third has its tables in debug information alone.
    let debug_frame =
        ["-O2", "-fomit-frame-pointer", "-g", "-gz", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let shapes: [&[&str]; 8] = [
        &["-O2", "-fomit-frame-pointer"],
        &["-O0", "-static"],
        &debug_frame,
        &["-O3", "-march=x86-64-v3", "-fno-plt"],
        &["-O2", "-fno-omit-frame-pointer", "-static"],
        &["-Os", "-fno-pie", "-no-pie"],
        &["-O0"],
        // By frame pointers, and nothing else.
        &["-O2", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
    ];
    let few = if std::env::var_os("NANOPROBE_UNWIND_STEPS").is_some() { shapes.len() } else { 3 };
    for flags in shapes.into_iter().take(few) {
        let program = build("gcc", "shapes.c", &[flags, &["-w"]].concat());
        let stepping = Stepping { steps: steps() * 2 / few, ..stepping(1) };
        check(&flags.concat(), &run(&program, &["2"], stepping), true, SHORT_IN_1000);
    }
}

#[test]
fn every_instruction_of_an_exception_has_its_true_stack() {
    let program = build("g++", "throws.cc", &["-O2", "-static", "-w"]);
    check("throws", &run(&program, &["2"], stepping(3)), false, SHORT_IN_1000);
}

/// Goroutines' stacks that grow, and functions of which nothing but Go's own table knows.
#[test]
fn instructions_of_a_go_program_have_their_true_stacks() {
    let outcome = run(&go(&["-ldflags=-s -w"]), &["1"], Stepping { is_go: true, ..stepping(4) });
    check("go", &outcome, false, SHORT_IN_GO);
}

/// A million stops at random: without frame pointers, libc, libcrypto, Go and Rust; signals at any instruction.
#[test]
#[ignore = "takes minutes"]
fn a_million_random_stops_have_their_true_stacks() {
    let each = 4;
    let of = |steps, is_go| Stepping { steps, each, is_go };
    let plain = build("gcc", "shapes.c", &["-O2", "-fomit-frame-pointer", "-w"]);
    let crypto = build("gcc", "ciphers.c", &["-O2", "-fomit-frame-pointer", "-w"]);
    let runs: [(&str, &Path, Stepping, bool, usize); 4] = [
        ("C without frame pointers", &plain, of(1_100_000, false), true, SHORT_IN_1000),
        ("libcrypto", &crypto, of(1_500_000, false), true, SHORT_IN_1000),
        ("Go", &go(&["-ldflags=-s -w"]), of(1_600_000, true), false, SHORT_IN_GO),
        ("Rust", &rust(), of(1_100_000, false), true, SHORT_IN_1000),
    ];
    let mut stacks = 0;
    for (name, program, stepping, is_signalled, short) in runs {
        let outcome = run(program, &["1000"], stepping);
        check(name, &outcome, is_signalled, short);
        stacks += outcome.stacks;
    }
    assert!(stacks > 1_000_000, "{stacks} stacks");
}

/// Programs of the machine, by hand: `NANOPROBE_UNWIND_RUN="/usr/bin/python3.11 -c pass"`.
#[test]
#[ignore = "steps a program that is named"]
fn every_instruction_of_a_named_program_has_its_true_stack() {
    let line = std::env::var("NANOPROBE_UNWIND_RUN").expect("NANOPROBE_UNWIND_RUN names a command");
    let words: Vec<&str> = line.split(' ').collect();
    check(&line, &run(Path::new(words[0]), &words[1..], stepping(1)), false, SHORT_IN_1000);
}
