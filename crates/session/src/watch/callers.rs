//! Who called, of a thread that has stopped or whose stack was copied.
//!
//! For:     both kinds of watchpoints.
//! State:   the unwind tables of the process's modules, here and not in the process.
//! Context: control.
//! Keeps:   C1 frames are those that hits would find: the tables, the frame pointers and the walk are the same.
//! Checked: testkit `watching`.

use super::touch::{FRAMES_MAX, Stack};
use crate::enter::walks::Tables;
use crate::find::memory::Memory;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unwind::{Registers, Stop, walk};

/// How often modules that have come since are looked for.
const LOOK: Duration = Duration::from_millis(200);

/// What a process's stacks are walked by.
#[derive(Debug)]
pub(super) struct Callers {
    memory: Arc<Memory>,
    tables: Tables,
    looked: Instant,
}

/// Words of a thread's stack, from wherever they are.
struct Words<R> {
    read: R,
    has_unknown: bool,
}

impl<R: FnMut(u64) -> Option<u64>> unwind::Stack for Words<R> {
    fn word(&mut self, addr: u64) -> Option<u64> {
        (self.read)(addr)
    }

    fn unknown(&mut self, _: u64) {
        self.has_unknown = true;
    }
}

impl Callers {
    /// Of a process that is there.
    pub fn of(memory: Arc<Memory>) -> Callers {
        let tables = Tables::of(&memory);
        Callers { memory, tables, looked: Instant::now() }
    }

    /// The calls that led to where a thread is with these registers; `read` gives words of its stack.
    pub fn find(&mut self, registers: Registers, read: impl FnMut(u64) -> Option<u64>) -> Stack {
        let mut words = Words { read, has_unknown: false };
        let (frames, stop) = self.walked(registers, &mut words);
        if !words.has_unknown || self.looked.elapsed() < LOOK {
            return stack(&frames, stop);
        }
        self.looked = Instant::now();
        match self.tables.look(&self.memory) {
            true => {
                let (frames, stop) = self.walked(registers, &mut words);
                stack(&frames, stop)
            }
            false => stack(&frames, stop),
        }
    }

    fn walked(&self, registers: Registers, words: &mut impl unwind::Stack) -> (Vec<u64>, Stop) {
        let mut frames = Vec::new();
        let (_, stop) =
            walk(self.tables.tables(), registers, words, false, FRAMES_MAX + 1, |_, pc| frames.push(pc));
        (frames, stop)
    }
}

/// Without the place of the access itself.
fn stack(frames: &[u64], stop: Stop) -> Stack {
    Stack { frames: frames.get(1..).unwrap_or_default().to_vec(), is_cut: stop != Stop::Outermost }
}
