//! Restartable sequences, CPU number and full fence in x86-64 instructions.
//!
//! For:     `rseq`, `cpu` and `fence`.
//! State:   the CPU number's instruction, chosen once.
//! Context: hit, signal, target, control. No stack use, so the red zone stays whole.
//! Keeps:   X1 a sequence has one committing instruction, its last one.
//!          X2 a sequence that did not commit has changed nothing that counts but `rseq_cs`.
//!          X3 descriptors lie in data with relative relocations, so a static-pie blob can load them.
//! Checked: `two_threads_and_a_migrator_lose_no_add`, tests of `list`, `percpuinc` in `bench refscale`.
//! Source:  linux/rseq.h (layout of the area), glibc 2.35 manual (`__rseq_offset`, `__rseq_size`).
//!
//! The area of a thread, from `fs:[offset]`: +0 cpu_id_start, +4 cpu_id (negative: not registered),
//! +8 rseq_cs. Each sequence is: point `rseq_cs` at the descriptor, *start*, read cpu_id, check it,
//! commit, *end*. The abort handler lies out of line behind the signature: the sequence gives up.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Every sequence's descriptor and its start: up to `commit!` the kernel sends the thread to the abort handler. Uses `{t}` and `{off}`.
macro_rules! begin {
    () => {
        concat!(
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits\n",
            ".balign 32\n",
            "2:\n",
            ".long 0, 0\n",
            ".quad 3f, 4f - 3f, 5f\n",
            ".popsection\n",
            $crate::step_name!("{t}", "2b", "{off}"),
            "3:",
        )
    };
}

/// Every sequence's end, behind the instruction that commits, and the head of its abort handler, which the caller
/// goes on with and closes by `.popsection`.
macro_rules! commit {
    () => {
        concat!(
            "4:\n",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "5:",
        )
    };
}

mod list;
mod table;

pub use list::*;
pub use table::*;

// In: `off` area, `base` + DISP the cell of CPU 0.
// Out: nothing. Clobbered: one scratch register, flags. Leaves through `slow` without a write, also where the kernel has
// interrupted it: a thread that is single-stepped is interrupted in every try.
/// # Safety
/// As [`crate::try_inc`].
#[inline(always)]
pub unsafe fn rseq_inc<const SHIFT: u32, const DISP: usize>(off: isize, base: *mut u64) -> bool {
    // SAFETY: the area is readable and every CPU's cell writable (contract of this function). A
    // negative number leaves; the kernel ends the sequence if the CPU changes before the commit.
    unsafe {
        asm!(
            begin!(),
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "test {t:e}, {t:e}",
            "js {slow}",
            "shl {t:e}, {shift}",
            crate::step_inc!("{base} + {t}", "{disp}"),
            commit!(),
            "jmp {slow}",
            ".popsection",
            t = out(reg) _,
            off = in(reg) off,
            base = in(reg) base,
            shift = const SHIFT,
            disp = const DISP,
            slow = label { return false },
            options(nostack),
        );
    }
    true
}

// In: `off` area, `base` the cell of CPU 0, `copies` their number, `n` what to add.
/// # Safety
/// As [`crate::try_add`].
#[inline(always)]
pub unsafe fn rseq_add<const SHIFT: u32>(off: isize, base: *mut u64, copies: u32, n: u64) -> bool {
    // SAFETY: as in `rseq_inc`, with the limit in a register.
    unsafe {
        asm!(
            begin!(),
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, {copies:e}",
            "jae {slow}",
            "shl {t:e}, {shift}",
            "add qword ptr [{base} + {t}], {n}",
            commit!(),
            "jmp {slow}",
            ".popsection",
            t = out(reg) _,
            off = in(reg) off,
            base = in(reg) base,
            copies = in(reg) copies,
            n = in(reg) n,
            shift = const SHIFT,
            slow = label { return false },
            options(nostack),
        );
    }
    true
}

// In: `off` area, `cpu` expected, `cell`, `expect`, `new`. Not restarted: an abort is a refusal,
// because the caller chose `cell` by `cpu` and must choose again.
/// # Safety
/// As [`crate::store_if`].
#[inline(always)]
pub unsafe fn rseq_store_if(off: isize, cpu: u32, cell: *mut u64, expect: u64, new: u64) -> bool {
    // SAFETY: the area is readable and `cell` writable (contract of this function). Only the last
    // instruction writes to it.
    unsafe {
        asm!(
            begin!(),
            "cmp {cpu:e}, dword ptr fs:[{off} + 4]",
            "jne {refused}",
            "cmp {expect}, qword ptr [{cell}]",
            "jne {refused}",
            "mov qword ptr [{cell}], {new}",
            commit!(),
            "jmp {refused}",
            ".popsection",
            t = out(reg) _,
            off = in(reg) off,
            cpu = in(reg) cpu,
            cell = in(reg) cell,
            expect = in(reg) expect,
            new = in(reg) new,
            refused = label { return false },
            options(nostack),
        );
    }
    true
}

// In: `off` area, `cpu` expected, `cell`, `n`. Not restarted: the caller chose `cell` by `cpu`.
/// # Safety
/// As [`crate::add_if`].
#[inline(always)]
pub unsafe fn rseq_add_if(off: isize, cpu: u32, cell: *mut u64, n: u64) -> bool {
    // SAFETY: the area is readable and `cell` writable (contract of this function). Only the last
    // instruction writes to it.
    unsafe {
        asm!(
            begin!(),
            "cmp {cpu:e}, dword ptr fs:[{off} + 4]",
            "jne {refused}",
            "add qword ptr [{cell}], {n}",
            commit!(),
            "jmp {refused}",
            ".popsection",
            t = out(reg) _,
            off = in(reg) off,
            cpu = in(reg) cpu,
            cell = in(reg) cell,
            n = in(reg) n,
            refused = label { return false },
            options(nostack),
        );
    }
    true
}

/// # Safety
/// As [`crate::own_cpu`].
#[inline(always)]
pub unsafe fn rseq_cpu(off: isize) -> u32 {
    let cpu: u32;
    // SAFETY: the area is readable (contract of this function).
    unsafe {
        asm!(
            "mov {cpu:e}, dword ptr fs:[{off} + 4]",
            cpu = out(reg) cpu,
            off = in(reg) off,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu
}

const UNKNOWN: u8 = 0;
const RDPID: u8 = 1;
const RDTSCP: u8 = 2;
const GETCPU: u8 = 3;
static HOW: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The CPU that the thread was on a moment ago, without libc: `rdpid`, else `rdtscp`, else getcpu(2).
pub fn cpu() -> u32 {
    let aux: u32;
    match HOW.load(Relaxed) {
        // SAFETY: `choose_cpu_source` saw the instruction in CPUID; it writes the named register.
        RDPID => unsafe {
            let wide: u64;
            asm!("rdpid {0}", out(reg) wide, options(nomem, nostack, preserves_flags));
            aux = wide as u32;
        },
        // SAFETY: `choose_cpu_source` saw the instruction in CPUID; all its outputs are declared.
        RDTSCP => unsafe {
            asm!("rdtscp", out("eax") _, out("edx") _, out("ecx") aux,
                options(nomem, nostack, preserves_flags));
        },
        GETCPU => return sys::getcpu().unwrap_or(0),
        _ => {
            choose_cpu_source();
            return cpu();
        }
    }
    // Linux keeps (node << 12 | cpu) in TSC_AUX.
    aux & 0xfff
}

#[cold]
fn choose_cpu_source() {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let how = if __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 22) != 0 {
        RDPID
    } else if __cpuid(0x8000_0000).eax >= 0x8000_0001 && __cpuid(0x8000_0001).edx & (1 << 27) != 0 {
        RDTSCP
    } else {
        GETCPU
    };
    HOW.store(how, Relaxed);
}

/// Orders every load and store before it against every one after it.
///
/// A locked no-op on the stack: 5 ns where `mfence`, which Rust's `fence(SeqCst)` becomes, takes 21.
#[inline(always)]
pub fn full_fence() {
    // SAFETY: the operand is the thread's own stack below the red zone's top, and `or` with zero
    // leaves it as it is. Flags are not promised to be preserved.
    unsafe { asm!("lock or dword ptr [rsp - 8], 0") };
}

/// # Safety
/// As [`crate::inc_own`].
#[inline(always)]
pub unsafe fn inc_own<const DISP: usize>(base: *mut u64, offset: usize) {
    // SAFETY: writable and aligned (contract of this function).
    unsafe {
        asm!(
            "inc qword ptr [{base} + {offset} + {disp}]",
            base = in(reg) base,
            offset = in(reg) offset,
            disp = const DISP,
            options(nostack),
        );
    }
}

/// Stores of one CPU are seen in their order, so no fence is needed.
/// # Safety
/// As [`crate::exchange_own`].
#[inline(always)]
pub unsafe fn exchange_own(word: *mut u32, old: u32, new: u32) -> bool {
    let is_done: u8;
    // SAFETY: readable and writable (contract of this function).
    unsafe {
        asm!(
            "cmpxchg dword ptr [{word}], {new:e}",
            "sete {is_done}",
            word = in(reg) word,
            new = in(reg) new,
            is_done = lateout(reg_byte) is_done,
            inout("eax") old => _,
            options(nostack),
        );
    }
    is_done != 0
}

/// Offset and size of the rseq area if this process has a libc that registers one.
#[cfg(feature = "std")]
pub fn libc_rseq() -> Option<(isize, u32)> {
    let offset: *const isize;
    let size: *const u32;
    // SAFETY: both instructions read a slot of the global offset table, which the dynamic linker
    // fills with the symbol's address, or zero where no object defines the (weak) symbol.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "mov {o}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {s}, qword ptr [rip + __rseq_size@GOTPCREL]",
            o = out(reg) offset,
            s = out(reg) size,
            options(nostack, preserves_flags),
        );
    }
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: libc defines the symbol (checked above) as a constant ptrdiff_t.
    let offset = unsafe { *offset };
    // SAFETY: as above, an unsigned int.
    let size = unsafe { *size };
    Some((offset, size))
}
