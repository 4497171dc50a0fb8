//! Every encoding that the kernel takes, with a kernel uprobe on it: rung 7 must change nothing either.
//!
//! Needs root, and bpf(2) with links for uprobes (6.6): `cargo test -p nanoprobe-insn --test differential -- --ignored`.
//! `NANOPROBE_INSN_RUNS` sets the cases for each encoding, `NANOPROBE_INSN_ALL` runs those too that the kernel is known
//! to run wrong, each in a process of its own.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

use iced_x86::{Code as Op, Decoder, DecoderOptions};
use insn::{Asked, Code, Flow, Refusal, place};
use sys::bpf::{self, helper, instruction};

use crate::encodings::{draw, prepare};
use crate::every::{is_compared, is_promised, processor_flags};
use crate::machine::{CODE, Exit, Machine, PAGE_LEN};
use crate::random::Random;
use crate::{SITE, Start, aim_at_data, callee_owned, difference, runs};

struct Case {
    code: Op,
    bytes: Vec<u8>,
    start: Start,
    /// How it ended without a probe.
    plain: Exit,
}

/// Cases that end without a fault, and some that do not.
fn cases(machine: &mut Machine, random: &mut Random, wanted: u64) -> Vec<Case> {
    let flags = processor_flags();
    let mut all = Vec::new();
    for code in Op::values().filter(|code| is_compared(*code) && is_promised(*code, &flags)) {
        let (mut ran, mut faulted) = (0, 0);
        for _ in 0..200 * wanted {
            if ran == wanted {
                break;
            }
            let Some(mut bytes) = draw(random, code) else { continue };
            aim_at_data(random, &mut bytes, SITE);
            let insn = Decoder::with_ip(64, &bytes, SITE, DecoderOptions::NONE).decode();
            let mut start = Start::random(random);
            prepare(random, &insn, &mut start);
            let plain = machine.run(SITE, &bytes, &start.state, &start.data, &start.stack);
            if plain.signal != libc::SIGTRAP {
                faulted += 1;
                if faulted > 1 {
                    continue;
                }
            } else {
                ran += 1;
            }
            all.push(Case { code, bytes, start, plain });
        }
    }
    all
}

/// A page for each case, with int3 around it.
fn file_of(cases: &[Case]) -> OwnedFd {
    // SAFETY: the name is a C string; nothing else is needed.
    let fd = unsafe { libc::memfd_create(c"insn-kernel".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: the call has just made it, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut pages = vec![0xcc; cases.len() * PAGE_LEN];
    for (case, page) in cases.iter().zip(pages.chunks_mut(PAGE_LEN)) {
        let at = (SITE - CODE) as usize;
        page[at..at + case.bytes.len()].copy_from_slice(&case.bytes);
    }
    std::io::Write::write_all(
        &mut std::fs::File::from(file.try_clone().expect("another descriptor")),
        &pages,
    )
    .expect("a file in memory takes it");
    file
}

/// Kernel uprobes on all of them, each with its own count.
struct Probes {
    counts: OwnedFd,
    _link: OwnedFd,
}

fn owned(fd: Result<i32, sys::Errno>) -> OwnedFd {
    // SAFETY: the call has just made it, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd.expect("bpf(2), as root, with links for uprobes")) }
}

impl Probes {
    fn open(file: &OwnedFd, cases: usize) -> Probes {
        let counts = owned(bpf::create_percpu_array(cases as u32));
        let mut code = vec![instruction(0x85, 0, 0, 0, helper::GET_ATTACH_COOKIE)];
        code.extend(bpf::add_one(counts.as_raw_fd()));
        code.extend([instruction(0xb7, 0, 0, 0, 0), instruction(0x95, 0, 0, 0, 0)]);
        let program = owned(bpf::load_uprobes_program(&code));
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero byte");
        let offsets: Vec<u64> = (0..cases).map(|i| (i * PAGE_LEN) as u64 + SITE - CODE).collect();
        let cookies: Vec<u64> = (0..cases as u64).collect();
        let pid = std::process::id() as i32;
        let places = bpf::Places::new(&offsets, &cookies);
        let link = owned(bpf::link_uprobes(program.as_raw_fd(), &path, &places, pid, false));
        Probes { counts, _link: link }
    }

    fn hits(&self, case: usize) -> u64 {
        let mut values = vec![0u64; 8192];
        // SAFETY: the descriptor is of the array that `open` made; no machine has more CPUs than `values` elements.
        let read = unsafe { bpf::read_percpu_array(self.counts.as_raw_fd(), case as u32, &mut values) };
        read.map(|()| values.iter().sum()).expect("an entry of the array")
    }
}

/// How a case went, in memory that a child shares with us: a case that hangs must not end the test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(u8)]
enum Verdict {
    #[default]
    NotRun,
    Running,
    Refused,
    Equal,
    Wrong,
    /// Counted another number of times than once.
    Miscounted,
}

struct Shared {
    verdicts: *mut AtomicU8,
    len: usize,
}

impl Shared {
    fn new(len: usize) -> Shared {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses a free address; no memory of ours changes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Shared { verdicts: at.cast(), len }
    }

    fn all(&self) -> &[AtomicU8] {
        // SAFETY: `new` mapped `len` bytes, zeros, for good; atomics may be shared.
        unsafe { std::slice::from_raw_parts(self.verdicts, self.len) }
    }
}

const VERDICTS: [Verdict; 6] = [
    Verdict::NotRun,
    Verdict::Running,
    Verdict::Refused,
    Verdict::Equal,
    Verdict::Wrong,
    Verdict::Miscounted,
];

/// Runs the cases from `first` on in a child, until the end or until one takes too long; the next case.
fn run_some(machine: &mut Machine, file: &OwnedFd, cases: &[Case], shared: &Shared, first: usize) -> usize {
    // SAFETY: the child calls the code under test, bpf(2) and what allocates: no thread of this process holds a lock
    // that it needs, for the test harness waits for this thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let probes = Probes::open(file, cases.len());
        for (page, case) in cases.iter().enumerate().skip(first).filter(|(_, c)| is_wanted(c)) {
            shared.all()[page].store(Verdict::Running as u8, SeqCst);
            let start = &case.start;
            let probed =
                machine.run_page((file.as_raw_fd(), page), SITE, (&start.state, &start.data, &start.stack));
            let verdict = match probes.hits(page) {
                0 => Verdict::Refused,
                _ if is_different(case, &probed) => Verdict::Wrong,
                1 => Verdict::Equal,
                _ => Verdict::Miscounted,
            };
            shared.all()[page].store(verdict as u8, SeqCst);
        }
        // SAFETY: ends the child at once; nothing of the parent's is flushed or dropped twice.
        unsafe { libc::_exit(0) };
    }
    let done = || shared.all().iter().rposition(|v| v.load(SeqCst) != 0).map_or(first, |last| last + 1);
    let (mut seen, mut since) = (done(), Instant::now());
    loop {
        let mut status = 0;
        // SAFETY: `status` is borrowed for the call; `child` is our own.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return if status == 0 { cases.len() } else { done() };
        }
        if done() != seen {
            (seen, since) = (done(), Instant::now());
        } else if since.elapsed() > Duration::from_secs(5) {
            // SAFETY: `child` is our own and not yet waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A call that faults at its target may leave an address in the stack below the stack pointer, which is nobody's.
fn is_different(case: &Case, probed: &Exit) -> bool {
    let free = matches!(case.code, Op::Call_rm64).then(|| callee_owned(&case.plain));
    difference(&case.plain, probed, free).is_some()
}

/// What no probe may stand on is not for the kernel either: it refuses int3 too late, and who comes to it hangs. Known
/// ones are run if that is asked for.
fn is_wanted(case: &Case) -> bool {
    let codes = [Code { base: SITE, bytes: &case.bytes }];
    let flow = Flow::analyse(&codes, &[], &[], &|_| vec![]);
    let room = &insn::no_room;
    let asked = Asked { site: SITE, function: None, next_function: None, taken: &|_| false, room };
    let is_forbidden = matches!(place(&flow, &codes, &asked), Err(Refusal::Forbidden { .. }));
    let is_known = insn::kernel_misruns(&case.bytes).is_err();
    !is_forbidden && (!is_known || std::env::var_os("NANOPROBE_INSN_ALL").is_some())
}

#[test]
#[ignore = "needs root"]
fn what_the_kernel_probes_runs_the_same() {
    let mut machine = Machine::new();
    let mut random = Random::from_env("kernel");
    let cases = cases(&mut machine, &mut random, runs(2));
    let file = file_of(&cases);
    let shared = Shared::new(cases.len());
    let mut next = 0;
    while next < cases.len() {
        next = run_some(&mut machine, &file, &cases, &shared, next);
    }
    let verdicts = shared.all().iter().map(|v| VERDICTS[usize::from(v.load(SeqCst))]);
    let all: Vec<(Verdict, &Case)> = verdicts.zip(&cases).collect();
    let count = |wanted: Verdict| all.iter().filter(|(verdict, _)| *verdict == wanted).count();
    let is_bad = |v: &Verdict| matches!(v, Verdict::Running | Verdict::Wrong | Verdict::Miscounted);
    let mut bad = 0;
    for (verdict, case) in all.iter().filter(|(verdict, _)| is_bad(verdict)) {
        let known = insn::kernel_misruns(&case.bytes);
        println!("{verdict:?} {:?} {:02x?}: {known:?}", case.code, case.bytes);
        bad += u64::from(known.is_ok());
    }
    println!(
        "{} equal, {} refused by the kernel, {} known to be run wrong and left out",
        count(Verdict::Equal),
        count(Verdict::Refused),
        count(Verdict::NotRun)
    );
    // How many encodings there are differs by processor.
    assert!(count(Verdict::Equal) > cases.len() / 2, "the kernel took next to nothing");
    assert_eq!(bad, 0, "cases that a kernel uprobe runs or counts wrong, above");
}
