#![doc = include_str!("../README.md")]

mod advice;
mod args;
mod asked;
mod bpf;
mod engine;
mod front;
mod guard;
mod look;
mod probes;
mod render;
mod run;
mod stop;
mod trace;
mod watch;

use args::{Cli, Command};
use clap::Parser;
use std::process::exit;

fn main() {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if !error.use_stderr() {
                let _ = error.print();
                exit(0);
            }
            let text = error.render().to_string();
            eprint!("nanoprobe: {}", text.strip_prefix("error: ").unwrap_or(&text));
            exit(1);
        }
    };
    let code = match cli.command {
        Command::Count(args) => run::count(args),
        Command::Hist(args) => run::hist(args),
        Command::Lat(args) => run::lat(args),
        Command::Trace(args) => run::trace(args),
        Command::Watch(args) => watch::watch(args),
        Command::List(args) => look::list(&args),
        Command::Explain(args) => look::explain(&args),
        Command::Recover(args) => look::recover(args.pid),
        Command::Bench(rest) => bench::bench_main(&rest.words),
        Command::Bpf(args) => bpf::bpf(args),
        Command::Torture(rest) => torture::torture_main(&rest.words),
        Command::TortureTarget(rest) => torture::target_main(&rest.words),
    };
    exit(code);
}
