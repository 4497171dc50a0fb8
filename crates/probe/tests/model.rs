//! The book against a model of its hits: they come between any two steps of the book, and walk what they have found.
//!
//! For:     `Book`, which the registry and `session` use.
//! State:   a made-up space: lists, hits inside, and leases that outlive hits.
//! Context: control. The same runs each time.
//! Keeps:   nothing that a hit or a lease can reach is handed out; everything is, in the end; a refused change is none; no number comes
//!          twice.
//! Checked: `cargo xtask mutants BOOK-1 ...`: each breaks the book, and one of these fails.

use probe::book::{Board, Book, Clock, ConsumerId, Fresh, Kind, Off, Refused, Standing, Step};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

struct Model;

/// A list as hits see it: who is on it, in their order.
type List = Vec<ConsumerId>;

impl Kind for Model {
    type Place = u8;
    /// The list that hits find.
    type Site = Option<usize>;
    type Consumer = u32;
    type List = usize;
    type Probe = Standing<Model>;
    type Ticket = u64;
    const WAITS: usize = 2;

    fn waits(off: &Off<Model>, wait: usize) -> bool {
        match off {
            // Leased by those who are on a list.
            Off::Consumer(..) | Off::Probe(_) => true,
            Off::List(_) => wait == 0,
        }
    }
}

/// Somebody inside: a hit on a list, or a lease of those who are on it.
struct Inside {
    since: u64,
    place: u8,
    list: usize,
}

/// What hits see and do.
#[derive(Default)]
struct World {
    now: Cell<u64>,
    lists: RefCell<Vec<List>>,
    found: RefCell<BTreeMap<u8, usize>>,
    hits: RefCell<Vec<Inside>>,
    leases: RefCell<Vec<Inside>>,
    room: Cell<usize>,
    random: Cell<u64>,
    /// Lists that were replaced.
    replaced: RefCell<BTreeSet<usize>>,
    /// What was handed out, which nobody may meet.
    out: RefCell<(BTreeSet<ConsumerId>, BTreeSet<usize>)>,
}

fn swap_out(all: &mut Vec<Inside>, one: usize) -> Inside {
    let at = one % all.len();
    all.swap_remove(at)
}

impl World {
    fn below(&self, bound: u64) -> u64 {
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        (random >> 11) % bound
    }

    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    /// A hit may begin, take a lease, leave it, and end.
    fn hits_go_on(&self) {
        // Without a seed nobody comes but whom a test sends.
        let count = if self.random.get() == 0 { 0 } else { self.below(4) };
        for _ in 0..count {
            let since = self.tick();
            let (mut hits, mut leases) = (self.hits.borrow_mut(), self.leases.borrow_mut());
            let one = self.below(60) as usize;
            match self.below(4) {
                0 => {
                    let place = self.below(3) as u8;
                    let found = self.found.borrow().get(&place).copied();
                    hits.extend(found.map(|list| Inside { since, place, list }));
                }
                1 if !hits.is_empty() => {
                    let hit = swap_out(&mut hits, one);
                    leases.push(Inside { since, ..hit });
                }
                2 if !hits.is_empty() => drop(swap_out(&mut hits, one)),
                3 if !leases.is_empty() => drop(swap_out(&mut leases, one)),
                _ => {}
            }
        }
        self.look();
    }

    /// Nobody who is inside meets what was handed out.
    fn look(&self) {
        let (out, lists) = (self.out.borrow(), self.lists.borrow());
        for hit in self.hits.borrow().iter() {
            assert!(!out.1.contains(&hit.list), "a hit is on a list that was handed out");
        }
        for inside in self.hits.borrow().iter().chain(self.leases.borrow().iter()) {
            let met = lists[inside.list].iter().find(|id| out.0.contains(id));
            assert_eq!(met, None, "who is inside at {} meets one who was handed out", inside.place);
        }
    }

    fn is_empty(&self) -> bool {
        self.hits.borrow().is_empty() && self.leases.borrow().is_empty()
    }
}

impl Clock<Model> for &World {
    fn ticket(&self, _: usize) -> u64 {
        self.tick()
    }

    fn is_over(&self, wait: usize, ticket: u64) -> bool {
        let inside = if wait == 0 { &self.hits } else { &self.leases };
        inside.borrow().iter().all(|inside| inside.since > ticket)
    }
}

impl Board<Model> for &World {
    type Draft = ();
    type Full = usize;

    fn reserve(&mut self, _: u8, len: usize) -> Result<(), usize> {
        self.hits_go_on();
        let left = self.room.get().checked_sub(1).ok_or(len)?;
        self.room.set(left);
        Ok(())
    }

    fn forget(&mut self, (): ()) {
        self.room.set(self.room.get() + 1);
    }

    fn publish(
        &mut self,
        place: u8,
        site: &mut Option<usize>,
        (): (),
        step: &Step<'_, Model>,
        old: &mut Vec<usize>,
    ) {
        self.hits_go_on();
        let mut lists = self.lists.borrow_mut();
        lists.push(step.members.keys().copied().collect());
        old.extend(site.replace(lists.len() - 1));
        self.replaced.borrow_mut().extend(old.iter());
        self.found.borrow_mut().insert(place, lists.len() - 1);
        drop(lists);
        self.hits_go_on();
    }
}

/// A book, its world, and what should stand where.
struct Run<'w> {
    world: &'w World,
    book: Book<Model>,
    wanted: BTreeMap<u8, Vec<(ConsumerId, u32)>>,
    ids: BTreeSet<ConsumerId>,
    /// Who went, until they are handed out.
    expected: BTreeSet<ConsumerId>,
}

impl<'w> Run<'w> {
    fn new(world: &'w World) -> Run<'w> {
        let mut run = Run {
            world,
            book: Book::default(),
            wanted: BTreeMap::new(),
            ids: BTreeSet::new(),
            expected: BTreeSet::new(),
        };
        for place in 0..3 {
            run.open(place);
        }
        run
    }

    fn fresh(&mut self) -> Fresh {
        let fresh = self.book.fresh();
        assert!(self.ids.insert(fresh.id()), "a number comes twice");
        fresh
    }

    fn open(&mut self, place: u8) {
        let first = self.fresh();
        let id = first.id();
        let mut lists = self.world.lists.borrow_mut();
        lists.push(vec![id]);
        self.book.open(place, Some(lists.len() - 1), [(first, 0)]);
        self.world.found.borrow_mut().insert(place, lists.len() - 1);
        self.wanted.insert(place, vec![(id, 0)]);
    }

    /// One change of a few at a few places, which may be refused.
    fn change(&mut self) {
        let all: Vec<ConsumerId> = self.wanted.values().flatten().map(|(id, _)| *id).collect();
        let (mut come, mut gone) = (Vec::new(), Vec::new());
        for _ in 0..self.world.below(3) {
            let (place, value) = (self.world.below(4) as u8, self.world.below(100) as u32);
            come.push((self.fresh(), place, value));
        }
        for _ in 0..self.world.below(3).min(all.len() as u64) {
            gone.push(all[self.world.below(all.len() as u64) as usize]);
        }
        let named: Vec<_> = come.iter().map(|(fresh, place, value)| (fresh.id(), *place, *value)).collect();
        self.world.room.set(self.world.below(4) as usize);
        let before = self.world.found.borrow().clone();
        match self.book.change(come, &gone, &mut { self.world }) {
            Ok(()) => self.changed(&named, &gone),
            Err((why, back)) => {
                let back: Vec<_> =
                    back.into_iter().map(|(fresh, place, value)| (fresh.id(), place, value)).collect();
                assert_eq!(
                    (back, &before),
                    (named.clone(), &*self.world.found.borrow()),
                    "refused, and changed"
                );
                self.refused(why, &named, &gone);
            }
        }
    }

    fn changed(&mut self, named: &[(ConsumerId, u8, u32)], gone: &[ConsumerId]) {
        for list in self.wanted.values_mut() {
            list.retain(|(id, _)| !gone.contains(id));
        }
        for (id, place, value) in named {
            self.wanted.get_mut(place).unwrap().push((*id, *value));
        }
        self.expected.extend(gone);
    }

    fn refused(&self, why: Refused<u8, usize>, named: &[(ConsumerId, u8, u32)], gone: &[ConsumerId]) {
        match why {
            Refused::NoPlace(place) => assert!(!self.wanted.contains_key(&place)),
            Refused::NoConsumer(id) => panic!("{id:?} is there"),
            Refused::Twice(id) => assert_eq!(gone.iter().filter(|gone| **gone == id).count(), 2),
            Refused::Full(_) => assert!(!named.is_empty() || !gone.is_empty()),
        }
    }

    /// A place goes and, later, comes again.
    fn close_or_open(&mut self) {
        let place = self.world.below(3) as u8;
        let Some(list) = self.wanted.remove(&place) else { return self.open(place) };
        let standing = self.book.close(place).unwrap();
        self.world.found.borrow_mut().remove(&place);
        self.expected.extend(list.into_iter().map(|(id, _)| id));
        self.world.replaced.borrow_mut().extend(standing.site);
        self.world.hits_go_on();
        self.book.take_off(Off::Probe(standing));
    }

    fn collect(&mut self) {
        let ripe = self.book.ripe(&{ self.world });
        self.hand_out(ripe);
    }

    fn hand_out(&mut self, ripe: Vec<Off<Model>>) {
        let mut out = self.world.out.borrow_mut();
        for off in ripe {
            let (ids, list) = match off {
                Off::Consumer(id, _) => (vec![id], None),
                Off::List(list) => (Vec::new(), Some(list)),
                Off::Probe(Standing { site, members }) => (members.into_keys().collect(), site),
            };
            for id in ids {
                assert!(
                    self.expected.remove(&id) && out.0.insert(id),
                    "{id:?} is handed out, and never went or twice"
                );
            }
            if let Some(list) = list {
                assert!(
                    self.world.replaced.borrow().contains(&list) && out.1.insert(list),
                    "a list is handed out twice"
                );
            }
        }
        drop(out);
        self.world.look();
    }

    /// What the book says of itself is what was asked of it.
    fn compare(&self) {
        for place in 0..4 {
            let there = self.book.at(place).map(|standing| {
                let members: Vec<_> = standing.members.iter().map(|(id, value)| (*id, *value)).collect();
                let seen = &self.world.lists.borrow()[standing.site.unwrap()];
                assert!(members.iter().map(|(id, _)| id).eq(seen), "hits see others than the book has");
                members
            });
            assert_eq!(there.as_ref(), self.wanted.get(&place));
            for (id, value) in there.into_iter().flatten() {
                assert_eq!((self.book.place_of(id), self.book.consumer(id)), (Some(place), Some(&value)));
            }
        }
        let off = self.book.off().filter(|off| matches!(off, Off::Consumer(..))).count();
        assert_eq!(self.book.off_consumers(), off);
    }

    fn step(&mut self) {
        self.world.hits_go_on();
        match self.world.below(8) {
            0..=3 => self.change(),
            4 => self.close_or_open(),
            5 => self.book.begin(&{ self.world }),
            _ => self.collect(),
        }
        self.compare();
    }

    /// All hits leave, and everything comes out.
    fn end(&mut self) {
        self.book.begin(&{ self.world });
        while !self.world.is_empty() {
            self.world.hits_go_on();
        }
        self.collect();
        assert!(self.expected.is_empty(), "went, and was never handed out");
        assert_eq!(*self.world.replaced.borrow(), self.world.out.borrow().1);
        assert_eq!((self.book.off().count(), self.book.off_consumers(), self.book.off_idle()), (0, 0, 0));
    }
}

#[test]
fn hits_between_any_two_steps_meet_nothing_that_was_handed_out() {
    for seed in 1..=10_000 {
        let world = World::default();
        world.random.set(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut run = Run::new(&world);
        for _ in 0..40 {
            run.step();
        }
        run.end();
    }
}

#[test]
fn what_is_taken_off_together_waits_for_one_ticket() {
    let world = World::default();
    let mut book: Book<Model> = Book::default();
    book.open(0, None, []);
    let come = (0..50_000).map(|i| (book.fresh(), 0, i)).collect::<Vec<_>>();
    let ids: Vec<ConsumerId> = come.iter().map(|(fresh, ..)| fresh.id()).collect();
    world.room.set(2);
    book.change(come, &[], &mut &world).unwrap_or_else(|_| panic!("there is room"));
    book.change(Vec::new(), &ids, &mut &world).unwrap_or_else(|_| panic!("there is room"));
    let before = world.now.get();
    book.begin(&&world);
    let out = book.ripe(&&world).into_iter().filter(|off| matches!(off, Off::Consumer(..))).count();
    assert_eq!((out, world.now.get() - before), (50_000, 2), "one ticket of each wait");
}

#[test]
fn who_is_inside_keeps_what_it_may_reach_and_nothing_else() {
    let world = World::default();
    let mut book: Book<Model> = Book::default();
    book.open(0, None, []);
    let one = book.fresh();
    let id = one.id();
    world.room.set(9);
    assert!(book.change(vec![(one, 0, 5)], &[], &mut &world).is_ok());
    let list = world.found.borrow()[&0];
    let since = world.tick();
    world.hits.borrow_mut().push(Inside { since, place: 0, list });
    assert!(book.change(Vec::new(), &[id], &mut &world).is_ok());
    book.begin(&&world);
    assert!(book.awaited(0, |_| true).is_some() && book.ripe(&&world).is_empty());
    assert!(
        matches!(book.change(Vec::new(), &[id], &mut &world), Err((Refused::NoConsumer(of), _)) if of == id)
    );
    // The hit takes a lease, and leaves: the list is free, who was on it is not.
    let since = world.tick();
    world.hits.borrow_mut().clear();
    world.leases.borrow_mut().push(Inside { since, place: 0, list });
    let out = book.ripe(&&world);
    assert!(out.iter().all(|off| matches!(off, Off::List(_))) && book.off_consumers() == 1);
    world.leases.borrow_mut().clear();
    assert!(matches!(book.ripe(&&world)[..], [Off::Consumer(of, 5)] if of == id));
}
