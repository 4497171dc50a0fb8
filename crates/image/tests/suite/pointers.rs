//! Where execution may land, compared with the instruction boundaries that objdump(1) finds.

use std::collections::BTreeSet;
use std::path::Path;

use image::{ElfImage, ImageAddr};

use crate::elf::library;
use crate::programs::{self, tool};

/// Addresses of instructions, and those that `lea` loads relative to the instruction pointer.
fn disassembled(path: &Path) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let text = tool("objdump", &["-d", "--no-show-raw-insn", path.to_str().unwrap()]);
    let (mut starts, mut loaded) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let Some((addr, instruction)) = line.split_once(":\t") else { continue };
        let Ok(addr) = u64::from_str_radix(addr.trim(), 16) else { continue };
        starts.insert(addr);
        let Some((_, target)) = instruction.split_once("(%rip)").filter(|_| instruction.starts_with("lea"))
        else {
            continue;
        };
        let target = target.split_once("# ").and_then(|(_, t)| t.split(' ').next());
        loaded.extend(target.and_then(|t| u64::from_str_radix(t, 16).ok()));
    }
    (starts, loaded)
}

/// Pointers that are no instruction boundary and do not lie in data that the linear sweep stumbled over.
fn strays(path: &Path, image: &ElfImage) -> Vec<ImageAddr> {
    let (starts, _) = disassembled(path);
    let data = image.data_in_code();
    // A linear sweep is out of step for some bytes behind data.
    let is_near_data = |p: ImageAddr| data.iter().any(|d| d.start <= p && p.0 < d.end.0 + 15);
    // The entry for glibc's signal return begins one byte early, on purpose.
    let is_return = |p: ImageAddr| image.signal_return_ranges().iter().any(|r| r.start == p);
    let is_stray = |p: &&ImageAddr| !starts.contains(&p.0) && !is_near_data(**p) && !is_return(**p);
    image.code_pointers().iter().filter(is_stray).copied().collect()
}

#[test]
fn every_code_pointer_is_an_instruction() {
    let paths = [
        programs::sample(),
        programs::sample_fixed(),
        programs::sample_musl(),
        programs::thrower(),
        library("libstdc++"),
        library("libc"),
        programs::go("hello", &[]),
    ];
    for path in paths {
        let image = ElfImage::open(&path).unwrap();
        let strays = strays(&path, &image);
        let share = strays.len() as f64 / image.code_pointers().len() as f64;
        // Numbers that look like addresses do occur in programs at fixed addresses.
        let allowed = if image.is_fixed() { 0.01 } else { 0.0 };
        assert!(share <= allowed, "{path:?}: {} strays, first {:?}", strays.len(), strays.first());
    }
}

#[test]
fn landing_pads_of_a_thrower_are_those_of_its_assembly() {
    let path = programs::thrower();
    let image = ElfImage::open(&path).unwrap();
    let (starts, _) = disassembled(&path);
    let is_inside = |p: &&ImageAddr| {
        let function = image.function_at(**p);
        function
            .is_some_and(|f| f.addr != **p && f.name().is_some_and(|n| n.starts_with("_Z") || n == "main"))
    };
    let pads: Vec<_> = image.code_pointers().iter().filter(is_inside).collect();
    assert!(pads.iter().all(|p| starts.contains(&p.0)), "{pads:?}");
    // Call sites are written as three differences: from the function's start, a length, the pad's.
    let assembly = tool("g++", &["-O1", "-std=c++17", "-S", "-o", "-", &programs::source("thrower.cc")]);
    let differences = assembly.lines().filter_map(|l| l.trim().strip_prefix(".uleb128 .L"));
    let is_pad = |d: &&str| d.starts_with(|c: char| c.is_ascii_digit()) && d.contains("-.LFB");
    let written: BTreeSet<_> = differences.filter(is_pad).collect();
    assert!(written.len() >= 3, "{written:?}");
    assert_eq!(pads.len(), written.len(), "{pads:?} {written:?}");
}

#[test]
fn jump_tables_lead_to_the_cases_of_a_switch() {
    let path = programs::sample();
    let image = ElfImage::open(&path).unwrap();
    let classify = image.functions().iter().find(|f| f.name() == Some("classify")).unwrap();
    let (starts, loaded) = disassembled(&path);
    let tables: Vec<_> = loaded.iter().map(|&t| image.rel32_table_targets(ImageAddr(t))).collect();
    let best =
        tables.iter().max_by_key(|t| t.iter().filter(|p| classify.range().contains(p)).count()).unwrap();
    let cases: BTreeSet<_> = best.iter().filter(|p| classify.range().contains(p)).collect();
    assert!(cases.len() >= 10, "{cases:?}");
    assert!(cases.iter().all(|p| starts.contains(&p.0)));
    assert!(image.rel32_table_targets(ImageAddr(u64::MAX - 2)).is_empty());
}

#[test]
fn tables_of_label_differences_lead_to_the_labels() {
    let dir = programs::directory("labels");
    let out = dir.join("labels");
    tool("gcc", &["-O2", "-pie", "-fPIE", &programs::source("labels.c"), "-o", out.to_str().unwrap()]);
    let image = ElfImage::open(&out).unwrap();
    let run = image.functions().iter().find(|f| f.name() == Some("run")).unwrap();
    let (starts, loaded) = disassembled(&out);
    let (labels, tables): (Vec<_>, Vec<_>) =
        loaded.iter().map(|&a| ImageAddr(a)).partition(|a| run.range().contains(a));
    let pairs = labels.iter().flat_map(|l| tables.iter().map(move |t| (l, t)));
    let found: BTreeSet<_> = pairs
        .flat_map(|(l, t)| image.rel32_label_targets(*t, *l, &run.range()))
        .filter(|p| starts.contains(&p.0))
        .collect();
    // Six labels; the one that is the base may be counted from data with zeros.
    assert!(!labels.is_empty() && found.len() >= 6, "{labels:?} {tables:?} {found:?}");
    // Taken for a table of offsets from its own start, it leads nowhere.
    assert!(tables.iter().all(|t| !image.rel32_table_targets(*t).iter().any(|p| run.range().contains(p))));
}

#[test]
fn addresses_of_labels_are_found_however_the_loader_is_told() {
    let dir = programs::directory("addresses");
    for (name, flag, section) in [
        ("plain", "-Wl,-z,nopack-relative-relocs", ".rela.dyn"),
        ("packed", "-Wl,-z,pack-relative-relocs", ".relr.dyn"),
    ] {
        let out = dir.join(name);
        tool(
            "gcc",
            &["-O2", "-pie", "-fPIE", flag, &programs::source("labels.c"), "-o", out.to_str().unwrap()],
        );
        let image = ElfImage::open(&out).unwrap();
        assert!(image.sections().iter().any(|s| s.name == section), "{name}");
        let run = image.functions().iter().find(|f| f.name() == Some("run_by_address")).unwrap();
        let (starts, _) = disassembled(&out);
        let is_inside = |p: &&ImageAddr| run.range().contains(p) && run.addr != **p;
        let inside: Vec<_> = image.code_pointers().iter().filter(is_inside).collect();
        assert!(inside.len() >= 5 && inside.iter().all(|p| starts.contains(&p.0)), "{name} {inside:?}");
    }
}

#[test]
fn labels_inside_functions_are_code_pointers_and_no_functions() {
    let image = ElfImage::open(programs::sample()).unwrap();
    let start = image.functions().iter().find(|f| f.name() == Some("sequence_start")).unwrap();
    let commit = ImageAddr(start.addr.0 + 4);
    assert_eq!(image.function_at(commit).unwrap().addr, start.addr);
    assert!(image.code_pointers().binary_search(&commit).is_ok());
}

#[test]
fn switches_at_fixed_addresses_are_found_in_data() {
    let path = programs::sample_fixed();
    let image = ElfImage::open(&path).unwrap();
    let classify = image.functions().iter().find(|f| f.name() == Some("classify")).unwrap();
    let inside = image.code_pointers().iter().filter(|p| classify.range().contains(p)).count();
    assert!(inside >= 10, "{inside}");
}

#[test]
fn pointers_in_data_are_found_with_plain_and_packed_relocations() {
    for path in [programs::sample(), programs::sample_packed(), programs::sample_unsorted()] {
        let image = ElfImage::open(&path).unwrap();
        for name in ["handle_one", "handle_two", "classify"] {
            let f = image.functions().iter().find(|f| f.name() == Some(name)).unwrap();
            assert!(image.code_pointers().binary_search(&f.addr).is_ok(), "{path:?} {name}");
        }
        // The loader is told about `handlers` by relocations alone; its words read as relocated.
        let listing = tool("nm", &[path.to_str().unwrap()]);
        let handlers = listing.lines().find(|l| l.ends_with(" handlers")).unwrap();
        let handlers = u64::from_str_radix(handlers.split(' ').next().unwrap(), 16).unwrap();
        let two = image.functions().iter().find(|f| f.name() == Some("handle_two")).unwrap();
        assert_eq!(image.word(ImageAddr(handlers + 8)), Some(two.addr.0), "{path:?}");
    }
}

#[test]
fn relocated_words_are_read_from_relocations_in_any_order() {
    // GNU ld also leaves the words in their places, other linkers do not: here they are wiped.
    let path = programs::sample_unsorted();
    let listing = tool("readelf", &["-rW", path.to_str().unwrap()]);
    let relocations: Vec<_> = listing
        .lines()
        .filter(|l| l.contains("R_X86_64_RELATIVE "))
        .map(|line| {
            let mut fields = line.split_whitespace().map(|f| u64::from_str_radix(f, 16).ok());
            (ImageAddr(fields.next().flatten().unwrap()), fields.next_back().flatten().unwrap())
        })
        .collect();
    assert!(relocations.len() > 5 && !relocations.is_sorted());
    let image = ElfImage::open(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for (slot, _) in &relocations {
        let at = image.file_offset(*slot).unwrap().0 as usize;
        bytes[at..at + 8].fill(0);
    }
    let wiped = ElfImage::from_bytes(bytes).unwrap();
    for (slot, to) in relocations {
        assert_eq!(wiped.word(slot), Some(to), "{slot}");
    }
}

#[test]
fn critical_sections_are_read_through_relocations() {
    for path in [programs::sample(), programs::sample_fixed(), programs::sample_packed()] {
        let image = ElfImage::open(&path).unwrap();
        let at = |name: &str| image.functions().iter().find(|f| f.name() == Some(name)).unwrap().addr;
        let sections = image.rseq_ranges();
        assert_eq!(sections.len(), 1, "{path:?}");
        assert_eq!(sections[0].range, at("sequence_start")..ImageAddr(at("sequence_start").0 + 4));
        assert_eq!(sections[0].abort, at("sequence_abort"));
    }
}

#[test]
fn signal_return_code_and_data_in_text_are_known() {
    let image = ElfImage::open(programs::sample()).unwrap();
    let listing = tool("nm", &[programs::sample().to_str().unwrap()]);
    let data = listing.lines().find(|l| l.ends_with(" data_between")).unwrap();
    let data = u64::from_str_radix(data.split(' ').next().unwrap(), 16).unwrap();
    assert_eq!(image.data_in_code(), [ImageAddr(data)..ImageAddr(data + 16)]);
    for path in [library("libc"), programs::sample_musl(), programs::go("hello", &[])] {
        let image = ElfImage::open(&path).unwrap();
        // mov $15, %eax or %rax; syscall.
        let is_return = |r: &std::ops::Range<ImageAddr>| {
            let bytes = image.bytes(r.start, (r.end.0 - r.start.0) as usize).unwrap();
            bytes.windows(2).any(|w| w == [0x0f, 0x05])
        };
        assert!(image.signal_return_ranges().iter().any(is_return), "{path:?}");
    }
}

#[test]
fn lazily_bound_calls_land_behind_the_jump_of_their_stub() {
    let dir = programs::directory("lazy");
    let out = dir.join("sample");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/programs/sample.c");
    tool(
        "gcc",
        &["-O2", "-pie", "-fPIE", "-Wl,-z,lazy", "-fcf-protection=none", source, "-o", out.to_str().unwrap()],
    );
    let image = ElfImage::open(&out).unwrap();
    let plt = image.sections().iter().find(|s| s.name == ".plt").unwrap();
    let inside = image.code_pointers().iter().filter(|p| plt.range.contains(p) && p.0 % 16 == 6).count();
    assert!(inside >= 4, "{inside}");
}

/// Immediate values and displacements in the code, which are addresses in a program at fixed ones.
fn numbers(path: &Path) -> impl Iterator<Item = u64> {
    let text = tool("objdump", &["-d", "--no-show-raw-insn", path.to_str().unwrap()]);
    let instructions =
        text.lines().filter_map(|l| l.split_once(":\t")).map(|(_, i)| i.to_owned()).collect::<Vec<_>>();
    instructions.into_iter().flat_map(|i| {
        let digits = |p: &str| p.chars().take_while(char::is_ascii_hexdigit).collect::<String>();
        let found: Vec<_> =
            i.split("0x").skip(1).filter_map(|p| u64::from_str_radix(&digits(p), 16).ok()).collect();
        found
    })
}

/// Addresses of the marks that compilers put where indirect branches may land, stubs left out: those are
/// reached by direct calls alone.
fn marks(path: &Path, image: &ElfImage) -> Vec<ImageAddr> {
    let text = tool("objdump", &["-d", "--no-show-raw-insn", path.to_str().unwrap()]);
    let lines = text.lines().filter_map(|l| l.split_once(":\t")).filter(|(_, i)| i.starts_with("endbr64"));
    let marks = lines.filter_map(|(addr, _)| u64::from_str_radix(addr.trim(), 16).ok()).map(ImageAddr);
    let plt = image.plt_ranges();
    marks.filter(|m| !plt.iter().any(|p| p.contains(m))).collect()
}

#[test]
fn every_mark_of_an_indirect_landing_is_a_code_pointer() {
    let dir = programs::directory("marked");
    let marked = dir.join("thrower");
    let source = programs::source("thrower.cc");
    tool("g++", &["-O2", "-std=c++17", "-fcf-protection=full", &source, "-o", marked.to_str().unwrap()]);
    for (path, at_least) in [(marked, 10), (library("libstdc++"), 3000)] {
        let image = ElfImage::open(&path).unwrap();
        let marks = marks(&path, &image);
        let unknown: Vec<_> =
            marks.iter().filter(|m| image.code_pointers().binary_search(m).is_err()).collect();
        assert!(marks.len() >= at_least, "{path:?}: {}", marks.len());
        assert!(unknown.is_empty(), "{path:?}: {} of {}: {:?}", unknown.len(), marks.len(), unknown.first());
    }
}

#[test]
fn every_marked_case_of_a_switch_is_known_by_pointer_or_table() {
    let dir = programs::directory("marked switches");
    for (name, kind) in
        [("sample.c", "-pie"), ("labels.c", "-pie"), ("sample.c", "-no-pie"), ("labels.c", "-no-pie")]
    {
        let out = dir.join(format!("{name}{kind}"));
        let code = if kind == "-pie" { "-fPIE" } else { "-fno-pie" };
        let flags = ["-O2", kind, code, "-fcf-protection=full", "-mcet-switch"];
        tool("gcc", &[&flags[..], &[&programs::source(name), "-o", out.to_str().unwrap()]].concat());
        let image = ElfImage::open(&out).unwrap();
        let mut known: BTreeSet<_> = image.code_pointers().iter().copied().collect();
        let (_, mut loaded) = disassembled(&out);
        if image.is_fixed() {
            loaded.extend(numbers(&out).filter(|&n| image.bytes(ImageAddr(n), 1).is_some()));
        }
        for &table in &loaded {
            known.extend(image.rel32_table_targets(ImageAddr(table)));
            for &label in loaded.iter().filter(|l| image.is_code(ImageAddr(**l))) {
                let Some(within) = image.function_at(ImageAddr(label)) else { continue };
                known.extend(image.rel32_label_targets(ImageAddr(table), ImageAddr(label), &within.range()));
            }
        }
        let marks = marks(&out, &image);
        let cases = marks.iter().filter(|m| image.function_at(**m).is_some_and(|f| f.addr != **m)).count();
        let unknown: Vec<_> = marks.iter().filter(|m| !known.contains(m)).collect();
        assert!(cases >= 10, "{out:?}: {cases}");
        assert!(unknown.is_empty(), "{out:?}: {unknown:?}");
    }
}
