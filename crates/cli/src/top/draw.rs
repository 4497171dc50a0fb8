//! The screen.
//!
//! For:     the live view.
//! State:   none: a shot and a view in, cells out.
//! Context: control.
//! Keeps:   D1 it fits: any size from one cell on, 80 columns show all columns of numbers.
//!          D2 names of the target were made harmless before (`shown`).
//! Checked: tests below, against screens in `golden/`.

use super::flame::{blocks, root_beyond};
use super::heat::Heat;
use super::shot::{Shot, bound, cells, count, rate};
use super::view::{Column, Tab, View};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Clear, Paragraph, Row, Table, Tabs};

/// Sixteen colours at most; the terminal's own for all else.
const PLAIN: Style = Style::new();
const BOLD: Style = PLAIN.add_modifier(Modifier::BOLD);
const DIM: Style = PLAIN.add_modifier(Modifier::DIM);
const CHOSEN: Style = PLAIN.add_modifier(Modifier::REVERSED);
const ACCENT: Style = PLAIN.fg(Color::Cyan);
const WARNING: Style = PLAIN.fg(Color::Yellow);

/// Columns of all cells but the name's.
const NUMBERS: u16 = 61;

const HELP: [&str; 17] = [
    "1 to 6, Tab     functions, latency, events, health, flame graph, maps of a script",
    "up down j k     choose a function; PgUp PgDn Home End",
    "Enter           latency of the chosen function over time, and back",
    "< >, left right sort by another column;  r  the other way round",
    "/               filter by name; Enter keeps it, Esc takes it away",
    "p, space        pause: what is shown stays, counting goes on",
    "z               counts begin at 0 here; the closing report has all",
    "t               show calls of the chosen function as they happen",
    "f               draw who calls the chosen function",
    "o               switch the probes of the chosen function off, or on again",
    "s               write all that is shown to a file",
    "q, Ctrl-C       leave; the probes go, the closing report is printed",
    "",
    "average is of calls that returned; p50, p99: below this",
    "share is of the time of all functions that are shown here;",
    "a call's time includes that of calls inside of it",
    "any key goes back",
];

/// Rows of the screen that are left for functions.
pub fn rows_for_functions(height: u16) -> usize {
    usize::from(height.saturating_sub(4))
}

pub fn draw(frame: &mut Frame<'_>, shot: &Shot, view: &View) {
    let rows = [Constraint::Length(1), Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)];
    let [title, tabs, body, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(head(shot, view)), title);
    let names = Tabs::new(Tab::ALL.map(|(_, name)| name))
        .select(view.tab.number())
        .highlight_style(CHOSEN)
        .divider(" ")
        .padding("", "");
    frame.render_widget(names, tabs);
    match view.tab {
        _ if view.has_help => help(frame, body),
        Tab::Functions => functions(frame, body, shot, view),
        Tab::Heat => heat(frame, body, &shot.heat, view.is_utf8, shot.maps.is_some()),
        Tab::Events => events(frame, body, shot),
        Tab::Health => health(frame, body, shot),
        Tab::Flame => flame(frame, body, shot),
        Tab::Maps => maps(frame, body, shot, view),
    }
    frame.render_widget(Paragraph::new(last_line(view)), foot);
}

fn head(shot: &Shot, view: &View) -> Text<'static> {
    let mut spans = vec![
        Span::styled(shot.target.clone(), BOLD),
        Span::raw(format!("  {} s  {} {}/s", shot.seconds, rate(shot.per_second()), shot.what())),
    ];
    if let Some((_, overhead)) = shot.health.iter().find(|(what, _)| *what == "overhead") {
        spans.push(Span::raw(format!("  overhead {overhead}")));
    }
    if view.is_paused {
        spans.push(Span::styled("  PAUSED", WARNING));
    }
    if !view.filter.is_empty() {
        spans.push(Span::styled(format!("  /{}", view.filter), ACCENT));
    }
    Text::from(spans)
}

fn last_line(view: &View) -> Text<'static> {
    if view.is_typing {
        return Text::from(vec![
            Span::styled("/", BOLD),
            Span::raw(view.filter.clone()),
            Span::styled(" ", CHOSEN),
        ]);
    }
    if !view.note.is_empty() {
        return Text::styled(view.note.clone(), WARNING);
    }
    Text::styled("? help  q quit  < > sort  / filter  p pause  z zero  t trace  f flame  o off", DIM)
}

fn functions(frame: &mut Frame<'_>, area: Rect, shot: &Shot, view: &View) {
    let arrow = match (view.is_reversed, view.is_utf8) {
        (false, true) => "\u{2193}",
        (true, true) => "\u{2191}",
        (false, false) => "v",
        (true, false) => "^",
    };
    let title = |(column, name): (Column, &str)| {
        let is_sorted = column == view.sort;
        let text = if is_sorted { format!("{name}{arrow}") } else { name.to_owned() };
        let line = Text::styled(text, if is_sorted { BOLD } else { DIM });
        if column == Column::Name { line } else { line.right_aligned() }
    };
    let row = |i: &usize| {
        let line = &shot.lines[*i];
        let style = match (view.chosen() == Some(*i), line.per_second > 0.0) {
            (true, _) => CHOSEN,
            (false, true) => PLAIN,
            (false, false) => DIM,
        };
        let cell = |(n, text): (usize, String)| {
            let text = Text::raw(text);
            if n == 0 { text } else { text.right_aligned() }
        };
        let mut texts = cells(line);
        texts[0] = in_the_middle(&texts[0], area.width.saturating_sub(NUMBERS).into());
        Row::new(texts.into_iter().enumerate().map(cell)).style(style)
    };
    let mut widths = [Constraint::Length(8); 8];
    (widths[0], widths[7]) = (Constraint::Fill(1), Constraint::Length(6));
    let table = Table::new(view.on_screen().iter().map(row), widths).header(Row::new(Column::ALL.map(title)));
    frame.render_widget(table, area);
    if view.order.is_empty() {
        let why = match &shot.maps {
            Some(_) => OF_SCRIPT,
            None if shot.lines.is_empty() => "no function is probed",
            None => "no function fits the filter",
        };
        note(frame, area, 1, why);
    }
}

/// A name that is too long is cut in its middle: functions of one library begin alike.
fn in_the_middle(name: &str, room: usize) -> String {
    let is_wide = |name: &str| Span::raw(name.to_owned()).width() > room;
    if !is_wide(name) || room < 5 {
        return name.to_owned();
    }
    let letters: Vec<char> = name.chars().collect();
    // Letters may be two columns wide.
    let all = (0..letters.len()).rev().map(|kept| {
        let (head, tail) = (kept.div_ceil(2), kept / 2);
        letters[..head].iter().chain(&['.', '.']).chain(&letters[letters.len() - tail..]).collect()
    });
    all.skip(letters.len().saturating_sub(room)).find(|cut: &String| !is_wide(cut)).unwrap_or_default()
}

/// A row for each power of two that was hit, the longest above; the newest column on the right.
fn heat(frame: &mut Frame<'_>, area: Rect, heat: &Heat, is_utf8: bool, is_script: bool) {
    const LABEL: u16 = 9;
    let title = match heat.function {
        Some(_) => format!("{}: calls by how long they took, a column a second", heat.name),
        None if is_script => return note(frame, area, 0, OF_SCRIPT),
        None => "choose a function of the first tab".into(),
    };
    note(frame, area, 0, &title);
    let (width, height) = (area.width.saturating_sub(LABEL), area.height.saturating_sub(2));
    let Some((span, most)) = heat.span(width.into()) else {
        return note(
            frame,
            area,
            2,
            "no call has returned yet in this time; calls that are only counted have none",
        );
    };
    // Too low a screen shows the longest.
    let (low, high) = (*span.start(), *span.end());
    let low = low.max((high + 1).saturating_sub(height.into()));
    let columns = heat.columns.len().min(width.into());
    for (y, row) in (low..=high).rev().enumerate() {
        let mut spans = vec![Span::styled(format!("{:>7}  ", bound(row)), DIM)];
        spans.push(Span::raw(" ".repeat(usize::from(width) - columns)));
        let shown = heat.columns.iter().skip(heat.columns.len() - columns);
        spans.extend(shown.map(|column| shade(column[row], most, is_utf8)));
        let at = Rect { y: area.y + 1 + y as u16, height: 1, ..area };
        frame.render_widget(Paragraph::new(Text::from(spans)), at.intersection(area));
    }
    let scale = format!("the most in one place: {most}");
    note(frame, area, area.height.saturating_sub(1), &scale);
}

/// By its part of the most, in steps of a factor: one call beside a million is still seen.
fn shade(count: u64, most: u64, is_utf8: bool) -> Span<'static> {
    const COLOURS: [Color; 5] = [Color::Blue, Color::Cyan, Color::Green, Color::Yellow, Color::Red];
    const BLOCKS: [&str; 5] = ["\u{b7}", "\u{2591}", "\u{2592}", "\u{2593}", "\u{2588}"];
    const LETTERS: [&str; 5] = [".", ":", "+", "*", "#"];
    if count == 0 {
        return Span::raw(" ");
    }
    let part = (count as f64 + 1.0).ln() / (most as f64 + 1.0).ln();
    let step = ((part * 5.0).ceil() as usize).clamp(1, 5) - 1;
    let glyphs = if is_utf8 { BLOCKS } else { LETTERS };
    Span::styled(glyphs[step], PLAIN.fg(COLOURS[step]))
}

/// As the end of the run prints them.
fn maps(frame: &mut Frame<'_>, area: Rect, shot: &Shot, view: &View) {
    let Some(maps) = &shot.maps else {
        return note(frame, area, 0, "there is no script here: nanoprobe top FILE.bt -p PID shows its maps");
    };
    if maps.lines.is_empty() {
        return note(frame, area, 0, &format!("nothing is in the script's maps so far{}", maps.of));
    }
    let rows = usize::from(area.height.saturating_sub(1));
    let end = (view.line + rows).min(maps.lines.len());
    let more = maps.lines.len() - end;
    let more = if more > 0 { format!("; {more} lines more below") } else { String::new() };
    note(frame, area, 0, &format!("{}{more}", maps.head));
    for (y, line) in maps.lines.get(view.line..end).unwrap_or_default().iter().enumerate() {
        let at = Rect { y: area.y + 1 + y as u16, height: 1, ..area };
        frame.render_widget(Paragraph::new(line.as_str()), at.intersection(area));
    }
}

/// What a script has none of.
pub const OF_SCRIPT: &str = "this view is of a script, which counts in its maps: 6; what it prints: 3";

fn events(frame: &mut Frame<'_>, area: Rect, shot: &Shot) {
    let title = match &shot.traced {
        _ if shot.maps.is_some() => "what the script prints, the newest below".into(),
        Some(name) => format!("calls of {name}, the newest below; t ends this"),
        None => "t shows calls of the chosen function; for that its threads stop, twice".into(),
    };
    note(frame, area, 0, &title);
    let rows = usize::from(area.height.saturating_sub(1));
    let from = shot.events.len().saturating_sub(rows);
    for (y, event) in shot.events[from..].iter().enumerate() {
        let at = Rect { y: area.y + 1 + y as u16, height: 1, ..area };
        let event = match shot.traced {
            Some(_) => with_end(event, usize::from(area.width)),
            None => event.clone(),
        };
        frame.render_widget(Paragraph::new(event), at.intersection(area));
    }
}

/// The line of a call in so many columns: where it is too long its arguments go, and what it returned and how long it took stays.
fn with_end(call: &str, width: usize) -> String {
    let end = call.rfind(" = ").or_else(|| call.rfind(" <")).filter(|_| call.ends_with('>'));
    let Some((head, end)) = end.map(|at| call.split_at(at)) else { return call.to_owned() };
    let kept = width.saturating_sub(end.chars().count() + 2);
    if call.chars().count() <= width || kept < width / 2 {
        return call.to_owned();
    }
    head.chars().take(kept).chain("..".chars()).chain(end.chars()).collect()
}

fn health(frame: &mut Frame<'_>, area: Rect, shot: &Shot) {
    const LABEL: usize = 12;
    let lines: Vec<Text<'_>> = shot
        .health
        .iter()
        .flat_map(|(what, how)| {
            let parts = folded(how, usize::from(area.width).saturating_sub(LABEL).max(1));
            let heads = std::iter::once(*what).chain(std::iter::repeat(""));
            let line = |(head, part)| {
                Text::from(vec![Span::styled(format!("{head:<LABEL$}"), DIM), Span::raw(part)])
            };
            heads.zip(parts).map(line).collect::<Vec<_>>()
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// A text in lines of so many columns, between words where that goes.
fn folded(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().filter(|last| last.is_empty() || last.len() + 1 + word.len() <= room);
        match last {
            Some(last) if last.is_empty() => last.push_str(word),
            Some(last) => *last += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The outermost calls above; each function as wide as its share.
fn flame(frame: &mut Frame<'_>, area: Rect, shot: &Shot) {
    const COLOURS: [Color; 4] = [Color::Yellow, Color::LightRed, Color::LightYellow, Color::Red];
    let Some((name, stacks)) = &shot.flame else {
        let how = "f draws who calls the chosen function; for that its threads stop, twice";
        return note(frame, area, 0, if shot.maps.is_some() { OF_SCRIPT } else { how });
    };
    let all: u64 = stacks.values().fold(0, |sum, n| sum.saturating_add(*n));
    let height = area.height.saturating_sub(1);
    let left_out = root_beyond(stacks, height.into());
    let outermost = if left_out > 0 {
        format!("; {left_out} outermost frames, in all of them, are left out")
    } else {
        String::new()
    };
    note(frame, area, 0, &format!("who calls {name}, {} calls; f ends this{outermost}", count(all)));
    for block in blocks(stacks, left_out, area.width, height) {
        let at = Rect { x: area.x + block.x, y: area.y + 1 + block.y, width: block.width, height: 1 };
        // The same name has the same colour, whoever is beside it.
        let colour = block.name.bytes().fold(7usize, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
        let style = PLAIN.fg(Color::Black).bg(COLOURS[colour % COLOURS.len()]);
        let share = block.count as f64 / all.max(1) as f64 * 100.0;
        let text = format!(" {} {share:.0}%", block.name);
        frame.render_widget(Paragraph::new(text).style(style), at.intersection(area));
        // Where one ends and the next begins.
        let edge = Rect { width: 1, ..at }.intersection(area);
        frame.render_widget(Paragraph::new("|").style(style), edge);
    }
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP.map(Text::raw).to_vec()), area);
}

fn note(frame: &mut Frame<'_>, area: Rect, row: u16, text: &str) {
    let at = Rect { y: area.y.saturating_add(row), height: 1, ..area };
    frame.render_widget(Paragraph::new(Text::styled(text.to_owned(), DIM)), at.intersection(area));
}

#[cfg(test)]
mod tests;
