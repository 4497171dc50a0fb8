//! What is shown at one moment: data alone.
//!
//! For:     the screen, the plain print, snapshots and the end of a run.
//! State:   none beyond the moment.
//! Context: control.
//! Keeps:   nothing.
//! Checked: tests below; tests of `draw`.

use super::heat::Heat;
use super::numbers::Line;
use super::view::{Column, View};
use crate::render::time_of;
use report::Folded;
use serde_json::{Value, json};
use std::rc::Rc;

/// All that is known at one moment. While the display is paused, one is kept.
#[derive(Clone, Debug, Default)]
pub struct Shot {
    /// Name and number of the process.
    pub target: String,
    /// Since the attach.
    pub seconds: u64,
    pub lines: Vec<Line>,
    pub heat: Heat,
    /// Whose calls are shown as they happen.
    pub traced: Option<String>,
    /// The last of them.
    pub events: Vec<String>,
    /// Whose callers are drawn, and its stacks.
    pub flame: Option<(String, Rc<Folded>)>,
    /// What, and how it is.
    pub health: Vec<(&'static str, String)>,
    /// Of a script.
    pub maps: Option<Maps>,
}

/// The maps of a script, in lines.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    /// Their names, and how many elements each has.
    pub head: String,
    /// What is said if there are none.
    pub of: &'static str,
    pub lines: Vec<String>,
    /// Hits in a second.
    pub per_second: f64,
}

impl Shot {
    /// Calls in a second, of all functions.
    pub fn per_second(&self) -> f64 {
        if let Some(maps) = &self.maps {
            return maps.per_second;
        }
        self.lines.iter().map(|line| line.per_second).sum()
    }

    /// What comes so often.
    pub fn what(&self) -> &'static str {
        if self.maps.is_some() { "hits" } else { "calls" }
    }

    /// A table for people: the functions of `view`, `rows` of them at most.
    pub fn table(&self, view: &View, rows: usize) -> Vec<String> {
        let mut lines = vec![numbers(&Column::ALL.map(|(_, head)| head.to_owned()))];
        let shown = view.order.iter().filter(|i| self.lines[**i].calls > 0);
        lines.extend(shown.take(rows).map(|i| numbers(&cells(&self.lines[*i]))));
        lines
    }

    /// The same for machines, and of all functions that were called.
    pub fn json(&self) -> Value {
        let functions: Vec<Value> = self.lines.iter().filter(|line| line.calls > 0).map(line_json).collect();
        let health: serde_json::Map<String, Value> =
            self.health.iter().map(|(what, how)| ((*what).to_owned(), json!(how))).collect();
        json!({"type": "top", "data": {"seconds": self.seconds, "functions": functions, "health": health}})
    }

    /// All of it, for a file.
    pub fn text(&self, view: &View) -> Vec<String> {
        let mut all =
            vec![format!("nanoprobe top: {}, after {} s", self.target, self.seconds), String::new()];
        match &self.maps {
            Some(maps) => all.extend(maps.lines.iter().cloned()),
            None => all.extend(self.table(view, usize::MAX)),
        }
        all.push(String::new());
        all.extend(self.health.iter().map(|(what, how)| format!("{what:<12} {how}")));
        if let Some((span, _)) = self.heat.span(usize::MAX) {
            all.extend([
                String::new(),
                format!("latency of {}, calls a column, from below:", self.heat.name),
            ]);
            for row in span {
                let counts: Vec<String> = self.heat.columns.iter().map(|c| c[row].to_string()).collect();
                all.push(format!("{:>8}  {}", bound(row), counts.join(" ")));
            }
        }
        if !self.events.is_empty() {
            all.push(String::new());
            all.extend(self.events.iter().cloned());
        }
        if let Some((name, stacks)) = &self.flame {
            all.extend([String::new(), format!("who calls {name}, outermost first:")]);
            all.extend(stacks.iter().map(|(stack, n)| format!("{} {n}", stack.join(";"))));
        }
        all
    }
}

fn line_json(line: &Line) -> Value {
    let mut data = json!({"name": &*line.name, "calls": line.calls, "calls_per_second": line.per_second});
    if let Some(total) = line.total_ns {
        data["total_ns"] = json!(total);
    }
    if let Some(detail) = line.detail {
        data["average_ns"] = json!(detail.average_ns);
        data["p50_below_ns"] = json!(detail.p50_ns);
        data["p99_below_ns"] = json!(detail.p99_ns);
    }
    data["share"] = json!(line.share);
    if line.is_off {
        data["off"] = json!(true);
    }
    data
}

/// Numbers first: names may be long.
fn numbers([name, rest @ ..]: &[String; 8]) -> String {
    let mut line: String = rest.iter().map(|cell| format!("{cell:>8} ")).collect();
    line += " ";
    line + name
}

/// A function's cells, in the order of [`Column::ALL`].
pub fn cells(line: &Line) -> [String; 8] {
    let nothing = || "-".to_owned();
    let of = |what: fn(&super::numbers::Detail) -> String| line.detail.as_ref().map_or_else(nothing, what);
    [
        line.name.to_string(),
        if line.is_off { "off".into() } else { rate(line.per_second) },
        count(line.calls),
        line.total_ns.map_or_else(nothing, time_of),
        of(|d| time_of(d.average_ns)),
        of(|d| format!("<{}", time_of(d.p50_ns))),
        of(|d| format!("<{}", time_of(d.p99_ns))),
        format!("{:.1}%", line.share * 100.0),
    ]
}

/// Three to five digits, with a unit.
pub fn count(n: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    if n < 100_000 {
        return n.to_string();
    }
    let (mut value, mut unit) = (n as f64 / 1e3, 0);
    while value >= 999.5 && unit < UNITS.len() - 1 {
        (value, unit) = (value / 1e3, unit + 1);
    }
    let digits = if value < 99.95 { 1 } else { 0 };
    format!("{value:.digits$}{}", UNITS[unit])
}

/// The same of what may be less than one.
pub fn rate(per_second: f64) -> String {
    match per_second {
        none if none <= 0.0 => "0".into(),
        few if few < 9.95 => format!("{few:.1}"),
        many => count(many.round() as u64),
    }
}

/// Where a row of the heat map begins.
pub fn bound(row: usize) -> String {
    let ns = row.checked_sub(1).map_or(0, |bits| 1u64 << bits.min(62));
    let units = [(1u64 << 30, "s"), (1 << 20, "ms"), (1 << 10, "us")];
    match units.iter().find(|(size, _)| ns >= *size) {
        Some((size, unit)) => format!("{} {unit}", ns / size),
        None => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        let shown = [0, 99_999, 100_000, 999_499, 999_500, 12_345_678, u64::MAX].map(count);
        assert_eq!(shown, ["0", "99999", "100K", "999K", "1.0M", "12.3M", "18.4E"]);
        assert_eq!([0.0, 0.25, 9.94, 9.96, 1e7].map(rate), ["0", "0.2", "9.9", "10", "10.0M"]);
        let line = Line {
            per_second: 1e18,
            calls: u64::MAX,
            total_ns: Some(u64::MAX),
            share: 1.0,
            ..Line::default()
        };
        assert!(cells(&line)[1..].iter().all(|cell| cell.len() <= 13), "{:?}", cells(&line));
    }

    #[test]
    fn rows_begin_at_powers_of_two() {
        assert_eq!(
            [0, 1, 2, 10, 11, 21, 31, 41].map(bound),
            ["0 ns", "1 ns", "2 ns", "512 ns", "1 us", "1 ms", "1 s", "1024 s"]
        );
    }
}
