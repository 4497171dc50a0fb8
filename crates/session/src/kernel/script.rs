//! The programs of a script in the kernel, on maps of the kernel's.
//!
//! For:     scripts with `--backend kernel`.
//! State:   the kernel's maps, the programs, the links of those that run at hits.
//! Context: control; programs run in traps of the targets', and, those that run once, in this thread.
//! Keeps:   S1 hits of a program = ran + skipped, exactly.
//!          S2 dropped, the breakpoints are out, also if the controller is killed: [`Links`].
//!          S3 what the kernel's verifier refuses is said with its own last words.
//! Checked: tests below; testkit `backends`.
//! Source:  kernel `Documentation/bpf/`; multi-uprobe links of 6.6.
//!
//! - [`library`] what programs call and the kernel has not
//! - [`translate`] a program as the kernel takes it

mod library;
mod translate;

use super::exec::last_words;
use super::links::Links;
use crate::facts::descriptor::owned;
use bpf::Program;
use library::{Kept, Library, SLOT_HEAD, SLOTS_EACH};
use map::{Kind, Spec};
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use sys::Errno;
use sys::bpf::Places;
use sys::bpf::tables::{self, Code, Keeping, Shape, Table, When};
use sys::ringbuf::Ring;
use translate::{Descriptors, translate};

/// Of a script all is there since 6.9.
const TOO_OLD: &str = "this kernel has no links of programs to uprobes: scripts in the kernel take Linux 6.9";
/// Bytes of the ring.
const RING_LEN: u32 = 1 << 22;
/// What the verifier says; more is not read.
const LOG_LEN: usize = 1 << 20;
/// Tables that take more have their elements' memory as it is needed.
const AT_ONCE: u64 = 1 << 24;
/// In front of a record: its stamp.
const STAMP: usize = 8;

/// A program of a script.
#[derive(Clone, Copy, Debug)]
pub struct Scripted<'a> {
    /// For messages.
    pub name: &'a str,
    /// In the form that the language makes.
    pub program: &'a Program,
    /// It runs at hits; else when [`KernelScript::run`] says.
    pub is_at_hits: bool,
    /// The kernel is to have it; one that is not wanted is not loaded.
    pub is_wanted: bool,
    /// The first and last cookie of its places.
    pub cookies: (u64, u64),
}

/// A script.
#[derive(Clone, Copy, Debug)]
pub struct ScriptPlan<'a> {
    /// Its programs.
    pub programs: &'a [Scripted<'a>],
    /// Its tables, in the order of their numbers. Values are as long as they are said to be.
    pub tables: &'a [Spec],
    /// The constants' bytes.
    pub constants: &'a [u8],
    /// Bytes of scratch memory that a program uses, at most.
    pub scratch: usize,
    /// When tracing began, by the clock that goes on in suspend.
    pub began: u64,
    /// The process that was started with it, 0 without one.
    pub child: u32,
}

/// Why the kernel does not run a script.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotByKernel {
    /// It has no links of programs to uprobes.
    Old,
    /// It has no such thing.
    Lacks {
        /// Which program asks for it.
        program: String,
        /// What, in words.
        what: String,
    },
    /// The verifier does not take it.
    Refused {
        /// Which program.
        program: String,
        /// Its last words.
        words: String,
    },
    /// A call failed.
    Failed {
        /// Which.
        call: &'static str,
        /// How.
        errno: Errno,
    },
}

impl fmt::Display for NotByKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotByKernel::Old => f.write_str(TOO_OLD),
            NotByKernel::Lacks { program, what } => {
                write!(f, "{program}: the kernel's programs do not have {what}")
            }
            NotByKernel::Refused { program, words } => {
                write!(f, "{program}: the kernel's verifier refused it: {words}")
            }
            NotByKernel::Failed { call, errno: Errno::EPERM | Errno::EACCES } => {
                write!(f, "{call}: the kernel's programs take root, or CAP_BPF and CAP_PERFMON")
            }
            NotByKernel::Failed { call, errno } => write!(f, "the kernel's {call} failed: {errno}"),
        }
    }
}

impl std::error::Error for NotByKernel {}

/// What became of the runs of one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelRuns {
    /// It came to its end.
    pub ran: u64,
    /// No memory was free for it.
    pub no_workspace: u64,
}

/// Where a program is to run, in one file.
#[derive(Clone, Debug, Default)]
pub struct KernelPlaces {
    /// A name by which the kernel finds the file.
    pub path: String,
    /// Where functions are left.
    pub is_return: bool,
    /// Where in the file.
    pub offsets: Vec<u64>,
    /// What the program is told at each.
    pub cookies: Vec<u64>,
    /// Where in the file is the count of tracers of each, 0 for none.
    pub semaphores: Vec<u64>,
}

/// A table and its descriptor's owner.
#[derive(Debug)]
struct Held {
    table: Table,
    _fd: OwnedFd,
}

impl Held {
    fn make(shape: Shape) -> Result<Held, NotByKernel> {
        let table = Table::create(shape).map_err(failed("map"))?;
        let fd = owned(Ok(table.fd())).map_err(failed("map"))?;
        Ok(Held { table, _fd: fd })
    }

    /// One value that is there from the start.
    fn value(bytes: &[u8]) -> Result<Held, NotByKernel> {
        let value = bytes.len().max(8) as u32;
        let held = Held::make(Shape { keeping: Keeping::Array, key: 4, value, entries: 1, is_lazy: false })?;
        let mut bytes = bytes.to_vec();
        bytes.resize(value as usize, 0);
        held.table.set(&[0; 4], &bytes).map_err(failed("map update"))?;
        Ok(held)
    }

    fn elements(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let shape = self.table.shape();
        let mut found = Vec::new();
        let mut at: Option<Vec<u8>> = None;
        // Whoever adds and removes keys meanwhile does not keep us.
        for _ in 0..2 * u64::from(shape.entries) {
            let mut key = vec![0; shape.key as usize];
            if !self.table.next(at.as_deref(), &mut key) {
                break;
            }
            let mut value = vec![0; shape.value as usize];
            if self.table.value(&key, &mut value).is_ok() {
                found.push((key.clone(), value));
            }
            at = Some(key);
        }
        found.sort();
        found.dedup_by(|a: &mut (Vec<u8>, Vec<u8>), b| a.0 == b.0);
        found
    }
}

fn failed(call: &'static str) -> impl Fn(Errno) -> NotByKernel {
    move |errno| NotByKernel::Failed { call, errno }
}

/// A script in the kernel.
#[derive(Debug)]
pub struct KernelScript {
    /// Those that are wanted, at their places.
    programs: Vec<Option<OwnedFd>>,
    tables: Vec<Held>,
    counts: Held,
    lost_at: usize,
    ring: Ring,
    links: Links,
    /// What the programs name beside these.
    _others: [Held; 3],
    _ring_fd: OwnedFd,
}

impl KernelScript {
    /// Makes the maps and loads the programs; nothing runs yet.
    ///
    /// # Errors
    /// Something that the kernel has not, a program that its verifier refuses, or we may not.
    pub fn load(plan: &ScriptPlan<'_>) -> Result<KernelScript, NotByKernel> {
        if !sys::bpf::has_uprobe_links() {
            return Err(NotByKernel::Old);
        }
        let longest = plan.scratch.next_multiple_of(8).max(1024);
        let kept: Vec<Kept> = plan.tables.iter().map(kept).collect();
        let tables: Vec<Held> =
            plan.tables.iter().zip(&kept).map(|(spec, kept)| table(spec, kept)).collect::<Result<_, _>>()?;
        let zeros = plan.constants.len().next_multiple_of(8);
        let most = kept.iter().map(|kept| kept.value).max().unwrap_or(0).max(longest);
        let mut constants = plan.constants.to_vec();
        constants.resize(zeros + most, 0);
        let constants = Held::value(&constants)?;
        let lost_at = 16 * plan.programs.len();
        let counts = Held::value(&vec![0; lost_at + 8])?;
        let world = [plan.began.to_ne_bytes(), u64::from(plan.child).to_ne_bytes()].concat();
        let world = Held::value(&world)?;
        let slots = Held::make(Shape {
            keeping: Keeping::Array,
            key: 4,
            value: (SLOT_HEAD + plan.scratch + 2 * longest).next_multiple_of(8) as u32,
            entries: SLOTS_EACH * percpu::possible_cpus(),
            is_lazy: false,
        })?;
        let ring_fd = owned(sys::bpf::create_ring(RING_LEN)).map_err(failed("ring"))?;
        let ring = Ring::map(ring_fd.as_raw_fd(), RING_LEN).map_err(failed("ring's mapping"))?;
        let descriptors = Descriptors {
            constants: constants.table.fd(),
            slots: slots.table.fd(),
            counts: counts.table.fd(),
            world: world.table.fd(),
            ring: ring_fd.as_raw_fd(),
            tables: tables.iter().map(|held| held.table.fd()).collect(),
        };
        let types = owned(tables::function_types()).map_err(failed("table of types"))?;
        let load = |(number, scripted): (usize, &Scripted<'_>)| {
            let cookies = scripted.cookies;
            let may_wait = scripted.is_at_hits;
            let library = Library { tables: &kept, longest, zeros, number, cookies, may_wait, lost: lost_at };
            let load = || load(scripted, &descriptors, &library, types.as_raw_fd());
            scripted.is_wanted.then(load).transpose()
        };
        let programs = plan.programs.iter().enumerate().map(load).collect::<Result<_, _>>()?;
        let (links, _others) = (Links::new(), [constants, world, slots]);
        Ok(KernelScript { programs, tables, counts, lost_at, ring, links, _others, _ring_fd: ring_fd })
    }

    /// Runs a program that runs once.
    ///
    /// # Errors
    /// The kernel does not.
    pub fn run(&self, program: usize) -> Result<(), NotByKernel> {
        let fd = self.program(program).map_err(failed("run of a program"))?;
        tables::run_once(fd).map_err(failed("run of a program")).map(drop)
    }

    /// Has a program run at hits of these places, in one process or, for 0, in all.
    ///
    /// # Errors
    /// The kernel cannot probe one of them.
    pub fn link(&mut self, program: usize, places: &KernelPlaces, pid: i32) -> Result<(), NotByKernel> {
        let fd = self.program(program).map_err(failed("link"))?;
        let path = CString::new(places.path.as_str()).map_err(|_| failed("link")(Errno::EINVAL))?;
        let KernelPlaces { offsets, cookies, semaphores, is_return, .. } = places;
        let places = Places { offsets, cookies, semaphores };
        let link = sys::bpf::link_uprobes(fd, &path, &places, pid, *is_return);
        self.links.add(owned(link).map_err(failed("uprobe"))?);
        Ok(())
    }

    fn program(&self, number: usize) -> Result<i32, Errno> {
        self.programs.get(number).and_then(Option::as_ref).map(AsRawFd::as_raw_fd).ok_or(Errno::EINVAL)
    }

    /// Takes all places out again.
    pub fn unlink(&mut self) {
        self.links = Links::default();
    }

    /// Records that were left since, in their order: when, by the monotonic clock, and what.
    pub fn take_records(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        self.ring.take(|bytes| {
            if let Some((stamp, rest)) = bytes.split_first_chunk::<STAMP>() {
                found.push((u64::from_ne_bytes(*stamp), rest.to_vec()));
            }
        });
        found
    }

    /// Keys and values of a table, in the order of their bytes.
    pub fn elements(&self, table: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.tables.get(table).map_or(Vec::new(), Held::elements)
    }

    /// Sets a key of a table; of an aggregate the words over all CPUs.
    ///
    /// # Errors
    /// The table is full.
    pub fn set(&self, table: usize, key: &[u8], value: &[u8]) -> Result<(), NotByKernel> {
        let held = self.tables.get(table).ok_or(Errno::EINVAL).map_err(failed("map update"))?;
        let shape = held.table.shape();
        let sized = |bytes: &[u8], len: u32| {
            let mut bytes = bytes.to_vec();
            bytes.resize(len as usize, 0);
            bytes
        };
        held.table.set(&sized(key, shape.key), &sized(value, shape.value)).map_err(failed("map update"))
    }

    /// Removes all keys of a table; those that were there.
    pub fn clear(&self, table: usize) -> Vec<Vec<u8>> {
        let Some(held) = self.tables.get(table) else { return Vec::new() };
        let removed = |(key, _): (Vec<u8>, Vec<u8>)| {
            // One that has gone meanwhile is not there any more either.
            let _ = held.table.remove(&key);
            key
        };
        held.elements().into_iter().map(removed).collect()
    }

    /// Makes all values of a table zeros; the keys that were there.
    pub fn zero(&self, table: usize) -> Vec<Vec<u8>> {
        let Some(held) = self.tables.get(table) else { return Vec::new() };
        let zeroed = |(key, value): (Vec<u8>, Vec<u8>)| {
            // As for `clear`.
            let _ = held.table.set(&key, &vec![0; value.len()]);
            key
        };
        held.elements().into_iter().map(zeroed).collect()
    }

    /// What became of a program's runs.
    pub fn runs(&self, program: usize) -> KernelRuns {
        let counts = self.counts();
        let word = |n: usize| counts.get(2 * program + n).copied().unwrap_or(0);
        KernelRuns { ran: word(0), no_workspace: word(1) }
    }

    /// Records that found no room.
    pub fn lost(&self) -> u64 {
        self.counts().get(self.lost_at / 8).copied().unwrap_or(0)
    }

    fn counts(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.counts.table.shape().value as usize];
        match self.counts.table.value(&[0; 4], &mut bytes) {
            Ok(()) => bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect(),
            Err(_) => Vec::new(),
        }
    }
}

fn kept(spec: &Spec) -> Kept {
    let value = spec.agg.map_or(spec.value, |agg| agg.words().saturating_mul(8));
    Kept { key: spec.key, value, agg: spec.agg }
}

fn table(spec: &Spec, kept: &Kept) -> Result<Held, NotByKernel> {
    let keeping = match spec.kind {
        Kind::Hash | Kind::OwnHash | Kind::PercpuHash => Keeping::Hash,
        Kind::LruHash | Kind::PercpuLruHash => Keeping::LruHash,
    };
    let too_large = || failed("map")(Errno::E2BIG);
    let value = u32::try_from(kept.value).map_err(|_| too_large())?;
    let (key, entries) = (kept.key as u32, u32::try_from(spec.limit).map_err(|_| too_large())?);
    let is_lazy = keeping == Keeping::Hash && u64::from(value) * u64::from(entries) > AT_ONCE;
    Held::make(Shape { keeping, key, value, entries, is_lazy })
}

fn load(
    scripted: &Scripted<'_>,
    descriptors: &Descriptors,
    library: &Library<'_>,
    types: i32,
) -> Result<OwnedFd, NotByKernel> {
    let program = scripted.name.to_owned();
    let translated = translate(scripted.program, descriptors, library)
        .map_err(|what| NotByKernel::Lacks { program: program.clone(), what })?;
    let code = Code { words: &translated.words, functions: &translated.functions, types };
    let when = if scripted.is_at_hits { When::AtHits } else { When::Once };
    // What it says of a program that it takes is not wanted.
    let errno = match owned(tables::load(when, &code, &mut [])) {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    let mut log = vec![0; LOG_LEN];
    match owned(tables::load(when, &code, &mut log)) {
        Ok(fd) => Ok(fd),
        Err(_) => Err(match last_words(&log) {
            Some(words) if !matches!(errno, Errno::EPERM) => NotByKernel::Refused { program, words },
            _ => NotByKernel::Failed { call: "program load", errno },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::helper as h;
    use map::Agg;

    const CONSTANTS: &[u8] = b"hello\0\0\0help!\0\0\0llo\0\0\0\0\0";

    fn tables() -> [Spec; 3] {
        let plain = Spec { kind: Kind::Hash, key: 8, value: 8, limit: 4, agg: None };
        let hist = Spec { agg: Some(Agg::Hist { bits: 2 }), ..plain };
        [plain, Spec { agg: Some(Agg::Max { signed: true }), ..plain }, hist]
    }

    /// What a program leaves in r0; `None` where the kernel takes no programs of ours.
    fn result(body: &str) -> Option<u64> {
        let record = format!(
            "\nstxdw [%r10-8], %r0\nlddw %r1, map 2\nmov %r2, %r10\nadd %r2, -8\nmov %r3, 8\nmov %r4, 0\ncall {}\nexit",
            h::RINGBUF_OUTPUT
        );
        let program = Program::new(bpf::assemble(&(body.to_owned() + &record)).unwrap()).unwrap();
        let of = |is_at_hits| Scripted {
            name: "one",
            program: &program,
            is_at_hits,
            is_wanted: true,
            cookies: (3, 5),
        };
        let (programs, tables) = ([of(false), of(true)], tables());
        let plan = ScriptPlan {
            programs: &programs,
            tables: &tables,
            constants: CONSTANTS,
            scratch: 64,
            began: 77,
            child: 88,
        };
        let mut script = match KernelScript::load(&plan) {
            Err(NotByKernel::Failed { errno: Errno::EPERM, .. }) => return None,
            loaded => loaded.unwrap_or_else(|why| panic!("{body}\n{why}")),
        };
        script.run(0).unwrap();
        let runs = script.runs(0);
        assert_eq!((runs, script.runs(1)), (KernelRuns { ran: 1, no_workspace: 0 }, KernelRuns::default()));
        let records = script.take_records();
        assert_eq!((records.len(), script.lost()), (1, 0), "{body}");
        records[0].1.first_chunk().map(|word| u64::from_ne_bytes(*word))
    }

    #[test]
    fn each_helper_does_in_the_kernel_what_its_number_says() {
        let text = |at: u32, register: u8| format!("lddw %r{register}, map_value 0 {at}\n");
        let two = |helper: u32| format!("{}mov %r2, 8\n{}mov %r4, 8\ncall {helper}", text(0, 1), text(8, 3));
        let key = |map: u32| format!("stdw [%r10-16], 1\nlddw %r1, map {map}\nmov %r2, %r10\nadd %r2, -16\n");
        let add = |map: u32, value: i64| {
            format!("{}mov %r3, {value}\nmov %r4, 0\ncall {}\n", key(map), h::AGGREGATE)
        };
        let place = "stdw [%r10-32], -1\nstdw [%r10-24], -1\nmov %r1, %r10\nadd %r1, -32\n";
        let there = "ldxdw %r0, [%r10-32]";
        let cases = [
            (format!("{}mov %r2, 8\ncall {}", text(0, 1), h::STR_LEN), 5),
            (two(h::STR_COMPARE), u64::MAX),
            (format!("{}{}mov %r3, 3\ncall {}", text(0, 1), text(8, 2), h::MEM_COMPARE), 0),
            (format!("{}mov %r2, 8\n{}mov %r4, 8\ncall {}", text(0, 1), text(16, 3), h::STR_FIND), 2),
            (format!("{place}mov %r2, 8\ncall {}\n{there}", h::MEM_ZERO), 0),
            (
                format!("{place}mov %r2, 4\n{}call {}\nldxw %r0, [%r10-32]", text(0, 3), h::PROBE_READ_TEXT),
                u64::from(u32::from_ne_bytes(*b"hell")),
            ),
            (
                format!("{place}mov %r2, 8\n{}call {}\n{there}", text(16, 3), h::PROBE_READ_OWN),
                u64::from_ne_bytes(*b"llo\0\0\0\0\0"),
            ),
            (
                format!(
                    "{place}stdw [%r10-32], 0x6968\nmov %r2, 8\n{}mov %r4, 8\ncall {}\n{there}",
                    text(16, 3),
                    h::STR_APPEND
                ),
                u64::from_ne_bytes(*b"hillo\0\0\0"),
            ),
            (format!("{place}stw [%r10-32], 0x6968\nmov %r2, 8\ncall {}\n{there}", h::STR_TIDY), 0x6968),
            (
                format!(
                    "{}call {}\njne %r0, 0, +2\nmov %r0, 1\nja +1\nldxdw %r0, [%r0]",
                    key(3),
                    h::LOOKUP_OR_INIT
                ),
                0,
            ),
            (
                format!("{}{}{}call {}", add(4, -9), add(4, -4), key(4), h::AGGREGATED),
                (-4i64).cast_unsigned(),
            ),
            (format!("{}{}{}call {}", add(5, 900), add(5, -4), key(5), h::AGGREGATED), 2),
            (
                format!(
                    "lddw %r1, map 3\nmov %r2, 7\nmov %r3, 41\ncall {}\nlddw %r1, map 3\nmov %r2, 7\ncall {}\n\
                     jne %r0, 0, +2\nmov %r0, 1\nja +1\nldxdw %r0, [%r0]",
                    h::WORD_UPDATE,
                    h::WORD_LOOKUP
                ),
                41,
            ),
            (
                format!(
                    "lddw %r1, map 3\nmov %r2, 7\ncall {}\nlddw %r1, map 3\nmov %r2, 7\ncall {}\n\
                     lddw %r1, map 3\nmov %r2, 7\ncall {}",
                    h::WORD_LOOKUP_OR_INIT,
                    h::WORD_DELETE,
                    h::WORD_DELETE
                ),
                (-2i64).cast_unsigned(),
            ),
            (
                format!(
                    "lddw %r1, map 4\nmov %r2, 1\nmov %r3, -8\nmov %r4, 0\ncall {}\n{}{}call {}",
                    h::WORD_AGGREGATE,
                    add(4, -9),
                    key(4),
                    h::AGGREGATED
                ),
                (-8i64).cast_unsigned(),
            ),
            (format!("{}lddw %r1, map 4\ncall {}", add(4, 1), h::MAP_LEN), 1),
            (
                format!(
                    "{}stdw [%r10-40], 0\nlddw %r1, map 4\nmov %r2, %r10\nadd %r2, -40\nmov %r3, %r10\nadd %r3, -32\n\
                     mov %r4, %r10\nadd %r4, -24\ncall {}\nldxdw %r0, [%r10-24]",
                    add(4, -6),
                    h::MAP_NEXT
                ),
                (-6i64).cast_unsigned(),
            ),
            (format!("call {}", h::CHILD), 88),
            (format!("mov %r1, {}\ncall {}", h::About::Began as u32, h::ABOUT), 77),
        ];
        for (body, wanted) in cases {
            let Some(found) = result(&body) else {
                return eprintln!("SKIPPED: programs of the kernel may not be loaded here");
            };
            assert_eq!(found, wanted, "{body}");
        }
    }

    #[test]
    fn values_fall_into_the_buckets_that_the_map_has() {
        for agg in [Agg::Hist { bits: 0 }, Agg::Hist { bits: 3 }, Agg::Lhist { min: -7, max: 30, step: 4 }] {
            for value in [i64::MIN, -8, -7, -1, 0, 1, 7, 8, 29, 30, 1000, 1 << 40, i64::MAX] {
                let mut words = vec![0; agg.words()];
                agg.update(&mut words, value.cast_unsigned(), 0);
                let text = format!(
                    "stdw [%r10-16], 1\nlddw %r1, map 3\nmov %r2, %r10\nadd %r2, -16\nlddw %r3, {value}\nmov %r4, 0\ncall {}\nexit",
                    h::AGGREGATE
                );
                let program = Program::new(bpf::assemble(&text).unwrap()).unwrap();
                let one = Scripted {
                    name: "one",
                    program: &program,
                    is_at_hits: false,
                    is_wanted: true,
                    cookies: (0, 0),
                };
                let table = Spec { kind: Kind::Hash, key: 8, value: 8, limit: 4, agg: Some(agg) };
                let plan = ScriptPlan {
                    programs: &[one],
                    tables: &[table],
                    constants: &[0; 8],
                    scratch: 0,
                    began: 0,
                    child: 0,
                };
                let script = match KernelScript::load(&plan) {
                    Err(NotByKernel::Failed { errno: Errno::EPERM, .. }) => {
                        return eprintln!("SKIPPED: programs of the kernel may not be loaded here");
                    }
                    loaded => loaded.unwrap(),
                };
                script.run(0).unwrap();
                let (_, found) = script.elements(0).remove(0);
                let found: Vec<u64> =
                    found.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
                assert_eq!(found, words, "{agg:?} {value}");
            }
        }
    }
}
