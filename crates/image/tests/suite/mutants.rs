//! Files that were broken by chance or on purpose: an error or less information, soon, and never a panic.

use std::path::Path;

use image::{ElfImage, ImageAddr, Spec};

use crate::programs;

/// Processor time that one file may take; a good one of this size takes some milliseconds.
const SECONDS_MAX: f64 = 10.0;

/// Nanoseconds for which this thread has run: what others do on the machine does not count.
fn seconds_run() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).map_or(0.0, |n| n / 1e9)
}

/// Most MiB of memory that this process had so far; other tests of small files run beside.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).map_or(0.0, |kib| kib / 1024.0)
}

/// All questions that the command asks of a file.
fn ask(bytes: Vec<u8>, what: &str) -> bool {
    let before = seconds_run();
    let is_read = match ElfImage::from_bytes(bytes) {
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            false
        }
        Ok(image) => {
            questions(&image);
            true
        }
    };
    let seconds = seconds_run() - before;
    assert!(seconds < SECONDS_MAX, "{what}: {seconds} s");
    is_read
}

fn questions(image: &ElfImage) {
    for f in image.functions() {
        let _ = f.names.iter().map(|n| n.demangled().len()).sum::<usize>();
        let _ = image.bytes(f.addr, f.size_bytes.min(1 << 20) as usize);
    }
    for (marks, n) in image.marks().iter().zip(0..) {
        let _ = (marks.full_name(), marks.operand(n % 4));
    }
    let _ = (image.code_pointers().len(), image.rseq_ranges().len(), image.variables().len());
    let _ = (image.irelative_slots().len(), image.imports().len(), image.name_at(ImageAddr(0x1100)));
    let _ = (image.go_unsafe_points().len(), image.data_in_code().len(), image.signal_return_ranges().len());
    let _ = (image.unread_symbols(), image.import_slots("malloc").count(), image.plt_ranges().len());
    for (segment, bytes) in image.executable_segments() {
        let _ = (image.rel32_table_targets(segment.range.start).len(), bytes.len());
    }
    for code in image.code_ranges() {
        assert!(code.start < code.end);
        let _ = image.file_offset(code.start).map(|at| image.image_addr(at));
    }
    let spec = Spec::parse("u:/file:*a*").unwrap();
    let _ = image::select(&spec, image);
}

/// A cheap generator; its seed is in the message of a test that fails.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    /// Numbers that readers stumble over, and any others.
    fn number(&mut self, len: usize) -> u64 {
        let of = [0, 1, len as u64, len as u64 - 1, u64::MAX, 1 << 63, 0x7fff_ffff, 0xffff_ffff, 0xfff0];
        match self.below(12) {
            n @ 0..9 => of[n],
            9 => self.below(len) as u64,
            10 => self.below(256) as u64,
            _ => self.0,
        }
    }
}

/// Where parts of the file are that a change hits something in: start and bytes.
fn parts(file: &[u8]) -> Vec<(usize, usize)> {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes(file[at..at + 2].try_into().unwrap()));
    let (programs, sections) = ((word(32), half(56) * 56), (word(40), half(60) * 64));
    // Each header's field by field, then what each section holds.
    let mut parts = vec![(0, 64), programs, sections, programs, sections];
    for at in (sections.0..sections.0 + sections.1).step_by(64) {
        let (start, len) = (word(at + 24), word(at + 32));
        let is_inside = start + len <= file.len() && len > 0;
        parts.extend(is_inside.then_some((start, len)));
    }
    parts
}

fn mutant(good: &[u8], parts: &[(usize, usize)], chance: &mut Chance) -> Vec<u8> {
    let mut bad = good.to_vec();
    for _ in 0..1 + chance.below(8) {
        let (start, len) = parts[chance.below(parts.len())];
        let at = start + chance.below(len);
        match chance.below(5) {
            0 => bad[at] ^= 1 << chance.below(8),
            1 => bad[at] = chance.below(256) as u8,
            2 => {
                // One field of 2, 4 or 8 bytes.
                let bytes = [2, 4, 8][chance.below(3)];
                let at = at / bytes * bytes;
                let value = chance.number(good.len()).to_le_bytes();
                if let Some(field) = bad.get_mut(at..at + bytes) {
                    field.copy_from_slice(&value[..bytes]);
                }
            }
            3 => {
                let from = chance.below(good.len());
                let bytes = chance.below(64).min(good.len() - at.max(from));
                bad[at..at + bytes].copy_from_slice(&good[from..from + bytes]);
            }
            _ => bad[at..].iter_mut().take(chance.below(64)).for_each(|b| *b = chance.0 as u8),
        }
    }
    if chance.below(16) == 0 {
        bad.truncate(chance.below(good.len()));
    }
    bad
}

#[test]
fn mutants_of_real_files_are_read_or_refused_soon() {
    let rounds = if std::env::var_os("NANOPROBE_NIGHTLY").is_some() { 50_000 } else { 1500 };
    let mut read = 0;
    for (path, seed) in
        [(programs::thrower(), 0x2545_f491_4f6c_dd1d), (programs::sample(), 0x9e37_79b9_7f4a_7c15)]
    {
        let good = std::fs::read(&path).unwrap();
        assert!(ask(good.clone(), "the good file"));
        let (parts, mut chance) = (parts(&good), Chance(seed));
        for round in 0..rounds {
            let bad = mutant(&good, &parts, &mut chance);
            read += usize::from(ask(bad, &format!("{}, round {round}", path.display())));
        }
    }
    // Most changes leave a file that can be read: if none could, the test would test nothing.
    assert!(read > rounds / 4, "{read}");
}

/// A unit of twelve bytes makes its reader begin anew: without a bound on their number, the clock alone would end it.
#[test]
fn units_of_debug_information_are_bounded_by_count() {
    for (units, is_found) in [(1000, true), (1 << 17, false)] {
        let image = ElfImage::open(programs::typed(units)).unwrap();
        let typed = image.functions().iter().find(|f| f.name() == Some("typed")).unwrap().addr;
        assert_eq!(image.signatures(&[typed]).contains_key(&typed), is_found, "{units} units");
    }
}

/// An ELF file of headers alone; the tests add what they want.
struct Made {
    bytes: Vec<u8>,
    programs: Vec<[u64; 7]>,
    sections: Vec<[u64; 10]>,
}

const LOAD: u64 = 1;
const DYNAMIC: u64 = 2;
const READ_EXECUTE: u64 = 5;
const ALLOC: u64 = 2;
const ALLOC_EXECUTE: u64 = 6;

impl Made {
    /// With a segment of code that is all of the file's `len` bytes.
    fn new(len: usize) -> Made {
        let mut bytes = vec![0; len];
        bytes[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        let load = [LOAD | READ_EXECUTE << 32, 0, 0, 0, len as u64, len as u64, 0x1000];
        Made { bytes, programs: vec![load], sections: vec![[0; 10]] }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Type, flags, offset (and address), bytes, link, bytes an entry.
    fn section(&mut self, kind: u64, flags: u64, start: usize, len: usize, link: u64, entry: u64) {
        let start = start as u64;
        self.sections.push([kind << 32, flags, start, start, len as u64, link, 8, entry, 0, 0]);
    }

    fn file(mut self) -> Vec<u8> {
        let start = self.bytes.len();
        // The names of sections: one empty text.
        self.section(3, 0, start - 1, 1, 0, 0);
        let programs: Vec<u64> = self.programs.concat();
        for p in &self.programs {
            self.bytes.extend(p.iter().take(7).flat_map(|w| w.to_le_bytes()));
        }
        let sections = start + programs.len() * 8;
        for s in &self.sections {
            // The words name and type, flags, address, offset, size, link and info, alignment, entry size.
            let words = [s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]];
            self.bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        }
        let (p, s) = (self.programs.len() as u16, self.sections.len() as u16);
        self.put(16, &[3, 0, 62, 0, 1, 0, 0, 0]);
        self.put(32, &(start as u64).to_le_bytes());
        self.put(40, &(sections as u64).to_le_bytes());
        self.put(52, &[64, 0, 56, 0]);
        self.put(56, &p.to_le_bytes());
        self.put(58, &[64, 0]);
        self.put(60, &s.to_le_bytes());
        self.put(62, &(s - 1).to_le_bytes());
        self.bytes
    }
}

const MIB: usize = 1 << 20;

#[test]
fn sections_and_segments_that_lie_over_one_another_are_refused_by_name() {
    let refused = |made: Made| ElfImage::from_bytes(made.file()).map(drop).unwrap_err().to_string();
    let mut many = Made::new(4 * MIB);
    (0..60_000).for_each(|_| many.section(1, ALLOC_EXECUTE, 0, 4 * MIB, 0, 0));
    assert!(refused(many).contains("sections lie over one another"));
    let mut few = Made::new(4 * MIB);
    (0..3).for_each(|_| few.programs.push(few.programs[0]));
    assert!(refused(few).contains("segments lie over one another"));
    let mut small = Made::new(4 * MIB);
    let tiny = [LOAD, 0, 0, 0, 64, 64, 0x1000];
    small.programs.extend([tiny; 200]);
    assert!(refused(small).contains("more than 128 loaded segments"));
}

/// Half of the file is symbols, half one name without an end, which all of them have.
#[test]
fn symbols_that_share_one_long_name_are_read_soon() {
    for kind in [2, 11] {
        let mut made = Made::new(16 * MIB);
        let (symbols, names) = (4096, 8 * MIB);
        for at in (symbols + 24..names - 24).step_by(24) {
            // Name, function, section 1, address.
            made.put(at, &((at % 4096) as u32).to_le_bytes());
            made.put(at + 4, &[2, 0, 1, 0]);
            made.put(at + 8, &(at as u64).to_le_bytes());
        }
        made.bytes[names..16 * MIB - 1].fill(b'a');
        made.section(1, ALLOC_EXECUTE, 64, 16 * MIB - 64, 0, 0);
        made.section(kind, ALLOC, symbols, (names - symbols) / 24 * 24, 3, 24);
        made.section(3, ALLOC, names, 8 * MIB, 0, 0);
        assert!(ask(made.file(), "one name"));
    }
}

/// The dynamic section names eight megabytes as each of half a million libraries.
#[test]
fn libraries_that_share_one_long_name_are_read_soon() {
    let mut made = Made::new(16 * MIB);
    made.programs.push([DYNAMIC | READ_EXECUTE << 32, 4096, 4096, 4096, 8 * MIB as u64, 8 * MIB as u64, 8]);
    made.put(4096, &[5_u64.to_le_bytes(), (9 * MIB as u64).to_le_bytes()].concat());
    for at in (4112..8 * MIB).step_by(16) {
        made.put(at, &[1_u64.to_le_bytes(), [0; 8]].concat());
    }
    made.bytes[9 * MIB..16 * MIB - 1].fill(b'b');
    assert!(ask(made.file(), "one library"));
}

/// Each bit of a table of relative relocations stands for eight bytes.
#[test]
fn relocations_by_bits_are_no_more_than_the_file_has_room_for() {
    let mut made = Made::new(8 * MIB);
    made.bytes[4096..8 * MIB].fill(0xff);
    made.section(1, ALLOC_EXECUTE, 64, 4032, 0, 0);
    made.section(19, ALLOC, 4096, 8 * MIB - 4096, 0, 8);
    let image = ElfImage::from_bytes(made.file()).unwrap();
    // All of them lead into the code, to one place or few; what counts is what was kept on the way.
    let before = resident();
    let _ = image.code_pointers();
    assert!(resident() - before < 256.0, "MiB: {}", resident() - before);
}

/// Names whose parts refer to earlier parts double with each letter.
#[test]
fn a_name_that_stands_for_gigabytes_stays_as_it_is() {
    // f(a, b<a, a>, b<b<a, a>, b<a, a>>, ...): S0_ is b, S1_ the second, S2_ the third.
    let digit = |n: u32| char::from_digit(n, 36).unwrap().to_ascii_uppercase();
    let mut cpp = "_Z1f1a1bIS_S_E".to_owned();
    for last in (1..30).map(digit) {
        cpp.push_str(&format!("S0_IS{last}_S{last}_E"));
    }
    let before = seconds_run();
    assert_eq!(image::demangle(&cpp), cpp);
    assert!(seconds_run() - before < SECONDS_MAX);
}

#[test]
fn what_is_no_file_of_a_program_is_refused_by_name() {
    let dir = programs::directory("no-program");
    let why = |path: &Path| ElfImage::open(path).map(drop).unwrap_err().to_string();
    assert!(why(&dir).contains("it is a directory"));
    assert!(why(Path::new("/dev/zero")).contains("it is a device or a socket"));
    let fifo = dir.join("fifo");
    let _ = std::fs::remove_file(&fifo);
    programs::tool("mkfifo", &[fifo.to_str().unwrap()]);
    assert!(why(&fifo).contains("it is a FIFO"));
    let sparse = dir.join("sparse");
    std::fs::File::create(&sparse).unwrap().set_len(100 << 30).unwrap();
    assert!(why(&sparse).contains("it is longer than 4 GiB"));
    std::fs::remove_file(&sparse).unwrap();
}
