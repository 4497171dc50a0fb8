//! The traced functions.
//!
//! For:     the child that calls them, the parent that probes them.
//! State:   none.
//! Context: control.
//! Keeps:   F1 each begins with the bytes in its row of `ALL`; `check` compares at start-up.
//!          F2 each has a cache line of its own, so that a probe in one moves no other.
//! Checked: `every_function_begins_with_the_bytes_it_should`.
//! Source:  kernel-facts 6.2. Written in assembly, so that no compiler puts a landing pad or a frame first.

// In: nothing. Out: rax undefined. Clobbers: rax alone. Stack: at most 32 bytes, no red zone.
core::arch::global_asm!(
    ".pushsection .text.trig,\"ax\",@progbits",
    ".macro trig name:req",
    ".balign 64, 0xcc",
    ".weak \\name",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    "trig trig_nop",
    "nop",
    "ret",
    ".size trig_nop, . - trig_nop",
    "trig trig_push",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "sub rsp, 8",
    "call trig_callee",
    "mov eax, 1",
    "add rsp, 8",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size trig_push, . - trig_push",
    "trig trig_ret",
    "ret",
    ".size trig_ret, . - trig_ret",
    "trig trig_nop5",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "ret",
    ".size trig_nop5, . - trig_nop5",
    // A USDT mark: a nop in the middle of a function, and a note that names it.
    "trig trig_usdt",
    "mov eax, 1",
    "990: nop",
    "ret",
    ".size trig_usdt, . - trig_usdt",
    ".pushsection .note.stapsdt,\"\",@note",
    ".balign 4",
    ".long 992f - 991f, 994f - 993f, 3",
    "991: .asciz \"stapsdt\"",
    "992: .balign 4",
    "993: .quad 990b, 0, 0",
    ".asciz \"nanoprobe\"",
    ".asciz \"trig_usdt\"",
    ".asciz \"\"",
    "994: .balign 4",
    ".popsection",
    // As a compiler begins a function with a frame; the flags are written before anyone could read them.
    "trig trig_args",
    "push rbp",
    "mov rbp, rsp",
    "xor eax, eax",
    "pop rbp",
    "ret",
    ".size trig_args, . - trig_args",
    "trig trig_callee",
    "ret",
    ".size trig_callee, . - trig_callee",
    // The innermost of deep stacks, one for each way to it.
    "trig trig_deep",
    "nop",
    "ret",
    ".size trig_deep, . - trig_deep",
    "trig trig_framed",
    "nop",
    "ret",
    ".size trig_framed, . - trig_framed",
    "trig trig_anew",
    "nop",
    "ret",
    ".size trig_anew, . - trig_anew",
    "trig trig_framed_anew",
    "nop",
    "ret",
    ".size trig_framed_anew, . - trig_framed_anew",
    // In: edi how many calls deeper, rsi whom to call there, rdx what with. It has frames and no unwind information.
    "trig trig_chain",
    "push rbp",
    "mov rbp, rsp",
    "sub edi, 1",
    "jl 1f",
    "call trig_chain",
    "pop rbp",
    "ret",
    "1: mov rdi, rdx",
    "call rsi",
    "pop rbp",
    "ret",
    ".size trig_chain, . - trig_chain",
    // In: rdi how many bytes lower, a multiple of 16, rsi whom to call there.
    "trig trig_lower",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, rdi",
    "call rsi",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size trig_lower, . - trig_lower",
    ".balign 64, 0xcc",
    ".purgem trig",
    ".popsection",
);

// SAFETY: the functions are defined above, take nothing, return, and keep what the C calling convention says.
unsafe extern "C" {
    /// `nop; ret`
    pub safe fn trig_nop();
    /// A usual prologue, then a call.
    pub safe fn trig_push();
    /// `ret`, one byte, with padding behind it.
    pub safe fn trig_ret();
    /// A 5-byte nop, then `ret`.
    pub safe fn trig_nop5();
    /// `mov eax, 1`, a mark, then `ret`.
    pub safe fn trig_usdt();
    /// A frame, and no use of its arguments.
    pub safe fn trig_args(number: u64, on_stack: *const u8, on_heap: *const u8);
    /// `nop; ret`
    pub safe fn trig_deep();
    /// `nop; ret`
    pub safe fn trig_framed();
    /// `nop; ret`
    pub safe fn trig_anew();
    /// `nop; ret`
    pub safe fn trig_framed_anew();
    /// Calls itself so many times, then `function` with `with`.
    pub fn trig_chain(deeper: u32, function: extern "C" fn(*const ()), with: *const ());
    /// Calls a function with the stack pointer so many bytes lower.
    fn trig_lower(bytes: u64, function: *const u8);
}

/// Distances at which [`anew`] calls: more than a walk is remembered at.
const PLACES: u64 = 1 << 10;

/// Calls a function from another place of the stack each time: what was found out of its stack before is of no use. There must be
/// 16 KiB of stack.
pub fn anew(number: u64, function: unsafe extern "C" fn()) {
    // SAFETY: the function takes nothing; the stack has room (contract), and its alignment is kept.
    unsafe { trig_lower(number.wrapping_mul(617) % PLACES * 16, function as *const u8) }
}

/// What one loop of a producer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Calls `trig_nop`.
    Nop,
    /// Calls `trig_push`.
    Push,
    /// Calls `trig_ret`.
    Ret,
    /// Calls `trig_nop5`.
    Nop5,
    /// Calls `trig_usdt`.
    Usdt,
    /// Calls `trig_args` with a number and two texts.
    Args,
    /// Calls `trig_deep`, 16 calls deeper, by code with unwind information and without frame pointers.
    Deep,
    /// Calls `trig_framed`, 16 calls deeper, by code with frame pointers and without unwind information.
    Framed,
    /// Calls `trig_anew`, as deep as `Deep`, each time from another place of the stack.
    Anew,
    /// Calls `trig_framed_anew`, as deep as `Framed`, each time from another place of the stack.
    FramedAnew,
    /// Makes a cheap system call.
    Syscall,
}

/// Those with code of ours.
const ALL: [Function; 10] = [
    Function::Nop,
    Function::Push,
    Function::Ret,
    Function::Nop5,
    Function::Usdt,
    Function::Args,
    Function::Deep,
    Function::Framed,
    Function::Anew,
    Function::FramedAnew,
];

impl Function {
    /// The function with this symbol.
    pub fn of_symbol(symbol: &str) -> Option<Function> {
        ALL.into_iter().chain([Function::Syscall]).find(|f| f.symbol() == symbol)
    }

    /// Its symbol.
    pub fn symbol(self) -> &'static str {
        match self {
            Function::Nop => "trig_nop",
            Function::Push => "trig_push",
            Function::Ret => "trig_ret",
            Function::Nop5 => "trig_nop5",
            Function::Usdt => "trig_usdt",
            Function::Args => "trig_args",
            Function::Deep => "trig_deep",
            Function::Framed => "trig_framed",
            Function::Anew => "trig_anew",
            Function::FramedAnew => "trig_framed_anew",
            Function::Syscall => "getppid",
        }
    }

    /// What to probe.
    pub fn spec(self) -> String {
        match self {
            Function::Usdt => format!("U::nanoprobe:{}", self.symbol()),
            _ => format!("u::{}", self.symbol()),
        }
    }

    /// The probed instruction in words.
    pub fn instruction(self) -> &'static str {
        match self {
            Function::Nop | Function::Deep | Function::Framed | Function::Anew | Function::FramedAnew => {
                "1-byte nop"
            }
            Function::Push | Function::Args => "push %rbp",
            Function::Ret => "ret",
            Function::Nop5 => "5-byte nop",
            Function::Usdt => "1-byte nop of a USDT mark",
            Function::Syscall => "syscall",
        }
    }

    /// What it must begin with.
    fn bytes(self) -> &'static [u8] {
        match self {
            Function::Nop | Function::Deep | Function::Framed | Function::Anew | Function::FramedAnew => {
                &[0x90, 0xc3]
            }
            Function::Push => &[0x55, 0x48, 0x89, 0xe5, 0x53],
            Function::Ret => &[0xc3, 0xcc, 0xcc, 0xcc, 0xcc],
            Function::Nop5 => &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3],
            Function::Args => &[0x55, 0x48, 0x89, 0xe5, 0x31],
            Function::Usdt => &[0xb8, 1, 0, 0, 0, 0x90, 0xc3],
            Function::Syscall => &[],
        }
    }

    fn code(self) -> &'static [u8] {
        let start = match self {
            Function::Nop => trig_nop as *const u8,
            Function::Push => trig_push as *const u8,
            Function::Ret => trig_ret as *const u8,
            Function::Nop5 => trig_nop5 as *const u8,
            Function::Usdt => trig_usdt as *const u8,
            Function::Args => trig_args as *const u8,
            Function::Deep => trig_deep as *const u8,
            Function::Framed => trig_framed as *const u8,
            Function::Anew => trig_anew as *const u8,
            Function::FramedAnew => trig_framed_anew as *const u8,
            Function::Syscall => return &[],
        };
        // SAFETY: every function above has 64 bytes of readable code and padding from its symbol on (the
        // alignment in the assembly), mapped as long as the program runs, and read before anyone patches it.
        unsafe { core::slice::from_raw_parts(start, self.bytes().len()) }
    }
}

/// The first function that does not begin as it should, and what it begins with.
pub fn check() -> Result<(), (Function, &'static [u8])> {
    match ALL.into_iter().find(|f| f.code() != f.bytes()) {
        None => Ok(()),
        Some(wrong) => Err((wrong, wrong.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_begins_with_the_bytes_it_should() {
        assert_eq!(check(), Ok(()));
        ALL.iter().for_each(|f| assert_eq!(f.code().as_ptr() as usize % 64, 0));
    }

    #[test]
    fn a_symbol_leads_back_to_its_function() {
        assert_eq!(Function::of_symbol("trig_nop5"), Some(Function::Nop5));
        assert_eq!(Function::of_symbol("trig_nop6"), None);
    }
}
