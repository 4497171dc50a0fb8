//! Implementations that an ifunc can stand for: by their names, and by what a process chose.
//!
//! For:     probing `memcpy`, whose symbol is that of a resolver.
//! State:   none.
//! Context: control.
//! Keeps:   I1 a name is an implementation only if every word behind the ifunc's is one for a processor
//!          feature or a way to copy.
//! Checked: tests below, tests/suite/select.rs.

use crate::{Addr, ElfImage, Function, FunctionKind, ImageAddr, Module, SymbolName};

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

/// The implementation of `ifunc` that a process chose, `None` if no slot tells yet.
///
/// The slots of the ifunc's own image are read first, then those of `others` that ask for one of its names.
/// `read` gives 8 bytes of the process's memory. A slot that was not filled yet, or that leads to another
/// image's function of the same name, does not count.
pub fn chosen_implementation(
    ifunc: &Function,
    owner: (&Module, &ElfImage),
    others: &[(&Module, &ElfImage)],
    mut read: impl FnMut(Addr) -> Option<u64>,
) -> Option<ImageAddr> {
    let (module, image) = owner;
    let plt = image.plt_ranges();
    let mut answer = |slot: Addr| {
        let to = module.image_addr(Addr(read(slot)?));
        let is_answer = to != ifunc.addr && image.is_code(to) && !plt.iter().any(|p| p.contains(&to));
        is_answer.then_some(to)
    };
    let own = image.irelative_slots().iter().filter(|s| s.resolver == ifunc.addr);
    if let Some(found) = own.into_iter().find_map(|s| answer(module.addr(s.slot))) {
        return Some(found);
    }
    let all = std::iter::once(&owner).chain(others);
    for (asking, asking_image) in all {
        for name in &ifunc.names {
            let slots = asking_image.import_slots(&name.text);
            if let Some(found) = slots.map(|s| asking.addr(s.slot)).find_map(&mut answer) {
                return Some(found);
            }
        }
    }
    None
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
