//! The trace event format of Chrome: one object a call.
//!
//! For:     chrome://tracing, Perfetto's and Firefox's viewers, scripts.
//! State:   none.
//! Context: control.
//! Keeps:   H1 times are microseconds with three digits behind the point.
//! Checked: tests below; tests/formats.rs.
//! Source:  "Trace Event Format", the complete events of duration.

use crate::calls::Edge;
use crate::run::Run;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub fn bytes(run: &Run, threads: &BTreeMap<u64, Vec<Edge>>) -> Vec<u8> {
    let pid = run.about.pid.unwrap_or(0);
    let meta = |name: &str, tid: u64, value: String| json!({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {"name": value}});
    let mut events = vec![meta("process_name", 0, run.title())];
    events.extend(threads.keys().map(|tid| meta("thread_name", *tid, format!("thread {tid}"))));
    for (tid, edges) in threads {
        for edge in edges.iter().filter(|edge| edge.is_begin) {
            let call = &run.calls[edge.call];
            let named = (0..).zip(&call.args).map(|(i, value)| (format!("arg{i}"), json!(value)));
            let args: Map<String, Value> =
                named.chain(call.ret.iter().map(|ret| ("ret".to_owned(), json!(ret)))).collect();
            events.push(json!({
                "ph": "X", "pid": pid, "tid": tid, "name": call.name, "cat": "call",
                "ts": microseconds(call.at_ns), "dur": microseconds(call.ns.unwrap_or(0)), "args": args,
            }));
        }
    }
    json!({"displayTimeUnit": "ns", "traceEvents": events}).to_string().into_bytes()
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use crate::{Run, To};

    #[test]
    fn a_call_is_one_event_with_microseconds() {
        let line = r#"{"type":"call","data":{"name":"f","tid":9,"at_ns":1500,"args":[1],"ret":2,"ns":250}}"#;
        let run = Run::read(line.as_bytes()).unwrap();
        let text = To::Chrome.bytes(&run).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let event = &trace["traceEvents"][2];
        assert_eq!((&event["ph"], &event["name"], &event["tid"]), (&"X".into(), &"f".into(), &9.into()));
        assert_eq!((event["ts"].as_f64(), event["dur"].as_f64()), (Some(1.5), Some(0.25)));
        assert_eq!(event["args"]["ret"], "2");
    }
}
