//! What a session keeps free for consumers that come while hits run.
//!
//! For:     `Session::attach_with_room`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: by use.

use crate::facts::program::{PROGRAM_CELLS, Programs};
use crate::facts::site::{Consumer, HISTOGRAM_CELLS};
use text::Flavour;

/// Room in the memory that a session shares with its process, beyond what it is attached with.
///
/// The memory is reserved at the attach and used as it is needed: a page that holds nothing takes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Consumers, 64 bytes each. A change writes a site's list anew beside the old one, which goes when no hit is in
    /// it any more: both need room.
    pub consumers: usize,
    /// Their cells, 8 bytes each in each CPU's copy. A count needs one, a histogram 65.
    pub cells: usize,
}

impl Room {
    /// For so many counting consumers in all, beside lists that are being replaced.
    pub fn for_counts(consumers: usize) -> Room {
        Room { consumers: consumers * 4, cells: consumers * 2 }
    }

    /// For so many programs in all, beside lists that are being replaced.
    pub fn for_programs(consumers: usize) -> Room {
        Room { consumers: consumers * 4, cells: consumers * 2 * PROGRAM_CELLS as usize }
    }

    /// For so many histograms in all, beside lists that are being replaced.
    pub fn for_histograms(consumers: usize) -> Room {
        Room { consumers: consumers * 4, cells: consumers * 2 * HISTOGRAM_CELLS as usize }
    }
}

/// What a session is attached with, beside its sites.
#[derive(Clone, Debug, Default)]
pub struct Attach {
    /// What a hit pays for who waits until it is over.
    pub flavour: Flavour,
    /// Room for consumers that come later. Hits then save four registers more, which such a consumer may want to see.
    pub room: Room,
    /// Programs that consumers run, now or later.
    pub programs: Programs,
}

/// Whether a consumer can come and go by itself: those that see calls belong to several sites at a time.
pub(crate) fn may_come_alone(consumer: Consumer) -> bool {
    matches!(consumer, Consumer::Count | Consumer::Log2Histogram { .. } | Consumer::Program { .. })
}
