//! What is common to the threads of a process: how a thread finds its own block.
//!
//! For:     trampolines, which touch a thread's rseq area only where its block is sure to be one.
//! State:   none.
//! Context: control.
//! Keeps:   T1 the offset that is returned holds for the thread that was looked at; a thread of which it does not hold
//!          counts by locked adds.
//!          T2 where a module makes threads or thread pointers by itself, nobody's thread pointer is followed.
//! Checked: tests below; testkit `exact`.
//!
//! A thread that was made by clone(2) itself may have the thread pointer 0, of which not even the check can read, or its
//! parent's, which passes every check. So the code is looked at: of a program that has such system calls, or imports
//! libc's functions for them, or passes their numbers as constants to `syscall(2)`, all hits make locked adds. A number
//! that is computed is not found.

use crate::find::memory::Memory;
use image::Mapping;
use memchr::{memchr_iter, memmem};
use std::path::Path;
use std::sync::OnceLock;
use sys::nr;

/// Where the block at `fs_base` holds its own address once more than at its start: in glibc's header.
pub(crate) fn self_offset(memory: &Memory, fs_base: u64) -> Option<i32> {
    if cfg!(target_arch = "aarch64") {
        // A block begins with the address of glibc's table of modules; it has no address of its own.
        let is_block = fs_base != 0 && memory.word(fs_base).is_some_and(|table| table != 0);
        return is_block.then_some(0);
    }
    const GLIBC: i32 = 0x10;
    let word = |offset: i32| memory.word(fs_base.wrapping_add_signed(i64::from(offset)));
    // The trampolines' check; the second word is glibc's table of modules.
    let is_block = [0, GLIBC].into_iter().all(|at| word(at) == Some(fs_base)) && word(8) != Some(fs_base);
    is_block.then_some(GLIBC)
}

/// Whether programs may read the thread pointer by `rdfsbase`: Linux says so since 5.9.
pub(crate) fn has_fsgsbase() -> bool {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 1 << 1;
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let auxv = std::fs::read("/proc/self/auxv").unwrap_or_default();
        let words: Vec<u64> = auxv.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        words.as_chunks::<2>().0.iter().any(|[key, value]| *key == AT_HWCAP2 && value & FSGSBASE != 0)
    })
}

/// Whether a module of the process other than its libc makes threads, or sets thread pointers, by itself.
pub(crate) fn are_made_by_hand(memory: &Memory, mappings: &[Mapping]) -> bool {
    mappings.iter().filter(|m| m.file.is_some() && !is_libc(&m.path)).any(|m| {
        let is_code = m.permissions.is_executable;
        // Where a file's names for the dynamic linker are.
        let is_head = m.offset.0 == 0 && m.permissions.is_readable && !is_code;
        let len = (m.range.end.0 - m.range.start.0) as usize;
        let has = |find: fn(&[u8]) -> bool, most| {
            reads(memory, m.range.start.0, len.min(most)).any(|part| find(&part))
        };
        is_code && has(is_making_threads, len) || is_head && has(names_calls, NAMES_MOST)
    })
}

/// Of a file's head; names lie before its code.
const NAMES_MOST: usize = 16 << 20;

/// The memory in parts that overlap.
fn reads(memory: &Memory, at: u64, len: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    const PART: usize = 1 << 20;
    (0..len).step_by(PART).filter_map(move |from| {
        let until = (from + PART + BEFORE).min(len);
        memory.read_vec(at + from as u64, until - from).ok()
    })
}

/// By its name.
pub(crate) fn is_libc(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ["libc.so", "libc-2", "ld-linux", "ld-2", "ld-musl", "libc.musl", "libpthread"]
        .iter()
        .any(|n| name.starts_with(n))
}

fn is_making_threads(code: &[u8]) -> bool {
    if cfg!(target_arch = "aarch64") {
        a64_makes_threads(code)
    } else {
        makes_calls(code) || passes_calls(code)
    }
}

/// Whether A64 code sets the thread pointer, or has one of the calls shortly behind a load of its number, or passes such a
/// number to a function.
fn a64_makes_threads(code: &[u8]) -> bool {
    /// Their numbers there; the second has the same everywhere.
    const CLONES: [u32; 2] = [220, CLONE3];
    /// Words between the load of a number and the call.
    const NEAR: usize = 12;
    let words: Vec<u32> = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let sets_pointer = |word: &u32| word & 0xffff_ffe0 == 0xd51b_d040; // msr tpidr_el0, x
    // movz of a number, 32 or 64 bits, into this register
    let loads = |word: u32, register: u32| {
        word & 0x7fe0_001f == 0x5280_0000 | register && CLONES.contains(&(word >> 5 & 0xffff))
    };
    let is_making = |i: usize| {
        let near = &words[i + 1..words.len().min(i + 1 + NEAR)];
        let is_svc = near.contains(&0xd400_0001);
        let is_call = near.iter().any(|word| word >> 26 == 0x25); // bl
        loads(words[i], 8) && is_svc || loads(words[i], 0) && is_call
    };
    words.iter().any(sets_pointer) || (0..words.len()).any(is_making)
}

/// How far before a system call its number may be loaded.
const BEFORE: usize = 48;
const CALLS: [u32; 3] = [nr::CLONE as u32, CLONE3, ARCH_PRCTL];
const CLONE3: u32 = 435;
const ARCH_PRCTL: u32 = 158;

/// Whether there is a `syscall` shortly behind a load of one of the numbers.
fn makes_calls(code: &[u8]) -> bool {
    memmem::find_iter(code, &[0x0f, 0x05]).any(|at| {
        let before = &code[at.saturating_sub(BEFORE)..at];
        // mov eax, number; mov rax, number
        // The last one counts: one function may have several calls.
        let load = before.windows(5).rev().find(|w| matches!(w[0], 0xb8 | 0xc0));
        let number = load.map(|w| u32::from_le_bytes([w[1], w[2], w[3], w[4]]));
        number.is_some_and(|number| CALLS.contains(&number))
    })
}

/// Whether there is a call shortly behind loads of one of the numbers as its first argument and, where the call does more
/// than to make threads with a thread pointer of their own, of what says so as its second.
fn passes_calls(code: &[u8]) -> bool {
    const SETTLS: u32 = 0x8_0000;
    const SET_FS: u32 = 0x1002;
    // mov edi, number; mov esi, number
    const FIRST: u8 = 0xbf;
    const SECOND: u8 = 0xbe;
    let word = |w: &[u8]| u32::from_le_bytes([w[1], w[2], w[3], w[4]]);
    let loads = memchr_iter(FIRST, code).filter_map(|at| Some((at, word(code.get(at..at + 5)?))));
    loads.filter(|(_, number)| CALLS.contains(number)).any(|(at, number)| {
        // Before it or behind it: no two instructions share a byte.
        let (before, behind) =
            (&code[at.saturating_sub(BEFORE)..at], &code[at + 5..(at + BEFORE).min(code.len())]);
        let is_second = |w: &[u8], is: fn(u32) -> bool| w[0] == SECOND && is(word(w));
        let passes = |is| before.windows(5).chain(behind.windows(5)).any(|w| is_second(w, is));
        let is_called = code[at..].iter().take(BEFORE).any(|byte| matches!(byte, 0xe8 | 0xff));
        is_called
            && match number {
                ARCH_PRCTL => passes(|flags| flags == SET_FS),
                CLONE3 => true,
                _ => passes(|flags| flags & SETTLS != 0 && flags >> 28 == 0),
            }
    })
}

/// Whether one of the names stands there, between NULs. They are looked for without: what looks for them has them among its own constants.
fn names_calls(names: &[u8]) -> bool {
    let stands = |name: &[u8], at: usize| {
        let before = names[..at].strip_suffix(b"__").filter(|_| name == b"clone");
        let ends = names.get(at + name.len()) == Some(&0);
        ends && (names[..at].ends_with(&[0]) || before.is_some_and(|before| before.ends_with(&[0])))
    };
    [b"clone".as_slice(), b"arch_prctl"]
        .iter()
        .any(|name| memmem::find_iter(names, name).any(|at| stands(name, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a64_code_that_makes_threads_is_found() {
        let of = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            a64_makes_threads(&code)
        };
        // mov x8, #220; svc #0
        assert!(of(&[0xd280_1b88, 0xd400_0001]));
        // mov w8, #435; nop; svc #0
        assert!(of(&[0x5280_3668, 0xd503_201f, 0xd400_0001]));
        // mov x0, #220; bl: syscall(SYS_clone, ...)
        assert!(of(&[0xd280_1b80, 0x9400_0010]));
        // msr tpidr_el0, x0
        assert!(of(&[0xd51b_d040]));
        // mov x8, #63; svc #0: read; mov x0, #221; bl
        assert!(!of(&[0xd280_07e8, 0xd400_0001, 0xd280_1ba0, 0x9400_0010]));
    }

    #[test]
    fn calls_that_make_threads_are_found_by_their_numbers() {
        // mov eax, 56; syscall
        let clone = [0xb8, 56, 0, 0, 0, 0x0f, 0x05];
        assert!(makes_calls(&clone));
        // mov rax, 435; nop; syscall
        assert!(makes_calls(&[0x48, 0xc7, 0xc0, 0xb3, 1, 0, 0, 0x90, 0x0f, 0x05]));
        // getpid behind it, and a clone of nothing
        assert!(!makes_calls(&[0xb8, 56, 0, 0, 0, 0x90, 0xb8, 39, 0, 0, 0, 0x0f, 0x05]));
        assert!(!makes_calls(&clone[..5]));
        // mov esi, CLONE_SETTLS | SIGCHLD; mov edi, 56; xor eax, eax; call: syscall(SYS_clone, ...)
        let through = [0xbe, 0x11, 0, 8, 0, 0xbf, 56, 0, 0, 0, 0x31, 0xc0, 0xe8, 1, 2, 3, 0];
        assert!(passes_calls(&through) && !passes_calls(&through[..12]));
        // malloc(56), and with another second argument
        assert!(!passes_calls(&through[5..]));
        assert!(!passes_calls(&[0xbe, 0x11, 0, 0, 0, 0xbf, 56, 0, 0, 0, 0xe8, 1, 2, 3, 0]));
        // call [rip + 0xbed17d]; mov edi, 56; mov esi, 8; call: what reaches from the one into the next is no instruction.
        let allocates = [
            0xff, 0x15, 0x7d, 0xd1, 0xbe, 0, 0xbf, 56, 0, 0, 0, 0xbe, 8, 0, 0, 0, 0xff, 0x15, 0x75, 0xd1,
            0xbe, 0,
        ];
        assert!(!passes_calls(&allocates));
        assert!(names_calls(b"\0malloc\0clone\0free\0") && !names_calls(b"\0cyclone\0clone3x\0"));
        assert!(names_calls(b"\0__clone\0") && names_calls(b"\0arch_prctl\0"));
        assert!(
            !names_calls(b"\0___clone\0") && !names_calls(b"\0__arch_prctl\0") && !names_calls(b"clone\0")
        );
    }
}
