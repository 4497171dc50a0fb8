//! Whether an instruction starts at an address of which no function is known.
//!
//! For:     `place`, for addresses in files without symbols and unwind tables.
//! State:   none.
//! Context: control. Cost: some 20 us.
//! Keeps:   G1 an address is taken for a start only if reading from every byte before it, from far enough away, comes to
//!          it or to bytes that are no instruction; or if it is a known function's.
//!          G2 what is read there agrees with itself: no direct branch nearby leads between its instructions, and nothing
//!          is known to lead inside the instruction at the address. Otherwise the address is refused.
//! Checked: tests/computed.rs.

use std::ops::Range;

use crate::arch::native;
use crate::code::Code;
use crate::flow::Flow;
use crate::reason::Refusal;

/// How far before the address reading begins.
const FAR: u64 = 512;
/// Reading that begins closer to the address than this may not have found the instructions yet.
const NEAR: u64 = 64;
/// How far behind the address branches are looked at.
const BEHIND: u64 = 256;

impl Flow {
    /// `Ok` when an instruction starts at `addr`, as far as the code around it and the known starts tell.
    ///
    /// # Errors
    /// [`Refusal::MidInstruction`] or [`Refusal::UnknownBoundary`].
    pub fn unknown_boundary(&self, code: &Code<'_>, addr: u64) -> Result<(), Refusal> {
        let start = self.start_before(addr).filter(|start| *start >= code.base).unwrap_or(code.base);
        if start == addr {
            return Ok(());
        }
        // A known start close by is the one place from which to read.
        let first = if addr - start <= FAR { start..start + 1 } else { addr - FAR..addr - NEAR };
        self.agreed(code, first, addr)
    }

    /// The same where data may stand from `from` on: reading has to come to `addr` from every byte.
    pub(crate) fn boundary_behind_data(&self, code: &Code<'_>, from: u64, addr: u64) -> Result<(), Refusal> {
        let from = from.max(addr.saturating_sub(FAR));
        let to = if addr - from > NEAR { addr - NEAR } else { addr };
        self.agreed(code, from..to, addr)
    }

    /// Whether all reading from these bytes comes to `addr`, and nothing around contradicts it.
    fn agreed(&self, code: &Code<'_>, first: Range<u64>, addr: u64) -> Result<(), Refusal> {
        let around = Around::read(code, first.start, addr);
        let read: Vec<Come> = first.map(|from| around.come(from)).collect();
        let over = read.iter().find_map(|come| match come {
            Come::Over { start } => Some(*start),
            _ => None,
        });
        let unclear = |at| Err(Refusal::UnknownBoundary { asked: addr, at });
        match (read.contains(&Come::To), over) {
            (true, None) => {}
            (false, Some(start)) => return Err(Refusal::MidInstruction { asked: addr, start }),
            (_, over) => return unclear(over.unwrap_or(addr)),
        }
        match self.contradiction(code, &around, addr) {
            Some(at) => unclear(at),
            None => Ok(()),
        }
    }

    /// A place that is led to and is inside what would be an instruction near `addr`.
    fn contradiction(&self, code: &Code<'_>, around: &Around, addr: u64) -> Option<u64> {
        let mut insns: Vec<Range<u64>> = around.way(addr);
        let mut at = addr;
        while at < addr + BEHIND {
            let Some(class) = native::decode(code.from_addr(at), at) else { break };
            insns.push(at..class.insn.end());
            at = class.insn.end();
        }
        let inside = |to: u64| {
            let before = insns.partition_point(|insn| insn.start <= to).checked_sub(1)?;
            let insn = &insns[before];
            // A jump over a lock prefix leads inside.
            let is_locked = code.from_addr(insn.start).first() == Some(&0xf0) && to == insn.start + 1;
            (insn.start < to && to < insn.end && !is_locked).then_some(to)
        };
        let own = insns.iter().find(|insn| insn.start == addr)?;
        let led = self.first_target(own.start + 1..own.end).and_then(inside);
        led.or_else(|| {
            insns
                .iter()
                .find_map(|insn| inside(native::branch_target(code.from_addr(insn.start), insn.start)?))
        })
    }
}

/// Where reading from a byte comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Come {
    To,
    /// The instruction that covers the address.
    Over {
        start: u64,
    },
    /// To bytes that are no instruction.
    Nowhere,
}

/// The bytes before an address, each read as the first of an instruction.
struct Around {
    from: u64,
    addr: u64,
    /// Lengths, 0 for none.
    lens: Vec<u8>,
    come: Vec<Come>,
}

impl Around {
    fn read(code: &Code<'_>, from: u64, addr: u64) -> Around {
        let len =
            |at: u64| native::decode(code.from_addr(at), at).map_or(0, |class| class.insn.len_bytes() as u8);
        let lens: Vec<u8> = (from..addr).map(len).collect();
        let mut come = vec![Come::Nowhere; lens.len()];
        for at in (0..lens.len()).rev() {
            let next = at + usize::from(lens[at]);
            come[at] = match come.get(next) {
                _ if lens[at] == 0 => Come::Nowhere,
                Some(come) => *come,
                None if next == lens.len() => Come::To,
                None => Come::Over { start: from + at as u64 },
            };
        }
        Around { from, addr, lens, come }
    }

    fn come(&self, at: u64) -> Come {
        self.come[(at - self.from) as usize]
    }

    /// The instructions on the way to the address that all reading ends on.
    fn way(&self, addr: u64) -> Vec<Range<u64>> {
        debug_assert_eq!(addr, self.addr);
        let Some(mut at) = self.come.iter().position(|come| *come == Come::To) else { return Vec::new() };
        let mut insns = Vec::new();
        while at < self.lens.len() {
            let next = at + usize::from(self.lens[at]);
            insns.push(self.from + at as u64..self.from + next as u64);
            at = next;
        }
        // What is first read from the middle of an instruction is none.
        let settled = insns.partition_point(|insn| insn.start <= self.from + NEAR);
        insns.split_off(settled.min(insns.len()))
    }
}
