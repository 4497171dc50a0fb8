//! What is emitted and what an assembler makes of the same steps, byte by byte.
//!
//! The text is that of the inline assembly in `percpu` (`steps`), with the registers and constants of a trampoline. A step
//! that is changed in one of them alone fails here.
#![cfg(all(target_arch = "x86_64", not(miri)))]

use core::arch::global_asm;
use percpu::emit::{Form, Places, Way, emit};
use percpu::{step_copy, step_cpu, step_entry, step_inc, step_name};

/// Where the golden code has its area, and its cell.
const AREA: i32 = 0x9a0;
const CELL: u32 = 0x188;

global_asm!(
    ".pushsection .data.golden, \"aw\", @progbits",
    ".balign 32",
    "golden_descriptor: .zero 32",
    "golden_table: .zero 64",
    ".popsection",
    // Elsewhere, so that branches are long ones.
    ".pushsection .text.golden_slow, \"ax\", @progbits",
    "golden_slow: ud2",
    ".popsection",
    ".pushsection .text.golden, \"ax\", @progbits",
    "golden_near: ud2",
    // A count: flags are left alone, so what adds one is a load, a lea and a store.
    "golden_count:",
    step_name!("rax", "golden_descriptor", "0x9a0"),
    "golden_count_start:",
    step_cpu!("eax", "0x9a0"),
    "lea rcx, [rip + golden_table]",
    step_entry!("rcx", "rcx", "rax"),
    "jrcxz golden_near",
    step_copy!("cl"),
    "mov rax, qword ptr [rcx + 0x188]",
    "lea rax, [rax + 1]",
    "mov qword ptr [rcx + 0x188], rax",
    "golden_count_end:",
    "golden_enter:",
    step_name!("rax", "golden_descriptor", "0x9a0"),
    "golden_enter_start:",
    step_cpu!("eax", "0x9a0"),
    "lea rcx, [rip + golden_table]",
    step_entry!("rbx", "rcx", "rax"),
    "test rbx, rbx",
    "jz golden_slow",
    step_inc!("rbx", "0x188"),
    "golden_enter_end:",
    "golden_leave:",
    step_name!("rax", "golden_descriptor", "0x9a0"),
    "golden_leave_start:",
    step_cpu!("eax", "0x9a0"),
    "lea rcx, [rip + golden_table]",
    "cmp qword ptr [rcx + rax * 8], rbx",
    "jne golden_slow",
    step_inc!("rbx", "0x188"),
    "golden_leave_end:",
    "golden_locked_near: ud2",
    "golden_count_locked:",
    "rdpid rcx",
    "and ecx, 0xfff",
    "lea rax, [rip + golden_table]",
    step_entry!("rax", "rax", "rcx"),
    "test rax, rax",
    "jz golden_locked_near",
    step_copy!("al"),
    concat!("lock ", step_inc!("rax", "0x188")),
    "golden_count_locked_end:",
    "golden_enter_locked:",
    "mov ecx, 123",
    "lsl ecx, ecx",
    "and ecx, 0xfff",
    "lea rax, [rip + golden_table]",
    step_entry!("rbx", "rax", "rcx"),
    "test rbx, rbx",
    "jz golden_slow",
    concat!("lock ", step_inc!("rbx", "0x188")),
    "golden_enter_locked_end:",
    "golden_leave_locked:",
    "rdpid rcx",
    "and ecx, 0xfff",
    "lea rax, [rip + golden_table]",
    "cmp qword ptr [rax + rcx * 8], rbx",
    "jne golden_slow",
    concat!("lock ", step_inc!("rbx", "0x188")),
    "golden_leave_locked_end:",
    ".popsection",
);

macro_rules! labels {
    ($($name:ident)*) => {
        // SAFETY: all are labels of the assembly above.
        unsafe extern "C" { $(static $name: u8;)* }
    };
}

labels!(golden_descriptor golden_table golden_slow golden_near golden_locked_near
    golden_count golden_count_start golden_count_end
    golden_enter golden_enter_start golden_enter_end golden_leave golden_leave_start golden_leave_end
    golden_count_locked golden_count_locked_end golden_enter_locked golden_enter_locked_end
    golden_leave_locked golden_leave_locked_end);

macro_rules! at {
    ($name:ident) => {
        (&raw const $name) as u64
    };
}

/// Compares the code between two labels with what is emitted for that place. Returns where its section starts.
fn check(what: &str, form: Form, way: Way, range: [u64; 2], slow: u64) -> u64 {
    let places = Places { at: range[0], table: at!(golden_table), slow };
    let emitted = emit(form, way, CELL, &places).unwrap();
    // SAFETY: both labels are of one piece of this program's code.
    let golden =
        unsafe { core::slice::from_raw_parts(range[0] as *const u8, (range[1] - range[0]) as usize) };
    assert_eq!(emitted.bytes(), golden, "{what}");
    range[0] + emitted.start as u64
}

#[test]
fn what_is_emitted_is_what_an_assembler_makes_of_the_steps() {
    let restartable = Way::Restartable { area: AREA, descriptor: at!(golden_descriptor) };
    let (rdpid, lsl) = (Way::Locked { has_rdpid: true }, Way::Locked { has_rdpid: false });
    let slow = at!(golden_slow);
    let count = [at!(golden_count), at!(golden_count_end)];
    assert_eq!(check("count", Form::Count, restartable, count, at!(golden_near)), at!(golden_count_start));
    let enter = [at!(golden_enter), at!(golden_enter_end)];
    assert_eq!(check("enter", Form::Enter, restartable, enter, slow), at!(golden_enter_start));
    let leave = [at!(golden_leave), at!(golden_leave_end)];
    assert_eq!(check("leave", Form::Leave, restartable, leave, slow), at!(golden_leave_start));
    let count = [at!(golden_count_locked), at!(golden_count_locked_end)];
    check("count, locked", Form::Count, rdpid, count, at!(golden_locked_near));
    let enter = [at!(golden_enter_locked), at!(golden_enter_locked_end)];
    check("enter, locked", Form::Enter, lsl, enter, slow);
    let leave = [at!(golden_leave_locked), at!(golden_leave_locked_end)];
    check("leave, locked", Form::Leave, rdpid, leave, slow);
}

#[test]
fn a_place_that_is_too_far_is_told() {
    let places = Places { at: 0x1000, table: 0x1000 + (1 << 33), slow: 0x1000 };
    let told = emit(Form::Enter, Way::Locked { has_rdpid: true }, CELL, &places).unwrap_err();
    assert_eq!(told.to, places.table);
    let places = Places { at: 0x1000, table: 0x2000, slow: 0x3000 };
    let told = emit(Form::Count, Way::Locked { has_rdpid: true }, CELL, &places).unwrap_err();
    assert_eq!(told.to, places.slow, "a count's slow way is near");
}
