//! What other programs open, read back: by their own readers where a machine for tests has them, else by the format's rules.
//!
//! For:     `To`.
//! Keeps:   counts, names and times arrive.

use report::{Run, To};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::Command;

const LINES: [&str; 5] = [
    r#"{"type":"run","data":{"program":"server","pid":7,"command":["nanoprobe","record"],"began":1795373999.5}}"#,
    r#"{"type":"latency","data":{"@":{"busy":{"calls":5,"returned":4,"total_ns":1000,"ns":[{"min":192,"max":255,"count":4}]}}}}"#,
    r#"{"type":"stacks","data":{"@":[{"frames":["malloc+0x0","left+0x1@a.c:12","main+0x2"],"count":30},{"frames":["malloc+0x0","std::f<int>(A, B)+0x1","main+0x2"],"count":12345678901}]}}"#,
    r#"{"type":"call","data":{"name":"outer","tid":9,"at_ns":1000,"args":[1,"x"],"ret":2,"ns":5000}}"#,
    r#"{"type":"call","data":{"name":"inner","tid":9,"at_ns":2000,"args":[],"ret":null,"ns":300}}"#,
];

fn run(lines: &[&str]) -> Run {
    Run::read(lines.join("\n").as_bytes()).unwrap()
}

/// A profile as its schema has it: kinds of values, and each sample's values and frames, a function's name, file and line.
type Profile = (Vec<String>, Vec<(Vec<u64>, Vec<String>)>);

fn profile(run: &Run) -> Profile {
    let mut bytes = Vec::new();
    let zipped = To::Pprof.bytes(run).unwrap();
    flate2::read::GzDecoder::new(&zipped[..]).read_to_end(&mut bytes).unwrap();
    let all = fields(&bytes);
    let messages = |field: u64| {
        let of = move |(number, value): &(u64, Result<u64, &'_ [u8]>)| {
            (*number == field).then_some(value.err()?.to_vec())
        };
        all.iter().filter_map(of).collect::<Vec<Vec<u8>>>()
    };
    let strings: Vec<String> = messages(6).into_iter().map(|text| String::from_utf8(text).unwrap()).collect();
    assert_eq!(strings[0], "");
    let number = |message: &[u8], field: u64| get(&fields(message), field).map_or(0, |value| value.unwrap());
    let text = |message: &[u8], field: u64| strings[number(message, field) as usize].clone();
    let packed = |message: &[u8], field: u64| numbers(get(&fields(message), field).unwrap().unwrap_err());
    let by_id =
        |field: u64| messages(field).into_iter().map(|m| (number(&m, 1), m)).collect::<BTreeMap<_, _>>();
    let (locations, functions) = (by_id(4), by_id(5));
    let frame = |id: &u64| {
        let line = get(&fields(&locations[id]), 4).unwrap().unwrap_err().to_vec();
        let function = &functions[&number(&line, 1)];
        format!("{} {}:{}", text(function, 2), text(function, 4), number(&line, 2))
    };
    let samples = messages(2);
    let samples = samples.iter().map(|m| (packed(m, 2), packed(m, 1).iter().map(frame).collect()));
    let kinds = messages(1);
    (kinds.iter().map(|m| format!("{}/{}", text(m, 1), text(m, 2))).collect(), samples.collect())
}

#[test]
fn a_profile_has_stacks_with_their_counts_and_lines() {
    let (kinds, samples) = profile(&run(&LINES));
    assert_eq!(kinds, ["hits/count"]);
    let wanted = [
        (vec![30], ["malloc :0", "left a.c:12", "main :0"]),
        (vec![12_345_678_901], ["malloc :0", "std::f<int>(A, B) :0", "main :0"]),
    ];
    let wanted = wanted.map(|(values, frames)| (values, frames.map(str::to_owned).to_vec()));
    assert_eq!(samples, wanted);
}

#[test]
fn a_profile_has_functions_where_there_are_no_stacks() {
    let (kinds, samples) = profile(&run(&LINES[..2]));
    assert_eq!(kinds, ["calls/count", "time/nanoseconds"]);
    assert_eq!(samples, [(vec![5, 1000], vec!["busy :0".to_owned()])]);
}

/// Go builds its reader when it is asked for: minutes on a machine without its cache.
#[test]
#[ignore = "builds a program of Go's: cargo test -p nanoprobe-report -- --ignored"]
fn go_tool_pprof_reads_a_profile() {
    let file = std::env::temp_dir().join(format!("np-{}.pb.gz", std::process::id()));
    std::fs::write(&file, To::Pprof.bytes(&run(&LINES)).unwrap()).unwrap();
    let go = ["/usr/local/go/bin/go", "go"]
        .into_iter()
        .find(|go| Command::new(go).arg("version").output().is_ok());
    let go = go.expect("no go: scripts/debian-packages installs it");
    let output =
        Command::new(go).args(["tool", "pprof", "-raw"]).arg(&file).env("TZ", "UTC").output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(
        words.contains(&vec!["30:", "1", "2", "3"]) && words.contains(&vec!["12345678901:", "1", "4", "3"]),
        "{text}"
    );
    assert!(text.contains("left a.c:12") && text.contains("Time: 2026-11-22"), "{text}");
}

#[test]
fn speedscope_has_numbered_frames_and_balanced_events() {
    let file: Value = serde_json::from_slice(&To::Speedscope.bytes(&run(&LINES)).unwrap()).unwrap();
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = file["shared"]["frames"].as_array().unwrap();
    let name = |i: &Value| frames[i.as_u64().unwrap() as usize]["name"].as_str().unwrap();
    let sampled = &file["profiles"][0];
    let first: Vec<&str> = sampled["samples"][0].as_array().unwrap().iter().map(name).collect();
    assert_eq!(
        (first, sampled["weights"][1].as_u64()),
        (vec!["main", "left", "malloc"], Some(12_345_678_901))
    );
    assert_eq!(sampled["endValue"], 12_345_678_931u64);
    let events = file["profiles"][1]["events"].as_array().unwrap();
    let shape: Vec<(&str, &str, u64)> = events
        .iter()
        .map(|e| (e["type"].as_str().unwrap(), name(&e["frame"]), e["at"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        shape,
        [("O", "outer", 1000), ("O", "inner", 2000), ("C", "inner", 2300), ("C", "outer", 6000)]
    );
}

fn number(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().expect("a number ends");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return value;
        }
    }
}

/// A list of numbers.
fn numbers(mut bytes: &[u8]) -> Vec<u64> {
    std::iter::from_fn(|| (!bytes.is_empty()).then(|| number(&mut bytes))).collect()
}

/// Fields of a message: number and value, a number or bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Result<u64, &[u8]>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = number(&mut bytes);
        let value = match key & 7 {
            0 => Ok(number(&mut bytes)),
            2 => {
                let len = number(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(len);
                bytes = rest;
                Err(value)
            }
            other => panic!("kind {other}"),
        };
        all.push((key >> 3, value));
    }
    all
}

fn get<'a>(of: &[(u64, Result<u64, &'a [u8]>)], field: u64) -> Option<Result<u64, &'a [u8]>> {
    of.iter().find(|(number, _)| *number == field).map(|(_, value)| *value)
}

#[test]
fn perfetto_has_a_track_for_the_thread_and_calls_inside_of_calls() {
    let trace = To::Perfetto.bytes(&run(&LINES)).unwrap();
    let (mut tracks, mut events) = (Vec::new(), Vec::new());
    for (number, packet) in fields(&trace) {
        assert_eq!(number, 1);
        let packet = fields(packet.unwrap_err());
        assert!(get(&packet, 10).is_some(), "each packet names its writer");
        if let Some(Err(track)) = get(&packet, 60) {
            tracks.push(fields(track));
        }
        if let Some(Err(event)) = get(&packet, 11) {
            let event = fields(event);
            let name = get(&event, 23).map(|name| String::from_utf8(name.unwrap_err().to_vec()).unwrap());
            events.push((
                get(&packet, 8).unwrap().unwrap(),
                get(&event, 9).unwrap().unwrap(),
                name,
                get(&event, 11),
            ));
        }
    }
    assert_eq!(tracks.len(), 2);
    let thread = fields(get(&tracks[1], 4).unwrap().unwrap_err());
    assert_eq!((get(&thread, 1), get(&thread, 2)), (Some(Ok(7)), Some(Ok(9))));
    let uuid = get(&tracks[1], 1);
    assert!(events.iter().all(|(_, _, _, track)| *track == uuid));
    let shape: Vec<(u64, u64, Option<&str>)> =
        events.iter().map(|(at, kind, name, _)| (*at, *kind, name.as_deref())).collect();
    assert_eq!(shape, [(1000, 1, Some("outer")), (2000, 1, Some("inner")), (2300, 2, None), (6000, 2, None)]);
}

#[test]
fn a_format_without_what_it_shows_is_refused() {
    let run = run(&LINES[..2]);
    for to in [To::Flame, To::Folded, To::Speedscope, To::Firefox, To::Chrome, To::Perfetto] {
        assert!(to.bytes(&run).is_err(), "{to:?}");
    }
    for to in [To::Html, To::Pprof, To::OpenMetrics] {
        assert!(to.bytes(&run).is_ok(), "{to:?}");
    }
}

#[test]
fn who_was_seen_in_part_by_a_budget_is_named_on_the_page() {
    let lines = [
        r#"{"type":"budget","data":{"asked_percent":2.0,"used_percent":1.82,"stops":3,"sampled":{"a<b>":{"one_of":7.14,"estimated":9,"switched_off":false},"b":{"one_of":null,"estimated":null,"switched_off":true}}}}"#,
        r#"{"type":"receipt","data":{"hits":2,"handled":2,"skipped":{},"detach_verified":true}}"#,
    ];
    let run = report::Run::read(lines.join("\n").as_bytes()).unwrap();
    assert_eq!(run.seen_in_part(), [("a<b>".into(), "1 of 7.1".into()), ("b".into(), "switched off".into())]);
    let page = String::from_utf8(report::To::Html.bytes(&run).unwrap()).unwrap();
    for wanted in
        ["A budget was kept", "a&lt;b&gt; 1 of 7.1, b switched off", "1.82 % of 2.00 %", "budget: stops"]
    {
        assert!(page.contains(wanted), "{wanted}");
    }
    let all = report::Run::read(lines[1].as_bytes()).unwrap();
    assert!(!String::from_utf8(report::To::Html.bytes(&all).unwrap()).unwrap().contains("A budget was kept"));
}
