//! Functions that a program has made at run time, as it has written them down.
//!
//! For:     names: node with `--perf-basic-prof` or `--perf-prof`, java with an agent or `-XX:+DumpPerfMapAtExit`.
//! State:   the files, open, and how far each was read; what they said.
//! Context: control, beside a program that goes on writing.
//! Keeps:   M1 what was written can be read when the process is gone: its root directory and its files are held open.
//!          M2 of two that were at one place the last one is told; what is broken or half written is left out.
//! Checked: tests below; testkit `stacks`.
//! Source:  Linux, tools/perf/Documentation: jit-interface.txt, jitdump-specification.txt.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// No more of a file is read.
const FILE_MAX: u64 = 256 << 20;
/// Longer names are cut.
const NAME_MAX: usize = 400;
/// `JiTD`, as a number of the writer's byte order.
const MAGIC: u32 = 0x4A69_5444;
/// Bytes before a record's own.
const PREFIX: usize = 16;

/// Source lines by address.
type Lines = BTreeMap<u64, (String, u32)>;

/// One of these functions.
#[derive(Debug, Default)]
pub struct Made {
    /// What it is called.
    pub name: String,
    len: u64,
    lines: Lines,
}

/// All that a process has made, so far as it says.
#[derive(Debug, Default)]
pub struct MadeFunctions {
    by_start: BTreeMap<u64, Made>,
    /// The process's root directory.
    root: Option<File>,
    map: Text,
    dump: Dump,
    /// Its number where it lives.
    inner: String,
}

/// `/tmp/perf-PID.map`: a line a function.
#[derive(Debug, Default)]
struct Text {
    file: Option<(u64, File)>,
    read: u64,
    rest: Vec<u8>,
}

/// `jit-PID.dump`: a record a function, with its code.
#[derive(Debug, Default)]
struct Dump {
    file: Option<File>,
    read: u64,
    rest: Vec<u8>,
    has_head: bool,
    is_broken: bool,
    /// Lines of the function that comes next.
    lines: BTreeMap<u64, Lines>,
}

impl MadeFunctions {
    /// Of a process that is there.
    pub fn hold(pid: i32) -> MadeFunctions {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        // Its own number for itself.
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:")?.split_whitespace().last());
        let inner = inner.map_or_else(|| pid.to_string(), str::to_owned);
        let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(format!("/proc/{pid}/root"));
        let mut made = MadeFunctions { root: root.ok(), inner, ..MadeFunctions::default() };
        made.look(pid);
        made
    }

    /// Reads what was written since.
    pub fn look(&mut self, pid: i32) {
        if let Some(root) = &self.root {
            let path = format!("/proc/self/fd/{}/tmp/perf-{}.map", root.as_raw_fd(), self.inner);
            self.map.open(Path::new(&path));
        }
        self.map.read(&mut self.by_start);
        if self.dump.file.is_none() {
            self.dump.file = self.find_dump(pid);
        }
        self.dump.read(&mut self.by_start);
    }

    /// A program maps its own dump, so that others find it.
    fn find_dump(&self, pid: i32) -> Option<File> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let name = format!("jit-{}.dump", self.inner);
        let path = maps.lines().find_map(|line| {
            let path = &line[line.find('/')?..];
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            Path::new(path).file_name().is_some_and(|file| *file == *name).then(|| PathBuf::from(path))
        })?;
        let root = self.root.as_ref()?.as_raw_fd();
        let inside = format!("/proc/self/fd/{root}/{}", path.display());
        open(Path::new(&inside)).map(|(_, file)| file)
    }

    /// The function that has this address, and where it begins.
    pub fn at(&self, addr: u64) -> Option<(u64, &Made)> {
        let (start, made) = self.by_start.range(..=addr).next_back()?;
        (addr - start < made.len).then_some((*start, made))
    }
}

impl Made {
    /// `file:line` of an address, if it was told.
    pub fn source(&self, addr: u64) -> Option<String> {
        let (_, (file, line)) = self.lines.range(..=addr).next_back()?;
        Some(format!("{file}:{line}"))
    }
}

/// A file that is one, and its number.
fn open(path: &Path) -> Option<(u64, File)> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok().filter(|found| found.is_file())?;
    Some((found.ino(), file))
}

/// What has come behind `read`.
fn news(file: &mut File, read: &mut u64, rest: &mut Vec<u8>) {
    let room = FILE_MAX.saturating_sub(*read);
    if file.seek(SeekFrom::Start(*read)).is_ok()
        && let Ok(len) = file.take(room).read_to_end(rest)
    {
        *read += len as u64;
    }
}

impl Text {
    /// Another file of the name is another map: what the last one said stays said.
    fn open(&mut self, path: &Path) {
        let number = std::fs::symlink_metadata(path).map(|found| found.ino()).ok();
        if number.is_some() && number != self.file.as_ref().map(|(number, _)| *number) {
            *self = Text { file: open(path), ..Text::default() };
        }
    }

    fn read(&mut self, to: &mut BTreeMap<u64, Made>) {
        let Some((_, file)) = &mut self.file else { return };
        if file.metadata().is_ok_and(|found| found.len() < self.read) {
            // It was begun again.
            self.read = 0;
            self.rest.clear();
        }
        news(file, &mut self.read, &mut self.rest);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            let mut words = line.splitn(3, ' ');
            let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
            let (Some(start), Some(len)) = (number(), number()) else { continue };
            if let Some(name) = words.next() {
                to.insert(start, Made { name: cut(name), len, lines: Lines::new() });
            }
        }
    }
}

impl Dump {
    fn read(&mut self, to: &mut BTreeMap<u64, Made>) {
        let Some(file) = self.file.as_mut().filter(|_| !self.is_broken) else { return };
        news(file, &mut self.read, &mut self.rest);
        let bytes = std::mem::take(&mut self.rest);
        let taken = self.records(&bytes, to);
        self.rest = bytes.get(taken..).unwrap_or_default().to_vec();
    }

    /// Takes what is whole; how many bytes that were.
    fn records(&mut self, bytes: &[u8], to: &mut BTreeMap<u64, Made>) -> usize {
        let mut at = 0;
        if !self.has_head {
            let Some(len) = half(bytes, 8).filter(|_| bytes.len() >= 40) else { return 0 };
            let is_known = half(bytes, 0) == Some(MAGIC) && half(bytes, 4) == Some(1) && len >= 40;
            self.is_broken = !is_known;
            if self.is_broken || bytes.len() < len as usize {
                return 0;
            }
            (self.has_head, at) = (true, len as usize);
        }
        while let Some(len) = bytes.get(at..).and_then(|rest| half(rest, 4)) {
            let len = len as usize;
            if len < PREFIX {
                // Whatever follows cannot be found.
                self.is_broken = true;
                break;
            }
            let Some(record) = bytes.get(at..at + len) else { break };
            self.record(half(record, 0).unwrap_or(u32::MAX), &record[PREFIX..], to);
            at += len;
        }
        at
    }

    fn record(&mut self, kind: u32, body: &[u8], to: &mut BTreeMap<u64, Made>) {
        match kind {
            0 => {
                let (Some(start), Some(len)) = (word(body, 16), word(body, 24)) else { return };
                let lines = self.lines.remove(&start).unwrap_or_default();
                let Some((name, _)) = text(body, 40) else { return };
                to.insert(start, Made { name: cut(&name), len, lines });
            }
            1 => {
                let (Some(old), Some(new)) = (word(body, 16), word(body, 24)) else { return };
                if let Some(mut made) = to.remove(&old) {
                    let moved = std::mem::take(&mut made.lines).into_iter();
                    made.lines =
                        moved.map(|(at, line)| (at.wrapping_sub(old).wrapping_add(new), line)).collect();
                    to.insert(new, made);
                }
            }
            2 => {
                let (Some(start), Some(entries)) = (word(body, 0), word(body, 8)) else { return };
                let (mut lines, mut at, mut last) = (Lines::new(), 16, String::new());
                for _ in 0..entries {
                    let (Some(addr), Some(line)) =
                        (word(body, at), body.get(at + 8..).and_then(|b| half(b, 0)))
                    else {
                        break;
                    };
                    let Some((name, end)) = text(body, at + 16) else { break };
                    // The same as before it.
                    if name.as_bytes() != [0xff] && name != "\u{fffd}" {
                        last = name;
                    }
                    lines.insert(addr, (last.clone(), line));
                    at = end;
                }
                self.lines.insert(start, lines);
            }
            _ => {}
        }
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Text up to a zero, and where what follows begins.
fn text(bytes: &[u8], at: usize) -> Option<(String, usize)> {
    let rest = bytes.get(at..)?;
    let len = rest.iter().position(|byte| *byte == 0)?;
    Some((String::from_utf8_lossy(&rest[..len]).into_owned(), at + len + 1))
}

pub fn cut(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (PREFIX + body.len()) as u32;
        [&kind.to_ne_bytes()[..], &len.to_ne_bytes(), &[0; 8], body].concat()
    }

    fn words(all: &[u64]) -> Vec<u8> {
        all.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn head() -> Vec<u8> {
        [&MAGIC.to_ne_bytes()[..], &1u32.to_ne_bytes(), &40u32.to_ne_bytes(), &[0; 28]].concat()
    }

    fn load(start: u64, len: u64, name: &str) -> Vec<u8> {
        // pid and tid, where it was, where it is, how long, its number, its name, its code.
        let code = vec![0x90; len as usize];
        record(0, &[words(&[7, start, start, len, 1]), name.as_bytes().to_vec(), vec![0], code].concat())
    }

    #[test]
    fn functions_of_a_dump_have_their_names_lines_and_places() {
        let line = |addr: u64, line: u32, file: &[u8]| {
            [&words(&[addr])[..], &line.to_ne_bytes(), &[0; 4], file, &[0]].concat()
        };
        let told = [words(&[0x1000, 2]), line(0x1000, 3, b"/a.js"), line(0x1008, 9, &[0xff])].concat();
        let all = [
            head(),
            record(2, &told),
            load(0x1000, 0x10, "first"),
            load(0x2000, 0x10, "second"),
            record(9, &[1, 2, 3]),
            record(1, &words(&[7, 0, 0x2000, 0x3000, 0x10, 2])),
            load(0x1000, 0x8, "third"),
        ]
        .concat();
        // However it comes: whole, or byte after byte, as it is written.
        for step in [all.len(), 1, 7] {
            let (mut dump, mut made, mut rest) = (Dump::default(), BTreeMap::new(), Vec::new());
            let before_third = all.len() - load(0, 0x8, "third").len();
            for (i, part) in all.chunks(step).enumerate() {
                rest.extend_from_slice(part);
                let taken = dump.records(&rest, &mut made);
                rest.drain(..taken);
                if step == 1 && i + 1 == before_third {
                    let first: &Made = &made[&0x1000];
                    assert_eq!(first.name, "first");
                    assert_eq!(first.source(0x1004).as_deref(), Some("/a.js:3"));
                    assert_eq!(first.source(0x100c).as_deref(), Some("/a.js:9"));
                }
            }
            assert!(!dump.is_broken && rest.is_empty());
            let seen: Vec<(u64, &str)> = made.iter().map(|(at, made)| (*at, made.name.as_str())).collect();
            assert_eq!(seen, [(0x1000, "third"), (0x3000, "second")]);
        }
    }

    #[test]
    fn what_is_no_dump_is_left_alone() {
        let mut wrong = head();
        wrong[0] ^= 1;
        let short = [head(), record(0, &[0; 8])[..PREFIX].to_vec()].concat();
        let none = [head(), [0; 64].to_vec()].concat();
        for (bytes, is_broken) in [(wrong, true), (short, false), (none, true), (vec![0; 20], false)] {
            let (mut dump, mut made) = (Dump::default(), BTreeMap::new());
            dump.records(&bytes, &mut made);
            assert_eq!((dump.is_broken, made.len()), (is_broken, 0));
        }
    }

    #[test]
    fn a_map_is_read_as_it_grows_and_after_its_name_is_gone() {
        let path = std::env::temp_dir().join(format!("np-made-{}", std::process::id()));
        std::fs::write(&path, "1000 20 one\n2000 10 tw").unwrap();
        let (mut text, mut made) = (Text::default(), BTreeMap::new());
        text.open(&path);
        text.read(&mut made);
        assert_eq!(made.len(), 1);
        std::fs::write(&path, "1000 20 one\n2000 10 two\nnonsense\n3000 8 three\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        text.open(&path);
        text.read(&mut made);
        let seen: Vec<&str> = made.values().map(|made: &Made| made.name.as_str()).collect();
        assert_eq!(seen, ["one", "two", "three"]);
    }
}
