//! The book of uprobes: who stands where, and what must wait until no hit can be in it.
//!
//! For:     `Registry`, whose hits walk groups of closures in this process; `session`, whose hits walk lists in another one's memory.
//! State:   the open places with their consumers, in the order in which they came; what was taken off and may be seen still.
//! Context: target or control, under the owner's lock. Calls nobody's code but the owner's [`Board`] and [`Clock`].
//! Keeps:   K1 no two consumers of a book ever have one number.
//!          K2 a change happens as a whole, or nothing of it does: all that can fail comes before the first list is published.
//!          K3 what is taken off comes out once, after all the waits that its kind asks for, each begun after the one before it was
//!             over, the first after it was off its list.
//!          K4 whatever is taken off before one ticket waits for that one: fifty thousand cost what one costs.
//!          K5 who stays keeps its number, its value and its place in the order.
//! Checked: `tests/model.rs`, where hits come between any two steps; its mutants BOOK-1 to BOOK-7.
//! Source:  kernel `uprobe_register`, `uprobe_unregister_nosync` (v7.0) for the split of taking off and waiting.

mod off;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

pub use off::{Clock, Off};

/// A consumer of one book, for ever: no second one gets its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConsumerId(u64);

impl ConsumerId {
    /// As a number; never 0.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The number of a consumer that is to come.
#[derive(PartialEq, Eq, Debug)]
pub struct Fresh(ConsumerId);

impl Fresh {
    /// The number.
    pub fn id(&self) -> ConsumerId {
        self.0
    }
}

/// What a book is about.
pub trait Kind: Sized {
    /// Where consumers can stand: one uprobe.
    type Place: Copy + Ord;
    /// What the owner keeps with a place.
    type Site;
    /// A consumer, as the owner has it.
    type Consumer;
    /// What hits may walk until it was replaced.
    type List;
    /// What a closed place leaves, which hits may be in.
    type Probe;
    /// A point in time of which a [`Clock`] knows when all that it waits for has passed.
    type Ticket: Copy + PartialEq;
    /// How many waits there are, one after the other.
    const WAITS: usize;
    /// True if that is to wait for the one of this number, from 0 on.
    fn waits(off: &Off<Self>, wait: usize) -> bool;
}

/// Consumers of one place, in the order in which they came.
pub type Members<K> = BTreeMap<ConsumerId, <K as Kind>::Consumer>;

/// What a change does at one place.
pub struct Step<'c, K: Kind> {
    /// All who stand there from now on.
    pub members: &'c Members<K>,
    /// Those of them who come; the last of all.
    pub come: &'c [ConsumerId],
    /// Those who went.
    pub gone: &'c [(ConsumerId, K::Consumer)],
}

/// Where lists are published for hits.
pub trait Board<K: Kind> {
    /// What the new list of a place was promised.
    type Draft;
    /// Why there is no room for it.
    type Full;

    /// Room for a list of so many. Hits see nothing of it.
    ///
    /// # Errors
    /// Nothing was taken.
    fn reserve(&mut self, place: K::Place, len: usize) -> Result<Self::Draft, Self::Full>;

    /// Takes back what is not used after all.
    fn forget(&mut self, draft: Self::Draft);

    /// Has hits call those who are there now; what was replaced goes to `old`.
    fn publish(
        &mut self,
        place: K::Place,
        site: &mut K::Site,
        draft: Self::Draft,
        step: &Step<'_, K>,
        old: &mut Vec<K::List>,
    );
}

/// Why nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused<P, F> {
    /// The place is not open.
    NoPlace(P),
    /// This one stands nowhere.
    NoConsumer(ConsumerId),
    /// It is to be removed twice.
    Twice(ConsumerId),
    /// The board has no room.
    Full(F),
}

/// One who is to come: its number, where it will stand, and what it is.
pub type Coming<K> = (Fresh, <K as Kind>::Place, <K as Kind>::Consumer);

/// What a refused change gives back: why, and who was to come.
pub type Unchanged<K, F> = (Refused<<K as Kind>::Place, F>, Vec<Coming<K>>);

/// A place and who stands there.
pub struct Standing<K: Kind> {
    /// What the owner keeps with it.
    pub site: K::Site,
    /// The consumers.
    pub members: Members<K>,
}

impl<K: Kind<Site: fmt::Debug, Consumer: fmt::Debug>> fmt::Debug for Standing<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standing").field("site", &self.site).field("members", &self.members).finish()
    }
}

/// See the file's head.
pub struct Book<K: Kind> {
    open: BTreeMap<K::Place, Standing<K>>,
    /// Where each of them stands.
    places: BTreeMap<ConsumerId, K::Place>,
    waiting: off::Waiting<K>,
    last: u64,
}

impl<K: Kind> Default for Book<K> {
    fn default() -> Book<K> {
        Book { open: BTreeMap::new(), places: BTreeMap::new(), waiting: off::Waiting::default(), last: 0 }
    }
}

impl<K: Kind> fmt::Debug for Book<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = (self.open.len(), self.places.len(), self.waiting.consumers());
        write!(f, "Book(places, consumers, taken off: {counts:?})")
    }
}

type Plans<K, D> = BTreeMap<<K as Kind>::Place, Plan<K, D>>;

/// What one change is to do at one place.
struct Plan<K: Kind, D> {
    gone: BTreeSet<ConsumerId>,
    come: Vec<(ConsumerId, K::Consumer)>,
    draft: Option<D>,
}

impl<K: Kind> Book<K> {
    /// The number of one who is to come. Not to come after all costs nothing but the number.
    pub fn fresh(&mut self) -> Fresh {
        #[cfg(not(mutant = "BOOK-1"))]
        {
            self.last += 1;
        }
        #[cfg(mutant = "BOOK-1")]
        {
            self.last = self.places.len() as u64 + 1;
        }
        Fresh(ConsumerId(self.last))
    }

    /// Opens a place, with those who come along with it. Their hits may come at once: who opens has published their list, or nobody hits
    /// there yet.
    pub fn open(
        &mut self,
        place: K::Place,
        site: K::Site,
        members: impl IntoIterator<Item = (Fresh, K::Consumer)>,
    ) {
        let members: Members<K> = members.into_iter().map(|(fresh, consumer)| (fresh.0, consumer)).collect();
        self.places.extend(members.keys().map(|id| (*id, place)));
        let before = self.open.insert(place, Standing { site, members });
        debug_assert!(before.is_none(), "a place that is open is opened");
    }

    /// Forgets a place; what was there. If hits may be in it, it must be handed to [`take_off`](Self::take_off).
    pub fn close(&mut self, place: K::Place) -> Option<Standing<K>> {
        let closed = self.open.remove(&place)?;
        for id in closed.members.keys() {
            self.places.remove(id);
        }
        Some(closed)
    }

    /// An open place.
    pub fn at(&self, place: K::Place) -> Option<&Standing<K>> {
        self.open.get(&place)
    }

    /// All open places.
    pub fn open_places(&self) -> impl Iterator<Item = K::Place> {
        self.open.keys().copied()
    }

    /// Where a consumer stands; `None` if it never came, or was taken off.
    pub fn place_of(&self, id: ConsumerId) -> Option<K::Place> {
        self.places.get(&id).copied()
    }

    /// A consumer that stands somewhere.
    pub fn consumer(&self, id: ConsumerId) -> Option<&K::Consumer> {
        self.open.get(self.places.get(&id)?)?.members.get(&id)
    }

    /// Takes consumers off and puts others on, at any number of places. Each place gets one list, published once.
    ///
    /// What went is off, and waits from the next [`begin`](Self::begin) on.
    ///
    /// # Errors
    /// Why nothing was changed, and those who were to come.
    pub fn change<B: Board<K>>(
        &mut self,
        come: Vec<Coming<K>>,
        gone: &[ConsumerId],
        board: &mut B,
    ) -> Result<(), Unchanged<K, B::Full>> {
        let mut plans = match self.plan(&come, gone) {
            Ok(plans) => plans,
            Err(why) => return Err((why, come)),
        };
        #[cfg(not(mutant = "BOOK-2"))]
        if let Err(why) = self.reserve(&mut plans, &come, board) {
            plans.into_values().filter_map(|plan| plan.draft).for_each(|draft| board.forget(draft));
            return Err((why, come));
        }
        for (fresh, place, consumer) in come {
            self.places.insert(fresh.0, place);
            if let Some(plan) = plans.get_mut(&place) {
                plan.come.push((fresh.0, consumer));
            }
        }
        for (place, plan) in plans {
            #[cfg(mutant = "BOOK-2")]
            let plan = match board.reserve(place, 0) {
                Ok(draft) => Plan { draft: Some(draft), ..plan },
                Err(full) => return Err((Refused::Full(full), Vec::new())),
            };
            self.carry_out(place, plan, board);
        }
        Ok(())
    }

    /// Which places change, and who goes there; `come` is looked at, and stays with the caller.
    fn plan<D, F>(
        &self,
        come: &[Coming<K>],
        gone: &[ConsumerId],
    ) -> Result<Plans<K, D>, Refused<K::Place, F>> {
        let mut plans: Plans<K, D> = BTreeMap::new();
        let none = || Plan { gone: BTreeSet::new(), come: Vec::new(), draft: None };
        for id in gone {
            let place = self.places.get(id).ok_or(Refused::NoConsumer(*id))?;
            if !plans.entry(*place).or_insert_with(none).gone.insert(*id) {
                return Err(Refused::Twice(*id));
            }
        }
        for (_, place, _) in come {
            if !self.open.contains_key(place) {
                return Err(Refused::NoPlace(*place));
            }
            plans.entry(*place).or_insert_with(none);
        }
        Ok(plans)
    }

    /// Room for each new list.
    fn reserve<B: Board<K>>(
        &self,
        plans: &mut Plans<K, B::Draft>,
        come: &[Coming<K>],
        board: &mut B,
    ) -> Result<(), Refused<K::Place, B::Full>> {
        let mut coming: BTreeMap<K::Place, usize> = BTreeMap::new();
        come.iter().for_each(|(_, place, _)| *coming.entry(*place).or_default() += 1);
        for (place, plan) in plans {
            let now = self.open.get(place).map_or(0, |standing| standing.members.len());
            let len = now - plan.gone.len() + coming.get(place).copied().unwrap_or_default();
            plan.draft = Some(board.reserve(*place, len).map_err(Refused::Full)?);
        }
        Ok(())
    }

    fn carry_out<B: Board<K>>(&mut self, place: K::Place, plan: Plan<K, B::Draft>, board: &mut B) {
        let (Some(standing), Some(draft)) = (self.open.get_mut(&place), plan.draft) else { return };
        let gone: Vec<_> = plan
            .gone
            .iter()
            .filter_map(|id| {
                self.places.remove(id);
                Some((*id, standing.members.remove(id)?))
            })
            .collect();
        let come: Vec<ConsumerId> = plan.come.iter().map(|(id, _)| *id).collect();
        standing.members.extend(plan.come);
        let (step, mut old) = (Step { members: &standing.members, come: &come, gone: &gone }, Vec::new());
        board.publish(place, &mut standing.site, draft, &step, &mut old);
        self.waiting.take_off(old.into_iter().map(Off::List));
        self.waiting.take_off(gone.into_iter().map(|(id, consumer)| Off::Consumer(id, consumer)));
    }
}

/// What was taken off.
impl<K: Kind> Book<K> {
    /// Has something wait that hits can find no more.
    pub fn take_off(&mut self, off: Off<K>) {
        self.waiting.take_off([off]);
    }

    /// From here on all that was taken off waits.
    pub fn begin(&mut self, clock: &impl Clock<K>) {
        self.waiting.begin(clock);
    }

    /// What has waited for all that it must; its owner may use it for something else.
    pub fn ripe(&mut self, clock: &impl Clock<K>) -> Vec<Off<K>> {
        self.waiting.ripe(clock)
    }

    /// Takes out what need not wait any more, or whose waits are the caller's from here on.
    pub fn take(&mut self, is_meant: impl Fn(&Off<K>) -> bool) -> Vec<Off<K>> {
        self.waiting.take(is_meant)
    }

    /// The last ticket of a wait that one of these waits for.
    pub fn awaited(&self, wait: usize, is_meant: impl Fn(&Off<K>) -> bool) -> Option<K::Ticket> {
        self.waiting.awaited(wait, is_meant)
    }

    /// All that is off and not out, the oldest last in no order of its own.
    pub fn off(&self) -> impl Iterator<Item = &Off<K>> {
        self.waiting.all()
    }

    /// Consumers that are off and may still be called.
    pub fn off_consumers(&self) -> usize {
        self.waiting.consumers()
    }

    /// How much is off and has not begun to wait.
    pub fn off_idle(&self) -> usize {
        self.waiting.idle()
    }
}
