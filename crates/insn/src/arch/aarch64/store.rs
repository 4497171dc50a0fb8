//! What an A64 instruction is about to store, by the general registers before it.
//!
//! For:     watchpoints, whose trap comes before the access: the value after it is in the registers, not yet in memory.
//! State:   none.
//! Context: any; no allocation, no panic.
//! Keeps:   G1 what is not known for sure is [`Stored::Unknown`]: vector registers, what is computed from the memory's own value, what
//!             is not decoded.
//! Checked: tests below; the machine's test (docs/aarch64.md).
//! Source:  Arm ARM (DDI 0487), C4.1: loads and stores.

use super::decode::{ZERO, bits};

/// What will be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// What is there now: it only reads.
    Nothing,
    /// The first `len` of these bytes, from `addr` on.
    Bytes {
        /// Where.
        addr: u64,
        /// What.
        bytes: [u8; 16],
        /// How many.
        len: usize,
    },
    /// That is not known before it has run.
    Unknown,
}

/// What `word` is about to store. `general` gives a general register's value; 31 is the stack pointer.
pub fn stored(word: u32, general: impl Fn(u8) -> u64) -> Stored {
    // Loads and stores have bit 27 and not bit 25.
    if bits(word, 25, 3) & 0b101 != 0b100 {
        return Stored::Unknown;
    }
    let store = Store { word, general };
    match bits(word, 27, 3) {
        // Exclusives and what is ordered have bit 26 clear here, vector structures have it set.
        0b001 if bits(word, 26, 1) == 1 => reads_or(word, Stored::Unknown),
        0b001 => store.ordered(),
        0b011 => store.literal_or_unscaled(),
        0b101 => store.pair(),
        0b111 => store.single(),
        _ => Stored::Unknown,
    }
}

/// By the bit that most loads have.
fn reads_or(word: u32, otherwise: Stored) -> Stored {
    if bits(word, 22, 1) == 1 { Stored::Nothing } else { otherwise }
}

struct Store<G> {
    word: u32,
    general: G,
}

impl<G: Fn(u8) -> u64> Store<G> {
    fn field(&self, low: u32) -> u8 {
        bits(self.word, low, 5) as u8
    }

    fn is_vector(&self) -> bool {
        bits(self.word, 26, 1) == 1
    }

    /// Bytes of what is stored.
    fn size(&self) -> usize {
        1 << bits(self.word, 30, 2)
    }

    fn base(&self) -> u64 {
        (self.general)(self.field(5))
    }

    fn value(&self, field: u32) -> u64 {
        match self.field(field) {
            ZERO => 0,
            register => (self.general)(register),
        }
    }

    fn signed(&self, low: u32, len: u32) -> u64 {
        let field = u64::from(bits(self.word, low, len));
        (field << (64 - len)).cast_signed().wrapping_shr(64 - len).cast_unsigned()
    }

    fn one(&self, offset: u64, field: u32) -> Stored {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.value(field).to_le_bytes());
        Stored::Bytes { addr: self.base().wrapping_add(offset), bytes, len: self.size() }
    }

    /// stlr, stllr; cas has bit 21 set, the exclusives have bit 23 clear.
    fn ordered(&self) -> Stored {
        match bits(self.word, 21, 3) {
            0b100 => self.one(0, 0),
            0b110 => Stored::Nothing,
            _ => Stored::Unknown,
        }
    }

    /// Literals are only loaded; stlur and the loads beside it.
    fn literal_or_unscaled(&self) -> Stored {
        if bits(self.word, 24, 1) == 0 {
            return Stored::Nothing;
        }
        match (self.is_vector(), bits(self.word, 21, 1), bits(self.word, 10, 2), bits(self.word, 22, 2)) {
            (false, 0, 0, 0) => self.one(self.signed(12, 9), 0),
            (false, 0, 0, _) => Stored::Nothing,
            _ => Stored::Unknown,
        }
    }

    /// stp, stnp.
    fn pair(&self) -> Stored {
        const POST: u32 = 1;
        if bits(self.word, 22, 1) == 1 {
            return Stored::Nothing;
        }
        let half = match (self.is_vector(), bits(self.word, 30, 2)) {
            (false, 0) => 4,
            (false, 2) => 8,
            _ => return Stored::Unknown,
        };
        let offset =
            if bits(self.word, 23, 3) == POST { 0 } else { self.signed(15, 7).wrapping_mul(half as u64) };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.value(0).to_le_bytes());
        bytes[half..half + 8].copy_from_slice(&self.value(10).to_le_bytes());
        Stored::Bytes { addr: self.base().wrapping_add(offset), bytes, len: 2 * half }
    }

    /// str, strb, strh and their ways to an address; swp, of the atomic operations.
    fn single(&self) -> Stored {
        const POST: u32 = 1;
        let (is_load, is_apart) = (bits(self.word, 22, 2) != 0, bits(self.word, 21, 1) == 1);
        let (is_scaled, way) = (bits(self.word, 24, 2) == 1, bits(self.word, 10, 2));
        if !is_scaled && is_apart && way != 2 {
            return self.atomic(way);
        }
        if self.is_vector() {
            return reads_or(self.word, Stored::Unknown);
        }
        if is_load {
            return Stored::Nothing;
        }
        if is_scaled {
            return self.one(u64::from(bits(self.word, 10, 12)) * self.size() as u64, 0);
        }
        if is_apart {
            return self.index().map_or(Stored::Unknown, |index| self.one(index, 0));
        }
        self.one(if way == POST { 0 } else { self.signed(12, 9) }, 0)
    }

    /// swp stores what it brings; ldapr only reads; the others compute with what is there.
    fn atomic(&self, way: u32) -> Stored {
        const SWAP: u32 = 0b1000;
        const LOAD: u32 = 0b1100;
        match (self.is_vector(), way, bits(self.word, 12, 4)) {
            (false, 0, SWAP) => self.one(0, 16),
            (false, 0, LOAD) => Stored::Nothing,
            _ => Stored::Unknown,
        }
    }

    /// A register as an offset, extended and shifted.
    fn index(&self) -> Option<u64> {
        let value = self.value(16);
        let extended = match bits(self.word, 13, 3) {
            2 => u64::from(value as u32),
            6 => i64::from(value as i32).cast_unsigned(),
            3 | 7 => value,
            _ => return None,
        };
        let shift = if bits(self.word, 12, 1) == 1 { bits(self.word, 30, 2) } else { 0 };
        Some(extended << shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Register n has 0x1000 n + n; the stack pointer 0x7000.
    fn register(n: u8) -> u64 {
        if n == 31 { 0x7000 } else { u64::from(n) * 0x1001 }
    }

    fn bytes(addr: u64, words: &[u64], len: usize) -> Stored {
        let mut bytes = [0; 16];
        let all = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
        Stored::Bytes { addr, bytes, len }
    }

    #[test]
    fn a_store_tells_where_and_what() {
        for (word, what, want) in [
            (0xf900_0001, "str x1, [x0]", bytes(0, &[0x1001], 8)),
            (0xf900_07e1, "str x1, [sp, #8]", bytes(0x7008, &[0x1001], 8)),
            (0xb900_045f, "str wzr, [x2, #4]", bytes(0x2006, &[0], 4)),
            (0x3900_1c41, "strb w1, [x2, #7]", bytes(0x2009, &[0x1001], 1)),
            (0x7900_0441, "strh w1, [x2, #2]", bytes(0x2004, &[0x1001], 2)),
            (0xf81f_8041, "stur x1, [x2, #-8]", bytes(0x1ffa, &[0x1001], 8)),
            (0xf800_8441, "str x1, [x2], #8", bytes(0x2002, &[0x1001], 8)),
            (0xf81f_0c41, "str x1, [x2, #-16]!", bytes(0x1ff2, &[0x1001], 8)),
            (0xf823_6841, "str x1, [x2, x3]", bytes(0x5005, &[0x1001], 8)),
            (0xf823_7841, "str x1, [x2, x3, lsl #3]", bytes(0x1_a01a, &[0x1001], 8)),
            (0xb823_5841, "str w1, [x2, w3, uxtw #2]", bytes(0xe00e, &[0x1001], 4)),
            (0xc89f_fc41, "stlr x1, [x2]", bytes(0x2002, &[0x1001], 8)),
            (0xd900_8041, "stlur x1, [x2, #8]", bytes(0x200a, &[0x1001], 8)),
            (0xa9bf_0fe1, "stp x1, x3, [sp, #-16]!", bytes(0x6ff0, &[0x1001, 0x3003], 16)),
            (0xa881_0fe1, "stp x1, x3, [sp], #16", bytes(0x7000, &[0x1001, 0x3003], 16)),
            (0x2900_8c41, "stp w1, w3, [x2, #4]", bytes(0x2006, &[0x1001 | 0x3003 << 32], 8)),
            (0xf823_8041, "swp x3, x1, [x2]", bytes(0x2002, &[0x3003], 8)),
        ] {
            let got = stored(word, register);
            let same = |got: Stored, want: Stored| match (got, want) {
                (Stored::Bytes { addr: a, bytes: b, len: n }, Stored::Bytes { addr, bytes, len }) => {
                    a == addr && n == len && b[..n] == bytes[..n]
                }
                _ => false,
            };
            assert!(same(got, want), "{what}: {got:x?}, not {want:x?}");
        }
    }

    #[test]
    fn a_load_stores_nothing_and_what_is_computed_in_memory_is_not_known() {
        for (word, what) in [
            (0xf940_0001, "ldr x1, [x0]"),
            (0xb980_0001, "ldrsw x1, [x0]"),
            (0xa940_0fe1, "ldp x1, x3, [sp]"),
            (0xc8df_fc41, "ldar x1, [x2]"),
            (0xf8bf_c041, "ldapr x1, [x2]"),
            (0x3dc0_0001, "ldr q1, [x0]"),
            (0x5800_0001, "ldr x1, #0"),
            (0x4c40_7041, "ld1 {v1.16b}, [x2]"),
        ] {
            assert_eq!(stored(word, register), Stored::Nothing, "{what}");
        }
        for (word, what) in [
            (0x3d80_0001, "str q1, [x0]"),
            (0xfd00_0001, "str d1, [x0]"),
            (0x6d00_0801, "stp d1, d2, [x0]"),
            (0x4c00_7041, "st1 {v1.16b}, [x2]"),
            (0xf823_0041, "ldadd x3, x1, [x2]"),
            (0xc8a3_7c41, "cas x3, x1, [x2]"),
            (0xc803_7c41, "stxr w3, x1, [x2]"),
            (0xd50b_7420, "dc zva, x0"),
            (0xd503_201f, "nop"),
            (0x8b02_0020, "add x0, x1, x2"),
        ] {
            assert_eq!(stored(word, register), Stored::Unknown, "{what}");
        }
    }
}
