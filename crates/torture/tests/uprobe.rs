//! `torture uprobe` passes on the honest registry under every protection, and fails on every broken one.
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

fn main() {
    be_the_run(torture::uprobe_main);
    let mut verdict = Verdict::default();
    for name in ["no-wait", "no-revival", "early-free"] {
        let run = again(&format!("--backend registry --broken {name} --for 30s"));
        let caught = run.ended(1, &format!("FAIL backend=registry broken={name} "));
        verdict.say(caught, &format!("broken variant {name} is caught"), &run);
    }
    for protection in ["refcount", "srcu", "tasks-trace", "tasks-fast", "lite", "fast"] {
        let run =
            again(&format!("--backend registry --entry {protection} --returns {protection} --for 1500ms"));
        verdict.say(
            run.ended(0, "PASS backend=registry broken=none "),
            &format!("honest {protection} passes"),
            &run,
        );
    }
    let run = again("--backend registry --broken nosuch");
    verdict.say(run.status == Some(2), "a bad argument ends with status 2", &run);
    verdict.end()
}
