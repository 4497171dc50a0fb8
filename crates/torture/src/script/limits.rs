//! What one script may take: time and memory.
//!
//! For:     `torture lang`.
//! State:   the number of the script that is tried, for whoever is told that it is too much.
//! Context: control; a signal handler that writes one line and ends the process.
//! Keeps:   M1 a script that does not end, or takes too much memory, is named by its number and fails the run.
//! Checked: by hand: `--broken endless`.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of the processor's time; most scripts take less than a millisecond.
const CPU_SECONDS: i64 = 60;
/// Until one that waits is given up. A process that gets no processor is no script that does not end.
const SECONDS: u32 = 1200;
/// Of everything that is mapped.
const MEMORY_BYTES: u64 = 4 << 30;

static SEED: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// From now on.
pub fn set() {
    let limit = libc::rlimit { rlim_cur: MEMORY_BYTES, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call reads the struct, which lives until it is back.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    for signal in [libc::SIGALRM, libc::SIGPROF, libc::SIGABRT] {
        // SAFETY: the handler makes system calls alone and does not come back.
        unsafe { libc::signal(signal, too_much as *const () as libc::sighandler_t) };
    }
}

/// A script is tried.
pub fn begin(seed: u64, number: u64) {
    SEED.store(seed, Ordering::Relaxed);
    NUMBER.store(number, Ordering::Relaxed);
    limit(CPU_SECONDS, SECONDS);
}

/// The last one is over.
pub fn end() {
    limit(0, 0);
}

/// Sets both alarms anew; 0 is none.
fn limit(cpu_seconds: i64, seconds: u32) {
    // SAFETY: a struct of numbers, for which zeros are values.
    let mut timer: libc::itimerval = unsafe { std::mem::zeroed() };
    timer.it_value.tv_sec = cpu_seconds;
    // SAFETY: the call reads the struct, which lives until it is back; the handler stands.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
    // SAFETY: the handler stands.
    unsafe { libc::alarm(seconds) };
}

extern "C" fn too_much(signal: libc::c_int) {
    let what = if signal == libc::SIGABRT { "aborted: out of memory?" } else { "does not end" };
    let (seed, number) = (SEED.load(Ordering::Relaxed), NUMBER.load(Ordering::Relaxed));
    let mut line = [0u8; 160];
    let mut rest = &mut line[..];
    // Into the array: no memory is taken.
    let _ = write!(
        rest,
        "lang-torture: script {number} of seed {seed} {what}\nFAIL seed={seed} script={number}\n"
    );
    let len = 160 - rest.len();
    // SAFETY: the call reads the array, which lives until it is back, and may be made in a handler.
    unsafe { libc::write(1, line.as_ptr().cast(), len) };
    // SAFETY: the call takes no memory and may be made in a handler.
    unsafe { libc::_exit(1) }
}
