//! Up to eight consumers side by side, as hits read them.
//!
//! For:     hits, which go from group to group; `Uprobe::link` and `unlink`, which change them.
//! State:   the address of each handler and what it is called with. A linked group never changes: a change is
//!          another group in its place.
//! Context: calls: hit. The rest: target, under `listing`.
//! Keeps:   G1 while a walk stands on a group, the consumers in it live: it is retired no later than they.
//!          G2 the consumers of a group are called newest first, each once.
//!          G3 without sessions, `hot` begins with so many entry handlers, and behind them return handlers, as the
//!             group says.
//! Checked: `tests/groups.rs`, `tests/matrix.rs`, `torture uprobe`.
//!
//! Why: by way of a list node and a trait object, each consumer's call waits for a chain of pointers; the second to
//! eighth cost 2.4 ns each so, and 1.5 side by side (docs/bench.md).

use crate::consumer::Slot;
use crate::inside::contained;
use crate::{Consumer, Regs, Verdict};
use coll::{List, ListNode};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;

/// How many consumers a group has at most.
pub(crate) const ROOM: usize = 8;

pub(crate) type GroupNode = ListNode<Group>;

/// A handler as a plain function: the consumer, the registers, the probed function at its return, the cookie.
type Handler = unsafe fn(NonNull<()>, &mut Regs, u64, *mut u64) -> Verdict;
/// Several entry handlers or several return handlers of a group; true if each said remove. No panic leaves it.
type Handlers = unsafe fn(NonNull<Hot>, usize, &mut Regs, u64) -> bool;

/// The functions that a type of consumers has, found once, when a consumer is registered.
#[derive(Clone, Copy)]
pub struct Functions {
    entry: Handler,
    entries: Handlers,
    ret: Handler,
    rets: Handlers,
}

/// Implemented for every consumer: how its handlers are called without the trait object.
pub trait Typed {
    #[doc(hidden)]
    fn functions(&self) -> Functions;
}

impl<C: Consumer> Typed for C {
    fn functions(&self) -> Functions {
        Functions { entry: entry::<C>, entries: entries::<C>, ret: ret::<C>, rets: rets::<C> }
    }
}

/// # Safety
/// `data` must be a live `C`, and `cookie` a live number of the caller's.
unsafe fn entry<C: Consumer>(data: NonNull<()>, regs: &mut Regs, _: u64, cookie: *mut u64) -> Verdict {
    // SAFETY: a live `C` (caller's duty).
    let consumer = unsafe { data.cast::<C>().as_ref() };
    // SAFETY: a live number of the caller's (its duty).
    let cookie = unsafe { &mut *cookie };
    consumer.handler(regs, cookie)
}

/// # Safety
/// There must be so many at `first`, and the data of all must be live `C`s.
unsafe fn entries<C: Consumer>(first: NonNull<Hot>, len: usize, regs: &mut Regs, _: u64) -> bool {
    // SAFETY: the caller's duty.
    let all = unsafe { core::slice::from_raw_parts(first.as_ptr(), len) };
    let (mut rest, mut remove) = (all.iter(), true);
    let one = |remove: bool, hot: &Hot, regs: &mut Regs| {
        // SAFETY: a live `C` (caller's duty).
        let consumer = unsafe { hot.data.cast::<C>().as_ref() };
        remove & (consumer.handler(regs, &mut 0) == Verdict::Remove)
    };
    loop {
        // Who panics has been taken off `rest`; those behind it are called all the same.
        match contained(|| rest.by_ref().fold(true, |remove, hot| one(remove, hot, regs))) {
            Some(all) => return remove & all,
            None => remove = false,
        }
    }
}

/// # Safety
/// `data` must be a live `C`, and `cookie` null or a live number of the caller's.
unsafe fn ret<C: Consumer>(data: NonNull<()>, regs: &mut Regs, func: u64, cookie: *mut u64) -> Verdict {
    // SAFETY: a live `C` (caller's duty).
    let consumer = unsafe { data.cast::<C>().as_ref() };
    // SAFETY: null or a live number of the caller's (its duty).
    let cookie = unsafe { cookie.as_mut() };
    consumer.ret_handler(func, regs, cookie);
    Verdict::Continue
}

/// # Safety
/// As for `entries`.
unsafe fn rets<C: Consumer>(first: NonNull<Hot>, len: usize, regs: &mut Regs, func: u64) -> bool {
    // SAFETY: the caller's duty.
    let all = unsafe { core::slice::from_raw_parts(first.as_ptr(), len) };
    let mut rest = all.iter();
    let one = |hot: &Hot, regs: &mut Regs| {
        // SAFETY: a live `C` (caller's duty).
        unsafe { hot.data.cast::<C>().as_ref() }.ret_handler(func, regs, None);
    };
    // As in `entries`.
    while contained(|| rest.by_ref().for_each(|hot| one(hot, regs))).is_none() {}
    false
}

/// One handler and its consumer.
#[derive(Clone, Copy)]
pub struct Hot {
    data: NonNull<()>,
    handler: Handler,
}

impl Hot {
    /// Calls the handler, whose panic goes no further. It is caught here: a handler that has nothing to catch needs no
    /// stack frame, which is half a nanosecond.
    ///
    /// # Safety
    /// As for the handler: the consumer must live, and `cookie` must be what it takes.
    #[inline(always)]
    unsafe fn call(&self, regs: &mut Regs, func: u64, cookie: *mut u64) -> Verdict {
        // SAFETY: the caller's duty.
        let called = contained(|| unsafe { (self.handler)(self.data, regs, func, cookie) });
        // Without an answer, its return handler is not called for this hit.
        called.unwrap_or(Verdict::Ignore)
    }
}

/// Runs `call` for each number below `N`, one after the other in the text: each call of a handler is an instruction of its
/// own, and the processor learns where each of them leads.
macro_rules! unrolled {
    ($n:ident, $call:expr) => {
        unrolled!($n, $call, 0 1 2 3 4 5 6 7)
    };
    ($n:ident, $call:expr, $($i:literal)*) => {
        $(if $i < $n { $call($i) })*
    };
}

/// Entry handlers of `N` consumers of several types; apart, so that a hit of one consumer has a short way.
///
/// # Safety
/// There must be so many at `first`, and their consumers must live.
unsafe fn mixed_entries<const N: usize>(first: NonNull<Hot>, _: usize, regs: &mut Regs, _: u64) -> bool {
    // SAFETY: the caller's duty.
    let all = unsafe { first.cast::<[Hot; N]>().as_ref() };
    let mut remove = true;
    // SAFETY: the caller's duty; an entry handler gets a cookie.
    let mut call = |i: usize| remove &= unsafe { all[i].call(regs, 0, &mut 0) } == Verdict::Remove;
    unrolled!(N, call);
    remove
}

/// The same for return handlers.
///
/// # Safety
/// As for `mixed_entries`.
unsafe fn mixed_rets<const N: usize>(first: NonNull<Hot>, _: usize, regs: &mut Regs, func: u64) -> bool {
    // SAFETY: the caller's duty.
    let all = unsafe { first.cast::<[Hot; N]>().as_ref() };
    // SAFETY: the caller's duty; without a session there is no cookie.
    let mut call = |i: usize| _ = unsafe { all[i].call(regs, func, null_mut()) };
    unrolled!(N, call);
    false
}

/// By the number of consumers, from two on.
const MIXED_ENTRIES: [Handlers; ROOM - 1] = [
    mixed_entries::<2>,
    mixed_entries::<3>,
    mixed_entries::<4>,
    mixed_entries::<5>,
    mixed_entries::<6>,
    mixed_entries::<7>,
    mixed_entries::<8>,
];

/// The same for return handlers.
const MIXED_RETS: [Handlers; ROOM - 1] = [
    mixed_rets::<2>,
    mixed_rets::<3>,
    mixed_rets::<4>,
    mixed_rets::<5>,
    mixed_rets::<6>,
    mixed_rets::<7>,
    mixed_rets::<8>,
];

/// See the file's head. What a hit reads of one consumer stands in its first line.
#[repr(C)]
pub(crate) struct Group {
    /// If there are several entry handlers: the function that calls them all.
    all_entries: Option<Handlers>,
    entries: u8,
    returns: u8,
    /// How many have both handlers.
    sessions: u8,
    /// Without sessions: entry handlers, then return handlers. With: one of each consumer, as in `members`, its entry
    /// handler if it has one.
    hot: [Hot; ROOM],
    /// As for entries.
    all_returns: Option<Handlers>,
    /// Newest first, as many as there are.
    members: [Option<NonNull<Slot>>; ROOM],
}

impl Group {
    /// A group of at least one and at most `ROOM` consumers, newest first.
    fn of(members: &[NonNull<Slot>]) -> Group {
        // SAFETY: under `listing`, which is held for a change, no slot of the list is freed.
        let slot = |s: &NonNull<Slot>| unsafe { s.as_ref() };
        let entries = members.iter().map(slot).filter(|s| s.has_handler && !s.has_ret_handler);
        let returns = members.iter().map(slot).filter(|s| !s.has_handler);
        let hot = |s: &Slot| {
            let Functions { entry, ret, .. } = s.consumer.functions();
            Hot { data: s.data(), handler: if s.has_handler { entry } else { ret } }
        };
        let (e, r) = (entries.clone().count(), returns.clone().count());
        let mut group = Group {
            all_entries: of_several(entries.clone().map(|s| s.consumer.functions().entries), &MIXED_ENTRIES),
            entries: e as u8,
            returns: r as u8,
            sessions: (members.len() - e - r) as u8,
            hot: [hot(slot(&members[0])); ROOM],
            all_returns: of_several(returns.clone().map(|s| s.consumer.functions().rets), &MIXED_RETS),
            members: [None; ROOM],
        };
        let order: Vec<&Slot> = match group.has_sessions() {
            true => members.iter().map(slot).collect(),
            false => entries.chain(returns).collect(),
        };
        group.hot.iter_mut().zip(order).for_each(|(to, slot)| *to = hot(slot));
        group.members.iter_mut().zip(members).for_each(|(to, slot)| *to = Some(*slot));
        group
    }

    /// True if some consumers have both handlers, so that they are to be called one by one.
    #[inline(always)]
    pub fn has_sessions(&self) -> bool {
        self.sessions != 0
    }

    /// True if some consumers have no handler but that of returns.
    #[inline(always)]
    pub fn has_returns(&self) -> bool {
        self.returns != 0
    }

    /// Calls the entry handlers of a group without sessions; true if each said remove.
    ///
    /// # Safety
    /// The caller must be inside the reader in which it met the group.
    #[inline(always)]
    pub unsafe fn call_entries(&self, regs: &mut Regs) -> bool {
        let len = usize::from(self.entries);
        if let Some(all) = self.all_entries {
            // SAFETY: G1, G3; all are of types that this function is for (`of_several`).
            return unsafe { all(NonNull::from(&self.hot).cast(), len, regs, 0) };
        }
        // SAFETY: G1, G3; the handler was found with the data.
        len == 0 || unsafe { self.hot[0].call(regs, 0, &mut 0) } == Verdict::Remove
    }

    /// Calls the entry handler of member `i` of a group with sessions.
    ///
    /// # Safety
    /// As for [`call_entries`](Self::call_entries); the member must be there and have an entry handler.
    #[inline(always)]
    pub unsafe fn call_entry(&self, i: usize, regs: &mut Regs, cookie: &mut u64) -> Verdict {
        // SAFETY: there (caller's duty).
        let one = unsafe { self.hot.get_unchecked(i) };
        // SAFETY: G1; the handler was found with the data, and is the entry's.
        unsafe { one.call(regs, 0, cookie) }
    }

    /// Calls the return handlers of a group without sessions.
    ///
    /// # Safety
    /// As for [`call_entries`](Self::call_entries).
    #[inline(always)]
    pub unsafe fn call_returns(&self, func: u64, regs: &mut Regs) {
        let (start, len) = (usize::from(self.entries), usize::from(self.returns));
        if let Some(all) = self.all_returns {
            // SAFETY: G3: `start` of them come before.
            let first = unsafe { NonNull::from(&self.hot).cast::<Hot>().add(start) };
            // SAFETY: G1, G3; all are of types that this function is for (`of_several`).
            unsafe { all(first, len, regs, func) };
        } else if len != 0 {
            // SAFETY: G3.
            let one = unsafe { self.hot.get_unchecked(start) };
            // SAFETY: G1; the handler was found with the data.
            unsafe { one.call(regs, func, null_mut()) };
        }
    }

    /// The consumers, newest first.
    ///
    /// # Safety
    /// The caller must be inside the reader in which it met the group, or keep writers out, for as long as it uses
    /// what it gets.
    #[inline(always)]
    pub unsafe fn slots(&self) -> impl Iterator<Item = &Slot> {
        // SAFETY: G1.
        self.members.iter().map_while(|s| s.as_ref()).map(|s| unsafe { s.as_ref() })
    }

    fn members(&self) -> impl Iterator<Item = NonNull<Slot>> {
        self.members.iter().map_while(|s| *s)
    }
}

/// If there are several: the function of their type, or that of so many of mixed types.
fn of_several(all: impl Iterator<Item = Handlers> + Clone, mixed: &[Handlers; ROOM - 1]) -> Option<Handlers> {
    let mixed = *mixed.get(all.clone().count().checked_sub(2)?)?;
    let mut others = all;
    let first = others.next()?;
    Some(if others.all(|f| core::ptr::fn_addr_eq(f, first)) { first } else { mixed })
}

/// A linked group of these consumers, who are told.
fn make(members: &[NonNull<Slot>]) -> NonNull<GroupNode> {
    let node = Box::into_raw(Box::new(ListNode::new(Group::of(members))));
    // SAFETY: fresh from a box, so not null.
    let node = unsafe { NonNull::new_unchecked(node) };
    for slot in members {
        // SAFETY: under `listing`, which is held for a change, no slot of the list is freed.
        unsafe { slot.as_ref() }.group.store(node.as_ptr(), Relaxed);
    }
    node
}

/// Adds a consumer as the newest. Gives back the group that its own replaced, which walks may still stand on.
///
/// # Safety
/// The caller must be the only writer of the list; the slot must be in none, and live until it was unlinked and
/// every walk from before then has ended.
pub(crate) unsafe fn link(list: &List<Group>, slot: NonNull<Slot>) -> Option<NonNull<GroupNode>> {
    // SAFETY: the only writer.
    let first = unsafe { list.walk() }.next().filter(|node| node.value.members[ROOM - 1].is_none());
    let Some(first) = first else {
        // SAFETY: the only writer; the node is fresh, and retired when it is unlinked.
        unsafe { list.push(make(&[slot])) };
        return None;
    };
    let members: Vec<_> = core::iter::once(slot).chain(first.value.members()).collect();
    let old = NonNull::from(first);
    // SAFETY: the only writer; `old` is linked here, the other is fresh, and retired when it is unlinked.
    unsafe { list.replace(old, make(&members)) };
    Some(old)
}

/// Takes a consumer off. Gives back the group that it was in, which walks may still stand on.
///
/// # Safety
/// The caller must be the only writer of the list, which the slot must be in.
pub(crate) unsafe fn unlink(list: &List<Group>, slot: NonNull<Slot>) -> Option<NonNull<GroupNode>> {
    // SAFETY: the slot lives (caller's duty).
    let old = NonNull::new(unsafe { slot.as_ref() }.group.swap(null_mut(), Relaxed))?;
    // SAFETY: linked: it is the group that the slot is in, and `make` told every slot of its group.
    let others: Vec<_> = unsafe { old.as_ref() }.value.members().filter(|other| *other != slot).collect();
    match others.is_empty() {
        // SAFETY: the only writer, and `old` is in this list.
        true => unsafe { list.unlink(old) },
        // SAFETY: the same; the other is fresh, and retired when it is unlinked.
        false => unsafe { list.replace(old, make(&others)) },
    };
    Some(old)
}
