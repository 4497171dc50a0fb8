//! Restartable sequences on short lists, in x86-64 instructions.
//!
//! For:     `list`.
//! State:   none; the form of a sequence is that of the file above.
//! Context: hit, signal, target. No stack use.
//! Keeps:   X1 and X2 of the file above; a slot beyond a list's length may be written without a commit; no sequence
//!          begins again.
//! Checked: tests of `list`: threads, migration, signals; tests/stepped.rs.

use core::arch::asm;

// A list of one CPU: at DISP the front (8 bytes, 0 for none), a word (length in 16 bits, changes above), then its
// slots of 4 bytes. The bound is at BOUND from `base`, the limit of the length behind it. Labels and outputs do not
// go together yet, so 0 says that nothing was done, which is also where an abort leads (label 7). Where a sequence may change the front or the word, it chooses
// the address and the value, and one instruction stores.

// In: `off` area, `base` first byte of CPU 0.
// Out: `i` = the item, `t` = first byte of the CPU. Clobbered: two scratch registers, flags. What an item that is eight
// slots away names, `near` + 8 times it, is fetched: any address will do for that.
/// # Safety
/// As [`crate::list_pop`].
#[inline(always)]
pub unsafe fn rseq_list_pop<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    off: isize,
    base: *mut u8,
    near: *const u8,
) -> Option<(u32, u32)> {
    let (t, i): (u64, u64);
    // SAFETY: area, bound and every CPU's list are readable and the lists writable (contract of this
    // function); a word's length is at most the number of slots, since `rseq_list_push` keeps it so. What is read
    // eight slots before the first ones is the list's own word, or what lies up to 16 bytes before it, which is
    // readable (contract).
    unsafe {
        asm!(
            begin!(),
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "mov {i:e}, dword ptr [{t} + {disp}]",
            "lea {a}, [{t} + {disp}]",
            "xor {w:e}, {w:e}",
            "test {i:e}, {i:e}",
            "jnz 8f",
            "mov {w}, qword ptr [{t} + {disp} + 8]",
            "add {a}, 8",
            "movzx {i:e}, {w:x}",
            "test {i:e}, {i:e}",
            "jz 4f",
            "mov {p:e}, dword ptr [{t} + {i} * 4 + {disp} - 20]",
            "prefetcht0 [{near} + {p} * 8]",
            "prefetcht0 [{near} + {p} * 8 + 48]",
            "mov {i:e}, dword ptr [{t} + {i} * 4 + {disp} + 12]",
            "add {w}, 0xffff",
            "8:",
            "mov qword ptr [{a}], {w}",
            commit!(),
            "7:",
            "xor {i:e}, {i:e}",
            "jmp 4b",
            ".popsection",
            t = out(reg) t,
            w = out(reg) _,
            a = out(reg) _,
            p = out(reg) _,
            near = in(reg) near,
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
            begin!(),
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "lea {n}, [{t} + {disp}]",
            "mov {w:e}, {item:e}",
            "cmp dword ptr [{t} + {disp}], 0",
            "je 8f",
            "mov {w}, qword ptr [{t} + {disp} + 8]",
            "movzx {n:e}, {w:x}",
            "cmp {n:e}, dword ptr [{base} + {bound} + 4]",
            "jae 7f",
            "mov dword ptr [{t} + {n} * 4 + {disp} + 16], {item:e}",
            "lea {n}, [{t} + {disp} + 8]",
            "add {w}, 0x10001",
            "8:",
            "mov qword ptr [{n}], {w}",
            commit!(),
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

/// Copies `n` numbers by way of `x`, last ones first: singly until four at a time are left, those two and two. `n` is 0 or
/// below afterwards.
macro_rules! copy {
    ($from:literal, $to:literal) => {
        concat!(
            "8:\n",
            "test {n:e}, 3\n",
            "jz 9f\n",
            "sub {n:e}, 1\n",
            "mov {x:e}, dword ptr [{",
            $from,
            "} + {n} * 4]\n",
            "mov dword ptr [{",
            $to,
            "} + {n} * 4], {x:e}\n",
            "jmp 8b\n",
            "92:\n",
            "mov {x}, qword ptr [{",
            $from,
            "} + {n} * 4 + 8]\n",
            "mov qword ptr [{",
            $to,
            "} + {n} * 4 + 8], {x}\n",
            "mov {x}, qword ptr [{",
            $from,
            "} + {n} * 4]\n",
            "mov qword ptr [{",
            $to,
            "} + {n} * 4], {x}\n",
            "9:\n",
            "sub {n:e}, 4\n",
            "jae 92b",
        )
    };
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
            begin!(),
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "mov {w}, qword ptr [{t} + {disp} + 8]",
            "movzx {i:e}, {w:x}",
            "mov {k:e}, dword ptr [{base} + {bound} + 4]",
            "sub {k:e}, {i:e}",
            "jbe 7f",
            "cmp {k:e}, {count:e}",
            "cmova {k:e}, {count:e}",
            "lea {i}, [{t} + {i} * 4 + {disp} + 16]",
            "mov {n:e}, {k:e}",
            copy!("items", "i"),
            "imul {x}, {k}, 0x10001",
            "add {w}, {x}",
            "mov qword ptr [{t} + {disp} + 8], {w}",
            commit!(),
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
            begin!(),
            "mov {t:e}, dword ptr fs:[{off} + 4]",
            "cmp {t:e}, dword ptr [{base} + {bound}]",
            "jae 7f",
            "shl {t}, {shift}",
            "add {t}, {base}",
            "mov {w}, qword ptr [{t} + {disp} + 8]",
            "movzx {i:e}, {w:x}",
            "mov {k:e}, {count:e}",
            "cmp {i:e}, {k:e}",
            "cmovb {k:e}, {i:e}",
            "sub {i:e}, {k:e}",
            "lea {i}, [{t} + {i} * 4 + {disp} + 16]",
            "mov {n:e}, {k:e}",
            copy!("i", "items"),
            "add {w}, 0x10000",
            "sub {w}, {k}",
            "mov qword ptr [{t} + {disp} + 8], {w}",
            commit!(),
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
