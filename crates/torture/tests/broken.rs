//! The torture test passes on the honest subject and fails on every broken one (T1, T2, P1).
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment.

use std::process::Command;
use std::time::Instant;

const CHILD: &str = "NANOPROBE_TORTURE_ARGS";

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
    if let Ok(args) = std::env::var(CHILD) {
        let args: Vec<String> = args.split(' ').map(String::from).collect();
        std::process::exit(match args.first().map(String::as_str) {
            Some("rhltable") => torture::rhltable_main(&args[1..]),
            _ => torture::rcu_main(&args),
        });
    }
    let mut good = true;
    for name in BROKEN {
        let (status, last, seconds) = run(&format!("--broken {name} --for 30s"));
        let caught = status == Some(1) && last.starts_with(&format!("FAIL flavour=lite broken={name} "));
        good &= say(caught && seconds < 35.0, &format!("broken variant {name} is caught"), &last);
    }
    for flavour in FLAVOURS {
        let (status, last, _) = run(&format!("--flavour {flavour} --for 2s --stutter 1s --edge 200ms"));
        let passed = status == Some(0) && last.starts_with(&format!("PASS flavour={flavour} "));
        good &= say(passed, &format!("honest {flavour} passes"), &last);
    }
    for name in ["unlink-first", "old-only", "no-grace-period"] {
        let (status, last, _) = run(&format!("rhltable --broken {name} --for 30s"));
        let caught = status == Some(1) && last.starts_with("FAIL seed=");
        good &= say(caught, &format!("broken table {name} is caught"), &last);
    }
    let (status, last, _) = run("rhltable --for 3s --seed 42");
    let passed = status == Some(0) && last.starts_with("PASS seed=42 ");
    good &= say(passed, "an honest table passes", &last);
    let (status, last, _) = run("--for 1s --seed 42");
    good &= say(status == Some(0) && last.contains(" seed=42 "), "a given seed is used and printed", &last);
    let (status, ..) = run("--flavour nosuch");
    good &= say(status == Some(2), "a bad argument ends with status 2", "");
    std::process::exit(i32::from(!good));
}

fn say(good: bool, what: &str, last: &str) -> bool {
    println!("test {what} ... {}", if good { "ok" } else { "FAILED" });
    if !good {
        println!("  last line: {last}");
    }
    good
}

fn run(args: &str) -> (Option<i32>, String, f64) {
    let start = Instant::now();
    let program = std::env::current_exe().expect("a path");
    let output = Command::new(program).env(CHILD, args).output().expect("runs itself");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().unwrap_or("").to_string();
    (output.status.code(), last, start.elapsed().as_secs_f64())
}
