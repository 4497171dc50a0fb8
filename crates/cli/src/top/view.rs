//! What the person at the terminal has chosen, and what a key does to it.
//!
//! For:     the live view.
//! State:   the tab, the order, the filter, the selected function.
//! Context: control. No clock, no terminal, no target: keys in, wishes out.
//! Keeps:   V1 the selection stays on its function, however the order changes.
//! Checked: tests below.

use super::keys::Key;
use super::numbers::Line;
use std::cmp::Ordering;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    #[default]
    Functions,
    Heat,
    Events,
    Health,
    Flame,
    Maps,
}

impl Tab {
    pub const ALL: [(Tab, &str); 6] = [
        (Tab::Functions, "1 functions"),
        (Tab::Heat, "2 latency"),
        (Tab::Events, "3 events"),
        (Tab::Health, "4 health"),
        (Tab::Flame, "5 flame"),
        (Tab::Maps, "6 maps"),
    ];

    pub fn number(self) -> usize {
        Tab::ALL.iter().position(|(tab, _)| *tab == self).unwrap_or(0)
    }

    fn by_number(number: usize) -> Tab {
        Tab::ALL[number % Tab::ALL.len()].0
    }
}

/// What functions are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    Name,
    #[default]
    Rate,
    Calls,
    Total,
    Average,
    P50,
    P99,
    Share,
}

impl Column {
    pub const ALL: [(Column, &str); 8] = [
        (Column::Name, "function"),
        (Column::Rate, "calls/s"),
        (Column::Calls, "calls"),
        (Column::Total, "total"),
        (Column::Average, "average"),
        (Column::P50, "p50"),
        (Column::P99, "p99"),
        (Column::Share, "share"),
    ];

    /// It needs the buckets.
    pub fn is_detail(self) -> bool {
        matches!(self, Column::Average | Column::P50 | Column::P99)
    }

    fn step(self, by: usize) -> Column {
        let at = Column::ALL.iter().position(|(column, _)| *column == self).unwrap_or(0);
        Column::ALL[(at + by) % Column::ALL.len()].0
    }

    /// The most first; names from a.
    fn compare(self, a: &Line, b: &Line) -> Ordering {
        let detail = |line: &Line| line.detail.unwrap_or_default();
        match self {
            Column::Name => by_name(a, b),
            Column::Rate => b.per_second.total_cmp(&a.per_second),
            Column::Calls => b.calls.cmp(&a.calls),
            Column::Total => b.total_ns.cmp(&a.total_ns),
            Column::Average => detail(b).average_ns.cmp(&detail(a).average_ns),
            Column::P50 => detail(b).p50_ns.cmp(&detail(a).p50_ns),
            Column::P99 => detail(b).p99_ns.cmp(&detail(a).p99_ns),
            Column::Share => b.share.total_cmp(&a.share),
        }
    }
}

fn by_name(a: &Line, b: &Line) -> Ordering {
    a.rank.cmp(&b.rank).then_with(|| a.name.cmp(&b.name))
}

/// What a key asks for that the view cannot do by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Quit,
    /// Counts begin at 0.
    Zero,
    /// All that is shown goes to a file.
    Snapshot,
    /// Calls of the selected function are shown as they happen, or not any more.
    Trace,
    /// Who calls the selected function is drawn, or not any more.
    Flame,
    /// The probes of the selected function are switched off, or on again.
    Switch,
    /// All of the screen anew.
    Redraw,
}

#[derive(Clone, Debug, Default)]
pub struct View {
    pub tab: Tab,
    pub sort: Column,
    pub is_reversed: bool,
    pub filter: String,
    /// Characters go to the filter.
    pub is_typing: bool,
    pub is_paused: bool,
    pub has_help: bool,
    /// Number of a function; the first row until somebody chooses.
    pub selected: Option<usize>,
    /// The first row that is shown.
    pub top: usize,
    /// Rows that are shown.
    pub height: usize,
    /// The first line of the maps that is shown.
    pub line: usize,
    /// Lines that the maps have.
    pub lines: usize,
    /// What was done last, or cannot be done.
    pub note: String,
    /// The terminal shows characters beyond ASCII.
    pub is_utf8: bool,
    /// Functions in the order of the screen.
    pub order: Vec<usize>,
    /// Functions that keep their row, whatever they count, until somebody asks for another order.
    pub pinned: BTreeMap<usize, usize>,
    /// Whether `order` is from behind.
    pub was_reversed: bool,
    /// What the pins are of.
    pub pinned_by: (Column, bool, String),
}

impl View {
    /// Sorts and filters; moves what is shown so that the selected function is in it.
    pub fn arrange(&mut self, lines: &[Line], height: usize) {
        let wanted = self.filter.to_lowercase();
        let fits = |i: &usize| wanted.is_empty() || lines[*i].name.to_lowercase().contains(&wanted);
        // What was in order is nearly so again, which sorts at the price of a look.
        if wanted.is_empty() && self.order.len() == lines.len() {
            if self.was_reversed {
                self.order.reverse();
            }
        } else {
            self.order = (0..lines.len()).filter(fits).collect();
        }
        self.was_reversed = self.is_reversed;
        let sort = self.sort;
        self.order.sort_by(|a, b| {
            sort.compare(&lines[*a], &lines[*b]).then_with(|| by_name(&lines[*a], &lines[*b]))
        });
        if self.is_reversed {
            self.order.reverse();
        }
        self.keep_pinned();
        self.height = height.max(1);
        let at = self.place();
        self.top = self.top.min(at).max((at + 1).saturating_sub(self.height));
        self.top = self.top.min(self.order.len().saturating_sub(self.height));
    }

    /// Has the selected function stay in its row: its counts are about to stop, or to begin again.
    pub fn pin(&mut self) {
        if let Some(function) = self.chosen() {
            self.pinned_by = (self.sort, self.is_reversed, self.filter.clone());
            self.pinned.insert(function, self.place());
        }
    }

    /// Puts the pinned functions into their rows, from above.
    fn keep_pinned(&mut self) {
        if self.pinned_by != (self.sort, self.is_reversed, self.filter.clone()) {
            return self.pinned.clear();
        }
        let here = self.order.iter().copied().filter(|f| self.pinned.contains_key(f));
        let mut rows: Vec<(usize, usize)> = here.map(|f| (self.pinned[&f], f)).collect();
        rows.sort_unstable();
        self.order.retain(|f| !self.pinned.contains_key(f));
        for (row, function) in rows {
            self.order.insert(row.min(self.order.len()), function);
        }
    }

    /// Which row is selected.
    pub fn place(&self) -> usize {
        let at = self.selected.and_then(|f| self.order.iter().position(|i| *i == f));
        at.unwrap_or(0)
    }

    /// The function whose row is selected.
    pub fn chosen(&self) -> Option<usize> {
        self.order.get(self.place()).copied()
    }

    /// The functions that are on the screen.
    pub fn on_screen(&self) -> &[usize] {
        let end = (self.top + self.height).min(self.order.len());
        self.order.get(self.top..end).unwrap_or_default()
    }

    pub fn press(&mut self, key: Key) -> Option<Wish> {
        self.note.clear();
        match key {
            Key::Interrupt => return Some(Wish::Quit),
            Key::Redraw => return Some(Wish::Redraw),
            _ if self.is_typing => self.type_in(key),
            _ if self.has_help => self.has_help = false,
            Key::Char(c) => return self.letter(c),
            Key::Escape => self.filter.clear(),
            Key::Tab => self.go(Tab::by_number(self.tab.number() + 1)),
            Key::BackTab => self.go(Tab::by_number(self.tab.number() + Tab::ALL.len() - 1)),
            Key::Enter => self.go(if self.tab == Tab::Functions { Tab::Heat } else { Tab::Functions }),
            Key::Left => self.sort = self.sort.step(Column::ALL.len() - 1),
            Key::Right => self.sort = self.sort.step(1),
            Key::Up => self.select(|at, _| at.saturating_sub(1)),
            Key::Down => self.select(|at, _| at + 1),
            Key::PageUp => self.select(|at, page| at.saturating_sub(page)),
            Key::PageDown => self.select(|at, page| at + page),
            Key::Home => self.select(|_, _| 0),
            Key::End => self.select(|_, _| usize::MAX),
            Key::Backspace => {}
        }
        None
    }

    fn letter(&mut self, c: char) -> Option<Wish> {
        match c {
            'q' => return Some(Wish::Quit),
            'z' => return Some(Wish::Zero),
            's' => return Some(Wish::Snapshot),
            't' => return Some(Wish::Trace),
            'f' => return Some(Wish::Flame),
            'o' => return Some(Wish::Switch),
            'p' | ' ' => self.is_paused = !self.is_paused,
            'r' => self.is_reversed = !self.is_reversed,
            '/' => self.is_typing = true,
            '?' | 'h' => self.has_help = true,
            '<' => self.sort = self.sort.step(Column::ALL.len() - 1),
            '>' => self.sort = self.sort.step(1),
            'k' => self.select(|at, _| at.saturating_sub(1)),
            'j' => self.select(|at, _| at + 1),
            '1'..='6' => self.go(Tab::by_number(c as usize - '1' as usize)),
            _ => self.note = format!("no key '{c}': ? shows all"),
        }
        None
    }

    fn type_in(&mut self, key: Key) {
        match key {
            Key::Char(c) => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            Key::Escape => {
                self.filter.clear();
                self.is_typing = false;
            }
            _ => self.is_typing = false,
        }
    }

    fn go(&mut self, tab: Tab) {
        self.tab = tab;
        // What the others show is of one function: it does not change with the order any more.
        self.selected = self.chosen();
    }

    fn select(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        if self.tab == Tab::Maps {
            self.line = to(self.line, self.height).min(self.lines.saturating_sub(self.height));
            return;
        }
        let last = self.order.len().saturating_sub(1);
        let at = to(self.place(), self.height).min(last);
        self.selected = self.order.get(at).copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Line> {
        let line = |name: &str, calls| Line { name: name.into(), calls, ..Line::default() };
        vec![line("free", 5), line("malloc", 9), line("calloc", 9), line("read", 1)]
    }

    fn view(keys: &str) -> View {
        let mut view = View { sort: Column::Calls, ..View::default() };
        view.arrange(&lines(), 2);
        for c in keys.chars() {
            view.press(if c == '\n' { Key::Enter } else { Key::Char(c) });
            view.arrange(&lines(), 2);
        }
        view
    }

    #[test]
    fn the_most_come_first_and_equals_by_name() {
        assert_eq!(view("").order, [2, 1, 0, 3]);
        assert_eq!(view("r").order, [3, 0, 1, 2]);
        assert_eq!(view("<<").order, [2, 0, 1, 3], "by name");
    }

    #[test]
    fn the_selection_stays_on_its_function_and_on_the_screen() {
        let mut view = view("jj");
        assert_eq!((view.chosen(), view.top), (Some(0), 1));
        view.press(Key::Char('r'));
        view.arrange(&lines(), 2);
        assert_eq!((view.chosen(), view.place(), view.top), (Some(0), 1, 1));
        view.press(Key::End);
        view.arrange(&lines(), 2);
        assert_eq!((view.chosen(), view.on_screen()), (Some(2), &[1, 2][..]));
        view.arrange(&[], 2);
        assert_eq!((view.chosen(), view.on_screen()), (None, &[][..]));
    }

    #[test]
    fn what_is_pinned_stays_in_its_row_until_another_order_is_asked_for() {
        let mut view = view("j");
        assert_eq!((view.order.as_slice(), view.chosen()), (&[2, 1, 0, 3][..], Some(1)));
        view.pin();
        let mut later = lines();
        later[1].calls = 0;
        view.arrange(&later, 2);
        assert_eq!((view.order.as_slice(), view.chosen(), view.place()), (&[2, 1, 0, 3][..], Some(1), 1));
        // The first of all others may change.
        later[3].calls = 99;
        view.arrange(&later, 2);
        assert_eq!(view.order, [3, 1, 2, 0]);
        view.press(Key::Char('r'));
        view.arrange(&later, 2);
        assert_eq!(view.order, [1, 0, 2, 3], "the last, reversed");
        view.press(Key::Char('r'));
        view.arrange(&later, 2);
        assert_eq!(view.order, [3, 2, 0, 1], "it has no calls any more");
    }

    #[test]
    fn what_is_typed_filters_until_enter_and_escape_takes_it_away() {
        let mut view = view("/LOC\nq");
        assert_eq!((view.filter.as_str(), view.order.as_slice()), ("LOC", &[2, 1][..]));
        assert_eq!(view.press(Key::Char('q')), Some(Wish::Quit));
        view.press(Key::Escape);
        assert!(view.filter.is_empty());
        view.press(Key::Char('/'));
        assert_eq!(view.press(Key::Char('q')), None, "a letter of the filter");
        assert_eq!(view.press(Key::Interrupt), Some(Wish::Quit));
    }
}
