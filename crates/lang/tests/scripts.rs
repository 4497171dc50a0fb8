//! Whole scripts: what they print, by the language's documents.

mod common;

use common::{errors, json, text};

#[test]
fn values_are_printed_by_their_type() {
    for (body, expected) in [
        ("print(1 + 2 * 3);", "7"),
        ("print(-7 / 2);", "-3"),
        ("print(\"a\\tb\");", "a\tb"),
        ("print((1, \"x\", (2, 3)));", "(1, x, (2, 3))"),
        ("print((1,));", "(1,)"),
        ("print((a=1, b=\"x\"));", "{ .a = 1, .b = x }"),
        ("print(true);", "true"),
        ("print(18446744073709551615);", "18446744073709551615"),
        ("print((int8*)0x32);", "0x32"),
        ("print((uint8)300);", "44"),
        ("print((int8)200);", "-56"),
        ("$a = (uint8[4])(uint32)0x01020304; print($a);", "[4,3,2,1]"),
        ("$a = (int8[8])12345; print((uint64)$a);", "12345"),
        ("print(1 == 1 ? \"yes\" : \"no\");", "yes"),
        ("$x = 0; print($x ?: 10);", "10"),
        ("print({ let $y = 4; $y * 2 });", "8"),
        ("$x = 5; $y = $x++ + ++$x; print(($x, $y));", "(7, 12)"),
        ("print(~0);", "-1"),
        ("print(!5);", "false"),
        ("$m = 3; print(1 << $m | 1);", "9"),
        ("print(1m);", "60000000000"),
        ("print(pid == pid() && tid > 0);", "true"),
    ] {
        assert_eq!(text(&format!("begin {{ {body} }}")), format!("{expected}\n\n\n"), "{body}");
    }
}

#[test]
fn a_test_passes_without_errors_and_results() {
    use lang::run::{Format, Mode};
    for (body, passes) in [
        ("print(1);", true),
        ("return 0;", true),
        ("exit(); return 1;", true),
        ("warnf(\"w\");", true),
        ("return 1;", false),
        ("exit(2);", false),
        ("errorf(\"e\");", false),
        ("assert(1 == 2, \"no\");", false),
        ("@a[1] = 1; delete(@a, 2);", false),
    ] {
        let script = format!("test:first {{ }} test:it {{ {body} }}");
        let (out, _, code) = common::run_in(&script, Format::Text, Mode::Test).unwrap();
        let told = if passes { "2 tests.\n" } else { "[  FAILED  ]\u{1b}[0m it\n" };
        assert!(out.contains(told) && code == i32::from(!passes), "{body}\n{out}");
    }
}

#[test]
fn a_signal_that_cannot_be_caught_is_refused() {
    for name in ["SIGKILL", "SIGSTOP", "NONE"] {
        let why = common::run(&format!("self:signal:{name} {{ }}"), lang::run::Format::Text).unwrap_err();
        assert!(why.contains(&format!("{name} is not a supported signal")), "{why}");
    }
}

#[test]
fn strings_are_compared_searched_and_joined() {
    for (body, expected) in [
        ("$a = \"abc\"; print($a == \"abc\");", "true"),
        ("print(\"abc\" == \"ab\");", "false"),
        (
            "$a = \"another\"; print((\"another\" == $a, $a != \"another\", $a == \"anothe\"));",
            "(true, false, false)",
        ),
        (
            "$a = \"another!\"; $a = \"ab\"; print(($a == \"ab\", $a == \"abother!\", $a == \"\"));",
            "(true, false, false)",
        ),
        ("$a = \"abc\"; $a = \"\"; print(($a == \"\", $a != \"abc\"));", "(true, true)"),
        ("$a = \"ab\"; print(($a == \"a much longer text\", \"abc\" != $a));", "(false, true)"),
        (
            "@a[1] = \"12345678901234567890123\"; print(@a[1] == \"12345678901234567890123\"); clear(@a);",
            "true",
        ),
        (
            "@a[1] = \"12345678901234567890123\"; print(@a[1] == \"12345678901234567890124\"); clear(@a);",
            "false",
        ),
        (
            "@a[1] = (1, \"abc\", \"12345\"); print((@a[1].1 == \"abc\", @a[1].2 == \"12345\", @a[1].2 == \"12344\")); clear(@a);",
            "(true, true, false)",
        ),
        ("$a = \"ab\"; print($a != \"abc\");", "true"),
        ("print(strlen(\"hello\"));", "5"),
        ("print(strcontains(\"hello\", \"ell\"));", "true"),
        ("print(strstr(\"hello\", \"lo\"));", "3"),
        ("print(strstr(\"hello\", \"x\"));", "-1"),
        ("print(strncmp(\"hello\", \"help\", 3));", "0"),
        ("$a = \"hello\"; print($a[1]);", "101"),
        ("print(str(\"hello\", 3));", "hel"),
        (
            "printf(\"%r|%rx|%rh\\n\", buf(\"a\\x01\", 2), buf(\"ab\", 2), buf(\"ab\", 2));",
            "a\\x01|\\x61\\x62|61 62",
        ),
        ("$a = (1, \"hello\", 2); print(*(&$a));", "(1, hello, 2)"),
        ("$a = \"longer\"; $a = \"x\"; print($a);", "x"),
        ("print(strerror(2));", "No such file or directory"),
        ("print(signal_name(9));", "Killed"),
        ("print(syscall_name(0));", "read"),
        ("print((syscall_name(435), syscall_name(400), syscall_name(5000)));", "(clone3, , )"),
        ("$n = 999; print((strerror($n), signal_name($n)));", "(Unknown error 999, N/A)"),
        ("print(default_str_length);", "1024"),
        ("print((config.max_strlen, config.stack_mode, config.cpp_demangle));", "(1024, bpftrace, true)"),
        ("print(ntop(0x0100007f));", "127.0.0.1"),
        ("print(ntop(pton(\"::1\")));", "::1"),
        ("printf(\"%x\\n\", bswap((uint16)0x1234));", "3412"),
    ] {
        assert_eq!(text(&format!("begin {{ {body} }}")), format!("{expected}\n\n\n"), "{body}");
    }
}

#[test]
fn control_flow_runs_as_it_is_written() {
    for (body, expected) in [
        ("for ($i : 0..3) { print($i); }", "0\n1\n2"),
        ("for ($i : (-2)..1) { print($i); }", "-2\n-1\n0"),
        ("for ($i : 0..9) { if ($i == 1) { continue; } if ($i == 3) { break; } print($i); }", "0\n2"),
        ("$i = 0; while ($i < 2) { $i++; print($i); }", "1\n2"),
        ("$a = 1; unroll (4) { $a *= 2; } print($a);", "16"),
        ("if (0) { print(1); } else if (1) { print(2); } else { print(3); }", "2"),
        ("print(1); return; print(2);", "1"),
        ("$n = 3; for ($i : 0..$n) { $n--; print($i); }", "0\n1\n2"),
    ] {
        assert_eq!(text(&format!("begin {{ {body} }}")), format!("{expected}\n\n\n"), "{body}");
    }
    assert_eq!(text("begin /0/ { print(1); } begin /1 == 1/ { print(2); }"), "2\n\n\n");
}

#[test]
fn maps_keep_values_by_key() {
    assert_eq!(
        text("begin { @[2] = 5; @[1] = 7; @x[1, \"a\"] = \"b\"; @s = 3; }"),
        "\n\n@[2]: 5\n@[1]: 7\n@s: 3\n@x[1, a]: b\n"
    );
    assert_eq!(text("begin { @ = 1; @++; @ += 5; @ -= 2; @ *= 3; @ |= 1; }"), "\n\n@: 15\n");
    assert_eq!(
        text(
            "begin { @a[1] = 1; print(has_key(@a, 1)); print(delete(@a, 1)); print(has_key(@a, 1)); print(len(@a)); }"
        ),
        "true\ntrue\nfalse\n0\n\n\n"
    );
    assert_eq!(
        text("begin { @a[1] = 5; for ($kv : @a) { print($kv); print($kv.1); } clear(@a); }"),
        "(1, 5)\n5\n\n\n"
    );
    assert_eq!(
        text("begin { @a[(uint8)1, (uint64)2] = 1; @a[(uint8)1, (uint64)2] = 3; }"),
        "\n\n@a[1, 2]: 3\n"
    );
    assert_eq!(
        text("begin { @m[1] = (1, \"hi\"); let $v; if (find(@m, 1, $v)) { print($v); } clear(@m); }"),
        "(1, hi)\n\n\n"
    );
    assert_eq!(text("let @a = lruhash(1); begin { @a[1] = 1; @a[2] = 2; }"), "\n\n@a[2]: 2\n");
}

#[test]
fn many_elements_are_met_once_each_also_when_some_are_deleted_meanwhile() {
    let script = "begin { for ($i : 0..100) { @a[$i] = $i; } $n = 0; $s = 0; for ($kv : @a) { $n++; $s += $kv.1; delete(@a, $kv.0); } \
                  print(($n, $s, len(@a))); }";
    assert_eq!(text(script), "(100, 4950, 0)\n\n\n");
}

#[test]
fn aggregations_are_exact() {
    let script = "begin { for ($i : -3..8) { @c = count(); @s = sum($i); @mi = min($i); @ma = max($i); @a = avg($i); \
                  @st = stats($i); } print(((int64)@c, (int64)@s, (int64)@mi, (int64)@ma)); clear(@c); clear(@s); \
                  clear(@mi); clear(@ma); }";
    assert_eq!(text(script), "(11, 22, -3, 7)\n\n\n@a: 2\n@st: { .count = 11, .average = 2, .total = 22 }\n");
    let script = "begin { @[\"x\"] = hist(5); @[\"x\"] = hist(6); print(@, 1); zero(@); }";
    let bar = "@".repeat(52);
    assert_eq!(text(script), format!("@[x]:\n[4, 8)                 2 |{bar}|\n\n\n\n@[x]:\n\n"));
}

#[test]
fn output_for_machines_is_one_object_a_line() {
    assert_eq!(
        json("begin { @a[1, \"x\"] = 2; @h = hist(2); print((1, \"q\\\"\")); printf(\"p%d\\n\", 1); }"),
        [
            r#"{"type": "value", "data": [1,"q\""]}"#,
            r#"{"type": "printf", "data": "p1\n"}"#,
            r#"{"type": "map", "data": {"@a": {"1,x": 2}}}"#,
            r#"{"type": "hist", "data": {"@h": [{"min": 2, "max": 3, "count": 1}]}}"#,
        ]
    );
    assert_eq!(
        json("begin { @s = stats(4); }"),
        [r#"{"type": "stats", "data": {"@s": {"count": 1, "average": 4, "total": 4}}}"#]
    );
}

#[test]
fn what_goes_wrong_while_running_is_told_with_its_place() {
    let (out, err, code) = errors("begin { @z = 0; print(10 / @z); delete(@z); }");
    assert_eq!((out.as_str(), code), ("1\n\n\n", 0));
    assert!(err.starts_with("stdin:1:") && err.contains("WARNING: Divide or modulo by 0"), "{err}");
    let (out, err, _) = errors("let @a = hash(1); begin { @a[1] = 1; @a[2] = 2; }");
    assert_eq!(out, "\n\n@a[1]: 1\n");
    assert!(err.contains("WARNING: Map full; can't update element."), "{err}");
    let (out, err, _) = errors("begin { $i = (uint64)9; $a = (int8[2])(int16)5; print($a[$i]); }");
    assert_eq!(out, "0\n\n\n");
    assert!(err.starts_with("stdin:1:55-61: WARNING: Array access out of bounds."), "{err}");
    // At each place the first ten times, and at the end how often besides.
    let (_, err, _) = errors(
        "let @a = hash(1); begin { for ($i : 0..35) { @a[$i] = 2; } for ($i : 0..3) { print(1 / $i); } }",
    );
    assert_eq!(
        (err.matches("WARNING: Map full").count(), err.matches("WARNING: Divide").count()),
        (10, 1),
        "{err}"
    );
    assert!(err.contains("stdin:1:") && err.ends_with(": WARNING: the same 24 times more\n"), "{err}");
    let (_, err, _) = errors("begin { @a[1] = 1; delete(@a, 2); clear(@a); }");
    assert!(err.contains("Can't delete map element"), "{err}");
}

#[test]
fn the_run_ends_by_exit_with_its_code_after_end_probes() {
    let (out, _, code) =
        errors("begin { print(1); exit(7); print(2); } interval:ms:1 { print(3); } end { print(4); }");
    assert_eq!((out.as_str(), code), ("1\n4\n\n\n", 7));
    let (out, err, _) = errors("begin { $i = 0; while (1) { $i++; } }");
    assert_eq!(out, "\n\n");
    assert!(err.contains("begin: ended before its end, once") && err.contains("out of fuel"), "{err}");
}

#[test]
fn intervals_fire_until_one_exits() {
    assert_eq!(
        text("interval:ms:1 { @n++; if (@n == 3) { exit(); } } end { print(probetype); }"),
        "special\n\n\n@n: 3\n"
    );
}

#[test]
fn what_is_no_text_is_refused_by_assert_str() {
    let (out, err, code) = errors("begin { assert_str(\"a\"); assert_str(comm); print(1); }");
    assert_eq!((out.as_str(), err.as_str(), code), ("1\n\n\n", "", 0));
    assert!(common::run("begin { assert_str(5); }", lang::run::Format::Text).is_err());
}

#[test]
fn what_a_map_has_for_a_thread_is_what_it_has_when_it_is_asked() {
    for (body, expected) in [
        ("@s[tid] = 5; $a = @s[tid]; @s[tid] = 9; print(($a, @s[tid], @s[tid]));", "(5, 9, 9)"),
        ("@s[tid] = 1; $i = 0; while ($i < 3) { $i++; print(@s[tid]); @s[tid] = @s[tid] + 1; }", "1\n2\n3"),
        ("@s[tid] = 1; if (@s[tid] == 1) { @s[tid] = 7; } print(@s[tid]);", "7"),
        (
            "@s[tid] = 1; if (@s[tid] == 2) { $x = tid; } else { @s[tid] += 3; } print(@s[tid] + @s[tid]);",
            "8",
        ),
        (
            "@s[tid] = 4; print(@s[tid]); delete(@s, tid); print((@s[tid], has_key(@s, tid)));",
            "4\n(0, false)",
        ),
        ("@s[tid] = 4; $a = @s[tid]++; print(($a, @s[tid], ++@s[tid], @s[tid]));", "(4, 5, 6, 6)"),
        ("@s[tid] = 1; @t[tid] = 2; print((@s[tid], @t[tid], @s[tid], @t[tid]));", "(1, 2, 1, 2)"),
        ("@s[tid] = 1; @t[tid] = 2; if (cpu > 100000) { $x = tid; } print(tid == tid && tid > 0);", "true"),
        ("$x = cpu < 100000 ? 1 : tid; print((tid == tid, $x));", "(true, 1)"),
        ("@s[tid] = 1; for ($kv : @s) { $a = @s[tid]; @s[tid] = 6; } print(@s[tid]);", "6"),
        ("@s[tid] = (int8)-3; print((@s[tid], @s[tid] < 0));", "(-3, true)"),
        ("@s[tid] = 1; print(cpu > 100000 && @s[tid] == 1); @s[tid] = 2; print(@s[tid]);", "false\n2"),
    ] {
        let printed = text(&format!("begin {{ {body} @s[0] = 0; @t[0] = 0; clear(@s); clear(@t); }}"));
        assert_eq!(printed.trim_end(), expected, "{body}");
    }
}
