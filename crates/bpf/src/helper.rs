//! What a program finds around it: helpers and maps by number, and what each is.
//!
//! For:     the lowering of the language, and whoever runs programs: the controller, the target, the kernel.
//! State:   none.
//! Context: control.
//! Keeps:   N1 a number below [`OWN`] is BPF's own, with BPF's contract. N2 no number means two things.
//! Checked: test below (N2); `lang`'s tests/scripts.rs.
//!
//! Pointers lie in the stack, in scratch, in the constants or in a map's value; lengths are in bytes; results are 0 or a
//! negative errno unless said otherwise.

/// Map number of the constants: an array of one read-only value.
pub const CONSTANTS: i32 = 0;
/// Map number of scratch memory: an array of one value that nobody else uses during a run of a program.
pub const SCRATCH: i32 = 1;
/// Map number of the ring that records leave by.
pub const RING: i32 = 2;
/// Map number of the script's first map.
pub const FIRST_MAP: i32 = 3;

/// Most bytes of arguments that fit a record.
pub const RECORD_MAX: usize = 1 << 16;

/// (map, key) -> value's address or 0.
pub const MAP_LOOKUP: u32 = 1;
/// (map, key, value, flags) -> 0, -E2BIG if the map is full.
pub const MAP_UPDATE: u32 = 2;
/// (map, key) -> 0, -ENOENT.
pub const MAP_DELETE: u32 = 3;
/// () -> nanoseconds of the monotonic clock.
pub const KTIME_GET_NS: u32 = 5;
/// () -> 32 random bits.
pub const PRANDOM_U32: u32 = 7;
/// () -> number of the CPU.
pub const SMP_PROCESSOR_ID: u32 = 8;
/// () -> process << 32 | thread.
pub const PID_TGID: u32 = 14;
/// () -> group << 32 | user.
pub const UID_GID: u32 = 15;
/// (to, length) -> 0; the name of the thread with a NUL.
pub const COMM: u32 = 16;
/// () -> number of the NUMA node.
pub const NUMA_NODE_ID: u32 = 42;
/// (to, length, from): memory of the target, or the program's own (`&$x`); on failure `to` is zeros.
pub const PROBE_READ_USER: u32 = 112;
/// (to, length, from): the program's own memory; a copy of any length.
pub const PROBE_READ_OWN: u32 = 113;
/// () -> nanoseconds of the clock that goes on in suspend.
pub const KTIME_GET_BOOT_NS: u32 = 125;
/// (ring, from, length, flags) -> 0.
pub const RINGBUF_OUTPUT: u32 = 130;
/// (context) -> a number of the probed place: what the controller gave with it.
pub const ATTACH_COOKIE: u32 = 174;
/// (context) -> the address of the function that is left, or the probed address.
pub const FUNC_IP: u32 = 173;
/// () -> nanoseconds of atomic time.
pub const KTIME_GET_TAI_NS: u32 = 208;

/// Where the numbers begin that BPF has not.
pub const OWN: u32 = 0x4e50_0000;
/// (map, key) -> address of the value, which was made of zeros if there was none; 0 if the map is full.
pub const LOOKUP_OR_INIT: u32 = OWN;
/// (map, key, value, time in ns) -> 0, -E2BIG. Takes a value into an aggregate, exactly, whatever the CPU does meanwhile.
pub const AGGREGATE: u32 = OWN + 1;
/// (map, key) -> one number over all CPUs: count, sum, smallest, largest, average. 0 without an element.
pub const AGGREGATED: u32 = OWN + 2;
/// (map, cursor, key, value) -> 1 and the next element copied, or 0 at the end. The cursor is eight bytes, 0 at first. An
/// element that is there all the time is met once; of an aggregate the value is what [`AGGREGATED`] gives.
pub const MAP_NEXT: u32 = OWN + 3;
/// (map) -> number of elements.
pub const MAP_LEN: u32 = OWN + 4;
/// (a, length of a, b, length of b) -> 0 if the strings are equal, else -1 or 1. A NUL ends a string.
pub const STR_COMPARE: u32 = OWN + 5;
/// (a, b, n) -> the same for n bytes, which NULs do not end.
pub const MEM_COMPARE: u32 = OWN + 6;
/// (hay, its length, needle, its length) -> where the needle is first, -1 if nowhere.
pub const STR_FIND: u32 = OWN + 7;
/// (a, length) -> bytes before the NUL.
pub const STR_LEN: u32 = OWN + 8;
/// (to, length): zeros.
pub const MEM_ZERO: u32 = OWN + 9;
/// (kind, to, length) -> something about the current thread; see [`About`].
pub const ABOUT: u32 = OWN + 10;
/// (to, length, from, length of from) -> 0: the string `from` behind the string `to`, as far as there is room.
pub const STR_APPEND: u32 = OWN + 11;
/// (kind, number, to, length): text for an errno, a signal, a system call.
pub const NAME_OF: u32 = OWN + 12;
/// (to, frames, is by unwind tables): 24 bytes about the target's stack: number of the stack in a table, number of
/// frames, process.
pub const USER_STACK: u32 = OWN + 13;
/// (process, to, length): the name of a process.
pub const COMM_OF: u32 = OWN + 14;
/// () -> the process that was started with the tracing, 0 without one.
pub const CHILD: u32 = OWN + 15;
/// (address, from, length) -> 0; writes a target's memory. Only with `--unsafe`.
pub const WRITE_USER: u32 = OWN + 16;
/// (signal, to the thread only) -> 0. Only with `--unsafe`.
pub const SEND_SIGNAL: u32 = OWN + 17;
/// (to, length): zeros behind the first NUL.
pub const STR_TIDY: u32 = OWN + 18;
/// (to, length, from) -> 0 or a negative errno: text of a target, or of the program's own memory. `to` is zeros before; it
/// has no NUL afterwards only if there was more text.
pub const PROBE_READ_TEXT: u32 = OWN + 19;

/// (number, first byte) -> eight bytes of a vector register as the probed code had it.
pub const VECTOR: u32 = OWN + 20;

/// [`MAP_LOOKUP`] of a key of 4 or 8 bytes that is given itself: (map, key).
pub const WORD_LOOKUP: u32 = OWN + 21;
/// [`LOOKUP_OR_INIT`] of such a key.
pub const WORD_LOOKUP_OR_INIT: u32 = OWN + 22;
/// [`MAP_UPDATE`] of such a key, with a value of 4 or 8 bytes: (map, key, value).
pub const WORD_UPDATE: u32 = OWN + 23;
/// [`MAP_DELETE`] of such a key.
pub const WORD_DELETE: u32 = OWN + 24;
/// [`AGGREGATE`] of such a key.
pub const WORD_AGGREGATE: u32 = OWN + 25;

/// The helper that does the same for a key that is given itself.
pub const fn by_word(number: u32) -> Option<u32> {
    Some(match number {
        MAP_LOOKUP => WORD_LOOKUP,
        LOOKUP_OR_INIT => WORD_LOOKUP_OR_INIT,
        MAP_UPDATE => WORD_UPDATE,
        MAP_DELETE => WORD_DELETE,
        AGGREGATE => WORD_AGGREGATE,
        _ => return None,
    })
}

/// What [`ABOUT`] is asked; texts go to memory, numbers are the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum About {
    /// The parent's process number.
    Ppid,
    /// The parent's name.
    Pcomm,
    /// The first thread's number.
    LeaderTid,
    /// The first thread's name.
    LeaderComm,
    /// The control group's number.
    Cgroup,
    /// Process and thread as the first pid namespace numbers them, packed as [`PID_TGID`] does.
    InitPidTgid,
    /// Ticks since boot.
    Jiffies,
    /// When tracing began, by [`KTIME_GET_BOOT_NS`].
    Began,
    /// Whether the sample that the program runs for was taken in user mode.
    Usermode,
}

/// What [`NAME_OF`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Named {
    /// An errno.
    Error,
    /// A signal.
    Signal,
    /// A system call of this machine.
    Syscall,
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_number_is_given_twice() {
        let text = include_str!("helper.rs");
        let values: Vec<&str> = text
            .lines()
            .filter_map(|line| {
                line.strip_prefix("pub const ")?.split_once(": u32 = ").map(|(_, value)| value)
            })
            .collect();
        let mut once = values.clone();
        once.sort_unstable();
        once.dedup();
        assert!(values.len() > 30 && once.len() == values.len(), "{values:?}");
    }
}
