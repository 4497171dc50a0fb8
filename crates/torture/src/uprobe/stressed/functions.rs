//! A hundred functions that call one another at random, and who calls them.
//!
//! For:     being probed at their entries and exits.
//! State:   each caller's own: its random numbers, how deep it may still go, what the results must add up to.
//! Context: target; signal handlers and forked children call too.
//! Keeps:   F1 every result is checked at every depth.
//!          F2 a call is counted once, before it is made.
//! Checked: tests below; `torture uprobe --broken forgotten-byte` ends in FAIL.
//! Source:  uprobe-stress, kernel-facts 1.17: a hundred functions, recursion to 72.

use super::shared::{FUNCTIONS, Row};
use crate::rng::Rng;
use std::sync::atomic::Ordering::Relaxed;

/// Depth of recursion: more than the kernel lets return probes nest.
pub const DEPTH: u64 = 72;

// Ten shapes, ten times each: a nop, a frame, one long instruction, a window of several, an endbr64, live flags, a branch
// back into the first bytes, a large frame, a tail jump, two exits. Function `n` takes x and the caller, calls the next
// function with x, and returns the result plus n + 1 (the tail jump: calls it with x + n + 1).
core::arch::global_asm!(
    ".pushsection .text.stress, \"ax\"",
    ".macro stress_fn name",
    ".p2align 6, 0xcc",
    ".fill 16, 1, 0xcc",
    ".globl \\name",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    ".macro stress_end name",
    "ret",
    ".size \\name, . - \\name",
    ".endm",
    ".macro stress_ten d",
    "stress_fn stress_fn_\\d\\()0",
    ".byte 0x0f, 0x1f, 0x44, 0, 0",
    "push rbx",
    "call {next}",
    "add rax, \\d * 10 + 1",
    "pop rbx",
    "stress_end stress_fn_\\d\\()0",
    "stress_fn stress_fn_\\d\\()1",
    "push rbp",
    "mov rbp, rsp",
    "call {next}",
    "add rax, \\d * 10 + 2",
    "pop rbp",
    "stress_end stress_fn_\\d\\()1",
    "stress_fn stress_fn_\\d\\()2",
    "mov eax, \\d * 10 + 3",
    "push rax",
    "call {next}",
    "pop rcx",
    "add rax, rcx",
    "stress_end stress_fn_\\d\\()2",
    "stress_fn stress_fn_\\d\\()3",
    "push rbx",
    "mov rbx, rdi",
    "xor edx, edx",
    "call {next}",
    "sub rax, rbx",
    "lea rax, [rax + rbx + \\d * 10 + 4]",
    "pop rbx",
    "stress_end stress_fn_\\d\\()3",
    "stress_fn stress_fn_\\d\\()4",
    "endbr64",
    "push rbp",
    "mov rbp, rsp",
    "call {next}",
    "lea rax, [rax + \\d * 10 + 5]",
    "leave",
    "stress_end stress_fn_\\d\\()4",
    "stress_fn stress_fn_\\d\\()5",
    "stc",
    "push rbx",
    "mov ebx, \\d * 10 + 5",
    "adc rbx, 0",
    "call {next}",
    "add rax, rbx",
    "pop rbx",
    "stress_end stress_fn_\\d\\()5",
    "stress_fn stress_fn_\\d\\()6",
    "push rbx",
    "mov bl, 0",
    "2: inc bl",
    "cmp bl, 3",
    "jb 2b",
    "call {next}",
    "movzx ebx, bl",
    "lea rax, [rax + rbx + \\d * 10 + 4]",
    "pop rbx",
    "stress_end stress_fn_\\d\\()6",
    "stress_fn stress_fn_\\d\\()7",
    "sub rsp, 0x208",
    "mov [rsp + 0x1f8], rdi",
    "call {next}",
    "sub rax, [rsp + 0x1f8]",
    "mov rcx, [rsp + 0x1f8]",
    "lea rax, [rax + rcx + \\d * 10 + 8]",
    "add rsp, 0x208",
    "stress_end stress_fn_\\d\\()7",
    "stress_fn stress_fn_\\d\\()8",
    "add rdi, \\d * 10 + 9",
    "jmp {next}",
    ".size stress_fn_\\d\\()8, . - stress_fn_\\d\\()8",
    "stress_fn stress_fn_\\d\\()9",
    "push rbx",
    "mov rbx, rdi",
    "test bl, 1",
    "je 2f",
    "call {next}",
    "add rax, \\d * 10 + 10",
    "pop rbx",
    "ret",
    "2: call {next}",
    "sub rax, -(\\d * 10 + 10)",
    "pop rbx",
    "stress_end stress_fn_\\d\\()9",
    ".endm",
    ".irpc d, 0123456789",
    "stress_ten \\d",
    ".endr",
    ".p2align 6, 0xcc",
    ".purgem stress_ten",
    ".purgem stress_fn",
    ".purgem stress_end",
    ".popsection",
    ".pushsection .data.rel.ro.stress, \"aw\"",
    ".p2align 3",
    ".globl stress_functions",
    "stress_functions:",
    ".irpc d, 0123456789",
    ".irpc u, 0123456789",
    ".quad stress_fn_\\d\\()\\u",
    ".endr",
    ".endr",
    ".popsection",
    next = sym stress_next,
);

type Function = extern "C" fn(u64, *mut Caller) -> u64;

// SAFETY: the table above has so many addresses of functions of this type, relocated before the program starts, and is
// never written.
unsafe extern "C" {
    safe static stress_functions: [Function; FUNCTIONS];
}

/// Where a function begins.
pub fn address(function: usize) -> u64 {
    stress_functions[function] as *const () as u64
}

/// Who calls: one for each thread, each signal handler that runs, each child.
pub struct Caller {
    rng: Rng,
    left: u64,
    sum: u64,
    row: Option<&'static Row>,
    forget: u64,
    /// Calls.
    pub made: u64,
    /// Wrong results.
    pub wrong: u64,
}

impl Caller {
    /// With a stream of a seed; counts in `row`, if there is one, all calls but one in `forget` (0: all).
    pub fn new(seed: u64, stream: u64, row: Option<&'static Row>, forget: u64) -> Caller {
        Caller { rng: Rng::new(seed, stream), left: 0, sum: 0, row, forget, made: 0, wrong: 0 }
    }

    /// Calls a function, which calls others, `depth` at most.
    pub fn call_some(&mut self, depth: u64) {
        self.left = self.rng.below(depth) + 1;
        let (x, before) = (self.rng.next() >> 8, self.sum);
        let got = stress_next(x, self);
        if got != x + (self.sum - before) {
            self.wrong += 1;
        }
    }

    fn count(&mut self, function: usize) {
        self.made += 1;
        let is_forgotten = self.forget > 0 && self.made.is_multiple_of(self.forget);
        if let Some(row) = self.row.filter(|_| !is_forgotten) {
            // A handler may interrupt us here, on the same row.
            row.calls[function].fetch_add(1, Relaxed);
        }
    }
}

/// What every function calls: another one, or nothing once it is deep enough.
extern "C" fn stress_next(x: u64, caller: *mut Caller) -> u64 {
    // SAFETY: the functions pass on what `call_some` gave them: its own borrow, which nobody else uses while it runs.
    let this = unsafe { &mut *caller };
    if this.left == 0 {
        return x;
    }
    this.left -= 1;
    let function = this.rng.below(FUNCTIONS as u64) as usize;
    this.count(function);
    let before = this.sum;
    this.sum += function as u64 + 1;
    let got = stress_functions[function](x, caller);
    // SAFETY: as above; the borrow before the call is over.
    let this = unsafe { &mut *caller };
    if got != x + (this.sum - before) {
        this.wrong += 1;
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_adds_its_number() {
        for (function, call) in stress_functions.iter().enumerate() {
            for x in [0u64, 7, 1 << 40] {
                let mut caller = Caller::new(1, 1, None, 0);
                assert_eq!(call(x, &mut caller), x + function as u64 + 1, "{function}");
            }
        }
    }

    #[test]
    fn calls_are_as_deep_as_they_may_be_and_right() {
        let mut caller = Caller::new(1, 2, None, 0);
        (0..1000).for_each(|_| caller.call_some(DEPTH));
        assert!(caller.wrong == 0 && caller.made > 20_000, "{} {}", caller.wrong, caller.made);
    }
}
