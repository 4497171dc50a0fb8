//! What a value does to the words of an aggregation.
//!
//! For:     maps in the controller; the words of several CPUs into one.
//! State:   none.
//! Context: control.
//! Keeps:   A1 words of CPUs taken together give what one CPU would have, given all values.
//! Checked: tests below.

use crate::program::words;
use crate::types::{Agg, SeriesKind};

/// Takes a value in.
pub fn update(agg: Agg, at: &mut [u64], value: u64, stamp: u64) {
    match agg {
        Agg::Count => at[0] = at[0].wrapping_add(1),
        Agg::Sum { .. } => at[0] = at[0].wrapping_add(value),
        Agg::Min { signed } => extreme(at, value, is_less(signed, value, at[0])),
        Agg::Max { signed } => extreme(at, value, is_less(signed, at[0], value)),
        Agg::Avg { .. } | Agg::Stats { .. } => {
            at[0] = at[0].wrapping_add(1);
            at[1] = at[1].wrapping_add(value);
        }
        Agg::Hist { bits } => bump(at, hist_bucket(value.cast_signed(), bits)),
        Agg::Lhist { min, max, step } => bump(at, lhist_bucket(value.cast_signed(), min, max, step)),
        Agg::Tseries { interval, num, how, signed } => {
            let epoch = stamp / interval.max(1);
            let slot = 4 * (epoch % u64::from(num.max(1))) as usize;
            if let Some(four) = at.get_mut(slot..slot + 4) {
                in_series(four, epoch, value, stamp, how, signed);
            }
        }
    }
}

fn extreme(at: &mut [u64], value: u64, is_better: bool) {
    if at[1] == 0 || is_better {
        (at[0], at[1]) = (value, 1);
    }
}

fn is_less(signed: bool, a: u64, b: u64) -> bool {
    if signed { a.cast_signed() < b.cast_signed() } else { a < b }
}

fn bump(at: &mut [u64], bucket: usize) {
    let last = at.len() - 1;
    let bucket = bucket.min(last);
    at[bucket] = at[bucket].wrapping_add(1);
}

fn in_series(four: &mut [u64], epoch: u64, value: u64, stamp: u64, how: SeriesKind, signed: bool) {
    if four[0] != epoch + 1 {
        // Of single values the later one stays, and what has no time is before all: as in bpftrace.
        let value = if how == SeriesKind::Last && stamp == 0 { 0 } else { value };
        four.copy_from_slice(&[epoch + 1, value, 1, stamp]);
        return;
    }
    four[1] = match how {
        SeriesKind::Last if stamp > four[3] => value,
        SeriesKind::Avg | SeriesKind::Sum => four[1].wrapping_add(value),
        SeriesKind::Max if is_less(signed, four[1], value) => value,
        SeriesKind::Min if is_less(signed, value, four[1]) => value,
        _ => four[1],
    };
    four[2] += 1;
    four[3] = four[3].max(stamp);
}

/// The bucket of a value: 0 for those below 0.
pub fn hist_bucket(value: i64, bits: u8) -> usize {
    let Ok(value) = u64::try_from(value) else { return 0 };
    let per_power = 1u64 << bits;
    if value < 2 * per_power {
        return 1 + value as usize;
    }
    let shift = value.ilog2() - u32::from(bits);
    let within = (value >> shift) - per_power;
    1 + ((u64::from(shift + 1) << bits) + within) as usize
}

/// The lowest value of bucket `1 + i`.
pub fn hist_low(i: usize, bits: u8) -> u128 {
    let per_power = 1u128 << bits;
    if i as u128 <= 2 * per_power {
        return i as u128;
    }
    let power = (i >> bits) as u32 - 1;
    (per_power + (i as u128 & (per_power - 1))) << power
}

fn lhist_bucket(value: i64, min: i64, max: i64, step: i64) -> usize {
    if value < min {
        return 0;
    }
    let from_min = i128::from(value.min(max)) - i128::from(min);
    let last = (i128::from(max) - i128::from(min)) / i128::from(step.max(1));
    if value >= max { last as usize + 1 } else { (from_min / i128::from(step.max(1))) as usize + 1 }
}

/// The words of several CPUs as those of one.
pub fn merge<'a>(agg: Agg, cpus: impl IntoIterator<Item = &'a [u64]>) -> Vec<u64> {
    let mut all = vec![0; words(agg)];
    for cpu in cpus {
        match agg {
            Agg::Min { .. } | Agg::Max { .. } if cpu[1] == 0 => {}
            Agg::Min { .. } | Agg::Max { .. } => update(agg, &mut all, cpu[0], 0),
            Agg::Tseries { how, signed, .. } => {
                for (to, from) in all.as_chunks_mut::<4>().0.iter_mut().zip(cpu.as_chunks::<4>().0) {
                    merge_series(to, from, how, signed);
                }
            }
            _ => all.iter_mut().zip(cpu).for_each(|(a, b)| *a = a.wrapping_add(*b)),
        }
    }
    all
}

fn merge_series(to: &mut [u64; 4], from: &[u64; 4], how: SeriesKind, signed: bool) {
    if to[0] != from[0] {
        if from[0] > to[0] {
            *to = *from;
        }
        return;
    }
    let takes = match how {
        SeriesKind::Avg | SeriesKind::Sum => {
            to[1] = to[1].wrapping_add(from[1]);
            false
        }
        SeriesKind::Last => from[3] > to[3],
        SeriesKind::Max => is_less(signed, to[1], from[1]),
        SeriesKind::Min => is_less(signed, from[1], to[1]),
    };
    if takes {
        to[1] = from[1];
    }
    to[2] += from[2];
    to[3] = to[3].max(from[3]);
}

/// One number for an aggregation: count, sum, extreme, average.
pub fn number(agg: Agg, at: &[u64]) -> u64 {
    match agg {
        Agg::Count | Agg::Sum { .. } | Agg::Min { .. } | Agg::Max { .. } => at[0],
        Agg::Avg { signed } | Agg::Stats { signed } => average(at[0], at[1], signed),
        Agg::Hist { .. } | Agg::Lhist { .. } => at.iter().fold(0, |sum, n| sum.wrapping_add(*n)),
        Agg::Tseries { .. } => at.iter().step_by(4).copied().max().unwrap_or(0),
    }
}

/// A sum over a count, towards 0.
pub fn average(count: u64, sum: u64, signed: bool) -> u64 {
    match (count, signed) {
        (0, _) => 0,
        (count, true) => (i128::from(sum.cast_signed()) / i128::from(count)) as u64,
        (count, false) => sum / count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_the_bucket_whose_bounds_hold_it() {
        let values = (0..64).flat_map(|p| [-1i64, 0, 1, 5].map(|d| (1i64 << p).wrapping_add(d)));
        for value in values.chain([0, i64::MAX]) {
            for bits in 0..=5 {
                let bucket = hist_bucket(value, bits);
                assert!(bucket < words(Agg::Hist { bits }), "{value} {bits}");
                if value < 0 {
                    assert_eq!(bucket, 0);
                } else {
                    let (low, high) = (hist_low(bucket - 1, bits), hist_low(bucket, bits));
                    assert!(low <= value as u128 && (value as u128) < high, "{value} {bits}: {low} {high}");
                }
            }
        }
    }

    #[test]
    fn words_of_two_cpus_are_those_of_one_that_had_all_values() {
        let values: Vec<i64> = (0..50).map(|i| (i * 37) % 23 - 7).collect();
        let how = [SeriesKind::Last, SeriesKind::Avg, SeriesKind::Max, SeriesKind::Min, SeriesKind::Sum];
        let series = how.map(|how| Agg::Tseries { interval: 10, num: 3, how, signed: true });
        let aggs = [
            Agg::Count,
            Agg::Sum { signed: true },
            Agg::Min { signed: true },
            Agg::Max { signed: true },
            Agg::Avg { signed: true },
            Agg::Stats { signed: false },
            Agg::Hist { bits: 2 },
            Agg::Lhist { min: -3, max: 9, step: 3 },
        ];
        for agg in aggs.into_iter().chain(series) {
            let mut cpus = [vec![0; words(agg)], vec![0; words(agg)], vec![0; words(agg)]];
            for (i, value) in values.iter().enumerate() {
                update(agg, &mut cpus[i % 2], value.cast_unsigned(), i as u64);
                update(agg, &mut cpus[2], value.cast_unsigned(), i as u64);
            }
            assert_eq!(merge(agg, cpus[..2].iter().map(Vec::as_slice)), cpus[2], "{agg:?}");
        }
    }

    #[test]
    fn a_linear_histogram_has_buckets_for_what_is_outside() {
        for (value, bucket) in
            [(-1, 0), (0, 1), (1, 1), (2, 2), (9, 5), (10, 6), (i64::MAX, 6), (i64::MIN, 0)]
        {
            assert_eq!(lhist_bucket(value, 0, 10, 2), bucket, "{value}");
        }
    }
}
