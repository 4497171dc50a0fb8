//! The registers that handlers see and may change.
//!
//! For:     handlers.
//! State:   the registers of one hit.
//! Context: hit.
//! Keeps:   R1 the layout is that of the kernel's `struct pt_regs` on x86-64.
//! Checked: test below.

/// The saved registers, laid out as the kernel's `struct pt_regs` for x86-64.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub flags: u64,
    pub rsp: u64,
    pub ss: u64,
}

#[cfg(test)]
mod tests {
    use super::Regs;
    use core::mem::{offset_of, size_of};

    #[test]
    fn the_layout_is_the_kernels() {
        let at = [offset_of!(Regs, rdi), offset_of!(Regs, rip), offset_of!(Regs, rsp), size_of::<Regs>()];
        assert_eq!(at, [112, 128, 152, 168]);
    }
}
