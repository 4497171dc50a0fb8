//! Consumers that come and go while hits run.
//!
//! For:     whoever holds a session.
//! State:   the book and `Readers`.
//! Context: control, while hits read; no thread of the target stands still.
//! Keeps:   C1 all of a change happens, or nothing of it.
//!          C2 a hit that begins after `change` returns calls exactly those on the new lists; one that was inside calls the
//!             old list or the new one of each hook, whole.
//!          C3 nobody waits here longer than asked for.
//! Checked: torture `tests/live.rs`; `torture live`.

use super::lists::{ConsumerId, Full, Gone, HITS, HookId, Lists, Member, Remote, is_of_change};
use super::readers::{Late, LiveBroken};
use super::session::Session;
use crate::enter::fence::Fence;
use crate::facts::program::{PROGRAM_CELLS, Runs};
use crate::facts::room::may_come_alone;
use crate::facts::site::Consumer;
use probe::book::{Clock, Coming, Off, Refused};
use std::fmt;
use std::time::{Duration, Instant};

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotChanged {
    /// This session has no such hook.
    NoHook(HookId),
    /// This session has no such consumer, or no more.
    NoConsumer(ConsumerId),
    /// The trampoline of this hook turns hits down for its program: it was armed for nobody else to come, or this one to go.
    Guarded(HookId),
    /// It was named twice.
    Twice(ConsumerId),
    /// What sees calls is at several sites together, and cannot come alone.
    NotAlone(Consumer),
    /// This session has no probe of its own at this address.
    NoProbe(u64),
    /// This session has no such program.
    NoProgram(u32),
    /// This program calls helpers, for which a goroutine has too little stack.
    LittleStack(u32),
    /// The trampoline does not save the registers that this consumer's handler needs; the site must be armed anew.
    Registers(Consumer),
    /// The room that the session was attached with is used up.
    NoRoom {
        /// Descriptors or cells that were wanted in a row.
        wanted: u32,
        /// Free ones of that kind.
        free: u32,
        /// Consumers that were taken off and whose room [`Session::settle`] would free.
        waiting: usize,
    },
}

impl fmt::Display for NotChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotChanged::NoHook(hook) => write!(f, "the session has no hook {}", hook.0),
            NotChanged::NoConsumer(id) => write!(f, "the session has no consumer {}", id.number()),
            NotChanged::Guarded(hook) => write!(
                f,
                "hook {} was armed for its one program; with room for others at the attach it can be changed",
                hook.0
            ),
            NotChanged::Twice(id) => write!(f, "consumer {} is to be removed twice", id.number()),
            NotChanged::NotAlone(_) => write!(f, "what times or shows calls needs all their sites at a time"),
            NotChanged::LittleStack(number) => {
                write!(
                    f,
                    "the site is in Go code, which has too little stack for the helpers of program {number}"
                )
            }
            NotChanged::NoProbe(addr) => write!(f, "the session has no jump at {addr:#x}"),
            NotChanged::NoProgram(number) => write!(f, "the session has no program {number}"),
            NotChanged::Registers(_) => {
                write!(f, "the site was armed for consumers that need fewer registers saved")
            }
            NotChanged::NoRoom { wanted, free, waiting } => write!(
                f,
                "no room for {wanted} in a row in the session's memory: {free} are free, {waiting} consumers that were taken off \
                 are still waited for"
            ),
        }
    }
}

impl std::error::Error for NotChanged {}

/// What [`Session::settle`] has found.
#[derive(Debug, Default)]
pub struct Settled {
    /// Consumers that no hit will call again, with what each cell has counted, to the last hit.
    pub removed: Vec<(ConsumerId, Vec<u64>)>,
    /// Consumers that are taken off and may still be called by hits that are inside.
    pub waiting: usize,
    /// Why these are not settled.
    pub late: Option<Late>,
}

/// What grace periods of a session rest on, and have cost.
#[derive(Clone, Copy, Debug)]
pub struct GraceReport {
    /// How fences are made.
    pub fence: Fence,
    /// Grace periods that have ended.
    pub periods: u64,
    /// Fences that they took.
    pub fences: u64,
    /// How long the last one took.
    pub last: Option<Duration>,
    /// The longest time that a thread stood still for one.
    pub stall: Duration,
}

impl Session {
    /// The hooks of a site, in the order of its plan's actions; none if its hits are counted in the trampoline, or by the kernel.
    ///
    /// ```text
    /// hooks of a site that is an entry and an exit: [entry, exit]
    /// ```
    pub fn hooks(&self, addr: u64) -> Vec<HookId> {
        let armed = self.armed.iter().find(|a| a.plan.addr() == addr);
        armed.map(|a| a.hooks.clone().map(HookId).collect()).unwrap_or_default()
    }

    /// The consumers at a hook now, in the order in which a hit calls them.
    pub fn consumers(&self, hook: HookId) -> Vec<(ConsumerId, Consumer)> {
        let standing = self.places.book.at(hook);
        standing.map(|at| at.members.iter().map(|(id, m)| (*id, m.consumer)).collect()).unwrap_or_default()
    }

    /// Takes consumers off and puts others on, all at once and without stopping anybody; the numbers of the new ones.
    ///
    /// Each hook that is named gets one new list, published by one store. New ones come last on it. Hits that are inside may
    /// still call what was taken off, until [`settle`](Self::settle) says that it is gone; its room is in use until then.
    ///
    /// # Context
    /// Control. No thread of the process waits for it.
    /// # Cost
    /// As many descriptors written as the lists are long: `torture live` prints the rate.
    /// # Errors
    /// [`NotChanged`]; then nothing was.
    pub fn change(
        &mut self,
        add: &[(HookId, Consumer)],
        remove: &[ConsumerId],
    ) -> Result<Vec<ConsumerId>, NotChanged> {
        remove.iter().try_for_each(|id| self.may_go(*id))?;
        let (mut come, mut refused) = (Vec::with_capacity(add.len()), None);
        for (hook, consumer) in add {
            match self.coming(*hook, *consumer) {
                Ok(one) => come.push(one),
                Err(why) => {
                    refused = Some(why);
                    break;
                }
            }
        }
        let ids = come.iter().map(|(fresh, ..)| fresh.id()).collect();
        let unchanged = match refused {
            Some(why) => Some((why, come)),
            None => self.publish(come, remove).err(),
        };
        let Some((why, come)) = unchanged else { return Ok(ids) };
        come.into_iter().for_each(|(.., member)| self.places.cells.give(member.cells));
        Err(why)
    }

    /// The change as the book makes it.
    fn publish(
        &mut self,
        come: Vec<Coming<Remote>>,
        gone: &[ConsumerId],
    ) -> Result<(), (NotChanged, Vec<Coming<Remote>>)> {
        let Session { places, regions, readers, .. } = self;
        let is_in_place = readers.broken == Some(LiveBroken::InPlace);
        let (descriptors, off) = (&mut places.descriptors, &places.off);
        let mut lists = Lists { arena: &regions.arena, descriptors, off, is_in_place };
        if let Err((why, come)) = places.book.change(come, gone, &mut lists) {
            return Err((refusal(why, places.waiting()), come));
        }
        // After the last store: all hits that may be on an old list are waited for.
        places.book.begin(readers);
        Ok(())
    }

    /// Whether a consumer can be taken off.
    fn may_go(&self, id: ConsumerId) -> Result<(), NotChanged> {
        let hook = self.places.book.place_of(id).ok_or(NotChanged::NoConsumer(id))?;
        let is_guarded = self.places.book.at(hook).is_some_and(|at| at.site.is_guarded);
        if is_guarded { Err(NotChanged::Guarded(hook)) } else { Ok(()) }
    }

    /// Whether a consumer may come to this session, wherever.
    pub(crate) fn check(&self, consumer: Consumer) -> Result<(), NotChanged> {
        if !may_come_alone(consumer) {
            return Err(NotChanged::NotAlone(consumer));
        }
        match consumer.program() {
            Some((number, _)) if self.programs.get(number).is_none() => Err(NotChanged::NoProgram(number)),
            _ => Ok(()),
        }
    }

    /// A consumer at the end of its hook's list, with a number and cells.
    fn coming(&mut self, hook: HookId, consumer: Consumer) -> Result<Coming<Remote>, NotChanged> {
        self.check(consumer)?;
        let is_go = self.armed.iter().any(|a| a.plan.is_go && a.hooks.contains(&hook.0));
        if let Some((number, _)) = consumer.program().filter(|_| is_go)
            && self.programs.get(number).is_some_and(|program| !program.suits_goroutine())
        {
            return Err(NotChanged::LittleStack(number));
        }
        let site = &self.places.book.at(hook).ok_or(NotChanged::NoHook(hook))?.site;
        if site.is_guarded {
            return Err(NotChanged::Guarded(hook));
        }
        if site.uses(consumer) & !site.saved.bits() != 0 {
            return Err(NotChanged::Registers(consumer));
        }
        let (places, wanted) = (&mut self.places, consumer.cells());
        let Some(cells) = places.cells.take(wanted) else {
            let (free, waiting) = (places.cells.free(), places.waiting());
            return Err(NotChanged::NoRoom { wanted, free, waiting });
        };
        Ok((places.book.fresh(), hook, Member { consumer, cells, is_first: false }))
    }

    /// Waits until no hit can call what was taken off, `patience` at most, and uses its room anew.
    ///
    /// One grace period serves all changes that were made before it. With no patience it still ends at once if nobody is inside
    /// who must be waited for. What is still waited for is asked for again by the next call.
    ///
    /// # Context
    /// Control, may wait. No thread of the process stands still, unless the kernel has no other fence
    /// ([`GraceReport::fence`]).
    /// # Cost
    /// Two fences at most, one where nobody is inside: 16 ms each with [`Fence::Global`], some microseconds with
    /// [`Fence::Expedited`] (docs/measurements.md).
    pub fn settle(&mut self, patience: Duration) -> Settled {
        let mut settled = Settled::default();
        let until = Instant::now() + patience;
        while let Some(last) = self.places.book.awaited(HITS, is_of_change) {
            let (arena, regions) = (&self.regions.arena, &self.regions.regions);
            let waited = match self.readers.is_over(HITS, last) {
                true => Ok(()),
                false => self.readers.wait(arena, &self.memory, regions, until),
            };
            // Of a process that is no more nobody is inside.
            let is_over = matches!(waited, Err(Late::Over));
            let out = match is_over {
                true => self.places.book.take(is_of_change),
                false => self.places.book.ripe(&self.readers),
            };
            let probes = self.give_back(out, &mut settled);
            debug_assert!(probes.is_empty(), "nobody has looked whether a thread is in them");
            if let Err(late) = waited {
                settled.late = Some(late).filter(|_| !is_over);
                break;
            }
        }
        settled.waiting = self.places.book.off_consumers();
        settled
    }

    /// Returns once every hit that is inside has left, `patience` at most; how long that took. `None`: no site here has readers.
    ///
    /// # Context
    /// As for [`settle`](Self::settle).
    /// # Errors
    /// Why they were not seen to leave.
    pub fn wait_for_hits(&mut self, patience: Duration) -> Result<Option<Duration>, Late> {
        if self.places.book.open_places().next().is_none() {
            return Ok(None);
        }
        let until = Instant::now() + patience;
        self.readers.wait(&self.regions.arena, &self.memory, &self.regions.regions, until)?;
        Ok(self.readers.took)
    }

    /// Uses the room of what the book has handed out; the probes among it.
    pub(crate) fn give_back(&mut self, out: Vec<Off<Remote>>, settled: &mut Settled) -> Vec<Gone> {
        let Session { places, regions, .. } = self;
        let (arena, mut probes) = (&regions.arena, Vec::new());
        for off in out {
            match off {
                Off::Consumer(id, member) => {
                    settled.removed.push((id, cells_of(arena, &member)));
                    if !member.is_first {
                        places.give_cells(arena, member.cells);
                    }
                }
                Off::List(list) => places.descriptors.give(list),
                Off::Probe(gone) => probes.push(*gone),
            }
        }
        probes
    }

    /// What the cells of a consumer that is on a list have counted so far; `None` if it is on none.
    pub fn cells_of(&self, id: ConsumerId) -> Option<Vec<u64>> {
        Some(cells_of(&self.regions.arena, self.places.book.consumer(id)?))
    }

    /// What became of the hits of a program that is on a list; `None` of what is none.
    pub fn runs_of(&self, id: ConsumerId) -> Option<Runs> {
        self.cells_of(id).filter(|cells| cells.len() == PROGRAM_CELLS as usize).map(|cells| Runs::of(&cells))
    }

    /// Free descriptors and cells: less by what is on lists and what is waited for.
    pub fn free_room(&self) -> (u32, u32) {
        (self.places.descriptors.free(), self.places.cells.free())
    }

    /// What grace periods of this session rest on, and have cost so far.
    pub fn grace(&self) -> GraceReport {
        let (periods, fences) = self.readers.counts();
        GraceReport {
            fence: self.readers.fence,
            periods,
            fences,
            last: self.readers.took,
            stall: self.readers.stall,
        }
    }

    /// Breaks the changes of this session on purpose, for the torture test.
    #[doc(hidden)]
    pub fn break_on_purpose(&mut self, how: LiveBroken) {
        self.readers.broken = Some(how);
    }
}

fn refusal(why: Refused<HookId, Full>, waiting: usize) -> NotChanged {
    match why {
        Refused::NoPlace(hook) => NotChanged::NoHook(hook),
        Refused::NoConsumer(id) => NotChanged::NoConsumer(id),
        Refused::Twice(id) => NotChanged::Twice(id),
        Refused::Full(Full { wanted, free }) => NotChanged::NoRoom { wanted, free, waiting },
    }
}

fn cells_of(arena: &crate::enter::arena::Arena, member: &Member) -> Vec<u64> {
    member.cells.clone().map(|cell| arena.sum(cell * 8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Room;
    use crate::facts::inject::tests::Subject;
    use std::sync::atomic::Ordering;
    use wire::{COPY_CHILDREN, COPY_SHARED, cell};

    /// A hit that stands inside, as the counts have it: of the rank that hits enter now.
    fn enters(session: &Session, copy: usize, by: u64) {
        let arena = &session.regions.arena;
        let offset = arena.layout.copy(copy) + cell::entered(0) as usize;
        arena.view().word(offset).unwrap().fetch_add(by, Ordering::Relaxed);
    }

    fn attached(subject: &Subject) -> (Session, Vec<ConsumerId>) {
        let sites = subject.idle_site();
        let mut session = Session::attach_with_room(subject.pid(), sites, Room::for_counts(16)).unwrap();
        let hook = session.hooks(session.armed[0].plan.addr())[0];
        let added = session.change(&[(hook, Consumer::Count)], &[]).unwrap();
        assert_eq!(session.consumers(hook).len(), 2);
        (session, added)
    }

    fn leave(mut session: Session) {
        let receipt = session.detach().unwrap();
        assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
    }

    #[test]
    fn a_hit_that_stands_inside_is_waited_for_as_long_as_asked_and_no_longer() {
        const ASKED: Duration = Duration::from_millis(50);
        let subject = Subject::start();
        let (mut session, added) = attached(&subject);
        let free = session.free_room();
        enters(&session, COPY_SHARED, 1);
        session.change(&[], &added).unwrap();
        for _ in 0..2 {
            let began = Instant::now();
            let settled = session.settle(ASKED);
            assert!(matches!(settled.late, Some(Late::HitsInside)), "{settled:?}");
            assert!(began.elapsed() >= ASKED);
            assert_eq!((settled.removed.len(), settled.waiting), (0, 1));
        }
        enters(&session, COPY_SHARED, u64::MAX);
        let settled = session.settle(Duration::from_secs(60));
        assert_eq!(settled.removed, [(added[0], vec![0])]);
        assert!(session.free_room().0 > free.0 && session.grace().periods == 1);
        leave(session);
    }

    #[test]
    fn a_child_that_died_in_a_hit_is_not_waited_for_for_ever() {
        let subject = Subject::start();
        let (mut session, added) = attached(&subject);
        enters(&session, COPY_CHILDREN, 1);
        session.change(&[], &added).unwrap();
        let settled = session.settle(Duration::from_secs(60));
        assert!(settled.late.is_none() && settled.removed.len() == 1, "{settled:?}");
        leave(session);
    }

    /// What a hostile target can do to the wait for it: its readers' counts, ranks and cells are anything at any time.
    #[test]
    fn a_target_that_writes_over_its_counts_delays_nobody_and_breaks_nothing() {
        use std::os::unix::fs::FileExt;
        use std::sync::Arc;
        use std::sync::atomic::AtomicBool;
        const ASKED: Duration = Duration::from_millis(20);
        let subject = Subject::start();
        let (mut session, _) = attached(&subject);
        let arena = &session.regions.arena;
        let counts = arena.remote + arena.layout.copy(0) as u64..arena.remote + arena.layout.len() as u64;
        let path = format!("/proc/{}/mem", subject.pid());
        let memory = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let scribbler = std::thread::spawn({
            let is_over = is_over.clone();
            move || {
                let mut random = 5u64;
                while !is_over.load(Ordering::Relaxed) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    // The head of each copy more than the rest.
                    let len = if random & 1 == 0 { 64 } else { counts.end - counts.start };
                    let copy = (random >> 8) % ((counts.end - counts.start) / 4096) * 4096;
                    let at = counts.start
                        + (copy + (random >> 32) % len / 8 * 8) % (counts.end - counts.start - 8);
                    memory.write_all_at(&random.to_le_bytes(), at).unwrap();
                }
            }
        });
        let hook = session.hooks(session.armed[0].plan.addr())[0];
        let (mut settled, mut added) = (0, Vec::new());
        for _ in 0..100 {
            match session.change(&[(hook, Consumer::Count)], &added) {
                Ok(new) => added = new,
                Err(why) => assert!(matches!(why, NotChanged::NoRoom { .. }), "{why}"),
            }
            let began = Instant::now();
            settled += session.settle(ASKED).removed.len();
            // A fence may take as long as the kernel likes.
            assert!(began.elapsed() < ASKED + Duration::from_secs(20));
        }
        is_over.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
        assert!(settled + session.places.waiting() > 0);
        leave(session);
    }

    #[test]
    fn of_a_process_that_is_over_nothing_is_waited_for() {
        let subject = Subject::start();
        let (mut session, added) = attached(&subject);
        enters(&session, COPY_SHARED, 1);
        session.change(&[], &added).unwrap();
        drop(subject);
        let settled = session.settle(Duration::from_secs(60));
        assert!(settled.late.is_none() && settled.removed.len() == 1, "{settled:?}");
        assert!(session.detach().unwrap().was_gone());
    }
}
