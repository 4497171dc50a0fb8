//! From specifications to sites.
//!
//! For:     `count`, `hist`, `list`, `explain`.
//! State:   none of its own: files are read once each.
//! Context: control; touches nothing.
//! Keeps:   P1 one site for one address, however many names and specifications lead to it.
//!          P2 no two sites share a byte.
//! Checked: testkit `shapes`, `counting`.
//!
//! - [`site`] one match, one site: which jump stands there, or why none
//! - [`calls`] the sites where a function is left
//! - [`consumer`] what is called at a hit, and whether the code allows it
//! - [`no_jump`] why no jump can stand at a site
//! - [`puns`] pages for jumps that can lead to some addresses only
//! - [`images`] files that were read, and who jumps where in them
//! - [`ifunc`] which implementation of an ifunc runs
//! - [`pace`] long work that somebody waits for
//! - [`explain`] how each site would be probed, for `explain`
//! - [`coverage`] how much of a file can be

mod calls;
mod consumer;
mod coverage;
mod explain;
mod ifunc;
mod images;
mod no_jump;
mod pace;
pub(crate) mod puns;
mod site;

pub use coverage::{FileCoverage, coverage};
pub use explain::{Explained, explain};
pub use images::Images;
pub use pace::{Amount, Pace, Progress};
pub use site::{len_under_kernel, misrun_by_kernel};

use crate::facts::error::Broken;
use crate::facts::ported;
use crate::facts::site::SitePlan;
use crate::find::memory::Memory;
use crate::find::process;
use image::lookup::{LookupError, find_file, find_module};
use image::select::Selected;
use image::spec::Place;
use image::{ElfImage, ImageAddr, ImageError, Mark, Module, NoMatch, Process, Reason, Spec, When, select};
use images::Loaded;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use text::ground::codes;

/// Why a specification leads nowhere.
#[derive(Debug)]
#[non_exhaustive]
pub enum PlanError {
    /// The library or program was not found.
    Lookup(Box<Spec>, LookupError),
    /// A file cannot be read.
    Image(ImageError),
    /// Nothing has the name.
    NoMatch(Box<Spec>, Box<NoMatch>),
    /// What has the name cannot be probed: (name, why).
    AllRefused(Vec<(String, String)>),
    /// The process cannot be looked at.
    Process(Broken),
    /// Whoever waits for it asked to end.
    Stopped,
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlanError::Lookup(_, e) => write!(f, "{e}"),
            PlanError::Image(e) => write!(f, "{e}"),
            PlanError::NoMatch(_, e) => write!(f, "{e}"),
            PlanError::AllRefused(list) => match list.as_slice() {
                [(name, why)] => write!(f, "{name} cannot be probed: {why}"),
                [(name, why), ..] => {
                    write!(f, "none of {} matches can be probed; {name}: {why}", list.len())
                }
                [] => write!(f, "nothing can be probed"),
            },
            PlanError::Process(e) => write!(f, "{e}"),
            PlanError::Stopped => write!(f, "stopped before anything was touched"),
        }
    }
}

impl std::error::Error for PlanError {}

/// What a histogram is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Hits, by the compiled-in counter.
    Count,
    /// Hits, by a handler of the general path.
    CountByHandler,
    /// Programs, which the caller puts where this plan has counts: at each hook of a site, which may have several, and at
    /// another address than its jump (`SitePlan::hook_addr`). A session runs none at sites of [`Rung::Kernel`](crate::Rung): these
    /// say where the kernel's own programs can.
    Program,
    /// Hits by stack.
    CountStack,
    /// A histogram of the n-th argument.
    HistogramOfArgument(usize),
    /// A histogram of what a function returns.
    HistogramOfReturn,
    /// Durations of calls.
    Latency,
    /// Each call as it happens.
    Trace {
        /// With the stack that led to it.
        has_stacks: bool,
    },
    /// Each hit waits for us; for the dynamic linker's mark.
    Ring,
    /// Each hit says which thread it is and waits for us; for execve.
    RingBeforeExec,
}

/// A site that cannot have a probe.
#[derive(Clone, Debug)]
pub struct RefusedSite {
    /// What it is called.
    pub name: String,
    /// Which file.
    pub module: String,
    /// Address in the image.
    pub addr: u64,
    /// Why.
    pub why: String,
}

/// Everything that the specifications lead to.
#[derive(Debug, Default)]
pub struct Plan {
    /// Sites to arm.
    pub sites: Vec<SitePlan>,
    /// Sites that match and cannot be armed.
    pub refused: Vec<RefusedSite>,
    /// Addresses in the process of implementations of ifuncs, of which the loader has chosen others.
    pub unchosen: BTreeSet<u64>,
}

/// One function or address that a specification matches, for `list`.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// The file that it is in.
    pub path: String,
    /// Address in the image.
    pub addr: u64,
    /// Bytes of the function, 0 if unknown.
    pub size_bytes: u64,
    /// Other names of the same address.
    pub aliases: Vec<String>,
    /// Why it would be left out.
    pub left_out: Option<String>,
}

/// Resolves `specs` against a live process and places every match.
pub fn plan(pid: i32, specs: &[Spec], verb: Verb) -> Result<Plan, PlanError> {
    plan_with(&mut Images::default(), pid, specs, verb)
}

/// The same with files that earlier plans have read.
pub fn plan_with(images: &mut Images, pid: i32, specs: &[Spec], verb: Verb) -> Result<Plan, PlanError> {
    let asked: Vec<(&Spec, Verb)> = specs.iter().map(|spec| (spec, verb)).collect();
    plan_each(images, pid, &asked)
}

/// The same with what is wanted of each; no two sites overlap.
pub fn plan_each(images: &mut Images, pid: i32, asked: &[(&Spec, Verb)]) -> Result<Plan, PlanError> {
    let _whole = images.pace.whole();
    let planned = plan_here(images, pid, asked);
    // What is not found in a process that is over is not found since it is over.
    planned.map_err(|error| match error {
        PlanError::Stopped => error,
        _ if process::is_ending(pid) => PlanError::Process(Broken::Gone { pid }),
        _ => error,
    })
}

fn plan_here(images: &mut Images, pid: i32, asked: &[(&Spec, Verb)]) -> Result<Plan, PlanError> {
    for (_, verb) in asked {
        let ported = match verb {
            Verb::CountStack | Verb::Trace { has_stacks: true } => ported::check(ported::STACKS),
            _ => Ok(()),
        };
        ported.map_err(PlanError::Process)?;
    }
    let process = Process::read(pid as u32).map_err(PlanError::Image)?;
    let memory = Memory::open(pid).map_err(PlanError::Process)?;
    let mut planner = Planner { process: &process, memory: &memory, known: images, images: BTreeMap::new() };
    let mut placed = Placed::default();
    let mut found = Vec::new();
    for (spec, verb) in asked {
        let refused_before = placed.refused.len();
        let matches = planner.resolve(spec, &mut placed)?;
        if matches.is_empty() && placed.refused.len() == refused_before {
            return Err(planner.nothing(spec));
        }
        found.extend(matches.into_iter().map(|wanted| (wanted, spec.when, *verb)));
    }
    planner.read(&found)?;
    let work = planner.known.pace.begin("placing probes".into(), Amount::Places(found.len() as u64));
    for (wanted, when, verb) in &found {
        if !work.go_on(1) {
            return Err(PlanError::Stopped);
        }
        planner.place(wanted, *when, *verb, &mut placed);
    }
    drop(work);
    let sites = placed.sites.into_values().collect();
    let plan = Plan { sites, refused: placed.refused, unchosen: placed.unchosen };
    if plan.sites.is_empty() {
        let all = plan.refused.into_iter().map(|r| (r.name, r.why)).collect();
        return Err(PlanError::AllRefused(all));
    }
    Ok(plan)
}

/// What `specs` would match, without a process or in one.
pub fn list(pid: Option<i32>, specs: &[Spec]) -> Result<Vec<Listed>, PlanError> {
    let process = pid.map(|p| Process::read(p as u32).map_err(PlanError::Image)).transpose()?;
    let mut listed = Vec::new();
    for spec in specs {
        let lookup = |e| PlanError::Lookup(Box::new(spec.clone()), e);
        let image = match &process {
            Some(process) => {
                let module = find_module(&spec.library, process).map_err(lookup)?;
                module.open(process.pid).map_err(PlanError::Image)?
            }
            None => images::open(&find_file(&spec.library).map_err(lookup)?).map_err(PlanError::Image)?,
        };
        let selection = select(spec, &image);
        if selection.selected.is_empty() && selection.refused.is_empty() {
            return Err(no_match(spec, &image));
        }
        listed.extend(selection.selected.iter().map(|s| listing(&image, s)));
        listed.extend(selection.refused.iter().map(|r| Listed {
            name: r.name.map_or_else(|| r.addr.to_string(), |n| n.text.to_string()),
            path: image.path().display().to_string(),
            addr: r.addr.0,
            size_bytes: 0,
            aliases: Vec::new(),
            left_out: Some(r.reason.to_string()),
        }));
    }
    Ok(listed)
}

fn listing(image: &ElfImage, selected: &Selected<'_>) -> Listed {
    let name = name_of(selected);
    let names = selected.function.map_or(&[][..], |f| f.names.as_slice());
    let aliases = names.iter().map(|n| n.text.to_string()).filter(|n| *n != name).collect();
    Listed {
        name,
        path: image.path().display().to_string(),
        addr: selected.addr.0,
        size_bytes: selected.function.map_or(0, |f| f.size_bytes),
        aliases,
        left_out: None,
    }
}

fn no_match(spec: &Spec, image: &ElfImage) -> PlanError {
    match NoMatch::explain(spec, image) {
        Some(why) => PlanError::NoMatch(Box::new(spec.clone()), Box::new(why)),
        None => {
            let marks: Vec<String> =
                image.marks().iter().map(|m| format!("{}:{}", m.provider, m.name)).collect();
            let why = match (&spec.place, marks.as_slice()) {
                (Place::Mark(_), []) => "the file has no USDT marks".into(),
                (Place::Mark(_), all) => format!("no such mark; there are: {}", all.join(", ")),
                _ => "no code at this address".into(),
            };
            PlanError::AllRefused(vec![(spec.text.clone(), why)])
        }
    }
}

/// `function`, `function+0x12` or the bare address.
fn name_of(selected: &Selected<'_>) -> String {
    if let Some(mark) = &selected.mark {
        return mark.full_name();
    }
    let function = selected.function;
    let base = selected.name.map(|n| image::demangle(&n.text).into_owned());
    let base = base.or_else(|| function.and_then(|f| f.name()).map(str::to_owned));
    let Some(base) = base else { return format!("{}", selected.addr) };
    let start = function.map_or(selected.addr.0, |f| f.addr.0);
    match selected.addr.0 - start {
        0 => base,
        offset => format!("{base}+{offset:#x}"),
    }
}

/// What has been placed so far.
#[derive(Default)]
struct Placed {
    sites: BTreeMap<u64, SitePlan>,
    refused: Vec<RefusedSite>,
    unchosen: BTreeSet<u64>,
    /// Bytes under jumps: start to end, in the process.
    taken: BTreeMap<u64, u64>,
    /// Functions whose calls are timed.
    functions: u32,
}

impl Placed {
    fn insert(&mut self, site: SitePlan) {
        for range in [Some(site.placement.range()), site.placement.island_patch()].into_iter().flatten() {
            self.taken.insert(range.start.wrapping_add(site.bias), range.end.wrapping_add(site.bias));
        }
        self.sites.insert(site.addr(), site);
    }

    /// A hook of a site stands before the instruction at this address.
    fn is_probed(&self, addr: u64) -> bool {
        let has_it = |site: &SitePlan| (0..site.actions.len()).any(|hook| site.hook_addr(hook) == addr);
        let is_behind_pad = |site: &SitePlan| site.placement.pad > 0 && site.addr() == addr;
        let before = self.sites.range(..=addr).next_back();
        before.is_some_and(|(_, site)| has_it(site) || is_behind_pad(site)) || self.behind_pad(addr).is_some()
    }

    /// The site whose jump stands behind the landing pad at this address.
    fn behind_pad(&self, addr: u64) -> Option<&SitePlan> {
        let behind = self.sites.range(addr..addr.saturating_add(u8::MAX.into())).map(|(_, site)| site);
        behind.into_iter().find(|site| site.placement.pad > 0 && site.hook_addr(0) == addr)
    }

    fn is_taken(&self, range: Range<u64>, bias: u64) -> bool {
        let (start, end) = (range.start.wrapping_add(bias), range.end.wrapping_add(bias));
        self.taken.range(..end).next_back().is_some_and(|(_, e)| *e > start)
    }
}

/// Something that matched, in one module of the process.
struct Match {
    module: usize,
    addr: u64,
    function: Option<Range<u64>>,
    name: String,
    mark: Option<Mark>,
    /// The specification names it, and not a pattern that fits many.
    is_named: bool,
}

struct Planner<'p> {
    process: &'p Process,
    memory: &'p Memory,
    known: &'p mut Images,
    images: BTreeMap<usize, Rc<Loaded>>,
}

impl<'p> Planner<'p> {
    fn module(&self, index: usize) -> &'p Module {
        &self.process.modules[index]
    }

    fn load(&mut self, index: usize) -> Result<&Loaded, PlanError> {
        if !self.images.contains_key(&index) {
            let loaded = self.known.load(self.process.pid, self.module(index))?;
            self.images.insert(index, loaded);
        }
        Ok(&self.images[&index])
    }

    /// Reads who jumps where in each file: around a few functions that are probed at one place, else in all of it, since
    /// who sees a call end asks about its parts elsewhere too.
    fn read(&mut self, found: &[(Match, When, Verb)]) -> Result<(), PlanError> {
        let mut functions: BTreeMap<usize, Option<Vec<Range<u64>>>> = BTreeMap::new();
        for (wanted, when, verb) in found {
            let is_one = *when == When::Before && !matches!(verb, Verb::Latency | Verb::Trace { .. });
            let function = wanted.function.clone().filter(|f| is_one && f.contains(&wanted.addr));
            let known = functions.entry(wanted.module).or_insert_with(|| Some(Vec::new()));
            *known = known.take().zip(function).map(|(mut known, function)| {
                known.push(function);
                known
            });
        }
        for (index, functions) in functions {
            let module = &self.process.modules[index];
            let read = self.known.read(module, &self.images[&index], functions.as_deref())?;
            self.images.insert(index, read);
        }
        Ok(())
    }

    fn find(&self, spec: &Spec) -> Result<usize, PlanError> {
        let lookup = |e| PlanError::Lookup(Box::new(spec.clone()), e);
        let module = find_module(&spec.library, self.process).map_err(lookup)?;
        Ok(self.process.modules.iter().position(|m| std::ptr::eq(m, module)).unwrap_or(0))
    }

    fn resolve(&mut self, spec: &Spec, placed: &mut Placed) -> Result<Vec<Match>, PlanError> {
        let index = self.find(spec)?;
        self.load(index)?;
        let module = self.module(index);
        let selection = select(spec, &self.images[&index].image);
        let ifuncs = ifunc::resolvers(&selection);
        let chosen = self.choices(index, &ifuncs);
        let loaded = &self.images[&index];
        let selection = select(spec, &loaded.image);
        let mut found: Vec<Match> = Vec::new();
        let is_named = spec.is_exact();
        for s in &selection.selected {
            let choice = s.ifunc.and_then(|f| Some((f, *chosen.get(&f.addr.0)?)));
            // Of an ifunc's implementations only the one counts that the loader chose, by the ifunc's name.
            let name = match choice {
                Some((_, addr)) if addr != s.addr.0 => {
                    placed.unchosen.insert(s.addr.0.wrapping_add(module.bias.0));
                    continue;
                }
                Some((ifunc, _)) => ifunc.name().map_or_else(|| name_of(s), str::to_owned),
                None => name_of(s),
            };
            let function = s.function.map(|f| f.range().start.0..f.range().end.0);
            found.push(Match {
                module: index,
                addr: s.addr.0,
                function,
                name,
                mark: s.mark.clone(),
                is_named,
            });
        }
        for refused in &selection.refused {
            let name = refused.name.map_or_else(|| refused.addr.to_string(), |n| n.text.to_string());
            let choice = match refused.reason {
                Reason::Ifunc { resolver } => chosen.get(&resolver.0).copied(),
                _ => None,
            };
            let Some(addr) = choice else {
                let (addr, why) = (refused.addr.0, refused.reason.to_string());
                let module = module.path.display().to_string();
                placed.refused.push(RefusedSite { name, module, addr, why });
                continue;
            };
            let function = loaded.image.function_at(ImageAddr(addr));
            let function = function.map(|f| f.range().start.0..f.range().end.0);
            found.push(Match { module: index, addr, function, name, mark: None, is_named });
        }
        Ok(found)
    }

    /// Places one match, or refuses it; a function whose calls are timed has several sites.
    fn place(&self, wanted: &Match, when: When, verb: Verb, placed: &mut Placed) {
        let addr = wanted.addr.wrapping_add(self.module(wanted.module).bias.0);
        let is_known = match when {
            When::Before => placed.is_probed(addr),
            // Whoever sees its calls sees them end.
            When::Return => {
                let begun = placed.sites.get(&addr).or_else(|| placed.behind_pad(addr));
                begun.is_some_and(|s| s.opens().is_some())
                    || placed.sites.values().any(|s| s.exit_of == Some(addr))
            }
        };
        if is_known || (verb == Verb::Program && when == When::Before && self.share(wanted, verb, placed)) {
            return;
        }
        let sites = match (verb, when) {
            (Verb::Latency | Verb::Trace { .. }, When::Before) => self.calls(wanted, verb, placed),
            (Verb::Latency | Verb::Trace { .. }, When::Return) => {
                Err("a call is seen from its entry to its return: write u: and not ur:".into())
            }
            (_, When::Return) => self.returns(wanted, verb, placed),
            (_, When::Before) => self.one(wanted, verb, placed).map(|site| vec![site]),
        };
        match sites {
            Ok(sites) => sites.into_iter().for_each(|site| placed.insert(site)),
            Err(why) => {
                let module = self.module(wanted.module).path.display().to_string();
                placed.refused.push(RefusedSite {
                    name: wanted.name.clone(),
                    module,
                    addr: wanted.addr,
                    why,
                });
            }
        }
    }

    fn nothing(&mut self, spec: &Spec) -> PlanError {
        match self.find(spec).and_then(|i| self.load(i).map(|l| no_match(spec, &l.image))) {
            Ok(error) | Err(error) => error,
        }
    }
}
