//! Scripts that reckon.
//!
//! For:     `generate`.
//! State:   none.
//! Context: control.
//! Keeps:   N1 nothing in them is a call, a map or a text, so that compiled code can be run as it stands.
//! Checked: `tests/lang.rs`.

use super::one;
use crate::rng::Rng;

const TYPES: [&str; 8] = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"];
const VARIABLES: [&str; 6] = ["$a", "$b", "$c", "$d", "$e", "$f"];
const LITERALS: [&str; 18] = [
    "0",
    "1",
    "-1",
    "2",
    "7",
    "63",
    "64",
    "127",
    "-128",
    "255",
    "0x8000",
    "65536",
    "0x7fffffff",
    "-2147483648",
    "0xffffffff",
    "0x7fffffffffffffff",
    "0xffffffffffffffff",
    "1e9",
];
const REAL: [&str; 10] = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];
const COMPARED: [&str; 8] = ["<", ">", "<=", ">=", "==", "!=", "&&", "||"];
const ASSIGN: [&str; 10] = ["+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="];

/// One that returns a number.
pub fn script(rng: &mut Rng) -> String {
    let mut text = String::from("begin { ");
    for name in VARIABLES {
        let (ty, literal) = (one(rng, &TYPES), one(rng, &LITERALS));
        text += &format!("let {name} = ({ty}){literal}; ");
    }
    for _ in 0..2 + rng.below(6) {
        text += &statement(rng, 2);
    }
    text + &format!("return {}; }}", number(rng, 3))
}

fn number(rng: &mut Rng, depth: u32) -> String {
    if depth == 0 {
        return match rng.one_in(3) {
            true => one(rng, &LITERALS).into(),
            false => one(rng, &VARIABLES).into(),
        };
    }
    let (a, b) = (number(rng, depth - 1), number(rng, depth - 1));
    match rng.below(12) {
        0..4 => format!("({a} {} {b})", one(rng, &REAL)),
        4 => format!("(int64)({a} {} {b})", one(rng, &COMPARED)),
        5 => format!("({a} ? (int64){b} : (int64){})", number(rng, depth - 1)),
        6..9 => format!("({}){a}", one(rng, &TYPES)),
        9 => format!("({a}, {b}, {}).{}", number(rng, depth - 1), rng.below(3)),
        10 => format!("{{ let $x = {a}; $x + {b} }}"),
        _ => format!("{}({a})", one(rng, &["~", "-", "(int8)!"])),
    }
}

fn statement(rng: &mut Rng, depth: u32) -> String {
    let name = one(rng, &VARIABLES);
    match rng.below(if depth == 0 { 5 } else { 9 }) {
        0 | 1 => format!("{name} = ({}){}; ", one(rng, &TYPES), number(rng, 2)),
        2 => format!("{name} {} {}; ", one(rng, &ASSIGN), number(rng, 2)),
        3 => format!("{name} {} ({}){}; ", one(rng, &ASSIGN), one(rng, &TYPES), number(rng, 1)),
        4 => one(rng, &["$a++; ", "--$b; ", "$c = $d--; ", "$e = ++$f; "]).into(),
        5 => format!("if ({}) {{ {}}} ", number(rng, 2), statement(rng, depth - 1)),
        6 => format!(
            "for ($i{depth} : 0..{}) {{ {name} += $i{depth}; {}}} ",
            rng.below(6),
            statement(rng, depth - 1)
        ),
        7 => format!("unroll ({}) {{ {}}} ", 1 + rng.below(3), statement(rng, depth - 1)),
        _ => format!(
            "if ({}) {{ {}}} else {{ {}}} ",
            number(rng, 1),
            statement(rng, depth - 1),
            statement(rng, depth - 1)
        ),
    }
}
