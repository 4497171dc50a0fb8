//! Queues and stacks: order, what is full or empty, threads, another view (Q1, Q2).

use map::{Error, Flag, Order, Queue};
use objcache::{Arena, CHUNK};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn made(order: Order, entries: u32) -> Queue {
    Queue::create(&Arena::private(64 * CHUNK).unwrap(), order, entries, 12).unwrap()
}

fn value(n: u32) -> [u8; 12] {
    std::array::from_fn(|i| n.to_ne_bytes()[i % 4])
}

fn pop(queue: &Queue) -> Result<u32, Error> {
    let mut out = [0; 12];
    queue.pop(&mut out)?;
    let n = u32::from_ne_bytes(out[..4].try_into().unwrap());
    assert_eq!(out, value(n), "torn");
    Ok(n)
}

#[test]
fn a_queue_gives_the_oldest_and_a_stack_the_newest() {
    for order in [Order::Queue, Order::Stack] {
        let queue = made(order, 3);
        for turn in 0..4 {
            let base = turn * 10;
            assert_eq!((pop(&queue), queue.peek(&mut [0; 12])), (Err(Error::NotFound), Err(Error::NotFound)));
            (0..3).for_each(|n| queue.push(&value(base + n), Flag::Any).unwrap());
            assert_eq!(queue.push(&value(7), Flag::Any), Err(Error::Full));
            // The oldest makes room.
            queue.push(&value(base + 3), Flag::Exist).unwrap();
            let mut wanted = [base + 1, base + 2, base + 3];
            if order == Order::Stack {
                wanted.reverse();
            }
            for (nth, wanted) in wanted.into_iter().enumerate() {
                let mut out = [0; 12];
                assert_eq!((queue.nth(nth as u32, &mut out), out), (Ok(()), value(wanted)));
            }
            assert_eq!(queue.nth(3, &mut [0; 12]), Err(Error::NotFound));
            assert_eq!(wanted.map(|_| pop(&queue).unwrap()), wanted);
        }
    }
    let queue = made(Order::Queue, 3);
    assert_eq!(queue.push(&[0; 8], Flag::Any), Err(Error::Length { given: 8, wanted: 12 }));
    assert_eq!(queue.pop(&mut [0; 16]), Err(Error::Length { given: 16, wanted: 12 }));
    assert_eq!(queue.push(&value(1), Flag::NoExist), Err(Error::Exists));
    let none = Queue::create(&Arena::private(64 * CHUNK).unwrap(), Order::Queue, 0, 8);
    assert!(matches!(none, Err(Error::Setup(_))));
}

#[test]
fn every_value_is_popped_once_by_whatever_thread() {
    for order in [Order::Queue, Order::Stack] {
        let queue = made(order, 64);
        let (pushed, popped, count) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let each = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (queue, pushed, popped, count) = (&queue, &pushed, &popped, &count);
                scope.spawn(move || {
                    for n in 0..each {
                        let n = thread * each + n + 1;
                        if queue.push(&value(n), Flag::Any).is_ok() {
                            pushed.fetch_add(u64::from(n), Relaxed);
                            count.fetch_add(1, Relaxed);
                        }
                        if n % 2 == 0
                            && let Ok(n) = pop(queue)
                        {
                            popped.fetch_add(u64::from(n), Relaxed);
                            count.fetch_sub(1, Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(u64::from(queue.len()), count.load(Relaxed));
        while let Ok(n) = pop(&queue) {
            popped.fetch_add(u64::from(n), Relaxed);
        }
        assert_eq!(pushed.load(Relaxed), popped.load(Relaxed));
    }
}

#[test]
fn another_mapping_and_a_view_that_believes_nothing_find_the_same() {
    let arena = Arena::private(64 * CHUNK).unwrap();
    let queue = Queue::create(&arena, Order::Stack, 5, 12).unwrap();
    (0..3).for_each(|n| queue.push(&value(n), Flag::Any).unwrap());
    // SAFETY: it lies there, and the arena outlives the handle.
    let other = unsafe { Queue::attach(arena.base(), queue.offset()) };
    assert_eq!((pop(&other), other.len(), other.entries()), (Ok(2), 2, 5));
    // SAFETY: the arena's bytes, mapped for as long as the view is used, used as atomics alone.
    let view = unsafe { wire::Untrusted::new(arena.base(), 64 * CHUNK) };
    let seen = Queue::in_untrusted(view, queue.offset(), Order::Stack, 5, 12).unwrap();
    let mut out = [0; 12];
    assert_eq!((seen.peek(&mut out), out, seen.len()), (Ok(()), value(1), 2));
    for (order, entries, value) in [(Order::Queue, 5, 12), (Order::Stack, 6, 12), (Order::Stack, 5, 16)] {
        let seen = Queue::in_untrusted(view, queue.offset(), order, entries, value);
        assert_eq!(seen.err(), Some(Error::Damaged));
    }
    let seen = Queue::in_untrusted(view, 64 * CHUNK - 64, Order::Stack, 5, 12);
    assert_eq!(seen.err(), Some(Error::Damaged));
}
