//! Bytes that nobody executes and nobody points at.
//!
//! For:     the end of a window that outgrows its function, and islands.
//! State:   none.
//! Context: control. Cost: `nearest_gap` decodes the functions in its reach, each once.
//! Keeps:   G1 padding is only looked for behind an instruction that never falls through, and ends at the first
//!          byte that is a target: control cannot enter it in any way that `Flow` knows.
//!          G2 int3 and nops of any length count; zero bytes only when nothing but zeros stands between them and
//!          the next function or the end of code, for they may be data.
//! Checked: padding tests, tests/ladder.rs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::arch::native;
use crate::code::Code;
use crate::flow::Flow;

pub(crate) const INT3: u8 = 0xcc;
/// In a longer stretch functions are not known, and where its instructions begin is not either.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;
/// Functions whose padding is kept.
const KEPT_FUNCTIONS: usize = 4096;

/// The length of the padding at `at`, as far as `limit`, in bytes.
///
/// The caller knows that control does not fall through to `at`.
pub(crate) fn run(flow: &Flow, code: &Code<'_>, at: u64, limit: u64) -> u64 {
    let mut end = at;
    while end < limit && !flow.is_target(end) {
        let bytes = code.from_addr(end);
        let len = match bytes.first() {
            Some(&INT3) => 1,
            Some(0) if is_zero_fill(flow, code, end) => 1,
            Some(_) => match native::decode(bytes, end) {
                Some(class) if class.is_nop => class.insn.len_bytes() as u64,
                _ => break,
            },
            None => break,
        };
        match flow.first_target(end + 1..end + len) {
            Some(target) => return target.min(limit) - at,
            None => end += len,
        }
    }
    end.min(limit) - at
}

/// Only zeros from `at` to the next function or the end of code.
fn is_zero_fill(flow: &Flow, code: &Code<'_>, at: u64) -> bool {
    let bytes = code.from_addr(at);
    let to = flow.next_start(at).map_or(bytes.len(), |start| (start - at) as usize);
    bytes.iter().take(to).all(|byte| *byte == 0)
}

/// The five-byte place in padding nearest to `site` that a short jump there can reach.
pub(crate) fn nearest_gap(
    flow: &Flow,
    code: &Code<'_>,
    site: u64,
    is_free: &dyn Fn(Range<u64>) -> bool,
) -> Option<u64> {
    let from = site + u64::from(native::SHORT_JUMP_BYTES);
    let lowest = from.saturating_add_signed(*native::SHORT_REACH.start()).max(code.base);
    let highest = from.saturating_add_signed(*native::SHORT_REACH.end());
    let size = u64::from(native::JUMP_BYTES);
    let mut best: Option<u64> = None;
    for gap in gaps(flow, code, lowest, highest + size) {
        let first = gap.start.max(lowest);
        let last = gap.end.saturating_sub(size).min(highest);
        for at in first..=last.max(first) {
            let fits = at <= last && is_free(at..at + size);
            if fits && best.is_none_or(|best| at.abs_diff(from) < best.abs_diff(from)) {
                best = Some(at);
            }
        }
    }
    best
}

/// Padding of functions that were asked about, by their start.
#[derive(Debug, Default)]
pub(crate) struct Gaps(BTreeMap<u64, Arc<[Range<u64>]>>);

/// All padding between `lowest` and `highest`, and of the functions there.
fn gaps(flow: &Flow, code: &Code<'_>, lowest: u64, highest: u64) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = flow.start_before(lowest).unwrap_or(code.base).max(code.base);
    while at < highest && code.range().contains(&at) {
        let end = flow.next_start(at).unwrap_or(u64::MAX).min(code.range().end);
        found.extend(known_gaps(flow, code, at..end).iter().cloned());
        at = end;
    }
    found
}

/// The padding of one function; none if it is too long to be one.
fn known_gaps(flow: &Flow, code: &Code<'_>, function: Range<u64>) -> Arc<[Range<u64>]> {
    if function.end - function.start > FUNCTION_BYTES_MAX {
        return Arc::new([]);
    }
    if let Some(known) = flow.gaps.borrow().0.get(&function.start) {
        return known.clone();
    }
    let start = function.start;
    let found: Arc<[Range<u64>]> = gaps_of(flow, code, function).into();
    let mut all = flow.gaps.borrow_mut();
    if all.0.len() >= KEPT_FUNCTIONS {
        all.0.clear();
    }
    all.0.insert(start, found.clone());
    found
}

fn gaps_of(flow: &Flow, code: &Code<'_>, function: Range<u64>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = function.start;
    let mut falls_through = true;
    while at < function.end {
        if !falls_through && !flow.is_target(at) {
            let len = run(flow, code, at, function.end);
            if len > 0 {
                found.push(at..at + len);
                at += len;
                continue;
            }
        }
        match native::decode(code.from_addr(at), at) {
            Some(class) => {
                falls_through = !class.ends;
                at = class.insn.end();
            }
            None => {
                falls_through = true;
                at += 1;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(code: &Code<'_>, starts: &[u64], indirect: &[u64]) -> Flow {
        Flow::analyse(&[*code], starts, indirect, &|_| vec![])
    }

    #[test]
    fn int3_and_nops_of_any_length_are_padding_up_to_a_target() {
        // ret; int3; nop [rax+rax+0] (5); nop; ret
        let bytes = [0xc3, 0xcc, 0x0f, 0x1f, 0x44, 0, 0, 0x90, 0xc3];
        let code = Code { base: 0x1000, bytes: &bytes };
        assert_eq!(run(&flow(&code, &[0x1000], &[]), &code, 0x1001, 0x2000), 7);
        assert_eq!(run(&flow(&code, &[0x1000], &[0x1004]), &code, 0x1001, 0x2000), 3);
        assert_eq!(run(&flow(&code, &[0x1000], &[]), &code, 0x1001, 0x1003), 2);
    }

    #[test]
    fn zeros_are_padding_only_up_to_the_end() {
        let data = [0xc3, 0, 0, 0, 0, 0, 1, 0];
        let code = Code { base: 0x1000, bytes: &data };
        assert_eq!(run(&flow(&code, &[0x1000], &[]), &code, 0x1001, 0x2000), 0);
        assert_eq!(run(&flow(&code, &[0x1000, 0x1006], &[]), &code, 0x1001, 0x1006), 5);
    }

    #[test]
    fn nops_that_are_fallen_into_are_no_gap() {
        // nop x8 executed, then ret, then 6 int3
        let bytes =
            [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
        let code = Code { base: 0x1000, bytes: &bytes };
        let flow = flow(&code, &[0x1000], &[]);
        assert_eq!(gaps(&flow, &code, 0x1000, 0x1010).as_slice(), std::slice::from_ref(&(0x1009..0x100f)));
        assert_eq!(nearest_gap(&flow, &code, 0x1000, &|_| true), Some(0x1009));
        assert_eq!(nearest_gap(&flow, &code, 0x1000, &|range| range.start != 0x1009), Some(0x100a));
        assert_eq!(nearest_gap(&flow, &code, 0x1000, &|_| false), None);
    }
}
