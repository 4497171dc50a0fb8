//! Histograms by powers of two, as bpftrace shows them.
//!
//! For:     `hist`.
//! State:   none.
//! Context: control.
//! Keeps:   the lowest and the highest bucket that were hit are shown, and all between.
//! Checked: tests below.

use serde_json::{Value, json};

const WIDTH: usize = 52;
const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// One line a bucket.
pub fn bars(buckets: &[u64]) -> Vec<String> {
    let Some(range) = span(buckets) else { return vec!["  (no hits)".into()] };
    let most = buckets.iter().max().copied().unwrap_or(1).max(1);
    range
        .map(|i| {
            let count = buckets[i];
            let len = (u128::from(count) * WIDTH as u128 / u128::from(most)) as usize;
            format!("{:<16} {count:>10} |{:<WIDTH$}|", bounds(i), "@".repeat(len))
        })
        .collect()
}

/// The same for machines; `max` is the highest value of the bucket.
pub fn json(buckets: &[u64]) -> Value {
    let Some(range) = span(buckets) else { return json!([]) };
    let one = |i: usize| {
        let (min, max) = (low(i), if i == 0 { 0 } else { low(i) + (low(i) - 1) });
        json!({"min": min, "max": max, "count": buckets[i]})
    };
    Value::Array(range.map(one).collect())
}

fn span(buckets: &[u64]) -> Option<std::ops::RangeInclusive<usize>> {
    let first = buckets.iter().position(|c| *c > 0)?;
    let last = buckets.iter().rposition(|c| *c > 0)?;
    Some(first..=last)
}

/// The lowest value of bucket `i`: 0, 1, 2, 4, 8 ...
fn low(i: usize) -> u64 {
    map::Buckets::Log2.from(i as u32)
}

fn bounds(i: usize) -> String {
    match i {
        0 | 1 => format!("[{i}]"),
        64 => format!("[{}, )", short(63)),
        _ => format!("[{}, {})", short(i as u32 - 1), short(i as u32)),
    }
}

/// 2 to the power of `bits`, with a unit.
fn short(bits: u32) -> String {
    format!("{}{}", 1u64 << (bits % 10), UNITS[(bits / 10) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_shown_from_the_lowest_to_the_highest_hit() {
        let mut buckets = vec![0; 65];
        buckets[5] = 27;
        buckets[7] = 54;
        let lines = bars(&buckets);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("[16, 32)") && lines[0].contains(" 27 |@@@@@@@@@@@@@@@@@@@@@@@@@@ "));
        assert!(lines[1].contains(" 0 |  "));
        assert!(lines[2].contains(&format!("|{}|", "@".repeat(52))));
    }

    #[test]
    fn bounds_have_units_and_the_ends_are_right() {
        assert_eq!(bounds(0), "[0]");
        assert_eq!(bounds(1), "[1]");
        assert_eq!(bounds(11), "[1K, 2K)");
        assert_eq!(bounds(64), "[8E, )");
        let mut top = vec![0; 65];
        top[64] = 1;
        assert_eq!(json(&top)[0]["max"], u64::MAX);
        assert_eq!(bars(&[0; 65]), ["  (no hits)"]);
    }
}
