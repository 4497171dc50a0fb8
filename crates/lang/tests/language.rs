//! Probes, macros, C declarations, settings, parameters, imports.

use lang::ast::{ExprKind, Location, Spec, StmtKind};
use lang::types::{Int, Type};
use lang::{Checked, Nowhere, Request, World, check};
use std::path::{Path, PathBuf};

fn checked(text: &str) -> Checked {
    check(&Request::of(text), &mut Nowhere).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

fn refused(text: &str) -> String {
    check(&Request::of(text), &mut Nowhere).expect_err(text).show()
}

fn spec(point: &str) -> Spec {
    lang::ast::AttachPoint::parse(point).unwrap_or_else(|e| panic!("{point}: {e}")).spec
}

#[test]
fn each_form_of_probe_is_read() {
    let at = |name: &str, offset, cpp| Location::Function { name: name.into(), offset, cpp };
    let uprobe = |path: &str, at| Spec::Uprobe { path: path.into(), at };
    assert_eq!(spec("u:/bin/bash:readline"), uprobe("/bin/bash", at("readline", 0, false)));
    assert_eq!(spec("uprobe:libc:mal*+0x10"), uprobe("libc", at("mal*", 16, false)));
    assert_eq!(spec("uprobe:./a:cpp:\"ns::f(int, T+1)\""), uprobe("./a", at("ns::f(int, T+1)", 0, true)));
    assert_eq!(spec("u:/bin/bash:10"), uprobe("/bin/bash", Location::Address(10)));
    let line = Location::Line { file: "a.c".into(), line: 22, column: Some(3) };
    assert_eq!(spec("u:./x@a.c:22:3"), uprobe("./x", line));
    let usdt = |path: &str, namespace: Option<&str>, name: &str| Spec::Usdt {
        path: path.into(),
        namespace: namespace.map(str::to_string),
        name: name.into(),
    };
    assert_eq!(spec("usdt:./a:ns:\"\\\"quoted\\\"\""), usdt("./a", Some("ns"), "\"quoted\""));
    assert_eq!(spec("usdt:::*probe2"), usdt("", None, "*probe2"));
    assert_eq!(spec("U:./a:mark"), usdt("./a", None, "mark"));
    assert_eq!(spec("interval:1s"), Spec::Period(1_000_000_000));
    assert_eq!(spec("i:hz:100"), Spec::Period(10_000_000));
    assert_eq!(spec("BEGIN"), Spec::Begin);
    assert_eq!(spec("k:vfs_read"), Spec::Kernel(vec!["vfs_read".into()]));
    for (bad, why) in [
        ("interval:s:0", "cannot be 0"),
        ("interval:y:1", "not an accepted unit"),
        ("uprobe:/bin/x", "requires 2 or 3 arguments"),
        ("uretprobe:/bin/x:f+4", "Offset not allowed"),
        ("watchpoint:0x10:3:w", "one of (1, 2, 4, 8)"),
        ("watchpoint:0x10:4:r", "read-only"),
        ("begin:x", "requires 0 arguments"),
        ("zprobe:x", "Invalid probe type"),
    ] {
        let error = lang::ast::AttachPoint::parse(bad).expect_err(bad);
        assert!(error.contains(why), "{bad}: {error}");
    }
}

#[test]
fn a_slash_begins_a_predicate_where_no_path_can_stand() {
    let program = checked("u:/bin/a/b:f/pid == 1/{ } k:f /pid/ { } u:\"/a b/c\":g { }");
    assert!(program.probes[0].predicate.is_some());
    assert_eq!(program.probes[0].points[0].text, "uprobe:/bin/a/b:f");
    assert!(program.probes[1].predicate.is_some());
    assert!(matches!(&program.probes[2].points[0].spec, Spec::Uprobe { path, .. } if path == "/a b/c"));
    assert!(checked("begin /4 / 2 > 1/ { }").probes[0].predicate.is_some());
}

fn printed(program: &Checked) -> i128 {
    let value = program.probes[0].body.value.as_deref();
    let call = value.or_else(|| {
        program.probes[0].body.stmts.iter().rev().find_map(|s| match &s.kind {
            StmtKind::Expr(e) => Some(e),
            _ => None,
        })
    });
    match call.map(|c| &c.kind) {
        Some(ExprKind::Builtin(_, args)) => match args[0].kind {
            ExprKind::Int(n) => n,
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn constants_are_folded_by_precedence() {
    for (text, value) in [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("1 << 2 + 1", 8),
        ("7 & 3 == 3", 1),
        ("10 - 4 - 3", 3),
        ("-5 / 2", -2),
        ("~0 & 0xff", 255),
        ("1 ? 2 : 3", 2),
        ("0 ?: 20", 20),
        ("5ms", 5_000_000),
        ("sizeof(struct S)", 24),
        ("offsetof(struct S, in.b)", 4),
        ("sizeof(typeof((uint16)1))", 2),
        ("TWO + 1", 3),
        ("LIMIT * 2", 20),
        ("add(add(1))", 3),
        ("one", 1),
    ] {
        let program = checked(&format!(
            "#define LIMIT 10\nstruct S {{ char c; struct {{ short a; short b; }} in; int *p; int f : 3; }};\n\
             enum {{ ONE = 1, TWO }};\nmacro add(x) {{ x + 1 }} macro one() {{ 1 }}\nbegin {{ print({text}) }}"
        ));
        let found = match &program.probes[0].body.value.as_deref().map(|v| &v.kind) {
            Some(ExprKind::Builtin(_, args)) if matches!(args[0].kind, ExprKind::Bool(_)) => {
                i128::from(matches!(args[0].kind, ExprKind::Bool(true)))
            }
            _ => printed(&program),
        };
        // `7 & (3 == 3)`, for `==` binds tighter.
        assert_eq!(found, value, "{text}");
    }
}

#[test]
fn structs_lie_as_gcc_lays_them() {
    let program = checked(
        "struct foo { int x; char y; int z; } struct bar { int x; char y; int z; } __attribute__((packed))
         struct bar2 { int x; char y; int z; } __attribute__((packed)) __attribute__((aligned(1)));
         struct bits { int a : 3; int b : 30; char c; unsigned long d : 40; unsigned long e : 30; };
         union u { char a[5]; long b; }; struct anon { int a; union { int b; char c[8]; }; void (*f)(int); int (*g)[3]; };
         begin { }",
    );
    let size = |name: &str| program.ctypes.structs.iter().find(|s| s.name == name).unwrap().size;
    // gcc 12: 12, 9, 9, 24, 8, 32.
    assert_eq!(["struct foo", "struct bar", "struct bar2"].map(size), [12, 9, 9]);
    assert_eq!(["struct bits", "union u", "struct anon"].map(size), [24, 8, 32]);
    let anon = program.ctypes.structs.iter().find(|s| s.name == "struct anon").unwrap();
    let field = |name: &str| anon.fields.iter().find(|f| f.name == name).unwrap();
    assert_eq!((field("c").offset, field("c").ty.clone()), (4, Type::Str(8)));
    assert!(
        matches!(&field("g").ty, Type::Pointer(of) if **of == Type::Array(Type::Int(Int::I32).into(), 3))
    );
    let bits = program.ctypes.structs.iter().find(|s| s.name == "struct bits").unwrap();
    let places: Vec<_> = bits.fields.iter().map(|f| (f.offset, f.bits)).collect();
    assert_eq!(
        places,
        [(0, Some((0, 3))), (4, Some((0, 30))), (8, None), (9, Some((0, 40))), (16, Some((0, 30)))]
    );
}

#[test]
fn a_sign_that_is_lost_in_a_declared_variable_is_told() {
    let told = |text: &str| {
        let all = checked(text).warnings;
        all.iter().filter(|warning| warning.message.contains("Sign mismatch")).count()
    };
    assert_eq!(told("begin { $b = -1; let $a: uint16 = $b; print($a); }"), 1);
    assert_eq!(told("begin { $b = (int16)-1; let $a: uint16 = $b; print($a); }"), 1);
    assert_eq!(told("begin { $b = (uint8)1; let $a: int16 = $b; print($a); }"), 0);
    assert_eq!(told("begin { let $a: uint16 = (uint16)-1; print($a); }"), 0);
}

#[test]
fn macros_meet_no_variable_of_the_caller() {
    let program = checked("macro inc(x) { $y = x + 1; $y } begin { $y = 2; $z = inc($y); print($z); }");
    assert_eq!(program.vars.iter().filter(|v| v.name == "y").count(), 2);
    for (text, why) in [
        ("macro m() { @x++ } begin { m(); }", "Unhygienic access to map: @x"),
        ("macro m($x) { $x++ } begin { m(1 + 1); }", "expects a variable for arg $x but got an expression"),
        ("macro m(a) { a } begin { m(); }", "wrong number of arguments. Expected: 1 but got 0"),
        ("macro m() { 1 } macro m() { 2 } begin { m(); }", "Redefinition of macro"),
    ] {
        let shown = refused(text);
        assert!(shown.contains(why), "{text}\n{shown}");
    }
    let shown = refused("macro m(x) { $q + x }\nbegin { print(m(1)); }");
    assert!(shown.contains("Undefined or undeclared variable: $q"), "{shown}");
}

#[test]
fn sections_come_in_their_order() {
    assert!(refused("begin { } struct A { int x; };").contains("C definitions must come before"));
    assert!(refused("begin { } config = { max_strlen = 5 }").contains("must come before"));
}

#[test]
fn settings_come_from_the_block_and_then_the_environment() {
    let mut request =
        Request::of("config = { max_strlen = 100; BPFTRACE_MAX_MAP_KEYS = 7 } begin { @a[1] = 1; }");
    request.env = vec![("BPFTRACE_MAX_STRLEN".into(), "200".into())];
    let program = check(&request, &mut Nowhere).unwrap();
    assert_eq!((program.config.max_strlen, program.maps[0].max_entries), (200, 7));
    let shown = refused("config={license=\"Potato\"} begin { }");
    let wanted = "Invalid value for license. Found: Potato. Valid values: Dual MIT/GPL, Dual BSD/GPL, Dual MPL/GPL, GPL \
                  and additional rights, GPL v2, GPL.";
    assert!(shown.contains(wanted), "{shown}");
    assert!(refused("config = { max_strln = 5 } begin { }").contains("Did you mean max_strlen?"));
}

#[test]
fn parameters_are_numbers_or_texts_by_where_they_stand() {
    let mut request = Request::of(
        "begin { print($1); $s = str($2); $t = str($2 + 2); if ($2 == \"hello\") { } print($9); }",
    );
    request.params = vec!["0x10".into(), "hello".into()];
    let program = check(&request, &mut Nowhere).unwrap();
    let size = |name: &str| program.vars.iter().find(|v| v.name == name).unwrap().ty.clone();
    assert_eq!((size("s"), size("t")), (Type::Str(6), Type::Str(4)));
    request.text = "begin { print(getopt(\"aa\", 10)); print(getopt(\"bb\")); }".into();
    request.named = vec![("aa".into(), Some("20".into()))];
    let program = check(&request, &mut Nowhere).unwrap();
    assert_eq!(program.options.len(), 2);
    request.named = vec![("aa".into(), Some("False".into()))];
    let shown = check(&request, &mut Nowhere).unwrap_err().show();
    assert_eq!(shown, "ERROR: program command line option --aa invalid integer (value: False)\n");
    request.named = vec![("zz".into(), None)];
    let shown = check(&request, &mut Nowhere).unwrap_err().show();
    assert_eq!(
        shown,
        "ERROR: unexpected program command line options: --zz\nHINT: expected program options: --aa, --bb\n"
    );
}

struct Files;

impl World for Files {
    fn import(&mut self, path: &Path) -> Result<Vec<(PathBuf, String)>, String> {
        match path.to_str() {
            Some("/dir/helpers.bt") => {
                let text = "import \"helpers.bt\"; macro greet() { print(\"hello\") } begin { greet!(); }";
                Ok(vec![(path.to_path_buf(), text.into())])
            }
            _ => Err("No such file or directory".into()),
        }
    }
}

#[test]
fn an_import_brings_its_probes_and_macros_once() {
    let mut request = Request::of("import \"helpers.bt\"; import \"helpers.bt\"; begin { greet(); }");
    request.dir = "/dir".into();
    assert_eq!(check(&request, &mut Files).unwrap().probes.len(), 2);
    request.text = "import \"none.bt\"; begin { }".into();
    assert!(check(&request, &mut Files).unwrap_err().show().contains("Failed to import \"none.bt\""));
}

#[test]
fn help_behind_the_dashes_is_no_parameter_that_nobody_asked_for() {
    let mut request = Request::of("begin { print(getopt(\"n\", 5, \"how many\")); }");
    request.named = vec![("help".into(), None)];
    let checked = check(&request, &mut Nowhere).unwrap();
    assert_eq!(checked.options[0].about.as_deref(), Some("how many"));
    request.named = vec![("help".into(), Some("1".into()))];
    assert!(check(&request, &mut Nowhere).is_err());
}
