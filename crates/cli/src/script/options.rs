//! The command line of bpftrace.
//!
//! For:     `nanoprobe -e`, `nanoprobe run FILE`, and the name `bpftrace`.
//! State:   none.
//! Context: control.
//! Keeps:   O1 an option that is not known is refused with the usage.
//! Checked: tests below; tests/script.rs.

use std::path::PathBuf;

/// What bpftrace 0.26 takes and this version does something with, or takes and needs not.
pub const USAGE: &str = "\
USAGE:
    bpftrace [options] filename [parameters] [-- parameters]
    bpftrace [options] -e 'program' [parameters] [-- parameters]
    nanoprobe -e 'program' ...    nanoprobe run filename ...

OPTIONS:
    --backend WHERE           who runs programs: auto (default), inproc, kernel
    -B MODE        output buffering: line (default), full, none
    --budget PERCENT          cost the process so much at most: functions are in by turns
    -c 'CMD'       run CMD; tracing ends when it does
    -d STAGE       print a stage: ast, dis
    --debuginfo DIR           separate debug files
    -e 'program'   run this program
    -f FORMAT      text (default) or json
    --follow       with -p and -c: children and what they start are traced too
    --fmt FILE     print the file in standard form
    -h, --help     this text
    -I DIR, --include FILE    headers
    --info         what this build can do
    -k             tell failed reads and lookups
    --kernel       the kernel's probes where no jump fits, also at what a pattern fits
    -l [search|filename]      list probes
    -o FILE        write output to FILE
    -p PID         the process to trace, or several of them; tracing ends when they do
    --probe-filter REGEX      only probes whose name matches
    -q             say less
    --test, --bench, --mode MODE    run test or bench probes
    --unsafe       allow system()
    -v             say more
    -V, --version  the version
    --dry-run      end when everything is in place
    --no-warnings  say no warnings";

/// Who runs the programs of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The traced processes and the controller.
    #[default]
    Auto,
    /// The same, and never the kernel.
    InProc,
    /// The kernel.
    Kernel,
}

impl Backend {
    /// The one that is meant.
    ///
    /// # Errors
    /// None is.
    pub fn read(text: &str) -> Result<Backend, String> {
        match text {
            "auto" => Ok(Backend::Auto),
            "inproc" => Ok(Backend::InProc),
            "kernel" => Ok(Backend::Kernel),
            other => Err(format!("no backend {other}; there are auto, inproc and kernel")),
        }
    }
}

/// The stages of `-d`.
///
/// # Errors
/// One is none of bpftrace's.
fn stages(text: &str) -> Result<Vec<String>, String> {
    const STAGES: [&str; 9] =
        ["all", "ast", "parse", "types", "codegen", "codegen-opt", "dis", "libbpf", "verifier"];
    let unknown = text.split(',').find(|stage| !STAGES.contains(stage));
    match unknown {
        None => Ok(text.split(',').map(str::to_owned).collect()),
        Some(other) => Err(format!("no stage {other} of -d; there are {}", STAGES.join(", "))),
    }
}

/// The options as they were given.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    pub program: Option<String>,
    pub file: Option<String>,
    pub format: Option<String>,
    pub output: Option<PathBuf>,
    pub buffering: Option<String>,
    pub backend: Backend,
    /// Where no jump fits the kernel's probes are wanted at what a pattern fits too.
    pub takes_patterns: bool,
    /// What tracing may cost the process, in percent of its processor time.
    pub budget: Option<f64>,
    /// Processes that run.
    pub pids: Vec<String>,
    /// What they and their children start is traced too.
    pub follows: bool,
    pub command: Option<String>,
    /// `-l`, and whether what follows was given.
    pub is_list: bool,
    pub search: Option<String>,
    pub stages: Vec<String>,
    pub headers: Vec<String>,
    /// Where headers are looked for before the system's directories.
    pub include: Vec<std::path::PathBuf>,
    /// Where separate debug files are looked for before the system's directories.
    pub debug_dirs: Vec<std::path::PathBuf>,
    pub filter: Option<String>,
    pub mode: Option<String>,
    pub fmt: Option<String>,
    /// Stacks are walked by unwind tables, which are read of every process that is entered.
    pub unwinds: bool,
    pub is_quiet: bool,
    pub is_verbose: bool,
    pub says_failures: bool,
    pub is_unsafe: bool,
    pub is_dry: bool,
    pub no_warnings: bool,
    pub wants_info: bool,
    pub wants_version: bool,
    pub wants_help: bool,
    /// `$1`, `$2` ...
    pub params: Vec<String>,
    /// It is what a verb is written as: no blank lines before results.
    pub is_verb: bool,
    /// Called by that name: what bpftrace does not print is not printed.
    pub is_bpftrace: bool,
    /// It is shown in a live view.
    pub watch: Option<super::Watch>,
    /// `--name=value` after `--`.
    pub named: Vec<(String, Option<String>)>,
}

/// Options of bpftrace that take a value and mean nothing here.
const IGNORED: [&str; 2] = ["--no-feature", "--traceable-functions"];
/// Options that this version does not have.
const ABSENT: [&str; 3] = ["--emit-elf", "--emit-llvm", "--aot"];

/// Reads the words behind the command's name.
///
/// # Errors
/// What can't be understood, as it is told.
pub fn parse(words: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            words.by_ref().for_each(|word| options.parameter(word));
            break;
        }
        let (name, mut value) = split(word);
        let mut next = |name: &str| {
            let value = value.take().or_else(|| words.next().cloned());
            value.ok_or_else(|| format!("option {name} takes a value"))
        };
        match name {
            "-e" => options.program = Some(next(name)?),
            "-f" | "--format" => options.format = Some(next(name)?),
            "-o" | "--output" => options.output = Some(next(name)?.into()),
            "--backend" => options.backend = Backend::read(&next(name)?)?,
            "--kernel" => options.takes_patterns = true,
            "-B" => options.buffering = Some(next(name)?),
            "--follow" => options.follows = true,
            "-p" | "--pid" => options.pids.push(next(name)?),
            "-c" | "--cmd" => options.command = Some(next(name)?),
            "-d" | "--debug" => options.stages.extend(stages(&next(name)?)?),
            "-I" => options.include.push(next(name)?.into()),
            "--debuginfo" => options.debug_dirs.push(next(name)?.into()),
            "--include" => options.headers.push(next(name)?),
            "--probe-filter" => options.filter = Some(next(name)?),
            "--mode" => options.mode = Some(next(name)?),
            "--fmt" => options.fmt = Some(next(name)?),
            "--test" => options.mode = Some("test".into()),
            "--bench" => options.mode = Some("bench".into()),
            "-l" | "--list" => options.is_list = true,
            "-lv" | "-vl" => (options.is_list, options.is_verbose) = (true, true),
            "-q" | "--quiet" => options.is_quiet = true,
            "-v" | "-vv" | "--verbose" => options.is_verbose = true,
            "-k" | "-kk" => options.says_failures = true,
            "--unsafe" => options.is_unsafe = true,
            "--dry-run" => options.is_dry = true,
            "--no-warnings" => options.no_warnings = true,
            "--info" => options.wants_info = true,
            "-V" | "--version" => options.wants_version = true,
            "-h" | "--help" => options.wants_help = true,
            "--dwarf-pid" => {
                next(name)?;
                options.unwinds = true;
            }
            "--usdt-file-activation" => {}
            name if IGNORED.contains(&name) => drop(next(name)?),
            name if ABSENT.contains(&name) => return Err(format!("{name} is not in this version")),
            "--budget" => options.budget = Some(crate::args::percent(&next(name)?)?),
            name if name.len() > 1 && name.starts_with('-') => return Err(format!("unknown option: {word}")),
            _ => options.word(word),
        }
    }
    options.check()?;
    Ok(options)
}

/// A long option and the value behind `=`; a short one and the value that follows at once.
fn split(word: &str) -> (&str, Option<String>) {
    const JOINED: [&str; 8] = ["-e", "-f", "-o", "-B", "-p", "-c", "-d", "-I"];
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
    }
    match word.split_at_checked(2) {
        Some((name, value)) if !value.is_empty() && JOINED.contains(&name) => (name, Some(value.to_owned())),
        _ => (word, None),
    }
}

impl Options {
    /// # Errors
    /// Two options that contradict each other.
    pub fn check(&self) -> Result<(), String> {
        let other = match (self.backend, self.budget, self.follows) {
            _ if !self.takes_patterns => return Ok(()),
            (Backend::InProc, ..) => "--backend inproc takes none of the kernel's probes",
            (_, Some(_), _) => "--budget keeps none with the kernel's probes",
            (_, _, true) => "the kernel's probes do not follow",
            _ => return Ok(()),
        };
        Err(format!("--kernel: {other}"))
    }

    /// A word that is no option: the file or what is searched, then parameters.
    fn word(&mut self, word: &str) {
        if self.is_list && self.program.is_none() && self.search.is_none() {
            self.search = Some(word.to_owned());
        } else if self.program.is_none() && self.file.is_none() && !self.is_list {
            self.file = Some(word.to_owned());
        } else {
            self.params.push(word.to_owned());
        }
    }

    /// A word behind `--`.
    fn parameter(&mut self, word: &str) {
        match word.strip_prefix("--") {
            Some(named) => {
                let (name, value) = match named.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (named, None),
                };
                self.named.push((name.to_owned(), value));
            }
            None => self.params.push(word.to_owned()),
        }
    }
}

/// A process number as bpftrace reads it.
///
/// # Errors
/// What is wrong with it.
pub fn pid(text: &str) -> Result<u32, String> {
    /// The most that Linux gives out.
    const PID_MAX: u64 = 4 << 20;
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    match (digits, text[..digits].parse::<u64>()) {
        (0, _) => Err(format!("Failed to parse pid: invalid integer: {text}")),
        (n, _) if n < text.len() => Err(format!("Failed to parse pid: invalid trailing bytes: {text}")),
        (_, Ok(pid)) if (1..=PID_MAX).contains(&pid) => Ok(pid as u32),
        _ => Err(format!("Pid out of range: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn parameters_stand_before_and_behind_the_double_dash() {
        let options = read("-q -e P one -f json two -- --aa=20 --bb three").unwrap();
        assert_eq!(options.program.as_deref(), Some("P"));
        assert_eq!(options.params, ["one", "two", "three"]);
        assert_eq!(options.named, [("aa".into(), Some("20".into())), ("bb".into(), None)]);
        assert!(options.is_quiet && options.format.as_deref() == Some("json"));
    }

    #[test]
    fn the_first_word_is_the_file_unless_a_program_is_given() {
        let options = read("x.bt 7").unwrap();
        assert_eq!(
            (options.file.as_deref(), options.params.as_slice()),
            (Some("x.bt"), &["7".to_owned()][..])
        );
        assert_eq!(read("--output=f -eP").unwrap().program.as_deref(), Some("P"));
        assert_eq!(read("-l u:*").unwrap().search.as_deref(), Some("u:*"));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(read("-e P --aa=20"), Err("unknown option: --aa=20".into()));
        assert!(read("-e P --budget 200%").is_err() && read("-e P --budget").is_err());
        assert_eq!(read("-e P --budget 2%").unwrap().budget, Some(2.0));
        assert_eq!(read("-e"), Err("option -e takes a value".into()));
        assert!(read("-e P --kernel").unwrap().takes_patterns);
        for other in ["--backend inproc", "--budget 2%", "--follow"] {
            let why = read(&format!("-e P --kernel {other}")).unwrap_err();
            assert!(why.starts_with("--kernel: "), "{why}");
        }
        assert!(read("-d ast,nothing -e P").is_err_and(|why| why.starts_with("no stage nothing of -d")));
        assert_eq!(read("-d ast,dis -e P").unwrap().stages, ["ast", "dis"]);
    }

    #[test]
    fn process_numbers_are_read_whole() {
        assert_eq!(pid("12"), Ok(12));
        for (text, why) in
            [("1x", "trailing"), ("x", "invalid integer"), ("0", "range"), ("5000000", "range")]
        {
            assert!(pid(text).unwrap_err().contains(why), "{text}");
        }
        assert!(pid("99999999999999999999").unwrap_err().contains("range"));
    }
}
