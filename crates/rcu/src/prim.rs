//! Atomics and fences; the only file that knows loom.
//!
//! For:     the whole crate.
//! State:   none.
//! Context: hit, signal, target.
//! Keeps:   M1 `light` in a reader and `heavy` in a grace period together order like two full fences.
//! Orderings: this file makes fences; the labels stand where they are used.
//! Checked: the models run with both as full fences; `torture rcu` runs the real ones.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

pub use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The reader's half of the asymmetric pair: it only holds back the compiler.
#[inline(always)]
pub fn light() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    if LIGHT_FENCES.get() {
        loom::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
}

// loom runs all threads of a model on the thread of its test.
#[cfg(loom)]
std::thread_local! {
    static LIGHT_FENCES: core::cell::Cell<bool> = const { core::cell::Cell::new(true) };
}

/// Runs models in which `light` is the nothing that it is to the hardware.
///
/// Good where no process-wide fence takes part, which no model can show.
#[cfg(loom)]
pub fn without_light_fences(models: impl FnOnce()) {
    LIGHT_FENCES.set(false);
    models();
    LIGHT_FENCES.set(true);
}

/// Orders everything before against everything after, on this CPU.
#[inline(always)]
pub fn full() {
    #[cfg(not(loom))]
    {
        // The instruction comes from assembly that the compiler may not see through, and the
        // compiler fences keep it from moving plain accesses across.
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        percpu::full_fence();
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }
    #[cfg(loom)]
    loom::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Orders the loads before against everything after.
#[inline(always)]
pub fn acquire() {
    #[cfg(not(loom))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
    #[cfg(loom)]
    loom::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
}

/// Adds with an atomic read-modify-write that is also a full fence.
#[inline(always)]
pub fn add_full(cell: &AtomicU64, n: u64) {
    // On x86-64 a locked add is a full fence; elsewhere it needs one beside it.
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        // SeqCst: only it forbids the compiler to move plain accesses across in either direction.
        cell.fetch_add(n, core::sync::atomic::Ordering::SeqCst);
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    {
        full();
        cell.fetch_add(n, Relaxed);
        full();
    }
}

/// Stores over what another thread may have changed by a read-modify-write since the caller's load.
///
/// loom does not order a plain store after such a change, so that a model of who waits for the store
/// would never end. A swap there loses the change just as well.
#[inline(always)]
pub fn overwrite(cell: &AtomicU64, value: u64) {
    #[cfg(not(loom))]
    cell.store(value, Relaxed);
    #[cfg(loom)]
    cell.swap(value, Relaxed);
}
