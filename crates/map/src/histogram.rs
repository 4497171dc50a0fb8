//! Counts by size of a value.
//!
//! For:     latencies and sizes.
//! State:   a per-CPU array with one sum per bucket.
//! Context: hit, signal, target; reading also in another process.
//! Keeps:   B1 each value counts in one bucket, and the buckets' bounds say which.
//! Checked: tests below, tests/other_process.rs.

use crate::PercpuArray;

/// How values are put into buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buckets {
    /// Bucket 0 for 0, bucket n for values whose highest bit is n - 1.
    Log2,
    /// One below `min`, then steps, then one from `max` on.
    Linear {
        /// Where the first step begins.
        min: u64,
        /// Where the last one ends.
        max: u64,
        /// The width of each; not 0.
        step: u64,
    },
    /// One for each of 0 to 3, then four for each power of two below the one of this exponent, 2 to 63; what is longer counts in
    /// the last.
    Quarters {
        /// The exponent.
        bits: u32,
    },
}

impl Buckets {
    /// Of durations in nanoseconds: up to 2^40, 18 minutes.
    pub const DURATIONS: Buckets = Buckets::Quarters { bits: 40 };

    /// How many there are.
    pub const fn count(self) -> u32 {
        match self {
            Self::Log2 => 65,
            Self::Quarters { bits } => (bits - 1) * 4,
            Self::Linear { min, max, step } => {
                let step = if step == 0 { 1 } else { step };
                let steps = max.saturating_sub(min).div_ceil(step);
                2 + if steps < 1 << 20 { steps as u32 } else { 1 << 20 }
            }
        }
    }

    /// The bucket of a value.
    #[inline(always)]
    pub fn of(self, value: u64) -> u32 {
        match self {
            Self::Log2 => u64::BITS - value.leading_zeros(),
            Self::Quarters { bits } => {
                let value = value.min((1 << bits) - 1);
                if value < 4 {
                    return value as u32;
                }
                let exponent = u64::BITS - 1 - value.leading_zeros();
                (exponent - 1) * 4 + ((value >> (exponent - 2)) & 3) as u32
            }
            Self::Linear { min, .. } if value < min => 0,
            Self::Linear { max, .. } if value >= max => self.count() - 1,
            Self::Linear { min, step, .. } => {
                (1 + (value - min) / step.max(1)).min(u64::from(self.count() - 1)) as u32
            }
        }
    }

    /// The least value of a bucket.
    pub fn from(self, bucket: u32) -> u64 {
        match self {
            Self::Log2 if bucket == 0 => 0,
            Self::Log2 => 1 << (bucket - 1).min(63),
            Self::Quarters { .. } if bucket < 4 => u64::from(bucket),
            Self::Quarters { .. } => (4 + u64::from(bucket % 4)) << (bucket / 4 - 1).min(60),
            Self::Linear { .. } if bucket == 0 => 0,
            Self::Linear { max, .. } if bucket >= self.count() - 1 => max,
            Self::Linear { min, step, .. } => min + (u64::from(bucket) - 1) * step.max(1),
        }
    }
}

/// Counts per bucket, and the sum of the values.
#[derive(Clone)]
pub struct Histogram {
    counts: PercpuArray,
    buckets: Buckets,
}

impl Histogram {
    /// A new histogram without values.
    ///
    /// # Errors
    /// [`crate::Error::Setup`].
    #[cfg(all(feature = "std", not(loom)))]
    pub fn create(arena: &objcache::Arena, buckets: Buckets) -> Result<Histogram, crate::Error> {
        Ok(Histogram { counts: PercpuArray::create(arena, buckets.count() + 1)?, buckets })
    }

    /// A histogram on sums that lie somewhere already: one for each bucket and one more.
    ///
    /// # Errors
    /// [`crate::Error::Length`] if there are fewer: values would be dropped.
    pub fn on(counts: PercpuArray, buckets: Buckets) -> Result<Histogram, crate::Error> {
        let (given, wanted) = (counts.entries() as usize, buckets.count() as usize + 1);
        if given < wanted {
            Err(crate::Error::Length { given, wanted })
        } else {
            Ok(Histogram { counts, buckets })
        }
    }

    /// The sums behind it.
    pub fn counts(&self) -> &PercpuArray {
        &self.counts
    }

    /// Counts a value.
    #[inline(always)]
    pub fn record(&self, value: u64) {
        self.counts.add(self.buckets.of(value), 1);
        self.counts.add(self.buckets.count(), value);
    }

    /// How many values a bucket has.
    pub fn count(&self, bucket: u32) -> u64 {
        if bucket < self.buckets.count() { self.counts.sum(bucket) } else { 0 }
    }

    /// The sum of all values.
    pub fn total(&self) -> u64 {
        self.counts.sum(self.buckets.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_between_the_bounds_of_its_bucket() {
        let kinds = [
            Buckets::Log2,
            Buckets::Linear { min: 10, max: 95, step: 10 },
            Buckets::Linear { min: 0, max: 9, step: 3 },
            Buckets::Quarters { bits: 8 },
            Buckets::DURATIONS,
        ];
        for kind in kinds {
            for value in (0..300).chain([u64::MAX, 1 << 63, (1 << 63) - 1]) {
                let bucket = kind.of(value);
                assert!(bucket < kind.count() && kind.from(bucket) <= value, "{kind:?} {value}");
                assert!(bucket + 1 == kind.count() || value < kind.from(bucket + 1), "{kind:?} {value}");
            }
        }
    }

    #[test]
    fn a_bucket_begins_where_the_one_before_ends() {
        for kind in [Buckets::Log2, Buckets::DURATIONS, Buckets::Quarters { bits: 2 }] {
            for bucket in 1..kind.count() {
                let lowest = kind.from(bucket);
                assert_eq!((kind.of(lowest), kind.of(lowest - 1)), (bucket, bucket - 1), "{kind:?}");
            }
        }
    }
}
