//! Texts that are deep, long, or grow: refused, or accepted and lowered; never a panic, never without end.
//!
//! Scripts made by chance are torture's: `nanoprobe torture lang`.

use lang::{Nowhere, Options, Request, check, formatted, lower};

fn try_text(text: &str) {
    let mut request = Request::of(text);
    request.safe = false;
    request.has_target = true;
    request.params = vec!["5".into(), "word".into()];
    // An accepted program is complete: the checks of `tests/check.rs` hold for it; a refused one says why.
    match check(&request, &mut Nowhere) {
        Ok(program) => {
            assert!(program.types.len() < 5_000_000);
            // Lowered, it is programs that crate `bpf` has taken, of a bounded size; or it is said why not.
            match lower(
                &program,
                Options { says_failures: text.len().is_multiple_of(2), ..Options::default() },
            ) {
                Ok(script) => assert!(script.scratch < 1 << 24 && script.constants.len() < 1 << 24),
                Err(error) => assert!(!error.show(&program.sources).is_empty()),
            }
        }
        Err(refused) => assert!(!refused.show().is_empty()),
    }
    if let Ok(new) = formatted("x", text) {
        assert_eq!(formatted("x", &new).expect("it was formatted once"), new, "{text}");
    }
}

#[test]
fn deep_and_long_texts_are_refused_or_read() {
    for (open, close) in [
        ("(", ")"),
        ("{", "}"),
        ("(1,", ")"),
        ("-", ""),
        ("!", ""),
        ("sizeof(", ")"),
        ("(typeof(", "))1"),
        ("f(", ")"),
        ("@m[", "]"),
        ("1 + ", "1"),
        ("1 ? ", " : 1"),
        ("if (1) {", "}"),
        ("comptime ", ""),
        ("(a=", ")"),
        ("(int8)", "1"),
    ] {
        for n in [10, 100, 1_000, 50_000] {
            try_text(&format!("begin {{ $a = {}1{}; }}", open.repeat(n), close.repeat(n)));
        }
    }
    let sum = (0..5_000).map(|_| "1").collect::<Vec<_>>().join(" + ");
    try_text(&format!("begin {{ $a = {sum}; }}"));
    try_text(&format!("begin {{ {} }}", "$a = 1; ".repeat(5_000)));
    try_text(&format!("struct A {{ {} }}; begin {{ }}", "int a[1000000]; ".repeat(50)));
}

#[test]
fn macros_can_not_grow_without_end() {
    let mut text = String::from("macro m0(x) { x + x }\n");
    for i in 1..40 {
        text += &format!("macro m{i}(x) {{ m{}(x) + m{}(x) }}\n", i - 1, i - 1);
    }
    let refused = check(&Request::of(format!("{text} begin {{ print(m39(1)); }}")), &mut Nowhere);
    assert!(refused.is_err_and(|e| e.show().contains("expressions after macro expansion")));
    let round = "macro a(x) { b(x) } macro b(x) { a(x) } begin { print(a(1)); }";
    let refused = check(&Request::of(round), &mut Nowhere);
    assert!(refused.is_err_and(|e| e.show().contains("Recursive macro call")));
}
