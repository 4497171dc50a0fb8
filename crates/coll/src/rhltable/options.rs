//! Describing a table before it is made.
//!
//! For:     `RhlTable::with_options`.
//! State:   the description.
//! Context: target, in set-up.
//! Keeps:   O1 bucket numbers are powers of two within the limits.
//! Checked: `tests/table.rs`.

use std::sync::Arc;

/// How a table is to be. Fields that are left alone have the kernel's values.
#[derive(Clone, Debug)]
pub struct Options {
    /// Buckets at the start; 64.
    pub initial_buckets: usize,
    /// Never fewer than this; 4.
    pub min_buckets: usize,
    /// Never more than this.
    pub max_buckets: usize,
    /// Refuse a new key beyond this number.
    pub max_keys: usize,
    /// Shrink when less than 30 % full; off.
    pub shrinks: bool,
    /// Leave resizing to calls of `maintain`; off.
    pub is_deferred: bool,
    /// The domain for readers; it must be declared for fast ones. `None`: one of its own.
    pub domain: Option<Arc<rcu::Domain>>,
    /// What is broken on purpose, for the torture test.
    #[cfg(feature = "broken")]
    #[doc(hidden)]
    pub broken: Option<Broken>,
}

/// Ways to break a table that its torture must notice.
#[cfg(feature = "broken")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A moved entry leaves its old chain before it is in the new one.
    UnlinkFirst,
    /// A lookup does not look in the newer array.
    OldOnly,
    /// Memory is reused at once.
    NoGracePeriod,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            initial_buckets: 64,
            min_buckets: 4,
            max_buckets: 1 << 31,
            max_keys: usize::MAX,
            shrinks: false,
            is_deferred: false,
            domain: None,
            #[cfg(feature = "broken")]
            broken: None,
        }
    }
}

impl Options {
    pub(super) fn settle(&mut self) {
        self.min_buckets = self.min_buckets.clamp(4, 1 << 31).next_power_of_two();
        self.max_buckets = self.max_buckets.clamp(self.min_buckets, 1 << 31).next_power_of_two();
        let wanted = self.initial_buckets.clamp(self.min_buckets, self.max_buckets);
        self.initial_buckets = wanted.next_power_of_two();
    }

    /// Is it broken in the way asked for? Always false in a build without the feature.
    #[cfg(feature = "broken")]
    pub(super) fn is_broken(&self, how: Broken) -> bool {
        self.broken == Some(how)
    }
}

/// `broken!(table, Way)`: false unless the feature is on and the table is broken so.
macro_rules! broken {
    ($table:expr, $how:ident) => {{
        #[cfg(feature = "broken")]
        {
            $table.options.is_broken(super::Broken::$how)
        }
        #[cfg(not(feature = "broken"))]
        {
            false
        }
    }};
}
pub(super) use broken;
