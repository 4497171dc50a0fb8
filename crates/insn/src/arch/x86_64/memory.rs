//! Which bytes an instruction is about to touch.
//!
//! For:     soft watchpoints, which see a fault and must know whether the watched bytes were meant.
//! State:   none.
//! Context: control.
//! Keeps:   G1 the ranges cover every byte that the instruction reads or writes in memory, for one iteration of
//!          a repeated one; an access whose size the decoder does not know has length 0.
//! Checked: tests below; testkit `watching`.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};

/// One range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// Its first byte.
    pub addr: u64,
    /// How many bytes; 0 if that is not known.
    pub len: u64,
    /// It is read, or may be.
    pub is_read: bool,
    /// It is written, or may be.
    pub is_written: bool,
}

impl MemoryAccess {
    /// Whether it shares a byte with `len` bytes at `addr`; an unknown length may.
    pub fn meets(&self, addr: u64, len: u64) -> bool {
        if self.len == 0 {
            return self.addr < addr + len;
        }
        self.addr < addr + len && addr < self.addr + self.len
    }
}

/// The memory that the first instruction in `bytes`, at address `ip`, will touch.
///
/// `register` gives the values of general registers by hardware number, and the bases of fs (16) and gs (17).
/// Empty if it touches none, or is no instruction.
pub fn memory_accesses(bytes: &[u8], ip: u64, register: impl Fn(u8) -> u64) -> Vec<MemoryAccess> {
    let instruction = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
    let value = |reg: Register, _: usize, _: usize| match reg {
        Register::FS => Some(register(16)),
        Register::GS => Some(register(17)),
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        reg if reg.is_gpr() => {
            let whole = register(reg.full_register().number() as u8);
            Some(if reg.size() == 4 { whole & 0xffff_ffff } else { whole })
        }
        _ => None,
    };
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(&instruction);
    let accesses = info.used_memory().iter().filter_map(|used| {
        let addr = used.virtual_address(0, value)?;
        let access = used.access();
        let is_read = matches!(
            access,
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        let is_written = matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        let len = used.memory_size().size() as u64;
        (is_read || is_written).then_some(MemoryAccess { addr, len, is_read, is_written })
    });
    accesses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Vec<MemoryAccess> {
        // Register n holds 0x1000 * (n + 1).
        memory_accesses(bytes, 0x40_0000, |n| 0x1000 * (u64::from(n) + 1))
    }

    #[test]
    fn loads_stores_and_both_are_told_apart_with_their_bytes() {
        let access = |addr, len, is_read, is_written| MemoryAccess { addr, len, is_read, is_written };
        // mov [rax+8], ecx; mov rcx, [rbx]; lock add qword [rsi], 1; movsq; mov fs:[0x10], al
        assert_eq!(of(&[0x89, 0x48, 0x08]), [access(0x1008, 4, false, true)]);
        assert_eq!(of(&[0x48, 0x8b, 0x0b]), [access(0x4000, 8, true, false)]);
        assert_eq!(of(&[0xf0, 0x48, 0x83, 0x06, 0x01]), [access(0x7000, 8, true, true)]);
        let both = of(&[0x48, 0xa5]);
        assert!(
            both.contains(&access(0x7000, 8, true, false)) && both.contains(&access(0x8000, 8, false, true))
        );
        assert_eq!(of(&[0x64, 0x88, 0x04, 0x25, 0x10, 0, 0, 0]), [access(0x11010, 1, false, true)]);
        // add eax, ecx
        assert!(of(&[0x01, 0xc8]).is_empty());
    }

    #[test]
    fn ranges_meet_if_they_share_a_byte() {
        let at = |addr, len| MemoryAccess { addr, len, is_read: false, is_written: true };
        assert!(
            at(8, 8).meets(15, 1) && at(8, 8).meets(7, 2) && !at(8, 8).meets(16, 8) && !at(8, 8).meets(0, 8)
        );
    }
}
