//! Every encoding that the decoder knows and this processor runs in user space, with random operands.
//!
//! `NANOPROBE_INSN_RUNS` sets the cases for each encoding, `NANOPROBE_INSN_SECONDS` repeats the whole for so long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use iced_x86::{Code as Op, Decoder, DecoderOptions, EncodingKind, Mnemonic};
use insn::{Asked, Code, Flow, Refusal, place};

use crate::encodings::{draw, prepare};
use crate::machine::Machine;
use crate::random::Random;
use crate::{SITE, Start, Tally, aim_at_data, compare, runs};

/// What cannot be compared, and why. Table.
const LEFT_OUT: &[(&[Mnemonic], &str)] = {
    use Mnemonic::*;
    &[
        (&[Syscall], "calls the system: what it does depends on rax; testkit probes real ones"),
        (&[Rdtsc, Rdtscp, Rdrand, Rdseed, Rdpid, Rdpru], "another result each time"),
        (&[Wrfsbase, Wrgsbase, Wrpkru, Wrssd, Wrssq], "changes what the test process itself stands on"),
        (&[Lss, Lfs, Lgs], "random bytes are no selectors, and fs is what the test process stands on"),
        (&[Xrstor, Xrstor64], "random bytes may set the protection keys of the test process"),
        (
            &[Xsave, Xsave64, Xsaveopt, Xsaveopt64, Xsavec, Xsavec64],
            "what is written depends on what the processor takes for in use; seen to differ between two equal runs",
        ),
        (&[Umwait, Tpause, Umonitor, Monitorx, Mwaitx], "waits for a time"),
        (&[Senduipi, Uiret, Clui, Stui, Testui, Enqcmd, Enqcmds], "needs what the kernel has not set up"),
    ]
};

/// Features by the kernel's word, where it is not iced's in small letters without underscores.
const NAMES: &[(&str, &str)] = &[
    ("sse3", "pni"),
    ("sha", "shani"),
    ("cmpxchg16b", "cx16"),
    ("lzcnt", "abm"),
    ("prefetchw", "3dnowprefetch"),
    ("clfsh", "clflush"),
];

/// In every x86-64 processor.
const ALWAYS: &[&str] = &[
    "intel8086",
    "intel186",
    "intel286",
    "intel386",
    "intel486",
    "x64",
    "fpu287",
    "fpu387",
    "cpuid",
    "multibytenop",
    "pause",
];

/// Whether each feature that the encoding needs is one that the kernel says this processor has.
pub fn is_promised(code: Op, flags: &BTreeSet<String>) -> bool {
    code.cpuid_features().iter().all(|feature| {
        let own = format!("{feature:?}").to_lowercase().replace('_', "");
        let name = NAMES.iter().find(|(iced, _)| *iced == own).map_or(own.as_str(), |(_, kernel)| *kernel);
        // Tiles have to be asked for.
        !own.starts_with("amx") && (ALWAYS.contains(&own.as_str()) || flags.contains(name))
    })
}

pub fn processor_flags() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    line.split_whitespace().map(|flag| flag.replace('_', "")).collect()
}

fn left_out(code: Op) -> Option<&'static str> {
    use iced_x86::OpCodeOperandKind as K;
    let loads_segment = code.op_code().op_count() > 0
        && matches!(code.op_code().op0_kind(), K::seg_reg | K::fs | K::gs)
        && code.mnemonic() != Mnemonic::Push;
    if loads_segment {
        return Some("random bytes are no selectors, and fs is what the test process stands on");
    }
    LEFT_OUT.iter().find(|(list, _)| list.contains(&code.mnemonic())).map(|(_, why)| *why)
}

/// What the decoder never says: with fwait it is two instructions, near branches have 64 bits on Intel, ud0 an operand.
fn is_other_reading(code: Op) -> bool {
    let info = code.op_code();
    let name = format!("{code:?}");
    let is_narrow =
        ["_rel16", "_rel8_16", "_rel8_16_ECX", "_rel8_16_RCX"].iter().any(|end| name.ends_with(end));
    info.op_code_string().starts_with("9B ")
        || is_narrow && code.mnemonic() != Mnemonic::Xbegin
        || matches!(code, Op::Retnw | Op::Retnw_imm16 | Op::Call_rm16 | Op::Jmp_rm16 | Op::Ud0)
}

/// User space may run it, and its effect depends on the state alone.
pub fn is_compared(code: Op) -> bool {
    let info = code.op_code();
    let is_user = info.is_instruction() && !info.is_privileged() && !info.must_be_cpl0();
    let is_read = info.mode64() && info.decoder_option() == 0 && !is_other_reading(code);
    is_user && is_read && left_out(code).is_none()
}

/// How it went with one encoding.
#[derive(Default)]
struct Seen {
    drawn: u64,
    refused: Option<String>,
    tally: Tally,
}

impl Seen {
    fn ran(&self) -> u64 {
        self.tally.equal - self.tally.faulted
    }
}

/// Until so many `cases` have run without a fault, at most `draws` for each.
fn one_encoding(
    machine: &mut Machine,
    random: &mut Random,
    code: Op,
    cases: u64,
    draws: u64,
    seen: &mut Seen,
) {
    let wanted = seen.ran() + cases;
    for _ in 0..cases * draws {
        if seen.ran() >= wanted {
            return;
        }
        let Some(mut bytes) = draw(random, code) else { continue };
        seen.drawn += 1;
        aim_at_data(random, &mut bytes, SITE);
        let insn = Decoder::with_ip(64, &bytes, SITE, DecoderOptions::NONE).decode();
        bytes.extend([0x90; 8]);
        let codes = [Code { base: SITE, bytes: &bytes }];
        let flow = Flow::analyse(&codes, &[], &[], &|_| vec![]);
        let asked = Asked {
            site: SITE,
            function: None,
            next_function: None,
            taken: &|_| false,
            room: &insn::no_room,
        };
        match place(&flow, &codes, &asked) {
            Ok(placement) => {
                let mut start = Start::random(random);
                prepare(random, &insn, &mut start);
                compare(machine, random, &placement, &start, &mut seen.tally);
            }
            Err(Refusal::Forbidden { what, .. }) => seen.refused = Some(what.to_string()),
            Err(Refusal::NoRung { why_not, .. }) => seen.refused = Some(format!("{:?}", why_not.last())),
            Err(other) => seen.refused = Some(format!("{other:?}")),
        }
    }
}

#[test]
fn every_encoding_that_this_processor_has_runs_the_same_elsewhere() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("every encoding");
    let flags = processor_flags();
    let seconds = std::env::var("NANOPROBE_INSN_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut all: BTreeMap<String, (Op, Seen)> = BTreeMap::new();
    loop {
        for code in Op::values() {
            if !is_compared(code) {
                continue;
            }
            let (_, seen) = all.entry(format!("{code:?}")).or_insert_with(|| (code, Seen::default()));
            let draws = if is_promised(code, &flags) { 200 } else { 4 };
            one_encoding(&mut machine, &mut random, code, runs(4), draws, seen);
        }
        if Instant::now() >= end {
            break;
        }
    }
    report(&all, &flags);
}

fn report(all: &BTreeMap<String, (Op, Seen)>, flags: &BTreeSet<String>) {
    let (mut cases, mut faulted) = (0, 0);
    let mut ran: BTreeMap<EncodingKind, u64> = BTreeMap::new();
    let mut refused: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut missing = vec![];
    let mut absent = 0;
    for (name, (code, seen)) in all {
        cases += seen.tally.equal;
        faulted += seen.tally.faulted;
        match &seen.refused {
            _ if seen.ran() > 0 => *ran.entry(code.encoding()).or_default() += 1,
            Some(why) => refused.entry(why).or_default().push(name),
            None if is_promised(*code, flags) => missing.push(format!("{name} (drawn {})", seen.drawn)),
            None => absent += 1,
        }
    }
    for (why, names) in &refused {
        println!("refused, {why}: {}", names.join(" "));
    }
    println!(
        "{cases} cases, {faulted} of them faulted alike; encodings that ran: {ran:?}; {absent} not on this processor"
    );
    // Which encodings do something without a fault is the processor's business, and no two models agree.
    println!("{} encodings never ran without a fault: {missing:?}", missing.len());
    assert!(ran.values().sum::<u64>() > 1000);
}
