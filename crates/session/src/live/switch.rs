//! Probes that are off for a while: their hits call nobody.
//!
//! For:     a live view, in which functions are switched off and on again.
//! State:   `Lists`: which hooks are off.
//! Context: control, while hits read; no thread of the target stands still.
//! Keeps:   W1 each hit calls all of its hook's list or nothing of it; what is inside goes on.
//!          W2 a list that is off stays where it is: nobody waits for a grace period to have it on again.
//!          W3 hits that are off are counted as entered, and by no consumer: as skipped.
//! Checked: testkit `view`.

use super::change::NotChanged;
use super::lists::{HookId, publish};
use super::session::Session;
use crate::facts::site::SitePlan;

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
        let is_its = |plan: &SitePlan| plan.addr() == addr || plan.exit_of == Some(addr);
        let sites = self.armed.iter().filter(|armed| is_its(&armed.plan));
        let mut hooks: Vec<HookId> = sites.flat_map(|armed| armed.hooks.clone().map(HookId)).collect();
        if hooks.is_empty() {
            return Err(NotChanged::NoHook(HookId(u32::MAX)));
        }
        // The entry's is the first: off before the exits, so that as many calls as can be have their end, and on after them.
        if is_on {
            hooks.reverse();
        }
        for hook in hooks {
            match is_on {
                true => self.lists.off.remove(&hook),
                false => self.lists.off.insert(hook),
            };
            let list = self.lists.hooks.get(&hook).filter(|list| is_on && !list.members.is_empty());
            publish(&self.regions.arena, hook, list.map(|list| list.place.start));
        }
        Ok(())
    }
}
