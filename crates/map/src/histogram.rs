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
}

impl Buckets {
    /// How many there are.
    pub fn count(self) -> u32 {
        match self {
            Self::Log2 => 65,
            Self::Linear { min, max, step } => {
                2 + max.saturating_sub(min).div_ceil(step.max(1)).min(1 << 20) as u32
            }
        }
    }

    /// The bucket of a value.
    #[inline(always)]
    pub fn of(self, value: u64) -> u32 {
        match self {
            Self::Log2 => u64::BITS - value.leading_zeros(),
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
        ];
        for kind in kinds {
            for value in (0..300).chain([u64::MAX, 1 << 63, (1 << 63) - 1]) {
                let bucket = kind.of(value);
                assert!(bucket < kind.count() && kind.from(bucket) <= value, "{kind:?} {value}");
                assert!(bucket + 1 == kind.count() || value < kind.from(bucket + 1), "{kind:?} {value}");
            }
        }
    }
}
