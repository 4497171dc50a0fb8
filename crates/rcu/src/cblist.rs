//! The segmented list of callbacks.
//!
//! For:     `Domain::call`, and any allocator that defers frees with memory of its own.
//! State:   four queues in the order of their grace periods; nodes lie in the callers' objects.
//! Context: target. Never allocates; the caller holds the list's lock.
//! Keeps:   L1 a callback leaves the list once, and only after its grace period.
//!          L2 callbacks leave in the order in which they came.
//!          L3 every callback gets a grace period's number as soon as it is queued.
//! Checked: tests below; model `callbacks` (mutant early-advance); `torture rcu` barrier and flood.
//! Source:  kernel `rcu_segcblist.c` (v7.0).

use crate::Cookie;
use core::ptr::{self, NonNull};

/// What a callback is asked to do, with its own node.
pub type Func = unsafe fn(NonNull<Head>);

/// The node of a callback, to be put into the object that it frees.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    next: *mut Head,
    func: Option<Func>,
}

impl Head {
    /// A node that is on no list.
    pub const fn new() -> Head {
        Head { next: ptr::null_mut(), func: None }
    }

    /// True from the call to the run.
    pub fn is_queued(&self) -> bool {
        self.func.is_some()
    }
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
}

/// First in, first out.
pub struct Queue {
    first: *mut Head,
    last: *mut Head,
    len: usize,
}

// SAFETY: whoever has the queue has the nodes on it (contract of `push`).
unsafe impl Send for Queue {}

impl Queue {
    /// An empty queue.
    pub const fn new() -> Queue {
        Queue { first: ptr::null_mut(), last: ptr::null_mut(), len: 0 }
    }

    /// The number of callbacks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// # Safety
    /// As [`CbList::push`].
    unsafe fn push(&mut self, node: NonNull<Head>, func: Func) {
        // SAFETY: the node is the caller's to write and on no list (its promise).
        unsafe { node.as_ptr().write(Head { next: ptr::null_mut(), func: Some(func) }) };
        if self.last.is_null() {
            self.first = node.as_ptr();
        } else {
            // SAFETY: `last` is on this queue, so it stays valid and ours until popped.
            unsafe { (*self.last).next = node.as_ptr() };
        }
        self.last = node.as_ptr();
        self.len += 1;
    }

    /// Puts everything of `other` behind what is here.
    pub fn append(&mut self, other: &mut Queue) {
        if other.is_empty() {
            return;
        }
        if self.last.is_null() {
            self.first = other.first;
        } else {
            // SAFETY: `last` is on this queue, so it stays valid and ours until popped.
            unsafe { (*self.last).next = other.first };
        }
        self.last = other.last;
        self.len += other.len;
        *other = Queue::new();
    }

    /// Takes the first callback: its node, unqueued, and what to call with it.
    pub fn pop(&mut self) -> Option<(NonNull<Head>, Func)> {
        let node = NonNull::new(self.first)?;
        // SAFETY: a queued node stays valid and ours until here (contract of `push`).
        let head = unsafe { node.as_ptr().replace(Head::new()) };
        self.first = head.next;
        if self.first.is_null() {
            self.last = ptr::null_mut();
        }
        self.len -= 1;
        head.func.map(|func| (node, func))
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

/// Segments behind the runnable one, each with the cookie that it waits for.
const WAITING: usize = 3;

/// Callbacks by the grace period that they wait for.
pub struct CbList {
    done: Queue,
    waiting: [(Queue, Cookie); WAITING],
    /// Callbacks taken by `take_done` that have not run yet: they keep the list from being empty.
    running: usize,
}

impl CbList {
    /// An empty list.
    pub const fn new() -> CbList {
        CbList {
            done: Queue::new(),
            waiting: [const { (Queue::new(), Cookie::COMPLETED) }; WAITING],
            running: 0,
        }
    }

    /// Queues a callback to run after `cookie`.
    ///
    /// `cookie` must be snapped before `seq` is read: with the other order the running grace period
    /// can end in between, and the callback would wait for one that nobody asks for.
    ///
    /// # Safety
    /// `node` must be valid and nobody else's until its callback runs, and must not be queued already.
    pub unsafe fn push(&mut self, node: NonNull<Head>, func: Func, cookie: Cookie, seq: u64) {
        self.advance(seq);
        let last = self.waiting.iter().rposition(|(queue, _)| !queue.is_empty());
        // At most two cookies can be live beside the runnable ones, so a place is always free; if a
        // caller breaks the rule above, waiting with the last segment is late but safe.
        let at = match last {
            Some(i) if self.waiting[i].1 == cookie => i,
            Some(i) => (i + 1).min(WAITING - 1),
            None => 0,
        };
        let (queue, waits_for) = &mut self.waiting[at];
        // SAFETY: the caller's duties are the same.
        unsafe { queue.push(node, func) };
        *waits_for = cookie;
    }

    /// Puts a callback behind all that are here, without a grace period of its own; false if empty.
    ///
    /// # Safety
    /// As [`push`](Self::push).
    pub unsafe fn entrain(&mut self, node: NonNull<Head>, func: Func) -> bool {
        if self.is_empty() {
            return false;
        }
        let queue = match self.waiting.iter_mut().rev().find(|(queue, _)| !queue.is_empty()) {
            Some((queue, _)) => queue,
            None => &mut self.done,
        };
        // SAFETY: the caller's duties are the same.
        unsafe { queue.push(node, func) };
        true
    }

    /// Makes runnable what waits for grace periods up to `seq`.
    pub fn advance(&mut self, seq: u64) {
        for i in 0..WAITING {
            let (queue, cookie) = &mut self.waiting[i];
            let seq = if cfg!(mutant = "early-advance") { seq.wrapping_add(crate::seq::STEP) } else { seq };
            if !queue.is_empty() && !cookie.is_reached(seq) {
                return self.close_ranks(i);
            }
            self.done.append(queue);
        }
    }

    /// Moves the segments from `first` on to the front.
    fn close_ranks(&mut self, first: usize) {
        self.waiting.rotate_left(first);
    }

    /// Takes everything runnable. The list counts it until [`ran`](Self::ran): a callback entrained
    /// meanwhile must run after what is being run. So one thread at a time takes from a list.
    pub fn take_done(&mut self) -> Queue {
        self.running += self.done.len();
        core::mem::take(&mut self.done)
    }

    /// Notes that `n` of those taken have run.
    pub fn ran(&mut self, n: usize) {
        self.running -= n.min(self.running);
    }

    /// The furthest grace period that a callback waits for.
    pub fn needed(&self) -> Option<Cookie> {
        self.waiting.iter().rev().find(|(queue, _)| !queue.is_empty()).map(|(_, cookie)| *cookie)
    }

    /// The number of callbacks, runnable or not.
    pub fn len(&self) -> usize {
        self.running + self.done.len() + self.waiting.iter().map(|(queue, _)| queue.len()).sum::<usize>()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for CbList {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::seq;
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    unsafe fn nothing(_: NonNull<Head>) {}

    fn push(list: &mut CbList, seq: u64) -> NonNull<Head> {
        let node = NonNull::from(Box::leak(Box::new(Head::new())));
        // SAFETY: the node is new and the list is its only user.
        unsafe { list.push(node, nothing, Cookie::snap(seq), seq) };
        node
    }

    fn drain(list: &mut CbList) -> Vec<NonNull<Head>> {
        let mut queue = list.take_done();
        let out: Vec<_> = core::iter::from_fn(|| queue.pop()).map(|(node, _)| node).collect();
        for node in &out {
            // SAFETY: `push` above leaked the box, and the node has left the list.
            drop(unsafe { Box::from_raw(node.as_ptr()) });
        }
        out
    }

    #[test]
    fn callbacks_leave_in_order_and_only_after_their_grace_period() {
        let mut seq = seq::FIRST;
        let mut list = CbList::new();
        let a = push(&mut list, seq);
        let b = push(&mut list, seq + 1); // while a grace period runs: needs the next one
        let c = push(&mut list, seq + 2);
        assert!(drain(&mut list).is_empty());
        seq += 4;
        list.advance(seq);
        assert_eq!(drain(&mut list), [a]);
        let d = push(&mut list, seq);
        seq += 4;
        list.advance(seq);
        assert_eq!(drain(&mut list), [b, c, d]);
        assert!(!list.is_empty(), "they have been taken, but not run");
        list.ran(4);
        assert!(list.is_empty());
    }

    #[test]
    fn an_entrained_callback_is_last_and_an_empty_list_takes_none() {
        let mut list = CbList::new();
        let mut node = Head::new();
        let node = NonNull::from(&mut node);
        // SAFETY: the node lives to the end of the test and is on no list.
        assert!(!unsafe { list.entrain(node, nothing) });
        push(&mut list, seq::FIRST);
        // SAFETY: as above.
        assert!(unsafe { list.entrain(node, nothing) });
        list.advance(seq::FIRST + 4);
        let mut queue = list.take_done();
        let first = queue.pop().unwrap().0;
        assert_ne!(first, node);
        // SAFETY: `push` leaked the box, and the node has left the list.
        drop(unsafe { Box::from_raw(first.as_ptr()) });
        assert_eq!(queue.pop().unwrap().0, node);
        assert!(queue.pop().is_none());
    }
}
