//! A script whose programs the kernel runs: `--backend kernel`.
//!
//! For:     the machine of crate lang.
//! State:   the kernel's programs and maps, which the machine and the processes share; the command.
//! Context: control; the engine process, one thread.
//! Keeps:   K1 hits = ran + skipped, by cause. K2 nothing is written into a process but by the kernel.
//!          K3 where a process's code is not the file's (a jump of another nanoprobe, a breakpoint of a debugger), the kernel would
//!             run what the file has: such a place is refused by name.
//! Checked: testkit `backends`.

use super::command;
use super::live::Which;
use super::names::Names;
use super::place::library;
use crate::guard::Guard;
use crate::stop::Stop;
use image::{Addr, Process};
use lang::Targets;
use lang::program::{Event, Script};
use lang::run::{Engine, Look, Shared, Traced, specs};
use session::{KernelPlaces, KernelScript, Launched, ScriptPlan, Scripted};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// The kernel's side, once it is loaded.
type Loaded = Rc<RefCell<Option<KernelScript>>>;

/// The processes of a run, and who runs its programs.
pub struct InKernel<'g> {
    which: Which,
    targets: Targets,
    loaded: Loaded,
    launched: Option<Launched>,
    names: Rc<Names>,
    stop: Stop,
    guard: &'g mut Guard,
    is_linked: bool,
    /// The programs that run at hits.
    at_hits: Vec<usize>,
}

/// Who runs the programs, as the machine knows it.
struct Runner(Loaded);

/// Loads a script and starts its command, if there is one.
///
/// # Errors
/// What the kernel cannot run, as it is told.
pub fn prepare<'g>(
    script: &Script,
    which: Which,
    (targets, names): (Targets, Rc<Names>),
    stop: Stop,
    guard: &'g mut Guard,
) -> Result<(InKernel<'g>, Box<dyn Engine>), String> {
    let loaded = Loaded::default();
    let mut run = InKernel {
        which,
        targets,
        loaded: loaded.clone(),
        launched: None,
        names,
        stop,
        guard,
        is_linked: false,
        at_hits: Vec::new(),
    };
    // The programs know the command's number: it is started, and held, before they are loaded.
    run.launched = command::start(&run.which, &mut run.stop, run.guard)?;
    let made = load(script, run.child());
    if made.is_err() {
        run.abandon();
    }
    *loaded.borrow_mut() = Some(made?);
    Ok((run, Box::new(Runner(loaded))))
}

fn load(script: &Script, child: u32) -> Result<KernelScript, String> {
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
        began: sys::clock_ns(sys::BOOTTIME),
        child,
    };
    KernelScript::load(&plan).map_err(|why| format!("ERROR: {why}"))
}

impl InKernel<'_> {
    /// The command's number, 0 if there is none.
    fn child(&self) -> u32 {
        self.launched.as_ref().map_or(0, |launched| launched.pid() as u32)
    }

    fn abandon(&mut self) {
        if let Some(launched) = self.launched.take() {
            launched.abandon();
        }
    }

    /// The processes, or 0 for all.
    fn pids(&self) -> Vec<i32> {
        match &self.which {
            Which::Pids(pids) => pids.clone(),
            Which::Command(_) => vec![self.launched.as_ref().map_or(0, Launched::pid)],
            Which::All => vec![0],
        }
    }

    fn link(&mut self, script: &Script, pid: i32) -> Result<(), String> {
        let process = match pid {
            0 => None,
            pid => Some(Process::read(pid as u32).map_err(|why| format!("ERROR: process {pid}: {why}"))?),
        };
        if pid > 0 {
            self.names.add(pid, 0, None);
        }
        for (number, probe) in script.probes.iter().enumerate() {
            let Event::Target(target) = &probe.event else { continue };
            let mut files: BTreeMap<(usize, bool), KernelPlaces> = BTreeMap::new();
            for (place, cookie) in &target.sites {
                let place = &self.targets.places()[*place as usize];
                let file = &self.targets.files()[place.file];
                let offset = |addr| file.image.file_offset(addr).map(|offset| offset.0);
                let name = || format!("ERROR: {}: ", probe.name);
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
                if let Some(loaded) = self.loaded.borrow_mut().as_mut() {
                    let linked = loaded.link(number, &places, pid);
                    linked.map_err(|why| format!("ERROR: {}: {why}", probe.name))?;
                    self.is_linked = true;
                }
            }
        }
        Ok(())
    }
}

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
    let is_shared = found[0] == 0xcc && found[1..] == wanted[1..];
    match !is_read || found == wanted || is_shared {
        true => Ok(()),
        false => Err(format!(
            "process {} has other code there than its file (a probe of another tracer?), and the kernel would run the file's",
            process.pid
        )),
    }
}

impl Traced for InKernel<'_> {
    fn start(&mut self) -> Result<u32, String> {
        Ok(self.child())
    }

    fn attach(&mut self, script: &Script, _maps: &Shared) -> Result<(), String> {
        self.at_hits = (0..script.probes.len())
            .filter(|number| matches!(script.probes[*number].event, Event::Target(_)))
            .collect();
        let linked = self.pids().into_iter().try_for_each(|pid| self.link(script, pid));
        if let Err(why) = linked {
            self.abandon();
            return Err(why);
        }
        if let Some(launched) = &self.launched {
            launched.go();
        }
        Ok(())
    }

    fn is_any(&self) -> bool {
        self.is_linked || self.launched.is_some()
    }

    fn watched(&self) -> Vec<i32> {
        vec![self.stop.watched()]
    }

    fn look(&mut self, _script: &Script, _maps: &Shared) -> Look {
        session::tidy();
        if self.stop.is_asked() {
            return Look::Asked;
        }
        let is_over = match &self.which {
            Which::Command(_) => self.launched.as_ref().is_some_and(|launched| launched.ended().is_some()),
            Which::Pids(pids) => {
                !pids.iter().any(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists())
            }
            Which::All => false,
        };
        if is_over { Look::Over } else { Look::On }
    }

    fn detach(&mut self) {
        if let Some(loaded) = self.loaded.borrow_mut().as_mut() {
            loaded.unlink();
        }
        self.launched.iter().for_each(command::end);
    }

    fn receipt(&mut self) -> (Vec<String>, bool) {
        if !self.is_linked {
            return (Vec::new(), true);
        }
        let loaded = self.loaded.borrow();
        let all = loaded.iter().flat_map(|script| self.at_hits.iter().map(|number| script.runs(*number)));
        let (ran, skipped) =
            all.fold((0, 0), |(ran, skipped), runs| (ran + runs.ran, skipped + runs.no_workspace));
        let hits = ran + skipped;
        let causes = if skipped > 0 { format!(" ({skipped} no workspace)") } else { String::new() };
        let lines = [
            format!("Hits {hits}: {ran} handled, {skipped} skipped{causes}; 0 places left out."),
            "The kernel's probes are out.".to_owned(),
        ];
        (lines.to_vec(), true)
    }
}

impl Engine for Runner {
    fn run(&mut self, probe: usize) -> Result<(), String> {
        match self.0.borrow().as_ref() {
            Some(script) => script.run(probe).map_err(|why| why.to_string()),
            None => Ok(()),
        }
    }

    fn take_records(&mut self) -> Vec<Vec<u8>> {
        let mut script = self.0.borrow_mut();
        let records = script.as_mut().map(KernelScript::take_records).unwrap_or_default();
        records.into_iter().map(|(_, bytes)| bytes).collect()
    }

    fn lost(&self) -> u64 {
        self.0.borrow().as_ref().map_or(0, KernelScript::lost)
    }

    fn elements(&self, map: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.0.borrow().as_ref().map(|script| script.elements(map)).unwrap_or_default()
    }

    fn clear(&mut self, map: usize) {
        self.0.borrow().iter().for_each(|script| script.clear(map));
    }

    fn zero(&mut self, map: usize) {
        self.0.borrow().iter().for_each(|script| script.zero(map));
    }
}
