//! Attach points in files that gcc builds: places, names, arguments, listings, and the loads that are made of them.

use bpf::{Fault, Host, Stack, Wide, helper};
use lang::program::{Event, Script};
use lang::{Disk, Options, Request, Targets, check, lower};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = r#"
#define MARK(name, arguments, ...) __asm__ volatile("990: nop\n" \
    ".pushsection .note.stapsdt,\"\",\"note\"\n .balign 4\n .4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, 0, 0\n .asciz \"np\"\n" \
    ".asciz \"" name "\"\n .asciz \"" arguments "\"\n994: .balign 4\n .popsection" :: __VA_ARGS__)
struct pair { int a; char text[8]; };
int global = 0x1234;
__attribute__((noinline)) int first(int a, const char *b, double c, struct pair *d, struct pair e)
{ MARK("mark", "-4@%0 -8@%1 -1@$-3", "r"(a), "r"((long)a * 2)); return a; }
__attribute__((noinline)) long second(long a)
{ MARK("other", "-8@%0", "r"(a + 1)); return a + global; }
static inline __attribute__((always_inline)) int copied(int x) { __asm__ volatile("nop"); return x; }
int main(void) { struct pair p = { 1, "x" }; return first(1, "b", 2, &p, p) + second(3) + copied(2); }
"#;

struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn built(name: &str) -> Dir {
    let dir = Dir(std::env::temp_dir().join(format!("np-sites-{}-{name}", std::process::id())));
    std::fs::create_dir_all(&dir.0).unwrap();
    std::fs::write(dir.0.join("s.c"), SOURCE).unwrap();
    for program in ["one", "two"] {
        let gcc = Command::new("gcc").args(["-g", "-O1", "-o", program, "s.c"]).current_dir(&dir.0).status();
        assert!(gcc.unwrap().success());
    }
    dir
}

fn lowered(dir: &Path, text: &str) -> Result<Script, String> {
    let mut targets = Targets::new(Disk::default(), None).unwrap();
    let text = text.replace("DIR", &dir.display().to_string());
    let checked = check(&Request::of(text), &mut targets).map_err(|refused| refused.show())?;
    lower(&checked, Options::default()).map_err(|error| error.show(&checked.sources))
}

fn sites(script: &Script) -> Vec<(String, Vec<String>)> {
    let of = |probe: &lang::program::Probe| match &probe.event {
        Event::Target(target) => {
            target.sites.iter().map(|(_, cookie)| script.names[*cookie as usize].to_string()).collect()
        }
        _ => Vec::new(),
    };
    script.probes.iter().map(|probe| (probe.name.clone(), of(probe))).collect()
}

#[test]
fn a_glob_is_one_program_and_marks_with_other_places_are_others() {
    let dir = built("glob");
    let shown = dir.0.display().to_string();
    let script =
        lowered(&dir.0, "u:DIR/*:[fs]*d { @[probe] = count(); } ur:DIR/one:first { @r = retval; }").unwrap();
    let found = sites(&script);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].1, [format!("uprobe:{shown}/one:second"), format!("uprobe:{shown}/two:second")]);
    assert_eq!(found[1].1, [format!("uretprobe:{shown}/one:first")]);
    let script = lowered(&dir.0, "U:DIR/one:np:* { print(arg0); }").unwrap();
    assert_eq!(sites(&script).len(), 2, "one for each place of the argument");
    let script = lowered(&dir.0, "U:DIR/one:np:* { print(1); }").unwrap();
    assert_eq!(sites(&script).len(), 1);
}

#[test]
fn what_is_not_there_is_said_with_what_is_near() {
    let dir = built("missing");
    let why = |text: &str| lowered(&dir.0, text).unwrap_err();
    assert!(why("u:DIR/one:firts {}").contains("No matches for uprobe"));
    assert!(why("u:DIR/one:firts {}").contains("Did you mean first?"));
    assert!(why("u:DIR/one:copied {}").contains("copied is inlined at 1 places"));
    assert!(why("u:DIR/none:first {}").contains("does not exist"));
    assert!(why("u:DIR/one:0x1 {}").contains("Could not resolve address"));
    assert!(why("u:DIR/one@s.c:3 {}").contains("No statement begins at s.c:3"));
    assert!(why("u:DIR/one:first { print(args.z); }").contains("Can't find function parameter z"));
    assert!(why("U:DIR/one:mark { print(arg7); }").contains("has 3 arguments, and no arg7"));
    let text = "config = { missing_probes = \"ignore\" } u:DIR/one:firts,u:DIR/one:first {}";
    assert_eq!(sites(&lowered(&dir.0, text).unwrap()).len(), 1);
    let text = "config = { max_probes = 1 } u:DIR/*:[fs]*d {}";
    assert!(why(text).contains("exceeds the current limit of 1"));
}

#[test]
fn listings_name_what_can_be_written() {
    let dir = built("list");
    let shown = dir.0.display().to_string();
    let mut targets = Targets::new(Disk::default(), None).unwrap();
    let lines = targets.list(&format!("u:{shown}/one:first"), true).unwrap();
    let expected =
        ["    int a", "    const char* b", "    double c", "    struct pair* d", "    struct pair e"];
    assert_eq!(lines[0], format!("uprobe:{shown}/one:first"));
    assert_eq!(lines[1..], expected);
    let lines = targets.list(&format!("*:{shown}/one:*"), false).unwrap();
    for name in ["uprobe:DIR/one:main", "uretprobe:DIR/one:second", "usdt:DIR/one:np:other"] {
        assert!(lines.contains(&name.replace("DIR", &shown)), "{name} in {lines:?}");
    }
    let lines = targets.list(&format!("u:{shown}/one:first, ur:{shown}/one:first,s:cpu*"), false).unwrap();
    let events = ["software:cpu-clock:", "software:cpu-migrations:"].map(str::to_owned);
    assert_eq!(lines[..2], ["uprobe", "uretprobe"].map(|kind| format!("{kind}:{shown}/one:first")));
    assert_eq!(lines[2..], events);
    let mut found = |search: &str| targets.list(search, false);
    assert_eq!(found("h:*").unwrap().len(), 10);
    assert_eq!(found("*cpu-clo*").unwrap(), ["software:cpu-clock:"]);
    assert_eq!(found("soft*:cpu-cl*").unwrap(), ["software:cpu-clock:"]);
    assert_eq!(found("interval:s:5,begin").unwrap(), ["interval:s:5", "begin"]);
    assert!(found("*nothing of that name*").unwrap().is_empty());
    assert!(found("kprobe:vfs_*").unwrap_err().contains("probes of the kernel"));
    assert_eq!(found("foo:*").unwrap_err(), "Invalid probe type: foo");
}

/// A thread that is made up: registers, memory, vector registers; records are kept.
struct Thread {
    regs: [u64; 21],
    memory: Vec<u8>,
    vectors: [u64; 16],
    constants: Vec<u8>,
    records: Vec<Vec<u8>>,
}

const MEMORY: u64 = 0x7000;
const CONTEXT: u64 = 0x10_0000_0000;
const CONSTANTS: u64 = 0x20_0000_0000;
const SCRATCH: u64 = 0x30_0000_0000;

impl Host for Thread {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> Result<(), Fault> {
        let context: Vec<u8> = self.regs.iter().flat_map(|r| r.to_le_bytes()).collect();
        let (base, from) = match addr {
            CONSTANTS..SCRATCH => (CONSTANTS, &self.constants),
            _ => (CONTEXT, &context),
        };
        let at = (addr - base) as usize;
        to.copy_from_slice(&from[at..at + to.len()]);
        Ok(())
    }

    fn write(&mut self, addr: u64, _: &[u8]) -> Result<(), Fault> {
        Err(Fault::Access { addr, len: 0 })
    }

    fn call(&mut self, number: u64, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        match number as u32 {
            helper::PROBE_READ_USER => {
                let at = args[2].wrapping_sub(MEMORY) as usize;
                let bytes = self.memory.get(at..at + args[1] as usize).map(<[u8]>::to_vec);
                let fault = Fault::Access { addr: args[0], len: 0 };
                let to = stack.bytes(args[0], args[1] as usize).ok_or(fault)?;
                match bytes {
                    Some(bytes) => to.copy_from_slice(&bytes),
                    None => to.fill(0),
                }
                Ok(0)
            }
            helper::VECTOR => Ok(self.vectors[args[0] as usize]),
            helper::RINGBUF_OUTPUT => {
                self.records.push(stack.bytes(args[1], args[2] as usize).unwrap()[8..].to_vec());
                Ok(0)
            }
            _ => Err(Fault::NoHelper { number }),
        }
    }

    fn meaning(&mut self, wide: Wide) -> Result<u64, Fault> {
        match wide {
            Wide::MapValueIndex { offset, .. } => Ok(CONSTANTS + u64::from(offset)),
            _ => Ok(0),
        }
    }
}

fn run(script: &Script, change: impl FnOnce(&mut Thread)) -> Vec<Vec<u8>> {
    let constants = script.constants.clone();
    let mut thread =
        Thread { regs: [0; 21], memory: vec![0; 256], vectors: [0; 16], constants, records: Vec::new() };
    change(&mut thread);
    bpf::run(&script.probes[0].program, &mut thread, [CONTEXT, 0, 0, 0, 0], 10_000).unwrap();
    thread.records
}

#[test]
fn arguments_are_loaded_from_where_they_are() {
    let dir = built("loads");
    let script = lowered(
        &dir.0,
        "u:DIR/one:first { print(args.a); print(args.c); print(args.d.a); print(args.e); print(args.e.a); print(*uaddr(\"global\")); }",
    )
    .unwrap();
    let global = {
        let image = image::ElfImage::open(dir.0.join("one")).unwrap();
        let at = image.variables().into_iter().find(|v| v.name == "global").unwrap().addr.0;
        let first = image.functions().iter().find(|f| f.name() == Some("first")).unwrap().addr.0;
        at.wrapping_sub(first)
    };
    let records = run(&script, |thread| {
        // rdi, rdx, rcx and r8, xmm0, rip.
        (thread.regs[14], thread.regs[12], thread.regs[11]) = (-7i64 as u64, MEMORY + 8, 0x6261_0000_0005);
        (thread.regs[9], thread.regs[16]) = (0x63, (MEMORY + 64).wrapping_sub(global));
        thread.vectors[0] = 2.5f64.to_bits();
        thread.memory[8..12].copy_from_slice(&42i32.to_le_bytes());
        thread.memory[64..68].copy_from_slice(&0x1234i32.to_le_bytes());
    });
    assert_eq!(records[0], (-7i32).to_le_bytes());
    assert_eq!(records[1], 2.5f64.to_le_bytes());
    assert_eq!(records[2], 42i32.to_le_bytes());
    assert_eq!(records[3], [5, 0, 0, 0, b'a', b'b', 0, 0, b'c', 0, 0, 0]);
    assert_eq!(records[4], 5i32.to_le_bytes());
    assert_eq!(records[5], 0x1234i32.to_le_bytes());
}

#[test]
fn marks_give_words_with_their_signs() {
    let dir = built("marks");
    let script = lowered(&dir.0, "U:DIR/one:np:mark { print((arg0, arg2)); }").unwrap();
    let image = image::ElfImage::open(dir.0.join("one")).unwrap();
    let mark = image.marks().into_iter().find(|m| m.name == "mark").unwrap();
    let all = mark.all_arguments(&|_| None);
    let image::Loc::Register { number, .. } = all[0].loc else { panic!("{:?}", all[0]) };
    let places = [10usize, 12, 11, 5, 13, 14, 4, 19, 9, 8];
    let records = run(&script, |thread| thread.regs[places[usize::from(number)]] = 0xffff_ffff_0000_0009);
    assert_eq!(records[0][..8], 9u64.to_le_bytes());
    assert_eq!(records[0][8..], (-3i64).to_le_bytes());
}

#[test]
fn functions_of_a_stripped_file_are_known_by_its_separate_debug_information() {
    let dir = built("stripped");
    let objcopy = |arguments: &[&str]| {
        assert!(Command::new("objcopy").args(arguments).current_dir(&dir.0).status().unwrap().success());
    };
    std::fs::create_dir(dir.0.join("debug")).unwrap();
    objcopy(&["--only-keep-debug", "one", "debug/one.debug"]);
    objcopy(&["--strip-all", "--add-gnu-debuglink=debug/one.debug", "one", "bare"]);
    let mut targets = Targets::new(Disk::default(), None).unwrap();
    targets.debug_dirs = vec![dir.0.join("debug")];
    let path = dir.0.join("bare").display().to_string();
    let text = format!(
        "u:{path}:second {{ print(args.a); }} ur:{path}:sec* {{ print(retval); }} u:{path}:second+4 {{ }}"
    );
    let checked =
        check(&Request::of(text), &mut targets).unwrap_or_else(|refused| panic!("{}", refused.show()));
    let script = lower(&checked, Options::default()).unwrap();
    let found = sites(&script);
    assert_eq!(found[0].1, [format!("uprobe:{path}:second")]);
    assert_eq!(found[1].1, [format!("uretprobe:{path}:second")]);
    assert_eq!(found[2].1, [format!("uprobe:{path}:second+4")]);
    let bare = image::ElfImage::open(dir.0.join("one")).unwrap();
    let second = bare.functions().iter().find(|f| f.name() == Some("second")).unwrap().addr;
    assert_eq!(targets.places()[0].addr, second);
    let lines = targets.list(&format!("uprobe:{path}:first"), true).unwrap();
    assert_eq!(lines[..3], [format!("uprobe:{path}:first"), "    int a".into(), "    const char* b".into()]);
}

#[test]
fn numbers_with_fractions_are_cut_towards_zero_and_compared_with_their_signs() {
    let dir = built("fractions");
    let text =
        "u:DIR/one:first { print((int64)args.c); print((int8)args.c); print(args.c < *(double *)0x100008); }";
    let text = text.replace("0x100008", &format!("{:#x}", MEMORY + 8));
    let script = lowered(&dir.0, &text).unwrap();
    let cases = [
        (2.75, 2, 2, 3.0),
        (-2.75, -2, -2, -2.5),
        (0.0, 0, 0, 0.5),
        (-0.999, 0, 0, 1.0),
        (4503599627370497.0, 4503599627370497, 1, 4503599627370498.0),
        (-9007199254740993.0, -9007199254740992, 0, 1.0),
        (1e300, i64::MAX, -1, f64::INFINITY),
        (-1e300, -i64::MAX, 1, -1e299),
        (f64::NEG_INFINITY, -i64::MAX, 1, -1e308),
    ];
    for (value, whole, byte, more) in cases {
        for (than, is_less) in [(more, 1), (value, 0)] {
            let records = run(&script, |thread| {
                thread.vectors[0] = f64::to_bits(value);
                thread.memory[8..16].copy_from_slice(&f64::to_le_bytes(than));
            });
            assert_eq!(records[0], i64::to_le_bytes(whole), "{value}");
            assert_eq!(records[1][..1], i8::to_le_bytes(byte), "{value}");
            assert_eq!(records[2][0], is_less, "{value} {than}");
        }
    }
}

#[test]
fn keys_are_their_threads_own_where_hits_of_those_alone_set_and_remove_them() {
    let dir = built("own");
    let is_own = |text: &str| -> Vec<bool> {
        lowered(&dir.0, text).unwrap().maps.iter().map(|map| map.is_own).collect()
    };
    let timed = "u:DIR/one:first { @a[tid] = nsecs; } ur:DIR/one:first /@a[tid]/ { delete(@a[tid]); }";
    assert_eq!(is_own(timed), [true]);
    // Who looks, changes nothing; a key may be removed by its map and itself.
    let looks = "u:DIR/one:first { @a[tid] = arg0; delete(@a, tid); if (has_key(@a, 5)) { print(@a[6]); } } end { print(@a); }";
    assert_eq!(is_own(looks), [true]);
    for other in [
        "u:DIR/one:second { @a[arg0] = 1; }",
        "u:DIR/one:second { @a[tid]++; }",
        "u:DIR/one:second { @a[tid] += 1; }",
        "u:DIR/one:second { delete(@a[5]); }",
        "u:DIR/one:second { clear(@a); }",
        "u:DIR/one:second { zero(@a); }",
        "interval:s:1 { @a[tid] = 1; }",
        "end { delete(@a[tid]); }",
        "interval:s:1 { clear(@a); }",
        "config = { max_map_keys = 100; }",
        "let @a = hash(4096);",
    ] {
        let text = match other.starts_with(['c', 'l']) {
            true => format!("{other} {timed}"),
            false => format!("{timed} {other}"),
        };
        assert_eq!(is_own(&text), [false], "{other}");
    }
    assert_eq!(is_own("u:DIR/one:first { @a[tid, 1] = 1; @b[tid] = count(); @c = 1; }"), [false; 3]);
}
