//! The eight bytes of an eBPF instruction.
//!
//! For:     whoever reads or writes programs as bytes.
//! State:   none.
//! Context: control.
//! Keeps:   I1 bytes decoded and encoded again are the same bytes.
//! Checked: tests below; `tests/semantics.rs`.
//! Source:  RFC 9669, section 3.

/// Bytes of one instruction slot.
pub const INSN_LEN: usize = 8;

/// One instruction slot, undone into its fields; nothing is said about their sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Insn {
    /// What is done, and the class.
    pub opcode: u8,
    /// Destination register, four bits.
    pub dst: u8,
    /// Source register, four bits.
    pub src: u8,
    /// Signed offset of a jump or a memory access.
    pub offset: i16,
    /// Immediate value.
    pub imm: i32,
}

impl Insn {
    /// The instruction in these bytes, little-endian.
    pub fn decode(bytes: [u8; INSN_LEN]) -> Insn {
        let [opcode, regs, o0, o1, i0, i1, i2, i3] = bytes;
        Insn {
            opcode,
            dst: regs & 0xf,
            src: regs >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            imm: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    /// Its bytes, little-endian.
    pub fn encode(self) -> [u8; INSN_LEN] {
        let [o0, o1] = self.offset.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [self.opcode, self.dst & 0xf | self.src << 4, o0, o1, i0, i1, i2, i3]
    }

    /// All instructions of a program's bytes; `None` if they are not whole instructions.
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<Insn>> {
        let (chunks, rest) = bytes.as_chunks::<INSN_LEN>();
        rest.is_empty().then(|| chunks.iter().map(|chunk| Insn::decode(*chunk)).collect())
    }

    /// The bytes of these instructions.
    pub fn encode_all(insns: &[Insn]) -> Vec<u8> {
        insns.iter().flat_map(|insn| insn.encode()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_decoded_and_encoded_again_are_the_same() {
        let bytes = [0x85, 0xa7, 0xfe, 0xff, 0x01, 0x02, 0x03, 0x84];
        let insn = Insn::decode(bytes);
        assert_eq!((insn.dst, insn.src, insn.offset), (7, 10, -2));
        assert_eq!(insn.encode(), bytes);
        assert_eq!(
            Insn::encode_all(&Insn::decode_all(&[bytes, bytes].concat()).unwrap()),
            [bytes, bytes].concat()
        );
    }

    #[test]
    fn bytes_that_end_inside_an_instruction_are_none() {
        assert_eq!(Insn::decode_all(&[0; 12]), None);
    }
}
