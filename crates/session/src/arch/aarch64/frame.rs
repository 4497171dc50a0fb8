//! A signal frame that gives a thread all its registers back.
//!
//! For:     `Hijack`: a thread that returns to it restores itself, whatever has become of us.
//! State:   none.
//! Context: control.
//! Keeps:   F1 after rt_sigreturn on it a thread has the general registers, flags, signal mask and vector registers that it
//!             was built from; a system call that the kernel was about to begin again begins again. Not of a thread whose
//!             scalable vector registers are live: it gets no frame.
//!          F2 the setting of the alternate stack is not changed: the frame names flags that the kernel refuses, and it
//!             ignores the refusal.
//!          F3 the frame is known by its mark.
//! Checked: tests below; the machine's test, which kills controllers (docs/aarch64.md).
//! Source:  struct rt_sigframe and restore_sigframe in the kernel's arch/arm64/kernel/signal.c; <asm/sigcontext.h>.

use sys::ptrace::{self, Regs};

/// Where the parts are in a frame.
mod at {
    /// `siginfo`, which nobody reads.
    pub const MARK: usize = 0;
    /// `struct ucontext`.
    const CONTEXT: usize = 128;
    pub const SS_FLAGS: usize = CONTEXT + 16 + 8;
    pub const MASK: usize = CONTEXT + 40;
    /// x0 to x30, the stack pointer, the program counter, pstate: behind the address of a fault.
    pub const REGISTERS: usize = CONTEXT + 176 + 8;
    /// The records, of which the last one is empty.
    pub const VECTORS: usize = CONTEXT + 176 + 288;
    pub const END: usize = CONTEXT + 176 + 288 + 4096;
}
/// By it `is_at` knows a frame.
const MARK: [u8; 16] = *b"nanoprobe frame\0";
/// Neither on, nor off, nor free: EINVAL.
const REFUSED_STACK_FLAGS: u32 = 7;
/// Head of the record of the vector registers: its kind, and its length.
const FPSIMD: u64 = 0x0000_0210_4650_8001;
/// The registers v0 to v31, then fpsr and fpcr, as the kernel gives them to a tracer.
const VECTOR_BYTES: usize = 512;
const STATE_BYTES: usize = VECTOR_BYTES + 8;

/// The vector registers of a stopped thread; nothing if it has more than a frame of ours can hold.
pub(crate) fn state(tid: i32) -> Vec<u8> {
    const NT_PRFPREG: usize = 2;
    const NT_ARM_SVE: usize = 0x405;
    /// In the flags of its header: the registers are the scalable ones.
    const LIVE: u16 = 1;
    let mut header = [0u8; 16];
    let is_scalable = ptrace::register_set(tid, NT_ARM_SVE, &mut header).is_ok()
        && u16::from_le_bytes([header[12], header[13]]) & LIVE != 0;
    let mut state = vec![0u8; STATE_BYTES + 8];
    let len = ptrace::register_set(tid, NT_PRFPREG, &mut state).unwrap_or(0);
    state.truncate(if is_scalable || len < STATE_BYTES { 0 } else { STATE_BYTES });
    state
}

/// Bytes that a frame takes.
pub(crate) fn len_bound(_: &[u8]) -> u64 {
    at::END as u64
}

/// The frame, to stand at `address`, for a thread that comes to `restorer` with its stack pointer there; that makes the call
/// rt_sigreturn. `None` without the vector registers.
pub(crate) fn build(address: u64, _: u64, regs: &Regs, mask: u64, state: &[u8]) -> Option<Vec<u8>> {
    if state.len() != STATE_BYTES || !address.is_multiple_of(16) {
        return None;
    }
    let mut frame = vec![0u8; at::END];
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    put(at::MARK, &MARK);
    put(at::SS_FLAGS, &REFUSED_STACK_FLAGS.to_le_bytes());
    put(at::MASK, &mask.to_le_bytes());
    let words = regs.x.iter().chain([&regs.sp, &regs.pc, &regs.pstate]);
    words.enumerate().for_each(|(i, word)| put(at::REGISTERS + 8 * i, &word.to_le_bytes()));
    put(at::VECTORS, &FPSIMD.to_le_bytes());
    // fpsr and fpcr come first here.
    put(at::VECTORS + 8, &state[VECTOR_BYTES..STATE_BYTES]);
    put(at::VECTORS + 16, &state[..VECTOR_BYTES]);
    Some(frame)
}

/// Whether these bytes begin with a frame.
pub(crate) fn is_frame(bytes: &[u8]) -> bool {
    bytes.get(at::MARK..at::MARK + MARK.len()) == Some(&MARK[..])
}

/// Bytes that [`is_frame`] needs.
pub(crate) const HEAD: usize = at::MARK + MARK.len();

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_parts_are_where_the_kernel_looks_for_them() {
        let context = 128;
        let stack = offset_of!(libc::ucontext_t, uc_stack);
        assert_eq!(at::SS_FLAGS, context + stack + offset_of!(libc::stack_t, ss_flags));
        assert_eq!(at::MASK, context + offset_of!(libc::ucontext_t, uc_sigmask));
        let machine = context + offset_of!(libc::ucontext_t, uc_mcontext);
        assert_eq!(at::REGISTERS, machine + offset_of!(libc::mcontext_t, regs));
        assert_eq!(at::END, context + size_of::<libc::ucontext_t>());
        assert_eq!(at::VECTORS % 16, 0);
    }

    #[test]
    fn a_frame_has_all_registers_and_there_is_none_without_the_vectors() {
        let regs = Regs { x: std::array::from_fn(|i| i as u64), sp: 0x7000, pc: 0x1000, ..Regs::default() };
        let state: Vec<u8> = (0..STATE_BYTES).map(|i| i as u8).collect();
        let frame = build(0x5000, 0, &regs, 0x55, &state).unwrap();
        let word = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
        assert!(is_frame(&frame) && !is_frame(&frame[8..]));
        assert_eq!((word(at::REGISTERS + 8 * 30), word(at::REGISTERS + 8 * 31)), (30, 0x7000));
        assert_eq!((word(at::REGISTERS + 8 * 32), word(at::MASK)), (0x1000, 0x55));
        assert_eq!(frame[at::VECTORS + 16..at::VECTORS + 16 + VECTOR_BYTES], state[..VECTOR_BYTES]);
        assert_eq!(build(0x5000, 0, &regs, 0, &[]), None);
        assert_eq!(build(0x5008, 0, &regs, 0, &state), None);
    }
}
