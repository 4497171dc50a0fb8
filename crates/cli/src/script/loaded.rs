//! The kernel's side of a script: its programs and maps, and the places where they run.
//!
//! For:     kernel; live, which goes over to it where nothing can be in a process, or has it beside the processes.
//! State:   the programs, maps and links of crate session; what was taken in of maps on both sides; what is left out.
//! Context: control; the engine process, one thread.
//! Keeps:   L1 hits = ran + skipped, by cause.
//!          L2 where a process's code is not the file's (a jump of another nanoprobe, a breakpoint of a debugger), the kernel would
//!             run what the file has: such a place is refused by name.
//!          L3 no instruction is probed that the kernel would not run as the processor does, and no return address of Go code is
//!             replaced, as the kernel's return probes do: its runtime would end the process. Such a place is left out by name.
//!          L4 of a map on both sides each value that the kernel's programs took in is taken in here once.
//! Checked: testkit `backends`, `sides` (L4).

use super::names::Names;
use super::place::library;
use image::{Addr, Process};
use lang::program::{Event, MapDecl, Script};
use lang::run::{Engine, Shared, image_of, merge, replace, specs};
use lang::types::{Agg, Type};
use lang::{Side, Targets};
use session::{KernelPlaces, KernelScript, Runs, ScriptPlan, Scripted, len_under_kernel, misrun_by_kernel};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// The kernel's side of a script.
pub struct Loaded {
    held: Rc<RefCell<Held>>,
    names: Rc<Names>,
    is_linked: bool,
    /// The programs that run at hits.
    at_hits: Vec<usize>,
    /// Numbers of places, if it is not all of them.
    only: Option<BTreeSet<u32>>,
    /// Places that the kernel would do harm at, or cannot probe, and why.
    left_out: BTreeMap<String, String>,
}

/// What the kernel has of a script beside the processes.
#[derive(Clone, Debug)]
pub struct Part {
    /// What is its own as a whole.
    pub side: Side,
    /// Programs that run at some of their places there, or at all.
    pub at_hits: BTreeSet<usize>,
}

impl Part {
    /// The kernel is to have this program.
    fn has(&self, script: &Script, program: usize) -> bool {
        match script.probes[program].event {
            Event::Target(_) => self.at_hits.contains(&program),
            // It has run.
            Event::Begin => false,
            _ => self.side.programs.contains(&program),
        }
    }
}

/// Programs and maps, and how far they were looked at.
struct Held {
    script: KernelScript,
    decls: Vec<MapDecl>,
    /// `None`: all of it is the kernel's.
    part: Option<Part>,
    /// Maps that no program here names.
    unnamed: BTreeSet<usize>,
    /// The words that were taken in of maps on both sides, by map and key.
    taken: BTreeMap<(usize, Vec<u8>), Vec<u64>>,
    /// Keys that found no room.
    missing: BTreeSet<(usize, Vec<u8>)>,
    /// Records that wait for older ones of the other side.
    waiting: Vec<(u64, Vec<u8>)>,
}

/// Who runs the programs, as the machine knows it.
struct Runner(Rc<RefCell<Held>>);

fn load(
    script: &Script,
    child: u32,
    began: u64,
    part: Option<&Part>,
    unnamed: &BTreeSet<usize>,
) -> Result<KernelScript, String> {
    let programs: Vec<Scripted<'_>> = script
        .probes
        .iter()
        .enumerate()
        .map(|(number, probe)| {
            let sites = match &probe.event {
                Event::Target(target) => target.sites.as_slice(),
                _ => &[],
            };
            let cookies = || sites.iter().map(|(_, cookie)| *cookie);
            Scripted {
                name: &probe.name,
                program: &probe.program,
                is_at_hits: matches!(probe.event, Event::Target(_)),
                is_wanted: part.is_none_or(|part| part.has(script, number)),
                cookies: (cookies().min().unwrap_or(0), cookies().max().unwrap_or(0)),
            }
        })
        .collect();
    let mut tables = specs(&script.maps);
    // One that nobody names is as small as can be.
    for map in unnamed {
        tables[*map] = map::Spec { kind: map::Kind::Hash, key: 8, value: 8, limit: 1, agg: None };
    }
    let plan = ScriptPlan {
        programs: &programs,
        tables: &tables,
        constants: &script.constants,
        scratch: script.scratch,
        began,
        child,
    };
    KernelScript::load(&plan).map_err(|why| why.to_string())
}

impl Loaded {
    /// Nothing runs at hits yet. The command's number, 0 without one; when tracing began, by the clock that goes on in suspend; what the
    /// kernel is to have of it, if not all.
    ///
    /// # Errors
    /// What the kernel cannot run.
    pub fn load(
        script: &Script,
        (child, began): (u32, u64),
        names: Rc<Names>,
        part: Option<Part>,
    ) -> Result<Loaded, String> {
        let is_wanted = |number: &usize| part.as_ref().is_none_or(|part| part.has(script, *number));
        let wanted: Vec<usize> = (0..script.probes.len()).filter(is_wanted).collect();
        let is_at_hits = |number: &&usize| matches!(script.probes[**number].event, Event::Target(_));
        let mut unnamed: BTreeSet<usize> = BTreeSet::new();
        if part.is_some() {
            let named = |number: &usize| lang::maps_named(&script.probes[*number].program);
            unnamed.extend(0..script.maps.len());
            for map in wanted.iter().flat_map(named) {
                unnamed.remove(&map);
            }
        }
        let held = Held {
            script: load(script, child, began, part.as_ref(), &unnamed)?,
            decls: script.maps.clone(),
            part,
            unnamed,
            taken: BTreeMap::new(),
            missing: BTreeSet::new(),
            waiting: Vec::new(),
        };
        Ok(Loaded {
            held: Rc::new(RefCell::new(held)),
            names,
            is_linked: false,
            at_hits: wanted.iter().filter(is_at_hits).copied().collect(),
            only: None,
            left_out: BTreeMap::new(),
        })
    }

    /// Other places than these are not linked.
    pub fn only(&mut self, places: BTreeSet<u32>) {
        self.only = Some(places);
    }

    /// Names of places where no probe is, and why.
    pub fn left_out(&self) -> impl Iterator<Item = (String, String)> {
        self.left_out.iter().map(|(name, why)| (name.clone(), why.clone()))
    }

    /// # Errors
    /// Nothing is linked, and why.
    pub fn check(&self) -> Result<(), String> {
        match self.left_out.iter().next() {
            Some((name, why)) if !self.is_linked => Err(format!("{name}: {why}")),
            _ => Ok(()),
        }
    }

    /// Who runs the programs and has the maps from now on.
    pub fn engine(&self) -> Box<dyn Engine> {
        Box::new(Runner(self.held.clone()))
    }

    /// Takes in what the maps hold that were the script's before, and are the kernel's own now.
    ///
    /// # Errors
    /// An element finds no room.
    pub fn take_over(&self, script: &Script, maps: &Shared) -> Result<(), String> {
        let held = self.held.borrow();
        for (number, decl) in script.maps.iter().enumerate().filter(|(number, _)| held.owns(*number)) {
            for (key, value) in image_of(decl, number, maps) {
                let set = held.script.set(number, &key, &value);
                set.map_err(|why| format!("{}: {why}", decl.name))?;
            }
        }
        Ok(())
    }

    /// Brings all maps up to date.
    pub fn bring_all(&self, maps: &Shared) {
        let mut held = self.held.borrow_mut();
        (0..held.decls.len()).for_each(|map| held.bring(map, maps));
    }

    /// Removes all keys of all maps.
    pub fn clear_all(&self) {
        let mut held = self.held.borrow_mut();
        (0..held.decls.len()).for_each(|map| held.clear(map));
    }

    /// Has the programs run at their places in a process, or for 0 in all.
    ///
    /// # Errors
    /// A place where the kernel cannot, or may not for the process's sake.
    pub fn link(&mut self, script: &Script, targets: &Targets, pid: i32) -> Result<(), String> {
        let process = match pid {
            0 => None,
            pid => Some(Process::read(pid as u32).map_err(|why| format!("process {pid}: {why}"))?),
        };
        if pid > 0 {
            self.names.add(pid, 0, None);
        }
        for (number, probe) in script.probes.iter().enumerate() {
            let Event::Target(target) = &probe.event else { continue };
            if !self.at_hits.contains(&number) {
                continue;
            }
            let mut files: BTreeMap<(usize, bool), KernelPlaces> = BTreeMap::new();
            for (place_number, cookie) in &target.sites {
                let place = &targets.places()[*place_number as usize];
                let file = &targets.files()[place.file];
                let offset = |addr| file.image.file_offset(addr).map(|offset| offset.0);
                let name = || format!("{}: ", probe.name);
                let own = script.names.get(*cookie as usize).map_or(probe.name.as_str(), |name| name);
                if self.only.as_ref().is_some_and(|only| !only.contains(place_number)) {
                    continue;
                }
                let go = (place.is_return && file.image.is_go()).then(|| GO_RETURNS.to_owned());
                if let Some(why) = go.or_else(|| misrun_by_kernel(&file.image, place.addr)) {
                    self.left_out.insert(own.to_owned(), why);
                    continue;
                }
                let at = offset(place.addr).ok_or_else(|| name() + "it is not in the file")?;
                let checked = process.as_ref().map_or(Ok(()), |process| check(process, file, place.addr, at));
                match checked {
                    // Beside what is in processes one place more or less does not end the run.
                    Err(why) if self.is_part() => {
                        self.left_out.insert(own.to_owned(), why);
                        continue;
                    }
                    checked => checked.map_err(|why| name() + &why)?,
                }
                let mark = file.image.marks().into_iter().find(|mark| mark.addr == place.addr);
                let semaphore = mark.and_then(|mark| mark.semaphore).and_then(offset).unwrap_or(0);
                let places = files.entry((place.file, place.is_return)).or_default();
                places.path = file.path.display().to_string();
                places.is_return = place.is_return;
                places.offsets.push(at);
                places.cookies.push(*cookie);
                places.semaphores.push(if target.provider == lang::ast::Provider::Usdt {
                    semaphore
                } else {
                    0
                });
            }
            for places in files.into_values() {
                self.link_all(script, number, &places, pid)?;
            }
        }
        Ok(())
    }

    /// Places of one program in one file; beside what is in processes, those that the kernel refuses are left out.
    fn link_all(
        &mut self,
        script: &Script,
        program: usize,
        all: &KernelPlaces,
        pid: i32,
    ) -> Result<(), String> {
        let link = |numbers: &[usize]| {
            let of = |words: &[u64]| numbers.iter().map(|n| words[*n]).collect::<Vec<_>>();
            let mut places = KernelPlaces {
                path: all.path.clone(),
                is_return: all.is_return,
                offsets: of(&all.offsets),
                cookies: of(&all.cookies),
                semaphores: of(&all.semaphores),
            };
            if places.semaphores.iter().all(|at| *at == 0) {
                places.semaphores.clear();
            }
            self.held.borrow_mut().script.link(program, &places, pid)
        };
        let numbers: Vec<usize> = (0..all.offsets.len()).collect();
        match link(&numbers) {
            Ok(()) => self.is_linked = true,
            Err(_) if self.is_part() => {
                for number in numbers {
                    match link(&[number]) {
                        Ok(()) => self.is_linked = true,
                        Err(why) => {
                            let own = script.names.get(all.cookies[number] as usize);
                            let own = own.map_or(script.probes[program].name.as_str(), |name| name);
                            self.left_out.insert(own.to_owned(), why.to_string());
                        }
                    }
                }
            }
            Err(why) => return Err(format!("{}: {why}", script.probes[program].name)),
        }
        Ok(())
    }

    fn is_part(&self) -> bool {
        self.held.borrow().part.is_some()
    }

    /// Whether there is anything.
    pub fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// Takes all places out again.
    pub fn unlink(&mut self) {
        self.held.borrow_mut().script.unlink();
    }

    /// What has become of hits.
    pub fn runs(&self) -> Runs {
        let script = &self.held.borrow().script;
        let all = self.at_hits.iter().map(|number| script.runs(*number));
        all.fold(Runs::default(), |sum, runs| Runs {
            ran: sum.ran.saturating_add(runs.ran),
            no_workspace: sum.no_workspace.saturating_add(runs.no_workspace),
            ..sum
        })
    }

    /// What has become of hits; nothing if there could be none.
    pub fn receipt(&self, left_out: usize) -> Vec<String> {
        if !self.is_linked {
            return Vec::new();
        }
        let Runs { ran, no_workspace: skipped, .. } = self.runs();
        let hits = ran + skipped;
        let causes = if skipped > 0 { format!(" ({skipped} no workspace)") } else { String::new() };
        vec![
            format!("Hits {hits}: {ran} handled, {skipped} skipped{causes}; {left_out} places left out."),
            OUT.to_owned(),
        ]
    }
}

/// Said when all links are gone.
pub const OUT: &str = "The kernel's probes are out.";

/// Why the kernel probes no returns of Go.
const GO_RETURNS: &str = "the kernel's return probes replace return addresses, which ends a Go program: its runtime looks at them when it moves a stack; without --backend kernel returns are seen in the process";

/// No instruction is longer.
const INSTRUCTION_MAX: usize = 15;

/// The process has there what the file has, as far as the instruction goes; one that does not map the file is let be.
fn check(
    process: &Process,
    file: &lang::TracedFile,
    addr: image::ImageAddr,
    offset: u64,
) -> Result<(), String> {
    let Ok(module) = image::lookup::find_module(&library(&file.path), process) else { return Ok(()) };
    let Addr(at) = module.bias.addr(addr);
    let len = len_under_kernel(&file.image, addr).map_or(1, usize::from).min(INSTRUCTION_MAX);
    let (mut wanted, mut found) = ([0; INSTRUCTION_MAX], [0; INSTRUCTION_MAX]);
    let (wanted, found) = (&mut wanted[..len], &mut found[..len]);
    let read = |path: String, at: u64, to: &mut [u8]| {
        std::fs::File::open(&path).and_then(|file| file.read_exact_at(to, at)).is_ok()
    };
    let is_read = read(file.path.display().to_string(), offset, wanted)
        && read(format!("/proc/{}/mem", process.pid), at, found);
    // A breakpoint of the kernel's own may be shared.
    let is_shared = session::is_under_kernel(found, wanted);
    match !is_read || found == wanted || is_shared {
        true => Ok(()),
        false => Err(format!(
            "process {} has other code there than its file (a probe of another tracer?), and the kernel would run the file's",
            process.pid
        )),
    }
}

impl Held {
    /// Whether a map is the kernel's own.
    fn owns(&self, map: usize) -> bool {
        self.part.as_ref().is_none_or(|part| part.side.maps.contains(&map))
    }

    fn bring(&mut self, map: usize, maps: &Shared) {
        if self.unnamed.contains(&map) {
            return;
        }
        let Some(decl) = self.decls.get(map) else { return };
        let elements = self.script.elements(map);
        if self.owns(map) {
            return replace(decl, map, maps, &elements);
        }
        let is_extreme = matches!(decl.value, Type::Agg(Agg::Min { .. } | Agg::Max { .. }));
        for (key, value) in elements {
            let now: Vec<u64> =
                value.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            let key = (map, key);
            let news: Vec<u64> = match self.taken.get(&key) {
                Some(before) if *before == now => continue,
                // Of a sum what is new, of an extreme what it is now.
                Some(before) if !is_extreme => {
                    now.iter().zip(before).map(|(now, before)| now.wrapping_sub(*before)).collect()
                }
                _ => now.clone(),
            };
            match merge(decl, map, maps, &key.1, &news) {
                Ok(()) => {
                    self.missing.remove(&key);
                    self.taken.insert(key, now);
                }
                Err(_) => {
                    self.missing.insert(key);
                }
            }
        }
    }

    fn clear(&mut self, map: usize) {
        for key in self.script.clear(map) {
            self.taken.remove(&(map, key));
        }
        self.missing.retain(|(of, _)| *of != map);
    }

    fn zero(&mut self, map: usize) {
        for key in self.script.zero(map) {
            if let Some(words) = self.taken.get_mut(&(map, key)) {
                words.fill(0);
            }
        }
    }
}

impl Engine for Runner {
    fn has_program(&self, probe: usize) -> bool {
        self.0.borrow().part.as_ref().is_none_or(|part| part.side.programs.contains(&probe))
    }

    fn run(&mut self, probe: usize) -> Result<(), String> {
        self.0.borrow().script.run(probe).map_err(|why| why.to_string())
    }

    fn take_records(&mut self, until: u64) -> Vec<(u64, Vec<u8>)> {
        let mut held = self.0.borrow_mut();
        let mut found = std::mem::take(&mut held.waiting);
        found.extend(held.script.take_records());
        // Nobody else has older ones, if all of it is the kernel's.
        if held.part.is_some() && until != u64::MAX {
            // Who is interrupted has a place in the ring behind one that came later.
            found.sort_by_key(|(stamp, _)| *stamp);
            let ripe = found.partition_point(|(stamp, _)| *stamp < until);
            held.waiting = found.split_off(ripe);
        }
        found
    }

    fn lost(&self) -> u64 {
        self.0.borrow().script.lost()
    }

    fn bring(&mut self, map: usize, maps: &Shared) {
        self.0.borrow_mut().bring(map, maps);
    }

    fn clear(&mut self, map: usize) {
        self.0.borrow_mut().clear(map);
    }

    fn zero(&mut self, map: usize) {
        self.0.borrow_mut().zero(map);
    }

    fn missing(&self) -> Vec<(String, u64)> {
        let held = self.0.borrow();
        let mut keys: BTreeMap<String, u64> = BTreeMap::new();
        for (map, _) in &held.missing {
            *keys.entry(held.decls[*map].name.clone()).or_default() += 1;
        }
        keys.into_iter().collect()
    }
}
