//! How much of a file can be probed.
//!
//! For:     `explain --all`.
//! State:   none.
//! Context: control; touches nothing.
//! Keeps:   C1 each function and each instruction is counted once, as if it were the only probe.
//! Checked: testkit `faces`; the test below.

use super::calls::find_exits;
use super::{Amount, Loaded, Pace, PlanError, codes};
use image::Spec;
use image::lookup::find_file;
use insn::{Asked, Coverage, coverage_of_entries, coverage_of_instructions, place};
use std::ops::Range;
use std::path::PathBuf;

/// Functions that are counted before it is asked whether to go on.
const FUNCTIONS_AT_A_TIME: usize = 256;

/// The shares of one file.
#[derive(Clone, Debug, Default)]
pub struct FileCoverage {
    /// Which file.
    pub path: PathBuf,
    /// First instructions of functions, by rung.
    pub entries: Coverage,
    /// All instructions of functions, by rung.
    pub instructions: Coverage,
    /// Functions whose calls can be timed: entry and all exits have a rung.
    pub timed: u64,
}

/// Counts all functions of the file that the specification's library names.
pub fn coverage(spec: &Spec, pace: &Pace) -> Result<FileCoverage, PlanError> {
    let path = find_file(&spec.library).map_err(|e| PlanError::Lookup(Box::new(spec.clone()), e))?;
    let loaded = Loaded::new(super::images::open(&path).map_err(PlanError::Image)?, pace)?;
    let codes = codes(&loaded.image);
    let ranges = loaded.image.functions().iter().map(|f| f.range().start.0..f.range().end.0);
    let functions: Vec<Range<u64>> = ranges.filter(|r| r.end > r.start).collect();
    let bytes = functions.iter().map(|f| f.end - f.start).sum();
    let work = pace.begin(format!("placing in {}", path.display()), Amount::Code(bytes));
    let mut found = FileCoverage::default();
    for some in functions.chunks(FUNCTIONS_AT_A_TIME) {
        found.timed += some.iter().filter(|f| is_timed(&loaded, f)).count() as u64;
        found.entries = found.entries.and(coverage_of_entries(&loaded.flow, &codes, some));
        found.instructions = found.instructions.and(coverage_of_instructions(&loaded.flow, &codes, some));
        if !work.go_on(some.iter().map(|f| f.end - f.start).sum()) {
            return Err(PlanError::Stopped);
        }
    }
    Ok(FileCoverage { path: path.clone(), ..found })
}

fn is_timed(loaded: &Loaded, function: &Range<u64>) -> bool {
    let codes = codes(&loaded.image);
    let free = |_: Range<u64>| false;
    let asked = Asked {
        site: function.start,
        function: Some(function.clone()),
        next_function: None,
        taken: &free,
        room: &|_| true,
    };
    let Ok(mut entry) = place(&loaded.flow, &codes, &asked) else { return false };
    let is_go = loaded.image.is_go();
    let Ok(exits) = find_exits(&loaded.image, &loaded.flow, function.clone(), is_go) else { return false };
    exits.place_all(&loaded.flow, &codes, Some(&mut entry), &free, &|_| true).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the cross compiler's libc: most functions return by exits that are found, and none is looked at for long.
    #[test]
    fn most_functions_of_an_a64_library_can_be_timed() {
        let libc = "/usr/aarch64-linux-gnu/lib/libc.so.6";
        let found = coverage(&Spec::parse(&format!("u:{libc}:*")).unwrap(), &Pace::default()).unwrap();
        let functions = found.entries.total();
        println!("{} of {functions} functions of {libc} can be timed", found.timed);
        assert!(functions > 3000 && found.timed * 10 > functions * 9, "{} of {functions}", found.timed);
    }
}
