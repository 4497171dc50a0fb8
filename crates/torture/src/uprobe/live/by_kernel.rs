//! Links that are the kernel's multi-uprobe links.
//!
//! For:     `torture uprobe --backend kernel`: the same load on what we rebuild.
//! State:   where each function is in its file.
//! Context: control; takes root.
//! Keeps:   N1 a link counts hits of one process, or of all.
//! Checked: `tests/uprobe_live.rs`, as root.
//! Source:  link_create of bpf(2), since Linux 6.6.

use super::library::Library;
use super::link::{Count, Kind, Link, NoLink, Placer, Probe, Whom, Wish};
use crate::uprobe::stressed::shared::{FUNCTIONS, LIBRARY_FUNCTIONS};
use image::ElfImage;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use sys::Errno;
use sys::bpf::{Places, add_one, helper, instruction};

/// A file with functions, and where they are in it.
struct Probed {
    path: CString,
    offsets: Vec<u64>,
}

impl Probed {
    fn of(path: &Path, name: &str, functions: usize) -> Result<Probed, String> {
        let image = ElfImage::open(path).map_err(|e| e.to_string())?;
        let mut offsets = vec![None; functions];
        for function in image.functions() {
            let name = function.name().and_then(|n| n.strip_prefix(name)?.parse::<usize>().ok());
            if let Some(slot) = name.and_then(|n| offsets.get_mut(n)) {
                *slot = image.file_offset(function.addr).map(|o| o.0);
            }
        }
        let offsets: Option<Vec<u64>> = offsets.into_iter().collect();
        let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        Ok(Probed { path, offsets: offsets.ok_or("not all functions are in the symbols")? })
    }
}

pub struct Kernel {
    pid: i32,
    program: Probed,
    library: Option<Probed>,
}

impl Kernel {
    pub fn new(pid: i32, library: Option<&Library>) -> Result<Kernel, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let library =
            library.map(|l| Probed::of(&l.path, "stress_lib_fn_", LIBRARY_FUNCTIONS)).transpose()?;
        Ok(Kernel { pid, program: Probed::of(&program, "stress_fn_", FUNCTIONS)?, library })
    }

    fn put(&self, wish: &Wish) -> Result<Uprobes, Errno> {
        let counts = owned(sys::bpf::create_percpu_array(wish.probes.len() as u32))?;
        let mut uprobes = Uprobes { counts, links: Vec::new(), probes: wish.probes.clone() };
        let file = match wish.whom {
            Whom::Library => self.library.as_ref().ok_or(Errno::ENOENT)?,
            _ => &self.program,
        };
        let pid = match wish.whom {
            Whom::Child(pid) => pid,
            _ if wish.everywhere => 0,
            _ => self.pid,
        };
        for is_return in [false, true] {
            let those = wish.probes.iter().zip(0u64..).filter(|(p, _)| p.is_return == is_return);
            let (offsets, cookies): (Vec<u64>, Vec<u64>) =
                those.map(|(p, n)| (file.offsets[p.function], n)).unzip();
            if offsets.is_empty() {
                continue;
            }
            let program = owned(sys::bpf::load_uprobes_program(&program(uprobes.counts.as_raw_fd())))?;
            let places = Places::new(&offsets, &cookies);
            let link = sys::bpf::link_uprobes(program.as_raw_fd(), &file.path, &places, pid, is_return);
            uprobes.links.push(owned(link)?);
        }
        Ok(uprobes)
    }
}

impl Placer for Kernel {
    fn link(&self, wish: &Wish) -> Result<Box<dyn Link>, NoLink> {
        match self.put(wish) {
            Ok(uprobes) => Ok(Box::new(uprobes)),
            Err(Errno::ESRCH) if matches!(wish.whom, Whom::Child(_)) => Err(NoLink::Gone),
            Err(errno) => Err(NoLink::Broken(errno.to_string())),
        }
    }

    fn stay(&self, functions: usize) -> Result<Box<dyn Link>, String> {
        let probes = (0..functions).map(|function| Probe { function, is_return: false }).collect();
        let wish = Wish { whom: Whom::Target, kind: Kind::Count, probes, everywhere: false };
        match self.put(&wish) {
            Ok(uprobes) => Ok(Box::new(uprobes)),
            Err(errno) => Err(format!("the kernel refuses uprobes (they take root): {errno}")),
        }
    }
}

/// Probes of the kernel; closed, they are out.
struct Uprobes {
    counts: OwnedFd,
    links: Vec<OwnedFd>,
    probes: Vec<Probe>,
}

impl Uprobes {
    fn read(&self, entry: u32) -> u64 {
        let mut values = vec![0u64; percpu::possible_cpus() as usize];
        // SAFETY: the descriptor is of the array that `put` made, and `values` has an element for each CPU that this
        // machine may ever have.
        let read = unsafe { sys::bpf::read_percpu_array(self.counts.as_raw_fd(), entry, &mut values) };
        if read.is_ok() { values.iter().sum() } else { 0 }
    }
}

impl Link for Uprobes {
    fn counts(&self) -> Vec<Count> {
        let count = |(p, n): (&Probe, u32)| Count {
            function: p.function,
            is_return: p.is_return,
            hits: self.read(n),
            children: None,
        };
        self.probes.iter().zip(0..).map(count).collect()
    }

    fn missed(&self) -> usize {
        0
    }

    fn detach(&mut self) -> Result<(), String> {
        // The kernel waits for programs that run.
        self.links.clear();
        Ok(())
    }
}

/// Adds one to the entry whose number is the cookie.
fn program(map: i32) -> Vec<u64> {
    let mut code = vec![instruction(0x85, 0, 0, 0, helper::GET_ATTACH_COOKIE)];
    code.extend(add_one(map));
    code.push(instruction(0xb7, 0, 0, 0, 0)); // r0 = 0
    code.push(instruction(0x95, 0, 0, 0, 0)); // exit
    code
}

fn owned(fd: Result<i32, Errno>) -> Result<OwnedFd, Errno> {
    // SAFETY: the call that gave the descriptor gave it to us alone.
    fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
