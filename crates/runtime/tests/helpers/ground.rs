//! What a program has around it at a hit, made by hand.

use map::{Agg, Ground, Kind, Maps, Plan, Spec};
use runtime::{Around, Piece};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::maps::{HANDLES, HelperError, MapsHead, ReadWay};
use wire::{ProgramDesc, SiteDesc, Untrusted};

pub const FIRST: usize = 3;
/// Handles.
pub const PLAIN: usize = FIRST;
pub const COUNTS: usize = FIRST + 1;
pub const SUMS: usize = FIRST + 2;
pub const HALVES: usize = FIRST + 3;
pub const WORDS: usize = FIRST + 4;
pub const LONG: usize = FIRST + 5;
pub const LIMIT: usize = 20;

struct Words(&'static [AtomicU64]);

impl Ground for Words {
    fn memory(&self) -> Untrusted<'_> {
        // SAFETY: these words, which are never freed and used as atomics alone.
        unsafe { Untrusted::new(NonNull::from(self.0).cast(), size_of_val(self.0)) }
    }
}

#[repr(align(4096))]
struct Page(#[allow(dead_code)] [AtomicU64; 512]);

/// A process with maps, and a program in it.
pub struct World {
    pub maps: Maps,
    pub head: &'static MapsHead,
    pub desc: ProgramDesc,
    pub site: SiteDesc,
    /// Its stack: words, the last of which nobody may touch.
    pub stack: &'static [AtomicU64; 65],
    pub scratch: &'static [AtomicU64; 9000],
    pub context: &'static [AtomicU64; 21],
    copy: u64,
}

fn leak<const N: usize>() -> &'static [AtomicU64; N] {
    let words: Vec<AtomicU64> = (0..N).map(|_| AtomicU64::new(0)).collect();
    let words: &[AtomicU64] = words.leak();
    words.try_into().unwrap()
}

impl World {
    pub fn new(reads: ReadWay) -> World {
        let spec = |value, agg| Spec { kind: Kind::Hash, key: 8, value, limit: LIMIT, agg };
        let mut tables =
            vec![spec(24, None), spec(0, Some(Agg::Count)), spec(0, Some(Agg::Sum { signed: true }))];
        tables.push(Spec { key: 4, ..spec(0, Some(Agg::Count)) });
        tables.push(spec(8, None));
        tables.push(Spec { key: 16, ..spec(8, None) });
        let constants = b"constant\0".to_vec();
        let plan = Plan { constants, tables, first_table: FIRST, ring_bytes: 1 << 12 };
        let mut maps = Maps::new(&plan).unwrap();
        let pages: Vec<Page> =
            (0..maps.len() / 4096).map(|_| Page([const { AtomicU64::new(0) }; 512])).collect();
        let pages: &'static [Page] = pages.leak();
        // SAFETY: pages are words, one behind the other.
        let words = unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), pages.len() * 512) };
        let words: &'static [AtomicU64] = words;
        for (to, from) in words.iter().zip(maps.image().as_chunks::<8>().0) {
            to.store(u64::from_ne_bytes(*from), Relaxed);
        }
        maps.go_on_in(Arc::new(Words(words))).unwrap();
        // SAFETY: the head stands there, in words that are never freed.
        let head = unsafe { &*words.as_ptr().cast::<MapsHead>() };
        let offset = percpu::RseqOffset::detect().get();
        // SAFETY: plain numbers.
        let mut site: SiteDesc = unsafe { std::mem::zeroed() };
        site.rseq_offset = offset as i64;
        // SAFETY: plain numbers, and atomics of them.
        let mut desc: ProgramDesc = unsafe { std::mem::zeroed() };
        *desc.reads.get_mut() = reads as u64;
        let copy = if offset == 0 { wire::COPY_NONE } else { 4096 };
        World { maps, head, desc, site, stack: leak(), scratch: leak(), context: leak(), copy }
    }

    pub fn around(&self) -> Around<'_> {
        let piece = |words: &[AtomicU64]| {
            let start = words.as_ptr() as u64;
            Piece { start, end: start + 8 * words.len() as u64 }
        };
        let here = 0u64;
        Around {
            maps: self.head,
            desc: &self.desc,
            site: &self.site,
            copy: self.copy,
            stack: piece(&self.stack[..64]),
            given: Piece::default(),
            scratch: piece(self.scratch),
            context: piece(self.context),
            stack_pointer: std::ptr::from_ref(&here) as u64,
        }
    }

    pub fn handle(&self, number: usize) -> u64 {
        std::ptr::from_ref(self.head) as u64 + HANDLES as u64 + 8 * number as u64
    }

    /// Puts a word on the program's stack; its address.
    pub fn put(&self, at: usize, word: u64) -> u64 {
        self.stack[at].store(word, Relaxed);
        self.stack[at].as_ptr() as u64
    }

    pub fn text(&self, at: usize, text: &[u8]) -> u64 {
        for (n, chunk) in text.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.put(at + n, u64::from_le_bytes(word));
        }
        self.stack[at].as_ptr() as u64
    }

    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let words = self.stack[at..].iter().flat_map(|word| word.load(Relaxed).to_le_bytes());
        words.take(len).collect()
    }

    pub fn errors(&self) -> Vec<(HelperError, u64)> {
        let all = HelperError::ALL.map(|cause| (cause, self.maps.errors(cause)));
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}
