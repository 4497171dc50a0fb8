//! What keeps a benchmark from giving figures.
//!
//! For:     `trigger_main`, which prints it and goes on with the next.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: tests below.

use session::{Broken, PlanError};
use sys::Errno;

/// Why there are no figures, or none to be believed.
#[derive(Debug)]
#[non_exhaustive]
pub enum TriggerError {
    /// The traced program could not be started, spoken to, or said this.
    Child(String),
    /// Its functions cannot be probed.
    Plan(PlanError),
    /// It could not be entered or left.
    Session(Broken),
    /// The one site was planned and not armed.
    Missed(String),
    /// After the detach, the text was not as before or our memory was still there.
    NotRestored,
    /// Hits are not the calls made.
    Differ {
        /// Who counted.
        who: &'static str,
        /// What it counted.
        hits: u64,
        /// What the producers counted.
        calls: u64,
    },
    /// The kernel offers no uprobes through perf.
    NoPmu {
        /// What was read to find them.
        path: &'static str,
        /// Why it could not be.
        why: String,
    },
    /// The kernel refuses a step towards its uprobe.
    Kernel {
        /// Which.
        what: &'static str,
        /// Its answer.
        errno: Errno,
        /// perf_event_paranoid.
        paranoid: String,
    },
    /// A read or write failed.
    Io(std::io::Error),
}

impl TriggerError {
    /// What was checked and what to type next, one line each.
    pub fn advice(&self) -> Vec<String> {
        let lines: &[&str] = match self {
            TriggerError::Kernel { errno: Errno::EACCES | Errno::EPERM, paranoid, .. } => {
                let checked = format!("checked  /proc/sys/kernel/perf_event_paranoid: {paranoid}");
                return vec![
                    checked,
                    "try      sudo nanoprobe bench --vs kernel ...   # takes root, or CAP_PERFMON and CAP_BPF".into(),
                    "try      the same without --vs kernel: our side needs no privilege".into(),
                ];
            }
            TriggerError::NoPmu { .. } => &[
                "try      a kernel with CONFIG_UPROBE_EVENTS, and sysfs on /sys",
                "try      the same without --vs kernel",
            ],
            TriggerError::Session(Broken::Yama { .. }) => &["try      sudo nanoprobe bench ..."],
            _ => &[],
        };
        lines.iter().map(|line| (*line).to_owned()).collect()
    }
}

impl std::fmt::Display for TriggerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TriggerError::Child(why) => write!(f, "the traced program: {why}"),
            TriggerError::Plan(error) => write!(f, "{error}"),
            TriggerError::Session(broken) => write!(f, "{broken}"),
            TriggerError::Missed(why) => write!(f, "the site was not armed: {why}"),
            TriggerError::NotRestored => write!(f, "the traced program is not as it was before the attach"),
            TriggerError::Differ { who, hits, calls } => {
                write!(f, "{who} counted {hits} hits of {calls} calls")
            }
            TriggerError::NoPmu { path, why } => {
                write!(f, "the kernel has no uprobes for perf_event_open: {path}: {why}")
            }
            TriggerError::Kernel { what, errno, .. } => write!(f, "the kernel refuses {what}: {errno}"),
            TriggerError::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for TriggerError {}

impl From<std::io::Error> for TriggerError {
    fn from(error: std::io::Error) -> TriggerError {
        TriggerError::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_uprobe_says_what_was_checked_and_what_to_do() {
        let error = TriggerError::Kernel {
            what: "perf_event_open of a uprobe",
            errno: Errno::EACCES,
            paranoid: "2".into(),
        };
        assert!(error.to_string().contains("permission denied"));
        let advice = error.advice().join("\n");
        assert!(advice.contains("perf_event_paranoid: 2") && advice.contains("sudo"), "{advice}");
    }
}
