//! `nanoprobe bpf exec`: the same cases in all engines.
//!
//! For:     programs by themselves.
//! Keeps:   every engine prints the same; what one of them refuses is said, with an exit status of its own.

use testkit::{Nanoprobe, Outcome, Result};

const ENGINES: [&[&str]; 5] =
    [&["interpreter"], &["jit"], &["jit", "--level", "own"], &["target"], &["kernel"]];

/// Text, memory, r0.
const CASES: &[(&str, &str, &str)] = &[
    ("mov %r0, -1\nexit", "", "ffffffffffffffff"),
    ("lddw %r0, 0x1122334455667788\nbe64 %r0\nexit", "", "8877665544332211"),
    ("ldxw %r0, [%r1+4]\nmul %r0, %r2\nexit", "010203040a000000", "50"),
    ("ldxsh %r0, [%r1]\nexit", "00800000", "ffffffffffff8000"),
    ("mov %r0, -7\nsdiv %r0, 2\nexit", "", "fffffffffffffffd"),
    ("mov32 %r0, 0x80000000\nmov %r1, -1\nsmod32 %r0, %r1\nexit", "", "0"),
    ("mov %r0, 4\nmov %r2, 9\nlock cmpxchg [%r1], %r2\nldxdw %r0, [%r1]\nexit", "0400000000000000", "9"),
    (
        "stdw [%r10-8], 5\nmov %r2, 3\nlock fetch add [%r10-8], %r2\nldxdw %r0, [%r10-8]\nadd %r0, %r2\nexit",
        "",
        "d",
    ),
    ("mov %r0, 0\nmov %r6, 10\nagain:\nadd %r0, %r6\nsub %r6, 1\njne %r6, 0, again\nexit", "", "37"),
    (
        "mov %r6, 40\nmov %r1, 2\ncall local f\nadd %r0, %r6\nexit\nf:\nmov %r6, 5\nmov %r0, %r1\nexit",
        "",
        "2a",
    ),
    ("call 5\nrsh %r0, 63\nexit", "", "0"),
];

fn run<'a>(nanoprobe: &Nanoprobe, args: impl IntoIterator<Item = &'a str>, input: &str) -> Result<Outcome> {
    let mut running = nanoprobe.start(args)?;
    running.command(input)?;
    running.finish()
}

fn hex(nanoprobe: &Nanoprobe, text: &str) -> Result<String> {
    Ok(run(nanoprobe, ["bpf", "asm"], text)?.success()?.stdout)
}

#[test]
fn every_engine_gives_the_same_result() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    for (text, memory, r0) in CASES {
        let program = hex(&nanoprobe, text)?;
        for engine in ENGINES {
            let args = ["bpf", "exec", "--engine"].iter().chain(engine).copied();
            let args: Vec<&str> = args.chain((!memory.is_empty()).then_some(*memory)).collect();
            let outcome = run(&nanoprobe, args, &program)?.success()?;
            assert_eq!(outcome.stdout.trim(), *r0, "{engine:?}\n{text}\n{outcome}");
        }
    }
    Ok(())
}

#[test]
fn a_program_that_does_what_it_may_not_is_ended_by_every_engine() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    let program = hex(&nanoprobe, "mov %r3, 64\nldxdw %r0, [%r3]\nexit")?;
    for engine in ["interpreter", "jit", "target"] {
        let outcome = run(&nanoprobe, ["bpf", "exec", "--engine", engine], &program)?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert!(outcome.stderr.contains("8 bytes at 0x40 are not the program's"), "{engine}: {outcome}");
    }
    let outcome = run(&nanoprobe, ["bpf", "exec", "--engine", "kernel"], &program)?;
    assert_eq!(outcome.code(), Some(3), "{outcome}");
    assert!(outcome.stderr.contains("the kernel refused it: ") && outcome.stdout.is_empty(), "{outcome}");
    Ok(())
}

#[test]
fn an_endless_loop_runs_out_of_fuel_in_every_engine_that_runs_it() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    let program = hex(&nanoprobe, "mov %r0, 0\nagain:\nadd %r0, 1\nja again\nexit")?;
    for engine in ["interpreter", "jit", "target"] {
        let outcome = run(&nanoprobe, ["bpf", "exec", "--engine", engine], &program)?;
        assert!(outcome.code() == Some(1) && outcome.stderr.contains("out of fuel"), "{engine}: {outcome}");
    }
    Ok(())
}
