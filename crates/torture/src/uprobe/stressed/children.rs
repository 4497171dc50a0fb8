//! Children of the target: forked, and executed.
//!
//! For:     probes that are inherited, and address spaces that come and go.
//! State:   children that live; their ids are in the shared memory, so that they are attached to as well.
//! Context: target; a forked child of a process with threads makes system calls and touches its own stack only.
//! Keeps:   C1 a child runs 20 ms at most before it ends or executes itself, and is waited for.
//! Checked: `tests/uprobe_live.rs`.
//! Source:  uprobe-stress for the limits, kernel-facts 1.17.

use super::CHILD;
use super::functions::Caller;
use super::roles::Part;
use super::shared::{CHILDREN, Shared};
use std::ffi::CString;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A child that has not ended after this never will.
const PATIENCE: Duration = Duration::from_secs(60);
/// Children of a thread that live at once.
const AT_ONCE: usize = 10;

/// The words with which a child executes itself.
pub fn words(memory: i32, again: u64, seed: u64) -> Vec<CString> {
    let words =
        ["nanoprobe", "torture-target", CHILD, &memory.to_string(), &again.to_string(), &seed.to_string()];
    words.iter().filter_map(|w| CString::new(*w).ok()).collect()
}

/// Executes this program with `words`; returns only if that fails.
pub fn execute(words: &[CString]) {
    let mut pointers = [std::ptr::null(); 8];
    pointers.iter_mut().zip(words.iter().take(7)).for_each(|(p, w)| *p = w.as_ptr());
    let environment = [std::ptr::null()];
    // SAFETY: the path and the words end in zeros, both lists in null, and all outlive the call.
    unsafe { libc::execve(c"/proc/self/exe".as_ptr(), pointers.as_ptr(), environment.as_ptr()) };
}

/// A child that is waited for.
struct Child {
    pid: i32,
    slot: Option<usize>,
    since: Instant,
}

/// What a forked child does.
struct Errand {
    shared: &'static Shared,
    seed: u64,
    stream: u64,
    run_for: Duration,
    /// What it executes in the end.
    words: Option<Vec<CString>>,
}

impl Errand {
    /// Runs in the child, and ends it.
    fn run(&self) -> ! {
        let end = Instant::now() + self.run_for;
        let mut caller = Caller::new(self.seed, self.stream, Some(&self.shared.forked), 0);
        loop {
            caller.call_some(24);
            if Instant::now() >= end {
                break;
            }
        }
        let mut code = 0;
        if caller.wrong > 0 {
            self.shared.wrong.fetch_add(caller.wrong, Relaxed);
            code = 99;
        } else if let Some(words) = &self.words {
            execute(words);
            code = 98;
        }
        // SAFETY: ends this process at once; nothing of it is to be kept.
        unsafe { libc::_exit(code) }
    }

    fn send(&self) -> Option<Child> {
        // SAFETY: the child runs `run` alone: atomics, the clock, execve and _exit, on its own stack.
        match unsafe { libc::fork() } {
            0 => self.run(),
            pid if pid < 0 => None,
            pid => {
                let free = |slot: &usize| {
                    let slot = &self.shared.children[*slot];
                    slot.compare_exchange(0, pid as u32, Relaxed, Relaxed).is_ok()
                };
                Some(Child { pid, slot: (0..CHILDREN).find(free), since: Instant::now() })
            }
        }
    }
}

/// Waits for a child without blocking. True once it has ended.
fn has_ended(shared: &Shared, child: &Child) -> bool {
    let mut status = 0;
    // SAFETY: the kernel writes one i32 to `status`.
    let got = unsafe { libc::waitpid(child.pid, &mut status, libc::WNOHANG) };
    let is_late = got == 0 && child.since.elapsed() > PATIENCE;
    if got == 0 && !is_late {
        return false;
    }
    if is_late || status != 0 {
        eprintln!(
            "child {} of the target: {}, status {status:#x}",
            child.pid,
            if is_late { "stuck" } else { "ended" }
        );
        shared.lost_children.fetch_add(1, Relaxed);
    }
    if let Some(slot) = child.slot {
        shared.children[slot].store(0, Relaxed);
    }
    true
}

/// Forks, 10 at once; every third child executes itself in the end.
pub fn fork(part: Part) {
    run(part, 20_000, |rng| if rng.one_in(3) { Some(0) } else { None }, 20_000);
}

/// Forks children that execute themselves, and again, up to four times.
pub fn exec(part: Part) {
    run(part, 2_000, |rng| Some(rng.below(4)), 60_000);
}

fn run(part: Part, life_us: u64, again: fn(&mut crate::rng::Rng) -> Option<u64>, pause_us: u64) {
    let mut rng = part.rng();
    let mut children: Vec<Child> = Vec::new();
    let shared = part.shared;
    while !shared.is_over() || !children.is_empty() {
        children.retain(|child| !has_ended(shared, child));
        if children.len() < AT_ONCE && !shared.is_over() {
            let again = again(&mut rng);
            let errand = Errand {
                shared,
                seed: rng.next() >> 1,
                stream: part.stream,
                run_for: Duration::from_micros(rng.below(life_us)),
                words: again.map(|n| words(part.orders.memory, n, rng.next() >> 1)),
            };
            shared.forks.fetch_add(1, Relaxed);
            shared.execs.fetch_add(again.map_or(0, |n| n + 1), Relaxed);
            match errand.send() {
                Some(child) => children.push(child),
                None => drop(shared.refused.fetch_add(1, Relaxed)),
            }
        }
        std::thread::sleep(Duration::from_micros(rng.below(pause_us)));
    }
}
