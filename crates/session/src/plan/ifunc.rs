//! Which implementation of an ifunc the loader has chosen in a process.
//!
//! For:     `Planner::resolve`: of several functions of one name the one that runs.
//! State:   none.
//! Context: control.
//! Keeps:   I1 what no slot tells is not guessed.
//! Checked: testkit `counting` (`wcsnlen`), image's `ifunc` tests.

use super::Planner;
use image::select::chosen_implementation;
use image::{ElfImage, ImageAddr, Module, Reason};
use std::collections::BTreeMap;

impl Planner<'_> {
    /// For each ifunc's resolver, the implementation that the loader chose in this process, where a slot
    /// tells.
    pub(super) fn choices(&self, owner: usize, resolvers: &[u64]) -> BTreeMap<u64, u64> {
        let mut choices = BTreeMap::new();
        if resolvers.is_empty() {
            return choices;
        }
        let (module, image) = (self.module(owner), &self.images[&owner].image);
        let modules = self.process.modules.iter().enumerate();
        let others: Vec<(&Module, ElfImage)> = modules
            .filter(|(i, _)| *i != owner)
            .filter_map(|(_, m)| Some((m, m.open(self.process.pid).ok()?)))
            .collect();
        let others: Vec<(&Module, &ElfImage)> = others.iter().map(|(m, i)| (*m, i)).collect();
        let read = |at: image::Addr| self.memory.word(at.0);
        for resolver in resolvers {
            let Some(ifunc) = image.function_at(ImageAddr(*resolver)) else { continue };
            if let Some(chosen) = chosen_implementation(ifunc, (module, image), &others, read) {
                choices.insert(*resolver, chosen.0);
            }
        }
        choices
    }
}

/// The resolvers of the ifuncs that a selection has met.
pub(super) fn resolvers(selection: &image::Selection<'_>) -> Vec<u64> {
    let selected = selection.selected.iter().filter_map(|s| Some(s.ifunc?.addr.0));
    let refused = selection.refused.iter().filter_map(|r| match r.reason {
        Reason::Ifunc { resolver } => Some(resolver.0),
        _ => None,
    });
    let mut all: Vec<u64> = selected.chain(refused).collect();
    all.sort_unstable();
    all.dedup();
    all
}
