//! liburcu's flavours, where it is installed.
//!
//! For:     `refscale` and `synchronize`: the best-known peer in the same run.
//! State:   a program per flavour in a directory of its own, removed at the end.
//! Context: control. Runs `cc`.
//! Keeps:   Y1 what is left out says why and what to install.
//! Checked: tests below.

use std::path::PathBuf;
use std::process::Command;

/// Flavours in the order in which they are printed.
pub const FLAVOURS: [&str; 4] = ["memb", "mb", "qsbr", "bp"];

const SOURCE: &str = include_str!("urcu.c");

/// A directory that goes when the value does.
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Nanoseconds per enter and exit, one value per run.
pub fn read(flavour: &str, loops: u64, readers: usize, runs: usize, delay: u64) -> Result<Vec<f64>, String> {
    let args = [loops.to_string(), readers.to_string(), runs.to_string(), delay.to_string()];
    run(flavour, "read", &args)
}

/// Nanoseconds per `synchronize_rcu`, one value per call.
pub fn synchronize(flavour: &str, readers: usize, count: usize) -> Result<Vec<f64>, String> {
    run(flavour, "sync", &[readers.to_string(), count.to_string()])
}

fn run(flavour: &str, what: &str, args: &[String]) -> Result<Vec<f64>, String> {
    let dir = TempDir(std::env::temp_dir().join(format!("nanoprobe-urcu-{}-{flavour}", std::process::id())));
    std::fs::create_dir_all(&dir.0).map_err(|e| format!("{}: {e}", dir.0.display()))?;
    let program = dir.0.join("urcu");
    compile(flavour, &dir.0.join("urcu.c"), &program)?;
    let output = Command::new(&program).arg(what).args(args).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("its program ended with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

fn compile(flavour: &str, source: &PathBuf, program: &PathBuf) -> Result<(), String> {
    const INSTALL: &str = "apt-get install liburcu-dev gcc";
    std::fs::write(source, SOURCE).map_err(|e| e.to_string())?;
    // A reader of qsbr says from time to time that it is outside; the others need nothing.
    let quiet = if flavour == "qsbr" { "urcu_qsbr_quiescent_state()" } else { "" };
    let output = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .args([program, source])
        .arg(format!("-DFLAVOUR={flavour}"))
        .arg(format!("-DURCU_HEADER=<urcu/urcu-{flavour}.h>"))
        .arg(format!("-DQUIET()={quiet}"))
        .arg(format!("-lurcu-{flavour}"))
        .output()
        .map_err(|e| format!("no C compiler ({e}); {INSTALL}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text.lines().find(|l| l.contains("error")).unwrap_or("cc failed");
    Err(format!("{first}; {INSTALL}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flavour_runs_or_says_what_to_install() {
        for flavour in FLAVOURS {
            match read(flavour, 100, 1, 2, 0) {
                Ok(results) => assert_eq!(results.len(), 2),
                Err(why) => assert!(why.contains("liburcu-dev"), "{why}"),
            }
        }
    }
}
