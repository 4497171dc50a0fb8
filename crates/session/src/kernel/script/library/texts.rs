//! What programs ask of texts and memory: functions that look at one byte after the other.
//!
//! For:     `library`.
//! State:   none: texts of programs.
//! Context: control.
//! Keeps:   L2 of `library`: each byte is read by a helper that checks its address.
//! Checked: as `library`.

use bpf::helper;

/// The part of a function that is called for each byte or element.
pub(super) const STEP: u32 = 0x4e5d_0000;
/// The longest text that is looked at byte by byte.
const BYTES_MAX: u32 = 1 << 16;

/// Calls a step for each byte: the arguments and a result in five words on the stack.
pub(super) fn walk(step: u32) -> String {
    format!(
        "stxdw [%r10-40], %r1
        stxdw [%r10-32], %r2
        stxdw [%r10-24], %r3
        stxdw [%r10-16], %r4
        stdw [%r10-8], 0
        {}",
        looped(step)
    )
}

fn looped(step: u32) -> String {
    format!(
        "mov %r1, {BYTES_MAX}
        lddw %r2, variable {step}
        mov %r3, %r10
        add %r3, -40
        mov %r4, 0
        call 181
        ldxdw %r0, [%r10-8]
        exit"
    )
}

/// r6 = which byte, below the second word of the context in r7; a byte of ours is zero.
pub(super) fn head() -> String {
    head_or("stop")
}

/// The same, with where to go on behind the second word's end.
fn head_or(beyond: &str) -> String {
    format!(
        "mov %r6, %r1
        mov %r7, %r2
        stdw [%r10-8], 0
        stdw [%r10-16], 0
        jge %r6, {BYTES_MAX}, stop
        ldxdw %r1, [%r7+8]
        jge %r6, %r1, {beyond}
        "
    )
}

/// The byte r6 of what a word of the context leads to, to a word below r10.
pub(super) fn byte(word: i32, to: i32) -> String {
    format!(
        "ldxdw %r3, [%r7+{word}]
        add %r3, %r6
        mov %r1, %r10
        add %r1, -{to}
        mov %r2, 1
        call 113
        "
    )
}

pub(super) fn step_len() -> String {
    format!(
        "{}{}ldxdw %r1, [%r10-8]
        jeq %r1, 0, stop
        add %r6, 1
        stxdw [%r7+32], %r6
        mov %r0, 0
        exit
        stop:
        mov %r0, 1
        exit",
        head(),
        byte(0, 8)
    )
}

/// Bytes behind an end are 0.
pub(super) fn step_compare() -> String {
    format!(
        "{}{}other:
        ldxdw %r1, [%r7+24]
        jge %r6, %r1, both
        {}both:
        ldxdw %r1, [%r10-8]
        ldxdw %r2, [%r10-16]
        jne %r1, %r2, differ
        jeq %r1, 0, stop
        mov %r0, 0
        exit
        differ:
        mov %r3, 1
        jgt %r1, %r2, said
        mov %r3, -1
        said:
        stxdw [%r7+32], %r3
        stop:
        mov %r0, 1
        exit",
        head_or("other"),
        byte(0, 8),
        byte(16, 16)
    )
}

pub(super) fn step_equal() -> String {
    format!(
        "{}{}{}ldxdw %r1, [%r10-8]
        ldxdw %r2, [%r10-16]
        jne %r1, %r2, differ
        mov %r0, 0
        exit
        differ:
        sub %r1, %r2
        stxdw [%r7+32], %r1
        stop:
        mov %r0, 1
        exit",
        head(),
        byte(0, 8),
        byte(16, 16)
    )
}

/// (to, length, from, length): behind the end of `to`, byte by byte.
pub(super) fn append() -> String {
    format!(
        "mov %r6, %r1
        mov %r7, %r2
        mov %r8, %r3
        mov %r9, %r4
        call {}
        stxdw [%r10-8], %r0
        stxdw [%r10-40], %r8
        stxdw [%r10-32], %r9
        stxdw [%r10-24], %r6
        stxdw [%r10-16], %r7
        mov %r1, {BYTES_MAX}
        lddw %r2, variable {}
        mov %r3, %r10
        add %r3, -40
        mov %r4, 0
        call 181
        mov %r0, 0
        exit",
        helper::STR_LEN,
        STEP + 4
    )
}

pub(super) fn step_append() -> String {
    format!(
        "{}{}ldxdw %r1, [%r10-8]
        jeq %r1, 0, stop
        ldxdw %r4, [%r7+32]
        jge %r4, {BYTES_MAX}, stop
        add %r4, %r6
        ldxdw %r1, [%r7+24]
        jge %r4, %r1, stop
        ldxdw %r1, [%r7+16]
        add %r1, %r4
        mov %r2, 1
        mov %r3, %r10
        add %r3, -8
        call 113
        mov %r0, 0
        exit
        stop:
        mov %r0, 1
        exit",
        head(),
        byte(0, 8)
    )
}

/// (hay, length, needle, length): each place of the hay is tried.
pub(super) fn find() -> String {
    format!(
        "mov %r6, %r1
        mov %r7, %r2
        mov %r8, %r3
        mov %r9, %r4
        call {len}
        mov %r7, %r0
        mov %r1, %r8
        mov %r2, %r9
        call {len}
        mov %r9, %r0
        mov %r0, 0
        jeq %r9, 0, exit
        mov %r0, -1
        jgt %r9, %r7, exit
        sub %r7, %r9
        add %r7, 1
        stxdw [%r10-40], %r6
        stxdw [%r10-32], %r7
        stxdw [%r10-24], %r8
        stxdw [%r10-16], %r9
        stdw [%r10-8], -1
        {}",
        looped(STEP + 5),
        len = helper::STR_LEN
    )
}

pub(super) fn step_find() -> String {
    format!(
        "{}ldxdw %r1, [%r7]
        add %r1, %r6
        ldxdw %r2, [%r7+16]
        ldxdw %r3, [%r7+24]
        call {}
        jeq %r0, 0, found
        mov %r0, 0
        exit
        found:
        stxdw [%r7+32], %r6
        stop:
        mov %r0, 1
        exit",
        head(),
        helper::MEM_COMPARE
    )
}
