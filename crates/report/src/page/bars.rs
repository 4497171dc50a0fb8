//! Histograms as bars.
//!
//! For:     `page`.
//! State:   none.
//! Context: control.
//! Keeps:   H1 a bar is as long as its count is of the largest; its number stands beside it.
//! Checked: tests below.

use super::tables::{grouped, time};
use crate::flame::escaped;
use crate::run::{Bucket, Function, Run};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Counts by powers of two: `k` has what is less than `2^k` and not less than half of that.
pub fn octaves(buckets: &[Bucket]) -> BTreeMap<u32, u64> {
    let mut sums = BTreeMap::new();
    for bucket in buckets.iter().filter(|b| b.count > 0) {
        let row = u64::BITS - u64::try_from(bucket.min).unwrap_or(0).leading_zeros();
        *sums.entry(row).or_insert(0u64) += bucket.count;
    }
    sums
}

/// Those of the recording, and durations of the functions that took longest.
pub fn all(run: &Run, most: usize) -> String {
    let mut charts: Vec<String> =
        run.histograms.iter().map(|(name, buckets)| values(name, buckets)).collect();
    let mut timed: Vec<(&String, &Function)> = run.functions.iter().filter(|(_, f)| f.returned > 0).collect();
    timed.sort_by_key(|(_, f)| std::cmp::Reverse(f.total_ns));
    charts.extend(timed.iter().take(most).map(|(name, f)| durations(name, &f.ns)));
    let left_out = timed.len().saturating_sub(most);
    if charts.is_empty() {
        return String::new();
    }
    let more = match left_out {
        0 => String::new(),
        n => format!(
            "<p class=\"faint\">and {n} functions that took less time together; the table has them</p>\n"
        ),
    };
    format!("<div class=\"hists\">{}</div>\n{more}", charts.concat())
}

fn durations(name: &str, buckets: &[Bucket]) -> String {
    let octaves = octaves(buckets);
    let (Some(low), Some(high)) = (octaves.keys().next(), octaves.keys().next_back()) else {
        return String::new();
    };
    let label = |row: u32| time(row.checked_sub(1).map_or(0, |k| 1u64 << k));
    let rows = (*low..=*high).map(|row| (label(row), octaves.get(&row).copied().unwrap_or(0)));
    chart(&format!("{name}, how long"), &rows.collect::<Vec<_>>())
}

fn values(name: &str, buckets: &[Bucket]) -> String {
    let label = |b: &Bucket| match (b.min, b.max) {
        (i64::MIN, Some(max)) => format!("up to {max}"),
        (min, None) => format!("{min} and more"),
        (min, Some(max)) if min == max => min.to_string(),
        (min, Some(max)) => format!("{min} to {max}"),
    };
    let rows: Vec<(String, u64)> = buckets.iter().map(|b| (label(b), b.count)).collect();
    chart(name, &rows)
}

fn chart(name: &str, rows: &[(String, u64)]) -> String {
    const ROW: usize = 18;
    const LABEL: usize = 150;
    const BAR: f64 = 220.0;
    let most = rows.iter().map(|(_, n)| *n).max().unwrap_or(0).max(1);
    let height = rows.len() * ROW;
    let mut out = format!(
        "<div><h3><code>{}</code></h3><svg xmlns=\"http://www.w3.org/2000/svg\" width=\"480\" viewBox=\"0 0 480 {height}\">",
        escaped(name)
    );
    for (i, (label, count)) in rows.iter().enumerate() {
        let (y, width) = (i * ROW, *count as f64 / most as f64 * BAR);
        let width = if *count > 0 { width.max(1.0) } else { 0.0 };
        let _ = write!(
            out,
            "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect class=\"bar\" x=\"{LABEL}\" y=\"{}\" \
             width=\"{width:.1}\" height=\"{}\"/><text class=\"axis\" x=\"{:.1}\" y=\"{}\">{}</text>",
            LABEL - 6,
            y + 13,
            escaped(label),
            y + 2,
            ROW - 4,
            LABEL as f64 + width + 5.0,
            y + 13,
            grouped(*count),
        );
    }
    out + "</svg></div>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octaves_add_up_and_bars_are_shares_of_the_largest() {
        let bucket = |min, max, count| Bucket { min, max: Some(max), count };
        let all = [bucket(0, 0, 1), bucket(96, 111, 2), bucket(112, 127, 3), bucket(128, 159, 4)];
        assert_eq!(octaves(&all).into_iter().collect::<Vec<_>>(), [(0, 1), (7, 5), (8, 4)]);
        let shown = chart("f", &[("a".into(), 10), ("b".into(), 5), ("c".into(), 0)]);
        assert!(
            shown.contains("width=\"220.0\"")
                && shown.contains("width=\"110.0\"")
                && shown.contains("width=\"0.0\"")
        );
    }
}
