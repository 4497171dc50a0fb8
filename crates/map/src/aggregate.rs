//! What a value does to the words of an aggregation.
//!
//! For:     tables of aggregates; whoever shows them.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   A1 words of CPUs taken together give what one CPU would have, given all values.
//!          A2 no value and no parameter leads to a word that is not there.
//! Checked: tests below (A1, A2), tests/programs/table.rs.

/// An aggregation. `signed`: of the values that are given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Agg {
    /// How many.
    Count,
    /// Their sum.
    Sum { signed: bool },
    /// The smallest.
    Min { signed: bool },
    /// The largest.
    Max { signed: bool },
    /// The average.
    Avg { signed: bool },
    /// Number, sum and average.
    Stats { signed: bool },
    /// A histogram of 2^bits buckets a power of two.
    Hist { bits: u8 },
    /// A histogram of buckets of `step` from `min` to `max`.
    Lhist { min: i64, max: i64, step: i64 },
    /// The last `num` intervals of so many nanoseconds.
    Tseries { interval: u64, num: u32, how: SeriesKind, signed: bool },
}

/// What an interval of a series keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum SeriesKind {
    Last,
    Avg,
    Max,
    Min,
    Sum,
}

/// What one value changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Adds to a word.
    Add { word: usize, n: u64 },
    /// Adds 1 to the first word, the value to the second.
    AddBoth,
    /// Raises the first word to this, and sets the second.
    Raise(u64),
    /// Changes the four words of an interval.
    Series { epoch: u64, slot: usize },
}

impl Agg {
    /// How many words of eight bytes each CPU has for a key:
    ///
    /// | of | words |
    /// | --- | --- |
    /// | count, sum | the number |
    /// | min, max | the number's rank, and 1 once there is one |
    /// | avg, stats | count, sum |
    /// | hist | negative values, then `1 << bits` buckets a power of two |
    /// | lhist | below `min`, each step, from `max` on |
    /// | tseries | for each interval, at the epoch modulo their number: epoch + 1, value, count, time of the last |
    pub fn words(self) -> usize {
        match self {
            Agg::Count | Agg::Sum { .. } => 1,
            Agg::Min { .. } | Agg::Max { .. } | Agg::Avg { .. } | Agg::Stats { .. } => 2,
            Agg::Hist { bits } => (65 << bits.min(5)) + 1,
            Agg::Lhist { min, max, step } => steps(min, max, step).saturating_add(2),
            Agg::Tseries { num, .. } => 4 * num.max(1) as usize,
        }
    }

    /// True if words are added up, so that a number can be taken off by adding.
    pub(crate) fn is_sum(self) -> bool {
        !matches!(self, Agg::Min { .. } | Agg::Max { .. } | Agg::Tseries { .. })
    }

    #[inline(always)]
    pub(crate) fn effect(self, value: u64, stamp: u64) -> Effect {
        match self {
            Agg::Count => Effect::Add { word: 0, n: 1 },
            Agg::Sum { .. } => Effect::Add { word: 0, n: value },
            Agg::Avg { .. } | Agg::Stats { .. } => Effect::AddBoth,
            Agg::Min { signed } => Effect::Raise(!rank(value, signed)),
            Agg::Max { signed } => Effect::Raise(rank(value, signed)),
            Agg::Hist { bits } => {
                Effect::Add { word: hist_bucket(value.cast_signed(), bits).min(self.words() - 1), n: 1 }
            }
            Agg::Lhist { min, max, step } => {
                Effect::Add { word: lhist_bucket(value.cast_signed(), min, max, step), n: 1 }
            }
            Agg::Tseries { interval, num, .. } => {
                let epoch = stamp / interval.max(1);
                Effect::Series { epoch, slot: 4 * (epoch % u64::from(num.max(1))) as usize }
            }
        }
    }

    /// Takes a value into the words of one CPU, which the caller has alone.
    pub fn update(self, at: &mut [u64], value: u64, stamp: u64) {
        match self.effect(value, stamp) {
            Effect::Add { word, n } => {
                if let Some(word) = at.get_mut(word) {
                    *word = word.wrapping_add(n);
                }
            }
            Effect::AddBoth => {
                if let [count, sum, ..] = at {
                    (*count, *sum) = (count.wrapping_add(1), sum.wrapping_add(value));
                }
            }
            Effect::Raise(to) => {
                if let [most, is_there, ..] = at {
                    (*most, *is_there) = ((*most).max(to), 1);
                }
            }
            Effect::Series { epoch, slot } => {
                let four = at.get_mut(slot..).and_then(<[u64]>::first_chunk_mut);
                if let (Some(four), Agg::Tseries { how, signed, .. }) = (four, self) {
                    *four = in_series(*four, epoch, value, stamp, how, signed);
                }
            }
        }
    }

    /// Takes the words of one CPU into those of all.
    pub(crate) fn merge_into(self, all: &mut [u64], cpu: &[u64]) {
        match self {
            Agg::Min { .. } | Agg::Max { .. } => {
                if let ([most, is_there, ..], [to, 1..=u64::MAX, ..]) = (all, cpu) {
                    (*most, *is_there) = ((*most).max(*to), 1);
                }
            }
            Agg::Tseries { how, signed, .. } => {
                for (to, from) in all.as_chunks_mut::<4>().0.iter_mut().zip(cpu.as_chunks::<4>().0) {
                    merge_series(to, from, how, signed);
                }
            }
            _ => all.iter_mut().zip(cpu).for_each(|(a, b)| *a = a.wrapping_add(*b)),
        }
    }

    /// The words over all CPUs as they are shown: of an extreme the number, not its rank.
    pub(crate) fn shown(self, all: &mut [u64]) {
        let [most, 1..=u64::MAX, ..] = all else { return };
        match self {
            Agg::Min { signed } => *most = rank(!*most, signed),
            Agg::Max { signed } => *most = rank(*most, signed),
            _ => {}
        }
    }

    /// The words of several CPUs as one who shows them wants them.
    #[cfg(feature = "std")]
    pub fn merge<'a>(self, cpus: impl IntoIterator<Item = &'a [u64]>) -> Vec<u64> {
        let mut all = vec![0; self.words()];
        cpus.into_iter().for_each(|cpu| self.merge_into(&mut all, cpu));
        self.shown(&mut all);
        all
    }

    /// One number of words that were merged: count, sum, extreme, average.
    pub fn number(self, at: &[u64]) -> u64 {
        let word = |n: usize| at.get(n).copied().unwrap_or(0);
        match self {
            Agg::Count | Agg::Sum { .. } | Agg::Min { .. } | Agg::Max { .. } => word(0),
            Agg::Avg { signed } | Agg::Stats { signed } => average(word(0), word(1), signed),
            Agg::Hist { .. } | Agg::Lhist { .. } => at.iter().fold(0, |sum, n| sum.wrapping_add(*n)),
            Agg::Tseries { .. } => at.iter().step_by(4).copied().max().unwrap_or(0),
        }
    }

    /// As four words.
    pub(crate) fn to_words(self) -> [u64; 4] {
        let sign = |signed: bool| u64::from(signed) << 8;
        match self {
            Agg::Count => [1, 0, 0, 0],
            Agg::Sum { signed } => [2 | sign(signed), 0, 0, 0],
            Agg::Min { signed } => [3 | sign(signed), 0, 0, 0],
            Agg::Max { signed } => [4 | sign(signed), 0, 0, 0],
            Agg::Avg { signed } => [5 | sign(signed), 0, 0, 0],
            Agg::Stats { signed } => [6 | sign(signed), 0, 0, 0],
            Agg::Hist { bits } => [7, u64::from(bits), 0, 0],
            Agg::Lhist { min, max, step } => {
                [8, min.cast_unsigned(), max.cast_unsigned(), step.cast_unsigned()]
            }
            Agg::Tseries { interval, num, how, signed } => {
                [9 | sign(signed), interval, u64::from(num), how as u64]
            }
        }
    }

    /// The aggregation that these words are; `None` for others.
    #[inline(always)]
    pub(crate) fn from_words(words: [u64; 4]) -> Option<Agg> {
        let [first, a, b, c] = words;
        let signed = first & 1 << 8 != 0;
        Some(match first & 0xff {
            1 => Agg::Count,
            2 => Agg::Sum { signed },
            3 => Agg::Min { signed },
            4 => Agg::Max { signed },
            5 => Agg::Avg { signed },
            6 => Agg::Stats { signed },
            7 => Agg::Hist { bits: a as u8 },
            8 => Agg::Lhist { min: a.cast_signed(), max: b.cast_signed(), step: c.cast_signed() },
            9 => {
                let how = match c {
                    0 => SeriesKind::Last,
                    1 => SeriesKind::Avg,
                    2 => SeriesKind::Max,
                    3 => SeriesKind::Min,
                    _ => SeriesKind::Sum,
                };
                Agg::Tseries { interval: a, num: b as u32, how, signed }
            }
            _ => return None,
        })
    }
}

/// A number whose order without a sign is that of the value; and back.
#[inline(always)]
fn rank(value: u64, signed: bool) -> u64 {
    value ^ u64::from(signed) << 63
}

fn is_less(signed: bool, a: u64, b: u64) -> bool {
    rank(a, signed) < rank(b, signed)
}

/// An interval with one value more.
pub(crate) fn in_series(
    four: [u64; 4],
    epoch: u64,
    value: u64,
    stamp: u64,
    how: SeriesKind,
    signed: bool,
) -> [u64; 4] {
    if four[0] != epoch.wrapping_add(1) {
        // Of single values the later one stays, and what has no time is before all: as in bpftrace.
        let value = if how == SeriesKind::Last && stamp == 0 { 0 } else { value };
        return [epoch.wrapping_add(1), value, 1, stamp];
    }
    let new = match how {
        SeriesKind::Last if stamp > four[3] => value,
        SeriesKind::Avg | SeriesKind::Sum => four[1].wrapping_add(value),
        SeriesKind::Max if is_less(signed, four[1], value) => value,
        SeriesKind::Min if is_less(signed, value, four[1]) => value,
        _ => four[1],
    };
    [four[0], new, four[2].wrapping_add(1), four[3].max(stamp)]
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
    to[2] = to[2].wrapping_add(from[2]);
    to[3] = to[3].max(from[3]);
}

/// The bucket of a value: 0 for those below 0.
#[inline(always)]
pub fn hist_bucket(value: i64, bits: u8) -> usize {
    let Ok(value) = u64::try_from(value) else { return 0 };
    let bits = bits.min(5);
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

/// Whole steps between two bounds.
fn steps(min: i64, max: i64, step: i64) -> usize {
    if max <= min {
        return 0;
    }
    (distance(min, max) / step.max(1).cast_unsigned()) as usize
}

/// From one number up to another: it fits 64 bits without a sign.
#[inline(always)]
fn distance(from: i64, to: i64) -> u64 {
    to.cast_unsigned().wrapping_sub(from.cast_unsigned())
}

#[inline(always)]
fn lhist_bucket(value: i64, min: i64, max: i64, step: i64) -> usize {
    if value < min {
        return 0;
    }
    let last = steps(min, max, step);
    if value >= max {
        return last + 1;
    }
    // The last step may be cut short by `max`, and counts with what lies beyond.
    ((distance(min, value) / step.max(1).cast_unsigned()) as usize + 1).min(last + 1)
}

/// A sum over a count, towards 0.
pub fn average(count: u64, sum: u64, signed: bool) -> u64 {
    if count == 0 {
        return 0;
    }
    if !signed {
        return sum / count;
    }
    let size = sum.cast_signed().unsigned_abs() / count;
    if sum.cast_signed() < 0 { size.wrapping_neg() } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Agg> {
        let how = [SeriesKind::Last, SeriesKind::Avg, SeriesKind::Max, SeriesKind::Min, SeriesKind::Sum];
        let series = how.map(|how| Agg::Tseries { interval: 10, num: 3, how, signed: true });
        let mut all = vec![
            Agg::Count,
            Agg::Sum { signed: true },
            Agg::Min { signed: true },
            Agg::Max { signed: true },
            Agg::Min { signed: false },
            Agg::Max { signed: false },
            Agg::Avg { signed: true },
            Agg::Stats { signed: false },
            Agg::Hist { bits: 2 },
            Agg::Lhist { min: -3, max: 9, step: 3 },
            Agg::Lhist { min: i64::MIN, max: i64::MAX, step: 1 << 60 },
            Agg::Lhist { min: 5, max: 5, step: 0 },
        ];
        all.extend(series);
        all
    }

    #[test]
    fn each_value_is_in_the_bucket_whose_bounds_hold_it() {
        let values = (0..64).flat_map(|p| [-1i64, 0, 1, 5].map(|d| (1i64 << p).wrapping_add(d)));
        for value in values.chain([0, i64::MAX]) {
            for bits in 0..=5 {
                let bucket = hist_bucket(value, bits);
                assert!(bucket < Agg::Hist { bits }.words(), "{value} {bits}");
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
        for agg in all() {
            let mut cpus = [vec![0; agg.words()], vec![0; agg.words()], vec![0; agg.words()]];
            for (i, value) in values.iter().enumerate() {
                agg.update(&mut cpus[i % 2], value.cast_unsigned(), i as u64);
                agg.update(&mut cpus[2], value.cast_unsigned(), i as u64);
            }
            let one = agg.merge([cpus[2].as_slice()]);
            assert_eq!(agg.merge(cpus[..2].iter().map(Vec::as_slice)), one, "{agg:?}");
        }
        let of = |agg: Agg| {
            let mut words = vec![0; agg.words()];
            values.iter().for_each(|v| agg.update(&mut words, v.cast_unsigned(), 0));
            agg.number(&agg.merge([words.as_slice()])).cast_signed()
        };
        let sum: i64 = values.iter().sum();
        assert_eq!(of(Agg::Min { signed: true }), -7);
        assert_eq!(of(Agg::Max { signed: true }), 15);
        assert_eq!(of(Agg::Max { signed: false }), -1, "the largest without a sign");
        assert_eq!(of(Agg::Min { signed: false }), 0);
        assert_eq!((of(Agg::Count), of(Agg::Sum { signed: true })), (50, sum));
        assert_eq!(of(Agg::Avg { signed: true }), sum / 50);
    }

    #[test]
    fn every_aggregation_is_itself_again_and_every_value_has_a_word() {
        for agg in all() {
            assert_eq!(Agg::from_words(agg.to_words()), Some(agg));
            let edges = [i64::MIN, -8, -4, -3, 0, 3, 8, 9, 10, i64::MAX - 1, i64::MAX];
            for (value, stamp) in edges.into_iter().zip([0, 9, 10, 11, u64::MAX - 1].into_iter().cycle()) {
                match agg.effect(value.cast_unsigned(), stamp) {
                    Effect::Add { word, .. } => assert!(word < agg.words(), "{agg:?} {value}"),
                    Effect::Series { slot, .. } => assert!(slot + 4 <= agg.words(), "{agg:?} {value}"),
                    Effect::AddBoth | Effect::Raise(_) => assert_eq!(agg.words(), 2),
                }
            }
        }
        assert_eq!(Agg::from_words([0; 4]), None);
    }

    #[test]
    fn a_linear_histogram_has_buckets_for_what_is_outside() {
        for (value, bucket) in
            [(-1, 0), (0, 1), (1, 1), (2, 2), (9, 5), (10, 6), (i64::MAX, 6), (i64::MIN, 0)]
        {
            assert_eq!(lhist_bucket(value, 0, 10, 2), bucket, "{value}");
        }
    }

    #[test]
    fn an_average_goes_towards_zero() {
        for (count, sum, signed, wanted) in
            [(0, 5, true, 0), (2, -7, true, -3), (2, 7, true, 3), (3, i64::MIN, true, i64::MIN / 3)]
        {
            assert_eq!(average(count, sum.cast_unsigned(), signed).cast_signed(), wanted);
        }
        assert_eq!(average(2, u64::MAX, false), u64::MAX / 2);
    }
}
