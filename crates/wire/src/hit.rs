//! What a program has around it while it runs at a hit.
//!
//! For:     the compiler of programs, which knows the places of the first fields; the agent, which makes one for each run;
//!          helpers, which get its address.
//! State:   a [`Hit`] is one run's own; a [`ProgramDesc`] is written by the controller before anything leads to it.
//! Context: hit, control.
//! Keeps:   P1 the layout is the same in both builds (`repr(C)`, fixed sizes).
//!          P2 an access of `len` bytes is allowed where all of its bytes lie inside one of the bounds.
//! Checked: tests below; jit's tests/engines.rs; testkit `programs`.

use core::sync::atomic::{AtomicU16, AtomicU64};

/// Pieces of memory that a checked program may be given, its stack among them.
pub const BOUNDS_MAX: usize = 4;

/// One piece of memory that a checked program may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Bounds {
    /// Its first address.
    pub start: u64,
    /// At how many places a read of 1, 2, 4 and 8 bytes may begin.
    pub reads: [u64; 4],
    /// And a write.
    pub writes: [u64; 4],
}

impl Bounds {
    /// `len` bytes at `start`, to be read, and to be written or not.
    #[inline(always)]
    pub fn new(start: u64, len: u64, is_writable: bool) -> Bounds {
        let places = [1, 2, 4, 8].map(|size: u64| (len + 1).saturating_sub(size));
        Bounds { start, reads: places, writes: if is_writable { places } else { [0; 4] } }
    }
}

/// One run of a program: first what the compiled code reads and writes, then what its helpers want to know. Of a run that does not
/// [need](needs) them nobody has written fuel, fault, calls left, stack and scratch memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Hit {
    /// Instructions that it may take: less what jumps back and calls have cost.
    pub fuel: u64,
    /// 0, or what it met: a kind as in [`fault`] in the upper byte.
    pub fault: u64,
    /// The address or the number of a fault.
    pub detail: u64,
    /// Functions that may still be entered.
    pub calls_left: u64,
    /// The lowest address of its stack, if that is given.
    pub stack: u64,
    /// Address of the saved registers, the kernel's `pt_regs`; 0 where there is no hit.
    pub regs: u64,
    /// Address of the [`crate::SiteDesc`].
    pub site: u64,
    /// Address of the [`crate::ConsumerDesc`], which leads to the [`ProgramDesc`] and has what differs from site to site.
    pub consumer: u64,
    /// The copy of this CPU, or [`crate::COPY_NONE`] or [`crate::COPY_UNKNOWN`]: what an adder is told.
    pub copy: u64,
    /// Address of the program's scratch memory, 0 if it has none.
    pub scratch: u64,
    /// Address of the thread's [`Inside`], 0 if it has none.
    pub inside: u64,
}

/// A run that is held to its bounds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CheckedHit {
    /// As of any run.
    pub hit: Hit,
    /// What may be touched.
    pub bounds: [Bounds; BOUNDS_MAX],
}

impl CheckedHit {
    /// Whether `len` bytes at `addr` are the program's, to be written or only read: what a helper asks of a pointer.
    pub fn allows(&self, addr: u64, len: u64, is_write: bool) -> bool {
        self.bounds.iter().any(|bounds| {
            let places = if is_write { bounds.writes[0] } else { bounds.reads[0] };
            let at = addr.wrapping_sub(bounds.start);
            len == 0 || at < places && len <= places - at
        })
    }
}

/// Kinds of faults, in the upper byte of [`Hit::fault`]; below them the length of an access and the instruction's number.
pub mod fault {
    /// An access to what is not the program's.
    pub const ACCESS: u64 = 1;
    /// An atomic access that is not aligned.
    pub const UNALIGNED: u64 = 2;
    /// A call of a helper that is not there.
    pub const NO_HELPER: u64 = 3;
    /// Too many functions inside each other.
    pub const TOO_DEEP: u64 = 4;
    /// No fuel is left.
    pub const FUEL_OUT: u64 = 5;

    /// The kind of a fault.
    pub fn kind(fault: u64) -> u64 {
        fault >> 56
    }
}

/// What the agent knows of a program, in one region: all that does not differ from site to site.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ProgramDesc {
    /// Address of its code in the region.
    pub entry: u64,
    /// Fuel of a run.
    pub fuel: u64,
    /// What a run needs: [`needs`].
    pub needs: AtomicU64,
    /// Address of the arena in the target.
    pub arena: u64,
    /// Address of CPU 0's first workspace, and bytes from one workspace to the next, each CPU having [`WORKSPACES_EACH`].
    pub workspaces: u64,
    /// See above.
    pub workspace_len: u64,
    /// How many workspaces there are.
    pub workspaces_count: u64,
    /// Bytes of its scratch memory.
    pub scratch_len: u64,
    /// Address of the maps' object in the target, 0 if there are no maps.
    pub maps: u64,
    /// What the last run met that ended with a fault: fault and detail, for the message.
    pub last_fault: [AtomicU64; 2],
    /// Address of the threads' places, [`Inside::COUNT`] of them; 0 if there are none.
    pub inside: u64,
    /// Which of [`Inside::marks`] is its own: its number.
    pub mark: u64,
    /// How memory is read that may not be there: a [`crate::maps::ReadWay`]; refused once a thread has a seccomp filter, which may
    /// come at any time.
    pub reads: AtomicU64,
    /// The stack of the process's first thread, from its lowest address that can be to its end; 0 if that cannot be told.
    pub stack_low: u64,
    /// Its end.
    pub stack_high: u64,
}

/// Which programs a thread is inside of: a place in private memory that a fork wipes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Inside {
    /// The thread's pointer; 0 of a place that nobody has. It stays, and is that of who has the same pointer later.
    pub owner: AtomicU64,
    /// Where the thread has found its key in a map: by the map's number, what `map::Near` keeps there.
    pub near: [AtomicU64; 4],
    /// By a program's number modulo as many: 0, or the thread is inside of it, and so many less one of its hits were skipped for that.
    /// What a hit stores there hangs on nothing that it loads.
    pub marks: [AtomicU16; Inside::MARKS],
}

impl Inside {
    /// How many places there are.
    pub const COUNT: usize = 4096;
    /// Programs that are told apart.
    pub const MARKS: usize = 64;
    /// Their bytes.
    pub const LEN_BYTES: usize = Inside::COUNT * size_of::<Inside>();

    /// Which of [`Inside::near`] is for the map whose handle has this address, or is so far from the arena's beginning.
    #[inline(always)]
    pub const fn near_of(handle: u64) -> usize {
        // Handles are words, one behind the other.
        handle as usize / size_of::<u64>() % 4
    }
}

/// What a run of a program needs: bits of [`ProgramDesc::needs`].
pub mod needs {
    /// rbp and r12 to r15 in the saved registers. As [`crate::ConsumerDesc::arg`] has it too.
    pub const KEPT: u64 = 1;
    /// What is not a general register in the saved registers, and rsp.
    pub const FRAME: u64 = 2;
    /// A workspace: its stack, or scratch memory.
    pub const WORKSPACE: u64 = 4;
    /// It is held to its bounds.
    pub const CHECKED: u64 = 8;
    /// It runs in forked children too.
    pub const CHILDREN: u64 = 16;
    /// It may read the time stamp counter, by which the kernel's clocks go: no thread of the process asked for a signal there.
    pub const COUNTER: u64 = 32;
    /// Fuel, and a place for what ends it: it can end before its exit.
    pub const FUEL: u64 = 64;
}

/// Cells of a consumer that is a program: each hit adds one to one of them.
pub mod program_cell {
    /// It ran to its end.
    pub const RAN: u32 = 0;
    /// The thread was inside the same program: a signal handler came in between.
    pub const NESTED: u32 = 1;
    /// No workspace was free.
    pub const NO_WORKSPACE: u32 = 2;
    /// Its fuel was used up.
    pub const FUEL: u32 = 3;
    /// It did what it may not.
    pub const FAULT: u32 = 4;
    /// It was in a forked child that is not followed.
    pub const CHILD: u32 = 5;
    /// How many there are.
    pub const COUNT: u32 = 6;
}

/// Memory for one run that needs more than the thread's stack: claimed by the thread, given back at the end.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Workspace {
    /// 0, or somebody is in it.
    pub owner: AtomicU64,
    /// Nothing yet.
    pub unused: [u64; 7],
    /// The run.
    pub hit: CheckedHit,
    /// The program's stack.
    pub stack: [u64; STACK_LEN / 8],
}

/// Bytes of stack that is given to a run: eight functions of 512 bytes.
pub const STACK_LEN: usize = 4096;
/// Workspaces of each CPU.
pub const WORKSPACES_EACH: usize = 6;
/// Those of them, the first, that threads on that CPU alone may have.
pub const WORKSPACES_OWN: usize = 2;

impl Workspace {
    /// Bytes of one whose programs need so much scratch memory, which follows it.
    pub const fn len_with(scratch: usize) -> usize {
        (size_of::<Workspace>() + scratch).next_multiple_of(64)
    }
}

/// Helpers, in the order of [`crate::AgentTable::helpers`]: a function for each,
/// `extern "C" fn(r1, r2, r3, r4, r5, hit: *mut Hit) -> u64`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Helper {
    /// () -> nanoseconds of the monotonic clock.
    KtimeGetNs = 0,
    /// () -> process << 32 | thread.
    PidTgid = 1,
    /// () -> number of the CPU.
    SmpProcessorId = 2,
    /// (context) -> the consumer's cookie.
    Cookie = 3,
    /// (map, key) -> the value's address or 0.
    MapLookup = 4,
    /// (map, key, value, flags) -> 0 or an error.
    MapUpdate = 5,
    /// (map, key) -> 0 or an error.
    MapDelete = 6,
    /// () -> 32 random bits.
    PrandomU32 = 7,
    /// () -> group << 32 | user.
    UidGid = 8,
    /// (to, length) -> 0; the thread's name.
    Comm = 9,
    /// () -> number of the NUMA node.
    NumaNodeId = 10,
    /// (to, length, from) -> 0 or an error; memory of the target.
    ProbeReadUser = 11,
    /// (to, length, from) -> 0 or an error; the program's own.
    ProbeReadOwn = 12,
    /// () -> nanoseconds of the clock that goes on in suspend.
    KtimeGetBootNs = 13,
    /// (ring, from, length, flags) -> 0 or an error.
    RingbufOutput = 14,
    /// () -> nanoseconds of atomic time.
    KtimeGetTaiNs = 15,
    /// (map, key) -> the value's address, which is made if it is not there.
    LookupOrInit = 16,
    /// (map, key, value, time) -> 0 or an error.
    Aggregate = 17,
    /// (map, key) -> one number over all CPUs.
    Aggregated = 18,
    /// (map, cursor, key, value) -> 1 and the next element, or 0.
    MapNext = 19,
    /// (map) -> number of elements.
    MapLen = 20,
    /// (a, length, b, length) -> -1, 0 or 1.
    StrCompare = 21,
    /// (a, b, length) -> the first difference.
    MemCompare = 22,
    /// (hay, length, needle, length) -> where, or -1.
    StrFind = 23,
    /// (a, length) -> bytes before the NUL.
    StrLen = 24,
    /// (to, length): zeros.
    MemZero = 25,
    /// (kind) -> something about the thread.
    About = 26,
    /// (to, length, from, length) -> 0.
    StrAppend = 27,
    /// () -> the process that was started with the tracing.
    Child = 28,
    /// (to, length): zeros behind the first NUL.
    StrTidy = 29,
    /// (to, length, from) -> 0 or an error; a text of the target.
    ProbeReadText = 30,
    /// (to, frames) -> 0 or an error; the thread's stack.
    UserStack = 31,
    /// (context) -> the address of the function that is left here, or the probed address.
    FuncIp = 32,
    /// (number, first byte) -> eight bytes of a vector register.
    Vector = 33,
    /// (signal, to the thread only) -> 0 or an error.
    SendSignal = 34,
    /// (address, from, length) -> 0 or an error; writes memory of the target.
    WriteUser = 35,
    /// (map, key of a word) -> the value's address or 0.
    WordLookup = 36,
    /// (map, key of a word) -> the value's address, which is made if it is not there.
    WordLookupOrInit = 37,
    /// (map, key of a word, value) -> 0 or an error.
    WordUpdate = 38,
    /// (map, key of a word) -> 0 or an error.
    WordDelete = 39,
    /// (map, key of a word, value, time) -> 0 or an error.
    WordAggregate = 40,
    /// (version's address, the version that was seen, whether it is to be gone) -> 0, or 1 and nothing was done. Not for programs: what
    /// stands in the code of one instead of a helper, [`crate::maps::NearTable`], calls it.
    NearSet = 41,
    /// (address of the first CPU's words, value, how, bytes between two CPUs' words, CPUs) -> 0, or 1 and nothing was done. Not for programs
    /// either.
    NearAdd = 42,
}

/// How many helpers there are.
pub const HELPERS_LEN: usize = 43;

impl Helper {
    /// All, in their order.
    pub const ALL: [Helper; HELPERS_LEN] = [
        Helper::KtimeGetNs,
        Helper::PidTgid,
        Helper::SmpProcessorId,
        Helper::Cookie,
        Helper::MapLookup,
        Helper::MapUpdate,
        Helper::MapDelete,
        Helper::PrandomU32,
        Helper::UidGid,
        Helper::Comm,
        Helper::NumaNodeId,
        Helper::ProbeReadUser,
        Helper::ProbeReadOwn,
        Helper::KtimeGetBootNs,
        Helper::RingbufOutput,
        Helper::KtimeGetTaiNs,
        Helper::LookupOrInit,
        Helper::Aggregate,
        Helper::Aggregated,
        Helper::MapNext,
        Helper::MapLen,
        Helper::StrCompare,
        Helper::MemCompare,
        Helper::StrFind,
        Helper::StrLen,
        Helper::MemZero,
        Helper::About,
        Helper::StrAppend,
        Helper::Child,
        Helper::StrTidy,
        Helper::ProbeReadText,
        Helper::UserStack,
        Helper::FuncIp,
        Helper::Vector,
        Helper::SendSignal,
        Helper::WriteUser,
        Helper::WordLookup,
        Helper::WordLookupOrInit,
        Helper::WordUpdate,
        Helper::WordDelete,
        Helper::WordAggregate,
        Helper::NearSet,
        Helper::NearAdd,
    ];

    /// The number by which programs call it: BPF's own, or one of ours from 0x4e500000 on.
    pub const fn number(self) -> u32 {
        match self {
            Helper::KtimeGetNs => 5,
            Helper::PidTgid => 14,
            Helper::SmpProcessorId => 8,
            Helper::Cookie => 174,
            Helper::MapLookup => 1,
            Helper::MapUpdate => 2,
            Helper::MapDelete => 3,
            Helper::PrandomU32 => 7,
            Helper::UidGid => 15,
            Helper::Comm => 16,
            Helper::NumaNodeId => 42,
            Helper::ProbeReadUser => 112,
            Helper::ProbeReadOwn => 113,
            Helper::KtimeGetBootNs => 125,
            Helper::RingbufOutput => 130,
            Helper::KtimeGetTaiNs => 208,
            Helper::LookupOrInit => 0x4e50_0000,
            Helper::Aggregate => 0x4e50_0001,
            Helper::Aggregated => 0x4e50_0002,
            Helper::MapNext => 0x4e50_0003,
            Helper::MapLen => 0x4e50_0004,
            Helper::StrCompare => 0x4e50_0005,
            Helper::MemCompare => 0x4e50_0006,
            Helper::StrFind => 0x4e50_0007,
            Helper::StrLen => 0x4e50_0008,
            Helper::MemZero => 0x4e50_0009,
            Helper::About => 0x4e50_000a,
            Helper::StrAppend => 0x4e50_000b,
            Helper::Child => 0x4e50_000f,
            Helper::StrTidy => 0x4e50_0012,
            Helper::ProbeReadText => 0x4e50_0013,
            Helper::UserStack => 0x4e50_000d,
            Helper::FuncIp => 173,
            Helper::Vector => 0x4e50_0014,
            Helper::SendSignal => 0x4e50_0011,
            Helper::WriteUser => 0x4e50_0010,
            Helper::WordLookup => 0x4e50_0015,
            Helper::WordLookupOrInit => 0x4e50_0016,
            Helper::WordUpdate => 0x4e50_0017,
            Helper::WordDelete => 0x4e50_0018,
            Helper::WordAggregate => 0x4e50_0019,
            Helper::NearSet => 0x4e50_001a,
            Helper::NearAdd => 0x4e50_001b,
        }
    }

    /// Programs may call it. What is not for them is given addresses that nobody checks.
    pub const fn is_for_programs(self) -> bool {
        !matches!(self, Helper::NearSet | Helper::NearAdd)
    }

    /// The helper that programs call by this number.
    pub fn of(number: u32) -> Option<Helper> {
        Helper::ALL.into_iter().find(|helper| helper.number() == number)
    }
}

const _: () = assert!(size_of::<ProgramDesc>() == 128 && size_of::<Inside>() == 192);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_may_begin_where_all_of_it_lies_inside() {
        let bounds = Bounds::new(0x1000, 4, true);
        assert_eq!(bounds.reads, [4, 3, 1, 0]);
        assert_eq!(Bounds::new(0x1000, 0, true).writes, [0; 4]);
        assert_eq!(Bounds::new(0x1000, 9, false).writes, [0; 4]);
        let mut run = CheckedHit::default();
        run.bounds[0] = bounds;
        assert!(run.allows(0x1000, 4, true) && run.allows(0x1003, 1, false));
        let beyond = [(0x1003, 2), (0xfff, 1), (1, u64::MAX)];
        assert!(beyond.iter().all(|(addr, len)| !run.allows(*addr, *len, false)));
    }

    #[test]
    fn helpers_are_listed_in_their_order_and_no_number_means_two() {
        for (i, helper) in Helper::ALL.into_iter().enumerate() {
            assert_eq!((helper as usize, Helper::of(helper.number())), (i, Some(helper)));
        }
    }
}
