//! The torture test passes on the honest subject and fails on every broken one (T1, T2, P1).
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

const BROKEN: [&str; 7] = [
    "no-wait",
    "one-rank",
    "swapped-sums",
    "lite-without-membarrier",
    "forgotten-barrier",
    "unrecorded-flavour",
    "lost-callback",
];

const FLAVOURS: [&str; 8] =
    ["normal", "sigsafe", "lite", "fast", "updown", "tasks-holdout", "tasks-fast", "mixed"];

fn main() {
    be_the_run(|args| match args.first().map(String::as_str) {
        Some("rhltable") => torture::rhltable_main(&args[1..]),
        Some("hwbp") => torture::hwbp_main(&args[1..]),
        _ => torture::rcu_main(args),
    });
    let mut verdict = Verdict::default();
    for name in BROKEN {
        // It ends when it is caught: within seconds, and later only where others keep the CPUs busy.
        let run = again(&format!("--broken {name} --for 2m"));
        let caught = run.ended(1, &format!("FAIL flavour=lite broken={name} "));
        verdict.say(caught, &format!("broken variant {name} is caught"), &run);
    }
    for flavour in FLAVOURS {
        let run = again(&format!("--flavour {flavour} --for 2s --stutter 1s --edge 200ms"));
        let passed = run.ended(0, &format!("PASS flavour={flavour} "));
        verdict.say(passed, &format!("honest {flavour} passes"), &run);
    }
    for name in ["unlink-first", "old-only", "no-grace-period"] {
        let run = again(&format!("rhltable --broken {name} --for 30s"));
        verdict.say(run.ended(1, "FAIL seed="), &format!("broken table {name} is caught"), &run);
    }
    for name in ["no-task-lock", "shared-cpu-lock", "no-move", "modify-forgets"] {
        let run = again(&format!("hwbp --broken {name} --for 30s"));
        verdict.say(run.ended(1, "FAIL seed="), &format!("broken accounts {name} are caught"), &run);
    }
    let run = again("hwbp --scenarios --cpus 5");
    verdict.say(
        run.ended(0, "PASS passed=27 skipped=0"),
        "the kernel's scenarios pass on three engines",
        &run,
    );
    let run = again("hwbp --scenarios --broken no-move");
    verdict.say(run.ended(1, "FAIL "), "a scenario fails on broken accounts", &run);
    let run = again("hwbp --for 2s --seed 42");
    verdict.say(run.ended(0, "PASS seed=42 "), "honest accounts pass", &run);
    let run = again("rhltable --for 3s --seed 42");
    verdict.say(run.ended(0, "PASS seed=42 "), "an honest table passes", &run);
    let run = again("--for 1s --seed 42");
    let is_used = run.status == Some(0) && run.last().contains(" seed=42 ");
    verdict.say(is_used, "a given seed is used and printed", &run);
    let run = again("--flavour nosuch");
    verdict.say(run.status == Some(2), "a bad argument ends with status 2", &run);
    verdict.end()
}
