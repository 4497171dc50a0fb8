//! The kernel's side of a script: its programs and maps, and the places where they run.
//!
//! For:     kernel; live, which goes over to it where nothing can be in a process.
//! State:   the programs, maps and links of crate session; what is left out.
//! Context: control; the engine process, one thread.
//! Keeps:   L1 hits = ran + skipped, by cause.
//!          L2 where a process's code is not the file's (a jump of another nanoprobe, a breakpoint of a debugger), the kernel would
//!             run what the file has: such a place is refused by name.
//!          L3 no instruction is probed that the kernel would not run as the processor does, and no return address of Go code is
//!             replaced, as the kernel's return probes do: its runtime would end the process. Such a place is left out by name.
//! Checked: testkit `backends`.

use super::names::Names;
use super::place::library;
use image::{Addr, Process};
use lang::Targets;
use lang::program::{Event, Script};
use lang::run::{Engine, Shared, image_of, specs};
use session::{KernelPlaces, KernelScript, ScriptPlan, Scripted, misrun_by_kernel};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// The kernel's side of a script.
pub struct Loaded {
    script: Rc<RefCell<KernelScript>>,
    names: Rc<Names>,
    is_linked: bool,
    /// The programs that run at hits.
    at_hits: Vec<usize>,
    /// Names of places, if it is not all of them.
    only: Option<BTreeSet<String>>,
    /// Places that the kernel would do harm at, and which.
    left_out: BTreeMap<String, String>,
}

/// Who runs the programs, as the machine knows it.
struct Runner(Rc<RefCell<KernelScript>>);

fn load(script: &Script, child: u32, began: u64) -> Result<KernelScript, String> {
    let programs: Vec<Scripted<'_>> = script
        .probes
        .iter()
        .map(|probe| {
            let sites = match &probe.event {
                Event::Target(target) => target.sites.as_slice(),
                _ => &[],
            };
            let of = |cookies: Option<u64>| cookies.unwrap_or(0);
            Scripted {
                name: &probe.name,
                program: &probe.program,
                is_at_hits: matches!(probe.event, Event::Target(_)),
                cookies: (
                    of(sites.iter().map(|(_, cookie)| *cookie).min()),
                    of(sites.iter().map(|(_, cookie)| *cookie).max()),
                ),
            }
        })
        .collect();
    let plan = ScriptPlan {
        programs: &programs,
        tables: &specs(&script.maps),
        constants: &script.constants,
        scratch: script.scratch,
        began,
        child,
    };
    KernelScript::load(&plan).map_err(|why| why.to_string())
}

impl Loaded {
    /// Nothing runs at hits yet. The command's number, 0 without one; when tracing began, by the clock that goes on in suspend.
    ///
    /// # Errors
    /// What the kernel cannot run.
    pub fn load(script: &Script, child: u32, began: u64, names: Rc<Names>) -> Result<Loaded, String> {
        let is_at_hits = |number: &usize| matches!(script.probes[*number].event, Event::Target(_));
        Ok(Loaded {
            script: Rc::new(RefCell::new(load(script, child, began)?)),
            names,
            is_linked: false,
            at_hits: (0..script.probes.len()).filter(is_at_hits).collect(),
            only: None,
            left_out: BTreeMap::new(),
        })
    }

    /// Other places than these are not linked.
    pub fn only(&mut self, names: BTreeSet<String>) {
        self.only = Some(names);
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
        Box::new(Runner(self.script.clone()))
    }

    /// Takes in what the maps hold that were the script's before.
    ///
    /// # Errors
    /// An element finds no room.
    pub fn take_over(&self, script: &Script, maps: &Shared) -> Result<(), String> {
        for (number, decl) in script.maps.iter().enumerate() {
            for (key, value) in image_of(decl, number, maps) {
                let set = self.script.borrow().set(number, &key, &value);
                set.map_err(|why| format!("{}: {why}", decl.name))?;
            }
        }
        Ok(())
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
            let mut files: BTreeMap<(usize, bool), KernelPlaces> = BTreeMap::new();
            for (place, cookie) in &target.sites {
                let place = &targets.places()[*place as usize];
                let file = &targets.files()[place.file];
                let offset = |addr| file.image.file_offset(addr).map(|offset| offset.0);
                let name = || format!("{}: ", probe.name);
                let own = script.names.get(*cookie as usize).map_or(probe.name.as_str(), |name| name);
                if self.only.as_ref().is_some_and(|only| !only.contains(own)) {
                    continue;
                }
                let go = (place.is_return && file.image.is_go()).then(|| GO_RETURNS.to_owned());
                if let Some(why) = go.or_else(|| misrun_by_kernel(&file.image, place.addr)) {
                    self.left_out.insert(own.to_owned(), why);
                    continue;
                }
                let at = offset(place.addr).ok_or_else(|| name() + "it is not in the file")?;
                if let Some(process) = &process {
                    check(process, file, place.addr, at).map_err(|why| name() + &why)?;
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
            for mut places in files.into_values() {
                if places.semaphores.iter().all(|at| *at == 0) {
                    places.semaphores.clear();
                }
                let linked = self.script.borrow_mut().link(number, &places, pid);
                linked.map_err(|why| format!("{}: {why}", probe.name))?;
                self.is_linked = true;
            }
        }
        Ok(())
    }

    /// Whether there is anything.
    pub fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// Takes all places out again.
    pub fn unlink(&mut self) {
        self.script.borrow_mut().unlink();
    }

    /// What has become of hits; nothing if there could be none.
    pub fn receipt(&self, left_out: usize) -> Vec<String> {
        if !self.is_linked {
            return Vec::new();
        }
        let script = self.script.borrow();
        let all = self.at_hits.iter().map(|number| script.runs(*number));
        let (ran, skipped) =
            all.fold((0, 0), |(ran, skipped), runs| (ran + runs.ran, skipped + runs.no_workspace));
        let hits = ran + skipped;
        let causes = if skipped > 0 { format!(" ({skipped} no workspace)") } else { String::new() };
        vec![
            format!("Hits {hits}: {ran} handled, {skipped} skipped{causes}; {left_out} places left out."),
            "The kernel's probes are out.".to_owned(),
        ]
    }
}

/// Why the kernel probes no returns of Go.
const GO_RETURNS: &str = "the kernel's return probes replace return addresses, which ends a Go program: its runtime looks at them when it moves a stack; without --backend kernel returns are seen in the process";

/// How many bytes of an instruction are looked at: no jump of ours is longer.
const LOOKED_AT: usize = 5;

/// The process has there what the file has; one that does not map the file is let be.
fn check(
    process: &Process,
    file: &lang::TracedFile,
    addr: image::ImageAddr,
    offset: u64,
) -> Result<(), String> {
    let Ok(module) = image::lookup::find_module(&library(&file.path), process) else { return Ok(()) };
    let Addr(at) = module.bias.addr(addr);
    let (mut wanted, mut found) = ([0; LOOKED_AT], [0; LOOKED_AT]);
    let read = |path: String, at: u64, to: &mut [u8]| {
        std::fs::File::open(&path).and_then(|file| file.read_exact_at(to, at)).is_ok()
    };
    let is_read = read(file.path.display().to_string(), offset, &mut wanted)
        && read(format!("/proc/{}/mem", process.pid), at, &mut found);
    // A breakpoint of the kernel's own may be shared.
    let is_shared = session::is_under_kernel(&found, &wanted);
    match !is_read || found == wanted || is_shared {
        true => Ok(()),
        false => Err(format!(
            "process {} has other code there than its file (a probe of another tracer?), and the kernel would run the file's",
            process.pid
        )),
    }
}

impl Engine for Runner {
    fn run(&mut self, probe: usize) -> Result<(), String> {
        self.0.borrow().run(probe).map_err(|why| why.to_string())
    }

    fn take_records(&mut self) -> Vec<Vec<u8>> {
        self.0.borrow_mut().take_records().into_iter().map(|(_, bytes)| bytes).collect()
    }

    fn lost(&self) -> u64 {
        self.0.borrow().lost()
    }

    fn elements(&self, map: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.0.borrow().elements(map)
    }

    fn clear(&mut self, map: usize) {
        self.0.borrow().clear(map);
    }

    fn zero(&mut self, map: usize) {
        self.0.borrow().zero(map);
    }
}
