//! Scripts made by chance, from a seed: each is refused with a place, or runs without a fault.
//!
//! What no script may do: panic, give a program that `bpf::Program` refuses, touch memory that is not its own, call a helper
//! that does not exist. `NANOPROBE_SCRIPTS=100000` makes more of them.

mod common;

use lang::run::Format;

/// A generator of numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn number(&mut self, depth: u32) -> String {
        if depth == 0 {
            return self
                .one(&[
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
                ])
                .into();
        }
        let (a, b) = (self.number(depth - 1), self.number(depth - 1));
        match self.below(9) {
            0 => format!("({a} {} {b})", self.one(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"])),
            1 => format!("({a} {} {b})", self.one(&["<", ">", "==", "!=", "<=", ">=", "&&", "||"])),
            2 => format!("({a} ? {b} : {a})"),
            3 => format!("({}){a}", self.one(&["int8", "uint8", "int16", "uint32", "int64", "uint64"])),
            4 => format!("strlen({})", self.text(depth - 1)),
            5 => self.one(&["$n++", "++$n", "@n--", "@k[$n]++", "len(@k)", "(int64)@c"]).to_owned(),
            6 => format!("({a}, {b}).{}", self.below(2)),
            7 => format!("({} == {})", self.text(depth - 1), self.text(depth - 1)),
            _ => format!("{}({a})", self.one(&["~", "-", "!"])),
        }
    }

    fn text(&mut self, depth: u32) -> String {
        let n = self.number(depth.min(1));
        match self.below(6) {
            0 => "$s".into(),
            1 => "comm".into(),
            2 => format!("str(\"hello world\", {n})"),
            3 => format!("strerror({n})"),
            4 => "\"a\\x01\\\"b\"".into(),
            _ => format!("@t[{n}]"),
        }
    }

    fn statement(&mut self, depth: u32) -> String {
        let (n, t) = (self.number(depth), self.text(depth));
        match self.below(16) {
            0 => format!("$n = {n};"),
            1 => format!("$s = {t};"),
            2 => format!("@n = {n};"),
            3 => format!("@k[{n}] = {};", self.number(depth)),
            4 => format!("@t[{n}] = {t};"),
            5 => format!(
                "@n {} {n};",
                self.one(&["+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="])
            ),
            6 => format!("@c = count(); @u[{n}, {t}] = sum({n});"),
            7 => format!("@h[{n}] = hist({}); @l = lhist({n}, -10, 100, 7);", self.number(depth)),
            8 => format!("print(({n}, {t}, (x={n}, y={t})));"),
            9 => format!("printf(\"%d %5s %-8x %r\\n\", {n}, {t}, {n}, buf({t}, {n}));"),
            10 => format!("if ({n}) {{ {} }} else {{ {} }}", self.block(depth), self.block(depth)),
            11 => format!("for ($i : 0..{}) {{ {} }}", self.below(5), self.block(depth)),
            12 => format!("for ($kv : @k) {{ @n += $kv.0; {} }}", self.block(depth)),
            13 => format!("_ = delete(@k, {n}); zero(@h);"),
            14 => format!("unroll (2) {{ {} }}", self.block(depth)),
            _ => format!("if (has_key(@t, {n})) {{ print(@t[{n}]); clear(@t); }}"),
        }
    }

    fn block(&mut self, depth: u32) -> String {
        if depth == 0 {
            return "@n++;".into();
        }
        (0..=self.below(2)).map(|_| self.statement(depth - 1)).collect::<Vec<_>>().join(" ")
    }

    fn script(&mut self) -> String {
        let body: Vec<String> = (0..=self.below(6)).map(|_| self.statement(2)).collect();
        format!(
            "begin {{ $n = 0; $i = 0; $s = \"start\"; @n = 0; @k[1] = 1; @t[1] = \"t\"; @c = count(); @h[1] = hist(1); {} }}",
            body.join(" ")
        )
    }
}

#[test]
fn a_script_made_by_chance_is_refused_or_runs_without_a_fault() {
    let count: u64 = std::env::var("NANOPROBE_SCRIPTS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut taken = 0;
    for seed in 0..count {
        let script = Chance(seed).script();
        let Ok((_, err, _)) = common::run(&script, Format::Text) else { continue };
        taken += 1;
        let fault =
            err.lines().find(|line| line.contains("ended before its end") && !line.contains("out of fuel"));
        assert_eq!(fault, None, "seed {seed}: {script}");
    }
    assert!(taken * 4 > count, "only {taken} of {count} scripts were taken: the generator says nothing");
}
