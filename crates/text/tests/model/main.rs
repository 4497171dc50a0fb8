//! What was cleaned and invalidated, in which order and before which execution: an abstract machine that runs stale
//! words unless all was done right. No emulator shows that (qemu has no stale instruction cache), so this does.
//!
//! The code under test is the real one: `publish`, and areas of slots. `cargo xtask mutants` leaves out each of its
//! steps; here the machine itself forgets what it is told, one kind of step at a time, and must see it.

mod caches;
#[path = "../../../insn/tests/differential/seed.rs"]
mod seed;

use caches::{Caches, Forget, LINE};
use seed::Seed;
use text::arch::aarch64::{
    Area, CacheType, Changed, Flush, Maintain, Options, Port, SLOT_BYTES, SLOT_WORDS, Scheme, Site, SlotCode,
    Way, Written, divert, publish,
};
use text::slots::Binding;

/// Lines of 4 << n bytes, with and without IDC and DIC.
fn cache_type(seed: &mut Seed) -> CacheType {
    let lines = [2, 3, 4, 5];
    let mut line = || lines[seed.below(4) as usize];
    CacheType(line() | line() << 16)
}

fn with_coherence(cache: CacheType, kind: u64) -> CacheType {
    CacheType(cache.0 | (kind & 3) << 28)
}

const THREADS: usize = 3;
const BASE: u64 = 0x1_0000;

fn code(run_at: u64, words: usize) -> (Written, Vec<u32>) {
    let words: Vec<u32> = (0..words as u32).map(|word| 0xd280_0000 | word << 5).collect();
    (Written { run_at, written_at: run_at + caches::ALIAS, len_bytes: 4 * words.len() as u64 }, words)
}

/// One write, published and run, on a machine with these caches; what was run stale.
fn write_and_run(seed: &mut Seed, cache: CacheType, flush: Flush, forget: Option<Forget>) -> usize {
    let caches = Caches::new(cache, THREADS, forget);
    let run_at = BASE + 4 * seed.below(256);
    let (written, words) = code(run_at, 1 + seed.below(40) as usize);
    assert_eq!(caches.write(run_at, &words), written.written_at);
    publish(&caches, cache, written, flush);
    caches.run_by(0, run_at, &words);
    if flush == Flush::Broadcast {
        (1..THREADS).for_each(|thread| caches.run_by(thread, run_at, &words));
    }
    caches.comes_by_trap(1);
    caches.run_by(1, run_at, &words);
    caches.stale().len()
}

#[test]
fn what_is_published_is_run_fresh_on_every_kind_of_cache() {
    let mut seed = Seed::from_env("published");
    for flush in [Flush::Range, Flush::Page, Flush::Broadcast] {
        for round in 0..400 {
            let cache = with_coherence(cache_type(&mut seed), round);
            assert_eq!(write_and_run(&mut seed, cache, flush, None), 0, "{cache:x?} {flush:?}");
        }
    }
}

#[test]
fn each_step_that_is_left_out_is_seen() {
    let mut seed = Seed::from_env("left out");
    for forget in Forget::ALL {
        let mut seen = 0;
        for round in 0..400 {
            let cache =
                with_coherence(cache_type(&mut seed), if forget.needs_plain_caches() { 0 } else { round });
            seen += u64::from(write_and_run(&mut seed, cache, Flush::Broadcast, Some(forget)) > 0);
        }
        println!("{forget:?}: seen in {seen} of 400");
        assert!(seen >= 350, "{forget:?}: {seen}");
    }
}

#[test]
fn a_thread_that_comes_by_a_branch_alone_needs_the_broadcast() {
    let mut seed = Seed::from_env("branch");
    let cache = cache_type(&mut seed);
    for (flush, stale) in [(Flush::Range, 1), (Flush::Page, 1), (Flush::Broadcast, 0)] {
        let caches = Caches::new(cache, THREADS, None);
        let (written, words) = code(BASE, 1);
        caches.write(BASE, &words);
        publish(&caches, cache, written, flush);
        caches.run_by(2, BASE, &words);
        assert_eq!(caches.stale().len(), stale, "{flush:?}");
    }
}

#[test]
fn exactly_the_lines_of_the_range_or_of_its_pages_are_touched() {
    let mut seed = Seed::from_env("lines");
    for round in 0..200 {
        let cache = cache_type(&mut seed);
        for flush in [Flush::Range, Flush::Page, Flush::Broadcast] {
            let caches = Caches::new(cache, 1, None);
            let (written, words) = code(BASE + 4 * seed.below(1024), 1 + round % 20);
            caches.write(written.run_at, &words);
            publish(&caches, cache, written, flush);
            let (cleaned, invalidated) = caches.touched();
            let whole =
                |at: u64, unit: u64| (at & !(unit - 1), (at + written.len_bytes).next_multiple_of(unit));
            let lines = |at: u64, line: u64| {
                let (start, end) = if flush == Flush::Page { whole(at, 4096) } else { whole(at, line) };
                (start..end).step_by(line as usize).collect::<Vec<_>>()
            };
            assert_eq!(cleaned, lines(written.written_at, cache.data_line_bytes()), "{flush:?}");
            assert_eq!(invalidated, lines(written.run_at, cache.fetch_line_bytes()), "{flush:?}");
        }
    }
}

#[test]
fn coherent_caches_are_left_alone_and_fenced() {
    for (kind, cleans, invalidates, fences) in
        [(0, true, true, 2), (1, false, true, 2), (2, true, false, 1), (3, false, false, 1)]
    {
        let cache = with_coherence(CacheType(LINE), kind);
        let caches = Caches::new(cache, 1, None);
        let (written, words) = code(BASE, 8);
        caches.write(BASE, &words);
        publish(&caches, cache, written, Flush::Range);
        let (cleaned, invalidated) = caches.touched();
        assert_eq!((!cleaned.is_empty(), !invalidated.is_empty()), (cleans, invalidates));
        assert_eq!(caches.fences(), (fences, 1));
    }
}

/// Sites with instructions that have slots: movz x0, #n; literal loads, which take up to six words and two lines.
fn site(number: u64) -> (u32, u64) {
    let word = match number % 5 {
        0 => 0x5800_0043,
        1 => 0x9c00_0043,
        _ => 0xd280_0000 | (number as u32) << 5,
    };
    (word, 0x40_0000 + 16 * number)
}

/// Random hits of `probes` sites by threads that come by traps, with `slots` slots.
fn hits(
    seed: &mut Seed,
    scheme: Scheme,
    flush: Flush,
    probes: u64,
    slots: usize,
    forget: Option<Forget>,
) -> (usize, u64) {
    let cache = with_coherence(cache_type(seed), seed.below(4));
    let cache = if forget.is_some() { CacheType(LINE) } else { cache };
    let options = Options { run_at: BASE, slots, scheme, flush, cache };
    let area = Area::new(options, Caches::new(cache, THREADS, forget));
    let bindings: Vec<Binding> = (0..probes).map(|_| Binding::new()).collect();
    let mut inside = Vec::new();
    for _ in 0..300 {
        if inside.len() == slots || seed.below(3) == 0 && !inside.is_empty() {
            let (slot, from) = inside.swap_remove(seed.below(inside.len() as u64) as usize);
            assert_eq!(area.leave(slot), from + 4);
            continue;
        }
        let thread = seed.below(THREADS as u64) as usize;
        let number = seed.below(probes);
        let (word, from) = site(number);
        area.port().works_for(thread);
        let entered = area.enter(word, from, &bindings[number as usize]).unwrap();
        assert_eq!(area.slot_of(entered.addr + SLOT_BYTES - 4), Some(entered.slot));
        area.port().comes_by_trap(thread);
        let code = SlotCode::new(word, from, entered.addr).unwrap();
        area.port().run_by(thread, entered.addr, code.words());
        inside.push((entered.slot, from));
    }
    (area.port().stale().len(), area.times_written())
}

#[test]
fn no_slot_is_ever_run_stale_in_either_scheme() {
    let mut seed = Seed::from_env("slots");
    for scheme in [Scheme::Cached, Scheme::Dynamic] {
        for flush in [Flush::Range, Flush::Page, Flush::Broadcast] {
            let mut written = 0;
            for round in 0..40 {
                let (stale, times) = hits(&mut seed, scheme, flush, 12, 2 + round % 6, None);
                assert_eq!(stale, 0, "{scheme:?} {flush:?}");
                written += times;
            }
            assert!(written > 40 * 12, "slots changed hands: {written}");
        }
    }
}

#[test]
fn a_slot_that_holds_its_instruction_is_not_written_again() {
    let mut seed = Seed::from_env("kept");
    let (stale, written) = hits(&mut seed, Scheme::Cached, Flush::Range, 6, 8, None);
    assert_eq!((stale, written), (0, 6), "one write for each probe");
    let (stale, written) = hits(&mut seed, Scheme::Dynamic, Flush::Range, 1, 1, None);
    assert_eq!((stale, written), (0, 1), "the words were there already");
}

/// A machine that looks, when the site is written, whether all threads would run the island fresh.
struct Watched {
    caches: Caches,
    site: u64,
    island: (u64, Vec<u32>),
}

impl Maintain for Watched {
    fn clean_line(&self, addr: u64) {
        self.caches.clean_line(addr);
    }
    fn invalidate_line(&self, addr: u64) {
        self.caches.invalidate_line(addr);
    }
    fn fence_data(&self) {
        self.caches.fence_data();
    }
    fn fence_fetch(&self) {
        self.caches.fence_fetch();
    }
    fn serialise_all(&self) {
        self.caches.serialise_all();
    }
}

impl Port for Watched {
    fn holds(&self, run_at: u64, words: &[u32]) -> bool {
        self.caches.holds(run_at, words)
    }
    fn write(&self, run_at: u64, words: &[u32]) -> u64 {
        if run_at == self.site {
            (0..THREADS).for_each(|thread| self.caches.run_by(thread, self.island.0, &self.island.1));
        }
        self.caches.write(run_at, words)
    }
}

#[test]
fn a_patch_is_seen_by_all_threads_and_its_island_before_it() {
    const ADD: u32 = 0x9100_0400;
    let mut seed = Seed::from_env("patches");
    for round in 0..100 {
        let cache = with_coherence(cache_type(&mut seed), round);
        let caches = Caches::new(cache, THREADS, None);
        let bytes: Vec<u8> = [ADD, ADD].iter().flat_map(|word| word.to_le_bytes()).collect();
        let (site, at, far) = (BASE + 4 * seed.below(512), BASE + 0x8000, 0x7f00_0000_0000);
        let code = insn::Code { base: site, bytes: &bytes };
        let asked = Site { code, addr: site, trampoline: far, island: Some(at), is_guarded: false };
        let diverted = divert(&asked).unwrap();
        let Way::Island { words, .. } = diverted.way else { panic!("{diverted:?}") };
        caches.write(site, &[ADD]);
        let watched = Watched { caches, site, island: (at, words.to_vec()) };
        assert_eq!(
            diverted.disarm(site, &watched, cache),
            Err(Changed { addr: site, expected: diverted.new })
        );
        diverted.arm(site, &watched, cache).unwrap();
        (0..THREADS).for_each(|thread| watched.caches.run_by(thread, site, &[diverted.new]));
        assert_eq!(diverted.arm(site, &watched, cache), Err(Changed { addr: site, expected: ADD }));
        diverted.disarm(site, &watched, cache).unwrap();
        (0..THREADS).for_each(|thread| watched.caches.run_by(thread, site, &[ADD]));
        assert_eq!(watched.caches.stale(), [""; 0]);
    }
}

#[test]
fn slots_on_a_machine_that_forgets_are_run_stale() {
    let mut seed = Seed::from_env("forgetful slots");
    for scheme in [Scheme::Cached, Scheme::Dynamic] {
        for forget in Forget::ALL.into_iter().filter(|forget| forget.matters_to_slots()) {
            let stale: usize =
                (0..10).map(|_| hits(&mut seed, scheme, Flush::Range, 12, 3, Some(forget)).0).sum();
            assert!(stale > 0, "{scheme:?} {forget:?}");
        }
    }
    assert_eq!(SLOT_WORDS as u64 * 4, SLOT_BYTES);
}
