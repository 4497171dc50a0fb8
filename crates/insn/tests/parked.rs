//! Where a program parks threads that nobody sees, as Go does: what of a site may change there.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]

use std::ops::Range;

use insn::{Asked, Code, Exits, Flow, Placement, Pun, Reason, Refusal, Rung, no_room, place};

const BASE: u64 = 0x1000;
/// The stack pointer, the frame pointer and r14.
const GOOD: u16 = 1 << 4 | 1 << 5 | 1 << 14;
/// cmp rsp, [r14+0x10]; jbe; push rbp; mov rbp, rsp; nop; nop; ret: a Go function begins so.
const ENTRY: [u8; 13] = [0x49, 0x3b, 0x66, 0x10, 0x76, 0x20, 0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0xc3];

fn placed(
    bytes: &[u8],
    site: u64,
    unsafe_points: &[Range<u64>],
    room: &dyn Fn(Pun) -> bool,
) -> Result<Placement, Refusal> {
    let code = [Code { base: BASE, bytes }];
    let flow = Flow::analyse(&code, &[BASE], &[], &|_| vec![])
        .with_parked_threads(unsafe_points.to_vec(), GOOD.into());
    let function = Some(BASE..BASE + bytes.len() as u64);
    let asked = Asked { site, function, next_function: None, taken: &|_| false, room };
    place(&flow, &code, &asked)
}

fn reason(placed: Result<Placement, Refusal>, rung: Rung) -> Reason {
    let Err(Refusal::NoRung { why_not, .. }) = placed else { panic!("{placed:?}") };
    why_not.iter().find(|(of, _)| *of == rung).unwrap_or_else(|| panic!("{why_not:?}")).1
}

#[test]
fn without_unsafe_points_only_the_first_instruction_changes() {
    let placement = placed(&ENTRY, BASE, &[], &|_| true).unwrap();
    assert_eq!((placement.rung, placement.displaced.len(), placement.displaced_len), (Rung::Punned, 1, 4));
    assert_eq!(placement.pun.unwrap().first, BASE + 5 + 0x7600_0000);
    assert_eq!(reason(placed(&ENTRY, BASE, &[], &no_room), Rung::Window), Reason::Parked { at: BASE + 4 });
    assert_eq!(reason(placed(&ENTRY, BASE, &[], &no_room), Rung::Island), Reason::UnknownPadding);
    // One instruction of five bytes, and a last one with padding behind it, are as elsewhere.
    assert_eq!(placed(&[0xb8, 1, 0, 0, 0, 0xc3], BASE, &[], &no_room).unwrap().rung, Rung::Jump);
    let ret = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
    assert_eq!(placed(&ret, BASE, &[], &no_room).unwrap().rung, Rung::Window);
}

#[test]
fn an_instruction_that_is_an_unsafe_point_may_be_under_a_window() {
    let branch = [BASE + 4..BASE + 6];
    let placement = placed(&ENTRY, BASE, &branch, &no_room).unwrap();
    assert_eq!((placement.rung, placement.displaced.len(), placement.displaced_len), (Rung::Window, 2, 6));
}

#[test]
fn each_start_of_an_instruction_under_the_jump_is_looked_up() {
    // At push rbp: mov rbp, rsp and the first nop would be covered too.
    let push = BASE + 6;
    let all = || [push + 1..push + 5];
    assert_eq!(placed(&ENTRY, push, &all(), &no_room).unwrap().rung, Rung::Window);
    // Its own start need not be one; each of the others must.
    for (points, at) in [
        (vec![push..push + 4], push + 4),
        (vec![push + 2..push + 5], push + 1),
        (vec![BASE..push + 1, push + 4..BASE + 13], push + 1),
        (vec![], push + 1),
    ] {
        assert_eq!(reason(placed(&ENTRY, push, &points, &no_room), Rung::Window), Reason::Parked { at });
    }
}

#[test]
fn a_call_under_the_jump_is_refused_at_an_unsafe_point_too() {
    // nop; call; nop: the callee returns into the window.
    let bytes = [0x31, 0xc0, 0xff, 0xd0, 0x90, 0x90, 0x90, 0xc3];
    let points = [BASE..BASE + 8];
    assert_eq!(
        reason(placed(&bytes, BASE, &points, &no_room), Rung::Window),
        Reason::CallInside { at: BASE + 2 }
    );
}

#[test]
fn an_instruction_that_may_fault_is_displaced_as_the_first_only() {
    // mov rbx, rax; mov rcx, [rax]; mov rcx, [rsp]; ret
    let bytes = [0x48, 0x89, 0xc3, 0x48, 0x8b, 0x08, 0x48, 0x8b, 0x0c, 0x24, 0xc3];
    let points = [BASE..BASE + 11];
    let window = reason(placed(&bytes, BASE, &points, &no_room), Rung::Window);
    assert_eq!(window, Reason::MayFault { at: BASE + 3 });
    assert_eq!(
        placed(&bytes, BASE, &points, &|_| true).unwrap().displaced.len(),
        1,
        "a shorter jump does without it"
    );
    assert_eq!(
        placed(&bytes, BASE + 3, &points, &no_room).unwrap().displaced.len(),
        2,
        "it is the first, the stack is good"
    );
}

#[test]
fn a_jump_with_one_address_changes_its_first_byte_only() {
    // push rbp; mov rbp, rsp; sub rsp, 24: the next four bytes lead 0x48e58948 bytes on.
    let bytes = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x18, 0xc3];
    let placement = placed(&bytes, BASE, &[], &|_| true).unwrap();
    assert_eq!((placement.rung, placement.displaced.len(), placement.displaced_len), (Rung::Punned, 1, 1));
    let pun = placement.pun.unwrap();
    assert_eq!((pun.first, pun.count), (BASE + 5 + 0x48e5_8948, 1));
    assert_eq!(pun.only(0x5000), Some(pun.first + 0x5000));
    assert_eq!(placed(&ENTRY, BASE, &[], &|_| true).unwrap().pun.unwrap().only(0), None);
    let asked_for = |pun: Pun| pun.count > 1;
    assert_eq!(reason(placed(&bytes, BASE, &[], &asked_for), Rung::Punned), Reason::NoRoom { count: 1 });
}

#[test]
fn before_an_exit_the_jump_with_the_most_addresses_is_taken() {
    // add rsp, 24; pop rbp; ret; mov rax, [rsp]; nop: from the return and the pop a jump leads to one address
    let bytes = [0x48, 0x83, 0xc4, 0x18, 0x5d, 0xc3, 0x48, 0x8b, 0x04, 0x24, 0x90];
    let code = [Code { base: BASE, bytes: &bytes }];
    let flow = Flow::analyse(&code, &[BASE], &[], &|_| vec![]).with_parked_threads(vec![], GOOD.into());
    let exits = Exits::of(&flow, &code, BASE..BASE + 6, &|_| false).unwrap();
    let placement = exits.place(&flow, &code, BASE + 5, &|_| false, &|_| true).unwrap();
    assert_eq!((placement.site, placement.pun.unwrap().count), (BASE, 1 << 24));
}
