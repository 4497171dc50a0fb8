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
use image::{ElfImage, ImageAddr, Machine, Mark, When};
use insn::Placement;

/// Where the saved registers have what a function is given and gives back, by the instruction set.
struct Convention {
    /// Byte offsets in `pt_regs` of the registers that hold arguments.
    arguments: &'static [u32],
    go_arguments: &'static [u32],
    /// In C and in Go.
    result: u32,
}

const X86_64: Convention = Convention {
    arguments: &[112, 104, 96, 88, 72, 64],
    go_arguments: &[80, 40, 88, 112, 104, 72, 64, 56, 48],
    result: 80,
};
/// x0 and so on.
const AARCH64: Convention = Convention {
    arguments: &[0, 8, 16, 24, 32, 40, 48, 56],
    go_arguments: &[0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120],
    result: 0,
};

fn convention(image: &ElfImage) -> &'static Convention {
    if is_a64(image) { &AARCH64 } else { &X86_64 }
}

fn is_a64(image: &ElfImage) -> bool {
    image.machine() == Machine::Aarch64
}

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

/// In Go code: the stack pointer, the frame pointer and the goroutine.
pub(super) const GO_GOOD_REGISTERS: u16 = 1 << 4 | 1 << 5 | 1 << 14;

pub(super) fn is_go_code(image: &ElfImage, wanted: &Match) -> bool {
    image.is_go_code(ImageAddr(wanted.addr))
}

/// Go makes a panic of a fault at an address of its own; at one of ours it ends the process.
pub(super) fn check_faults(image: &ElfImage, wanted: &Match, placement: &Placement) -> Result<(), NoJump> {
    if !is_go_code(image, wanted) {
        return Ok(());
    }
    // Of A64 the stack pointer and the goroutine are known where instructions are looked at.
    let good = if is_a64(image) { 0 } else { GO_GOOD_REGISTERS };
    match placement.may_fault(good.into()) {
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
            Consumer::Log2Histogram { register: mark_argument(image, wanted.mark.as_ref(), n)? }
        }
        (Verb::HistogramOfArgument(n), When::Before) => {
            let known = convention(image);
            let registers = if is_go { known.go_arguments } else { known.arguments };
            let register = registers.get(n).copied();
            let register = register.ok_or_else(|| format!("arg{n} is not passed in a register"))?;
            Consumer::Log2Histogram { register }
        }
        (Verb::HistogramOfArgument(n), When::Return) => {
            return Err(format!("arg{n} is gone when a function returns: write u: and not ur:"));
        }
        (Verb::HistogramOfReturn, When::Return) => {
            Consumer::Log2Histogram { register: convention(image).result }
        }
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
fn mark_argument(image: &ElfImage, mark: Option<&Mark>, n: usize) -> Result<u32, String> {
    let none = || format!("the mark has no arg{n}");
    let operand = mark.and_then(|m| m.operand(n)).ok_or_else(none)?;
    let place = operand.place;
    let found = match is_a64(image) {
        true => a64_register(place),
        false => {
            MARK_REGISTERS.iter().find(|(_, n)| n.split(' ').any(|name| name == place)).map(|(at, _)| *at)
        }
    };
    let offset = found.ok_or_else(|| {
        let seen = if is_a64(image) { "registers" } else { "what a call may change, rbx," };
        format!("arg{n} of the mark is in {place}, and handlers see only {seen} and no memory")
    })?;
    let unused_bits = 64 - 8 * u32::from(operand.len_bytes.min(8));
    Ok(offset | unused_bits << wire::ARG_SHIFT)
}

/// Where x0 to x30, or the lower half of one, is saved.
fn a64_register(name: &str) -> Option<u32> {
    let number = name.strip_prefix(['x', 'w'])?.parse::<u32>().ok()?;
    (number <= 30).then_some(8 * number)
}

pub(super) fn check_stack(image: &ElfImage, wanted: &Match) -> Result<(), NoJump> {
    match is_go_code(image, wanted) && !has_stack_check(image, wanted) {
        true => Err(NoJump::TooLittleStack),
        false => Ok(()),
    }
}

/// Go functions that make sure of some hundred bytes of stack compare rsp (or r12) with the goroutine's bound; in A64 they begin
/// with reading that: ldr x16, [x28, #16], of the scheduler's own stack #24.
fn has_stack_check(image: &ElfImage, wanted: &Match) -> bool {
    let is_entry = wanted.function.as_ref().is_some_and(|f| f.start == wanted.addr);
    if is_a64(image) {
        let head = image.bytes(ImageAddr(wanted.addr), 4).and_then(|head| head.first_chunk().copied());
        let reads = head.is_some_and(|head| matches!(u32::from_le_bytes(head), 0xf940_0b90 | 0xf940_0f90));
        return is_entry && reads;
    }
    let head = image.bytes(ImageAddr(wanted.addr), 24).unwrap_or_default();
    is_entry && head.windows(3).any(|w| w == [0x49, 0x3b, 0x66] || w == [0x4d, 0x3b, 0x66])
}
