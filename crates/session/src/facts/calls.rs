//! What is told of calls, whoever saw them.
//!
//! For:     `lat` and `trace`: jumps' handlers and the kernel's programs tell the same.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: testkit `returns`, `tracing`, `kernel`.

/// One end of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Time stamp counter.
    pub stamp: u64,
    /// Which call: equal at its entry and its exit.
    pub place: u64,
    /// The function's number in the plan.
    pub function: u32,
    /// At an exit.
    pub is_exit: bool,
    /// At an exit that is a jump to another function: what is returned is not known, and time ends there.
    pub is_jump: bool,
    /// Thread, 0 if it cannot be told.
    pub tid: u64,
    /// First arguments; at an exit what is returned, and the stamp of the entry, 0 if that was not seen.
    pub values: [u64; 3],
    /// At an entry, if it was asked for: the stack, as `wire::Event::stack` has it.
    pub stack: u32,
}

impl From<wire::Event> for Event {
    fn from(event: wire::Event) -> Event {
        let (function, is_exit, is_jump) = (event.function(), event.is_exit(), event.is_jump());
        let (stack, tid) = (event.stack(), u64::from(event.tid as u32));
        let wire::Event { stamp, place, values, .. } = event;
        Event { stamp, place, function, is_exit, is_jump, tid, values, stack }
    }
}

/// What became of calls that did not return. After the detach:
/// entries = returns + `unwound` + `inside` + `no_room`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCalls {
    /// A newer call began where they would have returned: left by an exception or longjmp, or begun again.
    pub unwound: u64,
    /// Not left yet, or unwound without a newer call.
    pub inside: u64,
    /// Not timed: their place in the table was taken.
    pub no_room: u64,
}
