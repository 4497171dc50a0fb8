//! Probes that the kernel places: rung 7.
//!
//! For:     sites where no jump fits.
//! State:   one table with a copy for each CPU, a program for each kind of action, a link for each file and program.
//! Context: control; a hit traps.
//! Keeps:   K1 hits of the process's own threads are counted, of no other process and of no forked child.
//!          K2 dropped, the breakpoints are out, also if the controller is killed.
//! Checked: testkit `kernel`.
//! Source:  the kernel's multi-uprobe links (6.6). A perf event alone counts one thread, and makes clone(2) fail in
//!          the target if threads inherit it (seen on 6.18).
//!
//! What stays: the kernel's page for displaced instructions, `[uprobes]`, is mapped until the process ends.

use crate::arena::possible_cpus;
use crate::descriptor::owned;
use crate::site::{Action, Consumer, Missed, SitePlan};
use image::Mapping;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use sys::Errno;
use sys::bpf::{add_one, helper, instruction};

/// Entry of the table that every hit adds one to, before its action.
const ENTERED: u32 = 0;

/// Sites of one process under kernel uprobes.
#[derive(Debug)]
pub(crate) struct KernelProbes {
    counts: OwnedFd,
    cpus: usize,
    /// Each with the first of its entries.
    pub sites: Vec<(SitePlan, u32)>,
    links: Vec<OwnedFd>,
}

/// A site to be linked.
struct Wanted {
    site: SitePlan,
    /// The first of its entries.
    entry: u32,
    /// Where it is in its file.
    offset: u64,
}

impl KernelProbes {
    /// Puts probes on `sites`; those that the kernel refuses come back with the reason.
    pub fn open(
        pid: i32,
        mappings: &[Mapping],
        sites: Vec<SitePlan>,
    ) -> (Option<KernelProbes>, Vec<(SitePlan, Missed)>) {
        let entries = 1 + sites.iter().map(SitePlan::cells).sum::<u32>();
        let counts = match owned(sys::bpf::create_percpu_array(entries)) {
            Ok(counts) => counts,
            Err(errno) => {
                let why = Missed::Kernel(not_allowed(errno));
                return (None, sites.into_iter().map(|site| (site, why.clone())).collect());
            }
        };
        let (sites_in, links) = (Vec::new(), Vec::new());
        let mut probes = KernelProbes { counts, cpus: possible_cpus(), sites: sites_in, links };
        let mut missed = Vec::new();
        let mut groups: BTreeMap<(String, Option<u32>), Vec<Wanted>> = BTreeMap::new();
        let mut next = ENTERED + 1;
        for site in sites {
            match place(pid, mappings, &site) {
                Some((path, offset)) => {
                    let cells = site.cells();
                    let wanted = Wanted { entry: next, offset, site };
                    groups.entry((path, register(&wanted.site))).or_default().push(wanted);
                    next += cells;
                }
                None => missed.push((site, Missed::Kernel("its file is not mapped there".into()))),
            }
        }
        for ((path, register), group) in groups {
            probes.add(pid, &path, register, group, &mut missed);
        }
        let any = !probes.sites.is_empty();
        (any.then_some(probes), missed)
    }

    /// All sites of a file in one link; if the kernel refuses it, each by itself, to find out which.
    fn add(
        &mut self,
        pid: i32,
        path: &str,
        register: Option<u32>,
        group: Vec<Wanted>,
        missed: &mut Vec<(SitePlan, Missed)>,
    ) {
        let program = sys::bpf::load_uprobes_program(&program(self.counts.as_raw_fd(), register));
        let refused = match owned(program) {
            Err(errno) => errno,
            Ok(program) => match link(&program, path, &group, pid) {
                Ok(link) => {
                    self.links.push(link);
                    self.sites.extend(group.into_iter().map(|w| (w.site, w.entry)));
                    return;
                }
                Err(errno) => errno,
            },
        };
        if group.len() == 1 {
            missed.extend(group.into_iter().map(|w| (w.site, Missed::Kernel(not_allowed(refused)))));
            return;
        }
        for one in group {
            self.add(pid, path, register, vec![one], missed);
        }
    }

    /// Hits that have entered the kernel's program.
    pub fn entered(&self) -> u64 {
        self.read(ENTERED)
    }

    /// The sum of one entry over all CPUs.
    pub fn read(&self, entry: u32) -> u64 {
        let mut values = vec![0u64; self.cpus];
        // SAFETY: the descriptor is of the array that `open` made, and `values` has an element for each CPU that this
        // machine may ever have.
        let read = unsafe { sys::bpf::read_percpu_array(self.counts.as_raw_fd(), entry, &mut values) };
        if read.is_ok() { values.iter().sum() } else { 0 }
    }

    /// Takes all breakpoints out; counts stay readable.
    pub fn close(&mut self) {
        self.links.clear();
    }
}

/// The file that holds the site, by a name that the kernel finds, and the site's offset in it.
fn place(pid: i32, mappings: &[Mapping], site: &SitePlan) -> Option<(String, u64)> {
    let addr = site.addr();
    let mapping = mappings.iter().find(|m| m.range.start.0 <= addr && addr < m.range.end.0)?;
    mapping.file.as_ref()?;
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.range.start.0, mapping.range.end.0);
    Some((path, mapping.offset.0 + (addr - mapping.range.start.0)))
}

/// The register whose histogram is made; none: a count.
fn register(site: &SitePlan) -> Option<u32> {
    site.consumers().find_map(|c| match c {
        Consumer::Log2Histogram { register } => Some(register),
        _ => None,
    })
}

/// Whether the kernel's program can do this.
pub(crate) fn can(action: &Action) -> bool {
    match action {
        Action::Count => true,
        Action::Consumers(list) => {
            matches!(list.as_slice(), [Consumer::Count | Consumer::Log2Histogram { .. }])
        }
    }
}

fn link(program: &OwnedFd, path: &str, group: &[Wanted], pid: i32) -> Result<OwnedFd, Errno> {
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    let offsets: Vec<u64> = group.iter().map(|w| w.offset).collect();
    let cookies: Vec<u64> = group.iter().map(|w| u64::from(w.entry)).collect();
    owned(sys::bpf::link_uprobes(program.as_raw_fd(), &path, &offsets, &cookies, pid))
}

/// Adds one to entry `ENTERED` and to the site's: its cookie, and for a histogram as many on as the register has
/// binary digits.
fn program(map: i32, register: Option<u32>) -> Vec<u64> {
    let mut code = vec![
        instruction(0xbf, 6, 1, 0, 0), // r6 = registers
        instruction(0x85, 0, 0, 0, helper::GET_ATTACH_COOKIE),
        instruction(0xbf, 7, 0, 0, 0), // r7 = r0
        instruction(0xb7, 0, 0, 0, ENTERED as i32),
    ];
    code.extend(add_one(map));
    if let Some(register) = register {
        code.push(instruction(0x79, 1, 6, register as i16, 0)); // r1 = the register
        code.push(instruction(0x15, 1, 0, (6 * 5 + 1) as i16, 0)); // if r1 == 0, skip all
        for bits in [32, 16, 8, 4, 2, 1] {
            code.extend([
                instruction(0xbf, 2, 1, 0, 0),    // r2 = r1
                instruction(0x77, 2, 0, 0, bits), // r2 >>= bits
                instruction(0x15, 2, 0, 2, 0),    // if r2 == 0, skip two
                instruction(0x07, 7, 0, 0, bits), // r7 += bits
                instruction(0xbf, 1, 2, 0, 0),    // r1 = r2
            ]);
        }
        code.push(instruction(0x07, 7, 0, 0, 1)); // r7 += 1
    }
    code.push(instruction(0xbf, 0, 7, 0, 0)); // r0 = r7
    code.extend(add_one(map));
    code.push(instruction(0xb7, 0, 0, 0, 0)); // r0 = 0
    code.push(instruction(0x95, 0, 0, 0, 0)); // exit
    code
}

fn not_allowed(errno: Errno) -> String {
    match errno {
        Errno::EPERM | Errno::EACCES => "kernel uprobes take root, or CAP_BPF and CAP_PERFMON".into(),
        Errno::ENOSYS => "this kernel has no bpf(2)".into(),
        other => format!("the kernel refuses a uprobe there: {other}"),
    }
}
