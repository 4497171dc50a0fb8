//! The maps of a script, as the controller uses them.
//!
//! For:     the machine: what its programs do to maps, and what is printed of them.
//! State:   none of its own: elements lie in crate `map`'s tables, in memory of ours or, behind an attach, in what traced processes
//!          share.
//! Context: control; one thread.
//! Keeps:   M1 whatever a traced process writes there costs its data: no place and no length is believed.
//!          M2 words are changed as one, so that nothing is lost that a hit does to the same word meanwhile.
//! Checked: tests below, tests/scripts.rs; map's tests/programs.

use crate::MapKind;
use crate::program::MapDecl;
use crate::types::{Agg, Type};
use bpf::helper::FIRST_MAP;
use map::{Flag, Kind, Maps, Outside, Plan, Slot, Spec};
use std::cell::{Ref, RefCell};
use std::rc::Rc;

/// Bytes of each CPU's ring of records: two of the longest fit.
const RING_BYTES: usize = 1 << 18;
/// How often a word is tried again that others change.
const TRIES: usize = 1000;

/// What the maps of a script are. Values are as long as programs have them.
pub fn specs(decls: &[MapDecl]) -> Vec<Spec> {
    decls.iter().map(|decl| Spec { value: decl.value_size.max(1), ..spec(decl) }).collect()
}

/// The maps of a script, shared by those who use them.
pub type Shared = Rc<RefCell<Maps>>;

/// Makes the maps of a script.
///
/// # Errors
/// They are too large.
pub fn shared(decls: &[MapDecl], constants: Vec<u8>) -> Result<Shared, String> {
    let plan = Plan {
        constants,
        tables: decls.iter().map(spec).collect(),
        first_table: FIRST_MAP as usize,
        ring_bytes: RING_BYTES,
    };
    let maps = Maps::new(&plan).map_err(|error| format!("ERROR: the maps can't be made: {error}"))?;
    Ok(Rc::new(RefCell::new(maps)))
}

/// Keys and values of a map as another engine has them: of an aggregate the words over all CPUs.
pub fn image_of(decl: &MapDecl, number: usize, maps: &Shared) -> Vec<(Vec<u8>, Vec<u8>)> {
    Map::new(decl.clone(), number, maps).image()
}

/// Makes a map what another engine's is, which [`image_of`] would give.
pub fn replace(decl: &MapDecl, number: usize, maps: &Shared, elements: &[(Vec<u8>, Vec<u8>)]) {
    Map::new(decl.clone(), number, maps).become_like(elements);
}

/// Takes words that were aggregated elsewhere into a key of a map.
///
/// # Errors
/// The map takes no further key.
pub fn merge(decl: &MapDecl, number: usize, maps: &Shared, key: &[u8], words: &[u64]) -> Result<(), Full> {
    Map::new(decl.clone(), number, maps).merge(key, words)
}

fn spec(decl: &MapDecl) -> Spec {
    let kind = match decl.kind {
        MapKind::Hash if decl.is_own => Kind::OwnHash,
        MapKind::Hash => Kind::Hash,
        MapKind::LruHash => Kind::LruHash,
        MapKind::PercpuHash => Kind::PercpuHash,
        MapKind::PercpuLruHash => Kind::PercpuLruHash,
    };
    Spec {
        kind,
        key: decl.key_size.max(1),
        value: decl.value_size.max(8),
        limit: decl.max_entries.max(1),
        agg: agg(decl),
    }
}

fn agg(decl: &MapDecl) -> Option<Agg> {
    match decl.value {
        Type::Agg(agg) => Some(agg),
        _ => None,
    }
}

/// A map.
pub struct Map {
    /// As the script has it.
    pub decl: MapDecl,
    maps: Shared,
    number: usize,
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map").field("decl", &self.decl).finish_non_exhaustive()
    }
}

/// A map that takes no further key.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Map {
    /// Number so-and-so of the shared maps.
    pub fn new(decl: MapDecl, number: usize, maps: &Shared) -> Map {
        Map { decl, maps: Rc::clone(maps), number }
    }

    fn maps(&self) -> Ref<'_, Maps> {
        self.maps.borrow()
    }

    /// The key, as long as keys are.
    fn key(&self, key: &[u8]) -> Vec<u8> {
        let mut key = key.to_vec();
        key.resize(self.decl.key_size.max(1), 0);
        key
    }

    /// Bytes from one value to the next.
    pub fn stride(&self) -> usize {
        self.decl.value_size.next_multiple_of(8).max(8)
    }

    /// What it aggregates.
    pub fn agg(&self) -> Option<Agg> {
        agg(&self.decl)
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.maps().table(self.number).len() as usize
    }

    /// The slot of a key.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.maps().table(self.number).find(&self.key(key)).ok().map(|slot| slot.0)
    }

    /// The slot of a key, which is made with zeros.
    pub fn find_or_init(&self, key: &[u8]) -> Result<u32, Full> {
        let found = self.maps().table(self.number).find_or_init(&self.key(key), Outside);
        found.map(|slot| slot.0).map_err(|_| Full)
    }

    /// Sets a key's value.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Full> {
        let mut value = value.to_vec();
        value.resize(self.decl.value_size.max(8), 0);
        let done = self.maps().table(self.number).update(&self.key(key), &value, Flag::Any, Outside);
        done.map_err(|_| Full)
    }

    /// Whether there was one.
    pub fn delete(&self, key: &[u8]) -> bool {
        self.maps().table(self.number).delete(&self.key(key), Outside).is_ok()
    }

    /// Removes all.
    pub fn clear(&self) {
        self.maps().table(self.number).clear();
    }

    /// Makes all values zero.
    pub fn zero(&self) {
        self.maps().table(self.number).zero();
    }

    /// Copies bytes of a value; false if there are not so many.
    pub fn read(&self, slot: u32, offset: usize, to: &mut [u8]) -> bool {
        let mut value = vec![0; self.stride()];
        let Some(from) = offset.checked_add(to.len()).and_then(|end| value.get_mut(..end)) else {
            return false;
        };
        self.maps().table(self.number).read(Slot(slot), 0, from);
        to.copy_from_slice(&from[offset..]);
        true
    }

    /// Writes bytes of a value, word by word; false if there are not so many.
    pub fn write(&self, slot: u32, offset: usize, from: &[u8]) -> bool {
        if offset.checked_add(from.len()).is_none_or(|end| end > self.stride()) {
            return false;
        }
        let maps = self.maps();
        let table = maps.table(self.number);
        let mut done = 0;
        while done < from.len() {
            let (at, within) = ((offset + done) & !7, (offset + done) & 7);
            let count = (8 - within).min(from.len() - done);
            let (mut old, mut is_written) = (0u64, false);
            for _ in 0..TRIES {
                let mut word = old.to_ne_bytes();
                word[within..within + count].copy_from_slice(&from[done..done + count]);
                match table.exchange(Slot(slot), at, old, u64::from_ne_bytes(word)) {
                    Some(Ok(_)) => is_written = true,
                    Some(Err(now)) => old = now,
                    None => return false,
                }
                if is_written {
                    break;
                }
            }
            done += count;
        }
        true
    }

    /// Makes bytes of one word of a value, `old.len()` of them, `new` if they are `old`; `None` if they are not there.
    pub fn exchange(&self, slot: u32, offset: usize, old: &[u8], new: &[u8]) -> Option<bool> {
        let (at, within) = (offset & !7, offset & 7);
        let bytes = within..within + old.len();
        let mut word = [0; 8];
        if !self.read(slot, at, &mut word) || word.get(bytes.clone())? != old {
            return (at + 8 <= self.stride()).then_some(false);
        }
        let before = u64::from_ne_bytes(word);
        word.get_mut(bytes)?.copy_from_slice(new);
        let maps = self.maps();
        let done = maps.table(self.number).exchange(Slot(slot), at, before, u64::from_ne_bytes(word))?;
        Some(done.is_ok())
    }

    /// The value of a slot.
    pub fn value(&self, slot: u32) -> Vec<u8> {
        let mut value = vec![0; self.decl.value_size.max(8)];
        self.maps().table(self.number).value(Slot(slot), &mut value);
        value.truncate(self.decl.value_size);
        value
    }

    /// Takes a value into an aggregate.
    pub fn aggregate(&self, key: &[u8], value: u64, stamp: u64) -> Result<(), Full> {
        let key = self.key(key);
        self.maps().table(self.number).aggregate(&key, value, stamp, Outside).map_err(|_| Full)
    }

    /// Makes it what another engine's map is.
    pub fn become_like(&self, elements: &[(Vec<u8>, Vec<u8>)]) {
        self.clear();
        for (key, value) in elements {
            // One that finds no room is missing: these are no more than fit.
            let _ = match self.agg() {
                None => self.update(key, value),
                Some(_) => {
                    let words: Vec<u64> =
                        value.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
                    self.merge(key, &words)
                }
            };
        }
    }

    /// Takes words of another engine's aggregate into a key's.
    pub fn merge(&self, key: &[u8], words: &[u64]) -> Result<(), Full> {
        self.maps().table(self.number).merge(&self.key(key), words, Outside).map_err(|_| Full)
    }

    /// Keys and values as another engine's map has them: of an aggregate the words over all CPUs.
    pub fn image(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let value = |slot| match self.agg() {
            None => self.value(slot),
            Some(_) => {
                let words = self.maps().table(self.number).merged(Slot(slot));
                words.iter().flat_map(|word| word.to_ne_bytes()).collect()
            }
        };
        self.elements().into_iter().map(|(key, slot)| (key, value(slot))).collect()
    }

    /// One number of an aggregate, over all CPUs.
    pub fn aggregated(&self, slot: u32) -> u64 {
        self.maps().table(self.number).aggregated(Slot(slot))
    }

    /// The words of an aggregate, over all CPUs.
    pub fn words(&self, slot: u32) -> Vec<u64> {
        self.maps().table(self.number).words(Slot(slot))
    }

    /// The first element behind a slot; 0 stands before all.
    pub fn next(&self, behind: u64) -> Option<(u32, Vec<u8>)> {
        let maps = self.maps();
        let table = maps.table(self.number);
        let mut at = Slot(u32::try_from(behind).ok()?);
        loop {
            at = table.next(at)?;
            let mut key = vec![0; self.decl.key_size.max(1)];
            if table.key(at, &mut key) {
                key.truncate(self.decl.key_size);
                return Some((at.0, key));
            }
        }
    }

    /// All elements: keys and slots, in no order.
    pub fn elements(&self) -> Vec<(Vec<u8>, u32)> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some((slot, key)) = self.next(at) {
            found.push((key, slot));
            at = slot.into();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Int;

    fn map(kind: MapKind, max_entries: usize, value_size: usize) -> Map {
        let value = Type::Int(Int::new(8, true));
        let (name, key) = ("@".into(), Some(value.clone()));
        let decl = MapDecl { name, kind, key, key_size: 1, value, value_size, max_entries, is_own: false };
        let maps = shared(std::slice::from_ref(&decl), Vec::new()).unwrap();
        Map::new(decl, 0, &maps)
    }

    #[test]
    fn a_full_map_refuses_and_one_that_drops_the_oldest_does_not() {
        let full = map(MapKind::Hash, 2, 8);
        assert!(full.find_or_init(b"a").is_ok() && full.find_or_init(b"b").is_ok());
        assert_eq!(full.find_or_init(b"c"), Err(Full));
        let lru = map(MapKind::LruHash, 2, 8);
        for key in [b"a", b"b", b"a", b"c"] {
            lru.find_or_init(key).unwrap();
        }
        assert!(lru.find(b"c").is_some() && lru.len() == 2);
    }

    #[test]
    fn bytes_of_a_value_are_read_and_written_and_none_beyond() {
        let map = map(MapKind::Hash, 2, 20);
        let slot = map.find_or_init(b"a").unwrap();
        assert!(map.write(slot, 5, &[1, 2, 3, 4, 5, 6]));
        let mut to = [9; 8];
        assert!(map.read(slot, 4, &mut to));
        assert_eq!(to, [0, 1, 2, 3, 4, 5, 6, 0]);
        assert!(!map.write(slot, 20, &[0; 8]) && !map.read(slot, 24, &mut to));
        assert_eq!(map.exchange(slot, 4, &[0, 1, 2, 3], &[9; 4]), Some(true));
        assert_eq!(map.exchange(slot, 4, &[0, 1, 2, 3], &[8; 4]), Some(false));
        assert_eq!(map.exchange(slot, 24, &[0; 8], &[8; 8]), None);
        assert!(map.read(slot, 4, &mut to));
        assert_eq!(to, [9, 9, 9, 9, 4, 5, 6, 0]);
        assert!(map.write(slot, 5, &[1, 2, 3, 4, 5, 6]));
        assert_eq!(map.value(slot).len(), 20);
        assert!(map.delete(b"a") && !map.delete(b"a"));
        assert_eq!(map.elements(), []);
    }

    #[test]
    fn a_map_becomes_what_another_engines_is() {
        let plain = map(MapKind::Hash, 4, 8);
        plain.update(b"z", &[9; 8]).unwrap();
        plain.become_like(&[(b"a".to_vec(), vec![1; 8])]);
        assert_eq!((plain.len(), plain.value(plain.find(b"a").unwrap())), (1, vec![1; 8]));
        let decl = MapDecl { value: Type::Agg(Agg::Max { signed: true }), ..plain.decl.clone() };
        let maps = shared(std::slice::from_ref(&decl), Vec::new()).unwrap();
        let most = Map::new(decl, 0, &maps);
        let rank = (-5i64).cast_unsigned() ^ 1 << 63;
        for _ in 0..2 {
            most.become_like(&[(b"a".to_vec(), [rank.to_ne_bytes(), 1u64.to_ne_bytes()].concat())]);
            assert_eq!(most.aggregated(most.find(b"a").unwrap()).cast_signed(), -5);
        }
    }

    #[test]
    fn what_a_map_is_to_another_engine_makes_the_same_map() {
        let plain = map(MapKind::Hash, 4, 8);
        plain.update(b"a", &[1; 8]).unwrap();
        plain.update(b"b", &[2; 8]).unwrap();
        let mut image = plain.image();
        image.sort();
        assert_eq!(image, [(b"a".to_vec(), vec![1; 8]), (b"b".to_vec(), vec![2; 8])]);
        for agg in [Agg::Count, Agg::Avg { signed: true }, Agg::Min { signed: true }, Agg::Hist { bits: 2 }] {
            let decl = MapDecl { value: Type::Agg(agg), ..plain.decl.clone() };
            let made = || {
                let maps = shared(std::slice::from_ref(&decl), Vec::new()).unwrap();
                Map::new(decl.clone(), 0, &maps)
            };
            let (from, to) = (made(), made());
            for value in [3u64, 900, (-7i64).cast_unsigned()] {
                from.aggregate(b"k", value, 0).unwrap();
            }
            to.become_like(&from.image());
            let words = |map: &Map| map.words(map.find(b"k").unwrap());
            assert_eq!(words(&to), words(&from), "{agg:?}");
        }
    }

    #[test]
    fn maps_that_are_too_large_are_refused() {
        let decl = MapDecl { max_entries: 1 << 31, value_size: 1 << 20, ..map(MapKind::Hash, 1, 8).decl };
        assert!(shared(&[decl], Vec::new()).err().unwrap().contains("can't be made"));
    }
}
