use super::*;

const FROM: u64 = 0x5555_0000_1000;
const NEAR: u64 = FROM + 0x10_0000 * 64;
const FAR: u64 = 0x7fff_1234_5000;
const GATE: u64 = FROM + 0x8000;

fn copy(word: u32, to: u64) -> Result<Copied, NotMoved> {
    relocate(word, FROM, to, &mut |_| None)
}

fn copy_with_gates(word: u32, to: u64) -> Copied {
    relocate(word, FROM, to, &mut |_| Some(GATE)).unwrap()
}

#[test]
fn an_instruction_without_an_address_is_copied_and_followed_by_the_way_back() {
    let copied = copy(0x9100_0400, NEAR).unwrap();
    assert_eq!(copied.words()[0], 0x9100_0400);
    assert_eq!(decode(copied.words()[1], NEAR + 4), Some(Relative::Jump { target: FROM + 4 }));
    assert_eq!(copied.resume_offset(), Some(4));
    assert!(copied.origin_of(0).unwrap().is_at_start);
    assert_eq!(copied.origin_of(4).unwrap().leads_to, Some(FROM + 4));
    assert_eq!(copied.origin_of(8), None);
    assert_eq!(copied.origin_of(2), None);
}

#[test]
fn what_is_out_of_reach_is_refused_without_a_gate() {
    let refused = copy(0x9100_0400, FAR).unwrap_err();
    assert_eq!(refused, NotMoved::Unreachable(Unreachable { from: FAR + 4, to: FROM + 4 }));
    assert_eq!(copy(0xd400_0001, NEAR).unwrap_err(), NotMoved::Forbidden(Forbidden::Exception));
    assert_eq!(
        relocate(NOP, FROM + 2, NEAR, &mut |_| None).unwrap_err(),
        NotMoved::Forbidden(Forbidden::Misaligned)
    );
}

#[test]
fn an_address_takes_as_few_words_as_it_can() {
    let adr = 0x1000_0020; // adr x0, .+4
    for (to, words) in [(FROM + 0x1000, 1), (NEAR, 2)] {
        let copied = copy(adr, to).unwrap();
        assert_eq!(copied.resume_offset(), Some(4 * words), "at {to:#x}");
    }
    let copied = copy_with_gates(adr, FAR);
    // movz, movk, movk: the value 0x5555_0000_1004 has three halves that are not zero, one of them none.
    assert_eq!(copied.words()[0], encode::movz(0, 0x1004, 0));
    assert_eq!(copied.words()[1], encode::movk(0, 0x5555, 2));
    assert_eq!(copied.origin_of(4).unwrap().spoiled, Some(0));
}

#[test]
fn a_far_way_keeps_every_register_through_a_gate() {
    let copied = copy_with_gates(0x9100_0400, FAR);
    assert_eq!(copied.words()[1], PUSH_SCRATCH);
    assert_eq!(*copied.words().last().unwrap(), encode::br(SCRATCH));
    assert_eq!(copied.origin_of(4).unwrap().saved, Saved::None);
    for offset in (8..copied.len_bytes()).step_by(4) {
        let origin = copied.origin_of(offset).unwrap();
        assert_eq!((origin.saved, origin.leads_to), (Saved::Scratch, Some(FROM + 4)), "{offset}");
    }
    let words = gate(GATE, FROM + 4).unwrap();
    assert_eq!(words[0], POP_SCRATCH);
    assert_eq!(decode(words[1], GATE + 4), Some(Relative::Jump { target: FROM + 4 }));
    assert_eq!(resume(0, 1).unwrap().saved, Saved::Scratch);
    assert_eq!(resume(4, 1).unwrap().saved, Saved::None);
    assert!(gate(GATE, FAR).is_none());
}

#[test]
fn always_has_no_opposite() {
    for cond in [14, 15] {
        let copied = copy(0x5400_0040 | cond, NEAR).unwrap(); // b.al .+8
        assert_eq!(copied.words().len(), 1);
        assert_eq!(decode(copied.words()[0], NEAR), Some(Relative::Jump { target: FROM + 8 }));
        assert_eq!(copied.resume_offset(), None);
    }
}

#[test]
fn a_moved_call_returns_behind_the_original() {
    let copied = copy(0x9400_0100, NEAR).unwrap();
    assert_eq!(copied.words()[0], encode::movz(30, 0x1004, 0));
    assert_eq!(copied.resume_offset(), None);
    let last = copied.words().len() - 1;
    let jump = decode(copied.words()[last], NEAR + 4 * last as u64);
    assert_eq!(jump, Some(Relative::Jump { target: FROM + 0x400 }));
    assert_eq!(copied.origin_of(4).unwrap().spoiled, Some(30));
    let blr_x30 = copy(0xd63f_03c0, NEAR).unwrap_err();
    assert_eq!(blr_x30, NotMoved::Forbidden(Forbidden::CallOfLinkRegister));
    let blraa = copy(0xd73f_0862, NEAR).unwrap();
    assert_eq!(*blraa.words().last().unwrap(), 0xd71f_0862); // braa x3, x2
}

#[test]
fn no_copy_is_longer_than_the_bound() {
    // The longest operands: a conditional branch and a call, all four halves of all addresses not zero.
    let (from, to) = (0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4320);
    for word in [0x5400_0041, 0xb400_0041, 0x3600_0041, 0x9400_0100, 0x9c00_0040, 0x5800_005f] {
        let mut gates = |target: u64| Some(target ^ 0x10_0000_0000_0000);
        let copied = relocate(word, from, to, &mut gates).unwrap();
        assert!(copied.words().len() <= COPY_MAX_WORDS, "{word:#x}: {}", copied.words().len());
    }
}
