//! Events that samples are taken of, and the attach points that are on every machine.
//!
//! For:     `software` and `hardware` probes, `-l`.
//! State:   none.
//! Context: control.
//! Keeps:   E1 numbers are the kernel's: `PERF_COUNT_SW_*`, `PERF_COUNT_HW_*`.
//! Checked: tests below; testkit `sampled`.

use image::spec::Pattern;

/// An event of the kernel's or of the processor's.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// As it is listed.
    pub name: &'static str,
    /// Another name, or none.
    pub alias: &'static str,
    /// The kernel's number.
    pub number: u64,
    /// How many are between two samples if nothing is said.
    pub usual: u64,
}

const fn event(name: &'static str, alias: &'static str, number: u64, usual: u64) -> Event {
    Event { name, alias, number, usual }
}

/// Those of `software` probes.
pub const SOFTWARE: [Event; 11] = [
    event("alignment-faults", "", 7, 1),
    event("bpf-output", "", 10, 1),
    event("context-switches", "cs", 3, 1000),
    event("cpu-clock", "cpu", 0, 1_000_000),
    event("cpu-migrations", "", 4, 1),
    event("dummy", "", 9, 1),
    event("emulation-faults", "", 8, 1),
    event("major-faults", "", 6, 1),
    event("minor-faults", "", 5, 100),
    event("page-faults", "faults", 2, 100),
    event("task-clock", "", 1, 1_000_000),
];

/// Those of `hardware` probes.
pub const HARDWARE: [Event; 10] = [
    event("backend-stalls", "", 8, 1_000_000),
    event("branch-instructions", "branches", 4, 100_000),
    event("branch-misses", "", 5, 100_000),
    event("bus-cycles", "", 6, 100_000),
    event("cache-misses", "", 3, 1_000_000),
    event("cache-references", "", 2, 1_000_000),
    event("cpu-cycles", "cycles", 0, 1_000_000),
    event("frontend-stalls", "", 7, 1_000_000),
    event("instructions", "", 1, 1_000_000),
    event("ref-cycles", "", 9, 1_000_000),
];

/// Attach points that need no file, as far as they can be written down, which a search fits.
pub fn listed(search: &str) -> Vec<String> {
    let pattern = Pattern::glob(search);
    let of = |kind: &str, events: &[Event]| -> Vec<String> {
        events.iter().map(|event| format!("{kind}:{}:", event.name)).collect()
    };
    let timed = |kind: &str| ["hz", "ms", "s", "us"].map(|unit| format!("{kind}:{unit}:")).to_vec();
    let all = [
        vec!["begin".to_owned(), "end".to_owned()],
        of("hardware", &HARDWARE),
        timed("interval"),
        timed("profile"),
        vec!["self:signal:SIGUSR1".to_owned()],
        of("software", &SOFTWARE),
    ];
    let fits = |line: &String| pattern.matches(line) || pattern.matches(line.trim_end_matches(':'));
    all.into_iter().flatten().filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_every_machine_is_found_by_globs() {
        assert_eq!(listed("software:*").len(), 11);
        assert_eq!(listed("*:cache-m*"), ["hardware:cache-misses:"]);
        assert_eq!(listed("interval:s"), ["interval:s:"]);
        assert!(listed("*").len() > 30 && listed("software:none").is_empty());
    }

    #[test]
    fn no_name_and_no_number_is_given_twice() {
        for events in [&SOFTWARE[..], &HARDWARE[..]] {
            for (n, one) in events.iter().enumerate() {
                let same = |other: &&Event| other.name == one.name || other.number == one.number;
                assert!(!events[n + 1..].iter().any(|other| same(&other)), "{}", one.name);
            }
        }
    }
}
