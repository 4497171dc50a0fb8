//! Readers of a domain: guards, and raw calls beside them.
//!
//! For:     programs (guards), the C API and foreign control flow (raw calls).
//! State:   the cookie in the guard. On a checked domain, the thread's record.
//! Context: as the flavour allows. Unchecked: no allocation, lock, system call or panic once the
//!          flavour is recorded.
//! Keeps:   W1 a guard leaves the rank that it entered, on the thread that it entered (updown: any).
//!          W2 the checks cost nothing on an unchecked domain: the fast path is closed instead (block B3).
//! Checked: `tests/restrictions.rs`, `tests/readers.rs`, doc examples.

use crate::block::{CHECKED, Rank};
use crate::prim::Relaxed;
use crate::reader::{fence_after_enter, fence_before_leave};
use crate::report::{Report, StalledReader, report};
use crate::seat;
use crate::thread::{self, now_ns};
use crate::{Domain, Fast, Flavour, FlavourSet, Lite, Misuse, Normal, Reader, Sigsafe, UpDown};
use core::marker::PhantomData;

/// A read-side section; it ends when the guard is dropped.
///
/// It cannot outlive its domain, and cannot go to another thread:
///
/// ```compile_fail,E0505
/// let domain = rcu::Domain::new("example");
/// let guard = domain.normal();
/// drop(domain);
/// drop(guard);
/// ```
///
/// ```compile_fail,E0277
/// let domain = rcu::Domain::new("example");
/// let guard = domain.normal();
/// std::thread::scope(|s| {
///     s.spawn(move || drop(guard));
/// });
/// ```
#[must_use = "the section ends when the guard is dropped"]
pub struct ReadGuard<'d, F: Reader> {
    domain: &'d Domain,
    rank: Rank,
    /// A reader leaves on its own thread.
    here: PhantomData<(F, *const ())>,
}

impl<F: Reader> ReadGuard<'_, F> {
    /// The cookie for a raw unlock; the section goes on and the guard is spent.
    pub fn into_raw(self) -> Rank {
        let rank = self.rank;
        core::mem::forget(self);
        rank
    }
}

impl<F: Reader> Drop for ReadGuard<'_, F> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the guard came from `lock`, on this thread, which it cannot leave, and ends once.
        unsafe { self.domain.unlock::<F>(self.rank) };
    }
}

/// A read-side section that any thread may end by dropping this; not one that its domain does not outlive:
///
/// ```compile_fail,E0597
/// let section = {
///     let domain = rcu::Domain::builder("example").flavour(rcu::Flavour::UpDown).build().unwrap();
///     domain.down()
/// };
/// section.up();
/// ```
#[must_use = "the section ends when the value is dropped"]
pub struct Down<'d> {
    domain: &'d Domain,
    rank: Rank,
    /// Names the section in a checked domain's table; else 0.
    token: u64,
}

impl Down<'_> {
    /// Ends the section.
    pub fn up(self) {}
}

impl Drop for Down<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.token != 0 {
            self.domain.forget_down(self.token);
        }
        // SAFETY: `try_down` entered this rank of this block, and the value ends once.
        unsafe { self.domain.unlock::<UpDown>(self.rank) };
    }
}

impl Domain {
    /// Enters a reader of flavour `F`.
    ///
    /// # Panics
    /// If that breaks a rule; the message names it.
    #[inline(always)]
    pub fn read<F: Reader>(&self) -> ReadGuard<'_, F> {
        match self.try_read::<F>() {
            Ok(guard) => guard,
            Err(misuse) => refuse(misuse),
        }
    }

    /// Enters a reader of flavour `F`, or says which rule that would break.
    ///
    /// # Errors
    /// The rule and the facts.
    #[inline(always)]
    pub fn try_read<F: Reader>(&self) -> Result<ReadGuard<'_, F>, Misuse> {
        let rank = self.lock::<F>()?;
        Ok(ReadGuard { domain: self, rank, here: PhantomData })
    }

    /// Enters a normal reader. Panics as [`read`](Self::read).
    #[inline(always)]
    pub fn normal(&self) -> ReadGuard<'_, Normal> {
        self.read()
    }

    /// Enters a sigsafe reader. Panics as [`read`](Self::read).
    #[doc(alias = "nmisafe")]
    #[inline(always)]
    pub fn sigsafe(&self) -> ReadGuard<'_, Sigsafe> {
        self.read()
    }

    /// Enters a lite reader. Panics as [`read`](Self::read).
    #[inline(always)]
    pub fn lite(&self) -> ReadGuard<'_, Lite> {
        self.read()
    }

    /// Enters a fast reader. Panics as [`read`](Self::read).
    #[inline(always)]
    pub fn fast(&self) -> ReadGuard<'_, Fast> {
        self.read()
    }

    /// Enters a section that any thread may end. Panics as [`read`](Self::read).
    ///
    /// ```
    /// # use rcu::{Domain, Flavour};
    /// let domain = Domain::builder("requests").flavour(Flavour::UpDown).build()?;
    /// let section = domain.down();
    /// std::thread::scope(|s| {
    ///     s.spawn(move || section.up());
    /// });
    /// domain.synchronize();
    /// # Ok::<(), rcu::BuildError>(())
    /// ```
    #[inline]
    pub fn down(&self) -> Down<'_> {
        match self.try_down() {
            Ok(down) => down,
            Err(misuse) => refuse(misuse),
        }
    }

    /// [`down`](Self::down) that returns the broken rule.
    ///
    /// # Errors
    /// The rule and the facts.
    #[inline]
    pub fn try_down(&self) -> Result<Down<'_>, Misuse> {
        let rank = self.lock::<UpDown>()?;
        let mut token = 0;
        if self.updater.checked {
            token = self.note_down();
        }
        Ok(Down { domain: self, rank, token })
    }

    #[cold]
    fn note_down(&self) -> u64 {
        let token = self.updater.next_token.fetch_add(1, Relaxed);
        self.updater.down.lock().insert(token, (sys::gettid(), now_ns()));
        token
    }

    #[cold]
    fn forget_down(&self, token: u64) {
        self.updater.down.lock().remove(&token);
    }

    /// Enters a reader without a guard; the cookie goes to [`unlock`](Self::unlock).
    ///
    /// # Errors
    /// The rule and the facts; then nothing was entered.
    #[inline(always)]
    pub fn lock<F: Reader>(&self) -> Result<Rank, Misuse> {
        let rank = self.block.rank();
        self.lock_at::<F>(rank)?;
        Ok(rank)
    }

    /// As [`Block::lock_at`], for readers of the domain.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    #[inline(always)]
    pub fn lock_at<F: Reader>(&self, rank: Rank) -> Result<(), Misuse> {
        let counted = if FlavourSet::FENCELESS.has(F::FLAVOUR) {
            // SAFETY: the thread's own place.
            let seated = unsafe { self.block.try_enter_at::<F>(rank, seat::mine()) };
            seated || self.enter_without_seat::<F>(rank)
        } else {
            self.block.try_enter::<F>(rank)
        };
        if !counted {
            self.enter_slow(F::FLAVOUR, rank)?;
        }
        fence_after_enter::<F>();
        Ok(())
    }

    /// The thread sits down, or counts by its CPU.
    #[cold]
    #[inline(never)]
    fn enter_without_seat<F: Reader>(&self, rank: Rank) -> bool {
        // SAFETY: the thread's own place.
        let seated = unsafe { self.block.try_enter_at::<F>(rank, seat::sit()) };
        seated || self.block.try_enter::<F>(rank)
    }

    #[cold]
    #[inline(never)]
    fn leave_without_seat<F: Reader>(&self, rank: Rank) -> bool {
        self.block.try_leave::<F>(rank)
    }

    /// Leaves a reader entered by [`lock`](Self::lock) with that cookie.
    ///
    /// ```compile_fail,E0133
    /// let domain = rcu::Domain::new("example");
    /// let rank = domain.lock::<rcu::Lite>()?;
    /// domain.unlock::<rcu::Lite>(rank); // not without `unsafe`: a second one would end another's section
    /// # Ok::<(), rcu::Misuse>(())
    /// ```
    ///
    /// # Safety
    /// The cookie must come from a [`lock`](Self::lock) of this domain and this flavour (or a guard's
    /// [`into_raw`](ReadGuard::into_raw)), on this thread unless the flavour is updown, and must be used once. Nothing
    /// that the section protected may be used afterwards. A checked domain reports an unlock without its lock and
    /// does nothing; any other would take a reader away from another section, which grace periods then
    /// would not wait for.
    #[inline(always)]
    pub unsafe fn unlock<F: Reader>(&self, rank: Rank) {
        fence_before_leave::<F>();
        let counted = if FlavourSet::FENCELESS.has(F::FLAVOUR) {
            // SAFETY: the thread's own place.
            let seated = unsafe { self.block.try_leave_at::<F>(rank, seat::mine()) };
            seated || self.leave_without_seat::<F>(rank)
        } else {
            self.block.try_leave::<F>(rank)
        };
        if !counted {
            self.leave_slow(F::FLAVOUR, rank);
        }
    }

    #[cold]
    fn enter_slow(&self, flavour: Flavour, rank: Rank) -> Result<(), Misuse> {
        if !self.updater.checked {
            return self.block.enter_slow(flavour, rank);
        }
        self.check_reader(flavour)?;
        let record = thread::mine();
        thread::add(&record.busy, 1);
        let entered = self.block.enter_slow(flavour, rank);
        if entered.is_ok() && flavour != Flavour::UpDown {
            record.entered(self.updater.id, flavour, rank.index(), now_ns());
        }
        thread::add(&record.busy, -1);
        entered
    }

    #[cold]
    fn leave_slow(&self, flavour: Flavour, rank: Rank) {
        let updater = &self.updater;
        if updater.checked && flavour != Flavour::UpDown {
            let record = thread::mine();
            thread::add(&record.busy, 1);
            let was_in = record.left(updater.id, rank.index());
            thread::add(&record.busy, -1);
            thread::give_back_at_the_end();
            if !was_in {
                let misuse = Misuse::Unbalanced { flavour };
                return report(&Report::Misuse { domain: updater.name.clone(), misuse });
            }
        }
        self.block.leave_slow(flavour, rank);
        if !updater.checked && self.block.has_option(CHECKED) && self.block.is_probed(rank.index()) {
            self.name_staller(flavour);
        }
    }

    /// The calling thread has just left a rank that a grace period was stalled by.
    #[cold]
    fn name_staller(&self, flavour: Flavour) {
        let tid = sys::gettid();
        let age_ns = now_ns().saturating_sub(self.updater.turn_start_ns.load(Relaxed));
        let reader = StalledReader { tid, thread: thread::name_of(tid), flavour, nesting: 1, age_ns };
        report(&Report::StalledReaderLeft { domain: self.updater.name.clone(), reader });
    }

    /// The rules that only a checked domain can afford to look at.
    fn check_reader(&self, flavour: Flavour) -> Result<(), Misuse> {
        let owner = self.block.head().owner.load(Relaxed);
        let caller = sys::getpid();
        if owner != caller {
            return Err(Misuse::NotWatched { owner, caller });
        }
        let allowed = matches!(flavour, Flavour::Sigsafe | Flavour::Fast | Flavour::UpDown);
        if !allowed && crate::signal::is_in_handler() {
            return Err(Misuse::InHandler { flavour });
        }
        Ok(())
    }
}

#[cold]
fn refuse(misuse: Misuse) -> ! {
    panic!("{misuse}")
}
