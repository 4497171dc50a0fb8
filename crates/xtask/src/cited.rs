//! `cargo xtask cited`: each check that a file's head names is there.
//!
//! For:     "which check would catch it" is worth nothing if that check was renamed or went.
//! State:   none.
//! Context: control.
//! Keeps:   X1 a test of testkit that is named has its file; a function that is named by four words or more is one; a file
//!          below `tests/` that is named is there, in any crate.
//! Checked: by running it; tests below.

use crate::sources;
use std::collections::BTreeSet;
use std::path::Path;

pub fn run() -> bool {
    let (everything, root) = (sources::everything(), sources::root());
    let functions: BTreeSet<&str> =
        everything.iter().flat_map(|source| &source.lines).filter_map(|line| function(line)).collect();
    let crates: Vec<_> =
        everything.iter().map(sources::Source::crate_dir).collect::<BTreeSet<_>>().into_iter().collect();
    let is_there = |name: &str| crates.iter().any(|dir| root.join(dir).join(name).exists());
    let (mut named, mut lost) = (0, 0);
    for source in &everything {
        let cited = cited(&checked(&source.lines));
        let tests = cited.tests.iter().filter(|name| {
            let is_file = is_there(&format!("tests/{name}.rs"));
            !is_file && !functions.contains(name.as_str())
        });
        let functions = cited.functions.iter().filter(|name| !functions.contains(name.as_str()));
        let files = cited.files.iter().filter(|name| !is_there(name));
        for name in tests.chain(functions).chain(files) {
            println!("{}: its head names {name}, which is not there", source.path.display());
            lost += 1;
        }
        named += cited.tests.len() + cited.functions.len() + cited.files.len();
    }
    println!("cited: {named} checks named in heads, {lost} not there");
    lost == 0 && named > 0
}

fn function(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// What stands behind `Checked:` in a file's head.
fn checked(lines: &[String]) -> String {
    let head = lines.iter().map_while(|line| line.strip_prefix("//!"));
    let mut behind = head.skip_while(|line| !line.trim_start().starts_with("Checked:"));
    let first = behind.next().unwrap_or("");
    let goes_on = |line: &&str| line.starts_with("     ");
    std::iter::once(first).chain(behind.take_while(goes_on)).collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Default, PartialEq)]
struct Cited {
    tests: Vec<String>,
    functions: Vec<String>,
    files: Vec<String>,
}

fn cited(text: &str) -> Cited {
    let mut cited = Cited::default();
    let mut is_of_testkit = false;
    // Every other piece stands between backticks.
    for (n, piece) in text.split('`').enumerate() {
        if n % 2 == 0 {
            let is_list = piece.chars().all(|c| c == ',' || c == ' ') || piece.trim() == "and";
            is_of_testkit = piece.trim_end().ends_with("testkit") || is_of_testkit && is_list;
            cited.files.extend(piece.split_whitespace().filter_map(file));
            continue;
        }
        if is_of_testkit {
            cited.tests.push(piece.to_string());
        } else if piece.matches('_').count() >= 3
            && piece.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            cited.functions.push(piece.to_string());
        } else {
            cited.files.extend(file(piece));
        }
    }
    cited
}

/// `tests/a`, `tests/a.rs` or `tests/a/b.rs`.
fn file(word: &str) -> Option<String> {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    (word.starts_with("tests/") && Path::new(word).components().count() > 1).then(|| word.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Cited, checked, cited, function};

    #[test]
    fn what_a_head_names_is_found() {
        let head = [
            "//! A thing.",
            "//!",
            "//! Checked: testkit `a`, `b`; session",
            "//!          `one_two_three_four` (K1), tests/c.rs.",
            "//! Source:  `not_of_the_checks`.",
        ];
        let text = checked(&head.map(String::from));
        let of = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = Cited {
            tests: of(&["a", "b"]),
            functions: of(&["one_two_three_four"]),
            files: of(&["tests/c.rs"]),
        };
        assert_eq!(cited(&text), all, "{text}");
    }

    #[test]
    fn functions_are_known_by_their_names() {
        assert_eq!(function("    pub(crate) fn it_is(self) -> u32 {"), Some("it_is"));
        assert_eq!(function("let x = 1;"), None);
    }
}
