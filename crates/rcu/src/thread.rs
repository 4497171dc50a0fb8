//! What is known of each thread that took a slow path.
//!
//! For:     tasks-trace readers, checked domains, stall reports.
//! State:   a list of records, one per live thread that ever needed one. A record is never freed; the
//!          next thread takes it over.
//! Context: target. The first use by a thread allocates; the rest is loads and stores.
//! Keeps:   T1 the owner alone writes the plain fields, others read them.
//!          T2 a record on the list stays readable for ever.
//! Checked: `tests/stall.rs`, `tests/tasks.rs`, `tests/restrictions.rs`.

use crate::Flavour;
use crate::lock::Lock;
use crate::prim::{AtomicU32, AtomicU64, Relaxed};
use crate::task_word::TaskWord;
use core::cell::Cell;
use std::vec::Vec;

/// Domains that one thread can be tracked in at a time; more are counted, not named.
const HELD: usize = 8;

/// One thread's share.
#[repr(C, align(128))]
pub(crate) struct Record {
    /// Tasks-trace, by holdouts.
    pub(crate) word: TaskWord,
    /// Tasks-trace on top of fast: nesting and the outermost reader's rank.
    pub(crate) section: AtomicU32,
    pub(crate) tid: AtomicU32,
    in_use: AtomicU32,
    /// Signal handlers that this thread is in, as far as it said so.
    pub(crate) handlers: AtomicU32,
    /// Nonzero inside a checked operation.
    pub(crate) busy: AtomicU32,
    held: [Held; HELD],
}

/// The readers of one domain that one thread is in.
pub(crate) struct Held {
    pub(crate) domain: AtomicU64,
    pub(crate) nesting: [AtomicU32; 2],
    pub(crate) flavour: AtomicU32,
    pub(crate) since_ns: AtomicU64,
}

impl Held {
    pub(crate) fn total(&self) -> u32 {
        self.nesting[0].load(Relaxed) + self.nesting[1].load(Relaxed)
    }

    pub(crate) fn flavour(&self) -> Flavour {
        Flavour::ALL[self.flavour.load(Relaxed) as usize % Flavour::ALL.len()]
    }
}

/// All records. Locked by who adds or scans; never by a reader that has its record.
pub(crate) static RECORDS: Lock<Vec<&'static Record>> = Lock::new(Vec::new());

std::thread_local! {
    static MINE: Cell<*const Record> = const { Cell::new(core::ptr::null()) };
    static ENDING: Cell<bool> = const { Cell::new(false) };
    static LEASE: Lease = const { Lease };
}

/// Gives the record back when its thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        ENDING.set(true);
        crate::tasks::holdout::forget_fast();
        crate::tasks::on_fast::forget_fast();
        give_back_at_the_end();
    }
}

/// True once the thread's lease is gone: destructors of thread-local values run, some perhaps with readers.
pub(crate) fn is_ending() -> bool {
    ENDING.get()
}

/// Gives the record of an ending thread back, unless the thread is inside a reader still: then a guard in another
/// thread-local value is to come, and the last one does it.
///
/// A thread that ends inside a reader for good is a bug of the program; its record stays taken, so that the stall
/// report can name it.
pub(crate) fn give_back_at_the_end() {
    if !is_ending() {
        return;
    }
    if let Some(record) = mine_if_any().filter(|record| record.is_idle()) {
        MINE.set(core::ptr::null());
        let _records = RECORDS.lock();
        record.in_use.store(0, Relaxed);
    }
}

/// The calling thread's record.
#[inline(always)]
pub(crate) fn mine() -> &'static Record {
    // SAFETY: a pointer that is not null came from `enrol`, which leaks its records.
    match unsafe { MINE.get().as_ref() } {
        Some(record) => record,
        None => enrol(),
    }
}

/// The calling thread's record if it has one.
pub(crate) fn mine_if_any() -> Option<&'static Record> {
    // SAFETY: as in `mine`.
    unsafe { MINE.get().as_ref() }
}

#[cold]
fn enrol() -> &'static Record {
    let mut records = RECORDS.lock();
    let record = match records.iter().find(|r| r.in_use.load(Relaxed) == 0) {
        Some(free) => *free,
        None => {
            let new: &'static Record = std::boxed::Box::leak(std::boxed::Box::new(Record::new()));
            records.push(new);
            new
        }
    };
    record.in_use.store(1, Relaxed);
    record.tid.store(sys::gettid(), Relaxed);
    record.word.reset();
    drop(records);
    MINE.set(record);
    // In a thread that is already ending there is no lease to be had: who leaves the last reader gives it back.
    if LEASE.try_with(|_| ()).is_err() {
        ENDING.set(true);
    }
    record
}

impl Record {
    fn new() -> Record {
        Record {
            word: TaskWord::new(),
            section: AtomicU32::new(0),
            tid: AtomicU32::new(0),
            in_use: AtomicU32::new(0),
            handlers: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            held: core::array::from_fn(|_| Held {
                domain: AtomicU64::new(0),
                nesting: [AtomicU32::new(0), AtomicU32::new(0)],
                flavour: AtomicU32::new(0),
                since_ns: AtomicU64::new(0),
            }),
        }
    }

    /// True if its thread is in no reader and no handler.
    fn is_idle(&self) -> bool {
        self.section.load(Relaxed) == 0
            && self.word.nesting() == 0
            && self.handlers.load(Relaxed) == 0
            && self.held.iter().all(|h| h.total() == 0)
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Relaxed) != 0
    }

    /// What this thread holds of a domain.
    pub(crate) fn held(&self, domain: u64) -> Option<&Held> {
        self.held.iter().find(|h| h.domain.load(Relaxed) == domain && h.total() > 0)
    }

    /// Notes that the owner entered a reader.
    pub(crate) fn entered(&self, domain: u64, flavour: Flavour, rank: u32, now_ns: u64) {
        let free = |h: &&Held| h.total() == 0;
        let Some(held) = self.held(domain).or_else(|| self.held.iter().find(free)) else { return };
        if held.total() == 0 {
            held.domain.store(domain, Relaxed);
            held.flavour.store(flavour as u32, Relaxed);
            held.since_ns.store(now_ns, Relaxed);
        }
        add(&held.nesting[rank as usize], 1);
    }

    /// Notes that the owner left a reader; false if it was not in one.
    pub(crate) fn left(&self, domain: u64, rank: u32) -> bool {
        let Some(held) = self.held(domain) else {
            // With every place taken, the reader may be one that was not noted.
            return self.held.iter().all(|h| h.total() > 0);
        };
        if held.nesting[rank as usize].load(Relaxed) == 0 {
            return false;
        }
        add(&held.nesting[rank as usize], -1);
        true
    }

    /// The child of a fork: this record's thread is gone.
    pub(crate) fn forget(&self) {
        self.word.reset();
        self.section.store(0, Relaxed);
        self.in_use.store(0, Relaxed);
        self.held.iter().for_each(|h| h.nesting.iter().for_each(|n| n.store(0, Relaxed)));
    }
}

/// A single writer's add, which others may read.
pub(crate) fn add(cell: &AtomicU32, n: i32) {
    cell.store(cell.load(Relaxed).wrapping_add(n as u32), Relaxed);
}

/// A thread's name, from the kernel; empty if it is gone.
pub(crate) fn name_of(tid: u32) -> std::string::String {
    let path = std::format!("/proc/self/task/{tid}/comm");
    std::fs::read_to_string(path).map(|s| s.trim_end().into()).unwrap_or_default()
}

/// Nanoseconds since some point before.
pub(crate) fn now_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    // From 1, so that 0 can mean never.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}
