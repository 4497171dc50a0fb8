//! Which of four consumers are there before and after, two at a function's entry and two before its return: all 16 by 16
//! changes, made inside the probed call, through real breakpoints and through jumps.
//!
//! After the kernel's `uprobe_multi_test` consumers test. A return is a hit before the exit here, as in a traced process: a
//! consumer of returns is called if it is there when the function returns, whoever was there at its entry.

mod kit;

use kit::{Count, bytes_at, engine, text};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use trap::{Config, Engine, Probe, Rung, Scheme, Vectors};

// The same as `CODE`, in this program's image, where jumps can be placed.
std::arch::global_asm!(
    ".globl matrix_code\n.type matrix_code, @function\nmatrix_code:\n.cfi_startproc",
    "sub rsp, 8\n.cfi_adjust_cfa_offset 8\n.byte 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0xff, 0xd0",
    "add rsp, 8\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc",
    ".size matrix_code, . - matrix_code\n.p2align 4, 0xcc",
);

unsafe extern "C" {
    fn matrix_code();
}

/// Calls its first argument with the second.
const CODE: [u8; 17] = [
    0x48, 0x83, 0xec, 0x08, // sub rsp,8: the entry
    0x48, 0x89, 0xf8, // mov rax,rdi
    0x48, 0x89, 0xf7, // mov rdi,rsi
    0xff, 0xd0, // call rax
    0x48, 0x83, 0xc4, 0x08, // add rsp,8
    0xc3, // ret: the exit
];
const EXIT: u64 = 16;

/// The consumers: 0 and 1 stand at the entry, 2 and 3 at the exit.
struct Four {
    engine: Engine,
    at: u64,
    counts: [Arc<Count>; 4],
    there: [Option<Probe>; 4],
    after: usize,
    changes: u64,
}

impl Four {
    fn change(&mut self, set: usize) {
        for i in 0..4 {
            let wanted = set & (1 << i) != 0;
            match self.there[i].take() {
                Some(old) if !wanted => {
                    self.engine.remove([old]);
                    self.changes += 1;
                }
                None if wanted => {
                    let at = self.at + if i < 2 { 0 } else { EXIT };
                    // SAFETY: an instruction begins there, no jump leads behind it, and the consumer counts.
                    let probe = unsafe { self.engine.probe(at, self.counts[i].clone()) };
                    self.there[i] = Some(probe.unwrap());
                    self.changes += 1;
                }
                same => self.there[i] = same,
            }
        }
    }
}

extern "C" fn inside(four: &mut Four) {
    four.change(four.after);
}

#[test]
fn every_change_inside_the_probed_call_is_seen_as_the_rules_say() {
    let image = matrix_code as *const () as u64;
    let jump = |vectors| (Config { vectors, ..Config::default() }, image);
    let slot = |scheme| (Config { scheme, jumps: false, ..Config::default() }, text(&CODE));
    let ways = [slot(Scheme::Cached), slot(Scheme::Dynamic), jump(Vectors::All), jump(Vectors::Low)];
    for (config, at) in ways {
        let (engine, _alone) = engine(config);
        // SAFETY: the code takes a function and its argument by the C calling convention.
        let call: extern "C" fn(extern "C" fn(&mut Four), &mut Four) = unsafe { std::mem::transmute(at) };
        let counts = std::array::from_fn(|_| Count::new());
        let mut four = Four { engine, at, counts, there: Default::default(), after: 0, changes: 0 };
        let mut cells = 0;
        for (before, after) in (0..16).flat_map(|b| (0..16).map(move |a| (b, a))) {
            four.change(before);
            for probe in four.there.iter().flatten() {
                let way = probe.way().unwrap();
                assert_eq!(way.rung == Rung::Trap, !config.jumps, "{way:?}");
            }
            four.after = after;
            four.counts.iter().for_each(|count| count.0.store(0, Relaxed));
            call(inside, &mut four);
            let seen = four.counts.each_ref().map(|count| count.get());
            let there = |i: usize| if i < 2 { before } else { after };
            let wanted = std::array::from_fn(|i| (there(i) >> i & 1) as u64);
            assert_eq!(seen, wanted, "{config:?}: {before:04b} then {after:04b}");
            cells += 1;
        }
        four.change(0);
        assert_eq!(cells, 256);
        assert!(four.changes > 256, "{}", four.changes);
        assert_eq!(bytes_at(at, CODE.len()), CODE, "text is as it was");
        assert_eq!(engine.in_slots(), 0);
    }
}
