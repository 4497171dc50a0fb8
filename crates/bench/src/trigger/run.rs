//! One benchmark: unprobed, probed, unprobed, and the kernel's turn if asked for.
//!
//! For:     `trigger_main`.
//! State:   none between runs.
//! Context: control. One thread: ptrace ties stops to it.
//! Keeps:   R1 what a probe adds is taken against the unprobed phases next to it, in the same child.
//!          R2 an outcome with hits other than calls fails `check`.
//! Checked: tests below; cli tests/bench.rs.

use super::benchmark::Benchmark;
use super::child::Traced;
use super::error::TriggerError;
use super::kernel::Uprobe;
use super::options::Options;
use super::phase::{Iteration, Length, Phase};
use super::programs::{self, Seed};
use super::shared::Shared;
use image::{ElfImage, ImageAddr, Spec};
use session::{Action, Attach, Consumer, Flavour, Programs, Session, SitePlan, Verb};

/// What one way of probing has shown.
#[derive(Clone, Debug)]
pub struct Probed {
    /// The phase with the probe.
    pub phase: Phase,
    /// Nanoseconds of processor time of an unprobed call, before and after.
    pub unprobed_ns: [f64; 2],
}

impl Probed {
    /// Nanoseconds of processor time that the probe adds to a call.
    pub fn added_ns(&self) -> f64 {
        self.phase.ns_per_call() - (self.unprobed_ns[0] + self.unprobed_ns[1]) / 2.0
    }
}

/// How the session stood at the site.
#[derive(Clone, Debug)]
pub struct Site {
    /// Rung of the ladder.
    pub rung: String,
    /// Of the readers.
    pub flavour: Flavour,
    /// Counts under rseq, not by locked adds.
    pub has_rseq: bool,
    /// Hits that came by the general path.
    pub entered: u64,
    /// What each consumer counted, if there are several.
    pub each: Vec<u64>,
}

/// All that a run has shown.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What ran.
    pub benchmark: Benchmark,
    /// With no probe: the one phase that there is.
    pub plain: Option<Phase>,
    /// With one.
    pub ours: Option<(Probed, Site)>,
    /// With one consumer, if ours has several.
    pub one: Option<(Probed, Site)>,
    /// The kernel's.
    pub kernel: Option<Probed>,
}

impl Outcome {
    /// The phase that the benchmark is about.
    pub fn phase(&self) -> Option<&Phase> {
        self.plain.as_ref().or(self.ours.as_ref().map(|(probed, _)| &probed.phase))
    }

    /// The kernel's added nanoseconds by ours.
    pub fn ratio(&self) -> Option<f64> {
        let (ours, _) = self.ours.as_ref()?;
        self.kernel.as_ref().map(|kernel| kernel.added_ns() / ours.added_ns())
    }

    /// What our consumers together add by what one adds.
    pub fn ratio_to_one(&self) -> Option<f64> {
        let (ours, _) = self.ours.as_ref()?;
        self.one.as_ref().map(|(one, _)| ours.added_ns() / one.added_ns())
    }

    /// An error if anyone counted other than the producers.
    pub fn check(&self) -> Result<(), TriggerError> {
        for (Probed { phase, .. }, site) in self.ours.iter().chain(&self.one) {
            equal("nanoprobe", phase.hits, phase.calls)?;
            site.each.iter().try_for_each(|hits| equal("one of the consumers", *hits, phase.calls))?;
            // Who is turned down does not come so far.
            if self.benchmark.program.is_some_and(Seed::is_turned_down) {
                equal("the entry of the general path", site.entered, 0)?;
                continue;
            }
            // Of a timed call, the entry and the return.
            let hits_of_a_call = match self.benchmark.probe {
                Some(Verb::CountByHandler) => 1,
                Some(Verb::Latency) => 2,
                _ => return self.check_kernel(),
            };
            equal("the entry of the general path", site.entered, hits_of_a_call * phase.calls)?;
        }
        self.check_kernel()
    }

    fn check_kernel(&self) -> Result<(), TriggerError> {
        match self.kernel.as_ref().map(|k| &k.phase) {
            Some(phase) => equal("the kernel", phase.hits, phase.calls),
            None => Ok(()),
        }
    }
}

fn equal(who: &'static str, hits: u64, calls: u64) -> Result<(), TriggerError> {
    match hits == calls {
        true => Ok(()),
        false => Err(TriggerError::Differ { who, hits, calls }),
    }
}

/// Runs it; `progress` sees each sample of the phase that the benchmark is about.
pub fn run(
    benchmark: &Benchmark,
    options: &Options,
    mut progress: impl FnMut(&Iteration) -> std::io::Result<()>,
) -> Result<Outcome, TriggerError> {
    let mut traced = Traced::start(options)?;
    let length = Length { warm: options.warm, seconds: options.seconds, sample: options.sample };
    let mut outcome = Outcome { benchmark: *benchmark, plain: None, ours: None, one: None, kernel: None };
    let Some(verb) = benchmark.probe else {
        let phase = Phase::run(&mut traced, benchmark.function, length, &calls, progress)?;
        outcome.plain = Some(phase);
        return Ok(outcome);
    };
    let symbol = benchmark.function.symbol();
    let entry = spec(&benchmark.function.spec())?;
    let sites = match benchmark.is_return {
        true => plan(&traced, &spec(&format!("ur::{symbol}"))?, verb)?,
        false => plan(&traced, &entry, verb)?,
    };
    let open = |traced: &Traced| match plan(traced, &entry, Verb::Count)?.as_slice() {
        [site] => Uprobe::open(traced.pid(), file_offset(site)?, benchmark.is_return),
        _ => Err(TriggerError::Missed(format!("{entry} does not name one site"))),
    };
    // Opened before anything runs, so that a refusal costs no time.
    if options.vs_kernel {
        drop(open(&traced)?);
    }
    let mut before = unprobed(&mut traced, benchmark, length)?;
    let mut sites = sites;
    if benchmark.consumers > 1 {
        let (phase, stood) =
            ours(&mut traced, benchmark, sites.clone(), length, options.flavour, &mut |_| Ok(()))?;
        let after = unprobed(&mut traced, benchmark, length)?;
        outcome.one = Some((Probed { phase, unprobed_ns: [before, after] }, stood));
        before = after;
        sites.iter_mut().for_each(|site| repeat(site, benchmark));
    }
    if benchmark.program.is_some() {
        let run = || Action::Consumers(vec![Consumer::Program { program: 0, cookie: 0 }]);
        sites.iter_mut().flat_map(|site| &mut site.actions).for_each(|action| *action = run());
    }
    let (phase, stood) = ours(&mut traced, benchmark, sites, length, options.flavour, &mut progress)?;
    let after = unprobed(&mut traced, benchmark, length)?;
    outcome.ours = Some((Probed { phase, unprobed_ns: [before, after] }, stood));
    if options.vs_kernel {
        let uprobe = open(&traced)?;
        let hits = |_: &Shared| uprobe.hits();
        let phase = Phase::run(&mut traced, benchmark.function, length, &hits, |_| Ok(()))?;
        drop(uprobe);
        let unprobed_ns = [after, unprobed(&mut traced, benchmark, length)?];
        outcome.kernel = Some(Probed { phase, unprobed_ns });
    }
    Ok(outcome)
}

/// Puts as many consumers on the site as the benchmark says.
fn repeat(site: &mut SitePlan, benchmark: &Benchmark) {
    const RDI: u32 = 112;
    let other = if benchmark.is_mixed { Consumer::Log2Histogram { register: RDI } } else { Consumer::Count };
    for action in &mut site.actions {
        if let Action::Consumers(list) = action {
            *list = [Consumer::Count, other].into_iter().cycle().take(benchmark.consumers).collect();
        }
    }
}

pub(super) fn spec(text: &str) -> Result<Spec, TriggerError> {
    Spec::parse(text).map_err(|e| TriggerError::Child(e.to_string()))
}

fn calls(shared: &Shared) -> Result<u64, TriggerError> {
    Ok(shared.all_calls())
}

fn unprobed(traced: &mut Traced, benchmark: &Benchmark, length: Length) -> Result<f64, TriggerError> {
    let length = Length::baseline(length.sample);
    let phase = Phase::run(traced, benchmark.function, length, &calls, |_| Ok(()))?;
    Ok(phase.ns_per_call())
}

pub(super) fn plan(traced: &Traced, spec: &Spec, verb: Verb) -> Result<Vec<SitePlan>, TriggerError> {
    let plan = session::plan(traced.pid(), std::slice::from_ref(spec), verb).map_err(TriggerError::Plan)?;
    Ok(plan.sites)
}

pub(super) fn file_offset(site: &SitePlan) -> Result<u64, TriggerError> {
    let image = ElfImage::open(std::env::current_exe()?);
    let image = image.map_err(|e| TriggerError::Plan(session::PlanError::Image(e)))?;
    let offset = image.file_offset(ImageAddr(site.placement.site));
    offset.map(|o| o.0).ok_or_else(|| TriggerError::Missed("the site is not in the file".into()))
}

/// The phase with our probe in; out again at the end, producers long gone.
fn ours(
    traced: &mut Traced,
    benchmark: &Benchmark,
    sites: Vec<SitePlan>,
    length: Length,
    flavour: Flavour,
    progress: &mut impl FnMut(&Iteration) -> std::io::Result<()>,
) -> Result<(Phase, Site), TriggerError> {
    let planned = sites.len();
    let rungs: Vec<String> = sites.iter().map(|s| s.placement.rung.to_string()).collect();
    let programs = match benchmark.program {
        Some(seed) => programs::make(seed)?,
        None => Programs::default(),
    };
    let attach = Attach { flavour, programs, ..Attach::default() };
    let mut session = Session::attach_with(traced.pid(), sites, attach).map_err(TriggerError::Session)?;
    if let Some((_, missed)) = session.missed().first() {
        return Err(TriggerError::Missed(missed.to_string()));
    }
    let hits = |_: &Shared| Ok(session.sites().map(|s| s.hits()).sum());
    let phase = Phase::run(traced, benchmark.function, length, &hits, progress)?;
    let each = session.sites().flat_map(|s| s.hits_of_each()).collect();
    let (has_rseq, entered) = (session.has_rseq(), session.entered());
    let site = Site { rung: rungs.join(" and "), flavour, has_rseq, entered, each };
    let receipt = session.detach().map_err(TriggerError::Session)?;
    match receipt.is_verified() && receipt.is_unmapped() && receipt.restored == planned {
        true => Ok((phase, site)),
        false => Err(TriggerError::NotRestored),
    }
}

#[cfg(test)]
mod tests {
    use super::super::benchmark;
    use super::super::phase::SECOND;
    use super::*;

    fn outcome(hits: u64, entered: u64) -> Outcome {
        let phase = Phase { samples: vec![], cpu_ns: vec![5.0, 7.0, 6.0], hits, calls: 10, sample: SECOND };
        let site =
            Site { rung: "nop".into(), flavour: Flavour::Lite, has_rseq: true, entered, each: vec![hits] };
        let kernel = Phase { cpu_ns: vec![401.0], hits: 10, ..phase.clone() };
        Outcome {
            benchmark: benchmark::named("uprobe-nop").unwrap(),
            plain: None,
            ours: Some((Probed { phase, unprobed_ns: [1.0, 3.0] }, site)),
            one: None,
            kernel: Some(Probed { phase: kernel, unprobed_ns: [1.0, 1.0] }),
        }
    }

    #[test]
    fn what_is_added_is_the_middle_less_the_unprobed_on_both_sides() {
        let outcome = outcome(10, 10);
        assert_eq!(outcome.ours.as_ref().map(|o| o.0.added_ns()), Some(4.0));
        assert_eq!(outcome.ratio(), Some(100.0));
    }

    #[test]
    fn a_consumer_that_missed_a_call_is_an_error() {
        let mut outcome = outcome(10, 10);
        let Some((_, site)) = &mut outcome.ours else { panic!("set above") };
        site.each = vec![10, 10, 9];
        assert!(matches!(outcome.check(), Err(TriggerError::Differ { hits: 9, calls: 10, .. })));
    }

    #[test]
    fn several_are_compared_with_one_by_what_they_add() {
        let mut outcome = outcome(10, 10);
        outcome.one = outcome.ours.clone().map(|(p, s)| (Probed { unprobed_ns: [4.0, 5.0], ..p }, s));
        assert_eq!(outcome.ratio_to_one(), Some(4.0 / 1.5));
    }

    #[test]
    fn one_hit_too_few_is_an_error() {
        assert!(outcome(10, 10).check().is_ok());
        assert!(matches!(outcome(9, 10).check(), Err(TriggerError::Differ { hits: 9, calls: 10, .. })));
        assert!(matches!(outcome(10, 11).check(), Err(TriggerError::Differ { hits: 11, .. })));
    }
}
