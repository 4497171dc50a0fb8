//! A fast hash with a secret.
//!
//! For:     keys of tables that no one outside chooses; `RhlTable`'s default.
//! State:   one secret word for each table.
//! Context: hit, target. A few nanoseconds.
//! Keeps:   F1 equal keys have equal hashes; different secrets spread keys differently.
//! Checked: tests below; `bench rhltable` puts it under dashmap too.

use core::hash::{BuildHasher, Hasher};
use std::hash::RandomState;

/// An odd number with no pattern: the golden ratio's fraction.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of the product, so that every bit of the key reaches every bit of the result.
#[inline(always)]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Makes hashers that share a secret.
#[derive(Clone, Debug)]
pub struct Fold {
    secret: u64,
}

impl Default for Fold {
    fn default() -> Fold {
        Fold { secret: RandomState::new().build_hasher().finish() }
    }
}

impl BuildHasher for Fold {
    type Hasher = FoldHasher;

    #[inline(always)]
    fn build_hasher(&self) -> FoldHasher {
        FoldHasher { state: self.secret }
    }
}

/// The state of one hash.
#[derive(Clone, Debug)]
pub struct FoldHasher {
    state: u64,
}

impl Hasher for FoldHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.state = mix(self.state ^ word, GOLDEN ^ self.state.rotate_left(32));
    }

    #[inline(always)]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    #[inline(always)]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_have_equal_hashes_and_secrets_differ() {
        let (a, b) = (Fold { secret: 1 }, Fold { secret: 2 });
        assert_eq!(a.hash_one("key"), a.hash_one("key"));
        assert_ne!(a.hash_one("key"), a.hash_one("kex"));
        assert_ne!(a.hash_one(7u64), b.hash_one(7u64));
    }

    #[test]
    fn neighbouring_numbers_spread_over_the_low_and_the_high_bits() {
        let fold = Fold { secret: 42 };
        for shift in [0, 32, 54] {
            let mut seen = [0u32; 1024];
            (0..10_240u64).for_each(|n| seen[(fold.hash_one(n) >> shift) as usize & 1023] += 1);
            assert!(seen.iter().all(|n| *n < 40), "shift {shift}");
        }
    }
}
