//! The rows of Go's own table of functions, as rules.
//!
//! For:     make.rs: Go's linker writes no `.eh_frame`.
//! State:   none.
//! Context: control.
//! Keeps:   G1 a function's frame is as long as the table says, at each of its instructions, also before and behind its frame
//!             pointer's. Where it goes over to another stack the walk ends.
//! Checked: tests/steps: a Go program, beside the calls that were seen.
//! Source:  Go 1.26: cmd/internal/obj/x86 (the frame pointer is saved below the return address), runtime's traceback.

use super::Builder;
use crate::rule::{Kind, LOST, Reg, Rule};
use image::{ElfImage, GoFrames, ImageAddr};
use std::ops::Range;

/// Bytes of a return address.
const RETURN: i32 = 8;

impl Builder {
    /// The functions of Go that begin in a gap.
    pub(super) fn go(&mut self, image: &ElfImage, gap: &Range<u64>, functions: &[GoFrames]) {
        let from = functions.partition_point(|f| f.range.start.0 < gap.start);
        for function in functions[from..].iter().take_while(|f| f.range.start.0 < gap.end) {
            self.go_function(function);
            self.end(function.range.end.0, gap, image);
        }
    }

    fn go_function(&mut self, function: &GoFrames) {
        let start = function.range.start.0;
        if function.is_outermost {
            return self.row(start, Rule::bare(Kind::Outermost));
        }
        self.row(start, Rule::bare(Kind::Unknown));
        if function.switches {
            // Where it goes over the table does not say: its first instruction is before that.
            self.row(start, Rule::plain(Reg::Rsp, RETURN));
            return self.row(start + 1, Rule::bare(Kind::Unknown));
        }
        for (ImageAddr(addr), below) in &function.rows {
            self.row(*addr, rule(function, *below));
        }
    }
}

fn rule(function: &GoFrames, below: u32) -> Rule {
    let Some(offset) = i32::try_from(below).ok().and_then(|below| below.checked_add(RETURN)) else {
        return Rule::bare(Kind::Unknown);
    };
    let mut rule = Rule::plain(Reg::Rsp, offset);
    if below >= 8 {
        rule.saved[0] = if function.is_assembly { LOST } else { -2 };
    }
    rule
}
