//! The process that `torture uprobe` attaches to.
//!
//! For:     the backends with a real target: `nanoprobe` and `kernel`.
//! State:   counters in memory that it shares with the torture; what it is told comes on its standard input.
//! Context: it is the target.
//! Keeps:   P1 it ends soon after its input ends, whatever its threads do.
//!          P2 a wrong result of a probed function is counted, and makes its exit status 99.
//! Checked: `tests/uprobe_live.rs`.

pub mod children;
pub mod functions;
pub mod loading;
pub mod roles;
pub mod shared;
pub mod signals;

use functions::Caller;
use shared::Shared;
use std::io::{BufRead, Write};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::{self, JoinHandle};

/// How the target is told that it is this one, and not that of `torture attach`.
pub const ROLE: &str = "uprobe";
/// The same for a child that has executed itself.
pub const CHILD: &str = "uprobe-child";

/// What the target is told; passed as words.
#[derive(Clone, Debug, Default)]
pub struct Orders {
    /// Descriptor of the shared memory.
    pub memory: i32,
    pub seed: u64,
    pub calls: usize,
    pub mmap: usize,
    pub fork: usize,
    pub dlopen: usize,
    pub signals: usize,
    pub exec: usize,
    /// Each thread forgets to count one call in so many; 0: none.
    pub forget: u64,
    /// The library with probed functions; empty: none.
    pub library: String,
}

impl Orders {
    pub fn words(&self) -> Vec<String> {
        let n = [
            self.memory as u64,
            self.seed,
            self.calls as u64,
            self.mmap as u64,
            self.fork as u64,
            self.dlopen as u64,
            self.signals as u64,
            self.exec as u64,
            self.forget,
        ];
        let words = [ROLE.to_string()].into_iter().chain(n.iter().map(u64::to_string));
        words.chain([self.library.clone()]).collect()
    }

    fn parse(words: &[String]) -> Option<Orders> {
        let n: Vec<u64> = words.iter().take(9).map_while(|w| w.parse().ok()).collect();
        let &[memory, seed, calls, mmap, fork, dlopen, signals, exec, forget] = n.as_slice() else {
            return None;
        };
        Some(Orders {
            memory: memory as i32,
            seed,
            calls: calls as usize,
            mmap: mmap as usize,
            fork: fork as usize,
            dlopen: dlopen as usize,
            signals: signals as usize,
            exec: exec as usize,
            forget,
            library: words.get(9).cloned().unwrap_or_default(),
        })
    }
}

/// Is the target; the words behind [`ROLE`].
pub fn target_main(words: &[String]) -> i32 {
    let Some(orders) = Orders::parse(words) else { return 2 };
    let Some(shared) = Shared::open(orders.memory) else { return 2 };
    say("ready");
    let mut lines = std::io::stdin().lock().lines();
    if !matches!(lines.next(), Some(Ok(line)) if line == "go") {
        return 3;
    }
    let threads = start(&orders, shared);
    let told_to_stop = matches!(lines.next(), Some(Ok(line)) if line == "stop");
    shared.stop.store(1, SeqCst);
    if !told_to_stop {
        return 3;
    }
    let is_whole = threads.into_iter().all(|t| t.join().is_ok());
    say("stopped");
    // Stays until all probes are out.
    let _ = lines.next();
    let is_right = is_whole && shared.wrong.load(Relaxed) == 0;
    if is_right { 0 } else { 99 }
}

fn say(word: &str) {
    println!("{word}");
    let _ = std::io::stdout().flush();
}

fn start(orders: &Orders, shared: &'static Shared) -> Vec<JoinHandle<()>> {
    let roles: [(usize, fn(roles::Part)); 6] = [
        (orders.calls, roles::call),
        (orders.mmap, roles::mmap),
        (orders.fork, children::fork),
        (orders.exec, children::exec),
        (orders.dlopen, loading::dlopen),
        (orders.signals, signals::send),
    ];
    let mut stream = 1000;
    let mut threads = Vec::new();
    for (n, role) in roles {
        for index in 0..n {
            stream += 1;
            let part = roles::Part { orders: orders.clone(), shared, stream, index };
            threads.push(thread::spawn(move || role(part)));
        }
    }
    threads
}

/// Is a child that has executed itself: the words behind [`CHILD`] are the shared memory's descriptor, how often to
/// execute itself again, and the seed.
pub fn child_main(words: &[String]) -> i32 {
    let n: Vec<u64> = words.iter().map_while(|w| w.parse().ok()).collect();
    let &[memory, again, seed] = n.as_slice() else { return 2 };
    let Some(shared) = Shared::open(memory as i32) else { return 2 };
    let mut caller = Caller::new(seed, again, None, 0);
    for _ in 0..20 {
        caller.call_some(24);
    }
    shared.exec_calls.fetch_add(caller.made, Relaxed);
    if caller.wrong > 0 {
        shared.wrong.fetch_add(caller.wrong, Relaxed);
        return 99;
    }
    if again > 0 {
        children::execute(&children::words(memory as i32, again - 1, seed));
        return 98;
    }
    0
}
