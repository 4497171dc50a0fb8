//! Every trampoline, read back by a decoder that is not ours.
//!
//! An abstract run over the decoded instructions tracks where the stack pointer is, which register was saved
//! where, and which was overwritten since. At each instruction boundary it must agree with `place_of`.

use super::*;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};
use insn::{Asked, Code as Segment, Exits, Flow, place};
use std::collections::BTreeMap;

const SITE: u64 = 0x5555_0000_1000;
const AT: u64 = 0x5555_1000_0000;
const TABLE: u64 = 0x5555_0fff_f000;
const SLOW_AT: u64 = 0x5555_0fff_ff00;
const THREADS: Threads = Threads { rseq_offset: 0x9a0, self_offset: 0x10 };

/// `push rbx; mov rbx, rdi; ...`: an entry with live registers; and one whose flags are live inside.
const FUNCTION: [u8; 12] = [0x53, 0x48, 0x89, 0xfb, 0x90, 0x90, 0x90, 0x90, 0x90, 0x5b, 0xc3, 0xcc];
/// `stc; mov rax, rdi; adc rax, 0; ret`: probed at +1 the flags are live.
const FLAGS: [u8; 12] = [0xf9, 0x48, 0x89, 0xf8, 0x48, 0x83, 0xd0, 0x00, 0xc3, 0xcc, 0xcc, 0xcc];

fn placement(code: &[u8], offset: u64) -> Placement {
    let codes = [Segment { base: 0x1000, bytes: code }];
    let flow = Flow::analyse(&codes, &[0x1000], &[], &|_| Vec::new());
    let function = Some(0x1000..0x1000 + code.len() as u64);
    let asked = Asked {
        site: 0x1000 + offset,
        function,
        next_function: None,
        taken: &|_| false,
        room: &insn::no_room,
    };
    place(&flow, &codes, &asked).unwrap()
}

/// `xor eax, eax; pop rbx; pop rbp; pop r12; ret`, and a getter of three bytes.
const LEAVES: [u8; 8] = [0x31, 0xc0, 0x5b, 0x5d, 0x41, 0x5c, 0xc3, 0x50];
const GETTER: [u8; 8] = [0x89, 0xf8, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];

/// `test edi, edi; je 0x1010; ret`, and another function: left by a conditional jump.
const BRANCHES: [u8; 24] = [
    0x85, 0xff, 0x74, 0x0c, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xc3,
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
];

/// Before the jump and the return of [`BRANCHES`], and before its first instruction, all under one jump; or before
/// the jump alone.
fn branch_placement(is_all: bool) -> Placement {
    let codes = [Segment { base: 0x1000, bytes: &BRANCHES }];
    let flow = Flow::analyse(&codes, &[0x1000, 0x1010], &[], &|_| Vec::new());
    let exits = Exits::of(&flow, &codes, 0x1000..0x1005, &|_| false).unwrap();
    if !is_all {
        return exits.place(&flow, &codes, 0x1002, &|_| false, &insn::no_room).unwrap();
    }
    let mut all = placement(&BRANCHES[..5], 0);
    assert!(exits.addrs().all(|exit| exits.share(&codes, &mut all, exit)));
    all
}

/// Before the return of `code`; or before its first instruction and its return.
fn exit_placement(code: &[u8], len: u64, is_both: bool) -> Placement {
    let codes = [Segment { base: 0x1000, bytes: code }];
    let flow = Flow::analyse(&codes, &[0x1000], &[], &|_| Vec::new());
    let exits = Exits::of(&flow, &codes, 0x1000..0x1000 + len, &|_| false).unwrap();
    let exit = exits.addrs().next().unwrap();
    if !is_both {
        return exits.place(&flow, &codes, exit, &|_| false, &insn::no_room).unwrap();
    }
    let mut both = placement(code, 0);
    assert!(exits.share(&codes, &mut both, exit));
    both
}

/// How hits may count.
const WAYS: [(Option<Threads>, bool, Flavour, &str); 6] = [
    (Some(THREADS), true, Flavour::Lite, "rseq"),
    (None, true, Flavour::Lite, "rdpid"),
    (None, false, Flavour::Lite, "lsl"),
    (Some(THREADS), true, Flavour::Normal, "rseq"),
    (Some(THREADS), true, Flavour::Sigsafe, "sigsafe"),
    (None, true, Flavour::Normal, "rdpid"),
];

/// rax, which the way that saves the flags needs for itself, and a bit of r9d.
const GUARDED: Guarded = Guarded {
    cell: 0x190,
    guards: [
        Some(Guard { reg: 0, is_wide: true, is_masked: false, constant: 1_000_000, goes_on: 7 }),
        Some(Guard { reg: 9, is_wide: false, is_masked: true, constant: 4, goes_on: 5 }),
    ],
};

struct Case {
    is_guarded: bool,
    name: &'static str,
    uses: u16,
    trampoline: Trampoline,
    placement: Placement,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let placements = [placement(&FUNCTION, 0), placement(&FUNCTION, 1), placement(&FLAGS, 1)];
    assert!(placements[0].hooks[0].is_red_zone_free && !placements[1].hooks[0].is_red_zone_free);
    assert!(!placements[2].hooks[0].flags_dead);
    let exits = [exit_placement(&LEAVES, 7, false), exit_placement(&GETTER, 3, true)];
    assert!(exits[0].hooks[0].offset == 4 && exits[1].hooks.len() == 2, "{exits:?}");
    let branches = [branch_placement(false), branch_placement(true)];
    assert!(branches[0].hooks.len() == 1 && branches[1].hooks.len() == 3, "{branches:?}");
    for placement in placements.into_iter().chain(exits).chain(branches) {
        let is_count_possible = placement.hooks.len() == 1 && placement.hooks[0].offset == 0;
        let hit = |uses: u16| Body::Hit { desc: 0x7fff_1234_5000, uses: uses.into(), guard: None };
        let guarded = Body::Hit { desc: 0x7fff_1234_5000, uses: 0.into(), guard: Some(GUARDED) };
        // r8 to r11 and r14; some of them; none, as where all consumers count.
        for body in [Body::Count { cell: 0x188 }, hit(0x4f00), hit(0x0a00), hit(0), guarded] {
            if !is_count_possible && matches!(body, Body::Count { .. }) {
                continue;
            }
            let bodies = vec![body; placement.hooks.len()];
            for (threads, has_rdpid, flavour, name) in WAYS {
                let request = Request {
                    at: AT,
                    placement: &placement,
                    bias: SITE - 0x1000,
                    jump_original: [0; 5],
                    short_original: None,
                    table: TABLE,
                    slow: SLOW_AT,
                    ways: Ways { threads, has_rdpid, flavour },
                    bodies: &bodies,
                };
                let trampoline = Trampoline::build(&request).unwrap();
                let uses = if let Body::Hit { uses, .. } = body { uses.bits() } else { 0 };
                let is_guarded = body == guarded;
                cases.push(Case { is_guarded, name, uses, trampoline, placement: placement.clone() });
            }
        }
    }
    cases
}

fn decode(t: &Trampoline, from: usize, to: usize) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, &t.bytes[from..to], t.at + from as u64, DecoderOptions::NONE);
    decoder.iter().collect()
}

/// What an abstract run knows at one place.
#[derive(Clone, Default)]
struct Abstract {
    /// How far the stack pointer is below its value at the site.
    depth: i64,
    /// Register number to its slot, from the stack pointer at the site.
    saved: BTreeMap<u8, i64>,
    /// Registers that no longer hold what they held at the site.
    changed: std::collections::BTreeSet<u8>,
    flags_changed: bool,
    /// What the handlers write besides what is always saved.
    uses: u16,
    /// The place nearest to the stack pointer at the site that was written, from there.
    nearest_write: Option<i64>,
}

impl Abstract {
    /// The stack is written at this distance from the stack pointer at the site.
    fn write(&mut self, at: i64) {
        self.nearest_write = Some(self.nearest_write.map_or(at, |nearest| nearest.max(at)));
    }

    fn run(&mut self, i: &Instruction, info: &mut InstructionInfoFactory) {
        let number = |r: Register| r.full_register().number() as u8;
        let is_slot = |op| op == iced_x86::OpKind::Memory && i.memory_base() == Register::RSP;
        match i.mnemonic() {
            Mnemonic::Push => {
                self.depth += 8;
                self.write(-self.depth);
                let r = number(i.op0_register());
                if !self.changed.contains(&r) {
                    self.saved.insert(r, -self.depth);
                }
            }
            Mnemonic::Pop => {
                self.depth -= 8;
                let r = number(i.op0_register());
                if self.saved.get(&r) == Some(&(-self.depth - 8)) {
                    self.changed.remove(&r);
                } else {
                    self.changed.insert(r);
                }
            }
            Mnemonic::Lea if i.op0_register() == Register::RSP => {
                self.depth -= i.memory_displacement64() as i64;
            }
            Mnemonic::Sahf => self.flags_changed = false,
            Mnemonic::Mov if is_slot(i.op0_kind()) && i.op1_register().is_gpr64() => {
                let (r, at) = (number(i.op1_register()), i.memory_displacement64() as i64 - self.depth);
                self.write(at);
                if !self.changed.contains(&r) {
                    self.saved.insert(r, at);
                }
            }
            Mnemonic::Mov
                if is_slot(i.op1_kind())
                    && self.saved.get(&number(i.op0_register()))
                        == Some(&(i.memory_displacement64() as i64 - self.depth)) =>
            {
                self.changed.remove(&number(i.op0_register()));
            }
            _ => {
                if i.flow_control() == FlowControl::IndirectCall {
                    let always = [0, 1, 2, 6, 7].into_iter();
                    self.changed.extend(always.chain((8..12).filter(|r| self.uses & 1 << r != 0)));
                }
                if i.flow_control() == FlowControl::IndirectCall || i.flow_control() == FlowControl::Call {
                    self.write(-self.depth - 8);
                }
                if i.op0_kind() == iced_x86::OpKind::Memory && i.memory_base() == Register::RSP {
                    self.write(i.memory_displacement64() as i64 - self.depth);
                }
                for used in info.info(i).used_registers() {
                    let is_write =
                        matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite);
                    if is_write
                        && used.register().is_gpr()
                        && used.register().full_register() != Register::RSP
                    {
                        self.changed.insert(number(used.register()));
                    }
                }
                self.flags_changed |= i.rflags_modified() != 0;
            }
        }
    }
}

/// Where each hook's code stands.
fn bodies(t: &Trampoline) -> Vec<(usize, usize)> {
    let starts = t.before.iter().map(|(from, part)| from + part.bytes.len());
    let ends = t.before.iter().skip(1).map(|(from, _)| *from).chain([t.tail]);
    starts.zip(ends).collect()
}

#[test]
fn a_thread_stopped_on_any_instruction_gets_back_what_it_had_at_the_site() {
    let mut checked = 0;
    for case in cases() {
        for (stage, (from, to)) in bodies(&case.trampoline).into_iter().enumerate() {
            checked += check_body(&case, stage, from, to);
        }
    }
    assert!(checked > 200, "{checked} boundaries");
}

/// Returns how many instructions it has checked.
fn check_body(case: &Case, stage: usize, from: usize, to: usize) -> usize {
    let (t, mut state) = (&case.trampoline, Abstract { uses: case.uses, ..Abstract::default() });
    let hook = &case.placement.hooks[stage];
    let mut info = InstructionInfoFactory::new();
    let mut checked = 0;
    for instruction in decode(t, from, to) {
        if let Some(PcPlace::Body(rollback)) = t.place_of(instruction.ip()) {
            checked += 1;
            let site = case.placement.site;
            let at = format!("{} {site:x} at {:#x} {instruction}", case.name, instruction.ip() - t.at);
            assert_eq!(i64::from(rollback.rsp_add), state.depth, "{at}");
            assert_eq!(rollback.resume, hook.offset, "{at}");
            for register in &state.changed {
                let loaded = rollback.saved.iter().find(|s| s.number == *register);
                let is_dead = hook.dead_regs.contains(*register);
                assert!(loaded.is_some() || is_dead, "{at}: register {register} is lost");
            }
            for saved in &rollback.saved {
                let slot = i64::from(saved.slot) - state.depth;
                assert_eq!(state.saved.get(&saved.number), Some(&slot), "{at}: register {}", saved.number);
            }
            let is_lost = state.flags_changed && rollback.flags.is_none() && !hook.flags_dead;
            assert!(!is_lost, "{at}: flags are lost");
        }
        state.run(&instruction, &mut info);
    }
    assert_eq!(state.depth, 0, "{}: the stack pointer is back at the end", case.name);
    let free_from = if hook.is_red_zone_free { 0 } else { -i64::from(RED_ZONE) };
    let is_kept = state.nearest_write.is_none_or(|at| at + 8 <= free_from);
    assert!(is_kept, "{}: the red zone is written, {:?}", case.name, state.nearest_write);
    let lost: Vec<_> = state.changed.iter().filter(|r| !hook.dead_regs.contains(**r)).collect();
    assert!(lost.is_empty(), "{}: registers {lost:?} differ at the end", case.name);
    assert!(!state.flags_changed || hook.flags_dead, "{}: flags differ at the end", case.name);
    checked
}

/// From each question by its jump to the way out of line, and by that to the end of the body.
#[test]
fn a_hit_that_is_turned_down_is_counted_once_and_has_everything_as_at_the_site() {
    let mut ways = 0;
    for case in cases().iter().filter(|case| case.is_guarded) {
        for (stage, (from, to)) in bodies(&case.trampoline).into_iter().enumerate() {
            let (t, hook) = (&case.trampoline, &case.placement.hooks[stage]);
            let out = t.at + (guard::room(case.placement.hooks.len(), true).0 + stage * 192 + 56) as u64;
            let asks = decode(t, from, to).into_iter().filter(|i| i.near_branch_target() == out).count();
            assert_eq!(asks, 2);
            for ask in 0..asks {
                ways += turned_down(case, hook, stage, (from, to), (out, ask));
            }
        }
    }
    assert!(ways > 40, "{ways}");
}

fn turned_down(
    case: &Case,
    hook: &Hook,
    stage: usize,
    (from, to): (usize, usize),
    (out, ask): (u64, usize),
) -> usize {
    let (t, mut info) = (&case.trampoline, InstructionInfoFactory::new());
    let mut state = Abstract { uses: case.uses, ..Abstract::default() };
    let (mut at, mut asked, mut counts, mut questions) = (t.at + from as u64, 0, 0, Vec::new());
    loop {
        let offset = (at - t.at) as usize;
        let i = decode(t, offset, (offset + 15).min(t.bytes.len()))[0];
        let place = t.place_of(at);
        if let Some(PcPlace::Body(rollback)) = &place {
            let text = format!("{} {stage} {i} {rollback:?}", case.name);
            assert_eq!((i64::from(rollback.rsp_add), rollback.resume), (state.depth, hook.offset), "{text}");
            assert_eq!(rollback.counted, counts > 0, "{text}");
            for register in &state.changed {
                let loaded = rollback.saved.iter().any(|s| s.number == *register);
                assert!(loaded || hook.dead_regs.contains(*register), "{text}: {register} is lost");
            }
            for saved in &rollback.saved {
                let slot = i64::from(saved.slot) - state.depth;
                assert_eq!(state.saved.get(&saved.number), Some(&slot), "{text}");
            }
            assert!(!state.flags_changed || rollback.flags.is_some() || hook.flags_dead, "{text}");
        }
        if matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) && offset >= from {
            questions.push(i.to_string());
        }
        state.run(&i, &mut info);
        // The area's descriptor is the thread's; the count is the one store that is not to the stack.
        let is_count = i.op0_kind() == iced_x86::OpKind::Memory && i.memory_displacement64() == 0x190;
        counts += usize::from(is_count && i.mnemonic() != Mnemonic::Cmp);
        at = match i.flow_control() {
            FlowControl::ConditionalBranch if i.near_branch_target() == out && asked == ask => out,
            // Behind the check of the thread's block the first way is that of who has none.
            FlowControl::ConditionalBranch if i.mnemonic() == Mnemonic::Jrcxz => {
                let is_over_a_jump = i.near_branch_target() == i.next_ip() + 5;
                if is_over_a_jump { i.near_branch_target() } else { i.next_ip() }
            }
            FlowControl::ConditionalBranch => {
                asked += usize::from(i.near_branch_target() == out);
                i.next_ip()
            }
            FlowControl::UnconditionalBranch => i.near_branch_target(),
            FlowControl::Next => i.next_ip(),
            other => panic!("{other:?}: {i}"),
        };
        let offset = (at - t.at) as usize;
        if offset == to || i.flow_control() == FlowControl::UnconditionalBranch {
            break;
        }
    }
    assert_eq!(counts, 1, "{}", case.name);
    assert_eq!(questions, ["cmp rax,0F4240h", "test r9d,4"][..=ask]);
    let free_from = if hook.is_red_zone_free { 0 } else { -i64::from(RED_ZONE) };
    assert!(state.nearest_write.is_none_or(|at| at + 8 <= free_from));
    assert!(state.changed.iter().all(|r| hook.dead_regs.contains(*r)), "{:?}", state.changed);
    assert!(state.depth == 0 && (!state.flags_changed || hook.flags_dead));
    1
}

#[test]
fn displaced_instructions_before_a_hook_run_first_and_are_known_to_place_of() {
    for case in cases().iter().filter(|c| c.placement.hooks[0].offset == 4) {
        let t = &case.trampoline;
        let texts: Vec<String> =
            decode(t, t.entry, (t.body_addr() - t.at) as usize).iter().map(|i| i.to_string()).collect();
        assert_eq!(texts, ["pop rbx", "pop rbp", "pop r12"]);
        let at_pop = t.place_of(t.entry_addr() + 1);
        assert!(matches!(at_pop, Some(PcPlace::Displaced(o)) if o.offset == 1), "{at_pop:?}");
        assert_eq!(t.copy_of(1), Some(t.entry_addr() + 1));
        assert_eq!(t.copy_of(4), Some(t.displaced_addr()));
        let at_body = t.place_of(t.body_addr());
        assert!(matches!(at_body, Some(PcPlace::Body(r)) if r.resume == 4));
    }
}

#[test]
fn a_restartable_count_writes_no_flag_and_commits_by_its_last_instruction() {
    let case = &cases()[0];
    let t = &case.trampoline;
    let word = |at: usize| u64::from_le_bytes(t.bytes[at..at + 8].try_into().unwrap());
    let (start, len, abort) = (word(8) - t.at, word(16), word(24) - t.at);
    assert_eq!(t.bytes[abort as usize - 4..abort as usize], RSEQ_SIGNATURE.to_le_bytes());
    let section = decode(t, start as usize, (start + len) as usize);
    let stores: Vec<_> = section.iter().filter(|i| i.op0_kind() == iced_x86::OpKind::Memory).collect();
    assert_eq!(stores.len(), 1, "one store");
    assert_eq!(stores[0].ip(), section.last().unwrap().ip(), "it is the last instruction");
    assert!(decode(t, t.entry, t.tail).iter().all(|i| i.rflags_modified() == 0));
    let before = t.place_of(t.at + start + len - 1);
    assert!(before.is_some());
    let counted = |at: u64| match t.place_of(at) {
        Some(PcPlace::Body(r)) => r.counted,
        other => panic!("{other:?}"),
    };
    assert!(!counted(stores[0].ip()) && counted(t.at + start + len));
}

/// A thread that is single-stepped, by a debugger or its own trap flag, is interrupted in every section that it enters.
#[test]
fn an_interrupted_count_does_not_begin_again_but_makes_a_locked_add() {
    for case in cases().iter().filter(|c| c.name.starts_with("rseq")) {
        let t = &case.trampoline;
        let sections = if t.entry == ENTRY { 1 } else { 2 * case.placement.hooks.len() };
        for section in 0..sections {
            let word = |i: usize| {
                let at = section * 32 + i * 8;
                u64::from_le_bytes(t.bytes[at..at + 8].try_into().unwrap())
            };
            let (start, end, abort) = (word(1), word(1) + word(2), (word(3) - t.at) as usize);
            assert_eq!(t.bytes[abort - 4..abort], RSEQ_SIGNATURE.to_le_bytes());
            // In the general path entering forgets the copy, so that the hit's later adds are locked too; leaving takes
            // the rank from where the copy was.
            let (first, routine) = match (t.entry == ENTRY, section % 2) {
                (true, _) => ("mov ecx,188h".to_owned(), SLOW_AT),
                (_, 0) => (format!("mov ebx,{}", wire::COPY_NONE), SLOW_AT + slow::ENTER),
                _ => (format!("call {:016X}h", SLOW_AT + slow::LEAVE), SLOW_AT + slow::LEAVE),
            };
            let way = decode(t, abort, abort + 20);
            assert_eq!(way[0].to_string(), first);
            let call = way.iter().position(|i| i.mnemonic() == Mnemonic::Call).unwrap();
            assert!(call <= 1 && way[call].near_branch_target() == routine);
            let back = way[call + 1];
            assert_eq!(back.mnemonic(), Mnemonic::Jmp);
            assert_eq!(back.near_branch_target(), end, "behind the add, and nowhere into the section");
            assert!(!(start..end).contains(&way[0].ip()), "the kernel refuses such a section");
            // It is the way of a thread without a CPU too: the same cell.
            let inside = decode(t, (start - t.at) as usize, (end - t.at) as usize);
            assert!(inside.iter().all(|i| i.flow_control() != FlowControl::Call));
        }
    }
}

/// As of a count: what the kernel is told of the section of who is turned down, and where it sends who it interrupts there.
#[test]
fn an_interrupted_count_of_who_is_turned_down_makes_a_locked_add() {
    let mut checked = 0;
    for case in cases().iter().filter(|c| c.is_guarded && c.name.starts_with("rseq")) {
        let t = &case.trampoline;
        for stage in 0..case.placement.hooks.len() {
            let way = guard::room(case.placement.hooks.len(), true).0 + stage * 192;
            let word =
                |i: usize| u64::from_le_bytes(t.bytes[way + i * 8..way + i * 8 + 8].try_into().unwrap());
            let (start, end, abort) = (word(1), word(1) + word(2), (word(3) - t.at) as usize);
            assert_eq!(
                (way % 32, t.bytes[abort - 4..abort].to_vec()),
                (0, RSEQ_SIGNATURE.to_le_bytes().to_vec())
            );
            let named = decode(t, way + 56, way + 192)
                .iter()
                .filter(|i| i.ip_rel_memory_address() == t.at + way as u64)
                .count();
            assert_eq!(named, 1, "the section's descriptor is named where it is entered");
            let slow = decode(t, abort, abort + 15);
            assert_eq!(slow[0].to_string(), "mov ecx,190h");
            assert_eq!((slow[1].near_branch_target(), slow[2].near_branch_target()), (SLOW_AT, end));
            let inside = decode(t, (start - t.at) as usize, (end - t.at) as usize);
            let store = inside.last().unwrap();
            assert!(store.op0_kind() == iced_x86::OpKind::Memory && store.memory_displacement64() == 0x190);
            checked += 1;
        }
    }
    assert!(checked >= 10, "{checked}");
}

/// No thread pointer, or one that leads to another runtime's block: nothing is written there.
#[test]
fn an_area_is_named_only_behind_the_check_of_the_thread_pointer() {
    let mut checked = 0;
    for case in cases().iter().filter(|c| c.name == "rseq") {
        let t = &case.trampoline;
        for (from, to) in bodies(t) {
            let code = decode(t, from, to);
            let is_of_fs =
                |i: &Instruction| i.memory_segment() == Register::FS && i.memory_base() == Register::None;
            let reads: Vec<usize> = (0..code.len()).filter(|i| is_of_fs(&code[*i])).collect();
            let mut offsets: Vec<u64> = reads[..3].iter().map(|i| code[*i].memory_displacement64()).collect();
            offsets.sort_unstable();
            assert_eq!(
                offsets,
                [0, 8, 0x10],
                "the block's two addresses of itself, and what is none, are read first"
            );
            let named = code.iter().position(|i| i.mnemonic() == Mnemonic::Movzx).unwrap();
            let is_exit =
                |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Jne | Mnemonic::Je | Mnemonic::Jrcxz);
            let is_store = |i: &Instruction| {
                i.op0_kind() == iced_x86::OpKind::Memory
                    && i.mnemonic() == Mnemonic::Mov
                    && i.memory_base() != Register::RSP
            };
            let exits: Vec<usize> = (0..code.len()).filter(|i| is_exit(&code[*i])).collect();
            let check = exits[1];
            let store = code.iter().position(is_store).unwrap();
            assert!(check < store && store < named, "another block leaves before the store");
            let word = code[named].memory_size();
            assert_eq!(word, iced_x86::MemorySize::UInt16, "any number read there has an entry in the table");
            checked += 1;
        }
    }
    assert!(checked >= 10, "{checked}");
}

#[test]
fn no_trampoline_reads_the_time_stamp_counter() {
    let is_reader = |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Rdtsc | Mnemonic::Rdtscp);
    for case in cases() {
        let t = &case.trampoline;
        assert!(!decode(t, t.entry, t.tail).iter().any(is_reader), "{}", case.name);
    }
}

#[test]
fn a_block_is_never_longer_than_its_bound_and_ends_in_a_jump_back_or_a_return() {
    for case in cases() {
        let t = &case.trampoline;
        assert!(
            t.bytes.len() <= Trampoline::len_bound(&case.placement, case.is_guarded),
            "{}",
            t.bytes.len()
        );
        let last = decode(t, t.tail + 5, t.bytes.len()).last().copied().unwrap();
        if case.placement.ends_with_flow {
            assert_eq!(last.mnemonic(), Mnemonic::Ret);
            continue;
        }
        let back = SITE - 0x1000 + case.placement.site + u64::from(case.placement.displaced_len);
        assert_eq!(last.near_branch_target(), back);
        let displaced = (t.displaced_addr() - t.at) as usize;
        let first = t.place_of(t.at + displaced as u64);
        assert!(matches!(first, Some(PcPlace::Displaced(o)) if o.offset == 0 && o.is_at_start), "{first:?}");
        assert_eq!(t.place_of(t.end()), None);
        assert_eq!(t.place_of(t.at), Some(PcPlace::Elsewhere));
    }
}

#[test]
fn the_slow_count_keeps_everything_but_rax_and_leaves_by_its_return() {
    let bytes = slow_routines(SLOW_AT, TABLE, 0x7fff_0000_0000).unwrap();
    let end = bytes.iter().position(|b| *b == 0xcc).unwrap();
    let bytes = &bytes[..end];
    let mut decoder = Decoder::with_ip(64, bytes, SLOW_AT, DecoderOptions::NONE);
    let text: Vec<String> = decoder.iter().map(|i| i.to_string()).collect();
    let expected = [
        "lahf",
        "seto al",
        "push rax",
        "mov rax,[555500FFFFF000h]",
        "test rax,rax",
        "jne short 55550FFFFF1Bh",
        "mov rax,7FFF00000000h",
        "lock inc qword [rax+rcx]",
        "pop rax",
        "add al,7Fh",
        "sahf",
        "ret",
    ];
    assert_eq!(text.len(), expected.len(), "{text:#?}");
    for (i, mnemonic) in expected.iter().map(|e| e.split(' ').next().unwrap()).enumerate() {
        assert!(text[i].starts_with(mnemonic), "{text:#?}");
    }
}

#[test]
fn a_hook_at_a_conditional_jump_is_jumped_around_where_that_is_not_taken() {
    let branches = |c: &&Case| c.placement.hooks.iter().any(|h| h.taken.is_some());
    let mut found = 0;
    for case in cases().iter().filter(branches) {
        let t = &case.trampoline;
        let stage = case.placement.hooks.iter().position(|h| h.taken.is_some()).unwrap();
        let (from, part) = &t.before[stage];
        let around = decode(t, *from, from + part.bytes.len()).last().copied().unwrap();
        assert_eq!(around.mnemonic(), Mnemonic::Jne, "the opposite of je");
        let is_last = stage + 1 == case.placement.hooks.len();
        let leave = if is_last { t.displaced_addr() } else { around.near_branch_target() - 5 };
        let jump = decode(t, (leave - t.at) as usize, (leave - t.at) as usize + 5)[0];
        assert_eq!((jump.mnemonic(), jump.near_branch_target()), (Mnemonic::Jmp, SITE + 0x10));
        assert_eq!(around.near_branch_target(), leave + 5, "what comes next if it is not taken");
        // A thread in front of it stands at the conditional jump, whose flags it still has.
        let place = t.place_of(around.ip());
        assert!(
            matches!(place, Some(PcPlace::Displaced(o)) if o.offset == case.placement.hooks[stage].offset),
            "{place:?}"
        );
        assert_eq!(t.copy_of(case.placement.hooks[stage].offset), Some(around.ip()));
        if is_last {
            let taken = t.place_of(leave);
            assert!(
                matches!(taken, Some(PcPlace::Displaced(o)) if o.leads_to == Some(SITE + 0x10)),
                "{taken:?}"
            );
        }
        found += 1;
    }
    assert!(found >= 4, "{found}");
}

/// With a shadow stack a return must go where a call has pushed. In what a trampoline adds, every call comes back by the
/// callee's own return; what is displaced returns where the original would. (A displaced call is refused by the session.)
#[test]
fn nothing_that_a_trampoline_adds_returns_to_what_no_call_has_pushed() {
    for case in cases() {
        let t = &case.trampoline;
        let displaced: Vec<_> = t.parts().map(|(from, part)| from..from + part.bytes.len()).collect();
        assert!(case.placement.call().is_none());
        for instruction in decode(t, t.entry, t.bytes.len()) {
            let at = (instruction.ip() - t.at) as usize;
            let is_ours = !displaced.iter().any(|part| part.contains(&at));
            let is_return = instruction.flow_control() == FlowControl::Return;
            assert!(!(is_ours && is_return), "{}: {instruction}", case.name);
        }
    }
    // A slow routine: what it pushes it pops, and then it returns to its caller.
    let bytes = slow_routines(SLOW_AT, TABLE, 0x7fff_0000_0000).unwrap();
    assert_eq!(bytes.len(), SLOW_LEN);
    for routine in [0, slow::ENTER, slow::LEAVE] {
        let (mut depth, mut returns) = (0, 0);
        let code = &bytes[routine as usize..routine as usize + 64];
        for instruction in &mut Decoder::with_ip(64, code, SLOW_AT + routine, DecoderOptions::NONE) {
            returns += usize::from(instruction.flow_control() == FlowControl::Return);
            if returns > 0 {
                break;
            }
            depth -= instruction.stack_pointer_increment();
        }
        assert_eq!((depth, returns), (0, 1));
    }
}
