//! `torture mem` passes on the honest cache and fails on every broken one (Q1, Q2).
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

fn main() {
    be_the_run(torture::mem_main);
    let mut verdict = Verdict::default();
    for name in ["early-reuse", "lost-list", "forgotten-barrier"] {
        let run = again(&format!("--broken {name} --for 30s"));
        let caught = run.ended(1, &format!("FAIL broken={name} "));
        verdict.say(caught, &format!("broken variant {name} is caught"), &run);
    }
    for args in ["--for 3s", "--for 2s --no-rseq", "--for 2s --size 1000"] {
        let run = again(args);
        verdict.say(run.ended(0, "PASS broken=none "), &format!("honest with {args} passes"), &run);
    }
    let run = again("--broken nosuch");
    verdict.say(run.status == Some(2), "a bad argument ends with status 2", &run);
    verdict.end()
}
