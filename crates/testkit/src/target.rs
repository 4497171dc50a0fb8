//! A target program, built and ready to run.
//!
//! For:     tests, torture and benches that need a process to trace.
//! State:   files under `target/testkit`, with a stamp that says what each was made from.
//! Context: control.
//! Keeps:   G1 a change of source or of flags rebuilds; G2 several tests may build at once, also
//!          in several processes; G3 a missing compiler is named with its package.
//! Checked: tests/targets.rs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program::Compiler;
use crate::{Error, Link, Program, Result, Running};

/// An executable file to run and trace.
#[derive(Clone, Debug)]
pub struct Target {
    path: PathBuf,
}

impl Target {
    /// The program, compiled if it is not yet or not from the present source.
    pub fn build(program: Program, link: Link) -> Result<Self> {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets");
        let into = build_directory();
        fs::create_dir_all(&into).map_err(Error::io(into.display()))?;
        let lock = File::create(into.join("lock")).map_err(Error::io("target/testkit/lock"))?;
        lock.lock().map_err(Error::io("lock of target/testkit"))?;

        let path = into.join(program.file_name(link));
        let arguments = program.arguments(link, &from, &path);
        let compiler = program.compiler(link);
        let recipe = recipe(&compiler, &arguments, program.sources(), &from)?;
        let stamp = path.with_extension("stamp");
        if !path.exists() || fs::read_to_string(&stamp).ok().as_deref() != Some(&recipe) {
            // A running copy keeps its old file: the compilers would write into it.
            let _ = fs::remove_file(&path);
            compile(&compiler, &arguments)?;
            fs::write(&stamp, recipe).map_err(Error::io(stamp.display()))?;
        }
        Ok(Self { path })
    }

    /// A file that is there already, found in PATH if it has no slash.
    pub fn installed(tool: &str, package: &'static str) -> Result<Self> {
        let missing = || Error::MissingTool { tool: tool.into(), package };
        Ok(Self { path: find_in_path(tool).ok_or_else(missing)? })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A probe spec for `function` of this file: `u:PATH:function`.
    pub fn spec(&self, function: &str) -> String {
        format!("u:{}:{function}", self.path.display())
    }

    /// A process of it that has said it is ready.
    pub fn spawn(&self) -> Result<Running> {
        self.spawn_with::<&str>(&[])
    }

    /// The same, with arguments.
    pub fn spawn_with<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Running> {
        let mut command = Command::new(&self.path);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running::start(command, self.path.display().to_string())?;
        running.expect("ready pid=")?;
        Ok(running)
    }
}

/// `target/testkit` of this workspace, or of CARGO_TARGET_DIR.
pub(crate) fn build_directory() -> PathBuf {
    cargo_target_directory().join("testkit")
}

pub(crate) fn cargo_target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(given) => PathBuf::from(given),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}

pub(crate) fn find_in_path(tool: &str) -> Option<PathBuf> {
    if tool.contains('/') {
        return Path::new(tool).exists().then(|| tool.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(tool)).find(|file| file.is_file())
}

/// All that decides about the result, as text.
fn recipe(
    compiler: &Compiler,
    arguments: &[std::ffi::OsString],
    sources: &[&str],
    from: &Path,
) -> Result<String> {
    let mut text = format!("{} {arguments:?}\n", compiler.tool);
    for source in sources {
        let path = from.join(source);
        text.push_str(&fs::read_to_string(&path).map_err(Error::io(path.display()))?);
    }
    Ok(text)
}

fn compile(compiler: &Compiler, arguments: &[std::ffi::OsString]) -> Result<()> {
    let tool = match find_in_path(compiler.tool) {
        Some(tool) => tool,
        None if compiler.tool == "go" && Path::new("/usr/local/go/bin/go").exists() => {
            "/usr/local/go/bin/go".into()
        }
        None => {
            return Err(Error::MissingTool { tool: compiler.tool.into(), package: compiler.package });
        }
    };
    let mut command = Command::new(tool);
    // A Go build without network, module file or version control.
    command.args(arguments).env("GO111MODULE", "off").env("GOFLAGS", "-buildvcs=false");
    let output = command.output().map_err(Error::io(compiler.tool))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Compiler { command: format!("{command:?}"), output: text })
}
