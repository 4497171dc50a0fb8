//! A program, stepped, and its stacks compared.

use crate::truth::Truth;
use core::sync::atomic::AtomicU32;
use image::{Addr, ElfImage, Module, Process};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use sys::ptrace::{self, Regs};
use unwind::{Area, FRAMES_MAX, Loaded, Reg, Registers, Stack, Stop, Tables, Way, make, walk};

/// How often a signal comes, once the program has a handler.
const SIGNAL_EVERY: usize = 61;

/// The stack of a stopped process: its whole mapping, which it cannot lose.
struct Remote {
    pid: i32,
    from: u64,
    bytes: Vec<u8>,
    len: usize,
    /// What the walk hung on; `None` once it has left a signal's frame.
    told: Option<Told>,
    /// As hits remember them.
    ways: Vec<(u64, u32, u32)>,
}

/// Few, so that each has several addresses.
const WAYS: usize = 61;

/// Words and registers.
#[derive(Clone, Default)]
struct Told(Vec<(u64, u64)>, Vec<(Reg, u64)>);

/// A walk that was remembered, and what it found.
type Remembered = (Told, Vec<u64>, Stop);

impl Remote {
    /// Reads ahead what a walk will want.
    fn at(&mut self, sp: u64) {
        self.from = sp & !7;
        self.len = sys::remote::read_process(self.pid, self.from, &mut self.bytes).unwrap_or(0);
    }

    /// The program has run on.
    fn forget(&mut self) {
        self.from = 0;
        self.len = 0;
    }
}

impl Stack for Remote {
    fn word(&mut self, addr: u64) -> Option<u64> {
        let ahead = addr.checked_sub(self.from).and_then(|at| self.bytes[..self.len].get(at as usize..));
        if let Some(word) = ahead.and_then(|bytes| bytes.first_chunk()) {
            return Some(u64::from_le_bytes(*word));
        }
        let mut word = [0; 8];
        let got = sys::remote::read_process(self.pid, addr, &mut word).ok()?;
        (got == 8).then(|| u64::from_le_bytes(word))
    }

    fn way(&mut self, pc: u64, tables: u32) -> Option<Way> {
        let (known, of, way) = self.ways[pc as usize % WAYS];
        (known == pc && of == tables).then_some(Way(way))
    }

    fn keep_way(&mut self, pc: u64, tables: u32, way: Way) {
        self.ways[pc as usize % WAYS] = (pc, tables, way.0);
    }

    fn switch(&mut self, _: u64) {
        self.told = None;
    }

    fn hangs_on(&mut self, addr: u64, value: u64) {
        if let Some(told) = &mut self.told {
            told.0.push((addr, value));
        }
    }

    fn hangs_on_register(&mut self, reg: Reg, value: u64) {
        if let Some(told) = &mut self.told {
            told.1.push((reg, value));
        }
    }
}

/// Numbers that look like chance, the same in each run.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }
}

/// The tables of the process that is stepped.
struct Known {
    words: Vec<AtomicU32>,
    area: Area<PathBuf>,
    process: Process,
    /// By address and stack pointer, as long as the tables are the same.
    walks: HashMap<(u64, u64), Remembered>,
    images: RefCell<HashMap<PathBuf, Rc<Option<ElfImage>>>>,
}

impl Known {
    fn new(pid: i32) -> Known {
        let words = (0..16 << 20).map(|_| AtomicU32::new(0)).collect();
        let mut known = Known {
            words,
            area: Area::default(),
            process: Process::read(pid as u32).unwrap(),
            walks: HashMap::new(),
            images: RefCell::default(),
        };
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
        self.walks.clear();
    }

    /// Whether a walk that was remembered would be taken for this one, and finds the same; remembers this one.
    fn remember(&mut self, regs: &Regs, stack: &mut Remote, frames: &[u64], stop: Stop) -> bool {
        let Some(told) = stack.told.take() else { return false };
        let at = (regs.rip, regs.rsp);
        let mut is_recalled = false;
        if let Some((Told(words, registers_told), found, why)) = self.walks.get(&at) {
            let has = |(reg, value): &(Reg, u64)| value_of(regs, *reg) == *value;
            is_recalled = registers_told.iter().all(has)
                && words.iter().all(|(addr, value)| stack.word(*addr) == Some(*value));
            assert!(
                !is_recalled || (found == frames && *why == stop),
                "{:#x}: {found:x?} {frames:x?}",
                regs.rip
            );
        }
        self.walks.insert(at, (told, frames.to_vec(), stop));
        is_recalled
    }

    /// The function that has it.
    fn function(&self, pc: u64) -> String {
        self.name(pc).split('+').next().unwrap_or_default().to_owned()
    }

    /// Where an address is, for people.
    fn name(&self, pc: u64) -> String {
        let Some(module) = self.process.module_at(Addr(pc)) else { return format!("{pc:#x}") };
        let at = module.image_addr(Addr(pc));
        let read = || Rc::new(image_of(self.process.pid, module));
        let image = Rc::clone(self.images.borrow_mut().entry(module.path.clone()).or_insert_with(read));
        let name = (*image).as_ref().and_then(|image| {
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

/// How much of a program is looked at.
#[derive(Clone, Copy)]
pub struct Stepping {
    /// Instructions that are stepped.
    pub steps: usize,
    /// Of so many one is compared, by chance.
    pub each: usize,
    pub is_go: bool,
}

#[derive(Default)]
pub struct Outcome {
    pub stacks: usize,
    pub wrong: usize,
    /// Right as far as they went, to code without an entry, or that no entry can describe: what starts programs, longjmp; in Go
    /// where it goes over to another stack.
    pub short: usize,
    pub signals: usize,
    /// Walks that could have been recalled from one before, and were the same.
    pub recalled: usize,
    pub deepest: usize,
    /// Where it was wrong, with the walker's reason to end and an example.
    pub places: BTreeMap<String, usize>,
    /// Where it ended early, by the last frame.
    pub ends: BTreeMap<String, usize>,
}

fn value_of(regs: &Regs, reg: Reg) -> u64 {
    match reg {
        Reg::Rsp => regs.rsp,
        Reg::Rbp => regs.rbp,
        Reg::Rbx => regs.rbx,
        Reg::R10 => regs.r10,
        Reg::R12 => regs.r12,
        Reg::R13 => regs.r13,
        Reg::R14 => regs.r14,
        Reg::R15 => regs.r15,
    }
}

fn registers(regs: &Regs) -> Registers {
    const OTHERS: [Reg; 7] = [Reg::Rbp, Reg::Rbx, Reg::R12, Reg::R13, Reg::R14, Reg::R15, Reg::R10];
    OTHERS
        .into_iter()
        .fold(Registers::new(regs.rip, regs.rsp), |known, reg| known.with(reg, value_of(regs, reg)))
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of ours; the status is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Steps a program, and compares at instructions that are chosen by chance.
pub fn run(program: &Path, arguments: &[&str], stepping: Stepping) -> Outcome {
    let mut command = Command::new(program);
    // Go: no signals that would stop it elsewhere, and no goroutine but ours on its first thread.
    command.env("GODEBUG", "asyncpreemptoff=1");
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: a system call alone, between fork and exec.
    unsafe { command.pre_exec(|| ptrace::trace_me().map_err(|e| std::io::Error::from_raw_os_error(e.0))) };
    let mut child = command.spawn().unwrap();
    let pid = child.id() as i32;
    assert!(libc::WIFSTOPPED(wait(pid)));
    let mut known = Known::new(pid);
    let mut stack =
        Remote { pid, from: 0, bytes: vec![0; 1 << 10], len: 0, told: None, ways: vec![(0, 0, 0); WAYS] };
    let (mut truth, mut outcome) = (Truth::of(stepping.is_go), Outcome::default());
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let mut before = ptrace::regs(pid).unwrap();
    let mut handler = None;
    for n in 0..stepping.steps {
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
        stack.forget();
        let top = match before.rsp.wrapping_sub(after.rsp) {
            0 => 0,
            _ => stack.word(after.rsp).unwrap_or(0),
        };
        match interrupted {
            Some(interrupted) => {
                outcome.signals += 1;
                truth.signal(&interrupted, &after, top);
            }
            None => truth.step(&before, &after, top, &mut |at| stack.word(at)),
        }
        // mmap, mprotect, munmap: a system call leaves its next instruction in rcx.
        if matches!(before.rax, 9..=11) && after.rip == before.rip + 2 && after.rcx == after.rip {
            known.refresh();
        }
        if chance.next().is_multiple_of(stepping.each as u64) {
            stack.at(after.rsp);
            compare(&mut known, &truth, &after, &mut stack, &mut outcome);
        }
        before = after;
    }
    let _ = child.kill();
    let _ = child.wait();
    outcome
}

fn compare(known: &mut Known, truth: &Truth, regs: &Regs, stack: &mut Remote, outcome: &mut Outcome) {
    let mut frames = Vec::new();
    stack.told = Some(Told::default());
    let tables = Tables::of(&known.words);
    let (_, stop) = walk(tables, registers(regs), stack, false, FRAMES_MAX, |_, pc| frames.push(pc));
    outcome.recalled += usize::from(known.remember(regs, stack, &frames, stop));
    let mut wanted = truth.frames(regs.rip);
    let is_deep = wanted.len() > FRAMES_MAX;
    wanted.truncate(FRAMES_MAX);
    outcome.stacks += 1;
    outcome.deepest = outcome.deepest.max(wanted.len());
    let is_right = frames == wanted && stop == if is_deep { Stop::Depth } else { Stop::Outermost };
    let same = frames.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
    // Go says that nobody has called what begins a thread; the one that begins the first has.
    let is_begun =
        || stop == Stop::Outermost && known.function(frames[same - 1]).ends_with(":runtime.mstart");
    let is_short = same == frames.len() && (matches!(stop, Stop::NoFrame | Stop::Unknown) || is_begun());
    if !is_right && is_short {
        outcome.short += 1;
        let last = known.function(frames[frames.len() - 1]);
        *outcome.ends.entry(format!("{last}: {stop:?}")).or_default() += 1;
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
