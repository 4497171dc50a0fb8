//! A record of each access to a debug register's bytes: who, where, and the value after it.
//!
//! For:     `Hard`, when more than counts is wanted.
//! State:   a program of the kernel's for each watch; a ring that they write to; a count of what found no room.
//! Context: control. The programs run in the kernel, in the thread that made the access, before its next instruction.
//! Keeps:   R1 an access is in the ring or counted as lost: nobody is made to wait for us.
//!          R2 the value is read in the trap of the access. What another thread writes between the two (about a
//!             microsecond) is seen in its place; that thread's access has its own record.
//! Checked: testkit `watching`.

use super::callers::Callers;
use super::touch::{At, Last, Stack, Touch};
use super::{Watch, WatchError};
use crate::facts::descriptor::owned;
use std::os::fd::{AsRawFd, OwnedFd};
use sys::Errno;
use sys::bpf::{self, helper, instruction as op};
use sys::ringbuf::Ring;
use unwind::{KEPT_IN_PT_REGS, Registers};

/// Some 100,000 records: a second of one thread that does nothing but access.
const RING_BYTES: u32 = 8 << 20;
/// With stacks some 7,700.
const STACKS_BYTES: u32 = 64 << 20;
/// Words of a record.
const WATCH: usize = 0;
const WHO: usize = 1;
const LOST: usize = 2;
const IP: usize = 3;
const VALUE: usize = 4;
const VALUE_ERROR: usize = 5;
/// The stack pointer, and the other registers that a walk begins with.
const SP: usize = 6;
const KEPT: usize = 7;
/// Of each part of the stack, whether it could be copied.
const COPIED: usize = KEPT + KEPT_IN_PT_REGS.len();
const STACK: usize = COPIED + PARTS;
/// The stack is copied in so many parts: the last one may reach beyond its end.
const PARTS: usize = 8;
const PART_BYTES: usize = 1024;
/// Where the kernel's `bpf_perf_event_data` has rip and rsp.
const CONTEXT_RIP: i16 = 128;
const CONTEXT_RSP: i16 = 152;
/// bpf_ringbuf_submit: we look by ourselves.
const NO_WAKEUP: i32 = 1;

/// The programs and their ring.
#[derive(Debug)]
pub(super) struct Recorder {
    programs: Vec<OwnedFd>,
    lost: OwnedFd,
    ring: Ring,
    last: Last,
    /// For stacks, if they are wanted.
    callers: Option<Callers>,
}

impl Recorder {
    /// Programs for all watches of `pid`, whose values now are `values`.
    pub(super) fn new(
        pid: i32,
        watches: &[Watch],
        values: &[u64],
        callers: Option<Callers>,
    ) -> Result<Recorder, WatchError> {
        let refused = |errno| WatchError::NoRecords { errno };
        let lost = owned(bpf::create_array(1)).map_err(refused)?;
        let len = if callers.is_some() { STACKS_BYTES } else { RING_BYTES };
        let room = owned(bpf::create_ring(len)).map_err(refused)?;
        let ring = Ring::map(room.as_raw_fd(), len).map_err(refused)?;
        let load = |(n, watch): (usize, &Watch)| {
            let code = program(n, watch, lost.as_raw_fd(), room.as_raw_fd(), callers.is_some());
            owned(bpf::load_perf_program(&code))
        };
        let programs = watches.iter().enumerate().map(load).collect::<Result<_, _>>().map_err(refused)?;
        let mut last = Last::default();
        for (n, value) in values.iter().enumerate() {
            last.next(n, pid, Some(*value), 0);
        }
        Ok(Recorder { programs, lost, ring, last, callers })
    }

    /// Has the event's accesses, and those of events inherited from it, recorded.
    pub(super) fn attach(&self, watch: usize, event: i32) -> Result<(), Errno> {
        sys::perf::attach_program(event, self.programs[watch].as_raw_fd())
    }

    /// What was recorded since the last call.
    pub(super) fn take(&mut self) -> Vec<Touch> {
        let mut touches = Vec::new();
        let (last, callers) = (&mut self.last, &mut self.callers);
        self.ring.take(|bytes| touches.extend(touch(bytes, last, callers.as_mut())));
        touches
    }

    /// Accesses that found no room.
    pub(super) fn lost(&self) -> u64 {
        // SAFETY: made by `create_array`, and its descriptor is ours alone.
        unsafe { bpf::read_array(self.lost.as_raw_fd(), 0) }.unwrap_or(0)
    }
}

fn touch(bytes: &[u8], last: &mut Last, callers: Option<&mut Callers>) -> Option<Touch> {
    let word = |n: usize| Some(u64::from_le_bytes(bytes.get(8 * n..8 * n + 8)?.try_into().ok()?));
    let (watch, who) = (word(WATCH)? as usize, word(WHO)?);
    let (pid, tid) = ((who >> 32) as i32, who as i32);
    let after = if word(VALUE_ERROR)? == 0 { Some(word(VALUE)?) } else { None };
    let before = last.next(watch, pid, after, word(LOST)?);
    let stack = match callers {
        Some(callers) => {
            let sp = word(SP)?;
            let mut registers = Registers::new(word(IP)?, sp);
            for (n, (reg, _)) in KEPT_IN_PT_REGS.into_iter().enumerate() {
                registers = registers.with(reg, word(KEPT + n)?);
            }
            callers.find(registers, |addr| {
                // The copy begins at the stack pointer, which is a whole number of words.
                let at = usize::try_from(addr.checked_sub(sp)?).ok().filter(|at| at % 8 == 0)?;
                let part = at / PART_BYTES;
                (part < PARTS && word(COPIED + part)? == 0).then(|| word(STACK + at / 8)).flatten()
            })
        }
        None => Stack::default(),
    };
    Some(Touch { watch, pid, tid, at: At::Behind(word(IP)?), before, after, stack })
}

/// Takes room in the ring and fills in a record; or counts one lost.
fn program(number: usize, watch: &Watch, lost: i32, ring: i32, with_stack: bool) -> Vec<u64> {
    let at = |word: usize| 8 * word as i16;
    let words = if with_stack { STACK + PARTS * PART_BYTES / 8 } else { SP };
    let half = |value: u64| value as u32 as i32;
    let mut code = vec![
        op(0xbf, 6, 1, 0, 0),   // r6 = the context
        op(0x62, 10, 0, -4, 0), // *(u32 *)(r10 - 4) = 0
        op(0xbf, 2, 10, 0, 0),  // r2 = r10
        op(0x07, 2, 0, 0, -4),  // r2 += -4
        op(0x18, 1, 1, 0, lost),
        0, // r1 = the array
        op(0x85, 0, 0, 0, helper::MAP_LOOKUP_ELEM),
        op(0x55, 0, 0, 2, 0), // if r0 != 0, skip two
        op(0xb7, 0, 0, 0, 0), // r0 = 0
        op(0x95, 0, 0, 0, 0), // exit
        op(0xbf, 7, 0, 0, 0), // r7 = the count of lost
        op(0x18, 1, 1, 0, ring),
        0,                                   // r1 = the ring
        op(0xb7, 2, 0, 0, 8 * words as i32), // r2 = bytes
        op(0xb7, 3, 0, 0, 0),                // r3 = no flags
        op(0x85, 0, 0, 0, helper::RINGBUF_RESERVE),
        op(0x55, 0, 0, 4, 0), // if r0 != 0, skip four
        op(0xb7, 1, 0, 0, 1), // r1 = 1
        op(0xdb, 7, 1, 0, 0), // lock *(u64 *)r7 += r1
        op(0xb7, 0, 0, 0, 0), // r0 = 0
        op(0x95, 0, 0, 0, 0), // exit
        op(0xbf, 8, 0, 0, 0), // r8 = the record
        op(0x7a, 8, 0, at(WATCH), number as i32),
        op(0x85, 0, 0, 0, helper::GET_CURRENT_PID_TGID),
        op(0x7b, 8, 0, at(WHO), 0),          // record.who = r0
        op(0x79, 1, 7, 0, 0),                // r1 = lost so far
        op(0x7b, 8, 1, at(LOST), 0),         // record.lost = r1
        op(0x79, 1, 6, CONTEXT_RIP, 0),      // r1 = rip
        op(0x7b, 8, 1, at(IP), 0),           // record.ip = r1
        op(0x7a, 8, 0, at(VALUE), 0),        // record.value = 0
        op(0xbf, 1, 8, 0, 0),                // r1 = record
        op(0x07, 1, 0, 0, 8 * VALUE as i32), // r1 += 8 * VALUE
        op(0xb7, 2, 0, 0, watch.len as i32), // r2 = bytes
        op(0x18, 3, 0, 0, half(watch.addr)),
        op(0, 0, 0, 0, half(watch.addr >> 32)), // r3 = the watched address
        op(0x85, 0, 0, 0, helper::PROBE_READ_USER),
        op(0x7b, 8, 0, at(VALUE_ERROR), 0), // record.value_error = r0
    ];
    if with_stack {
        let words = [(SP, CONTEXT_RSP)].into_iter();
        let kept = KEPT_IN_PT_REGS.into_iter().enumerate().map(|(n, (_, from))| (KEPT + n, from.into()));
        for (to, from) in words.chain(kept) {
            code.extend([
                op(0x79, 1, 6, from, 0),   // r1 = the register
                op(0x7b, 8, 1, at(to), 0), // record.to = r1
            ]);
        }
        for part in 0..PARTS {
            code.extend([
                op(0xbf, 1, 8, 0, 0),                                      // r1 = record
                op(0x07, 1, 0, 0, (8 * STACK + PART_BYTES * part) as i32), // r1 += the part's place
                op(0xb7, 2, 0, 0, PART_BYTES as i32),                      // r2 = bytes
                op(0x79, 3, 6, CONTEXT_RSP, 0),                            // r3 = rsp
                op(0x07, 3, 0, 0, (PART_BYTES * part) as i32),             // r3 += how far above
                op(0x85, 0, 0, 0, helper::PROBE_READ_USER),
                op(0x7b, 8, 0, at(COPIED + part), 0), // record.copied[part] = r0
            ]);
        }
    }
    code.extend([
        op(0xbf, 1, 8, 0, 0),         // r1 = record
        op(0xb7, 2, 0, 0, NO_WAKEUP), // r2 = flags
        op(0x85, 0, 0, 0, helper::RINGBUF_SUBMIT),
        op(0xb7, 0, 0, 0, 0), // r0 = 0
        op(0x95, 0, 0, 0, 0), // exit
    ]);
    code
}
