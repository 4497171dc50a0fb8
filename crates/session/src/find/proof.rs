//! Proofs: what a receipt may claim.
//!
//! For:     receipts.
//! State:   none; a value is a proof that somebody has looked.
//! Context: control.
//! Keeps:   P1 each is made in one place, and only by a look that could have failed.
//! Checked: tests below and of `leave/receipt.rs`; testkit `endings`.

use crate::facts::error::Broken;
use crate::find::memory::Memory;
use crate::find::process;

/// The process, or the program that it ran when we came, is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone(());

impl Gone {
    /// If the kernel says so: nobody has the memory any more, or the process has ended.
    pub fn proven(memory: &Memory) -> Option<Gone> {
        let is_replaced = || matches!(memory.check(), Err(Broken::Replaced { .. }));
        (memory.is_over() || process::is_ending(memory.pid) || is_replaced()).then_some(Gone(()))
    }
}

/// Everything that we had changed in the process's text or protection was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restored(());

impl Restored {
    /// If `differs`, of all that was read back, is empty.
    pub fn proven<T>(differs: &[T]) -> Option<Restored> {
        differs.is_empty().then_some(Restored(()))
    }
}

/// The kernel has taken all our mappings out of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmapped(());

impl Unmapped {
    /// If `answers`, of a call for each mapping, are all good.
    pub fn proven<E>(answers: impl Iterator<Item = Result<(), E>>) -> Result<Unmapped, E> {
        answers.collect::<Result<(), E>>().map(|()| Unmapped(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_lives_is_not_gone() {
        let memory = Memory::open(sys::getpid().cast_signed()).unwrap();
        assert_eq!(Gone::proven(&memory), None);
    }
}
