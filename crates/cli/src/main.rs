#![doc = include_str!("../README.md")]

// First: its `eprintln!` is everybody's here.
#[macro_use]
mod talk;

mod advice;
mod args;
mod aside;
mod asked;
mod bar;
mod bpf;
mod budget;
mod engine;
mod filtered;
mod front;
mod guard;
mod look;
mod made;
mod manual;
mod names;
mod out;
mod paint;
mod probes;
mod recording;
mod render;
mod run;
mod script;
mod shown;
mod stacks;
mod started;
mod stop;
mod top;
mod trace;
mod watch;

use args::{Cli, Command, Format};
use clap::Parser;
use out::Out;
use std::process::exit;

fn main() {
    let all: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(words) = script::words(&all) {
        exit(script::main(&words, script::is_bpftrace(&all)));
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if !error.use_stderr() {
                let mut out = Out::stdout(Format::Text);
                out.lines(error.render().to_string().lines());
                exit(out.finish(0));
            }
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            format!("nanoprobe: {text}").lines().for_each(|line| eprintln!("{line}"));
            exit(1);
        }
    };
    let code = match cli.command {
        Command::Count(args) => run::count(args),
        Command::Hist(args) => run::hist(args),
        Command::Lat(args) => run::lat(args),
        Command::Trace(args) => run::trace(args),
        Command::Top(args) => top::top(args),
        Command::Watch(args) => watch::watch(args),
        Command::Record(args) => recording::record(args),
        Command::Report(args) => recording::report(&args),
        Command::List(args) => look::list(&args),
        Command::Explain(args) => look::explain(&args),
        Command::Recover(args) => look::recover(args.pid),
        Command::Run(rest) => script::main(&rest.words, false),
        Command::Bench(rest) => bench::bench_main(&rest.words),
        Command::Bpf(args) => bpf::bpf(args),
        Command::Completions(args) => manual::completions(args.shell),
        Command::Man(args) => manual::man(args.to.as_deref()),
        Command::Torture(rest) => torture::torture_main(&rest.words),
        Command::TortureTarget(rest) => torture::target_main(&rest.words),
    };
    exit(code);
}
