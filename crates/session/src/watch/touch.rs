//! One access to watched bytes, and what is to be known of it.
//!
//! For:     both kinds of watchpoints and the command line.
//! State:   the facts.
//! Context: control.
//! Keeps:   T1 what is not known is `None`, never a guess.
//! Checked: testkit `watching`.

use std::collections::HashMap;

/// How much is to be known of each access, beside its count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Detail {
    /// Nothing.
    Count,
    /// Thread, place, and value before and after.
    Values,
    /// The calls that led to it, too.
    Stacks,
}

/// One access to watched bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Which watch, by its number.
    pub watch: usize,
    /// Which process: the watched one, or a child of it.
    pub pid: i32,
    /// Who.
    pub tid: i32,
    /// Where in the code.
    pub at: At,
    /// The watched bytes before, as a little-endian number.
    pub before: Option<u64>,
    /// And after.
    pub after: Option<u64>,
    /// Who called.
    pub stack: Stack,
}

/// What is known of a thread's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Return addresses, innermost first.
    pub frames: Vec<u64>,
    /// There may be more.
    pub is_cut: bool,
}

/// What is known of the instruction that made the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// It starts here.
    Instruction(u64),
    /// The processor stopped here after it.
    Behind(u64),
}

/// Frames that are looked for.
pub(super) const FRAMES_MAX: usize = 32;

/// What each watch held after its last known access, to say what it held before the next.
#[derive(Debug, Default)]
pub(super) struct Last(HashMap<(usize, i32), Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    value: Option<u64>,
    lost: u64,
}

impl Last {
    /// Notes a value; the one before, if nothing was lost between the two.
    pub(super) fn next(&mut self, watch: usize, pid: i32, value: Option<u64>, lost: u64) -> Option<u64> {
        self.then(watch, pid, lost, |_| value).0
    }

    /// The value before, if nothing was lost since, and the one that follows from it.
    pub(super) fn then(
        &mut self,
        watch: usize,
        pid: i32,
        lost: u64,
        follow: impl FnOnce(Option<u64>) -> Option<u64>,
    ) -> (Option<u64>, Option<u64>) {
        let seen = self.0.get(&(watch, pid)).filter(|seen| seen.lost == lost);
        let before = seen.and_then(|seen| seen.value);
        let value = follow(before);
        self.0.insert((watch, pid), Seen { value, lost });
        (before, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_before_is_told_only_if_nothing_was_lost_since() {
        let mut last = Last::default();
        assert_eq!(last.next(0, 7, Some(1), 0), None);
        assert_eq!(last.next(0, 7, Some(2), 0), Some(1));
        assert_eq!(last.next(1, 7, Some(9), 0), None);
        assert_eq!(last.next(0, 8, Some(9), 0), None);
        assert_eq!(last.next(0, 7, Some(3), 1), None);
        assert_eq!(last.next(0, 7, None, 1), Some(3));
        assert_eq!(last.next(0, 7, Some(4), 1), None);
    }
}
