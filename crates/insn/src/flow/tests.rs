//! What leads where: one test for each source of targets.

use super::*;

fn analyse(base: u64, bytes: &[u8], starts: &[u64], tables: &dyn Fn(&Table) -> Vec<u64>) -> Flow {
    Flow::analyse(&[Code { base, bytes }], starts, &[], tables)
}

#[test]
fn branches_calls_starts_and_given_targets_are_in_the_set() {
    // 0: jne 4; 2: jmp 0; 4: call 0x9; 9: ret
    let bytes = [0x75, 0x02, 0xeb, 0xfc, 0xe8, 0, 0, 0, 0, 0xc3, 0x90, 0x90];
    let code = [Code { base: 0x1000, bytes: &bytes }];
    let flow = Flow::analyse(&code, &[0x1000], &[0x100b, 0x5000], &|_| vec![]);
    for at in [0x1000, 0x1004, 0x1009, 0x100b] {
        assert!(flow.is_target(at), "{at:#x}");
    }
    assert_eq!(flow.target_count(), 4);
    assert_eq!(flow.source_of(&code, 0x1004, None), Some(Source::Branch { at: 0x1000 }));
    assert_eq!(flow.source_of(&code, 0x100b, None), None);
}

#[test]
fn a_table_outside_code_is_read_once_and_its_entries_are_targets() {
    // lea rax,[rip+0x1000]; lea rcx,[rip+0xff9]: the same address; nop; nop
    let bytes = [0x48, 0x8d, 0x05, 0, 0x10, 0, 0, 0x48, 0x8d, 0x0d, 0xf9, 0x0f, 0, 0, 0x90, 0x90];
    let asked = std::cell::RefCell::new(vec![]);
    let flow = analyse(0x1000, &bytes, &[0x1000], &|table| {
        asked.borrow_mut().push(table.at);
        vec![0x100f, 0x9999]
    });
    assert_eq!(*asked.borrow(), [0x2007]);
    assert!(flow.is_target(0x100f) && !flow.is_target(0x9999));
}

#[test]
fn a_table_ends_where_the_next_begins() {
    // lea rax,[rip+0x1000] -> 0x2007; lea rcx,[rip+0x1001] -> 0x200f, two entries on; nop x 8
    let head = [0x48, 0x8d, 0x05, 0, 0x10, 0, 0, 0x48, 0x8d, 0x0d, 0x01, 0x10, 0, 0];
    let bytes = [&head[..], &[0x90; 8]].concat();
    let flow = analyse(0x1000, &bytes, &[0x1000], &|table| match table.at {
        0x2007 => vec![0x100f, 0x1010, 0x1011],
        _ => vec![0x1012, 0x1013, 0x1014],
    });
    let found: Vec<u64> = (0x100e..0x1016).filter(|addr| flow.is_target(*addr)).collect();
    assert_eq!(found, [0x100f, 0x1010, 0x1012, 0x1013, 0x1014]);
}

#[test]
fn the_table_of_an_absolute_jump_is_read_too() {
    // jmp [rax*8+0x402000]
    let bytes = [0xff, 0x24, 0xc5, 0x00, 0x20, 0x40, 0x00, 0x90];
    let flow = analyse(0x401000, &bytes, &[0x401000], &|table| {
        assert_eq!(table.at, 0x402000);
        vec![0x401007]
    });
    assert!(flow.is_target(0x401007));
}

/// glibc's vfprintf: found by `torture anywhere`, whose lua ended with SIGILL when a window stood there.
#[test]
fn a_table_of_offsets_from_a_label_of_the_function_is_read_with_the_label_as_base() {
    // 0x1000: lea rax,[rip+0x1000] -> 0x2007; 0x1007: lea rdi,[rip+10] -> 0x1018, a label;
    // 0x100e: movsxd rcx,[rax+rcx*4]; add rcx,rdi; jmp rcx; 0x1017: nops
    let head = [0x48, 0x8d, 0x05, 0, 0x10, 0, 0, 0x48, 0x8d, 0x3d, 10, 0, 0, 0];
    let jump = [0x48, 0x63, 0x0c, 0x88, 0x48, 0x01, 0xf9, 0xff, 0xe1];
    let bytes = [&head[..], &jump, &[0x90; 32]].concat();
    let asked = std::cell::RefCell::new(vec![]);
    let flow = analyse(0x1000, &bytes, &[0x1000, 0x1020], &|table| {
        asked.borrow_mut().push(table.clone());
        if table.base == 0x1018 { vec![0x101a, 0x101c] } else { vec![] }
    });
    let plain = Table { at: 0x2007, base: 0x2007, within: None };
    let by_label = |at| Table { at, base: 0x1018, within: Some(0x1000..0x1020) };
    assert_eq!(*asked.borrow(), [plain, by_label(0x2007), by_label(0x1018)]);
    assert!(flow.is_target(0x101a) && flow.is_target(0x101c));
    // A function's start is no label: it is the address of a function.
    let flow = analyse(0x1000, &bytes, &[0x1000, 0x1018], &|table| vec![table.base + 1]);
    assert!(!flow.is_target(0x1019));
}

#[test]
fn code_that_is_pointed_at_is_a_target() {
    // lea rax,[rip+1] -> 0x1008, in code
    let bytes = [0x48, 0x8d, 0x05, 1, 0, 0, 0, 0xc3, 0x90, 0x90];
    let flow = analyse(0x1000, &bytes, &[0x1000], &|_| panic!("not a table"));
    assert!(flow.is_target(0x1008));
}

#[test]
fn the_sweep_starts_anew_at_each_function() {
    // 0x1000: data that decodes as mov eax,imm32 across the function start at 0x1002: jmp 0x1009
    let bytes = [0xc3, 0xb8, 0xeb, 0x05, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90];
    let flow = analyse(0x1000, &bytes, &[0x1000, 0x1002], &|_| vec![]);
    assert!(flow.is_target(0x1009));
}

#[test]
fn bytes_that_are_no_instruction_do_not_stop_the_sweep() {
    // 06 is no instruction in 64-bit mode; then jmp 0x1004
    let bytes = [0x06, 0x06, 0xeb, 0x00, 0x90];
    assert!(analyse(0x1000, &bytes, &[], &|_| vec![]).is_target(0x1004));
}

#[test]
fn a_function_that_was_not_asked_for_is_not_analysed() {
    // 0x1000: call 0x4004; the rest is nops
    let mut bytes = vec![0x90; 0x4000];
    bytes[..5].copy_from_slice(&[0xe8, 0xff, 0x2f, 0, 0]);
    let code = [Code { base: 0x1000, bytes: &bytes }];
    let near = 0x4000..0x4010;
    let flow = Flow::analyse_near(&code, &[0x1000, 0x4000], &[], &|_| vec![], std::slice::from_ref(&near));
    assert!(flow.is_target(0x4004));
    assert!(flow.is_analysed(0x4000..0x4005) && flow.is_analysed(0x400f..0x4014));
    assert!(!flow.is_analysed(0x2000..0x2005));
    let whole = Flow::analyse(&code, &[0x1000], &[], &|_| vec![]);
    assert!(whole.is_analysed(0x2000..0x2005));
}

#[test]
fn an_address_inside_an_instruction_is_refused_with_its_start() {
    let bytes = [0x55, 0x48, 0x89, 0xe5, 0xc3]; // push rbp; mov rbp,rsp; ret
    let code = [Code { base: 0x1000, bytes: &bytes }];
    let flow = Flow::analyse(&code, &[0x1000], &[], &|_| vec![]);
    assert_eq!(flow.boundary(&code, 0x1001, 0x1000), Ok(()));
    assert_eq!(
        flow.boundary(&code, 0x1003, 0x1000),
        Err(Refusal::MidInstruction { asked: 0x1003, start: 0x1001 })
    );
}
