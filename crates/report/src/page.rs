//! A run as one HTML page that needs nothing else.
//!
//! For:     `nanoprobe report`.
//! State:   none.
//! Context: control.
//! Keeps:   G1 it loads nothing: its own policy forbids it.
//!          G2 names of the target are text, in markup, in attributes and in the script's data.
//!          G3 what was not recorded has no section; what does not fit is told with its number.
//! Checked: tests below; `tests/browser.rs` in a browser.
//!
//! - [`tables`] rows of numbers
//! - [`bars`] histograms

mod bars;
mod tables;

use crate::flame::{self, escaped};
use crate::moment::moment;
use crate::run::Run;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// A page with more becomes slow to open.
const CALLS_SHOWN: usize = 2000;
const FUNCTIONS_SHOWN: usize = 2000;
const HISTOGRAMS_SHOWN: usize = 24;
const HEATS_SHOWN: usize = 200;

/// The page.
pub fn html(run: &Run) -> String {
    let mut out = String::new();
    let title = escaped(&run.title());
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src \
         'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} - nanoprobe</title>\n<style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
    );
    about(run, &mut out);
    cards(run, &mut out);
    section(&mut out, "Functions", &tables::functions(run, FUNCTIONS_SHOWN));
    heat(run, &mut out);
    section(&mut out, "Histograms", &bars::all(run, HISTOGRAMS_SHOWN));
    section(&mut out, "Maps", &tables::maps(run));
    if !run.stacks.is_empty() {
        let graph = flame::element(&run.folded(), None, "hits by stack: click to zoom, Escape to go back");
        section(&mut out, "Flame graph", &graph);
    }
    section(&mut out, "Calls", &tables::calls(run, CALLS_SHOWN));
    printed(run, &mut out);
    section(&mut out, "Account", &tables::account(run));
    section(&mut out, "What was probed", &tables::placed(run));
    let data = json!({"columns": times(run), "heat": cells(run)}).to_string();
    let data = data.replace('<', "\\u003c");
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{data}</script>\n<script>{SCRIPT}</script>\n</body></html>\n"
    );
    out
}

fn section(out: &mut String, title: &str, content: &str) {
    if !content.is_empty() {
        let _ = write!(out, "<section><h2>{title}</h2>\n{content}</section>\n");
    }
}

fn about(run: &Run, out: &mut String) {
    let about = &run.about;
    if !about.arguments.is_empty() {
        let _ = writeln!(out, "<p><code>{}</code></p>", escaped(&about.arguments.join(" ")));
    }
    let mut parts = Vec::new();
    if !about.command.is_empty() {
        parts.push(format!("recorded by <code>{}</code>", escaped(&about.command.join(" "))));
    }
    if let Some(began) = about.began {
        parts.push(moment(Duration::try_from_secs_f64(began).unwrap_or_default(), 0));
    }
    if !about.kernel.is_empty() {
        parts.push(escaped(&about.kernel));
    }
    if let Some(cpus) = about.cpus {
        parts.push(format!("{cpus} CPUs"));
    }
    if !about.version.is_empty() {
        parts.push(format!("nanoprobe {}", escaped(&about.version)));
    }
    let _ = writeln!(out, "<p class=\"faint\">{}</p>", parts.join(" · "));
    if run.is_cut || run.receipt.is_none() {
        let _ = writeln!(
            out,
            "<p class=\"warn\">The recording has no end: the run was killed, or is still on. What is here is what was written.</p>"
        );
    }
}

/// Who was seen in part: no figure of theirs is of all calls.
fn in_part(run: &Run, out: &mut String) {
    const SHOWN: usize = 8;
    let all = run.seen_in_part();
    if all.is_empty() {
        return;
    }
    let names: Vec<String> =
        all.iter().take(SHOWN).map(|(name, part)| format!("{} {}", escaped(name), escaped(part))).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!(" and {more} others") };
    let _ = writeln!(
        out,
        "<p class=\"warn\">A budget was kept: these functions were seen for a part of the time, and calls, times and columns are of the \
         hits that were seen: {}{more}.</p>",
        names.join(", ")
    );
}

fn cards(run: &Run, out: &mut String) {
    in_part(run, out);
    let mut cards: Vec<(String, &str)> = Vec::new();
    if let Some(receipt) = &run.receipt {
        let number = |name: &str| receipt[name].as_u64();
        let hits = number("hits").unwrap_or(0);
        cards.push((tables::grouped(hits), "hits"));
        let handled = number("handled").unwrap_or(0);
        cards.push((tables::grouped(hits.saturating_sub(handled)), "of them skipped"));
        let verdict = match (receipt["detach_verified"].as_bool(), receipt["target_gone"].as_bool()) {
            (_, Some(true)) => "process ended",
            (Some(true), _) => "verified",
            _ => "NOT verified",
        };
        cards.push((verdict.into(), "detach"));
        if let Some(us) = number("longest_stall_us") {
            cards.push((tables::time(us.saturating_mul(1000)), "longest stall of a thread"));
        }
    }
    if let Some(price) = &run.price {
        if let Some(ns) = price["ns"].as_f64() {
            cards.push((format!("\u{2265} {ns:.1} ns"), "price of a hit at least, measured beside the run"));
        }
        if let Some(percent) = price["overhead_percent"].as_f64() {
            cards.push((
                format!("\u{2265} {percent:.2} %"),
                "overhead at least: hits times price, of the process's CPU time",
            ));
        }
    }
    if let Some(budget) = &run.budget {
        let part =
            |name: &str| budget[name].as_f64().map_or("?".to_owned(), |percent| format!("{percent:.2} %"));
        cards.push((format!("{} of {}", part("used_percent"), part("asked_percent")), "of the budget used"));
    }
    cards.push((tables::grouped(run.placed.probes), "probes"));
    let card = |(value, what): &(String, &str)| {
        format!("<div class=\"card\"><b>{}</b>{}</div>", escaped(value), escaped(what))
    };
    let _ = writeln!(out, "<div class=\"cards\">{}</div>", cards.iter().map(card).collect::<String>());
}

/// Functions whose latency over time is drawn, the busiest first.
fn heated(run: &Run) -> Vec<String> {
    let mut sums: Vec<(String, u64)> = crate::read::sum_of_columns(&run.columns).into_iter().collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sums.into_iter().take(HEATS_SHOWN).map(|(name, _)| name).collect()
}

fn heat(run: &Run, out: &mut String) {
    let names = heated(run);
    if names.is_empty() {
        return;
    }
    let option = |name: &String| {
        let name = escaped(name);
        format!("<option value=\"{name}\">{name}</option>")
    };
    let _ = write!(
        out,
        "<section><h2>Latency over time</h2>\n<p><select id=\"choice\">{}</select> \
         <span class=\"faint\">a row for each power of two, a column for each interval</span></p>\n\
         <svg id=\"heat\" xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" viewBox=\"0 0 1000 100\"></svg></section>\n",
        names.iter().map(option).collect::<String>()
    );
}

fn times(run: &Run) -> Vec<u64> {
    run.columns.iter().map(|column| column.at_ms).collect()
}

/// Column, row and count of each place that was hit, by function.
fn cells(run: &Run) -> Value {
    let cells = heated(run).into_iter().map(|name| {
        let mut cells = Vec::new();
        for (x, column) in run.columns.iter().enumerate() {
            let buckets = column.functions.get(&name).map(|f| f.ns.as_slice()).unwrap_or_default();
            let octaves = bars::octaves(buckets);
            cells.extend(octaves.into_iter().map(|(row, count)| json!([x, row, count])));
        }
        (name, Value::Array(cells))
    });
    Value::Object(cells.collect::<Map<String, Value>>())
}

fn printed(run: &Run, out: &mut String) {
    if !run.printed.is_empty() {
        section(out, "Printed", &format!("<pre>{}</pre>", lines(&run.printed)));
    }
}

fn lines(all: &[String]) -> String {
    all.iter().map(|line| escaped(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::run_of;

    const EVIL: &str = "</script><img src=x onerror=alert(1)>\\\"'&";

    fn evil() -> Run {
        let name = serde_json::to_string(EVIL).unwrap();
        let latency = format!(
            r#"{{"@":{{{name}:{{"calls":3,"returned":2,"total_ns":300,"ns":[{{"min":96,"max":111,"count":2}}]}}}}}}"#
        );
        run_of(&[
            &format!(
                r#"{{"type":"run","data":{{"program":{name},"command":[{name}],"arguments":[{name}],"pid":7,"kernel":{name}}}}}"#
            ),
            &format!(r#"{{"type":"latency","data":{latency}}}"#),
            &format!(r#"{{"type":"latency","at_ms":1000,"interval_ms":1000,"data":{latency}}}"#),
            &format!(r#"{{"type":"map","data":{{{name}:{{{name}:{name}}}}}}}"#),
            &format!(r#"{{"type":"hist","data":{{{name}:[{{"min":1,"max":1,"count":4}}]}}}}"#),
            &format!(r#"{{"type":"stacks","data":{{"@":[{{"frames":[{name}],"count":1}}]}}}}"#),
            &format!(
                r#"{{"type":"call","data":{{"name":{name},"tid":1,"at_ns":5,"ns":7,"args":[{name}],"ret":{name}}}}}"#
            ),
            &format!(r#"{{"type":"printf","data":{name}}}"#),
            &format!(
                r#"{{"type":"attached_probes","data":{{"probes":1,"rungs":{{{name}:1}},"left_out":[{{"name":{name},"reason":{name}}}]}}}}"#
            ),
            &format!(
                r#"{{"type":"receipt","data":{{"hits":3,"handled":2,"skipped":{{{name}:1}},"detach_verified":true}}}}"#
            ),
        ])
    }

    #[test]
    fn names_of_the_target_are_never_markup() {
        let page = html(&evil());
        assert_eq!(page.matches("<img").count(), 0, "{page}");
        // The flame graph's, the data's and the page's own.
        assert_eq!(page.matches("</script>").count(), 3);
        assert!(page.contains("&lt;img src=x"));
    }

    #[test]
    fn a_page_has_a_section_for_what_was_recorded_and_no_other() {
        let all = html(&evil());
        for title in [
            "Functions",
            "Latency over time",
            "Histograms",
            "Maps",
            "Flame graph",
            "Calls",
            "Printed",
            "Account",
        ] {
            assert!(all.contains(&format!("<h2>{title}</h2>")), "{title}");
        }
        let few = html(&run_of(&[r#"{"type":"map","data":{"@":{"f":7}}}"#]));
        assert_eq!(few.matches("<h2>").count(), 1, "{few}");
        assert!(few.contains("The recording has no end"));
        assert!(!all.contains("The recording has no end"));
    }
}
