//! `cargo xtask fences`: every fence has a name and a partner.
//!
//! For:     style 8.2.
//! State:   none.
//! Context: control.
//! Keeps:   V1 a label marks one place. V2 pairing is mutual. V3 an ordering other than relaxed has a
//!          label in the lines above it, or its file says `Orderings:` and why it needs none.
//! Checked: tests below.

use crate::sources::{self, Source};
use std::collections::BTreeMap;

/// How far above an ordering its label may stand.
const NEAR: usize = 12;

/// Crates whose orderings are checked: those that run in a target.
const IN_TARGET: [&str; 12] = [
    "crates/rcu",
    "crates/percpu",
    "crates/coll",
    "crates/objcache/src",
    "crates/map/src",
    "crates/wire",
    "crates/runtime",
    "crates/agent",
    "crates/text",
    "crates/hwbp",
    "crates/probe",
    "crates/trap",
];

#[derive(Default)]
struct Label {
    places: Vec<String>,
    pairs: Vec<String>,
}

pub fn run() -> bool {
    let sources = sources::all();
    let complaints = check(&sources);
    for complaint in &complaints {
        eprintln!("xtask fences: {complaint}");
    }
    let labels = labels(&sources);
    println!("fences: {} labels in {} files, {} complaints", labels.len(), sources.len(), complaints.len());
    complaints.is_empty()
}

fn check(sources: &[Source]) -> Vec<String> {
    let labels = labels(sources);
    let mut out = Vec::new();
    for (name, label) in &labels {
        if label.places.len() != 1 {
            out.push(format!("[{name}] marks {} places: {}", label.places.len(), label.places.join(", ")));
        }
        if label.pairs.is_empty() {
            out.push(format!("[{name}] at {} pairs with nothing", label.places.join(", ")));
        }
        for partner in &label.pairs {
            match labels.get(partner) {
                None => out.push(format!("[{name}] pairs with [{partner}], which is nowhere")),
                Some(other) if !other.pairs.contains(name) => {
                    out.push(format!("[{name}] pairs with [{partner}], but not the reverse"));
                }
                Some(_) => {}
            }
        }
    }
    for source in sources.iter().filter(|s| IN_TARGET.iter().any(|dir| s.path.starts_with(dir))) {
        out.extend(unlabelled(source));
    }
    out
}

/// `[NAME-1]` at the start of a comment defines a label; those after "Pairs with" are its partners.
fn labels(sources: &[Source]) -> BTreeMap<String, Label> {
    let mut out: BTreeMap<String, Label> = BTreeMap::new();
    for source in sources {
        for (i, line) in source.lines.iter().enumerate() {
            let Some(name) = defined(line) else { continue };
            let label = out.entry(name).or_default();
            label.places.push(format!("{}:{}", source.path.display(), i + 1));
            label.pairs.extend(partners(&source.lines[i..]));
        }
    }
    out
}

fn defined(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("// [")?;
    let (name, _) = rest.split_once(']')?;
    is_label(name).then(|| name.to_string())
}

fn is_label(name: &str) -> bool {
    name.split_once('-').is_some_and(|(word, number)| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()) && number.parse::<u32>().is_ok()
    })
}

fn partners(lines: &[String]) -> Vec<String> {
    let comment = lines
        .iter()
        .enumerate()
        .take_while(|(i, line)| line.trim_start().starts_with("//") && (*i == 0 || defined(line).is_none()));
    let text: Vec<&str> = comment.map(|(_, line)| line.trim_start().trim_start_matches('/').trim()).collect();
    let text = text.join(" ");
    let Some((_, after)) = text.split_once("airs with") else { return Vec::new() };
    let sentence = after.split('.').next().unwrap_or("");
    sentence.split('[').skip(1).filter_map(|s| s.split(']').next()).map(String::from).collect()
}

fn unlabelled(source: &Source) -> Vec<String> {
    const STRONG: [&str; 6] = ["Acquire)", "Release)", "AcqRel)", "SeqCst)", "Acquire,", "Release,"];
    let mut out = Vec::new();
    let head: Vec<_> = source.lines.iter().take_while(|l| l.starts_with("//!")).collect();
    if head.iter().any(|line| line.contains("Orderings:")) {
        return out;
    }
    if source.path.ends_with("tests.rs") {
        return out;
    }
    let mut imports = false;
    for (i, line) in source.lines.iter().enumerate() {
        if line.trim() == "#[cfg(test)]" || line.contains("cfg(all(test") {
            break;
        }
        let code = line.split("//").next().unwrap_or("");
        imports |= ["use ", "pub use "].iter().any(|word| code.trim_start().starts_with(word));
        if imports {
            imports = !code.contains(';');
            continue;
        }
        // A field of a type that is called like an ordering is none.
        if code.contains(": Release,") || !STRONG.iter().any(|strong| code.contains(strong)) {
            continue;
        }
        let from = i.saturating_sub(NEAR);
        if !source.lines[from..i].iter().any(|l| defined(l).is_some()) {
            out.push(format!(
                "{}:{}: ordering without a label: {}",
                source.path.display(),
                i + 1,
                line.trim()
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: "crates/rcu/src/x.rs".into(), lines: text.lines().map(String::from).collect() }
    }

    #[test]
    fn a_pair_that_agrees_is_no_complaint() {
        let text = "// [A-1] Orders this.\n// Pairs with [A-2].\nfence(SeqCst);\n// [A-2] Pairs with [A-1].\nx(Acquire)";
        assert_eq!(check(&[source(text)]), Vec::<String>::new());
    }

    #[test]
    fn a_one_sided_pair_a_double_label_and_a_bare_ordering_are_found() {
        let one_sided = check(&[source(
            "// [A-1] Pairs with [A-2].\n// [A-2] Pairs with [A-3].\n// [A-3] Pairs with [A-2].",
        )]);
        assert_eq!(one_sided, ["[A-1] pairs with [A-2], but not the reverse"]);
        let twice = check(&[source("// [A-1] Pairs with [A-1].\n\n// [A-1] Pairs with [A-1].")]);
        assert!(twice[0].contains("marks 2 places"));
        assert!(check(&[source("x.load(Acquire)")])[0].contains("without a label"));
    }
}
