//! speedscope's file: stacks with their counts, and the calls of each thread over time.
//!
//! For:     speedscope.app.
//! State:   none.
//! Context: control.
//! Keeps:   S1 frames are said once, profiles name them by number.
//! Checked: tests/formats.rs, against the format's schema.
//! Source:  speedscope, file-format-schema.json.

use crate::calls::Edge;
use crate::run::{Frame, Run};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Default)]
struct Frames {
    all: Vec<Value>,
    known: HashMap<Frame, usize>,
}

impl Frames {
    fn number(&mut self, frame: &Frame) -> usize {
        if let Some(known) = self.known.get(frame) {
            return *known;
        }
        let mut value = json!({"name": frame.name});
        if !frame.file.is_empty() {
            value["file"] = json!(frame.file);
            value["line"] = json!(frame.line);
        }
        self.all.push(value);
        self.known.insert(frame.clone(), self.all.len() - 1);
        self.all.len() - 1
    }
}

pub fn bytes(run: &Run, threads: &BTreeMap<u64, Vec<Edge>>) -> Vec<u8> {
    let (mut frames, mut profiles) = (Frames::default(), Vec::new());
    if !run.stacks.is_empty() {
        let samples: Vec<Vec<usize>> =
            run.stacks.iter().map(|s| s.frames.iter().rev().map(|f| frames.number(f)).collect()).collect();
        let weights: Vec<u64> = run.stacks.iter().map(|s| s.count).collect();
        let all: u64 = weights.iter().fold(0, |a, b| a.saturating_add(*b));
        profiles.push(json!({
            "type": "sampled", "name": format!("{}: hits by stack", run.title()), "unit": "none",
            "startValue": 0, "endValue": all, "samples": samples, "weights": weights,
        }));
    }
    for (tid, edges) in threads {
        let event = |edge: &Edge| {
            let frame = Frame { name: run.calls[edge.call].name.clone(), ..Frame::default() };
            let kind = if edge.is_begin { "O" } else { "C" };
            json!({"type": kind, "frame": frames.number(&frame), "at": edge.at_ns})
        };
        let events: Vec<Value> = edges.iter().map(event).collect();
        let (first, last) = (edges.first().map_or(0, |e| e.at_ns), edges.last().map_or(0, |e| e.at_ns));
        profiles.push(json!({
            "type": "evented", "name": format!("calls of thread {tid}"), "unit": "nanoseconds",
            "startValue": first, "endValue": last, "events": events,
        }));
    }
    let exporter = format!("nanoprobe {}", run.about.version);
    let file = json!({
        "$schema": SCHEMA, "exporter": exporter.trim_end(), "name": run.title(), "activeProfileIndex": 0,
        "shared": {"frames": frames.all}, "profiles": profiles,
    });
    file.to_string().into_bytes()
}
