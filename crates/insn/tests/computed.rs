//! Jumps to sums: what is understood leaves room for windows, what is not makes its function vague; and addresses of which
//! no function is known.

use insn::{Asked, Code, Flow, Reason, Refusal, Rung, no_room, place};

const BASE: u64 = 0x1000;
/// Behind the code, as data would be.
const LEA_RDX_LABEL: [u8; 7] = [0x48, 0x8d, 0x15, 0x20, 0, 0, 0];

/// `head`, a nop, then short instructions in which a window would stand, then the function's end.
fn function(head: &[u8]) -> Vec<u8> {
    let mut bytes = head.to_vec();
    bytes.push(0x90);
    while bytes.len() < 0x80 {
        // mov %eax,%ecx; inc %eax
        bytes.extend([0x89, 0xc1, 0xff, 0xc0]);
    }
    bytes.push(0xc3);
    bytes
}

fn asked(site: u64, end: u64) -> Asked<'static> {
    Asked { site, function: Some(BASE..end), next_function: None, taken: &|_| false, room: &no_room }
}

/// The reason against a window in the short instructions behind `head`.
fn why_no_window(head: &[u8]) -> Option<Reason> {
    let bytes = function(head);
    let code = [Code { base: BASE, bytes: &bytes }];
    let flow = Flow::analyse(&code, &[BASE], &[], &|_| vec![]);
    let site = BASE + head.len() as u64 + 0x21;
    match place(&flow, &code, &asked(site, BASE + bytes.len() as u64)) {
        Ok(placement) => {
            assert_eq!(placement.rung, Rung::Window);
            None
        }
        Err(Refusal::NoRung { why_not, .. }) => {
            why_not.iter().find(|(rung, _)| *rung == Rung::Window).map(|(_, reason)| *reason)
        }
        Err(other) => panic!("{other}"),
    }
}

fn is_vague(parts: &[&[u8]]) -> bool {
    matches!(why_no_window(&parts.concat()), Some(Reason::ComputedJump { .. }))
}

#[test]
fn jumps_by_tables_of_bytes_and_words_and_by_arithmetic_leave_no_window_in_their_function() {
    let jmp_rax: &[u8] = &[0xff, 0xe0];
    let notrack_jmp_rax: &[u8] = &[0x3e, 0xff, 0xe0];
    let add_rax_rdx: &[u8] = &[0x48, 0x01, 0xd0];
    let lea: &[u8] = &LEA_RDX_LABEL;
    let forms: [(&str, &[&[u8]]); 10] = [
        ("movzx eax, byte [rdx+rdi]", &[lea, &[0x0f, 0xb6, 0x04, 0x3a], add_rax_rdx, jmp_rax]),
        ("movsx rax, byte [rdx+rdi]", &[lea, &[0x48, 0x0f, 0xbe, 0x04, 0x3a], add_rax_rdx, jmp_rax]),
        ("movzx eax, word [rdx+rdi*2]", &[lea, &[0x0f, 0xb7, 0x04, 0x7a], add_rax_rdx, notrack_jmp_rax]),
        ("movsx rax, word [rdx+rdi*2]", &[lea, &[0x48, 0x0f, 0xbf, 0x04, 0x7a], add_rax_rdx, jmp_rax]),
        ("byte, lea rax,[rdx+rax*4]", &[lea, &[0x0f, 0xb6, 0x04, 0x3a, 0x48, 0x8d, 0x04, 0x82], jmp_rax]),
        ("shl edi,4; add", &[lea, &[0xc1, 0xe7, 4, 0x48, 0x8d, 0x04, 0x3a], jmp_rax]),
        ("sub rdx,rdi: a jump into a row", &[lea, &[0x48, 0x29, 0xfa, 0xff, 0xe2]]),
        ("lea rax,[rdx+rdi*8]", &[lea, &[0x48, 0x8d, 0x04, 0xfa], jmp_rax]),
        // call the next instruction; pop rdx; lea rax,[rdx+rdi]; jmp rax
        ("no lea of a label", &[&[0xe8, 0, 0, 0, 0, 0x5a, 0x48, 0x8d, 0x04, 0x3a], jmp_rax]),
        ("a sum that was put away", &[lea, &[0x48, 0x8b, 0x44, 0x24, 0x08], jmp_rax]),
    ];
    for (form, parts) in forms {
        assert!(is_vague(parts), "{form}");
    }
}

/// lea rdx,[rip+label]; movzx eax,byte [rdx+rdi]; add rax,rdx
const NARROW_SUM: [u8; 14] = [0x48, 0x8d, 0x15, 0x20, 0, 0, 0, 0x0f, 0xb6, 0x04, 0x3a, 0x48, 0x01, 0xd0];

#[test]
fn calls_and_returns_to_sums_leave_no_window_either() {
    let sum: &[u8] = &NARROW_SUM;
    let forms: [(&str, &[&[u8]]); 7] = [
        ("call rax", &[sum, &[0xff, 0xd0]]),
        ("push rax; ret", &[sum, &[0x50, 0xc3]]),
        ("mov [rsp],rax; ret", &[sum, &[0x48, 0x89, 0x04, 0x24, 0xc3]]),
        // push rbx; push rax; add rsp,-8; pop rcx; ret
        ("the same with other words on top", &[sum, &[0x50, 0x53, 0x48, 0x83, 0xc4, 0x08, 0xc3]]),
        // call +5; add [rsp],rdi; ret
        (
            "a return address that is moved",
            &[&LEA_RDX_LABEL, &[0xe8, 0, 0, 0, 0, 0x48, 0x01, 0x3c, 0x24, 0xc3]],
        ),
        // a retpoline within the function: call 1f; pause; jmp -2; 1: mov [rsp],rax; ret
        ("a retpoline", &[sum, &[0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc, 0x48, 0x89, 0x04, 0x24, 0xc3]]),
        ("jmp [rbp-8]", &[sum, &[0x48, 0x89, 0x45, 0xf8, 0xff, 0x65, 0xf8]]),
    ];
    for (form, parts) in forms {
        assert!(is_vague(parts), "{form}");
    }
}

#[test]
fn jumps_and_calls_by_way_of_a_thunk_are_jumps_to_its_register() {
    // Behind the function, a function of its own.
    let thunks: [(&str, &[u8]); 6] = [
        ("jmp rax", &[0xff, 0xe0]),
        ("endbr64; lfence; notrack jmp rax", &[0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0xae, 0xe8, 0x3e, 0xff, 0xe0]),
        // call 1f; pause; lfence; jmp -7; 1: mov [rsp],rax; ret
        (
            "a retpoline",
            &[0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3],
        ),
        ("push rax; ret", &[0x50, 0xc3]),
        ("jmp +0; jmp rax", &[0xeb, 0, 0xff, 0xe0]),
        ("add rax,rcx; jmp rax", &[0x48, 0x01, 0xc8, 0xff, 0xe0]),
    ];
    for (form, thunk) in thunks {
        assert!(is_vague_by(&NARROW_SUM, 0xe9, thunk), "jmp to {form}");
        // A pointer, in a function that forms the address of a place in it, but no sum.
        let pointer = [&LEA_RDX_LABEL[..], &[0x48, 0x8b, 0x07]].concat();
        assert_eq!(is_vague_by(&pointer, 0xe9, thunk), form.starts_with("add"), "jmp to {form}, a pointer");
    }
    for (form, thunk) in &thunks[..3] {
        assert!(is_vague_by(&NARROW_SUM, 0xe8, thunk), "call of {form}");
    }
    // An ordinary function: mov rax,[rdi]; jmp [rax+8]; and one that returns.
    assert!(!is_vague_by(&NARROW_SUM, 0xe9, &[0x48, 0x8b, 0x07, 0xff, 0x60, 8]));
    assert!(!is_vague_by(&NARROW_SUM, 0xe9, &[0x31, 0xc0, 0xc3]));
}

/// Whether the function behind `head` and a jump or call to `thunk` is vague.
fn is_vague_by(head: &[u8], opcode: u8, thunk: &[u8]) -> bool {
    const LENGTH: usize = 0x100;
    let way = [opcode, 0, 0, 0, 0];
    let mut bytes = function(&[head, &way[..]].concat());
    let (at, to) = (head.len() + way.len(), LENGTH);
    bytes[at - 4..at].copy_from_slice(&((to - at) as u32).to_le_bytes());
    bytes.resize(LENGTH, 0xcc);
    bytes.extend(thunk);
    bytes.extend([0xcc; 16]);
    let code = [Code { base: BASE, bytes: &bytes }];
    let flow = Flow::analyse(&code, &[BASE, BASE + LENGTH as u64], &[], &|_| vec![]);
    let site = BASE + at as u64 + 0x21;
    match place(&flow, &code, &asked(site, BASE + LENGTH as u64)) {
        Ok(placement) => {
            assert_eq!(placement.rung, Rung::Window);
            false
        }
        Err(Refusal::NoRung { why_not, .. }) => why_not
            .iter()
            .any(|(rung, why)| *rung == Rung::Window && matches!(why, Reason::ComputedJump { .. })),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_jump_to_which_several_ways_lead_is_understood_on_all_of_them_or_leaves_no_window() {
    let sum: &[u8] = &NARROW_SUM;
    // sum; jmp +3; mov rax,[rdi]; jmp rax
    assert!(
        is_vague(&[sum, &[0xeb, 3, 0x48, 0x8b, 0x07, 0xff, 0xe0]]),
        "the pointer's way is the nearer one"
    );
    // The sum is put away, and what was put away is loaded elsewhere: mov [rdi],rax; mov rax,[rdi]; jmp rax
    assert!(is_vague(&[sum, &[0x48, 0x89, 0x07, 0x48, 0x8b, 0x07, 0xff, 0xe0]]), "by way of memory");
    // 32-bit addresses: mov eax,[rdi*4+table]; jmp rax
    assert!(is_vague(&[&[0x8b, 0x04, 0xbd, 0, 0, 1, 0, 0xff, 0xe0]]), "halves of pointers");
    // lea rcx,[rip+label] alone, and a pointer: no sum is made
    assert_eq!(why_no_window(&[&LEA_RDX_LABEL[..], &[0x48, 0x8b, 0x07, 0xff, 0xe0]].concat()), None);
}

#[test]
fn calls_and_returns_that_are_ordinary_leave_windows() {
    let forms: [(&str, &[&[u8]]); 6] = [
        ("call [rdi]; ret", &[&[0xff, 0x17, 0xc3]]),
        ("mov rax,[rdi]; add rax,rsi; call rax", &[&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xff, 0xd0]]),
        ("cmove rax,rcx; jmp rax", &[&[0x48, 0x0f, 0x44, 0xc1, 0xff, 0xe0]]),
        ("push rbx; pop rbx; ret", &[&LEA_RDX_LABEL, &[0x53, 0x5b, 0xc3]]),
        // sub rsp,8; mov [rsp],rdi; add rsp,8; ret: a local
        (
            "a local",
            &[&LEA_RDX_LABEL, &[0x48, 0x83, 0xec, 8, 0x48, 0x89, 0x3c, 0x24, 0x48, 0x83, 0xc4, 8, 0xc3]],
        ),
        // push [rdi]; ret
        ("a pointer that was pushed", &[&[0xff, 0x37, 0xc3]]),
    ];
    for (form, parts) in forms {
        assert_eq!(why_no_window(&parts.concat()), None, "{form}");
    }
}

/// An unsized function of assembly goes up to the next symbol: data stand in it, and reading through them goes wrong.
#[test]
fn behind_data_in_a_function_an_address_inside_an_instruction_is_refused() {
    // ret; data: the first byte of mov eax,imm32; then mov ecx,imm32 (5) and short instructions
    let mut bytes = vec![0x31, 0xc0, 0xc3, 0xb8];
    let start = bytes.len();
    while bytes.len() < 0x200 {
        bytes.extend([0xb9, 0x90, 0x90, 0x90, 0x90, 0xff, 0xc0, 0xff, 0xc1]);
    }
    bytes.push(0xc3);
    let code = [Code { base: BASE, bytes: &bytes }];
    // Read from the function's start: ret, then mov eax,0x909090b9, nop, inc eax.
    let inside = BASE + start as u64 + 4;
    let asked = || asked(inside, BASE + bytes.len() as u64);
    let flow = Flow::analyse(&code, &[BASE], &[], &|_| vec![]);
    assert!(matches!(
        place(&flow, &code, &asked()),
        Err(Refusal::MidInstruction { .. } | Refusal::UnknownBoundary { .. })
    ));
    // Where something leads to what the reading found there, the reading is right.
    let flow = Flow::analyse(&code, &[BASE], &[BASE + 3], &|_| vec![]);
    assert!(place(&flow, &code, &asked()).is_ok());
}

#[test]
fn pointers_and_tables_of_words_leave_windows_where_they_do_not_lead() {
    let forms: [(&str, &[&[u8]]); 7] = [
        ("mov rax,[rdi]", &[&[0x48, 0x8b, 0x07, 0xff, 0xe0]]),
        ("an argument", &[&[0xff, 0xe7]]),
        ("what a call returns", &[&[0xe8, 0x30, 0, 0, 0, 0xff, 0xe0]]),
        ("mov rax,[rdi]; pop rbx", &[&[0x48, 0x8b, 0x07, 0x5b, 0xff, 0xe0]]),
        ("a mangled pointer", &[&[0x48, 0x8b, 0x47, 8, 0x48, 0xc1, 0xc8, 0x11, 0xff, 0xe0]]),
        // lea rdx,[rip+0x1000]; movsxd rax,[rdx+rdi*4]; add rax,rdx; jmp rax
        (
            "a switch",
            &[&[0x48, 0x8d, 0x15, 0, 0x10, 0, 0, 0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xd0, 0xff, 0xe0]],
        ),
        // the same with a label as base
        (
            "a computed goto",
            &[
                &[0x48, 0x8d, 0x35, 0, 0x10, 0, 0],
                &LEA_RDX_LABEL,
                &[0x48, 0x63, 0x04, 0xbe, 0x48, 0x01, 0xd0, 0xff, 0xe0],
            ],
        ),
    ];
    for (form, parts) in forms {
        assert_eq!(why_no_window(&parts.concat()), None, "{form}");
    }
}

/// Bytes that decode in one way only a little before them: rr's and others' stripped programs have nothing else.
#[test]
fn without_functions_an_address_inside_an_instruction_is_refused() {
    // push rbp; mov rbp,rsp; mov eax,imm32; test rax,rax; jne to the next push; nop [rax+0]; pop rbp
    let unit =
        [0x55, 0x48, 0x89, 0xe5, 0xb8, 1, 2, 3, 4, 0x48, 0x85, 0xc0, 0x75, 0x05, 0x0f, 0x1f, 0x40, 0, 0x5d];
    let starts = [0, 1, 4, 9, 12, 14, 18];
    let bytes = unit.repeat(200);
    let code = [Code { base: BASE, bytes: &bytes }];
    let flow = Flow::analyse(&code, &[], &[], &|_| vec![]);
    let asked = |site| Asked { site, function: None, next_function: None, taken: &|_| false, room: &no_room };
    let from = BASE + 60 * unit.len() as u64;
    let mut taken = 0;
    for (offset, site) in (from..from + 4 * unit.len() as u64).enumerate() {
        let is_start = starts.contains(&(offset % unit.len()));
        match place(&flow, &code, &asked(site)) {
            Err(Refusal::MidInstruction { .. } | Refusal::UnknownBoundary { .. }) => {
                assert!(!is_start, "{site:#x} begins an instruction");
            }
            Ok(_) | Err(Refusal::NoRung { .. }) => {
                assert!(is_start, "{site:#x} is inside an instruction");
                taken += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(taken, 4 * starts.len());
}

#[test]
fn without_functions_data_before_an_address_makes_it_unclear_and_not_a_start() {
    // A row of zeros reads as add [rax],al from every even byte; what follows is read wrongly from half of them.
    let mut bytes = vec![0x90; 700];
    bytes[600..640].fill(0);
    // mov eax,imm32 whose immediate is a jump; reached from the zeros at either of two bytes.
    bytes[640..646].copy_from_slice(&[0x00, 0xb8, 0xeb, 0x01, 0xc3, 0xc3]);
    let code = [Code { base: BASE, bytes: &bytes }];
    let flow = Flow::analyse(&code, &[], &[], &|_| vec![]);
    let refused = (640..646)
        .filter(|at| {
            let asked = Asked {
                site: BASE + at,
                function: None,
                next_function: None,
                taken: &|_| false,
                room: &no_room,
            };
            matches!(
                place(&flow, &code, &asked),
                Err(Refusal::MidInstruction { .. } | Refusal::UnknownBoundary { .. })
            )
        })
        .count();
    assert!(refused >= 3, "{refused}");
}

/// 400,000 labels and tables of one stretch in which no function is known were read against each other: 21.9 GB.
#[test]
fn a_stretch_without_functions_is_read_in_linear_time() {
    // lea rdx,[rip+far]; lea rsi,[rip+label]; movsxd rax,[rdx+rdi*4]; add rax,rsi; jmp rax
    let mut bytes = Vec::new();
    for number in 0..20_000_u32 {
        bytes.extend([0x48, 0x8d, 0x15]);
        bytes.extend((0x100_0000 + 3 * number).to_le_bytes());
        bytes.extend([0x48, 0x8d, 0x35, 9, 0, 0, 0]);
        bytes.extend([0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xf0, 0xff, 0xe0, 0x90, 0x90, 0x90]);
    }
    let code = [Code { base: BASE, bytes: &bytes }];
    let asked = std::cell::Cell::new(0_u64);
    let read = |_: &insn::Table| {
        asked.set(asked.get() + 1);
        vec![]
    };
    let _ = Flow::analyse(&code, &[], &[], &read);
    assert!(asked.get() < bytes.len() as u64, "{} questions for {} bytes", asked.get(), bytes.len());
    // Whoever waits may end it at once.
    let is_over = Flow::analyse_while(&code, &[], &[], &read, &|_| false).is_none();
    assert!(is_over);
}
