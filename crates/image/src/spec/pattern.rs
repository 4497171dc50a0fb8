//! Patterns for names: exact, glob, regular expression.
//!
//! For:     `select`.
//! State:   a compiled expression.
//! Context: control.
//! Keeps:   G1 a name without `*`, `?` or `[...]` matches itself alone.
//!          G2 matching takes time linear in the name.
//! Checked: tests below.

use std::fmt;

use regex::Regex;

/// Which names are meant.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Exact,
    Glob(Regex),
    Regex(Regex),
}

impl Pattern {
    /// The names that a glob describes: `*` any text, `?` one character, `[a-z]` one of these.
    ///
    /// `[]` and a bracket that is not closed stand for themselves, so that `operator[]` can be written.
    pub fn glob(text: &str) -> Pattern {
        let (expression, is_glob) = expression(text);
        let matcher = match Regex::new(&expression) {
            Ok(regex) if is_glob => Matcher::Glob(regex),
            _ => Matcher::Exact,
        };
        Pattern { text: text.to_owned(), matcher }
    }

    /// The names in which a regular expression finds something.
    ///
    /// # Errors
    /// The expression cannot be compiled.
    pub fn regex(text: &str) -> Result<Pattern, regex::Error> {
        Ok(Pattern { text: text.to_owned(), matcher: Matcher::Regex(Regex::new(text)?) })
    }

    /// As it was written, without quotes or slashes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it can match one name alone.
    pub fn is_exact(&self) -> bool {
        matches!(self.matcher, Matcher::Exact)
    }

    /// Whether it is a glob.
    pub fn is_glob(&self) -> bool {
        matches!(self.matcher, Matcher::Glob(_))
    }

    /// Whether every name is meant, so that none needs to be looked at.
    pub(crate) fn fits_all(&self) -> bool {
        self.is_glob() && self.text.bytes().all(|b| b == b'*')
    }

    /// Whether `name` is meant.
    pub fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::Exact => self.text == name,
            Matcher::Glob(regex) | Matcher::Regex(regex) => regex.is_match(name),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.matcher {
            Matcher::Regex(_) => write!(f, "/{}/", self.text),
            _ => f.write_str(&self.text),
        }
    }
}

/// A glob as a regular expression, and whether it differs from plain text.
///
/// Crates for globs treat `{}` and `**` specially, which names of closures and pointers are full of.
fn expression(glob: &str) -> (String, bool) {
    let mut out = String::from("^(?s:");
    let mut is_glob = false;
    let mut rest = glob;
    while let Some(c) = rest.chars().next() {
        let mut len = c.len_utf8();
        match c {
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            '[' => match class(rest) {
                Some((class, class_len)) => {
                    out.push_str(&class);
                    len = class_len;
                }
                None => out.push_str("\\["),
            },
            _ => out.push_str(&regex::escape(&rest[..len])),
        }
        is_glob |= matches!(c, '*' | '?') || c == '[' && len > 1;
        rest = &rest[len..];
    }
    out.push_str(")$");
    (out, is_glob)
}

/// A bracket expression at the start of `rest` as a regular expression, and its length.
fn class(rest: &str) -> Option<(String, usize)> {
    let len = rest[1..].find(']')? + 1;
    let inner = &rest[1..len];
    let (negation, members) = match inner.strip_prefix(['!', '^']) {
        Some(members) => ("^", members),
        None => ("", inner),
    };
    if members.is_empty() {
        return None;
    }
    let mut class = format!("[{negation}");
    for c in members.chars() {
        if matches!(c, '[' | '\\' | '^' | '&' | '~') {
            class.push('\\');
        }
        class.push(c);
    }
    class.push(']');
    Regex::new(&class).ok()?;
    Some((class, len + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        for (glob, yes, no) in [
            ("mem*", "memcpy", "wmemcpy"),
            ("*alloc", "malloc", "allocate"),
            ("str?py", "strcpy", "strncpy"),
            ("str[a-c]at", "strcat", "strdat"),
            ("str[!c]at", "strxat", "strcat"),
            ("a.b", "a.b", "axb"),
            ("f({closure#0})*", "f({closure#0})::x", "fclosure#0"),
            ("char**", "char", "int"),
        ] {
            let pattern = Pattern::glob(glob);
            assert!(pattern.matches(yes), "{glob} {yes}");
            assert!(!pattern.matches(no), "{glob} {no}");
            assert!(!pattern.fits_all(), "{glob}");
        }
        assert!(Pattern::glob("*").fits_all() && Pattern::glob("**").fits_all());
        assert!(!Pattern::glob("").fits_all());
    }

    #[test]
    fn brackets_that_are_no_class_stand_for_themselves() {
        assert!(Pattern::glob("operator[]").is_exact());
        assert!(Pattern::glob("a[b").is_exact());
        assert!(Pattern::glob("a[z-a]").matches("a[z-a]"));
    }

    #[test]
    fn a_regular_expression_finds_inside_names() {
        let pattern = Pattern::regex("^mem(cpy|set)").unwrap();
        assert!(pattern.matches("memcpy_x") && !pattern.matches("wmemcpy"));
        assert!(Pattern::regex("(").is_err());
    }
}
