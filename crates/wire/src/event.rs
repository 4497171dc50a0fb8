//! Events on their way to the controller.
//!
//! For:     `trace`: what stands in a record of a CPU's ring.
//! State:   none; the rings are `map::Ring`s in the arena, one for each CPU.
//! Context: hit, control.
//! Keeps:   E1 an event and its words are the same; words that no hit writes are no event.
//! Checked: tests below; testkit `tracing`, `hostile`.

use crate::TRACE_JUMP;

/// What an event says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Time stamp counter.
    pub stamp: u64,
    /// Which call: entry and exit have the same.
    pub place: u64,
    /// Number of the function, with [`TRACE_JUMP`] or without, and above it 1 for an entry, 2 for an exit.
    pub what: u64,
    /// Thread, 0 if it cannot be told; above it, from [`Event::STACK_SHIFT`] on, the stack of an entry ([`Event::stack`]).
    pub tid: u64,
    /// First arguments; at an exit what is returned, and the stamp of the entry, 0 if that was not written.
    pub values: [u64; 3],
}

impl Event {
    /// Words of an event: with a record's header a cache line.
    pub const WORDS: usize = 7;
    /// Above the function's number in `what`.
    pub const ENTRY: u64 = 1 << 32;
    /// The same for an exit.
    pub const EXIT: u64 = 2 << 32;
    /// Where in `tid` the stack begins.
    pub const STACK_SHIFT: u32 = 32;
    /// Where in a stack it stands why it ends, or why there is none: the walk's reason, or a cell of `walk_cell`.
    pub const WHY_SHIFT: u32 = 16;
    /// Bytes of one CPU's ring: 16,384 events.
    pub const RING_BYTES: usize = 1 << 20;
    /// From one CPU's ring to the next one's: its bytes, and a page for the head.
    pub const RING_STRIDE: usize = Event::RING_BYTES + 4096;

    /// The function's number.
    pub fn function(&self) -> u32 {
        self.what as u32 & !TRACE_JUMP
    }

    /// The stack: its number and one more, 0 if it has none; and from [`Event::WHY_SHIFT`] on why.
    pub fn stack(&self) -> u32 {
        (self.tid >> Event::STACK_SHIFT) as u32
    }

    /// An exit, and not an entry.
    pub fn is_exit(&self) -> bool {
        self.what & Event::EXIT != 0
    }

    /// An exit that is a jump to another function: what is returned is not known there.
    pub fn is_jump(&self) -> bool {
        self.what as u32 & TRACE_JUMP != 0
    }

    /// As it stands in a record.
    #[inline(always)]
    pub fn words(self) -> [u64; Event::WORDS] {
        let Event { stamp, place, what, tid, values: [first, second, third] } = self;
        [stamp, place, what, tid, first, second, third]
    }

    /// The event that these words are, if they are an entry or an exit.
    pub fn of(words: [u64; Event::WORDS]) -> Option<Event> {
        let [stamp, place, what, tid, first, second, third] = words;
        let event = Event { stamp, place, what, tid, values: [first, second, third] };
        matches!(what & !u64::from(u32::MAX), Event::ENTRY | Event::EXIT).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_any_stack_has_room() {
        const { assert!(crate::STACKS_MAX < 1 << Event::WHY_SHIFT) };
        let event = Event { tid: 4 | 0x2_4001 << Event::STACK_SHIFT, ..Event::default() };
        assert_eq!((event.stack(), event.tid as u32), (0x2_4001, 4));
    }

    #[test]
    fn an_event_is_read_back_from_its_words_and_nothing_else_is_one() {
        let event = Event { stamp: 1, place: 2, what: Event::EXIT | 7, tid: 4, values: [5, 6, 8] };
        assert_eq!(Event::of(event.words()), Some(event));
        assert_eq!((event.function(), event.is_exit(), event.is_jump()), (7, true, false));
        let jump = Event { what: event.what | u64::from(TRACE_JUMP), ..event };
        assert_eq!((jump.function(), jump.is_exit(), jump.is_jump()), (7, true, true));
        assert!(!Event { what: Event::ENTRY | 7, ..event }.is_exit());
        for what in [0, 7, 3 << 32, Event::EXIT << 1, u64::MAX] {
            assert_eq!(Event::of(Event { what, ..event }.words()), None, "{what:#x}");
        }
    }
}
