//! What helpers did not do, told at the end.
//!
//! For:     the machine.
//! State:   none of its own: the counts lie beside the maps.
//! Context: control.
//! Keeps:   W1 whatever a program was not given is told, by cause, with how often.
//! Checked: testkit `scripts`.

use super::machine::Machine;
use super::out::Format;
use wire::maps::HelperError;

/// A cause, as a name and in words.
fn named(cause: HelperError) -> (&'static str, &'static str) {
    match cause {
        HelperError::MapFull => ("map_full", "keys that a full map did not take"),
        HelperError::MapBusy => ("map_busy", "changes of a map at a place that somebody else was changing"),
        HelperError::BadArgument => {
            ("bad_argument", "calls of helpers with arguments that are not the program's")
        }
        HelperError::ReadFault => ("read_fault", "reads of memory that is not there"),
        HelperError::ReadRefused => ("read_refused", "reads that the process is not allowed to make"),
        HelperError::RingFull => ("ring_full", "records that found their ring full"),
        HelperError::RecordTooLong => ("record_too_long", "records that are longer than a ring"),
        HelperError::NoHelper => ("no_helper", "calls of helpers that there are not at hits"),
        HelperError::Call => ("call", "system calls that failed"),
        HelperError::StackFull => {
            ("stack_full", "stacks that are empty: more different ones were met than there is room for")
        }
        HelperError::StackBusy => {
            ("stack_busy", "stacks that are empty: too many threads were in hits at once")
        }
        HelperError::StackOfChild => {
            ("stack_of_child", "stacks that are empty: those of forked children are not walked")
        }
        HelperError::StackNotKnown => {
            ("stack_not_known", "stacks that end early, in memory that is not known to be the thread's stack")
        }
        HelperError::StackNoFrame => {
            ("stack_no_frame", "stacks that end early, in code without unwind information and frame pointers")
        }
        HelperError::StackUnknown => {
            ("stack_unknown", "stacks that end early, where unwind information is missing or not understood")
        }
        HelperError::StackNotUp => {
            ("stack_not_up", "stacks that end early: the next frame would not lie above")
        }
    }
}

impl Machine {
    /// How often by cause, without those that never came.
    fn failures(&self) -> Vec<(HelperError, u64)> {
        let maps = self.shared.borrow();
        let count = |cause| {
            let own = if cause == HelperError::ReadFault { self.memory.failed_reads } else { 0 };
            (cause, maps.errors(cause).saturating_add(own))
        };
        HelperError::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }

    /// A line for each cause; in JSON one object.
    pub(super) fn tell_failures(&mut self) {
        let failures = self.failures();
        if failures.is_empty() {
            return;
        }
        match self.out.format {
            Format::Text => {
                for (cause, count) in failures {
                    self.say(&format!("Not done: {count} {}.\n", named(cause).1));
                }
            }
            Format::Json => {
                let of = |(cause, count): &(HelperError, u64)| format!("\"{}\": {count}", named(*cause).0);
                let all: Vec<String> = failures.iter().map(of).collect();
                self.out.line("helper_errors", &format!("{{{}}}", all.join(", ")));
            }
        }
    }
}
