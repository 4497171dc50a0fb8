//! Which call is inside of which, thread by thread.
//!
//! For:     `trace --tree` and `trace --graph`.
//! State:   the open calls of each thread, outermost first; which of them were printed; the graph's nodes.
//! Context: control.
//! Keeps:   N1 each call is given once as a leaf, or once as opened and once as closed with all its printed calls in between.
//!          N2 with `over`, a call is given if it took so long, or if a call inside of it was given.
//!             With `depth`, no call is given that is inside of so many others; each such is counted once.
//!          N3 what the target writes takes bounded memory: `OPEN_MAX` open calls, `NODES_MAX` nodes.
//! Checked: tests below; testkit `tracing`.

use session::Event;
use std::collections::HashMap;

/// So many calls are kept open: as many as the target's own table has places for.
const OPEN_MAX: usize = 1 << 18;
/// And so many of threads that cannot be told apart.
const UNKNOWN_MAX: usize = 1024;
/// Ways of calls that the graph tells apart.
const NODES_MAX: usize = 1 << 16;
/// Of a call that the graph has not.
const NO_NODE: usize = usize::MAX;
/// An open call this little below a new one is of the same stack, and was left without a return.
const SAME_STACK: u64 = 256 << 10;

/// One line of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many calls it is inside of.
    pub depth: usize,
    /// The entry; the exit itself if the entry was not seen.
    pub entry: Event,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It has begun, and calls inside of it follow.
    Opens,
    /// The end of one that was opened; without an exit none was seen.
    Closes(Option<Event>),
    /// A call with nothing inside that is shown.
    Leaf(Option<Event>),
}

struct Open {
    entry: Event,
    is_given: bool,
    node: usize,
    inside: u64,
}

/// A way of calls: a function, called by the function of the node above.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub function: u32,
    pub calls: u64,
    pub returned: u64,
    /// Ticks of those that returned, and of that the part that calls inside took.
    pub ticks: u64,
    pub inside: u64,
    below: HashMap<u32, usize>,
}

/// All threads' open calls.
pub struct Nest {
    threads: HashMap<u64, Vec<Open>>,
    open: usize,
    /// Ticks that a call must have taken to be given.
    over: u64,
    /// A call that is inside of so many others is not given.
    depth: usize,
    /// Of the graph; the first is above all.
    nodes: Vec<Node>,
    /// Calls that were not kept: too many were open.
    pub not_kept: u64,
    /// Calls that the graph has not: it has too many ways.
    pub no_way: u64,
    /// Calls that took less than `over`.
    pub shorter: u64,
    /// Calls that were inside of `depth` others.
    pub deeper: u64,
}

impl Nest {
    pub fn new(over: u64, depth: usize) -> Nest {
        let nodes = vec![Node::default()];
        Nest {
            threads: HashMap::new(),
            open: 0,
            over,
            depth,
            nodes,
            not_kept: 0,
            no_way: 0,
            shorter: 0,
            deeper: 0,
        }
    }

    /// Takes the next event; gives what can be shown by it.
    pub fn take(&mut self, event: &Event, mut give: impl FnMut(Step)) {
        let mut calls = self.threads.remove(&event.tid).unwrap_or_default();
        let before = calls.len();
        match event.is_exit {
            false => self.enter(&mut calls, event, &mut give),
            true => self.leave(&mut calls, event, &mut give),
        }
        self.open = (self.open + calls.len()).saturating_sub(before);
        if !calls.is_empty() {
            self.threads.insert(event.tid, calls);
        }
    }

    fn enter(&mut self, calls: &mut Vec<Open>, event: &Event, give: &mut impl FnMut(Step)) {
        let is_left = |open: &Open| place(event).wrapping_sub(place(&open.entry)) < SAME_STACK;
        // Of threads that nobody can tell apart no call is known to be inside of another.
        while event.tid != 0 && calls.last().is_some_and(is_left) {
            self.end(calls, None, give);
        }
        if event.tid == 0 && calls.len() >= UNKNOWN_MAX {
            let oldest = calls.remove(0);
            calls.push(oldest);
            self.end(calls, None, give);
        }
        if self.open >= OPEN_MAX {
            self.not_kept += 1;
            return;
        }
        if self.over == 0 && event.tid != 0 && calls.len() < self.depth {
            open_all(calls, give);
        }
        let above = if event.tid == 0 { 0 } else { calls.last().map_or(0, |open| open.node) };
        let node = self.node(above, event.function);
        calls.push(Open { entry: *event, is_given: false, node, inside: 0 });
    }

    fn leave(&mut self, calls: &mut Vec<Open>, exit: &Event, give: &mut impl FnMut(Step)) {
        let is_its = |open: &Open| {
            (open.entry.place, open.entry.function, open.entry.stamp)
                == (exit.place, exit.function, exit.values[1])
        };
        let at = if exit.values[1] == 0 { None } else { calls.iter().rposition(is_its) };
        let Some(at) = at else {
            // Its entry was lost, or was before us.
            let depth = if exit.tid == 0 { 0 } else { calls.len() };
            if depth >= self.depth {
                self.deeper += 1;
                return;
            }
            open_all(calls, give);
            return give(Step { depth, entry: *exit, what: What::Leaf(Some(*exit)) });
        };
        if exit.tid == 0 {
            let open = calls.remove(at);
            calls.push(open);
            return self.end(calls, Some(exit), give);
        }
        while calls.len() > at + 1 {
            self.end(calls, None, give);
        }
        self.end(calls, Some(exit), give);
    }

    /// Ends the innermost call.
    fn end(&mut self, calls: &mut Vec<Open>, exit: Option<&Event>, give: &mut impl FnMut(Step)) {
        let Some(call) = calls.pop() else { return };
        let took = exit.map(|exit| exit.stamp.saturating_sub(call.entry.stamp));
        if let Some(node) = self.nodes.get_mut(call.node) {
            node.calls += 1;
            node.returned += u64::from(took.is_some());
            node.ticks = node.ticks.saturating_add(took.unwrap_or(0));
            node.inside = node.inside.saturating_add(call.inside.min(took.unwrap_or(0)));
        }
        let is_nested = call.entry.tid != 0;
        if let Some(above) = calls.last_mut().filter(|_| is_nested) {
            above.inside = above.inside.saturating_add(took.unwrap_or(0));
        }
        let depth = if is_nested { calls.len() } else { 0 };
        let exit = exit.copied();
        if call.is_given {
            return give(Step { depth, entry: call.entry, what: What::Closes(exit) });
        }
        if depth >= self.depth {
            self.deeper += 1;
            return;
        }
        // How long a call took that was left is not known.
        if self.over > 0 && took.is_none_or(|took| took < self.over) {
            self.shorter += 1;
            return;
        }
        if is_nested {
            open_all(calls, give);
        }
        give(Step { depth, entry: call.entry, what: What::Leaf(exit) });
    }

    /// What has not ended: nothing more will come.
    pub fn rest(&mut self, mut give: impl FnMut(Step)) {
        let mut threads: Vec<(u64, Vec<Open>)> = self.threads.drain().collect();
        threads.sort_by_key(|(tid, calls)| (calls.first().map(|open| open.entry.stamp), *tid));
        for (_, mut calls) in threads {
            while !calls.is_empty() {
                self.end(&mut calls, None, &mut give);
            }
        }
        self.open = 0;
    }

    fn node(&mut self, above: usize, function: u32) -> usize {
        let known = self.nodes.get(above).map(|node| node.below.get(&function).copied());
        if let Some(Some(node)) = known {
            return node;
        }
        if known.is_none() || self.nodes.len() >= NODES_MAX {
            self.no_way += 1;
            return NO_NODE;
        }
        let node = self.nodes.len();
        self.nodes.push(Node { function, ..Node::default() });
        self.nodes[above].below.insert(function, node);
        node
    }

    /// All ways with their depth, each before those below it; the one that took longest first.
    pub fn graph(&self) -> Vec<(usize, &Node)> {
        let mut found = Vec::new();
        let mut next = self.below(0, 0);
        while let Some((depth, node)) = next.pop() {
            found.push((depth, &self.nodes[node]));
            next.extend(self.below(node, depth + 1));
        }
        found
    }

    /// The last is the first to be shown.
    fn below(&self, above: usize, depth: usize) -> Vec<(usize, usize)> {
        let mut below: Vec<usize> = self.nodes[above].below.values().copied().collect();
        below.sort_by_key(|n| {
            (self.nodes[*n].ticks, self.nodes[*n].calls, u32::MAX - self.nodes[*n].function)
        });
        below.into_iter().map(|node| (depth, node)).collect()
    }
}

/// Where the call's return address lies.
fn place(event: &Event) -> u64 {
    event.place & ((1 << 48) - 1)
}

/// Opens all calls that are not yet.
fn open_all(calls: &mut [Open], give: &mut impl FnMut(Step)) {
    // Those outside of one that is open are open too.
    let first = calls.iter().rposition(|open| open.is_given).map_or(0, |last| last + 1);
    for (depth, open) in calls.iter_mut().enumerate().skip(first).filter(|(_, open)| open.entry.tid != 0) {
        open.is_given = true;
        give(Step { depth, entry: open.entry, what: What::Opens });
    }
}

#[cfg(test)]
mod tests;
