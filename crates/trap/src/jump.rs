//! One site whose probe is a jump: where it leads, and what stands there without it.
//!
//! For:     the space, which writes it; the routine and the handlers, which find threads in its gate.
//! State:   for each site that ever had one, its gate and what the gate leads to. Never freed: threads may stand there.
//! Context: made: target, one thread at a time. Read: hit, signal.
//! Keeps:   J1 the gate of a site whose bytes and window are as before is used again: memory grows with the number of
//!          sites, not with the number of times that they are probed.
//!          J2 what is not proven is refused by name, and gets a breakpoint.
//! Checked: `tests/jumps.rs`.

use crate::blocks::{Blocks, Used};
use crate::engine::Config;
use crate::ground::{Ground, Grounds};
use crate::routine;
use crate::site::Site;
use coll::TreeNode;
use insn::{Asked, Placement, Refusal, Rung, Unreachable, place};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicPtr;
use text::{Gate, GateRequest, JUMP_LEN, Landing, OwnText};

/// Why a probe is a breakpoint and not a jump.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoJump {
    /// The configuration says so.
    NotAsked,
    /// The kernel cannot synchronise the processors: membarrier(2), SYNC_CORE.
    NoSync,
    /// The processor cannot save all its vector registers by `xsavec`.
    NoVectors,
    /// The code is not from a file that can be read as an image.
    NoImage,
    /// The program is one of Go, which has threads of its own making.
    Go,
    /// In memory stands something else than in the file.
    Changed,
    /// A restartable sequence, the end of a signal handler, or data: what is not to be moved.
    Special,
    /// The analysis refuses.
    Refused(Refusal),
    /// An island's jump may hold a thread, and nobody can tell when it is gone.
    Island,
    /// A call would be displaced, and the processor checks returns.
    ShadowStack,
    /// There is no free memory at an address to which the jump can lead.
    NoRoom,
    /// What the displaced instructions refer to is too far from there.
    Unreachable(Unreachable),
    /// Another probe was asked for under the jump.
    Shared,
    /// Its bytes could not be written.
    NotWritten,
}

impl fmt::Display for NoJump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoJump::NotAsked => f.write_str("jumps are turned off"),
            NoJump::NoSync => f.write_str("the kernel has no core-serialising membarrier"),
            NoJump::NoVectors => f.write_str("the processor has no xsavec"),
            NoJump::NoImage => f.write_str("the code is from no file that can be read"),
            NoJump::Go => f.write_str("a program of Go has threads that nobody sees"),
            NoJump::Changed => f.write_str("memory and file differ there"),
            NoJump::Special => f.write_str("a restartable sequence, a signal's end or data stands there"),
            NoJump::Refused(why) => why.fmt(f),
            NoJump::Island => f.write_str("a thread may stand on an island, and cannot be waited for"),
            NoJump::ShadowStack => {
                f.write_str("a call would be displaced, and the process has a shadow stack")
            }
            NoJump::NoRoom => f.write_str("no free memory where the jump can lead"),
            NoJump::Unreachable(what) => what.fmt(f),
            NoJump::Shared => f.write_str("another probe stands in what the jump would displace"),
            NoJump::NotWritten => f.write_str("the jump could not be written"),
        }
    }
}

/// A jump, its gate, and whose it is now.
pub(crate) struct Jump {
    pub at: u64,
    pub gate: Gate,
    /// The routine that its gate calls.
    routine: u64,
    pub placement: Placement,
    bias: u64,
    /// Bytes between the program's stack pointer and what the gate pushes.
    pub zone: u64,
    /// What the file has under the jump.
    pub original: Vec<u8>,
    /// The jump.
    pub new: [u8; JUMP_LEN],
    /// Whose hits these are; null while there is no probe.
    pub site: AtomicPtr<TreeNode<Site>>,
}

impl fmt::Debug for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jump({:#x}, {})", self.at, self.placement.rung)
    }
}

impl Jump {
    /// Whether an instruction of the original begins so many bytes behind the site.
    pub fn is_begin(&self, offset: usize) -> bool {
        self.placement.displaced.iter().any(|insn| insn.addr == self.placement.site + offset as u64)
    }

    /// The addresses that no other probe may use.
    pub fn range(&self) -> Range<u64> {
        let range = self.placement.range();
        range.start.wrapping_add(self.bias)..range.end.wrapping_add(self.bias)
    }

    /// Instructions behind the first, and their copies.
    pub fn inside(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.placement.displaced.iter().skip(1).filter_map(|insn| {
            let offset = insn.addr - self.placement.site;
            Some((self.at + offset, self.gate.copy_of(offset as u8)?))
        })
    }
}

/// Everything by which jumps are planned.
#[derive(Default)]
pub(crate) struct Planner {
    grounds: Grounds,
    used: Used,
    /// By address; more than one where a site's window changed.
    known: HashMap<u64, Vec<&'static Jump>>,
}

impl Planner {
    /// What is known of the code around an address.
    pub fn read_ground(&mut self, at: u64) -> Option<&Ground> {
        self.grounds.of(at)
    }

    /// A jump for a probe at `at`, ready to be written. `is_taken` says where other probes are.
    pub fn plan(
        &mut self,
        at: u64,
        config: &Config,
        blocks: &Blocks,
        text: &OwnText,
        is_taken: &dyn Fn(Range<u64>) -> bool,
    ) -> Result<&'static Jump, NoJump> {
        if !config.jumps {
            return Err(NoJump::NotAsked);
        }
        let routine = routine::address(config.vectors).ok_or(NoJump::NoVectors)?;
        crate::poke::synchronise().map_err(|_| NoJump::NoSync)?;
        let ground = self.read_ground(at).ok_or(NoJump::NoImage)?;
        if ground.image.is_go() {
            return Err(NoJump::Go);
        }
        let (site, bias) = (ground.image_addr(at), ground.bias);
        let function = ground.function(site);
        let codes = text::ground::codes(&ground.image);
        let taken = |range: Range<u64>| {
            // A place for an island counts as taken.
            range.start != site || is_taken(range.start.wrapping_add(bias)..range.end.wrapping_add(bias))
        };
        let asked = Asked { site, function, next_function: None, taken: &taken, room: &|_| true };
        let placement = place(ground.flow(site), &codes, &asked).map_err(NoJump::Refused)?;
        if placement.island.is_some() {
            return Err(NoJump::Island);
        }
        let range = placement.range();
        if ground.special.iter().any(|other| other.start < range.end && range.start < other.end) {
            return Err(NoJump::Special);
        }
        let in_process = range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
        if is_taken(in_process.clone()) {
            return Err(NoJump::Shared);
        }
        if placement.call().is_some() && image::maps::has_shadow_stack(sys::getpid()) {
            return Err(NoJump::ShadowStack);
        }
        let file = ground.bytes(&range).ok_or(NoJump::NoImage)?;
        let mut memory = vec![0; file.len()];
        if text.read(in_process.start, &mut memory).is_err() || memory != file {
            return Err(NoJump::Changed);
        }
        let reach = ground.range.clone();
        let known = self.known.get(&at).into_iter().flatten();
        let same = |jump: &&&Jump| {
            jump.routine == routine
                && jump.original == file[..JUMP_LEN]
                && jump.placement.displaced == placement.displaced
                && jump.placement.pun == placement.pun
        };
        if let Some(jump) = known.into_iter().find(same) {
            return Ok(jump);
        }
        self.make(
            Plan { at, bias, placement, routine, original: file[..JUMP_LEN].to_vec(), reach },
            blocks,
            text,
        )
    }

    fn make(&mut self, plan: Plan, blocks: &Blocks, text: &OwnText) -> Result<&'static Jump, NoJump> {
        let Plan { at, bias, placement, routine, original, reach } = plan;
        let mut bytes = [0; JUMP_LEN];
        bytes.copy_from_slice(&original);
        let landing = Landing::of(&placement, bias, bytes);
        let len = Gate::len_bound(&placement) as u64;
        let block = blocks.find(&mut self.used, &landing, Gate::BEFORE, len, reach).ok_or(NoJump::NoRoom)?;
        let entry = block + Gate::BEFORE;
        // The gate has the jump's address in it, and the jump the gate.
        let mut place = Box::new(std::mem::MaybeUninit::<Jump>::uninit());
        let word = place.as_ptr() as u64;
        let request = GateRequest { entry, placement: &placement, bias, word, routine };
        let built = Gate::build(&request).map_err(NoJump::Unreachable).and_then(|gate| {
            let new = text::jump(at, gate.entry_addr()).map_err(NoJump::Unreachable)?;
            text.write(gate.at, &gate.bytes).map_err(|_| NoJump::NotWritten)?;
            Ok((gate, new))
        });
        let (gate, new) = match built {
            Ok(built) => built,
            Err(why) => {
                Blocks::forget(&mut self.used, block);
                return Err(why);
            }
        };
        let is_free = placement.hooks.first().is_some_and(|hook| hook.is_red_zone_free);
        let zone = if is_free { 0 } else { u64::from(text::RED_ZONE) };
        let site = AtomicPtr::new(std::ptr::null_mut());
        place.write(Jump { at, gate, routine, placement, bias, zone, original, new, site });
        // SAFETY: written just now; it stays for good.
        let jump: &'static Jump = unsafe { Box::leak(place).assume_init_ref() };
        blocks.publish(jump);
        self.known.entry(at).or_default().push(jump);
        Ok(jump)
    }
}

/// What a jump is made from.
struct Plan {
    at: u64,
    bias: u64,
    placement: Placement,
    routine: u64,
    original: Vec<u8>,
    reach: Range<u64>,
}

/// How a probe stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The rung of the ladder: nop to punned are jumps, [`Rung::Trap`] is a breakpoint.
    pub rung: Rung,
    /// Why it is no jump, if it is none.
    pub no_jump: Option<NoJump>,
}

/// The defect that the configuration asks for.
#[cfg(feature = "broken")]
pub(crate) fn broken() -> Option<crate::BrokenPoke> {
    crate::engine::running().and_then(|inner| crate::engine::lock(&inner.config).broken_poke)
}
