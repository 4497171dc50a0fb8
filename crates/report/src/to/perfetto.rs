//! Perfetto's own trace: a track for each thread, with its calls.
//!
//! For:     ui.perfetto.dev, trace_processor.
//! State:   none.
//! Context: control.
//! Keeps:   F1 packets of a track are in order of time, and balanced: `calls`.
//! Checked: tests/formats.rs.
//! Source:  google/perfetto, protos/perfetto/trace: trace_packet.proto, track_event.proto, track_descriptor.proto.

use super::proto::Message;
use crate::calls::Edge;
use crate::run::{Call, Run};
use std::collections::BTreeMap;

/// Of `TracePacket`; a trace is packets, each as field 1.
mod packet {
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK_DESCRIPTOR: u32 = 60;
}

mod event {
    pub const ANNOTATION: u32 = 4;
    pub const KIND: u32 = 9;
    pub const TRACK: u32 = 11;
    pub const NAME: u32 = 23;
    pub const BEGIN: u64 = 1;
    pub const END: u64 = 2;
}

mod descriptor {
    pub const UUID: u32 = 1;
    pub const PROCESS: u32 = 3;
    pub const THREAD: u32 = 4;
    pub const PARENT: u32 = 5;
}

/// All packets are of one writer, whose numbers begin anew.
const WRITER: u64 = 1;
const CLEARED: u64 = 1;
const PROCESS: u64 = 1;

pub fn bytes(run: &Run, threads: &BTreeMap<u64, Vec<Edge>>) -> Vec<u8> {
    let mut trace = Message::default();
    let pid = run.about.pid.unwrap_or(0);
    let mut process = Message::default();
    process.number(1, pid).bytes(6, run.title().as_bytes());
    let mut track = Message::default();
    track.number(descriptor::UUID, PROCESS).message(descriptor::PROCESS, &process);
    put(&mut trace, |packet| {
        packet.number(packet::SEQUENCE_FLAGS, CLEARED).message(packet::TRACK_DESCRIPTOR, &track);
    });
    for (tid, edges) in threads {
        let uuid = PROCESS + 1 + tid;
        let mut thread = Message::default();
        thread.number(1, pid).number(2, *tid).bytes(5, format!("thread {tid}").as_bytes());
        let mut track = Message::default();
        track.number(descriptor::UUID, uuid).number(descriptor::PARENT, PROCESS);
        track.message(descriptor::THREAD, &thread);
        put(&mut trace, |packet| {
            packet.message(packet::TRACK_DESCRIPTOR, &track);
        });
        for edge in edges {
            let event = track_event(edge, &run.calls, uuid);
            put(&mut trace, |packet| {
                packet.number(packet::TIMESTAMP, edge.at_ns).message(packet::TRACK_EVENT, &event);
            });
        }
    }
    trace.into_bytes()
}

fn put(trace: &mut Message, fill: impl FnOnce(&mut Message)) {
    let mut packet = Message::default();
    packet.number(packet::SEQUENCE, WRITER);
    fill(&mut packet);
    trace.message(1, &packet);
}

fn track_event(edge: &Edge, calls: &[Call], uuid: u64) -> Message {
    let mut message = Message::default();
    message.number(event::TRACK, uuid);
    if !edge.is_begin {
        message.number(event::KIND, event::END);
        return message;
    }
    message.number(event::KIND, event::BEGIN);
    let Some(call) = calls.get(edge.call) else { return message };
    message.bytes(event::NAME, call.name.as_bytes());
    let arguments = (0..).zip(&call.args).map(|(i, value)| (format!("arg{i}"), value));
    for (name, value) in arguments.chain(call.ret.iter().map(|value| ("ret".to_owned(), value))) {
        let mut annotation = Message::default();
        annotation.bytes(10, name.as_bytes()).bytes(6, value.as_bytes());
        message.message(event::ANNOTATION, &annotation);
    }
    message
}
