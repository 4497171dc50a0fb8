//! What programs call.
//!
//! For:     programs at hits; each is found by the number that `wire::Helper` gives it.
//! State:   the run's own.
//! Context: hit, inside a program's run.
//! Keeps:   H1 nothing of the target's libc is called, nothing is locked or allocated, no vector register is touched.
//!          H2 a system call is made only where nothing else tells: each is named here.
//! Checked: session `the_agent_makes_system_calls_in_few_places`; testkit `programs_at_hits`.

use crate::cell::Adder;
use crate::trace::tid;
use wire::{Hit, SiteDesc};

/// What a helper is.
pub type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut Hit) -> u64;

/// () -> nanoseconds of the monotonic clock, by a system call.
///
/// # Safety
/// None of its own; the type is that of all.
#[inline(never)]
pub unsafe extern "C" fn ktime_get_ns(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut Hit) -> u64 {
    sys::monotonic_ns()
}

/// () -> process << 32 | thread, in the target's own pid namespace; the thread by a system call where its libc has not
/// written it down.
///
/// # Safety
/// `hit` must be the run's.
#[inline(never)]
pub unsafe extern "C" fn pid_tgid<A: Adder>(_: u64, _: u64, _: u64, _: u64, _: u64, hit: *mut Hit) -> u64 {
    // SAFETY: passed on from the caller.
    let (site, copy) = unsafe { site_and_copy(hit) };
    let process =
        if copy > wire::COPY_NONE && site.process != 0 { site.process } else { sys::getpid().into() };
    // SAFETY: the controller has seen that the word is there in each thread whose block is known.
    let known = if A::is_known(copy, site) { unsafe { tid(site) } } else { 0 };
    let thread = if known != 0 { known } else { sys::gettid().into() };
    process << 32 | thread
}

/// () -> number of the CPU that the thread was on a moment ago.
///
/// # Safety
/// None of its own.
#[inline(never)]
pub unsafe extern "C" fn smp_processor_id(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut Hit) -> u64 {
    u64::from(percpu::cpu_by_segment())
}

/// (context) -> the consumer's cookie.
///
/// # Safety
/// `hit` must be the run's.
#[inline(never)]
pub unsafe extern "C" fn cookie(_: u64, _: u64, _: u64, _: u64, _: u64, hit: *mut Hit) -> u64 {
    // SAFETY: passed on from the caller.
    unsafe { (*hit).cookie }
}

/// # Safety
/// `hit` must be the run's.
#[inline(always)]
unsafe fn site_and_copy<'a>(hit: *mut Hit) -> (&'a SiteDesc, u64) {
    // SAFETY: passed on from the caller.
    let Hit { site, copy, .. } = unsafe { *hit };
    // SAFETY: a site's description lives as long as its trampoline can be run.
    (unsafe { &*(site as *const SiteDesc) }, copy)
}
