//! Probes that are off for a while: their hits call nobody.
//!
//! For:     a live view, in which functions are switched off and on again.
//! State:   `Places`: which hooks are off.
//! Context: control, while hits read; no thread of the target stands still.
//! Keeps:   W1 each hit calls all of its hook's list or nothing of it; what is inside goes on.
//!          W2 a list that is off stays where it is: nobody waits for a grace period to have it on again.
//!          W3 a function's entry and all its exits are on together or off together.
//!          W4 a call that was open when its function was switched off gives no time: its end may have been missed.
//!          W5 hits that are off are counted as entered, and by no consumer: as skipped.
//! Checked: testkit `view`.

use super::change::NotChanged;
use super::lists::{HookId, publish};
use super::session::Session;
use crate::arch;
use crate::facts::site::{Armed, Whole};
use std::collections::BTreeSet;
use std::mem::offset_of;
use wire::SiteDesc;

impl Session {
    /// Has hits of the function at `addr`, and of its exits that are timed or shown with it, call nobody, or again who is on their
    /// lists. Calls that are inside at that moment may lose their end.
    ///
    /// # Context
    /// Control. No thread of the process waits for it.
    /// # Cost
    /// One store for each hook. A hit that is off still costs the way to its list and back: some nanoseconds.
    /// # Errors
    /// [`NotChanged::NoHook`] if hits there are counted in the trampoline or by the kernel; then nothing was changed.
    pub fn switch(&mut self, addr: u64, is_on: bool) -> Result<(), NotChanged> {
        let whole = self.whole_of(&[addr]);
        let mut hooks: Vec<HookId> =
            whole.iter().flat_map(|i| self.armed[*i].hooks.clone().map(HookId)).collect();
        if hooks.is_empty() {
            return Err(NotChanged::NoHook(HookId(u32::MAX)));
        }
        // The entry's is the first: off before the exits, so that as many calls as can be have their end, and on after them.
        self.was_switched_off |= !is_on;
        if is_on {
            hooks.reverse();
            self.begin_calls_anew(&hooks);
        }
        for hook in hooks {
            match is_on {
                true => self.places.off.remove(&hook),
                false => self.places.off.insert(hook),
            };
            let list = self.places.book.at(hook).filter(|at| is_on && !at.members.is_empty());
            publish(&self.regions.arena, hook, list.map(|at| at.site.place.start));
        }
        Ok(())
    }

    /// Some function was switched off for a while: its hits of then are entered, and handled by nobody.
    pub fn was_switched_off(&self) -> bool {
        self.was_switched_off
    }

    /// The sites at these addresses, and all others of the functions that they are a part of: by number in `armed`, those that
    /// were named first.
    pub(crate) fn whole_of(&self, addrs: &[u64]) -> Vec<usize> {
        let addrs: BTreeSet<u64> = addrs.iter().copied().collect();
        let is_named = |armed: &Armed| addrs.contains(&armed.plan.addr());
        let named = self.armed.iter().filter(|armed| is_named(armed));
        let functions: BTreeSet<u64> = named.clone().map(|armed| armed.plan.addr()).collect();
        let wholes: BTreeSet<Whole> = named.flat_map(|armed| armed.plan.wholes()).collect();
        let is_part = |armed: &Armed| {
            armed.plan.wholes().any(|whole| wholes.contains(&whole))
                || armed.plan.exit_of.is_some_and(|of| functions.contains(&of))
        };
        let numbers = |wanted: &dyn Fn(&Armed) -> bool| -> Vec<usize> {
            self.armed.iter().enumerate().filter(|(_, armed)| wanted(armed)).map(|(i, _)| i).collect()
        };
        let mut all = numbers(&is_named);
        all.extend(numbers(&|armed| !is_named(armed) && is_part(armed)));
        all
    }

    /// Has calls that were begun before now be none whose entry was seen: their ends may have been missed, and others of the same
    /// place and function may end in their stead.
    pub(crate) fn begin_calls_anew(&self, hooks: &[HookId]) {
        let (arena, now) = (&self.regions.arena, arch::ticks());
        for hook in hooks {
            arena.publish(arena.layout.site(hook.0 as usize) + offset_of!(SiteDesc, since), now);
        }
    }
}
