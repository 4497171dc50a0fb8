//! Names of addresses in traced processes, also of those that have ended.
//!
//! For:     `usym`, `func`.
//! State:   what was mapped when a process was entered; files that were read since.
//! Context: control.
//! Keeps:   N1 a name is asked of the file that was mapped at the attach, as long as it can be reached.
//! Checked: testkit `scripts`.

use image::{Addr, ElfImage, Process};
use lang::run::Symbols;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// The processes of a run.
#[derive(Default)]
pub struct Names {
    /// By the number that the process has for itself, and for us.
    processes: RefCell<Vec<(i32, Process)>>,
    images: RefCell<HashMap<PathBuf, Option<Rc<ElfImage>>>>,
}

impl Names {
    /// A process was entered. Its files are opened at once: it may be gone when a name is asked.
    pub fn add(&self, pid: i32, process: Process) {
        for module in &process.modules {
            let mut images = self.images.borrow_mut();
            if !images.contains_key(&module.path) {
                images.insert(module.path.clone(), module.open(process.pid).ok().map(Rc::new));
            }
        }
        self.processes.borrow_mut().push((pid, process));
    }

    /// The process looked at anew: it may have loaded something since.
    fn again(&self, pid: i32) -> Option<Process> {
        let process = Process::read(pid as u32).ok()?;
        for module in &process.modules {
            let mut images = self.images.borrow_mut();
            if !images.contains_key(&module.path) {
                images.insert(module.path.clone(), module.open(process.pid).ok().map(Rc::new));
            }
        }
        Some(process)
    }

    fn in_process(&self, process: &Process, addr: u64) -> Option<(String, u64)> {
        let module = process.module_at(Addr(addr))?;
        let images = self.images.borrow();
        let image = images.get(&module.path)?.as_ref()?;
        let at = module.image_addr(Addr(addr));
        let function = image.function_at(at)?;
        Some((image::demangle(function.name()?).into_owned(), at.0 - function.addr.0))
    }
}

impl Symbols for Names {
    fn name(&self, pid: u32, addr: u64) -> Option<(String, u64)> {
        let own = |known: &i32| *known == pid as i32;
        let mut processes = self.processes.borrow_mut();
        // Its number in its own namespace may be another.
        let known = processes.iter().rposition(|(known, _)| own(known)).or(processes.len().checked_sub(1))?;
        if let Some(found) = self.in_process(&processes[known].1, addr) {
            return Some(found);
        }
        let again = self.again(processes[known].0)?;
        processes[known].1 = again;
        self.in_process(&processes[known].1, addr)
    }
}
