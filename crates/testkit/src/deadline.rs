//! Waiting for a condition, with a limit.
//!
//! For:     tests, which never sleep for "long enough".
//! State:   none.
//! Context: control.
//! Keeps:   G1 returns as soon as a poll finds the condition true; G2 never waits much past the limit.
//! Checked: deadline::tests.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Between two looks; short against what tests measure in milliseconds.
const POLL: Duration = Duration::from_millis(2);

/// Returns once `done` says true; an error that names `waited_for` if it has not `within` the limit.
pub fn wait_until(waited_for: &str, within: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let limit = Instant::now() + within;
    while !done() {
        if Instant::now() >= limit {
            let seen = "nothing".into();
            return Err(Error::Deadline { waited_for: waited_for.into(), within, seen });
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_that_never_comes_is_named() {
        let error = wait_until("the moon", Duration::from_millis(10), || false).unwrap_err();
        assert!(error.to_string().contains("the moon"));
    }

    #[test]
    fn condition_that_comes_late_is_seen() {
        let mut looks = 0;
        wait_until("three looks", Duration::from_secs(5), || {
            looks += 1;
            looks == 3
        })
        .unwrap();
    }
}
