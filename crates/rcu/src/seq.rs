//! Numbers of grace periods, and cookies to ask for one.
//!
//! For:     grace periods, callback lists, polling.
//! State:   none; the domain's number lies in its block.
//! Context: hit, signal, target, control.
//! Keeps:   S1 a cookie is done only after a whole grace period that began after it was taken.
//!          S2 comparisons hold across the wrap; at most two cookies that are not done can differ.
//! Checked: tests below; model `gp`; `torture rcu` cookie checks 1 to 4.
//! Source:  kernel `kernel/rcu/rcu.h` (v7.0), the rules of `rcu_seq_*`.

/// Bits of a number that hold the phase.
const PHASE_BITS: u64 = 3;

/// One grace period further.
pub(crate) const STEP: u64 = 4;

/// The first number: one hundred grace periods before the wrap, so that each test crosses it.
pub const FIRST: u64 = 0u64.wrapping_sub(100 * STEP);

/// Where a grace period is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// None runs.
    Idle,
    /// The rank of earlier stragglers is looked at.
    Scan1,
    /// The rank that was current at the start is looked at.
    Scan2,
}

/// The phase that a number holds.
pub const fn phase(seq: u64) -> Phase {
    match seq & PHASE_BITS {
        0 => Phase::Idle,
        1 => Phase::Scan1,
        _ => Phase::Scan2,
    }
}

/// The number with its phase cleared.
pub const fn counter(seq: u64) -> u64 {
    seq & !PHASE_BITS
}

/// The number after the running grace period ends.
pub const fn ended(seq: u64) -> u64 {
    counter(seq.wrapping_add(PHASE_BITS))
}

/// A handle that tells when a whole grace period has passed.
#[doc(alias = "gp_poll_state")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Cookie(pub(crate) u64);

impl Cookie {
    /// A cookie that is always done.
    pub const COMPLETED: Cookie = Cookie(1);

    /// The cookie that a request gets while the number is `seq`.
    ///
    /// Idle: the next grace period. Running: the one after it, since it may have begun before us.
    pub const fn snap(seq: u64) -> Cookie {
        Cookie(counter(seq.wrapping_add(2 * STEP - 1)))
    }

    /// True once the number has reached the cookie.
    pub const fn is_reached(self, seq: u64) -> bool {
        seq.wrapping_sub(self.0) as i64 >= 0
    }

    /// True once the number has reached the cookie, or the cookie is too old to be told from that.
    pub const fn is_done(self, seq: u64) -> bool {
        self.0 == Self::COMPLETED.0
            || self.is_reached(seq)
            || (seq.wrapping_sub(self.0.wrapping_sub(2 * STEP)) as i64) < 0
    }

    /// The number behind the cookie.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The cookie of a number that [`get`](Self::get) gave.
    pub const fn from_raw(raw: u64) -> Cookie {
        Cookie(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_taken_idle_waits_for_the_next_and_one_taken_in_progress_for_the_one_after() {
        for seq in [FIRST, 0u64.wrapping_sub(STEP), 0, 40] {
            assert_eq!(Cookie::snap(seq).0, seq.wrapping_add(STEP));
            for running in [1, 2] {
                assert_eq!(Cookie::snap(seq.wrapping_add(running)).0, seq.wrapping_add(2 * STEP));
            }
        }
    }

    #[test]
    fn a_cookie_is_done_after_its_grace_period_across_the_wrap() {
        let mut seq = 0u64.wrapping_sub(3 * STEP);
        for _ in 0..6 {
            let cookie = Cookie::snap(seq);
            assert!(!cookie.is_done(seq));
            assert!(!cookie.is_done(seq.wrapping_add(1)), "phase scan1");
            assert!(!cookie.is_done(seq.wrapping_add(2)), "phase scan2");
            seq = ended(seq.wrapping_add(1));
            assert!(cookie.is_done(seq));
        }
    }

    #[test]
    fn the_completed_cookie_is_always_done_and_an_ancient_one_counts_as_done() {
        assert!(Cookie::COMPLETED.is_done(FIRST));
        assert!(Cookie(FIRST.wrapping_add(3 * STEP)).is_done(FIRST), "from before the last wrap");
        assert!(!Cookie(FIRST.wrapping_add(2 * STEP)).is_done(FIRST), "two are live");
    }

    #[test]
    fn two_old_cookies_suffice() {
        let seq = FIRST;
        let mut seen = [Cookie::snap(seq), Cookie::snap(seq + 1), Cookie::snap(seq + 2)];
        seen.sort_by_key(|c| c.0);
        assert_eq!(seen[1], seen[2]);
    }
}
