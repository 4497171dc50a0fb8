//! What is off its list: the queue of those who wait.
//!
//! For:     `Book`.
//! State:   what was taken off and has not begun to wait; batches with the wait and the ticket of each; what is through.
//! Context: as the book's.
//! Keeps:   K3 and K4 of the book.
//! Checked: as there.

use super::{ConsumerId, Kind};

/// Something that hits find no more and may still be in.
pub enum Off<K: Kind> {
    /// One who was called.
    Consumer(ConsumerId, K::Consumer),
    /// A list that was walked.
    List(K::List),
    /// A place that was closed.
    Probe(K::Probe),
}

/// Says when all that a ticket waits for has passed.
pub trait Clock<K: Kind> {
    /// A ticket of now: whoever may be inside now has left when it is over.
    fn ticket(&self, wait: usize) -> K::Ticket;
    /// True if it is over.
    fn is_over(&self, wait: usize, ticket: K::Ticket) -> bool;
}

/// Those who wait for one ticket.
struct Batch<K: Kind> {
    wait: usize,
    ticket: K::Ticket,
    off: Vec<Off<K>>,
}

/// See the file's head.
pub(super) struct Waiting<K: Kind> {
    idle: Vec<Off<K>>,
    batches: Vec<Batch<K>>,
    through: Vec<Off<K>>,
    consumers: usize,
}

impl<K: Kind> Default for Waiting<K> {
    fn default() -> Waiting<K> {
        Waiting { idle: Vec::new(), batches: Vec::new(), through: Vec::new(), consumers: 0 }
    }
}

fn consumers<K: Kind>(off: &[Off<K>]) -> usize {
    off.iter().filter(|off| matches!(off, Off::Consumer(..))).count()
}

impl<K: Kind> Waiting<K> {
    pub fn take_off(&mut self, off: impl IntoIterator<Item = Off<K>>) {
        let before = self.idle.len();
        self.idle.extend(off);
        self.consumers += consumers(&self.idle[before..]);
        #[cfg(mutant = "BOOK-3")]
        {
            self.idle.truncate(before);
        }
    }

    pub fn begin(&mut self, clock: &impl Clock<K>) {
        let idle = core::mem::take(&mut self.idle);
        self.enter(0, idle, clock);
    }

    /// Puts each into the first wait from this one on that it asks for.
    fn enter(&mut self, from: usize, off: Vec<Off<K>>, clock: &impl Clock<K>) {
        let mut rest = off;
        for wait in from..K::WAITS {
            #[cfg(mutant = "BOOK-4")]
            if wait + 1 == K::WAITS {
                break;
            }
            let (now, later): (Vec<_>, Vec<_>) = rest.into_iter().partition(|off| K::waits(off, wait));
            rest = later;
            if now.is_empty() {
                continue;
            }
            let ticket = clock.ticket(wait);
            let is_same = |batch: &&mut Batch<K>| batch.wait == wait && batch.ticket == ticket;
            #[cfg(mutant = "BOOK-5")]
            let is_same = |batch: &&mut Batch<K>| batch.wait == wait;
            match self.batches.last_mut().filter(is_same) {
                Some(batch) => batch.off.extend(now),
                None => self.batches.push(Batch { wait, ticket, off: now }),
            }
        }
        self.through.extend(rest);
    }

    pub fn ripe(&mut self, clock: &impl Clock<K>) -> Vec<Off<K>> {
        for wait in 0..K::WAITS {
            let is_over = |batch: &mut Batch<K>| batch.wait == wait && clock.is_over(wait, batch.ticket);
            #[cfg(mutant = "BOOK-6")]
            let is_over = |batch: &mut Batch<K>| clock.is_over(0, batch.ticket);
            let over: Vec<_> = self.batches.extract_if(.., is_over).collect();
            for batch in over {
                self.enter(batch.wait + 1, batch.off, clock);
            }
        }
        #[cfg(mutant = "BOOK-7")]
        self.through.append(&mut self.idle);
        self.out()
    }

    fn out(&mut self) -> Vec<Off<K>> {
        self.consumers -= consumers(&self.through);
        core::mem::take(&mut self.through)
    }

    pub fn take(&mut self, is_meant: impl Fn(&Off<K>) -> bool) -> Vec<Off<K>> {
        for batch in &mut self.batches {
            self.through.extend(batch.off.extract_if(.., |off| is_meant(off)));
        }
        self.batches.retain(|batch| !batch.off.is_empty());
        self.through.extend(self.idle.extract_if(.., |off| is_meant(off)));
        self.out()
    }

    pub fn awaited(&self, wait: usize, is_meant: impl Fn(&Off<K>) -> bool) -> Option<K::Ticket> {
        let is_one = |batch: &&Batch<K>| batch.wait == wait && batch.off.iter().any(&is_meant);
        self.batches.iter().rfind(is_one).map(|batch| batch.ticket)
    }

    pub fn all(&self) -> impl Iterator<Item = &Off<K>> {
        self.batches.iter().flat_map(|batch| &batch.off).chain(&self.idle).chain(&self.through)
    }

    pub fn consumers(&self) -> usize {
        self.consumers
    }

    pub fn idle(&self) -> usize {
        self.idle.len()
    }
}
