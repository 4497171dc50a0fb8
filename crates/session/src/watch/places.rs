//! Names for places in a process's code.
//!
//! For:     showing who made an access.
//! State:   the process's modules, read at the first question and again when an address is in none; open files.
//! Context: control.
//! Keeps:   L1 an address that is in no known function is told by its file and offset, or as a number.
//! Checked: testkit `watching`.

use super::touch::At;
use image::{Addr, ElfImage, Process};
use insn::accessor_before;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// No function whose code we decode is longer, in bytes.
const LONGEST: u64 = 1 << 20;
/// A process that maps and unmaps is read anew so often.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Places of one process.
#[derive(Debug)]
pub struct Places {
    pid: i32,
    process: Option<Process>,
    read_at: Option<Instant>,
    /// By where they are mapped; `None` for those that cannot be read.
    images: HashMap<u64, Option<ElfImage>>,
    /// Accessing instructions by where the processor stopped.
    accessors: HashMap<u64, Option<u64>>,
}

impl Places {
    /// Of a process that runs.
    pub fn new(pid: i32) -> Places {
        Places { pid, process: None, read_at: None, images: HashMap::new(), accessors: HashMap::new() }
    }

    /// `function+0x12` for an access; `after function+0x12` if the instruction before that cannot be told.
    pub fn of_access(&mut self, at: At) -> (u64, String) {
        let stop = match at {
            At::Instruction(ip) => return (ip, self.name(ip)),
            At::Behind(stop) => stop,
        };
        let known = self.accessors.get(&stop).copied();
        let start = known.unwrap_or_else(|| self.accessor(stop));
        self.accessors.insert(stop, start);
        match start {
            Some(ip) => (ip, self.name(ip)),
            None => (stop, format!("after {}", self.name(stop))),
        }
    }

    fn accessor(&mut self, stop: u64) -> Option<u64> {
        let (start, code) = self.code_to(stop)?;
        accessor_before(&code, start, stop)
    }

    /// The code of the function that holds or ends at `to`, from its start to some bytes behind that.
    fn code_to(&mut self, to: u64) -> Option<(u64, Vec<u8>)> {
        // What ends there may have been the last instruction of its function.
        let holder = match self.holder(to.checked_sub(1)?).filter(|h| h.is_function) {
            Some(before) => before,
            None => self.holder(to).filter(|h| h.is_function)?,
        };
        let len = to.checked_sub(holder.start).filter(|len| *len < LONGEST)? as usize;
        let mut code = vec![0; len + 15];
        let got = sys::remote::read_process(self.pid, holder.start, &mut code).ok()?;
        code.truncate(got);
        Some((holder.start, code))
    }

    fn name(&mut self, ip: u64) -> String {
        self.holder(ip).map_or_else(|| format!("{ip:#x}"), |holder| holder.place(ip))
    }

    fn holder(&mut self, ip: u64) -> Option<Holder> {
        let is_known = self.process.as_ref().is_some_and(|p| p.module_at(Addr(ip)).is_some());
        if !is_known && self.read_at.is_none_or(|at| at.elapsed() > READ_AGAIN) {
            self.process = Process::read(self.pid as u32).ok();
            self.read_at = Some(Instant::now());
        }
        let module = self.process.as_ref()?.module_at(Addr(ip))?;
        let image = self.images.entry(module.bias.0).or_insert_with(|| module.open(self.pid as u32).ok());
        let function = image.as_ref().and_then(|image| {
            let function = image.function_at(module.image_addr(Addr(ip)))?;
            let start = module.addr(function.range().start).0;
            Some(Holder { start, name: function.name()?.to_owned(), is_function: true })
        });
        let file =
            || Holder { start: module.bias.0, name: module.file_name().to_owned(), is_function: false };
        Some(function.unwrap_or_else(file))
    }
}

/// A function that holds an address, or else a file.
struct Holder {
    /// Where it starts in the process.
    start: u64,
    name: String,
    is_function: bool,
}

impl Holder {
    fn place(&self, address: u64) -> String {
        format!("{}+{:#x}", self.name, address.wrapping_sub(self.start))
    }
}
