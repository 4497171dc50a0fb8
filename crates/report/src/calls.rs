//! Calls as beginnings and ends that lie in one another, thread by thread.
//!
//! For:     formats of viewers that draw calls inside of calls.
//! State:   none.
//! Context: control.
//! Keeps:   C1 in each thread each beginning has its end, the last to begin is the first to end, and time does not go back.
//! Checked: tests below.

use crate::run::Call;
use std::collections::BTreeMap;

/// One of a call's two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub at_ns: u64,
    /// Which call.
    pub call: usize,
    pub is_begin: bool,
}

/// Of each thread; calls whose end was not seen are not in it. Of a thread that is not known no call is inside of another, so
/// each such call has a track of its own: `0` has none.
pub fn edges(calls: &[Call]) -> BTreeMap<u64, Vec<Edge>> {
    let mut threads: BTreeMap<u64, Vec<(u64, u64, usize)>> = BTreeMap::new();
    for (i, call) in calls.iter().enumerate().filter(|(_, call)| call.tid != 0) {
        let Some(ns) = call.ns else { continue };
        threads.entry(call.tid).or_default().push((call.at_ns, call.at_ns.saturating_add(ns), i));
    }
    threads.into_iter().map(|(tid, spans)| (tid, nested(spans))).collect()
}

fn nested(mut spans: Vec<(u64, u64, usize)>) -> Vec<Edge> {
    // The longer one is outside.
    spans.sort_by_key(|(from, to, i)| (*from, u64::MAX - *to, *i));
    let mut edges = Vec::with_capacity(spans.len() * 2);
    let mut open: Vec<(u64, usize)> = Vec::new();
    let close = |edges: &mut Vec<Edge>, (at_ns, call)| edges.push(Edge { at_ns, call, is_begin: false });
    for (from, to, call) in spans {
        while let Some(last) = open.pop_if(|(end, _)| *end <= from) {
            close(&mut edges, last);
        }
        // Stamps of two processors may differ by a little: who ends later than what it is in ends with it.
        let to = open.last().map_or(to, |(end, _)| to.min(*end));
        edges.push(Edge { at_ns: from, call, is_begin: true });
        open.push((to, call));
    }
    while let Some(last) = open.pop() {
        close(&mut edges, last);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tid: u64, at_ns: u64, ns: Option<u64>) -> Call {
        Call { tid, at_ns, ns, ..Call::default() }
    }

    fn shape(edges: &[Edge]) -> Vec<(u64, usize, bool)> {
        edges.iter().map(|e| (e.at_ns, e.call, e.is_begin)).collect()
    }

    #[test]
    fn calls_lie_in_one_another_whatever_the_order_of_their_lines() {
        // 1 holds 0 and 2; 3 begins where 1 ends; 4 never ended; 5 is of nobody known.
        let calls = [
            call(7, 10, Some(5)),
            call(7, 5, Some(20)),
            call(7, 16, Some(100)),
            call(7, 25, Some(1)),
            call(7, 26, None),
            call(0, 1, Some(1)),
        ];
        let all = edges(&calls);
        assert_eq!(all.keys().collect::<Vec<_>>(), [&7]);
        let found = shape(&all[&7]);
        let wanted = [
            (5, 1, true),
            (10, 0, true),
            (15, 0, false),
            (16, 2, true),
            (25, 2, false),
            (25, 1, false),
            (25, 3, true),
            (26, 3, false),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn random_calls_are_balanced_and_in_order() {
        let mut seed = 88_172_645_463_325_252_u64;
        let mut next = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let calls: Vec<Call> = (0..2000).map(|_| call(1 + next(3), next(5000), Some(next(800)))).collect();
        for edges in edges(&calls).values() {
            let (mut open, mut now) = (Vec::new(), 0);
            for edge in edges {
                assert!(edge.at_ns >= now, "time goes back");
                now = edge.at_ns;
                match edge.is_begin {
                    true => open.push(edge.call),
                    false => assert_eq!(open.pop(), Some(edge.call)),
                }
            }
            assert!(open.is_empty());
        }
    }
}
