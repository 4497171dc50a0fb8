//! Who calls one function: its stacks as boxes, the outermost above.
//!
//! For:     the live view.
//! State:   a session of its own, beside the one that counts; the stacks as they were a second ago at most.
//! Context: control.
//! Keeps:   F1 its hits are not in the report: it has its own session, which leaves with it.
//!          F2 a box is as wide as its share, and lies below that of its caller.
//! Checked: tests below and of `draw`; testkit `view`.

use crate::stacks::{StackArgs, Stacks};
use report::Folded;
use session::Session;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Stacks are read so often at most: each has a cell in each CPU's copy, and names.
const READ: Duration = Duration::from_secs(1);

pub struct Flame {
    pub session: Session,
    pub name: String,
    stacks: Stacks,
    folded: Rc<Folded>,
    read: Option<Instant>,
}

impl Flame {
    pub fn of(session: Session, name: String) -> Flame {
        let stacks = Stacks::hold(session.pid(), StackArgs::default());
        Flame { session, name, stacks, folded: Rc::default(), read: None }
    }

    /// Reads what has come; tables of code that was loaded since are made.
    pub fn look(&mut self, now: Instant) {
        if self.session.look_for_tables() {
            self.stacks.look_for_names();
        }
        if self.read.is_none_or(|read| now.saturating_duration_since(read) >= READ) {
            self.folded = Rc::new(self.stacks.folded(std::slice::from_ref(&self.session)));
            self.read = Some(now);
        }
    }

    pub fn folded(&self) -> Rc<Folded> {
        Rc::clone(&self.folded)
    }
}

/// One function of a stack, as a box of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub x: u16,
    pub y: u16,
    pub width: u16,
    pub name: String,
    pub count: u64,
}

#[derive(Default)]
struct Node<'a> {
    count: u64,
    children: BTreeMap<&'a str, Node<'a>>,
}

/// Frames that all stacks begin with, as many as have to be left out so that the deepest stack fits, and one is left.
pub fn root_beyond(stacks: &Folded, height: usize) -> usize {
    let deepest = stacks.keys().map(Vec::len).max().unwrap_or(0);
    let Some(first) = stacks.keys().next() else { return 0 };
    let is_in_all =
        |n: &usize| stacks.keys().all(|stack| stack.len() > n + 1 && stack.get(*n) == first.get(*n));
    let common = (0..first.len()).take_while(is_in_all).count();
    deepest.saturating_sub(height).min(common.saturating_sub(1))
}

/// Boxes of so many columns and rows, without so many outermost frames; what is narrower than a column, or deeper, is left out.
pub fn blocks(stacks: &Folded, without: usize, width: u16, height: u16) -> Vec<Block> {
    let mut root = Node::default();
    for (stack, count) in stacks {
        let mut node = &mut root;
        node.count = node.count.saturating_add(*count);
        for name in stack.iter().skip(without).take(height.into()) {
            node = node.children.entry(name).or_default();
            node.count = node.count.saturating_add(*count);
        }
    }
    let mut found = Vec::new();
    place(&root, (0.0, f64::from(width)), 0, &mut found);
    found
}

/// `room`: from which column on, and how many.
fn place(node: &Node<'_>, room: (f64, f64), y: u16, found: &mut Vec<Block>) {
    let mut from = room.0;
    for (name, child) in &node.children {
        let share = room.1 * child.count as f64 / node.count.max(1) as f64;
        // Edges are rounded, not widths: boxes that touch go on touching.
        let (x, end) = (from.round() as u16, (from + share).round() as u16);
        if end > x {
            let width = end - x;
            found.push(Block { x, y, width, name: (*name).to_owned(), count: child.count });
            place(child, (from, share), y + 1, found);
        }
        from += share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(all: &[(&str, u64)]) -> Folded {
        all.iter().map(|(stack, n)| (stack.split(';').map(str::to_owned).collect(), *n)).collect()
    }

    #[test]
    fn boxes_are_as_wide_as_their_share_and_lie_below_their_callers() {
        let all = stacks(&[("main;a;malloc", 30), ("main;b;malloc", 60), ("main;c", 10), ("main;d", 0)]);
        let found = blocks(&all, 0, 100, 10);
        let told: Vec<(&str, u16, u16, u16)> =
            found.iter().map(|b| (b.name.as_str(), b.x, b.y, b.width)).collect();
        let wanted = [
            ("main", 0, 0, 100),
            ("a", 0, 1, 30),
            ("malloc", 0, 2, 30),
            ("b", 30, 1, 60),
            ("malloc", 30, 2, 60),
            ("c", 90, 1, 10),
        ];
        assert_eq!(told, wanted);
        assert!(blocks(&all, 0, 100, 2).iter().all(|b| b.y < 2));
        assert!(blocks(&stacks(&[]), 0, 80, 20).is_empty());
    }
}
