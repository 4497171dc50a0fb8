//! From specifications to sites.
//!
//! For:     `count`, `hist`, `list`, `explain`.
//! State:   images and their flow, read once each.
//! Context: control; touches nothing.
//! Keeps:   P1 one site for one address, however many names and specifications lead to it.
//!          P2 no two sites share a byte.
//! Checked: testkit `shapes`, `counting`.

mod calls;
mod consumer;
mod coverage;
mod explain;

pub use coverage::{FileCoverage, coverage};
pub use explain::{Explained, explain};

use crate::error::Broken;
use crate::memory::Memory;
use crate::site::{Action, SitePlan};
use crate::world::Haste;
use crate::{kernel, puns};
use consumer::{check_faults, check_stack, consumer};
use image::lookup::{LookupError, find_file, find_module};
use image::select::{Selected, chosen_implementation};
use image::spec::Place;
use image::{ElfImage, ImageAddr, ImageError, Mark, Module, NoMatch, Process, Reason, Spec, When, select};
use insn::{Asked, Code, Flow, Placement, Pun, Refusal, place};
use std::collections::BTreeMap;
use std::ops::Range;
use text::JUMP_LEN;

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
    /// A histogram of the n-th argument.
    HistogramOfArgument(usize),
    /// A histogram of what a function returns.
    HistogramOfReturn,
    /// Durations of calls.
    Latency,
    /// Each call as it happens.
    Trace,
    /// Each hit waits for us; for the dynamic linker's mark.
    Ring,
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

/// One image with all that placing needs.
struct Loaded {
    image: ElfImage,
    flow: Flow,
}

impl Loaded {
    fn new(image: ElfImage) -> Loaded {
        let mut starts: Vec<u64> = image.functions().iter().map(|f| f.addr.0).collect();
        starts.sort_unstable();
        starts.dedup();
        let pointers: Vec<u64> = image.code_pointers().iter().map(|a| a.0).collect();
        let codes = codes(&image);
        let read = |table: &insn::Table| {
            let at = ImageAddr(table.at);
            let found = match &table.within {
                None => image.rel32_table_targets(at),
                Some(r) => {
                    let within = ImageAddr(r.start)..ImageAddr(r.end);
                    image.rel32_label_targets(at, ImageAddr(table.base), &within)
                }
            };
            found.iter().map(|a| a.0).collect()
        };
        let flow = Flow::analyse(&codes, &starts, &pointers, &read);
        let flow = if image.is_go() { flow.with_parked_threads() } else { flow };
        Loaded { image, flow }
    }
}

fn codes(image: &ElfImage) -> Vec<Code<'_>> {
    image.executable_segments().map(|(s, bytes)| Code { base: s.range.start.0, bytes }).collect()
}

/// Resolves `specs` against a live process and places every match.
pub fn plan(pid: i32, specs: &[Spec], verb: Verb) -> Result<Plan, PlanError> {
    let _haste = Haste::begin();
    let process = Process::read(pid as u32).map_err(PlanError::Image)?;
    let memory = Memory::open(pid).map_err(PlanError::Process)?;
    let mut planner = Planner { process: &process, memory: &memory, images: BTreeMap::new() };
    let mut placed = Placed::default();
    for spec in specs {
        let refused_before = placed.refused.len();
        let found = planner.resolve(spec, &mut placed.refused)?;
        if found.is_empty() && placed.refused.len() == refused_before {
            return Err(planner.nothing(spec));
        }
        for wanted in found {
            planner.place(&wanted, spec.when, verb, &mut placed);
        }
    }
    let plan = Plan { sites: placed.sites.into_values().collect(), refused: placed.refused };
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
            None => ElfImage::open(find_file(&spec.library).map_err(lookup)?).map_err(PlanError::Image)?,
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
}

struct Planner<'p> {
    process: &'p Process,
    memory: &'p Memory,
    images: BTreeMap<usize, Loaded>,
}

impl<'p> Planner<'p> {
    fn module(&self, index: usize) -> &'p Module {
        &self.process.modules[index]
    }

    fn load(&mut self, index: usize) -> Result<&Loaded, PlanError> {
        if !self.images.contains_key(&index) {
            let image = self.module(index).open(self.process.pid).map_err(PlanError::Image)?;
            self.images.insert(index, Loaded::new(image));
        }
        Ok(&self.images[&index])
    }

    fn find(&self, spec: &Spec) -> Result<usize, PlanError> {
        let lookup = |e| PlanError::Lookup(Box::new(spec.clone()), e);
        let module = find_module(&spec.library, self.process).map_err(lookup)?;
        Ok(self.process.modules.iter().position(|m| std::ptr::eq(m, module)).unwrap_or(0))
    }

    fn resolve(&mut self, spec: &Spec, left_out: &mut Vec<RefusedSite>) -> Result<Vec<Match>, PlanError> {
        let index = self.find(spec)?;
        self.load(index)?;
        let module = self.module(index);
        let selection = select(spec, &self.images[&index].image);
        let ifuncs = ifuncs(&selection);
        let chosen = self.choices(index, &ifuncs);
        let loaded = &self.images[&index];
        let selection = select(spec, &loaded.image);
        let mut found: Vec<Match> = Vec::new();
        for s in &selection.selected {
            let choice = s.ifunc.and_then(|f| Some((f, *chosen.get(&f.addr.0)?)));
            // Of an ifunc's implementations only the one counts that the loader chose, by the ifunc's name.
            let name = match choice {
                Some((_, addr)) if addr != s.addr.0 => continue,
                Some((ifunc, _)) => ifunc.name().map_or_else(|| name_of(s), str::to_owned),
                None => name_of(s),
            };
            let function = s.function.map(|f| f.range().start.0..f.range().end.0);
            found.push(Match { module: index, addr: s.addr.0, function, name, mark: s.mark.clone() });
        }
        for refused in &selection.refused {
            let name = refused.name.map_or_else(|| refused.addr.to_string(), |n| n.text.to_string());
            let choice = match refused.reason {
                Reason::Ifunc { resolver } => chosen.get(&resolver.0).copied(),
                _ => None,
            };
            let Some(addr) = choice else {
                let (addr, why) = (refused.addr.0, refused.reason.to_string());
                left_out.push(RefusedSite { name, module: module.path.display().to_string(), addr, why });
                continue;
            };
            let function = loaded.image.function_at(ImageAddr(addr));
            let function = function.map(|f| f.range().start.0..f.range().end.0);
            found.push(Match { module: index, addr, function, name, mark: None });
        }
        Ok(found)
    }

    /// For each ifunc's resolver, the implementation that the loader chose in this process, where a slot
    /// tells.
    fn choices(&self, owner: usize, resolvers: &[u64]) -> BTreeMap<u64, u64> {
        let mut choices = BTreeMap::new();
        if resolvers.is_empty() {
            return choices;
        }
        let (module, image) = (self.module(owner), &self.images[&owner].image);
        let modules = self.process.modules.iter().enumerate();
        let others: Vec<(&Module, ElfImage)> = modules
            .filter(|(i, _)| *i != owner)
            .filter_map(|(_, m)| Some((m, m.open(self.process.pid).ok()?)))
            .collect();
        let others: Vec<(&Module, &ElfImage)> = others.iter().map(|(m, i)| (*m, i)).collect();
        let read = |at: image::Addr| {
            let mut word = [0u8; 8];
            self.memory.read(at.0, &mut word).ok()?;
            Some(u64::from_le_bytes(word))
        };
        for resolver in resolvers {
            let Some(ifunc) = image.function_at(ImageAddr(*resolver)) else { continue };
            if let Some(chosen) = chosen_implementation(ifunc, (module, image), &others, read) {
                choices.insert(*resolver, chosen.0);
            }
        }
        choices
    }

    /// Places one match, or refuses it; a function whose calls are timed has several sites.
    fn place(&self, wanted: &Match, when: When, verb: Verb, placed: &mut Placed) {
        let addr = wanted.addr.wrapping_add(self.module(wanted.module).bias.0);
        let is_known = match when {
            When::Before => placed.sites.contains_key(&addr),
            When::Return => placed.sites.values().any(|s| s.exit_of == Some(addr)),
        };
        if is_known {
            return;
        }
        let sites = match (verb, when) {
            (Verb::Latency | Verb::Trace, When::Before) => self.calls(wanted, verb, placed),
            (Verb::Latency | Verb::Trace, When::Return) => {
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

    fn one(&self, wanted: &Match, verb: Verb, placed: &Placed) -> Result<SitePlan, String> {
        let action = match consumer(verb, When::Before, &self.images[&wanted.module].image, wanted)? {
            None => Action::Count,
            Some(consumer) => Action::Consumers(vec![consumer]),
        };
        let stack = match action {
            Action::Count => Ok(()),
            Action::Consumers(_) => check_stack(&self.images[&wanted.module].image, wanted),
        };
        let placement = match stack.and_then(|()| self.placement(wanted, placed)) {
            Err(why) if kernel::can(&action) => self.by_kernel(wanted, placed, why)?,
            other => other.map_err(|why| why.to_string())?,
        };
        self.site_plan(wanted, wanted.name.clone(), placement, vec![action])
    }

    /// The probe placed by the kernel, if that is what `why` leaves.
    fn by_kernel(&self, wanted: &Match, placed: &Placed, why: NoJump) -> Result<Placement, String> {
        let bias = self.module(wanted.module).bias.0;
        let is_taken = placed.is_taken(wanted.addr..wanted.addr + 1, bias);
        match why {
            // A link of ours does not raise its semaphore.
            why if wanted.mark.is_some() => Err(why.to_string()),
            NoJump::Refused(Refusal::NoRung { why_not, .. }) if !is_taken => {
                Ok(Placement::by_kernel(wanted.addr, why_not))
            }
            NoJump::MayFault(_) | NoJump::TooLittleStack if !is_taken => {
                Ok(Placement::by_kernel(wanted.addr, Vec::new()))
            }
            other => Err(other.to_string()),
        }
    }

    /// Where the jump to a probe before the match's instruction stands.
    fn placement(&self, wanted: &Match, placed: &Placed) -> Result<Placement, NoJump> {
        let loaded = &self.images[&wanted.module];
        let bias = self.module(wanted.module).bias.0;
        let asked = Asked {
            site: wanted.addr,
            function: wanted.function.clone(),
            next_function: None,
            taken: &|range| placed.is_taken(range, bias),
            room: &|pun| self.has_room(wanted, pun),
        };
        let placement = place(&loaded.flow, &codes(&loaded.image), &asked).map_err(NoJump::Refused)?;
        check_faults(&loaded.image, wanted, &placement)?;
        Ok(placement)
    }

    fn has_room(&self, wanted: &Match, pun: Pun) -> bool {
        let module = self.module(wanted.module);
        let reach = module_range(&self.images[&wanted.module].image, module);
        puns::has_room(&self.process.mappings, reach, pun, module.bias.0)
    }

    fn site_plan(
        &self,
        wanted: &Match,
        name: String,
        placement: Placement,
        actions: Vec<Action>,
    ) -> Result<SitePlan, String> {
        let module = self.module(wanted.module);
        let image = &self.images[&wanted.module].image;
        let bytes = |at: u64, len: usize| image.bytes(ImageAddr(at), len).map(<[u8]>::to_vec);
        let original = bytes(placement.site, usize::from(placement.patch_len));
        let island = placement.island.map_or(Some(Vec::new()), |at| bytes(at, JUMP_LEN));
        let (Some(original), Some(island_original)) = (original, island) else {
            return Err("the file ends under the jump".into());
        };
        Ok(SitePlan {
            name,
            module: module.path.display().to_string(),
            module_range: module_range(image, module),
            bias: module.bias.0,
            placement,
            original,
            island_original,
            exit_of: None,
            semaphore: wanted.mark.as_ref().and_then(|m| Some(module.bias.0.wrapping_add(m.semaphore?.0))),
            block: None,
            actions,
        })
    }

    fn nothing(&mut self, spec: &Spec) -> PlanError {
        match self.find(spec).and_then(|i| self.load(i).map(|l| no_match(spec, &l.image))) {
            Ok(error) | Err(error) => error,
        }
    }
}

/// Why no jump can stand at a site.
#[derive(Debug)]
enum NoJump {
    Refused(Refusal),
    /// The instruction that may fault, in Go code.
    MayFault(u64),
    /// A Go function that does not make sure of its stack.
    TooLittleStack,
}

impl std::fmt::Display for NoJump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoJump::Refused(why) => f.write_str(&refusal(why)),
            NoJump::MayFault(at) => {
                write!(f, "{at:#x} may fault, and Go makes a panic of a fault at its own addresses only")
            }
            NoJump::TooLittleStack => {
                write!(f, "it is a Go function without a stack check: too little stack for a handler")
            }
        }
    }
}

/// A refusal in words, with what is left.
fn refusal(why: &Refusal) -> String {
    match why {
        Refusal::NoRung { .. } => format!("{why} (count and hist of u: can use rung 7, a kernel uprobe)"),
        other => other.to_string(),
    }
}

/// Addresses of all of the module that comes from its file. Not of the file's other mappings: a program may have mapped
/// itself once more, far away, to read its symbols.
fn module_range(image: &ElfImage, module: &Module) -> Range<u64> {
    const PAGE: u64 = 4096;
    let starts = image.segments().iter().map(|s| module.bias.addr(s.range.start).0 / PAGE * PAGE);
    let ends = image.segments().iter().map(|s| module.bias.addr(s.range.end).0.next_multiple_of(PAGE));
    let start = starts.min().unwrap_or_default();
    start..ends.max().unwrap_or(start)
}

/// The resolvers of the ifuncs that a selection has met.
fn ifuncs(selection: &image::Selection<'_>) -> Vec<u64> {
    let selected = selection.selected.iter().filter_map(|s| Some(s.ifunc?.addr.0));
    let refused = selection.refused.iter().filter_map(|r| match r.reason {
        Reason::Ifunc { resolver } => Some(resolver.0),
        _ => None,
    });
    let mut all: Vec<u64> = selected.chain(refused).collect();
    all.sort_unstable();
    all.dedup();
    all
}
