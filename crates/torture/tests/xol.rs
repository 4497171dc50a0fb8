//! `torture xol` passes on honest slots in both schemes, and fails on every broken one (T1).
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

fn main() {
    be_the_run(torture::xol_main);
    let mut verdict = Verdict::default();
    for (name, scheme) in
        [("lost-wakeup", "cached"), ("lost-wakeup", "dynamic"), ("recycle-in-use", "cached")]
    {
        let run = again(&format!("--broken {name} --scheme {scheme} --for 40s"));
        let caught = run.ended(1, &format!("FAIL broken={name} scheme={scheme} "));
        verdict.say(caught, &format!("broken variant {name} is caught, {scheme}"), &run);
    }
    for args in ["--scheme cached", "--scheme dynamic", "--scheme dynamic --sync broadcast"] {
        let run = again(&format!("{args} --for 2s"));
        verdict.say(run.ended(0, "PASS broken=none "), &format!("honest with {args} passes"), &run);
    }
    let run = again("--jumps --broken no-breakpoint --for 40s");
    verdict.say(run.ended(1, "FAIL broken=no-breakpoint "), "jumps without breakpoints are caught", &run);
    let run = again("--jumps --for 2s");
    verdict.say(run.ended(0, "PASS broken=none "), "honest jumps pass", &run);
    let run = again("--broken nosuch");
    verdict.say(run.status == Some(2), "a bad argument ends with status 2", &run);
    verdict.end()
}
