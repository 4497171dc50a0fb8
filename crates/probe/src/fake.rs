//! Files and address spaces that only keep the books.
//!
//! For:     tests, torture and benchmarks.
//! State:   mappings, breakpoints and semaphores of a space; what is to fail.
//! Context: target.
//! Keeps:   K1 a breakpoint that is placed or removed twice is a panic.
//! Checked: by use.

use crate::{File, FileId, Insn, MAX_INSN, Range, Space, SpaceError, SpaceId, Spot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A file of one repeated byte.
#[derive(Clone, Debug)]
pub struct FakeFile {
    /// Its identity.
    pub id: FileId,
    /// Its size.
    pub size: u64,
    /// What it is full of.
    pub byte: u8,
    /// False: no mapping can be read.
    pub is_readable: bool,
    /// False: no instruction can be probed.
    pub is_probeable: bool,
}

impl FakeFile {
    /// A file of nops.
    pub fn nops(id: FileId, size: u64) -> FakeFile {
        FakeFile { id, size, byte: 0x90, is_readable: true, is_probeable: true }
    }

    /// As the registry takes it.
    pub fn shared(self) -> Arc<dyn File> {
        Arc::new(self)
    }
}

impl File for FakeFile {
    fn id(&self) -> FileId {
        self.id
    }
    fn size(&self) -> u64 {
        self.size
    }
    fn is_readable(&self) -> bool {
        self.is_readable
    }
    fn read(&self, offset: u64, bytes: &mut [u8; MAX_INSN]) -> usize {
        let n = self.size.saturating_sub(offset).min(MAX_INSN as u64) as usize;
        bytes[..n].fill(self.byte);
        n
    }
    fn is_probeable(&self, _: &Insn) -> bool {
        self.is_probeable
    }
}

/// One mapping.
#[derive(Clone, Debug)]
struct Mapping {
    file: FileId,
    range: Range,
    base: u64,
    is_data: bool,
}

#[derive(Clone, Default, Debug)]
struct Books {
    mappings: Vec<Mapping>,
    breakpoints: BTreeSet<u64>,
    ref_ctrs: BTreeMap<(FileId, u64), u16>,
}

/// A space of mappings that nobody executes.
#[derive(Default)]
pub struct FakeSpace {
    id: SpaceId,
    books: Mutex<Books>,
    /// Places to fail from: so many successes, then errors. `u64::MAX` is never.
    pub installs_left: AtomicU64,
    /// The same for removals.
    pub removes_left: AtomicU64,
    /// How often it was asked for many at once.
    pub batches: AtomicU64,
}

impl FakeSpace {
    /// A space without mappings.
    pub fn new(id: SpaceId) -> Arc<FakeSpace> {
        let (installs_left, removes_left) = (AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX));
        Arc::new(FakeSpace {
            id,
            books: Mutex::default(),
            installs_left,
            removes_left,
            batches: AtomicU64::new(0),
        })
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        crate::registry::lock(&self.books)
    }

    /// Maps code.
    pub fn map(&self, file: FileId, range: Range, base: u64) {
        self.books().mappings.push(Mapping { file, range, base, is_data: false });
    }

    /// Maps a semaphore's page, writable and private; it holds the value.
    pub fn map_ref_ctr(&self, file: FileId, offset: u64, value: u16) {
        let range = offset..offset + 2;
        self.books().mappings.push(Mapping { file, range, base: u64::MAX - 1, is_data: true });
        self.books().ref_ctrs.insert((file, offset), value);
    }

    /// Unmaps what lies at a base; its breakpoints go.
    pub fn unmap(&self, base: u64) {
        let mut books = self.books();
        let gone: Vec<_> = books.mappings.extract_if(.., |m| m.base == base && !m.is_data).collect();
        for mapping in gone {
            let end = mapping.base + (mapping.range.end - mapping.range.start);
            books.breakpoints.retain(|at| *at < mapping.base || *at >= end);
        }
    }

    /// The child of a fork: mappings, breakpoints and semaphores are inherited.
    pub fn fork(&self, id: SpaceId) -> Arc<FakeSpace> {
        let child = FakeSpace::new(id);
        *child.books() = self.books().clone();
        child
    }

    /// Breakpoints that stand.
    pub fn breakpoints(&self) -> Vec<u64> {
        self.books().breakpoints.iter().copied().collect()
    }

    /// A semaphore's value.
    pub fn ref_ctr(&self, file: FileId, offset: u64) -> Option<u16> {
        self.books().ref_ctrs.get(&(file, offset)).copied()
    }
}

/// Counts down; false once at zero.
fn spend(left: &AtomicU64) -> bool {
    left.fetch_update(Relaxed, Relaxed, |n| if n == u64::MAX { Some(n) } else { n.checked_sub(1) }).is_ok()
}

impl Space for FakeSpace {
    fn id(&self) -> SpaceId {
        self.id
    }
    fn addresses(&self, file: FileId, offset: u64, _: bool) -> Vec<u64> {
        let books = self.books();
        let here =
            books.mappings.iter().filter(|m| !m.is_data && m.file == file && m.range.contains(&offset));
        here.map(|m| m.base + (offset - m.range.start)).collect()
    }
    fn has_breakpoint(&self, at: u64) -> Result<bool, SpaceError> {
        Ok(self.books().breakpoints.contains(&at))
    }
    fn install(&self, at: u64, _: &Insn) -> Result<(), SpaceError> {
        if !spend(&self.installs_left) {
            return Err(SpaceError(14));
        }
        assert!(self.books().breakpoints.insert(at), "a breakpoint is placed twice");
        Ok(())
    }
    fn remove(&self, at: u64, _: &Insn) -> Result<(), SpaceError> {
        if !spend(&self.removes_left) {
            return Err(SpaceError(14));
        }
        assert!(self.books().breakpoints.remove(&at), "a breakpoint is removed twice");
        Ok(())
    }
    fn install_all(&self, spots: &[Spot]) -> Vec<Result<(), SpaceError>> {
        self.batches.fetch_add(1, Relaxed);
        spots.iter().map(|spot| self.install(spot.at, &spot.insn)).collect()
    }
    fn remove_all(&self, spots: &[Spot]) -> Vec<Result<(), SpaceError>> {
        self.batches.fetch_add(1, Relaxed);
        spots.iter().map(|spot| self.remove(spot.at, &spot.insn)).collect()
    }
    fn change_ref_ctr(
        &self,
        file: FileId,
        offset: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<bool, SpaceError> {
        let mut books = self.books();
        let Some(value) = books.ref_ctrs.get_mut(&(file, offset)) else { return Ok(false) };
        if let Some(new) = change(*value) {
            *value = new;
        }
        Ok(true)
    }
}
