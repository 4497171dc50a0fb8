//! pprof: a gzip of one message.
//!
//! For:     `go tool pprof`, and services that take its profiles.
//! State:   none.
//! Context: control.
//! Keeps:   P1 each stack is a sample with its count; without stacks each timed function is one, with calls and nanoseconds.
//! Checked: `tests/formats.rs`, by its schema, and by `go tool pprof` at night.
//! Source:  google/pprof, proto/profile.proto.

use super::proto::Message;
use crate::run::{Frame, Run};
use flate2::{Compression, GzBuilder};
use std::collections::HashMap;
use std::io::Write;

/// Fields of `Profile`.
mod profile {
    pub const SAMPLE_TYPE: u32 = 1;
    pub const SAMPLE: u32 = 2;
    pub const LOCATION: u32 = 4;
    pub const FUNCTION: u32 = 5;
    pub const STRINGS: u32 = 6;
    pub const TIME_NANOS: u32 = 9;
    pub const PERIOD_TYPE: u32 = 11;
    pub const PERIOD: u32 = 12;
    pub const COMMENT: u32 = 13;
}

/// Texts are said once and then by number; the first is empty.
struct Strings {
    all: Vec<String>,
    known: HashMap<String, u64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let number = self.all.len() as u64;
        self.all.push(text.to_owned());
        self.known.insert(text.to_owned(), number);
        number
    }
}

pub fn bytes(run: &Run) -> Vec<u8> {
    let (mut out, mut strings) = (Message::default(), Strings { all: Vec::new(), known: HashMap::new() });
    strings.number("");
    let kinds: &[(&str, &str)] = match run.stacks.is_empty() {
        true => &[("calls", "count"), ("time", "nanoseconds")],
        false => &[("hits", "count")],
    };
    let mut kind = |(what, unit): &(&str, &str)| {
        let mut message = Message::default();
        message.number(1, strings.number(what)).number(2, strings.number(unit));
        message
    };
    let kinds: Vec<Message> = kinds.iter().map(&mut kind).collect();
    for kind in &kinds {
        out.message(profile::SAMPLE_TYPE, kind);
    }
    let mut frames = Frames::default();
    let own = |name: &String| Frame { name: name.clone(), ..Frame::default() };
    if run.stacks.is_empty() {
        for (name, f) in &run.functions {
            let ids = [frames.number(&own(name))];
            sample(&mut out, &ids, &[f.calls, f.total_ns]);
        }
    }
    for stack in &run.stacks {
        let ids: Vec<u64> = stack.frames.iter().map(|frame| frames.number(frame)).collect();
        sample(&mut out, &ids, &[stack.count]);
    }
    frames.write(&mut out, &mut strings);
    if let Some(began) = run.about.began.filter(|began| *began > 0.0) {
        out.number(profile::TIME_NANOS, (began * 1e9) as u64);
    }
    out.message(profile::PERIOD_TYPE, &kinds[0]).number(profile::PERIOD, 1);
    if !run.about.command.is_empty() {
        let comment = strings.number(&run.about.command.join(" "));
        out.packed(profile::COMMENT, [comment]);
    }
    for text in &strings.all {
        out.bytes(profile::STRINGS, text.as_bytes());
    }
    gzip(&out.into_bytes())
}

fn sample(out: &mut Message, locations: &[u64], values: &[u64]) {
    let mut sample = Message::default();
    // Values are signed there.
    let values = values.iter().map(|value| (*value).min(i64::MAX.cast_unsigned()));
    sample.packed(1, locations.iter().copied()).packed(2, values);
    out.message(profile::SAMPLE, &sample);
}

/// A location and a function for each frame, numbered from 1.
#[derive(Default)]
struct Frames {
    all: Vec<Frame>,
    known: HashMap<Frame, u64>,
}

impl Frames {
    fn number(&mut self, frame: &Frame) -> u64 {
        if let Some(known) = self.known.get(frame) {
            return *known;
        }
        self.all.push(frame.clone());
        self.known.insert(frame.clone(), self.all.len() as u64);
        self.all.len() as u64
    }

    fn write(&self, out: &mut Message, strings: &mut Strings) {
        for (id, frame) in (1..).zip(&self.all) {
            let (mut line, mut location) = (Message::default(), Message::default());
            line.number(1, id).number(2, frame.line);
            location.number(1, id).message(4, &line);
            out.message(profile::LOCATION, &location);
            let (name, file) = (strings.number(&frame.name), strings.number(&frame.file));
            let mut function = Message::default();
            function.number(1, id).number(2, name).number(3, name).number(4, file);
            out.message(profile::FUNCTION, &function);
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
    // A vector takes all that it is given.
    match gzip.write_all(bytes).and_then(|()| gzip.finish()) {
        Ok(done) => done,
        Err(_) => bytes.to_vec(),
    }
}
