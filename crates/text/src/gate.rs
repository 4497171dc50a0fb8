//! The code that a patched site of this very process jumps to.
//!
//! For:     probes of a process in itself, whose consumers are that process's own functions.
//! State:   the bytes, and what each of them means for a thread that stands on it.
//! Context: built in target; run in a hit.
//! Keeps:   W1 registers, flags, red zone and stack are behind the call as at the site, if the routine leaves them so.
//!          W2 `place_of` is right for every instruction boundary of the block.
//! Checked: tests below; trap's `tests/jumps.rs`.
//!
//! ```text
//!  block ─▶ address of the routine
//!  entry ─▶ lea rsp, [rsp-128]     unless the red zone is proven to be unused
//!           push rdi; mov rdi, word; call [routine]; pop rdi
//!           lea rsp, [rsp+128]
//!           the displaced instructions, a jump back
//! ```
//!
//! The routine saves what it changes; it finds the program's rdi above its return address.

use crate::RED_ZONE;
use crate::assemble::{Code, RDI};
use insn::{Displaced, Origin, Placement, Unreachable, relocate, relocate_len_bound};

/// Bytes before the entry.
const ENTRY: usize = 8;
/// The most bytes of a gate beside the displaced instructions.
const CALL_BYTES: usize = ENTRY + 5 + 1 + 10 + 6 + 1 + 8;

/// What a gate is built from.
#[derive(Clone, Copy, Debug)]
pub struct GateRequest<'a> {
    /// Where it is entered.
    pub entry: u64,
    /// Where the jump stands and what it displaces.
    pub placement: &'a Placement,
    /// What the process adds to the placement's addresses.
    pub bias: u64,
    /// What the routine gets in rdi.
    pub word: u64,
    /// Address of the routine.
    pub routine: u64,
}

/// Where in a gate a thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatePlace {
    /// Before the call, or behind it: the stack pointer is lower than the program's by so many bytes.
    Call {
        /// The call has returned.
        is_done: bool,
        /// What to add to the stack pointer.
        rsp_add: u16,
        /// The program's rdi is at the stack pointer.
        is_rdi_saved: bool,
    },
    /// In the displaced instructions.
    Displaced(Origin),
}

/// A gate, ready to be written.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Address of the block.
    pub at: u64,
    /// The block.
    pub bytes: Vec<u8>,
    displaced: Displaced,
    tail: usize,
    steps: Vec<(usize, GatePlace)>,
}

impl Gate {
    /// Builds it.
    ///
    /// # Errors
    /// The first thing that is too far from the entry.
    pub fn build(request: &GateRequest<'_>) -> Result<Gate, Unreachable> {
        let at = request.entry - ENTRY as u64;
        let mut code = Code::new(at);
        code.put(&request.routine.to_le_bytes());
        let has_red_zone = !request.placement.hooks.first().is_some_and(|hook| hook.is_red_zone_free);
        let zone = if has_red_zone { RED_ZONE } else { 0 };
        let call = |is_done, rsp_add, is_rdi_saved| GatePlace::Call { is_done, rsp_add, is_rdi_saved };
        let mut steps = vec![(0, call(false, 0, false))];
        if has_red_zone {
            code.add_rsp(-i32::from(zone));
            steps.push((code.pos(), call(false, zone, false)));
        }
        code.push(RDI);
        steps.push((code.pos(), call(false, zone + 8, true)));
        code.put(&[0x48, 0xbf]); // mov rdi, word
        code.put(&request.word.to_le_bytes());
        code.put(&[0xff, 0x15]); // call [rip + block]
        let back = i32::try_from(code.pos() + 4).unwrap_or_default();
        code.put(&(-back).to_le_bytes());
        steps.push((code.pos(), call(true, zone + 8, true)));
        code.pop(RDI);
        steps.push((code.pos(), call(true, zone, false)));
        if has_red_zone {
            code.add_rsp(i32::from(zone));
        }
        let tail = code.pos();
        let displaced = relocate(request.placement, request.bias, at + tail as u64)?;
        code.put(&displaced.bytes);
        Ok(Gate { at, bytes: code.bytes, displaced, tail, steps })
    }

    /// Bytes of the block before its entry.
    pub const BEFORE: u64 = ENTRY as u64;

    /// The most bytes that a block for this placement takes.
    pub fn len_bound(placement: &Placement) -> usize {
        CALL_BYTES + relocate_len_bound(placement)
    }

    /// Where the jump leads.
    pub fn entry_addr(&self) -> u64 {
        self.at + ENTRY as u64
    }

    /// The first displaced instruction.
    pub fn tail_addr(&self) -> u64 {
        self.at + self.tail as u64
    }

    /// Address after the block.
    pub fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// Address of the copy of the displaced instruction `offset` bytes behind the site.
    pub fn copy_of(&self, offset: u8) -> Option<u64> {
        self.displaced.copy_of(offset).map(|copy| self.tail_addr() + u64::from(copy))
    }

    /// Where a thread with this program counter stands; `None` if it is not in the block.
    pub fn place_of(&self, pc: u64) -> Option<GatePlace> {
        let offset = usize::try_from(pc.checked_sub(self.at)?).ok().filter(|o| *o < self.bytes.len())?;
        if let Some(inside) = offset.checked_sub(self.tail) {
            return self.displaced.origin_of(inside as u16).map(GatePlace::Displaced);
        }
        self.steps.iter().rev().find(|(from, _)| *from <= offset).map(|(_, place)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insn::{Asked, Flow, no_room, place};

    fn gate(is_red_zone_free: bool) -> Gate {
        // push rbp; mov rbp,rsp; sub rsp,16; leave; ret
        let bytes = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xc9, 0xc3];
        let code = [insn::Code { base: 0x1000, bytes: &bytes }];
        let flow = Flow::analyse(&code, &[0x1000], &[], &|_| vec![]);
        let function = Some(0x1000..0x100a);
        let asked = Asked { site: 0x1000, function, next_function: None, taken: &|_| false, room: &no_room };
        let mut placement = place(&flow, &code, &asked).unwrap();
        placement.hooks[0].is_red_zone_free = is_red_zone_free;
        let request =
            GateRequest { entry: 0x2003, placement: &placement, bias: 0x7000, word: 0x1122, routine: 0x99 };
        let gate = Gate::build(&request).unwrap();
        assert!(gate.bytes.len() <= Gate::len_bound(&placement));
        gate
    }

    /// Runs the stack pointer along another decoder's reading of the block.
    #[test]
    fn each_place_of_a_gate_gives_the_stack_pointer_back() {
        use iced_x86::{Code as Op, Decoder, DecoderOptions, Mnemonic};
        for is_free in [false, true] {
            let gate = gate(is_free);
            let body = &gate.bytes[ENTRY..gate.tail];
            let mut decoder = Decoder::with_ip(64, body, gate.entry_addr(), DecoderOptions::NONE);
            let (mut below, mut calls) = (0i64, 0);
            while decoder.can_decode() {
                let insn = decoder.decode();
                let place = gate.place_of(insn.ip()).unwrap();
                let GatePlace::Call { is_done, rsp_add, is_rdi_saved } = place else { panic!("{place:?}") };
                assert_eq!((i64::from(rsp_add), is_done), (below, calls > 0), "{insn}");
                assert_eq!(is_rdi_saved, below % RED_ZONE as i64 == 8, "{insn}");
                match insn.mnemonic() {
                    Mnemonic::Lea => below -= insn.memory_displacement64() as i64,
                    Mnemonic::Push => below += 8,
                    Mnemonic::Pop => below -= 8,
                    Mnemonic::Call => {
                        assert_eq!(insn.code(), Op::Call_rm64);
                        assert_eq!(insn.ip_rel_memory_address(), gate.at);
                        calls += 1;
                    }
                    Mnemonic::Mov => assert_eq!(insn.immediate64(), 0x1122),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((below, calls), (0, 1));
            assert_eq!(gate.bytes[..8], 0x99u64.to_le_bytes());
            let tail = gate.place_of(gate.tail_addr()).unwrap();
            assert!(matches!(tail, GatePlace::Displaced(Origin { offset: 0, is_at_start: true, .. })));
            assert_eq!(gate.place_of(gate.end()), None);
            assert_eq!(gate.copy_of(1), Some(gate.tail_addr() + 1));
        }
    }
}
