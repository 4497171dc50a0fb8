//! Bytes, heaps of words, and scripts with something wrong in them.
//!
//! For:     `generate`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `tests/lang.rs`.

use super::{correct, numbers, one};
use crate::rng::Rng;

/// The scripts of the language's own tests.
const SCRIPTS: &str = include_str!("../../../../lang/tests/scripts.txt");

/// What scripts are made of.
const WORDS: [&str; 72] = [
    "begin",
    "end",
    "uprobe:a:b",
    "interval:s:1",
    "usdt:a:b:c",
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
    "struct",
    "enum",
    "union",
    "sizeof",
    "typeof",
    "offsetof",
    "comptime",
    "count()",
    "hist(1)",
    "printf(\"%d\"",
    "str(",
    "(int8)",
    "(struct S *)",
    "#define X X\n",
];

/// Any text.
pub fn script(rng: &mut Rng) -> String {
    match rng.below(6) {
        0 => {
            let bytes: Vec<u8> = (0..rng.below(200)).map(|_| rng.next() as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        1 => {
            let words: Vec<&str> = (0..rng.below(60)).map(|_| one(rng, &WORDS)).collect();
            format!("begin {{ {} }}", words.join(" "))
        }
        2 => {
            let (a, b) = (some(rng), some(rng));
            let (i, j) = (cut(&a, rng.below(a.len() as u64 + 1)), cut(&b, rng.below(b.len() as u64 + 1)));
            format!("{}{}{}", &a[..i], one(rng, &WORDS), &b[j..])
        }
        _ => wrong(rng),
    }
}

/// A correct one, or one of the tests'.
fn some(rng: &mut Rng) -> String {
    let scripts: Vec<&str> = SCRIPTS.split("---\n").collect();
    match rng.below(3) {
        0 => correct::script(rng),
        1 => numbers::script(rng),
        _ => one(rng, &scripts).to_owned(),
    }
}

/// A few bytes or words of a script are others.
fn wrong(rng: &mut Rng) -> String {
    let mut text = some(rng);
    for _ in 0..1 + rng.below(5) {
        let at = cut(&text, rng.below(text.len() as u64 + 1));
        let end = cut(&text, at as u64 + rng.below(8));
        match rng.below(4) {
            0 => text.replace_range(at..end.max(at), ""),
            1 => text.insert_str(at, one(rng, &WORDS)),
            2 => text.insert(at, b"(){}[];$@\"/*&=,.:x0 "[rng.below(20) as usize] as char),
            _ => text.replace_range(at..end.max(at), one(rng, &WORDS)),
        }
    }
    text
}

/// The next place at or before `at` where a character begins.
fn cut(text: &str, at: u64) -> usize {
    let at = (at as usize).min(text.len());
    (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}
