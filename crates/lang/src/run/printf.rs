//! `printf`.
//!
//! For:     everything that takes a format.
//! State:   none.
//! Context: control.
//! Keeps:   P1 an argument that is no number where one is wanted is shown as it is.
//! Checked: tests below.

use super::show::{Shown, hex};
use crate::format::{Directive, Piece, parse};

/// The widest field: a script that asks for more gets this.
const WIDTH_MAX: usize = 1 << 16;

/// The text of a format and its arguments.
pub fn printf(format: &[u8], args: &[Shown]) -> Vec<u8> {
    let Ok(pieces) = parse(format) else { return format.to_vec() };
    let mut out = Vec::new();
    let mut args = args.iter();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.extend_from_slice(&text),
            Piece::Value(directive) => {
                if let Some(arg) = args.next() {
                    out.extend_from_slice(&one(&directive, arg));
                }
            }
        }
    }
    out
}

fn one(directive: &Directive, arg: &Shown) -> Vec<u8> {
    let body = match (directive.conversion.as_str(), arg) {
        ("r", Shown::Bytes(bytes)) => hex(bytes, true, true),
        ("rx", Shown::Bytes(bytes)) => hex(bytes, false, true),
        ("rh", Shown::Bytes(bytes)) => hex(bytes, false, false),
        ("s" | "r" | "rx" | "rh", arg) => {
            let mut text = arg.text();
            if let (Some(most), "s") = (directive.precision, directive.conversion.as_str()) {
                text.truncate(most as usize);
            }
            text
        }
        ("c", arg) => integer(arg).map_or_else(|| arg.text(), |n| vec![n as u8]),
        ("p", arg) => integer(arg).map_or_else(|| arg.text(), |n| format!("0x{:x}", n as u64).into_bytes()),
        (_, Shown::Float(x)) => fraction(directive, *x),
        (conversion, arg) => match integer(arg) {
            Some(n) => return digits(directive, conversion, n),
            None => arg.text(),
        },
    };
    padded(directive, body)
}

fn integer(arg: &Shown) -> Option<i128> {
    match arg {
        Shown::Int(n) => Some(*n),
        Shown::Bool(is) => Some(i128::from(*is)),
        Shown::Named(_, n) => Some(i128::from(*n)),
        _ => None,
    }
}

fn fraction(directive: &Directive, x: f64) -> Vec<u8> {
    let digits = directive.precision.unwrap_or(6).min(400) as usize;
    match directive.conversion.as_str() {
        "e" | "E" => format!("{x:.digits$e}").into_bytes(),
        "f" | "F" => format!("{x:.digits$}").into_bytes(),
        _ => x.to_string().into_bytes(),
    }
}

fn digits(directive: &Directive, conversion: &str, n: i128) -> Vec<u8> {
    let bits = match (directive.length.as_str(), conversion) {
        ("hh", _) => 8,
        ("h", _) => 16,
        // As in C; a signed number keeps all of its bits, for nothing that was asked for may be lost.
        ("", "x" | "X" | "o" | "u") => 32,
        _ => 64,
    };
    let has = |flag: char| directive.flags.contains(flag);
    let low = (n as u64) << (64 - bits) >> (64 - bits);
    let (is_negative, body) = match conversion {
        "x" => (false, format!("{}{low:x}", if has('#') && low != 0 { "0x" } else { "" })),
        "X" => (false, format!("{}{low:X}", if has('#') && low != 0 { "0X" } else { "" })),
        "o" => (false, format!("{}{low:o}", if has('#') && low != 0 { "0" } else { "" })),
        "u" => (false, low.to_string()),
        _ => {
            let signed = low.cast_signed() << (64 - bits) >> (64 - bits);
            (signed < 0, signed.unsigned_abs().to_string())
        }
    };
    let body = match directive.precision {
        Some(least) => format!("{body:0>least$}", least = (least as usize).min(WIDTH_MAX)),
        None => body,
    };
    let sign = match () {
        () if is_negative => "-",
        () if has('+') && matches!(conversion, "d" | "i") => "+",
        () if has(' ') && matches!(conversion, "d" | "i") => " ",
        () => "",
    };
    let is_filled = has('0') && !has('-') && directive.precision.is_none();
    if is_filled {
        let width = (directive.width.unwrap_or(0) as usize).min(WIDTH_MAX).saturating_sub(sign.len());
        return format!("{sign}{body:0>width$}").into_bytes();
    }
    padded(directive, format!("{sign}{body}").into_bytes())
}

fn padded(directive: &Directive, body: Vec<u8>) -> Vec<u8> {
    let width = (directive.width.unwrap_or(0) as usize).min(WIDTH_MAX);
    let room = vec![b' '; width.saturating_sub(body.len())];
    if directive.flags.contains('-') { [body, room].concat() } else { [room, body].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: &str, args: &[Shown]) -> String {
        String::from_utf8(printf(format.as_bytes(), args)).unwrap()
    }

    #[test]
    fn numbers_are_cut_by_their_length_and_padded_by_their_width() {
        let n = Shown::Int(0x0012_3456_78ab_cdef);
        let all = text("%hhx %hx %x %lx %jx", &[n.clone(), n.clone(), n.clone(), n.clone(), n]);
        assert_eq!(all, "ef cdef 78abcdef 12345678abcdef 12345678abcdef");
        let five = Shown::Int(5);
        let all = text("[%3d|%-3d|%03d|%+d|% d]", &vec![five; 5]);
        assert_eq!(all, "[  5|5  |005|+5| 5]");
        assert_eq!(text("%d %lu %.3d %05d", &vec![Shown::Int(-2); 4]), "-2 18446744073709551614 -002 -0002");
        assert_eq!(text("%#x %#o %c%%", &[Shown::Int(255), Shown::Int(8), Shown::Int(65)]), "0xff 010 A%");
        assert_eq!(text("%d", &[Shown::Int(1 << 40)]), "1099511627776");
    }

    #[test]
    fn texts_bytes_and_names_are_shown() {
        let bytes = Shown::Bytes(b"a\x01".to_vec());
        let all = text(
            "%r %rx %rh|%5s|%-5s|%.2s",
            &[
                bytes.clone(),
                bytes.clone(),
                bytes,
                Shown::Text(b"abc".to_vec()),
                Shown::Text(b"abc".to_vec()),
                Shown::Text(b"abc".to_vec()),
            ],
        );
        assert_eq!(all, "a\\x01 \\x61\\x01 61 01|  abc|abc  |ab");
        let name = Shown::Named("ONE".into(), 1);
        assert_eq!(text("%s %d %p", &[name.clone(), name, Shown::Int(16)]), "ONE 1 0x10");
    }

    #[test]
    fn a_width_without_end_is_bounded() {
        assert_eq!(text("%999999999d", &[Shown::Int(1)]).len(), WIDTH_MAX);
    }
}
