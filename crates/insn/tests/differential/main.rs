//! Displaced instructions are run where they stood, and their copies where `relocate` put them, from the same
//! random state; registers, flags, memory and the place where control goes must be equal.
//!
//! `NANOPROBE_SEED` repeats a run, `NANOPROBE_INSN_RUNS` sets the number of cases for each class.
#![cfg(target_arch = "x86_64")]

mod cases;
#[path = "../real/elf.rs"]
mod elf;
mod encodings;
mod every;
mod kernel;
mod machine;
mod random;
mod seed;

use iced_x86::{Code as Op, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use insn::{Asked, Code, Flow, Insn, Placement, place, relocate, relocate_len_bound};
use machine::{CODE, COPY, COPY_LEN, DATA, DATA_LEN, Exit, FLAGS, Machine, STACK_LEN, State};
use random::Random;

/// Where the original stands in the code region.
const SITE: u64 = CODE + 0x400;

fn runs(default: u64) -> u64 {
    std::env::var("NANOPROBE_INSN_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// What one comparison starts from.
struct Start {
    state: State,
    data: Vec<u8>,
    stack: Vec<u8>,
}

impl Start {
    fn random(random: &mut Random) -> Start {
        let (data, stack) = (random.memory(DATA_LEN), random.memory(STACK_LEN));
        Start { state: random.state(), data, stack }
    }
}

/// How many comparisons ended where, so that a test that compares nothing is seen.
#[derive(Debug, Default)]
struct Tally {
    equal: u64,
    faulted: u64,
    branched: u64,
    in_call: u64,
    aliased: u64,
}

/// `bytes` at the site, as the file would have them: `bias` below.
fn place_at_site(bytes: &[u8], bias: u64) -> Option<Placement> {
    let base = SITE - bias;
    let code = [Code { base, bytes }];
    let flow = Flow::analyse(&code, &[], &[], &|_| vec![]);
    let asked =
        Asked { site: base, function: None, next_function: None, taken: &|_| false, room: &insn::no_room };
    place(&flow, &code, &asked).ok()
}

fn original_bytes(placement: &Placement) -> Vec<u8> {
    placement.displaced.iter().flat_map(|insn| insn.bytes().to_vec()).collect()
}

/// Runs both; panics with everything needed to repeat the case when they differ.
fn compare(
    machine: &mut Machine,
    random: &mut Random,
    placement: &Placement,
    start: &Start,
    tally: &mut Tally,
) {
    let bias = SITE - placement.site;
    let dest = COPY + random.below(COPY_LEN as u64 - 256);
    // Random displacements may lead 2 GiB away.
    let Ok(copy) = relocate(placement, bias, dest) else { return };
    assert!(copy.bytes.len() <= relocate_len_bound(placement), "{placement:x?} {copy:x?}");
    let original = original_bytes(placement);
    let here = machine.run(SITE, &original, &start.state, &start.data, &start.stack);
    let mut there = machine.run(dest, &copy.bytes, &start.state, &start.data, &start.stack);
    let mut is_in_call = false;
    if (dest..dest + copy.bytes.len() as u64).contains(&there.rip) {
        let origin = copy.origin_of((there.rip - dest) as u16).expect("inside");
        there.rip = SITE + u64::from(origin.offset);
        there.state.regs[4] = there.state.regs[4].wrapping_add(u64::from(origin.stack_shift_bytes));
        is_in_call = origin.is_stack_shifted;
    }
    if is_operand_in_call_slot(placement, &here) {
        tally.aliased += 1;
        return;
    }
    let is_call = is_last_a_call(placement);
    let free = (is_call || is_in_call).then(|| callee_owned(&here));
    if let Some(difference) = difference(&here, &there, free) {
        panic!(
            "{difference}\n{placement:x?}\ncopy at {dest:#x}: {:02x?}\nstart {:x?} flags {:#x}\nhere {:x?} rip {:#x} signal {} fault {:#x}\nthere {:x?} rip {:#x} signal {} fault {:#x}",
            copy.bytes,
            start.state.regs,
            start.state.flags,
            here.state.regs,
            here.rip,
            here.signal,
            here.fault,
            there.state.regs,
            there.rip,
            there.signal,
            there.fault
        );
    }
    tally.equal += 1;
    tally.in_call += u64::from(is_in_call);
    tally.faulted += u64::from(here.signal != libc::SIGTRAP);
    tally.branched += u64::from(here.rip != SITE + original.len() as u64 && here.signal == libc::SIGTRAP);
}

fn is_last_a_call(placement: &Placement) -> bool {
    let last = placement.displaced.last().expect("at least one");
    decode(last.bytes(), last.addr).is_some_and(|insn| matches!(insn.mnemonic(), Mnemonic::Call))
}

/// The one case that copies do not promise: a memory operand of a call that lies where the call stores its return
/// address, through a base that is no stack pointer and no frame pointer. Only random states make it.
fn is_operand_in_call_slot(placement: &Placement, exit: &Exit) -> bool {
    let last = placement.displaced.last().expect("at least one");
    let Some(insn) = decode(last.bytes(), last.addr).filter(|insn| insn.code() == Op::Call_rm64) else {
        return false;
    };
    let is_frame = insn.memory_base() == Register::RBP && (insn.memory_displacement64() as i64) < 0;
    if insn.op0_kind() != OpKind::Memory || insn.memory_base() == Register::RSP || is_frame {
        return false;
    }
    // A call changes no register but rsp, which it moves unless it faults.
    let is_at_call = exit.rip == last.addr + (SITE - placement.site);
    let slot_end = exit.state.regs[4].wrapping_add(if is_at_call { 0 } else { 8 });
    let operand = insn.virtual_address(0, 0, |register, _, _| {
        Some(if register.is_gpr() { exit.state.regs[register.full_register().number()] } else { 0 })
    });
    operand.is_some_and(|operand| slot_end.wrapping_sub(operand) < 16)
}

/// Stack bytes that a call leaves to its callee: 16 below where it left the stack pointer. A call that faults has
/// not moved it, and its own slot is among the 16.
fn callee_owned(exit: &Exit) -> std::ops::Range<usize> {
    let sp = exit.state.regs[4].wrapping_sub(machine::STACK).min(STACK_LEN as u64) as usize;
    sp.saturating_sub(16)..sp
}

fn difference(here: &Exit, there: &Exit, free: Option<std::ops::Range<usize>>) -> Option<&'static str> {
    let stack = |exit: &Exit| {
        let mut stack = exit.stack.clone();
        if let Some(free) = &free {
            stack[free.clone()].fill(0);
        }
        stack
    };
    if here.signal != there.signal {
        return Some("signals differ");
    }
    if here.rip != there.rip {
        return Some("exits differ");
    }
    if here.fault != there.fault {
        return Some("fault addresses differ");
    }
    if here.state.regs != there.state.regs {
        return Some("registers differ");
    }
    if here.state.flags != there.state.flags {
        return Some("flags differ");
    }
    if here.fx != there.fx {
        return Some("vector or x87 state differs");
    }
    if here.state.wide != there.state.wide {
        return Some("upper vector or mask registers differ");
    }
    if here.data != there.data {
        return Some("data differs");
    }
    (stack(here) != stack(there)).then_some("stack differs")
}

fn decode(bytes: &[u8], at: u64) -> Option<Instruction> {
    let insn = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    (!insn.is_invalid()).then_some(insn)
}

/// Points rip-relative operands of the instructions in `bytes`, which stand at `at`, at data.
fn aim_at_data(random: &mut Random, bytes: &mut [u8], at: u64) {
    let mut offset = 0;
    while let Some(insn) = decode(&bytes[offset..], at + offset as u64) {
        if insn.is_ip_rel_memory_operand() {
            let mut decoder =
                Decoder::with_ip(64, &bytes[offset..], at + offset as u64, DecoderOptions::NONE);
            let insn = decoder.decode();
            let field = offset + decoder.get_constant_offsets(&insn).displacement_offset();
            let displacement = random.data_addr().wrapping_sub(insn.next_ip()) as u32;
            bytes[field..field + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        offset += insn.len();
    }
}

/// Instructions whose result depends on more than the state, or that would hurt the test process.
fn is_runnable(insn: &Instruction) -> bool {
    use Mnemonic::*;
    let is_segment = |register: Register| register.is_segment_register();
    let loads_segment = insn.op_count() > 0
        && insn.op0_kind() == OpKind::Register
        && is_segment(insn.op0_register())
        && insn.mnemonic() != Push;
    let excluded = matches!(
        insn.mnemonic(),
        Syscall
            | Wrfsbase
            | Wrgsbase
            | Rdtsc
            | Rdtscp
            | Rdrand
            | Rdseed
            | Rdpid
            | Rdpru
            | Rdpmc
            | Cpuid
            | Wrpkru
            | Lss
            | Lfs
            | Lgs
            | Popf
            | Popfd
            | Popfq
            | Vmcall
            | Vmmcall
            | Monitorx
            | Mwaitx
            | Umwait
            | Tpause
            | Fxsave
            | Fxsave64
            | Fxrstor
            | Fxrstor64
            | Xsave
            | Xsave64
            | Xsaveopt
            | Xsaveopt64
            | Xsavec
            | Xsavec64
            | Xrstor
            | Xrstor64
            | Fnstenv
            | Fstenv
            | Fldenv
            | Fnsave
            | Fsave
            | Frstor
            | Ldmxcsr
            | Vldmxcsr
            | Xgetbv
            | Rdfsbase
            | Rdgsbase
            | Vmgexit
            | Enclu
            | Xbegin
    );
    let own_memory = matches!(insn.segment_prefix(), Register::FS | Register::GS);
    !excluded && !loads_segment && !own_memory
}

/// Whether the window can run by itself: runnable throughout, and no branch back into it.
fn is_window_runnable(placement: &Placement) -> bool {
    let window = placement.site..placement.site + u64::from(placement.displaced_len.max(5));
    placement.displaced.iter().all(|insn| {
        let decoded = decode(insn.bytes(), insn.addr).expect("placed");
        let target = if decoded.op0_kind() == OpKind::NearBranch64 { decoded.near_branch64() } else { 0 };
        is_runnable(&decoded) && !window.contains(&target)
    })
}

#[test]
fn the_machine_sees_registers_flags_memory_and_exits() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("machine");
    let mut start = Start::random(&mut random);
    start.state.regs[7] = DATA + 64;
    // mov [rdi],rsp; stc; pcmpeqd xmm1,xmm1; mov eax,7
    let bytes = [0x48, 0x89, 0x27, 0xf9, 0x66, 0x0f, 0x76, 0xc9, 0xb8, 7, 0, 0, 0];
    let exit = machine.run(SITE, &bytes, &start.state, &start.data, &start.stack);
    assert_eq!((exit.signal, exit.rip), (libc::SIGTRAP, SITE + 13));
    assert_eq!(exit.state.regs[0], 7);
    assert_eq!(exit.state.regs[3], start.state.regs[3]);
    assert_eq!(exit.state.flags, start.state.flags & FLAGS | 1);
    assert_eq!(exit.data[64..72], start.state.regs[4].to_le_bytes());
    assert_eq!(exit.fx[176..192], [0xff; 16]);
    assert_eq!(exit.fx[160..176], start.state.xmm[..16]);
    // a jump to nowhere, and a fault
    let exit = machine.run(SITE, &[0xe9, 0, 0, 0, 0x40], &start.state, &start.data, &start.stack);
    assert_eq!(
        (exit.signal, exit.rip, exit.fault),
        (libc::SIGSEGV, SITE + 5 + 0x4000_0000, SITE + 5 + 0x4000_0000)
    );
    start.state.regs[7] = DATA - 8;
    let exit = machine.run(SITE, &bytes, &start.state, &start.data, &start.stack);
    assert_eq!((exit.signal, exit.rip, exit.fault), (libc::SIGSEGV, SITE, DATA - 8));
}

#[test]
fn a_wrong_copy_is_noticed() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("wrong");
    let mut start = Start::random(&mut random);
    start.state.regs[1] = 77;
    let run = |machine: &mut Machine, bytes: &[u8]| {
        machine.run(SITE, bytes, &start.state, &start.data, &start.stack)
    };
    let here = run(&mut machine, &[0xb8, 1, 0, 0, 0, 0x50]); // mov eax,1; push rax
    let cases: [(&[u8], &str); 4] = [
        (&[0xb8, 1, 0, 0, 0, 0x50], "none"),
        (&[0xb8, 2, 0, 0, 0, 0x50], "registers differ"),
        (&[0xb8, 1, 0, 0, 0, 0x51], "stack differs"),
        (&[0xb8, 1, 0, 0, 0, 0x50, 0x90], "exits differ"),
    ];
    for (bytes, expected) in cases {
        let there = run(&mut machine, bytes);
        assert_eq!(difference(&here, &there, None).unwrap_or("none"), expected, "{bytes:x?}");
    }
}

#[test]
fn every_class_runs_the_same_elsewhere() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("classes");
    for (name, make) in cases::CLASSES {
        let mut tally = Tally::default();
        for _ in 0..runs(1500) {
            let mut start = Start::random(&mut random);
            let mut bytes = make(&mut random, &mut start);
            bytes.extend([0x90; 8]);
            let bias = if random.one_in(2) { 0 } else { CODE };
            let placement = place_at_site(&bytes, bias).unwrap_or_else(|| panic!("{name}: {bytes:02x?}"));
            compare(&mut machine, &mut random, &placement, &start, &mut tally);
        }
        println!("{name:28} {tally:?}");
        assert!(tally.equal > tally.faulted, "{name}: all faulted");
    }
}

/// Stops the copy before each of its instructions, moves the thread to the original as `origin_of` says, and lets
/// it go on there: what a detach does to a thread that it finds in a copy.
#[test]
fn a_thread_stopped_anywhere_in_a_copy_goes_on_in_the_original() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("stopped");
    let mut stops = 0;
    for (name, make) in cases::CLASSES {
        for _ in 0..runs(100) {
            let mut start = Start::random(&mut random);
            let mut bytes = make(&mut random, &mut start);
            bytes.extend([0x90; 8]);
            let placement = place_at_site(&bytes, 0).unwrap_or_else(|| panic!("{name}: {bytes:02x?}"));
            let original = original_bytes(&placement);
            let mut here = machine.run(SITE, &original, &start.state, &start.data, &start.stack);
            if here.signal != libc::SIGTRAP {
                continue;
            }
            here.fx[..160].fill(0); // mxcsr and x87 start anew in the second half
            let copy = relocate(&placement, 0, COPY).expect("near");
            for offset in instruction_offsets(&copy.bytes) {
                let mut cut = copy.bytes.clone();
                cut[offset] = 0xcc;
                let stop = machine.run(COPY, &cut, &start.state, &start.data, &start.stack);
                if stop.rip != COPY + offset as u64 {
                    continue; // the copy branched away before
                }
                let origin = copy.origin_of(offset as u16).expect("inside");
                if !origin.is_restartable {
                    continue;
                }
                let mut state = stop.state.clone();
                state.regs[4] = state.regs[4].wrapping_add(u64::from(origin.stack_shift_bytes));
                state.xmm.copy_from_slice(&stop.fx[160..416]);
                let pc = origin.leads_to.unwrap_or(SITE + u64::from(origin.offset));
                let rest = original.get((pc.wrapping_sub(SITE)) as usize..).unwrap_or_default();
                let mut there = machine.run(pc, rest, &state, &stop.data, &stop.stack);
                there.fx[..160].fill(0);
                let free = is_last_a_call(&placement).then(|| callee_owned(&here));
                if let Some(difference) = difference(&here, &there, free) {
                    panic!(
                        "{name}: {difference} when stopped {offset} bytes into {copy:02x?} of {placement:x?}"
                    );
                }
                stops += 1;
            }
        }
    }
    println!("{stops} stops");
    assert!(stops > runs(100) * cases::CLASSES.len() as u64);
}

fn instruction_offsets(bytes: &[u8]) -> Vec<usize> {
    let mut decoder = Decoder::with_ip(64, bytes, COPY, DecoderOptions::NONE);
    let insns = decoder.iter();
    insns.map(|insn| (insn.ip() - COPY) as usize).collect()
}

#[test]
fn random_instructions_run_the_same_elsewhere() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("random bytes");
    let mut tally = Tally::default();
    let mut kinds = std::collections::BTreeSet::new();
    while tally.equal < runs(60_000) {
        let mut bytes = random_encoding(&mut random);
        let Some(insn) = decode(&bytes, SITE) else { continue };
        bytes.truncate(insn.len());
        aim_at_data(&mut random, &mut bytes, SITE);
        bytes.extend([0x90; 8]);
        let Some(placement) = place_at_site(&bytes, 0) else { continue };
        if !is_window_runnable(&placement) {
            continue;
        }
        kinds.insert(format!("{:?}", insn.code()));
        let mut start = Start::random(&mut random);
        if insn.is_string_instruction() {
            // A long one would reach the code itself, which differs between the two.
            start.state.regs[1] = random.below(4);
            (start.state.regs[6], start.state.regs[7]) = (random.data_addr(), random.data_addr());
        }
        compare(&mut machine, &mut random, &placement, &start, &mut tally);
    }
    println!("{tally:?}, {} encodings", kinds.len());
    assert!(tally.equal > tally.faulted, "{tally:?}");
}

/// Fifteen bytes that begin like an instruction of one of the opcode maps; half have a rip-relative operand.
fn random_encoding(random: &mut Random) -> Vec<u8> {
    let prefixes: &[&[u8]] =
        &[&[], &[], &[0x66], &[0xf2], &[0xf3], &[0x48], &[0x66, 0x4c], &[0xf3, 0x48], &[0xf0]];
    let vex2 = [0xc5, random.next() as u8];
    let vex3 = [0xc4, random.next() as u8 & 0xe0 | (1 + random.below(3) as u8), random.next() as u8];
    let evex = [
        0x62,
        random.next() as u8 & 0xf0 | (1 + random.below(3) as u8),
        random.next() as u8 | 4,
        random.next() as u8,
    ];
    let maps: [&[u8]; 8] = [&[], &[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a], &vex2, &vex3, &evex];
    let map = *random.pick(&maps);
    let prefix =
        if map.first().is_some_and(|first| *first != 0x0f) { &[][..] } else { random.pick(prefixes) };
    let mut bytes = [prefix, map, &random.bytes::<15>()].concat();
    if random.one_in(2) {
        let modrm = prefix.len() + map.len() + 1;
        bytes[modrm] = bytes[modrm] & 0x38 | 5;
    }
    bytes.truncate(15);
    bytes
}

#[test]
fn windows_of_real_programs_run_the_same_elsewhere() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("real windows");
    for candidates in [elf::LIBC, elf::LIBSTDCXX, elf::PYTHON, elf::GO] {
        let Some(file) = elf::open(candidates) else { continue };
        let loaded = file.load();
        let flow = loaded.flow();
        let mut tally = Tally::default();
        let mut tries = 0;
        while tally.equal < runs(20_000) {
            tries += 1;
            assert!(tries < runs(20_000) * 20, "hardly anything can be placed in {}", file.path);
            let function = random.pick(&loaded.functions).clone();
            let Some(site) = random_boundary(&mut random, &loaded.codes, &function) else { continue };
            let asked = Asked {
                site,
                function: Some(function),
                next_function: None,
                taken: &|_| false,
                room: &insn::no_room,
            };
            let Ok(found) = place(&flow, &loaded.codes, &asked) else { continue };
            let Some(placement) = at_site(&mut random, &found) else { continue };
            if !is_window_runnable(&placement) {
                continue;
            }
            let mut start = Start::random(&mut random);
            if random.one_in(2) {
                start.state = random.calm_state();
            }
            compare(&mut machine, &mut random, &placement, &start, &mut tally);
        }
        println!("{} {tally:?}", file.path);
        assert!(tally.equal > tally.faulted, "{tally:?}");
    }
}

fn random_boundary(random: &mut Random, codes: &[Code<'_>], function: &std::ops::Range<u64>) -> Option<u64> {
    if random.one_in(4) {
        return Some(function.start);
    }
    let code = codes.iter().find(|code| code.range().contains(&function.start))?;
    let asked = function.start + random.below((function.end - function.start).clamp(1, 4096));
    let mut at = function.start;
    loop {
        let insn = decode(code.from_addr(at), at)?;
        if insn.next_ip() > asked {
            return Some(at);
        }
        at = insn.next_ip();
    }
}

/// The same displaced bytes as if they stood at the site, with rip-relative operands in our data.
fn at_site(random: &mut Random, found: &Placement) -> Option<Placement> {
    let mut bytes = original_bytes(found);
    let bias = random.below(1 << 20) << 12;
    aim_at_data(random, &mut bytes, SITE);
    let mut offset = 0;
    let mut displaced = vec![];
    for insn in &found.displaced {
        let own = &bytes[offset..offset + insn.len_bytes()];
        displaced.push(Insn::new(SITE - bias + offset as u64, own)?);
        offset += insn.len_bytes();
    }
    Some(Placement { site: SITE - bias, displaced, ..found.clone() })
}

#[test]
fn what_is_said_to_be_dead_does_not_matter() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("dead");
    let Some(file) = elf::open(elf::LIBC) else { return };
    let loaded = file.load();
    let (mut poisoned, mut regs, mut flags) = (0, 0, 0);
    let mut tries = 0;
    while poisoned < runs(20_000) {
        tries += 1;
        assert!(tries < runs(20_000) * 50, "nothing is ever dead");
        let function = random.pick(&loaded.functions).clone();
        let Some(site) = random_boundary(&mut random, &loaded.codes, &function) else { continue };
        let Some(mut bytes) = straight_line(&mut random, &loaded.codes, site) else { continue };
        aim_at_data(&mut random, &mut bytes, SITE);
        let len = bytes.len();
        bytes.push(0xcc);
        bytes.extend([0x90; 8]);
        let Some(placement) = place_at_site(&bytes, 0) else { continue };
        if placement.hooks[0].dead_regs.count() == 0 && !placement.hooks[0].flags_dead {
            continue;
        }
        let mut start = Start::random(&mut random);
        start.state = random.calm_state();
        let here = machine.run(SITE, &bytes[..len], &start.state, &start.data, &start.stack);
        for number in placement.hooks[0].dead_regs.iter() {
            start.state.regs[usize::from(number)] = random.next();
        }
        if placement.hooks[0].flags_dead {
            start.state.flags ^= random.next() & 0x8d5;
        }
        let there = machine.run(SITE, &bytes[..len], &start.state, &start.data, &start.stack);
        if here.signal != libc::SIGTRAP && here.signal == there.signal && here.rip == there.rip {
            continue; // it faulted before everything was overwritten
        }
        if let Some(difference) = difference(&here, &there, None) {
            panic!(
                "{difference}: {placement:x?} {bytes:02x?}\nhere {:x?} {:x}\nthere {:x?} {:x}",
                here.state.regs, here.state.flags, there.state.regs, there.state.flags
            );
        }
        poisoned += 1;
        regs += u64::from(placement.hooks[0].dead_regs.count());
        flags += u64::from(placement.hooks[0].flags_dead);
    }
    println!("{poisoned} runs with {regs} dead registers and {flags} times dead flags poisoned");
    assert!(regs > poisoned / 10 && flags > poisoned / 10);
}

/// Up to 12 instructions from `site` that go nowhere.
fn straight_line(random: &mut Random, codes: &[Code<'_>], site: u64) -> Option<Vec<u8>> {
    let code = codes.iter().find(|code| code.range().contains(&site))?;
    let bytes = code.from_addr(site);
    let mut len = 0;
    for _ in 0..2 + random.below(11) {
        let insn = decode(&bytes[len..], site + len as u64)?;
        let plain = insn.flow_control() == iced_x86::FlowControl::Next && insn.code() != Op::Hlt;
        if !plain || !is_runnable(&insn) {
            break;
        }
        len += insn.len();
    }
    (len > 0).then(|| bytes[..len].to_vec())
}
