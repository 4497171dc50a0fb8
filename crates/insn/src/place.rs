//! The verdict on one site: which rung, what is displaced, what the trampoline need not save.
//!
//! For:     `session` (what to write where) and `explain` (why not higher).
//! State:   none.
//! Context: control. Cost: a few microseconds; an island search adds a decode of its neighbourhood.
//! Keeps:   G1 the rung is the highest of 1 to 5 that is safe by what `Flow` knows and for which there is room.
//!          G2 `why_not` has one reason for each higher rung.
//!          G3 only `patch_len` bytes at the site, and five at the island, need change; all other bytes of the
//!          displaced instructions stay as they are. A jump that leads into `pun` changes none behind them.
//! Checked: tests/ladder.rs.

use std::fmt;
use std::ops::Range;

use crate::arch::aarch64;
use crate::arch::native::{self, JUMP_BYTES, RegSet, SHORT_JUMP_BYTES};
use crate::code::{Code, Insn};
use crate::flow::Flow;
use crate::ladder::{Found, Ladder};
use crate::reason::{Reason, Refusal, Rung};

/// A site, and what the caller knows about it.
pub struct Asked<'a> {
    /// Image address to be probed.
    pub site: u64,
    /// The function that holds it, if known: instruction boundaries are then checked from its start, and the
    /// window does not fall out of its end. Else they are told from the code around it, or the site is refused.
    pub function: Option<Range<u64>>,
    /// The start of the next function, if the caller knows better than `Flow`.
    pub next_function: Option<u64>,
    /// Whether another probe, or an island of one, uses any byte of a range.
    pub taken: &'a dyn Fn(Range<u64>) -> bool,
    /// Whether the process has room for a trampoline at one of these addresses.
    pub room: &'a dyn Fn(Pun) -> bool,
}

/// For [`Asked::room`]: nowhere, so that no jump is punned.
pub fn no_room(_: Pun) -> bool {
    false
}

/// The addresses that a jump can lead to of whose displacement the last bytes stay as they are, as instructions
/// (instruction punning, PLDI 2017).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pun {
    /// The first image address. One below the image's start wraps around: the process's bias sets it right.
    pub first: u64,
    /// How many there are: a power of 256. One: only the first byte at the site changes.
    pub count: u64,
}

impl Pun {
    /// Of a five-byte jump at `site` that keeps all bytes behind the first `free` ones.
    pub(crate) fn of(site: u64, bytes: [u8; JUMP_BYTES as usize], free: u8) -> Pun {
        let mut displacement = [0; 4];
        displacement.copy_from_slice(&bytes[1..]);
        let count = 1u64 << (8 * (u32::from(free) - 1));
        let fixed = i64::from(i32::from_le_bytes(displacement)) & -(count as i64);
        Pun { first: site.wrapping_add(u64::from(JUMP_BYTES)).wrapping_add_signed(fixed), count }
    }

    /// The only address, if there is no choice.
    pub fn only(self, bias: u64) -> Option<u64> {
        (self.count == 1).then(|| self.first.wrapping_add(bias))
    }

    /// The addresses in a process.
    pub fn in_process(self, bias: u64) -> Range<u64> {
        let first = self.first.wrapping_add(bias);
        first..first.saturating_add(self.count)
    }
}

impl fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asked({:#x} in {:x?}, next {:x?})", self.site, self.function, self.next_function)
    }
}

/// A place among the displaced instructions where a probe runs, and what it need not save there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Bytes from the site to the instruction before which it runs; the length of all that is displaced: behind
    /// the last.
    pub offset: u8,
    /// The red zone below the stack pointer is proven to be unused: before the first instruction of a function to which
    /// calls alone lead, and at a return in Go, which has no red zone. At other returns it is dead by the ABI, but
    /// skipping it there costs nothing.
    pub is_red_zone_free: bool,
    /// The arithmetic flags are written before they are read on the path from there, into called functions too. What a
    /// function returns in them is live.
    pub flags_dead: bool,
    /// General registers that are written whole before they are read on the path from there.
    pub dead_regs: RegSet,
    /// There stands a conditional jump to this image address, and the probe runs only when it is taken.
    pub taken: Option<u64>,
    /// There stands a jump to another function, by which this one is left: what that one returns, and when, is not seen there.
    pub is_tail_call: bool,
}

impl Hook {
    pub(crate) fn new(codes: &[Code<'_>], site: u64, at: u64, is_red_zone_free: bool) -> Hook {
        let (dead_regs, flags_dead) = native::liveness(codes, at);
        let offset = (at - site) as u8;
        Hook { offset, is_red_zone_free, flags_dead, dead_regs, taken: None, is_tail_call: false }
    }
}

/// How a jump stands at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Image address of the first byte that changes.
    pub site: u64,
    /// Bytes of a landing pad before it, which stays: the probe is one of the instruction that begins there.
    pub pad: u8,
    /// Nop, jump, window, island or punned.
    pub rung: Rung,
    /// Length of the jump at the site: 5, or 2 to an island.
    pub patch_len: u8,
    /// The instructions that run elsewhere.
    pub displaced: Vec<Insn>,
    /// Their length; less than `patch_len` when the jump ends in padding.
    pub displaced_len: u8,
    /// Bytes of the jump that lie in padding behind the last displaced instruction.
    pub padding_used: u8,
    /// The copy needs no jump back: the last displaced instruction is a jump, a return, a trap, or a call, which
    /// returns to the original code.
    pub ends_with_flow: bool,
    /// Image address of the five-byte jump that the two-byte jump goes to.
    pub island: Option<u64>,
    /// Where alone the jump at the site may lead to, if it is punned.
    pub pun: Option<Pun>,
    /// Where probes run, in ascending order: before the first displaced instruction, or between two of them.
    pub hooks: Vec<Hook>,
    /// For each higher rung, why not.
    pub why_not: Vec<(Rung, Reason)>,
}

impl Placement {
    pub(crate) fn of(site: u64, found: Found, hook: Hook) -> Placement {
        Placement {
            site,
            pad: 0,
            rung: found.rung,
            patch_len: if found.island.is_some() { SHORT_JUMP_BYTES } else { JUMP_BYTES },
            displaced_len: found.window.insns.iter().map(|insn| insn.len_bytes() as u8).sum(),
            displaced: found.window.insns,
            padding_used: found.window.padding_used,
            ends_with_flow: found.window.ends_with_flow,
            island: found.island,
            pun: found.pun,
            hooks: vec![hook],
            why_not: found.why_not,
        }
    }

    /// Adds a hook before one more instruction that it displaces, behind those that have one; false if there is none such at
    /// `at`.
    ///
    /// A jump to `at` from elsewhere would pass it by; of an instruction that begins under the jump none is known.
    pub fn hook_before(&mut self, codes: &[Code<'_>], at: u64) -> bool {
        let is_displaced =
            self.displaced.iter().skip(1).any(|insn| insn.addr == at && self.patch().contains(&at));
        let is_last = self.hooks.last().is_none_or(|hook| self.site + u64::from(hook.offset) < at);
        if is_displaced && is_last {
            self.hooks.push(Hook::new(codes, self.site, at, false));
        }
        is_displaced && is_last
    }

    /// The image addresses that the jump at the site covers. Of a punned one the last bytes do not change, but it
    /// counts on them.
    pub fn patch(&self) -> Range<u64> {
        self.site..self.site + u64::from(self.patch_len)
    }

    /// A placement without a jump, for a probe that the kernel places on an instruction of `len` bytes: all of them are
    /// its own.
    pub fn by_kernel(site: u64, len: u8, why_not: Vec<(Rung, Reason)>) -> Placement {
        Placement {
            site,
            pad: 0,
            rung: Rung::Kernel,
            patch_len: len,
            displaced: Vec::new(),
            displaced_len: 0,
            padding_used: 0,
            ends_with_flow: false,
            island: None,
            pun: None,
            hooks: Vec::new(),
            why_not,
        }
    }

    /// The image addresses that no other probe may use: what the jump covers, and what runs elsewhere with it.
    pub fn range(&self) -> Range<u64> {
        let displaced = self.displaced.last().map_or(self.site, Insn::end);
        self.site..displaced.max(self.patch().end)
    }

    /// All image addresses that change: at the site, and at the island if there is one.
    pub fn patches(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        [Some(self.patch()), self.island_patch()].into_iter().flatten()
    }

    /// The first displaced instruction that can raise a signal by itself (a memory access, a division), given the
    /// registers that always hold good addresses. In its copy it would do so at an address of ours.
    pub fn may_fault(&self, good: RegSet) -> Option<&Insn> {
        let is_it = if self.is_a64() { aarch64::may_fault } else { native::may_fault };
        self.displaced.iter().find(|insn| is_it(insn, good))
    }

    /// The displaced call, if there is one. Its copy pushes the original return address and jumps: with a shadow stack,
    /// which only a call writes, the callee's return would fault.
    pub fn call(&self) -> Option<&Insn> {
        if self.is_a64() {
            return self.displaced.iter().find(|insn| aarch64::is_call(insn));
        }
        self.displaced
            .iter()
            .find(|insn| native::decode(insn.bytes(), insn.addr).is_some_and(|class| class.is_call))
    }

    /// It is a branch in A64 code: x86-64 has no jump of that length.
    fn is_a64(&self) -> bool {
        self.patch_len == 4 && !self.displaced.is_empty()
    }

    /// The image addresses that the island's jump covers.
    pub fn island_patch(&self) -> Option<Range<u64>> {
        self.island.map(|at| at..at + u64::from(JUMP_BYTES))
    }
}

/// The highest of rungs 1 to 5 on which a probe can stand at a site.
///
/// The caller refuses the vdso and restartable sequences, which the bytes do not show, and makes sure that no
/// thread is inside the window when it is written.
///
/// # Errors
/// A [`Refusal`], with the reason for each rung where there is one.
pub fn place(flow: &Flow, codes: &[Code<'_>], asked: &Asked<'_>) -> Result<Placement, Refusal> {
    if let Some(guarded) = flow.a64 {
        return aarch64::place(guarded, codes, asked);
    }
    let site = asked.site;
    let code = Code::holding(codes, site).ok_or(Refusal::OutsideCode { site })?;
    match &asked.function {
        Some(function) => flow.boundary(codes, site, function.start)?,
        None => flow.unknown_boundary(code, site)?,
    }
    let found = Ladder::new(flow, code, asked)?.climb()?;
    let is_entry = asked.function.as_ref().is_some_and(|function| function.start == site);
    let is_red_zone_free = is_entry && flow.is_called_only(site);
    Ok(Placement::of(site, found, Hook::new(codes, site, site, is_red_zone_free)))
}

/// How a probe stands before an instruction where no jump of its own fits, as before a nop of one byte at the end of a block: the
/// jump stands some instructions earlier, and these run first.
///
/// # Errors
/// `why`, what the instruction itself was refused for, if no instruction before it can have the jump, or if something is known to
/// lead between it and the site.
pub fn place_earlier(
    flow: &Flow,
    codes: &[Code<'_>],
    asked: &Asked<'_>,
    why: Refusal,
) -> Result<Placement, Refusal> {
    let site = asked.site;
    let (Some(function), Some(code)) = (asked.function.clone(), Code::holding(codes, site)) else {
        return Err(why);
    };
    if flow.a64.is_some() {
        return Err(why);
    }
    flow.boundary(codes, site, function.start)?;
    let mut before = Vec::new();
    let mut at = function.start;
    while at < site {
        let Some(class) = native::decode(code.from_addr(at), at) else { return Err(why) };
        at = class.insn.end();
        before.push(class);
    }
    let mut first = site;
    for (number, class) in before.iter().enumerate().rev() {
        let is_straight = class.forbidden.is_none() && native::falls_through(&class.insn);
        if flow.is_target(first) || site - first >= u64::from(JUMP_BYTES) || !is_straight {
            break;
        }
        first = class.insn.addr;
        let earlier = Asked { site: first, function: Some(function.clone()), next_function: None, ..*asked };
        let found = Ladder::new(flow, code, &earlier).and_then(|ladder| ladder.climb());
        let Some(found) = found.ok().filter(|found| found.rung <= Rung::Window) else { continue };
        let between = before[number..].iter().map(|class| class.insn);
        if let Ok(found) = found.up_to((first, site), between, asked.taken) {
            return Ok(Placement::of(first, found, Hook::new(codes, first, site, false)));
        }
    }
    Err(why)
}
