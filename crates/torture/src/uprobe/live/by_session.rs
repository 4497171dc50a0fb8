//! Links that are sessions of nanoprobe.
//!
//! For:     `torture uprobe --backend nanoprobe`.
//! State:   where each function's probes stand, planned once for the program and each time for the library.
//! Context: control; several threads, each a controller of its own.
//! Keeps:   S1 a link that is detached has a receipt that accounts for every site.
//!          S2 every second link, and what stays, has programs where others have counting handlers; what those tell in their maps is what they
//!          are counted to have run.
//! Checked: `tests/uprobe_live.rs`.

use super::library::Library;
use super::link::{Count, Kind, Link, NoLink, Placer, Whom, Wish};
use crate::live::programs::{Made, tells};
use crate::rng::Rng;
use crate::uprobe::stressed::shared::{FUNCTIONS, LIBRARY_FUNCTIONS};
use image::Spec;
use session::{Action, Attach, Broken, Consumer, PlanError, Receipt, Session, SitePlan, Verb};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Once in so many links on the program the plan is made anew, with the mappings that there are then.
const PLAN_EVERY: u64 = 64;
/// How often a detach is tried that finds the process in somebody else's hands.
const TRIES: usize = 3;

/// The sites of each function.
type Sites = Vec<Vec<SitePlan>>;

/// The ways to count.
struct Plans {
    count: Sites,
    handler: Sites,
    returns: Sites,
    calls: Sites,
}

impl Plans {
    fn sites(&self, kind: Kind, is_return: bool) -> &Sites {
        match (kind, is_return) {
            (Kind::Calls, _) => &self.calls,
            (_, true) => &self.returns,
            (Kind::Count, false) => &self.count,
            (Kind::OtherCount, false) => &self.handler,
        }
    }
}

pub struct Sessions {
    pid: i32,
    plans: Plans,
    library: Option<String>,
    links: AtomicU64,
    made: Made,
}

impl Sessions {
    /// With programs that do not tell all of their runs if it `is_losing`.
    pub fn new(pid: i32, library: Option<&Library>, is_losing: bool) -> Result<Sessions, String> {
        let plan = |kind, is_return| plan(pid, "", kind, is_return).map_err(|e| e.to_string());
        let plans = Plans {
            count: plan(Kind::Count, false)?,
            handler: plan(Kind::OtherCount, false)?,
            returns: plan(Kind::Count, true)?,
            calls: plan(Kind::Calls, false)?,
        };
        let library = library.map(|l| l.path.display().to_string());
        let made = if is_losing { Made::losing()? } else { Made::new(&mut Rng::new(0, 0), 0)? };
        Ok(Sessions { pid, plans, library, links: AtomicU64::new(0), made })
    }

    /// Enters a process, with programs in the place of counting handlers if that is wished.
    fn attach(&self, pid: i32, mut sites: Vec<SitePlan>, has_programs: bool) -> Result<Session, Broken> {
        if !has_programs {
            return Session::attach(pid, sites);
        }
        let all = (0..self.made.programs.len() as u32).cycle();
        for (action, program) in sites.iter_mut().flat_map(|site| &mut site.actions).zip(all) {
            match action {
                Action::Consumers(list) if *list == [Consumer::Count] => {
                    *list = vec![Consumer::Program { program, cookie: 0 }];
                }
                _ => {}
            }
        }
        Session::attach_with(pid, sites, Attach { programs: self.made.programs.clone(), ..Attach::default() })
    }

    fn sites(&self, wish: &Wish) -> Result<Vec<SitePlan>, NoLink> {
        let anew = |library: &str, is_return| {
            plan(self.pid, library, wish.kind, is_return).map_err(|e| match e {
                PlanError::Lookup(..) | PlanError::Image(_) | PlanError::Process(_)
                    if !library.is_empty() =>
                {
                    NoLink::Gone
                }
                other => NoLink::Broken(other.to_string()),
            })
        };
        let is_new = self.links.fetch_add(1, Relaxed) % PLAN_EVERY == PLAN_EVERY - 1;
        let new = match (&wish.whom, &self.library) {
            (Whom::Library, Some(library)) => Some((anew(library, false)?, anew(library, true)?)),
            (Whom::Target, _) if is_new => Some((anew("", false)?, anew("", true)?)),
            _ => None,
        };
        let sites = wish.probes.iter().map(|p| match &new {
            Some((_, returns)) if p.is_return => &returns[p.function],
            Some((entries, _)) => &entries[p.function],
            None => &self.plans.sites(wish.kind, p.is_return)[p.function],
        });
        Ok(apart(sites))
    }
}

/// All sites but those of functions whose jumps would meet, which different plans may want.
fn apart<'a>(functions: impl Iterator<Item = &'a Vec<SitePlan>>) -> Vec<SitePlan> {
    let mut taken: Vec<Range<u64>> = Vec::new();
    let mut chosen = Vec::new();
    for sites in functions {
        let ranges = |s: &SitePlan| [Some(s.placement.range()), s.placement.island_patch()];
        let ranges: Vec<_> = sites.iter().flat_map(ranges).flatten().collect();
        let meets = |r: &Range<u64>| taken.iter().any(|t| t.start < r.end && r.start < t.end);
        if !ranges.iter().any(meets) {
            taken.extend(ranges);
            chosen.extend(sites.iter().cloned());
        }
    }
    chosen
}

fn plan(pid: i32, library: &str, kind: Kind, is_return: bool) -> Result<Sites, PlanError> {
    let (name, functions) = match library {
        "" => ("stress_fn_", FUNCTIONS),
        _ => ("stress_lib_fn_", LIBRARY_FUNCTIONS),
    };
    let (verb, when) = match (kind, is_return) {
        (Kind::Calls, _) => (Verb::Latency, "u"),
        (_, true) => (Verb::CountByHandler, "ur"),
        (Kind::Count, false) => (Verb::Count, "u"),
        (Kind::OtherCount, false) => (Verb::CountByHandler, "u"),
    };
    let spec = Spec::parse(&format!("{when}:{library}:{name}*"));
    let spec = spec.unwrap_or_else(|e| unreachable!("a specification that parses: {e}"));
    let plan = session::plan(pid, &[spec], verb)?;
    if let Some(refused) = plan.refused.first() {
        return Err(PlanError::AllRefused(vec![(refused.name.clone(), refused.why.clone())]));
    }
    let mut sites: Sites = vec![Vec::new(); functions];
    for site in plan.sites {
        if let Some(function) = number(&site.name, functions) {
            sites[function].push(site);
        }
    }
    Ok(sites)
}

/// The function that a site is of, by its name: `stress_fn_42`, `stress_fn_42%return`, `stress_fn_42 at 0x1234`.
fn number(name: &str, functions: usize) -> Option<usize> {
    let digits = name.split_once("_fn_")?.1;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok().filter(|n| *n < functions)
}

impl Placer for Sessions {
    fn link(&self, wish: &Wish) -> Result<Box<dyn Link>, NoLink> {
        let sites = self.sites(wish)?;
        let pid = if let Whom::Child(pid) = wish.whom { pid } else { self.pid };
        let has_programs = self.links.load(Relaxed).is_multiple_of(2);
        match self.attach(pid, sites, has_programs) {
            Ok(session) => Ok(Box::new(One { session, whom: wish.whom })),
            Err(why) => Err(no_link(wish.whom, why)),
        }
    }

    fn stay(&self, functions: usize) -> Result<Box<dyn Link>, String> {
        let ways = [&self.plans.count, &self.plans.handler];
        let sites = (0..functions).flat_map(|f| ways[f % 2][f].iter().cloned()).collect();
        let session = self.attach(self.pid, sites, true).map_err(|e| e.to_string())?;
        match session.missed().first() {
            None => Ok(Box::new(One { session, whom: Whom::Target })),
            Some((site, why)) => Err(format!("{}: {why}", site.name)),
        }
    }
}

fn no_link(whom: Whom, why: Broken) -> NoLink {
    match why {
        Broken::Traced { ref by_name, .. } if by_name == session::ENGINE_NAME => NoLink::Busy,
        Broken::WontStop { .. } => NoLink::Busy,
        // What is not the target may end, execute itself or be unloaded at any moment.
        Broken::Gone { .. } | Broken::NoProcess { .. } | Broken::Zombie { .. } | Broken::Replaced { .. }
            if whom != Whom::Target =>
        {
            NoLink::Gone
        }
        Broken::Call { .. } | Broken::Remote { .. } | Broken::NoSyscall if whom != Whom::Target => {
            NoLink::Gone
        }
        why => NoLink::Broken(format!("{why} ({why:?})")),
    }
}

/// One session.
struct One {
    session: Session,
    whom: Whom,
}

impl One {
    fn check(&self, receipt: &Receipt) -> Result<(), String> {
        let sites = self.session.sites().count();
        let is_same = receipt.restored + receipt.handed_over + receipt.unmapped == sites;
        let is_clean = receipt.is_verified() && receipt.is_unmapped();
        let may_go = matches!(self.whom, Whom::Child(_));
        let good = match self.whom {
            Whom::Target => is_same && is_clean && receipt.unmapped == 0 && !receipt.was_gone(),
            Whom::Library => is_same && is_clean && !receipt.was_gone(),
            Whom::Child(_) => receipt.was_gone() && may_go || is_same && is_clean,
        };
        if good {
            self.check_calls().and_then(|()| self.check_told(receipt))
        } else {
            Err(format!("{sites} sites, {receipt:?}"))
        }
    }

    /// What programs have told in their maps, once no hit can be in one.
    fn check_told(&self, receipt: &Receipt) -> Result<(), String> {
        // Who is gone may have been killed between the two.
        let Some(maps) = self.session.maps().filter(|_| !receipt.was_gone()) else { return Ok(()) };
        let runs = self.session.sites().flat_map(|site| site.runs());
        let ran: u64 = runs.filter(|(program, _)| tells(*program)).map(|(_, runs)| runs.ran).sum();
        match [0, 8].map(|at| maps.load(at).unwrap_or(0)) {
            [told, 0] if told == ran => Ok(()),
            told => Err(format!("{ran} runs were counted, and told are {told:?}")),
        }
    }

    /// Every entry returned, was unwound, is inside, or found no room.
    fn check_calls(&self) -> Result<(), String> {
        let calls: Vec<_> = self.session.sites().filter_map(|s| s.calls()).collect();
        let entries: u64 = calls.iter().map(|c| c.entries).sum();
        let returns: u64 = calls.iter().map(|c| c.returns()).sum();
        let open = self.session.open_calls();
        match entries == returns + open.unwound + open.inside + open.no_room {
            true => Ok(()),
            false => Err(format!("{entries} entries, {returns} returns, {open:?}")),
        }
    }
}

impl Link for One {
    fn counts(&self) -> Vec<Count> {
        let mut counts: Vec<Count> = Vec::new();
        for site in self.session.sites() {
            let Some(function) = number(&site.plan.name, FUNCTIONS) else { continue };
            let is_return = site.plan.name.ends_with("%return");
            if site.plan.is_exit() && !is_return {
                continue;
            }
            let (hits, children) = (site.hits(), site.children_hits());
            match counts.iter_mut().find(|c| c.function == function) {
                Some(count) => {
                    count.hits += hits;
                    count.children = count.children.map(|n| n + children);
                }
                None => counts.push(Count { function, is_return, hits, children: Some(children) }),
            }
        }
        counts
    }

    fn missed(&self) -> usize {
        self.session.missed().len()
    }

    fn detach(&mut self) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..TRIES {
            match self.session.detach() {
                Ok(receipt) => return self.check(&receipt),
                Err(why) => last = format!("{why} ({why:?})"),
            }
        }
        Err(last)
    }
}
