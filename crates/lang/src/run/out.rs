//! Where output goes, as text or as JSON lines.
//!
//! For:     the machine.
//! State:   the stream and what waits to be written to it.
//! Context: control.
//! Keeps:   W1 a write error is kept and told at the end.
//!          W2 on a terminal, text that came from elsewhere than the script shows its control characters as escapes; a pipe or
//!             a file gets the bytes.
//! Checked: tests/output.rs.

use super::show::quoted;
use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

/// How output is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

/// When output is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffering {
    /// At once.
    None,
    /// When a line is whole.
    #[default]
    Line,
    /// When there is much.
    Full,
}

/// Output waits up to so many bytes.
const FULL: usize = 1 << 16;

/// The stream.
pub struct Out {
    to: Box<dyn Write>,
    /// Text or JSON.
    pub format: Format,
    buffering: Buffering,
    is_terminal: bool,
    waiting: Vec<u8>,
    failed: Option<io::Error>,
}

impl Out {
    /// `is_terminal`: foreign control characters are shown as escapes.
    pub fn new(to: Box<dyn Write>, format: Format, buffering: Buffering, is_terminal: bool) -> Out {
        Out { to, format, buffering, is_terminal, waiting: Vec::new(), failed: None }
    }

    /// Text as it is.
    pub fn raw(&mut self, text: &[u8]) {
        self.waiting.extend_from_slice(text);
        let is_due = match self.buffering {
            Buffering::None => true,
            Buffering::Line => text.contains(&b'\n'),
            Buffering::Full => false,
        };
        if is_due || self.waiting.len() >= FULL {
            self.flush();
        }
    }

    /// A value's text made fit for where it goes.
    pub fn foreign(&self, text: Vec<u8>) -> Vec<u8> {
        let is_harmless = |b: &u8| *b >= b' ' && *b != 0x7f || *b == b'\n' || *b == b'\t';
        if !self.is_terminal || text.iter().all(|b| is_harmless(b) && b.is_ascii()) {
            return text;
        }
        let mut out = String::new();
        for c in String::from_utf8_lossy(&text).chars() {
            match c {
                '\n' | '\t' => out.push(c),
                c if c.is_control() || is_invisible(c) => out += &format!("\\x{{{:x}}}", c as u32),
                c => out.push(c),
            }
        }
        out.into_bytes()
    }

    /// A JSON line.
    pub fn line(&mut self, kind: &str, data: &str) {
        self.raw(format!("{{\"type\": \"{kind}\", \"data\": {data}}}\n").as_bytes());
    }

    /// Text: as it is, or as a JSON line of a kind.
    pub fn text(&mut self, kind: &str, text: &[u8]) {
        match self.format {
            Format::Text => self.raw(text),
            Format::Json => self.line(kind, &quoted(text)),
        }
    }

    /// Writes what waits.
    pub fn flush(&mut self) {
        if self.failed.is_none() && !self.waiting.is_empty() {
            let done = self.to.write_all(&self.waiting).and_then(|()| self.to.flush());
            self.failed = done.err();
        }
        self.waiting.clear();
    }

    /// The first write error, if there was one.
    pub fn failure(&mut self) -> Option<io::Error> {
        self.flush();
        self.failed.take()
    }

    /// Whether writing has failed: there is nobody to print for.
    pub fn is_broken(&self) -> bool {
        self.failed.is_some()
    }
}

/// Characters that change the direction of others or take no room.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A place that keeps what is printed; copies of it are the same place.
#[derive(Clone, Debug, Default)]
pub struct Kept(Rc<RefCell<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Kept {
    /// What was printed so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.borrow().clone()
    }

    /// The same; bytes that are no text are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.borrow()).into_owned()
    }
}
