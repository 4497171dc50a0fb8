//! `torture lang`: scripts made by chance, through the whole of the language.
//!
//! For:     crate `lang`, with what it makes: parser, types, lowering, the checks of `bpf`, the compiler, the machine.
//! State:   one script at a time.
//! Context: control.
//! Keeps:   L1 no text makes it panic, run on without end or take memory without bound: each script has a minute of
//!             CPU time, the process 4 GiB.
//!          L2 no accepted script gives a program that crate `bpf` or the compiler's gate refuses, or one that faults.
//!          L3 a program that calls nothing gives the same in the interpreter and compiled, in four ways.
//! Checked: `tests/lang.rs`.

mod generate;
mod limits;
mod options;
mod pipeline;

use crate::rng::Rng;
use options::Options;
use pipeline::Pipeline;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// What was done so far.
#[derive(Default)]
struct Tally {
    scripts: u64,
    accepted: u64,
    programs: u64,
    insns: u64,
    compiled: u64,
    runs: u64,
    compared: u64,
}

/// Runs the torture; the exit status.
pub fn lang_main(args: &[String]) -> i32 {
    let options = match options::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => return 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture lang --help");
            return 2;
        }
    };
    if let Some(number) = options.show {
        println!("{}", generate::script(&mut Rng::new(options.seed, number)).1);
        return 0;
    }
    println!("lang-torture: --- Start of test: {options}");
    match Pipeline::start(&options) {
        Ok(pipeline) => run(&options, pipeline),
        Err(error) => {
            eprintln!("nanoprobe: torture lang: {error}");
            2
        }
    }
}

fn run(options: &Options, mut pipeline: Pipeline) -> i32 {
    limits::set();
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut wrong = None;
    while wrong.is_none() && began.elapsed() < options.run_for && tally.scripts < options.scripts {
        let number = options.first + tally.scripts;
        limits::begin(options.seed, number);
        let (kind, text) = generate::script(&mut Rng::new(options.seed, number));
        let done = catch_unwind(AssertUnwindSafe(|| pipeline.put_through(kind, &text, &mut tally)));
        let done = done.unwrap_or_else(|_| Err("it panicked".into()));
        wrong = done.err().map(|why| format!("script {number} of seed {}: {why}\n{text}", options.seed));
        tally.scripts += 1;
    }
    limits::end();
    if let Some(why) = &wrong {
        println!("lang-torture: {why}");
    }
    // Then nothing is known: one that accepts or compares nothing tests nothing.
    let is_idle = tally.accepted * 4 < tally.scripts || tally.runs == 0 || tally.compared == 0;
    let is_good = wrong.is_none() && !is_idle;
    println!(
        "{} broken={} seed={} scripts={} accepted={} programs={} insns={} compiled={} runs={} compared={} seconds={:.1}",
        if is_good { "PASS" } else { "FAIL" },
        options.broken.map_or("none", |broken| broken.0),
        options.seed,
        tally.scripts,
        tally.accepted,
        tally.programs,
        tally.insns,
        tally.compiled,
        tally.runs,
        tally.compared,
        began.elapsed().as_secs_f64(),
    );
    i32::from(!is_good)
}
