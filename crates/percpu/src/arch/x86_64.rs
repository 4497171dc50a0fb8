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
//! commit, *end*. The abort handler lies out of line behind the signature and starts again.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

// In: `off` area, `base` + DISP the cell of CPU 0.
// Out: nothing. Clobbered: one scratch register, flags. Leaves through `slow` without a write.
/// # Safety
/// As [`crate::try_inc`].
#[inline(always)]
pub unsafe fn rseq_inc<const SHIFT: u32, const DISP: usize>(off: isize, base: *mut u64) -> bool {
    // SAFETY: the area is readable and every CPU's cell writable (contract of this function). A
    // negative number leaves; the kernel restarts the sequence if the CPU changes before the commit.
    unsafe {
        asm!(
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "6:",
            "lea {t}, [rip + 2b]",
            "mov qword ptr fs:[{off} + 8], {t}",
            "3:",
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "test {t:e}, {t:e}",
            "js {slow}",
            "shl {t:e}, {shift}",
            "inc qword ptr [{base} + {t} + {disp}]",
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 6b",
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
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "6:",
            "lea {t}, [rip + 2b]",
            "mov qword ptr fs:[{off} + 8], {t}",
            "3:",
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, {copies:e}",
            "jae {slow}",
            "shl {t:e}, {shift}",
            "add qword ptr [{base} + {t}], {n}",
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 6b",
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
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "lea {t}, [rip + 2b]",
            "mov qword ptr fs:[{off} + 8], {t}",
            "3:",
            "cmp {cpu:e}, dword ptr fs:[{off} + 4]",
            "jne {refused}",
            "cmp {expect}, qword ptr [{cell}]",
            "jne {refused}",
            "mov qword ptr [{cell}], {new}",
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
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

// A list of one CPU: at DISP a word (length in 16 bits, changes above), then its slots of 4 bytes. The bound
// is at BOUND from `base`, the limit of the length behind it. Labels and outputs do not go together yet, so 0 says that nothing was done.

// In: `off` area, `base` first byte of CPU 0.
// Out: `i` = the item, `t` = first byte of the CPU. Clobbered: one scratch register, flags.
/// # Safety
/// As [`crate::list_pop`].
#[inline(always)]
pub unsafe fn rseq_list_pop<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    off: isize,
    base: *mut u8,
) -> Option<(u32, u32)> {
    let (t, i): (u64, u64);
    // SAFETY: area, bound and every CPU's list are readable and the lists writable (contract of this
    // function); a word's length is at most the number of slots, since `rseq_list_push` keeps it so.
    unsafe {
        asm!(
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "6:",
            "lea {t}, [rip + 2b]",
            "mov qword ptr fs:[{off} + 8], {t}",
            "3:",
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "mov {w}, qword ptr [{t} + {disp}]",
            "movzx {i:e}, {w:x}",
            "test {i:e}, {i:e}",
            "jz 4f",
            "mov {i:e}, dword ptr [{t} + {i} * 4 + {disp} + 4]",
            "add {w}, 0xffff",
            "mov qword ptr [{t} + {disp}], {w}",
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 6b",
            "7:",
            "xor {i:e}, {i:e}",
            "jmp 4b",
            ".popsection",
            t = out(reg) t,
            w = out(reg) _,
            i = out(reg) i,
            off = in(reg) off,
            base = in(reg) base,
            shift = const SHIFT,
            disp = const DISP,
            bound = const BOUND,
            options(nostack),
        );
    }
    (i != 0).then_some((i as u32, (t.wrapping_sub(base as u64) >> SHIFT) as u32))
}

// In: `off` area, `base` first byte of CPU 0, `item` not 0.
// Out: `w` = the new word. Clobbered: two scratch registers, flags. A slot beyond the length may be written
// without a commit: nobody reads those.
/// # Safety
/// As [`crate::list_push`].
#[inline(always)]
pub unsafe fn rseq_list_push<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    off: isize,
    base: *mut u8,
    item: u32,
) -> bool {
    let w: u64;
    // SAFETY: as above; the slots below the limit exist (contract of this function).
    unsafe {
        asm!(
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "6:",
            "lea {t}, [rip + 2b]",
            "mov qword ptr fs:[{off} + 8], {t}",
            "3:",
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "mov {w}, qword ptr [{t} + {disp}]",
            "movzx {n:e}, {w:x}",
            "cmp {n:e}, dword ptr [{base} + {bound} + 4]",
            "jae 7f",
            "mov dword ptr [{t} + {n} * 4 + {disp} + 8], {item:e}",
            "add {w}, 0x10001",
            "mov qword ptr [{t} + {disp}], {w}",
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 6b",
            "7:",
            "xor {w:e}, {w:e}",
            "jmp 4b",
            ".popsection",
            t = out(reg) _,
            w = out(reg) w,
            n = out(reg) _,
            off = in(reg) off,
            base = in(reg) base,
            item = in(reg) item,
            shift = const SHIFT,
            disp = const DISP,
            bound = const BOUND,
            options(nostack),
        );
    }
    w != 0
}

// In: `off` area, `base` first byte of CPU 0, `count` numbers at `items`.
// Out: `k` = how many were put. Clobbered: four scratch registers, flags. Slots beyond the length may be
// written without a commit, as in `rseq_list_push`.
/// # Safety
/// As [`crate::list_push_all`].
pub unsafe fn rseq_list_push_all<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    off: isize,
    base: *mut u8,
    items: *const u32,
    count: u32,
) -> u32 {
    let k: u64;
    // SAFETY: as in `rseq_list_push`; `items` is readable for `count` numbers (contract of this function).
    unsafe {
        asm!(
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "6:",
            "lea {t}, [rip + 2b]",
            "mov qword ptr fs:[{off} + 8], {t}",
            "3:",
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "mov {w}, qword ptr [{t} + {disp}]",
            "movzx {i:e}, {w:x}",
            "mov {k:e}, dword ptr [{base} + {bound} + 4]",
            "sub {k:e}, {i:e}",
            "jbe 7f",
            "cmp {k:e}, {count:e}",
            "cmova {k:e}, {count:e}",
            "lea {i}, [{t} + {i} * 4 + {disp} + 8]",
            "mov {n:e}, {k:e}",
            "8:",
            "sub {n:e}, 1",
            "jb 9f",
            "mov {x:e}, dword ptr [{items} + {n} * 4]",
            "mov dword ptr [{i} + {n} * 4], {x:e}",
            "jmp 8b",
            "9:",
            "imul {x}, {k}, 0x10001",
            "add {w}, {x}",
            "mov qword ptr [{t} + {disp}], {w}",
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 6b",
            "7:",
            "xor {k:e}, {k:e}",
            "jmp 4b",
            ".popsection",
            t = out(reg) _,
            w = out(reg) _,
            i = out(reg) _,
            k = out(reg) k,
            x = out(reg) _,
            n = out(reg) _,
            off = in(reg) off,
            base = in(reg) base,
            items = in(reg) items,
            count = in(reg) count,
            shift = const SHIFT,
            disp = const DISP,
            bound = const BOUND,
            options(nostack),
        );
    }
    k as u32
}

// In: `off` area, `base` first byte of CPU 0, room for `count` numbers at `items`.
// Out: `k` = how many were taken. Clobbered: four scratch registers, flags. The room may be written without
// a commit: it is the caller's.
/// # Safety
/// As [`crate::list_pop_all`].
pub unsafe fn rseq_list_pop_all<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    off: isize,
    base: *mut u8,
    items: *mut u32,
    count: u32,
) -> u32 {
    let k: u64;
    // SAFETY: as in `rseq_list_pop`; `items` is writable for `count` numbers (contract of this function).
    unsafe {
        asm!(
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "6:",
            "lea {t}, [rip + 2b]",
            "mov qword ptr fs:[{off} + 8], {t}",
            "3:",
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "mov {w}, qword ptr [{t} + {disp}]",
            "movzx {i:e}, {w:x}",
            "mov {k:e}, {count:e}",
            "cmp {i:e}, {k:e}",
            "cmovb {k:e}, {i:e}",
            "sub {i:e}, {k:e}",
            "lea {i}, [{t} + {i} * 4 + {disp} + 8]",
            "mov {n:e}, {k:e}",
            "8:",
            "sub {n:e}, 1",
            "jb 9f",
            "mov {x:e}, dword ptr [{i} + {n} * 4]",
            "mov dword ptr [{items} + {n} * 4], {x:e}",
            "jmp 8b",
            "9:",
            "add {w}, 0x10000",
            "sub {w}, {k}",
            "mov qword ptr [{t} + {disp}], {w}",
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 6b",
            "7:",
            "xor {k:e}, {k:e}",
            "jmp 4b",
            ".popsection",
            t = out(reg) _,
            w = out(reg) _,
            i = out(reg) _,
            k = out(reg) k,
            x = out(reg) _,
            n = out(reg) _,
            off = in(reg) off,
            base = in(reg) base,
            items = in(reg) items,
            count = in(reg) count,
            shift = const SHIFT,
            disp = const DISP,
            bound = const BOUND,
            options(nostack),
        );
    }
    k as u32
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
