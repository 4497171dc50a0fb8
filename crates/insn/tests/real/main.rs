//! Over the code of real files: boundaries and targets against objdump, coverage by rung, speed.

#![cfg(target_arch = "x86_64")]

mod elf;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use insn::{Asked, Coverage, Flow, Refusal, Rung, coverage_of_entries, coverage_of_instructions, place};

/// (addresses of instructions, addresses that direct branches lead to), by `objdump -d`.
fn objdump(path: &str) -> Option<(BTreeSet<u64>, BTreeSet<u64>)> {
    let output = Command::new("objdump").args(["-d", "-w", "--no-show-raw-insn", path]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut starts, mut targets) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let Some((addr, insn)) = line.split_once(":\t") else { continue };
        let Ok(addr) = u64::from_str_radix(addr.trim(), 16) else { continue };
        starts.insert(addr);
        let mut words = insn.split_whitespace().skip_while(|word| is_prefix(word));
        let opcode = words.next().unwrap_or_default();
        let is_branch = opcode.starts_with('j') || opcode.starts_with("call") || opcode.starts_with("loop");
        let operand = words.next().unwrap_or_default();
        let operand = operand.strip_prefix("0x").unwrap_or(operand);
        if is_branch && let Ok(target) = u64::from_str_radix(operand, 16) {
            targets.insert(target);
        }
    }
    (!starts.is_empty()).then_some((starts, targets))
}

fn is_prefix(word: &str) -> bool {
    matches!(word, "bnd" | "notrack" | "lock" | "rep" | "repz" | "repnz" | "data16" | "cs" | "ds" | "rex.W")
        || word.ends_with(",pt")
        || word.ends_with(",pn")
}

#[test]
fn boundaries_and_targets_in_libc_are_those_of_objdump() {
    let Some(file) = elf::open(elf::LIBC) else { return };
    let Some((starts, targets)) = objdump(&file.path) else {
        println!("skipped: no objdump");
        return;
    };
    let loaded = file.load();
    let flow = loaded.flow();
    let missing: Vec<_> =
        targets.iter().filter(|target| flow.is_code(**target) && !flow.is_target(**target)).collect();
    println!("{} direct targets by objdump, {} of them unknown to Flow", targets.len(), missing.len());
    assert!(targets.len() > 10_000);
    assert!(missing.is_empty(), "{missing:x?}");

    // glibc's unwind data lets __restore_rt start one byte early, inside a nop.
    let (functions, odd): (Vec<_>, Vec<_>) =
        loaded.functions.iter().partition(|function| starts.contains(&function.start));
    assert!(odd.len() < 3, "{odd:x?}");
    let (mut compared, mut unclear, mut differing) = (0, 0, vec![]);
    for function in functions {
        // Each look-up decodes from the start: all of a short function, a sample of a long one.
        let step = 1 + (function.end - function.start) as usize / 512;
        for site in function.clone().step_by(step) {
            compared += 1;
            let boundary = flow.boundary(&loaded.codes, site, function.start);
            let agrees = match boundary {
                Ok(()) => starts.contains(&site),
                Err(Refusal::MidInstruction { start, .. }) => {
                    !starts.contains(&site) && starts.contains(&start)
                }
                // Behind a jump to which nothing is known to lead: it may be data.
                Err(Refusal::UnknownBoundary { .. }) => {
                    unclear += 1;
                    true
                }
                Err(_) => false,
            };
            if !agrees {
                differing.push(site);
            }
        }
    }
    println!(
        "{compared} addresses compared, {} differ: {:x?}",
        differing.len(),
        &differing[..differing.len().min(20)]
    );
    assert!(compared > 400_000);
    println!("{unclear} are unclear");
    assert!(differing.is_empty() && unclear * 10_000 < compared, "{unclear}");
}

/// glibc's vfprintf and vfscanf jump by tables of offsets from a label. Found by `torture anywhere`.
#[test]
fn computed_jumps_of_vfprintf_are_known() {
    let Some(file) = elf::open(elf::LIBC) else { return };
    let loaded = file.load();
    let flow = loaded.flow();
    let by_labels = std::cell::RefCell::new(BTreeSet::new());
    let blind =
        Flow::analyse(&loaded.codes, &loaded.starts, &loaded.indirect, &|table| match &table.within {
            None => loaded.table(table),
            Some(_) => {
                by_labels.borrow_mut().extend(loaded.table(table));
                vec![]
            }
        });
    let only_by_labels =
        by_labels.take().into_iter().filter(|to| flow.is_target(*to) && !blind.is_target(*to));
    // The entries of vfprintf's own tables, which nothing else refers to, begin instructions.
    let starts = objdump(&file.path).map(|(starts, _)| starts);
    let (real, odd): (Vec<u64>, Vec<u64>) =
        only_by_labels.partition(|to| starts.as_ref().is_none_or(|starts| starts.contains(to)));
    println!(
        "{} places that only tables of offsets from a label lead to, and {} that are none",
        real.len(),
        odd.len()
    );
    assert!(real.len() > 100);
    let inside =
        |to: u64| flow.start_before(to).is_some_and(|start| flow.boundary(&loaded.codes, to, start).is_ok());
    assert!(real.iter().all(|to| inside(*to)));
}

#[test]
fn what_is_found_near_includes_all_that_is_found_by_decoding() {
    for candidates in [elf::LIBC, elf::LIBSTDCXX, elf::PYTHON, elf::GO] {
        let Some(file) = elf::open(candidates) else { continue };
        let loaded = file.load();
        let whole = loaded.flow();
        let (mut targets, mut extra, mut placed, mut lost) = (0, 0, 0, 0);
        for some in loaded.functions.chunks(5).step_by(loaded.functions.len() / 60) {
            let near = loaded.flow_near(some);
            for addr in some.iter().flat_map(|function| function.start..function.end + 5) {
                assert!(near.is_target(addr) || !whole.is_target(addr), "{addr:#x} in {}", file.path);
                targets += u64::from(whole.is_target(addr));
                extra += u64::from(near.is_target(addr) && !whole.is_target(addr));
            }
            let (all, found) = (coverage(&loaded, &whole, some), coverage(&loaded, &near, some));
            placed += all;
            lost += all - found;
        }
        println!(
            "{}: {targets} targets and {extra} that are none; {lost} of {placed} instructions lost",
            file.path
        );
        assert!(targets > 500 && lost * 200 < placed);
    }
}

fn coverage(loaded: &elf::Loaded<'_>, flow: &Flow, functions: &[std::ops::Range<u64>]) -> u64 {
    coverage_of_instructions(flow, &loaded.codes, functions).placed()
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn print_coverage(name: &str, what: &str, coverage: &Coverage) {
    let total = coverage.total();
    println!(
        "{name:16} {what:12} {total:8} nop {:.2} jump {:.2} window {:.2} padded {:.2} island {:.2} punned {:.2} = {:.2} %; \
         trap {:.2} refused {:.2} %",
        percent(coverage.nop, total),
        percent(coverage.jump, total),
        percent(coverage.window, total),
        percent(coverage.padded_window, total),
        percent(coverage.island, total),
        percent(coverage.punned, total),
        percent(coverage.placed(), total),
        percent(coverage.needs_trap, total),
        percent(coverage.refused, total),
    );
}

#[test]
fn nearly_all_function_entries_of_real_files_are_placed() {
    for candidates in [elf::LIBC, elf::LIBSTDCXX, elf::PYTHON, elf::GO] {
        let Some(file) = elf::open(candidates) else { continue };
        let loaded = file.load();
        let flow = loaded.flow();
        let name = file.path.rsplit('/').next().unwrap();
        let entries = coverage_of_entries(&flow, &loaded.codes, &loaded.functions);
        print_coverage(name, "entries", &entries);
        assert!(entries.total() > 1000);
        assert!(percent(entries.placed(), entries.total()) > 97.0);
    }
}

/// Run with `--ignored --nocapture`: what each rung covers of all instructions.
#[test]
#[ignore = "a report; seconds in a debug build"]
fn coverage_of_all_instructions() {
    for candidates in [elf::LIBC, elf::LIBSTDCXX, elf::PYTHON, elf::GO] {
        let Some(file) = elf::open(candidates) else { continue };
        let loaded = file.load();
        let flow = loaded.flow();
        let name = file.path.rsplit('/').next().unwrap();
        print_coverage(
            name,
            "instructions",
            &coverage_of_instructions(&flow, &loaded.codes, &loaded.functions),
        );
    }
}

/// Run with `--release -- --ignored --nocapture speed`; `NANOPROBE_INSN_FILES` adds files, separated by colons.
#[test]
#[ignore = "a measurement"]
fn speed_of_the_sweep() {
    let more = std::env::var("NANOPROBE_INSN_FILES").unwrap_or_default();
    let more: Vec<&str> = more.split(':').filter(|path| !path.is_empty()).collect();
    let lists = [elf::LIBC, elf::LIBSTDCXX, elf::PYTHON, elf::GO].into_iter().map(<[&str]>::to_vec);
    for candidates in lists.chain(more.into_iter().map(|path| vec![path])) {
        let Some(file) = elf::open(&candidates) else { continue };
        let loaded = file.load();
        let mut best = f64::MAX;
        let mut flow = None;
        for _ in 0..5 {
            let start = Instant::now();
            flow = Some(loaded.flow());
            best = best.min(start.elapsed().as_secs_f64() * 1e3);
        }
        let flow = flow.unwrap();
        let bytes: usize = loaded.codes.iter().map(|code| code.bytes.len()).sum();
        let insns = insn_count(&loaded);
        println!(
            "{}: {bytes} bytes, {insns} instructions, {} targets, best of 5: {best:.2} ms, {:.1} ns an instruction",
            file.path,
            flow.target_count(),
            best * 1e6 / insns as f64
        );
        let one = &loaded.functions[loaded.functions.len() / 2..][..1];
        let start = Instant::now();
        loaded.flow_near(one);
        println!("    near one function: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
        speed_of_place(&loaded, &flow);
        print_coverage("   ", "entries", &coverage_of_entries(&flow, &loaded.codes, &loaded.functions));
    }
}

fn insn_count(loaded: &elf::Loaded<'_>) -> usize {
    let options = iced_x86::DecoderOptions::NONE;
    loaded
        .codes
        .iter()
        .map(|code| iced_x86::Decoder::with_ip(64, code.bytes, code.base, options).iter().count())
        .sum()
}

fn speed_of_place(loaded: &elf::Loaded<'_>, flow: &Flow) {
    let start = Instant::now();
    let mut islands = 0;
    for function in &loaded.functions {
        let asked = Asked {
            site: function.start,
            function: Some(function.clone()),
            next_function: None,
            taken: &|_| false,
            room: &insn::no_room,
        };
        let placed = place(flow, &loaded.codes, &asked);
        islands += u64::from(placed.is_ok_and(|placement| placement.rung == Rung::Island));
    }
    let ns = start.elapsed().as_nanos() as f64 / loaded.functions.len() as f64;
    println!("    place: {ns:.0} ns an entry ({} entries, {islands} islands)", loaded.functions.len());
}
