//! Files as a whole: functions, extents, offsets, symbols from elsewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use image::lookup::find_file;
use image::spec::Library;
use image::{ElfImage, FileOffset, FunctionKind, ImageAddr, ImageError, SizeSource, Source, Spec};

use crate::programs::{self, tool};

pub fn library(name: &str) -> PathBuf {
    find_file(&Library::Named(name.to_owned())).unwrap()
}

fn of(path: &Path) -> ElfImage {
    ElfImage::open(path).unwrap()
}

/// Addresses of functions as nm(1) prints them, with the names at each.
fn nm(path: &Path, args: &[&str]) -> BTreeSet<(u64, String)> {
    let mut all = args.to_vec();
    all.extend(["--defined-only", path.to_str().unwrap()]);
    let text = tool("nm", &all);
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let addr = u64::from_str_radix(fields.next()?, 16).ok()?;
        let kind = fields.next()?;
        let name = fields.next()?.split('@').next()?.to_owned();
        matches!(kind, "T" | "t" | "W" | "w" | "i").then_some((addr, name))
    });
    lines.collect()
}

#[test]
fn functions_of_a_program_are_those_of_nm() {
    for path in [programs::sample(), programs::sample_fixed(), programs::sample_musl(), programs::thrower()] {
        let image = of(&path);
        let known: BTreeSet<_> = image
            .functions()
            .iter()
            .flat_map(|f| f.names.iter().map(|n| (f.addr.0, n.text.to_string())))
            .collect();
        // nm also prints labels inside functions, which are no functions here.
        let missing: Vec<_> = nm(&path, &[])
            .into_iter()
            .filter(|(a, _)| image.is_code(ImageAddr(*a)) && image.function_at(ImageAddr(*a)).is_none())
            .collect();
        assert!(missing.is_empty(), "{path:?}: {missing:x?}");
        let listed = nm(&path, &[]);
        let invented: Vec<_> = known.difference(&listed).collect();
        assert!(invented.is_empty(), "{path:?}: {invented:x?}");
        for name in ["main", "_start"] {
            assert!(known.iter().any(|(_, n)| n == name), "{path:?}: {name}");
        }
    }
}

#[test]
fn exported_functions_of_libraries_are_those_of_nm() {
    for name in ["libc", "libstdc++", "libcrypto"] {
        let path = library(name);
        let image = of(&path);
        for (addr, name) in nm(&path, &["-D"]) {
            let function = image.functions().binary_search_by_key(&ImageAddr(addr), |f| f.addr);
            let function = &image.functions()[function.unwrap_or_else(|_| panic!("{name} at {addr:#x}"))];
            assert!(function.names.iter().any(|n| *n.text == *name), "{name} at {addr:#x}: {function:?}");
        }
    }
}

#[test]
fn aliases_of_one_address_are_one_function() {
    let image = of(&programs::sample());
    let named =
        |name: &str| image.functions().iter().filter(|f| f.names.iter().any(|n| &*n.text == name)).count();
    assert_eq!((named("handle_one"), named("handle_alias")), (1, 1));
    let addrs: Vec<_> = image.functions().iter().map(|f| f.addr).collect();
    assert!(addrs.windows(2).all(|w| w[0] < w[1]));
    for f in image.functions() {
        let distinct: BTreeSet<_> = f.names.iter().collect();
        assert_eq!(distinct.len(), f.names.len(), "{f:?}");
    }
}

#[test]
fn symbol_versions_are_kept_apart_from_names() {
    let image = of(&library("libc"));
    let memcpy: Vec<_> = image
        .functions()
        .iter()
        .flat_map(|f| f.names.iter().map(move |n| (f, n)))
        .filter(|(_, n)| &*n.text == "memcpy" && n.version.is_some())
        .map(|(f, n)| (n.to_string(), f.kind))
        .collect();
    assert!(memcpy.contains(&("memcpy@@GLIBC_2.14".to_owned(), FunctionKind::Ifunc)), "{memcpy:?}");
    assert!(memcpy.iter().any(|(n, k)| n == "memcpy@GLIBC_2.2.5" && *k == FunctionKind::Func), "{memcpy:?}");
}

#[test]
fn offsets_and_addresses_undo_each_other_over_all_code() {
    for path in [library("libc"), library("libstdc++"), programs::sample_fixed(), programs::go("hello", &[])]
    {
        let image = of(&path);
        let mut checked = 0;
        for (segment, bytes) in image.executable_segments() {
            for into in (0..bytes.len() as u64).step_by(7) {
                let offset = FileOffset(segment.offset.0 + into);
                let addr = image.image_addr(offset).unwrap();
                assert_eq!(image.file_offset(addr), Some(offset));
                assert_eq!(image.bytes(addr, 1).unwrap()[0], bytes[into as usize]);
                checked += 1;
            }
        }
        assert!(checked > 50, "{path:?}");
        let file = std::fs::read(&path).unwrap();
        let f = image.functions().iter().find(|f| f.kind == FunctionKind::Func).unwrap();
        let at = image.file_offset(f.addr).unwrap().0 as usize;
        assert_eq!(image.bytes(f.addr, 4).unwrap(), &file[at..at + 4]);
    }
}

#[test]
fn addresses_outside_the_file_have_no_offset() {
    let image = of(&library("libc"));
    assert_eq!(image.file_offset(ImageAddr(u64::MAX)), None);
    assert_eq!(image.image_addr(FileOffset(u64::MAX)), None);
    let bss = image.sections().iter().find(|s| s.name == ".bss").unwrap();
    assert_eq!(image.file_offset(ImageAddr(bss.range.end.0 - 1)), None);
}

#[test]
fn unwind_entries_give_extents_to_stripped_programs() {
    let full = of(&programs::sample());
    let bare = of(&programs::stripped(&programs::sample()));
    let classify = full.functions().iter().find(|f| f.name() == Some("classify")).unwrap();
    let unnamed = bare.function_at(classify.addr).unwrap();
    assert_eq!((unnamed.addr, unnamed.size_bytes), (classify.addr, classify.size_bytes));
    assert_eq!((unnamed.kind, unnamed.source), (FunctionKind::Unnamed, Source::EhFrame));
    assert!(unnamed.names.is_empty() && bare.functions().iter().all(|f| f.size_bytes > 0));
    assert!(bare.name_at(classify.addr).to_string().starts_with(".text+0x"));
}

#[test]
fn unwind_entries_cover_the_functions_of_libc() {
    let image = of(&library("libc"));
    assert!(image.fdes().windows(2).all(|w| w[0].start <= w[1].start));
    let sized = image.functions().iter().filter(|f| f.size_source == SizeSource::Symbol).count();
    let agree = image
        .functions()
        .iter()
        .filter(|f| image.fdes().iter().any(|e| e.start == f.addr && e.len_bytes == f.size_bytes))
        .count();
    assert!(agree * 10 > sized * 9, "{agree} of {sized}");
}

#[test]
fn compressed_symbols_are_read() {
    let dir = programs::directory("debugdata");
    let (full, bare) = (programs::sample(), programs::stripped(&programs::sample()));
    let (plain, out) = (dir.join("symbols"), dir.join("sample"));
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    tool("objcopy", &["--strip-debug", &path(&full), &path(&plain)]);
    tool("xz", &["-k", &path(&plain)]);
    let section = format!(".gnu_debugdata={}.xz", path(&plain));
    tool("objcopy", &["--add-section", &section, &path(&bare), &path(&out)]);
    let image = of(&out);
    let f = image.functions().iter().find(|f| f.name() == Some("hidden_helper")).unwrap();
    assert_eq!(f.source, Source::DebugData);
}

#[test]
fn a_debug_file_is_found_by_build_id_and_only_by_it() {
    let dir = programs::directory("debugroot");
    let (full, bare) = (programs::sample(), programs::stripped(&programs::sample()));
    let image = of(&bare).with_debug_root(&dir);
    let debug = image.debug_file_path().unwrap();
    std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
    assert!(!image.functions().iter().any(|f| f.name() == Some("hidden_helper")));

    tool("objcopy", &["--only-keep-debug", full.to_str().unwrap(), debug.to_str().unwrap()]);
    let image = of(&bare).with_debug_root(&dir);
    let f = image.functions().iter().find(|f| f.name() == Some("hidden_helper")).unwrap();
    assert_eq!(f.source, Source::DebugFile);

    // The debug file of another build is not believed, though every address in it fits.
    let other = dir.join("other");
    let id = "-Wl,--build-id=0x0123456789abcdef";
    let source = programs::source("sample.c");
    tool("gcc", &["-O2", "-pie", "-fPIE", id, &source, "-o", other.to_str().unwrap()]);
    tool("objcopy", &["--only-keep-debug", other.to_str().unwrap(), debug.to_str().unwrap()]);
    let image = of(&bare).with_debug_root(&dir);
    assert!(!image.functions().iter().any(|f| f.name() == Some("hidden_helper")));
}

#[test]
fn facts_about_the_whole_file_are_those_of_readelf() {
    let libc = of(&library("libc"));
    assert_eq!(libc.soname(), Some("libc.so.6"));
    let notes = tool("readelf", &["-n", library("libc").to_str().unwrap()]);
    let hex: String = libc.build_id().unwrap().iter().map(|b| format!("{b:02x}")).collect();
    assert!(notes.contains(&hex));
    let sample = of(&programs::sample());
    assert!(sample.interpreter().unwrap().to_str().unwrap().contains("ld-linux"));
    assert_eq!(
        (sample.needed(), sample.is_fixed(), sample.is_static()),
        (&["libc.so.6".to_owned()][..], false, false)
    );
    for path in [programs::sample_static(), programs::sample_musl()] {
        assert!(of(&path).is_static() && !of(&path).is_go(), "{path:?}");
    }
    assert!(of(&programs::sample_fixed()).is_fixed());
    assert!(sample.imports().contains(&"malloc".to_owned()));
}

#[test]
fn a_file_with_spaces_in_its_name_is_opened() {
    let path = programs::directory("with spaces").join("a program");
    std::fs::copy(programs::sample(), &path).unwrap();
    assert!(!of(&path).functions().is_empty());
}

#[test]
fn files_of_other_kinds_are_refused_by_kind() {
    let dir = programs::directory("kinds");
    let text = dir.join("text");
    std::fs::write(&text, "#!/bin/sh\n").unwrap();
    assert!(matches!(ElfImage::open(&text), Err(ImageError::NotElf { .. })));
    assert!(matches!(ElfImage::open(dir.join("absent")), Err(ImageError::Io { .. })));
    let mut bytes = std::fs::read(programs::sample()).unwrap();
    bytes[4] = 1;
    assert!(matches!(ElfImage::from_bytes(bytes), Err(ImageError::OtherClass { is_64: false, .. })));
}

#[test]
fn broken_files_give_errors_or_less_but_never_a_panic() {
    let good = std::fs::read(programs::thrower()).unwrap();
    let ask = |bytes: Vec<u8>| {
        if let Ok(image) = ElfImage::from_bytes(bytes) {
            let _ = (image.functions().len(), image.code_pointers().len(), image.rseq_ranges().len());
            let _ = (image.irelative_slots().len(), image.imports().len(), image.name_at(ImageAddr(0x1100)));
            for (segment, _) in image.executable_segments() {
                let _ = image.rel32_table_targets(segment.range.start).len();
            }
        }
    };
    for len in (0..good.len()).step_by(good.len() / 97) {
        ask(good[..len].to_vec());
    }
    // A cheap generator with a fixed seed: 300 files with 20 wrong bytes each, half of them in the headers.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    for _ in 0..300 {
        let mut bad = good.clone();
        for i in 0..20 {
            let len = bad.len();
            let at = match i % 4 {
                0 => next(1024),
                1 => len - 1 - next(3000),
                _ => next(len),
            };
            bad[at] = next(256) as u8;
        }
        ask(bad);
    }
}

/// 610 KB of xz that hold 4 GB took 8.4 GB: the decoder kept all that it had written.
#[test]
fn compressed_symbols_that_are_a_bomb_are_left_unread_and_named() {
    let dir = programs::directory("bomb");
    let (bomb, out) = (dir.join("bomb.xz"), dir.join("sample"));
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    tool("sh", &["-c", &format!("head -c 100000000 /dev/zero | xz -0 > '{}'", path(&bomb))]);
    let section = format!(".gnu_debugdata={}", path(&bomb));
    let bare = programs::stripped(&programs::sample());
    tool("objcopy", &["--add-section", &section, &path(&bare), &path(&out)]);
    let image = of(&out);
    assert_eq!(image.unread_symbols(), Some(image::Unread::TooLarge { max_bytes: 64 << 20 }));
    assert_eq!(of(&bare).unread_symbols(), None);
    let spec = Spec::parse(&format!("u:{}:no_such_name", path(&out))).unwrap();
    let why = image::NoMatch::explain(&spec, &image).unwrap().to_string();
    assert!(why.contains("(.gnu_debugdata) are not read: they are larger than 64 MiB"), "{why}");
}
