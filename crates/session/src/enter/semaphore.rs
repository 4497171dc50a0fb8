//! The counts of tracers by which programs skip their USDT marks.
//!
//! For:     `U:`.
//! State:   in the target: a 16-bit number of the program's own, by convention changed by tracers only; and beside it a
//!          note in the header of the mark's trampoline, of what we have done to that number.
//! Context: control, in a stopped world: nobody else changes it meanwhile.
//! Keeps:   U1 every probe that is in has raised its mark's count by one, and lowers it when it leaves, exactly once:
//!             whoever leaves goes by the note, be it the one that came, a second try of it, or who finds it dead.
//!          U2 so it is if we die between any two writes: the note says beforehand what is to be done and from which
//!             value, and the number itself then shows whether it was. A forked child has its own note with its own
//!             number.
//! Checked: tests below; `inject`; testkit `marks`, `endings`.

use crate::facts::error::Broken;
use crate::find::memory::Memory;
use std::mem::offset_of;
use wire::TrampolineHeader;

/// Bits of an address of a process.
const ADDRESS_BITS: u32 = if cfg!(target_arch = "aarch64") { 48 } else { 47 };
/// Of the number, what fits beside: enough to tell it from the one after it.
const COUNT_BITS: u32 = 62 - ADDRESS_BITS;

/// What we have done to a semaphore, in one word: the address in its low bits, 0 for none; two bits for what is being
/// done; the count from which it is done, less its highest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    Untouched,
    Raised { at: u64 },
    Raising { at: u64, from: u16 },
    Lowering { at: u64, from: u16 },
}

impl Note {
    fn word(self) -> u64 {
        let with = |at: u64, kind: u64, from: u16| {
            at | kind << ADDRESS_BITS | (u64::from(from) & ((1 << COUNT_BITS) - 1)) << (ADDRESS_BITS + 2)
        };
        match self {
            Note::Untouched => 0,
            Note::Raised { at } => at,
            Note::Raising { at, from } => with(at, 1, from),
            Note::Lowering { at, from } => with(at, 2, from),
        }
    }

    fn of(word: u64) -> Note {
        let at = word & ((1 << ADDRESS_BITS) - 1);
        let from = (word >> (ADDRESS_BITS + 2)) as u16;
        match word >> ADDRESS_BITS & 3 {
            _ if at == 0 => Note::Untouched,
            1 => Note::Raising { at, from },
            2 => Note::Lowering { at, from },
            _ => Note::Raised { at },
        }
    }

    fn read(memory: &Memory, place: u64) -> Result<Note, Broken> {
        let mut word = [0; 8];
        memory.read(place, &mut word)?;
        Ok(Note::of(u64::from_le_bytes(word)))
    }

    fn write(self, memory: &Memory, place: u64) -> Result<(), Broken> {
        memory.write(place, &self.word().to_le_bytes())
    }
}

/// The semaphore that a note is of.
pub(crate) fn noted(word: u64) -> Option<u64> {
    match Note::of(word) {
        Note::Untouched => None,
        Note::Raised { at } | Note::Raising { at, .. } | Note::Lowering { at, .. } => Some(at),
    }
}

/// Where a trampoline has its note.
fn place(entry: u64) -> u64 {
    entry - TrampolineHeader::LEN as u64 + offset_of!(TrampolineHeader, semaphore) as u64
}

/// One more tracer, by the trampoline at `entry`. A count that is full stays full.
pub(crate) fn raise(memory: &Memory, entry: u64, at: u64) -> Result<(), Broken> {
    raise_by(memory, place(entry), at)
}

/// One tracer less, if the trampoline at `entry` has raised it. A count that the program has cleared stays 0.
pub(crate) fn lower(memory: &Memory, entry: u64) -> Result<(), Broken> {
    lower_by(memory, place(entry))
}

/// The semaphore of which the trampoline at `entry` has a note, if that can be read.
pub(crate) fn whose(memory: &Memory, entry: u64) -> Option<u64> {
    noted(memory.word(place(entry))?)
}

fn raise_by(memory: &Memory, place: u64, at: u64) -> Result<(), Broken> {
    if at >> ADDRESS_BITS != 0 || settled(memory, place)? != Note::Untouched {
        return Ok(());
    }
    let from = count(memory, at)?;
    if from < u16::MAX {
        Note::Raising { at, from }.write(memory, place)?;
        memory.write(at, &(from + 1).to_le_bytes())?;
        Note::Raised { at }.write(memory, place)?;
    }
    Ok(())
}

fn lower_by(memory: &Memory, place: u64) -> Result<(), Broken> {
    let Note::Raised { at } = settled(memory, place)? else { return Ok(()) };
    let from = count(memory, at)?;
    if from > 0 {
        Note::Lowering { at, from }.write(memory, place)?;
        memory.write(at, &(from - 1).to_le_bytes())?;
    }
    Note::Untouched.write(memory, place)
}

/// What a note means now, if somebody was killed over it: it is done, or was not begun. If others have changed the number
/// since, it is taken to be lower than it could be: one too many costs time, one too few another tracer's marks.
fn settled(memory: &Memory, place: u64) -> Result<Note, Broken> {
    let is =
        |at: u64, wanted: u16| count(memory, at).map(|found| (found ^ wanted) & ((1 << COUNT_BITS) - 1) == 0);
    let note = Note::read(memory, place)?;
    let settled = match note {
        Note::Raising { at, from } if is(at, from.wrapping_add(1))? => Note::Raised { at },
        Note::Lowering { at, from } if is(at, from)? => Note::Raised { at },
        Note::Raising { .. } | Note::Lowering { .. } => Note::Untouched,
        known => return Ok(known),
    };
    settled.write(memory, place)?;
    Ok(settled)
}

fn count(memory: &Memory, at: u64) -> Result<u16, Broken> {
    let mut count = [0; 2];
    memory.read(at, &mut count)?;
    Ok(u16::from_le_bytes(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::SeqCst};

    /// A semaphore and a note in this process.
    struct Own {
        memory: Memory,
        count: AtomicU16,
        note: AtomicU64,
    }

    impl Own {
        fn with(count: u16) -> Box<Own> {
            let memory = Memory::open(sys::getpid().cast_signed()).unwrap();
            Box::new(Own { memory, count: AtomicU16::new(count), note: AtomicU64::new(0) })
        }

        fn at(&self) -> u64 {
            self.count.as_ptr() as u64
        }

        fn place(&self) -> u64 {
            self.note.as_ptr() as u64
        }

        fn raise(&self) -> u16 {
            raise_by(&self.memory, self.place(), self.at()).unwrap();
            self.count.load(SeqCst)
        }

        fn lower(&self) -> u16 {
            lower_by(&self.memory, self.place()).unwrap();
            self.count.load(SeqCst)
        }
    }

    #[test]
    fn raised_once_and_lowered_once_however_often_it_is_tried() {
        let own = Own::with(5);
        assert_eq!((own.lower(), own.raise(), own.raise()), (5, 6, 6));
        assert_eq!((own.lower(), own.lower(), own.note.load(SeqCst)), (5, 5, 0));
    }

    #[test]
    fn who_was_killed_at_any_write_is_made_up_for_once() {
        for count in [0, 5, 0x7fff, 0x8000, u16::MAX - 1] {
            let own = Own::with(count);
            let at = own.at();
            // Killed after the note, and after the number.
            own.note.store(Note::Raising { at, from: count }.word(), SeqCst);
            assert_eq!((own.lower(), own.lower()), (count, count), "not raised yet");
            own.note.store(Note::Raising { at, from: count }.word(), SeqCst);
            own.count.store(count + 1, SeqCst);
            assert_eq!((own.lower(), own.lower()), (count, count), "raised, not said yet");
            own.count.store(count + 1, SeqCst);
            own.note.store(Note::Lowering { at, from: count + 1 }.word(), SeqCst);
            assert_eq!((own.lower(), own.lower()), (count, count), "not lowered yet");
            own.note.store(Note::Lowering { at, from: count + 1 }.word(), SeqCst);
            assert_eq!((own.lower(), own.lower()), (count, count), "lowered, not said yet");
        }
    }

    #[test]
    fn full_and_cleared_counts_stay() {
        let own = Own::with(u16::MAX);
        assert_eq!((own.raise(), own.lower()), (u16::MAX, u16::MAX));
        let own = Own::with(0);
        own.raise();
        own.count.store(0, SeqCst);
        assert_eq!(own.lower(), 0);
    }
}
