//! Scripts: `nanoprobe -e`, `nanoprobe run FILE`, and everything under the name `bpftrace`.
//!
//! For:     main.
//! State:   none.
//! Context: control.
//! Keeps:   S1 nothing runs before the whole script was checked and every probe of it can be had; what cannot is named.
//! Checked: tests/script.rs, tests below.

mod budgeted;
mod command;
mod family;
mod kernel;
mod later;
mod live;
mod loaded;
mod names;
mod native;
pub mod options;
mod place;
mod sampled;
mod watched;

use crate::args::RunArgs;
use crate::front;
use crate::top::Tty;
use budgeted::Asked;
use lang::ast::Provider;
use lang::program::{Event, Named, Script};
use lang::run::{Buffering, Ended, Format, Machine, Mode, Out, Settings, Untraced, out_error};
use lang::{Checked, Disk, Opt, OptValue, Request, Targets};
use live::{How, Live, Patterns, Which};
use names::Names;
use options::{Backend, Options};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::rc::Rc;
pub use watched::Watch;
use watched::{Sink, Watched};

/// The version of bpftrace whose language this is.
const LANGUAGE: &str = "v0.26.1";
/// No script is longer.
const SCRIPT_MAX: u64 = 16 << 20;
/// The words of a script's command line, if this is one.
pub fn words(all: &[String]) -> Option<Vec<String>> {
    if is_bpftrace(all) {
        return Some(all[1..].to_vec());
    }
    let first = all.get(1)?;
    if first == "run" {
        return Some(all[2..].to_vec());
    }
    let has_program = first.starts_with("-e") || all.iter().any(|word| word == "-e");
    if first.starts_with('-') && has_program {
        return Some(all[1..].to_vec());
    }
    // Options of `run` may stand before it.
    let run = all.iter().position(|word| word == "run")?;
    let before = options::parse(&all[1..run]).ok()?;
    (first.starts_with('-') && before.file.is_none()).then(|| [&all[1..run], &all[run + 1..]].concat())
}

/// Whether we were called by that name.
pub fn is_bpftrace(all: &[String]) -> bool {
    let name = all.first().and_then(|name| Path::new(name).file_name());
    name.is_some_and(|name| name == "bpftrace")
}

/// The exit code.
pub fn main(words: &[String], is_bpftrace: bool) -> i32 {
    let options = match options::parse(words) {
        Ok(options) => Options { is_bpftrace, ..options },
        Err(why) => {
            eprintln!("ERROR: {why}");
            options::USAGE.lines().for_each(|line| eprintln!("{line}"));
            return 1;
        }
    };
    told(&options)
}

/// Runs a script as `run` does, in a live view.
pub fn watched(file: &str, args: &RunArgs, watch: Watch) -> i32 {
    told(&Options {
        file: Some(file.to_owned()),
        pids: args.pid.map(|pid| pid.to_string()).into_iter().collect(),
        follows: args.follow,
        command: (!args.command.is_empty()).then(|| crate::filtered::quoted(&args.command)),
        format: Some(if args.format == crate::args::Format::Json { "json" } else { "text" }.into()),
        output: args.output.clone(),
        is_quiet: args.quiet,
        is_verbose: args.verbose,
        backend: if args.no_kernel { Backend::InProc } else { Backend::Auto },
        takes_patterns: args.kernel,
        watch: Some(watch),
        ..Options::default()
    })
}

/// Does what the options ask for; the exit code, with everything said.
pub fn told(options: &Options) -> i32 {
    match options.check().map_err(|why| format!("ERROR: {why}")).and_then(|()| run(options)) {
        Ok(code) => code,
        Err(why) => {
            why.trim_end().lines().for_each(|line| eprintln!("{line}"));
            1
        }
    }
}

fn run(options: &Options) -> Result<i32, String> {
    if options.wants_version {
        return put(format!("bpftrace {LANGUAGE} (nanoprobe {})\n", env!("CARGO_PKG_VERSION"))).map(|()| 0);
    }
    if options.wants_info {
        return put(info() + "\n").map(|()| 0);
    }
    if let Some(file) = &options.fmt {
        let text = lang::formatted(file, &read(file)?).map_err(|refused| refused.to_string())?;
        return put(text).map(|()| 0);
    }
    let is_idle = options.program.is_none() && options.file.is_none();
    if options.wants_help || (is_idle && !options.is_list) {
        return put(format!("{}\n", options::USAGE)).map(|()| i32::from(!options.wants_help));
    }
    let settings = settings(options)?;
    let format = format(options)?;
    let buffering = buffering(options)?;
    if options.is_list {
        return list(options).map(|()| 0);
    }
    let mut targets = targets(options)?;
    let (checked, mut script) = prepare(options, &mut targets)?;
    if options.named.iter().any(|(name, value)| name == "help" && value.is_none())
        && !checked.options.iter().any(|option| option.name == "help")
    {
        return put(parameters(&checked.options) + "\n").map(|()| 0);
    }
    if !options.stages.is_empty() {
        return put(stages(options, &checked, &script)).map(|()| 0);
    }
    refuse_targets(&script, settings.mode)?;
    let asked = Asked::of(options, &checked, &script)?;
    let settings = Settings {
        prints_maps: checked.config.print_maps_on_exit,
        trailer: checked.config.str_trunc_trailer.clone(),
        cat_max: checked.config.max_cat_bytes,
        ..settings
    };
    // A view has a place of its own.
    let out = match options.watch {
        Some(_) => Out::new(Box::new(std::io::sink()), format, buffering, false),
        None => output(options, format, buffering)?,
    };
    let has_targets = script.probes.iter().any(|probe| matches!(probe.event, Event::Target(_)));
    let is_live = options.command.is_some() || has_targets || sampled::has_any(&script);
    let everywhere = libraries(options, &script, &targets);
    let is_for_all = !everywhere.is_empty() && settings.mode == Mode::Trace && !sampled::has_any(&script);
    let is_by_kernel = match options.backend {
        Backend::Auto => is_for_all,
        backend => backend == Backend::Kernel,
    };
    if is_by_kernel && sampled::has_any(&script) {
        return Err("ERROR: profile, software, hardware and watchpoint probes run in the controller: not with --backend kernel".into());
    }
    if is_by_kernel && settings.mode != Mode::Trace {
        return Err("ERROR: tests and benches do not run with --backend kernel".into());
    }
    if !is_by_kernel && (!is_live || settings.mode != Mode::Trace) {
        let machine = Machine::new(script, settings, out, Box::new(std::io::stderr()))?;
        return code(machine.run(&mut Untraced));
    }
    let command = options.command.as_deref().map(split);
    let pids: Vec<i32> = pids(options)?.into_iter().map(|pid| pid as i32).collect();
    let pid = pids.first().copied().filter(|_| command.is_none());
    let which = match (pids, command) {
        (_, Some(words)) => Which::Command(words),
        (pids, None) if !pids.is_empty() => Which::Pids(pids),
        (_, None) => Which::All,
    };
    if options.follows && (is_by_kernel || matches!(which, Which::All)) {
        let why = if is_by_kernel {
            "the kernel's probes do not follow"
        } else {
            "name processes with -p, or a command with -c"
        };
        return Err(format!("ERROR: --follow: {why}"));
    }
    let says = !options.is_quiet && !options.no_warnings;
    if says && !everywhere.is_empty() {
        eprintln!("WARNING: {}: {}", everywhere.join(", "), in_all_processes(is_by_kernel));
    }
    let names = Rc::new(Names::new(checked.config.show_debug_info));
    script.symbols = Some(Named(names.clone()));
    if options.watch.is_some() && (is_by_kernel || !has_targets) {
        return Err(
            "ERROR: top shows scripts that have probes in a process; this one has none: nanoprobe run".into(),
        );
    }
    let tty = options.watch.filter(|watch| !watch.is_plain).and_then(|_| Tty::find());
    let sink = options.watch.map(|_| Sink::new(options.output.as_deref(), tty.is_some())).transpose()?;
    let out = match &sink {
        Some(sink) => Out::new(Box::new(sink.clone()), format, buffering, sink.is_terminal()),
        None => out,
    };
    let trailer = settings.trailer.clone();
    let may_fall = options.backend == Backend::Auto && asked.is_none() && !sampled::has_any(&script);
    let patterns = if options.takes_patterns { Patterns::Taken } else { Patterns::Left };
    let how = How {
        follows: options.follows,
        says,
        is_verbose: options.is_verbose,
        falls: may_fall && !options.follows && options.watch.is_none(),
        divides: (may_fall && !options.follows).then_some(patterns),
        cure: may_fall.then_some(match (options.watch.is_some(), options.follows) {
            (_, true) => "--backend kernel without --follow",
            (true, _) if options.takes_patterns => "nanoprobe run --backend kernel",
            _ => "--kernel",
        }),
    };
    let watch = options.watch;
    Ok(front::run(pid, tty, move |stop, tty, guard| {
        let err: Box<dyn Write> = match watch {
            Some(_) => Box::new(watched::Talk::default()),
            None => Box::new(std::io::stderr()),
        };
        let done = if is_by_kernel {
            kernel::prepare(&script, (which, how), (targets, names), stop, guard).and_then(
                |(mut processes, engine)| {
                    let mut machine = Machine::new(script, settings, out, err)?;
                    machine.run_by(engine);
                    code(machine.run(&mut processes))
                },
            )
        } else {
            let live = Live::new(which, how, (targets, names), asked, stop, guard);
            let machine = Machine::new(script, settings, out, err);
            match watch.zip(sink) {
                Some((watch, sink)) => {
                    let mut watched = Watched::new(live, watch, tty, sink, (format, trailer));
                    machine.and_then(|machine| code(machine.run(&mut watched)))
                }
                None => {
                    let mut live = live;
                    machine.and_then(|machine| code(machine.run(&mut live)))
                }
            }
        };
        done.unwrap_or_else(|why| {
            eprintln!("{}", why.trim_end());
            1
        })
    }))
}

/// Libraries that a script has places in, if no process is named: any process may load them, at any time.
fn libraries(options: &Options, script: &Script, targets: &Targets) -> Vec<String> {
    if options.command.is_some() || !options.pids.is_empty() {
        return Vec::new();
    }
    let wanted = place::wanted(script, targets);
    let files = targets.files().iter().filter(|file| wanted.contains(&file.path) && file.image.is_library());
    files.map(|file| file.path.display().to_string()).collect()
}

/// What becomes of libraries of all processes, and what would be better.
fn in_all_processes(is_by_kernel: bool) -> &'static str {
    if is_by_kernel {
        "a library of any process: the kernel's probes see all of them, for a trap a hit; name a process with -p, or a command with -c, for probes without one"
    } else {
        "a library of any process: name one that uses it with -p, or a command with -c"
    }
}

/// The exit code of a run that has ended.
fn code(ended: Ended) -> Result<i32, String> {
    match ended.failure {
        Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(141),
        Some(error) => Err(format!("ERROR: output can't be written: {}", out_error(&error))),
        None => Ok(ended.code),
    }
}

/// `-l`: the probes that a search fits, or those of a program or script.
fn list(options: &Options) -> Result<(), String> {
    let is_script = |file: &&String| !file.contains(':') && Path::new(file.as_str()).is_file();
    let script = options.program.is_some() || options.search.as_ref().is_some_and(|file| is_script(&file));
    let mut lines = Vec::new();
    if script {
        let mut targets = targets(options)?;
        let checked = checked(options, &mut targets)?;
        for point in checked.probes.iter().flat_map(|probe| &probe.points) {
            match point.sites.is_empty() {
                true => lines.push(point.text.clone()),
                false => lines.extend(targets.lines(point.clone(), options.is_verbose)?),
            }
        }
    } else {
        // Of a process, what it has; without one those that need no file, not all files of the machine.
        let search = options.search.as_deref().or((!options.pids.is_empty()).then_some("*"));
        lines = match search {
            None => lang::events::listed("*"),
            Some(search) => {
                targets(options)?.list(search, options.is_verbose).map_err(|why| format!("ERROR: {why}"))?
            }
        };
    }
    put(lines.iter().map(|line| format!("{line}\n")).collect())
}

/// Writes a text to the output; whoever reads it may leave.
fn put(text: String) -> Result<(), String> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("ERROR: output can't be written: {}", out_error(&error)))
        }
        _ => Ok(()),
    }
}

/// What is known of traced files.
fn targets(options: &Options) -> Result<Targets, String> {
    let dir = options.file.as_ref().and_then(|file| Path::new(file).parent().map(Path::to_owned));
    let disk = Disk { include: options.include.iter().cloned().chain([dir.unwrap_or_default()]).collect() };
    let mut targets =
        Targets::new(disk, pids(options)?.first().copied()).map_err(|why| format!("ERROR: {why}"))?;
    targets.debug_dirs.clone_from(&options.debug_dirs);
    Ok(targets)
}

/// Checks the script; warnings are said.
fn checked(options: &Options, targets: &mut Targets) -> Result<Checked, String> {
    let (name, text) = match (&options.program, options.file.as_ref().or(options.search.as_ref())) {
        (Some(text), _) => ("stdin".to_owned(), text.clone()),
        (None, Some(file)) => (file.clone(), read(file)?),
        (None, None) => return Err("ERROR: there is no program".into()),
    };
    let dir = options.file.as_ref().and_then(|file| Path::new(file).parent().map(Path::to_owned));
    let request = Request {
        name,
        text,
        dir: dir.unwrap_or_default(),
        params: options.params.clone(),
        named: options.named.clone(),
        env: std::env::vars().filter(|(name, _)| name.starts_with("BPFTRACE_")).collect(),
        headers: options.headers.clone(),
        safe: !options.is_unsafe,
        has_target: !options.pids.is_empty() || options.command.is_some() || options.unwinds,
    };
    let mut checked = lang::check(&request, targets).map_err(|refused| refused.show())?;
    if !options.no_warnings && !options.is_list {
        for warning in &checked.warnings {
            warning.show(&checked.sources).lines().for_each(|line| eprintln!("{line}"));
        }
    }
    filter(&mut checked, options)?;
    Ok(checked)
}

/// Checks and lowers the script.
fn prepare(options: &Options, targets: &mut Targets) -> Result<(Checked, Script), String> {
    let checked = checked(options, targets)?;
    let script = lowered(&checked, options)?;
    Ok((checked, script))
}

fn lowered(checked: &Checked, options: &Options) -> Result<Script, String> {
    let lowering = lang::Options {
        says_failures: options.says_failures,
        ncpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        time_map: std::env::var("BPFTRACE_DUMMY_TS_MAP").ok(),
    };
    lang::lower(checked, lowering).map_err(|error| error.show(&checked.sources))
}

fn read(file: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let opened: Result<Box<dyn Read>, _> = match file {
        "-" => Ok(Box::new(std::io::stdin())),
        file => File::open(file).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let done = opened.and_then(|from| from.take(SCRIPT_MAX).read_to_end(&mut bytes));
    done.map_err(|error| format!("ERROR: failed to open file '{file}': {}", out_error(&error)))?;
    String::from_utf8(bytes).map_err(|_| format!("ERROR: '{file}' is not a text in UTF-8"))
}

/// Leaves out the probes that `--probe-filter` does not name.
fn filter(checked: &mut Checked, options: &Options) -> Result<(), String> {
    let Some(filter) = &options.filter else { return Ok(()) };
    let filter = regex::Regex::new(filter)
        .map_err(|error| format!("ERROR: --probe-filter is no regular expression: {error}"))?;
    let mut matched = 0;
    for probe in &mut checked.probes {
        probe.points.retain(|point| {
            let is_special = matches!(point.spec, lang::ast::Spec::Begin | lang::ast::Spec::End);
            let is_kept = filter.is_match(&point.text);
            matched += usize::from(is_kept && !is_special);
            is_kept || is_special
        });
    }
    if matched == 0 { Err("ERROR: no probe matches --probe-filter".into()) } else { Ok(()) }
}

/// The processes of `-p`, which have to be there.
fn pids(options: &Options) -> Result<Vec<u32>, String> {
    let mut found = Vec::new();
    for text in &options.pids {
        let pid = options::pid(text).map_err(|why| format!("ERROR: {why}"))?;
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(format!("ERROR: there is no process {pid}"));
        }
        if !found.contains(&pid) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn settings(options: &Options) -> Result<Settings, String> {
    // Of several, who traces them says when they are over.
    let follows = match pids(options)?.as_slice() {
        [pid] if !options.follows => Some(*pid),
        _ => None,
    };
    let mode = match options.mode.as_deref() {
        None => Mode::Trace,
        Some("test") => Mode::Test,
        Some("bench") => Mode::Bench,
        Some(other) => return Err(format!("ERROR: invalid mode: {other}; there are test and bench")),
    };
    Ok(Settings {
        is_quiet: options.is_quiet,
        no_warnings: options.no_warnings,
        is_unsafe: options.is_unsafe,
        notifies: std::env::var_os("__BPFTRACE_NOTIFY_PROBES_ATTACHED").is_some(),
        follows,
        mode,
        times_from_1970: std::env::var_os("BPFTRACE_DUMMY_TS_MAP").is_some(),
        is_dry: options.is_dry,
        is_silent: options.is_quiet || options.is_bpftrace,
        is_verb: options.is_verb,
        ..Settings::default()
    })
}

fn format(options: &Options) -> Result<Format, String> {
    match options.format.as_deref() {
        None | Some("text") => Ok(Format::Text),
        Some("json") => Ok(Format::Json),
        Some(other) => Err(format!("ERROR: Invalid output format \"{other}\"; valid formats: text, json")),
    }
}

fn buffering(options: &Options) -> Result<Buffering, String> {
    match options.buffering.as_deref() {
        None | Some("line") => Ok(Buffering::Line),
        Some("full") => Ok(Buffering::Full),
        Some("none") => Ok(Buffering::None),
        Some(_) => Err("ERROR: -B must be either 'line', 'full', or 'none'.".into()),
    }
}

fn output(options: &Options, format: Format, buffering: Buffering) -> Result<Out, String> {
    match &options.output {
        None => {
            let is_terminal = std::io::stdout().is_terminal();
            Ok(Out::new(Box::new(std::io::stdout()), format, buffering, is_terminal))
        }
        Some(path) => {
            let file = File::create(path).map_err(|error| {
                format!("ERROR: Failed to open output file: \"{}\": {}", path.display(), out_error(&error))
            })?;
            Ok(Out::new(Box::new(file), format, buffering, false))
        }
    }
}

/// One line for each probe that this version cannot have.
fn refuse_targets(script: &Script, mode: Mode) -> Result<(), String> {
    let say = |probe: &lang::program::Probe| {
        let Event::Target(target) = &probe.event else { return None };
        let name = &probe.name;
        match target.provider {
            Provider::Uprobe | Provider::Uretprobe | Provider::Usdt => None,
            _ => Some(format!("ERROR: {name}: probes of the kernel are not in this version")),
        }
    };
    let refused: Vec<String> = script.probes.iter().filter_map(say).collect();
    if !refused.is_empty() && mode == Mode::Trace {
        return Err(refused.join("\n"));
    }
    let is_run = |probe: &lang::program::Probe| !matches!(probe.event, Event::Test(_) | Event::Bench(_));
    if mode == Mode::Trace && !script.probes.iter().any(is_run) {
        return Err("ERROR: No probes to attach".into());
    }
    Ok(())
}

/// What a program takes behind `--`, a line each.
fn parameters(options: &[Opt]) -> String {
    let line = |option: &Opt| {
        let value = match &option.default {
            OptValue::Bool(false) => String::new(),
            OptValue::Bool(true) => "=true".into(),
            OptValue::Int(n) => format!("={n}"),
            OptValue::Str(text) => format!("={}", String::from_utf8_lossy(text)),
        };
        let written = format!("--{}{value}", option.name);
        let about = option.about.as_deref().unwrap_or_default();
        format!("    {written:<24} {about}").trim_end().to_owned()
    };
    match options {
        [] => "The program has no options of its own.".into(),
        all => format!(
            "PROGRAM OPTIONS, with what they are if not given:\n{}",
            all.iter().map(line).collect::<Vec<_>>().join("\n")
        ),
    }
}

/// What `-d` prints.
fn stages(options: &Options, checked: &Checked, script: &Script) -> String {
    let has = |name: &str| options.stages.iter().any(|stage| stage == name || stage == "all");
    let mut text = String::new();
    if has("ast") {
        text.extend(checked.probes.iter().map(|probe| format!("{probe:#?}\n")));
    }
    if has("dis") || has("codegen") || has("codegen-opt") {
        text.extend(script.probes.iter().map(|probe| format!("{}:\n{}\n", probe.name, probe.program)));
    }
    text
}

/// Words as a shell splits them, with quotes and backslashes.
pub fn split(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(q)) if c == q => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(chars.next()),
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

fn info() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let probes = [
        "begin",
        "bench",
        "end",
        "hardware",
        "interval",
        "profile",
        "self",
        "software",
        "test",
        "uprobe",
        "uretprobe",
        "usdt",
        "watchpoint",
    ];
    let probes = probes.map(|name| format!("  {name}: yes"));
    let absent = ["fentry", "iter", "kprobe", "kprobe_session", "rawtracepoint", "tracepoint"];
    let absent = absent.map(|name| format!("  {name}: no"));
    let machine = std::env::consts::ARCH;
    format!(
        "System\n  kernel: Linux {}\n  machine: {machine}\n\nBuild\n  version: {LANGUAGE} (nanoprobe {})\n  \
         at hits: machine code in the process\n  elsewhere: an interpreter in the controller\n\nProbe types\n{}\n{}",
        release.trim(),
        env!("CARGO_PKG_VERSION"),
        probes.join("\n"),
        absent.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_own_options_are_told_with_their_values() {
        let option = |name: &str, default, about: Option<&str>| Opt {
            name: name.into(),
            default,
            about: about.map(str::to_owned),
        };
        let all =
            [option("n", OptValue::Int(5), Some("how many")), option("all", OptValue::Bool(false), None)];
        let told = parameters(&all);
        let lines: Vec<&str> = told.lines().skip(1).map(str::trim).collect();
        assert_eq!(lines, ["--n=5                    how many", "--all"]);
        assert_eq!(parameters(&[]).lines().count(), 1);
    }

    #[test]
    fn a_command_is_split_as_a_shell_does() {
        assert_eq!(split("a 'b c' \"d \\\" e\" f\\ g ''"), ["a", "b c", "d \" e", "f g", ""]);
        assert!(split("  ").is_empty());
    }

    #[test]
    fn the_name_and_the_first_word_tell_a_script() {
        let of = |line: &str| {
            let all: Vec<String> = line.split(' ').map(str::to_owned).collect();
            words(&all).map(|words| words.len())
        };
        assert_eq!(of("/x/bpftrace -l"), Some(1));
        assert_eq!(of("nanoprobe -e P"), Some(2));
        assert_eq!(of("nanoprobe -q -f json -e P"), Some(5));
        assert_eq!(of("nanoprobe run f 1"), Some(2));
        assert_eq!(of("nanoprobe --backend kernel run f 1"), Some(4));
        assert_eq!(of("nanoprobe -q run -f json f"), Some(4));
        assert_eq!(of("nanoprobe -o run"), None, "run is the file that -o takes");
        assert_eq!(of("nanoprobe --bogus run f"), None);
        assert_eq!(of("nanoprobe --bogus"), None);
        assert_eq!(of("nanoprobe count u:x:y"), None);
    }
}
