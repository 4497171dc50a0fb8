//! Errors and warnings with their place.
//!
//! For:     who shows them; run-time warnings use the same form.
//! State:   none.
//! Context: control.
//! Keeps:   1. The form is bpftrace's: place, level, message; the line of the script; the caret line; hints.
//! Checked: tests/check.rs.

use crate::source::{Sources, Span};

/// How bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The program is refused.
    Error,
    /// It runs, but not as it may have been meant.
    Warning,
}

/// One error or warning.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// How bad.
    pub level: Level,
    /// Where; `None` if it is no matter of the text.
    pub span: Option<Span>,
    /// What and why.
    pub message: String,
    /// What may cure it.
    pub hints: Vec<String>,
    /// From the innermost macro to the outermost call: how the place was reached.
    pub calls: Vec<Span>,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            level: Level::Error,
            span: Some(span),
            message: message.into(),
            hints: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// A warning at a place.
    pub fn warning(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic { level: Level::Warning, ..Diagnostic::error(span, message) }
    }

    /// The same with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hints.push(hint.into());
        self
    }

    /// The lines that are shown, each with its end.
    pub fn show(&self, sources: &Sources) -> String {
        let level = if self.level == Level::Error { "ERROR" } else { "WARNING" };
        let Some(span) = self.span else {
            return self.hints.iter().fold(format!("{level}: {}\n", self.message), |text, hint| {
                text + &format!("HINT: {hint}\n")
            });
        };
        let mut text = format!("{}: {level}: {}\n", sources.at(span), self.message);
        text += &excerpt(sources, span);
        for call in &self.calls {
            text += &format!("{}: ERROR: expanded from\n", sources.at(*call));
            text += &excerpt(sources, *call);
        }
        for hint in &self.hints {
            text += &format!("HINT: {hint}\n");
        }
        text
    }
}

/// The line of a place, and `~` under it.
fn excerpt(sources: &Sources, span: Span) -> String {
    let (from, to) = (sources.place(span.file, span.start), sources.place(span.file, span.end));
    if from.line != to.line {
        return String::new();
    }
    let line = sources.line(span.file, from.line);
    // Tabs are kept so that the carets stand below what they mark.
    let blank: String =
        line.chars().take(from.column as usize - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let tildes = "~".repeat((to.column.saturating_sub(from.column)).max(1) as usize);
    format!("{line}\n{blank}{tildes}\n")
}
