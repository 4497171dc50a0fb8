//! The texts that a program came from, and places in them.
//!
//! For:     every error, warning and run-time message that names a place.
//! State:   the texts, by [`FileId`]; the first is the script, the others its imports.
//! Context: control.
//! Keeps:   1. A [`Span`] that the parser made lies in its file's text.
//! Checked: tests/check.rs (lines, columns, carets).

/// Which text of [`Sources`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct FileId(pub u16);

/// Bytes `start..end` of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
}

impl Span {
    /// From this one's first byte to `other`'s last.
    pub fn to(self, other: Span) -> Span {
        Span { file: self.file, start: self.start, end: other.end.max(self.start) }
    }
}

/// Line and column of a byte, both from 1. Columns count bytes, as bpftrace does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// One text with the name that messages give it (`stdin` for `-e`).
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// As messages name it.
    pub name: String,
    /// All of it.
    pub text: String,
}

/// The script and what it imports.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: Vec<SourceFile>,
}

impl Sources {
    /// Adds a text.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> FileId {
        self.files.push(SourceFile { name: name.into(), text: text.into() });
        FileId((self.files.len() - 1) as u16)
    }

    /// The file, or `None` if there is none of that number.
    pub fn file(&self, id: FileId) -> Option<&SourceFile> {
        self.files.get(usize::from(id.0))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The text of a span, empty if it lies outside.
    pub fn text(&self, span: Span) -> &str {
        self.file(span.file).and_then(|f| f.text.get(span.start as usize..span.end as usize)).unwrap_or("")
    }

    /// Line and column of a byte.
    pub fn place(&self, file: FileId, at: u32) -> Place {
        let text = self.file(file).map_or("", |f| f.text.as_str());
        let before = &text.as_bytes()[..(at as usize).min(text.len())];
        let line = before.iter().filter(|&&b| b == b'\n').count() as u32 + 1;
        let column = before.iter().rev().take_while(|&&b| b != b'\n').count() as u32 + 1;
        Place { line, column }
    }

    /// A line without its end, from 1.
    pub fn line(&self, file: FileId, line: u32) -> &str {
        let text = self.file(file).map_or("", |f| f.text.as_str());
        text.split('\n').nth(line.saturating_sub(1) as usize).unwrap_or("")
    }

    /// `stdin:1:9-12`, or `stdin:1-3` for a span over several lines.
    pub fn at(&self, span: Span) -> String {
        let name = self.file(span.file).map_or("", |f| f.name.as_str());
        let (from, to) = (self.place(span.file, span.start), self.place(span.file, span.end));
        if from.line == to.line {
            format!("{name}:{}:{}-{}", from.line, from.column, to.column)
        } else {
            format!("{name}:{}-{}", from.line, to.line)
        }
    }
}
