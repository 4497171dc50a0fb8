//! What programs call.
//!
//! For:     programs at hits; each is found by the number that `wire::Helper` gives it.
//! State:   the run's own.
//! Context: hit, inside a program's run.
//! Keeps:   H1 nothing of the target's libc is called, nothing is locked or allocated, no vector register is written.
//!          H2 a system call is made only where nothing else tells: each is named in `helpers`.
//! Checked: session `the_agent_makes_system_calls_at_the_doorbell_and_in_helpers_alone`; testkit `programs`; tests/helpers.

use crate::arch;
use crate::around::{Around, Piece, consumer_of, program_of};
use crate::cell::Adder;
use crate::handler::PtRegs;
use crate::helpers::quick::{self, Quick};
use crate::helpers::vectors;
use core::sync::atomic::Ordering::Relaxed;
use wire::maps::NearAdd;
use wire::{HELPERS_LEN, Hit, SiteDesc, needs};

/// What a helper is.
pub type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut Hit) -> u64;

macro_rules! helpers {
    ($($name:ident($($arg:ident),*) = $around:ident, $hit:ident: $does:expr;)*) => {
        $(
            // One form for all: the table is made for a build. By itself: what some try before it needs none of its frame.
            #[allow(clippy::extra_unused_type_parameters)]
            #[inline(never)]
            unsafe extern "C" fn $name<A: Adder>(
                r1: u64, r2: u64, r3: u64, r4: u64, r5: u64, hit: *mut Hit,
            ) -> u64 {
                // SAFETY: the run's own (contract of all: `table`).
                let $hit = unsafe { &*hit };
                // SAFETY: as above.
                let $around = unsafe { Around::of($hit, &r5) };
                helpers!(@take [r1 r2 r3 r4] $($arg)*);
                let _ = (r1, r2, r3, r4, &$around);
                $does
            }
        )*
    };
    (@take [$($r:ident)*]) => {};
    (@take [$r:ident $($rest:ident)*] $arg:ident $($more:ident)*) => {
        let $arg = $r;
        helpers!(@take [$($rest)*] $($more)*);
    };
}

helpers! {
    ktime_get_ns_whole() = around, hit: around.monotonic();
    pid_tgid_whole() = around, hit: around.process_and_thread::<A>();
    smp_processor_id() = around, hit: around.cpu();
    cookie() = around, hit:
        // SAFETY: the hit that runs.
        unsafe { consumer_of(hit) }.cookie;
    map_lookup(map, key) = around, hit: around.map_lookup::<A>(map, key);
    map_update(map, key, value, flags) = around, hit: around.map_update::<A>(map, key, value, flags);
    map_delete(map, key) = around, hit: around.map_delete::<A>(map, key);
    prandom_u32() = around, hit: around.random();
    uid_gid() = around, hit: around.uid_gid();
    comm(to, len) = around, hit: around.comm(to, len);
    numa_node_id() = around, hit: around.node();
    probe_read_user(to, len, from) = around, hit: around.probe_read::<A>(to, len, from);
    probe_read_own(to, len, from) = around, hit: around.read_own(to, len, from);
    ktime_get_boot_ns_whole() = around, hit: around.boot_time();
    ringbuf_output(ring, from, len) = around, hit: around.ring_output::<A>(ring, from, len);
    ktime_get_tai_ns() = around, hit: around.atomic_time();
    lookup_or_init(map, key) = around, hit: around.lookup_or_init::<A>(map, key);
    aggregate(map, key, value, stamp) = around, hit: around.aggregate::<A>(map, key, value, stamp);
    aggregated(map, key) = around, hit: around.aggregated(map, key);
    map_next(map, cursor, key, value) = around, hit: around.map_next(map, cursor, key, value);
    map_len(map) = around, hit: around.map_len(map);
    str_compare(a, a_len, b, b_len) = around, hit: around.str_compare(a, a_len, b, b_len);
    mem_compare(a, b, len) = around, hit: around.mem_compare(a, b, len);
    str_find(hay, hay_len, needle, needle_len) = around, hit: around.str_find(hay, hay_len, needle, needle_len);
    str_len(a, len) = around, hit: around.str_len(a, len);
    mem_zero(to, len) = around, hit: around.mem_zero(to, len);
    about(kind) = around, hit: around.about::<A>(kind);
    str_append(to, len, from, from_len) = around, hit: around.str_append(to, len, from, from_len);
    child() = around, hit: around.child();
    str_tidy(to, len) = around, hit: around.str_tidy(to, len);
    probe_read_text(to, len, from) = around, hit: around.probe_read_text::<A>(to, len, from);
    // SAFETY: the hit that runs, whose program has all registers saved that a walk needs.
    user_stack(to, most) = around, hit: unsafe { arch::user_stack::<A>(&around, hit, to, most) };
    func_ip() = around, hit: around.site.function;
    vector(number, first) = around, hit: vectors::bytes(number, first);
    send_signal(signal, to_thread) = around, hit: around.send_signal(signal, to_thread);
    write_user(to, from, len) = around, hit: around.write_user(to, from, len);
    word_lookup_whole(map, key) = around, hit: around.word_lookup::<A>(map, key);
    word_lookup_or_init_whole(map, key) = around, hit: around.word_lookup_or_init::<A>(map, key);
    word_update_whole(map, key, value) = around, hit: around.word_update::<A>(map, key, value);
    word_delete_whole(map, key) = around, hit: around.word_delete::<A>(map, key);
    word_aggregate_whole(map, key, value, stamp) = around, hit: around.word_aggregate::<A>(map, key, value, stamp);
}

macro_rules! quick_first {
    ($($name:ident($quick:ident, $value:ident) = $look:ident, $does:expr, or $next:ident;)*) => {
        $(
            // By itself: what some try before it needs none of its registers.
            #[inline(never)]
            unsafe extern "C" fn $name<A: Adder>(
                r1: u64, r2: u64, r3: u64, r4: u64, r5: u64, hit: *mut Hit,
            ) -> u64 {
                // SAFETY: the run's own (contract of all: `table`).
                let quick = unsafe { Quick::$look(&*hit, r1, r2) };
                let $value = r3;
                let _ = $value;
                match quick.and_then(|$quick| $does) {
                    Some(result) => result,
                    // SAFETY: passed on from the caller.
                    None => unsafe { $next::<A>(r1, r2, r3, r4, r5, hit) },
                }
            }
        )*
    };
}

// A key that comes and goes is nearly always its thread's own.
quick_first! {
    word_lookup(quick, value) = near, quick.address::<A>(), or word_lookup_in_chain;
    word_lookup_in_chain(quick, value) = in_chain, quick.address::<A>(), or word_lookup_whole;
    word_update(quick, value) = near, quick.set::<A>(value).then_some(0), or word_update_in_chain;
    word_update_in_chain(quick, value) = in_chain, quick.set::<A>(value).then_some(0), or word_update_whole;
    word_delete(quick, value) = near, quick.remove::<A>(), or word_delete_in_chain;
    word_delete_in_chain(quick, value) = in_chain, quick.remove::<A>(), or word_delete_whole;
    word_lookup_or_init(quick, value) = in_chain, quick.address_there::<A>(), or word_lookup_or_init_whole;
    word_aggregate(quick, value) = in_chain, quick.add::<A>(value).then_some(0), or word_aggregate_whole;
}

macro_rules! clocks {
    ($($name:ident($clock:ident) = $more:expr, or $whole:ident;)*) => {
        $(
            unsafe extern "C" fn $name<A: Adder>(
                r1: u64, r2: u64, r3: u64, r4: u64, r5: u64, hit: *mut Hit,
            ) -> u64 {
                // SAFETY: the run's own (contract of all: `table`).
                let of = unsafe { &*hit };
                // SAFETY: passed on from the caller.
                match unsafe { quick::clock(of, |$clock| $more) } {
                    Some(ns) => ns,
                    // SAFETY: passed on from the caller.
                    None => unsafe { $whole::<A>(r1, r2, r3, r4, r5, hit) },
                }
            }
        )*
    };
}

clocks! {
    ktime_get_ns(_clock) = 0, or ktime_get_ns_whole;
    ktime_get_boot_ns(clock) = clock.boot.load(Relaxed), or ktime_get_boot_ns_whole;
}

/// Wakes a key's element that stays its own, or puts it to sleep: (version's address, the version that was seen, whether it is to
/// be gone) -> 0, or 1 and nothing was done.
///
/// # Safety
/// As for all of [`table`]; called by code that was compiled for the table, which found the element there.
unsafe extern "C" fn near_set(version: u64, seen: u64, is_asleep: u64, _: u64, _: u64, _: *mut Hit) -> u64 {
    // SAFETY: a version of an element of a table in the arena (contract).
    u64::from(!unsafe { map::set_key_asleep(version as *mut u32, seen as u32, is_asleep != 0) })
}

/// Takes a value into the words of a key that was found: (address of the first CPU's, value, how, bytes between two CPUs', CPUs) -> 0,
/// or 1 and nothing was done.
///
/// # Safety
/// As for [`near_set`].
#[inline(never)]
unsafe extern "C" fn near_add<A: Adder, const IS_HIST: bool>(
    first: u64,
    value: u64,
    how: u64,
    stride: u64,
    cpus: u64,
    hit: *mut Hit,
) -> u64 {
    // A histogram needs registers that others would save for it: by itself.
    if !IS_HIST && NearAdd::hist_of(how).is_some() {
        // SAFETY: passed on from the caller.
        return unsafe { near_add::<A, true>(first, value, how, stride, cpus, hit) };
    }
    let how = if IS_HIST { how } else { NearAdd::Sum.to_word() };
    // SAFETY: the run's own (contract of all: `table`).
    let hit = unsafe { &*hit };
    // SAFETY: a site's description lives as long as its trampoline can be run (contract).
    let site = unsafe { &*(hit.site as *const SiteDesc) };
    let way = A::way(hit.copy, site);
    // SAFETY: a key's words in a table in the arena, and as many copies (contract).
    u64::from(!unsafe { map::add_to_copies(first, value, how, (stride, cpus as u32), way) })
}

unsafe extern "C" fn pid_tgid<A: Adder>(r1: u64, r2: u64, r3: u64, r4: u64, r5: u64, hit: *mut Hit) -> u64 {
    // SAFETY: the run's own (contract of all: `table`).
    let of = unsafe { &*hit };
    // SAFETY: passed on from the caller.
    match unsafe { quick::process_and_thread::<A>(of) } {
        Some(known) => known,
        // SAFETY: passed on from the caller.
        None => unsafe { pid_tgid_whole::<A>(r1, r2, r3, r4, r5, hit) },
    }
}

/// The helpers of one build, in the order of [`wire::Helper`]. Whoever calls one must pass the run's `Hit`.
pub const fn table<A: Adder>() -> [Function; HELPERS_LEN] {
    [
        ktime_get_ns::<A>,
        pid_tgid::<A>,
        smp_processor_id::<A>,
        cookie::<A>,
        map_lookup::<A>,
        map_update::<A>,
        map_delete::<A>,
        prandom_u32::<A>,
        uid_gid::<A>,
        comm::<A>,
        numa_node_id::<A>,
        probe_read_user::<A>,
        probe_read_own::<A>,
        ktime_get_boot_ns::<A>,
        ringbuf_output::<A>,
        ktime_get_tai_ns::<A>,
        lookup_or_init::<A>,
        aggregate::<A>,
        aggregated::<A>,
        map_next::<A>,
        map_len::<A>,
        str_compare::<A>,
        mem_compare::<A>,
        str_find::<A>,
        str_len::<A>,
        mem_zero::<A>,
        about::<A>,
        str_append::<A>,
        child::<A>,
        str_tidy::<A>,
        probe_read_text::<A>,
        user_stack::<A>,
        func_ip::<A>,
        vector::<A>,
        send_signal::<A>,
        write_user::<A>,
        word_lookup::<A>,
        word_lookup_or_init::<A>,
        word_update::<A>,
        word_delete::<A>,
        word_aggregate::<A>,
        near_set,
        near_add::<A, false>,
    ]
}

impl<'a> Around<'a> {
    /// What the helpers of a run find, of which `below` lies on the thread's stack, below the program's frames.
    ///
    /// # Safety
    /// It must be the run that calls, whose maps, if it has none, are a head of zeros.
    #[inline(always)]
    unsafe fn of(hit: &'a Hit, below: &u64) -> Around<'a> {
        // SAFETY: a site's description lives as long as its trampoline can be run.
        let site = unsafe { &*(hit.site as *const SiteDesc) };
        // SAFETY: a program's description lives as long as a list leads to it.
        let desc = unsafe { program_of(hit) };
        // SAFETY: the saved registers of this hit.
        let regs = unsafe { &*(hit.regs as *const PtRegs) };
        // SAFETY: the controller has put a head there.
        let maps = unsafe { &*(desc.maps as *const wire::maps::MapsHead) };
        // Orders nothing: it never changes but for the children's bit.
        let needs = desc.needs.load(Relaxed);
        let is_in_space = needs & needs::WORKSPACE != 0;
        let space = |start: u64, len: u64| {
            if is_in_space { Piece { start, end: start + len } } else { Piece::default() }
        };
        // The frames of a program that is checked are not on the thread's stack.
        let is_own = needs & needs::CHECKED == 0;
        let frames = Piece { start: core::ptr::from_ref(below) as u64, end: hit.regs };
        Around {
            maps,
            desc,
            site,
            copy: hit.copy,
            stack: if is_own { frames } else { Piece::default() },
            given: space(hit.stack, wire::STACK_LEN as u64),
            scratch: space(hit.scratch, desc.scratch_len),
            context: Piece { start: hit.regs, end: hit.regs + size_of::<PtRegs>() as u64 },
            stack_pointer: regs.stack_pointer(site),
        }
    }
}
