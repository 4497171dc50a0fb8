//! A script's probes in traced processes.
//!
//! For:     the machine of crate lang, which runs the rest of a script.
//! State:   the processes that were entered, the command, who is waited for.
//! Context: control; the engine process, one thread.
//! Keeps:   V1 what could not be probed is left out by name, and all of it is an error.
//!          V2 all processes write to the same maps, where there can be more than one.
//!          V3 if nothing is in a process, and the kernel's probes can be where no jump can, the kernel has it all: only with
//!             everything taken out again, and with what is in the maps by then.
//!          V4 each place is one side's, in all processes: the processes' or the kernel's ([`sides`]).
//! Checked: testkit `scripts`, `together`, `backends` (V3), `sides` (V4).

mod sides;

use super::budgeted::Asked;
use super::command;
use super::family::{self, Family, PROCESSES_MAX};
use super::later::Later;
use super::loaded::{self, Loaded};
use super::names::Names;
use super::place::{LeftOut, Placing, missing, names_in, wanted};
use super::sampled::{Sampled, has_any};
use crate::budget::Budget;
use crate::guard::Guard;
use crate::probes::{KERNEL_PRICE, Modules, modules, tail_calls};
use crate::render;
use crate::started::{Started, descendants};
use crate::stop::Stop;
use image::{ModuleKind, Process};
use jit::{Compiler, Level, Meaning, Refusal, Refused};
use lang::Targets;
use lang::program::{Event, Script};
use lang::run::{Engine, Look, Shared, Told, Traced};
use session::watch::Whom;
use session::{
    Attach, Births, FamilyMaps, Images, Launched, Missed, NotProgram, Program, Programs, Runs, Session,
    Wanted, check_process, plan_each,
};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::maps::MapsHead;

/// How often it is looked whether somebody is about to exec or has loaded a library, and waits for us.
const EXECS: Duration = Duration::from_millis(1);
/// How long one look at the doorbells may take, and what came of the last.
const EXECS_LOOK: Duration = Duration::from_millis(50);
/// What a function's exit by a jump to another function means for a script.
const LEFT_BY_JUMP: &str = "left by a jump to another function at some exits: their time ends there, and what reads retval does not run there; --backend kernel sees them whole";
/// Why a process is not traced.
const NOTHING: &str = "nothing of it can be probed";
/// How often it is looked whether a followed process is there.
const OVER: Duration = Duration::from_millis(50);
/// How often we look for children until none is new.
const LOOKS_FOR_CHILDREN: usize = 20;

/// Which processes.
pub enum Which {
    /// Those that run.
    Pids(Vec<i32>),
    /// A command that is started.
    Command(Vec<String>),
    /// All that run a traced file.
    All,
}

/// What becomes of places that a pattern fits, where the kernel has those that are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patterns {
    /// They are left out.
    Left,
    /// The kernel has them too.
    Taken,
}

/// How they are traced.
#[derive(Clone, Copy)]
pub struct How {
    /// Programs that they and their children start are traced too.
    pub follows: bool,
    /// What is left out is told.
    pub says: bool,
    /// Each place that is left out, however many.
    pub is_verbose: bool,
    /// The kernel may have it all if nothing can be in a process.
    pub falls: bool,
    /// The kernel may have places that are named where no jump can be, beside those in processes; with those that a pattern fits, if
    /// that is asked for.
    pub divides: Option<Patterns>,
    /// What is told where the kernel's probes could be, if that is told.
    pub cure: Option<&'static str>,
}

/// The processes of a run.
pub struct Live<'g> {
    which: Which,
    how: How,
    targets: Targets,
    programs: Option<Programs>,
    images: Images,
    family: Family,
    /// The maps of all of them, if there can be more than one.
    together: Option<FamilyMaps>,
    started: Started,
    /// Whether processes may load what a probe is to be in, and who does.
    awaits: bool,
    later: Later,
    launched: Option<Launched>,
    births: Option<Births>,
    /// When it was looked last whether anybody is there, and whether nobody was.
    looked: (Instant, bool),
    sampled: Sampled,
    /// Places without a probe.
    left_out: Vec<LeftOut>,
    /// Places that are the kernel's beside those in processes.
    apart: BTreeSet<u32>,
    /// A process that was named in which there is nothing: what is said of it, and where something was to be.
    nothing: Option<(String, BTreeSet<u32>)>,
    /// The kernel, once it has it all; and for the machine, when that begins.
    by_kernel: Option<Loaded>,
    successor: Option<Box<dyn Engine>>,
    /// Places that some process has, with their names.
    placed: BTreeMap<u32, String>,
    names: Rc<Names>,
    /// What may be spent: as it was asked for, and once prices are known.
    asked: Option<Asked>,
    budget: Option<Budget>,
    /// Hits in forked children, which a budget leaves uncounted.
    in_children: u64,
    stop: Stop,
    guard: &'g mut Guard,
    /// When tracing began, by the clock that goes on in suspend.
    began: u64,
}

impl<'g> Live<'g> {
    /// Nothing is entered yet.
    pub fn new(
        which: Which,
        how: How,
        (targets, names): (Targets, Rc<Names>),
        asked: Option<Asked>,
        stop: Stop,
        guard: &'g mut Guard,
    ) -> Live<'g> {
        let files = targets.files().iter().map(|file| file.image.clone());
        let images = Images::with_opened(files, crate::look::pace(|| false));
        Live {
            which,
            how,
            targets,
            programs: None,
            images,
            family: Family::default(),
            together: None,
            started: Started::default(),
            awaits: false,
            later: Later::default(),
            launched: None,
            births: None,
            looked: (Instant::now(), false),
            sampled: Sampled::default(),
            left_out: Vec::new(),
            apart: BTreeSet::new(),
            nothing: None,
            by_kernel: None,
            successor: None,
            placed: BTreeMap::new(),
            names,
            asked,
            budget: None,
            in_children: 0,
            stop,
            guard,
            began: sys::clock_ns(sys::BOOTTIME),
        }
    }

    /// What is in processes.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// The process that was named first, or the command.
    pub fn pid(&self) -> Option<i32> {
        self.named().first().copied()
    }

    /// True if more than one process may be traced, or one more than once.
    fn is_many(&self) -> bool {
        let is_one = matches!(&self.which, Which::Command(_))
            || matches!(&self.which, Which::Pids(pids) if pids.len() == 1);
        self.how.follows || !is_one || self.awaits
    }

    /// Machine code of the programs that run at hits, and the maps as they are now.
    fn compile(&self, script: &Script, maps: &Shared) -> Result<Programs, String> {
        if let Some(programs) = &self.programs {
            // Maps that are shared are made.
            let is_made = self.together.is_some();
            return Ok(programs.with_maps(if is_made { Vec::new() } else { maps.borrow().image() }));
        }
        let programs = compile(script, maps)?;
        let image = maps.borrow().image();
        Ok(Programs::new(programs, image))
    }

    /// Enters a process; an error says why not. One that maps none of the files is let be.
    fn enter(&mut self, pid: i32, script: &Script, maps: &Shared) -> Result<(), String> {
        if !self.family.make_room() {
            return Err(format!("{PROCESSES_MAX} processes are traced already"));
        }
        check_process(pid).map_err(|broken| broken.to_string())?;
        let process = self.listened(pid, script)?;
        let now = if self.later.is_listening(pid) { modules(&process) } else { Modules::new() };
        let known = self.later.swap(pid, now);
        let placing = Placing::of(script, &self.targets, &process, &known);
        if placing.is_empty() {
            return Ok(());
        }
        let asked = placing.asked();
        let asked: Vec<_> = asked.iter().map(|(spec, verb)| (spec, *verb)).collect();
        let plan = plan_each(&mut self.images, pid, &asked).map_err(|why| why.to_string())?;
        let programs = self.programs.as_ref();
        let reads = |number| programs.and_then(|all| all.get(number)).is_some_and(Program::reads_result);
        let left_by_jumps = tail_calls(&plan.sites);
        let mut put = placing.put(plan, &reads, &self.apart);
        let mut left_out = std::mem::take(&mut put.left_out);
        if let Some(names) = left_by_jumps.filter(|_| self.how.says) {
            eprintln!("WARNING: {names}: {LEFT_BY_JUMP}");
        }
        let sites = std::mem::take(&mut put.sites);
        if sites.is_empty() {
            self.left_out.extend(left_out);
            return if placing.has_any_of(&self.apart) { Ok(()) } else { Err(NOTHING.into()) };
        }
        self.tell(maps);
        let programs = self.compile(script, maps)?;
        let attach = Attach { programs, family: self.together.clone(), ..Attach::default() };
        let mut session = Session::attach_with(pid, sites, attach).map_err(|broken| broken.to_string())?;
        if self.asked.is_none() {
            session.follow_forks();
        }
        self.guard.tell(pid);
        if !session.reads_memory() {
            eprintln!(
                "WARNING: process {pid} has a seccomp filter that may end it for a read: memory beside its stack is not read"
            );
        }
        if let Some(ground) = session.ground().filter(|_| self.together.is_none()) {
            maps.borrow_mut().go_on_in(Arc::new(ground)).map_err(|why| why.to_string())?;
        }
        for (site, why) in session.missed() {
            left_out.extend(placing.missed(&put, site, &why.to_string(), is_curable(why)));
        }
        self.placed.extend(placing.placed(&left_out, &self.apart));
        self.left_out.extend(left_out);
        self.names.add(pid, session.family(), session.seen_stacks());
        self.family.add(session, put.natives, maps);
        Ok(())
    }

    /// A process as it is, of which it is heard from then on if it loads what it has not: where that can be, and if it was named.
    fn listened(&mut self, pid: i32, script: &Script) -> Result<Process, String> {
        let read = || Process::read(pid as u32).map_err(|why| why.to_string());
        let process = read()?;
        if !self.awaits || self.later.is_listening(pid) || !self.named().contains(&pid) {
            return Ok(process);
        }
        let missing = missing(script, &self.targets, &process);
        if missing.is_empty() {
            return Ok(process);
        }
        let files: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
        let files = files.join(", ");
        match self.later.listen(&mut self.images, pid) {
            Ok(()) if self.how.says => {
                eprintln!("WARNING: process {pid} has not loaded {files}: probed when it does")
            }
            Ok(()) => {}
            Err(why) => {
                let why = format!("process {pid} has not loaded {files}, and cannot be waited for: {why}");
                let names = names_in(script, &self.targets, &missing);
                self.left_out.extend(names.map(|(number, name)| LeftOut {
                    name,
                    why: why.clone(),
                    places: BTreeSet::from([number]),
                    is_curable: false,
                }));
            }
        }
        // What it has loaded in between is not missed.
        read()
    }

    /// The processes that were named, or the command's.
    fn named(&self) -> Vec<i32> {
        match &self.which {
            Which::Pids(pids) => pids.clone(),
            Which::Command(_) => self.launched.iter().map(Launched::pid).collect(),
            Which::All => Vec::new(),
        }
    }

    /// Whether a process that was named has not loaded one of the files.
    fn has_missing(&self, script: &Script) -> bool {
        let has = |pid: &i32| {
            let process = Process::read(*pid as u32);
            process.is_ok_and(|process| !missing(script, &self.targets, &process).is_empty())
        };
        self.named().iter().any(has)
    }

    /// Measures what hits will cost, if a budget is to be kept.
    fn price(&mut self, script: &Script) -> Result<(), String> {
        if self.awaits && self.asked.is_some() {
            return Err(
                "ERROR: --budget: the process has not loaded all files yet: try again when it has".into()
            );
        }
        self.budget = self.asked.as_ref().map(|asked| asked.budget(script)).transpose()?;
        Ok(())
    }

    /// What helpers ask of the world.
    fn tell(&self, maps: &Shared) {
        let mut maps = maps.borrow_mut();
        maps.keep_clock();
        maps.tell(offset_of!(MapsHead, began), self.began);
        maps.tell(offset_of!(MapsHead, child), self.child().into());
    }

    /// Every process that runs one of the files, and those to come.
    fn enter_all(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        let births = Births::listen().map_err(|why| format!("ERROR: {why}"))?;
        let files = wanted(script, &self.targets);
        for path in &files {
            births.watch(path).map_err(|why| format!("ERROR: {why}"))?;
        }
        self.births = Some(births);
        for pid in running(&files) {
            self.enter_or_say(pid, script, maps);
        }
        Ok(())
    }

    /// Enters a process that is one of many; why not is said.
    fn enter_or_say(&mut self, pid: i32, script: &Script, maps: &Shared) {
        if let Err(why) = self.enter(pid, script, maps)
            && self.how.says
            && Path::new(&format!("/proc/{pid}")).exists()
        {
            eprintln!("WARNING: process {pid} is not traced: {why}");
        }
    }

    /// Processes that were named, or the command; with `--follow` their children too, and theirs. Those that are forked meanwhile
    /// inherit the probes from a parent that has them, or are found by looking again.
    fn enter_named(&mut self, pids: &[i32], script: &Script, maps: &Shared) -> Result<(), String> {
        let who = |pid: i32| match &self.which {
            Which::Command(_) => "the command".to_owned(),
            _ => format!("process {pid}"),
        };
        let names: Vec<String> = pids.iter().map(|pid| who(*pid)).collect();
        for (pid, name) in pids.iter().zip(names) {
            // Before it is entered, so that nothing is started unheard.
            self.listen(*pid);
            let before = self.left_out.len();
            match self.enter(*pid, script, maps) {
                Err(why) if why == NOTHING => {
                    let out = &self.left_out[before..];
                    let places = out.iter().flat_map(|out| out.places.iter().copied()).collect();
                    let said = format!("ERROR: {name}: {why}: {}", causes(out));
                    self.nothing.get_or_insert((said, places));
                }
                other => other.map_err(|why| format!("ERROR: {name}: {why}"))?,
            }
        }
        let is_there = self.how.follows && self.launched.is_none();
        let mut seen: BTreeSet<i32> = pids.iter().copied().collect();
        for _ in 0..if is_there { LOOKS_FOR_CHILDREN } else { 0 } {
            let all = pids.iter().flat_map(|pid| descendants(*pid));
            let new: Vec<i32> = all.filter(|pid| seen.insert(*pid)).collect();
            if new.is_empty() {
                break;
            }
            for pid in new.into_iter().filter(|pid| !self.family.has_forked(*pid)).collect::<Vec<_>>() {
                self.listen(pid);
                self.enter_or_say(pid, script, maps);
            }
        }
        Ok(())
    }

    /// With `--follow`, hears of what a process and its children start.
    fn listen(&mut self, pid: i32) {
        if !self.how.follows {
            return;
        }
        if let Err(why) = self.started.listen(&mut self.images, pid)
            && self.how.says
        {
            eprintln!("WARNING: what process {pid} starts is not followed: {why}");
        }
    }

    /// Goes with those who execute one of the files, and with what followed processes start.
    fn welcome(&mut self, script: &Script, maps: &Shared) {
        loop {
            let stop = &self.stop;
            let Some(born) = self.births.as_mut().and_then(|births| births.next(&mut || stop.is_asked()))
            else {
                break;
            };
            self.enter_or_say(born.pid(), script, maps);
            // It is the first that runs the file, and waits for us.
            if let Err(why) = self.fall(script, maps) {
                eprintln!("{why}");
                self.how.falls = false;
            }
            drop(born);
        }
        for (pid, rung) in self.later.rung() {
            self.enter_or_say(pid, script, maps);
            self.later.answer(pid, rung);
        }
        // Whoever rings all the time must not keep us from looking at anything else.
        let end = Instant::now() + EXECS_LOOK;
        loop {
            let stop = &self.stop;
            let Some(held) = self.started.next(end, &mut || stop.is_asked()) else { break };
            self.listen(held.pid());
            self.enter_or_say(held.pid(), script, maps);
            drop(held);
        }
    }

    /// Names of places without a probe that the kernel's probes can have.
    fn curable(&self) -> BTreeSet<&str> {
        self.left_out.iter().filter(|out| out.is_curable).map(|out| out.name.as_str()).collect()
    }

    /// What has no probe, and who can have one there.
    fn say_left_out(&self) {
        let all: Vec<_> = self.left_out.iter().map(|out| (out.name.clone(), out.why.clone())).collect();
        say_left_out(&all.iter().collect::<Vec<_>>(), self.how.is_verbose);
        let n = self.curable().len();
        if let Some(cure) = self.how.cure.filter(|_| n > 0) {
            let them = if n == 1 { "one of them" } else { "of them" };
            let n = if n == 1 { String::new() } else { format!("{n} ") };
            eprintln!("WARNING: {cure} has {n}{them}, for a trap at each hit, about {KERNEL_PRICE}x dearer");
        }
    }

    /// Has the kernel do it all if nothing can be in a process, which is told with the reason and the price.
    ///
    /// # Errors
    /// Nor can the kernel: both causes.
    fn fall(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        let has_none = self.placed.is_empty() && !self.curable().is_empty() && self.later.is_empty();
        if !self.how.falls || !has_none || self.by_kernel.is_some() {
            return Ok(());
        }
        self.nothing = None;
        let causes = causes(&self.left_out);
        self.births = None;
        self.family.leave_all();
        self.load(script, maps).map_err(|why| {
            format!("ERROR: {NOTHING} in the process: {causes}\nERROR: nor by the kernel: {why}")
        })?;
        if self.how.says {
            eprintln!(
                "WARNING: {NOTHING} in the process ({causes}): the kernel's probes have it, for a trap at each hit, about \
                 {KERNEL_PRICE}x dearer; --backend inproc takes none"
            );
        }
        Ok(())
    }

    /// # Errors
    /// A process was named of which nobody has anything.
    fn check_all(&mut self) -> Result<(), String> {
        match self.nothing.take() {
            Some((said, places)) if places.is_disjoint(&self.apart) => Err(said),
            _ => Ok(()),
        }
    }

    /// Puts the kernel's probes where no jump can be, on maps that hold what ours do.
    fn load(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        self.check_out()?;
        let loaded = Loaded::load(script, (self.child(), self.began), self.names.clone(), None)?;
        let curable = self.left_out.iter().filter(|out| out.is_curable);
        let places: BTreeSet<u32> = curable.flat_map(|out| out.places.iter().copied()).collect();
        self.left_out.retain(|out| !out.is_curable);
        self.hand_over(loaded, places, script, maps)
    }

    /// # Errors
    /// Something of ours is in a process.
    fn check_out(&self) -> Result<(), String> {
        match self.family.receipt(0, None).1 {
            true => Ok(()),
            false => Err("what was put into the process for a jump is not out again".into()),
        }
    }

    /// The command's number, 0 without one.
    fn child(&self) -> u32 {
        self.launched.as_ref().map_or(0, |launched| launched.pid() as u32)
    }

    /// Has the kernel's programs run at these places, on maps that hold what ours do.
    fn hand_over(
        &mut self,
        mut loaded: Loaded,
        places: BTreeSet<u32>,
        script: &Script,
        maps: &Shared,
    ) -> Result<(), String> {
        loaded.take_over(script, maps)?;
        let pids = if matches!(self.which, Which::All) { vec![0] } else { self.named() };
        loaded.only(places);
        for pid in pids {
            loaded.link(script, &self.targets, pid)?;
        }
        loaded.check()?;
        let left_out = loaded.left_out();
        self.left_out.extend(left_out.map(|(name, why)| LeftOut {
            name,
            why,
            places: BTreeSet::new(),
            is_curable: false,
        }));
        self.successor = Some(loaded.engine());
        self.by_kernel = Some(loaded);
        Ok(())
    }

    /// Brings the maps up to date of which the kernel has a part.
    pub fn bring_all(&self, maps: &Shared) {
        self.by_kernel.iter().for_each(|loaded| loaded.bring_all(maps));
    }

    /// Empties what the kernel has of the maps.
    pub fn clear_aside(&self) {
        self.by_kernel.iter().for_each(Loaded::clear_all);
    }

    /// What has become of hits so far, by whoever had them.
    pub fn so_far(&self) -> Runs {
        let by_kernel = self.by_kernel.as_ref().map(Loaded::runs).unwrap_or_default();
        family::add(self.family.so_far(), by_kernel)
    }

    /// Whether a followed process is there, or a child of one that is traced.
    fn is_anyone_there(&mut self) -> bool {
        let (at, was_nobody) = self.looked;
        if at.elapsed() < OVER {
            return !was_nobody;
        }
        let is_anyone = self.family.is_alive()
            || self.started.is_alive()
            || self.later.is_alive()
            || self.how.follows && self.family.has_heirs();
        self.looked = (Instant::now(), !is_anyone);
        is_anyone
    }

    /// Samples of the processes, for the probes that run at samples.
    fn sample(&mut self, script: &Script) -> Result<(), String> {
        if !has_any(script) {
            return Ok(());
        }
        let whom = match &self.which {
            Which::All => vec![Whom::All],
            Which::Pids(pids) => pids.iter().map(|pid| Whom::Process(*pid)).collect(),
            Which::Command(_) => self.launched.iter().map(|launched| Whom::Process(launched.pid())).collect(),
        };
        // Its files are opened while it is there.
        whom.iter().for_each(|whom| {
            if let Whom::Process(pid) = whom {
                self.names.meet(*pid as u32);
            }
        });
        self.sampled.start(script, &whom)
    }

    /// The maps that all processes will have together, with what is in them by now.
    fn share(&mut self, maps: &Shared) -> Result<(), String> {
        let image = maps.borrow().image();
        let together = FamilyMaps::new(&image).map_err(|broken| format!("ERROR: {broken}"))?;
        let ground = Arc::new(together.ground());
        maps.borrow_mut().go_on_in(ground).map_err(|why| format!("ERROR: {why}"))?;
        self.together = Some(together);
        Ok(())
    }
}

impl Traced for Live<'_> {
    fn start(&mut self) -> Result<u32, String> {
        self.launched = command::start(&self.which, &mut self.stop, self.guard)?;
        Ok(self.launched.as_ref().map_or(0, |launched| launched.pid() as u32))
    }

    fn attach(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        let has_targets = script.probes.iter().any(|probe| matches!(probe.event, Event::Target(_)));
        let compiled = if has_targets { self.compile(script, maps).map(Some) } else { Ok(None) };
        let compiled = compiled.map(|programs| self.programs = programs);
        self.awaits = has_targets && self.has_missing(script);
        // Before anything is in.
        let compiled = compiled.and_then(|()| self.price(script));
        let shared = match compiled {
            Ok(()) if has_targets && self.is_many() => self.share(maps),
            compiled => compiled,
        };
        // What hits cost is looked at before anything else is done.
        let haste = self.budget.as_ref().map(|_| session::Haste::from_attach());
        let entered = match (&self.which, has_targets) {
            _ if shared.is_err() => shared,
            (_, false) => Ok(()),
            (Which::All, true) => self.enter_all(script, maps),
            (Which::Pids(pids), true) => self.enter_named(&pids.clone(), script, maps),
            (Which::Command(_), true) => {
                let pid = self.launched.as_ref().map_or(0, Launched::pid);
                self.enter_named(&[pid], script, maps)
            }
        };
        let entered = entered
            .and_then(|()| self.fall(script, maps))
            .and_then(|()| self.divide(script, maps))
            .and_then(|()| self.check_all())
            .and_then(|()| self.sample(script));
        if let Err(why) = entered {
            if let Some(launched) = self.launched.take() {
                launched.abandon();
            }
            return Err(why);
        }
        if self.how.says && has_targets {
            self.say_left_out();
        }
        if let Some(budget) = &mut self.budget {
            budget.begin(&mut self.family);
        }
        drop(haste);
        if let Some(launched) = &self.launched {
            launched.go();
        }
        Ok(())
    }

    fn successor(&mut self) -> Option<Box<dyn Engine>> {
        self.successor.take()
    }

    fn left_out(&self) -> BTreeSet<String> {
        let placed: BTreeSet<&String> = self.placed.values().collect();
        let names = self.left_out.iter().map(|out| &out.name);
        names.filter(|name| !placed.contains(name)).cloned().collect()
    }

    fn aside(&self) -> BTreeSet<u32> {
        self.apart.clone()
    }

    fn is_any(&self) -> bool {
        true
    }

    fn pause(&self) -> Option<Duration> {
        (self.how.follows || !self.later.is_empty()).then_some(EXECS)
    }

    fn watched(&self) -> Vec<i32> {
        std::iter::once(self.stop.watched()).chain(self.births.as_ref().map(Births::watched)).collect()
    }

    fn look(&mut self, script: &Script, maps: &Shared) -> Look {
        session::tidy();
        self.welcome(script, maps);
        if self.family.look() {
            self.names.look_for_names();
        }
        if let Some(budget) = &mut self.budget {
            budget.look(&mut self.family);
        }
        if self.stop.is_asked() {
            return Look::Asked;
        }
        let is_over = match &self.which {
            Which::Command(_) => self.launched.as_ref().is_some_and(|launched| launched.ended().is_some()),
            Which::Pids(pids)
                if self.family.is_empty() && self.started.is_empty() && self.later.is_empty() =>
            {
                !pids.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists())
            }
            Which::Pids(_) => !self.is_anyone_there(),
            Which::All => false,
        };
        if is_over { Look::Over } else { Look::On }
    }

    fn meanwhile(&mut self) {
        if let Some(budget) = &mut self.budget {
            budget.look(&mut self.family);
        }
    }

    fn samples(&mut self) -> Vec<(usize, lang::run::Sample)> {
        self.sampled.take()
    }

    fn lost_samples(&self) -> u64 {
        self.sampled.lost()
    }

    fn detach(&mut self) {
        self.sampled.stop();
        let missed = self.births.take().map_or(0, |births| births.missed());
        if missed > 0 && self.how.says {
            eprintln!(
                "WARNING: {missed} programs that were started went untraced: they could not be entered in time"
            );
        }
        self.started.close().iter_mut().for_each(|session| self.family.detach(session));
        self.later.close().iter_mut().for_each(|session| self.family.detach(session));
        if let Some(budget) = &mut self.budget {
            budget.end(&self.family);
            self.in_children =
                self.family.sessions().flat_map(Session::sites).map(|site| site.children_hits()).sum();
        }
        self.family.leave_all();
        self.by_kernel.iter_mut().for_each(Loaded::unlink);
        let (unheard, forged) = (self.started.unheard(), self.started.forged());
        if unheard > 0 && self.how.says {
            eprintln!("WARNING: {unheard} programs were started faster than they could be followed");
        }
        if forged > 0 && self.how.says {
            eprintln!("WARNING: {forged} times a process said that a thread would exec which is not its own");
        }
        self.launched.iter().for_each(command::end);
    }

    fn told(&mut self) -> Option<Told> {
        let budget = self.budget.as_ref()?;
        let mut text = format!("nanoprobe: {}", budget.line());
        if self.in_children > 0 {
            text += &format!("; {} hits in forked children were not counted", self.in_children);
        }
        let is_needed = !budget.sampled().is_empty() || self.in_children > 0;
        Some(Told { text, json: budget.json().to_string(), is_needed })
    }

    fn receipt(&mut self) -> (Vec<String>, bool) {
        let n = self.left_out.len();
        match &self.by_kernel {
            Some(loaded) if self.apart.is_empty() => (loaded.receipt(n), self.family.receipt(0, None).1),
            Some(loaded) => {
                let (mut lines, is_clean) = self.family.receipt(n, Some(loaded.runs()));
                lines.push(loaded::OUT.to_owned());
                (lines, is_clean)
            }
            None => self.family.receipt(n, None),
        }
    }
}

/// Machine code of the programs of a script that run at hits, on maps that lie as these do.
///
/// # Errors
/// One that cannot run there.
pub fn compile(script: &Script, maps: &Shared) -> Result<Vec<Program>, String> {
    let mut compiler = Compiler::new().map_err(|why| format!("ERROR: no compiler: {why}"))?;
    let maps = maps.borrow();
    let at = |offset: usize| u32::try_from(wire::MAPS + offset).ok().map(Meaning::Arena);
    let meaning = |wide: bpf::Wide| match wide {
        bpf::Wide::MapIndex(number) => at(maps.handle(usize::try_from(number).ok()?)?),
        bpf::Wide::MapValueIndex { index: bpf::helper::CONSTANTS, offset } => {
            at(maps.constants() + offset as usize)
        }
        _ => None,
    };
    let near = |wide: bpf::Wide| match wide {
        bpf::Wide::MapIndex(number) => maps.near(usize::try_from(number).ok()?, wire::MAPS),
        _ => None,
    };
    let mut programs = Vec::new();
    for probe in script.probes.iter().filter(|probe| matches!(probe.event, Event::Target(_))) {
        // What lang lowers is safe by construction.
        let wanted = Wanted {
            name: &probe.name,
            level: Level::Own,
            scratch: probe.scratch,
            meaning: &meaning,
            near: &near,
            ..Wanted::default()
        };
        let program = Program::new(&mut compiler, &probe.program, &wanted);
        programs.push(program.map_err(|why| format!("ERROR: {}: {}", probe.name, in_words(&why)))?);
    }
    Ok(programs)
}

/// Why places have no probe, in short.
fn causes(all: &[LeftOut]) -> String {
    let pairs: Vec<_> = all.iter().map(|out| (out.name.clone(), out.why.clone())).collect();
    let whys = || pairs.iter().map(|(_, why)| why.as_str()).collect::<BTreeSet<_>>();
    let in_short = render::in_short(&pairs.iter().collect::<Vec<_>>(), false);
    in_short.unwrap_or_else(|| whys().into_iter().collect::<Vec<_>>().join("; and "))
}

/// What has no probe, by causes if it is much.
pub fn say_left_out(all: &[&(String, String)], is_verbose: bool) {
    match render::in_short(all, is_verbose) {
        Some(causes) => eprintln!("WARNING: {} places are left out: {causes}; -v shows each", all.len()),
        None => all.iter().for_each(|(name, why)| eprintln!("WARNING: {name} is left out: {why}")),
    }
}

/// Whether the kernel's probes can be where a session's cannot, for this reason.
fn is_curable(why: &Missed) -> bool {
    matches!(why, Missed::LittleStack | Missed::ProgramByKernel | Missed::NoRoom)
}

/// Why a program can't run at hits; what is not in targets yet, by the script's words.
fn in_words(why: &NotProgram) -> String {
    use bpf::helper;
    let NotProgram::Refused(Refused { why: Refusal::NoHelper { number }, .. }) = why else {
        return why.to_string();
    };
    let what = match u32::try_from(*number).unwrap_or(0) {
        helper::NAME_OF => "strerror(), signal_name() or syscall_name()",
        helper::COMM_OF => "comm() of another process",
        helper::ABOUT => "ppid, pcomm, leader_tid, leader_comm or cgroup",
        _ => return why.to_string(),
    };
    format!("{what} is not possible at hits in this version")
}

/// Processes whose program is one of these files, but for us and those whose children we are.
fn running(files: &[std::path::PathBuf]) -> Vec<i32> {
    let ids: Vec<_> = files.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
    let own = ancestors();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let runs = |pid: &i32| {
        let Ok(process) = Process::read(*pid as u32) else { return false };
        let main = process.modules.iter().find(|module| module.kind == ModuleKind::MainExecutable);
        main.is_some_and(|module| ids.contains(&module.path))
    };
    let mut found: Vec<i32> = pids.filter(|pid| !own.contains(pid)).filter(runs).collect();
    found.truncate(PROCESSES_MAX);
    found
}

/// This process, its parent, and so on.
fn ancestors() -> Vec<i32> {
    let mut found = vec![std::process::id() as i32];
    while let Some(parent) = crate::asked::parent(found[found.len() - 1]).filter(|parent| *parent > 0) {
        if found.contains(&parent) {
            break;
        }
        found.push(parent);
    }
    found
}
