//! Running a script in the controller.
//!
//! For:     `nanoprobe -e`, `nanoprobe run` and the name `bpftrace`.
//! State:   [`Machine`]: maps, what was printed, counts of what went wrong.
//! Context: control.
//! Keeps:   R1 programs run one after the other on crate `bpf`'s interpreter, each with bounded fuel.
//!          R2 records are read in the order in which programs left them, each once.
//! Checked: `tests/scripts.rs`, `tests/output.rs`, `torture lang`.

mod events;
mod failures;
mod histogram;
mod host;
mod look;
mod machine;
mod maps;
mod names;
mod os;
mod out;
mod printf;
mod report;
mod sample;
mod series;
mod show;
mod stacks;
mod traced;

pub use look::{clear, lengths, printed};
pub use machine::{Ended, Machine, Mode, Settings};
pub use maps::{Full, Shared, image_of, merge, replace, shared, specs};
pub use names::signal_number;
pub use out::{Buffering, Format, Kept, Out};
pub use sample::Sample;
pub use traced::{Engine, Frame, Look, Symbols, Told, Traced, Untraced};

/// The names of the numbers 0 and on, as far as they have any.
pub(crate) fn names_of(of: bpf::helper::Named) -> Vec<String> {
    use bpf::helper::Named;
    match of {
        Named::Error => (0..ERRORS).map(os::error_text).collect(),
        Named::Signal => (0..SIGNALS).map(os::signal_text).collect(),
        Named::Syscall => (0..names::SYSCALLS_END).map(names::syscall).collect(),
    }
}

/// What is said of other numbers where nobody can look them up.
pub(crate) fn no_name(of: bpf::helper::Named) -> &'static [u8] {
    use bpf::helper::Named;
    match of {
        Named::Error => b"Unknown error",
        Named::Signal => b"N/A",
        Named::Syscall => b"",
    }
}

/// One more than Linux's highest errno.
const ERRORS: i32 = 134;
/// One more than the highest signal.
const SIGNALS: i32 = 65;

/// An error of the system in its words, without its number.
pub fn out_error(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), os::error_text)
}
