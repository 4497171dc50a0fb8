//! Jump tables outside code: where they may be, and what they hold; and jumps that are not understood.
//!
//! For:     `Flow`.
//! State:   the addresses that code forms, and the jumps to registers, as met in a sweep.
//! Context: control.
//! Keeps:   G1 each address outside code that is formed by a `lea`, or is the base of a scaled load, is asked about once
//!          by itself.
//!          G2 of a function that jumps to a sum, each address outside code and each place in it that it forms is also
//!          asked about with each such place as base; if these are more than [`PAIRS_MAX`], or the sum is of something
//!          else than 32-bit entries, nothing is known of where the jump leads, and the function is vague. A jump by a
//!          pointer counts as one to a sum where a way comes in between the pointer's making and the jump, and where
//!          the function forms addresses of places in itself.
//!          G3 work and memory are at most linear in the code: no function makes more than [`PAIRS_MAX`] questions.
//! Checked: flow tests; tests/real `computed_jumps_of_vfprintf_are_known`; tests/computed.rs; `torture anywhere`.

use std::ops::Range;

use crate::arch::native::{self, Made, Sum};
use crate::code::Code;
use crate::targets::Targets;

/// Tables times labels of one function that are read at most.
const PAIRS_MAX: usize = 1 << 14;

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

/// A jump or call to a register, or a return to what was pushed.
#[derive(Clone, Copy, Debug)]
struct Jump {
    at: u64,
    made: Made,
    is_call: bool,
}

/// What a sweep has met.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    tables: Vec<u64>,
    /// How long `tables` may get before equal ones are looked for.
    bound: usize,
    jumps: Vec<Jump>,
    /// Addresses in code that are formed: (by which instruction, the address).
    labels: Vec<(u64, u64)>,
}

/// A stretch in which a jump that is not understood may lead anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vague {
    pub(crate) range: Range<u64>,
    pub(crate) jump: u64,
}

/// What `Flow` knows of functions.
pub(crate) struct Functions<'a> {
    /// The function that holds an address, as far as its ends are known.
    pub(crate) holding: &'a dyn Fn(u64) -> Range<u64>,
    pub(crate) is_start: &'a dyn Fn(u64) -> bool,
}

impl Tables {
    /// There may be a table at `at`.
    pub(crate) fn add(&mut self, at: u64) {
        if self.tables.len() >= self.bound {
            self.tables.sort_unstable();
            self.tables.dedup();
            self.bound = (2 * self.tables.len()).max(1 << 16);
        }
        self.tables.push(at);
    }

    pub(crate) fn add_jump(&mut self, at: u64, made: Made, is_call: bool) {
        self.jumps.push(Jump { at, made, is_call });
    }

    /// The instruction at `by` forms the address of a place in code.
    pub(crate) fn add_label(&mut self, by: u64, at: u64) {
        self.labels.push((by, at));
    }

    /// Adds to `targets` all that the tables hold; returns where nothing is known. `go_on` is asked now and then.
    pub(crate) fn read(
        mut self,
        codes: &[Code<'_>],
        functions: &Functions<'_>,
        reader: &dyn Fn(&Table) -> Vec<u64>,
        targets: &mut Targets,
        go_on: &dyn Fn() -> bool,
    ) -> Option<Vec<Vague>> {
        self.tables.sort_unstable();
        self.tables.dedup();
        self.labels.retain(|(_, at)| !(functions.is_start)(*at));
        self.labels.sort_unstable();
        for (number, at) in self.tables.iter().enumerate() {
            let limit = table_limit(*at, &self.tables[number + 1..]);
            let table = Table { at: *at, base: *at, within: None };
            targets.extend(reader(&table).into_iter().take(limit));
            if number.is_multiple_of(1 << 10) && !go_on() {
                return None;
            }
        }
        let mut vague = Vec::new();
        for function in self.by_function(functions, targets) {
            if !go_on() {
                return None;
            }
            // Its tables are their own bases, and outside code: they were read above.
            if function.sum != Sum::Other && !self.may_have_labels(&function) {
                continue;
            }
            let mut formed = Formed::of(codes, &function.range, functions);
            if function.sum == Sum::Pointer {
                // A sum that was put away somewhere leads back into the function that made it.
                formed.labels.retain(|label| function.range.contains(label));
            }
            let is_clear = match function.sum {
                Sum::Pointer | Sum::Words | Sum::Unknown if formed.labels.is_empty() => true,
                Sum::Words => formed.pairs() <= PAIRS_MAX,
                Sum::Pointer => !formed.adds_narrow && formed.pairs() <= PAIRS_MAX,
                // As its other jumps, if it makes no sum of another kind anywhere.
                Sum::Unknown => function.has_words && !formed.adds_narrow && formed.pairs() <= PAIRS_MAX,
                Sum::Other => false,
            };
            if !is_clear {
                let elsewhere = formed.labels.iter().filter(|label| !function.range.contains(label));
                let places = std::iter::once(function.jump).chain(elsewhere.copied());
                vague.extend(places.map(|at| Vague { range: (functions.holding)(at), jump: function.jump }));
                continue;
            }
            let limited = formed.outside.iter().chain(&formed.labels).map(|at| {
                let after = self.tables.partition_point(|other| other <= at);
                (*at, table_limit(*at, &self.tables[after..]))
            });
            let limited: Vec<(u64, usize)> = limited.collect();
            for base in &formed.labels {
                // What is rarely run lies elsewhere, and jumps by labels of the function proper.
                let is_own = function.range.contains(base);
                let within = if is_own { function.range.clone() } else { (functions.holding)(*base) };
                for (at, limit) in &limited {
                    let table = Table { at: *at, base: *base, within: Some(within.clone()) };
                    targets.extend(reader(&table).into_iter().take(*limit));
                }
            }
        }
        Some(vague)
    }

    /// Whether the function may form an address of a place in code that is no function's start.
    fn may_have_labels(&self, function: &Jumps) -> bool {
        let range = &function.range;
        let from = self.labels.partition_point(|(by, _)| *by < range.start);
        let mut own = self.labels[from..].iter().take_while(|(by, _)| *by < range.end);
        own.any(|(_, at)| function.sum != Sum::Pointer || range.contains(at))
    }

    /// The jumps of each function as one, the least understood.
    fn by_function(&self, functions: &Functions<'_>, targets: &Targets) -> Vec<Jumps> {
        let mut found: Vec<Jumps> = Vec::new();
        for Jump { at, made, is_call } in &self.jumps {
            let range = (functions.holding)(*at);
            // On another way that comes in between, it is made otherwise.
            let is_joined = targets.first_in(made.from + 1..*at + 1).is_some();
            let mut sum = if is_joined { made.sum.max(Sum::Unknown) } else { made.sum };
            // A pointer to which something was added is seldom one to a place in a function, unless that forms such.
            if *is_call {
                sum = sum.min(Sum::Unknown);
            }
            let has_words = made.sum == Sum::Words;
            match found.last_mut() {
                Some(last) if last.range == range => {
                    (last.sum, last.jump) = (last.sum, last.jump).max((sum, *at));
                    last.has_words |= has_words;
                }
                _ => found.push(Jumps { range, sum, jump: *at, has_words }),
            }
        }
        found
    }
}

/// The jumps of one function.
struct Jumps {
    range: Range<u64>,
    sum: Sum,
    jump: u64,
    has_words: bool,
}

/// The addresses that a function forms.
struct Formed {
    /// In code, and no function's start.
    labels: Vec<u64>,
    outside: Vec<u64>,
    /// Somewhere it adds what it loaded from a byte or a word.
    adds_narrow: bool,
}

impl Formed {
    fn of(codes: &[Code<'_>], function: &Range<u64>, functions: &Functions<'_>) -> Formed {
        let (mut labels, mut outside) = (Vec::new(), Vec::new());
        let adds_narrow = native::formed(codes, function, &mut |to| match Code::holding(codes, to) {
            None => outside.push(to),
            Some(_) if !(functions.is_start)(to) => labels.push(to),
            Some(_) => {}
        });
        [&mut labels, &mut outside].into_iter().for_each(sort);
        Formed { labels, outside, adds_narrow }
    }

    fn pairs(&self) -> usize {
        (self.labels.len() + self.outside.len()).saturating_mul(self.labels.len())
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
