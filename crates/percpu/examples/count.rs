//! Counts from several threads without a shared line, and reads the exact sum.

use std::sync::Arc;

fn main() {
    let counter = Arc::new(percpu::Counter::new());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let counter = counter.clone();
            std::thread::spawn(move || (0..100_000).for_each(|_| counter.inc()))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a counting thread does not panic");
    }
    assert_eq!(counter.sum(), 400_000);
    println!("{} on {} CPUs", counter.sum(), percpu::possible_cpus());
}
