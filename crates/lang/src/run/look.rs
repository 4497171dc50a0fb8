//! A look at the maps of a script while it runs.
//!
//! For:     a live view, beside the machine whose maps they are.
//! State:   none.
//! Context: control; between two steps of the machine.
//! Keeps:   L1 looking changes nothing: what the machine prints at its end is what it would have printed.
//! Checked: testkit `view`.

use super::maps::{Map, Shared};
use super::out::{Buffering, Format, Kept, Out};
use super::report::{self, How};
use crate::program::Script;

/// The maps that have elements, by name, as the end of a run prints them, but the largest elements first; with `top` so many of
/// them. As text, characters that a terminal would obey are escaped.
pub fn printed(script: &Script, maps: &Shared, format: Format, top: usize, trailer: &str) -> String {
    let kept = Kept::default();
    let mut out = Out::new(Box::new(kept.clone()), format, Buffering::Full, format == Format::Text);
    let mut all: Vec<Map> = each(script, maps).filter(|map| map.len() > 0).collect();
    all.sort_by(|a, b| a.decl.name.cmp(&b.decl.name));
    for map in &all {
        report::map(&mut out, script, map, How { top, div: 1, trailer, is_real: true, is_falling: true });
    }
    out.flush();
    kept.text()
}

/// How many elements each map has, by name.
pub fn lengths(script: &Script, maps: &Shared) -> Vec<(String, usize)> {
    let mut all: Vec<(String, usize)> =
        each(script, maps).map(|map| (map.decl.name.clone(), map.len())).collect();
    all.sort();
    all
}

/// Removes all elements of all maps.
pub fn clear(script: &Script, maps: &Shared) {
    each(script, maps).for_each(|map| map.clear());
}

fn each<'a>(script: &'a Script, maps: &'a Shared) -> impl Iterator<Item = Map> + 'a {
    script.maps.iter().enumerate().map(|(number, decl)| Map::new(decl.clone(), number, maps))
}
