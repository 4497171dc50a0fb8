//! A Rust process whose functions are called a known number of times, by eight threads in mid-run.
//!
//! Commands and answers are those of counted.c. `work` has a mangled name, `work_plain` has not,
//! `shapes::Area::of` is a generic method, and `work_panics` unwinds through its caller.
use std::hint::black_box;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Barrier, Mutex};

const THREADS: u64 = 8;

#[inline(never)]
fn idle_work(x: u64) -> u64 {
    black_box(x).wrapping_mul(2654435761).wrapping_add(1)
}

#[inline(never)]
pub fn work(x: u64) -> u64 {
    black_box(x) * 3 + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn work_plain(x: u64) -> u64 {
    black_box(x) + 9
}

mod shapes {
    pub trait Area {
        fn of(&self, scale: u64) -> u64;
    }
    pub struct Square(pub u64);
    impl Area for Square {
        #[inline(never)]
        fn of(&self, scale: u64) -> u64 {
            std::hint::black_box(self.0) * self.0 * scale
        }
    }
}

#[inline(never)]
fn work_panics(x: u64) -> u64 {
    if black_box(x) % 16 == 5 {
        std::panic::resume_unwind(Box::new(x));
    }
    x
}

#[inline(never)]
fn work_between(x: u64) -> u64 {
    work_panics(x) + black_box(0)
}

fn turn_work(i: u64) -> bool {
    work(i) == i * 3 + 1
}
fn turn_plain(i: u64) -> bool {
    work_plain(i) == i + 9
}
fn turn_area(i: u64) -> bool {
    use shapes::Area;
    black_box(&shapes::Square(i % 100)).of(2) == (i % 100) * (i % 100) * 2
}
fn turn_between(i: u64) -> bool {
    match std::panic::catch_unwind(|| work_between(i)) {
        Ok(got) => got == i && i % 16 != 5,
        Err(thrown) => thrown.downcast_ref() == Some(&i) && i % 16 == 5,
    }
}

const TURNS: &[(&str, fn(u64) -> bool)] =
    &[("work", turn_work), ("work_plain", turn_plain), ("area", turn_area), ("work_between", turn_between)];

static ORDERED: AtomicU64 = AtomicU64::new(0);
static QUIT: AtomicBool = AtomicBool::new(false);
static IDLE: AtomicU64 = AtomicU64::new(0);

fn busy(order: Arc<Mutex<(usize, u64)>>, done: Arc<Barrier>) {
    let (mut seen, mut x) = (0, 1);
    while !QUIT.load(Relaxed) {
        let number = ORDERED.load(Acquire);
        if number == seen {
            for _ in 0..100 {
                x = idle_work(x);
            }
            IDLE.fetch_add(100, Relaxed);
            continue;
        }
        seen = number;
        let (row, turns) = *order.lock().unwrap();
        for i in 0..turns {
            if !(TURNS[row].1)(i) {
                eprintln!("counted: {} returned a wrong value", TURNS[row].0);
                std::process::exit(99);
            }
        }
        done.wait();
    }
}

fn main() {
    let order = Arc::new(Mutex::new((0, 0)));
    let done = Arc::new(Barrier::new(THREADS as usize + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (order, done) = (order.clone(), done.clone());
            std::thread::spawn(move || busy(order, done))
        })
        .collect();
    println!("ready pid={}", std::process::id());
    let mut total = [0u64; TURNS.len()];
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["quit"] => break,
            ["totals"] => print_totals(&total),
            ["run", calls, ref name @ ..] => {
                let name = name.first().unwrap_or(&"work");
                let calls: u64 = calls.parse().unwrap_or(1);
                let Some(row) = TURNS.iter().position(|t| t.0 == *name) else {
                    println!("refused {line}");
                    continue;
                };
                *order.lock().unwrap() = (row, calls / THREADS);
                ORDERED.fetch_add(1, Release);
                done.wait();
                total[row] += calls / THREADS * THREADS;
                println!("calls {name}={} idle={}", calls / THREADS * THREADS, IDLE.load(Relaxed));
            }
            _ => println!("refused {line}"),
        }
    }
    QUIT.store(true, Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    print_totals(&total);
    std::process::exit(7);
}

fn print_totals(total: &[u64]) {
    print!("totals idle={}", IDLE.load(Relaxed));
    for (row, calls) in total.iter().enumerate().filter(|t| *t.1 > 0) {
        print!(" {}={calls}", TURNS[row].0);
    }
    println!();
}
