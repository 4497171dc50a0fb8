//! Code for an address.
//!
//! For:     whoever maps it: the own process, a target.
//! State:   none.
//! Context: control.
//! Keeps:   P1 each call leads to its helper: directly where its distance does, else by a jump behind the code.
//! Checked: tests below; tests/engines.rs.

use crate::arch::{self, FAR_LEN};
use crate::{Compiled, FaultPlace};
use std::fmt;

/// A helper that a program calls, and that is nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// Its number.
    pub helper: u32,
}

impl fmt::Display for Unplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "helper {} has no address", self.helper)
    }
}

impl std::error::Error for Unplaced {}

impl Compiled {
    /// Bytes that it takes where it is placed, at most.
    pub fn placed_len(&self) -> usize {
        self.bytes.len().next_multiple_of(FAR_LEN) + self.helpers().len() * FAR_LEN
    }

    /// The code for this address, a multiple of 16, with helpers where `address_of` says.
    ///
    /// # Errors
    /// A helper that has no address.
    pub fn at(&self, base: u64, address_of: impl Fn(u32) -> Option<u64>) -> Result<Vec<u8>, Unplaced> {
        let mut bytes = self.bytes.clone();
        for helper in self.helpers() {
            let to = address_of(helper).ok_or(Unplaced { helper })?;
            let call = |at: u32, to: u64| arch::call(to.wrapping_sub(base + u64::from(at)).cast_signed());
            let places = || self.relocations.iter().filter(|r| r.helper == helper).map(|r| r.at);
            let reaches = places().all(|at| call(at, to).is_some());
            let to = if reaches { to } else { base + far(&mut bytes, to) };
            for at in places() {
                // What is behind the code is never too far.
                let word = call(at, to).ok_or(Unplaced { helper })?;
                bytes[at as usize..at as usize + 4].copy_from_slice(&word);
            }
        }
        Ok(bytes)
    }

    /// The program's instruction whose access is made by the code at this offset.
    pub fn fault_at(&self, offset: u64) -> Option<u32> {
        let found: Option<&FaultPlace> = self.faults.iter().find(|f| u64::from(f.at) == offset);
        found.map(|f| f.insn)
    }

    /// The helpers that it calls, each once.
    pub fn helpers(&self) -> Vec<u32> {
        let mut helpers: Vec<u32> = self.relocations.iter().map(|r| r.helper).collect();
        helpers.sort_unstable();
        helpers.dedup();
        helpers
    }
}

/// A jump to `to` behind the bytes; where it is.
fn far(bytes: &mut Vec<u8>, to: u64) -> u64 {
    let pad = bytes.len().next_multiple_of(FAR_LEN) - bytes.len();
    bytes.extend(arch::PAD.iter().cycle().take(pad));
    let at = bytes.len();
    bytes.extend(arch::far(to));
    at as u64
}
