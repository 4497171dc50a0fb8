//! Each class of A64 instructions is run where it stood, and its copy where `relocate` put it, from the same random
//! state: registers, flags, memory and the place where control goes must be equal. What `emulate` says must be what
//! the processor did. Runs under qemu-user: docs/aarch64.md.
//!
//! `NANOPROBE_SEED` repeats a run, `NANOPROBE_INSN_RUNS` sets the number of cases for each class, and
//! `NANOPROBE_INSN_CLASS` says which class alone is compared.
#![cfg(target_arch = "aarch64")]

mod cases;
mod machine;
#[path = "../differential/seed.rs"]
mod seed;

use cases::{CLASSES, bytes, landing, state};
use insn::aarch64::{
    Copied, GATE_WORDS, Origin, Regs, Relative, SCRATCH_BYTES, Saved, Verdict, decode, emulate, gate,
    relocate, resume, verdict,
};
use machine::{BRANCH_TYPE, CODE, COPIES, Exit, FLAGS, GATES, LEN, Machine, STACK, State};
use seed::Seed;

/// Cases a class; about three seconds in all under qemu.
const RUNS: u64 = 500;

fn runs(default: u64) -> u64 {
    std::env::var("NANOPROBE_INSN_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// A word at a site, and what it starts from.
struct Case {
    word: u32,
    site: u64,
    start: State,
    data: Vec<u8>,
    stack: Vec<u8>,
}

impl Case {
    fn random(seed: &mut Seed, class: &cases::Class) -> Case {
        let site = CODE + 4 * seed.below(LEN as u64 / 16);
        // At the site itself stands something else when the copy runs: what reads that is no measure.
        let reads_itself = |word: &u32| matches!(decode(*word, site), Some(Relative::Load { target, .. }) if (target..target + 16).contains(&site));
        let word = std::iter::repeat_with(|| class.1(seed, site)).find(|word| !reads_itself(word));
        let word = word.unwrap_or_else(|| unreachable!("most read elsewhere"));
        let mut start = state(seed, site);
        if let Some(Relative::Register { rn, auth, .. }) = decode(word, site) {
            aim(seed, &mut start, rn, auth, word >> 10 & 1 == 1);
        } else {
            cases::keep_off_code(&mut start);
        }
        Case { word, site, start, data: bytes(seed), stack: bytes(seed) }
    }

    fn original(&self, machine: &mut Machine) -> Exit {
        machine.run(&[(self.site, &[self.word])], &self.start, &self.data, &self.stack)
    }
}

/// Lets the register of a branch hold a landing, signed as the branch wants it in three of four cases.
fn aim(seed: &mut Seed, start: &mut State, rn: u8, auth: insn::aarch64::Auth, is_key_b: bool) {
    use insn::aarch64::Auth;
    let Some(target) = start.x.get(usize::from(rn)).map(|_| landing(seed)) else { return };
    let modifier = match auth {
        Auth::None | Auth::Zero => 0,
        Auth::Modifier(31) => start.sp,
        Auth::Modifier(rm) if rm == rn => target,
        Auth::Modifier(rm) => start.x[usize::from(rm)],
    };
    let is_signed = auth != Auth::None && seed.below(4) != 0;
    start.x[usize::from(rn)] = if is_signed { sign(target, modifier, is_key_b) } else { target };
}

fn sign(pointer: u64, modifier: u64, is_key_b: bool) -> u64 {
    let mut signed = pointer;
    if is_key_b {
        // SAFETY: the instruction changes the one register. A processor without it raises SIGILL, and the test fails.
        unsafe {
            std::arch::asm!(".arch_extension pauth", "pacib {0}, {1}", inout(reg) signed, in(reg) modifier)
        };
    } else {
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(".arch_extension pauth", "pacia {0}, {1}", inout(reg) signed, in(reg) modifier)
        };
    }
    signed
}

/// A copy with the gates that it asked for.
struct Moved {
    dest: u64,
    copied: Copied,
    gates: Vec<(u64, u64, [u32; GATE_WORDS])>,
}

impl Moved {
    fn new(seed: &mut Seed, case: &Case) -> Result<Moved, insn::aarch64::NotMoved> {
        let dest = COPIES[seed.below(3) as usize] + 4 * seed.below(LEN as u64 / 4 - 16);
        let mut at = GATES + 8 * seed.below(64);
        let mut gates = vec![];
        let copied = relocate(case.word, case.site, dest, &mut |target| {
            let words = gate(at, target)?;
            gates.push((at, target, words));
            at += 4 * GATE_WORDS as u64;
            Some(at - 4 * GATE_WORDS as u64)
        })?;
        Ok(Moved { dest, copied, gates })
    }

    fn pieces(&self) -> Vec<(u64, &[u32])> {
        let gates = self.gates.iter().map(|(at, _, words)| (*at, &words[..]));
        std::iter::once((self.dest, self.copied.words())).chain(gates).collect()
    }

    /// What a program counter in the copy or its gates stands for.
    fn origin(&self, pc: u64) -> Option<Origin> {
        let inside = pc.checked_sub(self.dest).and_then(|offset| self.copied.origin_of(offset as usize));
        let gates = self.gates.iter();
        inside.or_else(|| {
            gates.filter_map(|(at, target, _)| resume(pc.checked_sub(*at)? as usize, *target)).next()
        })
    }
}

/// Takes a thread that stopped inside a copy back to the original; the register that it has spoiled.
fn take_back(exit: &mut Exit, origin: Origin, site: u64) -> Option<u8> {
    if origin.saved == Saved::Scratch {
        let word = |at: u64| {
            let start = (at - STACK) as usize;
            u64::from_le_bytes(exit.stack[start..start + 8].try_into().unwrap())
        };
        let (x16, x17) = (word(exit.state.sp), word(exit.state.sp + 8));
        (exit.state.x[16], exit.state.x[17]) = (x16, x17);
        exit.state.sp += SCRATCH_BYTES;
    }
    exit.state.pc = origin.leads_to.unwrap_or(site);
    origin.spoiled
}

/// The first thing in which two exits differ. What lies just below the stack pointer is nobody's.
fn difference(here: &Exit, there: &Exit, spoiled: Option<u8>) -> Option<String> {
    if here.signal != there.signal {
        return Some(format!("signals {} and {}", here.signal, there.signal));
    }
    if (here.state.pc, here.state.sp) != (there.state.pc, there.state.sp) {
        return Some("program counter or stack pointer".to_owned());
    }
    if (here.state.pstate ^ there.state.pstate) & FLAGS != 0 {
        return Some("flags".to_owned());
    }
    let x = (0..31).find(|n| here.state.x[*n] != there.state.x[*n] && spoiled != Some(*n as u8));
    if let Some(number) = x {
        return Some(format!("x{number}"));
    }
    let v = (0..32).find(|n| here.state.v[*n] != there.state.v[*n]);
    if let Some(number) = v {
        return Some(format!("v{number}"));
    }
    let below = (here.state.sp.wrapping_sub(STACK) as usize).clamp(SCRATCH_BYTES as usize, LEN);
    // The 16 bytes next to the stack pointer are Go's.
    let free = below - SCRATCH_BYTES as usize..below - 16;
    let stack = (0..LEN).find(|at| here.stack[*at] != there.stack[*at] && !free.contains(at));
    let data = (here.data != there.data).then_some("data");
    stack.map(|at| format!("stack at {at:#x}")).or(data.map(str::to_owned))
}

/// The stack pointer is one, as everywhere in code that keeps to the ABI. Words of libc by themselves may set it to
/// anything, and a far copy that follows pushes there.
fn has_stack(exit: &Exit) -> bool {
    exit.state.sp & 15 == 0 && (STACK + SCRATCH_BYTES..STACK + LEN as u64).contains(&exit.state.sp)
}

/// bc.cond, which data in libc's code may look like, where the processor says that it does not have it, as qemu 7.2: what
/// it does with such a word is no measure. All else that `decode` takes, every processor has or runs as a nop, but for
/// pointer authentication, which the runner's one has.
fn is_unknown_here(word: u32) -> bool {
    const HBC: u64 = 1 << 44;
    let is_bc = matches!(decode(word, 0), Some(Relative::JumpIf { is_consistent: true, .. }));
    // SAFETY: getauxval reads what the kernel gave the process at its start, for any key.
    is_bc && unsafe { libc::getauxval(libc::AT_HWCAP2) } & HBC == 0
}

fn assert_same(case: &Case, moved: &Moved, here: &Exit, there: &Exit, spoiled: Option<u8>) {
    if let Some(difference) = difference(here, there, spoiled) {
        panic!(
            "{difference}: {:08x} of {:#x} at {:#x}: {:08x?} gates {:x?}\nstart {:x?}\nhere {:x?} signal {}\nthere {:x?} signal {}",
            case.word,
            case.site,
            moved.dest,
            moved.copied.words(),
            moved.gates,
            case.start,
            here.state,
            here.signal,
            there.state,
            there.signal
        );
    }
}

#[test]
fn the_machine_sees_registers_flags_memory_and_exits() {
    let mut seed = Seed::from_env("machine");
    let mut machine = Machine::new();
    let (data, stack) = (bytes(&mut seed), bytes(&mut seed));
    let mut start = state(&mut seed, CODE);
    start.x[1] = machine::DATA + 8;
    // subs x0, x2, x2; str x3, [x1]; eor v0, v0, v0; sub sp, sp, #16; b .+8
    let words = [0xeb02_0040, 0xf900_0023, 0x6e20_1c00, 0xd100_43ff, 0x1400_0002];
    let exit = machine.run(&[(CODE, &words)], &start, &data, &stack);
    assert_eq!((exit.signal, exit.state.pc), (libc::SIGTRAP, CODE + 24));
    assert_eq!((exit.state.x[0], exit.state.pstate & FLAGS, exit.state.v[0]), (0, 0x6000_0000, 0));
    assert_eq!(exit.state.v[1], start.v[1]);
    assert_eq!(exit.state.sp, start.sp - 16);
    assert_eq!(exit.data[8..16], start.x[3].to_le_bytes());
    // ldr x0, [x1] of nothing
    start.x[1] = 8;
    let exit = machine.run(&[(CODE, &[0xf940_0020])], &start, &data, &stack);
    assert_eq!((exit.signal, exit.state.pc), (libc::SIGSEGV, CODE));
}

#[test]
fn copies_do_what_the_originals_do() {
    let mut seed = Seed::from_env("copies");
    let mut machine = Machine::new();
    machine.fill_literals(&bytes(&mut seed));
    let only = std::env::var("NANOPROBE_INSN_CLASS").unwrap_or_default();
    for class in CLASSES.iter().filter(|class| class.0.contains(&only)) {
        let (mut equal, mut taken, mut faulted, mut far, mut unmoved, mut odd) = (0u64, 0, 0, 0, 0, 0);
        for _ in 0..runs(RUNS) {
            let case = Case::random(&mut seed, class);
            let Ok(moved) = Moved::new(&mut seed, &case) else {
                unmoved += 1;
                continue;
            };
            let here = case.original(&mut machine);
            if !has_stack(&here) || is_unknown_here(case.word) {
                odd += 1;
                continue;
            }
            let start = State { pc: moved.dest, ..case.start.clone() };
            let mut there = machine.run(&moved.pieces(), &start, &case.data, &case.stack);
            let pc = there.state.pc;
            let spoiled = moved.origin(pc).and_then(|origin| take_back(&mut there, origin, case.site));
            assert_same(&case, &moved, &here, &there, spoiled);
            equal += 1;
            taken += u64::from(here.state.pc != case.site + 4);
            faulted += u64::from(here.signal != libc::SIGTRAP);
            far += u64::from(!moved.gates.is_empty());
        }
        println!(
            "{:10} {equal} equal, {taken} elsewhere, {faulted} faulted, {far} by gates, {unmoved} not moved, {odd} left out",
            class.0
        );
        assert!(equal > unmoved + odd, "{}: too few", class.0);
        assert!(far > 0 || matches!(class.0, "br" | "blr" | "ret" | "braz" | "blraz" | "blra" | "reta"));
    }
}

#[test]
fn a_thread_stopped_anywhere_in_a_copy_goes_on_in_the_original() {
    let mut seed = Seed::from_env("stopped");
    let mut machine = Machine::new();
    machine.fill_literals(&bytes(&mut seed));
    let mut stopped = 0u64;
    for class in &CLASSES {
        for _ in 0..runs(RUNS) / 20 {
            let case = Case::random(&mut seed, class);
            let Ok(moved) = Moved::new(&mut seed, &case) else { continue };
            let here = case.original(&mut machine);
            if !has_stack(&here) || is_unknown_here(case.word) {
                continue;
            }
            let words: Vec<u64> = moved
                .pieces()
                .iter()
                .flat_map(|(at, words)| (0..words.len() as u64).map(move |index| at + 4 * index))
                .collect();
            for stop in words {
                stopped += u64::from(stop_at(&mut machine, &case, &moved, &here, stop));
            }
        }
    }
    println!("{stopped} stops");
    assert!(stopped > 1000);
}

/// Stops the copy before the word at `stop`; false if control never came there.
fn stop_at(machine: &mut Machine, case: &Case, moved: &Moved, here: &Exit, stop: u64) -> bool {
    let stops: Vec<_> = moved
        .pieces()
        .into_iter()
        .map(|(at, words)| {
            let mut words = words.to_vec();
            if let Some(word) = stop.checked_sub(at).and_then(|offset| words.get_mut(offset as usize / 4)) {
                *word = machine::BRK;
            }
            (at, words)
        })
        .collect();
    let pieces: Vec<_> = stops.iter().map(|(at, words)| (*at, &words[..])).collect();
    let start = State { pc: moved.dest, ..case.start.clone() };
    let mut there = machine.run(&pieces, &start, &case.data, &case.stack);
    if there.state.pc != stop || there.signal != libc::SIGTRAP {
        return false;
    }
    let origin = moved.origin(stop).expect("each word has its origin");
    assert_eq!(origin.is_at_start, stop == moved.dest);
    let spoiled = take_back(&mut there, origin, case.site);
    let start = State { pstate: there.state.pstate & FLAGS, ..there.state.clone() };
    let there = machine.run(&[(case.site, &[case.word])], &start, &there.data, &there.stack);
    // A load that faults does not write what the copy had begun to write.
    let spoiled = spoiled.filter(|_| here.signal != libc::SIGTRAP);
    assert_same(case, moved, here, &there, spoiled);
    true
}

#[test]
fn what_is_emulated_ends_as_what_is_run() {
    let mut seed = Seed::from_env("emulated");
    let mut machine = Machine::new();
    let mut emulated = 0;
    for class in &CLASSES {
        for _ in 0..runs(RUNS) {
            let case = Case::random(&mut seed, class);
            let mut regs = Regs { x: case.start.x, pc: case.site, pstate: case.start.pstate };
            assert_eq!(emulate(case.word, &mut regs), verdict(case.word) == Verdict::Emulated);
            if verdict(case.word) != Verdict::Emulated || is_unknown_here(case.word) {
                continue;
            }
            emulated += 1;
            let exit = case.original(&mut machine);
            let Exit { state, .. } = exit;
            let kept = FLAGS | BRANCH_TYPE;
            let ran = (state.x, state.pc, state.pstate & kept);
            assert_eq!((regs.x, regs.pc, regs.pstate & kept), ran, "{:08x} {:x?}", case.word, case.start);
            assert_eq!((state.sp, state.v), (case.start.sp, case.start.v));
        }
    }
    println!("{emulated} emulated");
    assert!(emulated > runs(RUNS) * 8);
}
