//! All probes of a run: those of the start, those in libraries that are loaded later, those in programs that are started.
//!
//! For:     the engine.
//! State:   a session for each time that probes were put in; which modules were there when we last looked.
//! Context: control.
//! Keeps:   P1 with `--wait`, a module is probed before anything in it runs, each time that it is loaded.
//!          P2 with `--follow`, so is a program that the process or a child of it execs, before its entry point.
//! Checked: testkit `loading`, `follows`.

use crate::advice;
use crate::args::Shape;
use crate::engine::Job;
use crate::render::Writer;
use crate::started::{Started, descendants};
use crate::top::Place;
use image::lookup::{LookupError, find_file, find_module};
use image::spec::Library;
use image::{Module, Process, Spec};
use session::{
    Broken, Deaf, Held, Images, Loads, Missed, Pace, Plan, PlanError, Receipt, Rung, Session, SitePlan, Verb,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long one look at the doorbells may take, and what came of the last.
const EXECS_LOOK: Duration = Duration::from_millis(50);
/// So many programs are followed that were hit or run.
const FOLLOWED_MAX: usize = 300;

/// How often we look for children until none is new.
const LOOKS_FOR_CHILDREN: usize = 20;

/// Path and lowest address of each module.
pub type Modules = BTreeSet<(String, u64)>;

/// What is in the process.
pub struct Probes {
    pid: i32,
    sessions: Vec<Session>,
    loads: Option<Loads>,
    /// Programs that are started.
    started: Started,
    /// Files that programs share.
    images: Images,
    /// Other sets of probes at the same functions, for other verbs.
    beside: Vec<Session>,
    /// What listened, once it is closed.
    closed: Vec<Session>,
    seen: Modules,
    /// Of all sessions that have left.
    receipt: Option<Receipt>,
}

impl Probes {
    /// Plans and attaches; on failure the exit code, with everything said.
    pub fn attach(job: &Job, pid: i32, writer: &mut Writer, pace: Pace) -> Result<Probes, i32> {
        session::check_process(pid).map_err(|b| advice::cannot_attach(&b))?;
        // Listened to before we look, so that nothing is loaded unseen in between.
        let mut images = Images::with_pace(pace);
        let loads = match job.args.wait {
            true => Some(Loads::listen(&mut images, pid).map_err(|deaf| cannot_listen(&deaf))?),
            false => None,
        };
        let (sessions, started, closed, seen) = (Vec::new(), Started::default(), Vec::new(), Modules::new());
        let mut probes =
            Probes { pid, sessions, loads, started, images, beside: Vec::new(), closed, seen, receipt: None };
        if job.args.follow {
            probes.listen_to_execs(pid, writer);
        }
        match probes.attach_first(job, writer) {
            Ok(()) => Ok(probes),
            Err(code) => {
                let _ = probes.detach();
                Err(code)
            }
        }
    }

    /// Makes tables of what was loaded since, for walks of stacks; true if they have met such, or code that
    /// programs have made.
    pub fn look_for_tables(&mut self) -> bool {
        let all = self.sessions.iter_mut().chain(&mut self.beside);
        // Each is looked at.
        all.filter_map(|session| session.look_for_tables().then_some(())).count() > 0
    }

    fn attach_first(&mut self, job: &Job, writer: &mut Writer) -> Result<(), i32> {
        let shown = job.args.pid;
        let is_patient = self.loads.is_some() || !self.started.is_empty();
        let process = is_patient.then(|| Process::read(self.pid as u32).ok()).flatten();
        self.seen = process.as_ref().map(modules).unwrap_or_default();
        let is_awaited = |spec: &&Spec| {
            process.as_ref().is_some_and(|p| is_missing(&spec.library, p)) && find_file(&spec.library).is_ok()
        };
        let (awaited, here): (Vec<&Spec>, Vec<&Spec>) = job.specs.iter().partition(is_awaited);
        let here: Vec<Spec> = here.into_iter().cloned().collect();
        if !here.is_empty() {
            let plan = session::plan_with(&mut self.images, self.pid, &here, job.verb)
                .map_err(|e| advice::nowhere(&e, shown))?;
            let (session, refused, missed) = put_in(job, self.pid, plan)?;
            self.add(session, job);
            self.take_in_children(job, writer);
            writer.attached(&self.sessions, &refused, &missed);
            writer.say_grace(&mut self.sessions);
        } else if self.take_in_children(job, writer) {
            writer.attached(&self.sessions, &[], &[]);
        }
        if !awaited.is_empty() {
            writer.waiting(&awaited, self.sessions.is_empty());
        }
        Ok(())
    }

    fn add(&mut self, mut session: Session, job: &Job) {
        // Calls of forked children are counted, but nobody times or shows them: they must not look as if.
        if job.args.follow && !matches!(job.verb, Verb::Latency | Verb::Trace { .. }) {
            session.follow_forks();
        }
        self.sessions.push(session);
    }

    /// The sessions so far.
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// True as long as the process runs the program that we attached to, or one of those that are followed runs.
    pub fn is_alive(&self) -> bool {
        self.loads.as_ref().is_some_and(Loads::is_alive)
            || self.sessions.iter().any(Session::is_alive)
            || self.started.is_alive()
    }

    /// True if loads are listened to: [`Probes::listen`] then waits instead of the caller.
    pub fn is_listening(&self) -> bool {
        self.loads.is_some()
    }

    /// Waits for a library, at most so long, and probes it.
    pub fn listen(&mut self, timeout: Duration, job: &Job, writer: &mut Writer) {
        let Some(rung) = self.loads.as_ref().and_then(|l| l.wait(timeout)) else { return };
        self.follow(job, writer);
        if let Some(loads) = &self.loads {
            loads.answer(rung);
        }
    }

    /// Probes what is new.
    fn follow(&mut self, job: &Job, writer: &mut Writer) {
        let Ok(process) = Process::read(self.pid as u32) else { return };
        let now = modules(&process);
        let new: BTreeSet<u64> = now.difference(&self.seen).map(|(_, start)| *start).collect();
        self.seen = now;
        let here = present(job, &process);
        if new.is_empty() || here.is_empty() {
            return;
        }
        let plan = session::plan_with(&mut self.images, self.pid, &here, job.verb);
        let mut plan = match plan {
            Ok(plan) => plan,
            Err(error) => return writer.not_followed(&error.to_string()),
        };
        plan.sites.retain(|site| new.contains(&site.module_range.start));
        if let Err(broken) = self.put_more(job, self.pid, plan, Writer::followed, writer) {
            writer.not_followed(&broken.to_string());
        }
    }

    /// Attaches to what a plan has left that is wanted, if anything.
    fn put_more(
        &mut self,
        job: &Job,
        pid: i32,
        plan: Plan,
        say: impl Fn(&mut Writer, &Session),
        writer: &mut Writer,
    ) -> Result<(), Broken> {
        let sites: Vec<SitePlan> = plan.sites.into_iter().filter(|site| is_wanted(job, site)).collect();
        if let Some(what) = cannot_nest(job, &sites) {
            writer.not_followed(&what);
        } else if !sites.is_empty() {
            let session = Session::attach(pid, sites)?;
            say(writer, &session);
            self.add(session, job);
        }
        Ok(())
    }

    /// With `--follow`, probes the children of the process, and theirs, that were there before us; true if there are such. Those
    /// that are forked meanwhile inherit the probes from a parent that has them, or are found by looking again.
    fn take_in_children(&mut self, job: &Job, writer: &mut Writer) -> bool {
        let before = self.sessions.len();
        let mut seen = BTreeSet::from([self.pid]);
        for _ in 0..if job.args.follow && job.args.pid.is_some() { LOOKS_FOR_CHILDREN } else { 0 } {
            let new: Vec<i32> = descendants(self.pid).into_iter().filter(|pid| seen.insert(*pid)).collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                if self.sessions.iter().any(|s| s.is_inherited_by(pid)) {
                    continue;
                }
                if let Err(why) = self.take_in(pid, job, writer) {
                    writer.not_taken_in(pid, &why);
                }
            }
        }
        self.sessions.len() > before
    }

    fn take_in(&mut self, pid: i32, job: &Job, writer: &mut Writer) -> Result<(), String> {
        if self.sessions.len() >= FOLLOWED_MAX {
            return Err(format!("{FOLLOWED_MAX} processes are followed already"));
        }
        let Ok(process) = Process::read(pid as u32) else { return Ok(()) };
        let here = present(job, &process);
        self.listen_to_execs(pid, writer);
        if here.is_empty() {
            return Ok(());
        }
        let plan = match session::plan_with(&mut self.images, pid, &here, job.verb) {
            Ok(plan) => plan,
            Err(PlanError::NoMatch(..)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        match self.put_more(job, pid, plan, |_, _| (), writer) {
            Err(broken) if !matches!(broken, Broken::Gone { .. } | Broken::NoProcess { .. }) => {
                Err(broken.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Puts probes of another kind into one function, in a session of their own, which is not among [`sessions`](Self::sessions).
    pub fn put_beside(&mut self, place: &Place, job: &Job, verb: Verb) -> Result<Session, String> {
        let text = format!("u:{}:{}", place.module, place.name);
        let spec = Spec::parse(&text).map_err(|e| e.to_string())?;
        let plan =
            session::plan_with(&mut self.images, place.pid, &[spec], verb).map_err(|e| e.to_string())?;
        let refused = plan.refused.into_iter().next().map(|r| r.why);
        let sites: Vec<SitePlan> = plan.sites.into_iter().filter(|site| is_wanted(job, site)).collect();
        let is_there = |site: &SitePlan| !matches!(verb, Verb::Trace { .. }) || site.traces().is_some();
        if !sites.iter().any(is_there) {
            return Err(refused.unwrap_or_else(|| "no jump fits all its entries and returns".into()));
        }
        Session::attach(place.pid, sites).map_err(|broken| broken.to_string())
    }

    /// Takes out a session that [`put_beside`](Self::put_beside) has made; what cannot leave now goes with the others.
    pub fn leave(&mut self, mut session: Session) -> Result<(), String> {
        match session.detach() {
            Ok(receipt) => {
                self.receipt = Some(match self.receipt.take() {
                    Some(sum) => sum.and(receipt),
                    None => receipt,
                });
                Ok(())
            }
            Err(broken) => {
                self.closed.push(session);
                Err(broken.to_string())
            }
        }
    }

    /// Puts probes for another verb at the same functions, in a session of their own, which is not among
    /// [`sessions`](Self::sessions) and leaves before them.
    pub fn attach_beside(&mut self, job: &Job, verb: Verb) -> Result<(), String> {
        let plan =
            session::plan_with(&mut self.images, self.pid, &job.specs, verb).map_err(|e| e.to_string())?;
        let is_known =
            |site: &SitePlan| self.sessions.iter().flat_map(Session::sites).any(|s| s.plan.name == site.name);
        let sites: Vec<SitePlan> =
            plan.sites.into_iter().filter(|site| is_wanted(job, site) && is_known(site)).collect();
        if sites.is_empty() {
            return Err("no jump fits any of the sites".into());
        }
        self.beside.push(Session::attach(self.pid, sites).map_err(|broken| broken.to_string())?);
        Ok(())
    }

    /// Switches a function's probes off or on, in one of the sessions; why not.
    pub fn switch(&mut self, session: usize, addr: u64, is_on: bool) -> Result<(), String> {
        let session = self.sessions.get_mut(session).ok_or("its process is gone")?;
        session
            .switch(addr, is_on)
            .map_err(|_| "its hits are counted in the jump itself, or by the kernel".to_owned())
    }

    /// Takes the jumps of functions out for a while, in one of the sessions; how long a thread stood still, or why not.
    pub fn lift(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String> {
        let session = self.sessions.get_mut(session).ok_or("its process is gone")?;
        session.lift(addrs).map_err(|why| why.to_string())
    }

    /// Puts them back.
    pub fn lower(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String> {
        let session = self.sessions.get_mut(session).ok_or("its process is gone")?;
        crate::budget::lowered(session.lower(addrs))
    }

    /// The sessions of other verbs.
    pub fn beside(&self) -> &[Session] {
        &self.beside
    }

    fn listen_to_execs(&mut self, pid: i32, writer: &mut Writer) {
        if let Err(why) = self.started.listen(&mut self.images, pid) {
            writer.deaf_to_execs(pid, &why);
        }
    }

    /// Goes with every thread that is about to exec, and probes the new program; their processes.
    pub fn follow_execs(
        &mut self,
        job: &Job,
        writer: &mut Writer,
        is_asked: &mut dyn FnMut() -> bool,
    ) -> Vec<i32> {
        let mut entered = Vec::new();
        // Whoever rings all the time must not keep us from looking at anything else.
        let end = Instant::now() + EXECS_LOOK;
        while let Some(held) = self.started.next(end, is_asked) {
            entered.push(held.pid());
            self.enter(&held, job, writer);
        }
        if !entered.is_empty() {
            self.forget_ended(job.verb);
        }
        entered
    }

    fn enter(&mut self, held: &Held, job: &Job, writer: &mut Writer) {
        let pid = held.pid();
        if self.sessions.len() >= FOLLOWED_MAX {
            return writer.not_entered(pid, &format!("{FOLLOWED_MAX} programs are followed already"));
        }
        self.listen_to_execs(pid, writer);
        let Ok(process) = Process::read(pid as u32) else { return };
        let here = present(job, &process);
        if here.is_empty() {
            return;
        }
        let plan = match session::plan_with(&mut self.images, pid, &here, job.verb) {
            Ok(plan) => plan,
            Err(PlanError::NoMatch(..)) => return,
            Err(error) => return writer.not_entered(pid, &error.to_string()),
        };
        if let Err(broken) = self.put_more(job, pid, plan, Writer::entered, writer) {
            writer.not_entered(pid, &broken.to_string());
        }
    }

    /// Programs that have ended are not listened to any more, and forgotten if they were not hit.
    fn forget_ended(&mut self, verb: Verb) {
        self.started.forget_ended();
        let is_of_use = |s: &Session| {
            s.is_alive()
                || matches!(verb, Verb::Trace { .. } | Verb::CountStack)
                || s.sites().any(|site| site.hits() > 0)
        };
        self.sessions.retain(is_of_use);
    }

    /// Records of the target that could not be believed.
    pub fn damaged(&self) -> u64 {
        self.sessions.iter().map(Session::damaged).fold(self.started.damaged(), u64::saturating_add)
    }

    /// How many programs were started of which we heard too late; known after the detach.
    pub fn unheard(&self) -> u64 {
        self.started.unheard()
    }

    /// How many rings named a thread that is not of the process that rang; known after the detach.
    pub fn forged(&self) -> u64 {
        self.started.forged()
    }

    /// Takes everything out; what could not leave is tried again by the next call.
    pub fn detach(&mut self) -> Result<Receipt, Broken> {
        if let Some(loads) = self.loads.take() {
            self.closed.push(loads.close());
        }
        self.closed.extend(self.started.close());
        let mut failed = None;
        // The last that came is the first that goes.
        let all = self.beside.iter_mut().rev().chain(&mut self.closed).chain(&mut self.sessions);
        for session in all.filter(|s| !s.has_left()) {
            match session.detach() {
                Ok(receipt) => {
                    self.receipt = Some(match self.receipt.take() {
                        Some(sum) => sum.and(receipt),
                        None => receipt,
                    });
                }
                Err(broken) => failed = Some(broken),
            }
        }
        match failed {
            Some(broken) => Err(broken),
            None => Ok(self.receipt.clone().unwrap_or_default()),
        }
    }
}

/// The specifications whose library or program the process has.
fn present(job: &Job, process: &Process) -> Vec<Spec> {
    job.specs.iter().filter(|s| !is_missing(&s.library, process)).cloned().collect()
}

/// Whether the kernel may place it, if nobody else can: a hit of such a probe costs a hundred times what a jump costs, so
/// it is for sites that were asked for by name, or for all with `--kernel`.
fn is_wanted(job: &Job, site: &SitePlan) -> bool {
    let is_allowed = !job.args.no_kernel && (job.args.kernel || site.is_named);
    is_allowed || site.placement.rung != Rung::Kernel
}

/// The one line about sites that only the kernel could probe.
fn say_kernel_left_out(job: &Job, unwanted: usize) {
    if unwanted > 0 && !job.args.no_kernel && !job.args.quiet {
        let noun = if unwanted == 1 { "site" } else { "sites" };
        eprintln!(
            "nanoprobe: left out {unwanted} {noun} that only a kernel probe could serve (--kernel takes them; about \
             {KERNEL_PRICE}x dearer a hit)"
        );
    }
}

/// The one line about functions that are left by jumps to other functions, where times and values are asked for.
fn say_tail_calls(job: &Job, sites: &[SitePlan]) {
    if job.args.quiet || matches!(job.verb, Verb::Count) {
        return;
    }
    let Some(names) = tail_calls(sites) else { return };
    eprintln!("nanoprobe: {names}: {TAIL_CALL}");
}

/// What a function's exit by a jump to another function means.
const TAIL_CALL: &str = "left by a jump to another function at some exits: its time ends there, and what is returned is not known";

/// Names of functions that are left by jumps to other functions.
pub fn tail_calls(sites: &[SitePlan]) -> Option<String> {
    let sites = sites.iter().filter(|site| site.is_tail_call);
    let names: BTreeSet<&str> = sites.map(SitePlan::function_name).collect();
    let first: Vec<&str> = names.iter().take(3).copied().collect();
    let others = names.len().saturating_sub(3);
    let others = if others == 0 { String::new() } else { format!(" and {others} others") };
    (!first.is_empty()).then(|| format!("{}{others}", first.join(", ")))
}

/// How many times a hit of a jump a hit of a kernel uprobe costs where the kernel emulates the instruction; more where it
/// steps. docs/bench.md: 139 on a nop, 251 on a push (2026-11-20).
pub const KERNEL_PRICE: u32 = 140;

/// How the reason ends where the kernel was not asked.
pub const NO_KERNEL_ASKED: &str = "and no --kernel";

/// Sites that were left out: name and reason.
type LeftOut = Vec<(String, String)>;

/// Attaches; on failure the exit code, with everything said. Also who was refused, and who was missed.
fn put_in(job: &Job, pid: i32, plan: Plan) -> Result<(Session, LeftOut, LeftOut), i32> {
    let Plan { sites, refused, .. } = plan;
    let (sites, unwanted): (Vec<SitePlan>, Vec<SitePlan>) =
        sites.into_iter().partition(|s| is_wanted(job, s));
    say_kernel_left_out(job, unwanted.len());
    let end = if job.args.no_kernel { "and --no-kernel" } else { NO_KERNEL_ASKED };
    let unwanted = unwanted.into_iter().map(|s| {
        // Of a Go instruction that may fault there is no more to say.
        let why = s.placement.why_not.last().map_or(String::new(), |(rung, why)| format!(" ({rung}: {why})"));
        (s.name, format!("no jump fits{why}, {end}"))
    });
    let refused: LeftOut = refused.into_iter().map(|r| (r.name, r.why)).chain(unwanted).collect();
    if sites.is_empty() {
        return Err(none_left(job, &refused));
    }
    if job.args.strict && !refused.is_empty() {
        return Err(strict(&refused));
    }
    if let Some(what) = cannot_nest(job, &sites) {
        return Err(advice::fail(&what, &[], &["without --tree and --graph".into()]));
    }
    if sites.len() > job.args.max_probes {
        let what = format!("{} sites match, more than --max-probes {}", sites.len(), job.args.max_probes);
        return Err(advice::fail(&what, &[], &[format!("--max-probes {}", sites.len())]));
    }
    say_tail_calls(job, &sites);
    let mut session = Session::attach(pid, sites).map_err(|b| advice::cannot_attach(&b))?;
    let missed: LeftOut = session.missed().iter().map(missed_line).collect();
    let is_empty = session.sites().next().is_none();
    if is_empty || (job.args.strict && !missed.is_empty()) {
        let _ = session.detach();
        return Err(if job.args.strict { strict(&missed) } else { none_left(job, &missed) });
    }
    Ok((session, refused, missed))
}

/// Why calls of these sites cannot be shown inside of one another, if that is asked for.
fn cannot_nest(job: &Job, sites: &[SitePlan]) -> Option<String> {
    let site = sites.iter().find(|s| s.traces_in_go() && job.args.shown.shape != Shape::Flat)?;
    Some(format!("{} is a Go function, whose calls change their threads", site.name))
}

fn missed_line((plan, missed): &(SitePlan, Missed)) -> (String, String) {
    (plan.name.clone(), missed.to_string())
}

fn strict(left_out: &[(String, String)]) -> i32 {
    cannot_probe(left_out, &["without --strict, to probe the others".into()])
}

/// Nothing is left to be probed.
fn none_left(job: &Job, left_out: &[(String, String)]) -> i32 {
    let tries: &[String] =
        match (job.args.no_kernel, left_out.iter().any(|(_, why)| why.ends_with(NO_KERNEL_ASKED))) {
            (true, _) => &["without --no-kernel: the kernel can probe what no jump fits".into()],
            (false, true) => &["with --kernel: the kernel can probe what no jump fits".into()],
            (false, false) => &["nanoprobe explain SPEC, for the reasons site by site".into()],
        };
    cannot_probe(left_out, tries)
}

fn cannot_probe(left_out: &[(String, String)], tries: &[String]) -> i32 {
    let lines: Vec<String> = left_out.iter().take(20).map(|(name, why)| format!("{name}: {why}")).collect();
    let noun = if left_out.len() == 1 { "site" } else { "sites" };
    let what = format!("{} {noun} cannot be probed; nothing was changed", left_out.len());
    advice::fail(&what, &lines, tries)
}

fn cannot_listen(deaf: &Deaf) -> i32 {
    let what = "cannot wait for libraries";
    match deaf {
        Deaf::Broken(broken) => advice::cannot_attach(broken),
        Deaf::Filtered => {
            let why = "its seccomp filter may kill it for the futex call by which its thread would wait";
            advice::fail(&what, &[why.into()], &["without --wait".into()])
        }
        Deaf::NoFunction(error) => {
            let checked = [format!("the dynamic linker's mark for debuggers: {error}")];
            advice::fail(&what, &checked, &["without --wait: a static program loads none".into()])
        }
    }
}

/// The modules of a process.
pub fn modules(process: &Process) -> Modules {
    process.modules.iter().filter_map(|module| identity(module, process)).collect()
}

/// A module's path and lowest address, which tell a library from itself when it is loaded again; `None` without a file.
pub fn identity(module: &Module, process: &Process) -> Option<(String, u64)> {
    let own = process.mappings.iter().filter(|m| m.file.is_some() && m.file == module.file);
    Some((module.path.display().to_string(), own.map(|m| m.range.start.0).min()?))
}

/// Whether a process has not mapped a library or program.
pub fn is_missing(library: &Library, process: &Process) -> bool {
    matches!(find_module(library, process), Err(LookupError::NotMapped { .. }))
}
