//! Names of addresses in traced processes, also of those that have ended.
//!
//! For:     `usym`, `func`, `ustack`.
//! State:   of each process its files, held open, and the stacks that its hits saw.
//! Context: control.
//! Keeps:   N1 a name is asked of the file that was mapped at the attach.
//! Checked: testkit `scripts`, `stacks`.

use crate::names::{Files, Frame, Names as Addresses};
use lang::run::{self, Symbols};
use session::SeenStacks;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// The processes of a run.
#[derive(Default)]
pub struct Names {
    /// By the number that the process has for itself, and for us.
    processes: RefCell<Vec<(i32, Known)>>,
    files: Files,
    has_lines: bool,
    /// Stacks of samples, and whose, by number.
    kept: RefCell<Vec<Rc<Kept>>>,
    /// The number of each: a sample must not look at all.
    numbers: RefCell<HashMap<Rc<Kept>, usize>>,
}

/// A process and a stack.
type Kept = (u32, Vec<u64>);

/// Numbers of stacks of samples have this above them: no family has it.
const SAMPLED: u64 = 0xffff_ffff;

/// One of them.
struct Known {
    /// Its number among those that share the maps.
    family: u64,
    addresses: Addresses,
    stacks: Option<SeenStacks>,
}

impl Names {
    /// Of no process yet; with or without source lines and inlined functions.
    pub fn new(has_lines: bool) -> Names {
        Names { has_lines, ..Names::default() }
    }

    /// A process was entered. Its files are opened at once: it may be gone when a name is asked.
    pub fn add(&self, pid: i32, family: u64, stacks: Option<SeenStacks>) {
        let known = Known { family, addresses: Addresses::hold(pid, &self.files), stacks };
        self.processes.borrow_mut().push((pid, known));
    }

    /// A process that was sampled: its files are opened, if it is still there.
    pub fn meet(&self, pid: u32) {
        let is_known = self.processes.borrow().iter().any(|(known, _)| *known == pid as i32);
        if !is_known {
            self.add(pid as i32, SAMPLED, None);
        }
    }

    /// A walk has met something new: files are opened while they are there.
    pub fn look_for_names(&self) {
        self.processes.borrow_mut().iter_mut().for_each(|(_, known)| known.addresses.look());
    }

    /// Asks the programs that the process has run for the only answer; `None`: none has one, or they differ.
    fn only<T: PartialEq>(&self, pid: u32, ask: impl Fn(&mut Known) -> Option<T>) -> Option<T> {
        let mut processes = self.processes.borrow_mut();
        let is_known = processes.iter().any(|(known, _)| *known == pid as i32);
        // Its number in its own namespace may be another, or it is a forked child's.
        let of = processes.iter_mut().filter(|(known, _)| !is_known || *known == pid as i32);
        let mut answers: Vec<T> = of.filter_map(|(_, known)| ask(known)).collect();
        answers.dedup();
        answers.pop().filter(|_| answers.is_empty())
    }

    /// The frames of a stack that was kept.
    fn sampled(&self, number: usize) -> Vec<run::Frame> {
        let kept = self.kept.borrow();
        let Some((pid, stack)) = kept.get(number).map(Rc::as_ref) else { return Vec::new() };
        let mut processes = self.processes.borrow_mut();
        let known = processes.iter_mut().find(|(known, _)| *known == *pid as i32);
        let of = |(_, known): &mut (i32, Known)| {
            let addresses = &mut known.addresses;
            addresses.learn(std::iter::once(stack), self.has_lines);
            addresses.with_addrs(stack).map(|(addr, frame)| told(addresses, addr, frame)).collect()
        };
        known.map(of).unwrap_or_default()
    }
}

impl Symbols for Names {
    fn name(&self, pid: u32, addr: u64) -> Option<(String, u64)> {
        self.only(pid, |known| known.addresses.function(addr))
    }

    fn keep(&self, pid: u32, frames: &[u64]) -> u64 {
        self.meet(pid);
        let mut kept = self.kept.borrow_mut();
        let stack = Rc::new((pid, frames.to_vec()));
        let number = *self.numbers.borrow_mut().entry(stack).or_insert_with_key(|stack| {
            kept.push(stack.clone());
            kept.len() - 1
        });
        SAMPLED << 32 | number as u64
    }

    fn stack(&self, number: u64) -> Vec<run::Frame> {
        if number >> 32 == SAMPLED {
            return self.sampled(number as u32 as usize);
        }
        let mut processes = self.processes.borrow_mut();
        let of = |known: &mut Known| {
            let stack = known.stacks.as_ref()?.get(number as u32)?;
            let addresses = &mut known.addresses;
            addresses.learn(std::iter::once(&stack), self.has_lines);
            let found = addresses.with_addrs(&stack).map(|(addr, frame)| told(addresses, addr, frame));
            Some(found.collect())
        };
        let known = processes.iter_mut().find(|(_, known)| known.family == number >> 32);
        known.and_then(|(_, known)| of(known)).unwrap_or_default()
    }
}

fn told(addresses: &Addresses, addr: u64, frame: &Frame) -> run::Frame {
    let (file, id) = addresses.file(addr).unzip();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let Frame { name, offset, source, is_inlined, is_file } = frame.clone();
    // An address in a file is written as tools write it.
    let name = match offset {
        Some(at) if is_file => format!("{name}+{at:#x}"),
        _ => name,
    };
    run::Frame {
        addr,
        name,
        offset: offset.filter(|_| !is_file),
        is_inlined,
        source,
        file,
        build_id: id.flatten().map(|(id, place)| (hex(id), place)),
    }
}
