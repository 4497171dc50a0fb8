//! What is said of a process that we left.
//!
//! For:     `Session::detach`, `recover`, and who prints it.
//! State:   what was done, what was proven, and what stays behind.
//! Context: control.
//! Keeps:   R1 nothing is claimed without a proof: a receipt says "verified" only with a [`Restored`] or a [`Gone`], and
//!             "memory returned" only with an [`Unmapped`]; each is made in one place, by looking: proof.rs.
//!          R2 what stays behind is named; probes that stay in any process take "verified" away.
//! Checked: tests below; testkit `endings`.

use crate::find::proof::{Gone, Restored, Unmapped};
use std::time::Duration;

/// What was found of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Found {
    /// It was not looked at, or could not be.
    #[default]
    Nothing,
    Gone(Gone),
    Here(Option<Restored>, Option<Unmapped>),
}

/// What stays behind, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Residue {
    /// A site that somebody else had changed; left alone.
    Foreign {
        /// Its name.
        site: String,
    },
    /// The count of tracers of a mark, one too high: it could not be written.
    Raised {
        /// The mark's name.
        site: String,
    },
    /// Our memory, because a thread is in it or will come back to it.
    Held {
        /// The thread.
        by: i32,
    },
    /// What lies where our memory was, as that is mapped no more: the process has unmapped it, or another nanoprobe.
    Displaced,
    /// Our probes, or our memory, in a forked child.
    Child {
        /// The child.
        pid: i32,
        /// Why it was not freed.
        why: String,
    },
    /// Forked children could not be looked for.
    Unsearched {
        /// Why not.
        why: String,
    },
}

/// What a detach found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Sites whose bytes are the file's again.
    pub restored: usize,
    /// Sites where another nanoprobe goes on.
    pub handed_over: usize,
    /// Addresses where a breakpoint of the kernel's still stands though ours are taken out: nobody owns it, or one that we
    /// do not know.
    pub breakpoints: Vec<u64>,
    /// Sites whose module the process has unmapped meanwhile.
    pub unmapped: usize,
    /// Pages of a soft watch that have their own protection again.
    pub pages: usize,
    /// Forked children that were freed of our patches.
    pub children: usize,
    /// What stays behind.
    pub residues: Vec<Residue>,
    /// The longest time that a thread stood still for us, from attach to now.
    pub longest_stall: Duration,
    /// The kernel has mapped a page of its own, `[uprobes]`, for sites on rung 7; it stays until the process ends.
    pub has_kernel_page: bool,
    /// How long the detach took.
    pub took: Duration,
    found: Found,
}

impl Receipt {
    /// The process is gone.
    pub(crate) fn is_gone(&mut self, proof: Gone) {
        self.found = Found::Gone(proof);
    }

    /// The process is there, and this was proven of it.
    pub(crate) fn is_left(&mut self, text: Option<Restored>, memory: Option<Unmapped>) {
        self.found = Found::Here(text, memory);
    }

    /// Every restored site was read back and equals the file, here and in all forked children.
    pub fn is_verified(&self) -> bool {
        let is_proven = matches!(self.found, Found::Gone(_) | Found::Here(Some(_), _));
        is_proven
            && self.breakpoints.is_empty()
            && self.residues.iter().all(|r| matches!(r, Residue::Held { .. }))
    }

    /// All our mappings are gone from the target.
    pub fn is_unmapped(&self) -> bool {
        matches!(self.found, Found::Here(_, Some(_)))
    }

    /// The process ended, or runs another program, before we detached.
    pub fn was_gone(&self) -> bool {
        matches!(self.found, Found::Gone(_))
    }

    /// The thread that kept us from unmapping.
    pub fn held_by(&self) -> Option<i32> {
        self.residues.iter().find_map(|r| match r {
            Residue::Held { by } => Some(*by),
            _ => None,
        })
    }

    /// Sites that somebody else had changed.
    pub fn foreign(&self) -> impl Iterator<Item = &str> {
        self.residues.iter().filter_map(|r| match r {
            Residue::Foreign { site } => Some(site.as_str()),
            _ => None,
        })
    }

    /// The receipt of both.
    pub fn and(mut self, other: Receipt) -> Receipt {
        self.restored += other.restored;
        self.handed_over += other.handed_over;
        self.unmapped += other.unmapped;
        self.pages += other.pages;
        self.breakpoints.extend(other.breakpoints);
        self.residues.extend(other.residues);
        self.has_kernel_page |= other.has_kernel_page;
        self.children = self.children.max(other.children);
        self.longest_stall = self.longest_stall.max(other.longest_stall);
        self.took += other.took;
        self.found = match (self.found, other.found) {
            (Found::Nothing, _) | (_, Found::Nothing) => Found::Nothing,
            (Found::Gone(_), found) | (found, Found::Gone(_)) => found,
            (Found::Here(a, b), Found::Here(c, d)) => Found::Here(a.and(c), b.and(d)),
        };
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::memory::Memory;

    fn left() -> Receipt {
        let mut receipt = Receipt::default();
        let memory = Unmapped::proven(std::iter::empty::<Result<(), ()>>()).ok();
        receipt.is_left(Restored::proven::<()>(&[]), memory);
        receipt
    }

    /// Of a process that is.
    fn ended() -> Gone {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let memory = Memory::open(child.id() as i32).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        Gone::proven(&memory).unwrap()
    }

    fn gone() -> Receipt {
        let mut receipt = Receipt::default();
        receipt.is_gone(ended());
        receipt
    }

    #[test]
    fn a_receipt_without_a_look_claims_nothing() {
        let receipt = Receipt::default();
        assert!(!receipt.is_verified() && !receipt.is_unmapped() && !receipt.was_gone());
        assert!(Restored::proven(&["u::f"]).is_none());
        assert!(Unmapped::proven([Ok(()), Err(7)].into_iter()).is_err());
    }

    #[test]
    fn a_receipt_of_several_claims_what_each_does() {
        assert!(left().and(gone()).is_verified() && left().and(gone()).is_unmapped());
        assert!(gone().and(gone()).was_gone() && !gone().and(left()).was_gone());
        let unseen = left().and(Receipt::default());
        assert!(!unseen.is_verified() && !unseen.is_unmapped());
    }

    #[test]
    fn a_child_with_probes_takes_verified_away_and_held_memory_does_not() {
        let child = Residue::Child { pid: 7, why: String::new() };
        let with = |residue| Receipt { residues: vec![residue], ..left() };
        let raised = Residue::Raised { site: "U:m".into() };
        assert!(!with(raised).is_verified());
        assert!(!with(child).is_verified() && with(Residue::Held { by: 7 }).is_verified());
        assert_eq!(with(Residue::Held { by: 7 }).held_by(), Some(7));
    }
}
