//! Two pushers and a popper: Q1; mutants MAP-18, no-queue-turn.

use crate::{base, model};
use loom::thread;
use map::{Error, Flag, Memory, Queue, lay_out_queue};

fn value(n: u64) -> [u8; 16] {
    let bytes = [n.to_ne_bytes(), n.to_ne_bytes()];
    std::array::from_fn(|i| bytes[i / 8][i % 8])
}

fn pop(queue: &Queue) -> Option<u64> {
    let mut out = [0; 16];
    queue.pop(&mut out).ok()?;
    let n = u64::from_ne_bytes(out[..8].try_into().unwrap());
    assert_eq!(out, value(n), "torn");
    Some(n)
}

#[test]
fn values_of_two_pushers_are_popped_once_each_and_whole() {
    model(2, || {
        Memory::begin(256);
        lay_out_queue(base(), 2, 16);
        // SAFETY: the head was written to the model's memory.
        let queue = unsafe { Queue::attach(base(), 0) };
        let pushers = [1, 2].map(|n| {
            let queue = queue.clone();
            thread::spawn(move || match queue.push(&value(n), Flag::Any) {
                Ok(()) => Some(n),
                Err(error) => {
                    assert_eq!(error, Error::Busy);
                    None
                }
            })
        });
        let popper = thread::spawn({
            let queue = queue.clone();
            move || pop(&queue)
        });
        let pushed: Vec<u64> = pushers.into_iter().filter_map(|p| p.join().unwrap()).collect();
        let mut popped: Vec<u64> = popper.join().unwrap().into_iter().collect();
        popped.extend(std::iter::from_fn(|| pop(&queue)));
        popped.sort_unstable();
        assert_eq!(pushed, popped);
    });
}
