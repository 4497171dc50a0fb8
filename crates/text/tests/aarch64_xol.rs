//! The experiment of 2014 on what a slot's cache flush costs, on AArch64: its seven rows, and two more.
//!
//! For:     docs/xol.md; `scripts/aarch64-live --xol` runs it in a whole machine, CI under qemu-user.
//! State:   the world of the row that runs, for the trap handler.
//! Context: a process of its own.
//! Keeps:   W1 in each turn of each row hits = calls, and each call returns what it returns without a probe.
//!          W2 as many slots are written, lines cleaned and invalidated and threads serialised as the row says, counted
//!             beside the instructions that do it.
//! Checked: by itself. An emulator models no stale cache, and no time that it takes means anything: what this shows is how
//!          much maintenance each row asks for, and how many instructions a call takes, where the machine counts them
//!          (qemu -icount). Whether the maintenance is enough is for tests/model.
//! Source:  a mail of 14 April 2014 to linux-arm-kernel by Victor Kamensky, for rows and workload. Departs: the traps are
//!          signals of one process, and there is a row with the flush of whole pages, and one with a look at the slot
//!          before it is written, as the kernel has had it since.
//!
//! `NANOPROBE_CALLS` sets the calls of a row (2,000; published: 1,000,000).
#![cfg(target_arch = "aarch64")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use text::arch::Hardware;
use text::arch::aarch64::{Area, Flush, Maintain, Options, Port, SLOT_BYTES, Scheme, TRAP, Written, publish};
use text::slots::Binding;

const PAGE: usize = 4096;
const TURNS: u64 = 10;
/// An empty loop of 1000 times eight instructions; the first one is probed.
const FUNCTION: [u32; 10] = [
    0x5280_0000, // mov w0, #0
    0x2a00_03e1, // again: mov w1, w0
    0x1100_0421, // add w1, w1, #1
    0xd503_201f, // nop
    0x2a01_03e2, // mov w2, w1
    0x2a02_03e0, // mov w0, w2
    0xd503_201f, // nop
    0x710f_a01f, // cmp w0, #1000
    0x54ff_ff21, // b.ne again
    0xd65f_03c0, // ret
];
const RESULT: u64 = 1000;

/// How a hit finds its site.
#[derive(Clone, Copy, PartialEq)]
enum Lookup {
    Site,
    /// By the mapping's file and offset, as the kernel does.
    Mapping,
}

/// Whether a slot is looked at before it is written.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Write,
    Look,
}

struct Row {
    name: &'static str,
    probe: Option<(Scheme, Flush, Lookup, Before)>,
    threads: u64,
    mappings: usize,
}

const fn row(name: &'static str, probe: (Scheme, Flush, Lookup, Before)) -> Row {
    Row { name, probe: Some(probe), threads: 1, mappings: 0 }
}

const LOOKUP: (Scheme, Flush, Lookup, Before) =
    (Scheme::Dynamic, Flush::Range, Lookup::Mapping, Before::Write);
const BROADCAST: (Scheme, Flush, Lookup, Before) =
    (Scheme::Dynamic, Flush::Broadcast, Lookup::Mapping, Before::Write);
/// In the published order; the last two are ours.
const ROWS: [Row; 9] = [
    Row { name: "no tracing", probe: None, threads: 1, mappings: 0 },
    row("lookup per hit", LOOKUP),
    Row { mappings: 1000, ..row("lookup per hit, 1000 mappings", LOOKUP) },
    row("direct range flush, no lookup", (Scheme::Dynamic, Flush::Range, Lookup::Site, Before::Write)),
    row("lookup, broadcast serialisation, 1 thread", BROADCAST),
    Row { threads: 2, ..row("lookup, broadcast serialisation, 2 threads", BROADCAST) },
    row("cached slot, written once", (Scheme::Cached, Flush::Range, Lookup::Site, Before::Look)),
    row("direct page flush, no lookup", (Scheme::Dynamic, Flush::Page, Lookup::Site, Before::Write)),
    row(
        "direct range flush if the slot differs",
        (Scheme::Dynamic, Flush::Range, Lookup::Site, Before::Look),
    ),
];

/// The machine's caches, and what they were told.
struct Told {
    hardware: Hardware,
    before: Before,
    cleaned: AtomicU64,
    invalidated: AtomicU64,
    fences: AtomicU64,
    broadcasts: AtomicU64,
}

impl Told {
    fn new(hardware: Hardware, before: Before) -> Told {
        let [cleaned, invalidated, fences, broadcasts] = Default::default();
        Told { hardware, before, cleaned, invalidated, fences, broadcasts }
    }
}

impl Maintain for Told {
    fn clean_line(&self, addr: u64) {
        self.cleaned.fetch_add(1, Relaxed);
        self.hardware.clean_line(addr);
    }

    fn invalidate_line(&self, addr: u64) {
        self.invalidated.fetch_add(1, Relaxed);
        self.hardware.invalidate_line(addr);
    }

    fn fence_data(&self) {
        self.fences.fetch_add(1, Relaxed);
        self.hardware.fence_data();
    }

    fn fence_fetch(&self) {
        self.hardware.fence_fetch();
    }

    fn serialise_all(&self) {
        self.broadcasts.fetch_add(1, Relaxed);
        self.hardware.serialise_all();
    }
}

impl Port for Told {
    fn holds(&self, run_at: u64, words: &[u32]) -> bool {
        self.before == Before::Look && self.hardware.holds(run_at, words)
    }

    fn write(&self, run_at: u64, words: &[u32]) -> u64 {
        self.hardware.write(run_at, words)
    }
}

/// A mapping of a file: where, which file, from which offset.
struct Mapped {
    range: Range<u64>,
    file: u64,
    offset: u64,
}

/// The mappings of this process, in order of their addresses.
fn mappings() -> Vec<Mapped> {
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let (offset, inode) = (fields.nth(1)?, fields.nth(1)?);
        let file = inode.parse().ok()?;
        Some(Mapped { range: number(from)..number(to), file, offset: number(offset) })
    };
    maps.lines().map(|text| line(text).unwrap()).collect()
}

/// A page of `file` from its start, or one without a file.
fn map(file: i32, rights: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | if file < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // SAFETY: the kernel chooses a free address.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, file, 0) };
    assert_ne!(got, libc::MAP_FAILED);
    got as u64
}

fn unmap(at: u64) {
    // SAFETY: the page is `map`'s, and nobody is in it.
    assert_eq!(unsafe { libc::munmap(at as *mut c_void, PAGE) }, 0);
}

const ALL_RIGHTS: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

fn file(name: &std::ffi::CStr) -> i32 {
    // SAFETY: the name is a string that ends.
    let file = unsafe { libc::memfd_create(name.as_ptr(), 0) };
    assert!(file >= 0);
    // SAFETY: the descriptor is ours.
    assert_eq!(unsafe { libc::ftruncate(file, PAGE as i64) }, 0);
    file
}

/// What a row probes.
struct World {
    site: u64,
    lookup: Lookup,
    mappings: Vec<Mapped>,
    /// By file and offset.
    sites: BTreeMap<(u64, u64), Binding>,
    area: Area<Told>,
    hits: AtomicU64,
}

static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

impl World {
    fn binding(&self, at: u64) -> Option<&Binding> {
        if self.lookup == Lookup::Site {
            return if at == self.site { self.sites.values().next() } else { None };
        }
        let behind = self.mappings.partition_point(|mapped| mapped.range.start <= at);
        let mapped = self.mappings[..behind].last().filter(|mapped| at < mapped.range.end)?;
        self.sites.get(&(mapped.file, at - mapped.range.start + mapped.offset))
    }

    fn on_trap(&self, context: &mut libc::mcontext_t) {
        if let Some(slot) = self.area.slot_of(context.pc) {
            context.pc = self.area.leave(slot);
            return;
        }
        let Some(binding) = self.binding(context.pc) else { std::process::abort() };
        self.hits.fetch_add(1, Relaxed);
        match self.area.enter(FUNCTION[0], context.pc, binding) {
            Ok(entered) => context.pc = entered.addr,
            Err(_) => std::process::abort(),
        }
    }
}

extern "C" fn on_signal(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the frame that it will restore.
    let frame = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: the world outlives the threads of its row.
    let Some(world) = (unsafe { WORLD.load(SeqCst).as_ref() }) else { std::process::abort() };
    world.on_trap(&mut frame.uc_mcontext);
}

fn install() {
    // SAFETY: a zeroed sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the set is this function's.
    unsafe { libc::sigfillset(&mut action.sa_mask) };
    // SAFETY: the handler is made for its context: it allocates nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) }, 0);
}

/// Counters of this thread's instructions: in user space, and of all. `None` where the machine does not count them.
struct Executed([i32; 2]);

impl Executed {
    fn here() -> Option<Executed> {
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        let open = |flags: u64| {
            // Hardware, 64 bytes; instructions; no period, sample, format; what is left out; no wake-up, no breakpoint.
            let what: [u64; 8] = [64 << 32, 1, 0, 0, 0, flags, 0, 0];
            // SAFETY: the kernel reads as many bytes as the record says that it has.
            unsafe { libc::syscall(libc::SYS_perf_event_open, what.as_ptr(), 0, -1, -1, 0) as i32 }
        };
        let both = [open(EXCLUDE_KERNEL), open(0)];
        (both[0] >= 0 && both[1] >= 0).then_some(Executed(both))
    }

    fn read(&self) -> [u64; 2] {
        self.0.map(|counter| {
            let mut value = 0u64;
            // SAFETY: the value has the eight bytes that are read.
            assert_eq!(unsafe { libc::read(counter, (&raw mut value).cast(), 8) }, 8);
            value
        })
    }
}

impl Drop for Executed {
    fn drop(&mut self) {
        for counter in self.0 {
            // SAFETY: the descriptor is ours.
            let _ = unsafe { libc::close(counter) };
        }
    }
}

/// What a row asked for, in all of its turns.
#[derive(Default)]
struct Done {
    calls: u64,
    hits: u64,
    written: u64,
    cleaned: u64,
    invalidated: u64,
    fences: u64,
    broadcasts: u64,
    /// Per call of a turn: in user space, and of all.
    executed: Vec<[f64; 2]>,
}

impl Done {
    /// The middle of the turns.
    fn executed(&self, which: usize) -> Option<f64> {
        let mut turns: Vec<f64> = self.executed.iter().map(|turn| turn[which]).collect();
        turns.sort_by(f64::total_cmp);
        turns.get(turns.len() / 2).copied()
    }
}

/// Calls of the function in one thread; what was executed for each.
fn call(function: u64, thread: usize, calls: u64) -> Option<[f64; 2]> {
    // SAFETY: an empty set is one.
    let mut processors: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is in the set's range.
    unsafe { libc::CPU_SET(thread, &mut processors) };
    // SAFETY: the set outlives the call. Where there is no such processor the thread stays where it is.
    let _ = unsafe { libc::sched_setaffinity(0, size_of_val(&processors), &processors) };
    // SAFETY: the code changes w0 to w2 alone and returns w0.
    let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(function as *const ()) };
    let executed = Executed::here();
    let before = executed.as_ref().map(Executed::read);
    for _ in 0..calls {
        assert_eq!(function(), RESULT, "a slot has run something else");
    }
    let after = executed.as_ref().map(Executed::read);
    let each = |which: usize| Some((after?[which] - before?[which]) as f64 / calls as f64);
    Some([each(0)?, each(1)?])
}

/// One turn of a row: in a new mapping, with new slots.
fn turn(row: &Row, (text, more): (i32, i32), calls: u64, done: &mut Done) {
    let function = map(text, ALL_RIGHTS);
    // SAFETY: the page is readable and writable, and no reference to it is made.
    let machine = unsafe { Hardware::new(function, function, PAGE as u64) }.unwrap();
    let mut words = FUNCTION;
    if row.probe.is_some() {
        words[0] = TRAP;
    }
    let written_at = machine.write(function, &words);
    let code = Written { run_at: function, written_at, len_bytes: size_of_val(&words) as u64 };
    publish(&machine, Hardware::cache_type(), code, Flush::Broadcast);
    // Neighbours with the same rights would become one.
    let rights = [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE];
    let extra: Vec<u64> = (0..row.mappings).map(|number| map(more, rights[number % 2])).collect();
    let (scheme, flush, lookup, before) = row.probe.unwrap_or(LOOKUP);
    let slots_at = map(-1, ALL_RIGHTS);
    // SAFETY: as above.
    let told = Told::new(unsafe { Hardware::new(slots_at, slots_at, PAGE as u64) }.unwrap(), before);
    let slots = PAGE / SLOT_BYTES as usize;
    let options = Options { run_at: slots_at, slots, scheme, flush, cache: Hardware::cache_type() };
    let mappings = mappings();
    assert!(mappings.len() > row.mappings, "the mappings have become one");
    let mapped = mappings.iter().find(|mapped| mapped.range.start == function).unwrap();
    let sites = BTreeMap::from([((mapped.file, mapped.offset), Binding::new())]);
    let area = Area::new(options, told);
    let world = Box::new(World { site: function, lookup, mappings, sites, area, hits: AtomicU64::new(0) });
    WORLD.store((&raw const *world).cast_mut(), SeqCst);
    let each: Vec<Option<[f64; 2]>> = std::thread::scope(|scope| {
        let one = |thread| scope.spawn(move || call(function, thread as usize, calls));
        let threads: Vec<_> = (0..row.threads).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    WORLD.store(std::ptr::null_mut(), SeqCst);
    if let Some(each) = each.into_iter().collect::<Option<Vec<_>>>() {
        let mean = |which: usize| each.iter().map(|one| one[which]).sum::<f64>() / each.len() as f64;
        done.executed.push([mean(0), mean(1)]);
    }
    let told = world.area.port();
    done.calls += calls * row.threads;
    done.hits += world.hits.load(Relaxed);
    done.written += world.area.times_written();
    done.cleaned += told.cleaned.load(Relaxed);
    done.invalidated += told.invalidated.load(Relaxed);
    done.fences += told.fences.load(Relaxed);
    done.broadcasts += told.broadcasts.load(Relaxed);
    extra.into_iter().chain([function, slots_at]).for_each(unmap);
}

/// What the row must have asked for.
fn check(row: &Row, done: &Done) {
    let Some((scheme, flush, _, before)) = row.probe else {
        return assert_eq!((done.hits, done.written), (0, 0), "{}", row.name);
    };
    assert_eq!(done.hits, done.calls, "{}", row.name);
    let once = scheme == Scheme::Cached || before == Before::Look;
    assert_eq!(done.written, if once { TURNS } else { done.calls }, "{}", row.name);
    let cache = Hardware::cache_type();
    // A slot's two words are in one line of any length.
    let lines = |line: u64| if flush == Flush::Page { PAGE as u64 / line } else { 1 };
    let cleans = if cache.is_data_coherent() { 0 } else { lines(cache.data_line_bytes()) };
    let invalidates = if cache.is_fetch_coherent() { 0 } else { lines(cache.fetch_line_bytes()) };
    let fences = if cache.is_fetch_coherent() { 1 } else { 2 };
    let want = [cleans, invalidates, fences, u64::from(flush == Flush::Broadcast)];
    let got = [done.cleaned, done.invalidated, done.fences, done.broadcasts];
    assert_eq!(got, want.map(|each| each * done.written), "{}", row.name);
}

fn show(row: &Row, done: &Done, none: &Done) {
    let calls = done.calls as f64;
    let each = |count: u64| count as f64 / calls;
    let added = |which| Some(format!("{:.0}", done.executed(which)? - none.executed(which)?));
    let unknown = || "?".to_string();
    println!(
        "| {:<42} | {:>7} | {:>7.4} | {:>7.2} | {:>7.2} | {:>6.2} | {:>7.2} | {:>7} | {:>7} |",
        row.name,
        done.hits,
        each(done.written),
        each(done.cleaned),
        each(done.invalidated),
        each(done.fences),
        each(done.broadcasts),
        added(0).unwrap_or_else(unknown),
        added(1).unwrap_or_else(unknown),
    );
}

#[test]
fn each_row_counts_every_call_and_asks_for_the_maintenance_that_it_is_named_for() {
    let calls = std::env::var("NANOPROBE_CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(2000);
    install();
    let files = (file(c"xol"), file(c"xol-more"));
    let mut all: Vec<Done> = ROWS.iter().map(|_| Done::default()).collect();
    for _ in 0..TURNS {
        for (row, done) in ROWS.iter().zip(&mut all) {
            turn(row, files, (calls / TURNS).max(1), done);
        }
    }
    let cache = Hardware::cache_type();
    println!(
        "lines of {} and {} bytes; clean needed: {}; invalidation needed: {}",
        cache.data_line_bytes(),
        cache.fetch_line_bytes(),
        !cache.is_data_coherent(),
        !cache.is_fetch_coherent()
    );
    println!(
        "| {:<42} | {:>7} | {:>7} | {:>7} | {:>7} | {:>6} | {:>7} | {:>7} | {:>7} |",
        "each call", "hits", "written", "cleaned", "inval.", "fences", "broadc.", "user", "all"
    );
    for (row, done) in ROWS.iter().zip(&all) {
        show(row, done, &all[0]);
        check(row, done);
    }
    println!(
        "instructions that the probe adds to a call: in user space, and with the kernel's; this is no time"
    );
}
