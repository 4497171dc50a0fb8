//! What is accepted, of which types, and what is refused.

use lang::types::{Agg, Int, Type};
use lang::{Checked, Nowhere, Request, check};

fn checked(text: &str) -> Checked {
    let mut request = Request::of(text);
    request.safe = false;
    check(&request, &mut Nowhere).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

fn refused(text: &str) -> String {
    match check(&Request::of(text), &mut Nowhere) {
        Ok(_) => panic!("accepted: {text}"),
        Err(e) => e.show(),
    }
}

fn var(text: &str, name: &str) -> Type {
    let checked = checked(&format!("begin {{ {text} }}"));
    checked.vars.iter().find(|v| v.name == name).map(|v| v.ty.clone()).expect(name)
}

#[test]
fn a_variable_has_one_type_everywhere() {
    assert_eq!(var("$a = 1; $a = (uint64)2;", "a"), Type::Int(Int::U64));
    assert_eq!(var("$a = 1; $b = -1000; $a = $b;", "a"), Type::Int(Int::I16));
    assert_eq!(var("$c = (uint64)1; $d = (int64)-1; $c = $d;", "c"), Type::Int(Int::I64));
    assert_eq!(var("$a = 1;", "a"), Type::Int(Int::I8));
    assert_eq!(var("$a = 18446744073709551615;", "a"), Type::Int(Int::U64));
    assert_eq!(var("$a = 1; $a = $a + 1;", "a"), Type::Int(Int::I64));
    assert_eq!(var("let $a; $a = $a + 1; $a = 1;", "a"), Type::Int(Int::I64));
    assert_eq!(var("$a = \"hi\"; $a = \"hello\";", "a"), Type::Str(6));
    assert_eq!(var("let $a: uint16 = 5;", "a"), Type::Int(Int::U16));
    assert_eq!(var("$a = (uint64)1 - (uint64)2;", "a"), Type::Int(Int::I64));
    assert_eq!(var("$a = str(5, 3);", "a"), Type::Str(4));
    assert_eq!(
        var("$a = (1, \"x\"); $a = ((uint64)5, \"xyz\");", "a"),
        Type::Tuple([Type::Int(Int::U64), Type::Str(4)].into())
    );
}

#[test]
fn a_comptime_branch_sees_the_final_type() {
    let program = checked(
        "begin { $a = 1; if comptime (typeinfo($a).full_type == \"uint64\") { @m = 1; } else { @m = \"s\"; } $a = (uint64)2; }",
    );
    assert_eq!(program.maps[0].value, Type::Int(Int::I8));
    let locked = refused(
        "begin { $a = 1; if comptime (typeinfo($a).full_type == \"uint32\") { $a = (uint64)3; } $a = (uint32)2; }",
    );
    assert!(locked.contains("locked"), "{locked}");
}

#[test]
fn maps_keep_what_functions_give() {
    let program = checked("begin { @a = count(); @b[pid, comm] = hist(5); @c++; @d[1] = 2; print(@d); }");
    let map = |name: &str| program.maps.iter().find(|m| m.name == name).unwrap();
    assert_eq!(map("a").value, Type::Agg(Agg::Count));
    assert_eq!(map("b").value, Type::Agg(Agg::Hist { bits: 0 }));
    assert_eq!(map("b").key, Some(Type::Tuple([Type::Int(Int::U32), Type::Str(16)].into())));
    assert_eq!(map("c").value, Type::Int(Int::I64));
    assert_eq!(map("d").key, Some(Type::Int(Int::I8)));
}

#[test]
fn what_the_language_has_is_accepted() {
    for text in [
        "begin { for ($i : 0..5) { if ($i == 2) { continue; } print($i); } }",
        "begin { @m[1] = 2; for ($kv : @m) { print($kv.0); print($kv.1); } }",
        "begin { $i = 0; while ($i < 5) { $i++; if ($i == 3) { break; } } }",
        "begin { unroll(3) { print(1) } }",
        "begin { $x = { let $b = 1; $b }; _ = $x; }",
        "begin { $a = (color=\"green\", size=2); print($a.size); $a = (size=10, color=\"blue\"); }",
        "begin { $a = (1, \"hello\"); print($a.1); print($a[1 - 1]); print((1,)); print(()); }",
        "begin { $a = (int8[8])12345; print($a[0]); print((uint64)$a); }",
        "struct A { int x[4]; } u:./x:f { $a = (struct A *)arg0; @x = $a.x[0]; @y = $a->x; }",
        "begin { $x = 5; $p = &$x; print(*$p); }",
        "begin { let $v; @x[1] = 1; if (find(@x, 1, $v)) { } }",
        "begin { @c = count(); if (@c > 5) { printf(\"%d\", (int64)@c); } }",
        "begin { $a = nsecs ? 1 : 0; $b = $a ?: 5; print($b); }",
        "config = { max_strlen = 64; BPFTRACE_STACK_MODE = perf } begin { print(config.max_strlen); }",
        "begin { printf(\"%s %d %x %c %p %5.2s\", comm, pid, tid, 65, 0x10, \"abc\"); }",
        "enum { ONE = 1, TWO }; begin { printf(\"%d %s\", ONE, TWO); @[ONE + 1] = TWO; }",
        "begin { if (1) { fail_not(); } } macro fail_not() { 1; }",
        "begin { if (1 > 2) { fail(\"never %d\", 1); } }",
        "begin { let $a : string = \"hello\"; print(strlen($a)); }",
        "begin { print(sizeof(uint32*[10])); print(sizeof({ $a = (int8)1; $a })); }",
        "test:okay { return 1; } bench:x { @a++; }",
        "begin { $y = (pid)*tid; print($y); }",
    ] {
        checked(text);
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    for (text, why) in [
        ("begin { print($x); }", "Undefined or undeclared variable: $x"),
        ("begin { $x++; }", "Undefined or undeclared variable: $x"),
        ("begin { $x = 1; let $x = 2; }", "already declared"),
        ("begin { $x = 1; for ($x : 0..2) { } }", "shadows"),
        ("begin { @a = 1; @a[1] = 2; }", "non-scalar"),
        ("begin { @a = count(); @a = 1; }", "Type mismatch for @a"),
        ("begin { $a = 1; $a = \"s\"; }", "Type mismatch for $a"),
        ("begin { let $a: uint16 = -1; }", "does not fit"),
        ("begin { $a = count(); }", "cannot be assigned to a scratch variable"),
        ("begin { @h = hist(1); @a = @h; }", "cannot be assigned from one map to another"),
        ("begin { print(nothing); }", "Unknown identifier: 'nothing'"),
        ("begin { nothing(1); }", "Unknown function: 'nothing'"),
        ("begin { printf(\"%d\"); }", "Not enough arguments for format string"),
        ("begin { printf(\"%d\", \"s\"); }", "specifier expects a value of type integer"),
        ("begin { str(); }", "str() requires at least one argument (0 provided)"),
        ("begin { system(\"ls\"); }", "unsafe function"),
        ("begin { arg0; }", "can not be used with \"begin\" probes"),
        ("begin { for ($i : 0..3) { exit(); } }", "not allowed in a loop"),
        ("begin { break; }", "outside of a loop"),
        ("begin { $a = (1, 2); print($a.5); }", "Invalid tuple index: 5. Found 2 elements in tuple."),
        ("begin { if (\"s\") { } }", "Invalid condition: string[2]"),
        ("begin { if (1) { fail(\"got %d\", 3); } }", "got 3"),
        ("begin { print(@never); }", "Undefined map: @never"),
        ("uprob:/bin/sh:f { }", "Did you mean uprobe?"),
        ("begin { (struct None *)0; }", "Cannot resolve unknown type \"struct None\""),
        ("let @a = tree(5); begin { @a[1] = 1; }", "Invalid bpf map type: tree"),
    ] {
        let shown = refused(text);
        assert!(shown.contains(why), "{text}\nwanted: {why}\n{shown}");
    }
}

#[test]
fn an_error_shows_the_line_and_the_caret() {
    assert_eq!(
        refused("begin { $count = 1; print($cuont); }"),
        "stdin:1:27-33: ERROR: Undefined or undeclared variable: $cuont\n\
         begin { $count = 1; print($cuont); }\n                          ~~~~~~\nHINT: Did you mean $count?\n"
    );
    assert_eq!(
        refused("begin { @g[1, \"hi\"] = 2; if (has_key(@g, (1, 2))) { } }"),
        "stdin:1:30-49: ERROR: Argument mismatch for @g: trying to access with arguments: '(int8,int8)' when map \
         expects arguments: '(int8,string[3])'\n\
         begin { @g[1, \"hi\"] = 2; if (has_key(@g, (1, 2))) { } }\n                             ~~~~~~~~~~~~~~~~~~~\n"
    );
}
