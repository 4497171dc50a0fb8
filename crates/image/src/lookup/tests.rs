use super::*;

#[test]
fn stems_fit_versioned_names_and_nothing_longer() {
    for (file, asked) in [
        ("libc.so.6", "libc"),
        ("libc.so.6", "libc.so"),
        ("libc-2.31.so", "libc"),
        ("libssl.so.3", "libssl"),
        ("libssl.so.1.1", "libssl.so"),
        ("libc.so", "libc"),
    ] {
        assert!(has_stem(file, asked), "{file} {asked}");
    }
    for (file, asked) in [
        ("libcrypto.so.3", "libc"),
        ("libc++.so.1", "libc"),
        ("libc.so.6", "lib"),
        ("libssl.so.3", "libssl.so.1"),
    ] {
        assert!(!has_stem(file, asked), "{file} {asked}");
    }
    assert!(is_musl("ld-musl-x86_64.so.1", "libc") && !is_musl("ld-linux-x86-64.so.2", "libc"));
}

/// A cache with two entries, as ldconfig lays it out.
fn cache() -> Vec<u8> {
    let strings = b"libx.so.1\0/lib/libx.so.1\0liby.so\0/opt/liby.so\0";
    let strings_at = 48 + 2 * 24;
    let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
    for word in [2_u32, strings.len() as u32, 0, 0, 0, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    for (flags, name, path) in [(0x0303_u32, 0, 10), (0x0003, 25, 33)] {
        for word in [flags, strings_at + name, strings_at + path, 0, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.extend(strings);
    bytes
}

#[test]
fn a_cache_gives_names_paths_and_kinds() {
    let entries = parse_cache(&cache());
    let names: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.path.to_str().unwrap())).collect();
    assert_eq!(names, [("libx.so.1", "/lib/libx.so.1"), ("liby.so", "/opt/liby.so")]);
    if std::env::consts::ARCH == "x86_64" {
        assert!(entries[0].is_for_this_machine() && !entries[1].is_for_this_machine());
    }
    // An older table in front shifts everything.
    let mut shifted = b"ld.so-1.7.0\0\0\0\0\0".to_vec();
    shifted.extend(cache());
    assert_eq!(parse_cache(&shifted), entries);
}

#[test]
fn a_broken_cache_gives_fewer_entries() {
    let good = cache();
    for len in 0..good.len() {
        assert!(parse_cache(&good[..len]).len() <= 2);
    }
    let mut bad = good.clone();
    bad[20..24].fill(0xff);
    assert!(parse_cache(&bad).len() >= 2);
    assert!(parse_cache(b"").is_empty());
}
