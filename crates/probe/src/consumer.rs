//! What a probe calls.
//!
//! For:     whoever registers.
//! State:   the caller's.
//! Context: handlers: hit. `filter`: target, under the registry's locks; it must not call the registry.
//! Keeps:   nothing.
//! Checked: by use.

use crate::book::ConsumerId;
use crate::group::{GroupNode, Typed};
use crate::{Regs, SpaceId};
use core::ptr::NonNull;
use core::sync::atomic::AtomicPtr;
use std::sync::Arc;

/// What a handler wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Verdict {
    /// Go on: 0 in the kernel.
    #[default]
    Continue = 0,
    /// Take the breakpoint out of this address space, if every consumer says so and no filter objects: 1.
    Remove = 1,
    /// Do not call my return handler for this hit: 2.
    Ignore = 2,
}

/// A consumer of hits. It is asked once, when it is registered, which handlers it has.
///
/// Consumers of one type that are on one uprobe are called by one call.
pub trait Consumer: Typed + Send + Sync {
    /// True if [`handler`](Self::handler) is to be called.
    fn has_handler(&self) -> bool {
        true
    }

    /// True if [`ret_handler`](Self::ret_handler) is to be called. With both, this is a session: what the
    /// handler leaves in the cookie, the return handler gets.
    fn has_ret_handler(&self) -> bool {
        false
    }

    /// True if [`filter`](Self::filter) is to be asked. A consumer without is always interested.
    fn has_filter(&self) -> bool {
        false
    }

    /// Called for each hit. The cookie is 0 at first.
    fn handler(&self, _regs: &mut Regs, _cookie: &mut u64) -> Verdict {
        Verdict::Continue
    }

    /// Called for each return, with the address of the function, and a session's cookie.
    fn ret_handler(&self, _func: u64, _regs: &mut Regs, _cookie: Option<&mut u64>) {}

    /// True if this address space is of interest.
    fn filter(&self, _space: SpaceId) -> bool {
        true
    }
}

/// A consumer on its uprobe.
pub(crate) struct Slot {
    pub consumer: Arc<dyn Consumer>,
    /// Set before the slot is linked: a hit cannot record another.
    pub id: ConsumerId,
    pub has_handler: bool,
    pub has_ret_handler: bool,
    pub has_filter: bool,
    /// The group that it is in; null if it is in none. Writers alone look at it.
    pub group: AtomicPtr<GroupNode>,
}

impl Slot {
    /// Where the consumer is.
    pub fn data(&self) -> NonNull<()> {
        NonNull::from(&*self.consumer).cast()
    }

    pub fn wants(&self, space: SpaceId) -> bool {
        !self.has_filter || self.consumer.filter(space)
    }
}
