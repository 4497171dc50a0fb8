//! The stacks that were counted.
//!
//! For:     `count --stack`, `trace --stack`; `ustack` in programs.
//! State:   none of its own.
//! Context: control.
//! Keeps:   S1 a stack and its count are of the same number; what cannot be a stack is left out and told.
//! Checked: testkit `stacks`.

use super::session::Session;
use super::site::SiteView;
use crate::enter::arena::SeenStacks;
use crate::facts::calls::Event;
use crate::facts::site::Consumer;
use unwind::Stop;
use wire::{STACK_FRAMES, walk_cell};

/// One stack, and how often it was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCount {
    /// The probed address, then those behind the calls, outwards.
    pub frames: Vec<u64>,
    /// Hits.
    pub count: u64,
}

/// The stack of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStack {
    /// The function, then those behind the calls, outwards; nothing if there is none.
    pub frames: Vec<u64>,
    /// Why it is not whole, or is not there.
    pub lacks: Option<&'static str>,
}

/// Hits without a stack, and stacks that are not whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackLosses {
    /// Hits whose stack was one more than there is room for.
    pub full: u64,
    /// Hits for which no working memory was free.
    pub no_space: u64,
    /// Hits in forked children.
    pub children: u64,
    /// Stacks that end where the next word is not known to be the thread's stack.
    pub not_stack: u64,
    /// Stacks that end in code without a table and without a frame pointer.
    pub no_frame: u64,
    /// Stacks that end where the table is not understood.
    pub unknown: u64,
    /// Stacks that end where the next frame would not lie above.
    pub not_up: u64,
}

impl StackLosses {
    /// Hits without a stack.
    pub fn skipped(&self) -> u64 {
        self.full.saturating_add(self.no_space).saturating_add(self.children)
    }

    /// Stacks that are not whole.
    pub fn cut(&self) -> u64 {
        [self.not_stack, self.no_frame, self.unknown, self.not_up].into_iter().fold(0, u64::saturating_add)
    }
}

impl SiteView<'_> {
    fn walks(&self) -> bool {
        matches!(self.plan.consumers().next(), Some(Consumer::CountStack { .. }))
    }
}

impl Session {
    /// The stacks that were met so far, each with its hits.
    pub fn stacks(&self) -> Vec<StackCount> {
        let arena = &self.regions.arena;
        let Some(stacks) = arena.stacks() else { return Vec::new() };
        let mut frames = [0; STACK_FRAMES];
        let mut found = Vec::new();
        for number in 0..stacks.slots() {
            let Ok(len) = stacks.get(number, &mut frames) else { continue };
            let count = arena.sum(self.stack_cells + 8 * number);
            if count > 0 {
                found.push(StackCount { frames: frames[..len].to_vec(), count });
            }
        }
        found
    }

    /// The stack of a call's beginning, if it was asked for.
    pub fn call_stack(&self, entry: &Event) -> Option<CallStack> {
        let (number, why) = (entry.stack as u16, entry.stack >> wire::Event::WHY_SHIFT);
        let Some(number) = number.checked_sub(1) else {
            let lacks = match why {
                walk_cell::FULL => "there is no room for one more different stack",
                walk_cell::NO_SPACE => "too many threads were in hits at once",
                walk_cell::CHILD => "children's stacks are not walked",
                _ => return None,
            };
            return Some(CallStack { frames: Vec::new(), lacks: Some(lacks) });
        };
        let mut frames = [0; STACK_FRAMES];
        let stacks = self.regions.arena.stacks()?;
        let Ok(len) = stacks.get(number.into(), &mut frames) else {
            return Some(CallStack { frames: Vec::new(), lacks: Some("its record was damaged") });
        };
        let lacks = match Stop::of(why) {
            Stop::Outermost | Stop::Depth => None,
            Stop::NotStack => Some("it goes on in memory that is not known to be the thread's stack"),
            Stop::NoFrame => Some("code without unwind information and without frame pointers"),
            Stop::Unknown => Some("unwind information is missing or not understood"),
            Stop::NotUp => Some("the next frame would not lie above"),
        };
        Some(CallStack { frames: frames[..len].to_vec(), lacks })
    }

    /// The stacks that programs have asked for, also when the session is gone; `None` if none asks.
    pub fn seen_stacks(&self) -> Option<SeenStacks> {
        self.regions.arena.seen_stacks()
    }

    /// What became of hits without a stack, and of stacks that are not whole.
    pub fn stack_losses(&self) -> StackLosses {
        let sum = |number: u32| {
            let sites = self.sites().filter(SiteView::walks);
            sites.fold(0u64, |sum, site| sum.saturating_add(site.cell(number)))
        };
        let cut = |number: u32| sum(walk_cell::CUT + number);
        StackLosses {
            full: sum(walk_cell::FULL),
            no_space: sum(walk_cell::NO_SPACE),
            children: sum(walk_cell::CHILD),
            not_stack: cut(0),
            no_frame: cut(1),
            unknown: cut(2),
            not_up: cut(3),
        }
    }

    /// Makes tables of modules that have come since, if a hit wanted one; true if it has met one, or code that
    /// is in no file.
    pub fn look_for_tables(&mut self) -> bool {
        self.walks.look(&self.regions.arena, &self.memory)
    }
}
