//! Address spaces that come, map, fork and go.
//!
//! For:     whoever follows the events of address spaces.
//! State:   the members by identity, each with a lock: the kernel's mmap lock of that space.
//! Context: target. Not in a hit, not inside a reader.
//! Keeps:   S1 a register or unregister sees a forked child wholly or not at all.
//!          S2 filters are asked and breakpoints changed under the space's lock: a mapping that comes beside
//!             an unregister is seen by one of the two.
//! Checked: `tests/checklist.rs`, `torture uprobe`.
//! Source:  kernel `uprobe_mmap`, `uprobe_munmap`, `dup_mmap` (v7.0).

use crate::inside::Inside;
use crate::registry::{Inner, Registry, lock};
use crate::uprobe::Node;
use crate::{FileId, Range, Space, SpaceId};
use coll::Key;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};

/// A space and its lock.
pub(crate) struct Member {
    pub space: Arc<dyn Space>,
    pub lock: Mutex<()>,
}

/// The spaces. Read during a register or unregister, written by fork and exit.
#[derive(Default)]
pub(crate) struct Members(pub RwLock<BTreeMap<SpaceId, Arc<Member>>>);

impl Members {
    pub fn get(&self, id: SpaceId) -> Option<Arc<Member>> {
        self.0.read().unwrap_or_else(|e| e.into_inner()).get(&id).cloned()
    }

    fn insert(&self, space: Arc<dyn Space>) {
        let member = Arc::new(Member { lock: Mutex::new(()), space });
        self.0.write().unwrap_or_else(|e| e.into_inner()).insert(member.space.id(), member);
    }
}

impl Registry {
    /// Adds a space that maps no file with probes yet.
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn add_space(&self, space: Arc<dyn Space>) {
        Inside::forbid("Registry::add_space");
        self.inner.members.insert(space);
    }

    /// Adds the child of a fork. `fork` makes it, breakpoints inherited, while no probe comes or goes.
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn fork(&self, fork: impl FnOnce() -> Arc<dyn Space>) {
        Inside::forbid("Registry::fork");
        let _inside = Inside::of(&self.inner);
        let mut members = self.inner.members.0.write().unwrap_or_else(|e| e.into_inner());
        let space = fork();
        members.insert(space.id(), Arc::new(Member { lock: Mutex::new(()), space }));
    }

    /// Forgets a space that ends or execs. Its breakpoints go with it.
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn remove_space(&self, space: SpaceId) {
        Inside::forbid("Registry::remove_space");
        self.inner.members.0.write().unwrap_or_else(|e| e.into_inner()).remove(&space);
        lock(&self.inner.delayed).retain(|delayed| delayed.space != space);
    }

    /// Changes the mappings of a space while no breakpoint comes or goes there. False: no such space.
    ///
    /// After a new mapping, [`mapped`](Self::mapped) must follow.
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn change_mappings(&self, space: SpaceId, change: impl FnOnce()) -> bool {
        Inside::forbid("Registry::change_mappings");
        let _inside = Inside::of(&self.inner);
        let Some(member) = self.inner.members.get(space) else { return false };
        let _locked = lock(&member.lock);
        change();
        true
    }

    /// Places breakpoints in a range of a file that a space has just mapped, and counts semaphores up that
    /// waited for a mapping. What cannot be placed is left out.
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn mapped(&self, space: SpaceId, file: FileId, range: Range) {
        Inside::forbid("Registry::mapped");
        let _inside = Inside::of(&self.inner);
        let Some(member) = self.inner.members.get(space) else { return };
        self.inner.flush_delayed(&member, file);
        for node in self.inner.in_range(file, range) {
            // SAFETY: `in_range` took a reference.
            let _ = self.inner.install_in(unsafe { node.as_ref() }, &member, None);
            // SAFETY: that reference, not used again.
            unsafe { crate::uprobe::put(&self.inner, node) };
        }
    }
}

impl Inner {
    /// The uprobes in a range, with a reference to each.
    fn in_range(&self, file: FileId, range: Range) -> Vec<NonNull<Node>> {
        let _reading = self.tree_lock.read().unwrap_or_else(|e| e.into_inner());
        let (mut from, mut found) = (Key(file, range.start), Vec::new());
        // SAFETY: writers are kept out.
        while let Some(node) = unsafe { self.tree.at_or_after(from) } {
            let key = node.key();
            if key.0 != file || key.1 >= range.end {
                break;
            }
            if node.value.try_get() {
                found.push(node.value.me());
            }
            from = Key(file, key.1 + 1);
        }
        found
    }
}
