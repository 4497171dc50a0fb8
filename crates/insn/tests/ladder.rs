//! Which rung a site gets, and why not a higher one: one test for each rule of the ladder.

use std::ops::Range;

use insn::{
    Asked, Code, Flow, Forbidden, Placement, Pun, Reason, Refusal, Rung, no_room, place, relocate,
    relocate_len_bound,
};

const BASE: u64 = 0x1000;

/// A file of one function that starts at `BASE`, is `len` bytes long, and is followed by what is left.
struct File<'a> {
    bytes: &'a [u8],
    len: u64,
    starts: Vec<u64>,
    indirect: Vec<u64>,
    tables: Vec<u64>,
}

impl<'a> File<'a> {
    fn new(bytes: &'a [u8]) -> File<'a> {
        File { bytes, len: bytes.len() as u64, starts: vec![BASE], indirect: vec![], tables: vec![] }
    }

    fn function_len(mut self, len: u64) -> File<'a> {
        self.len = len;
        self
    }

    fn code(&self) -> [Code<'a>; 1] {
        [Code { base: BASE, bytes: self.bytes }]
    }

    fn flow(&self) -> Flow {
        Flow::analyse(&self.code(), &self.starts, &self.indirect, &|_| self.tables.clone())
    }

    fn place_with(&self, offset: u64, taken: &dyn Fn(Range<u64>) -> bool) -> Result<Placement, Refusal> {
        let function = Some(BASE..BASE + self.len);
        let asked = Asked { site: BASE + offset, function, next_function: None, taken, room: &no_room };
        place(&self.flow(), &self.code(), &asked)
    }

    fn place_where(&self, room: &dyn Fn(Pun) -> bool) -> Result<Placement, Refusal> {
        let function = Some(BASE..BASE + self.len);
        let asked = Asked { site: BASE, function, next_function: None, taken: &|_| false, room };
        place(&self.flow(), &self.code(), &asked)
    }

    fn place(&self, offset: u64) -> Result<Placement, Refusal> {
        self.place_with(offset, &|_| false)
    }
}

fn place_first(bytes: &[u8]) -> Result<Placement, Refusal> {
    File::new(bytes).place(0)
}

fn reason(placed: Result<Placement, Refusal>, rung: Rung) -> Reason {
    let why_not = match placed {
        Ok(placement) => placement.why_not,
        Err(Refusal::NoRung { why_not, .. }) => why_not,
        Err(other) => panic!("{other}"),
    };
    why_not.iter().find(|(of, _)| *of == rung).unwrap_or_else(|| panic!("{why_not:?}")).1
}

#[test]
fn a_nop_of_five_bytes_is_rung_1() {
    let placed = place_first(&[0x0f, 0x1f, 0x44, 0, 0, 0xc3]).unwrap();
    assert_eq!((placed.rung, placed.patch_len, placed.displaced_len), (Rung::Nop, 5, 5));
    assert!(placed.why_not.is_empty() && placed.hooks[0].is_red_zone_free);
    let copy = relocate(&placed, 0, 0x2000).unwrap();
    assert_eq!(copy.bytes, [0xe9, 0x00, 0xf0, 0xff, 0xff]); // jmp 0x1005
}

#[test]
fn a_nine_byte_nop_is_displaced_whole_and_five_bytes_are_patched() {
    let placed = place_first(&[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xc3]).unwrap();
    assert_eq!((placed.rung, placed.patch_len, placed.displaced_len), (Rung::Nop, 5, 9));
}

#[test]
fn one_instruction_of_five_bytes_is_rung_2() {
    let placed = place_first(&[0xb8, 1, 0, 0, 0, 0xc3]).unwrap();
    assert_eq!(placed.rung, Rung::Jump);
    assert_eq!(placed.why_not, [(Rung::Nop, Reason::NotANop)]);
}

#[test]
fn several_short_instructions_are_rung_3_and_no_more_than_needed() {
    let placed = place_first(&[0x55, 0x48, 0x89, 0xe5, 0x50, 0x51, 0xc3]).unwrap();
    assert_eq!((placed.rung, placed.displaced.len(), placed.displaced_len), (Rung::Window, 3, 5));
    let why = [(Rung::Nop, Reason::NotANop), (Rung::Jump, Reason::Short { len_bytes: 1 })];
    assert_eq!(placed.why_not, why);
}

#[test]
fn functions_of_one_to_four_bytes_use_the_padding_behind_them() {
    let bodies: [&[u8]; 4] = [&[0xc3], &[0xf3, 0xc3], &[0x31, 0xc0, 0xc3], &[0x48, 0x89, 0xf8, 0xc3]];
    let paddings: [&[u8]; 4] = [
        &[0xcc; 8],
        &[0x90; 8],
        &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        &[0x66, 0x90, 0x0f, 0x1f, 0x44, 0, 0, 0xcc],
    ];
    for body in bodies {
        for padding in paddings {
            let bytes = [body, padding, &[0x55]].concat();
            let mut file = File::new(&bytes).function_len(body.len() as u64);
            file.starts.push(BASE + bytes.len() as u64 - 1);
            let placed = file.place(0).unwrap();
            assert_eq!((placed.rung, placed.patch_len), (Rung::Window, 5), "{bytes:x?}");
            assert_eq!(usize::from(placed.padding_used), 5 - body.len());
            assert_eq!(usize::from(placed.displaced_len), body.len());
            let copy = relocate(&placed, 0x7000_0000, 0x7000_2000).unwrap();
            assert_eq!(copy.bytes, body, "nothing is jumped back to");
            assert!(copy.ends_with_flow);
        }
    }
}

#[test]
fn a_short_function_without_padding_is_refused_for_rungs_1_to_4() {
    for body in [&[0xc3][..], &[0xf3, 0xc3], &[0x31, 0xc0, 0xc3], &[0x48, 0x89, 0xf8, 0xc3]] {
        let bytes = [body, &[0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3]].concat();
        let mut file = File::new(&bytes).function_len(body.len() as u64);
        let next = BASE + body.len() as u64;
        file.starts.push(next);
        let placed = file.place(0);
        assert_eq!(reason(placed.clone(), Rung::Window), Reason::FunctionStart { at: next });
        let Err(Refusal::NoRung { why_not, needs, .. }) = placed else { panic!() };
        assert_eq!((why_not.len(), needs), (5, Rung::Trap), "{body:x?}");
    }
}

#[test]
fn a_jump_with_one_byte_on_a_page_is_refused() {
    let bytes = [[0x90; 0xfff].as_slice(), &[0xb8, 1, 0, 0, 0, 0x90, 0x90, 0xc3]].concat();
    let file = File::new(&bytes);
    assert_eq!(reason(file.place(0xfff), Rung::Jump), Reason::PageEnd);
    assert_eq!(file.place(0xffe).unwrap().rung, Rung::Window);
}

#[test]
fn a_punned_jump_keeps_every_byte_behind_what_it_displaces() {
    // mov rax,rdi; ret; the next function begins with 55 48 89
    let bytes = [0x48, 0x89, 0xf8, 0xc3, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
    let mut file = File::new(&bytes).function_len(4);
    file.starts.push(BASE + 4);
    let placed = file.place_where(&|_| true).unwrap();
    assert_eq!((placed.rung, placed.patch_len, placed.displaced_len), (Rung::Punned, 5, 4));
    let pun = placed.pun.unwrap();
    assert_eq!((pun.first, pun.count), (BASE + 5 + 0x5500_0000, 1 << 24));
    // Every address that it names leaves the fifth byte as it is, and no other does.
    let fifth = |to: u64| ((to.wrapping_sub(BASE + 5) as i32).to_le_bytes())[3];
    assert!([pun.first, pun.first + pun.count - 1].into_iter().all(|to| fifth(to) == 0x55));
    assert!([pun.first - 1, pun.first + pun.count].into_iter().all(|to| fifth(to) != 0x55));
    assert!(placed.why_not.iter().map(|(rung, _)| *rung).eq([
        Rung::Nop,
        Rung::Jump,
        Rung::Window,
        Rung::Island
    ]));
}

#[test]
fn a_punned_jump_that_leads_backwards_wraps_below_the_image() {
    // xor eax,eax; ret, then 55 95: the displacement's last two bytes
    let bytes = [0x31, 0xc0, 0xc3, 0x55, 0x95, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
    let mut file = File::new(&bytes).function_len(3);
    file.starts.push(BASE + 3);
    let pun = file.place_where(&|_| true).unwrap().pun.unwrap();
    assert_eq!(pun.first, (BASE + 5).wrapping_sub(0x6aab_0000), "{pun:x?}");
    assert_eq!(pun.count, 1 << 16);
    assert_eq!(pun.in_process(0x5555_5555_0000).start, 0x5555_5555_0000 + BASE + 5 - 0x6aab_0000);
}

#[test]
fn where_a_longer_pun_finds_no_room_a_shorter_one_is_tried() {
    // mov eax,edi; inc eax; jmp 2: the third byte is a target, so two bytes are free
    let bytes = [0x89, 0xf8, 0xff, 0xc0, 0xeb, 0xfc, 0x55, 0x48];
    let file = File::new(&bytes);
    let asked = std::cell::RefCell::new(Vec::new());
    let refused = file.place_where(&|pun| {
        asked.borrow_mut().push(pun.count);
        false
    });
    assert_eq!(reason(refused, Rung::Punned), Reason::NoRoom { count: 256 });
    assert_eq!(*asked.borrow(), [256]);
    // push rbp; push rbx; push rcx; then a target
    let bytes = [0x55, 0x53, 0x51, 0x52, 0xeb, 0xfd, 0xc3];
    let file = File::new(&bytes);
    let small = file.place_where(&|pun| pun.count == 256).unwrap();
    assert_eq!((small.displaced_len, small.pun.unwrap().count), (2, 256));
    let large = file.place_where(&|_| true).unwrap();
    assert_eq!((large.displaced_len, large.pun.unwrap().count), (3, 1 << 16));
}

#[test]
fn a_return_that_stands_alone_cannot_be_punned() {
    let bytes = [0xc3, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
    let mut file = File::new(&bytes).function_len(1);
    file.starts.push(BASE + 1);
    let refused = file.place_where(&|_| true);
    assert_eq!(reason(refused, Rung::Punned), Reason::FunctionStart { at: BASE + 1 });
}

#[test]
fn padding_that_something_points_at_is_not_used() {
    let bytes = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
    let mut file = File::new(&bytes).function_len(1);
    file.indirect.push(BASE + 3);
    assert_eq!(reason(file.place(0), Rung::Window), Reason::Target { at: BASE + 3, from: None });
}

#[test]
fn code_behind_a_return_is_not_padding_even_if_nobody_is_known_to_jump_to_it() {
    let bytes = [0x31, 0xc0, 0xc3, 0x31, 0xd2, 0xc3];
    assert_eq!(reason(place_first(&bytes), Rung::Window), Reason::FollowedByCode { at: BASE + 3 });
}

#[test]
fn a_branch_into_the_window_lowers_the_rung_and_is_named() {
    // 0 push rbp; 1 mov rbp,rsp; 4 dec ecx; 6 jnz 1; 8 ret; then no padding
    let bytes = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xc9, 0x75, 0xf9, 0xc3];
    let file = File::new(&bytes);
    let Err(Refusal::NoRung { mut why_not, needs, .. }) = file.place(0) else { panic!() };
    assert_eq!(why_not[2], (Rung::Window, Reason::Target { at: BASE + 1, from: None }));
    assert_eq!(needs, Rung::Trap);
    file.flow().name_sources(&file.code(), Some(BASE..BASE + 9), &mut why_not);
    assert_eq!(why_not[2].1.to_string(), "0x1001 is referred to from 0x1006");
}

#[test]
fn a_branch_to_the_site_itself_does_no_harm() {
    // dec ecx; jnz 0; nop; nop; ret
    let placed = place_first(&[0xff, 0xc9, 0x75, 0xfc, 0x90, 0x90, 0xc3]).unwrap();
    assert_eq!((placed.rung, placed.displaced.len()), (Rung::Window, 3));
}

#[test]
fn a_branch_behind_a_lock_prefix_stops_even_a_long_instruction() {
    // 0 je 3; 2 lock cmpxchg [rdi+0x11223344],esi; ret: single-threaded code jumps past the prefix
    let bytes = [0x74, 0x01, 0xf0, 0x0f, 0xb1, 0xb7, 0x44, 0x33, 0x22, 0x11, 0xc3];
    assert_eq!(reason(File::new(&bytes).place(2), Rung::Jump), Reason::Target { at: BASE + 3, from: None });
}

#[test]
fn a_branch_into_the_tail_that_keeps_its_bytes_does_no_harm() {
    // movabs rax, imm64; the target is byte 7, which the jump does not cover
    let bytes = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xeb, 0xfb, 0xc3];
    let placed = place_first(&bytes).unwrap();
    assert_eq!((placed.rung, placed.patch_len, placed.displaced_len), (Rung::Jump, 5, 10));
}

#[test]
fn a_jump_table_target_inside_lowers_the_rung() {
    // lea rax,[rip+0x100]; push rbp; push rbx; push rcx; push rdx; push rsi; ret
    let bytes = [0x48, 0x8d, 0x05, 0, 1, 0, 0, 0x55, 0x53, 0x51, 0x52, 0x56, 0xc3];
    let mut file = File::new(&bytes);
    assert_eq!(file.place(7).unwrap().rung, Rung::Window);
    file.tables.push(BASE + 9);
    assert_eq!(reason(file.place(7), Rung::Window), Reason::Target { at: BASE + 9, from: None });
}

#[test]
fn a_call_is_the_last_of_a_window_or_in_none() {
    // mov rdi,rax; call rax: 5 bytes
    assert_eq!(place_first(&[0x48, 0x89, 0xc7, 0xff, 0xd0, 0xc3]).unwrap().displaced.len(), 2);
    // push rax; call rax; pop rcx; ret
    let reason = reason(place_first(&[0x50, 0xff, 0xd0, 0x59, 0xc3]), Rung::Window);
    assert_eq!(reason, Reason::CallInside { at: BASE + 1 });
}

#[test]
fn a_system_call_may_be_first_and_never_later() {
    // syscall; cmp rax,-4095; ret
    let bytes = [0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3];
    assert_eq!(place_first(&bytes).unwrap().rung, Rung::Window);
    // xor eax,eax; syscall; ret; nop
    let bytes = [0x31, 0xc0, 0x0f, 0x05, 0xc3, 0x90, 0x90];
    assert_eq!(reason(place_first(&bytes), Rung::Window), Reason::SyscallInside { at: BASE + 2 });
}

#[test]
fn falling_out_of_a_function_ends_the_window() {
    let bytes = [0x55, 0x53, 0x51, 0x52, 0x56, 0x57, 0xc3];
    let file = File::new(&bytes).function_len(2);
    assert_eq!(reason(file.place(0), Rung::Window), Reason::EndOfFunction { at: BASE + 2 });
}

#[test]
fn code_that_ends_under_the_jump_is_refused() {
    assert_eq!(reason(place_first(&[0x31, 0xc0, 0xc3]), Rung::Window), Reason::EndOfCode { at: BASE + 3 });
}

#[test]
fn an_island_is_the_nearest_free_padding() {
    // 0 mov eax,edi; 2 dec ecx; 4 jnz 2; 6 ret; 7.. int3 x 12
    let bytes = [&[0x89, 0xf8, 0xff, 0xc9, 0x75, 0xfc, 0xc3][..], &[0xcc; 12]].concat();
    let file = File::new(&bytes);
    let placed = file.place(0).unwrap();
    assert_eq!((placed.rung, placed.patch_len, placed.island), (Rung::Island, 2, Some(BASE + 7)));
    assert_eq!(placed.island_patch(), Some(BASE + 7..BASE + 12));
    assert_eq!(placed.why_not.len(), 3);
    let second = file.place_with(0, &|range| range.start < BASE + 12 && BASE + 7 < range.end).unwrap();
    assert_eq!(second.island, Some(BASE + 12));
    let none = file.place_with(0, &|range| range.end > BASE + 7);
    assert_eq!(reason(none, Rung::Island), Reason::NoIsland);
}

#[test]
fn an_island_is_within_reach_of_a_short_jump() {
    let body = [0x89, 0xf8, 0xff, 0xc9, 0x75, 0xfc];
    for (distance, is_reached) in [(127, true), (128, false)] {
        let mut bytes = body.to_vec();
        bytes.resize(2 + distance - 1, 0x50); // push rax
        bytes.push(0xc3);
        bytes.extend([0xcc; 5]);
        let placed = place_first(&bytes);
        assert_eq!(placed.is_ok(), is_reached, "{distance}");
        if let Ok(placed) = placed {
            assert_eq!(placed.island, Some(BASE + 2 + distance as u64));
        }
    }
}

#[test]
fn an_island_may_stand_before_the_site() {
    for (distance, is_reached) in [(128, true), (129, false)] {
        // ret; int3 x 5; push rax ...; site: mov eax,edi; dec ecx; jnz .-2; ret
        let mut bytes = vec![0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
        bytes.resize(1 + distance - 2, 0x50);
        let site = bytes.len() as u64;
        bytes.extend([0x89, 0xf8, 0xff, 0xc9, 0x75, 0xfc, 0xc3]);
        let placed = File::new(&bytes).place(site);
        assert_eq!(placed.is_ok(), is_reached, "{distance}: {placed:?}");
    }
}

#[test]
fn nothing_is_put_on_bytes_of_another_probe() {
    let file = File::new(&[0x55, 0x53, 0x51, 0x52, 0x56, 0x57, 0xc3]);
    let placed = file.place_with(0, &|range| range.contains(&(BASE + 4)));
    assert_eq!(reason(placed, Rung::Window), Reason::Taken { at: BASE, len_bytes: 5 });
}

#[test]
fn a_site_inside_an_instruction_is_refused_with_its_start() {
    let placed = File::new(&[0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3]).place(2);
    assert_eq!(placed, Err(Refusal::MidInstruction { asked: BASE + 2, start: BASE + 1 }));
    assert_eq!(placed.unwrap_err().to_string(), "0x1002 is inside the instruction that starts at 0x1001");
}

#[test]
fn a_site_outside_code_is_refused() {
    let file = File::new(&[0xc3]);
    assert_eq!(file.place(1), Err(Refusal::OutsideCode { site: BASE + 1 }));
}

#[test]
fn what_may_not_be_moved_is_refused_by_name() {
    let cases: &[(&[u8], Forbidden)] = &[
        (&[0xcc], Forbidden::Trap),
        (&[0xf1], Forbidden::Trap),
        (&[0xcd, 0x80], Forbidden::Trap),
        (&[0x0f, 0x0b], Forbidden::Undefined),
        (&[0x0f, 0xb9, 0xc0], Forbidden::Undefined),
        (&[0xf4], Forbidden::Privileged),
        (&[0xec], Forbidden::Privileged),
        (&[0x6c], Forbidden::Privileged),
        (&[0xfa], Forbidden::Privileged),
        (&[0x0f, 0x07], Forbidden::Privileged),
        (&[0x0f, 0x34], Forbidden::Privileged),
        (&[0x0f, 0x01, 0x10], Forbidden::Privileged),
        (&[0x8e, 0xd0], Forbidden::StackSegment),
        (&[0xcf], Forbidden::FarBranch),
        (&[0xcb], Forbidden::FarBranch),
        (&[0xff, 0x18], Forbidden::FarBranch),
        (&[0xff, 0x28], Forbidden::FarBranch),
        (&[0x66, 0xe9, 0, 0, 0, 0], Forbidden::SixteenBitBranch),
        (&[0x66, 0xe8, 0, 0, 0, 0], Forbidden::SixteenBitBranch),
        (&[0x66, 0xc3], Forbidden::SixteenBitBranch),
        (&[0x66, 0x74, 0x00], Forbidden::SixteenBitBranch),
        (&[0x66, 0xff, 0xd0], Forbidden::SixteenBitBranch),
        (&[0x4e, 0x66, 0xeb, 0], Forbidden::SixteenBitBranch),
        (&[0x67, 0x8b, 0x05, 0, 0, 0, 0], Forbidden::AddressSize),
        (&[0xff, 0xd4], Forbidden::CallOfStackPointer),
        (&[0xc7, 0xf8, 0, 0, 0, 0], Forbidden::Transaction),
        (&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05], Forbidden::SignalReturn),
        (&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], Forbidden::SignalReturn),
        (&[0x06], Forbidden::Undecodable),
    ];
    for (first, what) in cases {
        let bytes = [first, &[0x90; 16][..]].concat();
        assert_eq!(place_first(&bytes), Err(Refusal::Forbidden { site: BASE, what: *what }), "{first:x?}");
    }
    let code = [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05][..], &[0x90; 8]].concat();
    let second = File::new(&code).place(7);
    assert_eq!(second, Err(Refusal::Forbidden { site: BASE + 7, what: Forbidden::SignalReturn }));
    // glibc's unwind data lets the function start one byte early
    let early = [&[0x90, 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05][..], &[0x90; 8]].concat();
    let placed = place_first(&early);
    assert_eq!(placed, Err(Refusal::Forbidden { site: BASE, what: Forbidden::SignalReturn }));
}

#[test]
fn what_may_not_be_moved_is_not_pulled_into_a_window() {
    let bytes = [0x31, 0xc0, 0xcc, 0x90, 0x90, 0x90, 0xc3];
    let placed = place_first(&bytes);
    assert_eq!(reason(placed, Rung::Window), Reason::Immovable { at: BASE + 2, what: Forbidden::Trap });
    // but ud2 and hlt may end one: they fault wherever they stand
    let placed = place_first(&[0x31, 0xc0, 0x0f, 0x0b, 0xcc, 0xcc]).unwrap();
    assert_eq!((placed.padding_used, placed.ends_with_flow), (1, true));
    assert!(place_first(&[0x31, 0xc0, 0xf4, 0xcc, 0xcc]).is_ok());
}

#[test]
fn a_call_with_data16_and_rex_w_as_in_tls_sequences_is_placed() {
    // data16 data16 rex.W call
    let placed = place_first(&[0x66, 0x66, 0x48, 0xe8, 0, 0, 0, 0, 0xc3]);
    assert_eq!(placed.unwrap().rung, Rung::Jump);
}

#[test]
fn lock_and_segment_prefixes_are_moved_with_their_instruction() {
    let bytes = [0xf0, 0x48, 0x0f, 0xb1, 0x0f, 0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0, 0xc3];
    let first = File::new(&bytes).place(0).unwrap();
    assert_eq!(relocate(&first, 0, 0x9000).unwrap().bytes[..5], bytes[..5]);
    let second = File::new(&bytes).place(5).unwrap();
    assert_eq!(relocate(&second, 0, 0x9000).unwrap().bytes[..9], bytes[5..14]);
}

#[test]
fn a_copy_out_of_reach_is_refused_with_both_ends() {
    let cases: &[&[u8]] = &[
        &[0x48, 0x8b, 0x05, 0, 1, 0, 0, 0xc3],
        &[0xe9, 0, 1, 0, 0, 0xc3],
        &[0xe8, 0, 1, 0, 0, 0xc3],
        &[0xff, 0x15, 0, 1, 0, 0, 0xc3],
        &[0x0f, 0x84, 0, 1, 0, 0, 0xc3],
        &[0xb8, 0, 0, 0, 0, 0xc3],
    ];
    for bytes in cases {
        let placed = place_first(bytes).unwrap();
        assert!(relocate(&placed, 0x5555_0000_0000, 0x5555_7000_0000).is_ok(), "{bytes:x?}");
        let far = relocate(&placed, 0x5555_0000_0000, 0x5556_0000_0000).unwrap_err();
        assert!((0x5555_0000_1000..0x5555_0000_1200).contains(&far.to), "{bytes:x?}: {far}");
    }
}

#[test]
fn a_program_counter_in_the_copy_is_traced_to_its_original() {
    // endbr64; mov rdi,rax; call rax is too long for 5: endbr64 + mov (3) = 7
    let bytes = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xc7, 0xc3];
    let placed = place_first(&bytes).unwrap();
    let copy = relocate(&placed, 0, 0x3000).unwrap();
    assert_eq!(copy.map, [(0, 0), (4, 0), (7, 3)]);
    assert_eq!(copy.bytes[..3], bytes[4..7]);
    let at = |offset| copy.origin_of(offset).map(|origin| (origin.offset, origin.is_at_start));
    assert_eq!(
        (at(0), at(1), at(3), at(4), at(8)),
        (Some((4, true)), Some((4, false)), Some((7, true)), Some((7, false)), None)
    );
    assert_eq!((copy.copy_of(4), copy.copy_of(5)), (Some(0), None));
}

#[test]
fn the_stack_shift_of_a_displaced_call_is_told() {
    let placed = place_first(&[0x48, 0x89, 0xc7, 0xff, 0xd0, 0xc3]).unwrap();
    let copy = relocate(&placed, 0x5555_0000_0000, 0x5555_0000_3000).unwrap();
    // mov (3), push imm32 (5), mov dword [rsp+4] (8), jmp rax (2); the callee returns to the original code
    assert_eq!((copy.shifted, copy.resume_offset, copy.bytes.len()), (Some(8..18), 18, 18));
    assert!(copy.bytes.len() <= relocate_len_bound(&placed));
}

#[test]
fn a_thread_anywhere_in_a_copy_can_go_on_in_the_original() {
    // call [rsp-8]: push [rsp-8] (4); push [rsp] (3); two stores (16); ret
    let placed = place_first(&[0xff, 0x94, 0x24, 0xf8, 0xff, 0xff, 0xff, 0xc3]).unwrap();
    let copy = relocate(&placed, 0, 0x3000).unwrap();
    let first =
        (0..copy.bytes.len() as u16).find(|at| copy.origin_of(*at).unwrap().stack_shift_bytes == 8).unwrap();
    let shifts: Vec<u8> = [0, first, first + 3, first + 11, first + 19]
        .iter()
        .map(|at| copy.origin_of(*at).unwrap().stack_shift_bytes)
        .collect();
    assert_eq!(shifts, [0, 8, 16, 16, 16]);

    // dec rax; loop +0x20: the copy is dec (3), loop (2), jmp short (2), jmp rel32 (5), jmp back
    let placed = place_first(&[0x48, 0xff, 0xc8, 0xe2, 0x20, 0xc3]).unwrap();
    let copy = relocate(&placed, 0x10_0000, 0x10_3000).unwrap();
    let at = |offset| {
        let origin = copy.origin_of(offset).unwrap();
        (origin.offset, origin.is_at_start, origin.leads_to)
    };
    assert_eq!(at(3), (3, true, None), "the loop has not run");
    assert_eq!(at(5), (5, true, None), "it has run and was not taken");
    assert_eq!(at(7), (3, false, Some(0x10_1025)), "it has run and was taken");
    assert_eq!(at(12), (5, true, None), "the jump back");
}

#[test]
fn what_may_raise_a_signal_by_itself_is_named() {
    let stack = insn::RegSet::from(1 << 4 | 1 << 5);
    let first = |bytes: &[u8]| place_first(bytes).unwrap().may_fault(stack).map(|insn| insn.addr);
    // mov rax, [rdi]; ret
    assert_eq!(first(&[0x48, 0x8b, 0x07, 0xc3, 0xcc, 0xcc]), Some(BASE));
    // xor eax, eax; div edi; ret
    assert_eq!(first(&[0x31, 0xc0, 0xf7, 0xf7, 0xc3, 0xcc]), Some(BASE + 2));
    // rep movsb; ret
    assert_eq!(first(&[0xf3, 0xa4, 0xc3, 0xcc, 0xcc, 0xcc]), Some(BASE));
    // push rbp; mov rbp, rsp; mov eax, [rbp-4]
    assert_eq!(first(&[0x55, 0x48, 0x89, 0xe5, 0x8b, 0x45, 0xfc, 0xc3]), None);
    // lea rax, [rdi+8]; nop [rdi]; ret
    assert_eq!(first(&[0x48, 0x8d, 0x47, 0x08, 0x0f, 0x1f, 0x07, 0xc3]), None);
    // mov eax, [rip+16]; ret
    assert_eq!(first(&[0x8b, 0x05, 16, 0, 0, 0, 0xc3]), None);
    // mov rax, [rsp+rax*8]
    assert_eq!(first(&[0x48, 0x8b, 0x04, 0xc4, 0x90, 0xc3]), Some(BASE));
}

/// Where the jump stands for a probe at `offset`, at which it cannot stand itself.
fn place_earlier(bytes: &[u8], offset: u64) -> Result<Placement, Refusal> {
    let file = File::new(bytes);
    let why = file.place(offset).expect_err("no jump fits there");
    let asked = Asked {
        site: BASE + offset,
        function: Some(BASE..BASE + file.len),
        next_function: None,
        taken: &|_| false,
        room: &no_room,
    };
    insn::place_earlier(&file.flow(), &file.code(), &asked, why)
}

#[test]
fn where_no_jump_fits_it_stands_earlier_if_nothing_leads_between() {
    // 0: mov rax, [rbp-0x80]; 4: lea rdx, [rbp-0x70]; 8: nop; 9: dec eax; b: jne 9; d: ret
    let bytes = [
        0x48, 0x8b, 0x45, 0x80, 0x48, 0x8d, 0x55, 0x90, 0x90, 0xff, 0xc8, 0x75, 0xfc, 0xc3, 0xcc, 0xcc, 0xcc,
    ];
    let placed = place_earlier(&bytes, 8).unwrap();
    let offsets: Vec<u8> = placed.hooks.iter().map(|hook| hook.offset).collect();
    assert_eq!((placed.site, placed.rung, offsets), (BASE + 4, Rung::Window, vec![4]));
    assert_eq!(placed.displaced.iter().map(|insn| insn.addr).collect::<Vec<_>>(), [BASE + 4, BASE + 8]);
    // 9: dec eax; b: jne 9; d: jne 8: a loop that begins with the nop would pass a jump before it by.
    let looped = [&bytes[..13], &[0x75, 0xf9, 0xc3, 0xcc, 0xcc, 0xcc]].concat();
    assert!(matches!(place_earlier(&looped, 8), Err(Refusal::NoRung { site, .. }) if site == BASE + 8));
    // A call returns to the nop: 0: call [rax+0x12345678]; 6: nop; 7: dec eax; 9: jne 7; b: ret
    let call = [0xff, 0x90, 0x78, 0x56, 0x34, 0x12, 0x90, 0xff, 0xc8, 0x75, 0xfc, 0xc3, 0xcc, 0xcc, 0xcc];
    assert!(place_earlier(&call, 6).is_err());
}

#[test]
fn a_displaced_instruction_has_a_hook_of_its_own_behind_those_that_are_there() {
    // 0: nop; 1: nop; 2: mov eax, 7; 7: ret
    let bytes = [0x90, 0x90, 0xb8, 7, 0, 0, 0, 0xc3];
    let codes = [Code { base: BASE, bytes: &bytes }];
    let mut placed = place_first(&bytes).unwrap();
    assert!(placed.hook_before(&codes, BASE + 1));
    assert!(!placed.hook_before(&codes, BASE + 1) && !placed.hook_before(&codes, BASE + 3));
    assert!(placed.hook_before(&codes, BASE + 2));
    assert!(!placed.hook_before(&codes, BASE + 7) && !placed.hook_before(&codes, BASE + 1));
    assert_eq!(placed.hooks.iter().map(|hook| hook.offset).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(placed.hooks.iter().all(|hook| hook.taken.is_none()));
}
