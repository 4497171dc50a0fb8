use super::*;
use crate::loc::Loc;
use crate::{ElfImage, ImageAddr};
use std::process::Command;

const SOURCE: &str = r#"
struct inner { int n; const char *text; };
struct node { struct node *next; struct inner inner; unsigned low : 3, high : 5; char name[12]; union { int i; float f; }; };
typedef struct { double x, y; } point;
struct mixed { double d; long n; };
struct large { long a, b, c; };
enum color { RED = 1, BLUE = -7 };
typedef unsigned long size;
__attribute__((noinline)) int takes(int a, const char *b, double c, struct node *d, point e, struct large f, size g,
    struct mixed m, int h, int i, int j) { __asm__ volatile(""); return a + h + i + j; }
__attribute__((noinline)) point gives(float x) { point p = { x, x }; return p; }
static inline __attribute__((always_inline)) int inlined(int x) { __asm__ volatile("nop"); return x + 1; }
int twice(int x) { return inlined(inlined(x)); }
enum color paint(enum color c) { return c; }
int main(void) { point p = { 1, 2 }; struct large l = { 0 }; struct mixed m = { 0 };
    return takes(1, "b", 2, 0, p, l, 3, m, 4, 5, 6) + twice(1) + paint(RED) + (int)gives(1).x; }
"#;

fn built(name: &str, flags: &[&str]) -> (ElfImage, DebugInfo) {
    let dir = std::env::temp_dir().join(format!("np-dwarf-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("source.c"), SOURCE).unwrap();
    let status =
        Command::new("gcc").args(flags).args(["-o", "program", "source.c"]).current_dir(&dir).status();
    assert!(status.unwrap().success());
    let image = ElfImage::open(dir.join("program")).unwrap();
    let info = image.debug_info().expect("debug information");
    std::fs::remove_dir_all(&dir).unwrap();
    (image, info)
}

fn start(image: &ElfImage, name: &str) -> ImageAddr {
    image.functions().iter().find(|f| f.name() == Some(name)).unwrap().addr
}

fn shown(parts: &[Part]) -> String {
    let one = |part: &Part| {
        let place = match &part.loc {
            Loc::Register { number, .. } => format!("r{number}"),
            Loc::Vector { number, .. } => format!("x{number}"),
            Loc::Memory(address) => format!("[{}+{}]", address.base.unwrap(), address.displacement),
            other => format!("{other:?}"),
        };
        format!("{}:{place}:{}", part.at, part.len)
    };
    parts.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn arguments_lie_where_the_calling_convention_puts_them() {
    for (name, flags) in [("o0", &["-g", "-O0"][..]), ("o2", &["-g", "-O2"]), ("v4", &["-gdwarf-4", "-O1"])] {
        let (image, info) = built(name, flags);
        let takes = info.function(&image, start(&image, "takes")).unwrap();
        let of = |name: &str| {
            let found = takes.parameters.iter().find(|p| p.name == name).unwrap();
            (info.type_text(found.ty), shown(&found.parts))
        };
        let all = ["a", "b", "c", "d", "e", "f", "g", "m", "h", "i", "j"].map(of);
        let expected = [
            ("int", "0:r5:4"),
            ("const char*", "0:r4:8"),
            ("double", "0:x0:8"),
            ("struct node*", "0:r1:8"),
            ("point", "0:x1:8 8:x2:8"),
            ("struct large", "0:[7+8]:24"),
            ("size", "0:r2:8"),
            ("struct mixed", "0:x3:8 8:r8:8"),
            ("int", "0:r9:4"),
            ("int", "0:[7+32]:4"),
            ("int", "0:[7+40]:4"),
        ];
        assert_eq!(all, expected.map(|(a, b)| (a.to_owned(), b.to_owned())), "{name}");
        let gives = info.function(&image, start(&image, "gives")).unwrap();
        assert_eq!(shown(&gives.value), "0:x0:8 8:x1:8", "{name}");
        assert_eq!(info.type_text(gives.returns), "point");
    }
}

#[test]
fn types_have_their_parts() {
    let (_, info) = built("types", &["-g"]);
    let Some(DebugType::Aggregate(node)) = info.type_named("struct node").and_then(|at| info.ty(at)) else {
        panic!("no struct node")
    };
    let names: Vec<_> = node.members.iter().map(|m| (m.name.as_deref(), m.offset, m.bits)).collect();
    let expected = [
        (Some("next"), 0, None),
        (Some("inner"), 8, None),
        (Some("low"), 24, Some((0, 3))),
        (Some("high"), 24, Some((3, 5))),
        (Some("name"), 25, None),
        (None, 40, None),
    ];
    assert_eq!(names, expected);
    assert_eq!(info.size(info.type_named("node")), Some(48));
    let color = info.type_named("enum color").and_then(|at| info.ty(at));
    let variants = vec![("RED".into(), 1), ("BLUE".into(), -7)];
    assert_eq!(color, Some(DebugType::Enum { name: "color".into(), size: 4, is_signed: true, variants }));
    assert_eq!(info.type_named("struct nobody"), None);
}

#[test]
fn lines_and_inlined_copies_are_found() {
    let (image, info) = built("lines", &["-g", "-O2"]);
    let line = SOURCE.lines().position(|l| l.starts_with("enum color paint")).unwrap() as u32 + 1;
    let found = info.line("source.c", line, None).unwrap();
    let paint = start(&image, "paint");
    assert!(found.contains(&paint), "{found:x?} {paint:?}");
    assert!(info.line("source.c", 100, None).is_err_and(|near| !near.is_empty()));
    assert_eq!(info.line("other.c", line, None), Err(Vec::new()));
    assert!(info.inlined("inlined").len() >= 2, "{:?}", info.inlined("inlined"));
}

#[test]
fn split_units_are_read_from_their_files() {
    let dir = std::env::temp_dir().join(format!("np-dwo-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("source.c"), SOURCE).unwrap();
    let gcc = Command::new("gcc")
        .args(["-g", "-gsplit-dwarf", "-o", "program", "source.c"])
        .current_dir(&dir)
        .status();
    assert!(gcc.unwrap().success());
    let image = ElfImage::open(dir.join("program")).unwrap();
    let info = image.debug_info().unwrap();
    let takes = info.function(&image, start(&image, "takes"));
    std::fs::remove_dir_all(&dir).unwrap();
    let takes = takes.expect("the function of the split unit");
    assert_eq!(info.type_text(takes.parameters[3].ty), "struct node*");
    assert_eq!(shown(&takes.parameters[4].parts), "0:x1:8 8:x2:8");
}

#[test]
fn broken_debug_information_is_no_harm() {
    let path = std::env::temp_dir().join(format!("np-broken-{}", std::process::id()));
    let (image, _) = built("broken", &["-g"]);
    drop(image);
    let data = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for step in [97usize, 61, 13] {
        let mut broken = data.clone();
        broken.iter_mut().skip(data.len() * 3 / 4).step_by(step).for_each(|b| *b ^= 0x5a);
        std::fs::write(&path, &broken).unwrap();
        let Ok(image) = ElfImage::open(&path) else { continue };
        let Some(info) = image.debug_info() else { continue };
        for function in image.functions().iter().take(50) {
            if let Some(found) = info.function(&image, function.addr) {
                found.parameters.iter().for_each(|p| drop(info.type_text(p.ty)));
            }
        }
        let _ = info.line("main.rs", 1, None);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn an_instruction_has_its_source_line_and_the_functions_that_were_inlined_there() {
    let (image, info) = built("source", &["-g", "-O2"]);
    let twice = start(&image, "twice");
    let places = info.places(&[twice, ImageAddr(twice.0 + 1), ImageAddr(8)]);
    let names = |places: &[SourcePlace]| places.iter().filter_map(|p| p.function.clone()).collect::<Vec<_>>();
    assert!(places.iter().take(2).any(|found| names(found) == ["inlined", "twice"]), "{places:?}");
    let inner = places.iter().flatten().find(|p| p.function.as_deref() == Some("inlined")).unwrap();
    assert!(inner.file.as_deref().is_some_and(|file| file.ends_with("source.c")), "{inner:?}");
    let line = SOURCE.lines().position(|line| line.contains("int inlined")).unwrap() as u32 + 1;
    assert_eq!(inner.line, Some(line));
    assert!(places[2].is_empty(), "no code, no place");
}

#[test]
fn compressed_sections_are_read() {
    for how in ["zlib", "zstd"] {
        let (image, info) = built(how, &["-g", &format!("-Wl,--compress-debug-sections={how}")]);
        let takes = info.function(&image, start(&image, "takes")).unwrap();
        assert_eq!(takes.parameters.len(), 11, "{how}");
    }
}
