//! USDT marks against readelf.

use image::{ElfImage, Spec, select};
use std::process::Command;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6";

#[test]
fn marks_are_those_that_readelf_shows() {
    let image = ElfImage::open(LIBRARY).unwrap();
    let shown = Command::new("readelf").args(["-nW", LIBRARY]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let names: Vec<&str> = shown.lines().filter_map(|l| l.trim().strip_prefix("Name: ")).collect();
    let marks = image.marks();
    assert!(!names.is_empty());
    assert_eq!(marks.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), names);
    for mark in &marks {
        assert!(shown.contains(&format!("Location: {:#018x}", mark.addr.0)), "{mark:?}");
        assert!(mark.semaphore.is_none() && mark.provider == "libstdcxx", "{mark:?}");
        assert_eq!(image.bytes(mark.addr, 1), Some(&[0x90][..]), "a nop");
    }
}

#[test]
fn a_mark_is_selected_by_its_name_with_and_without_its_provider() {
    let image = ElfImage::open(LIBRARY).unwrap();
    for (text, matches) in [
        ("U:libstdc++:throw", true),
        ("U:libstdc++:libstdcxx:throw", true),
        ("U:libstdc++:thr*", true),
        ("U:libstdc++:other:throw", false),
        ("U:libstdc++:throwing", false),
    ] {
        let selection = select(&Spec::parse(text).unwrap(), &image);
        assert_eq!(!selection.selected.is_empty(), matches, "{text}");
        for selected in &selection.selected {
            assert_eq!(
                selected.mark.as_ref().map(image::Mark::full_name).as_deref(),
                Some("libstdcxx:throw"),
                "{text}"
            );
        }
    }
}
