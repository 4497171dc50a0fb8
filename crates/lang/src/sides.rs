//! Which programs of a script have to be on one side, where some places are in a process and others under the kernel's probes.
//!
//! For:     whoever attaches: each side has maps of its own, and what both have made is put together where it is read.
//! State:   none.
//! Context: control.
//! Keeps:   S1 a map that is on both sides is one whose words add up: hits only take values into it, and who reads it runs where it
//!             was put together.
//!          S2 every other map is one side's: all programs that name it run there.
//! Checked: tests below; testkit `sides`.

use crate::MapKind;
use crate::program::{Event, Script};
use crate::types::{Agg, Type};
use bpf::helper::{self, FIRST_MAP};
use bpf::{Callee, Op, Program, Reg, Wide};
use std::collections::{BTreeMap, BTreeSet};

/// What a program does with a map, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// It takes values into it.
    Adds,
    /// It goes by what is there.
    Reads,
    /// It changes that, or it is not known.
    Changes,
}

/// The programs and maps of a script that are on one side as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Programs, those of the controller among them.
    pub programs: BTreeSet<usize>,
    /// Maps.
    pub maps: BTreeSet<usize>,
}

impl Side {
    /// What has to be there whole if these programs run there at some of their places.
    ///
    /// Empty if all that they do adds up.
    pub fn of(script: &Script, programs: &BTreeSet<usize>) -> Side {
        let uses: Vec<BTreeMap<usize, Use>> =
            script.probes.iter().map(|probe| uses(&probe.program)).collect();
        let is_at_hits = |program: usize| matches!(script.probes[program].event, Event::Target(_));
        let adds_up = |map: usize| {
            let decl = &script.maps[map];
            let is_sum = matches!(decl.value, Type::Agg(agg) if !matches!(agg, Agg::Tseries { .. }));
            let may = |program: usize, how: &Use| match is_at_hits(program) {
                true => *how == Use::Adds,
                false => *how <= Use::Reads,
            };
            let all = uses.iter().enumerate().filter_map(|(program, of)| Some((program, of.get(&map)?)));
            is_sum && decl.kind == MapKind::Hash && all.into_iter().all(|(program, how)| may(program, how))
        };
        let mut side = Side::default();
        let mut waiting: Vec<usize> = programs.iter().copied().collect();
        while let Some(program) = waiting.pop() {
            for (map, how) in &uses[program] {
                // Who is moved reads what is there alone.
                let is_whole = !adds_up(*map) || !is_at_hits(program) && *how > Use::Adds;
                if !is_whole {
                    continue;
                }
                side.programs.insert(program);
                if side.maps.insert(*map) {
                    let others = (0..uses.len()).filter(|other| uses[*other].contains_key(map));
                    waiting.extend(others.filter(|other| side.programs.insert(*other)));
                }
            }
        }
        side
    }
}

/// The maps that a program names, in order.
pub fn named(program: &Program) -> impl Iterator<Item = usize> {
    uses(program).into_keys()
}

fn uses(program: &Program) -> BTreeMap<usize, Use> {
    let mut found: BTreeMap<usize, Use> = BTreeMap::new();
    let mut told = |map: usize, how: Use| {
        let known = found.entry(map).or_insert(how);
        *known = how.max(*known);
    };
    // The map that r1 holds, on the way to a call.
    let mut held = None;
    for (_, op) in program.ops() {
        match op {
            Op::Call(Callee::Helper(number)) => {
                if let Some(map) = held.take() {
                    told(map, how(number));
                }
            }
            Op::Wide { dst, wide } => {
                let is_held = dst == Reg::R1;
                let before = if is_held { held.take() } else { None };
                let map = match wide {
                    Wide::MapIndex(number) | Wide::MapValueIndex { index: number, .. } => {
                        usize::try_from(number - FIRST_MAP).ok()
                    }
                    _ => None,
                };
                match map {
                    Some(map) if is_held => held = Some(map),
                    Some(map) => told(map, Use::Changes),
                    None => {}
                }
                before.into_iter().for_each(|map| told(map, Use::Changes));
            }
            op if op.written() == Some(Reg::R1) => {
                held.take().into_iter().for_each(|map| told(map, Use::Changes));
            }
            _ => {}
        }
    }
    held.into_iter().for_each(|map| told(map, Use::Changes));
    found
}

fn how(helper: u32) -> Use {
    match helper {
        helper::AGGREGATE | helper::WORD_AGGREGATE => Use::Adds,
        helper::AGGREGATED
        | helper::MAP_LOOKUP
        | helper::WORD_LOOKUP
        | helper::MAP_NEXT
        | helper::MAP_LEN => Use::Reads,
        _ => Use::Changes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Nowhere, Options, Request, check, lower};

    /// The programs and maps that are on one side whole if the programs at `/x:a` have a place there.
    fn whole(text: &str) -> (Vec<usize>, Vec<String>) {
        let mut request = Request::of(text);
        request.has_target = true;
        let checked = check(&request, &mut Nowhere).unwrap_or_else(|why| panic!("{text}: {}", why.show()));
        let script = lower(&checked, Options::default()).unwrap();
        let at = |n: &usize| script.probes[*n].name.ends_with(":/x:a");
        let programs: BTreeSet<usize> = (0..script.probes.len()).filter(at).collect();
        let side = Side::of(&script, &programs);
        let names = side.maps.iter().map(|map| script.maps[*map].name.clone());
        (side.programs.iter().copied().collect(), names.collect())
    }

    #[test]
    fn what_adds_up_is_on_both_sides() {
        for text in [
            "uprobe:/x:a, uprobe:/x:b { @ = count(); }",
            "uprobe:/x:a { @[comm, arg0] = hist(arg1); } uprobe:/x:b { @[comm, arg0] = hist(arg2); }",
            "uprobe:/x:a { @ = max(arg0); @b = avg(arg1); printf(\"%d\", arg0); } interval:s:1 { print(@); clear(@); zero(@b); }",
            "uprobe:/x:a { @[arg0] = count(); } end { for ($kv : @) { print($kv); } if (len(@) > 2) { print(1) } }",
            "uprobe:/x:a { @[arg0] = sum(arg1); } interval:s:1 { if (@[1] > 5) { exit() } @[2] = sum(7); }",
            // Who does not touch it.
            "uprobe:/x:a { @ = count(); } uprobe:/x:b { @t[tid] = nsecs; } uretprobe:/x:b { delete(@t, tid); }",
        ] {
            assert_eq!(whole(text), (vec![], vec![]), "{text}");
        }
    }

    #[test]
    fn what_does_not_is_one_sides_with_all_that_name_it() {
        for (text, programs, maps) in [
            ("uprobe:/x:a { @n++; }", vec![0], "@n"),
            (
                "uprobe:/x:a { @t[tid] = nsecs; } uretprobe:/x:a { @ns = hist(nsecs - @t[tid]); delete(@t, tid); }",
                vec![0, 1],
                "@t",
            ),
            (
                "uprobe:/x:a { @t[tid] = nsecs; } uprobe:/x:b { @c = count(); } uprobe:/x:d /@t[tid]/ { @c = count(); }",
                vec![0, 2],
                "@t",
            ),
            // By way of another map.
            (
                "uprobe:/x:a { @a = 1; } uprobe:/x:b { @b = @a; } uprobe:/x:d /@b/ { print(1); }",
                vec![0, 1, 2],
                "@a @b",
            ),
            // Hits that go by what is there, a key that goes.
            ("uprobe:/x:a { @ = count(); } uprobe:/x:b /@ > 5/ { print(1); }", vec![0, 1], "@"),
            ("uprobe:/x:a { @[arg0] = count(); } interval:s:1 { delete(@, 1); }", vec![0, 1], "@"),
            // The controller's program goes with a map, and with it what it reads.
            (
                "uprobe:/x:a { @l = arg0; @c = count(); } interval:s:1 { if (@c > @l) { exit() } }",
                vec![0, 1],
                "@l @c",
            ),
            ("uprobe:/x:a { @ = tseries(arg0, 1s, 3); }", vec![0], "@"),
            ("let @m = lruhash(5); uprobe:/x:a { @m[arg0] = count(); }", vec![0], "@m"),
        ] {
            let (found, names) = whole(text);
            assert_eq!((found, names.join(" ").as_str()), (programs, maps), "{text}");
        }
    }
}
