//! Jump tables outside code: where they may be, and what they hold.
//!
//! For:     `Flow`.
//! State:   the addresses that code forms, as met in a sweep.
//! Context: control.
//! Keeps:   G1 each address that may be a table is asked about once by itself, and once with each label of each function
//!          that forms both.
//! Checked: flow tests; tests/real `computed_jumps_of_vfprintf_are_known`; `torture anywhere`.

use std::collections::BTreeMap;
use std::ops::Range;

/// An address outside code at which a jump table may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its first entry.
    pub at: u64,
    /// What its entries, if they are 32-bit offsets, are added to: `at`, or a label in code.
    pub base: u64,
    /// The function that it does not lead out of, if `base` is a label.
    pub within: Option<Range<u64>>,
}

/// An instruction that forms an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lea {
    pub(crate) at: u64,
    pub(crate) to: u64,
}

/// What a sweep has met.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    tables: Vec<u64>,
    /// Those that lead outside code, and those that lead into it.
    outside: Vec<Lea>,
    inside: Vec<Lea>,
}

/// The labels of a function, and the addresses outside code that it forms.
#[derive(Default)]
struct Function {
    range: Range<u64>,
    labels: Vec<u64>,
    tables: Vec<u64>,
}

impl Tables {
    /// There may be a table at `at`.
    pub(crate) fn add(&mut self, at: u64) {
        self.tables.push(at);
    }

    pub(crate) fn add_lea(&mut self, lea: Lea, is_code: bool) {
        if is_code {
            return self.inside.push(lea);
        }
        self.tables.push(lea.to);
        self.outside.push(lea);
    }

    /// All that the tables hold; `function` gives the range of the function that holds an address.
    pub(crate) fn read(
        mut self,
        function: &dyn Fn(u64) -> Option<Range<u64>>,
        reader: &dyn Fn(&Table) -> Vec<u64>,
    ) -> Vec<u64> {
        self.tables.sort_unstable();
        self.tables.dedup();
        let mut found = Vec::new();
        let mut read = |table: Table| {
            let after = self.tables.partition_point(|at| *at <= table.at);
            found.extend(reader(&table).into_iter().take(table_limit(table.at, &self.tables[after..])));
        };
        self.tables.iter().for_each(|at| read(Table { at: *at, base: *at, within: None }));
        for mut function in self.functions_with_labels(function) {
            sort(&mut function.labels);
            sort(&mut function.tables);
            for at in &function.tables {
                for base in &function.labels {
                    read(Table { at: *at, base: *base, within: Some(function.range.clone()) });
                }
            }
        }
        found
    }

    /// A function that forms the address of a place within it jumps there in some way: glibc's vfprintf adds entries of
    /// its tables to one.
    fn functions_with_labels(&self, function: &dyn Fn(u64) -> Option<Range<u64>>) -> Vec<Function> {
        let mut found: BTreeMap<u64, Function> = BTreeMap::new();
        for lea in &self.inside {
            let Some(range) = function(lea.at).filter(|r| r.contains(&lea.to) && r.start != lea.to) else {
                continue;
            };
            let start = range.start;
            let own = found.entry(start).or_insert_with(|| Function { range, ..Function::default() });
            own.labels.push(lea.to);
        }
        if found.is_empty() {
            return Vec::new();
        }
        for lea in &self.outside {
            let own = function(lea.at).and_then(|range| found.get_mut(&range.start));
            own.into_iter().for_each(|own| own.tables.push(lea.to));
        }
        found.into_values().collect()
    }
}

fn sort(list: &mut Vec<u64>) {
    list.sort_unstable();
    list.dedup();
}

/// How many 4-byte entries fit between a table and the next address, of those in `above`, that may be one.
///
/// Where a table ends is not written anywhere, and tables stand side by side: without this, each would be read on
/// through its successors with the wrong base (17 M targets that are none in librustc_driver).
fn table_limit(table: u64, above: &[u64]) -> usize {
    const ENTRY_BYTES: u64 = 4;
    let next = above.iter().find(|next| (*next - table).is_multiple_of(ENTRY_BYTES));
    next.map_or(usize::MAX, |next| ((next - table) / ENTRY_BYTES) as usize)
}
