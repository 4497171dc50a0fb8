//! The consumers of each hook: what stands in the arena, and what has been replaced there.
//!
//! For:     attach, which writes the first lists; `live::change`, which replaces them.
//! State:   for each hook its members and where they are written; what was replaced and may still be read.
//! Context: control, while hits read.
//! Keeps:   L1 a list does not change once a hit can reach it: a change is a new list, published by one store.
//!          L2 a list, and the cells of who is not on the new one, are used for something else only after a grace period that
//!             began after the store.
//!          L3 who stays keeps its cells, so that its count goes on.
//! Checked: torture `tests/live.rs`; `torture live --broken in-place` (L1), `no-wait`, `wrong-rank` (L2).

use super::runs::run_of;
use super::slots::Slots;
use crate::enter::agent_image::Clobbers;
use crate::enter::arena::Arena;
use crate::facts::site::{Armed, Consumer};
use insn::RegSet;
use rcu::Cookie;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use wire::{ConsumerDesc, HANDLERS_LEN, HandlerKind, SiteDesc};

/// A place in a session where consumers can be: before one instruction of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub(crate) u32);

/// A consumer of one session, for ever: no second one gets its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub(crate) u64);

/// One consumer on a list.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub id: ConsumerId,
    pub consumer: Consumer,
    /// By number: a cell is 8 bytes.
    pub cells: Range<u32>,
    /// It came with the site, whose row shows its cells to the end.
    pub is_first: bool,
}

impl Member {
    /// Byte offset of its first cell in a copy.
    pub fn cell(&self) -> u32 {
        self.cells.start * 8
    }
}

/// A program in a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramAt {
    /// Address of its [`wire::ProgramDesc`] in the target.
    pub desc: u64,
    /// What the consumer's [`ConsumerDesc::arg`] says of it.
    pub arg: u32,
    /// Who runs it.
    pub handler: HandlerKind,
    /// What its run may change, or it reads, of the registers that are saved only where that is asked for.
    pub uses: RegSet,
}

/// One hook of the general path.
#[derive(Debug)]
pub(crate) struct HookLists {
    /// Addresses of the handlers in the target.
    pub handlers: [u64; HANDLERS_LEN],
    /// The session's programs where its region has them.
    pub programs: Arc<[ProgramAt]>,
    /// What each handler writes of the registers that are saved only where that is asked for.
    pub clobbers: Clobbers,
    /// Those of them that the trampoline saves.
    pub saved: RegSet,
    pub members: Vec<Member>,
    /// The trampoline turns hits down for the one member, which stays.
    pub is_guarded: bool,
    /// Where the members are written, by number of descriptor.
    pub place: Range<u32>,
}

impl HookLists {
    /// What a consumer's handler writes or reads of the registers that a trampoline saves only for it.
    pub fn uses(&self, consumer: Consumer) -> u16 {
        if let Some((number, _)) = consumer.program() {
            return self.programs.get(number as usize).map_or(0, |program| program.uses.bits());
        }
        self.clobbers.handler(consumer.handler().0).bits() | consumer.reads()
    }

    /// Writes a list, from one descriptor on.
    pub fn write(&self, arena: &Arena, first: u32, members: &[Member]) {
        let consumers: Vec<Consumer> = members.iter().map(|m| m.consumer).collect();
        let address = |number: u32| arena.remote + arena.layout.consumer(number as usize) as u64;
        for (i, member) in members.iter().enumerate() {
            let number = first + i as u32;
            let at = arena.layout.consumer(number as usize);
            let (mut kind, mut arg) = member.consumer.handler();
            if let Some((number, cookie)) = member.consumer.program()
                && let Some(program) = self.programs.get(number as usize)
            {
                (kind, arg) = (program.handler, program.arg);
                arena.publish(at + offset_of!(ConsumerDesc, program), program.desc);
                arena.publish(at + offset_of!(ConsumerDesc, cookie), cookie);
            }
            let run = run_of(&consumers[i..]);
            let next = if i + run < members.len() { address(number + run as u32) } else { 0 };
            arena.publish(at + offset_of!(ConsumerDesc, next), next);
            arena.publish(at + offset_of!(ConsumerDesc, handler), self.handlers[kind as usize]);
            let cell = u64::from(member.cell()) | u64::from(arg) << 32;
            arena.publish(at + offset_of!(ConsumerDesc, cell), cell);
            arena.publish(at + offset_of!(ConsumerDesc, run), run as u64);
            let walk = arena.layout.walk().map_or(0, |at| arena.remote + at as u64);
            arena.publish(at + offset_of!(ConsumerDesc, walk), walk);
            arena.publish(at + offset_of!(ConsumerDesc, doorbell), arena.remote + wire::DOORBELL as u64);
        }
    }
}

/// Has hits call the list that begins at a descriptor, or none.
pub(crate) fn publish(arena: &Arena, hook: HookId, first: Option<u32>) {
    let address = |number: u32| arena.remote + arena.layout.consumer(number as usize) as u64;
    let at = arena.layout.site(hook.0 as usize) + offset_of!(SiteDesc, first);
    arena.publish(at, first.map_or(0, address));
}

/// What one change has taken off, until no hit can be in it.
#[derive(Debug)]
pub(crate) struct Retired {
    pub cookie: Cookie,
    pub lists: Vec<Range<u32>>,
    pub members: Vec<Member>,
}

/// A probe that was taken out, until no thread can be in its trampoline.
#[derive(Debug)]
pub(crate) struct Gone {
    pub armed: Armed,
    /// Its hooks' lists, which hits may still be on.
    pub hooks: Vec<HookLists>,
    /// Taken when it was out.
    pub cookie: Cookie,
}

/// All lists of a session.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub hooks: BTreeMap<HookId, HookLists>,
    /// Which hook a consumer is at.
    pub places: BTreeMap<ConsumerId, HookId>,
    pub descriptors: Slots,
    pub cells: Slots,
    /// Hooks that no probe has.
    pub hook_places: Slots,
    /// In each region, the room for blocks that no probe has, by 64 bytes.
    pub blocks: Vec<Slots>,
    pub retired: VecDeque<Retired>,
    /// Hooks whose hits call nobody for now.
    pub off: BTreeSet<HookId>,
    /// Trampolines are built for consumers that come later, too.
    pub is_open: bool,
    last: u64,
}

impl Lists {
    /// A number that no consumer had.
    pub fn new_id(&mut self) -> ConsumerId {
        self.last += 1;
        ConsumerId(self.last)
    }

    /// Notes a hook as the attach has written it.
    pub fn add(&mut self, hook: HookId, lists: HookLists) {
        self.places.extend(lists.members.iter().map(|m| (m.id, hook)));
        self.hooks.insert(hook, lists);
    }

    /// Forgets all that was written: the sites are built again.
    pub fn begin_anew(&mut self) {
        *self = Lists { is_open: self.is_open, last: self.last, ..Lists::default() };
    }

    /// Forgets the hooks of sites that were not armed after all.
    pub fn keep(&mut self, armed: &[Armed]) {
        let kept: BTreeSet<HookId> = armed.iter().flat_map(|a| a.hooks.clone().map(HookId)).collect();
        self.hooks.retain(|hook, _| kept.contains(hook));
        self.places.retain(|_, hook| kept.contains(hook));
    }

    /// Forgets a hook whose probe goes; what was on it.
    pub fn take_off(&mut self, hook: HookId) -> Option<HookLists> {
        let lists = self.hooks.remove(&hook)?;
        for member in &lists.members {
            self.places.remove(&member.id);
        }
        Some(lists)
    }

    /// Consumers that are off their lists and may still be called.
    pub fn waiting(&self) -> usize {
        self.retired.iter().map(|retired| retired.members.len()).sum()
    }

    /// Uses the room of what a finished grace period has waited for. What is left in the cells is shown to `see` first.
    pub fn give_back(&mut self, arena: &Arena, retired: Retired, mut see: impl FnMut(&Member)) {
        for member in retired.members {
            see(&member);
            if !member.is_first {
                member.cells.clone().for_each(|cell| arena.clear(cell * 8));
                self.cells.give(member.cells);
            }
        }
        retired.lists.into_iter().for_each(|list| self.descriptors.give(list));
    }
}
