//! The list and the tree: against the standard library's, and read by threads while they change.
//!
//! Under Miri: `cargo +nightly miri test -p nanoprobe-coll --test list_tree` (fewer rounds).
#![cfg(not(loom))]

use coll::{Key, List, ListNode, Tree, TreeNode};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ROUNDS: u64 = if cfg!(miri) { 300 } else { 20_000 };

fn make<N>(node: N) -> NonNull<N> {
    NonNull::from(Box::leak(Box::new(node)))
}

fn free<N>(node: NonNull<N>) {
    // SAFETY: made by `make`, unlinked, and no reader is left (callers).
    drop(unsafe { Box::from_raw(node.as_ptr()) });
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

// In this file a tree or list has one writer, the main thread, and no node is freed before its last reader ended.

fn insert(tree: &Tree<u64>, node: NonNull<TreeNode<u64>>) -> bool {
    // SAFETY: see above.
    unsafe { tree.insert(node) }
}

fn erase(tree: &Tree<u64>, node: NonNull<TreeNode<u64>>) -> bool {
    // SAFETY: see above.
    unsafe { tree.erase(node) }
}

fn find(tree: &Tree<u64>, key: Key) -> Option<u64> {
    // SAFETY: see above.
    unsafe { tree.find(key) }.map(|node| node.value)
}

fn push(list: &List<u64>, node: NonNull<ListNode<u64>>) {
    // SAFETY: see above.
    unsafe { list.push(node) }
}

fn unlink(list: &List<u64>, node: NonNull<ListNode<u64>>) -> bool {
    // SAFETY: see above.
    unsafe { list.unlink(node) }
}

fn replace(list: &List<u64>, old: NonNull<ListNode<u64>>, new: NonNull<ListNode<u64>>) -> bool {
    // SAFETY: see above.
    unsafe { list.replace(old, new) }
}

fn values(list: &List<u64>) -> Vec<u64> {
    // SAFETY: see above.
    unsafe { list.walk() }.map(|node| node.value).collect()
}

#[test]
fn a_tree_answers_as_an_ordered_map_does() {
    let (tree, mut map, mut state) = (Tree::new(1), BTreeMap::new(), 42);
    for _ in 0..ROUNDS {
        let key = Key(random(&mut state) % 3, random(&mut state) % 64);
        if let Some(node) = map.remove(&key) {
            assert!(erase(&tree, node) && !erase(&tree, node));
            free(node);
        } else {
            let node = make(TreeNode::new(key, key.1));
            assert!(insert(&tree, node));
            map.insert(key, node);
        }
        let wanted = Key(random(&mut state) % 3, random(&mut state) % 64);
        assert_eq!(find(&tree, wanted), map.get(&wanted).map(|_| wanted.1));
        // SAFETY: one thread.
        let after = unsafe { tree.at_or_after(wanted) }.map(|n| n.key());
        assert_eq!(after, map.range(wanted..).next().map(|(k, _)| *k));
    }
    map.into_values().for_each(free);
}

#[test]
fn a_key_is_inserted_once() {
    let tree = Tree::new(0);
    let (first, second) = (make(TreeNode::new(Key(1, 1), 1)), make(TreeNode::new(Key(1, 1), 2)));
    assert!(insert(&tree, first) && !insert(&tree, second) && !erase(&tree, second));
    assert_eq!(find(&tree, Key(1, 1)), Some(1));
    free(first);
    free(second);
}

#[test]
fn a_list_is_newest_first_and_unlinks_anywhere() {
    for gone in 0..4u64 {
        let list = List::new();
        let nodes: Vec<_> = (0..4u64).map(|n| make(ListNode::new(n))).collect();
        nodes.iter().for_each(|n| push(&list, *n));
        let one = nodes[gone as usize];
        assert!(unlink(&list, one) && !unlink(&list, one));
        assert_eq!(values(&list), (0..4).rev().filter(|n| *n != gone).collect::<Vec<_>>());
        push(&list, one);
        assert_eq!(values(&list)[0], gone);
        nodes.iter().for_each(|n| assert!(unlink(&list, *n)));
        assert!(list.is_empty());
        nodes.into_iter().for_each(free);
    }
}

#[test]
fn a_replaced_node_leaves_its_place_to_the_new_one() {
    for at in 0..4usize {
        let list = List::new();
        let nodes: Vec<_> = (0..4u64).map(|n| make(ListNode::new(n))).collect();
        nodes.iter().for_each(|n| push(&list, *n));
        let new = make(ListNode::new(9));
        assert!(replace(&list, nodes[at], new) && !replace(&list, nodes[at], new));
        let wanted = |n| if n == at as u64 { 9 } else { n };
        assert_eq!(values(&list), (0..4).rev().map(wanted).collect::<Vec<_>>());
        assert!(!unlink(&list, nodes[at]) && unlink(&list, new));
        nodes.iter().enumerate().filter(|(i, _)| *i != at).for_each(|(_, n)| assert!(unlink(&list, *n)));
        assert!(list.is_empty());
        nodes.into_iter().chain([new]).for_each(free);
    }
}

struct Shared<N>(Vec<NonNull<N>>);

// SAFETY: nodes that outlive the threads, changed by the one writer.
unsafe impl<N> Sync for Shared<N> {}

/// Runs `look` on two threads while `change` runs on this one for a while; returns the looks.
fn beside(look: impl Fn() + Sync, mut change: impl FnMut()) -> u64 {
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    look();
                    looks.fetch_add(1, Relaxed);
                }
            });
        }
        let end = Instant::now() + Duration::from_millis(if cfg!(miri) { 1 } else { 1000 });
        let mut rounds = 0;
        while Instant::now() < end || looks.load(Relaxed) < 10 || rounds < 10 {
            change();
            rounds += 1;
        }
        stop.store(true, Relaxed);
    });
    looks.into_inner()
}

#[test]
fn lookups_miss_nothing_that_stays_while_the_tree_changes() {
    let tree = Tree::new(5);
    // Odd keys stay; even ones come and go. A node is used in one life only, so each life is a new node, and
    // nothing is freed before the end: there is no grace period here.
    let stay = Shared((0..32).map(|k| make(TreeNode::new(Key(0, 2 * k + 1), k))).collect());
    // SAFETY: the only writer so far; nodes live to the end.
    stay.0.iter().for_each(|n| assert!(unsafe { tree.insert(*n) }));
    let (mut dead, mut live, mut state) = (Vec::new(), BTreeMap::new(), 7);
    let looks = beside(
        || {
            for k in 0..32 {
                // SAFETY: no node is freed while threads run.
                assert_eq!(unsafe { tree.find(Key(0, 2 * k + 1)) }.map(|n| n.value), Some(k));
            }
        },
        || {
            let key = 2 * (random(&mut state) % 33);
            match live.remove(&key) {
                // SAFETY: the only writer.
                Some(node) => {
                    // SAFETY: the only writer.
                    assert!(unsafe { tree.erase(node) });
                    dead.push(node);
                }
                None => {
                    let node = make(TreeNode::new(Key(0, key), 99));
                    // SAFETY: the only writer; the node lives to the end.
                    assert!(unsafe { tree.insert(node) });
                    live.insert(key, node);
                }
            };
        },
    );
    assert!(looks > 0);
    dead.into_iter().chain(live.into_values()).chain(stay.0).for_each(free);
}

#[test]
fn walks_miss_nothing_that_stays_while_the_list_changes() {
    let list = List::new();
    let mut stay = Shared((1..=8).map(|n| make(ListNode::new(n))).collect());
    let mut dead = Vec::new();
    let mut live: Vec<NonNull<ListNode<u64>>> = Vec::new();
    // SAFETY: the only writer so far; nodes live to the end.
    stay.0.iter().for_each(|n| unsafe { list.push(*n) });
    let mut state = 3;
    let looks = beside(
        // SAFETY: no node is freed while threads run.
        || assert_eq!(unsafe { list.walk() }.map(|n| n.value).sum::<u64>(), 36),
        || {
            // A value that stays may move to another node.
            let place = random(&mut state) as usize % stay.0.len();
            let new = make(ListNode::new(place as u64 + 1));
            assert!(replace(&list, stay.0[place], new));
            dead.push(core::mem::replace(&mut stay.0[place], new));
            // Those that stay are last: new ones come first, and go from anywhere.
            if live.len() > 4 {
                let node = live.swap_remove(random(&mut state) as usize % live.len());
                // SAFETY: the only writer.
                assert!(unsafe { list.unlink(node) });
                dead.push(node);
            } else {
                let node = make(ListNode::new(0));
                // SAFETY: the only writer; the node lives to the end.
                unsafe { list.push(node) };
                live.push(node);
            }
        },
    );
    assert!(looks > 0);
    dead.into_iter().chain(live).chain(stay.0).for_each(free);
}
