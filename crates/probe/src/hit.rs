//! What happens at a hit.
//!
//! For:     sites, which know their uprobe, and traps, which look it up.
//! State:   none of its own.
//! Context: hit. No allocation; no lock, but with `Protection::Refcount`, and when all handlers say remove.
//! Keeps:   H1 a consumer that is registered during the whole hit is called once.
//!          H2 a breakpoint goes only if every consumer said so in this hit.
//!          H3 a freed uprobe is counted, not walked.
//!          H4 no panic of a consumer leaves a hit: it is counted, the others are called, every reader is left.
//! Checked: `tests/rules.rs`, `tests/checklist.rs`, `tests/matrix.rs`, `torture uprobe`.
//! Source:  kernel `handler_chain` (v7.0).

use crate::book::ConsumerId;
use crate::domains::{Protection, Section};
use crate::group::{Group, GroupNode};
use crate::inside::Inside;
use crate::registry::Inner;
use crate::stats::bump;
use crate::uprobe::{FREED, Node, Uprobe, put};
use crate::{FileId, Registry, Regs, SpaceId, UprobeRef, Verdict};
use coll::{Key, Walk};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

/// What became of a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hit {
    /// The consumers were called.
    Handled,
    /// They were, and each of them wants the breakpoint out of this address space.
    Remove,
    /// There is no uprobe: somebody else's breakpoint, or one that is just gone.
    Unknown,
    /// The uprobe is too new; run the instruction again.
    Restart,
    /// The reader could not be entered: nobody was called.
    Skipped,
}

/// What the consumers said.
pub(crate) struct Said {
    pub remove: bool,
    pub wants_return: bool,
}

impl Uprobe {
    /// Calls every consumer. `sessions` calls those of a group in which some have both handlers.
    ///
    /// # Safety
    /// The caller must be inside the entry side, or hold `registering`.
    #[inline(always)]
    pub(crate) unsafe fn call_consumers(
        &self,
        regs: &mut Regs,
        mut sessions: impl FnMut(&Group, &mut Regs) -> Said,
    ) -> Said {
        // SAFETY: the caller's duty keeps what was unlinked.
        let mut groups = unsafe { self.consumers.walk() };
        let Some(first) = groups.next() else { return Said { remove: false, wants_return: false } };
        // SAFETY: the same reader.
        let mut said = unsafe { call_group(&first.value, regs, &mut sessions) };
        if let Some(second) = groups.next() {
            // SAFETY: the same reader.
            said = unsafe { call_groups(said, second, groups, regs, &mut sessions) };
        }
        // Who has no entry handler wants the breakpoint.
        said.remove &= !said.wants_return;
        said
    }

    /// The outcome that is clear before any consumer is called.
    #[cold]
    fn not_ready(&self, inner: &Inner) -> Hit {
        if self.state.load(Relaxed) == FREED {
            bump(&inner.counts.freed_hits);
            return Hit::Unknown;
        }
        Hit::Restart
    }
}

/// Calls the consumers of a group.
///
/// # Safety
/// The caller must be inside the reader in which it met the group.
#[inline(always)]
unsafe fn call_group(
    group: &Group,
    regs: &mut Regs,
    sessions: &mut impl FnMut(&Group, &mut Regs) -> Said,
) -> Said {
    match group.has_sessions() {
        // SAFETY: the caller's duty.
        false => Said { remove: unsafe { group.call_entries(regs) }, wants_return: group.has_returns() },
        true => sessions(group, regs),
    }
}

/// Calls the consumers of the second and further groups; apart, so that a hit of few consumers has a short way.
///
/// # Safety
/// As for [`call_group`].
#[inline(never)]
unsafe fn call_groups(
    said: Said,
    second: &GroupNode,
    others: Walk<'_, Group>,
    regs: &mut Regs,
    sessions: &mut impl FnMut(&Group, &mut Regs) -> Said,
) -> Said {
    core::iter::once(second).chain(others).fold(said, |said, node| {
        // SAFETY: the caller's duty.
        let now = unsafe { call_group(&node.value, regs, sessions) };
        Said { remove: said.remove & now.remove, wants_return: said.wants_return | now.wants_return }
    })
}

/// What `call_consumers` does with sessions where no return is looked for; it calls this in its reader alone.
// SAFETY: the reader is that in which it met the group.
const SESSIONS: fn(&Group, &mut Regs) -> Said = |group, regs| unsafe { call_unrecorded(group, regs) };

/// [`call_sessions`] where no return is looked for; apart for the same reason.
///
/// # Safety
/// As for [`call_group`].
#[inline(never)]
unsafe fn call_unrecorded(group: &Group, regs: &mut Regs) -> Said {
    // SAFETY: the caller's duty.
    unsafe { call_sessions(group, regs, |_, _| {}) }
}

/// Calls consumers of which some have both handlers, one by one. `record` gets each session's id and cookie.
///
/// # Safety
/// As for [`call_group`].
#[inline(always)]
pub(crate) unsafe fn call_sessions(
    group: &Group,
    regs: &mut Regs,
    mut record: impl FnMut(ConsumerId, u64),
) -> Said {
    let mut said = Said { remove: true, wants_return: false };
    // SAFETY: the caller's duty.
    for (i, slot) in unsafe { group.slots() }.enumerate() {
        let (mut verdict, mut cookie) = (Verdict::Continue, 0);
        if slot.has_handler {
            // SAFETY: the same reader; `slots` gives the members in their order.
            verdict = unsafe { group.call_entry(i, regs, &mut cookie) };
        }
        said.remove &= verdict == Verdict::Remove;
        if slot.has_ret_handler && verdict == Verdict::Continue {
            said.wants_return = true;
            if slot.has_handler {
                record(slot.id, cookie);
            }
        }
    }
    said
}

/// Runs a hit of a uprobe, which the caller's reference or lease keeps, with the protection of entries;
/// `body` calls the consumers. For a short body: it is there once for each protection.
#[inline(always)]
pub(crate) fn run(inner: &Inner, node: NonNull<Node>, body: impl FnOnce(&Uprobe) -> Hit) -> Hit {
    if inner.entry.kind == Protection::Refcount {
        return run_counted(inner, node, body);
    }
    // SAFETY: the caller's reference or lease keeps it.
    let uprobe = unsafe { &(*node.as_ptr()).value };
    let _inside = Inside::of(inner);
    let hit = || if uprobe.is_ready() { body(uprobe) } else { uprobe.not_ready(inner) };
    inner.entry.read(hit).unwrap_or(Hit::Skipped)
}

/// The same for a long body, which is there once: `run` would keep its variables in memory.
#[inline(always)]
pub(crate) fn run_long(inner: &Inner, node: NonNull<Node>, body: impl FnOnce(&Uprobe) -> Hit) -> Hit {
    if inner.entry.kind == Protection::Refcount {
        return run_counted(inner, node, body);
    }
    // SAFETY: the caller's reference or lease keeps it.
    let uprobe = unsafe { &(*node.as_ptr()).value };
    let _inside = Inside::of(inner);
    let Some(_section) = inner.entry.section() else { return Hit::Skipped };
    if uprobe.is_ready() { body(uprobe) } else { uprobe.not_ready(inner) }
}

/// The baseline: a reference and a lock around the consumers.
#[inline(never)]
fn run_counted(inner: &Inner, node: NonNull<Node>, body: impl FnOnce(&Uprobe) -> Hit) -> Hit {
    // SAFETY: the caller's reference or lease keeps it.
    let uprobe = unsafe { &(*node.as_ptr()).value };
    if !uprobe.try_get() {
        return Hit::Unknown;
    }
    let hit = {
        let _inside = Inside::of(inner);
        let _reading = uprobe.registering.read().unwrap_or_else(|e| e.into_inner());
        if uprobe.is_ready() { body(uprobe) } else { uprobe.not_ready(inner) }
    };
    // SAFETY: the reference taken above.
    unsafe { put(inner, node) };
    hit
}

impl UprobeRef {
    /// Calls the consumers for one hit; no return is looked for.
    #[inline]
    pub fn hit(&self, regs: &mut Regs) -> Hit {
        run(&self.inner, self.node, |uprobe| {
            // SAFETY: `run` calls this inside the entry side or under `registering`.
            let said = unsafe { uprobe.call_consumers(regs, SESSIONS) };
            if said.remove { Hit::Remove } else { Hit::Handled }
        })
    }

    /// Takes the breakpoint out of one address space, unless a filter objects now. True if it is out.
    ///
    /// # Context
    /// Target thread, no reader: takes locks.
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn unhook(&self, space: SpaceId) -> bool {
        Inside::forbid("UprobeRef::unhook");
        self.inner.unhook(self.node(), space)
    }
}

impl Registry {
    /// A hit that is known by its place: finds the uprobe, calls the consumers, and takes the breakpoint out
    /// of the space if all of them say so and no filter objects.
    pub fn hit(&self, space: SpaceId, file: FileId, offset: u64, regs: &mut Regs) -> Hit {
        let inner = &*self.inner;
        let Some((found, section)) = inner.find(Key(file, offset)) else { return Hit::Unknown };
        // SAFETY: `find` left us with a section or a reference that keeps it.
        let node: &Node = unsafe { found.as_ref() };
        // SAFETY: as above.
        let hit = unsafe { call_found(inner, node, regs) };
        // Inside another hit no lock is waited for: the breakpoint stays, as with `hit_and_stay`.
        let goes = hit == Hit::Remove && !Inside::is();
        let keep = goes && (section.is_none() || node.value.try_get());
        if section.is_some() {
            drop(section);
        } else if !keep {
            // SAFETY: the reference that `find` took, not used again.
            unsafe { put(inner, found) };
        }
        if keep {
            inner.unhook(node, space);
            // SAFETY: the reference of `find` or of `try_get` above, not used again.
            unsafe { put(inner, found) };
        }
        hit
    }

    /// The same for signal handlers: no lock is taken but with `Protection::Refcount`, and a breakpoint that all
    /// consumers want removed stays, for [`UprobeRef::unhook`] to take out later.
    pub fn hit_and_stay(&self, file: FileId, offset: u64, regs: &mut Regs) -> Hit {
        let inner = &*self.inner;
        let Some((found, section)) = inner.find(Key(file, offset)) else { return Hit::Unknown };
        // SAFETY: `find` left us with a section or a reference that keeps it.
        let node: &Node = unsafe { found.as_ref() };
        // SAFETY: as above.
        let hit = unsafe { call_found(inner, node, regs) };
        match section {
            Some(section) => drop(section),
            // SAFETY: the reference that `find` took, not used again.
            None => unsafe { put(inner, found) },
        }
        hit
    }
}

/// Calls the consumers of a uprobe that was found.
///
/// # Safety
/// The caller must have the section or the reference that `Inner::find` gave for the node.
unsafe fn call_found(inner: &Inner, node: &Node, regs: &mut Regs) -> Hit {
    if !node.value.is_ready() {
        return node.value.not_ready(inner);
    }
    let _inside = Inside::of(inner);
    let counted = inner.entry.kind == Protection::Refcount;
    let _reading = counted.then(|| node.value.registering.read());
    // SAFETY: inside the entry side; with `Refcount`, under `registering`, taken here.
    let said = unsafe { node.value.call_consumers(regs, SESSIONS) };
    if said.remove { Hit::Remove } else { Hit::Handled }
}

impl Inner {
    /// The uprobe at a place, with the section that keeps it; with `Refcount`, a reference and no section.
    fn find(&self, key: Key) -> Option<(NonNull<Node>, Option<Section<'_>>)> {
        if self.entry.kind == Protection::Refcount {
            let _reading = self.tree_lock.read().unwrap_or_else(|e| e.into_inner());
            // SAFETY: writers are kept out, and what they erase is freed after that.
            let node = unsafe { self.tree.find(key) }?;
            return node.value.try_get().then(|| (NonNull::from(node), None));
        }
        let section = self.entry.section()?;
        // SAFETY: inside the entry side.
        unsafe { self.tree.find(key) }.map(|node| (NonNull::from(node), Some(section)))
    }
}
