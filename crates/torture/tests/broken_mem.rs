//! `torture mem` passes on the honest cache and fails on every broken one (Q1, Q2).
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment.

use std::process::Command;

const CHILD: &str = "NANOPROBE_TORTURE_ARGS";

fn main() {
    if let Ok(args) = std::env::var(CHILD) {
        let args: Vec<String> = args.split(' ').map(String::from).collect();
        std::process::exit(torture::mem_main(&args));
    }
    let mut good = true;
    for name in ["early-reuse", "lost-list", "forgotten-barrier"] {
        let (status, last) = run(&format!("--broken {name} --for 30s"));
        let caught = status == Some(1) && last.starts_with(&format!("FAIL broken={name} "));
        good &= say(caught, &format!("broken variant {name} is caught"), &last);
    }
    for args in ["--for 3s", "--for 2s --no-rseq", "--for 2s --size 1000"] {
        let (status, last) = run(args);
        let passed = status == Some(0) && last.starts_with("PASS broken=none ");
        good &= say(passed, &format!("honest with {args} passes"), &last);
    }
    let (status, _) = run("--broken nosuch");
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

fn run(args: &str) -> (Option<i32>, String) {
    let program = std::env::current_exe().expect("a path");
    let output = Command::new(program).env(CHILD, args).output().expect("runs itself");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<_> = text.lines().rev().take(2).collect();
    (output.status.code(), lines.join("  |  "))
}
