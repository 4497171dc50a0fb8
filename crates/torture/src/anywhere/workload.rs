//! Real programs, what they are given, and what they answer.
//!
//! For:     `torture anywhere`, which runs each with and without probes.
//! State:   a directory with the inputs; one process at a time.
//! Context: control; the programs are the targets.
//! Keeps:   W1 a workload gives the same bytes and the same exit status in each run; two plain runs must agree,
//!          or it is not used.
//!          W2 a process that is dropped is killed and waited for.
//! Checked: W1 by `Bench::plain`, before any probe.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// One program and its work. `{dir}` in an argument stands for the directory of the inputs, `{self}` in a program for
/// this very program.
pub struct Workload {
    pub name: &'static str,
    /// The first that is there.
    programs: &'static [&'static str],
    args: &'static [&'static str],
    /// Parts of file names that must be mapped before probes are put in.
    needs: &'static [&'static str],
}

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

const PYTHON: &[&str] = &["/usr/bin/python3"];
const LUA: &[&str] = &["/usr/bin/lua5.4"];
const LIBC: &[&str] = &["libc.so"];

macro_rules! suite {
    ($name:literal, $needs:expr, $($module:literal),+) => {
        Workload { name: $name, programs: PYTHON, args: &["-I", "{dir}/suite.py", $($module),+], needs: $needs }
    };
}

/// Table.
pub const ALL: &[Workload] = &[
    Workload {
        name: "sqlite",
        programs: &["/usr/bin/sqlite3"],
        args: &[":memory:", ".read {dir}/tables.sql"],
        needs: &["libsqlite3"],
    },
    Workload {
        name: "sqlite-short",
        programs: &["/usr/bin/sqlite3"],
        args: &[":memory:", ".read {dir}/short.sql"],
        needs: &["libsqlite3"],
    },
    Workload {
        name: "sqlite-one",
        programs: &["/usr/bin/sqlite3"],
        args: &[":memory:", ".read {dir}/one.sql"],
        needs: &["libsqlite3"],
    },
    Workload {
        name: "bytes",
        programs: PYTHON,
        args: &["-I", "-S", "{dir}/bytes.py", "30"],
        needs: &["_lzma", "_bz2", "libcrypto"],
    },
    Workload {
        name: "bytes-one",
        programs: PYTHON,
        args: &["-I", "-S", "{dir}/bytes.py", "1"],
        needs: &["_lzma", "_bz2", "libcrypto"],
    },
    Workload { name: "lua", programs: LUA, args: &["{dir}/numbers.lua", "60"], needs: LIBC },
    Workload { name: "lua-one", programs: LUA, args: &["{dir}/numbers.lua", "1"], needs: LIBC },
    Workload { name: "perl", programs: &["/usr/bin/perl"], args: &["{dir}/words.pl", "80"], needs: LIBC },
    Workload {
        name: "xz",
        programs: &["/usr/bin/xz"],
        args: &["-c", "-4", "-T2", "--block-size=1MiB", "{dir}/data"],
        needs: &["liblzma"],
    },
    Workload {
        name: "unxz",
        programs: &["/usr/bin/xz"],
        args: &[
            "-d",
            "-c",
            "{dir}/data.xz",
            "{dir}/data.xz",
            "{dir}/data.xz",
            "{dir}/data.xz",
            "{dir}/data.xz",
        ],
        needs: &["liblzma"],
    },
    Workload {
        name: "cipher",
        programs: &["/usr/bin/openssl"],
        args: &[
            "enc",
            "-aes-256-cbc",
            "-pbkdf2",
            "-iter",
            "1500000",
            "-S",
            "0102030405060708",
            "-k",
            "x",
            "-in",
            "{dir}/data",
        ],
        needs: &["libcrypto"],
    },
    Workload {
        name: "digest",
        programs: &["/usr/bin/openssl"],
        args: &[
            "dgst",
            "-sha3-512",
            "{dir}/data",
            "{dir}/data",
            "{dir}/data",
            "{dir}/data",
            "{dir}/data",
            "{dir}/data",
        ],
        needs: &["libcrypto"],
    },
    Workload {
        name: "gofmt",
        programs: &["/usr/local/go/bin/gofmt", "/usr/bin/gofmt"],
        args: &[
            "-r",
            "a + b -> b + a",
            "-s",
            "/usr/local/go/src/net",
            "/usr/local/go/src/crypto",
            "/usr/local/go/src/encoding",
        ],
        needs: &[],
    },
    Workload {
        name: "explain",
        programs: &["{self}"],
        args: &["explain", "--all", "libc", "libstdc++", "libcrypto", "/usr/bin/python3"],
        needs: LIBC,
    },
    suite!(
        "python-text",
        LIBC,
        "test_json",
        "test_re",
        "test_string",
        "test_unicode",
        "test_bytes",
        "test_format",
        "test_fstring",
        "test_textwrap",
        "test_csv",
        "test_shlex",
        "test_difflib",
        "test_tokenize"
    ),
    suite!(
        "python-numbers",
        LIBC,
        "test_float",
        "test_int",
        "test_long",
        "test_complex",
        "test_math",
        "test_cmath",
        "test_fractions",
        "test_statistics",
        "test_random",
        "test_decimal"
    ),
    suite!(
        "python-objects",
        LIBC,
        "test_dict",
        "test_list",
        "test_set",
        "test_tuple",
        "test_deque",
        "test_heapq",
        "test_bisect",
        "test_array",
        "test_itertools",
        "test_functools",
        "test_collections",
        "test_descr",
        "test_weakref",
        "test_copy",
        "test_dataclasses",
        "test_enum",
        "test_memoryview",
        "test_ordered_dict"
    ),
    suite!(
        "python-flow",
        LIBC,
        "test_generators",
        "test_coroutines",
        "test_exceptions",
        "test_contextlib",
        "test_with",
        "test_grammar",
        "test_syntax",
        "test_patma",
        "test_compile",
        "test_ast",
        "test_scope",
        "test_raise",
        "test_yield_from",
        "test_sort",
        "test_iter"
    ),
    suite!(
        "python-modules",
        LIBC,
        "test_struct",
        "test_zlib",
        "test_bz2",
        "test_lzma",
        "test_binascii",
        "test_base64",
        "test_hashlib",
        "test_hmac",
        "test_pickle",
        "test_datetime",
        "test_ctypes",
        "test_xml_etree",
        "test_pyexpat",
        "test_mmap",
        "test_operator"
    ),
];

/// How a run ended.
#[derive(PartialEq)]
pub struct Answer {
    pub status: ExitStatus,
    pub output: Vec<u8>,
}

impl Answer {
    /// What is different, in one line.
    pub fn difference(&self, other: &Answer) -> Option<String> {
        if self.status != other.status {
            let signal = |s: ExitStatus| s.signal().map_or(String::new(), |n| format!(" (signal {n})"));
            return Some(format!("{}{} instead of {}", other.status, signal(other.status), self.status));
        }
        let (ours, theirs) = (self.output.split(|b| *b == b'\n'), other.output.split(|b| *b == b'\n'));
        let text = |line: &[u8]| String::from_utf8_lossy(&line[..line.len().min(120)]).into_owned();
        let mut pairs = ours.zip(theirs).enumerate();
        if let Some((n, (a, b))) = pairs.find(|(_, (a, b))| a != b) {
            return Some(format!("line {}: '{}' instead of '{}'", n + 1, text(b), text(a)));
        }
        let (a, b) = (self.output.len(), other.output.len());
        (a != b).then(|| format!("{b} bytes instead of {a}"))
    }
}

/// The directory with the inputs.
pub struct Bench {
    pub dir: PathBuf,
    is_kept: bool,
}

impl Bench {
    /// Writes the inputs.
    pub fn new() -> Result<Bench, String> {
        let dir = std::env::temp_dir().join(format!("nanoprobe-anywhere-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let bench = Bench { dir, is_kept: false };
        bench.put("suite.py", include_bytes!("suite.py"))?;
        bench.put("bytes.py", include_bytes!("bytes.py"))?;
        bench.put("numbers.lua", include_bytes!("numbers.lua"))?;
        bench.put("words.pl", include_bytes!("words.pl"))?;
        let sql = include_str!("tables.sql");
        let repeated = |times: u32| -> String {
            (1..=times).map(|n| sql.replace('@', &(n * 7 + 1).to_string())).collect()
        };
        bench.put("tables.sql", repeated(40).as_bytes())?;
        bench.put("short.sql", repeated(6).as_bytes())?;
        bench.put("one.sql", repeated(1).as_bytes())?;
        bench.put("data", &data(12 << 20))?;
        bench.pack()?;
        Ok(bench)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.dir.join(name);
        fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Makes data.xz of data, where there is an xz.
    fn pack(&self) -> Result<(), String> {
        let packed = Command::new("/usr/bin/xz").args(["-0", "-k", "-f"]).arg(self.dir.join("data")).status();
        match packed {
            Ok(status) if !status.success() => Err(format!("xz ended with {status}")),
            _ => Ok(()),
        }
    }

    /// Starts a workload.
    pub fn start(&self, workload: &Workload) -> Result<Running, String> {
        let program = workload.program().ok_or("it is not installed")?;
        let file = |name: &str| File::create(self.dir.join(name)).map_err(|e| e.to_string());
        let dir = self.dir.display().to_string();
        let mut command = Command::new(&program);
        command.args(workload.args.iter().map(|a| a.replace("{dir}", &dir)));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8").env("HOME", &dir);
        command.env("PYTHONHASHSEED", "0").current_dir(&dir);
        // For trying a suspicion, for example GODEBUG=asyncpreemptoff=1.
        std::env::var("GODEBUG").into_iter().for_each(|v| {
            command.env("GODEBUG", v);
        });
        command.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?);
        let child = command.spawn().map_err(|e| format!("{}: {e}", program.display()))?;
        Ok(Running { child, began: Instant::now(), dir: self.dir.clone(), status: None })
    }

    /// Its answer without probes, and how long it took: twice the same, else it is no test.
    pub fn plain(&self, workload: &Workload) -> Result<(Answer, Duration), String> {
        let (first, _) = self.start(workload)?.answer(Duration::from_secs(300))?;
        let (second, took) = self.start(workload)?.answer(Duration::from_secs(300))?;
        match first.difference(&second) {
            Some(difference) => Err(format!("two plain runs differ: {difference}")),
            None if !first.status.success() => Err(format!("it ends with {} without probes", first.status)),
            None => Ok((first, took)),
        }
    }

    /// The directory stays when this is dropped.
    pub fn keep(&mut self) -> &Path {
        self.is_kept = true;
        &self.dir
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Bytes that compress somewhat and are the same each time.
fn data(len: usize) -> Vec<u8> {
    let mut random = crate::rng::Rng::new(7, 7);
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let word = random.next();
        match word % 3 {
            0 => bytes.extend_from_slice(&word.to_le_bytes()),
            1 => bytes.extend_from_slice(b"words that come back, "),
            _ => bytes.extend_from_within(bytes.len() / 2..(bytes.len() / 2 + 9).min(bytes.len())),
        }
    }
    bytes.truncate(len);
    bytes
}

impl Workload {
    /// The program, if it is here.
    pub fn program(&self) -> Option<PathBuf> {
        let own = || std::env::current_exe().ok().filter(|p| p.ends_with("nanoprobe"));
        let path = |name: &&str| if *name == "{self}" { own() } else { Some(PathBuf::from(name)) };
        self.programs.iter().filter_map(path).find(|p| p.exists())
    }
}

/// A workload at work.
pub struct Running {
    child: Child,
    began: Instant,
    dir: PathBuf,
    status: Option<ExitStatus>,
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    /// Waits until what the workload needs is mapped; false if it ended before.
    pub fn is_ready(&mut self, workload: &Workload) -> bool {
        while !self.has_ended() {
            let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap_or_default();
            if maps.contains("r-xp") && workload.needs.iter().all(|part| maps.contains(part)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Holds it still, for planning takes a good part of its life where many share the machine.
    pub fn pause(&self) {
        let _ = sys::sched::kill(self.pid(), SIGSTOP);
    }

    pub fn go_on(&self) {
        let _ = sys::sched::kill(self.pid(), SIGCONT);
    }

    /// Waits for the end, at most until the process is `limit` old; how long it took in all.
    pub fn answer(mut self, limit: Duration) -> Result<(Answer, Duration), String> {
        while !self.has_ended() {
            if self.age() > limit {
                return Err(format!("it hangs: not ended after {} s", limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let took = self.age();
        let output = fs::read(self.dir.join("stdout")).map_err(|e| e.to_string())?;
        let status = self.status.ok_or("it has no status")?;
        Ok((Answer { status, output }, took))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
