//! The last calls of one function, as `trace` shows them.
//!
//! For:     the live view.
//! State:   a session of its own, beside the one that counts; its last lines.
//! Context: control.
//! Keeps:   L1 its hits are not in the report: it has its own session, which leaves with it.
//! Checked: testkit `view`.

use crate::args::{Format, Shown};
use crate::shown::shown;
use crate::trace::Calls;
use session::Session;
use std::collections::VecDeque;

/// More than any screen has rows.
const LINES_MAX: usize = 256;

pub struct Tail {
    pub session: Session,
    pub name: String,
    calls: Calls,
    lines: VecDeque<String>,
}

impl Tail {
    pub fn of(session: Session, name: String) -> Tail {
        let shown = Shown { arguments: 3, ..Shown::default() };
        let calls = Calls::of(&session, shown, Format::Text);
        Tail { session, name, calls, lines: VecDeque::new() }
    }

    /// Takes what has ended since the last look.
    pub fn look(&mut self) {
        self.calls.take(&self.session);
        while let Some(lines) = self.calls.lines(&self.session) {
            let skipped = lines.len().saturating_sub(LINES_MAX);
            let lines = lines.iter().skip(skipped);
            self.lines.extend(lines.map(|line| shown(line, Format::Text).into_owned()));
        }
        let over = self.lines.len().saturating_sub(LINES_MAX);
        self.lines.drain(..over);
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }

    /// Events written, and lost because nobody reads so fast.
    pub fn events(&self) -> (u64, u64) {
        self.session.events()
    }
}
