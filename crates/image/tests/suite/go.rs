//! Where Go parks no goroutine, compared with what its own runtime says.

use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use image::{ElfImage, ImageAddr};

use crate::programs;

/// What the runtime of the program itself says of these addresses: 1 where it may stop a goroutine, 2 where it goes on
/// at another address then, else 0.
fn asked(program: &Path, addrs: &[u64]) -> Vec<u8> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let words: Vec<u8> = addrs.iter().flat_map(|addr| addr.to_le_bytes()).collect();
    let writer = std::thread::spawn(move || stdin.write_all(&words).unwrap());
    let mut answers = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut answers).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    answers
}

/// Every byte of every function of Go's.
fn addresses(image: &ElfImage) -> Vec<u64> {
    let is_go = |f: &&image::Function| f.name().is_some_and(|name| name.contains('.'));
    image.functions().iter().filter(is_go).flat_map(|f| f.range().start.0..f.range().end.0).collect()
}

fn holds(ranges: &[Range<ImageAddr>], addr: u64) -> bool {
    let after = ranges.partition_point(|range| range.end.0 <= addr);
    ranges.get(after).is_some_and(|range| range.start.0 <= addr)
}

#[test]
fn no_unsafe_point_is_an_address_where_the_runtime_itself_would_stop_a_goroutine() {
    let program = programs::go_preempt();
    let image = ElfImage::open(&program).unwrap();
    let (ranges, addrs) = (image.go_unsafe_points(), addresses(&image));
    assert!(ranges.is_sorted_by_key(|range| range.start));
    let answers = asked(&program, &addrs);
    assert_eq!(answers.len(), addrs.len());
    let wrong: Vec<_> =
        addrs.iter().zip(&answers).filter(|(at, yes)| **yes != 0 && holds(&ranges, **at)).collect();
    assert!(wrong.is_empty(), "{} of {}: {:x?}", wrong.len(), addrs.len(), &wrong[..wrong.len().min(20)]);
    // And they are most: left out is what the runtime refuses by the names of its own functions.
    let unsafe_ones = || addrs.iter().zip(&answers).filter(|(_, yes)| **yes == 0).map(|(at, _)| at);
    let found = unsafe_ones().filter(|at| holds(&ranges, **at)).count();
    assert!(
        found > 100_000 && found * 10 > unsafe_ones().count() * 9,
        "{found} of {}",
        unsafe_ones().count()
    );
    assert!(answers.contains(&1));
}

#[test]
fn the_branch_behind_a_stack_check_is_an_unsafe_point_and_what_follows_is_none() {
    for flags in [&[][..], &["-buildmode=pie"], &["-ldflags=-s -w"]] {
        let name = format!("hello-{}", flags.concat().replace(['-', '=', ' '], ""));
        let image = ElfImage::open(programs::go(&name, flags)).unwrap();
        let ranges = image.go_unsafe_points();
        let handle = image.functions().iter().find(|f| f.name() == Some("main.recovers")).unwrap();
        let head = image.bytes(handle.addr, 16).unwrap();
        // cmp rsp,[r14+0x10]; jbe, short or long; push rbp
        assert_eq!(head[..4], [0x49, 0x3b, 0x66, 0x10], "{name}");
        let behind = if head[4] == 0x0f { 10 } else { 6 };
        assert_eq!(head[behind], 0x55, "{name}");
        let at = |offset: usize| holds(&ranges, handle.addr.0 + offset as u64);
        assert_eq!((at(0), at(4), at(behind)), (false, true, false), "{name}");
    }
}

/// A new goroutine returns to the second byte of `runtime.goexit`, when it ends.
#[test]
fn where_goroutines_end_is_no_unsafe_point_and_c_code_is() {
    let image = ElfImage::open(programs::go_with_c("withc", &[])).unwrap();
    let ranges = image.go_unsafe_points();
    let start = |name: &str| {
        let named = image.functions().iter().find(|f| f.names.iter().any(|n| n.text.starts_with(name)));
        named.unwrap_or_else(|| panic!("{name}")).addr.0
    };
    assert!(!holds(&ranges, start("runtime.goexit.abi0") + 1));
    assert!(holds(&ranges, start("runtime.gogo.abi0")));
    assert!(holds(&ranges, start("_cgo_sys_thread_start")) && holds(&ranges, image.entry().unwrap().0));
}

#[test]
fn a_table_of_another_version_and_a_damaged_one_give_less_and_never_a_panic() {
    let program = programs::go_preempt();
    let good = std::fs::read(&program).unwrap();
    let image = ElfImage::open(&program).unwrap();
    let table = image.sections().iter().find(|s| s.name.ends_with(".gopclntab")).unwrap();
    let start = image.file_offset(table.range.start).unwrap().0 as usize;
    let len = (table.range.end.0 - table.range.start.0) as usize;
    let ranges_of = |bytes: Vec<u8>| ElfImage::from_bytes(bytes).unwrap().go_unsafe_points();
    assert!(!ranges_of(good.clone()).is_empty());
    let mut other = good.clone();
    other[start] = 0xf2;
    assert!(ranges_of(other).is_empty(), "a later version");
    let code = image.code_ranges();
    let (first, last) = (code.first().unwrap().start, code.last().unwrap().end);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..40 {
        let mut bad = good.clone();
        for i in 0..2000 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let at = (state >> 33) as usize % if i < 3 { 64 } else { len };
            bad[start + 8 + at.min(len - 9)] = (state >> 24) as u8;
        }
        let mut bytes_again = bad.clone();
        let ranges = ranges_of(bad);
        let frames = ElfImage::from_bytes(std::mem::take(&mut bytes_again)).unwrap().go_frames();
        let is_inside = |f: &image::GoFrames| {
            f.rows.is_sorted_by_key(|row| row.0) && f.rows.iter().all(|(addr, _)| f.range.contains(addr))
        };
        assert!(frames.iter().all(|f| first <= f.range.start && f.range.end <= last && is_inside(f)));
        let apart = ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
        assert!(apart && ranges.iter().all(|r| first <= r.start && r.end <= last), "{ranges:x?}");
    }
}

/// How far each instruction is below its caller's end of the stack, as the linker says it a second time, for debuggers.
fn debug_frames(program: &Path) -> Vec<(u64, u64, i64)> {
    use gimli::{BaseAddresses, CfaRule, CieOrFde, DebugFrame, LittleEndian, UnwindContext, UnwindSection};
    use object::{Object, ObjectSection};
    let bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let mut section =
        DebugFrame::new(file.section_by_name(".debug_frame").unwrap().data().unwrap(), LittleEndian);
    section.set_address_size(8);
    let (bases, mut context, mut found) = (BaseAddresses::default(), UnwindContext::new(), Vec::new());
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(DebugFrame::cie_from_offset).unwrap();
        let mut rows = fde.rows(&section, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            // Behind a function's last instruction there may be a row without one, or of nothing.
            let is_of_code = |offset: &i64| *offset >= 8 && row.start_address() < row.end_address();
            if let CfaRule::RegisterAndOffset { offset, .. } = row.cfa()
                && is_of_code(offset)
            {
                found.push((row.start_address(), row.end_address(), *offset));
            }
        }
    }
    found
}

#[test]
fn functions_are_left_as_the_debug_information_of_the_same_program_says() {
    let program = programs::go("frames", &["-ldflags=-compressdwarf=false"]);
    let frames = ElfImage::open(&program).unwrap().go_frames();
    assert!(
        frames.is_sorted_by_key(|f| f.range.start) && frames.iter().filter(|f| f.is_outermost).count() > 2
    );
    let below = |addr: u64| {
        let function = frames.partition_point(|f| f.range.start.0 <= addr).checked_sub(1)?;
        let rows = &frames[function].rows;
        Some(rows[rows.partition_point(|row| row.0.0 <= addr).checked_sub(1)?].1)
    };
    let (mut same, mut other) = (0, Vec::new());
    for (start, end, offset) in debug_frames(&program) {
        // A caller's end of the stack is behind the return address.
        match below(start).zip(below(end - 1)) {
            Some((a, b)) if i64::from(a) + 8 == offset && a == b => same += 1,
            found => other.push((start, end, offset, found)),
        }
    }
    assert!(same > 5000 && other.is_empty(), "{same} rows, and {other:x?}");
}
