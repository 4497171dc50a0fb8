//! Models of a list's walk and a tree's lookup beside changes, for loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p nanoprobe-coll --release --test model`.
//!
//! Two threads, up to four nodes that live for ever: a walk may not miss what stays, and may not see a node
//! before its content. Left out: grace periods, so also the freeing of what was unlinked.

use coll::{Key, List, ListNode, Lookup, Tree, TreeNode};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::ptr::NonNull;

/// A value that loom watches: written once, before it is published.
struct Content(UnsafeCell<u64>);

impl Content {
    fn new(n: u64) -> Content {
        let content = Content(UnsafeCell::new(0));
        // SAFETY: nobody else knows it yet.
        content.0.with_mut(|p| unsafe { *p = n });
        content
    }

    fn get(&self) -> u64 {
        // SAFETY: under test: publishing orders the write before this.
        self.0.with(|p| unsafe { *p })
    }
}

// SAFETY: what loom watches over.
unsafe impl Sync for Content {}
// SAFETY: as above.
unsafe impl Send for Content {}

struct Nodes<N>(Vec<NonNull<N>>);

// SAFETY: the nodes live for ever, and only the one writer changes them.
unsafe impl<N> Sync for Nodes<N> {}
// SAFETY: as above.
unsafe impl<N> Send for Nodes<N> {}

fn leak<N>(node: N) -> NonNull<N> {
    // Leaked: models are many, but short-lived and small.
    NonNull::from(Box::leak(Box::new(node)))
}

struct Row {
    list: List<Content>,
    nodes: Nodes<ListNode<Content>>,
}

fn row(values: &[u64]) -> Arc<Row> {
    let nodes = values.iter().map(|n| leak(ListNode::new(Content::new(*n)))).collect();
    let row = Arc::new(Row { list: List::new(), nodes: Nodes(nodes) });
    for node in &row.nodes.0 {
        // SAFETY: one thread, and the node lives for ever.
        unsafe { row.list.push(*node) };
    }
    row
}

impl Row {
    fn seen(&self) -> Vec<u64> {
        // SAFETY: nodes live for ever.
        unsafe { self.list.walk() }.map(|node| node.value.get()).collect()
    }
}

/// Runs `look` beside `change`. The reader is the spawned thread, so that its loads are tried early too.
fn beside<W: Send + Sync + 'static>(
    make: impl Fn() -> Arc<W> + Sync + Send + 'static,
    change: impl Fn(&W) + Sync + Send + 'static,
    look: impl Fn(&W) + Sync + Send + Copy + 'static,
) {
    loom::model(move || {
        let world = make();
        let reader = {
            let world = world.clone();
            thread::spawn(move || look(&world))
        };
        change(&world);
        reader.join().unwrap();
    });
}

#[test]
fn a_walk_meets_what_stays_and_sees_whole_nodes() {
    let change = |row: &Row| {
        // SAFETY: the only writer.
        unsafe { row.list.push(leak(ListNode::new(Content::new(9)))) };
        // SAFETY: as above.
        unsafe { row.list.unlink(row.nodes.0[1]) };
    };
    beside(
        || row(&[1, 2, 3]),
        change,
        |row| {
            let seen = row.seen();
            assert!(seen.contains(&1) && seen.contains(&3), "{seen:?}");
            let mut sorted = seen.clone();
            sorted.dedup();
            assert_eq!(sorted.len(), seen.len(), "met twice: {seen:?}");
        },
    );
}

#[test]
fn what_stood_behind_an_unlinked_node_is_whole() {
    let change = |row: &Row| {
        // SAFETY: the only writer; both nodes live for ever.
        unsafe {
            let (old, new) = (leak(ListNode::new(Content::new(7))), leak(ListNode::new(Content::new(8))));
            row.list.push(old);
            row.list.push(new);
            row.list.unlink(new);
        }
    };
    beside(
        || row(&[1]),
        change,
        |row| {
            let seen = row.seen();
            assert_eq!(seen.last(), Some(&1), "{seen:?}");
        },
    );
}

#[test]
fn a_walk_meets_a_node_or_the_one_that_replaced_it() {
    let change = |row: &Row| {
        // SAFETY: the only writer; both nodes live for ever.
        unsafe { row.list.replace(row.nodes.0[1], leak(ListNode::new(Content::new(8)))) };
        // SAFETY: as above.
        unsafe { row.list.replace(row.nodes.0[0], leak(ListNode::new(Content::new(7)))) };
    };
    beside(
        || row(&[1, 2, 3]),
        change,
        |row| {
            let seen = row.seen();
            assert!(matches!(seen[..], [3, 2 | 8, 1 | 7]), "{seen:?}");
        },
    );
}

struct World {
    tree: Tree<Content>,
    nodes: Nodes<TreeNode<Content>>,
}

fn world(keys: &[u64]) -> Arc<World> {
    let nodes = keys.iter().map(|k| leak(TreeNode::new(Key(0, *k), Content::new(*k)))).collect();
    let world = Arc::new(World { tree: Tree::new(3), nodes: Nodes(nodes) });
    for node in &world.nodes.0 {
        // SAFETY: one thread, and the node lives for ever.
        assert!(unsafe { world.tree.insert(*node) });
    }
    world
}

impl World {
    fn insert(&self, key: u64) {
        // SAFETY: the only writer, and the node lives for ever.
        unsafe { self.tree.insert(leak(TreeNode::new(Key(0, key), Content::new(key)))) };
    }

    fn erase(&self, index: usize) {
        // SAFETY: the only writer.
        unsafe { self.tree.erase(self.nodes.0[index]) };
    }

    fn must_have(&self, key: u64) {
        // SAFETY: nodes live for ever.
        match unsafe { self.tree.look(Key(0, key)) } {
            Lookup::Found(node) => assert_eq!(node.value.get(), key),
            Lookup::Absent => panic!("{key} is there and was called absent"),
            Lookup::Unsure => {}
        }
    }
}

#[test]
fn what_stays_is_never_called_absent_beside_an_insert() {
    for new in [5, 15, 25, 35] {
        for key in [10, 20, 30] {
            beside(|| world(&[10, 20, 30]), move |w| w.insert(new), move |w| w.must_have(key));
        }
    }
}

#[test]
fn what_stays_is_never_called_absent_beside_an_erase() {
    for gone in 0..4 {
        for key in [10, 20, 30, 40].into_iter().enumerate().filter(|(i, _)| *i != gone).map(|(_, k)| k) {
            beside(|| world(&[10, 20, 30, 40]), move |w| w.erase(gone), move |w| w.must_have(key));
        }
    }
}

#[test]
fn what_is_found_is_whole() {
    beside(
        || world(&[10]),
        |w| {
            w.insert(20);
            w.erase(0);
        },
        |w| {
            // SAFETY: nodes live for ever.
            if let Lookup::Found(node) = unsafe { w.tree.look(Key(0, 20)) } {
                assert_eq!(node.value.get(), 20);
            }
        },
    );
}
