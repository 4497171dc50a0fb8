//! Programs that the tests read, built once per run with the machine's own tools.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/programs");
const OUT: &str = env!("CARGO_TARGET_TMPDIR");

/// Runs a tool and returns what it printed; a tool that is missing or fails ends the test.
pub fn tool(name: &str, args: &[&str]) -> String {
    let output = Command::new(name).args(args).env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1").output();
    let output = output.unwrap_or_else(|e| panic!("{name} cannot be run ({e}); is its package installed?"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?} failed: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The program `name`, built by `tool` with `args` and `-o FILE` unless that is there already.
fn built(name: &str, tool_name: &str, args: &[&str]) -> PathBuf {
    static DONE: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    let mut done = DONE.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(path) = done.get(name) {
        return path.clone();
    }
    let path = Path::new(OUT).join(name);
    let mut all = args.to_vec();
    all.extend(["-o", path.to_str().unwrap()]);
    if tool_name == "go" {
        // `go build -o FILE ... SOURCE`: the output comes before the source.
        let source = all.remove(args.len() - 1);
        all.push(source);
    }
    tool(tool_name, &all);
    done.insert(name.to_owned(), path.clone());
    path
}

/// The path of a program's source.
pub fn source(name: &str) -> String {
    format!("{SOURCES}/{name}")
}

/// The sample as a position-independent program.
pub fn sample() -> PathBuf {
    built("sample", "gcc", &["-O2", "-pie", "-fPIE", &source("sample.c")])
}

/// A program with types, behind so many empty units of debug information.
pub fn typed(units: usize) -> PathBuf {
    let units = format!("-DUNITS={units}");
    let name = format!("typed{units}");
    built(&name, "gcc", &["-O1", "-g", &units, &source("units.S"), &source("typed.c")])
}

/// The sample at fixed addresses.
pub fn sample_fixed() -> PathBuf {
    built("sample-fixed", "gcc", &["-O2", "-no-pie", "-fno-pie", &source("sample.c")])
}

/// The sample, linked statically with glibc.
pub fn sample_static() -> PathBuf {
    built("sample-static", "gcc", &["-O2", "-static", &source("sample.c")])
}

/// The sample, linked statically with musl.
pub fn sample_musl() -> PathBuf {
    built("sample-musl", "musl-gcc", &["-O2", "-static", "-DWITHOUT_IFUNC", &source("sample.c")])
}

/// The sample with musl as a library.
pub fn sample_musl_dynamic() -> PathBuf {
    built("sample-musl-dynamic", "musl-gcc", &["-O2", "-DWITHOUT_IFUNC", &source("sample.c")])
}

/// The sample with relative relocations packed, so far as this machine's linker can.
pub fn sample_packed() -> PathBuf {
    built(
        "sample-packed",
        "gcc",
        &["-O2", "-pie", "-fPIE", "-Wl,-z,pack-relative-relocs", &source("sample.c")],
    )
}

/// The sample with relocations in the order of its sections, not of addresses.
pub fn sample_unsorted() -> PathBuf {
    let flags = ["-O2", "-pie", "-fPIE", "-Wl,-z,nocombreloc", "-Wl,-z,nopack-relative-relocs"];
    built("sample-unsorted", "gcc", &[&flags[..], &[&source("sample.c")]].concat())
}

/// A program that loads the C library twice.
pub fn twice() -> PathBuf {
    built("twice", "gcc", &["-O2", &source("twice.c")])
}

/// The C++ program.
pub fn thrower() -> PathBuf {
    built("thrower", "g++", &["-O1", "-std=c++17", &source("thrower.cc")])
}

/// The Rust program with names in the older or the newer (v0) scheme.
pub fn rust(scheme: &str) -> PathBuf {
    let args = ["-O", "-C", &format!("symbol-mangling-version={scheme}"), &source("names.rs")];
    let args: &[&str] = if scheme == "legacy" { &["-O", &source("names.rs")] } else { &args };
    built(&format!("names-{scheme}"), "rustc", args)
}

/// The Go program; `extra` are flags of `go build`.
pub fn go(name: &str, extra: &[&str]) -> PathBuf {
    go_of(name, "hello.go", extra)
}

/// Go and C in one program, linked by the C linker.
pub fn go_with_c(name: &str, extra: &[&str]) -> PathBuf {
    go_of(name, "withc.go", extra)
}

/// The Go program that asks its runtime where goroutines may be stopped.
pub fn go_preempt() -> PathBuf {
    go_of("preempt", "preempt.go", &["-ldflags=-checklinkname=0"])
}

fn go_of(name: &str, source_name: &str, extra: &[&str]) -> PathBuf {
    let source = source(source_name);
    let mut args = vec!["build"];
    args.extend(extra);
    args.push(&source);
    built(name, "go", &args)
}

/// A copy without symbols.
pub fn stripped(program: &Path) -> PathBuf {
    let name = format!("{}-stripped", program.file_name().unwrap().to_str().unwrap());
    built(&name, "strip", &["-s", program.to_str().unwrap()])
}

/// A fresh directory for one test.
pub fn directory(name: &str) -> PathBuf {
    let dir = Path::new(OUT).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A running program that has printed where its functions are and waits.
pub struct Running {
    child: Child,
    /// The addresses by name, as the program itself sees them.
    pub printed: HashMap<String, u64>,
}

impl Running {
    /// Starts `program` and waits for its `lines` lines.
    pub fn start(program: &Path, lines: usize) -> Running {
        Running::start_with(program, &[], lines)
    }

    /// The same, with arguments.
    pub fn start_with(program: &Path, args: &[&Path], lines: usize) -> Running {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        let mut printed = HashMap::new();
        let out = BufReader::new(child.stdout.take().unwrap());
        for line in out.lines().take(lines) {
            let line = line.unwrap();
            let (name, value) = line.split_once(' ').unwrap();
            let value = value.strip_prefix("0x").and_then(|v| u64::from_str_radix(v, 16).ok());
            printed.insert(name.to_owned(), value.unwrap_or(0));
        }
        Running { child, printed }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Eight bytes of its memory.
    pub fn word(&self, at: image::Addr) -> Option<u64> {
        use std::os::unix::fs::FileExt;
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid())).ok()?;
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at.0).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
