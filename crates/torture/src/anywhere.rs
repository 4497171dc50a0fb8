//! Any instruction: real programs with a thousand random ones probed at a time, and others again and again.
//!
//! For:     `nanoprobe torture anywhere`: what no list of cases holds, such as code that is jumped into from elsewhere.
//! State:   one workload at a time, its plain answer, the functions that it runs.
//! Context: control.
//! Keeps:   A1 a probed run prints the same bytes and ends with the same status as a plain one, and does not hang.
//!          A2 after each detach the code of the whole process is that of its files.
//!          A3 a run that tested nothing does not pass: there were hits.
//! Checked: `--busted text`, `--busted jump` must end in FAIL (tests/anywhere.rs).

mod code;
mod options;
mod places;
mod tally;
mod workload;

use crate::rng::Rng;
use code::CodeWatch;
use image::Spec;
use options::{Busted, Options};
use places::Places;
use session::{Plan, Rung, Session, SitePlan, Verb};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use tally::Tally;
use workload::{Answer, Bench, Running, Workload};

/// Runs `nanoprobe torture anywhere`; the exit status: 0 passed, 1 failed, 2 bad arguments.
pub fn anywhere_main(args: &[String]) -> i32 {
    let options = match options::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => return 0,
        Err(why) => {
            eprintln!("nanoprobe: torture anywhere: {why}\n  try      nanoprobe torture anywhere --help");
            return 2;
        }
    };
    println!("torture anywhere: seed {} sites {} busted {:?}", options.seed, options.sites, options.busted);
    let began = Instant::now();
    let mut tally = Tally::default();
    let verdict = Bench::new().and_then(|mut bench| runs(&options, &mut bench, &mut tally));
    let verdict = verdict.and_then(|()| if tally.hits == 0 { Err("nothing was hit".into()) } else { Ok(()) });
    tally.print_refusals();
    let line = format!("{} minutes {:.1}", tally.line(), began.elapsed().as_secs_f64() / 60.0);
    match verdict {
        Ok(()) => println!("PASS {line}"),
        Err(why) => println!("FAIL {why}; {line}"),
    }
    i32::from(tally.has_failed || tally.hits == 0)
}

/// What is known of a workload before it is tortured.
struct Known {
    workload: &'static Workload,
    plain: Answer,
    took: Duration,
    places: Places,
}

fn runs(options: &Options, bench: &mut Bench, tally: &mut Tally) -> Result<(), String> {
    let wanted =
        |w: &&Workload| options.workloads.is_empty() || options.workloads.iter().any(|n| n == w.name);
    let mut known: BTreeMap<&str, Option<Known>> = BTreeMap::new();
    let all: Vec<&'static Workload> = workload::ALL.iter().filter(wanted).collect();
    let end = Instant::now() + options.limit;
    for run in options.first_run..options.first_run.saturating_add(options.runs) {
        if Instant::now() > end {
            break;
        }
        let mut random = Rng::new(options.seed, run);
        let workload = all[run as usize % all.len()];
        if !known.contains_key(workload.name) {
            known.insert(workload.name, learn(bench, workload, tally)?);
        }
        if known.values().all(Option::is_none) && known.len() == all.len() {
            return Err("no workload can run here".into());
        }
        let Some(known) = &known[workload.name] else { continue };
        let mut last = Vec::new();
        let result = one_run(options, bench, known, &mut random, tally, &mut last);
        tally.runs += 1;
        println!("run {run} {}: {}", workload.name, tally.line());
        if let Err(why) = result {
            tally.has_failed = true;
            let kept = if options.busted.is_none() { leave(bench, &last) } else { String::new() };
            return Err(format!("run {run} {}: {why}{kept}", workload.name));
        }
    }
    Ok(())
}

/// What a failed run leaves: the inputs, both outputs, a core if there is one, and the sites of its last round.
fn leave(bench: &mut Bench, last: &[String]) -> String {
    let dir = bench.keep();
    let specs: String = last.iter().map(|spec| format!("{spec}\n")).collect();
    let _ = fs::write(dir.join("failed.specs"), specs);
    format!("; kept {}", dir.display())
}

/// Plain answer, and the functions that are entered; `None` if the workload cannot be used here.
fn learn(bench: &mut Bench, workload: &'static Workload, tally: &mut Tally) -> Result<Option<Known>, String> {
    let (plain, took) = match bench.plain(workload) {
        Ok(plain) => plain,
        Err(why) => {
            println!("{}: left out: {why}", workload.name);
            return Ok(None);
        }
    };
    let mut running = bench.start(workload)?;
    if !running.is_ready(workload) {
        return Err(format!("{}: it ended before it was ready", workload.name));
    }
    running.pause();
    let mut places = Places::of(running.pid())?;
    let plan = session::plan(running.pid(), &places.entries(), Verb::Count).map_err(|e| e.to_string())?;
    // Hundreds of the kernel's would take minutes; they are taken for entered.
    let is_kernels = |s: &SitePlan| s.placement.rung == Rung::Kernel;
    let (by_kernel, sites): (Vec<_>, Vec<_>) = plan.sites.into_iter().partition(is_kernels);
    let mut session = Session::attach(running.pid(), sites).map_err(|e| e.to_string())?;
    running.go_on();
    let limit = hang_limit(took);
    let (answer, _) = running.answer(limit).map_err(|why| format!("{}: {why}", workload.name))?;
    session.detach().map_err(|e| e.to_string())?;
    if let Some(difference) = plain.difference(&answer) {
        tally.has_failed = true;
        let kept = bench.keep().display();
        return Err(format!("{} with all function entries probed: {difference}; kept {kept}", workload.name));
    }
    let hit = session.sites().filter(|s| s.hits() > 0);
    let mut hit: BTreeSet<(String, u64)> =
        hit.map(|s| (s.plan.module.clone(), s.plan.placement.site)).collect();
    hit.extend(plan.refused.into_iter().map(|r| (r.module, r.addr)));
    hit.extend(by_kernel.into_iter().map(|s| (s.module, s.placement.site)));
    places.enter(&hit);
    let (functions, entered) = places.count();
    println!(
        "{}: {functions} functions, {entered} entered; plain {:.1} s",
        workload.name,
        took.as_secs_f64()
    );
    Ok(Some(Known { workload, plain, took, places }))
}

/// No machine is so busy.
fn hang_limit(took: Duration) -> Duration {
    took * 40 + Duration::from_secs(60)
}

/// One process from start to end, with round after round of probes.
fn one_run(
    options: &Options,
    bench: &Bench,
    known: &Known,
    random: &mut Rng,
    tally: &mut Tally,
    last: &mut Vec<String>,
) -> Result<(), String> {
    let mut running = bench.start(known.workload)?;
    if running.is_ready(known.workload) {
        let mut code = CodeWatch::new(running.pid());
        // The first probes are in before it goes on, however soon it ends.
        let mut is_first = true;
        while !running.has_ended() && running.age() < hang_limit(known.took) {
            match round(options, &mut running, &known.places, random, tally, last, is_first) {
                Ok(()) => {}
                // Anything may fail in a process that is ending.
                Err(_) if ends_soon(&mut running) => break,
                Err(why) => return Err(why),
            }
            is_first = false;
            if options.busted == Some(Busted::Text) {
                flip(&code, running.pid());
            }
            // An error means that the process is ending.
            if let Ok(Some(difference)) = code.difference() {
                return Err(format!("its code is not its files': {difference}"));
            }
        }
    }
    let (answer, _) = running.answer(hang_limit(known.took))?;
    known.plain.difference(&answer).map_or(Ok(()), Err)
}

fn ends_soon(running: &mut Running) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end && !running.has_ended() {
        std::thread::sleep(Duration::from_millis(5));
    }
    running.has_ended()
}

/// One attach, some time, one detach; the process is held until the attach is over, or runs during it.
fn round(
    options: &Options,
    running: &mut Running,
    places: &Places,
    random: &mut Rng,
    tally: &mut Tally,
    last: &mut Vec<String>,
    is_held: bool,
) -> Result<(), String> {
    let specs = match &options.specs {
        Some(specs) => specs.clone(),
        None => places.pick(random, options.sites + options.sites / 3),
    };
    let is_by_handler = random.one_in(3);
    let hold = Duration::from_millis(1 + random.below(options.hold.as_millis() as u64));
    running.pause();
    let plan = planned(running.pid(), &specs, is_by_handler, options.sites);
    if !is_held || plan.is_err() {
        running.go_on();
    }
    let Plan { mut sites, refused, .. } = plan?;
    let mut by_kernel = 0;
    sites.retain(|site| {
        by_kernel += usize::from(site.placement.rung == Rung::Kernel);
        site.placement.rung != Rung::Kernel || by_kernel <= options.by_kernel
    });
    while sites.len() > options.sites {
        sites.swap_remove(random.below(sites.len() as u64) as usize);
    }
    sites.sort_by_key(SitePlan::addr);
    *last = sites.iter().map(|s| format!("u:{}:{:#x}", s.module, s.placement.site)).collect();
    tally.count_refusals(&refused);
    let attached = Session::attach(running.pid(), sites);
    running.go_on();
    let mut session = attached.map_err(|e| format!("attach: {e}"))?;
    if options.busted == Some(Busted::Jump) {
        session.sites().for_each(|s| lead_astray(running.pid(), s.plan.addr()));
    }
    let end = Instant::now() + hold;
    while Instant::now() < end && !running.has_ended() {
        std::thread::sleep(Duration::from_millis(5).min(hold));
    }
    let receipt = session.detach().map_err(|e| format!("detach: {e}"))?;
    tally.count_round(&session, &receipt);
    let is_right = receipt.was_gone() || receipt.is_verified();
    if !is_right && !running.has_ended() {
        return Err(format!("{receipt:?}"));
    }
    Ok(())
}

/// By a handler where that leaves enough sites: in Go it does not.
fn planned(pid: i32, specs: &[Spec], is_by_handler: bool, wanted: usize) -> Result<Plan, String> {
    if is_by_handler
        && let Ok(plan) = session::plan(pid, specs, Verb::CountByHandler)
        && plan.sites.len() * 2 > wanted
    {
        return Ok(plan);
    }
    session::plan(pid, specs, Verb::Count).map_err(|e| format!("plan: {e}"))
}

/// `--busted text`: as a detach that forgets a byte.
fn flip(code: &CodeWatch, pid: i32) {
    poke(pid, code.first().saturating_add(1), &[0xcc]);
}

/// `--busted jump`: as an attach that gets a distance wrong.
fn lead_astray(pid: i32, at: u64) {
    poke(pid, at + 1, &[0x55]);
}

fn poke(pid: i32, at: u64, bytes: &[u8]) {
    if let Ok(memory) = fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")) {
        let _ = memory.write_all_at(bytes, at);
    }
}
