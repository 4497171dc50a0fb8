//! What a session keeps free for consumers that come while hits run.
//!
//! For:     `Session::attach_with_room`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: by use.

use crate::facts::family::FamilyMaps;
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
    /// Whole probes, by [`Session::add_probes`](crate::Session::add_probes), near each of the modules that the session is
    /// attached with; their consumers and cells are of the above.
    pub probes: usize,
}

impl Room {
    /// For so many counting consumers in all, beside lists that are being replaced.
    pub fn for_counts(consumers: usize) -> Room {
        Room { consumers: consumers * 4, cells: consumers * 2, probes: 0 }
    }

    /// The same, and so many whole probes, each with a consumer.
    pub fn and_probes(self, probes: usize) -> Room {
        Room { consumers: self.consumers + 4 * probes, cells: self.cells + 4 * probes, probes }
    }

    /// Hooks of the probes that come later: a site has two at most, an entry and an exit.
    pub(crate) fn hooks(&self) -> usize {
        self.probes * 2
    }

    /// For so many programs in all, beside lists that are being replaced.
    pub fn for_programs(consumers: usize) -> Room {
        Room { consumers: consumers * 4, cells: consumers * 2 * PROGRAM_CELLS as usize, probes: 0 }
    }

    /// For so many histograms in all, beside lists that are being replaced.
    pub fn for_histograms(consumers: usize) -> Room {
        Room { consumers: consumers * 4, cells: consumers * 2 * HISTOGRAM_CELLS as usize, probes: 0 }
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
    /// Maps that the programs have together with those of other processes, in the place of their own.
    pub family: Option<FamilyMaps>,
}

/// Whether a consumer can come and go by itself: those that see calls belong to several sites at a time.
pub(crate) fn may_come_alone(consumer: Consumer) -> bool {
    matches!(consumer, Consumer::Count | Consumer::Log2Histogram { .. } | Consumer::Program { .. })
}
