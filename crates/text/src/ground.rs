//! What is known of the code in which a patch is to stand.
//!
//! For:     who plans jumps: `session` in another process, `trap` in its own.
//! State:   none.
//! Context: control, or the own process outside of hits. Reads what the image has read.
//! Keeps:   N1 `flow` knows every target that the file tells of: functions, code pointers in data, tables.
//! Checked: insn's `tests/real`; testkit `shapes`; trap's `tests/jumps.rs`.
//!
//! - [`space`] free address space near a module

pub mod space;

use image::{ElfImage, ImageAddr, Machine};
use insn::{Code, Flow, Table};
use std::ops::Range;

/// The executable segments, as `insn` reads code.
pub fn codes(image: &ElfImage) -> Vec<Code<'_>> {
    image.executable_segments().map(|(s, bytes)| Code { base: s.range.start.0, bytes }).collect()
}

/// Who jumps where in the file, as long as `go_on` says so, which is asked for each part with its length in bytes.
pub fn flow(image: &ElfImage, go_on: &dyn Fn(u64) -> bool) -> Option<Flow> {
    let (starts, pointers) = known(image);
    if image.machine() == Machine::Aarch64 {
        return Some(Flow::of_a64(&starts, image.is_guarded()));
    }
    Flow::analyse_while(&codes(image), &starts, &pointers, &|table| table_of(image, table), go_on)
}

/// The same for sites in some ranges alone, in a fraction of the time: a tenth for one function of a large file.
pub fn flow_near(image: &ElfImage, near: &[Range<u64>]) -> Flow {
    let (starts, pointers) = known(image);
    if image.machine() == Machine::Aarch64 {
        return Flow::of_a64(&starts, image.is_guarded());
    }
    Flow::analyse_near(&codes(image), &starts, &pointers, &|table| table_of(image, table), near)
}

/// Where functions begin, and the code addresses that the file keeps in data.
fn known(image: &ElfImage) -> (Vec<u64>, Vec<u64>) {
    let mut starts: Vec<u64> = image.functions().iter().map(|f| f.addr.0).collect();
    starts.sort_unstable();
    starts.dedup();
    (starts, image.code_pointers().iter().map(|a| a.0).collect())
}

/// The code addresses in a jump table.
fn table_of(image: &ElfImage, table: &Table) -> Vec<u64> {
    let at = ImageAddr(table.at);
    let found = match &table.within {
        None => image.rel32_table_targets(at),
        Some(r) => {
            let within = ImageAddr(r.start)..ImageAddr(r.end);
            image.rel32_label_targets(at, ImageAddr(table.base), &within)
        }
    };
    found.iter().map(|a| a.0).collect()
}
