//! What keeps uprobes and consumers while hits run: one protection for entries, one for returns.
//!
//! For:     hits, `unregister_sync`, collecting.
//! State:   a domain for each, by its protection.
//! Context: enter and leave: hit; the rest: target.
//! Keeps:   P1 after `wait_entries`, no hit that began before it runs; after `wait_returns`, no lease.
//!          P2 a thread is in at most as many sections as it entered: a token is left once.
//! Checked: `tests/lifetime.rs`, `torture uprobe` and its broken variants.
//! Source:  presets A to D and A' to C' are the SRCU-lite series' (2024).

use core::fmt;
use core::marker::PhantomData;
use rcu::tasks::{holdout, on_fast};
use rcu::{BuildError, Cookie, Domain, Fast, Flavour, Lite, Normal, Rank, Reader, Sigsafe};

/// How the reader side is protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Protection {
    /// A reference and a lock for each hit: the published baseline.
    Refcount,
    /// SRCU with its fences.
    Normal,
    /// SRCU with atomic adds, which may interrupt one another.
    Sigsafe,
    /// RCU Tasks Trace in its classic form: a count in the thread.
    TasksTrace,
    /// RCU Tasks Trace in its form since 2025, on fast readers.
    TasksFast,
    /// SRCU without fences.
    Lite,
    /// The same on a declared domain.
    Fast,
}

impl Protection {
    /// Every protection (table).
    pub const ALL: [Protection; 7] = [
        Self::Refcount,
        Self::Normal,
        Self::Sigsafe,
        Self::TasksTrace,
        Self::TasksFast,
        Self::Lite,
        Self::Fast,
    ];

    /// The flavour of the readers of a domain of its own; none where there is no such domain.
    pub const fn flavour(self) -> Option<Flavour> {
        match self {
            Self::Normal => Some(Flavour::Normal),
            Self::Sigsafe => Some(Flavour::Sigsafe),
            Self::Lite => Some(Flavour::Lite),
            Self::Fast => Some(Flavour::Fast),
            Self::Refcount | Self::TasksTrace | Self::TasksFast => None,
        }
    }

    /// Its name in options and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refcount => "refcount",
            Self::Normal => "srcu",
            Self::Sigsafe => "sigsafe",
            Self::TasksTrace => "tasks-trace",
            Self::TasksFast => "tasks-fast",
            Self::Lite => "lite",
            Self::Fast => "fast",
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The published combinations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Preset {
    /// Before all series: references and locks.
    Baseline,
    A,
    B,
    C,
    D,
    APrime,
    BPrime,
    CPrime,
}

impl Preset {
    /// What protects entries, then returns.
    ///
    /// B' and C' were published as B and C with inlined calls, A' as A on a newer kernel. Here a prime differs from its preset in that
    /// alone, for A too: [`is_inlined`](Self::is_inlined).
    pub const fn protections(self) -> (Protection, Protection) {
        match self {
            Self::Baseline => (Protection::Refcount, Protection::Refcount),
            Self::A | Self::APrime => (Protection::TasksTrace, Protection::Normal),
            Self::B | Self::BPrime => (Protection::TasksTrace, Protection::Lite),
            Self::C | Self::CPrime => (Protection::Lite, Protection::Lite),
            Self::D => (Protection::Normal, Protection::Normal),
        }
    }

    /// True if readers are entered and left in the hit's own code, and not by calls.
    pub const fn is_inlined(self) -> bool {
        matches!(self, Self::Baseline | Self::APrime | Self::BPrime | Self::CPrime)
    }
}

/// How a registry is to be.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What protects hits.
    pub entry: Protection,
    /// What protects a uprobe between entry and return.
    pub returns: Protection,
    /// Readers that the published kernels have ([`Preset`]) are entered and left by calls, as there. For comparison alone.
    pub by_calls: bool,
    /// How many freed uprobes and consumers stay in memory, marked, so that a use of them is seen.
    pub quarantine: usize,
    /// Breaks the registry on purpose.
    #[cfg(feature = "broken")]
    pub broken: Option<crate::Broken>,
}

impl Default for Config {
    /// Fast readers for both.
    fn default() -> Config {
        Config::new(Protection::Fast, Protection::Fast)
    }
}

impl Config {
    /// A registry with these protections.
    pub const fn new(entry: Protection, returns: Protection) -> Config {
        Config {
            entry,
            returns,
            by_calls: false,
            quarantine: 0,
            #[cfg(feature = "broken")]
            broken: None,
        }
    }

    /// A published combination.
    pub const fn preset(preset: Preset) -> Config {
        let (entry, returns) = preset.protections();
        let config = Config::new(entry, returns);
        Config { by_calls: !preset.is_inlined(), ..config }
    }
}

/// How one side's readers are entered: by what, and whether by a call. One enum, so that a hit looks once.
#[derive(Clone, Copy)]
enum Way {
    Refcount,
    Normal,
    Sigsafe,
    TasksTrace,
    TasksFast,
    Lite,
    Fast,
    CallNormal,
    CallTasksTrace,
    CallLite,
}

impl Way {
    fn of(kind: Protection, by_calls: bool) -> Way {
        match kind {
            Protection::Normal if by_calls => Way::CallNormal,
            Protection::TasksTrace if by_calls => Way::CallTasksTrace,
            Protection::Lite if by_calls => Way::CallLite,
            Protection::Refcount => Way::Refcount,
            Protection::Normal => Way::Normal,
            Protection::Sigsafe => Way::Sigsafe,
            Protection::TasksTrace => Way::TasksTrace,
            Protection::TasksFast => Way::TasksFast,
            Protection::Lite => Way::Lite,
            Protection::Fast => Way::Fast,
        }
    }
}

/// One side's readers.
pub(crate) struct Side {
    pub kind: Protection,
    way: Way,
    domain: Option<Domain>,
}

/// A section that was entered; `leave` takes it, so it is left once at most.
#[derive(Debug)]
pub(crate) struct Token(Option<Rank>, PhantomData<*const ()>);

/// A section that ends here, also if a consumer unwinds.
pub(crate) struct Section<'s> {
    side: &'s Side,
    token: Option<Token>,
}

impl Drop for Section<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.side.leave(token);
        }
    }
}

impl Side {
    pub fn new(kind: Protection, by_calls: bool, name: &str) -> Result<Side, BuildError> {
        let build = |f| Domain::builder(name).flavour(f).checked(false).build();
        Ok(Side { kind, way: Way::of(kind, by_calls), domain: kind.flavour().map(build).transpose()? })
    }

    /// Enters; `None` if a rule of the domain forbids it.
    #[inline(always)]
    pub fn enter(&self) -> Option<Token> {
        let rank = match (self.way, &self.domain) {
            (Way::Fast, Some(domain)) => domain.lock::<Fast>(),
            (Way::Lite, Some(domain)) => domain.lock::<Lite>(),
            (Way::Normal, Some(domain)) => domain.lock::<Normal>(),
            (Way::Sigsafe, Some(domain)) => domain.lock::<Sigsafe>(),
            (Way::CallNormal, Some(domain)) => lock_by_call::<Normal>(domain),
            (Way::CallLite, Some(domain)) => lock_by_call::<Lite>(domain),
            (Way::CallTasksTrace, _) => {
                trace_by_call();
                return Some(Token(None, PhantomData));
            }
            (Way::TasksTrace, _) => {
                holdout::lock();
                return Some(Token(None, PhantomData));
            }
            (Way::TasksFast, _) => {
                on_fast::lock();
                return Some(Token(None, PhantomData));
            }
            _ => return Some(Token(None, PhantomData)),
        };
        rank.ok().map(|rank| Token(Some(rank), PhantomData))
    }

    /// Leaves what `enter` of this side entered.
    #[inline(always)]
    pub fn leave(&self, token: Token) {
        match (self.way, &self.domain, token.0) {
            // SAFETY: a token is made by `enter`, stays on its thread and is left once; callers pass those of this side.
            (Way::Fast, Some(domain), Some(rank)) => unsafe { domain.unlock::<Fast>(rank) },
            // SAFETY: as above.
            (Way::Lite, Some(domain), Some(rank)) => unsafe { domain.unlock::<Lite>(rank) },
            // SAFETY: as above.
            (Way::Normal, Some(domain), Some(rank)) => unsafe { domain.unlock::<Normal>(rank) },
            // SAFETY: as above.
            (Way::Sigsafe, Some(domain), Some(rank)) => unsafe { domain.unlock::<Sigsafe>(rank) },
            // SAFETY: as above.
            (Way::CallNormal, Some(domain), Some(rank)) => unsafe { unlock_by_call::<Normal>(domain, rank) },
            // SAFETY: as above.
            (Way::CallLite, Some(domain), Some(rank)) => unsafe { unlock_by_call::<Lite>(domain, rank) },
            // SAFETY: as above.
            (Way::CallTasksTrace, ..) => unsafe { untrace_by_call() },
            // SAFETY: as above.
            (Way::TasksTrace, ..) => unsafe { holdout::unlock() },
            // SAFETY: as above.
            (Way::TasksFast, ..) => unsafe { on_fast::unlock() },
            _ => {}
        }
    }

    /// Enters until the value is dropped.
    #[inline(always)]
    pub fn section(&self) -> Option<Section<'_>> {
        self.enter().map(|token| Section { side: self, token: Some(token) })
    }

    /// Runs something inside a section; `None` if a rule of the domain forbids to enter.
    ///
    /// As `section`, with one look at the kind in the place of two.
    #[inline(always)]
    pub fn read<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        match (self.way, &self.domain) {
            (Way::Fast, Some(domain)) => inside::<Fast, T>(domain, body),
            (Way::Lite, Some(domain)) => inside::<Lite, T>(domain, body),
            (Way::Normal, Some(domain)) => inside::<Normal, T>(domain, body),
            (Way::Sigsafe, Some(domain)) => inside::<Sigsafe, T>(domain, body),
            (Way::TasksTrace, _) => {
                let _reader = holdout::read();
                Some(body())
            }
            (Way::CallNormal | Way::CallLite | Way::CallTasksTrace, _) => {
                let _section = self.section()?;
                Some(body())
            }
            (Way::TasksFast, _) => {
                let _reader = on_fast::read();
                Some(body())
            }
            _ => Some(body()),
        }
    }

    /// The domain whose grace periods count; none where references do the work.
    pub fn domain(&self) -> Option<&Domain> {
        match self.kind {
            Protection::Refcount => None,
            Protection::TasksTrace => Some(holdout::domain()),
            Protection::TasksFast => Some(on_fast::domain()),
            _ => self.domain.as_ref(),
        }
    }

    /// Waits for every section that was entered before.
    pub fn wait(&self) {
        if let Some(domain) = self.domain() {
            domain.synchronize();
        }
    }

    /// A cookie of a grace period that is sure to come.
    pub fn start(&self) -> Option<Cookie> {
        self.domain().map(Domain::start_poll)
    }

    /// True if that has passed.
    pub fn is_past(&self, cookie: Option<Cookie>) -> bool {
        match (self.domain(), cookie) {
            (Some(domain), Some(cookie)) => domain.poll_state(cookie),
            _ => true,
        }
    }
}

#[inline(always)]
fn inside<F: Reader, T>(domain: &Domain, body: impl FnOnce() -> T) -> Option<T> {
    let _reader = domain.try_read::<F>().ok()?;
    Some(body())
}

#[inline(never)]
fn lock_by_call<F: Reader>(domain: &Domain) -> Result<Rank, rcu::Misuse> {
    domain.lock::<F>()
}

/// # Safety
/// As for [`Domain::unlock`].
#[inline(never)]
unsafe fn unlock_by_call<F: Reader>(domain: &Domain, rank: Rank) {
    // SAFETY: the caller's duty.
    unsafe { domain.unlock::<F>(rank) }
}

#[inline(never)]
fn trace_by_call() {
    holdout::lock();
}

/// # Safety
/// As for [`holdout::unlock`].
#[inline(never)]
unsafe fn untrace_by_call() {
    // SAFETY: the caller's duty.
    unsafe { holdout::unlock() }
}
