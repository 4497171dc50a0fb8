//! Programs of other languages, also without their symbols.

use image::{ElfImage, Source};

use crate::programs::{self, tool};

#[test]
fn a_go_program_is_known_as_one_and_has_the_functions_of_its_own_tool() {
    let path = programs::go("hello", &[]);
    let image = ElfImage::open(&path).unwrap();
    assert!(image.is_go() && image.is_static() && image.is_fixed());
    let listing = tool("go", &["tool", "nm", path.to_str().unwrap()]);
    let mut missing = Vec::new();
    let is_function = |l: &&str| (l.contains(" T ") || l.contains(" t ")) && !l.ends_with("runtime.etext");
    for line in listing.lines().filter(is_function) {
        let mut fields = line.split_whitespace();
        let addr = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
        if image.is_code(image::ImageAddr(addr)) && image.function_at(image::ImageAddr(addr)).is_none() {
            missing.push(line);
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_stripped_go_program_keeps_its_names() {
    for (name, extra) in
        [("hello-bare", ["-ldflags=-s -w", "-trimpath"]), ("hello-pie", ["-buildmode=pie", "-ldflags=-s -w"])]
    {
        let full_name = if name == "hello-bare" { "hello" } else { "hello-pie-full" };
        let full_flags: &[&str] = if name == "hello-bare" { &[] } else { &["-buildmode=pie"] };
        let full = ElfImage::open(programs::go(full_name, full_flags)).unwrap();
        let bare = ElfImage::open(programs::go(name, &extra)).unwrap();
        let handle = |image: &ElfImage| {
            let f = image.functions().iter().find(|f| f.name() == Some("main.(*Server).Handle")).cloned();
            f.unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(handle(&bare).source, Source::GoTable);
        assert_eq!(handle(&bare).size_bytes.div_ceil(32), handle(&full).size_bytes.div_ceil(32), "{name}");
        // The same instructions stand there.
        let bytes = |image: &ElfImage| image.bytes(handle(image).addr, 8).unwrap().to_vec();
        assert_eq!(bytes(&bare), bytes(&full), "{name}");
    }
}

#[test]
fn a_stripped_go_program_with_c_inside_keeps_its_names_too() {
    let full = ElfImage::open(programs::go_with_c("withc", &[])).unwrap();
    let bare = ElfImage::open(programs::go_with_c("withc-bare", &["-ldflags=-s -w"])).unwrap();
    let code = |image: &ElfImage| {
        let f = image.functions().iter().find(|f| f.name() == Some("main.fromGo")).unwrap().clone();
        (image.bytes(f.addr, 8).unwrap().to_vec(), f.source)
    };
    let ((was, _), (is, source)) = (code(&full), code(&bare));
    assert_eq!((was, Source::GoTable), (is, source));
}

#[test]
fn go_continues_after_a_recovered_panic_at_a_known_place() {
    let path = programs::go("hello", &[]);
    let image = ElfImage::open(&path).unwrap();
    let recovers = image.functions().iter().find(|f| f.name() == Some("main.recovers")).unwrap();
    let calls =
        tool("objdump", &["-d", "--no-show-raw-insn", "--disassemble=main.recovers", path.to_str().unwrap()]);
    let deferreturn =
        calls.lines().find(|l| l.contains("call") && l.contains("runtime.deferreturn")).unwrap();
    let call = u64::from_str_radix(deferreturn.trim().split(':').next().unwrap(), 16).unwrap();
    let inside: Vec<_> = image.code_pointers().iter().filter(|p| recovers.range().contains(p)).collect();
    assert!(inside.iter().any(|p| p.0 == call || p.0 > call - 8 && p.0 <= call), "{inside:?} {call:#x}");
}

#[test]
fn musl_and_static_programs_have_their_libraries_functions() {
    for path in [programs::sample_static(), programs::sample_musl()] {
        let image = ElfImage::open(&path).unwrap();
        for name in ["malloc", "printf", "classify"] {
            assert!(
                image.functions().iter().any(|f| f.names.iter().any(|n| &*n.text == name)),
                "{path:?} {name}"
            );
        }
    }
}
