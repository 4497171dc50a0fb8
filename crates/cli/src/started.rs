//! Programs that followed processes and their children start.
//!
//! For:     verbs and scripts with `--follow`.
//! State:   of each process that is followed, who listens to its execs; what became of those that listened before.
//! Context: control.
//! Keeps:   S1 every process has its turn, however often another one execs.
//!          S2 who has listened and ended is counted, and one that still stands is handed over to be detached.
//! Checked: testkit `follows`, `together`.

use session::{Execs, Held, Images, Session};
use std::time::Instant;

/// Who listens.
#[derive(Default)]
pub struct Started {
    /// Of each program that is followed.
    execs: Vec<Execs>,
    /// Whose turn it is.
    turn: usize,
    /// Programs of which we heard too late.
    unheard: u64,
    /// Records that could not be believed of what is not listened to any more.
    damaged: u64,
    /// Rings of closed bells that cannot be true.
    forged: u64,
}

impl Started {
    /// Listens to a process too.
    ///
    /// # Errors
    /// Why it cannot be listened to, in words.
    pub fn listen(&mut self, images: &mut Images, pid: i32) -> Result<(), String> {
        self.execs.extend(Execs::listen(images, pid)?);
        Ok(())
    }

    /// True if nobody is listened to.
    pub fn is_empty(&self) -> bool {
        self.execs.is_empty()
    }

    /// True as long as one of those that are listened to runs its program.
    pub fn is_alive(&self) -> bool {
        self.execs.iter().any(Execs::is_alive)
    }

    /// Goes with the next thread that is about to exec to the entry point of the new program; `None`: nobody waits, or `end` is past.
    pub fn next(&mut self, end: Instant, is_asked: &mut dyn FnMut() -> bool) -> Option<Held> {
        let mut quiet = 0;
        while quiet < self.execs.len() && Instant::now() < end && !is_asked() {
            let turn = self.turn % self.execs.len();
            self.turn = turn + 1;
            if !self.execs[turn].is_rung() {
                quiet += 1;
                continue;
            }
            quiet = 0;
            if let Some(held) = self.execs[turn].follow(is_asked) {
                return Some(held);
            }
        }
        None
    }

    /// Does not listen any more to programs that have ended.
    pub fn forget_ended(&mut self) {
        let none = self.forget(|execs| !execs.is_alive());
        debug_assert!(none.is_empty());
    }

    /// Listens to nobody any more; what is to be detached.
    pub fn close(&mut self) -> Vec<Session> {
        self.forget(|_| true)
    }

    fn forget(&mut self, is_over: impl Fn(&Execs) -> bool) -> Vec<Session> {
        let (over, rest) = std::mem::take(&mut self.execs).into_iter().partition(is_over);
        self.execs = rest;
        let mut closed = Vec::new();
        for execs in over {
            self.unheard = self.unheard.saturating_add(execs.unheard());
            self.damaged = self.damaged.saturating_add(execs.damaged());
            self.forged = self.forged.saturating_add(execs.forged());
            // Of what has ended there is nothing to take out.
            if execs.is_alive() {
                closed.push(execs.close());
            }
        }
        closed
    }

    /// How many programs were started of which we heard too late; known when all is closed.
    pub fn unheard(&self) -> u64 {
        self.unheard
    }

    /// Records that could not be believed; known when all is closed.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// How many rings named a thread that is not of the process that rang; known when all is closed.
    pub fn forged(&self) -> u64 {
        self.forged
    }
}

/// The children of a process, and theirs.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut all = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        let children = session::living_children(parent);
        all.extend(&children);
        parents.extend(children);
        if all.len() > DESCENDANTS_MAX {
            break;
        }
    }
    all
}

/// Of a process with more we look at some.
const DESCENDANTS_MAX: usize = 10_000;
