//! What is tortured: one domain and the readers that may use it.
//!
//! For:     every thread of the test.
//! State:   the domain.
//! Context: control.
//! Keeps:   nothing; it only names calls.
//! Checked: by the runs.

use super::options::Options;
use rcu::{Domain, Fast, Fences, Flavour, FlavourSet, Lite, Normal, Rank, Sigsafe, UpDown, tasks};
use std::cell::Cell;

/// A kind of reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Normal,
    Sigsafe,
    Lite,
    Fast,
    UpDown,
    Holdout,
    OnFast,
}

impl Kind {
    /// True if `enter` can be stretched between fetching the rank and counting.
    pub fn has_gap(self) -> bool {
        !matches!(self, Kind::Holdout | Kind::OnFast)
    }
}

/// A section that was entered.
#[derive(Clone, Copy)]
pub struct Section {
    kind: Kind,
    rank: Rank,
}

/// The domain and its kinds of reader.
pub struct Subject {
    pub domain: &'static Domain,
    pub kinds: Vec<Kind>,
    /// All count by CPU, past the checks of the domain, which know only who enters and leaves by it.
    is_checked: bool,
}

impl Subject {
    /// Whether a grace period that begins behind readers without fences of their own makes one in their stead, where it is to.
    pub fn makes_fences(&self) -> bool {
        let (domain, before) = (self.domain, self.domain.block().heavy_fences());
        let is_fenceless = self.kinds.iter().any(|kind| matches!(kind, Kind::Lite | Kind::Fast));
        domain.synchronize();
        !is_fenceless || domain.fences() != Fences::Membarrier || domain.block().heavy_fences() > before
    }

    /// The subject of the options.
    pub fn new(options: &Options) -> Result<Subject, rcu::BuildError> {
        let made = |flavours: &[Flavour], kinds| {
            let set = FlavourSet(flavours.iter().fold(0, |set, f| set | f.bit()));
            let builder = Domain::builder("torture")
                .flavours(set)
                .checked(options.checked)
                .rseq(options.rseq)
                .reader_fences(options.reader_fences)
                .broken(options.broken.map(|(_, broken)| broken));
            let domain: &'static Domain = Box::leak(Box::new(builder.build()?));
            Ok(Subject { domain, kinds, is_checked: options.checked })
        };
        match options.flavour.as_str() {
            "normal" => made(&[Flavour::Normal], vec![Kind::Normal]),
            "sigsafe" => made(&[Flavour::Sigsafe], vec![Kind::Sigsafe]),
            "fast" => made(&[Flavour::Fast], vec![Kind::Fast]),
            "updown" => made(&[Flavour::UpDown], vec![Kind::UpDown]),
            "mixed" => made(&[Flavour::Normal, Flavour::Sigsafe], vec![Kind::Normal, Kind::Sigsafe]),
            "tasks-holdout" => Ok(Subject {
                domain: tasks::holdout::domain(),
                kinds: vec![Kind::Holdout],
                is_checked: false,
            }),
            "tasks-fast" => {
                Ok(Subject { domain: tasks::on_fast::domain(), kinds: vec![Kind::OnFast], is_checked: false })
            }
            _ => made(&[Flavour::Lite], vec![Kind::Lite]),
        }
    }

    /// True if a section may end on another thread.
    pub fn has_updown(&self) -> bool {
        self.kinds.contains(&Kind::UpDown)
    }

    /// Enters; `straggle` runs between fetching the rank and counting, where there is such a gap.
    #[inline]
    pub fn enter(&self, kind: Kind, straggle: impl FnOnce()) -> Section {
        let rank = self.domain.block().rank();
        straggle();
        self.enter_at(kind, rank)
    }

    /// Enters by a rank that was fetched at any time before.
    ///
    /// Of readers without fences some count by their CPU, as those of foreign memory do, the others on their threads' seats;
    /// each leaves either way.
    #[inline]
    pub fn enter_at(&self, kind: Kind, rank: Rank) -> Section {
        let (domain, block) = (self.domain, self.domain.block());
        let by_cpu = self.is_checked || turn();
        // A broken subject is entered like any other; a refusal would be a bug of this test.
        let entered = match kind {
            Kind::Normal => block.lock_at::<Normal>(rank),
            Kind::Sigsafe => block.lock_at::<Sigsafe>(rank),
            Kind::Lite if by_cpu => block.lock_at::<Lite>(rank),
            Kind::Lite => domain.lock_at::<Lite>(rank),
            Kind::Fast if by_cpu => block.lock_at::<Fast>(rank),
            Kind::Fast => domain.lock_at::<Fast>(rank),
            Kind::UpDown if by_cpu => block.lock_at::<UpDown>(rank),
            Kind::UpDown => domain.lock_at::<UpDown>(rank),
            Kind::Holdout => {
                tasks::holdout::lock();
                Ok(())
            }
            Kind::OnFast => {
                tasks::on_fast::lock();
                Ok(())
            }
        };
        entered.expect("the domain is declared for its readers");
        Section { kind, rank }
    }

    /// Leaves.
    #[inline]
    pub fn leave(&self, section: Section) {
        let (domain, block, rank) = (self.domain, self.domain.block(), section.rank);
        let by_cpu = self.is_checked || turn();
        match section.kind {
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::Normal => unsafe { block.unlock::<Normal>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::Sigsafe => unsafe { block.unlock::<Sigsafe>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::Lite if by_cpu => unsafe { block.unlock::<Lite>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::Lite => unsafe { domain.unlock::<Lite>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::Fast if by_cpu => unsafe { block.unlock::<Fast>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::Fast => unsafe { domain.unlock::<Fast>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::UpDown if by_cpu => unsafe { block.unlock::<UpDown>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::UpDown => unsafe { domain.unlock::<UpDown>(rank) },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::Holdout => unsafe { tasks::holdout::unlock() },
            // SAFETY: a section comes from `enter_at` and is left once.
            Kind::OnFast => unsafe { tasks::on_fast::unlock() },
        }
    }
}

/// True each third time.
#[inline]
fn turn() -> bool {
    thread_local!(static N: Cell<u32> = const { Cell::new(0) });
    N.set(N.get().wrapping_add(1));
    N.get().is_multiple_of(3)
}
