//! The command that a script is run with, by `-c`.
//!
//! For:     who traces its process: live, or the kernel.
//! State:   none: the launched process is the caller's.
//! Context: control.
//! Keeps:   C1 the guard knows it before it can do anything.
//! Checked: testkit `scripts`, `backends`.

use super::live::Which;
use crate::guard::Guard;
use crate::stop::Stop;
use session::Launched;
use std::time::{Duration, Instant};

/// How long it may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_millis(500);

/// Starts it, and holds it before its first instruction; `None` if there is none.
pub fn start(which: &Which, stop: &mut Stop, guard: &mut Guard) -> Result<Option<Launched>, String> {
    let Which::Command(words) = which else { return Ok(None) };
    let Some((program, args)) = words.split_first() else {
        return Err("ERROR: -c takes a command".into());
    };
    let launched = Launched::start(program, args, stop.heritage, || stop.is_asked());
    let launched = launched.map_err(|broken| format!("ERROR: {broken}"))?;
    guard.tell(launched.pid());
    stop.command = launched.pid();
    Ok(Some(launched))
}

/// Asks it to end, and waits for that a while.
pub fn end(launched: &Launched) {
    if launched.ended().is_none() {
        launched.terminate(libc::SIGTERM);
    }
    let end = Instant::now() + PATIENCE;
    while launched.ended().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
}
