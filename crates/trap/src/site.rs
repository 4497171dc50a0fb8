//! One breakpoint, and how its instruction is run.
//!
//! For:     the handler, which finds a site by its address.
//! State:   a node of the engine's tree.
//! Context: made and freed: target. Read: hit.
//! Keeps:   S1 a site is freed after a grace period of the engine's readers.
//! Checked: `tests/engine.rs`, `torture xol`.

use crate::engine::Lookup;
use crate::jump::{Jump, NoJump, Way};
use insn::Rung;
use insn::{Emulation, NoSlot, SlotCode};
use probe::UprobeRef;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use text::xol::{Area, Binding};

pub(crate) struct Site {
    pub emulation: Option<Emulation>,
    /// There is none only if emulation cannot fail.
    pub code: Option<SlotCode>,
    pub area: &'static Area,
    pub binding: Binding,
    pub lookup: Lookup,
    pub uprobe: UprobeRef,
    /// The byte under the breakpoint.
    pub first: u8,
    /// All consumers want it gone.
    pub is_unwanted: AtomicBool,
    /// The jump that it was given.
    pub gate: Option<&'static Jump>,
    /// The jump stands there, or is being written or taken away.
    pub is_jump: AtomicBool,
    /// Why it is a breakpoint.
    pub no_jump: Mutex<Option<NoJump>>,
}

impl Site {
    /// Where a breakpoint there leads, in the place of the consumers.
    #[inline]
    pub fn jump(&self) -> Option<&'static Jump> {
        // The jump itself is known since before the site could be found.
        self.gate.filter(|_| self.is_jump.load(Relaxed))
    }

    /// How it stands.
    pub fn way(&self) -> Way {
        let why = crate::engine::lock(&self.no_jump).clone();
        match self.jump() {
            Some(jump) => Way { rung: jump.placement.rung, no_jump: None },
            None => Way { rung: Rung::Trap, no_jump: why },
        }
    }
}

/// How an instruction at `at` would be run.
pub(crate) fn prepare(bytes: &[u8], at: u64) -> Result<(Option<Emulation>, Option<SlotCode>), NoSlot> {
    match (Emulation::of(bytes, at), SlotCode::of(bytes, at)) {
        (emulation, Ok(code)) => Ok((emulation, Some(code))),
        (Some(emulation), Err(NoSlot::Unencodable)) => Ok((Some(emulation), None)),
        (_, Err(why)) => Err(why),
    }
}

/// True if it can be run at all.
pub(crate) fn can_run(bytes: &[u8], at: u64) -> bool {
    prepare(bytes, at).is_ok()
}
