//! The kernel's nine scenarios, from the command line.
//!
//! For:     `torture hwbp --scenarios`.
//! State:   none.
//! Context: control.
//! Keeps:   C1 it fails if an answer is wrong; it says SKIP, and not PASS, if nothing could be run on such a machine.
//! Checked: torture's `tests/broken.rs`; hwbp's `tests/scenarios.rs` runs them on 40 machines.

use hwbp::{Accounts, Broken, EngineKind, Machine, Pools, SCENARIOS, Verdict};

/// Runs them on each engine; the exit status.
pub(super) fn run(engines: &[EngineKind], cpus: u32, slots: u32, broken: Option<Broken>) -> i32 {
    let machine = Machine { cpus, pools: Pools::Shared(slots) };
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    for engine in engines {
        println!("{}, {cpus} CPUs with {slots} slots", engine.name());
        for scenario in SCENARIOS {
            let accounts = match broken {
                Some(how) => Accounts::broken(machine, *engine, how),
                None => Accounts::new(machine, *engine),
            };
            let verdict = scenario.run(&accounts);
            match verdict {
                Verdict::Passed => passed += 1,
                Verdict::Skipped(_) => skipped += 1,
                Verdict::Failed(_) => failed += 1,
            }
            println!("  {:<26} {verdict}", scenario.name);
        }
    }
    let verdict = match (passed, failed) {
        (0, 0) => "SKIP",
        (_, 0) => "PASS",
        _ => "FAIL",
    };
    println!("{verdict} passed={passed} skipped={skipped} failed={failed}");
    i32::from(failed > 0)
}
