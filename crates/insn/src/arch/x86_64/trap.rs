//! Which instruction was it that a data breakpoint stopped behind?
//!
//! For:     watchpoints in debug registers: the processor stops after the access.
//! State:   none.
//! Context: control.
//! Keeps:   G1 an answer is the start of an instruction that ends at the stop, or of a repeated one that stands there
//!          and has not ended; where the bytes before are no code, there is none.
//! Checked: tests below; testkit `watching`.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory};

/// The start of the instruction that made an access, if the processor stopped at `stop` after it.
///
/// `bytes` are those of the function, which begins at `start`, and go some bytes past `stop`.
pub fn accessor_before(bytes: &[u8], start: u64, stop: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let (mut now, mut before) = (Instruction::default(), None);
    while decoder.can_decode() && decoder.ip() < stop {
        decoder.decode_out(&mut now);
        before = Some(now);
    }
    if decoder.ip() != stop {
        return None;
    }
    // A string instruction stops after each round, at itself.
    if decoder.can_decode() {
        decoder.decode_out(&mut now);
        if is_repeated(&now) && !before.as_ref().is_some_and(touches_memory) {
            return Some(stop);
        }
    }
    before.map(|b| b.ip())
}

fn is_repeated(i: &Instruction) -> bool {
    i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix())
}

fn touches_memory(i: &Instruction) -> bool {
    !InstructionInfoFactory::new().info(i).used_memory().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// push rbp; mov rbp, rsp; mov [rip+0x1000], rax; pop rbp; ret
    const STORE: [u8; 13] = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x05, 0, 0x10, 0, 0, 0x5d, 0xc3];

    #[test]
    fn the_instruction_that_ends_at_the_stop_is_named() {
        assert_eq!(accessor_before(&STORE, 0x400, 0x40b), Some(0x404));
        assert_eq!(accessor_before(&STORE, 0x400, 0x40c), Some(0x40b));
    }

    #[test]
    fn a_stop_inside_an_instruction_or_at_the_start_has_none() {
        assert_eq!(accessor_before(&STORE, 0x400, 0x409), None);
        assert_eq!(accessor_before(&STORE, 0x400, 0x400), None);
        assert_eq!(accessor_before(&STORE, 0x400, 0x500), None);
    }

    #[test]
    fn a_repeated_store_that_goes_on_is_named_itself_and_afterwards_too() {
        // mov ecx, 9; rep stosb; ret
        let bytes = [0xb9, 9, 0, 0, 0, 0xf3, 0xaa, 0xc3];
        assert_eq!(accessor_before(&bytes, 0x100, 0x105), Some(0x105));
        assert_eq!(accessor_before(&bytes, 0x100, 0x107), Some(0x105));
    }
}
