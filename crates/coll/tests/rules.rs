//! What safe callers may do wrong with the table: it is refused by name and harms nobody (W3, X1, X2).

use coll::RhlTable;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

fn said(work: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(work)).expect_err("refused");
    payload.downcast::<String>().map_or_else(|_| "something else".into(), |text| *text)
}

#[test]
fn a_stale_handle_removes_nothing_though_its_memory_is_used_again() {
    const ROUNDS: u64 = if cfg!(miri) { 5 } else { 300 };
    let table: RhlTable<u64, u64> = RhlTable::new();
    let stale: Vec<_> = (0..ROUNDS)
        .map(|i| {
            let handle = table.insert(7, i).unwrap();
            assert!(table.remove_if(&7, |v| *v == i));
            handle
        })
        .collect();
    // Memory comes back in batches of 512, so each round takes all of the memory of those before it.
    for i in 0..4 * ROUNDS {
        let handle = table.insert(8, i).unwrap();
        assert!(table.remove(handle));
    }
    table.domain().synchronize();
    let fresh: Vec<_> = (0..16 * ROUNDS).map(|i| table.insert(7, 1000 + i).unwrap()).collect();
    assert!(stale.into_iter().all(|handle| !table.remove(handle)));
    assert_eq!(table.read().get(&7).count() as u64, 16 * ROUNDS);
    assert!(fresh.into_iter().all(|handle| table.remove(handle)));
}

#[test]
fn a_closure_that_changes_a_table_is_refused_by_name() {
    let (table, other) = (RhlTable::new(), RhlTable::new());
    table.insert(1, 1).unwrap();
    let handle = std::cell::Cell::new(Some(other.insert(1, 1).unwrap()));
    type Change<'a> = (&'a str, &'a dyn Fn());
    let changes: [Change<'_>; 6] = [
        ("insert", &|| drop(table.insert(1, 2))),
        ("insert", &|| drop(other.insert(1, 2))),
        ("remove", &|| assert!(other.remove(handle.take().unwrap()))),
        ("remove_if", &|| assert!(table.remove_if(&1, |_| true))),
        ("resize", &|| assert!(table.resize(1024).is_ok())),
        ("rehash", &|| assert!(table.rehash().is_ok())),
    ];
    for (call, change) in changes {
        let text = said(|| {
            table.remove_if(&1, |_| {
                change();
                true
            });
        });
        assert!(text.starts_with(&format!("RhlTable::{call} was called from inside a change")), "{text}");
        // It is as before, and usable.
        assert_eq!(table.read().get(&1).count(), 1);
    }
    // Looking is allowed.
    assert!(table.remove_if(&1, |_| table.read().has(&1) && other.read().has(&1)));
}

/// A key whose equality does something.
struct Key(u64, Weak<RhlTable<Key, u64>>, Arc<AtomicUsize>, fn(&Key));

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        1u64.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        (self.3)(self);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        self.2.fetch_add(1, SeqCst);
    }
}

#[test]
fn an_eq_that_changes_the_table_or_panics_leaves_it_usable_and_leaks_no_entry() {
    let meddles: fn(&Key) = |key| {
        if let Some(table) = key.1.upgrade() {
            let _ = table.insert(Key(9, Weak::new(), Arc::default(), |_| ()), 9);
        }
    };
    let panics: fn(&Key) = |_| panic!("{}", "an eq that panics, as the test wants".to_string());
    for (does, what) in [(meddles, "insert was called from inside"), (panics, "as the test wants")] {
        let (table, drops) = (Arc::new(RhlTable::new()), Arc::new(AtomicUsize::new(0)));
        let key = |n, does| Key(n, Arc::downgrade(&table), drops.clone(), does);
        table.insert(key(1, does), 1).unwrap();
        let text = said(|| drop(table.insert(key(2, does), 2)));
        assert!(text.contains(what), "{text}");
        assert_eq!((table.keys(), drops.load(SeqCst)), (1, 1), "the refused entry is freed");
        let text = said(|| assert!(!table.remove_if(&key(2, |_| ()), |_| true)));
        assert!(text.contains(what), "{text}");
        drop(table);
        assert_eq!(drops.load(SeqCst), 3);
    }
}

#[test]
fn handles_of_all_threads_differ() {
    const EACH: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let table: RhlTable<u64, u64> = RhlTable::new();
    let all = std::thread::scope(|s| {
        let table = &table;
        let insert =
            move || (0..EACH).map(|i| format!("{:?}", table.insert(i, i).unwrap())).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| s.spawn(insert)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    let stamp = |text: &String| text.split("stamp: ").nth(1).unwrap().to_string();
    assert_eq!(all.iter().map(stamp).collect::<HashSet<_>>().len() as u64, 4 * EACH);
}
