//! Samples by the kernel: every so often who runs where, at events, at accesses to memory.
//!
//! For:     scripts: `profile`, `software`, `hardware` and `watchpoint` probes, whose programs run in the controller, a run a sample.
//! State:   perf events, one for each thread and CPU or for each CPU; a ring for each CPU; a claim of debug registers.
//! Context: control. The target runs except while events are opened for its threads.
//! Keeps:   S1 of named processes each thread has the event, born before or after: they are opened while all threads stand still,
//!             and are inherited.
//!          S2 a sample is in a ring or counted as lost. S3 nothing of a target is changed.
//! Checked: tests below; testkit `sampled`.

use super::hard::refused;
use super::registers::{Claim, Others, Taken};
use super::{Access, Watch, WatchError};
use crate::facts::descriptor::owned;
use crate::facts::error::Broken;
use crate::facts::ported;
use crate::hold::world::{Hurry, World};
use crate::leave::recover::recover;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use sys::perf::{self, Occasion, Sampled, access};
use sys::{Errno, Record, Samples, sched};

/// Bytes of a CPU's ring: some 400 samples with full stacks.
const RING_BYTES: usize = 1 << 19;
/// Registers of x86-64 in a sample, by the kernel's numbers: ax bx cx dx si di bp sp ip flags cs ss, r8 to r15.
const REGISTERS: u64 = 0xff_0fff;
/// Where each has its place in `struct pt_regs`, in words.
const PLACES: [usize; 20] = [10, 5, 11, 12, 13, 14, 4, 19, 16, 18, 17, 20, 9, 8, 7, 6, 3, 2, 1, 0];
/// The mark before the addresses of user mode.
const USER_FRAMES: u64 = (-512i64).cast_unsigned();
/// Names that are kept.
const NAMES_MAX: usize = 1 << 16;
/// Marks are above this.
const MARKS: u64 = (-4095i64).cast_unsigned();

/// What samples are taken of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// The time of each CPU: one after so many nanoseconds.
    Clock(u64),
    /// An event of the kernel's: its number (`PERF_COUNT_SW_*`), and one after so many.
    Software(u64, u64),
    /// An event of the processor's (`PERF_COUNT_HW_*`), the same.
    Hardware(u64, u64),
    /// Each access to bytes.
    Access(Watch),
}

/// Whose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whom {
    /// All that runs.
    All,
    /// All threads of a process, and what they start.
    Process(i32),
}

/// Who ran, when and where.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sample {
    /// The process; 0: the CPU was idle.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The thread's name then, empty if it is not known.
    pub comm: String,
    /// By the monotonic clock, in nanoseconds.
    pub time: u64,
    /// On this CPU.
    pub cpu: u32,
    /// Not in the kernel.
    pub is_user: bool,
    /// `struct pt_regs` of user mode, in words; zeros if there is none.
    pub registers: [u64; 21],
    /// Addresses of user mode by frame pointers, innermost first.
    pub frames: Vec<u64>,
}

/// Samples of one kind, being taken.
#[derive(Debug)]
pub struct Sampler {
    /// Before the events, as it has to end before they do.
    _claim: Option<Claim>,
    events: Vec<File>,
    /// A CPU's first event has the ring for all of that CPU.
    rings: Vec<Samples>,
    /// By thread: as it was called last. A thread may have ended when its sample is read.
    names: HashMap<i32, String>,
}

/// What a record tells.
#[derive(Debug)]
enum Told {
    Sample(Box<Sample>),
    Named(i32, String),
    /// Which thread, and by which.
    Started(i32, i32),
}

impl Sampler {
    /// Takes samples from now on.
    ///
    /// # Errors
    /// See [`WatchError`]; then nothing is left behind.
    pub fn start(what: &What, whom: &Whom) -> Result<Sampler, WatchError> {
        if matches!(what, What::Access(_)) {
            ported::check("a watchpoint of a script")?;
        }
        sched::raise_descriptor_limit();
        let sampler = match whom {
            Whom::All => {
                let mut sampler = Sampler::new();
                sampler.open(what, &[-1]).map_err(|errno| in_words(-1, what, errno, None))?;
                sampler
            }
            Whom::Process(pid) => Sampler::of_process(what, *pid)?,
        };
        for event in &sampler.events {
            let broken = |errno| WatchError::Broken(Broken::Call { what: "ioctl", errno });
            perf::enable(event.as_raw_fd()).map_err(broken)?;
        }
        Ok(sampler)
    }

    fn new() -> Sampler {
        Sampler { _claim: None, events: Vec::new(), rings: Vec::new(), names: HashMap::new() }
    }

    fn of_process(what: &What, pid: i32) -> Result<Sampler, WatchError> {
        let mut sampler = Sampler::new();
        recover(pid)?;
        let mut others = Others::default();
        others.look();
        let _hurry = Hurry::begin();
        let world = World::stop(pid)?;
        others.look();
        let taken = Taken::of(&world, &others);
        let watches = match what {
            What::Access(watch) => std::slice::from_ref(watch),
            _ => &[],
        };
        taken.check(watches)?;
        let tids: Vec<i32> = world.threads().map(|thread| thread.tid).collect();
        sampler.names = tids.iter().filter_map(|tid| Some((*tid, name(pid, *tid)?))).collect();
        let opened = sampler.open(what, &tids);
        if opened.is_ok() && !watches.is_empty() {
            sampler._claim = Claim::of(&world, watches);
        }
        drop(world);
        opened.map_err(|errno| in_words(pid, what, errno, Some(&taken)))?;
        Ok(sampler)
    }

    /// Events of these threads on each CPU; of each CPU the first has the ring.
    fn open(&mut self, what: &What, tids: &[i32]) -> Result<(), Errno> {
        for cpu in 0..percpu::possible_cpus() {
            let mut first: Option<i32> = None;
            for tid in tids {
                let event = match open(what, *tid, cpu) {
                    // A CPU that is not there now, a thread that has ended.
                    Err(Errno::ENODEV | Errno::ESRCH) => continue,
                    opened => opened?,
                };
                match first {
                    Some(first) => perf::redirect(event.as_raw_fd(), first)?,
                    None => {
                        self.rings.push(Samples::map(event.as_raw_fd(), RING_BYTES)?);
                        first = Some(event.as_raw_fd());
                    }
                }
                self.events.push(event);
            }
        }
        if self.rings.is_empty() { Err(Errno::ESRCH) } else { Ok(()) }
    }

    /// What came since the last call, by time.
    pub fn take(&mut self) -> Vec<Sample> {
        let mut all = Vec::new();
        for ring in &mut self.rings {
            ring.take(|record| all.extend(told(record)));
        }
        all.sort_by_key(|(time, _)| *time);
        let mut samples = Vec::new();
        for (_, told) in all {
            match told {
                Told::Sample(mut sample) => {
                    sample.comm = self.name(sample.pid, sample.tid);
                    samples.push(*sample);
                }
                Told::Named(tid, name) => self.note(tid, name),
                Told::Started(tid, by) => {
                    // It has the name of who started it, and perhaps the number of one that has ended.
                    match self.names.get(&by).cloned() {
                        Some(name) => self.note(tid, name),
                        None => drop(self.names.remove(&tid)),
                    }
                }
            }
        }
        samples
    }

    fn name(&mut self, pid: i32, tid: i32) -> String {
        if let Some(known) = self.names.get(&tid) {
            return known.clone();
        }
        let found = name(pid, tid).unwrap_or_default();
        if !found.is_empty() {
            self.note(tid, found.clone());
        }
        found
    }

    /// Where there is no room, an old name must not stand for a new one: of those who come and go all are forgotten.
    fn note(&mut self, tid: i32, name: String) {
        if self.names.len() >= NAMES_MAX && !self.names.contains_key(&tid) {
            self.names.clear();
        }
        self.names.insert(tid, name);
    }

    /// Samples that found no room.
    pub fn lost(&self) -> u64 {
        self.rings.iter().map(Samples::lost).sum()
    }

    /// Takes none any more; those that are there stay.
    pub fn stop(&mut self) {
        for event in &self.events {
            // It is over with the descriptor at the latest.
            let _ = perf::disable(event.as_raw_fd());
        }
    }
}

fn open(what: &What, tid: i32, cpu: u32) -> Result<File, Errno> {
    let (of, period) = match what {
        What::Clock(nanos) => (Occasion::Clock, *nanos),
        What::Software(number, period) => (Occasion::Software(*number), *period),
        What::Hardware(number, period) => (Occasion::Hardware(*number), *period),
        What::Access(watch) => {
            let access = match watch.access {
                Access::Write => access::WRITE,
                Access::ReadWrite => access::READ_WRITE,
            };
            (Occasion::Access { addr: watch.addr, len: watch.len, access }, 1)
        }
    };
    let of = |only_user| Sampled {
        of,
        period,
        registers: REGISTERS,
        is_inherited: tid > 0,
        is_for_children: true,
        only_user,
        is_bare: false,
    };
    let opened = match perf::open_sampled(&of(false), tid, cpu) {
        // Who may not look at the kernel still may at his own code.
        Err(Errno::EACCES | Errno::EPERM) if tid > 0 => perf::open_sampled(&of(true), tid, cpu),
        opened => opened,
    };
    owned(opened).map(File::from)
}

fn in_words(pid: i32, what: &What, errno: Errno, taken: Option<&Taken>) -> WatchError {
    match (what, errno, taken) {
        (What::Access(watch), _, Some(taken)) => refused(pid, watch, errno, &[], taken),
        (_, Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENODEV, _) => WatchError::NoEvent { errno },
        (_, Errno::EACCES | Errno::EPERM, _) => WatchError::not_allowed(errno),
        _ => WatchError::Broken(Broken::Call { what: "perf_event_open", errno }),
    }
}

/// The name of a thread.
fn name(pid: i32, tid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// When a record was written, and what it tells.
fn told(record: Record<'_>) -> Option<(u64, Told)> {
    let half =
        |bytes: &[u8], n: usize| Some(i32::from_le_bytes(bytes.get(4 * n..4 * n + 4)?.try_into().ok()?));
    // Behind all but samples: thread, time, CPU.
    let time = |bytes: &[u8]| {
        let at = bytes.len().checked_sub(16)?;
        Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    match record {
        Record::Sample(bytes, is_user) => {
            let sample = sample(bytes, is_user)?;
            Some((sample.time, Told::Sample(Box::new(sample))))
        }
        Record::Named(bytes) => {
            let name: Vec<u8> = bytes.get(8..)?.iter().copied().take_while(|byte| *byte != 0).collect();
            let name = String::from_utf8_lossy(&name).into_owned();
            Some((time(bytes)?, Told::Named(half(bytes, 1)?, name)))
        }
        Record::Started(bytes) => Some((time(bytes)?, Told::Started(half(bytes, 2)?, half(bytes, 3)?))),
    }
}

/// A record: thread, time, CPU, callers, registers.
fn sample(bytes: &[u8], is_user: bool) -> Option<Sample> {
    let word = |n: usize| Some(u64::from_le_bytes(bytes.get(8 * n..8 * n + 8)?.try_into().ok()?));
    let (who, time, cpu, callers) = (word(0)?, word(1)?, word(2)? as u32, word(3)? as usize);
    let chain = (0..callers).map_while(|n| word(4 + n));
    let frames = chain.skip_while(|addr| *addr != USER_FRAMES).filter(|addr| *addr < MARKS).collect();
    let behind = 4usize.checked_add(callers)?;
    let mut registers = [0; 21];
    // The first word says whether there are any.
    if word(behind)? != 0 {
        for (n, place) in PLACES.iter().enumerate() {
            registers[*place] = word(behind + 1 + n)?;
        }
    }
    let (pid, tid, comm) = (who as i32, (who >> 32) as i32, String::new());
    Some(Sample { pid, tid, comm, time, cpu, is_user, registers, frames })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_record_is_read_by_its_parts() {
        let words: Vec<u64> = [7 | 8 << 32, 99, 3, 4, (-128i64).cast_unsigned(), 5, USER_FRAMES, 0x1234, 2]
            .into_iter()
            .chain(100..120)
            .collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let read = sample(&bytes, true).unwrap();
        assert_eq!((read.pid, read.tid, read.time, read.cpu), (7, 8, 99, 3));
        assert_eq!(read.frames, [0x1234]);
        // ax is the first, ip the ninth, r15 the last.
        assert_eq!((read.registers[10], read.registers[16], read.registers[0]), (100, 108, 119));
        assert_eq!(sample(&bytes[..bytes.len() - 8], true), None);
    }

    #[test]
    fn samples_are_of_who_runs() {
        let pid = std::process::id() as i32;
        let (mut sampler, tid) = match Sampler::start(&What::Clock(1_000_000), &Whom::All) {
            Ok(sampler) => (sampler, sys::gettid() as i32),
            // Without the right there is a reason.
            Err(why) => return assert!(matches!(why, WatchError::NotAllowed { .. }), "{why}"),
        };
        let end = Instant::now() + Duration::from_secs(20);
        let mut found = false;
        while !found && Instant::now() < end {
            found = sampler.take().iter().any(|s| (s.pid, s.tid) == (pid, tid) && s.registers[16] != 0);
        }
        assert!(found, "this thread runs all the time, and no sample is of it");
        sampler.stop();
        sampler.take();
        std::thread::sleep(Duration::from_millis(20));
        assert!(sampler.take().is_empty());
    }
}
