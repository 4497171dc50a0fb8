//! `--budget` for scripts: what goes with one, and what a hit of each program costs.
//!
//! For:     script, live.
//! State:   what was asked for; the script with its conditions taken for true, to be priced.
//! Context: control; the engine process.
//! Keeps:   S1 a script goes wrong by no hit that is not seen: what relies on the traces of others is refused by name.
//!          S2 a price is of runs of the program itself, in a child of ours; what cannot be priced is refused.
//! Checked: tests below; lang's alone (S1); testkit `budget`.

use super::family::Family;
use super::live::compile;
use super::options::{Backend, Options};
use super::sampled::has_any;
use crate::budget::{Budget, Held};
use lang::program::{Event, Native, Script};
use lang::run::shared;
use lang::{Checked, shared_by_hits};
use session::{Programs, Session};
use std::sync::Arc;
use std::time::Duration;

/// A budget that a script is to keep.
pub struct Asked {
    percent: f64,
    /// The same programs without their conditions.
    priced: Script,
}

impl Asked {
    /// Nothing, if nothing was asked for.
    ///
    /// # Errors
    /// What keeps no budget, and what to use instead.
    pub fn of(options: &Options, checked: &Checked, script: &Script) -> Result<Option<Asked>, String> {
        let Some(percent) = options.budget else { return Ok(None) };
        if let Some(why) = unkept(options, script) {
            return Err(format!("ERROR: --budget: {why}"));
        }
        let maps = shared_by_hits(checked);
        if !maps.is_empty() {
            return Err(relies(&maps));
        }
        let mut always = checked.clone();
        always.probes.iter_mut().for_each(|probe| probe.predicate = None);
        let priced = super::lowered(&always, options)?;
        Ok(Some(Asked { percent, priced }))
    }

    /// Measures what hits cost.
    ///
    /// # Errors
    /// It cannot be measured here.
    pub fn budget(&self, script: &Script) -> Result<Budget, String> {
        let cannot = || {
            let cure = "without --budget, or with another program";
            format!("ERROR: --budget: the price of a hit cannot be measured here\n  try      {cure}")
        };
        let prices = prices(&self.priced)?.ok_or_else(cannot)?;
        let natives = || script.probes.iter().filter_map(|probe| probe.native);
        let has_counts = natives().any(|native| matches!(native, Native::Count { .. }));
        let has_histograms = natives().any(|native| matches!(native, Native::Histogram { .. }));
        Budget::of_programs(self.percent, prices, (has_counts, has_histograms)).ok_or_else(cannot)
    }
}

/// An option or probe that keeps no budget.
fn unkept(options: &Options, script: &Script) -> Option<&'static str> {
    let is_one = options.command.is_some() || options.pids.len() == 1;
    let has_targets = script.probes.iter().any(|probe| matches!(probe.event, Event::Target(_)));
    if options.backend == Backend::Kernel {
        return Some("the kernel's probes stay in: --backend kernel keeps none");
    }
    if options.follows {
        return Some("it goes by one process's time: --follow keeps none");
    }
    if !is_one {
        return Some("it goes by one process's time: name one with -p, or a command with -c");
    }
    if has_any(script) {
        return Some(
            "what samples cost is not known: profile, software, hardware and watchpoint probes keep none",
        );
    }
    (!has_targets).then_some("there is no probe in a process")
}

fn relies(maps: &[String]) -> String {
    let (what, is) = (maps.join(", "), if maps.len() == 1 { "is" } else { "are" });
    format!(
        "ERROR: --budget: {what} {is} filled by hits, and hits go by what is there: with functions in by turns they would go by hits \
         that nobody saw\n  try      nanoprobe lat --budget for times of calls\n  try      without --budget"
    )
}

/// Nanoseconds of a run of each program that runs at hits; `None` if one cannot be measured.
fn prices(script: &Script) -> Result<Option<Vec<f64>>, String> {
    let mut prices = Vec::new();
    let cookies = script.probes.iter().filter_map(|probe| match &probe.event {
        Event::Target(target) => Some(target.sites.first().map_or(0, |(_, cookie)| *cookie)),
        _ => None,
    });
    for (number, cookie) in (0u32..).zip(cookies) {
        // What one has filled is not in the way of the next.
        let maps = shared(&script.maps, script.constants.clone())?;
        maps.borrow_mut().keep_clock();
        let programs = Programs::new(compile(script, &maps)?, maps.borrow().image());
        let mut is_there = false;
        let mut drain = |session: &Session| {
            let mut maps = maps.borrow_mut();
            if let Some(ground) = session.ground().filter(|_| !is_there) {
                is_there = maps.go_on_in(Arc::new(ground)).is_ok();
            }
            drop(maps.take_records(sys::clock_ns(sys::MONOTONIC)));
        };
        match bench::price_of_program(&programs, (number, cookie), &mut drain) {
            Some(price) => prices.push(price.ns),
            None => return Ok(None),
        }
    }
    Ok(Some(prices))
}

impl Held for Family {
    fn sessions(&self) -> Vec<&Session> {
        Family::sessions(self).collect()
    }

    fn lift(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String> {
        let session = self.session(session).ok_or("its process is gone")?;
        session.lift(addrs).map_err(|why| why.to_string())
    }

    fn lower(&mut self, session: usize, addrs: &[u64]) -> Result<Duration, String> {
        let session = self.session(session).ok_or("its process is gone")?;
        crate::budget::lowered(session.lower(addrs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::prepare;
    use crate::script::targets;

    fn asked(words: &str, program: &str) -> Result<Option<Asked>, String> {
        let mut words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        words.extend(["-e".to_owned(), program.to_owned()]);
        let options = crate::script::options::parse(&words)?;
        let mut targets = targets(&options)?;
        let (checked, script) = prepare(&options, &mut targets)?;
        Asked::of(&options, &checked, &script)
    }

    #[test]
    fn what_keeps_no_budget_is_refused_by_its_name() {
        let own = std::env::current_exe().unwrap().display().to_string();
        let count = format!("uprobe:{own}:main {{ @ = count(); }}");
        let pair = format!(
            "uprobe:{own}:main {{ @s[tid] = nsecs; }} uretprobe:{own}:main {{ @ns = sum(nsecs - @s[tid]); }}"
        );
        let sampled = format!("{count} profile:hz:9 {{ @p = count(); }}");
        for (words, program, why) in [
            ("--budget 2% -c true --backend kernel", &count, "--backend kernel"),
            ("--budget 2% -c true --follow", &count, "--follow"),
            ("--budget 2%", &count, "name one with -p"),
            ("--budget 2% -c true", &sampled, "profile"),
            ("--budget 2% -c true", &pair, "@s is filled by hits"),
            ("--budget 2% -c true", &pair, "nanoprobe lat --budget"),
            ("--budget 2% -c true", &"begin { exit(); }".to_owned(), "no probe in a process"),
        ] {
            let refused = asked(words, program).err().unwrap_or_default();
            assert!(refused.contains(why), "{words} {program}: {refused}");
        }
        assert!(asked("-c true", &pair).unwrap().is_none());
        assert!(asked("--budget 2% -c true", &count).unwrap().is_some());
    }
}
