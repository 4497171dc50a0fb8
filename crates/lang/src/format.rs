//! Format strings of `printf` and its like.
//!
//! For:     the checker, which compares them with the arguments; who prints.
//! State:   none.
//! Context: control.
//! Keeps:   1. Each directive is one [`Piece::Value`], in order.
//! Checked: tests below.

/// A part of a format string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Printed as it is; `%%` is undone.
    Text(Vec<u8>),
    /// Printed by an argument.
    Value(Directive),
}

/// `%-08.3llx`
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Directive {
    /// `-`, `+`, ` `, `#`, `0`, in the order written.
    pub flags: String,
    /// At least so many columns; negative widths are the flag `-`.
    pub width: Option<u32>,
    /// After the point.
    pub precision: Option<u32>,
    /// `hh`, `h`, `l`, `ll`, `j`, `z`, `t` or nothing.
    pub length: String,
    /// `d`, `s` ...; of the three of two letters: `rh`, `rx`, `gr`.
    pub conversion: String,
    /// Bytes of the format that it takes.
    pub at: std::ops::Range<usize>,
}

/// Splits a format.
///
/// # Errors
/// A `%` that begins no directive: its bytes.
pub fn parse(format: &[u8]) -> Result<Vec<Piece>, std::ops::Range<usize>> {
    let (mut pieces, mut text, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(&byte) = format.get(at) {
        if byte != b'%' {
            text.push(byte);
            at += 1;
        } else if format.get(at + 1) == Some(&b'%') {
            text.push(b'%');
            at += 2;
        } else {
            let directive = directive(format, at).ok_or(at..at + 1)?;
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            at = directive.at.end;
            pieces.push(Piece::Value(directive));
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

fn directive(format: &[u8], start: usize) -> Option<Directive> {
    let mut at = start + 1;
    let rest = |at: usize| format.get(at..).unwrap_or_default();
    let take = |at: &mut usize, ok: fn(&u8) -> bool| {
        let n = rest(*at).iter().take_while(|b| ok(b)).count();
        *at += n;
        String::from_utf8_lossy(&format[*at - n..*at]).into_owned()
    };
    let flags = take(&mut at, |b| b"-+ #0".contains(b));
    let width = take(&mut at, u8::is_ascii_digit).parse().ok();
    let precision = (format.get(at) == Some(&b'.')).then(|| {
        at += 1;
        take(&mut at, u8::is_ascii_digit).parse().unwrap_or(0)
    });
    let length = take(&mut at, |b| b"hljzt".contains(b));
    if !["", "h", "hh", "l", "ll", "j", "z", "t"].contains(&length.as_str()) {
        return None;
    }
    let two = rest(at).get(..2).and_then(|b| std::str::from_utf8(b).ok());
    let conversion = match (two, rest(at).first()) {
        (Some(two @ ("rh" | "rx" | "gr")), _) => two.to_string(),
        (_, Some(&one)) if b"diouxXcspr".contains(&one) || b"feEgGaA".contains(&one) => {
            (one as char).to_string()
        }
        _ => return None,
    };
    at += conversion.len();
    Some(Directive { flags, width, precision, length, conversion, at: start..at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_split_into_text_and_directives() {
        let pieces = parse(b"a%%b %-08.3llx|%rh%r").unwrap();
        assert_eq!(pieces[0], Piece::Text(b"a%b ".to_vec()));
        let Piece::Value(d) = &pieces[1] else { panic!("{pieces:?}") };
        assert_eq!((d.flags.as_str(), d.width, d.precision), ("-0", Some(8), Some(3)));
        assert_eq!((d.length.as_str(), d.conversion.as_str()), ("ll", "x"));
        let conversions: Vec<_> = pieces
            .iter()
            .filter_map(|p| if let Piece::Value(d) = p { Some(d.conversion.as_str()) } else { None })
            .collect();
        assert_eq!(conversions, ["x", "rh", "r"]);
    }

    #[test]
    fn a_percent_sign_alone_is_refused_with_its_place() {
        assert_eq!(parse(b"ab%"), Err(2..3));
        assert_eq!(parse(b"%lld %!"), Err(5..6));
        assert_eq!(parse(b"%hhhd"), Err(0..1));
    }
}
