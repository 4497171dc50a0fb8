//! Scripts that use all of the language, most of them correct.
//!
//! For:     `generate`.
//! State:   none.
//! Context: control.
//! Keeps:   C1 no loop has many turns, nothing waits, nothing but the output and /proc is touched.
//! Checked: `tests/lang.rs`.

use super::one;
use crate::rng::Rng;

const NUMBERS: [&str; 26] = [
    "0",
    "1",
    "-1",
    "7",
    "255",
    "65536",
    "-129",
    "18446744073709551615",
    "$n",
    "$i",
    "@n",
    "pid",
    "@k[1]",
    "cpu",
    "rand",
    "nsecs",
    "elapsed",
    "$1",
    "$#",
    "SMALL",
    "@r.a",
    "$p.1",
    "sizeof(struct S)",
    "offsetof(struct S, b)",
    "(int64)@m",
    "tid",
];
const TYPES: [&str; 8] = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"];

/// Begins with a value for everything that the rest names.
const BEFORE: &str = "struct S { int a; long b; char c[8]; unsigned d : 3, e : 5; } \
    enum Kind { SMALL = 3, LARGE = 0x10000 } \
    macro twice(x) { x + x } macro bump($v, @m) { $v += 1; @m[$v] = $v; } ";
const FIRST: &str = "$n = 0; $i = 0; $s = \"start\"; $p = (1, 2, \"three\"); @n = 0; @k[1] = 1; @t[1] = \"t\"; \
    @c = count(); @h[1] = hist(1); @r = (a=1, b=\"x\"); @m = max(1); ";

/// One of begin, or of a traced program.
pub fn script(rng: &mut Rng) -> String {
    let point = one(
        rng,
        &["begin", "begin", "begin", "uprobe:./a:b", "uretprobe:./a:b", "uprobe:./a:b,uprobe:./a:c"],
    );
    let predicate = if rng.one_in(4) { format!(" /{}/", number(rng, 1)) } else { String::new() };
    let body: Vec<String> = (0..=rng.below(6)).map(|_| statement(rng, 2)).collect();
    let body = body.join(" ");
    match point {
        "begin" => format!("{BEFORE}begin {{ {FIRST}{body} }}"),
        _ => format!("{BEFORE}begin {{ {FIRST}}} {point}{predicate} {{ {FIRST}{body} {} }}", at_hits(rng)),
    }
}

fn at_hits(rng: &mut Rng) -> String {
    match rng.below(8) {
        0 => "@[ustack(3), comm] = count();".into(),
        1 => "printf(\"%s %d %p\\n\", str(arg0), arg1, arg2);".into(),
        2 => "$x = (struct S *)arg0; @n = $x.a + $x.b; print($x.c); @q[$x.d] = *$x;".into(),
        3 => "@[func, probe] = sum(arg1); @l = lhist(arg2, 0, 100, 10);".into(),
        4 => "print(buf(arg0, 16)); @u = usym(arg1);".into(),
        5 => "$y = (int32 *)arg0; @n = $y[2] + *($y + 1);".into(),
        6 => format!("@[tid] = nsecs; if (@[tid] > {}) {{ delete(@, tid); }}", number(rng, 1)),
        _ => format!("@w[str(arg0, {})] = stats(reg(\"ax\"));", number(rng, 1)),
    }
}

fn number(rng: &mut Rng, depth: u32) -> String {
    if depth == 0 {
        return one(rng, &NUMBERS).into();
    }
    let (a, b) = (number(rng, depth - 1), number(rng, depth - 1));
    match rng.below(13) {
        0 => format!("({a} {} {b})", one(rng, &["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"])),
        1 => format!("({a} {} {b})", one(rng, &["<", ">", "==", "!=", "<=", ">=", "&&", "||"])),
        2 => format!("({a} ? {b} : {a})"),
        3 => format!("({}){a}", one(rng, &TYPES)),
        4 => format!("{}({})", one(rng, &["strlen", "strcap"]), text(rng, depth - 1)),
        5 => one(rng, &["$n++", "++$n", "@n--", "@k[$n]++", "len(@k)", "(int64)@c", "ncpus"]).into(),
        6 => format!("({a}, {b}).{}", rng.below(2)),
        7 => format!("({} == {})", text(rng, depth - 1), text(rng, depth - 1)),
        8 => format!("strncmp({}, {}, {})", text(rng, 0), text(rng, 0), rng.below(5)),
        9 => format!("strstr({}, {})", text(rng, depth - 1), text(rng, 0)),
        10 => format!("bswap(({}){a})", one(rng, &["uint8", "uint16", "uint32", "uint64"])),
        11 => format!("twice({a})"),
        _ => format!("{}({a})", one(rng, &["~", "-", "!"])),
    }
}

fn text(rng: &mut Rng, depth: u32) -> String {
    let n = number(rng, depth.min(1));
    match rng.below(11) {
        0 => "$s".into(),
        1 => "comm".into(),
        2 => format!("str(\"hello world\", {n})"),
        3 => format!("strerror({n})"),
        4 => "\"a\\x01\\\"b\"".into(),
        5 => format!("str_concat({}, \"z\")", if depth == 0 { "$s".into() } else { text(rng, depth - 1) }),
        6 => "probetype".into(),
        7 => "$p.2".into(),
        8 => "str($2)".into(),
        9 => "@r.b".into(),
        _ => format!("@t[{n}]"),
    }
}

fn statement(rng: &mut Rng, depth: u32) -> String {
    let (n, t) = (number(rng, depth), text(rng, depth));
    match rng.below(26) {
        0 => format!("$n = {n};"),
        1 => format!("$s = {t};"),
        2 => format!("@n = {n};"),
        3 => format!("@k[{n}] = {};", number(rng, depth)),
        4 => format!("@t[{n}] = {t};"),
        5 => {
            let op = one(rng, &["+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="]);
            format!("@n {op} {n};")
        }
        6 => format!("@c = count(); @u[{n}, {t}] = sum({n});"),
        7 => format!("@h[{n}] = hist({}); @l = lhist({n}, -10, 100, 7);", number(rng, depth)),
        8 => format!("print(({n}, {t}, (x={n}, y={t})));"),
        9 => format!("printf(\"%d %5s %-8x %r\\n\", {n}, {t}, {n}, buf({t}, {n}));"),
        10 => format!("if ({n}) {{ {} }} else {{ {} }}", block(rng, depth), block(rng, depth)),
        11 => format!("for ($j{depth} : 0..{}) {{ $i = $j{depth}; {} }}", rng.below(5), block(rng, depth)),
        12 => format!("for ($kv{depth} : @k) {{ @n += $kv{depth}.0; {} }}", block(rng, depth)),
        13 => format!("_ = delete(@k, {n}); zero(@h);"),
        14 => format!("unroll (2) {{ {} }}", block(rng, depth)),
        15 => format!("let $f = 0; if (find(@k, {n}, $f)) {{ print($f); }}"),
        16 => format!("@a = avg({n}); @g[{t}] = stats({n}); @m = max({n}); @o = min({n});"),
        17 => format!("bump($n, @b); @d[{n}, {t}] = ({t}, {n});"),
        18 => format!("$z = (uint8[8])(uint64){n}; @n = $z[{}]; print($z);", rng.below(8)),
        19 => format!("print(strftime(\"%H:%M:%S.%f\", {n})); time(\"%Y\\n\"); print(usym({n}));"),
        20 => format!("@y[{n}] = buf({t}, 4); @e = (enum Kind){n}; print(@e); print(@y);"),
        21 => format!("print(ntop((uint32){n})); print(ntop((uint8[4])(uint32){n}));"),
        22 => format!("$q = {{ let $w = {n}; $w + 1 }}; warnf(\"%d\", $q); errorf(\"%s\", {t});"),
        23 => format!("print(@k, {}); print(@h, 3, {}); clear(@u);", rng.below(4), 1 + rng.below(3)),
        24 => {
            format!("cat(\"/proc/{{%d}}\", {n}); @ser = tseries({n}, 1s, {});", 1 + rng.below(9))
        }
        _ => format!("if (has_key(@t, {n})) {{ print(@t[{n}]); clear(@t); }}"),
    }
}

fn block(rng: &mut Rng, depth: u32) -> String {
    if depth == 0 {
        return "@n++;".into();
    }
    (0..=rng.below(2)).map(|_| statement(rng, depth - 1)).collect::<Vec<_>>().join(" ")
}
