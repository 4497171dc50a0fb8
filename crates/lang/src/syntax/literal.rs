//! Numbers and strings.
//!
//! For:     expressions, config values, attach points, positional parameters.
//! State:   none.
//! Context: control.
//! Keeps:   1. A number fits `i64::MIN..=u64::MAX`, or is refused.
//! Checked: tests below; tests/language.rs.

use super::cursor::{Cursor, Read};
use crate::ast::Span;

/// What each duration suffix is in nanoseconds.
const UNITS: [(&str, i128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// The number that `text` is as a whole: decimal, octal, hexadecimal, `1e6`, `1_000`, with C's or a duration's suffix.
pub(crate) fn number(text: &str) -> Option<i128> {
    let digits = text.replace('_', "");
    if text.starts_with('_') || !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        i128::from(u64::from_str_radix(without_c_suffix(hex, true), 16).ok()?)
    } else if let Some((unit, factor)) = UNITS
        .iter()
        .find(|(u, _)| digits.strip_suffix(u).is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit())))
    {
        digits.strip_suffix(unit)?.parse::<i128>().ok()?.checked_mul(*factor)?
    } else if let Some((mantissa, exponent)) = digits.split_once(['e', 'E']) {
        let exponent: u32 = exponent.parse().ok().filter(|&e| e <= 19)?;
        mantissa.parse::<i128>().ok()?.checked_mul(10i128.pow(exponent))?
    } else {
        let plain = without_c_suffix(&digits, false);
        if plain.len() > 1 && plain.starts_with('0') {
            i128::from(u64::from_str_radix(plain, 8).ok()?)
        } else {
            plain.parse::<i128>().ok()?
        }
    };
    (value <= i128::from(u64::MAX)).then_some(value)
}

/// Without `u`, `l`, `ll` in any case and order.
fn without_c_suffix(text: &str, _hex: bool) -> &str {
    let plain = text.trim_end_matches(['u', 'U', 'l', 'L']);
    if text.len() - plain.len() <= 3 { plain } else { text }
}

impl Cursor<'_> {
    /// A number, if a digit stands here.
    pub fn eat_number(&mut self) -> Read<Option<(i128, Span)>> {
        if !self.byte(0).is_ascii_digit() {
            return Ok(None);
        }
        let bytes = self.rest().as_bytes();
        let len = bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        let text = &self.rest()[..len];
        let start = self.at;
        let Some(value) = number(text) else {
            return self.error(self.span(start, start + len), format!("{text} is no valid integer"));
        };
        Ok(Some((value, self.take(len))))
    }

    /// A string literal, if a quote stands here; its escapes undone.
    pub fn eat_string(&mut self) -> Read<Option<(Vec<u8>, Span)>> {
        if self.byte(0) != b'"' {
            return Ok(None);
        }
        let start = self.at;
        let bytes = self.text.as_bytes();
        let (mut value, mut at) = (Vec::new(), start + 1);
        loop {
            match bytes.get(at) {
                None | Some(b'\n') => {
                    return self.error(self.span(start, at), "unterminated string");
                }
                Some(b'"') => break,
                Some(b'\\') => at = self.escape(at + 1, &mut value)?,
                Some(&b) => {
                    value.push(b);
                    at += 1;
                }
            }
        }
        Ok(Some((value, self.take(at + 1 - start))))
    }

    /// One escape from after its backslash on; where it ends.
    fn escape(&self, at: usize, value: &mut Vec<u8>) -> Read<usize> {
        let bytes = self.text.as_bytes();
        let radix = |from: usize, most: usize, base: u32| {
            let len = bytes[from..].iter().take(most).take_while(|b| char::from(**b).is_digit(base)).count();
            (len, u32::from_str_radix(&self.text[from..from + len], base).unwrap_or(0))
        };
        let plain = match bytes.get(at) {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'"') => b'"',
            Some(b'\\') => b'\\',
            Some(b'a') => 7,
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'v') => 11,
            Some(b'e') => 27,
            Some(b'0'..=b'7') => {
                let (len, number) = radix(at, 3, 8);
                value.push(number as u8);
                return Ok(at + len);
            }
            Some(b'x') => {
                let (len, number) = radix(at + 1, 2, 16);
                if len == 0 {
                    return self.error(self.span(at - 1, at + 1), "\\x needs hexadecimal digits");
                }
                value.push(number as u8);
                return Ok(at + 1 + len);
            }
            _ => {
                let c = self.text.get(at..).and_then(|t| t.chars().next());
                let len = c.map_or(0, char::len_utf8);
                let shown = c.map_or(String::new(), |c| c.escape_debug().to_string());
                return self
                    .error(self.span(at - 1, at + len), format!("invalid escape character '\\{shown}'"));
            }
        };
        value.push(plain);
        Ok(at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_in_every_form() {
        for (text, value) in [
            ("0", 0),
            ("1_000_123", 1_000_123),
            ("0x1F", 31),
            ("0X10", 16),
            ("0123", 83),
            ("2e3", 2000),
            ("1E6", 1_000_000),
            ("123UL", 123),
            ("0x10ull", 16),
            ("1m", 60_000_000_000),
            ("100ms", 100_000_000),
            ("2us", 2000),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(number(text), Some(value), "{text}");
        }
        for bad in ["", "_1", "1e-3", "0x", "08", "12q", "18446744073709551616", "1e99", "9999999999d"] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }
}
