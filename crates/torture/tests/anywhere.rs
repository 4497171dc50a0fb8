//! `torture anywhere` fails when its subject is broken, and says what it cannot run.
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment. The honest run
//! is a step of `scripts/test`, with the command. Without root, and where there is no sqlite3, nothing is tested.

#[path = "itself/again.rs"]
mod again;

use again::{Verdict, again, be_the_run};

fn main() {
    be_the_run(torture::anywhere_main);
    let mut verdict = Verdict::default();
    let run = again("--workload nosuch");
    verdict.say(run.status == Some(2), "a bad argument ends with status 2", &run);
    let run = again("--workload digest --specs /nonexistent");
    verdict.say(run.status == Some(2), "a file of sites that is not there ends with status 2", &run);
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !is_root || !std::path::Path::new("/usr/bin/sqlite3").exists() {
        println!("skipped: the rest needs root and sqlite3");
        verdict.end()
    }
    for busted in ["text", "jump"] {
        let run =
            again(&format!("--workload sqlite-short --runs 1 --sites 200 --hold 100ms --busted {busted}"));
        let caught = run.ended(1, "FAIL run 0 sqlite-short: ");
        verdict.say(caught, &format!("a broken {busted} is caught"), &run);
    }
    verdict.end()
}
