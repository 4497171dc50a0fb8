//! `torture bpf` passes on the honest compiler, and finds every broken one (T1, T2).
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment. Seeds are fixed:
//! the same programs every time.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

const BROKEN: [&str; 8] = [
    "upper-half",
    "signed-shift",
    "signed-compare",
    "signed-load",
    "division-by-zero",
    "sign-of-remainder",
    "old-value",
    "byte-order",
];

fn main() {
    be_the_run(torture::bpf_main);
    let mut verdict = Verdict::default();
    for name in BROKEN {
        let run = again(&format!("--broken {name} --seed 7 --for 10m"));
        let caught = run.ended(1, &format!("FAIL broken={name} "));
        verdict.say(caught, &format!("broken compiler {name} is caught"), &run);
    }
    for engines in ["jit", "target"] {
        let run = again(&format!("--engines {engines} --seed 11 --programs 100 --for 10m"));
        verdict.say(run.ended(0, "PASS broken=none "), &format!("the honest one passes, {engines}"), &run);
    }
    let run = again("--broken nosuch");
    verdict.say(run.status == Some(2), "a bad argument ends with status 2", &run);
    verdict.end()
}
