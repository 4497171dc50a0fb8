//! A value that is written again while it is read: P2; mutants MAP-1, MAP-2, MAP-3.

use crate::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use loom::thread;
use map::{close_write, open_write, versioned};

struct Value {
    version: AtomicU32,
    words: [AtomicU64; 2],
}

impl Value {
    fn write(&self, n: u64) {
        open_write(&self.version);
        self.words.iter().for_each(|word| word.store(n, Relaxed));
        close_write(&self.version);
    }

    fn read(&self) -> Option<[u64; 2]> {
        versioned(&self.version, || [0, 1].map(|n| self.words[n].load(Relaxed)))
    }
}

#[test]
fn a_versioned_read_sees_the_words_of_one_write() {
    model(3, || {
        let words = [0, 1].map(|_| AtomicU64::new(0));
        let value = Arc::new(Value { version: AtomicU32::new(0), words });
        value.write(1);
        let reader = thread::spawn({
            let value = value.clone();
            move || value.read()
        });
        value.write(2);
        if let Some([a, b]) = reader.join().unwrap() {
            assert_eq!(a, b, "a torn value");
        }
        assert_eq!(value.read(), Some([2, 2]));
    });
}
