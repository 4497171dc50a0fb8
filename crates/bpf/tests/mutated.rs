//! Random bytes and mutated programs: refused, faulted or run to an end, never a panic.

use bpf::{Buffer, Insn, Program, assemble, run};

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

const SEED: &str = "mov %r6, %r1\nmov %r7, 20\nagain:\nldxdw %r0, [%r6+8]\nlock fetch add [%r10-8], %r0\nstxdw [%r10-16], %r0
    call local inner\nsub %r7, 1\njne %r7, 0, again\nlddw %r3, 0x1122334455667788\nsdiv32 %r0, %r3\nbswap32 %r0\ncall 1\nexit
    inner:\nmovsx864 %r0, %r1\narsh %r0, 3\nlock cmpxchg32 [%r10-4], %r7\nexit";

/// How many of each: refused, faulted, ended.
fn outcomes(mut make: impl FnMut(&mut Random) -> Vec<u8>) -> [usize; 3] {
    let mut random = Random(0x6e61_6e6f_7072_6f62);
    let mut seen = [0; 3];
    for _ in 0..200_000 {
        let bytes = make(&mut random);
        let mut memory = [0x5a; 64];
        let mut host = Buffer::new(&mut memory, |number, args| (number < 5).then_some(args[0]));
        let kind = match Program::from_bytes(&bytes) {
            Err(refused) => {
                assert!(!refused.to_string().is_empty());
                0
            }
            Ok(program) => {
                let again = assemble(&program.to_string()).expect("what is printed is read");
                assert_eq!(again, program.insns());
                usize::from(run(&program, &mut host, [0x1000_0000, 64, 1, 2, 3], 500).is_ok()) + 1
            }
        };
        seen[kind] += 1;
    }
    seen
}

#[test]
fn mutated_programs_are_refused_or_run_to_an_end() {
    let seed = Insn::encode_all(&assemble(SEED).unwrap());
    let seen = outcomes(|random| {
        let mut bytes = seed.clone();
        for _ in 0..=random.next() % 3 {
            let at = random.next() as usize % bytes.len();
            bytes[at] = random.next() as u8;
        }
        bytes
    });
    println!("refused, faulted, ended: {seen:?}");
    assert!(seen.iter().all(|n| *n > 1_000), "{seen:?}");
}

#[test]
fn random_bytes_are_refused_or_run_to_an_end() {
    let seen = outcomes(|random| {
        let insns = 1 + random.next() % 4;
        let mut bytes: Vec<u8> = (0..insns).flat_map(|_| random.next().to_le_bytes()).collect();
        // So that some of them end.
        bytes.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    });
    println!("refused, faulted, ended: {seen:?}");
    assert!(seen[0] > 1_000, "{seen:?}");
}
