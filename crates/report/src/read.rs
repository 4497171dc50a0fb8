//! A recording's lines.
//!
//! For:     `Run::read`.
//! State:   none.
//! Context: control; the file may be anything.
//! Keeps:   D1 a line that is not one of a recording is an error with its number; the last may be cut.
//!          D2 later totals replace earlier ones, parts of an interval are a column each, calls are added.
//!          D3 memory: `CALLS_MAX` calls and `PRINTED_MAX` lines are kept, the others counted or said.
//! Checked: tests below.

use crate::error::Unreadable;
use crate::run::{About, Bucket, Call, Column, Frame, Function, Placed, Run, Stack};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

/// So many calls are kept: of these all formats have all.
const CALLS_MAX: usize = 2_000_000;
const PRINTED_MAX: usize = 10_000;

impl Run {
    /// Reads a recording.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(mut from: impl BufRead) -> Result<Run, Unreadable> {
        let (mut run, mut bytes, mut number, mut is_known) = (Run::default(), Vec::new(), 0, false);
        loop {
            bytes.clear();
            if from.read_until(b'\n', &mut bytes).map_err(Unreadable::File)? == 0 {
                break;
            }
            number += 1;
            let is_whole = bytes.last() == Some(&b'\n');
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<Value>(&bytes) {
                Ok(line) => is_known |= run.take(&line),
                // Who was killed has not written all of it.
                Err(_) if !is_whole && is_known => run.is_cut = true,
                Err(why) => return Err(Unreadable::Line { line: number, why: why.to_string() }),
            }
        }
        if is_known { Ok(run) } else { Err(Unreadable::Nothing) }
    }

    /// One line; false if it is of no kind that is known.
    fn take(&mut self, line: &Value) -> bool {
        let data = &line["data"];
        match line["type"].as_str().unwrap_or_default() {
            "run" => self.about = about(data),
            "attached_probes" => self.placed = placed(data),
            "latency" => self.take_latency(line, data),
            "map" | "stats" | "value" => self.take_maps(data),
            "hist" | "lhist" | "tseries" => self.take_histograms(data),
            "stacks" => self.stacks = stacks(data),
            "call" => self.take_call(data),
            "printf" | "time" | "cat" | "join" | "syscall" => self.take_printed(data),
            "price" => self.price = Some(data.clone()),
            "budget" => self.budget = Some(data.clone()),
            "beside" => self.beside.push(data.clone()),
            "receipt" => self.receipt = Some(data.clone()),
            "loaded" | "followed" | "lost_events" | "missed_probes" | "errorf" | "runtime_error" => {}
            _ => return false,
        }
        true
    }

    fn take_latency(&mut self, line: &Value, data: &Value) {
        let functions = entries(&data["@"]).map(|(name, f)| (name.clone(), function(f)));
        match line["interval_ms"].as_u64() {
            Some(_) => {
                let at_ms = line["at_ms"].as_u64().unwrap_or(0);
                self.columns.push(Column { at_ms, functions: functions.collect() });
            }
            None => self.functions = functions.collect(),
        }
    }

    fn take_maps(&mut self, data: &Value) {
        for (name, value) in entries(data) {
            let rows = match value {
                Value::Object(of) => of.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
                value => vec![(String::new(), value.clone())],
            };
            self.maps.insert(name.clone(), rows);
        }
    }

    fn take_histograms(&mut self, data: &Value) {
        for (name, value) in entries(data) {
            match value {
                Value::Object(keyed) => keyed.iter().for_each(|(key, value)| {
                    self.histograms.insert(format!("{name}[{key}]"), buckets(value));
                }),
                value => drop(self.histograms.insert(name.clone(), buckets(value))),
            }
        }
    }

    fn take_call(&mut self, data: &Value) {
        if self.calls.len() >= CALLS_MAX {
            self.more_calls += 1;
            return;
        }
        let word = |v: &Value| match v {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        self.calls.push(Call {
            name: data["name"].as_str().unwrap_or("?").to_owned(),
            tid: data["tid"].as_u64().unwrap_or(0),
            at_ns: data["at_ns"].as_u64().unwrap_or(0),
            ns: data["ns"].as_u64(),
            args: data["args"].as_array().into_iter().flatten().map(word).collect(),
            ret: Some(&data["ret"]).filter(|v| !v.is_null()).map(word),
        });
    }

    fn take_printed(&mut self, data: &Value) {
        if self.printed.len() < PRINTED_MAX {
            let text = data.as_str().map_or_else(|| data.to_string(), str::to_owned);
            self.printed.extend(text.lines().map(str::to_owned));
        }
    }
}

fn entries(of: &Value) -> impl Iterator<Item = (&String, &Value)> {
    of.as_object().into_iter().flat_map(Map::iter)
}

fn text(of: &Value) -> String {
    of.as_str().unwrap_or_default().to_owned()
}

fn texts(of: &Value) -> Vec<String> {
    of.as_array().into_iter().flatten().map(text).collect()
}

fn about(data: &Value) -> About {
    About {
        version: text(&data["version"]),
        command: texts(&data["command"]),
        pid: data["pid"].as_u64(),
        program: text(&data["program"]),
        arguments: texts(&data["arguments"]),
        kernel: text(&data["kernel"]),
        cpus: data["cpus"].as_u64(),
        began: data["began"].as_f64(),
    }
}

fn placed(data: &Value) -> Placed {
    let left_out = data["left_out"].as_array().into_iter().flatten();
    Placed {
        probes: data["probes"].as_u64().unwrap_or(0),
        rungs: entries(&data["rungs"]).map(|(rung, n)| (rung.clone(), n.as_u64().unwrap_or(0))).collect(),
        left_out: left_out.map(|one| (text(&one["name"]), text(&one["reason"]))).collect(),
        attach_us: data["attach_us"].as_u64(),
        longest_stall_us: data["longest_stall_us"].as_u64(),
    }
}

fn function(data: &Value) -> Function {
    let number = |name: &str| data[name].as_u64().unwrap_or(0);
    let (calls, returned, total_ns) = (number("calls"), number("returned"), number("total_ns"));
    Function { calls, returned, total_ns, ns: buckets(&data["ns"]) }
}

fn buckets(of: &Value) -> Vec<Bucket> {
    let bucket = |b: &Value| Bucket {
        min: b["min"].as_i64().unwrap_or(i64::MIN),
        max: b["max"].as_i64(),
        count: b["count"].as_u64().unwrap_or(0),
    };
    of.as_array().into_iter().flatten().map(bucket).collect()
}

fn stacks(data: &Value) -> Vec<Stack> {
    let all = data["@"].as_array().into_iter().flatten();
    let files: BTreeSet<String> = texts(&data["files"]).into_iter().collect();
    let frames = |one: &Value| texts(&one["frames"]).iter().map(|f| frame(f, &files)).collect();
    all.map(|one| Stack { frames: frames(one), count: one["count"].as_u64().unwrap_or(0) }).collect()
}

/// As the command writes it: `name+0x12@file:7`, of which the last two parts may be missing. Of one of
/// `files` in the place of a name the offset is all that tells its functions apart.
fn frame(text: &str, files: &BTreeSet<String>) -> Frame {
    let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let source = text.rsplit_once('@').and_then(|(name, source)| {
        let (file, line) =
            source.rsplit_once(':').filter(|(file, line)| !file.is_empty() && is_number(line))?;
        Some((name, file, line.parse().ok()?))
    });
    let (name, file, line) = source.unwrap_or((text, "", 0));
    let is_offset = |s: &&str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_hexdigit());
    let bare = name.rsplit_once("+0x").filter(|(name, offset)| is_offset(offset) && !files.contains(*name));
    Frame { name: bare.map_or(name, |(name, _)| name).to_owned(), file: file.to_owned(), line }
}

/// Only for tests of formats: a run of a few lines.
#[cfg(test)]
pub fn run_of(lines: &[&str]) -> Run {
    Run::read(lines.join("\n").as_bytes()).unwrap()
}

/// Sums of the columns of a function.
pub fn sum_of_columns(columns: &[Column]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, function) in columns.iter().flat_map(|c| &c.functions) {
        *sums.entry(name.clone()).or_insert(0u64) += function.calls;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = r#"{"type":"latency","data":{"@":{"f":{"calls":3,"returned":2,"total_ns":300,"ns":[{"min":96,"max":111,"count":1},{"min":192,"max":223,"count":1}]}}}}"#;

    #[test]
    fn totals_replace_each_other_and_intervals_are_columns() {
        let part =
            LATENCY.replace(r#""type":"latency""#, r#""type":"latency","at_ms":1000,"interval_ms":1000"#);
        let run = run_of(&[LATENCY, &part, &part, LATENCY]);
        assert_eq!((run.functions["f"].calls, run.columns.len()), (3, 2));
        assert_eq!(run.functions["f"].percentile(50), Some(112));
        assert_eq!(run.functions["f"].percentile(99), Some(224));
        assert_eq!(sum_of_columns(&run.columns)["f"], 6);
        assert_eq!(Function::default().percentile(50), None);
    }

    #[test]
    fn frames_lose_their_offsets_and_keep_their_lines() {
        let files = ["libx.so.1", "nginx"].map(str::to_owned).into();
        let bare = |text| frame(text, &files).name;
        assert_eq!(bare("malloc+0x0"), "malloc");
        assert_eq!(bare("operator+(A, B)+0x1f"), "operator+(A, B)");
        assert_eq!(bare("libx.so.1+0x1f3"), "libx.so.1+0x1f3", "the offset is all its name");
        assert_eq!(bare("nginx+0xb6dc0"), "nginx+0xb6dc0", "whatever the file is called");
        assert_eq!(bare("0x1234"), "0x1234");
        let with_line = frame("main+0x73@a b.c:12", &files);
        assert_eq!((with_line.name.as_str(), with_line.file.as_str(), with_line.line), ("main", "a b.c", 12));
        assert_eq!(bare("memcpy@@GLIBC_2.14+0x2"), "memcpy@@GLIBC_2.14");
    }

    #[test]
    fn a_cut_recording_is_read_to_the_cut_and_other_files_are_refused() {
        let cut = format!("{LATENCY}\n{}", &LATENCY[..40]);
        let run = Run::read(cut.as_bytes()).unwrap();
        assert!(run.is_cut && run.functions.contains_key("f"));
        let middle = format!("{LATENCY}\nnonsense\n{LATENCY}\n");
        assert!(matches!(Run::read(middle.as_bytes()), Err(Unreadable::Line { line: 2, .. })));
        assert!(matches!(Run::read(&b""[..]), Err(Unreadable::Nothing)));
        assert!(matches!(Run::read(&b"{\"a\": 1}\n"[..]), Err(Unreadable::Nothing)));
        assert!(matches!(Run::read(&b"\x7fELF"[..]), Err(Unreadable::Line { line: 1, .. })));
    }

    #[test]
    fn what_a_script_prints_is_read_too() {
        let run = run_of(&[
            r#"{"type": "map", "data": {"@n": 7, "@by": {"a": 1, "b": 2}}}"#,
            r#"{"type": "hist", "data": {"@h": [{"min": 2, "max": 3, "count": 9}], "@k": {"x": [{"max": -1, "count": 1}]}}}"#,
            r#"{"type": "printf", "data": "one\ntwo"}"#,
        ]);
        assert_eq!((run.maps["@n"].len(), run.maps["@by"].len()), (1, 2));
        assert_eq!((run.histograms["@h"][0].count, run.histograms["@k[x]"][0].max), (9, Some(-1)));
        assert_eq!(run.printed, ["one", "two"]);
    }
}
