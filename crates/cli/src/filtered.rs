//! `count` and `hist` with `--if`, `--by` or an expression: as a program of the language.
//!
//! For:     run.
//! State:   none.
//! Context: control.
//! Keeps:   F1 what the verb's options say is what the program does; an option that it cannot keep is refused by name.
//! Checked: tests below; testkit `filtered`.

use crate::args::{Format, RunArgs};
use crate::script;
use crate::script::options::{Backend, Options};
use crate::{advice, run};
use clap::Args;
use image::spec::{Library, Pattern, Place};
use image::{Spec, When};
use std::fmt::Write as _;
use std::time::Duration;

/// Which hits count, and under which keys.
#[derive(Debug, Args, Clone, Default)]
pub struct Filter {
    /// Only hits for which this is true, in the language of scripts: 'arg0 > 1000 && comm == "nginx"'
    #[arg(long = "if", value_name = "EXPR")]
    pub condition: Option<String>,
    /// A line for each of these keys, in the same language: tid, pid, comm, cpu, func, arg0, retval, 'str(arg0)' ...
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub by: Vec<String>,
    /// Who counts: auto and inproc, the process itself; kernel, the kernel, at its own probes
    #[arg(long, value_name = "WHERE", hide_short_help = true, value_parser = Backend::read)]
    pub backend: Option<Backend>,
}

impl Filter {
    /// Nothing is asked for that takes a program.
    pub fn is_none(&self) -> bool {
        self.condition.is_none() && self.by.is_empty() && self.backend.is_none()
    }
}

/// What is made of each hit.
pub enum Of<'a> {
    Count,
    /// A histogram of this expression.
    Histogram(&'a str),
}

/// Runs the verb as a program; the exit code.
pub fn run(specs: &[String], of: &Of<'_>, filter: &Filter, args: &RunArgs) -> i32 {
    let parsed = match run::parse(specs) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    if let Err(code) = run::check_subject(args, "trace") {
        return code;
    }
    if let Some(name) = unkept(args) {
        let what = format!("{name} does not go with --if, --by and expressions");
        return advice::fail(&what, &[], &[format!("without {name}")]);
    }
    let backend = match (args.no_kernel, filter.backend) {
        (true, Some(Backend::Kernel)) => {
            return advice::fail(&"--no-kernel: --backend kernel takes the kernel's probes alone", &[], &[]);
        }
        (true, _) => Backend::InProc,
        (false, backend) => backend.unwrap_or_default(),
    };
    session::set_patience(args.patience);
    let program = match program(&parsed, of, filter, args) {
        Ok(program) => program,
        Err(why) => return advice::fail(&why, &[], &[]),
    };
    script::told(&Options {
        program: Some(program),
        pids: args.pid.map(|pid| pid.to_string()).into_iter().collect(),
        follows: args.follow,
        command: (!args.command.is_empty()).then(|| quoted(&args.command)),
        format: Some(if args.format == Format::Json { "json" } else { "text" }.into()),
        output: args.output.clone(),
        is_quiet: args.quiet,
        is_verbose: args.verbose,
        is_verb: true,
        budget: args.budget,
        backend,
        takes_patterns: args.kernel,
        ..Options::default()
    })
}

/// The option that a program has nothing for.
pub fn unkept(args: &RunArgs) -> Option<&'static str> {
    let all = [
        (args.strict, "--strict"),
        (args.wait, "--wait"),
        (args.hit_only, "--hit-only"),
        (args.deltas, "--deltas"),
        (args.timestamps, "--timestamps"),
    ];
    all.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
}

/// The text of the program.
fn program(specs: &[Spec], of: &Of<'_>, filter: &Filter, args: &RunArgs) -> Result<String, String> {
    let points: Vec<String> = specs.iter().map(|spec| point(spec, args)).collect::<Result<_, _>>()?;
    let is_mark = specs.iter().any(|spec| matches!(spec.place, Place::Mark(_)));
    let keys = match filter.by.as_slice() {
        [] if is_mark => "probe".to_owned(),
        [] => "func".to_owned(),
        keys => keys.join(", "),
    };
    let value = match of {
        Of::Count => "count()".to_owned(),
        Of::Histogram(expression) => format!("hist({expression})"),
    };
    let condition = filter.condition.as_ref().map_or(String::new(), |c| format!(" /{c}/"));
    let mut text = format!("config = {{ max_probes = {} }}\n", args.max_probes);
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}{condition} {{ @[{keys}] = {value}; }}", points.join(", "));
    let every =
        |time: Duration, what: &str| format!("interval:us:{} {{ {what}; }}\n", time.as_micros().max(1));
    if let Some(time) = args.interval {
        text += &every(time, "print(@)");
    }
    if let Some(time) = args.duration {
        text += &every(time, "exit()");
    }
    Ok(text)
}

/// A specification as the language writes it.
fn point(spec: &Spec, args: &RunArgs) -> Result<String, String> {
    let library = match &spec.library {
        Library::Named(name) => name.clone(),
        Library::Main => main_program(args)?,
    };
    let provider = if spec.when == When::Return { "uretprobe" } else { "uprobe" };
    let name = |pattern: &Pattern| match pattern.is_exact() || pattern.is_glob() {
        true => Ok(pattern.text().to_owned()),
        false => Err(format!(
            "{spec}: a regular expression does not go with --if, --by and expressions; a glob does"
        )),
    };
    Ok(match &spec.place {
        Place::Function(function) if function.version.is_some() => {
            return Err(format!("{spec}: a symbol's version does not go with --if, --by and expressions"));
        }
        Place::Function(function) if function.offset > 0 => {
            format!("{provider}:\"{library}\":\"{}\"+{}", name(&function.pattern)?, function.offset)
        }
        Place::Function(function) => format!("{provider}:\"{library}\":\"{}\"", name(&function.pattern)?),
        Place::Address(at) => format!("{provider}:\"{library}\":{:#x}", at.0),
        Place::Mark(mark) => {
            let of = mark
                .provider
                .as_ref()
                .map(&name)
                .transpose()?
                .map_or(String::new(), |of| format!("\"{of}\":"));
            format!("usdt:\"{library}\":{of}\"{}\"", name(&mark.name)?)
        }
    })
}

/// The file of the process or command.
fn main_program(args: &RunArgs) -> Result<String, String> {
    if let Some(pid) = args.pid {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
        return exe
            .map(|path| path.display().to_string())
            .map_err(|error| format!("the program of process {pid} cannot be read: {error}"));
    }
    Ok(args.command.first().cloned().unwrap_or_default())
}

/// Words as one command that is split at spaces again.
pub fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn text(words: &[&str]) -> Result<String, String> {
        let all = ["nanoprobe"].iter().chain(words).copied();
        match Cli::try_parse_from(all).unwrap().command {
            Command::Count(args) => {
                program(&run::parse(&args.specs).unwrap(), &Of::Count, &args.filter, &args.run)
            }
            Command::Hist(args) => program(
                &run::parse(&[args.spec]).unwrap(),
                &Of::Histogram(&args.value),
                &args.filter,
                &args.run,
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_verb_is_written_as_a_program() {
        let head = "config = { max_probes = 100000 }\n";
        let count = text(&["count", "u:libc:malloc", "--if", "arg0 > 9", "--by", "tid,comm", "--for", "2s"]);
        let wanted = "uprobe:\"libc\":\"malloc\" /arg0 > 9/ { @[tid, comm] = count(); }\ninterval:us:2000000 { exit(); }\n";
        assert_eq!(count.unwrap(), format!("{head}{wanted}"));
        let hist = text(&["hist", "ur:libc:re*", "retval / 2", "-i", "1s", "--", "true"]);
        let wanted =
            "uretprobe:\"libc\":\"re*\" { @[func] = hist(retval / 2); }\ninterval:us:1000000 { print(@); }\n";
        assert_eq!(hist.unwrap(), format!("{head}{wanted}"));
        let mark = text(&["count", "U:libc:libc:setjmp", "u::main+4", "--by", "pid", "--", "./server"]);
        let wanted =
            "usdt:\"libc\":\"libc\":\"setjmp\", uprobe:\"./server\":\"main\"+4 { @[pid] = count(); }\n";
        assert_eq!(mark.unwrap(), format!("{head}{wanted}"));
    }

    #[test]
    fn what_a_program_cannot_keep_is_refused_by_name() {
        assert!(text(&["count", "u:libc:/^mal/", "--by", "tid"]).unwrap_err().contains("regular expression"));
        assert!(
            text(&["count", "u:libc:memcpy@GLIBC_2.2.5", "--by", "tid"]).unwrap_err().contains("version")
        );
    }

    #[test]
    fn words_stay_words() {
        let words = ["a b".to_owned(), "it's".to_owned(), "\"\\".to_owned(), String::new()];
        assert_eq!(script::split(&quoted(&words)), words);
    }
}
