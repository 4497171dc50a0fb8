//! Mean, spread, least and middle of some runs.
//!
//! For:     every benchmark's report.
//! State:   the runs.
//! Context: control.
//! Keeps:   nothing.
//! Checked: tests below.

/// What a reader wants to know of a list of results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The arithmetic mean.
    pub mean: f64,
    /// The standard deviation of the sample.
    pub sd: f64,
    /// The least.
    pub min: f64,
    /// The middle.
    pub median: f64,
    /// The value that 99 of 100 do not exceed.
    pub p99: f64,
}

impl Summary {
    /// Summarises; all zero for an empty list.
    pub fn of(results: &[f64]) -> Summary {
        if results.is_empty() {
            return Summary { mean: 0.0, sd: 0.0, min: 0.0, median: 0.0, p99: 0.0 };
        }
        let mut sorted = results.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let squares: f64 = sorted.iter().map(|x| (x - mean).powi(2)).sum();
        let sd = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        let median = if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        let p99 = sorted[((n * 99).div_ceil(100)).clamp(1, n) - 1];
        Summary { mean, sd, min: sorted[0], median, p99 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_four_numbers_is_right() {
        let s = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((s.mean, s.min, s.median, s.p99), (2.5, 1.0, 2.5, 4.0));
        assert!((s.sd - 1.2910).abs() < 1e-3);
    }
}
