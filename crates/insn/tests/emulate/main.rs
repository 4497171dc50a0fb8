//! One instruction at a time: emulated, and run in a slot, beside the processor, from the same random state.
//!
//! `NANOPROBE_SEED` repeats a run, `NANOPROBE_INSN_RUNS` sets the number of cases for each class.

#[path = "../differential/cases.rs"]
mod cases;
#[path = "../differential/machine.rs"]
mod machine;
#[path = "../differential/random.rs"]
#[allow(dead_code)]
mod random;
#[path = "../differential/seed.rs"]
mod seed;

use iced_x86::{Decoder, DecoderOptions};
use insn::{At, Emulation, NoSlot, RSP, Registers, Resume, SLOT_CODE_BYTES, SlotCode};
use machine::{CODE, COPY, DATA, DATA_LEN, Exit, FLAGS, Machine, STACK, STACK_LEN, State};
use random::Random;

/// Where the original stands in the code region.
pub const SITE: u64 = CODE + 0x400;
const SLOT: u64 = COPY + 0x180;
const RELEASE: u64 = SLOT + 128;
/// lea rsp,[rsp+8]; ret 128
const RELEASE_CODE: [u8; 8] = [0x48, 0x8d, 0x64, 0x24, 8, 0xc2, 128, 0];

/// What one comparison starts from.
pub struct Start {
    /// The processor's.
    pub state: State,
    /// The data region.
    pub data: Vec<u8>,
    /// The stack.
    pub stack: Vec<u8>,
}

impl Start {
    fn random(random: &mut Random) -> Start {
        let (data, stack) = (random.memory(DATA_LEN), random.memory(STACK_LEN));
        Start { state: random.state(), data, stack }
    }

    fn run(&self, machine: &mut Machine, at: u64, bytes: &[u8]) -> Exit {
        machine.run(at, bytes, &self.state, &self.data, &self.stack)
    }
}

fn runs(default: u64) -> u64 {
    std::env::var("NANOPROBE_INSN_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// One of the instructions in `bytes`.
fn pick(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut decoder = Decoder::with_ip(64, bytes, SITE, DecoderOptions::NONE);
    let all: Vec<_> = decoder.iter().filter(|insn| !insn.is_invalid()).collect();
    let one = random.pick(&all);
    let at = (one.ip() - SITE) as usize;
    bytes[at..at + one.len()].to_vec()
}

/// The bytes of the slot, and of the release routine behind it.
fn in_slot(code: &SlotCode) -> Option<Vec<u8>> {
    let mut slot = [0; SLOT_CODE_BYTES];
    let len = code.place(SLOT, 77, RELEASE, &mut slot).ok()?;
    let mut bytes = slot[..len].to_vec();
    bytes.resize(128, 0xcc);
    bytes.extend(RELEASE_CODE);
    Some(bytes)
}

fn word(memory: &Exit, at: u64) -> u64 {
    let read = |base: u64, bytes: &[u8]| {
        let from = usize::try_from(at.checked_sub(base)?).ok()?;
        Some(u64::from_le_bytes(bytes.get(from..from + 8)?.try_into().ok()?))
    };
    read(STACK, &memory.stack).or_else(|| read(DATA, &memory.data)).unwrap_or(0)
}

fn store(memory: &mut Exit, at: u64, value: u64) {
    for (base, bytes) in [(STACK, &mut memory.stack), (DATA, &mut memory.data)] {
        let from = at.wrapping_sub(base) as usize;
        if let Some(into) = bytes.get_mut(from..from.saturating_add(8)) {
            into.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Sends a thread that stopped in the slot out of it. True: the instruction has had its effect.
fn settle(code: &SlotCode, exit: &mut Exit) -> bool {
    if !(SLOT..SLOT + 128).contains(&exit.rip) {
        return true;
    }
    match code.at((exit.rip - SLOT) as u8) {
        At::Before { shift } => {
            exit.state.regs[RSP] = exit.state.regs[RSP].wrapping_add_signed(i64::from(shift));
            exit.rip = SITE;
            false
        }
        At::After { shift, resume, return_to } => {
            exit.rip = match resume {
                Resume::At(to) => to,
                Resume::OnStack(offset) => word(exit, exit.state.regs[RSP] + u64::from(offset)),
            };
            exit.state.regs[RSP] = exit.state.regs[RSP].wrapping_add_signed(i64::from(shift));
            if let Some(return_to) = return_to {
                store(exit, exit.state.regs[RSP], return_to);
            }
            exit.signal = libc::SIGTRAP;
            exit.fault = 0;
            true
        }
    }
}

/// Zeros where the slot's frame was: below the red zones of the stack pointers before and after.
fn hide_frames(exit: &mut Exit, stack_pointers: [u64; 2]) {
    for top in stack_pointers {
        for at in top.wrapping_sub(160)..top.wrapping_sub(128) {
            for (base, bytes) in [(STACK, &mut exit.stack), (DATA, &mut exit.data)] {
                if let Some(byte) = bytes.get_mut(at.wrapping_sub(base) as usize) {
                    *byte = 0;
                }
            }
        }
    }
}

fn differences(a: &Exit, b: &Exit) -> String {
    let mut out = String::new();
    for (number, (one, two)) in a.state.regs.iter().zip(&b.state.regs).enumerate() {
        if one != two {
            out += &format!(" r{number} {one:#x}/{two:#x}");
        }
    }
    let mut say = |what: &str, one: u64, two: u64| {
        if one != two {
            out += &format!(" {what} {one:#x}/{two:#x}");
        }
    };
    say("flags", a.state.flags, b.state.flags);
    say("rip", a.rip, b.rip);
    say("signal", a.signal as u64, b.signal as u64);
    say("fault", a.fault, b.fault);
    say("fx", u64::from(a.fx != b.fx), 0);
    for (name, one, two) in [("data", &a.data, &b.data), ("stack", &a.stack, &b.stack)] {
        if let Some(at) = one.iter().zip(two).position(|(one, two)| one != two) {
            out += &format!(" {name}+{at:#x}");
        }
    }
    out
}

/// Runs an instruction of every class; `compare` says how many things it compared.
fn each_class(
    what: &str,
    mut compare: impl FnMut(&str, &[u8], &Start, &mut Machine, &mut Random) -> u64,
) -> u64 {
    let mut random = Random::from_env(what);
    let mut machine = Machine::new();
    let mut all = 0;
    for (class, make) in cases::CLASSES {
        for _ in 0..runs(150) {
            let mut start = Start::random(&mut random);
            let bytes = pick(&make(&mut random, &mut start), &mut random);
            all += compare(class, &bytes, &start, &mut machine, &mut random);
        }
    }
    all
}

#[test]
fn emulation_leaves_what_the_processor_leaves() {
    let mut kinds = std::collections::BTreeMap::new();
    let all = each_class("emulation", |class, bytes, start, machine, _| {
        let Some(emulation) = Emulation::of(bytes, SITE) else { return 0 };
        let want = start.run(machine, SITE, bytes);
        let mut regs = Registers { general: start.state.regs, flags: start.state.flags, rip: SITE };
        let stored = emulation.run(&mut regs);
        let mut got = want.clone();
        (got.state.regs, got.state.flags, got.rip) = (regs.general, regs.flags & FLAGS, regs.rip);
        (got.data, got.stack) = (start.data.clone(), start.stack.clone());
        if let Some(stored) = stored {
            store(&mut got, stored.addr, stored.value);
        }
        let kind = format!("{emulation:?}").split_whitespace().next().unwrap_or_default().to_string();
        *kinds.entry(kind).or_insert(0) += 1;
        // The processor may go on to an address that is not canonical, and fault there.
        let differs = differences(&want, &got);
        let there = want.signal == libc::SIGTRAP || want.signal == libc::SIGSEGV;
        assert!(differs.is_empty() && there, "{class} {bytes:02x?}: {differs} {}", want.signal);
        1
    });
    println!("{all} compared: {kinds:?}");
    assert_eq!(kinds.len(), 7, "{kinds:?}");
}

#[test]
fn a_slot_does_what_the_instruction_does() {
    let (mut faulted, mut in_frame) = (0, 0);
    let all = each_class("slots", |class, bytes, start, machine, _| {
        let Ok(code) = SlotCode::of(bytes, SITE) else { return 0 };
        let Some(slot) = in_slot(&code) else { return 0 };
        let mut want = start.run(machine, SITE, bytes);
        let mut got = start.run(machine, SLOT, &slot);
        if is_release_fault(&got) {
            in_frame += 1;
            return 0;
        }
        let faults = want.signal != libc::SIGTRAP;
        faulted += u64::from(faults);
        settle(&code, &mut got);
        let ends = [start.state.regs[RSP], want.state.regs[RSP]];
        hide_frames(&mut want, ends);
        hide_frames(&mut got, ends);
        let differs = differences(&want, &got);
        // An access beside the region of the test may fault in one and not the other, if it meets our frame.
        assert!(differs.is_empty(), "{class} {bytes:02x?} in {slot:02x?}: {differs}");
        1
    });
    println!("{all} compared, {faulted} faulted; {in_frame} left out: the new stack pointer leads nowhere");
    assert!(all > 5000 && faulted > 50, "{all} {faulted}");
}

/// The release routine of this test has no frame handling: left out when it faults.
fn is_release_fault(exit: &Exit) -> bool {
    (RELEASE..RELEASE + 8).contains(&exit.rip) && exit.signal != libc::SIGTRAP
}

#[test]
fn a_thread_stopped_anywhere_in_a_slot_goes_on_right() {
    let mut stopped = 0;
    let all = each_class("stops", |class, bytes, start, machine, random| {
        let Ok(code) = SlotCode::of(bytes, SITE) else { return 0 };
        let Some(mut slot) = in_slot(&code) else { return 0 };
        let mut want = start.run(machine, SITE, bytes);
        let mut decoder = Decoder::with_ip(64, &slot[..110], SLOT, DecoderOptions::NONE);
        let starts: Vec<u64> = decoder
            .iter()
            .filter(|i| !i.is_invalid())
            .map(|i| i.ip())
            .take_while(|ip| *ip < SLOT + 100)
            .collect();
        let at = (*random.pick(&starts) - SLOT) as usize;
        slot[at] = 0xcc;
        let mut got = start.run(machine, SLOT, &slot);
        if got.rip != SLOT + at as u64 || got.signal != libc::SIGTRAP {
            return 0; // it did not come there
        }
        stopped += 1;
        if !settle(&code, &mut got) {
            assert_eq!(got.rip, SITE);
            let state = State { xmm: start.state.xmm, ..got.state.clone() };
            let again = Start { state, data: got.data.clone(), stack: got.stack.clone() };
            got = again.run(machine, SITE, bytes);
        }
        let ends = [start.state.regs[RSP], want.state.regs[RSP]];
        hide_frames(&mut want, ends);
        hide_frames(&mut got, ends);
        let differs = differences(&want, &got);
        assert!(differs.is_empty(), "{class} {bytes:02x?} stopped at {at}: {differs}");
        1
    });
    println!("{all} compared, {stopped} stopped in the slot");
    assert!(all > 300, "{all}");
}

#[test]
fn what_the_kernel_refuses_is_refused_with_its_error() {
    let cases: &[(&[u8], i32)] = &[
        (&[0x06], 524),                   // push es: gone in 64-bit code
        (&[0x66, 0xea, 0, 0], 524),       // jmp far: likewise
        (&[0x0f, 0xff], 8),               // nothing
        (&[0xff], 8),                     // the end is missing
        (&[0xcc], 524),                   // int3
        (&[0xf1], 524),                   // int1
        (&[0xcd, 0x80], 524),             // int 0x80
        (&[0x0f, 0x05], 524),             // syscall
        (&[0x0f, 0x34], 524),             // sysenter
        (&[0xf4], 524),                   // hlt
        (&[0xfa], 524),                   // cli
        (&[0xe4, 0x10], 524),             // in
        (&[0x6c], 524),                   // insb
        (&[0x8e, 0xd0], 524),             // mov ss, ax
        (&[0x48, 0xcf], 524),             // iretq
        (&[0x66, 0xe9, 0, 0, 0, 0], 524), // jmp with an operand-size prefix
        (&[0x0f, 0x01, 0xd8], 524),       // vmrun
        (&[0x0f, 0x30], 524),             // wrmsr
    ];
    for (bytes, errno) in cases {
        let got = SlotCode::of(bytes, SITE).map(|_| 0).unwrap_or_else(NoSlot::errno);
        assert_eq!(got, *errno, "{bytes:02x?}");
        assert_eq!(Emulation::of(bytes, SITE), None);
    }
}

#[test]
fn evex_operands_relative_to_rip_lead_to_the_same_bytes() {
    if !std::arch::is_x86_feature_detected!("avx512vl") {
        return println!("not compared: this processor has no AVX-512VL");
    }
    let mut random = Random::from_env("evex");
    let mut machine = Machine::new();
    for _ in 0..200 {
        let start = Start::random(&mut random);
        let to = random.data_addr();
        // vmovdqu64 xmm0,[rip+x]; vpaddq xmm1,xmm2,[rip+x]
        for (opcode, modrm) in
            [([0x62, 0xf1, 0xfe, 0x08, 0x6f], 0x05), ([0x62, 0xf1, 0xed, 0x08, 0xd4], 0x0d)]
        {
            let distance = to.wrapping_sub(SITE + 10) as u32;
            let bytes = [&opcode[..], &[modrm], &distance.to_le_bytes()].concat();
            let slot = in_slot(&SlotCode::of(&bytes, SITE).unwrap()).unwrap();
            let want = start.run(&mut machine, SITE, &bytes);
            let got = start.run(&mut machine, SLOT, &slot);
            assert_eq!((want.signal, want.rip), (libc::SIGTRAP, SITE + 10));
            assert_ne!(want.fx[160..192], start.state.xmm[..32], "it loaded something");
            assert_eq!((&want.fx, want.rip, want.state.regs), (&got.fx, got.rip, got.state.regs));
        }
    }
}
