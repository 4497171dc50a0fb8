//! Which programs run where in one process.
//!
//! For:     live.
//! State:   of one process: where its modules are, and what is wanted at each address.
//! Context: control; touches nothing.
//! Keeps:   P1 a function that is probed at its entry and where it is left has both probes placed together.
//! Checked: testkit `scripts`.

use super::native::Natives;
use crate::probes::{Modules, identity, is_missing};
use image::lookup::find_module;
use image::spec::{Library, Place as At};
use image::{Process, Spec, When};
use lang::program::{Event, Native, Script};
use lang::{ProbedPlace, Targets};
use session::{Action, Consumer, Plan, Rung, SitePlan, Verb};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Why a function that is left by jumps alone has no probe at its returns that reads what is returned.
pub const UNKNOWN: &str = "it is left by jumps to other functions alone, where what it returns is not known; --backend kernel sees it";
/// Why an implementation of an ifunc has no probe.
const UNCHOSEN: &str = "the loader chose another implementation of this function for this processor";

/// Address in the process; true where the function is left.
type Key = (u64, bool);

/// What is wanted at one address.
#[derive(Default)]
struct Wanted {
    /// What the script calls the place.
    name: String,
    /// Programs and their cookies, in the order of the script.
    programs: Vec<(u32, u64)>,
    /// Numbers of the place, one for each of them.
    places: BTreeSet<u32>,
}

/// A place that has no probe in a process.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// What the script calls it.
    pub name: String,
    /// Why.
    pub why: String,
    /// Its numbers.
    pub places: BTreeSet<u32>,
    /// The kernel's probes can be there.
    pub is_curable: bool,
}

/// What is put where.
pub struct Put {
    /// Sites with the programs at their hooks.
    pub sites: Vec<SitePlan>,
    /// Those of them that need no program.
    pub natives: Natives,
    /// Places without a site.
    pub left_out: Vec<LeftOut>,
    /// What each site is for, by its address.
    keys: BTreeMap<u64, Vec<Key>>,
}

/// What is wanted in one process.
pub struct Placing<'a> {
    targets: &'a Targets,
    wanted: BTreeMap<Key, Wanted>,
    /// Programs that are a count or a histogram, by number.
    natives: BTreeMap<u32, Native>,
    /// What was asked for, of modules that are mapped.
    specs: BTreeSet<usize>,
    /// Image addresses of functions that are wanted at both ends, and the path of their module.
    both: Vec<(String, u64, u64)>,
    /// How far from their image addresses modules lie, by path.
    biases: BTreeMap<String, u64>,
}

impl<'a> Placing<'a> {
    /// The places of a script that a process has, but for those in modules that are `known`.
    pub fn of(script: &Script, targets: &'a Targets, process: &Process, known: &Modules) -> Placing<'a> {
        let files: Vec<Option<(String, u64)>> = targets
            .files()
            .iter()
            .map(|file| {
                let module = find_module(&library(&file.path), process).ok()?;
                let (path, _) = identity(module, process).filter(|module| !known.contains(module))?;
                Some((path, module.bias.0))
            })
            .collect();
        let mut placing = Placing {
            targets,
            wanted: BTreeMap::new(),
            natives: BTreeMap::new(),
            specs: BTreeSet::new(),
            both: Vec::new(),
            biases: files.iter().flatten().cloned().collect(),
        };
        let at_hits = script.probes.iter().filter_map(|probe| match &probe.event {
            Event::Target(target) => Some((target, probe.native)),
            _ => None,
        });
        for (program, (target, native)) in (0u32..).zip(at_hits) {
            placing.natives.extend(native.map(|native| (program, native)));
            for (number, cookie) in &target.sites {
                let Some(place) = targets.places().get(*number as usize) else { continue };
                let Some((_, bias)) = &files[place.file] else { continue };
                let key = (place.addr.0.wrapping_add(*bias), place.is_return);
                let name =
                    || script.names.get(*cookie as usize).map_or(String::new(), |name| name.to_string());
                let wanted =
                    placing.wanted.entry(key).or_insert_with(|| Wanted { name: name(), ..Wanted::default() });
                wanted.programs.push((program, *cookie));
                wanted.places.insert(*number);
                placing.specs.insert(place.spec);
            }
        }
        let is_left = |place: &&ProbedPlace| place.is_return;
        for place in targets.places().iter().filter(is_left) {
            let Some((path, bias)) = &files[place.file] else { continue };
            let addr = place.addr.0.wrapping_add(*bias);
            let is_both = [false, true].iter().all(|end| placing.wanted.contains_key(&(addr, *end)));
            if is_both && !placing.both.iter().any(|(.., known)| *known == addr) {
                placing.both.push((path.clone(), place.addr.0, addr));
            }
        }
        placing
    }

    /// The places of a site that was not armed, for this reason.
    pub fn missed(&self, put: &Put, site: &SitePlan, why: &str, is_curable: bool) -> Vec<LeftOut> {
        let keys = put.keys.get(&site.addr()).map_or(&[][..], Vec::as_slice);
        let of = |key: &Key| Some(self.wanted.get(key)?.left_out(why.to_owned(), is_curable));
        keys.iter().filter_map(of).collect()
    }

    /// The places that are in the process, with their names, given those that are not and those that are not wanted there.
    pub fn placed(&self, left_out: &[LeftOut], apart: &BTreeSet<u32>) -> BTreeMap<u32, String> {
        let is_out =
            |number: &u32| left_out.iter().any(|out| out.places.contains(number)) || apart.contains(number);
        let all = self.wanted.values().flat_map(|wanted| wanted.places.iter().map(|n| (*n, &wanted.name)));
        all.filter(|(number, _)| !is_out(number)).map(|(number, name)| (number, name.clone())).collect()
    }

    /// Some of it is not wanted there.
    pub fn has_any_of(&self, apart: &BTreeSet<u32>) -> bool {
        self.wanted.values().any(|wanted| !wanted.places.is_disjoint(apart))
    }

    /// Nothing of it is in the process.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// What is planned.
    pub fn asked(&self) -> Vec<(Spec, Verb)> {
        let calls = self.both.iter().map(|(path, addr, _)| {
            let spec = Spec {
                text: format!("u:{path}:{addr:#x}"),
                when: When::Before,
                library: Library::Named(path.clone()),
                place: At::Address(image::ImageAddr(*addr)),
            };
            (spec, Verb::Latency)
        });
        let others = self.specs.iter().filter_map(|spec| self.targets.specs().get(*spec));
        calls.chain(others.map(|spec| (spec.clone(), Verb::Program))).collect()
    }

    /// What the one program at a site is, if it needs none there: a count stands alone and first, nothing else has that key.
    fn native(&self, site: &SitePlan, programs: &[(u32, u64)]) -> Option<(Native, Action)> {
        let ([(program, _)], [hook]) = (programs, site.placement.hooks.as_slice()) else { return None };
        let native = *self.natives.get(program)?;
        let action = match native {
            Native::Count { .. } if hook.offset == 0 && site.exit_of.is_none() => Action::Count,
            Native::Count { .. } => Action::Consumers(vec![Consumer::Count]),
            Native::Histogram { register, .. } => {
                Action::Consumers(vec![Consumer::Log2Histogram { register }])
            }
        };
        Some((native, action))
    }

    /// The sites with the programs at their hooks, and the places that have none, with the cause; but for those that are `apart`, which
    /// are not this process's to have.
    ///
    /// Where a function is left by a jump to another one, its result is not known: programs that read it do not run there.
    pub fn put(&self, plan: Plan, reads_result: &dyn Fn(u32) -> bool, apart: &BTreeSet<u32>) -> Put {
        let mut natives = Natives::default();
        let (mut placed, mut unknown) = (BTreeSet::<Key>::new(), BTreeSet::<Key>::new());
        let opened: BTreeMap<u32, u64> =
            plan.sites.iter().filter_map(|site| Some((site.opens()?, site.hook_addr(0)))).collect();
        let is_here = |wanted: &&Wanted| wanted.places.is_disjoint(apart);
        let (mut sites, mut keys) = (Vec::new(), BTreeMap::new());
        let mut by_kernel: BTreeMap<Key, String> = BTreeMap::new();
        for mut site in plan.sites {
            let exit_of = site.exit_of;
            let key_of = |addr: u64, consumer: Option<&Consumer>| match consumer {
                Some(Consumer::Leave { function, .. }) => opened.get(function).map(|start| (*start, true)),
                Some(Consumer::Enter { .. }) => Some((addr, false)),
                _ => Some(exit_of.map_or((addr, false), |start| (start, true))),
            };
            if site.placement.rung == Rung::Kernel {
                let why = site.placement.why_not.last();
                let why = why.map_or(String::new(), |(rung, why)| format!(" ({rung}: {why})"));
                let addr = site.hook_addr(0);
                let consumers = site.actions.iter().flat_map(|action| match action {
                    Action::Consumers(list) => list.iter().map(Some).collect(),
                    Action::Count => vec![None],
                });
                let keys = consumers.filter_map(|consumer| key_of(addr, consumer));
                by_kernel.extend(keys.map(|key| (key, format!("no jump fits{why}"))));
                continue;
            }
            let mut own: Vec<Key> = Vec::new();
            for number in 0..site.actions.len() {
                let addr = site.hook_addr(number);
                let Action::Consumers(list) = &mut site.actions[number] else { continue };
                let key = key_of(addr, list.first());
                let wanted = key.and_then(|key| self.wanted.get(&key)).filter(is_here);
                let programs = wanted.map_or(&[][..], |wanted| &wanted.programs);
                let hook = site.placement.hooks.get(number);
                let is_unknown = hook.is_some_and(|hook| hook.is_tail_call);
                let runs = |(program, _): &&(u32, u64)| !(is_unknown && reads_result(*program));
                let consumer =
                    |(program, cookie): &(u32, u64)| Consumer::Program { program: *program, cookie: *cookie };
                *list = programs.iter().filter(runs).map(consumer).collect();
                unknown.extend(key.filter(|_| list.len() < programs.len()));
                if let Some((start, true)) = key {
                    site.exit_of = Some(start);
                }
                own.extend(key.filter(|_| !list.is_empty()));
            }
            placed.extend(&own);
            let has_any = |action: &Action| !matches!(action, Action::Consumers(list) if list.is_empty());
            let alone = match site.actions.as_slice() {
                [Action::Consumers(list)] => list.iter().filter_map(|consumer| consumer.program()).collect(),
                _ => Vec::new(),
            };
            if let Some((native, action)) = self.native(&site, &alone) {
                natives.0.insert(site.addr(), native);
                site.actions = vec![action];
            }
            if site.actions.iter().any(has_any) {
                keys.insert(site.addr(), own);
                sites.push(site);
            }
        }
        let causes: BTreeMap<u64, &str> = plan
            .refused
            .iter()
            .filter_map(|site| {
                Some((site.addr.wrapping_add(*self.biases.get(&site.module)?), site.why.as_str()))
            })
            .collect();
        let why = |addr: &u64| match causes.get(addr) {
            Some(why) => (*why).to_owned(),
            None if unknown.contains(&(*addr, true)) => UNKNOWN.to_owned(),
            None if plan.unchosen.contains(addr) => UNCHOSEN.to_owned(),
            None => "no probe can stand there".to_owned(),
        };
        let is_missing = |(key, wanted): &(&Key, &Wanted)| !placed.contains(*key) && is_here(wanted);
        let left_out = self.wanted.iter().filter(is_missing).map(|(key, wanted)| match by_kernel.get(key) {
            Some(why) => wanted.left_out(why.clone(), true),
            None => {
                let why = why(&key.0);
                let is_curable = why == UNKNOWN;
                wanted.left_out(why, is_curable)
            }
        });
        Put { left_out: left_out.collect(), sites, natives, keys }
    }
}

impl Wanted {
    fn left_out(&self, why: String, is_curable: bool) -> LeftOut {
        LeftOut { name: self.name.clone(), why, places: self.places.clone(), is_curable }
    }
}

/// A file, as a library or program to look for.
pub fn library(path: &Path) -> Library {
    Library::Named(path.display().to_string())
}

/// The files that a script has places in and a process has not mapped.
pub fn missing(script: &Script, targets: &Targets, process: &Process) -> Vec<PathBuf> {
    let mut wanted = wanted(script, targets);
    wanted.retain(|path| is_missing(&library(path), process));
    wanted
}

/// The places that a script has in some files: numbers and names.
pub fn names_in<'a>(
    script: &'a Script,
    targets: &'a Targets,
    files: &'a [PathBuf],
) -> impl Iterator<Item = (u32, String)> + 'a {
    let sites = script.probes.iter().filter_map(|probe| match &probe.event {
        Event::Target(target) => Some(&target.sites),
        _ => None,
    });
    let is_there = |(place, _): &&(u32, u64)| {
        let place = targets.places().get(*place as usize);
        place.is_some_and(|place| files.contains(&targets.files()[place.file].path))
    };
    let names = sites.flatten().filter(is_there);
    names.filter_map(|(place, cookie)| Some((*place, script.names.get(*cookie as usize)?.to_string())))
}

/// The files that a script has places in.
pub fn wanted(script: &Script, targets: &Targets) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    for probe in &script.probes {
        let Event::Target(target) = &probe.event else { continue };
        let places = target.sites.iter().filter_map(|(place, _)| targets.places().get(*place as usize));
        found.extend(places.map(|place| targets.files()[place.file].path.clone()));
    }
    found.into_iter().collect()
}
