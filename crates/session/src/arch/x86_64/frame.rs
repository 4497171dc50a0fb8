//! A signal frame that gives a thread all its registers back.
//!
//! For:     `Hijack`: a thread that returns to it restores itself, whatever has become of us.
//! State:   none.
//! Context: control.
//! Keeps:   F1 after rt_sigreturn on it a thread has the general registers, flags, signal mask and extended state that it
//!             was built from; a system call that the kernel was about to begin again begins again.
//!          F2 the setting of the alternate stack is not changed: the frame names flags that the kernel refuses, and it
//!             ignores the refusal.
//!          F3 the frame is known by its mark.
//! Checked: tests below; testkit `kills`, where threads return to one.
//! Source:  struct rt_sigframe and sys_rt_sigreturn in the kernel's arch/x86; `_fpx_sw_bytes` in <asm/sigcontext.h>.

use super::{goes_on_at, restarts};
use std::arch::x86_64::__cpuid_count;
use sys::ptrace::{self, Regs};

/// Where the parts are in a frame.
mod at {
    /// `struct ucontext`, behind the return address.
    pub const UC_FLAGS: usize = 8;
    pub const SS_FLAGS: usize = 32;
    pub const REGISTERS: usize = 48;
    pub const SELECTORS: usize = REGISTERS + 18 * 8;
    pub const FPSTATE: usize = REGISTERS + 184;
    pub const MASK: usize = REGISTERS + 256;
    /// `siginfo`, which nobody reads.
    pub const MARK: usize = MASK + 8;
    pub const END: usize = MARK + 128;
}
/// By it `is_at` knows a frame.
const MARK: [u8; 16] = *b"nanoprobe frame\0";
/// The extended state is there, the stack selector is there and is to be taken as it is.
const UC_FLAGS: u64 = 1 | 2 | 4;
/// Neither on, nor off, nor free: EINVAL.
const REFUSED_STACK_FLAGS: u32 = 7;
/// In the image of XSAVE: what software may use, and the header.
const SOFTWARE: usize = 464;
const HEADER: usize = 512;
const HEADER_END: usize = HEADER + 64;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// AMX. A thread that does not use it has no room for it, and the kernel would take none of the image then.
const TILES: u64 = 1 << 17 | 1 << 18;
/// No image of XSAVE is longer yet.
const XSTATE_MAX: usize = 16 << 10;

/// The extended state of a stopped thread, as XSAVE lays it out; nothing if there is none.
pub(crate) fn state(tid: i32) -> Vec<u8> {
    let mut xstate = vec![0u8; XSTATE_MAX];
    let len = ptrace::xstate(tid, &mut xstate).unwrap_or(0);
    xstate.truncate(len);
    xstate
}

/// Registers with which a thread goes on as if nobody had looked: a call that is to begin again stands before itself.
fn going_on(regs: &Regs) -> Regs {
    let rax = if restarts(regs) { regs.orig_rax } else { regs.rax };
    Regs { rip: goes_on_at(regs), rax, ..*regs }
}

/// Bytes that a frame takes at most with this image of XSAVE.
pub(crate) fn len_bound(xstate: &[u8]) -> u64 {
    (at::END + 64 + xstate.len() + 4) as u64
}

/// The frame, to stand at `address`, for a thread to return to by a `ret` with its stack pointer there; `restorer` makes
/// the call rt_sigreturn. `None` if the image is not one of XSAVE.
pub(crate) fn build(address: u64, restorer: u64, regs: &Regs, mask: u64, xstate: &[u8]) -> Option<Vec<u8>> {
    let regs = going_on(regs);
    let fpstate = (address + at::END as u64).next_multiple_of(64);
    let image = image(xstate)?;
    let mut frame = vec![0u8; (fpstate - address) as usize];
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &restorer.to_le_bytes());
    put(at::UC_FLAGS, &UC_FLAGS.to_le_bytes());
    put(at::SS_FLAGS, &REFUSED_STACK_FLAGS.to_le_bytes());
    let registers = [
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rbx,
        regs.rdx,
        regs.rax,
        regs.rcx,
        regs.rsp,
        regs.rip,
        regs.eflags,
    ];
    for (i, register) in registers.iter().enumerate() {
        put(at::REGISTERS + 8 * i, &register.to_le_bytes());
    }
    let selectors = [regs.cs, regs.gs, regs.fs, regs.ss];
    for (i, selector) in selectors.iter().enumerate() {
        put(at::SELECTORS + 2 * i, &(*selector as u16).to_le_bytes());
    }
    put(at::FPSTATE, &fpstate.to_le_bytes());
    put(at::MASK, &mask.to_le_bytes());
    put(at::MARK, &MARK);
    frame.extend(image);
    Some(frame)
}

/// Whether these bytes begin with a frame.
pub(crate) fn is_frame(bytes: &[u8]) -> bool {
    bytes.get(at::MARK..at::MARK + MARK.len()) == Some(&MARK[..])
}

/// Bytes that [`is_frame`] needs.
pub(crate) const HEAD: usize = at::MARK + MARK.len();

/// The image with what a signal frame has besides: its size, and the mark behind it.
fn image(xstate: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u64::from_le_bytes(xstate.get(at..at + 8)?.try_into().ok()?));
    let (features, in_use) = (word(SOFTWARE)?, word(HEADER)?);
    if xstate.len() < HEADER_END || features & 3 != 3 {
        return None;
    }
    let features = if in_use & TILES == 0 { features & !TILES } else { features };
    let len = len_of(features).filter(|len| *len <= xstate.len())?;
    let mut image = xstate[..len].to_vec();
    let mut software = [0u8; HEADER - SOFTWARE];
    software[..4].copy_from_slice(&MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&(len as u32 + 4).to_le_bytes());
    software[8..16].copy_from_slice(&features.to_le_bytes());
    software[16..20].copy_from_slice(&(len as u32).to_le_bytes());
    image[SOFTWARE..HEADER].copy_from_slice(&software);
    image.extend(MAGIC2.to_le_bytes());
    Some(image)
}

/// How long an image with these features is, not compacted.
fn len_of(features: u64) -> Option<usize> {
    const LEAF: u32 = 0xd;
    let end = |feature: u32| {
        let leaf = __cpuid_count(LEAF, feature);
        let (len, offset) = (leaf.eax as usize, leaf.ebx as usize);
        (len != 0 && offset >= HEADER_END).then_some(offset + len)
    };
    let extended = (2..63).filter(|feature| features >> feature & 1 != 0);
    extended.map(end).try_fold(HEADER_END, |longest, end| Some(longest.max(end?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    fn number(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// An image of XSAVE with x87, SSE and AVX in it.
    fn xstate() -> Vec<u8> {
        let mut xstate = vec![0u8; len_of(7).unwrap()];
        xstate[SOFTWARE] = 7;
        xstate[HEADER] = 7;
        xstate
    }

    #[test]
    fn the_parts_are_where_the_kernel_looks_for_them() {
        let uc = 8;
        assert_eq!(at::UC_FLAGS, uc + offset_of!(libc::ucontext_t, uc_flags));
        let stack = offset_of!(libc::ucontext_t, uc_stack);
        assert_eq!(at::SS_FLAGS, uc + stack + offset_of!(libc::stack_t, ss_flags));
        let registers = uc + offset_of!(libc::ucontext_t, uc_mcontext);
        assert_eq!(at::REGISTERS, registers + offset_of!(libc::mcontext_t, gregs));
        assert_eq!(at::SELECTORS, at::REGISTERS + 8 * libc::REG_CSGSFS as usize);
        assert_eq!(at::FPSTATE, registers + offset_of!(libc::mcontext_t, fpregs));
        assert_eq!(at::MASK, uc + offset_of!(libc::ucontext_t, uc_sigmask));
    }

    #[test]
    fn a_frame_has_all_registers_and_a_call_that_is_to_begin_again_stands_before_itself() {
        let regs = Regs {
            rip: 0x1002,
            rax: -512i64 as u64,
            orig_rax: 7,
            rsp: 0x7000,
            cs: 0x33,
            ss: 0x2b,
            ..Regs::default()
        };
        let frame = build(0x5008, 0x4000, &regs, 0x55, &xstate()).unwrap();
        assert!(is_frame(&frame) && !is_frame(&frame[8..]));
        let register = |which: i32| number(&frame, at::REGISTERS + 8 * which as usize);
        assert_eq!(number(&frame, 0), 0x4000);
        assert_eq!((register(libc::REG_RIP), register(libc::REG_RAX)), (0x1000, 7));
        assert_eq!((register(libc::REG_RSP), number(&frame, at::MASK)), (0x7000, 0x55));
        let fpstate = number(&frame, at::FPSTATE);
        assert_eq!(fpstate % 64, 0);
        let image = &frame[(fpstate - 0x5008) as usize..];
        assert_eq!(image.len(), xstate().len() + 4);
        assert_eq!(&image[SOFTWARE..SOFTWARE + 4], &MAGIC1.to_le_bytes());
        assert_eq!(&image[image.len() - 4..], &MAGIC2.to_le_bytes());
    }

    #[test]
    fn tiles_that_are_not_in_use_are_left_out_and_what_is_no_image_is_refused() {
        let mut with_tiles = xstate();
        with_tiles.resize(XSTATE_MAX, 0);
        with_tiles[SOFTWARE + 2] = 6;
        assert_eq!(image(&with_tiles).unwrap().len(), xstate().len() + 4);
        assert_eq!(image(&[0; 4096]), None, "not even x87 and SSE");
        assert_eq!(image(&xstate()[..700]), None, "too short for what it names");
        assert_eq!(image(&[]), None);
    }
}
