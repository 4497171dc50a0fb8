//! When the red zone is taken for unused: before a function's first instruction, if calls alone lead there.

use insn::{Asked, Code, Exits, Flow, no_room, place};

const BASE: u64 = 0x1000;

/// What the analysis says of the function at `site`, of those at `starts`.
fn is_free_with(flow: &Flow, bytes: &[u8], site: u64) -> bool {
    let codes = [Code { base: BASE, bytes }];
    let end = flow.next_start(site).unwrap_or(BASE + bytes.len() as u64);
    let asked =
        Asked { site, function: Some(site..end), next_function: None, taken: &|_| false, room: &|_| true };
    place(flow, &codes, &asked).unwrap().hooks[0].is_red_zone_free
}

fn is_free(bytes: &[u8], starts: &[u64], site: u64) -> bool {
    let starts: Vec<u64> = starts.iter().map(|s| BASE + s).collect();
    let flow = Flow::analyse(&[Code { base: BASE, bytes }], &starts, &[], &|_| vec![]);
    is_free_with(&flow, bytes, BASE + site)
}

/// Five bytes of nop, then `more`, padded.
fn function(more: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0x0f, 0x1f, 0x44, 0, 0], more].concat();
    bytes.resize(bytes.len().next_multiple_of(16), 0xcc);
    bytes
}

const RET: u8 = 0xc3;

#[test]
fn where_calls_alone_lead_it_is_free() {
    // ret; and another that calls it: call -0x15
    assert!(is_free(&function(&[RET]), &[0], 0));
    let called = [function(&[RET]), function(&[0xe8, 0xe6, 0xff, 0xff, 0xff, RET])].concat();
    assert!(is_free(&called, &[0, 16], 0));
}

/// gcc -Os makes the first instruction the head of the loop: `while (p) { seen[i & 7] = p->v; ... }`.
#[test]
fn a_loop_back_to_the_first_instruction_keeps_it() {
    // mov [rsp-8], rax; jne 0; ret
    let near = function(&[0x48, 0x89, 0x44, 0x24, 0xf8, 0x75, 0xf4, RET]);
    assert!(!is_free(&near, &[0], 0));
    // jmp 0, in five bytes
    assert!(!is_free(&function(&[0xe9, 0xf6, 0xff, 0xff, 0xff]), &[0], 0));
    // loop 0
    assert!(!is_free(&function(&[0xe2, 0xf9, RET]), &[0], 0));
}

#[test]
fn a_jump_of_another_function_keeps_it() {
    // 10: a part elsewhere (`foo.cold`), which jumps back: jmp 0
    let cold = [function(&[RET]), function(&[0xe9, 0xe6, 0xff, 0xff, 0xff])].concat();
    assert!(!is_free(&cold, &[0, 16], 0));
    assert!(is_free(&cold, &[0, 16], 16));
}

#[test]
fn a_computed_jump_of_the_function_or_of_a_part_of_it_keeps_it() {
    // jmp [rax]
    let goto = function(&[0xff, 0x20]);
    assert!(!is_free(&goto, &[0], 0));
    // 0: je 0x10; 10: jmp [rax]
    let part = [function(&[0x74, 0x09, RET]), function(&[0xff, 0x20])].concat();
    assert!(!is_free(&part, &[0, 16], 0));
    // A call of what jumps so is a call.
    let called = [function(&[0xe8, 0x06, 0, 0, 0, RET]), function(&[0xff, 0x20])].concat();
    assert!(is_free(&called, &[0, 16], 0));
}

#[test]
fn a_function_that_falls_into_the_next_one_keeps_it() {
    let mut falls = vec![0x48, 0x89, 0x44, 0x24, 0xf8];
    falls.resize(16, 0x90);
    assert!(!is_free(&[&falls[..], &function(&[RET])].concat(), &[0, 16], 16), "nops lead on");
    falls[5] = RET;
    assert!(is_free(&[&falls[..], &function(&[RET])].concat(), &[0, 16], 16), "behind a return they do not");
    // call: whatever comes back has had the red zone
    falls[5..10].copy_from_slice(&[0xe8, 0, 0, 0, 0]);
    assert!(is_free(&[&falls[..], &function(&[RET])].concat(), &[0, 16], 16));
    // je over padding
    falls[5..10].copy_from_slice(&[0x74, 0, 0x90, 0x90, 0x90]);
    assert!(!is_free(&[&falls[..], &function(&[RET])].concat(), &[0, 16], 16));
    // An instruction that reaches into the function: nobody knows what runs.
    falls.truncate(14);
    falls.extend([0x48, 0xb8]);
    assert!(!is_free(&[&falls[..], &function(&[RET])].concat(), &[0, 16], 16));
}

/// Go: `call morestack; mov rax, [rsp+8]; jmp start`.
#[test]
fn a_restart_right_after_a_call_leaves_it_free() {
    let restart = |between: &[u8]| {
        let mut code = vec![0x75, 0x01, RET, 0xe8, 0xf3, 0xff, 0xff, 0xff];
        code.extend(between);
        let back = -(5 + code.len() as i32 + 5);
        code.push(0xe9);
        code.extend(back.to_le_bytes());
        function(&code)
    };
    let load: &[u8] = &[0x48, 0x8b, 0x44, 0x24, 0x08];
    assert!(is_free(&restart(load), &[0], 0));
    assert!(is_free(&restart(&[]), &[0], 0));
    let store: &[u8] = &[0x48, 0x89, 0x44, 0x24, 0xf8];
    assert!(!is_free(&restart(store), &[0], 0), "a store below the stack pointer");
    assert!(!is_free(&restart(&[0x58]), &[0], 0), "a pop");
    // jne over the call, to the load: 5: jne 0xd
    let mut jumped = restart(load);
    jumped[6] = 0x06;
    assert!(!is_free(&jumped, &[0], 0), "something jumps in behind the call");
}

#[test]
fn what_is_analysed_in_part_says_the_same_of_that_part() {
    let near = function(&[0x48, 0x89, 0x44, 0x24, 0xf8, 0x75, 0xf4, RET]);
    let mut bytes = near.clone();
    bytes.resize(0x1000, 0xcc);
    bytes.extend(function(&[RET]));
    bytes.resize(0x2000, 0xcc);
    // Far away, where nothing is decoded: jmp to the second function, or a call of it.
    let jump = |opcode: u8| {
        let mut bytes = bytes.clone();
        bytes.push(opcode);
        bytes.extend((0x1000 - 0x2005i32).to_le_bytes());
        bytes.resize(0x2010, 0xcc);
        bytes
    };
    for (opcode, is_called) in [(0xe8, true), (0xe9, false)] {
        let bytes = jump(opcode);
        let codes = [Code { base: BASE, bytes: &bytes }];
        let starts = [BASE, BASE + 0x1000, BASE + 0x2000];
        let near = [BASE..BASE + 16, BASE + 0x1000..BASE + 0x1006];
        let flow = Flow::analyse_near(&codes, &starts, &[], &|_| vec![], &near);
        assert!(!is_free_with(&flow, &bytes, BASE));
        assert_eq!(is_free_with(&flow, &bytes, BASE + 0x1000), is_called, "{opcode:#x}");
    }
}

#[test]
fn a_part_far_away_is_read_too() {
    // jmp to a part elsewhere, which may jump back by a register: jmp rax; or which calls and returns.
    for (part, is_called) in [([0xff, 0xe0], false), ([RET, 0xcc], true)] {
        let mut bytes = function(&[0xe9, 0, 0, 0, 0]);
        let jump = bytes.iter().position(|byte| *byte == 0xe9).unwrap();
        bytes.resize(0x3000, 0xcc);
        bytes[jump + 1..jump + 5].copy_from_slice(&(0x3000 - (jump as i32 + 5)).to_le_bytes());
        bytes.extend(part);
        bytes.resize(0x3010, 0xcc);
        let codes = [Code { base: BASE, bytes: &bytes }];
        let starts = [BASE, BASE + 0x3000];
        let whole = Flow::analyse(&codes, &starts, &[], &|_| vec![]);
        let near =
            Flow::analyse_near(&codes, &starts, &[], &|_| vec![], std::slice::from_ref(&(BASE..BASE + 16)));
        for flow in [whole, near] {
            assert_eq!(flow.is_called_only(BASE), is_called);
        }
    }
}

#[test]
fn at_an_exit_nothing_proves_it() {
    // jmp [rax] with no frame: a tail call or a goto; and a return
    let bytes = function(&[0x74, 0x02, 0xff, 0x20, RET]);
    let codes = [Code { base: BASE, bytes: &bytes }];
    let flow = Flow::analyse(&codes, &[BASE], &[], &|_| vec![]);
    let exits = Exits::of(&flow, &codes, BASE..BASE + 10, &|_| false).unwrap();
    let placed = exits.place_all(&flow, &codes, None, &|_| false, &no_room).unwrap();
    let hooks: Vec<bool> =
        placed.iter().flat_map(|(_, p)| p.hooks.iter().map(|h| h.is_red_zone_free)).collect();
    assert_eq!(hooks, [false, false]);
}
