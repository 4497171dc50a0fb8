//! Runs of a torture test, each in a process of its own: the test program, called again.
//!
//! For:     the tests of this folder's parent, which have no harness.
//! State:   the arguments are in the environment.
//! Context: control.
//! Keeps:   A1 a run's verdict is its exit status and its last line.
//! Checked: by its users: honest runs and broken ones must differ.

use std::process::{Command, exit};

const CHILD: &str = "NANOPROBE_TORTURE_ARGS";

/// In the process of a run: carries it out and ends. Else returns.
pub fn be_the_run(main: impl FnOnce(&[String]) -> i32) {
    if let Ok(args) = std::env::var(CHILD) {
        let args: Vec<String> = args.split(' ').map(String::from).collect();
        exit(main(&args));
    }
}

/// So much is shown of a run that did not end as it was to, from its beginning and from its end: the first complaint is
/// the cause more often than the last.
const LINES: usize = 12;
const CHARS: usize = 1000;

/// How a run ended.
pub struct Run {
    pub status: Option<i32>,
    output: String,
}

/// Runs the program again with these arguments.
pub fn again(args: &str) -> Run {
    let program = std::env::current_exe().expect("a path");
    let output = Command::new(program).env(CHILD, args).output().expect("runs itself");
    Run { status: output.status.code(), output: String::from_utf8_lossy(&output.stdout).into_owned() }
}

impl Run {
    /// Its last line, which has the verdict.
    pub fn last(&self) -> &str {
        self.output.lines().last().unwrap_or("")
    }

    /// It ended with this status, and its last line begins so.
    pub fn ended(&self, status: i32, line: &str) -> bool {
        self.status == Some(status) && self.last().starts_with(line)
    }
}

/// What was expected, and whether all of it came.
#[derive(Default)]
pub struct Verdict {
    is_bad: bool,
}

impl Verdict {
    /// Prints one expectation, and what was seen if it was not met.
    pub fn say(&mut self, good: bool, what: &str, run: &Run) {
        println!("test {what} ... {}", if good { "ok" } else { "FAILED" });
        if !good {
            println!("  status {:?}, its first and last lines:", run.status);
            let lines: Vec<&str> = run.output.lines().collect();
            for (n, line) in lines.iter().enumerate() {
                if n < LINES || n + LINES >= lines.len() {
                    println!("    {}", line.chars().take(CHARS).collect::<String>());
                }
            }
        }
        self.is_bad |= !good;
    }

    /// Ends the test program.
    pub fn end(self) -> ! {
        exit(i32::from(self.is_bad))
    }
}
