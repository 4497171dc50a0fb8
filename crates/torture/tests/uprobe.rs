//! `torture uprobe` passes on the honest registry under every protection, and fails on every broken one.
//!
//! Each run is a process of its own: this program, called again with its arguments in the environment.

use std::process::Command;

const CHILD: &str = "NANOPROBE_TORTURE_ARGS";

fn main() {
    if let Ok(args) = std::env::var(CHILD) {
        let args: Vec<String> = args.split(' ').map(String::from).collect();
        std::process::exit(torture::uprobe_main(&args));
    }
    let mut good = true;
    for name in ["no-wait", "no-revival", "early-free"] {
        let (status, last) = run(&format!("--broken {name} --for 30s"));
        let caught = status == Some(1) && last.starts_with(&format!("FAIL broken={name} "));
        good &= say(caught, &format!("broken variant {name} is caught"), &last);
    }
    for protection in ["refcount", "srcu", "tasks-trace", "tasks-fast", "lite", "fast"] {
        let (status, last) = run(&format!("--entry {protection} --returns {protection} --for 1500ms"));
        let passed = status == Some(0) && last.starts_with("PASS broken=none ");
        good &= say(passed, &format!("honest {protection} passes"), &last);
    }
    let (status, _) = run("--broken nosuch");
    good &= say(status == Some(2), "a bad argument ends with status 2", "");
    std::process::exit(i32::from(!good));
}

fn say(good: bool, what: &str, last: &str) -> bool {
    println!("test {what} ... {}", if good { "ok" } else { "FAILED" });
    println!("  last line: {last}");
    good
}

fn run(args: &str) -> (Option<i32>, String) {
    let program = std::env::current_exe().expect("a path");
    let output = Command::new(program).env(CHILD, args).output().expect("runs itself");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text.lines().last().unwrap_or("").to_string())
}
