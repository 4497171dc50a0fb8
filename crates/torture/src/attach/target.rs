//! The process that is attached to: threads that call the probed functions and check every result.
//!
//! For:     `nanoprobe torture attach`, which starts it.
//! State:   a counter for each thread.
//! Context: it is the target.
//! Keeps:   a wrong result ends the process with code 99 at once.
//! Checked: it checks.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

// One function for each way a jump is placed: over a nop, over one instruction, over several, over the end of
// a function and its padding, with the next function's bytes as its last ones, and with live values in the red zone
// and in the flags.
core::arch::global_asm!(
    ".pushsection .text.torture, \"ax\"",
    ".macro torture_fn name",
    ".p2align 5, 0xcc",
    ".globl \\name",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    "torture_fn torture_fn_nop",
    ".byte 0x0f, 0x1f, 0x44, 0, 0",
    "lea rax, [rdi + 1]",
    "ret",
    ".size torture_fn_nop, . - torture_fn_nop",
    "torture_fn torture_fn_jump",
    "mov eax, 1",
    "add rax, rdi",
    "ret",
    ".size torture_fn_jump, . - torture_fn_jump",
    "torture_fn torture_fn_window",
    "push rbx",
    "mov rbx, rdi",
    "inc rbx",
    "mov rax, rbx",
    "pop rbx",
    "ret",
    ".size torture_fn_window, . - torture_fn_window",
    "torture_fn torture_fn_short",
    "lea rax, [rdi + 1]",
    "ret",
    ".size torture_fn_short, . - torture_fn_short",
    "torture_fn torture_fn_tiny",
    "ret",
    ".size torture_fn_tiny, . - torture_fn_tiny",
    "torture_fn torture_fn_punned",
    "mov rax, rdi",
    "ret",
    ".size torture_fn_punned, . - torture_fn_punned",
    ".type behind_punned, @function",
    "behind_punned:",
    "push 0x55",
    "pop rax",
    "ret",
    "torture_fn torture_fn_flags",
    "stc",
    "mov rax, rdi",
    "adc rax, 0",
    "ret",
    ".size torture_fn_flags, . - torture_fn_flags",
    "torture_fn torture_fn_loop",
    "xor eax, eax",
    "2: inc rax",
    "cmp rax, 3",
    "jb 2b",
    "lea rax, [rdi + 1]",
    "ret",
    ".size torture_fn_loop, . - torture_fn_loop",
    ".p2align 5, 0xcc",
    ".purgem torture_fn",
    ".popsection",
);

// SAFETY: the functions above take and return one integer by the C convention.
unsafe extern "C" {
    safe fn torture_fn_nop(x: u64) -> u64;
    safe fn torture_fn_jump(x: u64) -> u64;
    safe fn torture_fn_window(x: u64) -> u64;
    safe fn torture_fn_short(x: u64) -> u64;
    safe fn torture_fn_tiny(x: u64) -> u64;
    safe fn torture_fn_punned(x: u64) -> u64;
    safe fn torture_fn_flags(x: u64) -> u64;
    safe fn torture_fn_loop(x: u64) -> u64;
}

static STOP: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Is the target: `nanoprobe torture-target THREADS`.
pub fn attach_target_main(args: &[String]) -> i32 {
    let threads: usize = args.first().and_then(|n| n.parse().ok()).unwrap_or(1);
    let workers: Vec<_> = (0..threads).map(|i| std::thread::spawn(move || work(i as u64))).collect();
    println!("ready");
    let _ = std::io::stdout().flush();
    // The end of our input ends us too: who started us may be gone.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    STOP.store(true, Ordering::Relaxed);
    let is_whole = workers.into_iter().all(|w| w.join().is_ok());
    println!("calls {}", CALLS.load(Ordering::Relaxed));
    if is_whole { 0 } else { 99 }
}

fn work(start: u64) {
    let (mut x, mut calls) = (start, 0u64);
    while !STOP.load(Ordering::Relaxed) {
        for f in [
            torture_fn_nop,
            torture_fn_jump,
            torture_fn_window,
            torture_fn_short,
            torture_fn_flags,
            torture_fn_loop,
        ] {
            let y = f(x);
            if y != x + 1 {
                eprintln!("a probed function returned {y:#x} for {x:#x}");
                std::process::exit(99);
            }
            x = y;
            calls += 1;
        }
        torture_fn_tiny(x);
        if torture_fn_punned(x) != x {
            eprintln!("the function with a punned jump did not return {x:#x}");
            std::process::exit(99);
        }
        calls += 2;
    }
    CALLS.fetch_add(calls, Ordering::Relaxed);
}
