//! Returns: instances between the entry of a function and its end.
//!
//! For:     return probes, sessions.
//! State:   one stack per thread, with room for 64 instances, made in set-up.
//! Context: hit. Nothing is allocated.
//! Keeps:   I1 entries = returns + unwound + skipped, once the stack is empty.
//!          I2 a uprobe is not freed while an instance of it is on a stack.
//!          I4 a stack holds instances of its own registry's uprobes alone.
//!          I3 a session's return handler runs only with the cookie of its own entry.
//! Checked: `tests/checklist.rs`, `tests/matrix.rs`, `torture uprobe`.
//! Source:  kernel `prepare_uretprobe`, `handle_uretprobe_event_chain` (v7.0). Departs: no timer downgrades
//!          a lease yet, so a function that sleeps holds up a wait for returns.

use crate::book::ConsumerId;
use crate::domains::{Protection, Token};
use crate::group::Group;
use crate::hit::{call_sessions, run_long};
use crate::inside::contained;
use crate::registry::Inner;
use crate::uprobe::{Node, put};
use crate::{Hit, Registry, Regs, UprobeRef};
use core::ptr::NonNull;
use std::sync::Arc;

/// How deep return instances nest, as in the kernel.
const DEPTH: usize = 64;

/// Cookies of one stack.
const RECORDS: usize = 4 * DEPTH;

/// A session's cookie of one entry.
struct Record {
    id: ConsumerId,
    cookie: u64,
}

/// One probed call that has not returned.
struct Instance {
    node: NonNull<Node>,
    /// The lease; none if the instance holds a reference.
    lease: Option<Token>,
    func: u64,
    /// Where its records begin.
    records: usize,
}

/// The calls of one thread that have not returned.
pub struct ReturnStack {
    inner: Arc<Inner>,
    instances: Vec<Instance>,
    records: Vec<Record>,
    /// Entries for which a consumer wanted the return.
    pub entries: u64,
    /// Returns that were handled.
    pub returns: u64,
    /// Entries that were too deep, or had no room for their cookies.
    pub skipped: u64,
    /// Entries whose frame was left without a return.
    pub unwound: u64,
    /// Entries of uprobes of another registry than the stack's: refused.
    pub foreign: u64,
}

impl Registry {
    /// A stack for one thread.
    pub fn return_stack(&self) -> ReturnStack {
        ReturnStack {
            inner: self.inner.clone(),
            instances: Vec::with_capacity(DEPTH),
            records: Vec::with_capacity(RECORDS),
            entries: 0,
            returns: 0,
            skipped: 0,
            unwound: 0,
            foreign: 0,
        }
    }
}

impl ReturnStack {
    /// How many calls have not returned.
    pub fn depth(&self) -> usize {
        self.instances.len()
    }

    /// Runs the entry of a function; true if [`leave`](Self::leave) must be called at its end.
    ///
    /// A uprobe of another registry is not entered, and counted in [`foreign`](Self::foreign): its leases are that one's.
    #[inline]
    pub fn enter(&mut self, uprobe: &UprobeRef, regs: &mut Regs) -> (Hit, bool) {
        if !Arc::ptr_eq(&self.inner, &uprobe.inner) {
            return (self.refuse(), false);
        }
        let (inner, func, start) = (&*uprobe.inner, regs.rip, self.records.len());
        let (instances, records) = (&mut self.instances, &mut self.records);
        let (mut wanted, mut pushed) = (false, false);
        let hit = run_long(inner, uprobe.node, |at| {
            let mut fits = instances.len() < DEPTH;
            let mut record = |id, cookie| {
                fits &= records.len() < RECORDS;
                if fits {
                    records.push(Record { id, cookie });
                }
            };
            // SAFETY: `call_consumers` calls this in the reader in which it met the group.
            let sessions =
                |group: &Group, regs: &mut Regs| unsafe { call_sessions(group, regs, &mut record) };
            // SAFETY: `run_long` calls this inside the entry side or under `registering`.
            let said = unsafe { at.call_consumers(regs, sessions) };
            wanted = said.wants_return;
            if wanted
                && fits
                && let Some(lease) = lease(inner, uprobe)
            {
                instances.push(Instance { node: uprobe.node, lease, func, records: start });
                pushed = true;
            }
            if said.remove { Hit::Remove } else { Hit::Handled }
        });
        if !pushed {
            self.records.truncate(start);
        }
        self.entries += u64::from(wanted);
        self.skipped += u64::from(wanted && !pushed);
        (hit, pushed)
    }

    #[cold]
    fn refuse(&mut self) -> Hit {
        self.foreign += 1;
        Hit::Skipped
    }

    /// Runs the return of the innermost call. False: none is under way.
    #[inline]
    pub fn leave(&mut self, regs: &mut Regs) -> bool {
        let Some(instance) = self.instances.pop() else { return false };
        let inner = &*self.inner;
        let records = &mut self.records[instance.records..];
        run_long(inner, instance.node, |uprobe| {
            call_returns(uprobe, instance.func, regs, records);
            Hit::Handled
        });
        self.records.truncate(instance.records);
        self.returns += 1;
        give_back(inner, instance);
        true
    }

    /// Forgets the innermost calls, down to a depth: their frames are gone without a return.
    pub fn unwind_to(&mut self, depth: usize) {
        while self.instances.len() > depth {
            let Some(instance) = self.instances.pop() else { return };
            self.records.truncate(instance.records);
            self.unwound += 1;
            give_back(&self.inner, instance);
        }
    }
}

/// Leases the uprobe, or takes a reference; `None` if neither can be had.
#[inline(always)]
fn lease(inner: &Inner, uprobe: &UprobeRef) -> Option<Option<Token>> {
    if inner.returns.kind == Protection::Refcount {
        return uprobe.node().value.try_get().then_some(None);
    }
    inner.returns.enter().map(Some)
}

#[inline(always)]
fn give_back(inner: &Inner, instance: Instance) {
    match instance.lease {
        Some(token) => inner.returns.leave(token),
        // SAFETY: the instance's reference, and the instance ends.
        None => unsafe { put(inner, instance.node) },
    }
}

/// Calls the return handlers. Records are in the list's order, so each is looked for behind the last.
#[inline(always)]
fn call_returns(uprobe: &crate::uprobe::Uprobe, func: u64, regs: &mut Regs, records: &mut [Record]) {
    let mut from = 0;
    // SAFETY: `run_long` calls this inside the entry side or under `registering`.
    for node in unsafe { uprobe.consumers.walk() } {
        let group = &node.value;
        if !group.has_sessions() {
            // SAFETY: the same reader.
            unsafe { group.call_returns(func, regs) };
            continue;
        }
        // SAFETY: the same reader.
        for slot in unsafe { group.slots() }.filter(|slot| slot.has_ret_handler) {
            if !slot.has_handler {
                contained(|| slot.consumer.ret_handler(func, regs, None));
            } else if let Some(i) = records[from..].iter().position(|r| r.id == slot.id) {
                let cookie = Some(&mut records[from + i].cookie);
                contained(|| slot.consumer.ret_handler(func, regs, cookie));
                from += i + 1;
            }
        }
    }
}

impl Drop for ReturnStack {
    fn drop(&mut self) {
        self.unwind_to(0);
    }
}
