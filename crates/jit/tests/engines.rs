//! Every case in the interpreter and compiled in every way: the same result.

use bpf::{BUFFER_ADDR, Buffer, Fault, Program, Wide, assemble};
use jit::{Bounds, Compiled, Compiler, Effort, Level, Loaded, Meaning, Options, Refusal, Run, STACK_LEN};

const WAYS: [(Level, Effort); 4] = [
    (Level::Own, Effort::None),
    (Level::Own, Effort::Speed),
    (Level::Checked, Effort::None),
    (Level::Checked, Effort::Speed),
];
const FUEL: u64 = 10_000;
/// A helper that adds its arguments up.
const SUM: u32 = 7;

extern "C" fn sum(a: u64, b: u64, c: u64, d: u64, e: u64, _: &mut Run) -> u64 {
    [a, b, c, d, e].into_iter().fold(0, u64::wrapping_add)
}

fn program(text: &str) -> Program {
    Program::new(assemble(text).unwrap()).unwrap()
}

fn compile(program: &Program, (level, effort): (Level, Effort)) -> Compiled {
    let options = Options { level, effort, helpers: &[1, SUM, 90], ..Options::default() };
    Compiler::new()
        .unwrap()
        .compile(program, &options)
        .unwrap_or_else(|refused| panic!("{refused}\n{program}"))
}

fn load(code: &Compiled) -> Loaded {
    let sum = sum as extern "C" fn(u64, u64, u64, u64, u64, &mut Run) -> u64 as usize as u64;
    Loaded::new(code, |_| Some(sum)).unwrap()
}

/// Text, memory, r0.
const CASES: &[(&str, &[u8], u64)] = &[
    ("mov %r0, -1\nexit", &[], u64::MAX),
    ("mov32 %r0, -1\nexit", &[], 0xffff_ffff),
    ("lddw %r0, 0x1122334455667788\nexit", &[], 0x1122_3344_5566_7788),
    ("mov %r0, %r6\nexit", &[], 0),
    ("mov %r0, %r2\nexit", &[1, 2, 3], 3),
    ("lddw %r0, 0xffffffff00000001\nadd32 %r0, 1\nexit", &[], 2),
    // The smallest number has no negative.
    ("lddw %r0, 0x8000000000000000\nsdiv %r0, -1\nexit", &[], 1 << 63),
    ("mov32 %r0, 0x80000000\nmov %r1, -1\nsmod32 %r0, %r1\nexit", &[], 0),
    ("mov %r0, -7\nsmod %r0, 3\nexit", &[], u64::MAX),
    ("mov %r0, -7\nsdiv32 %r0, 2\nexit", &[], 0xffff_fffd),
    ("mov %r0, 9\nmov %r1, 0\ndiv %r0, %r1\nexit", &[], 0),
    ("mov %r0, 9\nmov %r1, 0\nsdiv32 %r0, %r1\nexit", &[], 0),
    ("mov %r0, 9\nmov %r1, 0\nmod %r0, %r1\nexit", &[], 9),
    ("lddw %r0, 0x500000009\nmov %r1, 0\nmod32 %r0, %r1\nexit", &[], 9),
    // A shift takes the lower bits of its distance.
    ("mov %r0, 1\nmov %r1, 65\nlsh %r0, %r1\nexit", &[], 2),
    ("mov %r0, -1\nmov %r1, 33\nrsh32 %r0, %r1\nexit", &[], 0x7fff_ffff),
    ("mov32 %r0, 0x80000000\narsh32 %r0, 4\nexit", &[], 0xf800_0000),
    ("mov %r1, 0x8081\nmovsx832 %r0, %r1\nexit", &[], 0xffff_ff81),
    ("mov %r1, 0x8081\nmovsx1664 %r0, %r1\nexit", &[], 0xffff_ffff_ffff_8081),
    ("lddw %r0, 0x1122334455667788\nbe16 %r0\nexit", &[], 0x8877),
    ("lddw %r0, 0x1122334455667788\nbe64 %r0\nexit", &[], 0x8877_6655_4433_2211),
    ("lddw %r0, 0x1122334455667788\nle32 %r0\nexit", &[], 0x5566_7788),
    ("lddw %r0, 0x1122334455667788\nbswap32 %r0\nexit", &[], 0x8877_6655),
    ("ldxb %r0, [%r1+1]\nexit", &[1, 0xfe], 0xfe),
    ("ldxsb %r0, [%r1+1]\nexit", &[1, 0xfe], 0xffff_ffff_ffff_fffe),
    ("ldxw %r0, [%r1+1]\nexit", &[0, 1, 2, 3, 0x84], 0x8403_0201),
    ("ldxsw %r0, [%r1+1]\nexit", &[0, 1, 2, 3, 0x84], 0xffff_ffff_8403_0201),
    ("sth [%r1], 0x1234\nldxw %r0, [%r1]\nexit", &[9, 9, 9, 9], 0x0909_1234),
    ("stdw [%r10-512], -2\nldxdw %r0, [%r10-512]\nexit", &[], u64::MAX - 1),
    ("mov %r2, %r10\nadd %r2, -16\nstdw [%r2+8], 5\nldxdw %r0, [%r10-8]\nexit", &[], 5),
    // Atomics: old value, new value, with and without it.
    ("mov %r2, 3\nlock fetch add [%r1], %r2\nldxdw %r0, [%r1]\nlsh %r0, 8\nor %r0, %r2\nexit", &[4, 0, 0, 0, 0, 0, 0, 0], 0x704),
    ("mov %r2, 3\nlock xor32 [%r1], %r2\nldxdw %r0, [%r1]\nexit", &[4, 0, 0, 0, 1, 0, 0, 0], 0x1_0000_0007),
    ("mov %r2, 12\nlock fetch and32 [%r1], %r2\nldxw %r0, [%r1]\nlsh %r0, 8\nor %r0, %r2\nexit", &[6, 0, 0, 0], 0x406),
    ("mov %r0, 4\nmov %r2, 9\nlock cmpxchg32 [%r1], %r2\nldxw %r3, [%r1]\nlsh %r3, 8\nor %r0, %r3\nexit", &[4, 0, 0, 0], 0x904),
    ("mov %r0, 5\nmov %r2, 9\nlock cmpxchg [%r1], %r2\nldxw %r3, [%r1]\nlsh %r3, 8\nor %r0, %r3\nexit", &[4, 0, 0, 0, 0, 0, 0, 0], 0x404),
    ("mov %r2, 9\nlock xchg [%r1], %r2\nmov %r0, %r2\nexit", &[4, 0, 0, 0, 0, 0, 0, 0], 4),
    // Ways.
    ("mov %r0, 0\nmov %r1, 10\nagain:\nadd %r0, %r1\nsub %r1, 1\njne %r1, 0, again\nexit", &[], 55),
    ("mov %r0, 1\nlddw %r1, 0x1ffffffff\njslt32 %r1, 0, yes\nmov %r0, 2\nyes:\nexit", &[], 1),
    ("mov %r0, 1\nmov %r1, -1\njgt %r1, 5, yes\nmov %r0, 2\nyes:\nexit", &[], 1),
    ("mov %r0, 1\nmov %r1, 6\njset %r1, 9, yes\nmov %r0, 2\nyes:\nexit", &[], 2),
    ("mov %r0, 1\nja32 +1\nmov %r0, 2\nexit", &[], 1),
    // Calls: r6 to r9 stay, r1 to r5 do not, a frame of its own.
    ("mov %r6, 40\nmov %r1, 2\nstdw [%r10-8], 7\ncall local f\nadd %r0, %r6\nadd %r0, %r1\nldxdw %r1, [%r10-8]\nadd %r0, %r1\nexit
      f:\nmov %r6, 5\nstdw [%r10-8], 9\nmov %r0, %r1\nexit", &[], 49),
    ("mov %r1, %r10\nadd %r1, -8\ncall local f\nldxdw %r0, [%r10-8]\nexit\nf:\nstdw [%r1], 77\nmov %r0, 0\nexit", &[], 77),
    ("mov %r1, 6\ncall local f\nexit\nf:\nmov %r0, 1\njeq %r1, 0, out\nmov %r6, %r1\nsub %r1, 1\ncall local f\nmul %r0, %r6\nout:\nexit", &[], 720),
    ("mov %r1, 1\nmov %r2, 2\nmov %r3, 3\nmov %r4, 4\nmov %r5, 5\ncall 7\nadd %r0, %r5\nexit", &[], 15),
    ("mov %r1, 1\nmov %r2, 2\nmov %r3, 3\nmov %r4, 4\nmov %r5, 5\nmov %r6, 7\ncall %r6\nexit", &[], 15),
];

#[test]
fn every_case_has_its_result_in_the_interpreter_and_compiled_in_every_way() {
    for (text, memory, r0) in CASES {
        let program = program(text);
        let (mut bytes, len) = (memory.to_vec(), memory.len() as u64);
        let addr = if len == 0 { 0 } else { BUFFER_ADDR };
        let helper = |_, args: [u64; 5]| Some(args.into_iter().fold(0, u64::wrapping_add));
        let mut host = Buffer::new(&mut bytes, helper);
        assert_eq!(
            bpf::run(&program, &mut host, [addr, len, 0, 0, 0], FUEL),
            Ok(*r0),
            "interpreter:\n{text}"
        );
        for way in WAYS {
            let code = compile(&program, way);
            let mut again = memory.to_vec();
            // SAFETY: the cases touch what they are given, and the helper is the function above.
            let ran = unsafe { load(&code).run_on(&mut again, FUEL) };
            assert_eq!(ran, Ok(*r0), "{way:?}:\n{text}");
            assert_eq!(again, bytes, "memory, {way:?}:\n{text}");
            assert_eq!(compile(&program, way), code, "other bytes the second time");
        }
    }
}

#[test]
fn what_a_checked_program_may_not_do_ends_its_run_with_the_fault_of_the_interpreter() {
    let cases = [
        ("mov %r1, 0\nldxw %r0, [%r1+4]\nexit", 1, Fault::Access { addr: 4, len: 4 }),
        ("mov %r1, -4\nstdw [%r1], 0\nexit", 1, Fault::Access { addr: u64::MAX - 3, len: 8 }),
        ("mov %r1, 8\nlock add [%r1+8], %r1\nexit", 1, Fault::Access { addr: 16, len: 8 }),
        ("mov %r0, 0\nagain:\nja again", 1, Fault::FuelOut),
        ("f:\ncall local f\nexit", 0, Fault::TooDeep),
        ("mov %r3, 70\ncall %r3\nexit", 1, Fault::NoHelper { number: 70 }),
        // From inside two functions.
        (
            "call local f\nexit\nf:\ncall local g\nexit\ng:\nmov %r1, 1\nldxb %r0, [%r1]\nexit",
            5,
            Fault::Access { addr: 1, len: 1 },
        ),
    ];
    for (text, at, why) in cases {
        let program = program(text);
        let mut host = Buffer::new(&mut [], |number, _| (number == 7).then_some(0));
        let in_interpreter = bpf::run(&program, &mut host, [0; 5], FUEL).unwrap_err();
        for effort in [Effort::None, Effort::Speed] {
            let code = compile(&program, (Level::Checked, effort));
            // SAFETY: checked, and the helper is not called.
            let fault = unsafe { load(&code).run_on(&mut [], FUEL) }.unwrap_err();
            assert_eq!((fault.at, fault.why), (at, why), "{text}");
            assert_eq!(fault.why, in_interpreter.why, "{text}");
        }
    }
}

#[test]
fn an_atomic_access_that_is_not_aligned_ends_a_checked_run() {
    let program = program("mov %r2, 1\nlock add [%r1+4], %r2\nmov %r0, 0\nexit");
    let code = compile(&program, (Level::Checked, Effort::Speed));
    // SAFETY: checked.
    let fault = unsafe { load(&code).run_on(&mut [0; 16], FUEL) }.unwrap_err();
    assert!(matches!(fault.why, Fault::Unaligned { .. }), "{fault}");
}

#[test]
fn memory_that_may_only_be_read_is_not_written() {
    let memory = [5u64; 2];
    let start = memory.as_ptr() as u64;
    let mut stack = [0u64; STACK_LEN / 8];
    for (text, is_allowed) in
        [("ldxdw %r0, [%r1+8]\nexit", true), ("stb [%r1+8], 1\nmov %r0, 5\nexit", false)]
    {
        let code = compile(&program(text), (Level::Checked, Effort::Speed));
        let mut run = Run::new(FUEL, stack.as_mut_ptr() as u64, &[Bounds::new(start, 16, false)]);
        // SAFETY: checked; the memory and the stack are this function's.
        let ran = unsafe { load(&code).run([start, 0, 0, 0, 0], 0, &mut run) };
        assert_eq!(ran.is_ok(), is_allowed, "{text}: {ran:?}");
    }
    assert_eq!(memory, [5; 2]);
}

#[test]
fn the_arena_is_where_the_pinned_register_says() {
    let arena = [1u64, 2, 0x33];
    let text = "lddw %r1, map_value 0 16\nldxdw %r0, [%r1]\nexit";
    let meaning = |wide| match wide {
        Wide::MapValueIndex { index: 0, offset } => Some(Meaning::Arena(offset)),
        _ => None,
    };
    for effort in [Effort::None, Effort::Speed] {
        let options = Options { level: Level::Own, effort, meaning: &meaning, ..Options::default() };
        let code = Compiler::new().unwrap().compile(&program(text), &options).unwrap();
        // SAFETY: it reads the arena, which is this function's.
        let ran = unsafe { load(&code).run([0; 5], arena.as_ptr() as u64, &mut Run::new(FUEL, 0, &[])) };
        assert_eq!(ran, Ok(0x33));
    }
}

#[test]
fn what_means_nothing_or_may_not_be_called_is_refused_with_its_place() {
    let refused = |text: &str| {
        Compiler::new().unwrap().compile(&program(text), &Options::default()).map(|_| ()).unwrap_err()
    };
    let helper = refused("mov %r0, 0\ncall 12\nexit");
    assert_eq!((helper.at, helper.why), (1, Refusal::NoHelper { number: 12 }));
    let map = refused("lddw %r1, map_fd 3\nmov %r0, 0\nexit");
    assert_eq!((map.at, map.why), (0, Refusal::NoMeaning(Wide::MapFd(3))));
    let long = "mov %r0, 0\n".repeat(jit::INSNS_MAX) + "exit";
    assert!(matches!(refused(&long).why, Refusal::TooLong { .. }));
}

#[test]
fn code_is_never_writable_and_executable() {
    let code = compile(&program("mov %r0, 3\nexit"), WAYS[0]);
    let loaded = load(&code);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{:x}-", loaded.base()))).unwrap();
    assert!(line.contains(" r-xp "), "{line}");
    assert!(!maps.contains("rwxp"), "{maps}");
}

#[test]
fn fuel_is_paid_for_what_is_executed_and_no_more_than_that_is_left_over() {
    let text = "mov %r1, 100\nagain:\nsub %r1, 1\njne %r1, 0, again\nmov %r0, 1\nexit";
    let code = compile(&program(text), (Level::Own, Effort::Speed));
    // 99 jumps back over two instructions.
    for (fuel, is_enough) in [(198, true), (197, false)] {
        let mut run = Run::new(fuel, 0, &[]);
        // SAFETY: it touches no memory.
        let ran = unsafe { load(&code).run([0; 5], 0, &mut run) };
        assert_eq!(ran.is_ok(), is_enough, "{fuel}: {ran:?}");
        assert_eq!(if is_enough { run.fuel() } else { 0 }, 0);
    }
}

#[test]
fn what_passes_says_its_stack_its_registers_and_its_accesses() {
    let code = compile(
        &program("ldxdw %r0, [%r1+8]\nldxb %r2, [%r1]\nadd %r0, %r2\nexit"),
        (Level::Own, Effort::Speed),
    );
    let accesses: Vec<u32> = code.faults.iter().map(|fault| fault.insn).collect();
    assert_eq!(accesses, [0, 1]);
    assert_eq!(code.fault_at(u64::from(code.faults[1].at)), Some(1));
    assert!(code.passed.clobbers.contains(0), "{:?}", code.passed);
    assert!(code.relocations.is_empty());
    let calls = compile(&program("call 7\ncall 1\ncall 7\nexit"), (Level::Own, Effort::Speed));
    assert_eq!(calls.helpers(), [1, SUM]);
    // What it keeps in registers that a call keeps, or the return address.
    assert!(calls.passed.stack >= 16, "{:?}", calls.passed);
    assert_eq!(calls.relocations.len(), 3);
}
