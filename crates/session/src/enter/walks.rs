//! What hits need to walk the stacks of their threads: unwind tables, and where stacks are.
//!
//! For:     consumers that count by stack.
//! State:   which files' tables are in the arena, and where their modules lie.
//! Context: control. Tables are made while the process runs; where stacks are is found in the first stop.
//! Keeps:   W1 what is said to be a stack is one for as long as a thread runs on it: see `runtime::stack`.
//!          W2 a module's table is that of the very file that the process has mapped.
//! Checked: testkit `stacks`.
//!
//! The first thread's stack ends where the kernel says, and grows down into room that the kernel keeps free for it: the end of the
//! mapping below is as far as it can come. What the others' libc has written down about their stacks is found by what must
//! stand there: of glibc the first thread's block has the place of the first stack, which the kernel knows too.

use crate::enter::arena::Arena;
use crate::find::memory::Memory;
use crate::hold::world::World;
use image::{ElfImage, FileId, Mapping, Module, Process};
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use unwind::{Area, HEAD_WORDS, Loaded, Table, make};
use wire::{STACK_FRAMES, STACKS_MAX, WALK_TABLES, WalkDesc};

/// Bytes for tables of modules that come later. Pages that are not written to are none.
const LATER: usize = 32 << 20;
/// Bytes of tables that a session keeps; modules beyond go by their frame pointers.
const TABLES_MAX: usize = 256 << 20;
/// How long nothing is looked for if there was nothing: a program that makes its code meets code without a table all the time.
const QUIET: Duration = Duration::from_secs(1);
/// The most frames of a stack.
const MOST: u64 = STACK_FRAMES as u64;
/// Of a thread's block.
const BLOCK_BYTES: usize = 0x900;
/// Where musl has the same two words.
const MUSL_BLOCK: u64 = 72;
const MUSL_TID: u64 = 0x30;
/// The first thread's stack is not longer.
const MAIN_MAX: u64 = 1 << 30;

/// Which file: the vdso has none.
type Key = Option<FileId>;

/// Tables before they are in an arena.
pub(crate) struct Made {
    tables: HashMap<Key, Option<Table>>,
    modules: Vec<Loaded<Key>>,
}

impl Made {
    /// The tables of all that a process has mapped; those in `known` are left out.
    pub fn of(memory: &Memory, known: impl Fn(&Key) -> bool) -> Made {
        let mut made = Made { tables: HashMap::new(), modules: Vec::new() };
        // One that is gone, or cannot be looked at, has none: it is said elsewhere.
        let Ok(process) = Process::read(memory.pid.cast_unsigned()) else { return made };
        for module in &process.modules {
            if !known(&module.file) {
                let table = || make(&image_of(memory, module)?);
                made.tables.entry(module.file).or_insert_with(table);
            }
            let parts = module.exec.iter().map(|part| Loaded {
                range: part.range.start.0..part.range.end.0,
                bias: module.bias.0,
                file: module.file,
            });
            made.modules.extend(parts);
        }
        made
    }

    /// Bytes of an object that holds these tables, and some more later.
    pub fn object_bytes(&self) -> usize {
        let tables: usize = self.tables.values().flatten().map(|table| table.bytes() + 64).sum();
        WALK_TABLES + tables.min(TABLES_MAX) + LATER
    }
}

/// Tables of a process that are kept here, for walks that are made here.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    made: HashMap<Key, Option<Table>>,
    modules: Vec<Loaded<Key>>,
    words: Vec<AtomicU32>,
}

impl Tables {
    /// Of all that the process has mapped now.
    pub fn of(memory: &Memory) -> Tables {
        let mut tables = Tables::default();
        tables.look(memory);
        tables
    }

    /// Takes what was mapped since; true if there was something.
    pub fn look(&mut self, memory: &Memory) -> bool {
        let made = Made::of(memory, |file| self.made.contains_key(file));
        if made.modules == self.modules || made.modules.is_empty() {
            return false;
        }
        self.made.extend(made.tables);
        self.modules = made.modules;
        let tables: usize = self.made.values().flatten().map(|table| table.bytes() + 64).sum();
        let words = HEAD_WORDS + tables / size_of::<u32>() + 16 * (self.modules.len() + 2);
        self.words = (0..words).map(|_| AtomicU32::new(0)).collect();
        let mut area = Area::default();
        for (file, table) in &self.made {
            area.add(&self.words, *file, table.as_ref());
        }
        area.publish(&self.words, &self.modules);
        true
    }

    /// As a walk reads them.
    pub fn tables(&self) -> unwind::Tables<'_> {
        unwind::Tables::of(&self.words)
    }
}

/// The image of a module; the vdso's is in the process alone.
fn image_of(memory: &Memory, module: &Module) -> Option<ElfImage> {
    if module.file.is_some() {
        return module.open(memory.pid.cast_unsigned()).ok();
    }
    let range = &module.exec.first()?.range;
    let bytes = memory.read_vec(range.start.0, (range.end.0 - range.start.0) as usize).ok()?;
    ElfImage::from_bytes(bytes).ok()
}

/// Where the process's threads have their stacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    main: Range<u64>,
    block: u64,
}

impl Places {
    /// In a stop.
    pub fn find(memory: &Memory, world: &World, mappings: &[Mapping], tid_offset: u64) -> Places {
        Places { main: main_stack(mappings), block: block(memory, world, tid_offset).unwrap_or(0) }
    }
}

/// The first thread's stack, with the room into which it grows.
fn main_stack(mappings: &[Mapping]) -> Range<u64> {
    let Some(at) = mappings.iter().position(|m| m.path.as_os_str() == "[stack]") else { return 0..0 };
    let (below, end) = (at.checked_sub(1).map_or(0, |i| mappings[i].range.end.0), mappings[at].range.end.0);
    below.max(end.saturating_sub(MAIN_MAX))..end
}

/// Where the threads' libc writes where their stacks begin, and then how long they are: from the thread pointer.
fn block(memory: &Memory, world: &World, tid_offset: u64) -> Option<u64> {
    let blocks: Vec<(i32, u64, u64, Vec<u64>)> = world
        .threads()
        .filter(|thread| thread.group == world.pid)
        .filter_map(|thread| {
            let bytes = memory.read_vec(thread.regs.thread_pointer(), BLOCK_BYTES).ok()?;
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            Some((thread.tid, thread.regs.thread_pointer(), thread.regs.sp(), words.collect()))
        })
        .collect();
    // glibc has the kernel's word for the first thread's stack where others have a length, and nothing for its beginning.
    let first = blocks.iter().find(|(tid, ..)| *tid == world.pid);
    let start = start_of_stack(world.pid);
    let of_first = first.and_then(|(.., words)| {
        let pairs = words.windows(2).position(|pair| pair[0] == 0 && Some(pair[1]) == start);
        pairs.map(|at| at as u64 * 8)
    });
    // Any libc: two words that fit what is known of every other thread.
    let others = || blocks.iter().filter(|(tid, ..)| *tid != world.pid);
    let fits = |at: usize| {
        others().all(|(_, own, sp, words)| {
            let (Some(start), Some(len)) = (words.get(at), words.get(at + 1)) else { return false };
            let end = start.saturating_add(*len);
            start <= sp && sp < own && *own <= end && (*start | end) & 0xfff == 0
        })
    };
    let of_others =
        || (others().count() > 0).then(|| (2..BLOCK_BYTES / 8 - 1).find(|at| fits(*at))).flatten();
    let musl = || (tid_offset == MUSL_TID && others().count() == 0).then_some(MUSL_BLOCK);
    of_first.or_else(|| of_others().map(|at| at as u64 * 8)).or_else(musl)
}

/// Where the kernel has put the arguments of a program.
fn start_of_stack(pid: i32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // Behind the name, which may have any bytes; the 28th field of all.
    let start = stat.rsplit_once(')')?.1.split_whitespace().nth(25)?.parse().ok()?;
    (start != 0).then_some(start)
}

/// The tables that are in an arena.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    area: Area<Key>,
    modules: Vec<Loaded<Key>>,
    /// When it makes sense to look again, if there was nothing new.
    quiet_until: Option<Instant>,
    /// Files whose tables found no room.
    pub without_room: usize,
}

impl Walks {
    /// Writes tables, and where stacks are, before a hit can look.
    pub fn begin(arena: &Arena, made: Made, places: &Places) -> Walks {
        let mut walks = Walks::default();
        let Some(at) = arena.layout.walk() else { return walks };
        walks.put(arena, made);
        let words = (arena.layout.walk_bytes() - WALK_TABLES) / size_of::<u32>();
        arena.publish(at + offset_of!(WalkDesc, main_start), places.main.start);
        arena.publish(at + offset_of!(WalkDesc, main_end), places.main.end);
        arena.publish(at + offset_of!(WalkDesc, block), places.block);
        arena.publish(at + offset_of!(WalkDesc, words), words as u64);
        arena.publish(at + offset_of!(WalkDesc, most), MOST);
        let stacks = arena.layout.stacks().map_or(0, |at| arena.remote + at as u64);
        arena.publish(at + offset_of!(WalkDesc, stacks), stacks);
        walks
    }

    /// Adds the tables of what the process has mapped since, if a hit has met code that it had no table of. True if there is
    /// something new: a module, or code that is in no file, which the program has made.
    pub fn look(&mut self, arena: &Arena, memory: &Memory) -> bool {
        let Some(at) = arena.layout.walk().map(|at| at + offset_of!(WalkDesc, missed)) else { return false };
        let Some(missed) = arena.view().word(at) else { return false };
        let is_early = self.quiet_until.is_some_and(|until| Instant::now() < until);
        if missed.load(Relaxed) == 0 || is_early {
            return false;
        }
        let made = Made::of(memory, |file| self.area.has(file));
        // Code that belongs to no file is met again and again: there is nothing to be had for it, and nothing to say.
        if made.modules != self.modules && !made.modules.is_empty() {
            self.put(arena, made);
            missed.store(0, Relaxed);
            self.quiet_until = None;
        } else {
            self.quiet_until = Some(Instant::now() + QUIET);
        }
        true
    }

    fn put(&mut self, arena: &Arena, made: Made) {
        let Some(at) = arena.layout.walk() else { return };
        let len = (arena.layout.walk_bytes() - WALK_TABLES) / size_of::<u32>();
        let Some(words) = arena.view().halves(at + WALK_TABLES, len) else { return };
        let placed = made.tables.into_iter().map(|(file, table)| self.area.add(words, file, table.as_ref()));
        self.without_room += placed.filter(|is_placed| !is_placed).count();
        self.area.publish(words, &made.modules);
        self.modules = made.modules;
    }
}

/// Cells of stacks, by number.
pub(crate) const STACK_CELLS: u32 = STACKS_MAX;
