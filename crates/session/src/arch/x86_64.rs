//! x86-64.
//!
//! For:     all rooms, by `arch`.
//! State:   none.
//! Context: control.
//! Keeps:   the list of `arch`.
//! Checked: tests below; testkit `waits`, `signals`, `entered`.

pub(crate) mod frame;

use super::SleptIn;
use insn::aarch64::Stored;
use sys::ptrace::{self, Regs};
use sys::{Errno, nr};
use unwind::{Reg, Registers};

/// Whether all exists here, and not compiled counts alone.
pub(crate) const IS_WHOLE: bool = true;
/// The agent's one kind of relocation.
pub(crate) const R_RELATIVE: object::elf::RelocationType = object::elf::R_X86_64_RELATIVE;
/// Whether the general path saves all registers that a function may write.
pub(crate) const SAVES_ALL: bool = false;
/// The instruction of a system call.
pub(crate) const SYSCALL: &[u8] = &[0x0f, 0x05];
/// The instruction that returns.
pub(crate) const RETURN: &[u8] = &[0xc3];
/// The two ways to write `mov $15, %eax`: 15 is rt_sigreturn.
pub(crate) const MOV_SIGRETURN: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], &[0xb8, 15, 0, 0, 0]];
/// Instructions begin at its multiples.
pub(crate) const ALIGN: u64 = 1;
/// A breakpoint, and how far behind it a thread stands that has met it.
pub(crate) const BREAKPOINT: [u8; 1] = [0xcc];
pub(crate) const BEHIND_BREAKPOINT: u64 = 1;
/// How far a jump reaches, in words.
pub(crate) const REACH: &str = "2 GiB";
/// Bytes of an instruction that does nothing, over and over.
pub(crate) const NOPS: [u8; 4] = [0x90; 4];
/// Where `struct pt_regs` has the stack pointer, the first arguments and the result.
pub(crate) const STACK_POINTER: i16 = 152;
pub(crate) const ARGUMENTS: [i16; 3] = [112, 104, 96];
pub(crate) const RESULT: i16 = 80;

/// What the kernel's uprobes write over the first bytes of an instruction.
pub(crate) const KERNEL_BREAKPOINT: [u8; 1] = BREAKPOINT;

/// How the kernel's probe gets a thread past an instruction.
pub(crate) fn kernel_way(original: &[u8]) -> Option<insn::KernelWay> {
    insn::kernel_way(original).map(|(_, way)| way)
}

/// Whether a jump of ours may begin at this address, by the byte there: 5 bytes long, or 2.
pub(crate) fn may_be_jump(_: u64, first: u8) -> bool {
    matches!(first, LONG_JUMP | SHORT_JUMP)
}

/// First byte of a 5-byte jump.
pub(crate) const LONG_JUMP: u8 = 0xe9;
/// First byte of a 2-byte jump.
const SHORT_JUMP: u8 = 0xeb;

/// Where a 2-byte jump there leads.
pub(crate) fn short_jump_target(at: u64, bytes: &[u8]) -> Option<u64> {
    match bytes {
        [SHORT_JUMP, distance, ..] => Some((at + 2).wrapping_add_signed(i64::from(distance.cast_signed()))),
        _ => None,
    }
}

/// Whether a breakpoint stands in these bytes where the file has none.
pub(crate) fn has_breakpoint(found: &[u8], file: &[u8]) -> bool {
    let [first] = BREAKPOINT;
    found.iter().zip(file).any(|(found, file)| *found == first && *file != first)
}

/// Whether bytes are the file's, but for breakpoints.
pub(crate) fn is_but_for_breakpoints(found: &[u8], file: &[u8]) -> bool {
    let [first] = BREAKPOINT;
    found.iter().zip(file).all(|(found, file)| found == file || *found == first)
}

/// Whether these bytes may be written over with what was read there: a breakpoint among them may have gone meanwhile.
pub(crate) fn may_be_rewritten(bytes: &[u8]) -> bool {
    !bytes.contains(&BREAKPOINT[0])
}

/// Words behind the stack pointer in a signal frame by which it is known.
pub(crate) const FRAME_WORDS: usize = 4;

/// Selector of 64-bit user code.
const CODE_64: u64 = 0x33;
/// The trap flag: a thread that steps itself must not step through our call.
const TRAP_FLAG: u64 = 0x100;
/// What the kernel keeps in rax for calls that it will restart.
const ERESTARTNOINTR: i64 = 513;
/// And for one that it goes on with by `restart_syscall`.
const ERESTART_RESTARTBLOCK: i64 = 516;

/// What tells that a thread is in code of another kind, if it is.
pub(crate) fn foreign_code(regs: &Regs) -> Option<u64> {
    (regs.cs != CODE_64).then_some(regs.cs)
}

/// True if the kernel is about to set rip back to the system call.
pub(crate) fn restarts(regs: &Regs) -> bool {
    (regs.orig_rax as i64) >= 0 && matches!(-(regs.rax as i64), 512 | 513 | 514 | 516)
}

/// Where a stopped thread goes on: the system call itself, if the kernel is about to restart one.
pub(crate) fn goes_on_at(regs: &Regs) -> u64 {
    if restarts(regs) { regs.rip - 2 } else { regs.rip }
}

/// Registers with which a stopped thread goes on there.
pub(crate) fn sent_to(regs: &Regs, pc: u64) -> Regs {
    Regs { rip: if restarts(regs) { pc + 2 } else { pc }, ..*regs }
}

/// What registers say of a call that was interrupted is enough: nobody has to look at threads before they are asked to stop.
pub(crate) const FORGETS_CALLS: bool = false;

/// The registers with which a thread goes on that slept in a call, and whose registers we have set meanwhile.
pub(crate) fn sleeping_on(saved: &Regs, _: Option<SleptIn>) -> Regs {
    *saved
}

/// The registers with which a call begins again that ended with EINTR, if it may.
pub(crate) fn interrupted_call(regs: &Regs, _: Option<SleptIn>) -> Option<Regs> {
    let (call, answer) = (regs.orig_rax as i64, regs.rax as i64);
    let is_it = call >= 0 && answer == -i64::from(Errno::EINTR.0) && call != nr::CLOSE as i64;
    is_it.then(|| made_again(regs))
}

/// The registers with which a thread in a system call makes it once more.
pub(crate) fn made_again(call: &Regs) -> Regs {
    Regs { rip: call.rip - 2, rax: call.orig_rax, orig_rax: u64::MAX, ..*call }
}

/// The registers with which a thread at the entry to a system call does not make it.
pub(crate) fn not_made(call: &Regs) -> Regs {
    Regs { orig_rax: u64::MAX, ..*call }
}

/// The same call from its beginning, if the kernel would go on with it by `restart_syscall`.
pub(crate) fn without_restart_call(regs: &Regs) -> Option<Regs> {
    is_sleeping(regs).then_some(Regs { rax: (-ERESTARTNOINTR) as u64, ..*regs })
}

/// Whether the call of a thread would begin anew, with its time, if we set its registers and died.
pub(crate) fn is_sleeping(regs: &Regs) -> bool {
    (regs.orig_rax as i64) >= 0 && regs.rax as i64 == -ERESTART_RESTARTBLOCK
}

/// Registers of a thread that is about to make a call by the instruction at `syscall`. With a frame it returns to that
/// afterwards: its address is the stack pointer, and the code that takes it the first word there.
pub(crate) fn calling(
    saved: &Regs,
    syscall: u64,
    frame: Option<(u64, u64)>,
    (number, args): (usize, [u64; 6]),
) -> Regs {
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    Regs {
        rip: syscall,
        rsp: frame.map_or(saved.rsp, |(at, _)| at),
        rax: number as u64,
        orig_rax: u64::MAX,
        eflags: saved.eflags & !TRAP_FLAG,
        rdi,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        ..*saved
    }
}

/// What a call has returned.
pub(crate) fn answer(regs: &Regs) -> u64 {
    regs.rax
}

/// Registers of a thread that is about to run code of ours, with these arguments of a C function.
pub(crate) fn entering(saved: &Regs, code: u64, sp: u64, args: [u64; 6]) -> Regs {
    let [rdi, rsi, rdx, rcx, r8, r9] = args;
    Regs { rip: code, rsp: sp, orig_rax: u64::MAX, rdi, rsi, rdx, rcx, r8, r9, ..*saved }
}

/// What that code keeps for us: what the function has returned.
pub(crate) fn returned(regs: &Regs) -> u64 {
    regs.rbx
}

/// The number of the call that a thread is in.
pub(crate) fn call_number(regs: &Regs) -> usize {
    regs.orig_rax as usize
}

/// The first five arguments of that call.
pub(crate) fn arguments(regs: &Regs) -> [u64; 5] {
    [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8]
}

/// Whether it is a system call behind which a thread may sleep until its child has another memory.
pub(crate) fn makes_processes(call: usize) -> bool {
    matches!(call, nr::VFORK | nr::CLONE | nr::CLONE3)
}

/// A register that a trampoline may have saved, by its number in instructions.
pub(crate) fn register(regs: &mut Regs, number: u8) -> Option<&mut u64> {
    Some(match number {
        0 => &mut regs.rax,
        1 => &mut regs.rcx,
        2 => &mut regs.rdx,
        6 => &mut regs.rsi,
        7 => &mut regs.rdi,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        _ => return None,
    })
}

/// Where a thread's number may lie from its pointer: glibc's since 2.4, and musl's.
pub(crate) fn tid_places() -> impl Iterator<Item = u64> {
    [0x2d0, 0x30].into_iter()
}

/// Sets the flags that a trampoline has saved: ah as lahf left it, al the overflow flag.
pub(crate) fn set_flags(regs: &mut Regs, ax: u64) {
    let (low, overflow) = ((ax >> 8) & 0xd5, ax & 1);
    regs.eflags = (regs.eflags & !0x8d5) | low | overflow << 11;
}

/// What a walk of a stack begins with.
pub(crate) fn walked(regs: &Regs) -> Registers {
    Registers::new(regs.rip, regs.rsp)
        .with(Reg::Rbp, regs.rbp)
        .with(Reg::Rbx, regs.rbx)
        .with(Reg::R12, regs.r12)
        .with(Reg::R13, regs.r13)
        .with(Reg::R14, regs.r14)
        .with(Reg::R15, regs.r15)
        .with(Reg::R10, regs.r10)
}

/// A register by its number, for addresses of accesses; 16 and 17 are the bases of fs and gs (table).
pub(crate) fn operand(r: &Regs, number: u8) -> u64 {
    let all = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15, r.fs_base, r.gs_base,
    ];
    all.get(usize::from(number)).copied().unwrap_or(0)
}

/// Whether these words look like a signal frame's registers from the stack pointer on: behind that and the program counter
/// stand the flags, then the selectors of 64-bit user code.
pub(crate) fn is_saved_in_frame(words: &[u64]) -> bool {
    /// Bits that are never set: reserved ones, and those above the processor's identification bit.
    const NO_FLAGS: u64 = !0x3f_7fd7;
    const ALWAYS_SET: u64 = 2;
    let (flags, selectors) = (words[2], words[3]);
    flags & NO_FLAGS == 0 && flags & ALWAYS_SET != 0 && selectors & 0xffff == CODE_64
}

/// Whether this processor has the `rdpid` instruction.
pub(crate) fn has_rdpid() -> bool {
    let leaf = std::arch::x86_64::__cpuid_count(7, 0);
    std::arch::x86_64::__cpuid(0).eax >= 7 && leaf.ecx & (1 << 22) != 0
}

/// How many debug registers of a stopped thread a debugger has set.
pub(crate) fn debugger_registers(tid: i32) -> usize {
    ptrace::debugger_addresses(tid).map_or(0, |all| all.iter().filter(|a| **a != 0).count())
}

/// The registers of a processor.
pub(crate) fn debug_registers(_: i32) -> hwbp::Pools {
    hwbp::Pools::Shared(WATCHES_MAX as u32)
}

/// A watchpoint's trap comes behind the access: the value is in memory, and nothing is broken.
pub(crate) const TRAPS_AHEAD: bool = false;
pub(crate) const WATCHES_MAX: usize = 4;
/// Not asked where traps come behind.
pub(crate) const SAMPLED: u64 = 0;
pub(crate) const SAMPLED_PLACE: u64 = 0;

/// As [`SAMPLED`].
pub(crate) fn is_broken_by_trap(_: &insn::Code<'_>, _: u64) -> bool {
    false
}

/// As [`SAMPLED`].
pub(crate) fn stored(_: &[u8], _: &[u64]) -> Stored {
    Stored::Unknown
}

/// The time stamp counter now.
pub(crate) fn ticks() -> u64 {
    // SAFETY: rdtsc reads a counter and needs nothing; we have not asked Linux to trap it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Offsets in `pt_regs` of what programs read of the registers that a call keeps: r15 to r12, rbp.
pub(crate) const KEPT_WORDS: &[u32] = &[0, 8, 16, 24, 32];
/// Of what is no general register: orig_rax, rip, cs, flags, rsp, ss.
pub(crate) const PLACE_WORDS: &[u32] = &[120, 128, 136, 144, 152, 160];
/// Of what is saved only where someone writes or reads it, with the register's number: r11 down to r8.
pub(crate) const SAVED_ON_WISH: &[(u8, u32)] = &[(11, 48), (10, 56), (9, 64), (8, 72)];
/// A word of those by which gcc may have a function's frame.
pub(crate) const FRAME_OF_SOME: Option<u32> = Some(56);
/// Of the result of a function: rax.
pub(crate) const RESULT_WORD: u32 = 80;
/// The registers that a trampoline can compare with constants, by their words: from r15 up to rdi.
pub(crate) const GUARDED: &[u8] = &[15, 14, 13, 12, 5, 3, 11, 10, 9, 8, 0, 1, 2, 6, 7];

/// The number of a comparison's condition in instructions; that of its opposite is its neighbour.
pub(crate) fn condition(cond: bpf::Cond) -> u8 {
    use bpf::Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
    match cond {
        Lt => 2,
        Ge => 3,
        Eq => 4,
        Ne | Set => 5,
        Le => 6,
        Gt => 7,
        Slt => 12,
        Sge => 13,
        Sle => 14,
        Sgt => 15,
    }
}

/// `AUDIT_ARCH_X86_64`.
pub(crate) const AUDIT_ARCH: u32 = 0xc000_003e;

/// Bytes in front of the code that a process runs for us.
pub(crate) const GUEST_FRONT: usize = 128;
/// Where the call's stub ends: a thread that stops there has the result in rbx.
pub(crate) const GUEST_END: u64 = 15;
/// Where the clock stands.
pub(crate) const GUEST_CLOCK: u64 = 64;

/// What stands there. First `call` of the code; `mov rbx, rax; mov eax, 39; syscall`. Then the clock, by a system call: room for two words;
/// `clock_gettime(1, rsp)`; seconds times 10^9 plus nanoseconds.
pub(crate) fn guest_front() -> [u8; GUEST_FRONT] {
    const ENTRY: [u8; GUEST_END as usize] =
        [0xe8, (GUEST_FRONT - 5) as u8, 0, 0, 0, 0x48, 0x89, 0xc3, 0xb8, 39, 0, 0, 0, 0x0f, 0x05];
    const CLOCK: [u8; 37] = [
        0x48, 0x83, 0xec, 0x18, 0xb8, 228, 0, 0, 0, 0xbf, 1, 0, 0, 0, 0x48, 0x89, 0xe6, 0x0f, 0x05, 0x48,
        0x69, 0x04, 0x24, 0x00, 0xca, 0x9a, 0x3b, 0x48, 0x03, 0x44, 0x24, 0x08, 0x48, 0x83, 0xc4, 0x18, 0xc3,
    ];
    let mut front = [0x90; GUEST_FRONT];
    front[..ENTRY.len()].copy_from_slice(&ENTRY);
    front[GUEST_CLOCK as usize..][..CLOCK.len()].copy_from_slice(&CLOCK);
    front
}
