//! `torture bpf`: random programs in every engine.
//!
//! For:     the compiler, with the interpreter as its oracle and the kernel beside it.
//! State:   one program at a time.
//! Context: control.
//! Keeps:   T1 every engine leaves the same r0 and the same memory as the interpreter; what the kernel's verifier does not
//!             take is counted.
//!          T2 a compiler with one instruction wrong is found.
//! Checked: `tests/bpf.rs`.

mod engines;
pub(crate) mod generate;
pub(crate) mod options;

use crate::rng::Rng;
use engines::{Engines, Ran};
use options::Options;
use std::time::Instant;

/// What was done so far.
#[derive(Default)]
struct Tally {
    programs: u64,
    insns: u64,
    runs: u64,
    by_kernel: u64,
    refused_by_kernel: u64,
    compile_ns: u128,
    compiled: u64,
}

/// Runs the torture; the exit status.
pub fn bpf_main(args: &[String]) -> i32 {
    let options = match options::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => return 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture bpf --help");
            return 2;
        }
    };
    println!("bpf-torture: --- Start of test: {options}");
    let engines = match Engines::start(&options) {
        Ok(engines) => engines,
        Err(error) => {
            eprintln!("nanoprobe: torture bpf: {error}");
            return 2;
        }
    };
    run(&options, engines)
}

fn run(options: &Options, mut engines: Engines) -> i32 {
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut wrong = None;
    while wrong.is_none() && began.elapsed() < options.run_for && tally.programs < options.programs {
        let mut rng = Rng::new(options.seed, tally.programs);
        wrong = one(&mut engines, &mut rng, &mut tally).err();
        tally.programs += 1;
    }
    if let Some(why) = &wrong {
        println!("bpf-torture: program {} of seed {}: {why}", tally.programs - 1, options.seed);
    }
    // Then nothing is known.
    let is_idle = tally.programs == 0 || tally.runs == 0 || options.kernel && tally.by_kernel == 0;
    let is_good = wrong.is_none() && !is_idle;
    println!(
        "{} broken={} seed={} programs={} insns={} runs={} by_kernel={} refused_by_kernel={} compile_us={:.0} \
         seconds={:.1}",
        if is_good { "PASS" } else { "FAIL" },
        options.broken.map_or("none", |broken| broken.0),
        options.seed,
        tally.programs,
        tally.insns,
        tally.runs,
        tally.by_kernel,
        tally.refused_by_kernel,
        tally.compile_ns as f64 / 1e3 / tally.compiled.max(1) as f64,
        began.elapsed().as_secs_f64(),
    );
    i32::from(!is_good)
}

/// One program with several inputs, in every engine.
fn one(engines: &mut Engines, rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    let program = generate::program(rng);
    tally.insns += program.insns().len() as u64;
    let prepared = engines.prepare(&program, tally).map_err(|why| format!("{why}\n{program}"))?;
    for _ in 0..3 {
        let input = generate::memory(rng);
        let wanted = engines::interpret(&program, input);
        let Ran::Ended(..) = wanted else { return Err(format!("the interpreter: {wanted:?}\n{program}")) };
        for (name, ran) in engines.run(&prepared, &program, input) {
            match ran {
                Ran::Refused => tally.refused_by_kernel += 1,
                ran if ran == wanted => {
                    tally.runs += 1;
                    tally.by_kernel += u64::from(name == "kernel");
                }
                ran => {
                    return Err(format!("{name}: {ran:x?}\nand not {wanted:x?}\non {input:x?}\n{program}"));
                }
            }
        }
    }
    Ok(())
}
