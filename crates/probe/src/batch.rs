//! Many registrations in one go.
//!
//! For:     whoever registers thousands: a space whose threads must stop for a change stops them once.
//! State:   none of its own.
//! Context: target. Not in a hit, not inside a reader.
//! Keeps:   M1 each space is asked once to place and once to remove, whatever the number of registrations.
//!          M2 a registration that fails leaves nothing behind and hurts no other one.
//!          M3 a consumer is linked before the spaces are looked at, and unlinked before: who changes a breakpoint of
//!             the same place meanwhile does so under the space's lock, and sees it.
//! Checked: `tests/batch.rs`.

use crate::inside::Inside;
use crate::registry::{Inner, Left, Registered, Registry, lock};
use crate::spaces::Member;
use crate::stats::bump;
use crate::uprobe::Node;
use crate::{Consumer, File, Insn, InstallError, RegisterError, SpaceError, Spot};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is to be registered.
pub struct Wanted {
    /// Where: the file.
    pub file: Arc<dyn File>,
    /// Where: the offset.
    pub offset: u64,
    /// The offset of the semaphore, if it has one.
    pub ref_ctr: Option<u64>,
    /// Who is to be called.
    pub consumer: Arc<dyn Consumer>,
}

/// A breakpoint to change, and whose it is.
struct Change<'r> {
    insn: Insn,
    node: &'r Node,
    /// The registrations that want it, by their numbers.
    by: Vec<usize>,
}

fn spots(changes: &BTreeMap<u64, Change<'_>>) -> Vec<Spot> {
    changes.iter().map(|(at, change)| Spot { at: *at, insn: change.insn }).collect()
}

impl Registry {
    /// [`register`](Self::register) for many: one result for each, in their order.
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn register_all(
        &self,
        wanted: impl IntoIterator<Item = Wanted>,
    ) -> Vec<Result<Registered, RegisterError>> {
        Inside::forbid("Registry::register_all");
        let one = |w: Wanted| {
            let (registered, fresh) = self.enlist(&w.file, w.offset, w.ref_ctr, w.consumer)?;
            {
                let uprobe = &registered.node().value;
                let _registering = uprobe.registering.write().unwrap_or_else(|e| e.into_inner());
                registered.link(fresh);
            }
            Ok(registered)
        };
        let mut all: Vec<_> = wanted.into_iter().map(one).collect();
        let failed = self.inner.install_all(&all);
        for (n, error) in &failed {
            let failed = RegisterError::Install(*error);
            if let Ok(registered) = core::mem::replace(&mut all[*n], Err(failed)) {
                let _ = self.unregister_nosync(registered);
            }
        }
        match failed.is_empty() {
            true => self.inner.collect_if_many(),
            false => self.unregister_sync(),
        }
        all
    }

    /// [`unregister_nosync`](Self::unregister_nosync) for many; what is left of all.
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn unregister_all_nosync(&self, all: impl IntoIterator<Item = Registered>) -> Left {
        Inside::forbid("Registry::unregister_all_nosync");
        let inner = &self.inner;
        let mut all: Vec<Registered> = all.into_iter().collect();
        for registered in &mut all {
            let Some(slot) = registered.slot.take() else { continue };
            let uprobe = &registered.node().value;
            let _registering = uprobe.registering.write().unwrap_or_else(|e| e.into_inner());
            inner.unlink(registered.node(), slot);
        }
        let breakpoints = inner.remove_all(&all);
        drop(all);
        inner.collect_if_many();
        Left { breakpoints }
    }
}

impl Inner {
    /// Places breakpoints for all; which registrations failed, and why.
    fn install_all(&self, all: &[Result<Registered, RegisterError>]) -> BTreeMap<usize, InstallError> {
        let _inside = Inside::of(self);
        let mut failed = BTreeMap::new();
        let members = self.members.0.read().unwrap_or_else(|e| e.into_inner());
        members.values().for_each(|member| self.install_batch(member, all, &mut failed));
        failed
    }

    fn install_batch(
        &self,
        member: &Member,
        all: &[Result<Registered, RegisterError>],
        failed: &mut BTreeMap<usize, InstallError>,
    ) {
        let _locked = lock(&member.lock);
        let mut changes = BTreeMap::new();
        for (n, registered) in all.iter().enumerate() {
            let Ok(registered) = registered else { continue };
            if let Err(error) = self.changes_for(n, registered, member, &mut changes) {
                failed.entry(n).or_insert(error);
            }
        }
        let results = member.space.install_all(&spots(&changes));
        for (n, change) in changes.into_values().enumerate() {
            // A space that answers for fewer has not placed the others.
            match results.get(n).copied().unwrap_or(Err(SpaceError(5))) {
                Ok(()) => bump(&self.counts.installed),
                Err(error) => {
                    let _ = self.change_ref_ctr(change.node, member, -1);
                    change.by.iter().for_each(|n| _ = failed.entry(*n).or_insert(error.into()));
                }
            }
        }
    }

    /// Adds the breakpoints that one registration needs in a space.
    fn changes_for<'r>(
        &self,
        n: usize,
        registered: &'r Registered,
        member: &Member,
        changes: &mut BTreeMap<u64, Change<'r>>,
    ) -> Result<(), InstallError> {
        let node = registered.node();
        let addresses = member.space.addresses(node.key().0, node.key().1, true);
        if addresses.is_empty() || !registered.slot().is_some_and(|slot| slot.wants(member.space.id())) {
            return Ok(());
        }
        let insn = {
            let _listing = lock(&node.value.listing);
            node.value.prepare(node.key().1)?
        };
        for at in addresses {
            if let Some(change) = changes.get_mut(&at) {
                change.by.push(n);
            } else if !member.space.has_breakpoint(at)? {
                self.change_ref_ctr(node, member, 1)?;
                changes.insert(at, Change { insn, node, by: vec![n] });
            }
        }
        Ok(())
    }

    /// Removes the breakpoints that nobody wants any more; how many could not be removed.
    fn remove_all(&self, all: &[Registered]) -> usize {
        let _inside = Inside::of(self);
        let members = self.members.0.read().unwrap_or_else(|e| e.into_inner());
        let mut left = Vec::new();
        members.values().for_each(|member| self.remove_batch(member, all, &mut left));
        let breakpoints = left.len();
        left.sort_by_key(|node| core::ptr::from_ref(*node));
        left.dedup_by_key(|node| core::ptr::from_ref(*node));
        for node in left {
            // A breakpoint may be hit for ever, so its uprobe stays: a reference that nobody gives back.
            node.value.refs.fetch_add(1, Relaxed);
            bump(&self.counts.leaked);
        }
        breakpoints
    }

    fn remove_batch<'r>(&self, member: &Member, all: &'r [Registered], left: &mut Vec<&'r Node>) {
        let _locked = lock(&member.lock);
        let mut changes = BTreeMap::new();
        for node in all.iter().map(Registered::node) {
            // Without an instruction nothing was ever placed.
            let Some(insn) = node.value.insn.get() else { continue };
            if node.value.is_wanted(member.space.id()) {
                continue;
            }
            for at in member.space.addresses(node.key().0, node.key().1, false) {
                if changes.contains_key(&at) {
                    continue;
                }
                match member.space.has_breakpoint(at) {
                    Ok(false) => {}
                    Ok(true) if self.change_ref_ctr(node, member, -1).is_ok() => {
                        changes.insert(at, Change { insn: *insn, node, by: Vec::new() });
                    }
                    _ => left.push(node),
                }
            }
        }
        let results = member.space.remove_all(&spots(&changes));
        for (n, change) in changes.into_values().enumerate() {
            if results.get(n).is_some_and(Result::is_ok) {
                bump(&self.counts.removed);
            } else {
                let _ = self.change_ref_ctr(change.node, member, 1);
                left.push(change.node);
            }
        }
    }
}
