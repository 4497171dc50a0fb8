use super::*;

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn at(words: &[u32], index: usize) -> Verdict {
    let bytes = code(words);
    verdict_at(&Code { base: 0x1000, bytes: &bytes }, 0x1000 + 4 * index as u64)
}

#[test]
fn what_the_kernel_refuses_is_refused_with_its_reason() {
    use Forbidden::*;
    let cases = [
        (0xd400_0001, Exception),      // svc #0
        (0xd400_0002, Exception),      // hvc #0
        (0xd400_0003, Exception),      // smc #0
        (0xd440_0000, Exception),      // hlt #0
        (0xd420_0000, Trap),           // brk #0
        (KERNEL_TRAP, Trap),           // brk #5
        (0xd69f_03e0, Privileged),     // eret
        (0xd69f_0bff, Privileged),     // eretaa
        (0xd51b_4200, SystemRegister), // msr nzcv, x0
        (0xd51b_d040, SystemRegister), // msr tpidr_el0, x0
        (0xd503_41df, SystemRegister), // msr daifset, #1
        (0xd500_401f, SystemRegister), // cfinv
        (0xd53b_4221, SystemRegister), // mrs x1, daif
        (0xd503_203f, Hint),           // yield
        (0xd503_205f, Hint),           // wfe
        (0xd503_23bf, Hint),           // autiasp
        (0xd503_229f, Hint),           // csdb
        (0xc85f_7c00, Exclusive),      // ldxr x0, [x0]
        (0x885f_fc00, Exclusive),      // ldaxr w0, [x0]
        (0xc87f_0400, Exclusive),      // ldxp x0, x1, [x0]
        (0xc801_7c02, Exclusive),      // stxr w1, x2, [x0]
        (0x1901_0443, MemoryCopy),     // cpyfp
        (0x19c1_0443, MemoryCopy),     // setp
        (0x0000_0000, Undefined),      // udf #0
        (0xdac1_a3fe, OwnAddress),     // paciasppc
        (0xf380_001f, OwnAddress),     // autiasppc
        (0x5500_001f, Undecodable),    // retaasppc
        (0x7400_0000, Undecodable),    // cb<cc>, not known here
        (0xdc00_0000, Undecodable),
    ];
    for (word, what) in cases {
        assert_eq!(verdict(word), Verdict::Refused(what), "{word:#x}");
        assert_eq!(kernel_errno(word), if word == KERNEL_TRAP { 524 } else { 22 });
    }
}

#[test]
fn what_the_kernel_accepts_is_accepted() {
    use Verdict::*;
    let cases = [
        (NOP_WORD, Emulated),
        (0xd503_245f, Emulated),  // bti c
        (0xd503_233f, Verbatim),  // paciasp
        (0xd503_20ff, Verbatim),  // xpaclri
        (0xd503_3bbf, Verbatim),  // dmb ish
        (0xd503_3fdf, Verbatim),  // isb
        (0xd503_305f, Verbatim),  // clrex
        (0xd53b_d040, Verbatim),  // mrs x0, tpidr_el0
        (0xd50b_7b20, Verbatim),  // dc cvau, x0
        (0xc8df_fc00, Verbatim),  // ldar x0, [x0]
        (0xc89f_fc00, Verbatim),  // stlr x0, [x0]
        (0xf8e0_0000, Verbatim),  // ldaddal
        (0xc8a0_7c00, Verbatim),  // cas
        (0x4820_7c00, Verbatim),  // casp
        (0x9100_0400, Verbatim),  // add
        (0x4e20_1c00, Verbatim),  // and v0.16b
        (0x2540_0000, Verbatim),  // a vector compare of the scalable extension
        (0x5800_0043, Rewritten), // ldr literal
        (0xd800_0000, Rewritten), // prfm literal
        (0xd73f_0821, Rewritten), // blraa x1, x1
        (0xd65f_0bff, Verbatim),  // retaa
        (0xd63f_03c0, Emulated),  // blr x30
    ];
    for (word, expected) in cases {
        assert_eq!(verdict(word), expected, "{word:#x}");
    }
    assert_eq!(verdict(0xd73f_0bc1), Refused(Forbidden::CallOfLinkRegister)); // blraa x30, x1
    assert_eq!(verdict(0xd73f_083e), Refused(Forbidden::CallOfLinkRegister)); // blraa x1, x30
}

const NOP_WORD: u32 = 0xd503_201f;
const LDXR: u32 = 0xc85f_7c40;
const STXR: u32 = 0xc803_7c41;
const CLREX: u32 = 0xd503_3f5f;
const ADD: u32 = 0x9100_0400;
const RET: u32 = 0xd65f_03c0;

#[test]
fn no_site_stands_between_an_exclusive_load_and_its_store() {
    // cbnz w3, back to the load
    let loop_back = 0x35ff_ffa3;
    let code = [ADD, LDXR, ADD, STXR, loop_back, ADD, RET];
    let inside = Verdict::Refused(Forbidden::InExclusive);
    assert_eq!(at(&code, 0), Verdict::Verbatim);
    assert_eq!(at(&code, 2), inside);
    assert_eq!(at(&code, 4), Verdict::Emulated);
    assert_eq!(at(&code, 5), Verdict::Verbatim);
}

#[test]
fn the_way_out_of_a_failed_compare_is_free_and_a_way_back_in_is_not() {
    // 0 ldxr; 1 b.ne 5; 2 b 6; 3 stxr; 4 ret; 5 clrex; 6 add; 7 b 3
    let code = [LDXR, 0x5400_0081, 0x1400_0004, STXR, RET, CLREX, ADD, 0x17ff_fffc];
    let inside = Verdict::Refused(Forbidden::InExclusive);
    assert_eq!(at(&code, 1), inside);
    assert_eq!(at(&code, 2), inside);
    assert_eq!(at(&code, 6), inside, "moved out of line, it still belongs to the pair");
    assert_eq!(at(&code, 5), Verdict::Verbatim, "from clrex on the pair is broken anyway");
    assert_eq!(at(&code, 4), Verdict::Emulated);
}

#[test]
fn a_site_must_be_aligned_and_inside_the_code() {
    let bytes = code(&[ADD]);
    let segment = Code { base: 0x1000, bytes: &bytes };
    assert_eq!(verdict_at(&segment, 0x1002), Verdict::Refused(Forbidden::Misaligned));
    assert_eq!(verdict_at(&segment, 0x1004), Verdict::Refused(Forbidden::Undecodable));
}

#[test]
fn landing_pads_are_known() {
    for word in [0xd503_241f, 0xd503_245f, 0xd503_249f, 0xd503_24df, 0xd503_233f, 0xd503_237f] {
        assert!(is_landing_pad(word), "{word:#x}");
    }
    assert!(!is_landing_pad(NOP_WORD) && !is_landing_pad(0xd503_231f));
}
