//! The Firefox profiler's processed profile: stacks as samples, calls as markers of their threads.
//!
//! For:     profiler.firefox.com.
//! State:   none.
//! Context: control.
//! Keeps:   X1 weights of samples add up to the counts: what does not fit one sample is several.
//! Checked: tests below; the writer is fxprof-processed-profile, which samply uses.

use crate::run::Run;
use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags, MarkerFieldFormat,
    MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval, StaticSchemaMarker,
    StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp, WeightType,
};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// One call.
struct CallMarker {
    name: StringHandle,
    text: StringHandle,
}

impl StaticSchemaMarker for CallMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Call";
    const CHART_LABEL: Option<&'static str> = Some("{marker.name}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.name}{marker.data.call}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "call",
        label: "Arguments and result",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.text
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}

pub fn bytes(run: &Run) -> Vec<u8> {
    let began = Duration::try_from_secs_f64(run.about.began.unwrap_or(0.0)).unwrap_or_default();
    let start: ReferenceTimestamp = (SystemTime::UNIX_EPOCH + began).into();
    let mut profile = Profile::new("nanoprobe", start, SamplingInterval::from_millis(1));
    let pid = u32::try_from(run.about.pid.unwrap_or(0)).unwrap_or(0);
    let process = profile.add_process(&run.title(), pid, at(0));
    if !run.stacks.is_empty() {
        stacks(run, &mut profile, process, pid);
    }
    calls(run, &mut profile, process, run.stacks.is_empty());
    profile.set_symbolicated(true);
    serde_json::to_vec(&profile).unwrap_or_default()
}

fn at(ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(ns)
}

fn stacks(run: &Run, profile: &mut Profile, process: ProcessHandle, pid: u32) {
    let thread = profile.add_thread(process, pid, at(0), true);
    profile.set_thread_name(thread, "hits by stack");
    profile.set_thread_samples_weight_type(thread, WeightType::Samples);
    let mut now = 0;
    for stack in &run.stacks {
        let frames: Vec<FrameInfo> = stack
            .frames
            .iter()
            .rev()
            .map(|frame| FrameInfo {
                frame: Frame::Label(profile.intern_string(&frame.name)),
                category_pair: CategoryHandle::OTHER.into(),
                flags: FrameFlags::empty(),
            })
            .collect();
        let handle = profile.intern_stack_frames(thread, frames.into_iter());
        let mut left = stack.count;
        while left > 0 {
            let weight = i32::try_from(left).unwrap_or(i32::MAX);
            profile.add_sample(thread, at(now), handle, CpuDelta::ZERO, weight);
            left -= u64::from(weight.cast_unsigned());
            now += 1_000_000;
        }
    }
}

fn calls(run: &Run, profile: &mut Profile, process: ProcessHandle, is_main: bool) {
    let mut threads: BTreeMap<u64, ThreadHandle> = BTreeMap::new();
    for call in run.calls.iter().filter(|call| call.tid != 0) {
        let tid = u32::try_from(call.tid).unwrap_or(0);
        let is_first = threads.is_empty() && is_main;
        let thread = *threads
            .entry(call.tid)
            .or_insert_with(|| profile.add_thread(process, tid, at(call.at_ns), is_first));
        let text = format!(
            "({}){}",
            call.args.join(", "),
            call.ret.iter().map(|r| format!(" = {r}")).collect::<String>()
        );
        let marker =
            CallMarker { name: profile.intern_string(&call.name), text: profile.intern_string(&text) };
        let timing = match call.ns {
            Some(ns) => MarkerTiming::Interval(at(call.at_ns), at(call.at_ns.saturating_add(ns))),
            None => MarkerTiming::IntervalStart(at(call.at_ns)),
        };
        profile.add_marker(thread, timing, marker);
    }
    for (tid, thread) in threads {
        profile.set_thread_name(thread, &format!("thread {tid}"));
    }
}

#[cfg(test)]
mod tests {
    use crate::{Run, To};

    #[test]
    fn weights_add_up_and_calls_are_markers() {
        let lines = [
            r#"{"type":"stacks","data":{"@":[{"frames":["f+0x0","main+0x1"],"count":5000000000},{"frames":["f+0x0"],"count":1}]}}"#,
            r#"{"type":"call","data":{"name":"f","tid":9,"at_ns":1500,"args":[1],"ret":2,"ns":250}}"#,
        ];
        let run = Run::read(lines.join("\n").as_bytes()).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&To::Firefox.bytes(&run).unwrap()).unwrap();
        let weights = file["threads"][0]["samples"]["weight"].as_array().unwrap();
        assert_eq!(weights.iter().filter_map(serde_json::Value::as_i64).sum::<i64>(), 5_000_000_001);
        assert_eq!(file["threads"][1]["markers"]["length"], 1, "{}", file["threads"][1]["markers"]);
        assert!(file["meta"]["preprocessedProfileVersion"].as_u64() > Some(40));
    }
}
