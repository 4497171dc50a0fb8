//! Probes that the kernel places: rung 7.
//!
//! For:     sites where no jump fits.
//! State:   one table with a copy for each CPU, a program for each kind of action, a link for each file and program.
//! Context: control; a hit traps.
//! Keeps:   K1 hits of the process's own threads are counted, of no other process and of no forked child.
//!          K2 dropped, the breakpoints are out, also if the controller is killed: the last to hold a link is a file
//!             system that ends with us, so that a thread of the kernel's ends the link. One that is being killed cannot
//!             write the process's memory any more: its breakpoints would stay ("failed to unregister, leaking uprobe").
//!          K3 a breakpoint is placed in a stop of ours, where no other nanoprobe writes a jump, and only where none is.
//! Checked: testkit `kernel`, `crowd`.
//! Source:  the kernel's multi-uprobe links (6.6). A perf event alone counts one thread, and makes clone(2) fail in
//!          the target if threads inherit it (seen on 6.18).
//!
//! What stays: the kernel's page for displaced instructions, `[uprobes]`, is mapped until the process ends.
//!
//! - [`links`] links of the kernel's
//! - [`stray`] breakpoints that nobody owns

use crate::facts::descriptor::owned;
use crate::facts::site::{Consumer, Missed, SitePlan};
use crate::find::memory::Memory;
use crate::patch::chain::{self, Breakpoint};
use crate::patch::pages::Pages;
use image::Mapping;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use sys::Errno;
use sys::bpf::{add_one, helper, instruction};
use wire::KernelSite;

mod links;
pub(crate) mod stray;

use links::{Links, file_place, link, path_of};

/// Entry of the table that every hit adds one to, before its action.
const ENTERED: u32 = 0;

/// Sites of one process under kernel uprobes.
#[derive(Debug)]
pub(crate) struct KernelProbes {
    pid: i32,
    counts: OwnedFd,
    cpus: usize,
    /// Each with the first of its entries.
    pub sites: Vec<(SitePlan, u32)>,
    /// The records of those whose breakpoints come and go with us.
    own: Vec<KernelSite>,
    groups: Vec<Group>,
    links: Links,
}

/// Sites of one file that run one program.
#[derive(Debug)]
struct Group {
    path: String,
    program: OwnedFd,
    wanted: Vec<Wanted>,
}

/// A site to be linked.
#[derive(Debug)]
struct Wanted {
    site: SitePlan,
    /// The first of its entries.
    entry: u32,
    /// Where it is in its file.
    offset: u64,
}

impl Wanted {
    fn record(&self) -> KernelSite {
        KernelSite::new(self.site.addr(), self.offset, &self.site.original)
    }
}

impl KernelProbes {
    /// Makes all that needs no stop; sites that cannot be probed come back with the reason.
    pub fn prepare(
        pid: i32,
        mappings: &[Mapping],
        sites: Vec<SitePlan>,
    ) -> (Option<KernelProbes>, Vec<(SitePlan, Missed)>) {
        // The kernel knows whose hits to count by the memory of the first thread.
        if crate::find::process::living(pid) != pid {
            let why =
                Missed::Kernel("the process's first thread has ended, and kernel uprobes go by it".into());
            return (None, sites.into_iter().map(|site| (site, why.clone())).collect());
        }
        let entries = 1 + sites.iter().map(SitePlan::cells).sum::<u32>();
        let counts = match owned(sys::bpf::create_percpu_array(entries)) {
            Ok(counts) => counts,
            Err(errno) => {
                let why = Missed::Kernel(not_allowed(errno));
                return (None, sites.into_iter().map(|site| (site, why.clone())).collect());
            }
        };
        let mut missed = Vec::new();
        let mut wanted: BTreeMap<(String, Option<u32>), Vec<Wanted>> = BTreeMap::new();
        let mut next = ENTERED + 1;
        for site in sites {
            match place(pid, mappings, &site) {
                Some((path, offset)) => {
                    let cells = site.cells();
                    let one = Wanted { entry: next, offset, site };
                    wanted.entry((path, register(&one.site))).or_default().push(one);
                    next += cells;
                }
                None => missed.push((site, Missed::Kernel("its file is not mapped there".into()))),
            }
        }
        let mut groups = Vec::new();
        for ((path, register), wanted) in wanted {
            let program = sys::bpf::load_uprobes_program(&program(counts.as_raw_fd(), register));
            match owned(program) {
                Ok(program) => groups.push(Group { path, program, wanted }),
                Err(errno) => {
                    let why = Missed::Kernel(not_allowed(errno));
                    missed.extend(wanted.into_iter().map(|w| (w.site, why.clone())));
                }
            }
        }
        let any = !groups.is_empty();
        let (sites, own, links) = (Vec::new(), Vec::new(), Links::new());
        let probes =
            KernelProbes { pid, counts, cpus: percpu::possible_cpus() as usize, sites, own, groups, links };
        (any.then_some(probes), missed)
    }

    /// What is to be written into the process before [`KernelProbes::link`].
    pub fn records(&self) -> impl Iterator<Item = KernelSite> {
        let wanted = self.groups.iter().flat_map(|group| &group.wanted);
        wanted.map(Wanted::record)
    }

    /// Where each site lies that is still to be linked.
    pub fn waiting(&self) -> impl Iterator<Item = &SitePlan> {
        self.groups.iter().flat_map(|group| group.wanted.iter().map(|wanted| &wanted.site))
    }

    /// The kernel lets nobody fork while it places a breakpoint, which takes a grace period, unless it has just done so:
    /// who does it before the stop does not wait in it. Held until the stop is over.
    pub fn warm_up(&self) -> Option<[OwnedFd; 2]> {
        let file = owned(sys::memfd(c"nanoprobe-nop", 64)).ok()?;
        let nop = std::fs::File::from(file.try_clone().ok()?);
        std::os::unix::fs::FileExt::write_all_at(&nop, &[0x90; 64], 0).ok()?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let program = self.groups.first()?.program.as_raw_fd();
        let us = sys::getpid().cast_signed();
        let link = owned(sys::bpf::link_uprobes(program, &path, &[0], &[0], us)).ok()?;
        Some([link, file])
    }

    /// Puts the breakpoints in, in a stop; sites where that cannot be come back with the reason.
    pub fn link(&mut self, memory: &Memory, pages: &mut Pages<'_>) -> Vec<(SitePlan, Missed)> {
        let mut missed = Vec::new();
        for mut group in std::mem::take(&mut self.groups) {
            let mut free = Vec::new();
            for wanted in group.wanted {
                let (addr, original) = (wanted.site.addr(), &wanted.site.original);
                match chain::check_for_kernel(memory, pages, addr, original) {
                    Ok(breakpoint) => free.push((wanted, breakpoint)),
                    Err(why) => missed.push((wanted.site, why)),
                }
            }
            // One that is shared with a nanoprobe goes with the last of them; another's may stay.
            let is_shared = free.iter().any(|(_, breakpoint)| *breakpoint == Breakpoint::Shared);
            let others = if is_shared { stray::others(memory) } else { BTreeSet::new() };
            let ours = free.iter().filter(|(wanted, breakpoint)| {
                *breakpoint == Breakpoint::Ours || others.contains(&wanted.site.addr())
            });
            self.own.extend(ours.map(|(wanted, _)| wanted.record()));
            group.wanted = free.into_iter().map(|(wanted, _)| wanted).collect();
            self.add(group, &mut missed);
        }
        missed
    }

    /// All sites of a file in one link; if the kernel refuses it, each by itself, to find out which.
    fn add(&mut self, group: Group, missed: &mut Vec<(SitePlan, Missed)>) {
        let Group { path, program, wanted } = group;
        if wanted.is_empty() {
            return;
        }
        let Err(refused) = self.link_all(&path, &program, &wanted) else {
            return self.sites.extend(wanted.into_iter().map(|w| (w.site, w.entry)));
        };
        if wanted.len() == 1 {
            missed.extend(wanted.into_iter().map(|w| (w.site, Missed::Kernel(not_allowed(refused)))));
            return;
        }
        for one in wanted {
            match self.link_all(&path, &program, std::slice::from_ref(&one)) {
                Ok(()) => self.sites.push((one.site, one.entry)),
                Err(refused) => missed.push((one.site, Missed::Kernel(not_allowed(refused)))),
            }
        }
    }

    fn link_all(&mut self, path: &str, program: &OwnedFd, wanted: &[Wanted]) -> Result<(), Errno> {
        let offsets: Vec<u64> = wanted.iter().map(|w| w.offset).collect();
        let cookies: Vec<u64> = wanted.iter().map(|w| u64::from(w.entry)).collect();
        self.links.add(link(program, path, &offsets, &cookies, self.pid)?);
        Ok(())
    }

    /// Hits that have entered the kernel's program.
    pub fn entered(&self) -> u64 {
        self.read(ENTERED)
    }

    /// The sum of one entry over all CPUs.
    pub fn read(&self, entry: u32) -> u64 {
        let mut values = vec![0u64; self.cpus];
        // SAFETY: the descriptor is of the array that `prepare` made, and `values` has an element for each CPU that this
        // machine may ever have.
        let read = unsafe { sys::bpf::read_percpu_array(self.counts.as_raw_fd(), entry, &mut values) };
        if read.is_ok() { values.iter().sum() } else { 0 }
    }

    /// Takes all breakpoints out; counts stay readable. The addresses of those that are there all the same.
    pub fn close(&mut self, memory: &Memory) -> Vec<u64> {
        self.links = Links::default();
        stray::mend(memory, &self.own)
    }
}

/// The file that holds the site, by a name that the kernel finds, and the site's offset in it.
fn place(pid: i32, mappings: &[Mapping], site: &SitePlan) -> Option<(String, u64)> {
    let (mapping, offset) = file_place(mappings, site.addr())?;
    Some((path_of(pid, mapping), offset))
}

/// The register whose histogram is made; none: a count.
fn register(site: &SitePlan) -> Option<u32> {
    site.consumers().find_map(|c| match c {
        Consumer::Log2Histogram { register } => Some(register),
        _ => None,
    })
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
