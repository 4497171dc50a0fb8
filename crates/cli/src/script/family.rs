//! The processes of a script, each with what was put in.
//!
//! For:     live.
//! State:   their sessions; what became of hits in those that were left.
//! Context: control; the engine process, one thread.
//! Keeps:   M1 a process that has ended is left when room is needed or at the end, and not before its forked children are gone,
//!             which count on in its memory.
//!          M2 every process is left, however the run ends, and what is left behind is told.
//! Checked: testkit `scripts`, `together`.

use super::native::{Natives, Taken};
use lang::run::Shared;
use session::{Program, Receipt, Runs, Session};
use std::time::{Duration, Instant};

/// Processes that are traced at once, at most.
pub const PROCESSES_MAX: usize = 300;
/// How often it is looked whether a process has taken a seccomp filter or loaded something, and programs are told how the clock goes on.
const SLOW: Duration = Duration::from_millis(50);
/// How often a detach that failed is tried again.
const DETACHES: usize = 3;

/// A process, or a program that one has run.
struct Entered {
    session: Session,
    /// The sites that run no program.
    natives: Natives,
    taken: Taken,
}

/// All of them.
pub struct Family {
    all: Vec<Entered>,
    maps: Option<Shared>,
    looked: Instant,
    /// Of the sessions that have left.
    receipts: Vec<Receipt>,
    runs: Runs,
}

impl Default for Family {
    fn default() -> Family {
        let (all, receipts) = (Vec::new(), Vec::new());
        Family { all, maps: None, looked: Instant::now(), receipts, runs: Runs::default() }
    }
}

impl Family {
    /// One more.
    pub fn add(&mut self, session: Session, natives: Natives, maps: &Shared) {
        self.maps = Some(maps.clone());
        self.all.push(Entered { session, natives, taken: Taken::default() });
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True if one of them runs the program that it was entered with.
    pub fn is_alive(&self) -> bool {
        self.all.iter().any(|entered| entered.session.is_alive())
    }

    /// True if a process is one of theirs that was forked since.
    pub fn has_forked(&self, pid: i32) -> bool {
        self.all.iter().any(|entered| entered.session.is_inherited_by(pid))
    }

    /// True if a process that was forked from one of them goes on.
    pub fn has_heirs(&self) -> bool {
        self.all.iter().any(|entered| entered.session.has_heirs())
    }

    /// One of those that are in, in their order.
    pub fn session(&mut self, number: usize) -> Option<&mut Session> {
        self.all.get_mut(number).map(|entered| &mut entered.session)
    }

    /// Those that are in.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.all.iter().map(|entered| &entered.session)
    }

    /// What has become of hits so far, in those that are in and those that were left.
    pub fn so_far(&self) -> Runs {
        self.all.iter().fold(self.runs, |sum, entered| add(sum, entered.runs()))
    }

    /// Takes in what has come since the last time, and looks now and then for what processes have done to themselves. True if a walk
    /// has met something new.
    pub fn look(&mut self) -> bool {
        if let Some(maps) = &self.maps {
            self.all.iter_mut().for_each(|entered| entered.collect(maps));
        }
        let mut has_met = false;
        if self.looked.elapsed() < SLOW {
            return has_met;
        }
        if let Some(maps) = &self.maps {
            maps.borrow_mut().keep_clock();
        }
        for Entered { session, .. } in self.all.iter_mut().filter(|entered| entered.session.is_alive()) {
            has_met |= session.look_for_tables();
            session.look_for_filters();
        }
        self.looked = Instant::now();
        has_met
    }

    /// Leaves those that are over if there is no room for one more; false if there is none all the same.
    pub fn make_room(&mut self) -> bool {
        if self.all.len() >= PROCESSES_MAX {
            let is_of_use = |entered: &Entered| entered.session.is_alive() || entered.session.has_heirs();
            let (kept, over): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.all).into_iter().partition(is_of_use);
            self.all = kept;
            over.into_iter().for_each(|entered| self.leave(entered));
        }
        self.all.len() < PROCESSES_MAX
    }

    /// Leaves all; the last that came is the first that goes.
    pub fn leave_all(&mut self) {
        while let Some(entered) = self.all.pop() {
            self.leave(entered);
        }
    }

    fn leave(&mut self, mut entered: Entered) {
        self.detach(&mut entered.session);
        let session = &entered.session;
        self.runs = add(self.runs, entered.runs());
        for number in 0..session.programs().len() as u32 {
            if let Some(fault) = session.last_fault(number) {
                let name = session.programs().get(number).map_or("", Program::name);
                eprintln!("ERROR: {name}: ended before its end: {fault}");
            }
        }
        if let Some(maps) = &self.maps {
            entered.collect(maps);
        }
    }

    /// Takes a session out, and keeps what is told of that.
    pub fn detach(&mut self, session: &mut Session) {
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
    }

    /// How many hits were handled and skipped, those that somebody else had beside included, and that memory is as before; and whether
    /// that is so. Nothing if nobody was entered, and nobody had any.
    pub fn receipt(&self, left_out: usize, beside: Option<Runs>) -> (Vec<String>, bool) {
        if self.receipts.is_empty() && beside.is_none() {
            return (Vec::new(), true);
        }
        let runs = beside.map_or(self.runs, |beside| add(self.runs, beside));
        let is_clean = self.receipts.iter().all(Receipt::is_verified);
        let causes = causes(runs);
        let (hits, ran, skipped) = (runs.hits(), runs.ran, runs.skipped());
        let hits =
            format!("Hits {hits}: {ran} handled, {skipped} skipped{causes}; {left_out} places left out.");
        if self.receipts.is_empty() {
            return (vec![hits], true);
        }
        let verified = match (self.receipts.iter().all(Receipt::was_gone), is_clean) {
            (true, _) => "Detach verified: yes: nothing to restore, the process ended.",
            (_, true) => "Detach verified: yes.",
            (_, false) => "Detach verified: NO.",
        };
        (vec![hits, verified.to_owned()], is_clean)
    }
}

impl Entered {
    fn runs(&self) -> Runs {
        let of_sites = self.session.sites().flat_map(|site| site.runs());
        let runs = of_sites.fold(Runs::default(), |sum, (_, runs)| add(sum, runs));
        Runs { ran: runs.ran.saturating_add(self.natives.hits(&self.session)), ..runs }
    }

    fn collect(&mut self, maps: &Shared) {
        self.natives.collect(&self.session, maps, &mut self.taken);
    }
}

/// Why hits were skipped, in brackets; nothing if none was.
pub fn causes(runs: Runs) -> String {
    let all = [
        ("nested", runs.nested),
        ("no workspace", runs.no_workspace),
        ("out of fuel", runs.fuel),
        ("fault", runs.fault),
        ("in a child", runs.child),
    ];
    let causes: Vec<String> =
        all.iter().filter(|(_, n)| *n > 0).map(|(cause, n)| format!("{n} {cause}")).collect();
    if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) }
}

/// Of both.
pub fn add(a: Runs, b: Runs) -> Runs {
    Runs {
        ran: a.ran.saturating_add(b.ran),
        nested: a.nested.saturating_add(b.nested),
        no_workspace: a.no_workspace.saturating_add(b.no_workspace),
        fuel: a.fuel.saturating_add(b.fuel),
        fault: a.fault.saturating_add(b.fault),
        child: a.child.saturating_add(b.child),
    }
}
