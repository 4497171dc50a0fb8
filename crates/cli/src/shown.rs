//! Text of others, made harmless.
//!
//! For:     everything that this crate prints: names of functions, files and processes are the target's to choose.
//! State:   none.
//! Context: control.
//! Keeps:   S1 a line stays one line, and no character of it commands a terminal or turns the order of others round.
//!          S2 harmless text stays as it is.
//! Checked: tests below; testkit `output`.
//!
//! It is applied where lines leave (`out.rs`, `talk.rs`), not where they are made: so none is forgotten.

use crate::args::Format;
use std::borrow::Cow;

/// One line as it may be printed: what is not shown as a character is written as an escape.
pub fn shown(line: &str, format: Format) -> Cow<'_, str> {
    let is_printable = |b: u8| (b' '..=b'~').contains(&b);
    if line.bytes().all(is_printable) || line.chars().all(is_harmless) {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        match format {
            _ if is_harmless(c) => out.push(c),
            // Inside a string: JSON has such characters nowhere else.
            Format::Json => c.encode_utf16(&mut [0; 2]).iter().for_each(|u| out += &format!("\\u{u:04x}")),
            Format::Text => out += &escape(c),
        }
    }
    Cow::Owned(out)
}

fn escape(c: char) -> String {
    match c {
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        '\0'..='\u{ff}' => format!("\\x{:02x}", c as u32),
        _ => format!("\\u{{{:x}}}", c as u32),
    }
}

/// Not a control character, not one that changes the direction of others, breaks lines or takes no room.
fn is_harmless(c: char) -> bool {
    let is_format = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_holds_a_control_character_and_json_stays_json() {
        let nasty = "a\u{1b}[2J\nb\r\t\u{7f}\u{9b}31m\u{202e}evil\u{2066}\u{200b}\u{feff}\u{e0041}z";
        let text = shown(nasty, Format::Text);
        assert!(text.chars().all(is_harmless), "{text:?}");
        assert_eq!(
            text,
            "a\\x1b[2J\\nb\\r\\t\\x7f\\x9b31m\\u{202e}evil\\u{2066}\\u{200b}\\u{feff}\\u{e0041}z"
        );
        let json = serde_json::json!({"name": nasty}).to_string();
        let line = shown(&json, Format::Json);
        assert!(line.chars().all(is_harmless), "{line:?}");
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(back["name"], nasty, "nothing is lost");
    }

    #[test]
    fn harmless_text_stays_as_it_is() {
        for text in ["@[malloc]: 5", "Größe::ñ<日本語>", "std::vec<int>&&", "a\\b", "👍 \u{301}"] {
            assert!(matches!(shown(text, Format::Text), Cow::Borrowed(_)), "{text}");
        }
    }
}
