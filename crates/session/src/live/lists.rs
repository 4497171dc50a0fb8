//! The book of a session's consumers as it stands in the arena: how lists are written, published and taken back.
//!
//! For:     attach, which writes the first lists; `live::change`, which replaces them; `arm::probes`.
//! State:   the book (`probe::book`); for each hook where its list is written; what is free.
//! Context: control, while hits read.
//! Keeps:   L1 a list does not change once a hit can reach it: a change is a new list, published by one store.
//!          L2 a list, and the cells of who is not on the new one, are used for something else only when the book hands them out.
//!          L3 who stays keeps its cells, so that its count goes on.
//! Checked: the book's model and mutants in crate `probe`; torture `tests/live.rs`; `torture live --broken in-place` (L1), `no-wait`,
//!          `wrong-rank` (L2).

use super::runs::{run_handler, sorted};
use super::slots::Slots;
use crate::enter::agent_image::Clobbers;
use crate::enter::arena::Arena;
use crate::facts::site::{Armed, Consumer};
use insn::RegSet;
use probe::book::{Board, Book, Kind, Off, Standing, Step};
use rcu::Cookie;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use wire::{ConsumerDesc, HANDLERS_LEN, HandlerKind, SiteDesc};

pub use probe::book::ConsumerId;

/// A place in a session where consumers can be: before one instruction of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub(crate) u32);

/// Uprobes of another process, for the book.
#[derive(Debug)]
pub(crate) enum Remote {}

/// First what is off waits for the hits that may be on it.
pub(crate) const HITS: usize = 0;
/// Then, if it is a probe, for a stop that shows no thread in its trampoline or on its way back to it.
pub(crate) const LOOK: usize = 1;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ticket {
    Hits(Cookie),
    /// So many looks have shown nobody by then.
    Look(u64),
}

impl Kind for Remote {
    type Place = HookId;
    type Site = HookSite;
    type Consumer = Member;
    type List = Range<u32>;
    type Probe = Box<Gone>;
    type Ticket = Ticket;
    const WAITS: usize = 2;

    fn waits(off: &Off<Remote>, wait: usize) -> bool {
        match (off, wait) {
            // A count that is compiled in is no reader.
            (Off::Probe(gone), HITS) => !gone.hooks.is_empty(),
            (Off::Probe(_), _) => true,
            (Off::Consumer(..) | Off::List(_), wait) => wait == HITS,
        }
    }
}

/// True of what a change has taken off; probes go by themselves.
pub(crate) fn is_of_change(off: &Off<Remote>) -> bool {
    !matches!(off, Off::Probe(_))
}

/// One consumer on a list.
#[derive(Clone, Debug)]
pub(crate) struct Member {
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
pub(crate) struct HookSite {
    /// Addresses of the handlers in the target.
    pub handlers: [u64; HANDLERS_LEN],
    /// The session's programs where its region has them.
    pub programs: Arc<[ProgramAt]>,
    /// What each handler writes of the registers that are saved only where that is asked for.
    pub clobbers: Clobbers,
    /// Those of them that the trampoline saves.
    pub saved: RegSet,
    /// The trampoline turns hits down for the one member, which stays.
    pub is_guarded: bool,
    /// Where its list is written, by number of descriptor.
    pub place: Range<u32>,
}

impl HookSite {
    /// What a consumer's handler writes or reads of the registers that a trampoline saves only for it.
    pub fn uses(&self, consumer: Consumer) -> u16 {
        if let Some((number, _)) = consumer.program() {
            return self.programs.get(number as usize).map_or(0, |program| program.uses.bits());
        }
        self.clobbers.handler(consumer.handler().0).bits() | consumer.reads()
    }

    /// What the handlers of a list write or read of them.
    pub fn uses_of(&self, list: &[Consumer]) -> u16 {
        let in_order = sorted(list, |c| *c);
        let each = in_order.iter().fold(0, |uses, c| uses | self.uses(*c));
        (0..in_order.len())
            .filter_map(|i| run_handler(&in_order[i..]))
            .fold(each, |uses, (_, kind)| uses | self.clobbers.handler(kind).bits())
    }

    /// Writes a list, from one descriptor on.
    pub fn write<'m>(&self, arena: &Arena, first: u32, members: impl IntoIterator<Item = &'m Member>) {
        let members: Vec<&Member> = members.into_iter().collect();
        let members = sorted(&members, |member| member.consumer);
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
            // Of a run that came later, the trampoline may not save what its handler writes: each is called by itself then.
            let is_saved = |by: HandlerKind| self.clobbers.handler(by).bits() & !self.saved.bits() == 0;
            let mut run = 1;
            if let Some((len, by)) = run_handler(&consumers[i..]).filter(|(_, by)| is_saved(*by)) {
                (run, kind) = (len, by);
            }
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

/// Where changes are written and published.
pub(super) struct Lists<'s> {
    pub arena: &'s Arena,
    pub descriptors: &'s mut Slots,
    pub off: &'s BTreeSet<HookId>,
    /// Broken on purpose.
    pub is_in_place: bool,
}

/// Descriptors that were wanted in a row, and those that are free.
pub(super) struct Full {
    pub wanted: u32,
    pub free: u32,
}

impl Board<Remote> for Lists<'_> {
    type Draft = Range<u32>;
    type Full = Full;

    fn reserve(&mut self, _: HookId, len: usize) -> Result<Range<u32>, Full> {
        let wanted = len as u32;
        match wanted {
            0 => Ok(0..0),
            _ => self.descriptors.take(wanted).ok_or_else(|| Full { wanted, free: self.descriptors.free() }),
        }
    }

    fn forget(&mut self, draft: Range<u32>) {
        self.descriptors.give(draft);
    }

    fn publish(
        &mut self,
        hook: HookId,
        site: &mut HookSite,
        mut place: Range<u32>,
        step: &Step<'_, Remote>,
        old: &mut Vec<Range<u32>>,
    ) {
        let len = step.members.len();
        if self.is_in_place && len <= site.place.len() {
            std::mem::swap(&mut place, &mut site.place);
        }
        site.write(self.arena, place.start, step.members.values());
        let is_called = len != 0 && !self.off.contains(&hook);
        publish(self.arena, hook, is_called.then_some(place.start));
        old.push(std::mem::replace(&mut site.place, place));
    }
}

/// A probe that was taken out, until no thread can be in its trampoline.
#[derive(Debug)]
pub(crate) struct Gone {
    pub armed: Armed,
    /// Its hooks, on whose lists hits may still be.
    pub hooks: Vec<Standing<Remote>>,
}

/// All that a session has given out of its memory.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub book: Book<Remote>,
    pub descriptors: Slots,
    pub cells: Slots,
    /// Hooks that no probe has.
    pub hooks: Slots,
    /// In each region, the room for blocks that no probe has, by 64 bytes.
    pub blocks: Vec<Slots>,
    /// Hooks whose hits call nobody for now.
    pub off: BTreeSet<HookId>,
    /// Trampolines are built for consumers that come later, too.
    pub is_open: bool,
}

impl Places {
    /// Forgets all that was written: the sites are built again.
    pub fn begin_anew(&mut self) {
        self.keep(&[]);
        *self = Places { is_open: self.is_open, book: std::mem::take(&mut self.book), ..Places::default() };
    }

    /// Forgets the hooks of sites that were not armed after all.
    pub fn keep(&mut self, armed: &[Armed]) {
        let kept: BTreeSet<HookId> = armed.iter().flat_map(|a| a.hooks.clone().map(HookId)).collect();
        let dropped: Vec<HookId> = self.book.open_places().filter(|hook| !kept.contains(hook)).collect();
        dropped.into_iter().for_each(|hook| drop(self.book.close(hook)));
    }

    /// Probes that are out and may have a thread in them.
    pub fn gone(&self) -> impl Iterator<Item = &Gone> {
        self.book.off().filter_map(|off| match off {
            Off::Probe(gone) => Some(&**gone),
            _ => None,
        })
    }

    /// What is off and may still be called.
    pub fn waiting(&self) -> usize {
        self.book.off_consumers() + self.gone().count()
    }

    /// Has cells count from 0, for somebody else.
    pub fn give_cells(&mut self, arena: &Arena, cells: Range<u32>) {
        cells.clone().for_each(|cell| arena.clear(cell * 8));
        self.cells.give(cells);
    }
}
