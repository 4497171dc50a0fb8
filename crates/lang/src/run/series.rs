//! Time series as text and JSON.
//!
//! For:     maps of `tseries`.
//! State:   none.
//! Context: control.
//! Keeps:   one row an interval from the first that is known to the last of all keys.
//! Checked: tests below.

use super::os;
use super::show::wall_time;
use crate::types::{Agg, SeriesKind};
use map::average;
use std::collections::BTreeMap;

/// Columns of the graph.
const WIDTH: usize = 53;
/// Columns from the graph's left edge to where the upper bound's field begins.
const LEFT: usize = 21;

/// The known intervals of a series: epoch and value.
pub fn points(agg: Agg, words: &[u64]) -> BTreeMap<u64, i128> {
    let Agg::Tseries { how, signed, .. } = agg else { return BTreeMap::new() };
    let value = |four: &[u64; 4]| match how {
        SeriesKind::Avg => average(four[2], four[1], signed),
        _ => four[1],
    };
    let shown = |n: u64| if signed { i128::from(n.cast_signed()) } else { i128::from(n) };
    let known = words.as_chunks::<4>().0.iter().filter(|four| four[0] > 0);
    known.map(|four| (four[0] - 1, shown(value(four)))).collect()
}

/// Rows from the first that is known to `last`: nanoseconds of the clock, and the value.
pub fn rows(agg: Agg, points: &BTreeMap<u64, i128>, last: u64) -> Vec<(u64, Option<i128>)> {
    let Agg::Tseries { interval, num, .. } = agg else { return Vec::new() };
    let first = last.saturating_sub(u64::from(num.max(1)) - 1);
    let Some((first, _)) = points.range(first..=last).next() else { return Vec::new() };
    (*first..=last).map(|epoch| (epoch.saturating_mul(interval), points.get(&epoch).copied())).collect()
}

/// The graph. `is_real`: times are of the clock of atomic time, else counted from 1970.
pub fn text(agg: Agg, rows: &[(u64, Option<i128>)], is_real: bool) -> String {
    let Agg::Tseries { interval, .. } = agg else { return String::new() };
    let values: Vec<i128> = rows.iter().filter_map(|(_, value)| *value).collect();
    let (Some(low), Some(high)) = (values.iter().min(), values.iter().max()) else {
        return "<no data>".into();
    };
    // One value stands in the middle; what has no sign does not go below 0.
    let lowest = if matches!(agg, Agg::Tseries { signed: false, .. }) { 0 } else { i128::MIN };
    let (low, high) = if low == high { ((low - 1).max(lowest), high + 1) } else { (*low, *high) };
    let (unit, digits) = unit_of(interval);
    let head = format!("hh:mm:ss{unit}");
    let wide = "hh:mm:ss".len() + if digits > 0 { 1 + digits } else { 0 };
    let indent = " ".repeat(wide + 1);
    let bounds = format!("{indent}{low:<LEFT$}{high:>width$}\n", width = WIDTH - LEFT);
    let mut out = format!("{bounds}{head:<wide$} |{}|\n", "_".repeat(WIDTH - 2));
    let zero =
        if low < 0 && high > 0 { (WIDTH as f32 * (-low) as f32 / (high - low) as f32) as usize } else { 0 };
    for (nanos, value) in rows {
        let mut line = vec![b' '; WIDTH];
        (line[0], line[WIDTH - 1]) = (b'|', b'|');
        if zero > 0 && zero < WIDTH {
            line[zero] = b'.';
        }
        let shown = match value {
            Some(value) => {
                let at = ((WIDTH - 1) as f32 * (value - low) as f32 / (high - low) as f32) as usize;
                line[at.min(WIDTH - 1)] = b'*';
                value.to_string()
            }
            None => "-".into(),
        };
        let time = time(*nanos, b"%H:%M:%S", digits, is_real);
        out += &format!("{time} {} {shown}\n", String::from_utf8_lossy(&line));
    }
    out += &format!("{indent}v{}v\n{bounds}", "_".repeat(WIDTH - 2));
    out
}

/// For machines.
pub fn json(rows: &[(u64, Option<i128>)], is_real: bool) -> String {
    let of = |(nanos, value): &(u64, Option<i128>)| {
        let value = (*value)?;
        let start = time(*nanos, b"%Y-%m-%d %H:%M:%S", 9, is_real);
        Some(format!("{{\"interval_start\":\"{start}\",\"value\":{value}}}"))
    };
    format!("[{}]", rows.iter().filter_map(of).collect::<Vec<_>>().join(","))
}

/// The unit that an interval is counted in, and its digits behind the second.
fn unit_of(interval: u64) -> (&'static str, usize) {
    match interval {
        n if n % 1_000_000_000 == 0 => ("", 0),
        n if n % 1_000_000 == 0 => (".ms", 3),
        n if n % 1_000 == 0 => (".us", 6),
        _ => (".ns", 9),
    }
}

fn time(nanos: u64, format: &[u8], digits: usize, is_real: bool) -> String {
    let at = if is_real { wall_time(nanos, os::TAI) } else { i128::from(nanos) };
    // Two readings of clocks are nanoseconds apart.
    let at = if is_real && digits < 9 { at + 500_000 / 10i128.pow(digits as u32).max(1) } else { at };
    let text = String::from_utf8_lossy(&os::format_time(format, at)).into_owned();
    if digits == 0 {
        return text;
    }
    let rest = at.rem_euclid(1_000_000_000) / 10i128.pow(9 - digits as u32);
    format!("{text}.{rest:0digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGG: Agg = Agg::Tseries { interval: 100_000_000, num: 4, how: SeriesKind::Last, signed: true };

    #[test]
    fn the_last_intervals_are_drawn_with_a_line_at_zero() {
        let mut all = vec![0; AGG.words()];
        for (i, value) in [9i64, -2, 0, 2, 3].into_iter().enumerate() {
            AGG.update(&mut all, value.cast_unsigned(), 100_000_000 * i as u64 + 1);
        }
        let rows = rows(AGG, &points(AGG, &all), 4);
        assert_eq!(rows.iter().map(|(_, v)| v.unwrap()).collect::<Vec<_>>(), [-2, 0, 2, 3]);
        let text = text(AGG, &rows, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 8);
        assert_eq!(lines[0], format!("{:13}-2{:50}3", "", ""), "{text}");
        assert!(lines[2].ends_with("| -2") && lines[2].contains('.') && lines[5].ends_with("* 3"), "{text}");
        assert!(lines[6].ends_with(&format!(" v{}v", "_".repeat(51))));
    }

    #[test]
    fn an_interval_without_a_value_is_a_gap_and_left_out_for_machines() {
        let mut all = vec![0; AGG.words()];
        AGG.update(&mut all, 5, 1);
        AGG.update(&mut all, 7, 200_000_000);
        let rows = rows(AGG, &points(AGG, &all), 2);
        assert_eq!(rows.iter().map(|(_, v)| *v).collect::<Vec<_>>(), [Some(5), None, Some(7)]);
        assert_eq!(json(&rows, false).matches("interval_start").count(), 2);
        assert!(text(AGG, &rows, false).lines().nth(3).unwrap().ends_with("| -"));
    }
}
