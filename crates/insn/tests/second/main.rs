//! Every instruction of every function of real files, as this crate reads it and as binutils' objdump does: where it
//! starts, how long it is, and where a branch or a rip-relative operand leads.
//!
//! objdump is given the bare code and a symbol at each function start, so that both begin anew at the same places
//! in stripped files too. A difference is allowed only for a cause in `CAUSES`.
//!
//! `cargo test --release -p nanoprobe-insn --test second -- --ignored --nocapture` takes all files, not libc alone.
#![cfg(target_arch = "x86_64")]

#[path = "../real/elf.rs"]
mod elf;
mod objdump;

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};
use insn::{Code, Insn, instructions};
use objdump::Line;

/// Why the two may differ. Table: (name, reason).
const CAUSES: &[(&str, &str)] = &[
    (
        "fwait",
        "objdump takes 9b and the x87 instruction behind it for one; it is two, and either may be probed",
    ),
    (
        "prefix apart",
        "objdump puts a prefix that means nothing, as a REX before another prefix, on a line of its own",
    ),
    ("cut by a symbol", "objdump cuts the last instruction where a function starts inside it"),
    (
        "no instruction",
        "neither reads it: data in text; here the function ends, there it goes on behind the byte",
    ),
    (
        "only objdump reads it",
        "an encoding that is reserved; here the function ends before it and it is not probed",
    ),
    ("only we read it", "newer than this objdump, which says (bad)"),
];

/// What one file's comparison found.
#[derive(Default)]
struct Found {
    functions: u64,
    instructions: u64,
    targets: u64,
    allowed: BTreeMap<&'static str, Vec<u64>>,
    wrong: Vec<String>,
}

/// Where an instruction leads: a direct branch, or a rip-relative operand.
fn target(insn: &Insn) -> Option<u64> {
    let decoded = Decoder::with_ip(64, insn.bytes(), insn.addr, DecoderOptions::NONE).decode();
    match decoded.op0_kind() {
        OpKind::NearBranch64 => Some(decoded.near_branch64()),
        _ if decoded.is_ip_rel_memory_operand() => Some(decoded.memory_displacement64()),
        _ => None,
    }
}

/// The cause of a difference at an address where both start an instruction, or ours has ended.
fn cause(ours: Option<&Insn>, theirs: &Line, limit: u64) -> Option<&'static str> {
    const FWAIT: u8 = 0x9b;
    let Some(ours) = ours else {
        return Some(if theirs.is_bad { "no instruction" } else { "only objdump reads it" });
    };
    let decoded = Decoder::with_ip(64, ours.bytes(), ours.addr, DecoderOptions::NONE).decode();
    if ours.bytes() == [FWAIT] && decoded.mnemonic() == Mnemonic::Wait && theirs.len > 1 {
        return Some("fwait");
    }
    if ours.end() > limit && ours.addr + theirs.len <= limit {
        return Some("cut by a symbol");
    }
    if theirs.is_prefix && theirs.len < ours.len_bytes() as u64 {
        return Some("prefix apart");
    }
    theirs.is_bad.then_some("only we read it")
}

/// Walks both at once. Behind a difference, what one of them alone has is passed over until they meet again.
fn compare_function(codes: &[Code<'_>], range: Range<u64>, lines: &BTreeMap<u64, Line>, found: &mut Found) {
    found.functions += 1;
    let mut ours = instructions(codes, &range).peekable();
    let mut theirs = lines.range(range.clone()).peekable();
    let mut is_told = false;
    while let Some((at, line)) = theirs.peek().copied() {
        let own = ours.peek().copied();
        if let Some(insn) = own.filter(|insn| insn.addr != *at) {
            if !is_told {
                found.wrong.push(format!("{insn:?} stands where objdump has {at:#x}: {}", line.text));
                is_told = true;
            }
            if insn.addr < *at {
                ours.next();
            } else {
                theirs.next();
            }
            continue;
        }
        is_told = match own.filter(|insn| insn.len_bytes() as u64 == line.len && !line.is_bad) {
            Some(insn) => {
                compare_targets(&insn, line, found);
                false
            }
            None => {
                match cause(own.as_ref(), line, range.end) {
                    Some(cause) => found.allowed.entry(cause).or_default().push(*at),
                    None => {
                        found
                            .wrong
                            .push(format!("{at:#x}: {own:?}, by objdump {} bytes: {}", line.len, line.text));
                    }
                }
                true
            }
        };
        if own.is_none() {
            return; // no instruction here: for us the function ends
        }
        ours.next();
        theirs.next();
    }
}

fn compare_targets(insn: &Insn, line: &Line, found: &mut Found) {
    found.instructions += 1;
    let (here, there) = (target(insn), line.target);
    found.targets += u64::from(here.is_some());
    if here != there {
        found.wrong.push(format!("{insn:?} leads to {here:x?}, by objdump to {there:x?}: {}", line.text));
    }
}

/// The functions, each up to the next start.
fn stretches(loaded: &elf::Loaded<'_>) -> Vec<Range<u64>> {
    let next = |start: u64| loaded.starts[loaded.starts.partition_point(|s| *s <= start)..].first().copied();
    let cut = |f: &Range<u64>| f.start..f.end.min(next(f.start).unwrap_or(u64::MAX));
    loaded.functions.iter().map(cut).filter(|f| f.start < f.end).collect()
}

/// `None` where there is no objdump.
fn compare(file: &elf::File) -> Option<Found> {
    let loaded = file.load();
    let stretches = stretches(&loaded);
    let mut found = Found::default();
    for code in &loaded.codes {
        let own: Vec<_> = stretches.iter().filter(|f| code.range().contains(&f.start)).cloned().collect();
        if own.is_empty() {
            continue;
        }
        let lines = objdump::lines(code, &own)?;
        own.into_iter().for_each(|range| compare_function(&loaded.codes, range, &lines, &mut found));
    }
    Some(found)
}

fn check(candidates: &[&str], at_least: u64) {
    let Some(file) = elf::open(candidates) else { return };
    let Some(found) = compare(&file) else {
        println!("skipped: no objdump or objcopy");
        return;
    };
    println!(
        "{}: {} functions, {} instructions alike, {} of them lead somewhere",
        file.path, found.functions, found.instructions, found.targets
    );
    for (cause, places) in &found.allowed {
        let reason = CAUSES.iter().find(|(name, _)| name == cause).map_or("", |(_, reason)| reason);
        println!("  {:5} {cause}: {reason}: {:x?}", places.len(), &places[..places.len().min(4)]);
    }
    assert!(
        found.wrong.is_empty(),
        "{} differences: {:#?}",
        found.wrong.len(),
        &found.wrong[..found.wrong.len().min(20)]
    );
    assert!(found.instructions > at_least, "only {} instructions", found.instructions);
    let odd: usize = found.allowed.values().map(Vec::len).sum();
    assert!(
        odd as u64 * 1000 < found.instructions,
        "{odd} allowed differences are too many to be exceptions"
    );
}

#[test]
fn libc_is_read_as_objdump_reads_it() {
    check(elf::LIBC, 300_000);
}

/// A Go program, this Rust program, and the libraries.
#[test]
#[ignore = "a minute"]
fn libraries_and_programs_are_read_as_objdump_reads_them() {
    check(elf::LIBC, 300_000);
    check(elf::LIBSTDCXX, 200_000);
    check(&["/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/lib64/libcrypto.so.3"], 500_000);
    check(elf::PYTHON, 500_000);
    check(elf::GO, 100_000);
    let own = std::env::current_exe().expect("a path");
    check(&[own.to_str().expect("a plain path")], 50_000);
}
