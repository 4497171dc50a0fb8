use super::*;

fn parsed(text: &str) -> Spec {
    Spec::parse(text).unwrap_or_else(|e| panic!("{e}"))
}

fn function(text: &str) -> (Library, String, Option<String>, u64) {
    let spec = parsed(text);
    let Place::Function(f) = spec.place else { panic!("{text} is an address") };
    (spec.library, f.pattern.to_string(), f.version, f.offset)
}

fn named(name: &str) -> Library {
    Library::Named(name.to_owned())
}

#[test]
fn every_written_form_of_a_function_is_read() {
    let cases = [
        ("u:libc:malloc", named("libc"), "malloc", None, 0),
        ("uprobe:libc:malloc", named("libc"), "malloc", None, 0),
        ("u::main", Library::Main, "main", None, 0),
        ("u:/bin/a:f+0x12", named("/bin/a"), "f", None, 0x12),
        ("u:a:f+18", named("a"), "f", None, 18),
        ("u:libc:memcpy@GLIBC_2.2.5", named("libc"), "memcpy", Some("GLIBC_2.2.5"), 0),
        ("u:libc:memcpy@@GLIBC_2.14+4", named("libc"), "memcpy", Some("GLIBC_2.14"), 4),
        ("u:a:\"ns::Class::method*\"", named("a"), "ns::Class::method*", None, 0),
        ("u:a:\"ns::f(int, char)\"+0x4", named("a"), "ns::f(int, char)", None, 4),
        ("u:a:ns::f", named("a"), "ns::f", None, 0),
        ("u:a:cpp:\"ns::f\"", named("a"), "ns::f", None, 0),
        ("u:a:ns::C::operator+", named("a"), "ns::C::operator+", None, 0),
        ("u:libc:/^mem(cpy|set)$/", named("libc"), "/^mem(cpy|set)$/", None, 0),
        ("u:a:/a\\/b/+4", named("a"), "/a\\/b/", None, 4),
        ("u:\"/a:b\":f", named("/a:b"), "f", None, 0),
        ("u:a b:f", named("a b"), "f", None, 0),
        ("u:a:main.(*T).M", named("a"), "main.(*T).M", None, 0),
        ("u:a:foo.part.0", named("a"), "foo.part.0", None, 0),
    ];
    for (text, library, pattern, version, offset) in cases {
        let expected = (library, pattern.to_owned(), version.map(str::to_owned), offset);
        assert_eq!(function(text), expected, "{text}");
    }
}

#[test]
fn an_address_is_hexadecimal() {
    assert!(matches!(parsed("u:a:0x1234").place, Place::Address(ImageAddr(0x1234))));
    assert!(matches!(parsed("u:a:0xffffffffffff").place, Place::Address(ImageAddr(0xffff_ffff_ffff))));
}

#[test]
fn faults_point_at_their_column() {
    let cases = [
        ("", 1, SpecProblem::Empty),
        ("u:libc", 3, SpecProblem::NoFunction),
        ("u:libc:", 7, SpecProblem::EmptyFunction),
        ("u:libc:+4", 8, SpecProblem::EmptyFunction),
        ("u:libc:\"malloc", 8, SpecProblem::OpenQuote),
        ("u:libc:/mal", 8, SpecProblem::OpenRegex),
        ("u:libc:malloc+0xzz", 14, SpecProblem::BadOffset),
        ("u:libc:malloc+99999999999999999999", 14, SpecProblem::BadOffset),
        ("u:libc:1234", 8, SpecProblem::BadAddress),
        ("u:libc:0x12345678123456781", 8, SpecProblem::BadAddress),
        ("u:libc:\"a\"b", 11, SpecProblem::Trailing),
        ("malloc", 1, SpecProblem::NoKind { with_kind: "u:LIB:malloc".into() }),
        ("libc:malloc", 1, SpecProblem::UnknownKind { with_kind: Some("u:libc:malloc".into()) }),
        ("k:vfs_read", 1, SpecProblem::Kernel),
    ];
    for (text, column, problem) in cases {
        let error = Spec::parse(text).unwrap_err();
        assert_eq!((error.column(), &error.problem), (column, &problem), "{text}");
    }
    let error = Spec::parse("u:libc:/a(/").unwrap_err();
    assert!(matches!(error.problem, SpecProblem::BadRegex(_)));
    assert_eq!(Spec::parse("u:lïb:\"x").unwrap_err().underlined(), "u:lïb:\"x\n      ^^");
}

#[test]
fn a_return_has_two_spellings_and_no_offset() {
    for text in ["ur:libc:malloc", "uretprobe:libc:malloc", "u:libc:malloc%return"] {
        let spec = Spec::parse(text).unwrap();
        assert_eq!(spec.when, When::Return, "{text}");
        let Place::Function(function) = &spec.place else { panic!("{text}") };
        assert!(function.pattern.matches("malloc") && !function.pattern.matches("malloc%return"), "{text}");
    }
    assert_eq!(parsed("u:libc:malloc").when, When::Before);
    for text in ["ur:libc:malloc+4", "ur:libc:0x1234", "u:libc:0x12%return"] {
        assert_eq!(Spec::parse(text).unwrap_err().problem, SpecProblem::ReturnOfInstruction, "{text}");
    }
}

#[test]
fn kinds_to_come_are_named_and_what_exists_is_said() {
    for (text, what) in [
        ("interval:s:1", "timers"),
        ("u:a:main.c:12", "source lines"),
        ("u:a@main.c:12", "source lines"),
        ("u:a:main@main.c", "source lines"),
    ] {
        let error = Spec::parse(text).unwrap_err();
        assert!(
            matches!(error.problem, SpecProblem::NotYet { what: w } if w.contains(what)),
            "{text}: {error}"
        );
        assert!(error.to_string().contains("not yet in this version"), "{error}");
        assert!(error.to_string().contains("(u:)"), "{error}");
    }
}

#[test]
fn a_watchpoint_is_sent_to_its_command_and_an_address_that_cannot_be_is_refused() {
    let error = Spec::parse("w:libc:environ:8:w").unwrap_err();
    assert!(matches!(error.problem, SpecProblem::Watchpoint), "{error:?}");
    assert!(error.to_string().contains("nanoprobe watch"), "{error}");
    for wrong in ["u:libc:0xffffffffffffffff", "u:libc:0x8000000000000000", "u:libc:0x10000000000000000"] {
        let error = Spec::parse(wrong).unwrap_err();
        assert!(matches!(error.problem, SpecProblem::BadAddress), "{wrong}: {error:?}");
    }
}

#[test]
fn other_tools_spellings_are_answered_with_ours() {
    for (text, tool, ours) in [
        ("pid$target:libc:malloc:entry", "DTrace", Some("u:libc:malloc")),
        ("pid$target::malloc:entry", "DTrace", Some("u:LIB:malloc")),
        ("pid123:libc.so.6:malloc:1c", "DTrace", Some("u:libc.so.6:malloc+0x1c")),
        ("u:libc:malloc:entry", "DTrace", Some("u:libc:malloc")),
        ("p:c:malloc", "bcc", Some("u:libc:malloc")),
        ("uprobe/libc.so.6:malloc", "libbpf", Some("u:libc.so.6:malloc")),
        ("libc.so.6!open*", "frida", Some("u:libc.so.6:open*")),
        ("u:libc.so.6!open", "frida", Some("u:libc.so.6:open")),
        ("process(\"/bin/a\").function(\"f\")", "SystemTap", Some("u:/bin/a:f")),
        ("u:libc:%sdt_x:y", "perf", None),
    ] {
        let error = Spec::parse(text).unwrap_err();
        let SpecProblem::Foreign { tool: named, here } = &error.problem else { panic!("{text}: {error}") };
        assert!(named.contains(tool), "{text}: {error}");
        assert_eq!(here.as_deref(), ours, "{text}");
        if let Some(ours) = ours {
            assert!(error.to_string().contains(ours));
            assert!(Spec::parse(ours).is_ok(), "{ours}");
        }
    }
}

#[test]
fn no_text_makes_the_parser_panic() {
    let pieces =
        ["u:", "ur:", "pid1:", "\"", "/", "+", "@", "0x", ":", "é", "*", "[", "]", "!", "%return", "a", "1"];
    for a in pieces {
        for b in pieces {
            for c in pieces {
                for text in [format!("{a}{b}{c}"), format!("u:{a}{b}{c}"), format!("u:l:{a}{b}{c}")] {
                    if let Err(e) = Spec::parse(&text) {
                        assert!(e.columns.end <= text.len() && e.columns.start <= e.columns.end, "{text}");
                        let _ = (e.to_string(), e.underlined());
                    }
                }
            }
        }
    }
}
