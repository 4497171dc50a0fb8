//! Probes that the kernel places: rung 7.
//!
//! For:     sites where no jump fits.
//! State:   counts with a copy for each CPU, open calls, a ring; a program for each kind of action, a link for each file and program.
//! Context: control; a hit traps.
//! Keeps:   K1 hits of the process's own threads are counted, of no other process and of no forked child.
//!          K2 dropped, the breakpoints are out, also if the controller is killed: the last to hold a link is a file
//!             system that ends with us, so that a thread of the kernel's ends the link. One that is being killed cannot
//!             write the process's memory any more: its breakpoints would stay ("failed to unregister, leaking uprobe").
//!          K3 a breakpoint is placed in a stop of ours, where no other nanoprobe writes a jump, and only where none is.
//!          K4 a function whose calls or returns are wanted is served at its entry and all exits, or at none.
//! Checked: testkit `kernel`, `crowd`; on AArch64 scripts/aarch64-live --kernel.
//! Source:  the kernel's multi-uprobe links (6.6). A perf event alone counts one thread, and makes clone(2) fail in
//!          the target if threads inherit it (seen on 6.18).
//!
//! What stays: the kernel's page for displaced instructions, `[uprobes]`, is mapped until the process ends.
//!
//! - [`exec`] programs that it runs once, for their result
//! - [`links`] links of the kernel's
//! - [`program`] the programs that it runs at a hit
//! - [`records`] what they tell of calls as they happen
//! - [`script`] scripts that run there as a whole
//! - [`stray`] breakpoints that nobody owns

use crate::arch;
use crate::facts::calls::{Event, OpenCalls};
use crate::facts::descriptor::owned;
use crate::facts::site::{Consumer, Missed, SitePlan, Whole};
use crate::find::memory::Memory;
use crate::patch::chain::{self, Breakpoint, Others};
use crate::patch::pages::Pages;
use image::Mapping;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use sys::Errno;
use sys::bpf::Places;
use wire::KernelSite;

pub(crate) mod exec;
mod links;
mod program;
mod records;
pub(crate) mod script;
pub(crate) mod stray;

use links::{Links, file_place, link, path_of};
use program::{ENTERED, FIRST, Kind, Maps, NO_ROOM, UNWOUND};
use records::Records;

/// Calls that may be open at a time.
const OPEN_MAX: u32 = 1 << 16;

/// Sites of one process under kernel uprobes.
#[derive(Debug)]
pub(crate) struct KernelProbes {
    pid: i32,
    counts: OwnedFd,
    /// Calls that have begun.
    open: OwnedFd,
    /// For `trace`.
    records: Option<Records>,
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
    /// What its program is told.
    cookie: u64,
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
        if !sys::bpf::has_uprobe_links() {
            let why =
                Missed::Kernel("this kernel has no links of programs to uprobes: they take Linux 6.6".into());
            return (None, sites.into_iter().map(|site| (site, why.clone())).collect());
        }
        let entries = FIRST + sites.iter().map(SitePlan::cells).sum::<u32>();
        let made = Tables::make(entries, sites.iter().any(|site| matches!(Kind::of(site), Kind::Trace(_))));
        let Tables { counts, open, records } = match made {
            Ok(tables) => tables,
            Err(errno) => {
                let why = Missed::Kernel(not_allowed(errno));
                return (None, sites.into_iter().map(|site| (site, why.clone())).collect());
            }
        };
        let mut missed = Vec::new();
        let mut wanted: BTreeMap<(String, Kind), Vec<Wanted>> = BTreeMap::new();
        for (site, (entry, cookie)) in numbered(sites) {
            match place(pid, mappings, &site) {
                Some((path, offset)) => {
                    let one = Wanted { entry, offset, cookie, site };
                    wanted.entry((path, Kind::of(&one.site))).or_default().push(one);
                }
                None => missed.push((site, Missed::Kernel("its file is not mapped there".into()))),
            }
        }
        let ring = records.as_ref().map_or(-1, Records::fd);
        let maps = Maps { counts: counts.as_raw_fd(), open: open.as_raw_fd(), ring };
        let mut groups = Vec::new();
        for ((path, kind), wanted) in wanted {
            let program = sys::bpf::load_uprobes_program(&program::program(maps, kind));
            match owned(program) {
                Ok(program) => groups.push(Group { path, program, wanted }),
                Err(errno) => {
                    let why = Missed::Kernel(not_allowed(errno));
                    missed.extend(wanted.into_iter().map(|w| (w.site, why.clone())));
                }
            }
        }
        drop_incomplete(&mut groups, &mut missed);
        let any = !groups.is_empty();
        let (sites, own, links) = (Vec::new(), Vec::new(), Links::new());
        let cpus = percpu::possible_cpus() as usize;
        let probes = KernelProbes { pid, counts, open, records, cpus, sites, own, groups, links };
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
        std::os::unix::fs::FileExt::write_all_at(&nop, &arch::NOPS, 0).ok()?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let program = self.groups.first()?.program.as_raw_fd();
        let us = sys::getpid().cast_signed();
        let link = owned(sys::bpf::link_uprobes(program, &path, &Places::new(&[0], &[0]), us, false)).ok()?;
        Some([link, file])
    }

    /// Puts the breakpoints in, in a stop; sites where that cannot be come back with the reason.
    pub fn link(
        &mut self,
        memory: &Memory,
        pages: &mut Pages<'_>,
        others: &Others,
    ) -> Vec<(SitePlan, Missed)> {
        let mut missed = Vec::new();
        let mut groups = std::mem::take(&mut self.groups);
        let mut shared = BTreeSet::new();
        for group in &mut groups {
            for wanted in std::mem::take(&mut group.wanted) {
                let (addr, original) = (wanted.site.addr(), &wanted.site.original);
                match chain::check_for_kernel(memory, pages, others, (addr, original)) {
                    Err(why) => {
                        missed.push((wanted.site, why));
                        continue;
                    }
                    Ok(Breakpoint::Shared) => drop(shared.insert(addr)),
                    Ok(Breakpoint::Ours) => {}
                }
                group.wanted.push(wanted);
            }
        }
        drop_incomplete(&mut groups, &mut missed);
        // One that is shared with a nanoprobe goes with the last of them; another's may stay.
        let others = if shared.is_empty() { BTreeSet::new() } else { stray::others(memory) };
        let all = groups.iter().flat_map(|group| &group.wanted);
        let ours = all.filter(|w| !shared.contains(&w.site.addr()) || others.contains(&w.site.addr()));
        self.own.extend(ours.map(Wanted::record));
        for group in groups {
            self.add(group, &mut missed);
        }
        // What the kernel refuses only now takes all back: a function is served whole or not at all.
        let broken = incomplete(missed.iter().map(|(site, _)| site));
        if self.sites.iter().any(|(site, _)| site.wholes().any(|whole| broken.contains(&whole))) {
            self.links = Links::new();
            let taken_back = std::mem::take(&mut self.sites);
            missed.extend(taken_back.into_iter().map(|(site, _)| (site, Missed::Incomplete)));
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
        let cookies: Vec<u64> = wanted.iter().map(|w| w.cookie).collect();
        self.links.add(link(program, path, &offsets, &cookies, self.pid)?);
        Ok(())
    }

    /// Hits that have entered the kernel's program.
    pub fn entered(&self) -> u64 {
        self.read(ENTERED)
    }

    /// What became of timed calls that did not return.
    pub fn open_calls(&self) -> OpenCalls {
        // SAFETY: the descriptor is of the table that `prepare` made.
        let inside = unsafe { sys::bpf::count_keys(self.open.as_raw_fd(), OPEN_MAX as usize) };
        OpenCalls { unwound: self.read(UNWOUND), inside: inside as u64, no_room: self.read(NO_ROOM) }
    }

    /// Events written and lost so far.
    pub fn events(&self) -> (u64, u64) {
        let each = self.sites.iter().flat_map(|(site, entry)| {
            let traces = site.consumers().filter(|c| matches!(c, Consumer::Trace { .. })).count() as u32;
            (0..traces).map(move |n| entry + n * (wire::TRACE_LOST + 1))
        });
        each.fold((0, 0), |(written, lost), entry| {
            (written + self.read(entry), lost + self.read(entry + wire::TRACE_LOST))
        })
    }

    /// Takes events out of the ring, in the order in which they were written.
    pub fn take_events(&self, ns_per_tick: u64, take: &mut dyn FnMut(Event)) {
        if let Some(records) = &self.records {
            records.take(ns_per_tick, take);
        }
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

/// Each site with the first of its entries and its cookie: calls have their function's, at each of its ends.
fn numbered(sites: Vec<SitePlan>) -> Vec<(SitePlan, (u32, u64))> {
    let mut next = FIRST;
    let mut functions = BTreeMap::new();
    let entries: Vec<u32> = sites
        .iter()
        .map(|site| {
            let entry = next;
            next += site.cells();
            functions.extend(site.opens().map(|function| (function, entry)));
            entry
        })
        .collect();
    let of = |(site, entry): (SitePlan, u32)| {
        let timed = site.consumers().find_map(Consumer::function);
        let entry = timed.and_then(|function| functions.get(&function).copied()).unwrap_or(entry);
        let traced = site.consumers().find_map(|c| match c {
            Consumer::Trace { function, .. } => Some(function),
            _ => None,
        });
        let function = timed.or(traced).unwrap_or(0);
        (site, (entry, u64::from(entry) | u64::from(function) << 32))
    };
    sites.into_iter().zip(entries).map(of).collect()
}

/// Takes out the sites of functions of which another one is missed.
fn drop_incomplete(groups: &mut Vec<Group>, missed: &mut Vec<(SitePlan, Missed)>) {
    let broken = incomplete(missed.iter().map(|(site, _)| site));
    for group in groups.iter_mut() {
        let is_broken = |w: &Wanted| w.site.wholes().any(|whole| broken.contains(&whole));
        let (dropped, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut group.wanted).into_iter().partition(is_broken);
        group.wanted = kept;
        missed.extend(dropped.into_iter().map(|w| (w.site, Missed::Incomplete)));
    }
    groups.retain(|group| !group.wanted.is_empty());
}

/// What would not be seen whole without these sites.
fn incomplete<'a>(missed: impl Iterator<Item = &'a SitePlan>) -> BTreeSet<Whole> {
    missed.flat_map(SitePlan::wholes).collect()
}

/// What the programs write to.
struct Tables {
    counts: OwnedFd,
    open: OwnedFd,
    records: Option<Records>,
}

impl Tables {
    fn make(entries: u32, is_traced: bool) -> Result<Tables, Errno> {
        let counts = owned(sys::bpf::create_percpu_array(entries))?;
        let open = owned(sys::bpf::create_hash(OPEN_MAX))?;
        let records = if is_traced { Some(Records::make()?) } else { None };
        Ok(Tables { counts, open, records })
    }
}

fn not_allowed(errno: Errno) -> String {
    match errno {
        Errno::EPERM | Errno::EACCES => "kernel uprobes take root, or CAP_BPF and CAP_PERFMON".into(),
        Errno::ENOSYS => "this kernel has no bpf(2)".into(),
        other => format!("the kernel refuses a uprobe there: {other}"),
    }
}
