//! A set of readers and its grace periods.
//!
//! For:     programs; the same calls for every flavour.
//! State:   the block that readers count in, and behind it the update side.
//! Context: readers anywhere their flavour allows; the five verbs in target threads, they may block.
//! Keeps:   D1 a domain that is in use is never freed.
//!          D2 a broken rule gets an error or a panic that names it, before any harm.
//! Checked: `tests/`, `torture rcu`.

use crate::block::Block;
use crate::prim::{AtomicU64, Relaxed};
use crate::report::{Report, report};
use crate::updater::{Engine, Updater};
use crate::{Builder, Cookie, Fences, Misuse, fork};
use core::fmt;
use std::alloc::{Layout, dealloc};
use std::sync::Arc;

/// One set of readers and its grace periods.
///
/// ```
/// use std::sync::atomic::{AtomicPtr, Ordering::{Acquire, Release}};
/// use rcu::{Domain, Flavour};
///
/// let domain = Domain::builder("config").flavour(Flavour::Lite).build()?;
/// let config = AtomicPtr::new(Box::into_raw(Box::new(1)));
///
/// {
///     let _guard = domain.lite();
///     // SAFETY: the updater frees the old value after a grace period of this domain.
///     assert_eq!(unsafe { *config.load(Acquire) }, 1);
/// }
///
/// let old = config.swap(Box::into_raw(Box::new(2)), Release);
/// domain.synchronize();
/// // SAFETY: no reader can still hold `old`.
/// drop(unsafe { Box::from_raw(old) });
/// # drop(unsafe { Box::from_raw(config.into_inner()) });
/// # Ok::<(), rcu::BuildError>(())
/// ```
pub struct Domain {
    pub(crate) block: Block<'static>,
    pub(crate) updater: Arc<Updater>,
}

/// What keeps a domain from being closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InUse {
    /// Readers inside.
    pub readers: i64,
    /// Callbacks that have not run; `barrier` was forgotten.
    pub callbacks: usize,
    /// A grace period is running.
    pub gp_running: bool,
    /// A grace period was asked for and has not ended.
    pub gp_needed: bool,
    /// The same, expedited.
    pub expedited_needed: bool,
}

impl InUse {
    /// True if nothing is going on.
    pub fn is_idle(&self) -> bool {
        *self == InUse::default()
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { readers, callbacks, gp_running, gp_needed, expedited_needed } = self;
        write!(f, "{readers} reader(s), {callbacks} callback(s)")?;
        for (set, text) in [
            (gp_running, "grace period running"),
            (gp_needed, "grace period needed"),
            (expedited_needed, "expedited grace period needed"),
        ] {
            if *set {
                write!(f, ", {text}")?;
            }
        }
        Ok(())
    }
}

/// A domain that refused to close, and why.
pub struct CloseError {
    /// The domain, to be used on.
    pub domain: Domain,
    /// What was going on.
    pub in_use: InUse,
}

impl fmt::Debug for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloseError({})", self.in_use)
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain {} is in use: {}", self.domain.name(), self.in_use)
    }
}

impl std::error::Error for CloseError {}

/// Of the copies of seats and the block behind them.
pub(crate) fn block_layout(copies: u32, seats: u32) -> Layout {
    let bytes = Block::seat_bytes(seats) + Block::size_bytes(copies);
    Layout::from_size_align(bytes, Block::ALIGN).expect("a block is small")
}

impl Domain {
    /// A domain that takes the flavour of its first reader (or normal with sigsafe).
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(name: &str) -> Domain {
        match Self::builder(name).build() {
            Ok(domain) => domain,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts to describe a domain.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }

    /// The name that reports use.
    pub fn name(&self) -> &str {
        &self.updater.name
    }

    /// Where the order of readers against grace periods comes from on this machine.
    pub fn fences(&self) -> Fences {
        self.updater.fences
    }

    /// The memory that readers count in, for raw calls.
    pub fn block(&self) -> Block<'_> {
        self.block
    }

    /// Returns once every reader that was inside the domain has left.
    ///
    /// Readers that enter later are not waited for. Requests made at the same time share one grace
    /// period.
    ///
    /// # Context
    /// Target thread, may block. Not inside a reader of this domain, not in a handler.
    /// # Cost
    /// Fenceless flavours: two process-wide membarriers: `bench synchronize`.
    /// # Panics
    /// On a checked domain, if the caller is one of its readers.
    /// # Source
    /// Kernel `synchronize_srcu` (v7.0). Departs: the caller drives the grace period if nobody does.
    pub fn synchronize(&self) {
        self.try_synchronize().unwrap_or_else(|misuse| panic!("{misuse}"));
    }

    /// [`synchronize`](Self::synchronize) that returns the broken rule in the place of a panic.
    ///
    /// # Errors
    /// [`Misuse::WaitInReader`], on a checked domain.
    pub fn try_synchronize(&self) -> Result<(), Misuse> {
        self.updater.check_wait()?;
        let counts = &self.updater.counts;
        counts.synchronized.fetch_add(1, Relaxed);
        let expedited = self.updater.should_expedite();
        if expedited {
            counts.auto_expedited.fetch_add(1, Relaxed);
        }
        self.updater.wait_for(self.block.snap(), expedited);
        Ok(())
    }

    /// [`synchronize`](Self::synchronize) that does not sleep between its polls, at half the fences.
    ///
    /// # Cost
    /// Fenceless flavours: one process-wide membarrier on x86-64: `bench synchronize`.
    /// # Panics
    /// As [`synchronize`](Self::synchronize).
    pub fn synchronize_expedited(&self) {
        self.updater.check_wait().unwrap_or_else(|misuse| panic!("{misuse}"));
        self.updater.counts.expedited.fetch_add(1, Relaxed);
        self.updater.wait_for(self.block.snap(), true);
    }

    /// A cookie of the grace period that a request made now would get. Starts nothing.
    pub fn get_state(&self) -> Cookie {
        self.block.snap()
    }

    /// A cookie of a grace period that is sure to come.
    pub fn start_poll(&self) -> Cookie {
        let cookie = self.block.snap();
        self.updater.request(cookie, false);
        self.updater.hurry(cookie);
        cookie
    }

    /// [`start_poll`](Self::start_poll) with haste.
    pub fn start_poll_expedited(&self) -> Cookie {
        let cookie = self.block.snap();
        self.updater.request(cookie, true);
        self.updater.hurry(cookie);
        cookie
    }

    /// True once a whole grace period has passed since the cookie was taken.
    pub fn poll_state(&self, cookie: Cookie) -> bool {
        self.block.poll(cookie)
    }

    /// Waits only if the cookie is not done.
    ///
    /// # Panics
    /// As [`synchronize`](Self::synchronize).
    pub fn cond_synchronize(&self, cookie: Cookie) {
        if !self.poll_state(cookie) {
            self.synchronize();
        }
    }

    /// What is going on in the domain.
    pub fn in_use(&self) -> InUse {
        let gp = &self.block.head().gp;
        let seq = self.block.gp_seq();
        let pending = |needed: &AtomicU64| !Cookie(needed.load(Relaxed)).is_reached(seq);
        InUse {
            readers: match self.updater.engine {
                Engine::Ranks => self.block.readers_by_rank().iter().sum(),
                Engine::Holdout => crate::tasks::holdout::readers().len() as i64,
            },
            callbacks: self.updater.lists.iter().map(|list| list.lock().len()).sum(),
            gp_running: crate::seq::phase(seq) != crate::Phase::Idle,
            gp_needed: pending(&gp.needed),
            expedited_needed: pending(&gp.needed_expedited),
        }
    }

    /// Frees the domain, or says what it is still used for.
    ///
    /// Dropping a domain does the same, but leaks it and reports if it is in use.
    ///
    /// # Errors
    /// The domain itself, with the reasons.
    pub fn close(self) -> Result<(), CloseError> {
        let in_use = self.in_use();
        if in_use.is_idle() { Ok(()) } else { Err(CloseError { domain: self, in_use }) }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let in_use = self.in_use();
        if !in_use.is_idle() {
            report(&Report::Leaked { domain: self.updater.name.clone(), in_use });
            return;
        }
        fork::unregister(&self.updater);
        self.updater.stop_worker();
        let seats = self.block.head().seats.load(Relaxed);
        let layout = block_layout(self.block.copies(), seats);
        // SAFETY: `make_block` laid the block behind its seats.
        let mem = unsafe { self.block.as_ptr().sub(Block::seat_bytes(seats)) };
        // SAFETY: `make_block` allocated it with this layout; no reader is inside (checked above, and
        // guards borrow the domain), the worker has ended, and `self.block` is not used again.
        unsafe { dealloc(mem.as_ptr(), layout) };
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({:?}, {})", self.name(), self.block.recorded())
    }
}
