//! What specifications select in real files.

use std::path::Path;

use image::select::{Reason, Selected};
use image::{ElfImage, FunctionKind, NoMatch, Selection, Spec, select};

use crate::elf::library;
use crate::programs;

fn spec(function: &str) -> Spec {
    Spec::parse(&format!("u:x:{function}")).unwrap()
}

fn chosen<'a>(image: &'a ElfImage, function: &str) -> Selection<'a> {
    select(&spec(function), image)
}

/// The demangled names that are selected, sorted.
fn names(image: &ElfImage, function: &str) -> Vec<String> {
    let name = |s: &Selected<'_>| s.name.map(|n| n.demangled().into_owned()).unwrap_or_default();
    let mut names: Vec<_> = chosen(image, function).selected.iter().map(name).collect();
    names.sort();
    names
}

fn open(path: impl AsRef<Path>) -> ElfImage {
    ElfImage::open(path).unwrap()
}

#[test]
fn names_globs_and_expressions_select_functions_once() {
    let image = open(programs::sample());
    assert_eq!(names(&image, "handle_one"), ["handle_one"]);
    assert_eq!(names(&image, "handle_alias"), ["handle_alias"]);
    // handle_one and handle_alias are one function.
    assert_eq!(chosen(&image, "handle_*").selected.len(), 2);
    assert_eq!(chosen(&image, "/^(handle|classify)/").selected.len(), 3);
    assert_eq!(names(&image, "hand?e_t[a-w]o"), ["handle_two"]);
    assert!(chosen(&image, "Handle_one").selected.is_empty());
}

#[test]
fn offsets_move_into_the_function_and_not_past_it() {
    let image = open(programs::sample());
    let start = chosen(&image, "classify").selected[0].addr;
    assert_eq!(chosen(&image, "classify+4").selected[0].addr.0, start.0 + 4);
    let far = chosen(&image, "classify+0x10000");
    assert!(far.selected.is_empty());
    assert!(matches!(far.refused[0].reason, Reason::OffsetPastEnd { offset: 0x10000, .. }));
}

#[test]
fn an_address_is_taken_as_nm_prints_it() {
    let image = open(programs::sample());
    let start = chosen(&image, "classify").selected[0].addr;
    let by_address = chosen(&image, &format!("{start:#x}"));
    assert_eq!(by_address.selected[0].function.unwrap().name(), Some("classify"));
    assert_eq!(chosen(&image, "0x1").refused[0].reason, Reason::NotCode);
}

#[test]
fn versions_choose_between_functions_of_one_name() {
    let image = open(library("libc"));
    let old = chosen(&image, "memcpy@GLIBC_2.2.5");
    assert_eq!(old.selected.len(), 1);
    assert_eq!(old.selected[0].function.unwrap().kind, FunctionKind::Func);
    assert!(chosen(&image, "memcpy@GLIBC_9.9").selected.is_empty());
}

#[test]
fn an_ifunc_stands_for_its_implementations_or_is_refused() {
    let libc = open(library("libc"));
    let strlen = chosen(&libc, "strlen");
    let resolver = libc.functions().iter().find(|f| f.name() == Some("strlen")).unwrap();
    assert_eq!(resolver.kind, FunctionKind::Ifunc);
    assert!(strlen.selected.iter().all(|s| s.addr != resolver.addr));
    if strlen.selected.is_empty() {
        // No debug file is installed here.
        assert_eq!(strlen.refused[0].reason, Reason::Ifunc { resolver: resolver.addr });
    } else {
        assert!(strlen.selected.iter().all(|s| s.ifunc == Some(resolver)));
    }
    let sample = open(programs::sample());
    let pick = chosen(&sample, "pick");
    assert!(pick.selected.is_empty());
    assert!(matches!(pick.refused[0].reason, Reason::Ifunc { .. }));
    // Without any symbol of an implementation, in the file itself, libc's are refused.
    let bare = open(library("libc")).with_debug_root("/nonexistent");
    assert!(matches!(chosen(&bare, "strlen").refused[0].reason, Reason::Ifunc { .. }));
}

#[test]
fn places_that_no_probe_may_take_are_refused() {
    let image = open(programs::sample());
    let refused = chosen(&image, "sequence_start");
    assert!(matches!(refused.refused[0].reason, Reason::RestartableSequence { .. }));
    assert!(refused.selected.is_empty());
    assert_eq!(chosen(&image, "sequence_abort").selected.len(), 1);
    let data = image.data_in_code()[0].start;
    assert_eq!(chosen(&image, &format!("{:#x}", data.0 + 8)).refused[0].reason, Reason::Data);
    let musl = open(programs::sample_musl());
    assert_eq!(chosen(&musl, "__restore_rt").refused[0].reason, Reason::SignalReturn);
}

#[test]
fn labels_without_a_type_are_functions_if_the_unwind_table_says_so() {
    let image = open(programs::sample());
    let found = chosen(&image, "typeless_*");
    let by_name = |s: &Selected<'_>| s.function.unwrap().name() == Some("typeless_function");
    assert!(found.selected.len() == 1 && by_name(&found.selected[0]), "{found:?}");
    assert_eq!(found.selected[0].function.unwrap().size_bytes, 3);
    assert_eq!(found.refused[0].reason, Reason::Untyped);
    assert_eq!(names(&image, "typeless_label"), ["typeless_label"]);
}

#[test]
fn cpp_names_match_with_and_without_parameters_and_mangled() {
    let image = open(programs::thrower());
    let both = [
        "ns::Class::method(int)",
        "ns::Class::method(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&)",
    ];
    assert_eq!(names(&image, "\"ns::Class::method*\""), both);
    assert_eq!(names(&image, "ns::Class::method"), both);
    assert_eq!(names(&image, "\"ns::Class::method(int)\""), both[..1]);
    assert_eq!(names(&image, "_ZN2ns5Class6methodEi"), both[..1]);
    assert_eq!(names(&image, "_ZN2ns5Class6method*"), both);
    assert_eq!(names(&image, "ns::twice<int>"), ["ns::twice<int>(int)"]);
    assert_eq!(names(&image, "ns::Class::operator[]"), ["ns::Class::operator[](int) const"]);
    assert_eq!(names(&image, "ns::Class::operator+"), ["ns::Class::operator+(int) const"]);
    // Also a glob, but a name equals it letter by letter.
    assert_eq!(names(&image, "ns::Class::operator*"), ["ns::Class::operator*(int) const"]);
    assert_eq!(names(&image, "ns::Class::opera*").len(), 4);
    assert_eq!(names(&image, "ns::Class::Class"), ["ns::Class::Class(int)"]);
    assert_eq!(names(&image, "thrower"), ["thrower(int)"]);
    // A word in the types of parameters is not a word in the name.
    assert!(!names(&image, "*basic_string*").contains(&both[1].to_owned()));
}

#[test]
fn rust_names_match_with_and_without_their_hash() {
    for scheme in ["legacy", "v0"] {
        let image = open(programs::rust(scheme));
        let full = "names::shop::Till::ring".to_owned();
        let crate_name = format!("names_{scheme}");
        let ring = ["names", crate_name.as_str()].map(|c| names(&image, &format!("{c}::shop::Till::ring")));
        let v0_form = names(&image, "*shop::Till*::ring");
        assert!(!v0_form.is_empty() || ring.iter().any(|r| !r.is_empty()), "{scheme} {full}");
        assert!(!names(&image, "*shop::total*").is_empty(), "{scheme}");
    }
    let image = open(programs::rust("legacy"));
    let ring = chosen(&image, "*shop::Till::ring");
    let mangled = &ring.selected[0].name.unwrap().text;
    assert_eq!(names(&image, mangled).len(), 1);
    let hash = mangled.rsplit("17h").next().unwrap().trim_end_matches('E');
    assert_eq!(names(&image, &format!("*shop::Till::ring::h{hash}")).len(), 1);
}

#[test]
fn go_names_with_stars_and_parentheses_are_exact() {
    let image = open(programs::go("hello", &[]));
    assert_eq!(names(&image, "main.(*Server).Handle"), ["main.(*Server).Handle"]);
    assert_eq!(names(&image, "main.classify"), ["main.classify"]);
    assert!(chosen(&image, "runtime.sigreturn*").selected.is_empty());
}

#[test]
fn a_name_that_is_not_there_is_answered_with_near_ones() {
    let libc = open(library("libc"));
    let near = |image: &ElfImage, function: &str| NoMatch::explain(&spec(function), image).unwrap();
    assert!(near(&libc, "maloc").near.contains(&"malloc".to_owned()));
    assert_eq!(near(&libc, "MALLOC").near[0], "malloc");
    assert!(near(&libc, "memcpy@GLIBC_1").near.iter().any(|n| n.starts_with("memcpy@")));
    let sample = open(programs::sample());
    assert!(near(&sample, "malloc").is_imported && !near(&sample, "malloc").is_stripped);
    assert!(near(&sample, "hidden_hepler").near.contains(&"hidden_helper".to_owned()));
    let bare = open(programs::stripped(&programs::sample()));
    assert!(near(&bare, "classify").is_stripped && near(&bare, "classify").named_functions == 0);
    let thrower = open(programs::thrower());
    assert!(near(&thrower, "Class::metod").near.iter().any(|n| n.contains("ns::Class::method")));
    assert!(NoMatch::explain(&spec("0x10"), &libc).is_none());
}

#[test]
fn messages_name_the_reason_and_the_facts() {
    let libc = open(library("libc"));
    let message = NoMatch::explain(&spec("maloc"), &libc).unwrap().to_string();
    assert!(message.contains("no function 'maloc'") && message.contains("malloc"), "{message}");
    let sample = open(programs::sample());
    let message = chosen(&sample, "pick").refused[0].reason.to_string();
    assert!(message.contains("ifunc") && message.contains("resolver"), "{message}");
    assert_eq!(sample.name_at(chosen(&sample, "classify+5").selected[0].addr).to_string(), "classify+0x5");
}
