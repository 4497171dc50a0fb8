//! Signals between the threads of the target, whose handlers call probed functions.
//!
//! For:     hits in handlers, on another stack too, and stops of threads that are in one.
//! State:   each thread's row and how often its handlers ran; the alternate stacks.
//! Context: target, signal.
//! Keeps:   S1 SIGALRM's handler runs on an alternate stack, SIGUSR1's on the stack that it interrupts; each may
//!             interrupt the other.
//! Checked: `tests/uprobe_live.rs`.

use super::functions::Caller;
use super::roles::Part;
use super::shared::{Row, Shared};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

thread_local! {
    // Without a destructor, so that a handler may look at any time.
    static MINE: Cell<Option<(&'static Row, &'static Shared)>> = const { Cell::new(None) };
}

/// What one handler's calls are drawn from.
static STREAM: AtomicU64 = AtomicU64::new(0);

/// Bytes of an alternate stack: a few calls deep, with room for large register sets.
const STACK: usize = 128 << 10;

extern "C" fn on_signal(_: i32) {
    let Some((row, shared)) = MINE.get() else { return };
    let mut caller = Caller::new(7, STREAM.fetch_add(1, Relaxed), Some(row), 0);
    caller.call_some(6);
    shared.handled.fetch_add(1, Relaxed);
    shared.wrong.fetch_add(caller.wrong, Relaxed);
}

/// The alternate stack of a thread that receives signals; it must be kept until the thread ends.
pub struct Stack {
    _memory: Vec<u8>,
}

/// From now on the calling thread's handlers count in `row`.
pub fn receive(row: &'static Row, shared: &'static Shared) -> Stack {
    let mut memory = vec![0u8; STACK];
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK };
    // SAFETY: the memory is that long, and the caller keeps it; `Drop` takes it back from the kernel.
    let set = unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    MINE.set(Some((row, shared)));
    let actions =
        [act(libc::SIGUSR1, libc::SA_RESTART), act(libc::SIGALRM, libc::SA_RESTART | libc::SA_ONSTACK)];
    if set != 0 || actions != [0, 0] {
        shared.refused.fetch_add(1, Relaxed);
    }
    Stack { _memory: memory }
}

fn act(signal: i32, flags: i32) -> i32 {
    // SAFETY: a struct of numbers, a mask and a pointer, for which zeros are values.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: the handler touches its own stack, atomics and a thread-local without a destructor.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }
}

impl Drop for Stack {
    fn drop(&mut self) {
        MINE.set(None);
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: no handler runs in this thread on that stack, for this is not one.
        unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) };
    }
}

/// Sends signals to the threads that call, in bursts.
pub fn send(part: Part) {
    let mut rng = part.rng();
    let pid = sys::getpid() as i32;
    while !part.shared.is_over() {
        for _ in 0..rng.below(8) + 1 {
            let row = rng.below(part.orders.calls as u64) as usize;
            let tid = part.shared.rows[row].tid.load(Relaxed);
            let signal = if rng.one_in(2) { libc::SIGUSR1 } else { libc::SIGALRM };
            if tid != 0 {
                // A thread that has just ended is an error that nobody needs.
                // SAFETY: tgkill takes numbers only; the thread has handlers for both.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
                part.shared.signals.fetch_add(1, Relaxed);
            }
        }
        std::thread::sleep(Duration::from_micros(rng.below(300)));
    }
}
