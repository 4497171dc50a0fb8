//! The page's tables.
//!
//! For:     `page`.
//! State:   none.
//! Context: control.
//! Keeps:   B1 a table that leaves rows out says how many.
//! Checked: tests below; tests of `page`.

use crate::flame::escaped;
use crate::run::{Function, Run};
use serde_json::Value;

/// A cell, and by what it is sorted if not by its text.
type Cell = (String, Option<f64>);

fn number(n: u64) -> Cell {
    (grouped(n), Some(n as f64))
}

fn nanoseconds(ns: Option<u64>) -> Cell {
    (ns.map_or_else(|| "-".into(), time), Some(ns.map_or(-1.0, |ns| ns as f64)))
}

fn text(text: &str) -> Cell {
    (text.to_owned(), None)
}

/// A table; heads that begin with a blank are those of texts. `names`: of rows that can be chosen.
fn table(heads: &[&str], rows: &[Vec<Cell>], has_names: bool, left_out: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let is_text: Vec<bool> = heads.iter().map(|head| head.starts_with(' ')).collect();
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr>");
    for (head, is_text) in heads.iter().zip(&is_text) {
        let kind = if *is_text { "sorts text" } else { "sorts" };
        out += &format!("<th class=\"{kind}\">{}</th>", escaped(head.trim()));
    }
    out += "</tr></thead><tbody>\n";
    for row in rows {
        out += &match row.first().filter(|_| has_names) {
            Some((name, _)) => format!("<tr class=\"pick\" data-name=\"{}\">", escaped(name)),
            None => "<tr>".into(),
        };
        for ((cell, by), is_text) in row.iter().zip(&is_text) {
            let by = by.map_or_else(String::new, |by| format!(" data-v=\"{by}\""));
            let kind = if *is_text { " class=\"text\"" } else { "" };
            out += &format!("<td{kind}{by}>{}</td>", escaped(cell));
        }
        out += "</tr>\n";
    }
    out += "</tbody></table></div>\n";
    if left_out > 0 {
        out += &format!(
            "<p class=\"faint\">{} more are in the recording and not on this page</p>\n",
            grouped(left_out as u64)
        );
    }
    out
}

/// Timed functions, those that took longest first.
pub fn functions(run: &Run, most: usize) -> String {
    let mut all: Vec<(&String, &Function)> = run.functions.iter().filter(|(_, f)| f.calls > 0).collect();
    all.sort_by(|a, b| b.1.total_ns.cmp(&a.1.total_ns).then_with(|| b.1.calls.cmp(&a.1.calls)));
    let sum: f64 = all.iter().map(|(_, f)| f.total_ns as f64).sum();
    let row = |(name, f): &(&String, &Function)| {
        let share = if sum > 0.0 { f.total_ns as f64 / sum * 100.0 } else { 0.0 };
        vec![
            text(name),
            number(f.calls),
            nanoseconds(Some(f.total_ns)),
            (format!("{share:.1} %"), Some(share)),
            nanoseconds(f.total_ns.checked_div(f.returned)),
            nanoseconds(f.percentile(50)),
            nanoseconds(f.percentile(90)),
            nanoseconds(f.percentile(99)),
            nanoseconds(f.percentile(100)),
        ]
    };
    let rows: Vec<Vec<Cell>> = all.iter().take(most).map(row).collect();
    let heads = [" function", "calls", "total", "share", "average", "p50 <", "p90 <", "p99 <", "longest <"];
    let shown = table(&heads, &rows, true, all.len().saturating_sub(most));
    if shown.is_empty() {
        return shown;
    }
    shown
        + "<p class=\"faint\">A call's time includes that of calls inside of it. Percentiles are the ends of their buckets.</p>\n"
}

/// Maps and counts.
pub fn maps(run: &Run) -> String {
    let mut out = String::new();
    for (name, rows) in &run.maps {
        let mut rows: Vec<Vec<Cell>> = rows.iter().map(|(key, value)| vec![text(key), cell(value)]).collect();
        let by = |row: &Vec<Cell>| row[1].1.unwrap_or(f64::NEG_INFINITY);
        rows.sort_by(|a, b| by(b).total_cmp(&by(a)));
        let table = table(&[" key", "value"], &rows, false, 0);
        if !table.is_empty() {
            out += &format!("<h3><code>{}</code></h3>{table}", escaped(name));
        }
    }
    out
}

fn cell(value: &Value) -> Cell {
    match value {
        Value::Number(n) => (n.as_u64().map_or_else(|| n.to_string(), grouped), n.as_f64()),
        Value::String(text) => (text.clone(), None),
        other => (other.to_string(), None),
    }
}

/// Calls, as they began.
pub fn calls(run: &Run, most: usize) -> String {
    let mut calls: Vec<_> = run.calls.iter().collect();
    calls.sort_by_key(|call| call.at_ns);
    let row = |call: &&crate::run::Call| {
        let args: Vec<String> = call.args.iter().map(|value| address(value)).collect();
        let said = format!("{}({})", call.name, args.join(", "));
        vec![
            (format!("{:.6}", call.at_ns as f64 / 1e9), Some(call.at_ns as f64)),
            (if call.tid == 0 { "-".into() } else { call.tid.to_string() }, Some(call.tid as f64)),
            text(&said),
            text(&call.ret.as_deref().map_or_else(|| "-".to_owned(), address)),
            nanoseconds(call.ns),
        ]
    };
    let rows: Vec<Vec<Cell>> = calls.iter().take(most).map(row).collect();
    let left_out =
        calls.len().saturating_sub(most).saturating_add(usize::try_from(run.more_calls).unwrap_or(0));
    table(&["seconds", "thread", " call", " returned", "took"], &rows, false, left_out)
}

/// Numbers as large as addresses are, as these are written.
fn address(value: &str) -> String {
    let large = value.parse().ok().filter(|n: &u64| *n > u32::MAX.into());
    large.map_or_else(|| value.to_owned(), |n| format!("{n:#x}"))
}

/// hits = handled + skipped by cause, and what became of the process.
pub fn account(run: &Run) -> String {
    let Some(receipt) = &run.receipt else { return String::new() };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut add = |what: &str, value: &Value| {
        if !value.is_null() {
            rows.push(vec![text(what), cell(value)]);
        }
    };
    add("hits", &receipt["hits"]);
    add("handled", &receipt["handled"]);
    for (cause, n) in receipt["skipped"].as_object().into_iter().flatten() {
        add(&format!("skipped: {}", cause.replace('_', " ")), n);
    }
    for (cause, n) in receipt["calls"].as_object().into_iter().flatten() {
        add(&format!("calls: {}", cause.replace('_', " ")), n);
    }
    for one in &run.beside {
        let what = one["verb"].as_str().unwrap_or_default();
        for name in ["hits", "handled"] {
            add(&format!("{what}: {name}"), &one[name]);
        }
        for (cause, n) in one["skipped"].as_object().into_iter().flatten() {
            add(&format!("{what}, skipped: {}", cause.replace('_', " ")), n);
        }
    }
    for name in ["children_hits", "damaged", "restored", "handed_over", "unloaded", "children_freed"] {
        add(&name.replace('_', " "), &receipt[name]);
    }
    for name in ["detach_verified", "memory_returned", "target_gone"] {
        let word = receipt[name].as_bool().map(|is| Value::from(if is { "yes" } else { "no" }));
        add(&name.replace('_', " "), &word.unwrap_or_default());
    }
    for (name, what) in [("detach_us", "detach took"), ("longest_stall_us", "longest stall")] {
        let us = receipt[name].as_u64().map(|us| Value::from(time(us.saturating_mul(1000))));
        add(what, &us.unwrap_or_default());
    }
    if let Some(price) = &run.price {
        for (name, value) in price.as_object().into_iter().flatten() {
            add(&format!("price: {}", name.replace('_', " ")), value);
        }
    }
    if let Some(budget) = &run.budget {
        let plain = budget.as_object().into_iter().flatten().filter(|(_, v)| v.is_number() || v.is_string());
        for (name, value) in plain {
            add(&format!("budget: {}", name.replace('_', " ")), value);
        }
    }
    table(&[" what", "value"], &rows, false, 0)
}

/// Rungs, and who was left out.
pub fn placed(run: &Run) -> String {
    let placed = &run.placed;
    let rungs: Vec<Vec<Cell>> = placed.rungs.iter().map(|(rung, n)| vec![text(rung), number(*n)]).collect();
    let left_out: Vec<Vec<Cell>> =
        placed.left_out.iter().map(|(name, why)| vec![text(name), text(why)]).collect();
    let mut out = table(&[" rung", "probes"], &rungs, false, 0);
    if !left_out.is_empty() {
        out += &format!("<h3>{} left out</h3>", grouped(left_out.len() as u64));
        out += &table(&[" function", " why"], &left_out, false, 0);
    }
    out
}

/// Digits in threes.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let first = digits.len() % 3;
    let (head, rest) = digits.split_at(first);
    let mut parts: Vec<&str> = if head.is_empty() { Vec::new() } else { vec![head] };
    parts.extend((0..rest.len() / 3).map(|i| &rest[i * 3..i * 3 + 3]));
    parts.join(",")
}

/// Nanoseconds with the unit that fits.
pub fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{} ns", grouped(ns)),
        10_000..10_000_000 => format!("{} us", grouped(ns / 1000)),
        10_000_000..10_000_000_000 => format!("{} ms", grouped(ns / 1_000_000)),
        _ => format!("{} s", grouped(ns / 1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_in_threes() {
        assert_eq!(
            [0, 12, 123, 1234, 123_456, 1_234_567].map(grouped),
            ["0", "12", "123", "1,234", "123,456", "1,234,567"]
        );
        assert_eq!([9999, 10_000, 25_000_000].map(time), ["9,999 ns", "10 us", "25 ms"]);
    }

    #[test]
    fn rows_that_are_left_out_are_counted() {
        let calls = vec![crate::Call::default(); 5];
        let run = Run { calls, more_calls: 2, ..Run::default() };
        assert!(super::calls(&run, 3).contains("4 more are in the recording"));
    }
}
