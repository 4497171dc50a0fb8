//! Every instruction: encoded, printed, assembled again, and run on edge values beside arithmetic written down anew.

use bpf::{
    Alu, Atomic, Buffer, Callee, Cond, Fault, Insn, Op, Operand, Order, Program, Refusal, Reg, Size, Wide,
    Width, assemble, run,
};

const WIDTHS: [Width; 2] = [Width::W32, Width::W64];
const EDGES: [u64; 12] = [
    0,
    1,
    2,
    31,
    64,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
];

fn r(number: u8) -> Reg {
    Reg::new(number).unwrap()
}

/// Every form of instruction, with some values in its fields.
fn every_op() -> Vec<Op> {
    let mut ops = vec![
        Op::Exit,
        Op::Call(Callee::Helper(7)),
        Op::Call(Callee::Btf(9)),
        Op::Call(Callee::Indirect(r(3))),
    ];
    ops.push(Op::Call(Callee::Local(-5)));
    ops.extend([Op::Ja { distance: -3, long: false }, Op::Ja { distance: 70_000, long: true }]);
    ops.push(Op::Ja { distance: 2, long: true });
    for src in [Operand::Reg(r(9)), Operand::Imm(-7), Operand::Imm(i32::MAX)] {
        for width in WIDTHS {
            ops.extend(Alu::ALL.map(|alu| Op::Alu { width, alu, dst: r(4), src }));
            ops.extend(Cond::ALL.map(|cond| Op::Jump { width, cond, dst: r(4), src, offset: -300 }));
        }
        ops.extend(Size::ALL.map(|size| Op::Store { size, dst: r(2), offset: -8, src }));
    }
    for width in WIDTHS {
        ops.push(Op::Neg { width, dst: r(6) });
        let narrower = Size::ALL.into_iter().filter(|s| s.bits() < if width == Width::W32 { 32 } else { 64 });
        ops.extend(narrower.map(|from| Op::Movsx { width, from, dst: r(0), src: r(7) }));
    }
    for size in Size::ALL {
        let (dst, src, offset) = (r(1), r(8), 0x1234);
        ops.push(Op::Load { size, signed: false, dst, src, offset });
        ops.extend((size != Size::Dw).then_some(Op::Load { size, signed: true, dst, src, offset }));
        if size != Size::B {
            ops.extend([Order::Little, Order::Big, Order::Swap].map(|order| Op::End { order, size, dst }));
        }
        if matches!(size, Size::W | Size::Dw) {
            ops.extend(Atomic::ALL.map(|atomic| Op::Atomic { size, atomic, dst, offset: -16, src }));
        }
    }
    let wides = [
        Wide::Value(0x8877_6655_4433_2211),
        Wide::MapFd(3),
        Wide::MapValueFd { fd: 3, offset: 16 },
        Wide::Variable(1),
        Wide::Function(-4),
        Wide::MapIndex(2),
        Wide::MapValueIndex { index: 1, offset: 8 },
    ];
    ops.extend(wides.map(|wide| Op::Wide { dst: r(5), wide }));
    ops
}

#[test]
fn every_instruction_is_the_same_after_its_bytes_and_after_its_text() {
    for op in every_op() {
        let (first, second) = op.encode();
        assert_eq!(Op::decode(first, second), Ok(op), "{op}");
        let text = op.to_string();
        let insns = assemble(&text).unwrap_or_else(|misread| panic!("{misread}"));
        assert_eq!((insns[0], insns.get(1).copied()), (first, second), "{text}");
    }
}

#[test]
fn every_opcode_is_an_instruction_of_the_list_or_refused() {
    let mut found = 0;
    for opcode in 0..=u8::MAX {
        let known = every_op().into_iter().filter(|op| op.encode().0.opcode == opcode).count();
        let takes = |dst, src, offset, imm| {
            Op::decode(Insn { opcode, dst, src, offset, imm }, Some(Insn::default())).is_ok()
        };
        let regs = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let fields = [0, 1, 8, 16, 32].into_iter().flat_map(|o| [0, 1, 16, 32, 64, 0xe1].map(|i| (o, i)));
        let is_taken = fields.into_iter().any(|(o, i)| regs.iter().any(|(d, s)| takes(*d, *s, o, i)));
        assert_eq!(known > 0, is_taken, "{opcode:#04x}");
        found += usize::from(is_taken);
    }
    // RFC 9669, appendix: 0x0d and the like are not there; packet access is refused.
    assert!(found > 100, "{found} opcodes");
}

#[test]
fn a_field_that_must_be_zero_is_looked_at() {
    let exit = Op::Exit.encode().0;
    for insn in [
        Insn { imm: 1, ..exit },
        Insn { src: 1, ..exit },
        Insn { offset: 1, ..exit },
        // A move of a constant with an offset, an addition with one.
        Insn { opcode: 0xb7, offset: 8, ..Insn::default() },
        Insn { opcode: 0x07, offset: 1, ..Insn::default() },
    ] {
        assert!(matches!(Op::decode(insn, None), Err(Refusal::ReservedField { .. })), "{insn:?}");
    }
}

/// What `dst alu src` is, written with Rust's own numbers of the width.
fn expected(width: Width, alu: Alu, a: u64, b: u64) -> u64 {
    macro_rules! of {
        ($u:ty, $s:ty) => {{
            let (a, b) = (a as $u, b as $u);
            let result: $u = match alu {
                Alu::Add => a.wrapping_add(b),
                Alu::Sub => a.wrapping_sub(b),
                Alu::Mul => a.wrapping_mul(b),
                Alu::Div => {
                    if b == 0 {
                        0
                    } else {
                        a / b
                    }
                }
                Alu::Sdiv => {
                    if b == 0 {
                        0
                    } else {
                        (a as $s).wrapping_div(b as $s) as $u
                    }
                }
                Alu::Or => a | b,
                Alu::And => a & b,
                Alu::Lsh => a.wrapping_shl(b as u32),
                Alu::Rsh => a.wrapping_shr(b as u32),
                Alu::Mod => {
                    if b == 0 {
                        a
                    } else {
                        a % b
                    }
                }
                Alu::Smod => {
                    if b == 0 {
                        a
                    } else {
                        (a as $s).wrapping_rem(b as $s) as $u
                    }
                }
                Alu::Xor => a ^ b,
                Alu::Mov => b,
                Alu::Arsh => (a as $s).wrapping_shr(b as u32) as $u,
            };
            u64::from(result)
        }};
    }
    match width {
        Width::W32 => of!(u32, i32),
        Width::W64 => of!(u64, i64),
    }
}

fn r0_of(ops: &[Op], args: [u64; 5]) -> Result<u64, Fault> {
    let insns = ops.iter().flat_map(|op| {
        let (first, second) = op.encode();
        std::iter::once(first).chain(second)
    });
    let program = Program::new(insns.collect()).unwrap();
    run(&program, &mut Buffer::new(&mut [], |_, _| None), args, 1_000).map_err(|faulted| faulted.why)
}

#[test]
fn arithmetic_is_that_of_rusts_numbers_on_all_edges() {
    let result = |width, alu, a: u64, b: u64, by_imm: bool| {
        let src = if by_imm { Operand::Imm(b as i32) } else { Operand::Reg(r(2)) };
        let (dst, mov) = (Reg::R0, Alu::Mov);
        let load = Op::Alu { width: Width::W64, alu: mov, dst, src: Operand::Reg(Reg::R1) };
        r0_of(&[load, Op::Alu { width, alu, dst, src }, Op::Exit], [a, b, 0, 0, 0])
    };
    for (width, alu) in WIDTHS.into_iter().flat_map(|w| Alu::ALL.map(|a| (w, a))) {
        for (a, b) in EDGES.into_iter().flat_map(|a| EDGES.map(|b| (a, b))) {
            assert_eq!(
                result(width, alu, a, b, false),
                Ok(expected(width, alu, a, b)),
                "{width:?} {alu:?} {a:#x} {b:#x}"
            );
            let b = i64::from(b as i32) as u64;
            assert_eq!(
                result(width, alu, a, b, true),
                Ok(expected(width, alu, a, b)),
                "{width:?} {alu:?} {a:#x} {b:#x}"
            );
        }
    }
}

#[test]
fn conditions_are_those_of_rusts_numbers_on_all_edges() {
    for (width, a, b) in
        WIDTHS.into_iter().flat_map(|w| EDGES.into_iter().flat_map(move |a| EDGES.map(|b| (w, a, b))))
    {
        for cond in Cond::ALL {
            let (ua, ub) = if width == Width::W32 { (a & 0xffff_ffff, b & 0xffff_ffff) } else { (a, b) };
            let (sa, sb) = if width == Width::W32 {
                (i64::from(a as i32), i64::from(b as i32))
            } else {
                (a as i64, b as i64)
            };
            let holds = match cond {
                Cond::Eq => ua == ub,
                Cond::Ne => ua != ub,
                Cond::Set => ua & ub != 0,
                Cond::Gt => ua > ub,
                Cond::Ge => ua >= ub,
                Cond::Lt => ua < ub,
                Cond::Le => ua <= ub,
                Cond::Sgt => sa > sb,
                Cond::Sge => sa >= sb,
                Cond::Slt => sa < sb,
                Cond::Sle => sa <= sb,
            };
            let mov =
                |imm| Op::Alu { width: Width::W64, alu: Alu::Mov, dst: Reg::R0, src: Operand::Imm(imm) };
            let jump = Op::Jump { width, cond, dst: Reg::R1, src: Operand::Reg(r(2)), offset: 1 };
            let r0 = r0_of(&[mov(1), jump, mov(0), Op::Exit], [a, b, 0, 0, 0]);
            assert_eq!(r0, Ok(u64::from(holds)), "{width:?} {cond:?} {a:#x} {b:#x}");
        }
    }
}

fn r0(text: &str, memory: &mut [u8]) -> Result<u64, Fault> {
    let program = Program::new(assemble(text).unwrap()).unwrap();
    let len = memory.len() as u64;
    let mut host = Buffer::new(memory, |number, args| (number == 1).then_some(args.iter().sum()));
    run(&program, &mut host, [0x1000_0000, len, 0, 0, 0], 10_000).map_err(|faulted| faulted.why)
}

#[test]
fn memory_is_little_endian_and_only_what_was_given() {
    let mut memory = [0; 8];
    assert_eq!(r0("stw [%r1+2], 0x44332211\nldxh %r0, [%r1+3]\nexit", &mut memory), Ok(0x3322));
    assert_eq!(memory, [0, 0, 0x11, 0x22, 0x33, 0x44, 0, 0]);
    for (text, addr, len) in [
        ("ldxdw %r0, [%r1+1]\nexit", 0x1000_0001, 8),
        ("stb [%r1-1], 0\nexit", 0x0fff_ffff, 1),
        ("stdw [%r10], 0\nexit", 0x7ff0_0000_0200, 8),
        ("ldxb %r0, [%r10-513]\nexit", 0x7ff0_0000_0000 - 1, 1),
        ("mov %r2, -1\nldxdw %r0, [%r2]\nexit", u64::MAX, 8),
    ] {
        assert_eq!(r0(text, &mut memory), Err(Fault::Access { addr, len }), "{text}");
    }
}

#[test]
fn atomics_give_the_old_value_where_it_is_asked_for() {
    let mut memory = 5u64.to_le_bytes();
    assert_eq!(r0("mov %r3, 3\nlock fetch add [%r1], %r3\nmov %r0, %r3\nexit", &mut memory), Ok(5));
    assert_eq!(r0("mov %r0, 8\nmov %r3, 9\nlock cmpxchg [%r1], %r3\nexit", &mut memory), Ok(8));
    assert_eq!(r0("mov %r0, 8\nmov %r3, 1\nlock cmpxchg [%r1], %r3\nexit", &mut memory), Ok(9));
    assert_eq!(r0("mov %r3, 7\nlock xchg32 [%r1], %r3\nmov %r0, %r3\nexit", &mut memory), Ok(9));
    assert_eq!(u64::from_le_bytes(memory), 7);
    assert_eq!(r0("lock add [%r1+4], %r2\nexit", &mut memory), Err(Fault::Unaligned { addr: 0x1000_0004 }));
}

#[test]
fn a_function_has_a_frame_of_its_own_and_gives_saved_registers_back() {
    let text = "mov %r6, 1\nstdw [%r10-8], 2\ncall local inner\nadd %r0, %r6\nldxdw %r1, [%r10-8]\nadd %r0, %r1\nexit
                inner:\nmov %r6, 100\nstdw [%r10-8], 200\nmov %r0, 1000\nexit";
    assert_eq!(r0(text, &mut []), Ok(1003));
}

#[test]
fn what_would_not_end_or_grow_without_bound_is_ended() {
    assert_eq!(r0("again:\nja again", &mut []), Err(Fault::FuelOut));
    assert_eq!(r0("again:\ncall local again\nexit", &mut []), Err(Fault::TooDeep));
    assert_eq!(r0("call 99\nexit", &mut []), Err(Fault::NoHelper { number: 99 }));
    assert_eq!(r0("mov %r2, 4\nmov %r3, 1\ncall %r3\nexit", &mut []), Ok(0x1000_0000 + 4 + 1));
}

#[test]
fn programs_that_lead_nowhere_are_refused() {
    for (text, why) in [
        ("mov %r0, 0", Refusal::NoEnd),
        ("ja +1\nexit", Refusal::NoSuchPlace { to: 2 }),
        ("ja -2\nexit", Refusal::NoSuchPlace { to: -1 }),
        ("ja +1\nlddw %r0, 1\nexit", Refusal::NoSuchPlace { to: 2 }),
        ("call local +7\nexit", Refusal::NoSuchPlace { to: 8 }),
        ("mov %r10, 0\nexit", Refusal::FramePointerWritten),
        ("lock fetch add [%r1], %r10\nexit", Refusal::FramePointerWritten),
    ] {
        assert_eq!(Program::new(assemble(text).unwrap()).unwrap_err().why, why, "{text}");
    }
}
