// Functions of many shapes, panics that are caught, and a signal handler that may interrupt any of them.
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::hint::black_box;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static SINK: AtomicUsize = AtomicUsize::new(0);

extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn raise(number: i32) -> i32;
}

extern "C" fn handler(_: i32) {
    leaf(1);
}

#[inline(never)]
fn leaf(n: usize) -> usize {
    SINK.fetch_add(black_box(n), Relaxed)
}

#[inline(never)]
fn deep(n: usize) -> usize {
    let room = black_box([n; 16]);
    if n == 0 { leaf(room[3]) } else { deep(n - 1) + room[n & 15] }
}

trait Shape {
    fn area(&self, n: usize) -> usize;
}

struct Square(usize);
struct Named(String);

impl Shape for Square {
    fn area(&self, n: usize) -> usize {
        leaf(self.0 * n)
    }
}

impl Shape for Named {
    fn area(&self, n: usize) -> usize {
        leaf(self.0.len() + n)
    }
}

#[inline(never)]
fn caught(n: usize) -> usize {
    let held = vec![n; 4];
    catch_unwind(move || if n % 16 == 0 { panic!("the sixteenth") } else { deep(held[n & 3] & 7) }).unwrap_or(n)
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);
    std::panic::set_hook(Box::new(|_| {
        leaf(2);
    }));
    // SAFETY: a handler that adds to an atomic.
    unsafe {
        signal(10, handler);
        raise(10);
    }
    for n in 0..rounds {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for word in "a function is left by the return address that its call has pushed".split(' ') {
            *counts.entry(word.to_uppercase()).or_default() += word.len();
        }
        let sorted: BTreeMap<&str, usize> = counts.iter().map(|(word, n)| (word.as_str(), *n)).collect();
        let mut text = String::new();
        for (word, count) in &sorted {
            write!(text, "{word}:{count} {:6.2} ", *count as f64 / 3.0).unwrap();
        }
        let mut numbers: Vec<u32> = (0..200).map(|i| (i * 7919 + n as u32) % 1009).collect();
        numbers.sort_by_key(|number| std::cmp::Reverse(*number));
        let shapes: [Box<dyn Shape>; 2] = [Box::new(Square(n)), Box::new(Named(text))];
        let areas: usize = shapes.iter().map(|shape| shape.area(n)).sum();
        leaf(areas ^ numbers[7] as usize ^ deep(n & 31) ^ caught(n));
    }
    println!("{}", SINK.load(Relaxed) > 0);
}
