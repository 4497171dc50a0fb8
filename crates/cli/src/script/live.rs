//! A script's probes in traced processes.
//!
//! For:     the machine of crate lang, which runs the rest of a script.
//! State:   the processes that were entered, the command, who is waited for.
//! Context: control; the engine process, one thread.
//! Keeps:   V1 what could not be probed is left out by name, and all of it is an error.
//!          V2 every process is left, however the run ends, and what is left behind is told.
//! Checked: testkit `scripts`.

use super::command;
use super::names::Names;
use super::native::{Natives, Taken};
use super::place::{Placing, wanted};
use crate::guard::Guard;
use crate::probes::{TAIL_CALL, tail_calls};
use crate::render;
use crate::stop::Stop;
use image::{ModuleKind, Process};
use jit::{Compiler, Level, Meaning, Refusal, Refused};
use lang::Targets;
use lang::program::{Event, Script};
use lang::run::{Look, Shared, Traced};
use session::{
    Attach, Births, Images, Launched, NotProgram, Program, Programs, Receipt, Runs, Session, Wanted,
    check_process, plan_each,
};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::maps::MapsHead;

/// Processes that are traced at once, at most.
const PROCESSES_MAX: usize = 300;
/// How often it is looked whether a process has taken a seccomp filter.
const FILTERS: Duration = Duration::from_millis(50);
/// How often a detach that failed is tried again.
const DETACHES: usize = 3;

/// Which processes.
pub enum Which {
    /// One that runs.
    Pid(i32),
    /// A command that is started.
    Command(Vec<String>),
    /// All that run a traced file.
    All,
}

/// The processes of a run.
pub struct Live<'g> {
    which: Which,
    targets: Targets,
    programs: Option<Programs>,
    images: Images,
    sessions: Vec<Session>,
    /// Of each process: the sites that run no program.
    natives: BTreeMap<i32, Natives>,
    taken: Taken,
    maps: Option<Shared>,
    launched: Option<Launched>,
    births: Option<Births>,
    filters_at: Instant,
    /// Of the sessions that have left.
    receipts: Vec<Receipt>,
    runs: Runs,
    /// Places without a probe, and why.
    left_out: Vec<(String, String)>,
    names: Rc<Names>,
    stop: Stop,
    guard: &'g mut Guard,
    says: bool,
    /// Each place that is left out, however many.
    is_verbose: bool,
    /// When tracing began, by the clock that goes on in suspend.
    began: u64,
}

impl<'g> Live<'g> {
    /// Nothing is entered yet. `says`: what is left out is told.
    pub fn new(
        which: Which,
        targets: Targets,
        names: Rc<Names>,
        stop: Stop,
        guard: &'g mut Guard,
        says: bool,
        is_verbose: bool,
    ) -> Live<'g> {
        Live {
            which,
            targets,
            programs: None,
            images: Images::default(),
            sessions: Vec::new(),
            natives: BTreeMap::new(),
            taken: Taken::default(),
            maps: None,
            launched: None,
            births: None,
            filters_at: Instant::now(),
            receipts: Vec::new(),
            runs: Runs::default(),
            left_out: Vec::new(),
            names,
            stop,
            guard,
            says,
            is_verbose,
            began: sys::clock_ns(sys::BOOTTIME),
        }
    }

    /// Machine code of the programs that run at hits, and the maps as they are now.
    fn compile(&self, script: &Script, maps: &Shared) -> Result<Programs, String> {
        if let Some(programs) = &self.programs {
            return Ok(programs.with_maps(maps.borrow().image()));
        }
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
        let mut programs = Vec::new();
        for probe in script.probes.iter().filter(|probe| matches!(probe.event, Event::Target(_))) {
            // What lang lowers is safe by construction.
            let wanted = Wanted {
                name: &probe.name,
                level: Level::Own,
                scratch: probe.scratch,
                meaning: &meaning,
                ..Wanted::default()
            };
            let program = Program::new(&mut compiler, &probe.program, &wanted);
            programs.push(program.map_err(|why| format!("ERROR: {}: {}", probe.name, in_words(&why)))?);
        }
        Ok(Programs::new(programs, maps.image()))
    }

    /// Enters a process; an error says why not. One that maps none of the files is let be.
    fn enter(&mut self, pid: i32, script: &Script, maps: &Shared) -> Result<(), String> {
        self.bury();
        check_process(pid).map_err(|broken| broken.to_string())?;
        let process = Process::read(pid as u32).map_err(|why| why.to_string())?;
        let placing = Placing::of(script, &self.targets, &process);
        if placing.is_empty() {
            return Ok(());
        }
        if let Some(session) = self.sessions.first() {
            // Each process has the maps in its own memory.
            let other = session.pid();
            return Err(format!(
                "process {other} is, and the maps of a script lie in one process at a time in this version"
            ));
        }
        let asked = placing.asked();
        let asked: Vec<_> = asked.iter().map(|(spec, verb)| (spec, *verb)).collect();
        let plan = plan_each(&mut self.images, pid, &asked).map_err(|why| why.to_string())?;
        let (sites, natives, left_out) = placing.put(plan);
        self.left_out.extend(left_out);
        if let Some(names) = tail_calls(&sites).filter(|_| self.says) {
            eprintln!("WARNING: {names}: {TAIL_CALL}");
        }
        if sites.is_empty() {
            return Err("nothing of it can be probed".into());
        }
        self.tell(pid, maps);
        let programs = self.compile(script, maps)?;
        let attach = Attach { programs, ..Attach::default() };
        let mut session = Session::attach_with(pid, sites, attach).map_err(|broken| broken.to_string())?;
        session.follow_forks();
        self.guard.tell(pid);
        if let Some(ground) = session.ground() {
            maps.borrow_mut().go_on_in(Arc::new(ground)).map_err(|why| why.to_string())?;
        }
        self.left_out.extend(session.missed().iter().map(|(site, why)| (site.name.clone(), why.to_string())));
        self.names.add(pid, session.seen_stacks());
        self.natives.insert(pid, natives);
        self.maps = Some(Rc::clone(maps));
        self.sessions.push(session);
        Ok(())
    }

    /// What helpers ask of the world, for one process.
    fn tell(&self, pid: i32, maps: &Shared) {
        // Helpers are told by the session, when it attaches.
        if session::is_filtered(pid).unwrap_or(true) {
            eprintln!(
                "WARNING: process {pid} has a seccomp filter that may end it for a read: memory beside its stack is not read"
            );
        }
        let maps = maps.borrow();
        maps.tell(offset_of!(MapsHead, began), self.began);
        maps.tell(offset_of!(MapsHead, child), self.launched.as_ref().map_or(0, |l| l.pid() as u64));
    }

    /// Every process that runs one of the files, and those to come.
    fn enter_all(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        let births = Births::listen().map_err(|why| format!("ERROR: {why}"))?;
        let files = wanted(script, &self.targets);
        for path in &files {
            births.watch(path).map_err(|why| format!("ERROR: {why}"))?;
            let file = self.targets.files().iter().find(|file| file.path == *path);
            if self.says && file.is_some_and(|file| file.image.soname().is_some()) {
                eprintln!(
                    "WARNING: {} is a library: name a process that uses it with -p, or a command with -c",
                    path.display()
                );
            }
        }
        self.births = Some(births);
        for pid in running(&files) {
            if let Err(why) = self.enter(pid, script, maps)
                && self.says
            {
                eprintln!("WARNING: process {pid} is not traced: {why}");
            }
        }
        Ok(())
    }

    /// Goes with those who execute one of the files.
    fn welcome(&mut self, script: &Script, maps: &Shared) {
        loop {
            let stop = &self.stop;
            let Some(born) = self.births.as_mut().and_then(|births| births.next(&mut || stop.is_asked()))
            else {
                return;
            };
            let pid = born.pid();
            if self.sessions.len() >= PROCESSES_MAX {
                eprintln!("WARNING: process {pid} is not traced: {PROCESSES_MAX} are already");
            } else if let Err(why) = self.enter(pid, script, maps)
                && self.says
            {
                eprintln!("WARNING: process {pid} is not traced: {why}");
            }
            drop(born);
        }
    }

    /// What has no probe, by causes if it is much; and that nothing has one.
    fn say_left_out(&self) {
        let all: Vec<&(String, String)> = self.left_out.iter().collect();
        match render::in_short(&all, self.is_verbose) {
            Some(causes) => eprintln!("WARNING: {} places are left out: {causes}; -v shows each", all.len()),
            None => all.iter().for_each(|(name, why)| eprintln!("WARNING: {name} is left out: {why}")),
        }
        let pid = match self.which {
            Which::Pid(pid) => pid,
            Which::Command(_) => self.launched.as_ref().map_or(0, Launched::pid),
            Which::All => return,
        };
        if self.sessions.is_empty() {
            let files: Vec<String> =
                self.targets.files().iter().map(|f| f.path.display().to_string()).collect();
            eprintln!(
                "WARNING: process {pid} has none of these files mapped, and no probe: {}",
                files.join(", ")
            );
        }
    }

    /// Leaves processes that have ended, so that their number says nothing.
    fn bury(&mut self) {
        let (alive, over): (Vec<Session>, Vec<Session>) =
            std::mem::take(&mut self.sessions).into_iter().partition(Session::is_alive);
        self.sessions = alive;
        over.into_iter().for_each(|session| self.leave(session));
    }

    fn leave(&mut self, mut session: Session) {
        let mut receipt = session.detach();
        for _ in 1..DETACHES {
            if receipt.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
            receipt = session.detach();
        }
        match receipt {
            Ok(receipt) => self.receipts.push(receipt),
            Err(broken) => {
                eprintln!("ERROR: process {}: detach failed: {broken}", session.pid());
                self.receipts.push(Receipt::default());
            }
        }
        for (_, runs) in session.sites().flat_map(|site| site.runs()) {
            self.runs = add(self.runs, runs);
        }
        if let Some((natives, maps)) = self.natives.remove(&session.pid()).zip(self.maps.as_ref()) {
            natives.collect(&session, maps, &mut self.taken);
            self.runs.ran = self.runs.ran.saturating_add(natives.hits(&session));
        }
        self.taken.forget(session.pid());
        for number in 0..session.programs().len() as u32 {
            if let Some(fault) = session.last_fault(number) {
                let name = session.programs().get(number).map_or("", Program::name);
                eprintln!("ERROR: {name}: ended before its end: {fault}");
            }
        }
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
        let entered = match (&self.which, has_targets) {
            _ if compiled.is_err() => compiled,
            (_, false) => Ok(()),
            (Which::All, true) => self.enter_all(script, maps),
            (Which::Pid(pid), true) => {
                let pid = *pid;
                self.enter(pid, script, maps).map_err(|why| format!("ERROR: process {pid}: {why}"))
            }
            (Which::Command(_), true) => {
                let pid = self.launched.as_ref().map_or(0, Launched::pid);
                self.enter(pid, script, maps).map_err(|why| format!("ERROR: the command: {why}"))
            }
        };
        if let Err(why) = entered {
            if let Some(launched) = self.launched.take() {
                launched.abandon();
            }
            return Err(why);
        }
        if self.says && has_targets {
            self.say_left_out();
        }
        if let Some(launched) = &self.launched {
            launched.go();
        }
        Ok(())
    }

    fn is_any(&self) -> bool {
        true
    }

    fn watched(&self) -> Vec<i32> {
        std::iter::once(self.stop.watched()).chain(self.births.as_ref().map(Births::watched)).collect()
    }

    fn look(&mut self, script: &Script, maps: &Shared) -> Look {
        session::tidy();
        self.welcome(script, maps);
        self.sessions.iter_mut().for_each(Session::look_for_tables);
        for session in &self.sessions {
            if let Some(natives) = self.natives.get(&session.pid()) {
                natives.collect(session, maps, &mut self.taken);
            }
        }
        if self.filters_at.elapsed() >= FILTERS {
            self.sessions.iter().for_each(Session::look_for_filters);
            self.filters_at = Instant::now();
        }
        if self.stop.is_asked() {
            return Look::Asked;
        }
        let is_over = match &self.which {
            Which::Command(_) => self.launched.as_ref().is_some_and(|launched| launched.ended().is_some()),
            Which::Pid(_) => !self.sessions.is_empty() && !self.sessions.iter().any(Session::is_alive),
            Which::All => false,
        };
        if is_over { Look::Over } else { Look::On }
    }

    fn detach(&mut self) {
        let missed = self.births.take().map_or(0, |births| births.missed());
        if missed > 0 && self.says {
            eprintln!(
                "WARNING: {missed} programs that were started went untraced: they could not be entered in time"
            );
        }
        std::mem::take(&mut self.sessions).into_iter().for_each(|session| self.leave(session));
        self.launched.iter().for_each(command::end);
    }

    fn receipt(&mut self) -> (Vec<String>, bool) {
        let runs = self.runs;
        let is_clean = self.receipts.iter().all(Receipt::is_verified);
        let causes: Vec<String> = [
            ("nested", runs.nested),
            ("no workspace", runs.no_workspace),
            ("out of fuel", runs.fuel),
            ("fault", runs.fault),
            ("in a child", runs.child),
        ]
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(cause, n)| format!("{n} {cause}"))
        .collect();
        let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
        let (hits, ran, skipped, left_out) = (runs.hits(), runs.ran, runs.skipped(), self.left_out.len());
        let hits =
            format!("Hits {hits}: {ran} handled, {skipped} skipped{causes}; {left_out} places left out.");
        let verified = match (self.receipts.iter().all(Receipt::was_gone), is_clean) {
            (true, _) => "Detach verified: yes: nothing to restore, the process ended.",
            (_, true) => "Detach verified: yes.",
            (_, false) => "Detach verified: NO.",
        };
        let lines = vec![hits, verified.to_owned()];
        if self.receipts.is_empty() { (Vec::new(), true) } else { (lines, is_clean) }
    }
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
        helper::WRITE_USER => "write_user()",
        helper::SEND_SIGNAL => "signal()",
        _ => return why.to_string(),
    };
    format!("{what} is not possible at hits in this version")
}

fn add(a: Runs, b: Runs) -> Runs {
    Runs {
        ran: a.ran.saturating_add(b.ran),
        nested: a.nested.saturating_add(b.nested),
        no_workspace: a.no_workspace.saturating_add(b.no_workspace),
        fuel: a.fuel.saturating_add(b.fuel),
        fault: a.fault.saturating_add(b.fault),
        child: a.child.saturating_add(b.child),
    }
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
