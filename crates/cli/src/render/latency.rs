//! Durations of calls.
//!
//! For:     `lat`.
//! State:   none.
//! Context: control.
//! Keeps:   the closing line accounts for every entry: returned, unwound, inside, not timed.
//! Checked: tests below; testkit `returns`.

use super::histogram;
use map::Buckets;
use serde_json::{Value, json};
use session::{Calls, OpenCalls};
use wire::latency::BUCKETS_LEN;

/// One function's calls.
#[derive(Clone)]
pub struct Timed {
    pub calls: Calls,
}

impl Timed {
    pub fn of(calls: Calls) -> Timed {
        Timed { calls }
    }

    /// The same function once more.
    pub fn add(&mut self, other: &Timed) {
        let calls = &mut self.calls;
        calls.entries = calls.entries.saturating_add(other.calls.entries);
        calls.total_ns = calls.total_ns.saturating_add(other.calls.total_ns);
        calls.unmatched = calls.unmatched.saturating_add(other.calls.unmatched);
        for (sum, more) in calls.buckets.iter_mut().zip(&other.calls.buckets) {
            *sum = sum.saturating_add(*more);
        }
    }

    /// What was counted before.
    pub fn take_off(&mut self, old: &Timed) {
        let (calls, old) = (&mut self.calls, &old.calls);
        calls.entries = calls.entries.saturating_sub(old.entries);
        calls.total_ns = calls.total_ns.saturating_sub(old.total_ns);
        calls.unmatched = calls.unmatched.saturating_sub(old.unmatched);
        for (now, then) in calls.buckets.iter_mut().zip(&old.buckets) {
            *now = now.saturating_sub(*then);
        }
    }

    /// A headline, what most calls took (both fit 80 columns, but for a long name), and a histogram by powers of two.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let calls = &self.calls;
        let returns = calls.returns();
        let mut heads = vec![format!("@[{name}, ns]: {} calls, {returns} returned", calls.entries)];
        if let Some(average) = calls.total_ns.checked_div(returns) {
            let at = |percent| time(self.percentile(percent));
            heads.push(format!(
                "average {}, p50 < {}, p90 < {}, p99 < {}, longest < {}",
                time(average),
                at(50),
                at(90),
                at(99),
                at(100)
            ));
        }
        heads.into_iter().chain(histogram::bars(&octaves(&self.calls.buckets))).collect()
    }

    pub fn json(&self) -> Value {
        let calls = &self.calls;
        let hit = calls.buckets.iter().zip(0..).filter(|(count, _)| **count > 0);
        let buckets: Vec<Value> = hit
            .map(|(count, i)| json!({"min": Buckets::DURATIONS.from(i), "max": Buckets::DURATIONS.from(i + 1) - 1, "count": count}))
            .collect();
        json!({
            "calls": calls.entries, "returned": calls.returns(), "began_before": calls.unmatched,
            "total_ns": calls.total_ns, "ns": buckets,
        })
    }

    /// Below which so many of 100 calls lie: the end of the bucket.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.calls.returns()) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let bucket = self.calls.buckets.iter().position(|count| {
            seen += u128::from(*count);
            seen >= wanted && seen > 0
        });
        Buckets::DURATIONS.from(bucket.map_or(BUCKETS_LEN, |b| b as u32 + 1))
    }
}

/// Buckets of durations as those of a histogram by powers of two, in the form of [`histogram`].
pub fn octaves(buckets: &[u64]) -> Vec<u64> {
    let mut octaves = vec![0; 65];
    for (count, bucket) in buckets.iter().zip(0..) {
        let octave: &mut u64 =
            &mut octaves[(u64::BITS - Buckets::DURATIONS.from(bucket).leading_zeros()) as usize];
        *octave = octave.saturating_add(*count);
    }
    octaves
}

/// What became of all calls.
pub fn summary<'a>(timed: impl Iterator<Item = &'a Timed>, open: &OpenCalls) -> String {
    let (mut entries, mut returns, mut unmatched) = (0u64, 0u64, 0u64);
    for t in timed {
        entries = t.calls.entries.saturating_add(entries);
        returns = t.calls.returns().saturating_add(returns);
        unmatched = t.calls.unmatched.saturating_add(unmatched);
    }
    let OpenCalls { unwound, inside, no_room } = open;
    format!(
        "Calls {entries}: {returns} returned, {unwound} unwound or begun again, {inside} still inside, \
         {no_room} not timed; {unmatched} returns whose entry was not seen."
    )
}

pub fn open_json(open: &OpenCalls) -> Value {
    json!({
        "unwound": open.unwound, "inside": open.inside, "not_timed": open.no_room,
    })
}

/// Nanoseconds with the unit that fits, up to milliseconds.
pub fn nanoseconds(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

/// The same, and seconds.
pub fn time(ns: u64) -> String {
    match ns {
        0..10_000_000_000 => nanoseconds(ns),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(durations: &[u64]) -> Timed {
        let buckets = vec![0; BUCKETS_LEN as usize];
        let mut calls = Calls { entries: 5, buckets, ..Calls::default() };
        for ns in durations {
            calls.buckets[Buckets::DURATIONS.of(*ns) as usize] += 1;
            calls.total_ns += ns;
        }
        Timed::of(calls)
    }

    #[test]
    fn a_headline_has_average_and_percentiles_and_bars_follow() {
        let lines = timed(&[100, 101, 102, 5000]).lines("f");
        assert_eq!(
            lines[..2],
            [
                "@[f, ns]: 5 calls, 4 returned",
                "average 1325 ns, p50 < 112 ns, p90 < 5120 ns, p99 < 5120 ns, longest < 5120 ns"
            ]
        );
        assert!(lines[..2].iter().all(|line| line.len() <= 80), "{lines:?}");
        assert!(lines[2].starts_with("[64, 128)") && lines[2].contains(" 3 |"), "{lines:?}");
        assert!(lines.last().unwrap().starts_with("[4K, 8K)"), "{lines:?}");
    }

    #[test]
    fn no_call_is_no_division() {
        assert_eq!(timed(&[]).lines("f"), ["@[f, ns]: 5 calls, 0 returned", "  (no hits)"]);
        assert_eq!(timed(&[3]).json()["ns"][0]["max"], 3);
    }
}
