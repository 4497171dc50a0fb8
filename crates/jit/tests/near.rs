//! Keys that a program looks for by itself: each thing that can stand where its thread found one, and a writer beside it.

use bpf::{Program, Wide, assemble, helper};
use jit::{Compiler, Effort, Level, Loaded, Meaning, Options, Run};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, fence};
use wire::maps::{NearAdd, NearTable, NearValue, chain, element};
use wire::{Helper, Inside, SiteDesc};

/// What a helper answers here that was asked after all.
const ASKED: u64 = 0x5105;
const FUEL: u64 = 100;
const ELEMENTS: usize = 64;
const UNIT: usize = 32;
const CHAINS: usize = 512;
const BUCKETS: u32 = 4;
const LIMIT: u32 = 4;
const STAY: u32 = 2;
const KEY: u64 = 0x1_0000_0007;
const AWAKE: u32 = 4;
const GONE: u32 = AWAKE | element::ASLEEP;

const PLAIN: NearTable = NearTable {
    near: std::mem::offset_of!(Inside, near) as u32,
    chains: CHAINS as u32,
    buckets: BUCKETS,
    elements: ELEMENTS as u32,
    unit: UNIT as u32,
    limit: LIMIT,
    stay: STAY,
    key_len: 8,
    value: NearValue::Plain { at: 24, word: Some(8) },
};

extern "C" fn ask(_: u64, _: u64, _: u64, _: u64, _: u64, _: &mut Run) -> u64 {
    ASKED
}

extern "C" fn near_set(version: u64, seen: u64, is_asleep: u64, _: u64, _: u64, _: &mut Run) -> u64 {
    // SAFETY: a version in the arena of a test, aligned.
    let version = unsafe { AtomicU32::from_ptr(version as *mut u32) };
    let next =
        if is_asleep == 1 { seen as u32 | element::ASLEEP } else { (seen as u32 & !element::ASLEEP) + 4 };
    version.compare_exchange(seen as u32, next, Release, Relaxed).is_err().into()
}

/// The CPU is 1; 1 of a value that it does not take.
extern "C" fn near_add(first: u64, value: u64, how: u64, stride: u64, cpus: u64, _: &mut Run) -> u64 {
    if value == 99 {
        return 1;
    }
    assert_eq!(cpus, 2);
    let word = NearAdd::hist_of(how).map_or(0, |(bits, words)| u64::from(bits) + u64::from(words) - 1);
    // SAFETY: a word in the arena of a test, aligned.
    unsafe { AtomicU64::from_ptr((first + stride + 8 * word) as *mut u64) }.fetch_add(value, Relaxed);
    0
}

fn load(text: &str, table: NearTable, level: Level, effort: Effort) -> Loaded {
    let program = Program::new(assemble(text).unwrap()).unwrap();
    let helpers: Vec<u32> = Helper::ALL.map(Helper::number).to_vec();
    let meaning = |wide| matches!(wide, Wide::MapIndex(0)).then_some(Meaning::Arena(8));
    let near = |wide| matches!(wide, Wide::MapIndex(0)).then_some(table);
    let options =
        Options { level, effort, helpers: &helpers, meaning: &meaning, near: &near, ..Options::default() };
    let code = Compiler::new().unwrap().compile(&program, &options).unwrap();
    let function = |number| {
        Some(match Helper::of(number)? {
            Helper::NearSet => near_set as *const () as u64,
            Helper::NearAdd => near_add as *const () as u64,
            _ => ask as *const () as u64,
        })
    };
    Loaded::new(&code, function).unwrap()
}

fn calls(number: u32, value: u64) -> String {
    format!("lddw %r1, map 0\nlddw %r2, {KEY}\nmov %r3, {value}\nmov %r4, 0\ncall {number}\nexit")
}

fn inside(index: u64) -> Inside {
    let word = |value| AtomicU64::new(value);
    // The upper half counts looks in vain.
    let near = [7 << 32 | index, 1, 1, 1].map(word);
    Inside { owner: word(1), near, marks: [const { AtomicU16::new(0) }; _] }
}

/// The arena: words, of which the element of an index has version, use, key and value.
struct Arena(Vec<AtomicU64>);

impl Arena {
    fn new() -> Arena {
        Arena((0..128).map(|_| AtomicU64::new(0)).collect())
    }

    fn put(&self, index: usize, version: u32, used: u32, key: u64, value: u64) {
        let at = (ELEMENTS + index * UNIT - UNIT) / 8;
        self.0[at].store(u64::from(version) << 32, Relaxed);
        self.0[at + 1].store(u64::from(used) << 32, Relaxed);
        self.0[at + 2].store(key, Relaxed);
        self.0[at + 3].store(value, Relaxed);
    }

    fn version(&self, index: usize) -> u32 {
        (self.0[(ELEMENTS + index * UNIT - UNIT) / 8].load(Relaxed) >> 32) as u32
    }

    fn value(&self, index: usize) -> u64 {
        self.0[self.word(index)].load(Relaxed)
    }

    fn word(&self, index: usize) -> usize {
        (ELEMENTS + index * UNIT - UNIT) / 8 + 3
    }

    fn base(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn run(&self, code: &Loaded, index: u64) -> u64 {
        let inside = inside(index);
        let mut run = Run::new(FUEL, 0, &[]).inside(&inside);
        // SAFETY: what it reads and writes is this arena's and this function's.
        unsafe { code.run([0; 5], self.base(), &mut run) }.unwrap()
    }
}

#[test]
fn what_is_done_is_what_the_helper_would_have_done_and_else_it_is_asked() {
    let live = element::IS_LIVE;
    // Index that the thread has, version, use, key; whether it is the key's, and there.
    let cases: [(u64, u32, u32, u64, Option<bool>); 13] = [
        (1, AWAKE, live, KEY, Some(true)),
        (1, GONE, live | 1, KEY, Some(false)),
        (2, AWAKE, live, KEY, Some(true)),
        (3, AWAKE, live, KEY, Some(true)),
        (3, GONE, live, KEY, Some(false)),
        (4, AWAKE, live, KEY, Some(true)),
        (1, AWAKE | 1, live, KEY, None),
        (1, GONE | 1, live, KEY, None),
        (1, AWAKE, 1, KEY, None),
        (1, AWAKE, live, KEY + 1, None),
        (1, AWAKE, live, KEY & 0xffff_ffff, None),
        (0, AWAKE, live, KEY, None),
        (5, AWAKE, live, KEY, None),
    ];
    for effort in [Effort::None, Effort::Speed] {
        let code = |number| load(&calls(number, 42), PLAIN, Level::Own, effort);
        let lookup = code(helper::WORD_LOOKUP);
        let init = code(helper::WORD_LOOKUP_OR_INIT);
        let [set, remove] = [helper::WORD_UPDATE, helper::WORD_DELETE].map(code);
        for (index, version, used, key, is_there) in cases {
            let at = index as usize;
            let stays = index <= u64::from(STAY);
            let after = |code: &Loaded| {
                let arena = Arena::new();
                arena.put(at, version, used, key, 5);
                let r0 = arena.run(code, index);
                let is_address = r0 == &raw const arena.0[arena.word(at)] as u64;
                (if is_address { 1 } else { r0 }, arena.version(at), arena.value(at))
            };
            let same = |r0| (r0, version, 5);
            let woken = (version & !element::ASLEEP) + 4;
            let case = format!("{effort:?} {index} {version} {used} {key:#x}");
            let [looked, inited, was_set, removed] = match (is_there, stays) {
                (None, _) => [same(ASKED); 4],
                (Some(true), true) => [same(1), same(1), (0, version, 42), (0, version | 2, 5)],
                (Some(true), false) => [same(1), same(1), (0, version, 42), same(ASKED)],
                (Some(false), true) => [same(0), same(ASKED), (0, woken, 42), same(-2i64 as u64)],
                (Some(false), false) => [same(0), same(ASKED), same(ASKED), same(-2i64 as u64)],
            };
            assert_eq!(after(&lookup), looked, "lookup {case}");
            assert_eq!(after(&init), inited, "lookup or init {case}");
            assert_eq!(after(&set), was_set, "set {case}");
            assert_eq!(after(&remove), removed, "remove {case}");
        }
    }
}

#[test]
fn a_thread_without_a_place_and_a_checked_program_ask() {
    let arena = Arena::new();
    arena.put(1, AWAKE, element::IS_LIVE, KEY, 5);
    let own = load(&calls(helper::WORD_LOOKUP, 0), PLAIN, Level::Own, Effort::Speed);
    // SAFETY: it reads its run.
    let r0 = unsafe { own.run([0; 5], arena.base(), &mut Run::new(FUEL, 0, &[])) };
    assert_eq!(r0, Ok(ASKED));
    let checked = load(&calls(helper::WORD_LOOKUP, 0), PLAIN, Level::Checked, Effort::Speed);
    let (inside, mut stack) = (inside(1), [0u64; jit::STACK_LEN / 8]);
    let mut run = Run::new(FUEL, stack.as_mut_ptr() as u64, &[]).inside(&inside);
    // SAFETY: checked; the stack is this function's.
    assert_eq!(unsafe { checked.run([0; 5], arena.base(), &mut run) }, Ok(ASKED));
}

/// A chain's number, as `map` computes it.
fn chain_of(key: u64, len: u64) -> usize {
    let wide = u128::from(key ^ len ^ chain::SALT) * u128::from(chain::SPREAD);
    let mixed = wide as u64 ^ (wide >> 64) as u64;
    (mixed ^ mixed >> 32) as usize % BUCKETS as usize
}

#[test]
fn a_key_that_is_another_one_all_the_time_is_looked_for_where_its_chain_begins() {
    let text = format!("ldxdw %r2, [%r1+0]\nlddw %r1, map 0\ncall {}\nexit", helper::WORD_LOOKUP);
    for key_len in [8, 4] {
        let is_half_key = key_len == 4;
        let code = load(&text, NearTable { key_len, ..PLAIN }, Level::Own, Effort::Speed);
        for key in [7, KEY, u64::MAX, 1 << 40] {
            let cut = if is_half_key { key & 0xffff_ffff } else { key };
            let chain = chain_of(cut, if is_half_key { 4 } else { 8 });
            // The chain begins with its key's element, with another's, with none; another chain does.
            for (index, at, found, is_there) in [
                (2, chain, cut, true),
                (2, chain, cut ^ 1, false),
                (1 << 31 | chain as u64, chain, cut, false),
                (2, (chain + 1) % BUCKETS as usize, cut, false),
            ] {
                let arena = Arena::new();
                arena.put(2, AWAKE, element::IS_LIVE, found, 5);
                arena.0[(CHAINS + chain::UNIT * at) / 8].store(index << 32 | 0xdead, Relaxed);
                // Nobody's place is asked for.
                let mut run = Run::new(FUEL, 0, &[]);
                // SAFETY: what it reads is this function's.
                let ran = unsafe { code.run([&raw const key as u64, 0, 0, 0, 0], arena.base(), &mut run) };
                let value = &raw const arena.0[arena.word(2)] as u64;
                assert_eq!(ran, Ok(if is_there { value } else { ASKED }), "{key:#x} {index:#x} {at}");
            }
        }
    }
}

/// Tables as crate `map` lays them out: what is found is what the table finds.
#[test]
fn keys_of_a_table_are_found_where_it_has_them() {
    let spec = |key, agg| map::Spec { kind: map::Kind::Hash, key, value: 8, limit: 100, agg };
    let lens = [8, 4, 16, 64];
    let tables = [spec(8, Some(map::Agg::Count)), spec(12, None), spec(72, None)];
    let tables = lens.map(|len| spec(len, None)).into_iter().chain(tables).collect();
    let maps = map::Maps::new(&map::Plan { tables, first_table: 1, ..map::Plan::default() }).unwrap();
    let keys: Vec<u64> = (0..40u64).map(|n| n.wrapping_mul(0x1_0003_0005_0007)).collect();
    // Each word of a long key is another one.
    let words = |key: u64| -> [u64; 8] { std::array::from_fn(|n| key.rotate_left(7 * n as u32)) };
    let bytes = |key: u64, len: usize| words(key).map(u64::to_ne_bytes).concat()[..len].to_vec();
    for (number, len) in lens.into_iter().enumerate() {
        for key in &keys {
            let value = (key ^ 5).to_ne_bytes();
            maps.table(number).update(&bytes(*key, len), &value, map::Flag::Any, map::Outside).unwrap();
        }
    }
    let image: Vec<u64> =
        maps.image().as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let given = format!("ldxdw %r2, [%r1+0]\nlddw %r1, map 0\ncall {}\nexit", helper::WORD_LOOKUP);
    let there = format!("mov %r2, %r1\nlddw %r1, map 0\ncall {}\nexit", helper::MAP_LOOKUP);
    for (number, text) in [(0, &given), (1, &given), (0, &there), (1, &there), (2, &there), (3, &there)] {
        let code = load(text, maps.near(1 + number, 0).unwrap(), Level::Own, Effort::Speed);
        let (mut found, mut found_another) = (0, 0);
        for key in &keys {
            let arena = image.as_ptr() as u64;
            let look = |key: &[u64; 8]| {
                let mut run = Run::new(FUEL, 0, &[]);
                // SAFETY: it reads the image and the key, which are this function's.
                unsafe { code.run([key.as_ptr() as u64, 0, 0, 0, 0], arena, &mut run) }.unwrap()
            };
            let at = look(&words(*key));
            if at != ASKED {
                assert_eq!(image[(at - arena) as usize / 8], key ^ 5);
                found += 1;
            }
            // A key of which one word is another one is not found: this chain is another's, or its key is.
            for n in 0..lens[number] / 8 {
                let mut another = words(*key);
                another[n] ^= 1 << 31;
                found_another += usize::from(look(&another) != ASKED);
            }
        }
        // Few stand behind another one: 40 of 128 chains.
        assert!(found >= 25, "table {number}: {found} of 40");
        assert_eq!(found_another, 0, "table {number}");
    }
    // Long keys are asked for by what leads to them alone.
    let asks = load(&given, maps.near(3, 0).unwrap(), Level::Own, Effort::Speed);
    let mut run = Run::new(FUEL, 0, &[]);
    // SAFETY: it reads the keys, which are this function's.
    let r0 = unsafe { asks.run([keys.as_ptr() as u64, 0, 0, 0, 0], image.as_ptr() as u64, &mut run) };
    assert_eq!(r0, Ok(ASKED));
    assert_eq!([0, 6, 7].map(|number| maps.near(number, 0)), [None; 3]);
    let how = |number| match maps.near(number, 0).unwrap().value {
        NearValue::Aggregate { how, .. } => Some(how),
        NearValue::Plain { .. } => None,
    };
    assert_eq!([how(1), how(5)], [None, Some(NearAdd::Count)]);
}

/// An element whose chain begins with it, and of whose key one word at a time is another one.
#[test]
fn a_long_key_is_the_elements_in_each_of_its_words() {
    const WORDS: usize = 3;
    let key: [u64; WORDS] = [KEY, 7, u64::MAX];
    let text = format!("mov %r2, %r1\nlddw %r1, map 0\ncall {}\nexit", helper::LOOKUP_OR_INIT);
    let table = NearTable {
        key_len: 8 * WORDS as u32,
        unit: 48,
        value: NearValue::Plain { at: 40, word: Some(8) },
        ..PLAIN
    };
    let code = load(&text, table, Level::Own, Effort::Speed);
    for wrong in 0..=WORDS {
        let arena = Arena::new();
        let at = ELEMENTS / 8;
        arena.0[at].store(u64::from(AWAKE) << 32, Relaxed);
        arena.0[at + 1].store(u64::from(element::IS_LIVE) << 32, Relaxed);
        (0..WORDS).for_each(|n| arena.0[at + 2 + n].store(key[n] ^ u64::from(n == wrong), Relaxed));
        (0..BUCKETS as usize).for_each(|chain| arena.0[CHAINS / 8 + chain].store(1 << 32, Relaxed));
        let mut run = Run::new(FUEL, 0, &[]);
        // SAFETY: it reads the arena and the key, which are this function's.
        let r0 = unsafe { code.run([key.as_ptr() as u64, 0, 0, 0, 0], arena.base(), &mut run) };
        let value = &raw const arena.0[at + 5] as u64;
        assert_eq!(r0, Ok(if wrong == WORDS { value } else { ASKED }), "{wrong}");
    }
}

#[test]
fn the_function_is_the_sites_and_without_a_site_the_helper_is_asked() {
    let code = load(&format!("call {}\nexit", helper::FUNC_IP), PLAIN, Level::Own, Effort::Speed);
    let site = SiteDesc { function: 0x1234_5678_9abc, ..SiteDesc::default() };
    let mut run = Run::new(FUEL, 0, &[]);
    // SAFETY: it reads its run.
    assert_eq!(unsafe { code.run([0; 5], 0, &mut run) }, Ok(ASKED));
    let mut run = Run::new(FUEL, 0, &[]).at(&site, wire::COPY_NONE);
    // SAFETY: it reads its run and the site.
    assert_eq!(unsafe { code.run([0; 5], 0, &mut run) }, Ok(0x1234_5678_9abc));
}

#[test]
fn a_thread_is_known_by_its_place_and_else_the_helper_is_asked() {
    let words = [0u32, 7, 0, 99];
    let pointer = words.as_ptr() as u64;
    let place = Inside { owner: pointer.into(), ..inside(0) };
    let code = load("call 14\nexit", PLAIN, Level::Own, Effort::Speed);
    let known = u64::from(1234u32) << 32 | 99;
    // The thread's number, where it lies, the process, what the trampoline knew; a place, or none.
    for (at, process, copy, has_place, r0) in [
        (12, 1234, 0x10000, true, known),
        (0, 1234, 0x10000, true, ASKED),
        (8, 1234, 0x10000, true, ASKED),
        (12, 0, 0x10000, true, ASKED),
        (12, 1234, wire::COPY_NONE, true, ASKED),
        (12, 1234, wire::COPY_UNKNOWN, true, ASKED),
        (12, 1234, 0x10000, false, ASKED),
    ] {
        let site = SiteDesc { tid_offset: at, process, ..SiteDesc::default() };
        let mut run = Run::new(FUEL, 0, &[]).at(&site, copy);
        if has_place {
            run = run.inside(&place);
        }
        // SAFETY: it reads its run and what that leads to, which is this function's.
        assert_eq!(unsafe { code.run([0; 5], 0, &mut run) }, Ok(r0), "{at} {process} {copy} {has_place}");
    }
}

#[test]
fn half_a_key_and_half_a_value_are_cut_and_a_long_value_is_not_set() {
    let arena = Arena::new();
    arena.put(1, AWAKE, element::IS_LIVE, KEY & 0xffff_ffff, 5);
    let half = |word| NearTable { key_len: 4, value: NearValue::Plain { at: 24, word }, ..PLAIN };
    let text = format!("lddw %r1, map 0\nlddw %r2, {KEY}\nlddw %r3, -2\ncall {}\nexit", helper::WORD_UPDATE);
    let set = load(&text, half(Some(4)), Level::Own, Effort::Speed);
    assert_eq!((arena.run(&set, 1), arena.value(1)), (0, 0xffff_fffe));
    let set = load(&text, half(None), Level::Own, Effort::Speed);
    assert_eq!((arena.run(&set, 1), arena.value(1)), (ASKED, 0xffff_fffe));
}

#[test]
fn values_go_to_the_words_of_the_cpu_or_to_the_helper() {
    let hist = NearAdd::Hist { bits: 2, words: 3 };
    for (how, value, word, more) in [(NearAdd::Count, 42, 0, 1), (NearAdd::Sum, 42, 0, 42), (hist, 42, 4, 42)]
    {
        // Words of 16 bytes from one key's to the next, 64 from one CPU's: the second key's of the second CPU.
        let value_of = NearValue::Aggregate { at: 256, unit: 16, stride: 64, cpus: 2, how };
        let table = NearTable { value: value_of, ..PLAIN };
        let add = load(&calls(helper::WORD_AGGREGATE, value), table, Level::Own, Effort::Speed);
        let arena = Arena::new();
        arena.put(2, AWAKE, element::IS_LIVE, KEY, 5);
        assert_eq!(arena.run(&add, 2), 0);
        let words: Vec<(usize, u64)> =
            (32..128).map(|n| (n, arena.0[n].load(Relaxed))).filter(|(_, word)| *word != 0).collect();
        assert_eq!(words, [((256 + 16 + 64) / 8 + word, more)], "{how:?}");
        for version in [GONE, AWAKE | 1] {
            arena.put(2, version, element::IS_LIVE, KEY, 5);
            assert_eq!(arena.run(&add, 2), ASKED, "{how:?}");
        }
        // Plain values are not asked for here.
        let lookup = load(&calls(helper::WORD_LOOKUP, 0), table, Level::Own, Effort::Speed);
        assert_eq!(arena.run(&lookup, 2), ASKED);
    }
    let value = NearValue::Aggregate { at: 256, unit: 16, stride: 64, cpus: 2, how: NearAdd::Sum };
    let add =
        load(&calls(helper::WORD_AGGREGATE, 99), NearTable { value, ..PLAIN }, Level::Own, Effort::Speed);
    let arena = Arena::new();
    arena.put(1, AWAKE, element::IS_LIVE, KEY, 5);
    assert_eq!(arena.run(&add, 1), ASKED);
}

/// An element that has the key only while it is being changed, and never when its version is even, is never found.
#[test]
fn a_key_that_stands_in_an_element_for_a_moment_is_not_found() {
    let arena = Arena::new();
    // The version in one line of the cache and the key in the next, so that they are not seen by one access.
    let elements = (64 + 56 - arena.base() as usize % 64) % 64 + 64;
    let (head, key) = (elements / 8, elements / 8 + 2);
    // SAFETY: the version's half of a word, which nobody uses as a whole.
    let version = unsafe { AtomicU32::from_ptr(arena.0[head].as_ptr().cast::<u32>().wrapping_add(1)) };
    version.store(AWAKE, Relaxed);
    arena.0[head + 1].store(u64::from(element::IS_LIVE) << 32, Relaxed);
    arena.0[key].store(KEY + 1, Relaxed);
    let table = NearTable { elements: elements as u32, ..PLAIN };
    let lookup = load(&calls(helper::WORD_LOOKUP, 0), table, Level::Own, Effort::Speed);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut turns = 0u64;
            while !is_over.load(Relaxed) {
                let before = version.load(Relaxed);
                version.store(before | 1, Relaxed);
                fence(Release);
                arena.0[key].store(KEY, Relaxed);
                (0..turns % 16).for_each(|_| std::hint::spin_loop());
                arena.0[key].store(KEY + 1, Relaxed);
                version.store((before | 3).wrapping_add(1).max(AWAKE), Release);
                turns += 1;
            }
            turns
        });
        let inside = inside(1);
        let mut run = Run::new(FUEL, 0, &[]).inside(&inside);
        // SAFETY: what it reads is this function's.
        let mut ask = || unsafe { lookup.run([0; 5], arena.base(), &mut run) };
        let found = (0..20_000_000).filter(|_| ask() != Ok(ASKED)).count();
        is_over.store(true, Relaxed);
        let turns = writer.join().unwrap();
        assert!(found == 0 && turns > 0, "{found} found in {turns} turns");
    });
}
