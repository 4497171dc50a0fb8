//! AArch64.
//!
//! For:     all rooms, by `arch`.
//! State:   none.
//! Context: control.
//! Keeps:   the list of `arch`.
//! Checked: tests below; the machine's test (docs/aarch64.md).
//! Source:  the kernel's arch/arm64/kernel/signal.c: in a stop of ours that ends a call which will be made again, the program
//!          counter stands at the `svc` already, and x0 is the argument.

pub(crate) mod frame;

use super::SleptIn;
use insn::Forbidden;
use insn::aarch64::Stored;
use sys::ptrace::Regs;
use sys::{Errno, nr};
use unwind::Registers;

/// Whether all exists here, and not what `facts::ported` lets through alone.
pub(crate) const IS_WHOLE: bool = false;
/// The agent's one kind of relocation.
pub(crate) const R_RELATIVE: object::elf::RelocationType = object::elf::R_AARCH64_RELATIVE;
/// Whether the general path saves all registers that a function may write.
pub(crate) const SAVES_ALL: bool = true;
/// The instruction of a system call: `svc #0`.
pub(crate) const SYSCALL: &[u8] = &0xd400_0001u32.to_le_bytes();
/// The instruction that returns.
pub(crate) const RETURN: &[u8] = &0xd65f_03c0u32.to_le_bytes();
/// `mov x8, #139`: rt_sigreturn.
pub(crate) const MOV_SIGRETURN: [&[u8]; 1] = [&0xd280_1168u32.to_le_bytes()];
/// Instructions begin at its multiples.
pub(crate) const ALIGN: u64 = 4;
/// A breakpoint, at which a thread stands that has met it.
pub(crate) const BREAKPOINT: [u8; 4] = 0xd420_0000u32.to_le_bytes();
pub(crate) const BEHIND_BREAKPOINT: u64 = 0;
/// What the kernel's uprobes write over an instruction: `brk #5`.
pub(crate) const KERNEL_BREAKPOINT: [u8; 4] = 0xd420_00a0u32.to_le_bytes();
/// How far a branch reaches, in words.
pub(crate) const REACH: &str = "128 MiB";
/// Bytes of an instruction that does nothing.
pub(crate) const NOPS: [u8; 4] = insn::aarch64::NOP.to_le_bytes();
/// Where `struct pt_regs` has the stack pointer, the first arguments and the result.
pub(crate) const STACK_POINTER: i16 = 8 * 31;
pub(crate) const ARGUMENTS: [i16; 3] = [0, 8, 16];
pub(crate) const RESULT: i16 = 0;

/// How the kernel's probe gets a thread past an instruction.
pub(crate) fn kernel_way(original: &[u8]) -> Option<insn::KernelWay> {
    insn::aarch64::kernel_way(&insn::Code { base: 0, bytes: original }, 0).ok()
}

/// Whether a branch of ours may begin at this address.
pub(crate) fn may_be_jump(at: u64, _: u8) -> bool {
    at.is_multiple_of(4)
}

/// There is no shorter branch.
pub(crate) fn short_jump_target(_: u64, _: &[u8]) -> Option<u64> {
    None
}

/// brk with any number: the kernel's uprobes have 5, debuggers 0.
fn is_breakpoint(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|word| u32::from_le_bytes(*word) & 0xffe0_001f == 0xd420_0000)
}

/// Whether a breakpoint stands there where the file has none.
pub(crate) fn has_breakpoint(found: &[u8], file: &[u8]) -> bool {
    is_breakpoint(found) && !is_breakpoint(file)
}

/// Whether bytes are the file's, or a breakpoint.
pub(crate) fn is_but_for_breakpoints(found: &[u8], file: &[u8]) -> bool {
    found == file || is_breakpoint(found)
}

/// Whether these bytes may be written over with what was read there: each patch is a word of its own, and is written alone.
pub(crate) fn may_be_rewritten(_: &[u8]) -> bool {
    false
}

/// Words behind the stack pointer in a signal frame by which it is known.
pub(crate) const FRAME_WORDS: usize = 5;

/// Bits of pstate: the thread is in 32-bit code.
const MODE_32: u64 = 0x10;

/// What tells that a thread is in code of another kind, if it is.
pub(crate) fn foreign_code(regs: &Regs) -> Option<u64> {
    (regs.pstate & MODE_32 != 0).then_some(regs.pstate)
}

/// Never: the kernel has set the program counter back already.
pub(crate) fn restarts(_: &Regs) -> bool {
    false
}

/// Where a stopped thread goes on.
pub(crate) fn goes_on_at(regs: &Regs) -> u64 {
    regs.pc
}

/// Registers with which a stopped thread goes on there.
pub(crate) fn sent_to(regs: &Regs, pc: u64) -> Regs {
    regs.at(pc)
}

/// What a call was made with is not in the registers any more when it was interrupted: it is looked for before threads are asked
/// to stop.
pub(crate) const FORGETS_CALLS: bool = true;

/// The registers with which a thread goes on that slept in a call, and whose registers we have set meanwhile: a sleep with a time
/// goes on by `restart_syscall`, as the kernel would have had it, since it does that itself only for a thread that it finds where
/// it has put it. A frame of ours cannot say so: a thread that takes one sleeps for the full time again.
pub(crate) fn sleeping_on(saved: &Regs, slept: Option<SleptIn>) -> Regs {
    const CLOCK_NANOSLEEP: u64 = 115;
    const NANOSLEEP: u64 = nr::NANOSLEEP as u64;
    const FUTEX: u64 = nr::FUTEX as u64;
    const ABSOLUTE: u64 = 1;
    /// FUTEX_WAIT and FUTEX_WAIT_BITSET, without what is said besides.
    const WAITS: [u64; 2] = [0, 9];
    let Some(slept) = slept.filter(|slept| is_in(saved, slept, slept.pc - 4)) else { return *saved };
    let has_time = match slept.number {
        NANOSLEEP => true,
        CLOCK_NANOSLEEP => saved.x[1] & ABSOLUTE == 0,
        FUTEX => saved.x[3] != 0 && WAITS.contains(&(saved.x[1] & 0x7f)),
        _ => false,
    };
    let mut regs = *saved;
    if has_time {
        regs.x[8] = nr::RESTART_SYSCALL as u64;
    }
    regs
}

/// Whether these registers are those of a thread that is still in that call, at this instruction.
fn is_in(regs: &Regs, slept: &SleptIn, pc: u64) -> bool {
    (regs.x[8], regs.sp, regs.pc) == (slept.number, slept.sp, pc)
}

/// The registers with which a call begins again that ended with EINTR, if it may.
pub(crate) fn interrupted_call(regs: &Regs, slept: Option<SleptIn>) -> Option<Regs> {
    let slept = slept.filter(|slept| is_in(regs, slept, slept.pc))?;
    let is_it = regs.x[0] as i64 == -i64::from(Errno::EINTR.0) && slept.number != nr::CLOSE as u64;
    let mut again = Regs { pc: regs.pc - 4, ..*regs };
    again.x[0] = slept.first_argument;
    is_it.then_some(again)
}

/// The registers with which a thread in a system call makes it once more.
pub(crate) fn made_again(call: &Regs) -> Regs {
    Regs { pc: call.pc - 4, ..*call }
}

/// No register says that: the one call that is not to be made is getpid, which may be made.
pub(crate) fn not_made(call: &Regs) -> Regs {
    *call
}

/// Not known: what the kernel would go on with is not seen in the registers.
pub(crate) fn without_restart_call(_: &Regs) -> Option<Regs> {
    None
}

/// Whether the call of a thread may be one that would begin anew, with its time, if we set its registers: one of those that the
/// kernel goes on with by `restart_syscall`, by the number that is left in x8.
pub(crate) fn is_sleeping(regs: &Regs) -> bool {
    const CLOCK_NANOSLEEP: usize = 115;
    matches!(regs.x[8] as usize, nr::NANOSLEEP | nr::FUTEX | CLOCK_NANOSLEEP)
}

/// Registers of a thread that is about to make a call by the instruction at `syscall`. With a frame it returns to that
/// afterwards: its address is the stack pointer, and the code that takes it is returned to.
pub(crate) fn calling(
    saved: &Regs,
    syscall: u64,
    frame: Option<(u64, u64)>,
    (number, args): (usize, [u64; 6]),
) -> Regs {
    let mut regs = saved.at(syscall);
    regs.x[..6].copy_from_slice(&args);
    regs.x[8] = number as u64;
    if let Some((at, restorer)) = frame {
        regs.sp = at;
        regs.x[30] = restorer;
    }
    regs
}

/// What a call has returned.
pub(crate) fn answer(regs: &Regs) -> u64 {
    regs.x[0]
}

/// Registers of a thread that is about to run code of ours, with these arguments of a C function.
pub(crate) fn entering(saved: &Regs, code: u64, sp: u64, args: [u64; 6]) -> Regs {
    let mut regs = saved.at(code).with_sp(sp);
    regs.x[..6].copy_from_slice(&args);
    regs
}

/// What that code keeps for us: what the function has returned.
pub(crate) fn returned(regs: &Regs) -> u64 {
    regs.x[19]
}

/// The number of the call that a thread is in.
pub(crate) fn call_number(regs: &Regs) -> usize {
    regs.x[8] as usize
}

/// The first five arguments of that call.
pub(crate) fn arguments(regs: &Regs) -> [u64; 5] {
    [regs.x[0], regs.x[1], regs.x[2], regs.x[3], regs.x[4]]
}

/// Whether it is a system call behind which a thread may sleep until its child has another memory.
pub(crate) fn makes_processes(call: usize) -> bool {
    matches!(call, nr::CLONE | nr::CLONE3)
}

/// A register that a trampoline may have saved, by its number in instructions.
pub(crate) fn register(regs: &mut Regs, number: u8) -> Option<&mut u64> {
    regs.x.get_mut(usize::from(number))
}

/// Gives a thread the flags that a trampoline has saved: N, Z, C and V, where pstate has them.
pub(crate) fn set_flags(regs: &mut Regs, saved: u64) {
    const FLAGS: u64 = 0xf << 28;
    regs.pstate = regs.pstate & !FLAGS | saved & FLAGS;
}

/// Where a thread's number may lie from its pointer: the C libraries have a thread's block below it, of their own length.
pub(crate) fn tid_places() -> impl Iterator<Item = u64> {
    const FARTHEST: u64 = 4096;
    (4..=FARTHEST).step_by(4).map(u64::wrapping_neg)
}

/// What a walk of a stack begins with; nobody walks one here.
pub(crate) fn walked(regs: &Regs) -> Registers {
    Registers::new(regs.pc, regs.sp)
}

/// A register by its number, for addresses of accesses.
pub(crate) fn operand(regs: &Regs, number: u8) -> u64 {
    regs.x.get(usize::from(number)).copied().unwrap_or(regs.sp)
}

/// Whether these words look like a signal frame's registers from the stack pointer on: behind that, the program counter, the
/// state and what fills up stands the head of the record of the vector registers.
pub(crate) fn is_saved_in_frame(words: &[u64]) -> bool {
    const VECTORS: u64 = 0x0000_0210_4650_8001;
    words[4] == VECTORS
}

/// Not an instruction of this processor.
pub(crate) fn has_rdpid() -> bool {
    false
}

/// Whether a watchpoint's trap comes before the access: what is stored is not in memory yet, and the trap's return breaks a pair of
/// exclusive accesses.
pub(crate) const TRAPS_AHEAD: bool = true;
/// As many watchpoints as the architecture has room for.
pub(crate) const WATCHES_MAX: usize = 16;
/// Registers of a sample, by the kernel's numbers: x0 to x30, sp, pc; and pc alone.
pub(crate) const SAMPLED: u64 = (1 << 33) - 1;
pub(crate) const SAMPLED_PLACE: u64 = 1 << 32;

/// A thread's watchpoints: how many a processor has, the addresses that a debugger has set through ptrace.
fn hardware_watches(tid: i32) -> Option<(u32, usize)> {
    const NT_ARM_HW_WATCH: usize = 0x403;
    const ENTRY: usize = 16;
    let mut bytes = [0u8; 8 + ENTRY * WATCHES_MAX];
    let len = sys::ptrace::register_set(tid, NT_ARM_HW_WATCH, &mut bytes).ok()?;
    let is_set = |entry: &&[u8]| entry[8] & 1 == 1;
    let set = bytes.get(8..len)?.chunks_exact(ENTRY).filter(is_set).count();
    Some((u32::from(bytes[0]), set))
}

/// How many watchpoints a debugger has set in the stopped thread.
pub(crate) fn debugger_registers(tid: i32) -> usize {
    hardware_watches(tid).map_or(0, |(_, set)| set)
}

/// The registers of a processor, as a stopped thread of it tells: those for data are by themselves.
pub(crate) fn debug_registers(tid: i32) -> hwbp::Pools {
    let data = hardware_watches(tid).map_or(WATCHES_MAX as u32, |(all, _)| all);
    hwbp::Pools::Split { data, instruction: 0 }
}

/// Whether a thread that traps at this instruction may have to begin again for ever: at an exclusive access, or between a load
/// and its store.
pub(crate) fn is_broken_by_trap(code: &insn::Code<'_>, at: u64) -> bool {
    use insn::aarch64::{Verdict, verdict_at};
    matches!(verdict_at(code, at), Verdict::Refused(Forbidden::Exclusive | Forbidden::InExclusive))
}

/// What the instruction of a sample with [`SAMPLED`] is about to store.
pub(crate) fn stored(instruction: &[u8], registers: &[u64]) -> Stored {
    let Some(word) = instruction.first_chunk() else { return Stored::Unknown };
    let general = |n: u8| registers.get(usize::from(n)).copied().unwrap_or_default();
    match insn::aarch64::stored(u32::from_le_bytes(*word), general) {
        // The uppermost byte of a pointer may be the program's own.
        Stored::Bytes { addr, bytes, len } => Stored::Bytes { addr: addr & !(0xff << 56), bytes, len },
        other => other,
    }
}

/// The counter now.
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: the register is a counter that Linux lets programs read; nothing else is touched.
    unsafe { core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack)) };
    ticks
}

/// All registers are saved, those that a call keeps too.
pub(crate) const KEPT_WORDS: &[u32] = &[];
/// Offsets in `user_pt_regs` of what is no general register and not saved as such: the stack pointer, the program counter.
pub(crate) const PLACE_WORDS: &[u32] = &[248, 256];
/// Nothing is saved only where someone writes or reads it.
pub(crate) const SAVED_ON_WISH: &[(u8, u32)] = &[];
pub(crate) const FRAME_OF_SOME: Option<u32> = None;
/// Of the result of a function: x0.
pub(crate) const RESULT_WORD: u32 = 0;
/// The registers that a trampoline can compare with constants, by their words: x0 to x15, those that hold arguments and results.
pub(crate) const GUARDED: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The number of a comparison's condition in instructions; that of its opposite is its neighbour.
pub(crate) fn condition(cond: bpf::Cond) -> u8 {
    use bpf::Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
    match cond {
        Eq => 0,
        Ne | Set => 1,
        Ge => 2,
        Lt => 3,
        Gt => 8,
        Le => 9,
        Sge => 10,
        Slt => 11,
        Sgt => 12,
        Sle => 13,
    }
}
/// `AUDIT_ARCH_AARCH64`.
pub(crate) const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Bytes in front of the code that a process runs for us.
pub(crate) const GUEST_FRONT: usize = 128;
/// Where the call's stub ends: a thread that stops there has the result in x19.
pub(crate) const GUEST_END: u64 = 24;
/// Where the clock stands.
pub(crate) const GUEST_CLOCK: u64 = 64;

/// What stands there. First `mov x20, x7; bl` of the code; `mov x7, x20; mov x19, x0; mov x8, #172; svc #0`: a stop at a system call gives x7
/// back as it was before the call. Then the clock, by a system call: room for two words; `clock_gettime(1, sp)`; seconds times 10^9
/// plus nanoseconds.
pub(crate) fn guest_front() -> [u8; GUEST_FRONT] {
    const ENTRY: [u32; GUEST_END as usize / 4] = [
        0xaa07_03f4,
        0x9400_0000 | (GUEST_FRONT as u32 - 4) / 4,
        0xaa14_03e7,
        0xaa00_03f3,
        0xd280_1588,
        0xd400_0001,
    ];
    const CLOCK: [u32; 11] = [
        0xd100_43ff,
        0xd280_0020,
        0x9100_03e1,
        0xd280_0e28,
        0xd400_0001,
        0xa940_07e0,
        0xd299_4002,
        0xf2a7_7342,
        0x9b02_0400,
        0x9100_43ff,
        0xd65f_03c0,
    ];
    let mut front = [0; GUEST_FRONT];
    for (at, words) in [(0, &ENTRY[..]), (GUEST_CLOCK as usize, &CLOCK)] {
        let to = front[at..].chunks_exact_mut(4);
        to.zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    }
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slept(number: usize) -> (Regs, SleptIn) {
        let mut regs = Regs { sp: 0x7000, pc: 0x1000, ..Regs::default() };
        (regs.x[0], regs.x[8]) = (7, number as u64);
        let slept = SleptIn { number: number as u64, first_argument: 7, sp: 0x7000, pc: 0x1004, sleeps: 1 };
        (regs, slept)
    }

    #[test]
    fn flags_are_the_uppermost_four_bits_of_the_state() {
        let mut regs = Regs { pstate: 0x6000_1000, ..Regs::default() };
        set_flags(&mut regs, 0x9000_0000);
        assert_eq!(regs.pstate, 0x9000_1000);
    }

    #[test]
    fn a_sleep_with_a_time_goes_on_with_the_rest_of_it() {
        const PPOLL: usize = 73;
        let by = |number: usize, x1: u64, x3: u64| {
            let (mut regs, slept) = slept(number);
            (regs.x[1], regs.x[3]) = (x1, x3);
            sleeping_on(&regs, Some(slept)).x[8] as usize
        };
        assert_eq!((by(nr::NANOSLEEP, 0, 0), by(115, 0, 0)), (128, 128));
        assert_eq!(by(115, 1, 0), 115, "until a time");
        assert_eq!((by(nr::FUTEX, 0x80, 0x5000), by(nr::FUTEX, 0x80, 0)), (128, nr::FUTEX));
        assert_eq!((by(nr::FUTEX, 6, 0x5000), by(PPOLL, 0, 0)), (nr::FUTEX, PPOLL));
        let (regs, slept) = slept(nr::NANOSLEEP);
        let elsewhere = regs.at(0x2000);
        assert_eq!(sleeping_on(&elsewhere, Some(slept)), elsewhere);
        assert_eq!(sleeping_on(&regs, None), regs);
    }

    #[test]
    fn a_call_that_we_have_ended_begins_again_with_its_first_argument() {
        const EPOLL_PWAIT: usize = 22;
        let (regs, slept) = slept(EPOLL_PWAIT);
        let mut ended = regs.at(0x1004);
        ended.x[0] = -4i64 as u64;
        assert_eq!(interrupted_call(&ended, Some(slept)), Some(regs));
        assert_eq!(interrupted_call(&ended, None), None);
        assert_eq!(interrupted_call(&ended, Some(SleptIn { sp: 0x6000, ..slept })), None);
        ended.x[0] = 1;
        assert_eq!(interrupted_call(&ended, Some(slept)), None, "an event has come");
    }
}
