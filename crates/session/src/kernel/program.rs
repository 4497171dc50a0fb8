//! The programs that the kernel runs at a hit.
//!
//! For:     rung 7, with all verbs.
//! State:   none; the tables and the ring are the caller's.
//! Context: control. A program runs in a trap of the target's, in the kernel.
//! Keeps:   P1 each end of a call that is begun or ended adds one to `ENTERED`, and one to what became of it.
//!          P2 a call is known by its function and by the place of its return address on the stack, as in jumps' handlers
//!             (map::Frames): nobody's return address is touched.
//! Checked: tests below (the kernel's verifier takes each); testkit `kernel`.

use crate::arch::{ARGUMENTS, RESULT, STACK_POINTER};
use crate::facts::site::{Consumer, SitePlan};
use sys::bpf::{add_one, helper, instruction};
use wire::{Event, latency};

/// Entry of the table that every hit adds one to, before its action.
pub(super) const ENTERED: u32 = 0;
/// Calls in whose place a newer one began.
pub(super) const UNWOUND: u32 = 1;
/// Calls for which the table of open ones had no room.
pub(super) const NO_ROOM: u32 = 2;
/// The first entry of a site.
pub(super) const FIRST: u32 = 3;

/// Bytes of one record in the ring.
pub(super) const RECORD_LEN: usize = 64;

/// Places below r10; the four bytes below it are `add_one`'s.
const KEY: i16 = -16;
const STAMP: i16 = -24;
const RECORD: i16 = -24 - RECORD_LEN as i16;
/// The ring tells nobody: it is looked at.
const NO_WAKEUP: i32 = 1;

/// What is done at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Count,
    /// A histogram of the register at this byte offset.
    Histogram(u32),
    /// A call begins, or ends, or both in one instruction.
    Calls(Ends),
    /// The same, shown as it happens.
    Trace(Ends),
}

/// Which ends of a call an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ends {
    pub begins: bool,
    pub ends: bool,
}

impl Kind {
    pub fn of(site: &SitePlan) -> Kind {
        let is = |f: fn(&Consumer) -> bool| site.consumers().any(|c| f(&c));
        let calls = Ends {
            begins: is(|c| matches!(c, Consumer::Enter { .. })),
            ends: is(|c| matches!(c, Consumer::Leave { .. })),
        };
        let traced = Ends {
            begins: is(|c| matches!(c, Consumer::Trace { is_exit: false, .. })),
            ends: is(|c| matches!(c, Consumer::Trace { is_exit: true, .. })),
        };
        let register = site.consumers().find_map(|c| match c {
            Consumer::Log2Histogram { register } => Some(register),
            _ => None,
        });
        match register {
            Some(register) => Kind::Histogram(register),
            None if calls.begins || calls.ends => Kind::Calls(calls),
            None if traced.begins || traced.ends => Kind::Trace(traced),
            None => Kind::Count,
        }
    }
}

/// The descriptors that a program uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    /// Counts, a copy for each CPU.
    pub counts: i32,
    /// Open calls: key and stamp.
    pub open: i32,
    /// Records.
    pub ring: i32,
}

/// The program. A site's cookie is its first entry, and above it the number of its function.
pub(super) fn program(maps: Maps, kind: Kind) -> Vec<u64> {
    let mut code = vec![
        instruction(0xbf, 6, 1, 0, 0), // r6 = registers
        instruction(0x85, 0, 0, 0, helper::GET_ATTACH_COOKIE),
        instruction(0xbf, 7, 0, 0, 0), // r7 = r0
    ];
    match kind {
        Kind::Count => code.extend([entered(maps), add_to_own(maps, 0)].concat()),
        Kind::Histogram(register) => code.extend([entered(maps), histogram(maps, register)].concat()),
        Kind::Calls(Ends { begins, ends }) => {
            code.extend(if begins { begin(maps) } else { vec![] });
            code.extend(if ends { end(maps) } else { vec![] });
        }
        Kind::Trace(Ends { begins, ends }) => {
            code.extend(if begins { trace(maps, Event::ENTRY, 0) } else { vec![] });
            let behind = if begins { wire::TRACE_LOST + 1 } else { 0 };
            code.extend(if ends { trace(maps, Event::EXIT, behind) } else { vec![] });
        }
    }
    code.push(instruction(0xb7, 0, 0, 0, 0)); // r0 = 0
    code.push(instruction(0x95, 0, 0, 0, 0)); // exit
    code
}

fn number(to: u8, value: u32) -> u64 {
    instruction(0xb7, to, 0, 0, value.cast_signed())
}

fn call(helper: i32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

/// `to` = the map.
fn map(to: u8, fd: i32) -> [u64; 2] {
    [instruction(0x18, to, 1, 0, fd), 0]
}

/// `to` = the address of a place on the stack.
fn place(to: u8, at: i16) -> [u64; 2] {
    [instruction(0xbf, to, 10, 0, 0), instruction(0x07, to, 0, 0, i32::from(at))]
}

/// One of two, by whether r0 is 0.
fn if_zero(yes: Vec<u64>, no: Vec<u64>) -> Vec<u64> {
    let mut code = vec![instruction(0x55, 0, 0, yes.len() as i16 + 1, 0)];
    code.extend(yes);
    code.push(instruction(0x05, 0, 0, no.len() as i16, 0));
    code.extend(no);
    code
}

fn entered(maps: Maps) -> Vec<u64> {
    add_to(maps, ENTERED)
}

/// Adds one to an entry of all.
fn add_to(maps: Maps, entry: u32) -> Vec<u64> {
    let mut code = vec![number(0, entry)];
    code.extend(add_one(maps.counts));
    code
}

/// r0 = the site's entry and so many on.
fn own(behind: u32) -> [u64; 2] {
    [instruction(0xbc, 0, 7, 0, 0), instruction(0x07, 0, 0, 0, behind.cast_signed())]
}

fn add_to_own(maps: Maps, behind: u32) -> Vec<u64> {
    let mut code = own(behind).to_vec();
    code.extend(add_one(maps.counts));
    code
}

/// Adds one to the entry that is as many behind the site's as the register has binary digits.
fn histogram(maps: Maps, register: u32) -> Vec<u64> {
    let mut code = own(0).to_vec();
    code.push(instruction(0x79, 1, 6, register as i16, 0)); // r1 = the register
    let digits = [exponent(0), vec![instruction(0x07, 0, 0, 0, 1)]].concat();
    code.push(instruction(0x15, 1, 0, digits.len() as i16, 0)); // if r1 == 0, skip all
    code.extend(digits);
    code.extend(add_one(maps.counts));
    code
}

/// Adds to `to` the number of the highest bit of r1 that is set. Changes r1 and r2.
fn exponent(to: u8) -> Vec<u64> {
    let mut code = Vec::new();
    for bits in [32, 16, 8, 4, 2, 1] {
        code.extend([
            instruction(0xbf, 2, 1, 0, 0),     // r2 = r1
            instruction(0x77, 2, 0, 0, bits),  // r2 >>= bits
            instruction(0x15, 2, 0, 2, 0),     // if r2 == 0, skip two
            instruction(0x07, to, 0, 0, bits), // to += bits
            instruction(0xbf, 1, 2, 0, 0),     // r1 = r2
        ]);
    }
    code
}

/// The call's key to its place; r8 and the stamp's place = now.
fn key_and_stamp() -> Vec<u64> {
    vec![
        instruction(0x79, 1, 6, STACK_POINTER, 0),
        instruction(0x67, 1, 0, 0, 16),   // r1 <<= 16
        instruction(0xbf, 2, 7, 0, 0),    // r2 = r7
        instruction(0x77, 2, 0, 0, 32),   // r2 >>= 32
        instruction(0x4f, 1, 2, 0, 0),    // r1 |= r2
        instruction(0x7b, 10, 1, KEY, 0), // the key
        call(helper::KTIME_GET_NS),
        instruction(0xbf, 8, 0, 0, 0),      // r8 = now
        instruction(0x7b, 10, 8, STAMP, 0), // the stamp
    ]
}

/// r0 = the address of the open call's stamp, or 0.
fn look_up(maps: Maps) -> Vec<u64> {
    [&map(1, maps.open)[..], &place(2, KEY), &[call(helper::MAP_LOOKUP_ELEM)]].concat()
}

/// r0 = 0 if it was noted.
fn note(maps: Maps) -> Vec<u64> {
    let any = [number(4, 0), call(helper::MAP_UPDATE_ELEM)];
    [&map(1, maps.open)[..], &place(2, KEY), &place(3, STAMP), &any].concat()
}

fn forget(maps: Maps) -> Vec<u64> {
    [&map(1, maps.open)[..], &place(2, KEY), &[call(helper::MAP_DELETE_ELEM)]].concat()
}

/// A call begins whose duration is wanted.
fn begin(maps: Maps) -> Vec<u64> {
    let is_begun_again = if_zero(vec![], add_to(maps, UNWOUND));
    let has_no_room = if_zero(vec![], add_to(maps, NO_ROOM));
    let first = [entered(maps), add_to_own(maps, latency::ENTRIES), key_and_stamp()].concat();
    [first, look_up(maps), is_begun_again, note(maps), has_no_room].concat()
}

/// It ends.
fn end(maps: Maps) -> Vec<u64> {
    let mut timed = vec![instruction(0x79, 9, 0, 0, 0)]; // r9 = the stamp of its beginning
    timed.extend(forget(maps));
    timed.extend([
        instruction(0xbf, 1, 8, 0, 0), // r1 = now
        instruction(0xbf, 8, 9, 0, 0), // r8 = then
        instruction(0xbf, 9, 1, 0, 0), // r9 = now
        instruction(0x1f, 9, 8, 0, 0), // r9 -= r8
    ]);
    timed.extend(own(latency::TOTAL_NS));
    let mut add_time = add_one(maps.counts);
    add_time[7] = instruction(0xbf, 1, 9, 0, 0); // r1 = r9, and not 1
    timed.extend(add_time);
    timed.extend(bucket());
    timed.extend(add_one(maps.counts));
    let seen = if_zero(add_to_own(maps, latency::UNMATCHED), timed);
    [entered(maps), key_and_stamp(), look_up(maps), seen].concat()
}

/// r0 = the entry of the bucket of r9 nanoseconds: `map::Buckets::DURATIONS`.
fn bucket() -> Vec<u64> {
    const LONGEST: u64 = (1 << 40) - 1;
    let mut code = vec![
        instruction(0x18, 1, 0, 0, LONGEST as i32),
        LONGEST >> 32 << 32,
        instruction(0xbd, 9, 1, 1, 0), // if r9 <= r1, skip one
        instruction(0xbf, 9, 1, 0, 0), // r9 = r1
    ];
    code.extend(own(latency::BUCKETS));
    let mut long = vec![instruction(0xbf, 1, 9, 0, 0), number(3, 0)];
    long.extend(exponent(3));
    long.extend([
        instruction(0x07, 3, 0, 0, -2), // r3 -= 2
        instruction(0x7f, 9, 3, 0, 0),  // r9 >>= r3
        instruction(0x57, 9, 0, 0, 3),  // r9 &= 3
        instruction(0x07, 3, 0, 0, 1),  // r3 += 1
        instruction(0x67, 3, 0, 0, 2),  // r3 <<= 2
        instruction(0x0f, 9, 3, 0, 0),  // r9 += r3
    ]);
    // Below 4 the bucket is the duration.
    code.push(instruction(0xa5, 9, 0, long.len() as i16, 4)); // if r9 < 4, skip all
    code.extend(long);
    code.push(instruction(0x0f, 0, 9, 0, 0)); // r0 += r9
    code
}

/// One end of a call, to the ring. The cells are `behind` the site's first.
fn trace(maps: Maps, what: u64, behind: u32) -> Vec<u64> {
    let word = |n: i16| RECORD + 8 * n;
    let store = |from: u8, n: i16| instruction(0x7b, 10, from, word(n), 0);
    let mut code = [entered(maps), key_and_stamp()].concat();
    code.extend([
        store(8, 0),
        instruction(0x79, 1, 10, KEY, 0),
        store(1, 1),
        instruction(0x18, 1, 0, 0, what as i32),
        what >> 32 << 32,
        instruction(0xbf, 2, 7, 0, 0),
        instruction(0x77, 2, 0, 0, 32),
        instruction(0x4f, 1, 2, 0, 0),
        store(1, 2),
        call(helper::GET_CURRENT_PID_TGID),
        instruction(0xbc, 0, 0, 0, 0), // its lower half: the thread
        store(0, 3),
        number(0, 0),
        store(0, 7),
    ]);
    let is_entry = what == Event::ENTRY;
    if is_entry {
        for (n, register) in (4..).zip(ARGUMENTS) {
            code.extend([instruction(0x79, 1, 6, register, 0), store(1, n)]);
        }
    } else {
        code.extend([
            instruction(0x79, 1, 6, RESULT, 0),
            store(1, 4),
            number(1, 0),
            store(1, 5),
            store(1, 6),
        ]);
        code.extend(look_up(maps));
        let begun = [vec![instruction(0x79, 1, 0, 0, 0), store(1, 5)], forget(maps)].concat();
        code.extend(if_zero(vec![], begun));
    }
    code.extend([&map(1, maps.ring)[..], &place(2, RECORD)].concat());
    code.extend([
        number(3, RECORD_LEN as u32),
        number(4, NO_WAKEUP.cast_unsigned()),
        call(helper::RINGBUF_OUTPUT),
    ]);
    // An entry that was lost must not leave an older call's stamp to its exit.
    let mut written = if is_entry { note(maps) } else { vec![] };
    written.extend(own(behind));
    let mut lost = if is_entry { forget(maps) } else { vec![] };
    lost.extend(own(behind + wire::TRACE_LOST));
    code.extend(if_zero(written, lost));
    code.extend(add_one(maps.counts));
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::descriptor::owned;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_kernels_verifier_takes_each_program() {
        let Ok(counts) = owned(sys::bpf::create_percpu_array(400)) else { return };
        let open = owned(sys::bpf::create_hash(16)).unwrap();
        let ring = owned(sys::bpf::create_ring(4096)).unwrap();
        let maps = Maps { counts: counts.as_raw_fd(), open: open.as_raw_fd(), ring: ring.as_raw_fd() };
        let ends = [(true, false), (false, true), (true, true)].map(|(begins, ends)| Ends { begins, ends });
        let kinds = [Kind::Count, Kind::Histogram(112)].into_iter();
        for kind in kinds.chain(ends.map(Kind::Calls)).chain(ends.map(Kind::Trace)) {
            match owned(sys::bpf::load_uprobes_program(&program(maps, kind))) {
                Ok(_) | Err(sys::Errno::EPERM) => {}
                Err(why) => panic!("{kind:?}: {why:?}"),
            }
        }
        // SAFETY: the table is the one that was made above.
        assert_eq!(unsafe { sys::bpf::count_keys(open.as_raw_fd(), 100) }, 0);
    }
}
