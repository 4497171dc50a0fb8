//! Implementations that an ifunc can stand for, by their names.
//!
//! For:     probing `memcpy`, whose symbol is that of a resolver.
//! State:   none.
//! Context: control.
//! Keeps:   I1 a name is an implementation only if every word behind the ifunc's is one for a processor
//!          feature or a way to copy.
//! Checked: tests below, tests/select.rs.

use crate::{ElfImage, Function, FunctionKind, SymbolName};

/// Words that C libraries append to the names of implementations.
const WORDS: &[&str] = &[
    "sse2",
    "sse3",
    "ssse3",
    "sse4",
    "sse41",
    "sse42",
    "1",
    "2",
    "avx",
    "avx2",
    "avx512",
    "evex",
    "evex256",
    "evex512",
    "fma",
    "fma4",
    "erms",
    "fsrm",
    "rtm",
    "unaligned",
    "aligned",
    "no",
    "vzeroupper",
    "slow",
    "fast",
    "generic",
    "c",
    "syscall",
    "vsyscall",
    "movbe",
    "bmi",
    "bmi2",
    "lzcnt",
    "popcnt",
    "opt",
    "mmx",
    "asimd",
    "neon",
    "sve",
    "mte",
    "mops",
    "a64fx",
    "falkor",
    "thunderx",
    "thunderx2",
    "nonshared",
    "zva64",
    "kunpeng",
    "emag",
    "oryon1",
];

/// The functions that the ifunc `name` can stand for, each with the name that says so.
pub(super) fn implementations<'a>(image: &'a ElfImage, name: &str) -> Vec<(&'a Function, &'a SymbolName)> {
    let candidates = image.functions().iter().filter(|f| f.kind == FunctionKind::Func);
    candidates.filter_map(|f| Some((f, f.names.iter().find(|n| is_implementation(&n.text, name))?))).collect()
}

fn is_implementation(candidate: &str, name: &str) -> bool {
    let candidate = candidate.trim_start_matches('_');
    let Some(rest) = candidate.strip_prefix(name.trim_start_matches('_')) else { return false };
    let Some(words) = rest.strip_prefix('_') else { return false };
    words.split('_').all(|w| WORDS.contains(&w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_for_processors_make_an_implementation() {
        assert!(is_implementation("__memcpy_avx_unaligned_erms", "memcpy"));
        assert!(is_implementation("__strlen_sse2", "strlen"));
        assert!(is_implementation("time_syscall", "time"));
        assert!(!is_implementation("__memcpy_chk", "memcpy"));
        assert!(!is_implementation("__memcpy_chk_avx_unaligned", "memcpy"));
        assert!(!is_implementation("memcpy", "memcpy"));
        assert!(!is_implementation("strlen_of", "strlen"));
    }
}
