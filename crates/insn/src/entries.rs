//! Which functions are entered by calls alone.
//!
//! For:     the red zone, which is unused where a call has just led.
//! State:   one bit for each byte of code, set for what something else than a call leads to.
//! Context: control. Cost: a few nanoseconds for each jump.
//! Keeps:   E1 a function start is not in the set only if no direct jump in the code that was swept leads there, the
//!          instruction before it does not fall into it, and the function and its parts elsewhere jump nowhere
//!          indirectly.
//!          E2 a jump that comes right after a call, with nothing but loads in between, does not count: the call had the
//!          red zone. Go begins a function again in this way when its stack has grown.
//! Checked: tests/red_zone.rs.

use std::ops::Range;

use crate::code::Code;
use crate::targets::Targets;

/// What a sweep has seen of the ways into functions.
#[derive(Debug)]
pub(crate) struct Entries {
    jumped: Targets,
    /// Functions that jump somewhere indirectly, by their starts.
    computed: Vec<u64>,
    /// Jumps from one function to the start of another: (start of the one, start of the other).
    across: Vec<(u64, u64)>,
    /// (from behind the call to behind the jump, the function).
    after_call: Vec<(Range<u64>, u64)>,
}

impl Entries {
    pub(crate) fn new(code: &[Code<'_>]) -> Entries {
        Entries { jumped: Targets::new(code), computed: vec![], across: vec![], after_call: vec![] }
    }

    /// Something else than a call leads to `to`.
    #[inline]
    pub(crate) fn add(&mut self, to: u64) {
        self.jumped.insert(to);
    }

    /// The function at `start` has an indirect jump.
    pub(crate) fn add_computed(&mut self, start: u64) {
        if self.computed.last() != Some(&start) {
            self.computed.push(start);
        }
    }

    /// The function at `start` jumps to the start of another.
    pub(crate) fn add_across(&mut self, start: u64, to: u64) {
        self.across.push((start, to));
    }

    /// The starts to which other functions jump.
    pub(crate) fn jumped_across(&self) -> impl Iterator<Item = u64> {
        self.across.iter().map(|(_, to)| *to)
    }

    /// The function at `start` jumps to its first instruction, and a call stands not far before.
    pub(crate) fn add_after_call(&mut self, way: Range<u64>, start: u64) {
        self.after_call.push((way, start));
    }

    /// To be called once all targets are known.
    pub(crate) fn finish(&mut self, targets: &Targets) {
        self.computed.sort_unstable();
        for (way, start) in std::mem::take(&mut self.after_call) {
            if targets.first_in(way).is_some() {
                self.jumped.insert(start);
            }
        }
        // A part elsewhere (`foo.cold`) may jump back by a register.
        for (start, to) in std::mem::take(&mut self.across) {
            if self.computed.binary_search(&to).is_ok() {
                self.jumped.insert(start);
            }
        }
        for start in std::mem::take(&mut self.computed) {
            self.jumped.insert(start);
        }
    }

    /// Whether calls alone lead to the function start `addr`.
    pub(crate) fn is_called_only(&self, addr: u64) -> bool {
        !self.jumped.contains(addr)
    }
}
