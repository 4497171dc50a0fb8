//! From specifications to sites.
//!
//! For:     `count`, `hist`, `list`, `explain`.
//! State:   images and their flow, read once each.
//! Context: control; touches nothing.
//! Keeps:   P1 one site for one address, however many names and specifications lead to it.
//!          P2 no two sites share a byte.
//! Checked: testkit `shapes`, `counting`.

use crate::error::Broken;
use crate::memory::Memory;
use crate::site::{Action, Consumer, SitePlan};
use image::lookup::{LookupError, find_file, find_module};
use image::select::{Selected, chosen_implementation};
use image::{ElfImage, ImageAddr, ImageError, Module, NoMatch, Process, Reason, Spec, select};
use insn::{Asked, Code, Flow, Placement, Refusal, place};
use std::cell::RefCell;
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
        let read = |table: u64| image.rel32_table_targets(ImageAddr(table)).iter().map(|a| a.0).collect();
        let flow = Flow::analyse(&codes, &starts, &pointers, &read);
        Loaded { image, flow }
    }
}

fn codes(image: &ElfImage) -> Vec<Code<'_>> {
    image.executable_segments().map(|(s, bytes)| Code { base: s.range.start.0, bytes }).collect()
}

/// Resolves `specs` against a live process and places every match.
pub fn plan(pid: i32, specs: &[Spec], verb: Verb) -> Result<Plan, PlanError> {
    let process = Process::read(pid as u32).map_err(PlanError::Image)?;
    let memory = Memory::open(pid).map_err(PlanError::Process)?;
    let mut planner = Planner { process: &process, memory: &memory, images: BTreeMap::new() };
    let mut plan = Plan::default();
    let mut sites: BTreeMap<u64, SitePlan> = BTreeMap::new();
    let taken: RefCell<BTreeMap<u64, u64>> = RefCell::new(BTreeMap::new());
    for spec in specs {
        let before = (sites.len(), plan.refused.len());
        let found = planner.resolve(spec, &mut plan.refused)?;
        let had_any = !found.is_empty();
        for match_ in found {
            planner.place(match_, verb, &mut sites, &taken, &mut plan.refused);
        }
        if !had_any && plan.refused.len() == before.1 {
            return Err(planner.nothing(spec));
        }
    }
    plan.sites = sites.into_values().collect();
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
        None => PlanError::AllRefused(vec![(spec.text.clone(), "no code at this address".into())]),
    }
}

/// `function`, `function+0x12` or the bare address.
fn name_of(selected: &Selected<'_>) -> String {
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

/// Something that matched, in one module of the process.
struct Match {
    module: usize,
    addr: u64,
    function: Option<Range<u64>>,
    name: String,
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
            found.push(Match { module: index, addr: s.addr.0, function, name });
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
            found.push(Match { module: index, addr, function, name });
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

    fn place(
        &mut self,
        wanted: Match,
        verb: Verb,
        sites: &mut BTreeMap<u64, SitePlan>,
        taken: &RefCell<BTreeMap<u64, u64>>,
        refused: &mut Vec<RefusedSite>,
    ) {
        let module = self.module(wanted.module);
        let loaded = &self.images[&wanted.module];
        let bias = module.bias.0;
        let addr = wanted.addr.wrapping_add(bias);
        if sites.contains_key(&addr) {
            return;
        }
        let path = module.path.display().to_string();
        let mut refuse = |why: String| {
            let entry =
                RefusedSite { name: wanted.name.clone(), module: path.clone(), addr: wanted.addr, why };
            refused.push(entry);
        };
        let is_taken = |range: Range<u64>| {
            let (start, end) = (range.start.wrapping_add(bias), range.end.wrapping_add(bias));
            let before = taken.borrow().range(..end).next_back().map(|(_, e)| *e);
            before.is_some_and(|e| e > start)
        };
        let asked = Asked {
            site: wanted.addr,
            function: wanted.function.clone(),
            next_function: None,
            taken: &is_taken,
        };
        let codes = codes(&loaded.image);
        let placement = match place(&loaded.flow, &codes, &asked) {
            Ok(placement) => placement,
            Err(why) => return refuse(refusal(&why)),
        };
        if is_go_code(&loaded.image, &wanted)
            && let Some(insn) = placement.may_fault(GO_GOOD_REGISTERS.into())
        {
            let at = insn.addr;
            return refuse(format!(
                "{at:#x} may fault, and Go makes a panic of a fault at its own addresses only (rung 6, not in this version)"
            ));
        }
        let action = match action(verb, &loaded.image, &wanted) {
            Ok(action) => action,
            Err(why) => return refuse(why),
        };
        let bytes = |at: u64, len: usize| loaded.image.bytes(ImageAddr(at), len).map(<[u8]>::to_vec);
        let original = bytes(wanted.addr, usize::from(placement.patch_len));
        let island = placement.island.map_or(Some(Vec::new()), |at| bytes(at, JUMP_LEN));
        let (Some(original), Some(island_original)) = (original, island) else {
            return refuse("the file ends under the jump".into());
        };
        for range in [Some(placement.patch()), placement.island_patch()].into_iter().flatten() {
            taken.borrow_mut().insert(range.start.wrapping_add(bias), range.end.wrapping_add(bias));
        }
        let module_range = module_range(self.process, module);
        let plan = SitePlan {
            name: wanted.name.clone(),
            module: path.clone(),
            module_range,
            bias,
            placement,
            original,
            island_original,
            action,
        };
        sites.insert(addr, plan);
    }

    fn nothing(&mut self, spec: &Spec) -> PlanError {
        match self.find(spec).and_then(|i| self.load(i).map(|l| no_match(spec, &l.image))) {
            Ok(error) | Err(error) => error,
        }
    }
}

/// A refusal in words, with the rung that it would need.
fn refusal(why: &Refusal) -> String {
    match why {
        Refusal::NoRung { needs, .. } => format!("{why} (rung {}, not in this version)", *needs as u8),
        other => other.to_string(),
    }
}

/// Addresses of everything that the process maps of the module's file.
fn module_range(process: &Process, module: &Module) -> Range<u64> {
    let own = process.mappings.iter().filter(|m| m.file.is_some() && m.file == module.file);
    let (mut start, mut end) = (u64::MAX, 0);
    for m in own {
        start = start.min(m.range.start.0);
        end = end.max(m.range.end.0);
    }
    start..end.max(start)
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

/// Byte offsets in `pt_regs` of the registers that hold arguments.
const SYSV_ARGUMENTS: [u32; 6] = [112, 104, 96, 88, 72, 64];
const GO_ARGUMENTS: [u32; 9] = [80, 40, 88, 112, 104, 72, 64, 56, 48];

/// In Go code: the stack pointer, the frame pointer and the goroutine.
const GO_GOOD_REGISTERS: u16 = 1 << 4 | 1 << 5 | 1 << 14;

/// C code in a Go program has no dot in its names.
fn is_go_code(image: &ElfImage, wanted: &Match) -> bool {
    image.is_go() && wanted.name.contains('.')
}

fn action(verb: Verb, image: &ElfImage, wanted: &Match) -> Result<Action, String> {
    let is_go = is_go_code(image, wanted);
    let consumer = match verb {
        Verb::Count => return Ok(Action::Count),
        Verb::CountByHandler => Consumer::Count,
        Verb::HistogramOfArgument(n) => {
            let registers: &[u32] = if is_go { &GO_ARGUMENTS } else { &SYSV_ARGUMENTS };
            let register = registers.get(n).copied();
            let register = register.ok_or_else(|| format!("arg{n} is not passed in a register"))?;
            Consumer::Log2Histogram { register }
        }
    };
    if is_go && !has_stack_check(image, wanted) {
        return Err("it is a Go function without a stack check: too little stack for a handler".into());
    }
    Ok(Action::Consumers(vec![consumer]))
}

/// Go functions that make sure of some hundred bytes of stack compare rsp (or r12) with the goroutine's bound.
fn has_stack_check(image: &ElfImage, wanted: &Match) -> bool {
    let is_entry = wanted.function.as_ref().is_some_and(|f| f.start == wanted.addr);
    let head = image.bytes(ImageAddr(wanted.addr), 24).unwrap_or_default();
    is_entry && head.windows(3).any(|w| w == [0x49, 0x3b, 0x66] || w == [0x4d, 0x3b, 0x66])
}

/// One placed site with the reasons against higher rungs, for `explain`.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The site.
    pub site: SitePlan,
    /// For each higher rung, why not.
    pub why_not: Vec<String>,
}

/// Places every match in a process, or in files if there is none, and says why not higher.
pub fn explain(pid: Option<i32>, specs: &[Spec]) -> Result<(Vec<Explained>, Vec<RefusedSite>), PlanError> {
    let Some(pid) = pid else { return explain_files(specs) };
    let process = Process::read(pid as u32).map_err(PlanError::Image)?;
    let plan = plan(pid, specs, Verb::Count)?;
    let mut loaded: BTreeMap<String, Loaded> = BTreeMap::new();
    let mut explained = Vec::new();
    for mut site in plan.sites {
        if !loaded.contains_key(&site.module) {
            let module = process.modules.iter().find(|m| m.path.display().to_string() == site.module);
            let Some(module) = module else { continue };
            loaded.insert(
                site.module.clone(),
                Loaded::new(module.open(process.pid).map_err(PlanError::Image)?),
            );
        }
        let why_not = reasons(&loaded[&site.module], &mut site.placement);
        explained.push(Explained { site, why_not });
    }
    Ok((explained, plan.refused))
}

fn reasons(loaded: &Loaded, placement: &mut Placement) -> Vec<String> {
    let codes = codes(&loaded.image);
    loaded.flow.name_sources(&codes, None, &mut placement.why_not);
    placement.why_not.iter().map(|(rung, reason)| format!("not {rung}: {reason}")).collect()
}

fn explain_files(specs: &[Spec]) -> Result<(Vec<Explained>, Vec<RefusedSite>), PlanError> {
    let (mut explained, mut refused) = (Vec::new(), Vec::new());
    for spec in specs {
        let path = find_file(&spec.library).map_err(|e| PlanError::Lookup(Box::new(spec.clone()), e))?;
        let loaded = Loaded::new(ElfImage::open(&path).map_err(PlanError::Image)?);
        let selection = select(spec, &loaded.image);
        if selection.selected.is_empty() && selection.refused.is_empty() {
            return Err(no_match(spec, &loaded.image));
        }
        let module = path.display().to_string();
        for s in &selection.selected {
            let name = name_of(s);
            let function = s.function.map(|f| f.range().start.0..f.range().end.0);
            let asked = Asked { site: s.addr.0, function, next_function: None, taken: &|_| false };
            match place(&loaded.flow, &codes(&loaded.image), &asked) {
                Ok(mut placement) => {
                    let why_not = reasons(&loaded, &mut placement);
                    let site = SitePlan {
                        name,
                        module: module.clone(),
                        module_range: 0..0,
                        bias: 0,
                        placement,
                        original: Vec::new(),
                        island_original: Vec::new(),
                        action: Action::Count,
                    };
                    explained.push(Explained { site, why_not });
                }
                Err(why) => refused.push(RefusedSite {
                    name,
                    module: module.clone(),
                    addr: s.addr.0,
                    why: refusal(&why),
                }),
            }
        }
        refused.extend(selection.refused.iter().map(|r| RefusedSite {
            name: r.name.map_or_else(|| r.addr.to_string(), |n| n.text.to_string()),
            module: module.clone(),
            addr: r.addr.0,
            why: r.reason.to_string(),
        }));
    }
    Ok((explained, refused))
}
