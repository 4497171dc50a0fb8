//! Histograms as text and JSON.
//!
//! For:     maps of `hist` and `lhist`.
//! State:   none.
//! Context: control.
//! Keeps:   the rows from the first to the last that is not 0.
//! Checked: tests below.

use super::show::Shown;
use crate::types::Agg;
use map::hist_low;

const WIDTH: usize = 52;
const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// One row: its lower and upper bound, if it has them, and how many.
struct Row {
    low: Option<Shown>,
    high: Option<Shown>,
    count: u64,
}

fn rows(agg: Agg, counts: &[u64], div: i128) -> Vec<Row> {
    let (Some(first), Some(last)) = (counts.iter().position(|n| *n > 0), counts.iter().rposition(|n| *n > 0))
    else {
        return Vec::new();
    };
    let of = |i: usize| {
        let (low, high) = match agg {
            Agg::Hist { bits } => {
                ((i > 0).then(|| power_label(i.saturating_sub(1), bits)), Some(power_label(i, bits)))
            }
            Agg::Lhist { min, max, step } => {
                let edge = |i: i128| i128::from(min) + i * i128::from(step);
                let (low, high) = (edge(i as i128 - 1), edge(i as i128));
                (
                    (i > 0).then(|| linear_label(low, step)),
                    (high <= i128::from(max)).then(|| linear_label(high, step)),
                )
            }
            _ => (None, None),
        };
        let div = if matches!(agg, Agg::Lhist { .. }) { 1 } else { div.max(1) as u64 };
        let high = if i == 0 && matches!(agg, Agg::Hist { .. }) { Some(Shown::Int(0)) } else { high };
        Row { low, high, count: counts[i] / div }
    };
    (first..=last).map(of).collect()
}

/// The lowest value of bucket `1 + i`, with a unit where buckets are wider than one.
fn power_label(i: usize, bits: u8) -> Shown {
    let value = hist_low(i, bits);
    if i <= 2 << bits {
        return Shown::Int(value as i128);
    }
    let power = (i >> bits) as u32 - 1;
    let decade = (power / 10) as usize;
    Shown::Named(format!("{}{}", value >> (10 * decade), UNITS[decade.min(6)]), value as u64)
}

fn linear_label(number: i128, step: i64) -> Shown {
    const KILO: i128 = 1024;
    if i128::from(step) % KILO != 0 {
        return Shown::Int(number);
    }
    let text = match number {
        0 => "0".into(),
        n if n % (KILO * KILO) == 0 => format!("{}M", n / (KILO * KILO)),
        n if n % KILO == 0 => format!("{}K", n / KILO),
        n => n.to_string(),
    };
    Shown::Named(text, number as u64)
}

/// One line a bucket.
pub fn text(agg: Agg, counts: &[u64], div: i128) -> String {
    let rows = rows(agg, counts, div);
    let most = rows.iter().map(|row| row.count).max().unwrap_or(0);
    let is_hist = matches!(agg, Agg::Hist { .. });
    let say = |shown: &Shown| String::from_utf8_lossy(&shown.text()).into_owned();
    let line = |row: &Row| {
        let head = match (&row.low, &row.high) {
            (Some(Shown::Int(low)), Some(Shown::Int(high))) if is_hist && low + 1 == *high => {
                format!("[{low}]")
            }
            (Some(low), Some(high)) => format!("[{}, {})", say(low), say(high)),
            (None, Some(high)) => format!("(..., {})", say(high)),
            (Some(low), None) => format!("[{}, ...)", say(low)),
            (None, None) => String::new(),
        };
        let bar = (row.count as f32 / most as f32 * WIDTH as f32) as usize;
        format!("{head:<16}{:>8} |{:<WIDTH$}|\n", row.count, "@".repeat(bar.min(WIDTH)))
    };
    rows.iter().map(line).collect()
}

/// For machines; `max` is the highest value of the bucket.
pub fn json(agg: Agg, counts: &[u64], div: i128) -> String {
    let less = |shown: &Shown| match shown {
        Shown::Int(n) => Shown::Int(n - 1).json(),
        Shown::Named(_, n) => Shown::Int(i128::from(n.wrapping_sub(1).cast_signed())).json(),
        other => other.json(),
    };
    let of = |row: &Row| {
        let low = row.low.as_ref().map_or(String::new(), |low| format!("\"min\": {}, ", low.json()));
        let high = row.high.as_ref().map_or(String::new(), |high| format!("\"max\": {}, ", less(high)));
        format!("{{{low}{high}\"count\": {}}}", row.count)
    };
    format!("[{}]", rows(agg, counts, div).iter().map(of).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(agg: Agg, values: &[i64]) -> Vec<u64> {
        let mut counts = vec![0; agg.words()];
        values.iter().for_each(|value| agg.update(&mut counts, value.cast_unsigned(), 0));
        counts
    }

    #[test]
    fn powers_of_two_have_units_and_single_values_stand_alone() {
        let agg = Agg::Hist { bits: 0 };
        let counts = of(agg, &[-5, 0, 1, 2, 3, 3]);
        let lines: Vec<String> = text(agg, &counts, 1).lines().map(|l| l[..24].to_owned()).collect();
        assert_eq!(
            lines,
            [
                "(..., 0)               1",
                "[0]                    1",
                "[1]                    1",
                "[2, 4)                 3"
            ]
        );
        let line = text(agg, &of(agg, &[1 << 40]), 1);
        assert_eq!(line, format!("[1T, 2T)               1 |{}|\n", "@".repeat(52)));
        assert_eq!(json(agg, &of(agg, &[2]), 1), r#"[{"min": 2, "max": 3, "count": 1}]"#);
        assert_eq!(json(agg, &of(agg, &[-1]), 1), r#"[{"max": -1, "count": 1}]"#);
        assert_eq!(text(agg, &of(agg, &[]), 1), "");
    }

    #[test]
    fn linear_buckets_are_open_at_both_ends() {
        let agg = Agg::Lhist { min: 0, max: 4096, step: 2048 };
        let lines = text(agg, &of(agg, &[-1, 0, 3000, 5000]), 1);
        let heads: Vec<&str> = lines.lines().map(|l| l[..16].trim_end()).collect();
        assert_eq!(heads, ["(..., 0)", "[0, 2K)", "[2K, 4K)", "[4K, ...)"]);
        let single = Agg::Lhist { min: 0, max: 10, step: 1 };
        assert!(text(single, &of(single, &[5]), 1).starts_with("[5, 6) "));
        let one = Agg::Lhist { min: 0, max: 10, step: 10 };
        assert_eq!(
            json(one, &of(one, &[5, 10]), 1),
            r#"[{"min": 0, "max": 9, "count": 1},{"min": 10, "count": 1}]"#
        );
    }
}
