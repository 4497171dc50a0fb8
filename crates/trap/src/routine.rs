//! What gates call: saves all registers, asks the consumers, and gives the registers back.
//!
//! For:     `text::Gate`.
//! State:   the frame on the thread's stack; a word of each thread.
//! Context: hit. No lock, no allocation, no system call.
//! Keeps:   R1 what the consumers did not change is as it was: general and vector registers, flags, errno.
//!          R2 a thread that is to go elsewhere, or whose signal waits, leaves by one int3 of ours, whose handler sets all
//!          registers at once: nothing is written below the program's stack pointer.
//!          R3 from the routine's first instruction until the consumers are done, no handler of the program runs on the
//!          thread: a signal waits, as it does in the kernel's uprobes.
//! Orderings: compiler fences alone, between a thread and the handlers that interrupt it.
//! Checked: `tests/jumps.rs`.
//!
//! Vector registers: `xsavec` and `xrstor` of all that there is cost 140 ns, the low halves by themselves 3.3 ns (2026-11,
//! AMD family 26). Code for plain x86-64 uses the low halves alone.

use crate::engine::running;
use crate::handler::{Busy, DEFERRED, DEPTH, Errno, IN_JUMP};
use crate::jump::Jump;
use probe::Regs;
use std::arch::global_asm;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};

/// Which vector registers a jump saves around consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum Vectors {
    /// All that the processor has, whole: for any consumer.
    #[default]
    All,
    /// The low 128 bits of the first sixteen. Consumers, and what they call, must use no others, and no x87: so no
    /// function that chooses its instructions by the processor, as `memcpy` of C libraries does.
    Low,
}

/// What the routine has on the stack.
#[repr(C)]
pub(crate) struct Frame {
    pub regs: Regs,
    flags: u64,
    /// Where in the gate the routine returns to.
    back: u64,
    rdi: u64,
}

/// Flags that arithmetic writes: they go back without `popf`.
const ARITHMETIC: u64 = 0x8d5;
const DIRECTION: u64 = 0x400;
const USER_CODE: u64 = 0x33;
const USER_STACK: u64 = 0x2b;

impl Frame {
    /// Fills in what the routine did not store.
    fn complete(&mut self, jump: &Jump) {
        let above = (&raw const *self) as u64 + size_of::<Frame>() as u64;
        let regs = &mut self.regs;
        (regs.rdi, regs.flags, regs.rip) = (self.rdi, self.flags, jump.at);
        (regs.rsp, regs.orig_rax) = (above + jump.zone, u64::MAX);
        (regs.cs, regs.ss) = (USER_CODE, USER_STACK);
    }

    /// Where in the gate the routine returns to.
    pub fn back(&self) -> u64 {
        self.back
    }

    /// Takes over what a handler of the program did to the registers while the thread was on its way out.
    pub fn set(&mut self, regs: Regs) {
        self.regs = regs;
        self.rdi = regs.rdi;
    }
}

/// Asks the consumers. 1: the thread leaves by int3.
extern "C" fn on_jump(jump: &Jump, frame: &mut Frame) -> u64 {
    let Some(inner) = running() else { return 0 };
    if DEPTH.get() > 0 {
        inner.counters.nested.inc();
        return u64::from(DEFERRED.get() && !IN_JUMP.get());
    }
    IN_JUMP.set(true);
    // From here on signals wait: the handler runs on this thread.
    compiler_fence(SeqCst);
    frame.complete(jump);
    let flags = frame.regs.flags;
    let rsp = frame.regs.rsp;
    {
        let _errno = Errno::save();
        let _busy = Busy::begin();
        inner.on_jump(jump, &mut frame.regs);
    }
    frame.rdi = frame.regs.rdi;
    compiler_fence(SeqCst);
    IN_JUMP.set(false);
    compiler_fence(SeqCst);
    let regs = &frame.regs;
    let is_plain = regs.rip == jump.at
        && regs.rsp == rsp
        && (regs.flags ^ flags) & !ARITHMETIC == 0
        && flags & DIRECTION == 0;
    u64::from(!is_plain || DEFERRED.get())
}

/// One routine: in rdi the jump, at the stack pointer the return address and the program's rdi.
macro_rules! routine {
    ($name:literal, $save:literal, $restore:literal) => {
        concat!(
            ".globl ",
            $name,
            "_begin\n.hidden ",
            $name,
            "_begin\n",
            ".globl ",
            $name,
            "_called\n.hidden ",
            $name,
            "_called\n",
            ".globl ",
            $name,
            "_stack\n.hidden ",
            $name,
            "_stack\n",
            ".globl ",
            $name,
            "_return\n.hidden ",
            $name,
            "_return\n",
            ".globl ",
            $name,
            "_leave\n.hidden ",
            $name,
            "_leave\n",
            ".p2align 6\n",
            $name,
            "_begin:\n",
            "pushfq\n",
            "lea rsp, [rsp - 168]\n",
            "mov [rsp], r15\nmov [rsp + 8], r14\nmov [rsp + 16], r13\nmov [rsp + 24], r12\n",
            "mov [rsp + 32], rbp\nmov [rsp + 40], rbx\nmov [rsp + 48], r11\nmov [rsp + 56], r10\n",
            "mov [rsp + 64], r9\nmov [rsp + 72], r8\nmov [rsp + 80], rax\nmov [rsp + 88], rcx\n",
            "mov [rsp + 96], rdx\nmov [rsp + 104], rsi\n",
            "mov rbp, rsp\n",
            "mov rsi, rsp\n",
            "cld\n",
            $save,
            "call {on_jump}\n",
            $name,
            "_called:\n",
            "mov ebx, eax\n",
            $restore,
            "mov rsp, rbp\n",
            $name,
            "_stack:\n",
            "test ebx, ebx\n",
            "jnz ",
            $name,
            "_leave\n",
            "mov rax, [rsp + 144]\n",
            "mov ecx, eax\n",
            "shr ecx, 11\n",
            "and ecx, 1\n",
            "add cl, 127\n", // the overflow flag
            "mov ah, al\n",
            "sahf\n", // the others
            "mov r15, [rsp]\nmov r14, [rsp + 8]\nmov r13, [rsp + 16]\nmov r12, [rsp + 24]\n",
            "mov rbp, [rsp + 32]\nmov rbx, [rsp + 40]\nmov r11, [rsp + 48]\nmov r10, [rsp + 56]\n",
            "mov r9, [rsp + 64]\nmov r8, [rsp + 72]\nmov rax, [rsp + 80]\nmov rcx, [rsp + 88]\n",
            "mov rdx, [rsp + 96]\nmov rsi, [rsp + 104]\n",
            "lea rsp, [rsp + 176]\n",
            $name,
            "_return:\n",
            "ret\n",
            $name,
            "_leave:\n",
            "int3\n",
            "ud2\n",
        )
    };
}

global_asm!(
    routine!(
        "nanoprobe_trap_all",
        // The header's words behind the first two have to be 0.
        "and rsp, -64\nsub rsp, [rip + {size}]\nxor eax, eax\n\
         mov [rsp + 528], rax\nmov [rsp + 536], rax\nmov [rsp + 544], rax\n\
         mov [rsp + 552], rax\nmov [rsp + 560], rax\nmov [rsp + 568], rax\n\
         mov eax, [rip + {mask}]\nxor edx, edx\nxsavec [rsp]\n",
        "mov eax, [rip + {mask}]\nxor edx, edx\nxrstor [rsp]\n"
    ),
    routine!(
        "nanoprobe_trap_low",
        "and rsp, -16\nlea rsp, [rsp - 272]\nstmxcsr [rsp + 256]\n\
         movaps [rsp], xmm0\nmovaps [rsp + 16], xmm1\nmovaps [rsp + 32], xmm2\nmovaps [rsp + 48], xmm3\n\
         movaps [rsp + 64], xmm4\nmovaps [rsp + 80], xmm5\nmovaps [rsp + 96], xmm6\nmovaps [rsp + 112], xmm7\n\
         movaps [rsp + 128], xmm8\nmovaps [rsp + 144], xmm9\nmovaps [rsp + 160], xmm10\nmovaps [rsp + 176], xmm11\n\
         movaps [rsp + 192], xmm12\nmovaps [rsp + 208], xmm13\nmovaps [rsp + 224], xmm14\nmovaps [rsp + 240], xmm15\n",
        "stmxcsr [rsp + 260]\nmov eax, [rsp + 260]\ncmp eax, [rsp + 256]\nje 3f\nldmxcsr [rsp + 256]\n3:\n\
         movaps xmm0, [rsp]\nmovaps xmm1, [rsp + 16]\nmovaps xmm2, [rsp + 32]\nmovaps xmm3, [rsp + 48]\n\
         movaps xmm4, [rsp + 64]\nmovaps xmm5, [rsp + 80]\nmovaps xmm6, [rsp + 96]\nmovaps xmm7, [rsp + 112]\n\
         movaps xmm8, [rsp + 128]\nmovaps xmm9, [rsp + 144]\nmovaps xmm10, [rsp + 160]\nmovaps xmm11, [rsp + 176]\n\
         movaps xmm12, [rsp + 192]\nmovaps xmm13, [rsp + 208]\nmovaps xmm14, [rsp + 224]\nmovaps xmm15, [rsp + 240]\n"
    ),
    on_jump = sym on_jump,
    size = sym STATE_BYTES,
    mask = sym STATE_PARTS,
);

/// Bytes that the state takes, and which parts of it are saved: set once, before the first gate.
static STATE_BYTES: AtomicU64 = AtomicU64::new(0);
static STATE_PARTS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn nanoprobe_trap_all_begin();
    fn nanoprobe_trap_all_called();
    fn nanoprobe_trap_all_stack();
    fn nanoprobe_trap_all_return();
    fn nanoprobe_trap_all_leave();
    fn nanoprobe_trap_low_begin();
    fn nanoprobe_trap_low_called();
    fn nanoprobe_trap_low_stack();
    fn nanoprobe_trap_low_return();
    fn nanoprobe_trap_low_leave();
}

/// Addresses in one routine.
struct Labels {
    begin: u64,
    called: u64,
    stack: u64,
    returns: u64,
    leave: u64,
}

fn labels(vectors: Vectors) -> Labels {
    let at = |function: unsafe extern "C" fn()| function as *const () as u64;
    match vectors {
        Vectors::All => Labels {
            begin: at(nanoprobe_trap_all_begin),
            called: at(nanoprobe_trap_all_called),
            stack: at(nanoprobe_trap_all_stack),
            returns: at(nanoprobe_trap_all_return),
            leave: at(nanoprobe_trap_all_leave),
        },
        Vectors::Low => Labels {
            begin: at(nanoprobe_trap_low_begin),
            called: at(nanoprobe_trap_low_called),
            stack: at(nanoprobe_trap_low_stack),
            returns: at(nanoprobe_trap_low_return),
            leave: at(nanoprobe_trap_low_leave),
        },
    }
}

/// Where in a routine a thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Before the consumers are asked, or while they are.
    Entering,
    /// On its way out, with the frame at this address.
    Leaving(u64),
    /// At the return: all registers but rdi and rsp are the program's.
    Returning,
    /// Behind the int3: the frame is at the stack pointer.
    Left,
}

/// Where the thread is that has these registers, if it is in a routine.
pub(crate) fn standing(rip: u64, rsp: u64, rbp: u64) -> Option<Standing> {
    [Vectors::All, Vectors::Low].into_iter().find_map(|vectors| {
        let Labels { begin, called, stack, returns, leave } = labels(vectors);
        let is_in = |range: Range<u64>| range.contains(&rip);
        match () {
            () if is_in(begin..called) => Some(Standing::Entering),
            () if is_in(called..stack) => Some(Standing::Leaving(rbp)),
            () if is_in(stack..returns) || rip == leave => Some(Standing::Leaving(rsp)),
            () if rip == returns => Some(Standing::Returning),
            () if rip == leave + 1 => Some(Standing::Left),
            () => None,
        }
    })
}

/// The routine's address; `None` if the processor cannot save its vector registers in the way that is needed.
pub(crate) fn address(vectors: Vectors) -> Option<u64> {
    // Code of ours that is compiled for more than plain x86-64 uses more than the low halves.
    let vectors = if cfg!(target_feature = "avx") { Vectors::All } else { vectors };
    if vectors == Vectors::All && !set_up() {
        return None;
    }
    Some(labels(vectors).begin)
}

/// x87, SSE, AVX, and the three parts of AVX-512: what a function may change.
const PARTS: u64 = 0b1110_0111;

/// Finds out what is to be saved. False: not here.
fn set_up() -> bool {
    if !std::arch::is_x86_feature_detected!("xsavec") {
        return false;
    }
    // SAFETY: `xsavec` says that there is XSAVE, and the system turned it on.
    let parts = PARTS & unsafe { std::arch::x86_64::_xgetbv(0) };
    let leaf = |part| std::arch::x86_64::__cpuid_count(0xd, part);
    let ends = (2..8).filter(|part| parts & 1 << part != 0).map(|part| {
        let found = leaf(part);
        u64::from(found.ebx) + u64::from(found.eax)
    });
    // The legacy area and the header; compacted, parts lie no further apart than in the standard form, but for padding.
    let bytes = ends.max().unwrap_or(0).max(576).next_multiple_of(64) + 64 * 6;
    // A gate is published after this; whoever else is here stores the same.
    STATE_BYTES.store(bytes, Relaxed);
    STATE_PARTS.store(parts, Relaxed);
    true
}
