//! Accesses as the kernel samples them, where a processor traps before an access and not behind it.
//!
//! For:     `Hard`, on such processors.
//! State:   a ring for each watch and CPU; what each watch held last; records that wait for older ones of other CPUs.
//! Context: control. The kernel writes a sample in the trap, and steps the thread over the access by itself.
//! Keeps:   B1 a thread whose pair of exclusive accesses our trap breaks is seen by its first sample, and its watch is over: it would
//!             begin again for ever. The next look may be some milliseconds later: so long it tries.
//!          B2 a value is what the instruction is about to store by its registers, and the bytes that it leaves; where either is not
//!             known, nor is the value.
//!          B3 a sample that finds no room is counted as lost. The event's count does not depend on it.
//!          B4 who stops the process by ptrace meanwhile is told, if it takes longer than the time between two looks: the kernel forgets
//!             the step of a thread that is let go between trap and step, and with it the thread's watchpoints.
//! Checked: tests below; the machine's test (docs/aarch64.md).

use super::touch::{At, Last, Stack, Touch};
use super::{Access, Detail, Watch};
use crate::arch;
use crate::facts::descriptor::owned;
use crate::find::memory::Memory;
use insn::Code;
use insn::aarch64::Stored;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use sys::perf::{self, Occasion, Sampled, access};
use sys::{Errno, Record, Samples};

/// Bytes of a ring: some 1,500 samples with registers, as many as an ordinary user may have; some 1,300 without.
const RING_BYTES: usize = 1 << 19;
const BARE_BYTES: usize = 1 << 16;
/// Words of a sample: process and thread, time, CPU, whether there are registers, these.
const WHO: usize = 0;
const TIME: usize = 1;
const HAS_REGISTERS: usize = 3;
const REGISTERS: usize = 4;
/// So much code around an instruction is looked at, in bytes.
const AROUND: u64 = 256;
const PAGE: u64 = 4096;
/// An instruction that is as long as any where this is used.
const WORD: usize = 4;
/// Older than this no record of another CPU can be, that was not there when its ring was read.
const SETTLED: Duration = Duration::from_millis(2);

/// The samples of all watches.
#[derive(Debug)]
pub(super) struct Ahead {
    memory: Arc<Memory>,
    watches: Vec<Watch>,
    detail: Detail,
    /// By watch.
    rings: Vec<(usize, Samples)>,
    last: Last,
    /// By time.
    waiting: VecDeque<Seen>,
    lapses: Vec<Lapse>,
    /// Traps at instructions that they break, by watch.
    broken: Vec<u64>,
    /// The process's status, and who was seen to trace it.
    status: Option<File>,
    tracer: Option<i32>,
}

/// A watch that is over before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapse {
    /// Which, by its number.
    pub watch: usize,
    /// Where the exclusive access is, or what lies in the middle of a pair.
    pub at: u64,
}

/// A sample.
#[derive(Debug)]
struct Seen {
    watch: usize,
    time: u64,
    pid: i32,
    tid: i32,
    /// The last is the place.
    registers: Vec<u64>,
}

/// What is known of an instruction.
#[derive(Clone, Copy, Debug)]
struct Met {
    instruction: [u8; WORD],
    is_broken: bool,
}

impl Ahead {
    /// Of a process that stands; the watches hold `values`.
    pub(super) fn new(
        pid: i32,
        memory: Arc<Memory>,
        watches: &[Watch],
        values: &[u64],
        detail: Detail,
    ) -> Ahead {
        let mut last = Last::default();
        for (n, value) in values.iter().enumerate() {
            last.next(n, pid, Some(*value), 0);
        }
        Ahead {
            memory,
            watches: watches.to_vec(),
            detail,
            rings: Vec::new(),
            last,
            waiting: VecDeque::new(),
            lapses: Vec::new(),
            broken: vec![0; watches.len()],
            status: File::open(format!("/proc/{pid}/status")).ok(),
            tracer: None,
        }
    }

    /// Events of these threads on each CPU, counting; of each CPU the first has the ring.
    pub(super) fn open(
        &mut self,
        watch: usize,
        tids: &[i32],
        for_children: bool,
    ) -> Result<Vec<File>, Errno> {
        let (registers, room) = match self.detail {
            Detail::Count => (arch::SAMPLED_PLACE, BARE_BYTES),
            _ => (arch::SAMPLED, RING_BYTES),
        };
        let sampled = sampled(&self.watches[watch], registers, for_children);
        let mut events: Vec<File> = Vec::new();
        for cpu in 0..percpu::possible_cpus() {
            let mut first = None;
            for tid in tids {
                let event = match owned(perf::open_sampled(&sampled, *tid, cpu)).map(File::from) {
                    // A CPU that is not there now.
                    Err(Errno::ENODEV) => break,
                    // A thread that has ended.
                    Err(Errno::ESRCH) => continue,
                    opened => opened?,
                };
                let event_fd = event.as_raw_fd();
                match first {
                    Some(first) => perf::redirect(event_fd, first)?,
                    None => self.rings.push((watch, Samples::map(event_fd, room)?)),
                }
                first = first.or(Some(event_fd));
                events.push(event);
            }
        }
        events.iter().try_for_each(|event| perf::enable(event.as_raw_fd()))?;
        if events.is_empty() { Err(Errno::ESRCH) } else { Ok(events) }
    }

    /// What was sampled since the last call, and the watches that are over since; `is_last`: nothing more comes.
    pub(super) fn take(&mut self, is_last: bool) -> (Vec<Touch>, Vec<Lapse>) {
        self.look_for_tracer();
        let settled = sys::monotonic_ns().saturating_sub(SETTLED.as_nanos() as u64);
        // Code may be written anew: what was read of it is believed for this look.
        let mut met = HashMap::new();
        let before = self.lapses.len();
        for seen in self.sampled() {
            let place = seen.registers.last().copied().unwrap_or_default();
            let memory = &self.memory;
            let known = *met.entry(place).or_insert_with(|| look(memory, place));
            if known.is_broken {
                self.broken[seen.watch] += 1;
                if self.lapses.iter().all(|lapse| lapse.watch != seen.watch) {
                    self.lapses.push(Lapse { watch: seen.watch, at: place });
                }
            } else if self.detail > Detail::Count {
                self.waiting.push_back(seen);
            }
        }
        let lapsed = self.lapses[before..].to_vec();
        self.waiting.make_contiguous().sort_by_key(|seen| seen.time);
        let mut touches = Vec::new();
        while let Some(seen) = self.waiting.pop_front_if(|seen| is_last || seen.time < settled) {
            let place = seen.registers.last().copied().unwrap_or_default();
            let known = *met.entry(place).or_insert_with(|| look(&self.memory, place));
            touches.push(self.touch(&seen, place, &known.instruction));
        }
        (touches, lapsed)
    }

    fn look_for_tracer(&mut self) {
        let mut text = [0u8; 512];
        let Some(file) = self.status.as_ref().filter(|_| self.tracer.is_none()) else { return };
        let len = file.read_at(&mut text, 0).unwrap_or(0);
        let ours = [0, sys::getpid().cast_signed()];
        self.tracer = tracer(&text[..len]).filter(|pid| !ours.contains(pid));
    }

    /// Who was seen to trace the process since it is watched.
    pub(super) fn tracer(&self) -> Option<i32> {
        self.tracer
    }

    /// The samples that are in the rings.
    fn sampled(&mut self) -> Vec<Seen> {
        let mut all = Vec::new();
        for (watch, ring) in &mut self.rings {
            ring.take(|record| {
                if let Record::Sample(bytes, _) = record {
                    all.extend(seen(*watch, bytes));
                }
            });
        }
        all
    }

    fn touch(&mut self, seen: &Seen, place: u64, instruction: &[u8]) -> Touch {
        let lost = self.lost();
        let stored = arch::stored(instruction, &seen.registers);
        let watch = &self.watches[seen.watch];
        let after = self.last.then(seen.watch, seen.pid, lost, |before| after(watch, stored, before));
        let (before, after) = after;
        let (pid, tid, stack) = (seen.pid, seen.tid, Stack::default());
        Touch { watch: seen.watch, pid, tid, at: At::Instruction(place), before, after, stack }
    }

    /// Accesses that were to be told and found no room.
    pub(super) fn untold(&self) -> u64 {
        if self.detail > Detail::Count { self.lost() } else { 0 }
    }

    /// Samples that found no room.
    fn lost(&self) -> u64 {
        self.rings.iter().map(|(_, ring)| ring.lost()).sum()
    }

    /// Watches that are over.
    pub(super) fn lapses(&self) -> &[Lapse] {
        &self.lapses
    }

    /// Traps of a watch that were tries of an access which did not come about, as far as they were sampled.
    pub(super) fn broken(&self, watch: usize) -> u64 {
        self.broken[watch]
    }
}

fn sampled(watch: &Watch, registers: u64, is_for_children: bool) -> Sampled {
    let access = match watch.access {
        Access::Write => access::WRITE,
        Access::ReadWrite => access::READ_WRITE,
    };
    Sampled {
        of: Occasion::Access { addr: watch.addr, len: watch.len, access },
        period: 1,
        registers,
        is_inherited: true,
        is_for_children,
        only_user: true,
        is_bare: true,
    }
}

/// The tracer in a process's status.
fn tracer(status: &[u8]) -> Option<i32> {
    let text = String::from_utf8_lossy(status);
    text.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse().ok())
}

/// A record's words.
fn seen(watch: usize, bytes: &[u8]) -> Option<Seen> {
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect();
    let (who, time, has) = (*words.get(WHO)?, *words.get(TIME)?, *words.get(HAS_REGISTERS)?);
    let registers = words.get(REGISTERS..)?.to_vec();
    let is_whole = has != 0 && !registers.is_empty();
    is_whole.then_some(Seen { watch, time, pid: who as i32, tid: (who >> 32) as i32, registers })
}

/// What stands at `place`, and whether a trap there breaks it.
fn look(memory: &Memory, place: u64) -> Met {
    let from = place.saturating_sub(AROUND);
    let around =
        |from: u64, to: u64| Some((from, memory.read_vec(from, to.checked_sub(from)? as usize).ok()?));
    // Beside it there may be nothing: then what is in its page is all.
    let page = place & !(PAGE - 1);
    let read = around(from, place + AROUND)
        .or_else(|| around(from.max(page), (place + AROUND).min(page + PAGE)))
        .unwrap_or_default();
    let code = Code { base: read.0, bytes: &read.1 };
    let instruction = code.from_addr(place).first_chunk().copied().unwrap_or_default();
    Met { instruction, is_broken: arch::is_broken_by_trap(&code, place) }
}

/// The watched bytes behind a store, from those before it.
fn after(watch: &Watch, stored: Stored, before: Option<u64>) -> Option<u64> {
    let (addr, bytes, len) = match stored {
        Stored::Nothing => return before,
        Stored::Unknown => return None,
        Stored::Bytes { addr, bytes, len } => (addr, bytes, len),
    };
    let old = before.map(u64::to_le_bytes);
    let mut new = [0u8; 8];
    for (n, byte) in new.iter_mut().enumerate().take(watch.len as usize) {
        let at = (watch.addr + n as u64).wrapping_sub(addr);
        *byte = match usize::try_from(at).ok().filter(|at| *at < len) {
            Some(at) => bytes[at],
            None => old?[n],
        };
    }
    Some(u64::from_le_bytes(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(addr: u64, len: u32) -> Watch {
        Watch { name: "w".into(), addr, len, access: Access::Write }
    }

    fn bytes(addr: u64, value: u128, len: usize) -> Stored {
        Stored::Bytes { addr, bytes: value.to_le_bytes(), len }
    }

    #[test]
    fn bytes_that_a_store_leaves_are_the_old_ones_or_nothing_is_known() {
        let word = watch(0x1000, 8);
        assert_eq!(after(&word, bytes(0x1000, 7, 8), None), Some(7));
        assert_eq!(after(&word, bytes(0x1003, 0xab, 1), Some(0x11)), Some(0xab00_0011));
        assert_eq!(after(&word, bytes(0x1003, 0xab, 1), None), None);
        // A pair whose second half it is, and one that begins in the middle of it.
        assert_eq!(after(&word, bytes(0xff8, 5 << 64 | 4, 16), None), Some(5));
        assert_eq!(after(&word, bytes(0x1004, 9, 8), Some(3)), Some(9 << 32 | 3));
        assert_eq!(after(&watch(0x1002, 2), bytes(0x1000, 0x4433_2211, 4), None), Some(0x4433));
        assert_eq!(after(&word, Stored::Nothing, Some(3)), Some(3));
        assert_eq!(after(&word, Stored::Unknown, Some(3)), None);
    }

    #[test]
    fn a_tracer_is_in_the_first_lines_of_a_status() {
        let status = std::fs::read("/proc/thread-self/status").unwrap();
        assert!(tracer(&status[..512.min(status.len())]).is_some());
        assert_eq!(tracer(b"Name:\tx\nTracerPid:\t77\nUid:\t0\n"), Some(77));
        assert_eq!(tracer(b"Name:\tx\n"), None);
    }

    #[test]
    fn a_sample_without_registers_is_none() {
        let record = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let read = seen(1, &record(&[7 | 8 << 32, 99, 3, 2, 0x4000])).unwrap();
        assert_eq!(
            (read.watch, read.pid, read.tid, read.time, &read.registers[..]),
            (1, 7, 8, 99, &[0x4000][..])
        );
        assert!(seen(1, &record(&[7 | 8 << 32, 99, 3, 0])).is_none());
        assert!(seen(1, &record(&[7 | 8 << 32, 99, 3, 2])).is_none());
    }
}
