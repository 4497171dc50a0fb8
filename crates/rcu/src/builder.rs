//! Describing a domain before it is made.
//!
//! For:     `Domain::builder`.
//! State:   the description.
//! Context: target, in set-up.
//! Keeps:   Y1 what cannot be is refused here, and says why.
//!          Y2 a domain whose readers must fence themselves says so in a report.
//! Checked: `tests/restrictions.rs`, `tests/no_membarrier.rs`.

use crate::block::{Block, UNRECORDED};
use crate::domain::block_layout;
use crate::gp::Broken;
use crate::lock::Lock;
use crate::prim::{AtomicU32, AtomicU64, Relaxed};
use crate::report::{Report, report};
use crate::seat::{self, SEATS};
use crate::thread::now_ns;
use crate::updater::{Counts, Engine, Updater};
use crate::{BlockOptions, CbList, Domain, Fences, Flavour, FlavourSet, Misuse, fence, fork};
use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;
use std::alloc::alloc_zeroed;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// How long a grace period waits before it reports a stall; 21 s as in the kernel.
const STALL_AFTER: Duration = Duration::from_secs(21);

/// How long after a grace period a plain wait is not expedited by itself; 25 us as in the kernel.
const HOLDOFF: Duration = Duration::from_micros(25);

/// How long callbacks gather before their grace period starts; one tick in the kernel, 1 to 10 ms.
const CALL_DELAY: Duration = Duration::from_millis(10);

/// How a domain is to be.
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    declared: FlavourSet,
    checked: bool,
    stall_after: Duration,
    auto_expedite: Option<bool>,
    holdoff: Duration,
    call_delay: Duration,
    per_cpu_lists: bool,
    reader_fences: bool,
    rseq: bool,
    pub(crate) engine: Engine,
    broken: Option<Broken>,
}

/// Why a domain could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The declared flavours must not meet on one domain.
    IllegalFlavours(FlavourSet),
    /// A rule forbids the combination.
    Misuse(Misuse),
    /// No memory for so many bytes.
    NoMemory {
        /// The size that was asked for.
        bytes: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IllegalFlavours(set) => write!(f, "flavours {set} cannot share a domain"),
            Self::Misuse(misuse) => write!(f, "{misuse}"),
            Self::NoMemory { bytes } => write!(f, "no memory for a domain of {bytes} bytes"),
        }
    }
}

impl std::error::Error for BuildError {}

impl Builder {
    pub(crate) fn new(name: &str) -> Builder {
        Builder {
            name: name.to_string(),
            declared: FlavourSet(0),
            checked: cfg!(debug_assertions),
            stall_after: STALL_AFTER,
            auto_expedite: None,
            holdoff: HOLDOFF,
            call_delay: CALL_DELAY,
            per_cpu_lists: false,
            reader_fences: false,
            rseq: true,
            engine: Engine::Ranks,
            broken: None,
        }
    }

    /// Declares the flavour; fast, updown and tasks readers need that.
    pub fn flavour(self, flavour: Flavour) -> Builder {
        self.flavours(FlavourSet(flavour.bit()))
    }

    /// Declares more than one flavour.
    pub fn flavours(mut self, flavours: FlavourSet) -> Builder {
        self.declared = flavours;
        self
    }

    /// Checks every rule at every call and tracks readers by thread; on in debug builds.
    ///
    /// Readers then cost some tens of nanoseconds. The flavour is checked either way.
    pub fn checked(mut self, checked: bool) -> Builder {
        self.checked = checked;
        self
    }

    /// Reports a grace period that waits longer than this; 21 s by default.
    ///
    /// The report names threads on a checked domain; on any other it names each when it leaves.
    pub fn stall_after(mut self, limit: Duration) -> Builder {
        self.stall_after = limit;
        self
    }

    /// Expedites a plain wait if the domain is idle; on, but never for fenceless flavours.
    pub fn auto_expedite(mut self, on: bool) -> Builder {
        self.auto_expedite = Some(on);
        self
    }

    /// How long after a grace period nothing is expedited by itself; 25 us, zero means never.
    pub fn holdoff(mut self, holdoff: Duration) -> Builder {
        self.holdoff = holdoff;
        self
    }

    /// How long the first callback waits for others to share its grace period; 10 ms by default.
    ///
    /// It ends early when a barrier or poll waits, or a list is long.
    pub fn call_delay(mut self, delay: Duration) -> Builder {
        self.call_delay = delay;
        self
    }

    /// One callback list per CPU from the start, not only once one list is contended.
    pub fn per_cpu_lists(mut self, on: bool) -> Builder {
        self.per_cpu_lists = on;
        self
    }

    /// Makes fenceless readers fence themselves, as where there is no membarrier.
    pub fn reader_fences(mut self, on: bool) -> Builder {
        self.reader_fences = on;
        self
    }

    /// Whether readers may use seats of their threads, or else rseq; without it they add with a lock prefix.
    pub fn rseq(mut self, on: bool) -> Builder {
        self.rseq = on;
        self
    }

    /// Breaks the domain in the given way, for the torture test.
    #[cfg(feature = "broken")]
    #[doc(hidden)]
    pub fn broken(mut self, broken: Option<Broken>) -> Builder {
        self.broken = broken;
        self
    }

    /// Makes the domain.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(self) -> Result<Domain, BuildError> {
        if !self.declared.is_legal() {
            return Err(BuildError::IllegalFlavours(self.declared));
        }
        let fenceless =
            Flavour::ALL.into_iter().find(|f| self.declared.has(*f) && FlavourSet::FENCELESS.has(*f));
        if let (Some(true), Some(flavour)) = (self.auto_expedite, fenceless) {
            return Err(BuildError::Misuse(Misuse::AutoExpedite { flavour }));
        }
        let fences =
            if self.reader_fences { Fences::Readers(sys::Errno::EOPNOTSUPP) } else { fence::register() };
        if let (Fences::Readers(_), false) = (fences, self.reader_fences) {
            report(&Report::NoMembarrier { domain: self.name.clone(), fences });
        }
        let block = self.make_block(fences)?;
        let updater = Arc::new(self.updater(block, fences));
        fork::register(&updater);
        Ok(Domain { block, updater })
    }

    fn make_block(&self, fences: Fences) -> Result<Block<'static>, BuildError> {
        let unrecorded = self.broken == Some(Broken::UnrecordedFlavour);
        let options = BlockOptions {
            copies: percpu::possible_cpus(),
            rseq: if self.rseq { percpu::RseqOffset::detect() } else { percpu::RseqOffset::NONE },
            declared: self.declared,
            checked: self.checked && !unrecorded,
            reader_fences: fences != Fences::Membarrier,
            owner: sys::getpid(),
        };
        let seats = if self.rseq { SEATS } else { 0 };
        seat::prepare();
        let layout = block_layout(options.copies, seats);
        // SAFETY: the layout has a size.
        let mem = unsafe { alloc_zeroed(layout) };
        let mem = NonNull::new(mem).ok_or(BuildError::NoMemory { bytes: layout.size() })?;
        // SAFETY: the layout is that of the seats and the block behind them.
        let at = unsafe { mem.add(Block::seat_bytes(seats)) };
        // SAFETY: `mem` was allocated with the block's size and alignment, and is freed by `Updater`'s
        // owner alone. The rseq offset is the C library's or none.
        let block = unsafe { Block::init_with_seats(at, &options, seats) };
        if unrecorded {
            // Readers run, and the grace period does not know how; also those that take the slow way, because they have
            // no seat or because the kernel came between.
            block.head().options.fetch_or(UNRECORDED, Relaxed);
            block.head().recorded.store(0, Relaxed);
        }
        Ok(block)
    }

    fn updater(self, block: Block<'static>, fences: Fences) -> Updater {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Updater {
            block,
            id: NEXT_ID.fetch_add(1, Relaxed),
            name: self.name,
            engine: self.engine,
            fences,
            checked: self.checked,
            auto_expedite: self.auto_expedite.unwrap_or(true),
            holdoff_ns: self.holdoff.as_nanos() as u64,
            stall_after_ns: self.stall_after.as_nanos() as u64,
            broken: self.broken,
            counts: Counts::default(),
            turn: Lock::new(()),
            turn_start_ns: AtomicU64::new(0),
            last_end_ns: AtomicU64::new(now_ns()),
            lists: (0..block.copies()).map(|_| Lock::new(CbList::new())).collect(),
            spread: AtomicU32::new(u32::from(self.per_cpu_lists)),
            contended: AtomicU32::new(0),
            call_delay_ns: self.call_delay.as_nanos() as u64,
            needed_soon: AtomicU64::new(block.gp_seq()),
            kick: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            worker: Lock::new(None),
            worker_tid: AtomicU32::new(0),
            barrier: Lock::new(()),
            passed: Lock::new(Vec::new()),
            has_passed: AtomicU32::new(0),
            barrier_seq: AtomicU64::new(0),
            down: Lock::new(Default::default()),
            next_token: AtomicU64::new(1),
        }
    }
}
