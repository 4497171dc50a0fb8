//! Tables of the machine's libraries: every row as gimli evaluates it, sizes and times, and words that are no tables.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use image::ElfImage;
use std::path::{Path, PathBuf};
use std::time::Instant;
use unwind::{Area, HEAD_WORDS, Loaded, Reg, Registers, Stack, Stop, Tables, make, walk};

const LIBRARIES: [&str; 4] = ["libc.so.6", "libstdc++.so.6", "libcrypto.so.3", "ld-linux-x86-64.so.2"];

fn libraries() -> impl Iterator<Item = PathBuf> {
    let dirs = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"];
    LIBRARIES
        .into_iter()
        .filter_map(move |name| dirs.iter().map(|d| Path::new(d).join(name)).find(|p| p.exists()))
}

fn area(image: &ElfImage) -> Vec<AtomicU32> {
    let table = make(image).unwrap();
    let words: Vec<AtomicU32> = (0..HEAD_WORDS + table.bytes() / 4 + 64).map(|_| AtomicU32::new(0)).collect();
    let mut area = Area::default();
    assert!(area.add(&words, (), Some(&table)));
    assert!(area.publish(&words, &[Loaded { range: 0..u64::MAX, bias: 0, file: () }]));
    words
}

/// A stack on which each word is its own address: what a walk reads says where it read it.
struct Echo;

impl Stack for Echo {
    fn word(&mut self, addr: u64) -> Option<u64> {
        Some(addr)
    }
}

/// What one step by the table gives, from these registers.
fn step(words: &[AtomicU32], pc: u64, sp: u64, bp: u64, bx: u64) -> (Vec<u64>, Stop) {
    let mut frames = Vec::new();
    let registers = Registers::new(pc, sp).with(Reg::Rbp, bp).with(Reg::Rbx, bx);
    let (_, stop) = walk(Tables::of(words), registers, &mut Echo, false, 2, |_, pc| frames.push(pc));
    (frames, stop)
}

/// The place of the return address by gimli's own evaluation of the entry; `None` where it takes more than these registers.
fn wanted(image: &ElfImage, sp: u64, bp: u64, bx: u64, mut each: impl FnMut(u64, u64, Option<u64>)) {
    use gimli::{
        BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, Register, RegisterRule, UnwindSection,
    };
    let section = image.sections().iter().find(|s| s.name == ".eh_frame").unwrap();
    let start = section.range.start;
    let bytes = image.bytes(start, (section.range.end.0 - start.0) as usize).unwrap();
    let (frames, bases) = (EhFrame::new(bytes, LittleEndian), BaseAddresses::default().set_eh_frame(start.0));
    let mut context = gimli::UnwindContext::new();
    let mut entries = frames.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else { continue };
        let Ok(mut rows) = fde.rows(&frames, &bases, &mut context) else { continue };
        while let Ok(Some(row)) = rows.next_row() {
            let base = match row.cfa() {
                CfaRule::RegisterAndOffset { register: Register(7), offset } => {
                    Some(sp.wrapping_add_signed(*offset))
                }
                CfaRule::RegisterAndOffset { register: Register(6), offset } => {
                    Some(bp.wrapping_add_signed(*offset))
                }
                CfaRule::RegisterAndOffset { register: Register(3), offset } => {
                    Some(bx.wrapping_add_signed(*offset))
                }
                _ => None,
            };
            let ra = match row.register(Register(16)) {
                Some(RegisterRule::Offset(offset)) => base.map(|cfa| cfa.wrapping_add_signed(offset)),
                _ => None,
            };
            each(row.start_address(), row.end_address(), ra);
        }
    }
}

#[test]
fn every_row_of_the_machines_libraries_leads_where_gimli_says() {
    let (sp, bp, bx) = (1 << 40, (1 << 40) + (1 << 30), (1 << 40) + (1 << 31));
    let mut seen = 0;
    for path in libraries() {
        let image = ElfImage::open(&path).unwrap();
        let words = area(&image);
        let (mut rows, mut others) = (0, 0);
        wanted(&image, sp, bp, bx, |from, to, ra| {
            if to <= from {
                return;
            }
            rows += 1;
            for pc in [from, to - 1] {
                match ra.filter(|ra| *ra >= sp) {
                    Some(ra) => {
                        assert_eq!(step(&words, pc, sp, bp, bx).0.get(1), Some(&ra), "{path:?} {pc:#x}")
                    }
                    None => others += 1,
                }
            }
        });
        println!("{}: {rows} rows, {} not by rsp, rbp or rbx", path.display(), others / 2);
        assert!(rows > 1000 && others < rows / 20, "{rows} {others}");
        seen += rows;
    }
    assert!(seen > 10_000, "{seen} rows");
}

#[test]
fn any_words_are_walked_through_without_a_panic_and_to_an_end() {
    let image = ElfImage::open(libraries().next().unwrap()).unwrap();
    let words = area(&image);
    let pc = image.code_ranges().iter().max_by_key(|r| r.end.0 - r.start.0).unwrap().start.0 + 4096;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut ends = [0; 6];
    for _ in 0..20_000 {
        let at = match random() % 3 {
            0 => random() as usize % words.len(),
            1 => random() as usize % 64,
            _ => random() as usize % 4096,
        };
        let before = words[at].swap(random() as u32, Relaxed);
        let mut count = 0;
        let registers = Registers::new(pc, random() >> 20).with(Reg::Rbp, random() >> 20);
        let (given, stop) = walk(Tables::of(&words), registers, &mut Echo, false, 100, |_, _| count += 1);
        assert!(given <= 100 && given == count);
        ends[stop as usize] += 1;
        words[at].store(before, Relaxed);
    }
    assert!(ends.iter().filter(|n| **n > 0).count() >= 2, "{ends:?}");
}

/// Sizes and times, by hand: `cargo test --release -p nanoprobe-unwind --test tables -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn tables_are_small_and_soon_made() {
    let named = std::env::var("NANOPROBE_UNWIND_FILES").unwrap_or_default();
    let named = named.split(' ').filter(|word| !word.is_empty()).map(PathBuf::from);
    for path in libraries().chain(named) {
        let image = ElfImage::open(&path).unwrap();
        let mut best = u128::MAX;
        let mut table = make(&image).unwrap();
        for _ in 0..5 {
            let began = Instant::now();
            table = make(&image).unwrap();
            best = best.min(began.elapsed().as_micros());
        }
        let kib = table.bytes() / 1024;
        println!("{}: {} rows, {} rules, {kib} KiB, {best} us", path.display(), table.rows, table.rules);
    }
}
