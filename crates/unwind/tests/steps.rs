//! Each instruction of a program, beside the calls that were seen: prologues, epilogues, stubs, signals, unwinding.
//!
//! The program is stepped from its first instruction on. Whoever watches each step sees each call push its return address and
//! each return take it; so at any moment the true stack is known, from nothing that the walker knows.

use core::sync::atomic::AtomicU32;
use image::{Addr, ElfImage, Module, Process};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use sys::ptrace::{self, Regs};
use unwind::{Area, FRAMES_MAX, Loaded, Reg, Registers, Stack, Stop, Tables, make, walk};

/// Steps of a run unless `NANOPROBE_UNWIND_STEPS` says otherwise.
const STEPS: usize = 250_000;
/// How often a signal comes, once the program has a handler.
const SIGNAL_EVERY: usize = 61;
/// Wrong stacks in a hundred thousand that are put up with where the reference itself may be wrong: code that pushes an address
/// by another instruction than a call.
const WRONG_IN_100_000: usize = 5;

/// Builds a program once; its path.
fn build(compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let program = dir.join(format!("{source}-{compiler}{}", flags.concat()).replace(['/', '='], "_"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let built = Command::new(compiler).args(flags).arg("-o").arg(&program).arg(source).arg("-w").status();
    assert!(built.is_ok_and(|status| status.success()), "{compiler} {flags:?}");
    program
}

/// The stack of a stopped process: its whole mapping, which it cannot lose.
struct Remote {
    pid: i32,
    from: u64,
    bytes: Vec<u8>,
    len: usize,
}

impl Remote {
    fn at(&mut self, sp: u64) {
        self.from = sp & !7;
        self.len = sys::remote::read_process(self.pid, self.from, &mut self.bytes).unwrap_or(0);
    }
}

impl Stack for Remote {
    fn word(&mut self, addr: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.from)?).ok()?;
        if let Some(word) = self.bytes[..self.len].get(at..at + 8) {
            return Some(u64::from_le_bytes(word.try_into().ok()?));
        }
        let mut word = [0; 8];
        let got = sys::remote::read_process(self.pid, addr, &mut word).ok()?;
        (got == 8).then(|| u64::from_le_bytes(word))
    }
}

/// The tables of the process that is stepped.
struct Known {
    words: Vec<AtomicU32>,
    area: Area<PathBuf>,
    process: Process,
}

impl Known {
    fn new(pid: i32) -> Known {
        let words = (0..16 << 20).map(|_| AtomicU32::new(0)).collect();
        let mut known = Known { words, area: Area::default(), process: Process::read(pid as u32).unwrap() };
        known.refresh();
        known
    }

    fn refresh(&mut self) {
        let Ok(process) = Process::read(self.process.pid) else { return };
        self.process = process;
        let mut loaded = Vec::new();
        for module in &self.process.modules {
            if !self.area.has(&module.path) {
                let table = image_of(self.process.pid, module).and_then(|image| make(&image));
                assert!(self.area.add(&self.words, module.path.clone(), table.as_ref()));
            }
            for part in &module.exec {
                let range = part.range.start.0..part.range.end.0;
                loaded.push(Loaded { range, bias: module.bias.0, file: module.path.clone() });
            }
        }
        assert!(self.area.publish(&self.words, &loaded));
    }

    /// Where an address is, for people.
    fn name(&self, pc: u64) -> String {
        let Some(module) = self.process.module_at(Addr(pc)) else { return format!("{pc:#x}") };
        let at = module.image_addr(Addr(pc));
        let name = image_of(self.process.pid, module).and_then(|image| {
            let function = image.function_at(at)?;
            Some(format!("{}+{:#x}", function.name()?, at.0 - function.addr.0))
        });
        format!("{}:{} ({at})", module.file_name(), name.unwrap_or_default())
    }
}

fn image_of(pid: u32, module: &Module) -> Option<ElfImage> {
    if let Ok(image) = module.open(pid) {
        return Some(image);
    }
    let range = &module.exec.first()?.range;
    let mut bytes = vec![0; (range.end.0 - range.start.0) as usize];
    sys::remote::read_process(pid as i32, range.start.0, &mut bytes).ok()?;
    ElfImage::from_bytes(bytes).ok()
}

/// The true stack: where each return address lies, and what it is. Of a signal what was interrupted.
#[derive(Default)]
struct Truth(Vec<(u64, u64)>);

impl Truth {
    fn step(&mut self, before: &Regs, after: &Regs, top: u64) {
        while self.0.last().is_some_and(|(slot, _)| *slot < after.rsp) {
            self.0.pop();
        }
        let is_behind = top > before.rip && top <= before.rip + 15;
        if after.rsp == before.rsp.wrapping_sub(8) && is_behind && after.rip != before.rip {
            self.0.push((after.rsp, top));
        }
    }

    fn signal(&mut self, before: &Regs, after: &Regs, restorer: u64) {
        self.0.push((after.rsp + 8, before.rip));
        self.0.push((after.rsp, restorer));
    }

    fn frames(&self, pc: u64) -> Vec<u64> {
        let mut frames = vec![pc];
        frames.extend(self.0.iter().rev().map(|(_, ra)| *ra));
        frames
    }
}

#[derive(Default)]
struct Outcome {
    stacks: usize,
    wrong: usize,
    /// Right as far as they went, to code without an entry, or that no entry can describe: what starts programs, longjmp.
    short: usize,
    signals: usize,
    deepest: usize,
    /// Where it was wrong, with the walker's reason to end and an example.
    places: BTreeMap<String, usize>,
    stops: HashMap<u8, usize>,
}

fn registers(regs: &Regs) -> Registers {
    Registers::new(regs.rip, regs.rsp)
        .with(Reg::Rbp, regs.rbp)
        .with(Reg::Rbx, regs.rbx)
        .with(Reg::R12, regs.r12)
        .with(Reg::R13, regs.r13)
        .with(Reg::R14, regs.r14)
        .with(Reg::R15, regs.r15)
        .with(Reg::R10, regs.r10)
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of ours; the status is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Steps a program, and compares at each `each`th instruction.
fn run(program: &Path, arguments: &[&str], steps: usize, each: usize) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: a system call alone, between fork and exec.
    unsafe { command.pre_exec(|| ptrace::trace_me().map_err(|e| std::io::Error::from_raw_os_error(e.0))) };
    let mut child = command.spawn().unwrap();
    let pid = child.id() as i32;
    assert!(libc::WIFSTOPPED(wait(pid)));
    let mut known = Known::new(pid);
    let mut stack = Remote { pid, from: 0, bytes: vec![0; 1 << 10], len: 0 };
    let (mut truth, mut outcome) = (Truth::default(), Outcome::default());
    let mut before = ptrace::regs(pid).unwrap();
    let mut handler = None;
    for n in 0..steps {
        let signal = if handler.is_some() && n % SIGNAL_EVERY == 0 { libc::SIGUSR1 } else { 0 };
        ptrace::step(pid, signal).unwrap();
        let status = wait(pid);
        if !libc::WIFSTOPPED(status) {
            let _ = child.wait();
            return outcome;
        }
        let mut after = ptrace::regs(pid).unwrap();
        let is_own = libc::WSTOPSIG(status) == libc::SIGUSR1;
        // One that comes while its handler runs waits until that is over.
        let mut interrupted = (signal != 0 && handler == Some(after.rip)).then_some(before);
        if is_own {
            // The program's own, or one that had to wait.
            ptrace::step(pid, libc::SIGUSR1).unwrap();
            wait(pid);
            interrupted = Some(after);
            after = ptrace::regs(pid).unwrap();
            handler = Some(after.rip);
        }
        stack.at(after.rsp);
        let top = stack.word(after.rsp).unwrap_or(0);
        match interrupted {
            Some(interrupted) => {
                outcome.signals += 1;
                truth.signal(&interrupted, &after, top);
            }
            None => truth.step(&before, &after, top),
        }
        // mmap, mprotect, munmap: a system call leaves its next instruction in rcx.
        if matches!(before.rax, 9..=11) && after.rip == before.rip + 2 && after.rcx == after.rip {
            known.refresh();
        }
        if n % each == 0 {
            compare(&known, &truth, &after, &mut stack, &mut outcome);
        }
        before = after;
    }
    let _ = child.kill();
    let _ = child.wait();
    outcome
}

fn compare(known: &Known, truth: &Truth, regs: &Regs, stack: &mut Remote, outcome: &mut Outcome) {
    let mut frames = Vec::new();
    let tables = Tables::of(&known.words);
    let (_, stop) = walk(tables, registers(regs), stack, false, FRAMES_MAX, |_, pc| frames.push(pc));
    let mut wanted = truth.frames(regs.rip);
    let is_deep = wanted.len() > FRAMES_MAX;
    wanted.truncate(FRAMES_MAX);
    outcome.stacks += 1;
    outcome.deepest = outcome.deepest.max(wanted.len());
    *outcome.stops.entry(stop as u8).or_default() += 1;
    let is_right = frames == wanted && stop == if is_deep { Stop::Depth } else { Stop::Outermost };
    let same = frames.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
    if !is_right && matches!(stop, Stop::NoFrame | Stop::Unknown) && same == frames.len() {
        outcome.short += 1;
    } else if !is_right {
        outcome.wrong += 1;
        let at = known.name(frames.get(same.saturating_sub(1)).copied().unwrap_or(regs.rip));
        let inner = known.name(regs.rip);
        let what = format!(
            "{inner} ... {at}: {stop:?} with {} of {} frames, {same} right",
            frames.len(),
            wanted.len()
        );
        if outcome.places.len() < 40 || outcome.places.contains_key(&what) {
            *outcome.places.entry(what).or_default() += 1;
        }
    }
}

fn steps() -> usize {
    std::env::var("NANOPROBE_UNWIND_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(STEPS)
}

fn check(name: &str, outcome: &Outcome, is_signalled: bool) {
    let Outcome { stacks, wrong, short, signals, deepest, places, .. } = outcome;
    println!(
        "{name}: {stacks} stacks, {wrong} wrong, {short} short, {signals} signals, {deepest} frames at most"
    );
    places.iter().for_each(|(place, n)| println!("  {n} {place}"));
    assert!(*stacks > 1000 && *deepest > 8, "{name} was stepped");
    assert!(!is_signalled || *signals > 10, "{name} had signals");
    assert!(*short * 250 <= *stacks, "{name}: {short} of {stacks} end early");
    assert!(*wrong * 100_000 <= stacks * WRONG_IN_100_000, "{name}: {places:#?}");
}

#[test]
fn every_instruction_of_c_programs_of_many_shapes_has_its_true_stack() {
    let shapes: [&[&str]; 6] = [
        &["-O2", "-fomit-frame-pointer"],
        &["-O0", "-static"],
        &["-O3", "-march=x86-64-v3", "-fno-plt"],
        &["-O2", "-fno-omit-frame-pointer", "-static"],
        &["-Os", "-fno-pie", "-no-pie"],
        &["-O0"],
    ];
    let few = if std::env::var_os("NANOPROBE_UNWIND_STEPS").is_some() { shapes.len() } else { 2 };
    for flags in shapes.into_iter().take(few) {
        let program = build("gcc", "shapes.c", flags);
        check(&flags.concat(), &run(&program, &["2"], steps(), 1), true);
    }
}

#[test]
fn every_instruction_of_an_exception_has_its_true_stack() {
    let flags = ["-O2", "-static"];
    let program = build("g++", "throws.cc", &flags);
    check("throws", &run(&program, &["2"], steps(), 3), false);
}

/// Programs of the machine, by hand: `NANOPROBE_UNWIND_RUN="/usr/bin/python3.11 -c pass"`.
#[test]
#[ignore = "steps a program that is named"]
fn every_instruction_of_a_named_program_has_its_true_stack() {
    let line = std::env::var("NANOPROBE_UNWIND_RUN").expect("NANOPROBE_UNWIND_RUN names a command");
    let words: Vec<&str> = line.split(' ').collect();
    let outcome = run(Path::new(words[0]), &words[1..], steps(), 1);
    let seen: BTreeSet<_> = outcome.stops.iter().collect();
    println!("stops by reason: {seen:?}");
    check(&line, &outcome, false);
}
