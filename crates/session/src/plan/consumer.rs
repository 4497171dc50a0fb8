//! What is called at a hit, and whether the code allows it.
//!
//! For:     plans.
//! State:   none.
//! Context: control; touches nothing.
//! Keeps:   C1 an argument is read where the calling convention, or the mark's note, has it; else it is refused.
//!          C2 in Go nothing is displaced that may fault, and no handler runs on a stack that was not made sure of.
//! Checked: testkit `counting`, `marks`, `signals`.

use super::no_jump::NoJump;
use super::{Match, Verb};
use crate::facts::site::Consumer;
use image::{ElfImage, ImageAddr, Mark, When};
use insn::Placement;

/// Byte offsets in `pt_regs` of the registers that hold arguments.
const SYSV_ARGUMENTS: [u32; 6] = [112, 104, 96, 88, 72, 64];
/// rax, in C and in Go.
const RETURN_VALUE: u32 = 80;
/// The registers that trampolines save, with the names of their parts.
const MARK_REGISTERS: [(u32, &str); 10] = [
    (40, "%rbx %ebx %bx %bl"),
    (48, "%r11 %r11d %r11w %r11b"),
    (56, "%r10 %r10d %r10w %r10b"),
    (64, "%r9 %r9d %r9w %r9b"),
    (72, "%r8 %r8d %r8w %r8b"),
    (80, "%rax %eax %ax %al"),
    (88, "%rcx %ecx %cx %cl"),
    (96, "%rdx %edx %dx %dl"),
    (104, "%rsi %esi %si %sil"),
    (112, "%rdi %edi %di %dil"),
];
const GO_ARGUMENTS: [u32; 9] = [80, 40, 88, 112, 104, 72, 64, 56, 48];

/// In Go code: the stack pointer, the frame pointer and the goroutine.
pub(super) const GO_GOOD_REGISTERS: u16 = 1 << 4 | 1 << 5 | 1 << 14;

/// C code in a Go program has no dot in its names.
pub(super) fn is_go_code(image: &ElfImage, wanted: &Match) -> bool {
    image.is_go() && wanted.name.contains('.')
}

/// Go makes a panic of a fault at an address of its own; at one of ours it ends the process.
pub(super) fn check_faults(image: &ElfImage, wanted: &Match, placement: &Placement) -> Result<(), NoJump> {
    if !is_go_code(image, wanted) {
        return Ok(());
    }
    match placement.may_fault(GO_GOOD_REGISTERS.into()) {
        None => Ok(()),
        Some(insn) => Err(NoJump::MayFault(insn.addr)),
    }
}

/// With a shadow stack a displaced call would be fatal.
pub(super) fn check_shadow_stack(pid: u32, placement: &Placement) -> Result<(), NoJump> {
    match placement.call() {
        Some(insn) if image::maps::has_shadow_stack(pid) => Err(NoJump::ShadowStack(insn.addr)),
        _ => Ok(()),
    }
}

/// What is called at each hit; `None`: a count compiled into the trampoline.
pub(super) fn consumer(
    verb: Verb,
    when: When,
    image: &ElfImage,
    wanted: &Match,
) -> Result<Option<Consumer>, String> {
    let is_go = is_go_code(image, wanted);
    let consumer = match (verb, when) {
        (Verb::Count, When::Before) => return Ok(None),
        (Verb::Count | Verb::CountByHandler | Verb::Program, _) => Consumer::Count,
        (Verb::CountStack, _) => Consumer::CountStack { flags: walk_flags(when, wanted, is_go) },
        (Verb::HistogramOfArgument(n), When::Before) if wanted.mark.is_some() => {
            Consumer::Log2Histogram { register: mark_argument(wanted.mark.as_ref(), n)? }
        }
        (Verb::HistogramOfArgument(n), When::Before) => {
            let registers: &[u32] = if is_go { &GO_ARGUMENTS } else { &SYSV_ARGUMENTS };
            let register = registers.get(n).copied();
            let register = register.ok_or_else(|| format!("arg{n} is not passed in a register"))?;
            Consumer::Log2Histogram { register }
        }
        (Verb::HistogramOfArgument(n), When::Return) => {
            return Err(format!("arg{n} is gone when a function returns: write u: and not ur:"));
        }
        (Verb::HistogramOfReturn, When::Return) => Consumer::Log2Histogram { register: RETURN_VALUE },
        (Verb::HistogramOfReturn, When::Before) => {
            return Err("nothing is returned at a function's entry: write ur: and not u:".into());
        }
        (Verb::Ring, _) => Consumer::Ring,
        (Verb::RingBeforeExec, _) => Consumer::RingBeforeExec,
        (Verb::Latency | Verb::Trace { .. }, _) => return Err("it has two hooks, not one".into()),
    };
    Ok(Some(consumer))
}

/// What a walk begins with: where a function begins, and where it is left, its return address is on top of the stack.
fn walk_flags(when: When, wanted: &Match, is_go: bool) -> u32 {
    let at_entry = if is_edge(wanted) || when == When::Return { wire::WALK_AT_ENTRY } else { 0 };
    at_entry | if is_go { wire::WALK_IN_GO } else { 0 }
}

/// A function's first instruction, or whatever else is probed of a whole function.
pub(super) fn is_edge(wanted: &Match) -> bool {
    wanted.function.as_ref().is_some_and(|f| f.start == wanted.addr) && wanted.mark.is_none()
}

/// Where the saved registers have the n-th argument of a mark, as [`wire::ARG_SHIFT`] has it.
fn mark_argument(mark: Option<&Mark>, n: usize) -> Result<u32, String> {
    let none = || format!("the mark has no arg{n}");
    let operand = mark.and_then(|m| m.operand(n)).ok_or_else(none)?;
    let place = operand.place;
    let found = MARK_REGISTERS.iter().find(|(_, names)| names.split(' ').any(|name| name == place));
    let (offset, _) = found.ok_or_else(|| {
        format!("arg{n} of the mark is in {place}, and handlers see only what a call may change, rbx, and no memory")
    })?;
    let unused_bits = 64 - 8 * u32::from(operand.len_bytes.min(8));
    Ok(offset | unused_bits << wire::ARG_SHIFT)
}

pub(super) fn check_stack(image: &ElfImage, wanted: &Match) -> Result<(), NoJump> {
    match is_go_code(image, wanted) && !has_stack_check(image, wanted) {
        true => Err(NoJump::TooLittleStack),
        false => Ok(()),
    }
}

/// Go functions that make sure of some hundred bytes of stack compare rsp (or r12) with the goroutine's bound.
fn has_stack_check(image: &ElfImage, wanted: &Match) -> bool {
    let is_entry = wanted.function.as_ref().is_some_and(|f| f.start == wanted.addr);
    let head = image.bytes(ImageAddr(wanted.addr), 24).unwrap_or_default();
    is_entry && head.windows(3).any(|w| w == [0x49, 0x3b, 0x66] || w == [0x4d, 0x3b, 0x66])
}
