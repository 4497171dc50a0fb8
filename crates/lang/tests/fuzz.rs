//! Random bytes, mutated scripts and heaps of words: refused, or accepted and lowered; never a panic, never without end.
//!
//! `NANOPROBE_LANG_SECONDS=600 cargo test -p nanoprobe-lang --test fuzz` runs it for so long with further seeds.

use lang::{Nowhere, Options, Request, check, formatted, lower};

const SCRIPTS: &str = include_str!("scripts.txt");

/// What scripts are made of.
const WORDS: &[&str] = &[
    "begin",
    "end",
    "uprobe:a:b",
    "interval:s:1",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ":",
    "..",
    ".",
    "->",
    "$a",
    "$b",
    "$1",
    "$#",
    "@",
    "@m",
    "@m[1]",
    "1",
    "0x",
    "1e9",
    "18446744073709551615",
    "-1",
    "\"s\"",
    "\"",
    "+",
    "-",
    "*",
    "/",
    "%",
    "<<",
    ">>=",
    "==",
    "=",
    "+=",
    "++",
    "--",
    "!",
    "~",
    "&",
    "&&",
    "|",
    "?",
    "?:",
    "if",
    "else",
    "while",
    "for",
    "unroll",
    "let",
    "macro",
    "config",
    "import",
    "struct",
    "enum",
    "union",
    "sizeof",
    "typeof",
    "typeinfo",
    "offsetof",
    "comptime",
    "count()",
    "hist(1)",
    "printf(\"%d\"",
    "print(",
    "str(",
    "(int8)",
    "(struct S *)",
    "#define X X\n",
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

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

fn one(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let scripts: Vec<&str> = SCRIPTS.split("---\n").collect();
    let text = match seed % 4 {
        0 => {
            let len = random.below(200);
            let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        1 => {
            let mut text = String::from("begin { ");
            for _ in 0..random.below(60) {
                text += WORDS[random.below(WORDS.len())];
                text += " ";
            }
            text + "}"
        }
        2 => {
            let mut bytes = scripts[random.below(scripts.len())].as_bytes().to_vec();
            for _ in 0..1 + random.below(6) {
                let at = random.below(bytes.len());
                match random.below(3) {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, b"(){}[];$@\"/*&=,.:x0 "[random.below(20)]),
                    _ => bytes[at] = random.below(128) as u8,
                }
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => {
            let (a, b) = (scripts[random.below(scripts.len())], scripts[random.below(scripts.len())]);
            let cut = |s: &str, n: usize| (0..=n).rev().find(|i| s.is_char_boundary(*i)).unwrap_or(0);
            let (i, j) = (cut(a, random.below(a.len())), cut(b, random.below(b.len())));
            format!("{}{}{}", &a[..i], WORDS[random.below(WORDS.len())], &b[j..])
        }
    };
    try_text(&text);
}

#[test]
fn no_text_brings_it_down() {
    let seconds = std::env::var("NANOPROBE_LANG_SECONDS").ok().and_then(|s| s.parse::<u64>().ok());
    let begun = std::time::Instant::now();
    let mut seed = 0;
    while seconds.map_or(seed < 3_000, |s| begun.elapsed().as_secs() < s) {
        one(seed);
        seed += 1;
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
