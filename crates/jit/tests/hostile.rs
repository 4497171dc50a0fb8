//! A thousand hostile programs: refused by name, or run without any effect on a process that checks itself.

use bpf::{Insn, Program, assemble};
use jit::{Bounds, Compiler, Effort, Level, Loaded, Options, Run, STACK_LEN};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Wild pointers, endless loops, deep recursion, bad arguments; `{}` gets a random number.
const SEEDS: [&str; 8] = [
    "lddw %r1, {}\nstdw [%r1], 7\nmov %r0, 0\nexit",
    "lddw %r2, {}\nadd %r1, %r2\nstxdw [%r1], %r2\nldxdw %r0, [%r1-8]\nexit",
    "mov %r3, %r10\nlddw %r2, {}\nand %r2, 0xfff8\nsub %r3, %r2\nstdw [%r3], -1\nlock add [%r3], %r2\nmov %r0, 0\nexit",
    "mov %r6, %r1\nagain:\nstxb [%r6], %r6\nadd %r6, 1\nja again",
    "f:\nmov %r6, %r10\nstdw [%r6-8], 3\ncall local g\nexit\ng:\nlddw %r7, {}\nstxdw [%r10-512], %r7\ncall local f\nexit",
    "lddw %r1, {}\nmov %r2, 64\ncall 1\nmov %r1, %r10\nadd %r1, -4\ncall 1\nexit",
    "lddw %r3, {}\nmov %r2, 1\ncall %r3\nlock fetch xor [%r1], %r3\nmov %r0, 0\nexit",
    "mov %r6, 9\nout:\nmov %r7, 9\nin:\nldxw %r0, [%r1]\nadd %r1, {}\njne %r7, 9, in\nja out",
];

/// Fills memory, as a helper that is given a pointer and a length does; only where it may.
extern "C" fn fill(addr: u64, len: u64, _: u64, _: u64, _: u64, run: &mut Run) -> u64 {
    if !run.allows(addr, len, true) {
        run.bad_access(addr, len as usize);
        return 0;
    }
    // SAFETY: these bytes are in the bounds of the run, which are the test's memory.
    unsafe { std::ptr::write_bytes(addr as *mut u8, 0x5a, len as usize) };
    len
}

/// Guards on both sides of what a program is given.
#[repr(C, align(4096))]
struct World {
    before: [u64; 512],
    memory: [u64; 8],
    between: [u64; 512],
    stack: [u64; STACK_LEN / 8],
    after: [u64; 512],
}

const GUARD: u64 = 0x1234_5678_9abc_def0;

/// In the child: everything is run; the number of the program that had an effect.
fn run_all() -> Result<[u32; 3], usize> {
    let (mut random, mut compiler) = (Random(0x6e61_6e6f), Compiler::new().unwrap());
    let mut world = Box::new(World {
        before: [GUARD; 512],
        memory: [0; 8],
        between: [GUARD; 512],
        stack: [0; STACK_LEN / 8],
        after: [GUARD; 512],
    });
    let fill = fill as extern "C" fn(u64, u64, u64, u64, u64, &mut Run) -> u64 as usize as u64;
    let mut seen = [0; 3];
    for n in 0..1_000usize {
        let effort = if n.is_multiple_of(2) { Effort::None } else { Effort::Speed };
        let options = Options { level: Level::Checked, effort, helpers: &[1], ..Options::default() };
        let Some(program) = hostile(&mut random, n) else {
            seen[0] += 1;
            continue;
        };
        let Ok(code) = compiler.compile(&program, &options) else {
            seen[0] += 1;
            continue;
        };
        let loaded = Loaded::new(&code, |_| Some(fill)).unwrap();
        let memory = world.memory.as_mut_ptr() as u64;
        let stack = world.stack.as_mut_ptr() as u64;
        let mut run = Run::new(100_000, stack, &[Bounds::new(memory, 64, true)]);
        // SAFETY: checked; bounds and stack are this function's, and the helper looks at what it is given.
        let ran = unsafe { loaded.run([memory, 64, 0, 0, 0], 0, &mut run) };
        seen[if ran.is_ok() { 2 } else { 1 }] += 1;
        let guards = world.before.iter().chain(&world.between).chain(&world.after);
        if guards.into_iter().any(|word| *word != GUARD) {
            return Err(n);
        }
    }
    Ok(seen)
}

/// A seed with a random number in it, or mutated, or random bytes.
fn hostile(random: &mut Random, n: usize) -> Option<Program> {
    // Some are near what may be touched.
    let number = if n.is_multiple_of(3) { random.next() % 80 } else { random.next() };
    let text = SEEDS[n % SEEDS.len()];
    let number = if text.contains("lddw") { format!("{number:#x}") } else { (number as i32).to_string() };
    let mut bytes = Insn::encode_all(&assemble(&text.replace("{}", &number)).unwrap());
    match n % 4 {
        0 | 1 => {}
        2 => {
            let at = random.next() as usize % bytes.len();
            bytes[at] = random.next() as u8;
        }
        _ => {
            let more = (0..3).flat_map(|_| random.next().to_le_bytes()).collect::<Vec<u8>>();
            bytes.splice(0..0, more);
        }
    }
    Program::from_bytes(&bytes).ok()
}

#[test]
fn a_thousand_hostile_programs_are_refused_or_run_without_effect() {
    // SAFETY: the child runs compiled code and ends by `_exit`; it takes no lock that another thread may hold but the
    // allocator's, which glibc makes usable after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = match run_all() {
            // Some of each: else nothing was tried.
            Ok(seen) if seen.iter().all(|n| *n >= 30) => 0,
            Ok(seen) => {
                eprintln!("refused, faulted, ended: {seen:?}");
                3
            }
            Err(n) => {
                eprintln!("program {n} wrote outside");
                4
            }
        };
        // SAFETY: it ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: our own child; the status is a word of this function's.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "it was killed, or says why above");
}
