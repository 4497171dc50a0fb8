//! OpenMetrics text: counters and histograms of functions.
//!
//! For:     Prometheus and others that scrape files or take them by push.
//! State:   none.
//! Context: control.
//! Keeps:   M1 buckets are cumulative, end in `+Inf`, and that is the count; the text ends in `# EOF`.
//! Checked: tests below; tests/formats.rs, by the reader of Prometheus' client.
//! Source:  OpenMetrics 1.0.

use crate::run::{Function, Run};
use std::fmt::Write as _;

pub fn text(run: &Run) -> String {
    let mut out = String::new();
    counters(run, &mut out);
    durations(run, &mut out);
    if let Some(receipt) = &run.receipt {
        let number = |name: &str| receipt[name].as_u64().unwrap_or(0);
        head(&mut out, "nanoprobe_probe_hits", "counter", "Hits of probes.");
        let _ = writeln!(out, "nanoprobe_probe_hits_total {}", number("hits"));
        head(&mut out, "nanoprobe_probe_handled", "counter", "Hits that were handled.");
        let _ = writeln!(out, "nanoprobe_probe_handled_total {}", number("handled"));
        head(&mut out, "nanoprobe_probe_skipped", "counter", "Hits that were not handled, by cause.");
        let skipped = receipt["skipped"].as_object();
        for (cause, n) in skipped.into_iter().flatten() {
            let n = n.as_u64().unwrap_or(0);
            let _ = writeln!(out, "nanoprobe_probe_skipped_total{{cause=\"{}\"}} {n}", escaped(cause));
        }
    }
    out + "# EOF\n"
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Maps whose values are numbers.
fn counters(run: &Run, out: &mut String) {
    let maps = run.maps.iter().flat_map(|(map, rows)| rows.iter().map(move |(key, n)| (map, key, n)));
    let numbers: Vec<(&String, &String, f64)> =
        maps.filter_map(|(map, key, n)| Some((map, key, n.as_f64()?))).collect();
    if numbers.is_empty() {
        return;
    }
    head(out, "nanoprobe_value", "gauge", "What was counted, by map and key.");
    for (map, key, n) in numbers {
        let (map, key) = (escaped(map), escaped(key));
        let _ = writeln!(out, "nanoprobe_value{{map=\"{map}\",key=\"{key}\"}} {n}");
    }
}

fn durations(run: &Run, out: &mut String) {
    if run.functions.is_empty() {
        return;
    }
    head(out, "nanoprobe_calls", "counter", "Calls of a function.");
    for (name, f) in &run.functions {
        let _ = writeln!(out, "nanoprobe_calls_total{{function=\"{}\"}} {}", escaped(name), f.calls);
    }
    head(out, "nanoprobe_call_seconds", "histogram", "How long calls took that returned.");
    for (name, f) in &run.functions {
        histogram(out, &escaped(name), f);
    }
}

fn histogram(out: &mut String, name: &str, f: &Function) {
    let mut sum = 0u64;
    for bucket in &f.ns {
        sum = sum.saturating_add(bucket.count);
        let Some(max) = bucket.max else { continue };
        // Of whole nanoseconds the last one of the bucket.
        let bound = max as f64 / 1e9;
        let _ = writeln!(out, "nanoprobe_call_seconds_bucket{{function=\"{name}\",le=\"{bound:?}\"}} {sum}");
    }
    let total = f.total_ns as f64 / 1e9;
    let _ = writeln!(out, "nanoprobe_call_seconds_bucket{{function=\"{name}\",le=\"+Inf\"}} {sum}");
    let _ = writeln!(out, "nanoprobe_call_seconds_count{{function=\"{name}\"}} {sum}");
    let _ = writeln!(out, "nanoprobe_call_seconds_sum{{function=\"{name}\"}} {total:?}");
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use crate::{Run, To};

    #[test]
    fn buckets_are_cumulative_and_names_are_escaped() {
        let lines = [
            r#"{"type":"latency","data":{"@":{"f\"x\\":{"calls":4,"returned":3,"total_ns":500,"ns":[{"min":64,"max":127,"count":2},{"min":256,"max":511,"count":1}]}}}}"#,
            r#"{"type":"map","data":{"@":{"g":9}}}"#,
            r#"{"type":"receipt","data":{"hits":4,"handled":3,"skipped":{"ended_inside":1}}}"#,
        ];
        let run = Run::read(lines.join("\n").as_bytes()).unwrap();
        let text = String::from_utf8(To::OpenMetrics.bytes(&run).unwrap()).unwrap();
        for wanted in [
            "nanoprobe_value{map=\"@\",key=\"g\"} 9\n",
            "nanoprobe_calls_total{function=\"f\\\"x\\\\\"} 4\n",
            "_bucket{function=\"f\\\"x\\\\\",le=\"1.27e-7\"} 2\n",
            "le=\"5.11e-7\"} 3\n",
            "le=\"+Inf\"} 3\n",
            "_sum{function=\"f\\\"x\\\\\"} 5e-7\n",
            "nanoprobe_probe_skipped_total{cause=\"ended_inside\"} 1\n",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
