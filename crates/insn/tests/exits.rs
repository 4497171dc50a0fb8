//! Where functions are left, and how a probe stands before each exit.

use std::ops::Range;

use insn::{Code, Exits, Flow, NoExits, Placement, Reason, Refusal, Rung, relocate_part};

const BASE: u64 = 0x1000;

struct File<'a> {
    bytes: &'a [u8],
    starts: Vec<u64>,
}

impl File<'_> {
    fn code(&self) -> [Code<'_>; 1] {
        [Code { base: BASE, bytes: self.bytes }]
    }

    fn flow(&self) -> Flow {
        Flow::analyse(&self.code(), &self.starts, &[], &|_| vec![])
    }

    fn exits(&self, len: u64) -> Result<Exits, NoExits> {
        Exits::of(&self.flow(), &self.code(), BASE..BASE + len, &|_| false)
    }

    fn place(&self, len: u64, exit: u64) -> Result<Placement, Refusal> {
        let exits = self.exits(len).unwrap();
        exits.place(&self.flow(), &self.code(), BASE + exit, &|_| false, &insn::no_room)
    }
}

fn file(bytes: &[u8]) -> File<'_> {
    File { bytes, starts: vec![BASE] }
}

fn addrs(exits: &Exits) -> Vec<u64> {
    exits.addrs().map(|at| at - BASE).collect()
}

#[test]
fn returns_and_tail_jumps_are_exits_and_switches_are_not() {
    // 0: jne 9; 2: xor eax,eax; 4: ret; 5: jmp rax; 7: notrack jmp rax; a: jmp [rip+0]; 10: jmp [rdx+rax*8]
    let bytes = [
        0x75, 0x07, 0x31, 0xc0, 0xc3, 0xff, 0xe0, 0x3e, 0xff, 0xe0, 0xff, 0x25, 0, 0, 0, 0, 0xff, 0x24, 0xc2,
    ];
    assert_eq!(addrs(&file(&bytes).exits(bytes.len() as u64).unwrap()), [4, 5, 0xa]);
    // add rax, rdx; jmp rax: a switch; then ret
    let bytes = [0x48, 0x01, 0xd0, 0xff, 0xe0, 0xc3];
    assert_eq!(addrs(&file(&bytes).exits(6).unwrap()), [5]);
}

/// A panic of the decoder's library before: such bytes stand in code, and among data that looks like code.
#[test]
fn a_return_behind_a_stack_pointer_that_memory_moves_is_an_exit() {
    // add or sub rsp, [rbx]; ret
    for op in [0x03, 0x2b] {
        assert_eq!(addrs(&file(&[0x48, op, 0x23, 0xc3]).exits(4).unwrap()), [3]);
    }
}

#[test]
fn a_computed_goto_is_no_tail_call() {
    // 0: lea rax, [rip+4] (0xb); 7: mov [rsi], rax; a: jmp [rdi]; c: ret: to the label or for good, nobody knows
    let goto = [0x48, 0x8d, 0x05, 5, 0, 0, 0, 0x48, 0x89, 0x06, 0xff, 0x27, 0xc3];
    assert_eq!(file(&goto).exits(13).err(), Some(NoExits::ComputedJump { at: BASE + 10 }));
    // With a switch (notrack) the label is the switch's.
    let switch = [&goto[..], &[0x3e, 0xff, 0xe0]].concat();
    assert_eq!(addrs(&file(&switch).exits(16).unwrap()), [10, 12]);
    // Its own start is what a function may well pass on.
    let own = [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff, 0x48, 0x89, 0x06, 0xff, 0x27, 0xc3];
    assert_eq!(addrs(&file(&own).exits(13).unwrap()), [10, 12]);
}

#[test]
fn a_jump_to_another_function_leaves_and_one_to_a_part_elsewhere_is_followed() {
    // 0: jmp 8; 5: nop x3; 8: nop; 9: ret
    let bytes = [0xe9, 3, 0, 0, 0, 0x90, 0x90, 0x90, 0x90, 0xc3];
    let tail = File { bytes: &bytes, starts: vec![BASE, BASE + 8] };
    assert_eq!(addrs(&tail.exits(5).unwrap()), [0]);
    assert_eq!(addrs(&file(&bytes).exits(5).unwrap()), [9]);
    let exits = Exits::of(&tail.flow(), &tail.code(), BASE..BASE + 5, &|at| at == BASE + 8).unwrap();
    assert_eq!(addrs(&exits), [9]);
    // 0: jmp 8, a stub: the jump is the exit, and not the stub's.
    let stub = file(&[0xe9, 3, 0, 0, 0, 0xcc, 0xcc, 0xcc, 0xff, 0x25, 0, 0, 0, 0]);
    assert_eq!(addrs(&stub.exits(5).unwrap()), [0]);
}

#[test]
fn a_conditional_jump_to_another_function_is_an_exit_where_it_is_taken() {
    // 0: jne 4; 2: ret; 3: nop; 4: ret
    let bytes = [0x75, 0x02, 0xc3, 0x90, 0xc3];
    let conditional = File { bytes: &bytes, starts: vec![BASE, BASE + 4] };
    assert_eq!(addrs(&conditional.exits(3).unwrap()), [0, 2]);
    // 0: je 8; 2: ret; 8: jmp [rip]; 8: and once more behind endbr64: calls of it by others pass there too
    for stub in [&[0xff, 0x25, 0, 0, 0, 0][..], &[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0, 0, 0, 0]] {
        let bytes = [&[0x74, 0x06, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc], stub].concat();
        assert_eq!(addrs(&file(&bytes).exits(3).unwrap()), [0, 2]);
    }
    // 0: test edi, edi; 2: je 0x10; 8: ret: the return lies under the jump to the branch, and has a hook there
    let mut bytes = vec![0x85, 0xff, 0x0f, 0x84, 8, 0, 0, 0, 0xc3];
    bytes.resize(0x10, 0xcc);
    bytes.extend([0xc3, 0xcc, 0xcc, 0xcc, 0xcc]);
    let branch = File { bytes: &bytes, starts: vec![BASE, BASE + 0x10] };
    let exits = branch.exits(9).unwrap();
    let none = |_: Range<u64>| false;
    let placed = exits.place_all(&branch.flow(), &branch.code(), None, &none, &insn::no_room).unwrap();
    let hooks: Vec<_> = placed.iter().flat_map(|(_, p)| p.hooks.iter().map(move |h| (p.site, h))).collect();
    let found: Vec<_> = hooks.iter().map(|(site, h)| (site + u64::from(h.offset) - BASE, h.taken)).collect();
    assert_eq!(found, [(2, Some(BASE + 0x10)), (8, None)]);
}

#[test]
fn exits_under_one_jump_are_hooks_of_one_probe() {
    // 0: je 0x10; 2: mov eax, edi; 4: ret: five bytes
    let mut bytes = vec![0x74, 0x0e, 0x89, 0xf8, 0xc3];
    bytes.resize(0x10, 0xcc);
    bytes.extend([0xc3, 0xcc, 0xcc, 0xcc, 0xcc]);
    let branch = File { bytes: &bytes, starts: vec![BASE, BASE + 0x10] };
    let exits = branch.exits(5).unwrap();
    let none = |_: Range<u64>| false;
    let placed = exits.place_all(&branch.flow(), &branch.code(), None, &none, &insn::no_room).unwrap();
    assert_eq!(placed.len(), 1);
    let hooks: Vec<_> = placed[0].1.hooks.iter().map(|h| (h.offset, h.taken)).collect();
    assert_eq!(hooks, [(0, Some(BASE + 0x10)), (4, None)]);
}

#[test]
fn what_is_jumped_to_with_the_frame_up_is_a_part_and_no_function() {
    // 0: push rbx; 1: jne 8; 3: pop rbx; 4: ret; 8: pop rbx; 9: je 0xf; b: jmp 0x10; f: ret; 10: ret
    let bytes = [
        0x53, 0x75, 0x05, 0x5b, 0xc3, 0x90, 0x90, 0x90, 0x5b, 0x74, 0x04, 0xeb, 0x03, 0x90, 0x90, 0xc3, 0xc3,
    ];
    let framed = File { bytes: &bytes, starts: vec![BASE, BASE + 8, BASE + 0x10] };
    // In the part the frame is down where it jumps on to a function.
    assert_eq!(addrs(&framed.exits(5).unwrap()), [4, 0xb, 0xf]);
}

#[test]
fn what_cannot_be_said_is_refused() {
    // 0: jrcxz 4; 2: ret; 3: nop; 4: ret: a condition without an opposite
    let bytes = [0xe3, 0x02, 0xc3, 0x90, 0xc3];
    let counted = File { bytes: &bytes, starts: vec![BASE, BASE + 4] };
    assert_eq!(counted.exits(3).err(), Some(NoExits::ConditionalTailJump { at: BASE }));
    // call; ud2
    let endless = [0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
    assert_eq!(file(&endless).exits(7).err(), Some(NoExits::NeverReturns));
    assert_eq!(file(&[0x06, 0xc3]).exits(2).err(), Some(NoExits::Undecodable { at: BASE }));
}

#[test]
fn the_jump_stands_as_few_instructions_before_the_exit_as_it_can() {
    // 0: nop [rax+rax] (5); 5: mov eax,ebx; 7: pop rbx; 8: pop rbp; 9: pop r12; b: ret; c: mov eax, 1
    let bytes = [
        0x0f, 0x1f, 0x44, 0, 0, 0x89, 0xd8, 0x5b, 0x5d, 0x41, 0x5c, 0xc3, 0xb8, 1, 0, 0, 0, 0xc3, 0xcc, 0xcc,
    ];
    let placed = file(&bytes).place(18, 0xb).unwrap();
    assert_eq!((placed.site, placed.rung, placed.hooks[0].offset), (BASE + 7, Rung::Window, 4));
    assert!(!placed.hooks[0].flags_dead && !placed.hooks[0].is_red_zone_free, "nothing proves either");
    let before = relocate_part(&placed, 0, 0x9000, 0..4).unwrap();
    assert_eq!(before.bytes, [0x5b, 0x5d, 0x41, 0x5c]);
    let rest = relocate_part(&placed, 0, 0x9100, 4..u8::MAX).unwrap();
    assert_eq!((rest.bytes.as_slice(), rest.ends_with_flow), (&[0xc3][..], true));
    assert_eq!(rest.copy_of(4), Some(0));
    assert_eq!(before.origin_of(1).unwrap().offset, 1);
}

#[test]
fn the_exit_itself_may_stay_in_place_behind_the_window() {
    // 0: add rsp, 0x1000 (7); 7: ret; 8: ret
    let bytes = [0x48, 0x81, 0xc4, 0, 0x10, 0, 0, 0xc3, 0xc3];
    let placed = file(&bytes).place(9, 7).unwrap();
    assert_eq!((placed.site, placed.rung, placed.displaced_len), (BASE, Rung::Jump, 7));
    assert_eq!(placed.hooks[0].offset, 7);
    let rest = relocate_part(&placed, 0, 0x9000, 7..u8::MAX).unwrap();
    assert_eq!(rest.bytes.len(), 5, "a jump back to the return");
    assert!(!rest.ends_with_flow);
}

#[test]
fn what_lies_between_the_jump_and_the_exit_runs_before_the_probe() {
    // 0: add rsp, 8 (4); 4: pop rbx; 5: pop r14; 7: ret; 8: mov eax, ebx; a: ret
    let bytes = [0x48, 0x83, 0xc4, 0x08, 0x5b, 0x41, 0x5e, 0xc3, 0x89, 0xd8, 0xc3];
    let placed = file(&bytes).place(11, 7).unwrap();
    assert_eq!((placed.site, placed.patch_len, placed.displaced_len), (BASE, 5, 7));
    assert_eq!(placed.hooks[0].offset, 7);
    assert_eq!(relocate_part(&placed, 0, 0x9000, 0..7).unwrap().bytes, bytes[..7]);
    let rest = relocate_part(&placed, 0, 0x9000, 7..u8::MAX).unwrap();
    assert_eq!(rest.map, [(7, 0)], "a jump back to the return");
}

#[test]
fn nothing_may_come_in_between_the_jump_and_the_exit() {
    // 0: je 8; 2: mov eax, ebx; 4: pop rbx; 5: pop rbp; 6: pop r12; 8: ret; 9: mov eax, ebx (3 times); f: ret
    let bytes =
        [0x74, 0x06, 0x89, 0xd8, 0x5b, 0x5d, 0x41, 0x5c, 0xc3, 0x89, 0xd8, 0x89, 0xd8, 0x89, 0xd8, 0xc3];
    let refused = file(&bytes).place(16, 8).unwrap_err();
    let Refusal::NoRung { why_not, .. } = refused else { panic!("{refused}") };
    assert!(why_not.iter().any(|(_, r)| matches!(r, Reason::FollowedByCode { .. })), "{why_not:?}");
}

#[test]
fn a_tiny_function_has_its_exit_under_the_jump_of_its_entry() {
    // nop; ret; int3 x3
    let bytes = [0x90, 0xc3, 0xcc, 0xcc, 0xcc];
    let file = file(&bytes);
    let (flow, codes) = (file.flow(), file.code());
    let exits = file.exits(2).unwrap();
    let function = Some(BASE..BASE + 2);
    let asked =
        insn::Asked { site: BASE, function, next_function: None, taken: &|_| false, room: &insn::no_room };
    let mut entry = insn::place(&flow, &codes, &asked).unwrap();
    assert!(exits.share(&codes, &mut entry, BASE + 1));
    assert_eq!(entry.hooks.iter().map(|h| h.offset).collect::<Vec<_>>(), [0, 1]);
    assert!(!exits.share(&codes, &mut entry, BASE + 1), "once");
}

#[test]
fn a_function_of_one_return_has_two_hooks_before_it() {
    let bytes = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc];
    let file = file(&bytes);
    let (flow, codes) = (file.flow(), file.code());
    let asked = insn::Asked {
        site: BASE,
        function: Some(BASE..BASE + 1),
        next_function: None,
        taken: &|_| false,
        room: &insn::no_room,
    };
    let mut entry = insn::place(&flow, &codes, &asked).unwrap();
    assert!(file.exits(1).unwrap().share(&codes, &mut entry, BASE));
    assert_eq!(entry.hooks.iter().map(|h| h.offset).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn a_taken_exit_is_refused() {
    let bytes = [0xe9, 0, 0x10, 0, 0];
    let file = File { bytes: &bytes, starts: vec![BASE, BASE + 0x1005] };
    let exits = file.exits(5).unwrap();
    let taken = |range: Range<u64>| range.contains(&BASE);
    let refused = exits.place(&file.flow(), &file.code(), BASE, &taken, &insn::no_room).unwrap_err();
    let Refusal::NoRung { why_not, .. } = refused else { panic!("{refused}") };
    assert!(why_not.iter().any(|(_, r)| matches!(r, Reason::Taken { .. })), "{why_not:?}");
}

/// pop r13, pop r14, pop r15, ret; mov eax, 1, ret; padding. Another probe's jump is at the second pop: from the first one a
/// two-byte jump to an island would fit, and its copy would come back into the middle of the other jump.
#[test]
fn a_copy_does_not_run_what_is_under_another_jump() {
    let mut bytes = vec![0x41, 0x5d, 0x41, 0x5e, 0x41, 0x5f, 0xc3, 0xb8, 1, 0, 0, 0, 0xc3];
    bytes.resize(32, 0xcc);
    let file = File { bytes: &bytes, starts: vec![BASE] };
    let exits = file.exits(13).unwrap();
    let place = |taken: &dyn Fn(Range<u64>) -> bool| {
        exits.place(&file.flow(), &file.code(), BASE + 6, taken, &insn::no_room)
    };
    assert_eq!(place(&|_| false).unwrap().site, BASE + 2);
    let (start, end) = (BASE + 2, BASE + 7);
    let refused = place(&|range| range.start < end && start < range.end).unwrap_err();
    let Refusal::NoRung { why_not, .. } = refused else { panic!("{refused}") };
    assert!(why_not.iter().any(|(_, r)| matches!(r, Reason::Taken { .. })), "{why_not:?}");
}

/// Places the entry at `BASE` on an island and then the exits of `len` bytes with it.
fn with_entry_on_an_island(bytes: &[u8], len: u64) -> Result<insn::Placement, Refusal> {
    let file = File { bytes, starts: vec![BASE, BASE + len] };
    let (flow, codes) = (file.flow(), file.code());
    let (function, free) = (Some(BASE..BASE + len), |_: Range<u64>| false);
    let asked = insn::Asked { site: BASE, function, next_function: None, taken: &free, room: &insn::no_room };
    let mut entry = insn::place(&flow, &codes, &asked)?;
    assert_eq!((entry.rung, entry.displaced.len()), (Rung::Island, 1));
    let exits = file.exits(len).unwrap();
    let own = exits.place_all(&flow, &codes, Some(&mut entry), &free, &insn::no_room);
    own.map(|own| assert!(own.is_empty())).map_err(|(_, why)| why)?;
    Ok(entry)
}

#[test]
fn an_exit_without_room_close_behind_the_entry_is_displaced_with_it() {
    // 0: mov rax, rdi; 3: ret; 4: the next function, and padding for the island
    let bytes = [0x48, 0x89, 0xf8, 0xc3, 0x6a, 0x55, 0x58, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
    let entry = with_entry_on_an_island(&bytes, 4).unwrap();
    assert_eq!(entry.hooks.iter().map(|h| h.offset).collect::<Vec<_>>(), [0, 3]);
    assert_eq!((entry.patch_len, entry.displaced_len, entry.ends_with_flow), (2, 4, true));
    // 0: mov eax, edi; 2: jne 4; 4: ret: something jumps to the exit
    let bytes = [0x89, 0xf8, 0x75, 0x00, 0xc3, 0x6a, 0x55, 0x58, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
    assert!(with_entry_on_an_island(&bytes, 5).is_err());
}
