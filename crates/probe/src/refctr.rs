//! The semaphores of USDT probes.
//!
//! For:     placing and removing breakpoints.
//! State:   increments that wait for a mapping.
//! Context: target, under the space's lock.
//! Keeps:   F1 a semaphore is up by one for each breakpoint of its probe, once its page is mapped.
//!          F2 it never goes below zero or beyond 32,767.
//! Checked: `tests/errors.rs`, `tests/checklist.rs`.
//! Source:  kernel `update_ref_ctr`, `delayed_ref_ctr_inc` (v7.0). Departs: beyond 32,767 is refused too.

use crate::registry::{Inner, lock};
use crate::spaces::Member;
use crate::uprobe::Node;
use crate::{FileId, InstallError, RefCtrError, SpaceError, SpaceId};
use coll::Key;

/// An increment that waits until the space maps the semaphore.
pub(crate) struct Delayed {
    pub space: SpaceId,
    key: Key,
    ref_ctr: u64,
}

impl Inner {
    /// Adds to the probe's semaphore in one space, now or when it is mapped.
    pub fn change_ref_ctr(&self, node: &Node, member: &Member, delta: i16) -> Result<(), InstallError> {
        let Some(ref_ctr) = node.value.ref_ctr else { return Ok(()) };
        let space = member.space.id();
        // What waits is taken back first: it was never counted.
        if delta < 0 && self.forget_delayed(node, Some(space)) {
            return Ok(());
        }
        match add(member, node.key().0, ref_ctr, delta)? {
            true => Ok(()),
            false if delta > 0 => {
                lock(&self.delayed).push(Delayed { space, key: node.key(), ref_ctr });
                Ok(())
            }
            // The page is gone, and the count with it.
            false => Ok(()),
        }
    }

    /// Drops one waiting increment of the uprobe in a space, or all in every space. True if there was one.
    pub fn forget_delayed(&self, node: &Node, space: Option<SpaceId>) -> bool {
        if node.value.ref_ctr.is_none() {
            return false;
        }
        let mut delayed = lock(&self.delayed);
        let is_ours = |d: &Delayed| d.key == node.key() && space.is_none_or(|s| s == d.space);
        let Some(space) = space else {
            let before = delayed.len();
            // A successor of the same place may wait too: it keeps its own, since it is alive.
            if node.value.refs.load(core::sync::atomic::Ordering::Relaxed) == 0 && !self.has_successor(node) {
                delayed.retain(|d| !is_ours(d));
            }
            return delayed.len() < before;
        };
        let at = delayed.iter().position(|d| is_ours(d) && d.space == space);
        at.map(|at| delayed.swap_remove(at)).is_some()
    }

    /// True if the tree holds another uprobe of the same place. Under the tree's lock.
    fn has_successor(&self, node: &Node) -> bool {
        // SAFETY: the caller holds the tree's lock.
        unsafe { self.tree.find(node.key()) }.is_some_and(|other| !core::ptr::eq(other, node))
    }

    /// Does what waited for a mapping of the file in a space.
    pub fn flush_delayed(&self, member: &Member, file: FileId) {
        let _locked = lock(&member.lock);
        let space = member.space.id();
        let is_ours = |d: &mut Delayed| d.space == space && d.key.0 == file;
        let waiting: Vec<_> = lock(&self.delayed).extract_if(.., is_ours).collect();
        for delayed in waiting {
            if let Ok(false) = add(member, file, delayed.ref_ctr, 1) {
                lock(&self.delayed).push(delayed);
            }
        }
    }
}

/// Adds to a semaphore in one space; false if it is not mapped.
fn add(member: &Member, file: FileId, ref_ctr: u64, delta: i16) -> Result<bool, InstallError> {
    let mut refused = None;
    let mut change = |value: u16| {
        let sum = i32::from(value) + i32::from(delta);
        let fits = (0..=i32::from(i16::MAX)).contains(&sum);
        if !fits {
            refused = Some(RefCtrError { value, delta });
        }
        fits.then_some(sum as u16)
    };
    let mapped: Result<bool, SpaceError> = member.space.change_ref_ctr(file, ref_ctr, &mut change);
    match refused {
        Some(error) => Err(InstallError::RefCtr(error)),
        None => Ok(mapped?),
    }
}
