//! The maps of a program, as who makes them sees them.
//!
//! For:     the controller: it makes them in memory of its own, where programs that run before an attach use them, moves them into
//!          a session's arena, and goes on using them while targets change them.
//! State:   where everything lies, which is ours and never read back; the memory; how far each ring was read.
//! Context: control.
//! Keeps:   I1 whatever a target writes costs its data: no offset and no length is read from the memory.
//!          I2 what was in the maps before a move is in them afterwards.
//!          I3 records are given out once, in the order of their stamps as far as they are there.
//!          I4 the clock of programs is as `clock` says, and the kernel's where the counter is not the kernel's clock.
//! Checked: tests/programs/maps.rs (I2, I3, I4), tests/programs/hostile.rs (I1).

use crate::clock::{self, Piece, Timekeeper};
use crate::{Checked, Cursor, Error, Form, Next, Reader, Ring, Spec, Table};
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::Arc;
use sys::mapping::PrivateMapping;
use wire::maps::{Clock, ERRORS_STRIDE, HANDLES, HelperError, MapsHead, NearTable, Span};
use wire::{Inside, Untrusted};

const PAGE: usize = 4096;
/// In front of a record's bytes: its stamp.
const STAMP: usize = 8;

/// Memory that maps lie in.
pub trait Ground: Send + Sync {
    /// All of it, from the maps' head on.
    fn memory(&self) -> Untrusted<'_>;
}

/// Memory of this process alone.
struct Private(PrivateMapping);

impl Ground for Private {
    fn memory(&self) -> Untrusted<'_> {
        let base = NonNull::new(self.0.base()).unwrap_or(NonNull::dangling());
        // SAFETY: mapped as long as the value lives, page aligned, no file that could be cut, used as atomics alone.
        unsafe { Untrusted::new(base, self.0.len_bytes()) }
    }
}

/// What a program's maps are to be.
#[derive(Debug, Default)]
pub struct Plan {
    /// The constants' bytes.
    pub constants: Vec<u8>,
    /// Its tables; number `n` has handle `first_table + n`.
    pub tables: Vec<Spec>,
    /// The handle of the first table: those before are the program's for other purposes.
    pub first_table: usize,
    /// Bytes of each CPU's ring of records; 0 for none.
    pub ring_bytes: usize,
}

/// A record that a program left.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds of the monotonic clock.
    pub stamp: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct Placed {
    at: usize,
    form: Form,
}

/// The maps of a program.
pub struct Maps {
    ground: Arc<dyn Ground>,
    tables: Vec<Placed>,
    first_table: usize,
    constants: (usize, usize),
    data: usize,
    rings: usize,
    ring_bytes: usize,
    ring_stride: usize,
    errors: usize,
    cpus: usize,
    len: usize,
    cursors: Vec<Cursor>,
    /// Records that are younger than what may still come.
    held: Vec<Record>,
    keeper: Timekeeper,
    /// Where the next piece of the clock is written, and the last version.
    span: usize,
    version: u64,
    /// How far the clocks that [`Clock`] names are ahead.
    ahead: [Option<u64>; 2],
}

impl Maps {
    /// Makes them, without a key, in memory of this process.
    ///
    /// # Errors
    /// [`Error::Setup`]: they are too large, or there is no memory.
    pub fn new(plan: &Plan) -> Result<Maps, Error> {
        let cpus = percpu::possible_cpus();
        let most = 1usize << 34;
        let too_large = |size| Error::Setup(objcache::Error::TooBig { size, most });
        let handles = plan.first_table + plan.tables.len();
        let mut at = (HANDLES + 8 * handles).next_multiple_of(128);
        let constants = (at, plan.constants.len());
        at = (at + plan.constants.len()).next_multiple_of(128);
        let errors = at;
        at += ERRORS_STRIDE * cpus as usize;
        let ring_bytes = if plan.ring_bytes == 0 { 0 } else { plan.ring_bytes.next_power_of_two().max(64) };
        let ring_stride =
            if ring_bytes == 0 { 0 } else { Ring::bytes_for(ring_bytes).next_multiple_of(PAGE) };
        at = at.next_multiple_of(PAGE);
        let rings = at;
        at += ring_stride * cpus as usize;
        let mut tables = Vec::new();
        for spec in &plan.tables {
            let form = Form::new(spec, cpus).ok_or_else(|| too_large(spec.limit))?;
            tables.push(Placed { at, form });
            at += form.front_len();
        }
        at = at.next_multiple_of(PAGE);
        let data = at;
        for Placed { at: front, form } in &mut tables {
            form.place(at - *front);
            at = at.checked_add(form.data_len()).filter(|end| *end <= most).ok_or_else(|| too_large(at))?;
        }
        let memory =
            PrivateMapping::new(at.max(PAGE)).map_err(|e| Error::Setup(objcache::Error::System(e)))?;
        let mut maps = Maps {
            ground: Arc::new(Private(memory)),
            tables,
            first_table: plan.first_table,
            constants,
            data,
            rings,
            ring_bytes,
            ring_stride,
            errors,
            cpus: cpus as usize,
            len: at,
            cursors: Vec::new(),
            held: Vec::new(),
            keeper: Timekeeper::new(clock::read()),
            span: 0,
            version: 0,
            ahead: [None; 2],
        };
        for Placed { at, form } in &maps.tables {
            form.lay_out(maps.ground.memory(), *at)?;
        }
        maps.write_bytes(maps.constants.0, &plan.constants);
        maps.lay_out()?;
        Ok(maps)
    }

    /// Bytes that they take.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where a map's handle stands, from the head: its address in a target is what a program calls the map.
    pub fn handle(&self, number: usize) -> Option<usize> {
        (number < self.first_table + self.tables.len()).then_some(HANDLES + 8 * number)
    }

    /// What compiled code has to know of a table to look for a key by itself, if the head is so far from the arena's beginning; `None`
    /// if it has to ask.
    pub fn near(&self, number: usize, head: usize) -> Option<NearTable> {
        let placed = self.tables.get(number.checked_sub(self.first_table)?)?;
        let word = Inside::near_of((head + self.handle(number)?) as u64);
        placed.form.near(head + placed.at, (offset_of!(Inside, near) + 8 * word) as u32)
    }

    /// Where the constants lie, from the head.
    pub fn constants(&self) -> usize {
        self.constants.0
    }

    /// A table, by its place in the plan.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn table(&self, number: usize) -> Table<Checked<'_>> {
        let Placed { at, form } = &self.tables[number];
        let table = Table::in_untrusted(self.ground.memory(), *at, form);
        table.unwrap_or_else(|error| panic!("table {number} at {at:#x}: {error}"))
    }

    /// All of it as bytes, for memory that is filled before it is used: as they are now, with the records that wait.
    pub fn image(&self) -> Vec<u8> {
        let memory = self.ground.memory();
        let mut bytes = vec![0; self.len];
        for (n, chunk) in bytes.chunks_mut(8).enumerate() {
            // Words of pages that were never touched are not written here either.
            if let Some(word @ 1..) = memory.load(8 * n) {
                chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
            }
        }
        bytes
    }

    /// Goes on in memory that was filled with [`image`](Self::image), when nobody has changed these since.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is too short.
    pub fn go_on_in(&mut self, ground: Arc<dyn Ground>) -> Result<(), Error> {
        if ground.memory().len_bytes() < self.len {
            return Err(Error::Damaged);
        }
        self.ground = ground;
        Ok(())
    }

    /// Writes the head, and empty rings.
    fn lay_out(&mut self) -> Result<(), Error> {
        let put = |at: usize, value: usize| self.put(at, value as u64);
        put(offset_of!(MapsHead, handles), self.first_table + self.tables.len());
        put(offset_of!(MapsHead, constants), self.constants.0);
        put(offset_of!(MapsHead, constants_len), self.constants.1);
        put(offset_of!(MapsHead, data), self.data);
        put(offset_of!(MapsHead, len), self.len);
        put(offset_of!(MapsHead, rings), self.rings);
        put(offset_of!(MapsHead, ring_stride), self.ring_stride);
        put(offset_of!(MapsHead, ring_bytes), self.ring_bytes);
        put(offset_of!(MapsHead, errors), self.errors);
        put(offset_of!(MapsHead, cpus), self.cpus);
        for (n, Placed { at, .. }) in self.tables.iter().enumerate() {
            put(HANDLES + 8 * (self.first_table + n), *at);
        }
        let number = if self.ring_bytes == 0 { 0 } else { self.cpus };
        for cpu in 0..number {
            Ring::lay_out(self.ground.memory(), self.rings + cpu * self.ring_stride, self.ring_bytes)?;
        }
        self.cursors = vec![Cursor::default(); number];
        Ok(())
    }

    fn put(&self, at: usize, value: u64) {
        if let Some(word) = self.ground.memory().word(at) {
            word.store(value, Relaxed);
        }
    }

    fn write_bytes(&self, at: usize, bytes: &[u8]) {
        for (n, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.put(at + 8 * n, u64::from_ne_bytes(word));
        }
    }

    /// Tells helpers something of the world: a word of [`MapsHead`], by its offset.
    pub fn tell(&self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8) && offset < offset_of!(MapsHead, clock), "no word at {offset}");
        self.put(offset, value);
    }

    /// Sees to it that programs which may read the counter find the clock there. To be called every 50 ms or so; who finds that it was
    /// not asks the kernel.
    ///
    /// # Context
    /// Control. Costs a dozen calls of the kernel, and sleeps for 10 ms if the maps were made just before.
    pub fn keep_clock(&mut self) {
        if !clock::is_clock_by_counter() {
            return self.drop_clock();
        }
        let mut now = clock::read();
        if self.keeper.last().is_none() {
            clock::wait_for_base(&self.keeper, now);
            now = clock::read();
        }
        for (at, id) in [(offset_of!(Clock, boot), sys::BOOTTIME), (offset_of!(Clock, tai), sys::TAI)] {
            let ahead = &mut self.ahead[usize::from(id == sys::TAI)];
            *ahead = clock::ahead(id, *ahead);
            let ahead = *ahead;
            self.put(offset_of!(MapsHead, clock) + at, ahead.unwrap_or_default());
        }
        if let Some(piece) = self.keeper.next(now) {
            self.set_clock(piece);
        }
    }

    /// Writes a piece of the clock in the place of the one before the last.
    pub fn set_clock(&mut self, piece: Piece) {
        let at = offset_of!(MapsHead, clock) + offset_of!(Clock, spans) + size_of::<Span>() * self.span;
        self.span ^= 1;
        self.version += 2;
        // What a target left there is not believed.
        self.put(at + offset_of!(Span, version), self.version | 1);
        // [MAP-45] The odd version is seen before any of the new numbers. Pairs with [MAP-47], [MAP-48], [MAP-55], [MAP-56].
        core::sync::atomic::fence(Release);
        self.put(at + offset_of!(Span, from), piece.from);
        self.put(at + offset_of!(Span, until), piece.until);
        self.put(at + offset_of!(Span, ns), piece.ns);
        self.put(at + offset_of!(Span, ns_per_tick), piece.ns_per_tick);
        if let Some(version) = self.ground.memory().word(at + offset_of!(Span, version)) {
            // [MAP-46] The numbers are seen with the even version. Pairs with [MAP-47], [MAP-55].
            version.store(self.version + 2, Release);
        }
        self.version += 2;
    }

    /// Has programs ask the kernel: the counter is not its clock any more.
    fn drop_clock(&mut self) {
        let Some(last) = self.keeper.last() else { return };
        let (ns, ns_per_tick) = (last.at(last.until), 0);
        (0..2).for_each(|_| self.set_clock(Piece { from: 0, until: 0, ns, ns_per_tick }));
        self.keeper = Timekeeper::new(clock::read());
    }

    /// The monotonic clock as programs at hits find it now, if they go by the counter.
    pub fn clock(&self) -> Option<u64> {
        self.keeper.at(clock::ticks())
    }

    /// How often helpers failed by a cause.
    pub fn errors(&self, cause: HelperError) -> u64 {
        let of = |cpu| {
            self.ground.memory().load(self.errors + ERRORS_STRIDE * cpu + 8 * cause as usize).unwrap_or(0)
        };
        (0..self.cpus).fold(0, |sum: u64, cpu| sum.saturating_add(of(cpu)))
    }

    fn ring(&self, cpu: usize) -> Result<Ring<Checked<'_>>, Error> {
        Ring::made(self.ground.memory(), self.rings + cpu * self.ring_stride, self.ring_bytes)
    }

    /// Records that were given up because what stood in their place was none.
    pub fn abandoned(&self) -> u64 {
        let of = |(cpu, cursor): (usize, &Cursor)| {
            // SAFETY: the only reader of these rings is this value.
            self.ring(cpu).map_or(0, |ring| unsafe { Reader::resume(ring, *cursor) }.abandoned())
        };
        self.cursors.iter().enumerate().map(of).sum()
    }

    /// The records that are there, in the order of their stamps: those before `until`, so that what comes later from another CPU
    /// with an earlier stamp still finds its place.
    ///
    /// `u64::MAX` says that nobody leaves records any more: those that were begun by who has died since are given up, and counted as
    /// [`abandoned`](Self::abandoned). Those behind them are there.
    pub fn take_records(&mut self, until: u64) -> Vec<Record> {
        let mut found = std::mem::take(&mut self.held);
        for cpu in 0..self.cursors.len() {
            let Ok(ring) = self.ring(cpu) else { continue };
            // SAFETY: the only reader of these rings is this value.
            let mut reader = unsafe { Reader::resume(ring, self.cursors[cpu]) };
            let mut bytes = Vec::new();
            // Whoever writes while we read does not keep us: as many as fit once.
            for _ in 0..self.ring_bytes / 16 {
                match reader.next(&mut bytes) {
                    Next::Record => found.extend(Self::record(&bytes)),
                    Next::Damaged => {}
                    // SAFETY: nobody writes records any more (contract of `take_records`); and what one did would be lost.
                    Next::Open if until == u64::MAX && unsafe { reader.skip_open() } => {}
                    Next::Empty | Next::Open => break,
                }
            }
            self.cursors[cpu] = reader.cursor();
        }
        found.sort_by_key(|record| record.stamp);
        let ripe = found.partition_point(|record| record.stamp < until || until == u64::MAX);
        self.held = found.split_off(ripe);
        found
    }

    fn record(bytes: &[u8]) -> Option<Record> {
        let (stamp, bytes) = bytes.split_first_chunk::<STAMP>()?;
        Some(Record { stamp: u64::from_ne_bytes(*stamp), bytes: bytes.to_vec() })
    }
}
