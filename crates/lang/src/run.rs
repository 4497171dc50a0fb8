//! Running a script in the controller.
//!
//! For:     `nanoprobe -e`, `nanoprobe run` and the name `bpftrace`.
//! State:   [`Machine`]: maps, what was printed, counts of what went wrong.
//! Context: control.
//! Keeps:   R1 programs run one after the other on crate `bpf`'s interpreter, each with bounded fuel.
//!          R2 records are read in the order in which programs left them, each once.
//! Checked: `tests/scripts.rs`, `tests/output.rs`, `tests/generated.rs`.

mod events;
mod failures;
mod histogram;
mod host;
mod machine;
mod maps;
mod names;
mod os;
mod out;
mod printf;
mod report;
mod series;
mod show;
mod stacks;
mod traced;

pub use machine::{Ended, Machine, Mode, Settings};
pub use maps::{Shared, specs};
pub use names::signal_number;
pub use out::{Buffering, Format, Out};
pub use traced::{Engine, Frame, Look, Symbols, Traced, Untraced};

/// An error of the system in its words, without its number.
pub fn out_error(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), os::error_text)
}
