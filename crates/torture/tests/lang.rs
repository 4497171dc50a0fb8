//! `torture lang` passes, and fails where something is broken (L2, L3).
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment. Seeds are fixed:
//! the same scripts every time.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

/// What arithmetic on variables shows.
const BROKEN: [&str; 2] = ["signed-load", "refuse"];

fn main() {
    be_the_run(torture::lang_main);
    let mut verdict = Verdict::default();
    for name in BROKEN {
        let run = again(&format!("--broken {name} --seed 7 --scripts 5000 --for 10m"));
        verdict.say(run.ended(1, &format!("FAIL broken={name} ")), &format!("{name} is caught"), &run);
    }
    let run = again("--seed 11 --scripts 600 --for 10m");
    verdict.say(run.ended(0, "PASS broken=none "), "600 scripts pass", &run);
    let run = again("--broken nosuch");
    verdict.say(run.status == Some(2), "a bad argument ends with status 2", &run);
    verdict.end()
}
