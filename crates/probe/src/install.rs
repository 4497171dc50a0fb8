//! Placing and removing breakpoints in address spaces.
//!
//! For:     register, unregister, apply, mappings, handlers that say remove.
//! State:   none of its own.
//! Context: target, under the space's lock.
//! Keeps:   B1 the instruction is copied and looked at once, at the first placing.
//!          B2 placing twice and removing twice do nothing the second time, to the semaphore either.
//!          B3 a breakpoint that could not be written leaves the semaphore as it was.
//! Checked: `tests/errors.rs`, `tests/checklist.rs`.
//! Source:  kernel `install_breakpoint`, `uprobe_write_opcode` (v7.0).

use crate::consumer::Slot;
use crate::inside::Inside;
use crate::registry::{Inner, lock};
use crate::spaces::Member;
use crate::stats::bump;
use crate::uprobe::{Node, Uprobe};
use crate::{Insn, InstallError, MAX_INSN, SpaceId};

impl Uprobe {
    /// Copies the instruction and looks at it, the first time. Under `listing`.
    pub(crate) fn prepare(&self, offset: u64) -> Result<Insn, InstallError> {
        if let Some(insn) = self.insn.get() {
            return Ok(*insn);
        }
        let mut bytes = [0; MAX_INSN];
        let len = self.file.read(offset, &mut bytes) as u8;
        let insn = Insn { bytes, len };
        if len == 0 {
            return Err(InstallError::NoBytes { offset });
        }
        if insn.is_trap() {
            return Err(InstallError::IsTrap { offset });
        }
        if !self.file.is_probeable(&insn) {
            return Err(InstallError::NotProbeable { offset });
        }
        let insn = *self.insn.get_or_init(|| insn);
        self.set_ready();
        Ok(insn)
    }

    /// True if some consumer wants hits of the space. A plain walk under `listing`.
    pub(crate) fn is_wanted(&self, space: SpaceId) -> bool {
        let _listing = lock(&self.listing);
        // SAFETY: `listing` keeps writers out.
        unsafe { self.slots() }.any(|slot| slot.wants(space))
    }
}

impl Inner {
    /// Places breakpoints where one consumer wants them; ends at the first error.
    pub fn install_for(&self, node: &Node, slot: &Slot) -> Result<(), InstallError> {
        let members = self.members.0.read().unwrap_or_else(|e| e.into_inner());
        members.values().try_for_each(|member| self.install_in(node, member, Some(slot)))
    }

    /// Places breakpoints in one space if the consumer, or with `None` any consumer, wants them.
    pub fn install_in(&self, node: &Node, member: &Member, slot: Option<&Slot>) -> Result<(), InstallError> {
        let _locked = lock(&member.lock);
        let space = member.space.id();
        let addresses = member.space.addresses(node.key().0, node.key().1, true);
        if addresses.is_empty() {
            return Ok(());
        }
        let wanted = match slot {
            Some(slot) => slot.wants(space),
            None => node.value.is_wanted(space),
        };
        if !wanted {
            return Ok(());
        }
        let insn = {
            let _listing = lock(&node.value.listing);
            node.value.prepare(node.key().1)?
        };
        addresses.into_iter().try_for_each(|at| self.place(node, member, at, &insn))
    }

    fn place(&self, node: &Node, member: &Member, at: u64, insn: &Insn) -> Result<(), InstallError> {
        if member.space.has_breakpoint(at)? {
            return Ok(());
        }
        self.change_ref_ctr(node, member, 1)?;
        if let Err(error) = member.space.install(at, insn) {
            let _ = self.change_ref_ctr(node, member, -1);
            return Err(error.into());
        }
        bump(&self.counts.installed);
        Ok(())
    }

    /// Removes breakpoints from every space where no consumer wants them; how many could not be removed.
    pub fn remove_unwanted(&self, node: &Node) -> usize {
        let members = self.members.0.read().unwrap_or_else(|e| e.into_inner());
        members.values().map(|member| self.remove_from(node, member)).sum()
    }

    /// Removes breakpoints from one space if no consumer wants them; how many could not be removed.
    fn remove_from(&self, node: &Node, member: &Member) -> usize {
        let _locked = lock(&member.lock);
        let addresses = member.space.addresses(node.key().0, node.key().1, false);
        // Without an instruction nothing was ever placed.
        let Some(insn) = node.value.insn.get() else { return 0 };
        if addresses.is_empty() || node.value.is_wanted(member.space.id()) {
            return 0;
        }
        addresses.into_iter().filter(|at| !self.take_back(node, member, *at, insn)).count()
    }

    fn take_back(&self, node: &Node, member: &Member, at: u64, insn: &Insn) -> bool {
        match member.space.has_breakpoint(at) {
            Ok(false) => return true,
            Ok(true) => {}
            Err(_) => return false,
        }
        if self.change_ref_ctr(node, member, -1).is_err() {
            return false;
        }
        if member.space.remove(at, insn).is_err() {
            let _ = self.change_ref_ctr(node, member, 1);
            return false;
        }
        bump(&self.counts.removed);
        true
    }

    /// All handlers said remove: looks at the filters once more, and removes from that space alone.
    #[cold]
    pub fn unhook(&self, node: &Node, space: SpaceId) -> bool {
        let _inside = Inside::of(self);
        let _registering = node.value.registering.read().unwrap_or_else(|e| e.into_inner());
        let Some(member) = self.members.get(space) else { return false };
        if node.value.is_wanted(space) || self.remove_from(node, &member) > 0 {
            return false;
        }
        bump(&self.counts.unhooked);
        true
    }
}
