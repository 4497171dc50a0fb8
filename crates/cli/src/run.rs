//! `count`, `hist`, `lat` and `trace`: from arguments to an engine.
//!
//! For:     main.
//! State:   none.
//! Context: control.
//! Keeps:   nothing is touched before every argument was read.
//! Checked: testkit `faces`.

use crate::args::{CountArgs, HistArgs, LatArgs, RunArgs, Shape, Shown, TraceArgs};
use crate::engine::Job;
use crate::filtered::Of;
use crate::stacks::StackArgs;
use crate::{advice, args, engine, filtered, front};
use image::Spec;
use session::Verb;

pub fn count(args: CountArgs) -> i32 {
    if !args.filter.is_none() {
        return filtered::run(&args.specs, &Of::Count, &args.filter, &args.run);
    }
    let CountArgs { stack, flame, folded, diff, lines: has_lines, .. } = args;
    let by_stack = stack || flame.is_some() || folded.is_some() || has_lines;
    let verb = match (by_stack, args.by_handler) {
        (true, _) => Verb::CountStack,
        (_, true) => Verb::CountByHandler,
        _ => Verb::Count,
    };
    let stacks = StackArgs { has_lines, flame, folded, diff };
    if let Err(why) = stacks.check() {
        return advice::fail(&why, &[], &[]);
    }
    run(&args.specs, verb, RunArgs { stacks, ..args.run })
}

pub fn hist(args: HistArgs) -> i32 {
    match args::value(&args.value) {
        Some(verb) if args.filter.is_none() => run(&[args.spec], verb, args.run),
        _ => filtered::run(&[args.spec], &Of::Histogram(&args.value), &args.filter, &args.run),
    }
}

pub fn lat(args: LatArgs) -> i32 {
    run(&args.specs, Verb::Latency, args.run)
}

pub fn trace(args: TraceArgs) -> i32 {
    let shape = match (args.tree, args.graph) {
        (true, _) => Shape::Tree,
        (false, true) => Shape::Graph,
        (false, false) => Shape::Flat,
    };
    let shown = Shown {
        arguments: usize::from(args.arguments),
        shape,
        over: args.over,
        depth: args.depth.map(|depth| depth as usize),
        has_times: args.run.timestamps,
        has_stacks: args.stack || args.lines,
        has_lines: args.lines,
    };
    let run_args = RunArgs { shown, ..args.run };
    run(&args.specs, Verb::Trace { has_stacks: shown.has_stacks }, run_args)
}

pub fn run(specs: &[String], verb: Verb, args: RunArgs) -> i32 {
    let mut parsed = Vec::new();
    for text in specs {
        match Spec::parse(text) {
            Ok(spec) => parsed.push(spec),
            Err(error) => return advice::bad_spec(&error),
        }
    }
    if let Err(code) = check_subject(&args, "trace") {
        return code;
    }
    let budgetless = match verb {
        // A call whose caller was not seen would stand under another one.
        Verb::Trace { .. } if args.shown.shape != Shape::Flat => Some("trace with --tree or --graph"),
        // One set of probes would go, and the others at the same places would stay.
        _ => {
            args.recorded.filter(|of| of.has_stacks || of.has_calls).map(|_| "record with --stack or --calls")
        }
    };
    if let Some(Err(code)) = budgetless.map(|what| check_budget(&args, what)) {
        return code;
    }
    // Who traps cannot be taken out.
    let args = RunArgs { no_kernel: args.no_kernel || args.budget.is_some(), ..args };
    session::set_patience(args.patience);
    front::run(args.pid, None, |stop, _, guard| engine::run(Job { specs: parsed, verb, args }, stop, guard))
}

/// A budget was asked for of what keeps none; else the exit code, with everything said.
pub fn check_budget(args: &RunArgs, what: &str) -> Result<(), i32> {
    if args.budget.is_none() {
        return Ok(());
    }
    let tries = ["without --budget".to_owned(), "count, hist, lat or trace, with --budget".to_owned()];
    Err(advice::fail(&format!("{what} keeps no --budget in this version"), &[], &tries))
}

/// A process was named, and it is not this one; else the exit code, with everything said.
pub fn check_subject(args: &RunArgs, verb: &str) -> Result<(), i32> {
    if args.pid.is_none() && args.command.is_empty() {
        let tries = ["add -p PID".into(), "add -- COMMAND ARGUMENTS".into()];
        return Err(advice::fail(&format!("no process to {verb}"), &[], &tries));
    }
    match args.pid.filter(|p| *p == std::process::id() as i32) {
        Some(pid) => Err(advice::cannot_attach(&session::Broken::Ourselves { pid })),
        None => Ok(()),
    }
}

/// The specifications of a command that only looks.
pub fn parse(specs: &[String]) -> Result<Vec<Spec>, i32> {
    specs.iter().map(|text| Spec::parse(text).map_err(|e| advice::bad_spec(&e))).collect()
}
