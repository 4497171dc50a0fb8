//! Who runs, where, and when.
//!
//! For:     programs.
//! State:   the clocks that the controller keeps in the head of the maps (map::Timekeeper).
//! Context: hit. A system call where nothing in the process tells: users and groups, a thread's name, the parent; the thread's number
//!          and the process's where its libc has not written them down; clocks where the counter is not to be used, or where the
//!          controller has not been there to say how it goes on.
//! Keeps:   L1 a clock's numbers are of one span, or the kernel is asked; on a CPU no clock goes back.
//!          L2 nothing is asked of the kernel where a seccomp filter could end the process for it: then the result is 0, and counted.
//! Checked: tests/helpers.

use crate::arch::{self, ticks};
use crate::around::{Around, errno};
use crate::bytes::{copy, zero};
use crate::cell::Adder;
use crate::trace::tid;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::fence;
use wire::maps::HelperError::{BadArgument, Call, NoHelper};
use wire::maps::{Clock, Span};
use wire::needs;

/// How often a span is looked at: each, and again, for one may be written meanwhile.
const LOOKS: usize = 4;
/// A clock that stood still for less than so many nanoseconds goes on.
const STEPPED: u64 = 100_000;
/// Nanoseconds of a jiffy.
const JIFFY_NS: u64 = 4_000_000;

/// Kinds of [`Around::about`], as `bpf::helper::About` numbers them.
pub mod about {
    /// The parent.
    pub const PPID: u64 = 0;
    /// The first thread.
    pub const LEADER_TID: u64 = 2;
    /// The control group.
    pub const CGROUP: u64 = 4;
    /// Process and thread as the first pid namespace numbers them.
    pub const INIT_PID_TGID: u64 = 5;
    /// Ticks since boot.
    pub const JIFFIES: u64 = 6;
    /// When tracing began.
    pub const BEGAN: u64 = 7;
}

/// The two clocks that go ahead of the monotonic one.
#[derive(Clone, Copy)]
enum Ahead {
    No,
    Boot,
    Tai,
}

impl Around<'_> {
    /// Nanoseconds of the monotonic clock.
    #[inline(always)]
    pub fn monotonic(&self) -> u64 {
        self.clock(Ahead::No)
    }

    /// Nanoseconds of the clock that goes on in suspend.
    pub fn boot_time(&self) -> u64 {
        self.clock(Ahead::Boot)
    }

    /// Nanoseconds of atomic time.
    pub fn atomic_time(&self) -> u64 {
        self.clock(Ahead::Tai)
    }

    #[inline(always)]
    fn clock(&self, ahead: Ahead) -> u64 {
        let Clock { spans, boot, tai } = &self.maps.clock;
        let more = match ahead {
            Ahead::No => 0,
            Ahead::Boot => boot.load(Relaxed),
            Ahead::Tai => tai.load(Relaxed),
        };
        // Orders nothing: it never changes but for the children's bit.
        if self.desc.needs.load(Relaxed) & needs::COUNTER == 0 {
            return self.asked(ahead, None);
        }
        match counted_at_once(spans).map_or_else(|| counted(spans), Ok) {
            Ok(ns) => ns.wrapping_add(more),
            Err(least) => self.asked(ahead, least.map(|ns| ns.wrapping_add(more))),
        }
    }

    /// What the kernel says, but not less than `least`: the clock stands until the kernel's is as far.
    #[cold]
    #[inline(never)]
    fn asked(&self, ahead: Ahead, least: Option<u64>) -> u64 {
        if least.is_some() && !self.may_ask() {
            return least.unwrap_or_default();
        }
        if !self.may_call() {
            return 0;
        }
        let said = sys::clock_ns(match ahead {
            Ahead::No => sys::MONOTONIC,
            Ahead::Boot => sys::BOOTTIME,
            Ahead::Tai => sys::TAI,
        });
        // One that was so far behind has made a step, as when the machine was asleep.
        said.max(least.filter(|least| *least < said.saturating_add(STEPPED)).unwrap_or_default())
    }

    /// The thread.
    #[inline(always)]
    pub fn thread<A: Adder>(&self) -> u32 {
        // SAFETY: the controller has seen that the word is there in each thread whose block is known.
        let known = if A::is_known(self.copy, self.site) { unsafe { tid(self.site) } } else { 0 };
        match known {
            0 if self.may_call() => sys::gettid(),
            known => known as u32,
        }
    }

    /// process << 32 | thread, in the target's own pid namespace.
    pub fn process_and_thread<A: Adder>(&self) -> u64 {
        let is_known = self.copy > wire::COPY_NONE && self.site.process != 0;
        let process = match is_known {
            true => self.site.process.into(),
            false => if_called(self.may_call(), sys::getpid),
        };
        process << 32 | u64::from(self.thread::<A>())
    }

    /// group << 32 | user.
    pub fn uid_gid(&self) -> u64 {
        if !self.may_call() {
            return 0;
        }
        u64::from(sys::getgid()) << 32 | u64::from(sys::getuid())
    }

    /// (to, length) -> 0; the name of the thread with a NUL.
    pub fn comm(&self, to: u64, len: u64) -> u64 {
        if !self.may_write(to, len) {
            return self.refused(BadArgument, errno::EINVAL);
        }
        let mut name = [0; 16];
        if self.may_call() && sys::thread_name(&mut name).is_err() {
            self.failed(Call);
        }
        let Some((last, to)) = self.bytes_mut(to, len).and_then(|to| to.split_last_mut()) else { return 0 };
        *last = 0;
        let letters = to.len().min(name.len());
        // SAFETY: so many bytes of both are there, and `to` is borrowed mutably. By no call of memcpy, which a loop would become.
        unsafe { copy(to.as_mut_ptr() as u64, name.as_ptr() as u64, letters as u64) };
        zero(to.get_mut(letters..).unwrap_or_default());
        0
    }

    /// 32 bits that nobody can foretell well enough to matter: of the counter, mixed.
    pub fn random(&self) -> u64 {
        // An address on this thread's stack: it differs from thread to thread.
        let here = core::ptr::from_ref(self) as u64;
        let seed = self.monotonic() ^ here.rotate_left(32);
        let mixed = u128::from(seed ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        u64::from((mixed >> 64) as u32 ^ mixed as u32)
    }

    /// The CPU.
    pub fn cpu(&self) -> u64 {
        arch::cpu(self.site, self.copy > wire::COPY_NONE, || self.may_call())
    }

    /// The CPU's node.
    pub fn node(&self) -> u64 {
        arch::node(|| self.may_call())
    }

    /// (kind) -> something about the thread. Names are the controller's to find out.
    pub fn about<A: Adder>(&self, kind: u64) -> u64 {
        match kind {
            about::PPID => if_called(self.may_call(), sys::getppid),
            about::LEADER_TID => if_called(self.may_call(), sys::getpid),
            about::CGROUP => self.maps.cgroup,
            about::INIT_PID_TGID if self.maps.outer_pid == 0 => {
                if_called(self.may_call(), sys::getpid) << 32 | u64::from(self.thread::<A>())
            }
            about::INIT_PID_TGID => self.maps.outer_pid << 32 | self.maps.outer_pid,
            about::JIFFIES => self.monotonic() / JIFFY_NS,
            about::BEGAN => self.maps.began,
            _ => self.refused(NoHelper, errno::ENOSYS),
        }
    }

    /// The process that was started with the tracing.
    pub fn child(&self) -> u64 {
        self.maps.child
    }
}

/// The same where one of the spans is of now and nobody writes it: nearly always. The counter is read once.
#[inline(always)]
pub(crate) fn counted_at_once(spans: &[Span; 2]) -> Option<u64> {
    // Only in processes that have not asked for a trap of it (needs::COUNTER).
    let now = ticks();
    for span in spans {
        // [MAP-55] As [MAP-47]. Pairs with [MAP-45], [MAP-46].
        let before = span.version.load(Acquire);
        let (from, until) = (span.from.load(Relaxed), span.until.load(Relaxed));
        let since = now.wrapping_sub(from);
        if since >= until.wrapping_sub(from) || before & 1 != 0 {
            continue;
        }
        let since = (u128::from(since) * u128::from(span.ns_per_tick.load(Relaxed))) >> 32;
        let time = span.ns.load(Relaxed).wrapping_add(since as u64);
        // [MAP-56] As [MAP-48]. Pairs with [MAP-45].
        fence(Acquire);
        if span.version.load(Relaxed) == before {
            return Some(time);
        }
    }
    None
}

/// Nanoseconds of the monotonic clock by the counter. `Err`: no span is of now; the clock was not behind so much when the last ended.
#[cold]
#[inline(never)]
fn counted(spans: &[Span; 2]) -> Result<u64, Option<u64>> {
    let mut least = None;
    for span in spans.iter().cycle().take(LOOKS) {
        // [MAP-47] Numbers of one writing. Pairs with [MAP-45], [MAP-46].
        let before = span.version.load(Acquire);
        // Only in processes that have not asked for a trap of it (needs::COUNTER).
        let now = ticks();
        let (from, until) = (span.from.load(Relaxed), span.until.load(Relaxed));
        let since = now.min(until).wrapping_sub(from);
        let since = (u128::from(since) * u128::from(span.ns_per_tick.load(Relaxed))) >> 32;
        let time = span.ns.load(Relaxed).wrapping_add(since as u64);
        // [MAP-48] The numbers before the second look at the version. Pairs with [MAP-45].
        fence(Acquire);
        if now < from || before == 0 || before & 1 != 0 || span.version.load(Relaxed) != before {
            continue;
        }
        if now < until {
            return Ok(time);
        }
        least = least.max(Some(time));
    }
    Err(least)
}

/// What a system call says, or 0.
#[inline(always)]
fn if_called(may: bool, call: impl FnOnce() -> u32) -> u64 {
    if may { call().into() } else { 0 }
}
